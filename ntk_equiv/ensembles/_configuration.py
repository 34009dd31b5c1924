"""What a run is, as plain text: enough to tell whether a checkpoint belongs to it.

Functions cannot be written down, but their effect can. An optimizer is described by the updates it makes for a few
given gradients, a network by the shapes of its parameters and by its first outputs, data by a hash of their bytes.
"""

import hashlib
import json
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ntk_equiv.ensembles._loop import Task
from ntk_equiv.ensembles._model import Model

# Gradients of one parameter that starts at 1: enough to tell a rate, momentum, and anything adaptive apart.
PROBES = (1.0, -0.5, 0.25, 2.0)
# Outputs of the same network on another machine differ by rounding.
OUTPUT_TOLERANCE = 1e-3
# On so many samples are they compared.
SAMPLES = 8


def configuration(task: Task, key: Any, data: tuple, **settings: Any) -> dict[str, Any]:
    """Everything that decides the result of a run, as JSON can hold it."""
    example = jax.tree.map(lambda leaf: leaf[:1], data[0])
    params = jax.eval_shape(task.model.init, jax.random.key(0), example)
    batches = task.batches
    described = {
        **settings,
        "loss": loss_name(task.loss),
        "reduction": task.reduction,
        "batch_size": batches.batch_size,
        "augmentation": "random" if batches.random else "full",
        "key": [task.key_impl, *np.asarray(key).ravel().tolist()],
        "optimizer": probed(task.optimizer),
        "parameters": parameter_specs(params),
        "inputs": [spec(leaf) for leaf in jax.tree.leaves(example)],
        "data": fingerprint(data),
        "actions": [repr(batches.rep_x), repr(batches.rep_y)],
    }
    return json.loads(json.dumps(described))


def first_outputs(model: Model, data: tuple) -> list[float]:
    """What the network computes for a fixed key and a few samples: as good as a description of it."""
    outputs = _outputs(model, jax.tree.map(lambda leaf: leaf[:SAMPLES], data[0]))
    return np.ravel(outputs)[:16].astype(float).tolist()


@partial(jax.jit, static_argnames="model")
def _outputs(model: Model, example: Any) -> jax.Array:
    return model.apply(model.init(jax.random.key(0), example), example)


def differences(here: dict[str, Any], there: dict[str, Any]) -> list[str]:
    """Where two configurations differ, one line for each setting."""
    found = []
    for name in sorted({*here, *there}):
        a, b = here.get(name), there.get(name)
        if name == "first outputs" and a and b and len(a) == len(b):
            if np.allclose(a, b, rtol=OUTPUT_TOLERANCE, atol=OUTPUT_TOLERANCE * np.abs(b).max()):
                continue
            found.append(f"the network computes something else: {a} instead of {b}")
        elif a != b:
            found.append(f"{name}: {_short(a)} instead of {_short(b)}")
    return found


def probed(optimizer: optax.GradientTransformation) -> list[float]:
    """The updates that an optimizer makes for the gradients `PROBES` of one parameter that stands still."""
    param = jnp.ones((), jnp.float32)

    def step(state: Any, gradient: jax.Array) -> tuple:
        update, state = optimizer.update(gradient, state, param)
        return state, update

    state, updates = optimizer.init(param), []
    for gradient in PROBES:
        state, update = step(state, jnp.float32(gradient))
        updates.append(float(np.asarray(update).ravel()[0]))
    return updates


def rate_and_momentum(updates: list[float]) -> tuple[float, float] | None:
    """η and β, if these are the updates of gradient descent with heavy-ball momentum β; else None.

    Example:
        >>> import optax
        >>> [round(number, 6) for number in rate_and_momentum(probed(optax.sgd(0.5, momentum=0.75)))]
        [0.5, 0.75]
        >>> rate_and_momentum(probed(optax.adam(0.1))) is None
        True
    """
    rate = -updates[0] / PROBES[0]
    if not rate > 0:
        return None
    momentum = -(updates[1] / rate + PROBES[1]) / PROBES[0]
    velocity, expected = 0.0, []
    for gradient in PROBES:
        velocity = momentum * velocity + gradient
        expected.append(-rate * velocity)
    fits = 0 <= round(momentum, 5) < 1 and np.allclose(updates, expected, rtol=1e-5, atol=1e-6 * rate)
    return (float(f"{rate:.6g}"), abs(round(momentum, 5))) if fits else None


def fingerprint(data: Any) -> str:
    """A hash of shapes, dtypes and bytes of all arrays in a pytree."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(data):
        array = np.ascontiguousarray(leaf)
        digest.update(f"{array.shape} {array.dtype}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]


def loss_name(loss: Any) -> str:
    """The name of a loss function."""
    return getattr(loss, "__name__", type(loss).__name__)


def spec(leaf: Any) -> str:
    """Dtype and shape of an array: `float32[3,4]`."""
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"


def parameter_specs(params: Any) -> dict[str, str]:
    """Dtype and shape of every parameter, by its name."""
    named, _ = jax.tree_util.tree_flatten_with_path(params)
    return {jax.tree_util.keystr(path): spec(leaf) for path, leaf in named}


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
