"""The other kinds of files that image sets come in, each read as (images, labels) of bytes without trusting it.

    npz      the arrays of a NumPy archive; objects, which would be unpickled, are refused
    bin      CIFAR10's binary batches: rows of one label and 3 · 32 · 32 pixels, channels first
    python   CIFAR10's Python batches, which are pickles: scanned for their numbers, never unpickled
    png      CIFAR10's batches as one picture each, an image to a row, with the labels as JSON

Images are [n, H, W] or [n, H, W, 3], labels [n].
"""

import io
import json
import math
import pickletools
import tarfile
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ntk_equiv._check import file_path, refusal
from ntk_equiv.datasets._idx import check_memory, damaged, read_idx

Arrays = tuple[np.ndarray, np.ndarray]

_CIFAR_SHAPE = (3, 32, 32)
_CIFAR_PIXELS = 3 * 32 * 32
_WHOLE_NUMBERS = {"BININT1", "BININT2", "BININT", "INT"}


def read_idx_pair(images: Path, labels: Path) -> Arrays:
    """Images and labels from two IDX files."""
    return read_idx(images), read_idx(labels)


def npz_arrays(path: Any, names: Sequence[str], /, optional: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """Arrays of an npz file by their names, read without trusting it: objects, which would be unpickled, are refused.

    How large they are is known before they are read, and what does not fit into the free memory is refused.

    Args:
        path: the file.
        names: arrays that must be there.
        optional: arrays that may be.

    Raises:
        ValueError: no such file, not an intact npz file of numbers, larger than the free memory, or an array is
            missing; the message names it.

    Example:
        >>> import tempfile, numpy as np
        >>> from ntk_equiv import datasets
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(f"{folder}/mine.npz", x=np.eye(2), y=np.arange(2), more=np.ones(9))
        ...     list(datasets.npz_arrays(f"{folder}/mine.npz", ["x", "y"], optional=["x_test"]))
        ['x', 'y']
    """
    path = file_path(path, "path")
    if not path.is_file():
        fix = "Check its name; `np.savez(path, x=..., y=...)` writes one."
        raise refusal(str(path), expected="an npz file", got="a folder" if path.is_dir() else "no file", fix=fix)
    if not zipfile.is_zipfile(path):  # NumPy would take it for something else
        fix = "`np.savez(path, x=..., y=...)` writes one. If it was one, it is truncated or altered: get it anew."
        raise refusal(str(path), expected="an npz file", got="no archive", fix=fix)
    try:
        with path.open("rb") as content, np.load(content, allow_pickle=False) as archive:
            there = list(archive)
            _check_sizes(path, archive.zip, [name for name in (*names, *optional) if name in there])
            found = {name: archive[name] for name in (*names, *optional) if name in there}
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError) as error:
        if hasattr(error, "argument"):
            raise
        raise damaged(path, "an intact npz file of numbers", f"one that cannot be read ({error})") from error
    if missing := [name for name in names if name not in there]:
        expected = f"a file with {' and '.join(missing)}"
        fix = "The file lacks this part of the data: take another part or the complete file, or name its arrays so."
        raise refusal(str(path), expected=expected, got=f"{', '.join(there) or 'nothing'} only", fix=fix)
    return found


def _check_sizes(path: Path, archive: zipfile.ZipFile, names: list[str]) -> None:
    """Refuse arrays that are not as long as they say, or do not fit into memory, by their headers alone."""
    sizes = {}
    for name in names:
        member = archive.getinfo(f"{name}.npy" if f"{name}.npy" in archive.NameToInfo else name)
        with archive.open(member) as content:
            version = np.lib.format.read_magic(content)
            read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
            if version not in read:
                raise ValueError(f"{name} is no array of numbers")
            shape, _, dtype = read[version](content)
            if not dtype.hasobject and math.prod(shape) * dtype.itemsize != member.file_size - content.tell():
                raise ValueError(f"{name} is not as long as its header says")
        sizes[name] = math.prod(shape) * dtype.itemsize
    if sizes:
        largest = max(sizes, key=lambda name: sizes[name])
        check_memory(path, sum(sizes.values()), f", most of it in {largest}")


def read_npz(path: Path, images: str, labels: str) -> Arrays:
    """Images and their labels from an npz file."""
    found = npz_arrays(path, (images, labels))
    pixels, classes = found[images], found[labels]
    if pixels.dtype != np.uint8 or len(pixels) != classes.size:
        got = f"{pixels.shape} of {pixels.dtype} with {classes.size} labels"
        raise damaged(path, "images of bytes with one label each", got)
    return pixels, classes.reshape(-1).astype(np.uint8)


