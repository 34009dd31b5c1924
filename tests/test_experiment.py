"""What all experiments share: results that survive interruptions, and refusals that say what to do."""

import contextlib
import dataclasses
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import _results
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _experiment import BAD_USAGE, INTERRUPTED, Experiment, double_precision
from _results import Refused

from ntk_equiv import plotting

ROOT = Path(__file__).parents[1]


@dataclasses.dataclass(frozen=True)
class Settings:
    """Sizes of a tiny experiment."""

    sizes: tuple[int, ...]
    seed: int = 0

    def __post_init__(self):
        if min(self.sizes) < 1:
            raise ValueError("sizes must be positive")


class Trial:
    """A tiny experiment in two parts, which counts what it does, and may be told to do something in the second."""

    def __init__(self, name="trial", table="Ω ± 1"):
        self.done, self.meanwhile, self.text = [], lambda results: None, table
        self.presets = {"quick": Settings((2, 3)), "paper": Settings((20, 30))}
        self.experiment = Experiment(name, __doc__, self.presets, self.load, self.compute, self.table, self.figures)

    def __call__(self, folder, *arguments):
        return self.experiment.main(["--results", str(folder), "--quiet", *arguments])

    def load(self, settings, data_dir):
        if data_dir is not None:
            raise FileNotFoundError(f"nothing in {data_dir}: get it from elsewhere")
        return np.arange(settings.sizes[0])

    def compute(self, settings, data, results):
        results.part("first", self.first, data)
        results.part("second-0.5", self.second, settings, results)

    def first(self, data):
        self.done.append("first")
        return {"squares": data**2}

    def second(self, settings, results):
        self.done.append("second")
        self.meanwhile(results)
        return {"seed": settings.seed, "noise": np.random.default_rng(settings.seed).normal(size=1000)}

    def table(self, settings, found):
        return f"{self.text} {settings.sizes[0]} {found['first']['squares'].sum()} {found['second-0.5']['seed']}"

    def figures(self, settings, found):
        fig, (ax,) = plotting.panels()
        plotting.measured(ax, np.arange(len(found["first"]["squares"])), found["first"]["squares"])
        return {"squares": fig}


@pytest.fixture
def trial():
    return Trial()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "some" / "results"


def files(folder):
    return sorted(path.name for path in folder.iterdir())


WHOLE = ["about.json", "first.npz", "second-0.5.npz", "squares.pdf", "squares.png", "table.txt"]


def test_results_are_computed_once_and_drawn_again(trial, folder, capsys):
    assert trial(folder) == 0
    assert files(folder) == WHOLE
    printed = capsys.readouterr().out
    assert printed.splitlines()[0] == "Ω ± 1 2 1 0" == (folder / "table.txt").read_text(encoding="utf-8").strip()
    about = json.loads((folder / "about.json").read_text())
    assert about["settings"] == {"sizes": [2, 3], "seed": 0}
    assert set(about["seconds"]) == {"first", "second-0.5"}
    pictures = [(folder / name).read_bytes() for name in WHOLE[3:]]
    for name in WHOLE[3:]:
        (folder / name).unlink()
    assert trial(folder, "--redraw") == trial(folder) == 0
    assert [(folder / name).read_bytes() for name in WHOLE[3:]] == pictures
    assert trial.done == ["first", "second"]


@pytest.fixture
def interruptible():
    """Interrupts end Python programs, also where the shell that started them in the background made it ignore them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interruption_leaves_what_is_finished(trial, folder, capsys):
    trial.meanwhile = lambda results: os.kill(os.getpid(), signal.SIGINT)
    assert trial(folder) == INTERRUPTED
    assert "The same command goes on" in capsys.readouterr().err
    assert files(folder) == ["about.json", "first.npz"]
    assert trial(folder, "--redraw") == BAD_USAGE
    assert "part second-0.5 is not finished. Run it without --redraw" in capsys.readouterr().err
    trial.meanwhile = lambda results: None
    assert trial(folder) == 0
    assert trial.done == ["first", "second", "second"]


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_training_goes_on(trial, folder, tmp_path):
    x, runs = np.eye(2), []
    net = (lambda key, x: jax.random.uniform(key, (2, 1)), lambda W, x: jnp.tanh(x @ W))
    settings = {"members": 2, "steps": 8, "optimizer": optax.sgd(0.1), "key": jax.random.key(0), "checkpoint_every": 2}

    def train(results):
        record = {"x": (x, lambda p: (interrupt(), np.asarray(p))[1])}
        runs.append(results.train("second-0.5", net, (x, x[:, :1]), record=record, record_at=[5, 8], **settings))

    trial.meanwhile, interrupt = train, lambda: os.kill(os.getpid(), signal.SIGINT)
    assert trial(folder) == INTERRUPTED
    assert files(folder / "checkpoints" / "second-0.5") == ["2", "4"]
    interrupt = lambda: None  # noqa: E731
    assert trial(folder) == trial(tmp_path / "other") == 0
    resumed, whole = runs
    np.testing.assert_array_equal(resumed.params, whole.params)
    np.testing.assert_array_equal(resumed.records["x"], whole.records["x"])
    assert files(folder / "checkpoints") == []  # dropped, because the part is finished


KILLED = """
import os, sys
from pathlib import Path
import _results
from tests.test_experiment import Settings
results = _results.Results(Path(sys.argv[1]), "trial", "quick", Settings((2, 3)), restart=False, progress=False)
kill = lambda: os.kill(os.getpid(), 9)
results._write_about = kill     # the moment after a part is written, before that is noted
results.part("first", lambda: {"squares": [5, 5]})
"""


def test_a_program_may_be_killed_at_any_moment(trial, folder):
    paths = os.pathsep.join([str(ROOT), str(ROOT / "examples")])
    code = [sys.executable, "-c", KILLED, str(folder)]
    assert subprocess.run(code, env={**os.environ, "PYTHONPATH": paths}).returncode == -signal.SIGKILL
    assert files(folder) == [".lock", "about.json", "first.npz"]  # the lock of a dead process holds nobody up
    assert trial(folder) == trial(folder, "--redraw") == 0
    assert trial.done == ["second"]
    assert "10" in (folder / "table.txt").read_text(encoding="utf-8").split()


@contextlib.contextmanager
def full_disk(size):
    """No file can grow beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(("size", "left"), [(10, []), (4000, ["about.json", "first.npz"])])
