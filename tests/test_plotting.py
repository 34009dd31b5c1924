"""Figures: one style, restored afterwards; the same bytes every time; and what is drawn is what was passed."""

import matplotlib
import numpy as np
import pytest

from ntk_equiv import metrics, plotting

TIMES = np.array([1.0, 10.0, 100.0])


@pytest.fixture
def ax():
    """One empty panel."""
    return plotting.panels()[1][0]


def figure():
    """Some of everything."""
    with plotting.style():
        fig, (left, right) = plotting.panels(2, sharey=True)
        plotting.orbit_curve(left, TIMES, [1.0, 2.0, 3.0], np.arange(12.0).reshape(3, 4), errors=[0.1] * 3, label="C4")
        plotting.predicted(left, TIMES, [1.5, 2.5, 3.5], label="theory")
        plotting.measured(right, TIMES, [1.0, 2.0, 3.0], [0.1, 0.2, 0.3], number=7)
        plotting.uncertain(right, TIMES, [1.0, 2.0, 3.0], [0.5, 0.5, 0.5])
        left.legend()
    return fig


def test_the_style_ends_with_its_block_also_after_an_error():
    before = dict(matplotlib.rcParams)
    with plotting.style():
        assert matplotlib.rcParams["axes.prop_cycle"].by_key()["color"] == list(plotting.COLOURS)
        assert dict(matplotlib.rcParams) != before
    assert dict(matplotlib.rcParams) == before
    with pytest.raises(ZeroDivisionError), plotting.style():
        raise ZeroDivisionError
    assert dict(matplotlib.rcParams) == before


def test_no_window_belongs_to_a_figure():
    assert figure().canvas.manager is None  # a figure of pyplot has one


def test_the_same_figure_gives_the_same_bytes(tmp_path):
    first = plotting.save(figure(), tmp_path / "a" / "new folder" / "curve.of.x")
    second = plotting.save(figure(), str(tmp_path / "b"))
    assert [path.name for path in first] == ["curve.of.x.pdf", "curve.of.x.png"]
    assert [path.read_bytes()[:4] for path in first] == [b"%PDF", b"\x89PNG"]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
    assert b"CreationDate" not in first[0].read_bytes()


def test_panels_are_read_row_by_row():
    fig, axes = plotting.panels(3, 2, width=2.0, height=1.0)
    assert fig.get_size_inches().tolist() == [6.0, 2.0]
    assert [(ax.get_subplotspec().rowspan.start, ax.get_subplotspec().colspan.start) for ax in axes] == [
        (row, column) for row in range(2) for column in range(3)
    ]


def test_an_orbit_curve_shows_the_ensemble_and_the_quartiles_of_its_members(ax):
    members = np.array([[4.0, 1.0, 2.0, 3.0, 5.0], [10.0, 30.0, 20.0, 50.0, 40.0]])
    plotting.orbit_curve(ax, [1, 2], [7.0, 8.0], members, label="C4")
    median, ensemble = ax.lines
    assert ensemble.get_ydata().tolist() == [7, 8]
    assert ensemble.get_label() == "C4"
    assert median.get_ydata().tolist() == [3, 30]
    (band,) = ax.collections
    corners = band.get_paths()[0].vertices
    assert {(x, y) for x, y in corners.tolist()} == {(1, 2), (1, 4), (2, 20), (2, 40)}


def test_error_bars_are_as_long_as_the_errors(ax):
    plotting.measured(ax, TIMES, [1.0, 2.0, 3.0], [0.1, 0.2, 0.3])
    (bars,) = ax.containers
    data, _, (lines,) = bars.lines
    assert data.get_linestyle() == "None"
    np.testing.assert_allclose([np.ptp(segment[:, 1]) for segment in lines.get_segments()], [0.2, 0.4, 0.6])
    plotting.measured(ax, TIMES, [1.0, 2.0, 3.0], joined=True)
    assert ax.containers[1].lines[0].get_linestyle() == "-"


def test_theory_is_a_dashed_line_on_top_in_a_colour_of_its_own(ax):
    plotting.measured(ax, TIMES, TIMES, number=2)
    plotting.predicted(ax, TIMES, TIMES)
    plotting.predicted(ax, TIMES, TIMES, number=2)
    dark, coloured = ax.lines[-2:]
    assert dark.get_linestyle() == coloured.get_linestyle() == "--"
    assert dark.get_color() not in plotting.COLOURS
    assert coloured.get_color() == plotting.COLOURS[2]
    assert dark.get_zorder() > max(line.get_zorder() for line in ax.lines[:-2])


