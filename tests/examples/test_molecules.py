"""Molecules have the bonds they are named after, and turn as they should."""

import _molecules
import numpy as np
import pytest
from scipy.spatial.transform import Rotation


@pytest.mark.parametrize(("kind", "degrees"), [("ring", [2] * 6), ("branched", [1, 1, 1, 2, 2, 3])])
def test_bonds_are_those_of_the_kind(kind, degrees):
    made = _molecules.molecules(np.random.default_rng(0), 20, (kind,), 6)
    bonds = (made.neighbours > 0).sum(axis=2) - 1  # an atom is its own neighbour
    agree = (np.sort(bonds, axis=1) == degrees).all(axis=1)
    assert agree.mean() > 0.5, np.sort(bonds, axis=1)  # bent ones may bond once more, or once less


def test_chains_hang_together():
    made = _molecules.molecules(np.random.default_rng(0), 20, ("chain",), 6)
    assert (np.diagonal(made.neighbours, 1, axis1=1, axis2=2) > 0).all()


def test_dipoles_turn_with_the_atoms_wherever_these_are():
    made = _molecules.molecules(np.random.default_rng(0), 6, ("chain", "ring", "branched"), 6)
    turn = Rotation.from_rotvec([0.3, -1.0, 0.5]).as_matrix()
    moved = made.atoms[:, :, :3] @ turn.T + np.array([1.0, 2.0, 3.0])
    np.testing.assert_allclose(_molecules.dipoles(moved, made.atoms[:, :, 3]), made.dipoles @ turn.T, atol=1e-12)
    np.testing.assert_allclose(made.atoms.sum(axis=1), 0, atol=1e-12)  # centred, and neutral
