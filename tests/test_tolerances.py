import jax
import numpy as np
import pytest

from tests.tolerances import ORACLE, ROUNDING, assert_close, assert_mean


@pytest.mark.parametrize("tolerances", [ROUNDING, ORACLE])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_assert_close_draws_the_line_at_the_tolerance(tolerances, dtype):
    expected = np.array([0.0, 1.0, -2.0])
    shift = 2.0 * tolerances[dtype]  # of the largest entry
    assert_close((expected + 0.5 * shift).astype(dtype), expected, tolerances)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_close((expected + 2.0 * shift).astype(dtype), expected, tolerances)


def test_assert_close_refuses_another_shape():
    with pytest.raises(AssertionError, match="shape"):
        assert_close(np.ones((2, 1)), np.ones(2))


def test_assert_close_refuses_nan():
    with pytest.raises(AssertionError, match="nan"):
        assert_close(np.array([1.0, np.nan]), np.ones(2))


def test_assert_mean_draws_the_line_at_the_standard_error(key):
    samples = np.asarray(jax.random.normal(key, (10_000, 3)))
    assert_mean(samples, np.zeros(3))
    with pytest.raises(AssertionError, match="standard errors off"):
        assert_mean(samples + 0.1, np.zeros(3))  # ten standard errors


def test_assert_mean_refuses_another_shape(key):
    with pytest.raises(AssertionError, match="samples of shape"):
        assert_mean(jax.random.normal(key, (10, 3)), np.zeros(2))
