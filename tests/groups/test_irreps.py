"""Irreps: accurate, quick, and with the character tables of the literature, class by class.

A class is described by what tells it apart: its size, the order of its elements, and where needed one more number.
"""

import time

import numpy as np
import pytest

from ntk_equiv import groups
from tests.groups.irreps import error_of_irreps

GOLDEN = (1 + 5**0.5) / 2

# Rows are irreps, columns the classes named in the comment.
TABLES = {
    # e, r2, {r, r3}, {s, r2s}, {rs, r3s}
    "D4": (
        groups.dihedral(4),
        [0, 2, 1, 4, 5],
        [[1, 1, 1, 1, 1], [1, 1, 1, -1, -1], [1, 1, -1, 1, -1], [1, 1, -1, -1, 1], [2, -2, 0, 0, 0]],
    ),
    # 1, -1, ±i, ±j, ±k
    "Q8": (
        groups.quaternion(),
        [0, 4, 1, 2, 3],
        [[1, 1, 1, 1, 1], [1, 1, 1, -1, -1], [1, 1, -1, 1, -1], [1, 1, -1, -1, 1], [2, -2, 0, 0, 0]],
    ),
    # (), (01), (01)(23), (012), (0123)
    "S4": (
        groups.symmetric(4),
        ["()", "(01)", "(01)(23)", "(012)", "(0123)"],
        [[1, 1, 1, 1, 1], [1, -1, 1, 1, -1], [2, 0, 2, -1, 0], [3, 1, -1, 0, -1], [3, -1, -1, 0, 1]],
    ),
    # (), (01)(23), (012), (01234), (01243)
    "A5": (
        groups.alternating(5),
        ["()", "(01)(23)", "(012)", "(01234)", "(01243)"],
        [
            [1, 1, 1, 1, 1],
            [3, -1, 0, GOLDEN, 1 - GOLDEN],
            [3, -1, 0, 1 - GOLDEN, GOLDEN],
            [4, 0, 1, -1, -1],
            [5, 1, -1, 0, 0],
        ],
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_characters_from_the_literature(name) -> None:
    group, representatives, expected = TABLES[name]
    columns = [group.names.index(g) if isinstance(g, str) else g for g in representatives]
    found = np.array([np.trace(sigma, axis1=1, axis2=2)[columns] for sigma in group.irreps()])
    np.testing.assert_allclose(_sorted(found), _sorted(np.array(expected)), atol=1e-13)


def test_characters_of_the_octahedral_group() -> None:
    """The vector representation has χ = 1 + 2 cos ω; squares of the axes and of their products give the others."""
    group = groups.polyhedral("O")
    trace = np.trace(group.matrices, axis1=1, axis2=2)  # 3, 1 (quarter turn), -1 (half turns), 0 (third of a turn)
    odd = np.array([np.prod(np.abs(R).argmax(0) - np.abs(R).argmax(0)[[1, 2, 0]]) for R in group.matrices])
    A2 = -np.sign(odd)  # sign of the permutation of the three axes
    A2 = A2 * A2[group.identity]
    fixed_axes = np.trace(np.abs(group.matrices), axis1=1, axis2=2)
    expected = np.array([np.ones(24), A2, fixed_axes - 1, trace, trace * A2])
    found = np.array([np.trace(sigma, axis1=1, axis2=2) for sigma in group.irreps()])
    np.testing.assert_allclose(_sorted(found), _sorted(expected), atol=1e-13)


@pytest.mark.parametrize(
    ("group", "indicators"),
    [
        (groups.cyclic(5), [1, 0, 0, 0, 0]),
        (groups.polyhedral("T"), [1, 0, 0, 1]),
        (groups.quaternion(), [1, 1, 1, 1, -1]),
        (groups.product(groups.quaternion(), groups.cyclic(3)), [1] * 4 + [0] * 8 + [-1, 0, 0]),
    ],
    ids=["C5", "T", "Q8", "Q8xC3"],
)
def test_frobenius_schur_types(group, indicators) -> None:
    assert [kind.indicator for kind in group.irrep_types()] == indicators


def test_cyclic_irreps_are_exact_and_start_with_low_frequencies() -> None:
    frequencies = [0, 1, 7, 2, 6, 3, 5, 4]
    for k, sigma in zip(frequencies, groups.cyclic(8).irreps(), strict=True):
        np.testing.assert_allclose(sigma[:, 0, 0], np.exp(2j * np.pi * k * np.arange(8) / 8), atol=2e-15)
    assert groups.cyclic(8).irreps()[1][2, 0, 0] == 1j


def test_characters_are_on_classes() -> None:
    np.testing.assert_array_equal(groups.symmetric(3).characters(), [[1, 1, 1], [1, -1, 1], [2, 0, -1]])


@pytest.mark.parametrize(
    "group",
    [
        groups.dihedral(60),
        groups.symmetric(5),
        groups.product(groups.polyhedral("I"), groups.cyclic(2)),
    ],
    ids=["D60", "S5", "IxC2"],
)
def test_irreps_of_order_120_are_quick_and_accurate(group) -> None:
    start = time.process_time()
    irreps = group.irreps()
    assert time.process_time() - start < 2  # two cores at most: under a second on the clock
    assert error_of_irreps(group, irreps) < 2e-14


def test_the_error_of_irreps_is_noticed() -> None:
    group = groups.dihedral(3)
    one, sign, plane = group.irreps()
    assert error_of_irreps(group, [one, sign, plane]) < 1e-14
    assert error_of_irreps(group, [one, sign, plane * 1.001]) > 1e-4
    assert error_of_irreps(group, [one, one, plane]) > 0.9
    assert error_of_irreps(group, [one, sign]) == np.inf
    assert error_of_irreps(groups.cyclic(6), [one, sign, plane]) > 0.5


def _sorted(characters: np.ndarray) -> np.ndarray:
    rounded = np.round(characters.real, 6) + 0.0
    return characters[np.lexsort(rounded.T)]
