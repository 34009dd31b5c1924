"""Means over random networks, their errors, and what a finite width adds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from ntk_equiv import InfiniteEnsemble, bounds, empirical, ensembles, monte_carlo_kernel_fn, stax
from ntk_equiv.empirical import Correction, fitted_correction, width_scaling
from tests.tolerances import ROUNDING, assert_close

X = jnp.asarray(np.random.default_rng(0).normal(size=(3, 2)))


def build(width):
    return stax.serial(stax.Dense(width, 1.5, 0.2), stax.Erf(), stax.Dense(2, 1.3))


INIT, APPLY, _ = build(12)
KEY = jax.random.key(0)
SAMPLED = monte_carlo_kernel_fn(INIT, APPLY, KEY, 30)


@pytest.fixture(scope="module")
def each():
    """The kernels of all networks that are drawn, one by one."""
    one = jax.jit(lambda key: empirical.empirical_kernel_fn(APPLY, INIT(key, (-1, 2))[1])(X))
    drawn = [one(key) for key in jax.random.split(KEY, 30)]
    return {name: np.stack([getattr(k, name) for k in drawn]) for name in ("nngp", "ntk")}


def test_means_and_standard_errors(each, capsys):
    whole = SAMPLED.estimate(X)
    assert capsys.readouterr().err == ""
    some = monte_carlo_kernel_fn(INIT, APPLY, KEY, 30, together=4).estimate(X, get="ntk", progress=True)
    assert "30/30" in capsys.readouterr().err
    assert some.nngp is None
    assert some.nngp_error is None
    for found, name in ((whole, "nngp"), (whole, "ntk"), (some, "ntk")):
        assert_close(getattr(found, name), each[name].mean(0))
        assert_close(getattr(found, f"{name}_error"), scipy.stats.sem(each[name], axis=0))


def test_it_is_a_kernel_function_like_any_other(each):
    y = jnp.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    ens = InfiniteEnsemble(SAMPLED, (X, y))
    values, vectors = np.linalg.eigh(each["ntk"].mean(0))
    filtered = vectors * (-np.expm1(-values * 0.7)) @ vectors.T
    assert_close(ens.mean(X, 0.7), filtered @ np.asarray(y))


def test_either_kind_of_init_will_do(each):
    pair = ensembles.as_pair((INIT, APPLY, None))
    assert_close(monte_carlo_kernel_fn(*pair, KEY, 30)(X, None, "ntk"), each["ntk"].mean(0), ROUNDING)
    constant = monte_carlo_kernel_fn(lambda key, x: jnp.ones((2, 1)), lambda w, x: x @ w, KEY, 2).estimate(X)
    assert_close(constant.ntk, X @ X.T)
    assert not np.asarray(constant.ntk_error).any()
    nested = monte_carlo_kernel_fn(lambda key, x: ((), jnp.ones((2, 1))), lambda w, x: x @ w[1], KEY, 1).estimate(X)
    assert_close(nested.ntk, X @ X.T)
    assert np.isnan(nested.ntk_error).all()  # one network has no spread


def test_refusals():
    with pytest.raises(ValueError, match="`samples` must be a positive integer"):
        monte_carlo_kernel_fn(INIT, APPLY, KEY, 0)
    with pytest.raises(ValueError, match="`widths` must be at least two widths"):
        width_scaling(build, (4, 4), X, key=KEY, samples=2)
    with pytest.raises(ValueError, match="`kernel_fn` must be the kernels at infinite width"):
        width_scaling(lambda width: build(width)[:2], (4, 8), X, key=KEY, samples=2)
    with pytest.raises(ValueError, match="`samples` must be at least 2, got 1"):
        width_scaling(build, (4, 8), X, key=KEY, samples=1)
    standard = {"parameterization": "standard"}
    with pytest.raises(ValueError, match=r"`build` must be networks with the same kernels .* got another ntk"):
        width_scaling(lambda N: stax.serial(*[stax.Dense(N, **standard)] * 2), (4, 8), X, key=KEY, samples=2)
    init_fn, apply_fn, _ = stax.Conv(4, (3,))
    with pytest.raises(ValueError, match=r"`x` must be .* 1 spatial axes, channels"):
        monte_carlo_kernel_fn(init_fn, apply_fn, KEY, 2)(X)


def test_kernels_approach_their_limit_as_one_over_width():
    """The corrections are seen, and those of one width are those of another times the ratio of widths."""

    def wide_end(width):
        return stax.serial(stax.Dense(width, 1.5, 0.3), stax.Erf(), stax.Dense(width, 1.5), stax.Erf(), stax.Dense(50))

    found = width_scaling(wide_end, (5, 15), X[:1], X[1:2], key=KEY, samples=40_000)
    limit = wide_end(1).kernel_fn(X[:1], X[1:2])
    for name in ("nngp", "ntk"):
        correction = getattr(found, name)
        away = [
            N * (getattr(one, name) - getattr(limit, name)) for N, one in zip((5, 15), found.estimates, strict=True)
        ]
        errors = [N * getattr(one, f"{name}_error") for N, one in zip((5, 15), found.estimates, strict=True)]
        assert all(abs(float(a[0, 0])) > 4 * float(e[0, 0]) for a, e in zip(away, errors, strict=True))
        # What is of order 1/N² is at most 1/5 of a.
        assert abs(float(away[0][0, 0] - away[1][0, 0])) < 5 * np.hypot(*errors)[0, 0] + abs(correction.coefficient) / 5
    assert "widths (5, 15)" in repr(found)


def test_the_fit_is_weighted_least_squares():
    rng = np.random.default_rng(1)
    widths, errors = (10, 20, 50), rng.uniform(0.01, 0.1, size=(3, 4))
    away = rng.normal(size=(3, 4))
    found = fitted_correction(dict(zip(widths, away, strict=True)), dict(zip(widths, errors, strict=True)))
    total = 0
    for i in range(4):
        design = (1 / np.array(widths) / errors[:, i])[:, None]
        a, residual, *_ = np.linalg.lstsq(design, away[:, i] / errors[:, i], rcond=None)
        np.testing.assert_allclose(found.coefficient[i], a[0])
        np.testing.assert_allclose(found.error[i], np.linalg.inv(design.T @ design)[0, 0] ** 0.5)
        total += residual[0]
    np.testing.assert_allclose(found.chi_squared, total / 8)
    certain = fitted_correction({4: np.zeros(1), 8: np.zeros(1)}, {4: np.zeros(1), 8: np.zeros(1)})
    assert (certain.coefficient, certain.error, certain.chi_squared) == (0, 0, 0)


def test_the_estimate_at_finite_width_is_the_law_of_a_shifted_mean():
    shift = Correction(np.array([[3.0], [-6.0]]), np.array([[0.5], [0.5]]), 1.0)
    found = bounds.finite_width_estimate(np.array([[2.0], [0.0]]), 100, 0.15, shift, 50)
    draws = np.random.default_rng(0).normal(0.06, (2 / 100) ** 0.5, 200_000)
    error = (0.25 / 200_000) ** 0.5
    assert abs(found.probability[0, 0] - np.mean(np.abs(draws) > 0.15)) < 5 * error
    assert found.probability[1, 0] == 0  # without scatter the shift of -0.12 stays within the tolerance
    assert found.lower[0, 0] < found.probability[0, 0] < found.upper[0, 0]
    np.testing.assert_allclose(found.members[0, 0], 2 / 0.06**2)
    # Without a shift it is what the exact law says.
    plain = bounds.finite_width_estimate(2.0, 100, 0.15, Correction(np.zeros(1), np.zeros(1), 1.0), 50)
    np.testing.assert_allclose(plain.probability[0], bounds.deviation_probability(2.0, 100, 0.15))
    with pytest.raises(TypeError, match="`mean` must be a `Correction`"):
        bounds.finite_width_estimate(2.0, 100, 0.15, 3.0, 50)
