"""The questions that a plan asks of the infinite ensemble, once it is fitted.

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
from ntk_equiv.planning._problem import Problem
from ntk_equiv.planning._records import Accuracy, Errors, Needed, OrbitCurve, Points, standard_error
from ntk_equiv.planning._times import telling_times

DRAWS_OF_CLASSES = 2000
# An error that is larger by this part is as good as another.
NEGLIGIBLE = 0.01
# Sizes of ensembles for which the deviation over orbits is told: powers of ten, and three times these.
SIZES = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000)


@dataclasses.dataclass(frozen=True, eq=False)
class Question:
    """What is asked.

    Attributes:
        ens: the fitted ensemble.
        problem: the data.
        members: M.
        delta: the tolerated deviation.
        epsilon: the probability of a larger one.
        samples: draws for members over orbits.
        key: of the draws.
    """

    ens: InfiniteEnsemble
    problem: Problem
    members: int
    delta: float
    epsilon: float
    samples: int
    key: jax.Array

    @property
    def rates(self) -> np.ndarray:
        """How fast each mode of the labels is learned: ηλ, divided by the number of labels for a mean."""
        entries = self.ens.y.size if self.ens.reduction == "mean" else 1
        learned = np.asarray(self.ens.spectrum, float)[len(self.ens.spectrum) - self.ens.rank :]
        return float(self.ens.filter.learning_rate) * learned / entries  # type: ignore[attr-defined]


def all_times(question: Question, times: np.ndarray | None, at: float | None) -> np.ndarray:
    """The times that were asked for, or telling ones, with the time of the plan among them."""
    times = telling_times(question.rates) if times is None else times
    return times if at is None else np.union1d(times, [at])


def best_time(times: np.ndarray, test: Errors | None, members: int) -> float:
    """The first time at which the expected test error is as good as at its least; the last one without test labels."""
    if test is None:
        return float(times[-1])
    expected = test.of(members)
    return float(times[np.argmax(expected <= (1 + NEGLIGIBLE) * expected.min())])


@dataclasses.dataclass(frozen=True, eq=False)
class Predictions:
    """The law of a network at all times.

    Attributes:
        train_mean: of the infinite ensemble on the training samples, [times, n] or [times, n, channels].
        train_variance: of one network on some of them, of each channel, [times, v].
        mean: of the infinite ensemble on the test samples, [times, m] or [times, m, channels].
        variance: of one network there, of each channel, [times, m].
    """

    train_mean: np.ndarray
    train_variance: np.ndarray
    mean: np.ndarray
    variance: np.ndarray

    def train_errors(self, y: np.ndarray) -> Errors:
        """Expected errors on the training samples."""
        off = (self.train_mean - y[None]) ** 2
        return Errors(off.reshape(len(off), -1).mean(axis=1), self.train_variance.mean(axis=1))

    def test_errors(self, y: np.ndarray) -> Errors:
        """Expected errors on the test samples, and how much these differ."""
        off = ((self.mean - y[None]) ** 2).reshape(*self.variance.shape, -1).mean(axis=2)
        count = off.shape[1]
        both = np.stack([off, self.variance]) - np.stack([off, self.variance]).mean(axis=2, keepdims=True)
        products = [np.sum(both[i] * both[j], axis=1) for i, j in ((0, 0), (0, 1), (1, 1))]
        scatter = np.stack(products, axis=1) / (count * (count - 1)) if count > 1 else np.full((len(off), 3), np.nan)
        return Errors(off.mean(axis=1), self.variance.mean(axis=1), scatter)


def predictions(question: Question, times: np.ndarray) -> Predictions:
    """Mean and variance at all times, with as few kernels as possible, which are most of the cost.

    The mean on training samples needs none. Their variance is that of some of them, spread over all.
    """
    ens, problem = question.ens, question.problem
    n, m, identity = len(problem.x), len(problem.x_test), ens.train.group.identity
    some = np.unique(np.linspace(0, n - 1, min(n, m)).round().astype(int))
    t = jnp.asarray(times, problem.x.dtype)
    variance = np.asarray(ens.var(jnp.asarray(np.concatenate([problem.x[some], problem.x_test])), t), float)
    train_mean = np.asarray(ens.train_mean(t), float)[:, identity * n : (identity + 1) * n]
    mean = np.asarray(ens.mean(jnp.asarray(problem.x_test), t), float)
    return Predictions(train_mean, variance[:, : len(some)], mean, variance[:, len(some) :])


def invariance(question: Question, variance: np.ndarray, t: float) -> tuple[Needed, OrbitCurve, Points]:
    """Everything about members and orbits at one time, at which the test samples have this variance."""
    ens, x, members = question.ens, jnp.asarray(question.problem.x_test), question.members
    tolerated = (question.delta, question.epsilon)
    draws = jax.random.split(question.key, 3)
    law = bounds.orbit_deviation(ens, x, t)
    channels = law.mean.shape[-1]
    orbit_members, lower, upper = _orbit_members(question, law, draws[0])
    single = bounds.min_ensemble_size(variance, *tolerated, channels=channels)
    joint = bounds.sampled_ensemble_size(ens.cov(x, t), *tolerated, key=draws[1], channels=channels)
    classes, y_test = question.problem.classes is not None, question.problem.y_test
    points = Points(
        index=question.problem.index,
        scatter=np.sqrt(channels * variance),
        mean_members=single,
        orbit_one=law.expected(1),
        orbit_many=law.expected(members),
        orbit_members=orbit_members,
        orbit_lower=lower,
        orbit_upper=upper,
        bias=np.linalg.norm(law.bias, axis=2).max(axis=1),
        error=_distance(law, y_test),
        same_one=_same(law, 1, draws[2]) if classes else None,
        same_many=_same(law, members, draws[2]) if classes else None,
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
    return needed, _curve(law), points


def accuracy(question: Question, law: Predictions, times: np.ndarray, t: float) -> Accuracy | None:
    """How many test samples are classified rightly, if there are classes and test labels."""
    problem = question.problem
    if problem.classes is None or problem.y_test is None:
        return None
    classes, at = problem.y_test.argmax(axis=-1), int(np.flatnonzero(times == t)[0])
    right = law.mean.argmax(axis=-1) == classes[None]
    rng = np.random.default_rng(jax.random.key_data(question.key).tolist())
    one, many = (
        _rate(_hits(rng, law.mean[at], np.sqrt(law.variance[at] / size), classes), DRAWS_OF_CLASSES)
        for size in (1, question.members)
    )
    return Accuracy(_rate(right[at].astype(float), np.inf), many, one, right.mean(axis=1))


def _hits(rng: np.random.Generator, mean: np.ndarray, deviation: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """How often each sample is classified rightly. An expected value needs the law at each sample by itself."""
    hits = np.zeros(len(mean))
    for _ in range(DRAWS_OF_CLASSES):
        hits += (mean + deviation[:, None] * rng.normal(size=mean.shape)).argmax(axis=1) == classes
    return hits / DRAWS_OF_CLASSES


def _rate(rates: np.ndarray, draws: float | int) -> np.ndarray:
    """The mean over test samples, its standard error by sampling, and that of the test set."""
    count = len(rates)
    sampling = np.sqrt(np.sum(rates * (1 - rates))) / count / np.sqrt(draws)
    return np.array([rates.mean(), sampling, standard_error(rates)])


def _orbit_members(question: Question, law: bounds.OrbitDeviation, key: jax.Array) -> tuple[np.ndarray, ...]:
    """Members for agreement over each orbit with their interval, [m]; NaN where no number is enough."""
    reachable = np.linalg.norm(law.bias, axis=2).max(axis=1) < question.delta
    found = [np.full(len(reachable), np.nan) for _ in range(3)]
    if reachable.any():
        part = dataclasses.replace(law, mean=law.mean[reachable], cov=law.cov[reachable])
        needed = part.members(question.delta, question.epsilon, key=key, samples=question.samples)
        for column, values in zip(found, (needed.value, needed.lower, needed.upper), strict=True):
            column[reachable] = values
    return tuple(found)


def _curve(law: bounds.OrbitDeviation) -> OrbitCurve:
    each = np.stack([law.expected(size) for size in SIZES])
    return OrbitCurve(np.array(SIZES), each.mean(axis=1), each.max(axis=1))


def _same(law: bounds.OrbitDeviation, members: int, key: jax.Array) -> np.ndarray:
    return np.asarray(law.same_predictions(members, key=key, samples=DRAWS_OF_CLASSES).value, float)


def _distance(law: bounds.OrbitDeviation, y: np.ndarray | None) -> np.ndarray | None:
    """How far the infinite ensemble is from the labels, [m]."""
    if y is None:
        return None
    return np.linalg.norm(law.mean[:, 0] - y.reshape(len(y), -1), axis=1)
