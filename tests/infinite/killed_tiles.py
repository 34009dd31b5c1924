"""A folder of tiles whose writer is killed again and again, at random moments, and started again until it is done.

Is the answer the same as in memory, and is no finished tile evaluated twice? Run as a program, with the path of a
folder that does not exist yet:

    python -m tests.infinite.killed_tiles folder --kills 5
"""

import argparse
import os
import random
import signal
import sys
import time
from pathlib import Path

import jax
import numpy as np

from ntk_equiv import InfiniteEnsemble, solvers, stax
from ntk_equiv.infinite import _tiles

KERNEL_FN = stax.serial(stax.Dense(1, 1.4, 0.3), stax.Relu(), stax.Dense(1, 1.2, 0.1))[2]


def answer(storage):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((240, 3)), rng.standard_normal(240)
    ens = InfiniteEnsemble(KERNEL_FN, (x, y), solver=solvers.Lanczos(1e-9, storage=storage))
    return np.asarray(ens.mean(rng.standard_normal((4, 3)), 2.0))


def child(storage, result):
    """Compute in a process of its own, forked before JAX starts."""
    pid = os.fork()
    if pid == 0:
        np.save(result, answer(storage))
        os._exit(0)
    return pid


def finished(folder):
    """Which tiles there are, and when each was written."""
    return {path.name: path.stat().st_mtime_ns for path in Path(folder).glob("*.tile")}


def kill_after(pid, folder, count, wait):
    """Kill the process some time after it has written a number of tiles; return whether it was still running."""
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if len(finished(folder)) >= count:
            time.sleep(wait)
            if os.waitpid(pid, os.WNOHANG) != (0, 0):
                return False
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return True
        time.sleep(0.001)
    return False


def main(folder, kills):
    rng = random.Random(0)
    jax.config.update("jax_enable_x64", True)
    # Compiled once, and read from there by all that come after.
    jax.config.update("jax_compilation_cache_dir", f"{folder}-programs")
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    _tiles.ENTRIES_PER_TILE = _tiles.ENTRIES_PER_STORED_TILE = 64  # 465 tiles of 8 × 8
    os.waitpid(child("memory", f"{folder}-memory.npy"), 0)
    killed, kept, rewritten = 0, {}, 0
    while killed < kills:
        pid = child(folder, f"{folder}-result.npy")
        if not kill_after(pid, folder, len(kept) + rng.randrange(1, 60), rng.uniform(0, 0.01)):
            break
        now = finished(folder)
        rewritten += sum(now.get(name) != written for name, written in kept.items())
        killed, kept = killed + 1, now
    os.waitpid(child(folder, f"{folder}-result.npy"), 0)
    now = finished(folder)
    rewritten += sum(now.get(name) != written for name, written in kept.items())
    equal = bool(np.array_equal(np.load(f"{folder}-memory.npy"), np.load(f"{folder}-result.npy")))
    sys.stdout.write(f"killed {killed} times; tiles {len(now)}; written twice {rewritten}; equal {equal}\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--kills", type=int, default=5)
    arguments = parser.parse_args()
    main(arguments.folder, arguments.kills)
