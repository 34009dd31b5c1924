"""Kernels of fully connected networks in 150 digits, by the plainest formulas there are, for every activation."""

from collections.abc import Callable
from functools import partial
from typing import Any

import mpmath as mp
import numpy as np

from ntk_equiv import stax

# Squares of variances up to 1e80 are subtracted from each other, and what is left is compared in 16 digits.
DIGITS = 150


def piecewise_linear(k, q, p, a, b):
    """ABRelu, from arc-cosine kernels."""
    root = mp.sqrt(q * p)
    if not root:
        return mp.mpf(0), mp.mpf(0)
    c = max(min(k / root, mp.mpf(1)), mp.mpf(-1))
    bend, angle = (b - a) ** 2 / mp.mpf(2), mp.acos(c)
    value = bend * (mp.sqrt(1 - c * c) + (mp.pi - angle) * c) / mp.pi + a * b * c
    return root * value, bend * (mp.pi - angle) / mp.pi + a * b


def sign(k, q, p):
    """Sign, from the angle."""
    root = mp.sqrt(q * p)
    if not root:
        return mp.mpf(0), mp.mpf(0)
    return 1 - 2 * mp.acos(max(min(k / root, mp.mpf(1)), mp.mpf(-1))) / mp.pi, mp.mpf(0)


def erf(k, q, p, a, b, c):
    """Erf, by Williams' formula."""
    t = 2 * b * b
    z = t * k / mp.sqrt((1 + t * q) * (1 + t * p))
    slope = 4 * a * a * b * b / mp.pi / mp.sqrt((1 + t * q) * (1 + t * p) - t * t * k * k)
    return 2 * a * a / mp.pi * mp.asin(z) + c * c, slope


def gelu(k, q, p):
    """Gelu, by Stein's lemma."""
    product = (1 + q) * (1 + p)
    delta = mp.sqrt(product - k * k)
    half = mp.mpf(1) / 4 + mp.asin(k / mp.sqrt(product)) / (2 * mp.pi)
    value = k * half + (k * k + q * p * delta**2) / (2 * mp.pi * delta * product)
    return value, half + k * (1 / delta**2 + (1 - q * p) / product + 1) / (2 * mp.pi * delta)


def sine(k, q, p, a, b, c, quarter=0):
    """Sin, and a quarter of a period ahead Cos."""
    phase = mp.cos(2 * c + quarter * mp.pi)
    near, far = (mp.exp(-b * b * (q + p + 2 * s * k) / 2) for s in (-1, 1))
    return a * a / 2 * (near - phase * far), a * a * b * b / 2 * (near + phase * far)


def radial(k, q, p, gamma):
    """Rbf."""
    value = mp.exp(-gamma * (q + p - 2 * k))
    return value, 2 * gamma * value


def bell(k, q, p, a, b):
    """Gaussian."""
    delta = mp.sqrt((1 - 2 * b * q) * (1 - 2 * b * p) - 4 * b * b * k * k)
    return a * a / delta, 4 * a * a * b * b * k / delta**3


def gabor(k, q, p):
    """Gabor, the imaginary parts of two Gaussians: sin u sin v = (cos(u − v) − cos(u + v)) / 2."""
    # (Σ⁻¹ + 2)⁻¹ = Σ(1 + 2Σ)⁻¹, entry by entry.
    D = (1 + 2 * q) * (1 + 2 * p) - 4 * k * k
    u, v, c = (q * (1 + 2 * p) - 2 * k * k) / D, (p * (1 + 2 * q) - 2 * k * k) / D, k / D
    apart, together = mp.exp(-(u + v - 2 * c) / 2), mp.exp(-(u + v + 2 * c) / 2)
    value = (apart - together) / (2 * mp.sqrt(D))
    # E[φ'φ'] is the derivative of the value in k: of D, of u + v and of c.
    even, odd = (apart + together) / 2, (apart - together) / 2
    slope_D, slope_sum, slope_c = -8 * k, -8 * k * (1 + q + p) / D**2, (D + 8 * k * k) / D**2
    slope = (-slope_D / (2 * D) * odd - slope_sum / 2 * odd + slope_c * even) / mp.sqrt(D)
    return value, slope


def exponential(k, q, p, a, b):
    """Exp."""
    # Exponents beyond are too large for mpmath too, and the value for any number here.
    value = a * a * mp.exp(min(b * b * ((q + p) / 2 + k), mp.mpf(10) ** 6))
    return value, b * b * value


