"""Networks that know about rotations, and what is kept of predictions on orbits."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _group_cnn import Canonicalised, GroupCNN, GroupConv, WideCNN, count_parameters, match_parameters, turn_back
from _orbit_records import OrbitRecord, paired
from _orientations import follow_rotations
from _rotated_images import drawn, on_orbits, rotate, rotations

from ntk_equiv import ensembles, groups, reps
from tests.tolerances import assert_close

# Random networks amplify the rounding of a float32 by their few layers.
INVARIANT = 1e-5
SHAPE = (12, 12, 1)


@pytest.fixture(scope="module")
def noise():
    return jax.random.normal(jax.random.key(0), (3, *SHAPE), jnp.float32)


@pytest.fixture(scope="module")
def smooth():
    """Pictures of 28 x 28 without details as small as a pixel."""
    return jax.image.resize(drawn(jax.random.key(0), 8)[0], (8, 28, 28, 1), "cubic").astype(jnp.float32)


def deviations(module, order, x):
    """By how much outputs change under each element of C_k, root mean square relative to their size, [order]."""
    outputs = jax.jit(lambda x: module.init_with_output(jax.random.key(1), x)[0])(on_orbits(x, order))
    outputs = np.asarray(outputs).reshape(order, len(x), -1)
    return np.sqrt(np.mean((outputs - outputs[:1]) ** 2, (1, 2)) / np.mean(outputs**2))


def test_rotations_by_any_angle_agree_with_those_of_a_group(noise):
    expected = reps.rotate(groups.cyclic(8)).orbit(noise)
    assert_close(rotate(noise, jnp.asarray(groups.SO2.grid(8), jnp.float32)), expected)


def test_orbits_begin_with_the_pictures_themselves():
    x = np.arange(2 * 5 * 5 * 3, dtype=float).reshape(2, 5, 5, 3)
    expected = np.concatenate([np.rot90(x, turns, axes=(1, 2)) for turns in range(4)])
    np.testing.assert_array_equal(on_orbits(x, 4), expected)


@pytest.mark.parametrize("lifting", [True, False])
def test_turning_a_picture_turns_features_and_shifts_orientations(noise, lifting):
    x = noise if lifting else jnp.concatenate([noise * (1 + i) for i in range(4)], -1)
    layer = GroupConv(4, 2, lifting=lifting)
    params = layer.init(jax.random.key(0), x)
    features = lambda x: np.asarray(layer.apply(params, x)).reshape(3, 12, 12, 4, 2)  # noqa: E731
    turned = jnp.rot90(x, 1, (1, 2)) if lifting else jnp.roll(jnp.rot90(x, 1, (1, 2)), 1, -1)
    assert_close(features(turned), np.roll(np.rot90(features(x), 1, (1, 2)), 1, 3))


def test_turns_by_45_degrees_are_respected_nearly_and_not_exactly(smooth):
    layer, rep = GroupConv(8, 3, lifting=True), rotations(8)
    params = layer.init(jax.random.key(0), smooth)
    features = lambda x: layer.apply(params, x).reshape(8, 28, 28, 8, 3)  # noqa: E731
    turned = rep(1, features(smooth).reshape(8, 28, 28, 24)).reshape(8, 28, 28, 8, 3)
    off = [float(jnp.linalg.norm(features(rep(1, smooth)) - jnp.roll(turned, shift, 3))) for shift in range(8)]
    relative = np.array(off) / float(jnp.linalg.norm(turned))
    assert 1e-4 < relative[1] < 0.1
    assert np.delete(relative, 1).min() > 5 * relative[1]


def test_group_network_is_exactly_invariant_under_quarter_turns_alone(noise):
    assert deviations(GroupCNN(4, (8, 8, 16), 16), 4, noise).max() < INVARIANT
    of_c8 = deviations(GroupCNN(8, (8, 8, 16), 16), 8, noise)
    assert of_c8[[2, 4, 6]].max() < INVARIANT
    assert of_c8[1::2].min() > 1e-2


def test_canonicalised_network_is_exactly_invariant_under_quarter_turns(noise):
    assert deviations(Canonicalised(4, (8, 8), 50), 4, noise).max() < INVARIANT
    assert deviations(WideCNN(50), 4, noise)[1:].min() > 0.1


def test_orientations_follow_quarter_turns_exactly(noise):
    module = Canonicalised(4, (8, 8, 8), 50)
    params = jax.vmap(lambda key: module.init(key, noise)["params"])(jax.random.split(jax.random.key(3), 2))
    found = follow_rotations(module, params, {"noise": noise}, 4)
    np.testing.assert_array_equal(found["noise.whole.found"], [[1, 0, 0]] * 2)
    np.testing.assert_array_equal(found["noise.whole.same"], [[1, np.nan, np.nan]] * 2)
    np.testing.assert_array_equal(found["noise.whole.known"], [1, 1])
    np.testing.assert_allclose(found["noise.half.found"].sum(1), 1)


class Frozen(nn.Module):
    """Finds orientation 0 whatever it sees, and says by how many steps it was told to turn back."""

    def orient(self, x):
        """Return 0 for each image."""
        return jnp.zeros(len(x), int)

    def classify(self, x, g):
        """Return the steps."""
        return g


def test_orientations_that_do_not_follow_are_seen(noise):
    """C4 turns by 1, 2 and 3 steps: orientation 0 is wrong by 1, 2 and 1. One step more than 3 is none."""
    found = follow_rotations(Frozen(), {"none": np.zeros((1, 1))}, {"noise": noise}, 4)
    np.testing.assert_allclose(found["noise.whole.found"], [[0, 2 / 3, 1 / 3]])
    np.testing.assert_array_equal(found["noise.whole.same"], [[np.nan, 1, 1]])
    numbers = [found[f"noise.whole.{what}"][0] for what in ("all", "known", "next")]
    np.testing.assert_allclose(numbers, [1, 0, 1 / 3])
    # Turned by 1/2, 3/2, 5/2 and 7/2 steps, it is wrong by 1/2, 3/2, 3/2 and 1/2.
    np.testing.assert_allclose(found["noise.half.found"], [[1 / 2, 1 / 2, 0]])


def test_gradients_pass_straight_through_the_choice_of_an_orientation(noise):
    rep, weights = rotations(4), jax.random.normal(jax.random.key(2), noise.shape, noise.dtype)
    probabilities = jnp.array([[0.1, 0.7, 0.1, 0.1], [0.4, 0.2, 0.2, 0.2], [0.1, 0.1, 0.1, 0.7]], jnp.float32)
    backwards = np.stack([np.rot90(noise, -g, (1, 2)) for g in range(4)])  # [4, n, ...]
    np.testing.assert_array_equal(turn_back(rep, probabilities, noise), backwards[[1, 0, 3], [0, 1, 2]])
    found = jax.grad(lambda p: jnp.sum(weights * turn_back(rep, p, noise)))(probabilities)
    assert_close(found, np.einsum("nhwc,gnhwc->ng", weights, backwards))


def test_networks_are_made_as_large_as_asked():
    picture = (28, 28, 1)
    assert count_parameters(WideCNN(), picture) == count_parameters(ensembles.fashion_cnn(), picture)
    found = count_parameters(match_parameters(lambda head: GroupCNN(8, (16, 16, 32), head), 100_000, picture), picture)
    assert abs(found - 100_000) < 1000


def test_what_is_kept_of_orbits():
    """Four members, three pictures under C2; members 0 and 1 change their mind about the last one, and disagree.

    Member 1 is louder than the others: it overrules member 0, but not all three.
    """
    classes = np.zeros((4, 2, 3), int)
    classes[0, 1, 2] = classes[1, 0, 2] = 1
    predictions = np.eye(2)[classes].reshape(4, 6, 2) * np.array([1, 2.5, 1, 1])[:, None, None]
    record = OrbitRecord(3, (1, 2, 4), 2, np.array([0, 0, 1]))
    found = {name: values[0] for name, values in record.unpack(record(jnp.asarray(predictions))[None]).items()}
    np.testing.assert_allclose(found["members"], [5 / 3, 5 / 3, 2, 2])
    np.testing.assert_allclose(found["osp"], [11 / 6, (5 / 3 + 2) / 2, 2])
    np.testing.assert_allclose(found["member_accuracy"], [5 / 6, 5 / 6, 4 / 6, 4 / 6])
    np.testing.assert_allclose(found["accuracy"], [3 / 4, 3 / 4, 4 / 6])
    np.testing.assert_allclose(found["upright"], [3 / 4, 5 / 6, 2 / 3])
    np.testing.assert_allclose(found["member_upright"], [2 / 3, 1, 2 / 3, 2 / 3])
    np.testing.assert_allclose(found["points"], [[2, 2, 3 / 2], [2, 2, 3 / 2], [2, 2, 2]])
    np.testing.assert_allclose(found["error"][2], 0)
    np.testing.assert_allclose(found["monte_carlo"], 0)


def test_errors_of_differences_are_paired():
    value, error = paired([3, 5, 10], [2, 5, 7])
    assert (value, error) == (pytest.approx(4 / 3), pytest.approx(np.std([1, 0, 3], ddof=1) / 3**0.5))


def test_what_is_kept_of_drawn_rotations():
    """One member and one picture, which keeps its class under three rotations of four."""
    scores = np.eye(2)[[0, 0, 0, 1, 0]][None]
    record = OrbitRecord(1, (1,))
    found = record.unpack(record(jnp.asarray(scores))[None])
    np.testing.assert_allclose([found["osp"][0, 0], found["monte_carlo"][0, 0]], [0.75, 0.25])
    assert np.isnan(found["accuracy"]).all()
