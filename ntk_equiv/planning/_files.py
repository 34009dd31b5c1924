"""The files of a plan, in one folder.

plan.html            the report
plan.json            all numbers, settings and versions
plan.txt             the tables
plan.pdf, plan.png   the figure
"""

import os
import tempfile
from pathlib import Path
from typing import Any

from ntk_equiv._check import file_path, refusal

NAMES = ("plan.html", "plan.json", "plan.txt", "plan.pdf", "plan.png")


def checked_folder(folder: Any, /, *, overwrite: bool = False) -> Path:
    """The folder, made if need be, if files can be written to it; before anything is computed.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from ntk_equiv.planning import checked_folder
        >>> with tempfile.TemporaryDirectory() as place:
        ...     checked_folder(Path(place) / "plan").name
        'plan'
    """
    folder = file_path(folder, "folder")
    there = [name for name in NAMES if os.path.lexists(folder / name)]  # links too, wherever they lead
    if there and not overwrite:
        fix = "Name another folder, or allow what is there to be replaced (--overwrite)."
        raise refusal("out", expected="a folder without a plan", got=f"{folder} with {', '.join(there)}", fix=fix)
    made = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        if made:
            folder.rmdir()  # made again when there is something to put into it
    except OSError as error:
        fix = "Name a folder in a place where you may write."
        got = f"{folder} ({error.strerror or error})"
        raise refusal("out", expected="a folder that can be written to", got=got, fix=fix) from None
    return folder


def written(plan: Any, folder: Path, /, *, figures: bool = True) -> list[Path]:
    """Write all files; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        if (folder / name).is_symlink():
            (folder / name).unlink()  # the link is replaced, not the file somewhere else that it leads to
    html, json, txt, *_ = (folder / name for name in NAMES)
    txt.write_text(plan.table() + "\n", encoding="utf-8")
    paths = [plan.report(html, figures=figures), plan.save(json), txt]
    if figures:
        from ntk_equiv import plotting  # and matplotlib with it

        paths += plotting.save(plan.figure(), folder / "plan")
    return paths
