"""How fast are members with batch normalisation trained on a CPU, against a loop over members in PyTorch and in Flax?

The network is the paper's for FashionMNIST with batch normalisation after each convolution, with the layers of this
library, or with Flax's own for `--layers flax`; four members, batches of 64 images, Adam. Our trainer uses one device
per core, which must be arranged before JAX starts, and the others use JAX and PyTorch as they are. So each way runs in
its own process. The ways take turns, and the shortest time of each counts. First all of them take a step from the same
parameters on the same batch, and must agree on outputs in evaluation, which rest on the running statistics. (The
running variance of PyTorch is larger by n / (n − 1) with n = 64 · 26 · 26, which is less than the tolerance.) PyTorch
is left out where it is not installed.
"""

import argparse
import json
from functools import lru_cache, partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from measuring import Found, in_own_process, is_installed, relative_difference, report, time_in_turn
from trainers import ADAM, ADAM_RATE, BATCH, EPOCHS, IMAGES, data

from ntk_equiv import ensembles

MEMBERS, ROUNDS, RUNS = 4, 2, 3
# The gradient of a bias before a normalisation is rounding alone, which Adam turns into a whole step in any direction.
# In evaluation it shows until the running mean has followed. So one step is compared.
CHECKED_STEPS, TOLERANCE = 1, 2e-3
SEED = 0


class FlaxCNN(nn.Module):
    """The network, made of Flax's own layers, with the names of the layers of ours."""

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        """Return the logits."""
        for number, channels in enumerate((6, 16)):
            x = nn.Conv(channels, (3, 3), padding="VALID", name=f"Conv_{number}")(x)
            x = nn.BatchNorm(use_running_average=not train, momentum=0.9, name=f"BatchNorm_{number}")(x)
            x = nn.max_pool(nn.relu(x), (2, 2), (2, 2))
        x = x.reshape(len(x), -1)
        for width in (120, 84):
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(10)(x)


@lru_cache
def network(layers: str) -> nn.Module:
    """Return the network with layers of this library, or of Flax."""
    return ensembles.fashion_cnn(batch_norm=True) if layers == "ours" else FlaxCNN()


def train(layers: str, batch: tuple, members: int, **settings) -> ensembles.Run:
    """Train with this library."""
    chosen = {"members": members, "key": jax.random.key(SEED), "loss": "cross_entropy", "optimizer": ADAM}
    return ensembles.train(network(layers), batch, **chosen, **settings)


def ours(layers: str) -> float:
    ensembles.use_cores()
    run = lambda members: train(layers, data(None), members, epochs=EPOCHS, batch_size=BATCH).params  # noqa: E731
    return seconds(run)


@jax.jit
def flax_init(key):
    variables = FlaxCNN().init(key, jnp.ones((1, 28, 28, 1)))
    return variables, ADAM.init(variables["params"])


@jax.jit
def flax_step(state: tuple, x, y) -> tuple:
    """Return variables and moments after one step."""
    variables, moments = state

    def loss(params):
        given = {**variables, "params": params}
        logits, after = FlaxCNN().apply(given, x, train=True, mutable=["batch_stats"])
        return jnp.mean(-jnp.take_along_axis(nn.log_softmax(logits), y[:, None], 1)), after

    gradient, after = jax.grad(loss, has_aux=True)(variables["params"])
    updates, moments = ADAM.update(gradient, moments)
    params = jax.tree.map(jnp.add, variables["params"], updates)
    return {"params": params, **after}, moments


def flax(_layers: str) -> float:
    """Time a loop over members and steps, each of which is compiled."""

    def run(members: int):
        x, y = map(jnp.asarray, data(None))
        found = []
        for key in jax.random.split(jax.random.key(SEED), members):
            state = flax_init(key)
            for epoch in range(EPOCHS):
                order = jax.random.permutation(jax.random.fold_in(key, epoch), IMAGES)
                for start in range(0, IMAGES, BATCH):
                    chosen = order[start : start + BATCH]
                    state = flax_step(state, x[chosen], y[chosen])
            found.append(state)
        return found

    return seconds(run)


def torch(_layers: str) -> float:
    import torch_trainers

    x, y = data(None)
    return seconds(
        lambda members: torch_trainers.convolutional(x, y, members, EPOCHS, BATCH, ADAM_RATE, batch_norm=True)
    )


def seconds(run) -> float:
    """Return the seconds of the shortest run, after a first one to compile."""
    jax.block_until_ready(run(MEMBERS))
    return time_in_turn({"way": partial(run, MEMBERS)}, rounds=RUNS)["way"]


def difference(layers: str) -> float:
    """Return how much outputs in evaluation differ after a step from the same variables."""
    x, y = (part[:BATCH] for part in data(None))
    run = train(layers, (x, y), 2, steps=CHECKED_STEPS)
    begin, own = ensembles.untrained(network(layers), x, members=2, key=jax.random.key(SEED)), run.predict(x)
    found = []
    for member in range(2):
        variables = begin.member(member)
        state = variables, ADAM.init(variables["params"])
        for _ in range(CHECKED_STEPS):
            state = flax_step(state, x, y)
        found.append(relative_difference(FlaxCNN().apply(state[0], x), own[member]))
        if is_installed("torch"):
            import torch_trainers
            from torch import tensor

            net, pictures = torch_trainers.cnn(variables["params"], batch_norm=True), tensor(x).movedim(-1, 1)
            batches = [range(len(x))] * CHECKED_STEPS
            torch_trainers.train_cnn(net, pictures, tensor(y).long(), batches, ADAM_RATE)
            found.append(relative_difference(net.eval()(pictures).detach().numpy(), own[member]))
    return max(found)


WAYS = {"ours": ours, "Flax loop": flax, "PyTorch loop": torch, "difference": difference}


def run_way(way: str, layers: str):
    """Run one of `WAYS` in its own process."""
    return in_own_process(__file__, "--way", way, "--layers", layers)


def compare(layers: str) -> None:
    """Check that all ways agree, then report their times."""
    found = run_way("difference", layers)
    if not found <= TOLERANCE:
        raise AssertionError(f"the ways of training differ by {found:.2g}")
    ways = ["ours", "Flax loop", *(["PyTorch loop"] if is_installed("torch") else [])]
    times = {way: min(values) for way, values in zip(ways, zip(*_rounds(ways, layers), strict=True), strict=True)}
    mine = times.pop("ours")
    peer = "PyTorch loop" if "PyTorch loop" in times else "Flax loop"
    rate, named = IMAGES * MEMBERS * EPOCHS / mine, "our" if layers == "ours" else "Flax's"
    question = f"CNN with batch normalisation, {named} layers, {MEMBERS} members"
    report(question, target=1.2, peer=peer, found=Found(mine, times, found), images_per_second=rate)


def _rounds(ways: list[str], layers: str) -> list[list[float]]:
    return [[run_way(way, layers) for way in ways] for _ in range(ROUNDS)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--way", choices=WAYS, help="measure one way only, and print what it finds as JSON")
    parser.add_argument("--layers", choices=("ours", "flax"), default="ours")
    arguments = parser.parse_args()
    if arguments.way:
        print(json.dumps(float(np.asarray(WAYS[arguments.way](arguments.layers)))))
    else:
        compare(arguments.layers)
