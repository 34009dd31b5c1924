"""Layer normalisation.

    finite     y = (x − mean) / √(ε + variance)                      over the channels, and over positions if asked for
    infinite   𝒦'(s, s') = 𝒦(s, s') / √((ε + q(s)) (ε + q'(s')))      Θ' from Θ in the same way

with q(s) = 𝒦(x, x)(s, s), averaged over the positions that are normalised together: with infinitely many channels the
mean is zero and the variance is q. Each signal is multiplied by a number of its own, so cosines, and their gaps, stay.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ntk_equiv._check import is_listed, refusal, scalar
from ntk_equiv._typing import Array, Scalar
from ntk_equiv.stax._axes import check_axes, with_channels_at
from ntk_equiv.stax._certificate import EVERYTHING, NOTHING_BUT_SMOOTH, Certificate
from ntk_equiv.stax._network import Network, without_parameters
from ntk_equiv.stax._rule import Rule, Trace, rule, static
from ntk_equiv.stax._state import VARIANCE, Need, Pairs, Points, in_precision, inverse_root


@rule
class Normalization(Rule):
    """Every signal divided by its standard deviation over `axis`."""

    eps: Any
    axis: tuple[int, ...] = static()

    @property
    def certificate(self) -> Certificate:
        """Of vectors, the norms change and nothing else."""
        return EVERYTHING if len(self.axis) == 1 else NOTHING_BUT_SMOOTH

    def need(self, need: Need) -> Need:
        return dataclasses.replace(need, points=max(need.points, VARIANCE))

    def output(self, points: Points) -> Points:
        if not points.gaussian:
            raise refusal(
                "layers",
                expected="such that every LayerNorm follows a layer with weights",
                got="LayerNorm on an input that is not Gaussian at infinite width",
                fix="Put it behind Dense, Conv or GlobalSelfAttention, before the activation.",
            )
        return points

    def trace(self, points: Points) -> Trace:
        q = points.variance()
        together = _normalized_axes(self.axis, q.ndim + 1)[:-1]
        mean = jnp.mean(q, together, keepdims=True) if together else q
        return jnp.broadcast_to(inverse_root(mean + jnp.asarray(self.eps, q.dtype)), q.shape)

    def points(self, points: Points, need: Need) -> tuple[Points, Trace]:
        after, scale = super().points(points, need)
        if points.residue is None or after.cov is None:
            return after, scale
        return after.with_cov(after.cov, residue=points.residue * jnp.square(scale)), scale

    def pairs(self, pairs: Pairs, left: Trace, right: Trace, need: Need) -> Pairs:
        factor = pairs.on_left(left) * pairs.on_right(right)
        ntk = None if pairs.ntk is None else pairs.ntk * factor
        return dataclasses.replace(pairs, nngp=pairs.nngp * factor, ntk=ntk)


def LayerNorm(
    axis: int | Sequence[int] = -1, eps: Scalar = 1e-12, batch_axis: int = 0, channel_axis: int = -1
) -> Network:
    """Layer normalisation: subtract the mean and divide by the standard deviation, without parameters.

    Its kernels need a Gaussian input, so it stands between a layer with weights and the activation.

    Args:
        axis: axes of the input that are normalised together: the channels, and spatial axes if they are named too.
            Samples are not normalised together: kernels of a pair would depend on the other samples.
        eps: added to the variance.
        batch_axis: 0, the only choice.
        channel_axis: that of the last axis, -1 or its number.

    Example:
        >>> from ntk_equiv import stax
        >>> _, apply_fn, kernel_fn = stax.serial(stax.Dense(64), stax.LayerNorm())
        >>> x = jnp.array([[3.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
        >>> print(kernel_fn(x, None, "nngp").round(4))
        [[1.     0.     0.7071]
         [0.     1.     0.7071]
         [0.7071 0.7071 1.    ]]
        >>> print(stax.LayerNorm().apply_fn((), jnp.array([[1.0, 3.0]])))
        [[-1.  1.]]
    """
    check_axes(batch_axis, channel_axis)
    scalar(eps, "eps", at_least=0, fix="It is zero or a positive number; leave it out to have 1e-12.")
    axes = _as_axes(axis)

    def apply(x: Array) -> Array:
        together = _normalized_axes(axes, x.ndim)
        mean, variance = jnp.mean(x, together, keepdims=True), jnp.var(x, together, keepdims=True)
        return (x - mean) / jnp.sqrt(variance + in_precision(eps, x))

    return with_channels_at(channel_axis, without_parameters(lambda shape: shape, apply, Normalization(eps, axes)))


def _as_axes(axis: Any) -> tuple[int, ...]:
    axes = (axis,) if isinstance(axis, int | np.integer) else axis
    if not is_listed(axes) or not len(axes) or any(not isinstance(a, int | np.integer) for a in axes):
        fix = "Leave it out for the channels; (1, 2, -1) normalises images over their pixels too."
        raise refusal("axis", expected="the number of an axis, or a tuple of such", got=repr(axis), fix=fix)
    return tuple(int(a) for a in axes)


def _normalized_axes(axes: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """`axes` of an input of that rank counted from the front, in order; the channels must be among them."""
    counted = sorted({axis + rank if axis < 0 else axis for axis in axes})
    if not counted or counted[-1] != rank - 1 or counted[0] < 1:
        raise refusal(
            "axis",
            expected=f"the channels of an input with {rank} axes, {rank - 1} or -1, alone or with spatial axes",
            got=axes,
            fix="Normalise over channels, and never over the axis of the samples.",
        )
    return tuple(counted)
