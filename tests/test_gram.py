"""Tiles, triangles, guests and refusals of `gram`."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntk_equiv import _gram, gram, interop, stax
from tests.tolerances import ORACLE, assert_close

X = jnp.asarray(np.random.default_rng(0).normal(size=(7, 3)))
Y = jnp.asarray(np.random.default_rng(1).normal(size=(4, 3)))
KERNEL_FN = stax.serial(stax.Dense(1, 1.2, 0.1), stax.Relu(), stax.Dense(1))[2]


@pytest.mark.parametrize("tile", [1, 2, 3, 6, 7, 100])
def test_any_tile_gives_the_same(tile):
    assert_close(gram(KERNEL_FN, X, Y, "ntk", tile=tile), KERNEL_FN(X, Y, "ntk"), {"float64": 1e-14})
    symmetric = gram(KERNEL_FN, X, get="ntk", tile=tile)
    assert_close(symmetric, KERNEL_FN(X, None, "ntk"), {"float64": 1e-14})
    assert np.array_equal(symmetric, symmetric.T)


def test_only_one_triangle_is_evaluated():
    seen = []

    def spy(x1, x2=None, get=None):
        jax.debug.callback(lambda a, b: seen.append((float(a[0, 0]), float(b[0, 0]))), x1, x2)
        return x1 @ x2.T

    x = jnp.arange(6.0)[:, None]
    result = jax.block_until_ready(gram(spy, x, None, "ntk", tile=2))
    jax.effects_barrier()
    assert np.array_equal(result, x @ x.T)
    assert sorted(seen) == [(0, 0), (0, 2), (0, 4), (2, 2), (2, 4), (4, 4)]


@pytest.mark.parametrize("get", ["nngp", "ntk", ("ntk",), ("ntk", "nngp"), None])
def test_what_comes_back_is_what_was_asked_for(get):
    ours, whole = gram(KERNEL_FN, X, Y, get), KERNEL_FN(X, Y, get)
    assert type(ours) is type(whole)
    if isinstance(get, tuple):
        assert ours._fields == get
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(whole), strict=True):
        assert_close(a, b, {"float64": 1e-14})


@pytest.mark.parametrize("get", ["ntk", ("ntk",), ("ntk", "nngp")])
def test_guests_may_return_more_than_they_were_asked_for(get):
    guest = lambda x1, x2=None, get=None: KERNEL_FN(x1, x2)  # noqa: E731
    ours, expected = gram(guest, X, Y, get, tile=3), gram(KERNEL_FN, X, Y, get, tile=3)
    assert type(ours) is type(expected)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        assert_close(a, b, {"float64": 1e-14})
    traced = jax.jit(lambda x: gram(guest, x, None, get))(X)
    assert type(traced) is type(expected)


def test_what_does_not_fit_is_refused_before_the_work():
    with pytest.raises(ValueError, match=r"2 of 2000000 × 2000000 samples in float64, .* 64 TB .* few rows at a"):
        gram(KERNEL_FN, jnp.ones((2_000_000, 3)))
    with pytest.raises(ValueError, match=r"1 of 200000 × 200000 .* 8 TB"):
        gram(stax.Conv(1, (1,))[2], jnp.ones((200_000, 5, 1)), None, "ntk")


def test_guests_are_served_too():
    nt = interop.neural_tangents()
    layers = lambda s: s.serial(s.Dense(1, 1.2, 0.1), s.Relu(), s.Dense(1))  # noqa: E731
    with jax.numpy_rank_promotion("allow"):
        theirs = gram(layers(nt.stax)[2], X, Y, tile=3)
    for a, b in zip(theirs, gram(layers(stax)[2], X, Y, tile=3), strict=True):
        assert_close(a, b, ORACLE)


def test_graphs_are_cut_along_their_samples():
    rng = np.random.default_rng(0)
    x = stax.Graph.of(rng.normal(size=(5, 4, 2)), rng.random((5, 4, 4)) < 0.5)
    kernel_fn = stax.serial(stax.Aggregate(), stax.Dense(1), stax.Relu(), stax.GlobalAvgPool(), stax.Dense(1))[2]
    assert_close(gram(kernel_fn, x, get="ntk", tile=2), kernel_fn(x, None, "ntk"), {"float64": 1e-14})
    shared = stax.Graph(x.nodes, jnp.ones((4, 4)) - jnp.eye(4))
    expected = kernel_fn(stax.Graph.of(*shared), None, "ntk")
    assert_close(kernel_fn(shared, None, "ntk"), expected, {"float64": 1e-15})
    assert_close(gram(kernel_fn, shared, get="ntk", tile=2), expected, {"float64": 1e-14})


def test_results_in_device_memory_are_the_same(monkeypatch):
    """The route of accelerators, taken on purpose on the CPU."""
    expected = gram(KERNEL_FN, X, tile=3), gram(KERNEL_FN, X, Y, tile=3)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    for a, b in zip(
        jax.tree.leaves((gram(KERNEL_FN, X, tile=3), gram(KERNEL_FN, X, Y, tile=3))),
        jax.tree.leaves(expected),
        strict=True,
    ):
        assert_close(a, b, {"float64": 1e-15})


def test_traced_inputs_and_empty_ones():
    assert_close(jax.jit(lambda x: gram(KERNEL_FN, x, get="ntk"))(X), KERNEL_FN(X, None, "ntk"), {"float64": 1e-14})
    assert jax.grad(lambda x: gram(KERNEL_FN, x, Y, "ntk").sum())(X).shape == X.shape
    assert gram(KERNEL_FN, X[:0], Y, "ntk").shape == (0, 4)
    assert gram(KERNEL_FN, X, Y[:0]).ntk.shape == (7, 0)
    assert gram(KERNEL_FN, X[:0], get="nngp").shape == (0, 0)


def test_one_sample():
    assert gram(KERNEL_FN, X[:1], get="ntk").shape == (1, 1)


def test_progress_is_shown_only_on_request(capsys):
    gram(KERNEL_FN, X, tile=2)
    assert capsys.readouterr().err == ""
    gram(KERNEL_FN, X, tile=2, progress=True)
    assert "10/10" in capsys.readouterr().err


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_bad_values_are_reported_with_their_sample(bad):
    x = X.at[5, 1].set(bad)
    with pytest.raises(ValueError, match=r"`x1` must be finite, got .* 1 of 7 samples, first in sample 5"):
        gram(KERNEL_FN, x)
    with pytest.raises(ValueError, match="`x2` must be finite"):
        gram(KERNEL_FN, Y, x)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="`tile` must be a positive integer, got 0"):
        gram(KERNEL_FN, X, tile=0)
    with pytest.raises(ValueError, match="`x1` must be an array of samples"):
        gram(lambda x1, x2=None, get=None: x1 @ x2.T, jnp.array(1.0))
    with pytest.raises(ValueError, match="`x1` must be samples stacked along the first axis"):
        gram(KERNEL_FN, jnp.ones(3))
    with pytest.raises(ValueError, match="`get` must be one of 'nngp', 'ntk'"):
        gram(KERNEL_FN, X, get="kernel")
    with pytest.raises(ValueError, match="`x2` must be samples like those of `x1`"):
        gram(KERNEL_FN, X, X[:, :2])
    with pytest.raises(TypeError, match="floating-point"):
        gram(KERNEL_FN, jnp.ones((3, 2), int))


def test_tiles_are_sized_by_what_a_pair_occupies():
    pooled = stax.serial(stax.Conv(1, (3, 3)), stax.GlobalAvgPool())[2]
    flat = stax.serial(stax.Conv(1, (3, 3)), stax.Flatten())[2]
    images = jnp.ones((2, 20, 20, 1))
    assert _gram._tile_size(KERNEL_FN, X) == 400
    assert _gram._tile_size(flat, images) == 20
    assert _gram._tile_size(pooled, images) == 1


ON_THREE_DEVICES = """
import jax, numpy as np
from ntk_equiv import gram, stax
assert jax.local_device_count() == 3
kernel_fn = stax.serial(stax.Dense(1, 1.2, 0.1), stax.Relu(), stax.Dense(1))[2]
x = jax.numpy.asarray(np.random.default_rng(0).normal(size=(11, 3)), "float32")
print(float(abs(gram(kernel_fn, x, get="ntk", tile=3) - kernel_fn(x, None, "ntk")).max()))
"""


def test_several_devices_share_the_tiles():
    environment = {"XLA_FLAGS": "--xla_force_host_platform_device_count=3", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", ON_THREE_DEVICES]

    result = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert float(result.stdout) < 1e-6


def test_hyperparameters_may_be_traced():
    x = jnp.eye(3)

    def total(std):
        return gram(stax.serial(stax.Dense(1, std), stax.Relu(), stax.Dense(1))[2], x, None, "ntk").sum()

    step = 1e-6
    numeric = (total(1.3 + step) - total(1.3 - step)) / (2 * step)
    np.testing.assert_allclose(jax.grad(total)(1.3), numeric, rtol=1e-8)
