"""The augmented set: base points, and the elements that move them.

    x_(g,i) = ρ_X(g) x_i        `train.x`, at g · n + i
    y_(g,i) = ρ_Y(g) y_i        `train.y`, likewise
    π_g(h, i) = (gh, i)         `train.permutation(g)`
    {g ≠ e : ρ_X(g) x_i = x_i}  `train.stabilizers()[i]`

where g counts the elements that augment, in the order in which they were given.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Inexact, Int, Shaped

from ntk_equiv._check import is_concrete, refusal
from ntk_equiv._typing import Array
from ntk_equiv.groups import ContinuousGroup, FiniteGroup
from ntk_equiv.orbits._given import fitting, with_channel_axis
from ntk_equiv.reps import Representation


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class AugmentedSet:
    """A data set and the group that augments it; made by `augment`. A pytree, with the base points as leaves.

    Attributes:
        base_x: the n points, arrays with a common first axis.
        base_y: their labels, [n] or [n, ..., channels].
        matrices: for a continuous group, the elements that augment, [count, d, d]; else None.
        rep_x: how the group acts on the points.
        rep_y: how it acts on the labels.
        elements: for a finite group, the elements that augment; else None.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import augment, groups, reps
        >>> train = augment(jnp.array([[1.0, 2.0]]), jnp.array([3.0]), reps.regular(groups.cyclic(2)))
        >>> train.x.tolist(), train.y.tolist(), train.n, train.order
        ([[1.0, 2.0], [2.0, 1.0]], [3.0, 3.0], 1, 2)
    """

    base_x: Any
    base_y: Any
    matrices: Any
    rep_x: Representation = dataclasses.field(metadata={"static": True})
    rep_y: Representation = dataclasses.field(metadata={"static": True})
    elements: tuple[int, ...] | None = dataclasses.field(metadata={"static": True})

    def __repr__(self) -> str:
        return f"<augmented set: {self.n} points under {self.order} elements of {self.group.label}>"

    @property
    def group(self) -> FiniteGroup | ContinuousGroup:
        """The group."""
        return self.rep_x.group

    @property
    def n(self) -> int:
        """The number of base points."""
        return self.base_y.shape[0]

    @property
    def order(self) -> int:
        """The number of elements that augment: all of the group, unless some were chosen."""
        return len(self.matrices) if self.elements is None else len(self.elements)

    @property
    def size(self) -> int:
        """The number of points of the augmented set, order · n."""
        return self.order * self.n

    @property
    def x(self) -> Any:
        """The augmented points, [order · n, ...]; point i under element number g is at g · n + i."""
        return jax.tree.map(_joined, self.rep_x.orbit(self.base_x, self._chosen))

    @property
    def y(self) -> Shaped[Array, "{self.size} ..."]:
        """The augmented labels, in the same order."""
        moved = self.rep_y.orbit(with_channel_axis(self.base_y), self._chosen)
        return _joined(moved).reshape(-1, *self.base_y.shape[1:])

    def permutation(self, g: Any, /) -> Int[Array, "{self.size}"]:
        """π_g: the integers with `x[permutation(g)] == rep_x(g, x)` for the augmented x, and likewise for y.

        Args:
            g: an element of the group; of the subgroup, if the set is augmented by one.

        Raises:
            ValueError: the set is augmented by elements that are no subgroup, or g is not among them.

        Example:
            >>> import jax.numpy as jnp
            >>> from ntk_equiv import augment, groups, reps
            >>> train = augment(jnp.array([[1., 2.]]), jnp.zeros(1), reps.regular(groups.cyclic(2)))
            >>> train.permutation(1).tolist()
            [1, 0]
        """
        places = self._places()
        if is_concrete(g):
            g = self.group.element(g.item() if hasattr(g, "item") else g)  # type: ignore[union-attr]
            if places[g, 0] < 0:
                fix = "Only these elements map the augmented set to itself."
                raise refusal("g", expected=f"one of the elements {self.elements}", got=g, fix=fix)
        moved = jnp.asarray(places)[g]
        return (moved[:, None] * self.n + jnp.arange(self.n, dtype=moved.dtype)[None, :]).reshape(-1)

    def permutation_matrix(self, g: Any, /) -> Inexact[Array, "{self.size} {self.size}"]:
        """Π(g), the rows of the identity in the order π_g: Π(g) Y = ρ_Y(g) Y, and Π(g)Π(h) = Π(hg).

        For labels with several axes Π(g) acts on the first.

        Example:
            >>> import jax.numpy as jnp
            >>> from ntk_equiv import augment, groups, reps
            >>> train = augment(jnp.eye(3)[:1], jnp.zeros(1), reps.regular(groups.cyclic(3)))
            >>> train.permutation_matrix(1).tolist()
            [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
        """
        dtype = self.base_y.dtype if jnp.issubdtype(self.base_y.dtype, jnp.inexact) else float
        return jnp.eye(self.size, dtype=dtype)[self.permutation(g)]

    def stabilizers(self) -> dict[int, tuple[int, ...]]:
        """The base points that some element other than the identity leaves fixed, with these elements.

        They appear in the augmented set more than once, which makes its Gram matrix singular.

        Example:
            >>> import jax.numpy as jnp
            >>> from ntk_equiv import augment, groups, reps
            >>> x = jnp.array([[1., 2., 3., 4.], [1., 2., 1., 2.], [5., 5., 5., 5.]])
            >>> augment(x, jnp.zeros(3), reps.regular(groups.cyclic(4))).stabilizers()
            {1: (2,), 2: (1, 2, 3)}
        """
        if self.elements is None or not isinstance(self.group, FiniteGroup):
            fix = "Almost no element of a continuous group fixes a point."
            raise refusal("stabilizers", expected="asked of a finite group", got=self.group, fix=fix)
        images = self.rep_x.orbit(self.base_x, self._chosen)
        fixed = np.all([*map(_is_fixed, jax.tree.leaves(self.base_x), jax.tree.leaves(images))], axis=0)
        others = [(row, g) for row, g in enumerate(self.elements) if g != self.group.identity]
        found = {i: tuple(g for row, g in others if fixed[row, i]) for i in range(self.n)}
        return {i: members for i, members in found.items() if members}

    @property
    def _chosen(self) -> Any:
        return self.matrices if self.elements is None else np.array(self.elements)

    def _places(self) -> np.ndarray:
        """The row of gh for every g of the group and every h that augments, −1 where gh does not augment."""
        group, chosen = self.group, self.elements
        if chosen is None or not isinstance(group, FiniteGroup) or not _form_a_subgroup(group, chosen):
            got = f"a sample of {group}" if chosen is None else f"the elements {chosen}"
            fix = "A subset that is not a subgroup has no permutations: acting on it leads out of the augmented set."
            raise refusal("elements", expected="a subgroup", got=got, fix=fix)
        rows = np.full(group.order, -1, dtype=np.int32)
        rows[list(chosen)] = np.arange(self.order)
        return rows[group.table[:, list(chosen)]]


def augment(
    x: Any, y: Any, rep_x: Representation, rep_y: Representation | None = None, *, elements: Any = None
) -> AugmentedSet:
    """The data set of all images of the points under the group, with labels that transform along.

    Args:
        x: points, arrays (or a graph) with a common first axis of size n.
        y: labels, [n] or [n, ..., channels].
        rep_x: how the group acts on the points.
        rep_y: how it acts on the labels; they are invariant unless given.
        elements: some elements instead of all, for random augmentation: integers of a finite group, or matrices
            [count, d, d] of a continuous one, which has to be given some.

    Returns:
        The augmented set, with `.x` and `.y` of size order · n, permutations and stabilizers.

    Raises:
        ValueError: x, y and the representations do not fit together.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import augment, groups, reps
        >>> train = augment(jnp.array([[1., 2.], [3., 4.]]), jnp.array([5., 6.]), reps.regular(groups.cyclic(2)))
        >>> train
        <augmented set: 2 points under 2 elements of cyclic(2)>
        >>> train.x.tolist()
        [[1.0, 2.0], [3.0, 4.0], [2.0, 1.0], [4.0, 3.0]]
        >>> train.y.tolist()
        [5.0, 6.0, 5.0, 6.0]
    """
    x, y, rep_y = fitting(x, y, rep_x, rep_y)
    chosen = rep_x.elements(elements)
    if isinstance(rep_x.group, ContinuousGroup):
        return AugmentedSet(x, y, chosen, rep_x, rep_y, None)
    if not is_concrete(chosen):
        fix = "Which elements augment decides about shapes and permutations: choose them outside of jit."
        raise refusal("elements", expected="known integers", got="traced ones", fix=fix)
    return AugmentedSet(x, y, None, rep_x, rep_y, tuple(chosen.tolist()))


def _joined(leaf: Array) -> Array:
    """[order, n, ...] as [order · n, ...]."""
    return leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:])


def _is_fixed(points: Shaped[Array, "n ..."], images: Shaped[Array, "order n ..."]) -> Bool[np.ndarray, "order n"]:
    """Whether each point equals each of its images up to rounding."""
    n, eps = len(points), jnp.finfo(points.dtype).eps if jnp.issubdtype(points.dtype, jnp.inexact) else 0
    flat, moved = np.asarray(points).reshape(n, -1), np.asarray(images).reshape(len(images), n, -1)
    return np.abs(moved - flat).max(axis=2) <= 100 * float(eps) * np.abs(flat).max(axis=1)


def _form_a_subgroup(group: FiniteGroup, elements: tuple[int, ...]) -> bool:
    return sorted(elements) == list(group.subgroup(elements).embedding)
