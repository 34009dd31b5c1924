"""What must hold for every infinite ensemble: reduced ≡ dense ≡ Lanczos, and Theorem "Emergent Equivariance".

The rows pair groups, representations, architectures, filters and times so that every one of them occurs; sizes are
tiny, since compiling is what takes time.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntk_equiv import InfiniteEnsemble, augment, datasets, filters, groups, solvers, theorems
from tests.cases import CASES
from tests.tolerances import REDUCTION, assert_close

INF = float("inf")
FLOW, CONVERGED, RIDGE = filters.gradient_flow(1.0), filters.converged(), filters.ridge(0.1)
DESCENT, MOMENTUM = filters.gradient_descent(1e-3), filters.momentum(1e-3, 0.9)
ROWS = [
    ("MLP on plane, C5", FLOW, (0.0, 0.3, 20.0, INF), "sum"),
    ("MLP on vectors, O", FLOW, (0.5, 1e4), "mean"),
    ("MLP on vectors, I", CONVERGED, (INF,), "sum"),
    ("MLP on regular, Q8", MOMENTUM, (0, 5, 1000), "sum"),
    ("MLP on restricted, SO(3) to D3", DESCENT, (1, 30), "sum"),
    ("erf MLP on sum, S4", DESCENT, (2, 10_000), "mean"),
    ("CNN, VALID, spatial on images, C4", RIDGE, (2.0, INF), "sum"),
    ("CNN, SAME, spatial on vector fields, D4", FLOW, (0.1, 3.0), "sum"),
    ("CNN, CIRCULAR, spatial on translations", MOMENTUM, (3, 400), "mean"),
    ("GNN on relabelling with features, S4", CONVERGED, (INF,), "mean"),
    ("GNN, nodes on node features, O", FLOW, (7.0,), "mean"),
    ("attention, decaying embeddings on vector fields, D4", FLOW, (0.2, 5.0), "mean"),
]


@pytest.mark.parametrize(("name", "filter", "times", "reduction"), ROWS, ids=[row[0] for row in ROWS])
def test_reduced_equals_dense_equals_lanczos(name, filter, times, reduction):
    case = CASES[name]
    train, x, t = case.labelled(3), case.action.data(2, seed=5), jnp.asarray(times, float)
    ensemble = partial(InfiniteEnsemble, case.kernel_fn, train, filter, reduction=reduction)
    reduced, dense = ensemble(), ensemble(method="dense")
    assert reduced.method == "reduced"
    mean, cov, coefficients = reduced.mean(x, t), reduced.cov(x, t), reduced.coefficients(t)
    assert mean.shape == (len(times), 2, *train.y.shape[1:])
    assert np.isfinite(cov).all()
    assert_close(mean, dense.mean(x, t), REDUCTION)
    assert_close(cov, dense.cov(x, t), REDUCTION)
    assert_close(coefficients, dense.coefficients(t), REDUCTION)
    assert_close(reduced.train_mean(t), dense.train_mean(t), REDUCTION)
    # Covariances by Lanczos are compared in `tests/infinite/test_tiles.py`, where less has to be compiled.
    lanczos = ensemble(solver=solvers.Lanczos(1e-12))
    assert_close(lanczos.mean(x, t), mean, REDUCTION)
    assert_close(lanczos.coefficients(t), coefficients, REDUCTION)


EQUIVARIANT = {
    "MLP on vectors, O": "reduced",
    "erf MLP on sum, S4": "dense",
    "CNN, VALID, spatial on images, C4": "dense",
}


@pytest.mark.parametrize("name", EQUIVARIANT)
def test_equivariance_emerges(name):
    case = CASES[name]
    train = case.labelled(3)
    ens = InfiniteEnsemble(case.kernel_fn, train, method=EQUIVARIANT[name])
    far = jax.tree.map(lambda leaf: 100 * leaf, case.action.data(2, seed=9))
    times = jnp.array([0.0, 0.2, 1e3, INF])
    some = train.group.generators
    found = theorems.emergent_equivariance(ens, far, times, elements=some)
    assert found.holds(1e-9), str(found)
    assert {part.part for part in found.parts} == {"mean", "cov"}
    untrained = theorems.emergent_equivariance(ens, far, 0.0, elements=some)
    assert untrained.parts[0].scale == 0


def test_equivariance_emerges_in_the_problems_of_the_paper(key):
    """Ising energies, where turns permute spins and labels alike, and cross products, whose labels are vectors."""
    kernel_fn = CASES["MLP on vectors, O"].kernel_fn
    problems = (
        datasets.ising(key, train=3, test=2, ood=2, side=3),
        datasets.cross_product(key, train=3, test=2, ood=2, group=groups.polyhedral("O")),
    )
    for problem in problems:
        train = augment(*problem.train)
        ens = InfiniteEnsemble(kernel_fn, train, reduction="mean")
        assert ens.method == "reduced"
        times = jnp.array([0.5, 1e3, INF])
        found = theorems.emergent_equivariance(ens, problem.ood.x, times, elements=train.group.generators)
        assert found.holds(1e-9), str(found)
        assert np.abs(ens.mean(problem.ood.x, 1e3)).max() > 0.1


def test_equivariance_does_not_emerge_from_plain_data():
    case = CASES["MLP on vectors, O"]
    train = case.labelled(3)
    ens = InfiniteEnsemble(case.kernel_fn, (train.base_x, train.base_y))
    x = case.action.data(2, seed=9)
    found = theorems.emergent_equivariance(ens, x, 1.0, rep_x=train.rep_x, rep_y=train.rep_y, elements=[0, 5])
    assert not found.holds(1e-3)
    with pytest.raises(ValueError, match="augmented"):
        theorems.emergent_equivariance(ens, x, 1.0)


def test_equivariance_does_not_emerge_from_part_of_the_group():
    case = CASES["MLP on letters, S4"]
    train = case.labelled(3)
    some = augment(train.base_x, train.base_y, train.rep_x, train.rep_y, elements=[0, 3, 5])
    ens = InfiniteEnsemble(case.kernel_fn, some, method="dense")
    x = case.action.data(2, seed=9)
    assert not theorems.emergent_equivariance(ens, x, 1.0, elements=[5]).holds(1e-3)
