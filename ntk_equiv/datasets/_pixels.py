"""From bytes to what networks take: images [n, H, W, C] of numbers between 0 and 1, and noise.

Colours become grey as the luminance of ITU-R 601, 0.299 R + 0.587 G + 0.114 B, and images change size by linear
interpolation, smoothed where they shrink.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ntk_equiv import groups, reps
from ntk_equiv._check import positive_integer, positive_integers, random_key, refusal
from ntk_equiv.datasets._records import default_float
from ntk_equiv.groups import FiniteGroup, check_finite_group
from ntk_equiv.reps import Representation

_LUMINANCE = np.array([0.299, 0.587, 0.114])


def noise_images(
    key: jax.Array, n: int, /, *, shape: tuple[int, int, int] = (28, 28, 1), dtype: Any = None
) -> Float[jax.Array, "{n} height width channels"]:
    """Images with independent pixels from N(0, 1), [n, H, W, C]. They have no labels.

    Args:
        key: a JAX random key.
        n: how many.
        shape: of one image: height, width, channels.
        dtype: of the numbers; JAX's own unless given.

    Example:
        >>> import jax
        >>> from ntk_equiv.datasets import noise_images
        >>> noise_images(jax.random.key(0), 3).shape
        (3, 28, 28, 1)
    """
    random_key(key)
    fix = "Pass height, width and channels, as in (28, 28, 1)."
    sizes = positive_integers(shape, "shape", fix=fix)
    if len(sizes) != 3:
        raise refusal("shape", expected="three numbers", got=shape, fix=fix)
    return jax.random.normal(key, (positive_integer(n, "n"), *sizes), _pixel_type(dtype))


def pixels(images: np.ndarray, dtype: Any = None) -> Float[jax.Array, "n height width channels"]:
    """Bytes [n, H, W] or [n, H, W, C] as numbers between 0 and 1, [n, H, W, C]."""
    images = images[..., None] if images.ndim == 3 else images
    return jnp.asarray(images, _pixel_type(dtype)) / 255


def grey(images: Float[jax.Array, "n height width 3"]) -> Float[jax.Array, "n height width 1"]:
    """Images [n, H, W, 3] as grey ones, [n, H, W, 1]."""
    weights = jnp.asarray(_LUMINANCE, images.dtype)
    return jnp.einsum("nhwc,c->nhw", images, weights, precision=jax.lax.Precision.HIGHEST)[..., None]


def resized(images: jax.Array, size: int) -> jax.Array:
    """Images [n, H, W, C] at the size [n, size, size, C]."""
    shape = (images.shape[0], size, size, images.shape[3])
    smooth = jax.image.resize(images, shape, "linear", antialias=True, precision=jax.lax.Precision.HIGHEST)
    return jnp.clip(smooth, 0, 1)  # weights add up to 1 only up to rounding


def turns(group: FiniteGroup | None) -> Representation:
    """How the group acts on images: exactly by quarter turns and flips where it can, else by interpolation."""
    group = groups.cyclic(4) if group is None else check_finite_group(group)
    exact = (groups.trivial(), groups.cyclic(2), groups.cyclic(4), groups.dihedral(2), groups.dihedral(4))
    return reps.rot90(group) if group in exact else reps.rotate(group)


def check_choice(count: Any, group: Any, size: Any = None) -> None:
    """Refuse what could be asked of no images, before any are looked for."""
    turns(group)
    for number, argument in ((count, "count"), (size, "size")):
        if number is not None:
            positive_integer(number, argument)


def _pixel_type(dtype: Any) -> Any:
    found = default_float() if dtype is None else dtype
    if not jnp.issubdtype(found, jnp.floating):
        raise refusal("dtype", expected="of floating-point numbers", got=dtype, fix='Pass "float32", say.')
    return found
