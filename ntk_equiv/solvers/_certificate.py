"""How far a Krylov space may be from the truth: bounds that need nothing but the small matrices of the space.

Training makes u = φ_t(B)b the solution of linear dynamics (`filters.Dynamics`), for gradient flow u' = b − uB. What a
Krylov space makes of it, a(s) Q with a(s) = R φ_s(T)₁, misses the dynamics by a residual that lies in the following
block alone,

    b − aQB − a'Q = −z(s) Q₊,          z(s) = (last block of a(s)) · C,

so its error is e(t) = ∫₀ᵗ z(s) Q₊ e^{−B(t−s)} ds. B is positive semidefinite. In the norm of B, which is what counts
for predictions (|Θ(x, X)e| ≤ √Θ(x, x) · ‖e‖_B), the integrand is at most the smaller of

    √(z G z†)                          because e^{−Bσ} makes no norm larger,
    ‖z‖ / √(2e(t−s))                   because √λ e^{−λσ} ≤ 1/√(2eσ), which is the smaller one at late times.

A ridge, or a lower bound on the spectrum, makes both decay with t − s. Descent has a sum over steps in place of the
integral; with momentum β each term can be 1/(1−β) times as large. At t = ∞ the residual is all there is, and √λ/(λ+λ₀)
takes the place of the integral over exponentials.

At late times eigenvalues below the noise are left out (`solvers/_noise.py`). Then Ritz values below it are left out of
a(s), and the bound speaks of the part of the error above the noise.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from ntk_equiv.filters import Dynamics
from ntk_equiv.solvers._hermitian import double_precision
from ntk_equiv.solvers._krylov import KrylovSpace
from ntk_equiv.solvers._noise import FilterAboveNoise
from ntk_equiv.solvers._protocols import SpectralFunction

# The integral is cut into pieces that halve towards both ends, and each has so many nodes of Gauss's rule.
PIECES, NODES = (30, 40), 4
# The norm of z has kinks, at which the rule is not exact.
QUADRATURE = 1.02
# As many steps of descent are summed one by one; more are sampled as densely as the pieces of an integral.
STEPS_ONE_BY_ONE = 256


class RitzValues(NamedTuple):
    """The eigenvalues of T, and its eigenvectors at both ends of a space.

    Attributes:
        values: θ, [k].
        first: R · (first rows of the eigenvectors), [rows, k].
        last: (last rows of the eigenvectors)† · C, [k, q].
        vectors: all of them, [k, k].
    """

    values: np.ndarray
    first: np.ndarray
    last: np.ndarray
    vectors: np.ndarray


def ritz_values(space: KrylovSpace) -> RitzValues:
    """Return the eigenvalues of T."""
    values, vectors = np.linalg.eigh(space.projected)
    last = vectors[len(vectors) - len(space.coupling) :]
    return RitzValues(values, space.start @ vectors[: space.start.shape[1]], last.conj().T @ space.coupling, vectors)


def krylov_errors(
    space: KrylovSpace, ritz: RitzValues, f: FilterAboveNoise, dynamics: Dynamics, times: np.ndarray
) -> np.ndarray:
    """Return a bound on √(e B e†) for the error e of each row at each time, [T, rows]; see above."""
    if space.is_complete:
        return np.zeros((len(times), len(ritz.first)))
    lam, vectors = np.linalg.eigh(space.following_projected)
    root = vectors * np.sqrt(np.maximum(lam, 0))
    return np.stack([_error_at(ritz, root, f, dynamics, float(t)) for t in times])


def perturbation_gain(f: FilterAboveNoise, times: np.ndarray, *, lowest: float = 0.0) -> np.ndarray:
    """Return how far a perturbation of the block may move b φ_t(B), [T].

    If every product u·(change of B) has at most the norm noise · ‖u‖, the result changes by at most noise · ‖φ_t(B)b‖
    times this number in the norm of B: the integral above, with the change of B in place of the residual. NaN for a
    filter whose dynamics are not known.

    Args:
        f: the filter.
        times: [T].
        lowest: a lower bound on the spectrum.
    """
    dynamics = f.filter.dynamics(f.entries)
    if dynamics is None:
        return np.full(len(times), np.nan)
    late = np.asarray(_is_late(f, jnp.asarray(times, f.noise.dtype)))
    bounds = np.where(late, max(float(f.noise), lowest), lowest)
    return np.array([_gain_of_all_times(dynamics, t, low) for t, low in zip(times, bounds, strict=True)])


def _gain_of_all_times(dynamics: Dynamics, t: float, lowest: float) -> float:
    if np.isinf(t) or np.isinf(dynamics.rate):
        return _inverse_gains(dynamics.shift, lowest)[0]
    elapsed, decay = dynamics.rate * t / (1 - dynamics.friction), dynamics.shift + lowest
    # ∫ e^(−decay s)/√(2es) ds from 0 to the time that has elapsed.
    if decay == 0:
        return float(np.sqrt(2 * elapsed / np.e))
    return float(np.sqrt(np.pi / (2 * np.e * decay)) * scipy.special.erf(np.sqrt(decay * elapsed)))


def in_double_precision(f: SpectralFunction, lam: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Return f at all times and eigenvalues, [T, k], in double precision whatever the setting of JAX is."""
    # Krylov spaces grow, and a program is compiled for each shape: few shapes make few programs.
    size = 1 << max(4, (len(lam) - 1).bit_length())
    padded = np.ones(size)
    padded[: len(lam)] = np.maximum(lam, 0)
    with double_precision():
        values = _evaluate(f, padded, np.asarray(times, float))
    return np.asarray(values)[:, : len(lam)]


