"""ReLU and its relatives, φ(x) = a min(x, 0) + b max(x, 0).

With r = √q and c = k / (r r') the cosine,

    E[φφ]   = r r' [ (b − a)²/2 κ₁(c) + a b c ]
    E[φ'φ'] =        (b − a)²/2 κ₀(c) + a b

where κ₁ and κ₀ are the normalised arc-cosine kernels.
"""

from typing import Any

import jax.numpy as jnp

from ntk_equiv._typing import Array
from ntk_equiv.stax._arc import arc_cosine_kernels, snapped
from ntk_equiv.stax._certificate import Certificate
from ntk_equiv.stax._network import Network, without_parameters
from ntk_equiv.stax._rule import Activation, rule
from ntk_equiv.stax._state import safe_sqrt


@rule
class PiecewiseLinear(Activation):
    """Two slopes, meeting at zero."""

    a: Any
    b: Any

    @property
    def certificate(self) -> Certificate:
        """Positively homogeneous, with a kink."""
        return Certificate(dot_product=True, nonnegative=True, smooth=False)

    def factors(self, q: Array) -> dict[str, Array]:
        root = safe_sqrt(q)
        return {"q": q, "root": root, "inverse_root": jnp.where(q > 0, 1 / jnp.where(q > 0, root, 1), 0)}

    def second_moment(self, q: Array) -> Array:
        a, b = jnp.asarray(self.a, q.dtype), jnp.asarray(self.b, q.dtype)
        return (a**2 + b**2) / 2 * q

    def dual(self, k: Array, left: dict[str, Array], right: dict[str, Array]) -> tuple[Array, Array]:
        a, b = jnp.asarray(self.a, k.dtype), jnp.asarray(self.b, k.dtype)
        bend, slope = (b - a) ** 2 / 2, a * b
        c = k * left["inverse_root"] * right["inverse_root"]
        k1, k0 = arc_cosine_kernels(c)
        return left["root"] * right["root"] * (bend * k1 + slope * snapped(c)), bend * k0 + slope


def ABRelu(a: float, b: float, do_stabilize: bool = False) -> Network:
    """Piecewise linear activation `a * min(x, 0) + b * max(x, 0)`.

    Args:
        a: slope for negative inputs.
        b: slope for positive inputs.
        do_stabilize: accepted for compatibility; kernels are always evaluated through cosines, which neither
            overflow nor underflow in deep networks.

    Example:
        >>> _, apply_fn, _ = ABRelu(0.5, 2.0)
        >>> apply_fn((), jnp.array([[-1.0, 1.0]]))
        Array([[-0.5,  2. ]], dtype=float64)
    """
    return without_parameters(
        lambda shape: shape, lambda x: a * jnp.minimum(x, 0) + b * jnp.maximum(x, 0), PiecewiseLinear(a, b)
    )


def Relu(do_stabilize: bool = False) -> Network:
    """Rectifier `max(x, 0)`.

    Example:
        >>> from ntk_equiv import stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(1), Relu(), stax.Dense(1))
        >>> kernel_fn(jnp.eye(2) * 2**0.5, None, "nngp").round(4)
        Array([[0.5   , 0.1592],
               [0.1592, 0.5   ]], dtype=float64)
    """
    return ABRelu(0.0, 1.0, do_stabilize)


def LeakyRelu(alpha: float, do_stabilize: bool = False) -> Network:
    """Leaky rectifier `alpha * min(x, 0) + max(x, 0)`.

    Example:
        >>> _, apply_fn, _ = LeakyRelu(0.1)
        >>> apply_fn((), jnp.array([[-1.0, 1.0]]))
        Array([[-0.1,  1. ]], dtype=float64)
    """
    return ABRelu(alpha, 1.0, do_stabilize)


def Abs(do_stabilize: bool = False) -> Network:
    """Absolute value `|x|`.

    Example:
        >>> from ntk_equiv import stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(1), Abs(), stax.Dense(1))
        >>> kernel_fn(jnp.array([[1.0]]), jnp.array([[-1.0]]), "nngp")
        Array([[1.]], dtype=float64)
    """
    return ABRelu(-1.0, 1.0, do_stabilize)
