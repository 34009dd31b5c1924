"""Bounds take actions that are written in NumPy."""

import numpy as np

from ntk_equiv import bounds, groups, reps


def test_frequencies_of_actions_in_numpy_are_known():
    rep = reps.matrix(groups.SO2, lambda R: np.kron(np.eye(2), R))
    found = bounds.discretization_error(rep, groups.SO2.finite(4))
    assert abs(float(found) - 2 * np.sin(np.pi / 8)) < 1e-9
    assert found.converged
