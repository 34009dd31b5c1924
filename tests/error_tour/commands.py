"""Wrong command lines, and what the one line that answers them must mention."""

import contextlib
import io
import shlex
import tempfile
import zipfile
from pathlib import Path

import numpy as np

from ntk_equiv import cli

FOLDER = tempfile.TemporaryDirectory()
DATA = Path(FOLDER.name) / "data.npz"
np.savez(DATA, x=np.arange(24.0).reshape(6, 4), y=np.arange(6.0))
TEXT = Path(FOLDER.name) / "notes.npz"
TEXT.write_text("no archive")
LABELS = Path(FOLDER.name) / "labels.npz"
np.savez(LABELS, y=np.arange(6.0))
LINKED = Path(FOLDER.name) / "linked"
LINKED.mkdir()
(LINKED / "plan.json").symlink_to(LINKED / "nowhere.json")
HUGE = Path(FOLDER.name) / "huge.npz"
with zipfile.ZipFile(HUGE, "w") as archive, archive.open("x.npy", "w") as content:
    np.lib.format.write_array_header_1_0(content, {"descr": "<f8", "fortran_order": False, "shape": (10**7, 10**7)})

COMMANDS = {
    "": "COMMAND",
    "train": "train",
    "plan": "data",
    "plan DATA": "--group",
    "plan DATA --group C4": "--action",
    "plan missing.npz --group C4 --action regular": "missing.npz",
    "plan TEXT --group C4 --action regular": "no archive",
    "plan LABELS --group C4 --action regular": "with x",
    "plan DATA --group Z4 --action regular": "--group",
    "plan DATA --group C4 --action spin": "--action",
    "plan DATA --group C4 --action regular --arch transformer": "--arch",
    "plan DATA --group C4 --action regular --label-action regular": "--label-action",
    "plan DATA --group C4 --action regular --members 0": "--members",
    "plan DATA --group C4 --action regular --members many": "--members",
    "plan DATA --group C4 --action regular --delta -1": "--delta",
    "plan DATA --group C4 --action regular --times soon": "--times",
    "plan DATA --group C4 --action regular --learning-rate 0": "--learning-rate",
    "plan DATA --group C4 --action regular --minutes 0": "--minutes",
    "plan DATA --group C4 --action regular --class-names a b": "--class-names",
    "plan DATA --group C4 --action regular --out DATA": "--out",
    "plan DATA --group C4 --action regular --out LINKED": "plan.json",
    "plan HUGE --group C4 --action regular": "its header says",
    "info --members 0": "--members",
    "info --members ten": "--members",
}


def fault(command: str, mentioned: str) -> str | None:
    """What is wrong with the answer to a wrong command line, if something is."""
    files = {name: str(globals()[name]) for name in ("DATA", "TEXT", "LABELS", "LINKED", "HUGE")}
    words = [files.get(word, word) for word in shlex.split(command)]
    with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(io.StringIO()):
        code = cli.main(words)
    *usage, answer = said.getvalue().strip().splitlines() or [""]
    usage = [line for line in usage if not line.startswith(("usage:", " "))]
    if code != cli.BAD_USAGE:
        return f"ends with {code}: {answer}"
    if usage or not answer.startswith("ntk-equiv"):
        return f"takes more than a line: {said.getvalue()}"
    return None if mentioned in answer else f"does not mention {mentioned}: {answer}"
