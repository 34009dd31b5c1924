"""The infinite ensemble trained with any loss: against closed forms, SciPy's integrators and minimisers, and laws."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.integrate
import scipy.optimize
from scipy.special import log_softmax, softmax

from ntk_equiv import InfiniteEnsemble, augment, ensembles, filters, gram, groups, reps, solvers, stax, theorems
from ntk_equiv.infinite import SampledEnsemble
from tests.tolerances import REDUCTION, assert_close

INF, KEY = float("inf"), jax.random.key(3)
KERNEL_FN = stax.serial(stax.Dense(1, 1.4, 0.3), stax.Relu(), stax.Dense(1, 1.2, 0.1))[2]
RNG = np.random.default_rng(5)
X, X_TEST = jnp.asarray(RNG.standard_normal((4, 3))), jnp.asarray(RNG.standard_normal((5, 3)))
Y, CLASSES = jnp.asarray(RNG.standard_normal((4, 3))), jnp.array([0, 2, 1, 0])
SHIFTS = reps.regular(groups.cyclic(3))
NUMBERS, CLASSIFIED = augment(X, Y, SHIFTS), augment(X, CLASSES, SHIFTS)
TIMES = jnp.array([0.0, 0.5, 30.0, 2000.0])
RTOL = 1e-6
MIXING = jnp.asarray(RNG.standard_normal((3, 3)))
# Errors of steps add up to at most this many tolerances.
STEPS = 15


def begin(x):
    """A function with which two given networks begin."""
    return jnp.stack([jnp.sin(x @ MIXING), 0.3 * jnp.cos(x @ MIXING)])


@pytest.fixture(scope="module")
def classifier():
    return SampledEnsemble(KERNEL_FN, CLASSIFIED, key=KEY, members=12, label_smoothing=0.1, rtol=RTOL)


@pytest.mark.parametrize("method", ["reduced", "dense"])
@pytest.mark.parametrize(
    ("filter", "times", "tolerance"),
    [
        (filters.gradient_flow(0.7), [0.0, 0.5, 30.0, 2000.0, INF], STEPS * RTOL),
        (filters.gradient_descent(0.05), [0, 1, 40], 1e-12),
        (filters.momentum(0.05, 0.9), [3, 40], 1e-12),
        (filters.momentum_flow(0.01, 0.5), [0.0, 5.0, 300.0], STEPS * RTOL),
        (filters.ridge(0.3), [2.0, INF], STEPS * RTOL),
        (filters.converged(), [INF], 1e-9),
    ],
    ids=["flow", "descent", "momentum", "momentum flow", "ridge", "converged"],
)
def test_the_squared_error_has_the_closed_form(method, filter, times, tolerance):
    exact = InfiniteEnsemble(KERNEL_FN, NUMBERS, filter, reduction="mean", method=method)
    ens = SampledEnsemble(
        KERNEL_FN, NUMBERS, "mse", filter, key=KEY, members=2, reduction="mean", method=method, rtol=RTOL
    )
    found = ens.trajectory(begin, X_TEST, jnp.array(times))
    for network in range(2):
        expected = exact.mean(X_TEST, jnp.array(times), f0=lambda x, network=network: begin(x)[network])
        np.testing.assert_allclose(found[:, network], expected, atol=tolerance, rtol=0)


def test_members_have_the_law_of_the_closed_form():
    exact = InfiniteEnsemble(KERNEL_FN, NUMBERS)
    ens = SampledEnsemble(KERNEL_FN, NUMBERS, "mse", key=KEY, members=4000, rtol=1e-4)
    mean, error = ens.mean(X_TEST, 0.5), ens.standard_error(X_TEST, 0.5)
    assert np.abs((mean - exact.mean(X_TEST, 0.5)) / error).max() < 5
    assert np.abs((mean - exact.mean(X_TEST, 0.5)) / error).max() > 0.3  # the error is none too large
    outputs, cov = np.asarray(ens.outputs(X_TEST, 0.5)), np.asarray(exact.cov(X_TEST, 0.5))
    centred = outputs - outputs.mean(axis=0)
    # The standard error of a sample covariance of normal numbers.
    spread = np.sqrt((cov**2 + np.outer(np.diag(cov), np.diag(cov))) / len(outputs))
    for channel in range(3):
        found = np.einsum("mi,mj->ij", centred[..., channel], centred[..., channel]) / len(outputs)
        assert np.abs((found - cov) / spread).max() < 5
    assert np.abs(ens.var(X_TEST, 0.5) - np.diag(cov)[:, None]).max() < 5 * spread.diagonal().max()


def naive_flow(gradient, start, times):
    """F' = −Θ∇L on training and test samples, by SciPy; `start` [N + m, outputs]."""
    everything = jnp.concatenate([CLASSIFIED.x, X_TEST])
    theta = np.asarray(gram(KERNEL_FN, everything, CLASSIFIED.x, "ntk"))
    n = len(CLASSIFIED.x)

    def slope(_, flat):
        return -(theta @ gradient(flat.reshape(start.shape)[:n])).ravel()

    done = scipy.integrate.solve_ivp(
        slope, (0, times[-1]), start.ravel(), method="Radau", t_eval=times, rtol=1e-9, atol=1e-10
    )
    return done.y.T.reshape(len(times), *start.shape)[:, n:]


