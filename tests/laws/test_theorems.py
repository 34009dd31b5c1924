"""Theorem "Kernel transformation" and Lemma "Shift of permutation", for every network and action in the table."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from ntk_equiv import theorems
from tests.cases import CASES, NETWORKS
from tests.tolerances import ORACLE

every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
both_precisions = pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64], ids=lambda dtype: dtype.__name__)


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
@both_precisions
def test_kernel_transformation(case, dtype) -> None:
    """On augmented points: copies of a point are where activations are least smooth."""
    found = theorems.kernel_transformation(case.kernel_fn, case.rep, case.points(2, dtype))
    assert [part.part for part in found.parts] == ["nngp", "ntk"]
    assert all(part.scale > 0.1 for part in found.parts)
    assert found.holds(ORACLE[dtype.__name__]), found


@every_case
@both_precisions
def test_shift_of_permutation(case, dtype) -> None:
    found = theorems.shift_of_permutation(case.kernel_fn, case.train(2, dtype), mixed, get=("nngp", "ntk"))
    assert found.scale > 0.01
    assert found.holds(ORACLE[dtype.__name__]), found
