"""The triple that every layer and every network is, and what all layers do with it."""

import dataclasses
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp
import numpy as np

from ntk_equiv._check import describe, floating, one_of, random_key, refusal
from ntk_equiv._check import function as check_function
from ntk_equiv._typing import Array, Inputs
from ntk_equiv.stax._composition import Serial, Unchanged
from ntk_equiv.stax._inputs import Graph, MaskedArray, with_mask, with_own_adjacency
from ntk_equiv.stax._kernel_fn import KernelFn
from ntk_equiv.stax._orders import ANY, NATIVE, Order, from_native, shape_from_native, shape_to_native, to_native
from ntk_equiv.stax._rule import Rule
from ntk_equiv.stax._signal import BatchRule
from ntk_equiv.stax._state import Memo, Requirements, SampleState, frozen_pytree, static


class InitFn(Protocol):
    """Draws a finite network."""

    def __call__(self, key: Array, input_shape: Any, /) -> tuple[Any, Any]:
        """Return the shape of the outputs, and random parameters."""


class ApplyFn(Protocol):
    """Evaluates a finite network."""

    def __call__(
        self,
        params: Any,
        x: Inputs,
        /,
        *,
        rng: Array | None = None,
        pattern: Any = None,
        mode: str = "train",
        mask_constant: Any = None,
    ) -> Any:
        """Return the outputs, `[n, ..., channels]`; a `MaskedArray` for samples with masked entries."""


class Network(NamedTuple):
    """A layer or network: `(init_fn, apply_fn, kernel_fn)`.

    Attributes:
        init_fn: `init_fn(key, input_shape) -> (output_shape, params)` draws the finite network; the batch axis of
            `input_shape` may be -1.
        apply_fn: `apply_fn(params, x) -> outputs` evaluates it; dropout needs `rng=key` too, or `mode="test"`, which
            leaves out all noise.
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

    `apply(params, x, *, pattern, mask)` sees arrays only; samples that are graphs arrive as nodes and `pattern`, those
    with masked entries with zeros there and `mask`, the masked positions. If the rule takes several branches, the
    layers inside check what they are given.
    """

    def init_fn(key: Any, input_shape: Any) -> Any:
        random_key(key)
        return init(key, input_shape if rule.takes_branches else _check_input_shape(input_shape))

    def apply_fn(
        params: Any,
        x: Any,
        *,
        rng: Any = None,
        pattern: Any = None,
        mode: str = "train",
        mask_constant: Any = None,
        **others: Any,
    ) -> Any:
        _refuse_others(others)
        one_of(mode, ("train", "test"), "mode")
        if isinstance(x, Graph):
            x, pattern = with_own_adjacency(x)
        x = with_mask(x, mask_constant)
        if not rule.takes_branches and not isinstance(x, MaskedArray):
            x = floating(x, "x")
        settings = {"rng": rng, "pattern": pattern, "mode": mode}
        values, mask = _split_masks(x)
        hands_on = rule.makes_branches and not isinstance(rule, BatchRule)  # As what makes branches does.
        if mask is None or hands_on:
            return apply(params, x, **settings)
        y, mask = apply(params, values, mask=mask, **settings), rule.mask_after(mask)[..., None]
        return MaskedArray(jnp.where(mask, 0, y), mask)

    return Network(init_fn, apply_fn, KernelFn(rule))


def unmask_fn(function: Callable) -> Callable:
    """Return a function that gives arrays where `function`, such as an `apply_fn`, gives a `MaskedArray`.

    Masked entries are zero in them.

    Example:
        >>> from ntk_equiv import stax
        >>> _, apply_fn, _ = stax.GlobalAvgPool()
        >>> x = jnp.array([[1.0, 3.0, -1.0]])[..., None]
        >>> print(unmask_fn(apply_fn)((), x, mask_constant=-1.0))
        [[2.]]
    """
    check_function(function, "function")

    @wraps(function)
    def unmasked(*args: Any, **kwargs: Any) -> Any:
        def values(y: Any) -> Any:
            if isinstance(y, MaskedArray):
                return jnp.where(y.mask, 0, y.masked_value)
            return [values(one) for one in y] if isinstance(y, list) else y

        return values(function(*args, **kwargs))

    return unmasked


def in_order(layer: Network, batch_axis: int = 0, channel_axis: int = -1) -> Network:
    """Return a network, or a layer, for samples whose axes are in another order; so are those of its outputs.

    Layers themselves want samples first and channels last. `gram` and ensembles want samples first, so for these only
    the axis of channels may be another one. Kernels stay as they are.

    Args:
        layer: the network.
        batch_axis: the axis that counts samples.
        channel_axis: the axis that counts channels.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import stax
        >>> net = stax.serial(stax.Conv(4, (2, 2)), stax.Relu(), stax.GlobalAvgPool(), stax.Dense(1))
        >>> channels_first = jnp.arange(24.0).reshape(2, 3, 2, 2)
        >>> moved = stax.in_order(net, channel_axis=1).kernel_fn(channels_first, None, "ntk")
        >>> print(bool((moved == net.kernel_fn(jnp.moveaxis(channels_first, 1, -1), None, "ntk")).all()))
        True
    """
    rules_of((layer,))
    order = Order(batch_axis, channel_axis)
    init, apply = moved_between(layer, order, order)
    return Network(init, apply, dataclasses.replace(layer.kernel_fn, order=order))


