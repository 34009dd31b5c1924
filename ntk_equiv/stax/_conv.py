"""Convolutions on grids of any rank.

    finite     y(s) = σ_w / √(C |F|) Σ_o x(s + o) W(o) + σ_b b
    infinite   𝒦'(s, s') = σ_w²/|F| Σ_o 𝒦(s + o, s' + o) + σ_b²,       Θ' likewise, plus 𝒦'

over the offsets o of a filter with |F| taps and C input channels, in NTK parameterization; `_dense` explains the other
one.
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
from ntk_equiv.stax._dense import Parameterization, Trainable, check_weights, variance
from ntk_equiv.stax._network import Network, network
from ntk_equiv.stax._precision import materialize
from ntk_equiv.stax._rule import NOTHING_BUT_SMOOTH, Certificate
from ntk_equiv.stax._state import Memo, PairState, Requirements, SampleState, frozen_pytree, static
from ntk_equiv.stax._windows import Window


@frozen_pytree
class Convolution(Trainable):
    """The same affine map of every patch."""

    W_var: Scalar
    b_var: Scalar | None
    channels: int = static()
    window: Window = static()
    parameterization: Parameterization = static()

    @property
    def certificate(self) -> Certificate:
        """Positions matter, so the kernel is not a function of the cosine."""
        return NOTHING_BUT_SMOOTH

    def describe_output(self, state: SampleState) -> SampleState:
        return dataclasses.replace(super().describe_output(state), grid=self.window.output(state.grid))

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
