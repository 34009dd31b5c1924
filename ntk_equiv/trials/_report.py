"""A trial in words, tables and figures: what was planned beside what was measured.

For classes outputs are logits, and the ensemble averages probabilities; for numbers it averages outputs.
"""

import dataclasses
from typing import Any

import numpy as np
import scipy.special

from ntk_equiv import metrics, plotting
from ntk_equiv.planning import Section, format_number, format_with_error, page_html, thumbnails
from ntk_equiv.trials._trial import Trial

WORST_SHOWN = 10
BINS = 10
CAPTIONS = {
    "training": "Losses and metrics along training: the ensemble on validation samples, and median and quartiles of "
    "its members.",
    "members": "Invariance of ensembles of the first members, measured on test samples, over the number of members.",
    "reliability": "Accuracy against confidence on the test samples, with standard errors. On the diagonal, "
    "probabilities are right on average. Dashed: what the plan expected of so many members.",
}
MEASURED = "Everything in the column “measured” is measured, on test samples that were not trained on."


@dataclasses.dataclass(frozen=True)
class Row:
    """One number of the comparison: what it is, what was planned for M and for infinitely many members, and measured.

    Attributes:
        name: what it is.
        planned: value and standard error of a test set, for as many members as the plan has; None if unknown.
        infinite: the same for infinitely many.
        measured: that of the trained ensemble.
        members: those of all its members.
    """

    name: str
    planned: tuple[float, float] | None
    infinite: tuple[float, float] | None
    measured: tuple[float, float]
    members: np.ndarray

    def cells(self) -> tuple[str, ...]:
        """Return the row as text."""
        known = ("–" if pair is None else format_with_error(*pair) for pair in (self.planned, self.infinite))
        low, middle, high = (format_number(np.quantile(self.members, q)) for q in (0, 0.5, 1))
        return (self.name, *known, format_with_error(*self.measured), f"{middle} ({low} to {high})")


def turned_back(trial: Trial) -> np.ndarray:
    """Return what members predict for moved samples, with the action on outputs undone, [members, order, m, channels].

    For classes these are probabilities.
    """
    values = scipy.special.softmax(trial.outputs, axis=-1) if has_classes(trial) else trial.outputs
    return np.einsum("gji,kgmj->kgmi", trial.actions, values)


def has_classes(trial: Trial) -> bool:
    """Return whether the ensemble classifies."""
    return trial.plan.problem["classes"] is not None


def compare(trial: Trial) -> list[Row]:
    """Return the comparison of plan and measurement."""
    return _compare_classes(trial) if has_classes(trial) else _compare_numbers(trial)


def _compare_classes(trial: Trial) -> list[Row]:
    logits, labels, plan = trial.outputs[:, trial.identity], trial.labels, trial.plan
    expected = dict.fromkeys(("accuracy", "likelihood", "brier", "error"))
    if plan.calibration is not None:
        expected = {name: getattr(plan.calibration, name) for name in expected}
    rows = []
    for name, key, metric in (
        ("correct", "accuracy", metrics.accuracy),
        ("negative log-likelihood", "likelihood", metrics.negative_log_likelihood),
        ("Brier score", "brier", metrics.brier_score),
        ("calibration error", "error", metrics.calibration_error),
    ):
        found, planned = metric(logits, labels), expected[key]
        pairs = (None, None) if planned is None else ((planned[1][0], planned[1][2]), (planned[2][0], planned[2][2]))
        rows.append(Row(name, *pairs, _pair(found.probabilities), found.members))
    same, order = metrics.orbit_same_prediction(turned_back(trial), identity=trial.identity), plan.problem["order"]
    planned = None if plan.points.same_many is None else _mean_of_samples(plan.points.same_many)
    exact = (float(order), 0.0) if plan.points.bias.max() < 1e-6 * plan.settings["delta"] else None
    measured = float(same.ensemble), float(same.ensemble_error)
    rows.append(Row(f"images with the same class, of {order}", planned, exact, measured, np.asarray(same.members)))
    return rows


def _compare_numbers(trial: Trial) -> list[Row]:
    plan, at = trial.plan, trial.outputs[:, trial.identity]
    place = int(np.flatnonzero(plan.times == plan.t)[0])
    squares = ((at.mean(axis=0) - trial.labels) ** 2).mean(axis=1)
    planned = infinite = None
    if plan.test is not None:
        error = float(plan.test.standard_error()[place])
        planned = float(plan.test.of(plan.settings["members"])[place]), error
        infinite = float(plan.test.infinite[place]), error
    of_members = ((at - trial.labels) ** 2).mean(axis=(1, 2))
    rows = [Row("mean squared error", planned, infinite, _mean_of_samples(squares), of_members)]
    back = turned_back(trial)
    spread = _orbit_spread(back.mean(axis=0))
    each = np.array([_orbit_spread(one).mean() for one in back])
    planned, infinite = (_mean_of_samples(part) for part in (plan.points.orbit_many, plan.points.bias))
    return [*rows, Row("deviation over the orbit", planned, infinite, _mean_of_samples(spread), each)]


