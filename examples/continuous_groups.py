"""How far is an ensemble from invariant under all rotations of the plane, if k of them augmented the data?

The infinite ensemble is exactly invariant under C_k, which augments its data, but not under the rotations in between.
For every k three numbers describe the largest error max_g |f̄(gx) − f̄(x)| over all of SO(2), here for the worst of a
few test samples:

    bound       the lemma on continuous groups, in closed form: certified, but far too large
    enclosure   from branch and bound: certified on both sides, and as narrow as the budget allows
    measured    the largest error on a grid that is refined where the error is large: attained, so the true error is
                not smaller, but it may be larger

The loss is a mean over all labels, so the same t means the same training for every k. There are two activations:
ReLU, whose kernel has a kink, and erf, whose kernel is smooth. The paper states the lemma but has no such experiment.
The preset "paper" is just larger.
"""

import dataclasses
from typing import Any

import numpy as np
from _experiment import Experiment, Results, double_precision
from matplotlib.figure import Figure

from ntk_equiv import InfiniteEnsemble, augment, bounds, filters, groups, plotting, reps, stax

ACTIVATIONS = {"relu": ("ReLU", stax.Relu), "erf": ("erf", stax.Erf)}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Sizes. Times are in units of the inverse learning rate."""

    samples: int = 6
    test: int = 3
    t: float = 100.0
    orders: tuple[int, ...] = (*range(2, 17), 20, 24, 32)
    activations: tuple[str, ...] = ("relu", "erf")
    W_std: float = 1.5
    b_std: float = 0.3
    rtol: float = 0.2
    max_cells: int = 4096
    seed: int = 0


PRESETS = {
    "quick": Settings(),
    "paper": Settings(samples=50, test=20, orders=(*range(2, 33), 48, 64), rtol=0.05, max_cells=100_000),
    "test": Settings(samples=2, test=1, orders=(2, 3), activations=("erf",), max_cells=64),
}


def load(settings: Settings, data_dir: Any) -> dict[str, np.ndarray]:
    """Draw samples in the plane and their labels, all from N(0, 1)."""
    shapes = {"x": (settings.samples, 2), "y": (settings.samples,), "test": (settings.test, 2)}
    rng = np.random.default_rng(settings.seed)
    return {name: rng.standard_normal(shape) for name, shape in shapes.items()}


def compute(settings: Settings, data: dict[str, np.ndarray], results: Results) -> None:
    """Compute the errors. Each activation and order is a part."""
    for activation in settings.activations:
        for k in settings.orders:
            results.part(f"{activation}-{k}", errors, settings, data, activation, k)


def network(settings: Settings, activation: str) -> stax.Network:
    """Return a network with two hidden layers."""
    _, layer = ACTIVATIONS[activation]
    hidden = (stax.Dense(1, settings.W_std, settings.b_std), layer())
    return stax.serial(*hidden, *hidden, stax.Dense(1, 1.0, settings.b_std))


def errors(settings: Settings, data: dict[str, np.ndarray], activation: str, k: int) -> dict[str, Any]:
    """Return bound, enclosure and measurement at each test sample, for data augmented by C_k."""
    with double_precision():
        train = augment(data["x"], data["y"], reps.matrix(groups.SO2.finite(k)))
        ens = InfiniteEnsemble(
            network(settings, activation).kernel_fn, train, filters.gradient_flow(1.0), reduction="mean"
        )
        where = ens, groups.SO2, data["test"], settings.t
        bound = bounds.continuous_group_bound(*where)
        enclosed = bounds.certified_continuous_deviation(*where, rtol=settings.rtol, max_cells=settings.max_cells)
        measured = bounds.measured_continuous_deviation(*where)
        size = np.sqrt(np.mean(np.square(ens.mean(data["test"], settings.t))))
    return {
        "epsilon": bound.epsilon,
        "bound": bound.upper,
        "lower": enclosed.lower,
        "upper": enclosed.upper,
        "cells": enclosed.cells,
        "measured": measured.lower,
        "size": size,
    }


def worst(settings: Settings, found: Any, activation: str, name: str) -> np.ndarray:
    """Return the largest value over the test samples, for every order."""
    return np.array([found[f"{activation}-{k}"][name].max() for k in settings.orders])


def rises(settings: Settings, found: Any, activation: str) -> list[str]:
    """Find where a larger group is certified to be worse: its lower end is above the upper end of the one before."""
    lower, upper = (worst(settings, found, activation, name) for name in ("lower", "upper"))
    pairs = zip(settings.orders[:-1], settings.orders[1:], lower[1:] > upper[:-1], strict=True)
    return [f"{k} to {larger}" for k, larger, rise in pairs if rise]


def table(settings: Settings, found: Any) -> str:
    """Format one table for each activation."""
    lines = [
        "largest error under SO(2) of the infinite ensemble, worst of the test samples, data augmented by C_k",
        f"({settings.samples} samples, t = {settings.t:g}, mean loss, gradient flow, float64)",
    ]
    columns = ("bound", "lower", "upper", "measured")
    for activation in settings.activations:
        label, _ = ACTIVATIONS[activation]
        size = worst(settings, found, activation, "size").mean()
        lines += ["", f"{label}; predictions are of size {size:.2f}"]
        lines += [" k     ε     | certified: bound   enclosure             | measured     | most cells"]
        epsilon, cells = (worst(settings, found, activation, name) for name in ("epsilon", "cells"))
        values = [worst(settings, found, activation, name) for name in columns]
        for k, e, count, bound, lower, upper, seen in zip(settings.orders, epsilon, cells, *values, strict=True):
            lines.append(f"{k:2d}  {e:.4f}  | {bound:12.3g}   {lower:.3e} … {upper:.3e} | {seen:.4e}   | {count:.0f}")
        where = ", ".join(rises(settings, found, activation)) or "nowhere"
        lines.append(f"certified to rise with k: {where}")
    return "\n".join(lines)


def figures(settings: Settings, found: Any) -> dict[str, Figure]:
    """Draw errors against k, one panel for each activation."""
    fig, axes = plotting.panels(len(settings.activations), sharey=True, width=3.6, height=3.2)
    for ax, activation in zip(axes, settings.activations, strict=True):
        label, _ = ACTIVATIONS[activation]
        names = ("bound", "lower", "upper", "measured")
        bound, lower, upper, measured = (worst(settings, found, activation, name) for name in names)
        plotting.predicted(ax, settings.orders, bound, label="bound of the lemma (certified)")
        look: Any = {"color": plotting.COLOURS[1], "linewidth": 1}
        ax.fill_between(settings.orders, lower, upper, color=look["color"], alpha=0.25, linewidth=0)
        ax.plot(settings.orders, upper, **look, label="enclosure, shaded up to this line (certified)")
        plotting.measured(ax, settings.orders, measured, label="largest that was seen (measured)")
        ax.set(title=f"two hidden layers, {label}", xlabel="k, number of rotations that augment", yscale="log")
    axes[0].set_ylabel(r"$\max_{g\,\in\,\mathrm{SO}(2)}\,|\bar f(gx) - \bar f(x)|$")
    axes[0].legend(loc="lower left")
    return {"continuous_groups": fig}


CONTINUOUS_GROUPS = Experiment("continuous_groups", __doc__, PRESETS, load, compute, table, figures)

if __name__ == "__main__":
    raise SystemExit(CONTINUOUS_GROUPS.main())
