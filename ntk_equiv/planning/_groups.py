"""Groups by their names, as they are written on a command line.

C4          cyclic(4)                 S3          symmetric(3)          V4      klein()
D4          dihedral(4)               A4          alternating(4)        Q8      quaternion()
T, O, I     polyhedral("T"), …        C2xC3       product(cyclic(2), cyclic(3))
SO2:8       SO2.finite(8)             O2:4        O(2).finite(4)        SO3:D3  SO3.finite("D3")
"""

import functools
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from ntk_equiv import groups
from ntk_equiv._check import instance, refusal
from ntk_equiv.groups import FiniteGroup

KNOWN = "C4, D4, S3, A4, T, O, I, V4, Q8, SO2:8, O2:4, SO3:D3, or a product such as C2xC4, with any numbers"

LARGEST = 1024

_FAMILIES: dict[str, Callable[[int], FiniteGroup]] = {
    "C": groups.cyclic,
    "D": groups.dihedral,
    "S": groups.symmetric,
    "A": groups.alternating,
    "SO2:": lambda n: groups.SO2.finite(n),
    "O2:": lambda n: groups.O(2).finite(n),
}
_SINGLE: dict[str, Callable[[], FiniteGroup]] = {
    "T": lambda: groups.polyhedral("T"),
    "O": lambda: groups.polyhedral("O"),
    "I": lambda: groups.polyhedral("I"),
    "V4": groups.klein,
    "Q8": groups.quaternion,
}


def named_group(name: str | FiniteGroup, /) -> FiniteGroup:
    """The finite group of this name; a group stays as it is.

    Args:
        name: C4, D4, S3, A4, T, O, I, V4, Q8, SO2:8, O2:4, SO3:D3 or a product such as C2xC4.

    Raises:
        ValueError: no group has this name; the message lists what there is.

    Example:
        >>> from ntk_equiv import planning
        >>> planning.named_group("D4").order, planning.named_group("C2xC3").label
        (8, 'product(cyclic(2), cyclic(3))')
    """
    if isinstance(name, FiniteGroup):
        return name
    fix = "Build others with `ntk_equiv.groups`; of a continuous group take a finite one, as SO2:8."
    instance(name, str, "group", expected=f"one of {KNOWN}, or a finite group", fix=fix)
    try:
        factors = [_factor(part) for part in name.split("x")]
        if math.prod(factor.order for factor in factors) > LARGEST:
            raise ValueError(f"More than {LARGEST} elements are not augmented by here.")
    except ValueError as error:
        raise refusal("group", expected=f"one of {KNOWN}", got=repr(name), fix=str(error)) from None
    return functools.reduce(groups.product, factors)


def _factor(name: str) -> FiniteGroup:
    if name in _SINGLE:
        return _SINGLE[name]()
    if name.startswith("SO3:"):
        return groups.SO3.finite(name.removeprefix("SO3:"))
    found = re.fullmatch(r"(C|D|S|A|SO2:|O2:)([1-9]\d*)", name)
    if not found:
        raise ValueError("Names are written in this way; others are built with `ntk_equiv.groups` in Python.")
    if int(found[2]) > LARGEST:
        raise ValueError(f"More than {LARGEST} elements are not augmented by here.")
    return _FAMILIES[found[1]](int(found[2]))


def defining_matrices(group: FiniteGroup, /) -> np.ndarray | None:
    """The matrices a group is known by, [order, d, d]: its own, rotations of the plane, permutations; None if none."""
    if group.matrices is not None:
        return np.asarray(group.matrices)
    if group.permutations is not None:
        return _permutation_matrices(group.permutations)
    if group == groups.cyclic(group.order):
        return np.asarray(groups.SO2.finite(group.order).matrices)
    if group.order % 2 == 0 and group == groups.dihedral(group.order // 2):
        return np.asarray(groups.O(2).finite(group.order // 2).matrices)
    return None


def defining_permutations(group: FiniteGroup, /) -> np.ndarray | None:
    """The permutations a group is known by, [order, n]: its own, or those of the corners of a polygon; None if none."""
    if group.permutations is not None:
        return np.asarray(group.permutations)
    if group == groups.cyclic(group.order):
        return np.asarray(group.table)
    n = group.order // 2
    if group.order % 2 == 0 and group == groups.dihedral(n):
        corners, turns = np.arange(n), np.arange(n)[:, None]
        return np.concatenate([(turns + corners) % n, (turns - corners) % n])
    return None


def _permutation_matrices(perms: Any) -> np.ndarray:
    """M_g with (M_g x)_{π_g(i)} = x_i."""
    n = perms.shape[1]
    return np.eye(n)[:, perms].transpose(1, 0, 2)
