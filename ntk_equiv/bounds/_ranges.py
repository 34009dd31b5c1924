"""Checks of the numbers that bounds are asked with. Values are looked at where they are known, outside of jit."""

from typing import Any

import numpy as np

from ntk_equiv._check import instance, is_concrete, real_array, refusal
from ntk_equiv.infinite import InfiniteEnsemble


def variance(value: Any, argument: str = "variance") -> Any:
    """`value`, if it is a variance: finite and not negative."""
    fix = "Variances come from `ens.var(x, t)`; a negative one has another cause."
    return _within(value, argument, "finite and not negative", lambda v: (v >= 0) & np.isfinite(v), fix)


def positive(value: Any, argument: str = "delta") -> Any:
    """`value`, if it is a finite number above zero."""
    fix = "It is the deviation that is just tolerated, in the units of the outputs."
    return _within(value, argument, "finite and positive", lambda v: (v > 0) & np.isfinite(v), fix)


def probability(value: Any, argument: str = "epsilon") -> Any:
    """`value`, if it is strictly between zero and one."""
    fix = "It is the probability of a larger deviation, such as 0.05."
    return _within(value, argument, "between 0 and 1, both excluded", lambda v: (v > 0) & (v < 1), fix)


def count(value: Any, argument: str = "members") -> Any:
    """`value`, if it is a number of at least one; it need not be whole."""
    fix = "An ensemble has at least one member."
    return _within(value, argument, "at least 1 and finite", lambda v: (v >= 1) & np.isfinite(v), fix)


def one_count(members: Any) -> float:
    """`members` as a `float`, if it is one number of at least one."""
    return _single(count(members), "members")


def one_deviation(delta: Any) -> float:
    """`delta` as a `float`, if it is one positive number."""
    return _single(positive(delta), "delta")


def one_probability(epsilon: Any) -> float:
    """`epsilon` as a `float`, if it is one probability."""
    return _single(probability(epsilon), "epsilon")


def _single(value: Any, argument: str) -> float:
    if np.ndim(value):
        fix = "Ask for one after the other."
        raise refusal(argument, expected="one number", got=f"an array of shape {np.shape(value)}", fix=fix)
    return float(value)


def one_per_point(delta: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Tolerated deviations for points of that shape, given as one number for all or as one for each."""
    known = np.asarray(positive(delta), dtype=float)
    if known.shape not in ((), shape):
        fix = "Pass one number for all points, or one for each."
        raise refusal("delta", expected=f"a number or an array of shape {shape}", got=f"shape {known.shape}", fix=fix)
    return np.broadcast_to(known, shape)


def ensemble(ens: Any, argument: str = "ens") -> InfiniteEnsemble:
    """`ens`, if it is an infinite ensemble."""
    fix = "Make one with `InfiniteEnsemble(kernel_fn, train)`."
    return instance(ens, InfiniteEnsemble, argument, expected="an infinite ensemble", fix=fix)


def _within(value: Any, argument: str, expected: str, holds: Any, fix: str) -> Any:
    if is_concrete(value):
        known = np.asarray(real_array(value, argument, fix=fix))
        if known.dtype == np.bool_:
            raise refusal(argument, expected="real numbers", got=f"dtype {known.dtype}", fix=fix, kind=TypeError)
        wrong = known[~holds(known)]
        if wrong.size:
            raise refusal(argument, expected=expected, got=wrong[0], fix=fix)
    return value
