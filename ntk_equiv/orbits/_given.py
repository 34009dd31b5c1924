"""Points and labels that callers pass in, checked against the actions before anything is made of them."""

from typing import Any

import jax
import jax.numpy as jnp

from ntk_equiv._check import arrays, real_array, refusal
from ntk_equiv.groups import FiniteGroup
from ntk_equiv.reps import Representation, check_actions


def fitting(x: Any, y: Any, rep_x: Representation, rep_y: Representation | None) -> tuple[Any, jax.Array, Any]:
    """Points and labels as arrays, and the action on y, after checking that they belong together."""
    x, y = points_and_labels(x, y)
    rep_x, rep_y = check_actions(rep_x, rep_y)
    some = 0 if isinstance(rep_x.group, FiniteGroup) else jnp.eye(rep_x.group.n)
    jax.eval_shape(lambda x: rep_x(some, x), x)
    try:
        jax.eval_shape(lambda y: rep_y(some, y), with_channel_axis(y))
    except ValueError as error:
        fix = f"Give labels an axis of channels at the end, and choose the action that fits them. In detail: {error}"
        raise refusal("y", expected=f"labels that {rep_y} acts on", got=f"shape {y.shape}", fix=fix) from None
    return x, y, rep_y


def samples_and_labels(train: Any) -> tuple[Any, jax.Array]:
    """Points and labels of data that are not augmented, after checking that they are a pair."""
    if not isinstance(train, tuple | list) or len(train) != 2:
        fix = "Pass `augment(x, y, rep_x)`, or the pair `(x, y)`."
        expected = "an augmented set or a pair of points and labels"
        raise refusal("train", expected=expected, got=type(train).__name__, fix=fix)
    return points_and_labels(*train)


def points_and_labels(x: Any, y: Any) -> tuple[Any, jax.Array]:
    """Both as arrays, after checking that every point has a label."""
    given, x, y = x, arrays(x, "x"), jnp.asarray(real_array(y, "y"))
    lengths = {leaf.shape[:1] for leaf in jax.tree.leaves(x)}
    if lengths != {y.shape[:1]} or not y.ndim:
        listed = isinstance(given, list | tuple) and not hasattr(given, "_fields") and len(given) == len(y) > 0
        if y.ndim and listed:
            got = f"a {type(given).__name__} of {len(given)}"
            fix = "Stack them along a new first axis: `jnp.stack(x)`, or `jnp.asarray(x)` for numbers."
            raise refusal("x", expected="one array whose first axis counts the samples", got=got, fix=fix)
        fix = "Their first axes count the samples."
        raise refusal("y", expected=f"labels for all samples of x {sorted(lengths)}", got=f"shape {y.shape}", fix=fix)
    return x, y


def why_no_subgroup(group: Any, elements: tuple[int, ...] | None) -> str | None:
    """What data are augmented by, if not by a finite group; `elements` is None for drawn ones."""
    if elements is None or not isinstance(group, FiniteGroup):
        return f"a sample of {group.label}, which is no subgroup"
    if sorted(elements) != list(group.subgroup(elements).embedding):
        return f"the elements {elements} of {group.label}, which are no subgroup"
    return None


def with_channel_axis(y: jax.Array) -> jax.Array:
    """Labels [n] as labels of one channel."""
    return y[:, None] if y.ndim == 1 else y
