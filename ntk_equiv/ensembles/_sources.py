"""Samples that are read when they are needed: arrays on disk, anything with an index, and streams of batches.

    source                                      who shuffles            on the device
    arrays in memory                            the trainer             all samples, or the batches of a step
    `np.memmap`, and what has shape and dtype   the trainer             the same
    what has a length and an index              the trainer             the same
    `BatchStream`                               its function            the batch of a step, the same for all members

The trainer shuffles by the key of each member. It reads the samples of a batch on the host, in the order in which they
are stored, and the device sees this batch alone. The numbers are those that it would have taken on the device, so
results do not depend on where samples are.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np

from ntk_equiv._check import describe, function, positive_integer, refusal
from ntk_equiv._machine import free_for_results
from ntk_equiv._typing import Inputs
from ntk_equiv.orbits import is_read_on_demand, samples_and_labels

# Data are kept on the device if they take at most this part of its free memory.
PART_OF_MEMORY = 0.25
# How much is read at a time where all samples have to be looked at.
BYTES_AT_A_TIME = 2**26


class Source:
    """Samples that are read when they are indexed, with the shape and dtype of the array that they would make.

    Example:
        >>> class Squares:                                      # anything with a length and an index
        ...     def __len__(self):
        ...         return 1000
        ...     def __getitem__(self, i):
        ...         return np.array([i, i**2], np.int32)
        >>> squares = Source(Squares())
        >>> squares.shape, squares[np.array([30, 2])].tolist(), squares[:2].tolist()
        ((1000, 2), [[30, 900], [2, 4]], [[0, 0], [1, 1]])
    """

    def __init__(self, stored: Any) -> None:
        self._stored, self._is_array = stored, hasattr(stored, "shape") and hasattr(stored, "dtype")
        first = stored if self._is_array else np.asarray(stored[0])
        self.shape = tuple(stored.shape) if self._is_array else (len(stored), *first.shape)
        # As in JAX: double precision only where that is switched on.
        self.dtype = jax.dtypes.canonicalize_dtype(first.dtype)

    @property
    def ndim(self) -> int:
        """The number of axes, the first of which counts samples."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """The size of all samples."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"samples of shape {self.shape} and dtype {self.dtype}"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[:], dtype)

    def __getitem__(self, chosen: slice | np.ndarray) -> np.ndarray:
        """Return some samples, given by a slice or by their numbers."""
        if isinstance(chosen, slice):
            return self._read_array(chosen) if self._is_array else self._read_one_by_one(np.arange(len(self))[chosen])
        # Files are read from front to back. Some formats take numbers in no other way, and no number twice.
        numbers, places = np.unique(chosen, return_inverse=True)
        samples = self._read_array(numbers) if self._is_array else self._read_one_by_one(numbers)
        return samples[places.reshape(-1)]

    def _read_array(self, chosen: slice | np.ndarray) -> np.ndarray:
        return np.asarray(self._stored[chosen], self.dtype)

    def _read_one_by_one(self, numbers: np.ndarray) -> np.ndarray:
        samples = [np.asarray(self._stored[int(number)]) for number in numbers]
        for number, sample in zip(numbers, samples, strict=True):
            if sample.shape != self.shape[1:]:
                expected = f"samples of one shape, as the first one, {self.shape[1:]}"
                fix = "Crop, pad or scale them to one size."
                raise refusal("x", expected=expected, got=f"{sample.shape} for sample {number}", fix=fix)
        return np.stack(samples).astype(self.dtype) if samples else np.empty((0, *self.shape[1:]), self.dtype)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class BatchStream:
    """Batches that a function of your own makes while a run is trained; pass it to `train` in place of data.

    All members see the same batches in the same order. Use it for data that no array holds: decoded, augmented or
    simulated while they are needed. A network with a state counts every sample of a batch, so let all batches of its
    stream have one size. Every size compiles programs of its own.

    Attributes:
        batches: a function of the number of the epoch, from 0, that returns an iterable of pairs (x, y). For the same
            number it must return the same batches: a run that is resumed asks for them again.
        per_epoch: how many batches make an epoch; of more than these the first ones are taken.

    Raises:
        TypeError: `batches` is no function.
        ValueError: `per_epoch` is no positive integer.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> from ntk_equiv import augment, ensembles, groups, orbits, reps
        >>> x, y, swap = jnp.array([[1., 2.], [3., 5.]]), jnp.array([[1.], [2.]]), reps.regular(groups.cyclic(2))
        >>> stream = ensembles.BatchStream(
        ...     lambda epoch: orbits.augment_batches(x, y, swap, batch_size=2, key=jax.random.key(epoch), epochs=1), 2)
        >>> stream
        <stream of 2 batches in an epoch>
        >>> mean = lambda key, x: jnp.zeros((1, 1)), lambda w, x: w + 0 * x[:, :1]
        >>> run = ensembles.train(mean, stream, members=2, epochs=40, optimizer=optax.sgd(0.2), key=jax.random.key(0))
        >>> print(run.mean(x[:1]).round(1))
        [[1.5]]
    """

    batches: Callable[[int], Iterable[tuple[Any, Any]]]
    per_epoch: int

    def __post_init__(self) -> None:
        function(self.batches, "batches", fix="Pass a function of the number of the epoch.")
        positive_integer(self.per_epoch, "per_epoch")

    def __repr__(self) -> str:
        return f"<stream of {self.per_epoch} batches in an epoch>"

    def read_first(self) -> tuple[Inputs, np.ndarray]:
        """Return the first batch."""
        return StreamReader(self).read(0)