def test_a_full_disk_leaves_what_is_finished(trial, folder, capsys, size, left):
    with full_disk(size):
        assert trial(folder) == 1
    message = capsys.readouterr().err
    assert "File too large" in message
    assert ("What was finished before is in" in message) == bool(left)
    assert files(folder) == left
    assert trial(folder) == 0
    assert files(folder) == WHOLE


def test_a_reader_that_has_seen_enough_does_no_harm(trial, folder, monkeypatch):
    class Closed:
        def write(self, text):
            raise BrokenPipeError

        def fileno(self):
            raise ValueError

    monkeypatch.setattr(sys, "stdout", Closed())
    assert trial(folder) == 0
    assert files(folder) == WHOLE


def refused(capsys, found, *expected):
    assert found == BAD_USAGE
    message = capsys.readouterr().err
    assert len(message.splitlines()) == 1
    for words in expected:
        assert words in message


def test_results_of_something_else_are_left_alone(trial, folder, capsys):
    assert trial(folder) == 0
    restart = "Name another folder with --results, or throw its results away with --restart."
    refused(capsys, trial(folder, "--seed", "1"), "(seed 0 instead of 1)", restart)
    refused(
        capsys, trial(folder, "--preset", "paper"), "preset quick instead of paper; sizes [2, 3] instead of", restart
    )
    other = Trial("other")
    refused(capsys, other(folder), "experiment trial instead of other", "Name another folder with --results.")
    refused(capsys, other(folder, "--restart"), "results of trial, which other does not throw away")
    refused(capsys, other(folder, "--redraw"), "results of trial, not of other")
    assert files(folder) == WHOLE
    assert trial(folder, "--seed", "1", "--restart") == 0
    assert json.loads((folder / "about.json").read_text())["settings"]["seed"] == 1


def test_what_is_no_folder_of_results_is_left_alone(trial, tmp_path, capsys):
    file, precious = tmp_path / "file", tmp_path / "precious"
    file.write_text("text")
    precious.mkdir()
    (precious / "thesis.tex").write_text("text")
    for arguments in ((), ("--restart",), ("--redraw",)):
        refused(capsys, trial(file, *arguments), f"{file} is")
        refused(capsys, trial(precious, *arguments), f"{precious} holds something other than results")
    refused(capsys, trial(tmp_path / "nowhere", "--redraw"), "nowhere is no folder of results")
    assert (files(tmp_path), files(precious), file.read_text()) == (["file", "precious"], ["thesis.tex"], "text")


def test_restarting_may_be_interrupted(trial, folder, monkeypatch):
    assert trial(folder) == 0

    removed, unlink = [], Path.unlink

    def interrupted(path):
        if removed:
            raise KeyboardInterrupt
        removed.append(path)
        unlink(path)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", interrupted)
        assert trial(folder, "--restart") == INTERRUPTED
    assert not removed[0].exists()
    assert trial(folder, "--restart") == 0
    assert trial.done == ["first", "second"] * 2


def test_two_programs_do_not_write_to_one_folder(trial, folder, capsys):
    answers = []
    trial.meanwhile = lambda results: answers.append(Trial()(folder))
    assert trial(folder) == 0
    assert answers == [BAD_USAGE]
    assert "writes to. Wait until it has ended" in capsys.readouterr().err
    assert files(folder) == WHOLE
    trial.meanwhile = lambda results: answers.append(Trial()(folder, "--restart"))
    assert trial(folder, "--restart") == 0
    assert answers == [BAD_USAGE] * 2
    assert files(folder) == WHOLE


