"""The same training in several ways: ours, a loop over members, and `vmap` over all of them.

There are two problems: the perceptron for the Ising model (25 – width – 25, full batches, gradient descent) and the
paper's convolutional network for FashionMNIST (batches of 64, Adam). The argument `width` is the width of the
perceptron, or None for the convolutional network. Every way is a function of the number of members. Its time includes
drawing the initial parameters.
"""

from functools import lru_cache, partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from ntk_equiv import ensembles

SAMPLES, POSITIONS, RATE = 512, 25, 0.5
IMAGES, BATCH, EPOCHS, ADAM_RATE = 1024, 64, 4, 1e-3
STEPS = {128: 40, 512: 12, 2048: 4}
# The trainer reuses a compiled program only for the same optimizer object.
SGD, ADAM = optax.sgd(RATE), optax.adam(ADAM_RATE)


def data(width: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the inputs and labels of a problem."""
    rng = np.random.default_rng(0)
    if width is None:
        return rng.normal(size=(IMAGES, 28, 28, 1)).astype("float32"), rng.integers(0, 10, IMAGES).astype("int32")
    x = rng.choice([-1.0, 1.0], size=(SAMPLES, POSITIONS)).astype("float32")
    return x, np.roll(x, 1, axis=1) * x


@lru_cache
def network(width: int | None) -> nn.Module:
    """Return our network for a problem."""
    return ensembles.fashion_cnn() if width is None else ensembles.mlp((width,), POSITIONS)


def ours(width: int | None, members: int):
    """Train with this library and return the parameters of all members."""
    return train(width, data(width), members).params


def train(width: int | None, batch: tuple, members: int, **settings) -> ensembles.Run:
    """Train with this library. `settings` may ask for a number of steps instead of the epochs of the problem."""
    key = jax.random.key(0)
    if width is None:
        settings = settings or {"epochs": EPOCHS, "batch_size": BATCH}
        settings |= {"loss": "cross_entropy", "optimizer": ADAM}
    else:
        settings = {"steps": STEPS[width], "optimizer": SGD} | settings
    return ensembles.train(network(width), batch, members=members, key=key, **settings)


def products_alone(width: int, members: int):
    """Train perceptrons without ReLU and biases, whose steps consist of hardly more than matrix products."""
    settings = {"key": jax.random.key(0), "steps": STEPS[width], "optimizer": SGD}
    return ensembles.train(_linear_network(width), data(width), members=members, **settings).params


@lru_cache
def _linear_network(width: int) -> nn.Module:
    return nn.Sequential([nn.Dense(width, use_bias=False), nn.Dense(POSITIONS, use_bias=False)])


def jitted_loop(width: int, members: int):
    """Train in a Python loop over members. The training of one member is one compiled program."""
    return [_member_program(width)(key) for key in jax.random.split(jax.random.key(0), members)]


def vmapped(width: int, members: int):
    """Train all members in one compiled program."""
    return _vmapped_program(width)(jax.random.split(jax.random.key(0), members))


@lru_cache
def _member_program(width: int):
    x, y = map(jnp.asarray, data(width))
    return jax.jit(lambda key: descend(width, network(width).init(key, x[:1]), x, y, STEPS[width]))


@lru_cache
def _vmapped_program(width: int):
    return jax.jit(jax.vmap(_member_program(width)))


@partial(jax.jit, static_argnames=("width", "steps"))
def descend(width: int, params, x, y, steps: int):
    """Return the parameters of a perceptron after some steps of gradient descent."""
    net = network(width)

    def step(_, params):
        gradient = jax.grad(lambda p: jnp.mean((net.apply(p, x) - y) ** 2) / 2)(params)
        return optax.apply_updates(params, SGD.update(gradient, SGD.init(params))[0])

    return jax.lax.fori_loop(0, steps, step, params)


class FlaxCNN(nn.Module):
    """The paper's network, made of Flax's own layers."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the logits."""
        for channels in (6, 16):
            x = nn.max_pool(nn.relu(nn.Conv(channels, (3, 3), padding="VALID")(x)), (2, 2), (2, 2))
        x = x.reshape(len(x), -1)
        for width in (120, 84):
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(10)(x)


def flax_loop(_width: None, members: int):
    """Train in a loop over members and steps. Each step is compiled."""
    x, y = map(jnp.asarray, data(None))
    found = []
    for key in jax.random.split(jax.random.key(0), members):
        state = _flax_init(key)
        for epoch in range(EPOCHS):
            order = jax.random.permutation(jax.random.fold_in(key, epoch), IMAGES)
            for start in range(0, IMAGES, BATCH):
                chosen = order[start : start + BATCH]
                state = flax_step(state, x[chosen], y[chosen])
        found.append(state)
    return found


@jax.jit
def _flax_init(key):
    params = FlaxCNN().init(key, jnp.ones((1, 28, 28, 1)))
    return params, ADAM.init(params)


@jax.jit
def flax_step(state: tuple, x, y) -> tuple:
    """Return parameters and moments after one step."""
    params, moments = state

    def loss(params):
        return optax.softmax_cross_entropy_with_integer_labels(FlaxCNN().apply(params, x), y).mean()

    updates, moments = ADAM.update(jax.grad(loss)(params), moments)
    return optax.apply_updates(params, updates), moments
