"""What a plan costs, measured before it starts; the sizes that fit the time one has; and how much time is left.

With n training and m test samples under a group of order g, kernels are evaluated for these pairs of samples:

    fit       2 p n²                  twice, for Θ and then with 𝒦; p elements, one of each pair {k, k⁻¹}
              (g n)²                  the same where the symmetry cannot be used
    errors    (2 m + v) g n           mean and variance on test samples, variance on v training samples
    orbits    2 m (1 + g) g n + …     mean and covariance on test samples and all their images

and what a pair costs is measured on some. Eigenvalue problems grow as n³, which is measured too.
"""

import dataclasses
import math
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv._check import is_number, refusal
from ntk_equiv._gram import ENTRIES_PER_TILE, gram, split_kernel
from ntk_equiv._memory import free_memory, in_bytes
from ntk_equiv._typing import KernelFunction
from ntk_equiv.groups import FiniteGroup
from ntk_equiv.planning._problem import Problem

# Samples on each side when pairs are timed, first and at most.
FEW, MANY = 4, 400
# Seconds that a measurement of few pairs must take to be told from overhead.
TELLING = 0.5
# Arrays as large as the kernels of one pair that are alive at the same time.
ARRAYS_ALIVE = 10
# Compilation, and all that does not grow, in seconds.
COMPILING = {"fit": 6.0, "errors": 5.0, "orbits": 8.0}
# Seconds for one draw from a normal law, and what is made of it.
DRAWING = 4e-8
# Eigenvectors of a matrix take as long as this many products of matrices of its size.
EIGENVECTORS = 5
# Samples whose covariance `bounds.orbit_deviation` asks for at once.
TOGETHER = 192
# With fewer training and test samples than these there is no plan.
LEAST = (4, 2)
# Part of the time that is planned with: measurements of a moment are not exact.
PLANNED = 0.8


