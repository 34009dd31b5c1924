"""Rectified powers, φ(x) = xⁿ for x ≥ 0 and 0 elsewhere: steps, ReLU, and smoother relatives.

With the angle θ between two samples, c = cos θ and s = sin θ, their kernels are the arc-cosine kernels of order n,

    E[φφ]   = (q q')^(n/2) J_n / 2π,              J_n = A_n(c) (π − θ) + B_n(c) s
    E[φ'φ'] = n² (q q')^((n−1)/2) J_{n−1} / 2π

in which A_n and B_n are polynomials. dJ_n/dc = n² J_{n−1} gives each pair of them from the one before:

    A_n' = n² A_{n−1},      (1 − c²) B_n' − c B_n = n² (1 − c²) B_{n−1} − A_n

with A_n(0) = ((n − 1)!!)² for even n and 0 for odd ones, and B_n of degree n − 1.
"""

import dataclasses
import math
from fractions import Fraction
from functools import cache

import jax
import jax.numpy as jnp

from ntk_equiv._check import refusal, whole_number
from ntk_equiv._typing import Array
from ntk_equiv.stax._arc import arc_cosine_kernels
from ntk_equiv.stax._certificate import Certificate
from ntk_equiv.stax._network import Network, without_parameters
from ntk_equiv.stax._rule import CosineActivation, Trace, rule, static
from ntk_equiv.stax._state import Need, Pairs, materialize, safe_sqrt

LARGEST_DEGREE = 20


@rule
class RectifiedPower(CosineActivation):
    """xⁿ on one side of zero."""

    degree: int = static()

    @property
    def certificate(self) -> Certificate:
        """Positively homogeneous: the coefficients of all variances share their signs."""
        return Certificate(dot_product=True, nonnegative=True, smooth=self.degree > 1)

    def second_moment(self, q: Array) -> Array:
        return math.prod(range(1, 2 * self.degree, 2)) / 2 * q**self.degree

    def scales(self, q: Array, root: Array) -> dict[str, Array]:
        powers = {"size": root**self.degree, "slope": root ** max(self.degree - 1, 0)}
        return super().scales(q, root) | powers

    def pairs(self, pairs: Pairs, left: Trace, right: Trace, need: Need) -> Pairs:
        a, b = jax.tree.map(pairs.on_left, left), jax.tree.map(pairs.on_right, right)
        gap = self.gap(pairs, a, b)
        nngp = a["size"] * b["size"] * _arc_cosine(self.degree, gap)
        ntk = None if pairs.ntk is None else jnp.zeros_like(pairs.ntk)
        if ntk is not None and self.degree > 0:
            slope = self.degree**2 * a["slope"] * b["slope"] * _arc_cosine(self.degree - 1, gap)
            ntk = pairs.ntk * slope
        if need.stored:
            nngp, ntk = materialize((nngp, ntk), left["q"])
        return dataclasses.replace(pairs, nngp=nngp, ntk=ntk, gap=None)


def RectifiedMonomial(degree: int) -> Network:
    """Rectified power `x**degree` for x ≥ 0, and 0 elsewhere.

    Degree 0 is a step, through which nothing is learnt; degree 1 is `Relu`.

    Args:
        degree: 0 to 20.

    Example:
        >>> from ntk_equiv import stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(1), RectifiedMonomial(2), stax.Dense(1))
        >>> print(kernel_fn(jnp.array([[1.0], [-1.0]]), None, "nngp"))  # E[u⁴] / 2
        [[1.5 0. ]
         [0.  1.5]]
    """
    degree = whole_number(degree, "degree")
    if degree > LARGEST_DEGREE:
        fix = "Terms of its kernels would cancel too many digits."
        raise refusal("degree", expected=f"at most {LARGEST_DEGREE}", got=degree, fix=fix)
    return without_parameters(
        lambda shape: shape, lambda x: jnp.where(x >= 0, x**degree, 0).astype(x.dtype), RectifiedPower(degree)
    )


def _arc_cosine(order: int, gap: Array) -> Array:
    """J_n / 2π at cosine 1 − gap."""
    _, k0 = arc_cosine_kernels(gap)  # 1 − θ/π
    sine = safe_sqrt(gap * (2 - gap))
    A, B = _polynomials(order)
    return (_horner(A, 1 - gap) * k0 + _horner(B, 1 - gap) * sine / math.pi) / 2


@cache
def _polynomials(order: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """A_n and B_n, lowest power first."""
    A, B = _exact_polynomials(order)
    return tuple(map(float, A)), tuple(map(float, B))


def _exact_polynomials(n: int) -> tuple[list[Fraction], list[Fraction]]:
    if n == 0:
        return [Fraction(1)], []
    before_A, before_B = _exact_polynomials(n - 1)
    constant = Fraction(0) if n % 2 else Fraction(math.prod(range(1, n, 2)) ** 2)
    A = [constant] + [n * n * a / (k + 1) for k, a in enumerate(before_A)]
    right = [-a for a in A] + [Fraction(0)] * 2
    for k, b in enumerate(before_B):
        right[k] += n * n * b
        right[k + 2] -= n * n * b
    B = [Fraction(0)] * (n + 2)
    for k in range(n, 0, -1):  # The coefficient of c^k on the left is (k + 1) b_{k+1} − k b_{k−1}.
        B[k - 1] = ((k + 1) * B[k + 1] - right[k]) / k
    return A, B[:n]


def _horner(coefficients: tuple[float, ...], x: Array) -> Array:
    value = jnp.zeros_like(x)
    for coefficient in reversed(coefficients):
        value = value * x + coefficient
    return value
