"""Is the network wide enough? The shift of the mean, predicted before training and then measured.

Theory describes infinitely wide networks. At finite width the mean of an ensemble is shifted, by more the longer it is
trained. For each problem, width and time this experiment compares

    measured     the mean of trained members minus that of the exact trajectories of their own initial functions
    predicted    the same before training, from some of the members, which take a few long steps along their own paths
                 (`empirical.laziness`)

and the time until which theory holds, when the shift reaches two standard errors of the mean of the ensemble,
s/sqrt(M) with the standard deviation s of a member. Problems: random labels on 24 augmented samples in 4 dimensions,
the Ising model, and trousers against all other clothes on a slice of FashionMNIST; networks with one hidden layer, with
three, and a small CNN. Rates are a quarter of those at which training would diverge at infinite width.

The preset `ising` asks the same at the paper's own training time, 128 configurations and 100,000 steps at rate 0.5,
here 1,000 steps at rate 50: how far is the orbit deviation of members from that at infinite width, and is it predicted?
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
    bounds,
    datasets,
    empirical,
    ensembles,
    filters,
    gram,
    groups,
    metrics,
    plotting,
    reps,
    stax,
)

STANDARD_ERRORS = 2
COARSE = 4  # steps while the time doubles
TROUSERS = 1
SIDE = 14
POSITIONS = 25


@dataclasses.dataclass(frozen=True)
class Problem:
    """One data set and one architecture.

    Attributes:
        title: a name for people.
        data: which data set.
        network: which architecture.
        widths: all widths.
        members: how many members are trained, of each width.
        followed: how many of them are followed before training, of each width.
        steps: the times.
        rate: the rate; a quarter of the largest if it is 0.
        coarse: whether members are followed in single precision and in fewer steps, for large problems.
    """

    title: str
    data: str
    network: str
    widths: tuple[int, ...]
    members: tuple[int, ...]
    followed: tuple[int, ...]
    steps: tuple[int, ...]
    rate: float = 0.0
    coarse: bool = False


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
            Problem("vectors, ReLU", "vectors", "relu", QUICK, (64,) * 3, (64,) * 3, LONG[:5]),
            Problem("vectors, erf", "vectors", "erf", QUICK, (64,) * 3, (64,) * 3, LONG[:5]),
        )
    ),
    "laptop": Settings(
        (
            Problem(
                "vectors, ReLU",
                "vectors",
                "relu",
                (*QUICK, 4096, 8192),
                (256, 256, 256, 64, 32),
                (256, 256, 64, 16, 8),
                LONG,
            ),
            Problem("vectors, erf", "vectors", "erf", QUICK, (256,) * 3, (256, 256, 64), LONG),
            Problem("vectors, 3 hidden layers", "vectors", "deep", (64, 256), (256,) * 2, (128, 64), LONG[:6]),
            Problem("Ising", "ising", "relu", QUICK, (128,) * 3, (16, 16, 8), LONG, coarse=True),
            Problem("FashionMNIST", "fashion", "relu", QUICK, (128, 128, 64), (32, 32, 16), LONG[:6], coarse=True),
            Problem("FashionMNIST, CNN", "fashion", "cnn", (4, 8), (64,) * 2, (4,) * 2, LONG[:5], coarse=True),
        )
    ),
    "ising": Settings(
        (
            Problem(
                "Ising at the paper's time",
                "ising",
                "bare",
                (128, 512, 1024, 2048),
                (128, 64, 32, 16),
                (4, 2, 2, 0),
                (10, 30, 100, 300, 1000),
                rate=50.0,
                coarse=True,
            ),
        ),
        spins=128,
        test=16,
    ),
    "test": Settings((Problem("vectors, ReLU", "vectors", "relu", (8,), (8,), (4,), (4, 16)),), vectors=2, test=2),
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
    # Whole orbits, one turn after the other, so that orbit deviations can be measured.
    return tuple(data.train), data.test.rep_x.orbit(data.test.x).reshape(-1, POSITIONS)


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
    if name == "bare":  # the paper's: without biases
        return stax.serial(stax.Dense(width, 2**0.5), stax.Relu(), stax.Dense(outputs))
    activation, depth = stax.Erf() if name == "erf" else stax.Relu(), 3 if name == "deep" else 1
    hidden = [layer for _ in range(depth) for layer in (stax.Dense(width, **scale), activation)]
    return stax.serial(stax.Flatten(), *hidden, stax.Dense(outputs))


def compute(settings, data, results):
    """Predict and measure. Each width of each problem is two parts, and the narrowest of each problem come first."""
    parts = [
        (place, number) for number, problem in enumerate(settings.problems) for place in range(len(problem.widths))
    ]
    for place, number in sorted(parts):
        problem = settings.problems[number]
        width = problem.widths[place]
        key = jax.random.fold_in(jax.random.key(settings.seed), width)
        task, name = Task(problem, place, *data[problem.data], key), f"{number}-{width}"
        results.part(f"trained-{name}", train_and_measure, task, f"trained-{name}", results)
        if problem.followed[place]:
            results.part(f"predicted-{name}", predict, task)


@dataclasses.dataclass(frozen=True)
class Task:
    """One width of a problem."""

    problem: Problem
    place: int
    train: object
    test: jax.Array
    key: jax.Array

    @property
    def network(self):
        """The network of this width."""
        return build(self.problem.network, self.problem.widths[self.place], self.train.y.shape[-1])

    @property
    def steps(self):
        """The times."""
        return np.array(self.problem.steps)

    def initial(self, members):
        """Return the parameters of the first members before training, in float64."""
        # They are drawn before the precision changes, because other numbers would be drawn then.
        run = ensembles.untrained(self.network, self.train.x, members=members, key=self.key)
        return jax.tree.map(lambda leaf: np.asarray(leaf, float), run.params)

    def theory(self):
        """Return gradient descent, and the infinite ensemble, in float64."""
        train, network = self.train, self.network
        exact = augment(np.asarray(train.base_x, float), np.asarray(train.base_y, float), train.rep_x, train.rep_y)
        rate = self.problem.rate
        if not rate:
            theta = gram(network.kernel_fn, exact.x, None, "ntk")
            rate = float(filters.max_learning_rate(theta, size=exact.y.size)) / 4
        filter = filters.gradient_descent(rate)
        return filter, InfiniteEnsemble(network.kernel_fn, exact, filter, reduction="mean")


def train_and_measure(task, name, results):
    """Return the mean over members of the difference from the exact trajectory of their own initial function."""
    with double_precision():
        filter, ens = task.theory()
    count = task.problem.members[task.place]
    run = results.train(
        name,
        task.network,
        task.train,
        members=count,
        steps=task.problem.steps[-1],
        optimizer=optax.sgd(float(filter.learning_rate)),
        key=task.key,
        record={"test": task.test},
        record_at=task.problem.steps,
    )
    start = task.initial(count)
    recorded = run.predictions_recorded_for(task.test)
    trained = np.stack([recorded[step] for step in task.problem.steps])[:, run.finished].astype(float)
    with double_precision():
        exact = trajectories(task, ens, start)[:, run.finished]
        mean = ens.mean(task.test.astype(float), task.steps)
        found = {"rate": float(filter.learning_rate), "mean": mean, **orbits_of(task, ens, trained)}
    shifts, count = trained - exact, len(run.finished)
    return {
        **found,
        "members": count,
        "shift": shifts.mean(1),
        "error": shifts.std(1, ddof=1) / math.sqrt(count),
        "shifts": shifts.astype(np.float32),
        # s/√M, as root mean square over test samples
        "chance": np.sqrt(trained.var(1, ddof=1).mean((1, 2)) / count),
    }


def orbits_of(task, ens, trained):
    """Return the orbit deviation of the energy of each member [steps, members], and what theory expects of one."""
    if task.problem.data != "ising":
        return {}
    readout = -np.ones(POSITIONS) / POSITIONS
    one_turn = task.test[: len(task.test) // 4].astype(float)
    laws = [bounds.orbit_deviation(ens, one_turn, int(t), readout=readout) for t in task.steps]
    return {"orbit": orbit_deviations(trained), "orbit.theory": [law.expected(1).mean() for law in laws]}


def orbit_deviations(predictions):
    """Return the standard deviation of the energy over the turns, for predictions [steps, members, …] of members."""
    turned = predictions.reshape(*predictions.shape[:2], 4, -1, POSITIONS)
    return np.stack([metrics.orbit_std(datasets.total_energy(one)[..., None]).members for one in turned])


def predict(task):
    """Return what some of the members predict before training."""
    problem, count = task.problem, task.problem.followed[task.place]
    start = task.initial(count)
    with double_precision():
        filter, ens = task.theory()
        dtype = np.float32 if problem.coarse else np.float64
        members, x, data = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), (start, task.test, (ens.x, ens.y)))
        steps = {"steps_per_octave": COARSE} if problem.coarse else {}
        lazy = empirical.laziness(task.network, members, data, x, problem.steps, filter, reduction="mean", **steps)
        exact = np.moveaxis(trajectories(task, ens, start), 0, 1)
        lazy = dataclasses.replace(lazy, theory=exact)
    shift, error = lazy.shift
    until = lazy.holds_until(problem.members[task.place], standard_errors=STANDARD_ERRORS)
    found = {"shift": shift, "error": error, "until": until[:3], "step_error": lazy.step_errors}
    found["shifts"] = np.moveaxis(lazy.predicted - exact, 0, 1).astype(np.float32)
    for name in ("kernel_change", "lazy_ratio", "move"):
        found[name], found[f"{name}.error"] = lazy.average(name)
    if problem.data == "ising":
        names = {"orbit": lazy.predicted, "orbit.linear": lazy.linear, "orbit.exact": exact}
        found |= {name: orbit_deviations(np.moveaxis(values, 0, 1)) for name, values in names.items()}
    return found


def trajectories(task, ens, start):
    """Return the exact trajectories of the initial functions of members, [steps, members, ...]."""
    apply = task.network.apply_fn
    initial = jax.jit(lambda x: jax.lax.map(lambda params: apply(params, x), start))
    return np.asarray(ens.mean(task.test.astype(float), task.steps, f0=initial))


def size(shift, error):
    """Return the root mean square of a shift at each time, less what chance contributes."""
    axes = tuple(range(1, shift.ndim))
    return np.sqrt(np.maximum(np.mean(shift**2 - error**2, axis=axes), 0))


def error_of_size(error):
    """Return the standard error of a size, as if those of all samples were one and the same."""
    return np.sqrt(np.mean(error**2, axis=tuple(range(1, error.ndim))))


def measured_until(steps, trained):
    """Return when the measured shift reaches two standard errors, on straight lines in log t as in the prediction."""
    shift, allowed = size(trained["shift"], trained["error"]), STANDARD_ERRORS * trained["chance"]
    error = 2 * error_of_size(trained["error"])
    curves = (shift, shift + error, np.maximum(shift - error, 0))
    return [empirical.first_crossing(np.array(steps, float), curve / allowed) for curve in curves]


def left(trained, predicted):
    """Return the mean over the members that were followed of what they are off by, as root mean square over samples."""
    apart = trained["shifts"][:, : predicted["shifts"].shape[1]] - predicted["shifts"]
    return np.sqrt(np.mean(apart.mean(1) ** 2, axis=tuple(range(1, apart.ndim - 1))))


def finished(problem, number, found):
    """Return what was trained and predicted by width, as far as there is any: tables may be redrawn on the way."""
    names = {width: (f"trained-{number}-{width}", f"predicted-{number}-{width}") for width in problem.widths}
    return {width: (found[a], found.get(b)) for width, (a, b) in names.items() if a in found}


def table(settings, found):
    lines = ["Shift of the mean by finite width (root mean square over test samples and outputs, less chance)"]
    for number, problem in enumerate(settings.problems):
        by_width = finished(problem, number, found)
        if not by_width:
            continue
        rate = max(trained["rate"] for trained, _ in by_width.values())
        lines += ["", f"{problem.title}: rate {rate:.3g}"]
        lines += ["width  steps  trained  measured ± error   chance  followed  predicted ± error    left  Θ moved    κ"]
        for width, (trained, predicted) in by_width.items():
            lines += rows_of_shift(problem, width, trained, predicted)
        lines += ["", "width   holds until: measured (between)        predicted (between)              ratio"]
        for width, (trained, predicted) in by_width.items():
            both = [measured_until(problem.steps, trained)] + ([] if predicted is None else [predicted["until"]])
            texts = [f"{t:8.4g} ({low:.4g} to {high:.4g})" for t, low, high in both]
            ratio = [f"{both[1][0] / both[0][0]:.2f}"] if len(both) > 1 and np.isfinite(both[0][0]) else []
            lines.append(f"{width:5d}   " + " ".join([f"{text:36}" for text in texts] + ratio).rstrip())
        if problem.data == "ising":
            lines += ["", *rows_of_orbits(problem, by_width)]
    return "\n".join(lines)


def rows_of_shift(problem, width, trained, predicted):
    """Return one line for each time: the measured and the predicted shift, and what is left of it."""
    measured, errors = size(trained["shift"], trained["error"]), error_of_size(trained["error"])
    count, chance = trained["members"], trained["chance"]
    lines = [
        f"{width:5d}  {steps:5d}  {count:7d}  {measured[k]:.4f} ± {errors[k]:.4f}  {chance[k]:.4f}"
        for k, steps in enumerate(problem.steps)
    ]
    if predicted is None:
        return lines
    expected, noise = size(predicted["shift"], predicted["error"]), error_of_size(predicted["error"])
    remaining, followed = left(trained, predicted), predicted["shifts"].shape[1]
    return [
        f"{line}  {followed:8d}  {expected[k]:.4f} ± {noise[k]:.4f}  {remaining[k]:.4f}"
        f"  {predicted['kernel_change'][k]:7.2%}  {predicted['lazy_ratio'][k]:.3f}"
        for k, line in enumerate(lines)
    ]


def rows_of_orbits(problem, by_width):
    """Return the orbit deviation of the energy of one member: measured, at infinite width, and corrected."""
    lines = ["orbit deviation of the energy of one member"]
    lines += ["width  steps  measured ± error     infinite  infinite + correction"]
    for width, (trained, predicted) in by_width.items():
        for k, steps in enumerate(problem.steps):
            value, infinite = with_error(trained["orbit"][k]), trained["orbit.theory"][k]
            line = f"{width:5d}  {steps:5d}  {value[0]:.5f} ± {value[1]:.5f}   {infinite:.5f}"
            if predicted is not None:
                # The correction is a mean of differences of the same members.
                correction = with_error(predicted["orbit"][k] - predicted["orbit.exact"][k])
                line += f"  {infinite + correction[0]:.5f} ± {correction[1]:.5f}"
            lines.append(line)
    return lines


def with_error(values):
    """Return a mean and its standard error."""
    return values.mean(), values.std(ddof=1) / math.sqrt(len(values))


def figures(settings, found):
    by_problem = [(problem, finished(problem, number, found)) for number, problem in enumerate(settings.problems)]
    drawn = [(problem, by_width) for problem, by_width in by_problem if by_width]
    columns = max(1, min(len(drawn), 3))
    fig, axes = plotting.panels(columns, max(1, -(-len(drawn) // columns)), width=3.4, height=3.0)
    for ax, (problem, by_width) in zip(axes, drawn, strict=False):
        for place, (width, both) in enumerate(by_width.items()):
            draw(ax, problem.steps, *both, width, place)
        ax.set(title=problem.title, xlabel="steps", xscale="log", ylim=(0, None))
        ax.set_xticks(problem.steps, map(str, problem.steps))
        ax.minorticks_off()
        ax.legend()
    axes[0].set_ylabel("shift of the mean")
    for ax in axes[len(drawn) :]:
        ax.set_axis_off()
    return {"finite_width": fig}


def draw(ax, steps, trained, predicted, width, place):
    """Draw what was measured at one width, and what was predicted (dashed)."""
    errors = error_of_size(trained["error"])
    plotting.measured(ax, steps, size(trained["shift"], trained["error"]), errors, label=f"width {width}", number=place)
    if predicted is not None:
        plotting.predicted(ax, steps, size(predicted["shift"], predicted["error"]), number=place)


FINITE_WIDTH = Experiment("finite_width", __doc__, PRESETS, load, compute, table, figures)

if __name__ == "__main__":
    raise SystemExit(FINITE_WIDTH.main())
