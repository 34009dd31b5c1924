"""`Kernel` objects, and kernel functions that return and continue them, as in neural-tangents.

kernel_fn(x1, x2, "ntk")            the native call
kernel_fn(x1, x2)                   a `Kernel`: both kernels, variances of samples, shapes and flags
kernel_fn(kernel)                   the same behind one more network
"""

import dataclasses
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from ntk_equiv._check import refusal
from ntk_equiv._pytrees import dataclass_pytree
from ntk_equiv._typing import Array, select
from ntk_equiv.nt._axes import ANY, NATIVE, Order, Orders, first_said, shape_from_native, shape_to_native, to_native
from ntk_equiv.stax import (
    ALL_POSITIONS,
    EQUAL_POSITIONS,
    Graph,
    KernelFn,
    MaskedArray,
    PairState,
    Parallel,
    Requirements,
    Rule,
    SampleState,
    Serial,
    Signal,
    frozen_pytree,
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
        diagonal_batch: False if `cov1` and `cov2` are of all pairs of samples, `[n1, n1, h, h', w, w', ...]`.
        diagonal_spatial: whether there are only pairs of equal positions.
        shape1: the shape of the outputs for the first batch.
        shape2: that for the second.
        batch_axis: which axis of the outputs counts samples.
        channel_axis: which of them counts channels.
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

    def masked(self, mask1: Any, mask2: Any) -> "Kernel":
        """Return these kernels with those of masked positions set to zero."""
        left, right = (None if m is None else m[..., 0] for m in (mask1, mask1 if mask2 is None else mask2))

        def hide(k: Any, a: Any, b: Any, paired: bool = False) -> Any:
            full = k is not None and k.ndim - (1 if paired else 2) == 2 * (a.ndim - 1)
            state = PairState(k, None, None, full=full, with_ntk=False, paired=paired)
            return None if k is None else state.masked(a, b).nngp

        pairs = {"nngp": hide(self.nngp, left, right), "ntk": hide(self.ntk, left, right)}
        covs = [hide(c, m, m, self.diagonal_batch) for c, m in ((self.cov1, left), (self.cov2, right))]
        return self.replace(**pairs, cov1=covs[0], cov2=covs[1], mask1=mask1, mask2=mask2)

    def of_one_batch(self, cov: str) -> "Kernel":
        """Return the kernels of one batch with itself, from its covariance "cov1" or "cov2" of all pairs."""
        side = cov[-1]
        shape, mask = getattr(self, "shape" + side), getattr(self, "mask" + side)
        changes = {"shape1": shape, "shape2": shape, "mask1": mask, "mask2": None, "x1_is_x2": jnp.asarray(True)}
        own = getattr(self, cov)
        return self.replace(nngp=own, ntk=None, cov1=own, cov2=None, **changes)

    def slice(self, n1_slice: Any, n2_slice: Any) -> "Kernel":
        """Return the kernels of some samples of both batches."""
        changes: dict[str, Any] = {"nngp": self.nngp[n1_slice][:, n2_slice]}
        changes["ntk"] = None if self.ntk is None else self.ntk[n1_slice][:, n2_slice]
        second = ("cov1", "mask1") if self.cov2 is None else ("cov2", "mask2")
        for side, own, (cov, mask) in (("1", n1_slice, ("cov1", "mask1")), ("2", n2_slice, second)):
            values, mask = getattr(self, cov)[own], getattr(self, mask)
            changes["cov" + side] = values if self.diagonal_batch else values[:, own]
            changes["mask" + side] = None if mask is None else mask[own]
            shape = getattr(self, "shape" + side) or ()
            changes["shape" + side] = tuple(len(values) if i == self.batch_axis else n for i, n in enumerate(shape))
        return self.replace(**changes)


@frozen_pytree
class KernelStep(Rule):
    """A layer that is known as a function of `Kernel` objects only, such as one of your own.

    Attributes:
        function: what becomes of a `Kernel`, or of a list of them.
        full_batch: whether it needs the covariance of different samples of one batch.
    """

    takes_branches = True
    makes_branches = True

    function: Callable = static()
    full_batch: bool = static(default=False)

    def per_sample(self, state: Any, wanted: Any) -> Any:
        fix = "Call `kernel_fn(x1, x2, get)` itself, or `nt.batch` of it."
        got = "one with layers of your own, or with layers that mix samples"
        raise refusal("kernel_fn", expected="that of native layers", got=got, fix=fix)

    def per_pair(self, state: Any, left: Any, right: Any, wanted: Any) -> Any:
        return self.per_sample(state, wanted)


@dataclass_pytree
@dataclasses.dataclass(frozen=True, eq=False)
class AnalyticKernelFn(KernelFn):
    """The kernels of a network as in neural-tangents: a native `KernelFn` that also knows `Kernel` objects.

    Attributes:
        into: the order of axes of the inputs.
        out: that of the outputs, where it differs.
        joined: the axis along which `FanInConcat` joins branches.
        name: the name of the layer.

    Example:
        >>> import jax.numpy as jnp
        >>> import ntk_equiv.nt as nt
        >>> _, _, kernel_fn = nt.stax.Dense(8, b_std=2.0)
        >>> print(kernel_fn(jnp.array([[1.0, 3.0]]), None, ("ntk", "cov1")))
        Kernel(ntk=Array([[9.]], dtype=float64), cov1=Array([9.], dtype=float64))
    """

    into: Orders = dataclasses.field(default=ANY, metadata={"static": True})
    out: Orders = dataclasses.field(default=ANY, metadata={"static": True})
    joined: int | None = static(default=None)
    name: str = static(default="serial")

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self, x1: Any, x2: Any = None, get: Any = None, **kwargs: Any) -> Any:
        """Return kernels of inputs, or of a `Kernel`, or of several of either.

        Args:
            x1: samples, or a `Kernel` that another network returned.
            x2: other samples; None stands for `x1`.
            get: the name of a field of `Kernel`, a tuple of such names, or None for a `Kernel`.
            kwargs: those of the native function, `diagonal_batch`, `diagonal_spatial`, `batch_axis` and `channel_axis`.
        """
        given = Order(kwargs.pop("batch_axis", None), kwargs.pop("channel_axis", None))
        into = first_said(given, self.into) if isinstance(self.into, Order) else self.into
        order = self.order_after(into)
        names = {"nngp", "ntk"} if get is None else {get.lower()} if isinstance(get, str) else set(map(str.lower, get))
        simple = not _has_kernels(x1) and not _is_several(x1) and isinstance(order, Order)
        if not _has_kernels(x1):
            x1, x2 = to_native(x1, into), None if x2 is None else to_native(x2, into)
        known = {name: kwargs[name] for name in (KEYWORDS - {"rng", "mode"}) & kwargs.keys()}
        stepwise = _steps(self.rule)
        if simple and get is not None and names <= {"nngp", "ntk"} and not stepwise:
            return super().__call__(x1, x2, get, **known)
        full_batch = kwargs.get("diagonal_batch") is False or any(step.full_batch for step in stepwise)
        if kwargs.get("diagonal_batch") and full_batch:
            fix = "Leave it out, or set it to False."
            raise refusal("diagonal_batch", expected="False for a layer that mixes samples", got="True", fix=fix)
        if _has_kernels(x1):
            kernels = x1
        else:
            kernels = _kernels_of(signal_of(x1, x2, **known), x1_is_x2=x2 is None, is_input=True)
            if full_batch:
                kernels = _map_kernels(lambda k, a, b: _with_full_batch(k, a, b, known), kernels, x1, x2)
            if stepwise and get is not None and "ntk" not in names:
                kernels = _map_kernels(lambda k: k.replace(ntk=None), kernels)
        wanted = EQUAL_POSITIONS if kwargs.get("diagonal_spatial") else ALL_POSITIONS
        after = _continue(self.rule, kernels, wanted, kwargs)
        if simple and isinstance(after, Kernel) and not stepwise and wanted is ALL_POSITIONS:
            # The native call knows inputs better than their covariances do.
            exact = super().__call__(x1, x2, ("nngp", "ntk"), **known)
            after = after.replace(nngp=exact.nngp, ntk=exact.ntk)
        after = _in_order(after, order)
        return after if get is None else _map_kernels(lambda k: select(k, get), after)

    def order_after(self, order: Orders | None = None) -> Orders:
        """Return the order of axes of the outputs, from that of the inputs."""
        return first_said(self.out, self.into if order is None else order)


