"""Planned runs: training, the numbers of the report against NumPy, the folder, the command line, and wrong calls."""

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ntk_equiv import cli, planned_runs
from tests.planned_runs import problems
from tests.planned_runs.problems import HERE, IMAGES, TRAINING
from tests.planning.page import Page
from tests.planning.problems import SETTINGS, VECTORS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def plans():
    return {"vectors": problems.plan_of_vectors(), "images": problems.plan_of_images()}


@pytest.fixture(scope="module")
def runs(plans, tmp_path_factory):
    """Runs of both plans in folders."""
    folder = tmp_path_factory.mktemp("runs")
    return {name: trained(plan, name, folder=folder / name) for name, plan in plans.items()}


def trained(plan, name, **changed):
    x, y, x_test, y_test = VECTORS if name == "vectors" else IMAGES
    settings = {**TRAINING, "network": f"{HERE}:dense", "x_test": x_test, "y_test": y_test, **changed}
    return planned_runs.train(plan, x, y, **settings)


def as_options(settings):
    return [str(word) for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", value)]


def row_of(run, name):
    (row,) = [row for row in planned_runs.compare(run) if row.name.startswith(name)]
    return row


def test_the_numbers_of_classes_are_those_of_numpy(runs):
    run, x_test, names = runs["images"], IMAGES[2], IMAGES[3]
    truth = np.array([run.plan.problem["classes"].index(name) for name in names])
    turns = np.array([np.exp(run.predict(np.rot90(x_test, g, axes=(1, 2)))) for g in range(4)], float)
    p = (turns / turns.sum(axis=-1, keepdims=True)).swapaxes(0, 1)  # [members, elements, samples, classes]
    mean, place = p.mean(axis=0), np.arange(len(truth))
    right = mean[0].argmax(axis=1) == truth
    assert row_of(run, "correct").measured[0] == pytest.approx(right.mean())
    assert row_of(run, "correct").measured[1] == pytest.approx(right.std(ddof=1) / len(truth) ** 0.5)
    likelihoods = -np.log(mean[0][place, truth])
    assert row_of(run, "negative").measured[0] == pytest.approx(likelihoods.mean(), rel=1e-5)
    each = -np.log(p[:, 0][:, place, truth]).mean(axis=1)
    np.testing.assert_allclose(row_of(run, "negative").members, each, rtol=1e-5)
    brier = ((mean[0] - np.eye(2)[truth]) ** 2).sum(axis=1).mean()
    assert row_of(run, "Brier").measured[0] == pytest.approx(brier, rel=1e-5)
    same = sum((mean[g].argmax(axis=1) == mean[0].argmax(axis=1)).astype(int) for g in range(4))
    assert row_of(run, "same class").measured[0] == pytest.approx(same.mean())
    assert row_of(run, "same class").planned[0] == pytest.approx(run.plan.points.same_many.mean())


def test_probabilities_of_new_samples_are_means_over_members(runs):
    run, x = runs["images"], IMAGES[2]
    p = np.exp(np.asarray(run.predict(x), float))
    p = (p / p.sum(axis=-1, keepdims=True)).mean(axis=0)
    np.testing.assert_allclose(run.probabilities(x), p, rtol=1e-5)
    np.testing.assert_allclose(run.probabilities(x, temperature=2.0), p**0.5 / (p**0.5).sum(axis=1)[:, None], rtol=1e-5)
    with pytest.raises(ValueError, match="`run` must be one with classes"):
        runs["vectors"].probabilities(VECTORS[2])
    with pytest.raises(ValueError, match=r"got shape \(4, 4, 3\)\. Give a single sample the axis"):
        run.predict(x[0])
    with pytest.raises(ValueError, match=r"got shape \(2, 4, 4\)\. Repeat the grey images on all channels"):
        run.predict(x[..., 0])


def test_members_that_stopped_at_once_or_never_are_named(runs):
    run = runs["images"]
    steps_in_epoch = run.history.steps_per_epoch
    patient = {**run.settings, "epochs": 30, "patience": 6}
    at_once = dataclasses.replace(run, steps=np.array([1, 20]) * steps_in_epoch, settings=patient)
    assert at_once.table().count("WARNING: 1 of 2 members keep the parameters of their first 2 epochs") == 2
    late = dataclasses.replace(run, steps=np.array([30, 30]) * steps_in_epoch, settings=patient)
    assert "2 of 2 members were best in the last epoch" in late.table()
    fine = dataclasses.replace(run, steps=np.array([10, 20]) * steps_in_epoch, settings=patient)
    assert "keep the parameters" not in fine.table()
    assert "best in the last epoch" not in fine.table()


def test_the_numbers_of_regression_are_those_of_numpy(runs):
    run, (_, _, x_test, y_test) = runs["vectors"], VECTORS
    turn = np.array([[0.0, -1.0], [1.0, 0.0]])
    found = np.array([run.predict(x_test @ np.linalg.matrix_power(turn, g).T)[..., 0] for g in range(4)], float)
    mean = found.mean(axis=1)  # over members: [elements, samples]
    squares = (mean[0] - y_test) ** 2
    error = row_of(run, "mean squared error")
    assert error.measured == pytest.approx((squares.mean(), squares.std(ddof=1) / 3**0.5), rel=1e-4)
    np.testing.assert_allclose(error.members, ((found[0] - y_test) ** 2).mean(axis=1), rtol=1e-4)
    at = list(run.plan.times).index(run.plan.t)
    assert error.planned[0] == run.plan.test.of(SETTINGS["members"])[at]
    spread = row_of(run, "deviation")
    assert spread.measured[0] == pytest.approx(mean.std(axis=0).mean(), rel=1e-4)
    np.testing.assert_allclose(spread.members, found.std(axis=0).mean(axis=1), rtol=1e-4)
    assert spread.planned[0] == pytest.approx(run.plan.points.orbit_many.mean())
    assert spread.infinite == (0.0, 0.0)


def test_labels_that_turn_with_the_samples_are_turned_back(plans):
    """The identity is equivariant, so its deviation vanishes; with the inverse action it would not."""
    plan = plans["vectors"]
    turning = dataclasses.replace(
        plan, settings={**plan.settings, "label_action": "same"}, origin={**plan.origin, "sha256": None}
    )
    x, _, x_test, _ = VECTORS
    run = planned_runs.train(
        turning, x, 3 * x, x_test=x_test, y_test=3 * x_test, **{**TRAINING, "network": problems.identity(2)}
    )
    spread = row_of(run, "deviation")
    assert spread.measured[0] < 1e-5
    wrong = dataclasses.replace(run, actions=run.actions.swapaxes(1, 2))
    assert row_of(wrong, "deviation").measured[0] > 0.1
    assert run.units.y_shift == (0.0, 0.0)
    np.testing.assert_allclose(run.predict(x_test)[0], 3 * x_test, rtol=0.2)


def test_a_run_comes_back_from_its_folder(runs):
    for run in runs.values():
        again = planned_runs.PlannedRun.load(run.folder)
        assert again.table() == run.table()
        assert again.ensemble is None
        x = run.samples
        np.testing.assert_array_equal(again.with_ensemble().predict(x), run.predict(x))


@pytest.fixture
def folder_of_data(tmp_path, monkeypatch):
    """The current folder of a user, with the data of both plans."""
    monkeypatch.chdir(tmp_path)
    for name, data in (("vectors", VECTORS), ("images", IMAGES)):
        np.savez(tmp_path / f"{name}.npz", **dict(zip(("x", "y", "x_test", "y_test"), data, strict=True)))
    return tmp_path


def test_the_three_commands_do_what_the_functions_do(runs, folder_of_data, capsys):
    run = runs["images"]
    asked = {**SETTINGS, "action": "rot90"}
    times = asked.pop("times")
    planning = ["plan", "images.npz", *as_options(asked), "--times", *times, "--no-figures", "--quiet"]
    assert cli.main(planning) == 0
    capsys.readouterr()
    command = ["train", "images-plan", *as_options({"network": f"{HERE}:dense", **TRAINING}), "--quiet"]
    assert cli.main(command) == 0
    said = capsys.readouterr()
    assert said.out.endswith("images-run\n\nNow `ntk-equiv report images-run` writes the report.\n")
    found = planned_runs.PlannedRun.load("images-run")
    np.testing.assert_array_equal(found.outputs, run.outputs)
    assert found.origin["command"] == f"ntk-equiv {' '.join(command)}"
    assert said.out.startswith(found.table())
    assert cli.main(["report", "images-run"]) == 0
    assert capsys.readouterr().out.endswith("images-run/report.html\n")
    page = Path("images-run/report.html").read_text()
    assert page == planned_runs.report(found, "again.html").read_text()
    assert "ntk-equiv plan images.npz" in page
    same = dataclasses.replace(found, plan=run.plan, origin=run.origin)
    assert same.table() == run.table()


def test_the_report_is_one_page_that_loads_nothing(runs, tmp_path):
    for name, run in runs.items():
        text = planned_runs.report(run, tmp_path / "page.html").read_text(encoding="utf-8")
        page, panels = Page(text), 3 if name == "images" else 2
        pictures = [target for target in page.targets if target.startswith("data:image/png;base64,")]
        assert len(pictures) == panels + (len(run.samples) if name == "images" else 0)
        assert {target for target in page.targets if target not in pictures} == {f"#{name}" for name in page.ids}
        assert not re.search(r"https?:|//|@import|url\(|<script|<link", re.sub(r'"data:image[^"]*"', "", text))
        assert "prefers-color-scheme: dark" in text
        for words in ("Plan and measurement", "What holds by theory, and what is measured", run.origin["date"], "jax"):
            assert words in page.text, words
    hostile = dataclasses.replace(run.plan, problem={**run.plan.problem, "group": "<script>alert(1)</script>"})
    text = planned_runs.report(dataclasses.replace(run, plan=hostile), tmp_path / "page.html", figures=False)
    assert "<script>" not in text.read_text(encoding="utf-8")


def test_the_figures_show_the_numbers_of_the_run(runs):
    run = runs["vectors"]
    (ax,) = run.figure("members").axes
    curves = {line.get_label(): line.get_xydata() for line in ax.lines}
    small = run.plan.orbit.members <= 2 * SETTINGS["members"]
    np.testing.assert_allclose(curves["planned"][:, 1], run.plan.orbit.mean[small])
    container = dict(zip((each.get_label() for each in ax.containers), ax.containers, strict=True))["measured"]
    assert container.lines[0].get_ydata()[-1] == pytest.approx(row_of(run, "deviation").measured[0])
    assert "loss" in {ax.get_title(loc="left") for ax in run.figure("training").axes}
    with pytest.raises(ValueError, match=r"`panel` must be one of 'training', 'members', got 'reliability'"):
        run.figure("reliability")


def test_a_run_that_was_killed_continues_to_the_same_bits(plans, folder_of_data):
    """One process is killed as soon as it has a checkpoint; this one continues and ends as if nothing had happened."""
    plans["vectors"].save(folder_of_data / "plan.json")
    changed = {"epochs": 60, "patience": 60, "network": f"{HERE}:deadly"}
    asked = as_options({**TRAINING, **changed})
    command = ["train", "plan.json", "--data", "vectors.npz", "--out", "run", "--quiet", *asked]
    environment = {
        **os.environ,
        "JAX_ENABLE_X64": "1",
        "PYTHONPATH": str(ROOT),
        "KILLED_WITH_CHECKPOINT_IN": "run/checkpoints",
    }
    done = subprocess.run(
        [sys.executable, "-m", "ntk_equiv", *command], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == -9, done.stderr
    with pytest.raises(ValueError, match=r"must be the folder of a run that has finished, got run, whose training was"):
        planned_runs.PlannedRun.load("run")
    assert cli.main(command) == 0
    found = planned_runs.PlannedRun.load("run")
    alone = trained(plans["vectors"], "vectors", **changed)
    np.testing.assert_array_equal(found.outputs, alone.outputs)
    np.testing.assert_array_equal(found.steps, alone.steps)
    np.testing.assert_array_equal(found.history.losses, alone.history.losses)


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"learning_rate": 0.1}, r"`folder` must be that of a run with these settings, got .* learning_rate 0.05, not"),
        ({"network": f"{HERE}:identity"}, "`network` must be one with 2 outputs for each sample"),
        ({"network": f"{HERE}:raises"}, r"`network` must be a network for samples of shape .*no such weights"),
        ({"network": f"{HERE}:a_number"}, "`network` must be a network for samples of shape"),
        ({"network": f"{HERE}:not_a_function"}, "`network` must be a function, got .*, int"),
        ({"network": f"{HERE}:nothing"}, "`network` must be a factory that can be imported"),
        ({"x_test": None, "y_test": None}, "`data` must be those of the plan, got others"),
        ({"validation": 1.0}, "`validation` must be between 0 and 1"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_changed(runs, changed, complaint):
    run = runs["images"]
    before = (run.folder / "run.json").read_bytes()
    with pytest.raises((ValueError, TypeError), match=complaint):
        trained(run.plan, "images", folder=run.folder, **changed)
    assert (run.folder / "run.json").read_bytes() == before


def test_other_data_plans_and_networks_are_refused(runs, plans, tmp_path):
    run, (x, y, x_test, y_test) = runs["images"], IMAGES
    given = {"x_test": x_test, "y_test": y_test, **TRAINING, "network": f"{HERE}:dense"}
    with pytest.raises(ValueError, match=r"`data` must be those of the plan, got others \(SHA-256 .*changed since"):
        planned_runs.train(run.plan, x + 1e-3, y, **given)
    with pytest.raises(ValueError, match=r"with samples of shape \[4, 4, 3\], got samples of shape \[5, 5, 3\]"):
        planned_runs.train(run.plan, np.zeros((8, 5, 5, 3)), y, **{**given, "x_test": np.zeros((2, 5, 5, 3))})
    with pytest.raises(ValueError, match=r"`folder` must be that of a run of this plan, got .* with other data"):
        trained(plans["vectors"], "vectors", folder=run.folder)
    with pytest.raises(ValueError, match=r"`plan` must be one whose group and actions have names"):
        trained(dataclasses.replace(run.plan, settings={**run.plan.settings, "group": "cyclic(4)"}), "images")
    with pytest.raises(ValueError, match=r"`x` must be of shape \[n, 4, 4, 3\], got shape"):
        run.predict(np.zeros((1, 5, 5, 3)))
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"`folder` must be new, empty, or that of this run"):
        trained(run.plan, "images", folder=tmp_path)
    own = trained(run.plan, "images", folder=tmp_path / "own", network=problems.dense(2))
    with pytest.raises(ValueError, match=r"`run` must be one from a folder, with a network that has a name"):
        planned_runs.PlannedRun.load(own.folder).with_ensemble()
    again = planned_runs.PlannedRun.load(own.folder).with_ensemble(problems.dense(2))
    np.testing.assert_array_equal(again.predict(x_test), own.predict(x_test))
    with pytest.raises(
        ValueError, match=r"`folder` must be that of this very run, got .* with a run of something else"
    ):
        trained(run.plan, "images", folder=tmp_path / "own", network=problems.wider(2))


def test_named_networks_take_samples_of_their_kind():
    for name, shape in (("cnn", (6, 6, 2)), ("mlp", (6, 6, 2)), ("auto", (3,))):
        planned_runs.named_module(name, shape, 4)
    with pytest.raises(ValueError, match=r"`network` must be mlp for samples of shape \(3,\), got 'cnn'"):
        planned_runs.named_module("cnn", (3,), 4)
