"""Blocks in tiles: wherever they are kept and however they are cut, Lanczos gives the ensemble that `Eigh` gives.

Tiles are made tiny, so that few samples make many of them, of unequal sizes.
"""

import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntk_equiv import InfiniteEnsemble, augment, filters, groups, reps, stax
from ntk_equiv._gram import split_kernel
from ntk_equiv.infinite import _tiles
from ntk_equiv.infinite._training_set import plain_set
from ntk_equiv.solvers import Eigh, Lanczos
from tests.cases import CASES
from tests.infinite import out_of_core
from tests.tolerances import REDUCTION, assert_close

INF = float("inf")
ROOT = Path(__file__).parents[2]
STORAGES = ["memory", "recompute", "folder"]
KERNEL_FN = stax.serial(stax.Dense(1, 1.4, 0.3), stax.Relu(), stax.Dense(1, 1.2, 0.1))[2]
RNG = np.random.default_rng(4)
X, Y, X_TEST = RNG.standard_normal((7, 3)), RNG.standard_normal((7, 2)), jnp.asarray(RNG.standard_normal((4, 3)))


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """At most two samples in a piece, and two pieces in a tile: seven samples make tiles of 4 and 3."""
    monkeypatch.setattr(_tiles, "ENTRIES_PER_TILE", 4)
    monkeypatch.setattr(_tiles, "ENTRIES_PER_STORED_TILE", 16)
    monkeypatch.setattr(_tiles, "FEWEST_RANGES", 1)


@pytest.fixture
def evaluated(monkeypatch):
    """The tiles that were evaluated, as pairs of ranges."""
    found, prepare = [], _tiles.KernelTiles.prepare_tile
    monkeypatch.setattr(
        _tiles.KernelTiles, "prepare_tile", lambda self, i, j: found.append((i, j)) or prepare(self, i, j)
    )
    return found


def lanczos(storage, tmp_path, rtol=1e-11):
    return Lanczos(rtol, storage=tmp_path / "gram" if storage == "folder" else storage)


def ensemble(solver, train=(X, Y), filter=None, kernel_fn=KERNEL_FN, **settings):
    return InfiniteEnsemble(kernel_fn, train, filter, solver=solver, **settings)


def assert_same(ours, exact, x, times, start=None):
    """All that one ensemble says of its law is what the other says."""
    t = jnp.asarray(times, float)
    assert_close(ours.mean(x, t), exact.mean(x, t), REDUCTION)
    assert_close(ours.cov(x, t), exact.cov(x, t), REDUCTION)
    assert_close(ours.var(x, t), exact.var(x, t), REDUCTION)
    for name in ("train_mean", "residual", "coefficients"):
        assert_close(getattr(ours, name)(t), getattr(exact, name)(t), REDUCTION)
    if start is not None:  # of all irreps
        assert_close(ours.mean(x, t, f0=start), exact.mean(x, t, f0=start), REDUCTION)


@pytest.mark.parametrize("storage", STORAGES)
def test_plain_data(storage, tmp_path, evaluated):
    ours, exact = ensemble(lanczos(storage, tmp_path)), ensemble(Eigh())
    assert_same(ours, exact, X_TEST, (0.0, 0.7, INF), start=lambda x: jnp.sin(x[:, :2]))
    assert set(evaluated) == {(0, 0), (0, 1), (1, 1)}
    times, key = jnp.array([0.1, 2.0]), jax.random.key(0)
    assert_close(ours.sample(key, X_TEST, times, 3), exact.sample(key, X_TEST, times, 3), {"float64": 1e-6})
    assert_close(ours.cov(X_TEST, 1.0, X_TEST[:2] + 1), exact.cov(X_TEST, 1.0, X_TEST[:2] + 1), REDUCTION)
    for one, other in zip(ours.nngp_posterior(X_TEST, noise=0.1), exact.nngp_posterior(X_TEST, noise=0.1), strict=True):
        assert_close(one, other, REDUCTION)


