"""Four ways to make a classifier invariant under rotations, each with about the same number of parameters.

    DeepEns+DA   an ensemble of the paper's networks, trained on data augmented by rotations
    only DA      one wide network of the same kind, trained on the same data
    group CNN    a network built to be invariant, with filters of circular harmonics as in E2CNN
    Canon        a small group CNN rotates the image to a standard orientation, an ordinary network classifies it

All are trained on FashionMNIST under all rotations by 360/k degrees, with the same optimizer. The presets "quick" and
"paper" give all methods the same number of steps. The preset "laptop" trains each for as long as should take it to an
accuracy of about 80 %. The orbit same prediction says how many of the k rotations of an image get the same class as the
image. It is k if the classifier is invariant. The last two methods are exactly invariant for k = 4. For k = 8 and 16
they are not, because rotations on a square grid of pixels or features interpolate.

Methods are compared after training, on the same images, so that differences have paired errors. Table 1 of the paper
has mean and standard deviation over the epochs instead: these are shown too, where all methods have the same epochs.

The paper's caption says that its ensembles have 100 members. Its appendix says that they have ten, and that the other
networks have as many parameters as these ten. All presets follow the appendix.
"""

import dataclasses
import sys

import numpy as np
from _experiment import Experiment
from _group_cnn import Canonicalised, GroupCNN, WideCNN, count_parameters, match_parameters
from _orbit_records import paired, total_error
from _orbit_training import evaluated, train_on_orbits
from _orientations import follow_rotations, table_of_orientations
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
    """Sizes. `channels` of the group CNN and `finder`, of the orientation network in Canon, count all orientations.

    `networks` says how many networks of each of the other methods are trained, from different keys. The augmentation
    "full" shows every image under all rotations in an epoch, "random" under one that is drawn. Networks are evaluated
    after `every` so many epochs, and at the end. Some methods may have other epochs and batches than the ensemble, as
    `schedules`: (method, epochs, batch size). `followed` test images show what orientations Canon finds.
    """

    orders: tuple[int, ...]
    members: int
    train: int
    test: int
    epochs: int
    batch_size: int
    channels: tuple[int, int, int]
    finder: tuple[int, ...]
    rotations: int
    so2_test: int
    methods: tuple[str, ...] = tuple(METHODS)
    networks: int = 1
    schedules: tuple[tuple[str, int, int], ...] = ()
    augmentation: str = "full"
    every: int = 1
    followed: int = 100
    drawn: bool = False
    seed: int = 0

    def of_method(self, method):
        """Return the settings that this method is trained with."""
        own = {name: {"epochs": epochs, "batch_size": size} for name, epochs, size in self.schedules}
        return dataclasses.replace(self, **own.get(method, {}))


