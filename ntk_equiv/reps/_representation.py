"""The representation: τ on the channels together with ρ on the positions.

    (ρ_X(g)x)(a) = τ_X(g) x(ρ⁻¹(g)a)

Plain vectors have no positions, and only τ is left. On images and graphs ρ moves the pixels or nodes; ρ alone is ρ_K,
the action on kernels.

How far an action is from a representation, and from an orthogonal one, is measured in the norm ‖A‖ = max_a Σ_b |A_ab|,
the largest change of an entry for inputs between −1 and 1. Positions that are moved exactly contribute nothing, so τ
alone is measured. Otherwise the operators ρ(g) ⊗ τ(g) are multiplied out as sparse matrices.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from scipy import sparse

from ntk_equiv._check import arrays, describe, instance, is_concrete, is_listed, real_array, real_number, refusal
from ntk_equiv.groups import ContinuousGroup, FiniteGroup
from ntk_equiv.reps._channels import Channels, Element, Identity, MatrixFunction, Permutations, check_last_axis
from ntk_equiv.reps._grids import Domain, GridAction, NodePermutations, NoPositions, Rotations, grid_action

Group = FiniteGroup | ContinuousGroup
X = TypeVar("X")


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, repr=False)
class Representation:
    """How a group acts on arrays: `rep(g, x)`.

    Build one with the functions of `ntk_equiv.reps`. It is immutable and hashable, and passes through `jax.jit` as a
    static value. The action itself can be compiled, differentiated and vmapped, over g too. `x` may be a pytree: the
    group acts on every leaf, and on a graph (anything with `nodes`, `adjacency` and `_replace`) as a graph.
    Floating-point arrays keep their dtype.

    Attributes:
        group: the group, finite or continuous.
        channels: τ, the action on the last axis.
        domain: ρ, the action on the positions.
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
    domain: Domain = dataclasses.field(default_factory=NoPositions)
    label: str = dataclasses.field(default="representation", compare=False)

    def __repr__(self) -> str:
        what = {0: "", 1: f"{self._samples}, ", 2: "images, "}[self.domain.rank]
        return f"<{self.label} of {self.group.label} on {what}{self.dim or 'any number of'} channels>"

    @property
    def _samples(self) -> str:
        """What samples with a single axis of positions are called in messages."""
        return "nodes" if isinstance(self.domain, NodePermutations) else "sequences"

    @property
    def dim(self) -> int | None:
        """The number of channels it acts on; None if it acts on any number."""
        return self.channels.dim

    @property
    def exact(self) -> bool:
        """Whether it is a representation, ρ(g)ρ(h) = ρ(gh), rather than an interpolation of one."""
        return self.domain.exact

    def __call__(self, g: Element, x: X, /) -> X:
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

    def orbit(self, x: X, /, elements: ArrayLike | Sequence | None = None) -> X:
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
        return _orbit(self, arrays(x, "x"), self.elements(elements))

    def elements(self, chosen: ArrayLike | Sequence | None = None, /) -> np.ndarray | jax.Array:
        """The chosen elements as one array, integers [count] or matrices [count, n, n]; all of a finite group if None.

        Example:
            >>> from ntk_equiv import groups, reps
            >>> reps.regular(groups.cyclic(4)).elements()
            array([0, 1, 2, 3])
        """
        if isinstance(self.group, FiniteGroup):
            if chosen is None:
                return np.arange(self.group.order)
            if is_concrete(chosen):
                if np.ndim(chosen) != 1 or np.size(chosen) == 0:
                    fix = f"List integers from 0 to {self.group.order - 1}, or leave `elements` out for all."
                    raise refusal("elements", expected="a list of elements", got=describe(chosen), fix=fix)
                return np.array([self.group.element(g, "elements") for g in np.asarray(chosen).tolist()], dtype=int)
            return jnp.asarray(chosen)
        n = self.group.n
        fix = "A continuous group has too many elements: draw some with `group.sample(key, count)`."
        mats = None if chosen is None else jnp.asarray(real_array(chosen, "elements", fix=fix))
        if mats is None or mats.ndim != 3 or mats.shape[1:] != (n, n):
            got = "nothing" if mats is None else f"shape {mats.shape}"
            raise refusal("elements", expected=f"matrices [count, {n}, {n}] of {self.group}", got=got, fix=fix)
        return mats

    def spatial(self, shape: tuple[int, ...], /) -> GridAction:
        """ρ_K: the action on an output grid of this shape, such as the smaller one of a convolutional network.

        Args:
            shape: the grid, (h, w) or (nodes,); () for outputs without positions; for quarter turns also (h, h, 4) or
                (h, h, 8), features on C4 or D4 as `stax.LiftingConv` makes them: their orientations are permuted.

        Returns:
            The action on the flattened grid, as gather indices for each element, and on kernels. It is the identity
            for vectors, and for the shape ().

        Example:
            >>> from ntk_equiv import groups, reps
            >>> reps.rot90(groups.cyclic(2)).spatial((1, 1)).indices.tolist()
            [[0], [0]]
            >>> reps.trivial(groups.cyclic(2)).spatial((3, 3)).is_identity
            True
        """
        if not is_listed(shape):
            fix = "Pass a tuple, such as (8, 8); () for outputs without positions."
            raise refusal("shape", expected="the sizes of a grid", got=describe(shape), fix=fix)
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
        return measure_homomorphism_error(self.group, self.channels, self.spatial(grid or self.domain.example))

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
        error = _measure_orthogonality_error(self.group, self.channels, self.spatial(grid or self.domain.example))
        return error <= real_number(tol, "tol")

    def _element(self, g: Element) -> int | jax.Array:
        """An element in the form that channels and domains take: an `int` if it is known, else an array."""
        if isinstance(self.group, FiniteGroup):
            if isinstance(g, jax.Array | np.ndarray) and g.ndim == 0:
                if not is_concrete(g):
                    return jnp.asarray(g)
                g = g.item()
            return self.group.element(g)
        n = self.group.n
        if jnp.shape(g) != (n, n):
            fix = "An element of a continuous group is its matrix; act with many through `orbit`."
            raise refusal("g", expected=f"a matrix [{n}, {n}] of {self.group}", got=f"shape {jnp.shape(g)}", fix=fix)
        return jnp.asarray(g)

    def _act(self, g: Element, x: Any) -> Any:
        if not _is_graph(x):
            return self._act_on_array(g, x)
        nodes = self._act_on_array(g, x.nodes)
        if self.domain.rank != 1:
            return x._replace(nodes=nodes)
        move: Callable = self.spatial(x.nodes.shape[-2:-1]).move
        adjacency = move(g, move(g, x.adjacency, (-2,)), (-1,))
        return x._replace(nodes=nodes, adjacency=adjacency)

    def _act_on_array(self, g: Element, x: jax.Array) -> jax.Array:
        rank = self.domain.rank
        if rank:
            x = self._grid_of(x.shape).move(g, x, tuple(range(-rank - 1, -1)))
        check_last_axis(self.channels, x.shape)
        return self.channels(g, x)

    def _grid_of(self, shape: tuple[int, ...]) -> GridAction:
        """The action on the positions of an array of this shape, if its axes are in the right order."""
        rank = self.domain.rank
        expected = {1: f"{self._samples} [..., N, channels]", 2: "images [..., H, W, channels], channels last"}[rank]
        if len(shape) < rank + 1:
            fix = "Add an axis of channels at the end, of size 1 if there is none."
            raise refusal("x", expected=expected, got=f"shape {shape}", fix=fix)
        # An interpolated rotation acts on grids of any shape, so it would silently rotate channels into rows.
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


