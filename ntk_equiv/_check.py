"""Checks of what callers pass in, shared by all parts.

Every refusal names the argument, what was expected, what came, and what to do about it. A check returns the value it
accepts, so it can stand where the value is used. Values that JAX traces are not known, so their kind and shape are
checked alone.
"""

import math
import os
import sys
import warnings
from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def refusal(argument: str, *, expected: str, got: Any, fix: str, kind: type[Exception] = ValueError) -> Exception:
    """Return the exception for a bad argument, worded as everywhere in the library.

    Its attribute `argument` lets a program tell its user's mistakes from its own errors.

    >>> refusal("tile", expected="a positive integer", got=0, fix="Leave it out to have one chosen.")
    ValueError('`tile` must be a positive integer, got 0. Leave it out to have one chosen.')
    """
    error = kind(f"`{argument}` must be {expected}, got {got}. {fix}")
    error.argument = argument  # type: ignore[attr-defined]
    return error


def one_of(value: Any, options: tuple, argument: str) -> Any:
    """Return `value` if it is one of `options`."""
    if not isinstance(value, Hashable) or value not in options:
        listed = ", ".join(repr(option) for option in options)
        raise refusal(argument, expected=f"one of {listed}", got=repr(value), fix="Choose one of these.")
    return value


def positive_integer(value: Any, argument: str) -> int:
    """Return `value` as an `int` if it is a whole number, 1 or more."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise refusal(argument, expected="a positive integer", got=repr(value), fix="Pass a whole number, 1 or more.")
    return int(value)


def whole_number(value: Any, argument: str) -> int:
    """Return `value` as an `int` if it is a whole number, 0 or more."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        raise refusal(argument, expected="a whole number", got=repr(value), fix="Pass 0, 1, 2 or more.")
    return int(value)


def positive_integers(values: Any, argument: str, *, fix: str, or_none: bool = False) -> tuple[int, ...]:
    """Return `values` as a tuple of `int` if they are whole numbers, 1 or more; `or_none` allows an empty list."""
    if not is_listed(values) or not (or_none or len(values)):
        raise refusal(argument, expected="a tuple of positive integers", got=repr(values), fix=fix)
    return tuple(positive_integer(value, argument) for value in values)


def boolean(value: Any, argument: str) -> bool:
    """Return `value` as a `bool` if it is one; other values, such as the string "no", have no truth value here."""
    if not isinstance(value, bool | np.bool_):
        raise refusal(argument, expected="True or False", got=repr(value), fix="Pass one of these two.")
    return bool(value)


def real_number(value: Any, argument: str) -> float:
    """Return `value` as a `float` if it is one finite real number that is known now."""
    if not is_number(value) or not is_concrete(value):
        raise refusal(argument, expected="one finite real number", got=describe(value), fix="Pass a Python float.")
    return float(value)


def scalar(value: Any, argument: str, *, at_least: float | int | None = None, fix: str | None = None) -> Any:
    """Return `value` if it is one finite real number, not below `at_least`; a traced one is returned as it is."""
    if not is_number(value):
        fix = fix or "Pass a float, or a JAX scalar."
        raise refusal(argument, expected="one real number", got=describe(value), fix=fix)
    if at_least is not None and is_concrete(value) and not float(value) >= at_least:
        fix = fix or "Pass a larger number."
        raise refusal(argument, expected=f"at least {at_least:g}", got=describe(value), fix=fix)
    return value


def function(value: Any, argument: str, *, fix: str = "Pass the function itself.") -> Any:
    """Return `value` if it can be called."""
    if not callable(value):
        raise refusal(argument, expected="a function", got=describe(value), fix=fix, kind=TypeError)
    return value


def instance(value: Any, kind: type | tuple[type, ...], argument: str, *, expected: str, fix: str) -> Any:
    """Return `value` if it is an instance of `kind`."""
    if not isinstance(value, kind):
        raise refusal(argument, expected=expected, got=describe(value), fix=fix, kind=TypeError)
    return value


def file_path(value: Any, argument: str, *, exists: bool = False) -> Path:
    """Return `value` as a path; with `exists` there must be a file or folder."""
    if not isinstance(value, str | os.PathLike):
        fix = "Pass a string or a `pathlib.Path`."
        raise refusal(argument, expected="the path of a file", got=describe(value), fix=fix, kind=TypeError)
    path = Path(value)
    if exists and not path.exists():
        fix = f"Check its spelling; relative paths start at {Path.cwd()}."
        got = f"{path}, which does not exist"
        raise refusal(argument, expected="a file or folder", got=got, fix=fix, kind=FileNotFoundError)
    return path


def random_key(value: Any, argument: str = "key") -> jax.Array:
    """Return `value` if it is one random key of JAX, of the old or the new kind."""
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    new = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key) and shape == ()
    old = dtype == np.uint32 and shape is not None and len(shape) == 1
    if not new and not old:
        fix = "Make one with `jax.random.key(0)`; several with `jax.random.split`."
        raise refusal(argument, expected="one random key of JAX", got=describe(value), fix=fix, kind=TypeError)
    return value


def canonical_get(get: Any) -> str | tuple[str, ...]:
    """Return `get` in lower case, as the name of a kernel or a tuple of such names; `None` stands for both kernels."""
    names = ("nngp", "ntk")
    if get is None or isinstance(get, str):
        return names if get is None else str(one_of(get.lower(), names, "get"))
    get = [name.lower() if isinstance(name, str) else name for name in get] if isinstance(get, Sequence) else get
    if not isinstance(get, Sequence) or not 1 <= len(get) <= len(set(map(str, get))):
        fix = 'Pass "ntk", ("nngp", "ntk"), or nothing for both.'
        raise refusal("get", expected="one of 'nngp', 'ntk', or a tuple of them", got=describe(get), fix=fix)
    return tuple(one_of(name, names, "get") for name in get)


