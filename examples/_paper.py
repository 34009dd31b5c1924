"""Run all experiments of the gallery at the size of their preset "laptop", one after the other: `make paper`.

Every experiment is a program of its own, which shows its progress below the line that says how far all of them are.
Interrupt it whenever you like: the same command goes on where it stopped, because experiments keep what is finished.
An experiment that fails, for example because its data are missing, does not keep the others from running. What is
written in results/<name>-laptop/ is enough to draw all figures again, with --redraw.
"""

import argparse
import importlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from _experiment import INTERRUPTED, Experiment
from _results import ABOUT

FOLDER = Path(__file__).parent
# How long to wait for a program that may have been interrupted by the same key press.
PATIENCE = 5


def experiments(preset):
    """Return the experiments in this folder that have the preset, by name."""
    found = {}
    for script in sorted(FOLDER.glob("[!_]*.py")):
        if "from _experiment import" not in script.read_text(encoding="utf-8"):
            continue  # other scripts may compute something when they are imported
        values = vars(importlib.import_module(script.stem)).values()
        named = {value.name: value for value in values if isinstance(value, Experiment)}
        found |= {name: script for name, experiment in named.items() if preset in experiment.presets}
    return found


def run_all(scripts, preset, folder, options=()):
    """Run scripts one after the other, and return the exit code of each, by name. An interruption ends the list."""
    codes, start = {}, time.monotonic()
    for number, (name, script) in enumerate(scripts.items(), 1):
        results = folder / f"{name}-{preset}"
        say(f"[{number}/{len(scripts)}] {name}, after {minutes(time.monotonic() - start)}: {results}")
        command = [sys.executable, str(script), "--preset", preset, "--results", str(results), *options]
        codes[name] = wait_for(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        if codes[name] == INTERRUPTED:
            break
    return codes


def wait_for(process):
    """Return the exit code of a program. An interruption is passed on to it, so that it can save what it has."""
    try:
        return process.wait()
    except KeyboardInterrupt:
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            process.wait()
        return INTERRUPTED


def summary(codes, preset, folder):
    """Return what became of each experiment, and how long its finished parts took."""
    words = {0: "finished", INTERRUPTED: "interrupted"}
    lines = []
    for name, code in codes.items():
        about = folder / f"{name}-{preset}" / ABOUT
        seconds = sum(json.loads(about.read_text())["seconds"].values()) if about.exists() else 0
        state = words.get(code, f"failed with exit code {code}; its message is above")
        lines.append(f"{name:24}{minutes(seconds):>12}  {state}")
    return "\n".join(lines)


def minutes(seconds):
    """Format a time."""
    return f"{seconds / 60:.1f} minutes"


def say(text):
    """Print what is not a result beside the progress of the experiments."""
    print(text, file=sys.stderr, flush=True)


def main(arguments=None):
    """Do what the command line asks for, and return the exit code."""
    kind = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python examples/_paper.py", description=__doc__, formatter_class=kind)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="some of the experiments")
    parser.add_argument("--preset", default="laptop", help="the preset (default: laptop)")
    parser.add_argument("--results", type=Path, default=Path("results"), help="where to write (default: results)")
    parser.add_argument("--data-dir", type=Path, help="folder of data files (default: $NTK_EQUIV_DATA)")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")
    asked = parser.parse_args(arguments)
    there = experiments(asked.preset)
    unknown = set(asked.only or ()) - set(there)
    if unknown or not there:
        parser.error(f"no {sorted(unknown)} with preset {asked.preset}; there are {', '.join(there) or 'none'}")
    chosen = {name: there[name] for name in asked.only or there}
    options = [*(["--data-dir", str(asked.data_dir)] if asked.data_dir else []), *(["--quiet"] if asked.quiet else [])]
    codes = run_all(chosen, asked.preset, asked.results, options)
    print(summary(codes, asked.preset, asked.results))
    if INTERRUPTED in codes.values():
        say("Interrupted. The same command goes on where this one stopped.")
        return INTERRUPTED
    return int(any(codes.values()))


if __name__ == "__main__":
    sys.exit(main())
