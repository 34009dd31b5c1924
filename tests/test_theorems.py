"""What the theorems do not hold for, and is found out; records, tolerances, and what is refused."""

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np
import pytest

from ntk_equiv import augment, groups, interop, reps, stax, theorems
from tests.architectures import cnn, mlp
from tests.cases import CASES, INTERPOLATED, SKEWED
from tests.tolerances import ORACLE

TOLERANCE = ORACLE["float64"]
C4, C8, D4, D5 = groups.cyclic(4), groups.cyclic(8), groups.dihedral(4), groups.dihedral(5)
TURNS, SQUARE = reps.rot90(C4), reps.rot90(D4)
MLP = mlp(lambda s: s.Relu(), 1)(stax)[2]
CONV = cnn(depth=1)(stax)[2]


def samples(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape))


def flat(s):
    return s.serial(s.Flatten(), s.Dense(1, 1.3, 0.2))


def on_graph(adjacency, *tail, implementation="DENSE"):
    """A network that knows the graph and is given the nodes alone: relabelling them leaves the edges behind."""
    aggregation = stax.Aggregate(implementation=implementation)
    net = stax.serial(stax.Dense(8, 1.0, 0.1), aggregation, stax.Relu(), *tail)[2]

    def kernel_fn(x1, x2=None, get=None):
        given = [None if x is None else jnp.broadcast_to(adjacency, (len(x), *adjacency.shape)) for x in (x1, x2)]
        return net(x1, x2, get, pattern=given)

    return kernel_fn


DIRECTED_RING = jnp.eye(5) + 2 * jnp.roll(jnp.eye(5), 1, axis=1)
on_directed_ring = on_graph(DIRECTED_RING, stax.GlobalAvgPool(), stax.Dense(1))
# Edges along the ring, and each node to itself twice.
EDGES = jnp.array([[[i, (i + 1) % 5]] for i in range(5)] + 2 * [[[i, i]] for i in range(5)])
on_listed_edges = on_graph(EDGES, stax.GlobalAvgPool(), stax.Dense(1), implementation="SPARSE")
with_chord = on_graph(DIRECTED_RING.at[0, 2].set(1.0), stax.Dense(1))
RING = reps.relabel(
    D5, [[(g + i) % 5 for i in range(5)] for g in range(5)] + [[(g - i) % 5 for i in range(5)] for g in range(5)]
)
ALL_BUT_TRANSPOSITION = ("r", "r2", "r3", "s", "r2s", "r3s")


def between(layer):
    """A network that does something before a layer, and sees only the mean over positions after it."""
    end = stax.Dense(8, 1.3, 0.1), stax.Relu(), stax.GlobalAvgPool(), stax.Dense(1)
    return stax.serial(stax.Dense(8, 1.0, 0.1), stax.Relu(), layer, *end)[2]


def ends(layer):
    """A network with such a layer that leaves no positions."""
    return stax.serial(stax.Dense(8, 1.0, 0.1), stax.Relu(), layer, stax.Dense(8), stax.Relu(), stax.Dense(1))[2]


def weighted(weights):
    """A weighted sum over all pixels."""
    return stax.DotGeneral(rhs=weights, dimension_numbers=(((1, 2), (0, 1)), ((), ())))


