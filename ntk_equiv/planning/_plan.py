"""The plan: a record of numbers that can be printed, drawn, reported and stored."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from ntk_equiv._check import file_path, refusal
from ntk_equiv.planning import _files, _sections
from ntk_equiv.planning._records import Accuracy, Errors, Needed, OrbitCurve, Points

FORMAT = 2
_RECORDS: dict[str, Any] = {
    "train": Errors,
    "test": Errors,
    "needed": Needed,
    "orbit": OrbitCurve,
    "points": Points,
    "accuracy": Accuracy,
}


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """What to expect of an ensemble on given data, made by `plan`.

    Attributes:
        settings: what was asked, by the names of the arguments of `plan`.
        problem: what it was asked about: group, order, action, network, numbers of points.
        versions: of the library and what it builds on.
        notes: what was done to the data, and where theory holds; those that begin with WARNING first.
        times: training times, [k].
        train: errors on the training samples.
        test: errors on the test samples; None without test labels.
        baseline: the error on the test samples of always predicting the mean training label; None without test labels.
        t: the time that members and invariance are told for.
        stable_rate: the largest learning rate at which full-batch gradient descent does not diverge.
        violation: by how much, relative to their size, the kernels fail to respect the symmetry.
        needed: how many members.
        orbit: how the deviation over orbits falls with their number.
        points: what is known about each test sample.
        accuracy: for classes.
        origin: the name of the data, date, command line, and how long it took and was expected to take, in seconds.
        pictures: of the worst test samples, in the order of `points.worst()`, if they are images: PNG in base64.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv import planning
        >>> x = np.random.default_rng(0).normal(size=(11, 2))
        >>> y = np.linalg.norm(x, axis=1)
        >>> settings = {"arch": "mlp:relu:1", "times": [1, 10, 100, "inf"], "delta": 0.02, "samples": 2000}
        >>> test = {"x_test": x[8:], "y_test": y[8:]}
        >>> found = planning.plan(x[:8], y[:8], group="C4", action="matrix", **test, **settings)
        >>> found.problem["group"], found.times.tolist(), found.needed.unreachable
        ('cyclic(4)', [1.0, 10.0, 100.0, inf], 0)
    """

    settings: dict[str, Any]
    problem: dict[str, Any]
    versions: dict[str, str]
    notes: tuple[str, ...]
    times: np.ndarray
    train: Errors
    test: Errors | None
    baseline: float | None
    t: float
    stable_rate: float
    violation: float
    needed: Needed
    orbit: OrbitCurve
    points: Points
    accuracy: Accuracy | None
    origin: dict[str, Any] = dataclasses.field(default_factory=dict)
    pictures: tuple[str, ...] = ()

    def __repr__(self) -> str:
        order, group = self.problem["order"], self.problem["group"]
        return f"<plan for {self.problem['points']} samples under {order} elements of {group}, at t = {self.t:.3g}>"

    def table(self) -> str:
        """All results as text."""
        return _sections.as_text(self)

    def figure(self, panel: str | None = None, /) -> Any:
        """The figure, or one panel of it: "errors", "orbits" or "points".

        Returns:
            A matplotlib figure, which `plotting.save` writes.
        """
        from ntk_equiv.planning import _figures  # and matplotlib with it

        return _figures.drawn(self, panel)

    def report(self, path: Any, /, *, figures: bool = True) -> Path:
        """Write all results as one HTML file, with the figures inside, that loads nothing from elsewhere.

        Args:
            path: of the file.
            figures: whether to draw figures, for which matplotlib has to be there.

        Returns:
            The path.
        """
        from ntk_equiv.planning import _report

        path = Path(path)
        path.write_text(_report.html(self, figures=figures), encoding="utf-8")
        return path

    def write(self, folder: Any, /, *, overwrite: bool = False, figures: bool = True) -> list[Path]:
        """Write everything into a folder: report, JSON, tables and figure, each called plan and an ending.

        Args:
            folder: made if it is not there.
            overwrite: whether files of another plan may be replaced.
            figures: whether to draw figures, for which matplotlib has to be there.

        Returns:
            The files, the report first.

        Raises:
            ValueError: the folder holds a plan already, or cannot be written to.
        """
        return _files.written(self, _files.checked_folder(folder, overwrite=overwrite), figures=figures)

    def save(self, path: Any, /) -> Path:
        """Write all numbers, settings and versions as JSON, which `Plan.load` reads; infinities are written as text."""
        path = Path(path)
        content = {"format": FORMAT, **_plain({f.name: getattr(self, f.name) for f in dataclasses.fields(self)})}
        path.write_text(json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False) + "\n", encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: Any, /) -> "Plan":
        """A plan from a file that `save` wrote.

        Raises:
            ValueError: the file is something else.
        """
        path = file_path(path, "path", exists=True)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content.pop("format") != FORMAT:
                raise ValueError("it is of another format, made by another version")
            records = {name: _restored(kind, content[name]) for name, kind in _RECORDS.items()}
            numbers = {name: float(content[name]) for name in ("t", "stable_rate", "violation")}
            texts = {name: tuple(content[name]) for name in ("notes", "pictures")}
            return cls(**{**content, **records, **numbers, **texts, "times": _array(content["times"])})
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            got = f"one that cannot be read ({type(error).__name__}: {error})"
            raise refusal(str(path), expected="a plan", got=got, fix="Pass what `Plan.save` wrote.") from None


def _plain(value: Any) -> Any:
    """What JSON can hold; numbers that are not finite become text, as JSON has none."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [_plain(each) for each in (value.tolist() if isinstance(value, np.ndarray) else value)]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _restored(kind: Any, content: Any) -> Any:
    if content is None:
        return None
    fields = {name: _array(each) if isinstance(each, list) else each for name, each in content.items()}
    return kind(**{name: float(each) if isinstance(each, str) else each for name, each in fields.items()})


def _array(content: list) -> np.ndarray:
    return np.array(
        [float(each) if isinstance(each, str) else _array(each) if isinstance(each, list) else each for each in content]
    )
