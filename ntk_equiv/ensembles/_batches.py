"""What a member sees at each step: everything, or a batch, augmented when it is needed.

    augmentation="full"     an epoch is every point under every element that augments, once, in an order of its own
    augmentation="random"   an epoch is every point once, under an element of the group drawn for it

Order and elements depend on the key of the member and the step alone. So members differ, and a run that was
interrupted goes on as if it had not been. A drawn element is Haar distributed and every member draws its own, which
makes the *expected* prediction exactly invariant (members that share a draw, or sets that always contain the identity,
do not).
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv._check import one_of, positive_integer, refusal
from ntk_equiv.orbits import AugmentedSet, draw_elements, move_each, samples_and_labels
from ntk_equiv.reps import Representation

Batch = tuple[Any, jax.Array, jax.Array | None]


@dataclasses.dataclass(frozen=True)
class Batches:
    """How batches are made from stored data; hashable.

    Attributes:
        points: how many points are stored.
        order: by how many elements they are augmented, 1 if they are not.
        batch_size: samples in a batch; None for all of them, in the order in which they are stored.
        random: whether elements are drawn.
        rep_x: the action on points; None if they are used as stored.
        rep_y: the action on labels.
    """

    points: int
    order: int
    batch_size: int | None
    random: bool
    rep_x: Representation | None = None
    rep_y: Representation | None = None

    @property
    def size(self) -> int:
        """Samples in an epoch."""
        return self.points * (1 if self.random else self.order)

    @property
    def per_epoch(self) -> int:
        """Steps in an epoch; the last batch may be smaller than the others."""
        return 1 if self.batch_size is None else -(-self.size // self.batch_size)

    def shuffled(self, key: jax.Array, step: Any) -> jax.Array:
        """The order of samples in the epoch of this step."""
        if self.batch_size is None:
            return jnp.zeros(0, jnp.int32)
        shuffling, _ = jax.random.split(key)
        order = jax.random.permutation(jax.random.fold_in(shuffling, step // self.per_epoch), self.size)
        return jnp.resize(order, (self.per_epoch * self.batch_size,)).astype(jnp.int32)

    def take(self, data: tuple, key: jax.Array, order: jax.Array, step: Any) -> Batch:
        """The batch of this step: inputs, labels, and weights 0 and 1 if some samples only fill it up."""
        weights = None
        if self.batch_size is None:
            chosen = jnp.arange(self.size, dtype=jnp.int32)
        else:
            start = (step % self.per_epoch) * self.batch_size
            chosen = jax.lax.dynamic_slice_in_dim(order, start, self.batch_size)
            if self.size % self.batch_size:
                place = start + jnp.arange(self.batch_size, dtype=jnp.int32)
                weights = (place < self.size).astype(jnp.float32)
        x, y, elements = data
        if self.rep_x is None:
            x, y = (x, y) if self.batch_size is None else jax.tree.map(lambda leaf: leaf[chosen], (x, y))
            return x, y, weights
        if self.random:
            _, drawing = jax.random.split(key)
            g, points = draw_elements(self.rep_x.group, jax.random.fold_in(drawing, step), len(chosen)), chosen
        else:
            place, points = jnp.divmod(chosen, self.points)
            g = jnp.asarray(elements)[place]
        assert self.rep_y is not None
        x, moved = move_each(self.rep_x, self.rep_y, g, *jax.tree.map(lambda leaf: leaf[points], (x, y)))
        return x, moved.astype(y.dtype), weights


def batches_of(train: Any, batch_size: int | None, augmentation: str) -> tuple[Batches, tuple]:
    """How to make batches of a training set, and the arrays (x, y, elements) that they are made from.

    Args:
        train: an augmented set, or a pair (x, y).
        batch_size: samples in a batch; None for all of them.
        augmentation: "full" or "random".
    """
    one_of(augmentation, ("full", "random"), "augmentation")
    random = augmentation == "random"
    data: tuple
    actions: tuple = ()
    order = 1
    if isinstance(train, AugmentedSet) and (random or batch_size is not None):
        elements = train.matrices if train.elements is None else np.array(train.elements)
        data, order, actions = (train.base_x, train.base_y, elements), train.order, (train.rep_x, train.rep_y)
    elif isinstance(train, AugmentedSet):
        data = train.x, train.y, None
    elif random:
        fix = "Pass `augment(x, y, rep_x)`, which knows the group."
        raise refusal("train", expected='an augmented set for augmentation="random"', got="a pair", fix=fix)
    else:
        data = *samples_and_labels(train), None
    # On the host: there they are sliced without a program being compiled for it.
    data = jax.tree.map(np.asarray, data)
    if not len(data[1]):
        raise refusal("train", expected="at least one sample", got="none", fix="Pass some.")
    found = Batches(len(data[1]), order, None, random, *actions)
    if batch_size is None:
        return found, data
    if positive_integer(batch_size, "batch_size") > found.size:
        fix = "Leave it out to train on everything in every step."
        raise refusal("batch_size", expected=f"at most the {found.size} samples there are", got=batch_size, fix=fix)
    return dataclasses.replace(found, batch_size=int(batch_size)), data
