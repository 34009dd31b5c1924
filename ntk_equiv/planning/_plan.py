"""The plan: a record of numbers that can be printed, drawn, reported and stored, and the files it is written to.

plan.html            the report
plan.json            all numbers, settings and versions
plan.txt             the tables
plan.pdf, plan.png   the figure
"""

import dataclasses
import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Num

from ntk_equiv._check import file_path, refusal
from ntk_equiv._typing import Scalar

FORMAT = 2
FILES = ("plan.html", "plan.json", "plan.txt", "plan.pdf", "plan.png")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Errors:
    """Expected mean squared errors at each training time, averaged over samples and channels.

    Attributes:
        infinite: the error of the infinite ensemble, [times].
        variance: what a single network adds to it, [times]; M members add 1/M of this.
        scatter: how much the test samples differ in these two, [times, 3]: the variance of the first, their covariance,
            and the variance of the second, divided by the number of samples; None if it is not known.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv.planning import Errors
        >>> print(Errors(infinite=np.array([1.0, 0.2]), variance=np.array([0.5, 0.4])).of(10))      # ten members
        [1.05 0.24]
    """

    infinite: Float[np.ndarray, "times"]
    variance: Float[np.ndarray, "times"]
    scatter: Float[np.ndarray, "times 3"] | None = None

    def __repr__(self) -> str:
        low = self.infinite.min()
        return f"<errors at {len(self.infinite)} times: at least {low:.3g}, and {self.of(1).min():.3g} of one network>"

    def of(self, members: Scalar, /) -> Float[np.ndarray, "times"]:
        """Return the expected error of the mean of so many members, [times]."""
        return self.infinite + self.variance / members

    def standard_error(self, members: Scalar = np.inf, /) -> Float[np.ndarray, "times"]:
        """Return the standard error of a test set of this size, [times]; NaN for a single sample."""
        if self.scatter is None:
            return np.full(len(self.infinite), np.nan)
        own, both, added = self.scatter.T
        return np.sqrt(np.maximum(own + 2 * both / members + added / np.square(members), 0.0))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class OrbitCurve:
    """The expected standard deviation of predictions over orbits, against the number of members.

    Attributes:
        members: numbers of members, [k].
        mean: averaged over test samples, [k].
        worst: at the worst test sample, [k].

    Example:
        >>> import numpy as np
        >>> from ntk_equiv.planning import OrbitCurve
        >>> members = np.array([1, 100])
        >>> curve = OrbitCurve(members, mean=0.5 / np.sqrt(members), worst=0.8 / np.sqrt(members))
        >>> print(curve.mean, curve.worst)
        [0.5  0.05] [0.8  0.08]
    """

    members: Int[np.ndarray, "k"]
    mean: Float[np.ndarray, "k"]
    worst: Float[np.ndarray, "k"]

    def __repr__(self) -> str:
        first, last = (f"{self.mean[i]:.3g} for {self.members[i]}" for i in (0, -1))
        return f"<deviation over orbits: {first}, {last} members>"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Needed:
    """How many members it takes to stay within δ with probability 1 − ε.

    Numbers that are sampled come as [estimate, lower, upper].

    Attributes:
        mean_worst: members to be within δ of the infinite ensemble, at the worst test sample.
        mean_bound: the same at all test samples at once, whatever their correlations (Šidák).
        mean_all: the same at all test samples at once, sampled from their joint law, [3].
        orbit_worst: members for predictions to agree over the orbit of the worst test sample, sampled, [3]; NaN if no
            number is enough.
        orbit_median: the same as a median over test samples; NaN if no number is enough for half of them.
        unreachable: test samples for which no number is enough, because the infinite ensemble itself deviates.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv.planning import Needed
        >>> sampled = {"mean_all": np.array([70.0, 65.0, 75.0]), "orbit_worst": np.array([50.0, 46.0, 55.0])}
        >>> found = Needed(mean_worst=60, mean_bound=80, orbit_median=30.0, unreachable=0, **sampled)
        >>> "{:.0f} members, from {:.0f} to {:.0f}".format(*found.orbit_worst)
        '50 members, from 46 to 55'
    """

    mean_worst: int
    mean_bound: int
    mean_all: Float[np.ndarray, "3"]
    orbit_worst: Float[np.ndarray, "3"]
    orbit_median: float
    unreachable: int

    def __repr__(self) -> str:
        orbit = "none is enough" if self.unreachable else f"{self.orbit_worst[0]:.0f}"
        return f"<members needed: {orbit} over all orbits, {self.mean_worst} to be close to the infinite ensemble>"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Points:
    """What is known about each test sample at the time of the plan, as arrays [m].

    Attributes:
        index: its place among the samples that were given.
        scatter: the standard deviation of one network about the infinite ensemble, over all channels.
        mean_members: members to be within δ of the infinite ensemble.
        orbit_one: the expected standard deviation of one network over the orbit.
        orbit_many: the same for the mean of M members.
        orbit_members: members for predictions over the orbit to agree up to δ; NaN if no number is enough.
        orbit_lower: the lower end of the interval of `orbit_members`.
        orbit_upper: the upper end of that interval.
        bias: the deviation of the infinite ensemble itself, the largest over the group.
        error: the distance of the infinite ensemble from the label; None without labels.
        same_one: for how many elements of the group one network predicts the same class; None for regression.
        same_many: the same for the mean of M members.
        label: the number of its class; None for regression, or without labels.
        predicted: the number of the class that the infinite ensemble predicts; None for regression.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv.planning import Points
        >>> names = ("scatter", "mean_members", "orbit_one", "orbit_many", "orbit_lower", "orbit_upper", "bias")
        >>> known = {name: np.zeros(3) for name in names}
        >>> labels = {"error": None, "same_one": None, "same_many": None}
        >>> points = Points(index=np.arange(3), orbit_members=np.array([5.0, 40.0, 8.0]), **known, **labels)
        >>> points.worst(2).tolist()
        [1, 2]
    """

    index: Int[np.ndarray, "m"]
    scatter: Float[np.ndarray, "m"]
    mean_members: Num[np.ndarray, "m"]
    orbit_one: Float[np.ndarray, "m"]
    orbit_many: Float[np.ndarray, "m"]
    orbit_members: Float[np.ndarray, "m"]
    orbit_lower: Float[np.ndarray, "m"]
    orbit_upper: Float[np.ndarray, "m"]
    bias: Float[np.ndarray, "m"]
    error: Float[np.ndarray, "m"] | None
    same_one: Float[np.ndarray, "m"] | None
    same_many: Float[np.ndarray, "m"] | None
    label: Int[np.ndarray, "m"] | None = None
    predicted: Int[np.ndarray, "m"] | None = None

    def __repr__(self) -> str:
        return f"<{len(self.index)} test samples, the worst at {self.index[self.worst(5)].tolist()}>"

    def worst(self, count: int = 10, /) -> Int[np.ndarray, "worst"]:
        """Return the places in these arrays of the samples that need most members over their orbits, worst first."""
        needed = np.where(np.isnan(self.orbit_members), np.inf, self.orbit_members)
        return np.lexsort((-self.orbit_one, -needed))[:count]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Accuracy:
    """The fraction of test samples that are classified correctly, at the time of the plan.

    The standard error of the test set says how far another test set of the same size would be off. The standard error
    of sampling comes from random draws of members, and vanishes with more draws.

    Attributes:
        infinite: by the infinite ensemble, [estimate, 0, standard error of the test set].
        many: by the mean of M members, expected, [estimate, standard error of sampling, that of the test set].
        one: by one network, expected; as above.
        over_time: by the infinite ensemble, at each time, [times].

    Example:
        >>> import numpy as np
        >>> from ntk_equiv.planning import Accuracy
        >>> each = {name: np.array([0.88, 0.0002, 0.03]) for name in ("infinite", "many", "one")}
        >>> found = Accuracy(over_time=np.array([0.88]), **each)
        >>> print(f"{found.many[0]:.2f} ± {found.many[2]:.2f}")
        0.88 ± 0.03
    """

    infinite: Float[np.ndarray, "3"]
    many: Float[np.ndarray, "3"]
    one: Float[np.ndarray, "3"]
    over_time: Float[np.ndarray, "times"]

    def __repr__(self) -> str:
        infinite, many, one = (f"{value:.3g} ± {error:.2g}" for value, _, error in (self.infinite, self.many, self.one))
        return f"<accuracy {infinite} of the infinite ensemble, {many} of the members, {one} of one network>"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Calibration:
    """How good class probabilities will be on held-out samples, at the time of the plan.

    Probabilities are softmax(f̂/T) of the mean output f̂ of all members. Metrics are arrays of three rows, for one
    network, M members and infinitely many. A row is [expected value, standard error of sampling, standard error of the
    test set, standard deviation of one ensemble about the expected value].

    Attributes:
        samples: how many test samples were held out from training.
        temperature: T.
        accuracy: the fraction that is classified right, [3, 4].
        likelihood: the negative log-likelihood, in nats, [3, 4].
        excess: how much larger it is for one network and for M members than for infinitely many, [2]: known more
            precisely than the likelihoods themselves.
        brier: the Brier score, [3, 4].
        error: the calibration error over bins of equal width, [3, 4].
        noise: the calibration error of so few samples if the probabilities of the infinite ensemble were right.
        members: how many members have a likelihood within δ of that of infinitely many, [estimate, lower, upper].
        diagram_many: the expected reliability diagram of M members, [4, bins]: confidence, accuracy, its standard error
            and the number of samples.
        diagram_infinite: that of the infinite ensemble, [4, bins].

    Example:
        >>> import numpy as np
        >>> from ntk_equiv.planning import Calibration
        >>> rows = {name: np.ones((3, 4)) for name in ("accuracy", "likelihood", "brier", "error")}
        >>> diagrams = {"diagram_many": np.ones((4, 1)), "diagram_infinite": np.ones((4, 1))}
        >>> needed = {"excess": np.array([0.12, 0.01]), "members": np.array([12.0, 11.0, 13.0])}
        >>> Calibration(samples=20, temperature=0.1, noise=0.07, **needed, **rows, **diagrams)
        <negative log-likelihood 1 of the infinite ensemble, 1 of the members, 1 of one network, on 20 samples>
    """

    samples: int
    temperature: float
    accuracy: Float[np.ndarray, "3 4"]
    likelihood: Float[np.ndarray, "3 4"]
    excess: Float[np.ndarray, "2"]
    brier: Float[np.ndarray, "3 4"]
    error: Float[np.ndarray, "3 4"]
    noise: float
    members: Float[np.ndarray, "3"]
    diagram_many: Float[np.ndarray, "4 bins"]
    diagram_infinite: Float[np.ndarray, "4 other_bins"]

    def __repr__(self) -> str:
        one, many, infinite = (f"{value:.3g}" for value in self.likelihood[:, 0])
        likelihoods = f"{infinite} of the infinite ensemble, {many} of the members, {one} of one network"
        return f"<negative log-likelihood {likelihoods}, on {self.samples} samples>"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Width:
    """What a finite width does, estimated from a few random networks before training. None of it is a bound.

    Attributes:
        width: of the hidden layers; the number of channels for convolutions.
        networks: how many were drawn.
        samples: how many training samples were taken, without their images under the group.
        times: the times that were looked at, the last of which is that of the plan if it is finite, [k].
        change: how much their kernels change, relative to their norms, [k].
        shift: by how much the mean is shifted, as root mean square over test samples, [k].
        chance: the standard error of the mean of M members, for comparison, [k].
        until: the time until which the shift is below twice that, [estimate, lower, upper].
        needed: the width at which it is so at the last time, [estimate, lower, upper].
        power: with which power of 1/width the shift is taken to fall.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv.planning import Width
        >>> curves = {name: np.array([value]) for name, value in (("change", 0.02), ("shift", 0.01), ("chance", 0.04))}
        >>> limits = {"until": np.array([np.inf, 300.0, np.inf]), "needed": np.array([64.0, 20.0, 120.0])}
        >>> found = Width(width=512, networks=4, samples=20, times=np.array([100.0]), **curves, **limits)
        >>> found, found.enough
        (<width 512: shift 0.01, chance 0.04 at t = 100>, 'yes')
    """

    width: int
    networks: int
    samples: int
    times: Float[np.ndarray, "k"]
    change: Float[np.ndarray, "k"]
    shift: Float[np.ndarray, "k"]
    chance: Float[np.ndarray, "k"]
    until: Float[np.ndarray, "3"]
    needed: Float[np.ndarray, "3"]
    power: float = 1.0

    @property
    def enough(self) -> str:
        """Whether the shift at the last time is below two standard errors of the mean of M members.

        "yes" or "no" if the whole range of the needed width says so, else "perhaps".
        """
        _, lower, upper = self.needed
        return "yes" if upper <= self.width else "no" if lower > self.width else "perhaps"

    def __repr__(self) -> str:
        last = f"shift {self.shift[-1]:.3g}, chance {self.chance[-1]:.3g} at t = {self.times[-1]:.3g}"
        return f"<width {self.width}: {last}>"


