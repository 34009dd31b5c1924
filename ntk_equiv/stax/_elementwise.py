"""Activations of your own: by quadrature, or with expectations that you know.

**Quadrature.** In the orthonormal Hermite polynomials h_l of a standard Gaussian z, φ(√q z) has the coefficients
a_l(q), and Mehler's formula gives

    E[φ(u)φ(v)] = Σ_l a_l(q) a_l(q') c^l,      a_l(q) = E[φ(√q z) h_l(z)] ≈ Σ_i w_i φ(√q z_i) h_l(z_i)

at cosine c, with Gauss–Hermite nodes z_i and weights w_i; E[φ'φ'] comes likewise from φ'. Coefficients belong to single
samples. So the activation is evaluated once for each sample and node, however many pairs there are; the kernel is
symmetric and positive semidefinite at any degree; and with as many terms as nodes the variance of a sample is exactly
the quadrature of φ².

**Given expectations.** E[φφ] = K(k, q, q') of covariance and variances, and E[φ'φ'] = ∂K/∂k, unless it is given too.
"""

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Float

from ntk_equiv._check import function, positive_integer, refusal
from ntk_equiv._typing import Array
from ntk_equiv.stax._activations import Activation, DualActivation, elementwise
from ntk_equiv.stax._network import Network
from ntk_equiv.stax._precision import gap_of, inverse_root, materialize, safe_sqrt
from ntk_equiv.stax._rule import Certificate
from ntk_equiv.stax._state import Memo, PairState, Requirements, SampleState, frozen_pytree, static

# Nodes for each unit of `deg`. A product of quadratures, which other libraries use, has deg² nodes for each pair.
NODES_PER_DEGREE = 4
# Outer nodes of smaller weight change no digit, and activations may be infinite there.
SMALLEST_WEIGHT = 1e-32
# With more nodes, polynomials at the outermost ones overflow in double precision.
MOST_NODES = 256


@frozen_pytree
class Quadrature(Activation):
    """A scalar function and its derivative, known only by their values."""

    function: Callable = static()
    derivative: Callable = static()
    nodes: int = static()

    @property
    def certificate(self) -> Certificate:
        """The kernel is a function of norms and cosine; nothing more is known."""
        return Certificate(dot_product=True, nonnegative=False, smooth=False)

    def remember(self, state: SampleState) -> Memo:
        q = state.variance()
        return {"q": q, "root": safe_sqrt(q), "inverse_root": inverse_root(q)}

    def second_moment(self, q: Array) -> Array:
        return jnp.sum(jnp.square(self.coefficients(self.function, safe_sqrt(q))), 0)

    def coefficients(self, function: Callable, root: Float[Array, "n *grid"]) -> Float[Array, "orders n *grid"]:
        """Return a_l of a function, at all standard deviations."""
        places, projection = (jnp.asarray(v, root.dtype) for v in _gauss_hermite(self.nodes))
        # Constants of double precision in a function would otherwise change the dtype.
        values = jnp.asarray(function(root[..., None] * places.reshape((1,) * root.ndim + (-1,))), root.dtype)
        return jnp.moveaxis(jnp.matmul(values, projection, precision=lax.Precision.HIGHEST), -1, 0)

    def per_pair(self, state: PairState, left: Memo, right: Memo, wanted: Requirements) -> PairState:
        on_left, on_right = jax.vmap(state.on_left), jax.vmap(state.on_right)
        inverses = state.on_left(left["inverse_root"]) * state.on_right(right["inverse_root"])
        cosine = 1 - gap_of(state.nngp * inverses)

        def expectation(function: Callable) -> Array:
            a, b = (self.coefficients(function, side["root"]) for side in (left, right))
            add = lambda total, term: (total * cosine + term[0] * term[1], None)  # noqa: E731
            return lax.scan(add, jnp.zeros_like(cosine), (on_left(a), on_right(b)), reverse=True)[0]

        nngp = expectation(self.function)
        ntk = None if state.ntk is None else state.ntk * expectation(self.derivative)
        if wanted.stored:
            nngp, ntk = materialize((nngp, ntk), left["q"])
        return dataclasses.replace(state, nngp=nngp, ntk=ntk, gap=None)


