"""Is a network wide enough? What theory leaves out at finite width, seen before training.

Theory of infinite width holds for a network as long as it stays close to its linearisation, and as long as its kernel
is close to the limit. `laziness` moves a few members along their linearised trajectories w_t and along their own, in a
few long steps in place of training (see `_path.py`), and measures for each member and time

    kernel_change   ‖Θ(w_t) − Θ(w_0)‖ / ‖Θ(w_0)‖                 on the training samples, Frobenius norm
    lazy_ratio      ‖f_0 − y‖ ‖J(w_t) − J(w_0)‖ / (‖w_t − w_0‖ ‖J(w_0)‖²)     Chizat, Oyallon & Bach's κ (2019)
    move            ‖w_t − w_0‖ / ‖w_0‖
    bend            f(x, w_t) − f_lin(x, t)                      at test samples
    drift           f_t(x) − f_lin(x, t), by the network's own path

In κ the second derivative of the network is replaced by the change of the Jacobian over the distance, so that it is
defined for networks with kinks as well, whose second derivatives vanish almost everywhere.

Predicted for a trained member is f_lin + drift. The shift is the mean over members of what is predicted minus what
theory says, the exact trajectory of the same initial function; without theory, of the drift alone. Theory *holds* for
M members until the size of the shift exceeds so many standard errors s/√M of their mean, where s is the standard
deviation of one member. All of it are estimates from a few members and a few steps, and none a bound.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv._check import (
    describe,
    instance,
    one_of,
    positive_integer,
    real_array,
    refusal,
    samples_in,
    scalar,
)
from ntk_equiv._typing import Inputs, Scalar
from ntk_equiv.empirical._derivatives import Params
from ntk_equiv.empirical._kernel_fn import EmpiricalKernelFn, samples_as_arrays, split_network
from ntk_equiv.empirical._path import (
    STEPS_PER_OCTAVE,
    STEPS_PER_OCTAVE_WITH_KINKS,
    Network,
    follow,
    has_kinks,
    largest_eigenvalue,
    portion_of_samples,
    stores_jacobian,
    time_grid,
)
from ntk_equiv.filters import Filter, GradientDescent, GradientFlow, gradient_flow

# If half as many steps change the shift by more than this part of it, its steps are too long.
LARGEST_DISAGREEMENT = 0.5
# A kernel that has changed by more is no small perturbation.
LARGEST_CHANGE = 0.5


class Averaged(NamedTuple):
    """A mean over members with its standard error.

    Attributes:
        value: the mean.
        error: its standard error; inf for a single member.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv.empirical import Averaged
        >>> Averaged(np.array([3.0]), np.array([1.5])).standardized
        array([2.])
    """

    value: np.ndarray
    error: np.ndarray

    @property
    def standardized(self) -> np.ndarray:
        """The mean in standard errors."""
        return self.value / np.where(self.error > 0, self.error, np.inf)

    @property
    def size(self) -> float:
        """The root mean square over entries, less what chance is expected to contribute; 0 if that is all."""
        if not np.isfinite(self.error).all():
            return float(np.sqrt(np.mean(self.value**2)))
        return float(np.sqrt(max(np.mean(self.value**2 - self.error**2), 0.0)))


class TimeEstimate(NamedTuple):
    """Until when theory is estimated to hold, for so many members of one width; no bound.

    Attributes:
        time: when the shift reaches the chosen number of standard errors; inf if it does not within the given times.
        lower: the same for the shift plus two of its standard errors and the error of its steps.
        upper: the same for the shift minus these.
        doubts: why it should not be trusted; empty if nothing speaks against it.

    Example:
        >>> from ntk_equiv.empirical import TimeEstimate
        >>> TimeEstimate(100.0, 80.0, 130.0, ())
        <estimate: theory holds until t = 100, between 80 and 130>
    """

    time: float
    lower: float
    upper: float
    doubts: tuple[str, ...]

    def __repr__(self) -> str:
        doubts = "".join(f"; doubtful: {doubt}" for doubt in self.doubts)
        return (
            f"<estimate: theory holds until t = {self.time:.3g}, between {self.lower:.3g} and {self.upper:.3g}{doubts}>"
        )


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Laziness:
    """How lazy members of one width are, and how far theory is from them; made by `laziness`.

    Attributes:
        times: the times.
        linear: predictions of the linearised members at the test samples, [members, times, m, ...].
        bend: what members at w_t predict beyond that.
        drift: what trained members are estimated to predict beyond the linearised ones.
        coarse: the same in half as many steps.
        theory: what theory predicts for members with the same initial functions, [members, times, m, ...], or None.
        kernel_change: ‖Θ(w_t) − Θ(w_0)‖/‖Θ(w_0)‖, [members, times].
        lazy_ratio: κ, [members, times].
        move: ‖w_t − w_0‖/‖w_0‖, [members, times].
        kinks: whether the network has kinks.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from ntk_equiv import empirical
        >>> product = lambda params, x: x * params[0] * params[1]
        >>> data, members = (jnp.ones((1, 1)), jnp.zeros((1, 1))), (jnp.array([1.0, 2.0]), jnp.array([0.5, 0.25]))
        >>> found = empirical.laziness(product, members, data, jnp.ones((1, 1)), [0.1])
        >>> print(found.linear.ravel().round(4), found.drift.ravel().round(4))      # f = ab, Θ = a² + b²
        [0.4412 0.3331] [0.002  0.0013]
        >>> found.members, found.average("kernel_change").value.round(3)
        (2, array([0.046]))
    """

    times: np.ndarray
    linear: np.ndarray
    bend: np.ndarray
    drift: np.ndarray
    coarse: np.ndarray
    theory: np.ndarray | None
    kernel_change: np.ndarray
    lazy_ratio: np.ndarray
    move: np.ndarray
    kinks: bool

    @property
    def members(self) -> int:
        """How many members there are."""
        return len(self.linear)

    @property
    def predicted(self) -> np.ndarray:
        """What trained members are estimated to predict, [members, times, m, ...]."""
        return self.linear + self.drift

    @property
    def shift(self) -> Averaged:
        """The mean over members of what is predicted minus theory (or without it the drift), [times, m, ...]."""
        return _average(self.drift if self.theory is None else self.predicted - self.theory)

    @property
    def step_errors(self) -> np.ndarray:
        """The root mean square change of the shift if half as many steps are taken, [times]."""
        apart = _average(self.drift - self.coarse)
        return np.array([Averaged(value, error).size for value, error in zip(*apart, strict=True)])

    @property
    def sizes(self) -> np.ndarray:
        """The root mean square of the shift over samples and outputs, less what chance contributes, [times]."""
        return np.array([Averaged(value, error).size for value, error in zip(*self.shift, strict=True)])

    @property
    def spreads(self) -> np.ndarray:
        """The root mean square over samples of the standard deviation of members, [times]."""
        axes = tuple(range(1, self.linear.ndim - 1))
        return np.sqrt(np.mean(self.predicted.var(0, ddof=1), axis=axes))

    def __repr__(self) -> str:
        change, when = self.average("kernel_change").value, ", ".join(f"{t:.3g}" for t in self.times)
        return f"<{self.members} members at t = {when}: kernel changed by {', '.join(f'{c:.2g}' for c in change)}>"

    def average(self, name: str) -> Averaged:
        """Return the mean over members of an attribute, with its standard error.

        Args:
            name: "kernel_change", "lazy_ratio", "move", "bend", "drift", "linear" or "predicted".
        """
        names = ("kernel_change", "lazy_ratio", "move", "bend", "drift", "linear", "predicted")
        return _average(getattr(self, one_of(name, names, "name")))

    def correct(self, mean: Any) -> Averaged:
        """Return a mean predicted by theory, corrected by the shift, with the standard error of the correction.

        Args:
            mean: the mean at infinite width, `ens.mean(x, times)`, [times, m, ...].
        """
        if self.theory is None:
            fix = "Pass `theory=ens` to `laziness`: what kernels at initialisation differ by is part of the correction."
            raise refusal("mean", expected="a mean of the theory that was compared", got="no theory", fix=fix)
        shift = self.shift
        mean = np.asarray(mean, float)
        if mean.shape != shift.value.shape:
            fix = "Take it at the same samples and times."
            raise refusal("mean", expected=f"of shape {shift.value.shape}", got=f"shape {mean.shape}", fix=fix)
        return Averaged(mean + shift.value, shift.error)

    def shift_at(self, t: Scalar | None = None) -> tuple[Averaged, np.ndarray]:
        """Return the shift at one time, [m, ...], and the variance that trained members are estimated to have there.

        Args:
            t: one of the times; the last unless given.
        """
        at, shift = self.place_of(t), self.shift
        return Averaged(shift.value[at], shift.error[at]), self.predicted[:, at].var(0, ddof=1)

    def place_of(self, t: Scalar | None) -> int:
        """Return the place of a time among those that were looked at; the last for None.

        Args:
            t: the time.
        """
        places = [len(self.times) - 1] if t is None else np.flatnonzero(np.isclose(self.times, scalar(t, "t")))
        if not len(places):
            fix = "Pass it to `laziness` as well."
            raise refusal("t", expected=f"one of the times {self.times.tolist()}", got=t, fix=fix)
        return int(places[0])

    def holds_until(self, members: int, *, standard_errors: float | int = 2) -> TimeEstimate:
        """Estimate until when theory holds for an ensemble, which may have more members than were looked at.

        Args:
            members: M. A larger ensemble resolves a smaller shift.
            standard_errors: how many standard errors s/√M of the mean of the ensemble the shift may reach.
        """
        count = positive_integer(members, "members")
        allowed = scalar(standard_errors, "standard_errors", at_least=0) * self.spreads / math.sqrt(count)
        sizes, errors = self.sizes, errors_of_sizes(self.shift)
        margin = 2 * errors + self.step_errors
        curves = (sizes, sizes + margin, np.maximum(sizes - margin, 0))
        time, lower, upper = (first_crossing(self.times, curve / allowed) for curve in curves)
        at = (
            len(self.times) - 1 if math.isinf(time) else int(np.searchsorted(self.times, time).clip(max=len(sizes) - 1))
        )
        doubts = self.doubts_at(at)
        if time < self.times[0]:
            doubts = (*doubts, "the shift is larger than that at the first time already")
        return TimeEstimate(time, lower, upper, doubts)

    def doubts_at(self, place: int) -> tuple[str, ...]:
        """Return why the shift at one of the times should not be trusted.

        Args:
            place: the place of the time.
        """
        doubts, size = [], self.sizes[place]
        if not size > errors_of_sizes(self.shift)[place]:
            doubts.append("the shift is not seen above the noise of these members; more of them would show it")
        apart = self.step_errors[place]
        if apart > LARGEST_DISAGREEMENT * size:
            kinks = ", because the network has kinks" if self.kinks else ""
            doubts.append(f"half as many steps change the shift of {size:.2g} by {apart:.2g}{kinks}; take more of them")
        if self.kernel_change[:, place].mean() > LARGEST_CHANGE:
            change = self.kernel_change[:, place].mean()
            doubts.append(f"the kernel changes by {change:.0%}, which is not small")
        return tuple(doubts)


def laziness(
    apply: Any,
    params: Params,
    train: Any,
    x: Inputs,
    t: Any,
    filter: Filter | None = None,
    *,
    reduction: str = "sum",
    theory: Any = None,
    steps_per_octave: int | str = "auto",
    portion: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Laziness:
    """Measure, without training, how far members will leave their linearisation, and estimate where training leads.

        w_t = w_0 − J_0ᵀ φ_t(Θ_0) (f_0 − y),        ẇ = −η J(w)ᵀ (f − y)

    Both paths are followed in steps that grow in proportion to time. In each the network is replaced by its
    linearisation there, and the drift of the kernel during the step is corrected for. The kernel is that of all outputs
    at once, [nC, nC], not the mean over channels. Losses are as for `InfiniteEnsemble`. A step costs a kernel of the
    training samples and its decomposition, and about ten products with Jacobians. Jacobians of more than 2²⁵ numbers
    or 512 rows are not stored: then steps cost as many products as Lanczos' method needs, about √(ηλh).

    Args:
        apply: a function `apply(params, x)`, a Linen module, a pair `(init, apply)` or a stax triple, as for
            `empirical_kernel_fn`.
        params: parameters of several members, with an axis of members in front of every array, as from
            `jax.vmap(init)(keys)` or `run.initial().params`; for a Linen module its variables.
        train: `augment(x, y, …)`, or a plain pair `(x, y)`.
        x: test samples, [m, ...].
        t: times, finite: a number or a vector of them in increasing order.
        filter: gradient flow (at rate 1 unless given) or gradient descent, from `ntk_equiv.filters`.
        reduction: `"sum"` or `"mean"`, as for `InfiniteEnsemble`.
        theory: an `InfiniteEnsemble` on the same data with the same filter. With it the shift includes what the kernels
            of these members differ from their limits before training.
        steps_per_octave: how many steps there are while the time doubles; `"auto"` is 4, and 8 for networks with kinks,
            whose Jacobian jumps. What half as many would change is part of the result.
        portion: how many samples are differentiated at once; by default as many as keep intermediate results of the
            network, counted in its program, below 2²⁶ numbers. Jacobians are not kept.
        progress: called after every member with the number of those done.

    Returns:
        A `Laziness`, with averages over members, the predicted shift, and estimates.

    Raises:
        ValueError: the filter is neither gradient flow nor gradient descent, or the rate makes a member diverge; a time
            is infinite or negative; network, parameters and data do not fit together.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from ntk_equiv import empirical, stax
        >>> net = stax.serial(stax.Dense(256, 1.5), stax.Erf(), stax.Dense(1))
        >>> train = jnp.array([[1.0, 0.0], [0.0, 1.0]]), jnp.array([[1.0], [-1.0]])
        >>> params = jax.vmap(lambda key: net.init_fn(key, (2, 2))[1])(jax.random.split(jax.random.key(0), 8))
        >>> found = empirical.laziness(net, params, train, jnp.array([[1.0, 1.0]]), [1.0, 10.0])
        >>> found.drift.shape, bool((found.kernel_change < 0.3).all())
        ((8, 2, 1, 1), True)
    """
    filter = gradient_flow() if filter is None else filter
    fix = "Other ways to train have dynamics of their own."
    kinds = "`filters.gradient_flow` or `filters.gradient_descent`"
    instance(filter, (GradientFlow, GradientDescent), "filter", expected=kinds, fix=fix)
    one_of(reduction, ("sum", "mean"), "reduction")
    if steps_per_octave != "auto":
        steps_per_octave = positive_integer(steps_per_octave, "steps_per_octave")
    times = _check_times(filter, t)
    members = samples_in(params, "params")
    samples, labels = _check_training_set(train)
    x_test = samples_as_arrays(x, "x")
    networks = [Network(*split_network(apply, jax.tree.map(lambda leaf: leaf[m], params))) for m in range(members)]  # noqa: B023
    shape = _check_outputs(networks[0], samples, labels, x_test)
    kinks = has_kinks(networks[0], samples)
    if steps_per_octave == "auto":
        steps_per_octave = STEPS_PER_OCTAVE_WITH_KINKS if kinks else STEPS_PER_OCTAVE
    portion = portion_of_samples(networks[0], samples) if portion is None else positive_integer(portion, "portion")
    entries = float(labels.size) if reduction == "mean" else 1.0
    stored = stores_jacobian(networks[0], labels.size)
    dtype = jax.eval_shape(networks[0].apply, networks[0].params, networks[0].constants, samples).dtype
    task = _Task(filter, entries, samples, labels.reshape(-1).astype(dtype), x_test, portion, stored)
    fastest = _check_rates(task, networks)
    intervals = [_intervals(filter, fastest, times, int(steps_per_octave), skip) for skip in (1, 2)]
    rows = []
    for number, network in enumerate(networks):
        rows.append(_follow_member(task, network, times, *intervals))
        if progress is not None:
            progress(number + 1)
    stacked = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    _check_paths(filter, stacked["trained"])
    linear, bend, trained, coarse = (
        stacked[name].reshape(members, len(times), *shape) for name in ("linear", "bend", "trained", "coarse")
    )
    change, ratio, move = np.moveaxis(stacked["move"], 2, 0)
    limit = None if theory is None else _limit_of_members(theory, networks, x_test, times, shape)
    return Laziness(
        times=times,
        linear=linear,
        bend=bend,
        drift=trained - linear,
        coarse=coarse - linear,
        theory=limit,
        kernel_change=change,
        lazy_ratio=ratio,
        move=move,
        kinks=kinks,
    )


@dataclasses.dataclass(frozen=True)
class _Task:
    """What all members have in common."""

    filter: Filter
    entries: float
    x: Inputs
    y: jax.Array
    x_test: Inputs
    portion: int
    stored: bool


def _check_rates(task: _Task, networks: list[Network]) -> float:
    """Return the rate ηλ of the fastest mode of all members, at which training does not diverge."""
    fastest, limit = 0.0, task.filter.largest_eigenvalue
    rate = float(task.filter.learning_rate)  # type: ignore[attr-defined]
    for apply, params, constants in networks:
        residual = apply(params, constants, task.x).reshape(-1) - task.y
        settings = {"portion": task.portion, "stored": task.stored}
        largest = float(largest_eigenvalue(apply, params, constants, task.x, residual, **settings)) / task.entries
        if limit is not None and largest > float(limit):
            fix = f"Take a rate below {rate * float(limit) / largest:.3g}."
            raise refusal("filter", expected="a rate at which training does not diverge", got=task.filter, fix=fix)
        fastest = max(fastest, rate * largest)
    return fastest


def _check_paths(filter: Filter, trained: np.ndarray) -> None:
    """Refuse paths that have left the numbers: a shift that is not a number would look like none."""
    lost = int((~np.isfinite(trained)).reshape(len(trained), -1).any(1).sum())
    if lost:
        fix = "Their kernels have grown too much: take a lower rate, wider networks, or more `steps_per_octave`."
        got = f"{lost} of {len(trained)} members whose predictions diverge"
        raise refusal("filter", expected=f"members that {filter} does not make diverge", got=got, fix=fix)


def _intervals(
    filter: Filter, fastest: float, times: np.ndarray, per_octave: int, skip: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return where steps begin and end, and which end at a wanted time; with `skip` 2, every second one is left out.

    Left out are only those between wanted times, and empty steps take their places, so that one program serves both.
    """
    grid = time_grid(filter, fastest, times, per_octave)
    kept = grid[(np.arange(len(grid)) % skip == 0) | np.isin(grid, times) | (grid == 0)]
    ends = np.concatenate([kept[1:], np.full(len(grid) - len(kept), kept[-1])])
    begins = np.concatenate([[0.0], ends[:-1]])
    return begins, ends, np.isin(ends, times) & (ends > begins)