def test_uncertainty_is_a_band_of_two_standard_deviations(ax):
    plotting.uncertain(ax, [0, 1], [10.0, 20.0], [1.0, 2.0], label="mean")
    assert ax.lines[0].get_ydata().tolist() == [10, 20]
    assert {(x, y) for x, y in ax.collections[0].get_paths()[0].vertices.tolist()} == {
        (0, 8),
        (0, 12),
        (1, 16),
        (1, 24),
    }


def test_colours_and_marks_begin_anew_when_they_run_out(ax):
    for number in (0, len(plotting.COLOURS)):
        plotting.measured(ax, TIMES, TIMES, number=number)
    first, last = (bars.lines[0] for bars in ax.containers)
    assert (first.get_color(), first.get_marker()) == (last.get_color(), last.get_marker())


@pytest.mark.parametrize(
    ("draw", "complaint"),
    [
        (lambda ax: plotting.panels(0), "`columns` must be a positive integer"),
        (lambda ax: plotting.panels(1, -1), "`rows` must be a positive integer"),
        (lambda ax: plotting.predicted(ax, [], []), r"`x` must be of shape \[k\], not empty, got shape \(0,\)"),
        (lambda ax: plotting.measured(ax, [1.0], [[1.0]]), r"`values` must be of shape \[k\]"),
        (lambda ax: plotting.measured(ax, [1.0], [1.0], 0.1), r"`errors` must be of shape \[k\]"),
        (lambda ax: plotting.uncertain(ax, [1.0], [1.0], 0.1), r"`std` must be of shape \[k\]"),
        (lambda ax: plotting.orbit_curve(ax, [1, 2], [1, 2], [1, 2]), r"`members` must be of shape \[k, members\]"),
        (lambda ax: plotting.orbit_curve(ax, [1, 2], [1], [[1], [2]]), r"`members` must be of shape \[k, members\]"),
    ],
)
def test_what_cannot_be_drawn_is_refused(ax, draw, complaint):
    with pytest.raises(ValueError, match=complaint):
        draw(ax)


class Trained:
    """A history of two members, one of which is lost at the end; the second metric is of the ensemble alone."""

    steps, losses, rates = [10, 20], [np.array([1.0, 3.0]), np.array([0.5, np.nan])], [0.1, 0.05]
    validation_steps, steps_per_epoch = [0, 10, 20], 10
    validation = {  # noqa: RUF012
        "loss": [np.array([2.0, 4.0])] * 3,
        "accuracy": [np.array([0.5, 1.0])] * 3,
        "spread": [np.full(2, np.nan)] * 3,
    }
    ensemble = {"loss": [2.0, 1.5, 1.0], "accuracy": [0.5, 0.75, 1.0], "spread": [3.0, 2.0, 1.0]}  # noqa: RUF012


def test_training_curves_show_members_and_ensembles():
    loss, accuracy, spread, rate = plotting.training_curves(Trained()).axes
    assert [ax.get_title(loc="left") for ax in (loss, accuracy, spread, rate)] == [
        *("loss", "accuracy", "spread", "learning rate")
    ]
    training, validation, ensemble = loss.lines
    assert training.get_xydata().tolist() == [[1.0, 2.0], [2.0, 0.5]]  # the median of the finite members, by epoch
    assert validation.get_xydata().tolist() == [[0.0, 3.0], [1.0, 3.0], [2.0, 3.0]]
    assert ensemble.get_ydata().tolist() == [2.0, 1.5, 1.0]
    assert [ax.get_yscale() for ax in (loss, accuracy)] == ["log", "linear"]
    assert len(accuracy.lines) == 2
    assert [line.get_ydata().tolist() for line in spread.lines] == [[3.0, 2.0, 1.0]]
    assert rate.lines[0].get_ydata().tolist() == [0.1, 0.05]
    with pytest.raises(ValueError, match=r"`history` must be .*`run.history`"):
        plotting.training_curves([1.0, 2.0])


def test_a_reliability_diagram_shows_accuracy_against_confidence(ax):
    diagram = metrics.Reliability(*np.array([[0.5, 0.9], [0.4, 0.8], [0.1, np.nan], [10.0, 1.0]]))
    plotting.reliability(ax, diagram, label="measured")
    plotting.reliability(ax, diagram, theory=True, label="predicted", number=1)
    assert ax.get_legend_handles_labels()[1] == ["right on average", "predicted", "measured"]  # one diagonal
    (marks,) = ax.containers
    assert marks.lines[0].get_xydata().tolist() == [[0.5, 0.4], [0.9, 0.8]]
    dashed = next(line for line in ax.lines if line.get_label() == "predicted")
    assert dashed.get_xydata().tolist() == [[0.5, 0.4], [0.9, 0.8]]
    band = ax.collections[-1].get_paths()[0].vertices
    assert {(round(x, 9), round(y, 9)) for x, y in band.tolist()} == {(0.5, 0.2), (0.5, 0.6)}  # two standard errors
