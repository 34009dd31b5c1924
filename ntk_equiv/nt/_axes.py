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
