"""How the weights of a layer enter its output, and hence how fast they learn.

    "ntk"        y = σ_w / √N  x W + σ_b b,      W, b ~ N(0, 1)
    "standard"   y = 1 / √s    x W + b,          W ~ N(0, σ_w² s / N),   b ~ N(0, σ_b²)

for N inputs to each output. Both give outputs the same law, 𝒦' = σ_w² L𝒦 + σ_b², but gradients of other sizes:

    "ntk"        Θ' = σ_w² LΘ + σ_w² L𝒦 + σ_b²
    "standard"   Θ' = σ_w² LΘ + N / s L𝒦 + 1           (the last term with biases only)

In standard parameterization each layer thus has a learning rate of its own, in proportion to the width of its input. s
is a factor by which that width has been multiplied: kernels depend on N / s, so that widths may grow without end while
the kernels stay (Sohl-Dickstein et al., "On the infinite width limit of neural networks with a standard
parameterization", 2020).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from ntk_equiv._check import one_of, positive_integers, refusal
from ntk_equiv._typing import Array
from ntk_equiv.stax._state import in_precision


@dataclass(frozen=True)
class Parameterization:
    """One of the two, with the factors by which the widths of input and output are scaled."""

    standard: bool = False
    s: tuple[int, int] = (1, 1)

    @classmethod
    def of(cls, name: str, s: Sequence[int]) -> "Parameterization":
        """A checked parameterization."""
        standard = one_of(str(name).lower(), ("ntk", "standard"), "parameterization") == "standard"
        factors = positive_integers(s, "s", fix="Pass two factors, such as (1, 1).")
        if len(factors) != 2:
            raise refusal("s", expected="two factors, for input and output", got=s, fix="Pass for example (1, 1).")
        into, out = factors
        return cls(standard, (into, out) if standard else (1, 1))

    def outputs(self, width: int) -> int:
        """The number of outputs of the finite network."""
        return self.s[1] * width

    def inputs(self, fan_in: int) -> float:
        """N / s, what gradients of the weights are proportional to."""
        return fan_in / self.s[0]

    def draw(self, key: Array, shape: tuple[int, ...], W_std: Any, b_std: Any) -> tuple[Array, Array | None]:
        """Weights of `shape`, outputs last, and biases (none if `b_std` is `None`)."""
        weight_key, bias_key = jax.random.split(key)
        W = jax.random.normal(weight_key, shape)
        b = None if b_std is None else jax.random.normal(bias_key, shape[-1:])
        if not self.standard:
            return W, b
        return W_std / self.inputs(math.prod(shape[:-1])) ** 0.5 * W, None if b is None else b_std * b

    def output(self, product: Array, b: Array | None, fan_in: int, W_std: Any, b_std: Any) -> Array:
        """The output of a layer, from the product of inputs and weights."""
        y = product / self.s[0] ** 0.5 if self.standard else in_precision(W_std, product) / fan_in**0.5 * product
        if b is None:
            return y
        b = b.reshape((1,) * (y.ndim - 1) + y.shape[-1:])
        return y + b if self.standard else y + in_precision(b_std, b) * b


NTK = Parameterization()


def weights(params: Any, x: Array) -> tuple[Array, Array | None]:
    """Weights and biases of a layer, if they are those of one, made for inputs such as `x`."""
    if not isinstance(params, tuple | list) or len(params) != 2:
        fix = "Pass what `init_fn` of the same network returned as its second value, then the inputs."
        raise refusal("params", expected="weights and biases", got=type(params).__name__, fix=fix)
    W, b = params
    if x.ndim == 0 or x.shape[-1] != W.shape[-2]:
        fix = "The last axis counts the features, as in the shape that `init_fn` was given."
        raise refusal("x", expected=f"inputs of {W.shape[-2]} features", got=f"shape {x.shape}", fix=fix)
    # Others, neural-tangents among them, keep axes of length one in front.
    if b is not None and b.shape != (1,) * (b.ndim - 1) + W.shape[-1:]:
        fix = "Pass what `init_fn` of the same network returned as its second value, then the inputs."
        raise refusal("params", expected=f"biases of {W.shape[-1]} outputs", got=f"shape {b.shape}", fix=fix)
    return W, b
