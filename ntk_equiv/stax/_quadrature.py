"""Any activation, by Gauss–Hermite quadrature.

    E[φ(u)φ(v)] ≈ (1/π) Σ_ij w_i w_j φ(√2 r (α x_i + β x_j)) φ(√2 r' (α x_i − β x_j)),
    α = √((1 + c)/2),  β = √((1 − c)/2)

with nodes x_i, weights w_i of degree `deg`. Splitting the cosine evenly between the two samples keeps the sum
symmetric under their exchange, at any degree.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv._check import function, positive_integer
from ntk_equiv._typing import Array
from ntk_equiv.stax._arc import gap_of
from ntk_equiv.stax._certificate import Certificate
from ntk_equiv.stax._network import Network, without_parameters
from ntk_equiv.stax._rule import DualActivation, rule, static
from ntk_equiv.stax._state import inverse_root, safe_sqrt


@rule
class Quadrature(DualActivation):
    """A scalar function and its derivative, known only by their values."""

    function: Callable = static()
    derivative: Callable = static()
    degree: int = static()

    @property
    def certificate(self) -> Certificate:
        """A function of norms and cosine, and nothing more is known."""
        return Certificate(dot_product=True, nonnegative=False, smooth=False)

    def factors(self, q: Array) -> dict[str, Array]:
        return {"q": q, "root": safe_sqrt(q), "inverse_root": inverse_root(q)}

    def second_moment(self, q: Array) -> Array:
        nodes, weights = np.polynomial.hermite.hermgauss(self.degree)
        root = safe_sqrt(q)
        total = jnp.zeros_like(q)
        for x, w in zip(nodes.tolist(), weights.tolist(), strict=True):
            value = jnp.asarray(self.function(math.sqrt(2) * x * root), q.dtype)
            total = total + w / math.sqrt(math.pi) * jnp.square(value)
        return total

    def dual(self, k: Array, left: dict[str, Array], right: dict[str, Array]) -> tuple[Array, Array]:
        gap = gap_of(k * left["inverse_root"] * right["inverse_root"])
        alpha, beta = safe_sqrt(2 - gap), safe_sqrt(gap)
        nodes, weights = (jnp.asarray(v, k.dtype) for v in np.polynomial.hermite.hermgauss(self.degree))

        def add_node(total: tuple[Array, Array], i: Array) -> tuple[tuple[Array, Array], None]:
            x, y = nodes[i // self.degree], nodes[i % self.degree]
            weight = weights[i // self.degree] * weights[i % self.degree] / jnp.pi
            u, v = left["root"] * (alpha * x + beta * y), right["root"] * (alpha * x - beta * y)
            # Constants of double precision in a function would not stay what the sum began with.
            value, slope = (jnp.asarray(f(u) * f(v), k.dtype) for f in (self.function, self.derivative))
            return (total[0] + weight * value, total[1] + weight * slope), None

        zero = jnp.zeros_like(k)
        return jax.lax.scan(add_node, (zero, zero), jnp.arange(self.degree**2))[0]


def ElementwiseNumerical(fn: Callable, deg: int, df: Callable | None = None) -> Network:
    """Any scalar activation, its kernels by Gauss–Hermite quadrature.

    The cost is `deg²` evaluations per entry. Smooth functions need a degree of 20 to 60 for many digits; with a kink
    convergence is slow, and `ABRelu` and its relatives have closed forms. Results differ from neural-tangents', whose
    quadrature treats the two samples differently, by the error of the quadrature.

    Args:
        fn: scalar function, applied elementwise.
        deg: number of quadrature nodes in each of the two directions.
        df: its derivative; found by automatic differentiation where not given.

    Example:
        >>> from ntk_equiv import stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(1), ElementwiseNumerical(jnp.sin, 20), stax.Dense(1))
        >>> print(kernel_fn(jnp.ones((1, 1)), None, "nngp").round(6))  # as in closed form, (1 − e⁻²) / 2
        [[0.432332]]
    """
    degree = positive_integer(deg, "deg")
    function(fn, "fn")
    derivative = _elementwise_derivative(fn) if df is None else function(df, "df")
    return without_parameters(lambda shape: shape, fn, Quadrature(fn, derivative, degree))


def _elementwise_derivative(fn: Callable) -> Callable:
    def derivative(x: Array) -> Array:
        return jax.jvp(fn, (x,), (jnp.ones_like(x),))[1]

    return derivative
