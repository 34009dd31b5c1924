"""Members of finite ensembles: the laws hold at their frequency, and are as tight as they claim."""

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from hypothesis import given

from ntk_equiv import bounds
from tests.tolerances import assert_close

EPSILONS = (1e-3, 0.01, 0.05, 0.2, 0.208, 0.3, 0.39, 0.5, 0.7, 0.9)
BOUNDS = ("exact", "tight", "lemma")


def ratio(epsilon, bound="exact", channels=1, norm="max"):
    """Members per Σ/δ², before rounding up: the square of the deviation of one member with Σ = 1."""
    return float(bounds.deviation_quantile(1.0, 1, epsilon, bound=bound, channels=channels, norm=norm)) ** 2


def tail(r, bound="exact", channels=1, norm="max"):
    """The probability of a deviation of more than δ where Mδ²/Σ = r."""
    return bounds.deviation_probability(1 / r, 1, 1.0, bound=bound, channels=channels, norm=norm)


@pytest.fixture(scope="module")
def deviations():
    return np.random.default_rng(0).standard_normal((100_000, 3))


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_frequency_of_larger_deviations(deviations, epsilon):
    """At δ = 1, Σ = 1 and a real number M of members, deviations are those of one standard normal over √M."""
    one = np.abs(deviations[:, 0])
    error = 4 * np.sqrt(epsilon * (1 - epsilon) / len(one))
    frequency = {bound: np.mean(one > np.sqrt(ratio(epsilon, bound))) for bound in BOUNDS}
    assert abs(frequency["exact"] - epsilon) <= error
    assert max(frequency.values()) <= epsilon + error
    assert frequency["lemma"] <= frequency["tight"] <= frequency["exact"]


@pytest.mark.parametrize("norm", ["euclidean", "max"])
@pytest.mark.parametrize("epsilon", [1e-3, 0.05, 0.5, 0.9])
def test_the_frequency_for_vectors(deviations, epsilon, norm):
    sizes = np.linalg.norm(deviations, axis=1) if norm == "euclidean" else np.abs(deviations).max(axis=1)
    frequency = np.mean(sizes > np.sqrt(ratio(epsilon, "exact", 3, norm)))
    assert abs(frequency - epsilon) <= 4 * np.sqrt(epsilon * (1 - epsilon) / len(sizes))


def test_the_lemma_without_its_condition_would_fail(deviations):
    """Why the condition is enforced: the bare formula allows 62 % exceedance at ε = 0.5."""
    bare = -2 * np.log(np.sqrt(np.pi) * 0.5)
    assert np.mean(np.abs(deviations[:, 0]) > np.sqrt(bare)) > 0.6
    assert_close(ratio(0.5, "lemma"), 2.0)


@given(st.floats(1e-300, 0.999999))
def test_the_bounds_are_ordered(epsilon):
    exact, tight, lemma = (ratio(epsilon, bound) for bound in BOUNDS)
    assert exact <= tight * (1 + 1e-12)
    assert tight <= lemma * (1 + 1e-12)


@given(st.floats(1e-12, 0.999), st.floats(0.0, 1e3), st.floats(1e-3, 10.0), st.sampled_from(BOUNDS))
def test_the_size_is_the_smallest_that_suffices(epsilon, variance, delta, bound):
    members = bounds.min_ensemble_size(variance, delta, epsilon, bound=bound)
    assert isinstance(members, int)
    assert bounds.deviation_probability(variance, members, delta, bound=bound) <= epsilon * (1 + 1e-9)
    if members > 1:
        assert bounds.deviation_probability(variance, members - 1, delta, bound=bound) >= epsilon * (1 - 1e-9)


@pytest.mark.parametrize("epsilon", [1e-10, *EPSILONS])
def test_tight_solves_the_equation_of_the_appendix(epsilon):
    def excess(r):
        return np.sqrt(2 / np.pi / r) * np.exp(-r / 2) - epsilon

    assert_close(np.float64(ratio(epsilon, "tight")), np.float64(scipy.optimize.brentq(excess, 1e-6, 100, xtol=1e-13)))


