"""A planned run in words and tables: the sections that both the text and the report consist of."""

import numpy as np

from ntk_equiv import metrics
from ntk_equiv.planned_runs._comparison import (
    Row,
    compare,
    images_of_same_class,
    invariance_by_members,
    is_rounding,
    moved_back,
    orbit_deviation,
    planned_invariance,
    scaled_by_temperature,
)
from ntk_equiv.planned_runs._run import PlannedRun
from ntk_equiv.planning import Section, format_members, format_number, format_with_error, thumbnails

WORST_SHOWN = 10
FIRST_EPOCHS = 2
WARNING = "WARNING: "


def run_sections(run: PlannedRun, /) -> list[Section]:
    """Return all sections, in order."""
    return [
        Section("In short", _short_answers(run)),
        _comparison_section(run),
        _invariance_section(run),
        *([_probabilities_section(run)] if run.classes else []),
        _training_section(run),
        _worst_section(run),
        _scope_section(run),
        _settings_section(run),
        _origin_section(run),
    ]


def _short_answers(run: PlannedRun) -> tuple[str, ...]:
    first, *_, invariance = compare(run)
    best = max if run.classes else min
    order = run.plan.problem["order"]
    good = "{} of the test samples are classified correctly" if run.classes else f"the {first.name} is {{}}"
    invariant = (
        f"of the {order} images of a sample under the group, {{}} get the class of the sample, on average"
        if run.classes
        else f"the {invariance.name} is {{}}, on average"
    )
    return (
        f"How good is it: {good.format(format_with_error(*first.measured))} ({_test_samples(run)}). The best member "
        f"by itself has {format_number(best(first.members))}, the median member "
        f"{format_number(np.median(first.members))}.",
        f"How invariant is it: {invariant.format(format_with_error(*invariance.measured))}. The median member by "
        f"itself has {format_number(np.median(invariance.members))}.",
        f"Was that expected: {_expected_in_words(run, first)} {_expected_in_words(run, invariance)}",
        *(doubt for doubt in _doubts_about_stopping(run) if doubt.startswith(WARNING)),
    )


def _expected_in_words(run: PlannedRun, row: Row) -> str:
    if row.planned is None:
        return f"The plan says nothing about “{row.name}”."
    expected, found = format_with_error(*row.planned), format_with_error(*row.measured)
    planned, trained = (format_members(count) for count in (run.plan.settings["members"], len(run.outputs)))
    return f"For “{row.name}” the plan expected {expected} of {planned}, and these {trained} have {found}."


def _test_samples(run: PlannedRun) -> str:
    count = run.outputs.shape[2]
    return f"{count} test sample{'s' * (count != 1)}"


def _comparison_section(run: PlannedRun) -> Section:
    plan, planned = run.plan, run.plan.settings["members"]
    header = (
        "",
        f"planned, {planned}",
        "planned, infinite",
        f"measured, {len(run.outputs)}",
        "median member (range)",
    )
    lines = (
        f"Planned: {format_members(planned)}, and infinitely many, of {plan.settings['arch']}, infinitely wide and "
        f"trained on the squared error with {plan.problem['points']} samples. Measured: the ensemble of "
        f"{format_members(len(run.outputs))} of {run.settings['network']}, trained with "
        f"{run.settings['training_samples']} samples.",
        f"±: the standard error of a test set, of {plan.problem['test_points']} samples in the plan and of "
        f"{run.outputs.shape[2]} here. Test samples of the plan are among those measured, so the two errors are not "
        "independent.",
        *([_class_terms(run)] if run.classes else [_number_terms()]),
    )
    return Section("Plan and measurement", lines, header, tuple(row.cells() for row in compare(run)))


def _class_terms(run: PlannedRun) -> str:
    return (
        "The ensemble averages probabilities. Likelihoods are in nats. Calibration error: the difference between "
        "accuracy and confidence, over 15 bins of confidence. Same class: how many of the "
        f"{run.plan.problem['order']} images of a sample under the group, itself included, get the class of the sample."
    )


