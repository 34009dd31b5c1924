"""The Ising model: the theory predicts how invariant an ensemble will be, then training measures it.

Networks learn the 25 local energies of spins on a 5 x 5 lattice, augmented by quarter turns. Turning the lattice does
not change the energy E = -(sum of local energies)/25. No single network knows that. The infinite ensemble does,
exactly, and an ensemble of M members does up to an error that falls as 1/sqrt(M). The error is the standard deviation
of the predicted energy over the four turns, averaged over a set of spins. It is shown as it is, and relative (RSD) to
one of two numbers: the standard deviation of E over the training distribution, 0.566 (exact), or 2, the number that
the paper uses, which is the standard deviation of a local energy.

Members are trained by gradient descent on all data. The theory covers exactly this case: infinite width, the same
rate, the same number of steps. The presets quick and laptop stop after a hundredth of the paper's training time, long
before the networks have learned all they can. The longer a network is trained, the wider it must be to stay close to
the theory. To show this, laptop also trains a few members as long as the paper does, in larger steps.
"""

import dataclasses
import math
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _experiment import Experiment, double_precision
from matplotlib.patches import Patch

from ntk_equiv import InfiniteEnsemble, augment, bounds, datasets, ensembles, filters, metrics, plotting, stax

POSITIONS = 25
READOUT = -np.ones(POSITIONS) / POSITIONS  # the energy is this combination of the local ones
PAPER_NORMALIZER = 2.0
SETS = {"train": "training set", "test": "test set", "ood": "out of distribution"}
SAMPLES_AT_A_TIME = 100


@dataclasses.dataclass(frozen=True)
class Settings:
    """Sizes. There is one rate for each width, and one number of members for each width of the late training."""

    widths: tuple[int, ...]
    rates: tuple[float, ...]
    members: int
    sizes: tuple[int, ...]
    steps: int
    samples: int
    test_samples: int
    late_widths: tuple[int, ...] = ()
    late_members: tuple[int, ...] = ()
    late_rate: float = 50.0
    late_steps: int = 1000
    seed: int = 0

    def __post_init__(self):
        for many, widths, fix in (
            ("rates", "widths", "--set widths=256 rates=5"),
            ("late_members", "late_widths", "--set late_widths=256 late_members=32"),
        ):
            count, wanted = len(getattr(self, many)), len(getattr(self, widths))
            if count != wanted:
                raise ValueError(f"{many} must be one for each of {widths}, got {count} for {wanted}. Set both: {fix}.")
            if len(set(getattr(self, widths))) < wanted:
                raise ValueError(
                    f"{widths} must be different, got {getattr(self, widths)}. Run the script once for each."
                )
        if min(self.sizes, default=0) < 1 or min(self.steps, self.members) < 1:
            raise ValueError("steps, members and sizes must be at least 1.")
        if max(self.sizes) > self.members:
            raise ValueError(
                f"sizes must be at most {self.members}, the number of members, got {max(self.sizes)}. Set both."
            )


PRESETS = {
    "quick": Settings((128, 512, 2048), (5.0, 5.0, 5.0), 128, (1, 4, 16, 32, 128), 100, 128, 256),
    "laptop": Settings(
        (128, 512, 2048),
        (5.0, 5.0, 5.0),
        1000,
        (1, 4, 16, 64, 250, 1000),
        100,
        128,
        256,
        late_widths=(128, 512, 2048),
        late_members=(64, 64, 32),
    ),
    "paper": Settings(
        (128, 512, 1024, 2048), (0.5, 0.5, 0.5, 1.0), 10_000, (100, 500, 1000, 5000, 10_000), 100_000, 128, 1000
    ),
    "test": Settings(
        (16, 32), (20.0, 20.0), 8, (1, 4, 8), 10, 4, 3, late_widths=(16,), late_members=(3,), late_steps=20
    ),
}


def load(settings, data_dir):
    """Draw spins and local energies: two sets of spins +1 and -1, and one of Gaussian spins with variance 400."""
    counts = {"train": settings.samples, "test": settings.test_samples, "ood": settings.test_samples}
    return datasets.ising(jax.random.key(settings.seed), **counts)


class Training(NamedTuple):
    """Members of one width, and the part with what theory says about them."""

    part: str
    known: str
    width: int
    rate: float
    steps: int
    members: int
    sizes: tuple[int, ...]


def trainings(settings):
    """List the trainings that the figures show."""
    rest = settings.steps, settings.members, settings.sizes
    pairs = zip(settings.widths, settings.rates, strict=True)
    return [Training(f"width-{width}", f"theory-{rate:g}", width, rate, *rest) for width, rate in pairs]


def late_trainings(settings):
    """List the trainings that take longer, with few members."""
    time = settings.late_rate, settings.late_steps
    pairs = zip(settings.late_widths, settings.late_members, strict=True)
    return [Training(f"late-{width}", "late-theory", width, *time, members, (members,)) for width, members in pairs]


def compute(settings, data, results):
    for one in trainings(settings) + late_trainings(settings):
        results.part(one.known, theory, settings, data, one.rate, one.steps)
        results.part(one.part, train_members, settings, data, one, results)


