"""What networks claim about their kernels, and that it is so."""

import jax.numpy as jnp
import numpy as np
import pytest

from ntk_equiv import interop, stax
from tests.tolerances import assert_close


def network(activation):
    return stax.serial(stax.Dense(1, 1.3, 0.2), activation, stax.Dense(1, 1.1, 0.1), activation, stax.Dense(1))[2]


SMOOTH = {
    "erf": stax.Erf(),
    "gelu": stax.Gelu(),
    "sin": stax.Sin(1.0, 0.8, 0.3),
    "cos": stax.Cos(),
    "rbf": stax.Rbf(0.3),
    "gaussian": stax.Gaussian(1.0, -0.4),
    "exp": stax.Exp(0.6, 0.4),
    "exp-normalized": stax.ExpNormalized(0.8),
    "polynomial": stax.Polynomial([0.3, -0.5, 0.1, -0.1]),
}
KINKED = {"relu": stax.Relu(), "leaky": stax.LeakyRelu(0.2), "abs": stax.Abs(), "sign": stax.Sign()}
KINKED["rectified"] = stax.RectifiedMonomial(2)


# One of each kind of rule: with its own cosine, with gaps, with sums of powers.
@pytest.mark.parametrize("name", ["erf", "relu", "leaky", "abs", "sign", "exp-normalized", "polynomial", "numerical"])
def test_the_radial_kernel_is_the_kernel(name):
    kernel_fn = network((SMOOTH | KINKED | {"numerical": stax.ElementwiseNumerical(jnp.tanh, 12)})[name])
    assert kernel_fn.certificate.dot_product
    x, y = (jnp.asarray(np.random.default_rng(seed).normal(size=(3, 5))) for seed in (0, 1))
    norms = [jnp.linalg.norm(v, axis=1) for v in (x, y)]
    cosine = x @ y.T / norms[0][:, None] / norms[1][None, :]
    q1, q2 = norms[0][:, None] ** 2 / 5, norms[1][None, :] ** 2 / 5
    for radial, kernel in zip(kernel_fn.radial(q1, q2, cosine), kernel_fn(x, y), strict=True):
        assert_close(radial, kernel, {"float64": 1e-13})


@pytest.mark.parametrize("name", [*SMOOTH, *KINKED])
@pytest.mark.parametrize("norms", [(1.0, 1.0), (0.3, 2.5)])
def test_power_series_have_no_negative_coefficients(name, norms):
    """Chebyshev coefficients are non-negative combinations of power coefficients, and can be had from values."""
    kernel_fn = network((SMOOTH | KINKED)[name])
    assert kernel_fn.certificate.nonnegative
    degree = 24
    nodes = np.cos(np.pi * (np.arange(512) + 0.5) / 512)
    q1, q2 = (jnp.full(512, q) for q in norms)
    for kernel in kernel_fn.radial(q1, q2, jnp.asarray(nodes)):
        coefficients = np.polynomial.chebyshev.chebfit(nodes, np.asarray(kernel), degree)
        assert coefficients.min() > -1e-6 * coefficients.max()


@pytest.mark.parametrize("activation", [stax.Polynomial([-0.5, 0.0, 1.0]), stax.Hermite(2)])
def test_polynomials_of_mixed_signs_carry_no_certificate_and_deserve_none(activation):
    """x² − 1/2 and x² − 1 are negative on average at small variances, positive at large ones."""
    kernel_fn = stax.serial(stax.Dense(1), activation).kernel_fn
    assert kernel_fn.certificate == stax.Certificate(dot_product=True, nonnegative=False, smooth=True)
    assert kernel_fn.radial(jnp.array(0.1), jnp.array(2.0), jnp.array(0.0), "nngp") < -0.1


def test_normalised_networks_and_other_parameterizations_keep_the_certificate():
    form = {"parameterization": "standard"}
    hidden = [stax.Dense(4, 1.3, 0.2, **form), stax.LayerNorm(eps=0.1), stax.Relu()]
    kernel_fn = stax.serial(*hidden * 2, stax.Dense(1, **form))[2]
    assert kernel_fn.certificate == network(stax.Relu()).certificate
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 5)))
    norms = jnp.linalg.norm(x, axis=1)
    cosine = x @ x.T / norms[:, None] / norms[None, :]
    q1, q2 = norms[:, None] ** 2 / 5, norms[None, :] ** 2 / 5
    off_diagonal = ~np.eye(3, dtype=bool)
    for radial, kernel in zip(kernel_fn.of_features(5).radial(q1, q2, cosine), kernel_fn(x), strict=True):
        assert_close(radial[off_diagonal], kernel[off_diagonal], {"float64": 1e-13})


def test_a_series_with_negative_coefficients_would_be_noticed():
    nodes = np.cos(np.pi * (np.arange(512) + 0.5) / 512)
    assert np.polynomial.chebyshev.chebfit(nodes, nodes - 0.1 * nodes**3, 24).min() < -1e-3


def test_certificates_are_composed():
    dense = stax.serial(stax.Dense(1), stax.Erf(), stax.Dense(1))
    kinked = stax.serial(dense, stax.Relu(), stax.Dense(1))
    residual = stax.serial(stax.FanOut(2), stax.parallel(kinked, stax.Identity()), stax.FanInSum())
    image = stax.serial(stax.Conv(1, (3, 3)), stax.Erf(), stax.Flatten(), stax.Dense(1))
    numerical = stax.serial(stax.Dense(1), stax.ElementwiseNumerical(jnp.tanh, 5))
    given = stax.serial(stax.Dense(1), stax.Elementwise(None, lambda k, q1, q2: k))
    branches = [stax.FanOut(2), stax.parallel(dense, kinked)]
    fans = [stax.serial(*branches, fan_in) for fan_in in (stax.FanInProd(), stax.FanInConcat())]
    dropped = stax.serial(dense, stax.Dropout(0.5), stax.Dense(1))
    assert dense.kernel_fn.certificate == stax.Certificate(dot_product=True, nonnegative=True, smooth=True)
    assert kinked.kernel_fn.certificate == stax.Certificate(dot_product=True, nonnegative=True, smooth=False)
    assert residual.kernel_fn.certificate == kinked.kernel_fn.certificate
    assert image.kernel_fn.certificate == stax.Certificate(dot_product=False, nonnegative=False, smooth=True)
    assert numerical.kernel_fn.certificate == stax.Certificate(dot_product=True, nonnegative=False, smooth=False)
    assert given.kernel_fn.certificate == numerical.kernel_fn.certificate
    assert all(fan.kernel_fn.certificate == kinked.kernel_fn.certificate for fan in fans)
    assert dropped.kernel_fn.certificate == stax.Certificate(dot_product=False, nonnegative=False, smooth=False)


def test_guests_carry_none():
    nt = interop.neural_tangents()
    assert not hasattr(nt.stax.Dense(1)[2], "certificate")
