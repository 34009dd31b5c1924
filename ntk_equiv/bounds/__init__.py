"""How many members, how fine an augmentation, how large an error: one function for each lemma.

Finite ensembles. The mean of M members scatters about the infinite ensemble with variance Σ_t(x)/M:

    `min_ensemble_size`, `deviation_probability`, `deviation_quantile`     at one sample
    `simultaneous_ensemble_size`, `simultaneous_probability`               at all samples of a set, from variances
    `sampled_ensemble_size`                                                the same from the joint law, by sampling
    `required_members`                                                     all of these, for an `InfiniteEnsemble`

The equivariance error of M members has a law of its own, known without training any:

    `orbit_deviation`, an `OrbitDeviation`      expectation, probabilities, quantiles, and the members needed
    `SampledOrbitDeviation`                     the same for other losses, from members drawn
    `expected_osp`                              for how much of the orbit the predicted class stays the same

Class probabilities of M members, before training any:

    `expected_metrics`                          accuracy, likelihood, calibration and AUROCs, `ExpectedMetrics`
    `members_for_likelihood`                    members whose likelihood is within δ of that of infinitely many

Continuous groups, with data augmented by a finite subgroup:

    `discretization_error`                      how dense the subgroup is, as a representation sees it
    `continuous_group_bound`                    the lemma, certified, with all its factors
    `continuous_group_estimate`                 the same for any architecture: an estimate and no bound
    `certified_continuous_deviation`            the largest error between two certified numbers, as close as you ask for
    `measured_continuous_deviation`             the largest error on a refined grid
    `min_group_order`                           how large a subgroup has to be
    `random_augmentation_deviation`             random elements instead of a subgroup

Finite width, as an estimate and no bound:

    `finite_width_estimate`, a `WidthEstimate`  what a shift a/N of the mean adds to the deviation

Sampled numbers are `Sampled` records with an interval. Numbers known from two sides are `Enclosure` records, which say
whether they are certified.
"""

from ntk_equiv.bounds._augmentation import (
    GroupOrders,
    RandomAugmentation,
    min_group_order,
    random_augmentation_deviation,
)

# For tests of the steps in a proof, not for users.
from ntk_equiv.bounds._branch_and_bound import cover_group as cover_group
from ntk_equiv.bounds._classification import ExpectedMetric, ExpectedMetrics, expected_metrics

# For `planning`, which asks several questions about one law.
from ntk_equiv.bounds._classification import metrics_of_law as metrics_of_law
from ntk_equiv.bounds._continuous_bound import GroupBound, continuous_group_bound, continuous_group_estimate
from ntk_equiv.bounds._continuous_deviation import (
    ContinuousDeviation,
    MeasuredDeviation,
    certified_continuous_deviation,
    measured_continuous_deviation,
)
from ntk_equiv.bounds._continuous_group import frequencies as frequencies
from ntk_equiv.bounds._discretization import DiscretizationError, discretization_error
from ntk_equiv.bounds._likelihood import LikelihoodMembers, members_for_likelihood
from ntk_equiv.bounds._likelihood import excess_of_law as excess_of_law
from ntk_equiv.bounds._likelihood import members_of_law as members_of_law
from ntk_equiv.bounds._member_law import GaussianMembers as GaussianMembers
from ntk_equiv.bounds._member_law import gaussian_law as gaussian_law
from ntk_equiv.bounds._members import (
    WidthEstimate,
    deviation_probability,
    deviation_quantile,
    finite_width_estimate,
    min_ensemble_size,
)
from ntk_equiv.bounds._modulus import kernel_modulus as kernel_modulus
from ntk_equiv.bounds._orbit_deviation import expected_osp, orbit_deviation
from ntk_equiv.bounds._orbit_law import OrbitDeviation, SampledOrbitDeviation
from ntk_equiv.bounds._results import Enclosure, Expected, Sampled
from ntk_equiv.bounds._simultaneous import (
    required_members,
    sampled_ensemble_size,
    simultaneous_ensemble_size,
    simultaneous_probability,
)

__all__ = [
    "ContinuousDeviation",
    "DiscretizationError",
    "Enclosure",
    "Expected",
    "ExpectedMetric",
    "ExpectedMetrics",
    "GroupBound",
    "GroupOrders",
    "LikelihoodMembers",
    "MeasuredDeviation",
    "OrbitDeviation",
    "RandomAugmentation",
    "Sampled",
    "SampledOrbitDeviation",
    "WidthEstimate",
    "certified_continuous_deviation",
    "continuous_group_bound",
    "continuous_group_estimate",
    "deviation_probability",
    "deviation_quantile",
    "discretization_error",
    "expected_metrics",
    "expected_osp",
    "finite_width_estimate",
    "measured_continuous_deviation",
    "members_for_likelihood",
    "min_ensemble_size",
    "min_group_order",
    "orbit_deviation",
    "random_augmentation_deviation",
    "required_members",
    "sampled_ensemble_size",
    "simultaneous_ensemble_size",
    "simultaneous_probability",
]
