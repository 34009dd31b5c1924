"""How far the mean of M members is from the infinite ensemble, at one sample: sizes, probabilities, finite width.

Lemma "Bound for finite ensemble members", in its exact form and with the bounds of its proof. At infinite width

    f̂_t(x) − f̄_t(x)  ~  N(0, Σ_t(x)/M)

exactly, so three questions have closed answers, with r and p of `_gaussian`:

    min_ensemble_size        M = ⌈ r(ε) Σ/δ² ⌉, at least 1
    deviation_probability    p(Mδ²/Σ)
    deviation_quantile       δ = √( r(ε) Σ/M )

The paper's closed formula M > −(2Σ/δ²) ln(√π ε) rests on δ ≥ √(2Σ/M). For ε > 1/(e√π) ≈ 0.208 the formula itself does
not ensure that: at ε = 0.5 it allows 62 % exceedance. Here "lemma" asks for both.

At width N the mean of M members is, to first order, a Gaussian about a shifted mean,

    f̂ − f̄ ~ N(a/N, Σ/M),        P(|f̂ − f̄| > δ) = Φ((a/N − δ)/σ) + Φ((−a/N − δ)/σ),  σ² = Σ/M,

at each sample and channel, with a shift a/N that `empirical.laziness` estimates before training from the paths of a
few members, or that is fitted to trained networks of a few widths (`finite_width_estimate`). This is an estimate and no
bound. More members make σ small and leave the shift: beyond M = Σ N²/a² members, wider networks help more than further
members.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import scipy.special
from jaxtyping import Float

from ntk_equiv._check import instance, is_concrete, positive_integer, refusal, same_shape
from ntk_equiv._typing import Array, Scalar
from ntk_equiv.bounds._checks import (
    Numbers,
    check_deviation,
    check_members,
    check_probability,
    check_variance,
    single_deviation,
    single_members,
)
from ntk_equiv.bounds._gaussian import IN_JAX, ON_HOST, check_law, inverse_tail, tail
from ntk_equiv.bounds._results import Sampled
from ntk_equiv.empirical import Correction, Laziness, shift_correction

# Floats do not tell larger whole numbers apart.
MOST_MEMBERS = 2**53
# Standard errors of the fitted shift between which the estimate for a finite width is given.
STANDARD_ERRORS = 2.0


def min_ensemble_size(
    variance: Numbers,
    delta: Numbers,
    epsilon: Numbers,
    *,
    bound: str = "exact",
    channels: int = 1,
    norm: str = "euclidean",
) -> Any:
    """The smallest number of members whose mean is within δ of the infinite ensemble, with probability 1 − ε.

        P(‖f̂_t(x) − f̄_t(x)‖ > δ) ≤ ε    for    M = ⌈ r(ε) Σ_t(x)/δ² ⌉

    This is the deviation from the infinite ensemble. The deviation from equivariance has another, larger variance: see
    `orbit_deviation`.

    Args:
        variance: Σ_t(x) of one channel of one network, from `ens.var(x, t)`; a number or an array.
        delta: the largest deviation that is tolerated.
        epsilon: the probability of a larger one, between 0 and 1.
        bound: "exact"; "tight", the bound of the paper's appendix; "lemma", its simplification in the main text, with
            the condition that its proof needs. exact ≤ tight ≤ lemma.
        channels: how many output channels have to be close at once.
        norm: the size of the deviation of several channels: "euclidean" (exact only), or "max", the largest.

    Returns:
        An `int`, or an integer array where arguments are arrays. Under jit a float, which is whole as far as its dtype
        resolves whole numbers.

    Raises:
        ValueError: a negative variance, δ ≤ 0, ε outside (0, 1), or a number of members beyond 2⁵³.

    Example:
        >>> from ntk_equiv import bounds
        >>> [bounds.min_ensemble_size(1.0, 0.1, 0.05, bound=bound) for bound in ("exact", "tight", "lemma")]
        [385, 413, 485]
        >>> print(bounds.min_ensemble_size([0.0, 1.0, 4.0], 0.1, 0.05))
        [   1  385 1537]
    """
    check_law(bound, channels, norm)
    check_variance(variance)
    check_deviation(delta)
    check_probability(epsilon)
    return smallest_size(variance, delta, epsilon, bound, channels, norm)


def smallest_size(variance: Any, delta: Any, epsilon: Any, bound: str, channels: int, norm: str) -> Any:
    """Return the result of `min_ensemble_size` for arguments whose ranges, but not shapes, have been checked."""
    same_shape(variance=variance, delta=delta, epsilon=epsilon)
    if not is_concrete((variance, delta, epsilon)):
        variance, delta, epsilon = _broadcast(variance, delta, epsilon)
        ratio = inverse_tail(epsilon, bound, channels, norm, IN_JAX)
        return jnp.maximum(jnp.ceil(ratio * variance / delta**2), 1.0)
    variance, delta, epsilon = (np.asarray(v, dtype=np.float64) for v in (variance, delta, epsilon))
    with np.errstate(over="ignore"):
        # Divided twice, because δ² may underflow.
        return round_up(inverse_tail(epsilon, bound, channels, norm, ON_HOST) * variance / delta / delta)


def deviation_probability(
    variance: Numbers,
    members: Numbers,
    delta: Numbers,
    *,
    bound: str = "exact",
    channels: int = 1,
    norm: str = "euclidean",
) -> Float[Array, "..."]:
    """The probability that the mean of M members is further than δ from the infinite ensemble, or a bound on it.

    Args:
        variance: Σ_t(x) of one channel of one network, as for `min_ensemble_size`.
        members: M.
        delta: the deviation.
        bound: "exact", or an upper bound: "tight" √(2/π)(σ/δ)e^{−δ²/2σ²} with σ² = Σ/M, or "lemma" e^{−δ²/2σ²}/√π,
            which says nothing (1) where its condition δ² ≥ 2σ² fails.
        channels: how many channels.
        norm: "euclidean" or "max".

    Example:
        >>> from ntk_equiv import bounds
        >>> print(bounds.deviation_probability(1.0, 385, 0.1).round(4))
        0.0497
        >>> print(bounds.deviation_probability(1.0, 100, [0.1, 0.2, 0.3], bound="tight").round(4))
        [0.4839 0.054  0.003 ]
    """
    check_law(bound, channels, norm)
    check_variance(variance)
    check_members(members)
    check_deviation(delta)
    same_shape(variance=variance, members=members, delta=delta)
    variance, members, delta = _broadcast(variance, members, delta)
    certain = variance == 0  # Then nothing deviates. Kept out of the quotient, where its gradient would be NaN.
    r = members * delta**2 / jnp.where(certain, 1.0, variance)
    return jnp.where(certain, 0.0, tail(r, bound, channels, norm))


def deviation_quantile(
    variance: Numbers,
    members: Numbers,
    epsilon: Numbers,
    *,
    bound: str = "exact",
    channels: int = 1,
    norm: str = "euclidean",
) -> Float[Array, "..."]:
    """The deviation δ that the mean of M members exceeds with probability ε, or a bound on it.

    Args:
        variance: Σ_t(x) of one channel of one network, as for `min_ensemble_size`.
        members: M.
        epsilon: the probability, between 0 and 1.
        bound: "exact", "tight" or "lemma".
        channels: how many channels.
        norm: "euclidean" or "max".

    Example:
        >>> from ntk_equiv import bounds
        >>> print(bounds.deviation_quantile(1.0, 100, 0.05).round(4))
        0.196
        >>> print(bounds.deviation_quantile(1.0, 100, 0.05, channels=2).round(4))      # √(2 ln 20)/10
        0.2448
    """
    check_law(bound, channels, norm)
    check_variance(variance)
    check_members(members)
    check_probability(epsilon)
    same_shape(variance=variance, members=members, epsilon=epsilon)
    variance, members, epsilon = _broadcast(variance, members, epsilon)
    return jnp.sqrt(inverse_tail(epsilon, bound, channels, norm) * variance / members)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class WidthEstimate:
    """How a finite ensemble of finite width deviates from the infinite one, estimated at each sample and channel.

    Attributes:
        bias: a/N, the shift of the mean.
        bias_error: its standard error.
        probability: the probability that the mean of the members is further than δ from the infinite ensemble.
        lower: the same for a shift that is two standard errors smaller in size, but not below zero.
        upper: the same for a shift that is two standard errors larger.
        members: M = Σ N²/a², beyond which the shift is larger than the scatter; infinite without a shift.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv import bounds, empirical
        >>> shift = empirical.Correction(np.array([5.0]), np.array([0.5]), 1.0)
        >>> bounds.finite_width_estimate(1.0, 400, 0.1, shift, 100)
        <estimated probability 0.16 at the worst sample, 0.118 to 0.213 from the fit alone>
    """

    bias: Float[np.ndarray, "*samples"]
    bias_error: Float[np.ndarray, "*samples"]
    probability: Float[np.ndarray, "*samples"]
    lower: Float[np.ndarray, "*samples"]
    upper: Float[np.ndarray, "*samples"]
    members: Float[np.ndarray, "*samples"]

    def __repr__(self) -> str:
        worst = int(np.argmax(self.probability))
        value, low, high = (float(v.flat[worst]) for v in (self.probability, self.lower, self.upper))
        return f"<estimated probability {value:.3g} at the worst sample, {low:.3g} to {high:.3g} from the fit alone>"


def finite_width_estimate(
    variance: Numbers | None,
    members: Numbers,
    delta: Numbers,
    mean: Any,
    width: int | None = None,
    /,
    *,
    t: Scalar | None = None,
) -> WidthEstimate:
    """The estimated deviation of M members of width N from the infinite ensemble; this is no bound.

    Args:
        variance: Σ_t(x) of one channel, as for `min_ensemble_size`, in a shape that broadcasts to that of the shift.
            None takes that of the predicted members, which the drift of the kernel has changed as well; it needs what
            `empirical.laziness` returned for this width.
        members: M.
        delta: the tolerated deviation.
        mean: the shift of the mean. From trained networks it is the correction
            `ensembles.compare_with_theory({width: run, ...}, ens, x).mean`. Before training it is what
            `empirical.laziness` returned for networks of width N, or a mapping {width: ...} of these, to which a/N is
            fitted.
        width: N; for the record of one width it is left out.
        t: for records of `laziness`, the time; the last unless given.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv import bounds, empirical
        >>> shift = empirical.Correction(np.array([0.0, 5.0]), np.array([0.1, 0.1]), 1.0)
        >>> found = bounds.finite_width_estimate(1.0, 400, 0.1, shift, 100)
        >>> print(found.bias, found.probability.round(3))      # without a shift: `deviation_probability`
        [0.   0.05] [0.046 0.16 ]
        >>> print(found.members)
        [ inf 400.]
    """
    count, delta = single_members(members), single_deviation(delta)
    bias, error, spread = _shift_of_mean(mean, width, t)
    if variance is None:
        if spread is None:
            fix = "Pass `ens.var(x, t)`, or what `empirical.laziness` returned for this width."
            raise refusal("variance", expected="given for a fitted correction", got="None", fix=fix)
        variance = spread
    variance = np.asarray(check_variance(variance), float)
    if same_shape(variance=variance, mean=bias) != bias.shape:
        fix = "Pass that of one channel at the samples of the correction."
        raise refusal("variance", expected=f"of shape {bias.shape}", got=f"shape {variance.shape}", fix=fix)
    variance = np.broadcast_to(variance, bias.shape)
    smaller = np.maximum(np.abs(bias) - STANDARD_ERRORS * error, 0.0)
    larger = np.abs(bias) + STANDARD_ERRORS * error
    probability, lower, upper = (_shifted_tail(shift, variance / count, delta) for shift in (bias, smaller, larger))
    with np.errstate(divide="ignore", invalid="ignore"):
        balanced = np.where(bias == 0, np.inf, variance / bias**2)
    return WidthEstimate(bias, error, probability, lower, upper, balanced)


def _shift_of_mean(mean: Any, width: int | None, t: Scalar | None) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return the shift of the mean, its standard error, and the variance of members if it comes with it."""
    if isinstance(mean, Laziness):
        if width is not None:
            fix = "It is about the width of the networks that were looked at; pass {width: record} to change it."
            raise refusal("width", expected="nothing for the record of one width", got=width, fix=fix)
        shift, spread = mean.shift_at(t)
        return shift.value, shift.error, spread
    mean = shift_correction(mean, t) if isinstance(mean, Mapping) else mean
    fix = "`empirical.laziness` finds it before training, `ensembles.compare_with_theory` from runs of several widths."
    instance(mean, Correction, "mean", expected="a `Correction`, or records of `laziness`", fix=fix)
    width = positive_integer(width, "width")
    bias, error = np.broadcast_arrays(mean.at(width), mean.error_at(width))
    return bias, error, None


