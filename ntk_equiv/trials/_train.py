"""From a plan and its data to a trained ensemble."""

import dataclasses
import datetime
import importlib
import os
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ntk_equiv import ensembles, planning
from ntk_equiv._check import file_path, positive_integer, real_number, refusal
from ntk_equiv._typing import Scalar
from ntk_equiv.orbits import augment
from ntk_equiv.planning import Plan
from ntk_equiv.reps import Representation
from ntk_equiv.trials._trial import Trial

NETWORKS = ("cnn", "mlp")
WIDTHS = (256, 256)
SMOOTHING = 0.05
# How the learning rate falls: by so much in so many epochs.
FACTOR, EPOCHS = 0.3, 10


def train(
    plan: Plan | str | os.PathLike[str],
    x: ArrayLike,
    y: ArrayLike,
    /,
    *,
    x_test: ArrayLike | None = None,
    y_test: ArrayLike | None = None,
    network: Any = "cnn",
    members: int | None = None,
    epochs: int = 40,
    batch_size: int = 32,
    learning_rate: Scalar = 3e-3,
    validation: Scalar = 0.2,
    patience: int = 6,
    max_test_points: int = 1000,
    seed: int | None = None,
    class_names: Any = None,
    folder: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> Trial:
    """Train the ensemble that was planned, on the data of the plan, and predict the orbits of test samples.

    Group, actions, members, and which samples are held out for testing, are those of the plan. All training samples are
    used, also where the plan used some of them. Images are brought to mean 0 and variance 1 over all pixels of the
    training samples, and other samples to mean square 1, which no group notices. Classes are trained with the
    cross-entropy and label smoothing 0.05, numbers with the squared error, by Adam at a falling rate. Each member stops
    when its own loss on validation samples no longer improves, and keeps its best parameters.

    Args:
        plan: a plan, its file, or the folder it was written to. Group and actions of a plan must have names.
        x: training samples, as for `planning.plan`.
        y: their labels.
        x_test: test samples; unless given, the same samples are held out as by the plan.
        y_test: their labels.
        network: "cnn", "mlp", "module:factory", or a network that `ensembles.train` takes; see `named_module`.
        members: how many members; those of the plan unless given.
        epochs: how often to go through the augmented training samples, at most.
        batch_size: samples in a step.
        learning_rate: that of the first epoch; it falls by 0.3 in ten epochs.
        validation: the fraction of the training samples that decides when to stop.
        patience: epochs without an improvement after which a member stops.
        max_test_points: the most test samples; if there are more, so many are drawn at random.
        seed: that of members and of the validation set; the plan's unless given.
        class_names: as for `planning.plan`.
        folder: where checkpoints and the trial are written. A run that was interrupted continues there.
        progress: whether to show a bar.

    Returns:
        The trial.

    Raises:
        ValueError: the data are not those of the plan, or a setting is out of range.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv import planning, trials
        >>> x = np.random.default_rng(0).normal(size=(20, 2))
        >>> y = np.linalg.norm(x, axis=1)
        >>> plan = planning.plan(x, y, group="C4", action="matrix", arch="mlp:relu:1", times=[10], samples=2000)
        >>> trial = trials.train(plan, x, y, network="mlp", members=2, epochs=2, batch_size=16)
        >>> trial
        <trial of 2 members on 4 test samples under cyclic(4)>
    """
    plan = load_plan(plan)
    settings = _check_settings(
        plan, members, epochs, batch_size, learning_rate, validation, patience, max_test_points, seed
    )
    folder = None if folder is None else file_path(folder, "folder")
    problem, group, rep_x, rep_y = _prepare(plan, x, y, x_test, y_test, settings, class_names)
    x_all, x_test_all = _standardize(problem.x, problem.x_test, images=problem.x.ndim == 4)
    labels, test_labels = _labels(problem, rep_y)
    rng = np.random.default_rng(settings["seed"] + 1)
    order = rng.permutation(len(x_all))
    count = min(len(x_all) - 1, max(1, round(settings["validation"] * len(x_all))))
    held, kept = np.sort(order[:count]), np.sort(order[count:])
    module = named_module(network, problem.x.shape[1:], problem.channels)
    data = augment(jnp.asarray(x_all[kept]), jnp.asarray(labels[kept]), rep_x, rep_y)
    size = min(settings["batch_size"], len(kept) * group.order)
    adam = ensembles.adam_by_epoch(
        settings["learning_rate"], module, data, batch_size=size, factor=FACTOR, epochs=EPOCHS
    )
    classes = problem.classes is not None
    run = ensembles.train(
        module,
        data,
        members=settings["members"],
        epochs=settings["epochs"],
        batch_size=size,
        loss="cross_entropy" if classes else "mse",
        label_smoothing=SMOOTHING if classes else 0.0,
        optimizer=adam,
        validation=(jnp.asarray(x_all[held]), jnp.asarray(labels[held])),
        early_stopping=ensembles.EarlyStopping(settings["patience"]),
        key=jax.random.key(settings["seed"]),
        checkpoint=None if folder is None else folder / "checkpoints",
        resume=folder is not None,
        progress=progress,
    )
    test = jnp.asarray(x_test_all)
    moved = rep_x.orbit(test)
    outputs = np.asarray(run.predict(moved.reshape(-1, *test.shape[1:])))
    outputs = outputs.reshape(run.members, group.order, len(test), -1)
    named = network if isinstance(network, str) else "a network of your own"
    trial = Trial(
        plan=plan,
        settings={**settings, "network": named, "training_samples": len(kept), "validation_samples": len(held)},
        outputs=outputs,
        labels=test_labels,
        validation_outputs=np.asarray(run.predict(x_all[held])).reshape(run.members, len(held), -1),
        validation_labels=np.asarray(labels[held]),
        samples=np.asarray(problem.x_test),
        index=problem.index,
        actions=_action_matrices(rep_y, group.order, outputs.shape[-1]),
        identity=int(group.identity),
        steps=np.asarray(run.member_steps),
        history=run.history,
        versions=planning.versions(),
        origin={"date": datetime.datetime.now().astimezone().isoformat(" ", "seconds"), "command": None},
    )
    if folder is not None:
        trial.save(folder)
    return trial


def load_plan(plan: Plan | str | os.PathLike[str]) -> Plan:
    """Return a plan, from its file or from the folder it was written to."""
    if isinstance(plan, Plan):
        return plan
    path = file_path(plan, "plan", exists=True)
    return Plan.load(path / "plan.json" if path.is_dir() else path)


def named_module(name: Any, shape: tuple[int, ...], outputs: int, /) -> Any:
    """Return the network of this name.

    Args:
        name: "cnn" is `ensembles.image_cnn`, for images. "mlp" has two hidden layers of 256. "module:factory" calls
            `factory(outputs)` of a Python file in the current folder, or of an installed module; it returns what
            `ensembles.train` takes. What is no text is returned as it is.
        shape: that of one sample.
        outputs: how many outputs it has.

    Raises:
        ValueError: there is no such network, or it does not fit the samples.

    Example:
        >>> from ntk_equiv import trials
        >>> trials.named_module("cnn", (28, 28, 3), 9).outputs
        9
    """
    if not isinstance(name, str):
        return name
    if name == "mlp":
        return ensembles.mlp(WIDTHS, outputs, b_std=0.1)
    if name == "cnn":
        if len(shape) != 3:
            fix = "Vectors need another network, such as mlp."
            raise refusal("network", expected="mlp for samples that are no images", got="cnn", fix=fix)
        return ensembles.image_cnn(outputs)
    module, colon, factory = name.partition(":")
    if not (module and colon and factory):
        fix = "Write module:factory for a network of your own."
        raise refusal("network", expected=f"{', '.join(NETWORKS)} or module:factory", got=repr(name), fix=fix)
    sys.path.insert(0, os.getcwd())
    try:
        make = getattr(importlib.import_module(module), factory)
    except (ImportError, AttributeError) as error:
        fix = "The file is searched in the current folder and among installed modules."
        raise refusal("network", expected="a function in a module", got=f"{name!r} ({error})", fix=fix) from None
    finally:
        sys.path.remove(os.getcwd())
    return make(outputs)


def _check_settings(
    plan: Plan,
    members: int | None,
    epochs: int,
    batch_size: int,
    learning_rate: Scalar,
    validation: Scalar,
    patience: int,
    max_test_points: int,
    seed: int | None,
) -> dict[str, Any]:
    whole = {
        "members": plan.settings["members"] if members is None else members,
        "epochs": epochs,
        "batch_size": batch_size,
        "patience": patience,
        "max_test_points": max_test_points,
    }
    checked: dict[str, Any] = {name: positive_integer(value, name) for name, value in whole.items()}
    for name, value in (("learning_rate", learning_rate), ("validation", validation)):
        checked[name] = real_number(value, name)
        if not 0 < checked[name] < 1:
            fix = "It is the part of the training samples that decides when to stop." * (name == "validation")
            raise refusal(name, expected="between 0 and 1", got=value, fix=fix or "Adam wants small rates, as 0.003.")
    seed = plan.settings["seed"] if seed is None else seed
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise refusal("seed", expected="0 or more", got=repr(seed), fix="Pass any whole number from 0 on.")
    return {**checked, "seed": int(seed)}


def _prepare(
    plan: Plan, x: Any, y: Any, x_test: Any, y_test: Any, settings: dict[str, Any], class_names: Any
) -> tuple[Any, Any, Representation, Representation]:
    """Return the data as the plan prepared them, with its group and actions."""
    asked = plan.settings
    images = planning.acts_on_images(asked["action"])
    own = {**asked, "max_points": None, "max_test_points": settings["max_test_points"], "dtype": "float32"}
    # The plan's own seed decides which samples are held out.
    fields = {field.name for field in dataclasses.fields(planning.Settings)}
    wanted = planning.Settings.from_arguments(**{name: value for name, value in own.items() if name in fields})
    problem = planning.prepare_problem(x, y, x_test, y_test, wanted, images=images, class_names=class_names)
    planned = plan.problem
    found = {"shape": list(problem.x.shape[1:]), "classes": None if problem.classes is None else list(problem.classes)}
    for name, value in found.items():
        if value != planned[name]:
            fix = "Train on the data for which the plan was made, or make another plan."
            raise refusal("data", expected=f"{name} {planned[name]}, as in the plan", got=value, fix=fix)
    if problem.y_test is None:
        fix = "Add y_test, or leave x_test out so that samples are held out."
        raise refusal("y_test", expected="labels of the test samples", got="nothing", fix=fix)
    group = planning.named_group(asked["group"])
    return problem, group, *planning.choose_actions(wanted, group, problem.x.shape[1:], problem.channels)


def _standardize(x: np.ndarray, x_test: np.ndarray, *, images: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return both in units of the first; from images the mean is subtracted."""
    if not images:  # a shift would not commute with the group
        size = float(np.sqrt(np.mean(x**2))) or 1.0
        return x / size, x_test / size
    mean, std = float(x.mean()), float(x.std()) or 1.0  # one of each for all channels, which the group may mix
    return (x - mean) / std, (x_test - mean) / std


def _labels(problem: Any, rep_y: Representation) -> tuple[np.ndarray, np.ndarray]:
    """Return labels for training and of test samples: classes as numbers, unless the group moves classes."""
    if problem.classes is None:
        shaped = [y if y.ndim == 2 else y[:, None] for y in (problem.y, problem.y_test)]
        return shaped[0], shaped[1]
    test = problem.y_test.argmax(axis=1)
    moves = np.abs(_action_matrices(rep_y, rep_y.group.order, problem.channels) - np.eye(problem.channels)).max() > 0
    if moves:
        return np.eye(problem.channels, dtype=np.float32)[problem.y.argmax(axis=1)], test
    return problem.y.argmax(axis=1), test


def _action_matrices(rep_y: Representation, order: int, channels: int) -> np.ndarray:
    """Return ρ_Y(g) as matrices, [order, channels, channels]."""
    moved = np.asarray(rep_y.orbit(jnp.eye(channels)))
    return moved.reshape(order, channels, channels).swapaxes(1, 2)
