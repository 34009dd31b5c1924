"""Runs on disk, with orbax: arrays of all members, and the settings of the run as JSON.

A checkpoint is written beside its final place and then renamed, so every checkpoint that exists is complete. Older ones
are removed after that, and the last two are kept. Arrays are stored without the copies that fill up the layout, so that
a run can be resumed on other devices. Pytrees are stored as lists of leaves: their structure comes from the network and
the optimizer, and nothing is pickled.

**Writing takes no time from training.** A thread of its own writes a copy of the state while the next steps are made.
One checkpoint is written at a time: the next one waits for it. An error of the writer is raised then, or at the end of
the run. Several processes that train together write while nothing else is done: they have to wait for each other, and
two threads that do would wait in different orders.

**One run at a time writes to a folder.** It locks a file in the folder. The operating system releases the lock when the
process ends, however it ends. So the lock of a process that was killed stops nobody, although its file is still there.
The text in the file is for people: it says which process it was. Whoever only reads changes nothing in the folder.
"""

import contextlib
import datetime
import errno
import logging
import os
import platform
import shutil
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from ntk_equiv._check import file_path, refusal, warn_caller
from ntk_equiv.ensembles._settings import TrainingSettings, differences

KEPT = 2
Stored = dict[str, Any]
"""Arrays of a checkpoint, in nested dictionaries."""

# A run that goes on with other versions of these may end with other bits.
NOTED_VERSIONS = "ntk-equiv", "jax", "jaxlib", "flax", "optax"

LOCK_FILE = ".lock"
# Errors of systems where a file is locked already, and where files cannot be locked at all, as on some network drives.
ALREADY_LOCKED = {errno.EAGAIN, errno.EACCES, errno.EWOULDBLOCK, errno.EDEADLK}
CANNOT_LOCK = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
# Windows hides locked bytes from other processes. So the lock there is far behind the text of the file.
LOCKED_BYTE_ON_WINDOWS = 2**20


class FolderLock:
    """The lock of a folder, held from its creation until `release`.

    Raises:
        BlockingIOError: another run holds it; the message names its process.
    """

    def __init__(self, folder: Path, argument: str) -> None:
        self._path = folder / LOCK_FILE
        folder.mkdir(parents=True, exist_ok=True)
        while True:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                self._lock(argument)
            except BaseException:
                os.close(self._file)
                raise
            # The run before may have removed the file after we opened it and before we locked it.
            if self._path.exists() and os.path.samestat(os.fstat(self._file), os.stat(self._path)):
                break
            os.close(self._file)
        began = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        os.ftruncate(self._file, 0)
        os.write(self._file, f"process {os.getpid()} on {platform.node()} (since {began})".encode())

    def release(self) -> None:
        """Release the folder for others."""
        # Windows cannot remove an open file, and once closed the file may belong to another run.
        try:
            with contextlib.suppress(OSError):
                if os.name != "nt":
                    self._path.unlink()
        finally:
            os.close(self._file)

    def _holder(self) -> str:
        """Return which process holds the lock, unless it has not written that yet, or just released the lock."""
        with contextlib.suppress(OSError):
            return self._path.read_text() or "another process"
        return "another process"

    def _lock(self, argument: str) -> None:
        try:
            _lock_file(self._file)
        except OSError as error:
            if error.errno in ALREADY_LOCKED:
                got = f"{self._path.parent}, which {self._holder()} writes to"
                fix = "Wait until it has ended, end it, or name another folder."
                expected = "a folder to which no other run writes"
                raise refusal(argument, expected=expected, got=got, fix=fix, kind=BlockingIOError) from None
            if error.errno not in CANNOT_LOCK:
                raise
            warnings.warn(
                f"{self._path.parent} is on a drive whose files cannot be locked ({error.strerror}), so nothing "
                "prevents another run from writing to it. Make sure that none does.",
                RuntimeWarning,
                stacklevel=6,
            )


