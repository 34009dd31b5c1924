"""Continuous groups: bounds and certificates are never below what is measured, and as tight as they say."""

import functools

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from ntk_equiv import InfiniteEnsemble, augment, bounds, filters, groups, reps, stax
from tests.tolerances import assert_close

ACTIVATIONS = {"relu": stax.Relu(), "erf": stax.Erf()}
TEST = jnp.asarray(np.random.default_rng(1).normal(size=(2, 2)))


@functools.cache
def network(name):
    if name == "guest":  # a kernel of which nothing is known
        return lambda x1, x2=None, get=None: network("erf")(x1, x2, get)
    if name == "standard":  # the number of features matters
        form = {"parameterization": "standard"}
        return stax.serial(stax.Dense(3, 1.5, 0.3, **form), stax.LayerNorm(), stax.Relu(), stax.Dense(1, **form))[2]
    return stax.serial(stax.Dense(8, 1.5, 0.3), ACTIVATIONS[name], stax.Dense(1, 1.2, 0.1))[2]


@functools.cache
def rotation(k):
    return reps.matrix(groups.SO2.finite(k))


def ensemble(name, k, seed=0, vector=False):
    rng = np.random.default_rng(seed)
    x = jnp.asarray(rng.normal(size=(2, 2)))
    y = jnp.asarray(rng.normal(size=(2, 2)[: 1 + vector]))
    turn = rotation(k)
    train = augment(x, y, turn, turn if vector else None)
    return InfiniteEnsemble(network(name), train, filters.gradient_flow(1.0), reduction="mean", method="dense")


@settings(max_examples=12)
@given(st.integers(0, 10**6), st.sampled_from(["relu", "erf", "standard"]), st.floats(0.01, 300.0))
def test_nothing_is_below_the_measured_error(seed, name, t):
    """On random problems, at early and late times."""
    ens, rng = ensemble(name, 3, seed), np.random.default_rng(seed + 1)
    x = jnp.asarray(rng.normal(size=(8, 2)) * np.geomspace(0.1, 5, 8)[:, None])
    bound = bounds.continuous_group_bound(ens, groups.SO2, x, t)
    found = bounds.certified_continuous_deviation(ens, groups.SO2, x, t, rtol=0.5, max_cells=120)
    measured = bounds.measured_continuous_deviation(ens, groups.SO2, x, t, count=64)
    rounding = 1e-9 * np.abs(ens.coefficients(t)).sum()
    assert (measured.lower <= bound.upper + rounding).all()
    assert (measured.lower <= found.upper + rounding).all()
    assert (found.lower <= bound.upper + rounding).all()
    assert (found.lower <= measured.lower * 1.2 + rounding).all()  # four rounds of a grid find nearly all there is


def test_the_certificate_closes_on_the_truth():
    """As tight as one pays for, where the triangle inequality of the lemma is loose by an order of magnitude."""
    ens = ensemble("relu", 3)
    widths = []
    for rtol in (0.3, 0.01):
        found = bounds.certified_continuous_deviation(ens, groups.SO2, TEST, 2.0, rtol=rtol)
        widths.append(found.upper / found.lower - 1)
        assert (widths[-1] <= rtol).all()
    measured = bounds.measured_continuous_deviation(ens, groups.SO2, TEST, 2.0)
    assert_close(measured.lower, found.lower, {"float64": 0.01})
    assert (continuous := bounds.continuous_group_bound(ens, groups.SO2, TEST, 2.0)).certified
    assert (continuous.upper > 5 * measured.lower).all()
    # The element that is named attains it.
    for sample, element, lower in zip(TEST, found.elements, found.lower, strict=True):
        both = ens.mean(jnp.stack([sample, jnp.asarray(element) @ sample]), 2.0)
        assert_close(np.abs(both[1] - both[0]), lower, {"float64": 1e-9})
    few = bounds.certified_continuous_deviation(ens, groups.SO2, TEST, 2.0, rtol=1e-6, max_cells=50)
    assert (few.cells <= 50).all()
    assert few.certified
    assert (few.upper >= measured.lower).all()
    assert found.converged.all()
    assert not few.converged.any()
    assert "wider than asked for" in repr(few)
    assert "wider" not in repr(found)


