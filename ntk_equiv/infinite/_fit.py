"""The Gram matrix of a training set, block by block.

For every sector σ that is asked for, the block of Θ is decomposed once, B_σ = U diag(λ) U†, and that of 𝒦 is kept
beside it. Kernels are evaluated between base points and one of ρ_X(k)x, ρ_X(k⁻¹)x for all k, a few elements at a time,
and added to all blocks while they are at hand.
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
from ntk_equiv._typing import KernelFn
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
    """One block of the Gram matrix, decomposed.

    Attributes:
        values: λ, [d · n].
        vectors: U, a column for each of them.
        labels: U† v̂ of the labels, [d · n, (a, c)].
        nngp: the block of 𝒦; None until it is needed.
    """

    values: jax.Array
    vectors: jax.Array
    labels: jax.Array
    nngp: jax.Array | None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Fit:
    """Blocks by the number of their sector, and the largest row sum of |Θ|, which bounds every eigenvalue."""

    blocks: dict[int, Block]
    scale: jax.Array

    @property
    def has_nngp(self) -> bool:
        """Whether all blocks have the NNGP kernel too."""
        return all(block.nngp is not None for block in self.blocks.values())


def fitted(
    kernel_fn: KernelFn,
    data: TrainingSet,
    wanted: Iterable[int],
    *,
    get: tuple[str, ...] = ("ntk",),
    known: Mapping[int, Block] = MappingProxyType({}),
) -> Fit:
    """The blocks of the sectors that are wanted.

    Args:
        kernel_fn: any kernel function.
        data: the training set.
        wanted: numbers of sectors.
        get: the kernel to decompose, and after it any other to be kept beside it.
        known: blocks that are decomposed already, and are only completed.
    """
    wanted = tuple(wanted)
    fresh = tuple(number for number in wanted if number not in known)
    theta, other = _Halves(data, fresh), _Halves(data, wanted)
    row_sums: Any = 0
    for elements, factors, kernels in _kernels(kernel_fn, data, get):
        row_sums = row_sums + _row_sums(kernels[0], factors)
        theta.add(kernels[0], elements, factors)
        for kernel in kernels[1:]:
            other.add(kernel, elements, factors)
    labels = data.labels()
    blocks = {}
    for number in wanted:
        block = known.get(number)
        if block is None:
            sigma = sectors_of(data.group)[number].matrices(labels.dtype)
            block = _decomposed(theta.pop(number), coefficients(sigma, labels))
            # One after the other: a decomposition keeps all cores busy, and several are in each other's way.
            block = jax.block_until_ready(block) if is_concrete(block) else block
        blocks[number] = dataclasses.replace(block, nngp=_whole(other.pop(number))) if len(get) > 1 else block
    return checked(Fit(blocks, jnp.max(row_sums)))


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
    if is_concrete(fit.scale) and is_concrete(fit.blocks):
        lowest = min(float(block.values[0]) for block in fit.blocks.values())
        scale = float(fit.scale)
        if not np.isfinite(lowest + scale):
            fix = "Look at the kernel of your training points with `gram`."
            raise refusal("kernel_fn", expected="one with finite kernels", got="NaN or infinity", fix=fix)
        if lowest < -NEGATIVE * float(jnp.finfo(fit.scale.dtype).eps) ** 0.5 * scale:
            fix = "Its Gram matrix on the training points has this eigenvalue; rounding alone does not explain it."
            got = f"an eigenvalue {lowest:.3g} where the largest row sum is {scale:.3g}"
            raise refusal("kernel_fn", expected="positive semidefinite", got=got, fix=fix)
    return fit


def containing_labels(data: TrainingSet) -> tuple[int, ...]:
    """The sectors in which the labels are not zero; all of them if the labels are not known."""
    everything = sectors_of(data.group)
    if not is_concrete(data.y):
        return tuple(range(len(everything)))
    labels = data.labels()
    total = float(jnp.sum(labels**2))
    rounding = (100 * float(jnp.finfo(labels.dtype).eps)) ** 2 * total
    parts = [sector.weight * float(_square(sector.matrices(labels.dtype), labels)) for sector in everything]
    return tuple(number for number, part in enumerate(parts) if part > rounding) or (0,)


def eigenvalues(fit: Fit, data: TrainingSet) -> jax.Array:
    """The eigenvalues of these blocks in increasing order, as often as they occur in the Gram matrix."""
    sectors = sectors_of(data.group)
    return jnp.sort(jnp.concatenate([jnp.tile(b.values, sectors[number].copies) for number, b in fit.blocks.items()]))


@jax.jit
def _square(sigma: jax.Array, labels: jax.Array) -> jax.Array:
    """‖v̂‖²: times the weight of the sector, the square of what it holds of the labels, by Parseval's identity."""
    return jnp.sum(jnp.abs(coefficients(sigma, labels)) ** 2)


def _kernels(kernel_fn: KernelFn, data: TrainingSet, get: tuple[str, ...]) -> Iterator[tuple]:
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
def _decomposed(half: jax.Array, labels: jax.Array) -> Block:
    vectors, values = jax.lax.linalg.eigh(_whole(half), symmetrize_input=False)
    return Block(values, vectors, vectors.conj().T @ labels, None)


@jax.jit
def _whole(half: jax.Array) -> jax.Array:
    return half + half.conj().T
