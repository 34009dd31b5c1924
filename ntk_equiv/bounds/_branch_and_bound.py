"""Branch and bound: the maximum of a function over SO(2) or SO(3), enclosed from both sides.

The group is cut into cells, each with a proven radius. On a cell with centre g₀ the function is at most f(g₀) + slack.
The largest value at a centre is attained. The largest bound over all cells is not exceeded. Cells with the largest
bounds are cut until the two meet, or until as many cells have been evaluated as were paid for.

SO(2): cells are intervals of the angle, and the radius is half their length.

SO(3): a rotation is a pair ±q of unit quaternions, and every unit quaternion is, up to its sign, p/‖p‖ for a p on one
of the four faces p_f = 1 of the cube [−1, 1]⁴. Cells are cubes on these faces. If ‖p − c‖ ≤ s√3, half the diagonal,

    ‖ p/‖p‖ − c/‖c‖ ‖  ≤  ‖p − c‖ / √(‖p‖‖c‖),     ‖p‖ ≥ max(1, ‖c‖ − s√3),

and quaternions at distance χ belong to rotations that differ by an angle of at most 4 arcsin(χ/2).
"""

import dataclasses
import itertools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.spatial.transform import Rotation

from ntk_equiv._check import refusal
from ntk_equiv.groups import SO2, SO3, ContinuousGroup

# Cells that are cut in one step, so that their pieces are evaluated together.
CELLS_AT_ONCE = 128


@dataclasses.dataclass(frozen=True)
class Cells:
    """Cells of SO(2) or SO(3).

    Attributes:
        centre: the angle [count, 1], or p on the surface of the cube [count, 4].
        half: half the length of an edge, [count].
        face: the coordinate that is 1, [count]; 0 for SO(2).
    """

    centre: np.ndarray
    half: np.ndarray
    face: np.ndarray

    def __len__(self) -> int:
        return len(self.half)

    def __getitem__(self, which: np.ndarray) -> "Cells":
        return Cells(self.centre[which], self.half[which], self.face[which])

    def __add__(self, other: "Cells") -> "Cells":
        return Cells(*(np.concatenate(pair) for pair in zip(self._fields, other._fields, strict=True)))

    @property
    def _fields(self) -> tuple[np.ndarray, ...]:
        return self.centre, self.half, self.face

    @property
    def elements(self) -> np.ndarray:
        """The matrices of the centres."""
        if self.centre.shape[1] == 4:
            return Rotation.from_quat(self.centre).as_matrix()
        return plane_rotations(self.centre[:, 0])

    @property
    def radius(self) -> np.ndarray:
        """A bound on the angle between the centre of each cell and any of its elements."""
        if self.centre.shape[1] == 1:
            return np.minimum(self.half, np.pi)
        norm, diagonal = np.linalg.norm(self.centre, axis=1), np.sqrt(3) * self.half
        distance = diagonal / np.sqrt(norm * np.maximum(1, norm - diagonal))
        return np.minimum(4 * np.arcsin(np.minimum(distance / 2, 1)), np.pi)

    @property
    def pieces(self) -> int:
        """The number of pieces of a cell when it is cut: halves of an interval, eighths of a cube."""
        return 2 if self.centre.shape[1] == 1 else 8

    def split(self) -> "Cells":
        """Cut all cells; the pieces of one cell stand side by side."""
        axes = self.centre.shape[1]
        corners = np.array(list(itertools.product((-0.5, 0.5), repeat=1 if axes == 1 else 3)))
        steps = np.zeros((len(self), len(corners), axes))
        if axes == 1:
            steps[:] = corners
        else:
            for face in range(4):
                free = [axis for axis in range(4) if axis != face]
                steps[np.ix_(self.face == face, range(len(corners)), free)] = corners
        centre = self.centre[:, None] + self.half[:, None, None] * steps
        return Cells(centre.reshape(-1, axes), np.repeat(self.half / 2, self.pieces), np.repeat(self.face, self.pieces))


