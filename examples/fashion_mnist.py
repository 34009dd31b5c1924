"""Rotated FashionMNIST: how many rotations of an image does an ensemble classify like the image itself?

Convolutional networks are trained on FashionMNIST, augmented by all rotations by 360/k degrees, for k = 4, 8 and 16.
The orbit same prediction (OSP) of an image is the number of its k rotations, itself included, that get the same class
as the image: k if the network is invariant. It is measured before training and after every epoch, on FashionMNIST and
on sets that look like nothing the networks have seen: MNIST, CIFAR10 in grey, and Gaussian noise. For SO(2), all
rotations of the plane, it is the fraction of rotations drawn at random.

This is an experiment and not a test of the theory, which assumes the squared error and gradient descent. Here Adam
minimises the cross-entropy in batches, and there is max-pooling. Rotations by 45 degrees do not act exactly on a grid
of pixels. The paper's network itself treats the border of an image unevenly (it pools 11 pixels to 5), so even for k
= 4 the infinite ensemble is not exactly invariant.

All members of the largest ensemble are trained once. Smaller ensembles are subsets of them.
"""

import dataclasses
import sys

import numpy as np
from _experiment import Experiment
from _orbit_records import paired, total_error
from _orbit_training import evaluated, train_on_orbits
from _rotated_images import SETS, pictures

from ntk_equiv import ensembles, plotting

