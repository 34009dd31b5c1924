"""Numerics of kernels: functions that keep their precision where a plain formula would lose it.

**Gaps.** The cosine c of two samples is handled as its gap g = 1 − c, from 0 (parallel) to 2 (opposite), because close
to c = ±1 all information is in the last digits of c. With variances q = r² and covariance k = r r' c,

    `cosine`               k / (r r')
    `gap_of`               1 − c, where c carries rounding errors
    `squared_distance`     q + q' − 2k  =  (r − r')² + 2 r r' g
    `complement`           √(1 − z²),       1 − z² = s² + s'² − s² s'² + w² w'² g (2 − g)

for z = w w' c with w² = βq / (1 + βq) = 1 − s². Each is a sum of terms that are not negative. So it keeps its relative
precision at any scale, where a difference of large variances would be all rounding.

**Arc cosines.** With δ = min(g, 2 − g) and θ = arccos(1 − δ), both of these are √δ times an analytic function of δ on
[0, 1]. So a polynomial that is fitted once serves all cosines, at the speed of a copy:

    θ / π                     = √δ  A(δ)
    (sin θ − θ cos θ) / π     = √δ³ B(δ)

The normalised arc-cosine kernels of order one and zero follow without cancellation:

    1 − κ₁ = g − √δ³ B(δ),   κ₀ = 1 − √δ A(δ)      for g ≤ 1
    1 − κ₁ = 1 − √δ³ B(δ),   κ₀ = √δ A(δ)          for g > 1

κ₁' = κ₀, and κ₀' = 1 / (π √(1 − c²)) is infinite at c = ±1. There the cosine of two inputs is stationary, so that
derivatives with respect to inputs are finite; taking κ₀' = 0 gives them.

**Roots, scales and storage.** `safe_sqrt`, `inverse_root`, `power_of_two`, `in_precision` and `materialize`.
"""

import math
from fractions import Fraction
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Float

from ntk_equiv._typing import Array

# A cosine that is at most this many rounding errors away from ±1 is taken to be ±1.
SNAP = 16
# s² is multiplied by this number: at variances close to the largest float, s² itself would underflow.
RAISED = 2.0**60


