"""The predicted equivariance error against wide networks, each trained by gradient descent of its own parameters.

Members deviate as predicted, and ensembles √M times less: the paper's Figure 1. A network of width w follows the theory
up to O(1/w); the allowance is stated beside the standard error of the draw.
"""

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv import InfiniteEnsemble, augment, bounds, filters, groups, reps, stax

WIDTH, MEMBERS, STEPS, RATE = 512, 1024, 8, 0.05
WIDTH_ALLOWANCE = 20 / WIDTH


def test_trained_networks_deviate_as_predicted(key):
    init_fn, apply_fn, kernel_fn = stax.serial(stax.Dense(WIDTH, 1.4, 0.2), stax.Relu(), stax.Dense(1, 1.2))
    turn = reps.matrix(groups.SO2.finite(3))
    train = augment(jnp.array([[1.0, 0.3]], jnp.float32), jnp.array([[1.5]], jnp.float32), turn)
    x_test = jnp.array([[0.5, -0.8]], jnp.float32)
    x_train, labels, orbit = train.x, train.y, turn.orbit(x_test)[:, 0]

    def loss(params):
        return 0.5 * jnp.sum((apply_fn(params, x_train) - labels) ** 2)

    def outcome(key):
        def step(params, _):
            return jax.tree.map(lambda p, g: p - RATE * g, params, jax.grad(loss)(params)), None

        return apply_fn(jax.lax.scan(step, init_fn(key, x_train.shape)[1], length=STEPS)[0], orbit)[:, 0]

    outputs = np.asarray(jax.lax.map(outcome, jax.random.split(key, MEMBERS), batch_size=64), dtype=float)
    ens = InfiniteEnsemble(kernel_fn, train, filters.gradient_descent(RATE), method="dense")
    law = bounds.orbit_deviation(ens, x_test, STEPS)
    for members in (1, 16):
        ensembles = outputs.reshape(-1, members, 3).mean(axis=1)
        spread = ensembles.std(axis=1)
        error = 5 * spread.std() / len(spread) ** 0.5
        expected = law.expected(members)[0]
        assert abs(spread.mean() - expected) <= error + WIDTH_ALLOWANCE * expected
        deviation = np.abs(ensembles - ensembles[:, :1]).max(axis=1)
        quantile = law.quantile(members, 0.3)
        frequency, error = np.mean(deviation > quantile.value[0]), 5 * (0.3 * 0.7 / len(deviation)) ** 0.5
        assert abs(frequency - 0.3) <= error + WIDTH_ALLOWANCE
