"""What a plan is made of: errors against time, invariance against members, and what is known about each test point."""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Num


@dataclasses.dataclass(frozen=True, eq=False)
class Errors:
    """The expected mean squared error at each time, over points and channels.

    Attributes:
        infinite: of the infinite ensemble, [times].
        variance: what a single network adds to it, [times]; M members add 1/M of it.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv.planning import Errors
        >>> print(Errors(infinite=np.array([1.0, 0.2]), variance=np.array([0.5, 0.4])).of(10))      # ten members
        [1.05 0.24]
    """

    infinite: Float[np.ndarray, "times"]
    variance: Float[np.ndarray, "times"]

    def of(self, members: Any, /) -> Float[np.ndarray, "times"]:
        """The expected error of the mean of some members, [times]."""
        return self.infinite + self.variance / members


@dataclasses.dataclass(frozen=True, eq=False)
class OrbitCurve:
    """The expected standard deviation over orbits, against the number of members.

    Attributes:
        members: how many, [k].
        mean: averaged over test points, [k].
        worst: at the worst test point, [k].

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

    def worst(self, count: int = 10, /) -> Int[np.ndarray, "worst"]:
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

    Example:
        >>> import numpy as np
        >>> from ntk_equiv.planning import Accuracy
        >>> many, one = np.array([0.88, 0.01]), np.array([0.7, 0.02])
        >>> found = Accuracy(infinite=0.9, many=many, one=one, over_time=np.array([0.9]))
        >>> print(f"{found.many[0]:.2f} ± {found.many[1]:.2f} of {found.infinite}")
        0.88 ± 0.01 of 0.9
    """

    infinite: float
    many: Float[np.ndarray, "2"]
    one: Float[np.ndarray, "2"]
    over_time: Float[np.ndarray, "times"]
