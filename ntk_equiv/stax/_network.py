"""The triple that every layer and every network is."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from ntk_equiv._check import floating, random_key, refusal, shown
from ntk_equiv._typing import Array, Inputs
from ntk_equiv.stax._graph_input import Graph, with_own_adjacency
from ntk_equiv.stax._kernel_fn import KernelFn
from ntk_equiv.stax._rule import Rule


class InitFn(Protocol):
    """Draws a finite network."""

    def __call__(self, key: Array, input_shape: Any, /) -> tuple[Any, Any]:
        """The shape of the outputs, and random parameters."""


class ApplyFn(Protocol):
    """Evaluates a finite network."""

    def __call__(self, params: Any, x: Inputs, /, *, rng: Array | None = None, pattern: Any = None) -> Any:
        """The outputs, `[n, ..., channels]`."""


class Network(NamedTuple):
    """A layer or network: `(init_fn, apply_fn, kernel_fn)`.

    Attributes:
        init_fn: `init_fn(key, input_shape) -> (output_shape, params)` draws the finite network; the batch axis of
            `input_shape` may be -1.
        apply_fn: `apply_fn(params, x) -> outputs` evaluates it; dropout wants `rng=key` too.
        kernel_fn: `kernel_fn(x1, x2, get)` gives the kernels at infinite width.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from ntk_equiv import stax
        >>> init_fn, apply_fn, kernel_fn = stax.Dense(3)
        >>> shape, params = init_fn(jax.random.key(0), (-1, 2))
        >>> shape, apply_fn(params, jnp.ones((5, 2))).shape, kernel_fn(jnp.ones((1, 2)), None, "nngp").tolist()
        ((-1, 3), (5, 3), [[1.0]])
    """

    init_fn: InitFn
    apply_fn: ApplyFn
    kernel_fn: KernelFn


def network(init: Callable, apply: Callable, rule: Rule) -> Network:
    """Bundle a finite layer and its rule.

    `apply(params, x, *, pattern)` sees arrays only; samples that are graphs arrive as nodes and `pattern`. What a rule
    for several branches is given is checked by the layers inside.
    """

    def init_fn(key: Any, input_shape: Any) -> Any:
        random_key(key)
        return init(key, input_shape if rule.takes_branches else _input_shape(input_shape))

    def apply_fn(params: Any, x: Any, *, rng: Any = None, pattern: Any = None, **others: Any) -> Any:
        _check_others(others)
        if isinstance(x, Graph):
            x, pattern = with_own_adjacency(x)
        elif not rule.takes_branches:
            x = floating(x, "x")
        return apply(params, x, rng=rng, pattern=pattern)

    return Network(init_fn, apply_fn, KernelFn(rule))


def without_parameters(output_shape: Callable, function: Callable, rule: Rule) -> Network:
    """A layer that has nothing to learn."""
    return network(
        lambda key, input_shape: (output_shape(input_shape), ()),
        lambda params, x, **kwargs: function(x),
        rule,
    )


def rules_of(layers: tuple[Any, ...]) -> tuple[Rule, ...]:
    """The rules of several layers, which must be triples made here."""
    rules = []
    for position, layer in enumerate(layers):
        ours = isinstance(layer, tuple) and len(layer) == 3 and isinstance(layer[2], KernelFn)
        if not ours:
            raise refusal(
                "layers",
                expected="triples (init_fn, apply_fn, kernel_fn) from `ntk_equiv.stax`",
                got=f"{type(layer).__name__} at position {position}",
                fix="Call the layer (`Relu()`, not `Relu`), and do not mix in layers of other libraries.",
            )
        rules.append(layer[2].rule)
    return tuple(rules)


def _check_others(others: dict[str, Any]) -> None:
    """Refuse keywords that other libraries know, unless they ask for nothing."""
    for name, value in others.items():
        if value is not None:
            raise refusal(
                name,
                expected="left out: `apply_fn` knows the keywords `rng` and `pattern`",
                got=shown(value),
                fix="Nothing is masked here: pass samples of equal size, or graphs whose missing nodes have no edges.",
            )


def _input_shape(shape: Any) -> tuple[int, ...]:
    """`shape` as a tuple, if it is that of inputs: any number of samples, then positive numbers."""
    given = tuple(shape) if isinstance(shape, tuple | list) else ()
    whole = all(isinstance(size, int | np.integer) for size in given)
    if len(given) < 2 or not whole or min(given[1:]) < 1:
        fix = "Pass the shape of the inputs, `x.shape`; the number of samples may be -1, as in (-1, 3)."
        raise refusal("input_shape", expected="(samples, ..., features)", got=repr(shape), fix=fix)
    return given
