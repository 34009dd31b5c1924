"""Architectures by name.

    mlp:relu:2        two hidden layers; images are flattened first
    cnn:relu:2        two 3 × 3 convolutions with padding "SAME", flattened, and a dense layer
    cnn:relu:2:gap    the same with an average over all positions instead of flattening

in the NTK parameterization: weights of standard deviation w_std/√(fan-in), biases of b_std, in every layer.
"""

from collections.abc import Callable
from typing import Any

from ntk_equiv import stax
from ntk_equiv._check import real_number, refusal

ACTIVATIONS: dict[str, Callable[[], stax.Network]] = {
    "relu": stax.Relu,
    "erf": stax.Erf,
    "gelu": stax.Gelu,
    "leaky": lambda: stax.LeakyRelu(0.01),
    "abs": stax.Abs,
    "sin": stax.Sin,
}
KINDS = ("mlp", "cnn")
POOLING = ("flat", "gap")


def named_network(name: str, shape: tuple[int, ...], /, *, w_std: Any = 2**0.5, b_std: Any = 0.1) -> stax.Network:
    """The network of this name, for samples of this shape.

    Args:
        name: mlp:ACTIVATION:LAYERS or cnn:ACTIVATION:LAYERS, the second with :gap for global average pooling.
        shape: that of one sample, without the axis of samples.
        w_std: standard deviation of the weights, before division by the square root of the fan-in.
        b_std: standard deviation of the biases.

    Raises:
        ValueError: no network has this name, or it does not fit the shape; the message lists what there is.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import planning
        >>> _, _, kernel_fn = planning.named_network("mlp:relu:1", (2,), b_std=0.0)
        >>> print(kernel_fn(jnp.array([[1.0, 0.0]]), None, "ntk"))
        [[2.]]
    """
    kind, activation, depth, pooling = _parsed(name)
    scale: dict = {"W_std": _spread(w_std, "w_std", zero=False), "b_std": _spread(b_std, "b_std", zero=True)}
    phi = ACTIVATIONS[activation]
    if kind == "mlp":
        hidden = [layer for _ in range(depth) for layer in (stax.Dense(1, **scale), phi())]
        return stax.serial(*([stax.Flatten()] if len(shape) > 1 else []), *hidden, stax.Dense(1, **scale))
    if len(shape) != 3:
        fix = "Convolutions are for images; take mlp for everything else."
        raise refusal("arch", expected=f"an mlp for samples of shape {shape}", got=repr(name), fix=fix)
    hidden = [layer for _ in range(depth) for layer in (stax.Conv(1, (3, 3), padding="SAME", **scale), phi())]
    head = stax.GlobalAvgPool() if pooling == "gap" else stax.Flatten()
    return stax.serial(*hidden, head, stax.Dense(1, **scale))


def _parsed(name: str) -> tuple[str, str, int, str]:
    kind, *rest = name.split(":")
    activation, depth, pooling, *more = [*rest, *("", "", "")[len(rest) :]]
    pooled = pooling == "" or (kind == "cnn" and pooling in POOLING)
    if (
        kind in KINDS
        and activation in ACTIVATIONS
        and depth.isdecimal()
        and 1 <= int(depth) <= 100
        and pooled
        and not more
    ):
        return kind, activation, int(depth), pooling or "flat"
    listed = f"{' or '.join(KINDS)}, then {', '.join(ACTIVATIONS)}, then the number of hidden layers"
    fix = "For example mlp:relu:2, cnn:erf:3, or cnn:relu:2:gap for global average pooling."
    raise refusal("arch", expected=f"of the form {listed}, joined by colons", got=repr(name), fix=fix)


def _spread(value: Any, argument: str, *, zero: bool) -> float:
    value = real_number(value, argument)
    if value < 0 or (value == 0 and not zero):
        expected = "zero or more" if zero else "positive"
        raise refusal(argument, expected=expected, got=value, fix="It is a standard deviation.")
    return value
