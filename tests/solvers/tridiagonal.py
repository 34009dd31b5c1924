"""A second solver, for tests alone: by Householder's tridiagonal form B = QTQ†, outside of JAX.

It works in the basis of the block and says nothing of the spectrum, as iterative solvers do. Errors can be planted in
it: `error` is added to all that it applies, and stated by its bound.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg

from ntk_equiv.solvers import DenseBlock


@dataclasses.dataclass(frozen=True)
class Tridiagonal:
    error: float = 0.0

    def solve(self, block: DenseBlock, *, noise: Any = 0.0, **others: Any) -> "TridiagonalBlock":
        matrix = np.asarray(block.dense())
        T, Q = scipy.linalg.hessenberg(matrix, calc_q=True)
        # Of a Hermitian matrix it is tridiagonal; phases make what is beside the diagonal real.
        beside = np.diagonal(T, -1)
        phases = np.cumprod(
            np.concatenate([[1], np.where(beside == 0, 1, beside / np.where(beside == 0, 1, abs(beside)))])
        )
        lam, V = scipy.linalg.eigh_tridiagonal(np.diagonal(T).real, abs(beside))
        return TridiagonalBlock(matrix, (Q * phases) @ V, lam, self.error)

    def restore(self, arrays: Mapping[str, jax.Array]) -> Any:
        raise AssertionError("nothing of it is stored")

    def precision(self, example: jax.Array) -> float:
        return float(jnp.finfo("float64").eps)

    def memory(self, side: int, *, is_complex: bool) -> int:
        return 16 * side**2 * (2 if is_complex else 1)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class TridiagonalBlock:
    matrix: Any
    vectors: Any
    lam: Any
    error: float = dataclasses.field(metadata={"static": True})
    inverse_shift: ClassVar[None] = None
    traceable: ClassVar[bool] = False

    def to_basis(self, rows: jax.Array) -> jax.Array:
        return rows

    def from_basis(self, rows: jax.Array) -> jax.Array:
        return rows

    def matrix_in_basis(self, block: DenseBlock) -> DenseBlock:
        return block

    def apply(self, f: Any, times: jax.Array, rows: jax.Array) -> jax.Array:
        def at(t: jax.Array) -> np.ndarray:
            factor = np.asarray(f(jnp.asarray(self.lam), t))
            return (np.asarray(rows) @ self.vectors * factor) @ self.vectors.conj().T + self._planted(rows)

        return jnp.asarray(np.stack([at(t) for t in times]), rows.dtype)

    def _planted(self, rows: jax.Array) -> np.ndarray:
        """The eigenvector of the largest eigenvalue, as large as the error in each row."""
        return self.error * np.broadcast_to(self.vectors[:, -1].conj(), rows.shape)

    def diagonal(self, f: Any, times: jax.Array) -> None:
        return None

    @property
    def spectrum(self) -> None:
        return None

    def extremes(self) -> tuple[jax.Array, jax.Array]:
        return jnp.asarray(self.lam[0]), jnp.asarray(self.lam[-1])

    def log_determinant(self, shift: Any) -> jax.Array:
        return jnp.sum(jnp.log(jnp.maximum(jnp.asarray(self.lam), 0) + shift))

    def error_bound(self, f: Any, times: jax.Array, rows: jax.Array) -> jax.Array:
        size = self.error * np.sqrt(max(self.lam[-1], 0.0))
        return jnp.full((len(times), *rows.shape[:-1]), size)

    def arrays(self) -> None:
        return None
