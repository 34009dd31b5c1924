"""Summaries of predictions on orbits along training, in a few numbers.

Ensembles of different sizes are the first members of the largest one, and average logits. Each record is one row: for
each size a number of the ensemble and its standard error over images, then the number of each member.

(In `_orbit_training.py` ensembles of one size are disjoint, and there are as many as the members allow. Here the
images out of distribution are made for the first members, so no other ensembles can be used.)
"""

import jax
import jax.numpy as jnp
from _slices import CLASSES

from ntk_equiv import metrics


def orbit_summary(order, sizes):
    """Return a function for `record=` that summarises logits [members, order * n, classes] on orbits; see `numbers`."""

    @jax.jit
    def kept(logits):
        p = logits.reshape(len(logits), order, -1, CLASSES)
        found = [metrics.orbit_same_prediction(p[:size]) for size in sizes]
        return numbers([(one.ensemble, one.ensemble_error) for one in found], found[-1].members)

    return kept


def validation_summary(order, sizes, labels):
    """Return the same for images with known classes, followed by the accuracy on images that are not rotated."""
    invariance = orbit_summary(order, sizes)

    def right(p):
        return (jnp.argmax(p, -1) == labels).astype(p.dtype)

    @jax.jit
    def kept(logits):
        still = logits[:, : len(labels)]
        found = [right(jnp.mean(still[:size], 0)) for size in sizes]
        pairs = [(jnp.mean(one), jnp.std(one) / len(labels) ** 0.5) for one in found]
        return jnp.concatenate([invariance(logits), numbers(pairs, jnp.mean(jax.lax.map(right, still), -1))])

    return kept


def numbers(pairs, members):
    """Join the pairs (ensemble, standard error over images) of all sizes, and the numbers of all members."""
    return jnp.concatenate([jnp.array(pairs).ravel(), members])


def curves(settings, part, name, size):
    """Return the curve of ensembles of this size [k], its standard error [k], and curves of their members [k, size]."""
    sizes, rows = ([size] if "ood" in name else list(settings.sizes)), part[name]
    place = 2 * sizes.index(size)
    return rows[:, place], rows[:, place + 1], rows[:, 2 * len(sizes) :][:, :size]
