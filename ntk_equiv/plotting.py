"""Figures in one style: readable in print and without seeing all colours, and the same every time.

    with plotting.style():
        fig, axes = plotting.panels(2, sharey=True)         a row of panels
        plotting.orbit_curve(axes[0], x, ensemble, members) an ensemble, and the quartiles of its members
        plotting.predicted(axes[0], x, theory)              what theory predicts, on top of it
        plotting.measured(axes[1], x, values, errors)       marks with error bars
        plotting.uncertain(axes[1], t, mean, std)           a mean, and the range of two standard deviations
        plotting.reliability(axes[1], diagram)              accuracy against confidence
    plotting.save(fig, "figure")                            as figure.pdf and figure.png
    fig = plotting.training_curves(run.history)             losses and metrics of a trained ensemble

Measurements are filled marks and bands in colour, theory is a dashed dark line, so every figure can be read without its
caption. Nothing is shown on a screen, and no state of matplotlib is changed outside of `style`.

This is the only part of the library that imports matplotlib.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np
from cycler import cycler
from jax.typing import ArrayLike
from matplotlib.axes import Axes as Axes
from matplotlib.figure import Figure as Figure

from ntk_equiv._check import boolean, file_path, instance, positive_integer, real_array, refusal, scalar
from ntk_equiv.metrics import QUANTILES, Reliability

Numbers = ArrayLike | Sequence
Share = bool | Literal["none", "all", "row", "col"]

# After Okabe and Ito, the darkest first, without yellow: thin yellow lines are hard to see on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
MARKERS = ("o", "s", "^", "D", "v", "P")
_THEORY = "#222222"
_SETTINGS: Any = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.prop_cycle": cycler(color=COLOURS),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "figure.dpi": 160,
    "figure.constrained_layout.use": True,
    "font.size": 9,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "lines.markersize": 4,
    "pdf.fonttype": 42,  # letters that stay letters, for journals and for search
}


@contextmanager
def style() -> Iterator[None]:
    """Apply the style of all figures here to what is drawn inside the block.

    Example:
        >>> from ntk_equiv import plotting
        >>> with plotting.style():
        ...     fig, (left, right) = plotting.panels(2)
        >>> fig.get_size_inches().tolist()
        [6.8, 2.8]
    """
    with matplotlib.rc_context(_SETTINGS):
        yield


def panels(
    columns: int = 1,
    rows: int = 1,
    /,
    *,
    sharex: Share = False,
    sharey: Share = False,
    width: float = 3.4,
    height: float = 2.8,
) -> tuple[Figure, list[Axes]]:
    """Return a figure with panels, read row by row.

    Args:
        columns: the number of panels in a row.
        rows: the number of rows.
        sharex: which panels share an x axis, as in matplotlib's `subplots`.
        sharey: which panels share a y axis.
        width: the width of a panel, in inches.
        height: the height of a panel, in inches.

    Returns:
        The figure, and the axes of its panels.

    Example:
        >>> from ntk_equiv import plotting
        >>> fig, axes = plotting.panels(3, 2)
        >>> len(axes), fig.get_size_inches().round(1).tolist()
        (6, [10.2, 5.6])
    """
    columns, rows = positive_integer(columns, "columns"), positive_integer(rows, "rows")
    for inches, argument in ((width, "width"), (height, "height")):
        scalar(inches, argument, at_least=0.1, fix="It is that of one panel, in inches.")
    fig = Figure(figsize=(columns * width, rows * height))
    axes = fig.subplots(rows, columns, sharex=sharex, sharey=sharey, squeeze=False)
    return fig, list(axes.ravel())


def orbit_curve(
    ax: Axes,
    x: Numbers,
    ensemble: Numbers,
    members: Numbers,
    /,
    *,
    errors: Numbers | None = None,
    label: str | None = None,
    number: int = 0,
) -> None:
    """Draw a metric of an ensemble as a solid line, and of its members as their median (dotted) and quartiles (band).

    Args:
        ax: the panel.
        x: places on the x axis, for example training epochs, [k].
        ensemble: the metric of the ensemble, [k].
        members: the metric of every member, [k, members].
        errors: standard errors of `ensemble`, [k].
        label: the text in the legend.
        number: the place of this curve among those of the panel, which decides its colour and mark.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv import plotting
        >>> fig, (ax,) = plotting.panels()
        >>> plotting.orbit_curve(ax, [1, 2], [3.5, 4.0], np.array([[2.0, 3.0], [3.0, 3.5]]), label="C4")
        >>> len(ax.lines), len(ax.collections)      # the ensemble and the median; the band
        (2, 1)
    """
    x, ensemble = _check_curve(x, "x"), _check_curve(ensemble, "ensemble")
    members = np.asarray(real_array(members, "members"), float)
    if members.ndim != 2 or not len(x) == len(ensemble) == len(members):
        got = f"shapes {x.shape}, {ensemble.shape} and {members.shape}"
        fix = "Pass one row of members for each place on the curve."
        raise refusal("members", expected="of shape [k, members], with x and ensemble [k]", got=got, fix=fix)
    _check_panel(ax)
    colour, mark = _colour_and_mark(number)
    low, median, high = np.quantile(members, QUANTILES, axis=1)
    ax.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
    ax.plot(x, median, ":", color=colour, linewidth=1)
    marks: dict[str, Any] = {"color": colour, "marker": mark, "label": label}
    if errors is None:
        ax.plot(x, ensemble, **marks)
    else:
        ax.errorbar(x, ensemble, yerr=_check_curve(errors, "errors", like=x), capsize=2, **marks)


def measured(
    ax: Axes,
    x: Numbers,
    values: Numbers,
    errors: Numbers | None = None,
    /,
    *,
    label: str | None = None,
    number: int = 0,
    joined: bool = False,
) -> None:
    """Draw measurements as marks with error bars.

    Args:
        ax: the panel.
        x: places on the x axis, [k].
        values: what was measured, [k].
        errors: standard errors, [k].
        label: the text in the legend.
        number: the place among the curves of the panel, which decides colour and mark.
        joined: whether a line joins the marks.

    Example:
        >>> from ntk_equiv import plotting
        >>> fig, (ax,) = plotting.panels()
        >>> plotting.measured(ax, [1, 2], [0.5, 0.4], [0.1, 0.1], label="trained")
        >>> ax.get_legend_handles_labels()[1]
        ['trained']
    """
    x = _check_curve(x, "x")
    values, spread = (
        _check_curve(values, "values", like=x),
        None if errors is None else _check_curve(errors, "errors", like=x),
    )
    colour, mark = _colour_and_mark(number)
    look: dict[str, Any] = {"color": colour, "marker": mark, "linestyle": "-" if joined else "none"}
    _check_panel(ax).errorbar(x, values, yerr=spread, capsize=2, label=label, **look)


def predicted(
    ax: Axes,
    x: Numbers,
    values: Numbers,
    /,
    *,
    errors: Numbers | None = None,
    label: str | None = None,
    number: int | None = None,
) -> None:
    """Draw what theory predicts, as a dashed dark line on top of everything else.

    Args:
        ax: the panel.
        x: places on the x axis, [k].
        values: what theory predicts, [k].
        errors: standard errors, [k]; a band shows the range of two of them. NaN leaves a gap in it.
        label: the text in the legend.
        number: the curve whose colour to take instead, to tell several predictions apart.

    Example:
        >>> from ntk_equiv import plotting
        >>> fig, (ax,) = plotting.panels()
        >>> plotting.predicted(ax, [1, 2], [0.5, 0.4])
        >>> ax.lines[0].get_linestyle(), ax.lines[0].get_ydata().tolist()
        ('--', [0.5, 0.4])
    """
    x = _check_curve(x, "x")
    values, colour = _check_curve(values, "values", like=x), _THEORY if number is None else _colour_and_mark(number)[0]
    _check_panel(ax).plot(x, values, "--", color=colour, linewidth=1.2, label=label, zorder=5)
    if errors is not None:
        spread = 2 * _check_curve(errors, "errors", like=x)
        ax.fill_between(x, values - spread, values + spread, color=colour, alpha=0.15, linewidth=0)


def uncertain(
    ax: Axes, x: Numbers, mean: Numbers, std: Numbers, /, *, label: str | None = None, number: int = 0
) -> None:
    """Draw a mean with the range of two standard deviations around it.

    Args:
        ax: the panel.
        x: places on the x axis, [k].
        mean: the mean, [k].
        std: the standard deviation, [k].
        label: the text in the legend.
        number: the place among the curves of the panel, which decides the colour.

    Example:
        >>> from ntk_equiv import plotting
        >>> fig, (ax,) = plotting.panels()
        >>> plotting.uncertain(ax, [1, 2], [0.5, 0.4], [0.1, 0.1])
        >>> band = ax.collections[0].get_datalim(ax.transData)
        >>> round(float(band.y0), 9), round(float(band.y1), 9)      # from 0.4 − 0.2 to 0.5 + 0.2
        (0.2, 0.7)
    """
    x = _check_curve(x, "x")
    mean, std = _check_curve(mean, "mean", like=x), _check_curve(std, "std", like=x)
    if (std < 0).any():
        raise refusal("std", expected="not negative", got=std.min(), fix="It is the root of a variance.")
    colour = _colour_and_mark(number)[0]
    _check_panel(ax).fill_between(x, mean - 2 * std, mean + 2 * std, color=colour, alpha=0.2, linewidth=0)
    ax.plot(x, mean, color=colour, label=label)


def training_curves(history: Any, /) -> Figure:
    """Return a figure of losses and metrics during training, one panel for each.

    Solid lines are ensembles, dotted lines and bands the median and the quartiles of their members. The loss of
    training is that of the last batch of each member. Losses are on a logarithmic scale if all of them are positive.
    The learning rate has a panel if it is known.

    Args:
        history: that of a trained ensemble, `run.history`.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> from ntk_equiv import ensembles, plotting
        >>> x = jnp.array([[-1.0], [1.0]])
        >>> line = lambda key, x: jax.random.uniform(key, (1, 1)), lambda w, x: x @ w
        >>> run = ensembles.train(
        ...     line, (x, x), validation=(x, x), members=2, steps=20, optimizer=optax.sgd(0.5), key=jax.random.key(0))
        >>> [ax.get_title(loc="left") for ax in plotting.training_curves(run.history).axes]
        ['loss', 'mse']
    """
    wanted = ("steps", "losses", "rates", "validation_steps", "validation", "ensemble", "steps_per_epoch")
    if not all(hasattr(history, name) for name in wanted) or not history.steps:
        fix = "Pass `run.history` of a run that `ensembles.train` returned."
        raise refusal("history", expected="that of a trained ensemble", got=repr(history)[:60], fix=fix)
    rates = np.array(history.rates, float)
    metrics = [name for name in history.validation if name != "loss"]
    titles = ["loss", *metrics, *(["learning rate"] if np.isfinite(rates).any() else [])]
    in_epochs = (history.steps_per_epoch or 1) > 1
    unit = history.steps_per_epoch if in_epochs else 1
    with style():
        fig, axes = panels(len(titles))
        for ax, title in zip(axes, titles, strict=True):
            ax.set_title(title, loc="left")
            ax.set_xlabel("epoch" if in_epochs else "step")
        _draw_members(axes[0], np.array(history.steps) / unit, history.losses, 0, "training, members")
        for ax, name in zip(axes, [name for name in titles if name in history.validation], strict=False):
            at = np.array(history.validation_steps) / unit
            _draw_members(ax, at, history.validation[name], 1, "validation, members")
            if name in history.ensemble:
                ax.plot(at, history.ensemble[name], color=_colour_and_mark(1)[0], label="validation, ensemble")
        if titles[-1] == "learning rate":
            axes[-1].plot(np.array(history.steps) / unit, rates, color=_THEORY)
        axes[0].legend()
        if all(np.min(line.get_ydata()) > 0 for line in axes[0].lines):
            axes[0].set_yscale("log")
    return fig


def _draw_members(ax: Axes, x: np.ndarray, values: Sequence, number: int, label: str) -> None:
    """Draw median and quartiles of the members that are finite, where there are any."""
    rows = np.array(values, float)
    some = np.isfinite(rows).any(axis=1)
    if not some.any():
        return
    rows = np.where(np.isfinite(rows), rows, np.nan)[some]
    low, median, high = np.nanquantile(rows, QUANTILES, axis=1)
    colour = _colour_and_mark(number)[0]
    ax.fill_between(x[some], low, high, color=colour, alpha=0.2, linewidth=0)
    ax.plot(x[some], median, ":", color=colour, label=label)


def reliability(
    ax: Axes,
    diagram: Reliability,
    /,
    *,
    theory: bool = False,
    label: str | None = None,
    number: int = 0,
) -> None:
    """Draw a reliability diagram: accuracy against confidence, and the diagonal on which both are equal.

    Measurements are marks with error bars. Predictions are a dashed line with a band of two standard errors.

    Args:
        ax: the panel; several diagrams may share it.
        diagram: from `metrics.reliability`, or predicted, from `bounds.expected_metrics(...).reliability(...)`.
        theory: whether it is a prediction.
        label: the text in the legend.
        number: the place among the diagrams of the panel, which decides colour and mark.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv import metrics, plotting
        >>> fig, (ax,) = plotting.panels()
        >>> sure = np.log([[[0.9, 0.1]] * 10])
        >>> plotting.reliability(ax, metrics.reliability(sure, [0] * 8 + [1] * 2), label="measured")
        >>> ax.get_legend_handles_labels()[1]
        ['right on average', 'measured']
    """
    fix = "Make one with `metrics.reliability`."
    instance(diagram, Reliability, "diagram", expected="a reliability diagram", fix=fix)
    confidence = _check_curve(diagram.confidence, "diagram")
    accuracy, errors = (_check_curve(each, "diagram", like=confidence) for each in (diagram.accuracy, diagram.error))
    if not any(line.get_gid() == "diagonal" for line in _check_panel(ax).lines):
        ax.plot([0, 1], [0, 1], color="#888888", linewidth=0.8, label="right on average", gid="diagonal")
        ax.set(xlim=(0, 1.03), ylim=(0, 1.03), aspect="equal", xlabel="confidence", ylabel="accuracy")
    if boolean(theory, "theory"):
        predicted(ax, confidence, accuracy, errors=errors, label=label, number=number)
        ax.plot(confidence, accuracy, ".", color=_colour_and_mark(number)[0], zorder=5)
    else:
        measured(ax, confidence, accuracy, errors, label=label, number=number)


def save(fig: Figure, path: str | PathLike[str], /) -> list[Path]:
    """Write a figure as PDF, for print, and as PNG.

    The same figure gives the same bytes: no date is written into the files.

    Args:
        fig: the figure.
        path: the path without the ending; missing folders are made.

    Returns:
        The files.

    Example:
        >>> import tempfile
        >>> from ntk_equiv import plotting
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     [file.name for file in plotting.save(plotting.panels()[0], f"{folder}/empty")]
        ['empty.pdf', 'empty.png']
    """
    instance(fig, Figure, "fig", expected="a figure of matplotlib", fix="Pass the first value of `panels`.")
    path = file_path(path, "path")
    path.parent.mkdir(parents=True, exist_ok=True)
    files = [path.with_name(f"{path.name}.{ending}") for ending in ("pdf", "png")]
    fig.savefig(files[0], metadata={"CreationDate": None})
    fig.savefig(files[1], metadata={"Software": None})
    return files


def _check_curve(given: Numbers, argument: str, *, like: np.ndarray | None = None) -> np.ndarray:
    """Return a vector with one number for each place on a curve."""
    fix = "Pass one number for each place on the curve."
    values = np.asarray(real_array(given, argument, fix=fix), float)
    if values.ndim != 1 or not values.size:
        raise refusal(argument, expected="of shape [k], not empty", got=f"shape {values.shape}", fix=fix)
    if like is not None and values.shape != like.shape:
        raise refusal(argument, expected=f"{len(like)} numbers, as in x", got=f"{len(values)}", fix=fix)
    return values


def _check_panel(ax: Axes) -> Axes:
    return instance(ax, Axes, "ax", expected="a panel", fix="Pass one of the axes that `panels` returns.")


def _colour_and_mark(number: int) -> tuple[str, str]:
    if isinstance(number, bool) or not isinstance(number, int | np.integer):
        raise refusal("number", expected="a whole number", got=repr(number), fix="Count the curves of a panel from 0.")
    return COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