def safe_sqrt(q: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return √q, with derivative 0 instead of infinity at q = 0."""
    positive = q > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, q, 1)), 0)


def inverse_root(q: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return 1/√q, and 0 at q = 0."""
    positive = q > 0
    return jnp.where(positive, lax.rsqrt(jnp.where(positive, q, 1)), 0)


def power_of_two(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return the power of two next to x > 0, and 1 where x is 0; derivatives treat it as a constant.

    Numbers that are multiplied or divided by it keep all their digits.

    >>> print(power_of_two(jnp.array([0.0, 5.0, 16.0])))
    [ 1.  4. 16.]
    """
    numbers = jnp.finfo(x.dtype)
    below = jnp.minimum(lax.stop_gradient(x), float(numbers.max) / 2)  # Rounding up from there would overflow.
    power = lax.reduce_precision(below, exponent_bits=numbers.nexp, mantissa_bits=0)
    return jnp.where(power > 0, power, 1)


def in_precision(setting: Any, x: Array) -> Any:
    """Return a hyperparameter in a form that does not promote `x`: Python numbers as they are, others in its dtype."""
    return setting if type(setting) in (int, float) else jnp.asarray(setting, x.dtype)


def materialize(tree: Any, witness: Array) -> Any:
    """Return `tree`, computed and stored before anything that uses it is computed.

    Otherwise XLA on CPU would fuse the layers of a network into one loop and evaluate the inner ones again for each
    use: nine times for a 3×3 convolution. A conditional whose outcome the compiler cannot foresee keeps the layers
    apart. (An optimization barrier does not: XLA removes it before it fuses.) `witness` is any array that is known only
    at run time; its values do not matter.
    """
    sign = jnp.sum((witness.reshape(-1)[:1] > 0).astype(jnp.int32))
    # No 32-bit number has more than 32 ones, whatever the witness is. XLA does not know that.
    never = lax.population_count(sign) > 32
    return lax.cond(never, lambda t: jax.tree.map(jnp.zeros_like, t), lambda t: t, tree)


def gap_of(c: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return 1 − c for a cosine with rounding errors; a cosine that is ±1 up to rounding is taken to be exactly ±1.

    Otherwise rounding errors would be magnified to their square roots. Distinct samples pay for this if the angle
    between them is below √(2 · SNAP · eps), about 8e-8 in float64 and 2e-3 in float32: their κ₀ is off by up to that
    angle divided by π.

    >>> print(gap_of(jnp.array([-1 - 1e-16, 0.5, 1 - 1e-15])))
    [2.   0.5  0. ]
    """
    return 1 - snap(c, SNAP * float(jnp.finfo(c.dtype).eps))


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def snap(c: Float[Array, "*shape"], tolerance: float) -> Float[Array, "*shape"]:
    """Return `c` with values within `tolerance` of ±1 replaced by ±1; the derivative stays that of `c`."""
    return jnp.where(c >= 1 - tolerance, 1, jnp.where(c <= tolerance - 1, -1, c))


@snap.defjvp
def _snap_jvp(tolerance: float, primals: tuple, tangents: tuple) -> tuple:
    return snap(*primals, tolerance), tangents[0]


@jax.custom_jvp
def align(k: Array, q1: Array, q2: Array) -> Array:
    """Return `k` with covariances that are ±√(q q') up to rounding replaced by exactly that; derivatives stay.

    Otherwise a network that drives close samples apart would magnify the rounding errors of coincident samples from
    layer to layer, until variances and the diagonal of 𝒦 have nothing to do with each other.
    """
    largest = safe_sqrt(q1) * safe_sqrt(q2)
    coincident = jnp.abs(jnp.abs(k) - largest) <= SNAP * float(jnp.finfo(k.dtype).eps) * largest
    coincident &= largest < jnp.inf  # Where a variance overflows, nothing is known about the pair.
    return jnp.where(coincident, jnp.sign(k) * largest, k)


@align.defjvp
def _align_jvp(primals: tuple, tangents: tuple) -> tuple:
    return align(*primals), tangents[0]


@jax.custom_jvp
def cosine(
    k: Float[Array, "..."],
    q1: Float[Array, "..."],
    inverse_root1: Float[Array, "..."],
    q2: Float[Array, "..."],
    inverse_root2: Float[Array, "..."],
) -> Float[Array, "..."]:
    """Return the cosine k / √(q q') from 1/√q and 1/√q', which are 0 for samples that vanish.

    >>> one = jnp.ones(1)
    >>> print(cosine(3 * one, 4 * one, one / 2, 9 * one, one / 3))
    [0.5]
    """
    return k * inverse_root1 * inverse_root2


@cosine.defjvp
def _cosine_jvp(primals: tuple, tangents: tuple) -> tuple:
    # By hand, because the derivative of 1/√q alone, −q^(−3/2)/2, overflows in float32 at variances that do not.
    _, _, inverse_root1, _, inverse_root2 = primals
    dk, dq1, _, dq2, _ = tangents
    c = cosine(*primals)
    along = dq1 * inverse_root1 * inverse_root1 + dq2 * inverse_root2 * inverse_root2
    return c, dk * inverse_root1 * inverse_root2 - c / 2 * along


@jax.custom_jvp
def squared_distance(
    k: Float[Array, "..."],
    gap: Float[Array, "..."],
    q1: Float[Array, "..."],
    root1: Float[Array, "..."],
    q2: Float[Array, "..."],
    root2: Float[Array, "..."],
) -> Float[Array, "..."]:
    """Return q + q' − 2k; with −k and 2 − gap in the places of k and gap, return q + q' + 2k.

    >>> one = jnp.ones(1)
    >>> print(squared_distance(6 * one, 0 * one, 4 * one, 2 * one, 9 * one, 3 * one))
    [1.]
    """
    return jnp.square(root1 - root2) + 2 * (root1 * gap) * root2


@squared_distance.defjvp
def _squared_distance_jvp(primals: tuple, tangents: tuple) -> tuple:
    # By hand, because q + q' − 2k is differentiable at samples that vanish, although norm and cosine are not.
    dk, _, dq1, _, dq2, _ = tangents
    return squared_distance(*primals), dq1 + dq2 - 2 * dk


def saturation(beta: Float[Array, ""], q: Float[Array, "*shape"], root: Float[Array, "*shape"]) -> dict[str, Array]:
    """Return s (`scale`), s² (`plain`), s² · RAISED (`rest`) and w² · √RAISED (`share`) of each sample.

    >>> scale, rest, plain, share = saturation(jnp.array(1.0), jnp.array([3.0]), jnp.array([3.0**0.5])).values()
    >>> print(scale, plain, rest / RAISED, share / RAISED**0.5)
    [0.5] [0.25] [0.25] [0.75]
    """
    largest = float(jnp.finfo(q.dtype).max) / 16
    beyond = beta * q > largest  # There w² is 1, and s comes from the root, which does not overflow.
    variance = jnp.where(beyond, largest, beta * q)
    far = lax.rsqrt(jnp.abs(beta)) / jnp.where(beyond, root, 1)
    scale = jnp.where(beyond, far, lax.rsqrt(1 + variance))
    rest = jnp.maximum(jnp.square(scale * RAISED**0.5), float(jnp.finfo(q.dtype).tiny))
    return {"scale": scale, "rest": rest, "plain": rest / RAISED, "share": RAISED**0.5 * (variance / (1 + variance))}


def complement(
    gap: Float[Array, "..."], left: dict[str, Array], right: dict[str, Array]
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Return √(1 − z²) and its inverse, from what `saturation` returned for both samples.

    >>> one = saturation(jnp.ones(()), jnp.ones(1), jnp.ones(1))
    >>> root, inverse = complement(jnp.zeros(1), one, one)  # z = 1/2
    >>> print(root**2, root * inverse)
    [0.75] [1.]
    """
    apart = left["share"] * right["share"] * (gap * (2 - gap))
    raised = (left["rest"] + right["rest"] - left["plain"] * right["rest"]) + apart
    root = jnp.sqrt(raised) / RAISED**0.5
    return root, 1 / root


@jax.custom_jvp
def arc_cosine_kernels(gap: Float[Array, "*shape"]) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
    """Return 1 − κ₁ and κ₀, from the normalised arc-cosine kernels, at cosine 1 − gap.

    >>> one_minus_k1, k0 = arc_cosine_kernels(jnp.array([0.0, 1.0, 2.0]))
    >>> print(one_minus_k1, k0)
    [0.         0.68169011 1.        ] [1.  0.5 0. ]
    """
    far = gap > 1
    delta = jnp.maximum(jnp.where(far, 2 - gap, gap), 0)
    root = jnp.sqrt(delta)
    angle = root * _evaluate_fit("angle", delta)
    return jnp.where(far, 1, gap) - delta * root * _evaluate_fit("segment", delta), jnp.where(far, angle, 1 - angle)


@arc_cosine_kernels.defjvp
def _arc_cosine_kernels_jvp(primals: tuple, tangents: tuple) -> tuple:
    (gap,), (change,) = primals, tangents
    one_minus_k1, k0 = arc_cosine_kernels(gap)
    squared_sine = gap * (2 - gap)
    # An angle below rounding comes from rounding of norms. Its change is as small, but dividing by it would overflow.
    apart = squared_sine > float(jnp.finfo(gap.dtype).eps) ** 2
    slope = jnp.where(apart, -change / (jnp.pi * jnp.sqrt(jnp.where(apart, squared_sine, 1))), 0)
    return (one_minus_k1, k0), (k0 * change, slope)


@jax.custom_jvp
def arcsin(z: Float[Array, "*shape"], root: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return the inverse sine to full relative precision; callers know `root`, √(1 − z²), without loss.

    The cosine of the result is `root`, so δ = 1 − root = z² / (1 + root).

    >>> z = jnp.array([-0.5, 0.0, 1.0])
    >>> print(arcsin(z, jnp.sqrt(1 - z**2)) * 6 / jnp.pi)
    [-1.  0.  3.]
    """
    chord = z / jnp.sqrt(1 + root)
    return chord * (jnp.pi * _evaluate_fit("angle", chord * chord))


@arcsin.defjvp
def _arcsin_jvp(primals: tuple, tangents: tuple) -> tuple:
    (z, root), (dz, _) = primals, tangents
    return arcsin(z, root), dz / root


def _evaluate_fit(name: str, gap: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    coefficients = _fit(name, 17 if jnp.finfo(gap.dtype).bits > 32 else 7)
    u = 2 * gap - 1
    value = jnp.full_like(gap, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value = value * u + jnp.asarray(coefficient, gap.dtype)
    return value


@cache
def _fit(name: str, degree: int) -> tuple[float, ...]:
    """Return the coefficients of A ("angle") or B ("segment") in powers of u = 2δ − 1.

    The fit interpolates close to the Chebyshev points. Its error is 1e-8 at degree 7 and below 1e-16 at degree 17,
    because the nearest singularity, δ = 2, is far away. Fractions keep rounding out of the construction.
    """
    count = degree + 1
    nodes = [Fraction(round(4096 * math.cos(math.pi * (2 * i + 1) / (2 * count))), 4096) for i in range(count)]
    differences = [_series((1 + u) / 2, integrated=name == "segment") for u in nodes]
    for order in range(1, count):
        for i in range(degree, order - 1, -1):
            differences[i] = (differences[i] - differences[i - 1]) / (nodes[i] - nodes[i - order])
    coefficients = [differences[-1]]  # Newton's form, multiplied out from the inside.
    for node, difference in zip(nodes[-2::-1], differences[-2::-1], strict=True):
        shifted = [Fraction(0), *coefficients]
        coefficients = [a - node * b for a, b in zip(shifted, [*coefficients, Fraction(0)], strict=True)]
        coefficients[0] += difference
    return tuple(math.sqrt(2) / math.pi * float(c) for c in coefficients)


def _series(delta: Fraction, *, integrated: bool) -> Fraction:
    """Return A(δ) π/√2 from the series of the arc sine, or its integral B(δ) π/√2.

    θ = √(2δ) Σ_k c_k (δ/2)^k with c_k = (2k)! / (4^k k!² (2k + 1)), and d(sin θ − θ cos θ)/dδ = θ.
    """
    total, central = Fraction(0), Fraction(1)
    for k in range(64):
        weight = Fraction(2, 2 * k + 3) if integrated else 1
        total += weight * central / (2 * k + 1)
        central *= Fraction(2 * k + 1, 2 * k + 2) * delta / 2
    return total
