"""Smooth activations with kernels in closed form.

For covariance k, variances q, q' and, where they help, s = 1/√(1 + βq), z = β k s s' and Δ = √(1 − z²) / (s s'):

    `Erf`             φ = a erf(b x) + c                   β = 2b²
                      E[φφ]   = (2a²/π) arcsin z + c²
                      E[φ'φ'] = (4a²b²/π) s s' / √(1 − z²)

    `Gelu`            φ = x Φ(x)                           β = 1
                      E[φφ]   = k/4 + k arcsin(z)/2π + (k² + q q' Δ²) s² s'² / (2π Δ)
                      E[φ'φ'] = 1/4 + arcsin(z)/2π + k (1/Δ² + (1 − q q') s² s'² + 1) / (2π Δ)

    `Gaussian`        φ = a exp(b x²)                      β = −2b
                      E[φφ]   = a² / Δ
                      E[φ'φ'] = 4a²b² k / Δ³

    `Gabor`           φ = exp(−x²) sin x                   β = 2,   c = k / Δ²,   t = (1 + q + q') / Δ²
                      E[φφ]   = exp((t − 1)/2) sinh(c) / Δ
                      E[φ'φ'] = exp((t − 1)/2) [ 4c (1 + t) sinh c + (1/Δ² + 8c²) cosh c ] / Δ

    `Sin`, `Cos`      φ = a sin(b x + c)                   e^∓ = exp(−b² (q + q' ∓ 2k) / 2)
                      E[φφ]   = (a²/2)  [ e⁻ − cos(2c) e⁺ ]
                      E[φ'φ'] = (a²b²/2)[ e⁻ + cos(2c) e⁺ ]

    `Rbf`             φ = √2 sin(√(2γ) x + π/4)
                      E[φφ]   = exp(−γ (q + q' − 2k))
                      E[φ'φ'] = 2γ E[φφ]

    `Exp`             φ = a exp(b x)
                      E[φφ]   = a² exp(b² ((q + q')/2 + k))
                      E[φ'φ'] = b² E[φφ]

    `ExpNormalized`   no φ                                 c = k / √(q q')
                      𝒦' = √(q q') exp(γ (c + shift))
                      Θ' = Θ γ exp(γ (c + shift))

√(1 − z²) is the `complement` of `_precision` and q + q' ∓ 2k its `squared_distance`, both of which come from the gap of
the cosine.

For GELU, Φ is the standard normal distribution function, and the expectations follow from Stein's lemma. With
D = √(1 − z²), neither q q' nor Δ overflows or cancels:

    (k² + q q' Δ²) s² s'² / Δ                =  q s q' s' D + z² s s' / D
    k (1/Δ² + (1 − q q') s² s'² + 1) / Δ     =  z/D [ (s s'/D)² + s² + s'² ]

For the Gabor function, exp(−u² − v²) turns the law of u and v into one of covariance Σ (1 + 2Σ)⁻¹, under which the
mean of sin u sin v is exp(−trace/2) sinh(c). E[φ'φ'] is the derivative of the result in k. With D as before,
1/Δ = s s'/D, c = z/2 (s/D) (s'/D) and t = ((s/D)² + (s'/D)²) / 2.

For sines, the smaller exponential is the larger one, e, times 1 − h, with h = 1 − exp(−2b²|k|) = 2t / (1 + t) and
t = tanh(b²|k|). In terms of h nothing cancels at small variances:

    E[φφ]   = a² e   [ sin²c + cos(2c) h/2 ],    E[φ'φ'] = a²b² e [ cos²c − cos(2c) h/2 ]      for k ≥ 0
    E[φφ]   = a² e   [ sin²c − h/2 ],            E[φ'φ'] = a²b² e [ cos²c − h/2 ]              for k < 0

A cosine is a sine with c a quarter of a period ahead, which exchanges sin²c and cos²c and changes the sign of cos(2c).

After one dense layer of unit variance without bias, `Rbf` has E[φφ] = exp(−γ ‖x − x'‖² / d) for inputs of d features.
`ExpNormalized` is the kernel of "Neural Kernels Without Tangents" (Shankar et al. 2020). No elementwise function
belongs to it, so there is no finite network; Θ' follows from 𝒦' by ∂/∂k as for the others.
"""

import math

import jax
import jax.numpy as jnp

