"""How fast are many members trained on a CPU, against a loop over jitted members, plain `vmap`, and PyTorch?

Two networks: the perceptron for the Ising model (25 – width – 25, full batches of 512, 64 members), measured in
floating-point operations, and the paper's convolutional network for FashionMNIST (batches of 64), measured in images.
Ours uses one device per core, which has to be arranged before JAX starts, and the others JAX and PyTorch as they come:
so each is measured in a process of its own, in turn, and the shortest time of each counts. PyTorch is left out where it
is not installed.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import time

import numpy as np

WIDTHS, MEMBERS, POINTS, SITES = (128, 512, 2048), 64, 512, 25
IMAGES, BATCH, CNN_MEMBERS, EPOCHS = 1024, 64, 4, 4
ROUNDS = 2
STEPS = {128: 40, 512: 12, 2048: 4}


def data(width: int | None):
    rng = np.random.default_rng(0)
    if width is None:
        return rng.normal(size=(IMAGES, 28, 28, 1)).astype("float32"), rng.integers(0, 10, IMAGES).astype("int32")
    x = rng.choice([-1.0, 1.0], size=(POINTS, SITES)).astype("float32")
    return x, np.roll(x, 1, axis=1) * x


def seconds(run) -> float:
    """Of one run, after one that compiles."""
    run()
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def ours(width: int | None) -> dict[str, float]:
    from ntk_equiv import ensembles

    ensembles.use_cores()
    import jax
    import optax

    x, y = data(width)
    key = jax.random.key(0)
    if width is None:
        adam, net = optax.adam(1e-3), ensembles.fashion_cnn()
        settings = {"members": CNN_MEMBERS, "epochs": EPOCHS, "batch_size": BATCH, "loss": "cross_entropy"}
        return {"ours": seconds(lambda: ensembles.train(net, (x, y), optimizer=adam, key=key, **settings).params)}
    sgd, net = optax.sgd(0.5), ensembles.mlp((width,), SITES)
    settings = {"members": MEMBERS, "steps": STEPS[width]}
    return {"ours": seconds(lambda: ensembles.train(net, (x, y), optimizer=sgd, key=key, **settings).params)}


def loops(width: int | None) -> dict[str, float]:
    """A Python loop over jitted members, `vmap` over all of them, and what the machine can do at best."""
    import jax
    import jax.numpy as jnp
    import optax

    from ntk_equiv import ensembles

    x, y = map(jnp.asarray, data(width))
    keys = jax.random.split(jax.random.key(0), MEMBERS)
    if width is None:
        return {"Flax loop": seconds(lambda: flax_loop(x, y))}
    sgd, net, steps = optax.sgd(0.5), ensembles.mlp((width,), SITES), STEPS[width]

    def member(key):
        def step(_, params):
            gradient = jax.grad(lambda p: jnp.mean((net.apply(p, x) - y) ** 2) / 2)(params)
            return optax.apply_updates(params, sgd.update(gradient, sgd.init(params))[0])

        return jax.lax.fori_loop(0, steps, step, net.init(key, x[:1]))

    jitted, together = jax.jit(member), jax.jit(jax.vmap(member))
    A = jnp.ones((2048, 2048), jnp.float32)
    product = jax.jit(jnp.matmul)
    peak = min(seconds(lambda: product(A, A).block_until_ready()) for _ in range(5))
    return {
        "jitted loop": seconds(lambda: jax.block_until_ready([jitted(key) for key in keys])),
        "vmap": seconds(lambda: jax.block_until_ready(together(keys))),
        "peak": peak / (2 * 2048**3),
    }


def flax_loop(x, y) -> None:
    """The paper's network from Flax's own layers: a loop over members and steps, each step jitted."""
    import jax
    import jax.numpy as jnp
    import optax

    step, init = _flax_step(optax.adam(1e-3))
    for member in range(CNN_MEMBERS):
        key = jax.random.key(member)
        state = init(key)
        for _ in range(EPOCHS):
            order = jax.random.permutation(key, IMAGES)
            for start in range(0, IMAGES, BATCH):
                state = step(state, x, y, order[start : start + BATCH])
        jnp.asarray(jax.tree.leaves(state)[0]).block_until_ready()


_STEPS: dict = {}


def _flax_step(adam):
    if "flax" in _STEPS:
        return _STEPS["flax"]
    import flax.linen as nn
    import jax
    import jax.numpy as jnp
    import optax

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            for channels in (6, 16):
                x = nn.max_pool(nn.relu(nn.Conv(channels, (3, 3), padding="VALID")(x)), (2, 2), (2, 2))
            x = x.reshape(len(x), -1)
            return nn.Dense(10)(nn.relu(nn.Dense(84)(nn.relu(nn.Dense(120)(x)))))

    net = Net()

    def init(key):
        params = net.init(key, jnp.ones((1, 28, 28, 1)))
        return params, adam.init(params)

    def step(state, x, y, chosen):
        params, moments = state
        loss = lambda p: optax.softmax_cross_entropy_with_integer_labels(net.apply(p, x[chosen]), y[chosen]).mean()  # noqa: E731
        updates, moments = adam.update(jax.grad(loss)(params), moments)
        return optax.apply_updates(params, updates), moments

    _STEPS["flax"] = jax.jit(step), jax.jit(init)
    return _STEPS["flax"]


def torch(width: int | None) -> dict[str, float]:
    import torch
    from torch import nn

    x, y = data(width)
    x, y = torch.tensor(x), torch.tensor(y)

    def perceptrons() -> None:
        for _ in range(MEMBERS):
            net = nn.Sequential(nn.Linear(SITES, width, bias=False), nn.ReLU(), nn.Linear(width, SITES, bias=False))
            optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
            for _ in range(STEPS[width]):
                optimizer.zero_grad()
                (nn.functional.mse_loss(net(x), y) / 2).backward()
                optimizer.step()

    def convolutional() -> None:
        pictures, labels = x.movedim(-1, 1).contiguous(), y.long()
        for _ in range(CNN_MEMBERS):
            convs = [nn.Conv2d(1, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 3), nn.ReLU(), nn.MaxPool2d(2)]
            dense = [nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)]
            net = nn.Sequential(*convs, *dense)
            optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
            shuffled = torch.cat([torch.randperm(IMAGES) for _ in range(EPOCHS)])
            for start in range(0, EPOCHS * IMAGES, BATCH):
                chosen = shuffled[start : start + BATCH]
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(pictures[chosen]), labels[chosen]).backward()
                optimizer.step()

    return {"PyTorch loop": seconds(convolutional if width is None else perceptrons)}


WAYS = {"ours": ours, "loops": loops, "torch": torch}


def measured(width: int | None) -> dict[str, float]:
    """The shortest time of each way, each in its own process, in turn."""
    found: dict[str, float] = {}
    ways = [way for way in WAYS if way != "torch" or importlib.util.find_spec("torch")]
    for way in ways * ROUNDS:
        command = [sys.executable, __file__, "--way", way, *([] if width is None else ["--width", str(width)])]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        for name, value in json.loads(done.stdout.splitlines()[-1]).items():
            found[name] = min(value, found.get(name, value))
    return found


def compare(width: int | None) -> None:
    from measuring import report

    found = measured(width)
    mine = found.pop("ours")
    if width is None:
        rate = IMAGES * CNN_MEMBERS * EPOCHS / mine
        print(f"{'':4s}{rate:,.0f} images a second; aims: 3x the loop of Flax, 1.4x that of PyTorch")
        report("paper's CNN, batches of 64", target=3, peer="Flax loop", ours=mine, theirs=found, images=rate)
        return
    # Two products forward, three backward: the inputs need no gradient.
    operations = 5 * 2 * POINTS * SITES * width * STEPS[width] * MEMBERS
    peak = 1 / found.pop("peak")
    fraction = operations / mine / peak
    print(f"{'':4s}{operations / mine / 1e9:.0f} GFLOP/s of {peak / 1e9:.0f}; aims: 2x the loops, 2.5x vmap")
    question = f"Ising MLP, width {width}, {MEMBERS} members"
    report(question, target=2, peer="jitted loop", ours=mine, theirs=found, of_peak=fraction)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--way", choices=WAYS, help="measure one way only, and print its seconds as JSON")
    parser.add_argument("--width", type=int, help="of the perceptron; the convolutional network if not given")
    arguments = parser.parse_args()
    if arguments.way:
        print(json.dumps(WAYS[arguments.way](arguments.width)))
    else:
        for width in (*WIDTHS, None):
            compare(width)
