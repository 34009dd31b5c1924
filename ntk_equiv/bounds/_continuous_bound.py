"""Lemma "Bound for continuous groups": how far f̄ is from equivariant if a finite subgroup augmented the data.

For every g there is an a of the subgroup with ‖ρ_X(g) − ρ_X(a)‖ ≤ ε, and f̄ is exactly equivariant under a. With
α = φ_t(Θ)y, β = 2 arcsin(ε/2) and the modulus ω_i of Θ(x, ·) at the norm of x_i,

    ‖f̄(ρ_X(g)x) − ρ_Y(g)f̄(x)‖  ≤  Σ_i ‖α_i‖ ω_i(β)  +  ‖ρ_Y(g) − ρ_Y(a)‖ ‖f̄(x)‖  =  ε C(x) + …

The paper bounds ω_i by a Lipschitz constant Ĉ(x)‖x_i‖ε of ∂f/∂w and then uses the Cauchy–Schwarz inequality,

    ε Ĉ(x) √(Σ_i ‖x_i‖²) √(Σ_i ‖α_i‖²),

which needs smooth activations: for ReLU ∂f/∂w jumps. The modulus needs no such assumption and is smaller.
The nearest a for ρ_X need not be the nearest for ρ_Y. Where labels transform, a is the nearest rotation for both.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ntk_equiv._check import one_of, positive_integer, random_key, refusal
from ntk_equiv._gram import gram
from ntk_equiv._typing import Array, Inputs, Scalar
from ntk_equiv.bounds._branch_and_bound import cover_group
from ntk_equiv.bounds._checks import check_ensemble
from ntk_equiv.bounds._continuous_group import (
    ContinuousAction,
    ContinuousProblem,
    frequencies,
    largest_distance,
    pose_problem,
)
from ntk_equiv.bounds._discretization import covering_angle, enclose_discretization_error
from ntk_equiv.bounds._modulus import check_certified, kernel_modulus
from ntk_equiv.bounds._results import Enclosure
from ntk_equiv.infinite import InfiniteEnsemble
from ntk_equiv.stax import KernelFn

# Steps of the angle in the search for the steepest slope.
STEPS = 2048
# Pairs of samples whose kernels are evaluated together.
PAIRS_AT_ONCE = 4096


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class GroupBound(Enclosure):
    """A bound on max_g ‖f̄(ρ_X(g)x) − ρ_Y(g)f̄(x)‖ at each sample, with its factors; it counts as `upper`, [n].

    Attributes:
        lower: 0, which the identity attains.
        upper: the bound, `epsilon * constant + rotation`.
        certified: whether it is proven, rather than estimated.
        epsilon: the discretization error of ρ_X.
        beta: the angle 2 arcsin(ε/2).
        constant: C(x), [n].
        rotation: the term of outputs that transform, [n].
        coefficients: Σ_g ‖α_(g,i)‖ of each base sample, [base]; in an estimate, ‖α_i‖ of each training sample, [N].
        moduli: how much Θ(x, ·) can change at the norm of that sample, [n, base]; in an estimate, [n, N].

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

    lower: Float[np.ndarray, "n"]
    upper: Float[np.ndarray, "n"]
    epsilon: float
    beta: float
    constant: Float[np.ndarray, "n"]
    rotation: Float[np.ndarray, "n"]
    coefficients: Float[np.ndarray, "base"]
    moduli: Float[np.ndarray, "n base"]


