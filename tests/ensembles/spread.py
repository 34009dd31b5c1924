"""A small run on several devices or processes, whose results are written to a file: a program for the tests.

python -m tests.ensembles.spread result.npz --devices 4
python -m tests.ensembles.spread result.npz --process 0 --address localhost:1234    (and --process 1 at the same time)
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ntk_equiv import augment, ensembles, groups, reps

MEMBERS = 6


def init(key, x):
    return jax.random.uniform(key, (x.shape[-1], 8)), jax.random.uniform(key, (8, 1))


def apply(params, x):
    return jnp.tanh(x @ params[0]) @ params[1]


def convolved(filters, x):
    signal = jax.lax.conv_general_dilated(x, filters, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jnp.tanh(signal).sum((1, 2, 3))[:, None]


def results(checkpoint=None, **settings):
    """Parameters, predictions, records and losses of a run, with checkpoints if there is a folder for them."""
    x = np.random.default_rng(0).normal(size=(5, 2))
    run = ensembles.train(
        (init, apply),
        augment(x, x[:, :1], reps.matrix(groups.SO2.finite(4))),
        members=MEMBERS,
        steps=12,
        batch_size=6,
        optimizer=optax.sgd(0.1),
        key=jax.random.key(0),
        record={"x": x},
        record_at=[0, 5],
        checkpoint=checkpoint,
        **settings,
    )
    # A network that is trained step by step on CPUs, since it has a convolution of XLA.
    images = np.random.default_rng(1).normal(size=(5, 3, 3, 1))
    convolving = ensembles.train(
        (lambda key, x: jax.random.uniform(key, (2, 2, 1, 2), x.dtype), convolved),
        (images, images[:, 0, 0]),
        members=MEMBERS - 1,
        steps=12,
        batch_size=2,
        optimizer=optax.sgd(0.1),
        key=jax.random.key(0),
    )
    assert convolving.layout.stepwise
    found = {"images": convolving.predict(images), "filters": convolving.params}
    found |= {"first": run.params[0], "second": run.params[1], "predictions": run.predict(x), "losses": run.curve[1]}
    return found | {"records": run.records["x"], "layout": repr(run.layout)}


def main(arguments):
    jax.config.update("jax_enable_x64", True)
    if arguments.address:
        jax.distributed.initialize(arguments.address, num_processes=2, process_id=arguments.process)
    else:
        ensembles.use_cores(arguments.devices)
    found = results(arguments.checkpoint, resume=arguments.checkpoint is not None)
    if jax.process_index() == 0:
        np.savez(arguments.result, **found)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--process", type=int)
    parser.add_argument("--address")
    parser.add_argument("--checkpoint")
    main(parser.parse_args())