def _follow_member(
    task: _Task, network: Network, times: np.ndarray, fine: tuple, coarse: tuple
) -> dict[str, np.ndarray]:
    """Return all that is measured of one member at the times, and what it predicts in half as many steps."""
    dtype = task.y.dtype
    found = {}
    for name, (begins, ends, wanted) in (("fine", fine), ("coarse", coarse)):
        # Moves are measured once.
        intervals = jnp.asarray(begins, dtype), jnp.asarray(ends, dtype), jnp.asarray(wanted & (name == "fine"))
        settings = {"portion": task.portion, "stored": task.stored}
        data = task.x, task.y, task.x_test
        steps = follow(*network, task.filter, task.entries, data, intervals, **settings)
        at = np.flatnonzero(wanted)
        found[name] = {key: np.asarray(values, float)[at] for key, values in steps.items()}
    return {**found["fine"], "coarse": found["coarse"]["trained"]}


def _limit_of_members(
    theory: Any, networks: list[Network], x: Inputs, times: np.ndarray, shape: tuple[int, ...]
) -> np.ndarray:
    """Return what theory predicts for members that begin as these do, [members, times, m, ...]."""
    labels = np.shape(theory.y)[1:]

    def initial(z: Inputs) -> jax.Array:
        values = jnp.stack([one.apply(one.params, one.constants, z) for one in networks])
        return values.reshape(*values.shape[:2], *labels)

    found = np.asarray(theory.mean(x, jnp.asarray(times), f0=initial), float)
    return np.moveaxis(found, 0, 1).reshape(len(networks), len(times), *shape)


