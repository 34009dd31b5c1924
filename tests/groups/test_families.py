"""The families and their element orders, against NumPy, SciPy and permutations written out."""

import itertools

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from ntk_equiv import groups


def test_cyclic_is_addition() -> None:
    assert groups.cyclic(5).table.tolist() == [[(g + h) % 5 for h in range(5)] for g in range(5)]
    assert groups.cyclic(5).inverse.tolist() == [0, 4, 3, 2, 1]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7])
def test_dihedral_is_rotation_after_flip(n) -> None:
    angles = 2 * np.pi * np.arange(n) / n
    turns = np.array([[np.cos(angles), -np.sin(angles)], [np.sin(angles), np.cos(angles)]]).transpose(2, 0, 1)
    mats = np.concatenate([turns, turns @ np.diag([-1, 1])])
    if n > 2:
        assert groups.from_matrices(mats) == groups.dihedral(n)
    products = np.einsum("gij,hjk->ghik", mats, mats)
    np.testing.assert_allclose(products, mats[groups.dihedral(n).table], atol=1e-14)


def test_quaternions_multiply() -> None:
    i, j = np.array([[1j, 0], [0, -1j]]), np.array([[0, 1], [-1, 0]])
    units = [np.eye(2), i, j, i @ j]
    assert groups.from_matrices([*units, *(-unit for unit in units)]) == groups.quaternion()


def test_symmetric_and_alternating_compose_permutations() -> None:
    perms = list(itertools.permutations(range(4)))
    G = groups.symmetric(4)
    for g, h in ((5, 9), (20, 3), (23, 17)):
        assert perms[G.table[g, h]] == tuple(perms[g][perms[h][i]] for i in range(4))
    assert groups.alternating(4).order == 12
    assert groups.alternating(5).order == 60
    assert G.subgroup([G.names.index(name) for name in groups.alternating(4).names]).group == groups.alternating(4)


@pytest.mark.parametrize("symbol", ["T", "O", "I", "C5", "C1", "D1", "D2", "D3", "D8"])
def test_rotation_groups_have_scipys_order(symbol) -> None:
    G = groups.SO3.finite(symbol)
    np.testing.assert_allclose(G.matrices, Rotation.create_group(symbol).as_matrix(), atol=1e-14)
    if symbol[0] in "CD":
        assert {"C": groups.cyclic, "D": groups.dihedral}[symbol[0]](int(symbol[1:])) == G
    else:
        assert groups.polyhedral(symbol) == G


def test_product_indexes_pairs() -> None:
    G, H = groups.dihedral(3), groups.cyclic(4)
    both = groups.product(G, H)
    for (g, h), (k, m) in (((1, 2), (4, 3)), ((5, 0), (3, 1))):
        assert both.table[4 * g + h, 4 * k + m] == 4 * G.table[g, k] + H.table[h, m]


def test_given_matrices_come_first() -> None:
    O = groups.polyhedral("O")  # noqa: E741
    given = O.matrices[[20, 13, 7]]
    G = groups.from_matrices(given)
    np.testing.assert_array_equal(G.matrices[:3], given)
    assert G.order == len(O.subgroup([20, 13, 7]).embedding)


def test_complex_and_single_precision_matrices_close() -> None:
    assert groups.from_matrices([[[1j]]]).order == 4
    assert groups.from_matrices(groups.SO2.finite(7).matrices[1:2].astype(np.float32)).order == 7


def test_irrational_rotation_does_not_close() -> None:
    with pytest.raises(ValueError, match="closed within 100 elements"):
        groups.from_matrices([[[np.cos(1), -np.sin(1)], [np.sin(1), np.cos(1)]]], max_order=100)


@pytest.mark.parametrize(
    ("mats", "message"),
    [
        (np.eye(2), r"an array \[count, n, n\], got shape \(2, 2\)"),
        (np.zeros((0, 2, 2)), "an array"),
        (np.zeros((1, 2, 2)), r"matrices with \|det\| = 1, got \|det\| = 0 at index 0"),
        (np.stack([np.eye(2), -np.eye(2), np.eye(2)]), "all different, got number 2 equal to 0"),
        (np.stack([np.eye(2), 0.5 * np.eye(2)]), r"\|det\| = 0.25 at index 1"),
        ([[[2.0, 0.0], [0.0, 0.5]]], "closed within 2048 elements"),
    ],
)
def test_matrices_that_make_no_group(mats, message) -> None:
    with pytest.raises(ValueError, match=message):
        groups.from_matrices(mats)


@pytest.mark.parametrize("perms", [[[0, 0]], [0, 1], [[1, 2]]])
def test_lists_that_are_no_permutations(perms) -> None:
    with pytest.raises(ValueError, match="`perms` must be permutations"):
        groups.from_permutations(perms)


def test_sizes_out_of_range() -> None:
    for family in (groups.cyclic, groups.dihedral, groups.symmetric):
        with pytest.raises(ValueError, match="`n` must be a positive integer, got 0"):
            family(0)
    with pytest.raises(ValueError, match="`n` must be at most 6, got 7"):
        groups.symmetric(7)
    with pytest.raises(ValueError, match="`symbol` must be one of 'T', 'O', 'I', got 'X'"):
        groups.polyhedral("X")