def continuous_group_bound(
    ens: InfiniteEnsemble,
    rep: ContinuousAction,
    x: Inputs,
    t: Scalar | None = None,
    *,
    rep_y: ContinuousAction | None = None,
    form: str = "modulus",
) -> GroupBound:
    """A certified bound on the equivariance error of the infinite ensemble under all of a continuous group.

        max_g ‖f̄(ρ_X(g)x) − ρ_Y(g)f̄(x)‖ ≤ ε C(x) + max_g ‖ρ_Y(g) − ρ_Y(a)‖ ‖f̄(x)‖

    The bound holds for the exact function; α is computed up to the rounding of an eigendecomposition. To compare
    subgroups of different order, use `reduction="mean"`: under "sum" at a fixed rate, the same t means longer training
    for a larger order, and Σ|α| grows with it.

    Args:
        ens: trained on data augmented by a finite subgroup, with the kernel of a dense network from `ntk_equiv.stax`.
        rep: the representation of the continuous group on samples, or the group itself for its own matrices.
        x: test samples, [n, features].
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
    kernel_fn = check_certified(check_ensemble(ens).kernel_fn)
    problem = pose_problem(ens, rep, x, t, rep_y)
    problem.require_subgroup()
    if form == "modulus":
        return bound_by_modulus(problem)
    if not kernel_fn.certificate.smooth:
        fix = (
            "Its proof needs ∂f/∂w to be Lipschitz continuous in the input, which a kink prevents. "
            'form="modulus" needs no such assumption, and holds for ReLU as well.'
        )
        raise refusal("form", expected='"modulus" for activations with a kink', got='"lipschitz"', fix=fix)
    return _bound_by_lipschitz(problem)


def continuous_group_estimate(
    ens: InfiniteEnsemble,
    rep: ContinuousAction,
    x: Inputs,
    t: Scalar | None = None,
    *,
    key: jax.Array,
    rep_y: ContinuousAction | None = None,
    samples: int = 200,
) -> GroupBound:
    """An estimate of the bound of the lemma, for any architecture. It is no bound.

    The modulus of Θ(x, ·) at each training sample is the largest change that was seen between randomly drawn g and the
    nearest elements of the subgroup. The largest change that there is may be larger.

    Args:
        ens: trained on data augmented by a finite subgroup.
        rep: the representation of the continuous group on samples, or the group itself.
        x: test samples.
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
    random_key(key)
    positive_integer(samples, "samples")
    problem = pose_problem(ens, rep, x, t, rep_y)
    subgroup = problem.require_subgroup()
    elements = np.asarray(problem.group.sample(key, samples), dtype=float)
    distances = np.linalg.norm(elements[:, None] - subgroup[None], axis=(2, 3))
    nearest = subgroup[np.argmin(distances, axis=1)]
    there, here = (
        gram(ens.kernel_fn, problem.move(np.broadcast_to(g, (problem.n, *g.shape))), ens.x, "ntk")
        for g in (elements, nearest)
    )
    change = np.abs(np.asarray(there, dtype=float) - np.asarray(here, dtype=float)).reshape(problem.n, samples, -1)
    sizes = np.linalg.norm(problem.coefficients(), axis=1)
    return _combine_factors(*_nearest_element(problem), sizes, change.max(axis=1), certified=False)


def bound_by_modulus(problem: ContinuousProblem) -> GroupBound:
    """Return the bound with the modulus of a certified kernel, for data augmented by a subgroup."""
    epsilon, rotation = _nearest_element(problem)

    def modulus(q1: Array, q2: Array) -> Array:
        return kernel_modulus(problem.kernel_fn, q1, q2, jnp.full_like(q1, _angle(epsilon)))[1]

    sizes, moduli = _coefficient_sizes(problem), _map_pairs(modulus, problem)
    return _combine_factors(epsilon, rotation, sizes, moduli, certified=True)


def _bound_by_lipschitz(problem: ContinuousProblem) -> GroupBound:
    """Return the paper's bound. Ĉ(x) is the largest slope of Θ(x, ·) along the spheres of the training samples."""
    epsilon, rotation = _nearest_element(problem)
    base, alpha = np.asarray(problem.ens.train.base_x, dtype=float), problem.coefficients()
    slopes = _map_pairs(partial(_steepest_slope, problem.kernel_fn), problem)
    beta, norms = _angle(epsilon), np.linalg.norm(base, axis=1)
    # Slopes are per length of an arc, Ĉ(x) is per length of its chord.
    arc_per_chord = beta / epsilon if epsilon else 1.0
    largest = np.max(slopes / np.where(norms > 0, norms, np.inf), axis=1) * arc_per_chord
    order = len(alpha) // len(base)
    constant = largest * np.sqrt(order * np.sum(norms**2)) * np.sqrt(np.sum(alpha**2))
    upper, moduli = epsilon * constant + rotation, epsilon * largest[:, None] * norms
    sizes = _coefficient_sizes(problem)
    return GroupBound(0 * upper, upper, True, epsilon, beta, constant, rotation, sizes, moduli)


