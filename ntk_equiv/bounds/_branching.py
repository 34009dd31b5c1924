"""Branch and bound: the maximum of a function over a group, enclosed from both sides.

On a cell with centre g₀ the function is at most f(g₀) + slack. The largest value at a centre is attained, the largest
bound over all cells is not exceeded; cells with the largest bounds are cut until the two meet, or until as many cells
have been looked at as were paid for.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ntk_equiv.bounds._cells import Cells

BATCH = 128


class Maximum(NamedTuple):
    """A maximum between `lower`, attained at `element`, and `upper`, after looking at `cells` cells."""

    lower: float
    upper: float
    element: np.ndarray
    cells: int


def maximum(
    bounded: Callable[[Cells], tuple[np.ndarray, np.ndarray]],
    start: Cells,
    *,
    rtol: float,
    atol: float,
    max_cells: int,
    ceiling: float = np.inf,
) -> Maximum:
    """The maximum over the cells of `start`.

    Args:
        bounded: for cells, the values at their centres and the slacks; at most `BATCH` · 8 cells at a time.
        start: cells that cover the domain.
        rtol: relative width at which to stop.
        atol: absolute width at which to stop.
        max_cells: how many cells to look at, at most (but at least those of `start`).
        ceiling: a bound on the function that is known before.
    """
    cells, value, slack = start, *bounded(start)
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
        first, rest = order[: min(BATCH, room)], order[min(BATCH, room) :]
        parts = cells[first].split()
        value, slack = bounded(parts)
        # A part is never worse than the cell it was cut from.
        inherited = np.repeat(bound[first], cells.pieces)
        count, best = count + len(parts), int(np.argmax(value))
        if value[best] > lower:
            lower, element = float(value[best]), parts.elements[best]
        cells, bound = cells[rest] + parts, np.concatenate([bound[rest], np.minimum(value + slack, inherited)])
