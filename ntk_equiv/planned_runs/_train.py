"""From a plan and its data to a trained ensemble, and to its report."""

import dataclasses
import datetime
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ntk_equiv import ensembles, planning
from ntk_equiv._check import boolean, file_path, positive_integer, real_number, refusal, whole_number
from ntk_equiv._typing import Scalar
from ntk_equiv.orbits import augment
from ntk_equiv.planned_runs._data import PlannedData, prepare_data
from ntk_equiv.planned_runs._module import named_module, resolve_name
from ntk_equiv.planned_runs._run import CHECKPOINTS, PLAN_FILE, PlannedRun, read_run_file, write_run_file
from ntk_equiv.planning import Plan

SMOOTHING = 0.05


def train(
    plan: Plan | str | os.PathLike[str],
    x: ArrayLike,
    y: ArrayLike,
    /,
    *,
    x_test: ArrayLike | None = None,
    y_test: ArrayLike | None = None,
    network: Any = "auto",
    members: int | None = None,
    epochs: int = 40,
    batch_size: int = 32,
    learning_rate: Scalar = 3e-3,
    validation: Scalar = 0.2,
    patience: int = 6,
    max_test_points: int = 1000,
    seed: int | None = None,
    folder: str | os.PathLike[str] | None = None,
    command: str | None = None,
    progress: bool = False,
) -> PlannedRun:
    """Train the ensemble of a plan on the data of the plan, and predict the orbits of test samples.

    Group, actions, members, and which samples are held out for testing, are those of the plan. All training samples are
    used, also where the plan used some of them. Images are brought to mean 0 and variance 1 over all pixels of the
    training samples, other samples and labels that are numbers to mean square 1, in a way that commutes with the group.
    Classes are trained with the cross-entropy and label smoothing 0.05, numbers with the squared error, by Adam with
    weight decay at a falling rate. Each member stops when its own loss on validation samples, which are augmented too,
    no longer improves, and keeps its best parameters.

    Args:
        plan: a plan, its file, or the folder it was written to. Group and actions of a plan must have names.
        x: the training samples that were given to `planning.plan`.
        y: their labels.
        x_test: the test samples that were given to it; if none were, the same samples are held out again.
        y_test: their labels.
        network: "auto", "cnn", "mlp", "module:factory", or a network that `ensembles.train` takes; see `named_module`.
        members: how many members; those of the plan unless given.
        epochs: how often to go through the augmented training samples, at most.
        batch_size: samples in a step.
        learning_rate: that of the first epoch; it falls to 0.3 of that in ten epochs.
        validation: the fraction of the training samples that decides when to stop.
        patience: epochs without an improvement after which a member stops.
        max_test_points: the most test samples; if there are more, so many are drawn at random.
        seed: that of members and of the validation set; the plan's unless given.
        folder: where checkpoints and the run are written. A run that was interrupted continues there, to the same
            result.
        command: the command line, for the report.
        progress: whether to show a bar.

    Returns:
        The run, a record that can be printed, drawn, stored and asked to predict; `report` makes a page of it.

    Raises:
        FileNotFoundError: there is no such plan.
        ValueError: the data are not those of the plan, a setting is out of range, the network does not fit, or the
            folder belongs to a run of another plan or with other settings.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv import planned_runs, planning
        >>> x = np.random.default_rng(0).normal(size=(20, 2))
        >>> y = np.linalg.norm(x, axis=1)
        >>> plan = planning.plan(x, y, group="C4", action="matrix", arch="mlp:relu:1", times=[10], samples=2000)
        >>> run = planned_runs.train(plan, x, y, members=2, epochs=2, batch_size=16)
        >>> run
        <planned run of 2 members on 4 test samples under cyclic(4)>
    """
    plan = load_plan(plan)
    settings: dict[str, Any] = {
        "network": resolve_name(network, tuple(plan.problem["shape"])),
        **_whole_settings(plan, members, epochs, batch_size, patience, max_test_points),
        "learning_rate": _check_between(learning_rate, "learning_rate", "Adam wants small rates, such as 0.003."),
        "validation": _check_between(validation, "validation", "It is a part of the training samples."),
        "seed": whole_number(plan.settings["seed"] if seed is None else seed, "seed"),
    }
    data = prepare_data(plan, x, y, x_test, y_test, max_test_points=max_test_points)
    module = named_module(network, data.x.shape[1:], len(data.actions[0]))
    kept, held = _split_validation(len(data.x), settings["validation"], settings["seed"])
    settings |= {"training_samples": len(kept), "validation_samples": len(held)}
    path = None if folder is None else _begin_folder(folder, plan, settings)
    members_trained = _train_members(module, data, kept, held, settings, path, boolean(progress, "progress"))
    run = _measure(plan, data, held, members_trained, settings, command)
    if path is not None:
        run = dataclasses.replace(run, folder=path)
        run.save(path)
    return run


