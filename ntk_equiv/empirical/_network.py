"""One interface to the networks whose kernels are wanted: `apply(params, constants, x)`.

    network                                 params                      constants
    function apply(params, x)               all that was given          nothing
    (init, apply) pair, or stax triple      all that was given          nothing
    Linen module                            the collection "params"     its other collections

Nothing of Flax is imported: what has a method `apply` that takes a mapping with the key "params" is a Linen module.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ntk_equiv._check import arrays, refusal
from ntk_equiv.stax import Graph, with_own_adjacency


@dataclasses.dataclass(frozen=True)
class Plain:
    """A function of parameters and inputs."""

    apply: Callable

    def __call__(self, params: Any, constants: Any, x: Any) -> Any:
        """The outputs."""
        return self.apply(params, x)


@dataclasses.dataclass(frozen=True)
class Linen:
    """A module whose trained variables are one collection of several."""

    module: Any

    def __call__(self, params: Any, constants: Any, x: Any) -> Any:
        """The outputs."""
        return self.module.apply({"params": params, **constants}, x)


def split(network: Any, params: Any) -> tuple[Plain | Linen, Any, Any]:
    """How to evaluate the network, its parameters as arrays, and its variables that are not trained."""
    constants: Any = ()
    apply: Plain | Linen
    if _is_module(network):
        if not isinstance(params, Mapping) or "params" not in params:
            got = f"keys {sorted(params)}" if isinstance(params, Mapping) else type(params).__name__
            fix = 'Pass the variables that `module.init` returned, or `{"params": params}`.'
            raise refusal("params", expected='variables with a collection "params"', got=got, fix=fix)
        apply, constants = Linen(network), {name: params[name] for name in params if name != "params"}
        params = params["params"]
    else:
        apply = Plain(_function(network))
    try:
        hash(apply)
    except TypeError as error:
        fix = "Compiled programs are found by it: wrap it in a function of your own."
        raise refusal("apply", expected="hashable", got=str(error), fix=fix, kind=TypeError) from error
    if params is None or jax.tree.leaves(params):  # a network may be without any, but then it says so, by `()`
        params = arrays(params, "params")
    return apply, jax.tree.map(_parameter, params), jax.tree.map(jnp.asarray, constants)


def sample_outputs(apply: Callable, params: Any, constants: Any, sample: Any) -> Any:
    """The outputs for one sample, without an axis of samples."""
    return apply(params, constants, as_batch(sample))[0]


def as_batch(sample: Any) -> Any:
    """One sample with an axis of samples."""
    return jax.tree.map(lambda leaf: leaf[None], sample)


def output_spec(apply: Callable, params: Any, constants: Any, x: Any) -> jax.ShapeDtypeStruct:
    """Shape and dtype of the outputs for samples `x`, if network, parameters and samples fit together."""
    try:
        outputs = jax.eval_shape(apply, params, constants, x)
    except Exception as error:  # whatever the network says about parameters or inputs that do not fit
        fix = "Pass the parameters of this network, and inputs like those they were made for."
        got = f"{type(error).__name__}: {str(error)[:300]}"
        raise refusal("params", expected="such that `apply(params, x)` can be evaluated", got=got, fix=fix) from error
    if not isinstance(outputs, jax.ShapeDtypeStruct):
        fix = "Wrap it in a function that returns one of its outputs."
        got = f"a {type(outputs).__name__}"
        raise refusal("apply", expected="a function whose output is one array", got=got, fix=fix, kind=TypeError)
    n = jax.tree.leaves(x)[0].shape[0]
    if outputs.ndim == 0 or outputs.shape[0] != n or not jnp.issubdtype(outputs.dtype, jnp.floating):
        fix = "The first axis of inputs and outputs counts the samples."
        got = f"{outputs.dtype} of shape {outputs.shape}"
        raise refusal("apply", expected=f"a function with real outputs [{n}, ...]", got=got, fix=fix)
    return outputs


def checked_inputs(x: Any, argument: str = "x") -> Any:
    """`x` as arrays; an adjacency that all graphs share is given to each of them."""
    return with_own_adjacency(x) if isinstance(x, Graph) else arrays(x, argument)


def _is_module(network: Any) -> bool:
    return not isinstance(network, tuple) and callable(getattr(network, "apply", None))


def _function(network: Any) -> Callable:
    if isinstance(network, tuple) and len(network) in (2, 3) and callable(network[1]):
        return network[1]
    if callable(network) and not isinstance(network, type):
        return network
    expected = "a function apply(params, x), a pair (init, apply), a stax triple or a Linen module"
    fix = "For an NNX module use `ensembles.as_pair`, or split it and merge it in a function of your own."
    raise refusal("apply", expected=expected, got=repr(network)[:80], fix=fix, kind=TypeError)


def _parameter(array: jax.Array) -> jax.Array:
    if not jnp.issubdtype(array.dtype, jnp.floating):
        fix = "Close over what is not trained, in the function that you pass."
        raise refusal("params", expected="real numbers", got=f"dtype {array.dtype}", fix=fix, kind=TypeError)
    return array
