"""A plan in words and tables: the sections that both the text and the report consist of."""

import dataclasses
import textwrap
from typing import Any

import numpy as np

from ntk_equiv.planning._cost import duration
from ntk_equiv.planning._records import standard_error
from ntk_equiv.planning._short import answers, class_name, place_of_time
from ntk_equiv.planning._shown import number, of_members, whole, with_error

# Rows of the table of times; the others are in the figure and in the JSON file.
TIMES = 12
WORST = 10
WIDTH = 100
WARNING = "WARNING: "


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the report.

    Attributes:
        title: its heading.
        lines: sentences, one item each.
        header: of the table; empty if there is none.
        rows: of the table.
        panel: the panel of the figure that belongs here.
        pictures: in front of the rows of the table, as PNG in base64.
    """

    title: str
    lines: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    panel: str | None = None
    pictures: tuple[str, ...] = ()


def sections(plan: Any, /) -> list[Section]:
    """All sections, in order."""
    warnings = tuple(note.removeprefix(WARNING) for note in plan.notes if note.startswith(WARNING))
    others = tuple(note for note in plan.notes if not note.startswith(WARNING))
    return [
        *([Section("Warnings", warnings)] if warnings else []),
        Section("In short", answers(plan)),
        _errors(plan),
        _members(plan),
        _invariance(plan),
        _worst(plan),
        Section("Where this holds", others),
        _conventions(plan),
        _origin(plan),
    ]


def as_text(plan: Any, /) -> str:
    """All sections as text."""
    parts = []
    for section in sections(plan):
        lines = [section.title, "-" * len(section.title)]
        for line in section.lines:
            lines += textwrap.wrap(f"- {line}", WIDTH, subsequent_indent="  ")
        gap = [""] if section.lines and section.rows else []
        parts.append("\n".join(lines + gap + (_aligned((section.header, *section.rows)) if section.rows else [])))
    return "\n\n".join(parts)


def _errors(plan: Any) -> Section:
    members, last = plan.settings["members"], len(plan.times) - 1
    shown = np.linspace(0, last, min(TIMES, last + 1)).round().astype(int)
    columns = {"t": plan.times, "train, infinite": plan.train.infinite, "train, one": plan.train.of(1)}
    if plan.test is not None:
        columns["test, infinite"] = plan.test.infinite
        columns["±"] = plan.test.standard_error()
        columns[f"test, {members}"] = plan.test.of(members)
        columns["test, one"] = plan.test.of(1)
    if plan.accuracy is not None:
        columns["right, infinite"] = plan.accuracy.over_time
    rows = [tuple(number(c[row]) for c in columns.values()) for row in np.union1d(shown, [place_of_time(plan)])]
    lines = (
        "Mean squared errors over samples and channels as theory predicts them: of the infinite ensemble, and expected "
        f"of the mean of {of_members(members)} and of one network. Training samples are those that were given.",
        *([f"±: the standard error of the test set, of {plan.problem['test_points']} samples."] if plan.test else []),
    )
    return Section("Errors against training time", lines, tuple(columns), tuple(rows), "errors")


def _members(plan: Any) -> Section:
    needed, single = plan.needed, plan.points.mean_members
    orbit, mean = "agreement over the orbit", "closeness to the infinite ensemble"
    rows = (
        (orbit, "the worst test sample", *_interval(needed.orbit_worst)),
        (orbit, "half of the test samples", whole(needed.orbit_median), "the median"),
        (mean, "the worst test sample", whole(needed.mean_worst), "exact"),
        (mean, "half of the test samples", whole(np.sort(single)[(len(single) - 1) // 2]), "exact"),
        (mean, "all test samples at once", *_interval(needed.mean_all)),
        (mean, "the same, whatever their correlations", whole(needed.mean_bound), "a bound"),
    )
    delta, epsilon = number(plan.settings["delta"]), plan.settings["epsilon"]
    lines = (
        f"How many members it takes until a deviation of more than δ = {delta} has a probability of at most "
        f"ε = {epsilon}, at t = {number(plan.t)}. A deviation is a Euclidean distance over output channels.",
        "Agreement over the orbit is that of the prediction for the moved input with the moved prediction, for all "
        "elements of the group at once, at each test sample by itself.",
        "What is sampled comes with an interval that holds with a probability of 99.9 %.",
    )
    return Section("Members needed", lines, ("what for", "where", "members", "known"), rows, "points")


def _invariance(plan: Any) -> Section:
    points, members, order = plan.points, plan.settings["members"], plan.problem["order"]
    each = (points.orbit_one, points.orbit_many, points.bias)
    columns = {
        "": ("one network", of_members(members), "infinite ensemble"),
        "deviation, mean": tuple(with_error(values.mean(), standard_error(values)) for values in each),
        "deviation, worst": tuple(number(values.max()) for values in each),
    }
    lines = [
        "Deviation: the expected standard deviation of predictions over the orbit of a test sample, averaged over test "
        "samples and at the worst one; for the infinite ensemble the largest deviation over the group, which vanishes "
        "up to rounding where the theorem holds.",
    ]
    if points.same_one is not None:
        exact = number(order) if points.bias.max() < 1e-6 * plan.settings["delta"] else "–"
        same = (with_error(values.mean(), standard_error(values)) for values in (points.same_one, points.same_many))
        columns[f"same class, of {order}"] = (*same, exact)
        lines.append(
            f"Same class: for how many of the {order} elements the predicted class stays that of the input itself, "
            "which counts (the orbit same prediction, expected)."
        )
    if plan.accuracy is not None:
        found = (plan.accuracy.one, plan.accuracy.many, plan.accuracy.infinite)
        columns["right"] = tuple(with_error(value, error) for value, _, error in found)
        columns["error of sampling"] = tuple(number(error) if error else "–" for _, error, _ in found)
        lines.append("Right: the expected fraction of test samples classified rightly.")
    lines.append(
        f"±: the standard error of the test set, of {plan.problem['test_points']} samples: how far another one of that "
        f"size would be off.{' That of sampling members is beside it.' if plan.accuracy is not None else ''}"
    )
    return Section("How invariant", tuple(lines), tuple(columns), tuple(zip(*columns.values(), strict=True)), "orbits")


def _worst(plan: Any) -> Section:
    points, members = plan.points, plan.settings["members"]
    named = {
        name: None if classes is None else [class_name(plan, classes, row) for row in range(len(classes))]
        for name, classes in (("class", points.label), ("predicted", points.predicted))
    }
    columns: dict[str, tuple[Any, Any]] = {
        "test sample": (points.index, str),
        **{name: (names, str) for name, names in named.items()},
        "members, orbit": (points.orbit_members, whole),
        "members, mean": (points.mean_members, whole),
        "deviation, one": (points.orbit_one, number),
        f"deviation, {members}": (points.orbit_many, number),
        "scatter, one": (points.scatter, number),
        "error, infinite": (points.error, number),
        "same class, one": (points.same_one, number),
    }
    known = {name: column for name, column in columns.items() if column[0] is not None}
    rows = tuple(tuple(shown(values[row]) for values, shown in known.values()) for row in points.worst(WORST))
    lines = (
        "Test samples by their place in what was given, from 0; those first that need most members to agree over their "
        "orbits. Scatter: the standard deviation of one network about the infinite ensemble, over all channels. Error: "
        "the distance of the infinite ensemble from the label.",
    )
    return Section("Worst test samples", lines, tuple(known), rows, pictures=plan.pictures)


def _conventions(plan: Any) -> Section:
    reduction, rate = plan.settings["reduction"], number(plan.settings["learning_rate"])
    loss = {"mean": "the mean of squares over all entries of the augmented labels", "sum": "the sum of squares"}
    lines = (
        f"The loss is ½ of {loss[reduction]}. That of PyTorch and Keras has no ½: with it training is twice as fast.",
        f"Time t is that of gradient flow: t steps of full-batch gradient descent at the learning rate {rate}, in the "
        "limit of small rates. What counts is rate times t.",
        "Networks are infinitely wide, in the NTK parameterization.",
    )
    classes = plan.problem["classes"]
    described = {**plan.settings, **plan.problem, "classes": "none" if classes is None else ", ".join(classes)}
    named = {"points": "training samples", "test_points": "test samples", "samples": "draws"}
    rows = tuple(
        (named.get(name, name.replace("_", " ")), "–" if value is None else str(value))
        for name, value in described.items()
    )
    return Section("Settings and conventions", lines, ("setting", "value"), rows)


def _origin(plan: Any) -> Section:
    """Data, date, command and versions."""
    origin = {name: value for name, value in plan.origin.items() if value is not None}
    took, expected = (origin.pop(name, None) for name in ("seconds", "expected_seconds"))
    if took is not None and expected is not None:
        origin["planning took"] = f"{duration(took)}; {duration(expected)} were expected"
    described = {**origin, **plan.versions}
    return Section("Data, date and versions", (), ("what", "which"), tuple(described.items()))


def _interval(sampled: Any) -> tuple[str, str]:
    value, lower, upper = (whole(each) for each in sampled)
    return value, f"{lower} to {upper}"


def _aligned(rows: tuple[tuple[str, ...], ...]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
