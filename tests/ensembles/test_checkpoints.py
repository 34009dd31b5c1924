"""Runs on disk: interrupted, killed, resumed, refused, saved and loaded."""

import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest

from ntk_equiv import augment, ensembles, groups, reps, stax

ROOT = Path(__file__).parents[2]
X = np.random.default_rng(0).normal(size=(6, 2))
Y = X[:, :1]
ADAM = optax.adam(0.1)


def init(key, x):
    return {"W": jax.random.uniform(key, (x.shape[-1], 1), minval=-1.0)}


def apply(params, x):
    return jnp.tanh(x @ params["W"])


NET = (init, apply)


def trained(folder=None, data=(X, Y), net=NET, **changes):
    settings = {"members": 3, "steps": 20, "optimizer": ADAM, "key": jax.random.key(0), "batch_size": 4}
    return ensembles.train(net, data, checkpoint=folder, **settings | {"checkpoint_every": 3} | changes)


class Interruption(Exception):
    pass


def interrupted(folder, at, **changes):
    """A run that stops with an exception when it records after `at` steps."""

    def stop(predictions):
        raise Interruption

    with pytest.raises(Interruption):
        trained(folder, record={"x": (X, stop)}, record_at=[at], **changes)


@pytest.fixture(scope="module")
def whole():
    return trained(record={"x": (X, np.asarray)}, record_at=[8])


def test_an_interrupted_run_is_resumed_to_the_same_bits(tmp_path, whole):
    interrupted(tmp_path, 8)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3", "6"]
    run = trained(tmp_path, resume=True, record={"x": (X, np.asarray)}, record_at=[8])
    np.testing.assert_array_equal(run.params["W"], whole.params["W"])
    np.testing.assert_array_equal(run.records["x"], whole.records["x"])
    np.testing.assert_array_equal(run.curve[1], whole.curve[1])
    again = trained(tmp_path, resume=True, record={"x": (X, np.asarray)}, record_at=[8])
    np.testing.assert_array_equal(again.params["W"], whole.params["W"])


def test_a_run_that_goes_on_with_another_version_says_so(tmp_path, monkeypatch):
    trained(tmp_path, steps=4)
    trained(tmp_path, steps=6, resume=True)  # the same versions: no warning
    installed = importlib.metadata.version
    newer = lambda name: "99.0" if name == "optax" else installed(name)  # noqa: E731
    monkeypatch.setattr("ntk_equiv.ensembles._checkpoint.version", newer)
    with pytest.warns(RuntimeWarning, match=f"optax {installed('optax')}, now 99.0"):
        trained(tmp_path, steps=8, resume=True)


def test_a_run_killed_at_random_moments_is_resumed_to_the_same_bits():
    command = [sys.executable, "-m", "tests.ensembles.killed", "--kills", "5"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "killed 5 times" in done.stdout
    assert "equal: True" in done.stdout


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"members": 4}, "members: 4 instead of 3"),
        ({"steps": 10, "record_at": []}, "steps: 10 instead of 20"),
        ({"key": jax.random.key(1)}, "key: "),
        ({"optimizer": optax.adam(0.2)}, "optimizer: "),
        ({"batch_size": None}, "batch_size: null instead of 4"),
        ({"reduction": "sum"}, 'reduction: "sum" instead of "mean"'),
        ({"data": (X, -Y)}, "data: "),
    ],
)
def test_another_configuration_is_refused(tmp_path_factory, changes, difference):
    folder = tmp_path_factory.getbasetemp() / "refused"
    if not folder.exists():
        interrupted(folder, 8)
    with pytest.raises(ValueError, match=f"of this very run, got .*{difference}"):
        trained(folder, resume=True, **{"record": {"x": X}, "record_at": [8]} | changes)


def test_another_network_is_refused(tmp_path):
    trained(tmp_path)
    other = (init, lambda params, x: jnp.sin(x @ params["W"]))
    with pytest.raises(ValueError, match="the network computes something else"):
        ensembles.train(
            other,
            (X, Y),
            members=3,
            steps=20,
            optimizer=ADAM,
            key=jax.random.key(0),
            batch_size=4,
            checkpoint=tmp_path,
            resume=True,
        )