@pytest.mark.parametrize("name", ["relu", "erf"])
def test_the_bound_shrinks_as_one_over_the_order(name):
    """Under reduction="mean", where the same t means the same training for every order."""
    coarse, fine = (bounds.continuous_group_bound(ensemble(name, k), groups.SO2, TEST, 2.0) for k in (8, 32))
    assert_close(fine.epsilon, 2 * np.sin(np.pi / 64))
    assert (np.abs(coarse.upper / fine.upper / 4 - 1) < 0.1).all()
    assert_close(fine.upper, fine.epsilon * fine.constant + fine.rotation)
    assert_close(fine.upper, fine.moduli @ fine.coefficients)


def test_the_papers_form_is_valid_and_looser():
    ens = ensemble("erf", 8)
    ours, paper = (bounds.continuous_group_bound(ens, groups.SO2, TEST, 2.0, form=f) for f in ("modulus", "lipschitz"))
    assert (paper.upper >= ours.upper).all()
    assert (paper.upper <= 10 * ours.upper).all()
    alpha = np.asarray(ens.coefficients(2.0))
    x = np.asarray(ens.x)
    factor = paper.constant / np.sqrt((x**2).sum()) / np.linalg.norm(alpha)
    slope = jax.vmap(lambda v: jax.jacfwd(lambda a: network("erf")(TEST[:1], a[None], "ntk")[0, 0])(v))(jnp.asarray(x))
    tangent = np.abs(slope @ np.array([[0.0, 1.0], [-1.0, 0.0]]) @ x.T).diagonal() / np.linalg.norm(x, axis=1)
    assert factor[0] >= tangent.max()
    with pytest.raises(ValueError, match='form="modulus" needs no such assumption'):
        bounds.continuous_group_bound(ensemble("relu", 3), groups.SO2, TEST, 1.0, form="lipschitz")


def test_labels_that_transform():
    """The extra term: the nearest element for samples is used for labels too."""
    ens = ensemble("relu", 3, vector=True)
    bound = bounds.continuous_group_bound(ens, groups.SO2, TEST, 2.0, rep_y=groups.SO2)
    assert_close(bound.rotation, 2 * np.sin(np.pi / 6) * np.linalg.norm(ens.mean(TEST, 2.0), axis=1))
    found = bounds.certified_continuous_deviation(ens, groups.SO2, TEST, 2.0, rep_y=groups.SO2, rtol=0.05)
    measured = bounds.measured_continuous_deviation(ens, groups.SO2, TEST, 2.0, rep_y=groups.SO2)
    assert_close(measured.lower, found.lower, {"float64": 0.05})
    assert (measured.lower <= found.upper).all()
    assert (found.upper <= bound.upper).all()
    with pytest.raises(ValueError, match="`rep_y` must be given"):
        bounds.continuous_group_bound(ens, groups.SO2, TEST, 2.0)


@functools.cache
def half_turns(name):
    x = jnp.asarray(np.random.default_rng(3).normal(size=(1, 3)))
    train = augment(x, jnp.ones(1), reps.matrix(groups.SO3.finite("C2")))
    return InfiniteEnsemble(network(name), train, filters.gradient_flow(1.0), reduction="mean", method="dense")


def test_rotations_in_space():
    ens, x = half_turns("relu"), jnp.array([[0.4, -1.0, 0.3]])
    bound = bounds.continuous_group_bound(ens, groups.SO3, x, 5.0)
    assert_close(bound.epsilon, 2.0)  # C_k in space is as far from some rotation as can be
    found = bounds.certified_continuous_deviation(ens, groups.SO3, x, 5.0, rtol=0.5, max_cells=3000)
    measured = bounds.measured_continuous_deviation(ens, groups.SO3, x, 5.0)
    assert found.lower <= measured.lower * 1.05
    assert measured.lower <= found.upper <= bound.upper
    assert found.upper / found.lower < 2


