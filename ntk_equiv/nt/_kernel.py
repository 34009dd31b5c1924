"""`Kernel` objects, and kernel functions that return and continue them, as in neural-tangents.

kernel_fn(x1, x2, "ntk")            the native call
kernel_fn(x1, x2)                   a `Kernel`: a native `Signal` that also knows where its axes are
kernel_fn(kernel)                   the same behind one more network
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from ntk_equiv._check import one_of
from ntk_equiv._pytrees import dataclass_pytree
from ntk_equiv._typing import select
from ntk_equiv.nt._axes import Seam, check_seams, first_said
from ntk_equiv.stax import (
    ANY,
    BatchRule,
    KernelFn,
    Order,
    Orders,
    Signal,
    frozen_pytree,
    is_several,
    map_signals,
    shape_from_native,
    shape_to_native,
    static,
)

# Fields in the order of neural-tangents.
FIELDS = [
    "nngp",
    "ntk",
    "cov1",
    "cov2",
    "x1_is_x2",
    "is_gaussian",
    "is_reversed",
    "is_input",
    "diagonal_batch",
    "diagonal_spatial",
    "shape1",
    "shape2",
    "batch_axis",
    "channel_axis",
    "mask1",
    "mask2",
]


@dataclass_pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Kernel(Signal):
    """The kernels of two batches behind a network, with what the next layer has to know; as in neural-tangents.

    It is a `Signal`, where other attributes are described. Kernels, and masks, always have axes in the native order.

    Attributes:
        batch_axis: which axis of the outputs counts samples; -1 if they were summed over.
        channel_axis: which of them counts channels.
        is_reversed: False: spatial axes are always in the order of the input.

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

    batch_axis: int = static(default=0)
    channel_axis: int = static(default=1)
    is_reversed: bool = static(default=False)

    @classmethod
    def of(cls, signal: Signal, order: Order) -> "Kernel":
        """Return a native signal as a kernel of outputs whose axes are in that order."""
        known: Any = {field.name: getattr(signal, field.name) for field in dataclasses.fields(signal)}
        if not signal.has_samples:
            return cls(**known | {"batch_axis": -1})
        shapes = {name: shape_from_native(known[name], order) for name in ("shape1", "shape2")}
        batch, *_, channel = order.permutation(len(known["shape1"]))
        return cls(**known | shapes | {"batch_axis": batch, "channel_axis": channel})

    def native(self) -> "Kernel":
        """Return this kernel with shapes whose axes are in the native order."""
        order = Order(self.batch_axis, self.channel_axis)
        shapes: Any = {name: shape_to_native(getattr(self, name), order) for name in ("shape1", "shape2")}
        return self.replace(**shapes, batch_axis=0, channel_axis=len(shapes["shape1"]) - 1)

    def slice(self, n1_slice: Any, n2_slice: Any) -> "Kernel":
        """Return the kernels of some samples of both batches."""
        return Kernel.of(self.native().cut(n1_slice, n2_slice), Order(self.batch_axis, self.channel_axis))

    def asdict(self) -> dict[str, Any]:
        """Return all fields by name."""
        return {name: getattr(self, name) for name in FIELDS}

    def astuple(self) -> tuple:
        """Return all fields in their order."""
        return tuple(self.asdict().values())


@frozen_pytree
class KernelStep(BatchRule):
    """A layer that is known as a function of `Kernel` objects only, such as one of your own.

    Attributes:
        function: what becomes of a `Kernel`, or of a list of them.
        order: the order of axes that it expects.
        full_batch: whether it needs the covariance of different samples of one batch.
    """

    function: Callable = static()
    order: Order = static()
    full_batch: bool = static(default=False)

    def change(self, signals: Any, **settings: Any) -> Any:
        after = self.function(map_signals(lambda signal: Kernel.of(signal, self.order), signals), **settings)
        return map_signals(Kernel.native, after)


@dataclass_pytree
@dataclasses.dataclass(frozen=True, eq=False)
class AnalyticKernelFn(KernelFn):
    """The kernels of a network as in neural-tangents: a native `KernelFn` that also knows `Kernel` objects.

    Attributes:
        out: the order of axes of the outputs, where it differs from that of the inputs.
        joined: the axis along which `FanInConcat` joins branches.
        rank: how many axes the outputs have; None if as many as the inputs, 0 if that is not known.
        seams: where layers meet: in which order outputs are, in which the next layer takes them, and their rank.
        name: the name of the layer.

    Example:
        >>> import jax.numpy as jnp
        >>> import ntk_equiv.nt as nt
        >>> _, _, kernel_fn = nt.stax.Dense(8, b_std=2.0)
        >>> print(kernel_fn(jnp.array([[1.0, 3.0]]), None, ("ntk", "cov1")))
        Kernel(ntk=Array([[9.]], dtype=float64), cov1=Array([9.], dtype=float64))
    """

    out: Orders = dataclasses.field(default=ANY, metadata={"static": True})
    joined: int | None = static(default=None)
    rank: int | None = static(default=None)
    seams: tuple[Seam, ...] = static(default=())
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
            kwargs: those of `signal`, and `batch_axis` and `channel_axis`.
        """
        given = Order(kwargs.pop("batch_axis", None), kwargs.pop("channel_axis", None))
        if given != ANY:
            return dataclasses.replace(self, order=first_said(given, self.order))(x1, x2, get, **kwargs)
        order = self.order_after()
        check_seams(self.seams, _rank_of(x1))
        names = {"nngp", "ntk"} if get is None else {get.lower()} if isinstance(get, str) else set(map(str.lower, get))
        for name in names:
            one_of(name, tuple(FIELDS), "get")
        continued = any(map(_is_kernel, jax.tree.leaves(x1, is_leaf=_is_kernel)))
        x1 = map_signals(Kernel.native, x1) if continued else x1
        one_by_one = not continued and not is_several(x1) and isinstance(order, Order)
        if one_by_one and get is not None and names <= {"nngp", "ntk"} and not kwargs.get("diagonal_spatial"):
            return super().__call__(x1, x2, get, **{key: kwargs.get(key) for key in ("pattern", "mask_constant")})
        kernels = _in_order(self.signal(x1, x2, with_ntk="ntk" in names, **kwargs), order)
        return kernels if get is None else map_signals(lambda kernel: select(kernel, get), kernels)

    def order_after(self, order: Orders | None = None) -> Orders:
        """Return the order of axes of the outputs, from that of the inputs."""
        return first_said(self.out, self.order if order is None else order)


def _is_kernel(x: Any) -> bool:
    return isinstance(x, Kernel)


def _rank_of(x: Any) -> int:
    """Return how many axes samples have, 0 if they are not one array."""
    return len(x.shape1) if _is_kernel(x) else getattr(x, "ndim", 0)


def _in_order(signals: Any, order: Orders) -> Any:
    """Return signals as kernels that say where samples and channels are in the outputs."""
    if isinstance(order, Order):
        return map_signals(lambda signal: Kernel.of(signal, order), signals)
    return [_in_order(signal, own) for signal, own in zip(signals, order, strict=True)]
