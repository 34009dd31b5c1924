"""Points and labels that callers pass in, checked against the actions before anything is made of them."""

from typing import Any

import jax
import jax.numpy as jnp

from ntk_equiv._check import arrays, real_array, refusal
from ntk_equiv.groups import FiniteGroup
from ntk_equiv.reps import Representation
from ntk_equiv.reps._given import actions_on_both


def fitting(x: Any, y: Any, rep_x: Representation, rep_y: Representation | None) -> tuple[Any, jax.Array, Any]:
    """Points and labels as arrays, and the action on y, after checking that they belong together."""
    x, y = arrays(x, "x"), jnp.asarray(real_array(y, "y"))
    rep_x, rep_y = actions_on_both(rep_x, rep_y)
    lengths = {leaf.shape[:1] for leaf in jax.tree.leaves(x)}
    if lengths != {y.shape[:1]} or not y.ndim:
        fix = "Their first axes count the samples."
        raise refusal("y", expected=f"labels for all samples of x {sorted(lengths)}", got=f"shape {y.shape}", fix=fix)
    some = 0 if isinstance(rep_x.group, FiniteGroup) else jnp.eye(rep_x.group.n)
    jax.eval_shape(lambda x: rep_x(some, x), x)
    try:
        jax.eval_shape(lambda y: rep_y(some, y), with_channels(y))
    except ValueError as error:
        fix = f"Give labels an axis of channels at the end, and choose the action that fits them. In detail: {error}"
        raise refusal("y", expected=f"labels that {rep_y} acts on", got=f"shape {y.shape}", fix=fix) from None
    return x, y, rep_y


def with_channels(y: jax.Array) -> jax.Array:
    """Labels [n] as labels of one channel."""
    return y[:, None] if y.ndim == 1 else y
