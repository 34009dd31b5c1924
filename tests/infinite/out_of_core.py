"""A Gram matrix three times as large as the memory that a process has left: a program for the tests.

    python -m tests.infinite.out_of_core folder

It prints the predictions, with tiles in a folder that does not exist yet.
"""

import json
import sys
from pathlib import Path

import jax
import numpy as np

from ntk_equiv import InfiniteEnsemble, solvers, stax
from ntk_equiv.infinite import _tiles

SAMPLES = 6000
KERNEL_FN = stax.serial(stax.Dense(1, 1.4, 0.3), stax.Relu(), stax.Dense(1, 1.2, 0.1))[2]


def predict(samples, storage):
    rng = np.random.default_rng(0)
    x, y, test = rng.standard_normal((SAMPLES, 3)), rng.standard_normal(SAMPLES), rng.standard_normal((3, 3))
    ens = InfiniteEnsemble(KERNEL_FN, (x[:samples], y[:samples]), solver=solvers.Lanczos(1e-3, storage=storage))
    return np.asarray(ens.mean(test, 0.01)).tolist()


def limit_memory(further):
    """Let this process have so many bytes more than it has now, and see to it that this is so."""
    import resource  # not everywhere

    status = Path("/proc/self/status").read_text().splitlines()
    now = next(1024 * int(line.split()[1]) for line in status if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (now + further, now + further))
    try:
        np.ones(further // 8 * 3 // 2)
    except MemoryError:
        return
    raise SystemExit("memory is not limited")


def main(folder):
    jax.config.update("jax_enable_x64", True)
    _tiles.ENTRIES_PER_STORED_TILE = 2**18
    predict(1400, f"{folder}-small")  # threads and programs are there before memory is limited
    limit_memory(8 * SAMPLES**2 // 3)
    sys.stdout.write(json.dumps(predict(SAMPLES, folder)))


if __name__ == "__main__":
    main(*sys.argv[1:])
