"""A trained ensemble compared with the theory of infinite width.

At infinite width members are independent draws from N(μ_t, Σ_t). So mean and variance over M members are

    f̂ = μ_t ± √(Σ_t / M),          s² = Σ_t (1 ± √(2 / (M − 1)))

and differences are given in units of these standard errors (the first from the observed variance). A finite width N
changes both by O(1/N). With several widths, the coefficient a of a/N is fitted to the differences at each sample.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from ntk_equiv._check import instance, positive_integers, refusal
from ntk_equiv._typing import Inputs, Scalar
from ntk_equiv.empirical import Correction, fitted_correction
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

    def __repr__(self) -> str:
        mean, var = (f"{one.overall:.2f}{{}}, {one.largest:.2f} at most" for one in (self.mean, self.var))
        mean, var = mean.format(" standard errors overall"), var.format("")
        return f"<{self.members} members: mean off by {mean}; variance off by {var}>"

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

    def __repr__(self) -> str:
        widths, chi2 = ", ".join(map(str, self.widths)), "χ² per degree of freedom"
        fits = f"{self.mean.chi_squared:.2f} for the mean, {self.var.chi_squared:.2f} for the variance"
        return f"<deviations a/width at widths {widths}: {chi2} {fits}>"


def compare_with_theory(
    run: Run | Mapping[int, Run], ens: Theory, x: Inputs, t: Scalar | None = None
) -> Comparison | Trend:
    """Compare mean and variance of a trained ensemble with theory, in units of the standard error.

    Args:
        run: a run trained on full batches by gradient descent (with or without momentum), or an untrained run; or a
            mapping from several widths to such runs.
        ens: the `InfiniteEnsemble` on the same data, with the same loss, reduction and rate.
        x: samples at which to compare, [n, ...].
        t: the time; it must be the number of steps of the run, which is the default.

    Returns:
        A comparison; for several widths their trend.

    Raises:
        ValueError: run and theory are not about the same training, and the message says how they differ; or the
            network has batch statistics or dropout, to which theory does not apply.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> from ntk_equiv import InfiniteEnsemble, ensembles, filters, stax
        >>> net = stax.Dense(1, b_std=1.0)
        >>> data = jnp.array([[-1.], [1.]]), jnp.array([[0.], [1.]])
        >>> run = ensembles.train(net, data, members=50, steps=3, optimizer=optax.sgd(0.5), key=jax.random.key(0))
        >>> ens = InfiniteEnsemble(net.kernel_fn, data, filters.gradient_descent(0.5), reduction="mean")
        >>> ensembles.compare_with_theory(run, ens, jnp.array([[0.], [2.]]), 3).holds(5)
        True
    """
    fix = "Make one with `InfiniteEnsemble(kernel_fn, train)`; the run comes first."
    instance(ens, Theory, "ens", expected="an infinite ensemble", fix=fix)
    if isinstance(run, Mapping):
        widths = tuple(sorted(positive_integers([*run], "run", fix="Name each run by its width, as in {64: run}.")))
        comparisons = tuple(_compare_run(run[width], ens, x, t) for width in widths)
        mean = _fit_correction(widths, [one.mean for one in comparisons])
        return Trend(widths, comparisons, mean, _fit_correction(widths, [one.var for one in comparisons]))
    return _compare_run(run, ens, x, t)


def _compare_run(run: Run, ens: Theory, x: Inputs, t: Scalar | None) -> Comparison:
    fix = "Pass what `ensembles.train` returned, or a dictionary of such runs by their widths."
    instance(run, Run, "run", expected="a run", fix=fix)
    t = run.steps if t is None else t
    _check_same_training(run, ens, t)
    # In double precision: squares of numbers in single precision may overflow or vanish there.
    predictions = np.asarray(run.predict(x))[run.finished].astype(float)
    count = len(predictions)
    if count < 2:
        raise refusal("run", expected="at least 2 members that are finite", got=count, fix="Train more.")
    mean, var = predictions.mean(0), predictions.var(0, ddof=1)
    predicted = np.asarray(ens.mean(x, t), float).reshape(mean.shape)
    spread = np.broadcast_to(np.asarray(ens.var(x, t), float)[..., None], mean.shape)
    return Comparison(
        count,
        Deviation(mean, predicted, np.sqrt(var / count)),
        Deviation(var, spread, spread * np.sqrt(2 / (count - 1))),
    )


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


def _fit_correction(widths: tuple[int, ...], deviations: list[Deviation]) -> Correction:
    """Fit a/N to the differences by least squares."""
    at = dict(zip(widths, deviations, strict=True))
    return fitted_correction({N: one.difference for N, one in at.items()}, {N: one.error for N, one in at.items()})
