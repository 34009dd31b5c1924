"""Orders of axes: layers of neural-tangents may have samples and channels on any axis, native ones first and last.

A layer says where samples and channels are in what it takes, and in what it returns. The finite network moves axes
around every layer. Kernels need no moves: they have no axis of channels, and the two of samples in front.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from ntk_equiv._check import refusal
from ntk_equiv.stax import Graph, MaskedArray


class Order(NamedTuple):
    """Which axis counts samples, and which counts channels; None where a layer does not care."""

    batch: int | None = None
    channel: int | None = None

    def places(self, rank: int) -> tuple[int, int]:
        """Return both axes of an array, counted from the front."""
        batch = 0 if self.batch is None else self.batch
        last_but_one = self.channel is None and batch % rank == rank - 1
        channel = -2 if last_but_one else -1 if self.channel is None else self.channel
        if not all(-rank <= axis < rank for axis in (batch, channel)) or (batch - channel) % rank == 0:
            raise refusal(
                "batch_axis, channel_axis",
                expected=f"two different axes of {rank}",
                got=f"{batch} and {channel}",
                fix="Count the axes of the samples that the layer is given.",
            )
        return batch % rank, channel % rank

    def or_else(self, other: "Order") -> "Order":
        """Return this order, and what it leaves open from another one."""
        return Order(*(b if a is None else a for a, b in zip(self, other, strict=True)))

    def native_axis(self, axis: int) -> int:
        """Return where an axis of an array in this order is in an array with samples first and channels last."""
        known: Any = self.or_else(NATIVE)
        batch, channel = known
        if axis in (batch, channel):
            return 0 if axis == batch else -1
        if axis < 0 and (batch < 0 or channel >= 0):
            fix = "Count this axis from the front."
            raise refusal("axis", expected="counted like `batch_axis` and `channel_axis`", got=axis, fix=fix)
        if axis < 0:
            return axis - (axis > channel)
        return axis + 1 - (0 <= batch < axis) - (0 <= channel < axis)


ANY, NATIVE = Order(), Order(0, -1)
Orders = Any
"""An `Order`, or a tuple with one entry for each of several branches."""


def first_said(a: Orders, b: Orders) -> Orders:
    """Return what a chain of layers expects of its input, from what it begins with and what comes after that."""
    if isinstance(a, Order):
        return a.or_else(_merged(b))
    return tuple(first_said(own, b[i] if not isinstance(b, Order) else b) for i, own in enumerate(a))


def _merged(orders: Orders) -> Order:
    if isinstance(orders, Order):
        return orders
    merged = Order()
    for own in orders:
        merged = merged.or_else(_merged(own))
    return merged


def to_native(x: Any, order: Orders) -> Any:
    """Return samples with their axes in the native order: arrays, masked arrays, or several of them."""
    return _map(lambda x, order: jnp.moveaxis(x, order.places(x.ndim), (0, -1)), x, order)


def from_native(x: Any, order: Orders) -> Any:
    """Return the outputs of a native layer with their axes in another order."""
    return _map(lambda x, order: jnp.moveaxis(x, (0, -1), order.places(x.ndim)), x, order)


def shape_to_native(shape: Any, order: Orders) -> Any:
    """Return the shape of samples after `to_native`."""
    if not isinstance(order, Order):
        return [shape_to_native(own, each) for own, each in zip(shape, order, strict=True)]
    batch, channel = order.places(len(shape))
    rest = (size for axis, size in enumerate(shape) if axis not in (batch, channel))
    return (shape[batch], *rest, shape[channel])


def shape_from_native(shape: Sequence[int], order: Order) -> tuple[int, ...]:
    """Return the shape of outputs after `from_native`."""
    batch, channel = order.places(len(shape))
    moved = list(shape[1:-1])
    for axis, size in sorted([(batch, shape[0]), (channel, shape[-1])]):
        moved.insert(axis, size)
    return tuple(moved)


def _map(move: Callable, x: Any, order: Orders) -> Any:
    if isinstance(x, MaskedArray):
        return MaskedArray(_map(move, x.masked_value, order), _map(move, x.mask, order))
    if isinstance(x, Graph):
        return Graph(_map(move, x.nodes, order), x.adjacency)
    if isinstance(x, tuple | list):
        orders = [order] * len(x) if isinstance(order, Order) else order
        return [_map(move, own, each) for own, each in zip(x, orders, strict=True)]
    return x if order.or_else(NATIVE) == NATIVE else move(jnp.asarray(x), order)