def test_data_that_are_not_augmented(key):
    """No subgroup, no lemma; the certificate then searches all of the group."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(6, 2)))
    plain = InfiniteEnsemble(network("relu"), (x, x[:, 0]), filters.gradient_flow(1.0), reduction="mean")
    with pytest.raises(ValueError, match="data that are not augmented"):
        bounds.continuous_group_bound(plain, groups.SO2, TEST, 2.0)
    drawn = augment(x[:2], x[:2, 0], reps.matrix(groups.SO2), elements=groups.SO2.sample(key, 3))
    drawn = InfiniteEnsemble(network("relu"), drawn, filters.gradient_flow(1.0), reduction="mean", method="dense")
    with pytest.raises(ValueError, match="which is no subgroup"):
        bounds.continuous_group_bound(drawn, groups.SO2, TEST, 2.0)
    some = augment(x[:2], x[:2, 0], reps.matrix(groups.SO2.finite(6)), elements=[0, 1, 2])
    some = InfiniteEnsemble(network("relu"), some, filters.gradient_flow(1.0), reduction="mean", method="dense")
    with pytest.raises(ValueError, match="which are no subgroup"):
        bounds.continuous_group_bound(some, groups.SO2, TEST, 2.0)
    for ens in (plain, drawn):
        found = bounds.certified_continuous_deviation(ens, groups.SO2, TEST, 2.0, rtol=0.05)
        measured = bounds.measured_continuous_deviation(ens, groups.SO2, TEST, 2.0)
        assert (measured.lower <= found.upper).all()
        assert_close(measured.lower, found.lower, {"float64": 0.05})


def test_kernels_without_certificate(key):
    ens = ensemble("guest", 3)
    with pytest.raises(ValueError, match="continuous_group_estimate"):
        bounds.continuous_group_bound(ens, groups.SO2, TEST, 2.0)
    with pytest.raises(ValueError, match="certified kernel"):
        bounds.certified_continuous_deviation(ens, groups.SO2, TEST, 2.0)
    estimate = bounds.continuous_group_estimate(ens, groups.SO2, TEST, 2.0, key=key)
    assert not estimate.certified
    assert (estimate.upper >= bounds.measured_continuous_deviation(ens, groups.SO2, TEST, 2.0).lower).all()


def test_the_estimate_is_below_the_bound(key):
    ens = ensemble("relu", 3)
    estimate = bounds.continuous_group_estimate(ens, groups.SO2, TEST, 2.0, key=key)
    bound = bounds.continuous_group_bound(ens, groups.SO2, TEST, 2.0)
    assert (estimate.upper <= bound.upper).all()
    assert (estimate.upper >= 0.3 * bound.upper).all()


def test_actions_have_to_agree():
    ens = ensemble("relu", 3)
    double = reps.matrix(groups.SO2, lambda R: R @ R)
    with pytest.raises(ValueError, match="`rep` must be an extension"):
        bounds.continuous_group_bound(ens, double, TEST, 1.0)
    with pytest.raises(ValueError, match="`rep_y` must be an extension"):
        bounds.continuous_group_bound(ensemble("relu", 3, vector=True), groups.SO2, TEST, 1.0, rep_y=double)
    train = augment(TEST, TEST[:, 0], reps.matrix(groups.cyclic(3), groups.SO2.finite(3).matrices))
    abstract = InfiniteEnsemble(network("relu"), train, method="dense")
    with pytest.raises(ValueError, match="augmented by elements of SO"):
        bounds.continuous_group_bound(abstract, groups.SO2, TEST, 1.0)
    with pytest.raises(ValueError, match="a representation of SO\\(2\\) or SO\\(3\\)"):
        bounds.certified_continuous_deviation(ensemble("relu", 3), groups.O(2), TEST, 1.0)


def test_group_orders_are_all_tried():
    found = bounds.min_group_order(lambda k: ensemble("relu", k), groups.SO2, TEST, 2.0, 0.004, [8, 3], max_cells=2000)
    assert found.orders == (8, 3)
    assert all(lower <= upper for lower, upper in zip(found.measured, found.upper, strict=True))
    assert found.measured_order == found.certified_order == 8
    none = bounds.min_group_order(lambda k: ensemble("guest", k), groups.SO2, TEST, 2.0, 1e-9, [3])
    assert none.measured_order is None
    assert none.upper == (np.inf,)


@pytest.mark.parametrize("with_identity", [False, True])
def test_random_augmentation(with_identity, key):
    """Drawn by each member, the expected prediction is invariant; not if the identity is always among them."""
    x, y = jnp.array([[1.0, 0.5]]), jnp.ones(1)

    plane = reps.matrix(groups.SO2)

    def build(matrices):
        train = augment(x, y, plane, elements=matrices)
        return InfiniteEnsemble(network("relu"), train, filters.gradient_flow(1.0), reduction="mean", method="dense")

    settings = {"count": 3, "key": key, "draws": 30, "elements": 3, "with_identity": with_identity}
    found = bounds.random_augmentation_deviation(build, groups.SO2, x[:1], 50.0, **settings)
    covered = (found.signed.lower <= 0) & (found.signed.upper >= 0)
    assert covered.all() != with_identity
    assert (found.absolute.lower > 0).all()
