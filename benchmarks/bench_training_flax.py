"""How fast are networks of Flax's own layers trained on a CPU, against a loop over jitted steps?

There are three kinds of convolutional networks, with max-pools and padding, with max-pools and no padding, and with
strides instead of pools. They are Linen modules, and one is also an NNX module. Batches have 64 images of 28 × 28
pixels, the optimizer is Adam, and there is one member. Both ways start from the same parameters, see the same
batches, and must agree on the outputs after some steps. Only the steps are timed: the difference between a long run
and a short one.
"""

from collections.abc import Callable
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from measuring import Found, relative_difference, report, time_in_turn

from ntk_equiv import ensembles

BATCH, SHORT, LONG, ROUNDS, TOLERANCE = 64, 2, 42, 6, 2e-3
ADAM = optax.adam(1e-3)


class Linen(nn.Module):
    """Two convolutions, each with a max-pool or a stride, and two dense layers."""

    padding: str
    strided: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """The logits."""
        for channels in (32, 64):
            x = nn.relu(nn.Conv(channels, (3, 3), 2 if self.strided else 1, self.padding)(x))
            x = x if self.strided else nn.max_pool(x, (2, 2), (2, 2), self.padding)
        return nn.Dense(10)(nn.relu(nn.Dense(64)(x.reshape(len(x), -1))))


class NNX(nnx.Module):
    """The network with strides, as an NNX module."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Conv(1, 32, (3, 3), 2, rngs=rngs)
        self.second = nnx.Conv(32, 64, (3, 3), 2, rngs=rngs)
        self.hidden, self.last = nnx.Linear(7 * 7 * 64, 64, rngs=rngs), nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """The logits."""
        x = nn.relu(self.second(nn.relu(self.first(x))))
        return self.last(nn.relu(self.hidden(x.reshape(len(x), -1))))


NETWORKS = {
    "max-pools, SAME": Linen("SAME"),
    "max-pools, VALID": Linen("VALID"),
    "strides": Linen("SAME", strided=True),
    "strides, NNX": NNX,
    "the paper's, with our layers": ensembles.fashion_cnn(),
}


def data() -> tuple[np.ndarray, np.ndarray]:
    """Return a single batch, so both ways see the same batch in every step."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(BATCH, 28, 28, 1)).astype("float32"), rng.integers(0, 10, BATCH).astype("int32")


def ours(module: object, steps: int) -> ensembles.Run:
    """Train with this library. A batch is as large as the data, which are shuffled in every step."""
    settings = {"batch_size": BATCH, "loss": "cross_entropy", "optimizer": ADAM, "key": jax.random.key(0)}
    return ensembles.train(module, data(), members=1, steps=steps, **settings)


def plain(step: Callable, begin: tuple, steps: int) -> tuple:
    """Train in a loop over jitted steps. Each step takes one batch."""
    x, y = map(jnp.asarray, data())
    state = jax.tree.map(jnp.copy, begin)
    for number in range(steps):
        chosen = np.random.default_rng(number).permutation(BATCH)
        state = step(state, x[chosen], y[chosen])
    return state


def compare(name: str) -> None:
    """Check that both ways agree, then report the seconds of a step."""
    init, apply = ensembles.as_pair(NETWORKS[name])
    x, _ = data()
    key = jax.random.split(jax.random.fold_in(jax.random.key(0), 0))[0]
    begin = jax.jit(init)(key, x[:1])

    @partial(jax.jit, donate_argnums=0)
    def step(state: tuple, x: jax.Array, y: jax.Array) -> tuple:
        params, moments = state
        loss = lambda params: optax.softmax_cross_entropy_with_integer_labels(apply(params, x), y).mean()  # noqa: E731
        updates, moments = ADAM.update(jax.grad(loss)(params), moments, params)
        return optax.apply_updates(params, updates), moments

    loop = partial(plain, step, (begin, ADAM.init(begin)))
    difference = relative_difference(apply(loop(SHORT)[0], x), ours(NETWORKS[name], SHORT).predict(x)[0])
    if not difference <= TOLERANCE:
        raise AssertionError(f"the ways of training differ by {difference:.2g}")
    ways = {"ours": partial(ours, NETWORKS[name]), "jitted loop": loop}
    ready = {f"{way} {steps}": partial(_finish, run, steps) for way, run in ways.items() for steps in (SHORT, LONG)}
    for run in ready.values():
        run()
    spent = time_in_turn(ready, rounds=ROUNDS, enough=0, patience=60.0)
    each = {way: (spent[f"{way} {LONG}"] - spent[f"{way} {SHORT}"]) / (LONG - SHORT) for way in ways}
    found = Found(each.pop("ours"), each, difference)
    report(f"a step of a convolutional network: {name}", target=0.95, peer="jitted loop", found=found)


def _finish(run: Callable, steps: int) -> None:
    found = run(steps)
    jax.block_until_ready(found.params if isinstance(found, ensembles.Run) else found)


if __name__ == "__main__":
    for name in NETWORKS:
        compare(name)