def read_cifar_binary(*batches: Path) -> Arrays:
    """CIFAR10 from its binary batches."""
    return _joined([_binary_batch(path, path.read_bytes()) for path in batches])


def read_cifar_python(*batches: Path) -> Arrays:
    """CIFAR10 from its Python batches."""
    return _joined([_python_batch(path, path.read_bytes()) for path in batches])


def read_cifar_archive(path: Path, *members: str) -> Arrays:
    """CIFAR10 from batches inside a tar file, which is not unpacked: nothing is written anywhere."""
    read = _binary_batch if members[0].endswith(".bin") else _python_batch
    try:
        with tarfile.open(path) as archive:
            contents = [_member(archive, path, name) for name in members]
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise damaged(path, "an intact tar file", f"one that cannot be read ({error})") from error
    return _joined([read(path / name, content) for name, content in zip(members, contents, strict=True)])


def read_cifar_pictures(*paths: Path) -> Arrays:
    """CIFAR10 from pictures with one image to a row, the last file being the labels."""
    *batches, labels = paths
    try:
        classes = np.array(json.loads(labels.read_text()), np.uint8)
    except (ValueError, TypeError, OverflowError) as error:
        raise damaged(labels, "a list of classes as JSON", f"one that cannot be read ({error})") from error
    rows = [read_picture(path) for path in batches]
    for path, row in zip(batches, rows, strict=True):
        if row.shape[1:] != (_CIFAR_PIXELS // 3, 3):
            raise damaged(path, "a picture of 1024 coloured pixels to a row", f"shape {row.shape}")
    return np.concatenate(rows).reshape(-1, 32, 32, 3), classes


def read_picture(path: Path, size: int | None = None) -> np.ndarray:
    """A picture in colours, [H, W, 3], rescaled to size × size where that is given."""
    Image = _pillow()
    try:
        with Image.open(path) as picture:
            colours = picture.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise damaged(path, "an intact picture", f"one that cannot be read ({error})") from error
    return np.asarray(colours if size is None else colours.resize((size, size), Image.Resampling.BILINEAR))


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        fix = "Install it: pip install pillow"
        raise refusal(
            "Pillow", expected="there to read pictures", got="nothing", fix=fix, kind=ModuleNotFoundError
        ) from error
    return Image


def _member(archive: tarfile.TarFile, path: Path, name: str) -> bytes:
    found = [member for member in archive if member.isfile() and Path(member.name).name == name]
    content = archive.extractfile(found[0]) if found else None
    if content is None:
        raise damaged(path, f"an archive with {name}", "one without")
    check_memory(path, found[0].size, f", in {name}")
    return content.read()


def _binary_batch(path: Path, content: bytes) -> Arrays:
    if not content or len(content) % (1 + _CIFAR_PIXELS):
        raise damaged(path, f"whole rows of {1 + _CIFAR_PIXELS} bytes", f"{len(content)} bytes")
    rows = np.frombuffer(content, np.uint8).reshape(-1, 1 + _CIFAR_PIXELS)
    return _channels_last(rows[:, 1:]), rows[:, 0]


def _python_batch(path: Path, content: bytes) -> Arrays:
    """The longest string of a pickle, which are the pixels, and the whole numbers that follow the string "labels"."""
    pixels, classes, latest = "", [], None
    try:
        for opcode, argument, _ in pickletools.genops(io.BytesIO(content)):
            if isinstance(argument, str | bytes):
                latest = argument if isinstance(argument, str) else argument.decode("latin-1")
                pixels = max(pixels, latest, key=len)
            elif latest == "labels" and opcode.name in _WHOLE_NUMBERS:
                classes.append(argument)
    except (ValueError, UnicodeError) as error:
        raise damaged(path, "an intact Python batch of CIFAR10", f"one that cannot be read ({error})") from error
    if not classes or len(pixels) != len(classes) * _CIFAR_PIXELS or not set(classes) <= set(range(256)):
        got = f"{len(pixels)} pixels and {len(classes)} labels"
        raise damaged(path, "a Python batch of CIFAR10, 3072 pixels to a label", got)
    rows = np.frombuffer(pixels.encode("latin-1"), np.uint8).reshape(-1, _CIFAR_PIXELS)
    return _channels_last(rows), np.array(classes, np.uint8)


def _channels_last(rows: np.ndarray) -> np.ndarray:
    return rows.reshape(-1, *_CIFAR_SHAPE).transpose(0, 2, 3, 1)


def _joined(parts: list[Arrays]) -> Arrays:
    images, labels = zip(*parts, strict=True)
    return np.concatenate(images), np.concatenate(labels)
