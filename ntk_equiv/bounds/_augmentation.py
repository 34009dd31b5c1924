"""How to augment for a continuous group: the order of a subgroup that suffices, or elements drawn at random.

**Subgroups.** The error of the infinite ensemble can fall exponentially with the order of the subgroup, and need not be
monotone in it. So `min_group_order` tries one order after the other, and certifies and measures each.

**Random elements** are no subgroup. D(g) = f̄(ρ_X(g)x) − ρ_Y(g)f̄(x) then depends on the draw. If all members share one
draw, the ensemble has that error, of expected size E‖D(g)‖. If each member draws its own elements from the Haar
measure, the prediction of the ensemble is the expectation over draws, and E D(g) = 0 for any number of elements:
shifting all of them by g gives an equally likely draw. This fails if the identity is always among them.
"""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ntk_equiv._check import boolean, function, positive_integer, positive_integers, random_key, refusal
from ntk_equiv._typing import Inputs, Scalar
from ntk_equiv.bounds._checks import Numbers, check_ensemble, single_deviation
from ntk_equiv.bounds._continuous_bound import bound_by_modulus
from ntk_equiv.bounds._continuous_deviation import enclose_deviation, measure_deviation
from ntk_equiv.bounds._continuous_group import (
    ContinuousAction,
    ContinuousProblem,
    check_continuous_action,
    group_of,
    pose_problem,
)
from ntk_equiv.bounds._modulus import is_certified
from ntk_equiv.bounds._results import Sampled
from ntk_equiv.infinite import InfiniteEnsemble


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class GroupOrders:
    """The errors for each order of the subgroup that augments the data.

    Attributes:
        orders: the orders that were tried.
        upper: the certified error of each, the largest over the test samples; infinite if nothing is certified.
        measured: the measured error of each.
        certified_order: the smallest order that is certified to be within δ, or None.
        measured_order: the smallest order that was measured to be within δ, or None.

    Example:
        >>> from ntk_equiv import bounds
        >>> found = bounds.GroupOrders((2, 4, 8), (3.0, 0.6, 0.2), (1.0, 0.1, 0.1), certified_order=8, measured_order=4)
        >>> found
        <smallest order within δ: 8 certified, 4 measured, of 3 tried>
        >>> dict(zip(found.orders, found.upper))      # δ = 0.5: 8 suffices for sure, 4 by what was measured
        {2: 3.0, 4: 0.6, 8: 0.2}
    """

    orders: tuple[int, ...]
    upper: tuple[float, ...]
    measured: tuple[float, ...]
    certified_order: int | None
    measured_order: int | None

    def __repr__(self) -> str:
        certified, measured = (
            "none" if order is None else order for order in (self.certified_order, self.measured_order)
        )
        return f"<smallest order within δ: {certified} certified, {measured} measured, of {len(self.orders)} tried>"


def min_group_order(
    build: Callable[[int], InfiniteEnsemble],
    rep: ContinuousAction,
    x: Inputs,
    t: Scalar | None,
    delta: Numbers,
    orders: Sequence[int],
    *,
    rep_y: ContinuousAction | None = None,
    max_cells: int = 20_000,
) -> GroupOrders:
    """The smallest order of an augmenting subgroup for which the infinite ensemble is equivariant up to δ.

    All orders are tried, because the error need not decrease from one to the next. Use `reduction="mean"`, so that
    training is the same for all of them: under "sum", more elements act like longer training.

    Args:
        build: makes the ensemble augmented by the subgroup of a given order, such as C_k.
        rep: the representation of the continuous group on samples, or the group itself.
        x: test samples.
        t: one training time; None for that of the filter.
        delta: the tolerated error, at every test sample.
        orders: which orders to try.
        rep_y: the representation of the continuous group on outputs; None if they are invariant.
        max_cells: how many cells each certificate may cost, as in `certified_continuous_deviation`.

    Returns:
        A record with the errors of all orders, certified and measured.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import InfiniteEnsemble, augment, bounds, groups, reps, stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(64, 1.5, 0.1), stax.Relu(), stax.Dense(1))
        >>> def build(k):
        ...     x, y = jnp.array([[1.0, 2.0], [0.5, -1.0]]), jnp.array([1.0, -1.0])
        ...     train = augment(x, y, reps.matrix(groups.SO2.finite(k)))
        ...     return InfiniteEnsemble(kernel_fn, train, reduction="mean", method="dense")
        >>> test = jnp.array([[1.0, 0.0], [3.0, 1.0]])
        >>> found = bounds.min_group_order(build, groups.SO2, test, 2.0, 0.5, [2, 4])
        >>> found.certified_order, found.measured_order
        (4, 4)
    """
    delta = single_deviation(delta)
    orders = positive_integers(orders, "orders", fix="List the orders to try, such as (4, 8, 16).")
    function(build, "build", fix="Pass a function from the order of a group to an infinite ensemble.")
    positive_integer(max_cells, "max_cells")
    upper, measured = [], []
    for k in orders:
        problem = pose_problem(check_ensemble(build(k), "build"), rep, x, t, rep_y)
        measured.append(float(measure_deviation(problem).lower.max()))
        upper.append(_certify(problem, delta, measured[-1], max_cells))
    smallest = [_smallest_within(orders, errors, delta) for errors in (upper, measured)]
    return GroupOrders(orders, tuple(upper), tuple(measured), *smallest)


