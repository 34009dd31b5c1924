"""Derivatives where roots and arc cosines have none: coincident and opposite samples, zero inputs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntk_equiv import stax

X = np.random.default_rng(0).normal(size=(1, 3))


def dense(activation, depth=2, W_std=1.3, b_std=0.2):
    return stax.serial(*[stax.Dense(1, W_std, b_std), activation] * depth, stax.Dense(1, W_std, b_std))[2]


def convolutional(activation):
    layers = [stax.Conv(1, (2, 2), padding="SAME", b_std=0.1), activation, stax.Flatten(), stax.Dense(1)]
    return stax.serial(*layers)[2]


ACTIVATIONS = {
    "relu": stax.Relu(),
    "leaky": stax.LeakyRelu(0.1),
    "abs": stax.Abs(),
    "erf": stax.Erf(),
    "gelu": stax.Gelu(),
    "sin": stax.Sin(),
    "numerical": stax.ElementwiseNumerical(jnp.tanh, 8),
}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("biases", [False, True], ids=["no biases", "biases"])
@pytest.mark.parametrize("activation", ACTIVATIONS.values(), ids=ACTIVATIONS)
def test_gradients_are_finite_everywhere(activation, biases, dtype):
    """Of both kernels in both samples, with biases that vanish and that do not."""

    def kernels(left, right, b_std):
        return jnp.stack([k[0, 0] for k in dense(activation, b_std=b_std if biases else None)(left, right)])

    x = jnp.asarray(X, dtype)
    left, right = jnp.stack([x, x, x, 0 * x, 0 * x]), jnp.stack([x, -x, 2 * x, x, 0 * x])
    evaluate = jax.jit(jax.vmap(lambda a, b, b_std: (kernels(a, b, b_std), jax.jacrev(kernels, (0, 1))(a, b, b_std))))
    for b_std in (0.0, 0.2) if biases else (0.0,):
        for leaf in jax.tree.leaves(evaluate(left, right, jnp.full(5, b_std, dtype))):
            assert jnp.isfinite(leaf).all()


FURTHER = {
    "gaussian": stax.Gaussian(1.0, -0.5),
    "exp": stax.Exp(0.5, 0.4),
    "exp-normalized": stax.ExpNormalized(),
    "polynomial": stax.Polynomial([0.2, 0.5, -0.3]),
    "rbf": stax.Rbf(0.2),
    "sign": stax.Sign(),
    "rectified": stax.RectifiedMonomial(2),
    "tanh": stax.Tanh(20),
    "elementwise": stax.Elementwise(None, lambda k, q1, q2: jnp.arctan(k) * jnp.sqrt((1 + q1) * (1 + q2))),
}


@pytest.mark.parametrize("activation", FURTHER.values(), ids=FURTHER)
def test_gradients_of_further_activations(activation):
    """Finite at coincident, opposite, parallel and vanishing samples; elsewhere those of finite differences."""
    kernel_fn = dense(activation, b_std=None)
    x, y = jnp.asarray(X), jnp.asarray(np.random.default_rng(4).normal(size=(1, 3)))
    value = jax.jit(jax.vmap(jax.value_and_grad(lambda a, b: kernel_fn(a, b, "ntk")[0, 0], argnums=(0, 1))))
    step = 1e-6
    left = jnp.stack([x, x, x, 0 * x, 0 * x, x, x + step * y, x - step * y])
    right = jnp.stack([x, -x, 2 * x, x, 0 * x, y, y, y])
    values, slopes = value(left, right)
    assert all(jnp.isfinite(leaf).all() for leaf in (values, *slopes))
    np.testing.assert_allclose(jnp.sum(slopes[0][5] * y), (values[6] - values[7]) / (2 * step), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("activation", ACTIVATIONS.values(), ids=ACTIVATIONS)
def test_gradients_of_convolutional_kernels_are_finite(activation):
    kernel_fn = convolutional(activation)
    image = jnp.asarray(np.random.default_rng(1).normal(size=(1, 3, 3, 1)))
    slope = jax.jit(jax.grad(lambda a, b: kernel_fn(a, b, "ntk")[0, 0]))
    for right in (image, -image, 0 * image):
        assert jnp.isfinite(slope(image, right)).all()


def test_gradients_through_normalisation_and_attention_are_finite():
    normalized = stax.serial(stax.Dense(1), stax.LayerNorm(), stax.Relu(), stax.Dense(1))
    attention = stax.GlobalSelfAttention(1, 1, 1, 1, pos_emb_type="SUM", val_pos_emb=True, W_pos_emb_std=0.0)
    kernel_fn = stax.serial(normalized, attention, stax.LayerNorm(), stax.Abs(), stax.Flatten())[2]
    value = jax.jit(jax.value_and_grad(lambda a, b: kernel_fn(a, b, "ntk")[0, 0], argnums=(0, 1)))
    x = jnp.asarray(np.random.default_rng(1).normal(size=(1, 3, 2)), jnp.float32)
    for left, right in [(x, x), (x, -x), (0 * x, x), (0 * x, 0 * x)]:
        assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(value(left, right)))


@pytest.mark.parametrize("activation", [stax.Relu(), stax.Abs(), stax.Erf()])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_covariance_has_its_true_gradient_at_coincident_and_opposite_samples(activation, sign):
    """𝒦(·, x') is differentiable there although its formula, through the cosine, is singular."""
    kernel_fn = dense(activation, depth=1)
    x = jnp.asarray(X)
    value = lambda a: kernel_fn(a, sign * x, "nngp")[0, 0]  # noqa: E731
    slope = jax.grad(value)(x)
    step = 1e-4
    for i in range(3):
        e = step * jnp.eye(3)[i][None]
        np.testing.assert_allclose(slope[0, i], (value(x + e) - value(x - e)) / (2 * step), atol=1e-4)


@pytest.mark.parametrize("activation", ACTIVATIONS.values(), ids=ACTIVATIONS)
def test_the_diagonal_has_its_true_gradient(activation):
    kernel_fn = dense(activation)
    along_x = jax.jit(lambda t: kernel_fn(t * jnp.asarray(X), None, "ntk")[0, 0])
    step = 1e-6
    slope, difference = jax.jit(jax.grad(along_x))(1.0), (along_x(1 + step) - along_x(1 - step)) / (2 * step)
    np.testing.assert_allclose(slope, difference, rtol=1e-7)


@pytest.mark.parametrize("get", ["nngp", "ntk"])
def test_hyperparameters_have_gradients(get):
    x = jnp.asarray(np.random.default_rng(3).normal(size=(2, 3)))

    def total(W_std, b_std):
        return dense(stax.Relu(), W_std=W_std, b_std=b_std)(x, None, get).sum()

    slopes = jax.grad(total, argnums=(0, 1))(1.3, 0.2)
    step = 1e-6
    for i, slope in enumerate(slopes):
        e = np.eye(2)[i] * step
        difference = (total(1.3 + e[0], 0.2 + e[1]) - total(1.3 - e[0], 0.2 - e[1])) / (2 * step)
        np.testing.assert_allclose(slope, difference, rtol=1e-7)


def test_convolutional_hyperparameters_have_gradients():
    x = jnp.asarray(np.random.default_rng(3).normal(size=(2, 3, 3, 1)))

    def total(W_std):
        return stax.serial(stax.Conv(1, (2, 2), W_std=W_std), stax.Relu(), stax.Flatten())[2](x, None, "ntk").sum()

    difference = (total(1.3 + 1e-6) - total(1.3 - 1e-6)) / 2e-6
    np.testing.assert_allclose(jax.grad(total)(1.3), difference, rtol=1e-7)


def test_hyperparameters_of_attention_and_normalisation_have_gradients():
    x = jnp.asarray(np.random.default_rng(3).normal(size=(2, 3, 2)))

    def total(stds):
        attention = stax.GlobalSelfAttention(
            1, 1, 1, 1, True, stds[0], stds[1], b_std=stds[2], pos_emb_type="CONCAT", W_pos_emb_std=stds[3]
        )
        layers = stax.Dense(1, 1.2), attention
        return stax.serial(*layers, stax.LayerNorm(eps=stds[4]), stax.Erf(), stax.Flatten())[2](x, None, "ntk").sum()

    stds, step = jnp.array([1.3, 0.8, 0.2, 0.9, 0.4]), 1e-6
    total = jax.jit(total)
    differences = [(total(stds + step * e) - total(stds - step * e)) / (2 * step) for e in jnp.eye(5)]
    np.testing.assert_allclose(jax.grad(total)(stds), differences, rtol=1e-7)


def test_second_derivatives_of_the_covariance_are_finite_at_coincident_samples():
    kernel_fn = dense(stax.Relu(), depth=1)
    x = jnp.asarray(X)
    mixed = jax.jacfwd(jax.grad(lambda a, b: kernel_fn(a, b, "nngp")[0, 0]), argnums=1)(x, x)
    # ∂²/∂a∂b E[φ(w·a)φ(w·b)] at a = b is σ_w² times σ_w²/d E[φ'²] plus terms along x; its trace is positive.
    assert jnp.isfinite(mixed).all()
    assert jnp.trace(mixed[0, :, 0, :]) > 0


@pytest.mark.parametrize(("activation", "largest"), [(stax.Relu(), 18), (stax.Erf(), 12)], ids=["relu", "erf"])
@pytest.mark.parametrize("b_std", [None, 0.0, 0.3])
def test_derivatives_in_single_precision_are_finite_at_every_scale(activation, largest, b_std):
    """Of both kernels, in both samples and in both hyperparameters."""

    def kernels(x, y, W_std, b_std):
        return jnp.stack([k[0, 0] for k in dense(activation, 1, W_std, b_std)(x, y)])

    scales = 10.0 ** np.arange(-18, largest + 1, dtype=float)
    x, y = (np.random.default_rng(i).normal(size=(1, 3)) for i in range(2))
    pairs = [(s * a, s * b) for s in scales for a, b in [(x, x), (x, y), (x, -x), (x, 2 * x), (0 * x, x)]]
    left, right = (jnp.asarray(np.stack(side), jnp.float32) for side in zip(*pairs, strict=True))
    wanted = (0, 1, 2) if b_std is None else (0, 1, 2, 3)
    slopes = jax.jit(jax.vmap(jax.jacrev(kernels, argnums=wanted), in_axes=(0, 0, None, None)))
    for slope in slopes(left, right, jnp.float32(1.3), b_std if b_std is None else jnp.float32(b_std)):
        assert jnp.isfinite(slope).all()


@pytest.mark.parametrize("features", [3, 300])
@pytest.mark.parametrize("activation", [stax.Erf(), stax.Sin(), stax.Gelu()], ids=["erf", "sin", "gelu"])
def test_smooth_kernels_have_their_true_gradient_at_a_sample_that_vanishes(activation, features):
    """Norm and cosine have no derivative there, but the covariance has, also of many features."""
    kernel_fn = dense(activation, depth=1, b_std=None)
    direction = jnp.asarray(np.random.default_rng(0).normal(size=(1, features)))
    value = jax.jit(lambda t: kernel_fn(t * direction, direction, "ntk")[0, 0])
    slope = jax.jit(jax.grad(value))(0.0)
    assert abs(slope) > 0.1
    np.testing.assert_allclose(slope, (value(1e-4) - value(-1e-4)) / 2e-4, rtol=1e-6)
