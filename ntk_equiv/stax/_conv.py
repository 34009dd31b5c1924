"""Convolutions on grids of any rank.

    finite     y(s) = σ_w / √(C |F|) Σ_o x(s + o) W(o) + σ_b b
    infinite   𝒦'(s, s') = σ_w²/|F| Σ_o 𝒦(s + o, s' + o) + σ_b²,       Θ' likewise, plus 𝒦'

over the offsets o of a filter with |F| taps and C input channels, in NTK parameterization; `_parameterization` has the
other.
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
from ntk_equiv.stax._certificate import NOTHING_BUT_SMOOTH, Certificate
from ntk_equiv.stax._dense import variance
from ntk_equiv.stax._network import Network, network
from ntk_equiv.stax._parameterization import Parameterization, weights
from ntk_equiv.stax._rule import Trace, Trainable, rule, static
from ntk_equiv.stax._state import Need, Pairs, Points, materialize
from ntk_equiv.stax._window import Window


@rule
class Convolution(Trainable):
    """The same affine map of every patch."""

    W_var: Any
    b_var: Any
    channels: int = static()
    window: Window = static()
    parameterization: Parameterization = static()

    @property
    def certificate(self) -> Certificate:
        """Positions matter, so the kernel is no function of the cosine."""
        return NOTHING_BUT_SMOOTH

    def output(self, points: Points) -> Points:
        return dataclasses.replace(super().output(points), grid=self.window.output(points.grid))

    def fan_in(self, points: Points) -> int:
        return super().fan_in(points) * math.prod(self.window.shape)

    def pairs(self, pairs: Pairs, left: Trace, right: Trace, need: Need) -> Pairs:
        after = super().pairs(pairs, left, right, need)
        nngp, ntk = materialize((after.nngp, after.ntk), jnp.asarray(self.W_var))
        return dataclasses.replace(after, nngp=nngp, ntk=ntk)

    def spread(self, k: Array, pairs: Pairs, left: Trace, right: Trace) -> Array:
        return self.window.joint_sum(k, pairs.batch_axes, full=pairs.full) / math.prod(self.window.shape)


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
        padding: "VALID", "SAME" (zeros) or "CIRCULAR" (torus). An even filter pads one cell more behind than before.
        W_std: standard deviation of the weights, before division by the square root of the fan-in.
        b_std: standard deviation of the biases; `None` for no bias.
        dimension_numbers: `None`, or the equivalent of samples first and channels last, such as
            `("NHWC", "HWIO", "NHWC")`.
        parameterization: "ntk" or "standard", as for `Dense`.
        s: factors of width in standard parameterization, as for `Dense`.

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
        W, b = weights(params, x)
        y = convolve(window.padded(x, 1), W, window.strides)
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
