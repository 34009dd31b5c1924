"""Training an ensemble: the loop over stretches of steps, between which things are written down."""

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tqdm.auto import tqdm

from ntk_equiv._check import boolean, file_path, one_of, positive_integer, refusal
from ntk_equiv.ensembles._batches import Batches, batches_of
from ntk_equiv.ensembles._checkpoint import Checkpoints, check_same, leaves, like, open_folder
from ntk_equiv.ensembles._configuration import configuration, fingerprint, first_steps
from ntk_equiv.ensembles._history import History, checked_record, curve_steps
from ntk_equiv.ensembles._inputs import check_inputs, spec
from ntk_equiv.ensembles._layout import Layout, activation_bytes, layout_of, suited
from ntk_equiv.ensembles._loop import (
    NEVER,
    Member,
    Task,
    advanced,
    created,
    initial_params,
    predicted,
    raw_key,
    samples_at_a_time,
    updated_by,
)
from ntk_equiv.ensembles._losses import LossFn, loss_of
from ntk_equiv.ensembles._model import model_of
from ntk_equiv.ensembles._run import Run

CHECKPOINTS_IN_A_RUN = 10
# What is stored of members.
PARTS = ("params", "optimizer", "loss", "failed")


def train(
    module: Any,
    train: Any,
    /,
    *,
    members: int,
    optimizer: Any,
    key: jax.Array,
    steps: int | None = None,
    epochs: int | None = None,
    loss: str | LossFn = "mse",
    reduction: str = "mean",
    batch_size: int | None = None,
    augmentation: str = "full",
    record: Mapping[str, Any] | None = None,
    record_at: Sequence[int] | None = None,
    layout: str = "auto",
    chunk: int | None = None,
    devices: Sequence[Any] | None = None,
    progress: bool = False,
    checkpoint: Any = None,
    checkpoint_every: int | None = None,
    resume: bool = False,
) -> Run:
    """Train an ensemble: members that differ in their random keys alone.

    The key of a member depends on its number and not on how many there are, nor on devices or chunks. A member whose
    loss ceases to be finite is reported by a warning, and the others go on.

    Args:
        module: a Linen module, an NNX factory `rngs -> module`, a pair `(init, apply)` of `init(key, x) -> params` and
            `apply(params, x) -> outputs`, or a stax triple.
        train: an augmented set, or a pair `(x, y)`.
        members: how many.
        optimizer: from optax.
        key: a JAX random key.
        steps: how many steps of the optimizer; this or `epochs`.
        epochs: how often to go through the data.
        loss: "mse", ½ (f − y)²; "cross_entropy" for classes; or a function of (outputs, y) that returns one loss per
            sample.
        reduction: "mean", over all entries of y (of the batch), or "sum". Theory is "sum" by default.
        batch_size: samples in a step; all of them unless given.
        augmentation: of an augmented set: "full", every point under every element in every epoch; or "random", every
            point under one element of the whole group, which each member draws anew in each epoch. In batches, points
            are moved when they are needed.
        record: for each name inputs, whose predictions [members, n, out] are recorded, or a pair of inputs and a
            function of these predictions, whose result is.
        record_at: after how many steps; at the end unless given. See `log_steps`.
        layout: "map" trains one member at a time on each device, "vmap" chunks of them; "auto" chooses by device and
            size of the network.
        chunk: members in a chunk.
        devices: which ones; all of them, of all processes, unless given.
        progress: whether to show a bar with the time left and the loss.
        checkpoint: a folder to which the state of the run is written; new or empty, unless `resume`.
        checkpoint_every: after how many steps; ten times in a run unless given.
        resume: go on with the run in the folder, if there is one, to the same result to the last bit.

    Returns:
        The run, with `predict`, `mean`, `subset`, `bootstrap`, `save` and what was recorded.

    Raises:
        ValueError: settings that do not fit together, or a checkpoint of another configuration.
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
    batches, data = batches_of(train, batch_size, augmentation)
    total = _steps(steps, epochs, batches)
    raw, key_impl = raw_key(key)
    task = _task(module, data, batches, optimizer, loss, one_of(reduction, ("mean", "sum"), "reduction"), key_impl)
    _check_finite(data[0], "x")
    if isinstance(loss, str):  # others may leave out labels that are no numbers
        _check_finite(data[1], "y")
    wanted, record_steps = checked_record(record, record_at, total)
    _, params, _ = _forward(task, data)
    for x, _ in wanted.values():  # what does not fit is found now, and not after hours of training
        check_inputs(x, "record", [spec(leaf[:1]) for leaf in jax.tree.leaves(data[0])], task.model, params)
    if checkpoint is not None:
        file_path(checkpoint, "checkpoint")
    if boolean(resume, "resume") and checkpoint is None:
        raise refusal("checkpoint", expected="a folder, to resume", got=None, fix="Name the folder of the run.")
    bytes_each = 0 if layout == "map" else activation_bytes(*_forward(task, data))
    where = layout_of(members, layout, chunk=chunk, devices=devices, bytes_each=bytes_each)
    where = suited(where, *_forward(task, data), chosen=layout != "auto" or chunk is not None)
    recorded = [{name: fingerprint(x) for name, (x, _) in wanted.items()}, record_steps]
    described: Mapping[str, Any] = configuration(task, raw, data, members=members, steps=total, record=recorded)
    if checkpoint is None:
        return _Training(task, where, total, described, data, raw, wanted, record_steps).run(progress=progress)
    every = max(1, total // CHECKPOINTS_IN_A_RUN) if checkpoint_every is None else checkpoint_every
    every = positive_integer(every, "checkpoint_every")
    checkpoints = open_folder(checkpoint, resume=resume)
    try:
        described = {**described, **first_steps(task, data)}
        loop = _Training(task, where, total, described, data, raw, wanted, record_steps)
        loop.write_to(checkpoints, every)
        return loop.run(progress=progress)
    finally:
        checkpoints.close()


class _Training:
    """A run under way: its members, how far they are, and where that is written."""

    def __init__(
        self,
        task: Task,
        layout: Layout,
        total: int,
        described: Mapping[str, Any],
        data: tuple,
        key: np.ndarray,
        record: dict[str, tuple[Any, Callable | None]],
        record_steps: list[int],
    ) -> None:
        self.task, self.layout, self.total, self.described = task, layout, total, described
        self.record, self.record_steps = record, set(record_steps)
        self.data, self.key = layout.share(data), layout.share(key)
        self.history, self.step = History(list(record)), 0
        self.checkpoints: Checkpoints | None = None
        self.every = 0
        indices = layout.deal(np.arange(layout.members, dtype=np.int32))
        example = layout.share(jax.tree.map(lambda leaf: leaf[:1], data[0]))
        params = initial_params(task.model, layout, task.key_impl, indices, self.key, example)
        self.members: Member = created(task, layout, indices, params)
        self.reported: set[int] = set()
        self.samples = samples_at_a_time(layout.chunk, activation_bytes(*_forward(task, data)) // _batch(task))

    def write_to(self, checkpoints: Checkpoints, every: int) -> None:
        """Write checkpoints, and begin with the last one that is there."""
        self.checkpoints, self.every = checkpoints, every
        if checkpoints.latest is None:
            return
        arrays, text = checkpoints.load()
        check_same(dict(self.described), text["configuration"], checkpoints.folder)
        here = {part: getattr(self.members, part) for part in PARTS}
        stored = self.layout.deal({part: like(here[part], arrays.get(part)) for part in PARTS})
        self.members = dataclasses.replace(self.members, **jax.tree.map(_key_like, stored, here))
        self.history.restore(arrays.get("history"))
        self.step = checkpoints.latest

    def run(self, *, progress: bool) -> Run:
        """Train to the end."""
        noted = curve_steps(self.total)
        saved = set() if self.checkpoints is None else {*range(self.every, self.total, self.every), self.total}
        stops = sorted(stop for stop in noted | saved | self.record_steps if stop > self.step)
        if self.step == 0 and 0 in self.record_steps:
            self._observe()
        shown = progress and jax.process_index() == 0
        with tqdm(total=self.total, initial=self.step, unit="step", disable=not shown) as bar:
            for stop in stops:
                self.members = advanced(self.task, self.layout, self.members, self.key, self.data, self.step, stop)
                bar.update(stop - self.step)
                self.step = stop
                if stop in noted:
                    bar.set_postfix(loss=f"{self._note():.3g}")
                if stop in self.record_steps:
                    self._observe()
                if stop in saved:
                    self._save()
        failed = self._report()
        params, count = self.members.params, self.layout.members
        return Run(self.task.model, count, self.total, self.described, self.layout, self.history, failed, params)

    def _note(self) -> float:
        """Write down the losses, warn of members that are lost, and return the mean of the others."""
        losses = self.layout.collect(self.members.loss)
        self.history.steps.append(self.step)
        self.history.losses.append(losses)
        self._report()
        finite = losses[np.isfinite(losses)]
        return float(finite.mean()) if finite.size else float("nan")

    def _report(self) -> dict[int, int]:
        steps = self.layout.collect(self.members.failed)
        failed = {member: int(step) for member, step in enumerate(steps) if step != NEVER}
        new = sorted(failed.keys() - self.reported)
        if new:
            named = ", ".join(f"{member} (step {failed[member]})" for member in new[:10])
            more = f" and {len(new) - 10} more" if len(new) > 10 else ""
            message = f"loss or parameters are no longer finite for member {named}{more}; the others go on. "
            from_start = all(failed[member] == 0 for member in new)
            fix = "Their very first outputs or losses are not: look at inputs, labels and initial parameters."
            fix = fix if from_start else "A smaller learning rate may help."
            warnings.warn(message + fix, RuntimeWarning, stacklevel=5)
            self.reported |= failed.keys()
        return failed

    def _observe(self) -> None:
        """Record predictions, or what is made of them."""
        self.history.record_steps.append(self.step)
        for name, (x, function) in self.record.items():
            params = self.members.params
            predictions = predicted(self.task.model, self.layout, params, x, self.samples)
            made = predictions if function is None else function(jnp.asarray(predictions))
            self.history.records[name].append(np.asarray(made))

    def _save(self) -> None:
        assert self.checkpoints is not None
        state = self.layout.collect(jax.tree.map(_as_numbers, self.members))
        parts = {part: leaves(getattr(state, part)) for part in PARTS}
        arrays = {**parts, "history": self.history.stored()}
        names = list(self.history.records)
        text = {"configuration": dict(self.described), "members": self.layout.members, "records": names}
        self.checkpoints.save(self.step, {name: part for name, part in arrays.items() if part}, text)


def _as_numbers(leaf: Any) -> Any:
    """An array that can be stored: the numbers of random keys, which some optimizers have in their state."""
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


def _key_like(stored: Any, leaf: Any) -> Any:
    """A stored array, as a random key again where it was one."""
    if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return stored
    return jax.random.wrap_key_data(stored, impl=jax.random.key_impl(leaf))


def _task(module: Any, data: tuple, batches: Batches, optimizer: Any, loss: Any, reduction: str, key_impl: str) -> Task:
    if isinstance(optimizer, optax.MultiSteps):
        optimizer = optimizer.gradient_transformation()
    if not isinstance(optimizer, optax.GradientTransformation):
        fix = "Pass for example `optax.sgd(0.5)`."
        raise refusal("optimizer", expected="from optax", got=type(optimizer).__name__, fix=fix, kind=TypeError)
    model = model_of(module)
    x, y = data[0], data[1]
    params = jax.eval_shape(model.init, jax.random.key(0), jax.tree.map(lambda leaf: leaf[:1], x))
    outputs = jax.eval_shape(model.apply, params, x)
    if not hasattr(outputs, "shape") or outputs.shape[:1] != y.shape[:1]:
        got = getattr(outputs, "shape", type(outputs).__name__)
        fix = "A network returns one array, with the sample axis first."
        raise refusal("module", expected=f"one with outputs of {y.shape[0]} samples", got=got, fix=fix)
    task = Task(model, optimizer, loss_of(loss, outputs, y), reduction, batches, key_impl)
    _check_optimizer(task, params)
    return task


def _check_optimizer(task: Task, params: Any) -> None:
    """Refuse an optimizer that cannot make a step with parameters like these."""

    def one_step(params: Any) -> tuple:
        loss_fn = lambda at: sum((jnp.sum(leaf) for leaf in jax.tree.leaves(at)), jnp.zeros(()))  # noqa: E731
        state = task.begun((jnp.int32(0), params)).optimizer
        updates, new = updated_by(task.optimizer, params, state, params, loss_fn(params), loss_fn)
        return (params, state), (optax.apply_updates(params, updates), new)

    try:
        before, after = jax.eval_shape(one_step, params)
        specs = [jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree) for tree in (before, after)]
        problem = "one that changes the shapes of its state" if specs[0] != specs[1] else None
    except Exception as error:  # whatever optax says about parameters that it was not made for
        problem = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else error!r}"
    if problem is not None:
        fix = (
            "Labels and masks have to fit the parameters of the module. An optimizer that wants parameters of its own "
            "kind, such as `optax.lookahead`, is not supported: pass the one inside of it."
        )
        raise refusal("optimizer", expected="one that updates parameters like these", got=problem, fix=fix)


def _check_finite(tree: Any, argument: str) -> None:
    for leaf in jax.tree.leaves(tree):
        if jnp.issubdtype(leaf.dtype, jnp.floating) and not np.isfinite(leaf).all():
            fix = "Remove or repair these samples: no network learns from them."
            raise refusal(argument, expected="finite", got="NaN or infinity", fix=fix)


def _forward(task: Task, data: tuple) -> tuple:
    """The forward pass of one member on one batch, and its arguments, for an estimate of the memory it takes."""
    x = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((_batch(task), *leaf.shape[1:]), leaf.dtype), data[0])
    params = jax.eval_shape(task.model.init, jax.random.key(0), x)
    return task.model.apply, params, x


def _batch(task: Task) -> int:
    return task.batches.batch_size or task.batches.size


def _steps(steps: int | None, epochs: int | None, batches: Batches) -> int:
    if (steps is None) == (epochs is None):
        got = "neither" if steps is None else "both"
        fix = "Say how many steps, or how many times to go through the data."
        raise refusal("steps, epochs", expected="given one of them", got=got, fix=fix)
    if steps is not None:
        return positive_integer(steps, "steps")
    return positive_integer(epochs, "epochs") * batches.per_epoch
