"""Kernels of outputs with positions, as arrays and as matrices.

An array `[n1, n2, h, h', w, w']` has the two positions of every spatial axis side by side; as a matrix its rows count
(sample, position) of the first argument and its columns those of the second, positions in row-major order.
"""

import math
from typing import Any


def joint(kernel: Any) -> Any:
    """`[n1, n2, h, h', w, w']` as a matrix over (sample, position)."""
    axes = (*range(0, kernel.ndim, 2), *range(1, kernel.ndim, 2))
    return kernel.transpose(axes).reshape(math.prod(kernel.shape[::2]), math.prod(kernel.shape[1::2]))


def apart(matrix: Any, shape: tuple[int, ...]) -> Any:
    """The inverse of `joint` for an array of the given shape; any axes before those of the matrix stay."""
    half, leading = len(shape) // 2, matrix.ndim - 2
    axes = [leading + axis for pair in zip(range(half), range(half, 2 * half), strict=True) for axis in pair]
    return matrix.reshape(*matrix.shape[:-2], *shape[::2], *shape[1::2]).transpose(*range(leading), *axes)
