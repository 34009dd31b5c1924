"""What a block is, what a solver does with it, and what comes out.

With B a Hermitian block of the Gram matrix, f_t a function of its eigenvalues such as φ_t, and V the *working basis*
that a solver chose (its eigenvectors, or the basis in which B was given, V = 1):

    rows V              `to_basis(rows)`             f_t(V†BV) applied to rows    `apply(f, times, rows)`
    rows V†             `from_basis(rows)`           f_t(λ) if V†BV = diag(λ)     `diagonal(f, times)`
    V†KV                `matrix_in_basis(K)`         λ, or None if unknown        `spectrum`

Vectors are rows, because kernels of test samples with training samples come as rows.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from ntk_equiv._check import describe, refusal
from ntk_equiv.solvers._hermitian import product

SpectralFunction = Callable[[jax.Array, jax.Array], jax.Array]
"""f_t(λ) for arrays of λ and t that broadcast. It is a pytree if it passes through a transformation of JAX."""


@runtime_checkable
class BlockOperator(Protocol):
    """A Hermitian block of a Gram matrix, wherever its entries are. A frozen pytree.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv.solvers import BlockOperator, DenseBlock
        >>> isinstance(DenseBlock(jnp.eye(2)), BlockOperator)
        True
    """

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows and columns."""

    @property
    def dtype(self) -> Any:
        """The type of the entries, real or complex."""

    def times_rows(self, rows: Any) -> Any:
        """Return rows [..., k], arrays of JAX or of NumPy, times the block."""

    def dense(self) -> jax.Array:
        """Return the entries, [k, k], where they fit into memory."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class DenseBlock:
    """A Hermitian block of a Gram matrix whose entries are in memory.

    Attributes:
        matrix: the entries, [k, k].

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv.solvers import DenseBlock
        >>> block = DenseBlock(jnp.array([[2.0, 1.0], [1.0, 2.0]]))
        >>> print(block.shape, block.times_rows(jnp.array([[1.0, -1.0]])))
        (2, 2) [[ 1. -1.]]
    """

    matrix: jax.Array

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows and columns."""
        return len(self.matrix), len(self.matrix)

    @property
    def dtype(self) -> Any:
        """The type of the entries, real or complex."""
        return self.matrix.dtype

    def times_rows(self, rows: Any) -> jax.Array:
        """Return rows [..., k] times the block."""
        return product(rows, self.matrix)

    def times_rows_in_double(self, rows: np.ndarray) -> np.ndarray:
        """Return rows [..., k] times the block, in double precision on the host."""
        return rows @ np.asarray(self.matrix)

    def dense(self) -> jax.Array:
        """Return the entries, [k, k]."""
        return self.matrix


@dataclasses.dataclass(frozen=True)
class PredictionScale:
    """What errors in one block amount to in predictions, by which iterative solvers decide when to stop.

    An error e of one row in this block changes a prediction by at most √(weight · Θ(x, x) · e B e†), and rows of norm r
    come from labels with the root mean square √(weight/N) · r.

    Attributes:
        rows: N, the number of rows of the whole Gram matrix.
        diagonal: the largest Θ(x, x) on the training samples.
        weight: that of the irrep.
        blocks: among how many blocks an error is shared out.
        labels: the root mean square of the labels.

    Example:
        >>> from ntk_equiv.solvers import PredictionScale
        >>> PredictionScale(rows=100, diagonal=4.0).per_norm
        0.05
    """

    rows: int = 1
    diagonal: float = 1.0
    weight: float = 1.0
    blocks: int = 1
    labels: float = 1.0

    @property
    def per_norm(self) -> float:
        """√(e B e†) that is as large in predictions as the root mean square of labels, for rows of norm one."""
        return (self.rows * self.diagonal) ** -0.5

    @property
    def per_unit(self) -> float:
        """√(e B e†) that changes predictions by one if all blocks have as much."""
        return (self.weight * self.diagonal * self.blocks) ** -0.5


