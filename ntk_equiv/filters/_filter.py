"""Filters: how training acts on one eigenvalue. Each is a class, and beside it the function that makes and checks it.

    φ_t(λ)                               `filter(lam, t)`
    η, β, λ₀                             `learning_rate`, `beta`, `lam` of `Ridge`
    the largest λ that does not diverge  `filter.largest_eigenvalue`

The formulas are in `ntk_equiv.filters`. At t = ∞ they are 1/λ, for `Ridge` 1/(λ + λ₀), with 1/0 = ∞: whoever uses a
filter decides what becomes of the null space. Steps that are too large for training to end give NaN there.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ntk_equiv._check import describe, is_concrete, is_number, positive_integer, real_array, refusal
from ntk_equiv._pytrees import dataclass_pytree
from ntk_equiv._typing import Array, Scalar

END = float("inf")
T = TypeVar("T")


class Dynamics(NamedTuple):
    """The linear dynamics whose solution at time t, from u = 0, is u = φ_t(A)b. Iterative solvers need it.

        u' = rate · (b − (A + shift) u)                                       if time is continuous
        u_(t+1) = u_t + rate · (b − A u_t) + friction · (u_t − u_(t−1))       in steps

    Attributes:
        rate: in front of the residual; infinite for training that has ended.
        shift: added to the matrix.
        friction: the momentum.
        in_steps: whether time counts steps.
    """

    rate: float
    shift: float = 0.0
    friction: float = 0.0
    in_steps: bool = False


class Filter(ABC):
    """A filter φ_t(λ). Call it with arrays of λ ≥ 0 and t that broadcast. A pytree whose leaves are rates.

    Attributes:
        default_time: the time that is meant when none is given; None if one has to be given.
        in_steps: whether time counts whole steps.

    Example:
        >>> from ntk_equiv import filters
        >>> phi = filters.gradient_flow(learning_rate=0.5)
        >>> float(phi(0.0, 3.0)), float(phi(4.0, float("inf")))
        (1.5, 0.25)
    """

    default_time: ClassVar[float | None] = None
    in_steps: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, lam: Any, t: Any, /) -> jax.Array:
        """φ_t(λ)."""

    @property
    def largest_eigenvalue(self) -> Any:
        """The largest λ at which training does not diverge, but oscillates for ever; None if there is no limit."""
        return None

    @property
    def shift_at_end(self) -> Any:
        """λ₀, if φ = 1/(λ + λ₀) at the time that is meant when none is given; else None."""
        return None

    def dynamics(self, entries: int) -> Dynamics | None:
        """Return the dynamics behind φ_t(λ/s)/s, for a loss that is a mean over s entries; None if none is known."""
        return None

    def checked_time(self, t: Any) -> Any:
        """Return `t`, or the default time; refuse a known time that is negative, or no number of steps."""
        t = self.default_time if t is None else t
        if t is None:
            fix = "Pass t, a number, an array of numbers, or inf."
            raise refusal("t", expected=f"a training time for {self}", got="none", fix=fix)
        if is_concrete(t):
            known = np.asarray(t)
            if not (np.issubdtype(known.dtype, np.number) and np.isrealobj(known)) or known.ndim > 1 or not known.size:
                fix = "Times are one number or a list of them."
                raise refusal("t", expected="a real number or a vector of them", got=repr(t), fix=fix)
            if not (known >= 0).all():
                raise refusal("t", expected="no negative time", got=repr(t), fix="Training starts at t = 0.")
            if self.in_steps and not (np.isinf(known) | (known == np.floor(known))).all():
                fix = "Time counts steps here; for times in between use `gradient_flow`."
                raise refusal("t", expected="a whole number of steps", got=repr(t), fix=fix)
        return t


@dataclass_transform(frozen_default=True)
def _filter(cls: type[T]) -> type[T]:
    return dataclass_pytree(dataclasses.dataclass(frozen=True)(cls))


@_filter
class GradientFlow(Filter):
    """Gradient descent with infinitely small steps."""

    learning_rate: Any

    def __call__(self, lam: Any, t: Any, /) -> jax.Array:
        """(1 − e^(−ηλt)) / λ."""
        lam, t = _as_floats(lam, t)
        ended = jnp.isinf(self.learning_rate * t)
        elapsed = self.learning_rate * jnp.where(ended, 0, t)
        return _inverse_where(ended, lam, elapsed * _saturation(elapsed * lam))

    def dynamics(self, entries: int) -> Dynamics:
        """U' = (η/s)(b − Au)."""
        return Dynamics(float(self.learning_rate) / entries)