GABOR = mlp(lambda s: s.Gabor(), 1)(stax)[2]
NOT_COVERED = {
    # The last row and column are dropped; only the flip that exchanges rows and columns notices nothing.
    "stride 2 on an even image": (
        cnn(flat, depth=1, strides=(2, 2))(stax)[2], SQUARE, (6, 6, 1), ALL_BUT_TRANSPOSITION,
    ),
    # One more row and column of zeros at the end than at the start.
    "SAME, even filter": (
        cnn(flat, depth=1, filter_shape=(2, 2), padding="SAME")(stax)[2], SQUARE, (4, 4, 1), ALL_BUT_TRANSPOSITION,
    ),
    "SAME, even filter, spatial": (
        cnn(depth=1, filter_shape=(2, 2), padding="SAME")(stax)[2], SQUARE, (3, 3, 1), ALL_BUT_TRANSPOSITION,
    ),
    # Half turns and flips along the axes keep the window.
    "3×1 filter": (cnn(flat, depth=1, filter_shape=(3, 1))(stax)[2], SQUARE, (4, 4, 1), ("r", "r3", "rs", "r3s")),
    "3×1 filter, spatial": (
        cnn(depth=1, filter_shape=(3, 1), padding="SAME")(stax)[2], SQUARE, (3, 3, 1), ("r", "r3", "rs", "r3s"),
    ),
    "not orthogonal": (MLP, SKEWED["skewed, S3"].rep, (3,), groups.symmetric(3).names[1:]),
    "asymmetric adjacency, reversed": (on_directed_ring, RING, (5, 2), D5.names[5:]),
    "asymmetric adjacency, left behind": (with_chord, RING, (5, 2), D5.names[1:]),
    "listed edges, reversed": (on_listed_edges, RING, (5, 2), D5.names[5:]),
    "Gabor, not orthogonal": (GABOR, SKEWED["skewed, S3"].rep, (3,), groups.symmetric(3).names[1:]),
    # Put down in steps of one, an even filter leaves more of itself on one side.
    "transposed, even filter": (
        between(stax.ConvTranspose(8, (2, 2), None, "SAME", 1.3, 0.2)), SQUARE, (4, 4, 1), ALL_BUT_TRANSPOSITION,
    ),
    "local, even filter": (
        between(stax.ConvLocal(8, (2, 2), None, "SAME", 1.3, 0.2)), SQUARE, (4, 4, 1), ALL_BUT_TRANSPOSITION,
    ),
    "one corner": (between(stax.Index(stax.Slice[:, :2, :2])), SQUARE, (4, 4, 1), ALL_BUT_TRANSPOSITION),
    # Rows and columns are told apart.
    "fewer columns": (
        between(stax.ImageResize((-1, 4, 2, -1), "linear")), SQUARE, (4, 4, 1), ("r", "r3", "rs", "r3s"),
    ),
    "a weight for each pixel": (ends(weighted(jnp.arange(16.0).reshape(4, 4))), SQUARE, (4, 4, 1), D4.names[1:]),
    "interpolated C8": (cnn(flat, depth=1)(stax)[2], INTERPOLATED["C8, linear"].rep, (6, 6, 2), C8.names[1::2]),
    "interpolated C8, spatial": (cnn(depth=1)(stax)[2], reps.rotate(C8), (5, 5, 1), C8.names[1::2]),
}  # fmt: skip
not_covered = pytest.mark.parametrize(("kernel_fn", "rep", "shape", "guilty"), NOT_COVERED.values(), ids=NOT_COVERED)


@not_covered
def test_symmetries_that_are_broken_are_found_out(kernel_fn, rep, shape, guilty) -> None:
    train = augment(samples(1, *shape), jnp.zeros(1), rep)
    found = theorems.kernel_transformation(kernel_fn, rep, train.x)
    assert not found.holds(1e-3)
    assert sorted(found.violating(TOLERANCE)) == sorted(guilty)
    assert found.name in guilty
    assert rep.group.names[found.element] == found.name
    assert f"worst for {found.name} (element {found.element})" in str(found)
    shifted = theorems.shift_of_permutation(kernel_fn, train, lambda K, Theta: Theta, get=("nngp", "ntk"))
    assert not shifted.holds(1e-3)
    # Where the group does not even map the set to itself, quarter turns are permutations all the same.
    assert sorted(shifted.violating(TOLERANCE)) == sorted(guilty)
    assert shifted.name in guilty


def test_symmetric_graphs_may_be_relabelled_by_their_symmetries() -> None:
    """The directed ring is turned into itself: what is found above is the reversal of its edges."""
    turns = reps.restrict(RING, D5.subgroup([1]))
    for kernel_fn in (on_directed_ring, on_listed_edges):
        assert theorems.kernel_transformation(kernel_fn, turns, samples(2, 5, 2)).holds(TOLERANCE)


