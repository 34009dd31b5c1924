"""What predictions are worth: how invariant they are, and how good their class probabilities are.

Orbit metrics say how far predictions change along orbits. Metrics of classification are accuracy, likelihood and
calibration, of members and of ensembles, and how well these tell known inputs from unknown ones.
"""

from ntk_equiv.metrics._classification import (
    ClassificationMetric,
    Measured,
    accuracy,
    brier_score,
    calibration_error,
    calibration_noise,
    confidence_auroc,
    disagreement_auroc,
    ensemble_probabilities,
    fit_temperature,
    negative_log_likelihood,
    reliability,
)
from ntk_equiv.metrics._classification import check_classes as check_classes
from ntk_equiv.metrics._orbits import (
    QUANTILES,
    OrbitMetric,
    continuous_orbit_same_prediction,
    orbit_mse,
    orbit_same_prediction,
    orbit_std,
    relative_orbit_std,
    symmetric_kl,
)

# Not for users but for `bounds`: metrics of many functions at once, and what they share.
from ntk_equiv.metrics._scores import AVERAGES as AVERAGES
from ntk_equiv.metrics._scores import Reliability
from ntk_equiv.metrics._scores import Scores as Scores
from ntk_equiv.metrics._scores import average_members as average_members
from ntk_equiv.metrics._scores import count_in_bins as count_in_bins
from ntk_equiv.metrics._scores import entropy as entropy
from ntk_equiv.metrics._scores import reliability_of_counts as reliability_of_counts
from ntk_equiv.metrics._scores import score_accuracy as score_accuracy
from ntk_equiv.metrics._scores import score_auroc as score_auroc
from ntk_equiv.metrics._scores import score_brier as score_brier
from ntk_equiv.metrics._scores import score_calibration as score_calibration
from ntk_equiv.metrics._scores import score_confidence as score_confidence
from ntk_equiv.metrics._scores import score_likelihood as score_likelihood
from ntk_equiv.metrics._scores import variance_of_mean as variance_of_mean

__all__ = [
    "QUANTILES",
    "ClassificationMetric",
    "Measured",
    "OrbitMetric",
    "Reliability",
    "accuracy",
    "brier_score",
    "calibration_error",
    "calibration_noise",
    "confidence_auroc",
    "continuous_orbit_same_prediction",
    "disagreement_auroc",
    "ensemble_probabilities",
    "fit_temperature",
    "negative_log_likelihood",
    "orbit_mse",
    "orbit_same_prediction",
    "orbit_std",
    "relative_orbit_std",
    "reliability",
    "symmetric_kl",
]
