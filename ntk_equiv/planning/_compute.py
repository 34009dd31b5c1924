"""From data and a symmetry to a plan: check, fit the infinite ensemble, ask it everything."""

import dataclasses
import datetime
import platform
import time
import warnings
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ntk_equiv import filters
from ntk_equiv._check import function, refusal
from ntk_equiv._typing import KernelFunction, Scalar
from ntk_equiv.groups import FiniteGroup
from ntk_equiv.infinite import InfiniteEnsemble, ReductionWarning
from ntk_equiv.orbits import augment
from ntk_equiv.planning import _answers
from ntk_equiv.planning._cost import Budget, Clock, Cost, check_memory, cost_note, measure_cost
from ntk_equiv.planning._names import (
    Times,
    acts_on_images,
    kernel_function,
    named_action,
    named_group,
    named_times,
)
from ntk_equiv.planning._plan import Plan
from ntk_equiv.planning._problem import (
    Names,
    Notes,
    Problem,
    Settings,
    checksum_of_data,
    plain_value,
    prepare_problem,
)
from ntk_equiv.planning._report import thumbnails
from ntk_equiv.planning._width import answer_width
from ntk_equiv.reps import Representation
from ntk_equiv.theorems import Violation, kernel_transformation

# How many samples the symmetry of the kernels is measured on.
SAMPLES_FOR_SYMMETRY = 4
VERSIONS = ("ntk-equiv", "jax", "jaxlib", "numpy", "scipy", "matplotlib")
SCOPE = (
    "This is the theory of infinitely wide networks with Gaussian weights in the NTK parameterization, trained on the "
    "squared error by gradient flow on all data at once. Adam, cross-entropy, max-pooling, dropout, small batches at "
    "high rates and narrow networks are outside of it: for them the numbers are a guide, and no prediction."
)


