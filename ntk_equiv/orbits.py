"""Augmented data: every training sample together with its images under the group.

From n samples x_i with labels y_i, and elements g of a group,

    x_(g,i) = ρ_X(g) x_i,     y_(g,i) = ρ_Y(g) y_i,     index (g, i) ↦ g · n + i.

Acting with g on the whole set only permutes it, ρ_X(g) x_(h,i) = x_(gh,i). In code and in the paper's symbols

    train.x, train.y              x_(g,i) and y_(g,i), at g · n + i
    train.permutation(g)          π_g(h, i) = (gh, i),   x[π_g] = ρ_X(g) x
    train.permutation_matrix(g)   Π(g) = 1[π_g],   Π(g) Y = ρ_Y(g) Y,   so that Π(g)Π(h) = Π(hg)
    train.stabilizers()[i]        {g ≠ e : ρ_X(g) x_i = x_i}

where g in an index counts the elements that augment, in the order in which they were given.

`augment` makes such an `AugmentedSet`. Nothing is transformed before `train.x` or `train.y` is asked for.
`augment_batches` goes through the same samples in random order, a batch at a time: an epoch is a random permutation of
all pairs (g, i), or of all i with an element g drawn for each.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Bool, Inexact, Int, Shaped

from ntk_equiv._check import boolean, is_concrete, numeric, positive_integer, random_key, real_array, refusal
from ntk_equiv._typing import Array, Inputs
from ntk_equiv.groups import ContinuousGroup, FiniteGroup
from ntk_equiv.reps import Representation, check_actions

# What else is defined here without an underscore is for the parts above this one, not for users.
__all__ = ["AugmentedSet", "augment", "augment_batches"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class AugmentedSet:
    """A data set and the group that augments it; made by `augment`. A pytree, with the base samples as leaves.

    Attributes:
        base_x: the n samples, arrays with a common first axis.
        base_y: their labels, [n] or [n, ..., channels].
        matrices: for a continuous group, the elements that augment, [count, d, d]; else None.
        rep_x: how the group acts on the samples.
        rep_y: how it acts on the labels.
        elements: for a finite group, the elements that augment; else None.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import augment, groups, reps
        >>> train = augment(jnp.array([[1.0, 2.0]]), jnp.array([3.0]), reps.regular(groups.cyclic(2)))
        >>> train.x.tolist(), train.y.tolist(), train.n, train.order
        ([[1.0, 2.0], [2.0, 1.0]], [3.0, 3.0], 1, 2)
    """

    # The leaves have no narrower types, because JAX also fills them with shapes, axes and placeholders.
    base_x: Inputs
    base_y: Any
    matrices: Any
    rep_x: Representation = dataclasses.field(metadata={"static": True})
    rep_y: Representation = dataclasses.field(metadata={"static": True})
    elements: tuple[int, ...] | None = dataclasses.field(metadata={"static": True})

    def __repr__(self) -> str:
        return f"<augmented set: {self.n} samples under {self.order} elements of {self.group.label}>"

    @property
    def group(self) -> FiniteGroup | ContinuousGroup:
        """The group."""
        return self.rep_x.group

    @property
    def n(self) -> int:
        """The number of base samples."""
        return self.base_y.shape[0]

    @property
    def order(self) -> int:
        """The number of elements that augment: all of the group, unless some were chosen."""
        return len(self.matrices) if self.elements is None else len(self.elements)

    @property
    def size(self) -> int:
        """The number of samples of the augmented set, order · n."""
        return self.order * self.n

    @property
    def x(self) -> Inputs:
        """The augmented samples, [order · n, ...]; sample i under element number g is at g · n + i."""
        return jax.tree.map(_join_axes, self.rep_x.orbit(loaded(self.base_x), self._augmenting))

    @property
    def y(self) -> Shaped[Array, "{self.size} ..."]:
        """The augmented labels, in the same order."""
        images = self.rep_y.orbit(with_channel_axis(loaded(self.base_y)), self._augmenting)
        return _join_axes(images).reshape(-1, *self.base_y.shape[1:])

    def permutation(self, g: ArrayLike, /) -> Int[Array, "{self.size}"]:
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

    def permutation_matrix(self, g: ArrayLike, /) -> Inexact[Array, "{self.size} {self.size}"]:
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
        """The base samples that some element other than the identity leaves fixed, with these elements.

        Such samples appear in the augmented set more than once, which makes its Gram matrix singular.

        Example:
            >>> import jax.numpy as jnp
            >>> from ntk_equiv import augment, groups, reps
            >>> x = jnp.array([[1., 2., 3., 4.], [1., 2., 1., 2.], [5., 5., 5., 5.]])
            >>> augment(x, jnp.zeros(3), reps.regular(groups.cyclic(4))).stabilizers()
            {1: (2,), 2: (1, 2, 3)}
        """
        if self.elements is None or not isinstance(self.group, FiniteGroup):
            fix = "Almost no element of a continuous group fixes a sample."
            raise refusal("stabilizers", expected="asked of a finite group", got=self.group, fix=fix)
        base_x = loaded(self.base_x)
        images = self.rep_x.orbit(base_x, self._augmenting)
        fixed = np.all([*map(_is_fixed, jax.tree.leaves(base_x), jax.tree.leaves(images))], axis=0)
        others = [(row, g) for row, g in enumerate(self.elements) if g != self.group.identity]
        fixing = {i: tuple(g for row, g in others if fixed[row, i]) for i in range(self.n)}
        return {i: elements for i, elements in fixing.items() if elements}

    @property
    def _augmenting(self) -> ArrayLike:
        """The elements that augment, as one array."""
        return self.matrices if self.elements is None else np.array(self.elements)

    def _places(self) -> np.ndarray:
        """The row of gh for every g of the group and every h that augments, −1 where gh does not augment."""
        group, augmenting = self.group, self.elements
        if augmenting is None or not isinstance(group, FiniteGroup) or not _is_subgroup(group, augmenting):
            got = f"a sample of {group}" if augmenting is None else f"the elements {augmenting}"
            fix = "A subset that is not a subgroup has no permutations: acting on it leads out of the augmented set."
            raise refusal("elements", expected="a subgroup", got=got, fix=fix)
        rows = np.full(group.order, -1, dtype=np.int32)
        rows[list(augmenting)] = np.arange(self.order)
        return rows[group.table[:, list(augmenting)]]


def augment(
    x: Inputs,
    y: ArrayLike | Sequence,
    rep_x: Representation,
    rep_y: Representation | None = None,
    *,
    elements: ArrayLike | Sequence | None = None,
) -> AugmentedSet:
    """The data set of all images of the samples under the group, with labels that transform along.

    Args:
        x: samples, arrays (or a graph) with a common first axis of size n.
        y: labels, [n] or [n, ..., channels].
        rep_x: how the group acts on the samples.
        rep_y: how it acts on the labels; they are invariant unless given.
        elements: some elements instead of all, for random augmentation: integers of a finite group, or matrices
            [count, d, d] of a continuous one, for which they are required.

    Returns:
        The augmented set, with `.x` and `.y` of size order · n, permutations and stabilizers.

    Raises:
        ValueError: x, y and the representations do not fit together.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import augment, groups, reps
        >>> train = augment(jnp.array([[1., 2.], [3., 4.]]), jnp.array([5., 6.]), reps.regular(groups.cyclic(2)))
        >>> train
        <augmented set: 2 samples under 2 elements of cyclic(2)>
        >>> train.x.tolist()
        [[1.0, 2.0], [3.0, 4.0], [2.0, 1.0], [4.0, 3.0]]
        >>> train.y.tolist()
        [5.0, 6.0, 5.0, 6.0]
    """
    x, y, rep_x, rep_y = _check_data_and_actions(x, y, rep_x, rep_y)
    chosen = rep_x.elements(elements)
    if isinstance(rep_x.group, ContinuousGroup):
        return AugmentedSet(x, y, chosen, rep_x, rep_y, None)
    if not is_concrete(chosen):
        fix = "Shapes and permutations depend on which elements augment: choose them outside of jit."
        raise refusal("elements", expected="known integers", got="traced ones", fix=fix)
    return AugmentedSet(x, y, None, rep_x, rep_y, tuple(chosen.tolist()))


def augment_batches(
    x: Inputs,
    y: ArrayLike | Sequence,
    rep_x: Representation,
    rep_y: Representation | None = None,
    *,
    batch_size: int,
    key: jax.Array,
    epochs: int | None = None,
    random: bool = False,
) -> Iterator[tuple[Inputs, jax.Array]]:
    """Batches of augmented data in random order, made when they are needed.

    Every epoch contains every sample under every element of the group exactly once: it is `augment(...)`, shuffled.
    With `random=True` it contains every sample once, under an element drawn for it from the Haar measure. A continuous
    group needs `random=True`. The last batch of an epoch is smaller if the batch size does not divide the epoch.

    Args:
        x: samples, as for `augment`.
        y: labels.
        rep_x: how the group acts on the samples.
        rep_y: how it acts on the labels; they are invariant unless given.
        batch_size: how many augmented samples make a batch.
        key: a JAX random key.
        epochs: how many; without end unless given.
        random: draw one element for each sample instead of going through all.

    Returns:
        An iterator over pairs (x, y).

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from ntk_equiv import groups, reps
        >>> from ntk_equiv.orbits import augment_batches
        >>> rep = reps.regular(groups.cyclic(3))
        >>> batches = augment_batches(jnp.eye(3)[:2], jnp.zeros(2), rep, batch_size=4, key=jax.random.key(0), epochs=1)
        >>> [x.shape for x, y in batches]
        [(4, 3), (2, 3)]
    """
    x, y, rep_x, rep_y = _check_data_and_actions(x, y, rep_x, rep_y)
    positive_integer(batch_size, "batch_size")
    random_key(key)
    epochs = None if epochs is None else positive_integer(epochs, "epochs")
    boolean(random, "random")
    if isinstance(rep_x.group, ContinuousGroup) and not random:
        fix = "Pass random=True, or augment by a finite subgroup."
        raise refusal("random", expected=f"True for {rep_x.group}", got=random, fix=fix)
    # A generator of its own, so that bad arguments are refused by the call and not by the first batch.
    return _generate_batches((x, y), (rep_x, rep_y), batch_size, key, epochs, random)


def _generate_batches(
    data: tuple[Inputs, jax.Array],
    actions: tuple[Representation, Representation],
    batch_size: int,
    key: jax.Array,
    epochs: int | None,
    random: bool,
) -> Iterator[tuple[Inputs, jax.Array]]:
    (rep_x, rep_y), n = actions, data[1].shape[0]
    group = rep_x.group

    @jax.jit
    def make_batch(data: tuple, elements: jax.Array, samples: jax.Array) -> tuple:
        x, y = jax.tree.map(lambda leaf: leaf[samples], data)
        return move_each(rep_x, rep_y, elements, x, y)

    for epoch in range(epochs) if epochs is not None else itertools.count():
        shuffling, drawing = jax.random.split(jax.random.fold_in(key, epoch))
        if random or isinstance(group, ContinuousGroup):
            samples = jax.random.permutation(shuffling, n)
            elements = draw_elements(group, drawing, n)
        else:
            elements, samples = jnp.divmod(jax.random.permutation(shuffling, group.order * n), n)
        for start in range(0, len(samples), batch_size):
            part = slice(start, start + batch_size)
            yield make_batch(data, elements[part], samples[part])


def move_each(
    rep_x: Representation, rep_y: Representation, elements: jax.Array, x: Inputs, y: jax.Array
) -> tuple[Inputs, jax.Array]:
    """ρ_X(g) x_i and ρ_Y(g) y_i, every sample under an element of its own."""
    moved = jax.vmap(rep_y)(elements, with_channel_axis(y))
    return jax.vmap(rep_x)(elements, x), moved.reshape(y.shape)


def draw_elements(group: FiniteGroup | ContinuousGroup, key: jax.Array, count: int) -> jax.Array:
    """Elements drawn from the Haar measure: integers [count], or matrices [count, n, n] of a continuous group."""
    if isinstance(group, ContinuousGroup):
        return group.sample(key, count)
    return jax.random.randint(key, (count,), 0, group.order)


def with_channel_axis(y: jax.Array) -> jax.Array:
    """Labels [n] as labels [n, 1] of one channel."""
    return y[:, None] if y.ndim == 1 else y


def is_read_on_demand(leaf: Any) -> bool:
    """Whether samples are somewhere else than in memory: a memory-mapped array, or one of another library.

    >>> is_read_on_demand(np.ones(3)), is_read_on_demand(jnp.ones(3)), is_read_on_demand(3.0)
    (False, False, False)
    """
    if isinstance(leaf, np.ndarray):
        return isinstance(leaf, np.memmap)
    has_index = all(hasattr(leaf, name) for name in ("shape", "dtype", "__getitem__"))
    # The index of a series of pandas is not the number of the sample.
    return has_index and not isinstance(leaf, jax.Array | np.generic) and not hasattr(leaf, "iloc")


def loaded(tree: Any) -> Any:
    """Samples or labels as JAX arrays, read if they are not in memory."""
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)) if is_read_on_demand(leaf) else leaf, tree)


def samples_and_labels(train: Any, as_array: Callable[[Any], Any] = jnp.asarray) -> tuple[Inputs, Any]:
    """Return samples and labels of data that are not augmented, if they are a pair.

    Args:
        train: the pair.
        as_array: what makes an array of samples and labels.
    """
    if not isinstance(train, tuple | list) or len(train) != 2:
        fix = "Pass `augment(x, y, rep_x)`, or the pair `(x, y)`."
        expected = "an augmented set or a pair of samples and labels"
        raise refusal("train", expected=expected, got=type(train).__name__, fix=fix)
    x, y = train
    return _check_samples_and_labels(x, y, as_array)


def why_no_subgroup(group: FiniteGroup | ContinuousGroup, elements: tuple[int, ...] | None) -> str | None:
    """Say what augments if it is no finite group; None if it is one. Without `elements` they were drawn at random."""
    if elements is None or not isinstance(group, FiniteGroup):
        return f"a sample of {group.label}, which is no subgroup"
    if not _is_subgroup(group, elements):
        return f"the elements {elements} of {group.label}, which are no subgroup"
    return None


def _check_data_and_actions(
    x: Any, y: Any, rep_x: Any, rep_y: Any
) -> tuple[Inputs, jax.Array, Representation, Representation]:
    """Return samples and labels as arrays, and both actions, if they fit together."""
    # Data that are not in memory stay where they are, until somebody asks for them.
    x, y = _check_samples_and_labels(x, y, lambda leaf: leaf if is_read_on_demand(leaf) else jnp.asarray(leaf))
    rep_x, rep_y = check_actions(rep_x, rep_y)
    some = 0 if isinstance(rep_x.group, FiniteGroup) else jnp.eye(rep_x.group.n)
    shapes_x, shapes_y = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, _dtype_of(leaf)), (x, y))
    jax.eval_shape(lambda x: rep_x(some, x), shapes_x)
    try:
        jax.eval_shape(lambda y: rep_y(some, with_channel_axis(y)), shapes_y)
    except ValueError as error:
        fix = f"Give labels an axis of channels at the end, and choose the action that fits them. In detail: {error}"
        raise refusal("y", expected=f"labels that {rep_y} acts on", got=f"shape {y.shape}", fix=fix) from None
    return x, y, rep_x, rep_y


def _dtype_of(leaf: Any) -> Any:
    return jax.dtypes.canonicalize_dtype(leaf.dtype) if is_read_on_demand(leaf) else leaf.dtype


def _check_samples_and_labels(x: Any, y: Any, as_array: Callable[[Any], Any]) -> tuple[Inputs, Any]:
    """Return samples and labels as arrays, if every sample has a label."""
    given, x, y = x, jax.tree.map(as_array, numeric(x, "x")), as_array(real_array(y, "y"))
    lengths = {leaf.shape[:1] for leaf in jax.tree.leaves(x)}
    if lengths != {y.shape[:1]} or not y.ndim:
        # A list of samples is a pytree with as many leaves, which is hardly ever meant.
        is_list = isinstance(given, list | tuple) and not hasattr(given, "_fields") and len(given) == len(y) > 0
        if y.ndim and is_list:
            got = f"a {type(given).__name__} of {len(given)}"
            fix = "Stack them along a new first axis: `jnp.stack(x)`, or `jnp.asarray(x)` for numbers."
            raise refusal("x", expected="one array whose first axis counts the samples", got=got, fix=fix)
        fix = "Their first axes count the samples."
        raise refusal("y", expected=f"labels for all samples of x {sorted(lengths)}", got=f"shape {y.shape}", fix=fix)
    return x, y


def _join_axes(leaf: Array) -> Array:
    """[order, n, ...] as [order · n, ...]."""
    return leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:])


def _is_fixed(samples: Shaped[Array, "n ..."], images: Shaped[Array, "order n ..."]) -> Bool[np.ndarray, "order n"]:
    """Whether each sample equals each of its images up to rounding."""
    n, eps = len(samples), jnp.finfo(samples.dtype).eps if jnp.issubdtype(samples.dtype, jnp.inexact) else 0
    flat, moved = np.asarray(samples).reshape(n, -1), np.asarray(images).reshape(len(images), n, -1)
    return np.abs(moved - flat).max(axis=2) <= 100 * float(eps) * np.abs(flat).max(axis=1)


def _is_subgroup(group: FiniteGroup, elements: tuple[int, ...]) -> bool:
    return sorted(elements) == list(group.subgroup(elements).embedding)
