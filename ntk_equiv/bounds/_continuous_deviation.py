"""The largest equivariance error over a continuous group: enclosed by branch and bound, or measured on a grid.

**Enclosed.** On a cell of the group with centre g₀, ρ_X moves x by an angle of at most β away from ρ_X(g₀)x, so the
angle θ_i to the training sample x_i changes by at most β. With V of `_modulus`,

    ‖f̄(gx) − f̄(g₀x)‖  ≤  Σ_i ‖α_i‖ max{ V(θ_i + β) − V(θ_i),  V(θ_i) − V(θ_i − β) },

plus ‖ρ_Y(g) − ρ_Y(g₀)‖ ‖f̄(x)‖ where outputs transform. The error at g₀ is attained; the error plus this slack is not
exceeded in the cell. For data augmented by a subgroup the error is the same at g and ag, so only a part of the group
that represents all cosets is searched.

**Measured** is the largest error among the elements that were evaluated, on a grid that is refined where the error is
large. The truth is never below it, and may be above.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int
from scipy.spatial.transform import Rotation

from ntk_equiv._check import positive_integer, refusal, scalar
from ntk_equiv._typing import Array, Inputs, Scalar
from ntk_equiv.bounds._branch_and_bound import (
    Cells,
    angles_between,
    are_redundant,
    cover_group,
    enclose_maximum,
    plane_rotations,
)
from ntk_equiv.bounds._checks import check_ensemble
from ntk_equiv.bounds._continuous_group import (
    ContinuousAction,
    ContinuousProblem,
    frequencies,
    largest_distance,
    pose_problem,
)
from ntk_equiv.bounds._modulus import check_certified, envelope
from ntk_equiv.bounds._results import Enclosure
from ntk_equiv.groups import SO2, SO3
from ntk_equiv.infinite import InfiniteEnsemble
from ntk_equiv.reps import Representation
from ntk_equiv.stax import KernelFn

# Cells that are evaluated together.
CELLS_AT_ONCE = 256
# How many numbers the angles between samples may take up at a time.
NUMBERS_AT_ONCE = 2**24
# Rounds of a measurement: a grid, and finer ones around the worst element so far.
ROUNDS = 4


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ContinuousDeviation(Enclosure):
    """The largest error max_g ‖f̄(ρ_X(g)x) − ρ_Y(g)f̄(x)‖ at each sample, enclosed; it counts as the upper value.

    Attributes:
        lower: attained by `elements`, [n].
        upper: exceeded by no element of the group, [n].
        certified: whether `upper` is proven, up to the rounding of f̄ itself.
        converged: whether the two are as close as `rtol` and `atol` ask for, [n]; if not, `max_cells` was too small.
        elements: the matrix at which the lower value is attained, [n, d, d].
        cells: how many elements were evaluated for each sample, [n].

    Example:
        >>> import numpy as np
        >>> from ntk_equiv import bounds
        >>> where = {"elements": np.eye(2)[None], "cells": np.array([64])}
        >>> bounds.ContinuousDeviation(np.array([0.28]), np.array([0.29]), certified=True, **where)
        <between [0.28] and [0.29], certified>
    """

    lower: Float[np.ndarray, "n"]
    upper: Float[np.ndarray, "n"]
    elements: Float[np.ndarray, "n d d"]
    cells: Int[np.ndarray, "n"]


def certified_continuous_deviation(
    ens: InfiniteEnsemble,
    rep: ContinuousAction,
    x: Inputs,
    t: Scalar | None = None,
    *,
    rep_y: ContinuousAction | None = None,
    rtol: float = 0.1,
    atol: float = 0.0,
    max_cells: int = 20_000,
) -> ContinuousDeviation:
    """The largest equivariance error over SO(2) or SO(3), enclosed as tightly as asked for, or as paid for.

    The enclosure is about the function as it is computed, up to the rounding of its evaluation: about the machine
    precision times Σ|α_i|Θ(x, x_i), which is not small for ill-conditioned Gram matrices.

    Args:
        ens: an ensemble with the kernel of a dense network from `ntk_equiv.stax`; the data need not be augmented.
        rep: the representation of the continuous group on samples, or the group itself for its own matrices.
        x: test samples, [n, features].
        t: one training time; None for that of the filter.
        rep_y: the representation of the continuous group on outputs; None if they are invariant.
        rtol: the relative width of the enclosure at which to stop.
        atol: the absolute width at which to stop.
        max_cells: how many elements of the group to evaluate for each sample, at most. An enclosure that is still wider
            is returned with `converged` False; it is certified as well.

    Returns:
        A record with `lower`, `upper` and `converged`, [n].

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import InfiniteEnsemble, augment, bounds, groups, reps, stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(64, 1.5, 0.1), stax.Relu(), stax.Dense(1))
        >>> x, y = jnp.array([[1.0, 2.0], [0.5, -1.0]]), jnp.array([1.0, -1.0])
        >>> ens = InfiniteEnsemble(kernel_fn, augment(x, y, reps.matrix(groups.SO2.finite(4))), method="dense")
        >>> test = jnp.array([[1.0, 0.0], [3.0, 1.0]])
        >>> found = bounds.certified_continuous_deviation(ens, groups.SO2, test, 2.0, rtol=0.01)
        >>> print(found.lower.round(4), (found.upper / found.lower < 1.01).all())
        [0.2879 1.7842] True
    """
    check_certified(check_ensemble(ens).kernel_fn)
    positive_integer(max_cells, "max_cells")
    for tolerance, argument in ((rtol, "rtol"), (atol, "atol")):
        scalar(tolerance, argument, at_least=0)
    if rtol + atol == 0:
        fix = "Because of rounding the two ends never meet."
        raise refusal("rtol", expected="positive if atol is 0", got=rtol, fix=fix)
    return enclose_deviation(pose_problem(ens, rep, x, t, rep_y), float(rtol), float(atol), max_cells)


def enclose_deviation(problem: ContinuousProblem, rtol: float, atol: float, max_cells: int) -> ContinuousDeviation:
    """Return the result of `certified_continuous_deviation`, for a certified kernel."""
    if problem.x.ndim != 2:
        fix = "Certified kernels are those of dense networks on vectors."
        raise refusal("x", expected="vectors [n, features]", got=f"shape {problem.x.shape}", fix=fix)
    start, evaluate = _cover_cosets(problem), _evaluator(problem)
    results = [
        enclose_maximum(partial(evaluate, x, own), start, rtol=rtol, atol=atol, max_cells=max_cells)
        for x, own in zip(problem.x, problem.outputs(problem.x), strict=True)
    ]
    lower, upper, elements, count = (np.array(column) for column in zip(*results, strict=True))
    converged = upper - lower <= atol + rtol * np.abs(lower)
    return ContinuousDeviation(lower, upper, True, elements, count, converged=converged)


def _cover_cosets(problem: ContinuousProblem) -> Cells:
    """Return cells that cover the group; for SO(2) and data augmented by C_k, only the first k-th of it."""
    if problem.group == SO2 and problem.subgroup is not None:
        return cover_group(SO2, 2 * np.pi / len(problem.subgroup))
    return cover_group(problem.group)


def _evaluator(
    problem: ContinuousProblem,
) -> Callable[[Array, np.ndarray, Cells], tuple[np.ndarray, np.ndarray]]:
    """Return a function that finds the errors and slacks of cells, at a test sample x where f̄(x) is `own`."""
    dtype, m_x, m_y = problem.x.dtype, frequencies(problem.rep_x), frequencies(problem.rep_y)
    data = (problem.kernel_fn, jnp.asarray(problem.ens.x), jnp.asarray(problem.coefficients(), dtype))
    actions = {"rep_x": problem.rep_x, "rep_y": problem.rep_y}

    def evaluate(x: Array, own: np.ndarray, cells: Cells) -> tuple[np.ndarray, np.ndarray]:
        elements, beta = cells.elements, 2 * np.arcsin(largest_distance(m_x, cells.radius) / 2)
        value, slack = np.empty(len(cells)), np.empty(len(cells))
        for first in range(0, len(cells), CELLS_AT_ONCE):
            # The last portion is filled up with repetitions, so that one compiled program serves all.
            part = np.resize(np.arange(first, min(first + CELLS_AT_ONCE, len(cells))), CELLS_AT_ONCE)
            cell = (jnp.asarray(v, dtype) for v in (own, elements[part], beta[part]))
            value[part], slack[part] = _errors_and_slacks(*data, x, *cell, **actions)
        slack += largest_distance(m_y, cells.radius) * np.linalg.norm(own)
        if problem.group == SO3 and problem.subgroup is not None:
            redundant = are_redundant(cells, angles_between(elements, problem.subgroup))
            slack = np.where(redundant, -np.inf, slack)
        return value, slack

    return evaluate


@partial(jax.jit, static_argnames=("rep_x", "rep_y"))
def _errors_and_slacks(
    kernel_fn: KernelFn,
    x_train: Array,
    alpha: Array,
    x: Array,
    own: Array,
    elements: Array,
    beta: Array,
    rep_x: Representation,
    rep_y: Representation,
) -> tuple[Array, Array]:
    """Return ‖f̄(gx) − ρ_Y(g)f̄(x)‖, and Σ_i ‖α_i‖ times how much the kernel can change within the angle β."""
    moved = rep_x.orbit(x, elements)
    mean = jnp.matmul(kernel_fn(moved, x_train, "ntk"), alpha, precision=jax.lax.Precision.HIGHEST)
    error = jnp.linalg.norm(mean - rep_y.orbit(own, elements), axis=1)
    angle = _angles(moved, x_train)
    near = jnp.stack([jnp.maximum(angle - beta[:, None], 0), angle, jnp.minimum(angle + beta[:, None], math.pi)])
    q2 = jnp.mean(x_train**2, axis=1)
    V = envelope(kernel_fn, jnp.full_like(q2, jnp.mean(x**2)), q2, near)
    change = jnp.maximum(V[1] - V[0], V[2] - V[1])
    return error, jnp.matmul(change, jnp.linalg.norm(alpha, axis=1), precision=jax.lax.Precision.HIGHEST)


def _angles(left: Array, right: Array) -> Array:
    """Return the angle of each vector on the left with each on the right, accurate also near 0 and π."""
    u, v = (a / jnp.maximum(jnp.linalg.norm(a, axis=1, keepdims=True), 1e-30) for a in (left, right))

    def with_all(one: Array) -> Array:
        # Not the arccosine, which loses half of the digits near 0 and π.
        difference, total = (jnp.linalg.norm(one[None] + sign * v, axis=1) for sign in (-1, 1))
        return 2 * jnp.arctan2(difference, total)

    return jax.lax.map(with_all, u, batch_size=min(len(u), max(1, NUMBERS_AT_ONCE // v.size)))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class MeasuredDeviation(ContinuousDeviation):
    """The largest error that was found at each sample; it counts as `lower`, [n]. `upper` is infinite: it is not known.

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
    ens: InfiniteEnsemble,
    rep: ContinuousAction,
    x: Inputs,
    t: Scalar | None = None,
    *,
    rep_y: ContinuousAction | None = None,
    count: int = 256,
) -> MeasuredDeviation:
    """The largest equivariance error over a grid of the group that is refined where the error is large.

    Args:
        ens: any infinite ensemble.
        rep: the representation of the continuous group on samples, or the group itself for its own matrices.
        x: test samples.
        t: one training time; None for that of the filter.
        rep_y: the representation of the continuous group on outputs; None if they are invariant.
        count: how many elements of the group are evaluated in each of four rounds: a grid, and three ever finer ones
            around the worst element so far. Groups other than SO(2) and SO(3) have four rounds of random elements.

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
    positive_integer(count, "count")
    return measure_deviation(pose_problem(ens, rep, x, t, rep_y), count)


def measure_deviation(problem: ContinuousProblem, count: int = 256) -> MeasuredDeviation:
    """Return the result of `measured_continuous_deviation`."""
    own = problem.outputs(problem.x)
    n, d = len(own), problem.group.n
    best, where = np.full(n, -1.0), np.broadcast_to(np.eye(d), (n, d, d)).copy()
    for number in range(ROUNDS):
        elements = np.stack([_elements_of_round(problem, centre, count, number) for centre in where])
        sizes = np.linalg.norm(problem.deviations(own, elements), axis=2)
        better = np.flatnonzero(sizes.max(axis=1) > best)
        best[better] = sizes.max(axis=1)[better]
        where[better] = elements[better, sizes.argmax(axis=1)[better]]
    return MeasuredDeviation(best, np.full(n, np.inf), False, where, np.full(n, ROUNDS * count))


def _elements_of_round(problem: ContinuousProblem, centre: np.ndarray, count: int, number: int) -> np.ndarray:
    """Return the elements of one round: all over the group at first, then within a shrinking reach of the centre."""
    if problem.group == SO2:
        order = 1 if problem.subgroup is None else len(problem.subgroup)
        if number == 0:
            return plane_rotations(2 * np.pi / order * np.arange(count) / count)
        reach = 2 * np.pi / order / count * (4 / count) ** (number - 1)
        return plane_rotations(np.linspace(-reach, reach, count)) @ centre
    if problem.group == SO3 and number:
        # SO(3) has the volume 8π², so neighbours on the grid are about (8π²/count)^⅓ apart.
        reach = 2 * (8 * np.pi**2 / count) ** (1 / 3) / 3**number
        steps = np.asarray(jax.random.uniform(jax.random.key(number), (count, 3), minval=-1, maxval=1), dtype=float)
        return Rotation.from_rotvec(reach * steps).as_matrix() @ centre
    if problem.group == SO3:
        return SO3.grid(count)
    return np.asarray(problem.group.sample(jax.random.key(number), count), dtype=float)
