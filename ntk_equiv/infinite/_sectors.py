"""The Fourier transform of a finite group, one irrep at a time.

A function v on the group has for every unitary irrep σ of dimension d the coefficients

    v̂_ab = Σ_g v(g) σ(g)_ab,        v(g) = Σ_σ (d/|G|) Σ_ab conj(σ(g)_ab) v̂_ab,
    Σ_g u(g) v(g) = Σ_σ (d/|G|) Σ_ab conj(û_ab) v̂_ab     for real u,

and multiplication by a group-circulant matrix, (Θv)(g) = Σ_h Φ(g⁻¹h) v(h), acts on the second index alone:

    (Θv)^ = v̂ B_σᵀ,        B_σ = Σ_k conj(σ(k)) ⊗ Φ(k),      Hermitian because Φ(k⁻¹) = Φ(k)ᵀ.

Real functions need only one irrep of a conjugate pair, and of its contribution twice the real part. In code: a `Sector`
is one irrep that is needed, with the factor in front of its contribution; coefficients are matrices whose rows count
(b, i), i numbering what Φ acts on, and whose columns count (a, c), c numbering channels.
"""

import dataclasses
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv.groups import FiniteGroup


@dataclasses.dataclass(frozen=True, eq=False)
class Sector:
    """One irrep, or one of a conjugate pair.

    Attributes:
        sigma: the matrices, [order, d, d], real if they can be.
        weight: d/|G|, twice that for a pair.
    """

    sigma: np.ndarray
    weight: float

    @property
    def copies(self) -> int:
        """How often each eigenvalue of its block occurs in the whole Gram matrix: d times, 2d for a pair."""
        return round(self.weight * len(self.sigma))

    def matrices(self, dtype: Any) -> jax.Array:
        """σ in the precision of `dtype`."""
        complex_dtype = jnp.complex128 if dtype == jnp.float64 else jnp.complex64
        return jnp.asarray(self.sigma, complex_dtype if np.iscomplexobj(self.sigma) else dtype)


@lru_cache(maxsize=64)
def sectors_of(group: FiniteGroup | None) -> tuple[Sector, ...]:
    """All sectors of a group; the one of the trivial group for None."""
    if group is None:
        return (Sector(np.ones((1, 1, 1)), 1.0),)
    kinds = zip(group.irreps(), group.irrep_types(), strict=True)
    return tuple(
        Sector(sigma, sigma.shape[1] / group.order * (1 + (kind.conjugate != number)))
        for number, (sigma, kind) in enumerate(kinds)
        if kind.conjugate >= number
    )


@lru_cache(maxsize=64)
def halved(group: FiniteGroup | None) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """One element of each pair {k, k⁻¹}, with the factor 1, or ½ if it is its own inverse.

    With these, Σ_k X(k) = Z + Z† for Z = Σ factor(k) X(k), whenever X(k⁻¹) = X(k)†.
    """
    if group is None:
        return (0,), (0.5,)
    chosen = [k for k in range(group.order) if k <= group.inverse[k]]
    return tuple(chosen), tuple(0.5 if group.inverse[k] == k else 1.0 for k in chosen)


@jax.jit
def coefficients(sigma: jax.Array, v: jax.Array) -> jax.Array:
    """v̂ of real v [order, i, c], as a matrix [(b, i), (a, c)]."""
    (hat,) = _sums((sigma,), v)
    hat = hat.transpose(1, 2, 0, 3)
    return hat.reshape(hat.shape[0] * hat.shape[1], hat.shape[2] * hat.shape[3])


@jax.jit
def row_coefficients(sigmas: tuple[jax.Array, ...], rows: jax.Array) -> list[jax.Array]:
    """conj(û) of real rows u [order, m, i] for several σ, each as an array [m, a, (b, i)]."""
    hats = (hat.transpose(2, 0, 1, 3) for hat in _sums(tuple(sigma.conj() for sigma in sigmas), rows))
    return [hat.reshape(*hat.shape[:2], hat.shape[2] * hat.shape[3]) for hat in hats]


def synthesis(sigma: jax.Array, hat: jax.Array, channels: int) -> jax.Array:
    """Σ_ab conj(σ(g)_ab) v̂_ab, its real part: the contribution to v(g), [..., order, i, c], up to the weight."""
    d = sigma.shape[1]
    apart = hat.reshape(*hat.shape[:-2], d, -1, d, channels)
    return jnp.einsum("gab,...biac->...gic", sigma.conj(), apart).real


def half_blocks(sigmas: tuple[jax.Array, ...], phi: jax.Array, factors: jax.Array) -> list[jax.Array]:
    """Z = Σ_k factor(k) conj(σ(k)) ⊗ Φ(k) over some elements for several σ, [(a, i), (b, j)], from phi [k, i, j]."""
    weights = tuple(sigma.conj() * factors[:, None, None] for sigma in sigmas)
    halves = (half.transpose(0, 2, 1, 3) for half in _sums(weights, phi))
    return [half.reshape(half.shape[0] * half.shape[1], half.shape[2] * half.shape[3]) for half in halves]


def _sums(weights: tuple[jax.Array, ...], values: jax.Array) -> list[jax.Array]:
    """Σ_k w(k)_ab v(k) of real v [k, p, q] for several w [k, a, b], in one product that reads v once."""
    rows = [weight.reshape(len(weight), -1).T for weight in weights]
    parts = [part for row in rows for part in ((row.real, row.imag) if jnp.iscomplexobj(row) else (row,))]
    ends = np.cumsum([len(part) for part in parts])[:-1]
    sums = iter(jnp.split(jnp.einsum("rk,kpq->rpq", jnp.concatenate(parts), values), ends))
    found = (jax.lax.complex(next(sums), next(sums)) if jnp.iscomplexobj(weight) else next(sums) for weight in weights)
    return [part.reshape(*w.shape[1:], *values.shape[1:]) for w, part in zip(weights, found, strict=True)]
