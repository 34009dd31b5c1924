"""Laziness before training, against training step by step, naive Jacobians, and neural-tangents-free formulas."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from ntk_equiv import InfiniteEnsemble, augment, bounds, filters, groups, reps, stax
from ntk_equiv.empirical import Laziness, fitted_exponent, laziness, required_width, shift_correction
from tests.tolerances import assert_close

RNG = np.random.default_rng(3)
X, TEST = jnp.array(RNG.normal(size=(4, 3))), jnp.array(RNG.normal(size=(3, 3)))
Y = jnp.array(RNG.normal(size=(4, 2)))
RATE, STEPS = 0.4, (4, 16, 64)
DESCENT = filters.gradient_descent(RATE)


def network(width, activation=stax.Erf, outputs=2):
    return stax.serial(stax.Dense(width, 1.5, 0.2), activation(), stax.Dense(outputs))


def members_of(net, count, seed=0):
    return jax.vmap(lambda key: net.init_fn(key, X.shape)[1])(jax.random.split(jax.random.key(seed), count))


def one_of(params, number):
    return jax.tree.map(lambda leaf: leaf[number], params)


def train(net, params, x, y, test, steps=STEPS, rate=RATE):
    """Train one member by the textbook, and return its predictions after some steps."""

    def loss(p):
        return jnp.mean((net.apply_fn(p, x) - y) ** 2) / 2

    def step(p, _):
        return jax.tree.map(lambda w, g: w - rate * g, p, jax.grad(loss)(p)), None

    predictions, before = [], 0
    for now in steps:
        params, _ = jax.lax.scan(step, params, None, length=now - before)
        predictions.append(net.apply_fn(params, test))
        before = now
    return jnp.stack(predictions)


def trained_members(net, params, count):
    run = jax.jit(lambda p: train(net, p, X, Y, TEST))
    return np.stack([run(one_of(params, number)) for number in range(count)])


def linearised_by_steps(net, params, steps):
    """Return w_t of the linearised network by taking its steps one by one."""
    flat, restore = ravel_pytree(params)
    jacobian = jax.jacobian(lambda w: net.apply_fn(restore(w), X).ravel())(flat)
    residual, w = net.apply_fn(params, X).ravel() - Y.ravel(), flat
    for _ in range(steps):
        step = -RATE / Y.size * jacobian.T @ residual
        w, residual = w + step, residual + jacobian @ step
    return restore(w), jacobian


@pytest.fixture(scope="module")
def smooth():
    net = network(256)
    params = members_of(net, 3, seed=256)
    return net, params, laziness(net, params, (X, Y), TEST, STEPS, DESCENT, reduction="mean")


def test_members_move_as_their_linearisation_does_step_by_step(smooth):
    net, params, found = smooth
    one, (w, jacobian) = one_of(params, 1), linearised_by_steps(net, one_of(params, 1), STEPS[1])
    flat = ravel_pytree(one)[0]
    move, residual = ravel_pytree(w)[0] - flat, net.apply_fn(one, X).ravel() - Y.ravel()
    linear = jax.jvp(lambda p: net.apply_fn(p, TEST), (one,), (jax.tree.map(jnp.subtract, w, one),))
    measured = found
    assert_close(measured.linear[1, 1], sum(linear))
    assert_close(measured.bend[1, 1], net.apply_fn(w, TEST) - sum(linear))
    after = jax.jacobian(lambda v: net.apply_fn(ravel_pytree(one)[1](v), X).ravel())(flat + move)
    kernel, moved = jacobian @ jacobian.T, after @ after.T
    norm = jnp.linalg.norm
    assert_close(measured.kernel_change[1, 1], norm(moved - kernel) / norm(kernel))
    assert_close(measured.move[1, 1], norm(move) / norm(flat))
    ratio = norm(residual) * norm(after - jacobian, 2) / norm(move) / norm(jacobian, 2) ** 2
    # Power iteration comes from below.
    assert 0.97 * ratio < measured.lazy_ratio[1, 1] <= ratio * (1 + 1e-9)


@pytest.mark.parametrize("activation", [stax.Erf, stax.Relu])
def test_gradient_descent_is_followed_exactly_if_every_step_is_taken(activation):
    net, steps = network(8, activation), (1, 2, 3, 4, 5)
    params = members_of(net, 2)
    found = laziness(net, params, (X, Y), TEST, steps, DESCENT, reduction="mean")
    trained = [train(net, one_of(params, number), X, Y, TEST, steps) for number in range(2)]
    assert_close(found.predicted, jnp.stack(trained))
    assert np.abs(found.drift).max() > 0.01


def size(values):
    return np.sqrt(np.mean(np.square(values), axis=(0, 2, 3)))


def test_what_long_steps_leave_falls_with_their_square(smooth):
    net, params, found = smooth
    left = trained_members(net, params, 3) - found.linear
    shift, fine, coarse = (size(left - drift)[1:] for drift in (0.0, found.drift, found.coarse))
    assert (fine < 0.02 * shift).all()
    # 4, for a method of second order; 2 for one of first order.
    assert (coarse / fine > 2.8).all()
    np.testing.assert_allclose(size(found.drift - found.coarse)[1:], coarse, rtol=0.5)


def test_kernels_that_are_not_stored_change_nothing():
    """With more than 512 outputs, Lanczos' method takes the place of a decomposition."""
    x, rng = RNG.normal(size=(520, 3)), np.random.default_rng(5)
    many, labels = jnp.array(x), jnp.array(rng.normal(size=(520, 1)))
    net = network(8, outputs=1)
    params = members_of(net, 2)
    found = laziness(net, params, (many, labels), TEST, STEPS, DESCENT, reduction="mean")
    trained = np.stack([train(net, one_of(params, number), many, labels, TEST) for number in range(2)])
    shift, left = size(trained - found.linear), size(trained - found.predicted)
    assert (left < 0.03 * shift).all()
    # The linearised path against the same in many more steps, each a product.
    one = one_of(params, 0)
    flat, restore = ravel_pytree(one)
    jacobian = jax.jacobian(lambda w: net.apply_fn(restore(w), many).ravel())(flat)
    residual, w = net.apply_fn(one, many).ravel() - labels.ravel(), flat
    for _ in range(STEPS[-1]):
        step = -RATE / labels.size * jacobian.T @ residual
        w, residual = w + step, residual + jacobian @ step
    ahead = jax.jvp(lambda p: net.apply_fn(p, TEST), (one,), (jax.tree.map(jnp.subtract, restore(w), one),))
    np.testing.assert_allclose(found.linear[0, -1], sum(ahead), rtol=0, atol=0.01)
    after = jax.jacobian(lambda v: net.apply_fn(restore(v), many).ravel())(w)
    kernel, moved = jacobian @ jacobian.T, after @ after.T
    # Eight random vectors estimate the norm.
    np.testing.assert_allclose(
        found.kernel_change[0, -1], jnp.linalg.norm(moved - kernel) / jnp.linalg.norm(kernel), rtol=0.5
    )