def standard_error(values: np.ndarray) -> float:
    """Return the standard error of a mean over test samples; NaN for a single one."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """What to expect of an ensemble on given data. `plan` makes it.

    Attributes:
        settings: what was asked, by the names of the arguments of `plan`.
        problem: what it was asked about: group, order, actions, method, numbers of samples, their shape, classes.
        versions: the versions of the library and what it builds on.
        notes: what was done to the data, and where theory holds; warnings, which begin with WARNING, come first.
        times: training times, [k].
        train: errors on the training samples.
        test: errors on the test samples; None without test labels.
        baseline: the error on the test samples of always predicting the mean training label; None without test labels.
        t: the time for which members and invariance are given.
        stable_rate: the largest learning rate at which full-batch gradient descent does not diverge.
        violation: how far the kernels are from respecting the symmetry, relative to their size.
        needed: how many members are needed.
        orbit: how the deviation over orbits falls with the number of members.
        points: what is known about each test sample.
        accuracy: how many test samples are classified correctly; None for regression, or without test labels.
        origin: the name and the checksum of the data, date, command line, the seconds it took and was expected to
            take, and for a folder of images the names of the files.
        pictures: the worst test samples, in the order of `points.worst()`, if they are images: PNG in base64.
        calibration: how good class probabilities will be; None for regression, or without held-out test labels.
        width: what a finite width does; None if it was not asked for.

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
    calibration: Calibration | None = None
    width: Width | None = None

    def __repr__(self) -> str:
        order, group = self.problem["order"], self.problem["group"]
        return f"<plan for {self.problem['points']} samples under {order} elements of {group}, at t = {self.t:.3g}>"

    # Text and report read plans, so they are imported when they are needed.

    def table(self) -> str:
        """Return all results as text."""
        from ntk_equiv.planning import _text

        return _text.plan_text(self)

    def figure(self, panel: str | None = None, /) -> Any:
        """Draw the figure, or one panel of it: "errors", "orbits", "points", or for classes "reliability".

        Returns:
            A matplotlib figure, which `plotting.save` writes.
        """
        from ntk_equiv.planning import _figures

        return _figures.draw_plan(self, panel)

    def report(self, path: str | os.PathLike[str], /, *, figures: bool = True) -> Path:
        """Write all results as one HTML file, with the figures inside, that loads nothing from elsewhere.

        Args:
            path: the path of the file.
            figures: whether to draw figures, which needs matplotlib.

        Returns:
            The path.
        """
        from ntk_equiv.planning import _report

        path = Path(path)
        path.write_text(_report.plan_html(self, figures=figures), encoding="utf-8")
        return path

    def write(self, folder: str | os.PathLike[str], /, *, overwrite: bool = False, figures: bool = True) -> list[Path]:
        """Write everything into a folder: report, JSON, tables and figure, each called plan and an ending.

        Args:
            folder: the folder, which is made if it does not exist.
            overwrite: whether files of another plan may be replaced.
            figures: whether to draw figures, which needs matplotlib.

        Returns:
            The files, the report first.

        Raises:
            ValueError: the folder already holds a plan, or cannot be written to.
        """
        folder = checked_folder(folder, overwrite=overwrite)
        folder.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            if (folder / name).is_symlink():
                (folder / name).unlink()  # replace the link itself, not the file elsewhere that it leads to
        html, json_file, txt, *_ = (folder / name for name in FILES)
        txt.write_text(self.table() + "\n", encoding="utf-8")
        paths = [self.report(html, figures=figures), self.save(json_file), txt]
        if figures:
            from ntk_equiv import plotting  # and matplotlib with it

            paths += plotting.save(self.figure(), folder / "plan")
        return paths

    def save(self, path: str | os.PathLike[str], /) -> Path:
        """Write all numbers, settings and versions as JSON, which `Plan.load` reads; infinities are written as text."""
        path = Path(path)
        content = {"format": FORMAT, **_to_json({f.name: getattr(self, f.name) for f in dataclasses.fields(self)})}
        path.write_text(json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False) + "\n", encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: str | os.PathLike[str], /) -> "Plan":
        """Return the plan in a file that `save` wrote.

        Raises:
            ValueError: the file is something else.
        """
        path = file_path(path, "path", exists=True)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content.pop("format") != FORMAT:
                raise ValueError("it is of another format, made by another version")
            for later in ("calibration", "width"):  # earlier versions did not know them
                content.setdefault(later, None)
            records = {name: _record_from_json(record, content[name]) for name, record in _RECORDS.items()}
            numbers = {name: float(content[name]) for name in ("t", "stable_rate", "violation")}
            texts = {name: tuple(content[name]) for name in ("notes", "pictures")}
            times = _array_from_json(content["times"])
            return cls(**{**content, **records, **numbers, **texts, "times": times})
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            got = f"one that cannot be read ({type(error).__name__}: {error})"
            raise refusal(str(path), expected="a plan", got=got, fix="Pass a file that `Plan.save` wrote.") from None


