"""Classes that stand in the same place of a pytree are told apart, always and not just most of the time."""

import itertools

import jax
import pytest

from ntk_equiv import filters, stax

# Chosen so that each kind shares the number of leaves and the static fields of some other.
KINDS = {
    "layers without settings": [
        layer[2].rule for layer in (stax.Flatten(), stax.GroupPool(), stax.Identity(), stax.FanInSum())
    ],
    "filters": [filters.gradient_flow(0.5), filters.gradient_descent(0.5)],
    "filters with two rates": [filters.momentum(0.5, 0.9), filters.ridge(0.5, 0.9)],
}


@pytest.mark.parametrize("kind", KINDS)
def test_structures_differ(kind):
    for one, other in itertools.combinations(KINDS[kind], 2):
        assert jax.tree.structure(one) != jax.tree.structure(other)
        assert len(jax.tree.leaves(one)) == len(jax.tree.leaves(other))


def test_equal_layers_have_equal_structure():
    """Otherwise every call would compile anew."""
    build = lambda: stax.serial(stax.Conv(1, (3, 3), b_std=0.1), stax.Relu(), stax.Flatten(), stax.Dense(1))[2]  # noqa: E731
    assert jax.tree.structure(build()) == jax.tree.structure(build())


def test_fields_have_names_and_static_ones_are_structure():
    flow = filters.gradient_flow(0.5)
    (path, leaf), = jax.tree_util.tree_leaves_with_path(flow)  # fmt: skip
    assert jax.tree_util.keystr(path) == ".learning_rate"
    assert leaf == 0.5
    rule = stax.Conv(1, (3, 3)).kernel_fn.rule
    assert jax.tree.structure(rule) != jax.tree.structure(stax.Conv(1, (2, 2)).kernel_fn.rule)
    assert jax.tree.unflatten(jax.tree.structure(rule), jax.tree.leaves(rule)) == rule
