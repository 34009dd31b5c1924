"""The problem of a user: samples and labels, checked and in the form that theory takes, and what was done to them.

- labels that are whole numbers or names are classes, one-hot and centred: 1 − 1/k for the class, −1/k for the others;
- bytes (uint8) are divided by 255, other whole numbers are taken as they are;
- without test samples some of the given ones are held out;
- more samples than asked for are left out, at random.

Whatever is done is written into the notes.
"""

import dataclasses
from typing import Any

import numpy as np

from ntk_equiv._check import one_of, positive_integer, real_number, refusal

LABELS = ("auto", "classes", "regression")
MANY_CLASSES = 100
# If fewer than this part of the training samples are used, that is worth a warning.
SOME = 0.2


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """Samples and labels for training and testing.

    Attributes:
        x: training samples, [n, ...].
        y: their labels, [n] or [n, channels].
        x_test: test samples, [m, ...].
        y_test: their labels, or None.
        index: the place of each test sample among those that were given, [m].
        classes: the names of the classes, or None for regression.
        notes: what was done.
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
        """How many samples there are for training and testing."""
        return len(self.x), len(self.x_test)

    def fewer(self, n: int, m: int, seed: int, because: str, /) -> "Problem":
        """The problem with n training and m test samples, drawn at random, and why."""
        if (n, m) == self.sizes:
            return self
        rng = np.random.default_rng(seed)
        train, test = (np.sort(rng.permutation(len(part))[:count]) for part, count in ((self.x, n), (self.x_test, m)))
        drawn = f"{n} of {len(self.x)} training and {m} of {len(self.x_test)} test samples are used, drawn at random"
        said = f"Only {drawn}: {because}"
        if n < SOME * len(self.x):
            said = f"WARNING: only {drawn}: {because} With more of them errors are usually smaller."
        y_test = None if self.y_test is None else self.y_test[test]
        few = dataclasses.replace(
            self, x=self.x[train], y=self.y[train], x_test=self.x_test[test], y_test=y_test, index=self.index[test]
        )
        return dataclasses.replace(few, notes=(*self.notes, said))

    def missing_classes(self) -> list[str]:
        """What to say about classes without a training sample."""
        if self.classes is None:
            return []
        missing = np.setdiff1d(np.arange(len(self.classes)), self.y.argmax(axis=1))
        names = ", ".join(self.classes[c] for c in missing)
        return [f"WARNING: no training sample is of these classes: {names}."] if names else []


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How many samples are used.

    Attributes:
        holdout: the fraction that is held out where no test samples are given.
        max_points: the most training samples.
        max_test_points: the most test samples.
        seed: of the choice.
    """

    holdout: Any
    max_points: int
    max_test_points: int
    seed: int


def prepared(
    x: Any,
    y: Any,
    x_test: Any,
    y_test: Any,
    *,
    labels: str,
    images: bool,
    sizes: Sizes,
    dtype: Any,
    class_names: Any = None,
) -> Problem:
    """The problem, after checking it."""
    notes: list[str] = []
    one_of(labels, LABELS, "labels")
    x, y, x_test, y_test = _checked(x, y, x_test, y_test)
    x, x_test = (None if part is None else _points(part, images) for part in (x, x_test))
    notes += _about_points(x, images)
    y, y_test, classes, said = _labels(y, y_test, labels, class_names)
    notes += said
    if isinstance(sizes.seed, bool) or not isinstance(sizes.seed, int | np.integer) or sizes.seed < 0:
        raise refusal("seed", expected="0 or more", got=repr(sizes.seed), fix="Any whole number from 0 on will do.")
    rng = np.random.default_rng(sizes.seed)
    train, index, source, said = _split(len(x), None if x_test is None else len(x_test), sizes, rng)
    notes += said
    labels_there = y if source == "x" else y_test
    x_there = x if source == "x" else x_test
    x, y, x_test, y_test = (
        None if part is None else np.asarray(_scaled(part[rows]), dtype)
        for part, rows in ((x, train), (y, train), (x_there, index), (labels_there, index))
    )
    if y_test is None:
        notes.append("There are no labels for the test samples (y_test), so that nothing is said about errors on them.")
    return Problem(x, y, x_test, y_test, index, classes, tuple(notes))


