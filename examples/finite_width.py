"""Is the network wide enough? The shift of the mean, predicted before training and then measured.

Theory describes infinitely wide networks. At finite width the mean of an ensemble is shifted, by more the longer it is
trained. For each problem, width and time this experiment compares

    measured     the mean of trained members minus that of the exact trajectories of their own initial functions
    predicted    the same before training: a few members move along their linearised trajectories, and the drift of the
                 kernel there is carried to the end (`empirical.laziness`), by one sweep and by two

and the time until which theory holds, when the shift reaches two standard errors of the mean of the ensemble,
s/sqrt(M) with the standard deviation s of a member. Problems: random labels on 24 augmented samples in 4 dimensions,
the Ising model, and trousers against all other clothes on a slice of FashionMNIST; networks with one hidden layer, with
three, and a small CNN. Rates are a quarter of those at which training would diverge at infinite width.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _experiment import Experiment, double_precision

from ntk_equiv import (
    InfiniteEnsemble,
    augment,
    datasets,
    empirical,
    filters,
    gram,
    groups,
    plotting,
    reps,
    stax,
)

STANDARD_ERRORS = 2
TROUSERS = 1
SIDE = 14


@dataclasses.dataclass(frozen=True)
class Problem:
    """One data set and one architecture: which widths, how many members are trained, and how many are followed."""

    title: str
    data: str
    network: str
    widths: tuple[int, ...]
    members: int = 256
    followed: int = 64
    steps: tuple[int, ...] = (25, 50, 100, 200, 400)


@dataclasses.dataclass(frozen=True)
class Settings:
    """All problems, and the sizes of the data sets: base samples and test samples."""

    problems: tuple[Problem, ...]
    vectors: int = 8
    spins: int = 8
    images: int = 16
    test: int = 8
    seed: int = 0

    def __post_init__(self):
        # Settings that are read back from a file are plain dictionaries inside.
        problems = (Problem(**each) if isinstance(each, dict) else each for each in self.problems)
        object.__setattr__(self, "problems", tuple(problems))


QUICK = (64, 256, 1024)
LONG = (25, 50, 100, 200, 400, 800, 1600)
PRESETS = {
    "quick": Settings(
        (
            Problem("vectors, one hidden layer", "vectors", "relu", QUICK, 64, 16, (25, 100, 400)),
            Problem("vectors, one hidden layer, erf", "vectors", "erf", QUICK, 64, 16, (25, 100, 400)),
        )
    ),
    "laptop": Settings(
        (
            Problem("vectors, one hidden layer", "vectors", "relu", (64, 256, 1024, 4096, 8192), 256, 24, LONG),
            Problem("vectors, one hidden layer, erf", "vectors", "erf", QUICK, 64, 12),
            Problem("vectors, three hidden layers", "vectors", "deep", QUICK, 64, 8),
            Problem("Ising, one hidden layer", "ising", "relu", QUICK, 64, 4),
            Problem("FashionMNIST, one hidden layer", "fashion", "relu", QUICK, 64, 8),
            Problem("FashionMNIST, CNN", "fashion", "cnn", (8, 32), 32, 4),
        )
    ),
    "test": Settings(
        (Problem("vectors, one hidden layer", "vectors", "relu", (8,), 8, 4, (4, 16)),), vectors=2, test=2
    ),
}


def load(settings, data_dir):
    """Draw or read the data sets that are needed: for each augmented samples, and test samples."""
    found, rng = {}, np.random.default_rng(settings.seed)
    for name in sorted({problem.data for problem in settings.problems}):
        base, test = {"vectors": vectors, "ising": spins, "fashion": clothes}[name](settings, data_dir, rng)
        found[name] = augment(*base), jnp.asarray(test)
    return found


def vectors(settings, data_dir, rng):
    """Samples in 4 dimensions, of which C3 permutes three, with random labels."""
    C3 = groups.cyclic(3)
    rep = reps.direct_sum(reps.regular(C3), reps.trivial(C3, 1))
    x, y = rng.standard_normal((settings.vectors, 4)), rng.standard_normal((settings.vectors, 1))
    return (x.astype(np.float32), y.astype(np.float32), rep), rng.standard_normal((settings.test, 4), np.float32)


def spins(settings, data_dir, rng):
    """Spins on a 5 x 5 lattice and their 25 local energies."""
    data = datasets.ising(jax.random.key(settings.seed), train=settings.spins, test=settings.test, ood=1)
    return tuple(data.train), data.test.x


def clothes(settings, data_dir, rng):
    """Images of trousers, label 1, and of other clothes, label -1, at half the resolution."""
    data = datasets.fashion_mnist("train", data_dir, count=1000)
    trousers, others = (np.flatnonzero((np.asarray(data.y) == TROUSERS) == wanted) for wanted in (True, False))
    half = settings.images // 2
    chosen = np.concatenate([trousers[:half], others[:half]])
    test = np.concatenate([trousers[half : half + settings.test // 2], others[half : half + settings.test // 2]])
    images = np.asarray(data.x, np.float32).reshape(-1, SIDE, 2, SIDE, 2, 1).mean((2, 4))
    y = np.where(np.asarray(data.y) == TROUSERS, 1.0, -1.0).astype(np.float32)[:, None]
    return (images[chosen], y[chosen], reps.rot90(groups.cyclic(4))), images[test]


def build(name, width, outputs):
    """Return a network of one of the architectures."""
    scale = {"W_std": 2**0.5, "b_std": 0.1}
    if name == "cnn":
        conv = [layer for _ in range(2) for layer in (stax.Conv(width, (3, 3), padding="SAME", **scale), stax.Relu())]
        return stax.serial(*conv, stax.Flatten(), stax.Dense(outputs))
    activation, depth = stax.Erf() if name == "erf" else stax.Relu(), 3 if name == "deep" else 1
    hidden = [layer for _ in range(depth) for layer in (stax.Dense(width, **scale), activation)]
    return stax.serial(stax.Flatten(), *hidden, stax.Dense(outputs))


def compute(settings, data, results):
    """Predict and measure. Each width of each problem is a part, and the narrow ones come first."""
    parts = [(width, number) for number, problem in enumerate(settings.problems) for width in problem.widths]
    for width, number in sorted(parts):
        problem = settings.problems[number]
        results.part(f"{number}-{width}", one_width, settings, problem, data[problem.data], width, results, number)


def one_width(settings, problem, data, width, results, number):
    """Train members of one width and measure the shift, and predict it from some of them before training."""
    train, test = data
    network = build(problem.network, width, train.y.shape[-1])
    filter, ens = theory(network, train)
    run = results.train(
        f"{number}-{width}",
        network,
        train,
        members=problem.members,
        steps=problem.steps[-1],
        optimizer=optax.sgd(float(filter.learning_rate)),
        key=jax.random.fold_in(jax.random.key(settings.seed), width),
        record={"test": test},
        record_at=problem.steps,
    )
    # Members are drawn again before the precision changes, because other numbers would be drawn then.
    start = run.initial().params
    with double_precision():
        start = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), start)
        found = measure(problem, network, run, start, ens, test)
        return {"rate": float(filter.learning_rate), **found, **predict(problem, network, start, ens, test)}


def theory(network, train):
    """Return gradient descent at a quarter of the largest rate, and the infinite ensemble."""
    with double_precision():
        exact = augment(np.asarray(train.base_x, float), np.asarray(train.base_y, float), train.rep_x, train.rep_y)
        theta = gram(network.kernel_fn, exact.x, None, "ntk")
        filter = filters.gradient_descent(float(filters.max_learning_rate(theta, size=exact.y.size)) / 4)
        return filter, InfiniteEnsemble(network.kernel_fn, exact, filter, reduction="mean")


def measure(problem, network, run, start, ens, test):
    """Return the mean over members of the difference from the exact trajectory of their own initial function."""
    steps = np.array(problem.steps)
    initial = jax.jit(lambda x: jax.lax.map(lambda params: network.apply_fn(params, x), start))
    exact = ens.mean(test.astype(float), steps, f0=initial)
    recorded = run.predictions_recorded_for(test)
    trained = np.stack([recorded[step] for step in problem.steps])[:, run.finished].astype(float)
    shifts, count = trained - np.asarray(exact)[:, run.finished], len(run.finished)
    return {
        "members": count,
        "shift": shifts.mean(1),
        "error": shifts.std(1, ddof=1) / math.sqrt(count),
        "mean": ens.mean(test.astype(float), steps),
        # s/√M, as root mean square over test samples
        "chance": np.sqrt(trained.var(1, ddof=1).mean((1, 2)) / count),
    }


def predict(problem, network, start, ens, test):
    """Return what a few of the members predict before training."""
    members = jax.tree.map(lambda leaf: leaf[: problem.followed], start)
    x, settings = test.astype(float), {"reduction": "mean", "theory": ens, "sweeps": 2}
    lazy = empirical.laziness(network, members, ens.train, x, problem.steps, ens.filter, **settings)
    found = {}
    for sweeps in (1, 2):
        part = dataclasses.replace(lazy, sweeps=lazy.sweeps[:sweeps])
        found[f"shift.{sweeps}"], found[f"error.{sweeps}"] = part.shift
        found[f"until.{sweeps}"] = part.holds_until(problem.members, standard_errors=STANDARD_ERRORS)[:3]
    for name in ("bend", "kernel_change", "lazy_ratio", "move"):
        found[name], found[f"{name}.error"] = lazy.average(name)
    return found


def size(shift, error):
    """Return the root mean square of a shift at each time, less what chance contributes."""
    axes = tuple(range(1, shift.ndim))
    return np.sqrt(np.maximum(np.mean(shift**2 - error**2, axis=axes), 0))


def measured_until(steps, found):
    """Return when the measured shift reaches two standard errors, on straight lines in log t as in the prediction."""
    return empirical.first_crossing(
        np.array(steps, float), size(found["shift"], found["error"]) / (STANDARD_ERRORS * found["chance"])
    )


def residual(found, sweeps):
    """Return the size of what is left of the measured shift when the predicted one is taken away."""
    left = found["shift"] - found[f"shift.{sweeps}"]
    return size(left, np.hypot(found["error"], found[f"error.{sweeps}"]))


def finished(problem, number, found):
    """Return the results of a problem by width, as far as there are any: tables may be redrawn on the way."""
    return {width: found[f"{number}-{width}"] for width in problem.widths if f"{number}-{width}" in found}


def table(settings, found):
    lines = ["Shift of the mean by finite width (root mean square over test samples, less chance)"]
    for number, problem in enumerate(settings.problems):
        by_width = finished(problem, number, found)
        if not by_width:
            continue
        rate = max(one["rate"] for one in by_width.values())
        counts = f"{problem.members} members trained, {problem.followed} followed"
        lines += ["", f"{problem.title}: {counts}, rate {rate:.3g}"]
        lines += ["width  steps  measured ± error   one sweep  left   two sweeps  left    chance  Θ moved    κ"]
        for width, one in by_width.items():
            measured, errors = size(one["shift"], one["error"]), np.sqrt(np.mean(one["error"] ** 2, axis=(1, 2)))
            first, second = (size(one[f"shift.{s}"], one[f"error.{s}"]) for s in (1, 2))
            for k, steps in enumerate(problem.steps):
                left = [residual(one, sweeps)[k] for sweeps in (1, 2)]
                lines.append(
                    f"{width:5d}  {steps:5d}  {measured[k]:.4f} ± {errors[k]:.4f}  {first[k]:9.4f} {left[0]:6.4f}"
                    f"  {second[k]:9.4f} {left[1]:6.4f}  {one['chance'][k]:8.4f}  {one['kernel_change'][k]:7.2%}"
                    f"  {one['lazy_ratio'][k]:.3f}"
                )
        lines += ["", "width   holds until: measured   predicted by one sweep (between)        by two sweeps (between)"]
        for width, one in by_width.items():
            texts = [f"{t:8.4g} ({low:.4g} to {high:.4g})" for t, low, high in (one["until.1"], one["until.2"])]
            lines.append(f"{width:5d}   {measured_until(problem.steps, one):20.4g}   {texts[0]:36}   {texts[1]}")
    return "\n".join(lines)


def figures(settings, found):
    columns = min(len(settings.problems), 3)
    fig, axes = plotting.panels(columns, -(-len(settings.problems) // columns), width=3.4, height=3.0)
    for number, (ax, problem) in enumerate(zip(axes, settings.problems, strict=False)):
        for place, (width, one) in enumerate(finished(problem, number, found).items()):
            draw(ax, problem.steps, one, width, place)
        ax.set(title=problem.title, xlabel="steps", xscale="log", ylim=(0, None))
        ax.set_xticks(problem.steps, map(str, problem.steps))
        ax.minorticks_off()
        ax.legend()
    axes[0].set_ylabel("shift of the mean")
    for ax in axes[len(settings.problems) :]:
        ax.set_axis_off()
    return {"finite_width": fig}


def draw(ax, steps, one, width, place):
    """Draw what was measured at one width, and the predictions of one sweep (dashed) and of two (dotted)."""
    errors = np.sqrt(np.mean(one["error"] ** 2, axis=(1, 2)))
    plotting.measured(ax, steps, size(one["shift"], one["error"]), errors, label=f"width {width}", number=place)
    plotting.predicted(ax, steps, size(one["shift.1"], one["error.1"]), number=place)
    second = size(one["shift.2"], one["error.2"])
    ax.plot(steps, second, ":", color=plotting.COLOURS[place], linewidth=1)


if __name__ == "__main__":
    raise SystemExit(Experiment("finite_width", __doc__, PRESETS, load, compute, table, figures).main())
