"""Convolutions on grids of any rank.

    finite     y(s) = σ_w / √(C |F|) Σ_o x(s + o) W(o) + σ_b b
    infinite   𝒦'(s, s') = σ_w²/|F| Σ_o 𝒦(s + o, s' + o) + σ_b²,       Θ' likewise, plus 𝒦'

over the offsets o of a filter with |F| taps and C input channels, in NTK parameterization; `_dense` explains the other
one.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ntk_equiv._check import positive_integer, refusal
from ntk_equiv._convolution import convolve
from ntk_equiv._typing import Array, Scalar
from ntk_equiv.stax._dense import Parameterization, Trainable, check_weights, variance
from ntk_equiv.stax._network import Network, network
from ntk_equiv.stax._precision import in_precision, materialize
from ntk_equiv.stax._rule import NOTHING_BUT_SMOOTH, Certificate
from ntk_equiv.stax._state import Memo, Moments, PairState, Requirements, SampleState, frozen_pytree, static
from ntk_equiv.stax._windows import Window

EXACT = lax.Precision.HIGHEST


@frozen_pytree
class Convolution(Trainable):
    """The same affine map of every patch."""

    W_var: Scalar
    b_var: Scalar | None
    channels: int = static()
    window: Any = static()  # A `Window` or a `TransposedWindow`.
    parameterization: Parameterization = static()

    @property
    def certificate(self) -> Certificate:
        """Positions matter, so the kernel is not a function of the cosine."""
        return NOTHING_BUT_SMOOTH

    def describe_output(self, state: SampleState) -> SampleState:
        return dataclasses.replace(super().describe_output(state), grid=self.window.output(state.grid))

    def mask_after(self, mask: Array) -> Array:
        return self.window.mask_after(mask)

    def fan_in(self, state: SampleState) -> int:
        return super().fan_in(state) * math.prod(self.window.shape)

    def per_pair(self, state: PairState, left: Memo, right: Memo, wanted: Requirements) -> PairState:
        after = super().per_pair(state, left, right, wanted)
        # The next convolution reads every entry once for each tap.
        nngp, ntk = materialize((after.nngp, after.ntk), jnp.asarray(self.W_var))
        return dataclasses.replace(after, nngp=nngp, ntk=ntk)

    def mix_positions(self, k: Array, state: PairState, left: Memo, right: Memo) -> Array:
        return self.window.joint_sum(k, state.batch_axes, full=state.full) / math.prod(self.window.shape)


def Conv(
    out_chan: int,
    filter_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: str = "VALID",
    W_std: Scalar = 1.0,
    b_std: Scalar | None = None,
    dimension_numbers: tuple[str, str, str] | None = None,
    parameterization: str = "ntk",
    s: tuple[int, int] = (1, 1),
) -> Network:
    """Convolution over all spatial axes of inputs `[n, ..., channels]`.

    Args:
        out_chan: number of output channels of the finite network; see `Dense` for what depends on it.
        filter_shape: size of the filter along each spatial axis.
        strides: step of the filter along each spatial axis; 1 by default.
        padding: "VALID", "SAME" (zeros) or "CIRCULAR" (torus). For an even filter there is one more cell of padding
            after the grid than before it.
        W_std: standard deviation of the weights, before division by the square root of the fan-in.
        b_std: standard deviation of the biases; `None` for no bias.
        dimension_numbers: `None`, or the equivalent of samples first and channels last, such as
            `("NHWC", "HWIO", "NHWC")`.
        parameterization: "ntk" or "standard", as for `Dense`.
        s: factors by which widths are multiplied in standard parameterization, as for `Dense`.

    Example:
        >>> import jax.numpy as jnp
        >>> init_fn, apply_fn, kernel_fn = Conv(8, (3, 3), padding="SAME")
        >>> init_fn(jax.random.key(0), (-1, 5, 5, 2))[0]
        (-1, 5, 5, 8)
        >>> kernel_fn(jnp.ones((1, 2, 2, 1)), None, "nngp").shape
        (1, 1, 2, 2, 2, 2)
    """
    out_chan = positive_integer(out_chan, "out_chan")
    window = Window.of(filter_shape, strides, padding, "filter_shape")
    form = Parameterization.of(parameterization, s)
    outputs = form.outputs(out_chan)
    variances = variance(W_std, "W_std"), variance(b_std, "b_std")
    _check_dimension_numbers(dimension_numbers, len(window.shape))

    def init(key: jax.Array, input_shape: tuple[int, ...]) -> tuple:
        grid = window.output(tuple(input_shape[1:-1]))
        params = form.draw(key, (*window.shape, input_shape[-1], outputs), W_std, b_std)
        return (input_shape[0], *grid, outputs), params

    def apply(params: tuple, x: Array, **kwargs: Any) -> Array:
        W, b = check_weights(params, x)
        y = convolve(window.pad(x, 1), W, window.strides)
        return form.output(y, b, x.shape[-1] * math.prod(window.shape), W_std, b_std)

    return network(init, apply, Convolution(*variances, outputs, window, form))


@dataclass(frozen=True)
class TransposedWindow:
    """A filter that is put down once for each input position, in steps of the strides, on a larger grid."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    padding: str

    def places(self, axis: int, extent: int) -> np.ndarray:
        """Return T `[taps, output, input]` along one axis: 1 where that tap of the filter takes input to output."""
        size, stride = self.shape[axis], self.strides[axis]
        # The full result has one filter for each input. SAME is its middle part, CIRCULAR that wrapped around.
        length = max((extent - 1) * stride + size, extent * stride)
        outputs = length if self.padding == "VALID" else extent * stride
        if self.padding == "CIRCULAR":
            before = (length - outputs) // 2
        else:  # As `lax.conv_transpose` does.
            before = 0
            if self.padding == "SAME" and stride <= size - 1:
                before = size - 1 - -(-(size + stride - 2) // 2)
        T = np.zeros((size, outputs, extent))
        for tap in range(size):
            for i in range(extent):
                # Filters are not turned round: the last tap comes first.
                output = i * stride + (size - 1 - tap) - before
                if self.padding == "CIRCULAR":
                    T[tap, output % outputs, i] += 1
                elif 0 <= output < outputs:
                    T[tap, output, i] = 1
        return T

    def output(self, grid: tuple[int, ...]) -> tuple[int, ...]:
        """Return the grid of the output; refuse one with another number of axes."""
        Window(self.shape, self.strides, "SAME").pads(grid)
        return tuple(self.places(axis, extent).shape[1] for axis, extent in enumerate(grid))

    def mask_after(self, mask: Array) -> Array:
        """Return which positions are masked: those that a masked one contributes to, `[n, *grid]`."""
        touched = mask.astype(jnp.float32)
        for axis, extent in enumerate(mask.shape[1:]):
            T = jnp.asarray(self.places(axis, extent).sum(0), touched.dtype)
            touched = jnp.moveaxis(jnp.tensordot(touched, T, ((axis + 1,), (1,))), -1, axis + 1)
        return touched > 0

    def joint_sum(self, k: Array, first_axis: int, *, full: bool) -> Array:
        """Sum over taps of the filter, the same for both positions of a pair."""
        step = 2 if full else 1
        for axis in range(len(self.shape)):
            place = first_axis + step * axis
            T = jnp.asarray(self.places(axis, k.shape[place]), k.dtype)
            if full:
                k = jnp.moveaxis(k, (place, place + 1), (-2, -1))
                k = jnp.einsum("toi,...ij->...toj", T, k, precision=EXACT)
                k = jnp.einsum("...toj,tpj->...op", k, T, precision=EXACT)
                k = jnp.moveaxis(k, (-2, -1), (place, place + 1))
            else:
                k = jnp.moveaxis(jnp.tensordot(k, T.sum(0), ((place,), (1,)), precision=EXACT), -1, place)
        return k

    def convolve(self, x: Array, W: Array) -> Array:
        """Return the product of inputs `[n, *grid, channels]` and weights `[*shape, channels, out]`."""
        places = [self.places(axis, extent) for axis, extent in enumerate(x.shape[1:-1])]
        taps, inputs, outputs = "abcdefgh", "ijklmnop", "qrstuvwx"
        rank = len(places)
        terms = [f"{taps[i]}{outputs[i]}{inputs[i]}" for i in range(rank)]
        subscripts = f"y{inputs[:rank]}z,{','.join([taps[:rank] + 'zA', *terms])}->y{outputs[:rank]}A"
        tables = [jnp.asarray(T, x.dtype) for T in places]
        return jnp.einsum(subscripts, x, W, *tables, optimize=True)


@frozen_pytree
class LocalConvolution(Convolution):
    """An affine map of every patch, with weights of its own."""

    def requirements_for(self, wanted: Requirements) -> Requirements:
        return Requirements(False, Moments.VARIANCE if wanted.moments else Moments.NONE)

    def per_sample(self, state: SampleState, wanted: Requirements) -> tuple[SampleState, Memo]:
        return super().per_sample(state, dataclasses.replace(wanted, full_pairs=wanted.moments == Moments.COVARIANCE))

    def per_pair(self, state: PairState, left: Memo, right: Memo, wanted: Requirements) -> PairState:
        after = super().per_pair(state, left, right, wanted)
        if not wanted.full_pairs or not self.window.shape:
            return after
        # Outputs at different positions have different weights: they are independent.
        ntk = None if after.ntk is None else _on_diagonal(after.ntk, state.batch_axes)
        return dataclasses.replace(after, nngp=_on_diagonal(after.nngp, state.batch_axes), ntk=ntk, full=True)


def ConvTranspose(
    out_chan: int,
    filter_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: str = "VALID",
    W_std: Scalar = 1.0,
    b_std: Scalar | None = None,
    dimension_numbers: tuple[str, str, str] | None = None,
    parameterization: str = "ntk",
    s: tuple[int, int] = (1, 1),
) -> Network:
    """Transposed convolution, which makes grids larger: each input position puts down a filter.

    Arguments are those of `Conv`; strides are the steps from filter to filter on the larger grid. As in
    `lax.conv_transpose`, filters are not turned round.

    Example:
        >>> init_fn, _, kernel_fn = ConvTranspose(8, (2,), strides=(2,))
        >>> init_fn(jax.random.key(0), (-1, 3, 1))[0]
        (-1, 6, 8)
        >>> print(kernel_fn(jnp.array([[[2.0], [4.0]]]), None, "nngp")[0, 0])
        [[2. 0. 4. 0.]
         [0. 2. 0. 4.]
         [4. 0. 8. 0.]
         [0. 4. 0. 8.]]
    """
    out_chan = positive_integer(out_chan, "out_chan")
    checked = Window.of(filter_shape, strides, padding, "filter_shape")
    window = TransposedWindow(checked.shape, checked.strides, checked.padding)
    form = Parameterization.of(parameterization, s)
    outputs = form.outputs(out_chan)
    variances = variance(W_std, "W_std"), variance(b_std, "b_std")
    _check_dimension_numbers(dimension_numbers, len(window.shape))

    def init(key: jax.Array, input_shape: tuple[int, ...]) -> tuple:
        grid = window.output(tuple(input_shape[1:-1]))
        params = form.draw(key, (*window.shape, input_shape[-1], outputs), W_std, b_std)
        return (input_shape[0], *grid, outputs), params

    def apply(params: tuple, x: Array, **kwargs: Any) -> Array:
        W, b = check_weights(params, x)
        return form.output(window.convolve(x, W), b, x.shape[-1] * math.prod(window.shape), W_std, b_std)

    return network(init, apply, Convolution(*variances, outputs, window, form))


def ConvLocal(
    out_chan: int,
    filter_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: str = "VALID",
    W_std: Scalar = 1.0,
    b_std: Scalar | None = None,
    dimension_numbers: tuple[str, str, str] | None = None,
    parameterization: str = "ntk",
    s: tuple[int, int] = (1, 1),
) -> Network:
    """Convolution with weights and biases of its own at each position ("locally connected").

    Arguments are those of `Conv`. Outputs at different positions are independent: 𝒦'(s, s') and Θ'(s, s') vanish for
    s ≠ s', and are those of `Conv` for s = s'. Weights are `[*grid, channels · taps, out_chan]`, as in neural-tangents.

    Example:
        >>> _, _, kernel_fn = ConvLocal(8, (1,))
        >>> print(kernel_fn(jnp.array([[[1.0], [2.0]]]), None, "nngp")[0, 0])
        [[1. 0.]
         [0. 4.]]
    """
    out_chan = positive_integer(out_chan, "out_chan")
    window = Window.of(filter_shape, strides, padding, "filter_shape")
    form = Parameterization.of(parameterization, s)
    outputs = form.outputs(out_chan)
    variances = variance(W_std, "W_std"), variance(b_std, "b_std")
    _check_dimension_numbers(dimension_numbers, len(window.shape))
    axes = "DEFGHJKL"[: len(window.shape)]
    numbers = (f"N{axes}C", f"{axes}IO", f"N{axes}C")

    def init(key: jax.Array, input_shape: tuple[int, ...]) -> tuple:
        grid = window.output(tuple(input_shape[1:-1]))
        fan_in = input_shape[-1] * math.prod(window.shape)
        weight_key, bias_key = jax.random.split(key)
        W = jax.random.normal(weight_key, (*grid, fan_in, outputs))
        b = None if b_std is None else jax.random.normal(bias_key, (*grid, outputs))
        if form.standard:
            W = W_std / form.inputs(fan_in) ** 0.5 * W
            b = None if b is None or b_std is None else b_std * b
        return (input_shape[0], *grid, outputs), (W, b)

    def apply(params: tuple, x: Array, **kwargs: Any) -> Array:
        W, b = params
        padded = window.pad(x, 1)
        y = lax.conv_general_dilated_local(padded, W, window.strides, "VALID", window.shape, dimension_numbers=numbers)
        y = form.output(y, None, x.shape[-1] * math.prod(window.shape), W_std, b_std)
        if b is None:
            return y
        b = b.reshape((1, *y.shape[1:]))
        return y + b if form.standard else y + in_precision(b_std, b) * b

    return network(init, apply, LocalConvolution(*variances, outputs, window, form))


def _on_diagonal(k: Array, batch_axes: int) -> Array:
    """Return kernels of equal positions, `[..., h, w]`, as those of all pairs, with zeros for different ones."""
    grid = k.shape[batch_axes:]
    k = k.reshape(*k.shape[:batch_axes], *(size for extent in grid for size in (extent, 1)))
    for axis, extent in enumerate(grid):
        place = batch_axes + 2 * axis
        equal = jnp.eye(extent, dtype=bool)
        k = jnp.where(equal.reshape((1,) * place + equal.shape + (1,) * (k.ndim - place - 2)), k, 0)
    return k


def _check_dimension_numbers(dimension_numbers: tuple[str, str, str] | None, rank: int) -> None:
    if dimension_numbers is None:
        return
    lhs = dimension_numbers[0] if isinstance(dimension_numbers, tuple | list) and dimension_numbers else None
    axes = lhs[1:-1] if isinstance(lhs, str) else ""
    if len(axes) != rank or tuple(dimension_numbers) != (f"N{axes}C", f"{axes}IO", f"N{axes}C"):
        raise refusal(
            "dimension_numbers",
            expected='samples first and channels last, such as ("NHWC", "HWIO", "NHWC")',
            got=dimension_numbers,
            fix="Move the axes of the inputs with `jnp.moveaxis`, and leave this argument out.",
        )
