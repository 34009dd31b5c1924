"""The largest equivariance error over a continuous group, enclosed from both sides by branch and bound.

On a cell of the group with centre g₀, ρ_X moves x by an angle of at most β away from ρ_X(g₀)x, and so the angle θ_i to
the training point x_i by at most β. With V of `_modulus`,

    ‖f̄(gx) − f̄(g₀x)‖  ≤  Σ_i ‖α_i‖ max{ V(θ_i + β) − V(θ_i),  V(θ_i) − V(θ_i − β) },

plus ‖ρ_Y(g) − ρ_Y(g₀)‖ ‖f̄(x)‖ where outputs transform. The error at g₀ is attained, the error plus this slack is not
exceeded in the cell. For data augmented by a subgroup the error is the same at g and ag, and a part of the group that
represents all cosets is searched.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from ntk_equiv._check import positive_integer, refusal, scalar
from ntk_equiv._typing import Array, Inputs
from ntk_equiv.bounds import _ranges
from ntk_equiv.bounds._branching import maximum
from ntk_equiv.bounds._cells import Cells, angles_between, beyond, cells
from ntk_equiv.bounds._modulus import check_certified, envelope
from ntk_equiv.bounds._records import Enclosure
from ntk_equiv.bounds._setting import Setting, setting
from ntk_equiv.bounds._weights import farthest, weights
from ntk_equiv.groups import SO2, SO3
from ntk_equiv.infinite import InfiniteEnsemble

CHUNK = 256
# Numbers held at a time for the angles between points.
ROOM = 2**24


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ContinuousDeviation(Enclosure):
    """max_g ‖f̄(ρ_X(g)x) − ρ_Y(g)f̄(x)‖ at each point, between two values; it counts as the upper one.

    Attributes:
        lower: attained by `elements`, [n].
        upper: exceeded by no element of the group, [n].
        certified: whether `upper` is proven, up to the rounding of f̄ itself.
        converged: whether the two are as close as `rtol` and `atol` ask for, [n]; if not, `max_cells` ended the search.
        elements: the matrix at which the lower value is attained, [n, d, d].
        cells: how many elements were looked at for each point, [n].

    Example:
        >>> import numpy as np
        >>> from ntk_equiv import bounds
        >>> where = {"elements": np.eye(2)[None], "cells": np.array([64])}
        >>> bounds.ContinuousDeviation(np.array([0.28]), np.array([0.29]), certified=True, **where)
        <between [0.28] and [0.29], certified>
    """

    elements: Float[np.ndarray, "n d d"]
    cells: Int[np.ndarray, "n"]


def certified_continuous_deviation(
    ens: InfiniteEnsemble,
    rep: Any,
    x: Inputs,
    t: Any = None,
    *,
    rep_y: Any = None,
    rtol: float = 0.1,
    atol: float = 0.0,
    max_cells: int = 20_000,
) -> ContinuousDeviation:
    """The largest equivariance error over SO(2) or SO(3), enclosed as tightly as asked for, or as paid for.

    It certifies the function that is computed, up to the rounding of its evaluation: about the machine precision times
    Σ|α_i|Θ(x, x_i), which for ill-conditioned Gram matrices is not small.

    Args:
        ens: with the kernel of a dense network from `ntk_equiv.stax`; the data need not be augmented.
        rep: the representation of the continuous group on points, or the group itself for its own matrices.
        x: test points, [n, features].
        t: one training time; None for that of the filter.
        rep_y: the representation of the continuous group on outputs; None if they are invariant.
        rtol: the relative width of the enclosure at which to stop.
        atol: the absolute width at which to stop.
        max_cells: how many elements of the group to look at for each point, at most; then the enclosure reached is
            returned, as certified as any, and its `converged` is False.

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
    check_certified(_ranges.ensemble(ens).kernel_fn)
    positive_integer(max_cells, "max_cells")
    found = setting(ens, rep, x, t, rep_y)
    if found.x.ndim != 2:
        fix = "Certified kernels are those of dense networks on vectors."
        raise refusal("x", expected="vectors [n, features]", got=f"shape {found.x.shape}", fix=fix)
    for tolerance, argument in ((rtol, "rtol"), (atol, "atol")):
        scalar(tolerance, argument, at_least=0)
    if rtol + atol == 0:
        raise refusal("rtol", expected="positive, or atol", got=(rtol, atol), fix="Rounding alone keeps the two apart.")
    searched, bounded = _start(found), _bounded(found)
    results = [
        maximum(partial(bounded, x, own), searched, rtol=float(rtol), atol=float(atol), max_cells=max_cells)
        for x, own in zip(found.x, found.outputs(found.x), strict=True)
    ]
    lower, upper, elements, count = (np.array(column) for column in zip(*results, strict=True))
    converged = upper - lower <= atol + rtol * np.abs(lower)
    return ContinuousDeviation(lower, upper, True, elements, count, converged=converged)


