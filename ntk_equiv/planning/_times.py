"""Training times: a list of numbers, `inf`, `log:FIRST:LAST:COUNT`, or `auto`.

`auto` looks at the eigenvalues of the training dynamics, ηΘ (divided by the number of labels for a mean): from a tenth
of the time in which the fastest mode is learned to ten times that of the slowest, and the end.
"""

from typing import Any

import numpy as np

from ntk_equiv._check import real_number, refusal

COUNT = 25
LONGEST = 1e12  # of the shortest; modes that are slower are never learned


def named_times(times: Any, /) -> np.ndarray | None:
    """Times in increasing order, [k]; None for "auto".

    Args:
        times: numbers, "inf", "log:FIRST:LAST:COUNT", a list of these, or "auto".

    Raises:
        ValueError: something that is not a time.

    Example:
        >>> from ntk_equiv import planning
        >>> print(planning.named_times(["log:1:100:3", "inf", 0]))
        [  0.   1.  10. 100.  inf]
    """
    parts = [times] if isinstance(times, str) or not np.ndim(times) else list(times)
    if parts == ["auto"]:
        return None
    found = np.unique(np.concatenate([_part(part) for part in parts]) if parts else np.zeros(0))
    if not found.size or np.isnan(found).any() or (found < 0).any():
        fix = "Times start at 0, the untrained ensemble, and may end at inf."
        raise refusal("times", expected="one or more numbers, none negative", got=repr(times), fix=fix)
    return found


def named_time(at: Any, /) -> float | None:
    """One time, for which something is told; None stays.

    Raises:
        ValueError: something that is not a time.

    Example:
        >>> from ntk_equiv.planning._times import named_time
        >>> named_time("inf"), named_time(3)
        (inf, 3.0)
    """
    if at is None:
        return None
    at = at if at in (np.inf, "inf") else real_number(at, "at")
    if float(at) < 0:
        fix = "Leave it out to have the best one taken."
        raise refusal("at", expected="a training time, 0 or more", got=at, fix=fix)
    return float(at)


def telling_times(rates: Any, /) -> np.ndarray:
    """Times at which something happens, for modes that are learned at these positive rates."""
    rates = np.asarray(rates, dtype=float)
    if not rates.size:
        return np.array([0.0, np.inf])
    first = 0.1 / rates.max()
    last = min(10 / rates.min(), LONGEST * first)
    return np.append(np.geomspace(first, last, COUNT), np.inf)


def _part(part: Any) -> np.ndarray:
    try:
        if not isinstance(part, str) or not part.startswith("log:"):
            return np.array([float(part)])
        first, last, count = part.removeprefix("log:").split(":")
        ends = float(first), float(last)
        if not (0 < ends[0] <= ends[1] < np.inf and 1 <= int(count) <= 10_000):
            raise ValueError(part)
        return np.geomspace(*ends, int(count))
    except (TypeError, ValueError):
        fix = "Write numbers, inf, or log:FIRST:LAST:COUNT such as log:1:1e5:20; or auto to have them chosen."
        raise refusal("times", expected="training times", got=repr(part), fix=fix) from None
