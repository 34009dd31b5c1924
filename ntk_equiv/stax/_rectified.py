"""Activations with a kink or a jump at zero: ReLU and its relatives, rectified powers, the sign.

Below, r = √q, k = r r' c, the angle between two samples is θ = arccos c, and the gap of their cosine is g = 1 − c. The
normalised arc-cosine kernels are κ₁ and κ₀ = 1 − θ/π.

**Piecewise linear**, φ(x) = a min(x, 0) + b max(x, 0), with m = (a² + b²)/2,

    E[φφ]   = m r r' (1 − g'),        g' = [ (b − a)²/2 (1 − κ₁) + a b g ] / m
    E[φ'φ'] = (b − a)²/2 κ₀ + a b

g' is the gap after the activation. Passed on through dense layers, it keeps its relative precision through any depth,
where 1 − k' / (√q' √q'') would lose it.

**Rectified powers**, φ(x) = xⁿ for x ≥ 0 and 0 elsewhere, have the arc-cosine kernels of order n, with s = sin θ,

    E[φφ]   = (q q')^(n/2) J_n / 2π,              J_n = A_n(c) (π − θ) + B_n(c) s
    E[φ'φ'] = n² (q q')^((n−1)/2) J_{n−1} / 2π

in which A_n and B_n are polynomials. dJ_n/dc = n² J_{n−1} gives each pair of them from the one before:

    A_n' = n² A_{n−1},      (1 − c²) B_n' − c B_n = n² (1 − c²) B_{n−1} − A_n

with A_n(0) = ((n − 1)!!)² for even n and 0 for odd ones, and B_n of degree n − 1.

**The sign**, φ(x) = 1 for x > 0, −1 for x < 0, has

    E[φφ]   = 1 − 2θ/π = 2κ₀ − 1
    E[φ'φ'] = 0

The derivative is zero wherever it exists. Gradients of the finite network see nothing else, so no layer below a sign is
trained. 2θ/π is itself the gap of the new cosine, and is passed on.
"""

import dataclasses
import math
from fractions import Fraction
from functools import cache

import jax
import jax.numpy as jnp

from ntk_equiv._check import boolean, refusal, scalar, whole_number
from ntk_equiv._typing import Array, Scalar
from ntk_equiv.stax._activations import CosineActivation, elementwise
from ntk_equiv.stax._network import Network
from ntk_equiv.stax._precision import arc_cosine_kernels, in_precision, materialize, safe_sqrt
from ntk_equiv.stax._rule import Certificate
from ntk_equiv.stax._state import Memo, PairState, Requirements, SampleState, frozen_pytree, static

# Beyond this degree, the terms of J_n cancel too many digits.
LARGEST_DEGREE = 20


@frozen_pytree
class PiecewiseLinear(CosineActivation):
    """Two slopes a and b that meet at zero, as bend (b − a)²/2, slope a b, and moment (a² + b²)/2, their sum."""

    bend: Scalar
    slope: Scalar
    moment: Scalar

    @classmethod
    def of(cls, a: Scalar, b: Scalar) -> "PiecewiseLinear":
        """Return the rule of slope a for negative and slope b for positive inputs."""
        return cls((b - a) ** 2 / 2, a * b, (a**2 + b**2) / 2)

    @property
    def certificate(self) -> Certificate:
        """Positively homogeneous, with a kink."""
        return Certificate(dot_product=True, nonnegative=True, smooth=False)

    def second_moment(self, q: Array) -> Array:
        return jnp.asarray(self.moment, q.dtype) * q

    def per_sample(self, state: SampleState, wanted: Requirements) -> tuple[SampleState, Memo]:
        after, memo = super().per_sample(state, wanted)
        if state.residue is None or state.cov is None:
            return after, memo
        residue = self.second_moment(state.residue)
        return after.with_cov(self.second_moment(state.cov), residue=residue, root=after.root), memo

    def std_after(self, root: Array) -> Array:
        return safe_sqrt(jnp.asarray(self.moment, root.dtype)) * root

    def per_pair(self, state: PairState, left: Memo, right: Memo, wanted: Requirements) -> PairState:
        on_left, on_right = jax.tree.map(state.on_left, left), jax.tree.map(state.on_right, right)
        gap = self.incoming_gap(state, on_left, on_right)
        bend, slope, moment = (jnp.asarray(v, gap.dtype) for v in (self.bend, self.slope, self.moment))
        one_minus_k1, k0 = arc_cosine_kernels(gap)
        gap = (bend * one_minus_k1 + slope * gap) / jnp.where(moment > 0, moment, 1)
        ntk = None if state.ntk is None else state.ntk * (bend * k0 + slope)
        # Store what the next layer reads: gap or kernel.
        if wanted.gap:
            gap, ntk = materialize((gap, ntk), left["q"])
        nngp = moment * on_left["root"] * (1 - gap) * on_right["root"]
        if wanted.stored and not wanted.gap:
            nngp, ntk = materialize((nngp, ntk), left["q"])
        return dataclasses.replace(state, nngp=nngp, ntk=ntk, gap=gap)


