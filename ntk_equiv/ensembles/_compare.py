"""A trained ensemble against the theory of the infinitely wide one.

At infinite width members are independent draws from N(μ_t, Σ_t). Their mean and variance over M members are then

    f̂ = μ_t ± √(Σ_t / M),          s² = Σ_t (1 ± √(2 / (M − 1)))

and deviations are given in units of these standard errors (the first from the observed variance). A finite width N
moves both by O(1/N): with several widths, the coefficient a of a/N is fitted to the deviations at each point.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from ntk_equiv._check import instance, positive_integers, refusal, shown
from ntk_equiv.empirical import Correction, fitted_correction
from ntk_equiv.ensembles._batches import batches_of
from ntk_equiv.ensembles._configuration import fingerprint
from ntk_equiv.ensembles._run import Run
from ntk_equiv.filters import GradientDescent, GradientFlow, Momentum


@dataclasses.dataclass(frozen=True, repr=False)
class Deviation:
    """What was observed at each point and output, what theory says, and the standard error of the former.

    Attributes:
        observed: an array [n, ..., channels].
        predicted: likewise.
        error: likewise.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv import ensembles
        >>> ensembles.Deviation(np.array([1.0, 2.5]), np.array([1.1, 2.2]), np.array([0.1, 0.1])).standardized.round(6)
        array([-1.,  3.])
    """

    observed: Float[np.ndarray, "*points"]
    predicted: Float[np.ndarray, "*points"]
    error: Float[np.ndarray, "*points"]

    @property
    def difference(self) -> Float[np.ndarray, "*points"]:
        """Observed minus predicted."""
        return self.observed.astype(float) - self.predicted

    @property
    def standardized(self) -> Float[np.ndarray, "*points"]:
        """The difference in standard errors, at each point."""
        return self.difference / self.error

    @property
    def overall(self) -> float:
        """The root mean square of the differences in standard errors: about 1 if there is nothing but chance."""
        return float(np.sqrt(np.mean(self.standardized**2)))

    @property
    def largest(self) -> float:
        """The largest difference in standard errors."""
        return float(np.max(np.abs(self.standardized)))

    def __repr__(self) -> str:
        return f"<off by {self.overall:.2f} standard errors overall, {self.largest:.2f} at most>"

    def within(self, standard_errors: float | int, allowance: float | int) -> bool:
        """Whether no difference is more than so many errors, plus a fraction of the largest prediction."""
        room = standard_errors * self.error + allowance * np.abs(self.predicted).max()
        return bool((np.abs(self.difference) <= room).all())


@dataclasses.dataclass(frozen=True, repr=False)
class Comparison:
    """A trained ensemble compared with theory; made by `compare_with_theory`.

    Attributes:
        members: how many were compared.
        mean: the mean over members.
        var: their variance.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv import ensembles
        >>> mean = ensembles.Deviation(np.array([1.3]), np.array([1.0]), np.array([0.1]))
        >>> var = ensembles.Deviation(np.array([0.2]), np.array([0.2]), np.array([0.05]))
        >>> found = ensembles.Comparison(members=25, mean=mean, var=var)
        >>> found
        <25 members: mean off by 3.00 standard errors overall, 3.00 at most; variance off by 0.00, 0.00 at most>
        >>> found.holds(5), found.holds(2), found.holds(2, allowance=0.2)      # off by 3; width may add a fifth
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
        """Whether mean and variance meet theory everywhere.

        Args:
            standard_errors: how far chance may go.
            allowance: what finite width may add, as a fraction of the largest mean and of the largest variance.
        """
        return self.mean.within(standard_errors, allowance) and self.var.within(standard_errors, allowance)


