"""Representations on the last axis, and their algebra, against matrices multiplied by hand."""

import itertools
import math
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntk_equiv import groups, reps
from tests.tolerances import REDUCTION, ROUNDING, assert_close

C2, C3, C4, S3 = groups.cyclic(2), groups.cyclic(3), groups.cyclic(4), groups.symmetric(3)
LETTERS = list(itertools.permutations(range(3)))


def test_permutation_sends_entry_i_to_its_image() -> None:
    rep = reps.permutation(S3, LETTERS)
    x = np.array([10.0, 20.0, 30.0])
    for g, images in enumerate(LETTERS):
        expected = np.zeros(3)
        expected[list(images)] = x
        np.testing.assert_array_equal(rep(g, x), expected)


def test_regular_moves_functions_on_the_group() -> None:
    x = np.arange(6.0)
    for g in range(6):
        expected = [x[S3.table[S3.inverse[g], h]] for h in range(6)]
        np.testing.assert_array_equal(reps.regular(S3)(g, x), expected)


def test_permutations_keep_integers_and_matrices_make_floats_of_them() -> None:
    x = jnp.arange(3)
    assert reps.regular(C3)(1, x).dtype == x.dtype
    assert reps.matrix(C3, np.broadcast_to(np.eye(3), (3, 3, 3)))(1, x).dtype == jnp.float64


def test_complex_matrices_act_on_real_arrays() -> None:
    rep = reps.matrix(C4, C4.irreps()[1])
    assert rep(1, jnp.ones((2, 1), jnp.float32)).dtype == jnp.complex64
    np.testing.assert_array_equal(rep(1, jnp.ones((2, 1))), 1j * np.ones((2, 1)))
    assert rep.is_orthogonal()


def test_every_irrep_is_accepted() -> None:
    for group in (groups.quaternion(), groups.polyhedral("T")):
        for sigma in group.irreps():
            assert reps.matrix(group, sigma).homomorphism_error() < 1e-13


def test_direct_sum_and_tensor_are_blocks_and_products() -> None:
    G = groups.polyhedral("O")
    a, b = reps.matrix(G), reps.matrix(G, G.irreps()[2])
    x, y = np.random.default_rng(0).standard_normal((2, 3)), np.random.default_rng(1).standard_normal((2, 2))
    both = reps.direct_sum(a, b)(7, np.concatenate([x, y], axis=1))
    assert_close(both, np.concatenate([a(7, x), b(7, y)], axis=1), ROUNDING)
    product = reps.tensor(a, b)(7, np.einsum("ni,nj->nij", x, y).reshape(2, 6))
    assert_close(product, np.einsum("ni,nj->nij", a(7, x), b(7, y)).reshape(2, 6), ROUNDING)


def test_permutations_stay_gathers_in_sums_and_products() -> None:
    a, b = reps.regular(S3), reps.permutation(S3, LETTERS)
    for combined, dense in (
        (reps.direct_sum(a, b), reps.direct_sum(a, reps.matrix(S3, b.channels.matrices(6)))),
        (reps.tensor(a, b), reps.tensor(a, reps.matrix(S3, b.channels.matrices(6)))),
        (reps.tensor(a, reps.trivial(S3, 3)), reps.tensor(a, reps.matrix(S3, np.stack([np.eye(3)] * 6)))),
    ):
        assert combined(1, jnp.arange(combined.dim)).dtype == jnp.arange(1).dtype  # matrices would make floats of them
        np.testing.assert_array_equal(combined.channels.matrices(6), dense.channels.matrices(6))


def test_dual_pairs_with_the_original() -> None:
    skew = np.array([[1.0, 2.0], [0.0, 1.0]])
    a = reps.matrix(C2, np.stack([np.eye(2), skew @ np.diag([1, -1]) @ np.linalg.inv(skew)]))
    x, y = jnp.array([0.3, 0.7]), jnp.array([-1.0, 2.0])
    assert_close(reps.dual(a)(1, x) @ a(1, y), x @ y, ROUNDING)
    assert abs(a(1, x) @ a(1, y) - x @ y) > 0.1
    assert reps.dual(reps.regular(C3)) == reps.regular(C3)


