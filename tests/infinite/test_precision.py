"""Single precision, JAX's default: what it gives on real images, and on Gram matrices that are singular."""

import warnings

import jax.numpy as jnp
import matplotlib.cbook
import numpy as np
import PIL.Image
import pytest

from ntk_equiv import InfiniteEnsemble, augment, filters, gram, groups, reps, stax
from ntk_equiv.infinite import RankWarning

INF = float("inf")
TURNS = reps.rot90(groups.cyclic(4))
LAYERS = [layer for _ in range(3) for layer in (stax.Dense(64, 2**0.5, 0.1), stax.Relu())]
KERNEL_FN = stax.serial(stax.Flatten(), *LAYERS, stax.Dense(1))[2]


def patches(count, side=7):
    """Square pieces of a photograph as samples, and as labels whether they are brighter above than below."""
    with matplotlib.cbook.get_sample_data("grace_hopper.jpg") as file:
        photo = np.asarray(PIL.Image.open(file).convert("L"), float) / 255
    rng = np.random.default_rng(0)
    rows, columns = (rng.integers(0, extent - side, count) for extent in photo.shape)
    pieces = [photo[i : i + side, j : j + side] for i, j in zip(rows, columns, strict=True)]
    x = np.stack(pieces)[..., None].astype(np.float32).astype(float)  # the same numbers in both precisions
    return x, np.sign(x[:, : side // 2].mean((1, 2, 3)) - x[:, side // 2 + 1 :].mean((1, 2, 3)))


X, Y = patches(320)
X, X_TEST, Y = X[:300], X[300:], Y[:300]


def in_precision(dtype, filter, t):
    """The mean at test samples, in this precision and without a warning; and the norm of its coefficients."""
    train = augment(jnp.asarray(X, dtype), jnp.asarray(Y, dtype), TURNS)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RankWarning)
        ens = InfiniteEnsemble(KERNEL_FN, train, filter)
        mean = ens.mean(jnp.asarray(X_TEST, dtype), t)
        coefficients = np.asarray(ens.coefficients(t), np.float64)
    assert mean.dtype == dtype
    return np.asarray(mean, np.float64), np.linalg.norm(coefficients, axis=-1)


@pytest.mark.parametrize(
    ("filter", "t"),
    [
        (filters.gradient_flow(), [1.0, 1e3, 1e6, INF]),
        (filters.converged(), INF),
        (filters.ridge(1e-3), [10.0, INF]),
    ],
    ids=["flow", "converged", "ridge"],
)
def test_real_images_in_single_precision(filter, t):
    single, (double, size) = in_precision(jnp.float32, filter, t)[0], in_precision(jnp.float64, filter, t)
    assert np.abs(double).max() > 0.3
    # Entries of Θ are off by eps each, which the coefficients α multiply: Σ_i δΘ(x, x_i) α_i.
    largest = float(jnp.max(jnp.diagonal(gram(KERNEL_FN, jnp.asarray(X), None, "ntk"))))
    allowed = 4 * float(jnp.finfo(jnp.float32).eps) * largest * size
    assert np.max(allowed) < 0.02
    assert (np.abs(single - double).max(axis=-1) < allowed).all()


def test_the_posterior_in_single_precision():
    laws = []
    for dtype in (jnp.float32, jnp.float64):
        train = jnp.asarray(X[:100].reshape(100, -1), dtype), jnp.asarray(Y[:100], dtype)
        ens = InfiniteEnsemble(stax.serial(*LAYERS, stax.Dense(1))[2], train)
        law = ens.nngp_posterior(jnp.asarray(X_TEST.reshape(20, -1), dtype), noise=0.1)
        laws.append((law.mean, law.cov, ens.log_marginal_likelihood(noise=0.1)))
    for single, double in zip(*laws, strict=True):
        np.testing.assert_allclose(single, double, rtol=0, atol=1e-4 * np.abs(double).max())


@pytest.mark.parametrize("method", ["dense", "reduced"])
@pytest.mark.parametrize("kind", ["fixed", "repeated", "contradicting"])
def test_singular_matrices_are_projected_in_single_precision(kind, method):
    x, y = X[:12].copy(), Y[:12].copy()
    if kind == "fixed":
        x[3] = (x[3] + np.rot90(x[3], 2)) / 2
        x[4] = x[4].mean()
    else:
        x[5] = np.rot90(x[6])
        y[5] = y[6] if kind == "repeated" else -y[6]
    values = []
    for dtype in (jnp.float32, jnp.float64):
        train = augment(jnp.asarray(x, dtype), jnp.asarray(y, dtype), TURNS)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RankWarning)
            ens = InfiniteEnsemble(KERNEL_FN, train, method=method)
            values.append((ens.mean(jnp.asarray(X_TEST, dtype), [1e2, 1e8, INF]), ens.rank))
    (single, rank), (double, expected) = values
    assert rank == expected < train.size
    np.testing.assert_allclose(single, double, rtol=0, atol=2e-3)


@pytest.mark.parametrize("factor", [1e-30, 1e-20, 1e19, 1e30])
@pytest.mark.parametrize("method", ["dense", "reduced"])
def test_results_are_linear_in_the_labels_whatever_their_scale(factor, method):
    rep = reps.matrix(groups.SO2.finite(4))
    rng = np.random.default_rng(2)
    x, y = (jnp.asarray(rng.standard_normal((3, 2)), jnp.float32) for _ in range(2))
    kernel_fn = stax.serial(stax.Dense(8, 1.4, 0.3), stax.Relu(), stax.Dense(1))[2]
    plain, scaled = (
        InfiniteEnsemble(kernel_fn, augment(x, y * jnp.float32(c), rep, rep), method=method) for c in (1.0, factor)
    )
    for ask in (
        lambda ens: ens.mean(x + 0.3, [0.5, 1e3]),
        lambda ens: ens.residual(2.0),
        lambda ens: ens.coefficients(2.0),
        lambda ens: ens.train_mean(2.0),
    ):
        one, other = (np.asarray(ask(ens), np.float64) for ens in (plain, scaled))
        np.testing.assert_allclose(other / factor, one, rtol=0, atol=1e-5 * np.abs(one).max())


def test_a_ridge_below_the_noise_is_projected():
    """Where a ridge is too small to be resolved, its noise would be amplified instead."""
    x = jnp.asarray(X[:6].reshape(6, -1), jnp.float32)
    train = jnp.concatenate([x, x]), jnp.concatenate([jnp.ones(6), -jnp.ones(6)]).astype(jnp.float32)
    kernel_fn = stax.serial(*LAYERS, stax.Dense(1))[2]
    with pytest.warns(RankWarning, match="rank 6 of 12"):
        ens = InfiniteEnsemble(kernel_fn, train, filters.ridge(1e-12))
    with pytest.warns(RankWarning, match="cannot be fitted"):
        np.testing.assert_allclose(ens.mean(x, INF), 0, atol=1e-3)
    np.testing.assert_allclose(InfiniteEnsemble(kernel_fn, train, filters.ridge(0.1)).mean(x, INF), 0, atol=1e-3)