@runtime_checkable
class SolvedBlock(Protocol):
    """A Hermitian block B, prepared so that functions of it can be applied. A frozen pytree.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv.solvers import DenseBlock, Eigh, SolvedBlock
        >>> solved = Eigh().solve(DenseBlock(jnp.diag(jnp.array([1.0, 2.0]))))
        >>> isinstance(solved, SolvedBlock), solved.inverse_shift
        (True, None)
    """

    @property
    def inverse_shift(self) -> float | None:
        """None if every function of B can be applied.

        Else (B + shift)⁻¹ is the only one, and this is the shift; `apply` gives it whatever f and the times are.
        """

    @property
    def traceable(self) -> bool:
        """Whether the methods can run inside `jit`.

        If not, they are called outside of it; a solver that cannot be traced at all is refused under `jit` and `grad`.
        """

    def to_basis(self, rows: jax.Array) -> jax.Array:
        """Return rows [..., k] in the working basis."""

    def from_basis(self, rows: jax.Array) -> jax.Array:
        """Return rows from the working basis in the basis of the block."""

    def matrix_in_basis(self, block: BlockOperator) -> BlockOperator:
        """Return another matrix of the same shape in the working basis."""

    def apply(self, f: SpectralFunction, times: jax.Array, rows: jax.Array) -> jax.Array:
        """Return rows [..., k] times f_t(B) for all times [T], as [T, ..., k]; everything in the working basis."""

    def diagonal(self, f: SpectralFunction, times: jax.Array) -> jax.Array | None:
        """Return f_t(λ), [T, k], if B is diagonal in the working basis and carries no derivative; else None."""

    @property
    def spectrum(self) -> jax.Array | None:
        """The eigenvalues, ascending, if B is diagonal in the working basis with them in this order; else None."""

    def extremes(self) -> tuple[jax.Array, jax.Array] | None:
        """Return a lower bound on the smallest and an upper bound on the largest eigenvalue; None if unknown."""

    def log_determinant(self, shift: Any) -> jax.Array:
        """Return log det(B + shift), minus infinity if that is singular. Refuse if it cannot be computed."""

    def error_bound(self, f: SpectralFunction, times: jax.Array, rows: jax.Array) -> jax.Array:
        """Return how far `apply` may be off, [T, ...]: √(e B e†) for the error e of each row; zero means rounding."""

    def arrays(self) -> Mapping[str, jax.Array] | None:
        """Return what `Solver.restore` needs to make this again; None if it should be solved anew."""


@runtime_checkable
class Solver(Protocol):
    """A way to apply functions of a block. A frozen, hashable value whose fields are its settings.

    Example:
        >>> from ntk_equiv import solvers
        >>> isinstance(solvers.Eigh(), solvers.Solver)
        True
    """

    def solve(
        self,
        block: BlockOperator,
        *,
        noise: Any = 0.0,
        inverse_shift: float | None = None,
        scale: PredictionScale = PredictionScale(),
    ) -> SolvedBlock:
        """Return the block, prepared.

        Args:
            block: a Hermitian, positive semidefinite block. Under `jit` its entries are traced.
            noise: how far rounding may have moved its small eigenvalues.
            inverse_shift: if (B + shift)⁻¹ is the only function that will be needed, the shift. A solver may use it.
            scale: what errors amount to in predictions. A solver without errors ignores it.
        """

    def restore(self, arrays: Mapping[str, jax.Array]) -> SolvedBlock:
        """Return the solved block that `SolvedBlock.arrays` described."""

    def precision(self, example: jax.Array) -> float:
        """Return eps of the arithmetic in which blocks with entries like `example` are solved."""

    def memory(self, side: int, *, is_complex: bool) -> int:
        """Return how many bytes solving a block of this size takes beside the block itself."""


@contextmanager
def refusing_tracers(solver: str) -> Iterator[None]:
    """Turn JAX's own error, for a solver that computes outside of JAX and meets traced values, into a refusal."""
    try:
        yield
    except (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError) as error:
        raise refuse_tracers(solver) from error


def refuse_tracers(solver: str) -> Exception:
    """Return the refusal of a solver that computes outside of JAX, for values that are traced."""
    fix = "Call it outside of jit, grad and vmap, or choose `solver=solvers.Eigh()`."
    return refusal("solver", expected="one that JAX can trace", got=solver, fix=fix, kind=TypeError)


def check_solver(solver: Any, auto: Solver) -> Solver:
    """Return a solver that a caller chose, or `auto` for "auto". Of its methods only the names are checked."""
    if isinstance(solver, str) and solver == "auto":
        return auto
    if isinstance(solver, type) or not isinstance(solver, Solver):
        fix = "Pass one of `ntk_equiv.solvers`, called, as in `solvers.Eigh()`."
        raise refusal("solver", expected='"auto" or a solver', got=describe(solver), fix=fix, kind=TypeError)
    return solver
