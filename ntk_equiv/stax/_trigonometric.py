"""Sine and cosine, φ(x) = a sin(b x + c).

E[φφ]   = (a²/2)  [ e⁻ − cos(2c) e⁺ ]
E[φ'φ'] = (a²b²/2)[ e⁻ + cos(2c) e⁺ ],        e^∓ = exp(−b² (q + q' ∓ 2k) / 2)

The smaller exponential is the larger one, e, times 1 − h, with h = 1 − exp(−2b²|k|) = 2t / (1 + t), t = tanh(b²|k|).
In terms of h nothing cancels at small variances:

    E[φφ]   = a² e   [ sin²c + cos(2c) h/2 ],    E[φ'φ'] = a²b² e [ cos²c − cos(2c) h/2 ]      for k ≥ 0
    E[φφ]   = a² e   [ sin²c − h/2 ],            E[φ'φ'] = a²b² e [ cos²c − h/2 ]              for k < 0

A cosine is a sine with c a quarter of a period ahead, which exchanges sin²c and cos²c and turns the sign of cos(2c).
"""

from typing import Any

import jax.numpy as jnp

from ntk_equiv._check import scalar
from ntk_equiv._typing import Array, Scalar
from ntk_equiv.stax._certificate import Certificate
from ntk_equiv.stax._gap import squared_distance
from ntk_equiv.stax._network import Network, without_parameters
from ntk_equiv.stax._rule import SmoothActivation, rule, static
from ntk_equiv.stax._state import in_precision


@rule
class Sinusoid(SmoothActivation):
    """A sine of any amplitude, frequency and phase."""

    a: Any
    b: Any
    c: Any
    extreme = True

    cosine: bool = static(default=False)

    @property
    def certificate(self) -> Certificate:
        """Smooth; Hermite coefficients are those of the exponential times a phase that no variance changes."""
        return Certificate(dot_product=True, nonnegative=True, smooth=True)

    def value(self, x: Array) -> Array:
        """The activation itself."""
        a, b, c = (in_precision(p, x) for p in (self.a, self.b, self.c))
        return a * (jnp.cos if self.cosine else jnp.sin)(b * x + c)

    def dual(self, k: Array, gap: Array, left: dict[str, Array], right: dict[str, Array]) -> tuple[Array, ...]:
        a, b, c = (jnp.asarray(p, k.dtype) for p in (self.a, self.b, self.c))
        squares = jnp.square(jnp.sin(c)), jnp.square(jnp.cos(c))
        low, high = reversed(squares) if self.cosine else squares
        far = gap > 1
        k, gap = jnp.where(far, -k, k), jnp.minimum(gap, 2 - gap)
        nearer = squared_distance(k, gap, left["q"], left["root"], right["q"], right["root"])
        exponential = a**2 * jnp.exp(-(b**2) / 2 * nearer)
        tanh = jnp.tanh(b**2 * k)
        change = jnp.where(far, -1, low - high) * (tanh / (1 + tanh))
        return exponential * jnp.where(far, low + change, low - change), b**2 * exponential * (high + change)


def Sin(a: Scalar = 1.0, b: Scalar = 1.0, c: Scalar = 0.0) -> Network:
    """Sine `a * sin(b * x + c)`.

    Args:
        a: amplitude.
        b: frequency.
        c: phase.

    Example:
        >>> from ntk_equiv import stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(1), Sin(), stax.Dense(1))
        >>> print(kernel_fn(jnp.ones((1, 1)), None, "nngp").round(6))  # (1 − e⁻²) / 2
        [[0.432332]]
    """
    sine = Sinusoid(scalar(a, "a"), scalar(b, "b"), scalar(c, "c"))
    return without_parameters(lambda shape: shape, sine.value, sine)


def Cos(a: Scalar = 1.0, b: Scalar = 1.0, c: Scalar = 0.0) -> Network:
    """Cosine `a * cos(b * x + c)`.

    Example:
        >>> _, apply_fn, _ = Cos()
        >>> print(apply_fn((), jnp.zeros((1, 1))))
        [[1.]]
    """
    cosine = Sinusoid(scalar(a, "a"), scalar(b, "b"), scalar(c, "c"), cosine=True)
    return without_parameters(lambda shape: shape, cosine.value, cosine)