from ntk_equiv._check import boolean, refusal, scalar
from ntk_equiv._typing import Array, Scalar
from ntk_equiv.stax._activations import SmoothActivation, elementwise
from ntk_equiv.stax._network import Network
from ntk_equiv.stax._precision import arcsin, complement, in_precision, saturation, squared_distance
from ntk_equiv.stax._rule import EVERYTHING, Certificate
from ntk_equiv.stax._state import frozen_pytree, static


@frozen_pytree
class ErrorFunction(SmoothActivation):
    """A scaled and shifted error function."""

    a: Scalar
    b: Scalar
    c: Scalar

    @property
    def certificate(self) -> Certificate:
        """Smooth, and the signs of its Hermite coefficients do not depend on the variance."""
        return EVERYTHING

    def value(self, x: Array) -> Array:
        """Return φ(x)."""
        a, b, c = (in_precision(p, x) for p in (self.a, self.b, self.c))
        return a * jax.scipy.special.erf(b * x) + c

    def sample_factors(self, q: Array, root: Array) -> dict[str, Array]:
        a, b = (jnp.asarray(p, q.dtype) for p in (self.a, self.b))
        factors = super().sample_factors(q, root) | saturation(2 * b**2, q, root)
        return factors | {"in": 2**0.5 * b * factors["scale"], "out": 2 / jnp.pi**0.5 * a * b * factors["scale"]}

    def dual(self, k: Array, gap: Array, left: dict[str, Array], right: dict[str, Array]) -> tuple[Array, ...]:
        a, c = (jnp.asarray(p, k.dtype) for p in (self.a, self.c))
        root, inverse = complement(gap, left, right)
        # Where the covariance overflows, the activation is as good as a sign, and z is the cosine.
        z = jnp.where(jnp.isinf(k), 1 - gap, k * left["in"] * right["in"])
        return 2 / jnp.pi * a**2 * arcsin(z, root) + c**2, left["out"] * inverse, right["out"]


def Erf(a: Scalar = 1.0, b: Scalar = 1.0, c: Scalar = 0.0) -> Network:
    """Error function `a * erf(b * x) + c`.

    Args:
        a: output scale.
        b: input scale.
        c: output shift.

    Example:
        >>> from ntk_equiv import stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(1), Erf(), stax.Dense(1))
        >>> print(kernel_fn(jnp.array([[0.5**0.5]]), None, "nngp").round(6))  # 2/π · arcsin(1/2)
        [[0.333333]]
    """
    erf = ErrorFunction(scalar(a, "a"), scalar(b, "b"), scalar(c, "c"))
    return elementwise(erf.value, erf)


def Sigmoid_like() -> Network:
    """Error function in the form of a sigmoid, `0.5 * erf(x / 2.4020563531719796) + 0.5`.

    The constant is that of neural-tangents: in the mean square, it comes closest to the logistic function on [-5, 5].

    Example:
        >>> _, apply_fn, _ = Sigmoid_like()
        >>> print(apply_fn((), jnp.array([[-9.0, 0.0, 9.0]])).round(4))
        [[0.  0.5 1. ]]
    """
    return Erf(0.5, 1 / 2.4020563531719796, 0.5)


@frozen_pytree
class GaussianErrorUnit(SmoothActivation):
    """The product of x and Φ(x)."""

    @property
    def certificate(self) -> Certificate:
        """Smooth, and the signs of its Hermite coefficients do not depend on the variance."""
        return EVERYTHING

    def sample_factors(self, q: Array, root: Array) -> dict[str, Array]:
        factors = super().sample_factors(q, root) | saturation(jnp.ones((), q.dtype), q, root)
        return factors | {"bulk": jnp.where(jnp.isinf(q), root, q * factors["scale"])}

    def std_after(self, root: Array) -> Array:
        # Half the identity at small variances, a rectifier at large ones.
        return jnp.where(root < 1, 1 / 2, math.sqrt(1 / 2)) * root

    def dual(self, k: Array, gap: Array, left: dict[str, Array], right: dict[str, Array]) -> tuple[Array, ...]:
        root, inverse = complement(gap, left, right)
        z = (k * left["scale"]) * right["scale"]
        quarter = 0.25 + arcsin(z, root) / (2 * jnp.pi)
        inverse_delta = left["scale"] * inverse * right["scale"]
        bulk = left["bulk"] * root * right["bulk"]
        nngp = k * quarter + (bulk + z**2 * inverse_delta) / (2 * jnp.pi)
        bend = inverse_delta**2 + left["plain"] + right["plain"]
        return nngp, quarter + z * inverse * bend / (2 * jnp.pi)


