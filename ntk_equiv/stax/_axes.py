"""Where samples and channels are in an input: first and last."""

from typing import Any

from ntk_equiv._check import refusal
from ntk_equiv._typing import Array
from ntk_equiv.stax._combinators import Serial, Unchanged
from ntk_equiv.stax._network import Network, network
from ntk_equiv.stax._rule import Trace, rule, static


@rule
class OfRank(Unchanged):
    """What comes in goes out, if it has so many axes: samples, positions and channels."""

    rank: int = static()

    def points(self, points: Any, need: Any) -> tuple[Any, Trace]:
        _check_rank(len(points.grid) + 2, self.rank)
        return points, ()


def check_axes(batch_axis: int, channel_axis: int) -> None:
    """Refuse any axis order but samples first, channels last; which axis is last, inputs will tell."""
    whole = isinstance(channel_axis, int) and not isinstance(channel_axis, bool)
    if batch_axis != 0 or not whole or (channel_axis < 1 and channel_axis != -1):
        raise refusal(
            "batch_axis, channel_axis",
            expected="0 and -1: samples first, channels last",
            got=f"{batch_axis} and {channel_axis}",
            fix="Move the axes of the inputs with `jnp.moveaxis`.",
        )


def with_channels_at(channel_axis: int, layer: Network) -> Network:
    """`layer`, for inputs of which that axis is the last one."""
    if channel_axis == -1:
        return layer
    rank = channel_axis + 1

    def init(key: Array, shape: Any) -> Any:
        _check_rank(len(shape), rank)
        return layer.init_fn(key, shape)

    def apply(params: Any, x: Array, **kwargs: Any) -> Array:
        _check_rank(x.ndim, rank)
        return layer.apply_fn(params, x, **kwargs)

    return network(init, apply, Serial((OfRank(rank), layer.kernel_fn.rule)))


def _check_rank(found: int, rank: int) -> None:
    if found != rank:
        raise refusal(
            "channel_axis",
            expected=f"the last axis of the inputs, -1 or {found - 1}",
            got=rank - 1,
            fix="Leave it out, and move channels to the last axis with `jnp.moveaxis` if they are elsewhere.",
        )
