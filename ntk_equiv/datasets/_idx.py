"""IDX files, the format of MNIST: a header of 4 + 4d bytes, then the entries of an array with d axes, row by row.

    0 0 8 d | size of each axis, 4 bytes, big-endian | entries, one byte each

Every array of bytes has exactly one such form. Its sha256 is therefore a checksum of the array itself, whatever kind of
file it came from, and for an IDX file it is that of the decompressed file.
"""

import gzip
import hashlib
import math
import struct
import zlib
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from ntk_equiv._check import file_path, free_memory, in_bytes, refusal, shown

_BYTES = 8  # the only type of entries that image sets use


def read_idx(path: str | PathLike[str], /) -> UInt8[np.ndarray, "..."]:
    """The array in an IDX file of bytes, plain or gzipped, whatever it is called.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is truncated, damaged, longer than its header says, or no such file at all.

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
        with _opened(path) as content:
            return _array(path, content)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise damaged(path, "an intact gzip file", f"one that cannot be decompressed ({error})") from error


def _opened(path: Path) -> Any:
    with path.open("rb") as content:
        zipped = content.read(2) == b"\x1f\x8b"
    return gzip.open(path) if zipped else path.open("rb")


def _array(path: Path, content: Any) -> np.ndarray:
    """The array, of which no more is read than its header announces: a small file may unpack to a very large one."""
    start = content.read(4)
    rank = start[3] if len(start) > 3 else 0
    sizes = content.read(4 * rank)
    if start[:3] != bytes([0, 0, _BYTES]) or len(start) < 4 or len(sizes) < 4 * rank:
        raise damaged(path, "an IDX file of bytes", f"a file that begins with {start.hex(' ') or 'nothing'}")
    shape = struct.unpack(f">{rank}I", sizes)
    announced = math.prod(shape)
    check_memory(path, announced)
    entries = content.read(announced + 1)
    if len(entries) != announced:
        got = f"{len(entries)}{' or more' * (len(entries) > announced)}"
        raise damaged(path, f"of the {announced} entries its header announces", got)
    return np.frombuffer(entries, np.uint8).reshape(shape)


def check_memory(path: Path, size: int, /, what: str = "") -> None:
    """Refuse to read so many bytes if they do not fit into the free memory."""
    free = free_memory()
    if size > free:
        fix = "Save fewer samples, or smaller numbers, such as bytes for images."
        got = f"{in_bytes(size)} once unpacked{what}"
        raise refusal(str(path), expected=f"a file that fits into {in_bytes(free)} of free memory", got=got, fix=fix)


def idx_bytes(array: np.ndarray, /) -> bytes:
    """An array of bytes as the content of an IDX file.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv.datasets import idx_bytes
        >>> idx_bytes(np.array([[7, 8]], np.uint8)).hex(" ")
        '00 00 08 02 00 00 00 01 00 00 00 02 07 08'
    """
    return _header(array) + array.tobytes()


def checksum(array: np.ndarray) -> str:
    """The sha256 of the array in its IDX form."""
    digest = hashlib.sha256(_header(array))
    digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def damaged(path: Path, expected: str, got: str) -> Exception:
    """The refusal of a file that is not what it should be."""
    return refusal(str(path), expected=expected, got=got, fix="The file is truncated or altered: get it anew.")


def _header(array: np.ndarray) -> bytes:
    if getattr(array, "dtype", None) != np.uint8:
        raise refusal("array", expected="of bytes (uint8)", got=shown(array), fix="Convert it first.", kind=TypeError)
    return bytes([0, 0, _BYTES, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
