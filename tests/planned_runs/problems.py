"""Tiny networks for planned runs, of which the command line knows some as `tests.planned_runs.problems:…`."""

import os
import signal
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp

from ntk_equiv import planning
from tests.planning.problems import IMAGES, SETTINGS, VECTORS

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


def plan_of_vectors(**changed):
    x, y, x_test, y_test = VECTORS
    return planning.plan(x, y, x_test=x_test, y_test=y_test, **{**SETTINGS, **changed})


def plan_of_images(**changed):
    x, y, x_test, y_test = IMAGES
    settings = {**SETTINGS, "action": "rot90", "times": [1, 10]}
    return planning.plan(x, y, x_test=x_test, y_test=y_test, **{**settings, **changed})