def _number_terms() -> str:
    return (
        "The ensemble averages outputs. Deviation over the orbit: the standard deviation of its predictions over the "
        "images of a sample under the group, over all channels, averaged over test samples."
    )


def _invariance_section(run: PlannedRun) -> Section:
    what = f"same class, of {run.plan.problem['order']} images" if run.classes else "deviation over the orbit"
    sizes, values = planned_invariance(run)
    planned = dict(zip(sizes.tolist(), values.tolist(), strict=True))
    rows = tuple(
        (str(size), format_number(planned.get(size, np.nan)), format_with_error(value, error))
        for size, value, error in invariance_by_members(run)
    )
    lines = (
        f"The mean of the first members, of the {len(run.outputs)} that were trained: {what}. Each number is that of "
        "one ensemble, so a larger one may by chance do worse.",
    )
    return Section("How invariance grows with members", lines, ("members", "planned", "measured"), rows, "members")


def _probabilities_section(run: PlannedRun) -> Section:
    scaled = scaled_by_temperature(run)
    if scaled is None:
        reason = "The validation samples are classified no better than by chance, so no temperature fits them."
        return Section("How good the probabilities are", (reason,), panel="reliability")
    temperature, log_p = scaled
    header = ("", "as trained", f"at T = {format_number(temperature)}")
    rows = []
    for name, metric in (
        ("negative log-likelihood", metrics.negative_log_likelihood),
        ("Brier score", metrics.brier_score),
        ("calibration error", metrics.calibration_error),
    ):
        found = (metric(each, run.labels).probabilities for each in (run.outputs[:, run.identity], log_p))
        rows.append((name, *(format_with_error(float(each.value), float(each.error)) for each in found)))
    lines = (
        f"Of the test samples, as trained and with logits divided by T = {format_number(temperature)}, which fits the "
        f"{len(run.validation_labels)} validation samples best. Label smoothing makes "
        "members less sure than they are right, which a T below 1 repairs.",
    )
    return Section("How good the probabilities are", lines, header, tuple(rows), "reliability")


def _training_section(run: PlannedRun) -> Section:
    epochs = run.steps / (run.history.steps_per_epoch or 1)
    settings = run.settings
    lines = (
        f"{format_members(len(run.outputs))} on {settings['training_samples']} samples under "
        f"{run.plan.problem['order']} elements, with {settings['validation_samples']} samples for validation. The "
        f"parameters of members are those of epochs {format_number(epochs.min())} to {format_number(epochs.max())}, of "
        f"at most {settings['epochs']}: those with the least loss on the validation samples.",
        *_doubts_about_stopping(run),
    )
    return Section("How it was trained", lines, panel="training")


def _doubts_about_stopping(run: PlannedRun) -> tuple[str, ...]:
    """Return what to do about members whose best parameters are the first ones, or the last ones."""
    epochs = run.steps / (run.history.steps_per_epoch or 1)
    first, last = int((epochs <= FIRST_EPOCHS).sum()), int((epochs >= run.settings["epochs"]).sum())
    doubts = []
    if first and run.settings["epochs"] > run.settings["patience"]:
        doubts.append(
            f"{WARNING}{first} of {format_members(len(epochs))} keep the parameters of their first {FIRST_EPOCHS} "
            "epochs, because their loss on the validation samples was never lower. Where the network has batch "
            "normalisation, its running statistics may have been late: let them follow faster, with momentum 0.9, or "
            "wait longer, with more patience. Otherwise try a lower learning rate."
        )
    if 2 * last > len(epochs):
        doubts.append(
            f"{last} of {format_members(len(epochs))} were best in the last epoch: more epochs may improve them, and "
            "continue this run."
        )
    return tuple(doubts)


