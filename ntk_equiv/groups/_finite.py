"""The finite group: an immutable multiplication table, with its subgroups, classes, characters and irreps.

    gh             G.table[g, h]
    g⁻¹            G.inverse[g]
    e              G.identity
    χ_σ            G.characters()
    σ(g)           G.irreps()[i][g]

Elements are the integers 0 … order − 1; each family says in which order. Groups are equal when their tables are equal.
Names, matrices and permutations are descriptions and do not count.
"""

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Complex, Int, Num

from ntk_equiv._check import instance, is_listed, refusal
from ntk_equiv.groups import _irreps, _table
from ntk_equiv.groups._irreps import IrrepType


@jax.tree_util.register_static
class FiniteGroup:
    """A finite group, given by its multiplication table.

    Immutable, hashable, equal by table; passes through `jax.jit` as a static value. Build one with `cyclic`,
    `dihedral`, `symmetric`, …, `from_matrices`, `from_permutations` or `from_table`, rather than with this class.

    Attributes:
        table: `table[g, h]` is the index of gh, where h acts first; read-only.
        inverse: the inverse of each element; read-only.
        identity: the neutral element.
        names: a name for each element.
        label: a name for the group.
        matrices: the matrices the group was made of, read-only, or None.
        permutations: the permutations the group was made of, as lists of images, read-only, or None.

    Example:
        >>> from ntk_equiv import groups
        >>> G = groups.dihedral(3)
        >>> G
        <dihedral(3), order 6: e r r2 s rs r2s>
        >>> int(G.table[1, 3]), G.names[4]      # r after s
        (4, 'rs')
        >>> G.is_abelian, G == groups.symmetric(3), G == groups.dihedral(3)
        (False, False, True)
    """

    table: Int[np.ndarray, "order order"]
    inverse: Int[np.ndarray, "order"]
    identity: int
    names: tuple[str, ...]
    label: str
    matrices: Num[np.ndarray, "order n n"] | None
    permutations: Int[np.ndarray, "order n"] | None

    def __init__(
        self,
        table: ArrayLike | Sequence,
        /,
        *,
        names: Sequence[str] | None = None,
        label: str = "group",
        matrices: ArrayLike | None = None,
        permutations: ArrayLike | None = None,
    ) -> None:
        table = _table.check_table(table)
        neutral = _table.identity(table)
        if names is None:
            names = ["e" if g == neutral else f"g{g}" for g in range(len(table))]
        if not is_listed(names) or len(names) != len(table):
            fix = "Name every element once, in the order of the table."
            got = len(names) if is_listed(names) else repr(names)
            raise refusal("names", expected=f"{len(table)} names", got=got, fix=fix)
        fields = {
            "table": table,
            "inverse": _table.read_only(_table.inverse(table)),
            "identity": neutral,
            "names": tuple(names),
            "label": label,
            "matrices": None if matrices is None else _table.read_only(matrices),
            "permutations": None if permutations is None else _table.read_only(permutations),
            "_hash": hash(table.tobytes()),
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"A group does not change: cannot set `{name}`. Build another one.")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"A group does not change: cannot delete `{name}`. Build another one.")

    def __reduce__(self) -> tuple:
        # The hash of bytes differs between processes, so a pickled group is built anew rather than copied.
        return _rebuild, (self.table, self.names, self.label, self.matrices, self.permutations)

    def __hash__(self) -> int:
        return self._hash  # type: ignore[attr-defined]

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, FiniteGroup) and np.array_equal(self.table, other.table))

    def __repr__(self) -> str:
        names = self.names if self.order <= 12 else (*self.names[:8], "…")
        return f"<{self.label}, order {self.order}: {' '.join(names)}>"

    @property
    def order(self) -> int:
        """The number of elements."""
        return len(self.table)

    @property
    def is_abelian(self) -> bool:
        """Whether gh = hg for all elements."""
        return bool((self.table == self.table.T).all())

    @property
    def generators(self) -> tuple[int, ...]:
        """A small set of elements that generates the group.

        >>> from ntk_equiv import groups
        >>> groups.dihedral(4).generators
        (1, 4)
        """
        return _table.generators(self.table)

    @property
    def element_orders(self) -> tuple[int, ...]:
        """The least k > 0 with gᵏ = e, for each element.

        >>> from ntk_equiv import groups
        >>> groups.cyclic(6).element_orders
        (1, 6, 3, 2, 3, 6)
        """
        return tuple(_table.element_orders(self.table).tolist())

    def element(self, g: Any, argument: str = "g") -> int:
        """Return `g` as an `int`, if it is an element of this group.

        >>> from ntk_equiv import groups
        >>> groups.cyclic(4).element(7)
        Traceback (most recent call last):
        ...
        ValueError: `g` must be an element of cyclic(4), an integer from 0 to 3, got 7. Reduce it to that range first.
        """
        whole = isinstance(g, int | np.integer) and not isinstance(g, bool)
        if not whole or not 0 <= g < self.order:
            expected = f"an element of {self.label}, an integer from 0 to {self.order - 1}"
            fix = "Reduce it to that range first." if whole else "Elements of a finite group are plain integers."
            raise refusal(argument, expected=expected, got=repr(g), fix=fix)
        return int(g)

    def conjugacy_classes(self) -> tuple[tuple[int, ...], ...]:
        """The classes {hgh⁻¹ : h ∈ G}: the identity's first, then by smallest member.

        >>> from ntk_equiv import groups
        >>> groups.dihedral(4).conjugacy_classes()
        ((0,), (1, 3), (2,), (4, 6), (5, 7))
        """
        labels = _table.conjugacy_labels(self.table)
        return tuple(tuple(np.flatnonzero(labels == k).tolist()) for k in range(labels.max() + 1))

    def characters(self) -> Complex[np.ndarray, "irreps classes"]:
        """The character table: χ(g) = tr σ(g) for each irrep (row) and conjugacy class (column).

        Returns:
            Numbers in the order of `irreps()` and `conjugacy_classes()`.

        Example:
            >>> from ntk_equiv import groups
            >>> groups.dihedral(4).characters().real.astype(int)
            array([[ 1,  1,  1,  1,  1],
                   [ 1,  1,  1, -1, -1],
                   [ 1, -1,  1,  1, -1],
                   [ 1, -1,  1, -1,  1],
                   [ 2,  0, -2,  0,  0]])
        """
        representatives = [members[0] for members in self.conjugacy_classes()]
        return _irreps.characters(_cached_irreps(self))[:, representatives]

    def irreps(self) -> list[np.ndarray]:
        """All irreducible unitary representations, as read-only arrays [order, d, d].

        They are real orthogonal (and of real dtype) where a real form exists, complex otherwise. The trivial one comes
        first. The others are sorted by dimension, then by decreasing real part of the character, element by element,
        so low frequencies come first and conjugate irreps are neighbours. They are computed once per table.
        Homomorphism, Schur orthogonality and Σd² = order are checked to 1e-11 before the first result is returned.

        Returns:
            One array per irrep; `irrep_types()` lists their types.

        Example:
            >>> from ntk_equiv import groups
            >>> [sigma.shape[1] for sigma in groups.polyhedral("O").irreps()]
            [1, 1, 2, 3, 3]
            >>> groups.cyclic(4).irreps()[1][:, 0, 0]
            array([ 1.+0.j,  0.+1.j, -1.+0.j,  0.-1.j])
        """
        return list(_cached_irreps(self))

    def irrep_types(self) -> tuple[IrrepType, ...]:
        """Frobenius–Schur indicator (1 real, 0 complex, −1 quaternionic) and conjugate partner of each irrep.

        Example:
            >>> from ntk_equiv import groups
            >>> groups.cyclic(3).irrep_types()[1]
            IrrepType(indicator=0, conjugate=2)
            >>> [kind.indicator for kind in groups.quaternion().irrep_types()]
            [1, 1, 1, 1, -1]
        """
        return _irreps.irrep_types(self.table, _cached_irreps(self))

    def subgroup(self, elements: Iterable[int], /) -> "Subgroup":
        """The subgroup generated by `elements`, with its embedding in this group.

        Args:
            elements: generators, or all elements, of the subgroup.

        Example:
            >>> from ntk_equiv import groups
            >>> groups.dihedral(4).subgroup([2, 4])
            Subgroup(group=<subgroup of dihedral(4), order 4: e r2 s r2s>, embedding=(0, 2, 4, 6))
        """
        instance(elements, Iterable, "elements", expected="several elements", fix="List generators, such as [1].")
        return _subgroup(self, [self.element(g, "elements") for g in elements])

    def cyclic_subgroups(self) -> tuple["Subgroup", ...]:
        """The subgroups generated by one element, each once, by increasing order.

        Example:
            >>> from ntk_equiv import groups
            >>> [H.embedding for H in groups.klein().cyclic_subgroups()]
            [(0,), (0, 1), (0, 2), (0, 3)]
        """
        subgroups = {small.embedding: small for small in (_subgroup(self, [g]) for g in range(self.order))}
        return tuple(subgroups[key] for key in sorted(subgroups, key=lambda key: (len(key), key)))


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Subgroup:
    """A subgroup as a group of its own, with its embedding in the larger group.

    Attributes:
        group: the subgroup, its elements numbered from 0 in the order of the larger group.
        embedding: the element of the larger group that each element of `group` is.

    Example:
        >>> from ntk_equiv import groups
        >>> turns = groups.dihedral(4).subgroup([1])            # what a quarter turn generates
        >>> turns.group.order, turns.embedding
        (4, (0, 1, 2, 3))
    """

    group: FiniteGroup
    embedding: tuple[int, ...]


