"""What a finite width adds to the deviation from the infinite ensemble: an estimate, and no bound.

At width N the mean of M members is, to first order, a Gaussian about a shifted mean,

    f̂ − f̄ ~ N(a/N, Σ/M),        P(|f̂ − f̄| > δ) = Φ((a/N − δ)/σ) + Φ((−a/N − δ)/σ),  σ² = Σ/M,

at each point and channel, with the coefficient a fitted to trained networks of a few widths. More members make σ small
and leave the shift: from M = Σ N²/a² on, wider networks are worth more than further ones.
"""

import dataclasses
from typing import Any

import numpy as np
import scipy.special
from jaxtyping import Float

from ntk_equiv._check import refusal, same_shape
from ntk_equiv.bounds import _ranges
from ntk_equiv.empirical import Correction

# Standard errors of the fitted shift within which the estimate is given.
SPREAD = 2.0


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class WidthEstimate:
    """How a finite ensemble of finite width deviates from the infinite one, estimated at each point and channel.

    Attributes:
        bias: a/N, the shift of the mean.
        bias_error: its standard error.
        probability: that the mean of the members is further than δ from the infinite ensemble.
        lower: the same for a shift that is two standard errors smaller in size, but not below zero.
        upper: the same for one that is two standard errors larger.
        members: M = Σ N²/a², from which on the shift is larger than the scatter; infinite without a shift.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv import bounds, empirical
        >>> shift = empirical.Correction(np.array([5.0]), np.array([0.5]), 1.0)
        >>> bounds.finite_width_estimate(1.0, 400, 0.1, shift, 100)
        <estimated probability 0.16 at the worst point, 0.118 to 0.213 from the fit alone>
    """

    bias: Float[np.ndarray, "*points"]
    bias_error: Float[np.ndarray, "*points"]
    probability: Float[np.ndarray, "*points"]
    lower: Float[np.ndarray, "*points"]
    upper: Float[np.ndarray, "*points"]
    members: Float[np.ndarray, "*points"]

    def __repr__(self) -> str:
        worst = int(np.argmax(self.probability))
        value, low, high = (float(v.flat[worst]) for v in (self.probability, self.lower, self.upper))
        return f"<estimated probability {value:.3g} at the worst point, {low:.3g} to {high:.3g} from the fit alone>"


def finite_width_estimate(variance: Any, members: Any, delta: Any, mean: Any, width: int, /) -> WidthEstimate:
    """The estimated law of the deviation of M members of width N from the infinite ensemble; no bound.

    Args:
        variance: Σ_t(x) of one channel, as for `min_ensemble_size`, of the shape of `mean.coefficient` or one that
            broadcasts to it.
        members: M.
        delta: the tolerated deviation.
        mean: the correction of the mean prediction, `ensembles.compare_with_theory({width: run, ...}, ens, x).mean`.
        width: N.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv import bounds, empirical
        >>> shift = empirical.Correction(np.array([0.0, 5.0]), np.array([0.1, 0.1]), 1.0)
        >>> found = bounds.finite_width_estimate(1.0, 400, 0.1, shift, 100)
        >>> print(found.bias, found.probability.round(3))      # without a shift as in `deviation_probability`
        [0.   0.05] [0.046 0.16 ]
        >>> print(found.members)
        [ inf 400.]
    """
    if not isinstance(mean, Correction):
        fix = "`ensembles.compare_with_theory` finds it from runs of several widths."
        raise refusal("mean", expected="a `Correction`", got=type(mean).__name__, fix=fix, kind=TypeError)
    count = _ranges.one_count(members)
    tolerated = _ranges.one_deviation(delta)
    bias, error = np.broadcast_arrays(mean.at(width), mean.error_at(width))
    variance = np.asarray(_ranges.variance(variance), float)
    if same_shape(variance=variance, mean=bias) != bias.shape:
        fix = "It is that of one channel at the points of the correction."
        raise refusal("variance", expected=f"of shape {bias.shape}", got=f"shape {variance.shape}", fix=fix)
    variance = np.broadcast_to(variance, bias.shape)
    smaller, larger = np.maximum(np.abs(bias) - SPREAD * error, 0.0), np.abs(bias) + SPREAD * error
    probability, lower, upper = (_exceeding(shift, variance / count, tolerated) for shift in (bias, smaller, larger))
    with np.errstate(divide="ignore", invalid="ignore"):
        balanced = np.where(bias == 0, np.inf, variance / bias**2)
    return WidthEstimate(bias, error, probability, lower, upper, balanced)


def _exceeding(bias: np.ndarray, variance: np.ndarray, delta: float) -> np.ndarray:
    """P(|N(bias, variance)| > δ), also where there is no variance."""
    with np.errstate(divide="ignore"):
        scale = 1 / np.sqrt(variance)
    certain = (np.abs(bias) > delta).astype(float)
    finite = np.where(variance > 0, scale, 0.0)
    tails = scipy.special.ndtr((bias - delta) * finite) + scipy.special.ndtr((-bias - delta) * finite)
    return np.where(variance > 0, tails, certain)
