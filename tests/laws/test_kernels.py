"""What every kernel must obey, whatever the network."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntk_equiv import gram, stax
from tests.architectures import ARCHITECTURES, OWN_ARCHITECTURES
from tests.tolerances import ROUNDING, assert_close

EVERY = [*ARCHITECTURES, *OWN_ARCHITECTURES]
every_architecture = pytest.mark.parametrize("architecture", EVERY, ids=lambda a: a.name)
# Compiling tiles and derivatives of all of them would take minutes; every fourth is a fair sample of layers.
a_sample_of_architectures = pytest.mark.parametrize("architecture", EVERY[::4], ids=lambda a: a.name)


def inputs(architecture, seed, n):
    x, adjacency = architecture.inputs(seed, n)
    return x if adjacency is None else stax.Graph(x, adjacency)


def as_matrix(kernel):
    """`[n1, n2, h, h', w, w']` as a matrix over (sample, position)."""
    axes = [*range(0, kernel.ndim, 2), *range(1, kernel.ndim, 2)]
    rows = int(np.prod(kernel.shape[::2]))
    return np.asarray(kernel).transpose(axes).reshape(rows, -1)


@every_architecture
def test_symmetric_and_positive_semidefinite(architecture):
    kernel_fn = architecture.build(stax)[2]
    x = inputs(architecture, 0, 4)
    for kernel in kernel_fn(x, x):
        matrix = as_matrix(kernel)
        assert_close(matrix, matrix.T, {"float64": 1e-13})
        eigenvalues = np.linalg.eigvalsh(matrix)
        assert eigenvalues[0] > -1e-12 * eigenvalues[-1]


@a_sample_of_architectures
def test_tiles_make_no_difference(architecture):
    kernel_fn = architecture.build(stax)[2]
    x, y = inputs(architecture, 0, 5), inputs(architecture, 1, 3)
    whole, tiled = kernel_fn(x, y), gram(kernel_fn, x, y, None, tile=2)
    symmetric = gram(kernel_fn, x, tile=2)
    for k, t, s, alone in zip(whole, tiled, symmetric, kernel_fn(x), strict=True):
        assert_close(t, k, {"float64": 1e-13})
        assert_close(s, alone, {"float64": 1e-13})
        assert np.array_equal(as_matrix(s), as_matrix(s).T)


def slope_along(kernel_fn, x, direction):
    """Derivative of the sum of Θ(x, x) along a direction of the features."""
    with_nodes = lambda nodes: x._replace(nodes=nodes) if isinstance(x, stax.Graph) else nodes  # noqa: E731
    total = lambda step: jnp.sum(kernel_fn(with_nodes(nodes_of(x) + step * direction), None, "ntk"))  # noqa: E731
    return jax.grad(total)(0.0), total


def nodes_of(x):
    return x.nodes if isinstance(x, stax.Graph) else x


@every_architecture
def test_transformations_trace(architecture):
    kernel_fn = architecture.build(stax)[2]
    x = inputs(architecture, 0, 2)
    batched = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), x)
    shape = jax.eval_shape(kernel_fn, x).ntk.shape
    assert jax.eval_shape(jax.jit(jax.vmap(lambda x: kernel_fn(x, None, "ntk"))), batched).shape == (3, *shape)
    direction = jnp.ones_like(nodes_of(x))
    assert jax.eval_shape(lambda x: slope_along(kernel_fn, x, direction)[0], x).shape == ()


@a_sample_of_architectures
def test_vmap_and_grad_are_right(architecture):
    kernel_fn = architecture.build(stax)[2]
    x = inputs(architecture, 0, 2)
    batched = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), x)
    mapped = jax.vmap(lambda x: kernel_fn(x, None, "ntk"))(batched)
    assert_close(mapped[1], kernel_fn(x, None, "ntk"), {"float64": 1e-13})
    direction = jnp.asarray(np.random.default_rng(2).normal(size=nodes_of(x).shape))
    # The pairs (x, x) are on the diagonal all along, where the kernel is smooth although each of its arguments is not.
    slope, total = slope_along(kernel_fn, x, direction)
    step = 1e-6
    np.testing.assert_allclose(slope, (total(step) - total(-step)) / (2 * step), rtol=1e-6)


@pytest.mark.parametrize("name", ["relu-3", "erf-4", "conv-same-flatten", "conv-gap", "graph-pooled"])
def test_float32_stays_float32(name):
    architecture = next(a for a in ARCHITECTURES if a.name == name)
    x, adjacency = architecture.inputs(0, 3, jnp.float32)
    x = x if adjacency is None else stax.Graph(x, adjacency)
    kernels = architecture.build(stax)[2](x)
    assert {k.dtype for k in kernels} == {jnp.dtype("float32")}
    exact = architecture.build(stax)[2](jax.tree.map(lambda leaf: leaf.astype(jnp.float64), x))
    for k, e in zip(kernels, exact, strict=True):
        assert_close(k, e, {"float32": 20 * ROUNDING["float32"]})


def test_layers_without_parameters_add_nothing_to_the_tangent_kernel():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 4, 4, 3)))
    for layer in (stax.Flatten(), stax.GlobalAvgPool(), stax.AvgPool((2, 2)), stax.Identity()):
        assert not layer.kernel_fn(x, None, "ntk").any()


def with_vanishing_means(rng):
    """Images whose first window has mean zero up to rounding."""
    x = rng.normal(size=(3, 4, 4, 1))
    x[0, 1, 1] = -(x[0, 0, 0] + x[0, 0, 1] + x[0, 1, 0])
    return jnp.asarray(x)


def with_constant_features(rng):
    """Graphs with the same features on all nodes, which a Laplacian makes zero up to rounding."""
    weights = rng.uniform(size=(3, 5, 5))
    edges = weights + weights.transpose(0, 2, 1)
    laplacian = edges.sum(2)[:, :, None] * np.eye(5) - edges
    nodes = np.concatenate([np.full((1, 5, 2), rng.normal()), rng.normal(size=(2, 5, 2))])
    return stax.Graph.of(nodes, laplacian)


def pooled_first(pool):
    return stax.serial(pool, stax.Conv(8, (1, 1)), stax.Relu(), stax.Flatten(), stax.Dense(1))


CANCELLING = {
    "avgpool": (pooled_first(stax.AvgPool((2, 2), (2, 2))), with_vanishing_means),
    "sumpool": (pooled_first(stax.SumPool((2, 2), (2, 2))), with_vanishing_means),
    "avgpool-erf": (
        stax.serial(stax.AvgPool((2, 2), (2, 2)), stax.Dense(8), stax.Erf(), stax.GlobalAvgPool()),
        with_vanishing_means,
    ),
    "laplacian": (
        stax.serial(stax.Aggregate(), stax.Dense(8), stax.Relu(), stax.GlobalAvgPool(), stax.Dense(1)),
        with_constant_features,
    ),
    "laplacian-abs": (
        stax.serial(stax.Aggregate(), stax.Dense(8), stax.Abs(), stax.Aggregate(), stax.Dense(1), stax.Flatten()),
        with_constant_features,
    ),
}


@pytest.mark.parametrize("name", CANCELLING)
def test_the_order_of_samples_makes_no_difference_where_variances_cancel(name):
    (_, _, kernel_fn), draw = CANCELLING[name]
    for seed in range(12):
        x = draw(np.random.default_rng(seed))
        # The sample that cancels comes first and last: nothing but its own rows and columns may notice.
        backwards = kernel_fn(jax.tree.map(lambda leaf: leaf[::-1], x))
        for k, b in zip(kernel_fn(x), backwards, strict=True):
            assert_close(k, b[::-1, ::-1], {"float64": 1e-13})
            assert float(k[-1, -1].max()) > 0
