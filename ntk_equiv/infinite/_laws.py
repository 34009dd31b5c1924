"""The law of the trained ensemble at test samples, sector by sector.

With A = Θ(x, X) φ_t(Θ), the mean is A y and the covariance the congruence

    Σ_t(x, x') = 𝒦(x, x') − A 𝒦(X, x') − 𝒦(x, X) A'ᵀ + A 𝒦(X, X) A'ᵀ.

A block has a basis in which functions of it are applied, an eigenbasis U or the one it is given in (U = 1). There, with
W = conj(û) U for the rows u of Θ and V likewise for those of 𝒦,

    S = W φ_t(B),       A y ↦ S (U†v̂),       −S V'† − V S'† + S (U†𝒦_σU) S'†,

each times the weight of its sector, real part, summed over sectors and over the index a.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from ntk_equiv._check import is_concrete, refusal
from ntk_equiv.infinite._fit import Block
from ntk_equiv.infinite._hermitian import Eigenbasis, Inverse, positive_root, product
from ntk_equiv.infinite._response import Response
from ntk_equiv.infinite._sectors import synthesis

# From how many times on it pays to make a real quadratic form for each test sample.
MANY_TIMES = 6


def mean_part(block: Block, f: Response, t: jax.Array, hat: jax.Array, channels: int) -> jax.Array:
    """A y at test samples, [T, m, c], for times t [T], from conj(û) [m, a, (b, i)] of Θ."""
    if isinstance(block.basis, Inverse):
        return _inner_with_labels(hat, _filtered_labels(block, f, t), channels)
    return _mean_in_eigenbasis(block, f, t, hat, channels)


@partial(jax.jit, static_argnames="channels")
def _mean_in_eigenbasis(block: Block, f: Response, t: jax.Array, hat: jax.Array, channels: int) -> jax.Array:
    filtered = _filtered_in_eigenbasis(block, f, t)
    # The cheaper order of the product (rows) · U · (filtered labels).
    if len(t) * channels <= len(hat):
        filtered = block.basis.rows(filtered)
    else:
        hat = block.basis.coordinates(hat)
    return _inner_with_labels(hat, filtered, channels)


@partial(jax.jit, static_argnames="channels")
def _inner_with_labels(hat: jax.Array, filtered: jax.Array, channels: int) -> jax.Array:
    apart = filtered.reshape(len(filtered), hat.shape[1], channels, hat.shape[2])
    return jnp.einsum("mae,tace->tmc", hat, apart.conj()).real


def train_part(sigma: jax.Array, block: Block, f: Response, t: jax.Array, channels: int) -> jax.Array:
    """f_t(Θ)y on the training set in the frame of each element, [T, order, i, c]."""
    return _synthesized(sigma, block.basis.rows(_filtered_labels(block, f, t)), channels)


@partial(jax.jit, static_argnames="channels")
def _synthesized(sigma: jax.Array, filtered: jax.Array, channels: int) -> jax.Array:
    return synthesis(sigma, filtered.conj().swapaxes(1, 2), channels)


def _filtered_labels(block: Block, f: Response, t: jax.Array) -> jax.Array:
    """(f_t(B) v̂)† in the basis of the block, [T, (a, c), e]."""
    if isinstance(block.basis, Inverse):
        return _at_the_end(block.basis.filtered(f, t, block.labels), t)
    return _filtered_in_eigenbasis(block, f, t)


@jax.jit
def _filtered_in_eigenbasis(block: Block, f: Response, t: jax.Array) -> jax.Array:
    return jax.vmap(lambda t: block.basis.filtered(f, t, block.labels))(t)


def _at_the_end(values: jax.Array, t: jax.Array) -> jax.Array:
    """What holds at t = ∞, for each of several times that all are ∞."""
    return jnp.broadcast_to(values[None], (len(t), *values.shape))


def cov_part(block: Block, f: Response, t: jax.Array, hats: tuple, others: tuple | None) -> jax.Array:
    """What training changes of the covariance, [T, m, m'], from conj(û) of Θ and 𝒦 at both sets of samples.

    `others` is None if both sets are the same.
    """
    if isinstance(block.basis, Inverse):
        A = block.basis.filtered(f, t, hats[0])
        A2 = A if others is None else block.basis.filtered(f, t, others[0])
        return _at_the_end(_congruence(block.nngp, A, hats[1], A2, hats[1] if others is None else others[1]), t)
    return _cov_in_eigenbasis(block, f, t, hats, others)


@jax.jit
def _cov_in_eigenbasis(block: Block, f: Response, t: jax.Array, hats: tuple, others: tuple | None) -> jax.Array:
    nngp, turned, taken = _cheaper_basis(block, len(t) * len(hats[0]))
    W, V = block.basis.coordinates(hats[0]), taken(hats[1])
    W2, V2 = (W, V) if others is None else (block.basis.coordinates(others[0]), taken(others[1]))

    def at(t: jax.Array) -> jax.Array:
        A = turned(block.basis.filtered(f, t, W))
        A2 = A if others is None else turned(block.basis.filtered(f, t, W2))
        return _congruence(nngp, A, V, A2, V2)

    return jax.lax.map(at, t)


@jax.jit
def _congruence(nngp: jax.Array, A: jax.Array, V: jax.Array, A2: jax.Array, V2: jax.Array) -> jax.Array:
    return _inner(product(A, nngp) - V, A2) - _inner(A, V2)


def trajectory_part(block: Block, f: Response, t: jax.Array, hats: tuple) -> jax.Array:
    """What training changes of the covariance of all (time, sample), [T · m, T · m], from conj(û) of Θ and 𝒦."""
    basis = block.basis
    if isinstance(basis, Inverse):
        S = _at_the_end(basis.filtered(f, t, hats[0]), t)
    else:
        W = basis.coordinates(hats[0])
        S = jax.vmap(lambda t: basis.filtered(f, t, W))(t)
    S = S.reshape(-1, *S.shape[2:])
    V = jnp.tile(basis.coordinates(hats[1]), (len(t), 1, 1))
    return _congruence(basis.transformed(block.nngp), S, V, S, V)


def var_part(block: Block, f: Response, t: jax.Array, hats: tuple) -> jax.Array:
    """What training changes of the variance, [T, m], from conj(û) of Θ and 𝒦."""
    if isinstance(block.basis, Inverse):
        return _at_the_end(_diagonal_congruence(block.nngp, block.basis.filtered(f, t, hats[0]), hats[1]), t)
    if len(t) >= MANY_TIMES and block.basis.tilt is None:
        return _var_by_sample(block, f, t, hats)
    return _var_in_eigenbasis(block, f, t, hats)


@jax.jit
def _var_in_eigenbasis(block: Block, f: Response, t: jax.Array, hats: tuple) -> jax.Array:
    nngp, turned, taken = _cheaper_basis(block, len(t) * len(hats[0]))
    W, V = block.basis.coordinates(hats[0]), taken(hats[1])
    return jax.lax.map(lambda t: _diagonal_congruence(nngp, turned(block.basis.filtered(f, t, W)), V), t)


@jax.jit
def _diagonal_congruence(nngp: jax.Array, A: jax.Array, V: jax.Array) -> jax.Array:
    return jnp.sum(((product(A, nngp) - 2 * V) * A.conj()).real, axis=(1, 2))


@jax.jit
def _var_by_sample(block: Block, f: Response, t: jax.Array, hats: tuple) -> jax.Array:
    """The same as a *real* quadratic form in φ_t, with all times for one sample after the other."""
    assert isinstance(block.basis, Eigenbasis)
    phi = f(block.basis.values[None], t[:, None])
    nngp = block.basis.transformed(block.nngp)
    W, V = (block.basis.coordinates(hat) for hat in hats)
    crossed = jnp.einsum("te,me->tm", phi, jnp.sum((W * V.conj()).real, axis=1))

    def of(row: jax.Array) -> jax.Array:
        form = (jnp.einsum("ae,af->ef", row, row.conj()) * nngp).real
        return jnp.sum((phi @ form) * phi, axis=1)

    return jax.lax.map(of, W).T - 2 * crossed


def _cheaper_basis(block: Block, rows: int) -> tuple[Any, Callable, Callable]:
    """𝒦_σ in the basis in which it is cheaper to use, and the ways there: from the eigenbasis of Θ, and for conj(û).

    For few rows their way is the shorter one, for many that of the matrix.
    """
    basis = block.basis
    assert isinstance(basis, Eigenbasis)
    if rows < 2 * len(basis.values):
        return block.nngp, basis.rows, lambda hat: hat
    return basis.transformed(block.nngp), lambda S: S, basis.coordinates


def _inner(left: jax.Array, right: jax.Array) -> jax.Array:
    """The real part of left · right†, over the indices a and e."""
    flat, other = (array.reshape(len(array), array.shape[1] * array.shape[2]) for array in (left, right))
    if not jnp.iscomplexobj(flat):
        return flat @ other.T
    return flat.real @ other.real.T + flat.imag @ other.imag.T


def posterior_part(block: Block, f: Response, t: jax.Array, hat: jax.Array) -> jax.Array:
    """−𝒦(x, X) φ(𝒦) 𝒦(X, x'), [m, m], from conj(û) of 𝒦."""
    V = block.basis.coordinates(hat)
    return -_inner(block.basis.filtered(f, t, V), V)


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
            fix = "The kernel is not positive semidefinite on training and test samples together."
            raise refusal("kernel_fn", expected="positive semidefinite", got=f"a variance of {lowest:.3g}", fix=fix)
    return jnp.maximum(variance, 0)


@partial(jax.jit, static_argnames="members")
def draws(key: jax.Array, mean: jax.Array, cov: jax.Array, members: int) -> jax.Array:
    """Functions drawn from N(mean, cov) independently for each channel, [members, rows, c], for mean [rows, c]."""
    normal = jax.random.normal(key, (members, *mean.shape), mean.dtype)
    return mean[None] + jnp.einsum("ij,kjc->kic", positive_root(cov), normal)
