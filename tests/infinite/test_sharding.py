"""Blocks that are spread over devices and processes: the same ensembles as on one device, and an end when one dies."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.infinite.sharded import results
from tests.tolerances import ORACLE, REDUCTION, assert_close

ROOT = Path(__file__).parents[2]
EVERYTHING = ("plain", "D4", "C3", "grid")


def started(*arguments):
    command = [sys.executable, "-m", "tests.infinite.sharded", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)


def finished(process):
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors[-3000:]


def two_processes(folder, *arguments):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    shared = ("--address", address, *arguments)
    return [started(folder / f"{process}.npz", "--process", process, *shared) for process in (0, 1)]


@pytest.fixture(scope="module")
def alone():
    return results(EVERYTHING)


def assert_same(file, alone, problems):
    found = np.load(file)
    for name in problems:
        assert (str(found[f"{name}, kind"]), alone[f"{name}, kind"]) == ("ShardedBlock", "TiledBlock")
        for quantity in ("mean", "covariance"):
            assert_close(found[f"{name}, {quantity}"], alone[f"{name}, {quantity}"], ORACLE)
        # A bound is a small difference, in which more digits cancel.
        assert_close(found[f"{name}, bound"], alone[f"{name}, bound"], REDUCTION)
        block, expected = found[f"{name}, block"], alone[f"{name}, block"]
        np.testing.assert_array_equal(block, block.conj().T)
        np.testing.assert_allclose(block, expected, rtol=0, atol=1e-12 * np.abs(expected).max())
    assert alone["plain, bound"].max() > 0


@pytest.mark.parametrize(("devices", "problems"), [(2, ("plain",)), (4, EVERYTHING)], ids=["two", "four"])
def test_several_devices_give_the_same(tmp_path, alone, devices, problems):
    finished(started(tmp_path / "several.npz", "--devices", devices, "--problems", *problems))
    assert_same(tmp_path / "several.npz", alone, problems)


def test_two_processes_give_the_same_even_if_one_rounds_otherwise(tmp_path, alone):
    for process in two_processes(tmp_path, "--problems", "plain", "--fault", "rounding"):
        finished(process)
    for number in (0, 1):
        assert_same(tmp_path / f"{number}.npz", alone, ("plain",))


def test_a_refusal_in_one_process_ends_the_other(tmp_path):
    other, refusing = two_processes(tmp_path, "--problems", "plain", "--fault", "nan")
    for process, message in (
        (other, "process 1 failed"),
        (refusing, "finite kernels, got NaN or infinity for samples"),
    ):
        assert message in process.communicate(timeout=100)[1]
        assert process.returncode == 1


@pytest.mark.parametrize("moment", ["death", "death in a product"])
def test_the_death_of_one_process_ends_the_other_with_a_message(tmp_path, moment):
    left, killed = two_processes(tmp_path, "--problems", "plain", "--fault", moment, "--timeout", 3)
    killed.communicate(timeout=100)
    assert killed.returncode == -signal.SIGKILL
    try:
        message = left.communicate(timeout=60)[1]
    finally:
        left.kill()
    assert left.returncode not in (0, -signal.SIGKILL)
    assert "another task died" in message
