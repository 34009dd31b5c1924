"""Layers of your own, as in neural-tangents: a finite layer, and what becomes of a `Kernel` behind it.

Their kernels are known as functions of `Kernel` objects only, so networks with such layers work in `kernel_fn(x1, x2)`
and `nt.batch`, but not in the native parts, which evaluate samples and pairs of samples separately. For these, write a
layer as `ntk_equiv.stax` does.
"""

import enum
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ntk_equiv._check import function, refusal
from ntk_equiv.nt._kernel import AnalyticKernelFn, Kernel, KernelStep
from ntk_equiv.stax import ANY, NATIVE, KernelFn, MaskedArray, Network, Order, with_mask


class Bool(enum.IntEnum):
    """No, maybe and yes, for `Diagonal`.

    Example:
        >>> from ntk_equiv.nt import stax
        >>> min(stax.Bool.MAYBE, stax.Bool.YES).name
        'MAYBE'
    """

    NO = 0
    MAYBE = 1
    YES = 2


@dataclass(frozen=True)
class Diagonal:
    """Whether a layer may be given, and returns, kernels of equal positions only. All positions are kept in any case.

    `a >> b` is what a layer `a` followed by `b` needs, `a & b` what both side by side need.

    Example:
        >>> from ntk_equiv.nt import stax
        >>> stax.Diagonal(input=stax.Bool.NO).output.name
        'NO'
    """

    input: Bool = Bool.YES
    output: Bool = Bool.NO

    def __rshift__(self, other: "Diagonal") -> "Diagonal":
        if self.output == Bool.YES:
            return self
        if self.output == Bool.MAYBE and other.input != Bool.NO:
            return Diagonal(self.input, other.output)
        if self.output == Bool.NO and other.input != Bool.YES:
            return Diagonal(Bool.NO, other.output)
        return Diagonal(min(self.input, other.input), other.output)

    def __lshift__(self, other: "Diagonal") -> "Diagonal":
        return other >> self

    def __and__(self, other: "Diagonal") -> "Diagonal":
        return Diagonal(min(self.input, other.input), min(self.output, other.output))


def requires(**static_reqs: Any) -> Callable[[Callable], Callable]:
    """Return a decorator that says what a function of a `Kernel` expects: `batch_axis`, `channel_axis` and others.

    Example:
        >>> from ntk_equiv.nt import stax
        >>> halve = stax.requires(batch_axis=0)(lambda k, **kwargs: k.replace(nngp=k.nngp / 2))
        >>> halve.requirements
        {'batch_axis': 0}
    """

    def decorate(kernel_fn: Callable) -> Callable:
        @functools.wraps(kernel_fn)
        def checked(k: Any, **kwargs: Any) -> Any:
            axes = [(name, static_reqs.get(name)) for name in ("batch_axis", "channel_axis")]
            for name, axis in axes if isinstance(k, Kernel) else ():
                if axis is not None and k.shape1 and getattr(k, name) != axis % len(k.shape1):
                    fix = "Name the axes of the layers before it in the same way."
                    raise refusal(name, expected=axis, got=getattr(k, name), fix=fix)
            return kernel_fn(k, **kwargs)

        checked.requirements = static_reqs  # type: ignore[attr-defined]
        return checked

    return decorate