PRESETS = {
    "quick": Settings((4, 8, 16), 10, 300, 100, 4, 32, (32, 32, 256), (32, 16), 12, 60),
    # The larger networks learn more from an image: all methods end with similar accuracies, after similar work.
    "laptop": Settings(
        (4, 8, 16),
        10,
        60_000,
        1000,
        8,
        64,
        (32, 32, 256),
        (32, 16),
        10,
        1000,
        networks=3,
        schedules=(("single", 2, 32), ("group", 1, 32), ("canonical", 1, 32)),
        augmentation="random",
        every=2,
        followed=300,
    ),
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
    settings = settings.of_method(method)
    module, size = network(settings, order, method, shape), settings.members if method == "ensemble" else 1
    # Networks that do not belong together are trained side by side, as ensembles of one.
    members = size if method == "ensemble" else settings.networks
    which = {"sizes": (size,), "sets": TRIED, "so2_sets": SO2_SETS, "epochs": evaluated(settings, untrained=False)}
    name = f"C{order}-{method}"
    found, run = train_on_orbits(results, name, module, data, settings, order=order, members=members, **which)
    if method == "canonical":
        tests = {name: data.tests[name][: settings.followed] for name in ("fashion", "mnist")}
        found |= follow_rotations(module, run.params, tests, order)
    return found | {"parameters": size * count_parameters(module, shape), "seen": run.steps * settings.batch_size}


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


def finished(settings, found):
    """Return the settings with the orders for which all methods are finished."""
    orders = [order for order in settings.orders if all(f"C{order}-{method}" in found for method in settings.methods)]
    return dataclasses.replace(settings, orders=tuple(orders or settings.orders))


def table(settings, found):
    settings = finished(settings, found)
    lines = ["Images drawn at random for a test, not the sets that are named here"] if settings.drawn else []
    if not settings.schedules:
        lines += along_training(settings, found)
    lines += after_training(settings, found)
    heading = columns(f"C{order}" for order in settings.orders)
    for title, what, form in (
        ("Accuracy on all rotations of the FashionMNIST test images", "fashion.accuracy", ".1%"),
        ("Accuracy on the FashionMNIST test images as they are", "fashion.upright", ".1%"),
        ("Its standard error over images", "fashion.upright_error", ".1%"),
        ("Images seen by each network", "seen", ",d"),
        ("Parameters", "parameters", ",d"),
    ):
        lines += [title, f"{'':24}{heading}"]
        for method in settings.methods:
            values = [np.ravel(found[f"C{order}-{method}"][what])[-1] for order in settings.orders]
            lines.append(f"{METHODS[method]:24}{columns(format(value, form) for value in values)}")
        lines.append("")
    if "canonical" in settings.methods:
        lines += table_of_orientations(found, settings.orders)
    return "\n".join(lines)


def along_training(settings, found):
    """Return mean and standard deviation over the epochs, as in Table 1 of the paper."""
    lines = []
    for name in TRIED:
        lines += [f"Orbit same prediction on {SETS[name]}, mean ± standard deviation over the epochs"]
        lines += [f"{'':24}{columns(f'C{order}' for order in settings.orders)}"]
        for method in settings.methods:
            rows = [found[f"C{order}-{method}"][f"{name}.osp"][:, -1] for order in settings.orders]
            shown = columns(f"{row.mean():.2f} ± {row.std(ddof=1):.2f}" for row in rows)
            lines.append(f"{METHODS[method]:24}{shown}")
        lines.append("")
    return lines


def after_training(settings, found):
    """Compare methods after training: differences on the same images have smaller errors than values."""
    parts = {method: [found[f"C{order}-{method}"] for order in settings.orders] for method in settings.methods}
    numbers = lambda pairs, form=".3f": columns(f"{value:{form}} ± {error:.3f}" for value, error in pairs)  # noqa: E731
    lines = []
    for name in (*TRIED, *(f"so2-{name}" for name in SO2_SETS)):
        title = SETS[name] if name in SETS else f"{SETS[name.removeprefix('so2-')]}, fraction of SO(2)"
        lines += [f"Orbit same prediction after training on {title}, ± standard error over images; single networks"]
        lines += [f"{'':24}{columns(f'C{order}' for order in settings.orders)}"]
        for method in settings.methods:
            pairs = [(part[f"{name}.osp"][-1, -1], total_error(part, name)[-1, -1]) for part in parts[method]]
            lines.append(f"{METHODS[method]:24}{numbers(pairs)}")
            members = [part[f"{name}.members"][-1] for part in parts[method]]
            if method == "ensemble":
                lines.append(f"{'   member, on average':24}{columns(f'{row.mean():.3f}' for row in members)}")
            else:
                shown = columns(" ".join(f"{value:.3f}" for value in row) for row in members)
                lines.append(f"{'   networks':24}{shown}")
            if name == "mnist" and not settings.drawn:
                paper = columns(PAPER[method].get(order, "") for order in settings.orders)
                lines.append(f"{'   in the paper':24}{paper}")
        for method in settings.methods[1:]:
            pairs = [
                paired(ours[f"{name}.points"][-1, -1], other[f"{name}.points"][-1, -1])
                for ours, other in zip(parts["ensemble"], parts[method], strict=True)
            ]
            lines.append(f"{f'DeepEns - {METHODS[method]}':24}{numbers(pairs, '+.3f')}")
        lines.append("")
    return lines


def columns(texts):
    """Return texts side by side."""
    return "".join(f"{text:>22}" for text in texts)


def figures(settings, found):
    settings = finished(settings, found)
    return {"osp": comparison_figure(settings, found), "so2": so2_figure(settings, found)}


def comparison_figure(settings, found):
    """Draw all methods on three sets, as fractions of the orbit, so that groups can be compared."""
    fig, axes = plotting.panels(len(TRIED), width=3.0, height=3.0, sharey=True)
    for ax, name in zip(axes, TRIED, strict=True):
        curves(ax, settings, found, name, np.array(settings.orders))
        ax.set_title(SETS[name], loc="left")
    axes[0].set_ylabel("orbit same prediction / k")
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(settings.methods))
    return fig


def so2_figure(settings, found):
    """Draw all methods under all rotations of the plane."""
    fig, axes = plotting.panels(len(SO2_SETS), width=3.8, height=3.2)
    for ax, name in zip(axes, SO2_SETS, strict=True):
        curves(ax, settings, found, f"so2-{name}", 1)
        ax.set_title(SETS[name], loc="left")
    axes[0].set_ylabel("fraction of SO(2) with\nthe same prediction")
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return fig


def curves(ax, settings, found, name, whole):
    """Draw each method after training, divided by `whole`, with standard errors, and single networks as small dots."""
    for number, method in enumerate(settings.methods):
        parts = [found[f"C{order}-{method}"] for order in settings.orders]
        values = np.array([part[f"{name}.osp"][-1, -1] for part in parts]) / whole
        errors = np.array([total_error(part, name)[-1, -1] for part in parts]) / whole
        places = np.arange(len(parts)) + 0.12 * (number - 1.5)
        plotting.measured(ax, places, values, errors, label=METHODS[method], number=number)
        if method != "ensemble":
            members = np.array([part[f"{name}.members"][-1] for part in parts]) / np.reshape(whole, (-1, 1))
            ax.plot(places, members, ".", color=plotting.COLOURS[number], markersize=3, alpha=0.6)
    ax.axhline(1, color="black", linewidth=0.8, linestyle=(0, (1, 3)))
    ax.set_xticks(range(len(settings.orders)), [f"C{order}" for order in settings.orders])
    ax.set_xlim(-0.5, len(settings.orders) - 0.5)
    ax.set_xlabel("augmented by (bars: standard error;\ndots: single networks)")


COMPARISON = Experiment("method_comparison", __doc__, PRESETS, pictures, compute, table, figures)

if __name__ == "__main__":
    sys.exit(COMPARISON.main())
