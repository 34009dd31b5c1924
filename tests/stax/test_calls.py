"""Calls that code written with neural-tangents makes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntk_equiv import gram, interop, stax
from tests.tolerances import assert_close

nt = interop.neural_tangents()
RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(3, 4)))
IMAGES = jnp.asarray(RNG.normal(size=(3, 4, 5, 2)))
NET = stax.serial(stax.Dense(4, 1.3, 0.2), stax.Relu(), stax.Dense(1))


def assert_same(kernels, expected, tolerances=None):
    for k, e in zip(kernels, expected, strict=True):
        assert_close(k, e, *([] if tolerances is None else [tolerances]))


def test_channels_may_be_named_by_the_number_of_the_last_axis():
    graphs = stax.Graph.of(RNG.normal(size=(2, 5, 3)), RNG.normal(size=(5, 5)))

    def network(axis):
        first = [stax.Aggregate(aggregate_axis=1, batch_axis=0, channel_axis=axis), stax.Dense(4, channel_axis=axis)]
        middle = [stax.LayerNorm(channel_axis=axis), stax.Relu(), stax.AvgPool((2,), channel_axis=axis)]
        attention = stax.GlobalSelfAttention(4, 4, 4, 2, channel_axis=axis)
        return stax.serial(*first, *middle, attention, stax.GlobalAvgPool(channel_axis=axis))

    numbered, last = network(2), network(-1)
    assert_same(numbered.kernel_fn(graphs), last.kernel_fn(graphs))
    (shape, params), expected = (net.init_fn(jax.random.key(0), graphs.nodes.shape) for net in (numbered, last))
    assert shape == expected[0]
    assert jax.tree.structure(params) == jax.tree.structure(expected[1])
    assert_close(numbered.apply_fn(params, graphs), last.apply_fn(params, graphs))


def test_kernels_are_named_in_any_case():
    assert_close(NET.kernel_fn(X, None, "NTK"), NET.kernel_fn(X, None, "ntk"))
    assert gram(NET.kernel_fn, X, None, ("NTK", "NNGP"))._fields == ("ntk", "nngp")


def test_a_convolution_of_vectors_is_a_dense_layer():
    conv = stax.Conv(3, (), W_std=1.3, b_std=0.2)
    shape, (W, b) = conv.init_fn(jax.random.key(0), (-1, 4))
    assert shape == (-1, 3)
    assert_close(conv.apply_fn((W, b), X), stax.Dense(3, 1.3, 0.2).apply_fn((W, b), X))
    assert_same(conv.kernel_fn(X), stax.Dense(3, 1.3, 0.2).kernel_fn(X))


def test_no_repetition_is_the_identity():
    nothing = stax.repeat(stax.Dense(3), 0)
    shape, params = nothing.init_fn(jax.random.key(0), (-1, 4))
    assert shape == (-1, 4)
    assert_close(nothing.apply_fn(params, X), X)
    assert_same(nothing.kernel_fn(X), stax.Identity().kernel_fn(X))


def test_factors_of_width_have_no_effect_in_ntk_parameterization():
    scaled, plain = stax.Dense(3, s=(2, 5)), stax.Dense(3)
    assert scaled.init_fn(jax.random.key(0), (-1, 4))[0] == (-1, 3)
    assert_same(scaled.kernel_fn(X), plain.kernel_fn(X))
    conv = stax.Conv(3, (2, 2), s=(2, 5))
    assert conv.init_fn(jax.random.key(0), (-1, 4, 4, 2))[0] == (-1, 3, 3, 3)


def test_parameters_of_neural_tangents_give_the_same_outputs():
    for module in (nt.stax, stax):
        layers = [module.Conv(3, (2, 2), W_std=1.2, b_std=0.3), module.Flatten(), module.Dense(2, 1.1, 0.4)]
        init_fn, apply_fn, _ = module.serial(*layers)
        with jax.numpy_rank_promotion("allow"):
            if module is nt.stax:
                _, params = init_fn(jax.random.PRNGKey(0), IMAGES.shape)
                expected = apply_fn(params, IMAGES)
    assert params[0][1].shape == (1, 1, 1, 3)
    assert_close(apply_fn(params, IMAGES), expected)


def test_adjacencies_of_a_grid_in_a_form_of_ones_own():
    """Outer products of patterns on the nodes, sending and receiving: four axes, as many as one adjacency has."""
    factors = jnp.asarray(RNG.normal(size=(3, 2, 4, 5)))

    def to_dense(factors):
        return jnp.einsum("nij,nkl->nijkl", factors[:, 0], factors[:, 1])

    network = lambda **kwargs: stax.serial(stax.Aggregate(**kwargs), stax.Dense(2), stax.Relu())  # noqa: E731
    compact, dense = network(to_dense=to_dense), network()
    expected = dense.kernel_fn(stax.Graph.of(IMAGES, to_dense(factors)))
    assert_same(compact.kernel_fn(IMAGES, None, pattern=(factors, None)), expected)
    assert_same(compact.kernel_fn(stax.Graph.of(IMAGES, factors)), expected)


def test_flattened_inputs_are_vectors():
    """The same kernels, and the same work: one number for each pair."""
    for first in ([stax.Flatten()], [stax.Identity(), stax.serial(stax.Flatten())]):
        flat = stax.serial(*first, NET)
        assert flat.kernel_fn.entries_per_pair(IMAGES) == 1
        vectors = IMAGES.reshape(3, -1)
        assert_same(flat.kernel_fn(IMAGES, -IMAGES), NET.kernel_fn(vectors, -vectors), {"float64": 0})
        assert_same(gram(flat.kernel_fn, IMAGES, tile=2), gram(NET.kernel_fn, vectors, tile=2), {"float64": 0})
        program = str(jax.make_jaxpr(lambda x: flat.kernel_fn(x, None, "ntk"))(IMAGES))  # noqa: B023
        assert "3,3,4,5" not in program, "pairs of samples have no positions"


@pytest.mark.parametrize(("batch", "channel"), [(0, 1), (3, 0), (-1, -2)])
def test_networks_for_axes_in_another_order(batch, channel, key):
    net = stax.serial(stax.Conv(4, (2, 3)), stax.Relu(), stax.Dense(2))
    moved = stax.in_order(net, batch, channel)
    x = jax.random.normal(key, (3, 5, 4, 2))
    turned = jnp.moveaxis(x, (0, -1), (batch, channel))
    assert_close(moved.kernel_fn(turned, None, "ntk"), net.kernel_fn(x, None, "ntk"))
    assert_close(moved.kernel_fn.signal(turned, turned).cov1, net.kernel_fn.signal(x).cov1)
    shape, params = moved.init_fn(key, turned.shape)
    y = moved.apply_fn(params, turned)
    assert y.shape == shape
    assert_close(jnp.moveaxis(y, (batch, channel), (0, -1)), net.apply_fn(params, x))
    if batch == 0:
        assert_close(gram(moved, turned, None, "ntk"), net.kernel_fn(x, None, "ntk"))
    else:
        with pytest.raises(ValueError, match="`kernel_fn` must be one with `batch_axis` 0"):
            gram(moved, turned)
