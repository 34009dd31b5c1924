"""The command line: what it computes, prints and writes, and what it answers to mistakes."""

import dataclasses
import inspect
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import jax
import numpy as np
import pytest

import ntk_equiv
from ntk_equiv import cli, datasets, planning
from ntk_equiv.planning import ACTIONS, ACTIVATIONS
from tests.planning.problems import SETTINGS, VECTORS


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The file of a user."""
    path = tmp_path_factory.mktemp("data") / "mine.npz"
    np.savez(path, **dict(zip(("x", "y", "x_test", "y_test"), VECTORS, strict=True)), unused=np.zeros(3))
    return path


def options(**changed):
    """The settings of the tiny problem as they are written on a command line, some of them changed or left out."""
    wanted = {name: value for name, value in {**SETTINGS, **changed}.items() if value is not None}
    listed = {name: value if isinstance(value, list) else [value] for name, value in wanted.items()}
    return [str(word) for name, words in listed.items() for word in (f"--{name.replace('_', '-')}", *words)]


@pytest.fixture(scope="module")
def planned(data, tmp_path_factory):
    """A plan made by the command line."""
    folder = tmp_path_factory.mktemp("out") / "plan"
    assert cli.main(["plan", str(data), *options(), "--out", str(folder), "--quiet"]) == 0
    return folder


def test_a_plan_is_that_of_the_library(data, planned):
    x, y, x_test, y_test = VECTORS
    expected = planning.plan(x, y, x_test=x_test, y_test=y_test, **SETTINGS)
    found = planning.Plan.load(planned / "plan.json")
    assert found.origin["data"] == "mine.npz"
    assert found.origin["command"] == shlex.join(
        ["ntk-equiv", "plan", str(data), *options(), "--out", str(planned), "--quiet"]
    )
    (cost,) = [note for note in found.notes if note.startswith("Cost")]  # as measured just then
    notes = tuple(cost if note.startswith("Cost") else note for note in expected.notes)
    assert found.table() == dataclasses.replace(expected, origin=found.origin, notes=notes).table()
    assert (planned / "plan.txt").read_text() == found.table() + "\n"
    assert {path.name for path in planned.iterdir()} == {f"plan.{end}" for end in ("html", "json", "txt", "pdf", "png")}


@pytest.fixture
def pictures(tmp_path):
    """A folder with two classes of coloured pictures, of different sizes."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for name, brightest in (("dark", 90), ("light", 255)):
        (tmp_path / "slides" / name).mkdir(parents=True)
        for number in range(5):
            pixels = rng.integers(0, brightest, (4 + number, 4 + number, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "slides" / name / f"{number}.png")
    return tmp_path / "slides"


def test_a_folder_of_pictures_is_planned_as_its_arrays_are(pictures, tmp_path):
    arguments = options(action="rot90")
    written = [*arguments, "--size", "4", "--no-figures", "--quiet", "--out", str(tmp_path / "plan")]
    assert cli.main(["plan", str(pictures), *written]) == 0
    found = planning.Plan.load(tmp_path / "plan" / "plan.json")
    read = datasets.image_folder(pictures, size=4)
    expected = planning.plan(read.x, read.y, class_names=["dark", "light"], **{**SETTINGS, "action": "rot90"})
    assert found.origin["data"] == "slides"
    (cost,) = [note for note in found.notes if note.startswith("Cost")]  # as measured just then
    notes = tuple(cost if note.startswith("Cost") else note for note in expected.notes)
    assert found.table() == dataclasses.replace(expected, origin=found.origin, notes=notes).table()
    assert "dark" in found.table()
    for place in found.points.index:  # the first five are dark
        assert found.origin["files"][int(place)] == f"{'dark' if place < 5 else 'light'}/{place % 5}.png"
        assert re.search(rf"^{place} +{found.origin['files'][int(place)]} ", found.table(), re.MULTILINE)


def test_pictures_that_cannot_be_used_are_refused(pictures, data, tmp_path, capsys):
    new = ["--out", str(tmp_path / "new")]
    assert cli.main(["plan", str(pictures), *options(action="rot90"), *new]) == 2
    assert "--size must be given for images of different shapes" in capsys.readouterr().err
    assert cli.main(["plan", str(data), *options(), "--size", "28", *new]) == 2
    assert "--size must be left out for an npz file, got 28" in capsys.readouterr().err


def test_what_is_there_is_not_replaced_unless_that_is_said(data, planned, capsys):
    arguments = ["plan", str(data), *options(), "--out", str(planned)]
    assert cli.main(arguments) == 2
    assert "--out must be a folder without a plan" in capsys.readouterr().err
    assert cli.main([*arguments, "--overwrite", "--no-figures"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("In short\n--------\n- How many members: ")
    assert said.out.endswith("plan.txt\n")
    assert "8 training and 3 test samples under 4 elements will take about" in said.err
    assert re.search("fitting the infinite ensemble to 4 × 8 samples; about .* left …", said.err)


@pytest.mark.parametrize(("option", "dtype"), [([], "float64"), (["--float32"], "float32")])
def test_double_precision_is_the_default_of_the_program(data, tmp_path, monkeypatch, option, dtype):
    asked = {}

    def recorded(*arrays, **settings):
        asked.update(settings, on=jax.config.jax_enable_x64)
        raise KeyboardInterrupt

    monkeypatch.setattr(planning, "plan", recorded)
    jax.config.update("jax_enable_x64", False)  # as a program finds it
    try:
        assert cli.main(["plan", str(data), *options(), "--out", str(tmp_path), *option]) == 130
        assert (asked["dtype"], asked["on"]) == (dtype, dtype == "float64")
        assert not jax.config.jax_enable_x64
    finally:
        jax.config.update("jax_enable_x64", True)


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"action": "rot90"}, "--action must be an action of cyclic(4) on samples of shape (2,)"),
        ({"group": "G4"}, "--group must be one of C4, D4"),
        ({"label_action": "regular"}, "--label-action must be"),
        ({"arch": "mlp:relu"}, "--arch must be of the form mlp or cnn"),
        ({"times": ["log:1:10"]}, "--times must be training times"),
        ({"delta": -1}, "--delta must be positive"),
        ({"epsilon": 2}, "--epsilon must be between 0 and 1"),
        ({"minutes": 0}, "--minutes must be a positive number"),
        ({"max_points": 0}, "--max-points must be a positive integer"),
        ({"group": None}, "the following arguments are required: --group"),
        ({"members": "ten"}, "argument --members: invalid int value"),
    ],
)
def test_mistakes_in_the_options_are_answered_in_their_words(data, tmp_path, capsys, changed, complaint):
    assert cli.main(["plan", str(data), *options(**changed), "--out", str(tmp_path / "new")]) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert "Traceback" not in said
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("arrays", "complaint"),
    [
        ({"x": VECTORS[0]}, "must be a file with y, got x only"),
        ({"points": VECTORS[0], "labels": VECTORS[1]}, "must be a file with x and y, got points, labels only"),
        ({"x": VECTORS[0] * np.nan, "y": VECTORS[1]}, "x must be finite numbers, got 16 that are not"),
        ({"x": VECTORS[0], "y": VECTORS[1][:2]}, "y must be labels of 8 samples"),
        ({"x": VECTORS[0], "y": np.array([{}] * 8, object)}, "must be an intact npz file of numbers"),
    ],
)
def test_files_that_cannot_be_used_are_refused(tmp_path, capsys, arrays, complaint):
    np.savez(tmp_path / "mine.npz", **arrays)
    assert cli.main(["plan", str(tmp_path / "mine.npz"), *options(), "--out", str(tmp_path / "new")]) == 2
    assert complaint in capsys.readouterr().err


