"""The first-order effect of a finite width N: a/N.

The kernels of networks of width N, averaged over initialisations, differ from their limits by a/N + O(1/N²). So do the
mean and the variance of their predictions. From differences D_N ± e_N at several widths, weighted least squares gives

    a = Σ_N D_N/(N e_N²) / Σ_N 1/(N e_N)²,        error of a = 1 / √ Σ_N 1/(N e_N)²

entry by entry. χ² = Σ (D_N − a/N)²/e_N² shows whether the term of order 1/N is enough. These are estimates, not bounds.

Whether differences fall as 1/N at all is seen from the exponent p of c/N^p, one for all entries. Entries of one network
are not independent, so the error of p comes from leaving out a tenth of the networks of one width after the other (the
jackknife). The limit b of b + a/N has to vanish if theory is right. It is to be trusted only if there are widths enough
to see that this is the form, and if p is 1.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.optimize

from ntk_equiv._check import (
    describe,
    function,
    instance,
    positive_integer,
    positive_integers,
    random_key,
    real_array,
    refusal,
)
from ntk_equiv._gram import gram
from ntk_equiv._typing import Inputs, KernelFunction
from ntk_equiv.empirical._monte_carlo import KernelEstimate, monte_carlo_kernel_fn


class Correction(NamedTuple):
    """The correction a/N for width N, entry by entry, from a least squares fit.

    Attributes:
        coefficient: a.
        error: the standard error of a.
        chi_squared: χ² per degree of freedom, about 1 if the term of order 1/N is enough.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv.empirical import Correction
        >>> found = Correction(coefficient=np.array([3.0]), error=np.array([0.5]), chi_squared=1.1)
        >>> print(found.at(100), found.error_at(100))
        [0.03] [0.005]
    """

    coefficient: np.ndarray
    error: np.ndarray
    chi_squared: float

    def at(self, width: float | int) -> np.ndarray:
        """Return a/N, the estimated effect of width N."""
        return self.coefficient / positive_integer(width, "width")

    def error_at(self, width: float | int) -> np.ndarray:
        """Return the standard error of a/N."""
        return self.error / positive_integer(width, "width")


def fitted_correction(differences: Mapping[int, np.ndarray], errors: Mapping[int, np.ndarray]) -> Correction:
    """Fit a/N to differences from the limit, by weighted least squares.

    Args:
        differences: for each width, the values at that width minus the limit.
        errors: for each width, the standard errors of these differences. An entry whose error is 0 has no correction.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv.empirical import fitted_correction
        >>> found = fitted_correction({10: np.array([0.3]), 20: np.array([0.15])}, {10: np.ones(1), 20: np.ones(1)})
        >>> print(found.coefficient, found.at(100))
        [3.] [0.03]
    """
    widths = _common_widths(differences, errors)
    difference, error = (np.stack([np.asarray(of[N], float) for N in widths]) for of in (differences, errors))
    inverse = 1 / np.array(widths, float).reshape(-1, *(1,) * (difference.ndim - 1))
    # An entry that is the same for every network has no correction, and no part in χ².
    certain = (error == 0).any(0)
    weight = np.where(certain[None], 0.0, 1 / np.where(error == 0, 1.0, error) ** 2)
    information = np.where(certain, np.inf, np.sum(weight * inverse**2, 0))
    a = np.sum(weight * inverse * difference, 0) / information
    degrees = max((len(widths) - 1) * int(np.sum(~certain)), 1)
    chi_squared = np.sum(weight * (difference - a[None] * inverse) ** 2) / degrees
    return Correction(a, 1 / np.sqrt(information), float(chi_squared))


class Exponent(NamedTuple):
    """The exponent p of differences c/N^p that fall with the width N, with its standard error.

    Attributes:
        value: p; NaN if no entry differs between networks.
        error: the standard error of p; inf if the differences are too noisy to have an exponent.

    Example:
        >>> from ntk_equiv.empirical import Exponent
        >>> Exponent(0.95, 0.04).agrees_with(1.0), Exponent(0.5, 0.04).agrees_with(1.0)
        (True, False)
    """

    value: float
    error: float

    def agrees_with(self, expected: float | int, standard_errors: float | int = 3) -> bool:
        """Return whether the exponent is known, and an expected one within so many standard errors."""
        return bool(np.isfinite(self.error) and abs(self.value - expected) <= standard_errors * self.error)


class Extrapolation(NamedTuple):
    """Differences from theory, extrapolated to infinite width by a fit of b + a/N, entry by entry.

    Attributes:
        limit: b, the difference that is left at infinite width.
        error: its standard error.
        chi_squared: χ² per degree of freedom, about 1 if b + a/N describes the differences.
        doubts: why the limit should not be trusted; empty if nothing speaks against it.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv.empirical import Extrapolation
        >>> found = Extrapolation(np.array([0.1]), np.array([0.2]), 0.7, ())
        >>> found.trustworthy, float(found.overall)
        (True, 0.5)
    """

    limit: np.ndarray
    error: np.ndarray
    chi_squared: float
    doubts: tuple[str, ...]

    @property
    def trustworthy(self) -> bool:
        """Whether nothing speaks against the extrapolation."""
        return not self.doubts

    @property
    def overall(self) -> float:
        """The root mean square of the limit in standard errors: about 1 if theory is right."""
        ratio = self.limit / np.where(self.error > 0, self.error, np.inf)
        return float(np.sqrt(np.mean(ratio**2)))


# Parts of which the jackknife leaves one out. χ² of one degree of freedom is above 4 once in 22.
JACKKNIFE_GROUPS = 10
LARGEST_CHI_SQUARED = 4.0
LARGEST_EXPONENT_ERROR = 0.5
EXPONENTS = (-2.0, 6.0)


def fitted_exponent(differences: Mapping[int, np.ndarray]) -> Exponent:
    """Fit the exponent p of differences c/N^p from the limit, the same for all entries.

    Minimises Σ (D_N − c/N^p)²/e_N², where D_N ± e_N is the mean over networks and every entry has its own c.

    Args:
        differences: for each width, those of independent networks, [networks, ...]; at least two widths.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv.empirical import fitted_exponent
        >>> noise = np.random.default_rng(0).normal(size=(3, 400, 1))
        >>> found = fitted_exponent({N: 5 / N + 0.1 * one / N for N, one in zip((16, 64, 256), noise)})
        >>> found.agrees_with(1), found.error < 0.01
        (True, True)
    """
    widths = _widths_of_networks(differences)
    networks = [np.asarray(differences[N], float) for N in widths]
    networks = [one.reshape(len(one), -1) for one in networks]
    means = np.stack([one.mean(0) for one in networks])
    variances = np.stack([one.var(0, ddof=1) / len(one) for one in networks])
    certain = (variances == 0).any(0)
    if certain.all():
        return Exponent(np.nan, np.inf)
    weights = np.where(certain, 0.0, 1 / np.where(variances == 0, 1.0, variances))
    logs = np.log(np.array(widths, float) / widths[0])
    value = _best_exponent(means, weights, logs)
    variance = 0.0
    for number, one in enumerate(networks):
        groups = np.array_split(np.arange(len(one)), min(JACKKNIFE_GROUPS, len(one)))
        left = []
        for group in groups:
            replaced = means.copy()
            replaced[number] = np.delete(one, group, axis=0).mean(0)
            left.append(_best_exponent(replaced, weights, logs))
        variance += float((len(groups) - 1) * np.var(left))
    lowest, highest = EXPONENTS
    resolved = lowest + 1e-3 < value < highest - 1e-3
    return Exponent(value, float(np.sqrt(variance)) if resolved else np.inf)


def extrapolate_width(
    differences: Mapping[int, np.ndarray], errors: Mapping[int, np.ndarray], exponent: Exponent | None = None
) -> Extrapolation:
    """Extrapolate differences from theory to infinite width by a fit of b + a/N, and say if it is to be trusted.

    Args:
        differences: for each width, the values at that width minus the limit of theory; at least two widths.
        errors: for each width, the standard errors of these differences.
        exponent: how the differences fall, from `fitted_exponent`; without it that is a reason for doubt.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv.empirical import Exponent, extrapolate_width
        >>> differences = {N: np.array([3 / N]) for N in (10, 20, 40)}
        >>> found = extrapolate_width(differences, {N: np.array([0.01]) for N in differences}, Exponent(1.0, 0.02))
        >>> print(found.limit.round(9), found.error.round(3), found.trustworthy)
        [0.] [0.013] True
        >>> extrapolate_width({10: np.ones(1), 20: np.ones(1)}, {10: np.ones(1), 20: np.ones(1)}).doubts[0]
        'two widths determine the line, and leave nothing to check it by'
    """
    widths = _common_widths(differences, errors)
    if len(widths) < 2:
        fix = "One width does not show how differences scale."
        raise refusal("differences", expected="given for at least two widths", got=widths, fix=fix)
    difference, error = (np.stack([np.asarray(of[N], float) for N in widths]) for of in (differences, errors))
    certain = (error == 0).any(0)
    weight = np.where(certain[None], 0.0, 1 / np.where(error == 0, 1.0, error) ** 2)
    inverse = 1 / np.array(widths, float).reshape(-1, *(1,) * (difference.ndim - 1))
    total = np.where(certain, 1.0, weight.sum(0))
    centre, middle = np.sum(weight * inverse, 0) / total, np.sum(weight * difference, 0) / total
    spread = np.where(certain, 1.0, np.sum(weight * (inverse - centre) ** 2, 0))
    slope = np.sum(weight * (inverse - centre) * (difference - middle), 0) / spread
    # The error of the line at 1/N = 0, where `middle` and `slope` are independent.
    limit = np.where(certain, 0.0, middle - slope * centre)
    uncertainty = np.where(certain, 0.0, np.sqrt(1 / total + centre**2 / spread))
    degrees = (len(widths) - 2) * int(np.sum(~certain))
    residual = np.sum(weight * (difference - middle - slope * (inverse - centre)) ** 2)
    chi_squared = float(residual / degrees) if degrees else float("nan")
    return Extrapolation(limit, uncertainty, chi_squared, _doubts(len(widths), chi_squared, exponent))


def _doubts(widths: int, chi_squared: float, exponent: Exponent | None) -> tuple[str, ...]:
    doubts = []
    if widths < 3:
        doubts.append("two widths determine the line, and leave nothing to check it by")
    if chi_squared > LARGEST_CHI_SQUARED:
        doubts.append(f"b + a/N does not describe the differences: χ² per degree of freedom is {chi_squared:.1f}")
    if exponent is None:
        doubts.append("it is not known with which exponent the differences fall")
    elif not exponent.error <= LARGEST_EXPONENT_ERROR:
        doubts.append(f"the exponent is known only to ± {exponent.error:.1f}; more members would show it")
    elif not exponent.agrees_with(1):
        doubts.append(f"differences fall as 1/N^{exponent.value:.2f} (± {exponent.error:.2f}), not as 1/N")
    return tuple(doubts)


def _best_exponent(means: np.ndarray, weights: np.ndarray, logs: np.ndarray) -> float:
    """Return the p that minimises Σ w (D − c e^{−p log N})² over p and c."""
    weighted = weights * means

    def unexplained(p: Any) -> Any:
        shapes = np.exp(-np.multiply.outer(p, logs))
        norm = shapes**2 @ weights
        return -np.sum((shapes @ weighted) ** 2 / np.where(norm > 0, norm, np.inf), axis=-1)

    # A grid first: far from the minimum the sum is flat, and has other minima if differences are noise.
    grid = np.linspace(*EXPONENTS, 81)
    at = int(np.argmin(unexplained(grid)))
    around = grid[max(at - 1, 0)], grid[min(at + 1, len(grid) - 1)]
    options = {"xatol": 1e-6}
    return float(scipy.optimize.minimize_scalar(unexplained, bounds=around, method="bounded", options=options).x)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class WidthScaling:
    """How the mean kernels of networks approach those of infinite width; made by `width_scaling`.

    Attributes:
        widths: the widths N that were evaluated, in increasing order.
        estimates: for each width the mean kernels of random networks, with their errors.
        nngp: the correction of 𝒦.
        ntk: the correction of Θ.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv.empirical import Correction, WidthScaling
        >>> nngp, ntk = (Correction(np.array([a]), np.array([0.1]), 1.0) for a in (0.0, 2.5))
        >>> found = WidthScaling((8, 16), (), nngp, ntk)
        >>> found, found.ntk.at(100).tolist()
        (<corrections of order 1/width from widths (8, 16), chi squared 1.00 (nngp), 1.00 (ntk)>, [0.025])
    """

    widths: tuple[int, ...]
    estimates: tuple[KernelEstimate, ...]
    nngp: Correction
    ntk: Correction

    def __repr__(self) -> str:
        quality = f"chi squared {self.nngp.chi_squared:.2f} (nngp), {self.ntk.chi_squared:.2f} (ntk)"
        return f"<corrections of order 1/width from widths {self.widths}, {quality}>"


def width_scaling(
    build: Callable[[int], Any],
    widths: Sequence[int],
    x1: Inputs,
    x2: Inputs | None = None,
    /,
    *,
    key: jax.Array,
    samples: int,
    kernel_fn: KernelFunction | None = None,
    progress: bool = False,
) -> WidthScaling:
    """Estimate the correction of order 1/width of both kernels from random networks of a few widths.

    `ensembles.compare_with_theory({width: run, ...}, ens, x)` does the same for predictions of *trained* networks.

    Args:
        build: returns the network of width N: `(init, apply)`, or a triple with its kernels at infinite width.
        widths: at least two.
        x1: samples, with the sample axis first.
        x2: other samples; `None` stands for `x1`.
        key: a JAX random key; every width has a key of its own, split from it.
        samples: how many networks to draw for each width.
        kernel_fn: the kernels at infinite width, if `build` does not return them.
        progress: whether to show a progress bar for each width.

    Raises:
        ValueError: there are fewer than two widths or networks for each, or the kernels that `build` returns depend on
            the width, as in standard parameterization without `s`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from ntk_equiv import empirical, stax
        >>> build = lambda N: stax.serial(stax.Dense(N), stax.Relu(), stax.Dense(1))
        >>> x = jnp.array([[1.0, 2.0]])
        >>> found = empirical.width_scaling(build, (8, 16), x, key=jax.random.key(0), samples=500)
        >>> bool(abs(found.ntk.coefficient) < 4 * found.ntk.error)      # one hidden layer has none
        True
    """
    chosen = tuple(sorted(set(positive_integers(widths, "widths", fix="List some widths, such as (64, 128, 256)."))))
    function(build, "build", fix="Pass a function from a width to a network.")
    random_key(key)
    if len(chosen) < 2:
        fix = "One width does not show how differences scale."
        raise refusal("widths", expected="at least two widths", got=chosen, fix=fix)
    if positive_integer(samples, "samples") < 2:
        raise refusal("samples", expected="at least 2", got=samples, fix="One network has no standard error.")
    networks = [build(width) for width in chosen]
    if not all(isinstance(network, tuple) and len(network) >= 2 for network in networks):
        fix = "Let it return a stax triple, or a pair `(init, apply)`."
        raise refusal("build", expected="a function that makes networks", got=describe(networks[0]), fix=fix)
    limits: tuple = (kernel_fn,)
    if kernel_fn is None:
        if len(networks[0]) < 3:
            fix = "Let `build` return a stax triple, or pass the kernels."
            raise refusal("kernel_fn", expected="the kernels at infinite width", got="nothing", fix=fix)
        limits = networks[0][2], networks[-1][2]
    limit, *others = (gram(one, x1, x2, ("nngp", "ntk")) for one in limits)
    for other in others:
        _check_same_limit(limit, other)
    estimates = tuple(
        monte_carlo_kernel_fn(network[0], network[1], one, samples).estimate(x1, x2, progress=progress)
        for network, one in zip(networks, jax.random.split(key, len(chosen)), strict=True)
    )

    def correction(name: str) -> Correction:
        at = dict(zip(chosen, estimates, strict=True))
        differences = {N: np.asarray(getattr(one, name)) - np.asarray(getattr(limit, name)) for N, one in at.items()}
        return fitted_correction(differences, {N: np.asarray(getattr(one, f"{name}_error")) for N, one in at.items()})

    return WidthScaling(chosen, estimates, correction("nngp"), correction("ntk"))


def _check_same_limit(narrow: Any, wide: Any) -> None:
    """Refuse networks whose kernels at infinite width depend on their finite width: there is no common limit."""
    for name in ("nngp", "ntk"):
        one, other = (np.asarray(getattr(kernel, name)) for kernel in (narrow, wide))
        if not np.allclose(one, other, rtol=1e-4, atol=1e-4 * np.abs(other).max(initial=0)):
            raise refusal(
                "build",
                expected="networks with the same kernels at infinite width",
                got=f"another {name} at the largest width than at the smallest",
                fix='In standard parameterization scale widths by `s`; or use parameterization="ntk".',
            )


def _widths_of_networks(differences: Mapping[int, np.ndarray]) -> list[int]:
    fix = "Pass a dictionary, from at least two widths to arrays [networks, ...] of at least two networks each."
    instance(differences, Mapping, "differences", expected="a mapping from widths to arrays", fix=fix)
    widths = sorted(positive_integer(width, "differences") for width in differences)
    shapes = [np.shape(real_array(differences[N], "differences")) for N in widths]
    if (
        len(widths) < 2
        or len({shape[1:] for shape in shapes}) > 1
        or any(not shape or shape[0] < 2 for shape in shapes)
    ):
        expected = "arrays of one shape for each of several widths, after an axis of networks"
        raise refusal("differences", expected=expected, got=f"{dict(zip(widths, shapes, strict=True))}", fix=fix)
    return widths


def _common_widths(differences: Mapping[int, np.ndarray], errors: Mapping[int, np.ndarray]) -> list[int]:
    """Return the widths of two mappings, if both have the same widths and all arrays have one shape."""
    fix = "Pass two dictionaries, from each width to an array of the same shape."
    for mapping, argument in ((differences, "differences"), (errors, "errors")):
        instance(mapping, Mapping, argument, expected="a mapping from widths to arrays", fix=fix)
    widths = [positive_integer(width, "differences") for width in differences]
    if not widths or set(widths) != set(errors):
        raise refusal("errors", expected=f"given for the widths {widths}", got=f"{list(errors)}", fix=fix)
    shapes = {np.shape(real_array(of[N], "differences")) for of in (differences, errors) for N in widths}
    if len(shapes) > 1:
        raise refusal("differences, errors", expected="arrays of one shape", got=f"shapes {sorted(shapes)}", fix=fix)
    return sorted(widths)
