"""The Gram matrix of a training set, block by block: the Fourier transform of the group that augments the data.

A function v on the group has for every unitary irrep σ of dimension d the coefficients

    v̂_ab = Σ_g v(g) σ(g)_ab,        v(g) = Σ_σ (d/|G|) Σ_ab conj(σ(g)_ab) v̂_ab,
    Σ_g u(g) v(g) = Σ_σ (d/|G|) Σ_ab conj(û_ab) v̂_ab     for real u,

and a group-circulant matrix, (Θv)(g) = Σ_h Φ(g⁻¹h) v(h), acts on the second index alone:

    (Θv)^ = v̂ B_σᵀ,        B_σ = Σ_k conj(σ(k)) ⊗ Φ(k),      Hermitian because Φ(k⁻¹) = Φ(k)ᵀ.

Real functions need only one irrep of a conjugate pair, and twice the real part of its contribution. In code:

    σ, d/|G|       `WeightedIrrep`      one irrep that is needed, with the factor in front of its contribution
    B_σ            `GramBlock`          one block: solved for one kernel, beside it that of the other, and the labels
    Θ(X, X)        `GramBlocks`         all blocks that were asked for
    v̂              `coefficients`       a matrix whose rows count (b, i), i numbering what Φ acts on, and whose
                                        columns count (a, c), c numbering channels

Data without a group have one irrep, the trivial one, and one block, the whole matrix.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv._check import is_concrete, refusal
from ntk_equiv._gram import evaluate_gram
from ntk_equiv._machine import check_fits
from ntk_equiv._pytrees import dataclass_pytree
from ntk_equiv._typing import SplitKernel
from ntk_equiv.groups import FiniteGroup
from ntk_equiv.infinite._tiles import KernelTiles, diagonal_in_portions, keep_blocks
from ntk_equiv.infinite._training_set import TrainingSet
from ntk_equiv.solvers import (
    BlockOperator,
    DenseBlock,
    PredictionScale,
    SolvedBlock,
    Solver,
    noise_level,
    refuse_tracers,
    refusing_tracers,
)

# Kernels that are held at a time beside the blocks: a quarter of a gigabyte in double precision.
ENTRIES_AT_A_TIME = 2**25
# How negative an eigenvalue may be, in units of √eps times the largest row sum. Kernels of neural-tangents are off by
# √eps at samples that coincide; anything beyond is not rounding.
NEGATIVE = 100.0


# Irreps, and coefficients of functions on the group


@dataclasses.dataclass(frozen=True, eq=False)
class WeightedIrrep:
    """One irrep, or one of a conjugate pair, with the weight of its contribution.

    Attributes:
        sigma: the matrices, [order, d, d], real if they can be.
        weight: d/|G|, twice that for a pair.
    """

    sigma: np.ndarray
    weight: float

    @property
    def copies(self) -> int:
        """How often each eigenvalue of the block occurs in the whole Gram matrix: d times, 2d for a pair."""
        return round(self.weight * len(self.sigma))

    def matrices(self, dtype: Any, elements: np.ndarray | slice = slice(None)) -> jax.Array:
        """Return σ of some elements, all unless given, in the precision of `dtype`."""
        complex_dtype = jnp.complex128 if dtype == jnp.float64 else jnp.complex64
        return jnp.asarray(self.sigma[elements].astype(complex_dtype if np.iscomplexobj(self.sigma) else dtype))


TRIVIAL = 0
"""The number of the trivial irrep."""


@lru_cache(maxsize=64)
def irrep_of(group: FiniteGroup | None, number: int) -> WeightedIrrep:
    """Return one of `irreps_of(group)`; for the trivial one the others are not computed."""
    if number != TRIVIAL:
        return irreps_of(group)[number]
    order = 1 if group is None else group.order
    return WeightedIrrep(np.ones((order, 1, 1)), 1 / order)


@lru_cache(maxsize=64)
def irreps_of(group: FiniteGroup | None) -> tuple[WeightedIrrep, ...]:
    """Return the irreps that real functions on a group need, the trivial one first; no other for None."""
    if group is None:
        return (irrep_of(None, TRIVIAL),)
    kinds = zip(group.irreps(), group.irrep_types(), strict=True)
    return tuple(
        WeightedIrrep(sigma, sigma.shape[1] / group.order * (1 + (kind.conjugate != number)))
        for number, (sigma, kind) in enumerate(kinds)
        if kind.conjugate >= number
    )


@lru_cache(maxsize=64)
def half_of_group(group: FiniteGroup | None) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return one element of each pair {k, k⁻¹}, with the factor 1, or ½ if it is its own inverse.

    With these, Σ_k X(k) = Z + Z† for Z = Σ factor(k) X(k), whenever X(k⁻¹) = X(k)†.
    """
    if group is None:
        return (0,), (0.5,)
    chosen = [k for k in range(group.order) if k <= group.inverse[k]]
    return tuple(chosen), tuple(0.5 if group.inverse[k] == k else 1.0 for k in chosen)


