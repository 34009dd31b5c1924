"""Tiles of large matrices in a folder on disk.

A Gram matrix that does not fit into memory is evaluated tile by tile, and each tile is kept in a file of its own. A
program that was stopped, or a disk that was full, costs no more than the tile that was being written. Tiles are read
as memory maps: the operating system loads what is used, and may forget it again.

    folder/about.json               what the tiles are of; a folder made for something else is refused
    folder/<name>.tile              one finished tile
    folder/.unfinished-<host>-<process>-<random>    a file that this process is writing

A tile holds a few named arrays. Numbers outside of the arrays are unsigned and little-endian:

    8 bytes     MAGIC, which is also the version of the layout
    4 bytes     length of the header
    4 bytes     checksum of the header
    header      JSON, filled up with spaces so that the data begin at a multiple of 64 bytes:
                {"tile": its name, "size": of the file, "checksum": of the data,
                 "arrays": [{"name", "dtype", "shape", "offset" from the beginning of the data}, ...]}
    data        the arrays, row by row, each filled up with zeros to a multiple of 64 bytes

**A tile with its final name is whole.** It is written to an unfinished file, brought to the disk, and then renamed, so
several processes may use one folder. Each tile has the same content whoever writes it, and the last writer wins. An
array that was mapped before stays as it was. Damage by the disk itself is found by the checksums: CRC-32, which is
fast and meant against accidents, not attackers.
"""

import contextlib
import errno
import json
import mmap
import os
import platform
import re
import secrets
import shutil
import struct
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ntk_equiv._check import file_path, refusal
from ntk_equiv._machine import in_bytes

MAGIC = b"NTKTILE1"
PREFIX = struct.Struct("<8sII")
ALIGNMENT = 64
ABOUT, SUFFIX = "about.json", ".tile"

# Names that every file system takes, without a dot in front, and with room for the suffix.
TILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
UNFINISHED = re.compile(r"\.unfinished-(?P<host>\w*)-(?P<process>\d{1,9})-[0-9a-f]+", re.ASCII)
# Whether a process of another computer is alive cannot be asked, but none writes a tile for a day.
ABANDONED_AFTER_SECONDS = 24 * 3600.0

# A limit on the size of a file stops a tile just as a full disk or a quota does.
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
READ_AT_ONCE = 2**20
# Otherwise each map keeps a file open, of which a process may have about a thousand. Older versions cannot do without.
MAP_OPTIONS: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) and os.name != "nt" else {}


