"""What a plan is made of: errors against time, invariance against members, and what is known about each test sample."""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Num


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Errors:
    """The expected mean squared error at each time, over samples and channels.

    Attributes:
        infinite: of the infinite ensemble, [times].
        variance: what a single network adds to it, [times]; M members add 1/M of it.
        scatter: how much the test samples differ in these two, [times, 3]: the variance of the first, the covariance,
            and the variance of the second, divided by the number of samples; None where nothing is said about it.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv.planning import Errors
        >>> print(Errors(infinite=np.array([1.0, 0.2]), variance=np.array([0.5, 0.4])).of(10))      # ten members
        [1.05 0.24]
    """

    infinite: Float[np.ndarray, "times"]
    variance: Float[np.ndarray, "times"]
    scatter: Float[np.ndarray, "times 3"] | None = None

    def __repr__(self) -> str:
        low = self.infinite.min()
        return f"<errors at {len(self.infinite)} times: at least {low:.3g}, and {self.of(1).min():.3g} of one network>"

    def of(self, members: Any, /) -> Float[np.ndarray, "times"]:
        """The expected error of the mean of some members, [times]."""
        return self.infinite + self.variance / members

    def standard_error(self, members: Any = np.inf, /) -> Float[np.ndarray, "times"]:
        """How far another test set of this size would be off, [times]; NaN for a single sample."""
        if self.scatter is None:
            return np.full(len(self.infinite), np.nan)
        own, both, added = self.scatter.T
        return np.sqrt(np.maximum(own + 2 * both / members + added / np.square(members), 0.0))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class OrbitCurve:
    """The expected standard deviation over orbits, against the number of members.

    Attributes:
        members: how many, [k].
        mean: averaged over test samples, [k].
        worst: at the worst test sample, [k].

    Example:
        >>> import numpy as np
        >>> from ntk_equiv.planning import OrbitCurve
        >>> members = np.array([1, 100])
        >>> curve = OrbitCurve(members, mean=0.5 / np.sqrt(members), worst=0.8 / np.sqrt(members))
        >>> print(curve.mean, curve.worst)
        [0.5  0.05] [0.8  0.08]
    """

    members: Int[np.ndarray, "k"]
    mean: Float[np.ndarray, "k"]
    worst: Float[np.ndarray, "k"]

    def __repr__(self) -> str:
        first, last = (f"{self.mean[i]:.3g} for {self.members[i]}" for i in (0, -1))
        return f"<deviation over orbits: {first}, {last} members>"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Needed:
    """How many members it takes to stay within δ with probability 1 − ε, as [estimate, lower, upper] where sampled.

    Attributes:
        mean_worst: of the infinite ensemble, at the worst test sample.
        mean_bound: of the infinite ensemble, at all test samples at once, whatever their correlations (Šidák).
        mean_all: the same from the joint law, sampled, [3].
        orbit_worst: over the orbit of the worst test sample, sampled, [3]; NaN if no number is enough.
        orbit_median: the median over test samples; NaN if no number is enough for half of them.
        unreachable: test samples for which no number is enough, because the infinite ensemble itself deviates.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv.planning import Needed
        >>> sampled = {"mean_all": np.array([70.0, 65.0, 75.0]), "orbit_worst": np.array([50.0, 46.0, 55.0])}
        >>> found = Needed(mean_worst=60, mean_bound=80, orbit_median=30.0, unreachable=0, **sampled)
        >>> "{:.0f} members, from {:.0f} to {:.0f}".format(*found.orbit_worst)
        '50 members, from 46 to 55'
    """

    mean_worst: int
    mean_bound: int
    mean_all: Float[np.ndarray, "3"]
    orbit_worst: Float[np.ndarray, "3"]
    orbit_median: float
    unreachable: int

    def __repr__(self) -> str:
        orbit = "none is enough" if self.unreachable else f"{self.orbit_worst[0]:.0f}"
        return f"<members needed: {orbit} over all orbits, {self.mean_worst} to be close to the infinite ensemble>"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Points:
    """What is known about each test sample, at the time of the plan: arrays [m].

    Attributes:
        index: its place among the samples that were given.
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
        label: the number of its class; None for regression, or without labels.
        predicted: the number of the class that the infinite ensemble predicts; None for regression.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv.planning import Points
        >>> names = ("scatter", "mean_members", "orbit_one", "orbit_many", "orbit_lower", "orbit_upper", "bias")
        >>> known = {name: np.zeros(3) for name in names}
        >>> labels = {"error": None, "same_one": None, "same_many": None}
        >>> points = Points(index=np.arange(3), orbit_members=np.array([5.0, 40.0, 8.0]), **known, **labels)
        >>> points.worst(2).tolist()
        [1, 2]
    """

    index: Int[np.ndarray, "m"]
    scatter: Float[np.ndarray, "m"]
    mean_members: Num[np.ndarray, "m"]
    orbit_one: Float[np.ndarray, "m"]
    orbit_many: Float[np.ndarray, "m"]
    orbit_members: Float[np.ndarray, "m"]
    orbit_lower: Float[np.ndarray, "m"]
    orbit_upper: Float[np.ndarray, "m"]
    bias: Float[np.ndarray, "m"]
    error: Float[np.ndarray, "m"] | None
    same_one: Float[np.ndarray, "m"] | None
    same_many: Float[np.ndarray, "m"] | None
    label: Int[np.ndarray, "m"] | None = None
    predicted: Int[np.ndarray, "m"] | None = None

    def __repr__(self) -> str:
        return f"<{len(self.index)} test samples, the worst at {self.index[self.worst(5)].tolist()}>"

    def worst(self, count: int = 10, /) -> Int[np.ndarray, "worst"]:
        """Rows of the samples that need most members for agreement over their orbits, the worst first."""
        needed = np.where(np.isnan(self.orbit_members), np.inf, self.orbit_members)
        return np.lexsort((-self.orbit_one, -needed))[:count]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Accuracy:
    """The fraction of test samples that are classified rightly, at the time of the plan.

    The standard error of the test set says how far another test set of the same size would be off; that of sampling is
    about draws of members, and vanishes with more of them.

    Attributes:
        infinite: by the infinite ensemble, [estimate, 0, standard error of the test set].
        many: by the mean of M members, expected, [estimate, standard error of sampling, that of the test set].
        one: by one network, expected, likewise.
        over_time: by the infinite ensemble, at each time, [times].

    Example:
        >>> import numpy as np
        >>> from ntk_equiv.planning import Accuracy
        >>> each = {name: np.array([0.88, 0.0002, 0.03]) for name in ("infinite", "many", "one")}
        >>> found = Accuracy(over_time=np.array([0.88]), **each)
        >>> print(f"{found.many[0]:.2f} ± {found.many[2]:.2f}")
        0.88 ± 0.03
    """

    infinite: Float[np.ndarray, "3"]
    many: Float[np.ndarray, "3"]
    one: Float[np.ndarray, "3"]
    over_time: Float[np.ndarray, "times"]

    def __repr__(self) -> str:
        infinite, many, one = (f"{value:.3g} ± {error:.2g}" for value, _, error in (self.infinite, self.many, self.one))
        return f"<accuracy {infinite} of the infinite ensemble, {many} of the members, {one} of one network>"


def standard_error(values: np.ndarray) -> float:
    """That of a mean over test samples; NaN for a single one."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")
