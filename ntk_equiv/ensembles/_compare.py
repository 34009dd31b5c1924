"""A trained ensemble compared with the theory of infinite width.

At infinite width members are independent draws from N(μ_t, Σ_t). So mean and variance over M members are

    f̂ = μ_t ± √(Σ_t / M),          s² = Σ_t (1 ± √(2 / (M − 1)))

and differences are given in units of these standard errors (the first from the observed variance). A finite width N
changes both by O(1/N). With several widths, the coefficient a of a/N is fitted to the differences at each sample.

Paired differences show what finite width does with far fewer members. The members of a run are made again as they were
before training, and each trained member f_m is compared with the trajectory of its own initial function f_0,

    g_m(x) = f_0(x) + Θ(x, X) φ_t(Θ) (y − f_0(X)),

to which it tends as its width goes to infinity. The scatter that f_0 causes is in both, and drops out of f_m − g_m. If
the last layer has mean 0, as all networks here, E f_0 = 0 at any width, so E g_m = μ_t, and E(f_m − g_m) is the same
shift of the mean that the raw difference estimates. The variance of g_m is Σ_t with the 𝒦 of finite width in place of
its limit: the paired difference of variances is what finite width does in training, without what it does to 𝒦.
"""

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from ntk_equiv._check import instance, is_listed, one_of, positive_integers, refusal, whole_number
from ntk_equiv._typing import Inputs, Scalar
from ntk_equiv.empirical import (
    Correction,
    Exponent,
    Extrapolation,
    extrapolate_width,
    fitted_correction,
    fitted_exponent,
)
from ntk_equiv.ensembles._batches import TrainingSet, make_batches
from ntk_equiv.ensembles._fingerprints import hash_data
from ntk_equiv.ensembles._inputs import sample_from_specs
from ntk_equiv.ensembles._run import Run
from ntk_equiv.filters import Filter, GradientDescent, GradientFlow, Momentum


@runtime_checkable
class Theory(Protocol):
    """What a comparison asks of an `InfiniteEnsemble`."""

    @property
    def train(self) -> Any:
        """The training set."""

    @property
    def filter(self) -> Any:
        """How it is trained."""

    @property
    def reduction(self) -> str:
        """How losses are combined, "sum" or "mean"."""

    def mean(self, x: Inputs, t: Any) -> Any:
        """Return the mean over members at time t, [n, ..., channels]."""

    def var(self, x: Inputs, t: Any) -> Any:
        """Return the variance over members at time t, [n, ...]."""


@dataclasses.dataclass(frozen=True, repr=False)
class Deviation:
    """An observed quantity and its prediction by theory, at each sample and output.

    Attributes:
        observed: what was observed, an array [n, ..., channels].
        predicted: what theory predicts, an array of the same shape.
        error: the standard error of what was observed, an array of the same shape.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv import ensembles
        >>> ensembles.Deviation(np.array([1.0, 2.5]), np.array([1.1, 2.2]), np.array([0.1, 0.1])).standardized.round(6)
        array([-1.,  3.])
    """

    observed: Float[np.ndarray, "*samples"]
    predicted: Float[np.ndarray, "*samples"]
    error: Float[np.ndarray, "*samples"]

    @property
    def difference(self) -> Float[np.ndarray, "*samples"]:
        """Observed minus predicted."""
        return self.observed.astype(float) - self.predicted

    @property
    def standardized(self) -> Float[np.ndarray, "*samples"]:
        """The difference in standard errors."""
        return self.difference / self.error

    @property
    def overall(self) -> float:
        """The root mean square of the differences in standard errors: about 1 if they are due to chance alone."""
        return float(np.sqrt(np.mean(self.standardized**2)))

    @property
    def size(self) -> float:
        """The root mean square of the differences, less what chance is expected to contribute; 0 if that is all."""
        return float(np.sqrt(max(np.mean(self.difference**2 - self.error**2), 0.0)))

    @property
    def largest(self) -> float:
        """The largest difference in standard errors."""
        return float(np.max(np.abs(self.standardized)))

    def __repr__(self) -> str:
        return f"<off by {self.overall:.2f} standard errors overall, {self.largest:.2f} at most>"

    def within(self, standard_errors: float | int, allowance: float | int) -> bool:
        """Return whether no difference exceeds so many standard errors plus a fraction of the largest prediction."""
        room = standard_errors * self.error + allowance * np.abs(self.predicted).max()
        return bool((np.abs(self.difference) <= room).all())


