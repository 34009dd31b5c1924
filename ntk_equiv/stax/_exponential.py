"""The exponential, φ(x) = a exp(b x).

E[φφ]   = a² exp(b² ((q + q')/2 + k))
E[φ'φ'] = b² E[φφ]

with q + q' + 2k as in `_gap`, because it vanishes between opposite samples.
"""

from typing import Any

import jax.numpy as jnp

from ntk_equiv._check import scalar
from ntk_equiv._typing import Array, Scalar
from ntk_equiv.stax._certificate import EVERYTHING, Certificate
from ntk_equiv.stax._gap import squared_distance
from ntk_equiv.stax._network import Network, without_parameters
from ntk_equiv.stax._rule import SmoothActivation, rule
from ntk_equiv.stax._state import in_precision


@rule
class Exponential(SmoothActivation):
    """An exponential of any height and rate."""

    a: Any
    extreme = True

    b: Any

    @property
    def certificate(self) -> Certificate:
        """The exponential series of b² √(q q') times the cosine has positive coefficients."""
        return EVERYTHING

    def value(self, x: Array) -> Array:
        """The activation itself."""
        a, b = (in_precision(p, x) for p in (self.a, self.b))
        return a * jnp.exp(b * x)

    def dual(self, k: Array, gap: Array, left: dict[str, Array], right: dict[str, Array]) -> tuple[Array, ...]:
        a, b = (jnp.asarray(p, k.dtype) for p in (self.a, self.b))
        squared_sum = squared_distance(-k, 2 - gap, left["q"], left["root"], right["q"], right["root"])
        nngp = a**2 * jnp.exp(b**2 / 2 * squared_sum)
        return nngp, b**2 * nngp


def Exp(a: Scalar = 1, b: Scalar = 1) -> Network:
    """Exponential `a * exp(b * x)`.

    Its kernels grow exponentially with the variance of the preactivation, so keep `W_std` small in deep networks.

    Args:
        a: output scale.
        b: input scale.

    Example:
        >>> from ntk_equiv import stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(1), Exp(), stax.Dense(1))
        >>> print(kernel_fn(jnp.array([[1.0]]), jnp.array([[-1.0]]), "nngp"))  # E[eᵘ e⁻ᵘ]
        [[1.]]
    """
    exponential = Exponential(scalar(a, "a"), scalar(b, "b"))
    return without_parameters(lambda shape: shape, exponential.value, exponential)
