"""The data that a member sees at each step: all samples, or a batch, moved by the group when it is needed.

    augmentation="full"     an epoch is every base sample under every element, once, in an order of its own
    augmentation="random"   an epoch is every base sample once, under an element of the group drawn for it

If batches do not divide an epoch, the last one is filled up with samples that do not count. A network that normalises
by the statistics of a batch would count them. So networks with a state are trained on whole batches alone: an epoch
ends before the incomplete one. It leaves out the last samples of its order, which are others in each epoch.

Order and elements depend only on the key of the member and on the step. So members differ, and an interrupted run
continues as if it had not been interrupted. A drawn element is Haar distributed, and every member draws its own. This
makes the *expected* prediction exactly invariant. It would not be if members shared a draw, or if their sets always
contained the identity.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv._check import one_of, positive_integer, refusal
from ntk_equiv._typing import Inputs
from ntk_equiv.orbits import AugmentedSet, draw_elements, move_each, samples_and_labels
from ntk_equiv.reps import Representation

Data = tuple[Inputs, Any, Any]
"""Stored inputs, labels and elements; the elements are None if samples are used as they are stored."""

Batch = tuple[Inputs, jax.Array, jax.Array | None]
"""Inputs, labels, and a mask of 0 and 1 if some samples only fill up the batch."""

TrainingSet = AugmentedSet | tuple | list
"""An augmented set, or a pair `(x, y)`."""


@dataclasses.dataclass(frozen=True)
class Batches:
    """How batches are made from stored data; hashable.

    Attributes:
        stored: how many samples are stored.
        order: how many elements augment them; 1 if they are used as stored.
        batch_size: samples in a batch; None for all of them, in the order in which they are stored.
        random: whether elements are drawn.
        whole: whether an epoch ends before a batch that is incomplete.
        rep_x: the action on inputs; None if they are used as stored.
        rep_y: the action on labels.
    """

    stored: int
    order: int
    batch_size: int | None
    random: bool
    rep_x: Representation | None = None
    rep_y: Representation | None = None
    whole: bool = False

    @property
    def size(self) -> int:
        """Samples in an epoch."""
        return self.stored * (1 if self.random else self.order)

    @property
    def per_epoch(self) -> int:
        """Steps in an epoch; the last batch may be smaller than the others, unless they are `whole`."""
        if self.batch_size is None:
            return 1
        return self.size // self.batch_size if self.whole else -(-self.size // self.batch_size)

    def with_whole_batches(self) -> "Batches":
        """Return the same without batches that are filled up."""
        return dataclasses.replace(self, whole=True)

    def shuffle(self, key: jax.Array, step: int | jax.Array) -> jax.Array:
        """Return the order of samples in the epoch of this step."""
        if self.batch_size is None:
            return jnp.zeros(0, jnp.int32)
        shuffling, _ = jax.random.split(key)
        order = jax.random.permutation(jax.random.fold_in(shuffling, step // self.per_epoch), self.size)
        return jnp.resize(order, (self.per_epoch * self.batch_size,)).astype(jnp.int32)

    def take(self, data: Data, key: jax.Array, order: jax.Array, step: int | jax.Array) -> Batch:
        """Return the batch of this step, from the order of samples in its epoch."""
        mask = None
        if self.batch_size is None:
            chosen = jnp.arange(self.size, dtype=jnp.int32)
        else:
            start = (step % self.per_epoch) * self.batch_size
            chosen = jax.lax.dynamic_slice_in_dim(order, start, self.batch_size)
            if self.size % self.batch_size and not self.whole:
                place = start + jnp.arange(self.batch_size, dtype=jnp.int32)
                mask = (place < self.size).astype(jnp.float32)
        x, y, elements = data
        if self.rep_x is None:
            x, y = (x, y) if self.batch_size is None else jax.tree.map(lambda leaf: leaf[chosen], (x, y))
            return x, y, mask
        if self.random:
            _, drawing = jax.random.split(key)
            g, samples = draw_elements(self.rep_x.group, jax.random.fold_in(drawing, step), len(chosen)), chosen
        else:
            # Augmented sets are numbered element by element: sample i under the g-th element is g * stored + i.
            place, samples = jnp.divmod(chosen, self.stored)
            g = jnp.asarray(elements)[place]
        assert self.rep_y is not None
        x, moved = move_each(self.rep_x, self.rep_y, g, *jax.tree.map(lambda leaf: leaf[samples], (x, y)))
        return x, moved.astype(y.dtype), mask


def make_batches(train: TrainingSet, batch_size: int | None, augmentation: str) -> tuple[Batches, Data]:
    """Return how to make batches of a training set, and the arrays that they are made from.

    Args:
        train: an augmented set, or a pair (x, y).
        batch_size: samples in a batch; None for all of them.
        augmentation: "full" or "random".
    """
    one_of(augmentation, ("full", "random"), "augmentation")
    random = augmentation == "random"
    data: Data
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
    # Kept on the host, where arrays are sliced without compiling a program.
    data = jax.tree.map(np.asarray, data)
    if not len(data[1]):
        raise refusal("train", expected="at least one sample", got="none", fix="Pass some.")
    batches = Batches(len(data[1]), order, None, random, *actions)
    if batch_size is None:
        return batches, data
    if positive_integer(batch_size, "batch_size") > batches.size:
        fix = "Leave it out to train on all samples in every step."
        raise refusal("batch_size", expected=f"at most the {batches.size} samples there are", got=batch_size, fix=fix)
    return dataclasses.replace(batches, batch_size=int(batch_size)), data
