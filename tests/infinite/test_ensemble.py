"""The infinite ensemble as its users meet it: shapes, times, symmetry, jit, files, refusals."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.stats

from ntk_equiv import InfiniteEnsemble, augment, ensemble_cov, ensemble_mean, filters, gram, groups, reps, solvers, stax
from ntk_equiv.infinite import RankWarning, ReductionWarning, haar_limit
from tests.tolerances import REDUCTION, assert_close, assert_mean

INF = float("inf")
KERNEL_FN = stax.serial(stax.Dense(1, 1.4, 0.3), stax.Relu(), stax.Dense(1, 1.2, 0.1))[2]
RNG = np.random.default_rng(4)
X, X_TEST = jnp.asarray(RNG.standard_normal((3, 4))), jnp.asarray(RNG.standard_normal((5, 4)))
Y, Y2 = jnp.asarray(RNG.standard_normal(3)), jnp.asarray(RNG.standard_normal((3, 4)))
SHIFTS = reps.regular(groups.cyclic(4))
TRAIN = augment(X, Y, SHIFTS)
ENS = InfiniteEnsemble(KERNEL_FN, TRAIN)
TIMES = jnp.array([0.0, 0.5, 20.0, INF])


def test_only_what_the_labels_contain_is_decomposed():
    assert ENS.method == "reduced"
    fresh = InfiniteEnsemble(KERNEL_FN, TRAIN)
    fresh.mean(X_TEST, 1.0)
    assert {number: block.other for number, block in fresh.blocks.by_irrep.items()} == {0: None}
    # Labels that take all values: the two real irreps, and one of the conjugate pair.
    vector = InfiniteEnsemble(KERNEL_FN, augment(X, Y2, SHIFTS, SHIFTS))
    assert [block.solved.spectrum.shape for _, block in vector.blocks] == [(3,)] * 3


def test_one_time_is_a_row_of_many():
    mean, cov, var = ENS.mean(X_TEST, TIMES), ENS.cov(X_TEST, TIMES), ENS.var(X_TEST, TIMES)
    assert mean.shape == (4, 5)
    assert cov.shape == (4, 5, 5)
    for row, t in enumerate(TIMES):
        assert_close(ENS.mean(X_TEST, float(t)), mean[row])
        assert_close(ENS.cov(X_TEST, float(t)), cov[row])
        assert_close(ENS.var(X_TEST, float(t)), var[row])
    assert_close(var, jnp.diagonal(cov, axis1=1, axis2=2))
    many = jnp.concatenate([TIMES, TIMES, TIMES])
    assert_close(ENS.var(X_TEST, many), jnp.concatenate([var, var, var]))


def test_from_the_prior_to_the_labels():
    np.testing.assert_array_equal(ENS.mean(X_TEST, 0.0), np.zeros(5))
    assert_close(ENS.cov(X_TEST, 0.0), KERNEL_FN(X_TEST, None, "nngp"))
    assert_close(ENS.mean(TRAIN.x, INF), TRAIN.y)
    assert_close(ENS.train_mean(INF), TRAIN.y)
    assert_close(ENS.train_mean(0.7) + ENS.residual(0.7), TRAIN.y)
    assert_close(ENS.train_mean(0.7), ENS.mean(TRAIN.x, 0.7))
    np.testing.assert_allclose(ENS.var(TRAIN.x, INF), 0, atol=1e-12)


def test_labels_with_channels_come_back_with_channels():
    train = augment(X, Y2, SHIFTS, SHIFTS)
    ens = InfiniteEnsemble(KERNEL_FN, train)
    assert ens.mean(X_TEST, 1.0).shape == (5, 4)
    assert ens.mean(X_TEST[:0], 1.0).shape == (0, 4)
    assert_close(ens.mean(train.x, INF), train.y)
    assert_close(ens.coefficients(2.0), InfiniteEnsemble(KERNEL_FN, train, method="dense").coefficients(2.0), REDUCTION)


@pytest.mark.parametrize("elements", [[0, 2], [2, 0]])
def test_a_subgroup_in_any_order(elements):
    train = augment(X, Y2, SHIFTS, SHIFTS, elements=elements)
    reduced, dense = InfiniteEnsemble(KERNEL_FN, train), InfiniteEnsemble(KERNEL_FN, train, method="dense")
    assert reduced.method == "reduced"
    assert_close(reduced.mean(X_TEST, 3.0), dense.mean(X_TEST, 3.0), REDUCTION)
    assert_close(reduced.train_mean(3.0), dense.train_mean(3.0), REDUCTION)


def test_one_member_from_its_start():
    start = lambda x: jnp.sin(x.sum(axis=1))  # noqa: E731
    dense = InfiniteEnsemble(KERNEL_FN, TRAIN, method="dense")
    assert_close(ENS.mean(X_TEST, TIMES, f0=start), dense.mean(X_TEST, TIMES, f0=start), REDUCTION)
    assert_close(ENS.mean(X_TEST, 0.0, f0=start), start(X_TEST))
    assert_close(ENS.mean(TRAIN.x, INF, f0=start), TRAIN.y)


@pytest.mark.parametrize("method", ["reduced", "dense"])
@pytest.mark.parametrize("labels", ["one channel", "channels that move"])
def test_many_members_from_their_starts(method, labels):
    train = TRAIN if labels == "one channel" else augment(X, Y2, SHIFTS, SHIFTS)
    ens = InfiniteEnsemble(KERNEL_FN, train, method=method)
    starts = [lambda x, k=k: jnp.sin(k * (x.sum(axis=1) if train is TRAIN else x)) for k in (1.0, 2.0, 3.0)]
    for t, axis in ((TIMES, 1), (2.0, 0)):
        one_by_one = jnp.stack([ens.mean(X_TEST, t, f0=start) for start in starts], axis)
        together = ens.mean(X_TEST, t, f0=lambda x: jnp.stack([start(x) for start in starts]))
        assert_close(together, one_by_one)


def test_samples_have_the_law(key):
    draws = ENS.sample(key, X_TEST, 0.5, 4000)
    assert draws.shape == (4000, 5)
    mean, cov = ENS.mean(X_TEST, 0.5), ENS.cov(X_TEST, 0.5)
    assert_mean(draws, mean)
    centred = draws - mean[None]
    assert_mean(centred[:, :, None] * centred[:, None, :], cov)
    pairs = InfiniteEnsemble(KERNEL_FN, augment(X, Y2, SHIFTS, SHIFTS)).sample(key, X_TEST[:1], 0.5, 4000)
    assert_mean(pairs[:, 0, 0] * pairs[:, 0, 1], jnp.prod(pairs.mean(axis=0)[0, :2]))


def test_samples_do_not_depend_on_a_choice_of_eigenvectors(key):
    """On an orbit eigenvalues of the covariance coincide, and their eigenvectors are anything; its root is unique."""
    orbit = SHIFTS.orbit(X_TEST[:1])[:, 0]
    mean, cov = ENS.mean(orbit, 0.5), ENS.cov(orbit, 0.5)
    values = np.linalg.eigvalsh(cov)
    assert np.diff(values).min() < 1e-12 < values[0]
    normal = jax.random.normal(key, (3, 4, 1), mean.dtype)[..., 0]
    assert_close(ENS.sample(key, orbit, 0.5, 3), mean[None] + normal @ scipy.linalg.sqrtm(cov))


def test_it_passes_through_jit_and_differentiates():
    @jax.jit
    def law(ens, x, t):
        return ens.mean(x, t), ens.cov(x, t)

    mean, cov = law(ENS, X_TEST, 0.5)
    assert_close(mean, ENS.mean(X_TEST, 0.5))
    assert_close(cov, ENS.cov(X_TEST, 0.5))
    slope = jax.jacobian(lambda x: ENS.mean(x, 0.5))(X_TEST[:1])[0, 0]
    step = 1e-6 * jnp.eye(4)
    numeric = (ENS.mean(X_TEST[:1] + step, 0.5) - ENS.mean(X_TEST[:1] - step, 0.5)) / 2e-6
    np.testing.assert_allclose(slope, numeric, rtol=1e-6, atol=1e-8)
    in_time = jax.grad(lambda t: ENS.mean(X_TEST, t).sum())(0.5)
    later, earlier = ENS.mean(X_TEST, jnp.array([0.5 + 1e-6, 0.5 - 1e-6]))
    np.testing.assert_allclose(in_time, (later - earlier).sum() / 2e-6, rtol=1e-6)


@pytest.mark.parametrize("train", [(X, Y), TRAIN], ids=["plain", "augmented"])
def test_a_traced_function_may_use_it_and_completes_it_once(train):
    calls = []

    def counted(x1, x2=None, get=None):
        calls.append(get)
        return KERNEL_FN(x1, x2, get)

    ens = InfiniteEnsemble(counted, train)
    cov = jax.jit(lambda x: ens.cov(x, 0.5))(X_TEST)
    before = len(calls)
    complete = ens.with_covariance()
    assert len(calls) == before
    assert complete.blocks.has_other
    assert not ens.blocks.has_other  # the value itself did not change
    assert_close(cov, complete.cov(X_TEST, 0.5))


def test_it_is_frozen():
    with pytest.raises(AttributeError, match="cannot assign"):
        ENS.filter = filters.converged()
    before = jax.tree.structure(ENS)
    ENS.cov(X_TEST, 0.5)
    assert jax.tree.structure(ENS) == before
    again = jax.tree.unflatten(before, jax.tree.leaves(ENS))
    np.testing.assert_array_equal(again.mean(X_TEST, 0.5), ENS.mean(X_TEST, 0.5))


def test_solved_blocks_serve_another_filter():
    other = InfiniteEnsemble(KERNEL_FN, TRAIN, filters.gradient_descent(1e-2), blocks=ENS.blocks)
    assert_close(other.mean(X_TEST, 7), InfiniteEnsemble(KERNEL_FN, TRAIN, other.filter).mean(X_TEST, 7))
    assert_close(other.var(X_TEST, 7), InfiniteEnsemble(KERNEL_FN, TRAIN, other.filter).var(X_TEST, 7))
    fast = InfiniteEnsemble(KERNEL_FN, TRAIN, filters.gradient_descent(9.0), blocks=ENS.blocks)
    with pytest.raises(ValueError, match="at most"):
        fast.mean(X_TEST, 7)


def test_an_inverse_serves_its_own_filter_alone():
    ridge = InfiniteEnsemble(KERNEL_FN, TRAIN, filters.ridge(0.3))
    for other in (filters.ridge(5.0), filters.converged(), filters.gradient_flow()):
        again = dataclasses.replace(ridge, filter=other)
        assert_close(again.mean(X_TEST, INF), InfiniteEnsemble(KERNEL_FN, TRAIN, other).mean(X_TEST, INF))


def test_a_warning_points_to_the_line_of_the_caller():
    some = augment(X, Y, SHIFTS, elements=[0, 1])
    with pytest.warns(ReductionWarning) as said:
        ensemble_mean(KERNEL_FN, some, X_TEST, 1.0)
    assert said[0].filename.endswith(("test_ensemble.py", "_decorator.py"))  # annotations are checked by a decorator


def test_the_short_forms():
    dense = InfiniteEnsemble(KERNEL_FN, TRAIN, filters.gradient_flow(0.3), reduction="mean", method="dense")
    settings = {"learning_rate": 0.3, "reduction": "mean"}
    assert_close(ensemble_mean(KERNEL_FN, TRAIN, X_TEST, 2.0, **settings), dense.mean(X_TEST, 2.0), REDUCTION)
    assert_close(ensemble_cov(KERNEL_FN, TRAIN, X_TEST, 2.0, **settings), dense.cov(X_TEST, 2.0), REDUCTION)
    pair = ensemble_cov(KERNEL_FN, TRAIN, X_TEST, 2.0, x_test2=X_TEST[:2], **settings)
    assert_close(pair, dense.cov(X_TEST, 2.0)[:, :2], REDUCTION)
    assert_close(ensemble_cov(KERNEL_FN, TRAIN, X_TEST, 2.0, diag=True, **settings), dense.var(X_TEST, 2.0), REDUCTION)


def test_expected_errors(key):
    ens = InfiniteEnsemble(KERNEL_FN, augment(X, Y2, SHIFTS, SHIFTS))
    y = jax.nn.one_hot(jnp.array([0, 1, 2, 3, 0]), 4)
    mse = ens.expected_mse(X_TEST, y, TIMES, members=3)
    sampled = ens.sample(key, X_TEST, 0.5, 3000).reshape(1000, 3, 5, 4).mean(axis=1)
    assert_mean(jnp.mean((sampled - y[None]) ** 2, axis=(1, 2)), mse.total[1])
    accuracy = ens.expected_accuracy(key, X_TEST, y, 0.5, members=3, samples=4000)
    hits = jnp.mean(jnp.argmax(sampled, axis=-1) == jnp.argmax(y, axis=-1)[None], axis=1)
    assert_mean(hits, accuracy.value)
    assert 0 < float(accuracy.standard_error) < 0.02


def test_files(tmp_path):
    path = tmp_path / "ensemble.npz"
    fitted = InfiniteEnsemble(KERNEL_FN, TRAIN, reduction="mean")
    var = fitted.var(X_TEST, 1.0)
    fitted.save(path)
    again = InfiniteEnsemble.load(path, KERNEL_FN, TRAIN)
    np.testing.assert_array_equal(again.var(X_TEST, 1.0), var)
    assert again.reduction == "mean"
    assert len(again.blocks.by_irrep) == 3
    with pytest.raises(ValueError, match="`train` must be the data"):
        InfiniteEnsemble.load(path, KERNEL_FN, augment(X, 2 * Y, SHIFTS))
    with pytest.raises(ValueError, match="`train` must be the data"):
        InfiniteEnsemble.load(path, KERNEL_FN, augment(X, Y, reps.trivial(groups.cyclic(4))))
    with pytest.raises(ValueError, match="`kernel_fn` must be the kernel"):
        InfiniteEnsemble.load(path, stax.serial(stax.Dense(1), stax.Relu(), stax.Dense(1))[2], TRAIN)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ValueError, match="damaged"):
        InfiniteEnsemble.load(path, KERNEL_FN, TRAIN)
    assert [file.name for file in tmp_path.iterdir()] == ["ensemble.npz"]


def test_rotations_of_the_plane_have_a_limit():
    erf = stax.serial(stax.Dense(1, 1.4, 0.3), stax.Erf(), stax.Dense(1))[2]
    rep, x_test = reps.matrix(groups.SO2), X_TEST[:, :2]
    limit = haar_limit(erf, X[:, :2], Y, rep, x_test, 5.0, rtol=1e-8, start=16, max_order=128)
    assert limit.converged
    assert limit.change == limit.changes[limit.order] <= 1e-8
    other = augment(X[:, :2], Y, reps.restrict(rep, groups.SO2.finite(limit.order + 1)))
    finer = InfiniteEnsemble(erf, other, reduction="mean").mean(x_test, 5.0)
    assert_close(limit.ensemble.mean(x_test, 5.0), finer, {"float64": 1e-7})
    coarse = haar_limit(erf, X[:, :2], Y, rep, x_test, 5.0, rtol=1e-8, start=8, max_order=16)
    assert not coarse.converged
    assert coarse.changes == {16: coarse.change}
    with pytest.raises(ValueError, match=r"SO\(2\)"):
        haar_limit(erf, X, Y, SHIFTS, X_TEST, 1.0)


def test_dense_says_why():
    some = augment(X, Y, SHIFTS, elements=[0, 1])
    with pytest.warns(ReductionWarning, match="are no subgroup"):
        assert InfiniteEnsemble(KERNEL_FN, some).method == "dense"
    ramp = jnp.arange(1.0, 5.0)
    lopsided = lambda x1, x2=None, get=None: KERNEL_FN(x1 * ramp[None], None if x2 is None else x2 * ramp[None], get)  # noqa: E731
    with pytest.warns(ReductionWarning, match="does not transform"):
        ens = InfiniteEnsemble(lopsided, TRAIN)
    assert_close(ens.mean(TRAIN.x, INF), TRAIN.y)
    with pytest.raises(ValueError, match="does not transform"):
        InfiniteEnsemble(lopsided, TRAIN, method="reduced")
    images = augment(jnp.ones((2, 4, 4, 1)), Y[:2], reps.rotate(groups.cyclic(8)))
    flat = stax.serial(stax.Flatten(), stax.Dense(1))[2]
    with pytest.warns(ReductionWarning, match="interpolates"):
        InfiniteEnsemble(flat, images)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        InfiniteEnsemble(KERNEL_FN, (X, Y))


BLANK = jnp.zeros((2, 5, 5, 1))
SYMMETRIC = jnp.stack([jnp.outer(jnp.array([1.0, 2.0, 3.0, 2.0, 1.0]), jnp.array([1.0, 2.0, 3.0, 2.0, 1.0]))] * 2)


@pytest.mark.parametrize("first", [BLANK, SYMMETRIC[..., None]], ids=["blank", "symmetric"])
@pytest.mark.parametrize("places", [slice(0, 2), slice(2, 4), slice(0, 3, 2)], ids=["first", "last", "mixed"])
def test_samples_without_features_do_not_hide_a_broken_symmetry(first, places):
    images = jnp.asarray(np.random.default_rng(0).standard_normal((4, 5, 5, 1))).at[places].set(first)
    train = augment(images, jnp.array([1.0, -1.0, 0.5, 2.0]), reps.rot90(groups.cyclic(4)))
    respectful, broken = (
        stax.serial(stax.Conv(8, (3, 3), padding="SAME"), stax.Relu(), pool, stax.Flatten(), stax.Dense(1))
        for pool in (stax.Identity(), stax.AvgPool((2, 2), (2, 2)))  # 5 is odd: the second drops a row and a column
    )
    assert InfiniteEnsemble(respectful, train).method == "reduced"
    with pytest.warns(ReductionWarning, match="does not transform"):
        ens = InfiniteEnsemble(broken, train)
    x = images[::-1] + 0.3
    assert_close(ens.mean(x, 2.0), InfiniteEnsemble(broken, train, method="dense").mean(x, 2.0))


def test_samples_at_several_times_are_trajectories(key):
    times = jnp.array([0.0, 0.7, INF])
    drawn = ENS.sample(key, X_TEST, times, 4000)
    assert drawn.shape == (3, 4000, 5)
    for members, t in zip(drawn, times, strict=True):
        assert_mean(members, ENS.mean(X_TEST, t))
    # By the definition: all times start from one function, drawn from the prior on test and training samples.
    K, theta = (np.asarray(kernel) for kernel in gram(KERNEL_FN, jnp.concatenate([X_TEST, TRAIN.x])))
    weights = []
    for t in times:
        values, vectors = np.linalg.eigh(theta[5:, 5:])
        A = theta[:5, 5:] @ (vectors * -np.expm1(-values * t) / values) @ vectors.T
        weights.append(np.concatenate([np.eye(5), -A], axis=1))
    crossed = np.asarray([drawn[0, :, 0] - drawn[0, :, 0].mean(), drawn[1, :, 0] - drawn[1, :, 0].mean()])
    assert_mean(crossed[0] * crossed[1], (weights[0] @ K @ weights[1].T)[0, 0])


def test_the_likelihood_of_the_labels():
    for train in (TRAIN, augment(X, Y2, SHIFTS, SHIFTS)):
        ens = InfiniteEnsemble(KERNEL_FN, train)
        K = np.asarray(gram(KERNEL_FN, train.x, None, "nngp")) + 0.2 * np.eye(train.size)
        labels = np.asarray(train.y).reshape(train.size, -1)
        expected = sum(scipy.stats.multivariate_normal(cov=K).logpdf(column) for column in labels.T)
        np.testing.assert_allclose(ens.log_marginal_likelihood(noise=0.2), expected, rtol=1e-10)


def test_a_network_stands_for_its_kernels():
    net = stax.serial(stax.Dense(1, 1.4, 0.3), stax.Relu(), stax.Dense(1, 1.2, 0.1))
    assert_close(ensemble_mean(net, TRAIN, X_TEST, 1.0), ENS.mean(X_TEST, 1.0))


@pytest.mark.parametrize("filter", [filters.ridge(0.3), filters.converged()])
def test_inverses_and_eigenvalues_give_the_same_law(filter):
    """At the end of training a Cholesky factor is enough; after the eigenvalues were asked for, they are used."""
    ens = InfiniteEnsemble(KERNEL_FN, augment(X, Y2, SHIFTS, SHIFTS), filter)
    asked = lambda: (ens.mean(X_TEST), ens.cov(X_TEST), ens.var(X_TEST), ens.coefficients(), ens.cov(X_TEST, x2=X + 1))  # noqa: E731
    inverses = asked()
    assert ens.rank == 12
    for one, other in zip(inverses, asked(), strict=True):
        assert_close(one, other, REDUCTION)
    again = jax.jit(lambda ens: ens.mean(X_TEST))(InfiniteEnsemble(KERNEL_FN, ens.train, filter))
    assert_close(again, inverses[0], REDUCTION)


@pytest.mark.parametrize("filter", [filters.ridge(0.3), filters.converged()])
@pytest.mark.parametrize("part", ["train_mean", "residual"])
def test_what_was_learned_is_not_the_inverse(filter, part):
    ens = InfiniteEnsemble(KERNEL_FN, augment(X, Y2, SHIFTS, SHIFTS), filter)  # a Cholesky factor, so far
    learned = ens.train_mean() if part == "train_mean" else ens.y - ens.residual()
    assert_close(learned, ens.mean(ens.x), REDUCTION)


def test_single_precision_says_what_it_cannot_resolve():
    # Two points so close that their difference is below the precision.
    x = jnp.array([[1.0, 2.0, 0.5, 0.1], [1.0, 2.0, 0.5, 0.1001]], jnp.float32)
    with pytest.warns(RankWarning, match="numerical rank 1 of 2"):
        ens = InfiniteEnsemble(KERNEL_FN, (x, Y[:2].astype(jnp.float32)))
    assert ens.rank == 1
    with pytest.warns(RankWarning, match="cannot be fitted"):
        late = ens.mean(x, INF)
    assert late.dtype == jnp.float32
    np.testing.assert_allclose(late, np.full(2, Y[:2].mean()), rtol=1e-3)


WRONG = {
    "no pair": (lambda: InfiniteEnsemble(KERNEL_FN, X), "pair of samples and labels"),
    "too few labels": (lambda: InfiniteEnsemble(KERNEL_FN, (X, Y[:2])), "labels for all samples"),
    "no data": (lambda: InfiniteEnsemble(KERNEL_FN, (X[:0], Y[:0])), "at least one training sample"),
    "NaN labels": (lambda: InfiniteEnsemble(KERNEL_FN, (X, Y.at[1].set(np.nan))), "first in sample 1"),
    "NaN points": (lambda: InfiniteEnsemble(KERNEL_FN, (X.at[2, 0].set(np.nan), Y)), "first in sample 2"),
    "labels on a grid": (lambda: InfiniteEnsemble(KERNEL_FN, (X, Y2[:, :, None])), "for this network"),
    "reduction": (lambda: InfiniteEnsemble(KERNEL_FN, TRAIN, reduction="max"), "`reduction` must be one of"),
    "krylov": (lambda: InfiniteEnsemble(KERNEL_FN, TRAIN, method="krylov"), "'auto', 'dense', 'reduced'"),
    "reduced plain data": (lambda: InfiniteEnsemble(KERNEL_FN, (X, Y), method="reduced"), "not augmented"),
    "negative time": (lambda: ENS.mean(X_TEST, -1.0), "negative"),
    "no time": (lambda: ENS.mean(X_TEST), "training time"),
    "half a step": (
        lambda: InfiniteEnsemble(KERNEL_FN, TRAIN, filters.gradient_descent(1e-3)).mean(X_TEST, 0.5),
        "whole number of steps",
    ),
    "divergent": (lambda: InfiniteEnsemble(KERNEL_FN, TRAIN, filters.gradient_descent(9.0)), "at most 0."),
    "not positive": (
        lambda: InfiniteEnsemble(lambda x1, x2=None, get=None: tuple(-k for k in KERNEL_FN(x1, x2, get)), (X, Y)),
        "positive semidefinite",
    ),
    "f0": (lambda: ENS.mean(X_TEST, 1.0, f0=lambda x: x), "`f0` must be"),
    "no members": (lambda: ENS.sample(jax.random.key(0), X_TEST, 1.0, 0), "positive integer"),
    "too many samples": (
        lambda: InfiniteEnsemble(KERNEL_FN, (jnp.ones((10**6, 1)), jnp.ones(10**6))),
        r'half of one block of 1000000 rows .* of 4\.01 TB where .*`storage="recompute"` or `storage=` a folder',
    ),
    "too many samples to decompose": (
        lambda: InfiniteEnsemble(KERNEL_FN, (jnp.ones((10**6, 1)), jnp.ones(10**6)), solver=solvers.Eigh()),
        r"Gram matrix of 1000000 rows, decomposed as a whole, of .* TB",
    ),
    "oscillating for ever": (
        lambda: InfiniteEnsemble(KERNEL_FN, TRAIN, filters.gradient_descent(2 / float(ENS.spectrum[-1]))).mean(X, INF),
        "below .* for t = inf",
    ),
    "singular likelihood": (
        lambda: InfiniteEnsemble(KERNEL_FN, (jnp.stack([X[0], X[0]]), Y[:2])).log_marginal_likelihood(noise=0.0),
        "positive for a singular Gram matrix",
    ),
    "test labels": (lambda: ENS.expected_mse(X_TEST, Y, 1.0), "`y` must be labels of shape"),
    "no classes": (lambda: ENS.expected_accuracy(jax.random.key(0), X_TEST, X_TEST[:, 0], 1.0), "two channels"),
    "diagonal of two sets": (
        lambda: ensemble_cov(KERNEL_FN, TRAIN, X_TEST, 1.0, x_test2=X, diag=True),
        "`x_test2` must be left out",
    ),
    "traced auto": (
        lambda: jax.jit(lambda x: InfiniteEnsemble(KERNEL_FN, augment(x, Y, SHIFTS)).mean(X_TEST, 1.0))(X),
        "explicit for traced data",
    ),
    "traced kernel": (
        lambda: jax.grad(lambda w: InfiniteEnsemble(stax.Dense(1, w), TRAIN).mean(X_TEST, 1.0).sum())(1.0),
        "explicit for a traced kernel",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_refusals(name):
    call, says = WRONG[name]
    with pytest.raises(ValueError, match=says):
        call()


def test_integer_labels_are_refused():
    with pytest.raises(TypeError, match="one_hot"):
        InfiniteEnsemble(KERNEL_FN, (X, jnp.arange(3)))


def test_the_largest_rate_named_is_stable():
    with pytest.raises(ValueError, match="at most") as refused:
        InfiniteEnsemble(KERNEL_FN, TRAIN, filters.gradient_descent(5.0))
    rate = float(str(refused.value).split("at most ")[1].split(",")[0])
    stable = InfiniteEnsemble(KERNEL_FN, TRAIN, filters.gradient_descent(rate * 0.999))
    assert_close(stable.mean(TRAIN.x, 10**9), TRAIN.y)
    np.testing.assert_allclose(rate, 2 / ENS.spectrum[-1], rtol=1e-5)
