"""The law of the trained ensemble at test points, sector by sector.

With A = Θ(x, X) φ_t(Θ), the mean is A y and the covariance the congruence

    Σ_t(x, x') = 𝒦(x, x') − A 𝒦(X, x') − 𝒦(x, X) A'ᵀ + A 𝒦(X, X) A'ᵀ.

In the eigenbasis U of a block, with W = conj(û) U for the rows u of Θ and V likewise for those of 𝒦,

    S = W φ_t(λ),       A y ↦ S (U†v̂),       −S V'† − V S'† + S (U†𝒦_σU) S'†,

each times the weight of its sector, real part, summed over sectors and over the index a.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from ntk_equiv._check import is_concrete, refusal
from ntk_equiv.infinite._fit import Block
from ntk_equiv.infinite._sectors import product, synthesis

# From how many times on it pays to make a real quadratic form for each test point.
MANY_TIMES = 6


@partial(jax.jit, static_argnames="channels")
def mean_part(block: Block, phi: jax.Array, hat: jax.Array, channels: int) -> jax.Array:
    """A y at test points, [T, m, c], from phi [T, e] and conj(û) [m, a, (b, i)] of Θ."""
    filtered = (phi[:, :, None] * block.labels[None]).reshape(*phi.shape, hat.shape[1], channels)
    # The cheaper order of the product (rows) · U · (filtered labels).
    if phi.shape[0] * channels <= len(hat):
        filtered = jnp.einsum("ke,teac->tkac", block.vectors, filtered)
    else:
        hat = product(hat, block.vectors)
    return jnp.einsum("mae,teac->tmc", hat, filtered).real


@jax.jit
def cov_part(block: Block, phi: jax.Array, hats: tuple, others: tuple | None) -> jax.Array:
    """What training changes of the covariance, [T, m, m'], from conj(û) of Θ and 𝒦 at both sets of points.

    `others` is None if both sets are the same.
    """
    nngp, turned, taken = _basis(block, len(phi) * len(hats[0]))
    W, V = product(hats[0], block.vectors), taken(hats[1])
    W2, V2 = (W, V) if others is None else (product(others[0], block.vectors), taken(others[1]))

    def at(phi_t: jax.Array) -> jax.Array:
        A = turned(W * phi_t[None, None])
        A2 = A if others is None else turned(W2 * phi_t[None, None])
        return _inner(product(A, nngp) - V, A2) - _inner(A, V2)

    return jax.lax.map(at, phi)


@jax.jit
def var_part(block: Block, phi: jax.Array, hats: tuple) -> jax.Array:
    """What training changes of the variance, [T, m], from conj(û) of Θ and 𝒦."""
    if len(phi) >= MANY_TIMES:
        return _var_by_point(block, phi, hats)
    nngp, turned, taken = _basis(block, len(phi) * len(hats[0]))
    W, V = product(hats[0], block.vectors), taken(hats[1])

    def at(phi_t: jax.Array) -> jax.Array:
        A = turned(W * phi_t[None, None])
        return jnp.sum(((product(A, nngp) - 2 * V) * A.conj()).real, axis=(1, 2))

    return jax.lax.map(at, phi)


def _var_by_point(block: Block, phi: jax.Array, hats: tuple) -> jax.Array:
    """The same as a *real* quadratic form in φ_t, with all times for one point after the other."""
    nngp = _in_eigenbasis(block)
    W, V = (product(hat, block.vectors) for hat in hats)
    crossed = jnp.einsum("te,me->tm", phi, jnp.sum((W * V.conj()).real, axis=1))

    def of(row: jax.Array) -> jax.Array:
        form = (jnp.einsum("ae,af->ef", row, row.conj()) * nngp).real
        return jnp.sum((phi @ form) * phi, axis=1)

    return jax.lax.map(of, W).T - 2 * crossed


def _basis(block: Block, rows: int) -> tuple[Any, Callable, Callable]:
    """𝒦_σ in the basis in which it is cheaper to use, and the ways there: from the eigenbasis of Θ, and for conj(û).

    For few rows their way is the shorter one, for many that of the matrix.
    """
    if rows < 2 * len(block.values):
        return block.nngp, lambda S: product(S, block.vectors.conj().T), lambda hat: hat
    return _in_eigenbasis(block), lambda S: S, lambda hat: product(hat, block.vectors)


def _in_eigenbasis(block: Block) -> jax.Array:
    assert block.nngp is not None
    return product(product(block.vectors.conj().T, block.nngp), block.vectors)


def _inner(left: jax.Array, right: jax.Array) -> jax.Array:
    """The real part of left · right†, over the indices a and e."""
    flat, other = (array.reshape(len(array), array.shape[1] * array.shape[2]) for array in (left, right))
    if not jnp.iscomplexobj(flat):
        return flat @ other.T
    return flat.real @ other.real.T + flat.imag @ other.imag.T


@jax.jit
def posterior_part(block: Block, phi: jax.Array, hat: jax.Array) -> jax.Array:
    """−𝒦(x, X) φ(𝒦) 𝒦(X, x'), [m, m], from conj(û) of 𝒦 and φ [e]."""
    V = product(hat, block.vectors)
    return -_inner(V * phi[None, None], V)


def rounding_allowed(variance: jax.Array) -> float:
    """What rounding may be, as a fraction of the variance before training."""
    return 100 * float(jnp.finfo(variance.dtype).eps) ** 0.5


def nonnegative(variance: jax.Array, prior: jax.Array) -> jax.Array:
    """Variances [T, rows] with small negative ones from rounding set to zero; large ones are an error.

    Rounding is measured against the variances before training, `prior` [rows].
    """
    if is_concrete((variance, prior)) and variance.size:
        lowest, scale = float(jnp.min(variance)), float(jnp.max(prior))
        if not lowest >= -rounding_allowed(variance) * scale:
            fix = "The kernel is not positive semidefinite on training and test points together."
            raise refusal("kernel_fn", expected="positive semidefinite", got=f"a variance of {lowest:.3g}", fix=fix)
    return jnp.maximum(variance, 0)


@partial(jax.jit, static_argnames="channels")
def train_part(sigma: jax.Array, block: Block, factor: jax.Array, channels: int) -> jax.Array:
    """F(Θ)y on the training set in the frame of each element, [T, order, i, c], for F(λ) = factor [T, e]."""
    hat = jnp.einsum("ke,tef->tkf", block.vectors, factor[:, :, None] * block.labels[None])
    return synthesis(sigma, hat, channels)


@partial(jax.jit, static_argnames="members")
def draws(key: jax.Array, mean: jax.Array, cov: jax.Array, members: int) -> jax.Array:
    """Functions drawn from N(mean, cov) independently for each channel, [members, rows, c]."""
    values, vectors = jnp.linalg.eigh(cov)
    # The positive root is unique. Eigenvectors differ from machine to machine, where eigenvalues coincide as on orbits.
    root = (vectors * jnp.sqrt(jnp.maximum(values, 0))[None, :]) @ vectors.T
    normal = jax.random.normal(key, (members, *mean.shape), mean.dtype)
    return mean[None] + jnp.einsum("ij,kjc->kic", root, normal)