def gradient_flow(learning_rate: Scalar = 1.0) -> Filter:
    """Train by gradient descent with infinitely small steps, φ_t(λ) = (1 − e^(−ηλt))/λ; the paper's training.

    Args:
        learning_rate: η, which only sets the unit of time.

    Example:
        >>> from ntk_equiv import filters
        >>> print(filters.gradient_flow()(2.0, 0.5).round(6))
        0.31606
    """
    return GradientFlow(_check_positive(learning_rate, "learning_rate"))


@_filter
class GradientDescent(Filter):
    """Gradient descent in steps."""

    learning_rate: Any
    in_steps: ClassVar[bool] = True

    def __call__(self, lam: Any, t: Any, /) -> jax.Array:
        """(1 − (1 − ηλ)^t) / λ."""
        lam, t = _as_floats(lam, t)
        step = self.learning_rate * lam
        steps = jnp.where(jnp.isinf(t), 0, t)
        # Where a step is small, the power is close to one and its logarithm is what is known precisely.
        small, large = jnp.where(step < 0.5, step, 0), jnp.where(step < 0.5, 1, step)
        gradual = steps * _saturation(-steps * jnp.log1p(-small)) * _slope(small)
        abrupt = (1 - jnp.power(1 - large, steps)) / large
        phi = _inverse_where(jnp.isinf(t), lam, self.learning_rate * jnp.where(step < 0.5, gradual, abrupt))
        return jnp.where(jnp.isinf(t) & (lam >= self.largest_eigenvalue), jnp.nan, phi)

    @property
    def largest_eigenvalue(self) -> Any:
        """2/η."""
        return 2 / self.learning_rate

    def dynamics(self, entries: int) -> Dynamics:
        """Steps along (η/s)(b − Au)."""
        return Dynamics(float(self.learning_rate) / entries, in_steps=True)


def gradient_descent(learning_rate: Scalar) -> Filter:
    """Train by gradient descent in steps, φ_t(λ) = (1 − (1 − ηλ)^t)/λ with t the number of steps.

    An ensemble refuses a rate that makes it diverge, ηλ > 2 for some eigenvalue λ of its Gram matrix.

    Args:
        learning_rate: η, the size of a step.

    Example:
        >>> from ntk_equiv import filters
        >>> print(filters.gradient_descent(0.5)(1.0, 3), filters.gradient_descent(0.5)(0.0, 3))
        0.875 1.5
    """
    return GradientDescent(_check_positive(learning_rate, "learning_rate"))


@_filter
class Momentum(Filter):
    """Heavy ball: w ← w − η∇L + β(w − w of the step before)."""

    learning_rate: Any
    beta: Any
    in_steps: ClassVar[bool] = True

    def __call__(self, lam: Any, t: Any, /) -> jax.Array:
        """φ_t of the recursion, by squaring its step: 64 products whatever t is."""
        lam, t = jnp.broadcast_arrays(*_as_floats(lam, t))
        steps = jnp.where(jnp.isinf(t), 0, t)
        # With v = φ_k − φ_(k−1), a step takes (φ, v) to M (φ, v) + c, and no large numbers cancel in powers of M.
        z, beta, zero = self.learning_rate * lam, jnp.full_like(lam, self.beta), jnp.zeros_like(lam)
        M, c = ((1 - z, beta), (-z, beta)), (zero + self.learning_rate,) * 2
        _, _, (phi, _), _ = jax.lax.fori_loop(0, 64, _take_bit, (M, c, (zero, zero), steps))
        phi = _inverse_where(jnp.isinf(t), lam, phi)
        return jnp.where(jnp.isinf(t) & (lam >= self.largest_eigenvalue), jnp.nan, phi)

    @property
    def largest_eigenvalue(self) -> Any:
        """2(1+β)/η."""
        return 2 * (1 + self.beta) / self.learning_rate

    def dynamics(self, entries: int) -> Dynamics:
        """Steps along (η/s)(b − Au), with momentum β."""
        return Dynamics(float(self.learning_rate) / entries, friction=float(self.beta), in_steps=True)