def _worst_section(run: PlannedRun) -> Section:
    mean = moved_back(run).mean(axis=0)
    deviation, at = orbit_deviation(mean), mean[run.identity]
    if run.classes is None:
        error = np.sqrt(((at - run.labels) ** 2).sum(axis=1))
        columns = {"error": [format_number(each) for each in error]}
        order = np.argsort(-deviation, kind="stable")
        what = "Error: the distance from the label. Deviation: the standard deviation of predictions over the orbit."
    else:
        same = images_of_same_class(mean, run.identity)
        columns = {
            "class": [run.classes[int(label)] for label in run.labels],
            "predicted": [run.classes[int(place)] for place in at.argmax(axis=1)],
            "confidence": [format_number(each) for each in at.max(axis=1)],
            "same class": [str(int(each)) for each in same],
        }
        order = np.lexsort((-deviation, same))
        what = "Deviation: the standard deviation of probabilities over the orbit, over all classes."
    shown = order[:WORST_SHOWN]
    files = run.plan.origin.get("files")
    if files is not None:
        columns = {"file": [files[int(place)] for place in run.index], **columns}
    rows = tuple(
        (str(run.index[row]), *(values[row] for values in columns.values()), format_number(deviation[row]))
        for row in shown
    )
    lines = (f"Test samples by their place in the data, counted from 0; the least invariant first. {what}",)
    pictures = thumbnails(run.samples[shown]) if run.samples.ndim == 4 else ()
    return Section("Worst test samples", lines, ("test sample", *columns, "deviation"), rows, pictures=pictures)


def _scope_section(run: PlannedRun) -> Section:
    plan, order = run.plan, run.plan.problem["order"]
    warnings = tuple(note.removeprefix(WARNING) for note in plan.notes if note.startswith(WARNING))
    cross_entropy = "the cross-entropy, " if run.classes else ""
    bias = float(plan.points.bias.max())
    exact = is_rounding(plan, bias)
    theorem = (
        "is equivariant on every input and at every time, exactly"
        if exact
        else f"is equivariant only if network and action respect the group; here it deviates by up to {bias:.2g}"
    )
    lines = (
        "By theory: the mean of infinitely many, infinitely wide members of the planned architecture, trained on all "
        f"augmented samples with the squared error, {theorem}. The columns “planned” are about such networks.",
        "By symmetry alone: at any width and with any loss, the mean of M members is equivariant up to a deviation "
        f"that falls as 1/√M, if training and validation use all {order} images of every sample, as here, if the "
        "action is exact, without interpolation, and if the group permutes the weights of the network and leaves the "
        "law of the initial ones as it is. Quarter turns do that with convolutions on windows that cover the image; "
        "nothing here checks it of your network.",
        f"Measured only: the columns “measured”, on {_test_samples(run)}. This run has what theory leaves out: "
        f"{cross_entropy}Adam in batches, early stopping, finite width, and whatever the network has that has no "
        "kernel, such as batch normalisation and max-pools.",
    )
    return Section(
        "What holds by theory, and what is measured", (*lines, *(f"Of the plan: {each}" for each in warnings))
    )


def _settings_section(run: PlannedRun) -> Section:
    asked = run.plan.settings
    planned = {f"plan: {name.replace('_', ' ')}": asked[name] for name in ("group", "action", "label_action", "arch")}
    described = {name.replace("_", " "): value for name, value in run.settings.items()}
    loss = "cross-entropy, label smoothing 0.05" if run.classes else "½ of the mean squared error"
    optimizer = "Adam with weight decay; the rate falls to 0.3 of itself in ten epochs"
    rows = {**planned, **described, "loss": loss, "optimizer": optimizer}
    return Section("Settings", (), ("setting", "value"), tuple((name, str(value)) for name, value in rows.items()))


def _origin_section(run: PlannedRun) -> Section:
    own = {name: value for name, value in run.origin.items() if value is not None}
    planned = {f"plan: {name}": run.plan.origin.get(name) for name in ("date", "command")}
    rows = {**own, **{name: value for name, value in planned.items() if value}, **run.versions}
    return Section("Data, date and versions", (), ("what", "which"), tuple(rows.items()))