@dataclasses.dataclass(frozen=True, repr=False)
class Trend:
    """Deviations a/N for widths N, fitted at each point.

    Attributes:
        widths: the widths.
        comparisons: one for each.
        mean: the correction of the mean: a, its error, and χ² per degree of freedom, which is about 1 if the
            deviations are of order 1/N.
        var: that of the variance.

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


def compare_with_theory(run: Run | Mapping[int, Run], ens: Any, x: Any, t: Any = None) -> Comparison | Trend:
    """Mean and variance of a trained ensemble against theory, in units of the standard error.

    Args:
        run: a run trained on full batches by gradient descent (with or without momentum), or an untrained one; or
            for each of several widths such a run.
        ens: the infinite ensemble, on the same data, with the same loss, reduction and rate.
        x: points at which to compare, [n, ...].
        t: the number of steps of the run, its only time.

    Returns:
        A comparison; for several widths their trend.

    Raises:
        ValueError: run and theory are not about the same training; the message says in what they differ.

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
    if not all(hasattr(ens, name) for name in ("mean", "var", "filter", "reduction")):
        fix = "Make one with `InfiniteEnsemble(kernel_fn, train)`; the run comes first."
        raise refusal("ens", expected="an infinite ensemble", got=shown(ens), fix=fix, kind=TypeError)
    if isinstance(run, Mapping):
        widths = tuple(sorted(positive_integers([*run], "run", fix="Name each run by its width, as in {64: run}.")))
        compared = tuple(_compared(run[width], ens, x, t) for width in widths)
        fits = (_fitted(widths, [getattr(one, name) for one in compared]) for name in ("mean", "var"))
        return Trend(widths, compared, *fits)
    return _compared(run, ens, x, t)


def _compared(run: Run, ens: Any, x: Any, t: Any) -> Comparison:
    fix = "Pass what `ensembles.train` returned, or a dictionary of such runs by their widths."
    instance(run, Run, "run", expected="a run", fix=fix)
    t = run.steps if t is None else t
    _check_same_training(run, ens, t)
    # In double precision: the squares of labels in single precision need not be numbers of single precision.
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


def _check_same_training(run: Run, ens: Any, t: Any) -> None:
    """Refuse to compare what was not trained alike."""
    here, differences = run.configuration, []
    if run.steps == t == 0:
        return  # before training there is nothing in which they could differ
    if run.steps == 0:
        raise refusal("t", expected="0, for a run that is not trained", got=t, fix="Train it with `train`.")
    if here["loss"] != "mse":
        loss = here["loss"] if isinstance(here["loss"], str) else f"the function {here['loss']['name']}"
        differences.append(f"the run has loss {loss!r}, theory is about 'mse'")
    if here["batch_size"] is not None or here["augmentation"] != "full":
        differences.append("the run saw batches, theory is about all data in every step")
    if here["reduction"] != ens.reduction:
        differences.append(f"the run has reduction {here['reduction']!r}, the infinite ensemble {ens.reduction!r}")
    if t != run.steps:
        differences.append(f"the run has {run.steps} steps, t is {t}")
    differences += _different_rates(here["rate and momentum"], ens.filter)
    if not differences and fingerprint(batches_of(ens.train, None, "full")[1]) != here["data"]:
        differences.append("they were trained on different data")
    if differences:
        fix = "Make them agree: the theory is of this training or of none."
        raise refusal("ens", expected="about the training of `run`", got="; ".join(differences), fix=fix)


def _different_rates(found: list[float] | None, filter: Any) -> list[str]:
    if not isinstance(filter, GradientFlow | GradientDescent | Momentum):
        return [f"the run is trained by gradient descent, the infinite ensemble by {filter}"]
    if found is None:
        return ["the optimizer of the run is not gradient descent, at one rate for all parameters and steps"]
    (rate, momentum), wanted = found, (float(filter.learning_rate), float(getattr(filter, "beta", 0.0)))
    if not np.isclose(rate, wanted[0], rtol=1e-5, atol=0) or not np.isclose(momentum, wanted[1], rtol=0, atol=1e-5):
        return [f"the run has rate and momentum {(rate, momentum)}, the infinite ensemble {wanted}"]
    return []


def _fitted(widths: tuple[int, ...], deviations: list[Deviation]) -> Correction:
    """The least squares fit of a/N to the differences."""
    found = dict(zip(widths, deviations, strict=True))
    return fitted_correction(
        {width: one.difference for width, one in found.items()}, {width: one.error for width, one in found.items()}
    )