@jax.jit
def _is_late(f: FilterAboveNoise, t: jax.Array) -> jax.Array:
    return f.is_late(t)


@jax.jit
def _evaluate(f: SpectralFunction, lam: jax.Array, times: jax.Array) -> jax.Array:
    return jax.vmap(lambda t: f(lam, t))(times)


def _error_at(ritz: RitzValues, root: np.ndarray, f: FilterAboveNoise, dynamics: Dynamics, t: float) -> np.ndarray:
    """Return the bound at one time, [rows]."""
    late = bool(_is_late(f, jnp.asarray(t, f.noise.dtype)))
    kept = (ritz.values > float(f.noise)) if late else np.ones(len(ritz.values), bool)
    lowest = float(f.noise) if late else 0.0
    ended = np.isinf(t) or np.isinf(dynamics.rate)
    nodes, weights = (np.array([t]), np.ones(1)) if ended else _nodes(t, dynamics)
    phi = in_double_precision(f.filter, ritz.values / f.entries, nodes) / f.entries
    phi = np.where(kept, phi, 0)
    z = np.einsum("ck,sk,kq->scq", ritz.first, phi, ritz.last, optimize=True)
    in_block, plain = np.linalg.norm(z @ root, axis=2), np.linalg.norm(z, axis=2)
    if ended:
        of_plain, of_block = _inverse_gains(dynamics.shift, lowest)
        return np.minimum(_times(plain, of_plain), _times(in_block, of_block))[0]
    smooth, direct = _gains(t - nodes, dynamics, lowest, float(ritz.values.max(initial=0)))
    integrand = np.minimum(_times(plain, smooth[:, None]), in_block * direct[:, None])
    return QUADRATURE * dynamics.rate * (weights @ integrand)


def _nodes(t: float, dynamics: Dynamics) -> tuple[np.ndarray, np.ndarray]:
    """Return where the integral, or the sum over steps, up to time t is evaluated, with the weights."""
    if dynamics.in_steps and t <= STEPS_ONE_BY_ONE:
        return np.arange(t), np.ones(int(t))
    left, right = (0.5 ** np.arange(1, count + 1)[::-1] for count in PIECES)
    edges = t * np.concatenate([[0], left, (1 - right)[::-1][1:], [1]])
    x, w = np.polynomial.legendre.leggauss(NODES)
    nodes = (edges[:-1, None] + np.diff(edges)[:, None] * (x + 1) / 2).ravel()
    if not dynamics.in_steps:
        return nodes, (np.diff(edges)[:, None] * w / 2).ravel()
    steps = np.unique(np.concatenate([np.round(nodes), [0, t - 1]]))
    steps = steps[steps < t]
    # Between two steps that are evaluated, the sum over all steps is that of a straight line.
    gaps = np.diff(steps)
    weights = np.ones(len(steps))
    weights[:-1] += (gaps - 1) / 2
    weights[1:] += (gaps - 1) / 2
    return steps, weights


def _gains(left: np.ndarray, dynamics: Dynamics, lowest: float, largest: float) -> tuple[np.ndarray, np.ndarray]:
    """Return how much of a residual is left in the norm of B after a time: for its plain norm, and for that of B."""
    rate = dynamics.rate
    if not dynamics.in_steps:
        decay = np.exp(-rate * (dynamics.shift + lowest) * left)
        return decay / np.sqrt(2 * np.e * rate * np.maximum(left, np.finfo(float).tiny)), decay
    after = left - 1
    # Where a step overshoots, powers of 1 − ηλ do not fall as exponentials do.
    if dynamics.friction or rate * largest > 0.99:
        return np.full(len(left), np.inf), np.full(len(left), 1 / (1 - dynamics.friction))
    decay = (1 - rate * lowest) ** after
    return np.where(after > 0, 1 / np.sqrt(2 * np.e * rate * np.maximum(after, 1)), np.inf), decay


def _inverse_gains(shift: float, lowest: float) -> tuple[float, float]:
    """Return the same for (B + shift)⁻¹ of a residual, where eigenvalues are at least `lowest`."""
    if shift + lowest == 0:
        return np.inf, np.inf
    smooth = 1 / (2 * shift**0.5) if shift >= lowest else lowest**0.5 / (lowest + shift)
    return smooth, 1 / (shift + lowest)


def _times(norms: np.ndarray, gain: np.ndarray | float) -> np.ndarray:
    """Return a product in which no residual stays none, however large the gain."""
    with np.errstate(invalid="ignore"):
        return np.where(norms == 0, 0.0, norms * gain)
