"""Random small molecules: chains, rings and branched ones, with charges, bonds and a dipole moment.

Neighbouring atoms are one unit of length apart. Atoms are bonded if |r_i − r_j| < 1.3. Charges add up to zero and
flow along the bonds, q' = q − κ L q with the Laplacian L of the molecule. The dipole moment is

    μ = Σ_i q'_i r_i

It rotates with the positions, while charges and bonds do not change. A network sees the molecule as a graph: an atom
is (r_i, q_i) ∈ ℝ⁴ with r_i relative to the centre of the molecule, and neighbours are summed with D^(−½)(A +
1)D^(−½).
"""

import dataclasses

import numpy as np
from scipy.spatial.transform import Rotation

BONDED = 1.3
FLOW = 0.2


@dataclasses.dataclass(frozen=True)
class Molecules:
    """Atoms [n, atoms, 4], weights of neighbours [n, atoms, atoms], and dipole moments [n, 3]."""

    atoms: np.ndarray
    neighbours: np.ndarray
    dipoles: np.ndarray


def molecules(rng: np.random.Generator, count: int, kinds: tuple[str, ...], atoms: int) -> Molecules:
    """Draw molecules of the given kinds ("chain", "ring", "branched") in turn."""
    makers = {"chain": _chain, "ring": _ring, "branched": _branched}
    positions = np.stack([makers[kinds[i % len(kinds)]](rng, atoms) for i in range(count)])
    positions -= positions.mean(axis=1, keepdims=True)
    charges = rng.standard_normal((count, atoms))
    charges -= charges.mean(axis=1, keepdims=True)
    bonds = _bonds(positions)
    degrees = bonds.sum(axis=2) + 1
    weights = (bonds + np.eye(atoms)) / np.sqrt(degrees[:, :, None] * degrees[:, None, :])
    features = np.concatenate([positions, charges[:, :, None]], axis=2)
    return Molecules(features, weights, dipoles(positions, charges))


def dipoles(positions: np.ndarray, charges: np.ndarray) -> np.ndarray:
    """Return the dipole moments [n, 3] after charges [n, atoms] have flowed along the bonds."""
    bonds = _bonds(positions)
    flown = charges - FLOW * (bonds.sum(axis=2) * charges - np.einsum("nij,nj->ni", bonds, charges))
    return np.einsum("ni,nik->nk", flown, positions)


def _bonds(positions: np.ndarray) -> np.ndarray:
    distances = np.linalg.norm(positions[:, :, None] - positions[:, None], axis=3)
    return ((distances < BONDED) & (distances > 0)).astype(float)


def _chain(rng: np.random.Generator, atoms: int) -> np.ndarray:
    """Walk in unit steps that roughly keep their direction."""
    steps, direction = [np.zeros(3)], _unit(rng)
    for _ in range(atoms - 1):
        direction = direction + 0.8 * _unit(rng)
        direction /= np.linalg.norm(direction)
        steps.append(direction)
    return np.cumsum(steps, axis=0)


def _ring(rng: np.random.Generator, atoms: int) -> np.ndarray:
    """Place atoms on a regular polygon with sides of length 1, slightly bent and randomly rotated."""
    angles = 2 * np.pi * np.arange(atoms) / atoms
    polygon = np.stack([np.cos(angles), np.sin(angles), 0 * angles], axis=1) / (2 * np.sin(np.pi / atoms))
    return (polygon + 0.1 * rng.standard_normal((atoms, 3))) @ _turn(rng).T


def _branched(rng: np.random.Generator, atoms: int) -> np.ndarray:
    """Grow three arms from one atom, in turn."""
    arms = [np.array(arm, float) for arm in ((1, 0, 0), (-0.5, 0.87, 0), (-0.5, -0.87, 0))]
    positions = [np.zeros(3)] + [arms[i % 3] * (1 + i // 3) + 0.1 * rng.standard_normal(3) for i in range(atoms - 1)]
    return np.array(positions) @ _turn(rng).T


def _unit(rng: np.random.Generator) -> np.ndarray:
    vector = rng.standard_normal(3)
    return vector / np.linalg.norm(vector)


def _turn(rng: np.random.Generator) -> np.ndarray:
    """Draw a rotation from the Haar measure."""
    return Rotation.from_quat(rng.standard_normal(4)).as_matrix()