@dataclasses.dataclass(frozen=True, repr=False)
class Comparison:
    """A trained ensemble compared with theory; made by `compare_with_theory`.

    Attributes:
        members: how many members were compared.
        mean: the comparison of their mean.
        var: the comparison of their variance.
        paired_mean: their mean compared with that of the trajectories of their own initial functions, with the
            standard error of the difference; None if these are not known, or at time 0.
        paired_var: the same for their variance.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv import ensembles
        >>> mean = ensembles.Deviation(np.array([1.3]), np.array([1.0]), np.array([0.1]))
        >>> var = ensembles.Deviation(np.array([0.2]), np.array([0.2]), np.array([0.05]))
        >>> comparison = ensembles.Comparison(members=25, mean=mean, var=var)
        >>> comparison
        <25 members: mean off by 3.00 standard errors overall, 3.00 at most; variance off by 0.00, 0.00 at most>
        >>> comparison.holds(5), comparison.holds(2), comparison.holds(2, allowance=0.2)      # width may add a fifth
        (True, False, True)
    """

    members: int
    mean: Deviation
    var: Deviation
    paired_mean: Deviation | None = None
    paired_var: Deviation | None = None

    def __repr__(self) -> str:
        mean, var = (f"{one.overall:.2f}{{}}, {one.largest:.2f} at most" for one in (self.mean, self.var))
        mean, var = mean.format(" standard errors overall"), var.format("")
        paired = "" if self.paired_mean is None else f"; paired, the mean is off by {self.paired_mean.overall:.2f}"
        return f"<{self.members} members: mean off by {mean}; variance off by {var}{paired}>"

    @property
    def shift(self) -> float:
        """The size of the shift of the mean, paired if possible, in standard errors of the mean of this ensemble.

        Below 1, an ensemble of so many members is farther from theory by chance than by its width.
        """
        difference = self.mean if self.paired_mean is None else self.paired_mean
        return difference.size / float(np.sqrt(np.mean(self.mean.error**2)))

    def holds(self, standard_errors: float | int = 5, *, allowance: float | int = 0) -> bool:
        """Return whether mean and variance agree with theory everywhere.

        Args:
            standard_errors: how many standard errors are put down to chance.
            allowance: how much finite width may add, as a fraction of the largest mean and of the largest variance.
        """
        return self.mean.within(standard_errors, allowance) and self.var.within(standard_errors, allowance)


@dataclasses.dataclass(frozen=True, repr=False)
class Trend:
    """Differences from theory for several widths N, with a fit of a/N at each sample.

    Attributes:
        widths: the widths.
        comparisons: the comparison for each width.
        mean: the correction of the mean: a, its error, and χ² per degree of freedom, which is about 1 if the
            differences are of order 1/N.
        var: the correction of the variance.
        paired_mean: the correction of the mean from paired differences, or None.
        paired_var: the correction of the variance from paired differences, or None.
        exponent: p of paired differences of the mean c/N^p, with its standard error, or None.
        limit: the difference of the mean that is left at infinite width, from paired differences if there are any, and
            why it should not be trusted; None for a single width.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv import empirical, ensembles
        >>> mean, var = (empirical.Correction(np.array([a]), np.array([0.1]), 1.2) for a in (0.5, 2.0))
        >>> trend = ensembles.Trend(widths=(64, 128), comparisons=(), mean=mean, var=var)
        >>> trend
        <deviations a/width at widths 64, 128: χ² per degree of freedom 1.20 for the mean, 1.20 for the variance>
        >>> print(trend.mean.at(1000), trend.var.at(1000))      # what width 1000 is estimated to add
        [0.0005] [0.002]
    """

    widths: tuple[int, ...]
    comparisons: tuple[Comparison, ...]
    mean: Correction
    var: Correction
    paired_mean: Correction | None = None
    paired_var: Correction | None = None
    exponent: Exponent | None = None
    limit: Extrapolation | None = None

    def __repr__(self) -> str:
        widths, chi2 = ", ".join(map(str, self.widths)), "χ² per degree of freedom"
        fits = f"{self.mean.chi_squared:.2f} for the mean, {self.var.chi_squared:.2f} for the variance"
        power = "" if self.exponent is None else f"; exponent {self.exponent.value:.2f} ± {self.exponent.error:.2f}"
        return f"<deviations a/width at widths {widths}: {chi2} {fits}{power}>"