def test_files_that_are_none_are_refused(tmp_path, capsys):
    (tmp_path / "text.npz").write_text("x, y")
    for name, complaint in (
        ("missing.npz", "must be a folder of images or an npz file, got"),
        ("text.npz", "got no archive"),
        ("", "got no images there"),
    ):
        assert cli.main(["plan", str(tmp_path / name), *options(), "--out", str(tmp_path / "new")]) == 2
        assert complaint in capsys.readouterr().err


def test_a_place_where_nothing_can_be_written_is_refused_before_computing(data, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(planning, "plan", None)
    (tmp_path / "file").write_text("")
    assert cli.main(["plan", str(data), *options(), "--out", str(tmp_path / "file" / "plan")]) == 2
    assert "--out must be a folder that can be written to" in capsys.readouterr().err


def test_without_matplotlib_figures_have_to_be_left_out(data, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(cli, "find_spec", lambda name: None)
    assert cli.main(["plan", str(data), *options(), "--out", str(tmp_path)]) == 2
    assert "matplotlib must be installed to draw figures, got nothing. Install it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "complaint"),
    [
        (KeyboardInterrupt(), 130, "ntk-equiv: interrupted."),
        (RuntimeError("a bug"), 1, "RuntimeError: a bug. --traceback shows where"),
        (ValueError("a bug"), 1, "ValueError: a bug"),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory\nmore"), 1, "not enough memory"),
    ],
)
def test_other_errors_have_other_codes(data, tmp_path, capsys, monkeypatch, error, code, complaint):
    def failing(*arguments, **settings):
        raise error

    monkeypatch.setattr(planning, "plan", failing)
    arguments = ["plan", str(data), *options(), "--out", str(tmp_path / "new")]
    assert cli.main(arguments) == code
    said = capsys.readouterr().err
    assert complaint in said
    assert "Traceback" not in said
    if code == 1:
        assert cli.main([*arguments, "--traceback"]) == code
        assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_info_tells_versions_devices_and_the_layout(capsys):
    assert cli.main(["info", "--members", "3", "--width", "16", "--batch", "8"]) == 0
    said = capsys.readouterr().out
    assert f"jax          {jax.__version__}" in said
    assert f"{len(jax.devices())} × {jax.devices()[0].device_kind}" in said
    assert "<3 members, " in said
    assert cli.main(["info", "--members", "0"]) == 2
    assert "--members must be a positive integer" in capsys.readouterr().err


def test_help_has_examples_and_every_option_of_the_library(capsys):
    assert cli.main(["--help"]) == 0
    assert "ntk-equiv plan slides/ --size 28 --group C4 --action rot90" in capsys.readouterr().out
    assert cli.main(["info", "--help"]) == 0
    assert "examples:" in capsys.readouterr().out
    assert cli.main(["plan", "--help"]) == 0
    said = capsys.readouterr().out
    assert "examples:" in said
    with pytest.raises(ValueError, match="must be one of") as refused:
        planning.named_group("G4")
    names = re.search("one of (.*), or a product", str(refused.value))[1].split(", ")
    for name in (*ACTIVATIONS, *ACTIONS, *names):
        assert re.search(rf"\b{name}\b", said), name
    elsewhere = {"x_test", "y_test", "dtype", "progress"}
    settings = {name: each.default for name, each in inspect.signature(planning.plan).parameters.items()}
    for name in settings.keys() - elsewhere - {"x", "y"}:
        assert f"--{name.replace('_', '-')} " in said, name
    offered = {name: option for group in cli.OPTIONS.values() for name, option in group.items()}
    for name in offered.keys() - {"group", "action"}:
        assert offered[name][1] == settings[name], name


def test_no_command_is_a_mistake(capsys):
    assert cli.main([]) == 2
    assert "COMMAND" in capsys.readouterr().err


def test_the_program_starts_without_loading_anything_heavy():
    code = "import sys; from ntk_equiv.cli import main; main(['plan', '--help']); print(*sys.modules, file=sys.stderr)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"jax", "flax", "optax", "matplotlib", "numpy"} & set(result.stderr.split())


def test_python_runs_the_package_as_the_program():
    result = subprocess.run([sys.executable, "-m", "ntk_equiv", "--version"], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, f"ntk-equiv {ntk_equiv.__version__}\n")
    bad = [sys.executable, "-m", "ntk_equiv", "plan", "missing.npz", "--group", "C4", "--action", "rot90"]
    assert subprocess.run(bad, capture_output=True).returncode == 2
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"ntk-equiv": "ntk_equiv.cli:main"}
