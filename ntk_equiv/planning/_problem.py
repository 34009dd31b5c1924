"""What is asked (`Settings`), and the data that it is asked about (`Problem`), checked and in the form theory takes.

- Labels that are whole numbers or text are classes, one-hot and centred: 1 − 1/k for the class, −1/k for the others.
- Bytes (uint8) are divided by 255; other whole numbers are taken as they are.
- Without test samples, some of the given samples are held out.
- If there are more samples than allowed, some are drawn at random.

Whatever is done to the data is written into the notes.
"""

import dataclasses
import hashlib
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ntk_equiv._check import is_number, one_of, positive_integer, real_number, refusal
from ntk_equiv._typing import Scalar
from ntk_equiv.bounds import Sampled
from ntk_equiv.groups import FiniteGroup
from ntk_equiv.planning._names import Times, check_time
from ntk_equiv.reps import Representation

# Whole numbers with more different values than this are probably quantities, not classes.
MANY_CLASSES = 100
# Using less than this fraction of the training samples is worth a warning.
FEW_SAMPLES = 0.2
# δ unless given, in units of the spread of the labels.
DEFAULT_DELTA = 0.1
LARGEST_DELTA = 1e150  # the square of a larger one overflows

Names = Sequence[str] | np.ndarray
Notes = list[str]


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is asked: the arguments of `plan`, which explains them, except for data, names and progress."""

    group: str | FiniteGroup
    action: str | Representation
    arch: Any
    label_action: str | Representation
    labels: str
    w_std: Any
    b_std: Any
    times: Times
    at: float | None
    learning_rate: float
    reduction: str
    members: int
    delta: float | None
    epsilon: float
    temperature: float | None
    likelihood_delta: float
    holdout: float
    max_points: int | None
    max_test_points: int
    minutes: float
    samples: int
    seed: int
    dtype: str
    width: int | None = None

    @classmethod
    def from_arguments(cls, **given: Any) -> "Settings":
        """Return settings from what a user wrote; refuse the first number that is out of range.

        Names are checked where they are looked up, and the scale of weights with the network it belongs to.
        """
        epsilon_is = "It is the probability of a larger deviation, such as 0.05."
        epsilon = _check_fraction(given["epsilon"], "epsilon", epsilon_is)
        checked = {
            "dtype": _check_dtype(given["dtype"]),
            "at": check_time(given["at"]),
            "labels": one_of(given["labels"], ("auto", "classes", "regression"), "labels"),
            "seed": _check_seed(given["seed"]),
            "max_points": None if given["max_points"] is None else positive_integer(given["max_points"], "max_points"),
            "max_test_points": positive_integer(given["max_test_points"], "max_test_points"),
            "holdout": _check_fraction(given["holdout"], "holdout", "It is the part of the samples not trained on."),
            "delta": None if given["delta"] is None else _check_delta(given["delta"]),
            "epsilon": epsilon,
            "temperature": None if given["temperature"] is None else _check_temperature(given["temperature"]),
            "likelihood_delta": _check_delta(given["likelihood_delta"], "likelihood_delta", "in nats"),
            "members": positive_integer(given["members"], "members"),
            "width": _check_width(given.get("width"), given["arch"]),
            "samples": _check_draws(given["samples"], epsilon),
            "learning_rate": real_number(given["learning_rate"], "learning_rate"),
            "reduction": one_of(given["reduction"], ("mean", "sum"), "reduction"),
            "minutes": _check_minutes(given["minutes"]),
        }
        return cls(**{**given, **checked})

    @property
    def tolerance(self) -> tuple[float, float]:
        """The tolerated deviation δ and the probability ε of a larger one."""
        assert self.delta is not None, "with_delta fills it in"
        return self.delta, self.epsilon

    def with_delta(self, y: np.ndarray) -> "Settings":
        """Return the settings with δ filled in: unless given, a tenth of the spread of these labels."""
        if self.delta is not None:
            return self
        centred = (y - y.mean(axis=0)).reshape(len(y), -1)
        delta = DEFAULT_DELTA * float(np.sqrt(np.mean(np.sum(centred**2, axis=1))))
        if not delta:
            fix = "The labels are all the same, so δ cannot be derived from their spread."
            raise refusal("delta", expected="given", got="nothing", fix=fix)
        return dataclasses.replace(self, delta=_check_delta(delta))

    def as_dict(self) -> dict[str, Any]:
        """Return the settings by name as JSON can hold them: numbers and text, and anything else by its description."""
        arch = self.arch if isinstance(self.arch, str) else "a network of your own"
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: plain_value(value) for name, value in {**values, "arch": arch}.items()}


def plain_value(value: Any) -> Any:
    """Return numbers and text as Python's own, lists of these, and the `repr` of anything else."""
    if isinstance(value, np.generic | np.ndarray | jax.Array):
        value = value.tolist()
    if type(value) in (list, tuple):
        return [plain_value(each) for each in value]
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


