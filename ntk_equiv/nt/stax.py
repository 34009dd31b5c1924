"""Networks as in `neural_tangents.stax`: those of `ntk_equiv.stax`, in any order of axes and with `Kernel` objects.

Names, arguments, their order and their defaults are those of `ntk_equiv.stax`, where they are described. In addition,
samples and channels may be on any axis (`batch_axis`, `channel_axis`, `dimension_numbers`), and `layer` makes a layer
of your own from a function of `Kernel` objects.
"""

import enum
import functools
import inspect
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ntk_equiv import stax as _native
from ntk_equiv._check import refusal, whole_number
from ntk_equiv.nt._axes import first_said, native_axis, seams_between
from ntk_equiv.nt._kernel import AnalyticKernelFn
from ntk_equiv.nt._own_layers import Bool as Bool
from ntk_equiv.nt._own_layers import Diagonal as Diagonal
from ntk_equiv.nt._own_layers import layer as layer
from ntk_equiv.nt._own_layers import requires as requires
from ntk_equiv.nt._own_layers import supports_masking as supports_masking
from ntk_equiv.nt._own_layers import triple
from ntk_equiv.stax import (
    ANY,
    NATIVE,
    MaskedArray,
    Network,
    Order,
    Orders,
    is_several,
    moved_between,
    shape_to_native,
    to_native,
    with_mask,
)

# Keywords that native layers know; others are left out, as in neural-tangents.
KEYWORDS = frozenset({"rng", "pattern", "mode", "mask_constant"})


def _choices(name: str, *choices: str) -> Any:
    """Return an enum whose members are the words that layers take."""
    return enum.StrEnum(name, {choice: choice for choice in choices}, module=__name__)


Padding = _choices("Padding", "CIRCULAR", "SAME", "VALID")
AttentionMechanism = _choices("AttentionMechanism", "SOFTMAX", "IDENTITY", "ABS", "RELU")
PositionalEmbedding = _choices("PositionalEmbedding", "NONE", "SUM", "CONCAT")
AggregateImplementation = _choices("AggregateImplementation", "DENSE", "SPARSE")


def _serial(*layers: Any) -> Network:
    listed = [triple(each) for each in layers]
    into: Any = functools.reduce(first_said, [each.kernel_fn.order for each in listed], ANY)
    out, rank, rules, seams = into, None, [], []
    for each in [network.kernel_fn for network in listed]:
        rules.append(_rule_at(each, out))
        seams += seams_between(out, each.order, rank)
        seams += [(before, after, rank if own is None else own) for before, after, own in each.seams]
        out, rank = each.order_after(out), rank if each.rank is None else each.rank
    return _composed(_native.serial, listed, rules, order=into, out=out, rank=rank, seams=tuple(seams))


def _parallel(*layers: Any) -> Network:
    listed = [triple(each) for each in layers]
    into, out = tuple(each.kernel_fn.order for each in listed), tuple(each.kernel_fn.order_after() for each in listed)
    seams, ranks = sum((each.kernel_fn.seams for each in listed), ()), {each.kernel_fn.rank for each in listed}
    facts = {"order": into, "out": out, "seams": seams, "rank": ranks.pop() if len(ranks) == 1 else 0}
    return _composed(_native.parallel, listed, [each.kernel_fn.rule for each in listed], **facts)


def _composed(compose: Callable, layers: list[Network], rules: list[Any], **facts: Any) -> Network:
    pairs = zip(layers, rules, strict=True)
    made = compose(*(layer._replace(kernel_fn=_native.KernelFn(rule)) for layer, rule in pairs))
    return _layer(compose.__name__, made.init_fn, made.apply_fn, made.kernel_fn.rule, **facts)


def _repeat(layer: Any, n: int) -> Network:
    return _serial(*[layer] * whole_number(n, "n"))


def _fan_in_concat(axis: int = -1) -> Network:
    def join(*branches: Any) -> Any:
        return jnp.concatenate(branches, axis)

    def init_fn(key: Any, shapes: Any) -> tuple:
        joined = list(shapes[0])
        joined[axis] = sum(shape[axis] for shape in shapes)
        return tuple(joined), ()

    def apply_fn(params: Any, xs: Any, *, mask_constant: Any = None, **kwargs: Any) -> Any:
        return jax.tree.map(join, *map(_with_full_mask, with_mask(xs, mask_constant)))

    # The order of the axes that it is given decides which rule it has; see `_rule_at`.
    return _layer("FanInConcat", init_fn, apply_fn, _native.FanInConcat(axis).kernel_fn.rule, joined=axis)


def _rule_at(kernel_fn: AnalyticKernelFn, order: Orders) -> Any:
    """Return the rule of a layer for inputs whose axes are in that order."""
    if kernel_fn.joined is None:
        return kernel_fn.rule
    return _native.FanInConcat(native_axis(kernel_fn.joined, first_said(ANY, order))).kernel_fn.rule


