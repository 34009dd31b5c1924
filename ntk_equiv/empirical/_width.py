"""The first-order effect of a finite width N: a/N.

The kernels of networks of width N, averaged over initialisations, differ from their limits by a/N + O(1/N²). So do the
mean and the variance of their predictions. From differences D_N ± e_N at several widths, weighted least squares gives

    a = Σ_N D_N/(N e_N²) / Σ_N 1/(N e_N)²,        error of a = 1 / √ Σ_N 1/(N e_N)²

entry by entry. χ² = Σ (D_N − a/N)²/e_N² shows whether the term of order 1/N is enough. These are estimates, not bounds.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

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
