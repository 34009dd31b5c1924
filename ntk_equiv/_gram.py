"""Kernels on many samples.

A Gram matrix is evaluated in tiles of bounded memory and written straight into the result. Of Θ(X, X) only the tiles on
and above the diagonal are evaluated: Θ(x', x)(s', s) = Θ(x, x')(s, s') gives the others. Tiles have the same few sizes
whatever the number of samples is, so that few programs have to be compiled.

Any `kernel_fn` will do. One in two halves (`SplitKernel`, as ours are) is asked about each sample once and about each
pair once; other ones are called on two batches of samples at a time.
"""

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm.auto import tqdm

from ntk_equiv._check import (
    boolean,
    canonical_get,
    evaluating_what_is_known,
    function,
    is_concrete,
    positive_integer,
    refusal,
    samples_in,
)
from ntk_equiv._machine import check_fits
from ntk_equiv._positions import joint
from ntk_equiv._pytrees import dataclass_pytree
from ntk_equiv._typing import CheapPerSample, Get, Inputs, KernelFunction, SplitKernel, select

# Large enough to keep all cores busy, small enough for a few such arrays to stay in cache.
ENTRIES_PER_TILE = 160_000
TILES_UNDER_WAY = 4
# Sizes that few samples are filled up to, and how full a range of one of several tiles must be for that.
FEW, FILLED = (32, 128), 2 / 3
KERNEL_FUNCTIONS = "Pass the third part of a triple from `ntk_equiv.stax`, as in `net.kernel_fn`."

Index = int | jax.Array


def gram(
    kernel_fn: KernelFunction | tuple,
    x1: Inputs,
    x2: Inputs | None = None,
    get: Get = ("nngp", "ntk"),
    *,
    tile: int | None = None,
    progress: bool = False,
) -> Any:
    """Kernels of all pairs of samples, in tiles: Θ(x1, x2), or exactly symmetric Θ(x1, x1).

    Peak memory is the result plus a few tiles. With several local devices the tiles are dealt out to all of them.
    Inside `jit`, `grad` and `vmap` the whole matrix is evaluated at once.

    Args:
        kernel_fn: from `ntk_equiv.stax`, from neural-tangents, or any function with the same arguments.
        x1: samples `[n1, ...]`, or a pytree of arrays with a common leading axis.
        x2: other samples; `None` stands for `x1` and halves the work.
        get: `"nngp"`, `"ntk"`, a tuple of these, or `None` for both.
        tile: how many samples a tile has along each side; chosen by the size of the samples if not given.
        progress: whether to show a progress bar.

    Returns:
        One array `[n1, n2, ...]` for a single name, a named tuple of arrays for several.

    Raises:
        ValueError: if a sample contains NaN or infinity, naming the first such sample.

    Example:
        >>> from ntk_equiv import stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(8), stax.Relu(), stax.Dense(1))
        >>> print(gram(kernel_fn, jnp.eye(3), None, "ntk").round(4))
        [[0.3333 0.0531 0.0531]
         [0.0531 0.3333 0.0531]
         [0.0531 0.0531 0.3333]]
    """
    kernel = split_kernel(kernel_function(kernel_fn))
    get, progress = canonical_get(get), boolean(progress, "progress")
    tile = None if tile is None else positive_integer(tile, "tile")
    x1, x2 = check_samples(kernel, x1, "x1"), None if x2 is None else check_samples(kernel, x2, "x2")
    return evaluate_gram(kernel, x1, x2, get, tile=tile, progress=progress)


def kernel_function(kernel_fn: KernelFunction | tuple) -> KernelFunction:
    """Return `kernel_fn`, or the third part of a network (init_fn, apply_fn, kernel_fn); refuse anything else."""
    if isinstance(kernel_fn, tuple) and len(kernel_fn) == 3 and all(map(callable, kernel_fn)):
        return kernel_fn[2]
    return function(kernel_fn, "kernel_fn", fix=KERNEL_FUNCTIONS)


def split_kernel(kernel_fn: KernelFunction) -> SplitKernel:
    """Return `kernel_fn` in two halves: as it is if it has them, else as a `PlainKernel`."""
    return kernel_fn if isinstance(kernel_fn, SplitKernel) else PlainKernel(kernel_fn)


