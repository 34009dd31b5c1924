"""What the benchmarks of large problems share: the problems, and how many products a solver took."""

import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from ntk_equiv import augment, groups, reps, stax

LIMIT_SECONDS = 30 * 60


def radii_problem(samples, order, features=32, dtype=jnp.float32):
    """A function of the lengths of 16 vectors in the plane and of angles between them, under C_order."""
    angles = 2 * np.pi * np.arange(order) / order
    planes = [[[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]] for a in angles]
    turns = np.stack([np.kron(np.eye(features // 2), plane) for plane in planes]).astype(dtype)
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal((samples + 1000, features)), dtype)
    vectors = x.reshape(len(x), -1, 2)
    y = jnp.sin(jnp.sum(vectors[:, :8] ** 2, axis=(1, 2)) - features / 2) + jnp.sum(
        vectors[:, 0] * vectors[:, 1], axis=1
    )
    layers = [layer for _ in range(2) for layer in (stax.Dense(1, 2**0.5, 0.1), stax.Relu())]
    train = augment(x[:samples], y[:samples], reps.matrix(groups.cyclic(order), turns))
    # From the time at which the largest modes are learned to that at which most of the labels is.
    times = jnp.array([1e2, 1e3, 1e4], dtype)
    return stax.serial(*layers, stax.Dense(1)).kernel_fn, train, x[samples:], times


def products_of(ens):
    """How many products the solver has made for the labels."""
    solved = next(iter(ens.blocks.by_irrep.values())).solved
    return max(solution.space.products for solution in solved._spaces.values())