def ABRelu(a: Scalar, b: Scalar, do_stabilize: bool = False) -> Network:
    """Piecewise linear activation `a * min(x, 0) + b * max(x, 0)`.

    Args:
        a: slope for negative inputs.
        b: slope for positive inputs.
        do_stabilize: accepted for compatibility, without effect: kernels are always evaluated through cosines, which
            neither overflow nor underflow in deep networks.

    Example:
        >>> _, apply_fn, _ = ABRelu(0.5, 2.0)
        >>> print(apply_fn((), jnp.array([[-1.0, 1.0]])))
        [[-0.5  2. ]]
    """
    a, b = scalar(a, "a"), scalar(b, "b")
    boolean(do_stabilize, "do_stabilize")

    def apply(x: Array) -> Array:
        # Without the term that is zero: a pass less, and no 0 · ∞.
        if type(a) in (int, float) and a == 0:
            return in_precision(b, x) * _positive_part(x)
        return in_precision(a, x) * -_positive_part(-x) + in_precision(b, x) * _positive_part(x)

    return elementwise(apply, PiecewiseLinear.of(a, b))


@jax.custom_jvp
def _positive_part(x: Array) -> Array:
    """Return max(x, 0), with derivative 1/2 at zero.

    That is the derivative of `jnp.maximum` too, but there XLA divides in every entry to find it.
    """
    return jnp.maximum(x, 0)


@_positive_part.defjvp
def _positive_part_jvp(primals: tuple, tangents: tuple) -> tuple:
    (x,), (dx,) = primals, tangents
    return _positive_part(x), jnp.where(x > 0, 1, jnp.where(x < 0, 0, 0.5)).astype(x.dtype) * dx


def Relu(do_stabilize: bool = False) -> Network:
    """Rectifier `max(x, 0)`.

    Example:
        >>> from ntk_equiv import stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(1), Relu(), stax.Dense(1))
        >>> print(kernel_fn(jnp.eye(2) * 2**0.5, None, "nngp").round(4))
        [[0.5    0.1592]
         [0.1592 0.5   ]]
    """
    return ABRelu(0.0, 1.0, do_stabilize)


def LeakyRelu(alpha: Scalar, do_stabilize: bool = False) -> Network:
    """Leaky rectifier `alpha * min(x, 0) + max(x, 0)`.

    Example:
        >>> _, apply_fn, _ = LeakyRelu(0.1)
        >>> print(apply_fn((), jnp.array([[-1.0, 1.0]])))
        [[-0.1  1. ]]
    """
    return ABRelu(scalar(alpha, "alpha"), 1.0, do_stabilize)


def Abs(do_stabilize: bool = False) -> Network:
    """Absolute value `|x|`.

    Example:
        >>> from ntk_equiv import stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(1), Abs(), stax.Dense(1))
        >>> print(kernel_fn(jnp.array([[1.0]]), jnp.array([[-1.0]]), "nngp"))
        [[1.]]
    """
    return ABRelu(-1.0, 1.0, do_stabilize)


