"""Orbit errors of ensembles: against the library's own metric, on errors that are known, and against sampling."""

from itertools import combinations

import _orbit_errors as oe
import jax
import numpy as np
import pytest

from ntk_equiv import bounds, groups, metrics, reps

T = groups.polyhedral("T")
VECTOR = reps.matrix(T)


@pytest.fixture(scope="module")
def predictions():
    """Of 5 members at 3 points and their images under T, [5, 13 · 3, 3]."""
    return np.random.default_rng(0).standard_normal((5, 13 * 3, 3))


def test_products_hold_the_orbit_mse_of_members_and_of_all_of_them(predictions):
    P = np.asarray(oe.orbit_products(VECTOR, None)(predictions))
    p = predictions.reshape(5, 13, 3, 3)
    known = metrics.orbit_mse(p[:, 1:], p[:, 0], VECTOR)
    np.testing.assert_allclose(np.diag(P), known.members, rtol=1e-12)
    np.testing.assert_allclose(P.mean(), known.ensemble, rtol=1e-12)


def test_equivariant_functions_have_no_error():
    x = np.random.default_rng(1).standard_normal((4, 3))
    images = np.asarray(oe.with_orbit(x, VECTOR, None))
    np.testing.assert_array_equal(images[:4], x)
    cubes = images * np.sum(images**2, axis=1, keepdims=True)
    assert np.abs(oe.orbit_products(VECTOR, None)(cubes[None])).max() < 1e-25


def test_ensembles_are_all_that_can_be_made_of_the_members():
    e = np.array([1.0, 3.0, -1.0, -3.0, 5.0])
    means, errors = oe.of_ensembles(np.outer(e, e), (1, 2, 3, 5))
    known = [np.mean([np.mean(chosen) ** 2 for chosen in combinations(e, size)]) for size in (1, 2, 3, 5)]
    np.testing.assert_allclose(means, known)
    assert errors[0] == pytest.approx(np.std(e**2, ddof=1) / np.sqrt(5))


def test_parts_leave_the_diagonal_out():
    """Errors 1, 2 and 4: squares have the mean 7, products of different ones 14/3."""
    found, _ = oe.parts(np.outer([1.0, 2.0, 4.0], [1.0, 2.0, 4.0]))
    np.testing.assert_allclose(found, [7, 7 - 14 / 3, 14 / 3])


def test_parts_are_those_of_a_random_ensemble():
    """Members with the common error 0.5 and independent errors of variance 2, 400 of them at 50 places."""
    rng = np.random.default_rng(2)
    found, errors = oe.parts(np.asarray(oe.products(0.5 + np.sqrt(2) * rng.standard_normal((400, 50)))))
    deviations = (found - [2.25, 2.0, 0.25]) / errors
    assert np.abs(deviations).max() < 4, deviations
    # The standard error of a mean of 400 values whose own deviation is known: var of mean (z + c)² = (2σ⁴ + 4c²σ²)/50.
    assert errors[0] == pytest.approx(np.sqrt((2 * 4 + 4 * 0.25 * 2) / 50 / 400), rel=0.2)


def test_theory_is_that_of_sampled_members():
    """A law whose parts are known from draws of it: one point, the identity and one turn, two channels."""
    root = np.random.default_rng(3).standard_normal((3, 3))
    mean = np.array([[[1.0, 0.0], [1.0, 0.5], [0.0, 2.0]]])
    actions = np.array([np.eye(2), [[0.0, -1.0], [1.0, 0.0]]])
    law = bounds.OrbitDeviation(mean, (root @ root.T)[None], actions, None)
    noise = np.asarray(jax.random.normal(jax.random.key(0), (20_000, 3, 2)))
    f = mean + np.einsum("ij,sjc->sic", root, noise)
    D = f[:, 1:] - np.einsum("gij,sj->sgi", actions, f[:, 0])
    own = np.mean(D**2, axis=(1, 2))
    both, v, b = oe.predicted_parts(law)
    assert both == pytest.approx(v + b)
    assert abs(own.mean() - both) < 5 * own.std() / np.sqrt(len(own))
    assert b == pytest.approx(np.mean((mean[0, 1:] - actions @ mean[0, 0]) ** 2))
    np.testing.assert_allclose(oe.expected_of_ensembles((both, v, b), (1, 4)), [both, b + v / 4])


def test_sizes_double_up_to_all_members():
    assert [oe.powers(members) for members in (1, 2, 5, 8)] == [(1,), (1, 2), (1, 2, 4, 5), (1, 2, 4, 8)]
