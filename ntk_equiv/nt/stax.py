"""Networks as in `neural_tangents.stax`: those of `ntk_equiv.stax`, in any order of axes and with `Kernel` objects.

Names, arguments, their order and their defaults are those of `ntk_equiv.stax`, where they are described. In addition,
samples and channels may be on any axis (`batch_axis`, `channel_axis`, `dimension_numbers`), some layers may mix
samples, and `layer` makes a layer of your own from a function of `Kernel` objects.
"""

import dataclasses
import functools
import inspect
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ntk_equiv import stax as _native
from ntk_equiv._check import refusal, whole_number
from ntk_equiv.nt import _samples
from ntk_equiv.nt._axes import (
    ANY,
    NATIVE,
    Order,
    Orders,
    first_said,
    from_native,
    shape_from_native,
    shape_to_native,
    to_native,
)
from ntk_equiv.nt._kernel import KEYWORDS, AnalyticKernelFn
from ntk_equiv.nt._own_layers import Bool as Bool
from ntk_equiv.nt._own_layers import Diagonal as Diagonal
from ntk_equiv.nt._own_layers import layer as layer
from ntk_equiv.nt._own_layers import requires as requires
from ntk_equiv.nt._own_layers import supports_masking as supports_masking
from ntk_equiv.nt._own_layers import triple
from ntk_equiv.stax import Graph, MaskedArray, Network, with_mask


def serial(*layers: Any) -> Network:
    """Put layers one after another; see `ntk_equiv.stax.serial`.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv.nt import stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(8, batch_axis=1, channel_axis=0), stax.Relu())
        >>> print(kernel_fn(jnp.ones((3, 1)), None, "nngp"))
        [[0.5]]
    """
    listed = [triple(each) for each in layers]
    kernels = [each.kernel_fn for each in listed]
    into: Any = functools.reduce(first_said, [k.into for k in kernels], ANY)
    out, rules = into, []
    for k in kernels:
        rules.append(_rule_at(k, out))
        out = k.order_after(out)
    kernel_fn = AnalyticKernelFn(_native.Serial(_native.unnest(tuple(rules))), into=into, out=out)
    made = _native.serial(*listed)
    return _named("serial", made.init_fn, made.apply_fn, kernel_fn)


def parallel(*layers: Any) -> Network:
    """Put layers side by side; see `ntk_equiv.stax.parallel`.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv.nt import stax
        >>> both = stax.serial(stax.FanOut(2), stax.parallel(stax.Dense(1), stax.Dense(1)), stax.FanInSum())
        >>> print(both.kernel_fn(jnp.ones((1, 3)), None, "ntk"))
        [[2.]]
    """
    listed = [triple(each) for each in layers]
    into, out = tuple(each.kernel_fn.into for each in listed), tuple(each.kernel_fn.order_after() for each in listed)
    made = _native.parallel(*listed)
    return _named("parallel", made.init_fn, made.apply_fn, AnalyticKernelFn(made.kernel_fn.rule, into=into, out=out))


def repeat(layer: Any, n: int) -> Network:
    """Repeat a layer `n` times; see `ntk_equiv.stax.repeat`.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv.nt import stax
        >>> print(stax.repeat(stax.Dense(1, W_std=2.0), 2).kernel_fn(jnp.ones((1, 3)), None, "nngp"))
        [[16.]]
    """
    return serial(*[layer] * whole_number(n, "n"))


def FanInConcat(axis: int = -1) -> Network:
    """Put all branches beside each other, along channels, positions or samples; see `ntk_equiv.stax.FanInConcat`.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv.nt import stax
        >>> both = stax.serial(stax.FanOut(2), stax.parallel(stax.Dense(1), stax.Dense(1)), stax.FanInConcat(0))
        >>> print(both.kernel_fn(jnp.ones((1, 3)), None, "ntk"))
        [[1. 0.]
         [0. 1.]]
    """

    def init_fn(key: Any, shapes: Any) -> tuple:
        joined = list(shapes[0])
        joined[axis] = sum(shape[axis] for shape in shapes)
        return tuple(joined), ()

    def apply_fn(params: Any, xs: Any, *, mask_constant: Any = None, **kwargs: Any) -> Any:
        xs = with_mask(xs, mask_constant)
        if not all(isinstance(x, MaskedArray) for x in xs):
            return jnp.concatenate(xs, axis)
        masks = [jnp.broadcast_to(x.mask, x.masked_value.shape) for x in xs]
        return MaskedArray(jnp.concatenate([x.masked_value for x in xs], axis), jnp.concatenate(masks, axis))

    rule = _samples.JOIN if axis == 0 else _native.FanInConcat(axis).kernel_fn.rule
    return _named("FanInConcat", init_fn, apply_fn, AnalyticKernelFn(rule, joined=axis))


