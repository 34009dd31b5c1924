"""A Hermitian block whose rows are spread over all devices of all processes.

The rows of a block count (b, i), as in `solvers/_tiled.py`. Device p holds all b for a range I_p of i, cut into strips
along ranges J of the columns. With u the rows to be multiplied, known to all devices, a product is local but for one
gather of its result:

    out_p = Σ_J u_J · strip_{p,J}†,        out = (out_1, out_2, …)

because the block is Hermitian. Ranges I_p have the same length, so the last ones may reach beyond the end of the block:
such rows are zero, and are cut off after the gather.

Every process runs the same program. What it computes on its own host could differ from the others by rounding, and then
lead it to other decisions: `of_first_process` makes them all the same, `failing_together` makes refusals common.
"""

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from ntk_equiv.solvers._hermitian import double_precision

AXIS = "rows"


def all_devices() -> Mesh:
    """Return the devices of all processes, along which rows are dealt out."""
    return Mesh(np.array(jax.devices()), (AXIS,))


class ShardedBlock:
    """A Hermitian block in strips on several devices. As a pytree it has no leaves, and it cannot be traced.

    All processes must call its methods together, with the same arguments.

    Args:
        strips: for each range J of i an array [b, i, (b', j)], sharded over the mesh along i; see `join_strips`.
        edges: where the ranges J begin, and where the last one ends.
        mesh: the devices.
    """

    def __init__(self, strips: Sequence[jax.Array], edges: np.ndarray, mesh: Mesh):
        self.strips, self.edges, self.mesh = tuple(strips), edges, mesh
        self.copies, self.dtype = strips[0].shape[0], np.dtype(strips[0].dtype)

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows and columns."""
        side = self.copies * int(self.edges[-1])
        return side, side

    def times_rows(self, rows: Any) -> Any:
        """Return rows [..., k] times the block, summed up in double precision over strips.

        NumPy arrays give a NumPy array in double precision, arrays of JAX one in their own.
        """
        flat = np.asarray(rows).reshape(-1, self.copies, int(self.edges[-1]))
        if np.iscomplexobj(flat) and self.dtype.kind != "c":
            real, imag = np.split(self._multiply(np.concatenate([flat.real, flat.imag])), 2)
            total = (real + 1j * imag).reshape(rows.shape)
        else:
            total = self._multiply(flat).reshape(rows.shape)
        return total if isinstance(rows, np.ndarray) else jnp.asarray(total, jnp.promote_types(rows.dtype, self.dtype))

    def times_rows_in_double(self, rows: np.ndarray) -> np.ndarray:
        """Return the same, multiplied in double precision whatever the precision of the entries is; it takes longer."""
        flat = rows.reshape(-1, self.copies, int(self.edges[-1]))
        return self._multiply(flat, np.promote_types(flat.dtype, np.promote_types(self.dtype, np.float64))).reshape(
            rows.shape
        )

    def dense(self) -> jax.Array:
        """Return the entries, [k, k], where they fit into the memory of every process."""
        whole = [multihost_utils.process_allgather(strip, tiled=True) for strip in self.strips]
        columns = [part[:, : self.edges[-1]].reshape(self.copies, self.edges[-1], self.copies, -1) for part in whole]
        return jnp.asarray(np.concatenate(columns, axis=3).reshape(self.shape))

    def agree_on(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the arrays of the first process, by which all processes go on in the same way."""
        return of_first_process(*arrays)

    def _multiply(self, rows: np.ndarray, dtype: Any = None) -> np.ndarray:
        """Return rows [c, b, i] times the block, multiplied in the precision of the entries unless another is given."""
        # conj(conj(u) · strip) instead of u · conj(strip), which would be a copy of the strip.
        rows = rows.astype(self.dtype if dtype is None else dtype).conj()
        cuts = zip(self.edges[:-1], self.edges[1:], strict=True)
        with double_precision():
            parts = [self._replicate(rows[:, :, start:stop].reshape(len(rows), -1)) for start, stop in cuts]
            found = _times_strips(parts, self.strips, self.mesh)
        return np.asarray(found.addressable_data(0))[:, :, : self.edges[-1]].conj()

    def _replicate(self, rows: np.ndarray) -> jax.Array:
        everywhere = NamedSharding(self.mesh, P())
        return jax.make_array_from_callback(rows.shape, everywhere, lambda index: rows[index])


jax.tree_util.register_pytree_node(ShardedBlock, lambda block: ((), block), lambda block, _: block)


def join_strips(local: Sequence[jax.Array], mesh: Mesh) -> jax.Array:
    """Return one array over all devices from those on the devices of this process, [b, i, (b', j)] each."""
    copies, rows, columns = local[0].shape
    shape, along_rows = (copies, rows * mesh.size, columns), NamedSharding(mesh, P(None, AXIS))
    return jax.make_array_from_single_device_arrays(shape, along_rows, list(local))


@partial(jax.jit, static_argnames="mesh")
def _times_strips(rows: list[jax.Array], strips: tuple[jax.Array, ...], mesh: Mesh) -> jax.Array:
    """Return Σ_J rows_J · strip_Jᵀ for all rows of the block, [c, b, i], on every device."""

    def on_device(rows: list[jax.Array], strips: tuple[jax.Array, ...]) -> jax.Array:
        total: Any = 0
        for part, strip in zip(rows, strips, strict=True):
            along = (((1,), (2,)), ((), ()))
            values = lax.dot_general(part, strip.astype(part.dtype), along, precision=lax.Precision.HIGHEST)
            total = total + values.astype(jnp.promote_types(values.dtype, jnp.float64))
        return lax.all_gather(total, AXIS, axis=2, tiled=True)

    specs = (P(), P(None, AXIS))
    # The check of `shard_map` does not know that what is gathered is the same everywhere.
    return jax.shard_map(on_device, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)(rows, strips)


def of_first_process(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the arrays of the first process in all processes, to the last bit; shapes may differ, not ranks."""
    if jax.process_count() == 1:
        return arrays
    sizes = np.array([size for array in arrays for size in array.shape], np.int32)
    sizes = np.asarray(multihost_utils.broadcast_one_to_all(sizes))
    ends = np.cumsum([array.ndim for array in arrays])[:-1]
    shapes = [tuple(map(int, part)) for part in np.split(sizes, ends)]
    return tuple(_of_first_process(array, shape) for array, shape in zip(arrays, shapes, strict=True))


def _of_first_process(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    own = array if jax.process_index() == 0 else np.zeros(shape, array.dtype)
    if not own.size:
        return own
    # As integers: JAX would round numbers in double precision, unless it was told to use it.
    words = np.ascontiguousarray(own).reshape(-1).view(np.uint32)
    return np.array(multihost_utils.broadcast_one_to_all(words)).view(array.dtype).reshape(shape)


@contextlib.contextmanager
def failing_together() -> Iterator[None]:
    """Raise an error in all processes if one of them does: the others would wait for it."""
    error: Exception | None = None
    try:
        yield
    except Exception as found:
        error = found
    failed = multihost_utils.process_allgather(np.array(error is not None)) if jax.process_count() > 1 else np.zeros(1)
    if error is not None:
        raise error
    if failed.any():
        raise RuntimeError(f"process {int(np.argmax(failed))} failed, and the others stop too; see its own message")
