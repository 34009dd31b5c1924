"""What every data set comes as: samples, labels, and how the symmetry acts on both.

The four fields are in the order of the arguments of `augment`, so that `augment(*data)` is the augmented set.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ntk_equiv._check import describe, positive_integer, random_key, real_array, refusal
from ntk_equiv._typing import Inputs
from ntk_equiv.reps import Representation


class LabelledSet(NamedTuple):
    """Samples with labels and the symmetry of both: a pytree, with the arrays as leaves.

    Attributes:
        x: samples, [n, ...].
        y: labels, [n] or [n, ..., channels].
        rep_x: how the group acts on the samples.
        rep_y: how it acts on the labels.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import augment, groups, reps
        >>> from ntk_equiv.datasets import LabelledSet
        >>> C2 = groups.cyclic(2)
        >>> data = LabelledSet(jnp.eye(2), jnp.array([0.0, 1.0]), reps.regular(C2), reps.trivial(C2))
        >>> data
        <labelled set: x (2, 2), y (2,), regular and trivial of cyclic(2)>
        >>> augment(*data)
        <augmented set: 2 samples under 2 elements of cyclic(2)>
    """

    x: Inputs
    y: Any
    rep_x: Representation
    rep_y: Representation

    def __repr__(self) -> str:
        shapes = ", ".join(str(np.shape(leaf)) for leaf in jax.tree.leaves(self.x))
        actions = f"{self.rep_x.label} and {self.rep_y.label} of {self.rep_x.group.label}"
        return f"<labelled set: x {shapes}, y {np.shape(self.y)}, {actions}>"

    @property
    def n(self) -> int:
        """The number of samples."""
        return self.y.shape[0]

    def take(self, indices: slice | Sequence[int] | ArrayLike, /) -> "LabelledSet":
        """Return the samples with the given indices, or those in a slice.

        Example:
            >>> import jax.numpy as jnp
            >>> from ntk_equiv import groups, reps
            >>> from ntk_equiv.datasets import LabelledSet
            >>> rep = reps.trivial(groups.cyclic(2))
            >>> LabelledSet(jnp.arange(4.0)[:, None], jnp.arange(4), rep, rep).take(slice(2)).y.tolist()
            [0, 1]
        """
        if not isinstance(indices, slice):
            fix = f"Pass whole numbers from 0 to {self.n - 1}, or a slice."
            indices = np.asarray(real_array(indices, "indices", fix=fix))
            whole = indices.ndim == 1 and (np.issubdtype(indices.dtype, np.integer) or indices.shape == (self.n,))
            if not whole or (indices.size and not -self.n <= indices.min() <= indices.max() < self.n):
                raise refusal("indices", expected="indices of samples", got=describe(indices), fix=fix)
        return self._replace(x=jax.tree.map(lambda leaf: leaf[indices], self.x), y=self.y[indices])

    def split(self, key: jax.Array, count: int) -> tuple["LabelledSet", "LabelledSet"]:
        """Return two parts that have no sample in common, drawn at random: `count` samples, and the others.

        Args:
            key: a JAX random key.
            count: the size of the first part.

        Raises:
            ValueError: `count` is not between 1 and n − 1.

        Example:
            >>> import jax, jax.numpy as jnp
            >>> from ntk_equiv import groups, reps
            >>> from ntk_equiv.datasets import LabelledSet
            >>> rep = reps.trivial(groups.cyclic(2))
            >>> data = LabelledSet(jnp.arange(12.0)[:, None], jnp.arange(12), rep, rep)
            >>> train, validation = data.split(jax.random.key(0), 11)
            >>> train.n, validation.n, sorted([*train.y.tolist(), *validation.y.tolist()]) == list(range(12))
            (11, 1, True)
        """
        random_key(key)
        if positive_integer(count, "count") >= self.n:
            fix = "Both parts need samples."
            raise refusal("count", expected=f"less than the {self.n} samples there are", got=count, fix=fix)
        order = jax.random.permutation(key, self.n)
        return self.take(order[:count]), self.take(order[count:])


class Splits(NamedTuple):
    """Three sets of one problem.

    Attributes:
        train: the training set.
        test: a set drawn like the training set.
        ood: a set drawn from another distribution.

    Example:
        >>> import jax
        >>> from ntk_equiv.datasets import cross_product
        >>> data = cross_product(jax.random.key(0), train=8, test=4, ood=2)
        >>> [len(part.x) for part in data]
        [8, 4, 2]
    """

    train: LabelledSet
    test: LabelledSet
    ood: LabelledSet


def check_sizes(train: int, test: int, ood: int) -> tuple[int, int, int]:
    """Return the sizes of the three sets, if they are positive integers."""
    return positive_integer(train, "train"), positive_integer(test, "test"), positive_integer(ood, "ood")


def default_float() -> Any:
    """Return the floating-point type that JAX is set to: float32, or float64 if x64 is on."""
    return jnp.result_type(float)
