"""Representations that move positions, against NumPy's and SciPy's own, and kernels moved entry by entry."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.ndimage

from ntk_equiv import groups, reps, stax, theorems
from ntk_equiv.stax import Graph
from tests.tolerances import ROUNDING, assert_close

C2, C4, C8, D2, D4 = groups.cyclic(2), groups.cyclic(4), groups.cyclic(8), groups.dihedral(2), groups.dihedral(4)
IMAGE = np.random.default_rng(0).standard_normal((2, 5, 5, 3))


@pytest.mark.parametrize("g", range(8))
def test_rot90_is_numpys(g) -> None:
    flipped = IMAGE[:, :, ::-1] if g >= 4 else IMAGE
    expected = np.rot90(flipped, g % 4, axes=(1, 2))
    np.testing.assert_array_equal(reps.rot90(D4)(g, IMAGE), expected)
    if g < 4:
        np.testing.assert_array_equal(reps.rot90(C4)(g, IMAGE), expected)


def test_smaller_groups_of_quarter_turns() -> None:
    np.testing.assert_array_equal(reps.rot90(C2)(1, IMAGE), IMAGE[:, ::-1, ::-1])
    half_turn, flip, both = (reps.rot90(D2)(g, IMAGE) for g in (1, 2, 3))
    np.testing.assert_array_equal(half_turn, IMAGE[:, ::-1, ::-1])
    np.testing.assert_array_equal(flip, IMAGE[:, :, ::-1])
    np.testing.assert_array_equal(both, IMAGE[:, ::-1])
    np.testing.assert_array_equal(reps.rot90(groups.trivial())(0, IMAGE), IMAGE)


@pytest.mark.parametrize(("rep", "count"), [(reps.rot90(C4), 4), (reps.rot90(D4), 8), (reps.rot90(C4), 8)])
def test_features_on_a_group_permute_its_elements(rep, count) -> None:
    """The value at (g⁻¹s, g⁻¹k) comes to (s, k); C4 is the first half of D4."""
    group = D4 if count == 8 else C4
    places = np.arange(9 * count).reshape(3, 3, count)
    for g, sources in enumerate(rep.spatial((3, 3, count)).indices):
        turned = np.asarray(rep(g, places))
        expected = [turned[..., group.table[group.inverse[g], k]] for k in range(count)]
        np.testing.assert_array_equal(sources.reshape(3, 3, count), np.stack(expected, -1))


def test_channels_turn_with_the_pixels() -> None:
    """An arrow to the right at the right edge becomes an arrow up at the upper edge."""
    arrows = reps.rot90(C4, reps.matrix(C4, groups.SO2.finite(4).matrices))
    x = np.zeros((3, 3, 2))
    x[1, 2] = [1, 0]
    expected = np.zeros((3, 3, 2))
    expected[0, 1] = [0, 1]
    np.testing.assert_array_equal(arrows(1, x), expected)


@pytest.mark.parametrize("shape", [(6, 6), (7, 7), (5, 8)])
@pytest.mark.parametrize("order", [0, 1])
def test_rotations_are_scipys(shape, order) -> None:
    """SciPy turns the other way round in array coordinates, because rows point down."""
    x = np.random.default_rng(1).standard_normal(shape)
    rep = reps.rotate(C8, order)
    for g in range(8):
        c, s = np.cos(2 * np.pi * g / 8), np.sin(2 * np.pi * g / 8)
        back = np.array([[c, s], [-s, c]])  # of (row, column) coordinates
        centre = (np.array(shape) - 1) / 2
        i, j = np.meshgrid(*map(np.arange, shape), indexing="ij")
        before = np.einsum("ab,bij->aij", back, np.stack([i - centre[0], j - centre[1]]))
        places = before + centre[:, None, None]
        expected = scipy.ndimage.map_coordinates(x, places.round(9), order=order, mode="grid-constant")
        actual = np.asarray(rep(g, x[..., None])[..., 0])
        halfway = np.isclose(np.abs(places - np.floor(places)), 0.5).any(axis=0)  # either neighbour is the nearest
        compared = ~halfway | (order == 1)
        np.testing.assert_allclose(actual[compared], expected[compared], atol=1e-8)


def test_rotations_contain_the_exact_quarter_turns() -> None:
    for order in (0, 1):
        np.testing.assert_array_equal(reps.rotate(C8, order)(2, IMAGE), reps.rot90(C4)(1, IMAGE))
        np.testing.assert_array_equal(reps.rotate(C8, order)(6, IMAGE), reps.rot90(C4)(3, IMAGE))


def test_outside_is_zero() -> None:
    turned = reps.rotate(C8)(1, jnp.ones((9, 9, 1)))[..., 0]
    assert turned[0, 0] == 0
    assert_close(turned[4, 4], 1.0, ROUNDING)


def test_only_half_turns_are_exact_under_interpolation() -> None:
    assert reps.rotate(C2).exact
    assert not reps.rotate(C4).exact
    assert reps.restrict(reps.rotate(C8), C8.subgroup([4])).exact
    assert reps.rotate(C4).homomorphism_error() == 0  # on a square
    assert reps.rotate(C4).homomorphism_error(grid=(4, 6)) >= 1


def test_translations_roll() -> None:
    x = np.random.default_rng(2).standard_normal((2, 4, 6, 3))
    rep = reps.translations(4, 3)
    assert rep.group == groups.product(C4, groups.cyclic(3))
    for i, j in itertools.product(range(4), range(3)):
        np.testing.assert_array_equal(rep(3 * i + j, x), np.roll(x, (i, 2 * j), axis=(1, 2)))
    # On the output of a convolution with stride 2 the image of a step is half as large.
    np.testing.assert_array_equal(reps.translations(2, 3).spatial((2, 3)).values(4, x[0, :2, :3, 0]),
                                  np.roll(x[0, :2, :3, 0], (1, 1), axis=(0, 1)))  # fmt: skip


def test_one_number_translates_sequences() -> None:
    rep = reps.translations(6)
    x = jnp.arange(24.0).reshape(1, 12, 2)
    assert rep.group == groups.cyclic(6)
    assert str(rep) == "<translations of cyclic(6) on sequences, any number of channels>"
    for g in range(6):
        np.testing.assert_array_equal(rep(g, x), jnp.roll(x, 2 * g, axis=1))
    np.testing.assert_array_equal(rep.spatial((6,)).values(1, jnp.arange(6)), jnp.roll(jnp.arange(6), 1))
    net = stax.serial(stax.Conv(4, (3,), padding="CIRCULAR"), stax.Relu(), stax.Flatten(), stax.Dense(1))
    assert theorems.kernel_transformation(net.kernel_fn, rep, x / 24).holds(1e-9)
    half = reps.restrict(rep, rep.group.subgroup([3]))
    np.testing.assert_array_equal(half(1, x), jnp.roll(x, 6, axis=1))


def test_nodes_have_the_permutations_of_the_group_and_are_the_former_relabel() -> None:
    S3 = groups.symmetric(3)
    assert reps.nodes(S3) == reps.relabel(S3, S3.permutations)
    ring = Graph(jnp.arange(4.0)[None, :, None], jnp.roll(jnp.eye(4), 1, axis=1)[None])
    moved = reps.translations(4)(1, ring)
    np.testing.assert_array_equal(moved.nodes[0, :, 0], jnp.array([3.0, 0.0, 1.0, 2.0]))
    np.testing.assert_array_equal(moved.adjacency, ring.adjacency)  # of a ring, which every translation leaves as it is


@pytest.mark.parametrize("shape", [(3, 28, 28), (5, 1, 28, 28), (2, 3, 30, 28)])
@pytest.mark.parametrize(
    "rep", [reps.rot90(groups.dihedral(4)), reps.rotate(groups.cyclic(8)), reps.translations(4, 4)]
)
def test_images_with_channels_first_are_told_how_to_be_turned(rep, shape) -> None:
    with pytest.raises(ValueError, match=r"channels last, got .* channels first. .*moveaxis\(x, -3, -1\)"):
        rep(1, jnp.ones(shape))


def test_relabelling_moves_adjacency_with_the_nodes() -> None:
    perms = [[0, 1, 2, 3], [1, 2, 3, 0], [2, 3, 0, 1], [3, 0, 1, 2]]
    rep = reps.relabel(C4, perms)
    rng = np.random.default_rng(0)
    graph = Graph(jnp.asarray(rng.random((2, 4, 3))), jnp.asarray(rng.random((2, 4, 4))))
    moved = rep(1, graph)
    for i, j in itertools.product(range(4), repeat=2):
        np.testing.assert_array_equal(moved.nodes[:, perms[1][i]], graph.nodes[:, i])
        np.testing.assert_array_equal(moved.adjacency[:, perms[1][i], perms[1][j]], graph.adjacency[:, i, j])
    # What a linear graph layer computes is relabelled alike.
    np.testing.assert_allclose(moved.adjacency @ moved.nodes, rep(1, graph.adjacency @ graph.nodes))


def test_actions_on_features_leave_the_adjacency_alone() -> None:
    O = groups.polyhedral("O")  # noqa: E741
    graph = Graph(jnp.ones((2, 4, 3)), jnp.arange(32.0).reshape(2, 4, 4))
    moved = reps.matrix(O)(5, graph)
    np.testing.assert_array_equal(moved.adjacency, graph.adjacency)
    np.testing.assert_allclose(moved.nodes[0, 0], O.matrices[5].sum(axis=1))
    assert reps.matrix(O).orbit(graph).adjacency.shape == (24, 2, 4, 4)


@pytest.mark.parametrize(
    ("rep", "shape"),
    [(reps.rot90(D4), (3, 3)), (reps.translations(2, 3), (2, 3)), (reps.rotate(C8), (3, 3))],
    ids=["rot90", "translations", "rotate"],
)
def test_kernels_are_moved_entry_by_entry(rep, shape) -> None:
    grid = rep.spatial(shape)
    h, w = shape
    K = np.random.default_rng(0).standard_normal((2, 3, h, h, w, w))
    flat = K.transpose(0, 1, 2, 4, 3, 5).reshape(2, 3, h * w, h * w)
    for g in (1, 5):
        R = grid.matrices(rep.group.order)[g].toarray()
        for moved, expected in (
            (grid.left(g, K), R @ flat),
            (grid.right(g, K), flat @ R.T),
            (grid.both(g, K), R @ flat @ R.T),
        ):
            assert_close(moved, expected.reshape(2, 3, h, w, h, w).transpose(0, 1, 2, 4, 3, 5), ROUNDING)


def test_kernel_of_moved_fields_is_the_moved_kernel() -> None:
    """For the kernel K[a, a'] = ⟨x(a), x'(a')⟩ of two vector fields, with an orthogonal action on the vectors."""
    rep = reps.rot90(C4, reps.matrix(C4, groups.SO2.finite(4).matrices))
    x, y = np.random.default_rng(0).standard_normal((2, 2, 3, 3, 2))

    def kernel(x, y):
        return jnp.einsum("nhwc,miuc->nmhiwu", x, y)

    grid = rep.spatial((3, 3))
    for g in range(4):
        assert_close(kernel(rep(g, x), rep(g, y)), grid.both(g, kernel(x, y)), ROUNDING)
        inverse = int(C4.inverse[g])
        assert_close(grid.right(inverse, grid.right(g, kernel(x, y))), kernel(x, y), ROUNDING)


def test_node_kernels_are_moved_too() -> None:
    grid = reps.relabel(C2, [[0, 1, 2], [1, 0, 2]]).spatial((3,))
    K = np.arange(9.0).reshape(1, 1, 3, 3)
    np.testing.assert_array_equal(grid.both(1, K)[0, 0], K[0, 0][[1, 0, 2]][:, [1, 0, 2]])


def test_grids_of_vectors_and_single_positions_do_not_move() -> None:
    K = jnp.arange(6.0).reshape(2, 3)
    for grid in (reps.regular(C4).spatial(()), reps.rot90(C4).spatial(())):
        assert grid.is_identity
        assert grid.both(1, K) is K
    assert reps.regular(C4).spatial((2, 2)).indices.tolist() == [[0, 1, 2, 3]]


def test_grid_actions_pass_through_jit() -> None:
    grid = reps.rot90(C4).spatial((2, 2))
    K = jnp.arange(16.0).reshape(1, 1, 2, 2, 2, 2)
    moved = jax.jit(lambda grid, g, K: grid.both(g, K))(grid, 1, K)
    np.testing.assert_array_equal(moved, grid.both(1, K))


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: reps.rot90(C4)(1, jnp.ones((4, 5, 1))), r"`shape` must be that of a square grid, got \(4, 5\)"),
        (
            lambda: reps.rot90(D4).spatial((3, 3, 4)),
            "got an axis of 4. .* on C4 have 4, on which flips do not act",
        ),
        (
            lambda: reps.rot90(C4)(1, jnp.ones((4, 4))),
            r"images \[..., H, W, channels\], channels last, got shape \(4, 4\)",
        ),
        (lambda: reps.rot90(C4, reps.regular(C4))(1, jnp.ones((3, 3, 2))), "4 entries on its last axis"),
        (lambda: reps.rot90(C4, reps.regular(C2)), r"`channels` must be a representation of <cyclic\(4\)"),
        (lambda: reps.rot90(C4, reps.rot90(C4)), "`channels` must be a representation on vectors"),
        (lambda: reps.rot90(groups.cyclic(3)), "Rotations by other angles need interpolation"),
        (lambda: reps.rotate(D4), "a cyclic group in its usual order"),
        (lambda: reps.rotate(C8, 2), "`order` must be one of 0, 1, got 2"),
        (lambda: reps.rotate(C8).spatial((3,)), "`shape` must be two numbers"),
        (lambda: reps.rotate(C8).spatial((3, 3)).indices, "asked of an exact action"),
        (lambda: reps.translations(2, 3)(1, jnp.ones((3, 3, 1))), r"a grid of multiples of \(2, 3\)"),
        (lambda: reps.translations(0, 3), "`rows` must be a positive integer"),
        (lambda: reps.relabel(C2, [[0, 1], [1, 0]])(1, jnp.ones((3, 1))), r"\(2,\), an axis of nodes, got \(3,\)"),
        (lambda: reps.relabel(C2, [[0, 1], [1, 0]])(1, jnp.ones(2)), r"nodes \[..., N, channels\]"),
        (lambda: reps.rot90(C4).spatial((2, 2)).both(1, jnp.ones((1, 1, 3, 3, 3, 3))), r"the grid \(2, 2\) on axes"),
    ],
)
def test_bad_input(act, message) -> None:
    with pytest.raises(ValueError, match=message):
        act()