def _check_dtype(dtype: str | None) -> str:
    default = str(jnp.result_type(float))
    if dtype is None:
        return default
    one_of(dtype, ("float64", "float32"), "dtype")
    if dtype != default and dtype == "float64":
        fix = 'Call `jax.config.update("jax_enable_x64", True)` before anything else.'
        raise refusal("dtype", expected="float32 while JAX has double precision off", got=dtype, fix=fix)
    return dtype


def _check_fraction(value: Scalar, argument: str, fix: str) -> float:
    value = real_number(value, argument)
    if not 0 < value < 1:
        raise refusal(argument, expected="between 0 and 1, both excluded", got=value, fix=fix)
    return value


def _check_delta(delta: Scalar, argument: str = "delta", unit: str = "in the units of the labels") -> float:
    delta = real_number(delta, argument)
    if not 0 < delta <= LARGEST_DELTA:
        fix = f"It is the largest deviation that is tolerated, {unit}."
        raise refusal(argument, expected=f"positive, and at most {LARGEST_DELTA:g}", got=delta, fix=fix)
    return delta


def _check_temperature(temperature: Scalar) -> float:
    temperature = real_number(temperature, "temperature")
    if not temperature > 0:
        fix = "Outputs are divided by it before the softmax; leave it out to have one fitted."
        raise refusal("temperature", expected="positive", got=temperature, fix=fix)
    return temperature


def _check_width(width: Any, arch: Any) -> int | None:
    if width is not None and not isinstance(arch, str):
        fix = "Name the network, such as mlp:relu:2; for others ask `empirical.laziness`."
        raise refusal("width", expected="nothing, because the network is given as an object", got=width, fix=fix)
    return None if width is None else positive_integer(width, "width")


def _check_draws(samples: int, epsilon: float) -> int:
    """Return the number of draws, if they are enough to see an event of probability ε."""
    samples = positive_integer(samples, "samples")
    if not np.isfinite(Sampled.quantile(np.zeros((samples, 1)), epsilon).upper).all():
        expected = f"enough to see what happens with probability {epsilon}"
        raise refusal("samples", expected=expected, got=samples, fix=f"Take at least about {10 / epsilon:.3g}.")
    return samples


def _check_seed(seed: int) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise refusal("seed", expected="0 or more", got=repr(seed), fix="Pass any whole number from 0 on.")
    return int(seed)


def _check_minutes(minutes: Scalar) -> float:
    if minutes != math.inf and not (is_number(minutes) and float(minutes) > 0):
        fix = "It is the time that planning may take; inf sets no limit."
        raise refusal("minutes", expected="a positive number", got=repr(minutes), fix=fix)
    return float(minutes)


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """Samples and labels for training and testing.

    Attributes:
        x: training samples, [n, ...].
        y: their labels, [n] or [n, channels].
        x_test: test samples, [m, ...].
        y_test: their labels, or None.
        index: the place of each test sample among the samples that were given, [m].
        classes: the names of the classes, or None for regression.
        notes: what was done to the data.
    """

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray | None
    index: np.ndarray
    classes: tuple[str, ...] | None
    notes: tuple[str, ...]

    @property
    def sizes(self) -> tuple[int, int]:
        """The numbers of training and test samples."""
        return len(self.x), len(self.x_test)

    @property
    def held_out(self) -> np.ndarray:
        """Which test samples are not training samples too, [m]."""
        trained = {sample.tobytes() for sample in self.x}
        return np.array([sample.tobytes() not in trained for sample in self.x_test])

    @property
    def channels(self) -> int:
        """The number of output channels."""
        return self.y.shape[1] if self.y.ndim == 2 else 1

    def draw_fewer(self, n: int, m: int, seed: int, reason: str, /) -> "Problem":
        """Return the problem with n training and m test samples drawn at random, and the reason in its notes."""
        if (n, m) == self.sizes:
            return self
        rng = np.random.default_rng(seed)
        train, test = (np.sort(rng.permutation(len(part))[:count]) for part, count in ((self.x, n), (self.x_test, m)))
        what = f"{n} of {len(self.x)} training and {m} of {len(self.x_test)} test samples are used, drawn at random"
        note = f"Only {what}: {reason}"
        if n < FEW_SAMPLES * len(self.x):
            note = f"WARNING: only {what}: {reason} With more of them errors are usually smaller."
        return dataclasses.replace(
            self,
            x=self.x[train],
            y=self.y[train],
            x_test=self.x_test[test],
            y_test=None if self.y_test is None else self.y_test[test],
            index=self.index[test],
            notes=(*self.notes, note),
        )

    def missing_class_notes(self) -> Notes:
        """Return a warning if some classes have no training sample."""
        if self.classes is None:
            return []
        missing = np.setdiff1d(np.arange(len(self.classes)), self.y.argmax(axis=1))
        names = ", ".join(self.classes[c] for c in missing)
        return [f"WARNING: these classes have no training sample: {names}."] if names else []


