"""How densely a finite set of elements lies in a continuous group, as a representation sees it.

    ε = max_{g ∈ G} min_{g' ∈ A} ‖ρ_X(g) − ρ_X(g')‖

SO(2), frequencies m, elements at the angles a_j:   ε = max_θ min_j max_m 2|sin(m(θ − a_j)/2)|, jointly over the
frequencies, enclosed to rounding by branch and bound. For one frequency and C_k it is 2 sin(π gcd(m, k)/(2k)).

SO(3): ‖ρ(g) − ρ(g')‖ = F(ω) with ω the angle between g and g', F(ω) = max_m 2|sin(mω/2)|. The covering angle ω_A, the
largest angle of any rotation from its nearest element of A, comes from the convex hull of the quaternions ±q of A: the
unit quaternions furthest from all of them are the normals of its facets, at the offset cos(ω_A/2). Then

    min_{ω ≥ ω_A} F(ω)  ≤  ε  ≤  max_{ω ≤ ω_A} F(ω),

equal for the vector representation, where ε = 2 sin(ω_A/2). Where they differ, branch and bound takes over.
"""

import dataclasses

import jax
import numpy as np
from scipy.spatial import ConvexHull
from scipy.spatial.transform import Rotation

from ntk_equiv._check import positive_integer, real_array, refusal, scalar
from ntk_equiv.bounds._branch_and_bound import Cells, angles_between, are_redundant, cover_group, enclose_maximum
from ntk_equiv.bounds._checks import Numbers
from ntk_equiv.bounds._continuous_group import (
    ContinuousAction,
    check_continuous_action,
    distance,
    frequencies,
    group_of,
    largest_distance,
    matrices,
)
from ntk_equiv.bounds._results import Enclosure
from ntk_equiv.groups import SO2, SO3, ContinuousGroup, FiniteGroup
from ntk_equiv.reps import Representation

ROUNDING = 1e-12
# How far the matrices of a subgroup may be from the group: they may come in single precision.
CLOSE = 1e-4
# From more elements on, forming all products to see whether a set is a group costs more than knowing it saves.
MOST_ELEMENTS = 120


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class DiscretizationError(Enclosure):
    """ε, between two certified values; it counts as the upper one.

    Attributes:
        lower: attained, by an element of the group that was evaluated.
        upper: exceeded by no element.
        certified: True; where nothing better is known, the upper value is 2.
        converged: whether the two are as close as `rtol` asks for.
        angle: the largest angle of a rotation from the nearest element of the set; None for groups other than SO(2)
            and SO(3).

    Example:
        >>> from ntk_equiv import bounds, groups
        >>> found = bounds.discretization_error(groups.SO2, groups.SO2.finite(4))
        >>> round(found.angle, 4), found.exact, round(float(found), 4)      # π/4, and 2 sin(π/8)
        (0.7854, True, 0.7654)
    """

    lower: float
    upper: float
    angle: float | None

    @property
    def exact(self) -> bool:
        """Whether both values agree to rounding."""
        return bool(self.upper - self.lower <= 10 * ROUNDING)


def discretization_error(
    rep: ContinuousAction, subgroup: FiniteGroup | Numbers, *, rtol: float = 1e-3, max_cells: int = 100_000
) -> DiscretizationError:
    """ε = max_g min_{g'} ‖ρ_X(g) − ρ_X(g')‖, the distance of a continuous group from a finite set of its elements.

    It is exact up to rounding for all representations of SO(2), and for the vector representation and many others of
    SO(3). Otherwise it lies between two certified values.

    Args:
        rep: an orthogonal representation of a continuous group, or the group itself for its own matrices.
        subgroup: a finite group of matrices such as `groups.SO2.finite(8)`, or matrices [count, n, n]. They need not be
            a subgroup here; bounds on the invariance error need one.
        rtol: for SO(3), the relative width at which the search for the value ends.
        max_cells: for SO(3), how many cells the search may evaluate.

    Raises:
        ValueError: the elements are not in the group, or the representation is not orthogonal.

    Example:
        >>> from ntk_equiv import bounds, groups
        >>> bounds.discretization_error(groups.SO2, groups.SO2.finite(6))       # 2 sin(15°)
        <between 0.518 and 0.518, certified>
        >>> found = bounds.discretization_error(groups.SO3, groups.SO3.finite("I"))
        >>> round(found.angle * 180 / 3.141592653589793, 2), found.exact
        (44.48, True)
    """
    rep = check_continuous_action(rep)
    scalar(rtol, "rtol", at_least=0)
    positive_integer(max_cells, "max_cells")
    return enclose_discretization_error(rep, _check_elements(group_of(rep), subgroup), rtol, max_cells)


def enclose_discretization_error(
    rep: Representation, elements: np.ndarray, rtol: float = 1e-3, max_cells: int = 100_000
) -> DiscretizationError:
    """Return the result of `discretization_error` for matrices that are elements of the group."""
    if rep.group == SO2:
        lower, upper = _error_in_plane(frequencies(rep), elements)
    elif rep.group == SO3:
        lower, upper = _error_in_space(frequencies(rep), elements, rtol, max_cells)
    else:
        lower, upper = _error_in_other_group(rep, elements, rtol, max_cells)
    converged = upper - lower <= max(rtol * lower, 10 * ROUNDING)
    angle = covering_angle(elements) if rep.group in (SO2, SO3) else None
    return DiscretizationError(lower, upper, True, angle, converged=bool(converged))


def covering_angle(elements: np.ndarray) -> float:
    """Return the largest angle of any rotation from the nearest of the elements [count, d, d] of SO(2) or SO(3)."""
    if elements.shape[1] == 2:
        angles = np.sort(np.arctan2(elements[:, 1, 0], elements[:, 0, 0]))
        return float(np.max(np.diff(np.append(angles, angles[0] + 2 * np.pi)))) / 2
    return float(np.max(2 * np.arccos(np.clip(_deep_holes(elements)[1], 0, 1))))