def Gelu(approximate: bool = False) -> Network:
    """Gaussian error linear unit `x * Φ(x)`.

    Args:
        approximate: whether the finite network uses the approximation by `tanh`; the kernels are always exact.

    Example:
        >>> _, apply_fn, _ = Gelu()
        >>> print(apply_fn((), jnp.array([[0.0, 10.0]])))
        [[ 0. 10.]]
    """
    approximate = boolean(approximate, "approximate")
    return elementwise(lambda x: jax.nn.gelu(x, approximate=approximate), GaussianErrorUnit())


@frozen_pytree
class GaborFunction(SmoothActivation):
    """The product of a Gaussian and a sine, exp(−x²) sin(x)."""

    zero_times_infinity_is_zero = True

    def sample_factors(self, q: Array, root: Array) -> dict[str, Array]:
        return super().sample_factors(q, root) | saturation(jnp.full((), 2, q.dtype), q, root)

    def dual(self, k: Array, gap: Array, left: dict[str, Array], right: dict[str, Array]) -> tuple[Array, ...]:
        _, inverse = complement(gap, left, right)
        # Where the covariance overflows, z is the cosine.
        z = jnp.where(jnp.isinf(k), 1 - gap, 2 * (k * left["scale"]) * right["scale"])
        on_left, on_right = left["scale"] * inverse, right["scale"] * inverse
        c = z / 2 * on_left * on_right
        trace = (jnp.square(on_left) + jnp.square(on_right)) / 2
        inverse_delta = on_left * right["scale"]
        value = inverse_delta * jnp.exp((trace - 1) / 2)
        # Both hyperbolic functions from one exponential: |c|, an entry of (K⁻¹ + 2)⁻¹ off the diagonal, is at most 1/4.
        grown = jnp.expm1(c)
        shrunk = grown / (1 + grown)
        sinh, cosh = (grown + shrunk) / 2, 1 + grown * shrunk / 2
        slope = 4 * c * (1 + trace) * sinh + (jnp.square(inverse_delta) + 8 * jnp.square(c)) * cosh
        return value * sinh, value, slope


def Gabor() -> Network:
    """Gabor function `exp(-x**2) * sin(x)`.

    Example:
        >>> _, apply_fn, _ = Gabor()
        >>> print(apply_fn((), jnp.array([[0.0, 1.0]])).round(4))
        [[0.     0.3096]]
    """
    return elementwise(lambda x: jnp.exp(-jnp.square(x)) * jnp.sin(x), GaborFunction())


@frozen_pytree
class Sinusoid(SmoothActivation):
    """A sine of any amplitude, frequency and phase."""

    zero_times_infinity_is_zero = True

    a: Scalar
    b: Scalar
    c: Scalar
    cosine: bool = static(default=False)

    @property
    def certificate(self) -> Certificate:
        """Smooth; Hermite coefficients are those of the exponential times a phase that no variance changes."""
        return Certificate(dot_product=True, nonnegative=True, smooth=True)

    def value(self, x: Array) -> Array:
        """Return φ(x)."""
        a, b, c = (in_precision(p, x) for p in (self.a, self.b, self.c))
        return a * (jnp.cos if self.cosine else jnp.sin)(b * x + c)

    def dual(self, k: Array, gap: Array, left: dict[str, Array], right: dict[str, Array]) -> tuple[Array, ...]:
        a, b, c = (jnp.asarray(p, k.dtype) for p in (self.a, self.b, self.c))
        squares = jnp.square(jnp.sin(c)), jnp.square(jnp.cos(c))
        low, high = reversed(squares) if self.cosine else squares
        far = gap > 1
        k, gap = jnp.where(far, -k, k), jnp.minimum(gap, 2 - gap)
        nearer = squared_distance(k, gap, left["q"], left["root"], right["q"], right["root"])
        exponential = a**2 * jnp.exp(-(b**2) / 2 * nearer)
        tanh = jnp.tanh(b**2 * k)
        change = jnp.where(far, -1, low - high) * (tanh / (1 + tanh))
        return exponential * jnp.where(far, low + change, low - change), b**2 * exponential * (high + change)


