"""One interface to every kind of network: parameters from a key and an example, outputs from parameters and inputs.

    module                              init(key, x)                        apply(params, x)
    Linen module                        module.init(key, x)["params"]       module.apply({"params": params}, x)
    NNX factory (rngs -> module)        the Param state, as nested dicts    the merged module, called on x
    pair (init, apply)                  init(key, x)                        apply(params, x)
    triple (init_fn, apply_fn, …)       init_fn(key, shape of x)[1]         apply_fn(params, x)

Parameters are any pytree of arrays. Models compare equal if their modules do, so that compiled programs are reused.
"""

import contextlib
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import flax.errors
import flax.linen as nn
import jax
from flax import nnx

from ntk_equiv._check import refusal
from ntk_equiv.stax import KernelFn


@dataclasses.dataclass(frozen=True)
class Model(ABC):
    """A network as two functions; `module` is what the user gave."""

    module: Any

    @abstractmethod
    def init(self, key: jax.Array, x: Any) -> Any:
        """Random parameters for inputs like `x`."""

    @abstractmethod
    def apply(self, params: Any, x: Any) -> Any:
        """The outputs [n, ...]."""


class _Linen(Model):
    def init(self, key: jax.Array, x: Any) -> Any:
        with _without_other_draws():
            variables = self.module.init(key, x)
        _refuse_state(sorted(set(variables) - {"params"}))
        return variables.get("params", {})

    def apply(self, params: Any, x: Any) -> Any:
        with _without_other_draws():
            return self.module.apply({"params": params}, x)


class _NNX(Model):
    def init(self, key: jax.Array, x: Any) -> Any:
        _, params, *others = nnx.split(self.module(nnx.Rngs(key)), nnx.Param, ...)
        _refuse_state(sorted({type(leaf).__name__ for leaf in jax.tree.leaves(others, is_leaf=_is_variable)}))
        return nnx.to_pure_dict(params)

    def apply(self, params: Any, x: Any) -> Any:
        graph, state = nnx.split(nnx.eval_shape(lambda: self.module(nnx.Rngs(0))))
        nnx.replace_by_pure_dict(state, params)
        return nnx.merge(graph, state)(x)


class _Pair(Model):
    def init(self, key: jax.Array, x: Any) -> Any:
        return self.module[0](key, x)

    def apply(self, params: Any, x: Any) -> Any:
        return self.module[1](params, x)


class _Triple(Model):
    def init(self, key: jax.Array, x: Any) -> Any:
        return self.module[0](key, _shape(x))[1]

    def apply(self, params: Any, x: Any) -> Any:
        return self.module[1](params, x)


def model_of(module: Any) -> Model:
    """The model of whatever `train` accepts as a module."""
    if isinstance(module, Model):
        return module
    if isinstance(module, nn.Module):
        return _Linen(module)
    if isinstance(module, tuple) and all(callable(part) for part in module[:2]) and len(module) in (2, 3):
        return _Pair(module) if len(module) == 2 else _Triple(tuple(module))
    if callable(module) and not isinstance(module, nnx.Module | KernelFn) and not _is_linen_class(module):
        return _NNX(module)
    fixes = {
        True: "Members differ in their random keys, so pass a factory: `lambda rngs: Net(..., rngs=rngs)`.",
        False: "Call a Linen class to make a module of it: `Net(...)`.",
    }
    expected = "a Linen module, an NNX factory (rngs -> module), a pair (init, apply) or a stax triple"
    fix = fixes[isinstance(module, nnx.Module)]
    raise refusal("module", expected=expected, got=repr(module)[:80], fix=fix, kind=TypeError)


def as_pair(module: Any, /) -> tuple[Callable, Callable]:
    """Any network that `train` accepts as a pair of functions, `init(key, x) -> params` and `apply(params, x)`.

    Args:
        module: a Linen module, an NNX factory `rngs -> module`, a pair `(init, apply)` or a stax triple.

    Returns:
        The pair. Compiled programs are found by it, so keep it.

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
    model = model_of(module)
    return model.init, model.apply


def to_flax(net: Any, /) -> nn.Module:
    """A Linen module around a stax triple: the same function, parameterization and initial law.

    Args:
        net: a triple `(init_fn, apply_fn, kernel_fn)`, or its first two.

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
    def __call__(self, x: Any) -> Any:
        """The outputs of the network."""
        return self.apply_fn(self.param("net", lambda key: self.init_fn(key, _shape(x))[1]), x)


def _shape(x: Any) -> tuple[int, ...]:
    """The shape that `init_fn` wants: that of the array, or of the nodes of a graph."""
    return (-1, *jax.tree.leaves(x)[0].shape[1:])


def _is_variable(leaf: Any) -> bool:
    return isinstance(leaf, nnx.Variable)


def _is_linen_class(module: Any) -> bool:
    return isinstance(module, type) and issubclass(module, nn.Module)


@contextlib.contextmanager
def _without_other_draws() -> Iterator[None]:
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
