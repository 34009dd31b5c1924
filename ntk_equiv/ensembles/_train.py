"""Training an ensemble, and the ensemble before training.

A run is divided into stretches of steps. After a stretch losses are noted, predictions recorded or checkpoints written.
"""

import dataclasses
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tqdm.auto import tqdm

from ntk_equiv._check import (
    boolean,
    file_path,
    instance,
    positive_integer,
    random_key,
    refusal,
    samples_in,
)
from ntk_equiv._typing import Inputs
from ntk_equiv.ensembles._batches import Batches, Data, TrainingSet
from ntk_equiv.ensembles._checkpoint import (
    Checkpoints,
    check_same_settings,
    leaves_by_number,
    open_folder,
    restore_structure,
)
from ntk_equiv.ensembles._inputs import check_inputs, input_specs, parameter_specs
from ntk_equiv.ensembles._layout import Layout, activation_bytes, choose_layout
from ntk_equiv.ensembles._losses import LossFn
from ntk_equiv.ensembles._members import (
    NEVER,
    Member,
    Task,
    advance,
    initial_members,
    initial_variables,
    key_numbers,
    predict,
    prepare_task,
    samples_at_a_time,
)
from ntk_equiv.ensembles._models import Module, Params, State, as_model
from ntk_equiv.ensembles._run import History, Run
from ntk_equiv.ensembles._settings import Record, Settings, TrainingSettings, key_entry, settings_of_training

CHECKPOINTS_IN_A_RUN = 10
# A curve of losses has about 100 values, at least 10 steps apart.
VALUES_OF_A_CURVE, STEPS_BETWEEN = 100, 10
# The parts of the members' state that are stored; their index follows from their place.
STORED_PARTS = ("params", "state", "optimizer", "loss", "failed")


