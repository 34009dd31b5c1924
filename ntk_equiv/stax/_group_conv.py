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

and Θ' = σ_w² LΘ + 𝒦' with the same sums L, respectively Θ' from Θ alone for pooling. Turning o and k by g⁻¹ shows that
both sums depend on g and g' through m = g'g⁻¹ alone:

    T_m(s, s') = Σ_o,k 𝒦(s + o, k; s' + mo, mk),        𝒦'(s, g; s', g') = σ_w² / (|F| |G|) T_{g'g⁻¹}(s, s') + σ_b²

which is |G| sums over windows, of kernels whose second image is turned by m⁻¹, instead of |G|².
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ntk_equiv._check import positive_integer, refusal
from ntk_equiv._convolution import convolve
from ntk_equiv._typing import Array, Scalar
from ntk_equiv.stax._conv import Convolution
from ntk_equiv.stax._dense import variance
from ntk_equiv.stax._network import Network, network, without_parameters
from ntk_equiv.stax._parameterization import NTK, weights
from ntk_equiv.stax._rule import Linear, Trace, needs_all_positions, rule, static
from ntk_equiv.stax._square import ORDERS, SquareGroup
from ntk_equiv.stax._state import Need, Pairs, Points
from ntk_equiv.stax._window import Window


@rule
class GroupConvolution(Convolution):
    """The same affine map of every turned patch of an image (`lifts`), or of features on the group."""

    group: SquareGroup = static()
    lifts: bool = static()

    def output(self, points: Points) -> Points:
        grid = self.group.check_grid(points.grid, lifted=not self.lifts)
        self.group.check_coverage(self.window, grid)
        after = super().output(dataclasses.replace(points, grid=grid))
        return dataclasses.replace(after, grid=(*after.grid, self.group.order))

    def widening(self) -> int:
        return self.group.order if self.lifts else 1

    def spread(self, k: Array, pairs: Pairs, left: Trace, right: Trace) -> Array:
        order, first = self.group.order, pairs.batch_axes
        if not pairs.full:  # Σ_ok 𝒦(s + go, gk) is the same for all g.
            total = super().spread(k if self.lifts else jnp.mean(k, -1), pairs, left, right)
            return jnp.broadcast_to(total[..., None], (*total.shape, order))
        seconds = (first + 1, first + 3)
        turned = []
        for m in range(order):
            back = self.group.move(int(self.group.inverse[m]), self._shifted(k, m), seconds)
            turned.append(self.group.move(m, super().spread(back, pairs, left, right), seconds))
        return jnp.stack(turned, -1)[..., self.group.relative]

    def _shifted(self, k: Array, m: int) -> Array:
        """The mean over k of 𝒦(s, k; s', mk)."""
        if self.lifts:
            return k
        return jnp.mean(jnp.diagonal(k[..., self.group.table[m]], axis1=-2, axis2=-1), -1)


@rule
class GroupPooling(Linear):
    """The average over the group, at every position."""

    def need(self, need: Need) -> Need:
        return needs_all_positions(need)

    def output(self, points: Points) -> Points:
        return dataclasses.replace(points, grid=_pooled(points.grid))

    def spread(self, k: Array, pairs: Pairs, left: Trace, right: Trace) -> Array:
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

    The output `[n, h', h', |G|, out_chan]` has an axis for the orientation, in the order of the elements of
    `groups.cyclic(4)` or `groups.dihedral(4)`; its kernels are `[n1, n2, h, h', w, w', g, g']`. To all other layers
    that axis is one more of positions: activations and `Dense` act on each, `AvgPool((2, 2, 1), (2, 2, 1))` pools
    pixels, `GroupPool` orientations, `GlobalAvgPool` both.

    Args:
        out_chan: number of output channels of the finite network; the kernels do not depend on it.
        filter_shape: size of the filter, the same along both axes. That of the whole image makes it a dense layer.
        strides: step of the filter, the same along both axes; 1 by default.
        padding: "VALID", "SAME" (zeros) or "CIRCULAR" (torus), such that the filter covers the image symmetrically:
            it is odd if the image is padded, and stops exactly at the border.
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
    return _group_conv(out_chan, filter_shape, strides, padding, (W_std, b_std), SquareGroup.of(group), lifts=True)


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
        strides: step along these; 1 by default.
        padding: "VALID", "SAME" or "CIRCULAR", with a symmetric coverage as for `LiftingConv`.
        W_std: standard deviation of the weights, before division by the square root of the fan-in.
        b_std: standard deviation of the biases; `None` for no bias.
        group: "C4" or "D4", that of the features.

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
    return _group_conv(out_chan, filter_shape, strides, padding, (W_std, b_std), SquareGroup.of(group), lifts=False)


def GroupPool() -> Network:
    """Average over the group at every position: features `[n, h, h, |G|, channels]` to images `[n, h, h, channels]`.

    The images turn with the input. `GlobalAvgPool` averages over the group and over all positions, which is invariant.

    Example:
        >>> _, apply_fn, kernel_fn = GroupPool()
        >>> features = jnp.arange(4.0).reshape(1, 1, 1, 4, 1)
        >>> print(apply_fn((), features).item(), kernel_fn(features, None, "nngp").item())
        1.5 2.25
    """

    def pooled(x: Array) -> Array:
        _pooled(x.shape[1:-1])
        return jnp.mean(x, -2)

    return without_parameters(lambda s: (s[0], *_pooled(tuple(s[1:-1])), s[-1]), pooled, GroupPooling())


def _pooled(grid: tuple[int, ...]) -> tuple[int, ...]:
    """The positions that are left, if `grid` is that of features on a group."""
    if len(grid) != 3 or grid[0] != grid[1] or grid[2] not in ORDERS.values():
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
    group: SquareGroup,
    *,
    lifts: bool,
) -> Network:
    out_chan = positive_integer(out_chan, "out_chan")
    window = _square_window(filter_shape, strides, padding)
    W_std, b_std = stds
    variances = variance(W_std, "W_std"), variance(b_std, "b_std")
    convolution = GroupConvolution(*variances, out_chan, window, NTK, group, lifts)

    def init(key: jax.Array, input_shape: tuple[int, ...]) -> tuple:
        weight_key, bias_key = jax.random.split(key)
        grid = _output_grid(convolution, tuple(input_shape[1:-1]))
        W = jax.random.normal(weight_key, (*window.shape, *input_shape[3:], out_chan))
        b = None if b_std is None else jax.random.normal(bias_key, (out_chan,))
        return (input_shape[0], *grid, out_chan), (W, b)

    def apply(params: tuple, x: Array, **kwargs: Any) -> Array:
        W, b = weights(params, x)
        grid = _output_grid(convolution, x.shape[1:-1])
        fan_in = math.prod(W.shape[:-1])
        filters = _in_all_orientations(W, group).reshape(*window.shape, -1, group.order * out_chan)
        x = x.reshape(*x.shape[:3], math.prod(x.shape[3:]))
        y = convolve(window.padded(x, 1), filters, window.strides)
        return NTK.output(y.reshape(x.shape[0], *grid, out_chan), b, fan_in, W_std, b_std)

    return network(init, apply, convolution)


def _in_all_orientations(W: Array, group: SquareGroup) -> Array:
    """W(g⁻¹o), respectively W(g⁻¹o, g⁻¹k), for all g: the axis before the last."""
    turned = [group.move(g, W, (0, 1)) for g in range(group.order)]
    if W.ndim == 5:
        turned = [w[:, :, group.table[group.inverse[g]]] for g, w in enumerate(turned)]
    return jnp.stack(turned, -2)


def _output_grid(convolution: GroupConvolution, grid: tuple[int, ...]) -> tuple[int, ...]:
    return convolution.output(Points(None, None, None, grid=grid, full=False, gaussian=False)).grid


def _square_window(filter_shape: Sequence[int], strides: Sequence[int] | None, padding: str) -> Window:
    window = Window.of(filter_shape, strides, padding, "filter_shape")
    for argument, sizes in (("filter_shape", window.shape), ("strides", window.strides)):
        if len(sizes) != 2 or sizes[0] != sizes[1]:
            fix = "Quarter turns exchange the two axes."
            raise refusal(argument, expected="two equal numbers", got=sizes, fix=fix)
    return window
