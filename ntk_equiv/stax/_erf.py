"""The error function, φ(x) = a erf(b x) + c.

With s = 1/√(1 + 2b²q) and z = 2b² k s s',

    E[φφ]   = (2a²/π) arcsin z + c²
    E[φ'φ'] = (4a²b²/π) s s' / √(1 − z²)

where 1 − z² is computed as in `_gap`.
"""

from typing import Any

import jax
import jax.numpy as jnp

from ntk_equiv._check import scalar
from ntk_equiv._typing import Array, Scalar
from ntk_equiv.stax._arc import arcsin
from ntk_equiv.stax._certificate import EVERYTHING, Certificate
from ntk_equiv.stax._gap import complement, saturation
from ntk_equiv.stax._network import Network, without_parameters
from ntk_equiv.stax._rule import SmoothActivation, rule
from ntk_equiv.stax._state import in_precision


@rule
class ErrorFunction(SmoothActivation):
    """A scaled and shifted error function."""

    a: Any
    b: Any
    c: Any

    @property
    def certificate(self) -> Certificate:
        """Smooth, and the signs of its Hermite coefficients do not depend on the variance."""
        return EVERYTHING

    def value(self, x: Array) -> Array:
        """The activation itself."""
        a, b, c = (in_precision(p, x) for p in (self.a, self.b, self.c))
        return a * jax.scipy.special.erf(b * x) + c

    def scales(self, q: Array, root: Array) -> dict[str, Array]:
        a, b = (jnp.asarray(p, q.dtype) for p in (self.a, self.b))
        scales = super().scales(q, root) | saturation(2 * b**2, q, root)
        return scales | {"in": 2**0.5 * b * scales["scale"], "out": 2 / jnp.pi**0.5 * a * b * scales["scale"]}

    def dual(self, k: Array, gap: Array, left: dict[str, Array], right: dict[str, Array]) -> tuple[Array, ...]:
        a, c = (jnp.asarray(p, k.dtype) for p in (self.a, self.c))
        root, inverse = complement(gap, left, right)
        # Where the covariance is too large for a number, that of the signs is left.
        z = jnp.where(jnp.isinf(k), 1 - gap, k * left["in"] * right["in"])
        return 2 / jnp.pi * a**2 * arcsin(z, root) + c**2, left["out"] * inverse, right["out"]


def Erf(a: Scalar = 1.0, b: Scalar = 1.0, c: Scalar = 0.0) -> Network:
    """Error function `a * erf(b * x) + c`.

    Args:
        a: output scale.
        b: input scale.
        c: output shift.

    Example:
        >>> from ntk_equiv import stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(1), Erf(), stax.Dense(1))
        >>> print(kernel_fn(jnp.array([[0.5**0.5]]), None, "nngp").round(6))  # 2/π · arcsin(1/2)
        [[0.333333]]
    """
    erf = ErrorFunction(scalar(a, "a"), scalar(b, "b"), scalar(c, "c"))
    return without_parameters(lambda shape: shape, erf.value, erf)


def Sigmoid_like() -> Network:
    """Error function in the shape of a sigmoid, `0.5 * erf(x / 2.4020563531719796) + 0.5`.

    The constant is that of neural-tangents: the closest to the logistic function on [-5, 5] in the mean square.

    Example:
        >>> _, apply_fn, _ = Sigmoid_like()
        >>> print(apply_fn((), jnp.array([[-9.0, 0.0, 9.0]])).round(4))
        [[0.  0.5 1. ]]
    """
    return Erf(0.5, 1 / 2.4020563531719796, 0.5)