def _lock_file(file: int) -> None:
    """Lock an open file, or raise an `OSError` at once."""
    if os.name == "nt":
        import msvcrt

        os.lseek(file, LOCKED_BYTE_ON_WINDOWS, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        finally:
            os.lseek(file, 0, os.SEEK_SET)
        return
    import fcntl

    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextlib.contextmanager
def _without_warnings_of_orbax() -> Iterator[None]:
    """Keep it from warning that a folder is read only whenever it was told to read only."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


class Checkpoints:
    """The checkpoints in a folder, to be read, or with its lock also to be written."""

    def __init__(self, folder: Path, lock: FolderLock | None = None, *, writes: bool = False) -> None:
        self.folder, self._lock = folder.absolute(), lock
        # A reader must not remove what another process is just writing.
        options = (
            ocp.CheckpointManagerOptions(
                max_to_keep=KEPT, create=True, enable_async_checkpointing=False, cleanup_tmp_directories=True
            )
            if writes
            else ocp.CheckpointManagerOptions(read_only=True, create=False, save_interval_steps=0)
        )
        with _without_warnings_of_orbax():
            self._manager = ocp.CheckpointManager(self.folder, options=options, item_names=("arrays", "text"))
        alone = writes and jax.process_count() == 1
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoints") if alone else None
        self._writing: Future | None = None

    @property
    def latest(self) -> int | None:
        """The step of the last complete checkpoint."""
        return self._manager.latest_step()

    def save(self, step: int, arrays: Stored, text: dict[str, Any]) -> None:
        """Begin to write a checkpoint, once the one before is written; if that fails, the ones before are still there.

        Raises:
            OSError: the checkpoint before could not be written; the message says what to do.
        """
        self.wait()
        if self._writer is None:
            self._write(step, arrays, text)
        else:
            # The next steps overwrite the memory of the state, of which arrays on a CPU may be mere views.
            copies = jax.tree.map(np.array, arrays)
            self._writing = self._writer.submit(self._write, step, copies, text)

    def wait(self) -> None:
        """Wait until the last checkpoint is written.

        Raises:
            OSError: it could not be written; the message says what to do.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _write(self, step: int, arrays: Stored, text: dict[str, Any]) -> None:
        args = ocp.args.Composite(arrays=ocp.args.StandardSave(arrays), text=ocp.args.JsonSave(text))
        try:
            self._manager.save(step, args=args, force=True)
            self._manager.wait_until_finished()
        except Exception as error:  # tensorstore reports a full disk as a ValueError
            left = "There is no earlier checkpoint"
            if self.latest is not None:
                left = f"The complete checkpoint of step {self.latest} is still there"
            fix = "Make room" if self._disk_is_full(error, arrays) else "See that nothing else changes the folder"
            raise OSError(
                f"the checkpoint of step {step} could not be written to {self.folder}: {error}. "
                f"{left}. {fix}, and try again; `resume=True` continues a run."
            ) from error

    def _disk_is_full(self, error: BaseException, arrays: Stored) -> bool:
        """Return whether writing failed because there was no room."""
        said = any(text in str(error) for text in ("No space left", "RESOURCE_EXHAUSTED", "quota"))
        if said or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            return True
        needed = sum(leaf.nbytes for leaf in jax.tree.leaves(arrays))
        return self.folder.exists() and shutil.disk_usage(self.folder).free < needed

    def load(self, step: int | None = None) -> tuple[Stored, dict[str, Any]]:
        """Return the arrays and the text of a checkpoint, by default of the last one.

        Raises:
            FileNotFoundError: there is no checkpoint.
            OSError: the checkpoint is damaged; the message says what to do.
        """
        step = self.latest if step is None else step
        if step is None:
            fix = "Pass the folder that `checkpoint=` or `run.save` wrote to."
            raise refusal(
                "folder", expected="one with a run in it", got=str(self.folder), fix=fix, kind=FileNotFoundError
            )
        args = ocp.args.Composite(arrays=ocp.args.StandardRestore(), text=ocp.args.JsonRestore())
        try:
            restored = self._manager.restore(step, args=args)
        except Exception as error:  # each kind of damage has its own: JSON, tensorstore, missing files
            raise OSError(
                f"the checkpoint of step {step} in {self.folder} is damaged: {error}. Remove "
                f"{self.folder / str(step)} to continue from the one before it, or the folder to begin anew."
            ) from error
        return restored["arrays"], restored["text"]

    def close(self) -> None:
        """Finish writing, stop using the folder, and release its lock."""
        writing, self._writing = self._writing, None
        error = None if writing is None else writing.exception()
        if self._writer is not None:
            self._writer.shutdown()
        self._manager.close()
        if self._lock is not None:
            self._lock.release()
        if error is not None:  # something else has ended the run, and is raised already
            warn_caller(str(error), RuntimeWarning)


def open_folder(folder: Path | str, *, resume: bool, argument: str = "checkpoint") -> Checkpoints:
    """Lock a folder for a run that begins or continues in it, until the checkpoints are closed.

    Of several processes that train together, the first one holds the lock. If it is refused, so are all of them.

    Raises:
        FileExistsError: the folder is not empty, and no run is to be resumed.
        BlockingIOError: another run writes to the folder.
    """
    path = file_path(folder, argument)
    lock, problem = None, None
    if jax.process_index() == 0:
        try:
            lock = _lock_folder(path, resume, argument)
        except OSError as error:
            problem = error
    if jax.process_count() > 1:
        problem = _tell_all_processes(problem)
    if problem is not None:
        raise problem
    try:
        return Checkpoints(path, lock, writes=True)
    except BaseException:
        if lock is not None:
            lock.release()
        raise


def _lock_folder(path: Path, resume: bool, argument: str) -> FolderLock:
    """Lock a folder, which must be new or empty unless a run is to be resumed."""
    # A folder with other things in it is not locked at all: the lock would leave a file there for a moment.
    if path.exists() and (not path.is_dir() or (_is_used(path) and not resume and not (path / LOCK_FILE).exists())):
        raise _not_empty(path, argument)
    lock = FolderLock(path, argument)
    if _is_used(path) and not resume:
        lock.release()
        raise _not_empty(path, argument)
    return lock


def _is_used(path: Path) -> bool:
    return any(entry.name != LOCK_FILE for entry in path.iterdir())


def _not_empty(path: Path, argument: str) -> Exception:
    fix = "Pass `resume=True` to continue the run that is in it, or another folder."
    if argument != "checkpoint":
        fix = "Name another folder, or remove this one first."
    return refusal(argument, expected="a new or empty folder", got=str(path), fix=fix, kind=FileExistsError)


def _tell_all_processes(problem: OSError | None) -> OSError | None:
    """Return in all processes what went wrong in the first."""
    text = np.zeros(1000, np.uint8)
    written = str(problem or "").encode()[: text.size]
    text[: len(written)] = np.frombuffer(written, np.uint8)
    told = bytes(multihost_utils.broadcast_one_to_all(text)).rstrip(b"\0").decode(errors="replace")
    return problem or (OSError(told) if told else None)


def check_same_settings(here: TrainingSettings, there: Mapping[str, Any], folder: Path) -> None:
    """Refuse to resume a run with other settings, and say how they differ. More steps are welcome: they extend it.

    Raises:
        ValueError: the settings differ.
    """
    lines = differences(here.as_far_as(there), there)
    if lines:
        fix = "Use the settings that it was started with, or more steps, or another folder."
        raise refusal("checkpoint", expected="of this very run", got=f"{folder} with {'; '.join(lines)}", fix=fix)


def versions() -> dict[str, str]:
    """Return the versions of what trains, to be stored with a run."""
    found = {}
    for name in NOTED_VERSIONS:
        with contextlib.suppress(PackageNotFoundError):  # this library, used from its source folder
            found[name] = version(name)
    return found


def warn_of_other_versions(there: Mapping[str, str], folder: Path) -> None:
    """Warn if a run goes on with other versions than those it was stored with."""
    here = versions()
    changed = [f"{name} {there[name]}, now {here[name]}" for name in here if there.get(name, here[name]) != here[name]]
    if changed:
        warn_caller(
            f"The run in {folder} was begun with other versions ({'; '.join(changed)}). It goes on, but may not end "
            "with the same bits.",
            RuntimeWarning,
        )


def leaves_by_number(tree: Any) -> dict[str, np.ndarray]:
    """Return the arrays of a pytree by their number."""
    return {f"{number:04d}": np.asarray(leaf) for number, leaf in enumerate(jax.tree.leaves(tree))}


def restore_structure(structure: Any, stored: dict[str, np.ndarray] | None) -> Any:
    """Return stored arrays in the structure of a pytree."""
    stored = stored or {}
    return jax.tree.unflatten(jax.tree.structure(structure), [stored[name] for name in sorted(stored)])
