"""Metrics of many functions at once, from log-probabilities [functions, n, classes].

A function is one member, an ensemble, or one of many ensembles that were drawn. A metric returns `Scores`: its value
for each function, and what each sample contributes to it, from which standard errors over samples follow,

    accuracy, likelihood, Brier score    the score of the sample
    calibration error                    the jackknife pseudo-value |sum_b| − |sum_b − excess|, with bins as they are
    AUROC                                DeLong's component: the fraction of the other kind that the sample beats
"""

from typing import NamedTuple

import numpy as np
import scipy.special
import scipy.stats
from jaxtyping import Float

Array = np.ndarray
# What an ensemble may average.
AVERAGES = ("probabilities", "logits")


class Scores(NamedTuple):
    """A metric of several functions.

    Attributes:
        values: one for each function.
        parts: what each sample contributes, for each set of samples: a value scatters over sets of n samples as the
            mean of n such contributions does.
    """

    values: Float[Array, "functions"]
    parts: tuple[Array, ...]

    @property
    def errors(self) -> Float[Array, "functions"]:
        """The standard errors of the values over samples; NaN if there is only one."""
        return np.sqrt(sum((variance_of_mean(part) for part in self.parts), np.zeros(len(self.values))))


def variance_of_mean(part: Array) -> Array:
    """Return the variance of a mean over samples, the last axis, from the scatter of these; NaN if there is one."""
    count = part.shape[-1]
    return np.asarray(np.var(part, axis=-1, ddof=1) / count if count > 1 else np.full(part.shape[:-1], np.nan))


def score_accuracy(log_p: Array, y: Array) -> Scores:
    """Return the fraction of samples that each function classifies right."""
    return _mean_of((np.argmax(log_p, axis=-1) == y).astype(float))


def score_likelihood(log_p: Array, y: Array) -> Scores:
    """Return the negative log-likelihood of each function."""
    return _mean_of(-log_p[:, np.arange(len(y)), y])


def score_brier(log_p: Array, y: Array) -> Scores:
    """Return the Brier score of each function."""
    return _mean_of(np.sum((np.exp(log_p) - np.eye(log_p.shape[-1])[y]) ** 2, axis=-1))


def score_calibration(log_p: Array, y: Array, *, bins: int, adaptive: bool) -> Scores:
    """Return the calibration error of each function, and how much each sample adds with bins as they are."""
    confidence, excess = _excess_accuracy(log_p, y)
    numbers = _bin_numbers(confidence, bins, adaptive=adaptive)
    sums = _sums_of_bins(numbers, excess, bins)
    own = np.take_along_axis(sums, numbers, axis=1)
    # Without one sample the n − 1 others would have (Σ_b |sum_b| − part)/(n − 1): these are jackknife pseudo-values.
    return Scores(np.abs(sums).sum(axis=1) / len(y), (np.abs(own) - np.abs(own - excess),))


def noise_of_bins(log_p: Array, *, bins: int, adaptive: bool) -> Array:
    """Return mean and standard deviation of the calibration error of each function if confidences are right."""
    confidence = np.exp(log_p.max(axis=-1))
    numbers = _bin_numbers(confidence, bins, adaptive=adaptive)
    return np.array([_noise_of_one(*row) for row in zip(confidence, numbers, strict=True)]).T


def score_confidence(log_p: Array, unknown: Array) -> Scores:
    """Return how well confidence tells known samples from unknown ones, for each function."""
    return score_auroc(log_p.max(axis=-1), unknown.max(axis=-1))


def score_auroc(high: Array, low: Array) -> Scores:
    """Return P(high > low) + ½ P(high = low) over all pairs, in each row, with DeLong's components."""
    n, m = high.shape[1], low.shape[1]
    ranks = scipy.stats.rankdata(np.concatenate([high, low], axis=1), axis=1)
    # How many of the others each one beats, from its rank among all and among its own.
    of_high = (ranks[:, :n] - scipy.stats.rankdata(high, axis=1)) / m
    of_low = 1 - (ranks[:, n:] - scipy.stats.rankdata(low, axis=1)) / n
    return Scores(of_high.mean(axis=1), (of_high, of_low))


class Reliability(NamedTuple):
    """What a reliability diagram shows: a row for each bin that holds samples.

    Attributes:
        confidence: the mean confidence of its samples.
        accuracy: how many of them were classified right, as a fraction.
        error: the standard error of that.
        samples: how many samples it holds.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv import metrics
        >>> metrics.reliability(np.log([[[0.9, 0.1]]]), [0])._fields
        ('confidence', 'accuracy', 'error', 'samples')
    """

    confidence: Float[Array, "bins"]
    accuracy: Float[Array, "bins"]
    error: Float[Array, "bins"]
    samples: Array


