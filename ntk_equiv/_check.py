"""Named checks of what callers pass in.

Every refusal reads the same way: the argument, what was expected, what came, and what to do about it. A check
returns the value it approved, so that it can stand where the value is used.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def refusal(argument: str, *, expected: str, got: Any, fix: str, kind: type[Exception] = ValueError) -> Exception:
    """The exception for a bad argument, worded as everywhere else in the library.

    It has the attribute `argument`, by which a program tells what its user has to put right from an error of its own.

    >>> refusal("tile", expected="a positive integer", got=0, fix="Leave it out to have one chosen.")
    ValueError('`tile` must be a positive integer, got 0. Leave it out to have one chosen.')
    """
    error = kind(f"`{argument}` must be {expected}, got {got}. {fix}")
    error.argument = argument  # type: ignore[attr-defined]
    return error


def one_of(value: Any, options: tuple, argument: str) -> Any:
    """`value`, if it is one of `options`."""
    if value not in options:
        listed = ", ".join(repr(option) for option in options)
        raise refusal(argument, expected=f"one of {listed}", got=repr(value), fix="Choose one of these.")
    return value


def positive_integer(value: Any, argument: str) -> int:
    """`value` as an `int`, if it is a whole number of at least one."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise refusal(argument, expected="a positive integer", got=repr(value), fix="Pass a whole number, 1 or more.")
    return int(value)


def real_number(value: Any, argument: str) -> float:
    """`value` as a `float`, if it is one finite real number known now."""
    known = isinstance(value, int | float | np.number | np.ndarray | jax.Array) and not isinstance(value, bool)
    if not known or not is_concrete(value) or np.ndim(value) != 0 or np.iscomplexobj(value) or not np.isfinite(value):
        raise refusal(argument, expected="one finite real number", got=repr(value), fix="Pass a Python float.")
    return float(value)


def floating(x: Any, argument: str) -> jax.Array:
    """`x` as a JAX array, if it holds floating-point numbers."""
    dtype = getattr(x, "dtype", None)
    if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
        got = type(x).__name__ if dtype is None else f"dtype {dtype}"
        fix = "Convert it first, for example with `jnp.asarray(x, float)`; integer images are usually divided by 255."
        raise refusal(argument, expected="an array of floating-point numbers", got=got, fix=fix, kind=TypeError)
    return jnp.asarray(x)


def is_concrete(x: Any) -> bool:
    """Whether the values in the pytree `x` are known now, outside `jit`, `grad` and `vmap`.

    >>> is_concrete(jnp.ones(3)), jax.jit(lambda x: jnp.array(is_concrete(x)))(jnp.ones(3))
    (True, Array(False, dtype=bool))
    """
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(x))