class TileFolder:
    """A folder of tiles, to be opened with `TileFolder.open`.

    Attributes:
        path: the folder.
        damaged: names of the tiles that `read` found damaged and removed, in this order.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     folder = TileFolder.open(f"{parent}/gram", {"kernel": "5f3a", "tile": 2})
    ...     folder.write("tile-00000-00001", {"ntk": np.array([[1.0, 2.0], [3.0, 4.0]])})
    ...     print(folder.names(), folder.read("tile-00000-00001"), folder.read("tile-00001-00001"))
    {'tile-00000-00001'} {'ntk': array([[1., 2.], [3., 4.]])} None
    """

    def __init__(self, path: Path, argument: str = "path") -> None:
        self.path = path
        self.damaged: list[str] = []
        self._argument = argument
        # Which file of a tile was verified. Another process may replace it, so the name alone would not do.
        self._verified: dict[str, tuple[int, ...]] = {}

    @classmethod
    def open(cls, path: Any, about: Mapping[str, Any], *, argument: str = "path") -> "TileFolder":
        """Make a folder for tiles, with its parents, or open one that was made for the same tiles.

        Args:
            path: the folder.
            about: what the tiles are of, as far as JSON can hold it.
            argument: what messages call `path`.

        Raises:
            NotADirectoryError: there is a file at `path`, or in place of a parent.
            FileExistsError: the folder holds other files.
            ValueError: the tiles in the folder are of something else, or nobody knows of what.
        """
        expected = _json_entries(about)
        folder = cls(file_path(path, argument).absolute(), argument)
        folder._make()
        _remove_abandoned_files(folder.path)
        # Listed before about.json is looked for: whoever made the folder meanwhile wrote about.json before any tile.
        others = sorted(name for name in os.listdir(folder.path) if not UNFINISHED.fullmatch(name))
        if not (folder.path / ABOUT).exists():
            if others:
                got = f"{folder.path} with {', '.join(others[:3])}{' and more' if others[3:] else ''}"
                fix = "Name another folder."
                raise folder._refuse(f"a new folder, or one of tiles with {ABOUT}", got, fix, FileExistsError)
            text = json.dumps(expected, indent=1).encode()
            with folder._explain_full_disk(ABOUT, len(text)):
                _write_whole(folder.path / ABOUT, [text], publish=_publish_unless_there)
        folder._check_about(expected)
        return folder

    def names(self) -> set[str]:
        """Return the names of the finished tiles."""
        return {name.removesuffix(SUFFIX) for name in os.listdir(self.path) if name.endswith(SUFFIX)}

    def read(self, name: str) -> dict[str, np.ndarray] | None:
        """Return the arrays of a tile as read-only memory maps, or None if the tile is not there.

        A damaged tile is removed, noted in `damaged`, and counts as not there. Checksums are compared the first time
        that this object reads a file. Up to Python 3.12, a tile keeps a file open for as long as its arrays are used.
        """
        file = self._file(name)
        try:
            with file.open("rb") as opened:
                return self._map(opened, name)
        except FileNotFoundError:
            return None
        except _DamageError:
            self._verified.pop(name, None)
            file.unlink(missing_ok=True)
            self.damaged.append(name)
            return None

    def write(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Write a tile, all of it or nothing. Windows does not let it replace one whose arrays are in use.

        Raises:
            TypeError: an array does not hold numbers of NumPy's own dtypes.
            OSError: the disk is full; finished tiles are kept.
        """
        file = self._file(name)
        pieces = _tile_as_bytes(name, {key: _plain_array(key, array) for key, array in arrays.items()})
        with self._explain_full_disk(f"the tile {name}", sum(map(len, pieces))):
            _write_whole(file, pieces)

    def _map(self, file: BinaryIO, name: str) -> dict[str, np.ndarray]:
        """Return maps of the arrays in an open file, if it holds the tile undamaged."""
        status = os.fstat(file.fileno())
        header, start = _read_header(file, status.st_size)
        if header["tile"] != name or header["size"] != status.st_size:
            raise _DamageError
        identity = (status.st_ino, status.st_mtime_ns)
        if self._verified.get(name) != identity:
            if _checksum_from(file, start) != header["checksum"]:
                raise _DamageError
            self._verified[name] = identity
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ, **MAP_OPTIONS)
        return {
            array["name"]: np.ndarray(array["shape"], np.dtype(array["dtype"]), mapped, start + array["offset"])
            for array in header["arrays"]
        }

    def _make(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            got = f"{self.path}, where {error.filename} is a file"
            raise self._refuse("a folder", got, "Name another folder.", NotADirectoryError) from None

    def _check_about(self, expected: dict[str, Any]) -> None:
        """Refuse a folder whose about.json has other entries, or cannot be read."""
        try:
            there = json.loads((self.path / ABOUT).read_text(encoding="utf-8"))
            if not isinstance(there, dict):
                raise ValueError(f"it holds {type(there).__name__}, not entries with names")
        except (OSError, ValueError) as error:
            got = f"{self.path}, where it cannot be read: {error}"
            fix = "Nobody can tell what its tiles are of: remove the folder, or name another one."
            raise self._refuse(f"a folder of tiles with {ABOUT}", got, fix) from error
        different = [
            f"{entry} = {_entry_as_text(there, entry)} where {_entry_as_text(expected, entry)} was expected"
            for entry in sorted(there.keys() | expected.keys())
            if _entry_as_text(there, entry) != _entry_as_text(expected, entry)
        ]
        if different:
            got = f"{self.path} with {'; '.join(different)}"
            fix = "Name another folder, or remove this one if its tiles are no longer needed."
            raise self._refuse("a folder of tiles of the same matrix", got, fix)

    @contextlib.contextmanager
    def _explain_full_disk(self, what: str, size: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            got = f"{self.path}, where it could not be written ({error.strerror})"
            fix = f"{len(self.names())} finished tiles are kept. Make room, and the same call continues with the rest."
            raise self._refuse(f"on a disk with room for {what} of {in_bytes(size)}", got, fix, OSError) from error

    def _refuse(self, expected: str, got: str, fix: str, kind: type[Exception] = ValueError) -> Exception:
        return refusal(self._argument, expected=expected, got=got, fix=fix, kind=kind)

    def _file(self, name: str) -> Path:
        if not TILE_NAME.fullmatch(name):
            fix = "Use a name such as 'tile-00012-00034'."
            expected = "up to 200 letters, digits, '-', '_' and '.', not beginning with '.'"
            raise refusal("name", expected=expected, got=repr(name), fix=fix)
        return self.path / f"{name}{SUFFIX}"


def check_disk(path: Any, size: int, argument: str, *, what: str, fix: str) -> None:
    """Refuse a result of more bytes than are free on the disk where `path` is, or would be made.

    >>> check_disk("gram", 2**62, "folder", what="a matrix", fix="Take fewer samples.")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: `folder` must be on a disk with room for the result, got a matrix of 4.61 EB where ... are free...
    """
    path = file_path(path, argument).absolute()
    nearest = next(parent for parent in (path, *path.parents) if parent.exists())
    free = shutil.disk_usage(nearest).free
    if size > free:
        got = f"{what} of {in_bytes(size)} where {in_bytes(free)} are free"
        raise refusal(argument, expected="on a disk with room for the result", got=got, fix=fix)


class _DamageError(Exception):
    """A file does not hold the tile that was written to it."""


def _plain_array(name: str, array: Any) -> np.ndarray:
    """Return `array` if NumPy can tell its dtype from a name in a file."""
    array = np.asarray(array)
    # For dtypes of other libraries, such as bfloat16, it is 2. Their names in a file would mean another dtype, or none.
    if array.dtype.kind not in "biufc" or array.dtype.isbuiltin == 2:
        fix = "Convert it first, for example with `np.asarray(array, np.float32)`."
        got = f"dtype {array.dtype} in {name!r}"
        raise refusal("arrays", expected="numbers of NumPy's own dtypes", got=got, fix=fix, kind=TypeError)
    return array


def _tile_as_bytes(name: str, arrays: Mapping[str, np.ndarray]) -> list[bytes | memoryview]:
    """Return the content of a file in pieces; arrays whose rows follow one another in memory are not copied."""
    data: list[bytes | memoryview] = []
    listed, offset = [], 0
    for key, array in arrays.items():
        listed.append({"name": key, "dtype": array.dtype.str, "shape": array.shape, "offset": offset})
        padding = -array.nbytes % ALIGNMENT
        data += [array.reshape(-1).view(np.uint8).data, bytes(padding)]
        offset += array.nbytes + padding
    checksum = 0
    for piece in data:
        checksum = zlib.crc32(piece, checksum)
    return [_header_as_bytes({"tile": name, "checksum": checksum, "arrays": listed}, offset), *data]


def _header_as_bytes(header: dict[str, Any], data_size: int) -> bytes:
    """Return all that precedes the data. The size of the file is part of it, and depends on its length."""
    longest = len(json.dumps(header | {"size": 2**63}))
    start = PREFIX.size + longest
    start += -start % ALIGNMENT
    text = json.dumps(header | {"size": start + data_size}).encode().ljust(start - PREFIX.size)
    return PREFIX.pack(MAGIC, len(text), zlib.crc32(text)) + text


def _read_header(file: BinaryIO, size: int) -> tuple[dict[str, Any], int]:
    """Return the header of an open file, and where its data begin."""
    if size < PREFIX.size:
        raise _DamageError
    magic, length, checksum = PREFIX.unpack(file.read(PREFIX.size))
    # Asked before the header is read: a wrong length may be as large as four gigabytes.
    if magic != MAGIC or length > size - PREFIX.size:
        raise _DamageError
    text = file.read(length)
    if zlib.crc32(text) != checksum:
        raise _DamageError
    return json.loads(text), PREFIX.size + length


def _checksum_from(file: BinaryIO, start: int) -> int:
    """Return the checksum of all that follows `start`.

    It is read in the ordinary way, because a disk that fails under a memory map ends the whole process.
    """
    file.seek(start)
    buffer, checksum = bytearray(READ_AT_ONCE), 0
    view = memoryview(buffer)
    while count := file.readinto(buffer):  # type: ignore[attr-defined]
        checksum = zlib.crc32(view[:count], checksum)
    return checksum


def _write_whole(
    file: Path, pieces: Iterable[bytes | memoryview], publish: Callable[[Path, Path], None] = os.replace
) -> None:
    """Write a file under another name, and give it its name once it is on the disk."""
    unfinished = file.with_name(f".unfinished-{_host()}-{os.getpid()}-{secrets.token_hex(8)}")
    try:
        with unfinished.open("xb") as opened:
            for piece in pieces:
                opened.write(piece)
            opened.flush()
            os.fsync(opened.fileno())
        publish(unfinished, file)
    finally:
        unfinished.unlink(missing_ok=True)


def _publish_unless_there(unfinished: Path, file: Path) -> None:
    """Give a file its name, unless another process was first: then the other file stays."""
    try:
        os.link(unfinished, file)
    except FileExistsError:
        pass
    except OSError:  # drives without hard links
        os.replace(unfinished, file)


def _remove_abandoned_files(folder: Path) -> None:
    """Remove unfinished files of processes that are no longer alive."""
    for entry in os.scandir(folder):
        match = UNFINISHED.fullmatch(entry.name)
        # The file may be finished meanwhile, or the folder may be one that we can only read.
        with contextlib.suppress(OSError):
            if match and _is_abandoned(entry, match["host"], int(match["process"])):
                os.unlink(entry.path)


def _is_abandoned(entry: os.DirEntry, host: str, process: int) -> bool:
    # In a container the process that was killed often had the same number as the one that continues.
    if host != _host() or process == os.getpid():
        return time.time() - entry.stat().st_mtime > ABANDONED_AFTER_SECONDS
    if os.name == "nt":  # Windows has no such question, but refuses to remove files that are being written
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # it is alive, and another user's
        pass
    return False


def _host() -> str:
    """Return the name of this computer as part of a file name."""
    return re.sub(r"[^A-Za-z0-9]", "_", platform.node())[:64]


def _json_entries(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return `about` as it is after it was written and read."""
    try:
        return json.loads(json.dumps(dict(about)))
    except (TypeError, ValueError) as error:
        fix = "Use text, numbers, lists and dictionaries."
        expected = "entries that JSON can hold"
        raise refusal("about", expected=expected, got=f"others: {error}", fix=fix, kind=TypeError) from None


def _entry_as_text(entries: Mapping[str, Any], name: str) -> str:
    """Return an entry as JSON, by which entries are compared: there 1 and true differ, and NaN equals itself."""
    return json.dumps(entries[name], sort_keys=True) if name in entries else "nothing"