def plan(
    x: ArrayLike,
    y: ArrayLike,
    /,
    *,
    group: str | FiniteGroup,
    action: str | Representation,
    arch: Any = "mlp:relu:2",
    label_action: str | Representation = "trivial",
    x_test: ArrayLike | None = None,
    y_test: ArrayLike | None = None,
    labels: str = "auto",
    w_std: Scalar = 2**0.5,
    b_std: Scalar = 0.1,
    times: Times = "auto",
    at: Scalar | str | None = None,
    learning_rate: Scalar = 1.0,
    reduction: str = "mean",
    members: int = 10,
    width: int | None = None,
    delta: Scalar | None = None,
    epsilon: Scalar = 0.05,
    temperature: Scalar | None = None,
    likelihood_delta: Scalar = 0.01,
    holdout: Scalar = 0.2,
    max_points: int | None = None,
    max_test_points: int = 100,
    minutes: Scalar = 5.0,
    samples: int = 10_000,
    seed: int = 0,
    name: str | None = None,
    class_names: Names | None = None,
    dtype: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Plan:
    """Return what to expect of an ensemble on your data: errors over time, members, invariance, worst inputs.

    Loss and time: the loss is ½ of the "mean" (or "sum") of squares over all entries of the augmented labels. The time
    t is that of gradient flow: t steps of full-batch gradient descent at `learning_rate`, if that is small. The mean
    squared error of PyTorch and Keras has no ½, which makes training twice as fast.

    Args:
        x: training samples, [n, ...]; bytes are divided by 255.
        y: labels: whole numbers or text for classes [n], floating-point numbers for regression [n] or [n, channels].
        group: a finite group, or its name; see `named_group`.
        action: how the group acts on samples: a representation, or its name; see `named_action`.
        arch: a network, its `kernel_fn`, or a name; see `named_network`.
        label_action: how the group acts on labels: "trivial", "same" as on samples, or as `action`.
        x_test: test samples, [m, ...]; unless given, some of x are held out.
        y_test: their labels; without them, nothing is said about errors on test samples.
        labels: "auto", "classes" or "regression".
        w_std: for named networks, the standard deviation of weights.
        b_std: for named networks, that of biases.
        times: numbers, "inf", "log:1:1e5:20", a list of these, or "auto"; see `named_times`.
        at: the time for which members and invariance are given; by default the first of `times` at which the expected
            test error of M members is within 1 % of its least.
        learning_rate: η, the unit of time.
        reduction: "mean" or "sum".
        members: M, the size of an ensemble you have in mind.
        width: the width of the networks you have in mind, to ask whether it is enough; for named networks.
        delta: δ, the tolerated deviation, in the units of the labels; by default a tenth of their spread.
        epsilon: ε, the probability of a larger deviation.
        temperature: T of class probabilities softmax(f̂/T); by default the best one for the infinite ensemble, fitted to
            the test samples.
        likelihood_delta: how far the negative log-likelihood may be above that of infinitely many members, in nats.
        holdout: the fraction of samples held out if no test samples are given.
        max_points: the most training samples to use; if there are more, so many are drawn at random, as the notes say.
            By default as many as the time and the memory allow.
        max_test_points: the most test samples.
        minutes: how long planning may take, about. The cost of a pair of samples is measured first. If all samples
            would take longer, fewer are used, as the notes say; inf sets no limit.
        samples: the number of random draws for members over orbits.
        seed: the seed of everything that is random.
        name: what the data are called in the report.
        class_names: names of the classes 0, 1, … for labels that are whole numbers.
        dtype: "float64" or "float32"; by default what JAX is set to.
        progress: called with a line of text before each step, and by another thread during long ones.

    Returns:
        The plan, a record that can be printed, drawn, reported and stored.

    Raises:
        ValueError: data, group, action and network do not fit together, a setting is out of range, or even a few
            samples would take longer than `minutes`.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv import planning
        >>> x = np.random.default_rng(0).normal(size=(11, 2))
        >>> y = np.linalg.norm(x, axis=1)
        >>> settings = {"arch": "mlp:relu:1", "times": [1, 10, 100, "inf"], "delta": 0.02, "samples": 2000}
        >>> test = {"x_test": x[8:], "y_test": y[8:]}
        >>> found = planning.plan(x[:8], y[:8], group="C4", action="matrix", **test, **settings)
        >>> found
        <plan for 8 samples under 4 elements of cyclic(4), at t = inf>
        >>> print((1000 * found.test.of(10)).round(1))      # expected test error of ten members, over time
        [169.5   0.9   0.3   0.1]
        >>> found.points.worst().tolist()                   # test samples, the least invariant first
        [1, 0, 2]
    """
    start, say = time.monotonic(), (lambda text: None) if progress is None else function(progress, "progress")
    settings = Settings.from_arguments(
        group=group,
        action=action,
        arch=arch,
        label_action=label_action,
        labels=labels,
        w_std=w_std,
        b_std=b_std,
        times=times,
        at=at,
        learning_rate=learning_rate,
        reduction=reduction,
        members=members,
        width=width,
        delta=delta,
        epsilon=epsilon,
        temperature=temperature,
        likelihood_delta=likelihood_delta,
        holdout=holdout,
        max_points=max_points,
        max_test_points=max_test_points,
        minutes=minutes,
        samples=samples,
        seed=seed,
        dtype=dtype,
    )
    problem = prepare_problem(x, y, x_test, y_test, settings, images=acts_on_images(action), class_names=class_names)
    origin = {"data": plain_value(name), "sha256": checksum_of_data(x, y, x_test, y_test)}
    return _make_plan(_Task.from_settings(settings, problem), origin, say, start)


@dataclasses.dataclass(frozen=True, eq=False)
class _Task:
    """Everything a plan is computed from, with names looked up.

    Attributes:
        settings: what is asked, δ included.
        problem: the data.
        group: the group.
        rep_x: how the group acts on samples.
        rep_y: how it acts on labels.
        kernel_fn: the kernels of the network.
        flow: how it is trained.
        times: the training times, or None to have them chosen.
    """

    settings: Settings
    problem: Problem
    group: FiniteGroup
    rep_x: Representation
    rep_y: Representation
    kernel_fn: KernelFunction
    flow: filters.Filter
    times: np.ndarray | None

    @classmethod
    def from_settings(cls, settings: Settings, problem: Problem) -> "_Task":
        """Look up names; refuse group, actions and network that do not fit the data."""
        group, shape = named_group(settings.group), problem.x.shape[1:]
        rep_x, rep_y = choose_actions(settings, group, shape, problem.channels)
        kernel_fn = kernel_function(settings.arch, shape, w_std=settings.w_std, b_std=settings.b_std)
        check_memory(kernel_fn, problem.x)
        flow, times = filters.gradient_flow(settings.learning_rate), named_times(settings.times)
        return cls(settings.with_delta(problem.y), problem, group, rep_x, rep_y, kernel_fn, flow, times)


def choose_actions(
    settings: Settings, group: FiniteGroup, shape: tuple[int, ...], channels: int
) -> tuple[Representation, Representation]:
    """Return how the group acts on samples and on labels."""
    action, label_action = settings.action, settings.label_action
    rep_x = named_action(action, group, shape)
    if label_action == "same":
        if acts_on_images(action) or (isinstance(action, str) and action.startswith("nodes")):
            fix = "Say how the channels of the labels transform: matrix, permutation, regular, sign or trivial."
            raise refusal("label_action", expected="an action on vectors", got="same, which moves pixels", fix=fix)
        label_action = action
    return rep_x, named_action(label_action, group, (channels,), argument="label_action")


def _make_plan(task: _Task, origin: dict[str, Any], say: Callable[[str], None], start: float) -> Plan:
    """Measure what the plan costs, fit the infinite ensemble to what there is time for, and ask it everything."""
    settings, problem, group = task.settings, task.problem, task.group
    budget = Budget(settings.minutes, settings.seed, say, start)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        say(f"checking whether the network respects {group.label}, and what a pair of samples costs")
        violation = _measure_violation(task)
        reduced = task.rep_x.exact and _is_rounding(violation, problem.x.dtype)
        times = _answers.AUTO_TIMES + 1 if task.times is None else len(task.times)
        cost = measure_cost(task.kernel_fn, problem, group, reduced=reduced, times=times, draws=settings.samples)
        problem, expected = budget.choose_samples(cost, problem)
        with Clock(say, cost.steps(*problem.sizes)) as clock:
            clock.begin("fit", f"fitting the infinite ensemble to {group.order} × {len(problem.x)} samples")
            ens = _fit(task, problem, reduced=reduced)
            problem = budget.drop_test_samples(cost, problem, clock.pace())
            clock.expect(cost.steps(*problem.sizes))
            answers, more_notes = _answer_all(task, problem, ens, clock)
        width = None
        if settings.width is not None:
            # It takes the same few seconds whatever the data, so that it is no part of what the budget is spent on.
            say(f"how much the kernels of networks of width {settings.width} change")
            reps, asked = (task.rep_x, task.rep_y), (answers["times"], answers["t"])
            width, doubts = answer_width(settings, problem, reps, group.order, task.flow, *asked)
            more_notes = [*more_notes, *doubts]
    points = answers["points"]
    return Plan(
        settings.as_dict(),
        _describe(task, problem, ens),
        versions(),
        notes=_collect_notes(task, problem, ens, violation, float(points.bias.max()), caught, cost, more_notes),
        violation=float(violation.relative),
        origin={
            **origin,
            "date": datetime.datetime.now().astimezone().isoformat(" ", "seconds"),
            "command": None,
            "expected_seconds": round(expected, 1),
            "seconds": round(budget.seconds_spent(), 1),
        },
        width=width,
        pictures=thumbnails(problem.x_test[points.worst()]) if acts_on_images(settings.action) else (),
        **answers,
    )


def _measure_violation(task: _Task) -> Violation:
    """Measure how far the kernels are from respecting the symmetry, on a few samples."""
    x, group = task.problem.x, task.group
    few = np.asarray(x[:SAMPLES_FOR_SYMMETRY])
    # The theorem is about all inputs. Noise as large as the data is added, because samples that the group leaves fixed,
    # such as blank images, would say nothing.
    size = float(np.sqrt(np.mean(np.square(x)))) or 1.0
    noise = np.random.default_rng(0).normal(scale=size, size=few.shape).astype(few.dtype)
    elements = group.generators or (group.identity,)
    return kernel_transformation(task.kernel_fn, task.rep_x, jnp.asarray(few + noise), elements=elements)


def _is_rounding(violation: Violation, dtype: np.dtype) -> bool:
    """Return whether a violation is no more than rounding, so that the symmetry can be used."""
    return bool(violation.holds(float(jnp.finfo(dtype).eps) ** 0.6))


def _fit(task: _Task, problem: Problem, *, reduced: bool) -> InfiniteEnsemble:
    train = augment(problem.x, problem.y, task.rep_x, task.rep_y)
    # The measurement on generic samples decides, because the data themselves may say nothing.
    method = "auto" if reduced else "dense"
    ens = InfiniteEnsemble(task.kernel_fn, train, task.flow, reduction=task.settings.reduction, method=method)
    # Both kernels are evaluated at once; asked for the spectrum first, it would evaluate Θ again for the covariance.
    return ens.with_covariance()


def _answer_all(task: _Task, problem: Problem, ens: InfiniteEnsemble, clock: Clock) -> tuple[dict[str, Any], Notes]:
    """Return the parts of a plan that are computed from the ensemble, and notes on class probabilities."""
    settings, y_test = task.settings, problem.y_test
    rates = _answers.mode_rates(ens, settings.learning_rate)
    times = _answers.auto_times(rates) if task.times is None else task.times
    times = times if settings.at is None else np.union1d(times, [settings.at])
    clock.begin("errors", f"errors at {len(times)} training times")
    predictions = _answers.predict(ens, problem, times)
    test = None if y_test is None else predictions.test_errors(y_test)
    t = _answers.best_time(times, test, settings.members) if settings.at is None else settings.at
    place, key = int(np.flatnonzero(times == t)[0]), jax.random.key(settings.seed)
    clock.begin("orbits", f"members and orbits of {len(problem.x_test)} test samples at t = {t:.3g}")
    cov = np.asarray(ens.cov(jnp.asarray(problem.x_test), t), float)
    law = _answers.LawAtTime(t, predictions.mean[place], predictions.variance[place], cov)
    needed, orbit, points = _answers.answer_invariance(ens, problem, settings, law, key)
    accuracy, calibration, notes = _answers.answer_classes(ens, problem, settings, predictions, law, key)
    return {
        "times": times,
        "train": predictions.train_errors(problem.y),
        "test": test,
        "baseline": None if y_test is None else float(np.mean((y_test - problem.y.mean(axis=0)) ** 2)),
        "t": t,
        "stable_rate": 2 * settings.learning_rate / float(rates.max()) if rates.size else float("inf"),
        "needed": needed,
        "orbit": orbit,
        "points": points,
        "accuracy": accuracy,
        "calibration": calibration,
    }, notes


def _describe(task: _Task, problem: Problem, ens: InfiniteEnsemble) -> dict[str, Any]:
    return {
        "group": task.group.label,
        "order": task.group.order,
        "action": str(task.rep_x),
        "label_action": str(task.rep_y),
        "method": ens.method,
        "points": len(problem.x),
        "test_points": len(problem.x_test),
        "shape": list(problem.x.shape[1:]),
        "channels": problem.channels,
        "classes": None if problem.classes is None else list(problem.classes),
    }


def _collect_notes(
    task: _Task,
    problem: Problem,
    ens: InfiniteEnsemble,
    violation: Violation,
    bias: float,
    caught: list,
    cost: Cost,
    more_notes: Notes,
) -> tuple[str, ...]:
    """Return notes on where theory holds, what was warned of, and what was done to the data; warnings first."""
    # That the symmetry could not be used is said in other words already.
    warned = (str(w.message) for w in caught if not issubclass(w.category, ReductionWarning))
    notes = (
        *_symmetry_notes(violation, task.rep_x, problem.x),
        *_ensemble_notes(ens, bias, task.settings.tolerance[0]),
        *dict.fromkeys(f"WARNING: {message}" for message in warned),
        *problem.missing_class_notes(),
        *problem.notes,
        *more_notes,
        *_fixed_sample_notes(ens),
        cost_note(cost, *problem.sizes),
        SCOPE,
    )
    return tuple(sorted(notes, key=lambda note: not note.startswith("WARNING")))


def _symmetry_notes(violation: Violation, rep_x: Representation, x: np.ndarray) -> list[str]:
    """Return notes on whether the action is exact and the network respects it."""
    notes = []
    count = f"{min(SAMPLES_FOR_SYMMETRY, len(x))} sample{'s' * (len(x) > 1)} with noise added"
    if not rep_x.exact:
        grid = x.shape[1:3]
        error = (
            f", off by up to {rep_x.homomorphism_error(grid=grid):.2g} for pixels between −1 and 1"
            if max(grid) <= 32
            else ""
        )
        notes.append(
            f"WARNING: {rep_x} interpolates. Two turns in a row are not the same as one turn by the sum of the angles"
            f"{error}. The augmented data are therefore no orbit, and even the infinite ensemble is equivariant only "
            "approximately."
        )
    if _is_rounding(violation, x.dtype):
        size = f"up to {violation.relative:.1g} of their size" if violation.relative else "exactly"
        notes.append(f"The network respects the symmetry: on {count} its kernels transform as they should, {size}.")
    else:
        notes.append(
            f"WARNING: the network does not respect the symmetry with this action: on {count} its kernels are off by "
            f"{violation.relative:.2g} of their size. The theorem does not apply, and even infinitely many members "
            "need not be equivariant. The numbers here are computed without it and remain correct."
        )
    return notes


def _ensemble_notes(ens: InfiniteEnsemble, bias: float, delta: float) -> list[str]:
    """Return notes on how the ensemble was computed, and on its own deviation."""
    notes = []
    if ens.method == "dense":
        notes.append(f"The Gram matrix of all {len(ens.y)} augmented samples was decomposed as a whole.")
    if jnp.asarray(ens.y).dtype != jnp.float64:
        notes.append(
            "WARNING: computed in single precision, which resolves late training times badly. Leave out --float32, or "
            'in Python call `jax.config.update("jax_enable_x64", True)` first.'
        )
    if bias >= 1e-3 * delta:
        notes.append(
            f"WARNING: the infinite ensemble itself deviates from equivariance by up to {bias:.3g} on the test "
            "samples. No number of members removes that."
        )
    return notes


def _fixed_sample_notes(ens: InfiniteEnsemble) -> list[str]:
    """Return a note on training samples that some element of the group leaves fixed, if there are any."""
    fixed = len(ens.train.stabilizers())
    if not fixed or ens.train.order == 1:
        return []
    return [
        f"Some element of the group leaves {fixed} training sample{'s' * (fixed > 1)} fixed. For this reason the "
        "augmented data contain repetitions, which do no harm."
    ]


def versions() -> dict[str, str]:
    """Return the versions of Python, this library and what it builds on.

    Example:
        >>> from ntk_equiv.planning import versions
        >>> sorted(versions())
        ['jax', 'jaxlib', 'matplotlib', 'ntk-equiv', 'numpy', 'python', 'scipy']
    """
    numbers = {"python": platform.python_version()}
    for name in VERSIONS:
        try:
            numbers[name] = version(name)
        except PackageNotFoundError:  # matplotlib may be left out
            numbers[name] = "not installed"
    return numbers
