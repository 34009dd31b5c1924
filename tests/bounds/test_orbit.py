"""The law of the equivariance error, against members drawn from the ensemble."""

import functools
from collections import namedtuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate

from ntk_equiv import InfiniteEnsemble, augment, bounds, filters, groups, reps, stax
from tests.tolerances import assert_close, assert_mean

KERNEL = stax.serial(stax.Dense(8, 1.5, 0.3), stax.Relu(), stax.Dense(1, 1.2, 0.1))[2]
TURN = reps.matrix(groups.SO2.finite(4))
X = jnp.asarray(np.random.default_rng(0).normal(size=(3, 2)))
TEST = jnp.asarray(np.random.default_rng(1).normal(size=(2, 2))) * 2
DRAWS, TIME = 20_000, 0.7


@functools.cache
def ensemble(vector):
    y = X[:, ::-1] if vector else X[:, 0] ** 2
    train = augment(X, y, TURN, TURN if vector else None)
    return InfiniteEnsemble(KERNEL, train, filters.gradient_flow(0.5), method="dense")


@functools.cache
def orbit_draws(vector):
    """Members at all images of the test samples, turned back: [draws, elements, n, channels]."""
    orbit = TURN.orbit(TEST)
    draws = ensemble(vector).sample(jax.random.key(5), orbit.reshape(-1, 2), TIME, DRAWS)
    return np.asarray(draws).reshape(DRAWS, 4, 2, -1)


def turned_back(draws):
    return np.einsum("gji,sgnj->sgni", TURN.channels.matrices(4), draws) if draws.shape[-1] == 2 else draws


def law(vector, **settings):
    return bounds.orbit_deviation(ensemble(vector), TEST, TIME, **settings)


@pytest.mark.parametrize("vector", [False, True])
def test_the_covariance_of_the_deviation(vector):
    found = law(vector)
    assert np.abs(found.bias).max() < 1e-12
    draws = orbit_draws(vector)
    moved = np.einsum("gij,snj->sgni", TURN.channels.matrices(4), draws[:, 0]) if vector else draws[:, :1]
    D = draws - moved
    assert_mean(np.einsum("sgni,sgnj->sngij", D, D)[:, :, 1:], found.covariance()[:, 1:])
    assert_close(found.covariance(4), found.covariance() / 4)
    assert np.abs(found.covariance()[:, 0]).max() < 1e-12  # nothing to deviate from at the identity


def test_the_variance_depends_on_how_labels_turn():
    """(2/M)[S(x, x) − S(x, gx)(τ + τᵀ)/2]: 2S for a quarter turn, and more for a half turn of correlated samples."""
    S, along, found = np.asarray(ensemble(True).var(TEST, TIME)), law(True).cov, law(True).covariance()
    assert_close(along[:, 0, 0], S)
    assert_close(found[:, 1], np.einsum("n,ij->nij", 2 * S, np.eye(2)))
    assert_close(found[:, 2], (2 * (S + along[:, 0, 3]))[:, None, None] * np.eye(2))
    assert found[:, 2, 0, 0].max() > 2 * S.max()


def test_over_channels_it_is_not_a_multiple_of_the_identity():
    """A flip of one of two channels: the one that stays deviates less, the one that flips more."""
    S = np.array([[[1.0, 1.0, 0.6], [1.0, 1.0, 0.6], [0.6, 0.6, 1.0]]])  # at x, at ex and at gx
    flip = np.array([np.eye(2), np.diag([1.0, -1.0])])
    found = bounds.OrbitDeviation(np.zeros((1, 3, 2)), S, flip, None).covariance()
    assert_close(found[0, 1], np.diag([2 * (1 - 0.6), 2 * (1 + 0.6)]))


