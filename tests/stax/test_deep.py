"""Equal layers in a row are a loop: the program does not grow with the depth, and the numbers are those of a chain."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntk_equiv import gram, stax
from tests.tolerances import assert_close

VECTORS = jnp.asarray(np.random.default_rng(0).normal(size=(4, 5)))
IMAGES = jnp.asarray(np.random.default_rng(1).normal(size=(3, 4, 4, 2)))
GRAPHS = stax.Graph.of(np.random.default_rng(2).normal(size=(3, 4, 2)), np.eye(4) + np.roll(np.eye(4), 1, 0) / 2)


def residual(layer, width):
    branch = stax.serial(stax.Relu(), layer(width, 0.4))
    return [stax.FanOut(2), stax.parallel(stax.Identity(), branch), stax.FanInSum()]


def dense(width, W_std=1.4):
    return stax.Dense(width, W_std, 0.2)


# What one block consists of, for a width; how the network begins and ends; inputs.
BLOCKS = {
    "relu": (lambda w: [dense(w), stax.Relu()], [], [], VECTORS),
    "normalised": (lambda w: [dense(w), stax.LayerNorm(), stax.LeakyRelu(0.1)], [], [], VECTORS),
    "dropout": (lambda w: [dense(w), stax.Gelu(), stax.Dropout(0.9)], [], [], VECTORS),
    "residual": (lambda w: residual(dense, w), [stax.Dense(8)], [stax.Relu()], VECTORS),
    "convolution": (
        lambda w: [stax.Conv(w, (3, 3), padding="SAME", W_std=1.4, b_std=0.1), stax.Relu()],
        [],
        [stax.GlobalAvgPool()],
        IMAGES,
    ),
    "shrinking images": (lambda w: [stax.Conv(w, (2, 2), W_std=1.4), stax.Relu()], [], [stax.Flatten()], IMAGES),
    "graph": (lambda w: [stax.Aggregate(), dense(w, 0.8), stax.Abs()], [], [stax.GlobalSumPool()], GRAPHS),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_a_loop_has_the_kernels_of_the_chain(name):
    """No kernel here depends on widths, but only layers of one width make a loop."""
    block, first, last, x = BLOCKS[name]
    repeats = 3 if name == "shrinking images" else 6
    looped = stax.serial(*first, stax.repeat(stax.serial(*block(8)), repeats), *last, stax.Dense(1))
    if name == "residual":  # Its sums want one width, so that something else has to stand between.
        blocks = [stax.serial(*block(8), *[stax.Identity()] * i) for i in range(repeats)]
    else:
        blocks = [stax.serial(*block(8 + i)) for i in range(repeats)]
    chain = stax.serial(*first, *blocks, *last, stax.Dense(1))
    for k, expected in zip(gram(looped.kernel_fn, x, tile=2), chain.kernel_fn(x), strict=True):
        assert_close(k, expected, {"float64": 1e-12})


def test_each_layer_of_a_loop_keeps_its_own_hyperparameters():
    stds, step = jnp.linspace(0.8, 1.9, 6), 1e-6

    def kernel(stds, widths, x):
        layers = [(stax.Dense(w, s, s / 5), stax.LeakyRelu(s / 3)) for s, w in zip(stds, widths, strict=True)]
        return stax.serial(*(layer for pair in layers for layer in pair), stax.Dense(1))[2](x, None, "ntk")

    looped = jax.jit(lambda stds, x: kernel(stds, [4] * 6, x))
    assert_close(looped(stds, VECTORS), kernel(stds, range(4, 10), VECTORS), {"float64": 1e-12})
    directions = jnp.sin(jnp.arange(6.0)), jnp.cos(VECTORS)
    _, slope = jax.jvp(lambda s, x: looped(s, x).sum(), (stds, VECTORS), directions)
    ends = [looped(stds + t * directions[0], VECTORS + t * directions[1]).sum() for t in (step, -step)]
    np.testing.assert_allclose(slope, (ends[0] - ends[1]) / (2 * step), rtol=1e-7)
    single = looped(stds, VECTORS.astype(jnp.float32))
    assert single.dtype == jnp.float32
    assert_close(single, looped(stds, VECTORS), {"float32": 2e-5})


@pytest.mark.parametrize("derivative", [False, True])
def test_programs_do_not_grow_with_the_depth(derivative):
    def size(depth):
        # As one writes it: new layers each time, activations and blocks in between.
        layers = [layer for _ in range(depth) for layer in (stax.Dense(8, 1.4, 0.1), stax.Relu())]
        kernel_fn = stax.serial(stax.Dense(8), stax.Erf(), stax.serial(*layers), stax.Dense(1))[2]
        evaluate = lambda x: kernel_fn(x, None, "ntk").sum()  # noqa: E731
        program = str(jax.make_jaxpr(jax.grad(evaluate) if derivative else evaluate)(VECTORS))
        return program.count("cond[")

    assert size(60) == size(20) < 25


def test_hundreds_of_layers():
    """At variance 2 a ReLU network keeps variances, and cosines go to one."""
    block = stax.serial(stax.Dense(64, W_std=2**0.5), stax.Relu())
    net = stax.serial(stax.repeat(block, 300), stax.Dense(1))
    nngp, ntk = gram(net.kernel_fn, VECTORS)
    variance = jnp.mean(VECTORS**2, -1)
    assert_close(jnp.diagonal(nngp), variance, {"float64": 1e-12})
    assert_close(jnp.diagonal(ntk), 301 * variance, {"float64": 1e-12})
    cosines = nngp / jnp.sqrt(variance[:, None] * variance[None, :])
    assert float(cosines.min()) > 0.999


def test_new_values_of_hyperparameters_are_no_new_program():
    def kernel_fn(value):
        layers = stax.Dense(4, value, value), stax.LeakyRelu(value), stax.Dense(4), stax.LayerNorm(eps=value)
        return stax.serial(*layers, stax.ABRelu(value, 1.0), stax.Dense(4), stax.Erf(value), stax.Dense(1))[2]

    evaluate = jax.jit(lambda kernel_fn, x: kernel_fn(x, None, "ntk"))
    values = [evaluate(kernel_fn(value), VECTORS)[0, 0].item() for value in (0.1, 0.2, 0.35)]
    assert len(set(values)) == 3
    assert evaluate._cache_size() == 1


def test_slopes_may_be_differentiated():
    evaluate = jax.jit(lambda a: stax.serial(dense(1), stax.LeakyRelu(a), dense(1))[2](VECTORS, None, "ntk").sum())
    step = 1e-6
    slope = (evaluate(0.2 + step) - evaluate(0.2 - step)) / (2 * step)
    np.testing.assert_allclose(jax.grad(evaluate)(0.2), slope, rtol=1e-7)


@pytest.mark.parametrize("activation", [stax.Erf(), stax.Sin()], ids=["erf", "sin"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_chaotic_networks_keep_their_diagonals(activation, dtype):
    """They drive samples apart, and must not take a sample and itself for two: all variances have one limit."""
    net = stax.serial(stax.repeat(stax.serial(stax.Dense(8, 2.5, 0.1), activation), 100), stax.Dense(1))
    variances = jnp.diagonal(gram(net.kernel_fn, VECTORS.astype(dtype), None, "nngp"))
    assert variances.dtype == dtype
    np.testing.assert_allclose(variances, variances[0], rtol=1e3 * float(jnp.finfo(dtype).eps))
