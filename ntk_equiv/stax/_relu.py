"""ReLU and its relatives, φ(x) = a min(x, 0) + b max(x, 0).

With m = (a² + b²)/2, r = √q and g = 1 − k / (r r') the gap of the cosine,

    E[φφ]   = m r r' (1 − g'),        g' = [ (b − a)²/2 (1 − κ₁) + a b g ] / m
    E[φ'φ'] = (b − a)²/2 κ₀ + a b

where κ₁ and κ₀ are the normalised arc-cosine kernels. g' is the gap after the activation: passed on through dense
layers, it keeps its relative precision through any depth, where 1 − k' / (√q' √q'') would lose it.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from ntk_equiv._check import boolean, scalar
from ntk_equiv._typing import Array, Scalar
from ntk_equiv.stax._arc import arc_cosine_kernels
from ntk_equiv.stax._certificate import Certificate
from ntk_equiv.stax._network import Network, without_parameters
from ntk_equiv.stax._rule import CosineActivation, Trace, rule
from ntk_equiv.stax._state import Need, Pairs, Points, in_precision, materialize, safe_sqrt


@rule
class PiecewiseLinear(CosineActivation):
    """Two slopes a and b, meeting at zero: bend (b − a)²/2, slope a b and moment (a² + b²)/2, their sum."""

    bend: Any
    slope: Any
    moment: Any

    @classmethod
    def of(cls, a: Any, b: Any) -> "PiecewiseLinear":
        """The activation with slope a for negative and b for positive inputs."""
        return cls((b - a) ** 2 / 2, a * b, (a**2 + b**2) / 2)

    @property
    def certificate(self) -> Certificate:
        """Positively homogeneous, with a kink."""
        return Certificate(dot_product=True, nonnegative=True, smooth=False)

    def second_moment(self, q: Array) -> Array:
        return jnp.asarray(self.moment, q.dtype) * q

    def points(self, points: Points, need: Need) -> tuple[Points, Trace]:
        after, trace = super().points(points, need)
        if points.residue is None or points.cov is None:
            return after, trace
        residue = self.second_moment(points.residue)
        return after.with_cov(self.second_moment(points.cov), residue=residue, root=after.root), trace

    def deviation(self, root: Array) -> Array:
        return safe_sqrt(jnp.asarray(self.moment, root.dtype)) * root

    def pairs(self, pairs: Pairs, left: Trace, right: Trace, need: Need) -> Pairs:
        on_left, on_right = jax.tree.map(pairs.on_left, left), jax.tree.map(pairs.on_right, right)
        gap = self.gap(pairs, on_left, on_right)
        bend, slope, moment = (jnp.asarray(v, gap.dtype) for v in (self.bend, self.slope, self.moment))
        one_minus_k1, k0 = arc_cosine_kernels(gap)
        gap = (bend * one_minus_k1 + slope * gap) / jnp.where(moment > 0, moment, 1)
        ntk = None if pairs.ntk is None else pairs.ntk * (bend * k0 + slope)
        if need.gap:
            gap, ntk = materialize((gap, ntk), left["q"])
        nngp = moment * on_left["root"] * (1 - gap) * on_right["root"]
        if need.stored and not need.gap:
            nngp, ntk = materialize((nngp, ntk), left["q"])
        return replace(pairs, nngp=nngp, ntk=ntk, gap=gap)


def ABRelu(a: Scalar, b: Scalar, do_stabilize: bool = False) -> Network:
    """Piecewise linear activation `a * min(x, 0) + b * max(x, 0)`.

    Args:
        a: slope for negative inputs.
        b: slope for positive inputs.
        do_stabilize: accepted for compatibility; kernels are always evaluated through cosines, which neither
            overflow nor underflow in deep networks.

    Example:
        >>> _, apply_fn, _ = ABRelu(0.5, 2.0)
        >>> print(apply_fn((), jnp.array([[-1.0, 1.0]])))
        [[-0.5  2. ]]
    """
    a, b = scalar(a, "a"), scalar(b, "b")
    boolean(do_stabilize, "do_stabilize")

    def apply(x: Array) -> Array:
        return in_precision(a, x) * jnp.minimum(x, 0) + in_precision(b, x) * jnp.maximum(x, 0)

    return without_parameters(lambda shape: shape, apply, PiecewiseLinear.of(a, b))


def Relu(do_stabilize: bool = False) -> Network:
    """Rectifier `max(x, 0)`.

    Example:
        >>> from ntk_equiv import stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(1), Relu(), stax.Dense(1))
        >>> print(kernel_fn(jnp.eye(2) * 2**0.5, None, "nngp").round(4))
        [[0.5    0.1592]
         [0.1592 0.5   ]]
    """
    return ABRelu(0.0, 1.0, do_stabilize)


def LeakyRelu(alpha: Scalar, do_stabilize: bool = False) -> Network:
    """Leaky rectifier `alpha * min(x, 0) + max(x, 0)`.

    Example:
        >>> _, apply_fn, _ = LeakyRelu(0.1)
        >>> print(apply_fn((), jnp.array([[-1.0, 1.0]])))
        [[-0.1  1. ]]
    """
    return ABRelu(scalar(alpha, "alpha"), 1.0, do_stabilize)


def Abs(do_stabilize: bool = False) -> Network:
    """Absolute value `|x|`.

    Example:
        >>> from ntk_equiv import stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(1), Abs(), stax.Dense(1))
        >>> print(kernel_fn(jnp.array([[1.0]]), jnp.array([[-1.0]]), "nngp"))
        [[1.]]
    """
    return ABRelu(-1.0, 1.0, do_stabilize)
