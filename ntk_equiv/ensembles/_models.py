"""Networks of every kind as one `Model`, and the inputs that a trained one accepts.

    module                              init(key, x)                        apply(params, x)
    Linen module                        module.init(key, x)["params"]       module.apply({"params": params}, x)
    NNX factory (rngs -> module)        the Param state, as nested dicts    the merged module, called on x
    pair (init, apply)                  init(key, x)                        apply(params, x)
    triple (init_fn, apply_fn, …)       init_fn(key, shape of x)[1]         apply_fn(params, x)

Parameters are any pytree of arrays. Models compare equal if their modules do, so that compiled programs are reused.

Shapes and dtypes of arrays are written as text, `float32[3,4]`, so that they can be stored with a run.
"""

import contextlib
import dataclasses
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import flax.errors
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ntk_equiv._check import describe, refusal, samples_in
from ntk_equiv._typing import Inputs
from ntk_equiv.stax import Graph, KernelFn

Params = Any
"""Parameters of a network: any pytree of arrays, or of their shapes."""

Module = nn.Module | Callable | tuple
"""A network as users pass it: a Linen module, an NNX factory, a pair `(init, apply)` or a stax triple."""


@dataclasses.dataclass(frozen=True)
class Model(ABC):
    """A network as two functions; `module` is the network as the user passed it."""

    module: Module

    @abstractmethod
    def init(self, key: jax.Array, x: Inputs) -> Params:
        """Return random parameters for inputs like `x`."""

    @abstractmethod
    def apply(self, params: Params, x: Inputs) -> Any:
        """Return the outputs [n, ...]."""

    def shapes_of_parameters(self, x: Inputs) -> Params:
        """Return the shapes of the parameters for inputs like `x`, without computing them."""
        return jax.eval_shape(self.init, jax.random.key(0), x)


class _Linen(Model):
    module: nn.Module

    def init(self, key: jax.Array, x: Inputs) -> Params:
        with _refusing_noise():
            variables = self.module.init(key, x)
        _refuse_state(sorted(set(variables) - {"params"}))
        return variables.get("params", {})

    def apply(self, params: Params, x: Inputs) -> Any:
        with _refusing_noise():
            return self.module.apply({"params": params}, x)


class _NNX(Model):
    module: Callable

    def init(self, key: jax.Array, x: Inputs) -> Params:
        _, params, *others = nnx.split(self.module(nnx.Rngs(key)), nnx.Param, ...)
        _refuse_state(sorted({type(leaf).__name__ for leaf in jax.tree.leaves(others, is_leaf=_is_variable)}))
        return nnx.to_pure_dict(params)

    def apply(self, params: Params, x: Inputs) -> Any:
        graph, state = nnx.split(nnx.eval_shape(lambda: self.module(nnx.Rngs(0))))
        nnx.replace_by_pure_dict(state, params)
        return nnx.merge(graph, state)(x)


class _Pair(Model):
    module: tuple

    def init(self, key: jax.Array, x: Inputs) -> Params:
        return self.module[0](key, x)

    def apply(self, params: Params, x: Inputs) -> Any:
        return self.module[1](params, x)


class _Triple(Model):
    module: tuple

    def init(self, key: jax.Array, x: Inputs) -> Params:
        return self.module[0](key, _input_shape(x))[1]

    def apply(self, params: Params, x: Inputs) -> Any:
        return self.module[1](params, x)


def as_model(module: Module | Model) -> Model:
    """Return the model of whatever `train` accepts as a module."""
    if isinstance(module, Model):
        return module
    if isinstance(module, nn.Module):
        return _Linen(module)
    if isinstance(module, tuple) and all(callable(part) for part in module[:2]) and len(module) in (2, 3):
        return _Pair(module) if len(module) == 2 else _Triple(tuple(module))
    if callable(module) and not isinstance(module, nnx.Module | KernelFn) and not _is_linen_class(module):
        return _NNX(module)
    expected = "a Linen module, an NNX factory (rngs -> module), a pair (init, apply) or a stax triple"
    fix = "Call a Linen class to make a module of it: `Net(...)`."
    if isinstance(module, nnx.Module):
        fix = "Members differ in their random keys, so pass a factory: `lambda rngs: Net(..., rngs=rngs)`."
    raise refusal("module", expected=expected, got=repr(module)[:80], fix=fix, kind=TypeError)


def as_pair(module: Module, /) -> tuple[Callable, Callable]:
    """Return any network that `train` accepts as two functions, `init(key, x) -> params` and `apply(params, x)`.

    Args:
        module: a Linen module, an NNX factory `rngs -> module`, a pair `(init, apply)` or a stax triple.

    Returns:
        The pair. It identifies compiled programs, so make it once and keep it.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from flax import nnx
        >>> from ntk_equiv import empirical_kernel_fn, ensembles
        >>> init, apply = ensembles.as_pair(lambda rngs: nnx.Linear(2, 1, use_bias=False, rngs=rngs))
        >>> x = jnp.array([[1.0, 2.0], [0.0, 1.0]])
        >>> print(empirical_kernel_fn(apply, init(jax.random.key(0), x))(x, None, "ntk"))
        [[5. 2.]
         [2. 1.]]
    """
    model = as_model(module)
    return model.init, model.apply


