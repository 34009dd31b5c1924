"""Equivariance of trained ensembles, which is Theorem "Emergent Equivariance", and of any function.

The mean of an ensemble trained on augmented data is equivariant, and so is its law:

    μ_t(ρ_X(g)x) = ρ_Y(g) μ_t(x),        Σ_t(ρ_X(g)x, ρ_X(g)x') = ρ_K(g) Σ_t(x, x') ρ_K(g)ᵀ

The covariance is that of one channel. Between channels it is a multiple of the identity, which an orthogonal τ_Y does
not change; ρ_K moves the positions of the outputs.

A function is equivariant if f(ρ_X(g)x) = ρ_Y(g) f(x). `assert_equivariant` is meant for tests.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv._check import arrays, describe, function, refusal, scalar
from ntk_equiv._typing import Inputs, Scalar
from ntk_equiv.reps import Representation, check_actions
from ntk_equiv.theorems._kernels import output_grid, transform_kernels
from ntk_equiv.theorems._violation import Violation, check_known, compare, iterate

Times = Scalar | np.ndarray | Sequence[float | int] | None
"""One training time or several; None for that of the filter."""

ENSEMBLE = {
    "mean": "mean prediction: μ(ρ_X(g)x) = ρ_Y(g) μ(x)",
    "cov": "covariance: Σ(ρ_X(g)x, ρ_X(g)x') = ρ_K(g) Σ(x, x') ρ_K(g)ᵀ",
}
SAMPLED = {"mean": "expected prediction beyond 5 standard errors of the members drawn: E f(ρ_X(g)x) = ρ_Y(g) E f(x)"}
# How many standard errors the mean over members that were drawn may be off.
STANDARD_ERRORS = 5.0
# The tolerance of `assert_equivariant` is the machine precision to this power.
TOLERANCE_POWER = 0.6


@runtime_checkable
class Ensemble(Protocol):
    """The questions that are asked of an ensemble, such as an `InfiniteEnsemble`."""

    @property
    def rep_x(self) -> Representation | None:
        """How the group acts on samples."""

    @property
    def rep_y(self) -> Representation | None:
        """How it acts on labels."""

    def mean(self, x: Inputs, t: Times = None) -> jax.Array:
        """The mean prediction."""

    def cov(self, x: Inputs, t: Times = None, x2: Inputs | None = None) -> jax.Array:
        """The covariance, or that of one set of samples with another."""


@runtime_checkable
class DrawnEnsemble(Protocol):
    """The questions that are asked of an ensemble that is known through its members, such as a `SampledEnsemble`."""

    @property
    def rep_x(self) -> Representation | None:
        """How the group acts on samples."""

    @property
    def rep_y(self) -> Representation | None:
        """How it acts on labels."""

    def contributions(self, x: Inputs, t: Times = None) -> jax.Array:
        """What each member contributes to the mean prediction, [members, m, outputs] after times if there are any."""


def emergent_equivariance(
    ens: Ensemble | DrawnEnsemble,
    x: Inputs,
    /,
    t: Times = None,
    *,
    rep_x: Representation | None = None,
    rep_y: Representation | None = None,
    elements: Any = None,
) -> Violation:
    """How far the law of a trained ensemble is from equivariant, on any samples and at any time.

        μ_t(ρ_X(g)x) = ρ_Y(g) μ_t(x),        Σ_t(ρ_X(g)x, ρ_X(g)x') = ρ_K(g) Σ_t(x, x') ρ_K(g)ᵀ

    The theorem holds for data augmented by the whole group, for every filter, and also far from the data. It does not
    hold for plain data, for data augmented by some elements only, or for networks that do not respect the action.

    Args:
        ens: an `InfiniteEnsemble`; or a `SampledEnsemble`, of which the mean alone is compared. What members that
            were drawn leave open is no violation: only what goes beyond five standard errors of their mean counts.
        x: samples, [m, ...], anywhere.
        t: the training time, one or several; that of the filter unless given.
        rep_x: how the group acts on samples; as for the training data unless given.
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
    check_ensemble(ens, "ens")
    rep_x, rep_y = check_symmetry(ens, rep_x, rep_y)
    check_known(x, "x")
    chosen = rep_x.elements(elements)
    if isinstance(ens, DrawnEnsemble):
        return compare(SAMPLED, rep_x.group, chosen, _drawn_sides(ens, x, t, rep_x, rep_y, chosen))
    mean, cov = ens.mean(x, t), ens.cov(x, t)
    grid = output_grid(rep_x, cov.shape[time_axes(t) :])

    def sides() -> Iterator[tuple]:
        for g in iterate(rep_x.group, chosen):
            moved = rep_x(g, x)
            right = move_mean(rep_y, g, mean, t), *transform_kernels(grid, g, (cov,))
            yield (ens.mean(moved, t), ens.cov(moved, t)), right

    return compare(ENSEMBLE, rep_x.group, chosen, sides())


