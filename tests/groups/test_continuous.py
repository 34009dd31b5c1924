"""SO(n) and O(n): Haar moments, subgroups, grids, distances."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from ntk_equiv import groups


@pytest.mark.parametrize("group", [groups.SO2, groups.SO3, groups.SO(5), groups.O(1), groups.O(3)], ids=str)
def test_samples_are_haar(group) -> None:
    count, n = 20_000, group.n
    R = np.asarray(group.sample(jax.random.key(0), count))
    np.testing.assert_allclose(R @ R.transpose(0, 2, 1), np.broadcast_to(np.eye(n), R.shape), atol=1e-12)
    determinants = np.linalg.det(R)
    if group.special:
        np.testing.assert_allclose(determinants, 1)
    else:
        assert abs(determinants.mean()) < 5 / np.sqrt(count)
    # E[R_ij] = 0 and E[R_ij²] = 1/n, whose standard errors are at most 1/√count.
    if n > 1:
        np.testing.assert_allclose(R.mean(0), 0, atol=5 / np.sqrt(count))
        np.testing.assert_allclose((R**2).mean(0), 1 / n, atol=5 / np.sqrt(count))


def test_samples_are_invariant_in_distribution() -> None:
    """The law of the angle of SO(3) is (1 − cos ω)/π, and shifting by a fixed rotation keeps it."""
    R = groups.SO3.sample(jax.random.key(1), 20_000)
    fixed = groups.SO3.sample(jax.random.key(2), 1)[0]
    for sample in (R, R @ fixed):
        angle = groups.SO3.distance(sample, jnp.broadcast_to(jnp.eye(3), sample.shape))
        expected = np.pi / 2 + 2 / np.pi
        assert abs(angle.mean() - expected) < 5 * angle.std() / np.sqrt(len(angle))


def test_subgroups_of_the_plane() -> None:
    C8 = groups.SO2.finite(8)
    assert groups.cyclic(8) == C8
    np.testing.assert_allclose(np.einsum("gij,hjk->ghik", C8.matrices, C8.matrices), C8.matrices[C8.table], atol=1e-15)
    np.testing.assert_array_equal(C8.matrices[2] @ [1, 0], [0, 1])  # counter-clockwise


def test_subgroups_of_the_plane_with_flips() -> None:
    D6 = groups.O(2).finite(6)
    assert groups.dihedral(6) == D6
    np.testing.assert_allclose(np.einsum("gij,hjk->ghik", D6.matrices, D6.matrices), D6.matrices[D6.table], atol=1e-15)
    np.testing.assert_array_equal(D6.matrices[6], [[-1, 0], [0, 1]])  # left and right change places


def test_distance_is_the_angle() -> None:
    key_a, key_b = jax.random.split(jax.random.key(0))
    a, b = groups.SO3.sample(key_a, 50), groups.SO3.sample(key_b, 50)
    expected = (Rotation.from_matrix(np.array(a)).inv() * Rotation.from_matrix(np.array(b))).magnitude()
    np.testing.assert_allclose(groups.SO3.distance(a, b), expected, atol=1e-13)


@pytest.mark.parametrize("angle", [0.0, 1e-9, 1e-5, 1.0, np.pi - 1e-9, np.pi])
def test_distance_is_accurate_at_the_ends(angle) -> None:
    for axis in "xyz":
        turned = jnp.asarray(Rotation.from_euler(axis, angle).as_matrix())
        np.testing.assert_allclose(groups.SO3.distance(jnp.eye(3), turned), angle, rtol=1e-14, atol=1e-15)


def test_distance_in_higher_dimension_adds_planes() -> None:
    planes = jax.scipy.linalg.block_diag(*(jnp.asarray(groups.SO2.finite(k).matrices[1]) for k in (4, 6)))
    np.testing.assert_allclose(groups.SO(4).distance(jnp.eye(4), planes), np.hypot(np.pi / 2, np.pi / 3))
    assert groups.O(2).distance(jnp.eye(2), jnp.diag(jnp.array([1.0, -1.0]))) == jnp.inf


def test_spiral_covers_evenly() -> None:
    """Its covering radius beats that of as many random rotations."""
    probe = groups.SO3.sample(jax.random.key(0), 500)

    def covering(grid):
        overlaps = np.einsum("pij,gij->pg", probe, grid)
        return np.arccos(np.clip((overlaps - 1) / 2, -1, 1)).min(axis=1).max()

    assert covering(groups.SO3.grid(600)) < 0.8 * covering(groups.SO3.sample(jax.random.key(1), 600))


@pytest.mark.parametrize("degree", [1, 2, 3, 4])
def test_euler_grid_averages_polynomials(degree) -> None:
    """Averages of products of entries are invariant under rotation only if the grid is exact for their degree."""
    R, weights = groups.SO3.euler_grid(degree)
    assert np.isclose(weights.sum(), 1)
    fixed = np.asarray(groups.SO3.sample(jax.random.key(3), 1)[0])
    vector = np.array([0.3, -0.5, 0.8])

    def average(mats, power):
        return weights @ (mats @ vector)[:, 0] ** power

    for power in range(1, degree + 1):
        np.testing.assert_allclose(average(R, power), average(fixed @ R, power), atol=1e-14)
    assert abs(average(R, 2 * degree + 2) - average(fixed @ R, 2 * degree + 2)) > 1e-6


def test_what_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match=r"asked of SO\(2\), O\(2\) or SO\(3\), got O\(3\)"):
        groups.O(3).finite("T")
    with pytest.raises(ValueError, match="`which` must be a positive integer"):
        groups.SO2.finite(0)
    for symbol in ("X", "C0", "D", 5):
        with pytest.raises(ValueError, match="`which` must be"):
            groups.SO3.finite(symbol)
    with pytest.raises(ValueError, match="Draw from `sample`"):
        groups.SO(4).grid(10)
    with pytest.raises(ValueError, match=r"asked of SO\(3\)"):
        groups.SO2.euler_grid(3)
    assert groups.SO3.finite("D3").matrices.shape == (6, 3, 3)
