"""What is kept of predictions on orbits along training: a few numbers, however large these are.

Ensembles of different sizes are the first members of the largest, and average logits. At each record this is one row:
for each size a number of the ensemble and its standard error over images, then the number of each member.

(In `_orbit_training.py` ensembles of one size share no member, and there are as many as there are members for. Here
images out of distribution are made for the first members, so that no others can be asked.)
"""

import jax
import jax.numpy as jnp
from _slices import CLASSES

from ntk_equiv import metrics


def tried(order, sizes):
    """What is kept of logits [members, order * n, classes] on orbits, for `record=`; see `numbers`."""

    @jax.jit
    def kept(logits):
        p = logits.reshape(len(logits), order, -1, CLASSES)
        found = [metrics.orbit_same_prediction(p[:size]) for size in sizes]
        return numbers([(one.ensemble, one.ensemble_error) for one in found], found[-1].members)

    return kept


def validated(order, sizes, labels):
    """The same for images whose classes are known, followed by the accuracy on those that are not turned."""
    invariance = tried(order, sizes)

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
    """Pairs (of ensembles, and its standard error over images), one for each size, and numbers of all members."""
    return jnp.concatenate([jnp.array(pairs).ravel(), members])


def curves(settings, part, name, size):
    """Of ensembles of this size along training [k], its standard error [k], and of their members [k, size]."""
    sizes, rows = ([size] if "ood" in name else list(settings.sizes)), part[name]
    place = 2 * sizes.index(size)
    return rows[:, place], rows[:, place + 1], rows[:, 2 * len(sizes) :][:, :size]
