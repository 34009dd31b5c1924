"""Singular Gram matrices of augmented data: fixed points, repeated points, contradicting labels, empty blocks.

The reference is dense NumPy on the range of the Gram matrix; what is null is known to be so from the construction.
"""

import warnings

import hypothesis
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from ntk_equiv import InfiniteEnsemble, augment, gram, groups, reps, stax
from ntk_equiv.infinite import RankWarning

INF = float("inf")
SHIFTS = reps.regular(groups.cyclic(4))
TURNS = reps.direct_sum(*[reps.matrix(groups.SO2.finite(4))] * 2)  # contains −1
NETWORKS = {
    "shifts": (SHIFTS, stax.serial(stax.Dense(1, 1.4, 0.3), stax.Relu(), stax.Dense(1, 1.2, 0.1))[2]),
    # Odd without biases: on invariant labels its block vanishes identically.
    "odd": (TURNS, stax.serial(stax.Dense(1, 1.4), stax.Erf(), stax.Dense(1))[2]),
    # One hidden ReLU layer without biases: its odd part has the rank of the input dimension.
    "half linear": (TURNS, stax.serial(stax.Dense(1, 1.4), stax.Relu(), stax.Dense(1))[2]),
}
TEST = jnp.asarray(np.random.default_rng(0).standard_normal((3, 4)))


def planted(rep, seed, fixed, repeated, contradicting):
    """Four points of which some are fixed, or copies of others, and their labels."""
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((4, 4)), rng.standard_normal(4)
    if fixed:  # by a shift of two, and by all of them; the origin by all turns
        x[0, 2:] = x[0, :2]
        x[1] = x[1, 0] if rep is SHIFTS else 0.0
    if repeated:  # a point and a moved copy of it
        x[3] = np.asarray(rep(1, jnp.asarray(x[2])))
        y[3] = y[2] + contradicting
    return augment(jnp.asarray(x), jnp.asarray(y), rep)


def reference(kernel_fn, train, t):
    """Mean and variance by NumPy, on the range of Θ."""
    points = np.concatenate([train.x, TEST])
    K, theta = (np.asarray(kernel) for kernel in gram(kernel_fn, points, None))
    n = train.size
    values, vectors = np.linalg.eigh(theta[:n, :n])
    kept = values > 1e-9 * max(values[-1], 1e-12)
    with np.errstate(over="ignore"):
        phi = -np.expm1(-values[kept] * t) / values[kept]
    A = theta[n:, :n] @ (vectors[:, kept] * phi) @ vectors[:, kept].T
    cov = K[n:, n:] - A @ K[:n, n:] - K[n:, :n] @ A.T + A @ K[:n, :n] @ A.T
    return A @ np.asarray(train.y), np.diag(cov)


@hypothesis.settings(max_examples=14)
@hypothesis.given(
    name=st.sampled_from(sorted(NETWORKS)),
    seed=st.integers(0, 1000),
    fixed=st.booleans(),
    repeated=st.booleans(),
    contradicting=st.sampled_from([0.0, 1.0]),
    t=st.sampled_from([0.0, 1e-6, 0.3, 1e3, 1e7, 1e12, 1e18, INF]),
    method=st.sampled_from(["dense", "reduced"]),
)
def test_degenerate_data_give_the_right_law(name, seed, fixed, repeated, contradicting, t, method):
    rep, kernel_fn = NETWORKS[name]
    train = planted(rep, seed, fixed, repeated, contradicting)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RankWarning)
        ens = InfiniteEnsemble(kernel_fn, train, method=method)
        mean, var, cov = ens.mean(TEST, t), ens.var(TEST, t), ens.cov(TEST, t)
    expected_mean, expected_var = reference(kernel_fn, train, t)
    np.testing.assert_allclose(mean, expected_mean, atol=2e-6 * (1 + np.abs(expected_mean).max()))
    np.testing.assert_allclose(var, expected_var, atol=2e-6)
    assert (np.asarray(var) >= 0).all()
    assert np.linalg.eigvalsh(cov)[0] > -1e-8


def test_what_cannot_be_fitted_is_named():
    contradiction = planted(SHIFTS, 1, fixed=False, repeated=True, contradicting=1.0)
    ens = InfiniteEnsemble(NETWORKS["shifts"][1], contradiction)
    with pytest.warns(RankWarning, match=r"of the 16 eigenvalues .* cannot be fitted"):
        fit = ens.mean(contradiction.base_x, INF)
    np.testing.assert_allclose(fit[2:], np.full(2, contradiction.base_y[2:].mean()), rtol=1e-9)
    with pytest.warns(RankWarning, match="cannot be fitted"):
        np.testing.assert_allclose(ens.mean(contradiction.base_x, 1e16), fit, rtol=1e-9)
    ens.mean(contradiction.base_x, 1.0)  # early enough to need no projection, hence no warning
    assert ens.rank == 12


def test_fixed_points_alone_are_no_contradiction():
    train = planted(SHIFTS, 1, fixed=True, repeated=False, contradicting=0.0)
    ens = InfiniteEnsemble(NETWORKS["shifts"][1], train)
    assert ens.rank == 16 - 2 - 3
    np.testing.assert_allclose(ens.mean(train.x, INF), train.y, rtol=1e-9)


def test_a_vanishing_block_learns_nothing():
    train = planted(TURNS, 3, fixed=False, repeated=False, contradicting=0.0)
    ens = InfiniteEnsemble(NETWORKS["odd"][1], train)
    with pytest.warns(RankWarning, match="100 % of the labels"):
        np.testing.assert_allclose(ens.mean(TEST, INF), 0, atol=1e-12)


def test_one_training_point():
    x, y = jnp.array([[1.0, 1.0, 1.0, 1.0]]), jnp.array([2.0])
    ens = InfiniteEnsemble(NETWORKS["shifts"][1], augment(x, y, SHIFTS))
    assert ens.rank == 1
    np.testing.assert_allclose(ens.mean(x, INF), [2.0], rtol=1e-12)