SO2_SETS = ("fashion", "mnist")
MEMBERS = {"color": "black", "linestyle": ":", "linewidth": 1, "label": "members (median)"}
BELOW = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.18), "ncols": 2}
INVARIANT = {"linewidth": 0.8, "linestyle": (0, (1, 3))}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Sizes. The last of `sizes` is the number of members. `train` and `test` count images.

    With the augmentation "full" an epoch shows every image under all rotations, with "random" under one that is drawn.
    Members are evaluated before training, after `every` so many epochs, and at the end. Orders in `shorter` are trained
    in fewer epochs: (order, epochs).
    """

    orders: tuple[int, ...]
    sizes: tuple[int, ...]
    train: int
    test: int
    epochs: int
    batch_size: int
    rotations: int
    so2_test: int
    shorter: tuple[tuple[int, int], ...] = ()
    augmentation: str = "full"
    every: int = 1
    drawn: bool = False
    seed: int = 0

    def of_order(self, order):
        """Return the settings that this order is trained with."""
        return dataclasses.replace(self, epochs=dict(self.shorter).get(order, self.epochs))


PRESETS = {
    "quick": Settings((4, 8, 16), (5, 10, 20), 500, 100, 4, 32, 12, 60),
    "laptop": Settings(
        (4, 8, 16), (1, 2, 5, 10), 60_000, 1000, 10, 64, 10, 1000, ((8, 8), (16, 8)), augmentation="random", every=2
    ),
    "paper": Settings((4, 8, 16), (5, 10, 100), 60_000, 10_000, 10, 64, 100, 1000),
    "test": Settings((8,), (2, 4), 24, 4, 2, 16, 7, 4, drawn=True),
}


def compute(settings, data, results):
    for order in settings.orders:
        results.part(f"C{order}", measure, settings, data, order, results)


def measure(settings, data, order, results):
    """Train members on the orbits of C_k and return their measurements."""
    settings = settings.of_order(order)
    which = {"sets": SETS, "so2_sets": SO2_SETS, "epochs": evaluated(settings, untrained=True)}
    sizes = settings.sizes
    name, module = f"C{order}", ensembles.fashion_cnn()
    found, _ = train_on_orbits(
        results, name, module, data, settings, order=order, members=sizes[-1], sizes=sizes, **which
    )
    return found


def table(settings, found):
    lines = ["Images drawn at random for a test, not the sets that are named here"] if settings.drawn else []
    sizes = "".join(f"{f'M = {size}':>16}" for size in settings.sizes)
    heading = f"{'':16}{'k':>4}{sizes}    members: median [quartiles]"
    lines += ["Orbit same prediction after the last epoch, ± standard error over images", heading]
    for name, title in SETS.items():
        for order in settings.orders:
            lines.append(f"{title:16}{order:4}{row(found[f'C{order}'], name, 2)}")
    lines += ["", "Fraction of all rotations with the same prediction, ± standard error over images and rotations"]
    for name in SO2_SETS:
        for order in settings.orders:
            lines.append(f"{SETS[name]:16}{order:4}{row(found[f'C{order}'], f'so2-{name}', 3)}")
    for title, what in (
        ("Accuracy on all rotations of the FashionMNIST test images", "accuracy"),
        ("Accuracy on the FashionMNIST test images as they are", "upright"),
    ):
        lines += ["", title]
        for order in settings.orders:
            part = found[f"C{order}"]
            of_sizes = "".join(f"{value:16.1%}" for value in part[f"fashion.{what}"][-1])
            lines.append(f"{'':16}{order:4}{of_sizes}    {np.median(part[f'fashion.member_{what}'][-1]):.1%}")
    lines += ["", *gains(settings, found)]
    lost = sum(int(part["lost"]) for part in found.values())
    return "\n".join([*lines, *([f"{lost} members were lost: their numbers are not finite"] if lost else [])])


def gains(settings, found):
    """Compare the largest ensemble with smaller ones on the same images, where differences have smaller errors."""
    largest, *smaller = reversed(settings.sizes)
    lines = [f"Orbit same prediction of M = {largest} minus that of smaller ensembles, ± paired error over images"]
    lines += [f"{'':16}{'k':>4}" + "".join(f"{f'M = {size}':>16}" for size in smaller)]
    for name, title in SETS.items():
        for order in settings.orders:
            points = found[f"C{order}"][f"{name}.points"][-1]
            pairs = [paired(points[-1], points[settings.sizes.index(size)]) for size in smaller]
            shown = "".join(f"{f'{value:.3f} ± {error:.3f}':>16}" for value, error in pairs)
            lines.append(f"{title:16}{order:4}{shown}")
    return lines


def row(part, name, digits):
    """Format the numbers of one set and group at the end of training."""
    pairs = zip(part[f"{name}.osp"][-1], total_error(part, name)[-1], strict=True)
    shown = "".join(f"{f'{value:.{digits}f} ± {error:.{digits}f}':>16}" for value, error in pairs)
    low, median, high = np.quantile(part[f"{name}.members"][-1], (0.25, 0.5, 0.75))
    return f"{shown}    {median:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def figures(settings, found):
    drawn = {f"osp_{name}": osp_figure(settings, found, name) for name in SETS}
    return drawn | {"so2": so2_figure(settings, found)}


def osp_figure(settings, found, name):
    """Draw Figure 2 of the paper: all groups on the left, ensembles for the largest group on the right."""
    fig, (left, right) = plotting.panels(2, width=3.7, height=3.5)
    for number, order in enumerate(settings.orders):
        curve(left, settings, found, order, name, number)
        left.axhline(order, color=plotting.COLOURS[number], **INVARIANT)
    order = settings.orders[-1]
    part = found[f"C{order}"]
    epochs = part["epochs"]
    for number, size in enumerate(settings.sizes):
        values, errors = part[f"{name}.osp"][:, number], total_error(part, name)[:, number]
        plotting.measured(right, epochs, values, errors, label=f"M = {size}", number=number, joined=True)
    right.plot(epochs, np.median(part[f"{name}.members"], axis=1), **MEMBERS)
    right.axhline(order, color="black", **INVARIANT)
    left.set_title(f"ensembles of {settings.sizes[-1]}; bands: quartiles of members", loc="left")
    right.set_title(f"C{order}: ensembles of M members", loc="left")
    left.set_ylabel(f"orbit same prediction\non {SETS[name]}")
    left.set_ylim(bottom=0)
    finish(left, settings, "standard error over images")
    finish(right, settings.of_order(order), "standard error over images")
    return fig


def so2_figure(settings, found):
    """Draw Figure 3 of the paper: the fraction of all rotations, for each augmentation group."""
    fig, axes = plotting.panels(len(SO2_SETS) + 1, width=3.2, height=3.5, sharey=True)
    for ax, name in zip(axes, SO2_SETS, strict=False):
        for number, order in enumerate(settings.orders):
            curve(ax, settings, found, order, f"so2-{name}", number)
        ax.set_title(f"{SETS[name]}, M = {settings.sizes[-1]}", loc="left")
        finish(ax, settings, "standard error")
    last, parts = axes[-1], [found[f"C{order}"] for order in settings.orders]
    for number, name in enumerate(SO2_SETS, start=len(settings.orders)):
        values = [part[f"so2-{name}.osp"][-1, -1] for part in parts]
        errors = [total_error(part, f"so2-{name}")[-1, -1] for part in parts]
        members = np.array([part[f"so2-{name}.members"][-1] for part in parts])
        plotting.orbit_curve(last, settings.orders, values, members, errors=errors, label=SETS[name], number=number)
    last.plot([], [], **MEMBERS)
    last.set_title("after the last epoch", loc="left")
    last.set(xlabel="k of the group that augments", xticks=settings.orders, ylim=(None, 1.02))
    last.legend(**BELOW)
    axes[0].set_ylabel("fraction of SO(2) with\nthe same prediction")
    return fig


def curve(ax, settings, found, order, name, number):
    """Draw the largest ensemble with error bars, and the quartiles of its members, epoch by epoch."""
    part = found[f"C{order}"]
    values, errors = part[f"{name}.osp"][:, -1], total_error(part, name)[:, -1]
    members = part[f"{name}.members"]
    plotting.orbit_curve(ax, part["epochs"], values, members, errors=errors, label=f"C{order}", number=number)
    if order == settings.orders[-1]:
        ax.plot([], [], **MEMBERS)


def finish(ax, settings, bars):
    """Label the axis of epochs and add the legend below it, where it cannot hide a curve."""
    every = max(1, settings.epochs // 5)
    ax.set(xlabel=f"epoch (bars: {bars})", xticks=np.arange(0, settings.epochs + 1, every))
    ax.legend(**BELOW)


FASHION_MNIST = Experiment("fashion_mnist", __doc__, PRESETS, pictures, compute, table, figures)

if __name__ == "__main__":
    sys.exit(FASHION_MNIST.main())
