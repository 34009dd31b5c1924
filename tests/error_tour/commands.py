"""Wrong command lines, and what the one line that answers them must mention."""

import contextlib
import dataclasses
import io
import json
import shlex
import tempfile
import zipfile
from pathlib import Path

import numpy as np

from ntk_equiv import cli
from tests.error_tour.data_calls import PLAN as PLAN_RECORD
from tests.error_tour.data_calls import X, Y

FOLDER = tempfile.TemporaryDirectory()
DATA = Path(FOLDER.name) / "data.npz"
np.savez(DATA, x=X, y=Y)
CHANGED = Path(FOLDER.name) / "changed.npz"
np.savez(CHANGED, x=X + 1, y=Y)
WIDER = Path(FOLDER.name) / "wider.npz"
np.savez(WIDER, x=np.concatenate([X, X], axis=1), y=Y)
PLAN = Path(FOLDER.name) / "slides-plan"
PLAN.mkdir()
PLAN_RECORD.save(PLAN / "plan.json")
# A run of another plan, which was interrupted.
OTHER_RUN = Path(FOLDER.name) / "other-run"
OTHER_RUN.mkdir()
changed = {**PLAN_RECORD.settings, "group": "S4", "members": 3}
dataclasses.replace(PLAN_RECORD, settings=changed).save(OTHER_RUN / "plan.json")
(OTHER_RUN / "run.json").write_text(json.dumps({"format": 1, "finished": False, "settings": {}}))
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
    "train": "plan",
    "train missing-plan": "missing-plan",
    "train LINKED": "plan must be a plan or its folder",
    "train DATA": "plan must be a plan or its folder",
    "train PLAN": "--data must be given",
    "train PLAN --data missing.npz": "--data must be the data of the plan, got missing.npz",
    "train PLAN --data CHANGED": "--data must be those of the plan, got others",
    "train PLAN --data WIDER": "with samples of shape [4], got samples of shape [8]",
    "train PLAN --data DATA --network rnn": "--network must be one of auto, cnn, mlp, or module:factory",
    "train PLAN --data DATA --network nothing:build": "No module named 'nothing'",
    "train PLAN --data DATA --network json:dumps": "--network must be a network for samples of shape (4,)",
    "train PLAN --data DATA --epochs 0": "--epochs",
    "train PLAN --data DATA --out OTHER_RUN": "--out must be that of a run of this plan",
    "train PLAN --data DATA --out DATA": "--out must be new, empty, or that of this run",
    "report": "run",
    "report missing-run": "run must be",
    "report PLAN": "run must be the folder of a planned run",
    "report OTHER_RUN": "whose training was interrupted or is still going on",
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
    files = {name: str(value) for name, value in globals().items() if isinstance(value, Path)}
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
