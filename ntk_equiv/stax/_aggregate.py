"""Sums over the neighbours of a node.

    finite     y_j = Σ_i A_ij x_i
    infinite   𝒦'(j, j') = Σ_ii' A_ij 𝒦(i, i') A'_i'j',        Θ' from Θ in the same way

for samples with adjacencies A and A'. The layer has no parameters; follow it by `Dense` for a graph convolution. The
samples themselves, `Graph`, are in `_inputs`.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from ntk_equiv._check import function, is_listed, one_of, refusal
from ntk_equiv._typing import Array
from ntk_equiv.stax._inputs import check_adjacency
from ntk_equiv.stax._network import Network, check_axes, network, with_channels_at
from ntk_equiv.stax._rule import Linear
from ntk_equiv.stax._state import (
    Memo,
    PairState,
    Requirements,
    SampleState,
    frozen_pytree,
    require_all_positions,
    static,
)

# Letters of axes in subscripts of `einsum`: sending and receiving nodes of the left sample; primed, of the right one.
_SEND, _RECEIVE = "defghijk", "DEFGHIJK"
_PRIMED = str.maketrans(_SEND + _RECEIVE, "lmnopqrsLMNOPQRS")


@frozen_pytree
class NeighbourSum(Linear):
    """The weighted sum over incoming edges.

    Attributes:
        axes: the spatial axes that hold nodes (`None`: all).
        to_dense: what makes matrices of adjacencies.
        edges: whether these are lists of edges instead.
        optional: whether samples without adjacency pass unchanged.
    """

    axes: tuple[int, ...] | None = static()
    to_dense: Callable = static()
    edges: bool = static(default=False)
    optional: bool = static(default=False)

    def requirements_for(self, wanted: Requirements) -> Requirements:
        return require_all_positions(wanted)

    def remember(self, state: SampleState) -> Memo:
        if state.adjacency is None:
            if self.optional:
                return ()
            raise _missing_graph()
        grid = tuple(state.grid[axis] for axis in self.node_axes(len(state.grid)))
        return self.matrices(state.adjacency, grid)

    def matrices(self, adjacency: Array, grid: tuple[int, ...]) -> Array:
        """Return adjacencies as matrices, `[n, *grid, *grid]`."""
        dense = edges_to_matrices(adjacency, grid) if self.edges else self.to_dense(adjacency)
        return check_adjacency(dense, adjacency.shape[0], grid)

    def node_axes(self, rank: int) -> tuple[int, ...]:
        """Return which of `rank` spatial axes hold nodes, counted from 0."""
        return tuple(range(rank)) if self.axes is None else tuple(a % (rank + 2) - 1 for a in self.axes)

    def mix_positions(self, k: Array, state: PairState, left: Memo, right: Memo) -> Array:
        if isinstance(left, tuple):
            return k
        rank = (k.ndim - state.batch_axes) // 2
        nodes = self.node_axes(rank)
        arriving = [_RECEIVE[i] if i in nodes else _SEND[i] for i in range(rank)]
        sources, targets = _interleave(_SEND[:rank]), _interleave(arriving)
        batch, other = ("a", "a") if state.paired else ("ab", "b")
        edges = "".join(_SEND[i] for i in nodes) + "".join(_RECEIVE[i] for i in nodes)
        subscripts = f"{batch}{sources},a{edges},{other}{edges.translate(_PRIMED)}->{batch}{targets}"
        left, right = left.astype(k.dtype), right.astype(k.dtype)
        return jnp.einsum(subscripts, k, left, right, precision=lax.Precision.HIGHEST)


def Aggregate(
    aggregate_axis: int | Sequence[int] | None = None,
    batch_axis: int = 0,
    channel_axis: int = -1,
    to_dense: Callable[[Array], Array] = lambda p: p,
    implementation: str = "DENSE",
) -> Network:
    """Sum over the neighbours of each node: Σ_i A_ij x_i at node j.

    The adjacency comes with the samples, as `Graph(nodes, adjacency)`, or as neural-tangents' keyword `pattern` of
    `apply_fn` (one array) and `kernel_fn` (a pair of arrays). All such layers of a network use the same adjacency.

    Args:
        aggregate_axis: axes of the input that hold nodes; by default all between the first and the last.
        batch_axis: 0, the only choice.
        channel_axis: the last axis, -1 or its number.
        to_dense: a function that converts adjacencies from a compact form of your own before they are used.
        implementation: "DENSE", or "SPARSE" for lists of edges: `[n, edges, len(aggregate_axis), 2]` holds the places
            of the sending node and of the receiving node along each axis. Edges with a place outside, such as -10000,
            do not count. The finite network then needs no matrices; kernels do in any case.

    Example:
        >>> from ntk_equiv.stax import Graph
        >>> _, apply_fn, kernel_fn = Aggregate()
        >>> x = Graph.of(jnp.array([[[1.0], [2.0], [4.0]]]), jnp.ones((3, 3)) - jnp.eye(3))
        >>> print(apply_fn((), x)[0, :, 0])
        [6. 5. 3.]
        >>> print(kernel_fn(x, None, "nngp")[0, 0])
        [[36. 30. 18.]
         [30. 25. 15.]
         [18. 15.  9.]]
    """
    check_axes(batch_axis, channel_axis)
    edges = one_of(implementation, ("DENSE", "SPARSE"), "implementation") == "SPARSE"
    aggregation = NeighbourSum(_check_node_axes(aggregate_axis), function(to_dense, "to_dense"), edges)

    def apply(params: tuple, x: Array, *, pattern: Any = None, **kwargs: Any) -> Array:
        if pattern is None:
            raise _missing_graph()
        nodes = tuple(a + 1 for a in aggregation.node_axes(x.ndim - 2))
        grid, count = tuple(x.shape[axis] for axis in nodes), len(nodes)
        if edges:
            summed = _sum_along_edges(jnp.moveaxis(x, nodes, range(1, count + 1)), jnp.asarray(pattern), grid)
            return jnp.moveaxis(summed, range(1, count + 1), nodes)
        pattern = aggregation.matrices(jnp.asarray(pattern), grid).astype(x.dtype)
        summed = lax.dot_general(x, pattern, ((nodes, tuple(range(1, count + 1))), ((0,), (0,))))
        return jnp.moveaxis(summed, tuple(range(-count, 0)), nodes)

    return with_channels_at(channel_axis, network(lambda key, shape: (shape, ()), apply, aggregation))


def passing_without_graph(aggregation: Network) -> Network:
    """Return an aggregation that passes samples without adjacency on as they are."""

    def apply(params: tuple, x: Array, *, pattern: Any = None, **kwargs: Any) -> Array:
        return x if pattern is None else aggregation.apply_fn(params, x, pattern=pattern)

    rule: Any = aggregation.kernel_fn.rule
    return network(aggregation.init_fn, apply, dataclasses.replace(rule, optional=True))


def edges_to_matrices(edges: Array, grid: tuple[int, ...]) -> Array:
    """Return the adjacency `[n, *grid, *grid]` of lists of edges `[n, edges, len(grid), 2]`; equal ones add up.

    >>> print(edges_to_matrices(jnp.array([[[[0, 2]], [[-9, 1]]]]), (3,))[0])
    [[0. 0. 1.]
     [0. 0. 0.]
     [0. 0. 0.]]
    """
    samples, places = _places_of_edges(edges, grid)
    shape = (edges.shape[0], *grid, *grid)
    return jnp.zeros(shape).at[(samples, *places[0], *places[1])].add(1.0, mode="drop")


def _sum_along_edges(x: Array, edges: Array, grid: tuple[int, ...]) -> Array:
    """Return the sums that arrive at each node; nodes follow samples in `x`, `[n, *grid, ...]`."""
    samples, (senders, receivers) = _places_of_edges(edges, grid)
    sent = x.at[(samples, *senders)].get(mode="fill", fill_value=0)
    return jnp.zeros_like(x).at[(samples, *receivers)].add(sent, mode="drop")


def _places_of_edges(edges: Array, grid: tuple[int, ...]) -> tuple[Array, list[list[Array]]]:
    """Return the sample of each edge, and the places of its two ends; edges that do not count are outside."""
    if edges.ndim != 4 or edges.shape[2:] != (len(grid), 2):
        fix = "Give each edge the places of its two nodes along each axis of nodes."
        raise refusal("pattern", expected=f"[n, edges, {len(grid)}, 2]", got=f"shape {edges.shape}", fix=fix)
    extents = jnp.asarray(grid, edges.dtype).reshape(1, 1, -1, 1)
    outside = jnp.any((edges < 0) | (edges >= extents), (2, 3))
    count = edges.shape[0]
    samples = jnp.broadcast_to(jnp.arange(count)[:, None], edges.shape[:2])
    samples = jnp.where(outside, count, samples)  # Negative places would count from the end; this one is outside.
    return samples, [[edges[:, :, axis, end] for axis in range(len(grid))] for end in range(2)]


def _check_node_axes(axes: Any) -> tuple[int, ...] | None:
    if axes is None:
        return None
    listed = (axes,) if isinstance(axes, int) else axes
    if not is_listed(listed) or any(not isinstance(a, int) or a in (0, -1) for a in listed):
        fix = "Leave it out for all axes between the first, of samples, and the last, of channels."
        raise refusal("aggregate_axis", expected="axes that hold nodes", got=repr(axes), fix=fix)
    return tuple(listed)


def _missing_graph() -> Exception:
    return refusal(
        "x",
        expected="a graph for `Aggregate`",
        got="an array without adjacency",
        fix="Pass `Graph.of(nodes, adjacency)`, or the keyword `pattern`.",
    )


def _interleave(letters: Iterable[str]) -> str:
    """Return each letter of an axis of the left sample, followed by that of the right sample."""
    return "".join(letter + letter.translate(_PRIMED) for letter in letters)
