"""`ensemble_mean` and `ensemble_cov` in turn: each block is decomposed once, and nothing outlives its data."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntk_equiv import InfiniteEnsemble, augment, ensemble_cov, ensemble_mean, filters, groups, reps, solvers, stax
from ntk_equiv.infinite import _functions
from tests.tolerances import assert_close

KERNEL_FN = stax.serial(stax.Dense(1, 1.4, 0.2), stax.Relu(), stax.Dense(1)).kernel_fn
X_TEST, TIME, ORDER = jnp.asarray(np.random.default_rng(1).normal(size=(3, 4))), 7.0, 4
IRREPS = 3  # of C4, with the two complex ones as one


def data(seed=0):
    """Five samples under C4, with invariant labels."""
    rng = np.random.default_rng(seed)
    x, y = jnp.asarray(rng.normal(size=(5, 4))), jnp.asarray(rng.normal(size=5))
    return augment(x, y, reps.regular(groups.cyclic(ORDER)))


@pytest.fixture(autouse=True)
def decomposed(monkeypatch):
    """The number of blocks in each call of the solver, from a state in which nothing is remembered."""
    _functions._LAST.forget()
    found, solve = [], solvers.Eigh.solve_several

    def count(self, blocks, **settings):
        if blocks:
            found.append(len(blocks))
        return solve(self, blocks, **settings)

    monkeypatch.setattr(solvers.Eigh, "solve_several", count)
    return found


def exact(train, **settings):
    ens = InfiniteEnsemble(KERNEL_FN, train, filters.gradient_flow(1.0), **settings)
    return ens.mean(X_TEST, TIME), ens.cov(X_TEST, TIME)


def test_each_block_is_decomposed_once(decomposed):
    train = data()
    mean, cov = ensemble_mean(KERNEL_FN, train, X_TEST, TIME), ensemble_cov(KERNEL_FN, train, X_TEST, TIME)
    assert decomposed == [1, IRREPS - 1]
    variance = ensemble_cov(KERNEL_FN, train, X_TEST, TIME, diag=True)
    again = ensemble_mean(KERNEL_FN, train, X_TEST, TIME)
    assert decomposed == [1, IRREPS - 1]
    for found, wanted in zip((mean, cov), exact(train), strict=True):
        assert_close(found, wanted)
    assert_close(variance, np.diag(cov))
    assert_close(again, mean)


def test_a_covariance_alone_decomposes_all_at_once(decomposed):
    train = data()
    cov = ensemble_cov(KERNEL_FN, train, X_TEST, TIME)
    assert decomposed == [IRREPS]
    mean = ensemble_mean(KERNEL_FN, train, X_TEST, TIME)
    assert decomposed == [IRREPS]
    for found, wanted in zip((mean, cov), exact(train), strict=True):
        assert_close(found, wanted)


def test_rate_loss_and_time_need_no_new_decomposition(decomposed):
    train = data()
    ensemble_cov(KERNEL_FN, train, X_TEST, TIME)
    other = ensemble_mean(KERNEL_FN, train, X_TEST, jnp.array([0.5, 1e3]), learning_rate=0.3, reduction="mean")
    assert decomposed == [IRREPS]
    ens = InfiniteEnsemble(KERNEL_FN, train, filters.gradient_flow(0.3), reduction="mean")
    assert_close(other, ens.mean(X_TEST, jnp.array([0.5, 1e3])))


@pytest.mark.parametrize("change", ["samples", "labels", "kernel", "method"])
def test_other_problems_are_told_apart(change, decomposed):
    train, other = data(), data(1)
    kernel_fn, method = KERNEL_FN, "auto"
    ensemble_mean(kernel_fn, train, X_TEST, TIME)
    if change == "samples":
        train = augment(other.base_x, train.base_y, train.rep_x)
    elif change == "labels":
        train = augment(train.base_x, other.base_y, train.rep_x)
    elif change == "kernel":
        kernel_fn = stax.serial(stax.Dense(1, 1.5, 0.2), stax.Relu(), stax.Dense(1)).kernel_fn
    else:
        method = "dense"
    found = ensemble_mean(kernel_fn, train, X_TEST, TIME, method=method)
    assert decomposed == [1, 1]
    assert_close(found, InfiniteEnsemble(kernel_fn, train).mean(X_TEST, TIME))


def test_arrays_that_may_change_are_not_recognised(decomposed):
    x, y = np.random.default_rng(0).normal(size=(5, 4)), np.arange(5.0)
    before = ensemble_mean(KERNEL_FN, (x, y), X_TEST, TIME)
    y *= 2
    assert_close(ensemble_mean(KERNEL_FN, (x, y), X_TEST, TIME), 2 * before)
    assert decomposed == [1, 1]


def test_nothing_outlives_its_data():
    train = data()
    ensemble_cov(KERNEL_FN, train, X_TEST, TIME)
    assert _functions._LAST._solved
    alive = weakref.ref(train.base_y)
    del train
    gc.collect()
    assert alive() is None
    assert not _functions._LAST._solved


def test_large_blocks_are_not_kept(monkeypatch, decomposed):
    monkeypatch.setattr(_functions, "MOST_BYTES_KEPT", 100)
    train = data()
    ensemble_mean(KERNEL_FN, train, X_TEST, TIME)
    ensemble_mean(KERNEL_FN, train, X_TEST, TIME)
    assert decomposed == [1, 1]


def test_a_compiled_function_leaves_nothing_behind():
    train = data()
    law = jax.jit(lambda y: ensemble_cov(KERNEL_FN, (train.base_x, y), X_TEST, TIME, method="dense"))
    found = law(train.base_y)
    assert not _functions._LAST._solved
    assert_close(found, ensemble_cov(KERNEL_FN, (train.base_x, train.base_y), X_TEST, TIME))


def test_a_mean_after_a_covariance_looks_at_the_irreps_of_the_labels_alone():
    ens = InfiniteEnsemble(KERNEL_FN, data())
    ens.cov(X_TEST, TIME)
    assert list(ens._blocks_for(None).by_irrep) == [0]
    assert len(ens._blocks_for(None, covariance=True).by_irrep) == IRREPS
