"""Runs on disk, with orbax: arrays of all members, and the configuration they belong to, as JSON.

A checkpoint is written beside its final place and then renamed, so that one that exists is complete; the one before
it is removed only then. Arrays are stored without what fills up the layout, so that a run may go on with other devices.
Pytrees are stored as lists of leaves: their structure comes from the network and the optimizer, and nothing is pickled.
"""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from ntk_equiv._check import file_path, refusal
from ntk_equiv.ensembles._configuration import differences

KEPT = 2
Stored = dict[str, Any]


class Checkpoints:
    """The checkpoints in a folder."""

    def __init__(self, folder: Any) -> None:
        self.folder = Path(folder).absolute()
        options = ocp.CheckpointManagerOptions(
            max_to_keep=KEPT, create=True, enable_async_checkpointing=False, cleanup_tmp_directories=True
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
            raise OSError(
                f"the checkpoint of step {step} could not be written to {self.folder}: {error}. Nothing else is lost: "
                f"{left} left in place. Make room, and call `train` again with `resume=True`."
            ) from error

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


def open_folder(folder: Any, *, resume: bool, argument: str = "checkpoint") -> Checkpoints:
    """The checkpoints of a run that begins, or goes on, in a folder.

    Raises:
        FileExistsError: there is something in the folder, and nothing is to be resumed.
    """
    path = file_path(folder, argument)
    if path.exists() and (not path.is_dir() or (any(path.iterdir()) and not resume)):
        fix = "Pass `resume=True` to go on with the run that is in it, or another folder."
        raise refusal(argument, expected="a new or empty folder", got=str(path), fix=fix, kind=FileExistsError)
    return Checkpoints(path)


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
