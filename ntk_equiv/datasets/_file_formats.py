"""The kinds of files that image sets come in, each read without trusting it.

    idx      the format of MNIST: a header of 4 + 4d bytes, then the entries of an array with d axes, row by row
                 0 0 8 d | size of each axis, 4 bytes, big-endian | entries, one byte each
    npz      the arrays of a NumPy archive; objects, which would be unpickled, are refused
    bin      CIFAR10's binary batches: rows of one label and 3 · 32 · 32 pixels, channels first
    python   CIFAR10's Python batches, which are pickles: scanned for their numbers, never unpickled
    png      CIFAR10's batches as one picture each, an image to a row, with the labels as JSON

Images are bytes, [n, H, W] or [n, H, W, 3], and labels are [n].

Every array of bytes has exactly one IDX form. The sha256 of this form is therefore a checksum of the array itself,
whatever kind of file it came from; for an IDX file it is that of the decompressed file.
"""

import gzip
import hashlib
import io
import json
import math
import pickletools
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import IO, Any

import numpy as np
from jaxtyping import UInt8

from ntk_equiv import _machine
from ntk_equiv._check import describe, file_path, refusal

ImagesAndLabels = tuple[np.ndarray, np.ndarray]

_BYTES = 8  # the code of the only type of entries that image sets use
_CIFAR_SHAPE = (3, 32, 32)
_CIFAR_PIXELS = 3 * 32 * 32
# Opcodes by which a pickle holds whole numbers.
_WHOLE_NUMBERS = {"BININT1", "BININT2", "BININT", "INT"}


def damaged_file(path: Path, expected: str, got: str) -> Exception:
    """Return the error for a file that is not what it should be."""
    return refusal(str(path), expected=expected, got=got, fix="The file is truncated or altered: get it anew.")


def _check_memory(path: Path, size: int, /, what: str = "") -> None:
    """Refuse to read so many bytes if they do not fit into the free memory."""
    free = _machine.free_memory()
    if size > free:
        fix = "Save fewer samples, or smaller numbers, such as bytes for images."
        got = f"{_machine.in_bytes(size)} once unpacked{what}"
        expected = f"a file that fits into {_machine.in_bytes(free)} of free memory"
        raise refusal(str(path), expected=expected, got=got, fix=fix)


def read_idx(path: str | PathLike[str], /) -> UInt8[np.ndarray, "..."]:
    """Return the array in an IDX file of bytes, plain or gzipped, whatever its name.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is truncated, damaged, longer than its header says, or of another kind.

    Example:
        >>> import tempfile, pathlib
        >>> from ntk_equiv.datasets import read_idx
        >>> path = pathlib.Path(tempfile.mkdtemp(), "labels-idx1-ubyte")
        >>> _ = path.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]))
        >>> read_idx(path).tolist()
        [7, 8, 9]
    """
    path = file_path(path, "path", exists=True)
    try:
        with _open_maybe_gzipped(path) as content:
            return _parse_idx(path, content)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise damaged_file(path, "an intact gzip file", f"one that cannot be decompressed ({error})") from error


def _open_maybe_gzipped(path: Path) -> gzip.GzipFile | IO[bytes]:
    with path.open("rb") as content:
        zipped = content.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rb") if zipped else path.open("rb")


def _parse_idx(path: Path, content: gzip.GzipFile | IO[bytes]) -> np.ndarray:
    # No more is read than the header announces, because a small file may unpack to a very large one.
    start = content.read(4)
    rank = start[3] if len(start) > 3 else 0
    sizes = content.read(4 * rank)
    if start[:3] != bytes([0, 0, _BYTES]) or len(start) < 4 or len(sizes) < 4 * rank:
        raise damaged_file(path, "an IDX file of bytes", f"a file that begins with {start.hex(' ') or 'nothing'}")
    shape = struct.unpack(f">{rank}I", sizes)
    announced = math.prod(shape)
    _check_memory(path, announced)
    entries = content.read(announced + 1)
    if len(entries) != announced:
        got = f"{len(entries)}{' or more' * (len(entries) > announced)}"
        raise damaged_file(path, f"of the {announced} entries its header announces", got)
    return np.frombuffer(entries, np.uint8).reshape(shape)


