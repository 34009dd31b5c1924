"""Fixed linear maps of the positions of a sample: choices of positions, constant factors, images of another size.

    finite     y(s) = Σ_u L(s, u) x(u)
    infinite   𝒦'(s, s') = Σ_uu' L(s, u) 𝒦(u, u') L(s', u'),        Θ' from Θ in the same way

L is the same for all samples and channels, and has no parameters. Where L only chooses positions, kernels of equal
positions are enough; otherwise those of all pairs are needed.

L may also act on the axis that counts samples, as if that were one more axis of positions. Such a layer mixes samples.
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
from ntk_equiv.stax._signal import BatchRule, Signal, through
from ntk_equiv.stax._state import (
    Memo,
    PairState,
    Requirements,
    SampleState,
    frozen_pytree,
    require_all_positions,
    static,
)

Indices = tuple[Any, ...]
"""Slices, integers, tuples of them, and perhaps one `...`."""


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

    def layer_over_samples(self, keeps_samples: bool = True, place: int = 0) -> Network:
        """Return the layer that treats the axis of samples as the first one of positions; see `CombinedSamples`."""

        def apply(x: Array) -> Array:
            return jnp.moveaxis(rule.of_all(jnp.moveaxis(x, -1, 0), 1), 0, -1)

        def shape_after(shape: tuple[int, ...]) -> tuple[int, ...]:
            known = (max(1, shape[0]), *shape[1:])  # The number of samples may be -1.
            return jax.eval_shape(apply, jax.ShapeDtypeStruct(known, jnp.float32)).shape

        rule = CombinedSamples(self, keeps_samples, place)
        return without_parameters(shape_after, apply, rule)


@frozen_pytree
class Choice(PositionMap):
    """Some positions, in a given order.

    Attributes:
        indices: one for each spatial axis, from the first on.
        channels: what is chosen of channels; kernels exist only for all of them.
    """

    indices: Indices = static()
    channels: Any = static()

    def move(self, x: Array) -> Array:
        indices, count = self.indices, sum(i is not Ellipsis for i in self.indices)
        if count == x.ndim + 1 and indices[-1] == slice(None):  # All channels, the axis after those of positions.
            indices, count = indices[:-1], x.ndim
        if count == x.ndim + 1:
            raise _chooses_channels(indices[-1])
        if count > x.ndim:
            got = f"{count} of them for {x.ndim} spatial axes"
            raise refusal("idx", expected="at most one index for each axis", got=got, fix="Leave out some.")
        return x[tuple(np.asarray(i) if isinstance(i, tuple) else i for i in indices)]

    def describe_output(self, state: SampleState) -> SampleState:
        if self.channels != slice(None):
            raise _chooses_channels(self.channels)
        return super().describe_output(state)

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
        shapes = (factor.shape, x.shape) if self.first else (x.shape, factor.shape)
        for axes in self.dimension_numbers:
            lengths = [
                [shape[axis] if axis < len(shape) else None for axis in own]
                for shape, own in zip(shapes, axes, strict=True)
            ]
            if lengths[0] != lengths[1]:
                got = f"lengths {lengths[0]} and {lengths[1]}"
                fix = "Axes are counted with that of samples, and channels stay."
                raise refusal("dimension_numbers", expected="pairs of axes of equal length", got=got, fix=fix)
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


@frozen_pytree
class ChosenSamples(BatchRule):
    """Some samples, in a given order, and some of their positions.

    Attributes:
        positions: the choice of positions.
        samples: the index of samples.
    """

    positions: Choice
    samples: Any = static()

    def change(self, signals: Signal, **settings: Any) -> Signal:
        if isinstance(self.samples, int):
            fix = "The finite network has it; its kernel would no longer be one of samples."
            raise refusal("idx", expected="one that keeps samples", got=self.samples, fix=fix, kind=NotImplementedError)
        rows = self.index_of_samples()
        chosen = signals.cut(rows, rows)
        return through(self.positions, chosen.as_one_batch() if signals.cov2 is None else chosen)

    def mask_after(self, mask: Array) -> Array:
        return self.positions.mask_after(mask[self.index_of_samples()])

    def index_of_samples(self) -> Any:
        """Return the index in the form that arrays take."""
        return np.asarray(self.samples) if isinstance(self.samples, tuple) else self.samples


@frozen_pytree
class CombinedSamples(BatchRule):
    """A linear map of samples and positions together.

    Attributes:
        combination: the map; the axis of samples is the first of its spatial axes.
        keeps_samples: whether there still is an axis of samples afterwards.
        place: where it is among those of the outputs.
    """

    combination: PositionMap
    keeps_samples: bool = static()
    place: int = static()

    @property
    def full_batch(self) -> bool:
        """Different samples are added up, unless each only gets a factor of its own."""
        return not (isinstance(self.combination, Product) and self.keeps_samples)

    def of_all(self, x: Array, leading: int) -> Array:
        """Return what becomes of signals `[n, *grid]`, samples first; the first `leading` axes count such signals."""
        moved = self.combination.move_each(x, leading)
        return jnp.moveaxis(moved, leading + self.place, leading) if self.keeps_samples else moved

    def change(self, signals: Signal, **settings: Any) -> Signal:
        if signals.diagonal_spatial:
            fix = "Leave it out where samples are combined."
            raise refusal("diagonal_spatial", expected="left out, or False", got="True", fix=fix)
        changes: dict[str, Any] = {name: self.of_pairs(getattr(signals, name)) for name in ("nngp", "ntk")}
        for side in ("1", "2"):
            cov, mask, shape = (getattr(signals, name + side) for name in ("cov", "mask", "shape"))
            changes["cov" + side] = self.of_samples(cov) if signals.diagonal_batch else self.of_pairs(cov)
            changes["mask" + side] = None if mask is None else self.mask_after(mask[..., 0])[..., None]
            after = jax.eval_shape(lambda x: self.of_all(x, 0), jax.ShapeDtypeStruct(shape[:-1], jnp.float32))
            changes["shape" + side] = (*after.shape, shape[-1])
        return signals.replace(**changes, is_input=False, has_samples=self.keeps_samples)

    def mask_after(self, mask: Array) -> Array:
        seen = self.combination.mask_after(mask[None])[0]
        return jnp.moveaxis(seen, self.place, 0) if self.keeps_samples else seen

    def of_pairs(self, k: Array | None) -> Array | None:
        """Return the kernels of all pairs, `[n1, n2, h, h', w, w']`, after the map."""
        if k is None:
            return None
        shapes, grids, matrix = (k.shape[::2], k.shape[1::2]), [], joint(k)
        for shape in reversed(shapes):  # Columns are moved, and exchanged with rows.
            moved = self.of_all(matrix.reshape(len(matrix), *shape), 1)
            grids.append(moved.shape[1:])
            matrix = moved.reshape(len(matrix), math.prod(moved.shape[1:])).T
        return apart(matrix, tuple(extent for pair in zip(*reversed(grids), strict=True) for extent in pair))

    def of_samples(self, k: Array | None) -> Array | None:
        """Return the kernels of each sample with itself, `[n, h, h', w, w']`."""
        if k is None:
            return None
        count = len(k)
        full: Any = jnp.zeros((count, *k.shape), k.dtype).at[jnp.arange(count), jnp.arange(count)].set(k)
        return jnp.moveaxis(jnp.diagonal(jnp.asarray(self.of_pairs(full))), -1, 0)


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
            integers (which remove an axis), tuples of integers, `...`. A choice of samples makes a layer that mixes
            samples. If it removes the axis of samples, or chooses channels, there is only the finite network.
        batch_axis: 0, the only choice.
        channel_axis: the last axis, -1 or its number.

    Raises:
        ValueError: the index has a form that is not listed.
        NotImplementedError: the kernel of an index that removes samples, or chooses channels.

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
    samples, choice = _check_index(idx)
    if samples == slice(None) and choice.channels == slice(None):
        return with_channels_at(channel_axis, choice.layer())
    parts = tuple(
        np.asarray(i) if isinstance(i, tuple | list) else i for i in (idx if isinstance(idx, tuple) else (idx,))
    )

    def shape_after(shape: tuple[int, ...]) -> tuple[int, ...]:
        known = (max(1, shape[0]), *shape[1:])  # The number of samples may be -1.
        return jax.eval_shape(lambda x: x[parts], jax.ShapeDtypeStruct(known, jnp.float32)).shape

    rule = choice if samples == slice(None) else ChosenSamples(choice, samples)
    return with_channels_at(channel_axis, without_parameters(shape_after, lambda x: x[parts], rule))


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
        dimension_numbers: `((lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch))`, axes of the two factors;
            none of the samples' may be that of channels. Positions of the result are in the order of `lax.dot_general`,
            behind samples and before channels. If the axis of samples is among the shared ones ("batch"), each
            sample has a factor of its own. If it is contracted, the result has none, and no layer may follow.
        precision: accepted, and without effect: products are as precise as the dtype allows.
        batch_axis: 0, the only choice.
        channel_axis: the last axis, -1 or its number.

    Raises:
        ValueError: both factors are given, or axes do not fit.

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
        layer = _product(factor, dimension_numbers, rhs is None)
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
        shape: one entry for each axis of the samples: the new size, or -1 for axes that stay, as channels must. Another
            number of samples makes a layer that mixes samples.
        method: "nearest", "linear", "cubic", "lanczos3" or "lanczos5"; kernels exist for all of them.
        antialias: whether a smaller image is smoothed first.
        precision: accepted, and without effect: sums are as precise as the dtype allows.
        batch_axis: 0, the only choice.
        channel_axis: the last axis, -1 or its number.

    Raises:
        ValueError: channels would be resized, or the method is unknown.

    Example:
        >>> _, apply_fn, kernel_fn = ImageResize((-1, 2, -1), "linear")
        >>> x = jnp.array([[[0.0], [2.0], [4.0], [6.0]]])
        >>> print(kernel_fn(x, None, "nngp")[0, 0].shape, apply_fn((), x).shape)
        (2, 2) (1, 2, 1)
    """
    check_axes(batch_axis, channel_axis)
    sizes = tuple(shape) if is_listed(shape) else ()
    whole = all(isinstance(size, int | np.integer) and (size == -1 or size > 0) for size in sizes)
    if len(sizes) < 2 or not whole or sizes[-1] != -1:
        fix = "Leave channels as they are: (-1, 8, 8, -1) makes images of 8 by 8 pixels."
        raise refusal("shape", expected="new sizes, and -1 for channels", got=repr(shape), fix=fix)
    try:
        kind = jax.image.ResizeMethod.from_string(method) if isinstance(method, str) else jax.image.ResizeMethod(method)
    except ValueError:
        fix = 'Take "linear" or "nearest".'
        raise refusal("method", expected="one that `jax.image.resize` knows", got=repr(method), fix=fix) from None
    sizes, smooth = tuple(int(size) for size in sizes[:-1]), boolean(antialias, "antialias")
    if sizes[0] != -1:
        return with_channels_at(channel_axis, Resize(sizes, kind, smooth).layer_over_samples())
    return with_channels_at(channel_axis, Resize(sizes[1:], kind, smooth).layer())


