"""How fast are many members trained on a CPU, against a loop over jitted members, plain `vmap`, and PyTorch?

There are two networks: the perceptron for the Ising model (25 – width – 25, full batches of 512, 64 members),
measured in floating-point operations, and the paper's convolutional network for FashionMNIST (batches of 64),
measured in images. Our trainer uses one device per core, which must be arranged before JAX starts, and the others use
JAX and PyTorch as they are. So each way runs in its own process. The ways take turns, and the shortest time of each
counts. First all of them train two members from the same parameters and must agree. PyTorch is left out where it is
not installed. Beside the perceptron the same network without its ReLU and biases is trained: what that takes is nearly
all matrix products, a floor under our time.
"""

import argparse
import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import trainers
from measuring import Found, in_own_process, is_installed, relative_difference, report, time_in_turn, time_run
from trainers import BATCH, EPOCHS, IMAGES, POSITIONS, RATE, SAMPLES, STEPS, data

from ntk_equiv import ensembles

TARGETS = {128: 2.2, 512: 2.2, 2048: 1.8}
MEMBERS, CNN_MEMBERS = 64, 4
FLOOR = "of our time: without ReLU and biases"
ROUNDS, RUNS = 2, 3
CHECKED_STEPS, TOLERANCE = 3, 2e-3


def seconds(run, members: list[int], *, compiles: bool = True) -> list[float]:
    """Return the seconds of the shortest run for each number of members, after a first run to compile."""
    found = []
    for count in members:
        jax.block_until_ready(run(count if compiles else 1))
        found.append(time_in_turn({"way": partial(run, count)}, rounds=RUNS)["way"])
    return found


def ours(width: int | None, members: list[int]) -> dict[str, list[float]]:
    ensembles.use_cores()
    return {"ours": seconds(lambda count: trainers.ours(width, count), members)}


def floor(width: int, members: list[int]) -> dict[str, list[float]]:
    ensembles.use_cores()
    return {FLOOR: seconds(lambda count: trainers.products_alone(width, count), members)}


def loops(width: int | None, members: list[int]) -> dict[str, list[float]]:
    """Time a Python loop over compiled members, and `vmap` over all of them."""
    ways = {"Flax loop": trainers.flax_loop}
    if width is not None:
        ways = {"jitted loop": trainers.jitted_loop, "vmap": trainers.vmapped}
    return {name: seconds(lambda count, way=way: way(width, count), members) for name, way in ways.items()}


def torch(width: int | None, members: list[int]) -> dict[str, list[float]]:
    import torch_trainers

    x, y = data(width)
    if width is None:
        run = lambda count: torch_trainers.convolutional(x, y, count, EPOCHS, BATCH, trainers.ADAM_RATE)  # noqa: E731
    else:
        run = lambda count: torch_trainers.perceptrons(x, y, width, count, STEPS[width], RATE)  # noqa: E731
    return {"PyTorch loop": seconds(run, members, compiles=False)}


def difference(width: int | None, _members: list[int]) -> float:
    """Return how much the outputs differ after a few steps from the same parameters."""
    x, y = (part[:BATCH] for part in data(width))
    run = trainers.train(width, (x, y), 2, steps=CHECKED_STEPS)
    begin = {"params": ensembles.untrained(trainers.network(width), x, members=2, key=jax.random.key(0)).params}
    own, others = run.predict(x), []
    for member in range(2):
        params = jax.tree.map(lambda leaf, member=member: jnp.asarray(np.asarray(leaf)[member]), begin)
        found = [_perceptrons, _convolutional][width is None](width, params, x, y)
        others.append(max(relative_difference(outputs, own[member]) for outputs in found))
    return max(others)


