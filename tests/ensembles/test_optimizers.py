"""Optimizers of every kind: those of single layers, those that look at the loss, and what rate they have for theory."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ntk_equiv import ensembles
from tests.tolerances import assert_close

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(6, 2)), RNG.normal(size=(6, 1))
KEY = jax.random.key(7)


def init(key, x):
    return {"W": jax.random.uniform(key, (x.shape[-1], 4), minval=-1.0), "V": jnp.ones((4, 1))}


def apply(params, x):
    return jnp.tanh(x @ params["W"]) @ params["V"]


NET = (init, apply)
SGD = optax.sgd(0.1)


def trained(optimizer, steps=5, **changes):
    return ensembles.train(NET, (X, Y), members=2, steps=steps, optimizer=optimizer, key=KEY, **changes)


def by_hand(optimizer, member, steps=5):
    """The same steps, one after the other, as the documentation of optax has them."""
    params = init(jax.random.split(jax.random.fold_in(KEY, member))[0], X)
    loss = lambda params: jnp.mean((apply(params, X) - Y) ** 2) / 2  # noqa: E731
    state, update = optimizer.init(params), optax.with_extra_args_support(optimizer).update

    @jax.jit
    def step(params, state):
        value, grad = jax.value_and_grad(loss)(params)
        updates, state = update(grad, state, params, value=value, grad=grad, value_fn=loss)
        return optax.apply_updates(params, updates), state

    for _ in range(steps):
        params, state = step(params, state)
    return params


FIRST_LAYER = {"W": True, "V": False}


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.multi_transform({"slow": SGD, "fast": optax.adam(0.1)}, {"W": "slow", "V": "fast"}),
        optax.chain(optax.masked(optax.set_to_zero(), FIRST_LAYER), SGD),
        optax.chain(optax.masked(optax.clip(0.01), lambda params: jax.tree.map(lambda p: p.ndim == 2, params)), SGD),
        optax.lbfgs(memory_size=2),
        optax.chain(SGD, optax.contrib.reduce_on_plateau(patience=1)),
    ],
    ids=["multi_transform", "masked", "masked by a function", "lbfgs", "plateau"],
)
def test_optimizers_of_every_kind_make_the_steps_that_they_make_by_hand(optimizer):
    run = trained(optimizer)
    for member in range(2):
        expected = by_hand(optimizer, member)
        for name in ("W", "V"):
            assert_close(run.params[name][member], expected[name], {"float64": 1e-11})


def test_accumulated_steps_are_those_of_optax():
    every_other = optax.MultiSteps(SGD, 2)
    run = trained(every_other, steps=4)
    expected = by_hand(every_other.gradient_transformation(), 0, steps=4)
    assert_close(run.params["W"][0], expected["W"])


@pytest.mark.parametrize(
    ("optimizer", "problem"),
    [
        (optax.lookahead(SGD, 5, 0.5), "AttributeError.*`optax.lookahead`, is not supported"),
        (optax.multi_transform({"a": SGD}, {"U": "a"}), "Labels and masks have to fit"),
        (optax.masked(SGD, {"W": True}), "Labels and masks have to fit"),
    ],
    ids=["lookahead", "labels", "mask"],
)
def test_optimizers_of_other_parameters_are_refused_at_the_start(optimizer, problem):
    with pytest.raises(ValueError, match=f"`optimizer` must be one that updates parameters like these.*{problem}"):
        trained(optimizer)


def later(step):
    return optax.piecewise_constant_schedule(0.3, {step: 0.5})


def test_a_clip_shows_in_the_shortest_run():
    clipped = optax.chain(optax.clip_by_global_norm(1e3), optax.sgd(0.3))
    runs = [ensembles.train(NET, (X, Y), members=1, steps=1, optimizer=o, key=KEY) for o in (optax.sgd(0.3), clipped)]
    assert [run.configuration["rate and momentum"] for run in runs] == [[0.3, 0.0], None]


@pytest.mark.parametrize(
    ("optimizer", "found"),
    [
        (optax.sgd(0.3), [0.3, 0.0]),
        (optax.sgd(1e-3, momentum=0.9), [1e-3, 0.9]),
        (optax.chain(optax.trace(0.5), optax.scale_by_schedule(lambda count: -0.3)), [0.3, 0.5]),
        (optax.sgd(later(30)), [0.3, 0.0]),
        (optax.sgd(later(29)), None),
        (optax.sgd(0.3, momentum=0.9, nesterov=True), None),
        (optax.adam(0.3), None),
        (optax.chain(optax.add_decayed_weights(1e-4), optax.sgd(0.3)), None),
        (optax.chain(optax.clip(100.0), optax.sgd(0.3)), None),
        (optax.chain(optax.sgd(0.3), optax.masked(optax.set_to_zero(), FIRST_LAYER)), None),
        (optax.multi_transform({"a": SGD, "b": optax.sgd(0.2)}, {"W": "a", "V": "b"}), None),
    ],
)
def test_gradient_descent_is_recognised_by_what_it_does_at_every_step(optimizer, found):
    run = ensembles.train(NET, (X, Y), members=1, steps=30, optimizer=optimizer, key=KEY)
    assert run.configuration["rate and momentum"] == found
