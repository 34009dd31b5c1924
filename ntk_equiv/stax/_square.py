"""Symmetries of the square: quarter turns, with or without flips, of grids, and their products.

Elements are numbered as those of `groups.cyclic(4)` and `groups.dihedral(4)` under `reps.rot90`: g = 0..3 turns an
image counter-clockwise g times, 4 + k flips it left to right and then turns it k times. With (gx)(a) = x(g⁻¹a),

    `table[g, h]` = gh,        `relative[g, g']` = g'g⁻¹

A window respects them if it is square and covers the grid symmetrically: as many cells of padding before as behind, and
a last position that ends exactly where the grid does.
"""

from dataclasses import dataclass
from functools import cached_property

import jax.numpy as jnp
import numpy as np

from ntk_equiv._check import one_of, refusal
from ntk_equiv._typing import Array
from ntk_equiv.stax._window import Window, channels_first_hint

ORDERS = {"C4": 4, "D4": 8}


@dataclass(frozen=True)
class SquareGroup:
    """C4, the quarter turns, or D4, the quarter turns and flips."""

    name: str

    @classmethod
    def of(cls, name: str) -> "SquareGroup":
        """The group of that name."""
        return cls(one_of(name, tuple(ORDERS), "group"))

    @property
    def order(self) -> int:
        """The number of elements."""
        return ORDERS[self.name]

    def move(self, g: int, x: Array, axes: tuple[int, int]) -> Array:
        """`x` turned and flipped by g along two axes of equal size: (gx)(a) = x(g⁻¹a).

        >>> SquareGroup("D4").move(5, jnp.array([[1, 2], [3, 4]]), (0, 1)).tolist()
        [[1, 3], [2, 4]]
        """
        return jnp.rot90(jnp.flip(x, axes[1]) if g >= 4 else x, g % 4, axes)

    @cached_property
    def table(self) -> np.ndarray:
        """The product gh of all pairs of elements."""
        points = np.arange(9).reshape(3, 3)
        images = [_moved(g, points) for g in range(self.order)]
        number = {image.tobytes(): g for g, image in enumerate(images)}
        return np.array([[number[_moved(g, image).tobytes()] for image in images] for g in range(self.order)])

    @cached_property
    def inverse(self) -> np.ndarray:
        """The inverse of all elements."""
        return np.argmin(self.table, axis=1)

    @cached_property
    def relative(self) -> np.ndarray:
        """The element g'g⁻¹ that leads from g to g', for all pairs."""
        return self.table[:, self.inverse].T

    def check_grid(self, grid: tuple[int, ...], *, lifted: bool) -> tuple[int, int]:
        """The square grid of pixels, if `grid` is one, followed by the axis of the group if `lifted`."""
        expected = 2 + lifted
        if len(grid) != expected or grid[0] != grid[1] or (lifted and grid[2] != self.order):
            axes = f"[n, h, h, {self.order}, channels], features on the group {self.name}" if lifted else None
            fix = "Put `LiftingConv` before it." if lifted else "Pad or crop the images; on features use `GroupConv`."
            fix += channels_first_hint(grid)
            raise refusal("x", expected=axes or "[n, h, h, channels], square images", got=f"positions {grid}", fix=fix)
        return grid[0], grid[1]

    def check_coverage(self, window: Window, grid: tuple[int, int]) -> None:
        """Refuse a window that does not cover `grid` symmetrically: the layer would not be equivariant."""
        (before, behind), _ = window.pads(grid)
        left_over = (grid[0] + before + behind - window.shape[0]) % window.strides[0]
        if before != behind or left_over:
            got = f"{before} cells of padding before, {behind} behind, and {left_over} left over on a grid {grid}"
            fix = 'Use an odd filter for "SAME" and "CIRCULAR", and a stride that divides the way of the filter.'
            raise refusal("padding, strides", expected=f"such that {self.name} is respected", got=got, fix=fix)


def _moved(g: int, x: np.ndarray) -> np.ndarray:
    return np.rot90(x[:, ::-1] if g >= 4 else x, g % 4)