def train(
    module: Module,
    train: TrainingSet,
    /,
    *,
    members: int,
    optimizer: optax.GradientTransformation | optax.MultiSteps,
    key: jax.Array,
    steps: int | None = None,
    epochs: int | None = None,
    loss: str | LossFn = "mse",
    reduction: str = "mean",
    batch_size: int | None = None,
    augmentation: str = "full",
    record: Mapping[str, Any] | None = None,
    record_at: Iterable[int] | None = None,
    layout: str = "auto",
    chunk: int | None = None,
    devices: Sequence[jax.Device] | np.ndarray | None = None,
    progress: bool = False,
    checkpoint: Path | str | None = None,
    checkpoint_every: int | None = None,
    resume: bool = False,
) -> Run:
    """Train an ensemble of members that differ only in their random keys.

    The key of a member depends on its number, and neither on how many members there are nor on devices or chunks. If
    the loss of a member is no longer finite, a warning says so, and the others continue.

    Args:
        module: a Linen module, an NNX factory `rngs -> module`, a pair `(init, apply)` of `init(key, x) -> params` and
            `apply(params, x) -> outputs`, or a stax triple.
        train: an augmented set, or a pair `(x, y)`.
        members: how many members to train.
        optimizer: an optimizer of optax.
        key: a JAX random key.
        steps: how many steps of the optimizer; pass either this or `epochs`.
        epochs: how often to go through the data. For a network with a state, such as running statistics, an epoch in
            batches ends before a batch that would be incomplete.
        loss: "mse", ½ (f − y)²; "cross_entropy" for classes; or a function of (outputs, y) that returns one loss per
            sample.
        reduction: "mean", over all entries of y (of the batch), or "sum". The default of theory is "sum".
        batch_size: samples in a step; by default all of them.
        augmentation: for an augmented set: "full", every base sample under every element in every epoch; or "random",
            every base sample under one element of the whole group, which each member draws anew in each epoch. In
            batches, samples are moved when they are needed.
        record: for each name inputs, whose predictions [members, n, out] are recorded, or a pair of inputs and a
            function of these predictions, whose result is recorded.
        record_at: after how many steps to record; by default at the end. See `log_steps`.
        layout: "map" trains one member at a time on each device, "vmap" chunks of them; "auto" chooses by device and
            size of the network.
        chunk: members in a chunk.
        devices: the devices to use; by default all of them, of all processes.
        progress: whether to show a bar with the time left and the loss.
        checkpoint: a folder to which the state of the run is written; it must be new or empty, unless `resume` is set.
        checkpoint_every: after how many steps to write; by default ten times in a run.
        resume: continue the run in the folder, if there is one. The result is the same to the last bit.

    Returns:
        The run, with `predict`, `mean`, `subset`, `bootstrap`, `save` and everything that was recorded.

    Raises:
        ValueError: settings do not fit together, or the checkpoint belongs to a run with other settings.
        FileExistsError: the folder is not empty, and `resume` is not set.
        BlockingIOError: another run writes to the folder; the message names its process.
        OSError: a checkpoint could not be written; the one before is still there.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> from ntk_equiv import augment, ensembles, groups, reps, stax
        >>> net = stax.serial(stax.Dense(32, b_std=0.1), stax.Relu(), stax.Dense(1))
        >>> data = augment(jnp.array([[1., 2.]]), jnp.array([[1.]]), reps.regular(groups.cyclic(2)))
        >>> run = ensembles.train(net, data, members=4, steps=100, optimizer=optax.sgd(0.5), key=jax.random.key(0))
        >>> run
        <ensemble of 4 members after 100 steps>
        >>> print(run.predict(data.x).shape, run.mean(data.x).round(2).ravel())
        (4, 2, 1) [1. 1.]
    """
    members = positive_integer(members, "members")
    boolean(progress, "progress")
    numbers, generator = key_numbers(random_key(key))
    task, data = prepare_task(
        module,
        train,
        optimizer=optimizer,
        loss=loss,
        reduction=reduction,
        batch_size=batch_size,
        augmentation=augmentation,
        key_impl=generator,
    )
    total = _number_of_steps(steps, epochs, task.batches)
    recorded, record_steps = _check_record(record, record_at, total)
    forward = _forward_pass(task, data)
    for x, _ in recorded.values():  # inputs that do not fit are found now, and not after hours of training
        check_inputs(x, "record", input_specs(data[0]), task.model, forward[1], forward[3])
    if checkpoint is not None:
        file_path(checkpoint, "checkpoint")
    if boolean(resume, "resume") and checkpoint is None:
        raise refusal("checkpoint", expected="a folder, to resume", got=None, fix="Name the folder of the run.")
    where = choose_layout(*forward, members=members, layout=layout, chunk=chunk, devices=devices)
    settings = settings_of_training(
        task, data, members=members, steps=total, key=numbers, record=recorded, record_steps=record_steps
    )
    if checkpoint is None:
        return _Trainer(task, where, settings, data, numbers, recorded).run(progress=progress)
    every = max(1, total // CHECKPOINTS_IN_A_RUN) if checkpoint_every is None else checkpoint_every
    every = positive_integer(every, "checkpoint_every")
    checkpoints = open_folder(checkpoint, resume=resume)
    try:
        settings = settings.with_first_step(task, data)
        trainer = _Trainer(task, where, settings, data, numbers, recorded)
        trainer.write_to(checkpoints, every)
        return trainer.run(progress=progress)
    finally:
        checkpoints.close()


def expected_layout(
    module: Module,
    x: Inputs,
    /,
    *,
    members: int,
    layout: str = "auto",
    chunk: int | None = None,
    devices: Sequence[jax.Device] | np.ndarray | None = None,
) -> Layout:
    """Return how `train`, in steps with such inputs, or `untrained` would lay out members over devices.

    Args:
        module: as for `train`.
        x: a batch of inputs, or their shapes as `jax.ShapeDtypeStruct`.
        members: how many members there are.
        layout: as for `train`.
        chunk: as for `train`.
        devices: as for `train`.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import ensembles
        >>> ensembles.expected_layout(ensembles.mlp((512,), 1), jnp.ones((128, 25)), members=1).members
        1
    """
    model, members = as_model(module), positive_integer(members, "members")
    samples_in(x, "x")
    params, state = model.shapes_of_variables(x)
    return choose_layout(model.apply, params, x, state, members=members, layout=layout, chunk=chunk, devices=devices)


def untrained(
    module: Module,
    x: Inputs,
    /,
    *,
    members: int,
    key: jax.Array,
    layout: str = "auto",
    chunk: int | None = None,
    devices: Sequence[jax.Device] | np.ndarray | None = None,
) -> Run:
    """Return the ensemble with which `train` begins, given the same module and key: a run of 0 steps.

    Its parameters are `run.params`, arrays [members, ...]. One member is the function `run.model.apply(params, x)`,
    which may be differentiated with respect to parameters and inputs. A network with a state, in `run.state`, takes it
    as a third argument.

    Args:
        module: as for `train`.
        x: inputs [n, ...] that the networks are made for; only their shapes matter.
        members: how many members; those of a smaller ensemble are the first ones of a larger ensemble.
        key: a JAX random key.
        layout: as for `train`.
        chunk: as for `train`.
        devices: as for `train`.

    Returns:
        The run, with `predict` and all the rest.

    Raises:
        ValueError: there are no inputs.
        TypeError: `module` is not a network, or the inputs are not arrays.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> from ntk_equiv import ensembles
        >>> line = lambda key, x: jax.random.uniform(key, (2, 1)), lambda w, x: x @ w[:1] + w[1:]
        >>> data, settings = (jnp.eye(1), jnp.eye(1)), {"members": 3, "key": jax.random.key(0)}
        >>> before = ensembles.untrained(line, data[0], **settings)
        >>> before
        <ensemble of 3 members after 0 steps>
        >>> still = ensembles.train(line, data, steps=1, optimizer=optax.sgd(0.0), **settings)
        >>> bool(jnp.array_equal(before.predict(data[0]), still.predict(data[0])))
        True
    """
    model, members = as_model(module), positive_integer(members, "members")
    numbers, generator = key_numbers(random_key(key))
    if not samples_in(x, "x"):
        raise refusal("x", expected="at least one sample", got="none", fix="Pass inputs [n, ...].")
    sample = jax.tree.map(lambda leaf: np.asarray(leaf[:1]), x)
    params, state = model.shapes_of_variables(sample)
    where = choose_layout(model.apply, params, x, state, members=members, layout=layout, chunk=chunk, devices=devices)
    settings = Settings(
        members=members,
        steps=0,
        key=key_entry(numbers, generator),
        parameters=parameter_specs(params),
        inputs=input_specs(sample),
        state=parameter_specs(state),
    )
    shared = where.share((numbers, sample))
    variables = initial_variables(model, where, generator, where.deal(np.arange(members, dtype=np.int32)), *shared)
    return Run(model, members, 0, settings, where, History(), {}, *variables)


class _Trainer:
    """A run under way: its members, how many steps they have taken, and what was recorded.

    The state of members is donated to each stretch of steps, so this object changes while it trains.
    """

    def __init__(
        self, task: Task, layout: Layout, settings: TrainingSettings, data: Data, key: np.ndarray, record: Record
    ) -> None:
        self.task, self.layout, self.settings, self.record = task, layout, settings, record
        self.record_steps = set(settings.record[1])
        self.data, self.key = layout.share(data), layout.share(key)
        self.history, self.step = History(list(record)), 0
        self.checkpoints: Checkpoints | None = None
        self.every = 0
        indices = layout.deal(np.arange(layout.members, dtype=np.int32))
        sample = layout.share(jax.tree.map(lambda leaf: leaf[:1], data[0]))
        variables = initial_variables(task.model, layout, task.key_impl, indices, self.key, sample)
        self.members: Member = initial_members(task, layout, indices, variables)
        self.reported: set[int] = set()
        bytes_each = activation_bytes(*_forward_pass(task, data)) // _samples_in_step(task)
        self.samples_at_a_time = samples_at_a_time(layout.chunk, bytes_each)

    def write_to(self, checkpoints: Checkpoints, every: int) -> None:
        """Write checkpoints from now on, and begin with the last one that is there."""
        self.checkpoints, self.every = checkpoints, every
        if checkpoints.latest is None:
            return
        arrays, text = checkpoints.load()
        check_same_settings(self.settings, text["configuration"], checkpoints.folder)
        here = {part: getattr(self.members, part) for part in STORED_PARTS}
        stored = self.layout.deal({part: restore_structure(here[part], arrays.get(part)) for part in STORED_PARTS})
        self.members = dataclasses.replace(self.members, **jax.tree.map(_as_key_again, stored, here))
        self.history.restore(arrays.get("history"))
        self.step = checkpoints.latest

    def run(self, *, progress: bool) -> Run:
        """Train to the end."""
        total = self.settings.steps
        noted = _curve_steps(total)
        saved = set() if self.checkpoints is None else {*range(self.every, total, self.every), total}
        stops = sorted(stop for stop in noted | saved | self.record_steps if stop > self.step)
        if self.step == 0 and 0 in self.record_steps:
            self._record_predictions()
        shows = progress and jax.process_index() == 0
        with tqdm(total=total, initial=self.step, unit="step", disable=not shows) as bar:
            for stop in stops:
                self.members = advance(self.task, self.layout, self.members, self.key, self.data, self.step, stop)
                bar.update(stop - self.step)
                self.step = stop
                if stop in noted:
                    bar.set_postfix(loss=f"{self._note_losses():.3g}")
                if stop in self.record_steps:
                    self._record_predictions()
                if stop in saved:
                    self._save()
        failed = self._report_failures()
        variables, count = self._variables, self.layout.members
        return Run(self.task.model, count, total, self.settings, self.layout, self.history, failed, *variables)

    @property
    def _variables(self) -> tuple[Params, State]:
        return self.members.params, self.members.state

    def _note_losses(self) -> float:
        """Note the losses, warn of members that failed, and return the mean loss of the others."""
        losses = self.layout.collect(self.members.loss)
        self.history.steps.append(self.step)
        self.history.losses.append(losses)
        self._report_failures()
        finite = losses[np.isfinite(losses)]
        return float(finite.mean()) if finite.size else float("nan")

    def _report_failures(self) -> dict[int, int]:
        """Warn of members that failed since the last report; return all failed members with their steps."""
        steps = self.layout.collect(self.members.failed)
        failed = {member: int(step) for member, step in enumerate(steps) if step != NEVER}
        new = sorted(failed.keys() - self.reported)
        if new:
            named = ", ".join(f"{member} (step {failed[member]})" for member in new[:10])
            more = f" and {len(new) - 10} more" if len(new) > 10 else ""
            message = f"loss or parameters are no longer finite for member {named}{more}; the others go on. "
            fix = "A smaller learning rate may help."
            if all(failed[member] == 0 for member in new):
                fix = "Their very first outputs or losses are not: look at inputs, labels and initial parameters."
            # The caller of `train` is five frames up.
            warnings.warn(message + fix, RuntimeWarning, stacklevel=5)
            self.reported |= failed.keys()
        return failed

    def _record_predictions(self) -> None:
        """Record predictions, or the results of functions of them."""
        self.history.record_steps.append(self.step)
        for name, (x, function) in self.record.items():
            outputs = predict(self.task.model, self.layout, self._variables, x, self.samples_at_a_time)
            result = outputs if function is None else function(jnp.asarray(outputs))
            self.history.records[name].append(np.asarray(result))

    def _save(self) -> None:
        assert self.checkpoints is not None
        state = self.layout.collect(jax.tree.map(_key_as_numbers, self.members))
        parts = {part: leaves_by_number(getattr(state, part)) for part in STORED_PARTS}
        arrays = {**parts, "history": self.history.stored()}
        names = list(self.history.records)
        text = {"configuration": dict(self.settings), "members": self.layout.members, "records": names}
        self.checkpoints.save(self.step, {name: part for name, part in arrays.items() if part}, text)


def _key_as_numbers(leaf: jax.Array) -> jax.Array:
    """Return an array that can be stored: some optimizers have random keys in their state."""
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


def _as_key_again(stored: jax.Array, leaf: jax.Array) -> jax.Array:
    """Return a stored array, as a random key if `leaf` is one."""
    if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return stored
    return jax.random.wrap_key_data(stored, impl=jax.random.key_impl(leaf))


def _check_record(record: Any, record_at: Any, steps: int) -> tuple[Record, list[int]]:
    """Return what to record and when.

    Args:
        record: for each name inputs, or a pair of inputs and a function of the predictions.
        record_at: numbers of steps; by default the last one.
        steps: steps of the run.
    """
    checked = {}
    fix = 'Pass a dictionary, such as {"test": x_test} or {"accuracy": (x_test, function)}.'
    if record is not None:
        instance(record, Mapping, "record", expected="a mapping from names to inputs", fix=fix)
    for name, what in sorted((record or {}).items()):
        has_function = type(what) is tuple and len(what) == 2 and callable(what[1])
        checked[str(name)] = (what[0], what[1]) if has_function else (what, None)
    if record_at is not None and (not isinstance(record_at, Iterable) or isinstance(record_at, str)):
        raise refusal("record_at", expected="a list of steps", got=repr(record_at), fix="See `log_steps`.")
    at = sorted({steps} if record_at is None else {int(step) for step in record_at})
    if at and not (at[0] >= 0 and at[-1] <= steps):
        fix = "0 is before the first step."
        raise refusal("record_at", expected=f"steps from 0 to {steps}", got=at, fix=fix)
    return checked, at if checked else []


def _number_of_steps(steps: int | None, epochs: int | None, batches: Batches) -> int:
    if (steps is None) == (epochs is None):
        got = "neither" if steps is None else "both"
        fix = "Say how many steps, or how many times to go through the data."
        raise refusal("steps, epochs", expected="given one of them", got=got, fix=fix)
    if steps is not None:
        return positive_integer(steps, "steps")
    return positive_integer(epochs, "epochs") * batches.per_epoch


def _curve_steps(steps: int) -> set[int]:
    """Return the steps at which losses are noted: at every percent of a run (of more than a few steps), and its end."""
    every = max(STEPS_BETWEEN, steps // VALUES_OF_A_CURVE)
    return {*range(every, steps + 1, every), steps}


def _forward_pass(task: Task, data: Data) -> tuple:
    """Return the function that one member evaluates in a step, with the shapes of its arguments."""
    size = _samples_in_step(task)
    x = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((size, *leaf.shape[1:]), leaf.dtype), data[0])
    params, state = task.model.shapes_of_variables(x)
    return task.model.apply, params, x, state


def _samples_in_step(task: Task) -> int:
    return task.batches.batch_size or task.batches.size
