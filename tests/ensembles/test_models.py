"""Every kind of network trains, in the same way."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from ntk_equiv import ensembles, stax
from ntk_equiv._convolution import convolve
from tests.ensembles.spread import convolved
from tests.tolerances import REDUCTION, assert_close

RNG = np.random.default_rng(0)
X, Y = jnp.asarray(RNG.normal(size=(6, 3))), jnp.asarray(RNG.normal(size=(6, 2)))
W1, W2 = jnp.asarray(RNG.normal(size=(3, 4))), jnp.asarray(RNG.normal(size=(4, 2)))


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(x @ self.param("W1", lambda key: W1))
        return x @ self.param("W2", lambda key: W2)


class NNX(nnx.Module):
    def __init__(self, rngs):
        self.W1, self.W2 = nnx.Param(W1), nnx.Param(W2)

    def __call__(self, x):
        return nn.relu(x @ self.W1[...]) @ self.W2[...]


PAIR = (lambda key, x: {"W1": W1, "W2": W2}, lambda p, x: nn.relu(x @ p["W1"]) @ p["W2"])
STAX = (lambda key, shape: ((-1, 2), (W1, W2)), lambda p, x: nn.relu(x @ p[0]) @ p[1], None)


def test_all_kinds_give_the_same_curve_from_the_same_parameters():
    optimizer, key = optax.adam(0.05), jax.random.key(0)
    runs = [
        ensembles.train(module, (X, Y), members=2, steps=20, batch_size=4, optimizer=optimizer, key=key)
        for module in (Linen(), NNX, PAIR, STAX)
    ]
    for run in runs:
        assert run.curve[0].tolist() == [10, 20]
        assert_close(run.curve[1], runs[0].curve[1])
        assert_close(run.predict(X), runs[0].predict(X))
        leaves = zip(jax.tree.leaves(run.params), jax.tree.leaves(runs[0].params), strict=True)
        for ours, first in leaves:
            assert_close(ours, first)
    assert np.abs(runs[0].curve[1][:, 0] - runs[0].curve[1][:, 1]).min() > 0  # own batches


class Branches(nn.Module):
    """A module with a dictionary of widths, and a list in which one submodule stands twice."""

    widths: dict
    layers: list

    @nn.compact
    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return nn.Dense(self.widths["out"])(x)


def test_modules_with_lists_and_dictionaries_train_as_those_with_tuples():
    shared = nn.Sequential([nn.Dense(3), nn.tanh])
    listed = Branches({"out": 2}, [shared, nn.relu, shared])
    settings = {"members": 2, "steps": 3, "optimizer": optax.sgd(0.1), "key": jax.random.key(0)}
    run = ensembles.train(listed, (X, Y), **settings)
    assert len(run.params) == 2  # the dense layer that is shared, and the last one
    frozen = nn.Sequential((nn.Dense(3), nn.tanh))
    assert_close(
        run.predict(X), ensembles.train(Branches({"out": 2}, (frozen, nn.relu, frozen)), (X, Y), **settings).predict(X)
    )
    one = listed.apply({"params": jax.tree.map(lambda leaf: leaf[0], run.params)}, X)
    assert_close(run.predict(X)[0], one)


def test_a_triple_and_its_flax_module_have_the_same_law():
    net = stax.serial(stax.Dense(50, 1.3, 0.2), stax.Erf(), stax.Dense(2))
    key = jax.random.key(3)
    module = ensembles.to_flax(net)
    params = module.init(key, X)["params"]["net"]
    init, _ = ensembles.as_pair(net)
    assert jax.tree.structure(params) == jax.tree.structure(init(key, X))
    assert_close(module.apply({"params": {"net": params}}, X), net[1](params, X))
    for leaf in jax.tree.leaves(params):
        assert abs(leaf.mean()) < 5 / np.sqrt(leaf.size)
        assert abs(leaf.var() - 1) < 5 * np.sqrt(2 / leaf.size)


class FlaxCNN(nn.Module):
    """The paper's networks, from Flax's own layers."""

    channels: tuple
    padding: str
    pools: int

    @nn.compact
    def __call__(self, x):
        for i, channels in enumerate(self.channels):
            x = nn.relu(nn.Conv(channels, (3, 3), padding=self.padding, name=f"Conv_{i}", param_dtype=x.dtype)(x))
            x = nn.max_pool(x, (2, 2), (2, 2)) if i < self.pools else x
        x = x.reshape(len(x), -1)
        for i, width in enumerate((120, 84)):
            x = nn.relu(nn.Dense(width, name=f"Dense_{i}", param_dtype=x.dtype)(x))
        return nn.Dense(10, name="Dense_2", param_dtype=x.dtype)(x)


@pytest.mark.parametrize(
    ("ours", "flax", "size", "wrapped"),
    [
        (ensembles.fashion_cnn(), FlaxCNN((6, 16), "VALID", 2), 14, jax.value_and_grad),
        (ensembles.histology_cnn(10, pools=3), FlaxCNN((6, 16, 26, 36, 46, 56), "SAME", 3), 9, lambda f: f),
    ],
)
def test_the_papers_networks_equal_those_of_flax(ours, flax, size, wrapped):
    x = jnp.asarray(RNG.normal(size=(2, size, size, 1)))
    shapes = jax.eval_shape(ours.init, jax.random.key(0), x)
    variables = jax.tree.map(lambda leaf: jnp.asarray(RNG.normal(size=leaf.shape)) / leaf.size**0.25, shapes)
    with jax.numpy_rank_promotion("allow"):
        theirs = jax.jit(wrapped(lambda p: jnp.sum(flax.apply(p, x) ** 2)))(variables)
    found = jax.jit(wrapped(lambda p: jnp.sum(ours.apply(p, x) ** 2)))(variables)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(theirs), strict=True):
        assert_close(a, b)


IMAGES = RNG.normal(size=(5, 3, 3, 1))
FILTERS = lambda key, x: jax.random.uniform(key, (2, 2, 1, 2), x.dtype)  # noqa: E731
STEPWISE = (FILTERS, convolved)
COMPILED = (FILTERS, lambda filters, x: jnp.tanh(convolve(x, filters, (1, 1))).sum((1, 2, 3))[:, None])


def on_images(module, **changes):
    settings = {"members": 3, "steps": 7, "batch_size": 2, "optimizer": optax.adam(0.1), "key": jax.random.key(0)}
    return ensembles.train(module, (IMAGES, IMAGES[:, 0, 0]), **settings | changes)


def test_the_network_for_images_treats_all_quarter_turns_and_flips_alike():
    """Turned weights on a turned image give what the weights give on the image, also where a side is odd."""
    net = ensembles.image_cnn(3, channels=(2, 3, 2))
    x = jnp.asarray(RNG.normal(size=(2, 12, 12, 1)))  # 12 -> 6 -> 3
    variables = net.init(jax.random.key(0), x)
    assert jax.eval_shape(net.apply, variables, x[:, :7, :7]).shape == (2, 3)
    plain = net.apply(variables, x)
    assert float(jnp.std(plain)) > 1e-3
    for move in (lambda a, axes: jnp.rot90(a, 1, axes), lambda a, axes: jnp.flip(a, axes[0])):
        moved = jax.tree.map(lambda leaf, move=move: move(leaf, (0, 1)) if leaf.ndim == 4 else leaf, variables)
        assert_close(net.apply(moved, move(x, (1, 2))), plain, REDUCTION)
        assert float(jnp.abs(net.apply(variables, move(x, (1, 2))) - plain).max()) > 1e-4


def test_step_by_step_training_is_that_of_the_compiled_loop():
    stepwise, compiled = on_images(STEPWISE), on_images(COMPILED)
    assert (stepwise.layout.stepwise, compiled.layout.stepwise) == (True, False)
    assert_close(stepwise.params, compiled.params)
    assert_close(stepwise.curve[1], compiled.curve[1])
    assert_close(stepwise.predict(IMAGES, batch_size=3), compiled.predict(IMAGES))
    assert_close(stepwise.subset([2, 1]).predict(IMAGES), compiled.predict(IMAGES)[2:0:-1])
    assert_close(on_images(STEPWISE, chunk=2).params, compiled.params)
    assert_close(on_images(STEPWISE, batch_size=None).params, on_images(COMPILED, batch_size=None).params)


def test_step_by_step_training_is_resumed_to_the_same_bits(tmp_path):
    def stop(predictions):
        raise InterruptedError

    folder = {"checkpoint": tmp_path, "checkpoint_every": 3, "record_at": [4]}
    with pytest.raises(InterruptedError):
        on_images(STEPWISE, record={"x": (IMAGES, stop)}, **folder)
    resumed = on_images(STEPWISE, record={"x": (IMAGES, np.asarray)}, resume=True, **folder)
    np.testing.assert_array_equal(resumed.params, on_images(STEPWISE).params)
    assert ensembles.Run.load(tmp_path, STEPWISE).layout.stepwise


@pytest.mark.parametrize(
    ("module", "error", "message"),
    [
        (NNX(nnx.Rngs(0)), TypeError, "pass a factory"),
        (Linen, TypeError, "Call a Linen class"),
        (Branches({"out": W1}, []), TypeError, "with hashable attributes, got Branches with widths. Pass numbers"),
    ],
)
def test_modules_that_do_not_fit_are_refused(module, error, message):
    with pytest.raises(error, match=message):
        ensembles.train(module, (X, Y), members=1, steps=1, optimizer=optax.sgd(0.1), key=jax.random.key(0))
