"""The invariance error of an infinite ensemble under a continuous group of which a finite subgroup augmented the data.

Lemma "Bound for continuous groups". For every g there is an a of the subgroup with ‖ρ_X(g) − ρ_X(a)‖ ≤ ε, and f̄ is
exact on a; with α = φ_t(Θ)y, β = 2 arcsin(ε/2) and the modulus ω_i of Θ(x, ·) at the norm of x_i,

    ‖f̄(ρ_X(g)x) − ρ_Y(g)f̄(x)‖  ≤  Σ_i ‖α_i‖ ω_i(β)  +  ‖ρ_Y(g) − ρ_Y(a)‖ ‖f̄(x)‖  =  ε C(x) + …

The paper bounds ω_i by a Lipschitz constant Ĉ(x)‖x_i‖ε of ∂f/∂w and then uses the Cauchy–Schwarz inequality,

    ε Ĉ(x) √(Σ_i ‖x_i‖²) √(Σ_i ‖α_i‖²),

which needs smooth activations: for ReLU ∂f/∂w jumps. The modulus needs no such assumption and is smaller.
The nearest a for ρ_X need not be the nearest for ρ_Y: where labels transform, a is the nearest rotation for both.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ntk_equiv._check import one_of, positive_integer, refusal
from ntk_equiv._gram import gram
from ntk_equiv._typing import Array, Inputs
from ntk_equiv.bounds import _ranges
from ntk_equiv.bounds._cells import cells
from ntk_equiv.bounds._discretization import covering_angle, discretization_error
from ntk_equiv.bounds._modulus import check_certified, largest_increase
from ntk_equiv.bounds._records import Enclosure
from ntk_equiv.bounds._setting import Setting, setting
from ntk_equiv.bounds._weights import farthest, weights
from ntk_equiv.infinite import InfiniteEnsemble

STEPS = 2048
# Pairs of points whose kernels are looked at together.
PAIRS = 4096


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class GroupBound(Enclosure):
    """A bound on max_g ‖f̄(ρ_X(g)x) − ρ_Y(g)f̄(x)‖ at each point, with its factors; it counts as `upper`, [n].

    Attributes:
        lower: 0, what the identity attains.
        upper: the bound, `epsilon * constant + rotation`.
        certified: whether it is proven, rather than estimated.
        epsilon: the discretization error of ρ_X.
        beta: the angle 2 arcsin(ε/2).
        constant: C(x), [n].
        rotation: the term of outputs that transform, [n].
        coefficients: Σ_g ‖α_(g,i)‖ of each base point, [base points]; where it is estimated, ‖α_i‖ of each training
            point, [N].
        moduli: how much Θ(x, ·) can change at its norm, [n, base points]; where it is estimated, [n, N].

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import InfiniteEnsemble, augment, bounds, groups, reps, stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(64, 1.5, 0.1), stax.Relu(), stax.Dense(1))
        >>> x, y = jnp.array([[1.0, 2.0], [0.5, -1.0]]), jnp.array([1.0, -1.0])
        >>> ens = InfiniteEnsemble(kernel_fn, augment(x, y, reps.matrix(groups.SO2.finite(4))), method="dense")
        >>> bound = bounds.continuous_group_bound(ens, groups.SO2, jnp.array([[1.0, 0.0]]), 2.0)
        >>> print((bound.epsilon * bound.constant + bound.rotation).round(2), bound.upper.round(2))
        [8.95] [8.95]
    """

    epsilon: float
    beta: float
    constant: Float[np.ndarray, "n"]
    rotation: Float[np.ndarray, "n"]
    coefficients: Float[np.ndarray, "base"]
    moduli: Float[np.ndarray, "n base"]


def continuous_group_bound(
    ens: InfiniteEnsemble, rep: Any, x: Inputs, t: Any = None, *, rep_y: Any = None, form: str = "modulus"
) -> GroupBound:
    """A certified bound on the equivariance error of the infinite ensemble under all of a continuous group.

        max_g ‖f̄(ρ_X(g)x) − ρ_Y(g)f̄(x)‖ ≤ ε C(x) + max_g ‖ρ_Y(g) − ρ_Y(a)‖ ‖f̄(x)‖

    It holds for the exact function; like all that follows from an eigendecomposition, α is computed up to rounding. To
    compare subgroups of different order, use `reduction="mean"`: under "sum" at a fixed rate, the same t means longer
    training for a larger order, and Σ|α| grows with it.

    Args:
        ens: trained on data augmented by a finite subgroup, with the kernel of a dense network from `ntk_equiv.stax`.
        rep: the representation of the continuous group on points, or the group itself for its own matrices.
        x: test points, [n, features].
        t: one training time; None for that of the filter.
        rep_y: the representation of the continuous group on outputs; None if they are invariant.
        form: "modulus"; or "lipschitz", the paper's own, for smooth activations.

    Returns:
        A record with `upper` [n] and all its factors.

    Raises:
        ValueError: the kernel is not certified, the data are not augmented by a subgroup, or "lipschitz" is asked for
            an activation with a kink.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import InfiniteEnsemble, augment, bounds, groups, reps, stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(64, 1.5, 0.1), stax.Relu(), stax.Dense(1))
        >>> x, y = jnp.array([[1.0, 2.0], [0.5, -1.0]]), jnp.array([1.0, -1.0])
        >>> ens = InfiniteEnsemble(kernel_fn, augment(x, y, reps.matrix(groups.SO2.finite(4))), method="dense")
        >>> bound = bounds.continuous_group_bound(ens, groups.SO2, jnp.array([[1.0, 0.0], [3.0, 1.0]]), 2.0)
        >>> print(bound.upper.round(2), round(bound.epsilon, 3), bound.certified)
        [ 8.95 28.25] 0.765 True
    """
    one_of(form, ("modulus", "lipschitz"), "form")
    check_certified(_ranges.ensemble(ens).kernel_fn)
    found = setting(ens, rep, x, t, rep_y)
    subgroup = found.needs_subgroup()
    if form == "lipschitz" and not ens.kernel_fn.certificate.smooth:  # type: ignore[attr-defined]
        fix = (
            "Its proof needs ∂f/∂w to be Lipschitz continuous in the input, which a kink prevents. "
            'form="modulus" needs no such assumption, and holds for ReLU as well.'
        )
        raise refusal("form", expected='"modulus" for activations with a kink', got='"lipschitz"', fix=fix)
    epsilon, rotation = _nearest(found, subgroup)
    make = _by_modulus if form == "modulus" else _by_lipschitz
    return make(found, epsilon, rotation)


def continuous_group_estimate(
    ens: InfiniteEnsemble, rep: Any, x: Inputs, t: Any = None, *, key: Any, rep_y: Any = None, samples: int = 200
) -> GroupBound:
    """What the lemma would give if the largest change of the kernel that was seen were the largest there is.

    An estimate and no bound, for any architecture: the modulus of Θ(x, ·) at each training point is taken from
    randomly drawn g and the nearest element of the subgroup.

    Args:
        ens: trained on data augmented by a finite subgroup.
        rep: the representation of the continuous group on points, or the group itself.
        x: test points.
        t: one training time; None for that of the filter.
        key: a JAX random key.
        rep_y: the representation on outputs; None if they are invariant.
        samples: how many elements are drawn.

    Returns:
        A record like that of `continuous_group_bound`, with `certified` False.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from ntk_equiv import InfiniteEnsemble, augment, bounds, groups, reps, stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(64, 1.5, 0.1), stax.Relu(), stax.Dense(1))
        >>> x, y = jnp.array([[1.0, 2.0], [0.5, -1.0]]), jnp.array([1.0, -1.0])
        >>> ens = InfiniteEnsemble(kernel_fn, augment(x, y, reps.matrix(groups.SO2.finite(4))), method="dense")
        >>> test = jnp.array([[1.0, 0.0]])
        >>> found = bounds.continuous_group_estimate(ens, groups.SO2, test, 2.0, key=jax.random.key(0))
        >>> bound = bounds.continuous_group_bound(ens, groups.SO2, test, 2.0)
        >>> found.certified, bool(found.upper < bound.upper)      # never above the bound, where there is one
        (False, True)
    """
    found = setting(ens, rep, x, t, rep_y)
    subgroup = found.needs_subgroup()
    drawn = np.asarray(found.group.sample(key, positive_integer(samples, "samples")), dtype=float)
    distances = np.linalg.norm(drawn[:, None] - subgroup[None], axis=(2, 3))
    nearest = subgroup[np.argmin(distances, axis=1)]
    there, here = (
        gram(ens.kernel_fn, found.moved(np.broadcast_to(g, (found.n, *g.shape))), ens.x, "ntk")
        for g in (drawn, nearest)
    )
    change = np.abs(np.asarray(there, dtype=float) - np.asarray(here, dtype=float)).reshape(found.n, samples, -1)
    sizes = np.linalg.norm(found.coefficients(), axis=1)
    return _record(*_nearest(found, subgroup), sizes, change.max(axis=1), certified=False)


def _nearest(found: Setting, subgroup: np.ndarray) -> tuple[float, np.ndarray]:
    """ε, and ‖ρ_Y(g) − ρ_Y(a)‖ ‖f̄(x)‖ at each point: both for one and the same a, the nearest of the subgroup."""
    if found.is_invariant:
        return float(discretization_error(found.rep_x, subgroup)), np.zeros(found.n)
    cells(found.group)  # refuses groups whose covering angle is not known
    angle = covering_angle(subgroup)
    turned = float(farthest(weights(found.rep_y), angle))
    return float(farthest(weights(found.rep_x), angle)), turned * np.linalg.norm(found.outputs(found.x), axis=1)


def _by_modulus(found: Setting, epsilon: float, rotation: np.ndarray) -> GroupBound:
    def modulus(q1: Array, q2: Array) -> Array:
        return largest_increase(found.kernel_fn, q1, q2, jnp.full_like(q1, _angle(epsilon)))[1]

    return _record(epsilon, rotation, _sizes(found), _on_pairs(modulus, found), certified=True)


def _by_lipschitz(found: Setting, epsilon: float, rotation: np.ndarray) -> GroupBound:
    """Ĉ(x) is the largest slope of Θ(x, ·) along the spheres of the training points, per length of a chord."""
    base, alpha = np.asarray(found.ens.train.base_x, dtype=float), found.coefficients()
    slopes = _on_pairs(partial(_steepest, found.kernel_fn), found)
    beta, norms = _angle(epsilon), np.linalg.norm(base, axis=1)
    arc = beta / epsilon if epsilon else 1.0
    largest = np.max(slopes / np.where(norms > 0, norms, np.inf), axis=1) * arc
    order = len(alpha) // len(base)
    constant = largest * np.sqrt(order * np.sum(norms**2)) * np.sqrt(np.sum(alpha**2))
    upper, moduli = epsilon * constant + rotation, epsilon * largest[:, None] * norms
    return GroupBound(0 * upper, upper, True, epsilon, beta, constant, rotation, _sizes(found), moduli)


def _angle(epsilon: float) -> float:
    """β, the angle between vectors of one length whose distance is ε times that length."""
    return 2 * math.asin(min(epsilon / 2, 1))


def _sizes(found: Setting) -> np.ndarray:
    """Σ_g ‖α_(g,i)‖ of each base point."""
    return np.linalg.norm(found.coefficients(), axis=1).reshape(-1, found.ens.train.n).sum(axis=0)


def _on_pairs(function: Callable, found: Setting) -> np.ndarray:
    """A function of the mean squared norms of test and base points, [n, base points], some thousand pairs at a time."""
    q1, q2 = (np.mean(np.asarray(v, dtype=float) ** 2, axis=-1) for v in (found.x, found.ens.train.base_x))
    pairs = [v.reshape(-1) for v in np.broadcast_arrays(q1[:, None], q2[None, :])]
    count = len(pairs[0])
    step, values = min(count, PAIRS), np.empty(count)
    for start in range(0, count, step):
        part = np.resize(np.arange(start, min(start + step, count)), step)  # always the same shape
        values[part] = function(*(jnp.asarray(q[part], found.x.dtype) for q in pairs))
    return values.reshape(len(q1), len(q2))


@jax.jit
def _steepest(kernel_fn: Any, q1: Array, q2: Array) -> Array:
    """An upper bound on sup V' = sup h'(cos θ) sin θ over [0, π/2], the product of two monotone functions."""
    angle = jnp.arange(STEPS + 1, dtype=q1.dtype) * (math.pi / 2 / STEPS)
    cosine = jnp.broadcast_to(jnp.cos(angle[:-1])[:, None], (STEPS, len(q1)))
    wide = [jnp.broadcast_to(q, cosine.shape) for q in (q1, q2)]
    _, slope = jax.jvp(lambda c: kernel_fn.radial(*wide, c, "ntk"), (cosine,), (jnp.ones_like(cosine),))
    return jnp.max(slope * jnp.sin(angle[1:])[:, None], axis=0)


def _record(
    epsilon: float, rotation: np.ndarray, sizes: np.ndarray, moduli: np.ndarray, *, certified: bool
) -> GroupBound:
    """The bound Σ_i ‖α_i‖ ω_i plus the term of the outputs, with its factors."""
    own = moduli @ sizes
    constant = own / epsilon if epsilon else 0 * own
    return GroupBound(0 * own, own + rotation, certified, epsilon, _angle(epsilon), constant, rotation, sizes, moduli)
