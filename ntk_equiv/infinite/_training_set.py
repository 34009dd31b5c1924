"""The training set as a function on the group.

A base sample x_i under an element g is the sample (g, i); its output at position p is the row (g, i, p) of the Gram
matrix. In the frame that moves with the element, kernels and labels are

    u(g, i) = Θ(x, ρ_X(g)x_i) ρ_K(g),        v(g, i) = ρ_K(g)ᵀ ρ_Y(g) y_i,

with ρ_K the action on positions. By Theorem "Kernel transformation" the Gram matrix of the whole set is then
group-circulant, with Φ(k) = Θ(x_i, ρ_X(k)x_j) ρ_K(k). Data without a group are the case of a single element.
"""

import dataclasses
import math
from abc import ABC, abstractmethod
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv import reps
from ntk_equiv._check import is_concrete, refusal
from ntk_equiv._gram import check_samples
from ntk_equiv._positions import joint
from ntk_equiv._typing import Inputs, SplitKernel
from ntk_equiv.groups import FiniteGroup
from ntk_equiv.orbits import AugmentedSet, samples_and_labels, with_channel_axis
from ntk_equiv.reps import GridAction, Representation


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class TrainingSet:
    """Base samples and labels, and the group by which the computation is reduced.

    Attributes:
        x: base samples.
        y: their labels, [n] or [n, ..., channels].
        rep_x: how the group acts on samples; None if the computation uses no group.
        rep_y: how it acts on labels; None likewise.
        places: the position of each group element in the order that the caller knows; None if the orders agree.
        reason: why the group is used, or why not.
    """

    x: Any
    y: Any
    rep_x: Representation | None = dataclasses.field(default=None, metadata={"static": True})
    rep_y: Representation | None = dataclasses.field(default=None, metadata={"static": True})
    places: tuple[int, ...] | None = dataclasses.field(default=None, metadata={"static": True})
    reason: str = dataclasses.field(default="it was asked for", metadata={"static": True})

    @property
    def method(self) -> str:
        """Whether the computation is reduced by the group, or dense."""
        return "dense" if self.rep_x is None else "reduced"

    @cached_property
    def group(self) -> FiniteGroup | None:
        """The group by which the computation is reduced."""
        return None if self.rep_x is None else self.rep_x.group  # type: ignore[return-value]

    @cached_property
    def order(self) -> int:
        """The number of group elements."""
        return 1 if self.group is None else self.group.order

    @property
    def n(self) -> int:
        """The number of base samples."""
        return self.y.shape[0]

    @property
    def positions(self) -> tuple[int, ...]:
        """The grid of the outputs, () for vectors."""
        return self.y.shape[1:-1]

    @property
    def channels(self) -> int:
        """The number of output channels."""
        return 1 if self.y.ndim == 1 else self.y.shape[-1]

    @property
    def rows(self) -> int:
        """The number of rows of the Gram matrix for each element: base samples times positions."""
        return self.n * math.prod(self.positions)

    @property
    def size(self) -> int:
        """The number of rows of the whole Gram matrix."""
        return self.order * self.rows

    @property
    def grid(self) -> GridAction:
        """ρ_K."""
        return GridAction(self.positions) if self.rep_x is None else self.rep_x.spatial(self.positions)

    def samples(self, elements: tuple[int, ...] | None = None) -> Inputs:
        """Return the base samples under some elements, or all, [elements · n, ...]."""
        return self.x if self.rep_x is None else _move_samples(self.rep_x, self.x, elements)

    def labels(self) -> jax.Array:
        """Return v(g, i): labels in the frame of their element, [order, (i, p), channels]."""
        # Without the samples: known labels stay known if only those are traced.
        return _frame_labels(dataclasses.replace(self, x=None))

    def frame(self, values: jax.Array) -> jax.Array:
        """Return values at all samples in the order of `samples()` in the frame of their element, as `labels()`."""
        apart = values.reshape(self.order, self.n, *self.positions, -1)
        return self._move(apart, back=True).reshape(self.order, -1, apart.shape[-1])

    def unframe(self, values: jax.Array) -> jax.Array:
        """Return [..., order, (i, p), channels] as the caller knows labels: [..., order · n, *positions, channels]."""
        leading = values.shape[:-3]
        apart = values.reshape(-1, self.order, self.n, *self.positions, self.channels)
        moved = jax.vmap(self._move)(apart)
        if self.places is not None:
            moved = moved[:, np.argsort(self.places)]
        return moved.reshape(*leading, self.order * self.n, *self.y.shape[1:])

    def frame_kernel(self, kernel: jax.Array, elements: tuple[int, ...] | None = None) -> jax.Array:
        """Return kernels [m, elements · n, h, h', …] with `samples(elements)` as u [elements, (m, p), (i, p')]."""
        chosen = np.arange(self.order) if elements is None else np.array(elements)
        apart = kernel.reshape(kernel.shape[0], len(chosen), self.n, *kernel.shape[2:])
        apart = jnp.moveaxis(apart, 1, 0)
        if not self.grid.is_identity:
            apart = jax.vmap(self.grid.right)(self._inverse[chosen], apart)
        return jax.vmap(joint)(apart)

    def frame_element(self, kernel: jax.Array, element: Any) -> jax.Array:
        """Return kernels [m, n, h, h', …] with samples under one element as u [(m, p), (i, p')]."""
        if not self.grid.is_identity:
            kernel = self.grid.right(jnp.asarray(self._inverse)[element], kernel)
        return joint(kernel)

    @property
    def _inverse(self) -> np.ndarray:
        return np.zeros(1, dtype=int) if self.group is None else self.group.inverse

    def _move(self, values: jax.Array, back: bool = False) -> jax.Array:
        """Apply ρ_K(g), or its inverse, to values [order, n, *positions, channels]."""
        if self.grid.is_identity:
            return values
        axes = tuple(range(-1 - len(self.positions), -1))
        elements = self._inverse if back else np.arange(self.order)
        return jax.vmap(lambda g, v: self.grid.move(g, v, axes))(elements, values)


