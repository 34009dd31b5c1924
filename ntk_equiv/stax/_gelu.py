"""The Gaussian error linear unit, φ(x) = x Φ(x), with Φ the standard normal distribution function.

With s = 1/√(1 + q), z = k s s' and Δ = √((1 + q)(1 + q') − k²) = √(1 − z²) / (s s'), Stein's lemma gives

    E[φφ]   = k/4 + k arcsin(z)/2π + (k² + q q' Δ²) s² s'² / (2π Δ)
    E[φ'φ'] = 1/4 + arcsin(z)/2π + k (1/Δ² + (1 − q q') s² s'² + 1) / (2π Δ)

With D = √(1 − z²), computed as in `_gap`, so that neither q q' nor Δ overflows or cancels,

    (k² + q q' Δ²) s² s'² / Δ                =  q s q' s' D + z² s s' / D
    k (1/Δ² + (1 − q q') s² s'² + 1) / Δ     =  z/D [ (s s'/D)² + s² + s'² ]
"""

import math

import jax
import jax.numpy as jnp

from ntk_equiv._check import boolean
from ntk_equiv._typing import Array
from ntk_equiv.stax._arc import arcsin
from ntk_equiv.stax._certificate import EVERYTHING, Certificate
from ntk_equiv.stax._gap import complement, saturation
from ntk_equiv.stax._network import Network, without_parameters
from ntk_equiv.stax._rule import SmoothActivation, rule


@rule
class GaussianErrorUnit(SmoothActivation):
    """x Φ(x)."""

    @property
    def certificate(self) -> Certificate:
        """Smooth, and the signs of its Hermite coefficients do not depend on the variance."""
        return EVERYTHING

    def scales(self, q: Array, root: Array) -> dict[str, Array]:
        scales = super().scales(q, root) | saturation(jnp.ones((), q.dtype), q, root)
        return scales | {"bulk": jnp.where(jnp.isinf(q), root, q * scales["scale"])}

    def deviation(self, root: Array) -> Array:
        # Half the identity at small variances, a rectifier at large ones.
        return jnp.where(root < 1, 1 / 2, math.sqrt(1 / 2)) * root

    def dual(self, k: Array, gap: Array, left: dict[str, Array], right: dict[str, Array]) -> tuple[Array, ...]:
        root, inverse = complement(gap, left, right)
        z = (k * left["scale"]) * right["scale"]
        quarter = 0.25 + arcsin(z, root) / (2 * jnp.pi)
        inverse_delta = left["scale"] * inverse * right["scale"]
        bulk = left["bulk"] * root * right["bulk"]
        nngp = k * quarter + (bulk + z**2 * inverse_delta) / (2 * jnp.pi)
        bend = inverse_delta**2 + left["plain"] + right["plain"]
        return nngp, quarter + z * inverse * bend / (2 * jnp.pi)


def Gelu(approximate: bool = False) -> Network:
    """Gaussian error linear unit `x * Φ(x)`.

    Args:
        approximate: whether the finite network uses the approximation by `tanh`; the kernels are always exact.

    Example:
        >>> _, apply_fn, _ = Gelu()
        >>> print(apply_fn((), jnp.array([[0.0, 10.0]])))
        [[ 0. 10.]]
    """
    approximate = boolean(approximate, "approximate")
    return without_parameters(
        lambda shape: shape, lambda x: jax.nn.gelu(x, approximate=approximate), GaussianErrorUnit()
    )
