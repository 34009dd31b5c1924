"""The full decomposition, B = U diag(λ) U†.

It costs O(k³) once; after that every filter and every time costs two products with U. Where (B + shift)⁻¹ is all that
is needed, as for the filters `ridge` and `converged` and for posteriors, a Cholesky factor takes its place: it is ten
times cheaper.

LAPACK works in double precision where the block lies in the memory of a CPU, whatever the precision of the kernels.
"""

import dataclasses
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from threadpoolctl import threadpool_limits

from ntk_equiv._check import is_concrete
from ntk_equiv._machine import available_cores
from ntk_equiv._pytrees import dataclass_pytree
from ntk_equiv.solvers._hermitian import carry_derivative, filter_coordinates, product
from ntk_equiv.solvers._lapack import eigh_complex
from ntk_equiv.solvers._protocols import BlockOperator, DenseBlock, PredictionScale, SolvedBlock, SpectralFunction

# Blocks with fewer rows are decomposed faster than threads are set up.
SMALL = 128
# How many times as fast LAPACK decomposes one matrix with all cores, about, and how much longer a complex one takes.
GAIN_OF_CORES, COMPLEX = 1.5, 2.6


@dataclasses.dataclass(frozen=True)
class Eigh:
    """The solver by full decomposition: exact up to rounding, for any filter, at any time.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import filters, solvers
        >>> solved = solvers.Eigh().solve(solvers.DenseBlock(jnp.array([[2.0, 1.0], [1.0, 2.0]])))
        >>> print(solved.spectrum)
        [1. 3.]
        >>> rows, end = solved.to_basis(jnp.array([[3.0, 0.0]])), jnp.array([jnp.inf])
        >>> print(solved.from_basis(solved.apply(filters.converged(), end, rows)).round(6))     # times the inverse
        [[[ 2. -1.]]]
    """

    def solve(
        self,
        block: BlockOperator,
        *,
        noise: Any = 0.0,
        inverse_shift: float | None = None,
        scale: PredictionScale = PredictionScale(),  # noqa: B008  (frozen)
    ) -> SolvedBlock:
        """Return the block with its eigenvectors, or its inverse if that is enough and B + shift is regular."""
        matrix = block.dense()
        if inverse_shift is not None and is_concrete(matrix):
            inverse = _invert(matrix, inverse_shift, float(noise))
            if inverse is not None:
                return inverse
        return _decompose(matrix)

    def solve_several(self, blocks: list[BlockOperator], **settings: Any) -> list[SolvedBlock]:
        """Return several blocks, prepared; on a CPU two or more are decomposed at the same time, a core for each."""
        matrices = [block.dense() for block in blocks]
        cores = available_cores()
        small = max(map(len, matrices), default=0) < SMALL
        one_by_one = settings.get("inverse_shift") is not None or small or not _gain_from_threads(matrices, cores)
        if one_by_one or not all(map(_has_double_algebra, matrices)):
            return [self.solve(DenseBlock(matrix), **settings) for matrix in matrices]
        # LAPACK uses a second core badly. No JAX in the threads: its settings belong to a thread.
        largest_first = sorted(range(len(matrices)), key=lambda number: -_work(matrices[number]))
        with threadpool_limits(limits=1) as limits, ThreadPoolExecutor(min(cores, len(matrices))) as pool:
            tasks = {n: pool.submit(_decompose_on_host, np.asarray(matrices[n])) for n in largest_first}
            for finished, _ in enumerate(as_completed(tasks.values()), 1):
                if finished == len(tasks) - 1:
                    limits.restore_original_limits()  # the last one is alone, and may use all cores from here on
        return [_as_basis(matrix, *tasks[number].result()) for number, matrix in enumerate(matrices)]

    def restore(self, arrays: Mapping[str, jax.Array]) -> SolvedBlock:
        """Return the block with eigenvalues and eigenvectors that were stored."""
        return Eigenbasis(arrays["values"], arrays["vectors"])

    def precision(self, example: jax.Array) -> float:
        """Return eps of double precision on CPUs, and else that of the block."""
        own = float(jnp.finfo(example.dtype).eps)
        return min(own, float(jnp.finfo("float64").eps)) if _has_double_algebra(example) else own

    def memory(self, side: int, *, is_complex: bool) -> int:
        """Return the bytes that LAPACK takes in double precision: a copy that it overwrites, and workspace.

        For a complex matrix that is the copy, the complex result, and two real matrices beside them.
        """
        return 8 * (6 if is_complex else 2) * side**2


