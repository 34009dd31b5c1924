"""Runs on disk, with orbax: arrays of all members, and the configuration they belong to, as JSON.

A checkpoint is written beside its final place and then renamed, so that one that exists is complete; the one before
it is removed only then. A run holds the lock of the folder it writes to, and whoever reads leaves everything in place.
Arrays are stored without what fills up the layout, so that a run may go on with other devices. Pytrees are stored as
lists of leaves: their structure comes from the network and the optimizer, and nothing is pickled.
"""

import errno
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from ntk_equiv._check import file_path, refusal
from ntk_equiv.ensembles._configuration import differences
from ntk_equiv.ensembles._lock import NAME as LOCK_FILE
from ntk_equiv.ensembles._lock import FolderLock

KEPT = 2
Stored = dict[str, Any]


class Checkpoints:
    """The checkpoints in a folder: to read them, or, with its lock, to write some too."""

    def __init__(self, folder: Path, lock: FolderLock | None = None, *, writes: bool = False) -> None:
        self.folder, self._lock = folder.absolute(), lock
        # Whoever only reads must not remove what another process is just writing.
        options = (
            ocp.CheckpointManagerOptions(
                max_to_keep=KEPT, create=True, enable_async_checkpointing=False, cleanup_tmp_directories=True
            )
            if writes
            else ocp.CheckpointManagerOptions(read_only=True, create=False, save_interval_steps=0)
        )
        self._manager = ocp.CheckpointManager(self.folder, options=options, item_names=("arrays", "text"))

    @property
    def latest(self) -> int | None:
        """The step of the last complete checkpoint."""
        return self._manager.latest_step()

    def save(self, step: int, arrays: Stored, text: dict[str, Any]) -> None:
        """Write a checkpoint; if that fails, the ones before are still there.

        Raises:
            OSError: it could not be written, with what to do.
        """
        args = ocp.args.Composite(arrays=ocp.args.StandardSave(arrays), text=ocp.args.JsonSave(text))
        try:
            self._manager.save(step, args=args, force=True)
            self._manager.wait_until_finished()
        except Exception as error:  # tensorstore reports a full disk as a ValueError
            left = "no checkpoint was" if self.latest is None else f"the complete checkpoint of step {self.latest} was"
            fix = "Make room" if self._is_full(error, arrays) else "See that nothing else changes the folder"
            raise OSError(
                f"the checkpoint of step {step} could not be written to {self.folder}: {error}. Nothing else is lost: "
                f"{left} left in place. {fix}, and try again; a run goes on with `resume=True`."
            ) from error

    def _is_full(self, error: BaseException, arrays: Stored) -> bool:
        """Whether it was room that an attempt to write lacked."""
        said = any(text in str(error) for text in ("No space left", "RESOURCE_EXHAUSTED", "quota"))
        if said or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            return True
        needed = sum(leaf.nbytes for leaf in jax.tree.leaves(arrays))
        return self.folder.exists() and shutil.disk_usage(self.folder).free < needed

    def load(self, step: int | None = None) -> tuple[Stored, dict[str, Any]]:
        """The arrays and the text of a checkpoint, the last one by default.

        Raises:
            FileNotFoundError: there is none.
            OSError: it is damaged, with what to do.
        """
        step = self.latest if step is None else step
        if step is None:
            fix = "Pass the folder that `checkpoint=` or `run.save` wrote to."
            raise refusal(
                "folder", expected="one with a run in it", got=str(self.folder), fix=fix, kind=FileNotFoundError
            )
        args = ocp.args.Composite(arrays=ocp.args.StandardRestore(), text=ocp.args.JsonRestore())
        try:
            found = self._manager.restore(step, args=args)
        except Exception as error:  # each kind of damage has its own: JSON, tensorstore, missing files
            raise OSError(
                f"the checkpoint of step {step} in {self.folder} is damaged: {error}. "
                f"Remove {self.folder / str(step)}, to go on from the one before it, or the folder, to begin anew."
            ) from error
        return found["arrays"], found["text"]

    def close(self) -> None:
        """Let go of the folder."""
        self._manager.close()
        if self._lock is not None:
            self._lock.release()


def open_folder(folder: Any, *, resume: bool, argument: str = "checkpoint") -> Checkpoints:
    """The checkpoints of a run that begins, or goes on, in a folder, which is locked until they are closed.

    Of several processes that train together, the first one holds the lock, and all of them are refused if it is.

    Raises:
        FileExistsError: there is something in the folder, and nothing is to be resumed.
        BlockingIOError: another run writes to it.
    """
    path = file_path(folder, argument)
    lock, problem = None, None
    if jax.process_index() == 0:
        try:
            lock = _locked(path, resume, argument)
        except OSError as error:
            problem = error
    if jax.process_count() > 1:
        problem = _told_all(problem)
    if problem is not None:
        raise problem
    try:
        return Checkpoints(path, lock, writes=True)
    except BaseException:
        if lock is not None:
            lock.release()
        raise


def _locked(path: Path, resume: bool, argument: str) -> FolderLock:
    """The lock of a folder that is new or empty, unless it is to be resumed."""
    # A folder with other things in it is not even locked, which would leave a file there for a moment.
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
    fix = "Pass `resume=True` to go on with the run that is in it, or another folder."
    if argument != "checkpoint":
        fix = "Name another folder, or remove this one first."
    return refusal(argument, expected="a new or empty folder", got=str(path), fix=fix, kind=FileExistsError)


def _told_all(problem: OSError | None) -> OSError | None:
    """What went wrong in the first of several processes, in all of them."""
    text = np.zeros(1000, np.uint8)
    written = str(problem or "").encode()[: text.size]
    text[: len(written)] = np.frombuffer(written, np.uint8)
    told = bytes(multihost_utils.broadcast_one_to_all(text)).rstrip(b"\0").decode(errors="replace")
    return problem or (OSError(told) if told else None)


def check_same(here: dict[str, Any], there: dict[str, Any], folder: Any) -> None:
    """Refuse to go on with a run of another configuration, and say what differs.

    Raises:
        ValueError: the configurations differ.
    """
    found = differences(here, there)
    if found:
        fix = "Use the settings it was begun with, or another folder."
        raise refusal("checkpoint", expected="of this very run", got=f"{folder} with {'; '.join(found)}", fix=fix)


def leaves(tree: Any) -> dict[str, np.ndarray]:
    """The arrays of a pytree, by their number."""
    return {f"{number:04d}": np.asarray(leaf) for number, leaf in enumerate(jax.tree.leaves(tree))}


def like(structure: Any, stored: dict[str, np.ndarray] | None) -> Any:
    """Stored arrays in the structure of a pytree."""
    stored = stored or {}
    return jax.tree.unflatten(jax.tree.structure(structure), [stored[name] for name in sorted(stored)])