def prepare_problem(
    x: ArrayLike,
    y: ArrayLike,
    x_test: ArrayLike | None,
    y_test: ArrayLike | None,
    settings: Settings,
    /,
    *,
    images: bool,
    class_names: Names | None,
) -> Problem:
    """Check the data of a user and bring them into the form that theory takes.

    Args:
        x: training samples.
        y: their labels.
        x_test: test samples, or None to hold some out.
        y_test: their labels, or None.
        settings: checked settings, which say what labels are and how many samples are used.
        images: whether samples are images, which have an axis of channels.
        class_names: the names of classes 0, 1, …, or None.
    """
    samples, labels, test_samples, test_labels = _check_data(x, y, x_test, y_test)
    samples = _with_channel_axis(samples, images)
    labels, test_labels, classes, label_notes = _numeric_labels(labels, test_labels, settings.labels, class_names)
    test_count = None if test_samples is None else len(test_samples)
    train, test, split_notes = _split(len(samples), test_count, settings)
    if test_samples is None:  # some are held out
        test_samples, test_labels = samples, labels
    else:
        test_samples = _with_channel_axis(test_samples, images)
    notes = [*_sample_notes(samples, images), *label_notes, *split_notes]
    if test_labels is None:
        notes.append("There are no labels for the test samples (y_test), so nothing is said about errors on them.")
    dtype = np.dtype(settings.dtype)
    return Problem(
        x=np.asarray(_scale_bytes(samples[train]), dtype),
        y=np.asarray(labels[train], dtype),
        x_test=np.asarray(_scale_bytes(test_samples[test]), dtype),
        y_test=None if test_labels is None else np.asarray(test_labels[test], dtype),
        index=test,
        classes=classes,
        notes=tuple(notes),
    )


def checksum_of_data(*arrays: ArrayLike | None) -> str:
    """Return the SHA-256 of arrays as they are given; the same for one set of numbers in single and double precision.

    Args:
        arrays: samples and labels; None for those that are not given.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv.planning import checksum_of_data
        >>> x = np.array([[0.1, 0.2]])
        >>> checksum_of_data(x, None) == checksum_of_data(x.astype("float32"), None) != checksum_of_data(2 * x, None)
        True
    """
    total = hashlib.sha256()
    for given in arrays:
        values = np.asarray(given if given is not None else np.zeros(0, bool))
        if values.dtype.kind == "f":
            with np.errstate(over="ignore"):
                values = values.astype(np.float32)
        elif values.dtype.kind == "U":
            values = np.char.encode(values, "utf-8")
        elif values.dtype != np.uint8:  # images of bytes are large, and have one form
            values = values.astype(np.int64)
        total.update(f"{values.dtype.str} {values.shape} ".encode())
        total.update(np.ascontiguousarray(values).data if values.size else b"")
    return total.hexdigest()


def prepare_samples(x: ArrayLike, /, *, images: bool) -> np.ndarray:
    """Return samples as theory takes them: images with an axis of channels, and bytes divided by 255."""
    return _scale_bytes(_with_channel_axis(np.asarray(x), images))