def momentum(learning_rate: Scalar, beta: Scalar) -> Filter:
    """Train by heavy-ball descent in steps: w ← w − η∇L + β(w − w of the step before), as `optax.sgd(η, momentum=β)`.

    Args:
        learning_rate: η.
        beta: β, at least 0 and below 1.

    Example:
        >>> from ntk_equiv import filters
        >>> print(filters.momentum(0.5, 0.5)(1.0, 2), filters.momentum(0.5, 0.0)(1.0, 3))
        1.0 0.875
    """
    return Momentum(_check_positive(learning_rate, "learning_rate"), _check_friction(beta))


@_filter
class MomentumFlow(Filter):
    """Heavy ball with infinitely small steps: w'' + γw' = −∇L in the time s = √η t, with γ = (1−β)/√η."""

    learning_rate: Any
    beta: Any

    def __call__(self, lam: Any, t: Any, /) -> jax.Array:
        """∫ e^(−γσ/2) sinh(δσ)/δ dσ from 0 to s, with δ² = γ²/4 − λ: a damped oscillation that is pushed."""
        lam, t = jnp.broadcast_arrays(*_as_floats(lam, t))
        ended = jnp.isinf(t)
        root = jnp.sqrt(jnp.asarray(self.learning_rate, lam.dtype))
        elapsed, half = jnp.where(ended, 0, t) * root, (1 - self.beta) / (2 * root)
        return _inverse_where(ended, lam, _pushed_oscillation(lam, elapsed, half))


def momentum_flow(learning_rate: Scalar, beta: Scalar) -> Filter:
    """Train by heavy-ball descent with infinitely small steps, as `predict.gradient_descent` of neural-tangents does.

    Up to the time t, the flow w'' + γw' = −∇L with γ = (1−β)/√η is followed for √η t. For small η that is what
    `momentum` does in t steps.

    Args:
        learning_rate: η.
        beta: β, at least 0 and below 1.

    Example:
        >>> from ntk_equiv import filters
        >>> print(filters.momentum_flow(1e-4, 0.9)(2.0, 500).round(3), filters.momentum(1e-4, 0.9)(2.0, 500).round(3))
        0.316 0.316
    """
    return MomentumFlow(_check_positive(learning_rate, "learning_rate"), _check_friction(beta))


@_filter
class Ridge(Filter):
    """Gradient flow of the loss with ½λ₀‖w − w_0‖² added, which pulls towards the *initial* weights."""

    lam: Any
    learning_rate: Any
    default_time: ClassVar[float | None] = END

    def __call__(self, lam: Any, t: Any, /) -> jax.Array:
        """(1 − e^(−η(λ+λ₀)t)) / (λ+λ₀)."""
        return GradientFlow(self.learning_rate)(jnp.asarray(lam) + self.lam, t)

    @property
    def shift_at_end(self) -> Any:
        """λ₀."""
        return self.lam

    def dynamics(self, entries: int) -> Dynamics:
        """U' = (η/s)(b − (A + sλ₀)u)."""
        return Dynamics(float(self.learning_rate) / entries, shift=float(self.lam) * entries)


def ridge(lam: Scalar, learning_rate: Scalar = 1.0) -> Filter:
    """Train with a penalty ½λ₀‖w − w_0‖² on leaving the initial weights; t = ∞ unless given.

    Args:
        lam: λ₀. Under `reduction="mean"` it is weighed against the mean loss.
        learning_rate: η, for earlier times.

    Example:
        >>> from ntk_equiv import filters
        >>> print(filters.ridge(0.5)(1.5, float("inf")))
        0.5
    """
    return Ridge(_check_positive(lam, "lam"), _check_positive(learning_rate, "learning_rate"))


