"""The finite groups that one builds: families, and groups of given matrices, permutations or tables.

The name of an element says what it does. Products read from right to left, as maps do.

    trivial()            e
    cyclic(n)            g stands for rᵍ, r the rotation by 2π/n counter-clockwise
    dihedral(n)          k < n stands for rᵏ, n + k for rᵏs: the flip s first, then the rotation; s r = r⁻¹ s
    klein()              e, a, b, ab
    quaternion()         1, i, j, k, −1, −i, −j, −k
    product(G, H)        (g, h) has the index g·|H| + h
    symmetric(n)         permutations in lexicographic order of their lists of images: [1, 2, 0] sends 0 to 1
    alternating(n)       the even ones, in the same order
    polyhedral(symbol)   rotations in SciPy's order
    from_…               the given elements first, in their order, then the products that are missing

Groups of matrices (gh = g @ h) and permutations ((gh)(i) = g(h(i))) are closed under products. Every new element is s·g
with s one of a few generators among the given elements. So the table needs no products of all pairs: with L_s the index
of s·h for each h, the row of s·g is L_s[row of g].
"""

import itertools
from collections.abc import Callable, Sequence

import numpy as np
from jax.typing import ArrayLike
from scipy.spatial import KDTree
from scipy.spatial.transform import Rotation

from ntk_equiv._check import one_of, positive_integer, real_array, refusal
from ntk_equiv.groups._finite import FiniteGroup, check_finite_group

_MAX_ORDER = 2048
_TOLERANCE = 1e-5  # elements may be given in single precision, and products add up rounding


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
    check_finite_group(G, "G")
    check_finite_group(H, "H")
    table = G.table[:, None, :, None] * H.order + H.table[None, :, None, :]
    order = G.order * H.order
    names = [f"({g},{h})" for g in G.names for h in H.names]
    return FiniteGroup(table.reshape(order, order), names=names, label=f"product({G.label}, {H.label})")


def symmetric(n: int, /) -> FiniteGroup:
    """The symmetric group S_n of all permutations of 0 … n−1, in lexicographic order of the lists of images.

    Args:
        n: how many letters are permuted, at most 6.

    Example:
        >>> symmetric(3)
        <symmetric(3), order 6: () (12) (01) (012) (021) (02)>
    """
    n = _few_letters(n)
    return from_permutations(list(itertools.permutations(range(n))), label=f"symmetric({n})")


def alternating(n: int, /) -> FiniteGroup:
    """The alternating group A_n of even permutations, in lexicographic order of the lists of images.

    Args:
        n: how many letters are permuted, at most 6.

    Example:
        >>> alternating(3)
        <alternating(3), order 3: () (012) (021)>
    """
    n = _few_letters(n)
    even = [perm for perm in itertools.permutations(range(n)) if _parity(perm) == 0]
    return from_permutations(even, label=f"alternating({n})")


def polyhedral(symbol: str, /) -> FiniteGroup:
    """The rotations of the tetrahedron "T" (order 12), octahedron "O" (24) or icosahedron "I" (60).

    Elements and their order are those of SciPy's `Rotation.create_group(symbol)`, in which the identity is number 3.

    Returns:
        A group whose `.matrices` are the rotations [order, 3, 3].

    Example:
        >>> O = polyhedral("O")
        >>> O.order, O.identity, sorted(set(O.element_orders))
        (24, 3, [1, 2, 3, 4])
    """
    return rotations(one_of(symbol, ("T", "O", "I"), "symbol"), label=f'polyhedral("{symbol}")')


def rotations(symbol: str, /, *, label: str) -> FiniteGroup:
    """The finite group of rotations with this symbol in SciPy, in SciPy's order."""
    mats = Rotation.create_group(symbol).as_matrix()
    # SciPy's rounding aside, entries that are multiples of ½ are made exact.
    halves = np.rint(2 * mats) / 2
    return from_matrices(np.where(np.abs(mats - halves) < 1e-14, halves, mats), label=label)


def from_table(table: ArrayLike | Sequence, /, *, names: Sequence[str] | None = None) -> FiniteGroup:
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


def from_matrices(
    mats: ArrayLike | Sequence, /, *, max_order: int = _MAX_ORDER, label: str = "from_matrices"
) -> FiniteGroup:
    """The group generated by matrices. The given ones come first and keep their order.

    Args:
        mats: matrices [count, n, n], all different. The identity need not be among them.
        max_order: the largest number of elements that is accepted.
        label: a name for the group.

    Returns:
        A group with `.matrices`. Matrices whose entries differ by less than 1e-5 count as the same element.

    Raises:
        ValueError: two matrices coincide, one has |det| ≠ 1, or they do not close within `max_order` elements.

    Example:
        >>> quarter_turn = [[0, -1], [1, 0]]
        >>> G = from_matrices([quarter_turn])
        >>> G.order, G.identity, G.matrices[1].tolist()
        (4, 3, [[-1.0, 0.0], [0.0, -1.0]])
    """
    given = np.asarray(real_array(mats, "mats", fix="Pass matrices [count, n, n].", or_complex=True))
    given = given.astype(np.result_type(given, np.float64))
    if given.ndim != 3 or given.shape[1] != given.shape[2] or given.size == 0:
        fix = "Stack the matrices along the first axis."
        raise refusal("mats", expected="an array [count, n, n]", got=f"shape {given.shape}", fix=fix)
    if not np.isfinite(given).all():
        raise refusal("mats", expected="finite", got="NaN or infinity", fix="Elements of groups are invertible.")
    determinants = np.abs(np.linalg.det(given))
    if (wrong := np.flatnonzero(np.abs(determinants - 1) > 1e-3)).size:
        got = f"|det| = {determinants[wrong[0]]:.3g} at index {wrong[0]}"
        fix = "Some power of every element of a finite group is the identity."
        raise refusal("mats", expected="matrices with |det| = 1", got=got, fix=fix)
    elements, table = _close(given, lambda s, h: s @ h, "mats", max_order)
    return FiniteGroup(table, label=label, matrices=elements)