def test_sign() -> None:
    assert reps.sign(C4)(1, jnp.ones(1)).tolist() == [-1.0]
    D4 = groups.dihedral(4)
    flips = reps.sign(D4, [1] * 4 + [-1] * 4)
    assert [float(flips(g, jnp.ones(1))[0]) for g in (1, 4)] == [1.0, -1.0]
    with pytest.raises(ValueError, match="`signs` must be given, got nothing, with 3 possible choices"):
        reps.sign(D4)
    with pytest.raises(ValueError, match="with 0 possible"):
        reps.sign(C3)
    with pytest.raises(ValueError, match="3 numbers, 1 or −1"):
        reps.sign(C3, [1, 2, 3])
    with pytest.raises(ValueError, match=r"`signs` must be a representation of cyclic\(3\)"):
        reps.sign(C3, [1, -1, 1])


def test_representations_survive_pickling() -> None:
    for rep in (reps.regular(C3), reps.matrix(groups.polyhedral("T")), reps.rot90(C4, reps.sign(C4))):
        hash(rep)
        copy = pickle.loads(pickle.dumps(rep))
        assert copy == rep
        assert hash(copy) == hash(rep)


def test_equal_representations_are_equal() -> None:
    assert reps.regular(C3) == reps.permutation(C3, C3.table)
    assert hash(reps.regular(C3)) == hash(reps.permutation(C3, C3.table))
    assert reps.regular(C3) != reps.trivial(C3)
    assert reps.matrix(C2, [[[1.0]], [[-1.0]]]) != reps.matrix(C2, [[[1.0]], [[1.0]]])


def test_leaves_of_a_pytree_are_all_acted_upon() -> None:
    x = {"a": jnp.arange(3.0), "b": [jnp.ones((2, 3))]}
    moved = reps.regular(C3)(1, x)
    np.testing.assert_array_equal(moved["a"], [2, 0, 1])
    assert moved["b"][0].shape == (2, 3)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: reps.matrix(C4, np.eye(2)[None]), r"an array \[4, d, d\], got shape \(1, 2, 2\)"),
        (lambda: reps.matrix(C4), "`mats` must be given, got nothing"),
        (
            lambda: reps.matrix(C4, groups.klein().irreps()[1]),
            r"a representation of cyclic\(4\), got M\[1\] @ M\[1\] off by",
        ),
        (lambda: reps.permutation(C3), "`perms` must be given, got nothing"),
        (lambda: reps.permutation(C3, [[0, 1, 2]]), r"3 permutations, got shape \(1, 3\)"),
        (lambda: reps.permutation(C2, [[0, 1], [1, 1]]), "rows that repeat an entry"),
        (
            lambda: reps.permutation(C3, [[0, 1, 2], [1, 0, 2], [2, 1, 0]]),
            r"a representation of cyclic\(3\), got perms",
        ),
        (lambda: reps.direct_sum(reps.regular(C3), reps.regular(C4)), r"a representation of <cyclic\(3\)"),
        (lambda: reps.direct_sum(reps.regular(C3), reps.trivial(C3)), r"Say how many: `reps.trivial\(G, dim\)`"),
        (lambda: reps.direct_sum(reps.rot90(C4), reps.regular(C4)), "known number of channels"),
        (
            lambda: reps.direct_sum(reps.rot90(C4, reps.regular(C4)), reps.regular(C4)),
            "acting on the same positions as `a`",
        ),
        (lambda: reps.tensor(reps.rot90(C4), reps.rotate(C4)), "acting on the same positions as `a`, or on none"),
        (lambda: reps.restrict(reps.regular(C4), groups.cyclic(2)), r"a subgroup of cyclic\(4\)"),
        (lambda: reps.restrict(reps.regular(C3), C4.subgroup([2])), r"a subgroup of cyclic\(3\)"),
    ],
)
def test_what_is_no_representation_is_refused(build, message) -> None:
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize("g", [-1, 3, 1.0, np.float64(1)])
def test_elements_out_of_range_are_refused(g) -> None:
    with pytest.raises(ValueError, match=r"`g` must be an element of cyclic\(3\)"):
        reps.regular(C3)(g, jnp.ones(3))
    with pytest.raises(ValueError, match="`elements` must be an element"):
        reps.regular(C3).orbit(jnp.ones(3), elements=[0, 5])


def test_arrays_of_the_wrong_size_are_refused() -> None:
    for shape in ((2,), (3, 2), ()):
        with pytest.raises(ValueError, match="an array with 3 entries on its last axis"):
            reps.regular(C3)(0, jnp.ones(shape))


