"""Our kernels against neural-tangents', architecture by architecture."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntk_equiv import interop, stax
from tests.architectures import ARCHITECTURES
from tests.tolerances import assert_close

nt = interop.neural_tangents()

# Away from coincident points; there neural-tangents itself is off by 1e-8 in float64 and 3e-4 in float32.
RELATIVE = {jnp.float64: 1e-10, jnp.float32: 1e-5}


def theirs(build, x1, x2, a1, a2):
    kwargs = {} if a1 is None else {"pattern": (a1, a2)}
    with jax.numpy_rank_promotion("allow"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Compiled as a whole: evaluated step by step it would compile every step.
        kernel = jax.jit(build(nt.stax)[2])(x1, x2, **kwargs)
    # After an odd number of convolutions neural-tangents leaves the spatial axes in reverse order.
    return kernel.reverse() if kernel.is_reversed else kernel


def assert_equal_kernels(ours, oracle, tolerance):
    for name in ("nngp", "ntk"):
        a, b = np.asarray(getattr(ours, name)), np.asarray(getattr(oracle, name))
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * np.abs(b).max(), err_msg=name)


# All in double precision, and for the sake of time every third in single.
ROWS = [(a, jnp.float64) for a in ARCHITECTURES] + [(a, jnp.float32) for a in ARCHITECTURES[::3]]


@pytest.mark.parametrize(("architecture", "dtype"), ROWS, ids=[f"{a.name}, {dtype.__name__}" for a, dtype in ROWS])
def test_both_kernels_agree(architecture, dtype):
    (x1, a1), (x2, a2) = architecture.inputs(0, 4, dtype), architecture.inputs(1, 4, dtype)
    oracle = theirs(architecture.build, x1, x2, a1, a2)
    kernel_fn = architecture.build(stax)[2]
    left, right = (x1, x2) if a1 is None else (stax.Graph(x1, a1), stax.Graph(x2, a2))
    ours = kernel_fn(left, right, ("nngp", "ntk"))
    assert ours.ntk.dtype == dtype
    assert_equal_kernels(ours, oracle, RELATIVE[dtype])
    if a1 is not None:
        assert_equal_kernels(kernel_fn(x1, x2, pattern=(a1, a2)), oracle, RELATIVE[dtype])


# Finite networks of more than products with weights. Decaying embeddings use another root of the same covariance.
NAMES = ("layer-norm-over-positions", "standard-conv", "attention-concat", "attention-only")
FINITE = [a for a in ARCHITECTURES if a.name in NAMES]


@pytest.mark.parametrize("architecture", FINITE, ids=lambda a: a.name)
def test_finite_networks_with_the_same_weights_agree(architecture, key):
    """Weights are drawn by neural-tangents, and have the same shapes up to axes of length one."""
    x, _ = architecture.inputs(0, 3)
    init_fn, apply_fn, _ = architecture.build(nt.stax)
    announced = []

    def outputs(key, x):
        shape, params = init_fn(key, x.shape)
        announced.append(shape)
        return params, apply_fn(params, x)

    with jax.numpy_rank_promotion("allow"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        params, expected = jax.jit(outputs)(key, x)
    init_ours, apply_ours, _ = architecture.build(stax)

    def drawn(key):
        shape, params = init_ours(key, x.shape)
        assert shape == announced[0]
        return params

    params = jax.tree.map(lambda own, given: given.reshape(own.shape), jax.eval_shape(drawn, key), params)
    assert_close(jax.jit(apply_ours)(params, x), expected)
