"""Kernels layer by layer, and layers that mix samples: against the whole, the definition and finite networks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntk_equiv import stax
from tests.tolerances import assert_close, assert_mean

WEIGHTS = np.random.default_rng(5).normal(size=(4, 2))


def images(number, count):
    return jax.random.normal(jax.random.key(number), (count, 3, 2))


def first(s=stax):
    return s.serial(s.Dense(8, 1.3, 0.1), s.Relu())


def test_a_signal_continues_a_network():
    x, y = images(0, 3), images(1, 2)
    conv = stax.serial(stax.Conv(8, (2,), padding="SAME", b_std=0.1), stax.Relu())
    end = stax.serial(stax.GlobalAvgPool(), stax.Dense(1))
    whole = stax.serial(conv, conv, end)[2]
    for other in (None, y):
        signal = end[2].signal(conv[2].signal(conv[2].signal(x, other)))
        for name in ("nngp", "ntk"):
            assert_close(getattr(signal, name), whole(x, other, name))
        assert signal.shape1 == (3, 1)
        assert (signal.cov2 is None) == (other is None)
    part = conv[2].signal(x, y).cut(slice(1, 3), slice(1))
    assert_close(end[2].signal(part).ntk, stax.serial(conv, end)[2](x[1:], y[:1], "ntk"))


def test_variances_of_graphs_know_the_edges():
    adjacency = jnp.asarray(np.random.default_rng(0).random((3, 3)) < 0.6, float)
    x = stax.Graph.of(images(0, 2), adjacency)
    layer = stax.serial(stax.Dense(8), stax.Aggregate(), stax.Relu())[2]
    signal = layer.signal(x)
    assert_close(signal.cov1, jnp.stack([signal.nngp[i, i] for i in range(2)]))
    again = layer.signal(signal)
    assert_close(again.nngp, stax.serial(*[stax.Dense(8), stax.Aggregate(), stax.Relu()] * 2)[2](x, None, "nngp"))


def combined(kernel, left, right):
    return np.einsum("ai,bj,ij...->ab...", left, right, kernel)


def test_combined_samples_are_sums_of_kernels():
    x, y = images(0, 4), images(1, 3)
    half = jax.image.resize(jnp.eye(4), (2, 4), "linear"), jax.image.resize(jnp.eye(3), (2, 3), "linear")
    resized = stax.serial(first(), stax.ImageResize((2, -1, -1), "linear"))[2]
    for name in ("nngp", "ntk"):
        before = first()[2](x, y, name)
        assert_close(resized(x, y, name), combined(before, *half))
    chosen = stax.serial(first(), stax.Index(stax.Slice[[2, 0], 1:]))[2]
    assert_close(chosen(x, y, "ntk"), first()[2](x[jnp.array([2, 0]), 1:], y[jnp.array([2, 0]), 1:], "ntk"))


def test_products_with_constants_along_samples():
    x = images(0, 4)
    before = np.asarray(first()[2](x, None, "ntk"))
    summed = stax.serial(first(), stax.DotGeneral(rhs=WEIGHTS, dimension_numbers=(((0,), (0,)), ((), ()))))
    expected = np.einsum("ia,jb,ijhk->hkab", WEIGHTS, WEIGHTS, before)
    assert_close(summed[2](x, None, "ntk"), expected)
    shape, params = summed[0](jax.random.key(0), x.shape)
    assert summed[1](params, x).shape == shape == (3, 2, 8)
    scaled = stax.serial(first(), stax.DotGeneral(lhs=WEIGHTS, dimension_numbers=(((), ()), ((0,), (0,)))))
    expected = np.einsum("ia,jb,ijhk->ijabhk", WEIGHTS, WEIGHTS, before)
    signal = scaled[2].signal(x)
    assert_close(signal.ntk, expected)
    assert_close(signal.cov1, jnp.moveaxis(jnp.diagonal(signal.nngp), -1, 0))
    assert signal.shape1 == scaled[0](jax.random.key(0), x.shape)[0]


def test_products_with_constants_that_have_axes_of_their_own():
    x = images(0, 4)
    before = np.asarray(first()[2](x, None, "nngp"))
    product = stax.serial(first(), stax.DotGeneral(lhs=WEIGHTS[:3], dimension_numbers=(((0,), (1,)), ((), ()))))
    assert_close(product[2](x, None, "nngp"), np.einsum("ha,kb,ijhk->ijab", WEIGHTS[:3], WEIGHTS[:3], before))


@pytest.mark.parametrize("idx", [stax.Slice[0], stax.Slice[..., 0], stax.Slice[:, 0, :2], stax.Slice[::2, 0, 0]])
def test_kernels_need_samples_and_all_channels(idx):
    with pytest.raises(NotImplementedError, match="`idx` must be"):
        stax.serial(first(), stax.Index(idx))[2](images(0, 4))


def test_joined_samples_of_different_branches_are_independent():
    x, y = images(0, 3)[:, 0], images(1, 2)[:, 0]
    left, right = stax.Dense(4, 1.3), stax.serial(first(), stax.Dense(4))
    joined = stax.serial(stax.FanOut(2), stax.parallel(left, right), stax.FanInConcat(0))[2](x, y, "ntk")
    for rows, columns, block in ((slice(3), slice(2), left), (slice(3, 6), slice(2, 4), right)):
        assert_close(joined[rows, columns], block[2](x, y, "ntk"))
    assert not joined[:3, 2:].any()
    assert not joined[3:, :2].any()


MIXING = {
    "chosen": (stax.Index(stax.Slice[::2, 1:]),),
    "resized": (stax.ImageResize((2, -1, -1), "linear"),),
    "normalised": (stax.Dense(8, 1.0, 0.3), stax.LayerNorm((0, 1, 2))),
    "product": (stax.DotGeneral(rhs=WEIGHTS, dimension_numbers=(((), ()), ((0,), (0,)))),),
}


@pytest.mark.parametrize("name", ["chosen", "resized", "product"])
def test_finite_networks_have_these_kernels(name, key):
    """One hidden layer: the mean over random networks is the kernel at any width."""
    x = images(0, 4)
    net = stax.serial(stax.Dense(16, 1.3, 0.1), stax.Relu(), *MIXING[name], stax.Flatten(), stax.Dense(16))

    @jax.jit
    def product(key):
        y = net[1](net[0](key, x.shape)[1], x)
        return y @ y.T / y.shape[1]

    assert_mean(jax.vmap(product)(jax.random.split(key, 400)), net[2](x, None, "nngp"))


def test_masks_pass_through_layers_that_mix_samples():
    """A sample that is shorter than another one leaves its missing positions out."""
    x = images(0, 4).at[1, 2].set(-9.0).at[0, 2].set(-9.0)
    for mixing in MIXING.values():
        net = stax.serial(stax.Dense(8, 1.3, 0.1), stax.Relu(), *mixing)
        y = net[1](net[0](jax.random.key(0), x.shape)[1], x, mask_constant=-9.0)
        mask = net[2].signal(x, mask_constant=-9.0).mask1
        np.testing.assert_array_equal(jnp.broadcast_to(mask, y.mask.shape), y.mask)
    normalised = stax.serial(stax.Dense(8), stax.LayerNorm((0, 1, 2)))[2](x, None, "nngp", mask_constant=-9.0)
    variances = jnp.einsum("iihh->ih", normalised)
    assert_close(variances.sum() / 10, 1.0)  # 12 positions, two of them masked
    assert not variances[:2, 2].any()
