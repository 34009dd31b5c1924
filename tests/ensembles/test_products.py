"""Products of matrices in another orientation: the same numbers, and what XLA makes of them."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

from ntk_equiv.ensembles._gradients import value_and_gradient
from ntk_equiv.ensembles._products import with_fast_products

SLOW = "lhs_contracting_dims={0}"
SHAPES = {"tall": (2048, 64, 16), "wide": (16, 64, 2048), "square": (128, 128, 128)}


def matrices(m, k, n, right, dtype="float64"):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(k, m)), rng.normal(size=(k, n) if right == 0 else (n, k))
    return jnp.asarray(a, dtype), jnp.asarray(b, dtype)


def contract(right):
    return lambda a, b: lax.dot_general(a, b, (((0,), (right,)), ((), ())))


def compiled_text(function, *arguments):
    return jax.jit(function).lower(*arguments).compile().as_text()


@pytest.mark.parametrize("right", [0, 1])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_left_factor_is_contracted_along_its_rows_with_the_same_numbers(shape, right):
    a, b = matrices(*SHAPES[shape], right)
    fast = with_fast_products(contract(right))
    expected = np.asarray(a).T @ (np.asarray(b) if right == 0 else np.asarray(b).T)
    np.testing.assert_allclose(jax.jit(fast)(a, b), expected, atol=1e-12 * np.abs(expected).max())
    assert SLOW not in compiled_text(fast, a, b)
    assert SLOW not in compiled_text(lambda a, b: fast(a, b).T, a, b)


def test_a_plain_gradient_has_slow_products():
    a, b = matrices(*SHAPES["tall"], 0)
    assert SLOW in compiled_text(contract(0), a, b)


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(16)(nn.relu(nn.Dense(512)(x)))


def linen():
    network = Linen()
    return network.init(jax.random.key(0), jnp.ones((1, 24))), network.apply


def from_nnx():
    rngs = nnx.Rngs(0)
    network = nnx.Sequential(nnx.Linear(24, 512, rngs=rngs), nnx.relu, nnx.Linear(512, 16, rngs=rngs))
    graph, params = nnx.split(network)
    return params, lambda params, x: nnx.merge(graph, params)(x)


@pytest.mark.parametrize("build", [linen, from_nnx])
def test_gradients_of_flax_modules_are_those_of_jax(build):
    params, apply = build()
    x = jnp.asarray(np.random.default_rng(0).normal(size=(256, 24)), "float32")

    def loss(params):
        return jnp.mean((apply(params, x) - 1) ** 2)

    def ours(params):
        return value_and_gradient(loss, params)

    def plain(params):
        return jax.value_and_grad(loss)(params)

    found, expected = jax.jit(ours)(params), jax.jit(plain)(params)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6 * float(jnp.abs(other).max()))
    assert SLOW in compiled_text(plain, params)
    assert SLOW not in compiled_text(ours, params)


def test_maps_and_derivatives_of_fast_products():
    a, b = matrices(*SHAPES["tall"], 0)
    a, b = jnp.stack([a, 2 * a]), jnp.stack([b, b + 1])
    fast, plain = with_fast_products(contract(0)), contract(0)
    expected = np.einsum("ikm,ikn->imn", a, b)
    np.testing.assert_allclose(jax.vmap(fast)(a, b), expected, atol=1e-10)
    np.testing.assert_allclose(lax.map(lambda pair: fast(*pair), (a, b)), expected, atol=1e-10)
    gradient, other = (jax.grad(lambda a, f=f: jnp.sum(f(a, b[0]) ** 3))(a[0]) for f in (fast, plain))
    np.testing.assert_allclose(gradient, other, rtol=1e-9, atol=1e-9 * float(jnp.abs(other).max()))


@jax.custom_vjp
def squared(x):
    return x**2


squared.defvjp(lambda x: (x**2, x), lambda x, g: (2 * x * g,))


def everything(a, b, key):
    """A function with loops, branches, checkpoints, callbacks, random numbers, and several results."""
    C = contract(0)(a, b)
    C = jax.checkpoint(lambda C: jnp.tanh(C) @ b.T[:, :8])(C) + jax.nn.relu(C[:, :8]) + squared(C[:, :8])
    total, parts = lax.scan(lambda s, row: (s + row.sum(), jnp.sort(row)), 0.0, C)
    count = lax.while_loop(lambda n: n < 5, lambda n: n + 2, 0)
    C = lax.cond(total > 0, jnp.sin, jnp.cos, C) + jax.random.normal(key, C.shape, C.dtype)
    C = jax.pure_callback(lambda C: np.asarray(C), jax.ShapeDtypeStruct(C.shape, C.dtype), C)
    return {"C": C, "parts": (parts, count)}, total, None, 3.0


def test_everything_else_passes_through():
    arguments = (*matrices(*SHAPES["tall"], 0), jax.random.key(1))
    found, expected = with_fast_products(everything)(*arguments), everything(*arguments)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (contract(0), [(64, 8), (64, 8)]),
        (contract(0), [(8, 1024), (8, 1024)]),
        (lambda a, b: a @ b, [(512, 128), (128, 64)]),
        (lambda a, b: jnp.einsum("bki,bkj->bij", a, b), [(2, 64, 512), (2, 64, 128)]),
    ],
)
def test_small_and_other_products_stay_as_they_are(function, shapes):
    jaxpr = jax.make_jaxpr(with_fast_products(function))(*map(jnp.ones, shapes))
    assert "optimization_barrier" not in str(jaxpr)


def test_other_platforms_keep_their_products():
    a, b = matrices(*SHAPES["tall"], 0, "float32")
    traced = jax.jit(with_fast_products(contract(0))).trace(a, b)
    on = {name: traced.lower(lowering_platforms=(name,)).as_text() for name in ("cpu", "cuda")}
    assert "optimization_barrier" in on["cpu"]
    assert "optimization_barrier" not in on["cuda"]