def _average(values: np.ndarray) -> Averaged:
    count = len(values)
    error = values.std(0, ddof=1) / np.sqrt(count) if count > 1 else np.full(values.shape[1:], np.inf)
    return Averaged(values.mean(0), error)


def errors_of_sizes(shift: Averaged) -> np.ndarray:
    """Return the standard errors of the sizes, as if those of all samples were one and the same."""
    return np.sqrt(np.mean(shift.error**2, axis=tuple(range(1, shift.error.ndim))))


def first_crossing(times: np.ndarray, ratio: np.ndarray) -> float:
    """Return when a ratio first exceeds 1, on straight lines in log t; inf if it does not."""
    above = np.flatnonzero(ratio > 1)
    if not above.size:
        return math.inf
    k = int(above[0])
    if k == 0:
        # A shift begins to grow in proportion to time.
        return float(times[0] / ratio[0])
    part = (1 - ratio[k - 1]) / (ratio[k] - ratio[k - 1])
    return float(np.exp(np.log(times[k - 1]) + part * np.log(times[k] / times[k - 1])))


def _check_times(filter: Filter, t: Any) -> np.ndarray:
    times = np.atleast_1d(np.asarray(filter.checked_time(t), float))
    if not (np.isfinite(times) & (times > 0)).all() or not (np.diff(times) > 0).all():
        fix = "A trajectory has a beginning and an end; take a late time for the end of training."
        raise refusal("t", expected="finite times above 0, in increasing order", got=repr(t), fix=fix)
    return times


