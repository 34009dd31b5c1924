"""Dropout: which entries of the kernels it changes, and what its finite network wants."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntk_equiv import gram, interop, stax
from tests.tolerances import ROUNDING, assert_close

RATE = 0.7


def network(module=stax, mode="train"):
    return module.serial(module.Dense(64, 1.2, 0.1), module.Relu(), module.Dropout(RATE, mode), module.Dense(1, 1.1))


def samples(n, dtype=np.float64):
    return jnp.asarray(np.random.default_rng(0).normal(size=(n, 5)), dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_only_the_same_sample_is_changed(dtype):
    """A sample with itself, with copies, exact and up to rounding; not with its opposite or its double."""
    x = samples(2, dtype)
    others = jnp.concatenate([x, x[:1], x[:1] * (1 + 2 * np.finfo(dtype).eps), -x[:1], 2 * x[:1]])
    dropped = network().kernel_fn(x, others)
    kept = network(mode="test").kernel_fn(x, others)
    expected = np.ones((2, 6))
    expected[0, [0, 2, 3]] = expected[1, 1] = 1 / RATE
    for after, before in zip(dropped, kept, strict=True):
        np.testing.assert_allclose(after / before, expected, rtol=ROUNDING[np.dtype(dtype).name])


def test_it_is_the_diagonal_of_neural_tangents():
    nt = interop.neural_tangents()
    x = samples(4)
    with jax.numpy_rank_promotion("allow"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = jax.jit(lambda x: network(nt.stax)[2](x, None, ("nngp", "ntk")))(x)
    for ours, oracle in zip(network().kernel_fn(x), theirs, strict=True):
        assert_close(ours, oracle, {"float64": 1e-8})  # On the diagonal theirs is off by that.


def test_neither_tiles_nor_the_second_argument_make_a_difference():
    x, kernel_fn = samples(4), network().kernel_fn
    for whole, tiled, with_itself in zip(kernel_fn(x), gram(kernel_fn, x, tile=3), kernel_fn(x, x), strict=True):
        assert_close(tiled, whole, ROUNDING)
        assert_close(with_itself, whole, ROUNDING)


def test_graphs_are_told_apart_by_their_edges():
    layers = [stax.Aggregate(), stax.Dense(8), stax.Relu(), stax.Dropout(RATE), stax.GlobalSumPool()]
    nodes = jnp.ones((2, 3, 1))
    # A triangle, and the same triangle with its nodes in another order: equal node by node, and yet another sample.
    edges = jnp.array([[[0, 1, 0], [0, 0, 1], [1, 0, 0]], [[0, 0, 1], [1, 0, 0], [0, 1, 0]]], float)
    kernel = stax.serial(*layers).kernel_fn(stax.Graph(nodes, edges), None, "nngp")
    np.testing.assert_allclose(kernel, 0.5 * np.array([[6 + 3 / RATE, 9], [9, 6 + 3 / RATE]]), rtol=1e-12)


def test_positions_have_masks_of_their_own():
    layers = [stax.Conv(1, (1,)), stax.Dropout(RATE)]
    kernel = stax.serial(*layers).kernel_fn(jnp.ones((1, 3, 1)), None, "nngp")[0, 0]
    np.testing.assert_allclose(kernel, np.ones((3, 3)) + (1 / RATE - 1) * np.eye(3), rtol=1e-12)


def test_masks_keep_the_mean():
    """Each entry is 0 or 1 / rate, independent of the others, in each of the layers that a key is split among."""
    _, apply_fn, _ = stax.serial(stax.Dropout(RATE), stax.FanOut(2), stax.parallel(*[stax.Dropout(RATE)] * 2))
    x = jnp.ones((200, 100))
    first, second = jax.jit(lambda key: apply_fn([(), (), [(), ()]], x, rng=key))(jax.random.key(1))
    assert set(np.unique(first).round(6)) == {0, round(1 / RATE**2, 6)}
    error = np.sqrt((1 / RATE**2 - 1) / x.size)
    assert abs(first.mean() - 1) < 5 * error
    # Shared is the first layer's mask, so the mean product is 1 / rate.
    assert abs((first * second).mean() - 1 / RATE) < 5 * np.sqrt(1 / RATE**6 / x.size)


def test_in_test_mode_nothing_happens_and_no_key_is_wanted():
    _, apply_fn, kernel_fn = stax.Dropout(RATE, "test")
    x = samples(2)
    assert np.array_equal(apply_fn((), x), x)
    assert np.array_equal(kernel_fn(x, None, "nngp"), stax.Identity().kernel_fn(x, None, "nngp"))
    activation_next = stax.serial(stax.Dense(1), stax.Dropout(RATE, "test"), stax.Relu())
    assert np.isfinite(activation_next.kernel_fn(x, None, "ntk")).all()


def test_noise_is_left_out_on_demand():
    init_fn, apply_fn, _ = network()
    x = samples(4)
    _, params = init_fn(jax.random.key(0), x.shape)
    with pytest.raises(ValueError, match=r"or without noise `apply_fn\(params, x, mode=\"test\"\)`"):
        apply_fn(params, x)
    with pytest.raises(ValueError, match="`mode` must be one of 'train', 'test', got 'eval'"):
        apply_fn(params, x, mode="eval")
    _, without, _ = network(mode="test")
    np.testing.assert_array_equal(apply_fn(params, x, mode="test"), without(params, x))
