"""`make paper` runs one experiment after the other, whatever becomes of each."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import _paper
import pytest
from _results import ABOUT

SAVES = """
folder = Path(sys.argv[4])
folder.mkdir()
(folder / "about.json").write_text('{"seconds": {"a": 60, "b": 30}}')
"""
SCRIPTS = {"short": SAVES, "broken": "sys.exit(2)", "stopped": "sys.exit(130)", "later": "sys.exit(0)"}
SLEEPS = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
print("ready", flush=True)
try:
    time.sleep(60)
except KeyboardInterrupt:
    open(sys.argv[1], "w").close()
    sys.exit(130)
"""


@pytest.fixture
def scripts(tmp_path):
    """Programs that end at once, in different ways."""
    paths = {name: tmp_path / f"{name}.py" for name in SCRIPTS}
    for name, path in paths.items():
        path.write_text(f"import sys\nfrom pathlib import Path\n{SCRIPTS[name]}\n")
    return paths


def test_a_failure_does_not_end_the_list_and_an_interruption_does(scripts, tmp_path, capfd):
    codes = _paper.run_all(scripts, "laptop", tmp_path)
    assert codes == {"short": 0, "broken": 2, "stopped": 130}
    assert "[2/4] broken" in capfd.readouterr().err
    lines = _paper.summary(codes, "laptop", tmp_path).splitlines()
    assert (tmp_path / "short-laptop" / ABOUT).exists()
    assert [line.split(maxsplit=3)[0] for line in lines] == ["short", "broken", "stopped"]
    assert "1.5 minutes" in lines[0]
    for word, line in zip(("finished", "exit code 2", "interrupted"), lines, strict=True):
        assert word in line


@pytest.mark.parametrize("told", [True, False], ids=["with the program", "alone"])
def test_an_interruption_reaches_the_program(tmp_path, monkeypatch, told):
    """At a terminal both are interrupted by the key press; a signal may reach the first alone."""
    monkeypatch.setattr(_paper, "PATIENCE", 5 if told else 0.05)
    saved = tmp_path / "saved"
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen([sys.executable, "-c", SLEEPS, str(saved)], stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"ready\n"

        def interrupt():
            time.sleep(0.2)
            if told:
                process.send_signal(signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt).start()
        assert _paper.wait_for(process) == 130
    finally:
        signal.signal(signal.SIGINT, before)
        process.kill()
        process.stdout.close()
    assert saved.exists()


def test_experiments_are_found_by_their_preset():
    found = _paper.experiments("laptop")
    scripts = {path.stem: path.read_text() for path in Path(_paper.__file__).parent.glob("[!_]*.py")}
    assert set(found) == {name for name, text in scripts.items() if '"laptop": ' in text and "Experiment(" in text}
    assert {"fashion_mnist", "finite_width", "method_comparison"} <= set(found)
    assert "kernel_demo" not in _paper.experiments("test")
    assert all(path == Path(_paper.__file__).parent / f"{name}.py" for name, path in found.items())


def test_an_unknown_name_is_refused(capsys):
    with pytest.raises(SystemExit):
        _paper.main(["--only", "fashion"])
    assert "no ['fashion'] with preset laptop; there are" in capsys.readouterr().err
