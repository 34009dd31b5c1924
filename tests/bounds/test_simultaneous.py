"""Many samples at once: valid for any correlations, exact where the law is sampled."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntk_equiv import bounds
from ntk_equiv.bounds import Sampled

VARIANCE = np.array([1.0, 0.7, 0.3, 0.0])
ROTATION = np.linalg.qr(np.random.default_rng(3).normal(size=(4, 4)))[0]


def correlated(strength):
    """A covariance with these variances; the last sample never deviates."""
    scale = np.sqrt(VARIANCE)
    return scale[:, None] * scale * (strength + (1 - strength) * np.eye(4))


@pytest.mark.parametrize("strength", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("epsilon", [0.01, 0.3])
def test_sizes_suffice_and_are_ordered(strength, epsilon, key):
    sampled = bounds.sampled_ensemble_size(correlated(strength), 0.02, epsilon, key=key)
    sidak, union = (bounds.simultaneous_ensemble_size(VARIANCE, 0.02, epsilon, method=m) for m in ("sidak", "union"))
    assert sampled.lower <= sidak <= union
    if strength == 0:
        assert sampled.lower <= sidak <= sampled.upper  # independent samples attain it
    draws = np.random.default_rng(1).multivariate_normal(np.zeros(4), correlated(strength), size=100_000)
    error = 4 * np.sqrt(epsilon * (1 - epsilon) / len(draws))
    assert np.mean(np.abs(draws).max(axis=1) > 0.02 * np.sqrt(sidak)) <= epsilon + error
    assert np.mean(np.abs(draws).max(axis=1) > 0.02 * np.sqrt(sampled.upper)) <= epsilon + error
    assert np.mean(np.abs(draws).max(axis=1) > 0.02 * np.sqrt(sampled.lower)) >= epsilon - error


@pytest.mark.parametrize("method", ["sidak", "union"])
def test_sizes_are_the_smallest(method):
    members = bounds.simultaneous_ensemble_size(VARIANCE, 0.02, 0.05, method=method)
    assert bounds.simultaneous_probability(VARIANCE, members, 0.02, method=method) <= 0.05
    assert bounds.simultaneous_probability(VARIANCE, members - 1, 0.02, method=method) > 0.05


def test_one_sample_is_the_single_law():
    assert bounds.simultaneous_ensemble_size([2.0], 0.1, 0.05) == bounds.min_ensemble_size(2.0, 0.1, 0.05)
    assert bounds.simultaneous_ensemble_size([0.0, 0.0], 0.1, 0.05) == 1


@pytest.mark.parametrize("norm", ["euclidean", "max"])
def test_channels(norm, key):
    expected = bounds.min_ensemble_size(1.0, 0.05, 0.1, channels=3, norm=norm)
    sampled = bounds.sampled_ensemble_size(jnp.eye(1), 0.05, 0.1, key=key, channels=3, norm=norm)
    assert sampled.lower <= expected <= sampled.upper
    assert bounds.simultaneous_ensemble_size([1.0], 0.05, 0.1, channels=3, norm=norm) == expected


def test_tolerances_for_each_sample():
    both = bounds.simultaneous_ensemble_size([1.0, 4.0], [0.1, 0.2], 0.05)
    assert both == bounds.simultaneous_ensemble_size([1.0, 1.0], 0.1, 0.05)


def test_refusals(key):
    with pytest.raises(ValueError, match="positive semidefinite"):
        bounds.sampled_ensemble_size(jnp.diag(jnp.array([1.0, -1.0])), 0.1, 0.1, key=key)
    with pytest.raises(ValueError, match="a square matrix"):
        bounds.sampled_ensemble_size(jnp.ones(3), 0.1, 0.1, key=key)
    with pytest.raises(ValueError, match="`samples` must be enough"):
        bounds.sampled_ensemble_size(jnp.eye(2), 0.1, 1e-4, key=key, samples=100)
    with pytest.raises(ValueError, match="`method` must be one of"):
        bounds.simultaneous_ensemble_size([1.0], 0.1, 0.1, method="bonferroni")


@pytest.mark.parametrize("samples", [200, 2000])
def test_the_intervals_cover(samples):
    """Of intervals that claim 90 %, at least 90 % of 2000 contain the truth, up to 4 standard errors."""
    rng = np.random.default_rng(samples)
    draws = rng.exponential(size=(samples, 2000))
    least = 0.9 - 4 * np.sqrt(0.09 / 2000)
    quantile = Sampled.quantile(draws, 0.05, confidence=0.9)
    assert np.mean((quantile.lower <= -np.log(0.05)) & (quantile.upper >= -np.log(0.05))) >= least
    probability = Sampled.probability((draws > 3).sum(axis=0), samples, confidence=0.9)
    assert np.mean((probability.lower <= np.exp(-3)) & (probability.upper >= np.exp(-3))) >= least
    mean = Sampled.mean(draws, confidence=0.9)
    assert np.mean((mean.lower <= 1) & (mean.upper >= 1)) >= least - 0.01  # a Gaussian approximation
    assert np.mean((quantile.lower <= -np.log(0.05)) & (quantile.upper >= -np.log(0.05))) <= 0.97


def test_samples_count_as_numbers():
    some = Sampled.mean(np.array([[1.0, 3.0], [3.0, 3.0]]))
    np.testing.assert_array_equal(some + 1, [3.0, 4.0])
    np.testing.assert_array_equal(some < 2.5, [True, False])
    assert float(Sampled(2.0, 1.0, 3.0, 0.9, 5)) == 2.0
    assert jax.numpy.asarray(np.asarray(some)).shape == (2,)