def _combine_factors(
    epsilon: float, rotation: np.ndarray, sizes: np.ndarray, moduli: np.ndarray, *, certified: bool
) -> GroupBound:
    """Return the bound Σ_i ‖α_i‖ ω_i plus the term of outputs that transform, with its factors."""
    own = moduli @ sizes
    constant = own / epsilon if epsilon else 0 * own
    return GroupBound(0 * own, own + rotation, certified, epsilon, _angle(epsilon), constant, rotation, sizes, moduli)


def _nearest_element(problem: ContinuousProblem) -> tuple[float, np.ndarray]:
    """Return ε, and ‖ρ_Y(g) − ρ_Y(a)‖ ‖f̄(x)‖ at each sample, both for the same a: the nearest of the subgroup."""
    subgroup = problem.require_subgroup()
    if problem.is_invariant:
        return float(enclose_discretization_error(problem.rep_x, subgroup)), np.zeros(problem.n)
    cover_group(problem.group)  # refuses groups whose covering angle is not known
    angle = covering_angle(subgroup)
    turned = float(largest_distance(frequencies(problem.rep_y), angle))
    epsilon = float(largest_distance(frequencies(problem.rep_x), angle))
    return epsilon, turned * np.linalg.norm(problem.outputs(problem.x), axis=1)


def _angle(epsilon: float) -> float:
    """Return β, the angle between vectors of one length whose distance is ε times that length."""
    return 2 * math.asin(min(epsilon / 2, 1))


def _coefficient_sizes(problem: ContinuousProblem) -> np.ndarray:
    """Return Σ_g ‖α_(g,i)‖ of each base sample."""
    return np.linalg.norm(problem.coefficients(), axis=1).reshape(-1, problem.ens.train.n).sum(axis=0)


def _map_pairs(function: Callable[[Array, Array], Array], problem: ContinuousProblem) -> np.ndarray:
    """Evaluate a function of the mean squared norms of test and base samples, [n, base samples]."""
    q1, q2 = (np.mean(np.asarray(v, dtype=float) ** 2, axis=-1) for v in (problem.x, problem.ens.train.base_x))
    pairs = [v.reshape(-1) for v in np.broadcast_arrays(q1[:, None], q2[None, :])]
    count = len(pairs[0])
    step, values = min(count, PAIRS_AT_ONCE), np.empty(count)
    for start in range(0, count, step):
        # The last portion is filled up with repetitions, so that one compiled program serves all.
        part = np.resize(np.arange(start, min(start + step, count)), step)
        values[part] = function(*(jnp.asarray(q[part], problem.x.dtype) for q in pairs))
    return values.reshape(len(q1), len(q2))


@jax.jit
def _steepest_slope(kernel_fn: KernelFn, q1: Array, q2: Array) -> Array:
    """Return an upper bound on sup V' = sup h'(cos θ) sin θ over [0, π/2], the product of two monotone functions."""
    angle = jnp.arange(STEPS + 1, dtype=q1.dtype) * (math.pi / 2 / STEPS)
    # h'(cos θ) falls and sin θ rises: their largest values on a step are at opposite ends.
    cosine = jnp.broadcast_to(jnp.cos(angle[:-1])[:, None], (STEPS, len(q1)))
    wide1, wide2 = (jnp.broadcast_to(q, cosine.shape) for q in (q1, q2))
    _, slope = jax.jvp(lambda c: kernel_fn.radial(wide1, wide2, c, "ntk"), (cosine,), (jnp.ones_like(cosine),))
    return jnp.max(slope * jnp.sin(angle[1:])[:, None], axis=0)
