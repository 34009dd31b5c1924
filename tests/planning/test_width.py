"""Whether a network is wide enough, as a plan answers it, against the library asked directly."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntk_equiv import InfiniteEnsemble, augment, empirical, filters, groups, planning, reps
from tests.planning.problems import SETTINGS, VECTORS
from tests.tolerances import assert_close

WIDTH = 128


@pytest.fixture(scope="module")
def found():
    x, y, x_test, y_test = VECTORS
    return planning.plan(x, y, x_test=x_test, y_test=y_test, width=WIDTH, **SETTINGS)


def test_it_is_what_members_along_their_linearisation_say(found):
    x, y, x_test, _ = VECTORS
    train = augment(jnp.asarray(x), jnp.asarray(y)[:, None], reps.matrix(groups.SO2.finite(4)))
    network, flow = planning.named_network("mlp:relu:1", (2,), width=WIDTH), filters.gradient_flow(0.5)
    ens = InfiniteEnsemble(network.kernel_fn, train, flow, reduction="mean")
    keys = jax.random.split(jax.random.key(0), found.width.networks)
    params = jax.vmap(lambda key: network.init_fn(key, (1, 2))[1])(keys)
    times = [100 / 64, 100 / 16, 25.0, 100.0]
    rest = {"reduction": "mean", "theory": ens, "steps_per_octave": 3}
    lazy = empirical.laziness(network, params, train, jnp.asarray(x_test), times, flow, **rest)
    assert_close(found.width.times, np.array(times))
    assert found.width.samples == 8
    np.testing.assert_allclose(found.width.shift, lazy.sizes, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(found.width.change, lazy.kernel_change.mean(0), rtol=1e-6)
    np.testing.assert_allclose(found.width.chance, lazy.spreads / np.sqrt(SETTINGS["members"]), rtol=1e-6)


def test_it_is_printed_and_stored(found, tmp_path):
    text = found.table()
    assert "Is the network wide enough: " in text
    assert "change of the kernel" in text
    again = planning.Plan.load(found.save(tmp_path / "plan.json"))
    for field in dataclasses.fields(found.width):
        np.testing.assert_array_equal(getattr(again.width, field.name), getattr(found.width, field.name))


@pytest.mark.parametrize(
    ("needed", "enough", "begins"),
    [
        ((60, 20, 100), "yes", "yes, width"),
        ((300, 200, 400), "no", "no, width"),
        ((90, 1, 200), "perhaps", "perhaps:"),
    ],
)
def test_the_answer_depends_on_the_range_of_widths(found, needed, enough, begins):
    width = dataclasses.replace(found.width, needed=np.array(needed, float))
    assert width.enough == enough
    assert f"Is the network wide enough: {begins}" in dataclasses.replace(found, width=width).table()
