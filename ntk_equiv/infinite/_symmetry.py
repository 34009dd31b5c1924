"""Whether the Gram matrix is reduced by the group that augments the data, or taken as a whole.

The reduction is exact if the augmentation is by a whole group, ρ_X is a representation, and the kernel transforms as
Theorem "Kernel transformation" says (see `docs/paper.md`). The last is measured for generators of the group, on a few
training samples to which noise is added: blank or symmetric samples would agree with any kernel.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv._check import is_concrete, one_of, refusal, warn_caller
from ntk_equiv._gram import PlainKernel, check_samples
from ntk_equiv._typing import Inputs, SplitKernel
from ntk_equiv.infinite._training_set import TrainingSet, plain_set, reduced_set
from ntk_equiv.orbits import AugmentedSet, loaded, why_no_subgroup
from ntk_equiv.theorems import measure_kernel_transformation

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


def choose_training_set(method: str, kernel: SplitKernel, train: Any) -> TrainingSet:
    """Check the samples, and return the data in the form that the method works on.

    "auto" reduces them by their group if that is exact.
    """
    one_of(method, METHODS, "method")
    if not isinstance(train, AugmentedSet):
        return _choose_plain_set(method, kernel, train)
    train = dataclasses.replace(train, base_x=loaded(train.base_x), base_y=loaded(train.base_y))
    check_samples(kernel, train.base_x, "x")
    if method == "dense":
        return plain_set(train)
    known = is_concrete((train.base_x, train.base_y))
    if method == "auto" and not known:
        raise _refuse_auto("traced data")
    obstacle = _obstacle_in_data(train)
    if obstacle is None and known and train.n:
        probes = _probe_samples(train)
        known = _is_known(kernel, probes[0])
        if method == "auto" and not known:
            raise _refuse_auto("a traced kernel")
        obstacle = _obstacle_in_kernel(kernel, reduced_set(train), probes) if known else None
    if obstacle is None:
        return reduced_set(train)
    if method == "reduced":
        raise _refuse_reduction(obstacle)
    warn_caller(
        f"The Gram matrix of all {train.size} augmented samples is decomposed as a whole, because {obstacle}. "
        'Choose method="dense" to silence this warning.',
        ReductionWarning,
    )
    return plain_set(train, obstacle)


def _choose_plain_set(method: str, kernel: SplitKernel, train: Any) -> TrainingSet:
    """Return data that are not augmented, which have no symmetry to use."""
    why = "the data are not augmented"
    data = plain_set(train) if method == "dense" else plain_set(train, why)
    check_samples(kernel, data.x, "x")
    if method == "reduced":
        raise _refuse_reduction(why)
    if method == "auto" and not is_concrete((data.x, data.y)):
        raise _refuse_auto("traced data")
    return data


def _refuse_reduction(obstacle: str) -> Exception:
    fix = 'Use method="dense", which needs no symmetry.'
    return refusal("method", expected="one that fits the data", got=f'"reduced", but {obstacle}', fix=fix)


def _refuse_auto(what: str) -> Exception:
    fix = 'Under jit, grad and vmap the symmetry of the kernel cannot be measured: choose "dense" or "reduced".'
    return refusal("method", expected=f"explicit for {what}", got='"auto"', fix=fix)


def _obstacle_in_data(train: AugmentedSet) -> str | None:
    """Return what prevents the reduction whatever the kernel is; None if nothing does."""
    elements = why_no_subgroup(train.group, train.elements)
    if elements is not None:
        return f"the data are augmented by {elements}"
    if not train.rep_x.exact:
        return f"{train.rep_x} interpolates, and is not a representation"
    try:
        grid = train.rep_x.spatial(train.base_y.shape[1:-1])
    except ValueError as error:
        return f"the group does not act on the grid of the labels: {error}"
    return None if grid.exact else f"{train.rep_x} interpolates on the grid of the labels"


def _is_known(kernel: SplitKernel, probe: Inputs) -> bool:
    """Return whether the kernel does not depend on values that are traced."""
    # A function may close over traced values without showing them: only its result tells.
    return is_concrete(kernel(probe, None, "ntk") if isinstance(kernel, PlainKernel) else kernel)


def _probe_samples(train: AugmentedSet) -> tuple[Inputs, Inputs]:
    """Return two batches of two samples each, which no element of the group leaves as they are.

    They are training samples from all over the set with positive noise as large as the features are, which keeps them
    non-negative where features are. Noise is for features alone: graphs keep their adjacency.
    """
    chosen = np.linspace(0, train.n - 1, 4).astype(int)
    # In NumPy: so few numbers are not worth a program for each operation.
    samples = jax.tree.map(lambda leaf: np.asarray(leaf)[chosen], train.base_x)
    features, *others = jax.tree.leaves(samples)
    noise = (float(np.abs(features).max()) or 1.0) * np.random.default_rng(0).uniform(size=features.shape)
    noisy = [features + noise.astype(features.dtype), *others]
    first, second = ([jnp.asarray(leaf[half]) for leaf in noisy] for half in (slice(2), slice(2, 4)))
    structure = jax.tree.structure(samples)
    return jax.tree.unflatten(structure, first), jax.tree.unflatten(structure, second)


def _obstacle_in_kernel(kernel: SplitKernel, data: TrainingSet, probes: tuple[Inputs, Inputs]) -> str | None:
    """Return what a few samples and the generators of the group say against the theorem; None if nothing."""
    if data.order == 1:
        return None
    assert data.rep_x is not None
    assert data.group is not None
    try:
        # Two distinct batches: kernels of neural-tangents are only good to √eps where samples coincide.
        found = measure_kernel_transformation(kernel, data.rep_x, *probes, data.rep_x.elements(data.group.generators))
    except ValueError as error:
        return f"the kernel does not fit the group: {error}"
    eps = max(float(jnp.finfo(jnp.result_type(leaf, jnp.float32)).eps) for leaf in jax.tree.leaves(data.x))
    return None if found.holds(eps**0.6) else f"the kernel does not transform under the group: {found}"
