"""The law of the trained ensemble at test points, sector by sector.

With A = Θ(x, X) φ_t(Θ), the mean is A y and the covariance the congruence

    Σ_t(x, x') = 𝒦(x, x') − A 𝒦(X, x') − 𝒦(x, X) A'ᵀ + A 𝒦(X, X) A'ᵀ.

In the eigenbasis U of a block, with W = conj(û) U for the rows u of Θ and V likewise for those of 𝒦,

    S = W φ_t(λ),       A y ↦ S (U†v̂),       −S V'† − V S'† + S (U†𝒦_σU) S'†,

each times the weight of its sector, real part, summed over sectors and over the index a.
"""

from functools import partial

import jax
import jax.numpy as jnp

from ntk_equiv._check import is_concrete, refusal
from ntk_equiv.infinite._fit import Block
from ntk_equiv.infinite._sectors import row_coefficients, synthesis

# From how many times on it pays to make a real quadratic form for each test point.
MANY_TIMES = 6


@partial(jax.jit, static_argnames="channels")
def mean_part(sigma: jax.Array, block: Block, phi: jax.Array, rows: jax.Array, channels: int) -> jax.Array:
    """A y at test points, [T, m, c], from phi [T, e] and the rows [order, m, i] of Θ."""
    hat = row_coefficients(sigma, rows)
    d = sigma.shape[1]
    filtered = (phi[:, :, None] * block.labels[None]).reshape(*phi.shape, d, channels)
    # The cheaper order of the product (rows) · U · (filtered labels).
    if phi.shape[0] * channels <= rows.shape[1]:
        filtered = jnp.einsum("ke,teac->tkac", block.vectors, filtered)
    else:
        hat = hat @ block.vectors
    return jnp.einsum("mae,teac->tmc", hat, filtered).real


@jax.jit
def projections(sigma: jax.Array, vectors: jax.Array, rows: jax.Array) -> jax.Array:
    """W or V: rows [order, m, i] in the eigenbasis, [m, a, e]."""
    return row_coefficients(sigma, rows) @ vectors


@jax.jit
def cov_part(nngp: jax.Array, phi: jax.Array, left: tuple, right: tuple) -> jax.Array:
    """What training changes of the covariance, [T, m, m'], from (W, V) of both sets of points."""

    def at(phi_t: jax.Array) -> jax.Array:
        (S, V), (S2, V2) = ((W * phi_t[None, None], V) for W, V in (left, right))
        first = jnp.einsum("mae,nae->mn", S @ nngp - V, S2.conj())
        return (first - jnp.einsum("mae,nae->mn", S, V2.conj())).real

    return jax.lax.map(at, phi)


@jax.jit
def var_part(nngp: jax.Array, phi: jax.Array, W: jax.Array, V: jax.Array) -> jax.Array:
    """What training changes of the variance, [T, m]."""
    crossed = jnp.einsum("te,me->tm", phi, jnp.sum((W * V.conj()).real, axis=1))
    squared = _squares_by_time if len(phi) < MANY_TIMES else _squares_by_point
    return squared(nngp, phi, W) - 2 * crossed


def _squares_by_time(nngp: jax.Array, phi: jax.Array, W: jax.Array) -> jax.Array:
    """The diagonal of S (U†𝒦_σU) S†, as a product with all points for one time after the other."""

    def at(phi_t: jax.Array) -> jax.Array:
        S = W * phi_t[None, None]
        return jnp.sum(((S @ nngp) * S.conj()).real, axis=(1, 2))

    return jax.lax.map(at, phi)


def _squares_by_point(nngp: jax.Array, phi: jax.Array, W: jax.Array) -> jax.Array:
    """The same as a *real* quadratic form in φ_t, with all times for one point after the other."""

    def of(rows: jax.Array) -> jax.Array:
        form = (jnp.einsum("ae,af->ef", rows, rows.conj()) * nngp).real
        return jnp.sum((phi @ form) * phi, axis=1)

    return jax.lax.map(of, W).T


@jax.jit
def posterior_part(phi: jax.Array, left: jax.Array, right: jax.Array) -> jax.Array:
    """−𝒦(x, X) φ(𝒦) 𝒦(X, x'), [m, m'], from V of both sets of points."""
    return -jnp.einsum("mae,nae->mn", left * phi[None, None], right.conj()).real


def nonnegative(variance: jax.Array, prior: jax.Array) -> jax.Array:
    """Variances [T, rows] with small negative ones from rounding set to zero; large ones are an error.

    Rounding is measured against the variances before training, `prior` [rows].
    """
    if is_concrete((variance, prior)) and variance.size:
        lowest, scale = float(jnp.min(variance)), float(jnp.max(prior))
        if not lowest >= -100 * float(jnp.finfo(variance.dtype).eps) ** 0.5 * scale:
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
    root = vectors * jnp.sqrt(jnp.maximum(values, 0))[None, :]
    normal = jax.random.normal(key, (members, *mean.shape), mean.dtype)
    return mean[None] + jnp.einsum("ij,kjc->kic", root, normal)
