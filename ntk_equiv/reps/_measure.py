"""How far an action is from being a representation, and from being orthogonal.

Both are measured in the norm ‖A‖ = max_a Σ_b |A_ab|, the largest change of an entry for inputs between −1 and 1. Where
the points are moved exactly they contribute nothing and τ alone is measured; otherwise the operators ρ(g) ⊗ τ(g) are
multiplied out as sparse matrices.
"""

import itertools
from collections.abc import Iterator

import numpy as np
from scipy import sparse

from ntk_equiv.groups import ContinuousGroup, FiniteGroup
from ntk_equiv.reps._channels import Channels, Identity, MatrixFunction, Permutations
from ntk_equiv.reps._grids import GridAction


def homomorphism_error(
    group: FiniteGroup | ContinuousGroup, channels: Channels, grid: GridAction, *, pairs: int = 32
) -> float:
    """The largest ‖ρ(g)ρ(h) − ρ(gh)‖, over all pairs of a finite group or so many of a continuous one."""
    if isinstance(group, ContinuousGroup):
        return max(_norm(a @ b - c) for a, b, c in _triples(group, channels, pairs))
    if isinstance(channels, Identity | Permutations) and grid.exact:
        return 0.0  # permutations were compared with the table when they were given
    if grid.exact:
        mats = _matrices(channels, group)
        return max(_norm(mats[g] @ mats - mats[group.table[g]]) for g in range(group.order))
    operators = _operators(group, channels, grid)
    every_pair = itertools.product(range(group.order), repeat=2)
    return max(_norm(operators[g] @ operators[h] - operators[group.table[g, h]]) for g, h in every_pair)


def orthogonality_error(group: FiniteGroup | ContinuousGroup, channels: Channels, grid: GridAction) -> float:
    """The largest ‖ρ(g)ρ(g)† − 1‖, over all elements of a finite group or a sample of a continuous one."""
    if isinstance(group, ContinuousGroup):
        mats = np.array([c for _, _, c in _triples(group, channels, 32)])
    elif isinstance(channels, Identity | Permutations) and grid.exact:
        return 0.0
    elif grid.exact:
        mats = _matrices(channels, group)
    else:
        operators = _operators(group, channels, grid)
        return max(_norm(A @ A.conj().T - sparse.eye_array(A.shape[0])) for A in operators)
    return _norm(mats @ mats.conj().transpose(0, 2, 1) - np.eye(mats.shape[1]))


def _triples(group: ContinuousGroup, channels: Channels, pairs: int) -> Iterator[tuple[np.ndarray, ...]]:
    """ρ(g), ρ(h), ρ(gh) for some pairs."""
    g, h = np.split(_random_elements(group, 2 * pairs), 2)
    return zip(*(_matrices(channels, elements) for elements in (g, h, g @ h)), strict=True)


def _random_elements(group: ContinuousGroup, count: int) -> np.ndarray:
    """The same Haar-distributed matrices [count, n, n] every time, on the host."""
    Q, R = np.linalg.qr(np.random.default_rng(0).standard_normal((count, group.n, group.n)))
    Q = Q * np.sign(np.diagonal(R, axis1=1, axis2=2))[:, None, :]
    if group.special:
        Q[:, :, 0] *= np.linalg.det(Q)[:, None]
    return Q


def _matrices(channels: Channels, elements: FiniteGroup | np.ndarray) -> np.ndarray:
    if isinstance(channels, MatrixFunction):
        return channels.matrices(elements)
    return channels.matrices(elements.order if isinstance(elements, FiniteGroup) else len(elements))


def _operators(group: FiniteGroup, channels: Channels, grid: GridAction) -> list[sparse.csr_array]:
    both = zip(grid.matrices(group.order), _matrices(channels, group), strict=True)
    return [sparse.kron(space, sparse.csr_array(tau), format="csr") for space, tau in both]


def _norm(A: np.ndarray | sparse.sparray) -> float:
    return float(abs(A).sum(axis=-1).max())
