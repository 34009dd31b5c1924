"""An ensemble in a file: arrays and a line of JSON, no pickle.

Solving the blocks is what is expensive, and the solved blocks are what is kept. Kernel, data and filter are code and
come from the caller. The file knows the data by their digest, and the kernel by its values for the first base sample.
"""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv import solvers
from ntk_equiv._check import file_path, is_concrete, refusal
from ntk_equiv._gram import evaluate_gram
from ntk_equiv._typing import SplitKernel
from ntk_equiv.infinite._blocks import GramBlock, GramBlocks
from ntk_equiv.infinite._tiles import digest_of_samples, first_orbit
from ntk_equiv.infinite._training_set import TrainingSet, plain_set, reduced_set
from ntk_equiv.solvers import DenseBlock, Solver

FORMAT = "ntk_equiv.InfiniteEnsemble/2"


def save(path: Any, kernel: SplitKernel, blocks: GramBlocks, reduction: str, solver: Solver) -> None:
    """Write an ensemble to `path`, all of it or nothing."""
    if not is_concrete(blocks):
        raise refusal("save", expected="called with known values", got="traced ones", fix="Save outside of jit.")
    path, data = file_path(path, "path"), blocks.data
    solved = {number: block.solved.arrays() for number, block in blocks.by_irrep.items()}
    name = type(solver).__name__
    if None in solved.values() or getattr(solvers, name, None) is not type(solver):
        fix = "Save an ensemble that was made with `solver=solvers.Eigh()`."
        raise refusal("solver", expected="one whose blocks can be stored", got=repr(solver), fix=fix)
    about = {
        "format": FORMAT,
        "method": data.method,
        "reason": data.reason,
        "reduction": reduction,
        "solver": name,
        "settings": dataclasses.asdict(solver),  # type: ignore[call-overload]
        "data": digest_of_samples(data, data.labels()),
        "sectors": sorted(blocks.by_irrep),  # the format's word for irreps
    }
    arrays = {"about": np.array(json.dumps(about)), "scale": blocks.scale, "noise": blocks.noise}
    arrays |= {"probe": _probe(kernel, data), "orbit": first_orbit(data)}
    for number, block in blocks.by_irrep.items():
        kept = {**(solved[number] or {}), "labels": block.labels}
        kept |= {} if block.other is None else {"nngp": block.other.dense()}
        arrays |= {f"{array}/{number}": values for array, values in kept.items()}
    unfinished = path.with_name(path.name + ".unfinished")
    with unfinished.open("wb") as file:
        np.savez(file, allow_pickle=False, **jax.tree.map(np.asarray, arrays))
    os.replace(unfinished, path)


def load(path: Any, kernel: SplitKernel, train: Any) -> tuple[GramBlocks, str, Solver]:
    """Return the parts of the ensemble in the file `path`: blocks, reduction and solver."""
    about, arrays = _read(file_path(path, "path", exists=True))
    # Files of the first versions name no solver: there was one.
    solver = getattr(solvers, about.get("solver", "Eigh"))(**about.get("settings", {}))
    data = (reduced_set if about["method"] == "reduced" else plain_set)(train, about["reason"])
    # Files of the first versions have no orbit: they did not know how the group acts on samples.
    if digest_of_samples(data, data.labels()) != about["data"] or not np.array_equal(
        first_orbit(data), arrays.get("orbit", first_orbit(data))
    ):
        fix = "Pass the training set that the ensemble was fitted to, in the same precision."
        raise refusal("train", expected=f"the data that {path} was made from", got="others", fix=fix)
    probe = _probe(kernel, data)
    rounding = 100 * float(jnp.finfo(probe.dtype).eps) ** 0.75 * np.max(np.abs(probe), initial=0.0)
    if probe.shape != arrays["probe"].shape or np.max(np.abs(probe - arrays["probe"]), initial=0.0) > rounding:
        fix = "Pass the kernel function of the network that the ensemble was fitted with."
        raise refusal("kernel_fn", expected=f"the kernel that {path} was made from", got="another", fix=fix)
    blocks = {}
    for number in about["sectors"]:
        found = {name.split("/")[0]: jnp.asarray(a) for name, a in arrays.items() if name.endswith(f"/{number}")}
        labels, nngp = found.pop("labels"), found.pop("nngp", None)
        blocks[number] = GramBlock(solver.restore(found), labels, None if nngp is None else DenseBlock(nngp))
    loaded = GramBlocks(data, blocks, jnp.asarray(arrays["scale"]), jnp.asarray(arrays["noise"]))
    return loaded, about["reduction"], solver


def _read(path: Path) -> tuple[dict, dict]:
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            arrays = dict(file)
        about = json.loads(str(arrays.pop("about")))
        known = about["format"] == FORMAT
    except Exception as error:  # a damaged archive can fail in as many ways as it can be damaged
        fix = "It is damaged, or not a file of an ensemble: make the ensemble again and save it."
        raise refusal("path", expected="a file made by `save`", got=f"{path} ({error})", fix=fix) from None
    if not known:
        fix = "Load it with the version of ntk-equiv that wrote it, or fit again."
        raise refusal("path", expected=f"a file of format {FORMAT}", got=repr(about["format"]), fix=fix)
    return about, arrays


def _probe(kernel: SplitKernel, data: TrainingSet) -> np.ndarray:
    """Return the kernels of the first base sample with all of them."""
    first = jax.tree.map(lambda leaf: leaf[:1], data.x)
    return np.stack([np.asarray(kernel) for kernel in evaluate_gram(kernel, first, data.x, ("nngp", "ntk"))])
