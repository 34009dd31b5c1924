"""How far the mean of M members is from the infinite ensemble, at one point.

Lemma "Bound for finite ensemble members", with its exact form and with the bound of its proof. At infinite width

    f̂_t(x) − f̄_t(x)  ~  N(0, Σ_t(x)/M)

exactly, so that three questions have closed answers (r and p are those of `_tails`):

    min_ensemble_size        M = ⌈ r(ε) Σ/δ² ⌉, at least 1
    deviation_probability    p(Mδ²/Σ)
    deviation_quantile       δ = √( r(ε) Σ/M )

The paper's closed formula M > −(2Σ/δ²) ln(√π ε) rests on δ ≥ √(2Σ/M), which for ε > 1/(e√π) ≈ 0.208 the formula
itself does not ensure: at ε = 0.5 it allows 62 % exceedance. Here "lemma" asks for both.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ntk_equiv._check import is_concrete, refusal, same_shape
from ntk_equiv._typing import Array
from ntk_equiv.bounds import _ranges
from ntk_equiv.bounds._tails import IN_JAX, ON_HOST, check_question, inverse_tail, tail

LARGEST = 2**53  # whole numbers beyond are not told apart by floats


def min_ensemble_size(
    variance: Any, delta: Any, epsilon: Any, *, bound: str = "exact", channels: int = 1, norm: str = "euclidean"
) -> Any:
    """The smallest number of members whose mean is within δ of the infinite ensemble, with probability 1 − ε.

        P(‖f̂_t(x) − f̄_t(x)‖ > δ) ≤ ε    for    M = ⌈ r(ε) Σ_t(x)/δ² ⌉

    It is about the deviation from the infinite ensemble. The deviation from equivariance has another, larger variance:
    see `orbit_deviation`.

    Args:
        variance: Σ_t(x) of one channel of one network, from `ens.var(x, t)`; a number or an array.
        delta: the deviation that is just tolerated.
        epsilon: the probability of a larger one, between 0 and 1.
        bound: "exact"; "tight", the bound of the paper's appendix; "lemma", its simplification in the main text, with
            the condition its proof makes. exact ≤ tight ≤ lemma.
        channels: how many output channels are to be close at once.
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
    check_question(bound, channels, norm)
    variance, delta = _ranges.variance(variance), _ranges.positive(delta)
    epsilon = _ranges.probability(epsilon)
    same_shape(variance=variance, delta=delta, epsilon=epsilon)
    if not is_concrete((variance, delta, epsilon)):
        variance, delta, epsilon = _together(variance, delta, epsilon)
        ratio = inverse_tail(epsilon, bound, channels, norm, IN_JAX)
        return jnp.maximum(jnp.ceil(ratio * variance / delta**2), 1.0)
    variance, delta, epsilon = (np.asarray(v, dtype=np.float64) for v in (variance, delta, epsilon))
    with np.errstate(over="ignore"):
        return whole(inverse_tail(epsilon, bound, channels, norm, ON_HOST) * variance / delta / delta)


def deviation_probability(
    variance: Any, members: Any, delta: Any, *, bound: str = "exact", channels: int = 1, norm: str = "euclidean"
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
    check_question(bound, channels, norm)
    variance, members = _ranges.variance(variance), _ranges.count(members)
    same_shape(variance=variance, members=members, delta=_ranges.positive(delta))
    variance, members, delta = _together(variance, members, delta)
    certain = variance == 0  # no deviation at all; kept out of the quotient, also for the sake of gradients
    r = members * delta**2 / jnp.where(certain, 1.0, variance)
    return jnp.where(certain, 0.0, tail(r, bound, channels, norm))


def deviation_quantile(
    variance: Any, members: Any, epsilon: Any, *, bound: str = "exact", channels: int = 1, norm: str = "euclidean"
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
    check_question(bound, channels, norm)
    variance, members = _ranges.variance(variance), _ranges.count(members)
    same_shape(variance=variance, members=members, epsilon=_ranges.probability(epsilon))
    variance, members, epsilon = _together(variance, members, epsilon)
    return jnp.sqrt(inverse_tail(epsilon, bound, channels, norm) * variance / members)


def whole(members: Any) -> Any:
    """Real numbers of members as whole ones, at least 1: an `int`, or an integer array."""
    members = np.asarray(members)
    if not (members <= LARGEST).all():
        got = f"a number of members beyond 2^53 ({np.max(members):.3g})"
        fix = "The deviation is below what the variance lets any ensemble reach."
        raise refusal("delta", expected="large enough to be met", got=got, fix=fix)
    rounded = np.maximum(np.ceil(members), 1).astype(np.int64)
    return rounded if rounded.ndim else int(rounded)


def _together(*values: Any) -> list[Array]:
    """The values as floating-point arrays of one shape and dtype, that of those among them that have one."""
    dtype = jnp.result_type(*(v if hasattr(v, "dtype") else 1.0 for v in values), 1.0)
    return list(jnp.broadcast_arrays(*(jnp.asarray(v, dtype) for v in values)))
