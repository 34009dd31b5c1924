"""What all experiments have in common: a command line, results that outlive an interruption, figures drawn from them.

An experiment is four functions of its settings, which come in presets:

    load(settings, data_dir)            the data; what is missing or damaged is the user's to put right
    compute(settings, data, results)    the work, in parts: `results.part(name, function)` computes each but once
    table(settings, found)              the numbers, as text
    figures(settings, found)            the figures, by name

`found[part][name]` are the arrays of all parts, read back from the files that `compute` left: figures are always drawn
from what is stored, so that `--redraw` needs neither data nor training.

    results/ising-quick/
        about.json          settings, versions, machine, and how long each part took
        <part>.npz          what a part returned
        checkpoints/        of parts that are under way
        table.txt  *.pdf  *.png
"""

import argparse
import contextlib
import dataclasses
import json
import os
import platform
import shutil
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

from ntk_equiv import ensembles, plotting

Arrays = Mapping[str, np.ndarray]
VERSIONS = ("ntk-equiv", "jax", "flax", "optax", "numpy", "matplotlib")
# What a shell expects: bad usage, and a program that was interrupted.
BAD_USAGE, INTERRUPTED = 2, 130


class Refused(Exception):
    """Something that the user has to put right; shown without a traceback."""


@dataclasses.dataclass(frozen=True)
class Experiment:
    """An experiment: its name and description, its presets, and four functions; see the top of this file."""

    name: str
    about: str
    presets: Mapping[str, Any]
    load: Callable[[Any, Path | None], Any]
    compute: Callable[[Any, Any, "Results"], None]
    table: Callable[[Any, Mapping[str, Arrays]], str]
    figures: Callable[[Any, Mapping[str, Arrays]], Mapping[str, Figure]]

    def main(self, arguments: list[str] | None = None) -> int:
        """Do what the command line asks for; returns the exit code."""
        asked = self._parsed(arguments)
        with contextlib.suppress(RuntimeError):  # inside another program, which has decided already
            ensembles.use_cores()
        folder = asked.results or Path("results") / f"{self.name}-{asked.preset}"
        try:
            if asked.redraw:
                self._show(folder, *stored(folder, self.name, self.presets))
                return 0
            self._run(asked, folder)
        except KeyboardInterrupt:
            print(f"\nInterrupted. The same command goes on where this one stopped; see {folder}.", file=sys.stderr)
            return INTERRUPTED
        except Refused as error:
            print(f"{self.name}: {error}", file=sys.stderr)
            return BAD_USAGE
        except OSError as error:
            print(f"{self.name}: {error}. What was finished before is in {folder}, and is kept.", file=sys.stderr)
            return 1
        return 0

    def _run(self, asked: argparse.Namespace, folder: Path) -> None:
        settings = dataclasses.replace(self.presets[asked.preset], seed=asked.seed)
        try:
            data = self.load(settings, asked.data_dir)
        except (ValueError, FileNotFoundError) as error:
            raise Refused(f"the data cannot be used: {error}") from error
        results = Results(folder, self.name, asked.preset, settings, restart=asked.restart, progress=not asked.quiet)
        self.compute(settings, data, results)
        self._show(folder, settings, results.found)

    def _show(self, folder: Path, settings: Any, found: Mapping[str, Arrays]) -> None:
        text = self.table(settings, found)
        print(text)
        (folder / "table.txt").write_text(text + "\n")
        with plotting.style():
            for name, figure in self.figures(settings, found).items():
                for path in plotting.save(figure, folder / name):
                    print(path)

    def _parsed(self, arguments: list[str] | None) -> argparse.Namespace:
        kind = argparse.RawDescriptionHelpFormatter
        parser = argparse.ArgumentParser(
            f"python examples/{self.name}.py", description=self.about, formatter_class=kind
        )
        parser.add_argument("--preset", choices=list(self.presets), default="quick", help="sizes (default: quick)")
        parser.add_argument("--results", type=Path, help=f"folder (default: results/{self.name}-PRESET)")
        parser.add_argument("--redraw", action="store_true", help="table and figures again, from stored results")
        parser.add_argument("--restart", action="store_true", help="forget the results that are in the folder")
        parser.add_argument("--data-dir", type=Path, help="where files of data lie (default: $NTK_EQUIV_DATA)")
        parser.add_argument("--seed", type=int, default=0, help="of all that is random (default: 0)")
        parser.add_argument("--quiet", action="store_true", help="no progress bars")
        return parser.parse_args(arguments)