def check_samples(kernel: SplitKernel, x: Inputs, argument: str) -> Inputs:
    """Return `x` as the kernel takes it; refuse what is no batch of samples, or not finite where that is known."""
    x = kernel.check_samples(x, argument)
    if samples_in(x, argument) and is_concrete(x):
        _check_finite(x, argument)
    return x


def evaluate_gram(
    kernel: SplitKernel,
    x1: Inputs,
    x2: Inputs | None,
    get: str | tuple[str, ...],
    *,
    tile: int | None = None,
    progress: bool = False,
) -> Any:
    """Return what `gram` does, for arguments that were checked before."""
    n1, n2 = _count(x1), _count(x1 if x2 is None else x2)
    if not is_concrete((x1, x2, kernel)) or n1 == 0 or n2 == 0:
        whole = kernel(x1, x2, get)
        return jax.tree.map(_symmetrize, whole) if x2 is None else whole
    # Known samples may meet a function that is being traced: what is known is evaluated now, not in its program.
    with evaluating_what_is_known():
        if isinstance(get, str) or not isinstance(kernel, CheapPerSample):
            return _evaluate_in_tiles(kernel.restrict(get), x1, x2, get, tile, progress)
        # One program for both orders of the two kernels.
        found = _evaluate_in_tiles(kernel.restrict(get), x1, x2, tuple(sorted(get)), tile, progress)
        return select(found, get)


def _evaluate_in_tiles(
    kernel: SplitKernel,
    x1: Inputs,
    x2: Inputs | None,
    get: str | tuple[str, ...],
    tile: int | None,
    progress: bool,
) -> Any:
    """Return the kernels of known samples, at least one on each side."""
    n1, n2 = _count(x1), _count(x1 if x2 is None else x2)
    sizes = _tile_sizes(kernel, x1, n1, n2) if tile is None else (min(tile, n1), min(tile, n2))
    left = _Ranges(kernel, x1, sizes[0])
    right = left if x2 is None and sizes[0] == sizes[1] else _Ranges(kernel, x1 if x2 is None else x2, sizes[1])
    corners = [(row, column) for row in left.starts for column in right.starts if x2 is not None or row <= column]
    tiles = _evaluate_tiles(kernel, left, right, corners, get)
    result: _InHostMemory | _InDeviceMemory | None = None
    for (row, column), entries in tqdm(zip(corners, tiles, strict=True), total=len(corners), disable=not progress):
        if result is None:
            kind = _InHostMemory if jax.default_backend() == "cpu" else _InDeviceMemory
            _check_size(entries, n1, n2)
            result = kind(entries, n1, n2, x2 is None)
        result.place(entries, row, column)
    assert result is not None
    return result.arrays()


class _Ranges:
    """What a kernel knows about samples, in ranges of one size, so that one program serves all of them.

    The last ranges overlap. Samples that are fewer than a range are filled up with copies of the last one.

    Args:
        kernel: any kernel function.
        x: samples.
        size: how many a range has.
    """

    def __init__(self, kernel: SplitKernel, x: Inputs, size: int):
        self.size, count = size, _count(x)
        self.starts = [max(0, min(start, count - size)) for start in range(0, count, size)]
        self._apart = isinstance(kernel, CheapPerSample)
        if self._apart:
            # NumPy cuts without a program for each shape.
            x = jax.tree.map(np.asarray, x) if jax.default_backend() == "cpu" else x
            self._known = {start: kernel.per_sample(_take(x, start, size)) for start in self.starts}
        else:
            self._known = {0: kernel.per_sample(x)}

    def __getitem__(self, start: int) -> Any:
        """Return what is known about the range that begins with a sample."""
        return self._known[start] if self._apart else _cut(self._known[0], start, self.size)


def _take(x: Inputs, start: int, size: int) -> Inputs:
    """Return a range of samples, filled up if there are too few."""
    missing = start + size - _count(x)
    if missing <= 0:
        return jax.tree.map(lambda leaf: leaf[start : start + size], x)
    return jax.tree.map(lambda leaf: np.concatenate([leaf, np.repeat(leaf[-1:], missing, axis=0)]), x)


@partial(jax.jit, static_argnames="size")
def _cut(tree: Any, start: Index, size: int) -> Any:
    return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, size), tree)