@jax.jit
def coefficients(sigma: jax.Array, v: jax.Array) -> jax.Array:
    """Return v̂ of real v [order, i, c], as a matrix [(b, i), (a, c)]."""
    (hat,) = _weighted_sums((sigma,), v)
    hat = hat.transpose(1, 2, 0, 3)
    return hat.reshape(hat.shape[0] * hat.shape[1], hat.shape[2] * hat.shape[3])


@jax.jit
def row_coefficients(sigmas: tuple[jax.Array, ...], rows: jax.Array) -> list[jax.Array]:
    """Return conj(û) of real rows u [order, m, i] for several σ, each as an array [m, a, (b, i)]."""
    hats = (hat.transpose(2, 0, 1, 3) for hat in _weighted_sums(tuple(sigma.conj() for sigma in sigmas), rows))
    return [hat.reshape(*hat.shape[:2], hat.shape[2] * hat.shape[3]) for hat in hats]


def synthesize(sigma: jax.Array, hat: jax.Array, channels: int) -> jax.Array:
    """Return the real part of Σ_ab conj(σ(g)_ab) v̂_ab: the contribution to v(g), [..., order, i, c], without weight."""
    d = sigma.shape[1]
    apart = hat.reshape(*hat.shape[:-2], d, -1, d, channels)
    return jnp.einsum("gab,...biac->...gic", sigma.conj(), apart).real


def _weighted_sums(weights: tuple[jax.Array, ...], values: jax.Array) -> list[jax.Array]:
    """Return Σ_k w(k)_ab v(k) of real v [k, p, q] for several w [k, a, b], by one product that reads v once."""
    rows = [weight.reshape(len(weight), -1).T for weight in weights]
    parts = [part for row in rows for part in ((row.real, row.imag) if jnp.iscomplexobj(row) else (row,))]
    ends = np.cumsum([len(part) for part in parts])[:-1]
    sums = iter(jnp.split(jnp.einsum("rk,kpq->rpq", jnp.concatenate(parts), values), ends))
    found = (jax.lax.complex(next(sums), next(sums)) if jnp.iscomplexobj(weight) else next(sums) for weight in weights)
    return [part.reshape(*w.shape[1:], *values.shape[1:]) for w, part in zip(weights, found, strict=True)]


# The blocks


@dataclass_pytree
@dataclasses.dataclass(frozen=True, eq=False)
class GramBlock:
    """One block of the Gram matrix.

    Attributes:
        solved: the block of Θ, through which functions of it are applied.
        labels: v̂† of the labels, [(a, c), (b, i)], with (b, i) in the working basis.
        other: the block of the other kernel, 𝒦 beside a solved Θ; None until it is needed.
    """

    solved: SolvedBlock
    labels: jax.Array
    other: BlockOperator | None


