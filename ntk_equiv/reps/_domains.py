"""ρ: how a group acts on the points of images, lattices and graphs, for grids of any size.

    `Nowhere`        there are no points: plain vectors
    `QuarterTurns`   square images, by quarter turns counter-clockwise and, before them, a left-right flip
    `Rotations`      images, by any angle about the centre of the image, interpolated; zero outside
    `Shifts`         images on a torus, sequences on a ring
    `Relabellings`   the nodes of a graph

Each turns the shape of a grid into a `GridAction` (`on`). The same action on a smaller grid is what a convolution or
pooling layer that respects the symmetry makes of it. All say how many axes a grid has (`rank`), whether points go to
points (`exact`) and on which grid to measure that (`example`), and act for fewer elements as well (`restricted`).
"""

import dataclasses
import functools
import math
from typing import ClassVar

import numpy as np

from ntk_equiv._check import refusal
from ntk_equiv.groups import SO2, dihedral, move_square
from ntk_equiv.reps._channels import Table
from ntk_equiv.reps._grids import GridAction


@dataclasses.dataclass(frozen=True)
class Nowhere:
    """No points to move."""

    rank = 0
    exact = True
    example: ClassVar[tuple[int, ...]] = ()

    def on(self, shape: tuple[int, ...]) -> GridAction:
        """The action that leaves every grid alone."""
        return GridAction(shape)

    def restricted(self, embedding: tuple[int, ...]) -> "Nowhere":
        """The same for some of the elements."""
        return self


@dataclasses.dataclass(frozen=True)
class QuarterTurns:
    """Entry g of `moves` is the element of `dihedral(4)` by which g moves a square."""

    moves: Table

    rank = 2
    exact = True
    example = (4, 4)

    def on(self, shape: tuple[int, ...]) -> GridAction:
        """The action on square grids, and on features on C4 or D4 above such a grid, f(s, k) to f(g⁻¹s, g⁻¹k)."""
        if len(shape) not in (2, 3) or shape[0] != shape[1]:
            fix = "Quarter turns need square grids: pad or crop the image, or choose a stride that keeps it square."
            raise refusal("shape", expected="that of a square grid", got=shape, fix=fix)
        points, moves = np.arange(math.prod(shape)).reshape(shape), self.moves.entries.tolist()
        moved = [move_square(g, points, (0, 1)) for g in moves]
        if len(shape) == 3:
            moved = [image[..., _orientations(g, shape[2])] for g, image in zip(moves, moved, strict=True)]
        return _exact(shape, moved)

    def restricted(self, embedding: tuple[int, ...]) -> "QuarterTurns":
        """The same for some of the elements."""
        return QuarterTurns(Table(self.moves.entries[list(embedding)]))


@dataclasses.dataclass(frozen=True)
class Shifts:
    """Row g of `steps` says by how many parts of the grid it moves along each axis, of which it has `parts`."""

    steps: Table
    parts: tuple[int, ...]

    exact = True

    @property
    def rank(self) -> int:
        """One for sequences, two for images."""
        return len(self.parts)

    @property
    def example(self) -> tuple[int, ...]:
        """The smallest grid it acts on."""
        return self.parts

    def on(self, shape: tuple[int, ...]) -> GridAction:
        """The action on grids that can be divided into the parts."""
        if len(shape) != self.rank or any(size % part for size, part in zip(shape, self.parts, strict=True)):
            fix = "Translate by fewer steps, or choose a stride that divides the step."
            raise refusal("shape", expected=f"a grid of multiples of {self.parts}", got=shape, fix=fix)
        points = np.arange(math.prod(shape)).reshape(shape)
        scale, axes = np.array(shape) // self.parts, tuple(range(self.rank))
        return _exact(shape, [np.roll(points, step * scale, axis=axes) for step in self.steps.entries])

    def restricted(self, embedding: tuple[int, ...]) -> "Shifts":
        """The same for some of the elements."""
        return Shifts(Table(self.steps.entries[list(embedding)]), self.parts)


@dataclasses.dataclass(frozen=True)
class Relabellings:
    """Row g of `sources` says which node each node's place is taken from."""

    sources: Table

    rank = 1
    exact = True

    @property
    def example(self) -> tuple[int, ...]:
        """The one grid it acts on."""
        return (self.sources.entries.shape[1],)

    def on(self, shape: tuple[int, ...]) -> GridAction:
        """The action on the axis of nodes."""
        if shape != self.example:
            fix = "The permutations move that many nodes."
            raise refusal("shape", expected=f"{self.example}, an axis of nodes", got=shape, fix=fix)
        return GridAction(shape, Table(self.sources.entries[:, None]))

    def restricted(self, embedding: tuple[int, ...]) -> "Relabellings":
        """The same for some of the elements."""
        return Relabellings(Table(self.sources.entries[list(embedding)]))


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
        """Half turns map every grid to itself; nothing else does, whatever its shape."""
        return bool((2 * self.steps.entries % self.fold == 0).all())

    def on(self, shape: tuple[int, ...]) -> GridAction:
        """The action on grids of any shape, about their centre: each value comes from where its point was before."""
        if len(shape) != 2:
            raise refusal("shape", expected="two numbers", got=shape, fix="Images have a height and a width.")
        rows, columns = np.indices(shape).reshape(2, -1)
        centre = (np.array(shape) - 1) / 2
        right, up = columns - centre[1], centre[0] - rows
        turned = SO2.grid(self.fold)[self.steps.entries % self.fold]
        before = np.einsum("gji,jp->gip", turned, np.stack([right, up]))  # the transpose turns back
        neighbours, weights = _interpolation(centre[0] - before[:, 1], centre[1] + before[:, 0], shape, self.order)
        if self.exact:
            return GridAction(shape, Table(neighbours[:, :1]))
        return GridAction(shape, Table(neighbours), Table(weights))

    def restricted(self, embedding: tuple[int, ...]) -> "Rotations":
        """The same for some of the elements."""
        return Rotations(Table(self.steps.entries[list(embedding)]), self.fold, self.order)


Domain = Nowhere | QuarterTurns | Shifts | Relabellings | Rotations


@functools.lru_cache(maxsize=128)
def grid_action(domain: Domain, shape: tuple[int, ...]) -> GridAction:
    """The action on a grid of this shape, computed once; a single point stays where it is."""
    return domain.on(shape) if shape else GridAction(())


def _orientations(g: int, count: int) -> np.ndarray:
    """g⁻¹k for all k of C4 (`count` 4) or D4 (`count` 8), for an element g of D4."""
    if count not in (4, 8) or (g >= 4 and count == 4):
        fix = "Features on D4 have an axis of 8 orientations; those on C4 one of 4, among which flips do not act."
        raise refusal("shape", expected="a grid, or one with an axis of the group", got=f"an axis of {count}", fix=fix)
    D4 = dihedral(4)
    return D4.table[D4.inverse[g], :count]


def _exact(shape: tuple[int, ...], sources: list[np.ndarray]) -> GridAction:
    return GridAction(shape, Table(np.array(sources, dtype=np.int32).reshape(len(sources), 1, -1)))


def _interpolation(
    rows: np.ndarray, columns: np.ndarray, shape: tuple[int, ...], order: int
) -> tuple[np.ndarray, np.ndarray]:
    """Grid points around the given places and their weights, [order, neighbours, points]; outside the weight is 0."""
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
