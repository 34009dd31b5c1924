"""Gradients of losses in parameters, on which members spend most of a step.

A layer h W with few outputs has the gradient ∂L/∂W = hᵀ g, a tall matrix whose transpose is gᵀ h: the same numbers, but
XLA on CPUs is up to five times slower at products with few columns than at those with few rows. So tall matrices are
transposed while the loss is differentiated. XLA would merge a transposition alone with the product again. A selection
between the two prevents that, and it is one that we want: where the loss is not a finite number, the gradient is NaN.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def value_and_gradient(loss: Callable[[Any], Any], params: Any, *, has_aux: bool = False) -> tuple[Any, Any]:
    """Return a loss and its gradient, which is NaN throughout if the loss is not finite.

    With `has_aux` the function returns a pair of the loss and something else, and so does this one in place of the
    loss, as `jax.value_and_grad` does.

    >>> loss, gradient = value_and_gradient(lambda w: jnp.sum(w**3) / 3, jnp.array([[1.0], [2.0]]))
    >>> print(loss, gradient.ravel())
    3.0 [1. 4.]
    >>> print(value_and_gradient(lambda w: jnp.sum(w) / 0.0, jnp.ones(2))[1])
    [nan nan]
    """
    tall = jax.tree.map(_is_tall, params)

    def transpose_tall(tree: Any) -> Any:
        return jax.tree.map(lambda leaf, is_tall: leaf.T if is_tall else leaf, tree, tall)

    differentiate = jax.value_and_grad(lambda transposed: loss(transpose_tall(transposed)), has_aux=has_aux)
    value, gradient = differentiate(transpose_tall(params))
    fine = jnp.isfinite(value[0] if has_aux else value)
    return value, transpose_tall(jax.tree.map(lambda leaf: jnp.where(fine, leaf, jnp.nan), gradient))


def _is_tall(leaf: jax.Array) -> bool:
    return jnp.ndim(leaf) == 2 and leaf.shape[0] > leaf.shape[1]