def test_a_folder_that_is_in_use_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(FileExistsError, match="a new or empty folder"):
        trained(tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "precious"


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path, whole, monkeypatch):
    save = ocp.CheckpointManager.save

    def full_at_the_second(self, step, *args, **kwargs):
        if step >= 6:
            raise ValueError("RESOURCE_EXHAUSTED: No space left on device")
        return save(self, step, *args, **kwargs)

    monkeypatch.setattr(ocp.CheckpointManager, "save", full_at_the_second)
    with pytest.raises(OSError, match=r"step 6 could not be written.*No space.*complete checkpoint of step 3"):
        trained(tmp_path, record={"x": (X, np.asarray)}, record_at=[8])
    monkeypatch.undo()
    run = trained(tmp_path, resume=True, record={"x": (X, np.asarray)}, record_at=[8])
    np.testing.assert_array_equal(run.params["W"], whole.params["W"])


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path, whole, monkeypatch):
    save, trained_on, waited = ocp.CheckpointManager.save, threading.Event(), []

    def slow(self, step, *args, **kwargs):
        if step == 6:
            waited.append(trained_on.wait(timeout=60))
        return save(self, step, *args, **kwargs)

    def later(predictions):
        trained_on.set()
        return np.asarray(predictions)

    monkeypatch.setattr(ocp.CheckpointManager, "save", slow)
    run = trained(tmp_path, record={"x": (X, later)}, record_at=[8])
    assert waited == [True]
    np.testing.assert_array_equal(run.params["W"], whole.params["W"])
    np.testing.assert_array_equal(ensembles.Run.load(tmp_path, NET).params["W"], whole.params["W"])


def test_errors_of_the_last_checkpoint_are_raised_too(tmp_path, monkeypatch):
    def full(self, *args, **kwargs):
        raise ValueError("RESOURCE_EXHAUSTED: No space left on device")

    monkeypatch.setattr(ocp.CheckpointManager, "save", full)
    with pytest.raises(OSError, match=r"step 20 could not be written.*No space.*There is no earlier checkpoint"):
        trained(tmp_path, checkpoint_every=20)
    # An error of training is not hidden by one of the writer.
    with pytest.raises(Interruption), pytest.warns(RuntimeWarning, match="step 6 could not be written"):
        interrupted_with_writer_error(tmp_path / "other")


def interrupted_with_writer_error(folder):
    def stop(predictions):
        raise Interruption

    trained(folder, record={"x": (X, stop)}, record_at=[8], checkpoint_every=6)


def test_other_errors_are_not_blamed_on_a_full_disk(tmp_path, monkeypatch):
    def broken(self, *args, **kwargs):
        raise ValueError("NOT_FOUND: the file has gone")

    monkeypatch.setattr(ocp.CheckpointManager, "save", broken)
    with pytest.raises(OSError, match=r"the file has gone.*See that nothing else changes the folder, and try again"):
        trained(tmp_path)


def test_a_folder_that_another_run_writes_to_is_refused_and_left_alone(tmp_path, whole):
    said = []

    def meanwhile(predictions):
        """During a run: another one is refused, and reading what there is leaves what is being written."""
        while not (tmp_path / "6").exists():  # a thread of its own writes it
            time.sleep(0.01)
        unfinished = tmp_path / "9.orbax-checkpoint-tmp"
        unfinished.mkdir()
        assert ensembles.Run.load(tmp_path, NET).steps == 6
        assert unfinished.exists()
        unfinished.rmdir()
        for resume in (True, False):
            with pytest.raises(BlockingIOError) as refused:
                trained(tmp_path, resume=resume)
            said.append(str(refused.value))
        return np.asarray(predictions)

    run = trained(tmp_path, record={"x": (X, meanwhile)}, record_at=[8])
    np.testing.assert_array_equal(run.params["W"], whole.params["W"])
    for text in said:
        assert f"process {os.getpid()} on {platform.node()} (since 2" in text
        assert "name another folder" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["18", "20"]


