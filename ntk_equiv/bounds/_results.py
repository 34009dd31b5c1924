"""Records of results that are not known exactly: sampled numbers with an interval, and enclosures from two sides.

`Expected` keeps several errors of one number apart. The others stand for a number (or an array of numbers) in
arithmetic and comparisons.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.special

CONFIDENCE = 0.999


class _NumberLike(np.lib.mixins.NDArrayOperatorsMixin, ABC):
    """A record that counts as one of its values wherever a number is wanted."""

    @property
    @abstractmethod
    def _value(self) -> np.ndarray: ...

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._value, dtype=dtype)

    def __array_ufunc__(self, ufunc: Callable, method: str, *inputs: Any, **settings: Any) -> Any:
        plain = (np.asarray(value) if isinstance(value, _NumberLike) else value for value in inputs)
        return getattr(ufunc, method)(*plain, **settings)

    def __float__(self) -> float:
        return float(self._value)

    def __int__(self) -> int:
        return int(self._value)


@dataclasses.dataclass(frozen=True, eq=False)
class Sampled(_NumberLike):
    """A number, or an array of numbers, estimated from random draws.

    Attributes:
        value: the estimate.
        lower: the lower end of an interval that contains the truth with probability `confidence`.
        upper: its upper end.
        confidence: that probability, for each entry by itself.
        samples: the number of draws.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv.bounds import Sampled
        >>> p = Sampled.probability(np.array(50), 1000)
        >>> p
        <0.05, within [0.0302, 0.0767] with confidence 0.999, from 1000 draws>
        >>> bool(p < 0.06), float(2 * p)
        (True, 0.1)
    """

    value: Any
    lower: Any
    upper: Any
    confidence: float
    samples: int

    def __repr__(self) -> str:
        value, lower, upper = (_format(v) for v in (self.value, self.lower, self.upper))
        interval = f"within [{lower}, {upper}] with confidence {self.confidence}"
        return f"<{value}, {interval}, from {self.samples} draws>"

    @property
    def _value(self) -> np.ndarray:
        return np.asarray(self.value)

    @classmethod
    def probability(cls, hits: np.ndarray, samples: int, confidence: float = CONFIDENCE) -> "Sampled":
        """Return the probability of an event that happened in `hits` of the draws, with Clopper and Pearson's interval.

        The interval is exact for the binomial law of `hits`.
        """
        doubt = (1 - confidence) / 2
        with np.errstate(invalid="ignore"):
            # Without hits, or with nothing but hits, one end is known and the beta law has no such quantile.
            lower = np.where(hits > 0, scipy.special.betaincinv(np.maximum(hits, 1), samples - hits + 1, doubt), 0.0)
            above = scipy.special.betaincinv(hits + 1, np.maximum(samples - hits, 1), 1 - doubt)
        return cls(hits / samples, lower, np.where(hits < samples, above, 1.0), confidence, samples)

    @classmethod
    def quantile(cls, draws: np.ndarray, epsilon: float, confidence: float = CONFIDENCE) -> "Sampled":
        """Return what non-negative draws (first axis) exceed with probability ε, between two order statistics.

        The interval holds for any law. Its upper end is infinite if there are too few draws to tell.
        """
        samples, doubt = len(draws), (1 - confidence) / 2
        ordered = np.concatenate([np.zeros_like(draws[:1]), np.sort(draws, axis=0), np.full_like(draws[:1], np.inf)])
        # The number of draws below the quantile is binomial, with probability 1 − ε for each.
        below = scipy.special.bdtr(np.arange(samples), samples, 1 - epsilon)
        low, high = np.searchsorted(below, doubt, side="right"), np.searchsorted(below, 1 - doubt) + 1
        place = np.clip(np.ceil((1 - epsilon) * samples), 1, samples).astype(int)
        return cls(ordered[place], ordered[low], ordered[high], confidence, samples)

    @classmethod
    def mean(cls, draws: np.ndarray, confidence: float = CONFIDENCE) -> "Sampled":
        """Return the mean of draws (first axis), with an interval of as many standard errors as a Gaussian needs."""
        value, samples = draws.mean(axis=0), len(draws)
        error = -scipy.special.ndtri((1 - confidence) / 2) * draws.std(axis=0, ddof=1) / np.sqrt(samples)
        return cls(value, value - error, value + error, confidence, samples)


class Expected(NamedTuple):
    """An expectation over ensembles: arrays over sizes of ensembles, or numbers for one size.

    Attributes:
        value: the expectation.
        sampling_error: its standard error over draws of members; 0 where it is known exactly.
        test_error: its standard error over test samples; NaN if there is only one.
        scatter: the standard deviation of one real ensemble about it.

    Example:
        >>> from ntk_equiv.bounds import Expected
        >>> print(Expected(0.912, 0.0004, 0.02, 0.006))
        0.912 ± 0.0004 (draws) ± 0.02 (test set), one ensemble ± 0.006
    """

    value: Any
    sampling_error: Any
    test_error: Any
    scatter: Any

    def __str__(self) -> str:
        value, draws, test, scatter = (f"{number:.3g}" for number in self)
        return f"{value} ± {draws} (draws) ± {test} (test set), one ensemble ± {scatter}"


@dataclasses.dataclass(frozen=True, eq=False)
class Enclosure(_NumberLike):
    """A number, or an array of numbers, between two others. It counts as the upper one.

    Attributes:
        lower: attained by an element of the group that was evaluated.
        upper: exceeded by no element.
        certified: whether that is proven, up to rounding, rather than estimated.
        converged: whether the two are as close as was asked for; one answer for each entry where there are several.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv import bounds
        >>> error = bounds.Enclosure(np.array([0.1, 0.3]), np.array([0.2, 0.4]), certified=True)
        >>> error
        <between [0.1, 0.3] and [0.2, 0.4], certified>
        >>> bounds.Enclosure(0.1, 0.2, certified=True, converged=False)
        <between 0.1 and 0.2, certified, wider than asked for>
        >>> print(error < 0.25, np.sqrt(error).round(3))      # the upper values
        [ True False] [0.447 0.632]
    """

    lower: Any
    upper: Any
    certified: bool
    converged: bool | np.bool_ | np.ndarray = dataclasses.field(default=True, kw_only=True)

    def __repr__(self) -> str:
        kind = "certified" if self.certified else "estimated"
        wide, count = int(np.sum(~np.asarray(self.converged, bool))), np.size(self.converged)
        note = (", wider than asked for" if count == 1 else f", {wide} of {count} wider than asked for") if wide else ""
        return f"<between {_format(self.lower)} and {_format(self.upper)}, {kind}{note}>"

    @property
    def _value(self) -> np.ndarray:
        return np.asarray(self.upper)


def jackknife_error(others: Any) -> np.ndarray:
    """Return the standard error of an estimate from its values without one block of draws, [blocks, ...]."""
    return np.asarray(np.sqrt((len(others) - 1) * np.var(others, axis=0)))


def _format(value: Any) -> str:
    if np.ndim(value) == 0:
        return str(value) if isinstance(value, int) else f"{float(value):.3g}"
    return np.array2string(np.asarray(value), precision=3, threshold=6, separator=", ")
