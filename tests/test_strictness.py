"""The suite is only as strict as its settings: each of them is shown to bite."""

import sys
import warnings

import jax.numpy as jnp
import pytest
from jaxtyping import TypeCheckError

import ntk_equiv

SUM_OF_ROWS = """
from jaxtyping import Array, Float

def row_sums(x: Float[Array, "n d"]) -> Float[Array, "n"]:
    return x.sum(axis=0)
"""


@pytest.fixture
def row_sums(tmp_path, monkeypatch):
    """A function planted into the package, with shapes in its annotations and the wrong axis in its body."""
    (tmp_path / "_planted.py").write_text(SUM_OF_ROWS)
    monkeypatch.setattr(ntk_equiv, "__path__", [*ntk_equiv.__path__, str(tmp_path)])
    from ntk_equiv._planted import row_sums

    yield row_sums
    del sys.modules["ntk_equiv._planted"], ntk_equiv._planted


def test_arguments_of_the_wrong_shape_are_caught(row_sums):
    with pytest.raises(TypeCheckError, match="parameters"):
        row_sums(jnp.ones(3))


def test_results_of_the_wrong_shape_are_caught(row_sums):
    with pytest.raises(TypeCheckError, match="return value"):
        row_sums(jnp.ones((2, 3)))


def test_annotations_that_hold_pass(row_sums):
    assert row_sums(jnp.ones((3, 3))).shape == (3,)


def test_warnings_are_errors():
    with pytest.raises(UserWarning, match="heard"):
        warnings.warn("heard", UserWarning, stacklevel=1)


def test_numbers_are_float64():
    assert jnp.ones(()).dtype == jnp.float64


def test_ranks_do_not_mix():
    with pytest.raises(ValueError, match="jax_numpy_rank_promotion"):
        jnp.ones((2, 3)) + jnp.ones(3)


def test_ranks_mix_for_an_oracle(rank_promotion_allowed):
    assert (jnp.ones((2, 3)) + jnp.ones(3)).shape == (2, 3)
