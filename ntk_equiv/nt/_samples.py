"""Layers that mix samples: they choose, join, resize or normalise along the axis that counts them.

Kernels of such networks depend on which samples are given together, so they exist for `Kernel` objects only.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ntk_equiv._check import refusal
from ntk_equiv.nt._axes import Order
from ntk_equiv.nt._kernel import Kernel, KernelStep, run, signal_of_kernels
from ntk_equiv.stax import ImageResize, Index, PairState


def index(idx: Any, order: Order) -> KernelStep:
    """Return the choice of samples and positions by `x[idx]`, in any form that arrays take."""

    def choose(k: Kernel, **kwargs: Any) -> Kernel:
        rank = len(k.shape1 or ())
        parts = list(idx) if isinstance(idx, tuple) else [idx]
        left_out = [slice(None)] * (rank - len([part for part in parts if part is not Ellipsis]))
        place = parts.index(Ellipsis) if Ellipsis in parts else len(parts)
        parts[place : place + 1] = left_out
        batch, channel = order.places(rank)
        if isinstance(parts[batch], int) or parts[channel] != slice(None):
            fix = "The finite network has it; its kernel would no longer be one of samples, or depend on channels."
            raise refusal("idx", expected="slices of samples", got=str(idx), fix=fix, kind=NotImplementedError)
        positions = [part for axis, part in enumerate(parts) if axis not in (batch, channel)]
        one_batch = k.cov2 is None
        k = k.slice(parts[batch], parts[batch])
        k = k.replace(cov2=None, mask2=None) if one_batch else k
        return run(Index((slice(None), *positions)).kernel_fn.rule, k)

    return KernelStep(choose)


def resize(shape: Sequence[int], settings: dict[str, Any], order: Order) -> KernelStep:
    """Return the resizing of the axis of samples, and of those of positions."""
    batch, channel = order.places(len(shape))
    size, positions = shape[batch], [n for axis, n in enumerate(shape) if axis not in (batch, channel)]
    if shape[channel] != -1:
        fix = "Leave channels as they are, -1."
        raise refusal("shape", expected="-1 for channels", got=shape, fix=fix)

    def through(k: Kernel, **kwargs: Any) -> Kernel:
        def matrix(count: int) -> Any:
            method, antialias = settings["method"], settings["antialias"]
            return jax.image.resize(jnp.eye(count), (size, count), method, antialias).astype(k.nngp.dtype)

        k = mix(k, matrix)
        return run(ImageResize((-1, *positions, -1), settings["method"], settings["antialias"]).kernel_fn.rule, k)

    return KernelStep(through, full_batch=True)


def mix(k: Kernel, matrix: Callable[[int], Any]) -> Kernel:
    """Return the kernels of linear combinations of samples, whose coefficients are in the rows of a matrix."""
    counts = k.nngp.shape[:2]
    left, right = (matrix(count) for count in counts)

    def both(kernel: Any, a: Any, b: Any) -> Any:
        return None if kernel is None else jnp.einsum("ai,bj,ij...->ab...", a, b, kernel)

    changes = {"nngp": both(k.nngp, left, right), "ntk": both(k.ntk, left, right)}
    changes |= {"cov1": both(k.cov1, left, left), "cov2": both(k.cov2, right, right)}
    masks = [
        None if mask is None else jnp.tensordot((a != 0).astype(a.dtype), (~mask).astype(a.dtype), 1) == 0
        for a, mask in ((left, k.mask1), (right, k.mask2))
    ]
    shapes = [(len(a), *(shape or ())[1:]) for a, shape in ((left, k.shape1), (right, k.shape2))]
    mixed = k.replace(**changes, shape1=shapes[0], shape2=shapes[1])
    return mixed if masks[0] is None else mixed.masked(*masks)


def normalize(axes: Sequence[int], eps: Any) -> KernelStep:
    """Return layer normalisation over samples, channels and perhaps positions; `axes` are those of native inputs."""

    def through(k: Kernel, **kwargs: Any) -> Kernel:
        last = len(k.shape1 or ()) - 1
        counted = {axis % (last + 1) for axis in axes}
        if last not in counted or not k.is_gaussian:
            fix = "Put it behind a layer with weights, and normalise over channels too."
            raise refusal("axis", expected="with that of channels, on a Gaussian input", got=tuple(axes), fix=fix)
        signal, together = signal_of_kernels(k), tuple(counted - {last})
        left, right = (_inverse_std(state.variance(), state.mask, together, eps) for state in signal[:2])
        one = not k.diagonal_batch

        def scaled(kernel: Any, a: Any, b: Any, paired: bool = False) -> Any:
            if kernel is None:
                return None
            state = PairState(kernel, None, None, full=signal.pairs.full, with_ntk=False, paired=paired)
            return kernel * state.on_left(a) * state.on_right(b)

        covs = scaled(k.cov1, left, left, not one), scaled(k.cov2, right, right, not one)
        return k.replace(nngp=scaled(k.nngp, left, right), ntk=scaled(k.ntk, left, right), cov1=covs[0], cov2=covs[1])

    return KernelStep(through)


def _inverse_std(q: Any, mask: Any, axes: tuple[int, ...], eps: Any) -> Any:
    counts = jnp.ones_like(q) if mask is None else (~mask).astype(q.dtype)
    mean = jnp.sum(q * counts, axes, keepdims=True) / jnp.maximum(jnp.sum(counts, axes, keepdims=True), 1)
    return jnp.broadcast_to(1 / jnp.sqrt(mean + eps), q.shape)


def _join(kernels: Sequence[Kernel], **kwargs: Any) -> Kernel:
    """Return the kernels of the samples of several branches: those of different branches are independent."""
    first = kernels[0]
    dependent = sum(not k.is_gaussian for k in kernels)
    if dependent > 1:
        fix = "End each branch with Dense or Conv."
        raise refusal("layers", expected="branches that end with weights", got=f"{dependent} that do not", fix=fix)

    def blocks(name: str) -> Any:
        own = [getattr(k, name) for k in kernels]
        if own[0] is None:
            return None
        totals, start, rows = [sum(a.shape[side] for a in own) for side in (0, 1)], [0, 0], []
        for block in own:
            widths = [(at, total - at - n) for at, total, n in zip(start, totals, block.shape[:2], strict=True)]
            rows.append(jnp.pad(block, widths + [(0, 0)] * (block.ndim - 2)))
            start = [at + n for at, n in zip(start, block.shape[:2], strict=True)]
        return sum(rows)

    def joined(name: str) -> Any:
        own = [getattr(k, name) for k in kernels]
        return None if own[0] is None else jnp.concatenate(own)

    cov = joined if first.diagonal_batch else blocks
    shapes = {
        name: (sum(getattr(k, name)[0] for k in kernels), *getattr(first, name)[1:]) for name in ("shape1", "shape2")
    }
    masks = {name: joined(name) for name in ("mask1", "mask2")}
    same = {"is_gaussian": dependent == 0}
    covs = {"cov1": cov("cov1"), "cov2": cov("cov2")}
    return first.replace(nngp=blocks("nngp"), ntk=blocks("ntk"), **covs, **shapes, **masks, **same)


JOIN = KernelStep(_join)
