"""The finite group as a value: immutable, hashable, printable, strict about its table."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntk_equiv import groups


def test_equality_and_hash_are_by_table() -> None:
    assert groups.klein() == groups.dihedral(2) == groups.product(groups.cyclic(2), groups.cyclic(2))
    assert hash(groups.klein()) == hash(groups.dihedral(2))
    assert groups.klein() != groups.cyclic(4)
    assert groups.cyclic(4) != "C4"


def test_groups_do_not_change() -> None:
    G = groups.cyclic(4)
    with pytest.raises(AttributeError, match="does not change"):
        G.label = "other"
    with pytest.raises(AttributeError, match="does not change"):
        del G.table
    for array in (G.table, G.inverse, *G.irreps(), groups.polyhedral("T").matrices):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_a_list_of_irreps_may_be_changed_without_harm() -> None:
    groups.cyclic(3).irreps().clear()
    assert len(groups.cyclic(3).irreps()) == 3


def test_groups_pass_through_jit() -> None:
    @jax.jit
    def shifted(group, x):
        return x[group.table[1]]

    np.testing.assert_array_equal(shifted(groups.cyclic(3), jnp.arange(3)), [1, 2, 0])


def test_groups_survive_pickling() -> None:
    for group in (groups.polyhedral("T"), groups.symmetric(3)):
        copy = pickle.loads(pickle.dumps(group))
        assert copy == group
        assert hash(copy) == hash(group)
        assert repr(copy) == repr(group)
        np.testing.assert_equal((copy.matrices, copy.permutations), (group.matrices, group.permutations))


def test_large_groups_print_shortly() -> None:
    assert repr(groups.dihedral(60)) == "<dihedral(60), order 120: e r r2 r3 r4 r5 r6 r7 …>"


# A Latin square with a neutral element, every element its own inverse, that is not associative.
LOOP = [[0, 1, 2, 3, 4], [1, 0, 3, 4, 2], [2, 4, 0, 1, 3], [3, 2, 4, 0, 1], [4, 3, 1, 2, 0]]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([[0, 1]], r"a square array, .* got shape \(1, 2\)"),
        ([], "a square array"),
        ([[0.0, 1.0], [1.0, 0.0]], "a table of integers from 0 to 1, got entries of dtype float64"),
        ([[0, 2], [2, 0]], "integers from 0 to 1, .* from 0 to 2"),
        ([[0, 1], [1, 1]], "a repeated entry in row 1"),
        ([[0, 1], [0, 1]], "a repeated entry in column 0"),
        ([[0, 2, 1], [1, 0, 2], [2, 1, 0]], "no neutral element"),
        (LOOP, "associative"),
    ],
)
def test_tables_that_are_no_groups(table, message) -> None:
    with pytest.raises(ValueError, match=message):
        groups.from_table(table)


@pytest.mark.parametrize("g", [-1, 4, 1.0, True, "r"])
def test_elements_out_of_range(g) -> None:
    with pytest.raises(ValueError, match=r"an element of cyclic\(4\), an integer from 0 to 3"):
        groups.cyclic(4).element(g)
    with pytest.raises(ValueError, match="`elements` must be an element"):
        groups.cyclic(4).subgroup([0, 9])


def test_subgroups() -> None:
    rotations = groups.dihedral(5).subgroup([2])
    assert rotations.embedding == (0, 1, 2, 3, 4)
    assert rotations.group == groups.cyclic(5)
    assert groups.symmetric(4).subgroup([]).group == groups.trivial()
    tetrahedral = groups.polyhedral("O").subgroup(range(12))
    assert tetrahedral.group == groups.polyhedral("T")
    np.testing.assert_array_equal(tetrahedral.group.matrices, groups.polyhedral("T").matrices)
