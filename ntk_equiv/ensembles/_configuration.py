"""What a run is, as plain text: enough to tell whether a checkpoint belongs to it.

Functions cannot be written down, but their effect can. Optimizers, losses and actions are described by what they make
of given numbers, a network by the shapes of its parameters and by its first outputs and gradients, data by a hash of
their bytes.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv.ensembles._gradient import value_and_gradient
from ntk_equiv.ensembles._inputs import spec
from ntk_equiv.ensembles._loop import Task
from ntk_equiv.ensembles._losses import LOSSES, LossFn
from ntk_equiv.ensembles._probes import (
    STRETCHES,
    TOLERANCE,
    tried_action,
    tried_loss,
    tried_optimizer,
)

# Outputs and gradients of the same network on another machine differ by rounding.
OUTPUT_TOLERANCE = 1e-3
# On so many samples are they compared.
SAMPLES = 8


class Configuration(Mapping[str, Any]):
    """Everything that decides the result of a run, as JSON can hold it.

    What takes long to find out, and few ask for, is found out when it is first asked for.
    """

    def __init__(self, known: dict[str, Any], find: Callable[[], dict[str, Any]]) -> None:
        self._known, self._find = known, find

    @cached_property
    def _whole(self) -> dict[str, Any]:
        return json.loads(json.dumps({**self._known, **self._find()}))

    def __getitem__(self, name: str) -> Any:
        return self._known[name] if name in self._known else self._whole[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._whole)

    def __len__(self) -> int:
        return len(self._whole)

    def __repr__(self) -> str:
        return repr(self._whole)


def configuration(task: Task, key: Any, data: tuple, *, steps: int, **settings: Any) -> Configuration:
    """The configuration of a run of so many steps."""
    example = jax.tree.map(lambda leaf: leaf[:1], data[0])
    params = jax.eval_shape(task.model.init, jax.random.key(0), example)
    outputs = jax.eval_shape(task.model.apply, params, data[0])
    batches, y = task.batches, data[1]
    labels = y[:, None] if y.ndim == 1 else y  # an action is on channels
    known = {
        **settings,
        "steps": steps,
        "reduction": task.reduction,
        "batch_size": batches.batch_size,
        "augmentation": "random" if batches.random else "full",
        "key": [task.key_impl, *np.asarray(key).ravel().tolist()],
        "parameters": parameter_specs(params),
        "inputs": [spec(leaf) for leaf in jax.tree.leaves(example)],
        "data": fingerprint(data),
    }

    def find() -> dict[str, Any]:
        updates, rate_and_momentum = tried_optimizer(task.optimizer, params, steps)
        return {
            "loss": _described_loss(task.loss, outputs, y),
            "optimizer": updates,
            "rate and momentum": rate_and_momentum,
            "actions": [tried_action(batches.rep_x, example), tried_action(batches.rep_y, labels)],
        }

    return Configuration(json.loads(json.dumps(known)), find)


def first_steps(task: Task, data: tuple) -> dict[str, list[float]]:
    """What the network computes for a fixed key and a few samples, and how its parameters are pulled by the loss."""
    x, y = jax.tree.map(lambda leaf: leaf[:SAMPLES], data[:2])
    outputs, lengths = jax.device_get(_first(task, x, y))
    return {
        "first outputs": np.ravel(outputs)[:16].astype(float).tolist(),
        # On a scale on which a layer that is hardly pulled counts as much as another.
        "first gradients": [math.log(float(length) + 1e-30) for length in lengths],
    }


@partial(jax.jit, static_argnames="task")
def _first(task: Task, x: Any, y: Any) -> tuple:
    params = task.model.init(jax.random.key(0), x)
    _, gradient = value_and_gradient(partial(task.loss_of, batch=(x, y, None)), params)
    return task.model.apply(params, x), [jnp.linalg.norm(leaf.ravel()) for leaf in jax.tree.leaves(gradient)]


def differences(here: dict[str, Any], there: dict[str, Any]) -> list[str]:
    """Where two configurations differ, one line for each setting."""
    found = []
    for name in sorted({*here, *there}):
        a, b = here.get(name), there.get(name)
        if name.startswith("first "):
            if not _are_close(a, b, OUTPUT_TOLERANCE * float(np.nanmax(np.abs([*(b or []), 0.0])))):
                found.append(f"the network computes something else, {name}: {_short(a)} instead of {_short(b)}")
        elif name == "optimizer":
            if not _are_close(a, b, TOLERANCE):
                found.append(f"optimizer: other updates{_since(a, b, here['steps'])}")
        elif not _are_same(a, b):
            found.append(f"{name}: {_short(a)} instead of {_short(b)}")
    return found


def _are_same(a: Any, b: Any) -> bool:
    """Whether two settings are equal, and their numbers equal up to rounding."""
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


def _since(a: Any, b: Any, steps: int) -> str:
    """From which step on updates differ, where they agree before."""
    if not (isinstance(a, list) and isinstance(b, list) and len(a) == len(b)):
        return ""
    first = next(i for i in range(len(a)) if not _are_close(a[i : i + 1], b[i : i + 1], TOLERANCE))
    return f" from about step {first * steps // min(STRETCHES, steps)} on"


def _described_loss(loss: LossFn, outputs: Any, y: Any) -> Any:
    """The name of a loss of ours; of any other its name, and what it computes."""
    for name, function in LOSSES.items():
        if loss is function:
            return name
    return {"name": getattr(loss, "__name__", type(loss).__name__), "values": tried_loss(loss, outputs, y)}


def fingerprint(data: Any) -> str:
    """A hash of shapes, dtypes and bytes of all arrays in a pytree."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(data):
        array = np.ascontiguousarray(leaf)
        digest.update(f"{array.shape} {array.dtype}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]


def parameter_specs(params: Any) -> dict[str, str]:
    """Dtype and shape of every parameter, by its name."""
    named, _ = jax.tree_util.tree_flatten_with_path(params)
    return {jax.tree_util.keystr(path): spec(leaf) for path, leaf in named}


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
