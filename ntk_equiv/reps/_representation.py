"""The representation: τ on the channels together with ρ on the points.

    (ρ_X(g)x)(a) = τ_X(g) x(ρ⁻¹(g)a)

For plain vectors there are no points and only τ is left; for the pixels of an image or the nodes of a
graph, ρ moves them, and alone it is ρ_K, the action on kernels.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv._check import arrays, is_concrete, is_listed, real_number, refusal, shown
from ntk_equiv.groups import ContinuousGroup, FiniteGroup
from ntk_equiv.reps import _measure
from ntk_equiv.reps._channels import Channels, check_fits
from ntk_equiv.reps._domains import Domain, Nowhere, Relabellings, Rotations, grid_action
from ntk_equiv.reps._grids import GridAction

Group = FiniteGroup | ContinuousGroup
X = TypeVar("X")


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, repr=False)
class Representation:
    """How a group acts on arrays: `rep(g, x)`.

    Build one with the functions of `ntk_equiv.reps`. Immutable, hashable, passes through `jax.jit` as a static value;
    the action itself can be compiled, differentiated and vmapped, over g too. `x` may be a pytree, every leaf of which
    is acted upon; a graph (anything with `nodes`, `adjacency` and `_replace`) is acted upon as a graph. Floating-point
    arrays keep their dtype.

    Attributes:
        group: the group, finite or continuous.
        channels: τ, the action on the last axis.
        domain: ρ, the action on the points.
        label: a name.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import groups, reps
        >>> rep = reps.permutation(groups.cyclic(3), [[0, 1, 2], [1, 2, 0], [2, 0, 1]])
        >>> rep
        <permutation of cyclic(3) on 3 channels>
        >>> rep(1, jnp.array([10., 20., 30.])).tolist()
        [30.0, 10.0, 20.0]
    """

    group: Group
    channels: Channels
    domain: Domain = dataclasses.field(default_factory=Nowhere)
    label: str = dataclasses.field(default="representation", compare=False)

    def __repr__(self) -> str:
        what = {0: "", 1: f"{self._positions}, ", 2: "images, "}[self.domain.rank]
        return f"<{self.label} of {self.group.label} on {what}{self.dim or 'any number of'} channels>"

    @property
    def _positions(self) -> str:
        """What a single axis of positions counts."""
        return "nodes" if isinstance(self.domain, Relabellings) else "sequences"

    @property
    def dim(self) -> int | None:
        """The number of channels it acts on; None if it acts on any number."""
        return self.channels.dim

    @property
    def exact(self) -> bool:
        """Whether it is a representation, ρ(g)ρ(h) = ρ(gh), rather than an interpolation of one."""
        return self.domain.exact

    def __call__(self, g: Any, x: X, /) -> X:
        """ρ(g)x.

        Args:
            g: an element: an integer (which may be traced) of a finite group, a matrix of a continuous one.
            x: arrays [..., channels], [..., H, W, channels] for images, or a graph.

        Raises:
            ValueError: g is not in the group, or x does not have the shape that the group acts on.

        Example:
            >>> import jax.numpy as jnp
            >>> from ntk_equiv import groups, reps
            >>> image = jnp.arange(4.).reshape(2, 2, 1)
            >>> reps.rot90(groups.cyclic(4))(1, image)[..., 0].tolist()
            [[1.0, 3.0], [0.0, 2.0]]
        """
        g = self._element(g)
        return jax.tree.map(lambda leaf: self._act(g, leaf), arrays(x, "x"), is_leaf=_is_graph)

    def orbit(self, x: X, /, elements: Any = None) -> X:
        """ρ(g)x for every element.

        Args:
            x: as in a call.
            elements: integers of a finite group instead of all of them; matrices [count, n, n] of a continuous one.

        Returns:
            `x` with a new first axis that counts the elements.

        Example:
            >>> import jax.numpy as jnp
            >>> from ntk_equiv import groups, reps
            >>> reps.regular(groups.cyclic(3)).orbit(jnp.array([[1., 2., 3.]])).tolist()
            [[[1.0, 2.0, 3.0]], [[3.0, 1.0, 2.0]], [[2.0, 3.0, 1.0]]]
        """
        return jax.vmap(lambda g: self(g, x))(self.elements(elements))

    def elements(self, elements: Any = None, /) -> Any:
        """The given elements as one array, integers [count] or matrices [count, n, n]; by default a whole finite group.

        Example:
            >>> from ntk_equiv import groups, reps
            >>> reps.regular(groups.cyclic(4)).elements()
            array([0, 1, 2, 3])
        """
        if isinstance(self.group, FiniteGroup):
            if elements is None:
                return np.arange(self.group.order)
            if is_concrete(elements):
                if np.ndim(elements) != 1 or len(elements) == 0:
                    fix = f"List integers from 0 to {self.group.order - 1}, or leave `elements` out for all."
                    raise refusal("elements", expected="a list of elements", got=shown(elements), fix=fix)
                return np.array([self.group.element(g, "elements") for g in np.asarray(elements).tolist()], dtype=int)
            return elements
        n = self.group.n
        if elements is None or jnp.ndim(elements) != 3 or jnp.shape(elements)[1:] != (n, n):
            got = "nothing" if elements is None else f"shape {jnp.shape(elements)}"
            fix = "A continuous group has too many elements: draw some with `group.sample(key, count)`."
            raise refusal("elements", expected=f"matrices [count, {n}, {n}] of {self.group}", got=got, fix=fix)
        return jnp.asarray(elements)

    def spatial(self, shape: tuple[int, ...], /) -> GridAction:
        """ρ_K: the action on an output grid of this shape, such as the smaller one of a convolutional network.

        Args:
            shape: the grid, (h, w) or (nodes,); () for outputs without positions; for quarter turns also (h, h, 4) or
                (h, h, 8), features on C4 or D4 as `stax.LiftingConv` makes them, whose orientations are permuted.

        Returns:
            Gather indices per element on the flattened grid, and their application to kernels. The identity for
            vectors, and for the shape ().

        Example:
            >>> from ntk_equiv import groups, reps
            >>> reps.rot90(groups.cyclic(2)).spatial((1, 1)).indices.tolist()
            [[0], [0]]
            >>> reps.trivial(groups.cyclic(2)).spatial((3, 3)).is_identity
            True
        """
        if not is_listed(shape):
            fix = "Pass a tuple, such as (8, 8); () for outputs without positions."
            raise refusal("shape", expected="the sizes of a grid", got=shown(shape), fix=fix)
        return grid_action(self.domain, tuple(int(size) for size in shape))

    def homomorphism_error(self, *, grid: tuple[int, ...] | None = None) -> float:
        """The largest ‖ρ(g)ρ(h) − ρ(gh)‖ over all pairs: the change of an entry, for inputs between −1 and 1.

        Args:
            grid: for images, their shape; 16 × 16 for rotations by interpolation unless given.

        Returns:
            A number, 0 up to rounding for a representation. For a continuous group, the largest over 32 fixed pairs.

        Example:
            >>> from ntk_equiv import groups, reps
            >>> reps.rot90(groups.dihedral(4)).homomorphism_error()
            0.0
            >>> reps.rotate(groups.cyclic(8)).homomorphism_error(grid=(5, 5)) > 0.1
            True
        """
        return _measure.homomorphism_error(self.group, self.channels, self.spatial(grid or self.domain.example))

    def is_orthogonal(self, tol: float = 1e-5, *, grid: tuple[int, ...] | None = None) -> bool:
        """Whether ρ(g)ρ(g)† = 1 for all g, up to `tol`: lengths and inner products are kept.

        Args:
            tol: the largest deviation of an entry.
            grid: for images, their shape; 16 × 16 for rotations by interpolation unless given.

        Example:
            >>> from ntk_equiv import groups, reps
            >>> reps.regular(groups.symmetric(3)).is_orthogonal()
            True
            >>> reps.rotate(groups.cyclic(8)).is_orthogonal()
            False
        """
        error = _measure.orthogonality_error(self.group, self.channels, self.spatial(grid or self.domain.example))
        return error <= real_number(tol, "tol")

    def _element(self, g: Any) -> Any:
        if isinstance(self.group, FiniteGroup):
            if isinstance(g, jax.Array | np.ndarray) and g.ndim == 0:
                if not is_concrete(g):
                    return g
                g = g.item()
            return self.group.element(g)
        n = self.group.n
        if jnp.shape(g) != (n, n):
            fix = "An element of a continuous group is its matrix; act with many through `orbit`."
            raise refusal("g", expected=f"a matrix [{n}, {n}] of {self.group}", got=f"shape {jnp.shape(g)}", fix=fix)
        return jnp.asarray(g)

    def _act(self, g: Any, x: Any) -> Any:
        if not _is_graph(x):
            return self._act_on_array(g, x)
        nodes = self._act_on_array(g, x.nodes)
        if self.domain.rank != 1:
            return x._replace(nodes=nodes)
        move: Callable = self.spatial(x.nodes.shape[-2:-1]).move
        adjacency = move(g, move(g, x.adjacency, (-2,)), (-1,))
        return x._replace(nodes=nodes, adjacency=adjacency)

    def _act_on_array(self, g: Any, x: jax.Array) -> jax.Array:
        rank = self.domain.rank
        if rank:
            x = self._grid_of(x.shape).move(g, x, tuple(range(-rank - 1, -1)))
        check_fits(self.channels, x.shape)
        return self.channels(g, x)

    def _grid_of(self, shape: tuple[int, ...]) -> GridAction:
        """The action on the positions of an array of this shape, if its axes are in the right order."""
        rank = self.domain.rank
        expected = {1: f"{self._positions} [..., N, channels]", 2: "images [..., H, W, channels], channels last"}[rank]
        if len(shape) < rank + 1:
            fix = "Add an axis of channels at the end, of size 1 if there is none."
            raise refusal("x", expected=expected, got=f"shape {shape}", fix=fix)
        # An interpolated rotation acts on grids of any shape, and would turn channels and rows into each other.
        grid, suspicious = shape[-rank - 1 : -1], rank == 2 and _has_channels_first(shape)
        try:
            if not (suspicious and isinstance(self.domain, Rotations)):
                return self.spatial(grid)
        except ValueError:
            if not suspicious:
                raise
        fix = "Move the channels to the end: `jnp.moveaxis(x, -3, -1)`."
        raise refusal("x", expected=expected, got=f"shape {shape}, which looks like channels first", fix=fix)


def _has_channels_first(shape: tuple[int, ...]) -> bool:
    """Whether an array that should be images [..., H, W, channels] looks like [..., channels, H, W]."""
    return shape[-3] in (1, 3, 4) and min(shape[-2:]) > 4


def _is_graph(x: Any) -> bool:
    return all(hasattr(x, name) for name in ("nodes", "adjacency", "_replace"))
