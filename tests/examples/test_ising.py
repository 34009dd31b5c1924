"""What the Ising example makes of predictions, on predictions that are known."""

import dataclasses
from types import SimpleNamespace

import ising
import jax
import numpy as np
import pytest

from ntk_equiv import datasets


@pytest.fixture(scope="module")
def data():
    return datasets.ising(jax.random.key(0), train=3, test=2, ood=2)


def members_off_by(*factors):
    """Members that know the local energies up to a factor, and up to one site on which they are all off by 25."""
    shift = 25.0 * np.eye(25)[:1]
    predict = lambda x: np.stack([factor * (datasets.local_energies(x) + shift) for factor in factors])  # noqa: E731
    return SimpleNamespace(predict=predict, finished=np.arange(len(factors)), failed={})


def test_energies_are_those_of_all_turns(data):
    energies = ising.orbit_energies(members_off_by(1.0, 3.0), data.test)
    exact = np.asarray(datasets.total_energy(data.test.y))
    assert energies.shape == (2, 4, 2)
    np.testing.assert_allclose(energies[0], np.broadcast_to(exact - 1, (4, 2)), atol=1e-12)
    np.testing.assert_allclose(energies[1], 3 * energies[0], atol=1e-12)


def test_ensembles_share_no_member(data, monkeypatch):
    """Four members whose energy depends on the turn alone, by 1, -1, 3 and 5 times (0, 1, 2, 3)."""
    factors = np.array([1.0, -1.0, 3.0, 5.0])
    monkeypatch.setattr(ising, "orbit_energies", lambda run, points: np.multiply.outer(factors, TURNS))
    known = {f"{name}.energy": np.full(2, 7.0) for name in ising.SETS}
    results = SimpleNamespace(train=lambda *_, **__: members_off_by(), found={"theory-1": known})
    settings = ising.Settings((8,), (1.0,), 4, (2, 4), 1, 3, 2)
    (training,) = ising.trainings(settings)
    found = ising.train_members(settings, data, training, results)
    spread = np.sqrt(1.25)
    np.testing.assert_allclose(found["test.std.1"], spread * np.abs(factors))
    np.testing.assert_allclose(found["test.std.2"], [0, 4 * spread], atol=1e-12)
    np.testing.assert_allclose(found["ood.std.4"], [2 * spread])
    np.testing.assert_allclose(found["ood.difference.4"], [7.0])  # untouched points have energy 0


TURNS = np.broadcast_to(np.arange(4.0)[:, None], (4, 2))


def test_errors_scale_as_those_of_gaussian_members():
    members = np.array([1.0, 2.0, 3.0])
    mean, error = ising.mean_and_error(members, members, 1)
    assert (mean, error) == (2.0, pytest.approx(1 / np.sqrt(3)))
    mean, error = ising.mean_and_error(np.array([0.5]), members, 3)
    assert (mean, error) == (0.5, pytest.approx(1 / np.sqrt(3)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"widths": (16,)}, "rates must be one for each of widths, got 2 for 1"),
        ({"widths": (16, 16)}, "widths must be different"),
        ({"late_widths": (16, 32)}, "late_members must be one for each of late_widths, got 1 for 2"),
        ({"steps": 0}, "must be at least 1"),
        ({"sizes": (1, 9)}, "at most 8, the number of members, got 9"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(ising.PRESETS["test"], **changes)
