"""How good class probabilities are: of each member, and of the ensemble.

Members predict logits [members, n, classes]. An ensemble averages them in one of two ways,

    probabilities     p(c | x) = mean_m softmax(f_m(x))_c
    logits            p(c | x) = softmax(mean_m f_m(x))_c

and every metric is reported for both ways and for each member. With y the class of a sample, and its predicted class
the one with the largest probability, the confidence,

    `accuracy`                   mean 1[predicted = y]
    `negative_log_likelihood`    mean −log p(y | x), in nats
    `brier_score`                mean Σ_c (p(c | x) − 1[c = y])²
    `calibration_error`          Σ_b n_b/n |accuracy_b − confidence_b|, over bins b of confidence (ECE)
    `calibration_noise`          its expected value if the probabilities are right: absolute values of noise
    `confidence_auroc`           P(confidence at a known sample > at an unknown one), ties counted half
    `disagreement_auroc`         the same with the mutual information H(mean_m p_m) − mean_m H(p_m), the other way round

Standard errors are over samples. That of the calibration error is a jackknife with fixed bins, and up to a third too
large; those of AUROCs are DeLong's. A bin of confidence includes its upper edge. Adaptive bins hold equally many
samples, the first ones one more where the number of bins does not divide that of samples.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy.optimize
import scipy.special
from jaxtyping import Float

from ntk_equiv._check import boolean, floating, is_number, one_of, positive_integer, refusal
from ntk_equiv._typing import Scalar
from ntk_equiv.metrics._scores import (
    AVERAGES,
    Reliability,
    Scores,
    average_members,
    count_in_bins,
    mutual_information,
    noise_of_bins,
    reliability_of_counts,
    score_accuracy,
    score_auroc,
    score_brier,
    score_calibration,
    score_confidence,
    score_likelihood,
)

Array = np.ndarray
# Inverse temperatures between which one is looked for.
COLDEST, HOTTEST = 1e6, 1e-6


class Measured(NamedTuple):
    """A number with its standard error over samples.

    Example:
        >>> from ntk_equiv.metrics import Measured
        >>> print(Measured(0.5, 0.01))
        0.5 ± 0.01
    """

    value: float
    error: float

    def __str__(self) -> str:
        return f"{self.value:.4g} ± {self.error:.2g}"


@dataclasses.dataclass(frozen=True, repr=False)
class ClassificationMetric:
    """A metric of class probabilities, with standard errors over samples (NaN if there is only one).

    Attributes:
        probabilities: of the ensemble that averages the probabilities of its members.
        logits: of the ensemble that averages their logits.
        members: of each member.
        member_errors: their standard errors.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv import metrics
        >>> logits = np.log([[[0.9, 0.1], [0.6, 0.4]], [[0.9, 0.1], [0.2, 0.8]]])          # two members, two samples
        >>> metrics.accuracy(logits, [0, 1])
        <1 ± 0 by probabilities, 1 ± 0 by logits, 0.75 for one of 2 members>
    """

    probabilities: Measured
    logits: Measured
    members: Float[Array, "members"]
    member_errors: Float[Array, "members"]

    def __repr__(self) -> str:
        count, one = len(self.members), float(np.mean(self.members))
        ways = f"{self.probabilities} by probabilities, {self.logits} by logits"
        return f"<{ways}, {one:.4g} for one of {count} member{'s' * (count != 1)}>"


def accuracy(logits: Any, labels: Any, /) -> ClassificationMetric:
    """How often the class with the largest probability is the right one.

    Args:
        logits: [members, n, classes]; log-probabilities are logits too.
        labels: the classes of the samples, whole numbers [n].

    Example:
        >>> import numpy as np
        >>> from ntk_equiv.metrics import accuracy
        >>> accuracy(np.eye(3)[None], [0, 1, 0]).members.round(4).tolist()
        [0.6667]
    """
    return _measure(score_accuracy, *_check_logits_and_labels(logits, labels))


def negative_log_likelihood(logits: Any, labels: Any, /) -> ClassificationMetric:
    """The mean of −log p(y | x), in nats.

    Args:
        logits: [members, n, classes].
        labels: the classes of the samples, whole numbers [n].

    Example:
        >>> import numpy as np
        >>> from ntk_equiv.metrics import negative_log_likelihood
        >>> round(negative_log_likelihood(np.zeros((1, 5, 4)), [0, 1, 2, 3, 0]).logits.value, 4)      # log 4
        1.3863
    """
    return _measure(score_likelihood, *_check_logits_and_labels(logits, labels))


def brier_score(logits: Any, labels: Any, /) -> ClassificationMetric:
    """The squared distance of the probabilities from the right answer, summed over classes: between 0 and 2.

    Args:
        logits: [members, n, classes].
        labels: the classes of the samples, whole numbers [n].

    Example:
        >>> import numpy as np
        >>> from ntk_equiv.metrics import brier_score
        >>> round(brier_score(np.log([[[0.75, 0.25]]]), [0]).logits.value, 4)           # (1/4)² + (1/4)²
        0.125
    """
    return _measure(score_brier, *_check_logits_and_labels(logits, labels))


def calibration_error(logits: Any, labels: Any, /, *, bins: int = 15, adaptive: bool = False) -> ClassificationMetric:
    """The difference between accuracy and confidence, averaged over bins of confidence (ECE).

    On few samples it is too large even if the probabilities are right; `calibration_noise` says by how much.

    Args:
        logits: [members, n, classes].
        labels: the classes of the samples, whole numbers [n].
        bins: how many.
        adaptive: whether each bin holds the same number of samples; otherwise bins are equally wide.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv.metrics import calibration_error
        >>> sure = np.log([[[0.9, 0.1]] * 10])
        >>> [round(calibration_error(sure, y).logits.value, 6) for y in ([0] * 9 + [1], [0] * 10)]
        [0.0, 0.1]
    """
    bins, adaptive = positive_integer(bins, "bins"), boolean(adaptive, "adaptive")
    score = partial(score_calibration, bins=bins, adaptive=adaptive)
    return _measure(score, *_check_logits_and_labels(logits, labels))


def calibration_noise(logits: Any, /, *, bins: int = 15, adaptive: bool = False) -> ClassificationMetric:
    """The calibration error to expect on these samples if the probabilities are right.

    A sample is then classified right with the probability that its confidence states, so the number of right ones in a
    bin has a Poisson binomial law, and E|right − Σ confidence| is a finite sum. A measured calibration error says that
    probabilities are wrong only as far as it is above this.

    Args:
        logits: [members, n, classes].
        bins: how many.
        adaptive: as for `calibration_error`.

    Returns:
        Expected values; their errors are the standard deviations of the calibration error about these, over labels.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv.metrics import calibration_noise
        >>> sure = np.log([[[0.9, 0.1]]])
        >>> [round(calibration_noise(np.repeat(sure, n, axis=1)).logits.value, 4) for n in (1, 100)]
        [0.18, 0.0237]
    """
    bins, adaptive = positive_integer(bins, "bins"), boolean(adaptive, "adaptive")
    functions = _ensembles_and_members(_check_logits(logits, "logits"))
    return _as_metric(*noise_of_bins(functions, bins=bins, adaptive=adaptive))


def reliability(
    logits: Any, labels: Any, /, *, bins: int = 15, adaptive: bool = False, average: str = "probabilities"
) -> Reliability:
    """Return accuracy against confidence, the content of a reliability diagram.

    Args:
        logits: [members, n, classes].
        labels: the classes of the samples, whole numbers [n].
        bins: how many.
        adaptive: whether each bin holds the same number of samples; otherwise bins are equally wide.
        average: what the ensemble averages, "probabilities" or "logits".

    Example:
        >>> import numpy as np
        >>> from ntk_equiv.metrics import reliability
        >>> found = reliability(np.log([[[0.9, 0.1]] * 10]), [0] * 8 + [1] * 2)
        >>> found.confidence.round(4).tolist(), found.accuracy.tolist(), found.samples.tolist()
        ([0.9], [0.8], [10])
    """
    log_p, y = _check_logits_and_labels(logits, labels)
    bins, adaptive = positive_integer(bins, "bins"), boolean(adaptive, "adaptive")
    found = reliability_of_counts(count_in_bins(_average(log_p, average)[None], y, bins=bins, adaptive=adaptive))
    return found._replace(samples=found.samples.astype(int))


def confidence_auroc(logits: Any, unknown: Any, /) -> ClassificationMetric:
    """How well confidence tells known samples from unknown ones: 1 for always, 1/2 for not at all.

    Args:
        logits: at known samples, [members, n, classes].
        unknown: at samples of another kind, [members, m, classes].

    Example:
        >>> import numpy as np
        >>> from ntk_equiv.metrics import confidence_auroc
        >>> known, unknown = np.log([[[0.9, 0.1], [0.8, 0.2]]]), np.log([[[0.6, 0.4], [0.85, 0.15]]])
        >>> confidence_auroc(known, unknown).logits.value            # three pairs of four in the right order
        0.75
    """
    inside, outside = _check_two_sets(logits, unknown)
    return _measure(score_confidence, inside, _ensembles_and_members(outside))


def disagreement_auroc(logits: Any, unknown: Any, /) -> Measured:
    """How well the disagreement of members tells unknown samples from known ones: 1 for always, 1/2 for not at all.

    Disagreement is the mutual information of class and member, H(mean_m p_m) − mean_m H(p_m).

    Args:
        logits: at known samples, [members, n, classes], of at least two members.
        unknown: at samples of another kind, [members, m, classes].

    Example:
        >>> import numpy as np
        >>> from ntk_equiv.metrics import disagreement_auroc
        >>> agree, differ = [[0.9, 0.1]], [[0.1, 0.9]]
        >>> disagreement_auroc(np.log([agree, agree]), np.log([agree, differ])).value
        1.0
    """
    inside, outside = _check_two_sets(logits, unknown)
    if len(inside) < 2:
        fix = "One member alone never disagrees; use `confidence_auroc`."
        raise refusal("logits", expected="those of at least two members", got="one member", fix=fix)
    scores = score_auroc(-mutual_information(inside[None]), -mutual_information(outside[None]))
    return Measured(float(scores.values[0]), float(scores.errors[0]))


def ensemble_probabilities(logits: Any, /, *, average: str = "probabilities", temperature: Scalar = 1.0) -> Array:
    """Return the class probabilities of an ensemble, [n, classes].

    Args:
        logits: [members, n, classes].
        average: what is averaged over members, "probabilities" or "logits".
        temperature: what log-probabilities are divided by after the average; see `fit_temperature`.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv.metrics import ensemble_probabilities
        >>> logits = np.log([[[0.9, 0.1]], [[0.5, 0.5]]])
        >>> print(ensemble_probabilities(logits), ensemble_probabilities(logits, average="logits"))
        [[0.7 0.3]] [[0.75 0.25]]
    """
    log_p = _average(_check_logits(logits, "logits"), average)
    if not is_number(temperature) or not float(temperature) > 0:
        fix = "Find one with `fit_temperature`; 1 changes nothing."
        raise refusal("temperature", expected="one positive number", got=repr(temperature), fix=fix)
    return scipy.special.softmax(log_p / float(temperature), axis=-1)


def fit_temperature(logits: Any, labels: Any, /, *, average: str = "probabilities", smoothing: Scalar = 0.0) -> float:
    """Return the temperature at which an ensemble has the largest likelihood: fitted after averaging.

    Args:
        logits: [members, n, classes], at samples that were not used for training.
        labels: the classes of the samples, whole numbers [n].
        average: what the ensemble averages, "probabilities" or "logits".
        smoothing: the fraction of each label that is spread evenly over all classes. With a little of it, such as
            1/(n + 1), there is a best temperature even if every sample is classified right.

    Raises:
        ValueError: no temperature is the best, because every sample is classified right, or because the predictions are
            no better than chance.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv.metrics import fit_temperature
        >>> too_sure = 2 * np.log([[[0.9, 0.1]] * 10])             # right in nine of ten cases
        >>> round(fit_temperature(too_sure, [0] * 9 + [1], average="logits"), 4)
        2.0
    """
    log_p, y = _check_logits_and_labels(logits, labels)
    z = _average(log_p, average)
    if not is_number(smoothing) or not 0 <= float(smoothing) < 1:
        fix = "It is a fraction of each label; 0 leaves labels as they are."
        raise refusal("smoothing", expected="from 0 to below 1", got=repr(smoothing), fix=fix)
    own = z[np.arange(len(y)), y]
    if smoothing:
        own = (1 - smoothing) * own + smoothing * z.mean(axis=-1)

    def slope(inverse: float) -> float:
        """The derivative of the negative log-likelihood by 1/T, which increases with it."""
        with np.errstate(invalid="ignore"):
            expected = np.sum(np.where(np.isinf(z), 0.0, scipy.special.softmax(inverse * z, axis=-1) * z), axis=-1)
        return float(np.mean(expected - own))

    if not slope(HOTTEST) < 0 < slope(COLDEST):
        got = "predictions no better than chance" if slope(HOTTEST) >= 0 else "every sample classified right"
        fix = "Take more samples, which were not used for training."
        raise refusal("logits", expected="some predictions right, and some wrong", got=got, fix=fix)
    return 1 / float(scipy.optimize.brentq(slope, HOTTEST, COLDEST, xtol=1e-14, rtol=1e-12))


# Both ensembles, and each member


def _average(log_p: Array, average: str) -> Array:
    return average_members(log_p, one_of(average, AVERAGES, "average"))


def _ensembles_and_members(log_p: Array) -> Array:
    """Return both ensembles followed by each member, as functions [2 + members, n, classes]."""
    return np.concatenate([np.stack([_average(log_p, average) for average in AVERAGES]), log_p])


def _measure(score: Callable[..., Scores], log_p: Array, other: Array) -> ClassificationMetric:
    """Apply a metric to both ensembles and to each member; `other` are labels, or functions at unknown samples."""
    scores = score(_ensembles_and_members(log_p), other)
    return _as_metric(scores.values, scores.errors)


def _as_metric(values: Array, errors: Array) -> ClassificationMetric:
    probabilities, logits = (Measured(float(values[way]), float(errors[way])) for way in range(len(AVERAGES)))
    return ClassificationMetric(probabilities, logits, values[len(AVERAGES) :], errors[len(AVERAGES) :])


# Checks


def _check_logits(logits: Any, argument: str) -> Array:
    """Return log-probabilities of members, [members, n, classes], in double precision."""
    z = np.asarray(floating(logits, argument), float)
    if z.ndim != 3 or 0 in z.shape or z.shape[-1] < 2:
        fix = f"One network alone is an ensemble of one: `{argument}[None]`."
        raise refusal(argument, expected="[members, n, classes], none empty", got=f"shape {z.shape}", fix=fix)
    if np.isnan(z).any() or (z == np.inf).any() or (z == -np.inf).all(axis=-1).any():
        fix = "Look for members whose training has failed, with `run.failed`."
        raise refusal(argument, expected="finite, or -inf for impossible classes", got="NaN or infinity", fix=fix)
    return scipy.special.log_softmax(z, axis=-1)


def _check_logits_and_labels(logits: Any, labels: Any) -> tuple[Array, Array]:
    log_p = _check_logits(logits, "logits")
    return log_p, check_classes(labels, *log_p.shape[1:])


def check_classes(labels: Any, n: int, classes: int) -> Array:
    """Return the classes of n samples as whole numbers [n]."""
    y = np.asarray(labels)
    if y.shape != (n,) or y.dtype.kind not in "iu":
        fix = "Give each sample the number of its class; `jnp.argmax(one_hot, axis=-1)` for one-hot labels."
        raise refusal("labels", expected=f"whole numbers [{n}]", got=f"{y.dtype} of shape {y.shape}", fix=fix)
    if y.min() < 0 or y.max() >= classes:
        got = int(y.min()) if y.min() < 0 else int(y.max())
        fix = f"The logits have {classes} classes, counted from 0."
        raise refusal("labels", expected=f"classes 0 to {classes - 1}", got=got, fix=fix)
    return y


def _check_two_sets(logits: Any, unknown: Any) -> tuple[Array, Array]:
    inside, outside = _check_logits(logits, "logits"), _check_logits(unknown, "unknown")
    if (len(inside), inside.shape[-1]) != (len(outside), outside.shape[-1]):
        expected = f"[{len(inside)}, m, {inside.shape[-1]}], the same members and classes"
        fix = "Predict both sets of samples with the same ensemble."
        raise refusal("unknown", expected=expected, got=f"shape {outside.shape}", fix=fix)
    return inside, outside
