"""What a plan is made of: errors against time, invariance against members, and what is known about each test point."""

import dataclasses
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Errors:
    """The expected mean squared error at each time, over points and channels.

    Attributes:
        infinite: of the infinite ensemble, [times].
        variance: what a single network adds to it, [times]; M members add 1/M of it.
    """

    infinite: np.ndarray
    variance: np.ndarray

    def of(self, members: Any, /) -> np.ndarray:
        """The expected error of the mean of some members, [times]."""
        return self.infinite + self.variance / members


@dataclasses.dataclass(frozen=True, eq=False)
class OrbitCurve:
    """The expected standard deviation over orbits, against the number of members.

    Attributes:
        members: how many, [k].
        mean: averaged over test points, [k].
        worst: at the worst test point, [k].
    """

    members: np.ndarray
    mean: np.ndarray
    worst: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Needed:
    """How many members it takes to stay within δ with probability 1 − ε, as [estimate, lower, upper] where sampled.

    Attributes:
        mean_worst: of the infinite ensemble, at the worst test point.
        mean_bound: of the infinite ensemble, at all test points at once, whatever their correlations (Šidák).
        mean_all: the same from the joint law, sampled, [3].
        orbit_worst: over the orbit of the worst test point, sampled, [3]; NaN if no number is enough.
        orbit_median: the median over test points; NaN if no number is enough for half of them.
        unreachable: test points for which no number is enough, because the infinite ensemble itself deviates.
    """

    mean_worst: int
    mean_bound: int
    mean_all: np.ndarray
    orbit_worst: np.ndarray
    orbit_median: float
    unreachable: int


@dataclasses.dataclass(frozen=True, eq=False)
class Points:
    """What is known about each test point, at the time of the plan: arrays [m].

    Attributes:
        index: its place among the points that were given.
        scatter: the standard deviation of one network about the infinite ensemble, over all channels.
        mean_members: members to be within δ of the infinite ensemble.
        orbit_one: the expected standard deviation of one network over the orbit.
        orbit_many: the same for the mean of M members.
        orbit_members: members for which predictions over the orbit agree up to δ; NaN if no number is enough.
        orbit_lower: the lower end of its interval.
        orbit_upper: the upper end of its interval.
        bias: how far the infinite ensemble itself is from equivariant, the largest over the group.
        error: the distance of the infinite ensemble from the label; None without labels.
        same_one: for how many elements of the group one network predicts the same class; None for regression.
        same_many: the same for the mean of M members.
    """

    index: np.ndarray
    scatter: np.ndarray
    mean_members: np.ndarray
    orbit_one: np.ndarray
    orbit_many: np.ndarray
    orbit_members: np.ndarray
    orbit_lower: np.ndarray
    orbit_upper: np.ndarray
    bias: np.ndarray
    error: np.ndarray | None
    same_one: np.ndarray | None
    same_many: np.ndarray | None

    def worst(self, count: int = 10, /) -> np.ndarray:
        """Rows of the points that need most members for agreement over their orbits, the worst first."""
        needed = np.where(np.isnan(self.orbit_members), np.inf, self.orbit_members)
        return np.lexsort((-self.orbit_one, -needed))[:count]


@dataclasses.dataclass(frozen=True, eq=False)
class Accuracy:
    """The fraction of test points that are classified rightly, at the time of the plan.

    Attributes:
        infinite: by the infinite ensemble.
        many: by the mean of M members, expected, [estimate, standard error].
        one: by one network, expected, [estimate, standard error].
        over_time: by the infinite ensemble, at each time, [times].
    """

    infinite: float
    many: np.ndarray
    one: np.ndarray
    over_time: np.ndarray