def _checked(x: Any, y: Any, x_test: Any, y_test: Any) -> tuple[Any, ...]:
    x, y = _numbers(x, "x"), _numbers(y, "y")
    x_test, y_test = (
        None if part is None else _numbers(part, name) for part, name in ((x_test, "x_test"), (y_test, "y_test"))
    )
    if y_test is not None and x_test is None:
        raise refusal("x_test", expected="given with y_test", got="nothing", fix="Leave both out, or give both.")
    if x_test is not None and x_test.shape[1:] != x.shape[1:]:
        fix = "Test samples have the shape of training samples, but for their number."
        raise refusal("x_test", expected=f"of shape [m, {_shown(x.shape[1:])}]", got=f"shape {x_test.shape}", fix=fix)
    if x_test is not None and (x.dtype == np.uint8) != (x_test.dtype == np.uint8):
        fix = "Bytes are divided by 255, and other numbers are not: write both in the same way."
        raise refusal("x_test", expected=f"of dtype {x.dtype}, as x", got=f"dtype {x_test.dtype}", fix=fix)
    if x.ndim < 2:
        fix = "The first axis counts samples; write numbers as vectors of one entry."
        raise refusal("x", expected="of shape [n, ...]", got=f"shape {x.shape}", fix=fix)
    for points, labels, name in ((x, y, "y"), (x_test, y_test, "y_test")):
        if labels is not None and (labels.ndim not in (1, 2) or len(labels) != len(points)):
            fix = "One label for each sample, [n], or one vector of numbers, [n, channels]."
            raise refusal(name, expected=f"labels of {len(points)} samples", got=f"shape {labels.shape}", fix=fix)
    if y_test is not None and (y_test.shape[1:] != y.shape[1:] or _sort(y_test) != _sort(y)):
        got = f"{y_test.dtype} of shape {y_test.shape} with y {y.dtype} of shape {y.shape}"
        raise refusal("y_test", expected="labels like those in y", got=got, fix="Write both in the same way.")
    return x, y, x_test, y_test


def _numbers(values: Any, name: str) -> np.ndarray:
    """An array of finite real numbers, or for labels of names."""
    values = np.asarray(values)
    allowed = "fiub" + ("U" if name.startswith("y") else "")
    if values.dtype.kind not in allowed:
        fix = "Save real numbers; labels may be whole numbers or text."
        raise refusal(name, expected="an array of numbers", got=f"dtype {values.dtype}", fix=fix, kind=TypeError)
    if not values.size or not values.ndim:
        raise refusal(name, expected="not empty", got=f"shape {values.shape}", fix="Give at least one sample.")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        wrong = np.argwhere(~np.isfinite(values))
        first = tuple(int(i) for i in wrong[0])
        got = f"{len(wrong)} that {'is' if len(wrong) == 1 else 'are'} not, first at {first}"
        raise refusal(
            name, expected="finite numbers", got=got, fix="Leave these samples out, or fill in what is missing."
        )
    return values


def _sort(labels: np.ndarray) -> str:
    """Whole numbers, other numbers, or names: those of one sort are never the classes of another."""
    return {"f": "numbers", "U": "names"}.get(labels.dtype.kind, "whole numbers")


def _points(x: np.ndarray, images: bool) -> np.ndarray:
    return x[..., None] if images and x.ndim == 3 else x


def _about_points(x: np.ndarray, images: bool) -> list[str]:
    notes = []
    if images and x.shape[-1] == 1 and x.ndim == 4:
        notes.append(f"Samples are images of {x.shape[1]} × {x.shape[2]} pixels with one channel.")
    if x.dtype == np.uint8:
        notes.append("The samples are bytes, which were divided by 255.")
    elif x.dtype.kind in "iub":
        notes.append(f"The samples are {x.dtype} numbers, which were taken as they are.")
    return notes


def _scaled(values: np.ndarray) -> np.ndarray:
    return values / 255.0 if values.dtype == np.uint8 else values


