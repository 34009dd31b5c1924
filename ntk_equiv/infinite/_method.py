"""Which way to decompose the Gram matrix: as a whole, or reduced by the group.

The reduction is exact if the augmentation is by a whole group, ρ_X is a representation, and the kernel transforms as
Theorem "Kernel transformation" says. The last is measured on a few of the training points, for generators of the group.
"""

import warnings
from typing import Any

import jax
import jax.numpy as jnp

from ntk_equiv._check import is_concrete, one_of, refusal
from ntk_equiv._typing import KernelFn
from ntk_equiv.infinite._training_set import TrainingSet, reduced_set, training_set
from ntk_equiv.orbits import AugmentedSet
from ntk_equiv.orbits._given import no_subgroup
from ntk_equiv.theorems import kernel_transformation

METHODS = ("auto", "dense", "reduced")


class ReductionWarning(UserWarning):
    """The symmetry of augmented data cannot be used, which costs time and memory but changes no result.

    Example:
        >>> import warnings, jax.numpy as jnp
        >>> from ntk_equiv import InfiniteEnsemble, augment, groups, reps, stax
        >>> from ntk_equiv.infinite import ReductionWarning
        >>> turns = reps.matrix(groups.SO2.finite(4))
        >>> train = augment(jnp.array([[1.0, 0.0]]), jnp.array([1.0]), turns, elements=[0, 1])      # no group
        >>> with warnings.catch_warnings(record=True) as said:
        ...     warnings.simplefilter("always", ReductionWarning)
        ...     ens = InfiniteEnsemble(stax.Dense(1).kernel_fn, train)
        >>> ens.method, said[0].category is ReductionWarning
        ('dense', True)
    """


def decided(method: str, kernel_fn: KernelFn, train: Any) -> tuple[TrainingSet, str, str]:
    """The training set in the form that the method works on, the method, and the reason for it."""
    one_of(method, METHODS, "method")
    if method == "dense":
        return training_set(train), "dense", "it was asked for"
    known = is_concrete((train.base_x, train.base_y) if isinstance(train, AugmentedSet) else train)
    if method == "auto" and not known:
        fix = 'Under jit, grad and vmap the kernel cannot be checked first: choose "dense" or "reduced".'
        raise refusal("method", expected="explicit for traced data", got='"auto"', fix=fix)
    if method == "auto" and not isinstance(train, AugmentedSet):
        return training_set(train), "dense", "the data are not augmented"
    obstacle = _obstacle(kernel_fn, train, known)
    if obstacle is None:
        return reduced_set(train), "reduced", "the kernel transforms under the group"
    if method == "reduced":
        fix = 'Use method="dense", which needs no symmetry.'
        raise refusal("method", expected="one that fits the data", got=f'"reduced", but {obstacle}', fix=fix)
    warnings.warn(
        f"The Gram matrix of all {train.size} augmented points is decomposed as a whole, because {obstacle}. "
        'Choose method="dense" to say that this is meant.',
        ReductionWarning,
        stacklevel=4,
    )
    return training_set(train), "dense", obstacle


def _obstacle(kernel_fn: KernelFn, train: Any, known: bool) -> str | None:
    """What prevents the reduction, if something does."""
    if not isinstance(train, AugmentedSet):
        return "the data are not augmented"
    elements = no_subgroup(train.group, train.elements)
    if elements is not None:
        return f"the data are augmented by {elements}"
    if not train.rep_x.exact:
        return f"{train.rep_x} interpolates, and is no representation"
    try:
        grid = train.rep_x.spatial(train.base_y.shape[1:-1])
    except ValueError as error:
        return f"the group does not act on the grid of the labels: {error}"
    if not grid.exact:
        return f"{train.rep_x} interpolates on the grid of the labels"
    return _spot_check(kernel_fn, reduced_set(train)) if known and train.n else None


def _spot_check(kernel_fn: KernelFn, data: TrainingSet) -> str | None:
    """What a few points and the generators of the group say against the theorem."""
    if data.order == 1:
        return None
    assert data.rep_x is not None
    assert data.group is not None
    # Distinct points where there are some: kernels of neural-tangents are only good to √eps where points coincide.
    first = jax.tree.map(lambda leaf: leaf[:2], data.x)
    others = jax.tree.map(lambda leaf: leaf[2:4], data.x) if data.n > 2 else None
    try:
        found = kernel_transformation(kernel_fn, data.rep_x, first, others, elements=data.group.generators)
    except ValueError as error:
        return f"the kernel does not fit the group: {error}"
    eps = max(float(jnp.finfo(jnp.result_type(leaf, jnp.float32)).eps) for leaf in jax.tree.leaves(data.x))
    return None if found.holds(eps**0.6) else f"the kernel does not transform under the group: {found}"
