"""`Kernel` objects, and kernel functions that return and continue them, as in neural-tangents.

kernel_fn(x1, x2, "ntk")            the native call
kernel_fn(x1, x2)                   a `Kernel`: both kernels, variances of samples, shapes and flags
kernel_fn(kernel)                   the same behind one more network
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from ntk_equiv._check import refusal
from ntk_equiv._pytrees import dataclass_pytree
from ntk_equiv._typing import Array, select
from ntk_equiv.stax import (
    EQUAL_POSITIONS,
    Graph,
    KernelFn,
    MaskedArray,
    PairState,
    SampleState,
    Signal,
    propagate,
    signal_of,
)

# Those that layers know; others are left out, as neural-tangents does.
KEYWORDS = frozenset({"rng", "pattern", "mode", "mask_constant"})
static: Callable[..., Any] = partial(dataclasses.field, metadata={"static": True, "pytree_node": False})


@dataclass_pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Kernel:
    """The kernels of two batches behind a network, with what the next layer has to know; as in neural-tangents.

    Attributes:
        nngp: 𝒦 of all pairs, `[n1, n2, h, h', w, w', ...]`.
        ntk: Θ, likewise; None if it is not wanted.
        cov1: 𝒦 of each sample of the first batch with itself, `[n1, h, h', w, w', ...]`.
        cov2: the same for the second batch; None if it is the first.
        x1_is_x2: whether the two batches are the same.
        is_gaussian: whether outputs are Gaussian at infinite width.
        is_reversed: False: spatial axes are always in the order of the input.
        is_input: whether these are the inputs themselves.
        diagonal_batch: True.
        diagonal_spatial: whether there are only pairs of equal positions.
        shape1: the shape of the outputs for the first batch.
        shape2: that for the second.
        batch_axis: 0.
        channel_axis: the last axis.
        mask1: which positions of the outputs are masked for the first batch, `[n1, h, w, ..., 1]`; None if none can be.
        mask2: the same for the second batch; None if it is the first.

    Example:
        >>> import jax.numpy as jnp
        >>> import ntk_equiv.nt as nt
        >>> _, _, kernel_fn = nt.stax.serial(nt.stax.Dense(8), nt.stax.Relu())
        >>> kernel = kernel_fn(jnp.array([[1.0, 1.0]]))
        >>> print(kernel.nngp, kernel.cov1, kernel.is_gaussian)
        [[0.5]] [0.5] False
        >>> print(kernel_fn(kernel).nngp, kernel.replace(ntk=None).ntk)
        [[0.25]] None
    """

    nngp: Any
    ntk: Any
    cov1: Any
    cov2: Any = None
    x1_is_x2: Any = False
    is_gaussian: bool = static(default=False)
    is_reversed: bool = static(default=False)
    is_input: bool = static(default=False)
    diagonal_batch: bool = static(default=True)
    diagonal_spatial: bool = static(default=False)
    shape1: tuple[int, ...] | None = static(default=None)
    shape2: tuple[int, ...] | None = static(default=None)
    batch_axis: int = static(default=0)
    channel_axis: int = static(default=1)
    mask1: Array | None = None
    mask2: Array | None = None

    def replace(self, **changes: Any) -> "Kernel":
        """Return this kernel with other values of some fields."""
        return dataclasses.replace(self, **changes)

    def asdict(self) -> dict[str, Any]:
        """Return all fields by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def astuple(self) -> tuple:
        """Return all fields in their order."""
        return tuple(self.asdict().values())

    def slice(self, n1_slice: slice, n2_slice: slice) -> "Kernel":
        """Return the kernels of some samples of both batches."""
        cov1, cov2 = self.cov1[n1_slice], (self.cov1 if self.cov2 is None else self.cov2)[n2_slice]
        second = self.mask1 if self.cov2 is None else self.mask2
        masks = [None if mask is None else mask[own] for mask, own in ((self.mask1, n1_slice), (second, n2_slice))]
        ntk = None if self.ntk is None else self.ntk[n1_slice, n2_slice]
        shapes = [(len(cov), *(shape or ())[1:]) for cov, shape in ((cov1, self.shape1), (cov2, self.shape2))]
        nngp = self.nngp[n1_slice, n2_slice]
        changes = {"shape1": shapes[0], "shape2": shapes[1], "mask1": masks[0], "mask2": masks[1]}
        return self.replace(nngp=nngp, ntk=ntk, cov1=cov1, cov2=cov2, **changes)


