"""SO(2) and SO(3) cut into cells that can be cut further, each with a proven radius.

SO(2): intervals of the angle; the radius is half their length.

SO(3): a rotation is a pair ±q of unit quaternions, and every unit quaternion is, up to its sign, p/‖p‖ for a p on one
of the four faces p_f = 1 of the cube [−1, 1]⁴. Cells are cubes on these faces. If ‖p − c‖ ≤ s√3, half the diagonal,

    ‖ p/‖p‖ − c/‖c‖ ‖  ≤  ‖p − c‖ / √(‖p‖‖c‖),     ‖p‖ ≥ max(1, ‖c‖ − s√3),

and quaternions at distance χ belong to rotations that differ by an angle of at most 4 arcsin(χ/2).
"""

import dataclasses
import itertools

import numpy as np
from scipy.spatial.transform import Rotation

from ntk_equiv._check import refusal
from ntk_equiv.groups import SO2, SO3, ContinuousGroup


@dataclasses.dataclass(frozen=True)
class Cells:
    """Cells of SO(2) or SO(3).

    Attributes:
        centre: the angle [count, 1], or the point on the surface of the cube [count, 4].
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
        return rotations(self.centre[:, 0])

    @property
    def radius(self) -> np.ndarray:
        """An angle that no element of the cell is further away than from the centre."""
        if self.centre.shape[1] == 1:
            return np.minimum(self.half, np.pi)
        norm, diagonal = np.linalg.norm(self.centre, axis=1), np.sqrt(3) * self.half
        distance = diagonal / np.sqrt(norm * np.maximum(1, norm - diagonal))
        return np.minimum(4 * np.arcsin(np.minimum(distance / 2, 1)), np.pi)

    @property
    def pieces(self) -> int:
        """Into how many a cell is cut: halves of an interval, eighths of a cube."""
        return 2 if self.centre.shape[1] == 1 else 8

    def split(self) -> "Cells":
        """The pieces of all cells, those of one cell side by side."""
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


def cells(group: ContinuousGroup, angle: float = 2 * np.pi) -> Cells:
    """Cells that cover the group; of SO(2), the rotations by 0 to `angle`."""
    if group == SO2:
        return Cells(np.array([[angle / 2]]), np.array([angle / 2]), np.zeros(1, dtype=int))
    if group == SO3:
        return Cells(np.eye(4), np.ones(4), np.arange(4))
    fix = "Other groups have no cells here; `measured_continuous_deviation` draws from any."
    raise refusal("rep", expected="a representation of SO(2) or SO(3)", got=f"one of {group}", fix=fix)


def rotations(angles: np.ndarray) -> np.ndarray:
    """The matrices of SO(2)."""
    cosine, sine = np.cos(angles), np.sin(angles)
    return np.stack([cosine, -sine, sine, cosine], axis=-1).reshape(*angles.shape, 2, 2)


def angles_between(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The angle of each rotation on the left [n, d, d] from each on the right [m, d, d], in [0, π]; d is 2 or 3."""
    difference = np.linalg.norm(left[:, None] - right[None], axis=(2, 3)) / np.sqrt(8)  # sin(angle/2), also for d = 3
    return 2 * np.arcsin(np.minimum(difference, 1))


def beyond(parts: Cells, away: np.ndarray) -> np.ndarray:
    """Which cells hold no rotation that is closer to the identity than to all elements of a subgroup.

    A function with f(ag) = f(g) for all a of the subgroup attains all its values on the others.

    Args:
        parts: the cells.
        away: the angles of their centres from the elements of the subgroup, [cells, elements].
    """
    identity = np.broadcast_to(np.eye(parts.elements.shape[1]), (1, *parts.elements.shape[1:]))
    own = angles_between(parts.elements, identity)[:, 0]
    return own - away.min(axis=1) > 2 * parts.radius
