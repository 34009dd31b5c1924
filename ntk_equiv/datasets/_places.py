"""Where files of data are looked for.

In this order: the folder the caller names, the folders in the environment variable NTK_EQUIV_DATA (several are
separated as in PATH), and /usr/share/datasets, where Debian puts its packages of data. In each of them files may lie at
the top, or in a folder that has the name of the set.
"""

import os
from collections.abc import Iterator
from os import PathLike
from pathlib import Path

from ntk_equiv._check import file_path, refusal

VARIABLE = "NTK_EQUIV_DATA"
SYSTEM = Path("/usr/share/datasets")


def roots(data_dir: str | PathLike[str] | None) -> list[Path]:
    """The folders to look in, the most specific first.

    Raises:
        FileNotFoundError: the caller names a folder that is not there.
    """
    named = [] if data_dir is None else [file_path(data_dir, "data_dir").expanduser()]
    if named and not named[0].is_dir():
        fix = "Name the folder that the files lie in."
        raise refusal(
            "data_dir", expected="a folder", got=f"{str(data_dir)!r}, which is none", fix=fix, kind=FileNotFoundError
        )
    listed = [Path(entry).expanduser() for entry in os.environ.get(VARIABLE, "").split(os.pathsep) if entry]
    return [*named, *listed, SYSTEM]


def candidates(root: Path, folders: tuple[str, ...], names: tuple[str, ...]) -> Iterator[list[Path]]:
    """The files of the given names, in each folder of the root that has some of them; missing ones are left out."""
    for folder in (root, *(root / name for name in folders)):
        found = [path for name in names if (path := _file(folder / name)) is not None]
        if found:
            yield found


def missing(name: str, wanted: str, where: list[Path], remedy: str, passed: list[str]) -> Exception:
    """The error for data that are nowhere; `passed` says what was found instead."""
    looked = ", ".join(str(root) if root.is_dir() else f"{root} (no such folder)" for root in where)
    state = "set" if os.environ.get(VARIABLE) else "not set now"
    fix = f"{remedy} A folder of your own is named by data_dir, or by the environment variable {VARIABLE} ({state})."
    got = "; ".join([f"nothing of the kind in {looked}", *passed])
    return refusal(name, expected=f"in a folder as {wanted}", got=got, fix=fix, kind=FileNotFoundError)


def _file(path: Path) -> Path | None:
    """The file itself, or the gzipped one."""
    return next((there for there in (path, path.with_name(path.name + ".gz")) if there.is_file()), None)