def _rule_at(kernel_fn: AnalyticKernelFn, order: Orders) -> Any:
    """Return the rule of a layer for inputs whose axes are in that order."""
    if kernel_fn.joined is None:
        return kernel_fn.rule
    axis = first_said(ANY, order).native_axis(kernel_fn.joined)
    return _samples.JOIN if axis == 0 else _native.FanInConcat(axis).kernel_fn.rule


def _wrap(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that makes the same layer, for samples in any order of axes."""
    signature, name = inspect.signature(make), make.__name__

    @functools.wraps(make)
    def in_any_order(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        if name == "ExpNormalized":  # A truth value counts as a number there.
            args, kwargs = (), given | {"shift": given["shift"] + 0}
        if given.get("dimension_numbers") is not None and name.startswith("Conv"):
            return _convolution(make, **given)
        if "batch_axis" in given:
            return _with_axes(make, given)
        result = make(*args, **kwargs)
        if not isinstance(result, Network):
            return result
        if name.startswith("Conv"):
            return _between(result, name, Order(0, -1), Order(0, -1))
        return _wherever(result, name, given.get("num"))

    return in_any_order


def _with_axes(make: Callable[..., Any], given: dict[str, Any]) -> Network:
    """Return a layer that is told which axes count samples and channels."""
    name, settings = make.__name__, dict(given)
    into = Order(settings.pop("batch_axis"), settings.pop("channel_axis", None))
    out = into
    if name == "Flatten":
        batch = settings.pop("batch_axis_out") % 2
        out = Order(batch, 1 - batch)
    elif name.startswith("Global") and name.endswith("Pool"):
        # A channel axis that is counted from the end comes after that of samples.
        channel = -1 if into.channel is None else into.channel
        out = Order(0, 1) if channel < 0 or channel > (into.batch or 0) else Order(1, 0)
    elif name == "Index" and not _chooses_positions(settings["idx"], into):
        choose = lambda x: x[settings["idx"]]  # noqa: E731
        return _of_samples(name, choose, choose, into, _samples.index(settings["idx"], into))
    elif name == "DotGeneral" and jnp.ndim(constant := _constant(settings)):
        return _dot_general(constant, settings["lhs"] is not None, settings["dimension_numbers"], into)
    elif name == "ImageResize":
        shape = tuple(settings["shape"])
        if shape[into.places(len(shape))[0]] != -1:
            return _resize(settings, into)
        settings["shape"] = shape_to_native(shape, into)
    for axes in ("axis", "aggregate_axis"):
        if settings.get(axes) is not None:
            listed = [settings[axes]] if isinstance(settings[axes], int) else settings[axes]
            settings[axes] = tuple(into.native_axis(axis) for axis in listed)
    if name == "LayerNorm" and 0 in settings["axis"]:
        return _normalize(settings["axis"], settings["eps"], into)
    if name != "Aggregate":
        return _between(make(**settings), name, into, out)
    aggregation = make(**settings)
    rule = dataclasses.replace(aggregation.kernel_fn.rule, optional=True)
    return _between(_native.network(aggregation.init_fn, _optional(aggregation.apply_fn), rule), name, into, out)


def _constant(settings: dict[str, Any]) -> Any:
    """Return the constant factor of `DotGeneral`, a number where there is none or one too many."""
    given = [settings[side] for side in ("lhs", "rhs") if settings[side] is not None]
    return jnp.asarray(given[0]) if len(given) == 1 else 1.0


def _dot_general(constant: Any, first: bool, dimension_numbers: Any, into: Order) -> Network:
    """Return the product with a constant array, whose own axes become positions of the outputs."""
    side = 1 if first else 0
    (contracted, batched), (theirs, beside) = ([tuple(pair[i]) for pair in dimension_numbers] for i in (side, 1 - side))
    used, free = (*contracted, *batched), constant.ndim - len(contracted) - len(batched)
    order: Any = into.or_else(NATIVE)
    if any(axis < 0 or axis in order for axis in used):
        fix = "Contract spatial axes, counted from the front."
        got = dimension_numbers
        raise refusal("dimension_numbers", expected="neither of samples nor of channels", got=got, fix=fix)
    positions = ([into.native_axis(axis) - 1 for axis in axes] for axes in (contracted, batched))
    pairs = zip(positions, (theirs, beside), strict=True)
    numbers = tuple((other, tuple(own)) if first else (tuple(own), other) for own, other in pairs)

    def place(axis: int) -> int:
        """Return where an axis of the samples is in the product: behind shared axes, and those of a first factor."""
        if axis < 0:
            return axis if first else axis - free
        return axis + len(batched) - sum(each < axis for each in used) + (free if first else 0)

    layer = _native.Product(constant, numbers, first).layer()
    return _between(layer, "DotGeneral", into, Order(*map(place, order)))


def _chooses_positions(idx: Any, into: Order) -> bool:
    """Return whether an index leaves samples and channels alone, as far as that is known without an input."""
    parts = idx if isinstance(idx, tuple) else (idx,)
    return into.or_else(NATIVE) == NATIVE and Ellipsis not in parts and parts[0] == slice(None) and len(parts) < 4


def _resize(settings: dict[str, Any], into: Order) -> Network:
    shape = tuple(settings["shape"])

    def resized(x: Any) -> Any:
        target = tuple(n if m == -1 else m for n, m in zip(x.shape, shape, strict=True))
        return jax.image.resize(x, target, settings["method"], settings["antialias"])

    def hidden(mask: Any) -> Any:
        return resized((~mask).astype(jnp.float32)) == 0

    return _of_samples("ImageResize", resized, hidden, into, _samples.resize(shape, settings, into))


def _normalize(axes: tuple[int, ...], eps: Any, into: Order) -> Network:
    def apply_fn(params: Any, x: Any, *, mask_constant: Any = None, **kwargs: Any) -> Any:
        x = to_native(with_mask(x, mask_constant), into)
        values, mask = (x.masked_value, x.mask) if isinstance(x, MaskedArray) else (x, None)
        kept = jnp.ones(values.shape, bool) if mask is None else ~jnp.broadcast_to(mask, values.shape)
        mean = jnp.mean(values, axes, keepdims=True, where=kept)
        spread = jnp.var(values, axes, keepdims=True, where=kept)
        y = (values - mean) / jnp.sqrt(eps + spread)
        return from_native(y if mask is None else MaskedArray(jnp.where(mask, 0, y), mask), into)

    kernel_fn = AnalyticKernelFn(_samples.normalize(axes, eps), into=into)
    return _named("LayerNorm", lambda key, shape: (shape, ()), apply_fn, kernel_fn)


def _of_samples(name: str, function: Callable, hidden: Callable, into: Order, rule: Any) -> Network:
    """Return a layer that is a function of whole batches; `hidden` says which entries are masked after it."""

    def init_fn(key: Any, shape: Any) -> tuple:
        known = jax.ShapeDtypeStruct(tuple(1 if n < 0 else n for n in shape), jnp.float32)
        return jax.eval_shape(function, known).shape, ()

    def apply_fn(params: Any, x: Any, *, mask_constant: Any = None, **kwargs: Any) -> Any:
        x = with_mask(x, mask_constant)
        if not isinstance(x, MaskedArray):
            return function(x)
        mask = hidden(jnp.broadcast_to(x.mask, x.masked_value.shape))
        return MaskedArray(jnp.where(mask, 0, function(x.masked_value)), mask)

    return _named(name, init_fn, apply_fn, AnalyticKernelFn(rule, into=into))


def _optional(apply_fn: Callable) -> Callable:
    """Return an aggregation that leaves samples without adjacency as they are."""

    def apply(params: Any, x: Any, *, pattern: Any = None, mask: Any = None, **kwargs: Any) -> Any:
        return x if pattern is None else apply_fn(params, x, pattern=pattern)

    return apply


def _between(layer: Network, name: str, into: Order, out: Order) -> Network:
    """Return a layer for samples whose axes are in the order `into`; those of its outputs are in the order `out`."""

    def init_fn(key: Any, input_shape: Any) -> tuple:
        shape, params = layer.init_fn(key, shape_to_native(input_shape, into))
        return shape_from_native(shape, out), params

    def apply_fn(params: Any, x: Any, *, mask_constant: Any = None, **kwargs: Any) -> Any:
        x = to_native(with_mask(x, mask_constant), into)
        return from_native(layer.apply_fn(params, x, **_known(kwargs)), out)

    return _named(name, init_fn, apply_fn, AnalyticKernelFn(layer.kernel_fn.rule, into=into, out=out))


def _wherever(layer: Network, name: str, copies: int | None) -> Network:
    """Return a layer that does not care which axis is which; masks are handled here, where they have any form."""

    def apply_fn(params: Any, x: Any, *, mask_constant: Any = None, **kwargs: Any) -> Any:
        x = with_mask(x, mask_constant)
        several = isinstance(x, tuple | list) and not isinstance(x, MaskedArray | Graph)
        branches = list(x) if several else [x]
        if copies is not None or not all(isinstance(each, MaskedArray) for each in branches):
            return layer.apply_fn(params, x, **_known(kwargs))
        values = [each.masked_value for each in branches]
        y = layer.apply_fn(params, values if several else values[0], **_known(kwargs))
        masks = [jnp.broadcast_to(each.mask, each.masked_value.shape) for each in branches]
        mask = functools.reduce(jnp.logical_and, masks)
        return MaskedArray(jnp.where(mask, 0, y), mask)

    out = ANY if copies is None else (ANY,) * copies
    return _named(name, layer.init_fn, apply_fn, AnalyticKernelFn(layer.kernel_fn.rule, out=out))


def _convolution(make: Callable[..., Any], dimension_numbers: Any, **settings: Any) -> Network:
    """Return a convolution whose spatial axes are in an order of their own, in inputs, filters and outputs."""
    lhs, rhs, result = (str(spec) for spec in dimension_numbers)
    positions = ["".join(c for c in spec if c not in "NCIO") for spec in (lhs, rhs, result)]
    if any(sorted(each) != sorted(positions[0]) for each in positions):
        fix = 'Name each spatial axis by one letter, as in ("NHWC", "HWIO", "NHWC").'
        raise refusal("dimension_numbers", expected="three orders of the same axes", got=dimension_numbers, fix=fix)
    before, after = ([a.index(c) for c in b] for a, b in itertools.pairwise(positions))
    layer = make(**settings)
    parts = [_native.permute_positions(before), layer, _native.permute_positions(after)]

    def init(key: Any, shape: Any) -> tuple:
        shape, params = layer.init_fn(key, parts[0].init_fn(key, shape)[0])
        return parts[2].init_fn(key, shape)[0], params

    def apply(params: Any, x: Any, **kwargs: Any) -> Any:
        return parts[2].apply_fn((), layer.apply_fn(params, parts[0].apply_fn((), x), **kwargs))

    rule = _native.Serial(tuple(part.kernel_fn.rule for part in parts))
    into, out = (Order(spec.index("N"), spec.index("C")) for spec in (lhs, result))
    return _between(Network(init, apply, _native.KernelFn(rule)), make.__name__, into, out)


def _known(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the keywords that layers know; others are left out, as in neural-tangents."""
    return {name: kwargs[name] for name in KEYWORDS & kwargs.keys()}


def _named(name: str, init_fn: Any, apply_fn: Any, kernel_fn: AnalyticKernelFn) -> Network:
    def init(key: Any, input_shape: Any) -> tuple:
        return init_fn(key, input_shape)

    def apply(params: Any, x: Any, **kwargs: Any) -> Any:
        return apply_fn(params, x, **_known(kwargs))

    init.__name__ = apply.__name__ = name
    return Network(init, apply, dataclasses.replace(kernel_fn, name=name))


def __getattr__(name: str) -> Any:
    if name not in _native.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_native, name)
    globals()[name] = value = _wrap(value) if inspect.isfunction(value) else value
    return value


def __dir__() -> list[str]:
    return sorted({*_native.__all__, "Bool", "Diagonal", "layer", "requires", "supports_masking"})
