"""Exponents and limits of what finite width does, from data whose exponents and limits are known."""

import numpy as np
import pytest

from ntk_equiv.empirical import Exponent, extrapolate_width, fitted_correction, fitted_exponent

WIDTHS = (16, 64, 256)


def networks(seed, power=1.0, left=0.0, noise=0.3, members=50):
    """Differences of members at 4 samples, c/N^power with noise that all samples share in part."""
    rng, c = np.random.default_rng(seed), np.array([1.0, -2.0, 0.5, 1.5])
    scatter = {N: rng.normal(size=(members, 1)) + 0.3 * rng.normal(size=(members, 4)) for N in WIDTHS}
    return {N: left + c / N**power + noise * scatter[N] / N**power for N in WIDTHS}


def moments(found):
    means = {N: one.mean(0) for N, one in found.items()}
    return means, {N: one.std(0, ddof=1) / np.sqrt(len(one)) for N, one in found.items()}


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_the_exponent_scatters_as_its_error_says(power):
    found = [fitted_exponent(networks(seed, power)) for seed in range(40)]
    z = np.array([(one.value - power) / one.error for one in found])
    assert abs(z.mean()) < 4 * z.std() / np.sqrt(len(z))
    # The jackknife of ten parts is Student's, with more scatter than a Gaussian.
    assert 0.7 < z.std() < 1.6


def test_the_limit_scatters_as_its_error_says():
    found = [extrapolate_width(*moments(networks(seed)), Exponent(1.0, 0.1)) for seed in range(60)]
    z = np.array([one.limit / one.error for one in found])
    assert 0.8 < z.std() < 1.3
    assert sum(one.trustworthy for one in found) > 50
    assert np.isclose(found[0].overall, np.sqrt(np.mean(z[0] ** 2)))


def test_it_is_the_straight_line_of_numpy():
    means, errors = moments(networks(0))
    found = extrapolate_width(means, errors)
    for i in range(4):
        weights = [1 / errors[N][i] for N in WIDTHS]
        line, cov = np.polyfit([1 / N for N in WIDTHS], [means[N][i] for N in WIDTHS], 1, w=weights, cov="unscaled")
        np.testing.assert_allclose([found.limit[i], found.error[i]], [line[1], np.sqrt(cov[1, 1])], rtol=1e-8)


def test_limits_of_another_power_are_doubted():
    slow = networks(0, power=0.5)
    found = extrapolate_width(*moments(slow), fitted_exponent(slow))
    assert any("fall as 1/N^0.5" in doubt for doubt in found.doubts)
    assert any("does not describe" in doubt for doubt in found.doubts)
    constant = networks(0, left=1.0)
    found = extrapolate_width(*moments(constant), fitted_exponent(constant))
    np.testing.assert_array_less(np.abs(found.limit - 1), 4.5 * found.error)
    assert not found.trustworthy
    noisy = networks(0, noise=100.0, members=10)
    assert any("known only to" in doubt for doubt in extrapolate_width(*moments(noisy), fitted_exponent(noisy)).doubts)


def test_what_is_certain_has_no_exponent_and_no_limit():
    same = {N: np.full((5, 2), 3.0 / N) for N in (16, 64, 128)}
    assert np.isnan(fitted_exponent(same).value)
    assert np.isinf(fitted_exponent(same).error)
    found = extrapolate_width({N: one[0] for N, one in same.items()}, {N: np.zeros(2) for N in same})
    np.testing.assert_array_equal(found.limit, 0)
    assert found.overall == 0


def test_the_correction_is_the_line_through_zero():
    found = fitted_correction(*moments(networks(1)))
    np.testing.assert_array_less(np.abs(found.coefficient - [1.0, -2.0, 0.5, 1.5]), 4.5 * found.error)
