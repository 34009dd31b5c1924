"""Theory against training: thousands of wide networks, each trained by gradient descent on its own parameters.

A network of width w follows the theory up to O(1/w), for which there is an allowance beside the standard error.
"""

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv import InfiniteEnsemble, augment, filters, groups, reps, stax

WIDTH, MEMBERS, STEPS, RATE = 1024, 2048, 30, 0.05
WIDTH_ALLOWANCE = 20 / WIDTH  # relative to the scale of the prior


def test_trained_networks_have_the_predicted_law(key):
    init_fn, apply_fn, kernel_fn = stax.serial(stax.Dense(WIDTH, 1.4, 0.2), stax.Relu(), stax.Dense(1, 1.2))
    x, y = jnp.array([[1.0, 0.3]], jnp.float32), jnp.array([[1.5]], jnp.float32)
    train = augment(x, y, reps.matrix(groups.SO2.finite(4)))
    x_test = jnp.array([[0.5, -0.8], [1.6, 0.2]], jnp.float32)
    inputs, labels = train.x, train.y

    def loss(params):
        return 0.5 * jnp.sum((apply_fn(params, inputs) - labels) ** 2)

    def outcome(key):
        params = init_fn(key, inputs.shape)[1]

        def step(params, _):
            return jax.tree.map(lambda p, g: p - RATE * g, params, jax.grad(loss)(params)), None

        return apply_fn(jax.lax.scan(step, params, length=STEPS)[0], x_test)[:, 0]

    outputs = np.asarray(jax.lax.map(outcome, jax.random.split(key, MEMBERS), batch_size=64))
    ens = InfiniteEnsemble(kernel_fn, train, filters.gradient_descent(RATE))
    mean, cov = np.asarray(ens.mean(x_test, STEPS))[:, 0], np.asarray(ens.cov(x_test, STEPS))
    prior = float(jnp.max(kernel_fn(x_test, None, "nngp")))
    # Training has to have mattered for the comparison to say something.
    assert np.abs(mean).min() > 0.3
    assert np.diag(cov).max() < 0.5 * prior
    centred = outputs - outputs.mean(axis=0)
    products = centred[:, :, None] * centred[:, None, :]
    for sample, expected, scale in ((outputs, mean, prior**0.5), (products, cov, prior)):
        error = sample.std(axis=0) / MEMBERS**0.5
        assert (np.abs(sample.mean(axis=0) - expected) <= 5 * error + WIDTH_ALLOWANCE * scale).all()
