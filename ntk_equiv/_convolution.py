"""Convolution and pooling of finite networks, written so that CPUs are fast at them too.

    convolve   y(s) = Σ_o x(s·stride + o) W(o)
    max_pool   y(s) = max_o x(s·window + o)

over the offsets o of a window that does not leave the grid. XLA's own convolution is the one to use on accelerators;
on CPUs its gradient is several times slower than the product of patches with a matrix, and so is its pooling compared
with a maximum over axes. Which of them is compiled is decided when the program is lowered for a platform.
"""

import itertools
import math
from functools import partial

import jax.numpy as jnp
from jax import lax

from ntk_equiv._typing import Array


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

    >>> print(max_pool(jnp.arange(5.0).reshape(1, 5, 1), (2,))[0, :, 0])
    [1. 3.]
    """
    grid = tuple(extent // size for extent, size in zip(x.shape[1:-1], window, strict=True))
    kept = x[(slice(None), *(slice(count * size) for count, size in zip(grid, window, strict=True)))]
    split = [number for pair in zip(grid, window, strict=True) for number in pair]
    return kept.reshape(x.shape[0], *split, x.shape[-1]).max(tuple(range(2, 2 + 2 * len(window), 2)))


def _as_product(x: Array, W: Array, *, strides: tuple[int, ...]) -> Array:
    *size, channels, outputs = W.shape
    shifted = [_shifted(x, offset, size, strides) for offset in itertools.product(*map(range, size))]
    return jnp.concatenate(shifted, -1) @ W.reshape(math.prod(size) * channels, outputs)


def _shifted(x: Array, offset: tuple[int, ...], size: list[int], strides: tuple[int, ...]) -> Array:
    """x(s·stride + o) for all positions s."""
    for axis, (o, extent, stride) in enumerate(zip(offset, size, strides, strict=True), start=1):
        count = (x.shape[axis] - extent) // stride + 1
        x = lax.slice_in_dim(x, o, o + stride * (count - 1) + 1, stride, axis)
    return x


def _as_convolution(x: Array, W: Array, *, strides: tuple[int, ...]) -> Array:
    rank = len(strides)
    signal, filters = (0, rank + 1, *range(1, rank + 1)), (rank + 1, rank, *range(rank))
    spec = lax.ConvDimensionNumbers(signal, filters, signal)
    return lax.conv_general_dilated(x, W, strides, "VALID", dimension_numbers=spec)
