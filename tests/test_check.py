"""The shared checks: what they accept comes back, what they refuse is named."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntk_equiv import _check


def test_a_value_among_the_options_is_returned():
    assert _check.one_of("ntk", ("nngp", "ntk"), "get") == "ntk"


def test_a_value_outside_the_options_is_refused_with_the_options():
    with pytest.raises(ValueError, match=r"`get` must be one of 'nngp', 'ntk', got 'ntkk'\."):
        _check.one_of("ntkk", ("nngp", "ntk"), "get")


@pytest.mark.parametrize("value", [1, 7, np.int32(7)])
def test_positive_integers_are_returned_as_int(value):
    result = _check.positive_integer(value, "tile")
    assert result == value
    assert type(result) is int


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "1", None])
def test_other_values_are_no_positive_integers(value):
    with pytest.raises(ValueError, match="`tile` must be a positive integer, got"):
        _check.positive_integer(value, "tile")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_floating_arrays_keep_their_dtype(dtype):
    assert _check.floating(jnp.ones(2, dtype), "x").dtype == dtype
    assert isinstance(_check.floating(np.ones(2), "x"), jax.Array)


@pytest.mark.parametrize(
    ("value", "got"),
    [
        (jnp.ones(2, int), "dtype int64"),
        (np.ones(2, "uint8"), "dtype uint8"),
        (jnp.ones(2, bool), "dtype bool"),
        (jnp.ones(2, complex), "dtype complex128"),
        ([1.0, 2.0], "list"),
    ],
)
def test_what_is_not_floating_is_refused_with_the_way_out(value, got):
    with pytest.raises(TypeError, match=rf"`x` must be .*, got {got}\. Convert it first"):
        _check.floating(value, "x")


@pytest.mark.parametrize(("value", "divides"), [((1.0, 2.0), False), ([1.0], False), (np.ones(2, np.uint8), True)])
def test_only_whole_numbers_are_told_to_divide_by_255(value, divides):
    with pytest.raises(TypeError) as refused:
        _check.floating(value, "x")
    assert ("divided by 255" in str(refused.value)) == divides


@pytest.mark.parametrize("transform", [jax.jit, jax.grad, lambda f: lambda x: jax.vmap(f)(x[None])])
def test_values_are_unknown_under_transformations(transform):
    """Warnings being errors here, this also shows that JAX has not deprecated the class it is decided by."""
    seen = []
    transform(lambda x: seen.append(_check.is_concrete({"x": x})) or x)(jnp.ones(()))
    assert seen == [False]


@pytest.mark.parametrize("x", [jnp.ones(2), np.ones(2), [1.0, jnp.ones(())], {}])
def test_values_are_known_otherwise(x):
    assert _check.is_concrete(x)
