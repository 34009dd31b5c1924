"""Kernels of networks as they are, against Jacobians in full."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntk_equiv import InfiniteEnsemble, empirical_kernel_fn, filters, gram, groups, reps, stax, theorems
from tests.tolerances import ROUNDING, assert_close

RNG = np.random.default_rng(0)


def arrays(*shape):
    return jnp.asarray(RNG.normal(size=shape))


def shared(params, x):
    """One weight used twice, one in a loop, one in a program of its own, one that is returned."""
    h = jnp.tanh(x @ params["twice"]) @ params["twice"].T
    h = jax.lax.scan(lambda h, W: (jnp.sin(h @ W), None), h, params["loop"])[0]
    return jax.jit(lambda W, h: h @ W)(params["called"], h) + params["returned"].reshape(1, 2)


def transposed(params, x):
    """Weights on the left, and one output without a channel axis."""
    return params["v"] @ jnp.tanh(params["W"] @ x.T + params["b"][:, None])


def with_rows(params, x):
    """A weight that is multiplied with several vectors of one sample."""
    return jnp.mean(jnp.tanh(x @ params["W"]), 1) @ params["V"]


SPATIAL = stax.serial(stax.Conv(4, (2, 2), b_std=0.3), stax.Relu(), stax.Dense(2))
GRAPHS = stax.serial(stax.Aggregate(), stax.Dense(5), stax.Erf(), stax.GlobalSumPool(), stax.Dense(2, b_std=1.0))
# Network, parameters, inputs, and how many parameters are kept as factors.
NETWORKS = {
    "shared": (
        shared,
        {"twice": arrays(3, 4), "loop": arrays(2, 3, 3), "called": arrays(3, 2), "returned": arrays(2)},
        arrays(4, 3),
        1,
    ),
    "transposed": (transposed, {"W": arrays(5, 3), "b": arrays(5), "v": arrays(5)}, arrays(4, 3), 1),
    "rows": (with_rows, {"W": arrays(20, 20), "V": arrays(20, 2)}, arrays(4, 3, 20), 2),
    "spatial": (SPATIAL, SPATIAL.init_fn(jax.random.key(0), (-1, 3, 4, 2))[1], arrays(4, 3, 4, 2), 0),
    "graphs": (
        GRAPHS,
        GRAPHS.init_fn(jax.random.key(0), (-1, 4, 3))[1],
        stax.Graph.of(arrays(4, 4, 3), RNG.random((4, 4, 4)) < 0.5),
        1,
    ),
}


def in_full(apply, params, x, apart):
    """Both kernels from the whole Jacobian of the whole batch, by loops over channels."""
    outputs = np.asarray(jax.jit(apply)(params, x))
    n, *grid = outputs.shape if outputs.ndim == 1 else outputs.shape[:-1]
    C, S = outputs.size // (n * int(np.prod(grid))), int(np.prod(grid))
    jacobian = jax.jit(jax.jacobian(apply))(params, x)
    J = np.concatenate([np.asarray(leaf).reshape(n, S, C, -1) for leaf in jax.tree.leaves(jacobian)], -1)
    found = []
    for rows in (outputs.reshape(n, S, C, 1), J):
        kernel = np.einsum("aicp,bjdp->abijcd", rows, rows)
        kernel = kernel if apart else sum(kernel[..., c, c] for c in range(C)) / C
        end = kernel.shape[4:]
        half = len(grid)
        axes = [axis for i in range(half) for axis in (2 + i, 2 + half + i)]
        kernel = kernel.reshape(n, n, *grid, *grid, *end)
        found.append(kernel.transpose(0, 1, *axes, *range(2 + 2 * half, kernel.ndim)))
    return found


@pytest.mark.parametrize("name", NETWORKS)
def test_every_method_meets_the_whole_jacobian(name):
    network, params, x, factored = NETWORKS[name]
    apply = network[1] if isinstance(network, tuple) else network
    for channels in ("mean", "apart") if name in ("rows", "spatial") else ("mean",):
        expected = in_full(apply, params, x, channels == "apart")
        for method in ("structured", "jacobian", "products") if channels == "mean" else ("structured", "products"):
            kernel_fn = empirical_kernel_fn(network, params, method=method, channels=channels)
            ours = kernel_fn(x)
            assert_close(ours.nngp, expected[0])
            assert_close(ours.ntk, expected[1])
            if channels == "mean":
                assert len(kernel_fn.plan(x).factored) == (factored if method == "structured" else 0)


def test_the_cheapest_method_is_chosen_by_size():
    def apply(params, x):
        return jnp.tanh(x @ params["W"]) @ params["V"]

    def chosen(features, width, outputs, channels="mean"):
        params = {"W": jnp.ones((features, width)), "V": jnp.ones((width, outputs))}
        plan = empirical_kernel_fn(apply, params, channels=channels).plan(jnp.ones((1, features)))
        return plan.method, [number for number, _ in plan.factored]

    assert chosen(30, 50, 10) == ("structured", [0, 1])
    assert chosen(1, 50, 1) == ("structured", [])  # an outer product with one number is no saving

    def convolved(params, x):
        return jax.lax.conv_general_dilated(x, params, (8,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))[:, 0]

    # Many outputs of a network with many parameters and few operations.
    wide = empirical_kernel_fn(convolved, jnp.ones((8, 4, 500)), channels="apart")
    assert wide.plan(jnp.ones((1, 8, 4))).method == "products"
    assert empirical_kernel_fn(convolved, jnp.ones((8, 4, 500))).plan(jnp.ones((1, 8, 4))).method == "structured"


def test_gram_is_the_same_if_derivatives_are_not_kept():
    network, params, x, _ = NETWORKS["rows"]
    kernel_fn = empirical_kernel_fn(network, params)
    expected = kernel_fn(x, x[:3])
    for tile in (2, None):
        for ours, whole in zip(gram(kernel_fn, x, x[:3], tile=tile), expected, strict=True):
            assert_close(ours, whole, ROUNDING)
    kernel_fn = dataclasses.replace(kernel_fn, numbers_kept=100)
    assert kernel_fn.entries_per_pair(x) > 9
    assert kernel_fn.per_sample(x).keys() == {"outputs", "x"}
    for ours, whole in zip(gram(kernel_fn, x, x[:3], tile=2), expected, strict=True):
        assert_close(ours, whole, ROUNDING)


def test_no_derivatives_for_outputs_alone():
    network, params, x, _ = NETWORKS["rows"]
    kernel_fn = empirical_kernel_fn(network, params)
    assert kernel_fn.restrict("nngp").per_sample(x).keys() == {"outputs"}
    assert_close(gram(kernel_fn, x, None, "nngp"), kernel_fn(x).nngp, ROUNDING)


class Normalized(nn.Module):
    """A module with a collection that is not trained."""

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(3, use_bias=False, param_dtype=x.dtype)(x)
        scale = self.variable("statistics", "scale", lambda: jnp.full((1, 3), 2.0, x.dtype))
        return x * scale.value


def test_linen_modules_and_single_precision():
    x = arrays(3, 2).astype(jnp.float32)
    variables = Normalized().init(jax.random.key(0), x)
    ours = empirical_kernel_fn(Normalized(), variables)(x, None, "ntk")
    assert ours.dtype == jnp.float32
    assert_close(ours, 4 * np.asarray(x) @ np.asarray(x).T, ROUNDING)


def test_gradients_in_parameters_and_inputs():
    def total(w, x):
        return empirical_kernel_fn(lambda p, x: jnp.sin(x @ p), w)(x, None, "ntk").sum()

    w, x, step = arrays(2, 1), arrays(3, 2), 1e-6
    for argument in (0, 1):
        point = (w, x)
        moved = [tuple(v.at[0, 0].add(s * step) if i == argument else v for i, v in enumerate(point)) for s in (1, -1)]
        numeric = (total(*moved[0]) - total(*moved[1])) / (2 * step)
        np.testing.assert_allclose(jax.grad(total, argument)(w, x)[0, 0], numeric, rtol=1e-7)


def test_an_ensemble_on_it_is_the_linearized_network():
    """Gradient descent of the parameters of f0 + ∂f0 · (θ − θ0), step by step, is the mean that starts at f0."""
    network, params, x, _ = NETWORKS["transposed"]
    y, test, rate, steps = arrays(4), arrays(2, 3), 0.05, 7
    _, tangent = jax.linearize(lambda p: network(p, x), params)

    def line(change, points):
        f0, slope = jax.jvp(lambda p: network(p, points), (params,), (change,))
        return f0 + slope

    def step(change, _):
        slopes = jax.grad(lambda c: 0.5 * jnp.sum((network(params, x) + tangent(c) - y) ** 2))(change)
        return jax.tree.map(lambda c, s: c - rate * s, change, slopes), None

    change, _ = jax.lax.scan(step, jax.tree.map(jnp.zeros_like, params), length=steps)
    ens = InfiniteEnsemble(empirical_kernel_fn(network, params), (x, y), filters.gradient_descent(rate))
    assert_close(ens.mean(test, steps, f0=lambda points: network(params, points)), line(change, test))


def test_theorems_see_what_a_single_network_lacks():
    """A network with random weights does not transform; averaged over a group of its weights it does."""
    rep = reps.matrix(groups.SO2.finite(4))
    params = {"W": arrays(2, 6), "b": arrays(1, 6), "V": arrays(6, 1)}
    x = arrays(3, 2)

    def apply(params, x):
        return jnp.tanh(x @ params["W"] + params["b"]) @ params["V"]

    def averaged(params, x):
        """Four copies with turned weights, side by side: a network whose kernels are invariant."""
        return jnp.concatenate([apply(params, rep(g, x)) for g in range(4)], -1)

    assert not theorems.kernel_transformation(empirical_kernel_fn(apply, params), rep, x).holds(1e-2)
    kernel_fn = empirical_kernel_fn(averaged, params)
    assert theorems.kernel_transformation(kernel_fn, rep, x).holds(1e-12)


def test_edges():
    apply, x = NETWORKS["transposed"][0], NETWORKS["transposed"][2]
    kernel_fn = empirical_kernel_fn(apply, NETWORKS["transposed"][1])
    assert kernel_fn(x[:1]).ntk.shape == (1, 1)
    assert gram(kernel_fn, x[:0], x).ntk.shape == (0, 4)
    nothing = empirical_kernel_fn(lambda params, x: 2 * x, ())
    assert not nothing(x).ntk.any()
    assert_close(nothing(x).nngp, 4 * np.asarray(x) @ np.asarray(x).T / 3)


def test_samples_of_other_shapes():
    """A network that averages over positions takes any number of them, also one on the other side."""
    params = {"W": arrays(16, 16), "V": arrays(16, 1)}

    def averaged(params, x):
        return jnp.mean(jnp.tanh(x @ params["W"]), 1) @ params["V"]

    x1, x2 = arrays(2, 2, 16), arrays(2, 1, 16)
    expected = empirical_kernel_fn(averaged, params, method="jacobian")(x1, x2, "ntk")
    assert_close(empirical_kernel_fn(averaged, params, method="structured")(x1, x2, "ntk"), expected)
    with pytest.raises(ValueError, match="`x2` must be samples like those of `x1`"):
        empirical_kernel_fn(averaged, params, method="structured")(arrays(2, 9, 16), x2, "ntk")


def test_refusals():
    network, params, x, _ = NETWORKS["transposed"]
    with pytest.raises(ValueError, match=r"`params` must be such that .* can be evaluated, got KeyError"):
        empirical_kernel_fn(network, {"W": params["W"]})(x)
    with pytest.raises(ValueError, match=r"`params` must be such that .* got TypeError: dot_general"):
        gram(empirical_kernel_fn(network, params), x[:, :2])
    with pytest.raises(TypeError, match=r"`params` must be real numbers, got dtype int"):
        empirical_kernel_fn(network, {"W": jnp.ones(3, int)})
    with pytest.raises(ValueError, match=r'a collection "params", got keys \[\'kernel\'\]'):
        empirical_kernel_fn(nn.Dense(1), {"kernel": params["W"]})
    with pytest.raises(TypeError, match=r"output is one array, got a dict"):
        empirical_kernel_fn(lambda p, x: {"logits": x}, params)(x)
    with pytest.raises(ValueError, match=r"real outputs \[1, ...\], got float64 of shape \(\)"):
        empirical_kernel_fn(lambda p, x: x.sum(), params)(x)
    with pytest.raises(TypeError, match=r"`apply` must be a function apply\(params, x\)"):
        empirical_kernel_fn("network", params)
    with pytest.raises(ValueError, match="`method` must be one of"):
        empirical_kernel_fn(network, params, method="fast")
    with pytest.raises(ValueError, match="`channels` must be one of"):
        empirical_kernel_fn(network, params, channels="trace")
    with pytest.raises(ValueError, match="`get` must be one of"):
        empirical_kernel_fn(network, params)(x, None, "kernel")
