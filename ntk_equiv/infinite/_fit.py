"""The Gram matrix of a training set, block by block.

For every sector σ that is asked for, the block of Θ is decomposed once, B_σ = U diag(λ) U†, or inverted if that is all
that training to its end needs, and that of 𝒦 is kept beside it. Kernels are evaluated between base samples and one of
ρ_X(k)x, ρ_X(k⁻¹)x for all k, a few elements at a time, and added to all blocks while they are at hand.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv._check import is_concrete, refusal
from ntk_equiv._gram import gram
from ntk_equiv._memory import check_fits
from ntk_equiv._typing import KernelFunction
from ntk_equiv.infinite._hermitian import Basis, Eigenbasis, decomposed, has_double_algebra, inverse
from ntk_equiv.infinite._response import noise_level
from ntk_equiv.infinite._sectors import coefficients, half_blocks, halved, sectors_of
from ntk_equiv.infinite._training_set import TrainingSet

# Kernels that are held at a time beside the blocks: a quarter of a gigabyte in double precision.
ENTRIES_AT_A_TIME = 2**25
# How negative an eigenvalue may be, in units of √eps times the largest row sum. Kernels of neural-tangents are off by
# √eps at points that coincide; anything beyond is no rounding.
NEGATIVE = 100.0


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Block:
    """One block of the Gram matrix.

    Attributes:
        basis: how functions of the block are applied.
        labels: v̂† of the labels in that basis, [(a, c), d · n].
        nngp: the block of 𝒦; None until it is needed.
    """

    basis: Basis
    labels: jax.Array
    nngp: jax.Array | None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Fit:
    """The blocks of a Gram matrix.

    Attributes:
        blocks: by the number of their sector.
        scale: the largest row sum of |Θ|, which bounds every eigenvalue.
        noise: how far rounding may move a small eigenvalue.
    """

    blocks: dict[int, Block]
    scale: jax.Array
    noise: jax.Array

    @property
    def has_nngp(self) -> bool:
        """Whether all blocks have the NNGP kernel too."""
        return all(block.nngp is not None for block in self.blocks.values())

    @property
    def eigenbases(self) -> dict[int, Eigenbasis]:
        """The bases of those blocks that have an eigenbasis."""
        return {n: block.basis for n, block in self.blocks.items() if isinstance(block.basis, Eigenbasis)}

    @property
    def is_spectral(self) -> bool:
        """Whether all blocks have an eigenbasis, so that any function of them can be applied."""
        return len(self.eigenbases) == len(self.blocks)


def fitted(
    kernel_fn: KernelFunction,
    data: TrainingSet,
    wanted: Iterable[int],
    *,
    get: tuple[str, ...] = ("ntk",),
    known: Mapping[int, Block] = MappingProxyType({}),
    shift: float | None = None,
) -> Fit:
    """The blocks of the sectors that are wanted.

    Args:
        kernel_fn: any kernel function.
        data: the training set.
        wanted: numbers of sectors.
        get: the kernel whose blocks are decomposed, and after it any other to be kept beside it.
        known: blocks that have their basis already, and are only completed.
        shift: if (B + shift)⁻¹ is the only function of the blocks that will be needed, the shift. Blocks that are
            singular up to rounding have an eigenbasis all the same.
    """
    wanted = tuple(wanted)
    _check_size(data, wanted, len(get))
    fresh = tuple(number for number in wanted if number not in known)
    theta, other = _Halves(data, fresh), _Halves(data, wanted)
    identity = 0 if data.group is None else data.group.identity
    row_sums: Any = 0
    for elements, factors, kernels in _kernels(kernel_fn, data, get):
        row_sums = row_sums + _row_sums(kernels[0], factors)
        if identity in elements:
            diagonal = _largest_on_diagonal(kernels[0][elements.index(identity)])
        theta.add(kernels[0], elements, factors)
        for kernel in kernels[1:]:
            other.add(kernel, elements, factors)
    scale = jnp.max(row_sums)
    noise = noise_level(scale, diagonal, data.size, double_algebra=has_double_algebra(scale))
    labels, blocks = data.labels(), {}
    for number in wanted:
        block = known.get(number)
        if block is None:
            basis = _basis(_whole(theta.pop(number)), shift, noise)
            block = Block(basis, labels_in(basis, data, number, labels), None)
        blocks[number] = dataclasses.replace(block, nngp=_whole(other.pop(number))) if len(get) > 1 else block
    return checked(Fit(blocks, scale, noise))


def _check_size(data: TrainingSet, wanted: tuple[int, ...], kernels: int) -> None:
    """Refuse blocks that do not fit into memory, with what it takes to decompose one of them in double precision."""
    sectors = sectors_of(data.group)
    sides = [sectors[number].sigma.shape[1] * (data.size // data.order) for number in wanted]
    numbers = [
        (2 if np.iscomplexobj(sectors[number].sigma) else 1) * side**2
        for number, side in zip(wanted, sides, strict=True)
    ]
    kept = (1 + kernels) * sum(numbers) * data.y.dtype.itemsize
    how = "as a whole" if data.group is None else f"in blocks of up to {max(sides)} rows"
    check_fits(
        kept + 2 * 8 * max(numbers),
        "train",
        what=f"the Gram matrix of {data.size} rows, decomposed {how},",
        fix="Take fewer samples, or float32; augmented data take less if their symmetry can be used, and labels that "
        "the group leaves as they are least of all.",
    )


def _basis(matrix: jax.Array, shift: float | None, noise: jax.Array) -> Basis:
    """What functions of a block are applied with: its inverse if that is enough and exists, else its eigenbasis."""
    inverted = None if shift is None or not is_concrete(matrix) else inverse(matrix, shift, float(noise))
    return inverted or decomposed(matrix)


def labels_in(basis: Basis, data: TrainingSet, number: int, labels: jax.Array) -> jax.Array:
    """v̂† of labels [order, (i, p), channels] for a sector, in the basis of its block."""
    hat = coefficients(sectors_of(data.group)[number].matrices(labels.dtype), labels)
    return basis.coordinates(hat.conj().T)


class _Halves:
    """Z of several sectors, from which the blocks are Z + Z†."""

    def __init__(self, data: TrainingSet, numbers: tuple[int, ...]):
        self.group, self.numbers = data.group, numbers
        self.halves: dict[int, jax.Array] = {}

    def add(self, phi: jax.Array, elements: tuple[int, ...], factors: jax.Array) -> None:
        """What some elements contribute."""
        if self.numbers:
            found = [sectors_of(self.group)[number].matrices(factors.dtype) for number in self.numbers]
            sigmas = tuple(sigma[np.array(elements)] for sigma in found)
            before = tuple(self.halves.pop(number) for number in self.numbers) if self.halves else None
            self.halves = dict(zip(self.numbers, _added(before, sigmas, phi, factors), strict=True))

    def pop(self, number: int) -> jax.Array:
        """One of them, which is then forgotten."""
        return self.halves.pop(number)


def checked(fit: Fit) -> Fit:
    """`fit`, if its eigenvalues are those of a positive semidefinite matrix up to rounding."""
    if is_concrete(fit):
        scale = float(fit.scale)
        lowest = min((float(basis.values[0]) for basis in fit.eigenbases.values()), default=0.0)
        if not np.isfinite(lowest + scale):
            fix = "Look at the kernel of your training samples with `gram`."
            raise refusal("kernel_fn", expected="one with finite kernels", got="NaN or infinity", fix=fix)
        if lowest < -NEGATIVE * float(jnp.finfo(fit.scale.dtype).eps) ** 0.5 * scale:
            fix = "Its Gram matrix on the training samples has this eigenvalue; rounding alone does not explain it."
            got = f"an eigenvalue {lowest:.3g} where the largest row sum is {scale:.3g}"
            raise refusal("kernel_fn", expected="positive semidefinite", got=got, fix=fix)
    return fit


def containing_labels(data: TrainingSet) -> tuple[int, ...]:
    """The sectors in which the labels are not zero; all of them if the labels are not known."""
    everything = sectors_of(data.group)
    if not is_concrete(data.y):
        return tuple(range(len(everything)))
    labels = data.labels()
    # Squares of very small or large labels would vanish or overflow.
    labels = labels / jnp.maximum(jnp.max(jnp.abs(labels)), jnp.finfo(labels.dtype).tiny)
    total = float(jnp.sum(labels**2))
    rounding = (100 * float(jnp.finfo(labels.dtype).eps)) ** 2 * total
    parts = [sector.weight * float(_square(sector.matrices(labels.dtype), labels)) for sector in everything]
    return tuple(number for number, part in enumerate(parts) if part > rounding) or (0,)


def eigenvalues(fit: Fit, data: TrainingSet) -> jax.Array:
    """The eigenvalues of these blocks in increasing order, as often as they occur in the Gram matrix."""
    sectors = sectors_of(data.group)
    spectra = [jnp.tile(basis.spectrum, sectors[number].copies) for number, basis in fit.eigenbases.items()]
    return jnp.sort(jnp.concatenate(spectra))


@jax.jit
def _square(sigma: jax.Array, labels: jax.Array) -> jax.Array:
    """‖v̂‖²: times the weight of the sector, the square of what it holds of the labels, by Parseval's identity."""
    return jnp.sum(jnp.abs(coefficients(sigma, labels)) ** 2)


