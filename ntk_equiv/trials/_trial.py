"""What became of a planned ensemble: what its members predict, how they were trained, and what was predicted."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from ntk_equiv._check import file_path, refusal
from ntk_equiv.ensembles import History
from ntk_equiv.planning import Plan

FORMAT = 1
FILES = ("trial.json", "trial.npz", "plan.json")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Trial:
    """A planned ensemble that was trained. `train` makes it.

    Attributes:
        plan: the plan.
        settings: how it was trained, by the names of the arguments of `train`.
        outputs: of all members, at the test samples moved by all elements, [members, order, m, channels].
        labels: those of the test samples: classes as whole numbers [m], or numbers [m, channels].
        validation_outputs: of all members at the validation samples, [members, v, channels].
        validation_labels: their labels.
        samples: the test samples, [m, ...].
        index: the place of each test sample in the data, [m].
        actions: how each element acts on outputs, [order, channels, channels].
        identity: the number of the identity among the elements.
        steps: how many steps the parameters of each member were trained, [members].
        history: losses, validations and rates along training.
        versions: the versions of the library and what it builds on.
        origin: date and command line.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv import planning, trials
        >>> x = np.random.default_rng(0).normal(size=(20, 2))
        >>> y = np.linalg.norm(x, axis=1)
        >>> plan = planning.plan(x, y, group="C4", action="matrix", arch="mlp:relu:1", times=[10], samples=2000)
        >>> trial = trials.train(plan, x, y, network="mlp", members=3, epochs=2, batch_size=16)
        >>> trial.outputs.shape                              # members, elements, test samples, channels
        (3, 4, 4, 1)
        >>> print(trial.table().splitlines()[0])
        In short
    """

    plan: Plan
    settings: dict[str, Any]
    outputs: Float[np.ndarray, "members order m channels"]
    labels: np.ndarray
    validation_outputs: Float[np.ndarray, "members v channels"]
    validation_labels: np.ndarray
    samples: np.ndarray
    index: Int[np.ndarray, "m"]
    actions: Float[np.ndarray, "order channels channels"]
    identity: int
    steps: Int[np.ndarray, "members"]
    history: History
    versions: dict[str, str]
    origin: dict[str, Any]

    def __repr__(self) -> str:
        members, _, m, _ = self.outputs.shape
        return f"<trial of {members} members on {m} test samples under {self.plan.problem['group']}>"

    # Numbers, text and report read trials, so they are imported when they are needed.

    def table(self) -> str:
        """Return all results as text."""
        from ntk_equiv.planning import sections_text
        from ntk_equiv.trials import _report

        return sections_text(_report.trial_sections(self))

    def figure(self, panel: str, /) -> Any:
        """Draw "training", "members", or for classes "reliability": a matplotlib figure."""
        from ntk_equiv.trials import _report

        return _report.draw_panel(self, panel)

    def report(self, path: str | os.PathLike[str], /, *, figures: bool = True) -> Path:
        """Write plan and measurement side by side as one HTML file, with the figures inside.

        Args:
            path: the path of the file.
            figures: whether to draw figures, which needs matplotlib.

        Returns:
            The path.
        """
        from ntk_equiv.trials import _report

        path = file_path(path, "path")
        path.write_text(_report.trial_html(self, figures=figures), encoding="utf-8")
        return path

    def save(self, folder: str | os.PathLike[str], /) -> Path:
        """Write the trial into a folder, which `load` reads; the plan is copied there."""
        folder = file_path(folder, "folder")
        folder.mkdir(parents=True, exist_ok=True)
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        stored = _flat(self.history.stored())
        np.savez_compressed(
            folder / "trial.npz", **arrays, **{f"history/{name}": each for name, each in stored.items()}
        )
        self.plan.save(folder / "plan.json")
        content = {
            "format": FORMAT,
            "settings": self.settings,
            "identity": self.identity,
            "metrics": list(self.history.validation),
            "versions": self.versions,
            "origin": self.origin,
        }
        (folder / "trial.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        return folder

    @classmethod
    def load(cls, folder: str | os.PathLike[str], /) -> "Trial":
        """Return the trial in a folder that `save` wrote.

        Raises:
            ValueError: the folder holds something else.
        """
        folder = file_path(folder, "folder", exists=True)
        missing = [name for name in FILES if not (folder / name).is_file()]
        if missing:
            fix = "Pass a folder in which `ntk-equiv train`, or `trials.train(…, folder=…)`, has finished."
            got = f"{folder} without {', '.join(missing)}"
            raise refusal("folder", expected="the folder of a trial", got=got, fix=fix)
        content = json.loads((folder / "trial.json").read_text(encoding="utf-8"))
        if content.pop("format", None) != FORMAT:
            raise refusal("folder", expected=f"a trial of format {FORMAT}", got=str(folder), fix="Train it again.")
        with np.load(folder / "trial.npz") as stored:
            arrays = {name: stored[name] for name in _ARRAYS}
            history = History(metrics=content.pop("metrics"))
            history.restore(
                _nested({n.removeprefix("history/"): stored[n] for n in stored if n.startswith("history/")})
            )
        return cls(plan=Plan.load(folder / "plan.json"), history=history, **arrays, **content)


_ARRAYS = (
    "outputs",
    "labels",
    "validation_outputs",
    "validation_labels",
    "samples",
    "index",
    "actions",
    "steps",
)


def _flat(stored: dict[str, Any]) -> dict[str, Any]:
    """Return nested arrays by names that join those of all levels."""
    flat = {}
    for name, value in stored.items():
        parts = {f"{name}/{inner}": each for inner, each in value.items()} if isinstance(value, dict) else {name: value}
        flat.update(parts)
    return flat


def _nested(flat: dict[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        outer, slash, inner = name.partition("/")
        if slash:
            nested.setdefault(outer, {})[inner] = value
        else:
            nested[outer] = value
    return nested