def _check_data(
    x: ArrayLike, y: ArrayLike, x_test: ArrayLike | None, y_test: ArrayLike | None
) -> tuple[Any, Any, Any, Any]:
    """Return all four as NumPy arrays, None where they are not given, if they fit together."""
    x, y = _numbers_or_names(x, "x"), _numbers_or_names(y, "y")
    x_test = None if x_test is None else _numbers_or_names(x_test, "x_test")
    y_test = None if y_test is None else _numbers_or_names(y_test, "y_test")
    if y_test is not None and x_test is None:
        raise refusal("x_test", expected="given with y_test", got="nothing", fix="Leave both out, or give both.")
    if x_test is not None and x_test.shape[1:] != x.shape[1:]:
        expected = f"of shape [m, {', '.join(map(str, x.shape[1:]))}]"
        fix = "A test sample has the shape of a training sample."
        raise refusal("x_test", expected=expected, got=f"shape {x_test.shape}", fix=fix)
    if x_test is not None and (x.dtype == np.uint8) != (x_test.dtype == np.uint8):
        fix = "Bytes are divided by 255, and other numbers are not: write both in the same way."
        raise refusal("x_test", expected=f"of dtype {x.dtype}, as x", got=f"dtype {x_test.dtype}", fix=fix)
    if x.ndim < 2:
        fix = "The first axis counts samples; write numbers as vectors of one entry."
        raise refusal("x", expected="of shape [n, ...]", got=f"shape {x.shape}", fix=fix)
    for samples, labels, name in ((x, y, "y"), (x_test, y_test, "y_test")):
        if samples is not None and labels is not None and (labels.ndim not in (1, 2) or len(labels) != len(samples)):
            fix = "Give each sample one label, [n], or one vector of numbers, [n, channels]."
            raise refusal(name, expected=f"labels of {len(samples)} samples", got=f"shape {labels.shape}", fix=fix)
    if y_test is not None and (y_test.shape[1:] != y.shape[1:] or _label_type(y_test) != _label_type(y)):
        got = f"{y_test.dtype} of shape {y_test.shape} with y {y.dtype} of shape {y.shape}"
        raise refusal("y_test", expected="labels like those in y", got=got, fix="Write both in the same way.")
    return x, y, x_test, y_test


def _numbers_or_names(given: ArrayLike, argument: str) -> np.ndarray:
    """Return an array of finite real numbers; labels may also be text."""
    values = np.asarray(given)
    allowed = "fiub" + ("U" if argument.startswith("y") else "")
    if values.dtype.kind not in allowed:
        fix = "Save real numbers; labels may be whole numbers or text."
        raise refusal(argument, expected="an array of numbers", got=f"dtype {values.dtype}", fix=fix, kind=TypeError)
    if not values.size or not values.ndim:
        raise refusal(argument, expected="not empty", got=f"shape {values.shape}", fix="Give at least one sample.")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        wrong = np.argwhere(~np.isfinite(values))
        first = tuple(int(i) for i in wrong[0])
        got = f"{len(wrong)} that {'is' if len(wrong) == 1 else 'are'} not, first at {first}"
        fix = "Leave these samples out, or fill in what is missing."
        raise refusal(argument, expected="finite numbers", got=got, fix=fix)
    return values


def _label_type(labels: np.ndarray) -> str:
    """Return the type of labels: labels of one type never name the classes of another."""
    return {"f": "numbers", "U": "names"}.get(labels.dtype.kind, "whole numbers")


def _with_channel_axis(x: np.ndarray, images: bool) -> np.ndarray:
    return x[..., None] if images and x.ndim == 3 else x


def _scale_bytes(values: np.ndarray) -> np.ndarray:
    return values / 255.0 if values.dtype == np.uint8 else values


def _sample_notes(x: np.ndarray, images: bool) -> Notes:
    notes = []
    if images and x.shape[-1] == 1 and x.ndim == 4:
        notes.append(f"Samples are images of {x.shape[1]} × {x.shape[2]} pixels with one channel.")
    if x.dtype == np.uint8:
        notes.append("The samples are bytes, which were divided by 255.")
    elif x.dtype.kind in "iub":
        notes.append(f"The samples are {x.dtype} numbers, which were taken as they are.")
    return notes


