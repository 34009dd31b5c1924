"""A run under way.

A run is divided into stretches of steps. After a stretch, in this order: losses are noted, members are validated and
perhaps stopped, predictions are recorded, a checkpoint is written, and callbacks are told.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import multihost_utils
from tqdm.auto import tqdm

from ntk_equiv._check import refusal, warn_caller
from ntk_equiv.ensembles._advance import advance, place_data
from ntk_equiv.ensembles._batches import Data
from ntk_equiv.ensembles._checkpoint import (
    Checkpoints,
    check_same_settings,
    leaves_by_number,
    restore_structure,
    versions,
    warn_of_other_versions,
)
from ntk_equiv.ensembles._history import Event, History
from ntk_equiv.ensembles._layout import Layout, activation_bytes
from ntk_equiv.ensembles._members import NEVER, Member, Task, initial_members, initial_variables, select_members
from ntk_equiv.ensembles._models import Params, State
from ntk_equiv.ensembles._predict import predict, samples_at_a_time
from ntk_equiv.ensembles._run import Run
from ntk_equiv.ensembles._settings import Record, TrainingSettings
from ntk_equiv.ensembles._validation import EarlyStopping, Measurement, Patience, Validation

# A curve of losses has about 100 values, at least 10 steps apart.
VALUES_OF_A_CURVE, STEPS_BETWEEN = 100, 10
# The parts of the members' state that are stored; their index follows from their place.
STORED_PARTS = ("params", "state", "optimizer", "loss", "failed", "stopped")

Callback = Callable[[Event], Any]
"""A function that is told what happened, and returns True to end the run."""


@dataclasses.dataclass(frozen=True, eq=False)
class Watch:
    """What is done with members between stretches of steps, apart from noting losses.

    Attributes:
        record: what to record.
        validation: the validation set; None if there is none.
        validate_every: after how many steps to validate; None for every epoch, or for every loss that is noted if an
            epoch is one step.
        early_stopping: when to stop members; None for never.
        callbacks: functions that are told what happened.
    """

    record: Record
    validation: Validation | None = None
    validate_every: int | None = None
    early_stopping: EarlyStopping | None = None
    callbacks: Sequence[Callback] = ()


class Trainer:
    """A run under way: its members, how many steps they have taken, and what was recorded.

    The state of members is donated to each stretch of steps, so this object changes while it trains.
    """

    def __init__(
        self, task: Task, layout: Layout, settings: TrainingSettings, data: Data, key: np.ndarray, watch: Watch
    ) -> None:
        self.task, self.layout, self.settings, self.watch = task, layout, settings, watch
        self.data, self.key = place_data(task, layout, data), layout.share(key)
        names = [] if watch.validation is None else watch.validation.names
        self.history = History(list(watch.record), metrics=names, steps_per_epoch=task.batches.per_epoch)
        self.step = 0
        self.checkpoints: Checkpoints | None = None
        self.every = 0
        self.last_saved: int | None = None
        indices = layout.deal(np.arange(layout.members, dtype=np.int32))
        sample = layout.share(jax.tree.map(lambda leaf: leaf[:1], data[0]))
        variables = initial_variables(task.model, layout, task.key_impl, indices, self.key, sample)
        self.members: Member = initial_members(task, layout, indices, variables)
        self.patience = None if watch.early_stopping is None else Patience(watch.early_stopping, layout.members)
        self.best: tuple[Params, State] = jax.tree.map(jnp.copy, self._variables) if self._restores_best else ((), ())
        self.reported: set[int] = set()
        bytes_each = activation_bytes(*forward_pass(task, data)) // samples_in_step(task)
        self.samples_at_a_time = samples_at_a_time(layout.chunk, bytes_each)

    @property
    def _variables(self) -> tuple[Params, State]:
        return self.members.params, self.members.state

    @property
    def _restores_best(self) -> bool:
        return self.patience is not None and self.patience.settings.restore_best

    def write_to(self, checkpoints: Checkpoints, every: int) -> None:
        """Write checkpoints from now on, and begin with the last one that is there."""
        self.checkpoints, self.every = checkpoints, every
        if checkpoints.latest is None:
            return
        arrays, text = checkpoints.load()
        check_same_settings(self.settings, text["configuration"], checkpoints.folder)
        warn_of_other_versions(text.get("versions", {}), checkpoints.folder)
        # Checkpoints of earlier versions do not say which members have stopped: none has.
        parts = [part for part in STORED_PARTS if part != "stopped" or part in arrays]
        here = {part: getattr(self.members, part) for part in parts}
        stored = self.layout.deal({part: restore_structure(here[part], arrays.get(part)) for part in parts})
        self.members = dataclasses.replace(self.members, **jax.tree.map(_as_key_again, stored, here))
        self.history.restore(arrays.get("history"))
        if self.patience is not None:
            self.patience.restore(arrays["patience"])
        if self._restores_best:
            self.best = self.layout.deal(restore_structure(self.best, arrays.get("best")))
        self.step = self.last_saved = checkpoints.latest

    def run(self, *, progress: bool) -> Run:
        """Train to the end, or until all members have stopped or a callback ends the run."""
        total = self.settings.steps
        at = self._steps_of_events(total)
        stops = sorted(stop for stop in set().union(*at.values()) if stop > self.step)
        shows = progress and jax.process_index() == 0
        with tqdm(total=total, initial=self.step, unit="step", disable=not shows) as bar:
            ended = self.step == 0 and self._pause(at, bar)
            for stop in stops:
                if ended or self._all_stopped():
                    break
                stopped = None if self.patience is None else self.patience.stopped != NEVER
                self.members = advance(
                    self.task, self.layout, self.members, self.key, self.data, self.step, stop, stopped=stopped
                )
                bar.update(stop - self.step)
                self.step = stop
                ended = self._pause(at, bar)
        if self.checkpoints is not None:
            if self.last_saved != self.step:  # a callback has ended the run, or all members have stopped
                self._save()
            self.checkpoints.wait()
        return self._finished_run()

    def _steps_of_events(self, total: int) -> dict[str, set[int]]:
        """Return after which steps what happens."""
        noted, watch = curve_steps(total), self.watch
        at = {"record": set(self.settings.record[1]), "validation": set[int](), "checkpoint": set[int]()}
        if self.checkpoints is not None:
            at["checkpoint"] = {*range(self.every, total, self.every), total}
        if watch.validation is not None:
            per_epoch = self.task.batches.per_epoch
            every = watch.validate_every or (per_epoch if per_epoch > 1 else None)
            at["validation"] = {0, total, *(noted if every is None else range(every, total, every))}
        return {"loss": noted | at["validation"] - {0}, **at}

    def _pause(self, at: dict[str, set[int]], bar: tqdm) -> bool:
        """Do what is due after this step; return whether a callback ends the run."""
        if self.step in at["loss"]:
            bar.set_postfix(loss=f"{self._note_losses():.3g}")
        measured = self._validate() if self.step in at["validation"] else None
        if self.step in at["record"]:
            self._record_predictions()
        if self.step in at["checkpoint"]:
            self._save()
        happened = tuple(name for name in ("validation", "record", "checkpoint") if self.step in at[name])
        return self._tell_callbacks(happened, measured) if happened and self.watch.callbacks else False

    def _note_losses(self) -> float:
        """Note losses and learning rate, warn of members that failed, and return the mean loss of the others."""
        losses = self.layout.collect(self.members.loss)
        self.history.steps.append(self.step)
        self.history.losses.append(losses)
        self.history.rates.append(_learning_rate(self.members.optimizer, self.layout))
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
            warn_caller(message + fix, RuntimeWarning)
            self.reported |= failed.keys()
        return failed

    def _validate(self) -> Measurement:
        """Measure members and ensemble on the validation set, and stop members whose patience is at its end."""
        assert self.watch.validation is not None
        measured = self.watch.validation.measure(self._predict(self.watch.validation.x))
        self.history.validation_steps.append(self.step)
        for name in self.watch.validation.names:
            self.history.validation[name].append(measured.members[name])
            self.history.ensemble[name].append(measured.ensemble[name])
        # A network before training may be better than after its first steps, and is not what anybody wants back.
        if self.patience is not None and self.step > 0:
            better, stop = self.patience.look(self.step, agreed(measured.members["loss"]))
            if self._restores_best and better.any():
                self.best = _select(self.layout.deal(better), self._variables, self.best)
            if stop.any():
                self._stop(stop)
        return measured

    def _stop(self, stop: np.ndarray) -> None:
        """Stop some members, with the parameters of their best validation if these are asked for."""
        assert self.patience is not None
        params, state = self._variables
        if self._restores_best:
            restored = stop & (self.patience.best_steps != NEVER)
            params, state = _select(self.layout.deal(restored), self.best, self._variables)
        stopped = self.layout.deal(self.patience.stopped.astype(np.int32))
        self.members = dataclasses.replace(self.members, params=params, state=state, stopped=stopped)

    def _all_stopped(self) -> bool:
        return self.patience is not None and bool((self.patience.stopped != NEVER).all())

    def _record_predictions(self) -> None:
        """Record predictions, or the results of functions of them."""
        self.history.record_steps.append(self.step)
        for name, (x, function) in self.watch.record.items():
            outputs = self._predict(x)
            result = outputs if function is None else function(jnp.asarray(outputs))
            self.history.records[name].append(np.asarray(result))

    def _predict(self, x: Any) -> np.ndarray:
        return predict(self.task.model, self.layout, self._variables, x, self.samples_at_a_time)

    def _tell_callbacks(self, happened: tuple[str, ...], measured: Measurement | None) -> bool:
        """Tell callbacks what happened; return whether one of them ends the run."""
        event = Event(
            step=self.step,
            epoch=self.step / self.task.batches.per_epoch,
            happened=happened,
            losses=self.layout.collect(self.members.loss),
            validation={} if measured is None else measured.members,
            ensemble={} if measured is None else measured.ensemble,
            stopped=self._stopped_members(),
        )
        answers = [callback(event) for callback in self.watch.callbacks]
        for answer in answers:
            if answer is not None and not isinstance(answer, bool | np.bool_):
                fix = "Return True to end the run, False or nothing to go on."
                raise refusal("callbacks", expected="functions that return True or False", got=repr(answer), fix=fix)
        return bool(agreed(np.array(any(answers))))

    def _save(self) -> None:
        assert self.checkpoints is not None
        state = self.layout.collect(jax.tree.map(_key_as_numbers, self.members))
        arrays = {part: leaves_by_number(getattr(state, part)) for part in STORED_PARTS}
        arrays["history"] = self.history.stored()
        if self.patience is not None:
            arrays["patience"] = self.patience.stored()
        if self._restores_best:
            arrays["best"] = leaves_by_number(self.layout.collect(self.best))
        text = {
            "configuration": dict(self.settings),
            "members": self.layout.members,
            "records": list(self.history.records),
            "metrics": list(self.history.validation),
            "versions": versions(),
        }
        self.checkpoints.save(self.step, {name: part for name, part in arrays.items() if part}, text)
        self.last_saved = self.step

    def _stopped_members(self) -> dict[int, int]:
        if self.patience is None:
            return {}
        return {member: int(step) for member, step in enumerate(self.patience.stopped) if step != NEVER}

    def _finished_run(self) -> Run:
        """Return the run, whose members have the parameters of their best validation if these are asked for."""
        failed, variables, kept = self._report_failures(), self._variables, None
        if self.patience is not None:
            kept, restored = self.patience.kept_steps(self.step)
            if self._restores_best:
                variables = _select(self.layout.deal(restored), self.best, variables)
            # What became of a member after its best validation does not count any more.
            failed = {member: step for member, step in failed.items() if not restored[member]}
        return Run(
            self.task.model,
            self.layout.members,
            self.step,
            self.settings,
            self.layout,
            self.history,
            failed,
            *variables,
            stopped=self._stopped_members(),
            _kept=kept,
        )


# Neither is donated: the parameters are still in use, and the best ones may be the same arrays.
_select = jax.jit(select_members)


def agreed(values: np.ndarray) -> np.ndarray:
    """Return the values of the first process in all of them: rounding must not let them decide differently."""
    return values if jax.process_count() == 1 else np.asarray(multihost_utils.broadcast_one_to_all(values))


def _learning_rate(state: Any, layout: Layout) -> float:
    """Return the learning rate of the last step, if the state of the optimizer has exactly one; else NaN."""
    found = optax.tree_utils.tree_get_all_with_path(state, "learning_rate")
    rates = {float(layout.collect(rate).ravel()[0]) for _, rate in found if isinstance(rate, jax.Array)}
    return rates.pop() if len(rates) == 1 else float("nan")


def _key_as_numbers(leaf: jax.Array) -> jax.Array:
    """Return an array that can be stored: some optimizers have random keys in their state."""
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


def _as_key_again(stored: jax.Array, leaf: jax.Array) -> jax.Array:
    """Return a stored array, as a random key if `leaf` is one."""
    if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return stored
    return jax.random.wrap_key_data(stored, impl=jax.random.key_impl(leaf))


def curve_steps(steps: int) -> set[int]:
    """Return the steps at which losses are noted: at every percent of a run (of more than a few steps), and its end."""
    every = max(STEPS_BETWEEN, steps // VALUES_OF_A_CURVE)
    return {*range(every, steps + 1, every), steps}


def forward_pass(task: Task, data: Data) -> tuple:
    """Return the function that one member evaluates in a step, with the shapes of its arguments."""
    size = samples_in_step(task)
    x = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((size, *leaf.shape[1:]), leaf.dtype), data[0])
    params, state = task.model.shapes_of_variables(x)
    return task.model.apply, params, x, state


def samples_in_step(task: Task) -> int:
    """Return how many samples a member sees in a step."""
    return task.batches.batch_size or task.batches.size
