"""The modulus of continuity of certified kernels, against a brute-force supremum over pairs of angles."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from ntk_equiv import InfiniteEnsemble, bounds, groups, stax

ACTIVATIONS = {"relu": stax.Relu(), "leaky": stax.LeakyRelu(0.2), "abs": stax.Abs(), "erf": stax.Erf()}
Q1, Q2, BETA = np.array([1.0, 1.0, 0.2, 0.7, 3.0]), np.array([1.0, 2.5, 1.0, 0.7, 3.0]), [0.01, 0.1, 0.4, 1.2, 3.0]
STEPS = 1 << 13


@functools.cache
def network(name, depth):
    hidden = [layer for _ in range(depth) for layer in (stax.Dense(1, 1.4, 0.3), ACTIVATIONS[name])]
    return stax.serial(*hidden, stax.Dense(1, 1.1, 0.2))[2]


@pytest.mark.parametrize(
    ("name", "depth"),
    [("relu", 1), ("relu", 2), ("relu", 3), ("leaky", 2), ("abs", 3), ("erf", 1), ("erf", 3)],
)
def test_the_modulus_is_the_supremum(name, depth):
    kernel_fn = network(name, depth)
    lower, upper = bounds.kernel_modulus(kernel_fn, jnp.asarray(Q1), jnp.asarray(Q2), jnp.asarray(BETA))
    theta = np.pi * np.arange(STEPS + 1) / STEPS
    wide = np.broadcast_to(theta, (len(Q1), STEPS + 1))
    h = np.asarray(kernel_fn.radial(jnp.asarray(Q1)[:, None], jnp.asarray(Q2)[:, None], jnp.cos(wide), "ntk"))
    half = STEPS // 2
    V = h[:, :1] - h[:, : half + 1]
    V = np.concatenate([V, 2 * V[:, -1:] - V[:, -2::-1]], axis=1)
    assert (upper >= lower).all()
    for row, beta in enumerate(BETA):
        turned = np.interp(theta[theta <= np.pi - beta] + beta, theta, h[row])
        brute = np.abs(turned - h[row, : len(turned)]).max()
        increase = np.interp(theta[: len(turned)] + beta, theta, V[row]) - V[row, : len(turned)]
        assert upper[row] >= brute * (1 - 1e-6)
        assert abs(upper[row] / increase.max() - 1) < 1e-3
        if beta <= 0.1 or theta[np.argmax(increase[: len(turned) // 2 + 1])] + beta <= np.pi / 2:
            assert abs(upper[row] / brute - 1) < 1e-3


def test_random_vectors_stay_below():
    """|Θ(x, a) − Θ(x, b)| for vectors a, b of equal norm, with a few of them close to x."""
    kernel_fn, rng = network("relu", 2), np.random.default_rng(0)
    x = rng.normal(size=(1, 3))
    a = rng.normal(size=(200, 3)) * np.geomspace(0.01, 1, 200)[:, None] + x
    b = a + 0.3 * rng.normal(size=(200, 3)) * np.geomspace(0.001, 1, 200)[::-1, None]
    b *= np.linalg.norm(a, axis=1, keepdims=True) / np.linalg.norm(b, axis=1, keepdims=True)
    beta = 2 * np.arcsin(np.linalg.norm(a - b, axis=1) / 2 / np.linalg.norm(a, axis=1))
    change = np.abs(
        kernel_fn(jnp.asarray(x), jnp.asarray(a), "ntk") - kernel_fn(jnp.asarray(x), jnp.asarray(b), "ntk")
    )[0]
    q1, q2 = np.full(200, np.mean(x**2)), np.mean(a**2, axis=1)
    _, upper = bounds.kernel_modulus(kernel_fn, jnp.asarray(q1), jnp.asarray(q2), jnp.asarray(beta))
    assert (change <= upper * (1 + 1e-9) + 1e-13).all()


def test_it_is_of_first_order_for_relu_too():
    beta = jnp.array([0.1, 0.01, 0.1, 0.1, 0.1])
    _, upper = bounds.kernel_modulus(network("relu", 2), jnp.ones(5), jnp.ones(5), beta)
    assert 9.5 < upper[0] / upper[1] < 10.5


def test_kernels_without_certificate_are_refused():
    x = jnp.ones((1, 2, 2, 1))
    convolutional = stax.serial(stax.Conv(1, (2, 2)), stax.Flatten(), stax.Dense(1))[2]
    for kernel_fn, reason in (
        (convolutional, "one with "),
        (lambda x1, x2=None, get=None: convolutional(x1, x2, get), "one without a certificate"),
    ):
        ens = InfiniteEnsemble(kernel_fn, (x, jnp.ones(1)))
        with pytest.raises(ValueError, match=f"certified kernel, got {reason}"):
            bounds.certified_continuous_deviation(ens, groups.SO2, x, 1.0)
