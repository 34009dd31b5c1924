"""Results that survive an interruption: a folder with one file for each finished part of the work.

    results/ising-quick/
        about.json          settings, versions, machine, and how long each part took (since it was last started)
        <part>.npz          what a part returned; if the file exists, it is complete
        checkpoints/        of parts that are being computed
        table.txt  *.pdf  *.png

Each file is written under another name and then renamed. So a program may be interrupted or killed at any moment, or
the disk may be full: finished parts stay, and the same command continues from there. One program at a time writes to a
folder, and holds a lock on it.
"""

import contextlib
import dataclasses
import io
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any

import jax
import numpy as np

from ntk_equiv import ensembles

Arrays = Mapping[str, np.ndarray]
VERSIONS = ("ntk-equiv", "jax", "flax", "optax", "numpy", "matplotlib")
ABOUT, WRITING = "about.json", ".writing"


class Refused(Exception):
    """An error that the user can fix; shown without a traceback."""


class Found(dict[str, Arrays]):
    """The arrays of all finished parts. Asking for another part raises `Refused`."""

    def __missing__(self, part: str) -> Arrays:
        raise Refused(f"part {part} is not finished. Run it without --redraw, and it goes on where it stopped.")


class Results:
    """A folder of results, with one file for each finished part. Inside of `with`, no other program writes to it."""

    def __init__(self, folder: Path, name: str, preset: str, settings: Any, *, restart: bool, progress: bool) -> None:
        self.folder, self.progress = folder, progress
        self.found = Found()
        if _holds_something(folder):
            _read_about(folder)  # a lock would leave a file in a folder of something else
        try:
            self._lock = ensembles.FolderLock(folder, "--results")
        except BlockingIOError as error:
            raise Refused(str(error)) from None
        try:
            self._open(name, preset, settings, restart)
        except BaseException:
            self._lock.release()
            raise

    def __enter__(self) -> "Results":
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def _open(self, name: str, preset: str, settings: Any, restart: bool) -> None:
        folder = self.folder
        if restart:
            clear(folder, name)
        asked = {"experiment": name, "preset": preset, "settings": _plain(settings)}
        if _holds_something(folder):
            self.about = _read_about(folder)
            differ = _differences(asked, self.about)
            if differ:
                fix = "Name another folder with --results" + (
                    ", or throw its results away with --restart" if self.about["experiment"] == name else ""
                )
                raise Refused(f"{folder} holds results of something else ({'; '.join(differ)}). {fix}.")
            self._note_versions()
        else:
            folder.mkdir(parents=True, exist_ok=True)
            self.about = asked | {"versions": _versions(), "machine": _machine(), "seconds": {}}
            self._write_about()

    def part(self, name: str, function: Callable[..., Arrays], /, *arguments: Any) -> Arrays:
        """Return the dictionary of arrays `function(*arguments)`, computed once and then read from its file."""
        path = self.folder / f"{name}.npz"
        if not path.exists():
            start = time.perf_counter()
            arrays = {key: np.asarray(value) for key, value in function(*arguments).items()}
            self.about["seconds"][name] = round(time.perf_counter() - start, 1)
            packed = io.BytesIO()  # NumPy leaves an archive open if writing it fails
            np.savez_compressed(packed, **arrays)
            with write_atomically(path) as file:
                file.write(packed.getbuffer())
            self._write_about()
        shutil.rmtree(self.checkpoint(name), ignore_errors=True)
        self.found[name] = _read(path)
        return self.found[name]

    def checkpoint(self, name: str, /) -> Path:
        """Return the folder for checkpoints of a part that trains. It is removed when the part is finished."""
        return self.folder / "checkpoints" / name

    def train(self, name: str, module: Any, data: Any, /, **settings: Any) -> ensembles.Run:
        """Call `ensembles.train` with a progress bar, and with checkpoints to continue after an interruption."""
        folder = self.checkpoint(name)
        if self.progress:
            print(f"training {name}", file=sys.stderr)
        return ensembles.train(module, data, checkpoint=folder, resume=True, progress=self.progress, **settings)

    def _write_about(self) -> None:
        with write_atomically(self.folder / ABOUT) as file:
            file.write(json.dumps(self.about, indent=2).encode())

    def _note_versions(self) -> None:
        before, now = self.about.get("versions", {}), _versions()
        changed = [f"{name} {before.get(name)}, now {now[name]}" for name in now if before.get(name) != now[name]]
        if changed:
            print(f"note: {self.folder} was begun with other versions: {'; '.join(changed)}", file=sys.stderr)