def _deep_holes(elements: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the quaternions that are locally furthest from the ±q of rotations, and the cosines of these angles."""
    quaternions = Rotation.from_matrix(np.array(elements)).as_quat()  # a copy, because old SciPy writes to it
    _, singular, directions = np.linalg.svd(quaternions)
    flat = directions[np.append(singular, np.zeros(4))[:4] < 1e-9 * singular[0]]
    if len(flat):  # a direction orthogonal to all: half a turn away from every element
        return flat, np.zeros(len(flat))
    facets = ConvexHull(np.concatenate([quaternions, -quaternions])).equations
    return facets[:, :4], -facets[:, 4]


def _check_elements(group: ContinuousGroup, subgroup: FiniteGroup | Numbers) -> np.ndarray:
    """Return the matrices of a finite group, or of any finite set, if they are elements of the continuous group."""
    given = subgroup.matrices if isinstance(subgroup, FiniteGroup) else real_array(subgroup, "subgroup")
    mats = np.array(given, dtype=float)
    if mats.ndim != 3 or not len(mats) or not group.contains(mats, tol=CLOSE):
        got = "a group without matrices" if mats.ndim == 0 else f"an array of shape {mats.shape}"
        fix = "Make it with `finite` of the continuous group, or pass matrices [count, n, n] from it."
        raise refusal("subgroup", expected=f"elements of {group}", got=got, fix=fix)
    return mats


def _error_in_plane(m: np.ndarray, elements: np.ndarray) -> tuple[float, float]:
    """Enclose ε to rounding for a representation of SO(2) with the frequencies `m`."""
    angles = np.sort(np.arctan2(elements[:, 1, 0], elements[:, 0, 0]))
    angles = angles - angles[0]
    # For equal steps ε(θ) is periodic and even. Elsewhere the whole circle is searched.
    step = 2 * np.pi / len(angles)
    regular = np.allclose(angles, step * np.arange(len(angles)), atol=1e-6)

    def evaluate(cells: Cells) -> tuple[np.ndarray, np.ndarray]:
        away = distance(m, cells.centre - angles[None, :]).min(axis=1)
        return away, largest_distance(m, cells.radius)

    start = cover_group(SO2, step / 2 if regular else 2 * np.pi)
    found = enclose_maximum(evaluate, start, rtol=0.0, atol=ROUNDING, max_cells=10**6, ceiling=2.0)
    return found.lower, found.upper


def _error_in_space(m: np.ndarray, elements: np.ndarray, rtol: float, max_cells: int) -> tuple[float, float]:
    """Enclose ε for a representation of SO(3) with the frequencies `m`: by the covering angle, else by search."""
    angle = covering_angle(elements)
    lower, upper = _smallest_distance_beyond(m, angle), float(largest_distance(m, angle))
    if upper - lower <= ROUNDING:
        return lower, upper
    closed = _is_closed(elements)

    def evaluate(cells: Cells) -> tuple[np.ndarray, np.ndarray]:
        away = angles_between(cells.elements, elements)
        slack = largest_distance(m, cells.radius)
        if closed:
            slack = np.where(are_redundant(cells, away), -np.inf, slack)
        return distance(m, away).min(axis=1), slack

    found = enclose_maximum(evaluate, cover_group(SO3), rtol=rtol, atol=0.0, max_cells=max_cells, ceiling=upper)
    return max(lower, found.lower), found.upper


def _is_closed(elements: np.ndarray) -> bool:
    """Return whether rotations [count, 3, 3] are known to be a group."""
    if len(elements) > MOST_ELEMENTS:
        return False
    products = (elements[:, None] @ elements[None]).reshape(-1, 3, 3)
    return bool((angles_between(products, elements).min(axis=1) < 1e-6).all())


def _smallest_distance_beyond(m: np.ndarray, angle: float) -> float:
    """Return min F(ω) over ω ≥ `angle`: it lies at an end, or where two of the sines cross."""
    m = m[m > 0]
    if not m.size:
        return 0.0
    # |sin(aω/2)| = |sin(bω/2)| where (a ± b)ω is a multiple of 2π.
    slopes = np.unique(np.abs(np.concatenate([(m[:, None] + m).ravel(), (m[:, None] - m).ravel()])))
    crossings = [2 * np.pi * np.arange(1, s // 2 + 1) / s for s in slopes[slopes > 0]]
    angles = np.concatenate([[angle, np.pi], *crossings])
    return float(distance(m, angles[angles >= angle]).min())


def _error_in_other_group(
    rep: Representation, elements: np.ndarray, rtol: float, max_cells: int
) -> tuple[float, float]:
    """Enclose ε from below by draws; from above, in the plane and in space, by the elements of each determinant."""
    group = group_of(rep)
    ours, theirs = matrices(rep, elements), matrices(rep, group.sample(jax.random.key(0), 256))
    lower = max(float(np.linalg.norm(g - ours, ord=2, axis=(1, 2)).min()) for g in theirs)
    flipped = np.linalg.det(elements) < 0
    if group.n > 3 or flipped.all() or not flipped.any():
        return lower, 2.0
    # A reflection maps the component of determinant −1 to the rotations.
    mirror = np.diag([-1.0] + [1.0] * (group.n - 1))
    parts = (elements[~flipped], mirror @ elements[flipped])
    if group.n == 2:
        return lower, max(_error_in_plane(frequencies(rep), part)[1] for part in parts)
    return lower, max(_error_in_space(frequencies(rep), part, rtol, max_cells)[1] for part in parts)