def _is_several(x: Any) -> bool:
    return isinstance(x, tuple | list) and not isinstance(x, Graph | MaskedArray)


def _has_kernels(x: Any) -> bool:
    return _has_kernels(x[0]) if _is_several(x) else isinstance(x, Kernel)


def _is_kernel(x: Any) -> bool:
    return isinstance(x, Kernel)


def _map_kernels(function: Callable, kernels: Any, *others: Any) -> Any:
    """Return what a function makes of a `Kernel`, or of each of several, with other arguments for each."""
    if not isinstance(kernels, tuple | list):
        return function(kernels, *others)
    each = zip(kernels, *([None] * len(kernels) if o is None else o for o in others), strict=True)
    return [_map_kernels(function, *own) for own in each]


def _steps(rule: Rule) -> list[KernelStep]:
    """Return all layers of a network that are functions of `Kernel` objects."""
    if isinstance(rule, Serial | Parallel):
        return [step for each in rule.rules for step in _steps(each)]
    return [rule] if isinstance(rule, KernelStep) else []


def _continue(rule: Rule, kernels: Any, wanted: Requirements, kwargs: dict[str, Any]) -> Any:
    """Return the kernels behind a network."""
    if isinstance(rule, KernelStep):
        return rule.function(kernels, **kwargs)
    if not _steps(rule):
        return run(rule, kernels, wanted)
    several: Any = rule
    if isinstance(rule, Parallel):
        pairs = zip(several.rules, kernels, strict=True)
        return [_continue(each, own, wanted, kwargs) for each, own in pairs]
    for stepwise, rules in itertools.groupby(several.rules, lambda each: bool(_steps(each))):
        for each in rules if stepwise else [Serial(tuple(rules))]:
            kernels = _continue(each, kernels, ALL_POSITIONS, kwargs)
    return kernels


