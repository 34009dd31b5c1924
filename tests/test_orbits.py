"""The augmented data set: its order, its permutations, its stabilizers, and batches of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntk_equiv import augment, groups, reps
from ntk_equiv.orbits import augment_batches
from ntk_equiv.stax import Graph
from tests.cases import ORTHOGONAL, Action
from tests.tolerances import ROUNDING, assert_close

C3, C4, D4 = groups.cyclic(3), groups.cyclic(4), groups.dihedral(4)
O = groups.polyhedral("O")  # noqa: E741
VECTORS = reps.matrix(O)


def samples(n: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).standard_normal((n, *shape)))


def assert_trees_close(actual, expected) -> None:
    jax.tree.map(lambda a, b: assert_close(a, b, ROUNDING), actual, expected)


def test_order_of_the_augmented_set() -> None:
    x, y = samples(3, 3), samples(3, 3)
    train = augment(x, y, VECTORS, VECTORS)
    assert (train.n, train.order, train.size) == (3, 24, 72)
    for g in (0, 7, 23):
        for i in range(3):
            assert_close(train.x[3 * g + i], O.matrices[g] @ x[i], ROUNDING)
            assert_close(train.y[3 * g + i], O.matrices[g] @ y[i], ROUNDING)


def test_labels_of_every_shape() -> None:
    x = samples(2, 4, 4, 1)
    turns = reps.rot90(C4)
    assert augment(x, jnp.arange(2.0), turns).y.tolist() == [0.0, 1.0] * 4
    assert augment(x, jnp.arange(2), turns).y.dtype == jnp.arange(2).dtype
    assert augment(x, jnp.arange(2.0), turns, reps.sign(C4)).y.tolist() == [0.0, 1.0, 0.0, -1.0] * 2
    fields = augment(x, samples(2, 3, 3, 5), turns, turns)
    assert fields.y.shape == (8, 3, 3, 5)
    np.testing.assert_array_equal(fields.y[2:4], np.rot90(samples(2, 3, 3, 5), axes=(1, 2)))
    np.testing.assert_array_equal(augment(x, samples(2, 3, 3, 5), turns).y[2:4], samples(2, 3, 3, 5))


ACTIONS = {name: ORTHOGONAL[name] for name in ORTHOGONAL if ORTHOGONAL[name].rep.group.order <= 24}


@pytest.mark.parametrize("action", ACTIONS.values(), ids=ACTIONS)
def test_permutations_are_the_action(action: Action) -> None:
    """x[π_g] = ρ_X(g)x and Π(g)Y = ρ_Y(g)Y, and they multiply as the group does, the other way round."""
    rep, group = action.rep, action.rep.group
    labels = reps.regular(group)
    train = augment(action.data(2), samples(2, group.order), rep, labels)
    x, y = jax.jit(lambda t: (t.x, t.y))(train)
    g, h = group.order - 1, group.order // 2
    for k in {g, h}:
        assert_trees_close(jax.tree.map(lambda leaf, k=k: leaf[train.permutation(k)], x), jax.jit(rep)(k, x))
        assert_close(train.permutation_matrix(k) @ y, labels(k, y), ROUNDING)
    perms = np.array([train.permutation(k) for k in range(group.order)])
    np.testing.assert_array_equal(np.sort(perms, axis=1), np.tile(np.arange(train.size), (group.order, 1)))
    np.testing.assert_array_equal(perms[h][perms[g]], perms[group.table[h, g]])
    Pi = {k: train.permutation_matrix(k) for k in (g, h, int(group.table[h, g]))}
    np.testing.assert_array_equal(Pi[g] @ Pi[h], Pi[int(group.table[h, g])])
    np.testing.assert_array_equal(Pi[g] @ Pi[g].T, np.eye(train.size))


def test_interpolated_actions_are_no_permutations() -> None:
    """Except for the quarter turns among them."""
    C8 = groups.cyclic(8)
    rep = reps.rotate(C8)
    train = augment(samples(1, 5, 5, 1), jnp.zeros(1), rep)
    violations = [float(jnp.abs(train.x[train.permutation(g)] - rep(g, train.x)).max()) for g in range(8)]
    assert [violation < 1e-12 for violation in violations] == [True, False] * 4
    assert min(violations[1::2]) > 0.1


def test_the_order_of_multiplication_matters() -> None:
    train = augment(samples(1, 8), jnp.zeros(1), reps.regular(D4))
    product = train.permutation_matrix(1) @ train.permutation_matrix(4)
    assert (product == train.permutation_matrix(int(D4.table[4, 1]))).all()
    assert not (product == train.permutation_matrix(int(D4.table[1, 4]))).all()


def test_permutation_of_a_traced_element() -> None:
    train = augment(samples(2, 3), jnp.zeros(2), VECTORS)
    traced = jax.jit(lambda train, g: train.permutation(g))(train, 5)
    np.testing.assert_array_equal(traced, train.permutation(5))


def test_sets_can_be_augmented_inside_jit() -> None:
    @jax.jit
    def moved(x, g):
        train = augment(x, jnp.zeros(2), VECTORS)
        return train.x, train.permutation_matrix(g) @ train.x

    x, shifted = moved(samples(2, 3), 5)
    assert_close(x, augment(samples(2, 3), jnp.zeros(2), VECTORS).x, ROUNDING)
    assert_close(shifted, VECTORS(5, x), ROUNDING)
    with pytest.raises(ValueError, match="`elements` must be known integers, got traced ones"):
        jax.jit(lambda chosen: augment(samples(2, 3), jnp.zeros(2), VECTORS, elements=chosen).x)(jnp.arange(2))


def test_augmented_sets_are_pytrees() -> None:
    train = augment(samples(2, 3), jnp.ones(2), VECTORS)
    doubled = jax.tree.map(lambda leaf: 2 * leaf, train)
    assert_close(doubled.x, 2 * train.x, ROUNDING)
    assert_close(jax.jit(lambda train: train.x)(train), train.x, ROUNDING)
    assert len(jax.tree.leaves(train)) == 2
    gradient = jax.grad(lambda train: (train.x**2).sum())(train)
    assert_close(gradient.base_x, 2 * 24 * samples(2, 3))


def test_graphs_are_augmented() -> None:
    graph = Graph(samples(2, 4, 3), jnp.ones((2, 4, 4)))
    train = augment(graph, jnp.zeros(2), VECTORS)
    assert train.x.nodes.shape == (48, 4, 3)
    assert train.x.adjacency.shape == (48, 4, 4)


def test_single_precision_is_kept() -> None:
    train = augment(samples(2, 3).astype(jnp.float32), jnp.ones((2, 3), jnp.float32), VECTORS, VECTORS)
    assert {train.x.dtype, train.y.dtype, train.permutation_matrix(1).dtype} == {jnp.dtype(jnp.float32)}


def test_stabilizers() -> None:
    x = jnp.array([[1.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.3, 0.5, 0.7], [0.0, 0.0, 0.0]])
    found = augment(x, jnp.zeros(4), VECTORS).stabilizers()
    assert {i: len(members) for i, members in found.items()} == {0: 3, 1: 2, 3: 23}
    assert all(np.allclose(O.matrices[g] @ x[i], x[i]) for i, members in found.items() for g in members)
    some = augment(x, jnp.zeros(4), VECTORS, elements=[O.identity, found[0][0]])
    assert some.stabilizers() == {0: (found[0][0],), 3: (found[0][0],)}
    symmetric = Graph(jnp.ones((1, 3, 1)), jnp.ones((1, 3, 3)).at[0, 0, 1].set(0.0))
    shift = reps.relabel(C3, [[0, 1, 2], [1, 2, 0], [2, 0, 1]])
    assert augment(symmetric, jnp.zeros(1), shift).stabilizers() == {}


def test_subsets() -> None:
    x = samples(2, 3)
    chosen = [5, 5, 11]
    train = augment(x, x, VECTORS, VECTORS, elements=chosen)
    assert repr(train) == '<augmented set: 2 samples under 3 elements of polyhedral("O")>'
    assert_close(train.x, jnp.concatenate([x @ O.matrices[g].T for g in chosen]), ROUNDING)
    assert_close(train.y, train.x, ROUNDING)
    for ask in (train.permutation, train.permutation_matrix):
        with pytest.raises(ValueError, match=r"got the elements \(5, 5, 11\). A subset that is not a subgroup has no"):
            ask(5)


def test_subgroups_have_permutations() -> None:
    train = augment(samples(2, 8), samples(2, 8), reps.regular(D4), reps.regular(D4), elements=[4, 0, 2, 6])
    for g in (0, 2, 4, 6):
        assert_close(train.x[train.permutation(g)], reps.regular(D4)(g, train.x), ROUNDING)
        assert_close(train.permutation_matrix(g) @ train.y, reps.regular(D4)(g, train.y), ROUNDING)
    with pytest.raises(ValueError, match=r"`g` must be one of the elements \(4, 0, 2, 6\), got 1"):
        train.permutation(1)


def test_samples_of_a_continuous_group() -> None:
    R = groups.SO3.sample(jax.random.key(0), 5)
    x = samples(2, 3)
    train = augment(x, jnp.arange(2.0), reps.matrix(groups.SO3), elements=R)
    assert (train.order, train.size) == (5, 10)
    assert_close(train.x[2 * 3 + 1], R[3] @ x[1], ROUNDING)
    assert_close(jax.jit(lambda train: train.x)(train), train.x, ROUNDING)
    with pytest.raises(ValueError, match=r"got a sample of SO\(3\). A subset that is not a subgroup"):
        train.permutation(R[0])
    with pytest.raises(ValueError, match="asked of a finite group"):
        train.stabilizers()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: augment(samples(2, 3), jnp.zeros(3), VECTORS), r"labels for all samples of x .*, got shape \(3,\)"),
        (lambda: augment(samples(2, 3), jnp.zeros(()), VECTORS), "labels for all samples"),
        (lambda: augment(samples(2, 4), jnp.zeros(2), VECTORS), "`x` must be an array with 3 entries on its last axis"),
        (lambda: augment(samples(2, 3), jnp.zeros(2), VECTORS, VECTORS), "`y` must be labels that <matrix of poly"),
        (lambda: augment(samples(2, 3), jnp.zeros((2, 2)), VECTORS, VECTORS), r"acts on, got shape \(2, 2\)"),
        (lambda: augment(samples(2, 3), jnp.zeros((2, 3)), VECTORS, reps.regular(C3)), "got of cyclic"),
        (lambda: augment(samples(2, 4, 5, 1), jnp.zeros(2), reps.rot90(C4)), "that of a square grid"),
        (lambda: augment(samples(2, 3), jnp.zeros(2), VECTORS, elements=[24]), "`elements` must be an element"),
        (lambda: augment(samples(2, 3), jnp.zeros(2), VECTORS).permutation(24), "`g` must be an element"),
        (lambda: augment(samples(2, 3), jnp.zeros(2), reps.matrix(groups.SO3)), r"matrices \[count, 3, 3\] of SO\(3\)"),
    ],
)  # fmt: skip
def test_bad_input(build, message) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def _rows(batches) -> list:
    return sorted(tuple(np.round(row, 9).tolist()) for x, y in batches for row in np.concatenate([x, y], axis=1))


def test_an_epoch_of_batches_is_the_augmented_set() -> None:
    x, y = samples(3, 3), samples(3, 3)
    train = augment(x, y, VECTORS, VECTORS)
    batches = list(augment_batches(x, y, VECTORS, VECTORS, batch_size=10, key=jax.random.key(0), epochs=2))
    assert [len(x) for x, _ in batches] == [*[10] * 7, 2] * 2
    first, second = batches[:8], batches[8:]
    assert _rows(first) == _rows(second) == _rows([(train.x, train.y)])
    assert not np.allclose(first[0][0], second[0][0])


def test_random_batches_hold_every_sample_once() -> None:
    x = samples(40, 3)
    lengths = np.sort(np.linalg.norm(x, axis=1))
    for rep in (VECTORS, reps.matrix(groups.SO3)):
        batches = augment_batches(x, jnp.arange(40.0), rep, batch_size=16, key=jax.random.key(1), random=True)
        epochs = [[next(batches) for _ in range(3)] for _ in range(2)]
        for epoch in epochs:
            seen = np.concatenate([x for x, _ in epoch])
            np.testing.assert_allclose(np.sort(np.linalg.norm(seen, axis=1)), lengths)
            assert sorted(np.concatenate([y for _, y in epoch]).tolist()) == list(range(40))
        by_label = [{float(v): u for u, v in _pairs(epoch)} for epoch in epochs]
        moved = np.array([not np.allclose(by_label[0][i], by_label[1][i]) for i in range(40)])
        assert moved.mean() > 0.7


def _pairs(epoch):
    return [(u, v) for x, y in epoch for u, v in zip(np.asarray(x), np.asarray(y), strict=True)]
