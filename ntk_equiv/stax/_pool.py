"""Pooling: sums and averages over windows, or over all positions, and flattening.

    window     𝒦'(s, s') = Σ_oo' 𝒦(s + o, s' + o') / (norm(s) norm(s'))
    global     𝒦' = Σ_ss' 𝒦(s, s'), divided by the squared number of positions for the average
    flatten    𝒦' = mean_s 𝒦(s, s)

and Θ' from Θ in the same way: these layers have no parameters and add nothing of their own.
"""

import dataclasses
import math
from collections.abc import Sequence

import jax.numpy as jnp

from ntk_equiv._check import boolean, refusal
from ntk_equiv._typing import Array
from ntk_equiv.stax._axes import check_axes, with_channels_at
from ntk_equiv.stax._combinators import Unchanged
from ntk_equiv.stax._network import Network, without_parameters
from ntk_equiv.stax._rule import Linear, Rule, Trace, needs_all_positions, rule, static
from ntk_equiv.stax._state import VARIANCE, Need, Pairs, Points
from ntk_equiv.stax._window import Window


@rule
class WindowPool(Linear):
    """Sum over a window, or its average."""

    window: Window = static()
    average: bool = static()
    normalize_edges: bool = static()

    def need(self, need: Need) -> Need:
        return needs_all_positions(need)

    def output(self, points: Points) -> Points:
        return dataclasses.replace(points, grid=self.window.output(points.grid))

    def spread(self, k: Array, pairs: Pairs, left: Trace, right: Trace) -> Array:
        grid = k.shape[pairs.batch_axes :: 2]
        norm = self.norm(grid, k.dtype)[None]
        one = dataclasses.replace(pairs, full=True)
        return self.window.separate_sum(k, pairs.batch_axes) / (one.on_left(norm) * one.on_right(norm))

    def norm(self, grid: tuple[int, ...], dtype: jnp.dtype) -> Array:
        """What the sum at each output position is divided by."""
        if not self.average:
            return jnp.ones(self.window.output(grid), dtype)
        if self.normalize_edges:
            return self.window.joint_sum(jnp.ones(grid, dtype), 0, full=False)
        return jnp.full(self.window.output(grid), math.prod(self.window.shape), dtype)

    def apply(self, x: Array) -> Array:
        """The pooled finite-width signal."""
        grid = x.shape[1:-1]
        total = self.window.joint_sum(jnp.moveaxis(x, -1, 1), 2, full=False)
        return jnp.moveaxis(total / self.norm(grid, x.dtype)[None, None], 1, -1)


@rule
class GlobalPool(Linear):
    """Sum over all positions, or their average."""

    average: bool = static()

    def need(self, need: Need) -> Need:
        return needs_all_positions(need)

    def output(self, points: Points) -> Points:
        return dataclasses.replace(points, grid=())

    def spread(self, k: Array, pairs: Pairs, left: Trace, right: Trace) -> Array:
        axes = tuple(range(pairs.batch_axes, k.ndim))
        return jnp.mean(k, axes) if self.average else jnp.sum(k, axes)

    def full_after(self, pairs: Pairs) -> bool:
        return False


@rule
class Flattening(Linear):
    """Positions become features."""

    def need(self, need: Need) -> Need:
        return Need(False, VARIANCE if need.points else need.points)

    def after_flattening(self) -> Rule:
        return Unchanged()

    def output(self, points: Points) -> Points:
        # Features are no longer exchangeable, so the next layer may not be an activation.
        channels = None if points.channels is None else points.channels * math.prod(points.grid)
        return dataclasses.replace(points, grid=(), gaussian=False, channels=channels)

    def spread(self, k: Array, pairs: Pairs, left: Trace, right: Trace) -> Array:
        return jnp.mean(k, tuple(range(pairs.batch_axes, k.ndim)))


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
        normalize_edges: divide by the number of cells inside the input instead of by the size of the window.
        batch_axis: 0, the only choice.
        channel_axis: that of the last axis, -1 or its number.

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
    reduce = jnp.mean if average else jnp.sum
    pool = without_parameters(
        lambda shape: (shape[0], shape[-1]),
        lambda x: reduce(x, axis=tuple(range(1, x.ndim - 1))),
        GlobalPool(average),
    )
    return with_channels_at(channel_axis, pool)