def _orbit_spread(values: np.ndarray) -> np.ndarray:
    """Return the standard deviation over the orbit [order, m, channels], over all channels, at each sample."""
    return np.sqrt(np.sum((values - values.mean(axis=0)) ** 2, axis=2).mean(axis=0))


def _mean_of_samples(values: np.ndarray) -> tuple[float, float]:
    error = float(np.std(values, ddof=1)) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return float(np.mean(values)), error


def _pair(found: Any) -> tuple[float, float]:
    return float(found.value), float(found.error)


def fitted_temperature(trial: Trial) -> float | None:
    """Return the temperature that fits the validation samples best; None if there is none."""
    labels = trial.validation_labels
    labels = labels.argmax(axis=1) if labels.ndim == 2 else labels
    try:
        return float(metrics.fit_temperature(trial.validation_outputs, labels))
    except ValueError:  # all of them are classified right, or nothing was learnt
        return None


# Text


def trial_sections(trial: Trial, /) -> list[Section]:
    """Return all sections, in order."""
    warnings = tuple(note.removeprefix("WARNING: ") for note in trial.plan.notes if note.startswith("WARNING"))
    return [
        Section("In short", _short_answers(trial)),
        _comparison_section(trial),
        _members_section(trial),
        *([_probabilities_section(trial)] if has_classes(trial) else []),
        _training_section(trial),
        _worst_section(trial),
        Section("What holds by theory, and what is measured", (*_theory_lines(trial), *warnings)),
        _settings_section(trial),
    ]


def _short_answers(trial: Trial) -> tuple[str, ...]:
    first, *_, invariance = compare(trial)
    best = max if has_classes(trial) else min
    answers = [
        f"How good is it: {first.name} {format_with_error(*first.measured)}; its best member alone "
        f"{format_number(best(first.members))}.",
        f"How invariant is it: {invariance.name} {format_with_error(*invariance.measured)}; the median of its members "
        f"{format_number(np.median(invariance.members))}.",
    ]
    if first.planned is not None:
        planned = format_with_error(*first.planned)
        answers.append(f"What was planned: {first.name} {planned}. {_difference_in_words(first)}")
    return tuple(answers)


def _difference_in_words(row: Row) -> str:
    assert row.planned is not None
    error = float(np.hypot(row.planned[1], row.measured[1]))
    gap = row.measured[0] - row.planned[0]
    if not error > 0:
        return f"Measured is {gap:+.3g} from that."
    return f"Measured is {gap:+.3g} from that, {abs(gap) / error:.1f} standard errors of the test sets."


def _comparison_section(trial: Trial) -> Section:
    planned = trial.plan.settings["members"]
    header = ("", f"planned, {planned} members", "planned, infinite", "measured, ensemble", "median member (range)")
    lines = (
        f"The plan is about {trial.plan.settings['arch']}, trained on the squared error; measured is "
        f"{trial.settings['network']} with {len(trial.outputs)} members. ±: the standard error of the test set, "
        f"{trial.plan.problem['test_points']} samples in the plan and {trial.outputs.shape[2]} here.",
    )
    return Section("Plan and measurement", lines, header, tuple(row.cells() for row in compare(trial)))


def _sizes(members: int) -> list[int]:
    return sorted({size for size in (1, 2, 3, 5, 10, 20, 50, 100, 200, 500) if size < members} | {members})


def invariance_of_sizes(trial: Trial) -> list[tuple[int, float, float]]:
    """Return for several sizes the invariance of the first members: size, value, standard error over samples."""
    back, found = turned_back(trial), []
    for size in _sizes(len(back)):
        mean = back[:size].mean(axis=0)
        if has_classes(trial):
            same = (mean.argmax(axis=-1) == mean[trial.identity].argmax(axis=-1)).sum(axis=0)
            found.append((size, *_mean_of_samples(same)))
        else:
            found.append((size, *_mean_of_samples(_orbit_spread(mean))))
    return found


def _members_section(trial: Trial) -> Section:
    what = f"images with the same class, of {trial.plan.problem['order']}"
    what = what if has_classes(trial) else "deviation over the orbit"
    rows = tuple((str(size), format_with_error(value, error)) for size, value, error in invariance_of_sizes(trial))
    return Section("How invariance grows with members", (), ("members", what), rows, "members")


def _probabilities_section(trial: Trial) -> Section:
    temperature = fitted_temperature(trial)
    if temperature is None:
        lines = [
            "No temperature fits the validation samples best: all of them are right, or none is better than chance."
        ]
    else:
        logits = trial.outputs[:, trial.identity]
        scaled = np.log(np.maximum(metrics.ensemble_probabilities(logits, temperature=temperature), 1e-300))[None]
        after = metrics.calibration_error(scaled, trial.labels).probabilities
        likelihood = metrics.negative_log_likelihood(scaled, trial.labels).probabilities
        lines = [
            f"The temperature {temperature:.3g} fits the {len(trial.validation_labels)} validation samples best. With "
            f"it the negative log-likelihood on test samples is {format_with_error(*_pair(likelihood))}, and the "
            f"calibration error {format_with_error(*_pair(after))}."
        ]
    return Section("How good the probabilities are", tuple(lines), panel="reliability")


