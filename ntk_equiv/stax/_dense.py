"""Fully connected layers, and what all layers with weights have in common.

    finite     y = σ_w / √N x W + σ_b b,      W, b ~ N(0, 1),      N inputs to each output
    infinite   𝒦' = σ_w² L𝒦 + σ_b²,           Θ' = σ_w² LΘ + 𝒦'

For a fully connected layer L is the identity; on inputs with spatial axes the same weights act at every position.

**Parameterization.** The weights may enter in two ways, and learn at different rates:

    "ntk"        y = σ_w / √N  x W + σ_b b,      W, b ~ N(0, 1)
    "standard"   y = 1 / √s    x W + b,          W ~ N(0, σ_w² s / N),   b ~ N(0, σ_b²)

Both give outputs the same law, 𝒦' = σ_w² L𝒦 + σ_b², but gradients of different sizes:

    "ntk"        Θ' = σ_w² LΘ + σ_w² L𝒦 + σ_b²
    "standard"   Θ' = σ_w² LΘ + N / s L𝒦 + 1           (the last term with biases only)

So in standard parameterization each layer has a learning rate of its own, in proportion to the width of its input. s is
a factor by which that width has been multiplied. Kernels depend on N / s, so that widths may grow without end while the
kernels stay (Sohl-Dickstein et al., "On the infinite width limit of neural networks with a standard parameterization",
2020).

**Gaps.** A fully connected layer takes the gap g = 1 − 𝒦 / √(q q') of the cosine to

    g' = α α' g + ½ (α − α')² + ½ (β − β')²,      α² = σ_w² q / (σ_w² q + σ_b²) = 1 − β²

in which nothing cancels.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from ntk_equiv._check import one_of, positive_integer, positive_integers, refusal, scalar
from ntk_equiv._typing import Array, Scalar
from ntk_equiv.stax._network import Network, check_axes, network, with_channels_at
from ntk_equiv.stax._precision import in_precision, safe_sqrt
from ntk_equiv.stax._rule import EVERYTHING, Certificate, Linear
from ntk_equiv.stax._state import (
    Constant,
    Memo,
    Moments,
    PairState,
    Requirements,
    SampleState,
    frozen_pytree,
    static,
)


@dataclass(frozen=True)
class Parameterization:
    """How weights enter a layer, with the factors by which the widths of input and output are scaled."""

    standard: bool = False
    s: tuple[int, int] = (1, 1)

    @classmethod
    def of(cls, name: str, s: Sequence[int]) -> "Parameterization":
        """Return a checked parameterization."""
        standard = one_of(str(name).lower(), ("ntk", "standard"), "parameterization") == "standard"
        factors = positive_integers(s, "s", fix="Pass two factors, such as (1, 1).")
        if len(factors) != 2:
            raise refusal("s", expected="two factors, for input and output", got=s, fix="Pass for example (1, 1).")
        into, out = factors
        return cls(standard, (into, out) if standard else (1, 1))

    def outputs(self, width: int) -> int:
        """Return the number of outputs of the finite network."""
        return self.s[1] * width

    def inputs(self, fan_in: int) -> float:
        """Return N / s, to which gradients of the weights are proportional."""
        return fan_in / self.s[0]

    def draw(
        self, key: Array, shape: tuple[int, ...], W_std: Scalar, b_std: Scalar | None
    ) -> tuple[Array, Array | None]:
        """Return weights of `shape`, outputs last, and biases (`None` if `b_std` is `None`)."""
        weight_key, bias_key = jax.random.split(key)
        W = jax.random.normal(weight_key, shape)
        b = None if b_std is None else jax.random.normal(bias_key, shape[-1:])
        if not self.standard:
            return W, b
        return W_std / self.inputs(math.prod(shape[:-1])) ** 0.5 * W, None if b is None or b_std is None else b_std * b

    def output(self, product: Array, b: Array | None, fan_in: int, W_std: Scalar, b_std: Scalar | None) -> Array:
        """Return the output of a layer, from the product of inputs and weights."""
        y = product / self.s[0] ** 0.5 if self.standard else in_precision(W_std, product) / fan_in**0.5 * product
        if b is None:
            return y
        b = jnp.broadcast_to(b.reshape(-1), y.shape[-1:]).reshape((1,) * (y.ndim - 1) + y.shape[-1:])
        return y + b if self.standard else y + in_precision(b_std, b) * b


NTK = Parameterization()


def check_weights(params: Any, x: Array) -> tuple[Array, Array | None]:
    """Return weights and biases, if `params` are those of one layer with weights, made for inputs such as `x`."""
    if not isinstance(params, tuple | list) or len(params) != 2:
        fix = "Pass what `init_fn` of the same network returned as its second value, then the inputs."
        raise refusal("params", expected="weights and biases", got=type(params).__name__, fix=fix)
    W, b = params
    b = None if b is None else jnp.asarray(b)
    if x.ndim == 0 or x.shape[-1] != W.shape[-2]:
        fix = "The last axis counts the features, as in the shape that `init_fn` was given."
        raise refusal("x", expected=f"inputs of {W.shape[-2]} features", got=f"shape {x.shape}", fix=fix)
    # Other libraries, such as neural-tangents, keep axes of length one in front, or have one number for all outputs.
    if b is not None and b.ndim and b.shape != (1,) * (b.ndim - 1) + W.shape[-1:]:
        fix = "Pass what `init_fn` of the same network returned as its second value, then the inputs."
        raise refusal("params", expected=f"biases of {W.shape[-1]} outputs", got=f"shape {b.shape}", fix=fix)
    return W, b


def variance(std: Any, argument: str) -> Any:
    """Return the square of a standard deviation, if it is one real number (or `None`, for no bias)."""
    return None if std is None and argument == "b_std" else scalar(std, argument) ** 2


class Trainable(Linear):
    """A linear layer with Gaussian weights and biases.

    Subclasses have fields `W_var` and `b_var` (`None` without biases). These are variances, not standard deviations,
    because squares in float32 would be off by the same rounding error in every layer. `channels` is the width of the
    finite layer, and `parameterization` says how its weights enter.
    """

    W_var: Scalar
    b_var: Scalar | None
    channels: int
    parameterization: Parameterization = NTK

    def describe_output(self, state: SampleState) -> SampleState:
        return replace(state, gaussian=True, channels=self.channels, wide=True, fan_outs=0)

    def fan_in(self, state: SampleState) -> int:
        """Return how many inputs each output sums over."""
        return state.width()

    def remember(self, state: SampleState) -> Memo:
        return {"fan_in": Constant(self.fan_in(state))} if self.parameterization.standard else {}

    def per_pair(self, state: PairState, left: Memo, right: Memo, wanted: Requirements) -> PairState:
        after = super().per_pair(state, left, right, wanted)
        weight = jnp.asarray(self.W_var, after.nngp.dtype)
        nngp = weight * after.nngp
        if self.b_var is not None:
            nngp = nngp + jnp.asarray(self.b_var, nngp.dtype)
        if not after.with_ntk:
            return replace(after, nngp=nngp)
        own = nngp
        if self.parameterization.standard:
            own = self.parameterization.inputs(left["fan_in"].value) * after.nngp
            own = own if self.b_var is None else own + 1
        ntk = own if after.ntk is None else weight * after.ntk + own
        return replace(after, nngp=nngp, ntk=ntk)


@frozen_pytree
class Affine(Trainable):
    """The same affine map at every position."""

    W_var: Scalar
    b_var: Scalar | None
    channels: int = static()
    parameterization: Parameterization = static()

    @property
    def certificate(self) -> Certificate:
        """A rotation of the input is absorbed by the Gaussian weights."""
        return EVERYTHING

    def requirements_for(self, wanted: Requirements) -> Requirements:
        if not wanted.gap or self.b_var is None:
            return wanted
        return replace(wanted, moments=max(wanted.moments, Moments.VARIANCE))

    def per_sample(self, state: SampleState, wanted: Requirements) -> tuple[SampleState, Memo]:
        after, memo = super().per_sample(state, wanted)
        if after.cov is None or after.full:
            return after, memo
        weight = jnp.asarray(self.W_var, after.cov.dtype)
        root = None if state.root is None else safe_sqrt(weight) * state.root
        if self.b_var is None:
            return after.with_cov(after.cov, root=root), memo
        bias = jnp.asarray(self.b_var, after.cov.dtype)
        signal = weight * jnp.asarray(state.cov)
        # The rounding error of signal + bias, exactly (Knuth's two-sum): XLA does not simplify floating-point sums.
        added = after.cov - signal
        residue = (signal - (after.cov - added)) + (bias - added)
        carried = 0 if state.residue is None else weight * state.residue
        return after.with_cov(after.cov, residue=residue + carried, root=root), memo

    def remember(self, state: SampleState) -> Memo:
        memo = super().remember(state)
        if self.b_var is None or state.cov is None:
            return memo
        weight = jnp.asarray(self.W_var, state.cov.dtype)
        signal = weight * state.variance()
        # A signal that underflows or overflows still has a share: all of it, if the bias is zero.
        smallest, largest = float(jnp.finfo(signal.dtype).tiny), float(jnp.finfo(signal.dtype).max) / 4
        lost = (signal == 0) & (weight * state.std() > 0)
        signal = jnp.where(lost, smallest, jnp.where(signal > largest, largest, signal))
        bias = jnp.broadcast_to(jnp.asarray(self.b_var, signal.dtype), signal.shape)
        # Quotients before roots: at zero bias α is then exactly 1, and opposite samples stay exactly opposite.
        return memo | {"alpha": safe_sqrt(_share(signal, bias)), "beta": safe_sqrt(_share(bias, signal))}

    def per_pair(self, state: PairState, left: Memo, right: Memo, wanted: Requirements) -> PairState:
        gap = state.gap
        if gap is not None and self.b_var is not None:
            a, b = jax.tree.map(state.on_left, left), jax.tree.map(state.on_right, right)
            apart = jnp.square(a["alpha"] - b["alpha"]) + jnp.square(a["beta"] - b["beta"])
            gap = a["alpha"] * b["alpha"] * gap + apart / 2
        return replace(super().per_pair(state, left, right, wanted), gap=gap)


def Dense(
    out_dim: int,
    W_std: Scalar = 1.0,
    b_std: Scalar | None = None,
    batch_axis: int = 0,
    channel_axis: int = -1,
    parameterization: str = "ntk",
    s: tuple[int, int] = (1, 1),
) -> Network:
    """Fully connected layer, which acts on the last axis.

    Args:
        out_dim: number of outputs of the finite network. In NTK parameterization no kernel depends on it. In standard
            parameterization, a layer learns faster if the layer before it is wider.
        W_std: standard deviation of the weights, before division by the square root of the fan-in.
        b_std: standard deviation of the biases; `None` for no bias.
        batch_axis: 0, the only choice.
        channel_axis: the last axis, -1 or its number.
        parameterization: "ntk" (weights are standard normal and scaled in the layer) or "standard" (weights are drawn
            to scale, as in most other libraries). Both have the same 𝒦, and each has a Θ of its own.
        s: in standard parameterization, factors by which the widths of input and output are multiplied without a
            change of the kernels: the layer has s[1] · out_dim outputs, and expects s[0] times the inputs that count.
            They have no effect in NTK parameterization, where no kernel depends on widths.

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
        W, b = check_weights(params, x)
        return form.output(x @ W, b, x.shape[-1], W_std, b_std)

    return with_channels_at(channel_axis, network(init, apply, Affine(*variances, outputs, form)))


@jax.custom_jvp
def _share(part: Array, rest: Array) -> Array:
    """Return the quotient part / (part + rest), and 0 where both vanish."""
    return part / jnp.where(part + rest > 0, part + rest, 1)


@_share.defjvp
def _share_jvp(primals: tuple, tangents: tuple) -> tuple:
    # By hand, because the usual derivative divides by the square of the sum, which underflows in float32.
    (part, rest), (d_part, d_rest) = primals, tangents
    total = jnp.where(part + rest > 0, part + rest, 1)
    return _share(part, rest), (_share(rest, part) * d_part - _share(part, rest) * d_rest) / total