def _certify(problem: ContinuousProblem, delta: float, measured: float, max_cells: int) -> float:
    """Return a certified error, as good as is needed to tell whether it is within δ."""
    if not is_certified(problem.ens.kernel_fn):
        return float("inf")
    simple = float(bound_by_modulus(problem).upper.max())
    if simple <= delta or measured > delta:
        return simple
    # An enclosure half as wide as the room between measurement and δ is enough.
    width = max((delta - measured) / 2, 1e-9 * delta)
    return min(simple, float(enclose_deviation(problem, 0.0, width, max_cells).upper.max()))


def _smallest_within(orders: tuple[int, ...], errors: Sequence[float], delta: float) -> int | None:
    return min((k for k, error in zip(orders, errors, strict=True) if error <= delta), default=None)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class RandomAugmentation:
    """The equivariance error of ensembles augmented by randomly drawn elements, measured.

    Attributes:
        signed: the mean of D(g) over draws, [elements, n, channels]: the error if each member draws its own elements.
        absolute: the mean of ‖D(g)‖ over draws, [elements, n]: the expected error if members share a draw.
        elements: the g at which it was measured, [elements, d, d].

    Example:
        >>> import numpy as np
        >>> from ntk_equiv import bounds
        >>> signed = bounds.Sampled.mean(np.array([0.5, -0.25]), 0.95)          # two draws
        >>> absolute = bounds.Sampled.mean(np.array([0.5, 0.25]), 0.95)
        >>> found = bounds.RandomAugmentation(signed, absolute, np.eye(2)[None])
        >>> print(found.signed.value, found.absolute.value)
        0.125 0.375
        >>> found
        <largest equivariance error: 0.125 if members draw for themselves, 0.375 if they share a draw>
    """

    signed: Sampled
    absolute: Sampled
    elements: Float[np.ndarray, "elements d d"]

    def __repr__(self) -> str:
        own, shared = np.abs(np.asarray(self.signed)).max(), np.asarray(self.absolute).max()
        sizes = f"{own:.3g} if members draw for themselves, {shared:.3g} if they share a draw"
        return f"<largest equivariance error: {sizes}>"


def random_augmentation_deviation(
    build: Callable[[jax.Array], InfiniteEnsemble],
    rep: ContinuousAction,
    x: Inputs,
    t: Scalar | None = None,
    *,
    count: int,
    key: jax.Array,
    draws: int = 50,
    elements: int = 8,
    rep_y: ContinuousAction | None = None,
    with_identity: bool = False,
) -> RandomAugmentation:
    """The equivariance error of infinite ensembles whose data are augmented by random elements, over many draws.

    Args:
        build: makes the ensemble augmented by given elements of the group, matrices [count, d, d].
        rep: the representation of the continuous group on samples, or the group itself.
        x: test samples.
        t: one training time; None for that of the filter.
        count: how many elements augment the data.
        key: a JAX random key.
        draws: how many times they are drawn.
        elements: at how many elements of the group the error is measured.
        rep_y: the representation of the continuous group on outputs; None if they are invariant.
        with_identity: whether the identity is always one of the elements that augment.

    Returns:
        A record with the `signed` and the `absolute` error.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from ntk_equiv import InfiniteEnsemble, augment, bounds, groups, reps, stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(64, 1.5, 0.1), stax.Relu(), stax.Dense(1))
        >>> x, y = jnp.array([[1.0, 2.0], [0.5, -1.0]]), jnp.array([1.0, -1.0])
        >>> def build(matrices):
        ...     train = augment(x, y, reps.matrix(groups.SO2), elements=matrices)
        ...     return InfiniteEnsemble(kernel_fn, train, method="dense")
        >>> test, settings = jnp.array([[1.0, 0.0]]), {"count": 4, "key": jax.random.key(0), "draws": 10}
        >>> found = bounds.random_augmentation_deviation(build, groups.SO2, test, 1.0, **settings)
        >>> found.absolute.value.shape, bool((abs(found.signed.value[..., 0]) < found.absolute.value).all())
        ((8, 1), True)
    """
    group = group_of(check_continuous_action(rep))
    function(build, "build", fix="Pass a function from matrices [count, d, d] to an infinite ensemble.")
    random_key(key)
    if positive_integer(count, "count") < 1 + boolean(with_identity, "with_identity"):
        raise refusal("count", expected="at least 2 with the identity", got=count, fix="One element is the identity.")
    positive_integer(elements, "elements")
    positive_integer(draws, "draws")
    measuring, drawing = jax.random.split(key)
    chosen = np.asarray(group.sample(measuring, elements), dtype=float)
    results = []
    for own_key in jax.random.split(drawing, draws):
        matrices = group.sample(own_key, count)
        if with_identity:
            matrices = matrices.at[0].set(jnp.eye(group.n, dtype=matrices.dtype))
        problem = pose_problem(check_ensemble(build(matrices), "build"), rep, x, t, rep_y)
        everywhere = np.broadcast_to(chosen, (problem.n, *chosen.shape))
        results.append(problem.deviations(problem.outputs(problem.x), everywhere).swapaxes(0, 1))
    D = np.array(results)
    return RandomAugmentation(Sampled.mean(D), Sampled.mean(np.linalg.norm(D, axis=3)), chosen)