@dataclasses.dataclass(frozen=True, repr=False)
class Curve:
    """Comparisons with theory at several times.

    Attributes:
        times: the times, in increasing order.
        comparisons: for each time a comparison; for several widths a trend.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv import ensembles
        >>> mean = lambda shift: ensembles.Deviation(np.array([1.0 + shift]), np.array([1.0]), np.array([0.1]))
        >>> var = ensembles.Deviation(np.array([0.2]), np.array([0.2]), np.array([0.05]))
        >>> compared = tuple(ensembles.Comparison(25, mean(shift), var) for shift in (0.0, 0.1, 0.3))
        >>> curve = ensembles.Curve((0, 10, 100), compared)
        >>> curve, curve.holds_until(2.0)
        (<comparisons with theory at times 0, 10, 100>, 10)
    """

    times: tuple[int, ...]
    comparisons: tuple[Comparison | Trend, ...]

    def __repr__(self) -> str:
        return f"<comparisons with theory at times {', '.join(map(str, self.times))}>"

    def of(self, width: int) -> "Curve":
        """Return the curve of one of several widths.

        Args:
            width: the width.
        """
        widths = self.comparisons[0].widths if isinstance(self.comparisons[0], Trend) else ()
        at = widths.index(one_of(width, widths, "width"))
        return Curve(self.times, tuple(one.comparisons[at] for one in self.comparisons if isinstance(one, Trend)))

    def holds_until(self, standard_errors: float | int = 2) -> int | None:
        """Return the last time up to which the shift by finite width stays below so many errors of the ensemble mean.

        Only the times of the curve are looked at. At time 0 there is no shift.

        Args:
            standard_errors: how many standard errors of the mean of the members, √(variance / members).

        Returns:
            The time; None if the shift is larger at the first time already.
        """
        last = None
        for time, one in zip(self.times, self.comparisons, strict=True):
            if isinstance(one, Trend):
                fix = "Take the curve of one width first: `curve.of(width)`."
                raise refusal("curve", expected="that of one width", got=f"widths {one.widths}", fix=fix)
            # Before training nothing has shifted, and what is seen there is chance.
            if time > 0 and one.shift > standard_errors:
                break
            last = time
        return last


def compare_with_theory(
    run: Run | Mapping[int, Run],
    ens: Theory,
    x: Inputs,
    t: Scalar | Sequence[int] | None = None,
    *,
    paired: bool | None = None,
) -> Comparison | Trend | Curve:
    """Compare mean and variance of a trained ensemble with theory, in units of the standard error.

    Args:
        run: a run trained on full batches by gradient descent (with or without momentum), or an untrained run; or a
            mapping from several widths to such runs.
        ens: the `InfiniteEnsemble` on the same data, with the same loss, reduction and rate.
        x: samples at which to compare, [n, ...].
        t: the time; it must be the number of steps of the run, which is the default. Or a list of steps at which the
            run recorded its predictions for these samples, as with `record={"test": x}, record_at=[...]`.
        paired: whether each member is also compared with the trajectory of its own initial function, which shows what
            finite width does with far fewer members; by default if it is possible.

    Returns:
        A comparison; for several widths their trend; for a list of times a curve of these.

    Raises:
        ValueError: run and theory are not about the same training, and the message says how they differ; or the
            network has batch statistics or dropout, to which theory does not apply; or nothing was recorded at a time.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> from ntk_equiv import InfiniteEnsemble, ensembles, filters, stax
        >>> net = stax.Dense(1, b_std=1.0)
        >>> data = jnp.array([[-1.], [1.]]), jnp.array([[0.], [1.]])
        >>> run = ensembles.train(net, data, members=50, steps=3, optimizer=optax.sgd(0.5), key=jax.random.key(0))
        >>> ens = InfiniteEnsemble(net.kernel_fn, data, filters.gradient_descent(0.5), reduction="mean")
        >>> found = ensembles.compare_with_theory(run, ens, jnp.array([[0.], [2.]]), 3)
        >>> found.holds(5)
        True
        >>> bool((abs(found.paired_mean.difference) < 1e-6).all())      # a linear network has its limit at any width
        True
    """
    fix = "Make one with `InfiniteEnsemble(kernel_fn, train)`; the run comes first."
    instance(ens, Theory, "ens", expected="an infinite ensemble", fix=fix)
    one_of(paired, (None, True, False), "paired")
    if not isinstance(run, Mapping):
        times, columns = _compare_run(run, ens, x, t, paired)
        return _as_curve(t, times, [comparison for comparison, _ in columns])
    widths = tuple(sorted(positive_integers([*run], "run", fix="Name each run by its width, as in {64: run}.")))
    found = [_compare_run(run[width], ens, x, t, paired) for width in widths]
    rows = zip(*(columns for _, columns in found), strict=True)
    return _as_curve(t, found[0][0], [_make_trend(widths, [*row]) for row in rows])