def _training_section(trial: Trial) -> Section:
    epochs = trial.steps / (trial.history.steps_per_epoch or 1)
    lines = (
        f"{len(trial.outputs)} members on {trial.settings['training_samples']} samples under "
        f"{trial.plan.problem['order']} elements, with {trial.settings['validation_samples']} samples for validation. "
        f"Their parameters are those of epochs {format_number(epochs.min())} to {format_number(epochs.max())}, of at "
        f"most {trial.settings['epochs']}.",
    )
    return Section("How it was trained", lines, panel="training")


def _worst_section(trial: Trial) -> Section:
    back = turned_back(trial)
    mean = back.mean(axis=0)
    spread, at = _orbit_spread(mean), mean[trial.identity]
    classes = trial.plan.problem["classes"]
    if classes is None:
        error = np.sqrt(((at - trial.labels) ** 2).sum(axis=1))
        columns = {"error": [format_number(each) for each in error]}
        order = np.argsort(-spread, kind="stable")
    else:
        same = (mean.argmax(axis=-1) == at.argmax(axis=-1)).sum(axis=0)
        columns = {
            "class": [classes[int(label)] for label in trial.labels],
            "predicted": [classes[int(place)] for place in at.argmax(axis=1)],
            "confidence": [format_number(each) for each in at.max(axis=1)],
            "same class": [str(int(each)) for each in same],
        }
        order = np.lexsort((-spread, same))
    shown = order[:WORST_SHOWN]
    head = ("test sample", *columns, "deviation")
    rows = tuple(
        (str(trial.index[row]), *(values[row] for values in columns.values()), format_number(spread[row]))
        for row in shown
    )
    images = trial.samples.ndim == 4
    lines = (
        "Test samples by their place in the data, counted from 0; the least invariant first. Deviation: the standard "
        f"deviation of {'probabilities' if classes else 'predictions'} over the orbit.",
    )
    pictures = thumbnails(trial.samples[shown]) if images else ()
    return Section("Worst test samples", lines, head, rows, pictures=pictures)


def _theory_lines(trial: Trial) -> tuple[str, ...]:
    return (
        "By theory: infinitely many, infinitely wide members of the planned architecture, trained on all augmented "
        "samples with the squared error, are exactly equivariant. The columns “planned” are about these networks.",
        f"Beyond theory: {'the cross-entropy, ' if has_classes(trial) else ''}Adam in batches, early stopping, finite "
        "width, and what the network has that has no kernel, such as batch normalisation and max-pools.",
        MEASURED,
    )


def _settings_section(trial: Trial) -> Section:
    described = {
        **trial.settings,
        **{f"plan: {n}": trial.plan.settings[n] for n in ("group", "action", "arch", "seed")},
    }
    origin = {name: value for name, value in trial.origin.items() if value is not None}
    rows = [(name.replace("_", " "), "–" if value is None else str(value)) for name, value in described.items()]
    return Section(
        "Settings, date and versions", (), ("what", "which"), (*rows, *origin.items(), *trial.versions.items())
    )


# Figures and page


def draw_panel(trial: Trial, panel: str) -> Any:
    """Return one panel as a matplotlib figure."""
    if panel == "training":
        return plotting.training_curves(trial.history)
    with plotting.style():
        fig, (ax,) = plotting.panels()
        if panel == "members":
            sizes, values, errors = (np.array(column) for column in zip(*invariance_of_sizes(trial), strict=True))
            plotting.measured(ax, sizes, values, np.nan_to_num(errors), label="measured", joined=True)
            ax.set(xlabel="members", xscale="log")
            if has_classes(trial):
                ax.axhline(trial.plan.problem["order"], linestyle=":", color="gray", label="invariant")
                ax.set(ylabel="images with the same class")
            else:
                ax.set(ylabel="deviation over the orbit", yscale="log")
        else:
            logits = trial.outputs[:, trial.identity]
            diagram = metrics.reliability(logits, trial.labels, bins=BINS)
            if trial.plan.calibration is not None:
                planned = metrics.Reliability(*trial.plan.calibration.diagram_many)
                plotting.reliability(ax, planned, theory=True, label="planned", number=1)
            plotting.reliability(ax, diagram, label="measured")
        ax.legend()
    return fig


def trial_html(trial: Trial, /, *, figures: bool = True) -> str:
    """Return the page, with or without figures."""
    problem, data = trial.plan.problem, trial.plan.origin.get("data")
    what = f"{len(trial.outputs)} members under {problem['group']}, {trial.settings['network']}"
    about = f"{data}, {trial.origin['date']}: {what}." if data else f"{trial.origin['date']}: {what}."
    return page_html(
        "A planned ensemble, trained",
        f"{about} Planned by theory, trained, and measured on {trial.outputs.shape[2]} test samples.",
        trial_sections(trial),
        subject=what,
        figure=(lambda panel: draw_panel(trial, panel)) if figures else None,
        captions=CAPTIONS,
    )
