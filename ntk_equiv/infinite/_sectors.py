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
    def dim(self) -> int:
        """The dimension d."""
        return self.sigma.shape[1]

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
    hat = _contracted("gab,gic->biac", sigma, v)
    return hat.reshape(hat.shape[0] * hat.shape[1], hat.shape[2] * hat.shape[3])


def row_coefficients(sigma: jax.Array, rows: jax.Array) -> jax.Array:
    """conj(û) of real rows u [order, m, i], as an array [m, a, (b, i)]."""
    hat = _contracted("gab,gmi->mabi", sigma.conj(), rows)
    return hat.reshape(*hat.shape[:2], hat.shape[2] * hat.shape[3])


def synthesis(sigma: jax.Array, hat: jax.Array, channels: int) -> jax.Array:
    """Σ_ab conj(σ(g)_ab) v̂_ab, its real part: the contribution to v(g), [..., order, i, c], up to the weight."""
    d = sigma.shape[1]
    apart = hat.reshape(*hat.shape[:-2], d, -1, d, channels)
    return jnp.einsum("gab,...biac->...gic", sigma.conj(), apart).real


def half_block(sigma: jax.Array, phi: jax.Array, factors: jax.Array) -> jax.Array:
    """Z = Σ_k factor(k) conj(σ(k)) ⊗ Φ(k) over some elements, [(a, i), (b, j)], from phi [k, i, j]."""
    weighted = sigma.conj() * factors[:, None, None]
    blocks = _contracted("kab,kij->aibj", weighted, phi)
    size = blocks.shape[0] * blocks.shape[1]
    return blocks.reshape(size, size)


def _contracted(formula: str, sigma: jax.Array, real: jax.Array) -> jax.Array:
    """An einsum of which only σ may be complex, without making the other complex."""
    if not jnp.iscomplexobj(sigma):
        return jnp.einsum(formula, sigma, real)
    return jax.lax.complex(jnp.einsum(formula, sigma.real, real), jnp.einsum(formula, sigma.imag, real))