@_filter
class Converged(Filter):
    """Training to the end: the pseudo-inverse."""

    default_time: ClassVar[float | None] = END

    def __call__(self, lam: Any, t: Any, /) -> jax.Array:
        """1 / λ, infinite at 0."""
        lam, t = jnp.broadcast_arrays(*_as_floats(lam, t))
        return _inverse_where(jnp.full_like(t, True, dtype=bool), lam, lam)

    @property
    def shift_at_end(self) -> Any:
        """0."""
        return 0.0

    def dynamics(self, entries: int) -> Dynamics:
        """The end of training, at whatever rate."""
        return Dynamics(END)

    def checked_time(self, t: Any) -> Any:
        """Infinity, the only time at which training has converged."""
        t = super().checked_time(t)
        if is_concrete(t) and not np.isinf(t).all():
            fix = "Leave t out; for earlier times use `gradient_flow`."
            raise refusal("t", expected="inf for `converged`", got=repr(t), fix=fix)
        return t


def converged() -> Filter:
    """Train to the end, φ(λ) = 1/λ: the pseudo-inverse on the numerical range of the Gram matrix.

    Example:
        >>> from ntk_equiv import filters
        >>> print(filters.converged()(4.0, float("inf")))
        0.25
    """
    return Converged()


@_filter
class Custom(Filter):
    """A filter given as a function."""

    function: Callable = dataclasses.field(metadata={"static": True})

    def __call__(self, lam: Any, t: Any, /) -> jax.Array:
        """The function's value."""
        return jnp.asarray(self.function(*_as_floats(lam, t)))


def custom(function: Callable[[Any, Any], Any]) -> Filter:
    """Make a filter of any function φ(λ, t) of arrays that broadcast. Where it is infinite, at λ = 0, it is left out.

    Example:
        >>> from ntk_equiv import filters
        >>> two_terms = filters.custom(lambda lam, t: t * (1 - lam * t / 2))
        >>> print(two_terms(0.5, 1.0))
        0.75
    """
    if isinstance(function, Filter):
        return function
    uncalled = any(
        function is kind for kind in (gradient_flow, gradient_descent, momentum, momentum_flow, ridge, converged)
    )
    if uncalled or not callable(function):
        fix = "Pass a function φ(λ, t), or a filter: called, with its rate, as in `filters.gradient_flow(1.0)`."
        raise refusal("filter", expected="a filter or a function", got=describe(function), fix=fix, kind=TypeError)
    return Custom(function)


