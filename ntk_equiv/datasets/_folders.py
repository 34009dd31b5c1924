"""Folders of pictures, one folder for each class, as NCT-CRC-HE-100K comes. Reading pictures takes Pillow."""

from os import PathLike
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv import reps
from ntk_equiv._check import file_path, positive_integer, random_key, refusal
from ntk_equiv.datasets import _checksums, _places
from ntk_equiv.datasets._containers import read_picture
from ntk_equiv.datasets._pixels import check_choice, pixels, turns
from ntk_equiv.datasets._records import LabelledSet
from ntk_equiv.groups import FiniteGroup

_SUFFIXES = {".png", ".tif", ".tiff", ".jpg", ".jpeg", ".bmp"}
_HISTOLOGY = "NCT-CRC-HE-100K"


def image_folder(
    path: str | PathLike[str],
    /,
    *,
    count: int | None = None,
    key: jax.Array | None = None,
    size: int | None = None,
    group: FiniteGroup | None = None,
    dtype: Any = None,
) -> LabelledSet:
    """Pictures from a folder with one folder for each class, in colour.

    Args:
        path: the folder. Classes are numbered in the alphabetical order of its folders.
        count: so many only, drawn at random; only these are read.
        key: a JAX random key, for `count`.
        size: pictures are rescaled to size × size; needed if they differ in size.
        group: rotations, `cyclic(4)` unless given. Quarter turns and flips are exact, others interpolated.
        dtype: of the pixels; JAX's own unless given.

    Returns:
        Images [n, H, W, 3] with entries between 0 and 1, labels the numbers of the classes.

    Raises:
        FileNotFoundError: there is no such folder, or no pictures in it.
        ValueError: a picture is damaged, pictures differ in size, or there are fewer than `count`.
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
    check_choice(count, group, size)
    return _read(_listing(path), path, count, key, size, group, dtype)


def nct_crc_he(
    data_dir: str | PathLike[str] | None = None,
    *,
    key: jax.Array,
    count: int = 10_000,
    size: int | None = None,
    group: FiniteGroup | None = None,
    dtype: Any = None,
) -> LabelledSet:
    """NCT-CRC-HE-100K: histological slices in nine classes, 224 × 224, in colour (CC BY 4.0).

    Gerken & Kessel draw 10,000, train on 11/12 of them and validate on the others: see `LabelledSet.split`. That many
    take 6 GB in single precision; `size` makes them smaller while they are read.

    Args:
        data_dir: a folder with a folder `NCT-CRC-HE-100K` in it, to look in first.
        key: a JAX random key, to draw with.
        count: how many.
        size: images are rescaled to size × size.
        group: rotations, `cyclic(4)` unless given.
        dtype: of the pixels.

    Raises:
        FileNotFoundError: the folder is nowhere; the message says how to get it and where to put it.
        ValueError: the number of pictures in a class is not that of the original, or a picture is damaged.

    Example:
        >>> import jax
        >>> from ntk_equiv import datasets
        >>> data = datasets.nct_crc_he("~/data", key=jax.random.key(0), count=12, size=56)  # doctest: +SKIP
        >>> train, validation = data.split(jax.random.key(1), 11)  # doctest: +SKIP
    """
    random_key(key)
    check_choice(count, group, size)
    where = _places.roots(data_dir)
    path = next((folder for root in where if (folder := root / _HISTOLOGY).is_dir()), None)
    if path is None:
        remedy = f"Unpack {_HISTOLOGY}.zip of https://zenodo.org/records/1214456."
        raise _places.missing(_HISTOLOGY, f"a folder {_HISTOLOGY}", where, remedy, [])
    listing = _listing(path)
    for name, expected in _checksums.COUNTS[_HISTOLOGY].items():
        if len(listing.get(name, ())) != expected:
            fix = "Unpack the archive anew, or read what is there with `image_folder`."
            raise refusal(str(path / name), expected=f"{expected} pictures", got=len(listing.get(name, ())), fix=fix)
    return _read(listing, path, count, key, size, group, dtype)


def _listing(path: Path) -> dict[str, list[Path]]:
    """The pictures of each class, all in alphabetical order."""
    folders = sorted(entry for entry in path.iterdir() if entry.is_dir()) if path.is_dir() else []
    listing = {folder.name: sorted(f for f in folder.iterdir() if f.suffix.lower() in _SUFFIXES) for folder in folders}
    if not any(listing.values()):
        got = "no pictures there" if path.is_dir() else "no such folder"
        fix = f"Pictures end in one of {', '.join(sorted(_SUFFIXES))}, in folders named after their classes."
        expected = "a folder with a folder of pictures for each class"
        raise refusal(str(path), expected=expected, got=got, fix=fix, kind=FileNotFoundError)
    return listing


def _read(
    listing: dict[str, list[Path]],
    path: Path,
    count: int | None,
    key: jax.Array | None,
    size: int | None,
    group: FiniteGroup | None,
    dtype: Any,
) -> LabelledSet:
    files = [(file, label) for label, folder in enumerate(listing.values()) for file in folder]
    chosen = [files[i] for i in _drawn(len(files), count, key)]
    size = None if size is None else positive_integer(size, "size")
    first = read_picture(chosen[0][0], size)
    images = np.empty((len(chosen), *first.shape), np.uint8)
    for i, (file, _) in enumerate(chosen):
        picture = read_picture(file, size)
        if picture.shape != first.shape:
            got = f"{picture.shape} in {file.relative_to(path)}, {first.shape} elsewhere"
            raise refusal("size", expected="given for pictures of different shapes", got=got, fix="Pass size=28, say.")
        images[i] = picture
    action, labels = turns(group), jnp.array([label for _, label in chosen], jnp.int32)
    return LabelledSet(pixels(images, dtype), labels, action, reps.trivial(action.group))


def _drawn(total: int, count: int | None, key: jax.Array | None) -> list[int]:
    """Which of all pictures to read."""
    if count is None:
        return list(range(total))
    if positive_integer(count, "count") > total:
        raise refusal("count", expected=f"at most {total}", got=count, fix="There are no more pictures.")
    if key is None:
        raise refusal("key", expected="given with count", got=None, fix="Pass a key such as `jax.random.key(0)`.")
    return jax.random.permutation(key, total)[:count].tolist()