def _numeric_labels(
    y: np.ndarray, y_test: np.ndarray | None, labels: str, class_names: Names | None
) -> tuple[np.ndarray, np.ndarray | None, tuple[str, ...] | None, Notes]:
    """Return training and test labels as floating-point numbers, the names of classes if there are any, and notes."""
    if labels == "regression" or (labels == "auto" and y.dtype.kind == "f"):
        if y.dtype.kind == "U":
            raise refusal("labels", expected="classes for labels that are text", got="regression", fix="Leave it out.")
        if class_names is not None:
            fix = "Labels that are floating-point numbers are quantities; write classes as whole numbers."
            raise refusal("class_names", expected="left out for regression", got="some", fix=fix)
        return y.astype(float), None if y_test is None else y_test.astype(float), None, []
    every = y if y_test is None else np.concatenate([y, y_test])
    if every.ndim == 2 and every.shape[1] == 1:
        every = every[:, 0]
    if every.ndim != 1:
        fix = "A class is one whole number for each sample, [n]; write several quantities as floats."
        raise refusal("y", expected="classes of shape [n]", got=f"shape {y.shape} of {y.dtype}", fix=fix)
    values, place = np.unique(every, return_inverse=True)
    k = len(values)
    if k < 2:
        fix = "There is nothing to tell apart; write quantities as floats, or pass --labels regression."
        raise refusal("y", expected="2 classes or more", got=f"only {values[0]}", fix=fix)
    if labels == "auto" and k > MANY_CLASSES:
        got = f"{k} different {'names' if y.dtype.kind == 'U' else 'whole numbers'}"
        fix = 'Pass labels="regression" (--labels regression) if they are quantities, or "classes" if they are not.'
        raise refusal("y", expected=f"2 to {MANY_CLASSES} classes", got=got, fix=fix)
    centred = np.eye(k)[place.reshape(-1)] - 1 / k
    note = f"Labels are {k} classes, one-hot and centred: 1 − 1/{k} for the class, −1/{k} for the others."
    y_test = None if y_test is None else centred[len(y) :]
    return centred[: len(y)], y_test, _names_of_classes(values, class_names), [note]


def _names_of_classes(labels: np.ndarray, class_names: Names | None) -> tuple[str, ...]:
    """Return the names of the classes that occur: the labels themselves, or the names with these numbers."""
    if class_names is None:
        return tuple(str(label) for label in labels)
    names = [str(name) for name in np.asarray(class_names).reshape(-1)]
    if labels.dtype.kind not in "iub" or labels.min() < 0 or labels.max() >= len(names):
        expected = "a name for each of the numbers 0, 1, … in y"
        got = f"{len(names)} names for labels from {labels[0]} to {labels[-1]}"
        raise refusal("class_names", expected=expected, got=got, fix="The first name is that of label 0, and so on.")
    return tuple(names[int(label)] for label in labels)


def _split(n: int, m: int | None, settings: Settings) -> tuple[np.ndarray, np.ndarray, Notes]:
    """Return the indices of training and of test samples, and notes; for m = None both are among the n samples."""
    rng = np.random.default_rng(settings.seed)
    notes, train = [], np.arange(n)
    if m is not None:
        test = np.arange(m)
    elif n == 1:
        test = train
        notes.append("There is only one sample and no test sample (x_test): it is used for training and for testing.")
    else:
        count = min(n - 1, max(1, round(settings.holdout * n)))
        order = rng.permutation(n)
        test, train = np.sort(order[:count]), np.sort(order[count:])
        notes.append(
            f"There are no test samples (x_test): {count} of {n} samples, drawn at random, are held out for testing."
        )
    train, about_train = _draw_at_most(settings.max_points, train, "training", "--max-points", rng)
    test, about_test = _draw_at_most(settings.max_test_points, test, "test", "--max-test-points", rng)
    return train, test, notes + about_train + about_test


def _draw_at_most(
    limit: int | None, indices: np.ndarray, what: str, option: str, rng: np.random.Generator
) -> tuple[np.ndarray, Notes]:
    if limit is None or len(indices) <= limit:
        return indices, []
    note = f"Only {limit} of {len(indices)} {what} samples are used, drawn at random ({option})."
    return np.sort(rng.permutation(indices)[:limit]), [f"{note} All results are about these."]
