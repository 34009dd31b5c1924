"""The infinite ensemble on real images: exact predictions, exact invariance, and how far M members are from it.

Nothing has to be trained to know what infinitely many, infinitely wide networks predict. Here they learn FashionMNIST,
augmented by the four quarter turns (C4) or by these and their mirror images (D4). They are trained by gradient flow on
the squared error. One network is an MLP with three hidden ReLU layers, the other a CNN with three 3 x 3 convolutions. A
shallow MLP with one hidden layer is nearer to infinite width at the width that one can afford.

    images     The accuracy of the infinite ensemble against training time, for several numbers of training images. It
               is exactly invariant, so it gives all turns of an image the same class. We check this on test images of
               four sets: the orbit same prediction (OSP), the number of turns with the class of the image itself, must
               be the order of the group.
    law        The OSP of M members, predicted before any training: members are drawn from the law of the ensemble.
    descent    The OSP of ensembles that were really trained by gradient descent, next to this prediction for the same
               rate, momentum and number of steps. All orbits of a set are drawn together, so theory also says how far
               the measured average should scatter: this is the band in the figure.

Smaller ensembles are disjoint subsets of all trained members. Theory is computed in double precision, training is in
single precision.
"""

import dataclasses
import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _experiment import Experiment, double_precision
from _rotated_images import CLASSES, SETS, pictures

from ntk_equiv import InfiniteEnsemble, augment, filters, groups, metrics, plotting, reps, stax