def Sin(a: Scalar = 1.0, b: Scalar = 1.0, c: Scalar = 0.0) -> Network:
    """Sine `a * sin(b * x + c)`.

    Args:
        a: amplitude.
        b: frequency.
        c: phase.

    Example:
        >>> from ntk_equiv import stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(1), Sin(), stax.Dense(1))
        >>> print(kernel_fn(jnp.ones((1, 1)), None, "nngp").round(6))  # (1 − e⁻²) / 2
        [[0.432332]]
    """
    sine = Sinusoid(scalar(a, "a"), scalar(b, "b"), scalar(c, "c"))
    return elementwise(sine.value, sine)


def Cos(a: Scalar = 1.0, b: Scalar = 1.0, c: Scalar = 0.0) -> Network:
    """Cosine `a * cos(b * x + c)`.

    Example:
        >>> _, apply_fn, _ = Cos()
        >>> print(apply_fn((), jnp.zeros((1, 1))))
        [[1.]]
    """
    cosine = Sinusoid(scalar(a, "a"), scalar(b, "b"), scalar(c, "c"), cosine=True)
    return elementwise(cosine.value, cosine)


@frozen_pytree
class RadialBasis(SmoothActivation):
    """The sine whose kernel depends on the distance of two samples alone."""

    zero_times_infinity_is_zero = True

    gamma: Scalar

    @property
    def certificate(self) -> Certificate:
        """The exponential series of 2γ √(q q') times the cosine has positive coefficients."""
        return EVERYTHING

    def dual(self, k: Array, gap: Array, left: dict[str, Array], right: dict[str, Array]) -> tuple[Array, ...]:
        gamma = jnp.asarray(self.gamma, k.dtype)
        nngp = jnp.exp(-gamma * squared_distance(k, gap, left["q"], left["root"], right["q"], right["root"]))
        return nngp, 2 * gamma * nngp


def Rbf(gamma: Scalar = 1.0) -> Network:
    """Sine `sqrt(2) * sin(sqrt(2 * gamma) * x + pi / 4)`, whose kernel is the squared exponential.

    Args:
        gamma: 1 / (2 l²) for the length scale l, at least 0.

    Raises:
        ValueError: `gamma` is negative.

    Example:
        >>> from ntk_equiv import stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(1), Rbf(0.5))
        >>> print(kernel_fn(jnp.array([[0.0]]), jnp.array([[0.0], [1.0]]), "nngp").round(6))  # 1 and e^(−1/2)
        [[1.       0.606531]]
    """
    scalar(gamma, "gamma", at_least=0, fix="It is 1 / (2 l²) for the length scale l.")

    def function(x: Array) -> Array:
        return math.sqrt(2) * jnp.sin(jnp.sqrt(2 * jnp.asarray(gamma, x.dtype)) * x + math.pi / 4)

    return elementwise(function, RadialBasis(gamma))


@frozen_pytree
class Bell(SmoothActivation):
    """The exponential of a multiple of the square."""

    a: Scalar
    b: Scalar

    @property
    def certificate(self) -> Certificate:
        """1/√(1 − z²) is a power series in z² with positive coefficients, and z is proportional to the cosine."""
        return EVERYTHING

    def value(self, x: Array) -> Array:
        """Return φ(x)."""
        a, b = (in_precision(p, x) for p in (self.a, self.b))
        return a * jnp.exp(b * x**2)

    def sample_factors(self, q: Array, root: Array) -> dict[str, Array]:
        return super().sample_factors(q, root) | saturation(-2 * jnp.asarray(self.b, q.dtype), q, root)

    def dual(self, k: Array, gap: Array, left: dict[str, Array], right: dict[str, Array]) -> tuple[Array, ...]:
        a, b = (jnp.asarray(p, k.dtype) for p in (self.a, self.b))
        _, inverse = complement(gap, left, right)
        inverse_delta = left["scale"] * inverse * right["scale"]
        z = (k * left["scale"]) * right["scale"]
        return a**2 * inverse_delta, 4 * a**2 * b**2 * (z * inverse) * inverse_delta, inverse_delta


