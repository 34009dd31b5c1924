"""Kernels of activations are Gaussian expectations of the functions that finite networks apply, at every scale."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from ntk_equiv import stax
from tests.architectures import arcsine_dual
from tests.oracles import duals
from tests.tolerances import ROUNDING, assert_close

ACTIVATIONS = {
    "gaussian": stax.Gaussian(1.3, -0.4),
    "growing gaussian": stax.Gaussian(0.8, 0.02),
    "exp": stax.Exp(0.7, -0.6),
    "rbf": stax.Rbf(0.3),
    "sigmoid-like": stax.Sigmoid_like(),
    "constant": stax.Monomial(0),
    "monomial": stax.Monomial(7),
    "polynomial": stax.Polynomial([0.4, -1.1, 0.0, 0.3, -0.2]),
    "hermite, at variances that are not 1": stax.Hermite(4),
    "elementwise": stax.Elementwise(jax.scipy.special.erf, arcsine_dual),
    "elementwise with derivative": stax.Elementwise(
        jnp.square, lambda k, q1, q2: q1 * q2 + 2 * k**2, lambda k, q1, q2: 4 * k
    ),
    "gelu": stax.Gelu(),
    "sin": stax.Sin(0.9, 0.7, 0.3),
    "gabor": stax.Gabor(),
}

# Two samples apart, one twice, opposite ones, one that is zero.
X = np.array([[0.9, -0.4], [0.9, -0.4], [-0.5, -0.8], [-0.9, 0.4], [0.0, 0.0]])
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(100)
# Weights of a network with two inputs, on a grid: u = w · x is Gaussian with covariance x · x'.
W = np.stack(np.meshgrid(NODES, NODES, indexing="ij")).reshape(2, -1)
P = np.outer(WEIGHTS, WEIGHTS).ravel() / (2 * np.pi)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_kernels_are_expectations_over_weights(name):
    _, apply_fn, _ = ACTIVATIONS[name]
    features = jnp.asarray(X @ W)
    values, slopes = jax.jvp(lambda u: apply_fn((), u), (features,), (jnp.ones_like(features),))
    nngp, derivative = (np.einsum("aw,bw,w->ab", f, f, P) for f in (np.asarray(values), np.asarray(slopes)))
    kernel = stax.serial(stax.Dense(1, 2**0.5), ACTIVATIONS[name]).kernel_fn(jnp.asarray(X))
    assert_close(kernel.nngp, nngp, {"float64": 1e-11})
    assert_close(kernel.ntk, X @ X.T * derivative, {"float64": 1e-11})


def test_other_expectations_would_be_noticed():
    """A quadrature that is right for one function tells it from its neighbour."""
    values = stax.Hermite(4).apply_fn((), jnp.asarray(X @ W))
    kernel = stax.serial(stax.Dense(1, 2**0.5), stax.Hermite(5)).kernel_fn(jnp.asarray(X), None, "nngp")
    with pytest.raises(AssertionError):
        assert_close(kernel, np.einsum("aw,bw,w->ab", values, values, P), {"float64": 1e-3})


def test_hermite_polynomials_of_high_degree_do_not_cancel():
    """At variance 1 the kernel is the cosine to that power, also in single precision; functions are those of SciPy."""
    degree = 60
    _, apply_fn, kernel_fn = stax.Hermite(degree)
    x = jnp.array([[1.0, 1.0], [1.4, 0.2], [-1.0, 1.0]], jnp.float32)
    kernel = stax.serial(stax.Dense(1), stax.Hermite(degree)).kernel_fn(x, None, "nngp")
    cosines = np.asarray(x, float) @ np.asarray(x, float).T / 2
    assert_close(kernel, jnp.asarray(cosines**degree, jnp.float32), {"float32": 1e-4})
    u = np.array([[-2.0, 0.3, 6.0]])
    expected = scipy.special.eval_hermitenorm(degree, u) / math.sqrt(math.factorial(degree))
    assert_close(apply_fn((), jnp.asarray(u)), expected, {"float64": 1e-12})
    assert not kernel_fn.certificate.nonnegative


@pytest.mark.parametrize(
    "activation",
    [
        stax.Elementwise(None, lambda k, q1, q2: np.float64(2.0) * k),
        stax.ElementwiseNumerical(lambda x: np.sqrt(2.0) * x, 2),
    ],
)
def test_constants_of_double_precision_leave_kernels_in_single(activation):
    x = jnp.asarray(X, jnp.float32)
    kernel = stax.serial(stax.Dense(1), activation, stax.Dense(1)).kernel_fn(x)
    assert kernel.nngp.dtype == kernel.ntk.dtype == jnp.float32
    assert_close(kernel.ntk, 2 * x @ x.T, {"float32": 1e-5})


DTYPES = [np.float32, np.float64]
EXPONENTS = (-20, -15, -10, -6, -3, 0, 2, 4, 8, 10, 15, 18, 20)


def hostile_pairs(dtype):
    """Pairs of samples at all scales: the same twice, apart, opposite, parallel, one zero, and both far from 1."""
    u, v = np.array([0.9, -0.4, 1.3]), np.array([0.2, -0.7, 0.4])
    pairs = []
    for exponent in EXPONENTS:
        x, y = (dtype(10.0**exponent) * z.astype(dtype) for z in (u, v))
        inverse = dtype(10.0**-exponent) * v.astype(dtype)
        pairs += [(x, x), (x, y), (x, -x), (x, 2 * x), (x, 0 * x), (x, inverse)]
    return pairs


def excess(actual, exact, diagonals, largest, dtype):
    """By how much an entry is off, in units of what it may be; infinite if it is no number though it should be.

    Errors are relative to the entry, for opposite samples to the roots of both diagonal entries. Exponents, and
    powers, magnify the rounding of their arguments.
    """
    numbers = np.finfo(dtype)
    if not np.isfinite(actual):
        return 0.0 if largest > float(numbers.max) / 8 else np.inf
    opposite = exact < 0 or diagonals[0] == diagonals[1]
    scale = max(abs(exact), duals.mp.sqrt(abs(diagonals[0] * diagonals[1])) if opposite else 0)
    allowed = ROUNDING[numbers.dtype.name] * (1 + abs(duals.mp.log(abs(exact))) if exact else 1)
    return float(abs(duals.mp.mpf(float(actual)) - exact) / (allowed * scale + 8 * float(numbers.tiny)))


def smallest_eigenvalue(gram):
    """That of a Gram matrix scaled to unit diagonal, without samples whose norm is close to the end of all numbers."""
    gram = np.asarray(gram)
    numbers, norms = np.finfo(gram.dtype), np.diag(gram)
    kept = (norms > 1e6 * float(numbers.tiny)) & (norms < 1e-6 * float(numbers.max))
    gram, roots = gram[np.ix_(kept, kept)].astype(float), np.sqrt(norms[kept].astype(float))
    return np.linalg.eigvalsh(gram / roots[:, None] / roots[None, :])[0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", duals.DUALS)
def test_kernels_keep_their_relative_precision_at_every_scale(name, dtype):
    """Against 150 digits; no entry is infinite or NaN unless a kernel of the network is too large for a number."""
    activation, dual = duals.DUALS[name]
    pairs = hostile_pairs(dtype)
    samples = jnp.asarray(np.concatenate(list(zip(*pairs, strict=True))))
    results = stax.serial(stax.Dense(1), activation, stax.Dense(1)).kernel_fn(samples)
    assert min(map(smallest_eigenvalue, results)) > -8 * len(samples) * float(np.finfo(dtype).eps)
    results = [np.diagonal(np.asarray(gram), len(pairs)) for gram in results]
    for i, (x, y) in enumerate(pairs):
        *exact, largest = duals.kernels(dual, x, y, depth=1)
        alone = [duals.kernels(dual, z, z, depth=1) for z in (x, y)]
        for kind in range(2):
            diagonals = alone[0][kind], alone[1][kind]
            off = excess(results[kind][i], exact[kind], diagonals, largest, dtype)
            assert off <= 1, (x, y, ("nngp", "ntk")[kind], results[kind][i], float(exact[kind]), off)


def test_lost_precision_would_be_noticed():
    numbers = {"diagonals": (1.0, 2.0), "largest": 1.0, "dtype": np.float32}
    assert excess(0.5, 0.5, **numbers) == 0
    assert excess(0.50001, 0.5, **numbers) > 1
    assert excess(np.nan, 0.5, **numbers) == np.inf
    assert excess(np.inf, 0.5, **(numbers | {"largest": 1e39})) == 0
    assert smallest_eigenvalue(np.array([[1.0, 1.1], [1.1, 1.0]])) < -0.09


@pytest.mark.parametrize("largest", [255, 3000])
def test_samples_coincide_with_themselves_at_the_scale_of_pixels(largest):
    """Squared distances that are differences of squared norms would be off by 1e-7 of those: by 0.01, or by 1."""
    x = jnp.asarray(np.random.default_rng(0).uniform(0, largest, size=(8, 784)), jnp.float32)
    kernel_fn = stax.serial(stax.Dense(1), stax.Rbf()).kernel_fn
    np.testing.assert_array_equal(kernel_fn(x, None, "nngp"), np.eye(8))
    np.testing.assert_array_equal(np.diag(kernel_fn(x, x + 0, "nngp")), 1)