# One program: many small ones would take longer to compile.
@partial(jax.jit, static_argnames="rep")
def _orbit(rep: Representation, x: Any, elements: np.ndarray | jax.Array) -> Any:
    return jax.vmap(lambda g: rep(g, x))(elements)


def _is_graph(x: Any) -> bool:
    return all(hasattr(x, name) for name in ("nodes", "adjacency", "_replace"))


def check_representation(value: Any, argument: str) -> Representation:
    """Return `value`, if it is a representation."""
    fix = "Make one of a group, as in `reps.rot90(groups.cyclic(4))`."
    return instance(value, Representation, argument, expected="a representation", fix=fix)


def check_representation_of(group: Group, value: Any, argument: str) -> Representation:
    """Return `value`, if it is a representation of `group`."""
    rep = check_representation(value, argument)
    if rep.group != group:
        fix = "Groups are the same when their tables are, element by element."
        raise refusal(argument, expected=f"a representation of {group}", got=f"one of {rep.group}", fix=fix)
    return rep


def check_actions(rep_x: Any, rep_y: Any) -> tuple[Representation, Representation]:
    """Return the actions on inputs and outputs, if they are of one group; without `rep_y` outputs are invariant."""
    rep_x = check_representation(rep_x, "rep_x")
    if rep_y is None:
        return rep_x, Representation(rep_x.group, Identity(), label="trivial")
    rep_y = check_representation(rep_y, "rep_y")
    if rep_x.group != rep_y.group:
        fix = "Samples and labels transform under the same group."
        raise refusal("rep_y", expected=f"of {rep_x.group.label}", got=f"of {rep_y.group.label}", fix=fix)
    return rep_x, rep_y


