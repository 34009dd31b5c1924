"""Windows that slide over a grid, and pooling over them.

A window has a shape, strides, and one of three paddings: VALID (none), SAME (zeros, as many as make the output as
large as the input divided by the stride) and CIRCULAR (as SAME, with the grid wrapped to a torus). Convolutions use
windows too. Pooling, with or without windows, and flattening have

    window     𝒦'(s, s') = Σ_oo' 𝒦(s + o, s' + o') / (norm(s) norm(s'))
    global     𝒦' = Σ_ss' 𝒦(s, s'), divided by the squared number of positions for the average
    flatten    𝒦' = mean_s 𝒦(s, s)

and Θ' from Θ in the same way: these layers have no parameters and add nothing of their own.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax

from ntk_equiv._check import boolean, one_of, positive_integers, refusal
from ntk_equiv._typing import Array
from ntk_equiv.stax._composition import Unchanged
from ntk_equiv.stax._network import Network, check_axes, network, with_channels_at, without_parameters
from ntk_equiv.stax._rule import Linear, Rule
from ntk_equiv.stax._state import (
    Memo,
    Moments,
    PairState,
    Requirements,
    SampleState,
    frozen_pytree,
    require_all_positions,
    static,
)


@dataclass(frozen=True)
class Window:
    """Shape, strides and padding of a sliding window; one entry per spatial axis."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    padding: str

    @classmethod
    def of(cls, shape: Sequence[int], strides: Sequence[int] | None, padding: str, argument: str) -> "Window":
        """Return a checked window; strides default to one."""
        fix = "Give one size per spatial axis, such as (3, 3); () for vectors, which have none."
        shape = positive_integers(shape, argument, fix=fix, or_none=True)
        fix = "Give one stride per spatial axis, or leave `strides` out."
        strides = (1,) * len(shape) if strides is None else positive_integers(strides, "strides", fix=fix, or_none=True)
        if len(strides) != len(shape):
            raise refusal("strides", expected=f"of length {len(shape)}", got=strides, fix=fix)
        padding = getattr(padding, "value", padding)
        return cls(shape, strides, one_of(padding, ("VALID", "SAME", "CIRCULAR"), "padding"))

    def pads(self, grid: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
        """Return how many cells are added before and after each axis of `grid`; refuse a grid that does not fit."""
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
        return tuple(_same_padding(*axis) for axis in zip(grid, self.shape, self.strides, strict=True))

    def output(self, grid: tuple[int, ...]) -> tuple[int, ...]:
        """Return the grid of window positions."""
        pads = self.pads(grid)
        return tuple(
            (extent + sum(pad) - size) // stride + 1
            for extent, pad, size, stride in zip(grid, pads, self.shape, self.strides, strict=True)
        )

    def pad(self, x: Array, first_axis: int) -> Array:
        """Pad `x` along the spatial axes that start at `first_axis`."""
        pads = self.pads(x.shape[first_axis : first_axis + len(self.shape)])
        return self._pad_axes(x, {first_axis + i: pad for i, pad in enumerate(pads)})

    def mask_after(self, mask: Array) -> Array:
        """Return which windows are masked: those whose middle cell is, `[n, *grid]`."""
        grid = mask.shape[1:]
        for i, (pad, size, stride, extent) in enumerate(
            zip(self.pads(grid), self.shape, self.strides, self.output(grid), strict=True)
        ):
            start = (size - 1) // 2 - pad[0]
            mask = lax.slice_in_dim(mask, start, start + 1 + (extent - 1) * stride, stride, i + 1)
        return mask

    def joint_sum(self, k: Array, first_axis: int, *, full: bool) -> Array:
        """Sum over offsets of the window, the same for both positions of a pair: Σ_o k(s + o, s' + o)."""
        return self._sum(k, first_axis, full=full, together=True)

    def separate_sum(self, k: Array, first_axis: int) -> Array:
        """Sum over offsets of the window, one for each position of a pair: Σ_oo' k(s + o, s' + o')."""
        return self._sum(k, first_axis, full=True, together=False)

    def _sum(self, k: Array, first_axis: int, *, full: bool, together: bool) -> Array:
        step = 2 if full else 1
        grid = k.shape[first_axis::step]
        pads = self.pads(grid)
        for i, (size, stride, pad, extent) in enumerate(
            zip(self.shape, self.strides, pads, self.output(grid), strict=True)
        ):
            axes = tuple(range(first_axis + step * i, first_axis + step * (i + 1)))
            k = self._pad_axes(k, dict.fromkeys(axes, pad))
            for shifted in [axes] if together else [(axis,) for axis in axes]:
                k = _sum_of_shifts(k, shifted, size, stride, extent)
        return k

    def _pad_axes(self, x: Array, pads: dict[int, tuple[int, int]]) -> Array:
        if not any(sum(pad) for pad in pads.values()):
            return x
        mode = "wrap" if self.padding == "CIRCULAR" else "constant"
        return jnp.pad(x, [pads.get(axis, (0, 0)) for axis in range(x.ndim)], mode=mode)


def channels_first_hint(grid: tuple[int, ...]) -> str:
    """Return advice, if a grid looks as if its first axis counted channels.

    >>> channels_first_hint((3, 28)), channels_first_hint((28, 28))
    (' If its first axis counts channels, move that to the end: `jnp.moveaxis(x, 1, -1)`.', '')
    """
    if len(grid) < 2 or grid[0] > 4 or min(grid[1:]) <= 4:
        return ""
    return " If its first axis counts channels, move that to the end: `jnp.moveaxis(x, 1, -1)`."


@frozen_pytree
class WindowPool(Linear):
    """Sum over a window, or its average."""

    window: Window = static()
    average: bool = static()
    normalize_edges: bool = static()

    def requirements_for(self, wanted: Requirements) -> Requirements:
        return require_all_positions(wanted)

    def describe_output(self, state: SampleState) -> SampleState:
        return dataclasses.replace(state, grid=self.window.output(state.grid))

    def mask_after(self, mask: Array) -> Array:
        return self.window.mask_after(mask)

    def mix_positions(self, k: Array, state: PairState, left: Memo, right: Memo) -> Array:
        grid = k.shape[state.batch_axes :: 2]
        norm = self.norm(grid, k.dtype)[None]
        one = dataclasses.replace(state, full=True)
        return self.window.separate_sum(k, state.batch_axes) / (one.on_left(norm) * one.on_right(norm))

    def norm(self, grid: tuple[int, ...], dtype: jnp.dtype) -> Array:
        """Return what the sum at each output position is divided by."""
        if not self.average:
            return jnp.ones(self.window.output(grid), dtype)
        if self.normalize_edges:
            return self.window.joint_sum(jnp.ones(grid, dtype), 0, full=False)
        return jnp.full(self.window.output(grid), math.prod(self.window.shape), dtype)

    def apply(self, x: Array) -> Array:
        """Return the pooled signal of the finite network."""
        grid = x.shape[1:-1]
        total = self.window.joint_sum(jnp.moveaxis(x, -1, 1), 2, full=False)
        return jnp.moveaxis(total / self.norm(grid, x.dtype)[None, None], 1, -1)


@frozen_pytree
class GlobalPool(Linear):
    """Sum over all positions, or their average."""

    average: bool = static()

    def requirements_for(self, wanted: Requirements) -> Requirements:
        return require_all_positions(wanted)

    def describe_output(self, state: SampleState) -> SampleState:
        return dataclasses.replace(state, grid=())

    def mask_after(self, mask: Array) -> Array:
        return mask_of_samples(mask)

    def remember(self, state: SampleState) -> Memo:
        return () if state.mask is None or not self.average else count_unmasked(state.mask)

    def mix_positions(self, k: Array, state: PairState, left: Memo, right: Memo) -> Array:
        axes = tuple(range(state.batch_axes, k.ndim))
        if not self.average:
            return jnp.sum(k, axes)
        if isinstance(left, tuple):
            return jnp.mean(k, axes)
        counts = state.on_left(left) * state.on_right(right)
        return jnp.sum(k, axes) / counts.astype(k.dtype)

    def apply(self, params: tuple, x: Array, *, mask: Array | None = None, **kwargs: Any) -> Array:
        """Return the pooled signal of the finite network; masked positions do not count."""
        axes = tuple(range(1, x.ndim - 1))
        if self.average and mask is None:
            return jnp.mean(x, axes)
        total = jnp.sum(x, axes)
        return total if mask is None or not self.average else total / count_unmasked(mask).astype(x.dtype)[:, None]

    def is_full_after(self, state: PairState) -> bool:
        return False


@frozen_pytree
class Flattening(Linear):
    """Positions become features."""

    def requirements_for(self, wanted: Requirements) -> Requirements:
        return Requirements(False, Moments.VARIANCE if wanted.moments else Moments.NONE)

    def after_flattening(self) -> Rule:
        return Unchanged()

    def describe_output(self, state: SampleState) -> SampleState:
        # Features are no longer exchangeable, so the next layer may not be an activation.
        channels = None if state.channels is None else state.channels * math.prod(state.grid)
        return dataclasses.replace(state, grid=(), gaussian=False, channels=channels)

    def mask_after(self, mask: Array) -> Array:
        return mask_of_samples(mask)

    def mix_positions(self, k: Array, state: PairState, left: Memo, right: Memo) -> Array:
        return jnp.mean(k, tuple(range(state.batch_axes, k.ndim)))


def mask_of_samples(mask: Array) -> Array:
    """Return which samples are masked at all positions, `[n]`."""
    return jnp.all(mask.reshape(mask.shape[0], -1), 1)


def count_unmasked(mask: Array) -> Array:
    """Return how many positions of each sample are not masked, `[n]`; at least one."""
    return jnp.maximum(jnp.sum(~mask.reshape(mask.shape[0], -1), 1), 1)


def AvgPool(
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: str = "VALID",
    normalize_edges: bool = False,
    batch_axis: int = 0,
    channel_axis: int = -1,
) -> Network:
    """Average over a sliding window.

    Args:
        window_shape: size of the window along each spatial axis.
        strides: its step along each spatial axis; 1 by default.
        padding: "VALID", "SAME" or "CIRCULAR".
        normalize_edges: whether to divide by the number of cells inside the input, not by the size of the window.
        batch_axis: 0, the only choice.
        channel_axis: the last axis, -1 or its number.

    Example:
        >>> _, apply_fn, kernel_fn = AvgPool((2,), strides=(2,))
        >>> x = jnp.array([[[0.0], [2.0], [4.0], [6.0]]])
        >>> print(apply_fn((), x)[0, :, 0])
        [1. 5.]
        >>> print(kernel_fn(x, None, "nngp")[0, 0])
        [[ 1.  5.]
         [ 5. 25.]]
    """
    return _window_pool(window_shape, strides, padding, True, normalize_edges, batch_axis, channel_axis)


def SumPool(
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: str = "VALID",
    batch_axis: int = 0,
    channel_axis: int = -1,
) -> Network:
    """Sum over a sliding window; arguments as for `AvgPool`.

    Example:
        >>> _, apply_fn, _ = SumPool((2,))
        >>> print(apply_fn((), jnp.array([[[0.0], [2.0], [4.0]]]))[0, :, 0])
        [2. 6.]
    """
    return _window_pool(window_shape, strides, padding, False, False, batch_axis, channel_axis)


def GlobalAvgPool(batch_axis: int = 0, channel_axis: int = -1) -> Network:
    """Average over all positions: pixels of an image, tokens of a sequence, nodes of a graph.

    Example:
        >>> _, apply_fn, kernel_fn = GlobalAvgPool()
        >>> x = jnp.array([[[1.0], [3.0]]])
        >>> print(apply_fn((), x), kernel_fn(x, None, "nngp"))
        [[2.]] [[4.]]
    """
    return _global_pool(True, batch_axis, channel_axis)


def GlobalSumPool(batch_axis: int = 0, channel_axis: int = -1) -> Network:
    """Sum over all positions.

    Example:
        >>> _, apply_fn, _ = GlobalSumPool()
        >>> print(apply_fn((), jnp.array([[[1.0], [3.0]]])))
        [[4.]]
    """
    return _global_pool(False, batch_axis, channel_axis)


def Flatten(batch_axis: int = 0, batch_axis_out: int = 0) -> Network:
    """Turn all positions and channels into features of one vector.

    Example:
        >>> import jax
        >>> init_fn, _, kernel_fn = Flatten()
        >>> init_fn(jax.random.key(0), (-1, 4, 4, 3))[0]
        (-1, 48)
        >>> print(kernel_fn(jnp.ones((1, 2, 2, 1)), None, "nngp"))
        [[1.]]
    """
    if batch_axis != 0 or batch_axis_out != 0:
        fix = "Move the axes of the inputs with `jnp.moveaxis`."
        got = f"{batch_axis} and {batch_axis_out}"
        raise refusal("batch_axis, batch_axis_out", expected="0 and 0: samples first", got=got, fix=fix)
    return without_parameters(
        lambda shape: (shape[0], math.prod(shape[1:])),
        lambda x: x.reshape(x.shape[0], math.prod(x.shape[1:])),
        Flattening(),
    )


def _window_pool(
    shape: Sequence[int],
    strides: Sequence[int] | None,
    padding: str,
    average: bool,
    normalize_edges: bool,
    batch_axis: int,
    channel_axis: int,
) -> Network:
    check_axes(batch_axis, channel_axis)
    window = Window.of(shape, strides, padding, "window_shape")
    # On a torus there are no edges.
    pool = WindowPool(window, average, boolean(normalize_edges, "normalize_edges") and padding != "CIRCULAR")
    shape_after = lambda s: (s[0], *window.output(tuple(s[1:-1])), s[-1])  # noqa: E731
    return with_channels_at(channel_axis, without_parameters(shape_after, pool.apply, pool))


def _global_pool(average: bool, batch_axis: int, channel_axis: int) -> Network:
    check_axes(batch_axis, channel_axis)
    pool = GlobalPool(average)
    layer = network(lambda key, shape: ((shape[0], shape[-1]), ()), pool.apply, pool)
    return with_channels_at(channel_axis, layer)


def _same_padding(extent: int, size: int, stride: int) -> tuple[int, int]:
    """Return how many cells before and after make the output as large as the input divided by the stride.

    If their number is odd, there is one more after than before.
    """
    outputs = -(-extent // stride)
    total = max((outputs - 1) * stride + size - extent, 0)
    return total // 2, total - total // 2


def _sum_of_shifts(k: Array, axes: tuple[int, ...], size: int, stride: int, extent: int) -> Array:
    """Sum over `size` shifts of `k`, with all `axes` shifted together."""
    total = None  # Additions of slices are the fastest way on CPU.
    for offset in range(size):
        shifted = k
        for axis in axes:
            shifted = lax.slice_in_dim(shifted, offset, offset + stride * (extent - 1) + 1, stride, axis)
        total = shifted if total is None else total + shifted
    assert total is not None
    return total