def permute_positions(order: Sequence[int]) -> Network:
    """Return a layer that puts spatial axes, counted from 0, in another order; it passes inputs that are in order."""
    if list(order) == sorted(order):
        return without_parameters(lambda shape: shape, lambda x: x, Unchanged())
    return Permutation(tuple(order)).layer()


def _check_index(idx: Any) -> tuple[Any, Choice]:
    """Return the index of samples, and the choice of positions and channels."""
    listed: list[Any] = []
    for part in idx if isinstance(idx, tuple) else (idx,):
        if isinstance(part, list | np.ndarray):
            part = tuple(np.asarray(part).tolist())
        whole = isinstance(part, int | np.integer) and not isinstance(part, bool)
        if not whole and part is not Ellipsis and not isinstance(part, slice | tuple):
            fix = "Choose positions: `stax.Slice[:, 0]` for the first, `stax.Slice[:, 1:3, ::2]` for a part of images."
            raise refusal("idx", expected="slices, integers or tuples of them", got=repr(idx), fix=fix)
        listed.append(int(part) if whole else part)
    if Ellipsis not in listed:
        return listed[0], Choice(tuple(listed[1:]), slice(None))
    place = listed.index(Ellipsis)
    before, after = listed[:place], listed[place + 1 :]
    samples, channels = (before or [slice(None)])[0], (after or [slice(None)])[-1]
    return samples, Choice((*before[1:], Ellipsis, *after[:-1]), channels)


def _chooses_channels(index: Any) -> Exception:
    fix = "Kernels are means over all channels, which only finite networks can choose from."
    return refusal("idx", expected="`:` for channels", got=repr(index), fix=fix, kind=NotImplementedError)


def _product(factor: Array, dimension_numbers: Any, first: bool) -> Network:
    """Return the product with a constant array, whose axes are counted with that of samples."""
    lists = [[tuple(axes) for axes in pair] for pair in dimension_numbers]
    own = 1 if first else 0  # Which entry of a pair belongs to the samples.
    contracted, shared = (pair[own] for pair in lists)
    if any(axis < 0 for axis in (*contracted, *shared)):
        fix = "Count axes from the front; channels cannot be contracted."
        raise refusal("dimension_numbers", expected="axes of samples, 0 or more", got=dimension_numbers, fix=fix)
    over_samples = 0 in contracted or 0 in shared
    for pair in lists if not over_samples else []:
        pair[own] = tuple(axis - 1 for axis in pair[own])
    product = Product(factor, tuple(map(tuple, lists)), first)
    if not over_samples:
        return product.layer()
    return product.layer_over_samples(0 in shared, shared.index(0) if 0 in shared else 0)