@frozen_pytree
class RectifiedPower(CosineActivation):
    """The power xⁿ on one side of zero."""

    degree: int = static()

    @property
    def certificate(self) -> Certificate:
        """Positively homogeneous: the coefficients of all variances share their signs."""
        return Certificate(dot_product=True, nonnegative=True, smooth=self.degree > 1)

    def second_moment(self, q: Array) -> Array:
        return math.prod(range(1, 2 * self.degree, 2)) / 2 * q**self.degree

    def sample_factors(self, q: Array, root: Array) -> dict[str, Array]:
        powers = {"size": root**self.degree, "slope": root ** max(self.degree - 1, 0)}
        return super().sample_factors(q, root) | powers

    def per_pair(self, state: PairState, left: Memo, right: Memo, wanted: Requirements) -> PairState:
        a, b = jax.tree.map(state.on_left, left), jax.tree.map(state.on_right, right)
        gap = self.incoming_gap(state, a, b)
        nngp = a["size"] * b["size"] * _arc_cosine(self.degree, gap)
        ntk = None if state.ntk is None else jnp.zeros_like(state.ntk)
        if ntk is not None and self.degree > 0:
            slope = self.degree**2 * a["slope"] * b["slope"] * _arc_cosine(self.degree - 1, gap)
            ntk = state.ntk * slope
        if wanted.stored:
            nngp, ntk = materialize((nngp, ntk), left["q"])
        return dataclasses.replace(state, nngp=nngp, ntk=ntk, gap=None)


def RectifiedMonomial(degree: int) -> Network:
    """Rectified power `x**degree` for x ≥ 0, and 0 elsewhere.

    Degree 0 is a step: layers before it learn nothing. Degree 1 is `Relu`.

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
    return elementwise(lambda x: jnp.where(x >= 0, x**degree, 0).astype(x.dtype), RectifiedPower(degree))


@frozen_pytree
class Signum(CosineActivation):
    """The sign of the input."""

    @property
    def certificate(self) -> Certificate:
        """The series of the arc sine has non-negative coefficients; φ jumps."""
        return Certificate(dot_product=True, nonnegative=True, smooth=False)

    def sample_factors(self, q: Array, root: Array) -> dict[str, Array]:
        return super().sample_factors(q, root) | {"moment": self.second_moment(root)}

    def second_moment(self, q: Array) -> Array:
        return jnp.where(q > 0, jnp.ones_like(q), 0)

    def per_sample(self, state: SampleState, wanted: Requirements) -> tuple[SampleState, Memo]:
        after, memo = super().per_sample(state, wanted)
        return (after if state.full else after.with_cov(memo["moment"])), memo

    def per_pair(self, state: PairState, left: Memo, right: Memo, wanted: Requirements) -> PairState:
        on_left, on_right = jax.tree.map(state.on_left, left), jax.tree.map(state.on_right, right)
        gap = materialize(2 * (1 - arc_cosine_kernels(self.incoming_gap(state, on_left, on_right))[1]), left["q"])
        nngp = on_left["moment"] * on_right["moment"] * (1 - gap)
        return dataclasses.replace(state, nngp=nngp, ntk=None, gap=gap)


def Sign() -> Network:
    """Sign of the input; at zero it is zero.

    Example:
        >>> from ntk_equiv import stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(1), Sign(), stax.Dense(1))
        >>> print(kernel_fn(jnp.array([[1.0, 0.0]]), jnp.array([[1.0, 1.0]]), "nngp"))  # 45 degrees
        [[0.5]]
    """
    return elementwise(jnp.sign, Signum())


def _arc_cosine(order: int, gap: Array) -> Array:
    """Return J_n / 2π at cosine 1 − gap."""
    _, k0 = arc_cosine_kernels(gap)  # 1 − θ/π
    sine = safe_sqrt(gap * (2 - gap))
    A, B = _polynomials(order)
    return (_horner(A, 1 - gap) * k0 + _horner(B, 1 - gap) * sine / math.pi) / 2


@cache
def _polynomials(order: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return A_n and B_n, lowest power first."""
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
