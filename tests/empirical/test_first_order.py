"""Corrections of kernels by finite width: laws, other ways to compute their parts, and random networks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntk_equiv import stax
from ntk_equiv.empirical import kernel_corrections
from tests.tolerances import assert_close

X = np.random.default_rng(0).normal(size=(2, 3))
ENTRIES = np.triu_indices(2)


def layers(width, activation, depth, outputs=1, W_std=1.3, b_std=0.2):
    return [*[stax.Dense(width, W_std, b_std), activation] * depth, stax.Dense(outputs, 1.1, b_std)]


def random_kernels(chain, x, count):
    """Θ, as the mean over outputs, and 𝒦 given the hidden layers, of random networks, [count, n, n] each."""
    net = stax.serial(*chain)
    rule = chain[-1].kernel_fn.rule

    def one(key):
        params = net.init_fn(key, (-1, x.shape[1]))[1]
        jacobian = jax.jacobian(lambda p: net.apply_fn(p, x))(params)
        rows = jnp.concatenate([leaf.reshape(*leaf.shape[:2], -1) for leaf in jax.tree.leaves(jacobian)], 2)
        hidden = x
        for own, layer in zip(params[:-1], chain[:-1], strict=True):
            hidden = layer.apply_fn(own, hidden)
        nngp = rule.W_var * hidden @ hidden.T / hidden.shape[1] + rule.b_var
        return jnp.einsum("acp,bcp->ab", rows, rows) / rows.shape[1], nngp

    keys = jax.random.split(jax.random.key(1), count)
    return [np.asarray(one) for one in jax.lax.map(one, keys, batch_size=100)]


def in_errors(samples, expected):
    """How many standard errors the mean of samples is off, entry by entry."""
    error = samples.std(0, ddof=1) / np.sqrt(len(samples))
    return np.abs(samples.mean(0) - expected)[ENTRIES] / error[ENTRIES]


@pytest.mark.parametrize(
    ("activation", "depth", "width", "outputs"),
    [
        (stax.Relu(), 2, 128, 2),
        (stax.LeakyRelu(0.3), 3, 128, 1),
        (stax.Gelu(), 2, 128, 1),
        (stax.Erf(), 3, 128, 1),
    ],
    ids=["relu", "leaky", "gelu", "erf"],
)
def test_random_networks_have_these_means_and_variances(activation, depth, width, outputs):
    chain = layers(width, activation, depth, outputs)
    limit, found = stax.serial(*chain).kernel_fn(X, None, ("nngp", "ntk")), kernel_corrections(chain, X)
    ntk, nngp = random_kernels(chain, X, 1000)
    for samples, exact, change, variance in (
        (ntk, limit.ntk, found.ntk, found.ntk_variance),
        (nngp, limit.nngp, found.nngp, found.nngp_variance),
    ):
        assert in_errors(samples, np.asarray(exact) + change).max() < 4.5
        squares = (samples - samples.mean(0)) ** 2
        assert in_errors(squares, variance).max() < 4.5
        # It has teeth: without fluctuations, or with half of them, theory is far off.
        assert in_errors(squares, variance / 2).min() > 4.5


@pytest.mark.parametrize("activation", [stax.Relu(), stax.Gelu()])
def test_one_hidden_layer_has_the_mean_of_its_limit(activation):
    found = kernel_corrections(layers(10, activation, 1), X)
    assert_close(found.nngp, np.zeros((2, 2)))
    assert_close(found.ntk, np.zeros((2, 2)))
    assert found.ntk_variance.min() > 0


def test_rectified_networks_of_any_depth_have_it_on_the_diagonal_alone():
    found = kernel_corrections(layers(10, stax.LeakyRelu(0.2), 4), X)
    for one in (found.nngp, found.ntk):
        np.testing.assert_array_equal(np.diag(one), 0)
        assert abs(one[0, 1]) > 1e-4


def test_a_linear_network_as_two_slopes_and_as_a_polynomial():
    """Two ways to compute expectations; and G' = G χ²/n, layer by layer, has the relative variance 2/n of each."""
    kinked, smooth = (
        kernel_corrections(layers(50, one, 3), X) for one in (stax.ABRelu(1, 1), stax.Polynomial([0.0, 1.0]))
    )
    for one, other in zip(kinked, smooth, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
    chain = layers(50, stax.ABRelu(1, 1), 3, b_std=None)
    nngp = np.asarray(stax.serial(*chain).kernel_fn(X, None, "nngp"))
    found = kernel_corrections(chain, X)
    variance = (nngp**2 + np.outer(np.diag(nngp), np.diag(nngp))) / 50
    np.testing.assert_allclose(found.nngp_variance, 3 * variance, rtol=1e-9)
    assert_close(found.nngp + 1, np.ones((2, 2)))
    assert_close(found.ntk + 1, np.ones((2, 2)))


@pytest.mark.parametrize("activation", [stax.Relu(), stax.Erf()])
def test_entries_depend_on_their_two_samples_alone(activation):
    x = np.random.default_rng(1).normal(size=(4, 3))
    chain = layers(30, activation, 3)
    whole, part = kernel_corrections(chain, x), kernel_corrections(chain, x[:3], x[1:])
    for one, other in zip(whole, part, strict=True):
        assert_close(other, one[:3, 1:])
        np.testing.assert_array_equal(one, one.T)
    twice = kernel_corrections(layers(60, activation, 3), x)
    for one, other in zip(whole, twice, strict=True):
        assert_close(2 * other, one)


@pytest.mark.parametrize("activation", [stax.Relu(), stax.Gelu()])
def test_close_samples_have_the_corrections_of_equal_ones(activation):
    """The formulas of pairs tend to those of single samples, which are computed apart."""
    chain, direction = layers(30, activation, 3), np.array([[0.3, -1.0, 0.5]])
    equal = kernel_corrections(chain, X[:1])
    far, near = (kernel_corrections(chain, X[:1], X[:1] + distance * direction) for distance in (1e-1, 1e-2))
    for limit, one, other in zip(equal, far, near, strict=True):
        assert (np.abs(other - limit) < 0.3 * np.abs(one - limit)).all()


def test_refusals():
    dense, relu = stax.Dense(8), stax.Relu()
    with pytest.raises(ValueError, match="got Affine at position 1"):
        kernel_corrections([dense, dense, dense], X)
    with pytest.raises(ValueError, match="in NTK parameterization"):
        kernel_corrections([stax.Dense(8, parameterization="standard"), relu, dense], X)
    with pytest.raises(ValueError, match="smooth activations"):
        kernel_corrections([dense, stax.RectifiedMonomial(2), dense], X)
    with pytest.raises(ValueError, match="equal or not parallel"):
        kernel_corrections([dense, relu, dense], np.array([[1.0, 2.0], [2.0, 4.0]]))
    with pytest.raises(ValueError, match="samples with a signal"):
        kernel_corrections([dense, relu, dense], np.zeros((1, 3)))
    with pytest.raises(ValueError, match=r"\[n, features\]"):
        kernel_corrections([dense, relu, dense], X, X[:, :2])


def test_published_corrections_of_gelu_at_criticality():
    """Figure 2 of arXiv 2508.11522: four dense layers without biases, by derivatives of W itself, of variance C_W/n.

    Those are 1/C_W of ours, which are by derivatives of weights of variance 1. The kernels depend on two inputs only by
    their inner products over the dimension, 0.634005 and 0.671517 on the diagonal and -0.215948 off it.
    """
    C_W, inner = 1.98305826, np.array([[0.634005, -0.215948], [-0.215948, 0.671517]])
    x = np.sqrt(2) * np.linalg.cholesky(inner)
    hidden = stax.Dense(1, np.sqrt(C_W)), stax.Gelu()
    chain = [*hidden, *hidden, *hidden, stax.Dense(1, np.sqrt(C_W))]
    found, limit = (
        kernel_corrections(chain, x).ntk / C_W,
        np.asarray(stax.serial(*chain).kernel_fn(x, None, "ntk")) / C_W,
    )
    # Read off the figure with an error of 0.002 in what is multiplied by 1/width.
    np.testing.assert_allclose(found[0], [1.4144, -0.3246], rtol=0, atol=2e-3)
    np.testing.assert_allclose(limit[0], [1.7493, 0.1769], rtol=0, atol=2e-4)