@dataclass_pytree
@dataclasses.dataclass(frozen=True, eq=False)
class GramBlocks:
    """The blocks of a Gram matrix.

    Attributes:
        data: the training set.
        by_irrep: the blocks, by the number of their irrep in `irreps_of(data.group)`.
        scale: the largest row sum of |Θ|, which bounds every eigenvalue.
        noise: how far rounding may move a small eigenvalue.
    """

    data: TrainingSet
    by_irrep: dict[int, GramBlock]
    scale: jax.Array
    noise: jax.Array

    @property
    def has_other(self) -> bool:
        """Whether all blocks have the other kernel too."""
        return all(block.other is not None for block in self.by_irrep.values())

    def __iter__(self) -> Iterator[tuple[WeightedIrrep, GramBlock]]:
        """Go through the blocks, each with its irrep."""
        for number, block in sorted(self.by_irrep.items()):
            yield irrep_of(self.data.group, number), block

    def with_labels(self, labels: jax.Array) -> "GramBlocks":
        """Return the same blocks with other labels [order, (i, p), channels] in the frame of their element."""
        irreps = {number: irrep_of(self.data.group, number) for number in self.by_irrep}
        blocks = {
            number: dataclasses.replace(block, labels=_labels_in_basis(block.solved, irreps[number], labels))
            for number, block in self.by_irrep.items()
        }
        return dataclasses.replace(self, by_irrep=blocks)

    def spectrum(self) -> jax.Array | None:
        """Return the eigenvalues in increasing order, as often as they occur in the Gram matrix; None if unknown."""
        spectra = [(irrep, block.solved.spectrum) for irrep, block in self]
        if any(values is None for _, values in spectra):
            return None
        xp = np if is_concrete([values for _, values in spectra]) else jnp  # NumPy needs no programs
        return jnp.asarray(xp.sort(xp.concatenate([xp.tile(values, irrep.copies) for irrep, values in spectra])))

    def largest_eigenvalue(self) -> float:
        """Return a bound on the largest eigenvalue of these blocks, as sharp as the solver knows it."""
        extremes = [block.solved.extremes() for _, block in self]
        return max(float(self.scale) if found is None else float(found[1]) for found in extremes)


def solve_blocks(
    kernel: SplitKernel,
    data: TrainingSet,
    solver: Solver,
    wanted: Iterable[int],
    *,
    get: tuple[str, ...] = ("ntk",),
    known: Mapping[int, GramBlock] = MappingProxyType({}),
    inverse_shift: float | None = None,
) -> GramBlocks:
    """Evaluate the kernels of the training set, and solve the blocks of some irreps.

    Args:
        kernel: any kernel function.
        data: the training set.
        solver: how functions of a block are applied.
        wanted: numbers of irreps.
        get: the kernel whose blocks are solved, and after it any other to be kept beside it.
        known: blocks that are solved already, and are only completed.
        inverse_shift: if (B + shift)⁻¹ is the only function of the blocks that will be needed, the shift.
    """
    wanted, labels = tuple(wanted), data.labels()
    irreps = {number: irrep_of(data.group, number) for number in wanted}
    new = tuple(number for number in wanted if number not in known)
    storage = getattr(solver, "storage", None)
    with refusing_tracers(repr(solver)):
        matrices = (
            _sum_blocks(kernel, data, solver, irreps, new, get)
            if storage is None
            else _tiled_blocks(kernel, data, solver, irreps, new, get)
        )
        solved = _solve_new(solver, data, matrices, {number: irreps[number] for number in new}, labels, inverse_shift)
    blocks = {}
    for number in wanted:
        block = known.get(number)
        if block is None:
            basis = solved[number]
            block = GramBlock(basis, _labels_in_basis(basis, irreps[number], labels), None)
        blocks[number] = dataclasses.replace(block, other=matrices.other(number)) if len(get) > 1 else block
    found = GramBlocks(data, blocks, matrices.scale, matrices.noise)
    _check_positive(found)
    return found


def _solve_new(
    solver: Solver,
    data: TrainingSet,
    matrices: "_Matrices",
    irreps: Mapping[int, WeightedIrrep],
    labels: jax.Array,
    inverse_shift: float | None,
) -> dict[int, SolvedBlock]:
    """Return the solved blocks of some irreps, at the same time where the solver can do that."""
    shared: dict[str, Any] = {"noise": matrices.noise, "inverse_shift": inverse_shift}
    if hasattr(solver, "solve_several"):
        return dict(
            zip(irreps, solver.solve_several([matrices.theta(number) for number in irreps], **shared), strict=True)
        )
    scales = {number: _prediction_scale(data, matrices, irrep, labels, len(irreps)) for number, irrep in irreps.items()}
    return {number: solver.solve(matrices.theta(number), scale=scales[number], **shared) for number in irreps}


