"""Orders of axes in chains of layers: each layer says where samples and channels are, in what it takes and returns."""

import functools
from typing import Any

import jax

from ntk_equiv._check import refusal
from ntk_equiv.stax import NATIVE, Order, Orders


def first_said(a: Orders, b: Orders) -> Orders:
    """Return what a chain of layers expects of its input, from what it begins with and what comes after that."""
    if isinstance(a, Order):
        return functools.reduce(Order.or_else, jax.tree.leaves(b, is_leaf=lambda x: isinstance(x, Order)), a)
    return tuple(first_said(own, b if isinstance(b, Order) else b[i]) for i, own in enumerate(a))


Seam = tuple[Order, Order, int | None]


def seams_between(before: Orders, after: Orders, rank: int | None) -> list[Seam]:
    """Return the pairs of orders that meet where a layer, or several side by side, take the outputs of others."""
    if isinstance(after, Order):
        return [(own, after, rank) for own in jax.tree.leaves(before, is_leaf=lambda x: isinstance(x, Order))]
    pairs = [(before if isinstance(before, Order) else before[i], own) for i, own in enumerate(after)]
    return [seam for own, other in pairs for seam in seams_between(own, other, rank)]


def check_seams(seams: tuple[Seam, ...], rank: int) -> None:
    """Raise an error if a layer expects samples or channels on another axis than that on which they arrive."""
    for before, after, own_rank in seams:
        axes = rank if own_rank is None else own_rank
        for name, a, b in zip(("batch_axis", "channel_axis"), before, after, strict=True):
            if a is None or b is None or a == b:
                continue
            # Axes that are counted from different ends can be compared only if their number is known.
            if (a < 0) == (b < 0) or (axes and (a - b) % axes):
                fix = "Name the axes of a layer as the layers before it leave them."
                raise refusal(name, expected=f"{a}, where a layer before it leaves them", got=b, fix=fix)


def native_axis(axis: int, order: Order) -> int:
    """Return where an axis of an array in that order is in an array with samples first and channels last."""
    known: Any = order.or_else(NATIVE)
    batch, channel = known
    if axis in (batch, channel):
        return 0 if axis == batch else -1
    if axis < 0 and (batch < 0 or channel >= 0):
        fix = "Count this axis from the front."
        raise refusal("axis", expected="counted like `batch_axis` and `channel_axis`", got=axis, fix=fix)
    if axis < 0:
        return axis - (axis > channel)
    return axis + 1 - (0 <= batch < axis) - (0 <= channel < axis)
