"""The Gaussian bell, φ(x) = a exp(b x²).

With s = 1/√(1 − 2bq), z = 2b k s s' and Δ = √((1 − 2bq)(1 − 2bq') − 4b²k²) = √(1 − z²) / (s s'),

    E[φφ]   = a² / Δ
    E[φ'φ'] = 4a²b² k / Δ³

where 1 − z² is computed as in `_gap`.
"""

from typing import Any

import jax.numpy as jnp

from ntk_equiv._check import scalar
from ntk_equiv._typing import Array, Scalar
from ntk_equiv.stax._certificate import EVERYTHING, Certificate
from ntk_equiv.stax._gap import complement, saturation
from ntk_equiv.stax._network import Network, without_parameters
from ntk_equiv.stax._rule import SmoothActivation, rule
from ntk_equiv.stax._state import in_precision


@rule
class Bell(SmoothActivation):
    """The exponential of a multiple of the square."""

    a: Any
    b: Any

    @property
    def certificate(self) -> Certificate:
        """1/√(1 − z²) is a power series in z² with positive coefficients, and z is proportional to the cosine."""
        return EVERYTHING

    def value(self, x: Array) -> Array:
        """The activation itself."""
        a, b = (in_precision(p, x) for p in (self.a, self.b))
        return a * jnp.exp(b * x**2)

    def scales(self, q: Array, root: Array) -> dict[str, Array]:
        return super().scales(q, root) | saturation(-2 * jnp.asarray(self.b, q.dtype), q, root)

    def dual(self, k: Array, gap: Array, left: dict[str, Array], right: dict[str, Array]) -> tuple[Array, ...]:
        a, b = (jnp.asarray(p, k.dtype) for p in (self.a, self.b))
        _, inverse = complement(gap, left, right)
        inverse_delta = left["scale"] * inverse * right["scale"]
        z = (k * left["scale"]) * right["scale"]
        return a**2 * inverse_delta, 4 * a**2 * b**2 * (z * inverse) * inverse_delta, inverse_delta


def Gaussian(a: Scalar = 1, b: Scalar = -1) -> Network:
    """Gaussian bell `a * exp(b * x**2)`.

    Args:
        a: height.
        b: minus the inverse squared width. With a positive `b` expectations exist while 4bq < 1 for the variance q of
            the preactivation; beyond that kernels are NaN.

    Example:
        >>> from ntk_equiv import stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(1), Gaussian(), stax.Dense(1))
        >>> print(kernel_fn(jnp.array([[2**0.5]]), None, "nngp").round(6))  # 1 / √(1 + 4 · 2)
        [[0.333333]]
    """
    bell = Bell(scalar(a, "a"), scalar(b, "b"))
    return without_parameters(lambda shape: shape, bell.value, bell)
