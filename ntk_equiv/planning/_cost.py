"""What a plan costs, measured before it starts; how many samples fit the time there is; how much time is left.

With n training and m test samples under a group of order g, kernels are evaluated for these pairs of samples:

    fit       2 p n²                  twice, for Θ and then with 𝒦; p elements, one of each pair {k, k⁻¹}
              (g n)²                  instead, if the symmetry cannot be used
    errors    (2 m + v) g n           mean and variance on test samples, variance on v training samples
    orbits    2 m (1 + g) g n + …     mean and covariance on test samples and all their images

In memory there are the blocks of all irreps for both kernels, 2 Σ (d n)² numbers, twice while they are solved.

The cost of a pair is measured on a few of them. The cost of eigenvalue problems grows as n³ and is measured too.
"""

import dataclasses
import math
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import jax.numpy as jnp
import numpy as np

from ntk_equiv._check import refusal
from ntk_equiv._gram import split_kernel
from ntk_equiv._machine import free_memory, in_bytes
from ntk_equiv._typing import KernelFunction
from ntk_equiv.groups import FiniteGroup
from ntk_equiv.infinite import duration, seconds_per_pair, seconds_per_product
from ntk_equiv.planning._problem import Problem

# Arrays of the size of the kernels of one pair that are alive at the same time.
ARRAYS_ALIVE = 10
# Seconds for compilation and everything else that does not grow with the samples.
FIXED_SECONDS = {"fit": 6.0, "errors": 5.0, "orbits": 8.0}
# Seconds for one draw from a normal law, with what is computed from it.
SECONDS_PER_DRAW = 4e-8
# An eigendecomposition takes about as long as so many products of matrices of its size.
PRODUCTS_PER_DECOMPOSITION = 5
# `bounds.orbit_deviation` asks for the covariance of so many samples at once.
COVARIANCE_AT_ONCE = 192
# A plan needs at least so many training and test samples.
FEWEST_SAMPLES = (4, 2)
# The fraction of the allowed time to plan with, because brief measurements are inexact.
USABLE_TIME = 0.8

Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of each step of a plan, for any number of samples.

    Attributes:
        pair: seconds for the kernels of two samples.
        product: seconds for a product of two matrices, divided by the cube of their size.
        group: the group.
        reduced: whether its symmetry is used.
        times: the number of training times.
        draws: the number of random numbers that are drawn for each test sample.
    """

    pair: float
    product: float
    group: FiniteGroup
    reduced: bool
    times: int
    draws: int

    def pairs(self, n: int, m: int, /) -> dict[str, int]:
        """Return for how many pairs of samples each step evaluates kernels."""
        g, images = self.group.order, m * (1 + self.group.order)
        halves = sum(k <= inverse for k, inverse in enumerate(self.group.inverse.tolist()))
        return {
            "fit": 2 * halves * n**2 if self.reduced else (g * n) ** 2,
            "errors": (2 * m + min(n, m)) * g * n,
            "orbits": (2 * images + m) * g * n + (images * min(images, COVARIANCE_AT_ONCE) + m**2) // 2,
        }

    def steps(self, n: int, m: int, /) -> dict[str, float]:
        """Return how many seconds each step takes."""
        blocks = self._blocks()
        cubes = sum(weight * (size * n) ** 3 for size, weight in blocks)
        squares = sum(weight * size * (size * n) ** 2 for size, weight in blocks)
        algebra = {
            "fit": PRODUCTS_PER_DECOMPOSITION * self.product * cubes,
            "errors": 2 * self.product * squares * self.times * (m + min(n, m)),
            "orbits": 4 * self.product * squares * m * (1 + self.group.order) + SECONDS_PER_DRAW * self.draws * m,
        }
        pairs = self.pairs(n, m)
        return {step: FIXED_SECONDS[step] + self.pair * pairs[step] + algebra[step] for step in pairs}

    def memory(self, n: int, /) -> int:
        """Return how many bytes the blocks of n training samples take, in double precision."""
        if not self.reduced:
            return 4 * 8 * (self.group.order * n) ** 2
        kinds = [(sigma.shape[1], np.iscomplexobj(sigma)) for sigma in self.group.irreps()]
        # One of two conjugate complex irreps is enough, and takes as much as two real ones.
        return 4 * 8 * sum(size**2 for size, _ in kinds) * n**2

    def _blocks(self) -> list[tuple[int, int]]:
        """Return the size of each block in units of training samples, and for how many real blocks it counts."""
        if not self.reduced:
            return [(self.group.order, 1)]
        # A complex block costs four times as much, but one of two conjugate irreps is enough.
        return [(sigma.shape[1], 2 if np.iscomplexobj(sigma) else 1) for sigma in self.group.irreps()]

    def seconds(self, n: int, m: int, /) -> float:
        """Return how many seconds all steps take together."""
        return sum(self.steps(n, m).values())

    def sizes(self, n: int, m: int, seconds: float, /) -> tuple[int, int]:
        """Return the most training and test samples, up to n and m, that take no longer than `seconds` and fit.

        The number of test samples falls more slowly, as the square root of the number of training samples, because few
        test samples say little about errors; it stays below half of the number of training samples. At least a few
        samples of each remain, whatever they cost.
        """
        free = free_memory()

        def is_possible(n: int, m: int) -> bool:
            return self.seconds(n, m) <= seconds and self.memory(n) <= free

        if is_possible(n, m):
            return n, m
        fewest = min(n, FEWEST_SAMPLES[0]), min(m, FEWEST_SAMPLES[1])

        def shrink(part: float) -> tuple[int, int]:
            training = max(fewest[0], _round_down(part * n))
            return training, max(fewest[1], min(_round_down(math.sqrt(part) * m), training // 2))

        low, high = 0.0, 1.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if is_possible(*shrink(middle)) else (low, middle)
        return shrink(low)


def measure_cost(
    kernel_fn: KernelFunction, problem: Problem, /, group: FiniteGroup, *, reduced: bool, times: int, draws: int
) -> Cost:
    """Measure what a plan costs on this computer, for no more samples than the problem has.

    Args:
        kernel_fn: the kernels.
        problem: the data.
        group: the group.
        reduced: whether its symmetry can be used.
        times: the number of training times.
        draws: how often the orbit of a test sample is drawn.
    """
    numbers = draws * (1 + group.order) * problem.channels
    cost = Cost(0.0, 0.0, group, reduced, times, numbers)
    pair = seconds_per_pair(split_kernel(kernel_fn), problem.x, sum(cost.pairs(*problem.sizes).values()))
    return dataclasses.replace(cost, pair=pair, product=seconds_per_product())


@dataclasses.dataclass(frozen=True)
class Budget:
    """The time that a plan may take, and the choice of samples that keeps within it.

    Attributes:
        minutes: how long it may take.
        seed: of the choice of samples.
        say: called with a line of text.
        start: when planning began, by `time.monotonic`.
    """

    minutes: float
    seed: int
    say: Say
    start: float

    def choose_samples(self, cost: Cost, problem: Problem, /) -> tuple[Problem, float]:
        """Return the problem with as many samples as there is time for, and how many seconds all will have taken.

        Raises:
            ValueError: there is not even time for a few samples.
        """
        measuring = self.seconds_spent()
        usable = USABLE_TIME * 60 * self.minutes
        seconds = max(usable - measuring, usable / 2)
        n, m = cost.sizes(*problem.sizes, seconds)
        if cost.seconds(n, m) > seconds:
            needed = math.ceil((cost.seconds(n, m) + min(measuring, usable / 2)) / 60 / USABLE_TIME)
            expected = f"at least {needed} for {n} training and {m} test samples"
            got = f"{self.minutes:g}, with {duration(cost.pair)} for a pair of samples"
            fix = "Choose a simpler network (mlp, or cnn without :gap), smaller images or a smaller group."
            raise refusal("minutes", expected=expected, got=got, fix=fix)
        all_samples, longer = _counts(cost, *problem.sizes), duration(cost.seconds(*problem.sizes))
        everything = f"{all_samples} would take about {longer} and {in_bytes(cost.memory(problem.sizes[0]))}"
        reason = f"{everything}; {self.minutes:g} minutes are allowed (--minutes), {in_bytes(free_memory())} are free."
        self.say(f"a pair of samples takes {duration(cost.pair)}")
        if (n, m) != problem.sizes:
            self.say(f"only {n} training and {m} test samples are used: {reason}")
        self.say(f"{_counts(cost, n, m)} will take about {duration(cost.seconds(n, m))}")
        return problem.draw_fewer(n, m, self.seed, reason), measuring + cost.seconds(n, m)

    def drop_test_samples(self, cost: Cost, problem: Problem, pace: float, /) -> Problem:
        """Return the problem with fewer test samples, if at this pace there is no time for all of them.

        Args:
            cost: the cost that was measured.
            problem: the problem that was fitted; its training samples stay.
            pace: how many times longer than expected everything takes.
        """
        n, m = problem.sizes
        left = 60 * self.minutes - self.seconds_spent()

        def fits(count: int) -> bool:
            steps = cost.steps(n, count)
            return pace * (steps["errors"] + steps["orbits"]) <= left

        if fits(m):
            return problem
        fewest = min(m, FEWEST_SAMPLES[1])
        count = max((some for some in range(fewest, m) if fits(some)), default=fewest)
        reason = f"the computer became slower after the start, and {self.minutes:g} minutes are allowed (--minutes)."
        self.say(f"only {count} test samples are used: {reason}")
        return problem.draw_fewer(n, count, self.seed, reason)

    def seconds_spent(self) -> float:
        """Return how many seconds have passed since the start."""
        return time.monotonic() - self.start


def check_memory(kernel_fn: KernelFunction, x: np.ndarray, /) -> None:
    """Refuse a network whose kernels do not fit into memory even for one pair of samples."""
    halves: Any = split_kernel(kernel_fn)
    numbers, free = halves.entries_per_pair(jnp.asarray(x[:1])), free_memory()
    if ARRAYS_ALIVE * numbers * x.dtype.itemsize > free:
        expected = f"a network whose kernels fit into {in_bytes(free)} of free memory"
        got = f"one with {numbers:.2g} numbers for each pair of samples, in about {ARRAYS_ALIVE} arrays at once"
        fix = "An average over all positions needs all pairs of positions: leave out :gap, or make the images smaller."
        raise refusal("arch", expected=expected, got=got, fix=fix)


def cost_note(cost: Cost, n: int, m: int, /) -> str:
    """Return a note on what the plan cost, and how that grows."""
    return (
        f"Cost: {_counts(cost, n, m)} are {sum(cost.pairs(n, m).values()):.2g} pairs, {duration(cost.pair)} for each; "
        "the number of pairs grows as the square of the number of samples, and the cost of eigenvalue problems as its "
        "cube (--max-points, --minutes)."
    )


def _counts(cost: Cost, n: int, m: int) -> str:
    return f"{n} training and {m} test samples under {cost.group.order} elements"


class Clock:
    """Says what is being done and how much time is left: when a step starts, and every few seconds of a long one.

    It is a context manager, because a thread speaks while a step is computed.

    Args:
        say: called with a line of text, also by that thread.
        steps: how many seconds each step is expected to take, in their order.
        every: how many seconds pass between lines.
    """

    def __init__(self, say: Say, steps: dict[str, float], /, *, every: float = 15.0) -> None:
        self._say, self._expected, self._every = say, steps, every
        self._start = time.monotonic()
        self._begun: dict[str, float] = {}
        self._activity = ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._speak, daemon=True)

    def __enter__(self) -> "Clock":
        self._start = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def begin(self, step: str, activity: str, /) -> None:
        """Note that a step begins, and say so."""
        self._begun[step], self._activity = time.monotonic(), activity
        self._report(activity)

    def expect(self, steps: dict[str, float], /) -> None:
        """Take other durations for the steps from now on."""
        self._expected = steps

    def seconds_left(self) -> float:
        """Return how many seconds are left, if the rest is as slow as the steps that are over."""
        now, names = time.monotonic(), list(self._expected)
        current = names.index(list(self._begun)[-1])
        expected = sum(self._expected[name] for name in names[:current])
        pace = max(1.0, (self._begun[names[current]] - self._start) / expected) if expected else 1.0
        rest = pace * self._expected[names[current]] - (now - self._begun[names[current]])
        return pace * sum(self._expected[name] for name in names[current + 1 :]) + max(0.0, rest)

    def pace(self) -> float:
        """Return how many times longer than expected all steps so far took, counting the current one as finished."""
        expected = sum(self._expected[name] for name in self._begun)
        return max(1.0, (time.monotonic() - self._start) / expected)

    def _report(self, activity: str) -> None:
        left = self.seconds_left()
        self._say(f"{activity}; about {duration(left)} left" if left >= 1 else f"{activity}; longer than expected")

    def _speak(self) -> None:
        while not self._over.wait(self._every):
            if self._activity:
                self._report(f"still {self._activity}")


def _round_down(value: float) -> int:
    """Round down to two digits, so that plans made one after the other have the same sizes more often."""
    unit = 10 ** max(0, math.floor(math.log10(max(value, 1.0))) - 1)
    return int(value // unit) * unit
