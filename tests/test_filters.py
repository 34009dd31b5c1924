"""Filters against their definitions, in more digits and step by step."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from ntk_equiv import filters

LAMBDA = np.array([0.0, 1e-300, 1e-18, 1e-9, 1e-4, 9.99e-4, 1.001e-3, 0.3, 0.5, 0.9, 1.0, 1.5, 1.99])
INF = float("inf")


def flow(lam, t):
    return (1 - mpmath.exp(-lam * t)) / lam if lam else mpmath.mpf(t)


def descent(lam, t):
    return (1 - (1 - lam) ** t) / lam if lam else mpmath.mpf(t)


def heavy_ball(lam, t, beta=0.9):
    now = before = mpmath.mpf(0)
    for _ in range(t):
        now, before = 1 + (1 + mpmath.mpf(beta) - lam) * now - mpmath.mpf(beta) * before, now
    return now


def heavy_ball_flow(lam, t, gamma=0.1):
    """U'' + γu' + λu = 1 from rest, by its two exponentials."""
    root = mpmath.sqrt(mpmath.mpf(gamma) ** 2 / 4 - lam)
    if not root:
        lam, root = lam + mpmath.mpf(10) ** -300, mpmath.sqrt(mpmath.mpf(10) ** -300)
    slow, fast = mpmath.mpf(gamma) / 2 - root, mpmath.mpf(gamma) / 2 + root
    at = lambda k: (1 - mpmath.exp(-k * t)) / k if k else mpmath.mpf(t)  # noqa: E731
    return mpmath.re((at(slow) - at(fast)) / (2 * root))


@pytest.mark.parametrize(
    ("filter", "reference"),
    [
        (filters.gradient_flow(1.0), flow),
        (filters.gradient_descent(1.0), descent),
        (filters.momentum(1.0, 0.9), heavy_ball),
        (filters.momentum_flow(1.0, 0.9), heavy_ball_flow),
    ],
    ids=["flow", "descent", "momentum", "momentum flow"],
)
def test_values_to_full_precision(filter, reference):
    with mpmath.workdps(700):
        for t in (0, 1, 2, 7, 1000):
            expected = [float(reference(mpmath.mpf(lam), t)) for lam in LAMBDA]
            np.testing.assert_allclose(filter(jnp.asarray(LAMBDA), t), expected, rtol=1e-13)


@pytest.mark.parametrize(
    "filter", [filters.gradient_flow(1.0), filters.gradient_descent(1.0), filters.momentum(1.0, 0.5)]
)
def test_the_end_of_training_is_the_inverse(filter):
    late = np.array([1e-9, 1e-3, 0.4, 1.7])
    np.testing.assert_allclose(filter(jnp.asarray(late), INF), 1 / late, rtol=1e-15)
    np.testing.assert_allclose(filter(jnp.asarray(late), 1e18), 1 / late, rtol=1e-6)
    assert np.isposinf(filter(0.0, INF))
    assert np.isfinite(filter(0.0, 1e18))


def test_steps_that_are_too_large_have_no_end():
    """At the limit training swings for ever between 0 and 2/λ, beyond it diverges."""
    descent, heavy = filters.gradient_descent(1.0), filters.momentum(1.0, 0.5)
    np.testing.assert_allclose([descent(2.0, 10**6), descent(2.0, 10**6 + 1)], [0, 1], atol=1e-12)
    assert np.isnan(descent(jnp.array([2.0, 2.5]), INF)).all()
    assert np.isnan(heavy(jnp.array([3.0, 3.1]), INF)).all()
    assert np.isfinite(heavy(2.9, INF))


def test_momentum_zero_is_descent_and_small_steps_are_flow():
    lam = jnp.linspace(0, 1.9, 5)
    np.testing.assert_allclose(filters.momentum(1.0, 0.0)(lam, 13), filters.gradient_descent(1.0)(lam, 13), rtol=1e-13)
    np.testing.assert_allclose(
        filters.gradient_descent(1e-6)(lam, 2_000_000), filters.gradient_flow(1.0)(lam, 2.0), rtol=1e-5
    )