def real_array(
    value: Any, argument: str, *, fix: str = "Pass numbers, or an array of them.", or_complex: bool = False
) -> Any:
    """Return `value` as an array if it holds real numbers; `or_complex` allows complex ones. Nested lists will do."""
    array = value
    if not hasattr(value, "dtype"):
        try:  # only the libraries can tell whether nested lists make an array
            array = np.asarray(value) if is_concrete(value) else jnp.asarray(value)
        except ValueError:
            array = np.asarray(None)
    if not _is_numeric(array) or (np.iscomplexobj(array) and not or_complex):
        expected = "numbers" if or_complex else "real numbers"
        raise refusal(argument, expected=expected, got=describe(value), fix=fix, kind=TypeError)
    return array


def same_shape(**values: Any) -> tuple[int, ...]:
    """Return the common shape of arrays and numbers that are combined entry by entry."""
    shapes = [np.shape(value) for value in values.values()]
    rank = max(map(len, shapes))
    sizes = [set(axis) - {1} for axis in zip(*((1,) * (rank - len(shape)) + shape for shape in shapes), strict=True)]
    if any(len(different) > 1 for different in sizes):
        fix = "They are combined entry by entry: pass arrays of one shape, or numbers."
        raise refusal(", ".join(values), expected="of one shape, or numbers", got=f"shapes {shapes}", fix=fix)
    return tuple(different.pop() if different else 1 for different in sizes)


def numeric(tree: Any, argument: str) -> Any:
    """Return `tree` if it has leaves and all of them are numbers or arrays of numbers."""
    leaves = jax.tree.leaves(tree)
    if not leaves or not all(_is_numeric(leaf) for leaf in leaves):
        fix = "Pass arrays of numbers, samples along their first axis, or a pytree of such arrays."
        raise refusal(argument, expected="an array of numbers", got=describe(tree), fix=fix, kind=TypeError)
    return tree


def arrays(tree: Any, argument: str) -> Any:
    """Return `tree` with JAX arrays as leaves, if all of them are numbers or arrays of numbers."""
    return jax.tree.map(jnp.asarray, numeric(tree, argument))


def samples_in(x: Any, argument: str) -> int:
    """Return the number of samples in `x`, if its arrays have a common leading axis."""
    counts = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(numeric(x, argument))}
    if len(counts) != 1 or () in counts:
        raise refusal(
            argument,
            expected="an array of samples, or a pytree of arrays with a common leading axis",
            got=f"leading axes {sorted(counts)}",
            fix=f"Stack the samples along the first axis; for a single one use `{argument}[None]`.",
        )
    return counts.pop()[0]


def floating(x: Any, argument: str) -> jax.Array:
    """Return `x` as a JAX array if it holds floating-point numbers."""
    dtype = getattr(x, "dtype", None)
    if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
        got = type(x).__name__ if dtype is None else f"dtype {dtype}"
        fix = "Convert it first, for example with `jnp.asarray(x, float)`"
        fix += "." if dtype is None else "; integer images are usually divided by 255."
        raise refusal(argument, expected="an array of floating-point numbers", got=got, fix=fix, kind=TypeError)
    return x if isinstance(x, jax.Array) else jnp.asarray(x)


def single_time(t: Any) -> Any:
    """Return `t` if it is one training time, or None, which stands for the default of the filter."""
    if t is not None and jnp.ndim(t):
        fix = "This belongs to one time: call it once for each time."
        raise refusal("t", expected="a single time", got=f"shape {jnp.shape(t)}", fix=fix)
    return t


def warn_caller(message: str, category: type[Warning]) -> None:
    """Issue a warning that points to the line outside of the library from which it was called."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("ntk_equiv."):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def is_concrete(x: Any) -> bool:
    """Whether the values in the pytree `x` are known now, outside `jit`, `grad` and `vmap`.

    >>> is_concrete(jnp.ones(3)), jax.jit(lambda x: jnp.array(is_concrete(x)))(jnp.ones(3))
    (True, Array(False, dtype=bool))
    """
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(x))


def evaluating_what_is_known() -> AbstractContextManager:
    """Return a context in which operations on known values have known results, even while JAX traces.

    Inside `jit` operations on known values would be traced as well. Outside of `jit` the context does nothing, because
    it would evaluate the programs that are compiled there operation by operation.
    """
    traced = not is_concrete(jnp.zeros(()))
    return jax.ensure_compile_time_eval() if traced else nullcontext()


def is_listed(value: Any) -> bool:
    """Whether `value` is a sequence other than text, or an array with one axis."""
    if hasattr(value, "ndim"):
        return value.ndim == 1
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def is_number(value: Any) -> bool:
    """Whether `value` is one real number, and finite as far as that is known."""
    if type(value) in (int, float):  # a shortcut, because layers have many of them
        return -math.inf < value < math.inf
    if isinstance(value, bool) or not isinstance(value, int | float | np.number | np.ndarray | jax.Array):
        return False
    if np.ndim(value) != 0 or not jnp.issubdtype(jnp.result_type(value), jnp.number) or np.iscomplexobj(value):
        return False
    return not is_concrete(value) or bool(np.isfinite(value))


def _is_numeric(value: Any) -> bool:
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        return isinstance(value, complex | float | int)
    return jnp.issubdtype(dtype, jnp.number) or jnp.issubdtype(dtype, jnp.bool_)


def describe(value: Any) -> str:
    """Return `value` as text for a message: arrays by shape and dtype, everything else as printed, cut off if long."""
    if isinstance(value, jax.Array | np.ndarray):
        return f"an array of shape {value.shape} and dtype {value.dtype}" if value.ndim else str(value)
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:60]}…"
