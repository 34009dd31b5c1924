"""The infinite ensemble trained with the cross-entropy, on real images: accuracy and likelihood before any training.

A few members of infinite width are drawn and followed on FashionMNIST, augmented by the four quarter turns. The network
is an MLP with two hidden ReLU layers, the labels are smoothed by 0.1, and all is in single precision.

    python examples/classified_images.py                           # decomposes blocks of 2,000 rows
    python examples/classified_images.py --lanczos                 # the same by products with tiles alone
    python examples/classified_images.py --images 4000 --members 4 --lanczos

The preset "test" draws its own images, which need no files.
"""

import argparse
import resource
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from _rotated_images import drawn

from ntk_equiv import augment, datasets, filters, groups, metrics, reps, solvers, stax
from ntk_equiv.infinite import SampledEnsemble


class Settings(NamedTuple):
    """How many training images, test images and members, and when to look."""

    images: int
    tested: int
    members: int
    times: tuple[float, ...]


PRESETS = {
    "quick": Settings(images=2000, tested=1000, members=16, times=(10.0, 100.0, 1000.0)),
    "test": Settings(images=12, tested=8, members=2, times=(10.0, 100.0)),
}


def images(settings, preset):
    """Return training and test images and their classes, with mean 0 and variance 1 over the training images."""
    if preset == "test":
        train, test = drawn(jax.random.key(0), settings.images), drawn(jax.random.key(1), settings.tested)
    else:
        train = datasets.fashion_mnist("train", count=settings.images)[:2]
        test = datasets.fashion_mnist("test", count=settings.tested)[:2]
    x, x_test = (jnp.asarray(part[0], jnp.float32) for part in (train, test))
    mean, std = x.mean(), x.std()
    return (x - mean) / std, jnp.asarray(train[1]), (x_test - mean) / std, jnp.asarray(test[1])


def main():
    """Draw, train, and say how good the predictions are."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", choices=PRESETS, default="quick")
    parser.add_argument("--images", type=int, help="how many training images")
    parser.add_argument("--members", type=int, help="how many members")
    parser.add_argument("--lanczos", action="store_true", help="use products with tiles alone")
    asked = parser.parse_args()
    settings = PRESETS[asked.preset]
    settings = settings._replace(images=asked.images or settings.images, members=asked.members or settings.members)
    x, y, x_test, y_test = images(settings, asked.preset)
    dense = stax.Dense(1, 2**0.5, 0.1)
    network = stax.serial(stax.Flatten(), dense, stax.Relu(), dense, stax.Relu(), stax.Dense(1))
    start = time.monotonic()
    ens = SampledEnsemble(
        network,
        augment(x, y, reps.rot90(groups.cyclic(4))),
        "cross_entropy",
        filters.gradient_flow(),
        key=jax.random.key(0),
        members=settings.members,
        outputs=10,
        label_smoothing=0.1,
        reduction="mean",
        solver=solvers.Lanczos(rtol=1e-2) if asked.lanczos else "auto",
    )
    jax.block_until_ready(ens.mean(x_test[:1], 0.0))
    print(ens, "by", ens.solver, ens.drawing_error)
    print(f"kernels and initial functions: {time.monotonic() - start:.0f} s")
    start = time.monotonic()
    logits = np.asarray(ens.outputs(x_test, jnp.array(settings.times)))
    print(f"training and test images: {time.monotonic() - start:.0f} s")
    print("time      accuracy            log-likelihood loss   one member")
    for t, values in zip(settings.times, logits, strict=True):
        right, loss = metrics.accuracy(values, y_test), metrics.negative_log_likelihood(values, y_test)
        one = f"{np.mean(right.members):.3f}, {np.mean(loss.members):.3f}"
        found = [f"{part.probabilities.value:.3f} ± {part.probabilities.error:.3f}" for part in (right, loss)]
        print(f"{t:8.0e}  {found[0]:18}  {found[1]:20}  {one}")
    # macOS counts bytes, Linux kilobytes.
    print(f"memory at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB")


if __name__ == "__main__":
    main()