# Real and complex irreps, quaternionic ones of dimension two, outputs on a grid that moves, and graphs.
SYMMETRIES = [
    "MLP on plane, C5",
    "MLP on regular, Q8",
    "CNN, SAME, spatial on vector fields, D4",
    "GNN, nodes on relabelling, C5",
]


@pytest.mark.parametrize("name", SYMMETRIES)
def test_augmented_data(name, tmp_path, monkeypatch):
    case = CASES[name]
    train, x = case.labelled(2), case.action.data(2, seed=5)
    # Each sample makes a tile of its own, whatever the kernels of a pair take: few shapes have to be compiled.
    monkeypatch.setattr(_tiles, "ENTRIES_PER_TILE", 1)
    monkeypatch.setattr(_tiles, "ENTRIES_PER_STORED_TILE", 1)
    exact = ensemble(Eigh(), train, kernel_fn=case.kernel_fn)
    assert exact.method == "reduced"
    t = jnp.array([0.3, INF])
    for storage in STORAGES:
        ours = ensemble(lanczos(storage, tmp_path), train, kernel_fn=case.kernel_fn)
        assert_close(ours.mean(x, t), exact.mean(x, t), REDUCTION)
        if storage == "memory":
            assert_close(ours.cov(x, t), exact.cov(x, t), REDUCTION)
            assert_close(ours.coefficients(t), exact.coefficients(t), REDUCTION)


def test_a_dihedral_group_with_vectors_as_labels(tmp_path):
    rep = reps.matrix(groups.O(2).finite(4))
    train = augment(X[:6, :2], Y[:6], rep, rep)
    ours, exact = ensemble(lanczos("memory", tmp_path), train), ensemble(Eigh(), train)
    assert ours.method == "reduced"
    assert_same(ours, exact, X_TEST[:, :2], (0.0, 0.7, INF), start=lambda x: jnp.sin(x))


SHIFTS = reps.regular(groups.cyclic(3))


def test_samples_that_the_group_fixes(tmp_path):
    x = np.concatenate([X[:4], np.full((1, 3), 0.7)])
    train = augment(x, Y[:5, 0], SHIFTS)
    ours, exact, t = ensemble(lanczos("memory", tmp_path), train), ensemble(Eigh(), train), jnp.array([0.5, INF])
    assert_close(ours.mean(X_TEST, t), exact.mean(X_TEST, t), REDUCTION)
    assert_close(ours.cov(X_TEST, t), exact.cov(X_TEST, t), REDUCTION)


def test_one_training_sample_and_no_test_sample(tmp_path):
    train = augment(X[:1], Y[:1, 0], SHIFTS)
    ours, exact = ensemble(lanczos("memory", tmp_path), train), ensemble(Eigh(), train)
    assert_close(ours.mean(X_TEST, jnp.array([0.5, INF])), exact.mean(X_TEST, jnp.array([0.5, INF])), REDUCTION)
    assert_close(ours.var(X_TEST, 0.5), exact.var(X_TEST, 0.5), REDUCTION)
    assert ours.mean(X_TEST[:0], 1.0).shape == (0,)
    assert ours.var(X_TEST[:0], 1.0).shape == (0,)
    assert ours.cov(X_TEST[:0], 1.0).shape == (0, 0)
    assert ours.error_bound(X_TEST[:0], 1.0).shape == (0,)


def test_the_error_of_predictions_is_within_the_bound(tmp_path):
    train = augment(X, Y, SHIFTS)
    exact = ensemble(Eigh(), train)
    times = jnp.array([0.5, 20.0])
    for rtol in (1e-1, 1e-3):
        ours = ensemble(lanczos("memory", tmp_path, rtol), train)
        error = np.abs(ours.mean(X_TEST, times) - exact.mean(X_TEST, times)).max(axis=-1)
        bound = np.asarray(ours.error_bound(X_TEST, times))
        assert (error <= bound + 1e-12).all()
        root = np.sqrt(np.diagonal(KERNEL_FN(X_TEST, None, "ntk")) / np.diagonal(KERNEL_FN(X, None, "ntk")).max())
        assert (bound <= 1.001 * rtol * np.sqrt(np.mean(Y**2, axis=0)).max() * root).all()