def test_a_folder_that_cannot_be_written_to_is_named(trial, capsys):
    assert trial("/proc/results") == 1
    assert "/proc/results" in capsys.readouterr().err
    assert not trial.done


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[]", b"{}", b'{"experiment": "trial", "preset": "quick", "settings": {}}']
)
def test_a_damaged_description_is_refused(trial, folder, capsys, content):
    folder.mkdir(parents=True)
    (folder / "about.json").write_bytes(content)
    for arguments in ((), ("--restart",), ("--redraw",)):
        refused(capsys, trial(folder, *arguments), "about.json is damaged", "Remove the folder, or name another")


def test_results_of_another_version_are_refused(trial, folder, capsys):
    assert trial(folder) == 0
    about = json.loads((folder / "about.json").read_text())
    for change in ({"preset": "huge"}, {"settings": {"lengths": 3, "seed": 0}}):
        (folder / "about.json").write_text(json.dumps(about | change))
        capsys.readouterr()
        refused(capsys, trial(folder, "--redraw"), "made by another version of trial")
    refused(capsys, trial(folder), "lengths 3 instead of None", "sizes None instead of [2, 3]")
    (folder / "about.json").write_text(json.dumps(about | {"versions": about["versions"] | {"jax": "0.1"}}))
    assert trial(folder) == 0
    assert "begun with other versions: jax 0.1, now" in capsys.readouterr().err


def test_damaged_arrays_are_refused(folder):
    folder.mkdir(parents=True)
    path, arrays = folder / "part.npz", {"a": np.arange(3), "b": np.ones(2)}
    np.savez_compressed(path, **arrays)
    whole = path.read_bytes()
    damaged = [whole[:size] for size in range(0, len(whole), 29)]
    damaged += [whole[:i] + bytes([whole[i] ^ 0x55]) + whole[i + 1 :] for i in range(0, len(whole), 3)]
    refusals = []
    for content in damaged:
        path.write_bytes(content)
        try:
            found = _results._read(path)
        except Refused as error:
            refusals.append(str(error))
        else:  # a byte on which nothing depends
            assert all(np.array_equal(found[name], arrays[name]) for name in found)
    assert len(refusals) > len(damaged) / 2
    assert all(message.startswith(f"{path} is damaged") for message in refusals)


def test_a_damaged_part_is_computed_again_once_it_is_removed(trial, folder, capsys):
    assert trial(folder) == 0
    (folder / "first.npz").write_bytes(b"PK")
    capsys.readouterr()
    for arguments in ((), ("--redraw",)):
        refused(capsys, trial(folder, *arguments), "first.npz is damaged", "Remove it, and it is computed again")
    (folder / "first.npz").unlink()
    assert trial(folder) == 0
    assert trial.done == ["first", "second", "first"]


def test_data_that_are_missing_are_named_before_anything_is_written(trial, folder, capsys):
    refused(
        capsys, trial(folder, "--data-dir", "/nowhere"), "the data cannot be used: nothing in /nowhere: get it from"
    )
    assert not folder.exists()


def test_settings_of_your_own_have_a_folder_of_their_own(trial, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert trial.experiment.main(["--quiet", "--set", "sizes=4,5"]) == 0
    assert capsys.readouterr().out.startswith("Ω ± 1 4 14 0")
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["trial-quick-sizes=4,5"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("size=4", "NAME=VALUE with the name of a setting, got 'size=4'. The preset has sizes=2,3."),
        ("sizes", "got 'sizes'"),
        ("seed=1", "got 'seed=1'"),
        ("sizes=4,x", "--set sizes takes a value like 2,3, got '4,x'"),
        ("sizes=0,4", "sizes must be positive"),
    ],
)
def test_settings_that_do_not_exist_are_refused(trial, folder, capsys, change, message):
    refused(capsys, trial(folder, "--set", change), message)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--preset", "quikc"], "invalid choice: 'quikc'"),
        (["--seed", "-1"], "must lie between 0 and 4294967295"),
        (["--seed", "x"], "invalid"),
        (["--redraw", "--restart"], "not allowed with"),
    ],
)
def test_bad_usage(trial, folder, capsys, arguments, message):
    with pytest.raises(SystemExit) as stopped:
        trial(folder, *arguments)
    assert stopped.value.code == BAD_USAGE
    assert message in capsys.readouterr().err


def test_double_precision_is_left_again():
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", False)
    try:
        with contextlib.suppress(Refused), double_precision():
            inside = jnp.ones(1).dtype
            raise Refused
        assert (inside, jnp.ones(1).dtype) == (jnp.float64, jnp.float32)
    finally:
        jax.config.update("jax_enable_x64", before)