def count_in_bins(log_p: Array, y: Array, *, bins: int, adaptive: bool) -> Array:
    """Return for how many functions each sample is in each bin, is right there, and its confidences, [3, n, bins]."""
    confidence, excess = _excess_accuracy(log_p, y)
    places = _bin_numbers(confidence, bins, adaptive=adaptive) + bins * np.arange(len(y))
    weights = (np.ones_like(confidence), confidence + excess, confidence)
    counts = [np.bincount(places.ravel(), weight.ravel(), bins * len(y)) for weight in weights]
    return np.reshape(counts, (3, len(y), bins))


def reliability_of_counts(counts: Array) -> Reliability:
    """Return the reliability diagram of all functions in `counts` together; `samples` is the mean number of one."""
    counts = counts / counts[0, 0].sum()  # a sample is in one bin of each function
    often, right, sure = counts[:, :, counts[0].sum(axis=0) > 0]
    count = often.sum(axis=0)
    accuracy = right.sum(axis=0) / count
    # The error of a ratio of sums over samples, of which there are effectively so many in the bin.
    effective = count**2 / np.sum(often**2, axis=0)
    squares = np.sum((right - accuracy * often) ** 2, axis=0) / count**2
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.where(effective > 1, np.sqrt(squares * effective / (effective - 1)), np.nan)
    return Reliability(sure.sum(axis=0) / count, accuracy, error, count)


def average_members(log_p: Array, average: str) -> Array:
    """Return the log-probabilities of ensembles, [..., n, classes], from [..., members, n, classes]."""
    if average == "probabilities":
        return scipy.special.logsumexp(log_p, axis=-3) - np.log(log_p.shape[-3])
    return scipy.special.log_softmax(np.mean(log_p, axis=-3), axis=-1)


def mutual_information(log_p: Array) -> Array:
    """Return H(mean_m p_m) − mean_m H(p_m) of ensembles, [..., n], from members [..., members, n, classes]."""
    return entropy(average_members(log_p, "probabilities")) - np.mean(entropy(log_p), axis=-2)


def entropy(log_p: Array) -> Array:
    """Return −Σ_c p_c log p_c, in nats."""
    return np.sum(scipy.special.entr(np.exp(log_p)), axis=-1)


def _mean_of(values: Array) -> Scores:
    return Scores(values.mean(axis=1), (values,))


def _excess_accuracy(log_p: Array, y: Array) -> tuple[Array, Array]:
    """Return the confidence at each sample, and 1 or 0 for right or wrong minus this confidence."""
    confidence = np.exp(log_p.max(axis=-1))
    return confidence, (np.argmax(log_p, axis=-1) == y) - confidence


def _bin_numbers(confidence: Array, bins: int, *, adaptive: bool) -> Array:
    """Return in which bin each sample is, [functions, n]."""
    if not adaptive:
        return np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    n = confidence.shape[1]
    of_rank = np.repeat(np.arange(bins), [len(part) for part in np.array_split(np.arange(n), bins)])
    numbers = np.empty(confidence.shape, int)
    order = np.argsort(confidence, axis=1, kind="stable")
    np.put_along_axis(numbers, order, np.broadcast_to(of_rank, order.shape), axis=1)
    return numbers


def _sums_of_bins(numbers: Array, values: Array, bins: int) -> Array:
    """Return the sum of values in each bin, [functions, bins]."""
    count = len(numbers)
    places = numbers + bins * np.arange(count)[:, None]
    return np.bincount(places.ravel(), values.ravel(), bins * count).reshape(count, bins)


def _noise_of_one(confidence: Array, numbers: Array) -> tuple[float, float]:
    mean = variance = 0.0
    for number in np.unique(numbers):
        chances = confidence[numbers == number]
        law = _law_of_count(chances)
        off = np.abs(np.arange(len(law)) - chances.sum())
        mean += law @ off
        variance += law @ off**2 - (law @ off) ** 2
    return mean / len(confidence), float(np.sqrt(max(variance, 0.0))) / len(confidence)


def _law_of_count(chances: Array) -> Array:
    """Return the probabilities of 0, 1, … events, if they happen independently with these chances."""
    if len(chances) == 1:
        return np.array([1 - chances[0], chances[0]])
    half = len(chances) // 2
    return np.convolve(_law_of_count(chances[:half]), _law_of_count(chances[half:]))
