"""ρ: how a group moves the positions of a grid: pixels of images, places of sequences, nodes of graphs.

`GridAction` is the action on one grid. On kernels it is ρ_K. For positions a of a grid and a function x on it,
flattened in row-major order,

    (ρ_K(g)x)(a) = Σ_k weights[g, k, a] · x(neighbours[g, k, a]).

An exact action has a single neighbour of weight one, x(ρ⁻¹(g)a). A kernel K[n₁, n₂, h, h', w, w'] has such a grid for
each of its arguments, interleaved, and any number of axes before them:

    left:  ρ_K(g) K        right:  K ρ_K(g)ᵀ        both:  ρ_K(g) K ρ_K(g)ᵀ

A `Domain` says how positions move on grids of any size:

    `NoPositions`        there are none: plain vectors
    `QuarterTurns`       square images, by quarter turns counter-clockwise and, before them, a left-right flip
    `Rotations`          images, by any angle about the centre of the image, interpolated; zero outside
    `Translations`       images on a torus, sequences on a ring
    `NodePermutations`   the nodes of a graph

A domain turns the shape of a grid into a `GridAction` (`on_grid`). The same domain acts on the smaller grid that a
convolution or pooling layer makes, if that layer respects the symmetry. Each domain has the number of axes of its grids
(`rank`), whether positions go to positions (`exact`) and a grid on which to measure that (`example`). It can be
restricted to some of the elements (`restrict`).
"""

import dataclasses
import functools
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Int
from scipy import sparse

from ntk_equiv._check import refusal
from ntk_equiv.groups import SO2, dihedral, move_square
from ntk_equiv.reps._channels import Element, Table

Shape = tuple[int, ...]


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, repr=False)
class GridAction:
    """The action of a group on the positions of a grid, and on kernels with such grids as axes.

    Attributes:
        shape: the shape of the grid; () for a single position.
        neighbours: where the value at each position comes from, [order, neighbours, positions]; None if nothing moves.
        weights: the weight of each neighbour, likewise; None if every value is copied from one place.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import groups, reps
        >>> grid = reps.rot90(groups.cyclic(4)).spatial((2, 2))
        >>> grid
        <action on the positions of a grid (2, 2): moved exactly>
        >>> grid.indices[1].tolist()        # of the flattened grid: rot90([[0, 1], [2, 3]])
        [1, 3, 0, 2]
        >>> K = jnp.arange(16).reshape(1, 1, 2, 2, 2, 2)     # [n1, n2, h, h', w, w']
        >>> int(grid.both(1, K)[0, 0, 0, 0, 0, 1]) == int(K[0, 0, 0, 1, 1, 1])
        True
    """

    shape: Shape
    neighbours: Table | None = None
    weights: Table | None = None

    def __repr__(self) -> str:
        how = "unmoved" if self.is_identity else "moved exactly" if self.exact else "interpolated"
        return f"<action on the positions of a grid {self.shape}: {how}>"

    @property
    def is_identity(self) -> bool:
        """Whether no element moves any position."""
        return self.neighbours is None

    @property
    def exact(self) -> bool:
        """Whether positions go to positions, so that nothing is interpolated."""
        return self.weights is None

    @property
    def points(self) -> int:
        """The number of positions of the grid."""
        return math.prod(self.shape)

    @property
    def indices(self) -> Int[np.ndarray, "order points"]:
        """The position that each value comes from, if the action is exact; a single row if no element moves any."""
        if self.neighbours is None:
            return np.arange(self.points, dtype=np.int32)[None]
        if self.weights is not None:
            fix = "Use `neighbours` and `weights`."
            raise refusal("indices", expected="asked of an exact action", got="an interpolated one", fix=fix)
        return self.neighbours.entries[:, 0]

    def left(self, g: Element, kernel: ArrayLike, /) -> jax.Array:
        """ρ_K(g) K: the action on the grid of the first argument."""
        return self.move(g, kernel, tuple(range(-2 * len(self.shape), 0, 2)))

    def right(self, g: Element, kernel: ArrayLike, /) -> jax.Array:
        """K ρ_K(g)ᵀ: the action on the grid of the second argument. For K ρ_K(g), pass the inverse of g."""
        return self.move(g, kernel, tuple(range(1 - 2 * len(self.shape), 0, 2)))

    def both(self, g: Element, kernel: ArrayLike, /) -> jax.Array:
        """ρ_K(g) K ρ_K(g)ᵀ."""
        return self.right(g, self.left(g, kernel))

    def values(self, g: Element, x: ArrayLike, /) -> jax.Array:
        """ρ_K(g)x for functions on the grid, [..., *shape], such as variances."""
        return self.move(g, x, tuple(range(-len(self.shape), 0)))

    def move(self, g: Element, x: ArrayLike, axes: tuple[int, ...], /) -> jax.Array:
        """ρ_K(g) along the given axes of `x`, which make up the grid."""
        x = jnp.asarray(x)
        if x.ndim < len(axes) or tuple(x.shape[axis] for axis in axes) != self.shape:
            expected = f"an array with the grid {self.shape} on axes {axes}"
            fix = "Ask the representation for the action on the grid you have, with `rep.spatial(shape)`."
            raise refusal("x", expected=expected, got=f"shape {x.shape}", fix=fix)
        if self.neighbours is None:
            return x
        neighbours, weights = self.neighbours[g], None if self.weights is None else self.weights[g]
        leading = tuple(range(len(axes)))
        first = jnp.moveaxis(x, axes, leading)
        flat = first.reshape(self.points, *first.shape[len(axes) :])
        return jnp.moveaxis(_gather(flat, neighbours, weights).reshape(first.shape), leading, axes)

    def matrices(self, order: int) -> list[sparse.csr_array]:
        """ρ_K(g) as sparse matrices [positions, positions], on the host."""
        if self.neighbours is None:
            return [sparse.eye_array(self.points, format="csr")] * order
        columns = self.neighbours.entries
        rows = np.broadcast_to(np.arange(self.points), columns.shape)
        weights = np.ones(columns.shape) if self.weights is None else self.weights.entries
        size = (self.points, self.points)
        return [
            sparse.csr_array((weights[g].ravel(), (rows[g].ravel(), columns[g].ravel())), shape=size)
            for g in range(order)
        ]


