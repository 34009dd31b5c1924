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
Ensembles of 5 are the first members of those of 20. The preset laptop uses the same file and makes more OOD images.

Are larger ensembles more invariant? All ensembles of 5 that share no member and the ensemble of 20 are compared on the
same images, those made for 20. Then neither the images nor the choice of five members decides.
"""

import dataclasses
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _experiment import Experiment
from _fourier_images import confident_images, images_of, turning_loss
from _orbit_records import OrbitRecord
from _rotated_images import on_orbits, rotations
from _slices import CLASSES, SETS, load

from ntk_equiv import augment, ensembles, metrics, plotting, stax

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
    "laptop": Settings("pathmnist", 1423, 3, (4, 8), (5, 20), 2, 2, 16, 40, 5.0, 200, 20),
    # Orbits of the validation and OOD images under C16 take 25 GB on the host.
    "paper": Settings("nct_crc_he", 10_000, 6, (4, 8, 12, 16), (5, 20), 20, 1, 16, 100, 5.0, 1000, 50),
    "test": Settings("drawn", 24, 3, (4,), (1, 2), 1, 2, 16, 1, 10.0, 3, 9),
}


@dataclasses.dataclass(frozen=True)
class SliceRecord:
    """A function for `record=` of predictions on orbits [members, order * n, classes].

    It keeps the numbers of `summary`, which are those of the first ensemble of each size. `disjoint-M.points` has the
    orbit same prediction of each image for all ensembles of M members that share no member, [ensembles, n].
    """

    summary: OrbitRecord

    def __call__(self, predictions):
        """Return all numbers in one row, in the order in which `unpack` reads them."""
        p = predictions.reshape(len(predictions), self.summary.order, self.summary.n, -1)
        points = [_points_of_disjoint(p, size).ravel() for size in self.summary.sizes]
        return jnp.concatenate([self.summary(predictions), *points])

    def unpack(self, records, members):
        """Split records [times, numbers] by name into arrays [times, ...]."""
        n, sizes = self.summary.n, self.summary.sizes
        ends = np.cumsum([members // size * n for size in reversed(sizes)])
        summary, *points = np.split(records, records.shape[1] - ends[::-1], axis=1)
        named = zip(sizes, points, strict=True)
        return self.summary.unpack(summary) | {
            f"disjoint-{size}.points": rows.reshape(len(records), -1, n) for size, rows in named
        }


@partial(jax.jit, static_argnames="size")
def _points_of_disjoint(p, size):
    count = len(p) // size
    means = p[: count * size].reshape(count, size, *p.shape[1:]).mean(1)
    return jax.vmap(lambda one: metrics.orbit_same_prediction(one[None]).points)(means)


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
    # Images out of distribution are made for the first members, so curves show the first ensemble of each size.
    sizes = tuple(settings.sizes)
    whole = SliceRecord(OrbitRecord(n, sizes, order, labels, first=True))
    record = {"validation": (on_orbits(data.validation_x, order), whole)} | {
        f"ood-{size}": (on_orbits(x, order), SliceRecord(OrbitRecord(len(x), sizes, order, first=True)))
        for size, x in ood.items()
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
        found |= {f"{name}.{key}": values for key, values in kept.unpack(run.records[name], run.members).items()}
    return found


def curves(settings, part, name, size):
    """Return the curve of ensembles of this size [k], its standard error [k], and curves of their members [k, size].

    They are those of the orbit same prediction of a set, or of the accuracy on validation images as they are.
    """
    place = list(settings.sizes).index(size)
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
    lines += ["", *compare_sizes(settings, found)]
    lost = sum(int(found[f"C{order}"]["lost"]) for order in settings.orders)
    return "\n".join([*lines, "", f"Members whose numbers did not stay finite: {lost}"])


def compare_sizes(settings, found):
    """Yield lines that compare the largest ensemble with the smallest ones, on the same images, after training."""
    small, large = settings.sizes[0], settings.sizes[-1]
    sets = {"validation": "validation images", f"ood-{large}": f"OOD images made for {large}"}
    yield (
        f"Disjoint ensembles of {small} and of {large} on the same images after training;"
        " ± standard error over images, ± of choosing members"
    )
    for order in settings.orders:
        for name, title in sets.items():
            few, many = (found[f"C{order}"][f"{name}.disjoint-{size}.points"][-1] for size in (small, large))
            difference = many.mean(0) - few.mean(0)
            shown = " ".join(f"{value:.3f}" for value in few.mean(1))
            error = difference.std(ddof=1) / len(difference) ** 0.5
            yield (
                f"C{order:<3}{title:26}{small}: {few.mean():.3f} ({shown}), {large}: {many.mean():.3f}, difference "
                f"{difference.mean():+.3f} ± {error:.3f} ± {member_error(few):.3f}"
            )


def member_error(few):
    """Return the standard error of the difference between ensembles of two sizes that comes from choosing members.

    The spread s of the k small ensembles is known, and the error of their mean is s/√k. The large ensembles have as
    many members in all. If the variance of one falls as 1/size, their mean has the same error s/√k.
    """
    return few.mean(1).std(ddof=1) * np.sqrt(2 / len(few))


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
