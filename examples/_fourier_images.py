"""Images of low frequencies of which an ensemble is sure: inputs on which it does not always say the same.

    x(a, b) = Σ_ij z_ij β_i(a) β_j(b)      β = 1, √2 cos(2πka/H), √2 sin(2πka/H)      k = 1, …, (frequencies − 1)/2

for each channel. These are the real images whose Fourier transform vanishes beyond the lowest frequencies, 5 × 5 of
them in the paper: −2, …, 2 in either direction. The β are orthonormal under the mean over pixels, so the mean square of
an image is Σ z² / channels. They are smooth, and survive interpolation.

The coefficients z are moved by Adam until the ensemble has the confidence p that is wanted in a given class,

    p(x) = softmax of (1/M) Σ_m f_m(x),

its mean being that of the logits, as in the theory. An image that has it stays as it is; one that never gets there
stays as it is after the last step, and is counted.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P


def waves(side, frequencies=5):
    """The functions β on a grid of so many pixels, [side, frequencies]."""
    if frequencies % 2 == 0 or frequencies > side:
        raise ValueError(f"frequencies must be odd and at most the {side} pixels of a side, got {frequencies}")
    angles = 2 * np.pi * np.outer(np.arange(side), np.arange(1, frequencies // 2 + 1)) / side
    return np.concatenate([np.ones((side, 1)), 2**0.5 * np.cos(angles), 2**0.5 * np.sin(angles)], axis=1)


def images_of(coefficients, side):
    """Images [n, side, side, channels] with coefficients [n, frequencies, frequencies, channels]."""
    beta = jnp.asarray(waves(side, coefficients.shape[1]), coefficients.dtype)
    return jnp.einsum("ai,nijc,bj->nabc", beta, coefficients, beta)


def normalized_coefficients(key, count, channels, frequencies=5):
    """The coefficients of random images, each with mean 0 and mean square 1 over all its pixels and channels."""
    z = jax.random.normal(key, (count, frequencies, frequencies, channels))
    z = z.at[:, 0, 0].add(-jnp.mean(z[:, 0, 0], axis=-1, keepdims=True))
    return z * jnp.sqrt(channels / jnp.sum(z**2, axis=(1, 2, 3), keepdims=True))


def mean_logits(model, params, x):
    """The mean over members of their outputs, one member after the other, [n, classes]."""
    # What the gradient needs is computed again for each member, rather than kept for all of them.
    member = jax.checkpoint(model.apply)

    def add(total, one):
        return total + member(one, x), None

    outputs = jax.eval_shape(model.apply, jax.tree.map(lambda leaf: leaf[0], params), x)
    total, _ = jax.lax.scan(add, jnp.zeros(outputs.shape, outputs.dtype), params)
    return total / len(jax.tree.leaves(params)[0])


def confident_images(run, classes, key, /, *, side, channels, confidence, rate, steps, batch):
    """Images of which an ensemble is sure that they are of the given classes.

    Args:
        run: the ensemble.
        classes: what the images are to be taken for, [n].
        key: for the images to begin with.
        side: pixels of a side.
        channels: of the images.
        confidence: the probability that is wanted, below 1.
        rate: of Adam, on the coefficients.
        steps: after which it is given up.
        batch: images at a time on each device.

    Returns:
        `coefficients` [n, 5, 5, channels], `classes`, `confidence` and `steps` taken [n], and whether the confidence
        was `reached`.
    """
    classes, devices = np.asarray(classes, np.int32), jax.devices()
    n = len(classes)
    # Images do not know of each other: each device takes its share, in batches that are filled up with copies.
    per_device = -(-n // (len(devices) * batch)) * batch
    chosen = np.arange(per_device * len(devices)) % n
    z = normalized_coefficients(key, n, channels)[chosen]
    settings = (side, float(np.log(confidence)), rate, steps, batch)
    found = _moved(run.model, Mesh(np.array(devices), ("images",)), settings, run.params, z, classes[chosen])
    z, log_p, taken = (np.asarray(part)[:n] for part in found)
    reached = log_p >= settings[1]
    return {
        "coefficients": z,
        "classes": classes,
        "confidence": np.exp(log_p),
        "steps": np.where(reached, taken, steps),
        "reached": reached,
    }


@partial(jax.jit, static_argnames=("model", "mesh", "settings"))
def _moved(model, mesh, settings, params, z, classes):
    *_, batch = settings

    def local(params, z, classes):
        parts = z.reshape(-1, batch, *z.shape[1:]), classes.reshape(-1, batch)
        found = jax.lax.map(lambda part: _moved_batch(model, settings, params, *part), parts)
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), found)

    split = P("images")
    return jax.shard_map(local, mesh=mesh, in_specs=(P(), split, split), out_specs=split, check_vma=False)(
        params, z, classes
    )


def _moved_batch(model, settings, params, z, classes):
    """Coefficients, the logarithm of the confidence and the steps taken, of images that are moved together."""
    side, wanted, rate, steps, _ = settings
    adam = optax.adam(rate)

    def loss(z):
        log_p = jax.nn.log_softmax(mean_logits(model, params, images_of(z, side)))
        log_p = jnp.take_along_axis(log_p, classes[:, None], axis=1)[:, 0]
        return -jnp.sum(log_p), log_p

    def going_on(carry):
        _, _, log_p, _, step = carry
        return (step <= steps) & jnp.any(log_p < wanted)

    def moved(carry):
        z, state, _, taken, step = carry
        (_, log_p), gradient = jax.value_and_grad(loss, has_aux=True)(z)
        updates, state = adam.update(gradient, state, z)
        # Looked at once more after the last step, without another.
        moving = (log_p < wanted) & (step < steps)
        z = jnp.where(moving[:, None, None, None], z + updates, z)
        return z, state, log_p, taken + moving, step + 1

    nowhere = jnp.full(len(z), -jnp.inf, z.dtype)
    start = (z, adam.init(z), nowhere, jnp.zeros(len(z), jnp.int32), 0)
    z, _, log_p, taken, _ = jax.lax.while_loop(going_on, moved, start)
    return z, log_p, taken


def turning_loss(x, rep, element, /):
    """How much a turn and then the turn back change images, relative to their root mean square: [n].

    Within the disc that no turn moves out of the image: what turns cut off is not counted, what interpolation
    smooths is.
    """
    back = int(np.asarray(rep.group.inverse)[element])
    there = rep(element, x)
    side = x.shape[1]
    axis = np.arange(side) - (side - 1) / 2
    # A pixel less, because the values at its rim are interpolated with what lies outside.
    inside = jnp.asarray(np.hypot(*np.meshgrid(axis, axis)) <= side / 2 - 2)[None, :, :, None]
    change = jnp.where(inside, rep(back, there) - x, 0)
    return jnp.sqrt(jnp.sum(change**2, (1, 2, 3)) / jnp.sum(jnp.where(inside, x, 0) ** 2, (1, 2, 3)))