def _drawn_sides(
    ens: DrawnEnsemble, x: Inputs, t: Times, rep_x: Representation, rep_y: Representation, elements: Any
) -> Iterator[tuple]:
    """Yield both sides of the statement about the mean, moved together by what chance explains."""
    members = np.asarray(ens.contributions(x, t))
    mean = members.mean(axis=-3)
    for g in iterate(rep_x.group, elements):
        moved = np.asarray(rep_y(g, jnp.asarray(members)))
        # Member by member, because the two sides of one member are alike.
        difference = np.asarray(ens.contributions(rep_x(g, x), t)) - moved
        error = difference.std(axis=-3, ddof=1) / difference.shape[-3] ** 0.5 if difference.shape[-3] > 1 else np.inf
        size = np.maximum(np.abs(difference.mean(axis=-3)) - STANDARD_ERRORS * error, 0)
        right = np.asarray(rep_y(g, jnp.asarray(mean)))
        yield (right + np.sign(difference.mean(axis=-3)) * size,), (right,)


def move_mean(rep_y: Representation, g: Any, mean: jax.Array, t: Times) -> jax.Array:
    """Return ρ_Y(g) of a mean at one or several times; labels [n] have a single channel."""
    vector = mean.ndim - time_axes(t) == 1
    return rep_y(g, mean[..., None])[..., 0] if vector else rep_y(g, mean)


def time_axes(t: Times) -> int:
    """Return how many axes of times results have in front: one if t is a vector, else none."""
    return 0 if t is None else np.ndim(t)


def check_symmetry(
    ens: Ensemble | DrawnEnsemble, rep_x: Representation | None, rep_y: Representation | None
) -> tuple[Representation, Representation]:
    """Return the actions that were given, or else those of the training data."""
    if rep_x is None:
        rep_x, rep_y = ens.rep_x, ens.rep_y if rep_y is None else rep_y
    if rep_x is None:
        fix = "Train on `augment(x, y, rep_x, rep_y)`, or pass `rep_x` and `rep_y`."
        raise refusal("ens", expected="an ensemble on augmented data", got=repr(ens), fix=fix)
    return check_actions(rep_x, rep_y)


def check_ensemble(ens: Any, argument: str) -> None:
    """Refuse what is no ensemble."""
    if not isinstance(ens, DrawnEnsemble) and not all(hasattr(ens, name) for name in ("rep_x", "rep_y", "mean", "cov")):
        fix = "Make one with `InfiniteEnsemble(kernel_fn, train)`."
        raise refusal(argument, expected="an ensemble", got=describe(ens), fix=fix, kind=TypeError)


