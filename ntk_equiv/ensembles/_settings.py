"""The settings of a run: everything that decides its result.

As a mapping, settings hold what is stored with a run as JSON, compared when a run is resumed, and shown as
`run.configuration`. What JSON cannot hold has a fingerprint: data, networks, optimizers, losses and actions.

    entry                               setting
    members, steps, key                 as passed to `train`
    parameters, inputs                  dtypes and shapes of the parameters of a member, and of one sample

    record                              hashes of the recorded inputs, and the steps at which they are recorded
    reduction, batch_size, augmentation as passed to `train`
    data                                a hash
    loss                                its name; for a user's function also a summary of its values
    optimizer                           a summary of its updates
    rate and momentum                   of gradient descent; null for other optimizers
    actions                             summaries of the actions on inputs and labels

    first outputs, first gradients      of the network, if the run writes checkpoints
    validation                          a hash of the validation set, after how many steps, and names of metrics
    early stopping                      patience, min_delta, restore_best

    state, first state                  likewise, for networks with a state

An untrained run has only the first two lines and `state`, and entries of what is not used are left out. Names and
values of these entries are the format of checkpoints. Change them only if old checkpoints can still be resumed.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

import jax
import numpy as np

from ntk_equiv._typing import Inputs
from ntk_equiv.ensembles._batches import Data
from ntk_equiv.ensembles._fingerprints import (
    STRETCHES,
    TOLERANCE,
    hash_data,
    probe_action,
    probe_first_step,
    probe_loss,
    probe_optimizer,
)
from ntk_equiv.ensembles._inputs import input_specs, parameter_specs
from ntk_equiv.ensembles._members import Task
from ntk_equiv.ensembles._models import Params
from ntk_equiv.ensembles._sources import shapes_of

Record = Mapping[str, tuple[Inputs, Callable | None]]
"""What to record: for each name inputs, and a function of their predictions; None for the predictions themselves."""

# Outputs and gradients of the same network on another machine differ by rounding.
OUTPUT_TOLERANCE = 1e-3


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Settings(Mapping[str, Any]):
    """The settings of an untrained run.

    Attributes:
        members: how many members there are.
        steps: how many steps they are trained.
        key: the name of the random generator, and the numbers of the key.
        parameters: dtype and shape of every parameter, by its name.
        inputs: dtypes and shapes of one sample.
        state: dtype and shape of every array of the state, by its name.
    """

    members: int
    steps: int
    key: list[str | int]
    parameters: dict[str, str]
    inputs: list[str]
    state: dict[str, str]

    @property
    def entries(self) -> tuple[str, ...]:
        """The names of the entries; an entry "rate and momentum" is the attribute `rate_and_momentum`."""
        state = ("state",) if self.state else ()
        return "members", "steps", "key", "parameters", "inputs", *state

    def __getitem__(self, name: str) -> Any:
        if name not in self.entries:
            raise KeyError(name)
        return getattr(self, name.replace(" ", "_"))

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        return repr(dict(self))


@dataclasses.dataclass(frozen=True, eq=False)
class Functions:
    """The functions of a run with their fingerprints, which take long and are computed when first asked for.

    Attributes:
        task: holds the functions.
        steps: how many steps the run has.
        params: shapes of the parameters of a member.
        outputs: shape of the outputs for all stored samples.
        sample: shape of one sample.
        labels: the stored labels.
    """

    task: Task
    steps: int
    params: Params
    outputs: jax.ShapeDtypeStruct
    sample: Inputs
    labels: np.ndarray

    @cached_property
    def loss(self) -> str | dict[str, Any]:
        """The fingerprint of the loss."""
        return probe_loss(self.task.loss, self.outputs, self.labels)

    @cached_property
    def optimizer(self) -> tuple[list[float], list[float] | None]:
        """The fingerprint of the optimizer, and its rate and momentum."""
        return probe_optimizer(self.task.optimizer, self.params, self.steps)

    @cached_property
    def actions(self) -> list[list[float]]:
        """The fingerprints of the actions on inputs and labels."""
        batches, y = self.task.batches, self.labels
        labels = y[:, None] if y.ndim == 1 else y  # actions are on channels
        return [probe_action(batches.rep_x, self.sample), probe_action(batches.rep_y, labels)]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TrainingSettings(Settings):
    """The settings of a trained run.

    Attributes:
        record: hashes of the recorded inputs by their names, and the steps at which they are recorded.
        reduction: "mean" or "sum".
        batch_size: samples in a batch; None for all of them.
        augmentation: "full" or "random".
        data: a hash of the training data.
        functions: the functions of the run, for their fingerprints.
        validation: a hash of the validation set, after how many steps it is used, and the names of metrics; None if
            there is none.
        early_stopping: when members are stopped; None if they are not.
        first_outputs: outputs of the network for a fixed key; None unless the run writes checkpoints.
        first_gradients: lengths of its gradients, as logarithms; likewise.
        first_state: those of its state after a step; likewise.
    """

    record: list[Any]
    reduction: str
    batch_size: int | None
    augmentation: str
    data: str
    functions: Functions
    validation: list[Any] | None = None
    early_stopping: dict[str, Any] | None = None
    first_outputs: list[float] | None = None
    first_gradients: list[float] | None = None
    first_state: list[float] | None = None

    @property
    def entries(self) -> tuple[str, ...]:
        """The names of the entries."""
        own = "record", "reduction", "batch_size", "augmentation", "data"
        functions = "loss", "optimizer", "rate and momentum", "actions"
        first = () if self.first_outputs is None else ("first outputs", "first gradients")
        state = ("first state",) if self.state and first else ()
        if_used = {"validation": self.validation, "early stopping": self.early_stopping}
        used = tuple(name for name, value in if_used.items() if value is not None)
        return *super().entries, *own, *functions, *first, *state, *used

    @property
    def loss(self) -> str | dict[str, Any]:
        """The name of the loss; for a user's function also a summary of its values."""
        return self.functions.loss

    @property
    def optimizer(self) -> list[float]:
        """A summary of the updates of the optimizer."""
        return self.functions.optimizer[0]

    @property
    def rate_and_momentum(self) -> list[float] | None:
        """Learning rate and momentum, if the optimizer is gradient descent."""
        return self.functions.optimizer[1]

    @property
    def actions(self) -> list[list[float]]:
        """Summaries of the actions on inputs and labels."""
        return self.functions.actions

    def with_first_step(self, task: Task, data: Data) -> "TrainingSettings":
        """Return the settings with fingerprints of the network, which take a gradient to compute."""
        outputs, gradients, state = probe_first_step(task, data)
        return dataclasses.replace(self, first_outputs=outputs, first_gradients=gradients, first_state=state)

    def as_far_as(self, there: Mapping[str, Any]) -> "TrainingSettings":
        """Return the settings of these steps as far as those of a shorter run go, to compare them with its settings."""
        steps = there.get("steps", self.steps)
        if steps >= self.steps:
            return self
        # What is recorded later is no difference, nor is the record that a run makes at its end.
        (hashes, at), stored = self.record, there.get("record", [{}, []])[1]
        past = [step for step in at if step <= steps]
        record = [hashes, stored if set(past) <= set(stored) else past]
        functions = dataclasses.replace(self.functions, steps=steps)
        return dataclasses.replace(self, steps=steps, record=record, functions=functions)


