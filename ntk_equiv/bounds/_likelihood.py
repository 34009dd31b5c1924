"""How many members have nearly the likelihood of infinitely many.

−log is convex, so the expected negative log-likelihood L_M falls with M, towards L_∞. With p̂ the probabilities of M
members, p̄ or p_∞ those of infinitely many, r̂ = p̂(y)/p̄(y), and z the logits of one member,

    averaged probabilities     L_M − L_∞ = E[r̂ − 1 − log r̂]      ≈ c/M,    c = ½ E var(p(y))/p̄(y)²
    averaged logits            L_M − L_∞ = E KL(p_∞ ‖ p̂)         ≈ c/M,    c = ½ E var_{k ~ p_∞}(z_k − E z_k)

with E also over test samples. The second does not depend on the labels. What is averaged on the right is never negative
and of second order in the noise, so it is sampled far more precisely than L_M and L_∞ are.

Where L_∞ is that of all D draws, the excess of D members is missing, c/D, and is added. The second-order term of each
ensemble has the expectation c/M, and c is known better than the excess of a single size: so this term is a control
variate. Where members are Gaussian, L_∞ and c are known exactly for averaged logits.
"""

import dataclasses
import math
from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any

import jax
import numpy as np
import scipy.special

from ntk_equiv._check import one_of, random_key, samples_in, single_time
from ntk_equiv._typing import Inputs, Scalar
from ntk_equiv.bounds._checks import Numbers, single_deviation
from ntk_equiv.bounds._member_law import (
    MemberLaw,
    MembersToDraw,
    check_draws,
    check_scale,
    log_softmax,
    member_law,
)
from ntk_equiv.bounds._members import round_up
from ntk_equiv.bounds._results import CONFIDENCE, Expected, Sampled
from ntk_equiv.metrics import AVERAGES, check_classes, variance_of_mean

Array = np.ndarray
# Fewer ensembles say too little about the excess of one size.
FEWEST_ENSEMBLES = 20
# How many members are drawn at once, and how many numbers may be drawn to verify a size.
MEMBERS_AT_ONCE, MOST_NUMBERS = 1000, 2**26
# Beyond this size the excess of Gaussian logits is c/M to six digits.
LARGEST_SAMPLED = 10**6
# How often a size that was extrapolated is corrected by what its verification says.
CORRECTIONS = 3
STANDARD_ERRORS = -float(scipy.special.ndtri((1 - CONFIDENCE) / 2))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class LikelihoodMembers(Sampled):
    """How many members have a likelihood within δ of that of infinitely many, made by `members_for_likelihood`.

    The number and its interval are about the given test samples. `coefficient.test_error` says how much another test
    set would change them: the number of members is about coefficient/δ.

    Attributes:
        delta: δ, in nats.
        average: what the ensemble averages.
        coefficient: c of the excess c/M, with its errors; it has no scatter (NaN).
        excess: the excess of so many members, sampled directly from other draws than those that led to the number; None
            if that would take too many draws. Its scatter is that of the likelihood of one ensemble.

    Example:
        >>> from ntk_equiv.bounds import Expected, LikelihoodMembers
        >>> c, excess = Expected(0.3, 0.01, 0.02, float("nan")), Expected(0.0099, 0.0002, 0.001, 0.004)
        >>> LikelihoodMembers(30, 28, 33, 0.999, 2000, 0.01, "logits", c, excess)
        <30 members, within [28, 33] with confidence 0.999; other draws show an excess of 0.0099 ± 0.0002>
        >>> LikelihoodMembers(30, 28, 33, 0.999, 2000, 0.01, "logits", c, None)
        <30 members, within [28, 33] with confidence 0.999; an estimate by c/M, not verified>
    """

    delta: float
    average: str
    coefficient: Expected
    excess: Expected | None

    def __repr__(self) -> str:
        number = f"{self.value} member{'s' * (self.value != 1)}"
        interval = f"within [{self.lower}, {self.upper}] with confidence {self.confidence}"
        if self.excess is None:
            return f"<{number}, {interval}; an estimate by c/M, not verified>"
        excess = f"{self.excess.value:.2g} ± {self.excess.sampling_error:.2g}"
        return f"<{number}, {interval}; other draws show an excess of {excess}>"


