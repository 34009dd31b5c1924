"""The network of a run: by its name, by the name of a factory of the user's own, or as it is."""

import importlib
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from ntk_equiv import ensembles, stax
from ntk_equiv._check import positive_integer, refusal

NETWORKS = ("auto", "cnn", "mlp")
WIDTHS = (256, 256)
OWN_NETWORK = "a network of your own"  # what a report calls a network that was passed as an object


def named_module(name: Any, shape: tuple[int, ...], outputs: int, /) -> Any:
    """Return the network of this name, for samples of a given shape.

    Args:
        name: "cnn" is `ensembles.image_cnn`, for images. "mlp" has two hidden layers of 256 and flattens its inputs; it
            is the finite network to `mlp:relu:2` of a plan. "auto" is "cnn" for images, otherwise "mlp".
            "module:factory" calls `factory(outputs)` of a Python file `module.py` in the current folder, or of an
            installed module; it returns what `ensembles.train` takes. What is no text is taken as such a network.
        shape: that of one sample.
        outputs: how many outputs the network has.

    Raises:
        ValueError: there is no such network, or it does not take such samples or has other outputs.

    Example:
        >>> from ntk_equiv import planned_runs
        >>> planned_runs.named_module("auto", (28, 28, 3), 9).outputs
        9
    """
    positive_integer(outputs, "outputs")
    sample = jax.ShapeDtypeStruct((2, *shape), "float32")
    factory = _factory(name, shape)
    # What a network of the user's own does wrong is found here, and not in the middle of training.
    try:
        module = factory(outputs)
        model = ensembles.as_model(module)
        params, state = model.shapes_of_variables(sample)
        found = jax.eval_shape(model.apply, params, sample, state)
    except Exception as error:  # whatever the user's network raises
        detail = " ".join(str(error).split())[:300] or type(error).__name__
        fix = "A network is a Linen module, an NNX factory (rngs -> module) or a pair (init, apply), for such samples."
        expected = f"a network for samples of shape {shape}"
        raise refusal("network", expected=expected, got=f"{_shown(name)} ({detail})", fix=fix) from None
    if getattr(found, "shape", None) != (2, outputs):
        got = f"{_shown(name)} with outputs of shape {getattr(found, 'shape', None)} for two samples"
        fix = "The number of outputs is the argument of a factory: one for each class, or for each number to predict."
        raise refusal("network", expected=f"one with {outputs} outputs for each sample", got=got, fix=fix)
    return module


def resolve_name(network: Any, shape: tuple[int, ...], /) -> str:
    """Return how a network is called in reports, with the choice that "auto" stands for."""
    if not isinstance(network, str):
        return OWN_NETWORK
    return ("cnn" if len(shape) == 3 else "mlp") if network == "auto" else network


def _shown(name: Any) -> str:
    return repr(name) if isinstance(name, str) else f"one of type {type(name).__name__}"


def _factory(name: Any, shape: tuple[int, ...]) -> Callable[[int], Any]:
    """Return what makes the network of this name, given the number of its outputs."""
    if not isinstance(name, str):
        return lambda outputs: name
    name = resolve_name(name, shape)
    if name == "mlp":
        return partial(_mlp, len(shape) > 1)
    if name == "cnn":
        if len(shape) != 3:
            fix = "Convolutions are for images; take mlp for everything else."
            raise refusal("network", expected=f"mlp for samples of shape {shape}", got=repr(name), fix=fix)
        return ensembles.image_cnn
    module, _, factory = name.partition(":")
    if not (module and factory):
        fix = "For one of your own write module:factory; `factory(outputs)` in module.py returns it."
        raise refusal("network", expected=f"one of {', '.join(NETWORKS)}, or module:factory", got=repr(name), fix=fix)
    return _import_factory(module, factory)


def _mlp(flatten: bool, outputs: int) -> Any:
    hidden = [layer for width in WIDTHS for layer in (stax.Dense(width, 2**0.5, 0.1), stax.Relu())]
    layers = [*([stax.Flatten()] if flatten else []), *hidden, stax.Dense(outputs, 1.0, 0.1)]
    return ensembles.to_flax(stax.serial(*layers))


def _import_factory(module: str, factory: str) -> Any:
    """Return a function of a module, which is searched in the current folder first."""
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        function = getattr(importlib.import_module(module), factory)
    except Exception as error:  # a module may raise anything
        got = f"{module}:{factory} ({type(error).__name__}: {error})"
        fix = f"Modules are searched in the current folder, {here}, and among those that are installed."
        raise refusal("network", expected="a factory that can be imported", got=got, fix=fix) from None
    finally:
        sys.path.remove(here)
    if not callable(function):
        fix = "A factory is a function of the number of outputs that returns a network."
        raise refusal("network", expected="a function", got=f"{module}:{factory}, {type(function).__name__}", fix=fix)
    return function
