"""Samples that networks take: arrays, or graphs with features on the nodes and a weight for each edge."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from ntk_equiv._check import floating, real_array, refusal
from ntk_equiv._typing import Array, Inputs


class Graph(NamedTuple):
    """Samples that are graphs: node features, and a weighted adjacency for each sample.

    `adjacency[n, i, j]` is the weight with which node j of sample n receives from node i, as in neural-tangents.
    Networks also take `Graph(nodes, adjacency)` with one adjacency `[nodes, nodes]` for all samples. `Graph.of` gives
    each sample its copy, so that both arrays begin with the axis of samples and the graphs can be cut and augmented.

    Attributes:
        nodes: features of the nodes, `[n, nodes, features]`; or, if the positions of a grid are the nodes,
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
        """Return a checked graph; an adjacency `[nodes, nodes]` without sample axis is shared by all samples."""
        nodes = floating(nodes, "nodes")
        graph = with_own_adjacency(cls(nodes, jnp.asarray(real_array(adjacency, "adjacency"), nodes.dtype)))
        if graph.adjacency.ndim == 2 * nodes.ndim - 3 or graph.adjacency.shape[:1] != nodes.shape[:1]:
            check_adjacency(graph.adjacency, nodes.shape[0], nodes.shape[1:-1])
        return graph


def with_own_adjacency(graph: Graph) -> Graph:
    """Return `graph` with an adjacency for each sample, also if one was given for all.

    An adjacency for all samples has the shape of the grid twice. Others have an axis of samples first, followed by
    whatever form `to_dense` of `Aggregate` takes.
    """
    nodes, adjacency = floating(graph.nodes, "nodes"), jnp.asarray(real_array(graph.adjacency, "adjacency"))
    if adjacency.shape == nodes.shape[1:-1] * 2:
        adjacency = jnp.broadcast_to(adjacency, nodes.shape[:1] + adjacency.shape)
    return Graph(nodes, adjacency)


def with_pattern(x: Inputs, pattern: Any) -> Inputs:
    """Return `x` together with neural-tangents' `pattern` keyword, if that was given."""
    return x if pattern is None else Graph(x, jnp.asarray(pattern))


def nodes_of(x: Inputs) -> Array:
    """Return the feature array of samples that may be graphs."""
    return x.nodes if isinstance(x, Graph) else x


def check_inputs(x: Inputs, argument: str) -> Inputs:
    """Return `x` as JAX arrays, if it is a batch of floating-point samples."""
    if isinstance(x, Graph):
        return with_own_adjacency(x)
    x = floating(x, argument)
    if x.ndim < 2:
        raise refusal(
            argument,
            expected="samples stacked along the first axis, with features last: [n, ..., features]",
            got=f"shape {x.shape}",
            fix=f"For one sample use `{argument}[None]`; for scalar features use `{argument}[:, None]`.",
        )
    if 0 in x.shape[1:]:
        fix = "Kernels are means over features and positions, of which there must be some."
        raise refusal(argument, expected="samples that are not empty", got=f"shape {x.shape}", fix=fix)
    return x


def check_same_features(x1: Inputs, x2: Inputs) -> None:
    """Refuse two batches whose samples differ in shape, or of which only one consists of graphs."""
    alike = isinstance(x1, Graph) == isinstance(x2, Graph)
    check_same_shape(nodes_of(x1).shape[1:], nodes_of(x2).shape[1:], alike=alike)


def check_same_shape(shape1: tuple[int, ...], shape2: tuple[int, ...], *, alike: bool = True) -> None:
    """Refuse samples of different shapes."""
    if shape1 != shape2 or not alike:
        raise refusal(
            "x2",
            expected=f"samples like those of `x1`, of shape {shape1}",
            got=f"samples of shape {shape2}",
            fix="Both batches must have the same spatial axes and the same number of features.",
        )


def check_adjacency(adjacency: Array, samples: int, grid: tuple[int, ...]) -> Array:
    """Return `adjacency`, if it has one weight for each sample and each ordered pair of positions of `grid`."""
    expected = (samples, *grid, *grid)
    if adjacency.shape != expected:
        raise refusal(
            "adjacency",
            expected=f"of shape {expected}: samples, sending nodes, receiving nodes",
            got=f"shape {adjacency.shape}",
            fix="Use `Graph.of(nodes, adjacency)` to share one adjacency matrix among all samples.",
        )
    return adjacency


def split_pattern(pattern: Any) -> tuple[Any, Any]:
    """Return the adjacencies of both sides, from neural-tangents' keyword."""
    if pattern is None:
        return None, None
    if not isinstance(pattern, tuple | list) or len(pattern) != 2:
        fix = "Pass `(pattern1, pattern2)`, the second `None` where `x2` is; or a `Graph` as `x1`."
        raise refusal("pattern", expected="the adjacencies of `x1` and `x2`", got=type(pattern).__name__, fix=fix)
    return pattern[0], pattern[1]