def _labels(y: np.ndarray, y_test: np.ndarray | None, labels: str, class_names: Any) -> tuple[Any, Any, Any, list[str]]:
    """Labels as floating-point numbers, the names of classes if they are, and what to say about it."""
    every = y if y_test is None else np.concatenate([y, y_test])
    if labels == "regression" or (labels == "auto" and y.dtype.kind == "f"):
        if y.dtype.kind == "U":
            raise refusal("labels", expected="classes for labels that are text", got="regression", fix="Leave it out.")
        if class_names is not None:
            fix = "Labels that are floating-point numbers are quantities; write classes as whole numbers."
            raise refusal("class_names", expected="left out for regression", got="some", fix=fix)
        return y.astype(float), None if y_test is None else y_test.astype(float), None, []
    if every.ndim == 2 and every.shape[1] == 1:
        every = every[:, 0]
    if every.ndim != 1:
        fix = "Classes are one whole number for each sample, [n]; for several targets write floats."
        raise refusal("y", expected="classes of shape [n]", got=f"shape {y.shape} of {y.dtype}", fix=fix)
    names, place = np.unique(every, return_inverse=True)
    if len(names) < 2:
        fix = "There is nothing to tell apart; quantities are written as floats, or need --labels regression."
        raise refusal("y", expected="2 classes or more", got=f"only {names[0]}", fix=fix)
    if labels == "auto" and len(names) > MANY_CLASSES:
        got = f"{len(names)} different {'names' if y.dtype.kind == 'U' else 'whole numbers'}"
        fix = 'Pass labels="regression" (--labels regression) if they are quantities, or "classes" if they are not.'
        raise refusal("y", expected=f"2 to {MANY_CLASSES} classes", got=got, fix=fix)
    k = len(names)
    hot = np.eye(k)[place.reshape(-1)] - 1 / k
    said = f"Labels are {k} classes, one-hot and centred: 1 − 1/{k} for the class, −1/{k} for the others."
    found = (hot[: len(y)], None if y_test is None else hot[len(y) :])
    return *found, _names(names, class_names), [said]


def _names(labels: np.ndarray, class_names: Any) -> tuple[str, ...]:
    """The names of the classes that occur: the labels themselves, or what they are numbers of."""
    if class_names is None:
        return tuple(str(label) for label in labels)
    known = [str(name) for name in np.asarray(class_names).reshape(-1)]
    if labels.dtype.kind not in "iub" or labels.min() < 0 or labels.max() >= len(known):
        expected = "a name for each of the numbers 0, 1, … in y"
        got = f"{len(known)} names for labels from {labels[0]} to {labels[-1]}"
        raise refusal("class_names", expected=expected, got=got, fix="Name 0 is that of label 0, and so on.")
    return tuple(known[int(label)] for label in labels)


def _split(n: int, m: int | None, sizes: Sizes, rng: np.random.Generator) -> tuple[Any, Any, str, list[str]]:
    """Rows for training, rows for testing, where the latter are from, and what to say about it."""
    limit, test_limit = (
        positive_integer(sizes.max_points, "max_points"),
        positive_integer(sizes.max_test_points, "max_test_points"),
    )
    fraction = real_number(sizes.holdout, "holdout")
    if not 0 < fraction < 1:
        fix = "It is the part of the samples that is not trained on."
        raise refusal("holdout", expected="between 0 and 1, both excluded", got=fraction, fix=fix)
    notes, train, source = [], np.arange(n), "x_test"
    if m is not None:
        test = np.arange(m)
    elif n == 1:
        test, source = train, "x"
        notes.append("There is a single sample and no test sample (x_test): it is tested on what it is trained on.")
    else:
        count, source = min(n - 1, max(1, round(fraction * n))), "x"
        order = rng.permutation(n)
        test, train = np.sort(order[:count]), np.sort(order[count:])
        notes.append(
            f"There are no test samples (x_test): {count} of {n} samples, drawn at random, are tested, not trained on."
        )
    train, said = _thinned(train, limit, "training", "--max-points", rng)
    test, also = _thinned(test, test_limit, "test", "--max-test-points", rng)
    return train, test, source, notes + said + also


def _thinned(
    rows: np.ndarray, limit: int, what: str, option: str, rng: np.random.Generator
) -> tuple[np.ndarray, list[str]]:
    if len(rows) <= limit:
        return rows, []
    said = (
        f"Only {limit} of {len(rows)} {what} samples are used, drawn at random ({option}): all results are about these."
    )
    return np.sort(rng.permutation(rows)[:limit]), [said]


def _shown(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape))
