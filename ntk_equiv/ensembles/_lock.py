"""One run at a time in a folder.

A file in the folder is locked by the operating system, which lets go of it when the process ends, however it ends. So
the lock of a process that was killed holds nobody up, although its file is still there. What is written in the file is
for people: which process it was.
"""

import contextlib
import datetime
import errno
import os
import platform
import warnings
from pathlib import Path

from ntk_equiv._check import refusal

NAME = ".lock"
# What systems say where a file is locked already; and where files cannot be locked at all, as on some network drives.
TAKEN = {errno.EAGAIN, errno.EACCES, errno.EWOULDBLOCK, errno.EDEADLK}
UNKNOWN = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
# Windows hides what is locked from other processes, so what is locked there is a place that the text does not reach.
PLACE_ON_WINDOWS = 2**20


class FolderLock:
    """The lock of a folder, from when it is made until `release`.

    Raises:
        BlockingIOError: another run has it; the message names its process.
    """

    def __init__(self, folder: Path, argument: str) -> None:
        self._path = folder / NAME
        folder.mkdir(parents=True, exist_ok=True)
        while True:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                self._lock(argument)
            except BaseException:
                os.close(self._file)
                raise
            # The run before may have removed the file between our opening and our locking it.
            if self._path.exists() and os.path.samestat(os.fstat(self._file), os.stat(self._path)):
                break
            os.close(self._file)
        began = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        os.ftruncate(self._file, 0)
        os.write(self._file, f"process {os.getpid()} on {platform.node()} (since {began})".encode())

    def release(self) -> None:
        """Let others have the folder."""
        # An open file cannot be removed on Windows, and one that is closed may be another's already.
        with contextlib.suppress(OSError):
            if os.name != "nt":
                self._path.unlink()
        os.close(self._file)

    def _holder(self) -> str:
        """Which process has the lock, if it has come to write that, and not just let go of it."""
        with contextlib.suppress(OSError):
            return self._path.read_text() or "another process"
        return "another process"

    def _lock(self, argument: str) -> None:
        try:
            _lock_file(self._file)
        except OSError as error:
            if error.errno in TAKEN:
                got = f"{self._path.parent}, which {self._holder()} writes to"
                fix = "Wait until it has ended, end it, or name another folder."
                expected = "a folder to which no other run writes"
                raise refusal(argument, expected=expected, got=got, fix=fix, kind=BlockingIOError) from None
            if error.errno not in UNKNOWN:
                raise
            warnings.warn(
                f"{self._path.parent} is on a drive whose files cannot be locked ({error.strerror}): nothing keeps "
                "another run from writing to it. Make sure that none does.",
                RuntimeWarning,
                stacklevel=6,
            )


def _lock_file(file: int) -> None:
    """Lock an open file, or raise an `OSError` at once."""
    if os.name == "nt":
        import msvcrt

        os.lseek(file, PLACE_ON_WINDOWS, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        finally:
            os.lseek(file, 0, os.SEEK_SET)
        return
    import fcntl

    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
