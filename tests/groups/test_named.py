"""Groups by name, and the matrices, permutations and moves of the square by which a group is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntk_equiv import groups
from tests.cases import GROUPS

KNOWN_BY_PERMUTATIONS = {
    "C5": groups.cyclic(5),
    "D5": groups.dihedral(5),
    "S4": groups.symmetric(4),
    "A4": groups.alternating(4),
}
KNOWN_BY_MATRICES = KNOWN_BY_PERMUTATIONS | {"T": groups.polyhedral("T"), "D4 in O(2)": groups.O(2).finite(4)}


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("C4", groups.cyclic(4)),
        ("D12", groups.dihedral(12)),
        ("S3", groups.symmetric(3)),
        ("A4", groups.alternating(4)),
        ("I", groups.polyhedral("I")),
        ("V4", groups.klein()),
        ("Q8", groups.quaternion()),
        ("C2xC3xC4", groups.product(groups.product(groups.cyclic(2), groups.cyclic(3)), groups.cyclic(4))),
        ("SO2:8", groups.SO2.finite(8)),
        ("O2:4", groups.O(2).finite(4)),
        ("SO3:D3", groups.SO3.finite("D3")),
    ],
)
def test_names_stand_for_groups(name, group) -> None:
    found = groups.named(name)
    assert found == group
    assert found.label == group.label
    np.testing.assert_equal(found.matrices, group.matrices)
    assert groups.named(group) is group


@pytest.mark.parametrize(
    "name", ["Z4", "C", "C0", "C-1", "", "xC4", "C4x", "c4", "SO2", "SO3:X", "C2048", "S6xS6", "S9"]
)
def test_other_names_are_refused(name) -> None:
    with pytest.raises(ValueError, match="`group` must be one of C4, D4"):
        groups.named(name)


@pytest.mark.parametrize("group", KNOWN_BY_MATRICES.values(), ids=KNOWN_BY_MATRICES)
def test_defining_matrices_multiply_as_the_group(group) -> None:
    mats = groups.defining_matrices(group)
    np.testing.assert_allclose(np.einsum("gij,hjk->ghik", mats, mats), mats[group.table], atol=1e-14)
    assert len(np.unique(mats.round(9), axis=0)) == group.order  # no two elements act alike


@pytest.mark.parametrize("group", KNOWN_BY_PERMUTATIONS.values(), ids=KNOWN_BY_PERMUTATIONS)
def test_defining_permutations_multiply_as_the_group(group) -> None:
    perms = groups.defining_permutations(group)
    for g in range(group.order):
        np.testing.assert_array_equal(perms[g][perms], perms[group.table[g]])
    assert len(np.unique(perms, axis=0)) == group.order


def test_permutations_are_matrices_that_move_entries_to_their_images() -> None:
    S3 = groups.symmetric(3)
    for perm, mat in zip(S3.permutations, groups.defining_matrices(S3), strict=True):
        np.testing.assert_array_equal((mat @ np.arange(3.0))[perm], np.arange(3.0))


def test_other_groups_are_known_by_nothing() -> None:
    for name in ("Q8", "C2xC4"):
        assert groups.defining_matrices(GROUPS[name]) is None
        assert groups.defining_permutations(GROUPS[name]) is None


@pytest.mark.parametrize("group", [groups.cyclic(4), groups.dihedral(4)], ids=["C4", "D4"])
def test_a_square_is_moved_as_the_group_multiplies(group) -> None:
    square = np.arange(9).reshape(1, 3, 3)
    for g in range(group.order):
        for h in range(group.order):
            twice = groups.move_square(g, groups.move_square(h, square, (1, 2)), (1, 2))
            np.testing.assert_array_equal(twice, groups.move_square(int(group.table[g, h]), square, (1, 2)))


def test_a_moved_square_stays_with_its_library() -> None:
    square = np.arange(4).reshape(2, 2)
    assert groups.move_square(1, square, (0, 1)).tolist() == [[1, 3], [0, 2]]  # counter-clockwise
    assert groups.move_square(4, square, (0, 1)).tolist() == [[1, 0], [3, 2]]  # left and right change places
    assert isinstance(jax.jit(lambda: jnp.asarray(groups.move_square(5, square, (0, 1))))(), jax.Array)
    assert isinstance(groups.move_square(5, square, (0, 1)), np.ndarray)
    np.testing.assert_array_equal(
        jax.jit(lambda x: groups.move_square(5, x, (0, 1)))(jnp.asarray(square)), groups.move_square(5, square, (0, 1))
    )