def normalized_exponential(k, q, p, gamma, shift):
    """ExpNormalized."""
    root = mp.sqrt(q * p)
    value = mp.exp(gamma * ((k / root if root else 0) + shift))
    return root * value, gamma * value


def polynomial(k, q, p, coef):
    """Polynomial, by its Hermite coefficients."""
    value, slope = mp.mpf(0), mp.mpf(0)
    for order in range(len(coef)):
        both = _hermite(coef, order, q) * _hermite(coef, order, p)
        value += both * k**order
        slope += order * both * k ** (order - 1) if order else 0
    return value, slope


def third_hermite(k, q, p):
    """Hermite(3), (x³ − 3x) / √6."""
    value, slope = polynomial(k, q, p, [0, -3, 0, 1])
    return value / 6, slope / 6


def _hermite(coef, order, q):
    terms = enumerate(range(order, len(coef), 2))
    weights = [(i, coef[n] * mp.factorial(n) / (2**i * mp.factorial(i))) for i, n in terms if coef[n]]
    return mp.fsum(weight * q**i for i, weight in weights) / mp.sqrt(mp.factorial(order))


def kernels(
    dual: Callable, x: np.ndarray, y: np.ndarray, *, depth: int, W_std: float = 1.0, b_std: float = 0.0
) -> tuple:
    """𝒦 and Θ of `depth` hidden layers and a read-out, and the largest kernel or norm on the way."""
    with mp.workdps(DIGITS):
        w, b = mp.mpf(float(W_std)) ** 2, mp.mpf(float(b_std)) ** 2
        q, p, k = (w * _inner(*pair) + b for pair in ((x, x), (y, y), (x, y)))
        ntk = largest = k
        for _ in range(depth):
            value, slope = dual(k, q, p)
            q, p = (w * dual(v, v, v)[0] + b for v in (q, p))
            k = w * value + b
            ntk = w * ntk * slope + k
            largest = max(largest, k, ntk, w * abs(value), mp.sqrt(q), mp.sqrt(p), key=abs)
        return k, ntk, abs(largest)


def _inner(x, y):
    return mp.fsum(mp.mpf(float(a)) * mp.mpf(float(b)) for a, b in zip(x, y, strict=True)) / len(x)


COEF = [0.5, 1.0, 0.25]

# Every activation with a closed form, and its expectations.
DUALS: dict[str, tuple[Any, Callable]] = {
    "relu": (stax.Relu(), partial(piecewise_linear, a=0, b=1)),
    "leaky": (stax.LeakyRelu(0.125), partial(piecewise_linear, a=0.125, b=1)),
    "abs": (stax.Abs(), partial(piecewise_linear, a=-1, b=1)),
    "sign": (stax.Sign(), sign),
    "erf": (stax.Erf(), partial(erf, a=1, b=1, c=0)),
    "steep erf": (stax.Erf(0.75, 2.0, 0.0), partial(erf, a=0.75, b=2.0, c=0)),
    "sigmoid-like": (stax.Sigmoid_like(), partial(erf, a=0.5, b=mp.mpf(1 / 2.4020563531719796), c=0.5)),
    "gelu": (stax.Gelu(), gelu),
    "sin": (stax.Sin(), partial(sine, a=1, b=1, c=0)),
    "shifted sin": (stax.Sin(0.75, 0.5, 0.25), partial(sine, a=0.75, b=0.5, c=mp.mpf(0.25))),
    "cos": (stax.Cos(), partial(sine, a=1, b=1, c=0, quarter=1)),
    "rbf": (stax.Rbf(), partial(radial, gamma=1)),
    "gaussian": (stax.Gaussian(), partial(bell, a=1, b=-1)),
    "gabor": (stax.Gabor(), gabor),
    "exp": (stax.Exp(), partial(exponential, a=1, b=1)),
    "exp-normalized": (stax.ExpNormalized(), partial(normalized_exponential, gamma=1, shift=-1)),
    "square": (stax.Monomial(2), partial(polynomial, coef=[0, 0, 1])),
    "monomial": (stax.Monomial(5), partial(polynomial, coef=[0, 0, 0, 0, 0, 1])),
    "polynomial": (stax.Polynomial(COEF), partial(polynomial, coef=COEF)),
    "hermite": (stax.Hermite(3), third_hermite),
}