def _start(found: Setting) -> Cells:
    """Cells that cover the group; for SO(2) and data augmented by C_k, only the first k-th of it."""
    if found.group == SO2 and found.subgroup is not None:
        return cells(SO2, 2 * np.pi / len(found.subgroup))
    return cells(found.group)


def _bounded(found: Setting) -> Callable:
    """The function that bounds the error at a test point x, where f̄(x) is `own`, over cells."""
    dtype, frequencies = found.x.dtype, (weights(found.rep_x), weights(found.rep_y))
    data = (found.kernel_fn, jnp.asarray(found.ens.x), jnp.asarray(found.coefficients(), dtype))
    actions = {"rep_x": found.rep_x, "rep_y": found.rep_y}

    def bounded(x: Array, own: np.ndarray, parts: Cells) -> tuple[np.ndarray, np.ndarray]:
        elements, beta = parts.elements, 2 * np.arcsin(farthest(frequencies[0], parts.radius) / 2)
        value, slack = np.empty(len(parts)), np.empty(len(parts))
        for first in range(0, len(parts), CHUNK):
            chunk = np.resize(np.arange(first, min(first + CHUNK, len(parts))), CHUNK)  # always the same shape
            cell = (jnp.asarray(v, dtype) for v in (own, elements[chunk], beta[chunk]))
            value[chunk], slack[chunk] = _errors(*data, x, *cell, **actions)
        slack += farthest(frequencies[1], parts.radius) * np.linalg.norm(own)
        if found.group == SO3 and found.subgroup is not None:
            outside = beyond(parts, angles_between(elements, found.subgroup))
            slack = np.where(outside, -np.inf, slack)
        return value, slack

    return bounded


@partial(jax.jit, static_argnames=("rep_x", "rep_y"))
def _errors(
    kernel_fn: Any,
    points: Array,
    alpha: Array,
    x: Array,
    own: Array,
    elements: Array,
    beta: Array,
    rep_x: Any,
    rep_y: Any,
) -> tuple[Array, Array]:
    """‖f̄(gx) − ρ_Y(g)f̄(x)‖ at the elements, and Σ_i ‖α_i‖ times how much the kernel can change within the angle β."""
    moved = rep_x.orbit(x, elements)
    mean = jnp.matmul(kernel_fn(moved, points, "ntk"), alpha, precision=jax.lax.Precision.HIGHEST)
    error = jnp.linalg.norm(mean - rep_y.orbit(own, elements), axis=1)
    angle = _angles(moved, points)
    near = jnp.stack([jnp.maximum(angle - beta[:, None], 0), angle, jnp.minimum(angle + beta[:, None], math.pi)])
    q2 = jnp.mean(points**2, axis=1)
    V = envelope(kernel_fn, jnp.full_like(q2, jnp.mean(x**2)), q2, near)
    change = jnp.maximum(V[1] - V[0], V[2] - V[1])
    return error, jnp.matmul(change, jnp.linalg.norm(alpha, axis=1), precision=jax.lax.Precision.HIGHEST)


def _angles(left: Array, right: Array) -> Array:
    """The angle of each vector on the left with each on the right, accurate also near 0 and π."""
    u, v = (a / jnp.maximum(jnp.linalg.norm(a, axis=1, keepdims=True), 1e-30) for a in (left, right))

    def with_all(one: Array) -> Array:
        apart, together = (jnp.linalg.norm(one[None] + sign * v, axis=1) for sign in (-1, 1))
        return 2 * jnp.arctan2(apart, together)

    return jax.lax.map(with_all, u, batch_size=min(len(u), max(1, ROOM // v.size)))
