"""Tails of the Gaussian law of an ensemble, in units that leave only one variable.

The mean f̂ of M members deviates from the infinite ensemble by a Gaussian of variance Σ/M per channel, independent
from channel to channel. With r = Mδ²/Σ, the probability p(r) of a deviation of more than δ and its inverse r(ε) are

    exact     p = erfc(√(r/2))                  r = Φ⁻¹(ε/2)²  =  2 erfc⁻¹(ε)²
    tight     p = √(2/(πr)) e^{−r/2}            r = W₀(2/(πε²)), Lambert's W
    lemma     p = e^{−r/2}/√π  for r ≥ 2        r = 2 max(1, −ln(√π ε))

for one channel. For c channels, the largest of them has p_c = 1 − (1 − p)^c (for the two bounds: p_c ≤ c·p), and the
Euclidean norm the law of χ², p = Γ(c/2, r/2)/Γ(c/2).

`xp` and `special` are NumPy and SciPy where the numbers are known, their namesakes in JAX where they are traced.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special
import numpy as np
import scipy.special

from ntk_equiv._check import one_of, positive_integer, refusal

BOUNDS = ("exact", "tight", "lemma")
NORMS = ("euclidean", "max")
ON_HOST = (np, scipy.special)
IN_JAX = (jnp, jax.scipy.special)


def check_question(bound: str, channels: int, norm: str) -> None:
    """Refuse what no formula answers."""
    one_of(bound, BOUNDS, "bound")
    one_of(norm, NORMS, "norm")
    if positive_integer(channels, "channels") > 1 and norm == "euclidean" and bound != "exact":
        fix = 'Ask for the largest channel with norm="max", or for the exact law.'
        raise refusal("bound", expected='"exact" for the Euclidean norm of several channels', got=repr(bound), fix=fix)


def tail(r: Any, bound: str, channels: int, norm: str, library: tuple = IN_JAX) -> Any:
    """p(r), never above 1."""
    xp, special = library
    if channels > 1 and norm == "euclidean":
        return special.gammaincc(xp.full_like(r, channels / 2), r / 2)
    if bound == "exact":
        single = special.erfc(xp.sqrt(r / 2))
        return -xp.expm1(channels * xp.log1p(-single)) if channels > 1 else single
    if bound == "tight":
        single = xp.sqrt(2 / (math.pi * xp.maximum(r, 1e-30))) * xp.exp(-r / 2)
    else:
        single = xp.where(r >= 2, xp.exp(-r / 2) / math.sqrt(math.pi), 1.0)
    return xp.minimum(channels * single, 1.0)


def inverse_tail(epsilon: Any, bound: str, channels: int, norm: str, library: tuple = IN_JAX) -> Any:
    """r(ε), the least r with p(r) ≤ ε."""
    xp, special = library
    if channels > 1 and norm == "euclidean":
        inverse = special.gammainccinv if library is ON_HOST else _gammainccinv
        return 2 * inverse(channels / 2, epsilon)
    if bound == "exact":
        single = -xp.expm1(xp.log1p(-epsilon) / channels) if channels > 1 else epsilon
        return special.ndtri(single / 2) ** 2
    log = xp.log(epsilon / channels)
    if bound == "tight":
        return _lambert(math.log(2 / math.pi) - 2 * log, xp)
    return 2 * xp.maximum(1.0, -log - math.log(math.pi) / 2)


def _lambert(log: Any, xp: Any) -> Any:
    """The w with w + ln w = `log`, for log ≥ −1; e^log itself may overflow.

    The left side is concave, so that Newton's steps stay positive and grow towards the solution after the first.
    """
    w = xp.ones_like(log)
    for _ in range(8):
        w = w * (1 + log - xp.log(w)) / (1 + w)
    return w


def _gammainccinv(a: float, epsilon: jax.Array) -> jax.Array:
    """The y with Γ(a, y)/Γ(a) = ε, by bisection below a bound on the tail (Laurent and Massart)."""
    log = -jnp.log(epsilon)
    above = a + jnp.sqrt(2 * a * log) + log

    def halved(_: Any, bracket: tuple) -> tuple:
        low, high = bracket
        middle = (low + high) / 2
        too_low = jax.scipy.special.gammaincc(jnp.full_like(middle, a), middle) > epsilon
        return jnp.where(too_low, middle, low), jnp.where(too_low, high, middle)

    return jax.lax.fori_loop(0, 64, halved, (jnp.zeros_like(above), above))[1]
