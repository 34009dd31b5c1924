"""Training on kernel matrices agrees with neural-tangents where that gives numbers, and is finite where it does not."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate

import ntk_equiv.nt as nt
from ntk_equiv import interop
from tests.tolerances import assert_close

old = interop.neural_tangents().predict

TIMES = {"array": np.array([[0.0, 1.0, 5.0], [2.0, 40.0, 0.5]]), "end": None}
REGULARISED = {"relative": {"diag_reg": 0.1}, "absolute": {"diag_reg": 0.3, "diag_reg_absolute_scale": True}}


def theirs_of(call, *args, **kwargs):
    with jax.numpy_rank_promotion("allow"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call(*args, **kwargs)


def draw(*shapes):
    keys = jax.random.split(jax.random.key(1), len(shapes))
    return [jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)]


def kernels(train, test, grid=()):
    """Positive definite kernels of outputs with positions, `[n1, n2, h, h']`."""
    (features,) = draw((train + test, *grid, 40))
    K = jnp.einsum("agf,bhf->abgh" if grid else "af,bf->ab", features, features) / 40
    return K[:train, :train], K[train:, :train], K[train:, train:]


@pytest.mark.parametrize("t", TIMES.values(), ids=TIMES)
@pytest.mark.parametrize("settings", REGULARISED.values(), ids=REGULARISED)
def test_descent_on_the_mean_squared_error(t, settings):
    k, k_test, _ = kernels(4, 3)
    y, f, g = draw((4, 2), (4, 2), (3, 2))
    arguments = (k, y, 0.7)
    ours = nt.predict.gradient_descent_mse(*arguments, **settings)(t, f, g, k_test)
    theirs = theirs_of(old.gradient_descent_mse(*arguments, **settings), np.inf if t is None else t, f, g, k_test)
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape
        assert_close(a, b)


@pytest.mark.parametrize(
    ("trace_axes", "grid", "shape"), [((-1,), (3,), (4, 3, 2)), ((), (), (4,)), ((1,), (3,), (4, 2, 3))]
)
def test_axes_that_kernels_lack(trace_axes, grid, shape):
    k, k_test, _ = kernels(4, 2, grid)
    y, f, g = draw(shape, shape, (2, *shape[1:]))
    ours = nt.predict.gradient_descent_mse(k, y, trace_axes=trace_axes)(2.0, f, g, k_test)
    theirs = theirs_of(old.gradient_descent_mse(k, y, trace_axes=trace_axes), 2.0, f, g, k_test)
    assert_close(ours[0], theirs[0])
    assert_close(ours[1], theirs[1])
    assert_close(nt.predict.max_learning_rate(k, 8, 0.9), 2 * 1.9 * 8 / largest_eigenvalue(k))


def largest_eigenvalue(k):
    rows = int(np.prod(k.shape[::2]))
    matrix = np.moveaxis(np.asarray(k), range(1, k.ndim, 2), range(k.ndim // 2, k.ndim)).reshape(rows, rows)
    return np.linalg.eigvalsh(matrix)[-1]


def test_only_what_is_asked_for_is_returned():
    k, k_test, _ = kernels(4, 3)
    (y,) = draw((4, 2))
    predict_fn = nt.predict.gradient_descent_mse(k, y)
    assert predict_fn(1.0).shape == (4, 2)
    assert predict_fn(1.0, None, 0.0, k_test).shape == (3, 2)
    with pytest.raises(ValueError, match="k_test_train"):
        predict_fn(1.0, 0.0, 0.0)
    with pytest.raises(ValueError, match="fx_train_0"):
        predict_fn(1.0, None)


def test_a_singular_kernel_gives_numbers():
    """Two equal samples with different labels: neural-tangents returns NaN; the pseudo-inverse fits their mean."""
    k, y = jnp.ones((2, 2)), jnp.array([[1.0], [3.0]])
    train, test = nt.predict.gradient_descent_mse(k, y)(None, 0.0, 0.0, jnp.ones((1, 2)))
    assert_close(train, jnp.full((2, 1), 2.0))
    assert_close(test, jnp.full((1, 1), 2.0))
    assert_close(nt.predict.gp_inference(k, y)("nngp", jnp.ones((1, 2))), jnp.full((1, 1), 2.0))


def half_mean(outputs, labels):
    return 0.5 * jnp.mean((outputs - labels) ** 2)


def cross_entropy(outputs, y):
    return -jnp.mean(jax.nn.log_softmax(outputs) * y)


@pytest.mark.parametrize("momentum", [None, 0.8])
def test_any_loss(momentum):
    """SciPy's integrator is the judge."""
    k, k_test, _ = kernels(4, 2)
    (f,) = draw((6, 3))
    y = jax.nn.one_hot(jnp.array([0, 1, 2, 1]), 3)
    times = np.array([0.0, 3.0, 20.0])
    predict_fn = nt.predict.gradient_descent(cross_entropy, k, y, 0.5, momentum)
    train, test = predict_fn(times, f[:4], f[4:], k_test)
    found = jnp.concatenate([train, test], axis=1)

    theta, rate = np.concatenate([k, k_test]), 0.5 if momentum is None else 0.5**0.5

    def slope(outputs):
        return -theta @ np.asarray(jax.grad(cross_entropy)(jnp.asarray(outputs[:4]), y))

    def equation(_, state):
        if momentum is None:
            return slope(state.reshape(6, 3)).ravel()
        place, speed = state.reshape(2, 6, 3)
        return np.stack([speed, slope(place) - (1 - momentum) / rate * speed]).ravel()

    start = np.asarray(f) if momentum is None else np.stack([f, np.zeros_like(f)])
    path = scipy.integrate.solve_ivp(
        equation, (0, rate * 20), start.ravel(), t_eval=rate * times, rtol=1e-10, atol=1e-10
    ).y.T.reshape(3, -1, 6, 3)[:, 0]
    np.testing.assert_allclose(found, path, rtol=1e-5, atol=1e-5)


