"""Kernels of many samples, evaluated a few at a time, as `neural_tangents.batch` does."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv._check import whole_number
from ntk_equiv._gram import gram
from ntk_equiv.nt._kernel import AnalyticKernelFn, Kernel


def batch(kernel_fn: Callable, batch_size: int = 0, device_count: int = -1, store_on_device: bool = True) -> Callable:
    """Return a function that evaluates a kernel in batches of samples; they need not divide the number of samples.

    Analytic kernels go through `ntk_equiv.gram`, which uses all devices. Other functions are called batch by batch.

    Args:
        kernel_fn: any function `(x1, x2, *args, **kwargs)`. Keywords that are pairs of arrays, as `pattern` is,
            belong to the samples of `x1` and of `x2`, and are cut with them.
        batch_size: how many samples of `x1` and of `x2` are evaluated at a time; 0 means all.
        device_count: has no effect: all devices are used where that is possible.
        store_on_device: False to collect results in the memory of the host.

    Example:
        >>> import jax.numpy as jnp
        >>> import ntk_equiv.nt as nt
        >>> kernel_fn = nt.batch(nt.stax.Dense(1)[2], batch_size=2)
        >>> kernel_fn(jnp.ones((3, 5)), jnp.ones((4, 5)), "ntk").shape
        (3, 4)
    """
    size, to = whole_number(batch_size, "batch_size"), jnp if store_on_device else np

    def batched(x1: Any, x2: Any = None, *args: Any, **kwargs: Any) -> Any:
        get: Any = args[0] if args else kwargs.get("get")
        native = isinstance(kernel_fn, AnalyticKernelFn) and not kernel_fn.rule.mixes_samples
        arrays = get is not None and len(args) + len(kwargs) == 1 and hasattr(x1, "ndim")
        if native and arrays and ({get} if isinstance(get, str) else set(get)) <= {"nngp", "ntk"}:
            return jax.tree.map(to.asarray, gram(kernel_fn, x1, x2, get, tile=size or None))
        if not size or not jax.tree.leaves(x1):
            return kernel_fn(x1, x2, *args, **kwargs)
        first = jax.tree.leaves(x1, is_leaf=_is_kernel)[0]
        same = first.cov2 is None if _is_kernel(first) else x2 is None
        rows = []
        for left in _slices(x1, size, 0):
            columns = _slices(x1 if x2 is None else x2, size, 1)
            tiles = [
                kernel_fn(*_tile(x1, x2, left, right, same), *args, **_keywords_of_tile(kwargs, left, right))
                for right in columns
            ]
            rows.append(_join(jax.tree.map(to.asarray, tiles), 1, to))
        whole = _join(rows, 0, to)
        one_batch = lambda k: k.as_one_batch() if _is_kernel(k) else k  # noqa: E731
        return jax.tree.map(one_batch, whole, is_leaf=_is_kernel) if same else whole

    return batched


def _is_kernel(x: Any) -> bool:
    return isinstance(x, Kernel)


def _slices(x: Any, size: int, side: int) -> list[slice]:
    leaf = jax.tree.leaves(x, is_leaf=_is_kernel)[0]
    count = leaf.nngp.shape[side] if _is_kernel(leaf) else len(leaf)
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def _tile(x1: Any, x2: Any, left: slice, right: slice, same: bool) -> tuple:
    def cut(kernel: Kernel) -> Kernel:
        return kernel.slice(left, right).replace(x1_is_x2=kernel.x1_is_x2 & (left == right))

    if any(map(_is_kernel, jax.tree.leaves(x1, is_leaf=_is_kernel))):
        return jax.tree.map(cut, x1, is_leaf=_is_kernel), None
    second = None if same and left == right else jax.tree.map(lambda x: x[right], x1 if x2 is None else x2)
    return jax.tree.map(lambda x: x[left], x1), second


def _keywords_of_tile(kwargs: dict[str, Any], left: slice, right: slice) -> dict[str, Any]:
    """Return keywords for a tile: pairs of arrays, such as `pattern`, are cut like the samples that they belong to."""

    def cut(name: str, value: Any) -> Any:
        arrays = isinstance(value, tuple) and len(value) == 2 and all(v is None or jnp.ndim(v) for v in value)
        if name in ("rng", "params") or not arrays:
            return value
        return tuple(None if v is None else v[own] for v, own in zip(value, (left, right), strict=True))

    return {name: cut(name, value) for name, value in kwargs.items()}


def _join(tiles: list, axis: int, to: Any) -> Any:
    """Return kernels side by side, along the samples of `x1` (axis 0) or of `x2` (axis 1)."""
    first, *others = tiles
    if _is_kernel(first):
        return first.beside(others, str(axis + 1))
    if isinstance(first, tuple | list):
        parts = [_join(list(each), axis, to) for each in zip(*tiles, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    return to.concatenate(tiles, axis)