def _subgroup(group: FiniteGroup, elements: list[int]) -> Subgroup:
    embedding = _table.closure(group.table, elements)
    table = np.searchsorted(embedding, group.table[np.ix_(embedding, embedding)])
    small = FiniteGroup(
        table,
        names=[group.names[g] for g in embedding],
        label=f"subgroup of {group.label}",
        matrices=None if group.matrices is None else group.matrices[embedding],
        permutations=None if group.permutations is None else group.permutations[embedding],
    )
    return Subgroup(small, tuple(embedding.tolist()))


def _rebuild(
    table: np.ndarray,
    names: tuple[str, ...],
    label: str,
    matrices: np.ndarray | None,
    permutations: np.ndarray | None,
) -> FiniteGroup:
    return FiniteGroup(table, names=names, label=label, matrices=matrices, permutations=permutations)


@functools.lru_cache(maxsize=256)
def _cached_irreps(group: FiniteGroup) -> tuple[np.ndarray, ...]:
    return _irreps.irreps(group.table)


def check_finite_group(value: Any, argument: str = "group") -> FiniteGroup:
    """Return `value`, if it is a finite group."""
    fix = "Make one with `groups.cyclic(4)` and the like; a finite subgroup of a continuous one with its `finite`."
    return instance(value, FiniteGroup, argument, expected="a finite group", fix=fix)
