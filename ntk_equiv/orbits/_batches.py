"""Batches of augmented data, made when they are needed.

An epoch is a random permutation of all pairs (g, i), or of all i with an element g drawn for each; a batch is a stretch
of it, ρ_X(g) x_i and ρ_Y(g) y_i computed by one compiled function.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from ntk_equiv._check import boolean, positive_integer, random_key, refusal
from ntk_equiv.groups import ContinuousGroup, FiniteGroup
from ntk_equiv.orbits._given import fitting, with_channel_axis
from ntk_equiv.reps import Representation


def augment_batches(
    x: Any,
    y: Any,
    rep_x: Representation,
    rep_y: Representation | None = None,
    *,
    batch_size: int,
    key: jax.Array,
    epochs: int | None = None,
    random: bool = False,
) -> Iterator[tuple[Any, jax.Array]]:
    """Batches of augmented data in random order, made when they are needed.

    Every epoch holds every point under every element of the group, exactly once: an epoch of batches is `augment(...)`,
    shuffled. With `random=True` it holds every point once, under an element drawn for it from the Haar measure, which
    for a continuous group is the only way. The last batch of an epoch is smaller if the batch size does not divide it.

    Args:
        x: points, as for `augment`.
        y: labels.
        rep_x: how the group acts on the points.
        rep_y: how it acts on the labels; they are invariant unless given.
        batch_size: how many augmented points to a batch.
        key: a JAX random key.
        epochs: how many; without end unless given.
        random: draw one element for each point instead of going through all.

    Returns:
        An iterator over pairs (x, y).

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from ntk_equiv import groups, reps
        >>> from ntk_equiv.orbits import augment_batches
        >>> rep = reps.regular(groups.cyclic(3))
        >>> batches = augment_batches(jnp.eye(3)[:2], jnp.zeros(2), rep, batch_size=4, key=jax.random.key(0), epochs=1)
        >>> [x.shape for x, y in batches]
        [(4, 3), (2, 3)]
    """
    x, y, rep_y = fitting(x, y, rep_x, rep_y)
    positive_integer(batch_size, "batch_size")
    random_key(key)
    epochs = None if epochs is None else positive_integer(epochs, "epochs")
    boolean(random, "random")
    if isinstance(rep_x.group, ContinuousGroup) and not random:
        fix = "Pass random=True, or augment by a finite subgroup."
        raise refusal("random", expected=f"True for {rep_x.group}", got=random, fix=fix)
    return _batches((x, y), (rep_x, rep_y), batch_size, key, epochs, random)


def _batches(
    data: tuple, actions: tuple, batch_size: int, key: jax.Array, epochs: int | None, random: bool
) -> Iterator[tuple[Any, jax.Array]]:
    (rep_x, rep_y), n = actions, data[1].shape[0]
    group = rep_x.group

    @jax.jit
    def batch(data: tuple, elements: jax.Array, points: jax.Array) -> tuple:
        x, y = jax.tree.map(lambda leaf: leaf[points], data)
        return move_each(rep_x, rep_y, elements, x, y)

    for epoch in range(epochs) if epochs is not None else itertools.count():
        shuffling, drawing = jax.random.split(jax.random.fold_in(key, epoch))
        if random:
            points = jax.random.permutation(shuffling, n)
            elements = draw_elements(group, drawing, n)
        else:
            elements, points = jnp.divmod(jax.random.permutation(shuffling, group.order * n), n)
        for start in range(0, len(points), batch_size):
            part = slice(start, start + batch_size)
            yield batch(data, elements[part], points[part])


def move_each(
    rep_x: Representation, rep_y: Representation, elements: jax.Array, x: Any, y: jax.Array
) -> tuple[Any, jax.Array]:
    """ρ_X(g) x_i and ρ_Y(g) y_i, every point under an element of its own."""
    moved = jax.vmap(rep_y)(elements, with_channel_axis(y))
    return jax.vmap(rep_x)(elements, x), moved.reshape(y.shape)


def draw_elements(group: FiniteGroup | ContinuousGroup, key: jax.Array, count: int) -> jax.Array:
    """Elements drawn from the Haar measure: integers [count], or matrices [count, n, n] of a continuous group."""
    if isinstance(group, ContinuousGroup):
        return group.sample(key, count)
    return jax.random.randint(key, (count,), 0, group.order)
