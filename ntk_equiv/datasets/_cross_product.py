"""The cross product of two vectors, which turns with them.

    x = (a, b) ∈ ℝ⁶,   y = a × b ∈ ℝ³,        Ra × Rb = det(R) R(a × b)

so that ρ_X(R) = 1₂ ⊗ R and ρ_Y(R) = det(R) R, which is R itself for rotations.
"""

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv import groups, reps
from ntk_equiv._check import random_key, refusal
from ntk_equiv.datasets._labelled_set import LabelledSet, Splits, check_sizes, default_float
from ntk_equiv.groups import ContinuousGroup, FiniteGroup, check_group
from ntk_equiv.reps import Representation

_OOD_MEAN = 0.5


def cross_product(
    key: jax.Array,
    *,
    train: int = 100,
    test: int = 1000,
    ood: int = 1000,
    group: FiniteGroup | ContinuousGroup = groups.SO3,
) -> Splits:
    """Return pairs of vectors with their cross products, as in Gerken & Kessel.

    Samples are the components of both vectors, [n, 6], drawn from N(0, 1); out of distribution they are drawn from
    Poisson(0.5), where many pairs are parallel. Labels are [n, 3].

    Args:
        key: a JAX random key.
        train: the size of the training set.
        test: the size of the test set.
        ood: the size of the set out of distribution.
        group: SO(3), O(3), or a finite group of such matrices, like `groups.polyhedral("T")`.

    Returns:
        The three sets. Augment them by all elements of a finite group, or by some rotations of SO(3).

    Raises:
        ValueError: the group does not consist of orthogonal 3 × 3 matrices.

    Example:
        >>> import jax
        >>> from ntk_equiv import augment, groups
        >>> from ntk_equiv.datasets import cross_product
        >>> drawing, rotating = jax.random.split(jax.random.key(0))
        >>> ten = groups.SO3.sample(rotating, 10)
        >>> augment(*cross_product(drawing).train, elements=ten)
        <augmented set: 100 samples under 10 elements of SO(3)>
        >>> augment(*cross_product(drawing, group=groups.polyhedral("I")).train)
        <augmented set: 100 samples under 60 elements of polyhedral("I")>
    """
    random_key(key)
    counts, actions = check_sizes(train, test, ood), _actions(group)
    keys = jax.random.split(key, 3)
    draws = [jax.random.normal(k, (n, 6)) for k, n in zip(keys[:2], counts[:2], strict=True)]
    draws.append(jax.random.poisson(keys[2], _OOD_MEAN, (counts[2], 6)).astype(default_float()))
    return Splits(*(LabelledSet(x, jnp.cross(x[:, :3], x[:, 3:]), *actions) for x in draws))


def _actions(group: FiniteGroup | ContinuousGroup) -> tuple[Representation, Representation]:
    """Return ρ_X and ρ_Y."""
    group = check_group(group)
    if isinstance(group, ContinuousGroup):
        if group.n != 3:
            raise refusal("group", expected="of 3 × 3 matrices", got=group, fix="Vectors here have three components.")
        return reps.matrix(group, _twice), reps.matrix(group) if group.special else reps.matrix(group, _pseudovector)
    mats = group.matrices
    if mats is None or not groups.O(3).contains(mats):
        fix = 'Take `groups.polyhedral("O")`, a subgroup from `groups.SO3.finite`, or pass matrices to `from_matrices`.'
        raise refusal("group", expected="a group of orthogonal 3 × 3 matrices", got=group, fix=fix)
    signs = np.sign(np.linalg.det(mats))[:, None, None]
    return reps.matrix(group, np.kron(np.eye(2), mats)), reps.matrix(group, signs * mats)


# Functions of the module, not closures, so that representations made in different calls are equal.


def _twice(R: jax.Array) -> jax.Array:
    return jnp.kron(jnp.eye(2, dtype=R.dtype), R)


def _pseudovector(R: jax.Array) -> jax.Array:
    return jnp.sign(jnp.linalg.det(R)) * R
