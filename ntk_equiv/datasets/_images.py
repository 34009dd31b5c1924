"""Images: from bytes to what networks take, from folders of pictures, and noise.

Images are [n, H, W, C] with entries between 0 and 1. Colours become grey as the luminance of ITU-R 601,
0.299 R + 0.587 G + 0.114 B. Images change size by linear interpolation, smoothed where they shrink.
"""

from os import PathLike
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Float

from ntk_equiv import groups, reps
from ntk_equiv._check import file_path, positive_integer, positive_integers, random_key, refusal
from ntk_equiv.datasets._file_formats import read_picture
from ntk_equiv.datasets._labelled_set import LabelledSet, default_float
from ntk_equiv.groups import FiniteGroup, check_finite_group
from ntk_equiv.reps import Representation

_LUMINANCE = np.array([0.299, 0.587, 0.114])
_SUFFIXES = {".png", ".tif", ".tiff", ".jpg", ".jpeg", ".bmp"}


def noise_images(
    key: jax.Array, n: int, /, *, shape: tuple[int, int, int] = (28, 28, 1), dtype: DTypeLike | None = None
) -> Float[jax.Array, "{n} height width channels"]:
    """Return images with independent pixels from N(0, 1), [n, H, W, C]. They have no labels.

    Args:
        key: a JAX random key.
        n: the number of images.
        shape: height, width and channels of an image.
        dtype: the dtype of the pixels; by default what JAX is set to.

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
    return jax.random.normal(key, (positive_integer(n, "n"), *sizes), _check_pixel_type(dtype))


def scale_bytes(images: np.ndarray, dtype: DTypeLike | None = None) -> Float[jax.Array, "n height width channels"]:
    """Return bytes [n, H, W] or [n, H, W, C] as numbers between 0 and 1, [n, H, W, C]."""
    images = images[..., None] if images.ndim == 3 else images
    return jnp.asarray(images, _check_pixel_type(dtype)) / 255


def to_grey(images: Float[jax.Array, "n height width 3"]) -> Float[jax.Array, "n height width 1"]:
    """Return colour images [n, H, W, 3] as grey ones, [n, H, W, 1]."""
    luminance = jnp.asarray(_LUMINANCE, images.dtype)
    return jnp.einsum("nhwc,c->nhw", images, luminance, precision=jax.lax.Precision.HIGHEST)[..., None]


def resize(images: jax.Array, size: int) -> jax.Array:
    """Return images [n, H, W, C] at the size [n, size, size, C]."""
    shape = (images.shape[0], size, size, images.shape[3])
    smooth = jax.image.resize(images, shape, "linear", antialias=True, precision=jax.lax.Precision.HIGHEST)
    return jnp.clip(smooth, 0, 1)  # the coefficients add up to 1 only up to rounding


def _image_action(group: FiniteGroup | None) -> Representation:
    """Return how the group acts on images: exactly by quarter turns and flips if it can, else by interpolation."""
    group = groups.cyclic(4) if group is None else check_finite_group(group)
    exact = (groups.trivial(), groups.cyclic(2), groups.cyclic(4), groups.dihedral(2), groups.dihedral(4))
    return reps.rot90(group) if group in exact else reps.rotate(group)


def check_choice(count: int | None, group: FiniteGroup | None, size: int | None = None) -> Representation:
    """Return how the group acts on images; refuse a bad choice before any files are looked for."""
    for number, argument in ((count, "count"), (size, "size")):
        if number is not None:
            positive_integer(number, argument)
    return _image_action(group)


def _check_pixel_type(dtype: DTypeLike | None) -> DTypeLike:
    dtype = default_float() if dtype is None else dtype
    if not jnp.issubdtype(dtype, jnp.floating):
        raise refusal("dtype", expected="of floating-point numbers", got=dtype, fix='Pass "float32", say.')
    return dtype


def image_folder(
    path: str | PathLike[str],
    /,
    *,
    count: int | None = None,
    key: jax.Array | None = None,
    size: int | None = None,
    group: FiniteGroup | None = None,
    dtype: DTypeLike | None = None,
) -> LabelledSet:
    """Return images in colour from a folder with one folder for each class.

    Args:
        path: the folder. Classes are numbered in the alphabetical order of its folders.
        count: read only so many images, drawn at random.
        key: a JAX random key, needed with `count`.
        size: rescale images to size × size; needed if they differ in size.
        group: the symmetry, by default `cyclic(4)`. Quarter turns and flips are exact, other rotations interpolate.
        dtype: the dtype of the pixels; by default what JAX is set to.

    Returns:
        Images [n, H, W, 3] with entries between 0 and 1, and the numbers of their classes as labels. Without `count`
        they come in the order of `image_files`.

    Raises:
        FileNotFoundError: there is no such folder, or no images in it.
        ValueError: an image is damaged, images differ in size, or there are fewer than `count`.
        ModuleNotFoundError: Pillow is not installed.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> from ntk_equiv import datasets
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for kind in ("muscle", "tumour"):
        ...         (Path(folder) / kind).mkdir()
        ...         Image.new("RGB", (32, 32), "red").save(Path(folder) / kind / "1.png")
        ...     data = datasets.image_folder(folder, size=28)
        >>> data.x.shape, data.y.tolist()
        ((2, 28, 28, 3), [0, 1])
    """
    path = file_path(path, "path").expanduser()
    action = check_choice(count, group, size)
    return read_pictures(list_pictures(path), path, action, count=count, key=key, size=size, dtype=dtype)


def image_files(path: str | PathLike[str], /) -> list[str]:
    """Return the names of the images that `image_folder` reads, in its order: class by class, file by file.

    Args:
        path: the folder. Names start from it.

    Raises:
        FileNotFoundError: there is no such folder, or no images in it.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from ntk_equiv import datasets
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("tumour/1.png", "muscle/7.png", "muscle/2.png"):
        ...         (Path(folder) / name).parent.mkdir(exist_ok=True)
        ...         (Path(folder) / name).touch()
        ...     datasets.image_files(folder)
        ['muscle/2.png', 'muscle/7.png', 'tumour/1.png']
    """
    path = file_path(path, "path").expanduser()
    return [file.relative_to(path).as_posix() for folder in list_pictures(path).values() for file in folder]


def list_pictures(path: Path) -> dict[str, list[Path]]:
    """Return the pictures of each class, all in alphabetical order."""
    folders = sorted(entry for entry in path.iterdir() if entry.is_dir()) if path.is_dir() else []
    listing = {folder.name: sorted(f for f in folder.iterdir() if f.suffix.lower() in _SUFFIXES) for folder in folders}
    if not any(listing.values()):
        beside = path.is_dir() and any(file.suffix.lower() in _SUFFIXES for file in path.iterdir())
        got = "images outside of such folders" if beside else "no images there" if path.is_dir() else "no such folder"
        fix = f"Images end in one of {', '.join(sorted(_SUFFIXES))}, in folders named after their classes."
        expected = "a folder with a folder of images for each class"
        raise refusal(str(path), expected=expected, got=got, fix=fix, kind=FileNotFoundError)
    return listing


def read_pictures(
    listing: dict[str, list[Path]],
    path: Path,
    action: Representation,
    *,
    count: int | None,
    key: jax.Array | None,
    size: int | None,
    dtype: DTypeLike | None,
) -> LabelledSet:
    """Return all listed pictures, or `count` of them drawn at random, with the numbers of their classes."""
    files = [(file, label) for label, folder in enumerate(listing.values()) for file in folder]
    chosen = [files[i] for i in _draw_indices(len(files), count, key)]
    first = read_picture(chosen[0][0], size)
    images = np.empty((len(chosen), *first.shape), np.uint8)
    for i, (file, _) in enumerate(chosen):
        picture = read_picture(file, size)
        if picture.shape != first.shape:
            got = f"{picture.shape} in {file.relative_to(path)}, {first.shape} elsewhere"
            raise refusal("size", expected="given for images of different shapes", got=got, fix="Pass size=28, say.")
        images[i] = picture
    labels = jnp.array([label for _, label in chosen], jnp.int32)
    return LabelledSet(scale_bytes(images, dtype), labels, action, reps.trivial(action.group))


def _draw_indices(total: int, count: int | None, key: jax.Array | None) -> list[int]:
    """Return which of all pictures to read."""
    if count is None:
        return list(range(total))
    if count > total:
        raise refusal("count", expected=f"at most {total}", got=count, fix="There are no more images.")
    if key is None:
        raise refusal("key", expected="given with count", got=None, fix="Pass a key such as `jax.random.key(0)`.")
    return jax.random.permutation(key, total)[:count].tolist()
