"""Augmentation or group convolution: both lead to ensembles with the same mean.

After Misof, Kessel & Gerken, "Equivariant Neural Tangent Kernels". Let Θ, 𝒦 be the kernels of a network that satisfies
Theorem "Kernel transformation", and

    Θ̄(x, x') = 1/|G| Σ_g Θ(x, ρ_X(g)x') ρ_K(g),        𝒦̄ likewise.

**Kernels.** Replace the first convolution of the network by a lifting one, the others by ones on the group, and average
over the group at the end. Features then have, with m = g'g⁻¹,

    𝒦_G(s, g; s', g')(x, x') = 𝒦(s; m⁻¹s')(x, ρ_X(m⁻¹)x'),        Θ_G likewise:

the lifting layer by definition (a filter turned by m sees what the plain one sees on the image turned back by m);
activations, since they act on each entry; pooling of pixels and sums of branches, since they act on all g and g' alike;
and group convolutions, since (g'k)(gk)⁻¹ = m for all k, so that the mean over k changes nothing. The average over g and
g' makes of this 𝒦_G = 𝒦̄ and Θ_G = Θ̄. Dense networks are covered: flattening followed by `Dense` is a lifting (or, on
features, a group) convolution with a filter as large as the grid, every later `Dense` one with a 1×1 filter, or `Dense`
again. A nonlinearity *after* the average over the group has no counterpart in a plain network.

**Training.** Let labels move along with the outputs, y_gi = ρ_K(g)y_i (for outputs without positions: y_gi = y_i). By
Theorem "Kernel transformation", Θ(𝒳, 𝒳) maps vectors ρ_K(g)v_i to |G| ρ_K(g)(Θ̄(X, X)v)_i. For functions of it follows

    μ_t(x) = Θ(x, 𝒳) φ_t(Θ(𝒳, 𝒳)) y = Θ̄(x, X) |G| φ_t(|G| Θ̄(X, X)) y.

For gradient flow, descent and momentum |G| φ_t(|G|λ) is φ_t(λ) at |G| times the learning rate: the mean is that of the
convolutional ensemble on the plain data at this rate, at every t and every x. With `reduction="mean"` the augmented set
has |G| times as many labels to divide by, and the two means agree for every filter, at the same rate and the same t.

**Members.** Their laws differ: at t = 0 the covariance is 𝒦 for one, 𝒦̄ for the other. But a member's group average,
F_t(x) = 1/|G| Σ_g ρ_K(g)ᵀ f_t(ρ_X(g)x), starts as a Gaussian process with kernel 𝒦̄, and by the same argument follows
F_t = F_0 + Θ̄(x, X) |G| φ_t(|G| Θ̄) (y − F_0(X)): it has the law of a convolutional member. Hence

    Σ_G(x, x') = 1/|G| Σ_g Σ_t(x, ρ_X(g)x') ρ_K(g),

which is never more than Σ_t, as an average has no more variance than what it averages.
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv._check import function, refusal
from ntk_equiv._gram import gram
from ntk_equiv._typing import Inputs, KernelFunction
from ntk_equiv.groups import FiniteGroup
from ntk_equiv.reps import GridAction, Representation, check_representation
from ntk_equiv.theorems._equivariance import Ensemble, Times, check_ensemble, check_symmetry, move_mean, time_axes
from ntk_equiv.theorems._kernels import output_grid
from ntk_equiv.theorems._violation import Violation, check_known, compare

KERNELS = {
    "nngp": "NNGP kernel: 𝒦_G(ρ_X(h)x, x') = ρ_K(h) 1/|G| Σ_g 𝒦(x, ρ_X(g)x') ρ_K(g)",
    "ntk": "neural tangent kernel: Θ_G(ρ_X(h)x, x') = ρ_K(h) 1/|G| Σ_g Θ(x, ρ_X(g)x') ρ_K(g)",
}
ENSEMBLES = {
    "mean": "mean prediction: μ_G(ρ_X(h)x) = ρ_Y(h) μ(x)",
    "cov": "covariance: Σ_G(ρ_X(h)x, x') = ρ_K(h) 1/|G| Σ_g Σ(x, ρ_X(g)x') ρ_K(g)",
}


def averaged_kernel(
    kernel_fn: KernelFunction | tuple,
    group_kernel_fn: KernelFunction,
    rep_x: Representation,
    x1: Inputs,
    x2: Inputs | None = None,
    /,
) -> Violation:
    """How far the kernels of a network of group convolutions are from the group averages of those of a plain network.

        Θ_G(ρ_X(h)x, x') = ρ_K(h) 1/|G| Σ_g Θ(x, ρ_X(g)x') ρ_K(g),        𝒦 likewise, for all h

    It holds if the second network is the first with `LiftingConv` and `GroupConv` in place of `Conv`, and the average
    over the group, `GroupPool` or that of `GlobalAvgPool`, comes after the last activation.

    Args:
        kernel_fn: the kernels of the plain network.
        group_kernel_fn: those of the network of group convolutions, with outputs on the same grid.
        rep_x: how the group acts on inputs, `reps.rot90` of C4 or D4.
        x1: samples `[n1, h, w, channels]`.
        x2: other samples; `None` stands for `x1`.

    Returns:
        The record of the worst of both kernels, with `parts` for the NNGP kernel and the neural tangent kernel.

    Raises:
        ValueError: the group is not finite, or the two networks have outputs of different shapes.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import groups, reps, stax, theorems
        >>> rep, x = reps.rot90(groups.cyclic(4)), jnp.arange(9.).reshape(1, 3, 3, 1)
        >>> _, _, mlp = stax.serial(stax.Flatten(), stax.Dense(64), stax.Relu(), stax.Dense(1))
        >>> def on_the_group(*end):
        ...     return stax.serial(stax.LiftingConv(64, (3, 3), group="C4"), stax.Relu(), *end)[2]
        >>> matching = on_the_group(stax.GroupConv(1, (1, 1), group="C4"), stax.GlobalAvgPool())
        >>> theorems.averaged_kernel(mlp, matching, rep, x).holds(1e-5)
        True
        >>> theorems.averaged_kernel(mlp, on_the_group(stax.Flatten(), stax.Dense(1)), rep, x).holds(1e-5)
        False
    """
    check_known((x1, x2), "x1")
    group = _finite_group(check_representation(rep_x, "rep_x"))
    function(group_kernel_fn, "group_kernel_fn")
    x2 = x1 if x2 is None else x2
    plain = gram(kernel_fn, x1, _images(rep_x, x2), tuple(KERNELS))
    on_group = gram(group_kernel_fn, _images(rep_x, x1), x2, tuple(KERNELS))
    if plain[0].shape[2:] != on_group[0].shape[2:]:
        same = f"a network with the positions {plain[0].shape[2::2]} of the plain one"
        fix = "Average over the group, with `GroupPool` or `GlobalAvgPool`, after the last layer."
        raise refusal("group_kernel_fn", expected=same, got=f"{on_group[0].shape[2::2]}", fix=fix)
    grid = output_grid(rep_x, plain[0].shape)
    expected = [_average_images(grid, group, kernel, 1) for kernel in plain]
    found = [np.split(np.asarray(kernel), group.order) for kernel in on_group]

    def sides() -> Iterator[tuple]:
        for h in range(group.order):
            yield [kernel[h] for kernel in found], [grid.left(h, kernel) for kernel in expected]

    return compare(KERNELS, group, range(group.order), sides())


def augmentation_equivalence(augmented: Ensemble, convolutional: Ensemble, x: Inputs, /, t: Times = None) -> Violation:
    """How far an ensemble trained on augmented data is from one of group convolutions trained on the plain data.

        μ_G(ρ_X(h)x) = ρ_Y(h) μ(x),        Σ_G(ρ_X(h)x, x') = ρ_K(h) 1/|G| Σ_g Σ(x, ρ_X(g)x') ρ_K(g),        for all h

    at every time and on any samples, if the kernels of the two networks are related as `averaged_kernel` measures, the
    data are augmented by the whole group, and labels are invariant or scalar fields that move along with the positions.
    The means are equal; the covariance of the second is the group average of the first, and in general smaller.

    Time: with `reduction="mean"` both ensembles are trained alike. With `reduction="sum"` the loss of the augmented one
    is |G| times as large, and the second has to be trained with |G| times its learning rate.

    Args:
        augmented: an `InfiniteEnsemble` of the plain network on augmented data.
        convolutional: one of the matching network of group convolutions, on the plain data.
        x: samples, [m, ...], anywhere.
        t: the training time, one or several; that of the filters unless given.

    Returns:
        The record of the worst of both, with `parts` for the mean and the covariance.

    Raises:
        ValueError: the first ensemble is not trained on augmented data, or not by a finite group.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import InfiniteEnsemble, augment, groups, reps, stax, theorems
        >>> _, _, mlp = stax.serial(stax.Flatten(), stax.Dense(64), stax.Relu(), stax.Dense(1))
        >>> _, _, gcnn = stax.serial(stax.LiftingConv(64, (2, 2), group="C4"), stax.Relu(), stax.Dense(1),
        ...                          stax.GlobalAvgPool())
        >>> x, y = jnp.array([[1., 2., 3., 5.], [1., 0., 0., 0.]]).reshape(2, 2, 2, 1), jnp.array([1., -1.])
        >>> augmented = InfiniteEnsemble(mlp, augment(x, y, reps.rot90(groups.cyclic(4))), reduction="mean")
        >>> convolutional = InfiniteEnsemble(gcnn, (x, y), reduction="mean")
        >>> anywhere = jnp.array([[4., -1., 0., 2.]]).reshape(1, 2, 2, 1)
        >>> theorems.augmentation_equivalence(augmented, convolutional, anywhere, 3.0).holds(1e-4)
        True
        >>> print(augmented.var(anywhere, 3.0).round(3), convolutional.var(anywhere, 3.0).round(3))
        [1.115] [0.276]
    """
    for ens, argument in ((augmented, "augmented"), (convolutional, "convolutional")):
        check_ensemble(ens, argument)
    rep_x, rep_y = check_symmetry(augmented, None, None)
    check_known(x, "x")
    group, axis = _finite_group(rep_x), time_axes(t)
    images = _images(rep_x, x)
    mean, cov = augmented.mean(x, t), augmented.cov(x, t, images)
    grid = output_grid(rep_x, cov.shape[axis:])
    expected = _average_images(grid, group, cov, axis + 1)
    means = np.split(np.asarray(convolutional.mean(images, t)), group.order, axis)
    covs = np.split(np.asarray(convolutional.cov(images, t, x)), group.order, axis)

    def sides() -> Iterator[tuple]:
        for h in range(group.order):
            yield (means[h], covs[h]), (move_mean(rep_y, h, mean, t), grid.left(h, expected))

    return compare(ENSEMBLES, group, range(group.order), sides())


def _average_images(grid: GridAction, group: FiniteGroup, kernel: Any, axis: int) -> jax.Array:
    """Return 1/|G| Σ_g K(x, ρ_X(g)x') ρ_K(g), from K on all images of x', which stand along `axis` as (g, i)."""
    images = jnp.split(jnp.asarray(kernel), group.order, axis)
    return jnp.mean(jnp.stack([grid.right(int(group.inverse[g]), image) for g, image in enumerate(images)]), 0)


def _finite_group(rep_x: Representation) -> FiniteGroup:
    """Return the group if it is finite."""
    if not isinstance(rep_x.group, FiniteGroup):
        fix = "Group convolutions are defined for finite groups: take a finite subgroup with `reps.restrict`."
        raise refusal("rep_x", expected="of a finite group", got=rep_x, fix=fix)
    return rep_x.group


@jax.jit
def _images(rep_x: Representation, x: Inputs) -> Inputs:
    """Return all images of all samples, [order * n, ...]."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), rep_x.orbit(x))
