"""A fitted ensemble in a file: arrays and a line of JSON, no pickle.

What is expensive is the decomposition, and that is what is kept. Kernel, data and filter are code and come from the
caller; the file knows the data by their digest and the kernel by its largest row sum on them, evaluated anew for one
base point.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv._check import file_path, is_concrete, refusal
from ntk_equiv._gram import gram
from ntk_equiv._typing import KernelFunction
from ntk_equiv.infinite._engine import Engine
from ntk_equiv.infinite._fit import Block, Fit
from ntk_equiv.infinite._hermitian import Eigenbasis
from ntk_equiv.infinite._training_set import TrainingSet, reduced_set, training_set

FORMAT = "ntk_equiv.InfiniteEnsemble/2"


def save(ens: Engine, path: Any) -> None:
    """Write `ens` to `path`, all of it or nothing."""
    if not is_concrete(ens._fit):
        raise refusal("save", expected="called with known values", got="traced ones", fix="Save outside of jit.")
    path, fit = file_path(path, "path"), ens._spectral_fit()
    about = {
        "format": FORMAT,
        "method": ens.method,
        "reason": ens.reason,
        "reduction": ens.reduction,
        "data": _digest(ens._data),
        "sectors": sorted(fit.blocks),
    }
    arrays = {"about": np.array(json.dumps(about)), "scale": fit.scale, "noise": fit.noise}
    arrays["probe"] = _probe(ens.kernel_fn, ens._data)
    for number, basis in fit.eigenbases.items():
        block = fit.blocks[number]
        kept = {"values": basis.values, "vectors": basis.vectors, "labels": block.labels}
        kept |= {} if block.nngp is None else {"nngp": block.nngp}
        arrays |= {f"{name}/{number}": array for name, array in kept.items()}
    unfinished = path.with_name(path.name + ".unfinished")
    with unfinished.open("wb") as file:
        np.savez(file, allow_pickle=False, **jax.tree.map(np.asarray, arrays))
    os.replace(unfinished, path)


def load(path: Any, kernel_fn: KernelFunction, train: Any) -> tuple[TrainingSet, Fit, str, str, str]:
    """The parts of the ensemble in the file `path`: data, fit, reduction, method and reason."""
    about, arrays = _read(file_path(path, "path", exists=True))
    data = reduced_set(train) if about["method"] == "reduced" else training_set(train)
    if _digest(data) != about["data"]:
        fix = "Pass the training set that the ensemble was fitted to, in the same precision."
        raise refusal("train", expected=f"the data that {path} was made from", got="others", fix=fix)
    probe = _probe(kernel_fn, data)
    rounding = 100 * float(jnp.finfo(probe.dtype).eps) ** 0.75 * np.max(np.abs(probe), initial=0.0)
    if probe.shape != arrays["probe"].shape or np.max(np.abs(probe - arrays["probe"]), initial=0.0) > rounding:
        fix = "Pass the kernel function of the network that the ensemble was fitted with."
        raise refusal("kernel_fn", expected=f"the kernel that {path} was made from", got="another", fix=fix)
    blocks = {}
    for number in about["sectors"]:
        values, vectors, labels, nngp = (
            _array(arrays, name, number) for name in ("values", "vectors", "labels", "nngp")
        )
        blocks[number] = Block(Eigenbasis(values, vectors), labels, nngp)
    fit = Fit(blocks, jnp.asarray(arrays["scale"]), jnp.asarray(arrays["noise"]))
    return data, fit, about["reduction"], about["method"], about["reason"]


def _read(path: Path) -> tuple[dict, dict]:
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            arrays = dict(file)
        about = json.loads(str(arrays.pop("about")))
        known = about["format"] == FORMAT
    except Exception as error:  # a damaged archive can fail in as many ways as it can be damaged
        fix = "It is damaged, or no file of a fitted ensemble: fit again and save."
        raise refusal("path", expected="a file made by `save`", got=f"{path} ({error})", fix=fix) from None
    if not known:
        fix = "Load it with the version of ntk-equiv that wrote it, or fit again."
        raise refusal("path", expected=f"a file of format {FORMAT}", got=repr(about["format"]), fix=fix)
    return about, arrays


def _array(arrays: dict, name: str, number: int) -> Any:
    found = arrays.get(f"{name}/{number}")
    return None if found is None else jnp.asarray(found)


def _digest(data: TrainingSet) -> str:
    """A name for points, labels and group, different for different ones."""
    digest = hashlib.sha256()
    for leaf in (*jax.tree.leaves(data.x), data.labels()):
        array = np.ascontiguousarray(leaf)
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    if data.group is not None:
        digest.update(np.ascontiguousarray(data.group.table).tobytes())
    return digest.hexdigest()


def _probe(kernel_fn: KernelFunction, data: TrainingSet) -> np.ndarray:
    """The kernels of the first base point with all of them."""
    first = jax.tree.map(lambda leaf: leaf[:1], data.x)
    return np.stack([np.asarray(kernel) for kernel in gram(kernel_fn, first, data.x, ("nngp", "ntk"))])
