"""The Ising model: how invariant an ensemble is, predicted before it is trained, and then measured.

Networks learn the 25 local energies of spins on a 5 x 5 lattice, augmented by quarter turns of it. Turning the lattice
leaves the energy E = -(sum of local energies)/25 as it is. No single network knows that; the infinite ensemble does,
exactly, and an ensemble of M members does up to an error that falls as 1/sqrt(M). The error is the standard deviation
of the predicted energy over the four turns, averaged over a set of spins. It is shown as it is, and relative (RSD) to
one of two things: the standard deviation of E over the training distribution, 0.566 (exact), or 2, which the paper
takes for it and which is that of a local energy.

Members are trained by gradient descent on all data, and theory is about just that: infinite width, the same rate, the
same number of steps. The quick preset ends long before the networks have learnt all they can, after a hundredth of the
paper's training time: the longer a network is trained, the wider it must be to be close to theory.
"""

import dataclasses
import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _experiment import Experiment, double_precision
from matplotlib.patches import Patch

from ntk_equiv import InfiniteEnsemble, augment, bounds, datasets, ensembles, filters, metrics, plotting, stax

SITES = 25
READOUT = -np.ones(SITES) / SITES  # the energy, from the local ones
PAPER_NORMALIZER = 2.0
SETS = {"train": "training set", "test": "test set", "ood": "out of distribution"}
POINTS_AT_A_TIME = 100


@dataclasses.dataclass(frozen=True)
class Settings:
    """Sizes; one rate for each width."""

    widths: tuple[int, ...]
    rates: tuple[float, ...]
    members: int
    sizes: tuple[int, ...]
    steps: int
    points: int
    test_points: int
    seed: int = 0


PRESETS = {
    "quick": Settings((128, 512, 2048), (5.0, 5.0, 5.0), 128, (1, 4, 16, 32, 128), 100, 128, 256),
    "paper": Settings(
        (128, 512, 1024, 2048), (0.5, 0.5, 0.5, 1.0), 10_000, (100, 500, 1000, 5000, 10_000), 100_000, 128, 1000
    ),
    "test": Settings((16, 32), (20.0, 20.0), 8, (1, 4, 8), 10, 4, 3),
}


def load(settings, data_dir):
    """Spins and local energies: two sets of random spins +1 and -1, and one of Gaussian spins with variance 400."""
    counts = {"train": settings.points, "test": settings.test_points, "ood": settings.test_points}
    return datasets.ising(jax.random.key(settings.seed), **counts)


def compute(settings, data, results):
    for rate in sorted(set(settings.rates)):
        results.part(f"theory-{rate:g}", theory, settings, data, rate)
    for width, rate in zip(settings.widths, settings.rates, strict=True):
        results.part(f"width-{width}", trained, settings, data, width, rate, results)


def theory(settings, data, rate):
    """What is known without training: mean and deviation of the energies, and the error of M members."""
    _, _, kernel_fn = stax.serial(stax.Dense(1, 2**0.5), stax.Relu(), stax.Dense(1))  # any width: the kernel knows none
    with double_precision():
        sets = {name: jax.tree.map(lambda leaf: leaf.astype(float), getattr(data, name)) for name in SETS}
        train = augment(*sets["train"])
        ens = InfiniteEnsemble(kernel_fn, train, filters.gradient_descent(rate), reduction="mean")
        found = {"normalizer": data.std.energy, "sizes": np.geomspace(1, settings.members, 25)}
        for name, points in sets.items():
            law = bounds.orbit_deviation(ens, points.x, settings.steps, readout=READOUT)
            found[f"{name}.expected"] = [law.expected(size).mean() for size in found["sizes"]]
            orbit = ens.mean(points.rep_x.orbit(points.x).reshape(-1, SITES), settings.steps)
            energies = datasets.total_energy(orbit).reshape(1, -1, points.n, 1)
            found[f"{name}.infinite"] = metrics.orbit_std(energies).ensemble
            found[f"{name}.energy"] = energies[0, 0, :, 0]
            found[f"{name}.std"] = jnp.sqrt(ens.var(points.x, settings.steps) / SITES)
    return found


def trained(settings, data, width, rate, results):
    """Members of one width: the error of each, and of ensembles of several sizes that share no member."""
    run = results.train(
        f"width-{width}",
        ensembles.mlp((width,), SITES),
        augment(*data.train),
        members=settings.members,
        steps=settings.steps,
        optimizer=optax.sgd(rate),
        key=jax.random.fold_in(jax.random.key(settings.seed), width),
    )
    known = results.found[f"theory-{rate:g}"]
    found = {"lost": len(run.failed)}
    for name in SETS:
        energies = orbit_energies(run, getattr(data, name))
        truth = known[f"{name}.energy"]
        for size in sorted({1, *settings.sizes}):
            count = len(energies) // size
            means = energies[: count * size].reshape(count, size, *energies.shape[1:]).mean(1)
            found[f"{name}.std.{size}"] = means.std(1).mean(1)
            found[f"{name}.difference.{size}"] = np.abs(means[:, 0] - truth).mean(1)
    return found