def test_cross_entropy_is_followed_as_by_scipy(classifier):
    smooth = 0.9 * np.eye(3)[np.asarray(CLASSIFIED.y)] + 0.1 / 3
    start = np.asarray(begin(jnp.concatenate([CLASSIFIED.x, X_TEST])))[0]
    expected = naive_flow(lambda f: softmax(f, axis=1) - smooth, start, np.asarray(TIMES))
    found = classifier.trajectory(lambda x: begin(x)[0], X_TEST, TIMES)
    np.testing.assert_allclose(found, expected, atol=STEPS * RTOL, rtol=0)
    # Times in any order, and one by one.
    np.testing.assert_allclose(
        classifier.trajectory(begin, X_TEST, TIMES[::-1])[:, 0], expected[::-1], atol=STEPS * RTOL
    )
    np.testing.assert_allclose(classifier.trajectory(begin, X_TEST, 30.0)[0], expected[2], atol=STEPS * RTOL)


@pytest.mark.parametrize("loss", [optax.losses.huber_loss, optax.losses.hinge_loss], ids=["huber", "hinge"])
def test_losses_of_optax_are_followed_as_in_tiny_steps(loss):
    """The slope of the hinge jumps, and samples come to rest at its corner."""
    y, time, steps = jnp.sign(Y), 0.25, 20_000
    train = augment(X, y, SHIFTS)
    ens = SampledEnsemble(KERNEL_FN, train, loss, key=KEY, members=2, rtol=1e-3)
    everything, labels = jnp.concatenate([train.x, X_TEST]), np.asarray(train.y)
    theta, f = np.asarray(gram(KERNEL_FN, everything, train.x, "ntk")), np.asarray(begin(everything))[0]
    for _ in range(steps):
        now = f[: len(labels)]
        slope = np.clip(now - labels, -1, 1) if loss is optax.losses.huber_loss else -labels * (labels * now < 1)
        f = f - time / steps * (theta @ slope)
    assert (np.abs(f[: len(labels)] * labels - 1) < 0.01).any() or loss is optax.losses.huber_loss
    np.testing.assert_allclose(ens.trajectory(begin, X_TEST, time)[0], f[len(labels) :], atol=0.02, rtol=0)


def test_the_end_of_training_is_where_the_loss_is_least(classifier):
    end = classifier.trajectory(begin, X, INF)
    np.testing.assert_allclose(softmax(end, axis=-1), np.tile(0.9 * np.eye(3)[CLASSES] + 0.1 / 3, (2, 1, 1)), atol=1e-8)
    # The sum of outputs is never learnt.
    np.testing.assert_allclose(end.sum(axis=-1), begin(X).sum(axis=-1), atol=1e-8)
    late = classifier.trajectory(begin, X_TEST, jnp.array([1e5, INF]))
    np.testing.assert_allclose(late[0], late[1], atol=1e-4)


@pytest.mark.parametrize("samples", [1, 4])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_certain_labels_have_no_end(samples, dtype):
    """All samples may become certain together, so that none is flatter than others."""
    train = augment(X[:samples].astype(dtype), CLASSES[:samples], SHIFTS)
    ens = SampledEnsemble(KERNEL_FN, train, key=KEY, members=2)
    with pytest.raises(ValueError, match="the loss has no minimum"):
        ens.mean(X_TEST.astype(dtype), INF)


