"""From data and a symmetry to a plan: check, fit the infinite ensemble, ask it everything."""

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

from ntk_equiv import filters
from ntk_equiv._check import function, one_of, positive_integer, real_number, refusal
from ntk_equiv._typing import KernelFunction
from ntk_equiv.bounds import Sampled
from ntk_equiv.groups import FiniteGroup
from ntk_equiv.infinite import InfiniteEnsemble, ReductionWarning
from ntk_equiv.orbits import augment
from ntk_equiv.planning import _cost, _questions, _scope
from ntk_equiv.planning._actions import acts_on_images, named_action
from ntk_equiv.planning._architectures import named_network
from ntk_equiv.planning._groups import named_group
from ntk_equiv.planning._pictures import thumbnails
from ntk_equiv.planning._plan import Plan
from ntk_equiv.planning._problem import Problem, Sizes, prepared
from ntk_equiv.planning._times import COUNT, named_time, named_times
from ntk_equiv.reps import Representation
from ntk_equiv.theorems import Violation

# δ unless given, in units of the spread of the labels.
TOLERATED = 0.1
LARGEST = 1e150  # a larger δ has a square that is no number
# Arguments of `plan` that are told elsewhere, or nowhere.
NOT_SETTINGS = ("x", "y", "x_test", "y_test", "progress", "name", "class_names")
VERSIONS = ("ntk-equiv", "jax", "jaxlib", "numpy", "scipy", "matplotlib")


