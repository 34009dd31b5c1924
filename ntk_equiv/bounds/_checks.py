"""Checks of the arguments that bounds share: variances, tolerated deviations, probabilities, members, ensembles.

Each check returns the value that it accepted. Values are only compared with their range where they are known, that is
outside of jit.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ntk_equiv._check import instance, is_concrete, real_array, refusal
from ntk_equiv._typing import Array
from ntk_equiv.infinite import InfiniteEnsemble, SampledEnsemble

Numbers = Array | np.ndarray | np.number | float | int | Sequence[Any]
"""One real number, or an array of them, which may be written as nested lists."""


def check_variance(variance: Numbers) -> Any:
    """Return `variance` if it is finite and not negative."""
    fix = "Variances come from `ens.var(x, t)`; a negative one has another cause."
    return _check_range(variance, "variance", "finite and not negative", lambda v: (v >= 0) & np.isfinite(v), fix)


def check_deviation(delta: Numbers) -> Any:
    """Return `delta` if it is finite and positive."""
    fix = "It is the largest deviation that you tolerate, in the units of the outputs."
    return _check_range(delta, "delta", "finite and positive", lambda v: (v > 0) & np.isfinite(v), fix)


def check_probability(epsilon: Numbers) -> Any:
    """Return `epsilon` if it is strictly between zero and one."""
    fix = "It is the probability of a larger deviation, such as 0.05."
    return _check_range(epsilon, "epsilon", "between 0 and 1, both excluded", lambda v: (v > 0) & (v < 1), fix)


def check_members(members: Numbers) -> Any:
    """Return `members` if it is at least one; it need not be whole."""
    fix = "An ensemble has at least one member."
    return _check_range(members, "members", "at least 1 and finite", lambda v: (v >= 1) & np.isfinite(v), fix)


def single_deviation(delta: Numbers) -> float:
    """Return `delta` as a `float` if it is one positive number."""
    return _single(check_deviation(delta), "delta")


def single_probability(epsilon: Numbers) -> float:
    """Return `epsilon` as a `float` if it is one probability."""
    return _single(check_probability(epsilon), "epsilon")


def single_members(members: Numbers) -> float:
    """Return `members` as a `float` if it is one number of at least one."""
    return _single(check_members(members), "members")


def deviation_of_each(delta: Numbers, shape: tuple[int, ...]) -> np.ndarray:
    """Return the tolerated deviations in this shape, from one number for all samples or from one for each."""
    known = np.asarray(delta, dtype=float)
    if known.shape not in ((), shape):
        fix = "Pass one number for all samples, or one for each."
        raise refusal("delta", expected=f"a number or an array of shape {shape}", got=f"shape {known.shape}", fix=fix)
    return np.broadcast_to(known, shape)


def check_ensemble(ens: Any, argument: str = "ens") -> InfiniteEnsemble:
    """Return `ens` if it is an infinite ensemble."""
    if isinstance(ens, SampledEnsemble):
        fix = (
            "Other losses have no covariance in closed form: `ens.var` and `ens.outputs` are those of members drawn, "
            "and `orbit_deviation` and `expected_metrics` take them."
        )
        raise refusal(argument, expected="an `InfiniteEnsemble`", got="a `SampledEnsemble`", fix=fix, kind=TypeError)
    fix = "Make one with `InfiniteEnsemble(kernel_fn, train)`."
    return instance(ens, InfiniteEnsemble, argument, expected="an infinite ensemble", fix=fix)


def check_any_ensemble(ens: Any) -> InfiniteEnsemble | SampledEnsemble:
    """Return `ens` if it is an infinite ensemble, trained with any loss."""
    return ens if isinstance(ens, SampledEnsemble) else check_ensemble(ens)


def _single(value: Any, argument: str) -> float:
    if np.ndim(value):
        fix = "Ask for one value after the other."
        raise refusal(argument, expected="one number", got=f"an array of shape {np.shape(value)}", fix=fix)
    return float(value)


def _check_range(value: Any, argument: str, expected: str, is_inside: Callable, fix: str) -> Any:
    if is_concrete(value):
        known = np.asarray(real_array(value, argument, fix=fix))
        if known.dtype == np.bool_:
            raise refusal(argument, expected="real numbers", got=f"dtype {known.dtype}", fix=fix, kind=TypeError)
        wrong = known[~is_inside(known)]
        if wrong.size:
            raise refusal(argument, expected=expected, got=wrong[0], fix=fix)
    return value