@dataclass_pytree
@dataclass(frozen=True)
class PlainKernel:
    """A kernel function from elsewhere, in two halves: the first does nothing, the second calls the function."""

    kernel_fn: KernelFunction = field(metadata={"static": True})

    def __call__(self, x1: Inputs, x2: Inputs | None = None, get: Get = None) -> Any:
        """Return what `get` names, also where the function returns a record with more than it was asked for."""
        found, names = self.kernel_fn(x1, x2, get), (get,) if isinstance(get, str) else tuple(get or ())
        if not names or not all(hasattr(found, name) for name in names):
            return found
        return select(found, get if isinstance(get, str) else names)

    def check_samples(self, x: Inputs, argument: str = "x") -> Inputs:
        """Return `x` as it is: the function itself knows what it takes."""
        return x

    def restrict(self, get: str | tuple[str, ...]) -> "PlainKernel":
        """Return this function: it does nothing for each sample."""
        return self

    def per_sample(self, x: Inputs) -> Inputs:
        """Return the samples themselves."""
        return x

    def per_pair(self, left: Inputs, right: Inputs, get: Get = None) -> Any:
        """Call the function."""
        return self(left, right, get)

    def entries_per_pair(self, x: Inputs) -> int:
        """Guess that a pair takes as many numbers as the largest array of a sample has positions."""
        return max(math.prod(leaf.shape[1:-1]) for leaf in jax.tree.leaves(x))


@partial(jax.jit, static_argnames="get")
def kernel_diagonal(kernel_fn: SplitKernel, x: Inputs, get: str = "nngp") -> jax.Array:
    """Return the diagonal of 𝒦(x, x), or of Θ(x, x), over samples and positions, [m, ...]."""

    def of_one(sample: Inputs) -> jax.Array:
        kernel = kernel_fn(jax.tree.map(lambda leaf: leaf[None], sample), None, get)
        return jnp.diagonal(joint(kernel))

    return jax.vmap(of_one)(x)


def _evaluate_tiles(
    kernel: SplitKernel, left: _Ranges, right: _Ranges, corners: list[tuple[int, int]], get: Any
) -> Iterator[Any]:
    """Yield the tiles at `corners`, in order."""
    # A few are always under way, because XLA runs each of them on one core of a CPU.
    devices = jax.local_devices()
    under_way: deque[Any] = deque()
    for number, (row, column) in enumerate(corners):
        sides = left[row], right[column]
        if len(devices) > 1:
            sides = jax.device_put(sides, devices[number % len(devices)])
        under_way.append(_tile(kernel, *sides, get))
        if len(under_way) == TILES_UNDER_WAY * len(devices):
            yield _on(devices[0], under_way.popleft())
    while under_way:
        yield _on(devices[0], under_way.popleft())


def _on(device: jax.Device, entries: Any) -> Any:
    return entries if jax.tree.leaves(entries)[0].devices() == {device} else jax.device_put(entries, device)


@partial(jax.jit, static_argnames="get")
def _tile(kernel: SplitKernel, left: Any, right: Any, get: Any) -> Any:
    return kernel.per_pair(left, right, get)


class _InHostMemory:
    """The result where it is cheapest to write on a CPU: in NumPy arrays that JAX takes over without a copy."""

    def __init__(self, entries: Any, n1: int, n2: int, symmetric: bool):
        self.symmetric = symmetric
        self.whole = jax.tree.map(lambda k: _empty_aligned((n1, n2, *k.shape[2:]), k.dtype), entries)

    def place(self, entries: Any, row: int, column: int) -> None:
        def write(whole: np.ndarray, part: jax.Array) -> None:
            diagonal = self.symmetric and row == column
            # Rows and columns beyond the result belong to samples that only fill up.
            values = np.asarray(part)[: len(whole) - row, : whole.shape[1] - column]
            values = _symmetrize(values) if diagonal else values
            whole[row : row + values.shape[0], column : column + values.shape[1]] = values
            if self.symmetric and not diagonal:
                whole[column : column + values.shape[1], row : row + values.shape[0]] = _mirror(values)

        jax.tree.map(write, self.whole, entries)

    def arrays(self) -> Any:
        return jax.device_put(self.whole)


