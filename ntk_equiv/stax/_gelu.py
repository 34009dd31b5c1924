"""The Gaussian error linear unit, φ(x) = x Φ(x), with Φ the standard normal distribution function.

With s = 1/√(1 + q), z = k s s' and Δ = √((1 + q)(1 + q') − k²) = √(1 − z²) / (s s'), Stein's lemma gives

    E[φφ]   = k/4 + k arcsin(z)/2π + (k² + q q' Δ²) s² s'² / (2π Δ)
    E[φ'φ'] = 1/4 + arcsin(z)/2π + k (1/Δ² + (1 − q q') s² s'² + 1) / (2π Δ)
"""

import jax
import jax.numpy as jnp

from ntk_equiv._check import boolean
from ntk_equiv._typing import Array
from ntk_equiv.stax._arc import arcsin
from ntk_equiv.stax._certificate import EVERYTHING, Certificate
from ntk_equiv.stax._network import Network, without_parameters
from ntk_equiv.stax._rule import DualActivation, rule


@rule
class GaussianErrorUnit(DualActivation):
    """x Φ(x)."""

    @property
    def certificate(self) -> Certificate:
        """Smooth, and the signs of its Hermite coefficients do not depend on the variance."""
        return EVERYTHING

    def factors(self, q: Array) -> dict[str, Array]:
        return {"q": q, "scale": jax.lax.rsqrt(1 + q)}

    def second_moment(self, q: Array) -> Array:
        factors = self.factors(q)
        return self.dual(q, factors, factors)[0]

    def dual(self, k: Array, left: dict[str, Array], right: dict[str, Array]) -> tuple[Array, Array]:
        scale = left["scale"] * right["scale"]
        z = k * scale
        inverse_delta = scale * jax.lax.rsqrt((1 - z) * (1 + z))
        quarter = 0.25 + arcsin(z) / (2 * jnp.pi)
        qq = left["q"] * right["q"]
        nngp = k * quarter + (k**2 * inverse_delta + qq / inverse_delta) * scale**2 / (2 * jnp.pi)
        return nngp, quarter + k * inverse_delta * (inverse_delta**2 + (1 - qq) * scale**2 + 1) / (2 * jnp.pi)


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
