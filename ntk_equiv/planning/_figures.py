"""The figure of a plan: errors over training time, deviations over members, members over test samples, reliability.

This module needs matplotlib, so it is imported only when something is drawn.
"""

import numpy as np

from ntk_equiv import metrics, plotting
from ntk_equiv._check import one_of
from ntk_equiv.planning._plan import Plan
from ntk_equiv.planning._text import format_members, format_number, place_of_time
from ntk_equiv.plotting import Axes, Figure

LEGEND_BELOW = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2), "ncols": 2}


def draw_plan(plan: Plan, panel: str | None, /) -> Figure:
    """Draw one panel, or all of them in a row."""
    known = [name for name in PANELS if name != "reliability" or plan.calibration is not None]
    chosen = known if panel is None else [one_of(panel, tuple(known), "panel")]
    shape = (2, 2) if len(chosen) == 4 else (len(chosen),)
    with plotting.style():
        fig, axes = plotting.panels(*shape, width=4.2, height=3.9)
        for name, ax in zip(chosen, axes, strict=True):
            PANELS[name](plan, ax)
            ax.legend(**LEGEND_BELOW)
    return fig


def _draw_errors(plan: Plan, ax: Axes) -> None:
    members = plan.settings["members"]
    curves = [("training samples, infinite", plan.train.infinite, ":", 4)]
    if plan.test is not None:
        curves += [
            ("test samples, one network", plan.test.of(1), "-", 1),
            ("test samples, infinite", plan.test.infinite, "-", 0),
            (f"test samples, {format_members(members)}", plan.test.of(members), "-.", 2),
        ]
    places = _places(plan.times)
    visible = places > 0
    for label, values, line, colour in curves:
        drawn = visible & (values > 0)
        ax.plot(places[drawn], values[drawn], line, color=plotting.COLOURS[colour], label=label)
    ax.set(xscale="log", yscale="log", xlabel="training time t", ylabel="expected mean squared error")
    # Training samples are fitted down to rounding error, which would stretch the axis far below anything of interest.
    relevant = plan.train.infinite[:1] if plan.test is None else plan.test.infinite
    if relevant.min() > 0:
        ax.set_ylim(relevant.min() / 30, 2 * max(values.max() for _, values, _, _ in curves))
    at = places[place_of_time(plan)]
    if at > 0:
        ax.axvline(at, color="#888888", linewidth=0.8, label=f"t = {format_number(plan.t)}, of this plan")
    ax.set_title("Theory: error over training time")
    if np.isinf(plan.times).any() and visible.any():
        ax.annotate("∞", (places[-1], 0), xycoords=("data", "axes fraction"), xytext=(0, 3), textcoords="offset points")


def _places(times: np.ndarray) -> np.ndarray:
    """Return where times are drawn: infinity a little to the right of the last; t = 0 has no place on a log axis."""
    finite = times[np.isfinite(times) & (times > 0)]
    end = 3 * finite[-1] if finite.size else 1.0
    return np.where(np.isinf(times), end, times)


def _draw_orbits(plan: Plan, ax: Axes) -> None:
    curve = plan.orbit
    ax.plot(curve.members, curve.worst, "-", color=plotting.COLOURS[1], label="worst test sample")
    ax.plot(curve.members, curve.mean, "-.", color=plotting.COLOURS[0], label="mean over test samples")
    ax.axhline(
        plan.settings["delta"], color="#888888", linewidth=0.8, label=f"δ = {format_number(plan.settings['delta'])}"
    )
    ax.set(xscale="log", xlabel="members M", ylabel="expected deviation over the orbit")
    if curve.worst.max() > 0:
        ax.set_yscale("log")
    ax.set_title("Theory: invariance over members")


def _draw_points(plan: Plan, ax: Axes) -> None:
    points, count = plan.points, len(plan.points.index)
    fraction = np.arange(1, count + 1) / count
    for label, values, line, colour in (
        ("agreement over the orbit", points.orbit_members, "-", 1),
        ("closeness to the infinite ensemble", points.mean_members.astype(float), "-.", 0),
    ):
        ordered = np.sort(values)[[0, *range(count)]]  # NaN comes last and is not drawn
        ax.step(ordered, np.append(0, fraction), line, where="post", color=plotting.COLOURS[colour], label=label)
    ax.axvline(plan.settings["members"], color="#888888", linewidth=0.8, label=f"M = {plan.settings['members']}")
    ax.set(xscale="log", xlabel="members M", ylabel="fraction of test samples", ylim=(0, 1.03))
    ax.set_title(f"Theory: within δ with probability {1 - plan.settings['epsilon']:.4g}")


def _draw_reliability(plan: Plan, ax: Axes) -> None:
    assert plan.calibration is not None, "the panel is offered with it alone"
    found, members = plan.calibration, format_members(plan.settings["members"])
    for number, name, diagram in ((2, members, found.diagram_many), (0, "infinite ensemble", found.diagram_infinite)):
        plotting.reliability(ax, metrics.Reliability(*diagram), theory=True, number=number, label=name)
    ax.set_title("Theory: accuracy against confidence")


PANELS = {"errors": _draw_errors, "orbits": _draw_orbits, "points": _draw_points, "reliability": _draw_reliability}