@pytest.mark.parametrize("vector", [False, True])
def test_the_orbit_standard_deviation(vector):
    found, back = law(vector), turned_back(orbit_draws(vector))
    spread = np.sqrt(np.sum((back - back.mean(axis=1, keepdims=True)) ** 2, axis=(1, 3)) / 4)
    assert_mean(spread, found.expected())
    assert_mean(spread**2, found.root_mean_square() ** 2)
    assert_close(found.expected(10_000), found.expected() / 100)
    assert (found.expected() < found.root_mean_square()).all()
    ensembles = back[: DRAWS // 10 * 10].reshape(-1, 10, *back.shape[1:]).mean(axis=1)
    spread = np.sqrt(np.sum((ensembles - ensembles.mean(axis=1, keepdims=True)) ** 2, axis=(1, 3)) / 4)
    assert_mean(spread, found.expected(10))


@pytest.mark.parametrize("vector", [False, True])
def test_probabilities_quantiles_and_sizes(vector, key):
    found, draws = law(vector), orbit_draws(vector)
    moved = np.einsum("gij,snj->sgni", TURN.channels.matrices(4), draws[:, 0]) if vector else draws[:, :1]
    sizes = np.linalg.norm(draws - moved, axis=3).max(axis=1)
    delta = float(np.median(sizes))
    frequency = np.mean(sizes > delta, axis=0)
    probability = found.probability(1, delta, key=key)
    error = 4 * np.sqrt(0.25 / DRAWS)
    assert (probability.lower - error <= frequency).all()
    assert (frequency <= probability.upper + error).all()
    quantile = found.quantile(25, 0.1, key=key)
    assert (np.mean(sizes / 5 > quantile.upper, axis=0) <= 0.1 + error).all()
    assert (np.mean(sizes / 5 > quantile.lower, axis=0) >= 0.1 - error).all()
    assert found.members(1e300, 0.1, samples=200).upper.tolist() == [1] * len(found.mean)  # whose square is infinite
    members = found.members(0.05, 0.1, key=key)
    assert members.value.dtype == np.int64
    assert (np.mean(sizes / np.sqrt(members.upper) > 0.05, axis=0) <= 0.1 + error).all()
    assert (np.mean(sizes / np.sqrt(members.lower) > 0.05, axis=0) >= 0.1 - error).all()


def test_a_group_that_did_not_augment():
    """Eighth turns: the mean deviates as well, and no number of members helps below that."""
    finer = reps.matrix(groups.SO2.finite(8))
    found = law(False, rep_x=finer, elements=[0, 1, 2, 3])
    mean = np.asarray(ensemble(False).mean(finer.orbit(TEST, [0, 1, 2, 3]).reshape(-1, 2), TIME)).reshape(4, 2)
    assert_close(found.bias[..., 0], (mean - mean[:1]).T)
    worst = np.abs(found.bias).max()
    assert worst > 1e-3
    with pytest.raises(ValueError, match="`delta` must be above"):
        found.members(worst / 2, 0.1)
    enough = found.members(2 * worst, 0.1, samples=2000)
    above = found.probability(int(enough.upper.max()), 2 * worst, samples=2000)
    assert (above.lower <= 0.1).all()
    below = found.probability(int(enough.lower[0]), 2 * worst, samples=2000)
    assert below.upper[0] >= 0.1
    # √E[var] of many members is the spread of the mean.
    assert_close(found.root_mean_square(1e30), np.std(mean, axis=0))
    assert_close(found.expected(1e30), np.std(mean, axis=0))


def test_a_readout_combines_channels():
    readout = np.array([0.5, -1.0])
    found, draws = law(True, readout=readout), orbit_draws(True) @ readout
    assert_mean(draws.std(axis=1), found.expected())
    assert_close(law(True, readout=np.eye(2), rep_y=TURN).expected(), law(True).expected())


Kernel = namedtuple("Kernel", ("nngp", "ntk"))


def pixels(x1, x2=None, get=None):
    """A kernel with outputs [1, 2], equal in law but not the same at both pixels: one part is shared, one is not."""
    flat1, flat2 = x1.reshape(-1, 2), (x1 if x2 is None else x2).reshape(-1, 2)
    shared = jnp.exp(-0.5 * (flat1[:, None, :, None] - flat2[None, :, None, :]) ** 2)  # n1, n2, w, w'
    own = (
        jnp.exp(-0.5 * jnp.sum((flat1[:, None] - flat2[None]) ** 2, axis=-1))[..., None, None] * jnp.eye(2)[None, None]
    )
    kernel = (shared + own)[:, :, None, None]
    return Kernel(kernel, kernel)


def test_outputs_on_a_grid():
    """Half turns exchange the two pixels of an image and those of the output."""
    turn, rng = reps.rotate(groups.cyclic(2)), np.random.default_rng(2)
    x = jnp.asarray(rng.normal(size=(3, 1, 2, 1)))
    ens = InfiniteEnsemble(pixels, augment(x[:2], x[:2] ** 2, turn, turn), method="dense")
    found = bounds.orbit_deviation(ens, x, 0.3)
    assert np.abs(found.bias).max() < 1e-12
    assert found.expected().min() > 0.01
    for i in range(3):
        orbit = turn.orbit(x[i : i + 1])[:, 0]  # the image itself, and after half a turn
        mean = np.asarray(ens.mean(orbit, 0.3)).reshape(4)
        cov = np.asarray(ens.cov(orbit, 0.3))[:, :, 0, 0].swapaxes(1, 2).reshape(4, 4)
        draws = rng.multivariate_normal(mean, cov, size=40_000, method="eigh")
        back = np.stack([draws[:, :2], draws[:, :1:-1]], axis=1)
        D = draws[:, 2:] - draws[:, 1::-1]
        spread = np.sqrt(np.sum((back - back.mean(axis=1, keepdims=True)) ** 2, axis=(1, 2)) / 2)
        assert_mean(spread, found.expected()[i])
        assert_mean(np.einsum("si,sj->sij", D, D), found.covariance()[i, 1])


def test_same_predictions(key):
    """The number of quarter turns that keep the class, counted in draws and predicted."""
    ens = ensemble(True)
    for members in (1, 20):
        found = bounds.expected_osp(ens, TEST, TIME, members, key, rep_x=TURN)
        draws = orbit_draws(True)[: DRAWS // members * members].reshape(-1, members, 4, 2, 2).mean(axis=1)
        classes = draws.argmax(axis=-1)
        counted = (classes == classes[:, :1]).sum(axis=1)
        error = 5 * counted.std(axis=0) / np.sqrt(len(counted))
        assert (np.abs(found.value - counted.mean(axis=0)) <= found.upper - found.value + error).all()
    assert (found.value >= 1).all()
    assert (found.value <= 4).all()


def squares_over_an_orbit(variances, means):
    """The law of two images of which only the second varies, so that the orbit variance is Σ_k (√λ_k z_k + m_k)²."""
    count = len(variances)
    mean, cov = np.zeros((1, 3, count, 1)), np.zeros((1, 3 * count, 3 * count))
    mean[0, 2, :, 0] = 2 * np.asarray(means)
    cov[0, 2 * count :, 2 * count :] = 4 * np.diag(variances)
    return bounds.OrbitDeviation(mean, cov, np.stack([np.eye(count)] * 2), None)


@pytest.mark.parametrize("mean", [0.0, 0.4])
def test_the_expected_root_of_a_quadratic_form(mean):
    """Against the integral over a normal distribution, for one squared Gaussian; and Monte Carlo, for several."""
    density = scipy.stats.norm(mean, 0.6).pdf
    expected = scipy.integrate.quad(lambda z: abs(z) * density(z), -10, 10, points=[0.0], epsabs=1e-13)[0]
    assert_close(squares_over_an_orbit([0.36], [mean]).expected(), np.array([expected]))
    variances, means = np.array([1.0, 0.3, 1e-4, 0.0]), np.array([0.0, mean, 1.0, 0.2**0.5])
    z = np.random.default_rng(0).normal(size=(100_000, 4))
    draws = np.sqrt(np.sum((z * np.sqrt(variances) + means) ** 2, axis=1))
    assert_mean(draws, squares_over_an_orbit(variances, means).expected()[0])
    assert squares_over_an_orbit([0.0, 0.0], [0.0, 0.0]).expected() == 0


def test_required_members(key):
    ens = ensemble(True)
    variance = ens.var(TEST, TIME)
    expected = bounds.min_ensemble_size(variance, 0.05, 0.1, channels=2)
    np.testing.assert_array_equal(bounds.required_members(ens, TEST, TIME, 0.05, 0.1), expected)
    union, sidak = (bounds.required_members(ens, TEST, TIME, 0.05, 0.1, simultaneous=m) for m in ("union", "sidak"))
    sampled = bounds.required_members(ens, TEST, TIME, 0.05, 0.1, simultaneous="sampled", key=key)
    assert expected.max() <= sampled.upper
    assert sampled.lower <= sidak <= union
    with pytest.raises(ValueError, match="`key` must be given"):
        bounds.required_members(ens, TEST, TIME, 0.05, 0.1, simultaneous="sampled")
    with pytest.raises(ValueError, match="`t` must be a single time"):
        bounds.required_members(ens, TEST, jnp.ones(2), 0.05, 0.1)


def test_members_that_have_converged_agree_up_to_rounding(key):
    """On the training samples, where the covariance is rounding of either sign."""
    ens = ensemble(True)
    law = bounds.orbit_deviation(ens, X, jnp.inf)
    assert np.abs(law.cov).max() < law.rounding < 1e-4
    assert law.members(0.01, 0.1, samples=200).value.tolist() == [1, 1, 1]
    assert bounds.required_members(ens, X, jnp.inf, 0.01, 0.1, simultaneous="sampled", key=key).value == 1
    noise = (np.zeros((1, 2, 1)), 1e-16 * np.array([[[1.0, 2.0], [2.0, 1.0]]]), np.ones((1, 1, 1)), None)
    assert bounds.OrbitDeviation(*noise, rounding=1e-12).quantile(1, 0.1, samples=200).value < 1e-7
    with pytest.raises(ValueError, match="positive semidefinite"):
        bounds.OrbitDeviation(*noise).quantile(1, 0.1, samples=200)


def test_refusals():
    plain = InfiniteEnsemble(KERNEL, (X, X[:, 0]))
    with pytest.raises(ValueError, match="`rep_x` must be given"):
        bounds.orbit_deviation(plain, TEST, 1.0)
    with pytest.raises(ValueError, match="several channels"):
        bounds.expected_osp(ensemble(False), TEST, 1.0, 1, jax.random.key(0))
    with pytest.raises(ValueError, match="`readout` must be of shape"):
        law(True, readout=np.ones(3))
    with pytest.raises(ValueError, match="`rep_y` must be of"):
        law(True, rep_y=reps.trivial(groups.cyclic(3)))
