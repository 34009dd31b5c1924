"""Convolution and pooling of finite networks, written so that CPUs are fast at them too.

    convolve   y(s) = Σ_o x(s·stride + o) W(o)
    max_pool   y(s) = max_o x(s·window + o)

over the offsets o of a window that does not leave the grid. XLA's own convolution is the one to use on accelerators;
on CPUs its gradient is several times slower than the product of patches with a matrix, and so is its pooling compared
with a maximum over axes. Which of them is compiled is decided when the program is lowered for a platform.

Images have their channels last, and often few of them. A core computes with 8 or 16 neighbours in memory at a time, so
on CPUs samples come last inside of these functions, if there are enough of them. XLA finds that two such functions in a
row agree on this, and moves data only before the first and after the last.
"""

import itertools
import math
from collections.abc import Callable
from functools import partial, reduce

import jax
import jax.numpy as jnp
from jax import lax

from ntk_equiv._typing import Array

# From so many samples on they come last.
MANY_SAMPLES = 16
# The largest window whose maximum is written out, entry by entry.
SMALL_WINDOW = 16


def convolve(x: Array, W: Array, strides: tuple[int, ...]) -> Array:
    """`x` [n, grid..., channels] convolved with `W` [filter..., channels, outputs], without padding.

    >>> print(convolve(jnp.arange(4.0).reshape(1, 4, 1), jnp.ones((2, 1, 1)), (1,))[0, :, 0])
    [1. 3. 5.]
    """
    return lax.platform_dependent(
        x, W, cpu=partial(_as_product, strides=strides), default=partial(_as_convolution, strides=strides)
    )


def max_pool(x: Array, window: tuple[int, ...]) -> Array:
    """The maximum over windows that do not overlap; what is left over at the end of an axis is left out.

    Where several entries are the largest, they share the derivative in equal parts.

    >>> print(max_pool(jnp.arange(5.0).reshape(1, 5, 1), (2,))[0, :, 0])
    [1. 3.]
    """
    if math.prod(window) > SMALL_WINDOW:
        return _over_windows(x, window).max(tuple(range(2, 2 + 2 * len(window), 2)))
    return lax.platform_dependent(
        x,
        cpu=lambda x: _with_samples_last(partial(_largest_in_windows, window=window), x),
        default=partial(_largest_in_windows, window=window),
    )


def _as_product(x: Array, W: Array, *, strides: tuple[int, ...]) -> Array:
    *size, channels, outputs = W.shape
    matrix = W.reshape(math.prod(size) * channels, outputs)

    if x.shape[0] < MANY_SAMPLES:
        return _patches(x, size, strides, -1) @ matrix

    def product(x: Array) -> Array:
        columns = _patches(x, size, strides, 0)
        return (matrix.T @ columns.reshape(len(matrix), -1)).reshape(outputs, *columns.shape[1:])

    return _with_samples_last(product, x)


def _with_samples_last(function: Callable[[Array], Array], x: Array) -> Array:
    """Apply a function of the grid axes, in the middle, with the first and the last axis exchanged if that pays."""
    if x.shape[0] < MANY_SAMPLES:
        return function(x)
    return jnp.swapaxes(function(jnp.swapaxes(x, 0, -1)), 0, -1)


def _over_windows(x: Array, window: tuple[int, ...]) -> Array:
    """Split every grid axis in two, [..., windows, entries of a window, ...]."""
    grid = tuple(extent // size for extent, size in zip(x.shape[1:-1], window, strict=True))
    kept = x[(slice(None), *(slice(count * size) for count, size in zip(grid, window, strict=True)))]
    split = [number for pair in zip(grid, window, strict=True) for number in pair]
    return kept.reshape(x.shape[0], *split, x.shape[-1])


def _largest_in_windows(x: Array, window: tuple[int, ...]) -> Array:
    split = _over_windows(x, window)
    offsets = itertools.product(*map(range, window))
    return _largest(tuple(split[(slice(None), *(i for o in offset for i in (slice(None), o)))] for offset in offsets))


@jax.custom_jvp
def _largest(parts: tuple[Array, ...]) -> Array:
    """Return the entrywise maximum of arrays."""
    return reduce(jnp.maximum, parts)


@_largest.defjvp
def _largest_jvp(primals: tuple, tangents: tuple) -> tuple:
    # By hand, because XLA would count the largest entries of a window again for each of its entries.
    (parts,), (changes,) = primals, tangents
    value = _largest(parts)
    is_largest = [part == value for part in parts]
    share = 1 / sum(chosen.astype(value.dtype) for chosen in is_largest)
    return value, sum(jnp.where(chosen, share * change, 0) for chosen, change in zip(is_largest, changes, strict=True))


def _patches(x: Array, size: list[int], strides: tuple[int, ...], channels: int) -> Array:
    """Return x(s·stride + o) for all positions s, with all offsets o and channels along the axis of channels."""
    # One axis after the other: two times three shifts for nine offsets, and as many sums in the derivative.
    for axis, extent, stride in reversed([*zip(range(1, 1 + len(size)), size, strides, strict=True)]):
        reach = x.shape[axis] - extent
        shifted = [lax.slice_in_dim(x, o, o + reach // stride * stride + 1, stride, axis) for o in range(extent)]
        x = jnp.concatenate(shifted, channels)
    return x


def _as_convolution(x: Array, W: Array, *, strides: tuple[int, ...]) -> Array:
    rank = len(strides)
    signal, filters = (0, rank + 1, *range(1, rank + 1)), (rank + 1, rank, *range(rank))
    spec = lax.ConvDimensionNumbers(signal, filters, signal)
    return lax.conv_general_dilated(x, W, strides, "VALID", dimension_numbers=spec)