def idx_bytes(array: np.ndarray, /) -> bytes:
    """Return the content of an IDX file that holds an array of bytes.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv.datasets import idx_bytes
        >>> idx_bytes(np.array([[7, 8]], np.uint8)).hex(" ")
        '00 00 08 02 00 00 00 01 00 00 00 02 07 08'
    """
    return _idx_header(array) + array.tobytes()


def array_checksum(array: np.ndarray) -> str:
    """Return the sha256 of the array in its IDX form."""
    digest = hashlib.sha256(_idx_header(array))
    digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _idx_header(array: np.ndarray) -> bytes:
    if getattr(array, "dtype", None) != np.uint8:
        raise refusal(
            "array", expected="of bytes (uint8)", got=describe(array), fix="Convert it first.", kind=TypeError
        )
    return bytes([0, 0, _BYTES, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)


def read_idx_pair(images: Path, labels: Path) -> ImagesAndLabels:
    """Return images and labels from two IDX files."""
    return read_idx(images), read_idx(labels)


def npz_arrays(
    path: str | PathLike[str], names: Sequence[str], /, optional: Sequence[str] = ()
) -> dict[str, np.ndarray]:
    """Return arrays of an npz file by their names. Objects, which would be unpickled, are refused.

    Their sizes are known before they are read, and arrays that do not fit into the free memory are refused.

    Args:
        path: the file.
        names: arrays that must be there.
        optional: arrays that may be there.

    Raises:
        ValueError: there is no such file, it is no intact npz file of numbers, it is larger than the free memory, or it
            lacks an array, which the message names.

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
            _check_npz_sizes(path, archive.zip, [name for name in (*names, *optional) if name in there])
            found = {name: archive[name] for name in (*names, *optional) if name in there}
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError) as error:
        if hasattr(error, "argument"):
            raise
        raise damaged_file(path, "an intact npz file of numbers", f"one that cannot be read ({error})") from error
    if missing := [name for name in names if name not in there]:
        expected = f"a file with {' and '.join(missing)}"
        fix = "Take another part of the data or the complete file, or give its arrays these names."
        raise refusal(str(path), expected=expected, got=f"{', '.join(there) or 'nothing'} only", fix=fix)
    return found


def _check_npz_sizes(path: Path, archive: zipfile.ZipFile, names: list[str]) -> None:
    """Refuse arrays that are not as long as they say, or do not fit into memory, after reading their headers only."""
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
        _check_memory(path, sum(sizes.values()), f", most of it in {largest}")


def read_npz(path: Path, images: str, labels: str) -> ImagesAndLabels:
    """Return images and their labels from an npz file."""
    found = npz_arrays(path, (images, labels))
    pixels, classes = found[images], found[labels]
    if pixels.dtype != np.uint8 or len(pixels) != classes.size:
        got = f"{pixels.shape} of {pixels.dtype} with {classes.size} labels"
        raise damaged_file(path, "images of bytes with one label each", got)
    return pixels, classes.reshape(-1).astype(np.uint8)


def read_cifar_binary(*batches: Path) -> ImagesAndLabels:
    """Return CIFAR10 from its binary batches."""
    return _concatenate([_parse_binary_batch(path, path.read_bytes()) for path in batches])


def read_cifar_python(*batches: Path) -> ImagesAndLabels:
    """Return CIFAR10 from its Python batches."""
    return _concatenate([_parse_python_batch(path, path.read_bytes()) for path in batches])


def read_cifar_archive(path: Path, *members: str) -> ImagesAndLabels:
    """Return CIFAR10 from batches inside a tar file, which is not unpacked: nothing is written anywhere."""
    parse = _parse_binary_batch if members[0].endswith(".bin") else _parse_python_batch
    try:
        with tarfile.open(path) as archive:
            contents = [_tar_member(archive, path, name) for name in members]
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise damaged_file(path, "an intact tar file", f"one that cannot be read ({error})") from error
    return _concatenate([parse(path / name, content) for name, content in zip(members, contents, strict=True)])


def read_cifar_pictures(*paths: Path) -> ImagesAndLabels:
    """Return CIFAR10 from pictures with one image to a row; the last file holds the labels."""
    *batches, labels = paths
    try:
        classes = np.array(json.loads(labels.read_text()), np.uint8)
    except (ValueError, TypeError, OverflowError) as error:
        raise damaged_file(labels, "a list of classes as JSON", f"one that cannot be read ({error})") from error
    rows = [read_picture(path) for path in batches]
    for path, row in zip(batches, rows, strict=True):
        if row.shape[1:] != (_CIFAR_PIXELS // 3, 3):
            raise damaged_file(path, "a picture of 1024 coloured pixels to a row", f"shape {row.shape}")
    return np.concatenate(rows).reshape(-1, 32, 32, 3), classes


def read_picture(path: Path, size: int | None = None) -> np.ndarray:
    """Return a picture in colour, [H, W, 3], rescaled to size × size if that is given."""
    Image = _import_pillow()
    try:
        with Image.open(path) as picture:
            colours = picture.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise damaged_file(path, "an intact picture", f"one that cannot be read ({error})") from error
    return np.asarray(colours if size is None else colours.resize((size, size), Image.Resampling.BILINEAR))


def _import_pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        fix = "Install it: pip install pillow"
        raise refusal(
            "Pillow", expected="installed to read images", got="nothing", fix=fix, kind=ModuleNotFoundError
        ) from error
    return Image


def _tar_member(archive: tarfile.TarFile, path: Path, name: str) -> bytes:
    found = [member for member in archive if member.isfile() and Path(member.name).name == name]
    content = archive.extractfile(found[0]) if found else None
    if content is None:
        raise damaged_file(path, f"an archive with {name}", "one without")
    _check_memory(path, found[0].size, f", in {name}")
    return content.read()


def _parse_binary_batch(path: Path, content: bytes) -> ImagesAndLabels:
    if not content or len(content) % (1 + _CIFAR_PIXELS):
        raise damaged_file(path, f"whole rows of {1 + _CIFAR_PIXELS} bytes", f"{len(content)} bytes")
    rows = np.frombuffer(content, np.uint8).reshape(-1, 1 + _CIFAR_PIXELS)
    return _channels_last(rows[:, 1:]), rows[:, 0]


def _parse_python_batch(path: Path, content: bytes) -> ImagesAndLabels:
    # The pixels are the longest string of the pickle; the labels are the whole numbers after the string "labels".
    pixels, classes, latest = "", [], None
    try:
        for opcode, argument, _ in pickletools.genops(io.BytesIO(content)):
            if isinstance(argument, str | bytes):
                latest = argument if isinstance(argument, str) else argument.decode("latin-1")
                pixels = max(pixels, latest, key=len)
            elif latest == "labels" and opcode.name in _WHOLE_NUMBERS:
                classes.append(argument)
    except (ValueError, UnicodeError) as error:
        raise damaged_file(path, "an intact Python batch of CIFAR10", f"one that cannot be read ({error})") from error
    if not classes or len(pixels) != len(classes) * _CIFAR_PIXELS or not set(classes) <= set(range(256)):
        got = f"{len(pixels)} pixels and {len(classes)} labels"
        raise damaged_file(path, "a Python batch of CIFAR10, 3072 pixels to a label", got)
    rows = np.frombuffer(pixels.encode("latin-1"), np.uint8).reshape(-1, _CIFAR_PIXELS)
    return _channels_last(rows), np.array(classes, np.uint8)


def _channels_last(rows: np.ndarray) -> np.ndarray:
    return rows.reshape(-1, *_CIFAR_SHAPE).transpose(0, 2, 3, 1)


def _concatenate(parts: list[ImagesAndLabels]) -> ImagesAndLabels:
    images, labels = zip(*parts, strict=True)
    return np.concatenate(images), np.concatenate(labels)
