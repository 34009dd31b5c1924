"""Groups by their names, and the actions by which a named group is known.

    C4          cyclic(4)                 S3          symmetric(3)          V4      klein()
    D4          dihedral(4)               A4          alternating(4)        Q8      quaternion()
    T, O, I     polyhedral("T"), …        C2xC3       product(cyclic(2), cyclic(3))
    SO2:8       SO2.finite(8)             O2:4        O(2).finite(4)        SO3:D3  SO3.finite("D3")

A named group usually stands for something that moves: cyclic and dihedral groups for the symmetries of a polygon
(`defining_matrices`, `defining_permutations`), C4 and D4 for those of a square image (`move_square`).
"""

import functools
import math
import re
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, Num

from ntk_equiv._check import instance, refusal
from ntk_equiv.groups._continuous import SO2, SO3, O
from ntk_equiv.groups._families import (
    alternating,
    cyclic,
    dihedral,
    klein,
    polyhedral,
    product,
    quaternion,
    symmetric,
)
from ntk_equiv.groups._finite import FiniteGroup

SquareArray = TypeVar("SquareArray", jax.Array, np.ndarray)

_EXAMPLES = "C4, D4, S3, A4, T, O, I, V4, Q8, SO2:8, O2:4, SO3:D3, or a product such as C2xC4, with any numbers"

# Irreps come from an eigendecomposition of size |G|: beyond this a name is more likely a mistake than a wish.
_LARGEST_ORDER = 1024

_FAMILIES: dict[str, Callable[[int], FiniteGroup]] = {
    "C": cyclic,
    "D": dihedral,
    "S": symmetric,
    "A": alternating,
    "SO2:": SO2.finite,
    "O2:": O(2).finite,
}
_SINGLE_GROUPS: dict[str, Callable[[], FiniteGroup]] = {
    "T": lambda: polyhedral("T"),
    "O": lambda: polyhedral("O"),
    "I": lambda: polyhedral("I"),
    "V4": klein,
    "Q8": quaternion,
}


def named(name: str | FiniteGroup, /) -> FiniteGroup:
    """Return the finite group of this name; a group is returned as it is.

    Args:
        name: C4, D4, S3, A4, T, O, I, V4, Q8, SO2:8, O2:4, SO3:D3 or a product such as C2xC4.

    Raises:
        ValueError: no group has this name; the message lists the names there are.

    Example:
        >>> named("D4").order, named("C2xC3").label
        (8, 'product(cyclic(2), cyclic(3))')
    """
    if isinstance(name, FiniteGroup):
        return name
    fix = "Build others with `ntk_equiv.groups`; of a continuous group take a finite subgroup, such as SO2:8."
    instance(name, str, "group", expected=f"one of {_EXAMPLES}, or a finite group", fix=fix)
    try:
        factors = [_named_factor(part) for part in name.split("x")]
        _check_order(math.prod(factor.order for factor in factors))
    except ValueError as error:
        raise refusal("group", expected=f"one of {_EXAMPLES}", got=repr(name), fix=str(error)) from None
    return functools.reduce(product, factors)


def _named_factor(name: str) -> FiniteGroup:
    if name in _SINGLE_GROUPS:
        return _SINGLE_GROUPS[name]()
    if name.startswith("SO3:"):
        return SO3.finite(name.removeprefix("SO3:"))
    match = re.fullmatch(rf"({'|'.join(_FAMILIES)})([1-9]\d*)", name)
    if not match:
        raise ValueError("Write the name like one of these, or build the group with `ntk_equiv.groups` in Python.")
    _check_order(int(match[2]))
    return _FAMILIES[match[1]](int(match[2]))


def _check_order(order: int) -> None:
    if order > _LARGEST_ORDER:
        raise ValueError(f"A group with a name has at most {_LARGEST_ORDER} elements.")


def defining_matrices(group: FiniteGroup, /) -> Num[np.ndarray, "order d d"] | None:
    """Return the matrices by which a group is known, or None if there are none.

    These are its own matrices, its permutations as matrices, or the rotations and reflections of a regular polygon.

    Example:
        >>> from ntk_equiv.groups import cyclic, defining_matrices
        >>> defining_matrices(cyclic(4))[1].tolist()
        [[0.0, -1.0], [1.0, 0.0]]
    """
    if group.matrices is not None:
        return group.matrices
    if group.permutations is not None:
        # M_g with (M_g x)_{π_g(i)} = x_i, so that column i has its 1 in row π_g(i).
        return np.eye(group.permutations.shape[1])[:, group.permutations].transpose(1, 0, 2)
    if group == cyclic(group.order):
        return SO2.finite(group.order).matrices
    if _is_dihedral(group):
        return O(2).finite(group.order // 2).matrices
    return None


def defining_permutations(group: FiniteGroup, /) -> Int[np.ndarray, "order n"] | None:
    """Return the permutations by which a group is known, as lists of images, or None if there are none.

    These are its own permutations, or those of the corners of a regular polygon.

    Example:
        >>> from ntk_equiv.groups import defining_permutations, dihedral
        >>> defining_permutations(dihedral(3))[4].tolist()      # the flip, then one turn
        [1, 0, 2]
    """
    if group.permutations is not None:
        return group.permutations
    if group == cyclic(group.order):
        return group.table
    if _is_dihedral(group):
        n = group.order // 2
        corners, turns = np.arange(n), np.arange(n)[:, None]
        return np.concatenate([(turns + corners) % n, (turns - corners) % n])
    return None


def _is_dihedral(group: FiniteGroup) -> bool:
    return group.order % 2 == 0 and group == dihedral(group.order // 2)


def move_square(g: int, x: SquareArray, axes: tuple[int, int]) -> SquareArray:
    """Return a square array moved by element g of `cyclic(4)` or `dihedral(4)`, (gx)(a) = x(g⁻¹a).

    Elements 0 to 3 turn it g times counter-clockwise; 4 + k flips it left to right and then turns it k times.

    Args:
        g: an element, from 0 to 7.
        x: an array of JAX or NumPy; the result is of the same kind.
        axes: the rows and the columns of the square.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv.groups import move_square
        >>> move_square(5, np.array([[1, 2], [3, 4]]), (0, 1)).tolist()
        [[1, 3], [2, 4]]
    """
    # NumPy stays NumPy: tables of indices are made on the host, also while JAX traces.
    library = np if isinstance(x, np.ndarray) else jnp
    return library.rot90(library.flip(x, axes[1]) if g >= 4 else x, g % 4, axes)
