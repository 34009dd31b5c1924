"""Polynomials, φ(x) = Σ_n c_n xⁿ: monomials and Hermite polynomials among them.

In the orthonormal Hermite polynomials of a Gaussian of variance q, φ has the coefficients q^(l/2) r_l(q), so that

    E[φφ]   = Σ_l r_l(q) r_l(q') k^l,            r_l(q) = Σ_i c_{l+2i} (l + 2i)! / (2^i i! √l!) q^i
    E[φ'φ'] = Σ_l l r_l(q) r_l(q') k^(l−1)

There is no division by norms, so that nothing is singular at zero or coincident inputs. For Hermite polynomials of high
degree the terms of r_l cancel; φ = He_n / √n! has in closed form

    r_l(q) = √(n!/l!) / (2^i i!) (q − 1)^i,      i = (n − l)/2

High powers overflow long before their products with those of a small sample do. In units m, powers of two next to √q,

    E[φφ]   = (m m')ⁿ Σ_l ρ_l ρ_l' (k / m m')^l,      ρ_l(q) = r_l(q) / m^(n−l)

and the factors m m' are multiplied one by one. They are 1 at q < 1, unless the polynomial is a single power.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ntk_equiv._check import is_listed, real_number, refusal
from ntk_equiv._typing import Array
from ntk_equiv.stax._activations import SmoothActivation, elementwise
from ntk_equiv.stax._network import Network
from ntk_equiv.stax._precision import power_of_two
from ntk_equiv.stax._rule import Certificate
from ntk_equiv.stax._state import frozen_pytree, static

# Beyond this degree n, E[x^(2n)] for x ~ N(0, 1) overflows in double precision.
LARGEST_DEGREE = 150


@frozen_pytree
class PowerSum(SmoothActivation):
    """A polynomial, lowest power first."""

    zero_times_infinity_is_zero = True

    coef: tuple[float, ...] = static()

    @property
    def certificate(self) -> Certificate:
        """Smooth; r_l has one sign at every variance if the powers it is made of, every second one, have one."""
        halves = [self.coef[parity::2] for parity in (0, 1)]
        alike = all(min(half, default=0) >= 0 or max(half) <= 0 for half in halves)
        return Certificate(dot_product=True, nonnegative=alike, smooth=True)

    @property
    def orders(self) -> tuple[int, ...]:
        """The orders l for which r_l does not vanish identically, highest first."""
        return tuple(order for order in reversed(range(len(self.coef))) if any(self.coef[order::2]))

    @property
    def degree(self) -> int:
        """The largest power."""
        return len(self.coef) - 1

    @property
    def single(self) -> bool:
        """Whether it is a multiple of the largest power."""
        return not any(self.coef[:-1])

    def coordinate(self, order: int, square: Array, unit: Array) -> Array:
        """Return ρ_l for q = `square` m² and m = `unit`."""
        weights = []
        for i, c in enumerate(self.coef[order::2]):
            count = math.factorial(order + 2 * i) // (2**i * math.factorial(i) * math.factorial(order))
            left_over = self.degree - order - 2 * i
            weights.append(c * count * math.sqrt(math.factorial(order)) * (1 / unit) ** left_over if c else 0)
        return _horner(weights, square)

    def sample_factors(self, q: Array, root: Array) -> dict[str, Array]:
        unit = jnp.where(root > (0 if self.single else 1), power_of_two(root), 1)
        inverse = 1 / unit  # XLA would turn two divisions into one by the square, which overflows.
        square = jnp.where(jnp.isinf(q) | (q == 0), jnp.square(root * inverse), q * inverse * inverse)
        coordinates = {str(order): self.coordinate(order, square, unit) for order in self.orders}
        return super().sample_factors(q, root) | {"unit": unit, "inverse_unit": inverse} | coordinates

    def std_after(self, root: Array) -> Array | None:
        if not self.single:
            return None
        moment = math.factorial(2 * self.degree) // (2**self.degree * math.factorial(self.degree))
        return abs(self.coef[-1]) * math.sqrt(moment) * root**self.degree

    def dual(self, k: Array, gap: Array, left: dict[str, Array], right: dict[str, Array]) -> tuple[Array, ...]:
        products: list[Any] = [0] * len(self.coef)
        for order in self.orders:
            products[order] = left[str(order)] * right[str(order)]
        k = k * left["inverse_unit"] * right["inverse_unit"]
        unit = left["unit"] * right["unit"]
        nngp, derivative = _horner(products, k), _horner([order * p for order, p in enumerate(products)][1:], k)
        for _ in range(self.degree - 1):
            nngp, derivative = nngp * unit, derivative * unit
        return nngp * unit if self.degree else nngp, derivative


@frozen_pytree
class UnitHermite(PowerSum):
    """He_n / √n!, without the cancellation of its powers."""

    def coordinate(self, order: int, square: Array, unit: Array) -> Array:
        i = (self.degree - order) // 2
        root = math.sqrt(math.factorial(self.degree) // math.factorial(order))
        return root / (2**i * math.factorial(i)) * (square - jnp.square(1 / unit)) ** i


def Polynomial(coef: Sequence[float]) -> Network:
    """Polynomial `coef[0] + coef[1] * x + coef[2] * x**2 + ...`.

    Args:
        coef: its coefficients, lowest power first.

    Raises:
        ValueError: there is no coefficient, one is not a finite number, or the degree exceeds 150.

    Example:
        >>> _, apply_fn, kernel_fn = Polynomial([1.0, 0.0, 2.0])
        >>> print(apply_fn((), jnp.array([[3.0]])))
        [[19.]]
        >>> kernel_fn.certificate.nonnegative  # 1 and 2, its even powers, have the same sign
        True
    """
    coef = tuple(real_number(c, "coef") for c in coef) if is_listed(coef) else ()
    if not 1 <= len(coef) <= LARGEST_DEGREE + 1:
        fix = f"List the coefficients up to the largest power, which may be {LARGEST_DEGREE}, lowest power first."
        raise refusal("coef", expected="a sequence of numbers", got=f"{len(coef)} coefficients", fix=fix)
    return elementwise(lambda x: _horner(coef, x), PowerSum(coef))


def Monomial(degree: int) -> Network:
    """Power `x**degree`.

    Args:
        degree: 0 to 150 (neural-tangents: to 5).

    Example:
        >>> from ntk_equiv import stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(1), Monomial(3), stax.Dense(1))
        >>> print(kernel_fn(jnp.array([[1.0]]), None, "nngp"))  # E[u⁶]
        [[15.]]
    """
    return Polynomial([0.0] * _check_degree(degree) + [1.0])


def Hermite(degree: int) -> Network:
    """Hermite polynomial of probability theory, divided by √(degree!) so that its mean square is 1 at variance 1.

    At variance 1 its kernels are those of neural-tangents, 𝒦' = 𝒦^degree, which assumes that variance everywhere. Here
    they are right for every variance. Variances are 1 if ‖x‖² is the number of features, `W_std` is 1, and there is no
    bias.

    Args:
        degree: 0 to 150.

    Example:
        >>> from ntk_equiv import stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(1), Hermite(3))
        >>> x = jnp.array([[1.0, 1.0], [1.4, 0.2]])
        >>> print(kernel_fn(x, None, "nngp").round(4))  # cosines 1 and 0.8, to the third power
        [[1.    0.512]
         [0.512 1.   ]]
    """
    degree = _check_degree(degree)
    coef = np.polynomial.hermite_e.herme2poly([0.0] * degree + [1.0]) / math.sqrt(math.factorial(degree))
    limit = UnitHermite(tuple(coef.tolist()))
    return elementwise(lambda x: _unit_hermite(degree, x), limit)


def _check_degree(degree: Any) -> int:
    whole = isinstance(degree, int | np.integer) and not isinstance(degree, bool)
    if not whole or not 0 <= degree <= LARGEST_DEGREE:
        raise refusal(
            "degree",
            expected=f"a whole number from 0 to {LARGEST_DEGREE}",
            got=repr(degree),
            fix="Moments of higher powers are too large for floating-point numbers.",
        )
    return int(degree)


def _unit_hermite(degree: int, x: Array) -> Array:
    """Return h_n = He_n(x) / √n!, by √(n + 1) h_{n+1} = x h_n − √n h_{n−1}."""
    before, value = jnp.zeros_like(x), jnp.ones_like(x)
    for n in range(degree):
        before, value = value, (x * value - math.sqrt(n) * before) / math.sqrt(n + 1)
    return value


def _horner(coef: Any, x: Array) -> Array:
    """Return Σ_n coef[n] xⁿ in the shape of `x`."""
    value = jnp.zeros_like(x)
    for n in reversed(range(len(coef))):
        value = coef[n] + (value if n == len(coef) - 1 else value * x)
    return value
