"""Many points at once: how many members until all of a test set, or of an orbit, is close.

For points x_1 … x_n whose deviations have variances Σ_i/M and tolerances δ_i, with p_i(M) the probability at one point,

    union     P(any exceeds) ≤ Σ_i p_i(M)
    sidak     P(any exceeds) ≤ 1 − Π_i (1 − p_i(M))     Šidák for intervals, Royen for balls; any correlation
    sampled   P(any exceeds) = P(max_i ‖Z_i‖/δ_i > √M),  Z ~ N(0, Σ)

sampled ≤ sidak ≤ union. The first two need the variances alone; the last needs the joint covariance, and comes with
the error of its sampling.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv._check import one_of, positive_integer, random_key
from ntk_equiv.bounds import _ranges
from ntk_equiv.bounds._members import min_ensemble_size, whole
from ntk_equiv.bounds._records import Sampled
from ntk_equiv.bounds._sampling import NEGLIGIBLE, covariance_root, portions, whole_members
from ntk_equiv.bounds._tails import NORMS, ON_HOST, check_question, tail

METHODS = ("sidak", "union")
LARGE = 1e150


def simultaneous_probability(
    variance: Any,
    members: Any,
    delta: Any,
    *,
    method: str = "sidak",
    channels: int = 1,
    norm: str = "euclidean",
) -> float:
    """An upper bound on the probability that the mean of M members is further than δ off at any of the points.

    Args:
        variance: Σ_t(x) at each point, an array of any shape.
        members: M, one number.
        delta: the tolerated deviation, one for all points or one for each.
        method: "sidak" or "union".
        channels: how many channels at each point.
        norm: "euclidean" or "max" over the channels.

    Example:
        >>> from ntk_equiv import bounds
        >>> [round(bounds.simultaneous_probability([1.0] * 10, 400, 0.1, method=m), 4) for m in ("sidak", "union")]
        [0.3723, 0.455]
    """
    check_question("exact", channels, norm)
    one_of(method, METHODS, "method")
    members = _ranges.one_count(members)
    return _any(_precisions(variance, delta) * members, method, channels, norm)


def simultaneous_ensemble_size(
    variance: Any,
    delta: Any,
    epsilon: Any,
    *,
    method: str = "sidak",
    channels: int = 1,
    norm: str = "euclidean",
) -> int:
    """The smallest number of members whose mean is within δ at all points at once, with probability 1 − ε.

    Args:
        variance: Σ_t(x) at each point, an array of any shape.
        delta: the tolerated deviation, one for all points or one for each.
        epsilon: the probability that it is exceeded anywhere.
        method: "sidak" or "union"; both hold whatever the correlations, and "sidak" is never larger. For the exact
            number see `sampled_ensemble_size`.
        channels: how many channels at each point.
        norm: "euclidean" or "max" over the channels.

    Example:
        >>> from ntk_equiv import bounds
        >>> bounds.simultaneous_ensemble_size([1.0] * 10, 0.1, 0.05)
        784
        >>> bounds.simultaneous_ensemble_size([1.0] + [0.01] * 9, 0.1, 0.05)       # one point decides
        385
    """
    check_question("exact", channels, norm)
    one_of(method, METHODS, "method")
    epsilon = _ranges.one_probability(epsilon)
    precision = _precisions(variance, delta)
    settings: dict = {"channels": channels, "norm": norm}
    with np.errstate(divide="ignore", over="ignore"):
        largest = np.max(1 / precision, initial=0.0)
    if np.isinf(largest):
        whole(largest)  # refuses, and says why
    # Between what the worst point needs and what a union over points as bad as it needs.
    low = min_ensemble_size(largest, 1.0, epsilon, **settings)
    high = min_ensemble_size(largest, 1.0, epsilon / max(precision.size, 1), **settings) + 1
    while low < high:
        middle = (low + high) // 2
        enough = _any(precision * middle, method, channels, norm) <= epsilon
        low, high = (low, middle) if enough else (middle + 1, high)
    return low


def sampled_ensemble_size(
    covariance: Any,
    delta: Any,
    epsilon: Any,
    *,
    key: jax.Array,
    samples: int = 20_000,
    channels: int = 1,
    norm: str = "euclidean",
) -> Sampled:
    """The same from the joint law of all points: the exact number, up to the error of sampling it.

        M = ⌈ quantile_{1−ε} of max_i ‖Z_i‖²/δ_i² ⌉,   Z ~ N(0, Σ)

    Args:
        covariance: Σ_t between the points, [n, n], from `ens.cov(x, t)`; the same for each channel.
        delta: the tolerated deviation, one for all points or one for each.
        epsilon: the probability that it is exceeded anywhere.
        key: a JAX random key.
        samples: how many draws.
        channels: how many channels at each point.
        norm: "euclidean" or "max" over the channels.

    Returns:
        The number of members as a `Sampled` record; its `upper` suffices with the stated confidence.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from ntk_equiv import bounds
        >>> together = bounds.sampled_ensemble_size(jnp.ones((10, 10)), 0.1, 0.05, key=jax.random.key(0))
        >>> together.lower <= 385 <= together.upper             # fully correlated points are one point
        True
    """
    one_of(norm, NORMS, "norm")
    random_key(key)
    epsilon = _ranges.one_probability(epsilon)
    smallest = min(float(np.min(_ranges.positive(delta))), LARGE)  # whose square is a number
    root = covariance_root(covariance, NEGLIGIBLE * smallest**2)
    delta = _ranges.one_per_point(delta, root.shape[:1])
    channels, samples = positive_integer(channels, "channels"), positive_integer(samples, "samples")
    keys, part = portions(key, samples, root.shape[0] * channels)
    law = (jnp.asarray(root), jnp.asarray(1 / delta))
    draws = [_largest(k, *law, part, channels, norm) for k in keys]
    with np.errstate(over="ignore"):
        squares = np.concatenate([np.asarray(d) for d in draws])[:samples] ** 2
    found = Sampled.quantile(squares, epsilon)
    if np.isinf(found.value):
        whole(found.value)  # refuses, and says why
    return whole_members(found, epsilon)


@partial(jax.jit, static_argnames=("count", "channels", "norm"))
def _largest(key: jax.Array, root: jax.Array, inverse: jax.Array, count: int, channels: int, norm: str) -> jax.Array:
    """max_i ‖Z_i‖/δ_i of each of `count` draws."""
    Z = jnp.einsum("ij,sjc->sic", root, jax.random.normal(key, (count, root.shape[1], channels), root.dtype))
    sizes = jnp.abs(Z).max(-1) if norm == "max" else jnp.sqrt(jnp.sum(Z**2, -1))
    return jnp.max(sizes * inverse[None], axis=1)


def _precisions(variance: Any, delta: Any) -> np.ndarray:
    """δ²/Σ at each point with a variance, flat: the others never deviate."""
    known = np.asarray(_ranges.variance(variance), dtype=float)
    delta = _ranges.one_per_point(delta, known.shape)
    with np.errstate(over="ignore"):
        return delta[known > 0] * (delta[known > 0] / known[known > 0])


def _any(r: np.ndarray, method: str, channels: int, norm: str) -> float:
    each = tail(r, "exact", channels, norm, ON_HOST)
    if method == "union":
        return float(min(np.sum(each), 1.0))
    with np.errstate(divide="ignore"):
        return float(-np.expm1(np.sum(np.log1p(-each)))) + 0.0  # never -0.0
