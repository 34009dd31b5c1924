"""The gradient of a loss, which on CPUs takes most of a step.

A layer h W with few outputs has the gradient ∂L/∂W = hᵀ g, a tall matrix whose transpose is gᵀ h: the same numbers, but
XLA on CPUs is up to five times slower at products with few columns than at those with few rows. So tall matrices lie on
their side while the loss is differentiated. A transposition alone would be merged with the product again. The selection
between them prevents that, and is one we want: no parameters are made from a loss that is not a number.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def value_and_gradient(loss: Callable[[Any], jax.Array], params: Any) -> tuple[jax.Array, Any]:
    """A loss and its gradient, which is NaN throughout where the loss is not finite.

    >>> loss, gradient = value_and_gradient(lambda w: jnp.sum(w**3) / 3, jnp.array([[1.0], [2.0]]))
    >>> print(loss, gradient.ravel())
    3.0 [1. 4.]
    >>> print(value_and_gradient(lambda w: jnp.sum(w) / 0.0, jnp.ones(2))[1])
    [nan nan]
    """
    tall = jax.tree.map(_is_tall, params)

    def turned(tree: Any) -> Any:
        return jax.tree.map(lambda leaf, is_tall: leaf.T if is_tall else leaf, tree, tall)

    value, gradient = jax.value_and_grad(lambda on_side: loss(turned(on_side)))(turned(params))
    fine = jnp.isfinite(value)
    return value, turned(jax.tree.map(lambda leaf: jnp.where(fine, leaf, jnp.nan), gradient))


def _is_tall(leaf: jax.Array) -> bool:
    return jnp.ndim(leaf) == 2 and leaf.shape[0] > leaf.shape[1]
