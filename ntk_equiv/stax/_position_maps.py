"""Fixed linear maps of the positions of a sample: choices of positions, constant factors, images of another size.

    finite     y(s) = Σ_u L(s, u) x(u)
    infinite   𝒦'(s, s') = Σ_uu' L(s, u) 𝒦(u, u') L(s', u'),        Θ' from Θ in the same way

L is the same for all samples and channels, and has no parameters. Where L only chooses positions, kernels of equal
positions are enough; otherwise those of all pairs are needed.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ntk_equiv._check import boolean, is_listed, real_array, refusal
from ntk_equiv._positions import apart, joint
from ntk_equiv._typing import Array
from ntk_equiv.stax._composition import Unchanged
from ntk_equiv.stax._network import Network, check_axes, with_channels_at, without_parameters
from ntk_equiv.stax._rule import EVERYTHING, Certificate, Linear
from ntk_equiv.stax._state import (
    Memo,
    PairState,
    Requirements,
    SampleState,
    frozen_pytree,
    require_all_positions,
    static,
)

Indices = tuple[slice | int | tuple[int, ...], ...]


class PositionMap(Linear):
    """A linear map of positions: subclasses define `move`."""

    def move(self, x: Array) -> Array:
        """Return what becomes of a signal on the grid, an array with spatial axes alone."""
        raise NotImplementedError

    def grid_after(self, grid: tuple[int, ...]) -> tuple[int, ...]:
        """Return the spatial axes of the output."""
        return jax.eval_shape(self.move, jax.ShapeDtypeStruct(grid, jnp.float32)).shape

    def requirements_for(self, wanted: Requirements) -> Requirements:
        return require_all_positions(wanted)

    def describe_output(self, state: SampleState) -> SampleState:
        return dataclasses.replace(state, grid=self.grid_after(state.grid))

    def mask_after(self, mask: Array) -> Array:
        """Return which positions are masked: those that nothing but masked ones contribute to."""
        seen = jax.vmap(self.move)((~mask).astype(jnp.float32))
        return seen == 0

    def is_full_after(self, state: PairState) -> bool:
        together = state.full or state.nngp.ndim == state.batch_axes
        return together and bool(self.grid_after(state.nngp.shape[state.batch_axes :: 2]))

    def mix_positions(self, k: Array, state: PairState, left: Memo, right: Memo) -> Array:
        if not state.full and k.ndim > state.batch_axes:
            return self.move_each(k, state.batch_axes)
        grid = k.shape[state.batch_axes :: 2]
        after = self.grid_after(grid)
        k = joint(k, leading=state.batch_axes)
        for _ in range(2):  # Columns are moved, and exchanged with rows.
            rows = k.reshape(*k.shape[:-1], *grid)
            moved = self.move_each(rows, state.batch_axes + 1)
            k = jnp.swapaxes(moved.reshape(*k.shape[:-1], math.prod(after)), -1, -2)
        return apart(k, tuple(extent for extent in after for _ in range(2)))

    def move_each(self, x: Array, leading: int) -> Array:
        """Return what becomes of many signals; the first `leading` axes count them."""
        flat = x.reshape(math.prod(x.shape[:leading]), *x.shape[leading:])
        moved = jax.vmap(self.move)(flat)
        return moved.reshape(*x.shape[:leading], *moved.shape[1:])

    def layer(self) -> Network:
        """Return the layer: the map of all channels of a sample."""

        def apply(x: Array) -> Array:
            channels_first = jnp.moveaxis(x, -1, 1)
            return jnp.moveaxis(self.move_each(channels_first, 2), 1, -1)

        return without_parameters(lambda s: (s[0], *self.grid_after(tuple(s[1:-1])), s[-1]), apply, self)


@frozen_pytree
class Choice(PositionMap):
    """Some positions, in a given order."""

    indices: Indices = static()

    def move(self, x: Array) -> Array:
        if len(self.indices) > x.ndim:
            got = f"{len(self.indices)} of them for {x.ndim} spatial axes"
            raise refusal("idx", expected="at most one index for each axis", got=got, fix="Leave out some.")
        return x[tuple(np.asarray(i) if isinstance(i, tuple) else i for i in self.indices)]

    def requirements_for(self, wanted: Requirements) -> Requirements:
        return dataclasses.replace(wanted, gap=False)

    def mask_after(self, mask: Array) -> Array:
        return jax.vmap(self.move)(mask)


@frozen_pytree
class Permutation(PositionMap):
    """The same positions with spatial axes in another order."""

    order: tuple[int, ...] = static()

    def move(self, x: Array) -> Array:
        return jnp.transpose(x, self.order)

    def requirements_for(self, wanted: Requirements) -> Requirements:
        return dataclasses.replace(wanted, gap=False)


@frozen_pytree
class Factor(Linear):
    """One number for all entries."""

    factor: Any

    @property
    def certificate(self) -> Certificate:
        """Kernels are multiplied by a square."""
        return EVERYTHING

    def mix_positions(self, k: Array, state: PairState, left: Memo, right: Memo) -> Array:
        return k * jnp.square(jnp.asarray(self.factor, k.dtype))


@frozen_pytree
class Product(PositionMap):
    """The product with a constant array, by `lax.dot_general`."""

    factor: Array
    dimension_numbers: Any = static()
    first: bool = static()

    def move(self, x: Array) -> Array:
        factor = self.factor.astype(x.dtype)
        pair = (factor, x) if self.first else (x, factor)
        return lax.dot_general(*pair, self.dimension_numbers, precision=lax.Precision.HIGHEST)

    def mask_after(self, mask: Array) -> Array:
        # Where contributions cancel there is still one.
        factor = (self.factor != 0).astype(self.factor.dtype)
        return PositionMap.mask_after(dataclasses.replace(self, factor=factor), mask)


@frozen_pytree
class Resize(PositionMap):
    """The same image with another number of pixels."""

    shape: tuple[int, ...] = static()
    method: Any = static()
    antialias: bool = static()

    def move(self, x: Array) -> Array:
        if len(self.shape) != x.ndim:
            got = f"{len(self.shape) + 2} entries for samples with {x.ndim} spatial axes"
            fix = "Give one size for each axis, -1 for those that stay: (-1, 8, 8, -1) for images."
            raise refusal("shape", expected=f"{x.ndim + 2} entries", got=got, fix=fix)
        target = tuple(old if new == -1 else new for old, new in zip(x.shape, self.shape, strict=True))
        return jax.image.resize(x, target, self.method, self.antialias)


class _Slice:
    """Makes indices out of brackets."""

    def __getitem__(self, idx: Any) -> Any:
        return idx


Slice = _Slice()
"""`Slice[:, 1:3]` is the index that an array would be given in brackets, for `Index`."""


def Index(idx: Any, batch_axis: int = 0, channel_axis: int = -1) -> Network:
    """Choose positions of each sample, as `x[idx]` does for an array.

    Args:
        idx: what would stand in brackets, such as `stax.Slice[:, 0]` for the first position of a sequence: slices,
            integers (which remove an axis), tuples of integers, `...`. Samples and channels must stay, as `:`.
        batch_axis: 0, the only choice.
        channel_axis: the last axis, -1 or its number.

    Raises:
        ValueError: the index chooses samples or channels, or has a form that is not listed.

    Example:
        >>> from ntk_equiv import stax
        >>> _, apply_fn, kernel_fn = Index(stax.Slice[:, ::2])
        >>> x = jnp.array([[[1.0], [2.0], [3.0]]])
        >>> print(apply_fn((), x)[0, :, 0])
        [1. 3.]
        >>> print(kernel_fn(x, None, "nngp")[0, 0])
        [[1. 3.]
         [3. 9.]]
    """
    check_axes(batch_axis, channel_axis)
    return with_channels_at(channel_axis, Choice(_check_index(idx)).layer())


def DotGeneral(
    *,
    lhs: Any = None,
    rhs: Any = None,
    dimension_numbers: Any = (((), ()), ((), ())),
    precision: Any = None,
    batch_axis: int = 0,
    channel_axis: int = -1,
) -> Network:
    """Multiply by a constant, a number or an array, as `lax.dot_general` does.

    Args:
        lhs: the first factor, if samples are the second one.
        rhs: the second factor, if samples are the first one. Without either nothing happens.
        dimension_numbers: `((lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch))`, axes of the two factors.
            Those of samples are spatial, and samples must stay first and channels last in the result.
        precision: accepted, and without effect: products are as precise as the dtype allows.
        batch_axis: 0, the only choice.
        channel_axis: the last axis, -1 or its number.

    Raises:
        ValueError: both factors are given, or the product would move samples or channels to other axes.

    Example:
        >>> difference = DotGeneral(rhs=jnp.array([1.0, -1.0]), dimension_numbers=(((1,), (0,)), ((), ())))
        >>> x = jnp.array([[[5.0], [2.0]]])
        >>> print(difference.apply_fn((), x), difference.kernel_fn(x, None, "nngp"))
        [[3.]] [[9.]]
        >>> print(DotGeneral(lhs=2.0).kernel_fn(x[:, 0], None, "nngp"))
        [[100.]]
    """
    check_axes(batch_axis, channel_axis)
    if lhs is not None and rhs is not None:
        fix = "The samples are the other factor: pass one of the two."
        raise refusal("lhs, rhs", expected="at most one of them", got="both", fix=fix)
    given = 1.0 if lhs is None and rhs is None else lhs if rhs is None else rhs
    factor = jnp.asarray(real_array(given, "lhs" if rhs is None else "rhs"))
    if factor.ndim == 0:
        rule = Factor(factor)
        scaled = lambda x: x * factor.astype(x.dtype)  # noqa: E731
        layer = without_parameters(lambda shape: shape, scaled, rule)
    else:
        layer = Product(factor, _spatial_dimensions(dimension_numbers, factor, rhs is None), rhs is None).layer()
    return with_channels_at(channel_axis, layer)


def ImageResize(
    shape: Sequence[int],
    method: Any,
    antialias: bool = True,
    precision: Any = lax.Precision.HIGHEST,
    batch_axis: int = 0,
    channel_axis: int = -1,
) -> Network:
    """Resize images, as `jax.image.resize` does.

    Args:
        shape: one entry for each axis of the samples: the new size, or -1 for axes that stay, as samples and channels
            must.
        method: "nearest", "linear", "cubic", "lanczos3" or "lanczos5"; kernels exist for all of them.
        antialias: whether a smaller image is smoothed first.
        precision: accepted, and without effect: sums are as precise as the dtype allows.
        batch_axis: 0, the only choice.
        channel_axis: the last axis, -1 or its number.

    Raises:
        ValueError: samples or channels would be resized, or the method is unknown.

    Example:
        >>> _, apply_fn, kernel_fn = ImageResize((-1, 2, -1), "linear")
        >>> x = jnp.array([[[0.0], [2.0], [4.0], [6.0]]])
        >>> print(kernel_fn(x, None, "nngp")[0, 0].shape, apply_fn((), x).shape)
        (2, 2) (1, 2, 1)
    """
    check_axes(batch_axis, channel_axis)
    sizes = tuple(shape) if is_listed(shape) else ()
    whole = all(isinstance(size, int | np.integer) and (size == -1 or size > 0) for size in sizes)
    if len(sizes) < 2 or not whole or sizes[0] != -1 or sizes[-1] != -1:
        fix = "Leave samples and channels as they are: (-1, 8, 8, -1) makes images of 8 by 8 pixels."
        raise refusal("shape", expected="new sizes, and -1 for samples and channels", got=repr(shape), fix=fix)
    try:
        kind = jax.image.ResizeMethod.from_string(method) if isinstance(method, str) else jax.image.ResizeMethod(method)
    except ValueError:
        fix = 'Take "linear" or "nearest".'
        raise refusal("method", expected="one that `jax.image.resize` knows", got=repr(method), fix=fix) from None
    layer = Resize(tuple(int(s) for s in sizes[1:-1]), kind, boolean(antialias, "antialias")).layer()
    return with_channels_at(channel_axis, layer)


def permute_positions(order: Sequence[int]) -> Network:
    """Return a layer that puts spatial axes, counted from 0, in another order; it passes inputs that are in order."""
    if list(order) == sorted(order):
        return without_parameters(lambda shape: shape, lambda x: x, Unchanged())
    return Permutation(tuple(order)).layer()


def _check_index(idx: Any) -> Indices:
    """Return the indices of spatial axes; refuse one that does not leave samples and channels alone."""
    parts = list(idx) if isinstance(idx, tuple) else [idx]
    fix = "Choose positions alone: `stax.Slice[:, 0]` for the first, `stax.Slice[:, 1:3, ::2]` for a part of images."
    if any(part is Ellipsis for part in parts):
        place = next(i for i, part in enumerate(parts) if part is Ellipsis)
        if any(part != slice(None) for part in parts[place + 1 :]):
            raise refusal("idx", expected="`...` at the end", got=repr(idx), fix=fix)
        parts = parts[:place] or [slice(None)]
    listed: list[Any] = []
    for part in parts:
        if isinstance(part, list | np.ndarray):
            part = tuple(np.asarray(part).tolist())
        whole = isinstance(part, int | np.integer) and not isinstance(part, bool)
        if not whole and not isinstance(part, slice | tuple):
            raise refusal("idx", expected="slices, integers or tuples of them", got=repr(idx), fix=fix)
        listed.append(int(part) if whole else part)
    if listed[0] != slice(None):
        raise refusal("idx", expected="all samples, `:`, along the first axis", got=repr(idx), fix=fix)
    return tuple(listed[1:])


def _spatial_dimensions(dimension_numbers: Any, factor: Array, first: bool) -> Any:
    """Return the axes of both factors, counted without samples and channels; refuse those that move these."""
    (contracting, batch) = dimension_numbers
    own = 1 if first else 0  # Which entry of a pair belongs to the samples.
    used = [axis for pair in (contracting, batch) for axis in pair[own]]
    free = factor.ndim - sum(len(pair[1 - own]) for pair in (contracting, batch))
    if any(axis < 1 for axis in used) or free or (len(batch[own]) > 0):
        raise refusal(
            "dimension_numbers",
            expected="contractions of spatial axes, with no other axes of the constant",
            got=dimension_numbers,
            fix="Samples must stay first and channels last: contract all axes of the constant with spatial ones.",
        )
    lists = [[tuple(axes) for axes in pair] for pair in (contracting, batch)]
    for pair in lists:
        pair[own] = tuple(axis - 1 for axis in pair[own])
    return tuple(tuple(pair) for pair in lists)