def Gaussian(a: Scalar = 1, b: Scalar = -1) -> Network:
    """Gaussian bell `a * exp(b * x**2)`.

    Args:
        a: height.
        b: minus the inverse squared width. With a positive `b`, expectations exist only as long as 4bq < 1 for the
            variance q of the preactivation; beyond that, kernels are NaN.

    Example:
        >>> from ntk_equiv import stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(1), Gaussian(), stax.Dense(1))
        >>> print(kernel_fn(jnp.array([[2**0.5]]), None, "nngp").round(6))  # 1 / √(1 + 4 · 2)
        [[0.333333]]
    """
    bell = Bell(scalar(a, "a"), scalar(b, "b"))
    return elementwise(bell.value, bell)


@frozen_pytree
class Exponential(SmoothActivation):
    """An exponential, scaled at input and output."""

    zero_times_infinity_is_zero = True

    a: Scalar
    b: Scalar

    @property
    def certificate(self) -> Certificate:
        """The exponential series of b² √(q q') times the cosine has positive coefficients."""
        return EVERYTHING

    def value(self, x: Array) -> Array:
        """Return φ(x)."""
        a, b = (in_precision(p, x) for p in (self.a, self.b))
        return a * jnp.exp(b * x)

    def dual(self, k: Array, gap: Array, left: dict[str, Array], right: dict[str, Array]) -> tuple[Array, ...]:
        a, b = (jnp.asarray(p, k.dtype) for p in (self.a, self.b))
        squared_sum = squared_distance(-k, 2 - gap, left["q"], left["root"], right["q"], right["root"])
        nngp = a**2 * jnp.exp(b**2 / 2 * squared_sum)
        return nngp, b**2 * nngp


def Exp(a: Scalar = 1, b: Scalar = 1) -> Network:
    """Exponential `a * exp(b * x)`.

    Its kernels grow exponentially with the variance of the preactivation, so keep `W_std` small in deep networks.

    Args:
        a: output scale.
        b: input scale.

    Example:
        >>> from ntk_equiv import stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(1), Exp(), stax.Dense(1))
        >>> print(kernel_fn(jnp.array([[1.0]]), jnp.array([[-1.0]]), "nngp"))  # E[eᵘ e⁻ᵘ]
        [[1.]]
    """
    exponential = Exponential(scalar(a, "a"), scalar(b, "b"))
    return elementwise(exponential.value, exponential)


@frozen_pytree
class NormalizedExponential(SmoothActivation):
    """An exponential of the cosine, times both norms."""

    gamma: Scalar
    shift: Scalar

    @property
    def certificate(self) -> Certificate:
        """The exponential series has positive coefficients, and norms are only factors."""
        return EVERYTHING

    def std_after(self, root: Array) -> Array:
        gamma, shift = (jnp.asarray(p, root.dtype) for p in (self.gamma, self.shift))
        return root * jnp.exp(gamma * (1 + shift) / 2)

    def dual(self, k: Array, gap: Array, left: dict[str, Array], right: dict[str, Array]) -> tuple[Array, ...]:
        gamma, shift = (jnp.asarray(p, k.dtype) for p in (self.gamma, self.shift))
        exponential = jnp.exp(gamma * ((1 + shift) - gap))
        return left["root"] * exponential * right["root"], gamma * exponential


def ExpNormalized(gamma: Scalar = 1, shift: Scalar = -1, do_clip: bool = False) -> Network:
    """Exponential of the cosine times both norms; a kernel without a finite network.

    Args:
        gamma: coefficient in the exponent, at least 0.
        shift: added to the cosine in the exponent; at -1, variances stay as they are.
        do_clip: accepted for compatibility, without effect: a cosine that rounding makes larger than 1 does no harm.

    Raises:
        ValueError: `gamma` is negative, which makes kernels indefinite, or the finite network is evaluated.

    Example:
        >>> from ntk_equiv import stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(1), ExpNormalized(), stax.Dense(1))
        >>> print(kernel_fn(jnp.eye(2) * 2**0.5, None, "nngp").round(4))
        [[1.     0.3679]
         [0.3679 1.    ]]
    """
    scalar(gamma, "gamma", at_least=0, fix="A negative one makes the kernels indefinite.")
    scalar(shift, "shift")
    boolean(do_clip, "do_clip")
    return elementwise(_no_function, NormalizedExponential(gamma, shift))


def _no_function(x: Array) -> Array:
    raise refusal(
        "network",
        expected="one of layers that are functions",
        got="`ExpNormalized`, which is only a kernel",
        fix="Evaluate its `kernel_fn`; no finite network belongs to it.",
    )
