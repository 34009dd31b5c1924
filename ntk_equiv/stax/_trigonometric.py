"""Sine and cosine, φ(x) = a sin(b x + c).

E[φφ]   = (a²/2)  [ e⁻ − cos(2c) e⁺ ]
E[φ'φ'] = (a²b²/2)[ e⁻ + cos(2c) e⁺ ],        e^∓ = exp(−b² (q + q' ∓ 2k) / 2)
"""

import math
from typing import Any

import jax.numpy as jnp

from ntk_equiv._check import scalar
from ntk_equiv._typing import Array, Scalar
from ntk_equiv.stax._certificate import Certificate
from ntk_equiv.stax._network import Network, without_parameters
from ntk_equiv.stax._rule import DualActivation, rule
from ntk_equiv.stax._state import in_precision


@rule
class Sinusoid(DualActivation):
    """A sine of any amplitude, frequency and phase."""

    a: Any
    b: Any
    c: Any

    @property
    def certificate(self) -> Certificate:
        """Smooth; Hermite coefficients are those of the exponential times a phase that no variance changes."""
        return Certificate(dot_product=True, nonnegative=True, smooth=True)

    def value(self, x: Array) -> Array:
        """The activation itself."""
        a, b, c = (in_precision(p, x) for p in (self.a, self.b, self.c))
        return a * jnp.sin(b * x + c)

    def second_moment(self, q: Array) -> Array:
        a, b, c = (jnp.asarray(p, q.dtype) for p in (self.a, self.b, self.c))
        return a**2 / 2 * (1 - jnp.cos(2 * c) * jnp.exp(-2 * b**2 * q))

    def dual(self, k: Array, left: dict[str, Array], right: dict[str, Array]) -> tuple[Array, Array]:
        a, b, c = (jnp.asarray(p, k.dtype) for p in (self.a, self.b, self.c))
        mean = (left["q"] + right["q"]) / 2
        difference = jnp.exp(-(b**2) * (mean - k))
        sum_ = jnp.cos(2 * c) * jnp.exp(-(b**2) * (mean + k))
        return a**2 / 2 * (difference - sum_), a**2 * b**2 / 2 * (difference + sum_)


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
    """Cosine `a * cos(b * x + c)`, the sine a quarter of a period ahead.

    Example:
        >>> _, apply_fn, _ = Cos()
        >>> print(apply_fn((), jnp.zeros((1, 1))))
        [[1.]]
    """
    return Sin(a, b, scalar(c, "c") + math.pi / 2)