def theory(settings, data, rate, steps):
    """Compute what is known without training: mean and deviation of the energies, and the error of M members."""
    # The kernel does not depend on the width.
    _, _, kernel_fn = stax.serial(stax.Dense(1, 2**0.5), stax.Relu(), stax.Dense(1))
    with double_precision():
        sets = {name: jax.tree.map(lambda leaf: leaf.astype(float), getattr(data, name)) for name in SETS}
        train = augment(*sets["train"])
        ens = InfiniteEnsemble(kernel_fn, train, filters.gradient_descent(rate), reduction="mean")
        found = {"normalizer": data.std.energy, "sizes": np.geomspace(1, settings.members, 25)}
        for name, samples in sets.items():
            law = bounds.orbit_deviation(ens, samples.x, steps, readout=READOUT)
            found[f"{name}.expected"] = [law.expected(size).mean() for size in found["sizes"]]
            orbit = ens.mean(samples.rep_x.orbit(samples.x).reshape(-1, POSITIONS), steps)
            energies = datasets.total_energy(orbit).reshape(1, -1, samples.n, 1)
            found[f"{name}.infinite"] = metrics.orbit_std(energies).ensemble
            found[f"{name}.energy"] = energies[0, 0, :, 0]
            found[f"{name}.std"] = jnp.sqrt(ens.var(samples.x, steps) / POSITIONS)
    return found


def train_members(settings, data, training, results):
    """Train members of one width. Return their errors, and those of disjoint ensembles of several sizes."""
    run = results.train(
        training.part,
        ensembles.mlp((training.width,), POSITIONS),
        augment(*data.train),
        members=training.members,
        steps=training.steps,
        optimizer=optax.sgd(training.rate),
        key=jax.random.fold_in(jax.random.key(settings.seed), training.width),
    )
    known = results.found[training.known]
    found = {"lost": len(run.failed)}
    for name in SETS:
        energies = orbit_energies(run, getattr(data, name))
        truth = known[f"{name}.energy"]
        for size in sorted({1, *training.sizes}):
            count = len(energies) // size
            means = energies[: count * size].reshape(count, size, *energies.shape[1:]).mean(1)
            found[f"{name}.std.{size}"] = means.std(1).mean(1)
            found[f"{name}.difference.{size}"] = np.abs(means[:, 0] - truth).mean(1)
    return found


def orbit_energies(run, samples):
    """Return the energy that each member predicts for all turns of all samples, [members, 4, n], in float64."""
    found = []
    for start in range(0, samples.n, SAMPLES_AT_A_TIME):
        orbit = samples.rep_x.orbit(samples.x[start : start + SAMPLES_AT_A_TIME])
        local = run.predict(orbit.reshape(-1, POSITIONS))[run.finished]
        energies = np.asarray(datasets.total_energy(local), np.float64)
        found.append(energies.reshape(len(local), *orbit.shape[:2]))
    return np.concatenate(found, axis=2)


def mean_and_error(values, members, size):
    """Return the mean over ensembles of one size, and its standard error.

    At infinite width the error of an ensemble of M members is distributed like that of one member, divided by sqrt(M).
    So the spread is taken from the many members, even where there is only one ensemble.
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
    return "\n".join([*lines, "", *ratios, "", *late_table(settings, found), f"Members lost in training: {lost}"])


def late_table(settings, found):
    """Format what theory says about long training, and what few members of each width do."""
    if not settings.late_widths:
        return []
    lines = [
        f"Members after {settings.late_steps} steps at rate {settings.late_rate:g}; ratio of members to ensemble",
        f"{'':20}{'width':>6}{'members':>9}{'measured':>20}{'theory':>11}{'measured/theory':>17}{'ratio':>8}{'√M':>6}",
    ]
    for name, title in SETS.items():
        for one in late_trainings(settings):
            part, count = found[one.part], one.members
            members = part[f"{name}.std.1"]
            value, error = mean_and_error(members, members, 1)
            theory = found[one.known][f"{name}.expected"][0]
            relative = f"{value / theory:.2f} ± {error / theory:.2f}"
            ratio = value / part[f"{name}.std.{count}"].mean()
            lines.append(
                f"{title:20}{one.width:6}{count:9}{f'{value:.4f} ± {error:.4f}':>20}{theory:11.4f}{relative:>17}"
                f"{ratio:8.1f}{math.sqrt(count):6.1f}"
            )
    return [*lines, ""]


def figures(settings, found):
    """Draw the paper's Figure 1 and the figure of its appendix on the Ising model, with theory."""
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
    """Return the mean of |z|, sqrt(2/pi) times the standard deviation of a Gaussian z, which falls as 1/sqrt(M)."""
    return math.sqrt(2 / math.pi) * known[f"{name}.std"].mean() / np.sqrt(known["sizes"])


def against_size(settings, found, quantity, expected):
    """Draw a quantity of ensembles against their size, for each set, in units of the deviation of the energy."""
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
            )  # so marks do not hide each other
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
