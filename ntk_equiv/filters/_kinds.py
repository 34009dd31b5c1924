"""The kinds of filters: one class each, whose fields are its rates and whose call is φ_t(λ).

    φ_t(λ)                               `filter(lam, t)`
    η, β, λ₀                             `learning_rate`, `beta`, `lam` of `Ridge`
    the largest λ that does not diverge  `filter.largest_eigenvalue`

The formulas are in `ntk_equiv.filters`. At t = ∞ they are 1/λ, of `Ridge` 1/(λ + λ₀), with 1/0 = ∞: whoever uses a
filter decides what becomes of the null space. Steps that are too large to end there give NaN.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv._check import is_concrete, refusal
from ntk_equiv._pytrees import dataclass_pytree
from ntk_equiv.filters._numerics import doubled, floats, inverse_where, saturation, slope

END = float("inf")
T = TypeVar("T")


class Filter(ABC):
    """φ_t(λ), a pytree whose leaves are rates. Call it with arrays of λ ≥ 0 and t that broadcast.

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
        """Up to which λ training does not diverge; None if there is no limit. At this λ it oscillates for ever."""
        return None

    @property
    def shift_at_end(self) -> Any:
        """λ₀, if φ = 1/(λ + λ₀) at the time that is meant when none is given; else None."""
        return None

    def checked_time(self, t: Any) -> Any:
        """`t`, or the default time; refused if it is negative, or no number of steps, where it is known."""
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
        lam, t = floats(lam, t)
        ended = jnp.isinf(self.learning_rate * t)
        elapsed = self.learning_rate * jnp.where(ended, 0, t)
        return inverse_where(ended, lam, elapsed * saturation(elapsed * lam))


@_filter
class GradientDescent(Filter):
    """Gradient descent in steps."""

    learning_rate: Any
    in_steps: ClassVar[bool] = True

    def __call__(self, lam: Any, t: Any, /) -> jax.Array:
        """(1 − (1 − ηλ)^t) / λ."""
        lam, t = floats(lam, t)
        step = self.learning_rate * lam
        steps = jnp.where(jnp.isinf(t), 0, t)
        # Where a step is small, the power is close to one and its logarithm is what is known precisely.
        small, large = jnp.where(step < 0.5, step, 0), jnp.where(step < 0.5, 1, step)
        gradual = steps * saturation(-steps * jnp.log1p(-small)) * slope(small)
        abrupt = (1 - jnp.power(1 - large, steps)) / large
        phi = inverse_where(jnp.isinf(t), lam, self.learning_rate * jnp.where(step < 0.5, gradual, abrupt))
        return jnp.where(jnp.isinf(t) & (lam >= self.largest_eigenvalue), jnp.nan, phi)

    @property
    def largest_eigenvalue(self) -> Any:
        """2/η."""
        return 2 / self.learning_rate


@_filter
class Momentum(Filter):
    """Heavy ball: w ← w − η∇L + β(w − w of the step before)."""

    learning_rate: Any
    beta: Any
    in_steps: ClassVar[bool] = True

    def __call__(self, lam: Any, t: Any, /) -> jax.Array:
        """φ_t of the recursion, by squaring its step: 64 products whatever t is."""
        lam, t = jnp.broadcast_arrays(*floats(lam, t))
        steps = jnp.where(jnp.isinf(t), 0, t)
        # With v = φ_k − φ_(k−1), a step takes (φ, v) to M (φ, v) + c, and no large numbers cancel in powers of M.
        z, beta, zero = self.learning_rate * lam, jnp.full_like(lam, self.beta), jnp.zeros_like(lam)
        M, c = ((1 - z, beta), (-z, beta)), (zero + self.learning_rate,) * 2
        _, _, (phi, _), _ = jax.lax.fori_loop(0, 64, doubled, (M, c, (zero, zero), steps))
        phi = inverse_where(jnp.isinf(t), lam, phi)
        return jnp.where(jnp.isinf(t) & (lam >= self.largest_eigenvalue), jnp.nan, phi)

    @property
    def largest_eigenvalue(self) -> Any:
        """2(1+β)/η."""
        return 2 * (1 + self.beta) / self.learning_rate


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


@_filter
class Converged(Filter):
    """Training to the end: the pseudo-inverse."""

    default_time: ClassVar[float | None] = END

    def __call__(self, lam: Any, t: Any, /) -> jax.Array:
        """1 / λ, infinite at 0."""
        lam, t = jnp.broadcast_arrays(*floats(lam, t))
        return inverse_where(jnp.full_like(t, True, dtype=bool), lam, lam)

    @property
    def shift_at_end(self) -> Any:
        """0."""
        return 0.0

    def checked_time(self, t: Any) -> Any:
        """Infinity, the only time at which training has converged."""
        t = super().checked_time(t)
        if is_concrete(t) and not np.isinf(t).all():
            fix = "Leave t out; for earlier times use `gradient_flow`."
            raise refusal("t", expected="inf for `converged`", got=repr(t), fix=fix)
        return t


@_filter
class Custom(Filter):
    """A filter given as a function."""

    function: Callable = dataclasses.field(metadata={"static": True})

    def __call__(self, lam: Any, t: Any, /) -> jax.Array:
        """The function's value."""
        return jnp.asarray(self.function(*floats(lam, t)))
