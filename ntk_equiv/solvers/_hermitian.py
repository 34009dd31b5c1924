"""Functions of a Hermitian matrix in its eigenbasis, and their derivatives.

    f(B) = U f(λ) U†,        df(B) = U (f[λ_i, λ_j] · U†dB U) U†        (entry by entry)
    f[a, b] = (f(a) − f(b)) / (a − b),        f[a, a] = f'(a)           `divided_differences`

Eigenvectors have no derivative where eigenvalues coincide, as symmetry makes them do; but f(B) has one. So U and λ are
constants here. A change of B is carried by a matrix that is zero and has nothing but a derivative:

    tilt = U† (B − B₀) U,        B₀ the value of B                      `carry_derivative`

With it f(B) = U f(λ + tilt) U† to first order. Second derivatives would need more, and are refused.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from ntk_equiv._check import refusal

# Eigenvalues closer than this, relative to the larger, have their divided difference from the mean of f' between them:
# their difference would cancel.
CLOSE = 1 / 64
NODES, SHARES = (np.polynomial.legendre.leggauss(5)[0] + 1) / 2, np.polynomial.legendre.leggauss(5)[1] / 2


@jax.custom_jvp
def filter_coordinates(
    f: Callable, t: jax.Array, values: jax.Array, tilt: jax.Array | None, rows: jax.Array
) -> jax.Array:
    """Return rows [..., k] times f_t(diag(values) + tilt), where `tilt` is zero and has only a derivative."""
    return _multiply(f, t, values, rows)


def _multiply(f: Callable, t: jax.Array, values: jax.Array, rows: jax.Array) -> jax.Array:
    factor = f(values, t)
    return rows * factor.reshape((1,) * (rows.ndim - 1) + factor.shape)


@filter_coordinates.defjvp
def _filter_coordinates_jvp(primals: tuple, tangents: tuple) -> tuple:
    f, t, values, tilt, rows = primals
    df, dt, _, d_tilt, d_rows = tangents
    # In everything but the matrix itself the ordinary derivative is right.
    value, change = jax.jvp(lambda f, t, rows: _multiply(f, t, values, rows), (f, t, rows), (df, dt, d_rows))
    if tilt is not None:
        slopes = divided_differences(lambda lam: f(lam, t), values)
        change = change + product(rows, slopes.astype(d_tilt.dtype) * d_tilt)
    return value, change


def divided_differences(f: Callable[[jax.Array], jax.Array], values: jax.Array) -> jax.Array:
    """Return f[λ_i, λ_j] for all pairs of non-negative values, [k, k]; negative ones count as zero."""
    values = jnp.maximum(values, 0)
    a, b = values[:, None], values[None, :]
    apart = jnp.abs(a - b) > CLOSE * jnp.maximum(a, b)
    at_values = f(values)
    quotient = (at_values[:, None] - at_values[None, :]) / jnp.where(apart, a - b, 1)
    nodes, shares = (jnp.asarray(numbers, values.dtype) for numbers in (NODES, SHARES))
    between = a[None] + nodes[:, None, None] * (b - a)[None]
    _, slopes = jax.jvp(f, (between,), (jnp.ones_like(between),))
    return jnp.where(apart, quotient, jnp.tensordot(shares, slopes, 1))


@jax.custom_jvp
def carry_derivative(matrix: jax.Array, vectors: jax.Array) -> jax.Array:
    """Return a matrix of zeros whose derivative is that of U† B U, with U constant."""
    return jnp.zeros_like(matrix)


@carry_derivative.defjvp
def _carry_derivative_jvp(primals: tuple, tangents: tuple) -> tuple:
    matrix, vectors = primals
    vectors = _constant(vectors, matrix)
    return jnp.zeros_like(matrix), product(product(vectors.conj().T, tangents[0]), vectors)


@jax.custom_jvp
def _constant(vectors: jax.Array, matrix: jax.Array) -> jax.Array:
    """Return `vectors`, and refuse to be differentiated in the matrix that they came from."""
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
    """Return the positive semidefinite root of a real positive semidefinite matrix; negative eigenvalues count as zero.

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


def double_precision() -> AbstractContextManager:
    """Return a context in which JAX computes in double precision. Its name depends on the version of JAX."""
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(True)
    from jax.experimental import enable_x64  # type: ignore[attr-defined]

    return enable_x64(True)


def product(a: jax.Array | np.ndarray, b: jax.Array) -> jax.Array:
    """Return the product of two matrices; of complex ones as three real products instead of four."""
    if not (jnp.iscomplexobj(a) and jnp.iscomplexobj(b)):
        return jnp.matmul(a, b)
    real, imag = a.real @ b.real, a.imag @ b.imag
    return jax.lax.complex(real - imag, (a.real + a.imag) @ (b.real + b.imag) - real - imag)