def moved_between(layer: Network, into: Order, out: Order) -> tuple[Callable, Callable]:
    """Return a finite network whose inputs, and outputs, have axes in these orders."""

    def init(key: Array, input_shape: Any) -> tuple:
        shape, params = layer.init_fn(key, shape_to_native(input_shape, into))
        return shape_from_native(shape, out), params

    def apply(params: Any, x: Any, *, mask_constant: Any = None, **kwargs: Any) -> Any:
        return from_native(layer.apply_fn(params, to_native(with_mask(x, mask_constant), into), **kwargs), out)

    return init, apply


def _split_masks(x: Any) -> tuple[Any, Any]:
    """Return the arrays of samples and the masks of their positions, one per branch; no masks if any is missing."""
    if isinstance(x, MaskedArray):
        x = MaskedArray.of(x)
        return x.masked_value, x.positions()
    if not isinstance(x, list) or not all(isinstance(one, MaskedArray) for one in x):
        return x, None
    branches = [_split_masks(one) for one in x]
    return [value for value, _ in branches], tuple(mask for _, mask in branches)


def without_parameters(output_shape: Callable, function: Callable, rule: Rule) -> Network:
    """Bundle a layer that has nothing to learn."""
    return network(
        lambda key, input_shape: (output_shape(input_shape), ()),
        lambda params, x, **kwargs: function(x),
        rule,
    )


def rules_of(layers: tuple[Any, ...]) -> tuple[Rule, ...]:
    """Return the rules of several layers, which must be triples made here."""
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
        if layer[2].order not in (ANY, NATIVE):
            fix = "Put `in_order` around the whole network."
            raise refusal("layers", expected="with axes in one order", got=f"one at {position} with another", fix=fix)
        rules.append(layer[2].rule)
    return tuple(rules)


def check_axes(batch_axis: int, channel_axis: int) -> None:
    """Refuse any order of axes but samples first, channels last; which axis is the last one depends on the inputs."""
    whole = isinstance(channel_axis, int) and not isinstance(channel_axis, bool)
    if batch_axis != 0 or not whole or (channel_axis < 1 and channel_axis != -1):
        raise refusal(
            "batch_axis, channel_axis",
            expected="0 and -1: samples first, channels last",
            got=f"{batch_axis} and {channel_axis}",
            fix="Move the axes of the inputs with `jnp.moveaxis`.",
        )


def with_channels_at(channel_axis: int, layer: Network) -> Network:
    """Return `layer`, for inputs whose last axis is `channel_axis`; others are refused."""
    if channel_axis == -1:
        return layer
    rank = channel_axis + 1

    def init(key: Array, shape: Any) -> Any:
        _check_rank(len(shape), rank)
        return layer.init_fn(key, shape)

    def apply(params: Any, x: Array, **kwargs: Any) -> Array:
        _check_rank(x.ndim, rank)
        return layer.apply_fn(params, x, **kwargs)

    return network(init, apply, Serial((OfRank(rank), layer.kernel_fn.rule)))


@frozen_pytree
class OfRank(Unchanged):
    """Inputs pass unchanged if they have so many axes: samples, positions and channels."""

    rank: int = static()

    def per_sample(self, state: SampleState, wanted: Requirements) -> tuple[SampleState, Memo]:
        _check_rank(len(state.grid) + 2, self.rank)
        return state, ()


def _check_rank(actual: int, rank: int) -> None:
    if actual != rank:
        raise refusal(
            "channel_axis",
            expected=f"the last axis of the inputs, -1 or {actual - 1}",
            got=rank - 1,
            fix="Leave it out, and move channels to the last axis with `jnp.moveaxis` if they are elsewhere.",
        )


def _check_input_shape(shape: Any) -> tuple[int, ...]:
    """Return `shape` as a tuple, if it is that of inputs: any number of samples, then positive numbers."""
    given = tuple(shape) if isinstance(shape, tuple | list) else ()
    whole = all(isinstance(size, int | np.integer) for size in given)
    if len(given) < 2 or not whole or min(given[1:]) < 1:
        fix = "Pass the shape of the inputs, `x.shape`; the number of samples may be -1, as in (-1, 3)."
        raise refusal("input_shape", expected="(samples, ..., features)", got=repr(shape), fix=fix)
    return given


def _refuse_others(others: dict[str, Any]) -> None:
    """Refuse keywords that other libraries know, unless they ask for nothing."""
    for name, value in others.items():
        if value is not None:
            raise refusal(
                name,
                expected="left out: `apply_fn` knows the keywords `rng`, `pattern`, `mode` and `mask_constant`",
                got=describe(value),
                fix="Leave it out, or put what depends on it into a layer of your own.",
            )