def ElementwiseNumerical(fn: Callable, deg: int, df: Callable | None = None) -> Network:
    """Any scalar activation, with kernels by Gauss–Hermite quadrature.

    The cost is 4 · `deg` evaluations of `fn` for each sample, and as many multiplications for each pair. Smooth
    functions need a degree of 5 to 40 for many digits. With a kink, convergence is slow; `ABRelu` and its relatives
    have closed forms. neural-tangents has `deg²` nodes for each pair and treats its two samples differently, so results
    differ by the errors of the quadratures.

    Args:
        fn: scalar function, applied elementwise.
        deg: accuracy: there are 4 · `deg` nodes, at most 256.
        df: its derivative; by default found by automatic differentiation.

    Example:
        >>> from ntk_equiv import stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(1), ElementwiseNumerical(jnp.sin, 20), stax.Dense(1))
        >>> print(kernel_fn(jnp.ones((1, 1)), None, "nngp").round(6))  # as in closed form, (1 − e⁻²) / 2
        [[0.432332]]
    """
    nodes = min(NODES_PER_DEGREE * positive_integer(deg, "deg"), MOST_NODES)
    function(fn, "fn")
    derivative = _elementwise_derivative(fn) if df is None else function(df, "df")
    return elementwise(fn, Quadrature(fn, derivative, nodes))