@pytest.mark.parametrize("solver", [solvers.Eigh(), solvers.Lanczos(rtol=1e-3)], ids=["decomposed", "products"])
def test_a_ridge_has_an_end_with_certain_labels(solver):
    ens = SampledEnsemble(
        KERNEL_FN, CLASSIFIED, "cross_entropy", filters.ridge(0.05), key=KEY, members=2, solver=solver
    )
    theta = np.asarray(gram(KERNEL_FN, CLASSIFIED.x, None, "ntk"))
    start, labels = np.asarray(begin(CLASSIFIED.x))[0], np.eye(3)[np.asarray(CLASSIFIED.y)]

    def objective(flat):
        a = flat.reshape(start.shape)
        f = start + theta @ a
        value = -np.sum(labels * log_softmax(f, axis=1)) + 0.025 * np.sum(a * (theta @ a))
        return value, (theta @ (softmax(f, axis=1) - labels + 0.05 * a)).ravel()

    found = scipy.optimize.minimize(objective, np.zeros(start.size), jac=True, tol=1e-12, options={"maxiter": 5000})
    expected = start + theta @ found.x.reshape(start.shape)
    np.testing.assert_allclose(ens.trajectory(begin, CLASSIFIED.x, INF)[0], expected, atol=1e-4)


def test_products_reach_the_end_of_a_ridge_where_the_gram_matrix_is_singular():
    """A sample that the group fixes, far from the minimum: a weak ridge, and labels that are certain."""
    x = jnp.concatenate([jnp.ones((1, 3)), X])
    train = augment(x, jnp.array([1, 0, 2, 1, 0]), SHIFTS)
    found = [
        SampledEnsemble(
            KERNEL_FN, train, "cross_entropy", filters.ridge(1e-2), key=KEY, members=2, reduction="mean", solver=solver
        ).trajectory(lambda x: 5 * begin(x), X_TEST, INF)
        for solver in (solvers.Eigh(), solvers.Lanczos(rtol=1e-3))
    ]
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)
    assert np.abs(found[0] - 5 * begin(X_TEST)).max() > 1


def test_reduced_and_dense_draws_have_the_same_trajectories():
    """Labels that the group moves too: a shift of the features shifts the classes."""
    y = jnp.asarray(RNG.dirichlet(np.ones(3), 4))
    train = augment(X, y, SHIFTS, SHIFTS)
    found = [
        SampledEnsemble(KERNEL_FN, train, key=KEY, members=2, method=method, rtol=RTOL).trajectory(
            begin, X_TEST, jnp.array([1.0, 100.0, INF])
        )
        for method in ("reduced", "dense")
    ]
    np.testing.assert_allclose(found[0][:2], found[1][:2], atol=STEPS * RTOL)
    assert_close(found[0][2], found[1][2], {"float64": 1e-7})
    orbits = SampledEnsemble(KERNEL_FN, train, key=KEY, members=3, whole_orbits=True)
    theorems.assert_equivariant(lambda x: orbits.mean(x, 5.0), SHIFTS, SHIFTS, X_TEST)


def test_the_expected_prediction_is_invariant_and_a_few_members_are_not(classifier):
    moved = jnp.roll(X_TEST, 1, axis=1)
    many = classifier.redrawn(KEY, 2000)
    both = many.contributions(jnp.concatenate([X_TEST, moved]), 5.0)
    difference = np.asarray(both[:, :5] - both[:, 5:])
    z = difference.mean(axis=0) / difference.std(axis=0, ddof=1) * 2000**0.5
    assert np.abs(z).max() < 5
    few = classifier.mean(X_TEST, 5.0) - classifier.mean(moved, 5.0)
    assert np.abs(few).max() > 1e-3
    orbits = SampledEnsemble(KERNEL_FN, CLASSIFIED, key=KEY, members=3, whole_orbits=True)
    assert_close(orbits.mean(X_TEST, 5.0), orbits.mean(moved, 5.0), REDUCTION)
    found = theorems.emergent_equivariance(many, X_TEST, 5.0)
    assert found.holds(0.0)
    plain = SampledEnsemble(KERNEL_FN, (X, CLASSES), key=KEY, members=500)
    assert not theorems.emergent_equivariance(plain, X_TEST, 5.0, rep_x=SHIFTS).holds(0.0)


