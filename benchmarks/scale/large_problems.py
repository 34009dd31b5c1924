"""What the benchmarks of large problems share: the problems, and how many products a solver took."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from measuring import Found, peak_beyond, report, time_run

from ntk_equiv import InfiniteEnsemble, augment, datasets, groups, reps, solvers, stax

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


def fashion_problem(images, kind, tested, dtype=jnp.float32):
    """FashionMNIST under C4 with centred one-hot labels, and test images with their classes."""
    train, test = (datasets.fashion_mnist(part, dtype=dtype) for part in ("train", "test"))
    labels = jax.nn.one_hot(train.y[:images], 10, dtype=dtype) - 0.1
    if kind == "mlp":
        layers = [stax.Flatten(), *3 * (stax.Dense(1, 2**0.5, 0.1), stax.Relu())]
    else:
        layers = [*3 * (stax.Conv(1, (3, 3), padding="SAME", W_std=2**0.5, b_std=0.1), stax.Relu()), stax.Flatten()]
    augmented = augment(train.x[:images], labels, reps.rot90(groups.cyclic(4)))
    return stax.serial(*layers, stax.Dense(1)).kernel_fn, augmented, test.x[:tested], np.asarray(test.y[:tested])


def report_images(name, problem, times, rtol, *, memory):
    """Predict all test images, and report time, memory, accuracy and bound."""
    kernel_fn, train, x_test, classes = problem
    times, kept = jnp.array(times, jnp.float32), []
    solver = solvers.Lanczos(rtol=rtol, progress=True)

    def predict():
        kept.append(InfiniteEnsemble(kernel_fn, train, reduction="mean", solver=solver))
        return kept[0].mean(x_test, times), kept[0].error_bound(x_test, times)

    peak, (seconds, (mean, bound)) = peak_beyond(lambda: time_run(predict))
    right = (np.argmax(mean, axis=-1) == classes).mean(axis=1)
    print(
        f"    accuracy {right} at t = {times}; {products_of(kept[0])} products; bounds {bound.max(axis=1)}", flush=True
    )
    case = f"{train.n:,} FashionMNIST images × C4, {name}"
    found = Found(seconds, {"30 minutes": LIMIT_SECONDS})
    shown = {"accuracy": [float(value) for value in right], "times": [float(t) for t in times]}
    report(f"mean at {len(times)} times, {case}", target=1, peer="30 minutes", found=found, **shown)
    peer = f"{memory:g} GiB"
    report(f"memory, {case}", target=1, peer=peer, found=Found(peak / 2**30, {peer: memory}), unit="GiB")