def assert_equivariant(
    fn: Callable[[Any], Any],
    rep_x: Representation,
    rep_y: Representation | None,
    x: Inputs,
    /,
    *,
    tol: float | None = None,
    elements: Any = None,
) -> Violation:
    """Return how equivariant a function is, or fail if it is not equivariant up to `tol`.

        fn(ρ_X(g)x) = ρ_Y(g) fn(x)

    Args:
        fn: any function of `x`, written in JAX or not. It may return several arrays, as a pytree.
        rep_x: how the group acts on inputs.
        rep_y: how it acts on what `fn` returns; `None` if that is invariant.
        x: the samples to evaluate the function on, one or many.
        tol: the largest violation relative to the largest value. Left out: ε^0.6 with ε of the coarsest dtype that
            occurs, about 4e-10 in double and 7e-5 in single precision; 0 if `fn` returns integers.
        elements: some elements instead of all of a finite group, or matrices `[count, d, d]` of a continuous one.

    Returns:
        The record.

    Raises:
        AssertionError: the function is not equivariant; the message names the worst element.
        ValueError: the two representations are of different groups, or do not fit the arrays.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import groups, reps, theorems
        >>> turn = reps.matrix(groups.SO2.finite(4))
        >>> x = jnp.array([[3., 4.], [0., 1.]])
        >>> theorems.assert_equivariant(lambda x: x * jnp.sum(x**2, axis=-1, keepdims=True), turn, turn, x)
        <violation of at most 0, 0 of the scale 100>
        >>> theorems.assert_equivariant(lambda x: jnp.abs(x[..., 0]), turn, None, x)
        Traceback (most recent call last):
        ...
        AssertionError: fn(ρ_X(g)x) = fn(x), checked for 4 elements of C4 in SO(2): off by at most 1, 0.25 of the
        largest entry, worst for r (element 1) at entry (0,). Allowed: ... of it.
    """
    check_known(x, "x")
    arrays(x, "x")
    function(fn, "fn")
    tol = None if tol is None else scalar(tol, "tol", at_least=0, fix="It is relative to the largest value.")
    violation, precision = _measure(fn, rep_x, rep_y, x, elements)
    tol = precision if tol is None else tol
    if not violation.holds(tol):
        raise AssertionError(f"{violation} Allowed: {tol:.3g} of it.")
    return violation


def _measure(
    fn: Callable[[Any], Any], rep_x: Representation, rep_y: Representation | None, x: Inputs, elements: Any
) -> tuple[Violation, float]:
    """Return the record, and the tolerance that fits the precision."""
    statement = f"fn(ρ_X(g)x) = {'fn(x)' if rep_y is None else 'ρ_Y(g) fn(x)'}"
    rep_x, rep_y = check_actions(rep_x, rep_y)
    chosen = rep_x.elements(elements)
    value = fn(x)
    if not sum(np.size(leaf) for leaf in jax.tree.leaves(value) if np.asarray(leaf).dtype.kind in "biufcV"):
        raise refusal("fn", expected="a function that returns numbers", got="none", fix="Return arrays from it.")
    paths, leaves = zip(*jax.tree_util.tree_leaves_with_path(value), strict=True)
    statements = {f"fn(x){jax.tree_util.keystr(path)}": statement for path in paths}

    def sides() -> Iterator[tuple]:
        for g in iterate(rep_x.group, chosen):
            left, right = jax.tree.leaves(fn(rep_x(g, x))), jax.tree.leaves(_move_value(rep_y, g, value))
            _check_same_shapes(left, right)
            yield left, right

    return compare(statements, rep_x.group, chosen, sides()), _tolerance(leaves, jax.tree.leaves(x))


def _move_value(rep_y: Representation, g: Any, value: Any) -> Any:
    """Return ρ_Y(g) of what `fn` returned, or refuse an action that does not fit it."""
    try:
        return rep_y(g, value)
    except ValueError as error:
        shapes = ", ".join(str(jnp.shape(leaf)) for leaf in jax.tree.leaves(value))
        expected = "an action on what `fn` returns"
        raise refusal(
            "rep_y", expected=expected, got=f"{rep_y} for shape {shapes}", fix=f"In detail: {error}"
        ) from None


def _check_same_shapes(left: list, right: list) -> None:
    shapes, others = [np.shape(leaf) for leaf in left], [np.shape(leaf) for leaf in right]
    if shapes != others:
        fix = "Both sides of the equation have to be arrays of the same shapes."
        raise refusal("fn", expected=f"a function with values of shapes {others}", got=f"{shapes}", fix=fix)


def _tolerance(values: tuple, inputs: list) -> float:
    """Return ε^0.6 for the coarsest floating-point dtype; 0 if the values are integers."""
    dtypes = [[jnp.result_type(leaf) for leaf in leaves] for leaves in (values, inputs)]
    coarse = [
        [float(jnp.finfo(dtype).eps) for dtype in group if jnp.issubdtype(dtype, jnp.inexact)] for group in dtypes
    ]
    return max(coarse[0] + coarse[1]) ** TOLERANCE_POWER if coarse[0] else 0.0