_RECORDS: dict[str, Any] = {
    "train": Errors,
    "test": Errors,
    "needed": Needed,
    "orbit": OrbitCurve,
    "points": Points,
    "accuracy": Accuracy,
    "calibration": Calibration,
    "width": Width,
}


def _to_json(value: Any) -> Any:
    """Return what JSON can hold; numbers that are not finite become text, because JSON has none."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {name: _to_json(each) for name, each in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [_to_json(each) for each in (value.tolist() if isinstance(value, np.ndarray) else value)]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _record_from_json(record: Any, content: dict[str, Any] | None) -> Any:
    if content is None:
        return None
    fields = {name: _array_from_json(each) if isinstance(each, list) else each for name, each in content.items()}
    return record(**{name: float(each) if isinstance(each, str) else each for name, each in fields.items()})


def _array_from_json(content: list) -> np.ndarray:
    return np.array(
        [
            float(each) if isinstance(each, str) else _array_from_json(each) if isinstance(each, list) else each
            for each in content
        ]
    )


def checked_folder(folder: str | os.PathLike[str], /, *, overwrite: bool = False) -> Path:
    """Return the folder, if the files of a plan can be written to it; so that this is known before any computation.

    Args:
        folder: the folder, which need not exist yet.
        overwrite: whether files of another plan may be replaced.

    Raises:
        ValueError: the folder already holds a plan, or cannot be written to.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from ntk_equiv.planning import checked_folder
        >>> with tempfile.TemporaryDirectory() as place:
        ...     checked_folder(Path(place) / "plan").name
        'plan'
    """
    folder = file_path(folder, "folder")
    there = [name for name in FILES if os.path.lexists(folder / name)]  # links count, wherever they lead
    if there and not overwrite:
        fix = "Name another folder, or allow what is there to be replaced (--overwrite)."
        raise refusal("out", expected="a folder without a plan", got=f"{folder} with {', '.join(there)}", fix=fix)
    made = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        if made:
            folder.rmdir()  # it is made again when there is something to put into it
    except OSError as error:
        fix = "Name a folder in a place where you may write."
        got = f"{folder} ({error.strerror or error})"
        raise refusal("out", expected="a folder that can be written to", got=got, fix=fix) from None
    return folder
