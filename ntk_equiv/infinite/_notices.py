"""What a fitted ensemble has to say about itself: rates that diverge, spectra that rounding blurs."""

import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv._check import is_concrete, refusal
from ntk_equiv.infinite._engine import Engine
from ntk_equiv.infinite._fit import Fit, eigenvalues
from ntk_equiv.infinite._hermitian import Eigenbasis
from ntk_equiv.infinite._sectors import sectors_of
from ntk_equiv.infinite._training_set import TrainingSet

# How far a largest eigenvalue may be from the limit of a filter, relatively, and still count as at it.
ROUNDING = 1e-6


class RankWarning(UserWarning):
    """The Gram matrix has eigenvalues that are zero up to rounding, and it matters.

    Example:
        >>> import warnings
        >>> from ntk_equiv.infinite import RankWarning
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("error", RankWarning)         # to stop where it matters
        ...     warnings.warn("said by `InfiniteEnsemble`", RankWarning)
        Traceback (most recent call last):
        ntk_equiv.infinite._notices.RankWarning: said by `InfiniteEnsemble`
    """


def check_rate(ens: Engine) -> None:
    """Refuse a rate at which training diverges, and name the largest at which it does not."""
    excess = _largest_over_limit(ens)
    if excess is not None and excess > 1 + ROUNDING:
        raise _too_fast(ens, f"at most {_rate(ens) / excess:.6g}", "above this rate training diverges")


def check_end(ens: Engine, times: jax.Array) -> None:
    """Refuse t = ∞ at a rate at which training neither diverges nor ends."""
    if is_concrete(times) and bool(jnp.any(jnp.isinf(times))):
        excess = _largest_over_limit(ens)
        if excess is not None and excess > 1 - ROUNDING:
            raise _too_fast(ens, f"below {_rate(ens) / excess:.6g} for t = inf", "at this rate it oscillates for ever")


def _largest_over_limit(ens: Engine) -> float | None:
    """The largest eigenvalue of the Gram matrix in units of the limit of the filter; None if it is clearly below."""
    limit = ens.filter.largest_eigenvalue
    if limit is None or not is_concrete((limit, ens._fit)):
        return None
    limit = float(limit) * ens._entries
    if float(ens._fit.scale) <= limit * (1 - ROUNDING):
        return None
    # The row sum is only a bound on the largest eigenvalue, and that may be in a block which the mean does not need.
    return float(eigenvalues(ens._complete(nngp=False), ens._data)[-1]) / limit


def _rate(ens: Engine) -> float:
    return float(ens.filter.learning_rate)  # type: ignore[attr-defined]


def _too_fast(ens: Engine, expected: str, what: str) -> Exception:
    largest = float(eigenvalues(ens._complete(nngp=False), ens._data)[-1])
    fix = f"The largest eigenvalue of the Gram matrix is {largest:.6g}; {what}."
    return refusal("learning_rate", expected=expected, got=f"{_rate(ens):.6g}", fix=fix)


def warn_of_rank(ens: Engine) -> None:
    """Say so if single precision cannot tell some eigenvalues from zero."""
    fit = ens._fit
    if not is_concrete(fit) or fit.scale.dtype == jnp.float64 or not fit.eigenbases:
        return
    values = eigenvalues(fit, ens._data)
    rank = int(jnp.sum(values > fit.noise))
    if rank < len(values):
        part = "Gram matrix" if len(values) == ens._data.size else "part of the Gram matrix that the mean needs"
        warnings.warn(
            f"In {fit.scale.dtype} the {part} has the numerical rank {rank} of {len(values)}. If no training "
            "samples coincide, that is for lack of precision: late training times are those of the range alone. Use "
            'double precision, with `jax.config.update("jax_enable_x64", True)` before anything else and float64 data.',
            RankWarning,
            stacklevel=4,
        )


def warn_of_projection(ens: Engine, fit: Fit, times: jax.Array) -> None:
    """Say what part of the labels is out of reach, at times so late that null modes are left out."""
    if not is_concrete((fit, times, ens.filter)) or not bool(jnp.any(ens._response(fit).is_late(times))):
        return
    lost, total, null = _null_part(fit, ens._data)
    if lost > float(jnp.finfo(fit.noise.dtype).eps) ** 0.5 * total:
        warnings.warn(
            f"{null} of the {ens._data.size} eigenvalues of the Gram matrix are zero up to rounding, "
            f"{float(fit.noise):.2g}, and {100 * lost / total:.3g} % of the labels (in norm) lies in their space: it "
            "cannot be fitted, and is left out. Repeated samples with different labels do this, samples fixed by the "
            "group with labels that are not, and too little precision.",
            RankWarning,
            stacklevel=4,
        )


def _null_part(fit: Fit, data: TrainingSet) -> tuple[float, float, int]:
    """The norm of the labels in the null space and as a whole, both in units of the largest, and its dimension."""
    lost = total = 0.0
    null = 0
    largest = max(float(jnp.max(jnp.abs(block.labels))) for block in fit.blocks.values()) or 1.0
    for number, block in fit.blocks.items():
        sector, labels = sectors_of(data.group)[number], np.abs(np.asarray(block.labels)) / largest
        squares = np.sum(labels**2, axis=0)
        total += sector.weight * float(squares.sum())
        if isinstance(block.basis, Eigenbasis):  # an inverse has no null space
            zero = np.asarray(block.basis.values) <= float(fit.noise)
            lost += sector.weight * float(squares[zero].sum())
            null += int(zero.sum()) * sector.copies
    return math.sqrt(lost), math.sqrt(total), null
