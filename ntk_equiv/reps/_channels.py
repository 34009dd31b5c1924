"""τ: how a group acts on the last axis of an array, whatever the axes before it are.

    (τ(g)x)_a = x_a                  `Identity`
    (τ(g)x)_a = x_{τ⁻¹(g)a}          `Permutations`, as a gather
    (τ(g)x)_a = Σ_b τ(g)_ab x_b      `Matrices`
    (τ(R)x)_a = Σ_b fn(R)_ab x_b     `MatrixFunction`, for a continuous group whose element is the matrix R

Each has the length of the axis (`dim`) and its `matrices`. Those of finite groups can be restricted to some of the
elements (`restrict`). Tables live on the host and are constants of a compiled function. They take the precision of the
array they act on.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jax.typing import ArrayLike

from ntk_equiv._check import refusal

Element = ArrayLike
"""An integer of a finite group, which may be traced, or a matrix of a continuous one."""


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """A row of numbers for each group element: read-only, equal and hashed by value."""

    entries: np.ndarray

    def __post_init__(self) -> None:
        entries = np.array(self.entries)
        entries.flags.writeable = False
        object.__setattr__(self, "entries", entries)

    @functools.cached_property
    def _key(self) -> tuple:
        return (type(self).__name__, self.entries.shape, self.entries.dtype.str, self.entries.tobytes())

    @functools.cached_property
    def _hash(self) -> int:
        return hash(self._key)

    def __reduce__(self) -> tuple:
        return Table, (self.entries,)  # without the cached hash, which is valid in this process only

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Table) and self._key == other._key)

    def __hash__(self) -> int:
        return self._hash

    def __getitem__(self, g: Element) -> np.ndarray | jax.Array:
        """The row of `g`: a constant if `g` is an `int`, a lookup if it is only known at run time."""
        return self.entries[g] if isinstance(g, int) else jnp.asarray(self.entries)[g]

    def restrict(self, embedding: tuple[int, ...]) -> "Table":
        """The rows of some of the elements."""
        return Table(self.entries[list(embedding)])


@dataclasses.dataclass(frozen=True)
class Identity:
    """Every element leaves everything unchanged; `dim` is None where any size will do."""

    dim: int | None = None

    def __call__(self, g: Element, x: jax.Array) -> jax.Array:
        """`x` itself."""
        return x

    def matrices(self, order: int) -> np.ndarray:
        """The matrices, [order, dim, dim]."""
        return np.broadcast_to(np.eye(self.dim or 1), (order, self.dim or 1, self.dim or 1))

    def restrict(self, embedding: tuple[int, ...]) -> "Identity":
        """The same action of some of the elements."""
        return self


@dataclasses.dataclass(frozen=True)
class Permutations:
    """Entries change places: row g of `sources` says where each entry comes from."""

    sources: Table

    @property
    def dim(self) -> int:
        """How many entries are permuted."""
        return self.sources.entries.shape[1]

    def __call__(self, g: Element, x: jax.Array) -> jax.Array:
        """The entries of `x` in their new places."""
        return jnp.take(x, self.sources[g], axis=-1, mode="clip")

    def matrices(self, order: int) -> np.ndarray:
        """The permutation matrices, [order, dim, dim]."""
        return np.eye(self.dim)[self.sources.entries]

    def restrict(self, embedding: tuple[int, ...]) -> "Permutations":
        """The same action of some of the elements."""
        return Permutations(self.sources.restrict(embedding))


@dataclasses.dataclass(frozen=True)
class Matrices:
    """A matrix for each element."""

    table: Table

    @property
    def dim(self) -> int:
        """The size of the matrices."""
        return self.table.entries.shape[1]

    def __call__(self, g: Element, x: jax.Array) -> jax.Array:
        """The matrix of `g` times the last axis of `x`."""
        return _multiply(self.table[g], x)

    def matrices(self, order: int) -> np.ndarray:
        """The matrices, [order, dim, dim]."""
        return self.table.entries

    def restrict(self, embedding: tuple[int, ...]) -> "Matrices":
        """The same action of some of the elements."""
        return Matrices(self.table.restrict(embedding))


@dataclasses.dataclass(frozen=True)
class MatrixFunction:
    """A matrix for each matrix of a continuous group."""

    fn: Callable
    dim: int

    def __call__(self, g: Element, x: jax.Array) -> jax.Array:
        """fn(g) times the last axis of `x`."""
        return _multiply(self.fn(g), x)

    def matrices(self, elements: ArrayLike) -> np.ndarray:
        """The matrices of the given elements, on the host."""
        with jax.ensure_compile_time_eval():
            return np.array([np.asarray(self.fn(R)) for R in jnp.asarray(elements)])


Channels = Identity | Permutations | Matrices | MatrixFunction


def check_last_axis(channels: Channels, shape: tuple[int, ...]) -> None:
    """Refuse arrays of a shape whose last axis `channels` cannot act on."""
    if channels.dim is not None and (not shape or shape[-1] != channels.dim):
        fix = "The representation acts on the last axis; axes before it are a batch."
        raise refusal("x", expected=f"an array with {channels.dim} entries on its last axis", got=shape, fix=fix)


def _multiply(matrix: ArrayLike, x: jax.Array) -> jax.Array:
    """The matrix times the last axis of x, in the precision of x."""
    dtype = x.dtype if jnp.issubdtype(x.dtype, jnp.inexact) else jnp.result_type(float)
    if jnp.iscomplexobj(matrix):
        dtype = jnp.promote_types(dtype, jnp.complex64)
    matrix, x = jnp.asarray(matrix).astype(dtype), x.astype(dtype)
    # The highest precision, because accelerators otherwise round the factors, and rotations would not be orthogonal.
    return jnp.einsum("ij,...j->...i", matrix, x, precision=jax.lax.Precision.HIGHEST)


_ANGLE = 0.1  # of the rotations whose logarithms are the generators: small enough for frequencies up to 30


def wrap_numpy_function(fn: Callable, n: int, dim: int, /) -> Callable:
    """A function of matrices of a group that is written in NumPy, made ready for compiling, mapping and deriving.

    It is called on the host. Since fn(AB) = fn(A) fn(B), its derivative along a curve in the group is
    d fn(R) = fn(R) dρ(Rᵀ dR), and dρ of the rotation in a plane is the logarithm of fn at a small rotation.

    Args:
        fn: from matrices [n, n] of the group to matrices [dim, dim] with fn(AB) = fn(A) fn(B).
        n: the size of the matrices of the group.
        dim: the size of the matrices that act.
    """
    planes = np.array([(i, j) for i in range(n) for j in range(i)], dtype=int).reshape(-1, 2)
    generators = np.array([_generator(fn, n, i, j) for i, j in planes.tolist()]).reshape(-1, dim, dim)
    is_complex = np.iscomplexobj(fn(np.eye(n)))

    def result_dtype(R: ArrayLike) -> np.dtype:
        return jnp.promote_types(R.dtype, jnp.complex64) if is_complex else R.dtype  # type: ignore[union-attr]

    def evaluate(R: ArrayLike) -> np.ndarray:
        return np.asarray(fn(np.asarray(R)), result_dtype(R))

    @jax.custom_jvp
    def call_on_host(R: jax.Array) -> jax.Array:
        shape = jax.ShapeDtypeStruct((dim, dim), result_dtype(R))
        return jax.pure_callback(evaluate, shape, R, vmap_method="sequential")

    @call_on_host.defjvp
    def _derivative(primals: tuple, tangents: tuple) -> tuple:
        (R,), (dR,) = primals, tangents
        value, velocity = call_on_host(R), R.T @ dR
        rates = (velocity[planes[:, 0], planes[:, 1]] - velocity[planes[:, 1], planes[:, 0]]) / 2
        return value, value @ jnp.einsum("p,pij->ij", rates, jnp.asarray(generators, value.dtype))

    return call_on_host


def _generator(fn: Callable, n: int, i: int, j: int) -> np.ndarray:
    """dρ of the matrix with 1 at (i, j) and −1 at (j, i)."""
    R = np.eye(n)
    R[i, i] = R[j, j] = np.cos(_ANGLE)
    R[i, j], R[j, i] = np.sin(_ANGLE), -np.sin(_ANGLE)
    log = scipy.linalg.logm(np.asarray(fn(R)))
    return (log if np.iscomplexobj(fn(R)) else log.real) / _ANGLE
