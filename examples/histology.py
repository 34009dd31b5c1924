"""Histological slices: are ensembles invariant under rotations, even on images unlike any they were trained on?

Convolutional networks learn to tell nine kinds of tissue apart. Images are augmented by all rotations by 360/k
degrees. The orbit same prediction (OSP) of an image is the number of its k rotations, itself included, that get the
same class as the image: k if the network is invariant. It is measured along training, for ensembles, which average
logits, and for their members, on two sets:

- validation images, where accurate networks must be invariant to some degree;
- images out of distribution (OOD), made for each ensemble size: Adam changes the 5 x 5 lowest frequencies of random
  images until the *untrained* ensemble gives each of them a chosen class, with a probability above 99 %.

This is an experiment and not a test of the theory, which assumes the squared error and gradient descent. Here Adam
minimises the cross-entropy in batches, there is max-pooling, and rotations by less than 90 degrees interpolate.

The paper uses NCT-CRC-HE-100K, 224 x 224. The quick preset uses a small file instead: 1,423 images of the test part
of PathMNIST (the same tissues at 28 x 28, uneven classes, no training part). They are split at random into 11/12 for
training and 1/12 for validation. Members start alike for all groups, so one OOD set per size serves all of them.
Ensembles of 5 are the first members of those of 20.
"""

import dataclasses
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _experiment import Experiment
from _fourier_images import confident_images, images_of, turning_loss
from _orbit_records import OrbitRecord
from _rotated_images import on_orbits, rotations
from _slices import CLASSES, SETS, load

from ntk_equiv import augment, ensembles, plotting, stax