def _convolution(make: Callable, dimension_numbers: Any, **settings: Any) -> Network:
    """Return a convolution whose axes are in orders of their own, in inputs, weights and outputs."""
    made = make(**settings)
    if dimension_numbers is None:
        return _between(made, make.__name__, NATIVE, NATIVE)
    specs = lhs, rhs, result = [str(spec) for spec in dimension_numbers]
    positions = ["".join(c for c in spec if c not in "NCIO") for spec in specs]
    if any(sorted(each) != sorted(positions[0]) for each in positions):
        fix = 'Name each spatial axis by one letter, as in ("NHWC", "HWIO", "NHWC").'
        raise refusal("dimension_numbers", expected="three orders of the same axes", got=dimension_numbers, fix=fix)
    first, last = (_native.permute_positions([a.index(c) for c in b]) for a, b in itertools.pairwise(positions))
    weights = [(positions[1] + "IO").index(c) for c in rhs]

    def init(key: Any, shape: Any) -> tuple:
        shape, (W, b) = made.init_fn(key, first.init_fn(key, shape)[0])
        return last.init_fn(key, shape)[0], (jnp.transpose(W, weights), b)

    def apply(params: Any, x: Any, **kwargs: Any) -> Any:
        W, b = params
        # Biases of neural-tangents have all axes of the outputs.
        b = to_native(b, out) if b is not None and jnp.ndim(b) == len(result) else b
        params = jnp.moveaxis(W, range(W.ndim), weights), b
        return last.apply_fn((), made.apply_fn(params, first.apply_fn((), x), **kwargs))

    into, out = (Order(spec.index("N"), spec.index("C")) for spec in (lhs, result))
    rule = _native.Serial(tuple(each.kernel_fn.rule for each in (first, made, last)))
    return _between(Network(init, apply, _native.KernelFn(rule)), make.__name__, into, out)


def _in_any_order(make: Callable, batch_axis: int, channel_axis: int | None = None, **settings: Any) -> Network:
    """Return a layer that is told which axes count samples and channels."""
    name, into = make.__name__, Order(batch_axis, channel_axis)
    if name in _ON_ARRAYS:
        return _on_arrays(make, into, settings)
    out, rank = into, None
    if name == "Flatten":
        batch = settings.pop("batch_axis_out") % 2
        out, rank = Order(batch, 1 - batch), 2
    elif name.startswith("Global") and name.endswith("Pool"):
        # A channel axis that is counted from the end comes after that of samples.
        channel = -1 if into.channel is None else into.channel
        out, rank = Order(0, 1) if channel < 0 or channel > (into.batch or 0) else Order(1, 0), 2
    if name == "ImageResize":
        settings["shape"] = shape_to_native(settings["shape"], into)
    for axes in {"axis", "aggregate_axis"} & {name for name, value in settings.items() if value is not None}:
        listed = [settings[axes]] if isinstance(settings[axes], int) else settings[axes]
        settings[axes] = tuple(native_axis(axis, into) for axis in listed)
    made = make(**settings)
    return _between(_native.passing_without_graph(made) if name == "Aggregate" else made, name, into, out, rank)


def _choose(into: Order, idx: Any) -> tuple:
    """Return a choice by `x[idx]`: of samples first, then of positions, and of channels last."""
    parts = list(idx) if isinstance(idx, tuple) else [idx]
    place = next((i for i, part in enumerate(parts) if part is Ellipsis), len(parts))
    counted = [*range(place), *(i - len(parts) for i in range(place + 1, len(parts)))]
    known = {axis: parts[axis] for axis in counted}
    order: Any = into.or_else(NATIVE)
    samples, channels = (known.pop(axis, slice(None)) for axis in order)
    front, back = ([part for axis, part in known.items() if (axis < 0) == last] for last in (False, True))
    native = (samples, *front, ..., *back, channels) if back or channels != slice(None) else (samples, *front)
    removed = [axis for axis, part in known.items() if isinstance(part, int)]
    after = Order(*(axis - sum(0 <= each < axis for each in removed) if axis >= 0 else axis for axis in order))
    choose = lambda x: x[tuple(parts)]  # noqa: E731
    return choose, choose, {"idx": native}, after


def _multiply(into: Order, lhs: Any, rhs: Any, dimension_numbers: Any, precision: Any) -> tuple:
    """Return the product with a constant array, whose own axes become positions of the outputs."""
    first = rhs is None
    constant = jnp.asarray(1.0 if lhs is None and first else lhs if first else rhs)
    pairs = [[tuple(axes) for axes in pair[:: -1 if first else 1]] for pair in dimension_numbers]
    used, free = sum((own for own, _ in pairs), ()), constant.ndim - sum(len(other) for _, other in pairs)
    shared, order = pairs[1][0], into.or_else(NATIVE)

    def product(x: Any, constant: Any = constant) -> Any:
        left, right = (constant.astype(x.dtype), x)[:: 1 if first else -1]
        return jax.lax.dot_general(left, right, dimension_numbers, precision)

    def place(axis: Any) -> Any:
        """Return where an axis of the samples is in the product: behind shared axes, and those of a first factor."""
        if axis in shared or axis < 0:
            return shared.index(axis) if axis in shared else axis if first else axis - free
        return axis + len(shared) - sum(each < axis for each in used) + (free if first else 0)

    turned = [[tuple(native_axis(axis, into) for axis in own), other][:: -1 if first else 1] for own, other in pairs]
    seen = functools.partial(product, constant=(constant != 0).astype(float))
    settings = {"lhs": lhs, "rhs": rhs, "dimension_numbers": turned}
    return product, seen, settings, Order(*map(place, order))


