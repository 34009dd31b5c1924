"""The record of a measured theorem: both sides of its equation compared, for all elements of a group.

    violation of g    max |left(g) − right(g)| over all entries
    scale             max of |left(g)| and |right(g)| over all entries and all g

A statement about several arrays (both kernels of a network) has one part for each, with its own scale. The part whose
violation is largest relative to its scale stands for the whole.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ntk_equiv._check import is_concrete, refusal
from ntk_equiv.groups import ContinuousGroup, FiniteGroup

Group = FiniteGroup | ContinuousGroup


@dataclasses.dataclass(frozen=True, repr=False)
class Violation:
    """How far the two sides of a statement are apart, over the elements of a group.

    Attributes:
        statement: what was checked.
        part: the array that was compared, such as "ntk".
        group: the label of the group.
        elements: the elements it was checked for; for a continuous group, their numbers among those drawn.
        names: their names.
        by_element: the largest violation for each element.
        entries: the entry of the arrays where it occurs, for each element.
        scale: the largest entry of either side, with which violations should be compared.
        parts: the records of all arrays that were compared; this record is the worst of them.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import groups, reps, stax, theorems
        >>> _, _, kernel_fn = stax.serial(stax.Conv(1, (1, 2)), stax.Flatten(), stax.Dense(1))
        >>> x = jnp.zeros((1, 3, 3, 1)).at[0, 0, 1].set(1.)
        >>> found = theorems.kernel_transformation(kernel_fn, reps.rot90(groups.dihedral(4)), x)
        >>> found
        <violation of at most 0.0833, 0.5 of the scale 0.167, worst for r>
        >>> found.holds(1e-9), found.name, found.indices
        (False, 'r', (0, 0))
    """

    statement: str
    part: str
    group: str
    elements: tuple[int, ...]
    names: tuple[str, ...]
    by_element: tuple[float, ...]
    entries: tuple[tuple[int, ...], ...]
    scale: float
    parts: tuple["Violation", ...] = ()

    def __repr__(self) -> str:
        worst = f", worst for {self.name}" if self.largest else ""
        return f"<violation of at most {self.largest:.3g}, {self.relative:.3g} of the scale {self.scale:.3g}{worst}>"

    def __str__(self) -> str:
        count = len(self.elements)
        checked = f"{self.statement}, checked for {count} element{'s' * (count != 1)} of {self.group}"
        if not self.largest:
            return f"{checked}: exact."
        size = f"off by at most {self.largest:.3g}, {self.relative:.3g} of the largest entry"
        where = f" at entry {self.indices}" if self.indices else ""
        each = ", ".join(f"{part.part} {part.relative:.3g}" for part in self.parts) if len(self.parts) > 1 else ""
        together = f" Relative to their scales: {each}." if each else ""
        return f"{checked}: {size}, worst for {self.name} (element {self.element}){where}.{together}"

    @property
    def largest(self) -> float:
        """The largest violation."""
        return self.by_element[self._worst]

    @property
    def relative(self) -> float:
        """The largest violation divided by the scale."""
        return self.largest / self.scale if self.scale else self.largest

    @property
    def element(self) -> int:
        """The element for which it occurs."""
        return self.elements[self._worst]

    @property
    def name(self) -> str:
        """The name of that element."""
        return self.names[self._worst]

    @property
    def indices(self) -> tuple[int, ...]:
        """The entry at which it occurs."""
        return self.entries[self._worst]

    def holds(self, tol: float, /) -> bool:
        """Return whether the largest violation is at most `tol` times the scale; False if it is not a number."""
        return _is_within(self.largest, tol * self.scale)

    def violating(self, tol: float, /) -> tuple[str, ...]:
        """The names of all elements whose violation is more than `tol` times the scale, in any of the parts.

        Example:
            >>> import jax.numpy as jnp
            >>> from ntk_equiv import groups, reps, stax, theorems
            >>> _, _, kernel_fn = stax.serial(stax.Conv(1, (1, 2)), stax.Flatten(), stax.Dense(1))
            >>> x = jnp.zeros((1, 3, 3, 1)).at[0, 0, 1].set(1.)
            >>> theorems.kernel_transformation(kernel_fn, reps.rot90(groups.cyclic(4)), x).violating(1e-9)
            ('r', 'r3')
        """
        parts = self.parts or (self,)
        within = [[_is_within(size, tol * part.scale) for size in part.by_element] for part in parts]
        return tuple(name for name, *fine in zip(self.names, *within, strict=True) if not all(fine))

    @property
    def _worst(self) -> int:
        return int(np.argmax(self.by_element))  # NaN counts as the largest


def _is_within(size: float, limit: float) -> bool:
    """Return whether a violation is finite and not too large: an infinite scale does not excuse an infinite one."""
    return bool(np.isfinite(size)) and size <= limit


def check_known(x: Any, argument: str) -> None:
    """Refuse what cannot be measured: values that are not known yet, or no samples at all."""
    if not is_concrete(x):
        fix = "A violation is a number on the host: measure it outside of jit, grad and vmap."
        raise refusal(argument, expected="known values", got="traced ones", fix=fix)
    if any(leaf.size == 0 for leaf in jax.tree.leaves(x) if hasattr(leaf, "size")):
        raise refusal(argument, expected="at least one sample", got="none", fix="Pass some.")


def iterate(group: Group, elements: Any) -> Iterable[Any]:
    """Return elements, as `Representation.elements` gives them, to loop over: `int` numbers, or matrices."""
    return elements.tolist() if isinstance(group, FiniteGroup) else elements


def compare(
    statements: Mapping[str, str],
    group: Group,
    elements: Any,
    sides: Iterable[tuple[Sequence[Any], Sequence[Any]]],
) -> Violation:
    """Compare both sides of statements for all elements.

    Args:
        statements: for each part its name and what is stated about it.
        group: the group.
        elements: as `Representation.elements` gives them.
        sides: for each element the left and the right sides, one array for each part.
    """
    rows = [[_compare_arrays(*pair) for pair in zip(left, right, strict=True)] for left, right in sides]
    if isinstance(group, FiniteGroup):
        numbers = tuple(int(g) for g in elements)
        names = tuple(group.names[g] for g in numbers)
    else:
        numbers = tuple(range(len(elements)))
        names = tuple(f"sample {number}" for number in numbers)
    parts = []
    for (part, statement), column in zip(statements.items(), zip(*rows, strict=True), strict=True):
        sizes, entries, scales = zip(*column, strict=True)
        parts.append(Violation(statement, part, group.label, numbers, names, sizes, entries, float(np.max(scales))))
    worst = parts[int(np.argmax([part.relative for part in parts]))]
    return dataclasses.replace(worst, parts=tuple(parts))


def _compare_arrays(left: Any, right: Any) -> tuple[float, tuple[int, ...], float]:
    """Return the largest difference of two arrays, where it is, and the largest entry."""
    left, right = (np.asarray(side) for side in (left, right))
    if not (np.issubdtype(left.dtype, np.inexact) and np.issubdtype(right.dtype, np.inexact)):
        left, right = left.astype(float), right.astype(float)  # small and unsigned integers do not subtract safely
    with np.errstate(invalid="ignore"):  # an infinity on both sides is a violation like any other
        difference = np.abs(left - right)
    where = np.unravel_index(difference.argmax(), difference.shape)
    scale = max(float(np.abs(left).max()), float(np.abs(right).max()))
    return float(difference[where]), tuple(int(i) for i in where), scale
