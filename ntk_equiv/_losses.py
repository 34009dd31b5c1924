"""Losses by name, for networks that are trained and for the theory of their training.

mse             ½ (f − y)²                          per entry of y
cross_entropy   −log softmax(f)_y, or −y·log softmax(f) for labels that are distributions        per sample
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

LossFn = Callable[[Any, Any], Any]
"""A function of outputs and labels that returns one loss per sample, or per entry of the labels."""


def mse(outputs: jax.Array, y: jax.Array) -> jax.Array:
    """Return half the square of every difference."""
    return jnp.square(outputs.reshape(y.shape) - y) / 2


def cross_entropy(outputs: jax.Array, y: jax.Array) -> jax.Array:
    """Return minus the logarithm of the probability of each label."""
    log_p = jax.nn.log_softmax(outputs, -1)
    if jnp.issubdtype(y.dtype, jnp.integer):
        return -jnp.take_along_axis(log_p, y[..., None], -1)[..., 0]
    return -jnp.sum(y * log_p, -1)


LOSSES: dict[str, LossFn] = {"mse": mse, "cross_entropy": cross_entropy}
