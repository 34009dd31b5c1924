"""Networks as in `neural_tangents.stax`: those of `ntk_equiv.stax`, whose kernel functions also know `Kernel` objects.

Names, arguments, their order and their defaults are those of `ntk_equiv.stax`, where they are described.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from ntk_equiv import stax as _native
from ntk_equiv.nt._kernel import KEYWORDS, AnalyticKernelFn


def _with_kernels(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that makes the same network, with a kernel function that knows `Kernel` objects."""

    @functools.wraps(make)
    def layer(*args: Any, **kwargs: Any) -> Any:
        result = make(*args, **kwargs)
        if not isinstance(result, _native.Network):
            return result
        apply = functools.wraps(result.apply_fn)(functools.partial(_apply, result.apply_fn))
        return result._replace(apply_fn=apply, kernel_fn=AnalyticKernelFn(result.kernel_fn.rule))

    return layer


def _apply(apply_fn: Callable[..., Any], params: Any, x: Any, **kwargs: Any) -> Any:
    """Return outputs; keywords that no layer knows are left out, as in neural-tangents."""
    return apply_fn(params, x, **{name: kwargs[name] for name in KEYWORDS & kwargs.keys()})


def __getattr__(name: str) -> Any:
    if name not in _native.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_native, name)
    globals()[name] = value = _with_kernels(value) if inspect.isfunction(value) else value
    return value


def __dir__() -> list[str]:
    return sorted(_native.__all__)