CONFIDENCE = 0.99
QUARTILES = (0.25, 0.5, 0.75)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Sizes. The last of `sizes` is the number of members. The first `pools` convolutions are followed by a pool."""

    images: str
    count: int
    pools: int
    orders: tuple[int, ...]
    sizes: tuple[int, ...]
    epochs: int
    records_per_epoch: int
    batch_size: int
    ood_per_class: int
    ood_rate: float
    ood_steps: int
    ood_batch: int
    seed: int = 0


PRESETS = {
    "quick": Settings("pathmnist", 1423, 3, (4, 8), (5, 20), 2, 3, 16, 5, 5.0, 200, 23),
    # Orbits of the validation and OOD images under C16 take 25 GB on the host.
    "paper": Settings("nct_crc_he", 10_000, 6, (4, 8, 12, 16), (5, 20), 20, 1, 16, 100, 5.0, 1000, 50),
    "test": Settings("drawn", 24, 3, (4,), (1, 2), 1, 2, 16, 1, 10.0, 3, 9),
}


def compute(settings, data, results):
    module = ensembles.histology_cnn(CLASSES, pools=settings.pools)
    if settings.images == "drawn":  # nothing to learn here, so use a network that compiles quickly
        module = stax.serial(stax.Flatten(), stax.Dense(16, 2**0.5), stax.Relu(), stax.Dense(CLASSES))
    key = jax.random.fold_in(jax.random.key(settings.seed), 1)
    before = ensembles.untrained(module, data.x[: settings.batch_size], members=settings.sizes[-1], key=key)
    ood = {}
    for size in settings.sizes:
        made = results.part(f"ood-{size}", make_ood_images, settings, data, before.subset(range(size)))
        ood[size] = images_of(jnp.asarray(made["coefficients"]), data.x.shape[1])
    for order in settings.orders:
        results.part(f"C{order}", train_members, settings, data, ood, module, key, order, results)


def make_ood_images(settings, data, before):
    """Make images that an untrained ensemble is sure of, and measure what an eighth of a turn and back loses."""
    side, channels = data.x.shape[2:]
    found = confident_images(
        before,
        np.tile(np.arange(CLASSES), settings.ood_per_class),
        jax.random.fold_in(jax.random.key(settings.seed), 1 + before.members),
        side=side,
        channels=channels,
        confidence=CONFIDENCE,
        rate=settings.ood_rate,
        steps=settings.ood_steps,
        batch=settings.ood_batch,
    )
    x = images_of(jnp.asarray(found["coefficients"]), side)
    found["side"] = side
    found["loss"] = turning_loss(x, rotations(8), 1)
    found["validation_loss"] = turning_loss(data.validation_x, rotations(8), 1)
    return found


def train_members(settings, data, ood, module, key, order, results):
    """Train on the orbits of C_k. Return invariance and accuracy of ensembles and members along training."""
    train = augment(data.x, data.y, rotations(order))
    steps = settings.epochs * -(-train.size // settings.batch_size)
    record_count = settings.epochs * settings.records_per_epoch
    n, labels = len(data.validation_x), data.validation_y
    # Images out of distribution are made for the first members, so the first ensemble of each size is used on all sets.
    whole = OrbitRecord(n, tuple(settings.sizes), order, labels, first=True)
    record = {"validation": (on_orbits(data.validation_x, order), whole)} | {
        f"ood-{size}": (on_orbits(x, order), OrbitRecord(len(x), (size,), order, first=True)) for size, x in ood.items()
    }
    run = results.train(
        f"C{order}",
        module,
        train,
        members=settings.sizes[-1],
        steps=steps,
        batch_size=settings.batch_size,
        loss="cross_entropy",
        optimizer=optax.adam(1e-3),
        key=key,
        record=record,
        record_at=[round(steps * number / record_count) for number in range(record_count + 1)],
    )
    epochs = run.record_steps * settings.epochs / steps
    found = {"epochs": epochs, "lost": len(run.failed)}
    for name, (_, kept) in record.items():
        found |= {f"{name}.{key}": values for key, values in kept.unpack(run.records[name]).items()}
    return found


def curves(settings, part, name, size):
    """Return the curve of ensembles of this size [k], its standard error [k], and curves of their members [k, size].

    They are those of the orbit same prediction of a set, or of the accuracy on validation images as they are.
    """
    place = 0 if "ood" in name else list(settings.sizes).index(size)
    names = ("upright", "upright_error", "member_upright") if name == "accuracy" else ("osp", "error", "members")
    what = "validation" if name == "accuracy" else name
    value, error, members = (part[f"{what}.{each}"] for each in names)
    return value[:, place], error[:, place], members[:, :size]


def table(settings, found):
    lines = [f"Images: {describe_images(settings)}", "", *describe_ood_images(settings, found)]
    lines += ["", "After training: ensembles ± standard error over images, and their members' median [quartiles]"]
    lines += [f"{'':4}{'M':>3}{'OSP on validation':>38}{'OSP on OOD images':>38}{'accuracy on validation':>38}"]
    for order in settings.orders:
        part = found[f"C{order}"]
        for size in settings.sizes:
            cells = (("validation", 2, 1), (f"ood-{size}", 2, 1), ("accuracy", 1, 100))
            shown = (last(*curves(settings, part, name, size), digits, unit) for name, digits, unit in cells)
            lines.append(f"{f'C{order}':4}{size:3}{''.join(f'{text:>38}' for text in shown)}")
    lines += ["", "Averaged over the records after training began: OSP of ensembles, and their members' median"]
    for order in settings.orders:
        for size in settings.sizes:
            sets = {"validation": "validation", "OOD": f"ood-{size}"}
            shown = (f"{name} {along(*curves(settings, found[f'C{order}'], key, size))}" for name, key in sets.items())
            lines.append(f"{f'C{order}':4}{size:3}    {'    '.join(shown)}")
    lost = sum(int(found[f"C{order}"]["lost"]) for order in settings.orders)
    return "\n".join([*lines, "", f"Members whose numbers did not stay finite: {lost}"])


def describe_images(settings):
    """Describe the images. This text goes with every table and figure."""
    return SETS[settings.images].format(images=settings.count)


def describe_ood_images(settings, found):
    """Yield lines that describe the images out of distribution."""
    for size in settings.sizes:
        part = found[f"ood-{size}"]
        reached, n, steps = int(part["reached"].sum()), len(part["reached"]), np.median(part["steps"])
        strength = np.sqrt(np.mean(np.sum(part["coefficients"] ** 2, (1, 2, 3)) / part["coefficients"].shape[-1]))
        yield (
            f"OOD images for an ensemble of {size}: {reached} of {n} reached {CONFIDENCE:.0%}, after {steps:.0f} steps "
            f"in the median; all are kept, the lowest has {part['confidence'].min():.1%}"
        )
        yield (
            f"    root mean square {strength:.0f} (slices: 1); an eighth of a turn and back changes them by "
            f"{np.median(part['loss']):.1%} (slices: {np.median(part['validation_loss']):.1%}) inside the disc"
        )


def last(ensemble, error, members, digits, unit):
    """Format the numbers at the end of training."""
    low, median, high = (f"{unit * value:.{digits}f}" for value in np.quantile(members[-1], QUARTILES))
    return f"{unit * ensemble[-1]:.{digits}f} ± {unit * error[-1]:.{digits}f}   {median} [{low}, {high}]"


def along(ensemble, error, members):
    """Format the averages along training, of the ensemble and of the median of its members."""
    return f"{np.mean(ensemble[1:]):.2f}, {np.mean(np.median(members[1:], axis=1)):.2f}"


def figures(settings, found):
    return {
        "invariance": invariance_figure(settings, found),
        "accuracy": accuracy_figure(settings, found),
        "ood_samples": sample_figure(settings, found),
    }


def invariance_figure(settings, found):
    """Draw the OSP as in the paper: above on validation images, below out of distribution."""
    fig, axes = plotting.panels(len(settings.sizes), 2, sharex=True, sharey="row")
    kinds = {"validation": "validation images", "ood": "OOD images"}
    for place, ax in enumerate(axes):
        kind, size = list(kinds)[place // len(settings.sizes)], settings.sizes[place % len(settings.sizes)]
        draw(ax, settings, found, kind if kind == "validation" else f"ood-{size}", size, relative=True)
        ax.set_title(f"ensembles of {size}, {kinds[kind]}", loc="left")
        if place % len(settings.sizes) == 0:
            ax.set_ylabel("orbit same prediction / k")
        if place >= len(settings.sizes):
            ax.set_xlabel("epoch")
    add_legend(fig, axes[0], settings)
    return fig


def accuracy_figure(settings, found):
    """Draw the accuracy on validation images that are not rotated."""
    fig, axes = plotting.panels(len(settings.sizes), sharey=True)
    for ax, size in zip(axes, settings.sizes, strict=True):
        draw(ax, settings, found, "accuracy", size, relative=False)
        ax.set(xlabel="epoch")
        ax.set_title(f"ensembles of {size}", loc="left")
    axes[0].set_ylabel("validation accuracy")
    add_legend(fig, axes[0], settings)
    return fig


def draw(ax, settings, found, name, size, *, relative):
    """Draw the curves of all groups in one panel."""
    for number, order in enumerate(settings.orders):
        part = found[f"C{order}"]
        unit = 1 / order if relative else 1.0
        ensemble, errors, members = (unit * values for values in curves(settings, part, name, size))
        label = f"C{order}, ensemble"
        plotting.orbit_curve(ax, part["epochs"], ensemble, members, errors=errors, label=label, number=number)


def add_legend(fig, ax, settings):
    """Add a legend for bars and bands below all panels, and a description of the images above them."""
    handles, labels = ax.get_legend_handles_labels()
    title = "bars: standard error over images; dotted and band: median and quartiles of members"
    columns = len(settings.orders)
    fig.legend(handles, labels, loc="outside lower center", ncols=columns, title=title, title_fontsize=8)
    fig.suptitle(describe_images(settings), fontsize=9)


def sample_figure(settings, found):
    """Draw three images out of distribution, each in its own range of brightness."""
    size = settings.sizes[-1]
    part = found[f"ood-{size}"]
    images = np.asarray(images_of(jnp.asarray(part["coefficients"][:3]), int(part["side"])))
    fig, axes = plotting.panels(3, width=2.0, height=2.2)
    for ax, image, number, p in zip(axes, images, part["classes"], part["confidence"], strict=False):
        ax.imshow((image - image.min()) / np.ptp(image))
        ax.set_title(f"class {number}, p = {p:.3f}", loc="left")
        ax.set_axis_off()
    return fig


HISTOLOGY = Experiment("histology", __doc__, PRESETS, load, compute, table, figures)

if __name__ == "__main__":
    sys.exit(HISTOLOGY.main())
