"""Block Krylov spaces of a Hermitian matrix: all that a function of it needs of a few given rows.

From rows b = R Q₁ with orthonormal Q₁, the process of Lanczos builds orthonormal rows Q = (Q₁, Q₂, …) with

    Q B = T Q + E C Q₊,       T = Q B Q†,       E the last block of rows of the identity,

so that b f(B) ≈ R f(T)₁ Q, where f(T)₁ are the first rows of f(T). In code:

    Q        `basis`        [k, n]         R     `start`       [rows, r]
    T        `projected`    [k, k]         C     `coupling`    [p, q]
    Q₊       `following`    [q, n]         G = Q₊ B Q₊†    `following_projected`    [q, q]

Rows that a new block has in common with what is there already are left out, so blocks may become smaller; when nothing
new is left, the space contains b f(B) exactly. Every new block is made orthogonal to all others twice: without that,
rounding destroys the orthogonality as soon as the first eigenvalue has converged.

All of this is in double precision, on the host. Only the products with B run where its entries are.
"""

from collections.abc import Callable

import numpy as np
import scipy.linalg

# Rows that are so much alike, relative to their norm, count as the same.
SAME = 1e-13


def keep_own(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the arrays as they are: there is no other process to agree with."""
    return arrays


class KrylovSpace:
    """The Krylov space of some rows, which grows by one block with each product.

    Args:
        multiply: returns rows [p, n] times B.
        rows: b, [rows, n].
        noise: how far rounding may have moved B. What is left of a block below it is rounding.
        is_complex: whether B is.
        agree_on: returns the arrays by which all processes that share B go on. A space that differed from process to
            process by rounding would soon be another one, and might have another dimension.
    """

    def __init__(
        self,
        multiply: Callable[[np.ndarray], np.ndarray],
        rows: np.ndarray,
        *,
        noise: float = 0.0,
        is_complex: bool = False,
        agree_on: Callable[..., tuple[np.ndarray, ...]] = keep_own,
    ):
        self._multiply, self._noise, self._agree_on = multiply, noise, agree_on
        self._dtype = np.complex128 if is_complex or np.iscomplexobj(rows) else np.float64
        rows = rows.astype(self._dtype)
        norms = np.linalg.norm(rows, axis=1)
        units = rows / np.where(norms > 0, norms, 1)[:, None]
        self.following, start = agree_on(*_orthonormal_rows(units, SAME * np.sqrt(len(rows))))
        self.start = start * norms[:, None]
        self._image = self._multiply_following()
        self._basis = np.empty((4 * max(1, len(self.following)), rows.shape[1]), self._dtype)
        self.projected = np.zeros((0, 0), self._dtype)
        self.coupling = np.zeros((0, len(self.following)), self._dtype)
        self.products = 1

    @property
    def basis(self) -> np.ndarray:
        """Q, [k, n]."""
        return self._basis[: len(self.projected)]

    @property
    def following_projected(self) -> np.ndarray:
        """G = Q₊ B Q₊†, the part of T that comes next."""
        G = self._image @ self.following.conj().T
        return (G + G.conj().T) / 2

    @property
    def is_complete(self) -> bool:
        """Whether nothing new is left: the space then contains b f(B) for every f."""
        return len(self.following) == 0

    @property
    def memory(self) -> int:
        """How many bytes it takes."""
        return self._basis.nbytes + self.following.nbytes + self._image.nbytes

    def grow(self) -> None:
        """Add the following block to the space, and find the one after it by one product with B."""
        if self.is_complete:
            return
        k, p = len(self.projected), len(self.following)
        self._reserve(k + p)
        self._basis[k : k + p] = self.following
        # Twice is enough: the second time only removes what the rounding of the first has left.
        rest, column = self._image, np.zeros((p, k + p), self._dtype)
        for _ in range(2):
            part = rest @ self._basis[: k + p].conj().T
            column, rest = column + part, rest - part @ self._basis[: k + p]
        T = np.zeros((k + p, k + p), self._dtype)
        T[:k, :k] = self.projected
        T[k:], T[:k, k:] = column, column[:, :k].conj().T
        T[k:, k:] = (T[k:, k:] + T[k:, k:].conj().T) / 2
        self.projected = T
        size = np.abs(np.diagonal(T)).max()
        rounding = max(self._noise, 8 * np.finfo(np.float64).eps * size)
        self.following, self.coupling = _orthonormal_rows(rest, rounding)
        self._clean_following(size)
        self.following, self.coupling = self._agree_on(self.following, self.coupling)
        self._image = self._multiply_following()
        self.products += 1

    def _clean_following(self, size: float) -> None:
        """Make the following block orthogonal once more if some row of it was little more than rounding.

        What rounding has left in such a row of the rows before it grew when the row was divided by its norm.
        """
        smallest = np.linalg.svd(self.coupling, compute_uv=False).min(initial=np.inf)
        if smallest > np.finfo(np.float64).eps ** 0.5 * size:
            return
        basis = self.basis
        rest = self.following - (self.following @ basis.conj().T) @ basis
        # Rows of which less than half is new are rounding altogether.
        self.following, change = _orthonormal_rows(rest, 0.5)
        self.coupling = self.coupling @ change

    def _multiply_following(self) -> np.ndarray:
        if self.is_complete:
            return np.zeros(self.following.shape, self._dtype)
        return np.asarray(self._multiply(self.following)).astype(self._dtype)

    def _reserve(self, rows: int) -> None:
        """Make room for so many rows, in steps that grow with the space."""
        if rows > len(self._basis):
            larger = np.empty((max(rows, len(self._basis) * 3 // 2), self._basis.shape[1]), self._dtype)
            larger[: len(self.projected)] = self.basis
            self._basis = larger


def _orthonormal_rows(rows: np.ndarray, rounding: float) -> tuple[np.ndarray, np.ndarray]:
    """Return orthonormal rows Q and coefficients C with rows = C Q up to `rounding`; as few rows as that takes."""
    # Columns in decreasing order of what they add: those that add nothing but rounding come last.
    Q, R, order = scipy.linalg.qr(rows.conj().T, mode="economic", pivoting=True, check_finite=False)
    kept = int(np.sum(np.abs(np.diagonal(R)) > rounding))
    C = np.zeros((len(rows), kept), rows.dtype)
    C[order] = R[:kept].conj().T
    return np.ascontiguousarray(Q[:, :kept].conj().T), C
