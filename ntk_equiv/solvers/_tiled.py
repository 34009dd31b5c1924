"""A Hermitian block in tiles, of which those on and above the diagonal are enough.

The rows of a block count (b, i), with b the index of an irrep and i the rows of Φ (`ntk_equiv.infinite`). A tile
belongs to two ranges I ≤ J of i, with all b, and the tile of the exchanged ranges is its adjoint. So one product reads
every tile once and uses it twice:

    out_J += rows_I · tile,        out_I += rows_J · tile†        (I < J)

Where the tiles are (in memory, on disk, nowhere until they are asked for) is the business of their source.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv._machine import run_in_threads
from ntk_equiv.solvers._hermitian import double_precision, product

# Rows of a tile that are brought to double precision at a time: they stay in cache.
SLICE = 64


@runtime_checkable
class TileSource(Protocol):
    """Tiles of one or several matrices that have the same ranges."""

    @property
    def edges(self) -> np.ndarray:
        """Where ranges of i begin, and where the last one ends, [ranges + 1]."""

    def tiles(self, name: str) -> Iterator[tuple[int, int, Any]]:
        """Yield I, J and the tile [b · |I|, b · |J|] of the matrix with this name, for all I ≤ J."""


class TiledBlock:
    """A Hermitian block whose tiles come from a source. As a pytree it has no leaves, and it cannot be traced.

    Args:
        source: where tiles come from.
        name: which of the matrices of the source this is.
        copies: how many values b has.
        dtype: that of the entries.
    """

    def __init__(self, source: TileSource, name: str, copies: int, dtype: Any):
        self.source, self.name, self.copies, self.dtype = source, name, copies, np.dtype(dtype)

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows and columns."""
        side = self.copies * int(self.source.edges[-1])
        return side, side

    def times_rows(self, rows: Any) -> Any:
        """Return rows [..., k] times the block, multiplied in the precision of the entries.

        NumPy arrays give a NumPy array in double precision, arrays of JAX one in their own.
        """
        flat = np.asarray(rows)
        flat = flat.astype(jnp.promote_types(self.dtype, np.complex64) if np.iscomplexobj(flat) else self.dtype)
        total = self._multiply(flat, _times, _times_both)
        return total if isinstance(rows, np.ndarray) else jnp.asarray(total, jnp.promote_types(rows.dtype, self.dtype))

    def times_rows_in_double(self, rows: np.ndarray) -> np.ndarray:
        """Return the same, multiplied in double precision whatever the precision of the entries is; it takes longer."""
        rows = rows.astype(np.complex128 if np.iscomplexobj(rows) else np.float64)
        return self._multiply(rows, _times_slices, _times_both_slices)

    def _multiply(self, rows: np.ndarray, times: Callable, times_both: Callable) -> np.ndarray:
        """Return rows times the block, summed up in double precision over tiles."""
        edges = self.source.edges
        flat = rows.reshape(-1, self.copies, int(edges[-1]))
        is_complex = np.iscomplexobj(flat) or self.dtype.kind == "c"
        total = np.zeros(flat.shape, np.complex128 if is_complex else np.float64)

        def part(number: int) -> np.ndarray:
            start, stop = edges[number : number + 2]
            return flat[:, :, start:stop].reshape(len(flat), self.copies * int(stop - start))

        def add(number: int, values: jax.Array) -> None:
            into = total[:, :, edges[number] : edges[number + 1]]
            into += np.asarray(values).reshape(into.shape)

        numbers: deque[tuple[int, ...]] = deque()

        def programs() -> Iterator[Callable]:
            for i, j, tile in self.source.tiles(self.name):
                numbers.append((j,) if i == j else (j, i))
                yield times(part(i), tile) if i == j else times_both(part(i), part(j), tile)

        for products in run_in_threads(programs()):
            for number, values in zip(numbers.popleft(), products, strict=True):
                add(number, values)
        return total.reshape(rows.shape)

    def dense(self) -> jax.Array:
        """Return the entries, [k, k], where they fit into memory."""
        edges, b = self.source.edges, self.copies
        whole = np.empty((b, edges[-1], b, edges[-1]), self.dtype)
        for i, j, tile in self.source.tiles(self.name):
            rows, columns = (slice(edges[number], edges[number + 1]) for number in (i, j))
            entries = np.asarray(tile).reshape(b, edges[i + 1] - edges[i], b, edges[j + 1] - edges[j])
            whole[:, rows, :, columns] = entries
            whole[:, columns, :, rows] = entries.conj().transpose(2, 3, 0, 1)
        return jnp.asarray(whole.reshape(self.shape))


jax.tree_util.register_pytree_node(TiledBlock, lambda block: ((), block), lambda block, _: block)


@jax.jit
def _product(rows: jax.Array, tile: jax.Array) -> tuple[jax.Array]:
    return (product(rows, tile),)


@jax.jit
def _both_products(left: jax.Array, right: jax.Array, tile: jax.Array) -> tuple[jax.Array, jax.Array]:
    return product(left, tile), product(right, tile.conj().T)


def _times(rows: np.ndarray, tile: Any) -> Callable:
    return _compile(_product, rows, tile)


def _times_both(left: np.ndarray, right: np.ndarray, tile: Any) -> Callable:
    return _compile(_both_products, left, right, tile)


def _times_slices(rows: np.ndarray, tile: Any) -> Callable:
    both = _times_both_slices(rows, rows[:0], tile)
    return lambda: both()[:1]


def _times_both_slices(left: np.ndarray, right: np.ndarray, tile: Any) -> Callable:
    """Return a program for the products of double precision with a tile of single precision."""
    # Only around the products: tiles may be evaluated between them, in their own precision.
    with double_precision():
        return _compile(_multiply_slices, left, right, tile)


def _compile(function: Any, *arguments: Any) -> Callable:
    """Return a program without arguments that any thread may run."""
    arrays = tuple(jnp.asarray(array) for array in arguments)
    program = function.lower(*arrays).compile()
    return lambda: jax.block_until_ready(program(*arrays))


@jax.jit
def _multiply_slices(left: jax.Array, right: jax.Array, tile: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the products, with a few rows of the tile at a time in double precision."""
    missing = -len(tile) % SLICE
    slices = jnp.pad(tile, ((0, missing), (0, 0))).reshape(-1, SLICE, tile.shape[1])
    parts = jnp.pad(left, ((0, 0), (0, missing))).reshape(len(left), -1, SLICE).swapaxes(0, 1)

    def add(total: jax.Array, at: tuple) -> tuple[jax.Array, jax.Array]:
        part, rows = at
        rows = rows.astype(jnp.promote_types(rows.dtype, jnp.float64))
        return total + product(part, rows), product(right, rows.conj().T)

    kind = jnp.promote_types(jnp.promote_types(tile.dtype, jnp.float64), left.dtype)
    first, second = jax.lax.scan(add, jnp.zeros((len(left), tile.shape[1]), kind), (parts, slices))
    return first, second.swapaxes(0, 1).reshape(len(right), len(tile) + missing)[:, : len(tile)]
