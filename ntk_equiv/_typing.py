"""Types that the whole library speaks in; shapes are written with jaxtyping, as in `Float[Array, "n features"]`."""

from collections import namedtuple
from functools import cache
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np

Array = jax.Array

Scalar = float | int | np.number | Array
"""One real number: a Python one, or one that JAX may trace and differentiate."""

Inputs = Any
"""Samples: an array `[n, ...]`, or a pytree of arrays with a common leading axis such as a graph."""

Get = None | str | tuple[str, ...]
"""Which kernels are wanted: `"nngp"`, `"ntk"`, a tuple of them, or `None` for both."""


class Kernel(NamedTuple):
    """The two kernels of a network on pairs of samples, `[n1, n2]` or `[n1, n2, h, h', w, w', ...]`.

    Attributes:
        nngp: covariance of the outputs at initialisation, 𝒦.
        ntk: neural tangent kernel, Θ.
    """

    nngp: Array | None
    ntk: Array | None


def select(kernel: Any, get: str | tuple[str, ...]) -> Any:
    """What `get` names: one array, or a named tuple with those fields in the order asked for."""
    if isinstance(get, str):
        return getattr(kernel, get)
    return _record(get)(*(getattr(kernel, name) for name in get))


@cache
def _record(names: tuple[str, ...]) -> Any:
    return Kernel if names == Kernel._fields else namedtuple("Kernel", names)


@runtime_checkable
class KernelFunction(Protocol):
    """Any function that evaluates kernels on two batches of samples: ours, one of neural-tangents, or your own."""

    def __call__(self, x1: Inputs, x2: Inputs | None = None, get: Get = None) -> Any:
        """Return the kernels of all pairs from `x1` and `x2` (from `x1` with itself if `x2` is `None`).

        One array if `get` is one name, else a record or tuple of exactly the kernels that `get` names, in its order.
        """


@runtime_checkable
class SplitKernel(KernelFunction, Protocol):
    """A kernel function in two halves, so that the work for each sample is not repeated for each pair.

        kernel_fn(x1, x2, get)  =  per_pair(per_sample(x1), per_sample(x2), get)

    It is a pytree, so that it passes through `jit` as an argument.
    """

    def check_samples(self, x: Inputs, argument: str = "x") -> Inputs:
        """Return `x` in the form that the other methods take, or refuse it by the name `argument`."""

    def restrict(self, get: str | tuple[str, ...]) -> "SplitKernel":
        """Return a kernel function that will be asked for no other kernels than `get`, and may do less work."""

    def per_sample(self, x: Inputs) -> Any:
        """Return what `per_pair` needs to know about each sample: a pytree of arrays with leading axis n.

        `x` is what `check_samples` returned.
        """

    def per_pair(self, left: Any, right: Any, get: Get = None) -> Any:
        """Return the kernels of all pairs, from what `per_sample` returned for each side."""

    def entries_per_pair(self, x: Inputs) -> int:
        """Return how many numbers one pair of samples occupies, for choosing the size of a tile."""


@runtime_checkable
class CheapPerSample(SplitKernel, Protocol):
    """A kernel function whose work for each sample is small: it may be done range by range, and for a few more."""

    is_cheap_per_sample: bool