def cover_group(group: ContinuousGroup, angle: float = 2 * np.pi) -> Cells:
    """Return cells that cover the group; for SO(2), those that cover the rotations by 0 to `angle`."""
    if group == SO2:
        return Cells(np.array([[angle / 2]]), np.array([angle / 2]), np.zeros(1, dtype=int))
    if group == SO3:
        return Cells(np.eye(4), np.ones(4), np.arange(4))
    fix = "Only these two are cut into cells; `measured_continuous_deviation` takes any group."
    raise refusal("rep", expected="a representation of SO(2) or SO(3)", got=f"one of {group}", fix=fix)


def plane_rotations(angles: np.ndarray) -> np.ndarray:
    """Return the matrices of SO(2) with these angles, [..., 2, 2]."""
    cosine, sine = np.cos(angles), np.sin(angles)
    return np.stack([cosine, -sine, sine, cosine], axis=-1).reshape(*angles.shape, 2, 2)


def angles_between(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the angle between each rotation on the left [n, d, d] and each on the right [m, d, d]; d is 2 or 3."""
    # For d = 2 as for d = 3, the Frobenius norm of the difference is √8 sin(angle/2).
    difference = np.linalg.norm(left[:, None] - right[None], axis=(2, 3)) / np.sqrt(8)
    return 2 * np.arcsin(np.minimum(difference, 1))


def are_redundant(cells: Cells, away: np.ndarray) -> np.ndarray:
    """Return which cells are closer to another element of a subgroup than to the identity, with all their rotations.

    A function with f(ag) = f(g) for all a of the subgroup attains all its values on the other cells.

    Args:
        cells: the cells.
        away: the angles of their centres from the elements of the subgroup, [cells, elements].
    """
    identity = np.broadcast_to(np.eye(cells.elements.shape[1]), (1, *cells.elements.shape[1:]))
    own = angles_between(cells.elements, identity)[:, 0]
    # Both angles change by at most the radius within a cell.
    return own - away.min(axis=1) > 2 * cells.radius


class Maximum(NamedTuple):
    """A maximum between `lower`, attained at `element`, and `upper`, after the evaluation of `cells` cells."""

    lower: float
    upper: float
    element: np.ndarray
    cells: int


def enclose_maximum(
    evaluate: Callable[[Cells], tuple[np.ndarray, np.ndarray]],
    start: Cells,
    *,
    rtol: float,
    atol: float,
    max_cells: int,
    ceiling: float = np.inf,
) -> Maximum:
    """Enclose the maximum of a function over the cells of `start`.

    Args:
        evaluate: returns the values at the centres of cells, and the slacks of the cells.
        start: cells that cover the domain.
        rtol: the relative width at which to stop.
        atol: the absolute width at which to stop.
        max_cells: how many cells to evaluate at most; those of `start` are evaluated in any case.
        ceiling: a bound on the function that is known in advance.
    """
    cells, value, slack = start, *evaluate(start)
    count, best = len(start), int(np.argmax(value))
    lower, element = float(value[best]), start.elements[best]
    bound = np.minimum(value + slack, ceiling)
    while True:
        kept = bound > lower
        cells, bound = cells[kept], bound[kept]
        upper = float(np.max(bound, initial=lower))
        room = (max_cells - count) // cells.pieces
        if upper - lower <= atol + rtol * abs(lower) or room < 1:
            return Maximum(lower, upper, element, count)
        order = np.argsort(-bound, kind="stable")
        first, rest = order[: min(CELLS_AT_ONCE, room)], order[min(CELLS_AT_ONCE, room) :]
        parts = cells[first].split()
        value, slack = evaluate(parts)
        # A piece is never worse than the cell it was cut from.
        inherited = np.repeat(bound[first], cells.pieces)
        count, best = count + len(parts), int(np.argmax(value))
        if value[best] > lower:
            lower, element = float(value[best]), parts.elements[best]
        cells, bound = cells[rest] + parts, np.concatenate([bound[rest], np.minimum(value + slack, inherited)])