def round_up(members: Any) -> Any:
    """Return numbers of members as whole ones, at least 1: an `int`, or an integer array."""
    members = np.asarray(members)
    if not (members <= MOST_MEMBERS).all():
        got = f"a number of members beyond 2^53 ({np.max(members):.3g})"
        fix = "The variance is too large for any ensemble to come so close."
        raise refusal("delta", expected="large enough to be met", got=got, fix=fix)
    rounded = np.maximum(np.ceil(members), 1).astype(np.int64)
    return rounded if rounded.ndim else int(rounded)


def round_up_sampled(members: Sampled, epsilon: float) -> Sampled:
    """Return sampled numbers of members as whole ones, if the draws are enough to see a probability of ε."""
    if not np.isfinite(members.upper).all():
        fix = f"Take more, at least about {10 / epsilon:.3g}."
        expected = f"enough to see what happens with probability {epsilon}"
        raise refusal("samples", expected=expected, got=members.samples, fix=fix)
    value, lower, upper = (round_up(v) for v in (members.value, members.lower, members.upper))
    return Sampled(value, lower, upper, members.confidence, members.samples)


def _broadcast(*values: Any) -> list[Array]:
    """Return the values as floating-point arrays of one shape, in the dtype of those that have one."""
    dtype = jnp.result_type(*(v if hasattr(v, "dtype") else 1.0 for v in values), 1.0)
    return list(jnp.broadcast_arrays(*(jnp.asarray(v, dtype) for v in values)))


def _shifted_tail(bias: np.ndarray, variance: np.ndarray, delta: float) -> np.ndarray:
    """Return P(|N(bias, variance)| > δ), also where the variance is 0."""
    with np.errstate(divide="ignore"):
        scale = 1 / np.sqrt(variance)
    certain = (np.abs(bias) > delta).astype(float)
    finite = np.where(variance > 0, scale, 0.0)
    tails = scipy.special.ndtr((bias - delta) * finite) + scipy.special.ndtr((-bias - delta) * finite)
    return np.where(variance > 0, tails, certain)