def plan(
    x: Any,
    y: Any,
    /,
    *,
    group: str | FiniteGroup,
    action: str | Representation,
    arch: Any = "mlp:relu:2",
    label_action: str | Representation = "trivial",
    x_test: Any = None,
    y_test: Any = None,
    labels: str = "auto",
    w_std: Any = 2**0.5,
    b_std: Any = 0.1,
    times: Any = "auto",
    at: Any = None,
    learning_rate: Any = 1.0,
    reduction: str = "mean",
    members: int = 10,
    delta: Any = None,
    epsilon: Any = 0.05,
    holdout: Any = 0.2,
    max_points: int = 1000,
    max_test_points: int = 100,
    minutes: Any = 5.0,
    samples: int = 10_000,
    seed: int = 0,
    name: str | None = None,
    class_names: Any = None,
    dtype: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Plan:
    """What to expect of an ensemble on your data: errors over training time, members needed, invariance, worst inputs.

    Loss and time: the loss is ½ of the "mean" (or "sum") of squares over all entries of the augmented labels, and t the
    time of gradient flow: t steps of full-batch gradient descent at `learning_rate`, as long as that is small. The mean
    squared error of PyTorch and Keras has no ½, which makes training twice as fast.

    Args:
        x: training samples, [n, ...]; bytes are divided by 255.
        y: labels: whole numbers or text for classes [n], floating-point numbers for regression [n] or [n, channels].
        group: a finite group, or its name; see `named_group`.
        action: how it acts on samples: a representation, or its name; see `named_action`.
        arch: a network, its `kernel_fn`, or a name; see `named_network`.
        label_action: how the group acts on labels: "trivial", "same" as on samples, or as `action`.
        x_test: test samples, [m, ...]; some of x are held out unless given.
        y_test: their labels; without, nothing is said about errors on them.
        labels: "auto", "classes" or "regression".
        w_std: for named networks, the standard deviation of weights.
        b_std: for named networks, that of biases.
        times: numbers, "inf", "log:1:1e5:20", a list of these, or "auto"; see `named_times`.
        at: the time that members and invariance are told for; unless given the first of `times` at which the expected
            test error of M members is within 1 % of its least.
        learning_rate: η, the unit of time.
        reduction: "mean" or "sum".
        members: M, the size of an ensemble you have in mind.
        delta: the tolerated deviation, in the units of the labels; a tenth of their spread unless given.
        epsilon: the probability of a larger one.
        holdout: the fraction of samples held out where no test samples are given.
        max_points: the most training samples to use; more are left out at random, which the notes say.
        max_test_points: the most test samples.
        minutes: how long planning may take, about. What a pair of samples costs is measured first, and fewer are used
            where all of them would take longer, which the notes say; inf does without a limit.
        samples: draws for the members over orbits.
        seed: of everything that is random.
        name: what the data are called in the report.
        class_names: names of the classes 0, 1, … for labels that are whole numbers.
        dtype: "float64" or "float32"; what JAX is set to unless given.
        progress: called with a line of text before each step, and by another thread during long ones.

    Returns:
        A `Plan`.

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
    settings = {option: value for option, value in locals().items() if option not in NOT_SETTINGS}
    start, say = time.monotonic(), (lambda text: None) if progress is None else function(progress, "progress")
    kind, chosen_times, chosen_time = _dtype(dtype), named_times(times), named_time(at)
    group = named_group(group)
    sizes, images = Sizes(holdout, max_points, max_test_points, seed), acts_on_images(action)
    read = {"labels": labels, "images": images, "sizes": sizes, "dtype": kind, "class_names": class_names}
    problem = prepared(x, y, x_test, y_test, **read)
    rep_x, rep_y = _actions(problem, group, action, label_action)
    kernel_fn = _kernel_fn(arch, problem.x.shape[1:], w_std, b_std)
    delta, epsilon = _tolerated(delta, problem.y), _probability(epsilon)
    members, samples = positive_integer(members, "members"), _draws(samples, epsilon)
    flow = filters.gradient_flow(real_number(learning_rate, "learning_rate"))
    one_of(reduction, ("mean", "sum"), "reduction")
    budget = _cost.Budget(minutes, say, start)
    _cost.check_memory(kernel_fn, problem.x)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        say(f"checking whether the network respects {group.label}, and what a pair of samples costs")
        violation = _scope.measured(kernel_fn, rep_x, problem.x)
        reduced = rep_x.exact and _scope.holds(violation, kind)
        numbers = {"times": COUNT + 1 if chosen_times is None else len(chosen_times), "draws": samples}
        cost = _cost.measured(kernel_fn, problem, group, reduced=reduced, **numbers)
        problem = budget.fitted(cost, problem, seed)
        with budget.clock(cost, problem) as clock:
            clock.step("fit", f"fitting the infinite ensemble to {group.order} × {len(problem.x)} samples")
            train = augment(problem.x, problem.y, rep_x, rep_y)
            # What was measured on generic samples decides, as those of the data may say nothing.
            method = "auto" if reduced else "dense"
            ens = InfiniteEnsemble(kernel_fn, train, flow, reduction=reduction, method=method)
            # Asked for a variance, it evaluates both kernels at once; the spectrum alone would need one of them twice.
            ens.var(jnp.asarray(problem.x_test[:1]), 0.0)
            problem = budget.trimmed(cost, problem, seed, clock)
            question = _questions.Question(ens, problem, members, delta, epsilon, samples, jax.random.key(seed))
            found = _answers(question, chosen_times, chosen_time, clock)
    found["notes"] = _notes(question, violation, float(found["points"].bias.max()), caught, cost)
    found["pictures"] = thumbnails(problem.x_test[found["points"].worst()]) if images else ()
    chosen = {"delta": delta, "dtype": str(kind), "arch": arch if isinstance(arch, str) else "a network of your own"}
    settings = {option: _as_text(value) for option, value in {**settings, **chosen}.items()}
    origin = {"data": _as_text(name), "date": _now(), "command": None, **budget.spent()}
    described = _described(problem, group, rep_x, rep_y, ens)
    return Plan(settings, described, versions(), violation=float(violation.relative), origin=origin, **found)


def _answers(question: _questions.Question, times: Any, at: float | None, clock: _cost.Clock) -> dict[str, Any]:
    """The parts of a plan that are computed from the ensemble."""
    problem, y_test = question.problem, question.problem.y_test
    times, rates = _questions.all_times(question, times, at), question.rates
    clock.step("errors", f"errors at {len(times)} training times")
    law = _questions.predictions(question, times)
    test = None if y_test is None else law.test_errors(y_test)
    t = _questions.best_time(times, test, question.members) if at is None else at
    clock.step("orbits", f"members and orbits of {len(problem.x_test)} test samples at t = {t:.3g}")
    needed, orbit, points = _questions.invariance(question, law.variance[times == t][0], t)
    rate = float(question.ens.filter.learning_rate)  # type: ignore[attr-defined]
    return {
        "times": times,
        "train": law.train_errors(problem.y),
        "test": test,
        "baseline": None if y_test is None else float(np.mean((y_test - problem.y.mean(axis=0)) ** 2)),
        "t": t,
        "stable_rate": 2 * rate / float(rates.max()) if rates.size else float("inf"),
        "needed": needed,
        "orbit": orbit,
        "points": points,
        "accuracy": _questions.accuracy(question, law, times, t),
    }


def _notes(
    question: _questions.Question, violation: Violation, bias: float, caught: list, cost: _cost.Cost
) -> tuple[str, ...]:
    """Where theory holds, what was warned of, and what was done to the data; warnings first."""
    ens, problem, order = question.ens, question.problem, question.ens.train.order
    # That the symmetry could not be used is said in words of its own.
    warned = (str(w.message) for w in caught if not issubclass(w.category, ReductionWarning))
    notes = (
        *_scope.symmetry_notes(violation, ens.train.rep_x, problem.x),
        *_scope.ensemble_notes(ens, bias, question.delta),
        *dict.fromkeys(f"WARNING: {message}" for message in warned),
        *problem.missing_classes(),
        *problem.notes,
        *_scope.fixed_points_note(len(ens.train.stabilizers()), order),
        _cost.note(cost, len(problem.x), len(problem.x_test)),
        _scope.ALWAYS,
    )
    return tuple(sorted(notes, key=lambda note: not note.startswith("WARNING")))


def _actions(problem: Problem, group: FiniteGroup, action: Any, label_action: Any) -> tuple[Any, Any]:
    """How the group acts on samples and labels."""
    rep_x = named_action(action, group, problem.x.shape[1:])
    if label_action == "same":
        if acts_on_images(action) or (isinstance(action, str) and action.startswith("nodes")):
            fix = "Say how the channels of the labels transform: matrix, permutation, regular, sign or trivial."
            raise refusal("label_action", expected="an action on vectors", got="same, which moves pixels", fix=fix)
        label_action = action
    channels = problem.y.shape[1] if problem.y.ndim == 2 else 1
    return rep_x, named_action(label_action, group, (channels,), argument="label_action")


def _kernel_fn(arch: Any, shape: tuple[int, ...], w_std: Any, b_std: Any) -> KernelFunction:
    if isinstance(arch, str):
        return named_network(arch, shape, w_std=w_std, b_std=b_std).kernel_fn
    found = arch[2] if isinstance(arch, tuple) and len(arch) == 3 else arch
    if not callable(found):
        fix = "Pass a name such as mlp:relu:2, a triple from `ntk_equiv.stax`, or a kernel_fn."
        raise refusal("arch", expected="a network", got=type(arch).__name__, fix=fix, kind=TypeError)
    return found


def _tolerated(delta: Any, y: np.ndarray) -> float:
    if delta is None:
        centred = (y - y.mean(axis=0)).reshape(len(y), -1)
        delta = TOLERATED * float(np.sqrt(np.mean(np.sum(centred**2, axis=1))))
        if not delta:
            fix = "The labels are all the same, so that nothing can be guessed from their spread."
            raise refusal("delta", expected="given", got="nothing", fix=fix)
    delta = real_number(delta, "delta")
    if not 0 < delta <= LARGEST:
        fix = "It is the deviation that is just tolerated, in the units of the labels."
        raise refusal("delta", expected=f"positive, and at most {LARGEST:g}", got=delta, fix=fix)
    return delta


def _probability(epsilon: Any) -> float:
    epsilon = real_number(epsilon, "epsilon")
    if not 0 < epsilon < 1:
        fix = "It is the probability of a larger deviation, such as 0.05."
        raise refusal("epsilon", expected="between 0 and 1, both excluded", got=epsilon, fix=fix)
    return epsilon


def _draws(samples: Any, epsilon: float) -> int:
    """How many draws, if they are enough to see what has probability ε: known before anything is computed."""
    samples = positive_integer(samples, "samples")
    if not np.isfinite(Sampled.quantile(np.zeros((samples, 1)), epsilon).upper).all():
        fix, expected = f"Take more, at least about {10 / epsilon:.3g}.", "enough to see what happens with probability"
        raise refusal("samples", expected=f"{expected} {epsilon}", got=samples, fix=fix)
    return samples


def _dtype(dtype: str | None) -> np.dtype:
    default = np.dtype(jnp.result_type(float))
    if dtype is None:
        return default
    one_of(dtype, ("float64", "float32"), "dtype")
    if dtype != default and dtype == "float64":
        fix = 'Say `jax.config.update("jax_enable_x64", True)` before anything else.'
        raise refusal("dtype", expected="float32 while JAX has double precision off", got=dtype, fix=fix)
    return np.dtype(dtype)


def _described(problem: Problem, group: FiniteGroup, rep_x: Any, rep_y: Any, ens: Any) -> dict[str, Any]:
    return {
        "group": group.label,
        "order": group.order,
        "action": str(rep_x),
        "label_action": str(rep_y),
        "method": ens.method,
        "points": len(problem.x),
        "test_points": len(problem.x_test),
        "shape": list(problem.x.shape[1:]),
        "channels": problem.y.shape[1] if problem.y.ndim == 2 else 1,
        "classes": None if problem.classes is None else list(problem.classes),
    }


def _as_text(value: Any) -> Any:
    """Settings as JSON can hold them: numbers and text as they are, lists of these, anything else by its name."""
    if isinstance(value, np.generic | np.ndarray | jax.Array):
        value = value.tolist()
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return [_as_text(each) for each in value]
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


def _now() -> str:
    return datetime.datetime.now().astimezone().isoformat(" ", "seconds")


def versions() -> dict[str, str]:
    """The versions of Python, this library and what it builds on.

    Example:
        >>> from ntk_equiv.planning import versions
        >>> sorted(versions())
        ['jax', 'jaxlib', 'matplotlib', 'ntk-equiv', 'numpy', 'python', 'scipy']
    """
    found = {"python": platform.python_version()}
    for name in VERSIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # matplotlib may be left out
            found[name] = "not installed"
    return found
