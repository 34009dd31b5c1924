"""The record of a planned run: what its members predict, how they were trained, and what was predicted.

Its folder has

plan.json        the plan
run.json         settings, units, versions, date, command, and whether the run has finished
run.npz          predictions, labels and the history of training, once it has
checkpoints/     the members
report.html      the report, once `report` has written it
"""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Float, Int

from ntk_equiv import ensembles, metrics, planning
from ntk_equiv._check import file_path, refusal
from ntk_equiv._typing import Scalar
from ntk_equiv.planned_runs._data import Units
from ntk_equiv.planned_runs._module import OWN_NETWORK, named_module
from ntk_equiv.planning import Plan

FORMAT = 1
PLAN_FILE, RUN_FILE, ARRAYS_FILE, CHECKPOINTS = "plan.json", "run.json", "run.npz", "checkpoints"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PlannedRun:
    """The ensemble of a plan after training. `train` makes it.

    Attributes:
        plan: the plan.
        settings: how it was trained, by the names of the arguments of `train`, and how many samples were used.
        outputs: of all members, at the test samples moved by all elements, [members, order, m, channels]: logits of
            classes, or numbers in the units of the labels.
        labels: those of the test samples: classes as whole numbers [m], or numbers [m, channels].
        validation_outputs: of all members at the validation samples, [members, v, channels].
        validation_labels: their labels.
        samples: the test samples, [m, ...].
        index: the place of each test sample in the data, [m].
        actions: how each element acts on outputs, [order, channels, channels].
        identity: the number of the identity among the elements.
        steps: how many steps led to the parameters of each member, [members].
        history: losses, validations and rates along training.
        units: how samples and labels were scaled for training.
        versions: the versions of the library and what it builds on.
        origin: the name of the data, date and command line.
        ensemble: the trained members; None for a run that was loaded, until `with_ensemble`.
        folder: where the run is stored; None if it is not.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv import planned_runs, planning
        >>> x = np.random.default_rng(0).normal(size=(20, 2))
        >>> y = np.linalg.norm(x, axis=1)
        >>> plan = planning.plan(x, y, group="C4", action="matrix", arch="mlp:relu:1", times=[10], samples=2000)
        >>> run = planned_runs.train(plan, x, y, members=3, epochs=2, batch_size=16)
        >>> run.outputs.shape                                # members, elements, test samples, channels
        (3, 4, 4, 1)
        >>> bool(np.allclose(run.predict(x[run.index]), run.outputs[:, run.identity], atol=1e-5))
        True
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
    history: ensembles.History
    units: Units
    versions: dict[str, str]
    origin: dict[str, Any]
    ensemble: ensembles.Run | None = None
    folder: Path | None = None

    def __repr__(self) -> str:
        members, _, m, _ = self.outputs.shape
        return f"<planned run of {members} members on {m} test samples under {self.plan.problem['group']}>"

    @property
    def classes(self) -> list[str] | None:
        """The names of the classes; None for numbers."""
        return self.plan.problem["classes"]

    def predict(self, x: ArrayLike, /) -> Float[np.ndarray, "members n channels"]:
        """Return what every member predicts for new samples: logits of classes, or numbers in the units of the labels.

        Args:
            x: samples [n, ...] in the form of those of the plan: bytes are divided by 255 here too.

        Raises:
            ValueError: the samples have another shape, or the members are not loaded.
        """
        if self.ensemble is None:
            fix = "Load them from the checkpoints: `run = run.with_ensemble()`."
            raise refusal("run", expected="one whose members are loaded", got=repr(self), fix=fix)
        prepared = planning.prepare_samples(x, images=planning.acts_on_images(self.plan.settings["action"]))
        shape = tuple(self.plan.problem["shape"])
        if prepared.shape[1:] != shape:
            fix = "Bring samples to the form of those of the plan: crop, pad or scale images."
            if np.shape(x) == shape:
                fix = "Give a single sample the axis of samples: `x[None]`."
            elif prepared.shape[1:] == (*shape[:-1], 1):
                fix = "Repeat the grey images on all channels, as `datasets.image_folder` reads them."
            expected = f"of shape [n, {', '.join(map(str, shape))}]"
            raise refusal("x", expected=expected, got=f"shape {np.shape(x)}", fix=fix)
        return self.units.restore(self.ensemble.predict(self.units.of_samples(prepared)))

    def probabilities(self, x: ArrayLike, /, *, temperature: Scalar = 1.0) -> Float[np.ndarray, "n classes"]:
        """Return class probabilities for new samples, the mean over members, in the order of `classes`.

        Args:
            x: samples, as `predict` takes them.
            temperature: by what log-probabilities are divided after the average. To fit the validation samples:
                `metrics.fit_temperature(run.validation_outputs, run.validation_labels)`.

        Raises:
            ValueError: labels are numbers, and there are no classes.
        """
        if self.classes is None:
            fix = "Take `predict`, which returns numbers in the units of the labels."
            raise refusal("run", expected="one with classes", got=repr(self), fix=fix)
        return np.asarray(metrics.ensemble_probabilities(self.predict(x), temperature=temperature))

    def with_ensemble(self, network: Any = None, /) -> "PlannedRun":
        """Return the run with its members, from the checkpoints in its folder.

        Args:
            network: the network, if it was not given by its name in training.

        Raises:
            ValueError: the run has no folder, or the network is unknown or another one.
        """
        name = self.settings["network"] if network is None else network
        if self.folder is None or name == OWN_NETWORK:
            missing = "no folder" if self.folder is None else OWN_NETWORK
            fix = "Load the run from its folder, and pass the network that it was trained with."
            raise refusal("run", expected="one from a folder, with a network that has a name", got=missing, fix=fix)
        shape, outputs = tuple(self.plan.problem["shape"]), self.outputs.shape[-1]
        module = named_module(name, shape, outputs)
        return dataclasses.replace(self, ensemble=ensembles.Run.load(self.folder / CHECKPOINTS, module))

    # Text and report read runs, so they are imported when they are needed.

    def table(self) -> str:
        """Return all results as text."""
        from ntk_equiv.planned_runs import _text

        return planning.sections_text(_text.run_sections(self))

    def figure(self, panel: str, /) -> Any:
        """Return a matplotlib figure: "training", "members", or for classes "reliability"."""
        from ntk_equiv.planned_runs import _report

        return _report.draw_panel(self, panel)

    def save(self, folder: str | os.PathLike[str], /) -> Path:
        """Write the run into a folder, which `load` reads; members are only in the folder given to `train`."""
        folder = file_path(folder, "folder")
        folder.mkdir(parents=True, exist_ok=True)
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        arrays |= {f"history/{name}": each for name, each in _flatten(self.history.stored()).items()}
        np.savez_compressed(folder / ARRAYS_FILE, **arrays)
        self.plan.save(folder / PLAN_FILE)
        content = {
            "settings": self.settings,
            "identity": self.identity,
            "units": dataclasses.asdict(self.units),
            "metrics": list(self.history.validation),
            "versions": self.versions,
            "origin": self.origin,
        }
        write_run_file(folder, finished=True, content=content)
        return folder

    @classmethod
    def load(cls, folder: str | os.PathLike[str], /) -> "PlannedRun":
        """Return the run in a folder that `train` or `save` wrote, without its members.

        Raises:
            FileNotFoundError: there is no such folder.
            ValueError: it holds something else, or a run that has not finished.
        """
        folder = file_path(folder, "folder")
        if not folder.exists():
            fix = f"`ntk-equiv train` writes one; relative paths start at {Path.cwd()}."
            got = f"{folder}, which does not exist"
            raise refusal("folder", expected="the folder of a run", got=got, fix=fix, kind=FileNotFoundError)
        content = read_run_file(folder)
        missing = [name for name in (RUN_FILE, PLAN_FILE) if not (folder / name).is_file()]
        if content is None or missing:
            fix = "Pass a folder that `ntk-equiv train`, or `planned_runs.train(…, folder=…)`, wrote."
            got = f"{folder} without {', '.join(missing)}" if missing else f"{folder} with another {RUN_FILE}"
            raise refusal("folder", expected="the folder of a planned run", got=got, fix=fix)
        if not content.pop("finished") or not (folder / ARRAYS_FILE).is_file():
            fix = "Repeat the command or the call that began it: it continues where it stopped."
            got = f"{folder}, whose training was interrupted or is still going on"
            raise refusal("folder", expected="the folder of a run that has finished", got=got, fix=fix)
        with np.load(folder / ARRAYS_FILE) as stored:
            arrays = {name: stored[name] for name in _ARRAYS}
            parts = {name.removeprefix("history/"): stored[name] for name in stored if name.startswith("history/")}
        history = ensembles.History(metrics=content.pop("metrics"))
        history.restore(_nest(parts))
        units = content.pop("units")
        content["units"] = Units(**{**units, "y_shift": tuple(units["y_shift"])})
        plan = Plan.load(folder / PLAN_FILE)
        return cls(plan=plan, history=history, folder=folder, **arrays, **content)


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


def write_run_file(folder: Path, /, *, finished: bool, content: dict[str, Any]) -> None:
    """Write run.json in one step, so that a reader never sees half of it."""
    content = {"format": FORMAT, "finished": finished, **content}
    unfinished = folder / f".{RUN_FILE}"
    unfinished.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    unfinished.replace(folder / RUN_FILE)


def read_run_file(folder: Path, /) -> dict[str, Any] | None:
    """Return what run.json in a folder holds; None if there is none, or it is something else."""
    try:
        content = json.loads((folder / RUN_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) and content.pop("format", None) == FORMAT else None


def _flatten(stored: dict[str, Any]) -> dict[str, Any]:
    """Return nested arrays under names that join those of both levels."""
    flat = {}
    for name, value in stored.items():
        parts = {f"{name}/{inner}": each for inner, each in value.items()} if isinstance(value, dict) else {name: value}
        flat.update(parts)
    return flat


def _nest(flat: dict[str, Any]) -> dict[str, Any]:
    """Return what `_flatten` was given."""
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        outer, slash, inner = name.partition("/")
        if slash:
            nested.setdefault(outer, {})[inner] = value
        else:
            nested[outer] = value
    return nested
