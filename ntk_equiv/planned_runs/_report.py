"""A planned run in figures, and as one page."""

from typing import Any

import numpy as np

from ntk_equiv import metrics
from ntk_equiv._check import one_of
from ntk_equiv.planned_runs._comparison import invariance_by_members, planned_invariance
from ntk_equiv.planned_runs._run import PlannedRun
from ntk_equiv.planned_runs._text import run_sections
from ntk_equiv.planning import format_members, page_html

BINS = 10
LEGEND_BELOW = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2), "ncols": 2}
CAPTIONS = {
    "training": "Losses, metrics and learning rate along training: solid the ensemble on the validation samples, "
    "dotted the median and the quartiles of its members.",
    "members": "Invariance of the mean of the first M members: measured on test samples with standard errors, and as "
    "planned.",
    "reliability": "Accuracy against confidence on the test samples, with standard errors. On the diagonal, "
    "probabilities are right on average. Dashed: what the plan expects.",
}


def run_html(run: PlannedRun, /, *, figures: bool = True) -> str:
    """Return the page, with or without figures."""
    problem, origin = run.plan.problem, run.origin
    what = f"{format_members(len(run.outputs))} under {problem['group']}, {run.settings['network']}"
    made = ", ".join(str(origin[name]) for name in ("data", "date") if origin.get(name))
    return page_html(
        "Report on a planned ensemble",
        f"{made}: {what}. Planned by theory, then trained, and measured on {run.outputs.shape[2]} test samples.",
        run_sections(run),
        subject=what,
        figure=(lambda panel: draw_panel(run, panel)) if figures else None,
        captions=CAPTIONS,
    )


def draw_panel(run: PlannedRun, panel: str, /) -> Any:
    """Return one panel as a matplotlib figure."""
    from ntk_equiv import plotting  # and matplotlib with it

    panels = {"training": None, "members": _draw_members, "reliability": _draw_reliability}
    known = tuple(name for name in panels if name != "reliability" or run.classes)
    draw = panels[one_of(panel, known, "panel")]
    if draw is None:
        return plotting.training_curves(run.history)
    with plotting.style():
        fig, (ax,) = plotting.panels(width=4.2, height=3.9)
        draw(run, ax, plotting)
        ax.legend(**LEGEND_BELOW)
    return fig


def _draw_members(run: PlannedRun, ax: Any, plotting: Any) -> None:
    sizes, values, errors = (np.array(column) for column in zip(*invariance_by_members(run), strict=True))
    plotting.measured(ax, sizes, values, np.nan_to_num(errors), label="measured", joined=True)
    planned, expected = planned_invariance(run)
    nearby = planned <= 2 * max(sizes[-1], run.plan.settings["members"])
    ax.set(xlabel="members M", xscale="log")
    ax.set_xticks(sizes, [str(size) for size in sizes])
    ax.set_xticks([], minor=True)
    if run.classes:  # known for few M, between which a line would be a guess
        ax.plot(planned[nearby], expected[nearby], "D", color="black", fillstyle="none", label="planned")
        ax.axhline(run.plan.problem["order"], color="#888888", linewidth=0.8, label="invariant")
        ax.set(ylabel="images with the same class")
    else:
        plotting.predicted(ax, planned[nearby], expected[nearby], label="planned")
        ax.set(ylabel="deviation over the orbit", yscale="log")


def _draw_reliability(run: PlannedRun, ax: Any, plotting: Any) -> None:
    if run.plan.calibration is not None:
        planned = metrics.Reliability(*run.plan.calibration.diagram_many)
        members = format_members(run.plan.settings["members"])
        plotting.reliability(ax, planned, theory=True, label=f"planned, {members}", number=1)
    found = metrics.reliability(run.outputs[:, run.identity], run.labels, bins=BINS)
    plotting.reliability(ax, found, label="measured")