def max_learning_rate(theta: Any, *, beta: Scalar = 0.0, size: int = 1) -> Float[Array, ""]:
    """Return the largest rate at which descent on a given Gram matrix does not diverge, 2(1+β)·size/λ_max.

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
    theta, size, beta = jnp.asarray(real_array(theta, "theta")), positive_integer(size, "size"), _check_friction(beta)
    if theta.ndim not in (0, 2) or (theta.ndim == 2 and theta.shape[0] != theta.shape[1]):
        fix = "With outputs on a grid, join samples and positions first, or pass the largest eigenvalue."
        raise refusal("theta", expected="a square matrix or a number", got=f"shape {theta.shape}", fix=fix)
    largest = theta if theta.ndim == 0 else jnp.linalg.eigvalsh(theta)[-1]
    return 2 * (1 + beta) * size / largest


def _check_positive(value: Scalar, argument: str) -> Scalar:
    if not is_number(value) or (is_concrete(value) and not 0 < float(value) < END):
        raise refusal(argument, expected="a positive number", got=repr(value), fix="Zero would train nothing.")
    return value


def _check_friction(beta: Scalar) -> Scalar:
    if not is_number(beta) or (is_concrete(beta) and not 0 <= float(beta) < 1):
        fix = "Without friction, at 1, the ball would roll for ever."
        raise refusal("beta", expected="at least 0 and below 1", got=repr(beta), fix=fix)
    return beta


# The scalar functions that filters are made of, precise where their textbook forms are not:
#
#     (1 − e^(−u))/u     `_saturation`      gradient flow, and descent in small steps
#     −log(1 − z)/z      `_slope`           descent in small steps: (1 − z)^t = e^(−tz·slope(z))
#     M^t by squaring    `_take_bit`        momentum, one bit of t at a time
#     1/λ at t = ∞       `_inverse_where`   all of them
#     a damped oscillation `_pushed_oscillation`      momentum in infinitely small steps
#
# Functions with a `where` evaluate both branches at harmless values, because the derivative of a branch that is not
# taken must be finite too.


def _as_floats(lam: Any, t: Any) -> tuple[jax.Array, jax.Array]:
    """Return both in the precision of λ."""
    lam = jnp.asarray(lam)
    lam = lam if jnp.issubdtype(lam.dtype, jnp.inexact) else lam.astype(float)
    return lam, jnp.asarray(t, lam.dtype)


def _inverse_where(ended: jax.Array, lam: jax.Array, value: jax.Array) -> jax.Array:
    """Return 1/λ where training has ended, `value` elsewhere."""
    positive = jnp.where(lam > 0, lam, 1)
    return jnp.where(ended, jnp.where(lam > 0, 1 / positive, jnp.inf), value)


def _saturation(u: jax.Array) -> jax.Array:
    """Return (1 − e^(−u))/u, smooth at 0."""
    away = jnp.where(u < 1e-3, 1, u)
    near = jnp.where(u < 1e-3, u, 0)
    return jnp.where(u < 1e-3, 1 - near / 2 * (1 - near / 3 * (1 - near / 4)), -jnp.expm1(-away) / away)


def _slope(z: jax.Array) -> jax.Array:
    """Return −log(1 − z)/z for z < 1, smooth at 0."""
    away = jnp.where(z < 1e-3, 0.5, z)
    near = jnp.where(z < 1e-3, z, 0)
    series = 1 + near * (1 / 2 + near * (1 / 3 + near * (1 / 4 + near / 5)))
    return jnp.where(z < 1e-3, series, -jnp.log1p(-away) / away)


def _take_bit(_: Any, carry: tuple) -> tuple:
    """Use one bit of the number of steps: take the step if the bit is set, then make the step twice as long."""
    ((a, b), (c, d)), (p, q), (u, v), steps = carry
    odd = jnp.mod(steps, 2) == 1
    u, v = jnp.where(odd, a * u + b * v + p, u), jnp.where(odd, c * u + d * v + q, v)
    twice = ((a * a + b * c, b * (a + d)), (c * (a + d), d * d + b * c))
    return twice, (a * p + b * q + p, c * p + d * q + q), (u, v), jnp.floor(steps / 2)


# Terms of the series of `_pushed_oscillation`.
TERMS = 9


def _pushed_oscillation(lam: jax.Array, s: jax.Array, half: jax.Array) -> jax.Array:
    """Return the solution at time s of u'' + 2·half·u' + λu = 1 from rest at u = 0.

    With δ² = half² − λ it is [S(half − δ) − S(half + δ)]/2δ, S(k) = (1 − e^(−ks))/k. Where the difference would
    cancel, it is the series Σ_j δ^(2j)/half^(2j+2) P(2j+2, half·s), with P the regularised incomplete gamma function.
    """
    square = half**2 - lam
    size = jnp.sqrt(jnp.abs(square))
    near = (size * s < 1) | (size < 0.1 * half)
    terms = [
        jnp.where(near, square, 0) ** j / half ** (2 * j + 2) * jax.scipy.special.gammainc(2.0 * j + 2, half * s)
        for j in range(TERMS)
    ]
    # One formula for both signs of δ², in complex numbers; half − δ as λ/(half + δ), where it would cancel.
    delta = jnp.where(near, 1, size) * jnp.where(square >= 0, 1, 1j)
    fast = half + delta
    slow = jnp.where(square >= 0, lam / fast, half - delta)
    far = ((_complex_saturation(slow, s) - _complex_saturation(fast, s)) / (2 * delta)).real
    return jnp.where(near, sum(terms), far)


def _complex_saturation(k: jax.Array, s: jax.Array) -> jax.Array:
    """Return (1 − e^(−ks))/k, with the limit s at k = 0."""
    small = jnp.abs(k) * s < 1e-8
    return jnp.where(small, s * (1 - k * s / 2), -jnp.expm1(-jnp.where(small, 1, k) * s) / jnp.where(small, 1, k))