def test_the_lock_of_a_process_that_is_gone_holds_nobody_up(tmp_path, whole):
    (tmp_path / ".lock").write_text("process 1 on the moon, since 1969-07-20T20:17:40+00:00")
    run = trained(tmp_path, record={"x": (X, np.asarray)}, record_at=[8])
    np.testing.assert_array_equal(run.params["W"], whole.params["W"])
    assert not (tmp_path / ".lock").exists()


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(tmp_path, whole):
    interrupted(tmp_path, 8)
    (tmp_path / "6" / "text" / "metadata").write_text("{")
    with pytest.raises(OSError, match=r"step 6 in .* is damaged: .*Remove .*/6 to continue from the one before"):
        trained(tmp_path, resume=True, record={"x": (X, np.asarray)}, record_at=[8])
    shutil.rmtree(tmp_path / "6")
    resumed = trained(tmp_path, resume=True, record={"x": (X, np.asarray)}, record_at=[8])
    np.testing.assert_array_equal(resumed.params["W"], whole.params["W"])


def test_nothing_is_pickled(tmp_path, whole):
    whole.save(tmp_path / "run")
    for path in (tmp_path / "run").rglob("*"):
        assert path.suffix not in {".pkl", ".pickle"}
        assert path.is_dir() or not path.read_bytes().startswith(b"\x80\x04")


def test_runs_are_saved_and_loaded(tmp_path, whole):
    whole.save(tmp_path / "run")
    loaded = ensembles.Run.load(tmp_path / "run", NET)
    np.testing.assert_array_equal(loaded.predict(X), whole.predict(X))
    np.testing.assert_array_equal(loaded.records["x"], whole.records["x"])
    np.testing.assert_array_equal(loaded.curve[1], whole.curve[1])
    assert repr(loaded) == repr(whole)
    assert loaded.configuration == whole.configuration
    whole.subset([2, 0]).save(tmp_path / "part")
    np.testing.assert_array_equal(
        ensembles.Run.load(tmp_path / "part", NET).predict(X), whole.predict(X)[np.array([2, 0])]
    )
    with pytest.raises(ValueError, match="one with parameters"):
        ensembles.Run.load(tmp_path / "run", (lambda key, x: {"V": jnp.ones((2, 1))}, apply))
    with pytest.raises(FileNotFoundError, match="which does not exist"):
        ensembles.Run.load(tmp_path / "nowhere", NET)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="one with a run in it"):
        ensembles.Run.load(tmp_path / "empty", NET)
    with pytest.raises(FileExistsError, match=r"new or empty folder, got .*Name another folder, or remove this one"):
        whole.save(tmp_path / "run")


def test_the_stored_settings_keep_their_names(tmp_path):
    """They are the format of checkpoints: a run that was begun with an earlier version finds them."""
    run = trained(tmp_path, optimizer=SGD, record={"x": X}, record_at=[8])
    stored = json.loads((tmp_path / "20" / "text" / "metadata").read_text())
    settings = stored["configuration"]
    assert settings == run.configuration
    np.testing.assert_allclose(settings.pop("optimizer")[:2], [-8.401857, -6.464915], atol=1e-4)
    np.testing.assert_allclose(settings.pop("first outputs")[:2], [0.054399, -0.162511], atol=1e-5)
    np.testing.assert_allclose(settings.pop("first gradients"), [-0.474840], atol=1e-5)
    assert settings == {
        "members": 3,
        "steps": 20,
        "key": ["threefry2x32", 0, 0],
        "parameters": {"['W']": "float64[2,1]"},
        "inputs": ["float64[1,2]"],
        "record": [{"x": "1a2a054aa2894572"}, [8]],
        "data": "a91eb0b5401d9475",
        "reduction": "mean",
        "batch_size": 4,
        "augmentation": "full",
        "loss": "mse",
        "rate and momentum": [0.1, 0.0],
        "actions": [[], []],
    }
    assert stored["members"] == 3
    assert stored["records"] == ["x"]


