"""Functions of a Hermitian matrix, and their derivatives.

    f(B) = U f(λ) U†,        df(B) = U (f[λ_i, λ_j] · U†dB U) U†        (entry by entry)
    f[a, b] = (f(a) − f(b)) / (a − b),        f[a, a] = f'(a)           `divided_differences`

Where eigenvalues coincide, as symmetry makes them do, eigenvectors have no derivative, but f(B) has one. So U and λ are
constants here, and a change of B is carried by a matrix that is zero and only has a derivative:

    tilt = U† (B − B₀) U,        B₀ the value of B

With it f(B) = U f(λ + tilt) U† to first order. Second derivatives would need more, and are refused.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jax.custom_derivatives import SymbolicZero

from ntk_equiv._check import is_concrete, refusal

# Eigenvalues closer than this, relative to the larger, have their divided difference from the mean of f' between them:
# their difference would cancel.
CLOSE = 1 / 64
NODES, SHARES = (np.polynomial.legendre.leggauss(5)[0] + 1) / 2, np.polynomial.legendre.leggauss(5)[1] / 2


# f_t(λ) for arrays of λ and t that broadcast. As an argument of what is differentiated it is a pytree, too.
SpectralFunction = Callable[[jax.Array, jax.Array], jax.Array]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Eigenbasis:
    """A Hermitian matrix B = U diag(λ) U†.

    Attributes:
        values: λ, [e], in increasing order.
        vectors: U, a column for each of them.
        tilt: [e, e], zero, with the derivative of B in this basis; None for a matrix that is known.
    """

    values: jax.Array
    vectors: jax.Array
    tilt: jax.Array | None = None

    def coordinates(self, rows: jax.Array) -> jax.Array:
        """Rows [..., k] in the eigenbasis, [..., e]."""
        return product(rows, self.vectors)

    def rows(self, coordinates: jax.Array) -> jax.Array:
        """Rows [..., k] from their coordinates [..., e]."""
        return product(coordinates, self.vectors.conj().T)

    def transformed(self, matrix: Any) -> jax.Array:
        """Another matrix in this basis, U† K U."""
        return product(product(self.vectors.conj().T, matrix), self.vectors)

    def filtered(self, f: SpectralFunction, t: jax.Array, coordinates: jax.Array) -> jax.Array:
        """Rows [..., k] times f_t(B), all in coordinates."""
        return _filtered(f, t, self, coordinates)

    @property
    def spectrum(self) -> jax.Array:
        """λ, with the derivatives of simple eigenvalues."""
        return self.values if self.tilt is None else self.values + jnp.diagonal(self.tilt).real

    def log_determinant(self, shift: Any) -> jax.Array:
        """The logarithm of det(B + shift), minus infinity if that is singular; eigenvalues below zero count as zero."""
        return jnp.sum(jnp.log(jnp.maximum(self.spectrum, 0) + shift))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Inverse:
    """(B + shift)⁻¹ of a Hermitian matrix, and no other function of it, by a Cholesky factor.

    It has the methods of `Eigenbasis`, in the basis in which B is given.

    Attributes:
        factor: L with LL† = B + shift, a NumPy array in double precision unless it is traced.
    """

    factor: Any

    def coordinates(self, rows: jax.Array) -> jax.Array:
        """Rows as they are."""
        return rows

    def rows(self, coordinates: jax.Array) -> jax.Array:
        """Rows as they are."""
        return coordinates

    def transformed(self, matrix: Any) -> jax.Array:
        """The matrix as it is."""
        return matrix

    def filtered(self, f: SpectralFunction, t: jax.Array, coordinates: jax.Array) -> jax.Array:
        """Rows [..., k] times (B + shift)⁻¹, which is f_t(B) for the f and t that this was made for."""
        columns = coordinates.reshape(-1, coordinates.shape[-1]).conj().T
        if is_concrete((self.factor, columns)):
            solution = scipy.linalg.cho_solve((np.asarray(self.factor), True), np.asarray(columns), check_finite=False)
        else:
            solution = jax.scipy.linalg.cho_solve((self.factor, True), columns)
        return jnp.asarray(solution, coordinates.dtype).conj().T.reshape(coordinates.shape)

    def log_determinant(self, shift: Any) -> jax.Array:
        """The logarithm of det(B + shift), for the shift that this was made for."""
        return 2 * jnp.sum(jnp.log(jnp.diagonal(self.factor).real))


Basis = Eigenbasis | Inverse


def inverse(matrix: jax.Array, shift: float, noise: float) -> Inverse | None:
    """(B + shift)⁻¹, if all of it is above the noise in the eigenvalues of B; else None."""
    if not has_double_algebra(matrix):
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
    return Inverse(factor)


@jax.custom_jvp
def _filtered(f: SpectralFunction, t: jax.Array, basis: Eigenbasis, coordinates: jax.Array) -> jax.Array:
    return _multiplied(f, t, basis.values, coordinates)


def _multiplied(f: SpectralFunction, t: jax.Array, values: jax.Array, coordinates: jax.Array) -> jax.Array:
    factor = f(values, t)
    return coordinates * factor.reshape((1,) * (coordinates.ndim - 1) + factor.shape)


@_filtered.defjvp
def _filtered_jvp(primals: tuple, tangents: tuple) -> tuple:
    f, t, basis, coordinates = primals
    df, dt, d_basis, d_coordinates = tangents
    # In everything but the matrix itself the ordinary derivative is right.
    value, change = jax.jvp(
        lambda f, t, coordinates: _multiplied(f, t, basis.values, coordinates),
        (f, t, coordinates),
        (df, dt, d_coordinates),
    )
    if basis.tilt is not None:
        slopes = divided_differences(lambda lam: f(lam, t), basis.values)
        change = change + product(coordinates, slopes.astype(d_basis.tilt.dtype) * d_basis.tilt)
    return value, change


def divided_differences(f: Callable[[jax.Array], jax.Array], values: jax.Array) -> jax.Array:
    """f[λ_i, λ_j] for all pairs of non-negative values, [e, e]; negative ones count as zero."""
    values = jnp.maximum(values, 0)
    a, b = values[:, None], values[None, :]
    apart = jnp.abs(a - b) > CLOSE * jnp.maximum(a, b)
    at_values = f(values)
    quotient = (at_values[:, None] - at_values[None, :]) / jnp.where(apart, a - b, 1)
    nodes, shares = (jnp.asarray(numbers, values.dtype) for numbers in (NODES, SHARES))
    between = a[None] + nodes[:, None, None] * (b - a)[None]
    _, slopes = jax.jvp(f, (between,), (jnp.ones_like(between),))
    return jnp.where(apart, quotient, jnp.tensordot(shares, slopes, 1))


def decomposed(matrix: jax.Array) -> Eigenbasis:
    """The eigenbasis of a Hermitian matrix: in double precision on a CPU, whatever that of the matrix is."""
    if is_concrete(matrix):
        # At once: a decomposition keeps all cores busy, and several are in each other's way.
        return jax.block_until_ready(_decomposed_now(matrix))
    values, vectors = _eigh(jax.lax.stop_gradient(matrix))
    return Eigenbasis(values, vectors, _tilt(matrix, vectors))


def _decomposed_now(matrix: jax.Array) -> Eigenbasis:
    single = matrix.dtype in (jnp.float32, jnp.complex64)
    if not (single and has_double_algebra(matrix)):
        return Eigenbasis(*_eigh(matrix))
    # LAPACK in double precision needs no setting of JAX. Single precision is enough to keep what it found: small
    # eigenvalues and what belongs to them are then right to the rounding of the kernels.
    double = np.complex128 if np.iscomplexobj(matrix) else np.float64
    values, vectors = scipy.linalg.eigh(np.array(matrix, double), driver="evd", overwrite_a=True, check_finite=False)
    return Eigenbasis(jnp.asarray(values, jnp.float32), jnp.asarray(vectors, matrix.dtype))


def has_double_algebra(matrix: jax.Array) -> bool:
    """Whether this matrix is decomposed in double precision: it is known, and lies in the memory of a CPU."""
    return is_concrete(matrix) and all(device.platform == "cpu" for device in matrix.devices())


@jax.jit
def _eigh(matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
    vectors, values = jax.lax.linalg.eigh(matrix, symmetrize_input=False)
    return values, vectors


@jax.custom_jvp
def _tilt(matrix: jax.Array, vectors: jax.Array) -> jax.Array:
    return jnp.zeros_like(matrix)


@_tilt.defjvp
def _tilt_jvp(primals: tuple, tangents: tuple) -> tuple:
    matrix, vectors = primals
    vectors = _constant(vectors, matrix)
    return jnp.zeros_like(matrix), product(product(vectors.conj().T, tangents[0]), vectors)


@jax.custom_jvp
def _constant(vectors: jax.Array, matrix: jax.Array) -> jax.Array:
    return vectors


@partial(_constant.defjvp, symbolic_zeros=True)
def _constant_jvp(primals: tuple, tangents: tuple) -> tuple:
    if not isinstance(tangents[1], SymbolicZero):
        raise refusal(
            "grad",
            expected="first derivatives of a trained ensemble in its training data, its kernel or their parameters",
            got="a second derivative",
            fix="Take differences of first derivatives instead.",
            kind=NotImplementedError,
        )
    return primals[0], jnp.zeros_like(primals[0])


@jax.custom_jvp
def positive_root(matrix: jax.Array) -> jax.Array:
    """The positive semidefinite root of a real positive semidefinite matrix; eigenvalues below zero count as zero.

    It is unique, unlike eigenvectors, which differ from machine to machine where eigenvalues coincide.
    """
    values, vectors = jnp.linalg.eigh(matrix)
    return (vectors * jnp.sqrt(jnp.maximum(values, 0))[None, :]) @ vectors.T


@positive_root.defjvp
def _positive_root_jvp(primals: tuple, tangents: tuple) -> tuple:
    values, vectors = jnp.linalg.eigh(jax.lax.stop_gradient(primals[0]))
    vectors = _constant(vectors, primals[0])
    roots = jnp.sqrt(jnp.maximum(values, 0))
    sums = roots[:, None] + roots[None, :]
    # √a has no derivative at zero: what is null up to rounding stays so.
    positive = sums > len(values) * jnp.finfo(values.dtype).eps ** 0.5 * jnp.max(roots, initial=0)
    slopes = jnp.where(positive, 1 / jnp.where(positive, sums, 1), 0)
    turned = vectors.T @ tangents[0] @ vectors
    return (vectors * roots[None, :]) @ vectors.T, vectors @ (slopes * turned) @ vectors.T


def product(a: jax.Array, b: jax.Array) -> jax.Array:
    """The product of two matrices; of complex ones as three real products instead of four."""
    if not (jnp.iscomplexobj(a) and jnp.iscomplexobj(b)):
        return a @ b
    real, imag = a.real @ b.real, a.imag @ b.imag
    return jax.lax.complex(real - imag, (a.real + a.imag) @ (b.real + b.imag) - real - imag)
