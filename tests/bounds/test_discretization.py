"""ε against brute force: SO(2) over frequencies, SO(3) over subgroups and representations."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from ntk_equiv import bounds, groups, reps


def plane(*frequencies):
    """SO(2) with these frequencies; 0 is a channel that stays."""

    def mats(R):
        powers = [jnp.linalg.matrix_power(R, m) if m else jnp.ones((1, 1)) for m in frequencies]
        return jax.scipy.linalg.block_diag(*powers)

    return reps.matrix(groups.SO2, mats)


VECTORS = reps.matrix(groups.SO3)
TENSORS = reps.tensor(VECTORS, VECTORS)


@pytest.mark.parametrize(("m", "k"), [(1, 1), (1, 4), (2, 4), (2, 6), (3, 7), (4, 6), (5, 100)])
def test_one_frequency(m, k):
    found = bounds.discretization_error(plane(m), groups.SO2.finite(k))
    assert found.exact
    assert abs(float(found) - 2 * np.sin(np.pi * np.gcd(m, k) / (2 * k))) < 1e-11


@pytest.mark.parametrize(("frequencies", "k"), [((1, 2), 6), ((2, 3), 6), ((3, 5), 7), ((0, 4, 6), 12), ((0, 1, 5), 9)])
def test_several_frequencies_jointly(frequencies, k):
    found = bounds.discretization_error(plane(*frequencies), groups.SO2.finite(k))
    theta = np.linspace(0, 2 * np.pi / k, 4001)[:, None] - 2 * np.pi * np.arange(k) / k
    brute = np.max([2 * np.abs(np.sin(m * theta / 2)) for m in frequencies], axis=0).min(axis=1).max()
    assert found.exact
    assert brute - 1e-11 <= found.upper <= brute + max(frequencies) * np.pi / k / 4000


def test_the_largest_of_single_frequencies_is_too_small():
    """Why jointly: each frequency by itself finds a near element, but not the same one."""
    single = max(float(bounds.discretization_error(plane(m), groups.SO2.finite(6))) for m in (2, 5))
    assert single < float(bounds.discretization_error(plane(2, 5), groups.SO2.finite(6))) - 0.01


def test_any_set_of_angles():
    elements = groups.SO2.finite(12).matrices[[0, 1, 5]]
    assert abs(float(bounds.discretization_error(groups.SO2, elements)) - 2 * np.sin(np.radians(210) / 4)) < 1e-11


@pytest.mark.parametrize(
    ("which", "degrees"), [("T", 90.0), ("O", 62.7994), ("I", 44.4775), ("D2", 120.0), ("C1", 180.0), ("C7", 180.0)]
)
def test_covering_angles(which, degrees):
    found = bounds.discretization_error(groups.SO3, groups.SO3.finite(which))
    assert found.exact
    assert abs(np.degrees(found.angle) - degrees) < 1e-4
    assert abs(found.upper - 2 * np.sin(found.angle / 2)) < 1e-12


def angles_between(left, right):
    """The angle of each rotation on the left with each on the right, from the length of the difference."""
    chord = np.linalg.norm(left[:, None] - right[None], axis=(2, 3)) / np.sqrt(8)
    return 2 * np.arcsin(np.minimum(chord, 1))


@functools.cache
def rotations(count):
    return Rotation.from_quat(np.random.default_rng(0).normal(size=(count, 4))).as_matrix()


@pytest.mark.parametrize("which", ["T", "O", "I", "D3", "D8", "C4"])
def test_covering_angles_against_brute_force(which):
    """No rotation is further away; and climbing from the furthest of many gets there."""
    group = groups.SO3.finite(which).matrices
    angle = bounds.discretization_error(groups.SO3, group).angle
    away = angles_between(rotations(20_000), group).min(axis=1)
    assert away.max() <= angle + 1e-9
    best, rng = rotations(20_000)[np.argmax(away)], np.random.default_rng(1)
    for scale in 0.3 * 0.8 ** np.arange(40):
        near = Rotation.from_rotvec(scale * rng.normal(size=(200, 3))).as_matrix() @ best
        near = np.concatenate([best[None], near])
        best = near[np.argmax(angles_between(near, group).min(axis=1))]
    assert angles_between(best[None], group).min() >= angle - 2e-3


@pytest.mark.parametrize(("which", "rtol"), [("I", 1e-9), ("O", 0.02), ("T", 0.02)])
def test_tensors(which, rtol):
    """The norm in matrices, over many rotations, stays below the upper value and comes near the lower one."""
    found = bounds.discretization_error(TENSORS, groups.SO3.finite(which), rtol=0.01)
    kron = np.einsum("nab,ncd->nacbd", rotations(2000), rotations(2000)).reshape(-1, 9, 9)
    group = groups.SO3.finite(which).matrices
    ours = np.einsum("nab,ncd->nacbd", group, group).reshape(-1, 9, 9)
    norms = [np.linalg.norm(g - ours, ord=2, axis=(1, 2)).min() for g in kron[:300]]
    assert max(norms) <= found.upper + 1e-9
    assert found.upper - found.lower <= rtol * found.lower
    assert found.lower <= found.upper
    assert found.converged is bool(found.upper - found.lower <= 0.01 * found.lower)
    assert max(norms) >= 0.9 * found.lower


def test_reflections():
    found = bounds.discretization_error(groups.O(2), groups.O(2).finite(5))
    assert found.lower <= 2 * np.sin(np.pi / 10) <= found.upper + 1e-12
    assert found.upper - found.lower < 0.01
    assert bounds.discretization_error(groups.O(2), groups.SO2.finite(5).matrices).upper == 2
    assert bounds.discretization_error(groups.SO(4), np.eye(4)[None]).upper == 2


def test_frequencies():
    np.testing.assert_array_equal(bounds.frequencies(plane(0, 3, 1)), [0, 1, 3])
    np.testing.assert_array_equal(bounds.frequencies(TENSORS), [0, 1, 2])
    np.testing.assert_array_equal(bounds.frequencies(reps.trivial(groups.SO3)), [0])


@pytest.mark.parametrize("group", [groups.SO2, groups.SO3])
def test_cells_cover_the_group(group):
    """Every rotation lies in the radius of a cell, at each of three levels; and not all in much less."""
    parts = bounds.cover_group(group)
    sample = np.asarray(group.sample(jax.random.key(1), 300))
    for _ in range(3):
        parts = parts.split()
        within = angles_between(sample, parts.elements) / parts.radius[None]
        assert within.min(axis=1).max() <= 1 + 1e-9
    assert within.min(axis=1).max() > 0.5


def test_actions_may_be_written_in_numpy():
    rep = reps.matrix(groups.SO2, lambda R: np.kron(np.eye(2), R))
    found = bounds.discretization_error(rep, groups.SO2.finite(4))
    assert abs(float(found) - 2 * np.sin(np.pi / 8)) < 1e-9
    assert found.converged


def test_refusals():
    with pytest.raises(ValueError, match="`subgroup` must be elements of SO"):
        bounds.discretization_error(groups.SO2, groups.O(2).finite(3))
    with pytest.raises(ValueError, match="`subgroup` must be elements of SO"):
        bounds.discretization_error(groups.SO2, groups.SO3.finite("T"))
    with pytest.raises(ValueError, match="a representation of a continuous group"):
        bounds.discretization_error(reps.regular(groups.cyclic(3)), groups.SO2.finite(3))
    skew = np.array([[1.0, 0.5], [0.0, 1.0]])
    skewed = reps.matrix(groups.SO2, lambda R: jnp.asarray(skew) @ R @ jnp.asarray(np.linalg.inv(skew)))
    with pytest.raises(ValueError, match="orthogonal"):
        bounds.discretization_error(skewed, groups.SO2.finite(3))