def report(
    run: PlannedRun | str | os.PathLike[str], path: str | os.PathLike[str] | None = None, /, *, figures: bool = True
) -> Path:
    """Write plan and measurement side by side as one HTML file, which loads nothing from elsewhere.

    Args:
        run: a run, or the folder it was written to.
        path: the path of the file; by default `report.html` in the folder.
        figures: whether to draw figures, which needs matplotlib.

    Returns:
        The path.

    Raises:
        ValueError: the folder holds no run, or one that has not finished.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from ntk_equiv import planned_runs, planning
        >>> x = np.random.default_rng(0).normal(size=(20, 2))
        >>> y = np.linalg.norm(x, axis=1)
        >>> plan = planning.plan(x, y, group="C4", action="matrix", arch="mlp:relu:1", times=[10], samples=2000)
        >>> run = planned_runs.train(plan, x, y, members=2, epochs=2, batch_size=16)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     planned_runs.report(run, f"{folder}/report.html", figures=False).name
        'report.html'
    """
    from ntk_equiv.planned_runs import _report  # and matplotlib with it, if there are figures

    record = run if isinstance(run, PlannedRun) else PlannedRun.load(run)
    if path is None:
        if record.folder is None:
            fix = "The run has no folder, so say where to write the page."
            raise refusal("path", expected="given", got="nothing", fix=fix)
        path = record.folder / "report.html"
    target = file_path(path, "path")
    try:
        target.write_text(_report.run_html(record, figures=boolean(figures, "figures")), encoding="utf-8")
    except OSError as error:
        got = f"{target} ({error.strerror or error})"
        fix = "Name a file in a folder that exists and where you may write."
        raise refusal("path", expected="a file that can be written", got=got, fix=fix) from None
    return target


def load_plan(plan: Plan | str | os.PathLike[str]) -> Plan:
    """Return a plan, from its file or from the folder it was written to."""
    if isinstance(plan, Plan):
        return plan
    path = file_path(plan, "plan")
    path = path / PLAN_FILE if path.is_dir() else path
    if not path.is_file():
        fix = f"`ntk-equiv plan` writes one; relative paths start at {Path.cwd()}."
        got = f"{path}, which does not exist"
        raise refusal("plan", expected="a plan or its folder", got=got, fix=fix, kind=FileNotFoundError)
    try:
        return Plan.load(path)
    except ValueError as error:
        raise refusal("plan", expected="a plan or its folder", got=f"{path}", fix=str(error)) from None


def _whole_settings(
    plan: Plan, members: int | None, epochs: int, batch_size: int, patience: int, max_test_points: int
) -> dict[str, int]:
    given = {
        "members": plan.settings["members"] if members is None else members,
        "epochs": epochs,
        "batch_size": batch_size,
        "patience": patience,
        "max_test_points": max_test_points,
    }
    return {name: positive_integer(value, name) for name, value in given.items()}


def _check_between(value: Scalar, argument: str, fix: str) -> float:
    value = real_number(value, argument)
    if not 0 < value < 1:
        raise refusal(argument, expected="between 0 and 1, both excluded", got=value, fix=fix)
    return value


