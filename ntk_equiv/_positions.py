"""Kernels of outputs with positions, as arrays and as matrices.

An array `[n1, n2, h, h', w, w']` has the two axes of every spatial direction side by side. As a matrix, its rows count
(sample, position) of the first argument and its columns those of the second, with positions in row-major order. Leading
axes that are no such pair stay where they are: times, or samples where only positions are joined.
"""

import math
from typing import TypeVar

import jax
import numpy as np

AnyArray = TypeVar("AnyArray", jax.Array, np.ndarray)

Axes = int | tuple[int, ...]
"""One axis or several, which may be counted from the last."""


def joint(kernel: AnyArray, *, leading: int = 0) -> AnyArray:
    """Return a kernel `[n1, n2, h, h', w, w']` as a matrix over (sample, position); the first `leading` axes stay.

    >>> import numpy as np
    >>> joint(np.zeros((5, 6, 2, 2, 3, 3))).shape, joint(np.zeros((5, 6, 2, 2, 3, 3)), leading=2).shape
    ((30, 36), (5, 6, 6, 6))
    """
    rows, columns = range(leading, kernel.ndim, 2), range(leading + 1, kernel.ndim, 2)
    size = math.prod(kernel.shape[leading::2]), math.prod(kernel.shape[leading + 1 :: 2])
    return kernel.transpose(*range(leading), *rows, *columns).reshape(*kernel.shape[:leading], *size)


def apart(matrix: AnyArray, shape: tuple[int, ...]) -> AnyArray:
    """Return the last two axes as an array of the given shape, the inverse of `joint`; axes before them stay."""
    half, leading = len(shape) // 2, matrix.ndim - 2
    axes = [leading + axis for pair in zip(range(half), range(half, 2 * half), strict=True) for axis in pair]
    return matrix.reshape(*matrix.shape[:-2], *shape[::2], *shape[1::2]).transpose(*range(leading), *axes)


def canonical_axes(axes: Axes, ndim: int) -> tuple[int, ...]:
    """Return axes in increasing order, counted from the first."""
    return tuple(sorted({axis % ndim for axis in ((axes,) if isinstance(axes, int) else axes)}))