@dataclass_pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Eigenbasis:
    """A Hermitian matrix B = U diag(λ) U†, with U as its working basis.

    Attributes:
        values: λ, [k], in increasing order.
        vectors: U, a column for each of them.
        tilt: [k, k], zero, with the derivative of B in this basis; None for a matrix that is known.
    """

    values: jax.Array
    vectors: jax.Array
    tilt: jax.Array | None = None
    inverse_shift: ClassVar[None] = None
    traceable: ClassVar[bool] = True

    def to_basis(self, rows: jax.Array) -> jax.Array:
        """Return rows times U."""
        return product(rows, self.vectors)

    def from_basis(self, rows: jax.Array) -> jax.Array:
        """Return rows times U†."""
        return product(rows, self.vectors.conj().T)

    def matrix_in_basis(self, block: BlockOperator) -> BlockOperator:
        """Return U†KU."""
        return DenseBlock(product(product(self.vectors.conj().T, block.dense()), self.vectors))

    def apply(self, f: SpectralFunction, times: jax.Array, rows: jax.Array) -> jax.Array:
        """Return rows times diag(f_t(λ)), with the derivative of f_t(B)."""
        return jax.vmap(lambda t: filter_coordinates(f, t, self.values, self.tilt, rows))(times)

    def diagonal(self, f: SpectralFunction, times: jax.Array) -> jax.Array | None:
        """Return f_t(λ); None where B has a derivative, which moves the basis too."""
        return None if self.tilt is not None else jax.vmap(lambda t: f(self.values, t))(times)

    @property
    def spectrum(self) -> jax.Array:
        """λ, with the derivatives of simple eigenvalues."""
        return self.values if self.tilt is None else self.values + jnp.diagonal(self.tilt).real

    def extremes(self) -> tuple[jax.Array, jax.Array]:
        """Return the first and the last eigenvalue."""
        return self.values[0], self.values[-1]

    def log_determinant(self, shift: Any) -> jax.Array:
        """Return Σ log(λ + shift); eigenvalues below zero count as zero."""
        return jnp.sum(jnp.log(jnp.maximum(self.spectrum, 0) + shift))

    def error_bound(self, f: SpectralFunction, times: jax.Array, rows: jax.Array) -> jax.Array:
        """Return zeros: there is no error but rounding."""
        return jnp.zeros((len(times), *rows.shape[:-1]), self.values.dtype)

    def arrays(self) -> Mapping[str, jax.Array]:
        """Return eigenvalues and eigenvectors."""
        return {"values": self.values, "vectors": self.vectors}


@dataclass_pytree
@dataclasses.dataclass(frozen=True, eq=False)
class CholeskyInverse:
    """(B + shift)⁻¹ of a Hermitian matrix, and no other function of it. It works in the basis of the block.

    Attributes:
        factor: L with LL† = B + shift, a NumPy array in double precision unless it is traced.
        inverse_shift: the shift.
    """

    factor: Any
    inverse_shift: float = dataclasses.field(metadata={"static": True})
    # SciPy solves with the factor, in double precision also where JAX has none.
    traceable: ClassVar[bool] = False

    def to_basis(self, rows: jax.Array) -> jax.Array:
        """Return rows as they are."""
        return rows

    def from_basis(self, rows: jax.Array) -> jax.Array:
        """Return rows as they are."""
        return rows

    def matrix_in_basis(self, block: BlockOperator) -> BlockOperator:
        """Return the matrix as it is."""
        return block

    def apply(self, f: SpectralFunction, times: jax.Array, rows: jax.Array) -> jax.Array:
        """Return rows times (B + shift)⁻¹, which is f_t(B) at the end of training, once for each time."""
        columns = rows.reshape(-1, rows.shape[-1]).conj().T
        if is_concrete((self.factor, columns)):
            solution = scipy.linalg.cho_solve((np.asarray(self.factor), True), np.asarray(columns), check_finite=False)
        else:
            solution = jax.scipy.linalg.cho_solve((self.factor, True), columns)
        inverse = jnp.asarray(solution, rows.dtype).conj().T.reshape(rows.shape)
        return jnp.broadcast_to(inverse[None], (len(times), *inverse.shape))

    def diagonal(self, f: SpectralFunction, times: jax.Array) -> None:
        """Return None: the matrix is not diagonal in this basis."""

    @property
    def spectrum(self) -> None:
        """Unknown."""
        return None

    def extremes(self) -> None:
        """Return None: they are unknown."""

    def log_determinant(self, shift: Any) -> jax.Array:
        """Return log det(B + shift), for the shift that this was made for."""
        return 2 * jnp.sum(jnp.log(jnp.diagonal(self.factor).real))

    def error_bound(self, f: SpectralFunction, times: jax.Array, rows: jax.Array) -> jax.Array:
        """Return zeros: there is no error but rounding."""
        return jnp.zeros((len(times), *rows.shape[:-1]), rows.real.dtype)

    def arrays(self) -> None:
        """Return None: a file keeps what serves every time, not one inverse."""


