"""Gradients of losses in parameters, on which members spend most of a step."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ntk_equiv.ensembles._products import with_fast_products


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
    value, gradient = with_fast_products(jax.value_and_grad(loss, has_aux=has_aux))(params)
    fine = jnp.isfinite(value[0] if has_aux else value)
    return value, jax.tree.map(lambda leaf: jnp.where(fine, leaf, jnp.nan), gradient)