def test_orbits_estimate_the_same_mean_more_closely(classifier):
    truth = classifier.redrawn(KEY, 4000).mean(X_TEST, 5.0)
    orbits = SampledEnsemble(
        KERNEL_FN, CLASSIFIED, key=jax.random.key(7), members=200, label_smoothing=0.1, whole_orbits=True
    )
    z = (orbits.mean(X_TEST, 5.0) - truth) / orbits.standard_error(X_TEST, 5.0)
    assert np.abs(z).max() < 5
    alone = classifier.redrawn(jax.random.key(7), 200).standard_error(X_TEST, 5.0)
    assert float(orbits.standard_error(X_TEST, 5.0).mean()) < 0.9 * float(alone.mean())


def test_members_do_not_depend_on_how_many_there_are(classifier):
    larger = classifier.redrawn(KEY, 15)
    assert_close(larger.outputs(X_TEST, 2.0)[:12], classifier.outputs(X_TEST, 2.0), {"float64": STEPS * RTOL})
    assert_close(classifier.sample(KEY, X_TEST, 2.0, 12), classifier.outputs(X_TEST, 2.0), {"float64": 1e-12})
    p = classifier.probabilities(X_TEST, TIMES)
    assert p.shape == (4, 5, 3)
    np.testing.assert_allclose(p.sum(axis=-1), 1)


def test_samples_fixed_by_the_group_and_single_samples():
    """Θ and 𝒦 are then singular; a sample that is shown twice is one sample with twice the loss."""
    fixed = jnp.ones((1, 3))
    ens = SampledEnsemble(KERNEL_FN, augment(fixed, jnp.array([1]), SHIFTS), key=KEY, members=3, label_smoothing=0.2)
    assert np.isfinite(ens.mean(X_TEST, jnp.array([0.0, 10.0, INF]))).all()
    once = SampledEnsemble(
        KERNEL_FN, (fixed, jnp.array([1])), "cross_entropy", filters.gradient_flow(3.0), key=KEY, label_smoothing=0.2
    )
    np.testing.assert_allclose(
        ens.trajectory(lambda x: begin(x)[..., :2], X_TEST, jnp.array([1.0, INF])),
        once.trajectory(lambda x: begin(x)[..., :2], X_TEST, jnp.array([1.0, INF])),
        atol=1e-2,
    )
    assert ens.mean(X_TEST[:0], 1.0).shape == (0, 2)


def test_single_precision_is_close_to_double():
    def mean(dtype):
        train = augment(X.astype(dtype), CLASSES, SHIFTS)
        ens = SampledEnsemble(KERNEL_FN, train, key=KEY, members=2, label_smoothing=0.1, rtol=1e-3)
        found = ens.trajectory(lambda x: begin(x.astype(float)).astype(dtype), X_TEST.astype(dtype), TIMES)
        assert found.dtype == dtype
        return found

    np.testing.assert_allclose(mean(jnp.float32), mean(jnp.float64), atol=2e-2)


def test_trained_networks_follow_it_the_closer_the_wider_they_are():
    """Member by member, from their own initial functions: the difference falls as the root of the width."""
    y = 0.9 * jax.nn.one_hot(CLASSES, 3) + 0.1 / 3
    train, steps = augment(X, y, SHIFTS), 60
    settings = {"members": 32, "key": KEY}
    size = {}
    for width in (64, 1024):
        net = stax.serial(stax.Dense(width, 1.4, 0.3), stax.Relu(), stax.Dense(3, 1.2, 0.1))
        before = ensembles.untrained(net, train.x, **settings)
        after = ensembles.train(net, train, steps=steps, optimizer=optax.sgd(0.5), loss="cross_entropy", **settings)
        filter = filters.gradient_descent(0.5)
        ens = SampledEnsemble(net.kernel_fn, train, "cross_entropy", filter, key=KEY, members=2, reduction="mean")
        expected = ens.trajectory(lambda x, before=before: jnp.asarray(before.predict(x)), X_TEST, steps)
        difference = after.predict(X_TEST) - np.asarray(expected)
        size[width] = np.sqrt(np.mean(difference**2))
        moved = np.sqrt(np.mean((np.asarray(expected) - before.predict(X_TEST)) ** 2))
        assert size[width] < 0.25 * moved
    # The ratio is 4 in the limit; 480 differences, of which those of a member are alike, know it to about a fifth.
    assert 2.5 < size[64] / size[1024] < 6.5