class _InDeviceMemory:
    """The result in the memory of an accelerator, updated in place."""

    def __init__(self, entries: Any, n1: int, n2: int, symmetric: bool):
        self.symmetric = symmetric
        self.whole = jax.tree.map(lambda k: jnp.zeros((n1, n2, *k.shape[2:]), k.dtype), entries)

    def place(self, entries: Any, row: int, column: int) -> None:
        n1, n2 = jax.tree.leaves(self.whole)[0].shape[:2]
        entries = jax.tree.map(lambda part: part[: n1 - row, : n2 - column], entries)
        self.whole = _update(self.whole, entries, row, column, self.symmetric, self.symmetric and row == column)

    def arrays(self) -> Any:
        return self.whole


@partial(jax.jit, static_argnames=("symmetric", "diagonal"), donate_argnums=0)
def _update(whole: Any, entries: Any, row: Index, column: Index, symmetric: bool, diagonal: bool) -> Any:
    def write(whole: jax.Array, part: jax.Array) -> jax.Array:
        rest = (0,) * (part.ndim - 2)
        whole = jax.lax.dynamic_update_slice(whole, _symmetrize(part) if diagonal else part, (row, column, *rest))
        if not symmetric or diagonal:
            return whole
        return jax.lax.dynamic_update_slice(whole, _mirror(part), (column, row, *rest))

    return jax.tree.map(write, whole, entries)


def _empty_aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an uninitialised array that starts at a multiple of 64 bytes, so that JAX takes it without a copy."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype).reshape(shape)


def _mirror(k: Any) -> Any:
    """Return the kernels of exchanged samples: sample axes swapped, and the two positions of each spatial axis too."""
    return k.transpose([axis ^ 1 for axis in range(k.ndim)])


def _symmetrize(k: Any) -> Any:
    """Return a tile on the diagonal, whose two triangles may differ by rounding, exactly symmetric."""
    return (k + _mirror(k)) / 2


def _tile_sizes(kernel: SplitKernel, x: Inputs, n1: int, n2: int) -> tuple[int, int]:
    """Return how many samples a tile has on each side.

    Few samples are filled up to one of a few sizes. That costs at most the time of one tile, and then most calls with
    few samples share their programs, which take far longer to compile.
    """
    largest = _tile_size(kernel, x)
    if not isinstance(kernel, CheapPerSample):
        return min(largest, n1), min(largest, n2)
    one_tile = max(n1, n2) <= largest

    def size(n: int) -> int:
        if one_tile:
            return next(size for size in (*FEW, largest) if size >= n or size == largest)
        return largest if n > FILLED * largest else n

    return min(largest, size(n1)), min(largest, size(n2))


def _tile_size(kernel: SplitKernel, x: Inputs) -> int:
    return max(1, math.isqrt(ENTRIES_PER_TILE // kernel.entries_per_pair(x)))


def _check_size(entries: Any, n1: int, n2: int) -> None:
    """Refuse a result that does not fit into memory, once the first tile has shown how large it is."""
    kernels = jax.tree.leaves(entries)
    size = sum(n1 * n2 * math.prod(k.shape[2:]) * k.dtype.itemsize for k in kernels)
    check_fits(
        size,
        "x1",
        what=f"{len(kernels)} of {n1} × {n2} samples in {kernels[0].dtype}, a total",
        fix='Ask for one kernel (`get="ntk"`), pass float32 inputs or fewer samples, or take a few rows at a time, '
        "`gram(kernel_fn, x1[:1000], x1)`.",
    )


def _count(x: Inputs) -> int:
    """Return the number of samples."""
    return jax.tree.leaves(x)[0].shape[0]


def _check_finite(x: Inputs | None, argument: str) -> None:
    for leaf in jax.tree.leaves(x):
        with evaluating_what_is_known():
            bad = np.asarray(_not_finite(leaf))
        if bad.any():
            raise refusal(
                argument,
                expected="finite",
                got=f"NaN or infinity in {int(bad.sum())} of {bad.size} samples, first in sample {int(bad.argmax())}",
                fix="Remove or repair these samples.",
            )


@jax.jit
def _not_finite(samples: jax.Array) -> jax.Array:
    return ~jnp.isfinite(samples).reshape(samples.shape[0], -1).all(axis=1)