GROUPS = {"C4": groups.cyclic(4), "D4": groups.dihedral(4)}
NETWORKS = {"mlp": "MLP", "cnn": "CNN", "shallow": "shallow MLP"}
W_STD, B_STD = 2**0.5, 0.1
BELOW = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2)}
INVARIANT = {"color": "gray", "linewidth": 1, "linestyle": (0, (2, 2))}
# What a figure calls the sets, next to the one that the networks were trained on.
PLAIN = {"fashion": "FashionMNIST", "mnist": "MNIST, never seen", "cifar10": "CIFAR10, never seen", "noise": "noise"}
TURNED = {"C4": "turns", "D4": "turns and mirror images"}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Sizes. `images` are numbers of training images, `tested` of test images, `orbits` of those that are turned."""

    images: dict[str, tuple[int, ...]]
    times: tuple[float, ...]
    tested: dict[str, int]
    orbits: int
    # law, at the last of these times
    laws: tuple[str, ...]
    law_images: int
    law_orbits: int
    sizes: tuple[int, ...]
    draws: int
    # descent: the widths of each network
    descents: dict[str, tuple[int, ...]]
    descent_images: int
    descent_orbits: int
    rate: float
    steps: int
    momentum: float = 0.0
    drawn: bool = False
    seed: int = 0

    @property
    def train(self) -> int:
        """How many training images are read."""
        return max(self.law_images, self.descent_images, *(count for _, count in fits(self)))

    @property
    def test(self) -> int:
        """How many test images of each set are read."""
        return max(self.orbits, self.law_orbits, self.descent_orbits, *self.tested.values())


PRESETS = {
    "quick": Settings(
        images={"mlp-C4": (100, 500, 1000), "mlp-D4": (100, 500, 1000), "cnn-C4": (100, 250), "cnn-D4": (100,)},
        times=tuple(10.0**k for k in range(2, 9)),
        tested={"mlp": 1000, "cnn": 250},
        orbits=10,
        laws=("mlp-C4", "cnn-C4", "mlp-D4"),
        law_images=100,
        law_orbits=20,
        sizes=(1, 2, 5, 10, 20, 50, 100),
        draws=400,
        descents={"mlp-C4": (128, 512)},
        descent_images=50,
        descent_orbits=100,
        rate=20.0,
        steps=100,
    ),
    "laptop": Settings(
        images={"mlp-C4": (1000, 4000, 10_000), "mlp-D4": (1000, 4000), "cnn-C4": (250, 500), "cnn-D4": (250,)},
        times=tuple(10.0**k for k in range(2, 9)),
        tested={"mlp": 10_000, "cnn": 1000},
        orbits=50,
        laws=("mlp-C4", "cnn-C4", "mlp-D4"),
        law_images=100,
        law_orbits=100,
        sizes=(1, 2, 5, 10, 20, 50, 100),
        draws=400,
        descents={"shallow-C4": (64, 512, 4096), "mlp-C4": (512, 1024)},
        descent_images=100,
        descent_orbits=200,
        rate=20.0,
        steps=40,
        momentum=0.8,
    ),
    # Equal shapes, so that little has to be compiled.
    "test": Settings(
        images={"mlp-C4": (6,), "cnn-C4": (6,)},
        times=(1e4,),
        tested={"mlp": 12, "cnn": 12},
        orbits=3,
        laws=("mlp-C4",),
        law_images=6,
        law_orbits=3,
        sizes=(1, 4),
        draws=4,
        descents={"mlp-C4": (16,)},
        descent_images=6,
        descent_orbits=3,
        rate=10.0,
        steps=5,
        drawn=True,
    ),
}


def network(kind, width=1):
    """Return one of the networks. Its kernel does not depend on the width."""
    last = stax.Dense(CLASSES, 1.0, B_STD)
    if kind != "cnn":
        layers = 1 if kind == "shallow" else 3
        return stax.serial(stax.Flatten(), *layers * (stax.Dense(width, W_STD, B_STD), stax.Relu()), last)
    layer = stax.Conv(width, (3, 3), padding="SAME", W_std=W_STD, b_std=B_STD)
    return stax.serial(*3 * (layer, stax.Relu()), stax.Flatten(), last)


def training_set(data, count, group):
    """Return the first training images, augmented, with one-hot labels that are centred."""
    labels = jax.nn.one_hot(data.y[:count], CLASSES, dtype=data.x.dtype) - 1 / CLASSES
    return augment(data.x[:count], labels, reps.rot90(GROUPS[group]))


def infinite_ensemble(kind, train, rule):
    return InfiniteEnsemble(network(kind).kernel_fn, train, rule, reduction="mean", solver="auto")


def orbits(x, group):
    """Return all turns of images [m, H, W, C], the images themselves first, [order * m, H, W, C]."""
    return reps.rot90(GROUPS[group]).orbit(x).reshape(-1, *x.shape[1:])


def same_predictions(scores, group):
    """Return the OSP of each image for each ensemble with scores [ensembles, order * m, classes], [ensembles, m]."""
    return np.asarray(orbit_points(jnp.reshape(scores, (len(scores), GROUPS[group].order, -1, CLASSES))))


@jax.jit
def orbit_points(p):
    # One ensemble at a time: the metric would take several for the members of one.
    return jax.lax.map(lambda one: metrics.orbit_same_prediction(one[None]).points, p)


def compute(settings, data, results):
    with double_precision():
        exact = jax.tree.map(lambda leaf: leaf.astype(float) if leaf.dtype.kind == "f" else leaf, data)
        for name in settings.descents:
            results.part(f"descent-law-{name}", descent_law, settings, exact, name)
    for name, widths in settings.descents.items():
        for width in widths:
            results.part(f"descent-{name}-{width}", descend, settings, data, name, width, results)
    with double_precision():
        for name in settings.laws:
            results.part(f"law-{name}", law, settings, exact, name)
        for name, count in fits(settings):
            results.part(f"{name}-{count}", predict_images, settings, exact, name, count)


def fits(settings):
    """List networks with their groups, and numbers of training images, the small ones first."""
    return [(name, count) for name, counts in settings.images.items() for count in counts]


def predict_images(settings, data, name, count):
    """Compute the mean of the infinite ensemble: its accuracy at all times, and its invariance on the four sets."""
    kind, group = name.split("-")
    times, few = jnp.array(settings.times), settings.orbits
    ens = infinite_ensemble(kind, training_set(data, count, group), filters.gradient_flow())
    x, y = (part[: settings.tested[kind]] for part in (data.tests["fashion"], data.fashion_y))
    right = jnp.argmax(ens.mean(x, times), -1) == y[None]
    found = {"accuracy": jnp.mean(right, axis=1)}
    for own in SETS:
        x = orbits(data.tests[own][:few], group)
        mean = ens.mean(x, times)
        turned = mean.reshape(len(times), -1, few, CLASSES)
        found[f"{own}.osp"] = same_predictions(mean, group).mean(1)
        found[f"{own}.change"] = jnp.max(jnp.abs(turned - turned[:, :1]), axis=(1, 2, 3))
        if own == "fashion":
            classes = jnp.argmax(turned, -1)
            found["upright"] = jnp.mean(right[:, :few], axis=1)
            found["turned"] = jnp.mean(classes == data.fashion_y[None, None, :few], axis=(1, 2))
            found["bound"] = jnp.max(ens.error_bound(x, times), axis=1)
    return found


def law(settings, data, name):
    """Predict the OSP of M members at the last time."""
    kind, group = name.split("-")
    ens = infinite_ensemble(kind, training_set(data, settings.law_images, group), filters.gradient_flow())
    return predicted_osp(settings, data, ens, group, settings.times[-1], settings.law_orbits)


def descent_law(settings, data, name):
    """Predict the OSP of M members after some steps of gradient descent, with the accuracy of the infinite ensemble."""
    kind, group = name.split("-")
    train = training_set(data, settings.descent_images, group)
    ens = infinite_ensemble(kind, train, filters.momentum(settings.rate, settings.momentum))
    classes = jnp.argmax(ens.mean(data.tests["fashion"], settings.steps), -1)
    found = predicted_osp(settings, data, ens, group, settings.steps, settings.descent_orbits)
    return found | {"accuracy": jnp.mean(classes == data.fashion_y)}


def predicted_osp(settings, data, ens, group, t, few):
    """Draw ensembles of M members on the orbits of some images of each set, and return their OSP, averaged over images.

    All orbits of a set are drawn together. So the spread of this average over the drawn ensembles is known too.
    """
    found = {}
    for number, own in enumerate(SETS):
        x = orbits(data.tests[own][:few], group)
        key = jax.random.fold_in(jax.random.key(settings.seed), number)
        mean, members = ens.mean(x, t), ens.sample(key, x, t, members=settings.draws)
        # The mean of M members has the law N(mean, cov / M), so one draw serves every M.
        osp = [same_predictions(mean + (members - mean) / math.sqrt(size), group) for size in settings.sizes]
        found[f"{own}.osp"] = [one.mean() for one in osp]
        found[f"{own}.std"] = [one.mean(1).std(ddof=1) for one in osp]
        found[f"{own}.image_error"] = [one.mean(0).std(ddof=1) / math.sqrt(few) for one in osp]
        found[f"{own}.infinite"] = same_predictions(mean[None], group).mean()
    return found


def descend(settings, data, name, width, results):
    """Train members by gradient descent, and measure the OSP of disjoint ensembles of all sizes."""
    kind, group = name.split("-")
    run = results.train(
        f"descent-{name}-{width}",
        network(kind, width),
        training_set(data, settings.descent_images, group),
        members=settings.sizes[-1],
        steps=settings.steps,
        optimizer=optax.sgd(settings.rate, momentum=settings.momentum or None),
        key=jax.random.key(settings.seed),
    )
    found = {"lost": len(run.failed)}
    for own in SETS:
        scores = np.asarray(run.predict(orbits(data.tests[own][: settings.descent_orbits], group)))[run.finished]
        counts = [len(scores) // size for size in settings.sizes]
        ensembles = [
            scores[: count * size].reshape(count, size, *scores.shape[1:]).mean(1)
            for count, size in zip(counts, settings.sizes, strict=True)
        ]
        found[f"{own}.osp"] = [same_predictions(one, group).mean() for one in ensembles]
        found[f"{own}.ensembles"] = counts
    classes = np.argmax(run.predict(data.tests["fashion"])[run.finished].mean(0), -1)
    return found | {"accuracy": np.mean(classes == data.fashion_y)}


def table(settings, found):
    lines = ["Images drawn at random for a test, not the sets that are named here"] if settings.drawn else []
    lines += [*accuracy_table(settings, found), ""]
    sizes = "".join(f"{f'M = {size}':>14}" for size in settings.sizes)
    lines.append(
        f"Predicted orbit same prediction of M members at time {settings.times[-1]:g}, {settings.law_images} training "
        f"images, ± standard error over {settings.law_orbits} images of each set"
    )
    lines.append(f"{'':26}{sizes}      infinite")
    for name in settings.laws:
        part = found[f"law-{name}"]
        for own, title in SETS.items():
            pairs = zip(part[f"{own}.osp"], part[f"{own}.image_error"], strict=True)
            shown = "".join(f"{f'{value:.3f} ± {error:.3f}':>14}" for value, error in pairs)
            lines.append(f"{titled(name):10}{title:16}{shown}{part[f'{own}.infinite']:14.3f}")
    for name, widths in settings.descents.items():
        parts = {width: found[f"descent-{name}-{width}"] for width in widths}
        lines += ["", *descent_table(settings, found[f"descent-law-{name}"], parts, name, sizes)]
    return "\n".join(lines)


def accuracy_table(settings, found):
    """Format accuracies and how invariant the infinite ensemble is."""
    counts = ", ".join(
        f"{count} with the {NETWORKS[kind]} (standard error at most {math.sqrt(0.25 / count):.1%})"
        for kind, count in settings.tested.items()
    )
    lines = [
        f"Accuracy of the infinite ensemble at each time on FashionMNIST test images, {counts}",
        f"{'':10}{'images':>7}" + "".join(f"{f't = {t:.0e}':>11}" for t in settings.times),
    ]
    for name, count in fits(settings):
        shown = "".join(f"{value:11.1%}" for value in found[f"{name}-{count}"]["accuracy"])
        lines.append(f"{titled(name):10}{count:7}{shown}")
    sets = "".join(f"{title:>16}" for title in SETS.values())
    lines += [
        "",
        f"Infinite ensemble on the orbits of {settings.orbits} images of each set, at all times: the least OSP; the",
        "largest change of an output by a turn; how many FashionMNIST images have the right class at the last time,",
        "upright, and in all turns; and the largest bound on the error of the solver (0: only rounding)",
        f"{'':10}{'images':>7}{sets}{'change':>9}{'upright':>9}{'turned':>8}{'bound':>9}",
    ]
    for name, count in fits(settings):
        part = found[f"{name}-{count}"]
        osp = "".join(f"{part[f'{own}.osp'].min():16.3f}" for own in SETS)
        change, bound = max(part[f"{own}.change"].max() for own in SETS), part["bound"].max()
        right = f"{part['upright'][-1]:9.1%}{part['turned'][-1]:8.1%}"
        lines.append(f"{titled(name):10}{count:7}{osp}{change:9.0e}{right}{bound:9.0e}")
    return lines


def descent_table(settings, known, parts, name, sizes):
    """Format what was predicted, and what was measured for each width."""
    lines = [
        f"Orbit same prediction ({titled(name)}) after training on {settings.descent_images} images, {settings.steps} "
        f"steps at rate {settings.rate:g} with momentum {settings.momentum:g},",
        f"on {settings.descent_orbits} images of each set. The ± is the predicted deviation of what was measured.",
        f"{'':26}{sizes}      infinite",
    ]
    for own, title in SETS.items():
        infinite = f"{known[f'{own}.infinite']:14.3f}"
        lines.append(f"{title:16}predicted " + "".join(f"{v:14.3f}" for v in known[f"{own}.osp"]) + infinite)
        for width, part in parts.items():
            errors = measured_error(known, part, own)
            shown = "".join(f"{f'{v:.3f} ± {e:.3f}':>14}" for v, e in zip(part[f"{own}.osp"], errors, strict=True))
            lines.append(f"{'':14}width {width:<6}{shown}")
            # The prediction is an average over draws, whose error counts too.
            whole = np.hypot(errors, known[f"{own}.std"] / math.sqrt(settings.draws))
            pairs = zip(part[f"{own}.osp"] - known[f"{own}.osp"], whole, strict=True)
            off = (f"{difference / error:+.1f} σ" if error else "–" for difference, error in pairs)
            lines.append(f"{'':16}off by    " + "".join(f"{value:>14}" for value in off))
    images = max(known[f"{own}.image_error"].max() for own in SETS)
    lines.append(f"Standard error over images, which prediction and measurements share: at most {images:.3f}")
    trained = ", ".join(f"{part['accuracy']:.1%} at width {width}" for width, part in parts.items())
    lines.append(
        f"Accuracy on {settings.test} upright test images: infinite ensemble {known['accuracy']:.1%}; "
        f"{settings.sizes[-1]} members {trained}"
    )
    lost = sum(int(part["lost"]) for part in parts.values())
    return [*lines, *([f"{lost} members were lost: their numbers are not finite"] if lost else [])]


def measured_error(known, part, own):
    """Return the predicted standard deviation of the OSP that was measured, averaged over disjoint ensembles."""
    return known[f"{own}.std"] / np.sqrt(part[f"{own}.ensembles"])


def titled(name):
    kind, group = name.split("-")
    return f"{NETWORKS[kind]}, {group}"


def figures(settings, found):
    drawn = {"accuracy": accuracy_figure(settings, found), "predicted": law_figure(settings, found)}
    name = next(iter(settings.descents))
    return drawn | {f"members_{name.split('-')[1]}": members_figure(settings, found, name)}


def accuracy_figure(settings, found):
    """Draw the accuracy against training time: colours for numbers of images, solid lines for C4, dotted for D4."""
    fig, axes = plotting.panels(2, sharey=True, width=3.7, height=3.6)
    every = sorted({count for _, count in fits(settings)})
    for ax, kind in zip(axes, ("mlp", "cnn"), strict=True):
        for name, count in fits(settings):
            own, group = name.split("-")
            if own == kind:
                number = every.index(count)
                look = {"color": plotting.COLOURS[number], "marker": plotting.MARKERS[number], "markersize": 3.5}
                line = "-" if group == "C4" else ":"
                accuracy = 100 * found[f"{name}-{count}"]["accuracy"]
                ax.plot(settings.times, accuracy, line, label=f"{count:,} images, {group}", **look)
        ax.set(xscale="log", xlabel="training time t")
        ax.set_title(NETWORKS[kind], loc="left")
        ax.legend(ncols=2, **BELOW)
    axes[0].set_ylabel("accuracy of the infinite ensemble\non test images, %")
    return fig


def law_figure(settings, found):
    """Draw the predicted OSP against the number of members as a fraction of the group, for each set."""
    fig, axes = plotting.panels(len(SETS), sharey=True, width=2.6, height=3.3)
    for ax, (own, title) in zip(axes, SETS.items(), strict=True):
        for number, name in enumerate(settings.laws):
            part, order = found[f"law-{name}"], GROUPS[name.split("-")[1]].order
            values, errors = part[f"{own}.osp"] / order, part[f"{own}.image_error"] / order
            beside = np.array(settings.sizes) * 1.06 ** (number - (len(settings.laws) - 1) / 2)
            plotting.measured(ax, beside, values, errors, label=titled(name), number=number, joined=True)
        ax.axhline(1, **INVARIANT, label="infinite ensemble")
        ax.set(xscale="log", xlabel="members, M")
        ax.set_title(title, loc="left")
    axes[0].set_ylabel("predicted OSP / |G|")
    add_legend(fig, axes[0])
    return fig


def members_figure(settings, found, name):
    """Draw the OSP of trained ensembles of the widest networks against the number of members, and the prediction.

    The band is where theory expects the marks, within two standard deviations.
    """
    group, width = name.split("-")[1], settings.descents[name][-1]
    known, part, order = found[f"descent-law-{name}"], found[f"descent-{name}-{width}"], GROUPS[group].order
    fig, axes = plotting.panels(len(SETS), sharey=True, width=2.1, height=2.7)
    for ax, (own, title) in zip(axes, PLAIN.items(), strict=True):
        errors, osp = measured_error(known, part, own), known[f"{own}.osp"]
        plotting.predicted(ax, settings.sizes, osp, errors=errors, label="theory, before training")
        plotting.measured(ax, settings.sizes, part[f"{own}.osp"], label=f"trained networks, width {width:,}")
        ax.axhline(order, **INVARIANT, label="infinite ensemble")
        ax.set(xscale="log", xlabel="networks in the ensemble", xlim=(0.8, 130))
        ax.set_xticks([1, 10, 100], ["1", "10", "100"])
        ax.set_yticks(range(1, order + 1))
        ax.set_ylim(1, order + 0.15)
        ax.set_title(title, loc="left")
    axes[0].set_ylabel(f"{TURNED[group]} of an image\nthat get its class")
    add_legend(fig, axes[0])
    return fig


def add_legend(fig, ax):
    """Add one legend for all panels below them."""
    handles, labels = ax.get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=len(labels))


INFINITE_IMAGES = Experiment("infinite_images", __doc__, PRESETS, pictures, compute, table, figures)

if __name__ == "__main__":
    sys.exit(INFINITE_IMAGES.main())