def _gather(flat: jax.Array, neighbours: ArrayLike, weights: ArrayLike | None) -> jax.Array:
    """The weighted sum of neighbours [neighbours, positions] along the first axis; one of them is copied if exact."""
    if weights is None:
        return jnp.take(flat, neighbours[0], axis=0, mode="clip")  # type: ignore[index]
    dtype = flat.dtype if jnp.issubdtype(flat.dtype, jnp.inexact) else jnp.result_type(float)
    around = jnp.take(flat.astype(dtype), neighbours, axis=0, mode="clip")
    return jnp.einsum("kp,kp...->p...", jnp.asarray(weights).astype(dtype), around, precision=jax.lax.Precision.HIGHEST)


@dataclasses.dataclass(frozen=True)
class NoPositions:
    """No positions to move."""

    rank = 0
    exact = True
    example: ClassVar[Shape] = ()

    def on_grid(self, shape: Shape) -> GridAction:
        """The action that leaves every grid unchanged."""
        return GridAction(shape)

    def restrict(self, embedding: tuple[int, ...]) -> "NoPositions":
        """The same action of some of the elements."""
        return self


@dataclasses.dataclass(frozen=True)
class QuarterTurns:
    """Entry g of `moves` is the element of `dihedral(4)` by which g moves a square."""

    moves: Table

    rank = 2
    exact = True
    example = (4, 4)

    def on_grid(self, shape: Shape) -> GridAction:
        """The action on square grids, and on features on C4 or D4 above such a grid, f(s, k) to f(g⁻¹s, g⁻¹k)."""
        if len(shape) not in (2, 3) or shape[0] != shape[1]:
            fix = "Quarter turns need square grids: pad or crop the image, or choose a stride that keeps it square."
            raise refusal("shape", expected="that of a square grid", got=shape, fix=fix)
        positions, moves = np.arange(math.prod(shape)).reshape(shape), self.moves.entries.tolist()
        images = [move_square(g, positions, (0, 1)) for g in moves]
        if len(shape) == 3:
            images = [image[..., _orientations(g, shape[2])] for g, image in zip(moves, images, strict=True)]
        return _exact_action(shape, images)

    def restrict(self, embedding: tuple[int, ...]) -> "QuarterTurns":
        """The same action of some of the elements."""
        return QuarterTurns(self.moves.restrict(embedding))


@dataclasses.dataclass(frozen=True)
class Translations:
    """Row g of `steps` says by how many parts of the grid it moves along each axis, which has so many `parts`."""

    steps: Table
    parts: tuple[int, ...]

    exact = True

    @property
    def rank(self) -> int:
        """One for sequences, two for images."""
        return len(self.parts)

    @property
    def example(self) -> Shape:
        """The smallest grid it acts on."""
        return self.parts

    def on_grid(self, shape: Shape) -> GridAction:
        """The action on grids that can be divided into the parts."""
        if len(shape) != self.rank or any(size % part for size, part in zip(shape, self.parts, strict=True)):
            fix = "Translate by fewer steps, or choose a stride that divides the step."
            raise refusal("shape", expected=f"a grid of multiples of {self.parts}", got=shape, fix=fix)
        positions = np.arange(math.prod(shape)).reshape(shape)
        scale, axes = np.array(shape) // self.parts, tuple(range(self.rank))
        return _exact_action(shape, [np.roll(positions, step * scale, axis=axes) for step in self.steps.entries])

    def restrict(self, embedding: tuple[int, ...]) -> "Translations":
        """The same action of some of the elements."""
        return Translations(self.steps.restrict(embedding), self.parts)


