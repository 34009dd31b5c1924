"""Theorem "Kernel transformation" and Lemma "Shift of permutation", for every network and action in the table."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from ntk_equiv import theorems
from tests.cases import CASES, NETWORKS
from tests.tolerances import ORACLE

# All in double precision, and for the sake of time every third in single.
ROWS = [(name, jnp.float64) for name in CASES] + [(name, jnp.float32) for name in list(CASES)[::3]]
every_case = pytest.mark.parametrize(("name", "dtype"), ROWS, ids=[f"{name}, {dtype.__name__}" for name, dtype in ROWS])


def mixed(K, Theta):
    """An exponential, a product and an inverse, well conditioned."""
    K, Theta = np.asarray(K), np.asarray(Theta)
    Theta = Theta / np.abs(Theta).sum(axis=1).max()
    return scipy.linalg.expm(-Theta) @ K @ np.linalg.inv(np.eye(len(Theta), dtype=Theta.dtype) + Theta)


def test_the_table_of_cases_is_large_enough() -> None:
    acting = {case.rep.group for case in CASES.values()}
    assert len(acting) >= 8
    assert sum(not group.is_abelian for group in acting) >= 4
    assert all(any(case.startswith(f"{network} on") for case in CASES) for network in NETWORKS)


@every_case
def test_kernel_transformation(name, dtype) -> None:
    """On augmented samples: copies of a sample are where activations are least smooth."""
    case = CASES[name]
    found = theorems.kernel_transformation(case.kernel_fn, case.rep, case.points(2, dtype))
    assert [part.part for part in found.parts] == ["nngp", "ntk"]
    assert all(part.scale > 0.1 for part in found.parts)
    assert found.holds(ORACLE[dtype.__name__]), found


@every_case
def test_shift_of_permutation(name, dtype) -> None:
    case = CASES[name]
    found = theorems.shift_of_permutation(case.kernel_fn, case.train(2, dtype), mixed, get=("nngp", "ntk"))
    assert found.scale > 0.01
    assert found.holds(ORACLE[dtype.__name__]), found
