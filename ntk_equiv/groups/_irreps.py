"""Irreducible unitary representations of any finite group, numerically.

The regular representation (L(g)v)(h) = v(g⁻¹h) holds every irrep σ exactly dim σ times. Its commutant are the right
translations, so with real coefficients a(g) = a(g⁻¹) drawn at random

    A[h, h'] = a(h⁻¹h')

is a real symmetric matrix whose eigenspaces are, with probability one, irreducible over the real numbers. An eigenspace
with orthonormal basis V and projector P = VVᵀ carries ρ(g) = VᵀL(g)V with the character

    χ(g) = Σ_h p(hgh⁻¹),      p(g) = P[e, g],

read off one row of P. ⟨χ, χ⟩ = 1, 2, 4 tells the real, the complex and the quaternionic type. In the last two cases
some real antisymmetric J with J² = −1 commutes with ρ; the eigenspaces of J split ρ into σ and its conjugate, which
are two irreps for the complex type and the same one twice for the quaternionic type.

One-dimensional irreps are rounded to exact roots of unity. Others that eigenvalues too close together have left
inexact are made homomorphisms to rounding by

    σ(g) ← (1/N) Σ_h σ(gh)σ(h)†,     then the nearest unitary matrix,

whose error is the square of the previous one. The result is checked before anybody sees it.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ntk_equiv.groups import _table

_ATTEMPTS = 8


class _Algebra(NamedTuple):
    """What of a group is needed again and again."""

    table: np.ndarray
    inverse: np.ndarray
    identity: int
    generators: tuple[int, ...]
    classes: np.ndarray
    element_orders: np.ndarray


def irreps(table: np.ndarray) -> tuple[np.ndarray, ...]:
    """All irreps of the group with this table, each [order, d, d]: real where a real form exists, else complex.

    The trivial one comes first, then by dimension; within a dimension by decreasing real part of the character,
    compared element by element. Conjugate irreps are neighbours.

    Raises:
        ArithmeticError: the result misses its checks for every random element that was tried.
    """
    group = _Algebra(
        table,
        _table.inverse(table),
        _table.identity(table),
        _table.generators(table),
        _table.conjugacy_labels(table),
        _table.element_orders(table),
    )
    for seed in range(_ATTEMPTS):
        found = _ordered(list(_distinct_irreps(group, np.random.default_rng(seed))))
        if sum(sigma.shape[1] ** 2 for sigma in found) == len(table) and defect(table, found) < 1e-11:
            return tuple(_table.read_only(sigma) for sigma in found)
    raise ArithmeticError(
        f"The irreps of this group of order {len(table)} could not be found to 1e-11 from {_ATTEMPTS} random elements "
        "of the commutant. Please report the table: eigenvalues this close are not expected."
    )


def defect(table: np.ndarray, found: tuple[np.ndarray, ...]) -> float:
    """How far `found` is from being all irreps: homomorphism, and Schur orthogonality with completeness.

    σ(s)σ(g) = σ(sg) for generators s implies it for all pairs. The matrix elements √(d/N)·σ_ab(g) are orthonormal
    functions on the group, and a basis exactly if Σd² = N.
    """
    order, generators = len(table), _table.generators(table)
    error = max(_homomorphism_error(table, generators, sigma) for sigma in found)
    elements = [np.sqrt(sigma.shape[1] / order) * sigma.reshape(order, -1) for sigma in found]
    basis = np.concatenate(elements, axis=1)
    return float(max(error, np.abs(basis.conj().T @ basis - np.eye(basis.shape[1])).max()))


def _homomorphism_error(table: np.ndarray, generators: tuple[int, ...], sigma: np.ndarray) -> float:
    return max(float(np.abs(sigma[s] @ sigma - sigma[table[s]]).max()) for s in generators or (0,))


def _distinct_irreps(group: _Algebra, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """One irrep of every class, in no particular order."""
    order, sizes = len(group.table), np.bincount(group.classes)
    seen: list[np.ndarray] = []
    for V in _eigenspaces(group, rng):
        p = V @ V[group.identity]
        chi = order * (np.bincount(group.classes, weights=p) / sizes)[group.classes]
        if any(np.abs(chi - other).max() < 1e-6 for other in seen):
            continue
        seen.append(chi)
        rho = np.concatenate([V.T @ V[rows] for rows in _portions(group.table[group.inverse], V.size)])
        yield from _split(group, rho, round(float(chi @ chi) / order), rng)


def _eigenspaces(group: _Algebra, rng: np.random.Generator) -> list[np.ndarray]:
    """Orthonormal bases of the eigenspaces of a random real symmetric element of the commutant."""
    a = rng.standard_normal(len(group.table))
    values, vectors = np.linalg.eigh((a + a[group.inverse])[group.table[group.inverse]])
    width = np.abs(values).max()
    return np.split(vectors, np.flatnonzero(np.diff(values) > 1e-9 * width) + 1, axis=1)


def _split(group: _Algebra, rho: np.ndarray, norm: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """The unitary irreps in a real-irreducible ρ with ⟨χ, χ⟩ = norm, polished."""
    if norm == 1:
        yield _polished(group, rho)
        return
    X = rng.standard_normal(rho.shape[1:])
    J = np.mean(rho @ (X - X.T) @ rho.transpose(0, 2, 1), axis=0)
    _, vectors = np.linalg.eigh(1j * J)
    U = vectors[:, : rho.shape[1] // 2]
    sigma = _polished(group, U.conj().T @ rho @ U)
    yield sigma
    if norm == 2:
        yield sigma.conj() + 0  # no negative zeros


def _polished(group: _Algebra, sigma: np.ndarray) -> np.ndarray:
    """The representation next to `sigma`, which is one up to small errors."""
    if sigma.shape[1] == 1:
        turns = np.rint(np.angle(sigma[:, 0, 0]) / (2 * np.pi) * group.element_orders)
        roots = root_of_unity(turns, group.element_orders)[:, None, None]
        return roots if np.iscomplexobj(sigma) else roots.real
    if _homomorphism_error(group.table, group.generators, sigma) > 1e-14:
        return averaged(group.table, sigma)
    return sigma


def averaged(table: np.ndarray, sigma: np.ndarray) -> np.ndarray:
    """The average of σ(gh)σ(h)† over h, made unitary: a homomorphism up to the square of the error of `sigma`."""
    order, d = sigma.shape[:2]
    right = sigma.conj().transpose(0, 2, 1).reshape(order * d, d)
    portions = (sigma[rows].transpose(0, 2, 1, 3).reshape(-1, order * d) for rows in _portions(table, sigma.size))
    average = np.concatenate([portion @ right for portion in portions]).reshape(order, d, d) / order
    left, _, right = np.linalg.svd(average)
    return left @ right


def _portions(rows: np.ndarray, size: int) -> list[np.ndarray]:
    """`rows` in pieces for which gathering `size` numbers per row stays within a few megabytes."""
    return np.array_split(rows, -(-len(rows) * size // 2**20))


def root_of_unity(k: np.ndarray, n: np.ndarray | int) -> np.ndarray:
    """exp(2πik/n), with exact zeros and ones at quarter turns.

    >>> root_of_unity(np.arange(4), 4)
    array([ 1.+0.j,  0.+1.j, -1.+0.j,  0.-1.j])
    """
    angle = 2 * np.pi * (k % n) / n
    cosine, sine = np.cos(angle), np.sin(angle)
    return np.where(np.abs(cosine) < 1e-15, 0, cosine) + 1j * np.where(np.abs(sine) < 1e-15, 0, sine)


def _ordered(found: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    """`found`, sorted by dimension, then by character."""

    def place(sigma: np.ndarray) -> tuple:
        chi = np.round(np.trace(sigma, axis1=1, axis2=2), 6) + 0
        return (len(sigma[0]), tuple(-chi.real), tuple(-chi.imag))

    return tuple(sorted(found, key=place))
