"""The irreducible unitary representations of any finite group, computed from its table, and their characters.

**Finding them.** The regular representation (L(g)v)(h) = v(g⁻¹h) contains every irrep σ exactly dim σ times. It
commutes with the right translations. Draw real coefficients a(g) = a(g⁻¹) at random; then

    A[h, h'] = a(h⁻¹h')

is a real symmetric matrix that commutes with L. With probability one its eigenspaces are irreducible over the real
numbers. An eigenspace with orthonormal basis V and projector P = VVᵀ carries ρ(g) = VᵀL(g)V, with the character

    χ(g) = Σ_h p(hgh⁻¹),      p(g) = P[e, g],

which needs one row of P only. ⟨χ, χ⟩ = 1, 2, 4 for the real, the complex and the quaternionic type. In the last two
cases some real antisymmetric J with J² = −1 commutes with ρ. The eigenspaces of J split ρ into σ and its conjugate:
two irreps for the complex type, the same irrep twice for the quaternionic type.

**Rounding.** One-dimensional irreps are rounded to exact roots of unity. The others are exact up to rounding although
eigenvalues of A may lie close together: if V is tilted into another eigenspace by an angle δ, ρ is wrong by δ² only,
because L does not mix the two. The result is checked before it is returned, and another A is drawn if it fails.

**Types.** For an irrep σ with character χ(g) = tr σ(g) the Frobenius–Schur indicator is

    ν = (1/N) Σ_g χ(g²) =  1   real: σ has a real orthogonal form,
                           0   complex: σ and its conjugate σ̄ are different irreps,
                          −1   quaternionic: σ ≅ σ̄, but no basis makes σ real.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Complex

from ntk_equiv.groups import _table
from ntk_equiv.groups._table import Table

Irreps = tuple[np.ndarray, ...]  # each [order, d, d]

_ATTEMPTS = 8


class IrrepType(NamedTuple):
    """The type of one irrep.

    Attributes:
        indicator: the Frobenius–Schur indicator: 1 real, 0 complex, -1 quaternionic.
        conjugate: the index of the conjugate irrep in `G.irreps()`; its own index unless the type is complex.

    Example:
        >>> from ntk_equiv import groups
        >>> groups.cyclic(3).irrep_types()                      # the second and third are conjugate to each other
        (IrrepType(indicator=1, conjugate=0), IrrepType(indicator=0, conjugate=2), IrrepType(indicator=0, conjugate=1))
    """

    indicator: int
    conjugate: int


class _Algebra(NamedTuple):
    """A table with all that is read off it, so that it is read only once."""

    table: Table
    inverse: np.ndarray
    identity: int
    generators: tuple[int, ...]
    classes: np.ndarray
    element_orders: np.ndarray


def irreps(table: Table) -> Irreps:
    """All irreps of the group with this table, each [order, d, d]: real where a real form exists, else complex.

    The trivial one comes first. The others are sorted by dimension, then by decreasing real part of the character,
    element by element. Conjugate irreps are neighbours.

    Raises:
        ArithmeticError: the result failed its checks for every random element that was tried.
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
        found = _sort_irreps(_distinct_irreps(group, np.random.default_rng(seed)))
        if sum(sigma.shape[1] ** 2 for sigma in found) == len(table) and _error(group, found) < 1e-11:
            return tuple(_table.read_only(sigma) for sigma in found)
    raise ArithmeticError(
        f"The irreps of this group of order {len(table)} could not be computed to 1e-11 from {_ATTEMPTS} random "
        "elements of the commutant. Eigenvalues this close are not expected: please report the table."
    )


def _error(group: _Algebra, found: Irreps) -> float:
    """How far `found` is from being all irreps: as homomorphisms, and in Schur orthogonality with completeness.

    σ(s)σ(g) = σ(sg) for generators s implies it for all pairs. The matrix elements √(d/N)·σ_ab(g) are orthonormal
    functions on the group, and they are a basis exactly if Σd² = N.
    """
    order = len(group.table)
    error = max(_homomorphism_error(group, sigma) for sigma in found)
    elements = [np.sqrt(sigma.shape[1] / order) * sigma.reshape(order, -1) for sigma in found]
    basis = np.concatenate(elements, axis=1)
    return float(max(error, np.abs(basis.conj().T @ basis - np.eye(basis.shape[1])).max()))


def _homomorphism_error(group: _Algebra, sigma: np.ndarray) -> float:
    return max(float(np.abs(sigma[s] @ sigma - sigma[group.table[s]]).max()) for s in group.generators or (0,))


def _distinct_irreps(group: _Algebra, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """One irrep of every equivalence class, in no particular order."""
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
    # Rounding spreads equal eigenvalues by about 1e-14 of the width; a wider gap separates two eigenspaces.
    return np.split(vectors, np.flatnonzero(np.diff(values) > 1e-9 * width) + 1, axis=1)


def _split(group: _Algebra, rho: np.ndarray, norm: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """The unitary irreps in a real-irreducible ρ with ⟨χ, χ⟩ = norm."""
    if norm == 1:
        yield _round_to_roots(group, rho)
        return
    # The average of ρ(g)Aρ(g)ᵀ over the group commutes with ρ. A = X − Xᵀ makes it antisymmetric, so iJ is Hermitian.
    X = rng.standard_normal(rho.shape[1:])
    J = np.mean(rho @ (X - X.T) @ rho.transpose(0, 2, 1), axis=0)
    _, vectors = np.linalg.eigh(1j * J)
    U = vectors[:, : rho.shape[1] // 2]
    sigma = _round_to_roots(group, U.conj().T @ rho @ U)
    yield sigma
    if norm == 2:
        yield sigma.conj() + 0  # no negative zeros


def _round_to_roots(group: _Algebra, sigma: np.ndarray) -> np.ndarray:
    """Make a one-dimensional irrep exact, whose values are roots of unity; return others as they are."""
    if sigma.shape[1] > 1:
        return sigma
    turns = np.rint(np.angle(sigma[:, 0, 0]) / (2 * np.pi) * group.element_orders)
    roots = root_of_unity(turns, group.element_orders)[:, None, None]
    return roots if np.iscomplexobj(sigma) else roots.real


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


def _sort_irreps(found: Iterator[np.ndarray]) -> Irreps:
    """Sort irreps by dimension, then by character."""

    def place(sigma: np.ndarray) -> tuple:
        chi = np.round(np.trace(sigma, axis1=1, axis2=2), 6) + 0
        return (len(sigma[0]), tuple(-chi.real), tuple(-chi.imag))

    return tuple(sorted(found, key=place))


def characters(irreps: Irreps) -> Complex[np.ndarray, "irreps order"]:
    """The character of each irrep on each element."""
    chi = np.array([np.trace(sigma, axis1=1, axis2=2) for sigma in irreps], dtype=complex)
    # Most characters are integers: rounding them makes tables readable. Adding 0 turns −0 into 0.
    return np.where(np.abs(chi - np.rint(chi.real)) < 1e-12, np.rint(chi.real), chi) + 0


def irrep_types(table: Table, irreps: Irreps) -> tuple[IrrepType, ...]:
    """The Frobenius–Schur indicator and the conjugate partner of each irrep."""
    chi = characters(irreps)
    indicators = np.rint(chi[:, np.diagonal(table)].real.mean(axis=1)).astype(int)
    overlaps = (chi @ chi.T).real  # N where one is the conjugate of the other, else 0
    return tuple(IrrepType(int(nu), int(partner)) for nu, partner in zip(indicators, overlaps.argmax(1), strict=True))