def _as_curve(t: Any, times: list[int], results: list) -> Any:
    return Curve(tuple(times), tuple(results)) if is_listed(t) else results[0]


def _make_trend(widths: tuple[int, ...], row: list[tuple[Comparison, np.ndarray | None]]) -> Trend:
    comparisons, differences = tuple(one for one, _ in row), [of_members for _, of_members in row]
    means, variances = [one.mean for one in comparisons], [one.var for one in comparisons]
    trend = Trend(widths, comparisons, _fit_correction(widths, means), _fit_correction(widths, variances))
    exponent = None
    if all(one.paired_mean is not None for one in comparisons):
        means = [one.paired_mean for one in comparisons if one.paired_mean is not None]
        variances = [one.paired_var for one in comparisons if one.paired_var is not None]
        trend = dataclasses.replace(trend, paired_mean=_fit_correction(widths, means))
        trend = dataclasses.replace(trend, paired_var=_fit_correction(widths, variances))
        if len(widths) > 1:
            by_width = zip(widths, differences, strict=True)
            exponent = fitted_exponent({N: one for N, one in by_width if one is not None})
    limit = None
    if len(widths) > 1:
        limit = extrapolate_width(*_by_width(widths, means), exponent)
    return dataclasses.replace(trend, exponent=exponent, limit=limit)


def _compare_run(
    run: Run, ens: Theory, x: Inputs, t: Any, paired: bool | None
) -> tuple[list[int], list[tuple[Comparison, np.ndarray | None]]]:
    """Return times, and for each a comparison and the paired differences of members, [members, n, ...]."""
    fix = "Pass what `ensembles.train` returned, or a dictionary of such runs by their widths."
    instance(run, Run, "run", expected="a run", fix=fix)
    listed = is_listed(t)
    _check_same_training(run, ens, run.steps if t is None or listed else t)
    known = _recorded(run, x, t) if listed else {run.steps: np.asarray(run.predict(x))}
    # In double precision: squares of numbers in single precision may overflow or vanish there.
    predictions = {time: one[run.finished].astype(float) for time, one in sorted(known.items())}
    if len(run.finished) < 2:
        got = len(run.finished)
        raise refusal("run", expected="at least 2 members that are finite", got=got, fix="Train more.")
    before = _initial_members(run, ens, paired)
    results: list[tuple[Comparison, np.ndarray | None]] = []
    for time, one in predictions.items():
        raw = _compare_raw(one, ens, x, time)
        if before is None or time == 0:
            results.append((raw, None))
            continue
        trajectories: Any = ens.mean(x, time, f0=before.predict)  # type: ignore[call-arg]
        exact = np.asarray(trajectories, float).reshape(one.shape)
        mean, var = _compare_pairs(one, exact)
        results.append((dataclasses.replace(raw, paired_mean=mean, paired_var=var), one - exact))
    return [*predictions], results


def _compare_raw(predictions: np.ndarray, ens: Theory, x: Inputs, t: int) -> Comparison:
    count = len(predictions)
    mean, var = predictions.mean(0), predictions.var(0, ddof=1)
    predicted = np.asarray(ens.mean(x, t), float).reshape(mean.shape)
    spread = np.broadcast_to(np.asarray(ens.var(x, t), float)[..., None], mean.shape)
    return Comparison(
        count,
        Deviation(mean, predicted, np.sqrt(var / count)),
        Deviation(var, spread, spread * np.sqrt(2 / (count - 1))),
    )


def _compare_pairs(predictions: np.ndarray, exact: np.ndarray) -> tuple[Deviation, Deviation]:
    """Return the comparison of members [members, ...] with the trajectories of their own initial functions."""
    count = len(predictions)
    error = (predictions - exact).std(0, ddof=1) / np.sqrt(count)
    squares = [(one - one.mean(0)) ** 2 for one in (predictions, exact)]
    error_of_var = (squares[0] - squares[1]).std(0, ddof=1) / np.sqrt(count)
    mean = Deviation(predictions.mean(0), exact.mean(0), error)
    return mean, Deviation(predictions.var(0, ddof=1), exact.var(0, ddof=1), error_of_var)


