"""Many samples at once: how many members until the mean is close on all of a test set.

For samples x_1 … x_n whose deviations have variances Σ_i/M and tolerances δ_i, with p_i(M) the probability at one
sample,

    union     P(any exceeds) ≤ Σ_i p_i(M)
    sidak     P(any exceeds) ≤ 1 − Π_i (1 − p_i(M))     Šidák for intervals, Royen for balls; any correlation
    sampled   P(any exceeds) = P(max_i ‖Z_i‖/δ_i > √M),  Z ~ N(0, Σ)

sampled ≤ sidak ≤ union. The first two need the variances alone. The last needs the joint covariance, and comes with the
error of its sampling. `required_members` takes variances and covariances from an infinite ensemble.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv._check import one_of, positive_integer, random_key, refusal, single_time
from ntk_equiv._positions import joint
from ntk_equiv._typing import Inputs, Scalar
from ntk_equiv.bounds._checks import (
    Numbers,
    check_deviation,
    check_ensemble,
    check_probability,
    check_variance,
    deviation_of_each,
    single_members,
    single_probability,
)
from ntk_equiv.bounds._gaussian import NEGLIGIBLE, ON_HOST, check_law, covariance_root, split_draws, tail
from ntk_equiv.bounds._members import round_up, round_up_sampled, smallest_size
from ntk_equiv.bounds._results import Sampled
from ntk_equiv.infinite import InfiniteEnsemble

METHODS = ("sidak", "union")
# The square of a larger deviation overflows.
LARGEST_DEVIATION = 1e150


def simultaneous_probability(
    variance: Numbers,
    members: Numbers,
    delta: Numbers,
    *,
    method: str = "sidak",
    channels: int = 1,
    norm: str = "euclidean",
) -> float:
    """An upper bound on the probability that the mean of M members is further than δ off at any of the samples.

    Args:
        variance: Σ_t(x) at each sample, an array of any shape.
        members: M, one number.
        delta: the tolerated deviation, one for all samples or one for each.
        method: "sidak" or "union".
        channels: how many channels at each sample.
        norm: "euclidean" or "max" over the channels.

    Example:
        >>> from ntk_equiv import bounds
        >>> [round(bounds.simultaneous_probability([1.0] * 10, 400, 0.1, method=m), 4) for m in ("sidak", "union")]
        [0.3723, 0.455]
    """
    check_law("exact", channels, norm)
    one_of(method, METHODS, "method")
    members = single_members(members)
    check_variance(variance)
    check_deviation(delta)
    return _probability_of_any(_precisions(variance, delta) * members, method, channels, norm)


def simultaneous_ensemble_size(
    variance: Numbers,
    delta: Numbers,
    epsilon: Numbers,
    *,
    method: str = "sidak",
    channels: int = 1,
    norm: str = "euclidean",
) -> int:
    """The smallest number of members whose mean is within δ at all samples at once, with probability 1 − ε.

    Args:
        variance: Σ_t(x) at each sample, an array of any shape.
        delta: the tolerated deviation, one for all samples or one for each.
        epsilon: the probability that it is exceeded anywhere.
        method: "sidak" or "union"; both hold whatever the correlations, and "sidak" is never larger. For the exact
            number see `sampled_ensemble_size`.
        channels: how many channels at each sample.
        norm: "euclidean" or "max" over the channels.

    Example:
        >>> from ntk_equiv import bounds
        >>> bounds.simultaneous_ensemble_size([1.0] * 10, 0.1, 0.05)
        784
        >>> bounds.simultaneous_ensemble_size([1.0] + [0.01] * 9, 0.1, 0.05)       # one sample decides
        385
    """
    check_law("exact", channels, norm)
    one_of(method, METHODS, "method")
    epsilon = single_probability(epsilon)
    check_variance(variance)
    check_deviation(delta)
    return _size_for_all(variance, delta, epsilon, method, channels, norm)


def sampled_ensemble_size(
    covariance: Numbers,
    delta: Numbers,
    epsilon: Numbers,
    *,
    key: jax.Array,
    samples: int = 20_000,
    channels: int = 1,
    norm: str = "euclidean",
) -> Sampled:
    """The number of members that suffices at all samples at once, from their joint law, up to the error of sampling.

        M = ⌈ quantile_{1−ε} of max_i ‖Z_i‖²/δ_i² ⌉,   Z ~ N(0, Σ)

    Args:
        covariance: Σ_t between the samples, [n, n], from `ens.cov(x, t)`; the same for each channel.
        delta: the tolerated deviation, one for all samples or one for each.
        epsilon: the probability that it is exceeded anywhere.
        key: a JAX random key.
        samples: how many draws.
        channels: how many channels at each sample.
        norm: "euclidean" or "max" over the channels.

    Returns:
        The number of members as a `Sampled` record; its `upper` suffices with the stated confidence.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from ntk_equiv import bounds
        >>> together = bounds.sampled_ensemble_size(jnp.ones((10, 10)), 0.1, 0.05, key=jax.random.key(0))
        >>> together.lower <= 385 <= together.upper             # fully correlated samples are one sample
        True
    """
    check_law("exact", channels, norm)
    random_key(key)
    epsilon, samples = single_probability(epsilon), positive_integer(samples, "samples")
    check_deviation(delta)
    return _sampled_size(covariance, delta, epsilon, key, samples, channels, norm)


def required_members(
    ens: InfiniteEnsemble,
    x: Inputs,
    t: Scalar | None,
    delta: Numbers,
    epsilon: Numbers,
    *,
    simultaneous: str | None = None,
    bound: str = "exact",
    norm: str = "euclidean",
    key: jax.Array | None = None,
    samples: int = 20_000,
) -> Any:
    """The number of members whose mean is within δ of the infinite ensemble, with probability 1 − ε.

    Args:
        ens: the infinite ensemble, which knows the variance Σ_t(x).
        x: test samples, [n, ...].
        t: one training time; None for that of the filter.
        delta: the tolerated deviation, in the units of the labels.
        epsilon: the probability of a larger one.
        simultaneous: None for each sample by itself; "union", "sidak" or "sampled" for all samples at once.
        bound: for single samples, "exact", "tight" or "lemma".
        norm: of the deviation over output channels, "euclidean" or "max".
        key: for "sampled", a JAX random key.
        samples: for "sampled", the number of draws.

    Returns:
        Whole numbers in the shape of `ens.var(x, t)`; one `int` for all samples at once, or its `Sampled` record.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import InfiniteEnsemble, bounds, filters, stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(64, 1.5, 0.1), stax.Relu(), stax.Dense(1))
        >>> ens = InfiniteEnsemble(kernel_fn, (jnp.eye(2), jnp.ones(2)), filters.gradient_flow(1.0))
        >>> x = jnp.array([[1.0, 0.0], [1.0, 1.0], [-1.0, 0.0]])
        >>> print(bounds.required_members(ens, x, 10.0, 0.1, 0.05))
        [  1  59 200]
        >>> bounds.required_members(ens, x, 10.0, 0.1, 0.05, simultaneous="sidak")
        201
    """
    check_ensemble(ens)
    single_time(t)
    check_deviation(delta)
    channels = 1 if ens.y.ndim == 1 else ens.y.shape[-1]
    check_law(bound, channels, norm)
    if simultaneous is None:
        check_probability(epsilon)
        return smallest_size(ens.var(x, t), delta, epsilon, bound, channels, norm)
    one_of(simultaneous, (*METHODS, "sampled"), "simultaneous")
    one_of(bound, ("exact",), "bound")
    epsilon = single_probability(epsilon)
    if simultaneous != "sampled":
        return _size_for_all(ens.var(x, t), delta, epsilon, simultaneous, channels, norm)
    if key is None:
        raise refusal("key", expected="given for sampling", got="nothing", fix="Pass `jax.random.key(0)`, say.")
    random_key(key)
    positive_integer(samples, "samples")
    return _sampled_size(joint(ens.cov(x, t)), delta, epsilon, key, samples, channels, norm)


def _size_for_all(variance: Numbers, delta: Numbers, epsilon: float, method: str, channels: int, norm: str) -> int:
    """Return the smallest M for which the probability that any sample exceeds its δ is at most ε, by bisection."""
    precision = _precisions(variance, delta)
    with np.errstate(divide="ignore", over="ignore"):
        largest = np.max(1 / precision, initial=0.0)
    if np.isinf(largest):
        round_up(largest)  # refuses, and says why
    # Between what the worst sample needs, and what a union over samples as bad as it needs.
    low = smallest_size(largest, 1.0, epsilon, "exact", channels, norm)
    high = smallest_size(largest, 1.0, epsilon / max(precision.size, 1), "exact", channels, norm) + 1
    while low < high:
        middle = (low + high) // 2
        enough = _probability_of_any(precision * middle, method, channels, norm) <= epsilon
        low, high = (low, middle) if enough else (middle + 1, high)
    return low


def _sampled_size(
    covariance: Numbers, delta: Numbers, epsilon: float, key: jax.Array, samples: int, channels: int, norm: str
) -> Sampled:
    """Return the quantile of max_i ‖Z_i‖²/δ_i² over draws, rounded up."""
    smallest = min(float(np.min(delta)), LARGEST_DEVIATION)
    root = covariance_root(covariance, NEGLIGIBLE * smallest**2)
    inverse = 1 / deviation_of_each(delta, root.shape[:1])
    keys, each = split_draws(key, samples, root.shape[0] * channels)
    law = (jnp.asarray(root), jnp.asarray(inverse))
    draws = [_draw_largest(k, *law, each, channels, norm) for k in keys]
    with np.errstate(over="ignore"):
        squares = np.concatenate([np.asarray(d) for d in draws])[:samples] ** 2
    members = Sampled.quantile(squares, epsilon)
    if np.isinf(members.value):
        round_up(members.value)  # refuses, and says why
    return round_up_sampled(members, epsilon)


@partial(jax.jit, static_argnames=("count", "channels", "norm"))
def _draw_largest(
    key: jax.Array, root: jax.Array, inverse: jax.Array, count: int, channels: int, norm: str
) -> jax.Array:
    """Return max_i ‖Z_i‖/δ_i of each of `count` draws, from the root of Σ and 1/δ."""
    Z = jnp.einsum("ij,sjc->sic", root, jax.random.normal(key, (count, root.shape[1], channels), root.dtype))
    sizes = jnp.abs(Z).max(-1) if norm == "max" else jnp.sqrt(jnp.sum(Z**2, -1))
    return jnp.max(sizes * inverse[None], axis=1)


def _precisions(variance: Numbers, delta: Numbers) -> np.ndarray:
    """Return δ²/Σ at each sample with a variance, as one axis. The other samples never deviate."""
    known = np.asarray(variance, dtype=float)
    each = deviation_of_each(delta, known.shape)
    with np.errstate(over="ignore"):
        return each[known > 0] * (each[known > 0] / known[known > 0])  # δ² itself may underflow


def _probability_of_any(r: np.ndarray, method: str, channels: int, norm: str) -> float:
    """Return the bound on the probability that any sample deviates too far, from r = Mδ²/Σ of each."""
    single = tail(r, "exact", channels, norm, ON_HOST)
    if method == "union":
        return float(min(np.sum(single), 1.0))
    with np.errstate(divide="ignore"):
        return float(-np.expm1(np.sum(np.log1p(-single)))) + 0.0  # never -0.0