def test_continuous_group() -> None:
    two = reps.matrix(groups.SO2, lambda R: jnp.kron(jnp.eye(2), R))
    R = groups.SO2.sample(jax.random.key(0), 5)
    x = jax.random.normal(jax.random.key(1), (3, 4))
    assert_close(two(R[0], x), x @ jnp.kron(jnp.eye(2), R[0]).T)
    orbit = jax.jit(two.orbit)(x, R)
    assert orbit.shape == (5, 3, 4)
    assert_close(orbit[2], two(R[2], x))
    assert two.homomorphism_error() < 1e-14
    assert two.is_orthogonal()
    assert two(R[0].astype(jnp.float32), x.astype(jnp.float32)).dtype == jnp.float32


IN_NUMPY = {
    "kron": (groups.SO2, lambda R: np.kron(np.eye(2), R), lambda R: jnp.kron(jnp.eye(2), R)),
    "angles": (groups.SO2, lambda R: _turn(3 * math.atan2(R[1, 0], R[0, 0])), lambda R: R @ R @ R),
    "SO(3)": (groups.SO3, lambda R: np.kron(R, R), lambda R: jnp.kron(R, R)),
    "complex": (groups.SO2, lambda R: np.array([[R[0, 0] + 1j * R[1, 0]]]), lambda R: R[:1, :1] + 1j * R[1:, :1]),
}


def _turn(angle):
    return np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])


@pytest.mark.parametrize("name", IN_NUMPY)
def test_functions_of_a_matrix_may_be_written_in_numpy(name) -> None:
    """They act, are mapped, compiled and derived along the group as those in JAX."""
    group, in_numpy, in_jax = IN_NUMPY[name]
    rep, same = reps.matrix(group, in_numpy), reps.matrix(group, in_jax)
    x, elements = jnp.arange(1.0, rep.dim + 1), group.sample(jax.random.key(0), 3)
    numbers = lambda values: np.stack([np.real(values), np.imag(values)])  # noqa: E731
    assert_close(numbers(rep.orbit(x, elements)), numbers(same.orbit(x, elements)), ROUNDING)
    assert_close(numbers(jax.jit(rep)(elements[0], x)), numbers(same(elements[0], x)), ROUNDING)
    plane = jnp.zeros((group.n, group.n)).at[0, 1].set(1.0).at[1, 0].set(-1.0)
    curve = (elements[0],), (elements[0] @ plane,)
    slopes = (numbers(jax.jvp(lambda R, act=act: act(R, x), *curve)[1]) for act in (rep, same))
    assert_close(*slopes, REDUCTION)
    if name != "complex":
        found, known = (reps.direct_sum(each, reps.dual(each)) for each in (rep, same))
        both = jnp.concatenate([x, x])
        assert_close(found(elements[1], both), known(elements[1], both), ROUNDING)


def test_continuous_groups_have_the_same_algebra() -> None:
    vector = reps.matrix(groups.SO3)
    R = groups.SO3.sample(jax.random.key(0), 1)[0]
    x, y = jnp.array([1.0, 2.0, 3.0]), jnp.array([0.5, -1.0, 0.0])
    assert_close(reps.tensor(vector, vector)(R, jnp.kron(x, y)), jnp.kron(R @ x, R @ y))
    both = reps.direct_sum(vector, reps.trivial(groups.SO3, 3))
    assert_close(both(R, jnp.concatenate([x, y])), jnp.concatenate([R @ x, y]))
    assert_close(reps.dual(vector)(R, x), R @ x)
    T = groups.SO3.finite("T")
    assert reps.restrict(vector, T).homomorphism_error() < 1e-13
    np.testing.assert_allclose(reps.restrict(vector, T).channels.matrices(12), T.matrices)
    assert reps.restrict(reps.trivial(groups.SO3), T) == reps.trivial(T)


def test_bad_input_for_continuous_groups() -> None:
    vector = reps.matrix(groups.SO3)
    for build, message in (
        (lambda: reps.matrix(groups.SO2, lambda R: R + R), "a representation of SO\\(2\\), got products off by"),
        (lambda: reps.matrix(groups.SO2, lambda R: R[0]), "a function to square matrices"),
        (lambda: vector(2, jnp.ones(3)), r"a matrix \[3, 3\] of SO\(3\), got shape \(\)"),
        (lambda: vector.orbit(jnp.ones(3)), r"matrices \[count, 3, 3\] of SO\(3\), got nothing"),
        (lambda: vector.orbit(jnp.ones(3), elements=jnp.eye(3)), "`elements` must be matrices"),
        (lambda: reps.restrict(vector, groups.cyclic(3)), r"a group of matrices in SO\(3\)"),
        (lambda: reps.restrict(vector, groups.SO2.finite(3)), r"a group of matrices in SO\(3\)"),
    ):
        with pytest.raises(ValueError, match=message):
            build()
