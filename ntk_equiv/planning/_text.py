"""A plan in words and tables: the answers in short, and the sections that both the text and the report consist of."""

import dataclasses
import math
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from ntk_equiv._typing import Scalar
from ntk_equiv.infinite import duration
from ntk_equiv.planning._plan import Calibration, Plan, Width, standard_error

# Lines of the table of times; the others are in the figure and in the JSON file.
TIMES_SHOWN = 12
WORST_SHOWN = 10
WIDTH = 100
WARNING = "WARNING: "
# The first steps at a high rate are far from gradient flow: with ten or more, they agree within a few percent.
FEWEST_STEPS = 10


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the text and the report.

    Attributes:
        title: its heading.
        lines: sentences, one item each.
        header: the header of its table; empty if there is none.
        rows: the rows of its table.
        panel: the panel of the figure that belongs here.
        pictures: a picture for each row of the table, as PNG in base64.
    """

    title: str
    lines: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    panel: str | None = None
    pictures: tuple[str, ...] = ()


def plan_sections(plan: Plan, /) -> list[Section]:
    """Return all sections, in order."""
    warnings = tuple(note.removeprefix(WARNING) for note in plan.notes if note.startswith(WARNING))
    others = tuple(note for note in plan.notes if not note.startswith(WARNING))
    return [
        *([Section("Warnings", warnings)] if warnings else []),
        Section("In short", _short_answers(plan)),
        _errors_section(plan),
        _members_section(plan),
        _invariance_section(plan),
        *([_calibration_section(plan, plan.calibration)] if plan.calibration is not None else []),
        *([_width_section(plan, plan.width)] if plan.width is not None else []),
        _worst_section(plan),
        Section("Where this holds", others),
        _settings_section(plan),
        _origin_section(plan),
    ]


def plan_text(plan: Plan, /) -> str:
    """Return all sections as text."""
    return sections_text(plan_sections(plan))


def sections_text(sections: Sequence[Section], /) -> str:
    """Return sections as text."""
    parts = []
    for section in sections:
        lines = [section.title, "-" * len(section.title)]
        for line in section.lines:
            lines += textwrap.wrap(f"- {line}", WIDTH, subsequent_indent="  ")
        gap = [""] if section.lines and section.rows else []
        parts.append("\n".join(lines + gap + (_align((section.header, *section.rows)) if section.rows else [])))
    return "\n\n".join(parts)


def _errors_section(plan: Plan) -> Section:
    members, last = plan.settings["members"], len(plan.times) - 1
    places = np.linspace(0, last, min(TIMES_SHOWN, last + 1)).round().astype(int)
    columns = {"t": plan.times, "train, infinite": plan.train.infinite, "train, one": plan.train.of(1)}
    if plan.test is not None:
        columns["test, infinite"] = plan.test.infinite
        columns["±"] = plan.test.standard_error()
        columns[f"test, {members}"] = plan.test.of(members)
        columns["test, one"] = plan.test.of(1)
    if plan.accuracy is not None:
        columns["correct, infinite"] = plan.accuracy.over_time
    rows = [tuple(format_number(c[row]) for c in columns.values()) for row in np.union1d(places, [place_of_time(plan)])]
    lines = (
        "Mean squared errors over samples and channels, as theory predicts them: the error of the infinite ensemble, "
        f"and the expected errors of the mean of {format_members(members)} and of one network. Training samples are "
        "those that were given, without their images under the group.",
        *([f"±: the standard error of a test set of {plan.problem['test_points']} samples."] if plan.test else []),
    )
    return Section("Errors against training time", lines, tuple(columns), tuple(rows), "errors")


def _members_section(plan: Plan) -> Section:
    needed, single = plan.needed, plan.points.mean_members
    orbit, mean = "agreement over the orbit", "closeness to the infinite ensemble"
    rows = (
        (orbit, "the worst test sample", *_format_interval(needed.orbit_worst)),
        (orbit, "half of the test samples", format_whole(needed.orbit_median), "the median"),
        (mean, "the worst test sample", format_whole(needed.mean_worst), "exact"),
        (mean, "half of the test samples", format_whole(np.sort(single)[(len(single) - 1) // 2]), "exact"),
        (mean, "all test samples at once", *_format_interval(needed.mean_all)),
        (mean, "the same, whatever their correlations", format_whole(needed.mean_bound), "a bound"),
    )
    delta, epsilon = format_number(plan.settings["delta"]), plan.settings["epsilon"]
    lines = (
        f"How many members it takes until a deviation of more than δ = {delta} has a probability of at most "
        f"ε = {epsilon}, at t = {format_number(plan.t)}. A deviation is a Euclidean distance over output channels.",
        "Agreement over the orbit: the prediction for the moved input agrees with the moved prediction, for all "
        "elements of the group at once and for each test sample by itself.",
        "Numbers that are sampled come with an interval that holds with a probability of 99.9 %.",
    )
    return Section("Members needed", lines, ("what for", "where", "members", "known"), rows, "points")


def _invariance_section(plan: Plan) -> Section:
    points, members, order = plan.points, plan.settings["members"], plan.problem["order"]
    each = (points.orbit_one, points.orbit_many, points.bias)
    columns = {
        "": ("one network", format_members(members), "infinite ensemble"),
        "deviation, mean": tuple(format_with_error(values.mean(), standard_error(values)) for values in each),
        "deviation, worst": tuple(format_number(values.max()) for values in each),
    }
    lines = [
        "Deviation: the expected standard deviation of predictions over the orbit of a test sample, averaged over test "
        "samples and at the worst one. For the infinite ensemble it is the largest deviation over the group, which "
        "vanishes up to rounding where the theorem holds.",
    ]
    if points.same_one is not None and points.same_many is not None:
        exact = format_number(order) if points.bias.max() < 1e-6 * plan.settings["delta"] else "–"
        same = (
            format_with_error(values.mean(), standard_error(values)) for values in (points.same_one, points.same_many)
        )
        columns[f"same class, of {order}"] = (*same, exact)
        lines.append(
            f"Same class: for how many of the {order} elements, the identity included, the predicted class is that of "
            "the input itself (the expected orbit same prediction)."
        )
    if plan.accuracy is not None:
        found = (plan.accuracy.one, plan.accuracy.many, plan.accuracy.infinite)
        columns["correct"] = tuple(format_with_error(value, error) for value, _, error in found)
        columns["error of sampling"] = tuple(format_number(error) if error else "–" for _, error, _ in found)
        lines.append("Correct: the expected fraction of test samples that are classified correctly.")
    lines.append(
        f"±: the standard error of a test set of {plan.problem['test_points']} samples, that is how far another test "
        f"set of that size would be off.{' The error of sampling members stands beside it.' if plan.accuracy else ''}"
    )
    return Section("How invariant", tuple(lines), tuple(columns), tuple(zip(*columns.values(), strict=True)), "orbits")


def _calibration_section(plan: Plan, found: Calibration) -> Section:
    metrics = {
        "correct": found.accuracy,
        "negative log-likelihood": found.likelihood,
        "Brier score": found.brier,
        "calibration error": found.error,
    }
    columns: dict[str, tuple[str, ...]] = {
        "": ("one network", format_members(plan.settings["members"]), "infinite ensemble")
    }
    for name, values in metrics.items():
        columns[name] = tuple(format_with_error(value, error) for value, _, error, _ in values)
    columns["above infinite"] = tuple(format_number(excess) for excess in (*found.excess, 0.0))
    columns["scatter of likelihood"] = tuple(format_number(row[3]) if row[3] else "–" for row in found.likelihood)
    columns["error of sampling"] = tuple(format_number(row[1]) if row[1] else "–" for row in found.likelihood)
    delta = format_number(plan.settings["likelihood_delta"])
    needed, interval = _format_interval(found.members)
    lines = (
        f"Expected metrics of the class probabilities softmax(f̂/T), with the mean output f̂ of all members and T = "
        f"{format_number(found.temperature)}, on {found.samples} held-out samples. Likelihoods are in nats. How far "
        "they are above that of the infinite ensemble is known more precisely than they are themselves.",
        f"Calibration error: the difference between accuracy and confidence, over 15 bins of confidence. On so "
        f"few samples {format_number(found.noise)} is expected even if the probabilities of the infinite ensemble "
        "are right.",
        f"A negative log-likelihood within {delta} of that of infinitely many members takes {needed} of them (sampled, "
        f"{interval}).",
        f"±: the standard error of a test set of {found.samples} samples. Scatter: how far one ensemble of so many "
        "members is from the expected likelihood. The last column is the error of sampling members.",
    )
    rows = tuple(zip(*columns.values(), strict=True))
    return Section("How good the probabilities are", lines, tuple(columns), rows, "reliability")


def _worst_section(plan: Plan) -> Section:
    points, members = plan.points, plan.settings["members"]
    classes, files = plan.problem["classes"], plan.origin.get("files", ())
    # Columns that are not known, such as classes for regression, are left out.
    columns: dict[str, tuple[Any, Any]] = {
        "test sample": (points.index, str),
        "file": (points.index if files else None, lambda index: files[int(index)]),
        "class": (points.label, lambda label: classes[int(label)]),
        "predicted": (points.predicted, lambda label: classes[int(label)]),
        "members, orbit": (points.orbit_members, format_whole),
        "members, mean": (points.mean_members, format_whole),
        "deviation, one": (points.orbit_one, format_number),
        f"deviation, {members}": (points.orbit_many, format_number),
        "scatter, one": (points.scatter, format_number),
        "error, infinite": (points.error, format_number),
        "same class, one": (points.same_one, format_number),
    }
    known = {name: column for name, column in columns.items() if column[0] is not None}
    rows = tuple(tuple(write(values[row]) for values, write in known.values()) for row in points.worst(WORST_SHOWN))
    lines = (
        "Test samples by their place in the data, counted from 0; the first need most members to agree over their "
        "orbits. Scatter: the standard deviation of one network about the infinite ensemble, over all channels. Error: "
        "the distance of the infinite ensemble from the label.",
    )
    return Section("Worst test samples", lines, tuple(known), rows, pictures=plan.pictures)


def _settings_section(plan: Plan) -> Section:
    reduction, rate = plan.settings["reduction"], format_number(plan.settings["learning_rate"])
    loss = {"mean": "the mean of squares over all entries of the augmented labels", "sum": "the sum of squares"}
    lines = (
        f"The loss is ½ of {loss[reduction]}. That of PyTorch and Keras has no ½, so training is twice as fast.",
        f"Time t is that of gradient flow: t steps of full-batch gradient descent at the learning rate {rate}, in the "
        "limit of small rates. What counts is the product of rate and t.",
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


def _origin_section(plan: Plan) -> Section:
    origin = {name: value for name, value in plan.origin.items() if value is not None and name != "files"}
    took, expected = (origin.pop(name, None) for name in ("seconds", "expected_seconds"))
    if took is not None and expected is not None:
        origin["planning took"] = f"{duration(took)}; {duration(expected)} were expected"
    described = {name: str(value) for name, value in {**origin, **plan.versions}.items()}
    return Section("Data, date and versions", (), ("what", "which"), tuple(described.items()))


def _format_interval(sampled: np.ndarray) -> tuple[str, str]:
    value, lower, upper = (format_whole(each) for each in sampled)
    return value, f"{lower} to {upper}"


def _align(rows: tuple[tuple[str, ...], ...]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _short_answers(plan: Plan) -> tuple[str, ...]:
    """Return the answers to the questions of a practitioner, in a sentence or two each."""
    worst = ", ".join(f"{plan.points.index[row]}{_class_in_brackets(plan, int(row))}" for row in plan.points.worst(5))
    inputs = f"predictions of members vary most over the orbits of these test samples, counted from 0: {worst}."
    return (
        f"How many members: {_members_in_short(plan)}",
        f"How long to train: {_time_in_short(plan)}",
        f"How long with Adam: {_adam_in_short(plan)}",
        f"How large is the error: {_error_in_short(plan)}",
        *([f"How good are the probabilities: {_calibration_in_short(plan)}"] if plan.problem["classes"] else []),
        f"On which inputs: {inputs}",
        *([f"Is the network wide enough: {_width_in_short(plan, plan.width)}"] if plan.width is not None else []),
    )


def _width_in_short(plan: Plan, found: Width) -> str:
    members, last = format_members(plan.settings["members"]), format_number(found.times[-1])
    shift, chance = format_number(found.shift[-1]), format_number(found.chance[-1])
    sizes = f"the shift of the mean at t = {last} is estimated to be {shift}, the standard error of {members} {chance}"
    if found.enough == "yes":
        return f"yes, width {found.width} is: {sizes}. This is an estimate from {found.networks} random networks."
    if found.enough == "perhaps":
        lower, upper = map(format_whole, found.needed[1:])
        return (
            f"perhaps: {sizes}, but {found.networks} random networks leave it open what width is enough, from {lower} "
            f"to {upper} or more."
        )
    until, needed = format_number(found.until[0]), format_whole(found.needed[0])
    falls = "1/√width, as for networks with kinks" if found.power < 1 else "1/width"
    return (
        f"no, width {found.width} is not: {sizes}. Up to t = {until} it is below two of these; at t = {last} it would "
        f"be at width {needed}, if it falls as {falls}. These are estimates from {found.networks} random networks."
    )


def _width_section(plan: Plan, found: Width) -> Section:
    rows = tuple(
        tuple(map(format_number, row)) for row in zip(found.times, found.change, found.shift, found.chance, strict=True)
    )
    lines = (
        f"An estimate, made without training: {found.networks} random networks of width {found.width} and "
        f"{found.samples} of the training samples, with their images under the group. How much their kernels change on "
        "the way that the linearised networks take, by how much the mean is shifted (root mean square over test "
        f"samples), and for comparison the standard error of the mean of {format_members(plan.settings['members'])}.",
        f"The shift reaches two standard errors at t = {' to '.join(map(format_number, np.sort(found.until[1:])))} "
        f"(inf: not up to t = {format_number(found.times[-1])}).",
    )
    return Section("Width", lines, ("t", "change of the kernel", "shift", "chance"), rows)


def place_of_time(plan: Plan, /) -> int:
    """Return the place of the time of the plan among all times."""
    return int(np.flatnonzero(plan.times == plan.t)[0])


def _class_in_brackets(plan: Plan, row: int) -> str:
    label = plan.points.label
    return "" if label is None else f" ({plan.problem['classes'][int(label[row])]})"


def _members_in_short(plan: Plan) -> str:
    delta, sure = format_number(plan.settings["delta"]), f"{100 * (1 - plan.settings['epsilon']):.4g} %"
    needed, count = plan.needed, plan.problem["test_points"]
    half = f"half of the samples need at most {format_whole(needed.orbit_median)}"
    if needed.unreachable:
        return (
            f"no number is enough for {needed.unreachable} of {count} test samples, over whose orbits the infinite "
            f"ensemble itself deviates by {delta} or more; {half}."
        )
    enough, at_most = format_whole(needed.orbit_worst[0]), format_whole(needed.orbit_worst[2])
    return (
        f"{enough} (estimated by drawing; at most {at_most}) make the predictions over the orbit of any test "
        f"sample agree up to {delta} with a probability of {sure}; {half}. To be within {delta} of the infinite "
        f"ensemble takes {format_whole(needed.mean_worst)} for any sample by itself, and "
        f"{format_whole(needed.mean_all[0])} for all of them ({count}) at once."
    )


def _time_in_short(plan: Plan) -> str:
    stable = f"the largest that is stable is {format_number(plan.stable_rate)}"
    if not math.isfinite(plan.t):
        return f"to the end, t = ∞, {_reason_for_time(plan)}. For the rate of full-batch gradient descent, {stable}."
    if not plan.t:
        return f"not at all, t = 0, {_reason_for_time(plan)}."
    time = plan.t * plan.settings["learning_rate"]
    steps = max(FEWEST_STEPS, math.ceil(time / (plan.stable_rate / 2)))
    descent = f"{format_whole(steps)} steps of full-batch gradient descent at a rate of {format_number(time / steps)}"
    return f"to t = {format_number(plan.t)}, {_reason_for_time(plan)}. That is {descent}; {stable}."


def _adam_in_short(plan: Plan) -> str:
    """Return what carries over to an optimizer that has no such time: the training error to stop at."""
    at = place_of_time(plan)
    one, infinite = format_number(plan.train.of(1)[at]), format_number(plan.train.infinite[at])
    goal = (
        f"has fallen to about {one}, which is expected of one network here ({infinite} of the infinite ensemble)"
        if math.isfinite(plan.t)
        else "no longer falls"
    )
    return (
        "the time t is that of gradient descent, and no number of steps or epochs of Adam corresponds to it. What "
        "carries over is where to stop: train each member until its mean squared error on the training samples "
        f"{goal}, and let a validation set have the last word. Errors and numbers of members are then a guide."
    )


def _reason_for_time(plan: Plan) -> str:
    if plan.settings["at"] is not None:
        return "the time that was asked for"
    if plan.test is None:
        return "the last time, because there are no test labels to choose it by"
    edge = {0: " (no earlier one was looked at)", len(plan.times) - 1: " (no later one was looked at)"}
    error = f"the expected test error of {format_members(plan.settings['members'])}"
    return f"the first time at which {error} is within 1 % of its least{edge.get(place_of_time(plan), '')}"


def _error_in_short(plan: Plan) -> str:
    if plan.test is None or plan.baseline is None:
        return "unknown, because the test samples have no labels."
    at, members, test = place_of_time(plan), plan.settings["members"], plan.test
    infinite, many, one = (
        format_with_error(test.of(size)[at], test.standard_error(size)[at]) for size in (math.inf, members, 1)
    )
    text = (
        f"a mean squared test error of {infinite} for the infinite ensemble, expected {many} of "
        f"{format_members(members)} and {one} of one network; always predicting the mean label has "
        f"{format_number(plan.baseline)}."
    )
    if plan.accuracy is not None:
        correct, _, error = plan.accuracy.infinite
        text += f" The infinite ensemble classifies {format_percent(correct, error)} of the test samples correctly."
    return f"{text} The number after ± is the standard error of a test set of {plan.problem['test_points']} samples."


def _calibration_in_short(plan: Plan) -> str:
    found = plan.calibration
    if found is None:
        return "unknown, because no test sample with a label was held out from training."
    infinite, error = (format_with_error(row[0], row[2]) for row in (found.likelihood[2], found.error[1]))
    one, many = (format_number(excess) for excess in found.excess)
    enough, _, at_most = (format_whole(number) for number in found.members)
    members, delta = format_members(plan.settings["members"]), format_number(plan.settings["likelihood_delta"])
    return (
        f"softmax(f̂/T) with T = {format_number(found.temperature)} has a negative log-likelihood of {infinite} nats "
        f"for the infinite ensemble, expected {many} more of {members} and {one} more of one network. For less than "
        f"{delta} more it takes {enough} (estimated by drawing; at most {at_most}). The calibration error of "
        f"{members} is {error}; {format_number(found.noise)} is to be expected of so few samples even if the "
        f"probabilities are right. {_confidence_in_words(found)}"
    )


def _confidence_in_words(found: Calibration) -> str:
    """Return whether the infinite ensemble is too sure or not sure enough, if that is more than noise."""
    confidence, accuracy, _, samples = found.diagram_infinite
    total = samples.sum()
    sure, right = (float(np.sum(samples * each) / total) for each in (confidence, accuracy))
    error = found.accuracy[2, 2]
    kind = "about as sure as it should be"
    if error > 0 and abs(sure - right) > 2 * error:
        kind = "too sure" if sure > right else "not sure enough"
    return f"The infinite ensemble is {kind}: its mean confidence is {sure:.3g}, and it is right in {right:.3g}."


def format_number(value: Scalar, /) -> str:
    """Return a number with three digits; ∞ for infinity and a dash for NaN.

    >>> format_number(1234.5), format_number(float("inf")), format_number(float("nan"))
    ('1.23e+03', '∞', '–')
    """
    value = float(value)
    if math.isnan(value):
        return "–"
    return ("∞" if value > 0 else "−∞") if math.isinf(value) else f"{value:.3g}"


def format_members(count: int, /) -> str:
    """Return the size of an ensemble in words.

    >>> format_members(1), format_members(10)
    ('1 member', '10 members')
    """
    return f"{count} member{'s' * (count != 1)}"


def format_whole(value: Scalar, /) -> str:
    """Return a number of members; "none" where no number is enough.

    >>> format_whole(12345.0), format_whole(float("nan"))
    ('12 345', 'none')
    """
    return "none" if math.isnan(float(value)) else f"{int(value):,}".replace(",", " ")


def format_with_error(value: Scalar, error: Scalar, /) -> str:
    """Return a number with its standard error, both to the digits that the error allows; or the number alone.

    >>> format_with_error(0.8881234, 0.0317), format_with_error(0.5, float("nan")), format_with_error(12345.6, 230.0)
    ('0.888 ± 0.032', '0.5', '1.23e+04 ± 2.3e+02')
    """
    value, error = float(value), float(error)
    if not math.isfinite(value) or not error > 0:
        return format_number(value)
    digits = 1 - math.floor(math.log10(error))
    if not 0 <= digits <= 5:
        return f"{format_number(value)} ± {error:.2g}"
    return f"{value:.{digits}f} ± {error:.{digits}f}"


def format_percent(value: Scalar, error: Scalar, /) -> str:
    """Return a fraction with its standard error, in percent.

    >>> format_percent(0.8881, 0.0317), format_percent(1.0, 0.0)
    ('88.8 ± 3.2 %', '100 %')
    """
    return f"{format_with_error(100 * float(value), 100 * float(error))} %"