class _Matrices(NamedTuple):
    """The blocks before they are solved.

    Attributes:
        theta: returns the block of the first kernel for an irrep.
        other: returns that of the second kernel.
        scale: a bound on every eigenvalue.
        diagonal: the largest entry on the diagonal of the Gram matrix.
        noise: how far rounding may move a small eigenvalue.
    """

    theta: Callable[[int], BlockOperator]
    other: Callable[[int], BlockOperator]
    scale: jax.Array
    diagonal: jax.Array
    noise: jax.Array


def _sum_blocks(
    kernel: SplitKernel,
    data: TrainingSet,
    solver: Solver,
    irreps: Mapping[int, WeightedIrrep],
    new: tuple[int, ...],
    get: tuple[str, ...],
) -> _Matrices:
    """Return blocks whose entries are summed up at once, a few elements of the group at a time."""
    _check_memory(data, solver, list(irreps.values()), len(get))
    theta, other = _HalfBlocks(irreps, new), _HalfBlocks(irreps, tuple(irreps))
    identity = 0 if data.group is None else data.group.identity
    row_sums = None
    for elements, factors, kernels in _evaluate_kernels(kernel, data, get):
        row_sums = _add_row_sums(row_sums, kernels[0], factors)
        if identity in elements:
            diagonal = _largest_on_diagonal(kernels[0], elements.index(identity))
        theta.add(kernels[0], elements, factors)
        for matrix in kernels[1:]:
            other.add(matrix, elements, factors)
    assert row_sums is not None
    scale, noise = _scale_and_noise(row_sums, diagonal, data.size, solver.precision(diagonal))
    return _Matrices(theta.pop, other.pop, scale, diagonal, noise)


def _tiled_blocks(
    kernel: SplitKernel,
    data: TrainingSet,
    solver: Solver,
    irreps: Mapping[int, WeightedIrrep],
    new: tuple[int, ...],
    get: tuple[str, ...],
) -> _Matrices:
    """Return blocks in tiles, which are where the solver wants them."""
    if not is_concrete((kernel, data)):
        raise refuse_tracers(repr(solver))
    first = evaluate_gram(kernel, jax.tree.map(lambda leaf: leaf[:1], data.x), None, get[0])
    check_positions(first.shape, data)
    wanted = [(get[0], number) for number in new] + [(name, number) for name in get[1:] for number in irreps]
    weights = {f"{name}-{number}": irreps[number].matrices(first.dtype).conj() for name, number in wanted}
    blocks = keep_blocks(KernelTiles.plan(kernel, data, weights), solver)
    diagonal = jnp.max(diagonal_in_portions(kernel, data.x, get[0]))
    # Entries are at most as large as the largest on the diagonal, so this bounds every eigenvalue.
    scale = data.size * diagonal
    noise = noise_level(scale, diagonal, data.size, solver_eps=solver.precision(scale))

    def block(name: str, number: int) -> BlockOperator:
        return blocks[f"{name}-{number}"]

    return _Matrices(partial(block, get[0]), partial(block, get[-1]), scale, diagonal, noise)


def _prediction_scale(
    data: TrainingSet, matrices: _Matrices, irrep: WeightedIrrep, labels: jax.Array, blocks: int
) -> PredictionScale:
    """Return what errors in a block amount to in predictions; nothing in particular where that is not known."""
    if not is_concrete((matrices.diagonal, labels)):
        return PredictionScale()
    root_mean_square = float(jnp.sqrt(jnp.mean(labels**2)))
    return PredictionScale(data.size, float(matrices.diagonal) or 1.0, irrep.weight, blocks, root_mean_square)


