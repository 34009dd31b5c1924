"""The Gaussian law of an ensemble: its tails in units that leave one variable, and draws from it.

**Tails.** The mean f̂ of M members deviates from the infinite ensemble by a Gaussian of variance Σ/M per channel,
independent from channel to channel. With r = Mδ²/Σ, the probability p(r) of a deviation of more than δ and its inverse
r(ε) are

    exact     p = erfc(√(r/2))                  r = Φ⁻¹(ε/2)²  =  2 erfc⁻¹(ε)²
    tight     p = √(2/(πr)) e^{−r/2}            r = W₀(2/(πε²)), Lambert's W
    lemma     p = e^{−r/2}/√π  for r ≥ 2        r = 2 max(1, −ln(√π ε))

for one channel: `tail` and `inverse_tail`. For c channels, the largest of them has p_c = 1 − (1 − p)^c (for the two
bounds: p_c ≤ c·p), and the Euclidean norm has the law of χ², p = Γ(c/2, r/2)/Γ(c/2).

**Draws** at several samples at once are Z = A ε with AA = Σ and standard normal ε: `covariance_root`.
"""

import math
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.scipy.special
import numpy as np
import scipy.special

from ntk_equiv._check import one_of, positive_integer, real_array, refusal
from ntk_equiv.bounds._checks import Numbers

BOUNDS = ("exact", "tight", "lemma")
NORMS = ("euclidean", "max")
# How many numbers a batch of draws may hold.
NUMBERS_AT_ONCE = 2**22
# Eigenvalues so small, next to the largest one or to δ², may be rounding.
NEGLIGIBLE = 1e-6


class Library(NamedTuple):
    """Where functions are evaluated: NumPy and SciPy for known numbers, their namesakes in JAX for traced ones."""

    xp: ModuleType
    special: ModuleType


ON_HOST = Library(np, scipy.special)
IN_JAX = Library(jnp, jax.scipy.special)


def check_law(bound: str, channels: int, norm: str) -> None:
    """Refuse a combination for which there is no formula."""
    one_of(bound, BOUNDS, "bound")
    one_of(norm, NORMS, "norm")
    if positive_integer(channels, "channels") > 1 and norm == "euclidean" and bound != "exact":
        fix = 'Ask for the largest channel with norm="max", or for the exact law.'
        raise refusal("bound", expected='"exact" for the Euclidean norm of several channels', got=repr(bound), fix=fix)


def tail(r: Any, bound: str, channels: int, norm: str, library: Library = IN_JAX) -> Any:
    """Return p(r), never above 1."""
    xp, special = library
    if channels > 1 and norm == "euclidean":
        return special.gammaincc(xp.full_like(r, channels / 2), r / 2)
    if bound == "exact":
        single = special.erfc(xp.sqrt(r / 2))
        return -xp.expm1(channels * xp.log1p(-single)) if channels > 1 else single
    if bound == "tight":
        # At r = 0 the bound is infinite; a tiny r keeps it, and its gradient, finite below the cap of 1.
        single = xp.sqrt(2 / (math.pi * xp.maximum(r, 1e-30))) * xp.exp(-r / 2)
    else:
        single = xp.where(r >= 2, xp.exp(-r / 2) / math.sqrt(math.pi), 1.0)
    return xp.minimum(channels * single, 1.0)


def inverse_tail(epsilon: Any, bound: str, channels: int, norm: str, library: Library = IN_JAX) -> Any:
    """Return r(ε), the least r with p(r) ≤ ε."""
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


def _lambert(log: Any, xp: ModuleType) -> Any:
    """Return the w with w + ln w = `log`, for log ≥ −1. e^log itself may overflow.

    The left side is concave, so after the first of Newton's steps all others stay positive and grow to the solution.
    """
    w = xp.ones_like(log)
    for _ in range(8):
        w = w * (1 + log - xp.log(w)) / (1 + w)
    return w


def _gammainccinv(a: float, epsilon: jax.Array) -> jax.Array:
    """Return the y with Γ(a, y)/Γ(a) = ε, by bisection. JAX has no inverse of `gammaincc`."""
    log = -jnp.log(epsilon)
    above = a + jnp.sqrt(2 * a * log) + log  # a bound on the tail by Laurent and Massart

    def halve(_: Any, bracket: tuple) -> tuple:
        low, high = bracket
        middle = (low + high) / 2
        too_low = jax.scipy.special.gammaincc(jnp.full_like(middle, a), middle) > epsilon
        return jnp.where(too_low, middle, low), jnp.where(too_low, high, middle)

    return jax.lax.fori_loop(0, 64, halve, (jnp.zeros_like(above), above))[1]


def covariance_root(covariance: Numbers, rounding: float = 0.0) -> np.ndarray:
    """Return the positive semidefinite root A with AA = Σ of a covariance [..., n, n], which may be singular.

    Other roots would do, but this one is unique: eigenvectors differ from machine to machine, and on orbits eigenvalues
    coincide. At late times members agree on the training samples, and what is left of their covariance is the rounding
    of kernels, of either sign and as large as all the rest. Eigenvalues from −`rounding` to 0 count as that.
    """
    covariance = np.asarray(real_array(covariance, "covariance"), dtype=float)
    if covariance.ndim < 2 or covariance.size == 0 or covariance.shape[-1] != covariance.shape[-2]:
        fix = "Pass the joint covariance of the samples, `ens.cov(x, t)`."
        raise refusal("covariance", expected="a square matrix", got=f"shape {covariance.shape}", fix=fix)
    if not np.isfinite(covariance).all():
        fix = "Look for the cause where the covariance was computed."
        raise refusal("covariance", expected="finite", got="NaN or infinity", fix=fix)
    values, vectors = np.linalg.eigh((covariance + np.swapaxes(covariance, -1, -2)) / 2)
    allowed = np.maximum(NEGLIGIBLE * np.max(values, axis=-1, initial=0.0), rounding)
    if (values < -allowed[..., None]).any():
        fix = "A covariance has no negative eigenvalues beyond rounding."
        raise refusal("covariance", expected="positive semidefinite", got=f"the eigenvalue {values.min():.3g}", fix=fix)
    return (vectors * np.sqrt(np.maximum(values, 0))[..., None, :]) @ np.swapaxes(vectors, -1, -2)


def split_draws(key: jax.Array, draws: int, size: int) -> tuple[jax.Array, int]:
    """Return a key for each batch of draws, and the number of draws in a batch, if a draw is `size` numbers.

    All batches are equally large, so that they are compiled once. Together they may hold more draws than asked for.
    """
    each = max(1, min(draws, NUMBERS_AT_ONCE // size))
    return jax.random.split(key, -(-draws // each)), each