class StreamReader:
    """A place in a stream, which moves on with every batch that is read."""

    def __init__(self, stream: BatchStream) -> None:
        self._stream, self._step = stream, -1
        self._batches: Iterator[Any] = iter(())

    def read(self, step: int) -> tuple[Inputs, np.ndarray]:
        """Return the batch of a step; what lies between is left out."""
        epoch, place = divmod(step, self._stream.per_epoch)
        if place == 0 or step != self._step:
            self._batches = self._open(epoch, place)
        self._step = step + 1
        try:
            batch = next(self._batches)
        except StopIteration:
            got = f"an end of epoch {epoch} after {place} batches or less"
            fix = "Pass the number of batches that the function returns."
            raise refusal("per_epoch", expected=f"{place} or less", got=got, fix=fix) from None
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            fix = "Let the function return an iterable of pairs."
            raise refusal("batches", expected="pairs (x, y)", got=describe(batch), fix=fix, kind=TypeError)
        return samples_and_labels(tuple(batch), in_memory)

    def _open(self, epoch: int, place: int) -> Iterator[Any]:
        batches: Any = self._stream.batches(epoch)
        if not isinstance(batches, Iterable):
            fix = "Let it return an iterator over the batches of this epoch."
            got = describe(batches)
            raise refusal("batches", expected="a function that returns an iterable", got=got, fix=fix, kind=TypeError)
        return itertools.islice(batches, place, None)


def with_shape(leaf: Any) -> Any:
    """Return samples that have a length and an index, but neither shape nor dtype, as a source that has them."""
    if hasattr(leaf, "dtype") or not (hasattr(leaf, "__len__") and hasattr(leaf, "__getitem__")):
        return leaf
    try:
        return Source(leaf)
    except Exception:  # whatever it raises if it is something else, without a first sample
        return leaf


def as_stored(leaf: Any) -> Any:
    """Return samples as they are kept on the host: an array of NumPy, or a source if they are elsewhere."""
    if isinstance(leaf, Source):
        return leaf
    return Source(leaf) if is_read_on_demand(leaf) else in_memory(leaf)


def in_memory(leaf: Any) -> np.ndarray:
    """Return an array in the memory of the host, with a dtype that JAX has."""
    array = np.asarray(leaf)
    return np.asarray(array, jax.dtypes.canonicalize_dtype(array.dtype))


def in_portions(leaf: Any) -> Iterator[np.ndarray]:
    """Yield the samples of an array or a source a few at a time."""
    rows = max(1, BYTES_AT_A_TIME // max(1, leaf.nbytes // max(1, len(leaf))))
    for start in range(0, len(leaf), rows):
        yield np.asarray(leaf[start : start + rows])


def fit_on_devices(data: Any) -> bool:
    """Return whether each device may hold all samples; on CPUs all devices share one memory."""
    copies = len(jax.local_devices()) if jax.default_backend() == "cpu" else 1
    return copies * bytes_of(data) <= PART_OF_MEMORY * free_for_results()


def bytes_of(data: Any) -> int:
    """Return the size of all samples."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(data))


def shapes_of(tree: Any) -> Any:
    """Return shapes and dtypes of arrays and sources."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)
