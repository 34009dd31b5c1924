"""Windows that slide over a grid: the geometry that convolution and pooling share.

A window has a shape, strides, and one of three paddings: VALID (none), SAME (zeros, as many as make the output as
large as the input divided by the stride) and CIRCULAR (as SAME, the grid wrapped to a torus).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
from jax import lax

from ntk_equiv._check import one_of, positive_integers, refusal
from ntk_equiv._typing import Array


@dataclass(frozen=True)
class Window:
    """Shape, strides and padding of a sliding window; one entry per spatial axis."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    padding: str

    @classmethod
    def of(cls, shape: Sequence[int], strides: Sequence[int] | None, padding: str, argument: str) -> "Window":
        """A checked window; strides default to one."""
        fix = "Give one size per spatial axis, such as (3, 3); () for vectors, which have none."
        shape = positive_integers(shape, argument, fix=fix, or_none=True)
        fix = "Give one stride per spatial axis, or leave `strides` out."
        strides = (1,) * len(shape) if strides is None else positive_integers(strides, "strides", fix=fix, or_none=True)
        if len(strides) != len(shape):
            raise refusal("strides", expected=f"of length {len(shape)}", got=strides, fix=fix)
        padding = getattr(padding, "value", padding)
        return cls(shape, strides, one_of(padding, ("VALID", "SAME", "CIRCULAR"), "padding"))

    def pads(self, grid: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
        """Cells added before and after each axis of `grid`, which must have as many axes and be large enough."""
        if len(grid) != len(self.shape):
            raise refusal(
                "x",
                expected=f"[n, {len(self.shape)} spatial axes, channels] for a window of shape {self.shape}",
                got=f"{len(grid)} spatial axes {grid}",
                fix="Give the window one size per spatial axis of the input.",
            )
        if self.padding == "VALID":
            if any(size > extent for size, extent in zip(self.shape, grid, strict=True)):
                raise refusal(
                    "x",
                    expected=f"at least as large as the window {self.shape}",
                    got=f"a grid of {grid}",
                    fix='Use a smaller window, or padding="SAME".' + channels_first_hint(grid),
                )
            return ((0, 0),) * len(grid)
        return tuple(_same(*axis) for axis in zip(grid, self.shape, self.strides, strict=True))

    def output(self, grid: tuple[int, ...]) -> tuple[int, ...]:
        """The grid of window positions."""
        pads = self.pads(grid)
        return tuple(
            (extent + sum(pad) - size) // stride + 1
            for extent, pad, size, stride in zip(grid, pads, self.shape, self.strides, strict=True)
        )

    def padded(self, x: Array, first_axis: int) -> Array:
        """`x` padded along the spatial axes that start at `first_axis`."""
        pads = self.pads(x.shape[first_axis : first_axis + len(self.shape)])
        return self._pad(x, {first_axis + i: pad for i, pad in enumerate(pads)})

    def joint_sum(self, k: Array, first_axis: int, *, full: bool) -> Array:
        """Sum over window offsets, the same offset for both positions of a pair: Σ_o k(s + o, s' + o)."""
        return self._sum(k, first_axis, full=full, together=True)

    def separate_sum(self, k: Array, first_axis: int) -> Array:
        """Sum over window offsets, one for each position of a pair: Σ_oo' k(s + o, s' + o')."""
        return self._sum(k, first_axis, full=True, together=False)

    def _sum(self, k: Array, first_axis: int, *, full: bool, together: bool) -> Array:
        step = 2 if full else 1
        grid = k.shape[first_axis::step]
        pads = self.pads(grid)
        for i, (size, stride, pad, extent) in enumerate(
            zip(self.shape, self.strides, pads, self.output(grid), strict=True)
        ):
            axes = tuple(range(first_axis + step * i, first_axis + step * (i + 1)))
            k = self._pad(k, dict.fromkeys(axes, pad))
            for shifted in [axes] if together else [(axis,) for axis in axes]:
                k = _sum_of_shifts(k, shifted, size, stride, extent)
        return k

    def _pad(self, x: Array, pads: dict[int, tuple[int, int]]) -> Array:
        if not any(sum(pad) for pad in pads.values()):
            return x
        mode = "wrap" if self.padding == "CIRCULAR" else "constant"
        return jnp.pad(x, [pads.get(axis, (0, 0)) for axis in range(x.ndim)], mode=mode)


def channels_first_hint(grid: tuple[int, ...]) -> str:
    """What to do if a grid looks as if its first axis counted channels.

    >>> channels_first_hint((3, 28)), channels_first_hint((28, 28))
    (' If its first axis counts channels, move that to the end: `jnp.moveaxis(x, 1, -1)`.', '')
    """
    if len(grid) < 2 or grid[0] > 4 or min(grid[1:]) <= 4:
        return ""
    return " If its first axis counts channels, move that to the end: `jnp.moveaxis(x, 1, -1)`."


def _same(extent: int, size: int, stride: int) -> tuple[int, int]:
    """Cells before and after that make the output as large as the input divided by the stride; odd ones come after."""
    outputs = -(-extent // stride)
    total = max((outputs - 1) * stride + size - extent, 0)
    return total // 2, total - total // 2


def _sum_of_shifts(k: Array, axes: tuple[int, ...], size: int, stride: int, extent: int) -> Array:
    """Σ over `size` shifts of `k`, all `axes` shifted together; additions of slices are the fastest way on CPU."""
    total = None
    for offset in range(size):
        shifted = k
        for axis in axes:
            shifted = lax.slice_in_dim(shifted, offset, offset + stride * (extent - 1) + 1, stride, axis)
        total = shifted if total is None else total + shifted
    assert total is not None
    return total
