"""Networks with batch statistics and dropout, against Flax used by hand."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ntk_equiv import ensembles
from tests.tolerances import assert_close

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(7, 3)), RNG.normal(size=(7, 2))
KEY, RATE, STEPS, BATCH = jax.random.key(5), 0.1, 5, 3
SGD = optax.sgd(RATE)


@pytest.fixture(autouse=True)
def _rank_promotion(rank_promotion_allowed):
    """Flax's own layers need it."""


class Linen(nn.Module):
    """Statistics, noise, and a variable of another kind."""

    @nn.compact
    def __call__(self, x, train=False):
        seen = self.variable("counts", "seen", lambda: jnp.zeros((), jnp.int32))
        if train and self.is_mutable_collection("counts"):
            seen.value += len(x)
        x = nn.Dense(4, use_bias=False, param_dtype=x.dtype, name="first")(x)
        x = nn.BatchNorm(use_running_average=not train, momentum=0.8, param_dtype=x.dtype, name="norm")(x)
        x = nn.Dropout(0.25, deterministic=not train)(nn.tanh(x))
        self.sow("intermediates", "hidden", x)
        return nn.Dense(2, param_dtype=x.dtype, name="last")(x)


def train(module, **changes):
    settings = {"members": 3, "steps": STEPS, "batch_size": BATCH, "optimizer": SGD, "key": KEY}
    return ensembles.train(module, (X, Y), **settings | changes)


@pytest.fixture(scope="module")
def run():
    with jax.numpy_rank_promotion("allow"):
        return train(Linen())


def keys_of(member):
    """The keys of a member for its parameters, its batches and its noise, by the rule that is documented."""
    initial, own = jax.random.split(jax.random.fold_in(KEY, member))
    return initial, jax.random.split(own)[0], jax.random.fold_in(own, 2)


def by_hand(member):
    """One member, trained with Flax alone on two whole batches in each epoch of seven samples."""
    initial, shuffling, noise = keys_of(member)
    variables = Linen().init(initial, X[:1])
    # Flax begins in single precision, and continues in double precision after a step that is rounded.
    variables["batch_stats"] = jax.tree.map(lambda leaf: leaf.astype(X.dtype), variables["batch_stats"])
    for step in range(STEPS):
        order = jax.random.permutation(jax.random.fold_in(shuffling, step // 2), 7)
        chosen = np.asarray(order)[BATCH * (step % 2) :][:BATCH]

        def loss(params, variables=variables, chosen=chosen, step=step):
            outputs, after = Linen().apply(
                {**variables, "params": params},
                X[chosen],
                train=True,
                rngs={"dropout": jax.random.fold_in(noise, step)},
                mutable=["batch_stats", "counts"],
            )
            return jnp.mean((outputs - Y[chosen]) ** 2) / 2, after

        gradient, after = jax.grad(loss, has_aux=True)(variables["params"])
        params = jax.tree.map(lambda p, g: p - RATE * g, variables["params"], gradient)
        variables = {"params": params, **after}
    return variables


def test_training_is_that_of_flax_by_hand(run):
    for member in (0, 2):
        hand, ours = by_hand(member), run.member(member)
        assert ours.keys() == hand.keys() == {"params", "batch_stats", "counts"}
        assert ours.pop("counts") == hand["counts"] == {"seen": STEPS * BATCH}
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves({name: hand[name] for name in ours}), strict=True):
            assert_close(a, b)
        assert_close(run.predict(X)[member], Linen().apply(hand, X))