def _invert(matrix: jax.Array, shift: float, noise: float) -> CholeskyInverse | None:
    """Return (B + shift)⁻¹ if all eigenvalues of B + shift are above the noise in those of B; else None."""
    if not _has_double_algebra(matrix):
        return None
    shifted = np.array(matrix, np.complex128 if np.iscomplexobj(matrix) else np.float64, order="F")
    np.einsum("ii->i", shifted)[:] += shift
    size = float(np.linalg.norm(shifted, 1))
    if not np.isfinite(size):
        return None
    factorize, condition = scipy.linalg.get_lapack_funcs(("potrf", "pocon"), (shifted,))
    factor, failed = factorize(shifted, lower=True, overwrite_a=True, clean=True)
    if failed or condition(factor, size, uplo="L")[0] * size <= noise:
        return None
    return CholeskyInverse(factor, shift)


def _decompose(matrix: jax.Array) -> Eigenbasis:
    """Return the eigenbasis of a Hermitian matrix."""
    if is_concrete(matrix):
        # Wait for it: a decomposition keeps all cores busy, and two at a time are in each other's way.
        return jax.block_until_ready(_decompose_known(matrix))
    values, vectors = _eigh(jax.lax.stop_gradient(matrix))
    return Eigenbasis(values, vectors, carry_derivative(matrix, vectors))


def _work(matrix: jax.Array) -> float:
    """Return how long a decomposition takes, in units of a real one of size 1."""
    return (COMPLEX if jnp.iscomplexobj(matrix) else 1.0) * len(matrix) ** 3


def _gain_from_threads(matrices: list[jax.Array], cores: int) -> bool:
    """Return whether matrices are decomposed sooner side by side, a core for each, than each with all cores."""
    busy, ends = [0.0] * cores, [0.0]
    for work in sorted(map(_work, matrices), reverse=True):
        core = busy.index(min(busy))
        busy[core] += work
        ends.append(busy[core])
    *_, before, last = sorted(ends)
    return before + (last - before) / GAIN_OF_CORES < sum(busy) / GAIN_OF_CORES  # the last one has all cores in the end


def _decompose_known(matrix: jax.Array) -> Eigenbasis:
    if not _has_double_algebra(matrix):
        return Eigenbasis(*_eigh(matrix))
    return _as_basis(matrix, *_decompose_on_host(np.asarray(matrix)))


def _as_basis(matrix: jax.Array, values: np.ndarray, vectors: np.ndarray) -> Eigenbasis:
    """Return eigenpairs in the precision of the matrix."""
    real = np.finfo(matrix.dtype).dtype
    return Eigenbasis(*map(jnp.asarray, (values.astype(real, copy=False), vectors.astype(matrix.dtype, copy=False))))


def _decompose_on_host(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return eigenvalues and eigenvectors, in double precision."""
    # LAPACK in double precision needs no setting of JAX. Single precision is enough to keep what it found: small
    # eigenvalues and their vectors are then right to the rounding of the kernels.
    matrix = matrix.astype(np.complex128 if np.iscomplexobj(matrix) else np.float64, copy=False)
    if not np.isfinite(matrix).all():
        return np.full(len(matrix), np.nan), np.full_like(matrix, np.nan)
    is_slow = np.iscomplexobj(matrix) and len(matrix) >= SMALL
    return eigh_complex(matrix) if is_slow else np.linalg.eigh(matrix)


def _has_double_algebra(matrix: jax.Array) -> bool:
    """Return whether this matrix is decomposed in double precision: it is known, and lies in the memory of a CPU."""
    return is_concrete(matrix) and all(device.platform == "cpu" for device in matrix.devices())


@jax.jit
def _eigh(matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
    vectors, values = jax.lax.linalg.eigh(matrix, symmetrize_input=False)
    return values, vectors