# Kernels that are not finite


def broken(value):
    """A kernel with one entry that is not finite, between the samples 2 and 5."""

    def kernel_fn(x1, x2=None, get="ntk"):
        x2 = x1 if x2 is None else x2
        found = jnp.exp(-jnp.sum((x1[:, None] - x2[None]) ** 2, axis=2))
        bad = (x1[:, None] == X[2]).all(axis=2) & (x2[None] == X[5]).all(axis=2)
        found = jnp.where(bad | (x1[:, None] == X[5]).all(axis=2) & (x2[None] == X[2]).all(axis=2), value, found)
        return found if isinstance(get, str) else tuple(found for _ in get)

    return kernel_fn


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.usefixtures("rank_promotion_allowed")
def test_samples_whose_kernels_are_not_finite_are_named(value, tmp_path):
    for storage in ("memory", "folder"):
        with pytest.raises(ValueError, match=r"NaN or infinity for samples 2 and 5 \(ntk\)"):
            ensemble(lanczos(storage, tmp_path), kernel_fn=broken(value))
    # Otherwise nothing is evaluated until the first product, and then likewise.
    with pytest.raises(ValueError, match=r"NaN or infinity for samples 2 and 5 \(ntk\)"):
        list(_tiles.TilesOnDemand(planned(broken(value))).tiles("ntk-0"))


@pytest.mark.usefixtures("rank_promotion_allowed")
def test_large_kernels_are_finite_even_if_their_sum_is_not():
    def kernel_fn(x1, x2=None, get="ntk"):
        x2 = x1 if x2 is None else x2
        found = 5e307 * jnp.exp(-jnp.sum((x1[:, None] - x2[None]) ** 2, axis=2) / 100)
        return found if isinstance(get, str) else tuple(found for _ in get)

    tiles = list(_tiles.TilesOnDemand(planned(kernel_fn)).tiles("ntk-0"))
    assert len(tiles) == 3
    assert all(np.isfinite(tile).all() for _, _, tile in tiles)


def planned(kernel_fn):
    """The tiles of the plain data above."""
    data = plain_set((jnp.asarray(X), jnp.asarray(Y)))
    return _tiles.KernelTiles.plan(split_kernel(kernel_fn), data, {"ntk-0": jnp.ones((1, 1, 1))})


# Folders


def test_a_folder_is_used_again(tmp_path, evaluated):
    solver = lanczos("folder", tmp_path)
    first = ensemble(solver)
    first.cov(X_TEST, 1.0)
    assert len(evaluated) == 3 + 3  # for the mean, and for the covariance
    evaluated.clear()
    for train in ((X, Y), (X, Y[:, 0] + 1)):
        again, exact, x, t = ensemble(solver, train), ensemble(Eigh(), train), X_TEST + 1, jnp.array([0.2, 30.0])
        assert_close(again.mean(x, t), exact.mean(x, t), REDUCTION)
        assert_close(again.cov(x, t), exact.cov(x, t), REDUCTION)
    ridge = ensemble(solver, filter=filters.ridge(0.1))
    assert_close(ridge.mean(X_TEST), ensemble(Eigh(), filter=filters.ridge(0.1)).mean(X_TEST), REDUCTION)
    assert evaluated == []