@dataclasses.dataclass(frozen=True)
class Cost:
    """What the parts of a plan cost, for any number of samples.

    Attributes:
        pair: seconds for the kernels of two samples.
        product: seconds for a product of two matrices, divided by the cube of their size.
        group: the group.
        reduced: whether its symmetry is used.
        times: how many training times are looked at.
        draws: how many numbers are drawn for each test sample.
    """

    pair: float
    product: float
    group: FiniteGroup
    reduced: bool
    times: int
    draws: int

    def pairs(self, n: int, m: int, /) -> dict[str, int]:
        """For how many pairs of samples kernels are evaluated, step by step."""
        g, images = self.group.order, m * (1 + self.group.order)
        halves = sum(k <= inverse for k, inverse in enumerate(self.group.inverse.tolist()))
        return {
            "fit": 2 * halves * n**2 if self.reduced else (g * n) ** 2,
            "errors": (2 * m + min(n, m)) * g * n,
            "orbits": (2 * images + m) * g * n + (images * min(images, TOGETHER) + m**2) // 2,
        }

    def steps(self, n: int, m: int, /) -> dict[str, float]:
        """How many seconds each step takes."""
        blocks = self._blocks
        cubes = sum(weight * (size * n) ** 3 for size, weight in blocks)
        squares = sum(weight * size * (size * n) ** 2 for size, weight in blocks)
        algebra = {
            "fit": EIGENVECTORS * self.product * cubes,
            "errors": 2 * self.product * squares * self.times * (m + min(n, m)),
            "orbits": 4 * self.product * squares * m * (1 + self.group.order) + DRAWING * self.draws * m,
        }
        pairs = self.pairs(n, m)
        return {step: COMPILING[step] + self.pair * pairs[step] + algebra[step] for step in pairs}

    @property
    def _blocks(self) -> list[tuple[int, int]]:
        """The size of each block of the Gram matrix, in training samples, and how many real ones it counts for."""
        if not self.reduced:
            return [(self.group.order, 1)]
        # Complex numbers cost four times as much, and of two irreps that are conjugate one is enough.
        return [(sigma.shape[1], 2 if np.iscomplexobj(sigma) else 1) for sigma in self.group.irreps()]

    def seconds(self, n: int, m: int, /) -> float:
        """How many seconds all of it takes."""
        return sum(self.steps(n, m).values())

    def sizes(self, n: int, m: int, seconds: float, /) -> tuple[int, int]:
        """The most training and test samples, up to n and m, for which it takes no longer than this.

        Test samples are left out more slowly, as the root of the number of training samples, because few of them tell
        little about errors; down to half as many. There are always a few of both, whatever they cost.
        """
        if self.seconds(n, m) <= seconds:
            return n, m
        least = min(n, LEAST[0]), min(m, LEAST[1])

        def shrunk(part: float) -> tuple[int, int]:
            training = max(least[0], _rounded(part * n))
            return training, max(least[1], min(_rounded(math.sqrt(part) * m), training // 2))

        low, high = 0.0, 1.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if self.seconds(*shrunk(middle)) <= seconds else (low, middle)
        return shrunk(low)


def measured(
    kernel_fn: KernelFunction, problem: Problem, /, group: FiniteGroup, *, reduced: bool, times: int, draws: int
) -> Cost:
    """What a plan costs here and now, for no more samples than the problem has.

    Args:
        kernel_fn: the kernels.
        problem: the data.
        group: the group.
        reduced: whether its symmetry can be used.
        times: how many training times are looked at.
        draws: how many draws there are of the orbit of a test sample.
    """
    numbers = draws * (1 + group.order) * (problem.y.shape[1] if problem.y.ndim == 2 else 1)
    cost, most = Cost(0.0, 0.0, group, reduced, times, numbers), problem.sizes
    pair = _seconds_per_pair(kernel_fn, problem.x, sum(cost.pairs(*most).values()))
    return dataclasses.replace(cost, pair=pair, product=_seconds_per_product())


class Budget:
    """The time that a plan may take, and what is done to stay within it.

    Args:
        minutes: the time.
        say: called with a line of text.
        start: when it began, by `time.monotonic`.
    """

    def __init__(self, minutes: Any, say: Callable[[str], None], start: float, /) -> None:
        if minutes != math.inf and not (is_number(minutes) and float(minutes) > 0):
            fix = "It is the time that planning may take; inf does without a limit."
            raise refusal("minutes", expected="a positive number", got=repr(minutes), fix=fix)
        self.minutes, self.say, self.start = float(minutes), say, start
        self.expected = 0.0

    def fitted(self, cost: Cost, problem: Problem, seed: int, /) -> Problem:
        """The problem with as many samples as there is time for; what it costs is said before it starts.

        Raises:
            ValueError: there is not even time for a few.
        """
        measuring = time.monotonic() - self.start
        planned = PLANNED * 60 * self.minutes
        seconds = max(planned - measuring, planned / 2)
        n, m = cost.sizes(*problem.sizes, seconds)
        if cost.seconds(n, m) > seconds:
            needed = math.ceil((cost.seconds(n, m) + min(measuring, planned / 2)) / 60 / PLANNED)
            expected = f"at least {needed} for {n} training and {m} test samples"
            got = f"{self.minutes:g}, with {duration(cost.pair)} for a pair of samples"
            fix = "Choose a simpler network (mlp, or cnn without :gap), smaller images or a smaller group."
            raise refusal("minutes", expected=expected, got=got, fix=fix)
        most, longer = _counted(cost, *problem.sizes), duration(cost.seconds(*problem.sizes))
        why = f"{most} would take about {longer}, and {self.minutes:g} minutes are allowed (--minutes)."
        self.say(f"a pair of samples takes {duration(cost.pair)}")
        if (n, m) != problem.sizes:
            self.say(f"only {n} training and {m} test samples are used: {why}")
        self.say(f"{_counted(cost, n, m)} will take about {duration(cost.seconds(n, m))}")
        self.expected = measuring + cost.seconds(n, m)
        return problem.fewer(n, m, seed, why)

    def trimmed(self, cost: Cost, problem: Problem, seed: int, clock: "Clock", /) -> Problem:
        """The problem with fewer test samples, if the first step took so long that there is no time for all of them."""
        n, m = problem.sizes
        left, pace = 60 * self.minutes - (time.monotonic() - self.start), clock.pace()

        def fits(count: int) -> bool:
            steps = cost.steps(n, count)
            return pace * (steps["errors"] + steps["orbits"]) <= left

        if fits(m):
            return problem
        least = min(m, LEAST[1])
        count = max((some for some in range(least, m) if fits(some)), default=least)
        why = f"the computer is slower than it was at the start, and {self.minutes:g} minutes are allowed (--minutes)."
        self.say(f"only {count} test samples are used: {why}")
        clock.steps = cost.steps(n, count)
        return problem.fewer(n, count, seed, why)

    def clock(self, cost: Cost, problem: Problem, /) -> "Clock":
        """A clock for the steps of this problem."""
        return Clock(self.say, cost.steps(*problem.sizes))

    def spent(self) -> dict[str, float]:
        """How many seconds were expected and how many it took, until now."""
        return {"expected_seconds": round(self.expected, 1), "seconds": round(time.monotonic() - self.start, 1)}


def check_memory(kernel_fn: KernelFunction, x: Any, /) -> None:
    """Refuse networks whose kernels do not fit into memory even for one pair of samples."""
    halves: Any = split_kernel(kernel_fn)
    numbers, free = halves.entries_per_pair(jnp.asarray(x[:1])), free_memory()
    if ARRAYS_ALIVE * numbers * x.dtype.itemsize > free:
        expected = f"a network whose kernels fit into {in_bytes(free)} of free memory"
        got = (
            f"one with {numbers:.2g} numbers for each pair of samples, of which about {ARRAYS_ALIVE} arrays are needed"
        )
        fix = "Averages over all positions need all pairs of them: leave out :gap, or make the images smaller."
        raise refusal("arch", expected=expected, got=got, fix=fix)


def duration(seconds: float, /) -> str:
    """A time as people say it.

    >>> duration(0.00002), duration(8.4), duration(150.0), duration(150_000.0)
    ('20 µs', '8 s', '2.5 min', '42 h')
    """
    for unit, size, end in (("µs", 1e-6, 1e-3), ("ms", 1e-3, 1.0), ("s", 1.0, 100.0), ("min", 60.0, 6000.0)):
        if seconds < end:
            return f"{seconds / size:.0f} {unit}" if unit != "min" else f"{seconds / size:.2g} {unit}"
    return f"{seconds / 3600:.2g} h" if seconds < 3e5 else f"{seconds / 86400:.2g} days"


def note(cost: Cost, n: int, m: int, /) -> str:
    """What it took, and how that grows."""
    return (
        f"Cost: {_counted(cost, n, m)} are {sum(cost.pairs(n, m).values()):.2g} pairs, {duration(cost.pair)} for each; "
        "their number grows as the square of the samples, and eigenvalue problems as the cube (--max-points, "
        "--minutes)."
    )


def _counted(cost: Cost, n: int, m: int) -> str:
    return f"{n} training and {m} test samples under {cost.group.order} elements"


class Clock:
    """Says what is being done and how much time is left: when a step starts, and every few seconds of a long one.

    Args:
        say: called with a line of text, by another thread as well.
        steps: how many seconds each step is expected to take, in their order.
        every: how many seconds pass between lines.
    """

    def __init__(self, say: Callable[[str], None], steps: dict[str, float], /, *, every: float = 15.0) -> None:
        self.say, self.steps, self.every = say, steps, every
        self.begun: dict[str, float] = {}
        self.doing = ""
        self.over = threading.Event()
        self.teller = threading.Thread(target=self._tell, daemon=True)

    def __enter__(self) -> "Clock":
        self.start = time.monotonic()
        self.teller.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None) -> None:
        self.over.set()
        self.teller.join()

    def step(self, name: str, doing: str, /) -> None:
        """The next step begins."""
        self.begun[name], self.doing = time.monotonic(), doing
        self._say(doing)

    def left(self) -> float:
        """How many seconds are left, if what comes goes as slowly as what has been."""
        now, names = time.monotonic(), list(self.steps)
        current = names.index(list(self.begun)[-1])
        expected = sum(self.steps[name] for name in names[:current])
        pace = max(1.0, (self.begun[names[current]] - self.start) / expected) if expected else 1.0
        rest = pace * self.steps[names[current]] - (now - self.begun[names[current]])
        return pace * sum(self.steps[name] for name in names[current + 1 :]) + max(0.0, rest)

    def pace(self) -> float:
        """How many times longer the steps until now took than was expected, the current one as if it were over."""
        expected = sum(self.steps[name] for name in self.begun)
        return max(1.0, (time.monotonic() - self.start) / expected)

    def _say(self, doing: str) -> None:
        left = self.left()
        self.say(f"{doing}; about {duration(left)} left" if left >= 1 else f"{doing}; longer than expected")

    def _tell(self) -> None:
        while not self.over.wait(self.every):
            if self.doing:
                self._say(f"still {self.doing}")


def _seconds_per_pair(kernel_fn: KernelFunction, x: Any, pairs: int) -> float:
    """Measured on few pairs, and on more of them where overhead would be most of it and the result matters."""
    halves: Any = split_kernel(kernel_fn)
    tile = max(1, math.isqrt(ENTRIES_PER_TILE // halves.entries_per_pair(jnp.asarray(x[:1]))))
    for count in (FEW, tile * max(1, min(FEW, MANY // tile))):  # whole tiles, so that none is evaluated in vain
        one, other = jnp.asarray(x[:count]), jnp.asarray(x[-count:])
        _timed(lambda: gram(kernel_fn, one, other))  # noqa: B023
        # The slower of two, for a computer that has other things to do.
        seconds = max(_timed(lambda: gram(kernel_fn, one, other)) for _ in range(2))  # noqa: B023
        each = seconds / len(one) / len(other)
        if seconds > TELLING or count >= len(x) or tile == 1 or each * pairs < 1:
            break
    return each


def _seconds_per_product(size: int = 512) -> float:
    """Measured by products and not by eigenvectors, whose time varies wildly while other programs use the processor."""
    half = jnp.asarray(np.random.default_rng(0).normal(size=(size, size)))
    return min(_timed(lambda: half @ half) for _ in range(4)) / size**3


def _timed(call: Callable[[], Any]) -> float:
    start = time.monotonic()
    jax.block_until_ready(call())
    return time.monotonic() - start


def _rounded(value: float) -> int:
    """Down to two digits, so that plans made one after the other have the same sizes more often."""
    unit = 10 ** max(0, math.floor(math.log10(max(value, 1.0))) - 1)
    return int(value // unit) * unit