def irreps_in_labels(data: TrainingSet) -> tuple[int, ...]:
    """Return the numbers of the irreps in which the labels are not zero; all of them if the labels are not known."""
    if not is_concrete(data.y):
        return tuple(range(len(irreps_of(data.group))))
    # In NumPy: so few numbers are not worth a program for each operation.
    labels = np.asarray(data.labels())
    # Squares of very small or large labels would vanish or overflow.
    labels = labels / np.maximum(np.abs(labels).max(initial=0), jnp.finfo(labels.dtype).tiny)
    # Labels that the group leaves as they are need no other irrep, and none is computed.
    if not np.any(labels != labels[:1]):
        return (TRIVIAL,)
    everything = irreps_of(data.group)
    total = float(np.sum(labels**2))
    rounding = (100 * float(jnp.finfo(labels.dtype).eps)) ** 2 * total
    # By Parseval's identity, weight · ‖v̂‖² is the square of what an irrep holds of the labels.
    parts = [
        irrep.weight * float(_square_of_coefficients(irrep.matrices(labels.dtype), labels)) for irrep in everything
    ]
    return tuple(number for number, part in enumerate(parts) if part > rounding) or (0,)


def check_positions(shape: tuple[int, ...], data: TrainingSet) -> None:
    """Refuse labels on another grid than that of the network's outputs, from the shape of a kernel."""
    grid = shape[2::2]
    if grid != data.positions:
        wanted = f"labels [n, {', '.join(map(str, grid))}, channels]" if grid else "labels [n] or [n, channels]"
        fix = "The network and the labels must have outputs at the same positions; `stax.Flatten` removes positions."
        raise refusal("y", expected=f"{wanted} for this network", got=f"shape {data.y.shape}", fix=fix)


def _labels_in_basis(solved: SolvedBlock, irrep: WeightedIrrep, labels: jax.Array) -> jax.Array:
    """Return v̂† of labels [order, (i, p), channels] in the working basis of a block."""
    bring = _compiled_labels_in_basis if solved.traceable else _coefficients_in_basis
    return bring(solved, irrep.matrices(labels.dtype), labels)


def _coefficients_in_basis(solved: SolvedBlock, sigma: jax.Array, labels: jax.Array) -> jax.Array:
    return solved.to_basis(coefficients(sigma, labels).conj().T)


_compiled_labels_in_basis = jax.jit(_coefficients_in_basis)


def decomposition_memory(data: TrainingSet, solver: Solver, irreps: Iterable[WeightedIrrep], kernels: int) -> int:
    """Return how many bytes blocks take as whole matrices, together with what solving one of them takes."""
    sides = [(irrep.sigma.shape[1] * data.rows, np.iscomplexobj(irrep.sigma)) for irrep in irreps]
    entries = sum((2 if twice else 1) * side**2 for side, twice in sides)
    working = max(solver.memory(side, is_complex=twice) for side, twice in sides)
    return (1 + kernels) * entries * data.y.dtype.itemsize + working


def _check_memory(data: TrainingSet, solver: Solver, irreps: list[WeightedIrrep], kernels: int) -> None:
    """Refuse blocks that do not fit into memory together with what solving one of them takes."""
    largest = max(irrep.sigma.shape[1] for irrep in irreps) * data.rows
    how = "as a whole" if data.group is None else f"in blocks of up to {largest} rows"
    check_fits(
        decomposition_memory(data, solver, irreps, kernels),
        "train",
        what=f"the Gram matrix of {data.size} rows, decomposed {how},",
        fix="Take fewer samples, float32, or `solver=solvers.Lanczos()`, which decomposes nothing and can do without "
        "the memory; augmented data take less if their symmetry can be used.",
    )


def _check_positive(found: GramBlocks) -> None:
    """Refuse blocks whose eigenvalues are not those of a positive semidefinite matrix up to rounding."""
    if not is_concrete(found):
        return
    scale = float(found.scale)
    spectra = [block.solved.spectrum for _, block in found]
    lowest = min((float(np.asarray(values)[0]) for values in spectra if values is not None), default=0.0)
    if not np.isfinite(lowest + scale):
        fix = "Look at the kernel of your training samples with `gram`."
        raise refusal("kernel_fn", expected="one with finite kernels", got="NaN or infinity", fix=fix)
    if lowest < -NEGATIVE * float(jnp.finfo(found.scale.dtype).eps) ** 0.5 * scale:
        fix = "Its Gram matrix on the training samples has this eigenvalue; rounding alone does not explain it."
        got = f"an eigenvalue {lowest:.3g} where the largest row sum is {scale:.3g}"
        raise refusal("kernel_fn", expected="positive semidefinite", got=got, fix=fix)


