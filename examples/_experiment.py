"""What all experiments have in common: a command line, results that outlive an interruption, figures drawn from them.

An experiment is four functions of its settings, which come in presets:

    load(settings, data_dir)            the data; what is missing or damaged is the user's to put right
    compute(settings, data, results)    the work, in parts: `results.part(name, function)` computes each but once
    table(settings, found)              the numbers, as text
    figures(settings, found)            the figures, by name

`found[part][name]` are the arrays of all parts, read back from the files that `compute` left: figures are always drawn
from what is stored, so that `--redraw` needs neither data nor training. The files are told of in `_results.py`.
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
from _results import ABOUT, Arrays, Refused, Results, stored, whole
from matplotlib.figure import Figure

from ntk_equiv import ensembles, plotting

# What a shell expects: bad usage, and a program that was interrupted.
BAD_USAGE, INTERRUPTED = 2, 130


@dataclasses.dataclass(frozen=True)
class Experiment:
    """An experiment: its name and description, its presets, and four functions; see the top of this file."""

    name: str
    about: str
    presets: Mapping[str, Any]
    load: Callable[[Any, Path | None], Any]
    compute: Callable[[Any, Any, Results], None]
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
        except BrokenPipeError:  # whoever reads what is printed has seen enough; the files are all written
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except OSError as error:
            kept = f" What was finished before is in {folder}, and is kept." if (folder / ABOUT).exists() else ""
            print(f"{self.name}: {error}.{kept}", file=sys.stderr)
            return 1
        return 0

    def _run(self, asked: argparse.Namespace, folder: Path) -> None:
        settings = dataclasses.replace(self.presets[asked.preset], seed=asked.seed)
        try:
            data = self.load(settings, asked.data_dir)
        except (ValueError, OSError, ImportError) as error:
            raise Refused(f"the data cannot be used: {error}") from error
        results = Results(folder, self.name, asked.preset, settings, restart=asked.restart, progress=not asked.quiet)
        self.compute(settings, data, results)
        self._show(folder, settings, results.found)

    def _show(self, folder: Path, settings: Any, found: Mapping[str, Arrays]) -> None:
        text = self.table(settings, found)
        with whole(folder / "table.txt") as file:
            file.write(f"{text}\n".encode())
        with plotting.style():
            drawn = self.figures(settings, found).items()
            paths = [path for name, figure in drawn for path in plotting.save(figure, folder / name)]
        # Printed last, and whatever the screen can show: a table holds signs that not every one knows.
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")
        print(text, *paths, sep="\n", flush=True)

    def _parsed(self, arguments: list[str] | None) -> argparse.Namespace:
        kind = argparse.RawDescriptionHelpFormatter
        parser = argparse.ArgumentParser(
            f"python examples/{self.name}.py", description=self.about, formatter_class=kind
        )
        parser.add_argument("--preset", choices=list(self.presets), default="quick", help="sizes (default: quick)")
        parser.add_argument("--results", type=Path, help=f"folder (default: results/{self.name}-PRESET)")
        either = parser.add_mutually_exclusive_group()
        either.add_argument("--redraw", action="store_true", help="table and figures again, from stored results")
        either.add_argument("--restart", action="store_true", help="forget the results that are in the folder")
        parser.add_argument("--data-dir", type=Path, help="where files of data lie (default: $NTK_EQUIV_DATA)")
        parser.add_argument("--seed", type=_seed, default=0, help="of all that is random (default: 0)")
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


def _seed(text: str) -> int:
    seed = int(text)
    if not 0 <= seed < 2**32:
        raise argparse.ArgumentTypeError(f"must lie between 0 and {2**32 - 1}, got {seed}")
    return seed
