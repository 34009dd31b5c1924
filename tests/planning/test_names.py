"""Groups, actions, networks and times by their names."""

import jax.numpy as jnp
import numpy as np
import pytest

from ntk_equiv import groups, planning, reps, stax
from tests.tolerances import ROUNDING, assert_close


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("C5", groups.cyclic(5)),
        ("D4", groups.dihedral(4)),
        ("S3", groups.symmetric(3)),
        ("A4", groups.alternating(4)),
        ("O", groups.polyhedral("O")),
        ("V4", groups.klein()),
        ("Q8", groups.quaternion()),
        ("SO2:8", groups.cyclic(8)),
        ("O2:3", groups.dihedral(3)),
        ("SO3:D3", groups.dihedral(3)),
        ("C2xC3", groups.product(groups.cyclic(2), groups.cyclic(3))),
    ],
)
def test_groups_have_names(name, group):
    assert planning.named_group(name) == group
    assert planning.named_group(group) is group


@pytest.mark.parametrize("name", ["", "c4", "C0", "C", "X4", "C4x", "SO3:X", "C99999", "C64xC64", "S7", "SO2"])
def test_other_names_are_refused_with_those_there_are(name):
    with pytest.raises(ValueError, match=r"`group` must be one of C4, D4, S3"):
        planning.named_group(name)


def plane(turns, flip):
    """The matrix of r^turns, or of that after the flip (x, y) ↦ (−x, y), for eighths of a turn."""
    angle = turns * np.pi / 4
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return rotation @ np.diag([-1.0, 1.0]) if flip else rotation


@pytest.mark.parametrize(
    ("name", "group", "g", "x", "expected"),
    [
        ("matrix", "C8", 3, np.arange(4.0), np.kron(np.eye(2), plane(3, False)) @ np.arange(4.0)),
        ("matrix", "D8", 8 + 3, np.array([1.0, 2.0]), plane(3, True) @ np.array([1.0, 2.0])),
        ("matrix", "S3", 4, np.array([10.0, 20.0, 30.0]), None),
        ("permutation", "C3", 1, np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), np.array([3.0, 1.0, 2.0, 6.0, 4.0, 5.0])),
        ("permutation", "D4", 4, np.arange(4.0), np.array([0.0, 3.0, 2.0, 1.0])),
        ("regular", "D2", 2, np.arange(4.0), np.array([2.0, 3.0, 0.0, 1.0])),
        ("sign", "C2", 1, np.arange(3.0), -np.arange(3.0)),
        ("nodes", "S3", 1, np.arange(6.0).reshape(3, 2), np.arange(6.0).reshape(3, 2)[[0, 2, 1]]),
        ("rot90", "C4", 1, np.arange(8.0).reshape(2, 2, 2), np.rot90(np.arange(8.0).reshape(2, 2, 2))),
        ("translations", "C2xC3", 4, np.arange(6.0).reshape(2, 3, 1), None),
        (
            "rot90+matrix",
            "C4",
            1,
            np.arange(8.0).reshape(2, 2, 2),
            np.rot90(np.arange(8.0).reshape(2, 2, 2)) @ plane(2, False).T,
        ),
    ],
)
def test_actions_do_what_their_names_say(name, group, g, x, expected):
    if (name, group) == ("matrix", "S3"):
        expected = np.zeros(3)
        expected[list(groups.symmetric(3).permutations[g])] = x
    if name == "translations":
        expected = np.roll(x, (1, 1), axis=(0, 1))
    rep = planning.named_action(name, planning.named_group(group), x.shape)
    assert_close(rep(g, jnp.asarray(x)), expected, ROUNDING)
    assert rep.homomorphism_error() < 1e-12


def test_rotations_by_interpolation_say_that_they_are_not_exact():
    nearest = planning.named_action("rotate:0", groups.cyclic(8), (5, 5, 1))
    assert nearest == reps.rotate(groups.cyclic(8), 0)
    assert not nearest.exact


