"""Square roots of a block, applied to rows by products alone, with bounds on their errors.

With a shift μ > 0 and A = B + μ, which is at least μ,

    A^(−½) = (2/π) ∫₀^∞ (A + s²)⁻¹ ds,        A^(½) = (2/π) ∫₀^∞ A (A + s²)⁻¹ ds.

In the Krylov space of rows w (`solvers/_krylov.py`) every w(A + s²)⁻¹ has a residual in the following block alone,

    w − x_s(A + s²) = −z(s) Q₊,        z(s) = (last block of R (T + μ + s²)⁻¹) · C,

so its error is z(s) Q₊ (A + s²)⁻¹. Constants are exact in the space, and A(A + s²)⁻¹ = 1 − s²(A + s²)⁻¹. Hence

    ‖error of w A^(½)‖     ≤  (2/π) ∫ s²/(s² + μ) ‖z(s)‖ ds,
    ‖error of w A^(−½)‖_A  ≤  (2/π) ∫ γ(s) ‖z(s)‖ ds,        γ(s) = max_(λ ≥ μ) √λ/(λ + s²),

with γ = 1/(2s) where s² ≥ μ, and √μ/(μ + s²) below. These are bounds on the error of the Krylov space: the rounding of
products comes on top.
"""

from typing import NamedTuple

import numpy as np

from ntk_equiv._check import warn_caller
from ntk_equiv._machine import free_memory, in_bytes
from ntk_equiv.solvers._certificate import QUADRATURE, RitzValues, ritz_values
from ntk_equiv.solvers._krylov import KrylovSpace
from ntk_equiv.solvers._lanczos import BETWEEN_CHECKS, FIRST_CHECK, LanczosBlock, SolverWarning

# Rows that share a space: each product serves all of them, and the space must fit into memory.
ROWS_IN_A_SPACE = 256
# The integral over log s is smooth, so equal steps are enough; where they begin and end, relative to √μ and √λ_max.
STEP, BEGIN, END = 0.5, 1e-4, 10.0


class Roots(NamedTuple):
    """Rows times the roots of A = B + μ.

    Attributes:
        root: rows times A^(½), [rows, n].
        inverse_root: rows times A^(−½), [rows, n].
        root_errors: a bound on the Euclidean norm of the error of `root`, [rows].
        inverse_root_errors: a bound on √(e A e†) for the error e of `inverse_root`, [rows].
    """

    root: np.ndarray
    inverse_root: np.ndarray
    root_errors: np.ndarray
    inverse_root_errors: np.ndarray


def multiply_by_roots(block: LanczosBlock, rows: np.ndarray, shift: float, allowed: tuple[float, float]) -> Roots:
    """Return rows times A^(½) and A^(−½) for A = B + shift.

    Args:
        block: B, positive semidefinite up to its noise.
        rows: [rows, n].
        shift: μ, positive.
        allowed: how large the bounds may be, that of the root and that of the inverse root. A warning is given if that
            is not reached within the steps of the solver, or for lack of memory.
    """
    parts = [
        _roots_from_space(block, rows[at : at + ROWS_IN_A_SPACE], shift, np.array(allowed))
        for at in range(0, len(rows), ROWS_IN_A_SPACE)
    ]
    return Roots(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def _roots_from_space(block: LanczosBlock, rows: np.ndarray, shift: float, allowed: np.ndarray) -> Roots:
    """Grow the space of some rows until the bounds are as small as allowed, and return the roots in it."""
    multiply = block._multiply_in_double if block.is_single else block._multiply
    space, check = block._space(multiply, rows), FIRST_CHECK
    limit = np.inf if block.settings.max_steps is None else block.settings.max_steps
    while True:
        if space.products >= check or space.is_complete or space.products >= limit:
            ritz = ritz_values(space)
            errors = _error_bounds(space, ritz, shift)
            state = np.array([np.max(errors.max(axis=1, initial=0) / allowed), space.memory > free_memory()])
            ((excess, memory_is_short),) = block.agree_on(state)
            stopped = space.products >= limit or bool(memory_is_short)
            if excess <= 1 or space.is_complete or stopped:
                if excess > 1 and not space.is_complete:
                    _warn(block, space, float(excess))
                return _apply_roots(space, ritz, shift, errors)
            check = max(check + 1, int(BETWEEN_CHECKS * space.products))
        space.grow()


def _apply_roots(space: KrylovSpace, ritz: RitzValues, shift: float, errors: np.ndarray) -> Roots:
    values = np.sqrt(np.maximum(ritz.values, 0) + shift)
    in_space = ritz.vectors.conj().T @ space.basis
    return Roots((ritz.first * values) @ in_space, (ritz.first / values) @ in_space, *errors)


def _error_bounds(space: KrylovSpace, ritz: RitzValues, shift: float) -> np.ndarray:
    """Return both bounds for every row, [2, rows]."""
    if space.is_complete:
        return np.zeros((2, len(ritz.first)))
    theta = np.maximum(ritz.values, 0) + shift
    begin, end = BEGIN * shift**0.5, END * float(theta.max()) ** 0.5
    s = np.exp(np.arange(np.log(begin), np.log(end) + STEP, STEP))
    norms = np.stack([np.linalg.norm((ritz.first / (theta + at**2)) @ ritz.last, axis=1) for at in s])
    gains = np.stack([s**2 / (s**2 + shift), np.where(s**2 >= shift, 1 / (2 * s), shift**0.5 / (shift + s**2))])
    # ds = s d(log s). Before the first node z is constant, and after the last one it falls at least as 1/s².
    weights = STEP * s
    weights[0] += s[0]
    weights[-1] += s[-1]
    return QUADRATURE * 2 / np.pi * (gains * weights) @ norms


def _warn(block: LanczosBlock, space: KrylovSpace, excess: float) -> None:
    warn_caller(
        f"{block.settings} stopped after {space.products} steps of a square root, with a bound on the error that is "
        f"{excess:.3g} times what is allowed. Allow more steps or a larger `rtol`; the Krylov space takes "
        f"{in_bytes(space.memory)}.",
        SolverWarning,
    )
