"""Wide finite networks against their kernels at infinite width, within the standard error of the draw.

A network of width N differs from the limit by O(1/N); widths are such that this is below the standard error.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntk_equiv import stax
from tests.tolerances import assert_mean


def adjacency(n, nodes):
    return (np.random.default_rng(5).random((n, nodes, nodes)) < 0.6).astype(float)


def graphs(n):
    nodes = np.random.default_rng(4).normal(size=(n, 4, 2))
    return stax.Graph.of(nodes, adjacency(n, 4))


def arrays(*shape):
    return jnp.asarray(np.random.default_rng(3).normal(size=shape))


def DECAY(distance):
    return jnp.exp(-distance)


NETWORKS = {
    "dense": (
        lambda w: stax.serial(
            stax.Dense(w, 1.3, 0.3), stax.Relu(), stax.Dense(w, 1.2, 0.1), stax.Erf(), stax.Dense(1, 1.1, 0.2)
        ),
        arrays(3, 4),
        256,
        300,
    ),
    "residual": (
        lambda w: stax.serial(
            stax.Dense(w, 1.0, 0.1),
            stax.FanOut(2),
            stax.parallel(stax.serial(stax.Relu(), stax.Dense(w, 1.2)), stax.Identity()),
            stax.FanInSum(),
            stax.Gelu(),
            stax.Dense(1),
        ),
        arrays(3, 4),
        256,
        300,
    ),
    "conv": (
        lambda w: stax.serial(
            stax.Conv(w, (3, 2), (1, 2), "SAME", 1.4, 0.2),
            stax.Relu(),
            stax.AvgPool((2, 1), (2, 1)),
            stax.Conv(w, (2, 2), padding="CIRCULAR", b_std=0.1),
            stax.LeakyRelu(0.1),
            stax.Flatten(),
            stax.Dense(1, 1.2, 0.1),
        ),
        arrays(2, 4, 4, 2),
        96,
        300,
    ),
    "conv with spatial output": (
        lambda w: stax.serial(stax.Conv(w, (2, 2), b_std=0.3), stax.Sin(), stax.Conv(1, (2, 2), padding="CIRCULAR")),
        arrays(2, 3, 3, 1),
        96,
        300,
    ),
    "group convolutions": (
        lambda w: stax.serial(
            stax.LiftingConv(w, (2, 2), b_std=0.2, group="D4"),
            stax.Relu(),
            stax.GroupConv(w, (2, 2), None, "VALID", 1.3, 0.1, group="D4"),
            stax.Erf(),
            stax.GroupPool(),
            stax.Dense(1, 1.2, 0.1),
        ),
        arrays(2, 3, 3, 1),
        64,
        200,
    ),
    "normalised": (
        lambda w: stax.serial(
            stax.Conv(w, (2, 2), b_std=0.3),
            stax.LayerNorm((1, -1), 0.1),
            stax.Relu(),
            stax.Flatten(),
            stax.Dense(w, 1.2, 0.1),
            stax.LayerNorm(),
            stax.Erf(),
            stax.Dense(1, 1.1, 0.2),
        ),
        arrays(2, 3, 3, 2),
        96,
        150,
    ),
    "standard parameterization": (
        lambda w: stax.serial(
            stax.Conv(3, (2,), W_std=1.3, b_std=0.3, parameterization="standard", s=(1, w)),
            stax.Relu(),
            stax.Flatten(),
            stax.Dense(2, 1.2, 0.1, parameterization="standard", s=(w, w)),
            stax.Erf(),
            stax.Dense(1, 1.1, 0.2, parameterization="standard", s=(w, 1)),
        ),
        arrays(3, 3, 2),
        64,
        150,
    ),
    "attention": (
        lambda w: stax.serial(
            stax.Dense(w, 1.2, 0.1),
            stax.Relu(),
            stax.GlobalSelfAttention(
                w, w, w, 4, W_value_std=1.3, b_std=0.2, pos_emb_type="SUM", pos_emb_decay_fn=DECAY, val_pos_emb=True
            ),
            stax.Gelu(),
            stax.GlobalAvgPool(),
            stax.Dense(1),
        ),
        arrays(2, 3, 2),
        96,
        150,
    ),
    "attention with random weights": (
        lambda w: stax.serial(
            stax.Dense(w),
            stax.GlobalSelfAttention(
                1, 8, 8, 32, False, 0.8, 0.9, 1.1, 1.2, 0.3, "IDENTITY", "CONCAT", n_chan_pos_emb=64, W_pos_emb_std=0.7
            ),
        ),
        arrays(2, 3, 2),
        64,
        150,
    ),
    "graph": (
        lambda w: stax.serial(
            stax.Aggregate(),
            stax.Dense(w, 1.1, 0.1),
            stax.Relu(),
            stax.Aggregate(),
            stax.Dense(w),
            stax.Abs(),
            stax.GlobalSumPool(),
            stax.Dense(1, 1.0, 0.1),
        ),
        graphs(2),
        128,
        300,
    ),
    "gated": (
        lambda w: stax.serial(
            stax.Dense(w, 1.1, 0.2),
            stax.FanOut(2),
            stax.parallel(stax.serial(stax.Gaussian(), stax.Dense(w, 1.3)), stax.Polynomial([0.2, 0.5, -0.3])),
            stax.FanInProd(),
            stax.Dropout(0.6),
            stax.Dense(w, 1.0, 0.1),
            stax.Rbf(0.3),
            stax.Dense(1),
        ),
        arrays(3, 4),
        128,
        200,
    ),
    "product of activations": (
        lambda w: stax.serial(
            stax.Dense(w, 1.1, 0.2),
            stax.FanOut(2),
            stax.parallel(
                stax.serial(stax.Dense(w, 1.2, 0.3), stax.Relu()),
                stax.serial(stax.Erf(), stax.Dense(w), stax.Sigmoid_like()),
            ),
            stax.FanInProd(),
            stax.Dense(1),
        ),
        arrays(3, 4),
        128,
        200,
    ),
    "joined": (
        lambda w: stax.serial(
            stax.FanOut(2),
            stax.parallel(stax.Conv(w, (2, 2), b_std=0.3), stax.Conv(w, (3, 2), W_std=1.3)),
            stax.FanInConcat(1),
            stax.Sign(),
            stax.Dropout(0.8),
            stax.AvgPool((2, 1)),
            stax.FanOut(2),
            stax.parallel(stax.Identity(), stax.Dense(w // 2, 1.4)),
            stax.FanInConcat(),
            stax.Dense(w),
            stax.Exp(1.0, 0.5),
            stax.GlobalAvgPool(),
            stax.Dense(1),
        ),
        arrays(2, 3, 2, 1),
        64,
        200,
    ),
    "local and transposed": (
        lambda w: stax.serial(
            stax.ConvLocal(w, (2,), b_std=0.3),
            stax.Relu(),
            stax.ConvTranspose(w, (3,), (2,), "CIRCULAR", 1.2, 0.2),
            stax.Gabor(),
            stax.ImageResize((-1, 3, -1), "linear"),
            stax.ConvLocal(w, (2,), None, "SAME", parameterization="standard"),
            stax.Relu(),
            stax.DotGeneral(rhs=jnp.array([1.0, -2.0, 0.5]), dimension_numbers=(((1,), (0,)), ((), ()))),
            stax.Dense(1),
        ),
        arrays(2, 3, 2),
        64,
        200,
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_finite_networks_meet_their_kernels(name):
    build, x, width, draws = NETWORKS[name]
    init_fn, apply_fn, kernel_fn = build(width)
    shape = jax.tree.leaves(x)[0].shape

    def draw(key):
        _, params = init_fn(key, (-1, *shape[1:]))
        masks = jax.random.fold_in(key, 1)
        outputs = apply_fn(params, x, rng=masks)[..., 0]
        jacobian = jax.jacobian(lambda p: apply_fn(p, x, rng=masks)[..., 0].reshape(-1))(params)
        flat = jnp.concatenate([leaf.reshape(outputs.size, -1) for leaf in jax.tree.leaves(jacobian)], axis=1)
        return jnp.outer(outputs, outputs), flat @ flat.T

    covariance, tangent = jax.jit(lambda keys: jax.lax.map(draw, keys))(jax.random.split(jax.random.key(0), draws))
    expected = kernel_fn(x)
    matrix = lambda k: k.transpose([*range(0, k.ndim, 2), *range(1, k.ndim, 2)])  # noqa: E731
    for samples, k in ((covariance, expected.nngp), (tangent, expected.ntk)):
        assert_mean(samples, matrix(k).reshape(samples.shape[1:]), standard_errors=5)


def test_a_wrong_kernel_is_noticed():
    """The comparison has teeth: weights five percent wider are seen in the covariance."""
    build, x, width, _ = NETWORKS["dense"]
    init_fn, apply_fn, _ = build(width)
    keys = jax.random.split(jax.random.key(0), 1000)
    outputs = jax.jit(lambda keys: jax.lax.map(lambda key: apply_fn(init_fn(key, (-1, 4))[1], x)[:, 0], keys))(keys)
    products = outputs[:, :, None] * outputs[:, None, :]
    right = build(1).kernel_fn(x, None, "nngp")
    assert_mean(products, right, standard_errors=5)
    with pytest.raises(AssertionError, match="standard errors off"):
        assert_mean(products, 1.05**6 * right, standard_errors=5)


@pytest.mark.parametrize("name", NETWORKS)
def test_output_shapes_are_as_announced(name):
    build, x, width, _ = NETWORKS[name]
    init_fn, apply_fn, _ = build(width)
    announced = []

    def evaluate(key):
        shape, params = init_fn(key, jax.tree.leaves(x)[0].shape)
        announced.append(shape)
        return apply_fn(params, x, rng=key)

    assert jax.eval_shape(evaluate, jax.random.key(0)).shape == announced[0]