def load_results(folder: Path, name: str, presets: Mapping[str, Any]) -> tuple[Any, Found]:
    """Return the settings and arrays in a folder of results."""
    about = _read_about(folder)
    if about["experiment"] != name:
        raise Refused(f"{folder} holds results of {about['experiment']}, not of {name}. Name another with --results.")
    # List the files, not about.json: a part may have finished just before the program was killed.
    found = Found({path.stem: _read(path) for path in sorted(folder.glob("*.npz"))})
    if not found:
        raise Refused(f"{folder} holds no finished part yet. Run it without --redraw first.")
    try:
        return type(presets[about["preset"]])(**about["settings"]), found
    except (KeyError, TypeError) as error:
        raise Refused(f"{folder} was made by another version of {name} ({error}). Name another folder.") from None


def clear(folder: Path, name: str) -> None:
    """Empty a folder with results of this experiment. Refuse any other folder."""
    if not _holds_something(folder):
        return
    there = _read_about(folder)["experiment"]
    if there != name:
        raise Refused(f"{folder} holds results of {there}, which {name} does not throw away. Remove it yourself.")
    # about.json marks the folder as ours, so it goes last: then even this can be interrupted.
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name == ABOUT):
        if entry.name == ensembles.LOCK_FILE:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _holds_something(folder: Path) -> bool:
    """Return whether a folder contains anything except files that were never finished."""
    if folder.exists() and not folder.is_dir():
        raise Refused(f"{folder} is a file. Name a folder with --results.")
    ours = (ensembles.LOCK_FILE, WRITING)
    return folder.exists() and not all(entry.name.endswith(ours) for entry in folder.iterdir())


def _read_about(folder: Path) -> dict[str, Any]:
    fix = "Remove the folder, or name another with --results"
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        kind = "holds something other than results" if folder.is_dir() else "is no folder of results"
        raise Refused(f"{folder} {kind}. Name a new or empty folder with --results.") from None
    except ValueError as error:  # not JSON, or not even text
        raise Refused(f"{folder}/{ABOUT} is damaged ({error}). {fix}.") from None
    kinds = {"experiment": str, "preset": str, "settings": dict, "seconds": dict}
    if not isinstance(about, dict) or not all(isinstance(about.get(key), kind) for key, kind in kinds.items()):
        raise Refused(f"{folder}/{ABOUT} is damaged (it lacks one of {', '.join(kinds)}). {fix}.")
    return about


def _differences(asked: Mapping[str, Any], there: Mapping[str, Any]) -> list[str]:
    """List the settings in which two runs differ, by name."""
    found = []
    for key, value in asked.items():
        if isinstance(value, Mapping):
            found += _differences({**dict.fromkeys(there[key]), **value}, {**dict.fromkeys(value), **there[key]})
        elif there[key] != value:
            found.append(f"{key} {there[key]} instead of {value}")
    return found


def _read(path: Path) -> dict[str, np.ndarray]:
    content = io.BytesIO(path.read_bytes())
    try:
        with np.load(content) as file:
            return dict(file)
    except Exception as error:  # a damaged archive may raise almost anything
        raise Refused(f"{path} is damaged ({error}). Remove it, and it is computed again.") from None


@contextlib.contextmanager
def write_atomically(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing. Afterwards it is there completely, or not at all."""
    temporary = path.with_name(path.name + WRITING)
    try:
        with temporary.open("wb") as file:
            yield file
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()  # it would waste space on a full disk
        raise


def _plain(settings: Any) -> Any:
    return json.loads(json.dumps(dataclasses.asdict(settings)))


def _versions() -> dict[str, str]:
    return {"python": platform.python_version()} | {name: _version(name) for name in VERSIONS}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # for example this library, used from its source folder
        return "not installed"


def _machine() -> dict[str, Any]:
    devices = jax.devices()
    return {
        "devices": f"{len(devices)} x {devices[0].device_kind}",
        "cores": os.cpu_count(),
        "system": platform.system(),
    }
