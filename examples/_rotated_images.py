"""Images for training and testing, and their rotations: by the angles of C_k, or by any other angle.

Networks are trained on FashionMNIST and tested on the test images of four sets: FashionMNIST itself, MNIST, CIFAR10
made grey and 28 x 28, and Gaussian noise. The preset "test" draws its own images, which need no files.

Quarter turns are exact. All other rotations interpolate linearly between pixels, and pixels outside the image are
black. So rotations by 45 degrees lose the corners, and two of them are not a quarter turn.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.ndimage import map_coordinates

from ntk_equiv import datasets, groups, reps

SETS = {"fashion": "FashionMNIST", "mnist": "MNIST", "cifar10": "CIFAR10 (grey)", "noise": "Gaussian noise"}
CLASSES = 10
DRAWN_SIDE = 12


class Pictures(NamedTuple):
    """Training images [n, H, W, 1] and their classes, test images by set, and the classes of the FashionMNIST ones."""

    x: Any
    y: Any
    tests: dict[str, Any]
    fashion_y: Any


def pictures(settings, data_dir):
    """Load the sets of an experiment, with `settings.train` and `settings.test` images, or draw them for a test."""
    key = jax.random.key(settings.seed)
    if settings.drawn:
        keys = jax.random.split(key, len(SETS) + 1)
        x, y = drawn(keys[0], settings.train)
        sets = {name: drawn(own, settings.test) for name, own in zip(SETS, keys[1:], strict=True)}
        tests, labels = {name: pair[0] for name, pair in sets.items()}, sets["fashion"][1]
    else:
        x, y = datasets.fashion_mnist("train", data_dir, count=settings.train)[:2]
        fashion, labels = datasets.fashion_mnist("test", data_dir, count=settings.test)[:2]
        mnist, cifar10 = (read("test", data_dir, count=settings.test).x for read in (datasets.mnist, datasets.cifar10))
        tests = {"fashion": fashion, "mnist": mnist, "cifar10": cifar10}
    tests["noise"] = datasets.noise_images(jax.random.fold_in(key, 1), settings.test, shape=x.shape[1:])
    return Pictures(x, y, tests, labels)


def drawn(key, count):
    """Draw small bars near the middle, rotated by any angle. Higher classes have longer bars."""
    classes, places, angles = jax.random.split(key, 3)
    y = jax.random.randint(classes, (count,), 0, CLASSES, jnp.int32)
    middle = jax.random.uniform(places, (count, 2), minval=-1.5, maxval=1.5)
    angle = jax.random.uniform(angles, (count,), maxval=2 * np.pi)
    axis = np.arange(DRAWN_SIDE) - (DRAWN_SIDE - 1) / 2
    right, down = np.meshgrid(axis, axis)
    right, down = (side[None] - middle[:, i, None, None] for i, side in enumerate((right, down)))
    cos, sin = jnp.cos(angle)[:, None, None], jnp.sin(angle)[:, None, None]
    along, across = cos * right + sin * down, cos * down - sin * right
    length = 1 + 0.4 * y[:, None, None]
    return jnp.exp(-((along / length) ** 2) - across**2)[..., None], y


def rotations(order):
    """Return the action of C_k on images: exact for quarter turns, by interpolation otherwise."""
    group = groups.cyclic(order)
    return reps.rot90(group) if order in (1, 2, 4) else reps.rotate(group)


def on_orbits(x, order):
    """Return all rotations of images [n, H, W, C] under C_k, [order * n, H, W, C], the images themselves first.

    The result is in the memory of the host, because it may be large.
    """
    turned = jax.jit(rotations(order))
    return np.concatenate([np.asarray(turned(g, x)) for g in range(order)])


def rotate(x, matrices):
    """Rotate images [n, H, W, C] by matrices [count, 2, 2] of the plane, [count, n, H, W, C].

    Images turn counter-clockwise about their centre, with linear interpolation and black outside. For the rotations of
    C_k this is the action of `reps.rotate`.
    """
    rows, columns = np.indices(x.shape[1:3]).reshape(2, -1)
    centre = (np.array(x.shape[1:3]) - 1) / 2
    offsets = jnp.asarray(np.stack([columns - centre[1], centre[0] - rows]), x.dtype)  # to the right, and up

    def turned(matrix):
        before = matrix.T.astype(x.dtype) @ offsets
        places = [float(centre[0]) - before[1], float(centre[1]) + before[0]]
        one = lambda plane: map_coordinates(plane, places, order=1, mode="constant")  # noqa: E731
        planes = jnp.moveaxis(x, -1, 1).reshape(-1, *x.shape[1:3])
        moved = jax.vmap(one)(planes).reshape(x.shape[0], x.shape[3], *x.shape[1:3])
        return jnp.moveaxis(moved, 1, -1)

    return jax.lax.map(turned, jnp.asarray(matrices))
