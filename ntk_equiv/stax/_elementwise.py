"""An activation whose expectations are given as functions of covariance and variances.

E[φφ]   = K(k, q, q')
E[φ'φ'] = ∂K/∂k, unless given too
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ntk_equiv._check import function, refusal
from ntk_equiv._typing import Array
from ntk_equiv.stax._certificate import Certificate
from ntk_equiv.stax._network import Network, without_parameters
from ntk_equiv.stax._rule import DualActivation, rule, static


@rule
class GivenDual(DualActivation):
    """A dual in somebody else's words."""

    nngp_fn: Callable | None = static()
    d_nngp_fn: Callable | None = static()

    @property
    def certificate(self) -> Certificate:
        """A function of norms and cosine, and nothing more is known."""
        return Certificate(dot_product=True, nonnegative=False, smooth=False)

    def second_moment(self, q: Array) -> Array:
        return self.expectation()(q, q, q)

    def dual(self, k: Array, left: dict[str, Array], right: dict[str, Array]) -> tuple[Array, Array]:
        expectation = self.expectation()
        if self.d_nngp_fn is not None:
            derivative = _in_kind(self.d_nngp_fn)(k, left["q"], right["q"])
            return expectation(k, left["q"], right["q"]), derivative
        return jax.jvp(lambda k: expectation(k, left["q"], right["q"]), (k,), (jnp.ones_like(k),))

    def expectation(self) -> Callable:
        """K, entry by entry."""
        if self.nngp_fn is None:
            fix = "Pass `nngp_fn`, or use `ElementwiseNumerical`."
            raise refusal("network", expected="one with kernels", got="`Elementwise` without `nngp_fn`", fix=fix)
        return _in_kind(self.nngp_fn)


def Elementwise(
    fn: Callable | None = None, nngp_fn: Callable | None = None, d_nngp_fn: Callable | None = None
) -> Network:
    """Any scalar activation whose kernel is known in closed form.

    Args:
        fn: the activation, applied to arrays elementwise; without it there is no finite network.
        nngp_fn: scalar function `(cov12, var1, var2)` with the value E[fn(u) fn(v)] for Gaussian u, v of these
            variances and this covariance; without it there are no kernels.
        d_nngp_fn: likewise E[fn'(u) fn'(v)]; without it the derivative of `nngp_fn` in `cov12`, which is the same by
            Price's theorem. Where automatic differentiation divides zero by zero, as it does for an arc cosine at
            coincident points, give it.

    Raises:
        TypeError: an argument is not a function, or not one of three numbers.
        ValueError: both functions are missing, `d_nngp_fn` has nothing to be the derivative of, or a function does not
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
    return without_parameters(lambda shape: shape, _applied(fn), GivenDual(nngp_fn, d_nngp_fn))


def _in_kind(function: Callable) -> Callable:
    """`function`, entry by entry, with results of the dtype of its first argument, whatever constants it contains."""
    return lambda k, q1, q2: jnp.asarray(jnp.vectorize(function)(k, q1, q2)).astype(k.dtype)


def _applied(fn: Callable | None) -> Callable:
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
