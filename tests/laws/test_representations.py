"""Laws of every representation in the table."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntk_equiv import reps
from tests.cases import EXACT, INTERPOLATED, NON_ABELIAN, ORTHOGONAL, SKEWED
from tests.tolerances import ORACLE, assert_close

ALL = EXACT | INTERPOLATED
every_action = pytest.mark.parametrize("action", ALL.values(), ids=ALL)
exact_action = pytest.mark.parametrize("action", EXACT.values(), ids=EXACT)
orthogonal_action = pytest.mark.parametrize("action", ORTHOGONAL.values(), ids=ORTHOGONAL)


def assert_trees_close(actual, expected) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    jax.tree.map(assert_close, actual, expected)


def test_the_table_of_cases_is_large_enough() -> None:
    acting = {action.rep.group for action in EXACT.values()}
    assert len(acting) >= 8
    assert sum(not group.is_abelian for group in acting) >= 4
    assert NON_ABELIAN


# All in double precision, and for the sake of time every third in single.
TYPED = [(name, jnp.float64) for name in EXACT] + [(name, jnp.float32) for name in list(EXACT)[::3]]


@pytest.mark.parametrize(("name", "dtype"), TYPED, ids=[f"{name}, {dtype.__name__}" for name, dtype in TYPED])
def test_homomorphism(name, dtype) -> None:
    action = EXACT[name]
    rep, x = action.rep, action.data(2, dtype=dtype)
    everything = jnp.arange(rep.group.order)

    @jax.jit
    def both_ways(x):
        twice = jax.vmap(lambda g: jax.vmap(lambda h: rep(g, rep(h, x)))(everything))(everything)
        once = jax.vmap(jax.vmap(lambda gh: rep(gh, x)))(jnp.asarray(rep.group.table))
        return twice, once, rep(rep.group.identity, x)

    twice, once, same = both_ways(x)
    assert_trees_close(twice, once)
    assert_trees_close(same, x)
    assert {leaf.dtype for leaf in jax.tree.leaves(once)} == {jnp.dtype(dtype)}


@every_action
def test_all_ways_of_acting_agree(action) -> None:
    """Elements known or traced, one or all; inside and outside of jit; with no batch axis or several."""
    x, last = action.data(2), action.rep.group.order - 1

    @jax.jit
    def inside(rep, g, x):
        first, several = (jax.tree.map(f, x) for f in (lambda leaf: leaf[0], lambda leaf: jnp.stack([leaf, leaf])))
        return rep.orbit(x), rep(g, x), rep(last, x), rep(g, first), rep(last, several)

    orbit, traced, known, first, several = inside(action.rep, last, x)
    row = jax.tree.map(lambda leaf: leaf[last], orbit)
    for same in (traced, known, action.rep(last, x), action.rep(jnp.asarray(last), x)):
        assert_trees_close(same, row)
    assert_trees_close(first, jax.tree.map(lambda leaf: leaf[0], row))
    assert_trees_close(several, jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), row))


@every_action
def test_gradient_is_the_transpose(action) -> None:
    """Through ⟨ρ(g)x, y⟩, whose derivative by x is ρ(g)ᵀy; with an orthogonal representation ρ(g⁻¹)y."""
    rep, x, y = action.rep, action.data(1), action.data(1, seed=1)
    g = rep.group.order - 1

    @jax.jit
    def product(a, b):
        return sum(jnp.vdot(p, q) for p, q in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))

    gradient = jax.jit(jax.grad(lambda a: product(rep(g, a), y)))(x)
    assert_close(product(gradient, x), product(rep(g, x), y))
    if action in ORTHOGONAL.values():
        assert_trees_close(gradient, rep(int(rep.group.inverse[g]), y))


@orthogonal_action
def test_orthogonal_actions_keep_lengths(action) -> None:
    x = action.data(4)
    orbit = jax.jit(action.rep.orbit)(x)
    assert action.rep.is_orthogonal()
    for leaf, moved in zip(jax.tree.leaves(x), map(np.asarray, jax.tree.leaves(orbit)), strict=True):
        lengths = np.sum(np.asarray(leaf).reshape(4, -1) ** 2, axis=1)
        assert_close(np.sum(moved.reshape(len(moved), 4, -1) ** 2, axis=2), np.tile(lengths, (len(moved), 1)))


@exact_action
def test_exact_actions_report_no_error(action) -> None:
    grid = action.shape[:-1] if action.rep.domain.rank == 2 else None
    assert action.rep.exact
    assert action.rep.homomorphism_error(grid=grid) < ORACLE["float64"]


@pytest.mark.parametrize("action", INTERPOLATED.values(), ids=INTERPOLATED)
def test_interpolated_actions_report_their_error(action) -> None:
    """The reported error is a supremum over images: attained by one of them, and never exceeded."""
    rep, grid = action.rep, action.shape[:-1]
    reported = rep.homomorphism_error(grid=grid)
    assert not rep.exact
    assert not rep.is_orthogonal(grid=grid)
    assert reported > 0.5
    x = jnp.sign(action.data(200))
    everything = jnp.arange(rep.group.order)

    @jax.jit
    def largest(x):
        twice = jax.vmap(lambda g: jax.vmap(lambda h: rep(g, rep(h, x)))(everything))(everything)
        return jnp.abs(twice - jax.vmap(jax.vmap(lambda gh: rep(gh, x)))(jnp.asarray(rep.group.table))).max()

    seen = largest(x)
    assert 0.5 * reported < seen <= reported * (1 + 1e-12)


@pytest.mark.parametrize("action", SKEWED.values(), ids=SKEWED)
def test_skewed_actions_are_not_orthogonal(action) -> None:
    assert not action.rep.is_orthogonal()


@exact_action
def test_action_on_grids_is_a_homomorphism_that_fits_the_action_on_data(action) -> None:
    rep = action.rep
    shape = action.shape[:-1] if rep.domain.rank else ()
    grid = rep.spatial(shape)
    assert rep.spatial(()).is_identity
    assert grid.is_identity == (rep.domain.rank == 0)
    if grid.is_identity:
        return
    group = rep.group
    for g in range(group.order):
        np.testing.assert_array_equal(grid.indices[group.table[g]], grid.indices[:, grid.indices[g]])
    scalars = jnp.asarray(np.random.default_rng(0).standard_normal((2, *shape)))
    plain = dataclasses.replace(rep, channels=reps.trivial(group).channels)
    for g in {1, group.order - 1}:
        assert_close(grid.values(g, scalars), plain(g, scalars[..., None])[..., 0])