def members_for_likelihood(
    ens: MembersToDraw,
    x: Inputs,
    labels: Any,
    t: Scalar | None,
    delta: Numbers,
    *,
    key: jax.Array,
    average: str = "probabilities",
    scale: Scalar = 1.0,
    draws: int = 2000,
) -> LikelihoodMembers:
    """The number of members whose expected negative log-likelihood is within δ of that of infinitely many.

    The excess falls with every member, about as c/M. It is sampled at each size that is tried, as long as the draws
    make 20 ensembles of it. Larger sizes come from c. The result is verified by other draws.

    Args:
        ens: as for `expected_metrics`.
        x: test samples that were not used for training, [n, ...].
        labels: their classes, whole numbers [n].
        t: one training time; None for that of the filter.
        delta: δ, the tolerated excess, in nats.
        key: a JAX random key.
        average: what the ensemble averages, "probabilities" or "logits".
        scale: what outputs are multiplied by to become logits.
        draws: how many members are drawn.

    Returns:
        A `Sampled` number with its interval, the coefficient c, and the excess that was found at this size. It is an
        estimate if that could not be verified.

    Raises:
        ValueError: labels or outputs do not fit together, or there are fewer than 20 draws.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from ntk_equiv import InfiniteEnsemble, bounds, stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(64, 1.5, 0.1), stax.Relu(), stax.Dense(1))
        >>> x, labels = jnp.array([[1.0, 2.0], [0.5, -1.0], [-1.0, 0.3]]), jnp.array([0, 1, 1])
        >>> ens = InfiniteEnsemble(kernel_fn, (x, jax.nn.one_hot(labels, 2) - 0.5))
        >>> test, truth = jnp.array([[0.5, 0.5], [0.2, -0.4]]), jnp.array([0, 1])
        >>> how = {"key": jax.random.key(0), "average": "logits", "scale": 3.0}
        >>> [int(bounds.members_for_likelihood(ens, test, truth, 1.0, delta, **how)) for delta in (0.1, 0.01, 0.001)]
        [1, 4, 32]
    """
    single_time(t)
    random_key(key)
    delta = single_deviation(delta)
    one_of(average, AVERAGES, "average")
    check_draws(draws, FEWEST_ENSEMBLES, fix="Fewer draws do not show how much members differ.")
    samples_in(x, "x")
    law = member_law(ens, x, t)
    return members_of_law(law, labels, delta, key=key, average=average, scale=check_scale(scale), draws=draws)


# How it is found


def members_of_law(
    law: MemberLaw, labels: Any, delta: float, *, key: jax.Array, average: str, scale: float, draws: int
) -> LikelihoodMembers:
    """Return the result of `members_for_likelihood`."""
    first, *others = jax.random.split(key, CORRECTIONS + 2)
    known = _sample_excess(law, labels, average, scale, first, draws)
    value, lower, upper = (known.smallest_size(delta, shift) for shift in (0.0, -STANDARD_ERRORS, STANDARD_ERRORS))
    excess = None
    for other in others:
        count = draws if known.any_size else max(draws, FEWEST_ENSEMBLES * value)
        if count > draws and count * known.numbers > MOST_NUMBERS:
            break
        excess = _sample_excess(law, labels, average, scale, other, count).at(value)
        if value <= known.largest or excess.value - STANDARD_ERRORS * excess.sampling_error <= delta:
            break
        value = round_up(value * excess.value / delta)  # the excess falls faster than c/M at first
        upper, excess = max(upper, value), None
    return LikelihoodMembers(value, lower, upper, CONFIDENCE, draws, delta, average, known.coefficient, excess)


