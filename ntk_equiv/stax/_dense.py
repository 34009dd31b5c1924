"""Fully connected layers, and the parameters every trainable layer has.

    finite     y = σ_w / √(fan-in) x W + σ_b b,      W, b ~ N(0, 1)
    infinite   𝒦' = σ_w² 𝒦 + σ_b²,                   Θ' = σ_w² Θ + 𝒦'

in NTK parameterization; `_parameterization` has the other. On inputs with spatial axes the same weights act at every
position. The gap g = 1 − 𝒦 / √(q q') of the cosine becomes

    g' = α α' g + ½ (α − α')² + ½ (β − β')²,      α² = σ_w² q / (σ_w² q + σ_b²) = 1 − β²

in which nothing cancels.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from ntk_equiv._check import positive_integer, scalar
from ntk_equiv._typing import Array, Scalar
from ntk_equiv.stax._axes import check_axes, with_channels_at
from ntk_equiv.stax._certificate import EVERYTHING, Certificate
from ntk_equiv.stax._network import Network, network
from ntk_equiv.stax._parameterization import Parameterization, weights
from ntk_equiv.stax._rule import Trace, Trainable, rule, static
from ntk_equiv.stax._state import VARIANCE, Need, Pairs, Points, safe_sqrt


@rule
class Affine(Trainable):
    """The same affine map at every position."""

    W_var: Any
    b_var: Any
    channels: int = static()
    parameterization: Parameterization = static()

    @property
    def certificate(self) -> Certificate:
        """A rotation of the input is absorbed by the Gaussian weights."""
        return EVERYTHING

    def need(self, need: Need) -> Need:
        return replace(need, points=max(need.points, VARIANCE)) if need.gap and self.b_var is not None else need

    def points(self, points: Points, need: Need) -> tuple[Points, Trace]:
        after, trace = super().points(points, need)
        if after.cov is None or after.full:
            return after, trace
        weight = jnp.asarray(self.W_var, after.cov.dtype)
        root = None if points.root is None else safe_sqrt(weight) * points.root
        if self.b_var is None:
            return after.with_cov(after.cov, root=root), trace
        bias = jnp.asarray(self.b_var, after.cov.dtype)
        signal = weight * jnp.asarray(points.cov)
        added = after.cov - signal
        residue = (signal - (after.cov - added)) + (bias - added)
        carried = 0 if points.residue is None else weight * points.residue
        return after.with_cov(after.cov, residue=residue + carried, root=root), trace

    def trace(self, points: Points) -> Trace:
        trace = super().trace(points)
        if self.b_var is None or points.cov is None:
            return trace
        weight = jnp.asarray(self.W_var, points.cov.dtype)
        signal = weight * points.variance()
        # What is too small or large for a number still has a share: all of it, if there is no bias.
        smallest, largest = float(jnp.finfo(signal.dtype).tiny), float(jnp.finfo(signal.dtype).max) / 4
        lost = (signal == 0) & (weight * points.deviation() > 0)
        signal = jnp.where(lost, smallest, jnp.where(signal > largest, largest, signal))
        bias = jnp.broadcast_to(jnp.asarray(self.b_var, signal.dtype), signal.shape)
        # Quotients before roots: without bias α is then exactly 1, and opposite samples stay exactly opposite.
        return trace | {"alpha": safe_sqrt(_share(signal, bias)), "beta": safe_sqrt(_share(bias, signal))}

    def pairs(self, pairs: Pairs, left: Trace, right: Trace, need: Need) -> Pairs:
        gap = pairs.gap
        if gap is not None and self.b_var is not None:
            a, b = jax.tree.map(pairs.on_left, left), jax.tree.map(pairs.on_right, right)
            apart = jnp.square(a["alpha"] - b["alpha"]) + jnp.square(a["beta"] - b["beta"])
            gap = a["alpha"] * b["alpha"] * gap + apart / 2
        return replace(super().pairs(pairs, left, right, need), gap=gap)


def Dense(
    out_dim: int,
    W_std: Scalar = 1.0,
    b_std: Scalar | None = None,
    batch_axis: int = 0,
    channel_axis: int = -1,
    parameterization: str = "ntk",
    s: tuple[int, int] = (1, 1),
) -> Network:
    """Fully connected layer, acting on the last axis.

    Args:
        out_dim: number of outputs of the finite network. In NTK parameterization no kernel depends on it; a layer in
            standard parameterization learns the faster, the wider the one before it.
        W_std: standard deviation of the weights, before division by the square root of the fan-in.
        b_std: standard deviation of the biases; `None` for no bias.
        batch_axis: 0, the only choice.
        channel_axis: that of the last axis, -1 or its number.
        parameterization: "ntk" (weights are standard normal and scaled in the layer) or "standard" (weights are drawn
            to scale, as in most other libraries). Both have the same 𝒦, and each a Θ of its own.
        s: in standard parameterization, factors by which the widths of input and output are multiplied without a
            change of the kernels: the layer has s[1] · out_dim outputs, and expects s[0] times the inputs that count.
            Without effect in NTK parameterization, where no kernel depends on widths.

    Example:
        >>> init_fn, apply_fn, kernel_fn = Dense(3, W_std=2.0, b_std=1.0)
        >>> output_shape, (W, b) = init_fn(jax.random.key(0), (-1, 2))
        >>> output_shape, W.shape, b.shape
        ((-1, 3), (2, 3), (3,))
        >>> print(*kernel_fn(jnp.ones((1, 2)), None, ("nngp", "ntk")))
        [[5.]] [[5.]]
        >>> standard = Dense(3, W_std=2.0, b_std=1.0, parameterization="standard")
        >>> print(*standard.kernel_fn(jnp.ones((1, 2)), None, ("nngp", "ntk")))
        [[5.]] [[3.]]
    """
    out_dim = positive_integer(out_dim, "out_dim")
    check_axes(batch_axis, channel_axis)
    form = Parameterization.of(parameterization, s)
    outputs = form.outputs(out_dim)
    variances = variance(W_std, "W_std"), variance(b_std, "b_std")

    def init(key: Array, input_shape: tuple[int, ...]) -> tuple:
        params = form.draw(key, (input_shape[-1], outputs), W_std, b_std)
        return (*input_shape[:-1], outputs), params

    def apply(params: tuple, x: Array, **kwargs: Any) -> Array:
        W, b = weights(params, x)
        return form.output(x @ W, b, x.shape[-1], W_std, b_std)

    return with_channels_at(channel_axis, network(init, apply, Affine(*variances, outputs, form)))


@jax.custom_jvp
def _share(part: Array, rest: Array) -> Array:
    """The quotient part / (part + rest), and 0 where both vanish."""
    return part / jnp.where(part + rest > 0, part + rest, 1)


@_share.defjvp
def _share_jvp(primals: tuple, tangents: tuple) -> tuple:
    # The square of the sum, by which a quotient is differentiated, is no number in single precision for small ones.
    (part, rest), (d_part, d_rest) = primals, tangents
    total = jnp.where(part + rest > 0, part + rest, 1)
    return _share(part, rest), (_share(rest, part) * d_part - _share(part, rest) * d_rest) / total


def variance(std: Any, argument: str) -> Any:
    """The square of a standard deviation, if that is one real number (or `None`, for no bias)."""
    return None if std is None and argument == "b_std" else scalar(std, argument) ** 2
