"""Training on the orbits of C_k, and what is kept of predictions on orbits: a few numbers, however large these are.

Of M members, `M // size` ensembles of each size are formed that share no member; they average the logits of their
members. What is kept at each of the chosen epochs:

    osp              the orbit same prediction of ensembles of each size, averaged over them, [sizes]
    error            its standard error over the pictures, [sizes]
    monte_carlo      what drawing the rotations adds to it, [sizes]; 0 where the orbit is complete
    accuracy         over all pictures of the orbits, [sizes]; NaN where classes are not known
    members          the orbit same prediction of each member, [members]
    member_accuracy  [members]
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _rotated_images import on_orbits, rotated, turning

from ntk_equiv import augment, groups, metrics

OF_SIZES = ("osp", "error", "monte_carlo", "accuracy")
OF_MEMBERS = ("members", "member_accuracy")


def trained(results, name, module, data, settings, /, *, order, members, sizes, sets, so2_sets, epochs):
    """What members that are trained on the orbits of C_k, and ensembles of them, make of other orbits.

    They are trained by Adam, at its usual rate of 0.001, on the cross-entropy.

    Args:
        results: where checkpoints go.
        name: of the part.
        module: the network.
        data: pictures.
        settings: with `epochs`, `batch_size`, `rotations`, `so2_test` and `seed`.
        order: k.
        members: how many.
        sizes: of ensembles.
        sets: names of the sets that are tried on orbits of C_k.
        so2_sets: and of those on orbits of all rotations.
        epochs: after which of them; 0 is before training.

    Returns:
        For each set `<set>.osp` and so on, [epochs, ...], `so2-<set>.osp` for all rotations; `lost`, the number of
        members that are not finite.
    """
    train = augment(data.x, data.y, turning(order))
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
        record=wanted(data, settings, order, sizes, sets, so2_sets),
        record_at=[epoch * -(-train.size // settings.batch_size) for epoch in epochs],
    )
    found = {"lost": len(run.failed)}
    for what, records in run.records.items():
        found |= {f"{what}.{key}": values for key, values in unpacked(records, sizes).items()}
    return found


def wanted(data, settings, order, sizes, sets, so2_sets):
    """What is recorded: inputs on orbits, and what to make of predictions there."""
    on_ck, on_so2 = on_group(order, sizes), on_samples(settings.so2_test, sizes)
    found = {name: (on_orbits(data.tests[name], order), on_ck) for name in sets}
    found["fashion"] = found["fashion"][0], on_group(order, sizes, data.fashion_y)
    # The same rotations for every k, which makes their fractions easier to compare.
    drawn = groups.SO2.sample(jax.random.fold_in(jax.random.key(settings.seed), 2), settings.rotations)
    for name in so2_sets:
        x = data.tests[name][: settings.so2_test]
        found[f"so2-{name}"] = np.concatenate([x, *np.asarray(rotated(x, drawn))]), on_so2
    return found


def on_group(order, sizes, labels=None):
    """A function of predictions [members, order * n, classes] on whole orbits, for `record=`."""

    def measured(p):
        p = p.reshape(len(p), order, -1, p.shape[-1])
        return summary(metrics.orbit_same_prediction, (p,), sizes, labels)

    return jax.jit(measured)


def on_samples(n, sizes):
    """The same for predictions [members, (1 + count) * n, classes] on pictures and then on drawn rotations of them."""

    def measured(p):
        p = p.reshape(len(p), -1, n, p.shape[-1])
        return summary(metrics.continuous_orbit_same_prediction, (p[:, 1:], p[:, 0]), sizes, None)

    return jax.jit(measured)


def summary(metric, predictions, sizes, labels):
    """All that is kept, one after the other: OF_SIZES and then OF_MEMBERS."""
    single = jax.vmap(lambda *one: metric(*(p[None] for p in one)))
    rows = {name: [] for name in OF_SIZES}
    for size in sizes:
        groups = [averaged(p, size) for p in predictions]
        found = single(*groups)
        rows["osp"].append(jnp.mean(found.ensemble))
        # Ensembles share pictures and rotations, so that averaging over them does not make these errors smaller.
        rows["error"].append(jnp.mean(found.ensemble_error))
        drawn = found.monte_carlo_error
        rows["monte_carlo"].append(jnp.zeros(()) if drawn is None else jnp.mean(drawn))
        rows["accuracy"].append(jnp.mean(accuracy(groups[0], labels)))
    members = single(*predictions).ensemble, accuracy(predictions[0], labels)
    return jnp.concatenate([*(jnp.stack(rows[name]) for name in OF_SIZES), *members])


def averaged(predictions, size):
    """The means of ensembles of so many members that share none, [ensembles, ...]."""
    count = len(predictions) // size
    return predictions[: count * size].reshape(count, size, *predictions.shape[1:]).mean(1)


def accuracy(predictions, labels):
    """The fraction of right classes, of each of several functions [functions, order, n, classes]."""
    if labels is None:
        return jnp.full(len(predictions), jnp.nan)
    right = jnp.argmax(predictions, -1) == jnp.asarray(labels)[None, None]
    return jnp.mean(right, (1, 2))


def unpacked(records, sizes):
    """Records [times, numbers] by name, each [times, sizes] or [times, members]."""
    records = np.asarray(records)
    count = len(sizes)
    members = (records.shape[1] - len(OF_SIZES) * count) // len(OF_MEMBERS)
    lengths = [count] * len(OF_SIZES) + [members] * len(OF_MEMBERS)
    parts = np.split(records, np.cumsum(lengths)[:-1], axis=1)
    return dict(zip(OF_SIZES + OF_MEMBERS, parts, strict=True))


def total_error(part, what):
    """The standard error of having drawn pictures and, on SO(2), rotations, [epochs, sizes]."""
    return np.hypot(part[f"{what}.error"], part[f"{what}.monte_carlo"])
