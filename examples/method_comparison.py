"""Four ways to make a classifier invariant under rotations, each with about the same number of parameters.

    DeepEns+DA   an ensemble of the paper's networks, trained on data augmented by rotations
    only DA      one wide network of the same kind, trained on the same data
    group CNN    a network built to be invariant, with filters of circular harmonics as in E2CNN
    Canon        a small group CNN rotates the image to a standard orientation, an ordinary network classifies it

All are trained on FashionMNIST under all rotations by 360/k degrees, with the same optimizer, batches and number of
steps. After every epoch the orbit same prediction is measured: how many of the k rotations of an image get the same
class as the image. It is k if the classifier is invariant. The table shows its mean and standard deviation over the
epochs, like Table 1 of the paper. The last two are exactly invariant for k = 4. For k = 8 and 16 they are not,
because rotations on a square grid of pixels or features interpolate.

The paper's caption says that its ensembles have 100 members. Its appendix says that they have ten, and that the other
networks have as many parameters as these ten. The preset "paper" follows the appendix.
"""

import dataclasses
import sys

import numpy as np
from _experiment import Experiment
from _group_cnn import Canonicalised, GroupCNN, WideCNN, count_parameters, match_parameters
from _orbit_records import total_error
from _orbit_training import train_on_orbits
from _rotated_images import SETS, pictures

from ntk_equiv import ensembles, plotting

