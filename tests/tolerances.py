"""How closely two results must agree: decided here, by dtype, and nowhere else."""

from collections.abc import Mapping

import numpy as np
from jax.typing import ArrayLike

# The same quantity after a handful of roundings.
ROUNDING: Mapping[str, float] = {"float32": 1e-6, "float64": 1e-14}
# Two independent implementations of the same formula, which round along different ways.
ORACLE: Mapping[str, float] = {"float32": 1e-5, "float64": 1e-10}
# The same ensemble by two decompositions; late times amplify rounding by the condition number of the Gram matrix.
REDUCTION: Mapping[str, float] = {"float32": 1e-3, "float64": 1e-9}


def assert_close(actual: ArrayLike, expected: ArrayLike, tolerances: Mapping[str, float] = ORACLE) -> None:
    """Asserts equal shapes, and entries equal up to the tolerance for the dtype of `actual`.

    The error is measured against the largest entry of `expected`: kernels have entries that vanish by cancellation,
    whose own size says nothing about their rounding error.
    """
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape, f"shape {actual.shape}, expected {expected.shape}"
    tolerance = tolerances[actual.dtype.name]
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * np.max(np.abs(expected), initial=0.0))


def assert_mean(samples: ArrayLike, expected: ArrayLike, *, standard_errors: float = 5.0) -> None:
    """Asserts that the mean of independent `samples` (first axis) meets `expected` within its standard error."""
    samples, expected = np.asarray(samples), np.asarray(expected)
    assert samples.shape[1:] == expected.shape, f"samples of shape {samples.shape[1:]}, expected {expected.shape}"
    error = samples.std(axis=0, ddof=1) / np.sqrt(len(samples))
    deviation = np.max(np.abs(samples.mean(axis=0) - expected) / error)
    assert deviation <= standard_errors, f"the mean is {deviation:.1f} standard errors off, allowed {standard_errors}"
