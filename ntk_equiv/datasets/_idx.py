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

import numpy as np
from jaxtyping import UInt8

from ntk_equiv._check import file_path, refusal, shown

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
    content = unzipped(path, path.read_bytes())
    rank = content[3] if len(content) > 3 else 0
    if content[:3] != bytes([0, 0, _BYTES]) or len(content) < 4 + 4 * rank:
        raise damaged(path, "an IDX file of bytes", f"a file that begins with {content[:4].hex(' ') or 'nothing'}")
    shape = struct.unpack_from(f">{rank}I", content, 4)
    announced, there = math.prod(shape), len(content) - 4 - 4 * rank
    if announced != there:
        raise damaged(path, f"of the {announced} entries its header announces", f"{there}")
    return np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(shape)


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


def unzipped(path: Path, content: bytes) -> bytes:
    """The content of a file, decompressed if it is gzipped."""
    if content[:2] != b"\x1f\x8b":
        return content
    try:
        return gzip.decompress(content)
    except (EOFError, OSError, zlib.error) as error:
        raise damaged(path, "an intact gzip file", f"one that cannot be decompressed ({error})") from error


def damaged(path: Path, expected: str, got: str) -> Exception:
    """The refusal of a file that is not what it should be."""
    return refusal(str(path), expected=expected, got=got, fix="The file is truncated or altered: get it anew.")


def _header(array: np.ndarray) -> bytes:
    if getattr(array, "dtype", None) != np.uint8:
        raise refusal("array", expected="of bytes (uint8)", got=shown(array), fix="Convert it first.", kind=TypeError)
    return bytes([0, 0, _BYTES, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
