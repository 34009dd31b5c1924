"""Inverse trigonometric functions, at the speed of a copy and accurate where ReLU kernels are singular.

Cosines of pairs of samples are handled as gaps g = 1 − c between 0 (parallel) and 2 (opposite). With δ = min(g, 2 − g)
and θ = arccos(1 − δ), both of these are √δ times an analytic function of δ on [0, 1], so a polynomial fitted once
serves all cosines:

    θ / π                     = √δ  A(δ)
    (sin θ − θ cos θ) / π     = √δ³ B(δ)

The normalised arc-cosine kernels of order one and zero follow without cancellation:

    1 − κ₁ = g − √δ³ B(δ),   κ₀ = 1 − √δ A(δ)      for g ≤ 1
    1 − κ₁ = 1 − √δ³ B(δ),   κ₀ = √δ A(δ)          for g > 1

κ₁' = κ₀, and κ₀' = 1 / (π √(1 − c²)) is infinite at c = ±1, where the cosine of two inputs is stationary: derivatives
with respect to inputs are finite there, and taking κ₀' = 0 gives them.
"""

import math
from fractions import Fraction
from functools import cache, partial

import jax
import jax.numpy as jnp
from jaxtyping import Float

from ntk_equiv._typing import Array

# How many rounding errors a cosine may be away from ±1 and still be taken for it.
SNAP = 16


@jax.custom_jvp
def arc_cosine_kernels(gap: Float[Array, "*shape"]) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
    """1 − κ₁ and κ₀, the normalised arc-cosine kernels, at cosine 1 − gap.

    >>> one_minus_k1, k0 = arc_cosine_kernels(jnp.array([0.0, 1.0, 2.0]))
    >>> print(one_minus_k1, k0)
    [0.         0.68169011 1.        ] [1.  0.5 0. ]
    """
    far = gap > 1
    delta = jnp.maximum(jnp.where(far, 2 - gap, gap), 0)
    root = jnp.sqrt(delta)
    angle = root * _evaluate("angle", delta)
    return jnp.where(far, 1, gap) - delta * root * _evaluate("segment", delta), jnp.where(far, angle, 1 - angle)


@arc_cosine_kernels.defjvp
def _arc_cosine_kernels_jvp(primals: tuple, tangents: tuple) -> tuple:
    (gap,), (change,) = primals, tangents
    one_minus_k1, k0 = arc_cosine_kernels(gap)
    squared_sine = gap * (2 - gap)
    # Angles below rounding only come from norms, and change by as little; divided by, they would overflow.
    apart = squared_sine > float(jnp.finfo(gap.dtype).eps) ** 2
    slope = jnp.where(apart, -change / (jnp.pi * jnp.sqrt(jnp.where(apart, squared_sine, 1))), 0)
    return (one_minus_k1, k0), (k0 * change, slope)


@jax.custom_jvp
def arcsin(z: Float[Array, "*shape"], root: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """The inverse sine, to rounding error relative to itself; `root` is √(1 − z²), which callers know without loss.

    With cosine `root`, δ = 1 − root = z² / (1 + root).

    >>> z = jnp.array([-0.5, 0.0, 1.0])
    >>> print(arcsin(z, jnp.sqrt(1 - z**2)) * 6 / jnp.pi)
    [-1.  0.  3.]
    """
    chord = z / jnp.sqrt(1 + root)
    return chord * (jnp.pi * _evaluate("angle", chord * chord))


@arcsin.defjvp
def _arcsin_jvp(primals: tuple, tangents: tuple) -> tuple:
    (z, root), (dz, _) = primals, tangents
    return arcsin(z, root), dz / root


def gap_of(c: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """1 − c for a cosine that carries rounding errors; one that is ±1 up to rounding is taken to be exactly that.

    Rounding would otherwise be magnified to its square root. The price is paid by pairs that are distinct and yet that
    close, at an angle below √(2 · SNAP · eps), about 8e-8 in float64 and 2e-3 in float32: their κ₀ is off by up to that
    angle over π.

    >>> print(gap_of(jnp.array([-1 - 1e-16, 0.5, 1 - 1e-15])))
    [2.   0.5  0. ]
    """
    return 1 - snapped(c, SNAP * float(jnp.finfo(c.dtype).eps))


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def snapped(c: Float[Array, "*shape"], tolerance: float) -> Float[Array, "*shape"]:
    """`c`, with values within `tolerance` of ±1 made exactly so; the derivative is left as it was."""
    return jnp.where(c >= 1 - tolerance, 1, jnp.where(c <= tolerance - 1, -1, c))


@snapped.defjvp
def _snapped_jvp(tolerance: float, primals: tuple, tangents: tuple) -> tuple:
    return snapped(*primals, tolerance), tangents[0]


def _evaluate(name: str, gap: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    coefficients = _polynomial(name, 17 if jnp.finfo(gap.dtype).bits > 32 else 7)
    u = 2 * gap - 1
    value = jnp.full_like(gap, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value = value * u + jnp.asarray(coefficient, gap.dtype)
    return value


@cache
def _polynomial(name: str, degree: int) -> tuple[float, ...]:
    """A ("angle") or B ("segment") in powers of u = 2δ − 1, interpolated close to the Chebyshev points.

    Degree 7 reaches 1e-8 and degree 17 less than 1e-16, the nearest singularity, δ = 2, being far away. Fractions
    keep the rounding of the construction out of the result.
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
    """A(δ) π/√2 from the series of the arc sine, or B(δ) π/√2, which is its integral.

    θ = √(2δ) Σ_k c_k (δ/2)^k with c_k = (2k)! / (4^k k!² (2k + 1)), and d(sin θ − θ cos θ)/dδ = θ.
    """
    total, central = Fraction(0), Fraction(1)
    for k in range(64):
        weight = Fraction(2, 2 * k + 3) if integrated else 1
        total += weight * central / (2 * k + 1)
        central *= Fraction(2 * k + 1, 2 * k + 2) * delta / 2
    return total
