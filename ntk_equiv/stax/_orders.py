"""Orders of axes: samples and channels on any axis, where layers want them first and last.

A network that is told about such an order moves axes before and behind it. Kernels need no moves: they have no axis of
channels, and the two of samples in front.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from ntk_equiv._check import refusal
from ntk_equiv.stax._inputs import Graph, MaskedArray


class Order(NamedTuple):
    """Which axis counts samples, and which counts channels; None where that does not matter."""

    batch: int | None = None
    channel: int | None = None

    def permutation(self, rank: int) -> tuple[int, ...]:
        """Return the axes of an array in native order: samples, positions, channels."""
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
        ends = batch % rank, channel % rank
        return (ends[0], *(axis for axis in range(rank) if axis not in ends), ends[1])

    def or_else(self, other: "Order") -> "Order":
        """Return this order, and what it leaves open from another one."""
        return Order(*(b if a is None else a for a, b in zip(self, other, strict=True)))


ANY, NATIVE = Order(), Order(0, -1)
Orders = Any
"""An `Order`, or a tuple with one entry for each of several branches."""


def to_native(x: Any, order: Orders) -> Any:
    """Return samples with their axes in the native order: arrays, masked arrays, graphs, or several of them."""
    return _map(lambda x, axes: jnp.transpose(x, axes), x, order)


def from_native(x: Any, order: Orders) -> Any:
    """Return the outputs of a native layer with their axes in another order."""
    return _map(lambda x, axes: jnp.moveaxis(x, range(len(axes)), axes), x, order)


def shape_to_native(shape: Any, order: Order) -> tuple[int, ...]:
    """Return the shape of samples after `to_native`."""
    return tuple(shape[axis] for axis in order.permutation(len(shape)))


def shape_from_native(shape: Any, order: Order) -> tuple[int, ...]:
    """Return the shape of outputs after `from_native`."""
    return tuple(shape[axis] for axis in np.argsort(order.permutation(len(shape))))


def _map(move: Callable, x: Any, order: Orders) -> Any:
    if isinstance(x, MaskedArray):
        return MaskedArray(*(_map(move, each, order) for each in x))
    if isinstance(x, Graph):
        return x._replace(nodes=_map(move, x.nodes, order))
    if isinstance(x, tuple | list):
        orders = [order] * len(x) if isinstance(order, Order) else order
        return [_map(move, own, each) for own, each in zip(x, orders, strict=True)]
    return x if order.or_else(NATIVE) == NATIVE else move(jnp.asarray(x), order.permutation(jnp.ndim(x)))
