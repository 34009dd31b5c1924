"""Training on the orbits of C_k, and summaries of predictions on orbits in a few numbers.

From M members, `M // size` disjoint ensembles of each size are formed. They average the logits of their members. At
each of the chosen epochs these numbers are stored:

    osp              the orbit same prediction of ensembles of each size, averaged over them, [sizes]
    error            its standard error over the images, [sizes]
    monte_carlo      the additional error from drawing rotations, [sizes]; 0 where the orbit is complete
    accuracy         over all images of the orbits, [sizes]; NaN where classes are not known
    members          the orbit same prediction of each member, [members]
    member_accuracy  the accuracy of each member, [members]
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _rotated_images import on_orbits, rotate, rotations

from ntk_equiv import augment, groups, metrics

OF_SIZES = ("osp", "error", "monte_carlo", "accuracy")
OF_MEMBERS = ("members", "member_accuracy")


def train_on_orbits(results, name, module, data, settings, /, *, order, members, sizes, sets, so2_sets, epochs):
    """Train members on the orbits of C_k, and summarise their predictions on other orbits.

    Training uses Adam, at its usual rate of 0.001, on the cross-entropy.

    Args:
        results: the folder for checkpoints.
        name: the name of the part.
        module: the network.
        data: the images.
        settings: with `epochs`, `batch_size`, `rotations`, `so2_test` and `seed`.
        order: k.
        members: the number of members.
        sizes: the sizes of ensembles.
        sets: the sets to evaluate on orbits of C_k, by name.
        so2_sets: the sets to evaluate under all rotations, by name.
        epochs: the epochs after which to evaluate; 0 is before training.

    Returns:
        `<set>.osp` and so on for each set, [epochs, ...], `so2-<set>.osp` for all rotations, and `lost`, the number of
        members that are not finite.
    """
    train = augment(data.x, data.y, rotations(order))
    run = results.train(
        name,
        module,
        train,
        members=members,
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        loss="cross_entropy",
        optimizer=optax.adam(1e-3),
        key=jax.random.fold_in(jax.random.key(settings.seed), order),
        record=orbit_records(data, settings, order, sizes, sets, so2_sets),
        record_at=[epoch * -(-train.size // settings.batch_size) for epoch in epochs],
    )
    found = {"lost": len(run.failed)}
    for what, records in run.records.items():
        found |= {f"{what}.{key}": values for key, values in unpack(records, sizes).items()}
    return found


def orbit_records(data, settings, order, sizes, sets, so2_sets):
    """Return what to record: inputs on orbits, and functions that summarise predictions there."""
    on_ck, on_so2 = on_group(order, sizes), on_samples(settings.so2_test, sizes)
    found = {name: (on_orbits(data.tests[name], order), on_ck) for name in sets}
    found["fashion"] = found["fashion"][0], on_group(order, sizes, data.fashion_y)
    # The same rotations for every k make the fractions easier to compare.
    drawn = groups.SO2.sample(jax.random.fold_in(jax.random.key(settings.seed), 2), settings.rotations)
    for name in so2_sets:
        x = data.tests[name][: settings.so2_test]
        found[f"so2-{name}"] = np.concatenate([x, *np.asarray(rotate(x, drawn))]), on_so2
    return found


def on_group(order, sizes, labels=None):
    """Return a function for `record=` that summarises predictions [members, order * n, classes] on whole orbits."""

    def measure(p):
        p = p.reshape(len(p), order, -1, p.shape[-1])
        return summary(metrics.orbit_same_prediction, (p,), sizes, labels)

    return jax.jit(measure)


def on_samples(n, sizes):
    """Return the same for predictions [members, (1 + count) * n, classes] on images and random rotations of them."""

    def measure(p):
        p = p.reshape(len(p), -1, n, p.shape[-1])
        return summary(metrics.continuous_orbit_same_prediction, (p[:, 1:], p[:, 0]), sizes, None)

    return jax.jit(measure)


def summary(metric, predictions, sizes, labels):
    """Return all numbers in one row: OF_SIZES and then OF_MEMBERS."""
    single = jax.vmap(lambda *one: metric(*(p[None] for p in one)))
    rows = {name: [] for name in OF_SIZES}
    for size in sizes:
        groups = [ensemble_means(p, size) for p in predictions]
        found = single(*groups)
        rows["osp"].append(jnp.mean(found.ensemble))
        # Ensembles share images and rotations, so averaging over them does not reduce these errors.
        rows["error"].append(jnp.mean(found.ensemble_error))
        drawn = found.monte_carlo_error
        rows["monte_carlo"].append(jnp.zeros(()) if drawn is None else jnp.mean(drawn))
        rows["accuracy"].append(jnp.mean(accuracy(groups[0], labels)))
    members = single(*predictions).ensemble, accuracy(predictions[0], labels)
    return jnp.concatenate([*(jnp.stack(rows[name]) for name in OF_SIZES), *members])


def ensemble_means(predictions, size):
    """Return the means of disjoint ensembles of this size, [ensembles, ...]."""
    count = len(predictions) // size
    return predictions[: count * size].reshape(count, size, *predictions.shape[1:]).mean(1)


def accuracy(predictions, labels):
    """Return the fraction of correct classes, for each of several functions [functions, order, n, classes]."""
    if labels is None:
        return jnp.full(len(predictions), jnp.nan)
    right = jnp.argmax(predictions, -1) == jnp.asarray(labels)[None, None]
    return jnp.mean(right, (1, 2))


def unpack(records, sizes):
    """Split records [times, numbers] by name into arrays [times, sizes] or [times, members]."""
    records = np.asarray(records)
    count = len(sizes)
    members = (records.shape[1] - len(OF_SIZES) * count) // len(OF_MEMBERS)
    lengths = [count] * len(OF_SIZES) + [members] * len(OF_MEMBERS)
    parts = np.split(records, np.cumsum(lengths)[:-1], axis=1)
    return dict(zip(OF_SIZES + OF_MEMBERS, parts, strict=True))


def total_error(part, what):
    """Return the standard error from drawing images and, on SO(2), rotations, [epochs, sizes]."""
    return np.hypot(part[f"{what}.error"], part[f"{what}.monte_carlo"])
