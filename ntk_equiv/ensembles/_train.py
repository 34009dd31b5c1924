"""Training an ensemble, and the ensemble before training."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from ntk_equiv._check import (
    boolean,
    file_path,
    function,
    instance,
    is_number,
    positive_integer,
    random_key,
    refusal,
    samples_in,
)
from ntk_equiv._losses import ClassWeights, LossFn
from ntk_equiv._typing import Inputs, Scalar
from ntk_equiv.ensembles._batches import Batches, TrainingSet
from ntk_equiv.ensembles._checkpoint import open_folder
from ntk_equiv.ensembles._history import History
from ntk_equiv.ensembles._inputs import check_inputs, input_specs, parameter_specs
from ntk_equiv.ensembles._layout import Layout, choose_layout
from ntk_equiv.ensembles._members import initial_variables, key_numbers, prepare_batches, prepare_task
from ntk_equiv.ensembles._models import Module, as_model, check_has_parameters
from ntk_equiv.ensembles._run import Run
from ntk_equiv.ensembles._settings import Settings, key_entry, settings_of_training
from ntk_equiv.ensembles._trainer import Callback, Trainer, Watch, forward_pass
from ntk_equiv.ensembles._validation import EarlyStopping, MetricFn, Validation, ValidationSet, check_validation

CHECKPOINTS_IN_A_RUN = 10


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
    class_weights: ClassWeights | None = None,
    label_smoothing: float = 0.0,
    batch_size: int | None = None,
    augmentation: str = "full",
    data_on: str = "auto",
    validation: ValidationSet | None = None,
    validate_every: int | None = None,
    metrics: Mapping[str, MetricFn] | None = None,
    early_stopping: EarlyStopping | None = None,
    callbacks: Callback | Sequence[Callback] = (),
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
        train: an augmented set, a pair `(x, y)`, or a `BatchStream`. Samples may be in memory, in arrays that are
            mapped to files (`np.load(file, mmap_mode="r")`), or behind any object with a length and an index. Labels
            are read into memory.
        members: how many members to train.
        optimizer: an optimizer of optax.
        key: a JAX random key.
        steps: how many steps of the optimizer; pass either this or `epochs`.
        epochs: how often to go through the data. For a network with a state, such as running statistics, an epoch in
            batches ends before a batch that would be incomplete.
        loss: "mse", ½ (f − y)²; "cross_entropy" for classes; or a function of (outputs, y) that returns one loss per
            sample.
        reduction: "mean", over all entries of y (of the batch), or "sum". The default of theory is "sum".
        class_weights: for "cross_entropy": a weight for each class, 0 or more; or "balanced", n / (K n_c) for a class
            with n_c of n samples in K classes. The mean divides by the sum of the weights of the samples.
        label_smoothing: for "cross_entropy": the part ε in [0, 1) of each label that is spread evenly over all K
            classes, (1 − ε) y + ε/K.
        batch_size: samples in a step; by default all of them.
        augmentation: for an augmented set: "full", every base sample under every element in every epoch; or "random",
            every base sample under one element of the whole group, which each member draws anew in each epoch. In
            batches, samples are moved when they are needed.
        data_on: "device" puts all samples on each device; "host" leaves them where they are, and puts the batches of
            a step on the devices; "auto" takes the host for batches of data that would take more than a quarter of the
            memory that is free. The result is the same.
        validation: a pair `(x, y)`, a labelled set or an augmented set, on which members and their ensemble are
            measured: before training, after each epoch (about 100 times if an epoch is one step) and at the end. What
            is measured is their loss, and the accuracy of classes or the mean square error of numbers. Results are in
            `run.history`. The ensemble averages probabilities for "cross_entropy", and outputs for other losses.
        validate_every: validate after so many steps, instead of each epoch.
        metrics: more to measure on the validation set: by names functions of predictions [members, n, out] and y that
            return one value for each member, or one for all.
        early_stopping: when to stop members, each by its own loss on the validation set; they keep their parameters
            while the others go on.
        callbacks: a function, or several, of an `Event`, called after each validation, record and checkpoint. If one
            returns True, the run ends there, and is returned as usual.
        record: for each name inputs, whose predictions [members, n, out] are recorded, or a pair of inputs and a
            function of these predictions, whose result is recorded.
        record_at: after how many steps to record; by default at the end. See `log_steps`.
        layout: "map" trains one member at a time on each device, "vmap" chunks of them; "auto" chooses by device and
            size of the network.
        chunk: members in a chunk.
        devices: the devices to use; by default all of them, of all processes.
        progress: whether to show a bar with the time left and the loss.
        checkpoint: a folder to which the state of the run is written, while training goes on; it must be new or empty,
            unless `resume` is set.
        checkpoint_every: after how many steps to write; by default ten times in a run.
        resume: continue the run in the folder, if there is one. The result is the same to the last bit. If `steps` or
            `epochs` are more than those of the run, they extend it.

    Returns:
        The run, with `predict`, `mean`, `subset`, `bootstrap`, `save` and all that was measured and recorded.

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
        class_weights=class_weights,
        label_smoothing=label_smoothing,
        batch_size=batch_size,
        augmentation=augmentation,
        data_on=data_on,
        key_impl=generator,
    )
    total = _number_of_steps(steps, epochs, task.batches)
    recorded, record_steps = _check_record(record, record_at, total)
    forward = forward_pass(task, data)
    for name, (x, of_predictions) in recorded.items():
        # Inputs that do not fit are found now, and not after hours of training.
        x = check_inputs(x, "record", input_specs(data[0]), task.model, forward[1], forward[3])
        recorded[name] = x, of_predictions
    held_back = None
    if validation is not None:
        held_back = check_validation(validation, metrics, task, data, forward[1], forward[3])
    _check_validation_settings(held_back, validate_every, metrics, early_stopping)
    watch = Watch(recorded, held_back, validate_every, early_stopping, _check_callbacks(callbacks))
    task = dataclasses.replace(task, stops_early=early_stopping is not None)
    if checkpoint is not None:
        file_path(checkpoint, "checkpoint")
    if boolean(resume, "resume") and checkpoint is None:
        raise refusal("checkpoint", expected="a folder, to resume", got=None, fix="Name the folder of the run.")
    where = choose_layout(*forward, members=members, layout=layout, chunk=chunk, devices=devices)
    settings = settings_of_training(
        task,
        data,
        members=members,
        steps=total,
        key=numbers,
        record=recorded,
        record_steps=record_steps,
        validation=None if held_back is None else held_back.entry(validate_every),
        early_stopping=None if early_stopping is None else early_stopping.entry(),
    )
    if checkpoint is None:
        return Trainer(task, where, settings, data, numbers, watch).run(progress=progress)
    every = max(1, total // CHECKPOINTS_IN_A_RUN) if checkpoint_every is None else checkpoint_every
    every = positive_integer(every, "checkpoint_every")
    checkpoints = open_folder(checkpoint, resume=resume)
    try:
        settings = settings.with_first_step(task, data)
        trainer = Trainer(task, where, settings, data, numbers, watch)
        trainer.write_to(checkpoints, every)
        return trainer.run(progress=progress)
    finally:
        checkpoints.close()


def by_epoch(
    schedule: Callable[[Any], Any],
    module: Module,
    train: TrainingSet,
    /,
    *,
    batch_size: int | None = None,
    augmentation: str = "full",
) -> Callable[[Any], Any]:
    """Return a schedule of steps, as optimizers take it, from a schedule of epochs.

    The value is constant in an epoch: that of `schedule(epoch)`, where epochs are counted from 0.

    Args:
        schedule: a function of the number of an epoch, such as a schedule of optax.
        module: as for `train`.
        train: as for `train`.
        batch_size: as for `train`.
        augmentation: as for `train`.

    Example:
        >>> import jax.numpy as jnp, optax
        >>> from ntk_equiv import ensembles
        >>> net, data = ensembles.mlp((8,), 1), (jnp.ones((10, 3)), jnp.ones((10, 1)))
        >>> halved = optax.exponential_decay(1.0, transition_steps=1, decay_rate=0.5)         # in every epoch
        >>> rate = ensembles.by_epoch(halved, net, data, batch_size=4)                        # of three steps
        >>> [float(rate(step)) for step in range(7)]
        [1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25]
        >>> optimizer = optax.adam(rate)
    """
    function(schedule, "schedule", fix="Pass a function of the number of an epoch, such as a schedule of optax.")
    batches, *_ = prepare_batches(as_model(module), train, batch_size, augmentation)
    steps = batches.per_epoch
    return lambda step: schedule(step // steps)


def adam_by_epoch(
    rate: Scalar,
    module: Module,
    train: TrainingSet,
    /,
    *,
    batch_size: int | None = None,
    augmentation: str = "full",
    factor: Scalar = 0.3,
    epochs: int = 10,
) -> optax.GradientTransformation:
    """Return Adam with weight decay, at a rate that falls by a factor over so many epochs.

    The history of a run with it has the learning rate.

    Args:
        rate: the learning rate of the first epoch.
        module: as for `train`.
        train: as for `train`.
        batch_size: as for `train`.
        augmentation: as for `train`.
        factor: what the rate is multiplied by over `epochs`, between 0 and 1.
        epochs: how many epochs that takes.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from ntk_equiv import ensembles
        >>> net, data = ensembles.mlp((8,), 1), (jnp.ones((8, 3)), jnp.ones((8, 1)))
        >>> adam = ensembles.adam_by_epoch(0.01, net, data, batch_size=4, factor=0.25, epochs=2)
        >>> run = ensembles.train(net, data, members=1, epochs=3, batch_size=4, optimizer=adam, key=jax.random.key(0))
        >>> print(round(run.history.rates[-1], 6))
        0.0025
    """
    for value, argument, most in ((rate, "rate", float("inf")), (factor, "factor", 1.0)):
        if not is_number(value) or not 0 < float(value) <= most:
            fix = "Rates are positive, and fall or stay as they are."
            expected = "a positive number" if argument == "rate" else "above 0, at most 1"
            raise refusal(argument, expected=expected, got=repr(value), fix=fix)
    falling = optax.exponential_decay(float(rate), positive_integer(epochs, "epochs"), float(factor))
    schedule = by_epoch(falling, module, train, batch_size=batch_size, augmentation=augmentation)
    return optax.inject_hyperparams(optax.adamw)(learning_rate=schedule)


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
    check_has_parameters(params)
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


def _check_record(record: Any, record_at: Any, steps: int) -> tuple[dict[str, tuple], list[int]]:
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


def _check_validation_settings(validation: Validation | None, every: Any, metrics: Any, early_stopping: Any) -> None:
    """Refuse settings of validation that are wrong, or that are given without a validation set."""
    given = {"validate_every": every, "metrics": metrics, "early_stopping": early_stopping}
    for argument, value in given.items():
        if value is not None and validation is None:
            fix = "Pass `validation=(x, y)` with samples that are not used for training."
            raise refusal("validation", expected=f"given with `{argument}`", got=None, fix=fix)
    if every is not None:
        positive_integer(every, "validate_every")
    if early_stopping is not None:
        fix = "Pass `ensembles.EarlyStopping(patience=5)`, say."
        instance(early_stopping, EarlyStopping, "early_stopping", expected="an `EarlyStopping`", fix=fix)


def _check_callbacks(callbacks: Any) -> tuple[Callback, ...]:
    listed = (callbacks,) if callable(callbacks) else callbacks
    fix = "Pass a function of an `Event`, or a list of such functions."
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise refusal("callbacks", expected="functions", got=repr(callbacks), fix=fix, kind=TypeError)
    return tuple(function(callback, "callbacks", fix=fix) for callback in listed)