def test_gradient_flow_is_descent_in_small_steps():
    net, fine = network(32), 2**-6
    params = members_of(net, 1)
    settings = {"reduction": "mean", "steps_per_octave": 6}
    flow = laziness(net, params, (X, Y), TEST, [1.0, 8.0], filters.gradient_flow(RATE), **settings)
    descent = filters.gradient_descent(RATE * fine)
    steps = laziness(net, params, (X, Y), TEST, [1 / fine, 8 / fine], descent, **settings)
    for name in ("linear", "bend", "drift"):
        expected = getattr(steps, name)
        np.testing.assert_allclose(getattr(flow, name), expected, rtol=0, atol=0.05 * np.abs(expected).max())


def test_portions_change_nothing(smooth):
    net, params, found = smooth
    again = laziness(net, params, (X, Y), TEST, STEPS, DESCENT, reduction="mean", portion=3)
    for name in ("linear", "bend", "drift", "kernel_change", "lazy_ratio"):
        assert_close(getattr(again, name), getattr(found, name))


def test_members_that_diverge_are_refused():
    """A product of two numbers is trained at a rate that is stable at the start, from where its kernel grows."""
    product = lambda params, x: x * params[0] * params[1]  # noqa: E731
    members, data = (jnp.array([0.1, 0.1]), jnp.array([0.1, 0.2])), (jnp.ones((1, 1)), jnp.full((1, 1), 10.0))
    with pytest.raises(ValueError, match=r"`filter` .*2 of 2 members .*lower rate"):
        laziness(product, members, data, jnp.ones((1, 1)), 64, filters.gradient_descent(3.0))


def test_a_linear_network_has_no_drift():
    line = lambda params, x: x @ params["w"]  # noqa: E731
    params = {"w": jnp.array(RNG.normal(size=(2, 3, 2)))}
    found = laziness(line, params, (X, Y), TEST, STEPS, DESCENT, reduction="mean")
    for name in ("bend", "drift", "kernel_change", "lazy_ratio"):
        np.testing.assert_allclose(getattr(found, name), 0, atol=1e-12)
    assert not found.kinks
    assert np.isinf(found.holds_until(100).time)


def test_theory_and_augmented_sets():
    """With theory the shift has a part that is there before the kernel drifts; the corrected mean is that plus it."""
    net = network(48, stax.Relu, outputs=1)
    train_set = augment(X, Y[:, :1], reps.regular(groups.cyclic(3)))
    ens = InfiniteEnsemble(net.kernel_fn, train_set, DESCENT, reduction="mean")
    params = members_of(net, 6)
    found = laziness(net, params, train_set, TEST, STEPS, DESCENT, reduction="mean", theory=ens)
    assert found.kinks
    exact = ens.mean(TEST, 16, f0=lambda x: net.apply_fn(one_of(params, 2), x))
    assert_close(found.theory[2, 1], exact)
    corrected = found.correct(ens.mean(TEST, jnp.array(STEPS)))
    assert_close(corrected.value - np.asarray(ens.mean(TEST, jnp.array(STEPS))), found.shift.value)
    assert_close(found.shift.value, (found.linear + found.drift - found.theory).mean(0))