def test_any_loss_agrees_with_the_closed_form_at_any_time():
    k, k_test, _ = kernels(4, 2)
    y, f, g = draw((4, 2), (4, 2), (2, 2))
    times = jnp.array([[10.0, 0.0], [jnp.inf, 1.0]])
    ours = nt.predict.gradient_descent(half_mean, k, y)(times, f, g, k_test)
    exact = nt.predict.gradient_descent_mse(k, y)(times, f, g, k_test)
    for a, b in zip(ours, exact, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_a_state_is_resumed():
    k, k_test, _ = kernels(4, 2)
    y, f, g = draw((4, 2), (4, 2), (2, 2))
    predict_fn = nt.predict.gradient_descent(half_mean, k, y, 0.4, 0.9)
    first = predict_fn(3.0, nt.predict.ODEState(f, g), None, k_test)
    second = predict_fn(4.0, first, None, k_test)
    whole = predict_fn(7.0, nt.predict.ODEState(f, g), None, k_test)
    for a, b in zip(jax.tree.leaves(second), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_the_end_of_training_inside_jit():
    """It is never taken for the beginning: refused where it is known, NaN where it is not."""
    k, _, _ = kernels(3, 1)
    (y,) = draw((3, 1))
    predict_fn = nt.predict.gradient_descent(half_mean, k, y)
    for t in (None, np.inf):
        with pytest.raises(ValueError, match="outside"):
            jax.jit(lambda f, t=t: predict_fn(t, f))(0 * y)
    found = jax.jit(predict_fn)(jnp.array([1.0, jnp.inf]))
    assert_close(found[0], predict_fn(1.0))
    assert jnp.isnan(found[1]).all()


def test_trace_axes_may_be_named_twice_but_must_exist():
    k, _, _ = kernels(4, 1)
    (y,) = draw((4, 2))
    one, twice = (nt.predict.gradient_descent_mse(k, y, trace_axes=axes)(1.0) for axes in ((-1,), (1, 1, -1)))
    np.testing.assert_array_equal(one, twice)
    with pytest.raises(ValueError, match="trace_axes"):
        nt.predict.gradient_descent_mse(k, y, trace_axes=(2,))


def test_training_without_an_end_is_refused():
    k, _, _ = kernels(3, 1)
    y = jax.nn.one_hot(jnp.array([0, 1, 0]), 2)
    with pytest.raises(ValueError, match="still change"):
        nt.predict.gradient_descent(cross_entropy, k, y)()


@pytest.fixture(scope="module")
def problem():
    x, x_test, y = draw((5, 4), (3, 4), (5, 2))
    kernel_fn = nt.stax.serial(nt.stax.Dense(8, 1.5, 0.3), nt.stax.Erf(), nt.stax.Dense(1, 1.2, 0.1))[2]
    return x, x_test, y, kernel_fn


@pytest.mark.parametrize("settings", REGULARISED.values(), ids=REGULARISED)
def test_posteriors(problem, settings):
    x, x_test, y, kernel_fn = problem
    names = ("nngp", "ntk", "ntkgp")
    both = ("nngp", "ntk")
    ours = nt.predict.gp_inference(kernel_fn(x, None), y, **settings)(
        names, kernel_fn(x_test, x), kernel_fn(x_test, None, both)
    )
    infer = old.gp_inference(kernel_fn(x, None, both), y, **settings)
    theirs = theirs_of(infer, names, kernel_fn(x_test, x, both), kernel_fn(x_test, None, both))
    assert ours._fields == names
    for a, b in zip(ours, theirs, strict=True):
        assert_close(a.mean, b.mean)
        assert_close(a.covariance, b.covariance)


@pytest.mark.parametrize("t", TIMES.values(), ids=TIMES)
@pytest.mark.parametrize("on_test", [True, False])
def test_the_ensemble(problem, t, on_test):
    x, x_test, y, kernel_fn = problem
    settings = {"learning_rate": 0.5} | ({"diag_reg": 0.02} if on_test else {})
    arguments = {"t": t, "x_test": x_test if on_test else None, "compute_cov": True}
    ours = nt.predict.gradient_descent_mse_ensemble(kernel_fn, x, y, **settings)(**arguments)
    theirs = theirs_of(old.gradient_descent_mse_ensemble(kernel_fn, x, y, **settings), **arguments)
    for a, b in zip(ours, theirs, strict=True):
        assert isinstance(a, nt.predict.Gaussian)
        assert a.covariance.shape == b.covariance.shape
        assert_close(a.mean, b.mean)
        np.testing.assert_allclose(a.covariance, b.covariance, rtol=0, atol=1e-10)
    single = nt.predict.gradient_descent_mse_ensemble(kernel_fn, x, y, **settings)(t, arguments["x_test"], "ntk")
    assert_close(single, ours.ntk.mean)


def test_it_is_imported_by_the_name_that_it_has_in_neural_tangents():
    from ntk_equiv.nt.predict import gp_inference

    assert gp_inference is nt.predict.gp_inference


@pytest.mark.parametrize("wrong", [lambda y: y[1:], lambda y: y[:, 0]], ids=["fewer", "without channels"])
def test_labels_that_do_not_fit_the_kernel_are_refused(problem, wrong):
    x, x_test, y, kernel_fn = problem
    k = kernel_fn(x, None, ("nngp", "ntk"))
    message = rf"`y_train` must be labels .* for the {len(x)} rows .* `y_train\[:, None\]`"
    with pytest.raises(ValueError, match=message):
        nt.predict.gradient_descent_mse_ensemble(kernel_fn, x, wrong(y))(1.0, x_test, "ntk")
    with pytest.raises(ValueError, match=message):
        nt.predict.gp_inference(k, wrong(y))("ntk", kernel_fn(x_test, x, ("nngp", "ntk")))