def run(rule: Rule, kernels: Any, wanted: Requirements = ALL_POSITIONS) -> Any:
    """Return the kernels behind a native network."""
    leaves = jax.tree.leaves(kernels, is_leaf=_is_kernel)
    first = leaves[0]
    wanted = EQUAL_POSITIONS if any(k.diagonal_spatial for k in leaves) else wanted
    required: Any = rule.requirements_for(wanted)
    if wanted is EQUAL_POSITIONS and any(r.full_pairs for r in jax.tree.leaves(required)):
        fix = "Leave it out: a layer of this network compares positions."
        raise refusal("diagonal_spatial", expected="left out, or False", got="True", fix=fix)
    same = {"x1_is_x2": first.x1_is_x2, "one_batch": first.cov2 is None}
    after = _kernels_of(propagate(rule, signal_of_kernels(kernels), wanted), **same)
    if first.diagonal_batch:
        return after
    for cov in ("cov1",) if first.cov2 is None else ("cov1", "cov2"):
        own = _map_kernels(lambda k, cov=cov: k.of_one_batch(cov), kernels)
        own = _kernels_of(propagate(rule, signal_of_kernels(own), wanted), x1_is_x2=True)
        after = _map_kernels(lambda k, o, cov=cov: k.replace(**{cov: o.nngp}, diagonal_batch=False), after, own)
    return after


def _with_full_batch(kernel: Kernel, x1: Any, x2: Any, known: dict[str, Any]) -> Kernel:
    masks, patterns = {"mask_constant": known.get("mask_constant")}, known.get("pattern") or (None, None)
    covs = [
        None if x is None else signal_of(x, None, pattern=(pattern, None), **masks).pairs.nngp
        for x, pattern in zip((x1, x2), patterns, strict=True)
    ]
    return kernel.replace(cov1=covs[0], cov2=covs[1], diagonal_batch=False)


def _in_order(kernels: Any, order: Orders) -> Any:
    """Return kernels that say where samples and channels are in the outputs."""
    if isinstance(kernels, list) and not isinstance(order, Order):
        return [_in_order(k, own) for k, own in zip(kernels, order, strict=True)]
    if isinstance(order, Order) and order.or_else(NATIVE) == NATIVE:
        return kernels

    def place(k: Kernel) -> Kernel:
        batch, channel = order.places(len(k.shape1 or ()))
        shapes = [shape_from_native(shape or (), order) for shape in (k.shape1, k.shape2)]
        return k.replace(shape1=shapes[0], shape2=shapes[1], batch_axis=batch, channel_axis=channel)

    return _map_kernels(place, kernels)


def _kernels_of(signal: Signal, *, x1_is_x2: Any, one_batch: bool | None = None, is_input: bool = False) -> Any:
    left, right, pairs = signal
    one_batch = bool(x1_is_x2) if one_batch is None else one_batch
    if isinstance(left, tuple):
        branches: Any = signal
        same = {"x1_is_x2": x1_is_x2, "one_batch": one_batch, "is_input": is_input}
        return [_kernels_of(Signal(*each), **same) for each in zip(*branches, strict=True)]
    ntk = jnp.zeros_like(pairs.nngp) if pairs.ntk is None and pairs.with_ntk else pairs.ntk
    return Kernel(
        pairs.nngp,
        ntk,
        jnp.asarray(left.cov),
        None if one_batch else right.cov,
        jnp.asarray(x1_is_x2),
        is_gaussian=left.gaussian,
        is_input=is_input,
        diagonal_spatial=bool(left.grid) and not pairs.full,
        shape1=(pairs.nngp.shape[0], *left.grid, left.width()),
        shape2=(pairs.nngp.shape[1], *right.grid, right.width()),
        channel_axis=1 + len(left.grid),
        mask1=None if left.mask is None else left.mask[..., None],
        mask2=None if one_batch or right.mask is None else right.mask[..., None],
    )


def signal_of_kernels(kernel: Any) -> Signal:
    if isinstance(kernel, tuple | list):
        several = [signal_of_kernels(each) for each in kernel]
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

    order = Order(kernel.batch_axis, kernel.channel_axis)
    shapes = [shape_to_native(shape, order) for shape in (kernel.shape1, kernel.shape2)]
    covs = [cov if kernel.diagonal_batch else jnp.moveaxis(jnp.diagonal(cov), -1, 0) for cov in (kernel.cov1, cov2)]
    pairs = PairState(kernel.nngp, kernel.ntk, None, full=full, with_ntk=kernel.ntk is not None)
    sides = state(covs[0], shapes[0], left, kernel.mask1), state(covs[1], shapes[1], right, mask2)
    return Signal(*sides, pairs)
