"""How much faster are two cores than one, for the tiles of a Gram matrix and for the blocks of many irreps?

Each way runs in its own process, which may use one core or two. It is told so before any library starts threads, which
would keep both cores. Tiles: 6,000 samples under C16, single precision, as
for Lanczos. Blocks: those of C16 × 512 samples for a covariance, double precision, by decomposition.
"""

import json
import os
import sys
import time

if len(sys.argv) > 2:
    os.sched_setaffinity(0, range(int(sys.argv[2])))

import jax
import jax.numpy as jnp
from large_problems import radii_problem
from measuring import Found, in_own_process, report

from ntk_equiv import InfiniteEnsemble, solvers


def tiles():
    kernel_fn, train, _, _ = radii_problem(6000, 16, dtype=jnp.float32)
    return lambda: InfiniteEnsemble(kernel_fn, train, solver=solvers.Lanczos(1e-3))


def blocks():
    jax.config.update("jax_enable_x64", True)
    kernel_fn, train, _, _ = radii_problem(512, 16, dtype=jnp.float64)
    return lambda: InfiniteEnsemble(kernel_fn, train, solver=solvers.Eigh()).with_covariance()


WAYS = {"tiles": tiles, "blocks": blocks}
QUESTIONS = {"tiles": "tiles of a Gram matrix, C16 × 6,000", "blocks": "blocks of all irreps, C16 × 512"}


def shortest(run, repeats=4):
    """The shortest of a few runs; the first one compiles."""
    run()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        print(json.dumps(shortest(WAYS[sys.argv[1]]())))
        raise SystemExit
    for name, question in QUESTIONS.items():
        two, one = (in_own_process(__file__, name, cores) for cores in (2, 1))
        report(f"two cores, {question}", target=1.6, peer="one core", found=Found(two, {"one core": one}))
