"""Samples that networks take: arrays, arrays with masked entries, or graphs with a weight for each edge."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from ntk_equiv._check import describe, floating, real_array, refusal
from ntk_equiv._typing import Array, Inputs


class MaskedArray(NamedTuple):
    """Samples with masked entries, such as sequences of different lengths that were filled up to the longest.

    Masked entries count as zero. A position all of whose channels are masked stays zero in all layers, and means over
    positions leave it out.

    Attributes:
        masked_value: the samples, `[n, ..., features]`.
        mask: which of their entries are masked; its last axis may have length one.

    Example:
        >>> x = MaskedArray.of(jnp.array([[1.0, 2.0], [3.0, -1.0]])[..., None], -1.0)
        >>> print(x.masked_value[..., 0])
        [[1. 2.]
         [3. 0.]]
        >>> print(x.mask[..., 0])
        [[False False]
         [False  True]]
    """

    masked_value: Array
    mask: Array

    @classmethod
    def of(cls, x: Any, mask_constant: Any = None) -> "MaskedArray":
        """Return samples whose entries equal to `mask_constant` are masked; it may be NaN. Masked ones stay so."""
        if isinstance(x, MaskedArray):
            x, mask = floating(x.masked_value, "masked_value"), jnp.asarray(x.mask, bool)
            if mask.ndim != x.ndim or any(m not in (1, s) for m, s in zip(mask.shape, x.shape, strict=True)):
                fix = "Give each entry, or each position with a last axis of length one, a truth value."
                raise refusal("mask", expected=f"of shape {x.shape}", got=f"shape {mask.shape}", fix=fix)
            mask = jnp.broadcast_to(mask, (*x.shape[:-1], mask.shape[-1]))
        else:
            x = floating(x, "x")
            constant = jnp.asarray(check_mask_constant(mask_constant), x.dtype)
            mask = jnp.where(jnp.isnan(constant), jnp.isnan(x), x == constant)
        return cls(jnp.where(mask, 0, x), mask)

    def positions(self) -> Array:
        """Return which positions are masked: those all of whose channels are, `[n, ...]`."""
        return jnp.all(self.mask, -1)


def check_mask_constant(constant: Any) -> Any:
    """Return the number that stands for masked entries; it may be NaN or infinite, or traced by JAX."""
    number = isinstance(constant, int | float | np.number | Array) and not isinstance(constant, bool)
    if not number or jnp.ndim(constant):
        fix = "Pass the Python float with which samples were filled up."
        raise refusal("mask_constant", expected="one number", got=describe(constant), fix=fix)
    return constant


def with_mask(x: Inputs, mask_constant: Any) -> Inputs:
    """Return samples with their entries equal to `mask_constant` masked, unless it is `None`."""
    if isinstance(x, Graph):
        return Graph(with_mask(x.nodes, mask_constant), x.adjacency)
    if isinstance(x, list | tuple) and not isinstance(x, MaskedArray):
        return [with_mask(branch, mask_constant) for branch in x]
    return x if mask_constant is None and not isinstance(x, MaskedArray) else MaskedArray.of(x, mask_constant)


def mask_of(x: Inputs) -> Array | None:
    """Return which positions of samples are masked, `[n, ...]`; `None` if nothing can be."""
    x = x.nodes if isinstance(x, Graph) else x
    return x.positions() if isinstance(x, MaskedArray) else None


class Graph(NamedTuple):
    """Samples that are graphs: node features, and a weighted adjacency for each sample.

    `adjacency[n, i, j]` is the weight with which node j of sample n receives from node i, as in neural-tangents.
    Networks also take `Graph(nodes, adjacency)` with one adjacency `[nodes, nodes]` for all samples. `Graph.of` gives
    each sample its copy, so that both arrays begin with the axis of samples and the graphs can be cut and augmented.

    Attributes:
        nodes: features of the nodes, `[n, nodes, features]`; or, if the positions of a grid are the nodes,
            `[n, h, w, features]`. They may be a `MaskedArray`.
        adjacency: weights of the edges, sending nodes first, `[n, nodes, nodes]` or `[n, h, w, h, w]`.

    Example:
        >>> ring = jnp.roll(jnp.eye(4), 1, axis=0) + jnp.roll(jnp.eye(4), -1, axis=0)
        >>> x = Graph.of(jnp.ones((2, 4, 3)), ring)
        >>> x.nodes.shape, x.adjacency.shape
        ((2, 4, 3), (2, 4, 4))
    """

    nodes: Any
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
    values, adjacency = floating(nodes_of(graph), "nodes"), jnp.asarray(real_array(graph.adjacency, "adjacency"))
    if adjacency.shape == values.shape[1:-1] * 2:
        adjacency = jnp.broadcast_to(adjacency, values.shape[:1] + adjacency.shape)
    return Graph(MaskedArray.of(graph.nodes) if isinstance(graph.nodes, MaskedArray) else values, adjacency)


def with_pattern(x: Inputs, pattern: Any) -> Inputs:
    """Return `x` together with neural-tangents' `pattern` keyword, if that was given."""
    return x if pattern is None else Graph(x, jnp.asarray(pattern))


def nodes_of(x: Inputs) -> Array:
    """Return the feature array of samples that may be graphs."""
    x = x.nodes if isinstance(x, Graph) else x
    return x.masked_value if isinstance(x, MaskedArray) else x


def check_inputs(x: Inputs, argument: str) -> Inputs:
    """Return `x` as JAX arrays, if it is a batch of floating-point samples."""
    if isinstance(x, Graph):
        return with_own_adjacency(x)
    if isinstance(x, MaskedArray):
        check_inputs(x.masked_value, argument)
        return MaskedArray.of(x)
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


def mask_both(x1: Inputs, x2: Inputs) -> tuple[Inputs, Inputs]:
    """Return both batches; if entries of one are masked, the other has a mask too, of nothing."""
    if (mask_of(x1) is None) == (mask_of(x2) is None):
        return x1, x2

    def with_any_mask(x: Inputs) -> Inputs:
        if mask_of(x) is not None:
            return x
        nodes = nodes_of(x)
        masked = MaskedArray(nodes, jnp.zeros((*nodes.shape[:-1], 1), bool))
        return Graph(masked, x.adjacency) if isinstance(x, Graph) else masked

    return with_any_mask(x1), with_any_mask(x2)


def covariance_of_inputs(x1: Array, x2: Array, *, paired: bool, full: bool) -> Array:
    """Return the mean over features of products of inputs, for equal positions or for all pairs of them."""
    axes = range(x1.ndim - 2)
    left = [chr(ord("d") + 2 * i) for i in axes]
    right = [chr(ord("d") + 2 * i + 1) for i in axes] if full else left
    out = [c for pair in zip(left, right, strict=True) for c in pair] if full else left
    a, b = "a", "a" if paired else "b"
    batch = "a" if paired else "ab"
    subscripts = f"{a}{''.join(left)}c,{b}{''.join(right)}c->{batch}{''.join(out)}"
    return jnp.einsum(subscripts, x1, x2, precision=lax.Precision.HIGHEST) / x1.shape[-1]