def test_momentum_in_small_steps_is_its_flow():
    lam = jnp.array([0.0, 0.01, 0.5, 2.0, 30.0])
    for steps in (10_000, 200_000):
        flow, heavy = filters.momentum_flow(1e-8, 0.9999), filters.momentum(1e-8, 0.9999)
        np.testing.assert_allclose(heavy(lam, steps), flow(lam, steps), rtol=3e-4)


def test_ridge_is_flow_with_a_shift():
    np.testing.assert_allclose(filters.ridge(0.5)(jnp.array([0.0, 1.5]), INF), [2.0, 0.5], rtol=1e-15)
    np.testing.assert_allclose(filters.ridge(0.5, 2.0)(1.5, 0.7), filters.gradient_flow(2.0)(2.0, 0.7), rtol=1e-15)


@pytest.mark.parametrize("lam", [0.0, 1e-12, 5e-4, 2e-3, 0.7, 30.0])
def test_flow_differentiates_in_everything(lam):
    t, eta = 1.7, 0.6
    gradient = jax.grad(lambda lam, t, eta: filters.gradient_flow(eta)(lam, t), (0, 1, 2))(lam, t, eta)
    with mpmath.workdps(60):
        exact = [
            mpmath.diff(lambda lam, t, eta: flow(lam, eta * t), (mpmath.mpf(lam or 1e-30), t, eta), order)
            for order in ((1, 0, 0), (0, 1, 0), (0, 0, 1))
        ]
    np.testing.assert_allclose(gradient, [float(value) for value in exact], rtol=1e-9, atol=1e-15)


def test_flow_differentiates_at_the_end():
    gradient = jax.grad(lambda lam, t, eta: filters.gradient_flow(eta)(lam, t), (0, 1, 2))(2.0, INF, 1.0)
    np.testing.assert_allclose(gradient, [-0.25, 0.0, 0.0])


@pytest.mark.parametrize(
    "filter",
    [filters.gradient_flow(0.5), filters.gradient_descent(0.5), filters.momentum(0.5, 0.3), filters.ridge(0.1)],
)
def test_single_precision_stays_so(filter):
    lam = jnp.array([0.0, 1e-6, 0.3, 2.0], jnp.float32)
    value = filter(lam, 5.0)
    assert value.dtype == jnp.float32
    np.testing.assert_allclose(value, filter(lam.astype(jnp.float64), 5.0), rtol=2e-6)


def test_largest_rate():
    matrix = np.array([[2.0, 1.0], [1.0, 2.0]])
    np.testing.assert_allclose(filters.max_learning_rate(matrix), 2 / 3)
    np.testing.assert_allclose(filters.max_learning_rate(3.0, beta=0.5, size=4), 4.0)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: filters.gradient_flow(0.0), "learning_rate"),
        (lambda: filters.gradient_descent(-1.0), "learning_rate"),
        (lambda: filters.momentum(1.0, 1.0), "beta"),
        (lambda: filters.ridge(0.0), "lam"),
        (lambda: filters.max_learning_rate(jnp.ones((2, 3))), "theta"),
        (lambda: filters.gradient_flow().checked_time(None), "training time"),
        (lambda: filters.gradient_flow().checked_time(-1.0), "negative"),
        (lambda: filters.gradient_flow().checked_time(np.nan), "negative"),
        (lambda: filters.gradient_flow().checked_time(np.zeros((2, 2))), "vector"),
        (lambda: filters.gradient_descent(1.0).checked_time(1.5), "whole number of steps"),
        (lambda: filters.converged().checked_time(3.0), "inf"),
    ],
)
def test_refusals(call, says):
    with pytest.raises(ValueError, match=says):
        call()
