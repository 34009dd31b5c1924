"""The figure of a plan: errors over training time, deviations over members, members over test samples."""

from typing import Any

import numpy as np

from ntk_equiv import plotting
from ntk_equiv._check import one_of
from ntk_equiv.planning._short import place_of_time
from ntk_equiv.planning._shown import number, of_members

LABELS_BELOW = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2), "ncols": 2}


def drawn(plan: Any, panel: str | None, /) -> Any:
    """One panel, or all of them in a row."""
    chosen = [one_of(panel, tuple(PANELS), "panel")] if panel is not None else list(PANELS)
    with plotting.style():
        fig, axes = plotting.panels(len(chosen), width=4.2, height=3.9)
        for name, ax in zip(chosen, axes, strict=True):
            PANELS[name](plan, ax)
            ax.legend(**LABELS_BELOW)
    return fig


def _errors(plan: Any, ax: Any) -> None:
    members = plan.settings["members"]
    curves = [("training samples, infinite", plan.train.infinite, ":", 4)]
    if plan.test is not None:
        curves += [
            ("test samples, one network", plan.test.of(1), "-", 1),
            ("test samples, infinite", plan.test.infinite, "-", 0),
            (f"test samples, {of_members(members)}", plan.test.of(members), "-.", 2),
        ]
    places = _places(plan.times)
    shown = places > 0
    for label, values, line, colour in curves:
        seen = shown & (values > 0)
        ax.plot(places[seen], values[seen], line, color=plotting.COLOURS[colour], label=label)
    ax.set(xscale="log", yscale="log", xlabel="training time t", ylabel="expected mean squared error")
    # Training samples are fitted down to rounding, which would stretch the axis over nothing.
    told = plan.train.infinite[:1] if plan.test is None else plan.test.infinite
    if told.min() > 0:
        ax.set_ylim(told.min() / 30, 2 * max(values.max() for _, values, _, _ in curves))
    at = places[place_of_time(plan)]
    if at > 0:
        ax.axvline(at, color="#888888", linewidth=0.8, label=f"t = {number(plan.t)}, of this plan")
    ax.set_title("Theory: error over training time")
    if np.isinf(plan.times).any() and shown.any():
        ax.annotate("∞", (places[-1], 0), xycoords=("data", "axes fraction"), xytext=(0, 3), textcoords="offset points")


def _places(times: np.ndarray) -> np.ndarray:
    """Where times are drawn: the end a little to the right of the last, the start, which has no place, at 0."""
    finite = times[np.isfinite(times) & (times > 0)]
    end = 3 * finite[-1] if finite.size else 1.0
    return np.where(np.isinf(times), end, times)


def _orbits(plan: Any, ax: Any) -> None:
    curve = plan.orbit
    ax.plot(curve.members, curve.worst, "-", color=plotting.COLOURS[1], label="worst test sample")
    ax.plot(curve.members, curve.mean, "-.", color=plotting.COLOURS[0], label="mean over test samples")
    ax.axhline(plan.settings["delta"], color="#888888", linewidth=0.8, label=f"δ = {number(plan.settings['delta'])}")
    ax.set(xscale="log", xlabel="members M", ylabel="expected deviation over the orbit")
    if curve.worst.max() > 0:
        ax.set_yscale("log")
    ax.set_title("Theory: invariance over members")


def _points(plan: Any, ax: Any) -> None:
    points, count = plan.points, len(plan.points.index)
    fraction = np.arange(1, count + 1) / count
    for label, values, line, colour in (
        ("agreement over the orbit", points.orbit_members, "-", 1),
        ("closeness to the infinite ensemble", points.mean_members.astype(float), "-.", 0),
    ):
        ordered = np.sort(values)[[0, *range(count)]]  # those that are not numbers come last, and stay away
        ax.step(ordered, np.append(0, fraction), line, where="post", color=plotting.COLOURS[colour], label=label)
    ax.axvline(plan.settings["members"], color="#888888", linewidth=0.8, label=f"M = {plan.settings['members']}")
    ax.set(xscale="log", xlabel="members M", ylabel="fraction of test samples", ylim=(0, 1.03))
    ax.set_title(f"Theory: within δ with probability {1 - plan.settings['epsilon']:.4g}")


PANELS = {"errors": _errors, "orbits": _orbits, "points": _points}
