"""Dipole moments of small molecules: graphs whose node features rotate.

Molecules are made up (see `_molecules.py`): chains and rings for training and testing, branched ones out of
distribution. Each atom has a position and a charge. ρ_X = R ⊕ 1 acts on these features and leaves the bonds alone.
The dipole moment rotates as a vector. A graph network learns it from a few molecules, augmented by the rotations of a
tetrahedron (T) or octahedron (O):

    atom by atom Dense – ReLU,   sum over neighbours – Dense – ReLU,   mean over atoms – Dense

The theory of the infinite ensemble, with the tangent kernel of this network, predicts how far members and ensembles
are from equivariant after any number of steps of gradient descent. An ensemble of finite width is trained to check
this. The error is the orbit MSE, the mean square of f(gx) − g f(x) over the group, the molecules and the three
components.

The paper derives the kernels of graph networks but has no such experiment. The preset "paper" is just larger.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _experiment import Experiment, Results, double_precision
from _molecules import molecules
from _orbit_errors import (
    expected_of_ensembles,
    of_ensembles,
    orbit_products,
    parts,
    powers,
    predicted_parts,
    products,
    with_orbit,
)
from matplotlib.figure import Figure

from ntk_equiv import InfiniteEnsemble, augment, bounds, filters, groups, plotting, reps, stax
from ntk_equiv.datasets import LabelledSet

TITLES = {"train": "training molecules", "test": "chains and rings", "ood": "branched (out of distribution)"}
KINDS = {"train": ("chain", "ring"), "test": ("chain", "ring"), "ood": ("branched",)}
W_STD, B_STD = 2**0.5, 0.1


@dataclasses.dataclass(frozen=True)
class Settings:
    """Sizes. Errors are measured on `samples` molecules of each set, on test molecules also after `early` steps."""

    group: str = "T"
    molecules: int = 8
    atoms: int = 6
    samples: int = 6
    widths: tuple[int, ...] = (128, 512)
    members: int = 16
    rate: float = 4.0
    steps: int = 60
    early: tuple[int, ...] = (1, 6, 20)
    seed: int = 0


PRESETS = {
    "quick": Settings(),
    "laptop": Settings(samples=24, widths=(64, 256, 1024), members=64),
    "paper": Settings(
        group="O", molecules=100, samples=100, widths=(256, 1024, 4096), members=1000, steps=300, early=(1, 6, 20, 60)
    ),
    "test": Settings(molecules=2, atoms=4, samples=2, widths=(4,), members=3, steps=2, early=()),
}


class Data(NamedTuple):
    """The three sets."""

    train: LabelledSet
    test: LabelledSet
    ood: LabelledSet


def load(settings: Settings, data_dir: Any) -> dict[str, Any]:
    """Draw molecules, in double precision."""
    rng = np.random.default_rng(settings.seed)
    counts = {"train": settings.molecules, "test": settings.samples, "ood": settings.samples}
    return {name: molecules(rng, counts[name], KINDS[name], settings.atoms) for name in TITLES}


def compute(settings: Settings, data: dict[str, Any], results: Results) -> None:
    """Train ensembles, and compute the theory."""
    for width in settings.widths:
        results.part(f"width-{width}", train_members, settings, graphs(settings, data), results, width)
    with double_precision():
        results.part("theory", theory, settings, graphs(settings, data))


def graphs(settings: Settings, data: dict[str, Any]) -> Data:
    """Return molecules as graphs in the current precision, with dipoles in units of their size in the training set."""
    group = groups.polyhedral(settings.group)
    vector = reps.matrix(group)
    atom = reps.direct_sum(vector, reps.trivial(group, 1))
    unit = np.sqrt(np.mean(data["train"].dipoles ** 2))

    def labelled(one: Any) -> LabelledSet:
        return LabelledSet(
            stax.Graph.of(one.atoms, one.neighbours), jnp.asarray(one.dipoles / unit), rep_x=atom, rep_y=vector
        )

    return Data(**{name: labelled(one) for name, one in data.items()})


def network(width: int) -> stax.Network:
    """Return the graph network. Its kernel does not depend on the width."""
    return stax.serial(
        *(stax.Dense(width, W_STD, B_STD), stax.Relu()),
        *(stax.Aggregate(), stax.Dense(width, W_STD, B_STD), stax.Relu()),
        *(stax.GlobalAvgPool(), stax.Dense(3, 1.0, B_STD)),
    )


def train_members(settings: Settings, data: Data, results: Results, width: int) -> dict[str, Any]:
    """Train members. Return products of their equivariance errors along training, and of errors on test molecules."""
    record: dict[str, Any] = {"error": (data.test.x, lambda predictions: products(predictions - data.test.y[None]))}
    for name in TITLES:
        few = getattr(data, name).take(slice(settings.samples))
        record[name] = with_orbit(few.x, few.rep_x, None), orbit_products(few.rep_y, None)
    run = results.train(
        f"width-{width}",
        network(width),
        augment(*data.train),
        members=settings.members,
        steps=settings.steps,
        optimizer=optax.sgd(settings.rate),
        key=jax.random.key(settings.seed),
        record=record,
        record_at=(*settings.early, settings.steps),
    )
    return run.records


def theory(settings: Settings, data: Data) -> dict[str, Any]:
    """Compute the same from theory: (b + v, v, b) of each set at the end, and of the test molecules at all times."""
    rule = filters.gradient_descent(settings.rate)
    ens = InfiniteEnsemble(network(1).kernel_fn, augment(*data.train), rule, reduction="mean", method="reduced")
    few = {name: getattr(data, name).take(slice(settings.samples)) for name in TITLES}

    def law(name: str, t: int) -> np.ndarray:
        return predicted_parts(bounds.orbit_deviation(ens, few[name].x, t))

    found: dict[str, Any] = {name: law(name, settings.steps) for name in TITLES}
    found["times"] = np.stack([law("test", t) for t in (*settings.early, settings.steps)])
    error = ens.expected_mse(data.test.x, data.test.y, settings.steps)
    found["error"] = np.array([error.total, error.bias])
    found["size"] = jnp.sqrt(jnp.mean(data.test.y**2))
    return found


def table(settings: Settings, found: Any) -> str:
    """Format measured and predicted numbers."""
    says = found["theory"]
    rmse = np.sqrt(says["error"])
    lines = [
        f"{settings.molecules} molecules of {settings.atoms} atoms under {settings.group}, gradient descent "
        f"(rate {settings.rate:g}, {settings.steps} steps, mean loss, full batches)",
        f"RMSE on test molecules, whose dipoles have components of size {says['size']:.2f} (training molecules: 1):",
        f"  theory      member {rmse[0]:.3f}, infinitely many {rmse[1]:.3f}",
    ]
    for width in settings.widths:
        P = found[f"width-{width}"]["error"][-1]
        own, all_ = np.sqrt([np.trace(P) / len(P), P.mean()])
        lines.append(f"  width {width:5d} member {own:.3f}, ensemble of {settings.members} {all_:.3f}")
    lines += [
        f"orbit MSE; ± standard errors over {settings.members} members",
        "width     set    member               infinitely many, extrapolated",
    ]
    for width in settings.widths:
        for name in TITLES:
            (member, _, b), (error, _, b_error) = parts(found[f"width-{width}"][name][-1])
            lines.append(f"{width:6d}    {name:5s}  {member:.5f} ± {error:.5f}     {b:8.5f} ± {b_error:.5f}")
    lines += [f"theory    {name:5s}  {says[name][0]:.5f}                {says[name][2]:8.0e}" for name in TITLES]
    return "\n".join(lines)


def figures(settings: Settings, found: Any) -> dict[str, Figure]:
    """Draw errors against the size of the ensemble for the widest networks, and against time for all."""
    fig, (left, right) = plotting.panels(2, width=3.8, height=3.1)
    sizes, widest = powers(settings.members), found[f"width-{settings.widths[-1]}"]
    for number, (name, title) in enumerate(TITLES.items()):
        values, errors = of_ensembles(widest[name][-1], sizes)
        plotting.measured(left, sizes, values, errors, number=number, label=f"measured, {title}")
        says = expected_of_ensembles(found["theory"][name], sizes)
        plotting.predicted(left, sizes, says, number=number)
    left.plot([], [], "--", color="gray", linewidth=1.2, label="theory, in the same colours")
    left.set(title=f"width {settings.widths[-1]}, after {settings.steps} steps", xscale="log", yscale="log")
    left.set(xlabel="members of the ensemble", ylabel="orbit MSE")
    left.set_xticks(sizes, [str(size) for size in sizes])
    left.minorticks_off()
    left.set_ylim(left.get_ylim()[0] / 8)  # room for the legend
    left.legend(title="± standard error over members", title_fontsize=7)
    _time_panel(right, settings, found)
    return {"graphs": fig}


def _time_panel(ax: Any, settings: Settings, found: Any) -> None:
    """Draw members and whole ensembles, on test molecules."""
    steps, sizes = (*settings.early, settings.steps), (1, settings.members)
    says = np.array([expected_of_ensembles(one, sizes) for one in found["theory"]["times"]])
    for number, width in enumerate(settings.widths):
        values, errors = np.array([of_ensembles(P, sizes) for P in found[f"width-{width}"]["test"]]).swapaxes(0, 1)
        for i in range(2):
            label = f"measured, width {width}" if i == 0 else None
            plotting.measured(ax, steps, values[:, i], errors[:, i], number=3 + number, label=label)
    for i in range(2):
        plotting.predicted(ax, steps, says[:, i], label="theory" if i == 0 else None)
    ax.set(xlabel="steps of gradient descent", xscale="log", yscale="log")
    ax.set_title(f"members (above), ensembles of {settings.members}")
    ax.legend(title="± standard error over members", title_fontsize=7)


GRAPHS = Experiment("graphs", __doc__, PRESETS, load, compute, table, figures)

if __name__ == "__main__":
    raise SystemExit(GRAPHS.main())
