"""The frame of all experiments: a command line, results that survive an interruption, and figures drawn from them.

An experiment has presets of settings, and four functions of these settings:

    load(settings, data_dir)            return the data; errors tell the user what is missing or damaged
    compute(settings, data, results)    do the work in parts; `results.part(name, function)` computes each part once
    table(settings, found)              return the numbers as text
    figures(settings, found)            return the figures by name

`found[part][name]` are the arrays of all parts, read back from the files that `compute` wrote. Figures are always
drawn from stored results, so `--redraw` needs neither data nor training. `_results.py` describes the files.
"""

import argparse
import contextlib
import dataclasses
import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
from _results import ABOUT, Arrays, Refused, Results, load_results, write_atomically
from matplotlib.figure import Figure

from ntk_equiv import ensembles, plotting

# Exit codes by convention of the shell: bad usage, and an interrupted program.
BAD_USAGE, INTERRUPTED = 2, 130


@dataclasses.dataclass(frozen=True)
class Experiment:
    """An experiment: its name and description, its presets, and the four functions described above."""

    name: str
    about: str
    presets: Mapping[str, Any]
    load: Callable[[Any, Path | None], Any]
    compute: Callable[[Any, Any, Results], None]
    table: Callable[[Any, Mapping[str, Arrays]], str]
    figures: Callable[[Any, Mapping[str, Arrays]], Mapping[str, Figure]]

    def main(self, arguments: list[str] | None = None) -> int:
        """Do what the command line asks for, and return the exit code."""
        asked = self._parse(arguments)
        with contextlib.suppress(RuntimeError):  # another program has already started JAX
            ensembles.use_cores()
        own = "".join(f"-{change}" for change in sorted(asked.set)).replace(os.sep, "_")
        folder = asked.results or Path("results") / f"{self.name}-{asked.preset}{own}"
        try:
            if asked.redraw:
                self._show(folder, *load_results(folder, self.name, self.presets))
                return 0
            self._run(asked, folder)
        except KeyboardInterrupt:
            print(f"\nInterrupted. The same command goes on where this one stopped; see {folder}.", file=sys.stderr)
            return INTERRUPTED
        except Refused as error:
            print(f"{self.name}: {error}", file=sys.stderr)
            return BAD_USAGE
        except BrokenPipeError:  # the reader of the output has closed it; all files are written by now
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except OSError as error:
            kept = f" What was finished before is in {folder}, and is kept." if (folder / ABOUT).exists() else ""
            print(f"{self.name}: {error}.{kept}", file=sys.stderr)
            return 1
        return 0

    def _run(self, asked: argparse.Namespace, folder: Path) -> None:
        settings = _changed(self.presets[asked.preset], asked.set, asked.seed)
        try:
            data = self.load(settings, asked.data_dir)
        except (ValueError, OSError, ImportError) as error:
            raise Refused(f"the data cannot be used: {error}") from error
        options = {"restart": asked.restart, "progress": not asked.quiet}
        with Results(folder, self.name, asked.preset, settings, **options) as results:
            self.compute(settings, data, results)
            self._show(folder, settings, results.found)

    def _show(self, folder: Path, settings: Any, found: Mapping[str, Arrays]) -> None:
        text = self.table(settings, found)
        with write_atomically(folder / "table.txt") as file:
            file.write(f"{text}\n".encode())
        with plotting.style():
            drawn = self.figures(settings, found).items()
            paths = [path for name, figure in drawn for path in plotting.save(figure, folder / name)]
        # Some terminals cannot show all signs of a table, so replace these instead of failing.
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")
        print(text, *paths, sep="\n", flush=True)

    def _parse(self, arguments: list[str] | None) -> argparse.Namespace:
        kind = argparse.RawDescriptionHelpFormatter
        parser = argparse.ArgumentParser(
            f"python examples/{self.name}.py", description=self.about, formatter_class=kind
        )
        names = _values(next(iter(self.presets.values())))
        parser.add_argument("--preset", choices=list(self.presets), default="quick", help="sizes (default: quick)")
        parser.add_argument(
            "--set", nargs="+", default=[], metavar="NAME=VALUE", help=f"settings of your own, for: {', '.join(names)}"
        )
        parser.add_argument("--results", type=Path, help=f"folder (default: results/{self.name}-PRESET)")
        either = parser.add_mutually_exclusive_group()
        either.add_argument("--redraw", action="store_true", help="make table and figures again from stored results")
        either.add_argument("--restart", action="store_true", help="delete the results in the folder and start again")
        parser.add_argument("--data-dir", type=Path, help="folder of data files (default: $NTK_EQUIV_DATA)")
        parser.add_argument("--seed", type=_seed, default=0, help="seed of all random numbers (default: 0)")
        parser.add_argument("--quiet", action="store_true", help="no progress bars")
        return parser.parse_args(arguments)


@contextlib.contextmanager
def double_precision() -> Iterator[None]:
    """Switch float64 on for theory, in a program that trains in float32."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", before)


def _values(settings: Any) -> dict[str, Any]:
    """Return the settings that `--set` may name, with their values: numbers, words and tuples of these."""
    values = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    simple = (int, float, str)
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, simple) or (isinstance(value, tuple) and value and isinstance(value[0], simple))
        if name != "seed"
    }


def _changed(preset: Any, changes: list[str], seed: int) -> Any:
    """Return the settings of a preset with those that the command line changes, each as NAME=VALUE."""
    values = _values(preset)
    read = {}
    for change in changes:
        name, _, text = change.partition("=")
        if name not in values or not text:
            known = ", ".join(f"{name}={_written(value)}" for name, value in values.items())
            raise Refused(f"--set takes NAME=VALUE with the name of a setting, got {change!r}. The preset has {known}.")
        try:
            read[name] = _read(text, values[name])
        except (KeyError, ValueError):
            raise Refused(f"--set {name} takes a value like {_written(values[name])}, got {text!r}.") from None
    try:
        return dataclasses.replace(preset, seed=seed, **read)
    except ValueError as error:
        raise Refused(str(error)) from None


def _read(text: str, like: Any) -> Any:
    """Read a value of the type of another one: a number, a word, True or False, or several with commas between."""
    if isinstance(like, tuple):
        return tuple(_read(part, like[0]) for part in text.split(","))
    if isinstance(like, bool):
        return {"True": True, "False": False}[text]
    return type(like)(text)


def _written(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _seed(text: str) -> int:
    seed = int(text)
    if not 0 <= seed < 2**32:
        raise argparse.ArgumentTypeError(f"must lie between 0 and {2**32 - 1}, got {seed}")
    return seed
