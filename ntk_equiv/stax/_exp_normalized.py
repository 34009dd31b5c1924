"""The normalised exponential kernel of "Neural Kernels Without Tangents" (Shankar et al. 2020).

With c = k / √(q q'),

    𝒦' = √(q q') exp(γ (c + shift))
    Θ' = Θ γ exp(γ (c + shift))

It belongs to no elementwise function: there is no finite network, and Θ' follows from 𝒦' by ∂/∂k as for those.
"""

from typing import Any

import jax.numpy as jnp

from ntk_equiv._check import boolean, refusal, scalar
from ntk_equiv._typing import Array, Scalar
from ntk_equiv.stax._certificate import EVERYTHING, Certificate
from ntk_equiv.stax._network import Network, without_parameters
from ntk_equiv.stax._rule import SmoothActivation, rule


@rule
class NormalizedExponential(SmoothActivation):
    """An exponential of the cosine, times both norms."""

    gamma: Any
    shift: Any

    @property
    def certificate(self) -> Certificate:
        """The exponential series has positive coefficients, and norms are only factors."""
        return EVERYTHING

    def deviation(self, root: Array) -> Array:
        gamma, shift = (jnp.asarray(p, root.dtype) for p in (self.gamma, self.shift))
        return root * jnp.exp(gamma * (1 + shift) / 2)

    def dual(self, k: Array, gap: Array, left: dict[str, Array], right: dict[str, Array]) -> tuple[Array, ...]:
        gamma, shift = (jnp.asarray(p, k.dtype) for p in (self.gamma, self.shift))
        exponential = jnp.exp(gamma * ((1 + shift) - gap))
        return left["root"] * exponential * right["root"], gamma * exponential


def ExpNormalized(gamma: Scalar = 1, shift: Scalar = -1, do_clip: bool = False) -> Network:
    """Exponential of the cosine times both norms; a kernel without a finite network.

    Args:
        gamma: coefficient in the exponent, at least 0.
        shift: added to the cosine in the exponent; at -1 variances stay as they are.
        do_clip: accepted for compatibility; a cosine that rounding makes larger than 1 does no harm here.

    Raises:
        ValueError: `gamma` is negative, which makes kernels indefinite, or the finite network is evaluated.

    Example:
        >>> from ntk_equiv import stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(1), ExpNormalized(), stax.Dense(1))
        >>> print(kernel_fn(jnp.eye(2) * 2**0.5, None, "nngp").round(4))
        [[1.     0.3679]
         [0.3679 1.    ]]
    """
    scalar(gamma, "gamma", at_least=0, fix="A negative one makes the kernels indefinite.")
    scalar(shift, "shift")
    boolean(do_clip, "do_clip")
    return without_parameters(lambda shape: shape, _no_function, NormalizedExponential(gamma, shift))


def _no_function(x: Array) -> Array:
    raise refusal(
        "network",
        expected="one of layers that are functions",
        got="`ExpNormalized`, which is only a kernel",
        fix="Evaluate its `kernel_fn`; no finite network belongs to it.",
    )