def orbit_energies(run, points):
    """The energy that each member predicts for all turns of all points, [members, 4, n], in float64."""
    found = []
    for start in range(0, points.n, POINTS_AT_A_TIME):
        orbit = points.rep_x.orbit(points.x[start : start + POINTS_AT_A_TIME])
        local = run.predict(orbit.reshape(-1, SITES))[run.finished]
        energies = np.asarray(datasets.total_energy(local), np.float64)
        found.append(energies.reshape(len(local), *orbit.shape[:2]))
    return np.concatenate(found, axis=2)


def mean_and_error(values, members, size):
    """The mean over ensembles of one size, and its standard error.

    At infinite width the error of an ensemble of M members has the law of that of one member, divided by sqrt(M). So
    its spread is taken from the many members, also where there is only one ensemble.
    """
    return values.mean(), members.std(ddof=1) / math.sqrt(size * len(values))


def table(settings, found):
    header = f"{'':20}{'width':>6}{'M':>7}  {'measured':>19}  {'theory':>9}  {'off by':>7}  {'/0.566':>8}  {'/2':>8}"
    lines = ["Standard deviation of the energy over the orbit", header]
    ratios = [f"Members over ensemble, at M = {settings.sizes[-1]} (theory: {math.sqrt(settings.sizes[-1]):.1f})"]
    for name, title in SETS.items():
        for width, rate in zip(settings.widths, settings.rates, strict=True):
            known, part = found[f"theory-{rate:g}"], found[f"width-{width}"]
            members = part[f"{name}.std.1"]
            shown = {}
            for size in (1, settings.sizes[-1]):
                value, error = mean_and_error(part[f"{name}.std.{size}"], members, size)
                theory = known[f"{name}.expected"][0] / math.sqrt(size)
                relative = f"{value / known['normalizer']:8.2%}  {value / PAPER_NORMALIZER:8.2%}"
                off = f"{(value - theory) / error:+5.1f}"
                lines.append(
                    f"{title:20}{width:6}{size:7}  {value:9.5f} ± {error:.5f}  {theory:9.5f}  {off:>5} σ  {relative}"
                )
                shown[size] = value
            ratios.append(f"{title:20}{width:6}  {shown[1] / shown[settings.sizes[-1]]:9.1f}")
    infinite = [
        f"{title}: {max(part[f'{name}.infinite'] for part in _theories(found)):.1e}" for name, title in SETS.items()
    ]
    lines.append("Infinite ensemble (rounding): " + ", ".join(infinite))
    lost = sum(int(part["lost"]) for part in found.values() if "lost" in part)
    return "\n".join([*lines, "", *ratios, "", f"Members lost in training: {lost}"])


def figures(settings, found):
    """The paper's Figure 1 and the figure of its appendix on the Ising model, with theory on top."""
    scale = _theories(found)[0]["normalizer"]
    orbit, axes = against_size(settings, found, "std", lambda known, name: known[f"{name}.expected"])
    for ax, name in zip(axes, SETS, strict=True):
        rounding = max(known[f"{name}.infinite"] for known in _theories(found)) / scale
        ax.text(0.04, 0.04, f"infinite ensemble: {rounding:.0e}", transform=ax.transAxes, fontsize=7)
    axes[0].set_ylabel("orbit deviation of the energy, relative\nto its standard deviation in the data")
    distance, axes = against_size(settings, found, "difference", expected_distance)
    axes[0].set_ylabel("distance from the infinite ensemble,\nin the same units")
    return {"orbit_deviation": orbit, "convergence": distance}


def expected_distance(known, name):
    """The mean of |z| for a Gaussian z is sqrt(2/pi) times its standard deviation, which falls as 1/sqrt(M)."""
    return math.sqrt(2 / math.pi) * known[f"{name}.std"].mean() / np.sqrt(known["sizes"])


def against_size(settings, found, quantity, expected):
    """A quantity of ensembles against their size, in units of the standard deviation of the energy, for each set."""
    fig, axes = plotting.panels(3, width=3.0)
    for ax, (name, title) in zip(axes, SETS.items(), strict=True):
        scale = _theories(found)[0]["normalizer"]
        for number, width in enumerate(settings.widths):
            part = found[f"width-{width}"]
            members = part[f"{name}.{quantity}.1"] / scale
            ax.axhspan(*np.quantile(members, [0.25, 0.75]), color=plotting.COLOURS[number], alpha=0.15, linewidth=0)
            shown = [
                mean_and_error(part[f"{name}.{quantity}.{size}"] / scale, members, size) for size in settings.sizes
            ]
            beside = np.array(settings.sizes) * 1.08 ** (
                number - (len(settings.widths) - 1) / 2
            )  # marks do not hide marks
            plotting.measured(ax, beside, *zip(*shown, strict=True), label=f"width {width}", number=number)
        for number, known in enumerate(_theories(found)):
            label = "theory" if number == 0 else None
            plotting.predicted(ax, known["sizes"], expected(known, name) / scale, label=label)
        ax.set(xscale="log", yscale="log", xlabel="members of the ensemble, M", title=title)
    handles, labels = axes[0].get_legend_handles_labels()
    handles.append(Patch(color="gray", alpha=0.3))
    axes[0].legend(handles, [*labels, "members, quartiles"], loc="lower left", bbox_to_anchor=(0, 0.07), fontsize=7)
    return fig, axes


def _theories(found):
    return [part for name, part in found.items() if name.startswith("theory-")]


ISING = Experiment("ising", __doc__, PRESETS, load, compute, table, figures)

if __name__ == "__main__":
    sys.exit(ISING.main())
