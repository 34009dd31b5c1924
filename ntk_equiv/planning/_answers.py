"""The questions that a plan asks of the infinite ensemble, and how they are answered.

    errors at all times         E mean (f̂ − y)² = mean (μ − y)² + mean Σ/M     `Errors`
    members, of the mean        P(‖f̂ − f̄‖ > δ) ≤ ε                             `bounds.min_ensemble_size`
    members, over the orbit     P(max_g ‖f̂(ρ_X(g)x) − ρ_Y(g)f̂(x)‖ > δ) ≤ ε    `bounds.orbit_deviation`
    class probabilities         softmax(f̂/T), on samples that were held out    `bounds.expected_metrics`

δ is a Euclidean distance over output channels, in the units of the labels.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv import bounds, metrics
from ntk_equiv.infinite import InfiniteEnsemble
from ntk_equiv.planning._plan import Accuracy, Calibration, Errors, Needed, OrbitCurve, Points
from ntk_equiv.planning._problem import Notes, Problem, Settings

DRAWS_OF_CLASSES = 2000
# Fewer draws of members where these would be more numbers; but not below the second.
MOST_NUMBERS, FEWEST_DRAWS = 2**24, 200
# Enough for how far likelihoods are above that of the infinite ensemble, of which most is known without draws.
DRAWS_FOR_EXCESS = 500
BINS = 15
METRICS = ("accuracy", "negative_log_likelihood", "brier_score", "calibration_error")
NOT_HELD_OUT = "all test samples are training samples too. Give others (x_test, y_test)."
# Errors that differ by this fraction count as equal.
NEGLIGIBLE = 0.01
# Sizes of ensembles for which the deviation over orbits is given: powers of ten, and three times these.
SIZES = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000)
# How many finite times "auto" takes.
AUTO_TIMES = 25
# The last of these times in units of the first; slower modes are never learned.
LONGEST = 1e12


def mode_rates(ens: InfiniteEnsemble, learning_rate: float) -> np.ndarray:
    """Return how fast each mode of the labels is learned: ηλ, divided by the number of labels for a mean."""
    entries = ens.y.size if ens.reduction == "mean" else 1
    learned = np.asarray(ens.spectrum, float)[len(ens.spectrum) - ens.rank :]
    return learning_rate * learned / entries


def auto_times(rates: np.ndarray) -> np.ndarray:
    """Return times from a tenth of that of the fastest mode to ten times that of the slowest, and infinity."""
    if not rates.size:
        return np.array([0.0, np.inf])
    first = 0.1 / rates.max()
    last = min(10 / rates.min(), LONGEST * first)
    return np.append(np.geomspace(first, last, AUTO_TIMES), np.inf)


def best_time(times: np.ndarray, test: Errors | None, members: int) -> float:
    """Return the first time at which the expected test error is within 1 % of its least.

    Without test labels it is the last time.
    """
    if test is None:
        return float(times[-1])
    expected = test.of(members)
    return float(times[np.argmax(expected <= (1 + NEGLIGIBLE) * expected.min())])


@dataclasses.dataclass(frozen=True, eq=False)
class Predictions:
    """The law of one network at all times.

    Attributes:
        train_mean: of the infinite ensemble on the training samples, [times, n] or [times, n, channels].
        train_variance: of one network on some of them, for each channel, [times, v].
        mean: of the infinite ensemble on the test samples, [times, m] or [times, m, channels].
        variance: of one network there, for each channel, [times, m].
    """

    train_mean: np.ndarray
    train_variance: np.ndarray
    mean: np.ndarray
    variance: np.ndarray

    def train_errors(self, y: np.ndarray) -> Errors:
        """Return expected errors on the training samples."""
        off = (self.train_mean - y[None]) ** 2
        return Errors(off.reshape(len(off), -1).mean(axis=1), self.train_variance.mean(axis=1))

    def test_errors(self, y: np.ndarray) -> Errors:
        """Return expected errors on the test samples, and how much these samples differ."""
        off = ((self.mean - y[None]) ** 2).reshape(*self.variance.shape, -1).mean(axis=2)
        count = off.shape[1]
        both = np.stack([off, self.variance]) - np.stack([off, self.variance]).mean(axis=2, keepdims=True)
        products = [np.sum(both[i] * both[j], axis=1) for i, j in ((0, 0), (0, 1), (1, 1))]
        scatter = np.stack(products, axis=1) / (count * (count - 1)) if count > 1 else np.full((len(off), 3), np.nan)
        return Errors(off.mean(axis=1), self.variance.mean(axis=1), scatter)


def predict(ens: InfiniteEnsemble, problem: Problem, times: np.ndarray) -> Predictions:
    """Return means and variances at all times, with as few kernels as possible, which are most of the cost.

    The mean on training samples needs no kernels. Their variance is that of some of them, spread over all.
    """
    n, m, identity = len(problem.x), len(problem.x_test), ens.train.group.identity
    some = np.unique(np.linspace(0, n - 1, min(n, m)).round().astype(int))
    t = jnp.asarray(times, problem.x.dtype)
    # One call for both, because each call compiles and evaluates kernels of its own.
    variance = np.asarray(ens.var(jnp.asarray(np.concatenate([problem.x[some], problem.x_test])), t), float)
    train_mean = np.asarray(ens.train_mean(t), float)[:, identity * n : (identity + 1) * n]
    mean = np.asarray(ens.mean(jnp.asarray(problem.x_test), t), float)
    return Predictions(train_mean, variance[:, : len(some)], mean, variance[:, len(some) :])


@dataclasses.dataclass(frozen=True, eq=False)
class LawAtTime:
    """The law of one network on the test samples at one time.

    Attributes:
        t: the time.
        mean: of the infinite ensemble, [m] or [m, channels].
        variance: of each channel, [m].
        cov: the covariance of each channel, [m, m].
    """

    t: float
    mean: np.ndarray
    variance: np.ndarray
    cov: np.ndarray


def answer_invariance(
    ens: InfiniteEnsemble, problem: Problem, settings: Settings, law: LawAtTime, key: jax.Array
) -> tuple[Needed, OrbitCurve, Points]:
    """Return everything about members and orbits at the time of this law."""
    x, members = jnp.asarray(problem.x_test), settings.members
    tolerated = settings.tolerance
    draws = jax.random.split(key, 3)
    orbit = bounds.orbit_deviation(ens, x, law.t)
    channels = orbit.mean.shape[-1]
    orbit_members, lower, upper = _orbit_members(orbit, settings, draws[0])
    single = bounds.min_ensemble_size(law.variance, *tolerated, channels=channels)
    joint = bounds.sampled_ensemble_size(law.cov, *tolerated, key=draws[1], channels=channels)
    classes, y_test = problem.classes is not None, problem.y_test
    points = Points(
        index=problem.index,
        scatter=np.sqrt(channels * law.variance),
        mean_members=single,
        orbit_one=orbit.expected(1),
        orbit_many=orbit.expected(members),
        orbit_members=orbit_members,
        orbit_lower=lower,
        orbit_upper=upper,
        bias=np.linalg.norm(orbit.bias, axis=2).max(axis=1),
        error=None if y_test is None else np.linalg.norm(orbit.mean[:, 0] - y_test.reshape(len(y_test), -1), axis=1),
        same_one=_same_predictions(orbit, 1, draws[2]) if classes else None,
        same_many=_same_predictions(orbit, members, draws[2]) if classes else None,
        label=y_test.argmax(axis=1) if classes and y_test is not None else None,
        predicted=orbit.mean[:, 0].argmax(axis=1) if classes else None,
    )
    needed = Needed(
        mean_worst=int(single.max()),
        mean_bound=bounds.simultaneous_ensemble_size(law.variance, *tolerated, channels=channels),
        mean_all=np.array([joint.value, joint.lower, joint.upper], float),
        orbit_worst=np.array([np.max(each) for each in (orbit_members, lower, upper)]),
        orbit_median=float(np.sort(orbit_members)[(len(orbit_members) - 1) // 2]),
        unreachable=int(np.isnan(orbit_members).sum()),
    )
    return needed, _orbit_curve(orbit), points


def _orbit_members(law: bounds.OrbitDeviation, settings: Settings, key: jax.Array) -> tuple[np.ndarray, ...]:
    """Return members for agreement over each orbit with their interval, [m]; NaN where no number is enough."""
    delta, epsilon = settings.tolerance
    reachable = np.linalg.norm(law.bias, axis=2).max(axis=1) < delta
    columns = [np.full(len(reachable), np.nan) for _ in range(3)]
    if reachable.any():
        part = dataclasses.replace(law, mean=law.mean[reachable], cov=law.cov[reachable])
        needed = part.members(delta, epsilon, key=key, samples=settings.samples)
        for column, values in zip(columns, (needed.value, needed.lower, needed.upper), strict=True):
            column[reachable] = values
    return tuple(columns)


def _orbit_curve(law: bounds.OrbitDeviation) -> OrbitCurve:
    each = np.stack([law.expected(size) for size in SIZES])
    return OrbitCurve(np.array(SIZES), each.mean(axis=1), each.max(axis=1))


def _same_predictions(law: bounds.OrbitDeviation, members: int, key: jax.Array) -> np.ndarray:
    return np.asarray(law.same_predictions(members, key=key, samples=DRAWS_OF_CLASSES).value, float)


def answer_classes(
    ens: InfiniteEnsemble,
    problem: Problem,
    settings: Settings,
    predictions: Predictions,
    law: LawAtTime,
    key: jax.Array,
) -> tuple[Accuracy | None, Calibration | None, Notes]:
    """Return how many test samples are classified right, how good probabilities are, and notes on these.

    Both are None for regression, or without test labels; the second also if no test sample was held out.
    """
    if problem.classes is None or problem.y_test is None:
        return None, None, []
    labels = problem.y_test.argmax(axis=-1)
    members = bounds.gaussian_law(ens, jnp.asarray(problem.x_test), law.mean, law.cov)
    expected = _expected_metrics(members, labels, settings.members, 1.0, key, names=("accuracy",))
    one, many, infinite = _rows_of_sizes(expected.accuracy, settings.members)[:, :3]
    over_time = (predictions.mean.argmax(axis=-1) == labels).mean(axis=1)
    accuracy = Accuracy(infinite, many, one, over_time)
    held_out = np.flatnonzero(problem.held_out)
    if not held_out.size:
        return accuracy, None, [f"Nothing is said about class probabilities: {NOT_HELD_OUT}"]
    calibration, notes = _calibration(members.at(held_out), labels[held_out], settings, key)
    seen = len(labels) - len(held_out)
    if seen:
        left_out = f"{seen} of {len(labels)} test samples are training samples too, and are left out there"
        notes.append(f"Class probabilities are judged on {len(held_out)} held-out samples: {left_out}.")
    return accuracy, calibration, notes


def _calibration(
    law: bounds.GaussianMembers, labels: np.ndarray, settings: Settings, key: jax.Array
) -> tuple[Calibration, Notes]:
    """Return how good the probabilities are that members with this law predict."""
    temperature, notes = _temperature(law.mean, labels, settings)
    scale, members = 1 / temperature, settings.members
    found = _expected_metrics(law, labels, members, scale, key)
    draws = min(DRAWS_FOR_EXCESS, _draws_of(law))
    drawn: dict[str, Any] = {"key": key, "average": "logits", "scale": scale, "draws": draws}
    needed = bounds.members_of_law(law, labels, settings.likelihood_delta, **drawn)
    excess = bounds.excess_of_law(law, labels, (1, members), **drawn)
    calibration = Calibration(
        samples=len(labels),
        temperature=temperature,
        accuracy=_rows_of_sizes(found.accuracy, members),
        likelihood=_rows_of_sizes(found.negative_log_likelihood, members),
        excess=np.array([each.value for each in excess]),
        brier=_rows_of_sizes(found.brier_score, members),
        error=_rows_of_sizes(found.calibration_error, members),
        noise=metrics.calibration_noise(scale * law.mean[None], bins=BINS).logits.value,
        members=np.array([needed.value, needed.lower, needed.upper], float),
        diagram_many=np.stack(found.reliability(members, average="logits")),
        diagram_infinite=np.stack(found.reliability(np.inf, average="logits")),
    )
    return calibration, notes


def _temperature(mean: np.ndarray, labels: np.ndarray, settings: Settings) -> tuple[float, Notes]:
    """Return the temperature that is given, or the best one for the infinite ensemble, and how it was found."""
    if settings.temperature is not None:
        return settings.temperature, []
    count = len(labels)
    for smoothing, how in (
        (0.0, f"which makes their likelihood too good by about {1 / count:.2g} nats"),
        (1 / (count + 1), "all of which are classified right: one of so many and one labels counts as unknown"),
    ):
        try:
            best = metrics.fit_temperature(mean[None], labels, average="logits", smoothing=smoothing)
        except ValueError:  # no temperature is the best
            continue
        return best, [f"Class probabilities have the temperature {best:.3g}. It is fitted to the test samples, {how}."]
    return 1.0, [
        "WARNING: the infinite ensemble is no better than chance on the test samples, so no temperature could be "
        "fitted. Class probabilities are softmax(f̂)."
    ]


def _expected_metrics(
    law: bounds.GaussianMembers, labels: np.ndarray, members: int, scale: float, key: jax.Array, names: tuple = METRICS
) -> bounds.ExpectedMetrics:
    """Return what to expect of ensembles that average outputs, as all of a plan does."""
    sizes = tuple(sorted({1, members}))
    draws, ways = _draws_of(law), ("logits",)
    return bounds.metrics_of_law(
        law, labels, len(labels), sizes, key=key, scale=scale, ways=ways, names=names, bins=BINS, draws=draws
    )


def _draws_of(law: bounds.GaussianMembers) -> int:
    return int(np.clip(MOST_NUMBERS // law.mean.size, FEWEST_DRAWS, DRAWS_OF_CLASSES))


def _rows_of_sizes(metric: bounds.ExpectedMetric | None, members: int) -> np.ndarray:
    """Return value and errors for one network, for M members and for infinitely many."""
    assert metric is not None, "it was asked for"
    return np.array([metric.at(size, average="logits") for size in (1, members, np.inf)])