def _split_validation(n: int, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return which training samples members learn from, and which ones decide when to stop."""
    if n < 2:
        fix = "One of them decides when to stop."
        raise refusal("data", expected="with two training samples or more", got=n, fix=fix)
    # Another stream than that of the test samples, which the seed of the plan decides.
    order = np.random.default_rng([seed, 1]).permutation(n)
    count = min(n - 1, max(1, round(fraction * n)))
    return np.sort(order[count:]), np.sort(order[:count])


def _begin_folder(folder: str | os.PathLike[str], plan: Plan, settings: dict[str, Any]) -> Path:
    """Return the folder of a run, marked as not finished; refuse that of another run."""
    path = file_path(folder, "folder")
    fix = "Name another folder, or remove this one."
    there = read_run_file(path)
    if there is None and path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise refusal("folder", expected="new, empty, or that of this run", got=str(path), fix=fix)
    if there is not None:
        others = _differences(load_plan(path), plan)
        if others:
            raise refusal("folder", expected="that of a run of this plan", got=f"{path} with {others}", fix=fix)
        before = there["settings"]
        changed = [name for name, value in settings.items() if before.get(name) != value]
        # More epochs extend a run.
        if changed == ["epochs"] and before["epochs"] < settings["epochs"]:
            changed = []
        if changed:
            got = f"{path} with {', '.join(f'{name} {before.get(name)}, not {settings[name]}' for name in changed)}"
            raise refusal("folder", expected="that of a run with these settings", got=got, fix=fix)
    try:
        path.mkdir(parents=True, exist_ok=True)
        plan.save(path / PLAN_FILE)
        write_run_file(path, finished=False, content={"settings": settings})
    except OSError as error:
        got, fix = f"{path} ({error.strerror or error})", "Name a folder in a place where you may write."
        raise refusal("folder", expected="one that can be written to", got=got, fix=fix) from None
    return path


def _differences(there: Plan, here: Plan) -> str:
    """Return how two plans differ, apart from when they were made; nothing if they do not."""
    # As text, because infinities are text in files.
    settings = (
        f"{name} {there.settings.get(name)}, not {value}"
        for name, value in here.settings.items()
        if str(there.settings.get(name)) != str(value)
    )
    data = ["other data"] if there.origin.get("sha256") != here.origin.get("sha256") else []
    return ", ".join([*data, *settings])


def _train_members(
    module: Any,
    data: PlannedData,
    kept: np.ndarray,
    held: np.ndarray,
    settings: dict[str, Any],
    folder: Path | None,
    progress: bool,
) -> ensembles.Run:
    # Validated on augmented samples too: what decides when to stop must not prefer one image of a sample to another.
    augmented, validation = (
        augment(jnp.asarray(data.x[part]), jnp.asarray(data.y[part]), data.rep_x, data.rep_y) for part in (kept, held)
    )
    size = min(settings["batch_size"], len(kept) * data.group.order)
    classes = data.test_labels.ndim == 1
    try:
        return ensembles.train(
            module,
            augmented,
            members=settings["members"],
            epochs=settings["epochs"],
            batch_size=size,
            loss="cross_entropy" if classes else "mse",
            label_smoothing=SMOOTHING if classes else 0.0,
            optimizer=ensembles.adam_by_epoch(settings["learning_rate"], module, augmented, batch_size=size),
            validation=validation,
            early_stopping=ensembles.EarlyStopping(settings["patience"]),
            key=jax.random.key(settings["seed"]),
            checkpoint=None if folder is None else folder / CHECKPOINTS,
            resume=folder is not None,
            progress=progress,
        )
    except ValueError as error:
        if getattr(error, "argument", None) != "checkpoint":
            raise
        # Plan and settings are the same, so the network is another one than before.
        fix = f"Name another folder, or remove this one. In detail: {error}"
        got = f"{folder} with a run of something else"
        raise refusal("folder", expected="that of this very run", got=got, fix=fix) from None


def _measure(
    plan: Plan,
    data: PlannedData,
    held: np.ndarray,
    trained: ensembles.Run,
    settings: dict[str, Any],
    command: str | None,
) -> PlannedRun:
    """Predict the orbits of test samples, and the validation samples, with all members."""
    test, order = jnp.asarray(data.x_test), data.group.order
    moved = np.asarray(data.rep_x.orbit(test)).reshape(-1, *test.shape[1:])
    outputs = data.units.restore(trained.predict(moved))
    return PlannedRun(
        plan=plan,
        settings=settings,
        outputs=outputs.reshape(trained.members, order, len(test), -1),
        labels=data.test_labels,
        validation_outputs=data.units.restore(trained.predict(data.x[held])),
        validation_labels=data.labels_of(held),
        samples=data.raw_test,
        index=data.index,
        actions=data.actions,
        identity=int(data.group.identity),
        steps=np.asarray(trained.member_steps),
        history=trained.history,
        units=data.units,
        versions=planning.versions(),
        origin={
            "data": plan.origin.get("data"),
            "sha256": plan.origin.get("sha256"),
            "date": datetime.datetime.now().astimezone().isoformat(" ", "seconds"),
            "command": command,
        },
        ensemble=trained,
    )
