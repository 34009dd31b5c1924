"""Any activation, by Gauss–Hermite quadrature.

In the orthonormal Hermite polynomials h_l of a standard Gaussian z, φ(√q z) has the coefficients a_l(q), and Mehler's
formula gives

    E[φ(u)φ(v)] = Σ_l a_l(q) a_l(q') c^l,      a_l(q) = E[φ(√q z) h_l(z)] ≈ Σ_i w_i φ(√q z_i) h_l(z_i)

at cosine c, and E[φ'φ'] likewise from φ'. Coefficients belong to single samples. So the activation is evaluated once
for each sample and node, however many pairs there are; the kernel is symmetric and positive semidefinite at any degree;
and with as many terms as nodes the variance of a sample is that of the quadrature of φ², exactly.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Float

from ntk_equiv._check import function, positive_integer
from ntk_equiv._typing import Array
from ntk_equiv.stax._arc import gap_of
from ntk_equiv.stax._certificate import Certificate
from ntk_equiv.stax._network import Network, without_parameters
from ntk_equiv.stax._rule import Activation, Trace, rule, static
from ntk_equiv.stax._state import Need, Pairs, Points, inverse_root, materialize, safe_sqrt

# Nodes for each unit of `deg`: a product of quadratures, which others use, has deg² nodes for each pair.
NODES_PER_DEGREE = 4
# Outer nodes of smaller weight change no digit, and activations may be infinite there.
SMALLEST_WEIGHT = 1e-32
# Beyond, polynomials at the outermost nodes exceed what double precision can hold.
MOST_NODES = 256


@rule
class Quadrature(Activation):
    """A scalar function and its derivative, known only by their values."""

    function: Callable = static()
    derivative: Callable = static()
    nodes: int = static()

    @property
    def certificate(self) -> Certificate:
        """A function of norms and cosine, and nothing more is known."""
        return Certificate(dot_product=True, nonnegative=False, smooth=False)

    def trace(self, points: Points) -> Trace:
        q = points.variance()
        return {"q": q, "root": safe_sqrt(q), "inverse_root": inverse_root(q)}

    def second_moment(self, q: Array) -> Array:
        return jnp.sum(jnp.square(self.coefficients(self.function, safe_sqrt(q))), 0)

    def coefficients(self, function: Callable, root: Float[Array, "n *grid"]) -> Float[Array, "orders n *grid"]:
        """a_l of a function, at all standard deviations."""
        places, projection = (jnp.asarray(v, root.dtype) for v in _rule_of_gauss(self.nodes))
        # Constants of double precision in a function would otherwise change the dtype.
        values = jnp.asarray(function(root[..., None] * places.reshape((1,) * root.ndim + (-1,))), root.dtype)
        return jnp.moveaxis(jnp.matmul(values, projection, precision=lax.Precision.HIGHEST), -1, 0)

    def pairs(self, pairs: Pairs, left: Trace, right: Trace, need: Need) -> Pairs:
        on_left, on_right = jax.vmap(pairs.on_left), jax.vmap(pairs.on_right)
        inverses = pairs.on_left(left["inverse_root"]) * pairs.on_right(right["inverse_root"])
        cosine = 1 - gap_of(pairs.nngp * inverses)

        def expectation(function: Callable) -> Array:
            a, b = (self.coefficients(function, side["root"]) for side in (left, right))
            add = lambda total, term: (total * cosine + term[0] * term[1], None)  # noqa: E731
            return lax.scan(add, jnp.zeros_like(cosine), (on_left(a), on_right(b)), reverse=True)[0]

        nngp = expectation(self.function)
        ntk = None if pairs.ntk is None else pairs.ntk * expectation(self.derivative)
        if need.stored:
            nngp, ntk = materialize((nngp, ntk), left["q"])
        return replace(pairs, nngp=nngp, ntk=ntk, gap=None)


def ElementwiseNumerical(fn: Callable, deg: int, df: Callable | None = None) -> Network:
    """Any scalar activation, its kernels by Gauss–Hermite quadrature.

    The cost is 4 · `deg` evaluations of `fn` for each sample, and as many multiplications for each pair. Smooth
    functions need a degree of 5 to 40 for many digits; with a kink convergence is slow, and `ABRelu` and its relatives
    have closed forms. Results differ from neural-tangents', which has `deg²` nodes for each pair and treats its two
    samples differently, by the errors of the quadratures.

    Args:
        fn: scalar function, applied elementwise.
        deg: accuracy: there are 4 · `deg` nodes, at most 256.
        df: its derivative; found by automatic differentiation where not given.

    Example:
        >>> from ntk_equiv import stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(1), ElementwiseNumerical(jnp.sin, 20), stax.Dense(1))
        >>> print(kernel_fn(jnp.ones((1, 1)), None, "nngp").round(6))  # as in closed form, (1 − e⁻²) / 2
        [[0.432332]]
    """
    nodes = min(NODES_PER_DEGREE * positive_integer(deg, "deg"), MOST_NODES)
    function(fn, "fn")
    derivative = _elementwise_derivative(fn) if df is None else function(df, "df")
    return without_parameters(lambda shape: shape, fn, Quadrature(fn, derivative, nodes))


def Tanh(deg: int = 64) -> Network:
    """Hyperbolic tangent, its kernels by quadrature; `Erf` is similar in shape and has them in closed form.

    Args:
        deg: accuracy, as for `ElementwiseNumerical`.

    Example:
        >>> from ntk_equiv import stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(1), Tanh(), stax.Dense(1))
        >>> print(kernel_fn(jnp.ones((1, 1)), None, "nngp").round(6))
        [[0.394294]]
    """
    return ElementwiseNumerical(jnp.tanh, deg)


def Softplus(deg: int = 64) -> Network:
    """Soft rectifier `log(1 + exp(x))`, its kernels by quadrature.

    Args:
        deg: accuracy, as for `ElementwiseNumerical`.

    Example:
        >>> from ntk_equiv import stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(1), Softplus(), stax.Dense(1))
        >>> print(kernel_fn(jnp.ones((1, 1)), None, "nngp").round(6))
        [[0.921246]]
    """
    return ElementwiseNumerical(jax.nn.softplus, deg)


@cache
def _elementwise_derivative(fn: Callable) -> Callable:
    """The derivative of `fn`, the same object each time: layers are told apart by their functions."""

    def derivative(x: Array) -> Array:
        return jax.jvp(fn, (x,), (jnp.ones_like(x),))[1]

    return derivative


@cache
def _rule_of_gauss(count: int) -> tuple[Float[np.ndarray, "nodes"], Float[np.ndarray, "nodes orders"]]:
    """The nodes z_i, and the matrix w_i h_l(z_i) that takes values at the nodes to coefficients."""
    places, weights = np.polynomial.hermite_e.hermegauss(count)
    weights = weights / np.sqrt(2 * np.pi)
    places, weights = (v[weights > SMALLEST_WEIGHT] for v in (places, weights))
    polynomials = [np.zeros_like(places), np.ones_like(places)]
    for order in range(count - 1):
        latest = places * polynomials[-1] - np.sqrt(order) * polynomials[-2]
        polynomials.append(latest / np.sqrt(order + 1))
    return places, weights[:, None] * np.stack(polynomials[1:], 1)