class EnsembleOnData(ABC):
    """What every infinite ensemble knows of its training set, and how it checks test samples against it.

    Attributes:
        train: the data, as they were given.
    """

    train: Any

    @property
    @abstractmethod
    def _data(self) -> TrainingSet: ...

    @property
    @abstractmethod
    def _kernel(self) -> SplitKernel: ...

    @property
    def method(self) -> str:
        """Whether the computation is "reduced" by the group, or "dense"."""
        return self._data.method

    @property
    def reason(self) -> str:
        """Why this method is used."""
        return self._data.reason

    @property
    def rep_x(self) -> Representation | None:
        """How the group that augments acts on samples; None for plain data."""
        return self.train.rep_x if isinstance(self.train, AugmentedSet) else None

    @property
    def rep_y(self) -> Representation | None:
        """How it acts on labels and outputs; None for plain data."""
        return self.train.rep_y if isinstance(self.train, AugmentedSet) else None

    def check_samples(self, x: Inputs, argument: str = "x") -> Inputs:
        """Return test samples as the kernel takes them; refuse what is unlike the samples of training."""
        x = check_samples(self._kernel, x, argument)
        shapes, known = ([leaf.shape[1:] for leaf in jax.tree.leaves(tree)] for tree in (x, self._data.x))
        if shapes != known:
            expected = f"samples like those of training, [m, {', '.join(map(str, known[0]))}]"
            fix = "Test samples have the features and positions of the training samples."
            got = f"samples [m, {', '.join(map(str, shapes[0]))}]"
            raise refusal(argument, expected=expected, got=got, fix=fix)
        return x


def check_outputs(values: jax.Array, data: TrainingSet, count: int) -> jax.Array:
    """Return outputs at `count` samples as [members, count, ..., channels]; refuse those not shaped like labels."""
    shape = (count, *data.y.shape[1:])
    if values.ndim > len(shape) + 1 or values.shape[max(values.ndim - len(shape), 0) :] != shape:
        inner = ", ".join(map(str, shape))
        expected = f"values [{inner}], or [members, {inner}] of many networks"
        fix = "They are outputs of the network, in the shape of the labels."
        raise refusal("f0", expected=expected, got=f"shape {values.shape}", fix=fix)
    many = values if values.ndim > len(shape) else values[None]
    return many if data.y.ndim > 1 else many[..., None]


@partial(jax.jit, static_argnames=("rep_x", "elements"))
def _move_samples(rep_x: Representation, x: Inputs, elements: tuple[int, ...] | None) -> Inputs:
    moved = rep_x.orbit(x, elements)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), moved)


@jax.jit
def _frame_labels(data: TrainingSet) -> jax.Array:
    y = with_channel_axis(data.y)
    return data.frame(y if data.rep_y is None else data.rep_y.orbit(y))


def plain_set(train: Any, reason: str = "it was asked for") -> TrainingSet:
    """Return the data without using their symmetry; an augmented set with all of its samples."""
    x, y = (train.x, train.y) if isinstance(train, AugmentedSet) else samples_and_labels(train)
    return TrainingSet(x, y, reason=reason)


def reduced_set(train: AugmentedSet, reason: str = "the kernel transforms under the group") -> TrainingSet:
    """Return an augmented set as its base samples and the group that augments it, which may be a subgroup."""
    elements = train.elements
    assert elements is not None
    if elements == tuple(range(train.rep_x.group.order)):  # type: ignore[union-attr]
        return TrainingSet(train.base_x, train.base_y, train.rep_x, train.rep_y, reason=reason)
    subgroup = train.rep_x.group.subgroup(elements)  # type: ignore[union-attr]
    rep_x, rep_y = reps.restrict(train.rep_x, subgroup), reps.restrict(train.rep_y, subgroup)
    places = tuple(elements.index(g) for g in subgroup.embedding)
    return TrainingSet(train.base_x, train.base_y, rep_x, rep_y, places, reason)


def check_labels(data: TrainingSet) -> None:
    """Refuse labels that cannot be fitted: none, no floating-point numbers, or not finite."""
    if not jnp.issubdtype(data.y.dtype, jnp.floating):
        fix = (
            "Convert them, for example with `y.astype(float)`; classes with `jax.nn.one_hot`, or train with the "
            "cross-entropy: `infinite.SampledEnsemble`."
        )
        raise refusal("y", expected="floating-point labels", got=f"dtype {data.y.dtype}", fix=fix, kind=TypeError)
    if data.n == 0:
        raise refusal("train", expected="at least one training sample", got="none", fix="Pass some.")
    if data.y.size == 0:
        fix = "Labels have at least one channel; leave the axis of channels out for one."
        raise refusal("y", expected="labels that are not empty", got=f"shape {data.y.shape}", fix=fix)
    if is_concrete(data.y) and not np.isfinite(data.y).all():
        first = int(np.argmin(np.isfinite(np.asarray(data.y)).reshape(data.n, -1).all(axis=1)))
        fix = "Remove or repair these samples."
        raise refusal("y", expected="finite", got=f"NaN or infinity, first in sample {first}", fix=fix)
