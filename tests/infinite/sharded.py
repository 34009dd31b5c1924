"""Ensembles whose blocks are spread over several devices or processes: a program for the tests.

python -m tests.infinite.sharded result.npz --devices 4
python -m tests.infinite.sharded result.npz --process 0 --address localhost:1234    (and --process 1 at the same time)

Every process writes its own result. With `--fault` the second process dies, meets a kernel that is not finite, or
rounds otherwise than the first one; `--timeout` says after how many seconds the first one notices a death.
"""

import argparse
import os
import signal

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv import InfiniteEnsemble, augment, groups, reps, solvers
from ntk_equiv.infinite import _tiles
from ntk_equiv.solvers import _krylov

TIMES = np.array([0.5, 20.0])


def kernel_fn(x1, x2=None, get=None):
    """Kernels that compile fast: of vectors, or of images pixel by pixel, [m, n, h, h', w, w']."""
    x2 = x1 if x2 is None else x2
    if x1.ndim == 4:
        x1, x2 = x1[:, None, :, None, :, None], x2[None, :, None, :, None, :]
    else:
        x1, x2 = x1[:, None], x2[None]
    distance = ((x1 - x2) ** 2).sum(-1)
    kernels = {"ntk": jnp.exp(-distance / 2) + (x1 * x2).sum(-1), "nngp": jnp.exp(-distance / 4)}
    return kernels[get] if isinstance(get, str) else tuple(kernels[name] for name in get)


def problems():
    """Training sets, and test samples for each."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(27, 5))
    yield "plain", (x, x[:, :2] ** 2), rng.normal(size=(4, 5))
    plane, vectors = rng.normal(size=(7, 2)), rng.normal(size=(7, 2))
    for name, group in (("D4", groups.O(2).finite(4)), ("C3", groups.SO2.finite(3))):
        rep = reps.matrix(group)
        yield name, augment(plane, vectors, rep, rep), rng.normal(size=(3, 2))
    images, rep = rng.normal(size=(5, 3, 3, 1)), reps.rot90(groups.cyclic(2))
    yield "grid", augment(images, images**2, rep, rep), rng.normal(size=(2, 3, 3, 1))


def results(wanted):
    """Mean, bound and covariance for some problems, with so few steps that bounds are not zero."""
    found = {}
    for name, train, test in problems():
        if name not in wanted:
            continue
        ens = InfiniteEnsemble(kernel_fn, train, solver=solvers.Lanczos(rtol=1e-2))
        found[f"{name}, mean"] = ens.mean(test, TIMES)
        found[f"{name}, bound"] = ens.error_bound(test, TIMES)
        found[f"{name}, covariance"] = ens.cov(test, TIMES)
        block = next(block.solved.block for _, block in ens.blocks)
        found[f"{name}, block"] = block.dense()
        found[f"{name}, kind"] = type(block).__name__
    return found


def plant(fault):
    """Let something go wrong in this process."""
    orthonormal_rows, finish = _krylov._orthonormal_rows, _tiles.KernelTiles.finish_tile

    def round_differently(rows, rounding):
        # As another library might: with other signs, and with one row less near the end.
        Q, C = orthonormal_rows(rows, rounding)
        return (-Q[:-1], -C[:, :-1]) if len(Q) > 1 else (-Q, -C)

    def die(*arguments):
        os.kill(os.getpid(), signal.SIGKILL)

    if fault == "rounding":
        _krylov._orthonormal_rows = round_differently
    elif fault == "nan":
        _tiles.KernelTiles.finish_tile = lambda self, i, j, sums: finish(
            self, i, j, jax.tree.map(lambda a: a * jnp.nan, sums)
        )
    elif fault == "death":
        _tiles.KernelTiles.prepare = die
    elif fault == "death in a product":
        _krylov.KrylovSpace.grow = die


def main(arguments):
    jax.config.update("jax_enable_x64", True)
    # Small tiles, so that devices have several.
    _tiles.ENTRIES_PER_TILE, _tiles.ENTRIES_PER_STORED_TILE = 16, 16
    if arguments.address:
        timeout = {"heartbeat_timeout_seconds": arguments.timeout} if arguments.timeout else {}
        jax.distributed.initialize(arguments.address, num_processes=2, process_id=arguments.process, **timeout)
    else:
        jax.config.update("jax_num_cpu_devices", arguments.devices)
        # The cores of one CPU share their memory, so blocks would not be spread over them without being told.
        _tiles.has_several_memories = lambda: True
    if arguments.process == 1:
        plant(arguments.fault)
    np.savez(arguments.result, **results(arguments.problems))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result")
    parser.add_argument("--problems", nargs="+", default=["plain", "D4"])
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--process", type=int)
    parser.add_argument("--address")
    parser.add_argument("--fault", choices=["rounding", "nan", "death", "death in a product"])
    parser.add_argument("--timeout", type=int)
    main(parser.parse_args())
