"""Training on the orbits of C_k, with records of how invariant predictions on other orbits are."""

import jax
import numpy as np
import optax
from _orbit_records import OrbitRecord
from _rotated_images import on_orbits, rotate, rotations

from ntk_equiv import augment, groups


def train_on_orbits(results, name, module, data, settings, /, *, order, members, sizes, sets, so2_sets, epochs):
    """Train members on the orbits of C_k, and summarise their predictions on other orbits.

    Training uses Adam, at its usual rate of 0.001, on the cross-entropy. In an epoch members see every image under
    every rotation; or, with the augmentation "random", every image once, under a rotation that is drawn.

    Args:
        results: the folder for checkpoints.
        name: the name of the part.
        module: the network.
        data: the images.
        settings: with `epochs`, `batch_size`, `augmentation`, `rotations`, `so2_test` and `seed`.
        order: k.
        members: the number of members.
        sizes: the sizes of ensembles.
        sets: the sets to evaluate on orbits of C_k, by name.
        so2_sets: the sets to evaluate under all rotations, by name.
        epochs: the epochs after which to evaluate; 0 is before training.

    Returns:
        The numbers of `_orbit_records.py` for each set and epoch: `<set>.osp`, [epochs, ...], and so on,
        `so2-<set>.osp` for all rotations, `epochs`, and `lost`, the number of members that are not finite; and the
        run itself.
    """
    train = augment(data.x, data.y, rotations(order))
    records = orbit_records(data, settings, order, sizes, sets, so2_sets)
    epoch = train.size if settings.augmentation == "full" else len(data.x)
    run = results.train(
        name,
        module,
        train,
        members=members,
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        loss="cross_entropy",
        optimizer=optax.adam(1e-3),
        augmentation=settings.augmentation,
        key=jax.random.fold_in(jax.random.key(settings.seed), order),
        record=records,
        record_at=[number * -(-epoch // settings.batch_size) for number in epochs],
    )
    found = {"lost": len(run.failed), "epochs": list(epochs)}
    for what, (_, record) in records.items():
        found |= {f"{what}.{key}": values for key, values in record.unpack(run.records[what]).items()}
    return found, run


def evaluated(settings, *, untrained):
    """Return the epochs after which members are evaluated: every so many, the last, and 0 if `untrained`."""
    first = 0 if untrained else settings.every
    return sorted({*range(first, settings.epochs + 1, settings.every), settings.epochs})


def orbit_records(data, settings, order, sizes, sets, so2_sets):
    """Return what to record: inputs on orbits, and functions that summarise predictions there."""
    found = {}
    for name in sets:
        labels = data.fashion_y if name == "fashion" else None
        record = OrbitRecord(len(data.tests[name]), tuple(sizes), order, labels)
        found[name] = on_orbits(data.tests[name], order), record
    # The same rotations for every k make the fractions easier to compare.
    drawn = groups.SO2.sample(jax.random.fold_in(jax.random.key(settings.seed), 2), settings.rotations)
    for name in so2_sets:
        x = data.tests[name][: settings.so2_test]
        found[f"so2-{name}"] = np.concatenate([x, *np.asarray(rotate(x, drawn))]), OrbitRecord(len(x), tuple(sizes))
    return found
