"""Histological slices for training and validation.

Quarter turns are exact. All other rotations interpolate linearly between pixels. Pixels outside the image are zero,
which is the mean colour here. Rotations by 45 degrees lose the corners.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from _rotated_images import rotations

from ntk_equiv import datasets, groups, reps

CLASSES = 9
# A description of each set of images.
SETS = {
    "pathmnist": "PathMNIST, 1,423 test images split 11:1 by us",
    "nct_crc_he": "NCT-CRC-HE-100K, {images:,} images split 11:1",
    "drawn": "coloured discs drawn for a test, not histological slices",
}


class Slices(NamedTuple):
    """Images [n, H, W, 3], whose channels have mean 0 and variance 1 on the training part, and their classes."""

    x: Any
    y: Any
    validation_x: Any
    validation_y: Any


def load(settings, data_dir):
    """Load `settings.count` images, drawn at random if there are more, and split them into 11/12 and 1/12."""
    drawing, splitting = jax.random.split(jax.random.key(settings.seed))
    if settings.images == "pathmnist":
        data = datasets.pathmnist("partial", data_dir, count=settings.count)
    elif settings.images == "nct_crc_he":
        data = datasets.nct_crc_he(data_dir, key=drawing, count=settings.count)
    else:
        data = discs(drawing, settings.count)
    train, validation = data.split(splitting, settings.count * 11 // 12)
    mean, std = jnp.mean(train.x, (0, 1, 2), keepdims=True), jnp.std(train.x, (0, 1, 2), keepdims=True)
    return Slices((train.x - mean) / std, train.y, (validation.x - mean) / std, validation.y)


def discs(key, count, side=12):
    """Draw discs on noise. The class is the colour of the disc."""
    colours, places, noise = jax.random.split(key, 3)
    y = jnp.arange(count, dtype=jnp.int32) % CLASSES
    colour = jax.random.uniform(colours, (CLASSES, 3))[y]
    middle = jax.random.uniform(places, (count, 2, 1, 1), minval=2.0, maxval=side - 3.0)
    distance = jnp.sum((np.indices((side, side))[None] - middle) ** 2, axis=1)[..., None]
    x = jnp.where(distance < 10, colour[:, None, None, :], jax.random.uniform(noise, (count, side, side, 3)))
    return datasets.LabelledSet(x, y, rotations(4), reps.trivial(groups.cyclic(4)))
