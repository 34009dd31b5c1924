"""The Ising model against loops over positions, and its standard deviations against all configurations there are."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntk_equiv import augment, groups
from ntk_equiv.datasets import ising, ising_std, local_energies, total_energy
from tests.tolerances import ROUNDING, assert_close, assert_mean

LATTICES = [(2, True), (3, True), (4, True), (2, False), (3, False), (4, False)]


def energies_by_loops(spins: np.ndarray, periodic: bool) -> np.ndarray:
    """E(i) for lattices [n, L, L], position by position and neighbour by neighbour."""
    side = spins.shape[1]
    energies = np.zeros_like(spins)
    for i, j in itertools.product(range(side), repeat=2):
        for a, b in ((i - 1, j), (i + 1, j), (i, j - 1), (i, j + 1)):
            if periodic:
                energies[:, i, j] += spins[:, i, j] * spins[:, a % side, b % side]
            elif 0 <= a < side and 0 <= b < side:
                energies[:, i, j] += spins[:, i, j] * spins[:, a, b]
    return energies


def all_configurations(side: int) -> np.ndarray:
    bits = np.arange(2 ** (side * side))[:, None] >> np.arange(side * side)
    return (2.0 * (bits & 1) - 1).reshape(-1, side, side)


@pytest.mark.parametrize("periodic", [True, False])
@pytest.mark.parametrize("side", [2, 5])
def test_local_energies_are_those_of_loops(key, side, periodic):
    spins = np.asarray(jax.random.normal(key, (3, side * side)))
    expected = energies_by_loops(spins.reshape(3, side, side), periodic).reshape(3, -1)
    assert_close(local_energies(spins, periodic=periodic), expected, ROUNDING)
    assert_close(total_energy(expected), -expected.sum(axis=1) / side**2, ROUNDING)


@pytest.mark.parametrize(("side", "periodic"), LATTICES)
def test_standard_deviations_are_those_of_all_configurations(side, periodic):
    local = energies_by_loops(all_configurations(side), periodic).reshape(-1, side * side)
    std = ising_std(side, periodic=periodic)
    assert_close(std.local, local.std(axis=0), ROUNDING)
    assert_close(std.energy, (-local.mean(axis=1)).std(), ROUNDING)
    assert_close(local.mean(axis=0) + 1, np.ones(side * side), ROUNDING)


def test_on_the_papers_lattice_the_two_normalisers_differ():
    std = ising_std(5)
    assert std.local.tolist() == [2.0] * 25
    assert std.energy == pytest.approx(0.32**0.5, rel=1e-15)


def test_standard_deviations_of_gaussian_spins_are_met_by_a_sample(key):
    data = ising(key, periodic=False)
    assert_close(data.ood_std.local, 400.0 * data.std.local, ROUNDING)
    assert_mean(data.ood.x**2, np.full(25, 400.0))
    assert_mean(data.ood.y**2, data.ood_std.local**2)
    assert_mean(total_energy(data.ood.y) ** 2, data.ood_std.energy**2)


def test_spins_are_uniform_signs(key):
    train, test, *_ = ising(key)
    assert (np.abs(train.x) == 1).all()
    assert (np.abs(test.x) == 1).all()
    assert_mean(test.x, np.zeros(25))
    assert (np.asarray(train.x) != np.asarray(test.x)[:128]).any()


def test_sets_have_the_sizes_asked_for(key):
    sizes = (1000, 128, 1000)
    parts = ising(key, train=sizes[0], test=sizes[1], ood=sizes[2])[:3]
    assert [(part.n, part.x.shape, part.y.shape) for part in parts] == [(n, (n, 25), (n, 25)) for n in sizes]


@pytest.mark.parametrize("group", [groups.cyclic(4), groups.dihedral(4), groups.trivial()], ids=str)
@pytest.mark.parametrize("periodic", [True, False])
def test_energies_turn_with_the_lattice(key, group, periodic):
    x, y, rep_x, rep_y = ising(key, periodic=periodic, group=group).train.take(slice(4))
    moved_x, moved_y = np.asarray(rep_x.orbit(x)), np.asarray(rep_y.orbit(y))
    for g in range(group.order):
        turned = np.rot90(np.asarray(x).reshape(4, 5, 5)[:, :, :: -1 if g >= 4 else 1], g % 4, axes=(1, 2))
        assert (moved_x[g].reshape(4, 5, 5) == turned).all()
        assert (moved_y[g].reshape(4, 5, 5) == energies_by_loops(turned, periodic)).all()


def test_an_augmented_set_is_labelled_by_its_own_energies(key):
    train = augment(*ising(key).train)
    assert train.size == len(train.x) == 512
    assert (np.asarray(local_energies(train.x)) == train.y).all()


def test_equal_keys_give_equal_data(key):
    first, second = (ising(key) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True))
    assert first.train.rep_x == second.train.rep_x


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"side": 1}, "`side` must be at least 2"),
        ({"train": 0}, "`train` must be a positive integer"),
        ({"ood_variance": 0.0}, "`ood_variance` must be a positive number"),
        ({"group": groups.cyclic(3)}, "`group` must be"),
    ],
)
def test_bad_settings_are_refused(key, settings, complaint):
    with pytest.raises(ValueError, match=complaint):
        ising(key, **settings)


@pytest.mark.parametrize("shape", [(), (1,), (5,), (3, 3)])
def test_lattices_that_are_not_flattened_squares_are_refused(shape):
    with pytest.raises(ValueError, match="Flatten the lattice"):
        local_energies(jnp.ones(shape))
