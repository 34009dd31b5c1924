"""What is kept of predictions on orbits along training: a few numbers for ensembles of each size, and for members.

    osp              the orbit same prediction of ensembles of each size, averaged over them, [sizes]
    error            its standard error over the images, [sizes]
    monte_carlo      the additional error from drawing rotations, [sizes]; 0 where the orbit is complete
    accuracy         over all images of the orbits, [sizes]; NaN where classes are not known
    upright          the accuracy on the images as they are, [sizes]
    upright_error    its standard error over the images, [sizes]
    members          the orbit same prediction of each member, [members]
    member_accuracy  the accuracy of each member, on all images of the orbits, [members]
    member_upright   the same on the images as they are, [members]
    points           the orbit same prediction of each image, averaged over ensembles of each size, [sizes, images]

Ensembles average the logits of their members. From M members `M // size` disjoint ensembles of each size are formed.
Where images were made for the first members, only the ensemble of these is of use: `first=True`.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv import metrics

OF_SIZES = ("osp", "error", "monte_carlo", "accuracy", "upright", "upright_error")
OF_MEMBERS = ("members", "member_accuracy", "member_upright")


@dataclasses.dataclass(frozen=True)
class OrbitRecord:
    """A function for `record=` of predictions on the orbits of C_k, [members, order * n, classes].

    With `order=None` the predictions are those for images and for random rotations of them, [members, (1 + count) * n,
    classes]: the orbit same prediction is then the fraction of all rotations.

    Attributes:
        n: the number of images.
        sizes: the sizes of ensembles.
        order: k.
        labels: the classes of the images, if they are known.
        first: whether to use the ensemble of the first members alone.
    """

    n: int
    sizes: tuple[int, ...]
    order: int | None = None
    labels: np.ndarray | None = None
    first: bool = False

    def __call__(self, predictions):
        """Return all numbers in one row, in the order in which `unpack` reads them."""
        return self._compiled(predictions)

    def __post_init__(self):
        object.__setattr__(self, "_compiled", jax.jit(self._numbers))

    def _numbers(self, predictions):
        p = predictions.reshape(len(predictions), -1, self.n, predictions.shape[-1])
        rows = {name: [] for name in OF_SIZES}
        points = []
        for size in self.sizes:
            means = self._ensembles(p, size)
            found = jax.vmap(self._same)(means)
            right = self._right(means)
            # Ensembles share images and rotations, so averaging over them does not reduce these errors.
            rows["osp"].append(jnp.mean(found.ensemble))
            rows["error"].append(jnp.mean(found.ensemble_error))
            drawn = found.monte_carlo_error
            rows["monte_carlo"].append(jnp.zeros(()) if drawn is None else jnp.mean(drawn))
            rows["accuracy"].append(jnp.mean(right))
            upright = right[:, 0]
            rows["upright"].append(jnp.mean(upright))
            rows["upright_error"].append(jnp.mean(jnp.std(upright, 1)) / self.n**0.5)
            points.append(jnp.mean(found.points, 0))
        # One member at a time: sets may be large.
        members = jax.lax.map(lambda one: self._same(one).ensemble, p)
        right = jax.lax.map(lambda one: jnp.mean(self._right(one[None])[0], 1), p)
        of_members = members, jnp.mean(right, 1), right[:, 0]
        return jnp.concatenate([*(jnp.stack(rows[name]) for name in OF_SIZES), *of_members, *points])

    def _same(self, p):
        """Return the orbit same prediction of one function [rotations, n, classes]."""
        if self.order is None:
            return metrics.continuous_orbit_same_prediction(p[None, 1:], p[None, 0])
        return metrics.orbit_same_prediction(p[None])

    def _right(self, p):
        """Return where the classes of functions [functions, rotations, n, classes] are right, as 0 and 1."""
        if self.labels is None:
            return jnp.full(p.shape[:-1], jnp.nan)
        return (jnp.argmax(p, -1) == jnp.asarray(self.labels)[None, None]).astype(p.dtype)

    def _ensembles(self, p, size):
        """Return the means of ensembles of this size, [ensembles, ...]."""
        count = 1 if self.first else len(p) // size
        return p[: count * size].reshape(count, size, *p.shape[1:]).mean(1)

    def unpack(self, records):
        """Split records [times, numbers] by name into arrays [times, ...]."""
        records, count = np.asarray(records), len(self.sizes)
        numbers = records.shape[1] - count * (len(OF_SIZES) + self.n)
        lengths = [count] * len(OF_SIZES) + [numbers // len(OF_MEMBERS)] * len(OF_MEMBERS)
        *parts, points = np.split(records, np.cumsum(lengths), axis=1)
        found = dict(zip(OF_SIZES + OF_MEMBERS, parts, strict=True))
        return found | {"points": points.reshape(len(records), count, self.n)}


def paired(first, second):
    """Return the mean difference of two rows of numbers of the same images, and its standard error."""
    difference = np.asarray(first) - np.asarray(second)
    return difference.mean(), difference.std(ddof=1) / len(difference) ** 0.5


def total_error(part, what):
    """Return the standard error from drawing images and, on SO(2), rotations, [epochs, sizes]."""
    return np.hypot(part[f"{what}.error"], part[f"{what}.monte_carlo"])
