"""A plan in words and tables: the sections that both the text and the report consist of."""

import dataclasses
import math
import textwrap
from typing import Any

import numpy as np

# Rows of the table of times; the others are in the figure and in the JSON file.
TIMES = 12
WORST = 10
WIDTH = 100


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the report.

    Attributes:
        title: its heading.
        lines: sentences, one item each.
        header: of the table; empty if there is none.
        rows: of the table.
        panel: the panel of the figure that belongs here.
    """

    title: str
    lines: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    panel: str | None = None


def sections(plan: Any, /) -> list[Section]:
    """All sections, in order."""
    return [
        Section("In short", _short(plan)),
        _errors(plan),
        _members(plan),
        _invariance(plan),
        _worst(plan),
        Section("Where this holds", plan.notes),
        _conventions(plan),
        Section("Versions", (), ("part", "version"), tuple(plan.versions.items())),
    ]


def as_text(plan: Any, /) -> str:
    """All sections as text."""
    parts = []
    for section in sections(plan):
        lines = [section.title, "-" * len(section.title)]
        for line in section.lines:
            lines += textwrap.wrap(f"- {line}", WIDTH, subsequent_indent="  ")
        if section.rows:
            lines += (
                ["", *_aligned((section.header, *section.rows))]
                if section.lines
                else _aligned((section.header, *section.rows))
            )
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def number(value: Any, /) -> str:
    """A number to three digits; ∞ and a dash for what is not one."""
    value = float(value)
    if math.isnan(value):
        return "–"
    return ("∞" if value > 0 else "−∞") if math.isinf(value) else f"{value:.3g}"


def whole(value: Any, /) -> str:
    """A number of members; "none" where no number is enough."""
    return "none" if math.isnan(float(value)) else f"{int(value):,}".replace(",", " ")


def _short(plan: Any) -> tuple[str, ...]:
    delta, epsilon = number(plan.settings["delta"]), plan.settings["epsilon"]
    sure = f"{100 * (1 - epsilon):.4g} %"
    needed, m = plan.needed, plan.problem["test_points"]
    lines = []
    if needed.unreachable:
        lines.append(
            f"How many members: no number is enough for {needed.unreachable} of {m} test points, where the infinite "
            f"ensemble itself deviates over the orbit by {delta} or more. Half of the test points need at most "
            f"{whole(needed.orbit_median)}."
        )
    else:
        value, _, upper = needed.orbit_worst
        lines.append(
            f"How many members: {whole(value)} (at most {whole(upper)}) make the predictions over the orbit of every test point agree "
            f"up to {delta} with a probability of {sure}, each point by itself; half of the points need at most "
            f"{whole(needed.orbit_median)}. To be within {delta} of the infinite ensemble takes {whole(needed.mean_worst)} "
            f"for every point by itself, {whole(needed.mean_all[0])} for all {m} at once."
        )
    lines.append(_how_long(plan))
    lines.append(_how_large(plan))
    worst = ", ".join(str(plan.points.index[row]) for row in plan.points.worst(5))
    lines.append(
        f"On which inputs: the predictions of members vary most over the orbits of test points {worst}, counted from 0."
    )
    return tuple(lines)


def _how_long(plan: Any) -> str:
    why = _why_this_time(plan)
    rate = plan.stable_rate / 2
    if not math.isfinite(plan.t):
        return f"How long to train: to the end, t = ∞, {why}. Gradient descent is stable below a rate of {number(plan.stable_rate)}."
    steps = plan.t * plan.settings["learning_rate"] / rate
    return (
        f"How long to train: to t = {number(plan.t)}, {why}. That is about {number(math.ceil(steps))} steps of full-batch gradient "
        f"descent at a rate of {number(rate)}, half of the largest that is stable."
    )


def _why_this_time(plan: Any) -> str:
    if plan.settings["at"] is not None:
        return "as was asked"
    if plan.test is None:
        return "the last time, for lack of test labels to choose it by"
    place = {0: ", the first of the times that were looked at", len(plan.times) - 1: ", the last one"}
    edge = place.get(int(np.flatnonzero(plan.times == plan.t)[0]), "")
    return f"where the expected test error of {plan.settings['members']} members is least{edge}"


def _how_large(plan: Any) -> str:
    if plan.test is None:
        return "How large is the error: unknown, because the test points have no labels."
    at, members = int(np.flatnonzero(plan.times == plan.t)[0]), plan.settings["members"]
    one, many, infinite = (
        number(values[at]) for values in (plan.test.of(1), plan.test.of(members), plan.test.infinite)
    )
    line = (
        f"How large is the error: a mean squared test error of {infinite} for the infinite ensemble, {many} expected of "
        f"{members} members and {one} of one network; always predicting the mean label has {number(plan.baseline)}."
    )
    if plan.accuracy is not None:
        line += (
            f" Of the test points {100 * plan.accuracy.infinite:.4g} % are classified rightly by the infinite ensemble."
        )
    return line


def _errors(plan: Any) -> Section:
    members = plan.settings["members"]
    rows_at = np.unique(np.linspace(0, len(plan.times) - 1, min(TIMES, len(plan.times))).round().astype(int))
    rows_at = np.union1d(rows_at, np.flatnonzero(plan.times == plan.t))
    columns = [plan.times, plan.train.infinite, plan.train.of(1)]
    header = ["t", "train, infinite", "train, one"]
    if plan.test is not None:
        columns += [plan.test.infinite, plan.test.of(members), plan.test.of(1)]
        header += ["test, infinite", f"test, {members}", "test, one"]
    if plan.accuracy is not None:
        columns.append(plan.accuracy.over_time)
        header.append("right, infinite")
    rows = tuple(tuple(number(column[row]) for column in columns) for row in rows_at)
    lines = (
        "Mean squared errors over points and channels, as theory predicts them: of the infinite ensemble, and expected "
        f"of the mean of {members} members and of one network. Training points are those that were given.",
    )
    return Section("Errors against training time", lines, tuple(header), rows, "errors")


def _members(plan: Any) -> Section:
    needed, delta, epsilon = plan.needed, number(plan.settings["delta"]), plan.settings["epsilon"]
    interval = lambda values: (whole(values[0]), f"{whole(values[1])} to {whole(values[2])}")  # noqa: E731
    median = int(np.sort(plan.points.mean_members)[(len(plan.points.mean_members) - 1) // 2])
    rows = (
        ("agreement over the orbit", "the worst test point", *interval(needed.orbit_worst)),
        ("agreement over the orbit", "half of the test points", whole(needed.orbit_median), ""),
        ("closeness to the infinite ensemble", "the worst test point", whole(needed.mean_worst), "exact"),
        ("closeness to the infinite ensemble", "half of the test points", whole(median), "exact"),
        ("closeness to the infinite ensemble", "all test points at once", *interval(needed.mean_all)),
        (
            "closeness to the infinite ensemble",
            "the same, whatever their correlations",
            whole(needed.mean_bound),
            "a bound",
        ),
    )
    lines = (
        f"The number of members for which a deviation of more than δ = {delta} has a probability of at most ε = {epsilon}, at "
        f"t = {number(plan.t)}. A deviation is a Euclidean distance over output channels. Agreement over the orbit: between "
        "the prediction for the moved input and the moved prediction, for all elements of the group at once.",
        "What is sampled comes with an interval that holds with a probability of 99.9 %.",
    )
    return Section("Members needed", lines, ("what for", "where", "members", "interval"), rows, "points")


def _invariance(plan: Any) -> Section:
    points, members, order = plan.points, plan.settings["members"], plan.problem["order"]
    header = ["", "deviation, mean", "deviation, worst"]
    rows = [
        ["one network", number(points.orbit_one.mean()), number(points.orbit_one.max())],
        [f"{members} members", number(points.orbit_many.mean()), number(points.orbit_many.max())],
        ["infinite ensemble", number(plan.points.bias.mean()), number(points.bias.max())],
    ]
    lines = [
        "The expected standard deviation of predictions over the orbit of a test point, averaged over test points and at the worst "
        "one; for the infinite ensemble the largest deviation over the group, which is zero up to rounding where the theorem holds."
    ]
    if points.same_one is not None:
        header.append(f"same class, of {order}")
        rows[0].append(number(points.same_one.mean()))
        rows[1].append(number(points.same_many.mean()))
        rows[2].append(number(order) if points.bias.max() < 1e-6 * plan.settings["delta"] else "–")
        lines.append(
            f"Same class: for how many of the {order} elements the predicted class stays what it is for the input itself, which counts."
        )
    if plan.accuracy is not None:
        header.append("right")
        one, many = ((f"{number(value)} ± {number(error)}") for value, error in (plan.accuracy.one, plan.accuracy.many))
        for row, value in zip(rows, (one, many, number(plan.accuracy.infinite)), strict=True):
            row.append(value)
        lines.append(
            "Right: the fraction of test points that are classified rightly, expected, with the standard error of sampling it."
        )
    return Section("How invariant", tuple(lines), tuple(header), tuple(map(tuple, rows)), "orbits")


def _worst(plan: Any) -> Section:
    points, members = plan.points, plan.settings["members"]
    header = [
        "test point",
        "members, orbit",
        "members, mean",
        "deviation, one",
        f"deviation, {members}",
        "scatter, one",
    ]
    columns: list[tuple[Any, Any]] = [
        (points.index, str),
        (points.orbit_members, whole),
        (points.mean_members, whole),
        (points.orbit_one, number),
        (points.orbit_many, number),
        (points.scatter, number),
    ]
    if points.error is not None:
        header.append("error, infinite")
        columns.append((points.error, number))
    if points.same_one is not None:
        header.append("same class, one")
        columns.append((points.same_one, number))
    rows = tuple(tuple(shown(values[row]) for values, shown in columns) for row in points.worst(WORST))
    lines = (
        "Test points by their place in what was given, from 0, those first that need most members to agree over their orbits. "
        "Scatter: the standard deviation of one network about the infinite ensemble, over all channels. Error: the distance of the "
        "infinite ensemble from the label.",
    )
    return Section("Worst test points", lines, tuple(header), rows)


def _conventions(plan: Any) -> Section:
    loss = {
        "mean": "½ of the mean of squares over all entries of the augmented labels",
        "sum": "½ of the sum of squares",
    }
    reduction, rate = plan.settings["reduction"], plan.settings["learning_rate"]
    lines = (
        f'The loss is {loss[reduction]} (reduction "{reduction}"). That of PyTorch and Keras has no ½: with it training is twice as fast.',
        f"Time t is that of gradient flow: t steps of full-batch gradient descent at the learning rate {number(rate)}, in the limit of "
        f"small rates. What counts is rate times t. Descent diverges above a rate of {number(plan.stable_rate)}.",
        "Widths do not appear: networks are taken to be infinitely wide, in the NTK parameterization.",
    )
    described = {name: value for name, value in plan.problem.items() if name != "classes"}
    if plan.problem["classes"]:
        described["classes"] = ", ".join(plan.problem["classes"])
    rows = tuple((name.replace("_", " "), str(value)) for name, value in {**plan.settings, **described}.items())
    return Section("Settings and conventions", lines, ("setting", "value"), rows)


def _aligned(rows: tuple[tuple[str, ...], ...]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