def Tanh(deg: int = 64) -> Network:
    """Hyperbolic tangent, with kernels by quadrature; `Erf` is similar in shape and has them in closed form.

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
    """Soft rectifier `log(1 + exp(x))`, with kernels by quadrature.

    Args:
        deg: accuracy, as for `ElementwiseNumerical`.

    Example:
        >>> from ntk_equiv import stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(1), Softplus(), stax.Dense(1))
        >>> print(kernel_fn(jnp.ones((1, 1)), None, "nngp").round(6))
        [[0.921246]]
    """
    return ElementwiseNumerical(jax.nn.softplus, deg)


@frozen_pytree
class GivenDual(DualActivation):
    """An activation whose expectations the caller gives."""

    nngp_fn: Callable | None = static()
    d_nngp_fn: Callable | None = static()

    @property
    def certificate(self) -> Certificate:
        """The kernel is a function of norms and cosine; nothing more is known."""
        return Certificate(dot_product=True, nonnegative=False, smooth=False)

    def second_moment(self, q: Array) -> Array:
        return self.expectation()(q, q, q)

    def dual(self, k: Array, left: dict[str, Array], right: dict[str, Array]) -> tuple[Array, Array]:
        expectation = self.expectation()
        if self.d_nngp_fn is not None:
            derivative = _keep_dtype(self.d_nngp_fn)(k, left["q"], right["q"])
            return expectation(k, left["q"], right["q"]), derivative
        return jax.jvp(lambda k: expectation(k, left["q"], right["q"]), (k,), (jnp.ones_like(k),))

    def expectation(self) -> Callable:
        """Return K, entry by entry."""
        if self.nngp_fn is None:
            fix = "Pass `nngp_fn`, or use `ElementwiseNumerical`."
            raise refusal("network", expected="one with kernels", got="`Elementwise` without `nngp_fn`", fix=fix)
        return _keep_dtype(self.nngp_fn)


def Elementwise(
    fn: Callable | None = None, nngp_fn: Callable | None = None, d_nngp_fn: Callable | None = None
) -> Network:
    """Any scalar activation whose kernel is known in closed form.

    Args:
        fn: the activation, applied to arrays elementwise; without it there is no finite network.
        nngp_fn: scalar function `(cov12, var1, var2)` that returns E[fn(u) fn(v)] for Gaussian u, v of these variances
            and this covariance; without it there are no kernels.
        d_nngp_fn: likewise E[fn'(u) fn'(v)]; by default the derivative of `nngp_fn` in `cov12`, which is the same by
            Price's theorem. Pass it if automatic differentiation would divide zero by zero, as it does for an arc
            cosine at coincident samples.

    Raises:
        TypeError: an argument is not a function, or not one of three numbers.
        ValueError: `fn` and `nngp_fn` are both missing, `d_nngp_fn` is given without `nngp_fn`, or a function does not
            return one number.

    Example:
        >>> from ntk_equiv import stax
        >>> square = Elementwise(jnp.square, lambda k, q1, q2: q1 * q2 + 2 * k**2)
        >>> _, _, kernel_fn = stax.serial(stax.Dense(1), square, stax.Dense(1))
        >>> print(*kernel_fn(jnp.ones((1, 1))))  # E[u⁴] = 3, and 3 + E[(2u)²]
        [[3.]] [[7.]]
    """
    for given, argument in ((fn, "fn"), (nngp_fn, "nngp_fn"), (d_nngp_fn, "d_nngp_fn")):
        if given is not None:
            function(given, argument)
    if nngp_fn is None and (fn is None or d_nngp_fn is not None):
        got = "nothing to apply" if d_nngp_fn is None else "`d_nngp_fn` alone"
        fix = "`fn` makes a finite network, `nngp_fn` its kernels; pass at least one of the two."
        raise refusal("fn, nngp_fn", expected="given", got=got, fix=fix)
    for given, argument in ((nngp_fn, "nngp_fn"), (d_nngp_fn, "d_nngp_fn")):
        if given is not None:
            _check_scalar(given, argument)
    return elementwise(_check_elementwise(fn), GivenDual(nngp_fn, d_nngp_fn))


@cache
def _elementwise_derivative(fn: Callable) -> Callable:
    """Return the derivative of `fn`, the same object each time: layers are told apart by their functions."""

    def derivative(x: Array) -> Array:
        return jax.jvp(fn, (x,), (jnp.ones_like(x),))[1]

    return derivative


@cache
def _gauss_hermite(count: int) -> tuple[Float[np.ndarray, "nodes"], Float[np.ndarray, "nodes orders"]]:
    """Return the nodes z_i, and the matrix w_i h_l(z_i) that takes values at the nodes to coefficients."""
    places, weights = np.polynomial.hermite_e.hermegauss(count)
    weights = weights / np.sqrt(2 * np.pi)
    places, weights = (v[weights > SMALLEST_WEIGHT] for v in (places, weights))
    polynomials = [np.zeros_like(places), np.ones_like(places)]
    for order in range(count - 1):
        latest = places * polynomials[-1] - np.sqrt(order) * polynomials[-2]
        polynomials.append(latest / np.sqrt(order + 1))
    return places, weights[:, None] * np.stack(polynomials[1:], 1)


def _keep_dtype(function: Callable) -> Callable:
    """Map `function` over entries, with results of the dtype of its first argument, whatever constants it contains."""
    return lambda k, q1, q2: jnp.asarray(jnp.vectorize(function)(k, q1, q2)).astype(k.dtype)


def _check_elementwise(fn: Callable | None) -> Callable:
    def apply(x: Array) -> Array:
        if fn is None:
            raise refusal(
                "network",
                expected="one of layers that are functions",
                got="`Elementwise` without `fn`",
                fix="Pass `fn`, or evaluate only its `kernel_fn`.",
            )
        y = fn(x)
        if jnp.shape(y) != x.shape:
            fix = "Write it with functions that act elementwise, such as those of `jax.numpy`."
            raise refusal("fn", expected=f"elementwise: {x.shape} for {x.shape}", got=jnp.shape(y), fix=fix)
        return y

    return apply


def _check_scalar(function: Callable, argument: str) -> None:
    """Refuse a function that does not make one number of three."""
    one: Any = jax.ShapeDtypeStruct((), jnp.float32)
    try:
        result = jax.eval_shape(function, one, one, one)
    except TypeError as error:
        fix = "Its arguments are one covariance and two variances, traced by JAX: use `jax.numpy` inside."
        raise refusal(argument, expected="a function of three numbers", got=error, fix=fix, kind=TypeError) from error
    if getattr(result, "shape", None) != ():
        fix = "It is called with three numbers and mapped over all pairs of samples."
        raise refusal(argument, expected="a function that returns one number", got=result, fix=fix)