@pytest.mark.parametrize(
    ("method", "filter", "times", "place"),
    [
        ("reduced", filters.gradient_flow(0.7), [0.0, 0.5, 4.0], "folder"),
        ("dense", filters.gradient_flow(0.7), [0.0, 0.5], "recompute"),
        ("reduced", filters.momentum(0.05, 0.9), [0, 3, 20], "recompute"),
        ("dense", filters.momentum_flow(0.01, 0.5), [0.0, 5.0], "memory"),
        ("reduced", filters.ridge(0.3), [2.0, INF], "memory"),
    ],
    ids=["flow in a folder", "dense flow", "momentum", "momentum flow", "ridge"],
)
def test_products_alone_draw_and_train_the_same_members(tmp_path, method, filter, times, place):
    """The same normal numbers, so the same members: up to the noise that is added, and the error of the solver."""
    y = jnp.asarray(RNG.dirichlet(np.ones(3), 4))
    shared = {"key": KEY, "members": 3, "method": method, "rtol": 1e-5}
    problem = KERNEL_FN, augment(X, y, SHIFTS, SHIFTS), "cross_entropy", filter
    exact = SampledEnsemble(*problem, solver=solvers.Eigh(), **shared)
    storage = tmp_path / "tiles" if place == "folder" else place
    ens = SampledEnsemble(*problem, solver=solvers.Lanczos(rtol=1e-5, storage=storage), **shared)
    assert ens.drawing_error.solver <= 1e-5
    assert ens.drawing_error.added == pytest.approx(1e-5)
    t = jnp.array(times)
    for quantity in ("mean", "var", "outputs", "probabilities"):
        found, expected = (getattr(one, quantity)(X_TEST, t) for one in (ens, exact))
        np.testing.assert_allclose(found, expected, atol=STEPS * 1e-5, err_msg=quantity)
    if not filter.shift_at_end:
        with pytest.raises(ValueError, match="finite for this solver"):
            ens.mean(X_TEST, INF)


def test_the_solver_of_members_is_chosen_by_the_size_of_blocks(monkeypatch, classifier):
    assert classifier.solver == solvers.Eigh()
    assert classifier.drawing_error == (0, 0)
    assert "decomposed fast" in classifier.solver_reason
    monkeypatch.setattr("ntk_equiv.infinite._cost.LARGEST_DECOMPOSED", 3)
    large = SampledEnsemble(KERNEL_FN, CLASSIFIED, key=KEY, members=2, rtol=1e-3)
    assert large.solver == solvers.Lanczos(rtol=1e-3)
    assert "products are faster" in large.solver_reason


def test_the_law_of_products_is_that_of_a_noisy_network():
    """Kernels on 𝒦 + μ: the law is checked by its covariance, with many members."""
    ens = SampledEnsemble(KERNEL_FN, (X, CLASSES), key=KEY, members=3000, solver=solvers.Lanczos(rtol=0.3))
    outputs = np.asarray(ens.outputs(jnp.concatenate([X, X_TEST]), 0.0)).transpose(0, 2, 1).reshape(-1, 9)
    start = np.asarray(ens._training.by_member(ens._training.start)).transpose(0, 2, 1).reshape(-1, 4)
    expected = np.asarray(gram(KERNEL_FN, jnp.concatenate([X, X_TEST]), None, "nngp"))
    added = (0.3**2 * np.diag(expected[:4, :4]).max()) * np.eye(4)
    for left, right, cov in (
        (outputs, outputs, expected),
        (start, start, expected[:4, :4] + added),
        (start, outputs[:, 4:], expected[:4, 4:]),
    ):
        found = left.T @ right / len(left)
        spread = np.sqrt((cov**2 + np.outer((left**2).mean(axis=0), (right**2).mean(axis=0))) / len(left))
        assert np.abs((found - cov) / spread).max() < 5
