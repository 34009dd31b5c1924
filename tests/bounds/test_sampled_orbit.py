"""The law of the equivariance error with other losses: against the exact one, and against ensembles put together."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntk_equiv import InfiniteEnsemble, augment, bounds, groups, reps, stax
from ntk_equiv.infinite import SampledEnsemble
from tests.tolerances import assert_close

KERNEL_FN = stax.serial(stax.Dense(1, 1.4, 0.3), stax.Relu(), stax.Dense(1, 1.2, 0.1))[2]
SHIFTS = reps.regular(groups.cyclic(3))
RNG = np.random.default_rng(5)
X, TEST = jnp.asarray(RNG.standard_normal((4, 3))), jnp.asarray(RNG.standard_normal((2, 3)))
# A shift of the features shifts the classes.
MOVED = augment(X, jnp.asarray(RNG.dirichlet(np.ones(3), 4)), SHIFTS, SHIFTS)
NUMBERS = augment(X, jnp.asarray(RNG.standard_normal((4, 3))), SHIFTS, SHIFTS)
TIME, DRAWN, ERRORS = 20.0, 4000, 5
PERMUTED = np.stack([np.roll(np.eye(3), g, axis=0) for g in range(3)])


@functools.cache
def classifier(seed):
    return SampledEnsemble(KERNEL_FN, MOVED, key=jax.random.key(seed), members=DRAWN, rtol=1e-3)


@functools.cache
def law():
    return bounds.orbit_deviation(classifier(0), TEST, TIME)


@functools.cache
def members_turned_back():
    """Other members at all images of the test samples, turned back: [members, elements, n, channels]."""
    images = jnp.concatenate([jnp.roll(TEST, g, axis=1) for g in range(3)])
    drawn = np.asarray(classifier(1).outputs(images, TIME)).reshape(DRAWN, 3, 2, 3)
    return np.stack([np.roll(drawn[:, g], -g, axis=-1) for g in range(3)], axis=1)


def spread_over_orbits(functions):
    """√Q of functions [ensembles, elements, n, channels]."""
    return np.sqrt(np.sum((functions - functions.mean(axis=1, keepdims=True)) ** 2, axis=(1, 3)) / 3)


def ensembles_of(members):
    every = members_turned_back()
    return every[: len(every) // members * members].reshape(-1, members, *every.shape[1:]).mean(axis=1)


def test_the_squared_error_has_the_exact_law():
    exact = bounds.orbit_deviation(InfiniteEnsemble(KERNEL_FN, NUMBERS), TEST, 0.7)
    ens = SampledEnsemble(KERNEL_FN, NUMBERS, "mse", key=jax.random.key(2), members=DRAWN, rtol=1e-3)
    found = bounds.orbit_deviation(ens, TEST, 0.7)
    assert np.abs(found.bias).max() < 1e-9
    for members in (1, 30):
        z = (found.expected(members) - exact.expected(members)) / found.standard_error(members)
        assert np.abs(z).max() < ERRORS
    # The standard error of a sample covariance of normal numbers.
    cov, sampled = exact.covariance()[:, 1:], found.covariance()[:, 1:]
    variance = np.einsum("ngii->ngi", cov)
    spread = np.sqrt((cov**2 + variance[..., :, None] * variance[..., None, :]) / DRAWN)
    assert np.abs((sampled - cov) / spread).max() < ERRORS
    assert np.abs((sampled - cov) / spread).max() > 0.3  # which is none too large
    for sample, delta in enumerate(exact.quantile(9, 0.4).value):
        # The draws of both, and about 2 % of δ for the sampled covariance.
        assert abs(found.probability(9, delta).value[sample] - 0.4) < 0.05


@pytest.mark.parametrize("members", [1, 10, 40])
def test_moments_are_those_of_ensembles_put_together(members):
    """The second moment holds for every M; the root of it, which is taken as that of a Gaussian, from a few on."""
    measured = spread_over_orbits(ensembles_of(members))
    square, error = (measured**2).mean(axis=0), (measured**2).std(axis=0, ddof=1) / len(measured) ** 0.5
    found = law().root_mean_square(members) ** 2
    of_square = 2 * found * law().standard_error(members) / law().expected(members)
    assert np.abs((found - square) / np.hypot(error, of_square)).max() < ERRORS
    if members > 1:
        error = np.hypot(measured.std(axis=0, ddof=1) / len(measured) ** 0.5, law().standard_error(members))
        assert np.abs((law().expected(members) - measured.mean(axis=0)) / error).max() < ERRORS


def test_one_member_is_not_gaussian():
    """So the Gaussian law is no more than close for it, which is what the documentation says."""
    measured = spread_over_orbits(members_turned_back())
    assert np.abs(law().expected(1) / measured.mean(axis=0) - 1).max() < 0.1


def test_channels_are_correlated():
    """The cross-entropy never learns the sum of outputs: the covariance over channels is no multiple of 1."""
    drawn = members_turned_back()
    D = drawn[:, 1] - drawn[:, 0]
    expected = np.einsum("kni,knj->nij", D, D) / DRAWN
    # D is turned back here, and is not in the record.
    found = PERMUTED[1].T @ law().covariance()[:, 1] @ PERMUTED[1]
    fourth = np.einsum("kni,knj->nij", D**2, D**2) / DRAWN
    error = np.sqrt(2 * (fourth - expected**2) / DRAWN)
    assert np.abs((found - expected) / error).max() < ERRORS
    off = np.abs(found[:, ~np.eye(3, dtype=bool)]).max()
    assert off > 10 * error.max()


def test_tails_are_those_of_many_members():
    members, delta = 20, 0.35
    D = ensembles_of(members)
    sizes = np.linalg.norm(D - D[:, :1], axis=-1).max(axis=1)
    frequency = (sizes > delta).mean(axis=0)
    error = np.sqrt(0.25 / len(sizes))
    found = law().probability(members, delta)
    assert np.abs(found.value - frequency).max() < ERRORS * error
    assert (frequency > 0.05).all()
    assert (frequency < 0.95).all()
    enough = law().members(delta, 0.1)
    beyond = ensembles_of(int(enough.value.max()))
    sizes = np.linalg.norm(beyond - beyond[:, :1], axis=-1).max(axis=1)
    assert ((sizes > delta).mean(axis=0) < 0.1 + ERRORS * np.sqrt(0.09 / len(sizes))).all()


def test_combinations_of_channels():
    combination = np.array([[1.0, 0.3], [0.0, 1.0], [-1.0, 0.5]])
    found = bounds.orbit_deviation(classifier(0), TEST, TIME, rep_x=SHIFTS, readout=combination)
    whole = bounds.orbit_deviation(classifier(0), TEST, TIME, rep_x=SHIFTS)
    assert_close(found.covariance(7), combination.T @ whole.covariance(7) @ combination)
    assert_close(found.bias, whole.bias @ combination)
    assert found.bias_error.shape == found.bias.shape == (2, 3, 2)
    drawn = found.outputs @ combination
    D = drawn[:, :, 1:] - drawn[:, :, :1]
    assert_close(found.covariance()[:, 2], np.stack([np.cov(D[:, i, 2].T) for i in range(2)]))


def test_the_standard_error_is_how_estimates_scatter():
    whole = law()
    parts = [
        bounds.SampledOrbitDeviation.from_members(
            whole.outputs[start : start + 100], whole.contributions[start : start + 100], whole.actions, None
        )
        for start in range(0, DRAWN, 100)
    ]
    scatter = np.std([part.expected(5) for part in parts], axis=0, ddof=1)
    ratio = np.mean([part.standard_error(5) for part in parts], axis=0) / scatter
    # 40 values know their standard deviation to 11 %.
    assert np.abs(ratio - 1).max() < 0.45


def test_groups_that_did_not_augment_deviate_in_the_mean():
    plain = SampledEnsemble(KERNEL_FN, (X, jnp.array([0, 2, 1, 0])), key=jax.random.key(1), members=500, rtol=1e-3)
    found = bounds.orbit_deviation(plain, TEST, TIME, rep_x=SHIFTS)
    assert np.abs(found.bias / np.where(found.bias_error > 0, found.bias_error, 1)).max() > 2 * ERRORS
    mean = np.asarray(plain.mean(jnp.concatenate([jnp.roll(TEST, g, axis=1) for g in range(3)]), TIME)).reshape(3, 2, 3)
    assert_close(found.bias, (mean - mean[:1]).swapaxes(0, 1))
    again = bounds.orbit_deviation(plain.redrawn(jax.random.key(2), 500), TEST, TIME, rep_x=SHIFTS)
    error = np.hypot(found.bias_error, again.bias_error)[:, 1:]
    assert np.abs((found.bias - again.bias)[:, 1:] / error).max() < ERRORS
    worst = np.linalg.norm(found.bias, axis=2).max()
    with pytest.raises(ValueError, match="`delta` must be above"):
        found.members(worst / 2, 0.1)


def test_the_same_class_along_the_orbit():
    members = 20
    back = ensembles_of(members)
    # The class of an image is that of the sample, shifted: after turning back, it is the same.
    same = (back.argmax(axis=-1) == back[:, :1].argmax(axis=-1)).sum(axis=1)
    found = bounds.expected_osp(classifier(0), TEST, TIME, members, jax.random.key(0))
    error = same.std(axis=0, ddof=1) / len(same) ** 0.5
    assert np.abs((found.value - same.mean(axis=0)) / (error + 0.02)).max() < ERRORS
    assert 1 <= found.value.min() < 2.99