def _check_training_set(train: Any) -> tuple[Inputs, jax.Array]:
    """Return samples and labels of an augmented set, or of a pair."""
    if hasattr(train, "x") and hasattr(train, "y"):
        train = train.x, train.y
    if not isinstance(train, tuple) or len(train) != 2:
        fix = "Pass `augment(x, y, …)` or a pair `(x, y)`."
        raise refusal("train", expected="a training set", got=describe(train), fix=fix, kind=TypeError)
    x, y = samples_as_arrays(train[0], "train"), jnp.asarray(real_array(train[1], "train"))
    if samples_in(x, "train") != samples_in(y, "train"):
        got = f"{samples_in(x, 'train')} samples and {samples_in(y, 'train')} labels"
        raise refusal("train", expected="as many labels as samples", got=got, fix="The first axis counts samples.")
    return x, y


def _check_outputs(network: Network, x: Inputs, y: jax.Array, x_test: Inputs) -> tuple[int, ...]:
    """Return the shape of the outputs at the test samples, if those at training samples are like the labels."""
    kernel_fn = EmpiricalKernelFn(network.params, network.constants, network.apply, "auto", "apart", "ntk")
    kernel_fn.check_samples(x, "train")
    kernel_fn.check_samples(x_test, "x")
    out, test = (jax.eval_shape(network.apply, network.params, network.constants, z).shape for z in (x, x_test))
    if math.prod(out) != y.size:
        fix = "Labels have the shape of the outputs of the network."
        raise refusal("train", expected=f"labels of shape {out}", got=f"shape {y.shape}", fix=fix)
    return test