def supports_masking(remask_kernel: bool) -> Callable[[Callable], Callable]:
    """Return a decorator of functions that make layers: masks go through them, to `apply_fn` as the keyword `mask`.

    Such a function returns `(init_fn, apply_fn, kernel_fn)`, or also `mask_fn(mask, input_shape)`, by which the layer
    changes masks. With `remask_kernel`, kernels of masked positions are set to zero after the layer.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv.nt import stax
        >>> @stax.layer
        ... @stax.supports_masking(remask_kernel=True)
        ... def Double():
        ...     times = lambda params, x, mask=None, **kwargs: 2 * x
        ...     return lambda key, s: (s, ()), times, lambda k, **kwargs: k.replace(nngp=4 * k.nngp)
        >>> print(Double().apply_fn((), jnp.array([[1.0, 9.0]]), mask_constant=9.0).masked_value)
        [[2. 0.]]
    """

    def decorate(make: Callable) -> Callable:
        @functools.wraps(make)
        def made(*args: Any, **kwargs: Any) -> tuple:
            init_fn, apply, kernel_fn, *rest = make(*args, **kwargs)
            mask_fn = rest[0] if rest else lambda mask, shape: mask

            def apply_fn(params: Any, x: Any, *, mask_constant: Any = None, **settings: Any) -> Any:
                x = with_mask(x, mask_constant)
                if not isinstance(x, MaskedArray):
                    return apply(params, x, mask=None, **settings)
                y = apply(params, x.masked_value, mask=x.mask, **settings)
                return MaskedArray.of(MaskedArray(y, mask_fn(x.mask, x.masked_value.shape)))

            @functools.wraps(kernel_fn)
            def masked(k: Any, **settings: Any) -> Any:
                after = kernel_fn(k, **settings)
                if not isinstance(k, Kernel) or k.mask1 is None:
                    return after
                masks = [None if m is None else mask_fn(m, s) for m, s in ((k.mask1, k.shape1), (k.mask2, k.shape2))]
                return after.masked(*masks) if remask_kernel else after.replace(mask1=masks[0], mask2=masks[1])

            return init_fn, apply_fn, masked

        return made

    return decorate


def layer(layer_fn: Callable[..., Any]) -> Callable[..., Network]:
    """Return a function that makes a layer whose `kernel_fn` takes inputs, from one whose `kernel_fn` takes `Kernel`s.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv.nt import stax
        >>> @stax.layer
        ... def Double():
        ...     scale = lambda k, **kwargs: k.replace(nngp=4 * k.nngp, ntk=4 * k.ntk, cov1=4 * k.cov1)
        ...     return lambda key, shape: (shape, ()), lambda params, x, **kwargs: 2 * x, scale
        >>> _, _, kernel_fn = stax.serial(stax.Dense(1), Double(), stax.Relu())
        >>> print(kernel_fn(jnp.ones((1, 3)), None, ("nngp", "ntk")))
        Kernel(nngp=Array([[2.]], dtype=float64), ntk=Array([[2.]], dtype=float64))
    """
    function(layer_fn, "layer_fn")

    @functools.wraps(layer_fn)
    def made(*args: Any, **kwargs: Any) -> Network:
        return triple(layer_fn(*args, **kwargs), layer_fn.__name__)

    return made


def triple(layer: Any, name: str = "layer") -> Any:
    """Return a layer whose kernels are those of the facade; the layer may have only functions of `Kernel` objects."""
    if not isinstance(layer, tuple | list) or len(layer) != 3 or not callable(layer[2]):
        fix = "Call the layer (`Relu()`, not `Relu`)."
        raise refusal("layers", expected="triples (init_fn, apply_fn, kernel_fn)", got=type(layer).__name__, fix=fix)
    init_fn, apply_fn, kernel_fn = layer
    if isinstance(kernel_fn, AnalyticKernelFn):
        return Network(init_fn, apply_fn, kernel_fn)
    if isinstance(kernel_fn, KernelFn):
        order = kernel_fn.order if kernel_fn.order != ANY or kernel_fn.rule.takes_branches else NATIVE
        return Network(init_fn, apply_fn, AnalyticKernelFn(kernel_fn.rule, order=order))
    asked = getattr(kernel_fn, "requirements", {})
    full_batch = asked.get("diagonal_batch", True) in (False, Diagonal(Bool.NO, Bool.NO))
    order = Order(asked.get("batch_axis"), asked.get("channel_axis"))
    step = KernelStep(kernel_fn, order, full_batch)
    return Network(init_fn, apply_fn, AnalyticKernelFn(step, order=order, rank=0, name=name))
