"""Inverse trigonometric functions, at the speed of a copy and accurate where ReLU kernels are singular.

With δ = 1 − |c| and θ = arccos |c|, both of these are √δ times an analytic function of δ on [0, 1], so a polynomial
fitted once serves all cosines:

    θ / π                     = √δ  A(δ)
    (sin θ − θ cos θ) / π     = √δ³ B(δ)

The normalised arc-cosine kernels of order one and zero follow, for positive and negative c, without cancellation:

    κ₁(c) = max(c, 0) + √δ³ B(δ)        κ₀(c) = 1 − √δ A(δ)  for c > 0,   √δ A(δ)  otherwise

κ₁' = κ₀, and κ₀' = 1 / (π √(1 − c²)) is infinite at c = ±1, where the cosine of two inputs is stationary: derivatives
with respect to inputs are finite there, and taking κ₀' = 0 gives them.

A cosine within `SNAP` rounding errors of ±1 is taken to be exactly ±1. Rounding would otherwise be magnified to its
square root. The price is paid by pairs that are distinct and yet that close, at an angle below √(2 · SNAP · eps)
(about 8e-8 in float64 and 2e-3 in float32): their κ₀ is off by at most that angle over π.
"""

from collections.abc import Callable
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from numpy.polynomial import Chebyshev, Polynomial

from ntk_equiv._typing import Array

SNAP = 16


@jax.custom_jvp
def arc_cosine_kernels(c: Array) -> tuple[Array, Array]:
    """κ₁(c) and κ₀(c), the normalised arc-cosine kernels; cosines beyond ±1 by rounding count as ±1.

    >>> k1, k0 = arc_cosine_kernels(jnp.array([-1.0, 0.0, 1.0]))
    >>> k1, k0
    (Array([0.        , 0.31830989, 1.        ], dtype=float64), Array([0. , 0.5, 1. ], dtype=float64))
    """
    gap = _gap(c)
    root = jnp.sqrt(gap)
    angle = root * _evaluate("angle", gap)
    k1 = jnp.where(gap > 0, jnp.maximum(c, 0), c > 0) + gap * root * _evaluate("segment", gap)
    k0 = jnp.where(c > 0, 1 - angle, angle)
    return k1, k0


@arc_cosine_kernels.defjvp
def _arc_cosine_kernels_jvp(primals: tuple, tangents: tuple) -> tuple:
    (c,), (dc,) = primals, tangents
    k1, k0 = arc_cosine_kernels(c)
    gap = _gap(c)
    apart = gap > 0
    sine = jnp.sqrt(jnp.where(apart, gap * (2 - gap), 1))
    return (k1, k0), (k0 * dc, jnp.where(apart, dc / (jnp.pi * sine), 0))


@jax.custom_jvp
def arcsin(z: Array) -> Array:
    """The inverse sine on (−1, 1), to rounding error relative to 1.

    >>> arcsin(jnp.array([-0.5, 0.0, 0.5])) * 6 / jnp.pi
    Array([-1.,  0.,  1.], dtype=float64)
    """
    gap = jnp.maximum(1 - jnp.abs(z), 0)
    return jnp.sign(z) * jnp.pi * (0.5 - jnp.sqrt(gap) * _evaluate("angle", gap))


@arcsin.defjvp
def _arcsin_jvp(primals: tuple, tangents: tuple) -> tuple:
    (z,), (dz,) = primals, tangents
    return arcsin(z), dz / jnp.sqrt((1 - z) * (1 + z))


def snapped(c: Array) -> Array:
    """`c`, with cosines that are ±1 up to rounding made exactly so; the derivative is left as it was."""
    return c + jax.lax.stop_gradient(jnp.where(_gap(c) > 0, 0, jnp.sign(c) - c))


def _gap(c: Array) -> Array:
    gap = 1 - jnp.abs(c)
    return jnp.where(gap <= SNAP * jnp.finfo(c.dtype).eps, 0, gap)


def _evaluate(name: str, gap: Array) -> Array:
    coefficients = _polynomials(22 if jnp.finfo(gap.dtype).bits > 32 else 9)[name]
    u = 2 * gap - 1
    value = jnp.full_like(gap, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value = value * u + jnp.asarray(coefficient, gap.dtype)
    return value


@cache
def _polynomials(degree: int) -> dict[str, np.ndarray]:
    """Coefficients of A and B in powers of u = 2δ − 1, interpolated at Chebyshev points.

    Degree 9 reaches 1e-8 and degree 22 rounding error in float64: the nearest singularity, δ = 2, is far away.
    """
    return {
        "angle": _interpolated(lambda delta: _series(delta, 0.0), degree),
        "segment": _interpolated(lambda delta: _series(delta, 1.5), degree),
    }


def _series(delta: np.ndarray, shift: float) -> np.ndarray:
    """A(δ) (shift 0) from the series of the arc sine, and B(δ) (shift 3/2), which is its integral.

    θ = √(2δ) Σ_k c_k (δ/2)^k with c_k = (2k)! / (4^k k!² (2k + 1)), and d(sin θ − θ cos θ)/dδ = θ.
    """
    total, central = np.zeros_like(delta), 1.0
    for k in range(64):
        weight = 1 / (k + shift) if shift else 1.0
        total = total + weight * central / (2 * k + 1) * (delta / 2) ** k
        central *= (2 * k + 1) / (2 * k + 2)
    return np.sqrt(2) / np.pi * total


def _interpolated(function: Callable[[np.ndarray], np.ndarray], degree: int) -> np.ndarray:
    return Chebyshev.interpolate(function, degree, domain=[0, 1]).convert(kind=Polynomial, domain=[0, 1]).coef
