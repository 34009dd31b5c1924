"""Inputs that are graphs: features on the nodes, and which node listens to which."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from ntk_equiv._check import floating, real_array, refusal
from ntk_equiv._typing import Array


class Graph(NamedTuple):
    """Samples that are graphs: node features, and a weighted adjacency for each sample.

    `adjacency[n, i, j]` is the weight with which node j of sample n receives from node i, as in neural-tangents.
    Networks also take `Graph(nodes, adjacency)` with one adjacency `[nodes, nodes]` for all samples; `Graph.of` gives
    each sample its copy, so that the sample axis leads in both arrays and the graphs can be cut and augmented.

    Attributes:
        nodes: features of the nodes, `[n, nodes, features]`; or, with the points of a grid for nodes,
            `[n, h, w, features]`.
        adjacency: weights of the edges, sending nodes first, `[n, nodes, nodes]` or `[n, h, w, h, w]`.

    Example:
        >>> ring = jnp.roll(jnp.eye(4), 1, axis=0) + jnp.roll(jnp.eye(4), -1, axis=0)
        >>> x = Graph.of(jnp.ones((2, 4, 3)), ring)
        >>> x.nodes.shape, x.adjacency.shape
        ((2, 4, 3), (2, 4, 4))
    """

    nodes: Array
    adjacency: Array

    @classmethod
    def of(cls, nodes: Any, adjacency: Any) -> "Graph":
        """A checked graph; an adjacency `[nodes, nodes]` without sample axis is shared by all samples."""
        nodes = floating(nodes, "nodes")
        graph = with_own_adjacency(cls(nodes, jnp.asarray(real_array(adjacency, "adjacency"), nodes.dtype)))
        if graph.adjacency.ndim == 2 * nodes.ndim - 3 or graph.adjacency.shape[:1] != nodes.shape[:1]:
            check_adjacency(graph.adjacency, nodes.shape[0], nodes.shape[1:-1])
        return graph


def with_own_adjacency(graph: Graph) -> Graph:
    """`graph` with one adjacency for each sample, also where one was given for all.

    That one has the shape of the grid twice; others have an axis of samples first, in whatever form `to_dense` takes.
    """
    nodes, adjacency = floating(graph.nodes, "nodes"), jnp.asarray(real_array(graph.adjacency, "adjacency"))
    if adjacency.shape == nodes.shape[1:-1] * 2:
        adjacency = jnp.broadcast_to(adjacency, nodes.shape[:1] + adjacency.shape)
    return Graph(nodes, adjacency)


def check_adjacency(adjacency: Array, samples: int, grid: tuple[int, ...]) -> Array:
    """`adjacency`, if it has one weight for each sample and each ordered pair of points of `grid`."""
    expected = (samples, *grid, *grid)
    if adjacency.shape != expected:
        raise refusal(
            "adjacency",
            expected=f"of shape {expected}: samples, sending nodes, receiving nodes",
            got=f"shape {adjacency.shape}",
            fix="Use `Graph.of(nodes, adjacency)` to share one adjacency matrix among all samples.",
        )
    return adjacency


def as_graph(x: Any, pattern: Any) -> Any:
    """`x` together with neural-tangents' `pattern` keyword, if that was given."""
    return x if pattern is None else Graph(x, jnp.asarray(pattern))
