"""Tiny networks for planned runs, of which the command line knows some as `tests.planned_runs.problems:…`."""

import os
import signal
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv import planning
from tests.planning.problems import SETTINGS, VECTORS

# Images of two classes, x, y, x_test, y_test, whose shapes are those of the pictures in the tests of the command line,
# so that programs are compiled once.
_names = np.arange(10) % 2
_images = np.random.default_rng(0).uniform(size=(10, 4, 4, 3)) * (1 + _names[:, None, None, None])
IMAGES = (_images[:8], np.array(["dark", "light"])[_names[:8]], _images[8:], np.array(["dark", "light"])[_names[8:]])
HERE = "tests.planned_runs.problems"
TRAINING = {"epochs": 3, "batch_size": 8, "learning_rate": 0.05, "members": 2}


def dense(outputs):
    """One layer on flattened samples, as a pair."""

    def init(key, x):
        return jax.random.normal(key, (x[0].size, outputs)) / x[0].size ** 0.5

    return init, lambda w, x: jnp.tanh(x.reshape(len(x), -1) @ w)


def deadly(outputs):
    """The same; but if the environment names a folder, the process is killed once there is a checkpoint."""
    folder = os.environ.get("KILLED_WITH_CHECKPOINT_IN")
    if folder:
        threading.Thread(target=_kill_with_checkpoint, args=(Path(folder),), daemon=True).start()
    return dense(outputs)


def _kill_with_checkpoint(folder):
    while not any(path.name.isdigit() for path in folder.glob("*")):
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGKILL)


def identity(outputs):
    """The identity, which is equivariant if labels move as samples do."""
    return lambda key, x: jnp.zeros(()), lambda w, x: x + 0 * w


def wider(outputs):
    """A network with more parameters than `dense`."""
    init, apply = dense(outputs)
    return lambda key, x: (init(key, x), jnp.zeros(3)), lambda w, x: apply(w[0], x) + w[1].sum()


def raises(outputs):
    raise OSError("no such weights")


def a_number(outputs):
    return outputs


def too_many(outputs):
    return dense(outputs + 1)


not_a_function = 3


def plan_of_vectors():
    x, y, x_test, y_test = VECTORS
    return planning.plan(x, y, x_test=x_test, y_test=y_test, **SETTINGS)


def plan_of_images():
    x, y, x_test, y_test = IMAGES
    return planning.plan(x, y, x_test=x_test, y_test=y_test, **{**SETTINGS, "action": "rot90"})