@pytest.mark.parametrize(
    ("name", "group", "shape", "advice"),
    [
        ("matrix", "C4", (5,), "C5 with permutation"),
        ("matrix", "O", (2,), "C4 with matrix, D4 with matrix, C2 with matrix, S2 with matrix"),
        ("rot90", "C4", (8,), "With this group, these fit: matrix, permutation, regular"),
        ("rot90", "C8", (6, 6, 1), "rotate"),
        ("rot90", "C4", (4, 6, 1), "With this group, these fit: rotate, translations"),
        ("regular", "D4", (6,), "With this group, these fit: matrix"),
        ("permutation", "O", (3,), "With this group, these fit: matrix"),
        ("nodes", "S3", (4, 2), "D4 with nodes"),
    ],
)
def test_a_group_that_does_not_fit_is_refused_with_what_would(name, group, shape, advice):
    with pytest.raises(ValueError, match=r"an action of .* on samples of shape") as caught:
        planning.named_action(name, planning.named_group(group), shape)
    assert advice in str(caught.value)
    assert caught.value.argument == "action"
    proposed = str(caught.value).rpartition("fit")[2].strip(": .").split(", ")
    assert len(set(proposed)) == len(proposed)


@pytest.mark.parametrize("name", ["rot91", "rot90:1", "rotate:2", "matrix+matrix", "rot90+rot90", "", "rot90+"])
def test_unknown_actions_are_refused_with_those_there_are(name):
    with pytest.raises(ValueError, match="rot90, rotate, translations, nodes, matrix"):
        planning.named_action(name, groups.cyclic(4), (4, 4, 2))


def test_a_representation_of_another_group_is_refused():
    with pytest.raises(ValueError, match="another group"):
        planning.named_action(reps.regular(groups.cyclic(3)), groups.cyclic(4), (3,))


def test_named_networks_are_those_of_stax():
    scale = {"W_std": 1.2, "b_std": 0.3}
    conv = [stax.Conv(1, (3, 3), padding="SAME", **scale), stax.Erf()]
    dense = [stax.Dense(1, **scale), stax.Relu()]
    expected = {
        "cnn:erf:1": stax.serial(*conv, stax.Flatten(), stax.Dense(1, **scale)),
        "cnn:erf:1:gap": stax.serial(*conv, stax.GlobalAvgPool(), stax.Dense(1, **scale)),
        "mlp:relu:2": stax.serial(stax.Flatten(), *dense, *dense, stax.Dense(1, **scale)),
    }
    for name, net in expected.items():
        rules = {
            other: planning.named_network(other, (4, 4, 2), w_std=1.2, b_std=0.3).kernel_fn.rule for other in expected
        }
        assert [other for other, rule in rules.items() if rule == net.kernel_fn.rule] == [name]


@pytest.mark.parametrize(
    "name",
    [
        "mlp",
        "mlp:relu",
        "mlp:tanh:2",
        "mlp:relu:0",
        "mlp:relu:x",
        "mlp:relu:2:gap",
        "cnn:relu:2:max",
        "rnn:relu:2",
        "mlp:relu:2::",
    ],
)
def test_unknown_networks_are_refused_with_what_there_is(name):
    with pytest.raises(ValueError, match=r"mlp or cnn, then relu, erf, gelu, leaky, abs, sin"):
        planning.named_network(name, (4, 4, 1))


def test_convolutions_of_vectors_and_bad_spreads_are_refused():
    with pytest.raises(ValueError, match="an mlp for samples of shape"):
        planning.named_network("cnn:relu:2", (4,))
    with pytest.raises(ValueError, match="`w_std` must be positive"):
        planning.named_network("mlp:relu:2", (4,), w_std=0.0)
    with pytest.raises(ValueError, match="`b_std` must be zero or more"):
        planning.named_network("mlp:relu:2", (4,), b_std=-1.0)


def test_times_are_read_in_all_ways():
    np.testing.assert_allclose(planning.named_times("log:1:1e4:5"), [1, 10, 100, 1000, 1e4])
    assert planning.named_times(["3", "inf", "log:1:1:1", 0]).tolist() == [0, 1, 3, np.inf]
    assert planning.named_times(2.5).tolist() == [2.5]
    assert planning.named_times("auto") is None


@pytest.mark.parametrize("times", ["", "x", "log:1:10", "log:0:1:3", "log:1:inf:3", "log:2:1:3", -1, [], "nan"])
def test_what_is_no_time_is_refused(times):
    with pytest.raises(ValueError, match="`times` must be"):
        planning.named_times(times)