def test_runs_on_graphs_are_loaded(tmp_path):
    graphs = stax.Graph.of(np.ones((2, 3, 2)), np.ones((2, 3, 3)))
    net = (lambda key, x: {"W": jnp.ones((2, 1))}, lambda p, x: (x.adjacency @ x.nodes @ p["W"]).sum(1))
    run = ensembles.train(
        net, (graphs, np.ones((2, 1))), members=1, steps=1, optimizer=optax.sgd(1e-3), key=jax.random.key(0)
    )
    run.save(tmp_path / "run")
    np.testing.assert_array_equal(ensembles.Run.load(tmp_path / "run", net).predict(graphs), run.predict(graphs))


def test_random_keys_of_optimizers_are_resumed_too(tmp_path):
    noisy = {"optimizer": optax.noisy_sgd(0.1, 0.01, 0.55, 0)}
    interrupted(tmp_path, 8, **noisy)
    resumed = trained(tmp_path, resume=True, record={"x": (X, np.asarray)}, record_at=[8], **noisy)
    np.testing.assert_array_equal(resumed.params["W"], trained(**noisy).params["W"])


C4 = groups.SO2.finite(4)
IMAGES = np.random.default_rng(1).normal(size=(3, 4, 4, 1))
ORDERS = [augment(IMAGES, Y[:3], reps.rotate(groups.cyclic(8), order=order)) for order in (0, 1)]
DIRECTIONS = [augment(X, Y, reps.matrix(C4, matrices)) for matrices in (C4.matrices, np.swapaxes(C4.matrices, 1, 2))]
SGD = optax.sgd(0.1)
PIXEL = (lambda key, x: jnp.ones((16, 1)), lambda w, x: x.reshape(len(x), 16) @ w)
FROZEN = (init, lambda params, x: jnp.tanh(x @ jax.lax.stop_gradient(params["W"])))


@pytest.mark.parametrize(
    ("begun", "resumed", "difference"),
    [
        ({"loss": lambda f, y: (f - y) ** 2}, {"loss": lambda f, y: (f - y) ** 4}, "loss: "),
        ({"loss": "mse"}, {"loss": lambda f, y: (f - y) ** 2 / 2}, 'loss: .* instead of "mse"'),
        (
            {"optimizer": SGD},
            {"optimizer": optax.sgd(optax.piecewise_constant_schedule(0.1, {18: 0.5}))},
            "optimizer: other updates from about step 18 on",
        ),
        (
            {"optimizer": optax.chain(optax.clip_by_global_norm(500.0), SGD)},
            {"optimizer": optax.chain(optax.clip_by_global_norm(600.0), SGD)},
            "optimizer: other updates",
        ),
        ({"optimizer": ADAM}, {"optimizer": optax.adam(0.1, eps=1e-7)}, "optimizer: other updates from about step 0"),
        ({"data": ORDERS[0], "net": PIXEL}, {"data": ORDERS[1], "net": PIXEL}, "actions: "),
        ({"data": DIRECTIONS[0]}, {"data": DIRECTIONS[1]}, "actions: "),
        ({}, {"net": FROZEN}, "computes something else, first gradients"),
    ],
)
def test_what_is_computed_otherwise_is_not_resumed(tmp_path, begun, resumed, difference):
    assert repr(ORDERS[0].rep_x) == repr(ORDERS[1].rep_x)
    assert repr(DIRECTIONS[0].rep_x) == repr(DIRECTIONS[1].rep_x)
    trained(tmp_path, checkpoint_every=20, **begun)
    assert trained(tmp_path, resume=True, **begun).steps == 20
    with pytest.raises(ValueError, match=f"of this very run, got .*{difference}"):
        trained(tmp_path, resume=True, **resumed)
