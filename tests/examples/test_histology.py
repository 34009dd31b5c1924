"""What the histology example keeps of predictions, on predictions that are known."""

import dataclasses

import _slices
import histology
import jax.numpy as jnp
import numpy as np
import pytest
from _orbit_records import OrbitRecord

SETTINGS = dataclasses.replace(histology.PRESETS["test"], sizes=(1, 2))


def logits(classes, strength=1.0):
    """Logits [order * n, 9] that say these classes, [order, n]."""
    return strength * jnp.eye(9)[jnp.asarray(classes).ravel()]


# Two images in four positions; the second member is surer of itself, so that the ensemble says what it says.
FIRST = [[0, 1], [0, 1], [5, 1], [5, 5]]
SECOND = [[2, 1], [2, 2], [2, 1], [7, 1]]
PREDICTIONS = jnp.stack([logits(FIRST), logits(SECOND, 2.0)])


def test_invariance_and_accuracy_of_ensembles_and_members():
    record = OrbitRecord(2, SETTINGS.sizes, 4, np.array([2, 1]), first=True)
    part = {f"validation.{name}": values for name, values in record.unpack(record(PREDICTIONS)[None]).items()}
    known = {  # for each size: of the ensemble, the error over two images, and of its members
        ("validation", 1): (2.5, 0.5, [2.5]),
        ("validation", 2): (3.0, 0.0, [2.5, 3.0]),
        ("accuracy", 1): (0.5, 0.5 / np.sqrt(2), [0.5]),
        ("accuracy", 2): (1.0, 0.0, [0.5, 1.0]),
    }
    for (name, size), expected in known.items():
        ensemble, error, members = histology.curves(SETTINGS, part, name, size)
        assert (ensemble, error) == (pytest.approx([expected[0]]), pytest.approx([expected[1]]))
        np.testing.assert_allclose(members, [expected[2]])


def test_sets_made_for_an_ensemble_are_tried_on_its_members():
    record = OrbitRecord(2, SETTINGS.sizes, 4, first=True)
    part = {f"ood-1.{name}": values for name, values in record.unpack(record(PREDICTIONS)[None]).items()}
    ensemble, _, members = histology.curves(SETTINGS, part, "ood-1", 1)
    assert (ensemble, members) == (pytest.approx([2.5]), pytest.approx(np.array([[2.5]])))


def test_disjoint_ensembles_are_compared_on_the_same_images():
    record = histology.SliceRecord(OrbitRecord(2, SETTINGS.sizes, 4, first=True))
    part = record.unpack(np.asarray(record(PREDICTIONS))[None], members=2)
    np.testing.assert_array_equal(part["disjoint-1.points"], [[[2, 3], [3, 3]]])
    np.testing.assert_array_equal(part["disjoint-2.points"], [[[3, 3]]])
    np.testing.assert_allclose(part["osp"], [[2.5, 3.0]])  # what a record without disjoint ensembles has


def test_images_are_split_and_normalized():
    data = _slices.load(SETTINGS, None)
    assert (len(data.x), len(data.validation_x)) == (22, 2)
    np.testing.assert_allclose(np.mean(data.x, (0, 1, 2)), 0, atol=1e-12)
    np.testing.assert_allclose(np.std(data.x, (0, 1, 2)), 1)
