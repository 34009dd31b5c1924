"""What a trained ensemble warns of or refuses: rates at which training diverges, and spectra that rounding blurs."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv._check import is_concrete, refusal, warn_caller
from ntk_equiv.filters import Filter
from ntk_equiv.infinite._blocks import GramBlocks
from ntk_equiv.solvers import FilterAboveNoise

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
        ntk_equiv.infinite._warnings.RankWarning: said by `InfiniteEnsemble`
    """


def check_rate(filter: Filter, entries: int, blocks: GramBlocks, largest_eigenvalue: Callable[[], float]) -> None:
    """Refuse a rate at which training diverges, and name the largest at which it does not.

    Args:
        filter: how the ensemble is trained.
        entries: how many entries the loss is a mean over.
        blocks: those that are solved.
        largest_eigenvalue: computes that of the whole Gram matrix, for which other blocks may have to be solved.
    """
    ratio = _largest_over_limit(filter, entries, blocks, largest_eigenvalue)
    if ratio is not None and ratio > 1 + ROUNDING:
        rate = float(filter.learning_rate)  # type: ignore[attr-defined]
        raise _refuse_rate(
            rate, f"at most {rate / ratio:.6g}", largest_eigenvalue(), "above this rate training diverges"
        )


def check_end(
    filter: Filter, entries: int, blocks: GramBlocks, largest_eigenvalue: Callable[[], float], times: jax.Array
) -> None:
    """Refuse t = ∞ at a rate at which training neither diverges nor ends. Arguments are those of `check_rate`."""
    if is_concrete(times) and np.isinf(times).any():
        ratio = _largest_over_limit(filter, entries, blocks, largest_eigenvalue)
        if ratio is not None and ratio > 1 - ROUNDING:
            rate = float(filter.learning_rate)  # type: ignore[attr-defined]
            expected = f"below {rate / ratio:.6g} for t = inf"
            raise _refuse_rate(rate, expected, largest_eigenvalue(), "at this rate it oscillates for ever")


def _largest_over_limit(
    filter: Filter, entries: int, blocks: GramBlocks, largest_eigenvalue: Callable[[], float]
) -> float | None:
    """Return the largest eigenvalue of the Gram matrix in units of the filter's limit; None if it is clearly below."""
    limit = filter.largest_eigenvalue
    if limit is None or not is_concrete((limit, blocks)):
        return None
    limit = float(limit) * entries
    # The row sum is only a bound on the largest eigenvalue, and that may be in a block which the mean does not need.
    return None if float(blocks.scale) <= limit * (1 - ROUNDING) else largest_eigenvalue() / limit


def _refuse_rate(rate: float, expected: str, largest: float, what: str) -> Exception:
    fix = f"The largest eigenvalue of the Gram matrix is {largest:.6g}; {what}."
    return refusal("learning_rate", expected=expected, got=f"{rate:.6g}", fix=fix)


def warn_of_rank(blocks: GramBlocks) -> None:
    """Warn if single precision cannot tell some eigenvalues from zero."""
    if not is_concrete(blocks) or blocks.scale.dtype == jnp.float64:
        return
    values = blocks.spectrum()
    if values is None:
        return
    rank = int(np.sum(np.asarray(values) > float(blocks.noise)))
    if rank < len(values):
        part = "Gram matrix" if len(values) == blocks.data.size else "part of the Gram matrix that the mean needs"
        warn_caller(
            f"In {blocks.scale.dtype} the {part} has the numerical rank {rank} of {len(values)}. If no training "
            "samples coincide, that is for lack of precision: late training times are those of the range alone. Use "
            'double precision, with `jax.config.update("jax_enable_x64", True)` before anything else and float64 data.',
            RankWarning,
        )


def warn_of_projection(blocks: GramBlocks, f: FilterAboveNoise, times: jax.Array) -> None:
    """Warn of labels that are out of reach, at times so late that null vectors of the Gram matrix are left out."""
    if not is_concrete((blocks, times, f)) or not bool(_is_any_late(f, times)):
        return
    lost, total, null = _labels_in_null_space(blocks)
    if lost > float(jnp.finfo(blocks.noise.dtype).eps) ** 0.5 * total:
        warn_caller(
            f"{null} of the {blocks.data.size} eigenvalues of the Gram matrix are zero up to rounding, "
            f"{float(blocks.noise):.2g}, and {100 * lost / total:.3g} % of the labels (in norm) lies in their space. "
            "That part cannot be fitted, and is left out. Causes are repeated samples with different labels, samples "
            "that the group fixes with labels that it does not, and too little precision.",
            RankWarning,
        )


@jax.jit
def _is_any_late(f: FilterAboveNoise, times: jax.Array) -> jax.Array:
    return jnp.any(f.is_late(times))


def _labels_in_null_space(blocks: GramBlocks) -> tuple[float, float, int]:
    """Return the norm of the labels in the null space and as a whole, in units of the largest, and its dimension."""
    lost = total = 0.0
    null = 0
    largest = max(float(np.abs(np.asarray(block.labels)).max()) for _, block in blocks) or 1.0
    for irrep, block in blocks:
        squares = np.sum((np.abs(np.asarray(block.labels)) / largest) ** 2, axis=0)
        total += irrep.weight * float(squares.sum())
        if block.solved.spectrum is not None:  # else no null space is known; an inverse has none
            zero = np.asarray(block.solved.spectrum) <= float(blocks.noise)
            lost += irrep.weight * float(squares[zero].sum())
            null += int(zero.sum()) * irrep.copies
    return math.sqrt(lost), math.sqrt(total), null