@contextlib.contextmanager
def double_precision() -> Iterator[None]:
    """Theory in float64, in a program that trains in float32."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", before)


class Results:
    """A folder of results, one file for each part that is finished."""

    def __init__(self, folder: Path, name: str, preset: str, settings: Any, *, restart: bool, progress: bool) -> None:
        self.folder, self.progress = folder, progress
        self.found: dict[str, dict[str, np.ndarray]] = {}
        if restart:
            forget(folder)
        asked = {"experiment": name, "preset": preset, "settings": _plain(settings)}
        if folder.exists() and any(folder.iterdir()):
            self.about = _read_about(folder)
            there = {key: self.about.get(key) for key in asked}
            if there != asked:
                differ = ", ".join(
                    f"{key}: {there[key]} instead of {asked[key]}" for key in asked if there[key] != asked[key]
                )
                fix = "Name another folder with --results, or throw its results away with --restart"
                raise Refused(f"{folder} holds results of something else ({differ}). {fix}.")
        else:
            folder.mkdir(parents=True, exist_ok=True)
            self.about = asked | {"versions": _versions(), "machine": _machine(), "seconds": {}}
            _write(folder / "about.json", json.dumps(self.about, indent=2).encode())

    def part(self, name: str, function: Callable[..., Arrays], /, *arguments: Any) -> Arrays:
        """What `function(*arguments)` returns, a dictionary of arrays: computed once, then read from its file."""
        path = self.folder / f"{name}.npz"
        if not path.exists():
            start = time.perf_counter()
            arrays = {key: np.asarray(value) for key, value in function(*arguments).items()}
            self.about["seconds"][name] = round(time.perf_counter() - start, 1)
            temporary = path.with_suffix(".writing")
            with temporary.open("wb") as file:
                np.savez_compressed(file, **arrays)
            temporary.replace(path)
            _write(self.folder / "about.json", json.dumps(self.about, indent=2).encode())
            shutil.rmtree(self.checkpoint(name), ignore_errors=True)
        self.found[name] = _read(path)
        return self.found[name]

    def checkpoint(self, name: str, /) -> Path:
        """The folder for checkpoints of a part that trains, which are dropped once it is finished."""
        return self.folder / "checkpoints" / name

    def train(self, name: str, module: Any, data: Any, /, **settings: Any) -> ensembles.Run:
        """`ensembles.train` with a bar and checkpoints, from which an interrupted run goes on."""
        folder = self.checkpoint(name)
        if self.progress:
            print(f"training {name}", file=sys.stderr)
        return ensembles.train(module, data, checkpoint=folder, resume=True, progress=self.progress, **settings)


def stored(folder: Path, name: str, presets: Mapping[str, Any]) -> tuple[Any, dict[str, Arrays]]:
    """Settings and arrays of a folder of results."""
    about = _read_about(folder)
    if about.get("experiment") != name:
        raise Refused(
            f"{folder} holds results of {about.get('experiment')}, not of {name}. Name another with --results."
        )
    found: dict[str, Arrays] = {part: _read(folder / f"{part}.npz") for part in about["seconds"]}
    if not found:
        raise Refused(f"{folder} holds no finished part yet. Run it without --redraw first.")
    return type(presets[about["preset"]])(**about["settings"]), found


def forget(folder: Path) -> None:
    """Remove a folder of results, and nothing that is not one."""
    if folder.exists() and any(folder.iterdir()):
        _read_about(folder)
        shutil.rmtree(folder)


def _read_about(folder: Path) -> dict[str, Any]:
    try:
        return json.loads((folder / "about.json").read_text())
    except FileNotFoundError:
        kind = "holds something other than results" if folder.is_dir() else "is not there"
        raise Refused(f"{folder} {kind}. Name a new or empty folder with --results.") from None
    except json.JSONDecodeError as error:
        raise Refused(f"{folder}/about.json is damaged ({error}). Remove the folder, or name another.") from None


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path) as file:
            return dict(file)
    except FileNotFoundError:
        raise Refused(f"{path} is missing. Run it without --redraw.") from None
    except (zipfile.BadZipFile, ValueError, EOFError) as error:
        raise Refused(f"{path} is damaged ({error}). Remove it, and it is computed again.") from None


def _write(path: Path, content: bytes) -> None:
    """Write a file as a whole or not at all."""
    temporary = path.with_suffix(".writing")
    temporary.write_bytes(content)
    temporary.replace(path)


def _plain(settings: Any) -> Any:
    return json.loads(json.dumps(dataclasses.asdict(settings)))


def _versions() -> dict[str, str]:
    return {"python": platform.python_version()} | {name: version(name) for name in VERSIONS}


def _machine() -> dict[str, Any]:
    devices = jax.devices()
    return {
        "devices": f"{len(devices)} x {devices[0].device_kind}",
        "cores": os.cpu_count(),
        "system": platform.system(),
    }
