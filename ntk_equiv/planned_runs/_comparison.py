"""The numbers of a report: what was planned for M and for infinitely many members, and what was measured.

For classes outputs are logits, and the ensemble averages probabilities; for numbers it averages outputs. Invariance is
measured after the action on outputs is undone, ρ_Y(g)ᵀf(ρ_X(g)x), which is f(x) for an equivariant f.
"""

import dataclasses
from typing import Any

import numpy as np
import scipy.special

from ntk_equiv import metrics
from ntk_equiv.planned_runs._run import PlannedRun
from ntk_equiv.planning import Plan, format_number, format_with_error

Pair = tuple[float, float]
"""A value with its standard error over test samples."""

# The infinite ensemble counts as invariant if it deviates by less than this, in units of δ.
ROUNDING = 1e-6


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """One line of the comparison.

    Attributes:
        name: what it is.
        planned: what the plan expects of its number of members; None if it says nothing about it.
        infinite: what it expects of infinitely many.
        measured: that of the trained ensemble.
        members: those of its members, each by itself, [members].
    """

    name: str
    planned: Pair | None
    infinite: Pair | None
    measured: Pair
    members: np.ndarray

    def cells(self) -> tuple[str, ...]:
        """Return the row as text."""
        known = ("–" if pair is None else format_with_error(*pair) for pair in (self.planned, self.infinite))
        low, middle, high = (format_number(np.quantile(self.members, q)) for q in (0, 0.5, 1))
        return (self.name, *known, format_with_error(*self.measured), f"{middle} ({low} to {high})")


def compare(run: PlannedRun, /) -> list[Row]:
    """Return the comparison of plan and measurement: errors first, invariance last."""
    return _compare_numbers(run) if run.classes is None else _compare_classes(run)


def _compare_classes(run: PlannedRun) -> list[Row]:
    logits, found = run.outputs[:, run.identity], run.plan.calibration
    rows = []
    for name, metric, key in (
        ("correct", metrics.accuracy, "accuracy"),
        ("negative log-likelihood", metrics.negative_log_likelihood, "likelihood"),
        ("Brier score", metrics.brier_score, "brier"),
        ("calibration error", metrics.calibration_error, "error"),
    ):
        each, planned, infinite = metric(logits, run.labels), None, None
        if found is not None:
            # One network, M members and infinitely many: each a value, ..., and the error of the test set in column 2.
            _, planned, infinite = ((float(row[0]), float(row[2])) for row in getattr(found, key))
        rows.append(Row(name, planned, infinite, _pair(each.probabilities), np.asarray(each.members)))
    return [*rows, _same_class_row(run)]


def _same_class_row(run: PlannedRun) -> Row:
    points, order = run.plan.points, run.plan.problem["order"]
    same = metrics.orbit_same_prediction(moved_back(run), identity=run.identity)
    planned = None if points.same_many is None else mean_over_samples(points.same_many)
    exact = (float(order), 0.0) if is_rounding(run.plan, points.bias.max()) else None
    measured = float(same.ensemble), float(same.ensemble_error)
    return Row(f"same class, of {order} images", planned, exact, measured, np.asarray(same.members))


def _compare_numbers(run: PlannedRun) -> list[Row]:
    plan, at = run.plan, run.outputs[:, run.identity]
    planned = infinite = None
    if plan.test is not None:
        place, members = int(np.flatnonzero(plan.times == plan.t)[0]), plan.settings["members"]
        planned, infinite = (
            (float(plan.test.of(size)[place]), float(plan.test.standard_error(size)[place]))
            for size in (members, np.inf)
        )
    measured = mean_over_samples(((at.mean(axis=0) - run.labels) ** 2).mean(axis=1))
    rows = [Row("mean squared error", planned, infinite, measured, ((at - run.labels) ** 2).mean(axis=(1, 2)))]
    each = np.array([orbit_deviation(one).mean() for one in moved_back(run)])
    exact = is_rounding(plan, plan.points.bias.max())
    measured = mean_over_samples(orbit_deviation(moved_back(run).mean(axis=0)))
    planned = mean_over_samples(plan.points.orbit_many)
    return [*rows, Row("deviation over the orbit", planned, (0.0, 0.0) if exact else None, measured, each)]


def is_rounding(plan: Plan, deviation: float, /) -> bool:
    """Return whether a deviation of the infinite ensemble is no more than rounding."""
    return bool(deviation < ROUNDING * plan.settings["delta"])


def moved_back(run: PlannedRun, /) -> np.ndarray:
    """Return what members predict for moved samples, with the action on outputs undone, [members, order, m, channels].

    For classes these are probabilities.
    """
    values = run.outputs if run.classes is None else scipy.special.softmax(run.outputs, axis=-1)
    return np.einsum("gji,kgmj->kgmi", run.actions, values)


def orbit_deviation(values: np.ndarray, /) -> np.ndarray:
    """Return the standard deviation over the orbit, over all channels, as a plan has it: [order, m, channels] → [m]."""
    return np.sqrt(np.sum((values - values.mean(axis=0)) ** 2, axis=2).mean(axis=0))


def images_of_same_class(values: np.ndarray, identity: int, /) -> np.ndarray:
    """Return how many images of a sample are classified like the sample: [order, m, classes] → [m]."""
    classes = values.argmax(axis=-1)
    return (classes == classes[identity]).sum(axis=0)


def mean_over_samples(values: np.ndarray, /) -> Pair:
    """Return a mean with its standard error; NaN for a single sample."""
    error = float(np.std(values, ddof=1)) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return float(np.mean(values)), error


def invariance_by_members(run: PlannedRun, /) -> list[tuple[int, float, float]]:
    """Return how invariant the first M members are together, for several M: M, value and standard error."""
    back, count = moved_back(run), len(run.outputs)
    sizes = sorted({size for size in (1, 2, 3, 5, 10, 20, 50, 100, 200, 500) if size < count} | {count})
    found = []
    for size in sizes:
        mean = back[:size].mean(axis=0)
        values = orbit_deviation(mean) if run.classes is None else images_of_same_class(mean, run.identity)
        found.append((size, *mean_over_samples(values)))
    return found


def planned_invariance(run: PlannedRun, /) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers of members for which the plan says how invariant they are, and how invariant."""
    plan = run.plan
    if run.classes is None:
        return plan.orbit.members, plan.orbit.mean
    one, many = plan.points.same_one, plan.points.same_many
    assert one is not None, "plans know it for classes"
    assert many is not None, "and this"
    known = {1: one.mean(), plan.settings["members"]: many.mean()}
    return np.array([*known]), np.array([*known.values()])


def scaled_by_temperature(run: PlannedRun, /) -> tuple[float, np.ndarray] | None:
    """Return the temperature that fits the validation samples best, and the log-probabilities with it, [1, m, classes].

    None if the validation samples are classified no better than by chance.
    """
    labels = run.validation_labels
    try:  # smoothing gives a temperature also if all samples are classified right
        temperature = metrics.fit_temperature(run.validation_outputs, labels, smoothing=1 / (len(labels) + 1))
    except ValueError:
        return None
    p = metrics.ensemble_probabilities(run.outputs[:, run.identity], temperature=temperature)
    return temperature, np.log(np.maximum(p, np.finfo(np.float32).tiny))[None]


def _pair(found: Any) -> Pair:
    return float(found.value), float(found.error)