def test_a_damaged_tile_is_evaluated_again(tmp_path, evaluated):
    solver = lanczos("folder", tmp_path)
    ens, expected = ensemble(solver), ensemble(Eigh()).mean(X_TEST, 1.0)
    file = tmp_path / "gram" / "ntk-0-00000-00001.tile"
    whole = file.read_bytes()
    for use in (lambda: ens, lambda: ensemble(solver)):  # while it is in use, and when it is opened
        file.write_bytes(whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:])
        evaluated.clear()
        assert_close(use().mean(X_TEST, 1.0), expected, REDUCTION)
        assert evaluated == [(0, 1)]
        assert file.read_bytes() == whole


OTHERS = {
    "samples": {"train": (X + 1, Y)},
    "kernel": {"kernel_fn": stax.serial(stax.Dense(1, 1.5, 0.3), stax.Relu(), stax.Dense(1))[2]},
    "group": {"train": augment(X, Y, SHIFTS)},
    "precision": {"train": (X.astype(np.float32), Y.astype(np.float32))},
}


@pytest.mark.parametrize("difference", OTHERS)
def test_a_folder_of_another_matrix_is_refused(difference, tmp_path, evaluated):
    solver = lanczos("folder", tmp_path, rtol=1e-5)
    ensemble(solver)
    evaluated.clear()
    with pytest.raises(ValueError, match=rf"a folder of tiles of the same matrix.*{difference} = .* was expected"):
        ensemble(solver, **OTHERS[difference])
    assert evaluated == []


@pytest.mark.parametrize("first", [X[:1], np.ones((1, 3))], ids=["any sample", "a sample that both leave as it is"])
def test_a_folder_of_another_action_is_refused(first, tmp_path):
    """The same group, whose elements move other entries."""
    x = np.concatenate([first, X[1:4]])
    cyclic = groups.cyclic(2)
    flips = [reps.permutation(cyclic, [[0, 1, 2], swap]) for swap in ([1, 0, 2], [0, 2, 1])]
    solver = lanczos("folder", tmp_path)
    ensemble(solver, augment(x, Y[:4, 0], flips[0]))
    with pytest.raises(ValueError, match="action = "):
        ensemble(solver, augment(x, Y[:4, 0], flips[1]))


def test_what_does_not_fit_is_refused_before_a_kernel_is_evaluated(tmp_path, evaluated, monkeypatch):
    monkeypatch.setattr("ntk_equiv._machine.free_memory", lambda: 100.0)
    with pytest.raises(ValueError, match=r"fits into memory, got .* one block .* where 100 bytes are free.*recompute"):
        ensemble(Lanczos())
    usage = type("Usage", (), {"free": 100})
    monkeypatch.setattr("ntk_equiv._tile_folder.shutil.disk_usage", lambda path: usage)
    with pytest.raises(ValueError, match=r"`storage` must be on a disk with room .* where 100 bytes are free"):
        ensemble(lanczos("folder", tmp_path))
    assert evaluated == []
    assert not (tmp_path / "gram").exists()
    monkeypatch.undo()
    assert_close(
        ensemble(Lanczos(1e-11, storage="recompute")).mean(X_TEST, 1.0), ensemble(Eigh()).mean(X_TEST, 1.0), REDUCTION
    )


def run(*command):
    result = subprocess.run(
        [sys.executable, "-W", "ignore", *command], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="processes are forked and killed")
def test_a_folder_whose_writer_is_killed(tmp_path):
    said = run("-m", "tests.infinite.killed_tiles", str(tmp_path / "gram"), "--kills", "5")
    assert said == "killed 5 times; tiles 465; written twice 0; equal True\n"


@pytest.mark.skipif(sys.platform != "linux", reason="limits on memory")
def test_a_matrix_three_times_as_large_as_memory(tmp_path, monkeypatch):
    limited = json.loads(run("-m", "tests.infinite.out_of_core", str(tmp_path / "gram")))
    monkeypatch.undo()  # of small tiles
    np.testing.assert_allclose(limited, out_of_core.predict(out_of_core.SAMPLES, "memory"), rtol=1e-9)