def test_the_largest_violation_is_that_of_the_arrays() -> None:
    kernel_fn, rep, shape, _ = NOT_COVERED["SAME, even filter, spatial"]
    x1, x2 = samples(2, *shape), samples(3, *shape, seed=1)
    found = theorems.kernel_transformation(kernel_fn, rep, x1, x2)
    for name, part in zip(("nngp", "ntk"), found.parts, strict=True):
        plain, moved = kernel_fn(x1, x2, name), kernel_fn(rep(part.element, x1), rep(part.element, x2), name)
        difference = jnp.abs(moved - rep.spatial((3, 3)).both(part.element, plain))
        assert part.part == name
        assert part.largest == pytest.approx(float(difference.max()), rel=1e-10)
        assert part.largest == pytest.approx(float(difference[part.indices]), rel=1e-10)
        assert part.scale == pytest.approx(float(jnp.abs(plain).max()), rel=0.5)
    assert found.relative == max(part.relative for part in found.parts)


FUNCTIONS = {
    "inverse": jnp.linalg.inv,
    "exponential": jax.scipy.linalg.expm,
    "product": lambda Theta: Theta @ Theta @ Theta,
}


@pytest.mark.parametrize("F", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.parametrize("case", ["CNN, VALID, spatial on images, C4", "MLP on regular, Q8"])
def test_analytic_functions(case, F) -> None:
    assert theorems.shift_of_permutation(CASES[case].kernel_fn, CASES[case].train(1), F).holds(TOLERANCE)


def test_positions_are_inverted_jointly() -> None:
    """Index (sample, position) of the matrix is that of the kernel; the inverse of its blocks is something else."""
    case = CASES["CNN, VALID, spatial on images, C4"]
    seen = []
    theorems.shift_of_permutation(case.kernel_fn, case.train(1), lambda Theta: seen.append(Theta) or Theta)
    kernel = case.kernel_fn(case.points(1), None, "ntk")
    assert seen[0].shape == (36, 36)
    assert seen[0][9 * 2 + 3 * 1 + 2, 9 * 3 + 3 * 0 + 1] == pytest.approx(float(kernel[2, 3, 1, 0, 2, 1]))


def test_a_function_that_is_not_analytic() -> None:
    found = theorems.shift_of_permutation(MLP, augment(samples(1, 4), jnp.zeros(1), reps.regular(C4)), jnp.triu)
    assert found.violating(TOLERANCE) == ("r", "r2", "r3")
    assert found.statement.endswith("Π(g) F = ρ_K(g) F Π(g) ρ_K(g)ᵀ")


def test_sets_augmented_by_a_subgroup() -> None:
    train = augment(samples(2, 4, 4, 1), jnp.zeros(2), SQUARE, elements=[6, 0, 2, 4])
    found = theorems.shift_of_permutation(CONV, train, jnp.linalg.inv)
    assert found.holds(TOLERANCE)
    assert found.elements == (6, 0, 2, 4)
    assert found.names == ("r2s", "e", "r2", "s")


def test_continuous_groups_are_sampled() -> None:
    rep, x = reps.matrix(groups.SO3), samples(2, 3)
    elements = groups.SO3.sample(jax.random.key(0), 5)
    found = theorems.kernel_transformation(MLP, rep, x, elements=elements)
    assert found.holds(TOLERANCE)
    assert len(found.elements) == 5
    skew = reps.matrix(
        groups.SO3, lambda R: jnp.diag(jnp.array([1.0, 2.0, 1.0])) @ R @ jnp.diag(jnp.array([1, 0.5, 1]))
    )
    assert "sample" in theorems.kernel_transformation(MLP, skew, x, elements=elements).name
    with pytest.raises(ValueError, match=r"group\.sample"):
        theorems.kernel_transformation(MLP, rep, x)


def test_some_elements_only() -> None:
    kernel_fn, rep, shape, _ = NOT_COVERED["3×1 filter"]
    assert theorems.kernel_transformation(kernel_fn, rep, samples(1, *shape), elements=[0, 2, 4]).holds(TOLERANCE)


def test_networks_of_neural_tangents(rank_promotion_allowed) -> None:
    """Away from coincident samples, where they are off by 1e-8."""
    nt = interop.neural_tangents()
    theirs = cnn(depth=2, padding="SAME")(nt.stax)[2]
    broken = cnn(flat, depth=1, filter_shape=(3, 1))(nt.stax)[2]
    x1, x2 = samples(2, 3, 3, 1), samples(2, 3, 3, 1, seed=1)
    assert theorems.kernel_transformation(theirs, TURNS, x1, x2).holds(TOLERANCE)
    assert theorems.kernel_transformation(broken, TURNS, x1, x2).violating(TOLERANCE) == ("r", "r3")


class TestRecord:
    def record(self, *sizes: float, scale: float = 2.0) -> theorems.Violation:
        entries = tuple((i, 0) for i in range(len(sizes)))
        return theorems.Violation("a = b", "a", "C3", (0, 1, 2), ("e", "r", "r2"), sizes, entries, scale)

    def test_what_it_says(self) -> None:
        found = self.record(0.0, 0.5, 0.25)
        assert str(found) == (
            "a = b, checked for 3 elements of C3: off by at most 0.5, 0.25 of the largest entry, "
            "worst for r (element 1) at entry (1, 0)."
        )
        assert (found.largest, found.relative, found.element, found.name, found.indices) == (0.5, 0.25, 1, "r", (1, 0))

    def test_tolerance_is_relative(self) -> None:
        found = self.record(0.0, 0.5, 0.25)
        assert found.holds(0.25)
        assert not found.holds(0.24)
        assert found.violating(0.2) == ("r",)

    def test_no_violation(self) -> None:
        assert self.record(0.0, 0.0, 0.0, scale=0.0).holds(0.0)
        assert str(self.record(0.0, 0.0, 0.0)) == "a = b, checked for 3 elements of C3: exact."

    @pytest.mark.parametrize("bad", [float("nan"), float("inf")])
    def test_what_is_no_number_never_holds(self, bad) -> None:
        found = self.record(0.0, 1.0, bad, scale=bad)
        assert not found.holds(1e300)
        assert found.name == "r2"
        assert "r2" in found.violating(1e300)

    def test_it_does_not_change(self) -> None:
        with pytest.raises(AttributeError):
            self.record(0.0, 0.0, 0.0).scale = 1.0  # type: ignore[misc]


class TestAssertEquivariant:
    x = samples(3, 4, 4, 2)

    def test_what_is_equivariant_passes(self) -> None:
        assert theorems.assert_equivariant(jnp.tanh, SQUARE, SQUARE, self.x).largest == 0
        theorems.assert_equivariant(lambda x: np.asarray(x).sum(axis=(1, 2)), SQUARE, None, self.x)
        theorems.assert_equivariant(lambda x: {"square": x**2, "max": x[..., :1]}, SQUARE, SQUARE, self.x[0])

    def test_what_is_not_fails_by_name(self) -> None:
        with pytest.raises(AssertionError, match=r"fn\(ρ_X\(g\)x\) = ρ_Y\(g\) fn\(x\).*worst for r2? \(element [12]\)"):
            theorems.assert_equivariant(lambda x: x.at[:, 0].mul(2.0), TURNS, TURNS, self.x)
        flip = reps.restrict(SQUARE, D4.subgroup([4]))
        with pytest.raises(AssertionError, match=r"worst for s \(element 1\)"):
            theorems.assert_equivariant(lambda x: x[:, :, 0], flip, None, self.x)

    def test_one_bad_array_among_good_ones(self) -> None:
        with pytest.raises(AssertionError, match=r"Relative to their scales: fn\(x\)\['a'\] 0, fn\(x\)\['b'\] "):
            theorems.assert_equivariant(lambda x: {"a": x, "b": x.at[:, 0].mul(2.0)}, TURNS, TURNS, self.x)

    def test_rounding_is_no_violation_in_either_precision(self) -> None:
        turn = reps.matrix(groups.polyhedral("I"))
        for dtype in (jnp.float32, jnp.float64):
            theorems.assert_equivariant(lambda x: x / jnp.sum(x**2), turn, turn, samples(5, 3).astype(dtype))

    def test_small_errors_count(self) -> None:
        turn, x = reps.matrix(groups.polyhedral("O")), samples(5, 3)
        almost = lambda x: x + 1e-8  # noqa: E731
        with pytest.raises(AssertionError):
            theorems.assert_equivariant(almost, turn, turn, x)
        theorems.assert_equivariant(almost, turn, turn, x, tol=1e-7)
        theorems.assert_equivariant(almost, turn, turn, x.astype(jnp.float32))

    def test_integers_are_compared_exactly(self) -> None:
        image = jnp.asarray(np.random.default_rng(0).integers(0, 255, (6, 6, 1)), jnp.uint8)
        theorems.assert_equivariant(lambda x: x // 2, SQUARE, SQUARE, image)
        theorems.assert_equivariant(lambda x: jnp.argmax(x.sum(axis=(0, 1))), SQUARE, None, image)
        with pytest.raises(AssertionError, match="off by at most 1,"):
            theorems.assert_equivariant(lambda x: x.at[0, 0, 0].add(1), SQUARE, SQUARE, image)

    def test_not_a_number_is_no_equivariance(self) -> None:
        with pytest.raises(AssertionError, match="nan"):
            theorems.assert_equivariant(lambda x: x / 0.0 - x / 0.0, TURNS, TURNS, self.x)


def refused(match):
    return pytest.raises(ValueError, match=match)


def test_what_is_refused() -> None:
    x = samples(2, 4, 4, 1)
    subset = augment(x, jnp.zeros(2), TURNS, elements=[0, 1])
    with refused("`elements` must be a subgroup"):
        theorems.shift_of_permutation(CONV, subset, jnp.linalg.inv)
    sampled = augment(samples(2, 3), jnp.zeros(2), reps.matrix(groups.SO3), elements=jnp.eye(3)[None])
    with refused("`elements` must be a subgroup, got a sample"):
        theorems.shift_of_permutation(MLP, sampled, jnp.linalg.inv)
    with refused("`train` must be an augmented set, got tuple"):
        theorems.shift_of_permutation(CONV, (x, jnp.zeros(2)), jnp.linalg.inv)
    with refused(r"`F` must be a function that returns a matrix \(32, 32\), got shape \(32,\)"):
        theorems.shift_of_permutation(CONV, augment(x, jnp.zeros(2), TURNS), jnp.linalg.eigvalsh)
    with refused("`rep_y` must be of cyclic.4., got of dihedral.4."):
        theorems.assert_equivariant(jnp.tanh, TURNS, SQUARE, x)
    with refused("`rep_y` must be an action on what `fn` returns"):
        theorems.assert_equivariant(jnp.tanh, TURNS, reps.regular(C4), x)
    with refused("`fn` must be a function with values of shapes"):
        theorems.assert_equivariant(lambda x: jnp.ones(1 + int(x[0, 0, 0, 0] > x[0, 0, -1, 0])), TURNS, None, x)
    with refused("`fn` must be a function that returns numbers, got none"):
        theorems.assert_equivariant(lambda x: None, TURNS, None, x)
    with refused("`x` must be at least one sample"):
        theorems.assert_equivariant(jnp.tanh, TURNS, None, x[:0])
    with refused("an array with 3 entries on its last axis"):
        theorems.kernel_transformation(MLP, reps.matrix(groups.polyhedral("T")), samples(2, 4))
    with refused(r"`kernel_fn` must be a network with outputs on a grid .* got outputs on a grid \(2, 4\).*square"):
        theorems.kernel_transformation(cnn(depth=1, filter_shape=(3, 1))(stax)[2], TURNS, x)
    with refused("`elements` must be an element of cyclic.4."):
        theorems.kernel_transformation(CONV, TURNS, x, elements=[4])


def test_kernels_of_another_layout_are_refused() -> None:
    def lopsided(x1, x2=None, get=None):
        return tuple(kernel[..., :1, :] for kernel in CONV(x1, x2, get))

    with refused(r"`kernel_fn` must be one with kernels \[n1, n2, h, h', w, w'\]"):
        theorems.kernel_transformation(lopsided, TURNS, samples(1, 4, 4, 1), samples(1, 4, 4, 1))


def test_measurements_are_made_outside_of_jit() -> None:
    with refused("`x1` must be known values, got traced ones"):
        jax.jit(lambda x: theorems.kernel_transformation(MLP, reps.regular(C4), x).largest)(samples(2, 4))
    with refused("`x` must be known values"):
        jax.jit(lambda x: theorems.assert_equivariant(jnp.tanh, reps.regular(C4), None, x).largest)(samples(2, 4))
