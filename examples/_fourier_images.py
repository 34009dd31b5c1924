"""Images of low frequencies that an ensemble is sure of, so that its predictions differ from image to image.

    x(a, b) = Σ_ij z_ij β_i(a) β_j(b)      β = 1, √2 cos(2πka/H), √2 sin(2πka/H)      k = 1, …, (frequencies − 1)/2

for each channel. These are the real images whose Fourier transform vanishes beyond the lowest frequencies. The paper
has 5 × 5 of them: −2, …, 2 in both directions. The β are orthonormal under the mean over pixels, so the mean square
of an image is Σ z² / channels. The images are smooth and survive interpolation.

Adam changes the coefficients z until the ensemble has the wanted confidence p in a given class,

    p(x) = softmax of (1/M) Σ_m f_m(x),

where the mean is over logits, as in the theory. An image with this confidence is not changed any more. An image that
never reaches it stays as it is after the last step, and is counted.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P


def waves(side, frequencies=5):
    """Return the functions β on a grid of `side` pixels, [side, frequencies]."""
    if frequencies % 2 == 0 or frequencies > side:
        raise ValueError(f"frequencies must be odd and at most the {side} pixels of a side, got {frequencies}")
    angles = 2 * np.pi * np.outer(np.arange(side), np.arange(1, frequencies // 2 + 1)) / side
    return np.concatenate([np.ones((side, 1)), 2**0.5 * np.cos(angles), 2**0.5 * np.sin(angles)], axis=1)


def images_of(coefficients, side):
    """Return images [n, side, side, channels] from coefficients [n, frequencies, frequencies, channels]."""
    beta = jnp.asarray(waves(side, coefficients.shape[1]), coefficients.dtype)
    return jnp.einsum("ai,nijc,bj->nabc", beta, coefficients, beta)


def normalized_coefficients(key, count, channels, frequencies=5):
    """Return coefficients of random images with mean 0 and mean square 1 over all pixels and channels."""
    z = jax.random.normal(key, (count, frequencies, frequencies, channels))
    z = z.at[:, 0, 0].add(-jnp.mean(z[:, 0, 0], axis=-1, keepdims=True))
    return z * jnp.sqrt(channels / jnp.sum(z**2, axis=(1, 2, 3), keepdims=True))


def mean_logits(model, params, x):
    """Return the mean output over members, [n, classes], computed one member after the other."""
    # Recompute activations for the gradient of each member, instead of keeping those of all members.
    member = jax.checkpoint(model.apply)

    def add(total, one):
        return total + member(one, x), None

    outputs = jax.eval_shape(model.apply, jax.tree.map(lambda leaf: leaf[0], params), x)
    total, _ = jax.lax.scan(add, jnp.zeros(outputs.shape, outputs.dtype), params)
    return total / len(jax.tree.leaves(params)[0])


def confident_images(run, classes, key, /, *, side, channels, confidence, rate, steps, batch):
    """Make images that an ensemble confidently assigns to the given classes.

    Args:
        run: the ensemble.
        classes: the wanted classes of the images, [n].
        key: random key for the initial images.
        side: pixels per side.
        channels: number of channels.
        confidence: the wanted probability, below 1.
        rate: learning rate of Adam on the coefficients.
        steps: the largest number of steps.
        batch: images per device at a time.

    Returns:
        `coefficients` [n, 5, 5, channels], `classes`, `confidence` and `steps` taken [n], and whether the confidence
        was `reached`.
    """
    classes, devices = np.asarray(classes, np.int32), jax.devices()
    n = len(classes)
    # Images are independent: each device takes its share, in batches that are filled up with copies.
    per_device = -(-n // (len(devices) * batch)) * batch
    chosen = np.arange(per_device * len(devices)) % n
    z = normalized_coefficients(key, n, channels)[chosen]
    settings = (side, float(np.log(confidence)), rate, steps, batch)
    found = _move(run.model, Mesh(np.array(devices), ("images",)), settings, run.params, z, classes[chosen])
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
def _move(model, mesh, settings, params, z, classes):
    *_, batch = settings

    def local(params, z, classes):
        parts = z.reshape(-1, batch, *z.shape[1:]), classes.reshape(-1, batch)
        found = jax.lax.map(lambda part: _move_batch(model, settings, params, *part), parts)
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), found)

    split = P("images")
    return jax.shard_map(local, mesh=mesh, in_specs=(P(), split, split), out_specs=split, check_vma=False)(
        params, z, classes
    )


def _move_batch(model, settings, params, z, classes):
    """Return coefficients, log confidence and number of steps for one batch of images."""
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
        # After the last step the confidence is computed once more, without a further step.
        moving = (log_p < wanted) & (step < steps)
        z = jnp.where(moving[:, None, None, None], z + updates, z)
        return z, state, log_p, taken + moving, step + 1

    nowhere = jnp.full(len(z), -jnp.inf, z.dtype)
    start = (z, adam.init(z), nowhere, jnp.zeros(len(z), jnp.int32), 0)
    z, _, log_p, taken, _ = jax.lax.while_loop(going_on, moved, start)
    return z, log_p, taken


def turning_loss(x, rep, element, /):
    """Return how much a turn and the turn back change images, relative to their root mean square, [n].

    Only the disc that stays inside the image under all turns counts. So the loss by interpolation counts, and the
    loss of the corners does not.
    """
    back = int(np.asarray(rep.group.inverse)[element])
    there = rep(element, x)
    side = x.shape[1]
    axis = np.arange(side) - (side - 1) / 2
    # One pixel less, because values at the rim are interpolated with values outside.
    inside = jnp.asarray(np.hypot(*np.meshgrid(axis, axis)) <= side / 2 - 2)[None, :, :, None]
    change = jnp.where(inside, rep(back, there) - x, 0)
    return jnp.sqrt(jnp.sum(change**2, (1, 2, 3)) / jnp.sum(jnp.where(inside, x, 0) ** 2, (1, 2, 3)))