@dataclass_pytree
@dataclasses.dataclass(frozen=True, eq=False)
class AnalyticKernelFn(KernelFn):
    """The kernels of a network as in neural-tangents: a native `KernelFn` that also knows `Kernel` objects.

    Example:
        >>> import jax.numpy as jnp
        >>> import ntk_equiv.nt as nt
        >>> _, _, kernel_fn = nt.stax.Dense(8, b_std=2.0)
        >>> print(kernel_fn(jnp.array([[1.0, 3.0]]), None, ("ntk", "cov1")))
        Kernel(ntk=Array([[9.]], dtype=float64), cov1=Array([9.], dtype=float64))
    """

    def __call__(self, x1: Any, x2: Any = None, get: Any = None, **kwargs: Any) -> Any:
        """Return kernels of inputs, or of a `Kernel`, or of several of either.

        Args:
            x1: samples, or a `Kernel` that another network returned.
            x2: other samples; None stands for `x1`.
            get: the name of a field of `Kernel`, a tuple of such names, or None for a `Kernel`.
            kwargs: those of the native function, and `diagonal_spatial`.
        """
        names = (get,) if isinstance(get, str) else get
        native = names is not None and set(map(str.lower, names)) <= {"nngp", "ntk"}
        known = {name: kwargs[name] for name in (KEYWORDS - {"rng", "mode"}) & kwargs.keys()}
        if native and not _is_several(x1) and not isinstance(x1, Kernel):
            return super().__call__(x1, x2, get, **known)
        if kwargs.get("diagonal_batch") is False:
            fix = "Call `kernel_fn(x1, x1)` for the covariance of different samples."
            raise refusal("diagonal_batch", expected="True", got="False", fix=fix)
        wanted = {"wanted": EQUAL_POSITIONS} if kwargs.get("diagonal_spatial") else {}
        kernels = self._continue(x1, wanted) if _has_kernels(x1) else self._begin(x1, x2, known, wanted)
        if get is None:
            return kernels
        return jax.tree.map(lambda k: select(k, get), kernels, is_leaf=lambda k: isinstance(k, Kernel))

    def _begin(self, x1: Any, x2: Any, known: dict[str, Any], wanted: dict[str, Any]) -> Any:
        signal = propagate(self.rule, signal_of(x1, x2, **known), **wanted)
        kernels = _kernels_of(signal, x1_is_x2=x2 is None)
        if not isinstance(kernels, Kernel) or _is_several(x1):
            return kernels
        # The native call knows inputs better than their covariances do.
        if not wanted:
            exact = super().__call__(x1, x2, ("nngp", "ntk"), **known)
            kernels = kernels.replace(nngp=exact.nngp, ntk=exact.ntk)
        return kernels

    def _continue(self, kernels: Any, wanted: dict[str, Any]) -> Any:
        same = jax.tree.leaves(kernels, is_leaf=lambda k: isinstance(k, Kernel))[0]
        signal = propagate(self.rule, _signal_of_kernels(kernels), **wanted)
        return _kernels_of(signal, x1_is_x2=same.x1_is_x2, one_batch=same.cov2 is None)


def _is_several(x: Any) -> bool:
    return isinstance(x, tuple | list) and not isinstance(x, Graph | MaskedArray)


def _has_kernels(x: Any) -> bool:
    return _has_kernels(x[0]) if _is_several(x) else isinstance(x, Kernel)


def _kernels_of(signal: Signal, *, x1_is_x2: Any, one_batch: bool | None = None) -> Any:
    left, right, pairs = signal
    one_batch = bool(x1_is_x2) if one_batch is None else one_batch
    if isinstance(left, tuple):
        branches: Any = signal
        several = zip(*branches, strict=True)
        return [_kernels_of(Signal(*each), x1_is_x2=x1_is_x2, one_batch=one_batch) for each in several]
    ntk = jnp.zeros_like(pairs.nngp) if pairs.ntk is None and pairs.with_ntk else pairs.ntk
    return Kernel(
        pairs.nngp,
        ntk,
        jnp.asarray(left.cov),
        None if one_batch else right.cov,
        jnp.asarray(x1_is_x2),
        is_gaussian=left.gaussian,
        is_input=False,
        diagonal_spatial=bool(left.grid) and not pairs.full,
        shape1=(pairs.nngp.shape[0], *left.grid, left.width()),
        shape2=(pairs.nngp.shape[1], *right.grid, right.width()),
        channel_axis=1 + len(left.grid),
        mask1=None if left.mask is None else left.mask[..., None],
        mask2=None if one_batch or right.mask is None else right.mask[..., None],
    )


def _signal_of_kernels(kernel: Any) -> Signal:
    if isinstance(kernel, tuple | list):
        several = [_signal_of_kernels(each) for each in kernel]
        return Signal(*(tuple(states) for states in zip(*several, strict=True)))
    n1, n2 = kernel.nngp.shape[:2]
    full = kernel.nngp.ndim > 2 and not kernel.diagonal_spatial
    # Dropout has to tell samples apart, whose inputs are no longer known.
    names = jnp.eye(n1 + n2, dtype=kernel.nngp.dtype)
    left, right = names[:n1], names[n1:]
    if n1 == n2:
        right = jnp.where(kernel.x1_is_x2, left, right)
    cov2 = kernel.cov1 if kernel.cov2 is None else kernel.cov2

    mask2 = kernel.mask1 if kernel.cov2 is None else kernel.mask2

    def state(cov: Array, shape: tuple[int, ...], nodes: Array, mask: Array | None) -> SampleState:
        settings = {"gaussian": kernel.is_gaussian, "channels": shape[-1], "wide": not kernel.is_input}
        mask = None if mask is None else mask[..., 0]
        return SampleState(cov, None, None, shape[1:-1], full=full, nodes=nodes, mask=mask, **settings)

    pairs = PairState(kernel.nngp, kernel.ntk, None, full=full, with_ntk=kernel.ntk is not None)
    sides = state(kernel.cov1, kernel.shape1, left, kernel.mask1), state(cov2, kernel.shape2, right, mask2)
    return Signal(*sides, pairs)
