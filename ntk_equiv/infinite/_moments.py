"""Mean and covariance of the trained ensemble at test samples, block by block.

With A = Θ(x, X) φ_t(Θ), the mean is A y and the covariance the congruence

    Σ_t(x, x') = 𝒦(x, x') − A 𝒦(X, x') − 𝒦(x, X) A'ᵀ + A 𝒦(X, X) A'ᵀ.

A solved block has a working basis V in which functions of it are applied. There, with W = conj(û) V for the rows u of
Θ, K likewise for those of 𝒦, and S = W φ_t(V†BV), a block contributes

    mean         S (V†v̂)
    covariance   −S K'† − K S'† + S (V†𝒦_σV) S'†,

each times the weight of its irrep, real part, summed over irreps and over the index a. In code, `hat` is conj(û) for
one kernel, `hats` the pair of those for Θ and 𝒦, and the index e counts the working basis.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ntk_equiv._check import is_concrete, refusal
from ntk_equiv._gram import evaluate_gram, kernel_diagonal
from ntk_equiv._positions import apart, joint
from ntk_equiv._typing import Inputs, Scalar, SplitKernel
from ntk_equiv.infinite._blocks import (
    ENTRIES_AT_A_TIME,
    GramBlock,
    GramBlocks,
    check_positions,
    row_coefficients,
    synthesize,
)
from ntk_equiv.infinite._tiles import diagonal_in_portions, row_coefficients_by_tiles
from ntk_equiv.infinite._training_set import TrainingSet
from ntk_equiv.solvers import (
    ROUNDINGS,
    BlockOperator,
    FilterAboveNoise,
    perturbation_gain,
    positive_root,
    refusing_tracers,
)

# With at least this many times it pays to make a real quadratic form for each test sample.
MANY_TIMES = 6
BOTH = ("ntk", "nngp")


# Sums over blocks


def mean(kernel: SplitKernel, blocks: GramBlocks, f: FilterAboveNoise, x: Inputs, times: jax.Array) -> jax.Array:
    """Return A y at test samples, [T, m, ...] in the shape of the labels."""
    channels = blocks.data.channels
    # What a solver outside of JAX makes of the labels is expensive, and the same for all portions.
    learned = [None if block.solved.traceable else _filter_labels(block, f, times) for _, block in blocks]

    def of_portion(x: Inputs) -> jax.Array:
        total: Any = None
        rows = coefficients_of_rows(kernel, blocks, x, ("ntk",))
        for (irrep, block), filtered, (hat,) in zip(blocks, learned, rows, strict=True):
            if filtered is None:
                part = mean_of_block(block, f, times, hat, channels)
            else:
                part = _inner_with_labels(hat, block.solved.from_basis(filtered), channels)
            total = _add_weighted(total, part, irrep.weight)
        return total.reshape(len(times), -1, *blocks.data.y.shape[1:])

    return jnp.concatenate([of_portion(portion) for portion in portions(blocks, x)], axis=1)


def covariance(
    kernel: SplitKernel, blocks: GramBlocks, f: FilterAboveNoise, x: Inputs, times: jax.Array, x2: Inputs | None
) -> jax.Array:
    """Return Σ_t(x, x2), [T, m, m2] or [T, m, m2, h, h', w, w']."""
    prior = evaluate_gram(kernel, x, x2, "nngp")
    total = joint(prior)[None]
    left = coefficients_of_rows(kernel, blocks, x, BOTH)
    right = (None for _ in blocks.by_irrep) if x2 is None else coefficients_of_rows(kernel, blocks, x2, BOTH)
    for (irrep, block), hats, others in zip(blocks, left, right, strict=True):
        total = _add_weighted(total, _covariance_of_block(block, f, times, hats, others), irrep.weight)
    return apart(_symmetrize(total) if x2 is None else total, prior.shape)


def variance(kernel: SplitKernel, blocks: GramBlocks, f: FilterAboveNoise, x: Inputs, times: jax.Array) -> jax.Array:
    """Return the diagonal of Σ_t(x, x), [T, m] or [T, m, h, w]."""

    def of_portion(x: Inputs) -> jax.Array:
        prior = kernel_diagonal(kernel, x).reshape(-1)
        total = prior[None]
        for (irrep, block), hats in zip(blocks, coefficients_of_rows(kernel, blocks, x, BOTH), strict=True):
            total = _add_weighted(total, _variance_of_block(block, f, times, hats), irrep.weight)
        return _clip_negative(total, prior).reshape(len(times), -1, *blocks.data.positions)

    return jnp.concatenate([of_portion(portion) for portion in portions(blocks, x)], axis=1)


def trajectory_covariance(
    kernel: SplitKernel, blocks: GramBlocks, f: FilterAboveNoise, x: Inputs, times: jax.Array
) -> jax.Array:
    """Return the covariance of members at all (time, sample), [T · m, T · m]."""
    total = jnp.tile(joint(evaluate_gram(kernel, x, None, "nngp")), (len(times), len(times)))
    for (irrep, block), hats in zip(blocks, coefficients_of_rows(kernel, blocks, x, BOTH), strict=True):
        solved = block.solved
        S = solved.apply(f, times, solved.to_basis(hats[0]))
        S = S.reshape(-1, *S.shape[2:])
        K = jnp.tile(solved.to_basis(hats[1]), (len(times), 1, 1))
        assert block.other is not None
        total = total + irrep.weight * _congruence(solved.matrix_in_basis(block.other), S, K, S, K)
    return (total + total.T) / 2


def on_training_set(blocks: GramBlocks, f: FilterAboveNoise, times: jax.Array) -> jax.Array:
    """Return f_t(Θ) y on the training set, [T, N, ...] in the shape of the labels."""
    total: Any = None
    for irrep, block in blocks:
        filtered = _leave_basis(block, _filter_labels(block, f, times))
        sigma = irrep.matrices(blocks.scale.dtype)
        total = _add_weighted(total, _synthesize(sigma, filtered, blocks.data.channels), irrep.weight)
    return blocks.data.unframe(total)


class ErrorBudget(NamedTuple):
    """How far the mean may be from the exact one, by cause: [m], after an axis of times if there are several.

    Attributes:
        solver: because the solver stopped: a bound. Zero for `solvers.Eigh`.
        rounding: because kernels are rounded: a bound, given the noise that rounding makes (see `docs/scaling.md`).
        cut: because eigenvalues below that noise are left out at late times: the most that they could contribute; at
            t = ∞, where this has no limit, as if they were as large as the noise. NaN where it is not known, after a
            preconditioned solution without a ridge.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv.infinite import ErrorBudget
        >>> budget = ErrorBudget(solver=jnp.array([1e-6]), rounding=jnp.array([3e-6]), cut=jnp.array([0.0]))
        >>> print(budget.total)
        [4.e-06]
    """

    solver: Float[jax.Array, "..."]
    rounding: Float[jax.Array, "..."]
    cut: Float[jax.Array, "..."]

    @property
    def total(self) -> Float[jax.Array, "..."]:
        """Their sum."""
        return self.solver + self.rounding + self.cut


def solver_error(
    kernel: SplitKernel, blocks: GramBlocks, f: FilterAboveNoise, x: Inputs, times: jax.Array
) -> jax.Array:
    """Return how far the mean may be off because of the solver, [T, m] or [T, m, h, w].

    With e the error of φ_t(Θ)y in one channel, |Θ(x, X)e| ≤ √Θ(x, x) √(eᵀΘe), and by Parseval's identity eᵀΘe is the
    sum over irreps of weight · ê†B_σê. The largest channel counts.
    """
    bounds = [block.solved.error_bound(f, times, block.labels) for _, block in blocks]
    return _in_predictions(kernel, blocks, x, _norm_over_irreps(blocks, bounds))


def error_budget(
    kernel: SplitKernel, blocks: GramBlocks, f: FilterAboveNoise, x: Inputs, times: jax.Array
) -> ErrorBudget:
    """Return how far the mean may be off, by cause, each [T, m] or [T, m, h, w].

    Rounding moves the mean twice: through the Gram matrix, by the gain of its perturbation, and through the kernels of
    the test samples, which meet the coefficients α. The noise and these kernels are measured in units of eps as in
    `solvers/_noise.py`.
    """

    def norms(part: str) -> jax.Array:
        values = [_filter_labels(block, dataclasses.replace(f, part=part), times) for _, block in blocks]
        return _norm_over_irreps(blocks, [jnp.linalg.norm(value, axis=-1) for value in values])

    alpha, eps = norms("coefficients"), float(jnp.finfo(blocks.scale.dtype).eps)
    spectrum = blocks.spectrum()
    # Rounding may have moved the lowest eigenvalue too.
    lowest = 0.0 if spectrum is None else max(0.0, float(spectrum[0] - blocks.noise))
    gain = jnp.asarray(perturbation_gain(f, np.asarray(times), lowest=lowest), alpha.dtype)
    diagonal = jnp.max(jnp.abs(diagonal_in_portions(kernel, blocks.data.x, "ntk")))
    rounding = alpha * (blocks.noise * gain + ROUNDINGS * eps * jnp.sqrt(diagonal))
    return ErrorBudget(
        solver_error(kernel, blocks, f, x, times),
        _in_predictions(kernel, blocks, x, rounding),
        _in_predictions(kernel, blocks, x, norms("cut")),
    )


def _norm_over_irreps(blocks: GramBlocks, norms: list[jax.Array]) -> jax.Array:
    """Return the norm over all irreps of the largest channel, [T], from norms [T, (a, c)] of each."""
    squares: Any = 0
    for (irrep, _), norm in zip(blocks, norms, strict=True):
        by_channel = norm.reshape(len(norm), -1, blocks.data.channels)
        squares = squares + irrep.weight * jnp.sum(by_channel**2, axis=1)
    return jnp.sqrt(jnp.max(squares, axis=1))


def _in_predictions(kernel: SplitKernel, blocks: GramBlocks, x: Inputs, norms: jax.Array) -> jax.Array:
    """Return √Θ(x, x) times norms [T], as [T, m] or [T, m, h, w]."""
    root = jnp.sqrt(diagonal_in_portions(kernel, x, "ntk")).reshape(1, -1)
    return (norms.astype(root.dtype)[:, None] * root).reshape(len(norms), -1, *blocks.data.positions)


def coefficients_of_rows(
    kernel: SplitKernel, blocks: GramBlocks, x: Inputs, get: tuple[str, ...]
) -> Iterator[tuple[jax.Array, ...]]:
    """Yield for every block conj(û) of the rows of each kernel, [m, a, (b, i)]."""
    data, count = blocks.data, jax.tree.leaves(x)[0].shape[0]
    if count and is_large(blocks) and is_concrete((kernel, x)):
        sigmas = tuple(irrep.matrices(blocks.scale.dtype) for irrep, _ in blocks)
        return iter(row_coefficients_by_tiles(kernel, data, x, get, sigmas))
    kernels = evaluate_gram(kernel, x, data.samples(), get)
    check_positions(kernels[0].shape, data)
    rows = _frame(data, tuple(kernels))
    sigmas = tuple(irrep.matrices(rows[0].dtype) for irrep, _ in blocks)
    return zip(*(row_coefficients(sigmas, row) for row in rows), strict=True)


def is_large(blocks: GramBlocks) -> bool:
    """Return whether all moved training samples at once would be too many: then they are moved tile by tile."""
    data = blocks.data
    features = sum(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(data.x))
    return is_concrete(data) and data.order * data.n * max(features, data.y[0].size) > ENTRIES_AT_A_TIME


def portions(blocks: GramBlocks, x: Inputs) -> Iterator[Inputs]:
    """Yield the test samples, as many at a time as their kernels with the training samples fit in memory."""
    data, count = blocks.data, jax.tree.leaves(x)[0].shape[0]
    positions = max(1, data.y[0].size // data.channels)
    # Of large data only coefficients are kept, d² for every base sample, and no kernel of a moved one.
    squares = sum(irrep.sigma.shape[1] ** 2 for irrep, _ in blocks)
    rows = data.rows * squares if is_large(blocks) else data.size
    at_a_time = max(1, ENTRIES_AT_A_TIME // (rows * positions))
    if not is_concrete(x) or count <= at_a_time:
        yield x
        return
    for start in range(0, count, at_a_time):
        yield jax.tree.map(lambda leaf: leaf[start : start + at_a_time], x)  # noqa: B023


@jax.jit
def _add_weighted(total: jax.Array | None, part: jax.Array, weight: Scalar) -> jax.Array:
    return weight * part if total is None else total + weight * part


@jax.jit
def _symmetrize(covariance: jax.Array) -> jax.Array:
    return (covariance + covariance.swapaxes(1, 2)) / 2


@jax.jit
def _frame(data: TrainingSet, kernels: tuple) -> tuple:
    return tuple(data.frame_kernel(kernel) for kernel in kernels)


# What one block contributes: one compiled program each, unless the solver computes outside of JAX


def mean_of_block(block: GramBlock, f: FilterAboveNoise, times: jax.Array, hat: jax.Array, channels: int) -> jax.Array:
    """Return A y at test samples, [T, m, c], from conj(û) [m, a, (b, i)] of Θ."""
    if block.solved.traceable:
        return _compiled_mean(block, f, times, hat, channels)
    with refusing_tracers(type(block.solved).__name__):
        return _mean(block, f, times, hat, channels)


def _mean(block: GramBlock, f: FilterAboveNoise, times: jax.Array, hat: jax.Array, channels: int) -> jax.Array:
    filtered = block.solved.apply(f, times, block.labels)
    # The cheaper order of the product (rows) · V · (filtered labels).
    if len(times) * channels <= len(hat):
        filtered = block.solved.from_basis(filtered)
    else:
        hat = block.solved.to_basis(hat)
    return _inner_with_labels(hat, filtered, channels)


_compiled_mean = jax.jit(_mean, static_argnames="channels")


@partial(jax.jit, static_argnames="channels")
def _inner_with_labels(hat: jax.Array, filtered: jax.Array, channels: int) -> jax.Array:
    by_channel = filtered.reshape(len(filtered), hat.shape[1], channels, hat.shape[2])
    return jnp.einsum("mae,tace->tmc", hat, by_channel.conj()).real


def _filter_labels(block: GramBlock, f: FilterAboveNoise, times: jax.Array) -> jax.Array:
    """Return (f_t(B) v̂)† in the working basis, [T, (a, c), e]."""
    if block.solved.traceable:
        return _compiled_filter(block, f, times)
    with refusing_tracers(type(block.solved).__name__):
        return block.solved.apply(f, times, block.labels)


@jax.jit
def _compiled_filter(block: GramBlock, f: FilterAboveNoise, times: jax.Array) -> jax.Array:
    return block.solved.apply(f, times, block.labels)


def _leave_basis(block: GramBlock, rows: jax.Array) -> jax.Array:
    """Return rows of the working basis in that of the block."""
    return _compiled_leaving(block, rows) if block.solved.traceable else block.solved.from_basis(rows)


@jax.jit
def _compiled_leaving(block: GramBlock, rows: jax.Array) -> jax.Array:
    return block.solved.from_basis(rows)


@partial(jax.jit, static_argnames="channels")
def _synthesize(sigma: jax.Array, filtered: jax.Array, channels: int) -> jax.Array:
    return synthesize(sigma, filtered.conj().swapaxes(1, 2), channels)


def _covariance_of_block(
    block: GramBlock, f: FilterAboveNoise, times: jax.Array, hats: tuple, others: tuple | None
) -> jax.Array:
    """Return what training changes of the covariance, [T, m, m'], from conj(û) of Θ and 𝒦 at both sets of samples.

    `others` is None if both sets are the same.
    """
    if block.solved.traceable:
        return _compiled_covariance(block, f, times, hats, others)
    with refusing_tracers(type(block.solved).__name__):
        return _covariance(block, f, times, hats, others)


def _covariance(
    block: GramBlock, f: FilterAboveNoise, times: jax.Array, hats: tuple, others: tuple | None
) -> jax.Array:
    solved = block.solved
    nngp, leave, enter = _cheaper_basis(block, len(times) * len(hats[0]))
    W, K = solved.to_basis(hats[0]), enter(hats[1])
    W2, K2 = (W, K) if others is None else (solved.to_basis(others[0]), enter(others[1]))
    factors = solved.diagonal(f, times)
    if factors is None:
        A = leave(solved.apply(f, times, W))
        A2 = A if others is None else leave(solved.apply(f, times, W2))
        return _congruences(nngp, A, K, A2, K2)

    # One time after the other: filtered rows of all times need not fit into memory beside the result.
    def at_time(phi: jax.Array) -> jax.Array:
        A = leave(W * phi[None, None])
        A2 = A if others is None else leave(W2 * phi[None, None])
        return _congruence(nngp, A, K, A2, K2)

    return jax.lax.map(at_time, factors)


_compiled_covariance = jax.jit(_covariance)


def _congruences(nngp: BlockOperator, A: jax.Array, K: jax.Array, A2: jax.Array, K2: jax.Array) -> jax.Array:
    """Return the congruences of all times at once: a block outside of JAX is then read once."""
    return _inner_differences(nngp.times_rows(A), A, K, A2, K2)


@jax.jit
def _inner_differences(KA: jax.Array, A: jax.Array, K: jax.Array, A2: jax.Array, K2: jax.Array) -> jax.Array:
    return jax.lax.map(lambda at: real_inner(at[0] - K, at[2]) - real_inner(at[1], K2), (KA, A, A2))


def _congruence(nngp: BlockOperator, A: jax.Array, K: jax.Array, A2: jax.Array, K2: jax.Array) -> jax.Array:
    return real_inner(nngp.times_rows(A) - K, A2) - real_inner(A, K2)


def _variance_of_block(block: GramBlock, f: FilterAboveNoise, times: jax.Array, hats: tuple) -> jax.Array:
    """Return what training changes of the variance, [T, m], from conj(û) of Θ and 𝒦."""
    if block.solved.traceable:
        return _compiled_variance(block, f, times, hats)
    with refusing_tracers(type(block.solved).__name__):
        return _variance(block, f, times, hats)


def _variance(block: GramBlock, f: FilterAboveNoise, times: jax.Array, hats: tuple) -> jax.Array:
    solved = block.solved
    factors = solved.diagonal(f, times)
    if factors is not None and len(times) >= MANY_TIMES:
        return _variance_by_sample(block, factors, hats)
    nngp, leave, enter = _cheaper_basis(block, len(times) * len(hats[0]))
    W, K = solved.to_basis(hats[0]), enter(hats[1])
    if factors is None:
        return _diagonal_congruences(nngp, leave(solved.apply(f, times, W)), K)
    return jax.lax.map(lambda phi: _diagonal_congruence(nngp, leave(W * phi[None, None]), K), factors)


_compiled_variance = jax.jit(_variance)


def _diagonal_congruences(nngp: BlockOperator, A: jax.Array, K: jax.Array) -> jax.Array:
    return jnp.sum(((nngp.times_rows(A) - 2 * K[None]) * A.conj()).real, axis=(2, 3))


def _diagonal_congruence(nngp: BlockOperator, A: jax.Array, K: jax.Array) -> jax.Array:
    return jnp.sum(((nngp.times_rows(A) - 2 * K) * A.conj()).real, axis=(1, 2))


def _variance_by_sample(block: GramBlock, factors: jax.Array, hats: tuple) -> jax.Array:
    """Return the same as a *real* quadratic form in φ_t, with all times for one sample after the other."""
    assert block.other is not None
    nngp = block.solved.matrix_in_basis(block.other).dense()
    W, K = (block.solved.to_basis(hat) for hat in hats)
    crossed = jnp.einsum("te,me->tm", factors, jnp.sum((W * K.conj()).real, axis=1))

    def of_sample(row: jax.Array) -> jax.Array:
        form = (jnp.einsum("ae,af->ef", row, row.conj()) * nngp).real
        return jnp.sum((factors @ form) * factors, axis=1)

    return jax.lax.map(of_sample, W).T - 2 * crossed


def _cheaper_basis(block: GramBlock, rows: int) -> tuple[BlockOperator, Callable, Callable]:
    """Return 𝒦_σ in the cheaper basis, and two functions that bring filtered rows and raw rows conj(û) into it.

    Few rows leave the working basis; for many rows the matrix enters it.
    """
    solved = block.solved
    assert block.other is not None
    if rows < 2 * block.other.shape[0]:
        return block.other, solved.from_basis, lambda hat: hat
    return solved.matrix_in_basis(block.other), lambda S: S, solved.to_basis


def real_inner(left: jax.Array, right: jax.Array) -> jax.Array:
    """Return the real part of left · right†, over the indices a and e."""
    flat, other = (array.reshape(len(array), array.shape[1] * array.shape[2]) for array in (left, right))
    if not jnp.iscomplexobj(flat):
        return flat @ other.T
    return flat.real @ other.real.T + flat.imag @ other.imag.T


# Variances and draws


def rounding_allowed(variance: jax.Array) -> float:
    """Return how large rounding may be, as a fraction of the variance before training."""
    return 100 * float(jnp.finfo(variance.dtype).eps) ** 0.5


def _clip_negative(variance: jax.Array, prior: jax.Array) -> jax.Array:
    """Return variances [T, rows] with small negative ones from rounding set to zero; refuse large ones.

    Rounding is measured against the variances before training, `prior` [rows].
    """
    if is_concrete((variance, prior)) and variance.size:
        lowest, scale = float(np.min(variance)), float(np.max(prior))
        if not lowest >= -rounding_allowed(variance) * scale:
            fix = "The kernel is not positive semidefinite on training and test samples together."
            raise refusal("kernel_fn", expected="positive semidefinite", got=f"a variance of {lowest:.3g}", fix=fix)
    return jnp.maximum(variance, 0)


@partial(jax.jit, static_argnames="members")
def draw_members(key: jax.Array, mean: jax.Array, cov: jax.Array, members: int) -> jax.Array:
    """Return functions drawn from N(mean, cov), each channel on its own, [members, rows, c], for mean [rows, c]."""
    normal = jax.random.normal(key, (members, *mean.shape), mean.dtype)
    return mean[None] + jnp.einsum("ij,kjc->kic", positive_root(cov), normal)
