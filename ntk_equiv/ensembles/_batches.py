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
from ntk_equiv.ensembles._sources import BatchStream, as_stored, fit_on_devices, with_shape
from ntk_equiv.orbits import AugmentedSet, draw_elements, move_each, samples_and_labels
from ntk_equiv.reps import Representation

Data = tuple[Inputs, Any, Any]
"""Stored inputs, labels and elements; the elements are None if samples are used as they are stored.

Inputs are arrays, or sources that are read when they are needed. Labels and elements are arrays."""

Batch = tuple[Inputs, jax.Array, jax.Array | None]
"""Inputs, labels, and a mask of 0 and 1 if some samples only fill up the batch."""

TrainingSet = AugmentedSet | BatchStream | tuple | list
"""An augmented set, a pair `(x, y)`, or a stream of batches."""


@dataclasses.dataclass(frozen=True)
class Batches:
    """How batches are made from stored data; hashable.

    Attributes:
        stored: how many samples are stored.
        order: how many elements augment them; 1 if they are used as stored.
        batch_size: samples in a batch; None for all of them, in the order in which they are stored.
        random: whether elements are drawn.
        rep_x: the action on inputs; None if they are used as stored.
        rep_y: the action on labels.
        whole: whether an epoch ends before a batch that is incomplete.
        on_host: whether samples are taken on the host, so that devices see the batches of a step alone.
        stream: where batches come from, if it is not stored data. Programs do not depend on it.
    """

    stored: int
    order: int
    batch_size: int | None
    random: bool
    rep_x: Representation | None = None
    rep_y: Representation | None = None
    whole: bool = False
    on_host: bool = False
    stream: BatchStream | None = dataclasses.field(default=None, compare=False)

    @property
    def size(self) -> int:
        """Samples in an epoch."""
        return self.stored * (1 if self.random else self.order)

    @property
    def per_epoch(self) -> int:
        """Steps in an epoch; the last batch may be smaller than the others, unless they are `whole`."""
        if self.stream is not None:
            return self.stream.per_epoch
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
        x, y, elements = data
        if self.batch_size is None and self.rep_x is None:
            return x, y, None
        chosen = jnp.arange(self.size, dtype=jnp.int32)
        if self.batch_size is not None:
            chosen = jax.lax.dynamic_slice_in_dim(order, self._start(step), self.batch_size)
        samples = self.samples(chosen)
        x, y = jax.tree.map(lambda leaf: leaf[samples], (x, y))
        return self.move(x, y, elements, chosen, key, step)

    def choose(self, order: np.ndarray, step: int) -> np.ndarray:
        """Return what is chosen for this step on the host, from orders of many members along a first axis."""
        start = self._start(step)
        return order[:, start : start + self.batch_size]

    def samples(self, chosen: Any) -> Any:
        """Return the numbers of the stored samples that are chosen."""
        # Augmented sets are numbered element by element: sample i under the g-th element is g * stored + i.
        return chosen if self.rep_x is None or self.random else chosen % self.stored

    def move(
        self, x: Inputs, y: jax.Array, elements: Any, chosen: jax.Array, key: jax.Array, step: int | jax.Array
    ) -> Batch:
        """Return the batch of this step from its stored samples and labels, each moved by an element of the group.

        Args:
            x: the stored samples that are chosen.
            y: their labels.
            elements: the elements that augment.
            chosen: the numbers in the augmented set.
            key: the key of the member for its batches.
            step: the number of the step.
        """
        mask = None
        if self.batch_size is not None and self.size % self.batch_size and not self.whole:
            place = self._start(step) + jnp.arange(self.batch_size, dtype=jnp.int32)
            mask = (place < self.size).astype(jnp.float32)
        if self.rep_x is None:
            return x, y, mask
        if self.random:
            _, drawing = jax.random.split(key)
            g = draw_elements(self.rep_x.group, jax.random.fold_in(drawing, step), len(chosen))
        else:
            g = jnp.asarray(elements)[chosen // self.stored]
        assert self.rep_y is not None
        x, moved = move_each(self.rep_x, self.rep_y, g, x, y)
        return x, moved.astype(y.dtype), mask

    def _start(self, step: Any) -> Any:
        """Return where the batch of a step begins in the order of its epoch."""
        assert self.batch_size is not None
        return (step % self.per_epoch) * self.batch_size


def make_batches(
    train: TrainingSet, batch_size: int | None, augmentation: str, data_on: str = "auto"
) -> tuple[Batches, Data]:
    """Return how to make batches of a training set, and the arrays that they are made from.

    Args:
        train: an augmented set, a pair (x, y), or a stream of batches.
        batch_size: samples in a batch; None for all of them.
        augmentation: "full" or "random".
        data_on: "device", "host", or "auto" to choose by size.
    """
    one_of(augmentation, ("full", "random"), "augmentation")
    one_of(data_on, ("auto", "device", "host"), "data_on")
    if isinstance(train, BatchStream):
        return _batches_of_stream(train, batch_size, augmentation, data_on)
    random = augmentation == "random"
    data: Data
    rep_x = rep_y = None
    order = 1
    if isinstance(train, AugmentedSet) and (random or batch_size is not None):
        elements = train.matrices if train.elements is None else np.array(train.elements)
        data, order, rep_x, rep_y = (train.base_x, train.base_y, elements), train.order, train.rep_x, train.rep_y
    elif isinstance(train, AugmentedSet):
        data = train.x, train.y, None
    elif random:
        fix = "Pass `augment(x, y, rep_x)`, which knows the group."
        raise refusal("train", expected='an augmented set for augmentation="random"', got="a pair", fix=fix)
    else:
        pair = jax.tree.map(with_shape, tuple(train)) if isinstance(train, tuple | list) else train
        data = *samples_and_labels(pair, as_stored), None
    # Kept on the host, where arrays are sliced without compiling a program.
    x, y, elements = data
    data = jax.tree.map(as_stored, x), np.asarray(as_stored(y)), None if elements is None else np.asarray(elements)
    if not len(data[1]):
        raise refusal("train", expected="at least one sample", got="none", fix="Pass some.")
    if data_on == "host" and batch_size is None:
        fix = "Without it each step takes all samples. Batches of 100 to 1000 are common."
        raise refusal("batch_size", expected='given for data_on="host"', got=None, fix=fix)
    on_host = data_on == "host" or (data_on == "auto" and batch_size is not None and not fit_on_devices(data))
    if not on_host:
        data = jax.tree.map(np.asarray, data)
    batches = Batches(len(data[1]), order, None, random, rep_x, rep_y, on_host=on_host)
    if batch_size is None:
        return batches, data
    if positive_integer(batch_size, "batch_size") > batches.size:
        fix = "Leave it out to train on all samples in every step."
        raise refusal("batch_size", expected=f"at most the {batches.size} samples there are", got=batch_size, fix=fix)
    return dataclasses.replace(batches, batch_size=int(batch_size)), data


def _batches_of_stream(
    stream: BatchStream, batch_size: int | None, augmentation: str, data_on: str
) -> tuple[Batches, Data]:
    """Return how batches come from a stream, and the first of them, which shows what they are like."""
    if batch_size is not None:
        fix = "The function of the stream decides how large its batches are."
        raise refusal("batch_size", expected="left out for a stream of batches", got=batch_size, fix=fix)
    if augmentation != "full":
        fix = "Augment in the function of the stream, for example with `orbits.augment_batches`."
        raise refusal("augmentation", expected="left out for a stream of batches", got=augmentation, fix=fix)
    if data_on == "device":
        fix = "Leave it out: the device sees one batch at a time."
        raise refusal("data_on", expected='"auto" or "host" for a stream of batches', got=data_on, fix=fix)
    x, y = stream.read_first()
    if not len(y):
        raise refusal("train", expected="at least one sample in a batch", got="none", fix="Pass some.")
    return Batches(len(y), 1, len(y), random=False, on_host=True, stream=stream), (x, y, None)