@dataclasses.dataclass(frozen=True)
class NodePermutations:
    """Row g of `sources` says which node comes to the place of each node."""

    sources: Table

    rank = 1
    exact = True

    @property
    def example(self) -> Shape:
        """The one grid it acts on."""
        return (self.sources.entries.shape[1],)

    def on_grid(self, shape: Shape) -> GridAction:
        """The action on the axis of nodes."""
        if shape != self.example:
            fix = "The permutations move that many nodes."
            raise refusal("shape", expected=f"{self.example}, an axis of nodes", got=shape, fix=fix)
        return GridAction(shape, Table(self.sources.entries[:, None]))

    def restrict(self, embedding: tuple[int, ...]) -> "NodePermutations":
        """The same action of some of the elements."""
        return NodePermutations(self.sources.restrict(embedding))


@dataclasses.dataclass(frozen=True)
class Rotations:
    """Entry g of `steps` counts rotations by 2π/`fold` counter-clockwise; `order` is that of the interpolation."""

    steps: Table
    fold: int
    order: int

    rank = 2
    example = (16, 16)

    @property
    def exact(self) -> bool:
        """Whether all are half turns: these map every grid to itself, and nothing else does so for every shape."""
        return bool((2 * self.steps.entries % self.fold == 0).all())

    def on_grid(self, shape: Shape) -> GridAction:
        """The action on grids of any shape about their centre: each value comes from where its position was before."""
        if len(shape) != 2:
            raise refusal("shape", expected="two numbers", got=shape, fix="Images have a height and a width.")
        rows, columns = np.indices(shape).reshape(2, -1)
        centre = (np.array(shape) - 1) / 2
        # Rows count downwards; a rotation counter-clockwise needs the second coordinate to point up.
        right, up = columns - centre[1], centre[0] - rows
        rotations = SO2.grid(self.fold)[self.steps.entries % self.fold]
        before = np.einsum("gji,jp->gip", rotations, np.stack([right, up]))  # the transpose turns back
        neighbours, weights = _interpolate(centre[0] - before[:, 1], centre[1] + before[:, 0], shape, self.order)
        if self.exact:
            return GridAction(shape, Table(neighbours[:, :1]))
        return GridAction(shape, Table(neighbours), Table(weights))

    def restrict(self, embedding: tuple[int, ...]) -> "Rotations":
        """The same action of some of the elements."""
        return Rotations(self.steps.restrict(embedding), self.fold, self.order)


Domain = NoPositions | QuarterTurns | Translations | NodePermutations | Rotations


@functools.lru_cache(maxsize=128)
def grid_action(domain: Domain, shape: Shape) -> GridAction:
    """The action on a grid of this shape, computed once; a single position stays where it is."""
    return domain.on_grid(shape) if shape else GridAction(())


def _orientations(g: int, count: int) -> np.ndarray:
    """g⁻¹k for all k of C4 (`count` 4) or D4 (`count` 8), for an element g of D4."""
    if count not in (4, 8) or (g >= 4 and count == 4):
        fix = "Features on D4 have an axis of 8 orientations; those on C4 have 4, on which flips do not act."
        raise refusal("shape", expected="a grid, or one with an axis of the group", got=f"an axis of {count}", fix=fix)
    D4 = dihedral(4)
    return D4.table[D4.inverse[g], :count]


def _exact_action(shape: Shape, sources: list[np.ndarray]) -> GridAction:
    return GridAction(shape, Table(np.array(sources, dtype=np.int32).reshape(len(sources), 1, -1)))


def _interpolate(rows: np.ndarray, columns: np.ndarray, shape: Shape, order: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions around the given places and their weights, [order, neighbours, positions]; outside the weight is 0."""
    # Sines and cosines are rounded: what falls on a position up to rounding is put exactly there.
    rows, columns = (np.where(np.abs(a - np.rint(a)) < 1e-9, np.rint(a), a) for a in (rows, columns))
    if order == 0:
        corners = [(np.rint(rows), np.rint(columns), np.ones_like(rows))]
    else:
        down, over = rows - np.floor(rows), columns - np.floor(columns)
        corners = [
            (np.floor(rows) + i, np.floor(columns) + j, (down if i else 1 - down) * (over if j else 1 - over))
            for i in (0, 1)
            for j in (0, 1)
        ]
    i, j, weights = (np.stack(parts, axis=1) for parts in zip(*corners, strict=True))
    inside = (i >= 0) & (i < shape[0]) & (j >= 0) & (j < shape[1])
    neighbours = np.where(inside, i * shape[1] + j, 0).astype(np.int32)
    return neighbours, np.where(inside, weights, 0.0)
