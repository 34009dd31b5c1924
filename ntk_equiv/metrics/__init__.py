"""What predictions are worth: how invariant they are, and how good their class probabilities are.

Orbit metrics say how far predictions change along orbits. Metrics of classification are accuracy, likelihood and
calibration, of members and of ensembles, and how well these tell known inputs from unknown ones.
"""

from ntk_equiv.metrics._classification import (
    ClassificationMetric,
    Measured,
    Reliability,
    accuracy,
    brier_score,
    calibration_error,
    confidence_auroc,
    disagreement_auroc,
    ensemble_probabilities,
    fit_temperature,
    negative_log_likelihood,
    reliability,
)
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

__all__ = [
    "QUANTILES",
    "ClassificationMetric",
    "Measured",
    "OrbitMetric",
    "Reliability",
    "accuracy",
    "brier_score",
    "calibration_error",
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
