"""Figures in one style: readable in print, told apart by people who do not see all colours, the same every time.

    with plotting.style():
        fig, axes = plotting.panels(2, sharey=True)         a row of panels
        plotting.orbit_curve(axes[0], x, ensemble, members) an ensemble, and the quartiles of its members
        plotting.predicted(axes[0], x, theory)              what theory says, on top of it
        plotting.measured(axes[1], x, values, errors)       points with error bars
        plotting.uncertain(axes[1], t, mean, std)           a mean, and the range of two standard deviations
    plotting.save(fig, "figure")                            as figure.pdf and figure.png

Measurements are filled marks and bands in colour, theory is a dashed dark line: so every figure can be read without its
caption. Nothing is shown on a screen, and no state of matplotlib is changed outside of `style`.

This is the only part of the library that imports matplotlib.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes as Axes
from matplotlib.figure import Figure as Figure

from ntk_equiv._check import file_path, instance, positive_integer, real_array, refusal, scalar
from ntk_equiv.metrics import QUANTILES

# After Okabe and Ito, the darkest first; yellow is left out, because thin lines of it are not seen on white.
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
    """The style of all figures here, for what is drawn inside.

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
    sharex: Any = False,
    sharey: Any = False,
    width: float = 3.4,
    height: float = 2.8,
) -> tuple[Figure, list[Axes]]:
    """A figure with panels, read row by row.

    Args:
        columns: panels in a row.
        rows: how many rows.
        sharex: as in matplotlib's `subplots`.
        sharey: likewise.
        width: of a panel, in inches.
        height: of a panel, in inches.

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
    x: Any,
    ensemble: Any,
    members: Any,
    /,
    *,
    errors: Any = None,
    label: str | None = None,
    number: int = 0,
) -> None:
    """A metric of an ensemble as a solid line, and of its members as their median (dotted) and quartiles (band).

    Args:
        ax: the panel.
        x: for example training epochs, [k].
        ensemble: the metric of the ensemble, [k].
        members: of every member, [k, members].
        errors: standard errors of `ensemble`, [k].
        label: for the legend.
        number: the place of this curve among those of the panel, which decides its colour and mark.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv import plotting
        >>> fig, (ax,) = plotting.panels()
        >>> plotting.orbit_curve(ax, [1, 2], [3.5, 4.0], np.array([[2.0, 3.0], [3.0, 3.5]]), label="C4")
        >>> len(ax.lines), len(ax.collections)      # the ensemble and the median; the band
        (2, 1)
    """
    x, ensemble = _curve(x, "x"), _curve(ensemble, "ensemble")
    members = np.asarray(real_array(members, "members"), float)
    if members.ndim != 2 or not len(x) == len(ensemble) == len(members):
        got = f"shapes {x.shape}, {ensemble.shape} and {members.shape}"
        fix = "One row of members for each place on the curve."
        raise refusal("members", expected="of shape [k, members], with x and ensemble [k]", got=got, fix=fix)
    _panel(ax)
    colour, mark = _look(number)
    low, median, high = np.quantile(members, QUANTILES, axis=1)
    ax.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
    ax.plot(x, median, ":", color=colour, linewidth=1)
    marks: dict[str, Any] = {"color": colour, "marker": mark, "label": label}
    if errors is None:
        ax.plot(x, ensemble, **marks)
    else:
        ax.errorbar(x, ensemble, yerr=_curve(errors, "errors", like=x), capsize=2, **marks)


def measured(
    ax: Axes,
    x: Any,
    values: Any,
    errors: Any = None,
    /,
    *,
    label: str | None = None,
    number: int = 0,
    joined: bool = False,
) -> None:
    """Measurements as marks with error bars.

    Args:
        ax: the panel.
        x: where, [k].
        values: what was measured, [k].
        errors: standard errors, [k].
        label: for the legend.
        number: the place among the curves of the panel, which decides colour and mark.
        joined: whether a line joins the marks.

    Example:
        >>> from ntk_equiv import plotting
        >>> fig, (ax,) = plotting.panels()
        >>> plotting.measured(ax, [1, 2], [0.5, 0.4], [0.1, 0.1], label="trained")
        >>> ax.get_legend_handles_labels()[1]
        ['trained']
    """
    x = _curve(x, "x")
    values, spread = _curve(values, "values", like=x), None if errors is None else _curve(errors, "errors", like=x)
    colour, mark = _look(number)
    look: dict[str, Any] = {"color": colour, "marker": mark, "linestyle": "-" if joined else "none"}
    _panel(ax).errorbar(x, values, yerr=spread, capsize=2, label=label, **look)


def predicted(ax: Axes, x: Any, values: Any, /, *, label: str | None = None, number: int | None = None) -> None:
    """What theory says: a dashed dark line on top of everything else.

    Args:
        ax: the panel.
        x: where, [k].
        values: what theory says, [k].
        label: for the legend.
        number: takes the colour of this curve instead, where several theories must be told apart.

    Example:
        >>> from ntk_equiv import plotting
        >>> fig, (ax,) = plotting.panels()
        >>> plotting.predicted(ax, [1, 2], [0.5, 0.4])
        >>> ax.lines[0].get_linestyle(), ax.lines[0].get_ydata().tolist()
        ('--', [0.5, 0.4])
    """
    x = _curve(x, "x")
    values, colour = _curve(values, "values", like=x), _THEORY if number is None else _look(number)[0]
    _panel(ax).plot(x, values, "--", color=colour, linewidth=1.2, label=label, zorder=5)


def uncertain(ax: Axes, x: Any, mean: Any, std: Any, /, *, label: str | None = None, number: int = 0) -> None:
    """A mean with the range of two standard deviations around it.

    Args:
        ax: the panel.
        x: where, [k].
        mean: the mean, [k].
        std: the standard deviation, [k].
        label: for the legend.
        number: the place among the curves of the panel, which decides the colour.

    Example:
        >>> from ntk_equiv import plotting
        >>> fig, (ax,) = plotting.panels()
        >>> plotting.uncertain(ax, [1, 2], [0.5, 0.4], [0.1, 0.1])
        >>> band = ax.collections[0].get_datalim(ax.transData)
        >>> round(float(band.y0), 9), round(float(band.y1), 9)      # from 0.4 − 0.2 to 0.5 + 0.2
        (0.2, 0.7)
    """
    x = _curve(x, "x")
    mean, std = _curve(mean, "mean", like=x), _curve(std, "std", like=x)
    if (std < 0).any():
        raise refusal("std", expected="not negative", got=std.min(), fix="It is the root of a variance.")
    colour = _look(number)[0]
    _panel(ax).fill_between(x, mean - 2 * std, mean + 2 * std, color=colour, alpha=0.2, linewidth=0)
    ax.plot(x, mean, color=colour, label=label)


def save(fig: Figure, path: Any, /) -> list[Path]:
    """Write a figure as PDF, for print, and as PNG.

    The same figure gives the same bytes: no date is written into the files.

    Args:
        fig: the figure.
        path: without the ending; folders that are missing are made.

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


def _curve(values: Any, argument: str, *, like: np.ndarray | None = None) -> np.ndarray:
    """`values` as a vector, one number for each place on a curve."""
    fix = "Pass one number for each place on the curve."
    values = np.asarray(real_array(values, argument, fix=fix), float)
    if values.ndim != 1 or not values.size:
        raise refusal(argument, expected="of shape [k], not empty", got=f"shape {values.shape}", fix=fix)
    if like is not None and values.shape != like.shape:
        raise refusal(argument, expected=f"{len(like)} numbers, as in x", got=f"{len(values)}", fix=fix)
    return values


def _panel(ax: Any) -> Axes:
    return instance(ax, Axes, "ax", expected="a panel", fix="Pass one of the axes that `panels` returns.")


def _look(number: Any) -> tuple[str, str]:
    """Colour and mark of a curve."""
    if isinstance(number, bool) or not isinstance(number, int | np.integer):
        raise refusal("number", expected="a whole number", got=repr(number), fix="Count the curves of a panel from 0.")
    return COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
