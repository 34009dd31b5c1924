"""The activation of the squared-exponential kernel, φ(x) = √2 sin(√(2γ) x + π/4).

E[φφ]   = exp(−γ (q + q' − 2k))
E[φ'φ'] = 2γ E[φφ]

with q + q' − 2k as in `_gap`.

After one dense layer of unit variance without bias, E[φφ] = exp(−γ ‖x − x'‖² / d) for inputs of d features.
"""

import math
from typing import Any

import jax.numpy as jnp

from ntk_equiv._check import scalar
from ntk_equiv._typing import Array, Scalar
from ntk_equiv.stax._certificate import EVERYTHING, Certificate
from ntk_equiv.stax._gap import squared_distance
from ntk_equiv.stax._network import Network, without_parameters
from ntk_equiv.stax._rule import SmoothActivation, rule


@rule
class RadialBasis(SmoothActivation):
    """The sine whose kernel depends on the distance alone."""

    extreme = True

    gamma: Any

    @property
    def certificate(self) -> Certificate:
        """The exponential series of 2γ √(q q') times the cosine has positive coefficients."""
        return EVERYTHING

    def dual(self, k: Array, gap: Array, left: dict[str, Array], right: dict[str, Array]) -> tuple[Array, ...]:
        gamma = jnp.asarray(self.gamma, k.dtype)
        nngp = jnp.exp(-gamma * squared_distance(k, gap, left["q"], left["root"], right["q"], right["root"]))
        return nngp, 2 * gamma * nngp


def Rbf(gamma: Scalar = 1.0) -> Network:
    """Sine `sqrt(2) * sin(sqrt(2 * gamma) * x + pi / 4)`, whose kernel is the squared exponential.

    Args:
        gamma: 1 / (2 l²) for the length scale l, at least 0.

    Raises:
        ValueError: `gamma` is negative.

    Example:
        >>> from ntk_equiv import stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(1), Rbf(0.5))
        >>> print(kernel_fn(jnp.array([[0.0]]), jnp.array([[0.0], [1.0]]), "nngp").round(6))  # 1 and e^(−1/2)
        [[1.       0.606531]]
    """
    scalar(gamma, "gamma", at_least=0, fix="It is 1 / (2 l²) for the length scale l.")

    def function(x: Array) -> Array:
        return math.sqrt(2) * jnp.sin(jnp.sqrt(2 * jnp.asarray(gamma, x.dtype)) * x + math.pi / 4)

    return without_parameters(lambda shape: shape, function, RadialBasis(gamma))
