"""Convolution as a product and pooling as a maximum over axes, against Flax and XLA."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from ntk_equiv._convolution import MANY_SAMPLES, _as_convolution, _as_product, convolve, max_pool
from tests.tolerances import assert_close

RNG = np.random.default_rng(0)
CASES = {
    "image": ((2, 7, 6, 3), (3, 2, 3, 4), (1, 1)),
    "strided": ((2, 7, 6, 3), (3, 2, 3, 4), (2, 3)),
    "sequence": ((2, 9, 2), (4, 2, 3), (2,)),
    "volume": ((1, 4, 5, 3, 2), (2, 3, 1, 2, 3), (1, 2, 1)),
    "many images": ((MANY_SAMPLES, 7, 6, 3), (3, 2, 3, 4), (2, 1)),
}


@pytest.mark.parametrize("name", CASES)
def test_the_product_is_the_convolution_with_its_gradients(name):
    shape, filters, strides = CASES[name]
    x, W = jnp.asarray(RNG.normal(size=shape)), jnp.asarray(RNG.normal(size=filters))
    squares = lambda f: lambda x, W: jnp.sum(f(x, W, strides=strides) ** 2)  # noqa: E731
    both = [jax.jit(jax.value_and_grad(squares(f), (0, 1)))(x, W) for f in (_as_product, _as_convolution, convolve)]
    for a, b in zip(jax.tree.leaves(both[0]), jax.tree.leaves(both[1]), strict=True):
        assert_close(a, b, {"float64": 1e-12})
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), both[0], both[2]))


def test_both_are_those_of_flax():
    x = jnp.asarray(RNG.normal(size=(2, 9, 8, 3)))
    conv = nn.Conv(4, (3, 3), padding="VALID", use_bias=False, param_dtype=jnp.float64)
    variables = conv.init(jax.random.key(0), x)
    assert_close(convolve(x, variables["params"]["kernel"], (1, 1)), conv.apply(variables, x))
    pooled = [
        jax.jit(jax.value_and_grad(lambda x, pool=pool: jnp.sum(pool(x) ** 3)))(x)
        for pool in (lambda x: max_pool(x, (2, 2)), lambda x: nn.max_pool(x, (2, 2), (2, 2)))
    ]
    assert_close(pooled[0][0], pooled[1][0])
    assert_close(pooled[0][1], pooled[1][1])


@pytest.mark.parametrize(("samples", "window"), [(2, (2, 3)), (MANY_SAMPLES, (2, 3)), (2, (5, 4))])
def test_the_largest_entries_of_a_window_share_its_derivative(samples, window):
    x = RNG.integers(0, 3, size=(samples, 5, 8, 2)).astype(float)  # so that many entries are the largest
    weights = RNG.normal(size=(samples, 5 // window[0], 8 // window[1], 2))
    pool = lambda x: jnp.sum(max_pool(x, window) * weights)  # noqa: E731
    expected = np.zeros_like(x)
    for n, i, j, c in np.ndindex(weights.shape):
        place = n, slice(i * window[0], (i + 1) * window[0]), slice(j * window[1], (j + 1) * window[1]), c
        largest = x[place] == x[place].max()
        expected[place] = weights[n, i, j, c] * largest / largest.sum()
    assert_close(jax.jit(jax.grad(pool))(x), expected)
    direction = RNG.normal(size=x.shape)
    assert_close(jax.jvp(pool, (jnp.asarray(x),), (jnp.asarray(direction),))[1], np.sum(expected * direction))


@pytest.mark.parametrize(("platform", "compiled"), [("cpu", False), ("cuda", True), ("tpu", True)])
def test_accelerators_get_the_convolution_of_xla(platform, compiled):
    function = jax.jit(lambda x, W: convolve(x, W, (1, 1)))
    lowered = export.export(function, platforms=[platform])(jnp.ones((1, 4, 4, 1)), jnp.ones((2, 2, 1, 1)))
    assert ("stablehlo.convolution" in lowered.mlir_module()) == compiled
