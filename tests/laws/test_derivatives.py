"""Derivatives of trained ensembles against finite differences, on every kind of group.

Symmetry makes eigenvalues coincide, in the whole Gram matrix and for quaternionic irreps in the blocks too, and there
eigenvectors have no derivative. What an ensemble predicts has one all the same.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntk_equiv import InfiniteEnsemble, augment, filters, groups, reps, stax
from tests.cases import GROUPS

INF = float("inf")
FILTERS = itertools.cycle(
    [
        (filters.gradient_flow(0.8), 2.0),
        (filters.gradient_descent(4e-3), 300),
        (filters.momentum(4e-3, 0.9), 40),
        (filters.ridge(0.1), INF),
        (filters.converged(), INF),
        (filters.ridge(0.3), 1.5),
        (filters.custom(lambda lam, t: t / (1 + lam * t)), 2.0),
    ]
)
BOTH = {"C4", "Q8"}
# Those of the regular representation depend on the table alone: these are S4, A5 and D4 once more.
OTHERS = [name for name in GROUPS if name not in ("O", "I", "signed permutations")]
CHOSEN = [(name, method) for name in OTHERS for method in ("reduced", "dense") if method == "reduced" or name in BOTH]
ROWS = [(name, method, *next(FILTERS)) for name, method in CHOSEN]


def kernel_with(weight):
    """Kernels of inner products with a parameter, which any orthogonal action respects."""

    def kernel_fn(x1, x2=None, get=None):
        products = x1 @ (x1 if x2 is None else x2).T / x1.shape[1]
        nngp = weight * jnp.exp(products)
        kernels = {"nngp": nngp, "ntk": nngp * (1 + weight * products**2)}
        return kernels[get] if isinstance(get, str) else tuple(kernels[name] for name in get or ("nngp", "ntk"))

    return kernel_fn


def predictions(rep, filter, t, method, fixed=False):
    """Numbers that depend on everything an ensemble computes, as a function of kernel, samples, labels and rate."""
    rng = np.random.default_rng(3)
    size = rep.group.order
    x, dx, y, dy, x_test = (jnp.asarray(rng.standard_normal((2, size))) for _ in range(5))
    x = x * (size / jnp.sum(x**2, axis=1, keepdims=True)) ** 0.5  # so that no rate is too large
    if fixed:  # and it stays fixed
        x, dx = x.at[0].set(x[0, 0]), dx.at[0].set(dx[0, 0])

    def values(p):
        train = augment(x + p[1] * dx, y + p[2] * dy, rep, rep)
        ens = InfiniteEnsemble(kernel_with(p[0]), train, filter, method=method)
        mean, variance = ens.mean(x_test, t), ens.var(x_test, t)
        return jnp.stack([jnp.sum(mean**2), jnp.sum(variance), jnp.sum(jnp.sin(ens.coefficients(t)))])

    return values


def assert_derivatives(values, at, modes=(jax.jacfwd, jax.jacrev), *, step=1e-3, tolerance=1e-6):
    """Asserts that forward and reverse derivatives of jitted `values` are those of finite differences."""
    for derivative in modes:
        # One program gives both, because compiling two would take longer.
        slopes_and_values = jax.jit(derivative(lambda p: (values(p),) * 2, has_aux=True))
        found, _ = slopes_and_values(at)
        steps = step * jnp.eye(len(at))[:, None] * jnp.array([1.0, -1.0, 2.0, -2.0])[None, :, None]
        moved = np.stack([[slopes_and_values(at + one)[1] for one in along] for along in steps], axis=-1)
        expected = (8 * (moved[0] - moved[1]) - (moved[2] - moved[3])) / (12 * step)
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize(("name", "method", "filter", "t"), ROWS, ids=[f"{row[0]}, {row[1]}" for row in ROWS])
def test_derivatives_on_every_group(name, method, filter, t):
    # Compiling takes most of the time, and both modes rest on one rule: groups take turns.
    turn = list(GROUPS).index(name) % 2
    modes = (jax.jacfwd, jax.jacrev) if name in BOTH else (jax.jacfwd, jax.jacrev)[turn : turn + 1]
    assert_derivatives(predictions(reps.regular(GROUPS[name]), filter, t, method), jnp.array([0.7, 0.0, 0.0]), modes)


@pytest.mark.parametrize("method", ["dense", "reduced"])
def test_derivatives_with_a_sample_that_the_group_fixes(method):
    values = predictions(reps.regular(groups.cyclic(4)), filters.gradient_flow(), 3.0, method, fixed=True)
    assert_derivatives(values, jnp.array([0.7, 0.0, 0.0]), modes=(jax.jacfwd,))


def test_derivatives_in_samples_alone():
    """The labels are known then, and so are the irreps that they contain."""
    rep, y = reps.regular(groups.cyclic(3)), jnp.array([1.0, -0.5])

    def values(x):
        return InfiniteEnsemble(kernel_with(0.7), augment(x, y, rep), method="reduced").mean(jnp.eye(3), 2.0)

    found = jax.jit(jax.jacfwd(values))(jnp.array([[1.0, 0.3, 0.2], [0.1, 0.9, -0.4]]))
    assert found.shape == (3, 2, 3)
    assert np.abs(found).max() > 0.01


def test_the_check_of_derivatives_can_fail():
    with pytest.raises(AssertionError):
        assert_derivatives(lambda p: p**2 + jax.lax.stop_gradient(1e-3 * p), jnp.array([0.7, 0.3]))


def test_derivatives_of_a_network_in_its_parameters():
    rep = reps.matrix(groups.O(2).finite(4))
    x, y = jnp.array([[1.0, 0.2], [0.3, 2.0]]), jnp.array([1.0, -1.0])

    def values(p):
        kernel_fn = stax.serial(stax.Dense(8, p[0], p[1]), stax.Relu(), stax.Dense(1))[2]
        ens = InfiniteEnsemble(kernel_fn, augment(x, y, rep), method="reduced")
        drawn = ens.sample(jax.random.key(0), x + 0.3, jnp.array([0.5, 2.0]), members=2)
        return jnp.stack([jnp.sum(drawn), ens.log_marginal_likelihood(noise=p[2]), jnp.sum(ens.var(x + 0.3, 2.0))])

    assert_derivatives(values, jnp.array([1.4, 0.1, 0.2]), modes=(jax.jacrev,))


def test_second_derivatives_are_refused():
    values = predictions(reps.regular(groups.cyclic(3)), filters.gradient_flow(), 1.0, "dense")
    with pytest.raises(NotImplementedError, match="second derivative"):
        jax.hessian(lambda p: values(p)[0])(jnp.array([0.7, 0.0, 0.0]))
