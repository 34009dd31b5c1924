"""Theorem "Emergent Equivariance": the mean of an ensemble trained on augmented data is equivariant, and so is its law.

    μ_t(ρ_X(g)x) = ρ_Y(g) μ_t(x),        Σ_t(ρ_X(g)x, ρ_X(g)x') = ρ_K(g) Σ_t(x, x') ρ_K(g)ᵀ

The covariance is that of one channel: between channels it is a multiple of the identity, which orthogonal τ_Y leave as
it is, and ρ_K moves the positions of the outputs.
"""

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from ntk_equiv._check import refusal, shown
from ntk_equiv._typing import Inputs
from ntk_equiv.reps import Representation, check_actions
from ntk_equiv.theorems._kernels import both_sides, check_known, output_grid
from ntk_equiv.theorems._violation import Violation, measured, one_by_one

STATEMENTS = {
    "mean": "mean prediction: μ(ρ_X(g)x) = ρ_Y(g) μ(x)",
    "cov": "covariance: Σ(ρ_X(g)x, ρ_X(g)x') = ρ_K(g) Σ(x, x') ρ_K(g)ᵀ",
}


@runtime_checkable
class Ensemble(Protocol):
    """What is asked of an ensemble, such as `InfiniteEnsemble`."""

    @property
    def rep_x(self) -> Representation | None:
        """How the group acts on points."""

    @property
    def rep_y(self) -> Representation | None:
        """How it acts on labels."""

    def mean(self, x: Inputs, t: Any = None) -> jax.Array:
        """The mean prediction."""

    def cov(self, x: Inputs, t: Any = None, x2: Inputs | None = None) -> jax.Array:
        """The covariance, also of one set of points with another."""


def emergent_equivariance(
    ens: Ensemble,
    x: Inputs,
    /,
    t: Any = None,
    *,
    rep_x: Representation | None = None,
    rep_y: Representation | None = None,
    elements: Any = None,
) -> Violation:
    """How far the law of a trained ensemble is from being equivariant, at any points and any time.

        μ_t(ρ_X(g)x) = ρ_Y(g) μ_t(x),        Σ_t(ρ_X(g)x, ρ_X(g)x') = ρ_K(g) Σ_t(x, x') ρ_K(g)ᵀ

    The theorem holds for data augmented by the whole group, for every filter and also far off the data. It does not for
    plain data, for some elements only, or for networks that do not respect the action.

    Args:
        ens: an `InfiniteEnsemble`.
        x: points, [m, ...], anywhere.
        t: the training time, one or several; the filter's own unless given.
        rep_x: how the group acts on points; as for the training data unless given.
        rep_y: how it acts on outputs; likewise.
        elements: some elements instead of all of a finite group, or matrices of a continuous one.

    Returns:
        The record of the worst of both, with `parts` for the mean and the covariance.

    Raises:
        ValueError: the ensemble knows no group, and none was given.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import InfiniteEnsemble, augment, groups, reps, stax, theorems
        >>> _, _, kernel_fn = stax.serial(stax.Dense(64, 1.5, 0.1), stax.Relu(), stax.Dense(1))
        >>> turn = reps.matrix(groups.SO2.finite(4))
        >>> x, y = jnp.array([[1.0, 2.0], [0.0, 3.0]]), jnp.array([1.0, -1.0])
        >>> anywhere = jnp.array([[5.0, -7.0]])
        >>> ens = InfiniteEnsemble(kernel_fn, augment(x, y, turn))
        >>> theorems.emergent_equivariance(ens, anywhere, 10.0).holds(1e-4)
        True
        >>> plain = InfiniteEnsemble(kernel_fn, (x, y))
        >>> theorems.emergent_equivariance(plain, anywhere, 10.0, rep_x=turn).holds(1e-4)
        False
    """
    rep_x, rep_y = actions(ens, rep_x, rep_y)
    check_known(x, "x")
    chosen = rep_x.elements(elements)
    mean, cov = ens.mean(x, t), ens.cov(x, t)
    grid = output_grid(rep_x, cov.shape[time_axes(t) :])

    def sides() -> Iterator[tuple]:
        for g in one_by_one(rep_x.group, chosen):
            moved = rep_x(g, x)
            yield (ens.mean(moved, t), ens.cov(moved, t)), (moved_mean(rep_y, g, mean, t), *both_sides(grid, g, (cov,)))

    return measured(STATEMENTS, rep_x.group, chosen, sides())


def moved_mean(rep_y: Representation, g: Any, mean: jax.Array, t: Any) -> jax.Array:
    """ρ_Y(g) of a mean at one or several times; labels [n] have a single channel."""
    vector = mean.ndim - time_axes(t) == 1
    return rep_y(g, mean[..., None])[..., 0] if vector else rep_y(g, mean)


def time_axes(t: Any) -> int:
    """How many axes of times results have in front: one if t is a vector, else none."""
    return 0 if t is None else jnp.ndim(t)


def actions(ens: Ensemble, rep_x: Any, rep_y: Any) -> tuple[Representation, Representation]:
    """The actions that were given, or else those of the training data."""
    check_ensemble(ens, "ens")
    if rep_x is None:
        rep_x, rep_y = ens.rep_x, ens.rep_y if rep_y is None else rep_y
    if rep_x is None:
        fix = "Train on `augment(x, y, rep_x, rep_y)`, or pass `rep_x` and `rep_y`."
        raise refusal("ens", expected="an ensemble on augmented data", got=repr(ens), fix=fix)
    return check_actions(rep_x, rep_y)


def check_ensemble(ens: Any, argument: str) -> None:
    """Refuse what has no law to ask for."""
    if not all(hasattr(ens, name) for name in ("rep_x", "rep_y", "mean", "cov")):
        fix = "Make one with `InfiniteEnsemble(kernel_fn, train)`."
        raise refusal(argument, expected="an ensemble", got=shown(ens), fix=fix, kind=TypeError)