def settings_of_training(
    task: Task,
    data: Data,
    *,
    members: int,
    steps: int,
    key: np.ndarray,
    record: Record,
    record_steps: list[int],
    validation: list[Any] | None = None,
    early_stopping: dict[str, Any] | None = None,
) -> TrainingSettings:
    """Return the settings of a run.

    Args:
        task: how members are trained.
        data: the stored data.
        members: how many members there are.
        steps: how many steps they are trained.
        key: the numbers of the random key.
        record: what to record.
        record_steps: the steps at which they are recorded.
        validation: how the run is validated, as it is stored.
        early_stopping: when members are stopped, as it is stored.
    """
    x, y, _ = data
    # Only shapes are kept: a slice of an array would keep all of it in memory as long as the run.
    sample = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape[1:]), leaf.dtype), x)
    params, state = task.model.shapes_of_variables(sample)
    outputs = jax.eval_shape(task.model.apply, params, shapes_of(x), state)
    return TrainingSettings(
        members=members,
        steps=steps,
        key=key_entry(key, task.key_impl),
        parameters=parameter_specs(params),
        inputs=input_specs(x),
        state=parameter_specs(state),
        record=[{name: _hash_of_record(*entry) for name, entry in record.items()}, record_steps],
        reduction=task.reduction,
        batch_size=task.batches.batch_size,
        augmentation="random" if task.batches.random else "full",
        data=hash_data(data),
        functions=Functions(task, steps, params, outputs, sample, y),
        validation=validation,
        early_stopping=early_stopping,
    )


def key_entry(numbers: np.ndarray, generator: str) -> list[str | int]:
    """Return a random key as it is stored."""
    return [generator, *numbers.ravel().tolist()]


def differences(here: Mapping[str, Any], there: Mapping[str, Any]) -> list[str]:
    """Return how the settings of two runs differ, one line for each entry."""
    lines = []
    for name in sorted({*here, *there}):
        a, b = here.get(name), there.get(name)
        if name.startswith("first "):
            if not _are_close(a, b, OUTPUT_TOLERANCE * float(np.nanmax(np.abs([*(b or []), 0.0])))):
                lines.append(f"the network computes something else, {name}: {_shorten(a)} instead of {_shorten(b)}")
        elif name == "optimizer":
            if not _are_close(a, b, TOLERANCE):
                lines.append(f"optimizer: other updates{_first_difference(a, b, here['steps'])}")
        elif not _are_same(a, b):
            lines.append(f"{name}: {_shorten(a)} instead of {_shorten(b)}")
    return lines


def _are_same(a: Any, b: Any) -> bool:
    """Return whether two entries are equal, and their numbers equal up to rounding."""
    if isinstance(a, float) and isinstance(b, float):
        return _are_close([a], [b], TOLERANCE)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_are_same(a[name], b[name]) for name in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_are_same, a, b))
    return a == b


def _are_close(a: Any, b: Any, tolerance: float) -> bool:
    if not (isinstance(a, list) and isinstance(b, list) and len(a) == len(b)):
        return a == b
    return np.allclose(a, b, rtol=0, atol=tolerance, equal_nan=True)


def _first_difference(a: Any, b: Any, steps: int) -> str:
    """Return from which step on updates differ, if they agree before."""
    if not (isinstance(a, list) and isinstance(b, list) and len(a) == len(b)):
        return ""
    first = next(i for i in range(len(a)) if not _are_close(a[i : i + 1], b[i : i + 1], TOLERANCE))
    return f" from about step {first * steps // min(STRETCHES, steps)} on"


def _shorten(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _hash_of_record(inputs: Any, function: Any) -> str:
    """Return a hash of the inputs that also says whether a function of the predictions is recorded."""
    same = hash_data(inputs)
    return same if function is None else f"a function at {same}"
