"""The questions that a plan asks of the infinite ensemble, and how they are answered.

    errors at all times         E mean (f̂ − y)² = mean (μ − y)² + mean Σ/M     `Errors`
    members, of the mean        P(‖f̂ − f̄‖ > δ) ≤ ε                             `bounds.min_ensemble_size`
    members, over the orbit     P(max_g ‖f̂(ρ_X(g)x) − ρ_Y(g)f̂(x)‖ > δ) ≤ ε    `bounds.orbit_deviation`

δ is a Euclidean distance over output channels, in the units of the labels.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv import bounds
from ntk_equiv.infinite import InfiniteEnsemble
from ntk_equiv.planning._plan import Accuracy, Errors, Needed, OrbitCurve, Points, standard_error
from ntk_equiv.planning._problem import Problem, Settings

DRAWS_OF_CLASSES = 2000
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


def answer_invariance(
    ens: InfiniteEnsemble, problem: Problem, settings: Settings, variance: np.ndarray, t: float, key: jax.Array
) -> tuple[Needed, OrbitCurve, Points]:
    """Return everything about members and orbits at time t, at which the test samples have this variance."""
    x, members = jnp.asarray(problem.x_test), settings.members
    tolerated = settings.tolerance
    draws = jax.random.split(key, 3)
    law = bounds.orbit_deviation(ens, x, t)
    channels = law.mean.shape[-1]
    orbit_members, lower, upper = _orbit_members(law, settings, draws[0])
    single = bounds.min_ensemble_size(variance, *tolerated, channels=channels)
    joint = bounds.sampled_ensemble_size(ens.cov(x, t), *tolerated, key=draws[1], channels=channels)
    classes, y_test = problem.classes is not None, problem.y_test
    points = Points(
        index=problem.index,
        scatter=np.sqrt(channels * variance),
        mean_members=single,
        orbit_one=law.expected(1),
        orbit_many=law.expected(members),
        orbit_members=orbit_members,
        orbit_lower=lower,
        orbit_upper=upper,
        bias=np.linalg.norm(law.bias, axis=2).max(axis=1),
        error=None if y_test is None else np.linalg.norm(law.mean[:, 0] - y_test.reshape(len(y_test), -1), axis=1),
        same_one=_same_predictions(law, 1, draws[2]) if classes else None,
        same_many=_same_predictions(law, members, draws[2]) if classes else None,
        label=y_test.argmax(axis=1) if classes and y_test is not None else None,
        predicted=law.mean[:, 0].argmax(axis=1) if classes else None,
    )
    needed = Needed(
        mean_worst=int(single.max()),
        mean_bound=bounds.simultaneous_ensemble_size(variance, *tolerated, channels=channels),
        mean_all=np.array([joint.value, joint.lower, joint.upper], float),
        orbit_worst=np.array([np.max(each) for each in (orbit_members, lower, upper)]),
        orbit_median=float(np.sort(orbit_members)[(len(orbit_members) - 1) // 2]),
        unreachable=int(np.isnan(orbit_members).sum()),
    )
    return needed, _orbit_curve(law), points


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


def answer_accuracy(
    problem: Problem, predictions: Predictions, members: int, at: int, key: jax.Array
) -> Accuracy | None:
    """Return how many test samples are classified correctly, if there are classes and test labels.

    Args:
        problem: the data.
        predictions: the law of one network at all times.
        members: M.
        at: the place of the time of the plan among all times.
        key: of the draws.
    """
    if problem.classes is None or problem.y_test is None:
        return None
    classes = problem.y_test.argmax(axis=-1)
    correct = predictions.mean.argmax(axis=-1) == classes[None]
    rng = np.random.default_rng(jax.random.key_data(key).tolist())
    mean, variance = predictions.mean[at], predictions.variance[at]
    one, many = (
        _mean_with_errors(_hit_rates(rng, mean, np.sqrt(variance / size), classes), DRAWS_OF_CLASSES)
        for size in (1, members)
    )
    return Accuracy(_mean_with_errors(correct[at].astype(float), np.inf), many, one, correct.mean(axis=1))


def _hit_rates(rng: np.random.Generator, mean: np.ndarray, deviation: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return how often each sample is classified correctly."""
    # An expected value needs no joint law: samples may be drawn independently of each other.
    hits = np.zeros(len(mean))
    for _ in range(DRAWS_OF_CLASSES):
        hits += (mean + deviation[:, None] * rng.normal(size=mean.shape)).argmax(axis=1) == classes
    return hits / DRAWS_OF_CLASSES


def _mean_with_errors(rates: np.ndarray, draws: float | int) -> np.ndarray:
    """Return the mean over test samples, its standard error by sampling, and that of the test set."""
    count = len(rates)
    sampling = np.sqrt(np.sum(rates * (1 - rates))) / count / np.sqrt(draws)
    return np.array([rates.mean(), sampling, standard_error(rates)])
