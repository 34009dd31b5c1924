"""Filters by name, with their parameters checked."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from ntk_equiv._check import is_concrete, is_number, positive_integer, real_array, refusal, shown
from ntk_equiv._typing import Scalar
from ntk_equiv.filters._kinds import END, Converged, Custom, Filter, GradientDescent, GradientFlow, Momentum, Ridge


def gradient_flow(learning_rate: Scalar = 1.0) -> Filter:
    """Gradient descent with infinitely small steps, φ_t(λ) = (1 − e^(−ηλt))/λ; the paper's training.

    Args:
        learning_rate: η, which only sets the unit of time.

    Example:
        >>> from ntk_equiv import filters
        >>> print(filters.gradient_flow()(2.0, 0.5).round(6))
        0.31606
    """
    return GradientFlow(_positive(learning_rate, "learning_rate"))


def gradient_descent(learning_rate: Scalar) -> Filter:
    """Gradient descent in steps, φ_t(λ) = (1 − (1 − ηλ)^t)/λ with t the number of steps.

    An ensemble refuses a rate that makes it diverge, ηλ > 2 for some eigenvalue λ of its Gram matrix.

    Args:
        learning_rate: η, the size of a step.

    Example:
        >>> from ntk_equiv import filters
        >>> print(filters.gradient_descent(0.5)(1.0, 3), filters.gradient_descent(0.5)(0.0, 3))
        0.875 1.5
    """
    return GradientDescent(_positive(learning_rate, "learning_rate"))


def momentum(learning_rate: Scalar, beta: Scalar) -> Filter:
    """Heavy-ball descent in steps: w ← w − η∇L + β(w − w of the step before), as `optax.sgd(η, momentum=β)`.

    Args:
        learning_rate: η.
        beta: β, at least 0 and below 1.

    Example:
        >>> from ntk_equiv import filters
        >>> print(filters.momentum(0.5, 0.5)(1.0, 2), filters.momentum(0.5, 0.0)(1.0, 3))
        1.0 0.875
    """
    return Momentum(_positive(learning_rate, "learning_rate"), _friction(beta))


def ridge(lam: Scalar, learning_rate: Scalar = 1.0) -> Filter:
    """Training with a penalty ½λ₀‖w − w_0‖² on leaving the initial weights; t = ∞ unless given.

    Args:
        lam: λ₀. Under `reduction="mean"` it is weighed against the mean loss.
        learning_rate: η, for earlier times.

    Example:
        >>> from ntk_equiv import filters
        >>> print(filters.ridge(0.5)(1.5, float("inf")))
        0.5
    """
    return Ridge(_positive(lam, "lam"), _positive(learning_rate, "learning_rate"))


def converged() -> Filter:
    """Training to the end, φ(λ) = 1/λ: the pseudo-inverse on the numerical range of the Gram matrix.

    Example:
        >>> from ntk_equiv import filters
        >>> print(filters.converged()(4.0, float("inf")))
        0.25
    """
    return Converged()


def custom(function: Callable[[Any, Any], Any]) -> Filter:
    """Any function φ(λ, t) of arrays that broadcast, in JAX. It may be infinite at λ = 0, where it is then left out.

    Example:
        >>> from ntk_equiv import filters
        >>> two_terms = filters.custom(lambda lam, t: t * (1 - lam * t / 2))
        >>> print(two_terms(0.5, 1.0))
        0.75
    """
    if isinstance(function, Filter):
        return function
    uncalled = any(function is kind for kind in (gradient_flow, gradient_descent, momentum, ridge, converged))
    if uncalled or not callable(function):
        fix = "Pass a function φ(λ, t), or a filter: called, with its rate, as in `filters.gradient_flow(1.0)`."
        raise refusal("filter", expected="a filter or a function", got=shown(function), fix=fix, kind=TypeError)
    return Custom(function)


def max_learning_rate(theta: Any, *, beta: Scalar = 0.0, size: int = 1) -> Any:
    """The largest rate at which descent on a given Gram matrix does not diverge, 2(1+β)·size/λ_max.

    Args:
        theta: the Gram matrix Θ(X, X), [N, N], or its largest eigenvalue.
        beta: the momentum; 0 for plain descent.
        size: the number of entries of y under `reduction="mean"`, 1 under `reduction="sum"`.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import filters
        >>> print(filters.max_learning_rate(jnp.array([[2., 1.], [1., 2.]])).round(6))
        0.666667
    """
    theta, size, beta = jnp.asarray(real_array(theta, "theta")), positive_integer(size, "size"), _friction(beta)
    if theta.ndim not in (0, 2) or (theta.ndim == 2 and theta.shape[0] != theta.shape[1]):
        fix = "With outputs on a grid, join samples and positions first, or pass the largest eigenvalue."
        raise refusal("theta", expected="a square matrix or a number", got=f"shape {theta.shape}", fix=fix)
    largest = theta if theta.ndim == 0 else jnp.linalg.eigvalsh(theta)[-1]
    return 2 * (1 + beta) * size / largest


def _positive(value: Scalar, argument: str) -> Scalar:
    if not is_number(value) or (is_concrete(value) and not 0 < float(value) < END):
        raise refusal(argument, expected="a positive number", got=repr(value), fix="Zero would train nothing.")
    return value


def _friction(beta: Scalar) -> Scalar:
    if not is_number(beta) or (is_concrete(beta) and not 0 <= float(beta) < 1):
        fix = "Without friction, at 1, the ball would roll for ever."
        raise refusal("beta", expected="at least 0 and below 1", got=repr(beta), fix=fix)
    return beta