def excess_of_law(
    law: MemberLaw, labels: Any, sizes: tuple[int, ...], *, key: jax.Array, average: str, scale: float, draws: int
) -> list[Expected]:
    """Return L_M − L_∞ for each size, from the same draws."""
    known = _sample_excess(law, labels, average, scale, key, draws)
    return [known.at(size) for size in sizes]


def _sample_excess(
    law: MemberLaw, labels: Any, average: str, scale: float, key: jax.Array, count: int
) -> "_ExcessOfProbabilities | _ExcessOfLogits":
    """Draw members in batches, and keep what the excess is computed from."""
    y, kept, numbers = np.empty(0), [], 0
    for number, own in enumerate(jax.random.split(key, -(-count // MEMBERS_AT_ONCE))):
        z = scale * law.draw(own, min(MEMBERS_AT_ONCE, count - number * MEMBERS_AT_ONCE))
        y, numbers = check_classes(labels, *z.shape[1:]), z[0].size
        kept.append(log_softmax(z)[:, np.arange(len(y)), y] if average == "probabilities" else z)
    drawn = np.concatenate(kept)
    if average == "probabilities":
        return _ExcessOfProbabilities(numbers, drawn - _log_mean(drawn, axis=0))
    if law.mean is None:
        return _ExcessOfLogits(numbers, drawn, drawn.mean(axis=0), None, y)
    return _ExcessOfLogits(numbers, drawn, scale * law.mean, scale**2 * np.sum(law.root**2, axis=1), y)


@dataclasses.dataclass(frozen=True, eq=False)
class _Excess(ABC):
    """How much L_M is above L_∞, from draws.

    Attributes:
        numbers: how many numbers one draw consists of.
        draws: how many draws there are.
        coefficient: c of c/M.
        largest: the largest size that is sampled; c/M stands for larger ones.
        any_size: whether every draw is an ensemble of every size.
    """

    numbers: int
    _found: dict[int, Expected] = dataclasses.field(default_factory=dict, init=False)

    @cached_property
    @abstractmethod
    def coefficient(self) -> Expected: ...

    @property
    @abstractmethod
    def draws(self) -> int: ...

    @property
    def largest(self) -> int:
        return LARGEST_SAMPLED if self.any_size else self.draws // FEWEST_ENSEMBLES

    @property
    def any_size(self) -> bool:
        return False

    @cached_property
    @abstractmethod
    def second_order(self) -> Array:
        """The coefficient c at each sample, [n]."""

    @abstractmethod
    def sample(self, size: int) -> tuple[Array, Array, Array]:
        """Return the excess of each ensemble of this size, its second-order term, both [ensembles, n], and its L."""

    def at(self, size: int) -> Expected:
        """Return the excess of one size."""
        if size not in self._found:
            excess, quadratic, likelihood = self.sample(size)
            steadier = excess - quadratic + self.second_order / size
            choices = [
                (_error_over_draws(excess), excess + (0.0 if self.any_size else self.second_order / self.draws)),
                (math.hypot(_error_over_draws(steadier), self.coefficient.sampling_error / size), steadier),
            ]
            error, each = min(choices, key=lambda choice: choice[0])
            test_error = math.sqrt(variance_of_mean(each.mean(axis=0)))
            self._found[size] = Expected(float(each.mean()), error, test_error, float(np.std(likelihood, ddof=1)))
        return self._found[size]

    def smallest_size(self, delta: float, shift: float) -> int:
        """Return the least M whose excess, shifted by so many of its standard errors, is at most δ."""
        c = self.coefficient
        guess = round_up(max(c.value + shift * c.sampling_error, 0.0) / delta)

        def is_enough(size: int) -> bool:
            excess = self.at(size)
            return excess.value + shift * excess.sampling_error <= delta

        low, high = 0, min(guess, self.largest)
        while not is_enough(high):
            if high == self.largest:
                return max(guess, high + 1)
            low, high = high, min(2 * high, self.largest)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if is_enough(middle) else (middle, high)
        return high


@dataclasses.dataclass(frozen=True, eq=False)
class _ExcessOfProbabilities(_Excess):
    """The excess where probabilities are averaged, from log r = log p(y) − log p̄(y) of each draw, [draws, n]."""

    log_r: Array

    @property
    def draws(self) -> int:
        return len(self.log_r)

    @cached_property
    def coefficient(self) -> Expected:
        r = np.exp(self.log_r)
        square = np.mean(r**2, axis=0)
        # How much each draw moves ½ E p²/p̄², through p² and through p̄.
        moves = np.mean((r**2 - square) / 2 - square * (r - 1), axis=1)
        return _coefficient(self.second_order, float(np.std(moves, ddof=1)) / math.sqrt(len(r)))

    @cached_property
    def second_order(self) -> Array:
        return np.var(np.exp(self.log_r), axis=0, ddof=1) / 2

    def sample(self, size: int) -> tuple[Array, Array, Array]:
        draws, n = self.log_r.shape
        groups = self.log_r[: draws // size * size].reshape(-1, size, n)
        log_r = _log_mean(groups, axis=1)
        off = np.expm1(log_r)
        return off - log_r, off**2 / 2, -log_r.mean(axis=1)


@dataclasses.dataclass(frozen=True, eq=False)
class _ExcessOfLogits(_Excess):
    """The excess where logits are averaged.

    Attributes:
        z: the logits of each draw, [draws, n, classes].
        mean: their mean, [n, classes]: the exact one of a Gaussian law, otherwise that of the draws.
        variance: of one logit, if the law is Gaussian, [n].
        y: the labels, for the scatter of the likelihood alone.
    """

    z: Array
    mean: Array
    variance: Array | None
    y: Array

    @property
    def any_size(self) -> bool:
        return self.variance is not None

    @property
    def draws(self) -> int:
        return len(self.z)

    @cached_property
    def coefficient(self) -> Expected:
        error = 0.0 if self.any_size else _error_over_draws(self._quadratic(self.z))
        return _coefficient(self.second_order, error)

    @cached_property
    def _p(self) -> Array:
        return np.exp(log_softmax(self.mean))

    @cached_property
    def second_order(self) -> Array:
        if self.variance is not None:
            return self.variance * (1 - np.sum(self._p**2, axis=-1)) / 2
        return self._quadratic(self.z).mean(axis=0) * self.draws / (self.draws - 1)

    def _quadratic(self, z: Array) -> Array:
        """Return ½ var_{k ~ p_∞}(z_k − E z_k) of each draw, [draws, n]."""
        noise = z - self.mean
        return (np.sum(self._p * noise**2, axis=-1) - np.sum(self._p * noise, axis=-1) ** 2) / 2

    def sample(self, size: int) -> tuple[Array, Array, Array]:
        draws, n, classes = self.z.shape
        if self.any_size:
            z = self.mean + (self.z - self.mean) / math.sqrt(size)
        else:
            z = self.z[: draws // size * size].reshape(-1, size, n, classes).mean(axis=1)
        # KL(p_∞ ‖ p̂), without the difference of two logarithms of probabilities, which would lose digits.
        total = scipy.special.logsumexp(z, axis=-1)
        excess = total - scipy.special.logsumexp(self.mean, axis=-1) - np.sum(self._p * (z - self.mean), axis=-1)
        likelihood = np.mean(total - z[:, np.arange(n), self.y], axis=1)
        return excess, self._quadratic(z), likelihood


def _error_over_draws(each: Array) -> float:
    return math.sqrt(variance_of_mean(each.mean(axis=1)))


def _coefficient(each: Array, error: float) -> Expected:
    return Expected(float(each.mean()), error, math.sqrt(variance_of_mean(each)), math.nan)


def _log_mean(logs: Array, axis: int) -> Array:
    return scipy.special.logsumexp(logs, axis=axis, keepdims=False) - math.log(logs.shape[axis])
