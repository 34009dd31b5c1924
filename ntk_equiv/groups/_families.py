"""The families of groups that have a formula, and how their elements are ordered.

The name of an element says what it does; products read from right to left, as maps do.

    trivial()       e
    cyclic(n)       g stands for rᵍ, r the rotation by 2π/n counter-clockwise
    dihedral(n)     k < n stands for rᵏ, n + k for rᵏs: the flip s first, then the rotation; s r = r⁻¹ s
    klein()         e, a, b, ab
    quaternion()    1, i, j, k, −1, −i, −j, −k
    product(G, H)   (g, h) has the index g·|H| + h
"""

from typing import Any

import numpy as np

from ntk_equiv._check import instance, positive_integer
from ntk_equiv.groups._finite import FiniteGroup


def trivial() -> FiniteGroup:
    """The group of one element.

    Example:
        >>> trivial()
        <trivial(), order 1: e>
    """
    return FiniteGroup([[0]], names=["e"], label="trivial()")


def cyclic(n: int, /) -> FiniteGroup:
    """The cyclic group C_n: element g is g steps of 2π/n counter-clockwise, as `np.rot90(x, g)` for n = 4.

    SciPy's `Rotation.create_group("Cn")` and escnn's `cyclic_group(n)` have the same order.

    Args:
        n: the order.

    Example:
        >>> cyclic(4)
        <cyclic(4), order 4: e r r2 r3>
        >>> cyclic(4).table[3, 2]
        np.int32(1)
    """
    steps = np.arange(positive_integer(n, "n"))
    names = [_power("r", g) or "e" for g in range(n)]
    return FiniteGroup((steps[:, None] + steps) % n, names=names, label=f"cyclic({n})")


def dihedral(n: int, /) -> FiniteGroup:
    """The dihedral group D_n of order 2n: 0 … n−1 are the rotations, n + k is rotation k *after* the flip.

    SciPy's `Rotation.create_group("Dn")` has the same order with the half turn about the x axis as flip, and so has
    escnn's `dihedral_group(n)`, whose element (j, k) is ours with index j·n + k.

    Args:
        n: the number of rotations.

    Example:
        >>> D4 = dihedral(4)
        >>> D4.names
        ('e', 'r', 'r2', 'r3', 's', 'rs', 'r2s', 'r3s')
        >>> D4.names[D4.table[4, 1]]        # first a quarter turn, then the flip
        'r3s'
    """
    turns, flips = np.tile(np.arange(positive_integer(n, "n")), 2), np.repeat([0, 1], n)
    sign = 1 - 2 * flips
    table = (turns[:, None] + sign[:, None] * turns) % n + n * (flips[:, None] ^ flips)
    names = [_power("r", k) + flip or "e" for flip in ("", "s") for k in range(n)]
    return FiniteGroup(table, names=names, label=f"dihedral({n})")


def klein() -> FiniteGroup:
    """Klein's four-group C_2 × C_2; its table is that of `dihedral(2)`.

    Example:
        >>> klein()
        <klein(), order 4: e a b ab>
    """
    elements = np.arange(4)
    return FiniteGroup(elements[:, None] ^ elements, names=["e", "a", "b", "ab"], label="klein()")


def quaternion() -> FiniteGroup:
    """The quaternion group Q_8, the smallest with an irrep that is its own conjugate but has no real form.

    Example:
        >>> Q8 = quaternion()
        >>> Q8
        <quaternion(), order 8: 1 i j k -1 -i -j -k>
        >>> Q8.names[Q8.table[1, 2]], Q8.names[Q8.table[2, 1]]
        ('k', '-k')
    """
    units = np.array([[0, 1, 2, 3], [1, 4, 3, 6], [2, 7, 4, 1], [3, 2, 5, 4]])  # 1, i, j, k; index + 4 negates
    table = np.block([[units, (units + 4) % 8], [(units + 4) % 8, units]])
    return FiniteGroup(table, names=["1", "i", "j", "k", "-1", "-i", "-j", "-k"], label="quaternion()")


def product(G: FiniteGroup, H: FiniteGroup, /) -> FiniteGroup:
    """The direct product G × H: the pair (g, h) has the index g·|H| + h.

    Example:
        >>> product(cyclic(2), cyclic(3)).names
        ('(e,e)', '(e,r)', '(e,r2)', '(r,e)', '(r,r)', '(r,r2)')
    """
    for group, argument in ((G, "G"), (H, "H")):
        instance(group, FiniteGroup, argument, expected="a finite group", fix="Make one with `groups.cyclic(4)`.")
    table = G.table[:, None, :, None] * H.order + H.table[None, :, None, :]
    order = G.order * H.order
    names = [f"({g},{h})" for g in G.names for h in H.names]
    return FiniteGroup(table.reshape(order, order), names=names, label=f"product({G.label}, {H.label})")


def from_table(table: Any, /, *, names: list[str] | tuple[str, ...] | None = None) -> FiniteGroup:
    """The group with this multiplication table, after checking the axioms.

    Args:
        table: integers, `table[g, h]` the index of gh (h acts first).
        names: a name for each element.

    Raises:
        ValueError: the table is not that of a group; the message says which axiom fails and where.

    Example:
        >>> from_table([[0, 1, 2], [1, 2, 0], [2, 0, 1]]) == cyclic(3)
        True
        >>> from_table([[0, 1], [1, 1]])
        Traceback (most recent call last):
        ...
        ValueError: `table` must be a group table, got a repeated entry in row 1. Every row and column of a group's \
table holds each element once, one element is neutral, and (ab)c = a(bc).
    """
    return FiniteGroup(table, names=names)


def _power(letter: str, k: int) -> str:
    return "" if k == 0 else letter if k == 1 else f"{letter}{k}"
