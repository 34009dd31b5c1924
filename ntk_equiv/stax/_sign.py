"""The sign, φ(x) = 1 for x > 0, −1 for x < 0.

With θ the angle between the two preactivations,

    E[φφ]   = 1 − 2θ/π = 2κ₀ − 1
    E[φ'φ'] = 0

The derivative is zero wherever it exists, and so is what gradients of the finite network see: nothing below a sign is
trained. 2θ/π is itself the gap of the new cosine, and is passed on.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp

from ntk_equiv._typing import Array
from ntk_equiv.stax._arc import arc_cosine_kernels
from ntk_equiv.stax._certificate import Certificate
from ntk_equiv.stax._network import Network, without_parameters
from ntk_equiv.stax._rule import CosineActivation, Trace, rule
from ntk_equiv.stax._state import Need, Pairs, Points, materialize


@rule
class Signum(CosineActivation):
    """One of two values."""

    @property
    def certificate(self) -> Certificate:
        """The series of the arc sine has non-negative coefficients; φ jumps."""
        return Certificate(dot_product=True, nonnegative=True, smooth=False)

    def scales(self, q: Array, root: Array) -> dict[str, Array]:
        return super().scales(q, root) | {"moment": self.second_moment(root)}

    def second_moment(self, q: Array) -> Array:
        return jnp.where(q > 0, jnp.ones_like(q), 0)

    def points(self, points: Points, need: Need) -> tuple[Points, Trace]:
        after, trace = super().points(points, need)
        return (after if points.full else after.with_cov(trace["moment"])), trace

    def pairs(self, pairs: Pairs, left: Trace, right: Trace, need: Need) -> Pairs:
        on_left, on_right = jax.tree.map(pairs.on_left, left), jax.tree.map(pairs.on_right, right)
        gap = materialize(2 * (1 - arc_cosine_kernels(self.gap(pairs, on_left, on_right))[1]), left["q"])
        nngp = on_left["moment"] * on_right["moment"] * (1 - gap)
        return replace(pairs, nngp=nngp, ntk=None, gap=gap)


def Sign() -> Network:
    """Sign of the input; at zero it is zero.

    Example:
        >>> from ntk_equiv import stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(1), Sign(), stax.Dense(1))
        >>> print(kernel_fn(jnp.array([[1.0, 0.0]]), jnp.array([[1.0, 1.0]]), "nngp"))  # 45 degrees
        [[0.5]]
    """
    return without_parameters(lambda shape: shape, jnp.sign, Signum())
