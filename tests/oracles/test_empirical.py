"""Kernels of finite networks against neural-tangents' own."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv import empirical_kernel_fn, ensembles, interop, stax
from tests.tolerances import assert_close

nt = interop.neural_tangents()
RNG = np.random.default_rng(0)
DENSE = stax.serial(stax.Dense(6, 1.4, 0.1), stax.Relu(), stax.Dense(3))


def test_the_network_of_the_paper_with_its_max_pools():
    x = jnp.asarray(RNG.normal(size=(4, 28, 28, 1)), jnp.float32)
    net = ensembles.fashion_cnn()
    init = jax.jit(net.init)
    variables = init(jax.random.key(0), x[:1])
    with jax.numpy_rank_promotion("allow"):
        expected = jax.jit(nt.empirical_ntk_fn(net.apply, vmap_axes=0))(x, None, variables)
    kernel_fn = empirical_kernel_fn(net, variables)
    assert [parameter.inputs for _, parameter in kernel_fn.plan(x).factored] == [400, 120, 84]
    ours = kernel_fn(x, None, "ntk")
    assert ours.dtype == jnp.float32
    assert_close(ours, expected)


def test_their_mean_over_random_networks_is_that_of_our_kernels():
    """The same draws: they split the key of a draw once more, for dropout."""
    x, key, draws = jnp.asarray(RNG.normal(size=(3, 4))), jax.random.key(1), 5
    with jax.numpy_rank_promotion("allow"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        keys, one = [], key
        for _ in range(draws):
            one, drawn = jax.random.split(one)
            keys.append(jax.random.split(drawn)[0])
        expected = nt.monte_carlo_kernel_fn(*DENSE[:2], key, draws, device_count=0)(x, None, "ntk")
    one = jax.jit(lambda k: empirical_kernel_fn(DENSE, DENSE.init_fn(k, x.shape)[1])(x, None, "ntk"))
    assert_close(sum(one(k) for k in keys) / draws, expected)
