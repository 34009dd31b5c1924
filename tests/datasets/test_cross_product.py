"""The cross product and its symmetry."""

import jax
import numpy as np
import pytest

from ntk_equiv import augment, groups
from ntk_equiv.datasets import cross_product
from tests.tolerances import assert_close, assert_mean

REFLECTIONS = groups.from_matrices([np.diag([-1.0, 1.0, 1.0]), -np.eye(3)])


@pytest.mark.parametrize(
    "group",
    [groups.polyhedral("T"), groups.SO3.finite("O"), groups.polyhedral("I"), REFLECTIONS],
    ids=lambda G: G.label,
)
def test_labels_turn_with_the_vectors_under_finite_groups(key, group):
    data = cross_product(key, group=group).train.take(slice(2))
    x, y = np.asarray(augment(*data).x), np.asarray(augment(*data).y)
    assert len(x) == 2 * group.order
    assert_close(y, np.cross(x[:, :3], x[:, 3:]))
    assert_close(x[2:4, :3], np.asarray(data.x)[:, :3] @ group.matrices[1].T)


@pytest.mark.parametrize("group", [groups.SO3, groups.O(3)], ids=str)
def test_labels_turn_with_the_vectors_under_continuous_groups(key, group):
    data = cross_product(key, group=group).train.take(slice(3))
    train = augment(*data, elements=group.sample(key, 10))
    assert train.x.shape == (30, 6)
    assert_close(train.y, np.cross(np.asarray(train.x)[:, :3], np.asarray(train.x)[:, 3:]))


def test_the_distributions_are_those_of_the_paper(key):
    data = cross_product(key)
    assert [part.n for part in data] == [100, 1000, 1000]
    assert_mean(data.train.x, np.zeros(6))
    assert_mean(data.test.x, np.zeros(6))
    assert_mean(data.test.x**2, np.ones(6))
    assert_mean(data.ood.x, np.full(6, 0.5))
    assert_mean((np.asarray(data.ood.x) == 0).astype(float), np.full(6, np.exp(-0.5)))
    assert_mean((np.asarray(data.ood.x) == 2).astype(float), np.full(6, np.exp(-0.5) / 8))
    assert data.ood.x.dtype == data.train.x.dtype == data.ood.y.dtype


def test_actions_of_different_calls_are_equal(key):
    first, second = (cross_product(key).train for _ in range(2))
    assert (first.rep_x, first.rep_y) == (second.rep_x, second.rep_y)
    assert hash(first.rep_x) == hash(second.rep_x)


@pytest.mark.parametrize("group", [groups.SO2, groups.cyclic(4), groups.SO2.finite(4)], ids=str)
def test_groups_that_do_not_rotate_space_are_refused(key, group):
    with pytest.raises(ValueError, match="`group` must be"):
        cross_product(key, group=group)


def test_the_record_passes_through_jit(key):
    data = cross_product(key).train
    assert jax.jit(lambda data: data.x.sum() + data.y.sum())(data).shape == ()
