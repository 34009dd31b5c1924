"""Inputs of a trained network, held against those it was trained on before anything is computed with them."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv._check import refusal, samples_in, shown
from ntk_equiv.ensembles._model import Model
from ntk_equiv.stax import Graph


def spec(leaf: Any) -> str:
    """Dtype and shape of an array: `float32[3,4]`."""
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"


def example_of(specs: list[str]) -> Any:
    """One sample with the shapes and dtypes that are listed: an array, or a graph.

    Example:
        >>> example_of(["float32[1,3]"])
        ShapeDtypeStruct(shape=(1, 3), dtype=float32)
    """
    shapes: list[Any] = [*map(_shape, specs)]
    return shapes[0] if len(shapes) == 1 else Graph(*shapes)


def check_inputs(x: Any, argument: str, specs: list[str], model: Model, params: Any) -> None:
    """Refuse inputs that are unlike those of training.

    Their numbers have to be of the same kind, since bytes are images that were not scaled; their samples of the same
    shape, or at least of one that the network takes.

    Args:
        x: the inputs.
        argument: how to call them.
        specs: dtypes and shapes of a sample in training.
        model: the network.
        params: the parameters of a member, or their shapes.

    Raises:
        TypeError: these are no arrays, or of numbers of another kind.
        ValueError: their shapes do not fit.
    """
    wanted = [*map(_shape, specs)]
    shapes = " and ".join(f"[n{''.join(f', {size}' for size in leaf.shape[1:])}]" for leaf in wanted)
    expected = f"samples as in training, {shapes}"
    if len(wanted) == 1 and isinstance(x, list | tuple) and not hasattr(x, "_fields"):
        fix = "Make one array of them, for example with `np.stack(x)`; labels are not part of it."
        got = f"a {type(x).__name__} of {len(x)}"
        raise refusal(argument, expected=expected, got=got, fix=fix, kind=TypeError)
    samples_in(x, argument)
    found = jax.tree.leaves(x)
    ranks = [np.ndim(leaf) for leaf in found], [len(leaf.shape) for leaf in wanted]
    if ranks[0] != ranks[1]:
        single = [np.shape(leaf) for leaf in found] == [leaf.shape[1:] for leaf in wanted]
        fix = "For a single sample pass `x[None]`." if single else "The first axis counts the samples."
        raise refusal(argument, expected=expected, got=" and ".join(map(shown, found)), fix=fix)
    for leaf, like in zip(found, wanted, strict=True):
        if _is_floating(leaf) != _is_floating(like):
            fix = "Prepare them as the training data were: bytes of images, for example, are divided by 255."
            got = f"{jnp.result_type(leaf)}"
            raise refusal(argument, expected=f"{like.dtype} as in training", got=got, fix=fix, kind=TypeError)
    if [np.shape(leaf)[1:] for leaf in found] != [leaf.shape[1:] for leaf in wanted]:
        try:  # Networks without a flattening, and those of graphs, take samples of any size.
            jax.eval_shape(model.apply, params, jax.tree.map(lambda leaf: jnp.asarray(leaf[:1]), x))
        except Exception:  # whatever the user's network raises at a size that it does not take
            got = " and ".join(map(shown, found))
            fix = "The network takes no other size: crop, pad or scale."
            raise refusal(argument, expected=expected, got=got, fix=fix) from None


def _shape(text: str) -> jax.ShapeDtypeStruct:
    dtype, sizes = re.fullmatch(r"(\w+)\[([\d,]*)\]", text).groups()  # type: ignore[union-attr]
    return jax.ShapeDtypeStruct(tuple(int(size) for size in sizes.split(",") if size), np.dtype(dtype))


def _is_floating(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)
