"""The ensemble before training: the one that `train` begins with."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ntk_equiv import InfiniteEnsemble, ensembles, filters, stax
from tests.tolerances import assert_close

X = np.random.default_rng(0).normal(size=(4, 3))
KEY = jax.random.key(3)


def init(key, x):
    return {"W": jax.random.uniform(key, (x.shape[-1], 2), minval=-1.0)}


def apply(params, x):
    return jnp.tanh(x @ params["W"])


NET = (init, apply)
BEFORE = ensembles.untrained(NET, X, members=5, key=KEY)


def test_training_begins_with_it():
    settings = {"members": 5, "key": KEY, "optimizer": optax.sgd(0.5), "batch_size": 2}
    run = ensembles.train(NET, (X, X[:, :2]), steps=2, record={"x": X}, record_at=[0], **settings)
    np.testing.assert_array_equal(BEFORE.predict(X), run.records["x"][0])
    assert not np.array_equal(BEFORE.predict(X), run.predict(X))


def test_a_smaller_one_has_the_same_first_members_in_any_layout():
    fewer = ensembles.untrained(NET, X, members=2, key=KEY, layout="vmap")
    np.testing.assert_array_equal(fewer.params["W"], BEFORE.params["W"][:2])
    np.testing.assert_array_equal(BEFORE.subset([0, 1]).params["W"], fewer.params["W"])


def test_members_are_differentiable_in_their_inputs():
    params = BEFORE.params

    def score(x):
        return jnp.sum(jnp.mean(jax.vmap(BEFORE.model.apply, (0, None))(params, x), axis=0)[:, 0])

    weights, hidden = np.asarray(params["W"]), np.asarray(BEFORE.predict(X))
    by_hand = np.mean([(1 - h[:, :1] ** 2) * W[:, 0] for W, h in zip(weights, hidden, strict=True)], axis=0)
    assert_close(jax.grad(score)(X), by_hand)


def test_it_is_saved_and_loaded(tmp_path):
    BEFORE.save(tmp_path)
    loaded = ensembles.Run.load(tmp_path, NET)
    assert repr(loaded) == "<ensemble of 5 members after 0 steps>"
    np.testing.assert_array_equal(loaded.predict(X), BEFORE.predict(X))


def test_it_has_the_law_of_theory_before_training():
    net = stax.serial(stax.Dense(64, 1.4, 0.3), stax.Relu(), stax.Dense(1))
    run = ensembles.untrained(net, X, members=400, key=KEY)
    ens = InfiniteEnsemble(net.kernel_fn, (X, X[:, :1]), filters.gradient_descent(0.1))
    assert ensembles.compare_with_theory(run, ens, X).holds(5)
    with pytest.raises(ValueError, match="`t` must be 0, for a run that is not trained, got 3"):
        ensembles.compare_with_theory(run, ens, X, 3)


@pytest.mark.parametrize("x", [np.zeros((0, 3)), np.float64(1.0), ()])
def test_networks_are_made_for_inputs(x):
    with pytest.raises((TypeError, ValueError), match=r"`x` must be (at least one sample|an array of)"):
        ensembles.untrained(NET, x, members=2, key=KEY)


def test_a_network_without_parameters_is_refused():
    expected = "`module` must be a network with parameters, got one without any"
    with pytest.raises(ValueError, match=expected):
        ensembles.untrained(stax.Relu(), X, members=2, key=KEY)
    with pytest.raises(ValueError, match=expected):
        ensembles.train(stax.Relu(), (X, X), members=2, steps=1, optimizer=optax.sgd(0.1), key=KEY).predict(X)
