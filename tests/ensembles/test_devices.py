"""The same results on one device, on four, and in two processes."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax import export

from ntk_equiv import augment, ensembles, groups, reps, stax
from tests.ensembles.spread import results
from tests.tolerances import assert_close

ROOT = Path(__file__).parents[2]
ROUNDING = {"float64": 1e-13}


def started(*arguments):
    command = [sys.executable, "-m", "tests.ensembles.spread", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)


def finished(process):
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors[-3000:]


@pytest.fixture(scope="module")
def alone():
    return results()


def assert_same(found, alone):
    for name in ("first", "second", "predictions", "records", "losses", "images", "filters"):
        assert_close(found[name], alone[name], ROUNDING)


def test_four_devices_give_the_same(tmp_path, alone):
    finished(started(tmp_path / "four.npz", "--devices", 4))
    found = np.load(tmp_path / "four.npz")
    assert str(found["layout"]) == "<6 members, 2 at a time on each of 4 cpu devices>"
    assert_same(found, alone)


def test_two_processes_give_the_same_and_can_be_resumed_by_one(tmp_path, alone):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    shared = ("--address", address, "--checkpoint", tmp_path / "run", "--process")
    both = [started(tmp_path / "two.npz", *shared, process) for process in (0, 1)]
    for process in both:
        finished(process)
    found = np.load(tmp_path / "two.npz")
    assert str(found["layout"]) == "<6 members, 3 at a time on each of 2 cpu devices>"
    assert_same(found, alone)
    resumed = results(tmp_path / "run", resume=True)
    for name in ("first", "second", "records", "losses"):
        np.testing.assert_array_equal(resumed[name], found[name])


def chunked(members, numbers, **settings):
    """The layout of networks whose activations are so many numbers of 8 bytes."""
    doubling = (lambda key, x: (), lambda params, x: 2 * x)
    return ensembles.expected_layout(
        doubling, jax.ShapeDtypeStruct((numbers,), np.float64), members=members, **settings
    )


def test_chunks_leave_room_and_are_equal():
    assert chunked(100, 2**27 // 60, layout="vmap").chunk == 50
    assert chunked(100, 2**37, layout="vmap").chunk == 1
    assert chunked(3, 1, layout="vmap", chunk=8).chunk == 3
    assert chunked(100, 2**7).chunk == 8
    assert chunked(100, 2**17).chunk == 1
    assert chunked(5, 1, chunk=2).padded == 6


class Convolving(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.max_pool(nn.relu(nn.Conv(2, (3, 3), param_dtype=x.dtype)(x)), (2, 2), (2, 2))
        return nn.Dense(10, param_dtype=x.dtype)(x.reshape(len(x), -1))


@pytest.mark.parametrize(
    ("module", "stepwise"),
    [
        (Convolving(), True),
        (lambda rngs: nnx.Sequential(nnx.Conv(1, 2, (3, 3), rngs=rngs), jnp.ravel), True),
        (nn.vmap(Convolving, variable_axes={"params": None}, split_rngs={"params": False}, in_axes=0)(), True),
        (ensembles.fashion_cnn(), False),
        (ensembles.mlp((4,), 1), False),
        (stax.serial(stax.Conv(2, (3, 3)), stax.Relu(), stax.Flatten(), stax.Dense(1)), False),
    ],
    ids=["Linen", "NNX", "nested", "ours", "perceptron", "stax"],
)
def test_convolutions_of_xla_are_kept_out_of_loops_on_cpus(module, stepwise):
    x = jax.ShapeDtypeStruct((2, 1, 14, 14, 1) if "Vmap" in type(module).__name__ else (2, 14, 14, 1), np.float64)
    with jax.numpy_rank_promotion("allow"):
        layout = ensembles.expected_layout(module, x, members=3)
    assert layout.stepwise == stepwise
    assert ("step by step" in repr(layout)) == stepwise
    assert layout.chunk == (1 if stepwise else 3)


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_training_lowers_for_accelerators(platform, steps_of_training):
    function, arguments = steps_of_training
    lowered = export.export(jax.jit(function), platforms=[platform])(*arguments)
    assert lowered.platforms == (platform,)
    # What is convolved is convolved by XLA there, not by our products.
    assert "stablehlo.convolution" in lowered.mlir_module()


@pytest.fixture
def steps_of_training():
    """A stretch of vmapped training of a convolutional network, with its arguments."""
    x, y = np.ones((3, 10, 10, 1), np.float32), np.zeros(3, np.int32)
    train = augment(x, y, reps.rot90(groups.cyclic(4)))
    settings = {"optimizer": optax.adam(1e-3), "loss": "cross_entropy", "batch_size": 4}
    task, data = ensembles.prepare_task(ensembles.fashion_cnn(), train, **settings)
    key = jax.random.key_data(jax.random.key(0))

    def steps(indices, data, start, stop):
        init = lambda index: task.model.init_variables(task.keys(key, index)[0], data[0][:1])  # noqa: E731
        members = jax.vmap(task.initial_member)((indices, *jax.vmap(init)(indices)))
        return jax.vmap(lambda member: task.take_steps(member, key, data, start, stop))(members)

    data = jax.tree.map(jnp.asarray, data)
    return steps, (jnp.arange(2, dtype=jnp.int32), data, jnp.int32(0), jnp.int32(2))