def to_flax(net: tuple, /) -> nn.Module:
    """Return a Linen module around a stax triple: the same function, parameterization and initial law.

    Args:
        net: a triple `(init_fn, apply_fn, kernel_fn)`, or its first two parts.

    Returns:
        A Linen module whose parameters are those of the triple, under the name "net".

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from ntk_equiv import ensembles, stax
        >>> module = ensembles.to_flax(stax.serial(stax.Dense(8), stax.Relu(), stax.Dense(1)))
        >>> variables = module.init(jax.random.key(0), jnp.ones((2, 3)))
        >>> jax.tree.map(jnp.shape, variables["params"]["net"])
        [((3, 8), None), (), ((8, 1), None)]
        >>> module.apply(variables, jnp.ones((2, 3))).shape
        (2, 1)
    """
    if not (isinstance(net, tuple) and len(net) in (2, 3) and all(callable(part) for part in net[:2])):
        fix = "Build one with `ntk_equiv.stax`."
        raise refusal("net", expected="a triple (init_fn, apply_fn, kernel_fn)", got=repr(net)[:80], fix=fix)
    return StaxModule(net[0], net[1])


class StaxModule(nn.Module):
    """A Linen module that evaluates a stax network; made by `to_flax`."""

    init_fn: Callable
    apply_fn: Callable

    @nn.compact
    def __call__(self, x: Inputs) -> Any:
        """Return the outputs of the network."""
        return self.apply_fn(self.param("net", lambda key: self.init_fn(key, _input_shape(x))[1]), x)


def _input_shape(x: Inputs) -> tuple[int, ...]:
    """Return the shape that `init_fn` takes: that of the array, or of the nodes of a graph."""
    return (-1, *jax.tree.leaves(x)[0].shape[1:])


def _is_variable(leaf: Any) -> bool:
    return isinstance(leaf, nnx.Variable)


def _is_linen_class(module: Any) -> bool:
    return isinstance(module, type) and issubclass(module, nn.Module)


@contextlib.contextmanager
def _refusing_noise() -> Iterator[None]:
    """Refuse Linen modules that draw random numbers for more than their parameters."""
    try:
        yield
    except flax.errors.InvalidRngError as error:
        got = str(error).split(" (http")[0]
        fix = "Dropout and other noise are not supported: use a module without, or one with `deterministic=True`."
        expected = "one that draws random numbers for its parameters alone"
        raise refusal("module", expected=expected, got=f"one of which Flax says: {got}", fix=fix) from None


def _refuse_state(others: list[str]) -> None:
    if others:
        fix = "Batch statistics, dropout and other state that is not learnt are not supported: use a module without."
        raise refusal("module", expected="one whose variables are all parameters", got=", ".join(others), fix=fix)


# Shapes as text, and inputs of a trained network.


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


def check_inputs(x: Inputs, argument: str, specs: list[str], model: Model, params: Params) -> None:
    """Refuse inputs that are unlike those of training.

    Both must hold the same kind of numbers: whole numbers after training on fractions are usually the bytes of images
    that were not scaled. Samples must have the shape of those in training, or another one that the network takes.

    Args:
        x: the inputs.
        argument: the name of the inputs in messages.
        specs: dtypes and shapes of a sample in training.
        model: the network.
        params: the parameters of a member, or their shapes.

    Raises:
        TypeError: the inputs are not arrays, or hold another kind of numbers.
        ValueError: their shapes do not fit.
    """
    wanted = [*map(_shape_from_spec, specs)]
    shapes = " and ".join(f"[n{''.join(f', {size}' for size in leaf.shape[1:])}]" for leaf in wanted)
    expected = f"samples as in training, {shapes}"
    if len(wanted) == 1 and isinstance(x, list | tuple) and not hasattr(x, "_fields"):
        fix = "Make one array of them, for example with `np.stack(x)`; labels are not part of it."
        got = f"a {type(x).__name__} of {len(x)}"
        raise refusal(argument, expected=expected, got=got, fix=fix, kind=TypeError)
    if samples_in(x, argument) == 0:
        raise refusal(argument, expected="at least one sample", got="none", fix="Pass inputs [n, ...].")
    leaves = jax.tree.leaves(x)
    if [np.ndim(leaf) for leaf in leaves] != [len(leaf.shape) for leaf in wanted]:
        single = [np.shape(leaf) for leaf in leaves] == [leaf.shape[1:] for leaf in wanted]
        fix = "For a single sample pass `x[None]`." if single else "The first axis counts the samples."
        raise refusal(argument, expected=expected, got=" and ".join(map(describe, leaves)), fix=fix)
    for leaf, like in zip(leaves, wanted, strict=True):
        if _is_floating(leaf) != _is_floating(like):
            fix = "Prepare them as the training data were: bytes of images, for example, are divided by 255."
            got = f"{jnp.result_type(leaf)}"
            raise refusal(argument, expected=f"{like.dtype} as in training", got=got, fix=fix, kind=TypeError)
    if [np.shape(leaf)[1:] for leaf in leaves] != [leaf.shape[1:] for leaf in wanted]:
        try:  # Networks that do not flatten, and networks of graphs, take samples of any size.
            jax.eval_shape(model.apply, params, jax.tree.map(lambda leaf: jnp.asarray(leaf[:1]), x))
        except Exception:  # whatever the user's network raises at a size that it does not take
            got = " and ".join(map(describe, leaves))
            fix = "The network takes no other size: crop, pad or scale."
            raise refusal(argument, expected=expected, got=got, fix=fix) from None


def _shape_from_spec(text: str) -> jax.ShapeDtypeStruct:
    dtype, sizes = re.fullmatch(r"(\w+)\[([\d,]*)\]", text).groups()  # type: ignore[union-attr]
    return jax.ShapeDtypeStruct(tuple(int(size) for size in sizes.split(",") if size), np.dtype(dtype))


def _is_floating(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)
