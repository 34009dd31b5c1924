"""Convolutions over quarter turns, flips and translations: from images to functions on the group, and on from there.

A feature map on the group G ⋉ Z², G = C4 or D4, has a value for each position s and element g of G, in arrays
`[n, h, w, |G|, channels]`. With go the offset o turned by g about the centre of the filter, |F| taps and C channels,

    lifting    y(s, g) = σ_w / √(C |F|)     Σ_o   x(s + go) W(o) + σ_b b
    group      y(s, g) = σ_w / √(C |F| |G|) Σ_o,k x(s + go, gk) W(o, k) + σ_b b
    pooling    y(s)    = 1 / |G| Σ_g x(s, g)

Turned images have turned features: if x becomes x(h⁻¹s), then y(s, g) becomes y(h⁻¹s, h⁻¹g). At infinite width

    lifting    𝒦'(s, g; s', g') = σ_w² / |F|       Σ_o   𝒦(s + go; s' + g'o) + σ_b²
    group      𝒦'(s, g; s', g') = σ_w² / (|F| |G|) Σ_o,k 𝒦(s + go, gk; s' + g'o, g'k) + σ_b²
    pooling    𝒦'(s, s') = 1 / |G|² Σ_gg' 𝒦(s, g; s', g')

and Θ' = σ_w² LΘ + 𝒦' with the same sums L; for pooling Θ' comes from Θ alone. Turning o and k by g⁻¹ shows that both
sums depend on g and g' only through m = g'g⁻¹:

    T_m(s, s') = Σ_o,k 𝒦(s + o, k; s' + mo, mk),        𝒦'(s, g; s', g') = σ_w² / (|F| |G|) T_{g'g⁻¹}(s, s') + σ_b²

These are |G| sums over windows, of kernels whose second image is turned by m⁻¹, instead of |G|² sums.

Elements are those of `groups.cyclic(4)` and `groups.dihedral(4)`: g = 0..3 turns an image counter-clockwise g times,
4 + k flips it left to right and then turns it k times. A layer respects them if its window is square and covers the
grid symmetrically: with as much padding before as after, and a last position that ends exactly where the grid does.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ntk_equiv import groups
from ntk_equiv._check import one_of, positive_integer, refusal
from ntk_equiv._convolution import convolve
from ntk_equiv._typing import Array, Scalar
from ntk_equiv.stax._conv import Convolution
from ntk_equiv.stax._dense import NTK, check_weights, variance
from ntk_equiv.stax._network import Network, network, without_parameters
from ntk_equiv.stax._rule import Linear
from ntk_equiv.stax._state import (
    Memo,
    PairState,
    Requirements,
    SampleState,
    frozen_pytree,
    require_all_positions,
    static,
)
from ntk_equiv.stax._windows import Window, channels_first_hint

GROUPS = {"C4": groups.cyclic(4), "D4": groups.dihedral(4)}


@frozen_pytree
class GroupConvolution(Convolution):
    """The same affine map of every turned patch of an image (`lifts`), or of features on the group."""

    name: str = static()
    lifts: bool = static()

    @property
    def group(self) -> groups.FiniteGroup:
        """The group of turns and flips."""
        return GROUPS[self.name]

    def mask_after(self, mask: Array) -> Array:
        raise refuse_mask(type(self).__name__)

    def output_grid(self, grid: tuple[int, ...]) -> tuple[int, ...]:
        """Return the positions of the output; refuse a grid or a window that does not respect the group."""
        pixels = _check_grid(self.name, grid, lifted=not self.lifts)
        _check_coverage(self.name, self.window, pixels)
        return (*self.window.output(pixels), self.group.order)

    def describe_output(self, state: SampleState) -> SampleState:
        grid = self.output_grid(state.grid)
        # The channels are those of any layer with weights, but the window sees pixels only.
        after = super().describe_output(dataclasses.replace(state, grid=state.grid[:2]))
        return dataclasses.replace(after, grid=grid)

    def widening(self) -> int:
        return self.group.order if self.lifts else 1

    def mix_positions(self, k: Array, state: PairState, left: Memo, right: Memo) -> Array:
        order, first = self.group.order, state.batch_axes
        if not state.full:  # Σ_ok 𝒦(s + go, gk; s + go, gk) is the same for all g.
            total = super().mix_positions(k if self.lifts else jnp.mean(k, -1), state, left, right)
            return jnp.broadcast_to(total[..., None], (*total.shape, order))
        seconds = (first + 1, first + 3)  # The axes h' and w' of [..., h, h', w, w'].
        turned = []
        for m in range(order):
            back = groups.move_square(int(self.group.inverse[m]), self._mean_over_group(k, m), seconds)
            turned.append(groups.move_square(m, super().mix_positions(back, state, left, right), seconds))
        relative = self.group.table[:, self.group.inverse].T  # g'g⁻¹ for all pairs (g, g').
        return jnp.stack(turned, -1)[..., relative]

    def _mean_over_group(self, k: Array, m: int) -> Array:
        """Return the mean over elements k of 𝒦(s, k; s', mk)."""
        if self.lifts:
            return k
        return jnp.mean(jnp.diagonal(k[..., self.group.table[m]], axis1=-2, axis2=-1), -1)


@frozen_pytree
class GroupPooling(Linear):
    """The average over the group, at every position."""

    def requirements_for(self, wanted: Requirements) -> Requirements:
        return require_all_positions(wanted)

    def describe_output(self, state: SampleState) -> SampleState:
        return dataclasses.replace(state, grid=_check_lifted(state.grid))

    def mask_after(self, mask: Array) -> Array:
        raise refuse_mask(type(self).__name__)

    def mix_positions(self, k: Array, state: PairState, left: Memo, right: Memo) -> Array:
        return jnp.mean(k, (-2, -1))


def LiftingConv(
    out_chan: int,
    filter_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: str = "VALID",
    W_std: Scalar = 1.0,
    b_std: Scalar | None = None,
    *,
    group: str,
) -> Network:
    """Convolution of square images `[n, h, h, channels]` with a filter in all orientations.

    The output `[n, h', h', |G|, out_chan]` has an axis of orientations, in the order of the elements of
    `groups.cyclic(4)` or `groups.dihedral(4)`; its kernels are `[n1, n2, h, h', w, w', g, g']`. All other layers take
    that axis for one more of positions: activations and `Dense` act on each orientation, `GroupPool` pools
    orientations, `AvgPool((2, 2, 1), (2, 2, 1))` pools pixels, `GlobalAvgPool` pools both.

    Args:
        out_chan: number of output channels of the finite network; the kernels do not depend on it.
        filter_shape: size of the filter, the same along both axes. A filter of the size of the image makes this a dense
            layer.
        strides: step of the filter, the same along both axes; 1 by default.
        padding: "VALID", "SAME" (zeros) or "CIRCULAR" (torus), such that the filter covers the image symmetrically:
            its size is odd if the image is padded, and its last step ends exactly at the border.
        W_std: standard deviation of the weights, before division by the square root of the fan-in.
        b_std: standard deviation of the biases; `None` for no bias.
        group: "C4", the quarter turns, or "D4", with flips.

    Example:
        >>> from ntk_equiv import stax
        >>> init_fn, apply_fn, kernel_fn = stax.serial(LiftingConv(8, (3, 3), group="C4"), stax.Relu(), GroupPool())
        >>> output_shape, params = init_fn(jax.random.key(0), (-1, 5, 5, 2))
        >>> output_shape
        (-1, 3, 3, 8)
        >>> x = jax.random.normal(jax.random.key(1), (1, 5, 5, 2))
        >>> turned = apply_fn(params, jnp.rot90(x, 1, (1, 2)))
        >>> bool(jnp.allclose(turned, jnp.rot90(apply_fn(params, x), 1, (1, 2)), atol=1e-5))
        True
    """
    return _group_conv(out_chan, filter_shape, strides, padding, (W_std, b_std), group, lifts=True)


def GroupConv(
    out_chan: int,
    filter_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: str = "VALID",
    W_std: Scalar = 1.0,
    b_std: Scalar | None = None,
    *,
    group: str,
) -> Network:
    """Convolution over turns, flips and translations of features `[n, h, h, |G|, channels]` from `LiftingConv`.

    Args:
        out_chan: number of output channels of the finite network; the kernels do not depend on it.
        filter_shape: size of the filter along the axes of pixels; it spans the whole group.
        strides: step of the filter along these; 1 by default.
        padding: "VALID", "SAME" or "CIRCULAR", with a symmetric coverage as for `LiftingConv`.
        W_std: standard deviation of the weights, before division by the square root of the fan-in.
        b_std: standard deviation of the biases; `None` for no bias.
        group: "C4" or "D4", the group of the features.

    Example:
        >>> init_fn, _, kernel_fn = GroupConv(8, (1, 1), group="C4")
        >>> output_shape, (W, b) = init_fn(jax.random.key(0), (-1, 3, 3, 4, 2))
        >>> output_shape, W.shape
        ((-1, 3, 3, 4, 8), (1, 1, 4, 2, 8))
        >>> features = jnp.arange(4.0).reshape(1, 1, 1, 4, 1)
        >>> print(kernel_fn(features, None, "nngp").reshape(4, 4))
        [[3.5 2.  1.5 2. ]
         [2.  3.5 2.  1.5]
         [1.5 2.  3.5 2. ]
         [2.  1.5 2.  3.5]]
    """
    return _group_conv(out_chan, filter_shape, strides, padding, (W_std, b_std), group, lifts=False)


def GroupPool() -> Network:
    """Average over the group at every position: features `[n, h, h, |G|, channels]` to images `[n, h, h, channels]`.

    These images turn with the input. `GlobalAvgPool` averages over the group and all positions, which is invariant.

    Example:
        >>> _, apply_fn, kernel_fn = GroupPool()
        >>> features = jnp.arange(4.0).reshape(1, 1, 1, 4, 1)
        >>> print(apply_fn((), features).item(), kernel_fn(features, None, "nngp").item())
        1.5 2.25
    """

    def average(x: Array) -> Array:
        _check_lifted(x.shape[1:-1])
        return jnp.mean(x, -2)

    return without_parameters(lambda s: (s[0], *_check_lifted(tuple(s[1:-1])), s[-1]), average, GroupPooling())


def refuse_mask(name: str) -> Exception:
    """Return the refusal of masked samples."""
    fix = "Pass samples without masked entries: a mask would have to move with the group."
    return refusal("x", expected=f"without a mask before {name}", got="a MaskedArray", fix=fix)


def _check_lifted(grid: tuple[int, ...]) -> tuple[int, ...]:
    """Return the grid of pixels, if `grid` is that of features on a group."""
    if len(grid) != 3 or grid[0] != grid[1] or grid[2] not in [group.order for group in GROUPS.values()]:
        expected = "[n, h, h, 4 or 8, channels], features on C4 or D4"
        fix = "Put `LiftingConv` before it; elsewhere average with `GlobalAvgPool` or `AvgPool`."
        raise refusal("x", expected=expected, got=f"positions {grid}", fix=fix)
    return grid[:2]


def _group_conv(
    out_chan: int,
    filter_shape: Sequence[int],
    strides: Sequence[int] | None,
    padding: str,
    stds: tuple[Scalar, Scalar | None],
    name: str,
    *,
    lifts: bool,
) -> Network:
    group = GROUPS[one_of(name, tuple(GROUPS), "group")]
    out_chan = positive_integer(out_chan, "out_chan")
    window = _square_window(filter_shape, strides, padding)
    W_std, b_std = stds
    variances = variance(W_std, "W_std"), variance(b_std, "b_std")
    convolution = GroupConvolution(*variances, out_chan, window, NTK, name, lifts)

    def init(key: jax.Array, input_shape: tuple[int, ...]) -> tuple:
        grid = convolution.output_grid(tuple(input_shape[1:-1]))
        params = NTK.draw(key, (*window.shape, *input_shape[3:], out_chan), W_std, b_std)
        return (input_shape[0], *grid, out_chan), params

    def apply(params: tuple, x: Array, **kwargs: Any) -> Array:
        W, b = check_weights(params, x)
        grid = convolution.output_grid(x.shape[1:-1])
        fan_in = math.prod(W.shape[:-1])
        filters = _turn_filters(W, group).reshape(*window.shape, -1, group.order * out_chan)
        x = x.reshape(*x.shape[:3], math.prod(x.shape[3:]))
        y = convolve(window.pad(x, 1), filters, window.strides)
        return NTK.output(y.reshape(x.shape[0], *grid, out_chan), b, fan_in, W_std, b_std)

    return network(init, apply, convolution)


def _turn_filters(W: Array, group: groups.FiniteGroup) -> Array:
    """Return W(g⁻¹o), on the group W(g⁻¹o, g⁻¹k), for all g along the axis before the last."""
    turned = [groups.move_square(g, W, (0, 1)) for g in range(group.order)]
    if W.ndim == 5:  # Filters on the group have an axis of elements.
        turned = [w[:, :, group.table[group.inverse[g]]] for g, w in enumerate(turned)]
    return jnp.stack(turned, -2)


def _check_grid(name: str, grid: tuple[int, ...], *, lifted: bool) -> tuple[int, int]:
    """Return the grid of pixels, if it is square, and if `lifted` followed by the axis of the group."""
    order = GROUPS[name].order
    if len(grid) != 2 + lifted or grid[0] != grid[1] or (lifted and grid[2] != order):
        axes = f"[n, h, h, {order}, channels], features on the group {name}" if lifted else None
        fix = "Put `LiftingConv` before it." if lifted else "Pad or crop the images; on features use `GroupConv`."
        fix += channels_first_hint(grid)
        raise refusal("x", expected=axes or "[n, h, h, channels], square images", got=f"positions {grid}", fix=fix)
    return grid[0], grid[1]


def _check_coverage(name: str, window: Window, grid: tuple[int, int]) -> None:
    """Refuse a window that does not cover `grid` symmetrically: the layer would not be equivariant."""
    (before, after), _ = window.pads(grid)
    left_over = (grid[0] + before + after - window.shape[0]) % window.strides[0]
    if before != after or left_over:
        got = f"{before} cells of padding before, {after} after, and {left_over} left over on a grid {grid}"
        fix = 'Use an odd filter for "SAME" and "CIRCULAR", and a stride that divides the way of the filter.'
        raise refusal("padding, strides", expected=f"such that {name} is respected", got=got, fix=fix)


def _square_window(filter_shape: Sequence[int], strides: Sequence[int] | None, padding: str) -> Window:
    window = Window.of(filter_shape, strides, padding, "filter_shape")
    for argument, sizes in (("filter_shape", window.shape), ("strides", window.strides)):
        if len(sizes) != 2 or sizes[0] != sizes[1]:
            fix = "Quarter turns exchange the two axes."
            raise refusal(argument, expected="two equal numbers", got=sizes, fix=fix)
    return window