_ON_ARRAYS: dict[str, Callable] = {"Index": _choose, "DotGeneral": _multiply}


def _on_arrays(make: Callable, into: Order, settings: dict[str, Any]) -> Network:
    """Return a layer that is one function of an array, which may mix samples, and knows about axes by itself.

    A position is masked behind it if nothing but masked ones are seen there.
    """
    function, seen, turned, out = _ON_ARRAYS[make.__name__](into, **settings)

    def init_fn(key: Any, shape: Any) -> tuple:
        known = jax.ShapeDtypeStruct(tuple(1 if n < 0 else n for n in shape), jnp.float32)
        return jax.eval_shape(function, known).shape, ()

    def apply_fn(params: Any, x: Any, *, mask_constant: Any = None, **kwargs: Any) -> Any:
        x = _with_full_mask(with_mask(x, mask_constant))
        if not isinstance(x, MaskedArray):
            return function(x)
        mask = seen((~x.mask).astype(x.masked_value.dtype)) == 0
        return MaskedArray(jnp.where(mask, 0, function(x.masked_value)), mask)

    rule = make(**settings | turned).kernel_fn.rule
    return _layer(make.__name__, init_fn, apply_fn, rule, order=into, out=out, rank=0)


def _between(layer: Network, name: str, into: Order, out: Order, rank: int | None = None) -> Network:
    """Return a layer for samples whose axes are in the order `into`; those of its outputs are in the order `out`."""
    return _layer(name, *moved_between(layer, into, out), layer.kernel_fn.rule, order=into, out=out, rank=rank)


def _wherever(layer: Network, name: str, copies: int | None) -> Network:
    """Return a layer that does not care which axis is which; masks are handled here, where they have any form."""

    def apply_fn(params: Any, x: Any, *, mask_constant: Any = None, **kwargs: Any) -> Any:
        x = with_mask(x, mask_constant)
        branches = [_with_full_mask(each) for each in (x if is_several(x) else [x])]
        if copies is not None or not all(isinstance(each, MaskedArray) for each in branches):
            return layer.apply_fn(params, x, **kwargs)
        values = [each.masked_value for each in branches]
        y = layer.apply_fn(params, values if is_several(x) else values[0], **kwargs)
        mask = functools.reduce(jnp.logical_and, [each.mask for each in branches])
        return MaskedArray(jnp.where(mask, 0, y), mask)

    out = ANY if copies is None else (ANY,) * copies
    return _layer(name, layer.init_fn, apply_fn, layer.kernel_fn.rule, out=out)


def _with_full_mask(x: Any) -> Any:
    """Return a masked array whose mask has an entry for each of its own, and anything else as it is."""
    return x._replace(mask=jnp.broadcast_to(x.mask, x.masked_value.shape)) if isinstance(x, MaskedArray) else x


def _layer(name: str, init_fn: Callable, apply_fn: Callable, rule: Any, **facts: Any) -> Network:
    """Return a layer of that name, whose kernel function knows these facts."""

    def init(key: Any, input_shape: Any) -> tuple:
        return init_fn(key, input_shape)

    def apply(params: Any, x: Any, **kwargs: Any) -> Any:
        return apply_fn(params, x, **{keyword: kwargs[keyword] for keyword in KEYWORDS & kwargs.keys()})

    init.__name__ = apply.__name__ = name
    return Network(init, apply, AnalyticKernelFn(rule, name=name, **facts))


_COMPOSITIONS = {"serial": _serial, "parallel": _parallel, "repeat": _repeat, "FanInConcat": _fan_in_concat}


def _of_the_facade(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of `ntk_equiv.stax` that makes its network for samples in any order of axes."""
    signature, name = inspect.signature(make), make.__name__

    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> Any:
        if name in _COMPOSITIONS:
            return _COMPOSITIONS[name](*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        if name == "ExpNormalized":  # A truth value counts as a number there.
            given["shift"] += 0
        if name.startswith("Conv"):
            return _convolution(make, **given)
        if "batch_axis" in given:
            return _in_any_order(make, **given)
        result = make(**given)
        return _wherever(result, name, given.get("num")) if isinstance(result, Network) else result

    return made


def __getattr__(name: str) -> Any:
    if name not in _native.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_native, name)
    globals()[name] = value = _of_the_facade(value) if inspect.isfunction(value) else value
    return value


def __dir__() -> list[str]:
    own = {"Bool", "Diagonal", "layer", "requires", "supports_masking"}
    enums = {"AggregateImplementation", "AttentionMechanism", "Padding", "PositionalEmbedding"}
    return sorted({*_native.__all__, *own, *enums})