def measure_homomorphism_error(group: Group, channels: Channels, grid: GridAction, *, pairs: int = 32) -> float:
    """The largest ‖ρ(g)ρ(h) − ρ(gh)‖, over all pairs of a finite group or `pairs` pairs of a continuous one."""
    if isinstance(group, ContinuousGroup):
        return max(_norm(a @ b - c) for a, b, c in _triples(group, channels, pairs))
    if isinstance(channels, Identity | Permutations) and grid.exact:
        return 0.0  # permutations are compared with the table when they are given
    if grid.exact:
        mats = channels.matrices(group.order)
        return max(_norm(mats[g] @ mats - mats[group.table[g]]) for g in range(group.order))
    operators = _operators(group, channels, grid)
    every_pair = itertools.product(range(group.order), repeat=2)
    return max(_norm(operators[g] @ operators[h] - operators[group.table[g, h]]) for g, h in every_pair)


def _measure_orthogonality_error(group: Group, channels: Channels, grid: GridAction) -> float:
    """The largest ‖ρ(g)ρ(g)† − 1‖, over all elements of a finite group or a sample of a continuous one."""
    if isinstance(group, ContinuousGroup):
        mats = np.array([c for _, _, c in _triples(group, channels, 32)])
    elif isinstance(channels, Identity | Permutations) and grid.exact:
        return 0.0
    elif grid.exact:
        mats = channels.matrices(group.order)
    else:
        operators = _operators(group, channels, grid)
        return max(_norm(A @ A.conj().T - sparse.eye_array(A.shape[0])) for A in operators)
    return _norm(mats @ mats.conj().transpose(0, 2, 1) - np.eye(mats.shape[1]))


def _triples(group: ContinuousGroup, channels: Channels, pairs: int) -> Iterator[tuple[np.ndarray, ...]]:
    """ρ(g), ρ(h), ρ(gh) for some pairs."""
    g, h = np.split(_random_elements(group, 2 * pairs), 2)
    return zip(*(_matrices(channels, elements) for elements in (g, h, g @ h)), strict=True)


def _random_elements(group: ContinuousGroup, count: int) -> np.ndarray:
    """The same Haar-distributed matrices [count, n, n] every time, on the host.

    Not `group.sample`: this runs while representations are built, which may be inside of a compiled function.
    """
    Q, R = np.linalg.qr(np.random.default_rng(0).standard_normal((count, group.n, group.n)))
    Q = Q * np.sign(np.diagonal(R, axis1=1, axis2=2))[:, None, :]
    if group.special:
        Q[:, :, 0] *= np.linalg.det(Q)[:, None]
    return Q


def _matrices(channels: Channels, elements: np.ndarray) -> np.ndarray:
    """τ of some elements of a continuous group."""
    if isinstance(channels, MatrixFunction):
        return channels.matrices(elements)
    return channels.matrices(len(elements))


def _operators(group: FiniteGroup, channels: Channels, grid: GridAction) -> list[sparse.csr_array]:
    both = zip(grid.matrices(group.order), channels.matrices(group.order), strict=True)
    return [sparse.kron(space, sparse.csr_array(tau), format="csr") for space, tau in both]


def _norm(A: np.ndarray | sparse.sparray) -> float:
    return float(abs(A).sum(axis=-1).max())