METHODS = {"ensemble": "DeepEns+DA", "single": "only DA", "group": "group CNN", "canonical": "Canon"}
TRIED = ("fashion", "mnist", "cifar10")
SO2_SETS = ("mnist",)
PAPER = {
    "ensemble": {4: "3.85 ± 0.12", 8: "7.72 ± 0.34", 16: "15.24 ± 0.69"},
    "single": {4: "3.41 ± 0.18", 8: "6.73 ± 0.24", 16: "12.77 ± 0.71"},
    "group": {4: "4.00 ± 0.00", 8: "7.71 ± 0.21", 16: "15.08 ± 0.34"},
    "canonical": {4: "4.00 ± 0.00", 8: "7.45 ± 0.14", 16: "12.41 ± 0.85"},
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Sizes. `channels` of the group CNN and `finder`, of the orientation network in Canon, count all orientations."""

    orders: tuple[int, ...]
    members: int
    train: int
    test: int
    epochs: int
    batch_size: int
    channels: tuple[int, int, int]
    finder: tuple[int, int]
    rotations: int
    so2_test: int
    methods: tuple[str, ...] = tuple(METHODS)
    drawn: bool = False
    seed: int = 0


PRESETS = {
    "quick": Settings((4, 8, 16), 10, 300, 100, 4, 32, (32, 32, 256), (32, 16), 12, 60),
    "paper": Settings((4, 8, 16), 10, 60_000, 10_000, 10, 64, (64, 128, 512), (64, 64), 100, 1000),
    # These two methods contain the layers of all. Most of the time here is compilation.
    "test": Settings((8,), 2, 16, 4, 2, 16, (8, 8, 16), (8, 8), 7, 4, methods=("ensemble", "canonical"), drawn=True),
}


def compute(settings, data, results):
    shape = data.x.shape[1:]
    for order in settings.orders:
        for method in settings.methods:
            results.part(f"C{order}-{method}", measure, settings, data, order, method, shape, results)


def measure(settings, data, order, method, shape, results):
    """Train one method and return its measurements."""
    module, members = network(settings, order, method, shape), settings.members if method == "ensemble" else 1
    which = {"sizes": (members,), "sets": TRIED, "so2_sets": SO2_SETS, "epochs": range(1, settings.epochs + 1)}
    name = f"C{order}-{method}"
    found = train_on_orbits(results, name, module, data, settings, order=order, members=members, **which)
    return found | {"parameters": members * count_parameters(module, shape)}


def network(settings, order, method, shape):
    """Return the network of a method: a member of the ensemble, or a network as large as the whole ensemble."""
    member = ensembles.fashion_cnn()
    if method == "ensemble":
        return member
    build = {
        "single": WideCNN,
        "group": lambda head: GroupCNN(order, tuple(settings.channels), head),
        "canonical": lambda percent: Canonicalised(order, tuple(settings.finder), percent),
    }[method]
    return match_parameters(build, settings.members * count_parameters(member, shape), shape)


def over_training(part, what):
    """Return mean and standard deviation over the epochs."""
    values = part[f"{what}.osp"][:, 0]
    return values.mean(), values.std(ddof=1) if len(values) > 1 else 0.0


def table(settings, found):
    lines = ["Images drawn at random for a test, not the sets that are named here"] if settings.drawn else []
    heading = "".join(f"{f'C{order}':>16}" for order in settings.orders)
    for name in TRIED:
        lines += [f"Orbit same prediction on {SETS[name]}, mean ± standard deviation over the epochs"]
        lines += [f"{'':24}{heading}"]
        for method in settings.methods:
            pairs = [over_training(found[f"C{order}-{method}"], name) for order in settings.orders]
            lines.append(f"{METHODS[method]:24}" + "".join(f"{f'{mean:.2f} ± {std:.2f}':>16}" for mean, std in pairs))
            if name == "mnist" and not settings.drawn:
                paper = [PAPER[method].get(order, "") for order in settings.orders]
                lines.append(f"{'   in the paper':24}" + "".join(f"{text:>16}" for text in paper))
        members = [found[f"C{order}-ensemble"][f"{name}.members"] for order in settings.orders]
        lines += [f"{'one member, on average':24}" + "".join(f"{values.mean():16.2f}" for values in members), ""]
    for title, what, form in (
        (
            "Accuracy on all rotations of the FashionMNIST test images, at the end",
            "fashion.accuracy",
            ".1%",
        ),
        ("Fraction of SO(2) with the same prediction on MNIST, at the end", "so2-mnist.osp", ".3f"),
        ("Parameters", "parameters", ",d"),
    ):
        lines += [title, f"{'':24}{heading}"]
        for method in settings.methods:
            values = [np.ravel(found[f"C{order}-{method}"][what])[-1] for order in settings.orders]
            lines.append(f"{METHODS[method]:24}" + "".join(f"{format(value, form):>16}" for value in values))
        lines.append("")
    return "\n".join(lines)


def figures(settings, found):
    return {"osp": comparison_figure(settings, found), "so2": so2_figure(settings, found)}


def comparison_figure(settings, found):
    """Draw all methods on three sets, as fractions of the orbit, so that groups can be compared."""
    fig, axes = plotting.panels(len(TRIED), width=3.0, height=3.0, sharey=True)
    for ax, name in zip(axes, TRIED, strict=True):
        for number, method in enumerate(settings.methods):
            pairs = [over_training(found[f"C{order}-{method}"], name) for order in settings.orders]
            mean, std = (np.array(values) / settings.orders for values in zip(*pairs, strict=True))
            places = np.arange(len(settings.orders)) + 0.12 * (number - 1.5)
            plotting.measured(ax, places, mean, std, label=METHODS[method], number=number)
        ax.axhline(1, color="black", linewidth=0.8, linestyle=(0, (1, 3)))
        ax.set_title(SETS[name], loc="left")
        ax.set_xticks(range(len(settings.orders)), [f"C{order}" for order in settings.orders])
    axes[0].set_ylabel("orbit same prediction / k\n(mean, and deviation over the epochs)")
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(settings.methods))
    return fig


def so2_figure(settings, found):
    """Draw results for all rotations of the plane, for the canonicalised network and for the ensemble."""
    epochs = np.arange(1, settings.epochs + 1)
    shown = ("canonical", "ensemble")
    fig, axes = plotting.panels(len(shown), width=3.4, height=3.0, sharey=True)
    for ax, method in zip(axes, shown, strict=True):
        for number, order in enumerate(settings.orders):
            part = found[f"C{order}-{method}"]
            values, errors = part["so2-mnist.osp"][:, 0], total_error(part, "so2-mnist")[:, 0]
            plotting.measured(ax, epochs, values, errors, label=f"C{order}", number=number, joined=True)
        ax.set_title(f"{METHODS[method]}, on {SETS['mnist']}", loc="left")
        ax.set(xlabel="epoch (bars: standard error)", xticks=epochs)
    axes[0].set_ylabel("fraction of SO(2) with\nthe same prediction")
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(settings.orders))
    return fig


COMPARISON = Experiment("method_comparison", __doc__, PRESETS, pictures, compute, table, figures)

if __name__ == "__main__":
    sys.exit(COMPARISON.main())