def from_permutations(
    perms: ArrayLike | Sequence, /, *, max_order: int = _MAX_ORDER, label: str = "from_permutations"
) -> FiniteGroup:
    """The group generated by permutations. The given ones come first and keep their order.

    Args:
        perms: lists of images [count, n], all different: `perm[i]` is where i goes.
        max_order: the largest number of elements that is accepted.
        label: a name for the group.

    Returns:
        A group with `.permutations`, whose `names` are the cycles of each element.

    Example:
        >>> from_permutations([[1, 2, 3, 0]])
        <from_permutations, order 4: (0123) (02)(13) (0321) ()>
    """
    fix = "Each row holds the images of 0, 1, …, n−1: every number once."
    given = np.asarray(real_array(perms, "perms", fix=fix))
    if given.ndim != 2 or given.size == 0 or (np.sort(given, axis=1) != np.arange(given.shape[1])).any():
        raise refusal("perms", expected="permutations, integers [count, n]", got=given.tolist(), fix=fix)
    elements, table = _close(given, lambda s, h: s[h], "perms", max_order)
    return FiniteGroup(table, names=[_cycles(perm) for perm in elements], label=label, permutations=elements)


def _power(letter: str, k: int) -> str:
    return "" if k == 0 else letter if k == 1 else f"{letter}{k}"


def _few_letters(n: int) -> int:
    if positive_integer(n, "n") > 6:
        fix = "Larger tables do not fit; pass the permutations you need to `from_permutations`."
        raise refusal("n", expected="at most 6", got=n, fix=fix)
    return n


def _parity(perm: tuple[int, ...]) -> int:
    return sum(a > b for a, b in itertools.combinations(perm, 2)) % 2


def _cycles(perm: np.ndarray) -> str:
    """The cycles of a permutation, fixed points left out."""
    separator, text, seen = "" if len(perm) <= 10 else " ", "", set()
    for start in range(len(perm)):
        cycle = []
        while start not in seen:
            seen.add(start)
            cycle.append(str(start))
            start = int(perm[start])
        text += f"({separator.join(cycle)})" if len(cycle) > 1 else ""
    return text or "()"


Multiply = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _close(given: np.ndarray, multiply: Multiply, argument: str, max_order: int) -> tuple[np.ndarray, np.ndarray]:
    """All products of the given elements, and their table."""
    positive_integer(max_order, "max_order")
    where = _find(given, given)
    if (repeated := np.flatnonzero(where != np.arange(len(given)))).size:
        again = repeated[0]
        fix = "Pass every element once."
        raise refusal(argument, expected="all different", got=f"number {again} equal to {where[again]}", fix=fix)
    elements, generators = given, []
    factors: dict[int, tuple[int, int]] = {}
    for s in range(len(given)):
        if s not in factors:
            generators.append(s)
            elements, factors = _extend(elements, generators, multiply, argument, max_order)
    rows = np.zeros((len(elements), len(elements)), dtype=np.int32)
    for s in generators:
        rows[s] = _find(multiply(elements[s], elements), elements)
    for k, (s, g) in factors.items():
        rows[k] = rows[s] if k == s else rows[s][rows[g]]
    return elements, rows


def _extend(
    elements: np.ndarray, generators: list[int], multiply: Multiply, argument: str, max_order: int
) -> tuple[np.ndarray, dict[int, tuple[int, int]]]:
    """Add to `elements` all that the generators generate; with a pair (s, g) for each index k = s·g that is reached."""
    factors = {s: (s, s) for s in generators}
    fresh = list(generators)
    while fresh:
        products = np.concatenate([multiply(elements[s], elements[fresh]) for s in generators])
        pairs = itertools.product(generators, fresh)
        new = products[_find(products, elements) < 0]
        new = new[_find(new, new) == np.arange(len(new))]
        elements = np.concatenate([elements, new])
        # Entries that grow without limit would overflow long before `max_order` is reached.
        if len(elements) > max_order or np.abs(elements).max() > 1e12:
            fix = "Check that they generate a finite group, or raise `max_order`."
            raise refusal(argument, expected=f"closed within {max_order} elements", got="more products", fix=fix)
        fresh = []
        for k, pair in zip(_find(products, elements).tolist(), pairs, strict=True):
            if k not in factors:
                factors[k] = pair
                fresh.append(k)
    return elements, factors


def _find(wanted: np.ndarray, elements: np.ndarray) -> np.ndarray:
    """The index of the first element equal to each wanted one up to the tolerance, or −1."""
    if not len(wanted):
        return np.zeros(0, dtype=int)
    near = KDTree(_flatten(elements)).query_ball_point(_flatten(wanted), _TOLERANCE, p=np.inf)
    return np.array([min(indices, default=-1) for indices in near])


def _flatten(elements: np.ndarray) -> np.ndarray:
    """Each element as one row of real numbers."""
    flat = elements.reshape(len(elements), -1)
    return np.concatenate([flat.real, flat.imag], axis=1)