def _initial_members(run: Run, ens: Theory, paired: bool | None) -> Run | None:
    """Return the finite members of a run before training; None if they are not asked for, or not known."""
    if paired is False or run.steps == 0:
        return None
    if "f0" not in inspect.signature(ens.mean).parameters:
        if paired is None:
            return None
        fix = "Compare with an `InfiniteEnsemble`, or pass `paired=False`."
        raise refusal("ens", expected="a theory of single members", got="a mean without `f0`", fix=fix)
    if paired is None and not run.knows_its_initial_members:
        return None
    return run.initial().subset(run.finished) if run.failed else run.initial()


def _recorded(run: Run, x: Inputs, times: Any) -> dict[int, np.ndarray]:
    """Return the predictions for x that a run recorded, at some of the times at which it did."""
    wanted = [whole_number(time, "t") for time in np.asarray(times).tolist()]
    found = run.predictions_recorded_for(x)
    missing = sorted(set(wanted) - set(found))
    if missing or not wanted:
        fix = 'Train with `record={"test": x}, record_at=[...]`, and compare at these samples and steps.'
        got = f"{missing}" if missing else "no time"
        raise refusal("t", expected=f"some of the steps recorded for `x`, {sorted(found)}", got=got, fix=fix)
    return {time: found[time] for time in wanted}


def _check_same_training(run: Run, ens: Theory, t: Scalar) -> None:
    """Refuse to compare a run and a theory that are not about the same training."""
    here, differences = run.configuration, []
    beyond = "a network that draws random numbers in training, as dropout does"
    if here.get("state"):
        beyond = f"a network with a state, {', '.join(here['state'])}"
    if here.get("state") or run.model.draws_noise(sample_from_specs(here["inputs"])):
        fix = "Theory does not apply to batch statistics and noise: compare a network without them."
        raise refusal("run", expected="of a network that theory is about", got=beyond, fix=fix)
    if run.steps == t == 0:
        return  # before training there is no setting in which they could differ
    if run.steps == 0:
        raise refusal("t", expected="0, for a run that is not trained", got=t, fix="Train it with `train`.")
    if here["loss"] != "mse":
        loss = here["loss"] if isinstance(here["loss"], str) else f"the function {here['loss']['name']}"
        differences.append(f"the run has loss {loss!r}, theory is about 'mse'")
    if here["batch_size"] is not None or here["augmentation"] != "full":
        differences.append("the run saw batches, theory is about all samples in every step")
    if here["reduction"] != ens.reduction:
        differences.append(f"the run has reduction {here['reduction']!r}, the infinite ensemble {ens.reduction!r}")
    if (run.member_steps != run.steps).any():
        differences.append("members of the run were stopped early, at steps of their own")
    if t != run.steps:
        differences.append(f"the run has {run.steps} steps, t is {t}")
    differences += _different_rates(here["rate and momentum"], ens.filter)
    if not differences and _hash_of_training_set(ens.train) != here["data"]:
        differences.append("they were trained on different data")
    if differences:
        fix = "Make them agree: theory describes only the training that it was made for."
        raise refusal("ens", expected="about the training of `run`", got="; ".join(differences), fix=fix)


def _hash_of_training_set(train: TrainingSet) -> str:
    return hash_data(make_batches(train, None, "full")[1])


def _different_rates(rate_and_momentum: list[float] | None, filter: Filter) -> list[str]:
    if not isinstance(filter, GradientFlow | GradientDescent | Momentum):
        return [f"the run is trained by gradient descent, the infinite ensemble by {filter}"]
    if rate_and_momentum is None:
        return ["the optimizer of the run is not gradient descent, at one rate for all parameters and steps"]
    (rate, momentum), wanted = rate_and_momentum, (float(filter.learning_rate), float(getattr(filter, "beta", 0.0)))
    if not np.isclose(rate, wanted[0], rtol=1e-5, atol=0) or not np.isclose(momentum, wanted[1], rtol=0, atol=1e-5):
        return [f"the run has rate and momentum {(rate, momentum)}, the infinite ensemble {wanted}"]
    return []


def _by_width(widths: tuple[int, ...], deviations: list[Deviation]) -> tuple[dict, dict]:
    """Return differences and their errors by width."""
    at = dict(zip(widths, deviations, strict=True))
    return {N: one.difference for N, one in at.items()}, {N: one.error for N, one in at.items()}


def _fit_correction(widths: tuple[int, ...], deviations: list[Deviation]) -> Correction:
    """Fit a/N to the differences by least squares."""
    return fitted_correction(*_by_width(widths, deviations))
