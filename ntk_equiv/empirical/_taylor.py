"""Finite networks as polynomials in their parameters.

    f(θ + δ) ≈ Σ_k (1/k!) (d/ds)^k f(θ + sδ) at s = 0,        k up to the degree,

by repeated directional derivatives, none of which is ever stored as a tensor.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from ntk_equiv._check import function, whole_number


def linearize(f: Callable, params: Any) -> Callable:
    """Return the first-order Taylor expansion of a network in its parameters.

    Args:
        f: a function `f(params, *args, **kwargs)`; outputs may be pytrees.
        params: where it is expanded.

    Returns:
        A function of the same form as `f`.

    Example:
        >>> from ntk_equiv import empirical
        >>> print(empirical.linearize(lambda w, x: w**2 * x, 3.0)(4.0, 1.0))      # 9 + 6
        15.0
    """
    return taylor_expand(f, params, 1)


def taylor_expand(f: Callable, params: Any, degree: int) -> Callable:
    """Return the Taylor expansion of a network in its parameters.

    Args:
        f: a function `f(params, *args, **kwargs)`; outputs may be pytrees.
        params: where it is expanded.
        degree: the degree of the polynomial.

    Returns:
        A function of the same form as `f`.

    Example:
        >>> from ntk_equiv import empirical
        >>> print(empirical.taylor_expand(lambda w, x: w**3 * x, 1.0, 2)(2.0, 1.0))      # 1 + 3 + 3
        7.0
    """
    function(f, "f")
    degree = whole_number(degree, "degree")
    place = jax.tree.map(jnp.asarray, params)

    def expanded(new_params: Any, *args: Any, **kwargs: Any) -> Any:
        step = jax.tree.map(lambda new, old: new - old, new_params, place)
        derivative: Callable = lambda p: f(p, *args, **kwargs)  # noqa: E731
        total = derivative(place)
        for order in range(1, degree + 1):
            derivative = partial(_directional_derivative, derivative, step)
            share = 1 / math.factorial(order)
            total = jax.tree.map(lambda sum_, term, share=share: sum_ + share * term, total, derivative(place))
        return total

    return expanded


def _directional_derivative(f: Callable, step: Any, params: Any) -> Any:
    return jax.jvp(f, (params,), (step,))[1]
