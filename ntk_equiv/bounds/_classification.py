"""How good the class probabilities of M members will be, before any is trained.

Members f_m are drawn from their law, their logits are z_m = scale · f_m, and an ensemble averages either of

    probabilities     p̂ = mean_m softmax(z_m)
    logits            p̂ = softmax(mean_m z_m)

`expected_metrics` returns the expectation over ensembles of every metric in `ntk_equiv.metrics`, for any M and for
M = ∞. Members are drawn once. An ensemble of M is a group of M of them. Groups are disjoint, so they are independent.
Where members are Gaussian, as in an `InfiniteEnsemble`, the mean of M logits is μ + N/√M with the noise N of one
member, so that every draw is an ensemble of every size, and M = ∞ is known exactly.

Each number comes with three spreads, which are kept apart:

    sampling_error    its standard error over draws of members; more draws make it smaller
    test_error        its standard error over test samples: how far another test set of this size would be off
    scatter           the standard deviation of one real ensemble of M members about it
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.special
from jaxtyping import Float

from ntk_equiv._check import (
    is_listed,
    one_of,
    positive_integer,
    random_key,
    refusal,
    samples_in,
    single_time,
)
from ntk_equiv._machine import check_fits
from ntk_equiv._typing import Inputs, Scalar
from ntk_equiv.bounds._checks import Numbers
from ntk_equiv.bounds._gaussian import NUMBERS_AT_ONCE
from ntk_equiv.bounds._member_law import (
    MemberLaw,
    MembersToDraw,
    check_draws,
    check_scale,
    join_samples,
    log_softmax,
    member_law,
)
from ntk_equiv.bounds._results import Expected, jackknife_error
from ntk_equiv.metrics import (
    AVERAGES,
    Reliability,
    Scores,
    average_members,
    check_classes,
    count_in_bins,
    entropy,
    reliability_of_counts,
    score_accuracy,
    score_auroc,
    score_brier,
    score_calibration,
    score_confidence,
    score_likelihood,
    variance_of_mean,
)

Array = np.ndarray
OF_LABELS = ("accuracy", "negative_log_likelihood", "brier_score", "calibration_error", "adaptive_calibration_error")
OF_UNKNOWN = ("confidence_auroc", "disagreement_auroc")
# The values of these are smooth in the probabilities, so that a finite number of draws shifts them by O(1/draws).
SMOOTH = ("negative_log_likelihood", "brier_score")
# Draws unless given, and how many ensembles of the largest size they make.
DRAWS, ENSEMBLES = 1000, 10
# Into how many blocks all draws are divided, for the error of what is computed from all of them.
BLOCKS = 32


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ExpectedMetric:
    """The expectation of one metric, for every size of ensemble that was asked for and for infinitely many members.

    Attributes:
        members: the sizes, the last one infinite, [sizes].
        probabilities: of ensembles that average probabilities, arrays [sizes]; None if not asked for.
        logits: of ensembles that average logits; None if not asked for. The disagreement of members has only the first.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv.bounds import Expected, ExpectedMetric
        >>> found = Expected(*np.array([[0.8, 0.9], [0.01, 0.0], [0.05, 0.04], [0.03, 0.0]]))
        >>> accuracy = ExpectedMetric(np.array([10, np.inf]), None, found)
        >>> accuracy
        <by logits: 0.8 for 10, 0.9 for ∞ members>
        >>> print(accuracy.at(10, average="logits"))
        0.8 ± 0.01 (draws) ± 0.05 (test set), one ensemble ± 0.03
    """

    members: Float[Array, "sizes"]
    probabilities: Expected | None
    logits: Expected | None

    def __repr__(self) -> str:
        ways = []
        for average in AVERAGES:
            found = getattr(self, average)
            if found is not None:
                pairs = zip(found.value, self.members, strict=True)
                ways.append(f"by {average}: " + ", ".join(f"{value:.3g} for {_name_of(size)}" for value, size in pairs))
        return f"<{'; '.join(ways)} members>"

    def at(self, members: Numbers, *, average: str = "probabilities") -> Expected:
        """Return the expectation for one size, which may be infinite.

        Args:
            members: one of the sizes.
            average: what the ensemble averages, "probabilities" or "logits".
        """
        found = _check_asked(getattr(self, one_of(average, AVERAGES, "average")), average)
        place = _place_of(self.members, members)
        return Expected(*(float(numbers[place]) for numbers in found))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ExpectedMetrics:
    """What to expect of class probabilities, made by `expected_metrics`. What was not asked for is None.

    Attributes:
        members: the sizes of ensembles, the last one infinite, [sizes].
        accuracy: how often the class with the largest probability is the right one.
        negative_log_likelihood: in nats.
        brier_score: the squared distance of probabilities from the right answer.
        calibration_error: over bins of confidence that are equally wide.
        adaptive_calibration_error: over bins that hold equally many samples.
        confidence_auroc: how well confidence tells known samples from unknown ones.
        disagreement_auroc: how well disagreement does; NaN for one member.
        diagrams: reliability diagrams by what is averaged, one for each size; `reliability` returns one of them.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from ntk_equiv import InfiniteEnsemble, bounds, stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(64, 1.5, 0.1), stax.Relu(), stax.Dense(1))
        >>> x, labels = jnp.array([[1.0, 2.0], [0.5, -1.0], [-1.0, 0.3]]), jnp.array([0, 1, 1])
        >>> ens = InfiniteEnsemble(kernel_fn, (x, jax.nn.one_hot(labels, 2) - 0.5))
        >>> found = bounds.expected_metrics(ens, x, labels, 1.0, members=10, key=jax.random.key(0), scale=3.0)
        >>> found
        <expected metrics for 10, ∞ members>
        >>> round(found.accuracy.at(jnp.inf, average="logits").value, 3), found.confidence_auroc
        (1.0, None)
        >>> print(found.reliability(10).samples.sum().round(6))
        3.0
    """

    members: Float[Array, "sizes"]
    accuracy: ExpectedMetric | None
    negative_log_likelihood: ExpectedMetric | None
    brier_score: ExpectedMetric | None
    calibration_error: ExpectedMetric | None
    adaptive_calibration_error: ExpectedMetric | None
    confidence_auroc: ExpectedMetric | None
    disagreement_auroc: ExpectedMetric | None
    diagrams: dict[str, tuple[Reliability, ...]]

    def __repr__(self) -> str:
        return f"<expected metrics for {', '.join(map(_name_of, self.members))} members>"

    def reliability(self, members: Numbers, *, average: str = "probabilities") -> Reliability:
        """Return accuracy against confidence over all ensembles of one size that were drawn.

        Args:
            members: one of the sizes.
            average: what the ensemble averages, "probabilities" or "logits".

        Returns:
            Its `samples` are expected numbers, and its errors are over test samples.
        """
        found = _check_asked(self.diagrams.get(one_of(average, AVERAGES, "average")), average)
        return found[_place_of(self.members, members)]


def expected_metrics(
    ens: MembersToDraw,
    x: Inputs,
    labels: Any,
    t: Scalar | None = None,
    *,
    members: Any,
    key: jax.Array,
    unknown: Inputs | None = None,
    scale: Scalar = 1.0,
    average: str | None = None,
    metrics: Any = None,
    bins: int = 15,
    draws: int | None = None,
) -> ExpectedMetrics:
    """What to expect of the class probabilities of M members at time t: accuracy, likelihood, calibration, AUROCs.

    Results for several sizes come from the same draws: they differ by less than their sampling errors say.

    Args:
        ens: an `InfiniteEnsemble`, or anything with a method `sample(key, x, t, members)` that returns the outputs
            [members, n, classes] of independent members.
        x: test samples that were not used for training, [n, ...].
        labels: their classes, whole numbers [n].
        t: one training time; None for that of the filter.
        members: M, or several sizes; infinitely many members are always added.
        key: a JAX random key.
        unknown: samples of another kind, [m, ...], for the AUROCs.
        scale: what outputs are multiplied by to become logits; 1/T for a temperature T.
        average: what ensembles average, "probabilities" or "logits"; both unless given.
        metrics: names of some metrics, the attributes of the result; all unless given.
        bins: for calibration errors and reliability diagrams.
        draws: how many members are drawn; unless given, 1000, or ten times the largest size if that is more.

    Returns:
        A record with a metric in each attribute: `found.accuracy.at(10, average="logits")`.

    Raises:
        ValueError: labels or outputs do not fit together, or the draws are not enough for two ensembles of each size.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from ntk_equiv import InfiniteEnsemble, bounds, stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(64, 1.5, 0.1), stax.Relu(), stax.Dense(1))
        >>> x, labels = jnp.array([[1.0, 2.0], [0.5, -1.0], [-1.0, 0.3]]), jnp.array([0, 1, 1])
        >>> ens = InfiniteEnsemble(kernel_fn, (x, jax.nn.one_hot(labels, 2) - 0.5))
        >>> test, truth = jnp.array([[0.5, 0.5], [0.2, -0.4]]), jnp.array([0, 1])
        >>> found = bounds.expected_metrics(ens, test, truth, 1.0, members=[1, 100], key=jax.random.key(0))
        >>> print(found.negative_log_likelihood.logits.value.round(2))       # of 1, of 100 and of all members
        [0.6 0.57 0.57]
    """
    single_time(t)
    random_key(key)
    sizes = _check_sizes(members)
    ways = AVERAGES if average is None else (one_of(average, AVERAGES, "average"),)
    names = _check_names(metrics, unknown is not None)
    count = max(DRAWS, ENSEMBLES * max(sizes)) if draws is None else positive_integer(draws, "draws")
    scale, bins, n = check_scale(scale), positive_integer(bins, "bins"), samples_in(x, "x")
    law = member_law(ens, x if unknown is None else join_samples(x, unknown), t)
    return metrics_of_law(law, labels, n, sizes, key=key, scale=scale, ways=ways, names=names, bins=bins, draws=count)


# Expectations


class _Ensembles(NamedTuple):
    """Some ensembles of one size: log-probabilities [e, n, classes], and the mean entropy of their members [e, n]."""

    log_p: Array
    entropy: Array | None = None


Score = Callable[[_Ensembles], Scores]


def metrics_of_law(
    law: MemberLaw,
    labels: Any,
    n: int,
    sizes: tuple[int, ...],
    *,
    key: jax.Array,
    scale: float,
    ways: tuple[str, ...],
    names: tuple[str, ...],
    bins: int,
    draws: int,
) -> ExpectedMetrics:
    """Return the result of `expected_metrics`; samples of the law after the first n are of another kind."""
    if law.mean is None or "probabilities" in ways:
        fix = "Two ensembles are the least from which an error can be told; leave it out for ten."
        check_draws(draws, 2 * max(sizes), fix=fix)
    if law.mean is not None:
        check_fits(24 * draws * law.mean.size, "draws", what="draws", fix="Take fewer draws, or fewer samples.")
    z = scale * law.draw(key, draws)
    mean = None if law.mean is None else scale * law.mean
    y = check_classes(labels, n, z.shape[-1])
    members, diagrams = np.array([*sizes, np.inf]), {}
    found: dict[str, dict[str, Expected]] = {name: {} for name in names}
    for way in ways:
        scorers = _scorers(names, way, y, bins)
        columns = [_expect_of_size(_ensembles_of_size(z, mean, size, way), size, scorers, y, bins) for size in sizes]
        columns.append(_expect_of_all(z, mean, way, scorers, y, bins))
        for name in scorers:
            rows = zip(*(column[name] for column, _ in columns), strict=True)
            found[name][way] = Expected(*(np.array(row) for row in rows))
        diagrams[way] = tuple(diagram for _, diagram in columns)
    metrics = {name: _as_metric(members, found.get(name, {})) for name in (*OF_LABELS, *OF_UNKNOWN)}
    return ExpectedMetrics(members, **metrics, diagrams=diagrams)


def _as_metric(members: Array, found: dict[str, Expected]) -> ExpectedMetric | None:
    return ExpectedMetric(members, found.get("probabilities"), found.get("logits")) if found else None


def _scorers(names: tuple[str, ...], way: str, y: Array, bins: int) -> dict[str, Score]:
    """Return a function that scores ensembles for each metric; disagreement belongs to averaged probabilities alone."""
    n = len(y)
    of_labels: dict[str, Callable] = {
        "accuracy": score_accuracy,
        "negative_log_likelihood": score_likelihood,
        "brier_score": score_brier,
        "calibration_error": partial(score_calibration, bins=bins, adaptive=False),
        "adaptive_calibration_error": partial(score_calibration, bins=bins, adaptive=True),
    }

    def score_known(ensembles: _Ensembles, *, score: Callable) -> Scores:
        return score(ensembles.log_p[:, :n], y)

    def score_disagreement(ensembles: _Ensembles) -> Scores:
        agreement = ensembles.entropy - entropy(ensembles.log_p)
        return score_auroc(agreement[:, :n], agreement[:, n:])

    scorers: dict[str, Score] = {
        name: partial(score_known, score=of_labels[name]) for name in names if name in of_labels
    }
    if "confidence_auroc" in names:
        scorers["confidence_auroc"] = lambda ensembles: score_confidence(ensembles.log_p[:, :n], ensembles.log_p[:, n:])
    if "disagreement_auroc" in names and way == "probabilities":
        scorers["disagreement_auroc"] = score_disagreement
    return scorers


def _ensembles_of_size(z: Array, mean: Array | None, size: int, way: str) -> Iterator[_Ensembles]:
    """Yield all ensembles of one size, in batches, from the logits of members [draws, n, classes]."""
    shrunk = way == "logits" and mean is not None  # then every draw is an ensemble
    each = 1 if shrunk else size
    count = len(z) // each
    batch = max(1, NUMBERS_AT_ONCE // (each * z[0].size))
    for start in range(0, count, batch):
        part = z[start * each : min(start + batch, count) * each]
        if shrunk:
            yield _Ensembles(log_softmax(mean + (part - mean) / math.sqrt(size)))
        else:
            yield _average(part.reshape(-1, each, *z.shape[1:]), way)


def _average(groups: Array, way: str) -> _Ensembles:
    """Return ensembles from the logits of their members, [ensembles, members, n, classes]."""
    log_p = log_softmax(groups)
    return _Ensembles(average_members(log_p, way), entropy(log_p).mean(axis=1) if way == "probabilities" else None)


def _expect_of_size(
    batches: Iterator[_Ensembles], size: int, scorers: dict[str, Score], y: Array, bins: int
) -> tuple[dict[str, Expected], Reliability]:
    """Return the expectation of each metric over ensembles, and their reliability diagram."""
    scores: dict[str, list[Scores]] = {name: [] for name in scorers}
    counts: Any = 0.0
    for ensembles in batches:
        for name, score in scorers.items():
            values, parts = score(ensembles)
            scores[name].append(Scores(values, tuple(part.sum(axis=0) for part in parts)))
        counts = counts + count_in_bins(ensembles.log_p[:, : len(y)], y, bins=bins, adaptive=False)
    found = {}
    for name, batch in scores.items():
        values = np.concatenate([each.values for each in batch])
        sums = [sum(part) for part in zip(*(each.parts for each in batch), strict=True)]
        test_error = math.sqrt(sum(float(variance_of_mean(np.asarray(each) / len(values))) for each in sums))
        scatter = float(np.std(values, ddof=1))
        sampling_error = math.sqrt(variance_of_mean(values))
        found[name] = Expected(float(values.mean()), sampling_error, test_error, scatter)
    if size == 1 and "disagreement_auroc" in found:
        found["disagreement_auroc"] = Expected(*[math.nan] * 4)  # one member never disagrees
    return found, reliability_of_counts(counts)


def _expect_of_all(
    z: Array, mean: Array | None, way: str, scorers: dict[str, Score], y: Array, bins: int
) -> tuple[dict[str, Expected], Reliability]:
    """Return each metric of infinitely many members, and their reliability diagram."""
    if way == "logits" and mean is not None:
        whole, parts = _Ensembles(log_softmax(mean[None])), None
    else:
        whole, parts = _average_of_all(z, way)
    found = {}
    for name, score in scorers.items():
        scores = score(whole)
        value, error = float(scores.values[0]), 0.0
        if parts is not None:  # a jackknife over blocks of draws
            others, count = score(parts).values, len(parts.log_p)
            error = float(jackknife_error(others))
            if name in SMOOTH:
                value -= (count - 1) * float(others.mean() - value)
        found[name] = Expected(value, error, float(scores.errors[0]), 0.0)
    return found, reliability_of_counts(count_in_bins(whole.log_p[:, : len(y)], y, bins=bins, adaptive=False))


def _average_of_all(z: Array, way: str) -> tuple[_Ensembles, _Ensembles]:
    """Return the ensemble of all draws, and those that leave out one block of draws."""
    blocks = [_average(block[None], way) for block in np.array_split(z, min(BLOCKS, len(z)))]
    sizes = np.array([len(block) for block in np.array_split(np.arange(len(z)), len(blocks))], float)
    log_p = np.concatenate([block.log_p for block in blocks])
    if way == "logits":
        # Probabilities of a block determine its mean logits, up to a number that is the same for all classes.
        def average(weights: Array) -> _Ensembles:
            return _Ensembles(log_softmax(np.einsum("eb,bnc->enc", weights, log_p)))
    else:
        entropies = np.concatenate([block.entropy for block in blocks])

        def average(weights: Array) -> _Ensembles:
            rows = [scipy.special.logsumexp(log_p, axis=0, b=row[:, None, None]) for row in weights]
            return _Ensembles(np.stack(rows), weights @ entropies)

    others = sizes * (1 - np.eye(len(sizes)))
    return average(sizes[None] / sizes.sum()), average(others / others.sum(axis=1, keepdims=True))


# Checks


def _check_sizes(members: Any) -> tuple[int, ...]:
    if is_listed(members) and len(members):
        return tuple(sorted({positive_integer(size, "members") for size in members}))
    return (positive_integer(members, "members"),)


def _check_names(metrics: Any, unknown: bool) -> tuple[str, ...]:
    possible = (*OF_LABELS, *OF_UNKNOWN) if unknown else OF_LABELS
    if metrics is None:
        return possible
    names = tuple(metrics) if is_listed(metrics) else (metrics,)
    if not unknown and set(OF_UNKNOWN) & set(names):
        fix = "Pass samples of another kind, which have no labels."
        raise refusal("unknown", expected="given for AUROCs", got="nothing", fix=fix)
    return tuple(one_of(name, possible, "metrics") for name in names)


def _check_asked(found: Any, average: str) -> Any:
    if found is None:
        fix = "Ask `expected_metrics` for it, or for both by leaving `average` out."
        raise refusal("average", expected="one that was asked for", got=repr(average), fix=fix)
    return found


def _place_of(sizes: Array, members: Numbers) -> int:
    places = np.flatnonzero(sizes == members)
    if len(places) != 1:
        fix = f"There are {', '.join(map(_name_of, sizes))}."
        raise refusal("members", expected="a size that was asked for", got=members, fix=fix)
    return int(places[0])


def _name_of(size: float) -> str:
    return "∞" if math.isinf(size) else str(int(size))
