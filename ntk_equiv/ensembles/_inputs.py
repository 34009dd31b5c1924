"""The inputs that a trained network accepts: like those of training, as far as that can be told.

Shapes and dtypes of arrays are written as text, `float32[3,4]`, so that they can be stored with a run.
"""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv._check import describe, refusal, samples_in
from ntk_equiv._typing import Inputs
from ntk_equiv.ensembles._models import Model, Params, State
from ntk_equiv.ensembles._sources import Source, as_stored, with_shape
from ntk_equiv.stax import Graph


def array_spec(leaf: Any) -> str:
    """Return dtype and shape of an array as text: `float32[3,4]`."""
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"


def input_specs(x: Inputs) -> list[str]:
    """Return dtype and shape of one sample of `x`: a list, since a graph has several arrays."""
    return [array_spec(leaf[:1]) for leaf in jax.tree.leaves(x)]


def parameter_specs(params: Params) -> dict[str, str]:
    """Return dtype and shape of every parameter, by its name."""
    with_paths, _ = jax.tree_util.tree_flatten_with_path(params)
    return {jax.tree_util.keystr(path): array_spec(leaf) for path, leaf in with_paths}


def sample_from_specs(specs: list[str]) -> Inputs:
    """Return the shapes of one sample, an array or a graph, from what `input_specs` returned.

    Example:
        >>> sample_from_specs(["float32[1,3]"])
        ShapeDtypeStruct(shape=(1, 3), dtype=float32)
    """
    shapes: list[Any] = [*map(_shape_from_spec, specs)]
    return shapes[0] if len(shapes) == 1 else Graph(*shapes)


def check_inputs(x: Inputs, argument: str, specs: list[str], model: Model, params: Params, state: State = ()) -> Inputs:
    """Return inputs as they are kept on the host, and refuse those that are unlike the inputs of training.

    They may be arrays, in memory or elsewhere, or a list of samples. They must hold the same kind of numbers as those
    of training: whole numbers after training on fractions are usually the bytes of images that were not scaled. Bytes
    after training on bytes are passed to the network as they are, as in training. Samples must have the shape of those
    in training, or another one that the network takes.

    Args:
        x: the inputs.
        argument: the name of the inputs in messages.
        specs: dtypes and shapes of a sample in training.
        model: the network.
        params: the parameters of a member, or their shapes.
        state: its state, or the shapes of that.

    Raises:
        TypeError: the inputs are not arrays, or hold another kind of numbers.
        ValueError: their shapes do not fit.
    """
    wanted = [*map(_shape_from_spec, specs)]
    shapes = " and ".join(f"[n{''.join(f', {size}' for size in leaf.shape[1:])}]" for leaf in wanted)
    expected = f"samples as in training, {shapes}"
    if len(wanted) == 1 and isinstance(x, list | tuple) and not hasattr(x, "_fields"):
        x = _samples_in_list(x, argument, expected)
    x = jax.tree.map(with_shape, x)
    if samples_in(x, argument) == 0:
        raise refusal(argument, expected="at least one sample", got="none", fix="Pass inputs [n, ...].")
    x = jax.tree.map(as_stored, x)
    leaves = jax.tree.leaves(x)
    if [leaf.ndim for leaf in leaves] != [len(leaf.shape) for leaf in wanted]:
        single = [leaf.shape for leaf in leaves] == [leaf.shape[1:] for leaf in wanted]
        fix = "For a single sample pass `x[None]`." if single else "The first axis counts the samples."
        raise refusal(argument, expected=expected, got=" and ".join(map(describe, leaves)), fix=fix)
    for leaf, like in zip(leaves, wanted, strict=True):
        if _is_floating(leaf) != _is_floating(like):
            fix = "Prepare them as the training data were: bytes of images, for example, are divided by 255."
            if not _is_floating(like):
                fix = "Prepare them as the training data were: whole numbers, such as the bytes of images."
            got = f"{leaf.dtype}"
            raise refusal(argument, expected=f"{like.dtype} as in training", got=got, fix=fix, kind=TypeError)
    if [leaf.shape[1:] for leaf in leaves] != [leaf.shape[1:] for leaf in wanted]:
        try:  # Networks that do not flatten, and networks of graphs, take samples of any size.
            jax.eval_shape(model.apply, params, jax.tree.map(lambda leaf: leaf[:1], x), state)
        except Exception:  # whatever the user's network raises at a size that it does not take
            got = " and ".join(map(describe, leaves))
            fix = "The network takes no other size: crop, pad or scale."
            raise refusal(argument, expected=expected, got=got, fix=fix) from None
    return x


def _samples_in_list(x: list | tuple, argument: str, expected: str) -> Source:
    """Return a list of samples, arrays of one shape, as an array that is stacked when it is needed."""
    shapes = {np.shape(sample) for sample in x if hasattr(sample, "shape")}
    if isinstance(x, list) and len(shapes) == 1 and all(hasattr(sample, "shape") for sample in x):
        return Source(x)
    got = f"a {type(x).__name__} of {len(x)}"
    fix = "Pass one array, or a list of samples that are arrays; labels are not part of it."
    if isinstance(x, list) and len(shapes) > 1:
        got += f" with shapes {', '.join(map(str, sorted(shapes)))}"
        fix = "Crop, pad or scale them to one size."
    raise refusal(argument, expected=expected, got=got, fix=fix, kind=TypeError)


def _shape_from_spec(text: str) -> jax.ShapeDtypeStruct:
    dtype, sizes = re.fullmatch(r"(\w+)\[([\d,]*)\]", text).groups()  # type: ignore[union-attr]
    return jax.ShapeDtypeStruct(tuple(int(size) for size in sizes.split(",") if size), np.dtype(dtype))


def _is_floating(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.inexact)