class _HalfBlocks:
    """Sums Z over half of the group for several irreps; the blocks are Z + Z†."""

    def __init__(self, irreps: Mapping[int, WeightedIrrep], numbers: tuple[int, ...]):
        self.irreps, self.numbers = irreps, numbers
        self.halves: dict[int, jax.Array] = {}

    def add(self, phi: jax.Array, elements: tuple[int, ...], factors: jax.Array) -> None:
        """Add what some elements contribute."""
        if self.numbers:
            chosen = np.array(elements)
            sigmas = tuple(self.irreps[number].matrices(factors.dtype, chosen) for number in self.numbers)
            before = tuple(self.halves.pop(number) for number in self.numbers) if self.halves else None
            self.halves = dict(zip(self.numbers, _add_halves(before, sigmas, phi, factors), strict=True))

    def pop(self, number: int) -> DenseBlock:
        """Return one of the blocks, and forget it, so that its memory is free when it is solved."""
        return DenseBlock(_complete_half(self.halves.pop(number)))


def _evaluate_kernels(kernel: SplitKernel, data: TrainingSet, get: tuple[str, ...]) -> Iterator[tuple]:
    """Yield Φ(k) of one element of each pair {k, k⁻¹}: elements, factors, and for each kernel an array [k, i, j]."""
    elements, factors = half_of_group(data.group)
    at_a_time = max(1, ENTRIES_AT_A_TIME // data.rows**2)
    for start in range(0, len(elements), at_a_time):
        part = elements[start : start + at_a_time]
        moved = None if data.group is None else data.samples(part)
        found = evaluate_gram(kernel, data.x, moved, get)
        check_positions(found[0].shape, data)
        framed = tuple(_frame(data, matrix, part) for matrix in found)
        yield part, jnp.asarray(factors[start : start + at_a_time], framed[0].dtype), framed


@partial(jax.jit, static_argnames="elements")
def _frame(data: TrainingSet, kernel: jax.Array, elements: tuple[int, ...]) -> jax.Array:
    return data.frame_kernel(kernel, None if data.group is None else elements)


@jax.jit
def _add_row_sums(before: jax.Array | None, phi: jax.Array, factors: jax.Array) -> jax.Array:
    """Return Σ|Θ| along each row so far, with what some elements and their inverses add to it."""
    sums = jnp.einsum("k,ki->i", factors, jnp.abs(phi).sum(axis=2) + jnp.abs(phi).sum(axis=1))
    return sums if before is None else before + sums


@partial(jax.jit, static_argnames="identity")
def _largest_on_diagonal(phi: jax.Array, identity: int) -> jax.Array:
    return jnp.max(jnp.abs(jnp.diagonal(phi[identity])))


@partial(jax.jit, static_argnames=("rows", "solver_eps"))
def _scale_and_noise(
    row_sums: jax.Array, diagonal: jax.Array, rows: int, solver_eps: float
) -> tuple[jax.Array, jax.Array]:
    scale = jnp.max(row_sums)
    return scale, noise_level(scale, diagonal, rows, solver_eps=solver_eps)


@jax.jit
def _square_of_coefficients(sigma: jax.Array, labels: jax.Array) -> jax.Array:
    return jnp.sum(jnp.abs(coefficients(sigma, labels)) ** 2)


# The sums so far are given up for the new ones, which then need no memory of their own.
@partial(jax.jit, donate_argnums=0)
def _add_halves(halves: tuple | None, sigmas: tuple, phi: jax.Array, factors: jax.Array) -> tuple:
    """Return Z + Σ_k factor(k) conj(σ(k)) ⊗ Φ(k) for several σ, [(a, i), (b, j)], from phi [k, i, j]."""
    weights = tuple(sigma.conj() * factors[:, None, None] for sigma in sigmas)
    sums = (half.transpose(0, 2, 1, 3) for half in _weighted_sums(weights, phi))
    new = [half.reshape(half.shape[0] * half.shape[1], half.shape[2] * half.shape[3]) for half in sums]
    return tuple(new if halves is None else map(jnp.add, halves, new))


@jax.jit
def _complete_half(half: jax.Array) -> jax.Array:
    return half + half.conj().T
