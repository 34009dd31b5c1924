"""The equivariance error of an infinite ensemble under a continuous group, measured.

Measured means: the largest among the elements that were looked at, a grid that is refined where the error is large.
The truth is not below, and may be above; bounds stand beside it. The error can fall exponentially with the order of the
subgroup that augments, and need not be monotone in it, so that orders are tried one after the other.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from scipy.spatial.transform import Rotation

from ntk_equiv._check import function, positive_integer, positive_integers
from ntk_equiv._typing import Inputs
from ntk_equiv.bounds import _ranges
from ntk_equiv.bounds._cells import rotations
from ntk_equiv.bounds._certified import ContinuousDeviation, certified_continuous_deviation
from ntk_equiv.bounds._continuous import continuous_group_bound
from ntk_equiv.bounds._modulus import is_certified
from ntk_equiv.bounds._setting import Setting, setting
from ntk_equiv.bounds._weights import matrices
from ntk_equiv.groups import SO2, SO3
from ntk_equiv.infinite import InfiniteEnsemble

ROUNDS = 4


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class MeasuredDeviation(ContinuousDeviation):
    """The largest error that was found, at each point; it counts as `lower`, [n]. `upper` is infinite: not known.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import InfiniteEnsemble, augment, bounds, groups, reps, stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(64, 1.5, 0.1), stax.Relu(), stax.Dense(1))
        >>> x, y = jnp.array([[1.0, 2.0], [0.5, -1.0]]), jnp.array([1.0, -1.0])
        >>> ens = InfiniteEnsemble(kernel_fn, augment(x, y, reps.matrix(groups.SO2.finite(4))), method="dense")
        >>> bounds.measured_continuous_deviation(ens, groups.SO2, jnp.array([[1.0, 0.0]]), 2.0)
        <at least [0.288], measured>
    """

    def __repr__(self) -> str:
        return f"<at least {np.array2string(self.lower, precision=3, threshold=6)}, measured>"

    @property
    def _value(self) -> np.ndarray:
        return np.asarray(self.lower)


def measured_continuous_deviation(
    ens: InfiniteEnsemble, rep: Any, x: Inputs, t: Any = None, *, rep_y: Any = None, count: int = 256
) -> MeasuredDeviation:
    """The largest equivariance error over a grid of the group that is refined where the error is large.

    Args:
        ens: any infinite ensemble.
        rep: the representation of the continuous group on points, or the group itself for its own matrices.
        x: test points.
        t: one training time; None for that of the filter.
        rep_y: the representation of the continuous group on outputs; None if they are invariant.
        count: how many elements of the group in each of four rounds: a grid, and three ever finer ones around the
            worst element so far. For groups other than SO(2) and SO(3), four rounds of random elements.

    Returns:
        A record with `lower` [n], which it counts as, and the elements that attain it.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import InfiniteEnsemble, augment, bounds, groups, reps, stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(64, 1.5, 0.1), stax.Relu(), stax.Dense(1))
        >>> x, y = jnp.array([[1.0, 2.0], [0.5, -1.0]]), jnp.array([1.0, -1.0])
        >>> ens = InfiniteEnsemble(kernel_fn, augment(x, y, reps.matrix(groups.SO2.finite(4))), method="dense")
        >>> test = jnp.array([[1.0, 0.0], [3.0, 1.0]])
        >>> print(bounds.measured_continuous_deviation(ens, groups.SO2, test, 2.0).lower.round(4))
        [0.2879 1.7842]
    """
    found = setting(ens, rep, x, t, rep_y)
    count = positive_integer(count, "count")
    own = found.outputs(found.x)
    n = len(own)
    best, where = np.full(n, -1.0), np.broadcast_to(np.eye(found.group.n), (n, found.group.n, found.group.n)).copy()
    for number in range(ROUNDS):
        elements = np.stack([_elements_of_round(found, centre, count, number) for centre in where])
        sizes = np.linalg.norm(deviations(found, own, elements), axis=2)
        better = np.flatnonzero(sizes.max(axis=1) > best)
        best[better] = sizes.max(axis=1)[better]
        where[better] = elements[better, sizes.argmax(axis=1)[better]]
    return MeasuredDeviation(best, np.full(n, np.inf), False, where, np.full(n, ROUNDS * count))


def deviations(found: Setting, own: np.ndarray, elements: np.ndarray) -> np.ndarray:
    """f̄(ρ_X(g)x) − ρ_Y(g)f̄(x) of each test point for elements of its own [n, count, d, d], as [n, count, channels].

    f̄(x) is `own`, [n, channels].
    """
    n, count = elements.shape[:2]
    turned = own[:, None]
    if not found.is_invariant:
        turns = matrices(found.rep_y, elements.reshape(n * count, *elements.shape[2:]))
        turned = np.einsum("ngij,nj->ngi", turns.reshape(n, count, *turns.shape[1:]), own)
    return found.outputs(found.moved(elements)).reshape(n, count, -1) - turned


def _elements_of_round(found: Setting, centre: np.ndarray, count: int, number: int) -> np.ndarray:
    """Where one round looks: all over the group, then within a reach around the centre that shrinks."""
    if found.group == SO2:
        order = 1 if found.subgroup is None else len(found.subgroup)
        if number == 0:
            return rotations(2 * np.pi / order * np.arange(count) / count)
        reach = 2 * np.pi / order / count * (4 / count) ** (number - 1)
        return rotations(np.linspace(-reach, reach, count)) @ centre
    if found.group == SO3 and number:
        reach = 2 * (8 * np.pi**2 / count) ** (1 / 3) / 3**number
        steps = np.asarray(jax.random.uniform(jax.random.key(number), (count, 3), minval=-1, maxval=1), dtype=float)
        return Rotation.from_rotvec(reach * steps).as_matrix() @ centre
    if found.group == SO3:
        return SO3.grid(count)
    return np.asarray(found.group.sample(jax.random.key(number), count), dtype=float)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class GroupOrders:
    """What was found for each order of the subgroup that augments.

    Attributes:
        orders: the orders that were tried.
        upper: the certified error of each, the largest over the test points; infinite if nothing is certified.
        measured: the measured error of each.
        certified_order: the smallest order that is certified to be within δ, or None.
        measured_order: the smallest order that was measured to be within δ, or None.

    Example:
        >>> from ntk_equiv import bounds
        >>> found = bounds.GroupOrders((2, 4, 8), (3.0, 0.6, 0.2), (1.0, 0.1, 0.1), certified_order=8, measured_order=4)
        >>> found
        <smallest order within δ: 8 certified, 4 measured, of 3 tried>
        >>> dict(zip(found.orders, found.upper))      # within δ = 0.5: surely from 8, by what was seen from 4
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
    rep: Any,
    x: Inputs,
    t: Any,
    delta: Any,
    orders: Sequence[int],
    *,
    rep_y: Any = None,
    max_cells: int = 20_000,
) -> GroupOrders:
    """The smallest order of an augmenting subgroup for which the infinite ensemble is equivariant up to δ.

    All orders are tried, because the error need not decrease from one to the next. For training to be the same for all
    of them, use `reduction="mean"`; under "sum" an ensemble with more elements is trained as if for a longer time.

    Args:
        build: makes the ensemble augmented by the subgroup of a given order, such as C_k.
        rep: the representation of the continuous group on points, or the group itself.
        x: test points.
        t: one training time; None for that of the filter.
        delta: the tolerated error, at every test point.
        orders: which orders to try.
        rep_y: the representation of the continuous group on outputs; None if they are invariant.
        max_cells: how much to pay for each certificate, as in `certified_continuous_deviation`.

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
    delta, upper, measured = _ranges.one_deviation(delta), [], []
    orders = positive_integers(orders, "orders", fix="List the orders to try, such as (4, 8, 16).")
    function(build, "build", fix="Pass a function from the order of a group to an infinite ensemble.")
    for k in orders:
        ens = _ranges.ensemble(build(k), "build")
        measured.append(float(measured_continuous_deviation(ens, rep, x, t, rep_y=rep_y).lower.max()))
        upper.append(_certified(ens, rep, x, t, rep_y, delta, measured[-1], max_cells))
    return GroupOrders(
        orders, tuple(upper), tuple(measured), _first(orders, upper, delta), _first(orders, measured, delta)
    )


def _certified(
    ens: InfiniteEnsemble, rep: Any, x: Inputs, t: Any, rep_y: Any, delta: float, measured: float, max_cells: int
) -> float:
    """A certified error, as good as is needed to tell whether it is within δ."""
    if not is_certified(ens.kernel_fn):
        return float("inf")
    simple = float(continuous_group_bound(ens, rep, x, t, rep_y=rep_y).upper.max())
    if simple <= delta or measured > delta:
        return simple
    width = max((delta - measured) / 2, 1e-9 * delta)
    settings: dict = {"rep_y": rep_y, "rtol": 0.0, "atol": width, "max_cells": max_cells}
    found = certified_continuous_deviation(ens, rep, x, t, **settings)
    return min(simple, float(found.upper.max()))


def _first(orders: tuple[int, ...], errors: Sequence[float], delta: float) -> int | None:
    return min((k for k, error in zip(orders, errors, strict=True) if error <= delta), default=None)
