"""ρ_K: how a group acts on the points of one grid, and with it on kernels.

For points a of a grid and a function x on it, flattened in row-major order,

    (ρ_K(g)x)(a) = Σ_k weights[g, k, a] · x(neighbours[g, k, a]),

a single neighbour of weight one where the action is exact: x(ρ⁻¹(g)a). A kernel K[n₁, n₂, h, h', w, w'] has such a grid
for each of its arguments, interleaved, and any number of axes before them:

    left:  ρ_K(g) K        right:  K ρ_K(g)ᵀ        both:  ρ_K(g) K ρ_K(g)ᵀ
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Int
from scipy import sparse

from ntk_equiv._check import refusal
from ntk_equiv.reps._channels import Table


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, repr=False)
class GridAction:
    """The action of a group on the points of a grid, and on kernels with such grids as axes.

    Attributes:
        shape: the shape of the grid; () for a single point.
        neighbours: where the value at each point comes from, [order, neighbours, points]; None if nothing moves.
        weights: the weight of each neighbour, likewise; None if every value is copied from one place.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import groups, reps
        >>> grid = reps.rot90(groups.cyclic(4)).spatial((2, 2))
        >>> grid
        <action on the points of a grid (2, 2): moved exactly>
        >>> grid.indices[1].tolist()        # of the flattened grid: rot90([[0, 1], [2, 3]])
        [1, 3, 0, 2]
        >>> K = jnp.arange(16).reshape(1, 1, 2, 2, 2, 2)     # [n1, n2, h, h', w, w']
        >>> int(grid.both(1, K)[0, 0, 0, 0, 0, 1]) == int(K[0, 0, 0, 1, 1, 1])
        True
    """

    shape: tuple[int, ...]
    neighbours: Table | None = None
    weights: Table | None = None

    def __repr__(self) -> str:
        how = "left as they are" if self.is_identity else "moved exactly" if self.exact else "interpolated"
        return f"<action on the points of a grid {self.shape}: {how}>"

    @property
    def is_identity(self) -> bool:
        """Whether no element moves any point."""
        return self.neighbours is None

    @property
    def exact(self) -> bool:
        """Whether points go to points, so that nothing is interpolated."""
        return self.weights is None

    @property
    def points(self) -> int:
        """The number of points of the grid."""
        return math.prod(self.shape)

    @property
    def indices(self) -> Int[np.ndarray, "order points"]:
        """The point each value comes from, if the action is exact; a single row if no element moves any."""
        if self.neighbours is None:
            return np.arange(self.points, dtype=np.int32)[None]
        if self.weights is not None:
            fix = "Use `neighbours` and `weights`."
            raise refusal("indices", expected="asked of an exact action", got="an interpolated one", fix=fix)
        return self.neighbours.entries[:, 0]

    def left(self, g: Any, kernel: ArrayLike, /) -> jax.Array:
        """ρ_K(g) K: the action on the grid of the first argument."""
        return self.move(g, kernel, tuple(range(-2 * len(self.shape), 0, 2)))

    def right(self, g: Any, kernel: ArrayLike, /) -> jax.Array:
        """K ρ_K(g)ᵀ: the action on the grid of the second argument. For K ρ_K(g), pass the inverse of g."""
        return self.move(g, kernel, tuple(range(1 - 2 * len(self.shape), 0, 2)))

    def both(self, g: Any, kernel: ArrayLike, /) -> jax.Array:
        """ρ_K(g) K ρ_K(g)ᵀ."""
        return self.right(g, self.left(g, kernel))

    def values(self, g: Any, x: ArrayLike, /) -> jax.Array:
        """ρ_K(g)x for functions on the grid, [..., *shape], such as variances."""
        return self.move(g, x, tuple(range(-len(self.shape), 0)))

    def move(self, g: Any, x: ArrayLike, axes: tuple[int, ...], /) -> jax.Array:
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
        moved = jnp.moveaxis(x, axes, leading)
        flat = moved.reshape(self.points, *moved.shape[len(axes) :])
        out = _gathered(flat, neighbours, weights).reshape(moved.shape)
        return jnp.moveaxis(out, leading, axes)

    def matrices(self, order: int) -> list[sparse.csr_array]:
        """ρ_K(g) as sparse matrices [points, points], on the host."""
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


def _gathered(flat: jax.Array, neighbours: Any, weights: Any) -> jax.Array:
    """The weighted sum of neighbours [neighbours, points] along the first axis; a copy of the one there is if exact."""
    if weights is None:
        return jnp.take(flat, neighbours[0], axis=0, mode="clip")
    dtype = flat.dtype if jnp.issubdtype(flat.dtype, jnp.inexact) else jnp.result_type(float)
    around = jnp.take(flat.astype(dtype), neighbours, axis=0, mode="clip")
    return jnp.einsum("kp,kp...->p...", jnp.asarray(weights).astype(dtype), around, precision=jax.lax.Precision.HIGHEST)