@pytest.mark.parametrize("channels", [1, 2, 7])
def test_vectors_follow_the_chi_square_law(channels):
    """Also for numbers of members, which are found by another library: so many are needed that rounding up is small."""
    epsilon, r = np.array([1e-8, 0.05, 0.6]), np.array([0.3, 4.0, 30.0])
    expected = scipy.stats.chi2.isf(epsilon, channels)
    assert_close(tail(r, channels=channels, norm="euclidean"), scipy.stats.chi2.sf(r, channels))
    assert_close(bounds.deviation_quantile(1.0, 1, epsilon, channels=channels) ** 2, expected)
    assert_close(bounds.min_ensemble_size(1e13, 1.0, epsilon, channels=channels) / 1e13, expected)
    assert_close(
        bounds.simultaneous_probability([1 / r[1]], 1, 1.0, channels=channels), scipy.stats.chi2.sf(r[1], channels)
    )


@pytest.mark.parametrize("bound", BOUNDS)
def test_the_largest_of_several_channels(bound):
    """Exact for independent channels; the bounds of the paper go through the union."""
    single = float(tail(9.0, bound))
    expected = 1 - (1 - single) ** 5 if bound == "exact" else 5 * single
    assert_close(tail(9.0, bound, 5), np.float64(expected))
    assert_close(np.float64(ratio(float(expected), bound, 5)), np.float64(9.0))


@pytest.mark.parametrize("bound", BOUNDS)
def test_quantile_and_probability_are_inverse(bound):
    delta = bounds.deviation_quantile(jnp.array([0.5, 2.0]), 10, 0.03, bound=bound)
    assert_close(bounds.deviation_probability(jnp.array([0.5, 2.0]), 10, delta, bound=bound), np.full(2, 0.03))


def test_no_variance_needs_one_member():
    assert bounds.min_ensemble_size(0.0, 0.1, 0.01) == 1
    assert bounds.deviation_probability(0.0, 1, 0.1) == 0
    assert bounds.deviation_quantile(0.0, 1, 0.1) == 0
    assert jax.grad(bounds.deviation_probability)(0.0, 1, 0.1) == 0


def test_arrays_and_tracers():
    variance, delta = jnp.array([[0.0], [3.0]]), jnp.array([0.1, 0.2, 0.3])
    known = bounds.min_ensemble_size(variance, delta, 0.05)
    assert known.shape == (2, 3)
    assert known.dtype == np.int64
    traced = jax.jit(bounds.min_ensemble_size)(variance, delta, 0.05)
    assert traced.dtype == jnp.float64
    np.testing.assert_array_equal(traced, known)
    each = jax.vmap(lambda v: bounds.min_ensemble_size(v, 0.1, 0.05))(variance[:, 0])
    np.testing.assert_array_equal(each, known[:, 0])


@pytest.mark.parametrize("bound", BOUNDS)
def test_single_precision_reaches_tiny_probabilities(bound):
    small = jax.jit(lambda e: bounds.deviation_quantile(1.0, 1, e, bound=bound))(jnp.float32(1e-30))
    assert small.dtype == jnp.float32
    assert abs(float(small) ** 2 / ratio(1e-30, bound) - 1) < 1e-5


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((-1.0, 0.1, 0.05), "`variance` must be finite and not negative, got -1.0"),
        (([1.0, np.nan], 0.1, 0.05), "`variance` must be finite"),
        ((1.0, 0.0, 0.05), "`delta` must be finite and positive"),
        ((1.0, 0.1, 0.0), "`epsilon` must be between 0 and 1"),
        ((1.0, 0.1, 1.0), "`epsilon` must be between 0 and 1"),
        ((1.0, 1e-200, 0.5), "`delta` must be large enough"),
    ],
)
def test_bad_numbers_are_refused(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        bounds.min_ensemble_size(*arguments)


def test_bad_questions_are_refused():
    with pytest.raises(ValueError, match="`members` must be at least 1"):
        bounds.deviation_probability(1.0, 0, 0.1)
    with pytest.raises(ValueError, match="`bound` must be one of"):
        bounds.min_ensemble_size(1.0, 0.1, 0.1, bound="loose")
    with pytest.raises(ValueError, match='must be "exact" for the Euclidean norm'):
        bounds.min_ensemble_size(1.0, 0.1, 0.1, bound="tight", channels=2)
    with pytest.raises(TypeError, match="real numbers"):
        bounds.deviation_quantile(1.0, True, 0.1)
