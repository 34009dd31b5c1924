"""A run that is killed again and again, at random moments, and resumed until it is done.

Is the result the same, to the last bit, as that of a run that is left alone? Run as a program it prints how often it
was killed, how often while a checkpoint was being written, and whether the results are equal:

    python -m tests.ensembles.killed --kills 20
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ntk_equiv import augment, ensembles, groups, reps

STEPS = 30


def init(key, x):
    return jax.random.uniform(key, (x.shape[-1], 8)), jax.random.uniform(key, (8, 1))


def apply(params, x):
    return jnp.tanh(x @ params[0]) @ params[1]


def trained(folder=None, steps=STEPS):
    """The parameters after a run with batches, Adam and records."""
    x = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    run = ensembles.train(
        (init, apply),
        augment(x, x[:, :1], reps.matrix(groups.SO2.finite(4))),
        members=3,
        steps=steps,
        batch_size=8,
        optimizer=optax.adam(0.05),
        key=jax.random.key(0),
        record={"x": x},
        record_at=range(0, steps, 4),
        checkpoint=folder,
        checkpoint_every=1,
        resume=folder is not None,
    )
    return {"first": run.params[0], "second": run.params[1], "records": run.records["x"], "losses": run.curve[1]}


def child(folder, result, steps):
    """Train in a process of its own, forked before JAX starts."""
    pid = os.fork()
    if pid == 0:
        np.savez(result, **trained(folder, steps))
        os._exit(0)
    return pid


def kill_at_random(pid, folder, before, wait):
    """Kill the process once it has written something new and some time has passed; whether it was still running."""
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if newest(folder) > before:
            time.sleep(wait)
            if os.waitpid(pid, os.WNOHANG) != (0, 0):
                return False
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return True
        time.sleep(0.002)
    return False


def newest(folder):
    return max((int(path.name) for path in Path(folder).glob("*") if path.name.isdigit()), default=0)


def main(kills, steps, seed):
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as scratch:
        folder, result = f"{scratch}/run", f"{scratch}/interrupted.npz"
        killed = halfway = 0
        # Compiled once, and read from there by all that come after.
        jax.config.update("jax_compilation_cache_dir", f"{scratch}/programs")
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        os.waitpid(child(None, f"{scratch}/alone.npz", steps), 0)
        while killed < kills:
            pid = child(folder, result, steps)
            if not kill_at_random(pid, folder, newest(folder), rng.uniform(0, 0.15)):
                break
            killed += 1
            halfway += any("tmp" in path.name for path in Path(folder).iterdir())
        if not Path(result).exists():
            os.waitpid(child(folder, result, steps), 0)
        alone, interrupted = np.load(f"{scratch}/alone.npz"), np.load(result)
        equal = all(alone[name].tobytes() == interrupted[name].tobytes() for name in alone.files)
    sys.stdout.write(f"killed {killed} times, {halfway} of them while writing; equal: {equal}\n")
    return 0 if equal and killed >= kills else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    sys.exit(main(arguments.kills, arguments.steps, arguments.seed))