@jax.jit
def _largest_on_diagonal(theta: jax.Array) -> jax.Array:
    return jnp.max(jnp.abs(jnp.diagonal(theta)))


def _kernels(kernel_fn: KernelFunction, data: TrainingSet, get: tuple[str, ...]) -> Iterator[tuple]:
    """Φ(k) of one element of each pair {k, k⁻¹}: elements, factors, and for each kernel an array [k, i, j]."""
    elements, factors = halved(data.group)
    at_a_time = max(1, ENTRIES_AT_A_TIME // (data.size // data.order) ** 2)
    for start in range(0, len(elements), at_a_time):
        part = elements[start : start + at_a_time]
        points = None if data.group is None else data.points(part)
        found = gram(kernel_fn, data.x, points, get)
        check_positions(found[0].shape, data)
        framed = tuple(_rows(data, kernel, part) for kernel in found)
        yield part, jnp.asarray(factors[start : start + at_a_time], framed[0].dtype), framed


def check_positions(shape: tuple[int, ...], data: TrainingSet) -> None:
    """Refuse labels on another grid than that of the network's outputs."""
    grid = shape[2::2]
    if grid != data.positions:
        wanted = f"labels [n, {', '.join(map(str, grid))}, channels]" if grid else "labels [n] or [n, channels]"
        fix = "The network and the labels must have outputs at the same positions; `stax.Flatten` removes positions."
        raise refusal("y", expected=f"{wanted} for this network", got=f"shape {data.y.shape}", fix=fix)


@partial(jax.jit, static_argnames="elements")
def _rows(data: TrainingSet, kernel: jax.Array, elements: tuple[int, ...]) -> jax.Array:
    return data.rows(kernel, None if data.group is None else elements)


@jax.jit
def _row_sums(phi: jax.Array, factors: jax.Array) -> jax.Array:
    """What some elements and their inverses add to Σ|Θ| along each row."""
    return jnp.einsum("k,ki->i", factors, jnp.abs(phi).sum(axis=2) + jnp.abs(phi).sum(axis=1))


@partial(jax.jit, donate_argnums=0)
def _added(halves: tuple | None, sigmas: tuple, phi: jax.Array, factors: jax.Array) -> tuple:
    new = half_blocks(sigmas, phi, factors)
    return tuple(new if halves is None else map(jnp.add, halves, new))


@jax.jit
def _whole(half: jax.Array) -> jax.Array:
    return half + half.conj().T
