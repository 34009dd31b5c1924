"""Activations that are known by their values alone."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import dblquad

from ntk_equiv import interop, stax
from tests.tolerances import assert_close

nt = interop.neural_tangents()
X = jnp.asarray(np.random.default_rng(0).normal(size=(6, 5)))
KNOWN = {"Erf": jax.scipy.special.erf, "Gelu": lambda x: jax.nn.gelu(x, approximate=False)}


def network(module, activation):
    return module.serial(module.Dense(1, 2.0, 0.1), activation, module.Dense(1))[2]


@pytest.mark.parametrize("name", KNOWN)
def test_at_least_as_accurate_as_neural_tangents_at_equal_degree(name):
    exact = network(stax, getattr(stax, name)())(X)
    ours = network(stax, stax.ElementwiseNumerical(KNOWN[name], 12))(X)
    with jax.numpy_rank_promotion("allow"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = network(nt.stax, nt.stax.ElementwiseNumerical(KNOWN[name], 12))(X, None, ("nngp", "ntk"))
    for k, t, e in zip(ours, theirs, exact, strict=True):
        for where in (np.eye(6, dtype=bool), ~np.eye(6, dtype=bool)):
            error, other = (np.abs(np.asarray(v - e))[where].max() for v in (k, t))
            assert error < other / 3


def test_symmetric_and_positive_at_any_degree():
    for degree in (1, 3):
        for kernel in network(stax, stax.ElementwiseNumerical(lambda x: jnp.sign(x) + x**2, degree))(X, X):
            assert_close(kernel, kernel.T, {"float64": 1e-15})
            assert np.linalg.eigvalsh(np.asarray(kernel))[0] > -1e-12 * float(kernel.max())


@pytest.mark.parametrize(
    ("layer", "fn", "df"),
    [
        (stax.Tanh(), np.tanh, lambda u: 1 / np.cosh(u) ** 2),
        (stax.Softplus(), lambda u: np.logaddexp(0, u), lambda u: 1 / (1 + np.exp(-u))),
    ],
    ids=["tanh", "softplus"],
)
def test_named_activations_are_right(layer, fn, df):
    """Against an adaptive integral over the plane, at variances 0.8 and 1.5 and cosine 0.6."""
    q1, q2, c = 0.8, 1.5, 0.6
    kernels = stax.serial(stax.Dense(1), layer).kernel_fn.radial(*(jnp.full(1, v) for v in (q1, q2, c)))

    def integral(f):
        def integrand(b, a):
            u, v = np.sqrt(q1) * a, np.sqrt(q2) * (c * a + np.sqrt(1 - c * c) * b)
            return f(u) * f(v) * np.exp(-(a * a + b * b) / 2) / (2 * np.pi)

        return dblquad(integrand, -8, 8, -8, 8, epsabs=1e-9)[0]

    expected = integral(fn), c * np.sqrt(q1 * q2) * integral(df)
    for kernel, value in zip(kernels, expected, strict=True):
        np.testing.assert_allclose(kernel[0], value, rtol=1e-7)
    x = jnp.linspace(-30.0, 30.0, 7)[None]
    assert_close(layer.apply_fn((), x), fn(np.asarray(x)))
