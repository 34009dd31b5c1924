"""Inputs that are graphs: features on the nodes, and which node listens to which."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from ntk_equiv._check import floating, refusal
from ntk_equiv._typing import Array


class Graph(NamedTuple):
    """Samples that are graphs: node features, and a weighted adjacency for each sample.

    `adjacency[n, i, j]` is the weight with which node j of sample n receives from node i, as in neural-tangents.
    A pytree with the sample axis leading in both arrays; `Graph.of` also takes one adjacency for all samples.

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
        adjacency = jnp.asarray(adjacency, nodes.dtype)
        grid = nodes.shape[1:-1]
        if adjacency.ndim == 2 * len(grid):
            adjacency = jnp.broadcast_to(adjacency, nodes.shape[:1] + adjacency.shape)
        return cls(nodes, check_adjacency(adjacency, nodes))


def check_adjacency(adjacency: Array, nodes: Array, aggregated: tuple[int, ...] | None = None) -> Array:
    """`adjacency`, if it has one weight for each sample and ordered pair of nodes."""
    grid = nodes.shape[1:-1] if aggregated is None else tuple(nodes.shape[a] for a in aggregated)
    expected = (nodes.shape[0], *grid, *grid)
    if adjacency.shape != expected:
        raise refusal(
            "adjacency",
            expected=f"of shape {expected}: samples, sending nodes, receiving nodes",
            got=f"shape {adjacency.shape} for nodes of shape {nodes.shape}",
            fix="Use `Graph.of(nodes, adjacency)` to share one adjacency matrix among all samples.",
        )
    return adjacency


def as_graph(x: Any, pattern: Any) -> Any:
    """`x` together with neural-tangents' `pattern` keyword, if that was given."""
    if pattern is None:
        return x
    return Graph(x, jnp.asarray(pattern, x.dtype))