def test_flax_pairs_and_functions_are_the_same_network():
    module = nn.Dense(2, param_dtype=jnp.float64)
    variables = jax.vmap(lambda key: module.init(key, X))(jax.random.split(jax.random.key(0), 2))
    apply = lambda params, x: module.apply(params, x)  # noqa: E731
    one = laziness(module, variables, (X, Y), TEST, 4, DESCENT, reduction="mean")
    for same in (apply, (module.init, apply)):
        assert_close(laziness(same, variables, (X, Y), TEST, 4, DESCENT, reduction="mean").linear, one.linear)


def made_up(shift, *, noise=0.0, members=50, times=(1.0, 10.0, 100.0), seed=0, coarse=1.0, kinks=False):
    """A record whose drift has a known mean at each time, and members a standard deviation of 1."""
    rng, shape = np.random.default_rng(seed), (members, len(times), 1, 1)
    linear = rng.normal(size=(members, 1, 1, 1)) * np.ones(shape)
    linear = (linear - linear.mean(0)) / linear.std(0, ddof=1)
    drift = np.array(shift)[:, None, None] + noise * rng.normal(size=shape)
    few = np.zeros((members, len(times)))
    return Laziness(np.array(times), linear, 0 * drift, drift, coarse * drift, None, few, few, few, kinks=kinks)


def test_theory_holds_until_the_shift_is_as_large_as_chance_allows():
    found = made_up([0.01, 0.1, 1.0])
    # Two standard errors of 400 members are 0.1, of 100 members 0.2, on a straight line in log t from 0.1 to 1.
    assert np.isclose(found.holds_until(400).time, 10.0)
    assert np.isclose(found.holds_until(100).time, 10 ** (1 + 0.1 / 0.9))
    assert found.holds_until(100).doubts == ()
    assert np.isinf(found.holds_until(1).time)
    assert np.isclose(found.holds_until(10**6).time, 1.0 / (0.01 / 0.002))
    # Half as many steps see 0.3 of the shift, so that it may be larger by 0.7 of it.
    doubtful = made_up([0.01, 0.1, 1.0], coarse=0.3, kinks=True).holds_until(400)
    assert doubtful.time == found.holds_until(400).time
    assert np.isclose(doubtful.lower, 10 ** (0.083 / 0.153))
    assert any("half as many steps" in doubt and "kinks" in doubt for doubt in doubtful.doubts)
    noisy = made_up([0.0, 0.0, 0.0], noise=0.1).holds_until(4)
    assert any("noise" in doubt for doubt in noisy.doubts)


@pytest.mark.parametrize("power", [0.5, 1.0])
def test_the_width_follows_the_power_of_the_shift(power):
    found = {N: made_up([0, 0, 3 / N**power], noise=0.05 / N**power, seed=N) for N in (16, 64, 256)}
    estimate = required_width(found, 0.01)
    expected = 300 ** (1 / power)
    assert estimate.lower <= expected <= estimate.upper * 1.1
    assert bool(estimate.doubts) == (power != 1)
    assert fitted_exponent({N: one.drift[:, 2] for N, one in found.items()}).agrees_with(power)
    alone = required_width({64: found[64]}, 0.01, 100.0)
    assert any("only one width" in doubt for doubt in alone.doubts)
    kinked = required_width({64: made_up([0, 0, 3 / 8], kinks=True)}, 0.01, 100.0)
    assert kinked.width == 64 * 37.5**2


def test_bounds_take_the_shift_in_place_of_a_fit_to_trained_networks():
    found = {N: made_up([0, 0, 3 / N], noise=0.1 / N, seed=N) for N in (16, 64)}
    fitted = shift_correction(found)
    np.testing.assert_allclose(fitted.coefficient, 3, atol=5 * fitted.error.max())
    by_width = bounds.finite_width_estimate(1.0, 400, 0.1, found, 64)
    assert_close(by_width.bias, fitted.at(64))
    assert_close(by_width.probability, bounds.finite_width_estimate(1.0, 400, 0.1, fitted, 64).probability)
    single = bounds.finite_width_estimate(None, 400, 0.1, found[64], t=100.0)
    shift = found[64].shift
    assert_close(single.bias, shift.value[2])
    assert_close(single.bias_error, shift.error[2])
    spread = found[64].predicted[:, 2].var(0, ddof=1)
    assert_close(single.members, spread / shift.value[2] ** 2)