def _perceptrons(width: int, params, x, y) -> list:
    apply = trainers.network(width).apply
    outputs = [apply(trainers.descend(width, params, x, y, CHECKED_STEPS), x)]
    if is_installed("torch"):
        import torch_trainers
        from torch import tensor

        leaves, tree = jax.tree.flatten(params)
        weights = torch_trainers.perceptron(tensor(x), tensor(y), [*map(np.array, leaves)], CHECKED_STEPS, RATE)
        outputs.append(apply(jax.tree.unflatten(tree, weights), x))
    return outputs


def _convolutional(_width: None, params, x, y) -> list:
    state = params, trainers.ADAM.init(params)
    for _ in range(CHECKED_STEPS):
        state = trainers.flax_step(state, x, y)
    outputs = [trainers.FlaxCNN().apply(state[0], x)]
    if is_installed("torch"):
        import torch_trainers
        from torch import tensor

        net, pictures = torch_trainers.cnn(params["params"]), tensor(x).movedim(-1, 1)
        batches = [range(len(x))] * CHECKED_STEPS
        torch_trainers.train_cnn(net, pictures, tensor(y).long(), batches, trainers.ADAM_RATE)
        outputs.append(net(pictures).detach().numpy())
    return outputs


def peak(_width: int | None, _members: list[int]) -> float:
    """Return the floating-point operations per second in a product of large matrices."""
    side = 2048
    A, product = jnp.ones((side, side), jnp.float32), jax.jit(jnp.matmul)
    jax.block_until_ready(product(A, A))
    return 2 * side**3 / min(time_run(lambda: product(A, A))[0] for _ in range(10))


WAYS = {"ours": ours, "floor": floor, "loops": loops, "torch": torch, "difference": difference, "peak": peak}


def shortest_times(width: int | None, members: list[int], ways: list[str]) -> dict[str, list[float]]:
    """Return the shortest time of each way for each number of members. Ways take turns, each in its own process."""
    found: dict[str, list[float]] = {}
    for way in ways * ROUNDS:
        for name, values in run_way(way, width, members).items():
            found[name] = [*map(min, values, found.get(name, values))]
    return found


def run_way(way: str, width: int | None, members: list[int]):
    """Run one of `WAYS` in its own process."""
    problem = [] if width is None else ["--width", width]
    return in_own_process(__file__, "--way", way, *problem, "--members", *members)


def check_agreement(width: int | None) -> float:
    """Return the difference of the answers, and fail if it is more than rounding."""
    found = run_way("difference", width, [2])
    if not found <= TOLERANCE:
        raise AssertionError(f"the ways of training differ by {found:.2g}")
    return found


def compare(width: int | None) -> None:
    members = CNN_MEMBERS if width is None else MEMBERS
    difference = check_agreement(width)
    ways = ["ours", "loops", *(["torch"] if is_installed("torch") else []), *([] if width is None else ["floor"])]
    times = {name: values[0] for name, values in shortest_times(width, [members], ways).items()}
    found = Found(times.pop("ours"), times, difference)
    if width is None:
        rate = IMAGES * members * EPOCHS / found.ours
        report(f"paper's CNN, {members} members", target=3.5, peer="Flax loop", found=found, images_per_second=rate)
        return
    # Two products forward and three backward, because the inputs need no gradient.
    operations = 5 * 2 * SAMPLES * POSITIONS * width * STEPS[width] * members
    more = {"gflops": operations / found.ours / 1e9, "peak_gflops": run_way("peak", None, [1]) / 1e9}
    question = f"Ising perceptron, width {width}, {members} members"
    report(question, target=TARGETS[width], peer="jitted loop", found=found, **more)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--way", choices=WAYS, help="measure one way only, and print what it finds as JSON")
    parser.add_argument("--width", type=int, help="of the perceptron; the convolutional network if not given")
    parser.add_argument("--members", type=int, nargs="+")
    arguments = parser.parse_args()
    if arguments.way:
        print(json.dumps(WAYS[arguments.way](arguments.width, arguments.members)))
    else:
        for width in (*TARGETS, None):
            compare(width)
