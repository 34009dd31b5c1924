"""The third of the triple: a network's kernels as a function of its inputs.

    kernel_fn(x1, x2, get)  =  pairs(points(x1), points(x2), get)

`points` runs once over the samples and keeps what each layer must know about each of them; `pairs` does the work
that grows with n1 · n2. `ntk_equiv.gram` calls the two halves by themselves, so that per-sample work is never
repeated from tile to tile.
"""

import math
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ntk_equiv._check import canonical_get, floating, positive_integer, real_array, refusal, same_shape
from ntk_equiv._pytrees import dataclass_pytree
from ntk_equiv._typing import Array, Get, Inputs, Kernel, select
from ntk_equiv.stax._arc import SNAP, snapped
from ntk_equiv.stax._certificate import Certificate
from ntk_equiv.stax._graph_input import Graph, as_graph, with_own_adjacency
from ntk_equiv.stax._rule import Rule
from ntk_equiv.stax._state import (
    COVARIANCE,
    NOTHING,
    Fixed,
    Need,
    Pairs,
    Points,
    materialize,
    power_of_two,
    safe_sqrt,
)

OUTPUT = Need(full_pairs=True, stored=False)
# Inner products of more terms than this can be off by more than activations take for rounding.
LONG = 256


@dataclass_pytree
@dataclass(frozen=True, eq=False)
class KernelFn:
    """The kernels of a network, `kernel_fn(x1, x2=None, get=None)`, as in neural-tangents.

    Calls are compiled, and may be differentiated in `x1`, `x2` and the network's hyperparameters, mapped with
    `jax.vmap` and wrapped in `jax.jit` (with `get` static). Results have the dtype of the inputs. `features` is their
    number in the inputs, which `radial` alone has to be told, by `of_features`.

    Example:
        >>> from ntk_equiv import stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(64), stax.Relu(), stax.Dense(1))
        >>> x = jnp.array([[3.0, 4.0]])
        >>> print(kernel_fn(x, None, "ntk"))
        [[12.5]]
        >>> both = kernel_fn(x, 2 * x, ("nngp", "ntk"))
        >>> print(both.nngp, both.ntk)
        [[12.5]] [[25.]]
    """

    rule: Rule
    features: int | None = field(default=None, metadata={"static": True})

    def __call__(self, x1: Inputs, x2: Inputs | None = None, get: Get = None, *, pattern: Any = None) -> Any:
        """Kernels of all pairs of samples from `x1` and `x2`.

        Args:
            x1: samples `[n1, ..., features]`, or a `Graph`.
            x2: other samples; `None` stands for `x1`.
            get: `"nngp"`, `"ntk"`, a tuple of these in any order, or `None` for both.
            pattern: adjacencies of `x1` and `x2`, a pair of arrays, for code written with neural-tangents.

        Returns:
            One array for a single name; a named tuple for several.
        """
        left_pattern, right_pattern = _two_patterns(pattern)
        x1 = _check_inputs(as_graph(x1, left_pattern), "x1")
        if x2 is not None:
            x2 = _check_inputs(as_graph(x2, right_pattern), "x2")
            _check_same_features(x1, x2)
        return _evaluate(self.rule, x1, x2, canonical_get(get))

    @property
    def certificate(self) -> Certificate:
        """What is proven about these kernels for all inputs; bounds on continuous groups use it."""
        return self.rule.certificate

    def check_samples(self, x: Inputs, argument: str = "x") -> Inputs:
        """`x` as this network takes it; an adjacency that all graphs share is given to each of them."""
        return _check_inputs(x, argument)

    def restrict(self, get: str | tuple[str, ...]) -> "KernelFn":
        """Return the same function: its work for each sample does not depend on which kernels are wanted."""
        return self

    def per_sample(self, x: Inputs) -> Any:
        """What `per_pair` needs to know about each sample: a pytree of arrays with leading axis n."""
        return _points(self.rule, _check_inputs(x, "x"))

    def per_pair(self, left: Any, right: Any, get: Get = None) -> Any:
        """Kernels of all pairs of samples, from what `per_sample` returned for each side."""
        _check_same_shape(left["shape"].value, right["shape"].value)
        return _pairs(self.rule, left, right, canonical_get(get))

    def entries_per_pair(self, x: Inputs) -> int:
        """How many numbers one pair of samples occupies at the widest layer, for choosing a tile size."""
        rule, x = _flattened(self.rule, x)
        positions = math.prod(nodes_of(x).shape[1:-1]) * rule.widening()
        return positions**2 if _input_need(rule).full_pairs else positions

    def radial(self, q1: Array, q2: Array, cosine: Array, get: Get = None) -> Any:
        """Kernels as a function of mean squared norms and cosine, entry by entry.

        Only for networks whose `certificate.dot_product` holds. `q` is ‖x‖² divided by the number of features; that
        number itself matters in standard parameterization, see `of_features`.

        Example:
            >>> from ntk_equiv import stax
            >>> _, _, kernel_fn = stax.serial(stax.Dense(64), stax.Relu(), stax.Dense(1))
            >>> one = jnp.ones(2)
            >>> print(kernel_fn.radial(one, one, jnp.array([1.0, -1.0]), "nngp"))
            [0.5 0. ]
        """
        if not self.certificate.dot_product:
            raise refusal(
                "kernel_fn",
                expected="that of a fully connected network on vectors",
                got="a network with convolutions, pooling, graphs or dropout",
                fix="Evaluate it on inputs instead: its kernel is no function of norms and cosine.",
            )
        q1, q2, cosine = (real_array(v, name) for v, name in ((q1, "q1"), (q2, "q2"), (cosine, "cosine")))
        same_shape(q1=q1, q2=q2, cosine=cosine)
        q1, q2, cosine = jnp.broadcast_arrays(q1, q2, cosine)
        return _radial(self.rule, q1, q2, cosine, self.features, canonical_get(get))

    def of_features(self, features: int) -> "KernelFn":
        """The same kernels, of which `radial` knows that inputs have so many features.

        Example:
            >>> from ntk_equiv import stax
            >>> _, _, kernel_fn = stax.Dense(1, parameterization="standard")
            >>> print(kernel_fn.of_features(3).radial(jnp.ones(1), jnp.ones(1), jnp.ones(1), "ntk"))
            [3.]
        """
        return replace(self, features=positive_integer(features, "features"))


def nodes_of(x: Inputs) -> Array:
    """The feature array of samples that may be graphs."""
    return x.nodes if isinstance(x, Graph) else x


def _check_inputs(x: Inputs, argument: str) -> Inputs:
    """`x` as JAX arrays, if it is a batch of floating-point samples."""
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


def _check_same_features(x1: Inputs, x2: Inputs) -> None:
    """Refuse two batches whose samples differ in shape."""
    graphs = isinstance(x1, Graph), isinstance(x2, Graph)
    _check_same_shape(nodes_of(x1).shape[1:], nodes_of(x2).shape[1:], alike=graphs[0] == graphs[1])


def _check_same_shape(shape1: tuple[int, ...], shape2: tuple[int, ...], *, alike: bool = True) -> None:
    if shape1 != shape2 or not alike:
        raise refusal(
            "x2",
            expected=f"samples like those of `x1`, of shape {shape1}",
            got=f"samples of shape {shape2}",
            fix="Both batches must have the same spatial axes and the same number of features.",
        )


def _two_patterns(pattern: Any) -> tuple[Any, Any]:
    """The adjacencies of both sides, from neural-tangents' keyword."""
    if pattern is None:
        return None, None
    if not isinstance(pattern, tuple | list) or len(pattern) != 2:
        fix = "Pass `(pattern1, pattern2)`, the second `None` where `x2` is; or a `Graph` as `x1`."
        raise refusal("pattern", expected="the adjacencies of `x1` and `x2`", got=type(pattern).__name__, fix=fix)
    return pattern[0], pattern[1]


def _flattened(rule: Rule, x: Inputs) -> tuple[Rule, Inputs]:
    """Rule and inputs; if the network flattens them first, vectors and the rest of the network.

    The inner products of vectors are one product of matrices, where those of all positions would be kept apart first.
    """
    rest = rule.after_flattening()
    if rest is None:
        return rule, x
    nodes = nodes_of(x)
    vectors = nodes.reshape(nodes.shape[0], math.prod(nodes.shape[1:]))
    return rest, Graph(vectors, x.adjacency) if isinstance(x, Graph) else vectors


def _input_need(rule: Rule) -> Need:
    need = rule.need(OUTPUT)
    if isinstance(need, tuple):
        fix = "Put `FanOut` before `parallel`, and `FanInSum` after it."
        raise refusal("network", expected="one with a single input", got="several branches", fix=fix)
    return need


@partial(jax.jit, static_argnames="get")
def _evaluate(rule: Rule, x1: Inputs, x2: Inputs | None, get: Any) -> Any:
    left = _points(rule, x1)
    right = left if x2 is None else _points(rule, x2)
    # Row factors are computed once per sample here, not once per pair inside the loops that use them.
    left, right = materialize((left, right), nodes_of(x1))
    return _pairs(rule, left, right, get)


@jax.jit
def _points(rule: Rule, x: Inputs) -> Any:
    shape = nodes_of(x).shape[1:]
    rule, x = _flattened(rule, x)
    need, nodes = _input_need(rule), nodes_of(x)
    adjacency = x.adjacency if isinstance(x, Graph) else None
    # Squares of inputs in units of their own size neither overflow nor underflow.
    unit = power_of_two(jnp.max(jnp.abs(nodes), -1))
    scaled = nodes / unit[..., None]
    norms = jnp.mean(jnp.square(scaled), -1)
    # The covariance with a sample that vanishes has a derivative there, which a factor 0 would hide.
    root = jnp.where(norms > 0, safe_sqrt(norms), 1)
    full = need.points == COVARIANCE and nodes.ndim > 2
    q = None if need.points == NOTHING else norms * unit * unit
    points = Points(
        _covariance(nodes, nodes, paired=True, full=True) if full else q,
        None,
        adjacency,
        nodes.shape[1:-1],
        full=full,
        gaussian=False,
        nodes=nodes,
        root=None if full else safe_sqrt(norms) * unit,
        channels=nodes.shape[-1],
    )
    _, trace = rule.points(points, OUTPUT)
    known = {"trace": trace, "shape": Fixed(shape)}
    if not _by_cosines(need, nodes):
        return {"nodes": nodes, **known}
    return {"nodes": scaled, "root": unit * root, "inverse_root": 1 / root, **known}


@partial(jax.jit, static_argnames="get")
def _pairs(rule: Rule, left: Any, right: Any, get: Any) -> Any:
    rule = rule.after_flattening() or rule
    need = _input_need(rule)
    full = need.full_pairs and left["nodes"].ndim > 2
    nngp = _covariance(left["nodes"], right["nodes"], paired=False, full=full)
    pairs = Pairs(nngp, None, None, full=full, with_ntk=get != "nngp" and get != ("nngp",))
    if _by_cosines(need, left["nodes"]):
        pairs = _with_gap(pairs, left, right)
    return select(_finished(rule.pairs(pairs.fitted(need), left["trace"], right["trace"], OUTPUT)), get)


@partial(jax.jit, static_argnames=("features", "get"))
def _radial(rule: Rule, q1: Array, q2: Array, cosine: Array, features: int | None, get: Any) -> Any:
    shape = cosine.shape
    q1, q2, cosine = (v.reshape(-1) for v in (q1, q2, cosine))
    sides = [Points(q, None, None, grid=(), full=False, gaussian=False, channels=features) for q in (q1, q2)]
    left, right = (rule.points(points, OUTPUT)[1] for points in sides)
    nngp = cosine * safe_sqrt(q1) * safe_sqrt(q2)
    pairs = Pairs(nngp, None, 1 - cosine, full=False, with_ntk=True, paired=True)
    kernel = _finished(rule.pairs(pairs.fitted(_input_need(rule)), left, right, OUTPUT))
    return jax.tree.map(lambda k: k.reshape(shape), select(kernel, get))


def _finished(pairs: Any) -> Kernel:
    if isinstance(pairs, tuple):
        fix = "Put `FanInSum` at its end."
        raise refusal("network", expected="one with a single output", got=f"{len(pairs)} branches", fix=fix)
    ntk = pairs.ntk
    if ntk is None and pairs.with_ntk:  # A network without a single trainable layer.
        ntk = jnp.zeros_like(pairs.nngp)
    return Kernel(pairs.nngp, ntk)


def _covariance(x1: Array, x2: Array, *, paired: bool, full: bool) -> Array:
    """Mean over features of products of inputs: for equal positions, or for all pairs of them."""
    axes = range(x1.ndim - 2)
    left = [chr(ord("d") + 2 * i) for i in axes]
    right = [chr(ord("d") + 2 * i + 1) for i in axes] if full else left
    out = [c for pair in zip(left, right, strict=True) for c in pair] if full else left
    a, b = "a", "a" if paired else "b"
    batch = "a" if paired else "ab"
    subscripts = f"{a}{''.join(left)}c,{b}{''.join(right)}c->{batch}{''.join(out)}"
    return jnp.einsum(subscripts, x1, x2, precision=lax.Precision.HIGHEST) / x1.shape[-1]


def _by_cosines(need: Need, nodes: Array) -> bool:
    """Whether the kernels of inputs are computed from their cosines: they are if those are asked for, or inexact."""
    return need.gap or nodes.shape[-1] > LONG


def _with_gap(pairs: Pairs, left: Any, right: Any) -> Pairs:
    """Kernels of inputs from those of inputs of size 1; inputs that are parallel up to rounding count as parallel.

    The rounding error of an inner product grows with the square root of its length.
    """
    tolerance = float(jnp.finfo(pairs.nngp.dtype).eps) * max(SNAP, left["nodes"].shape[-1] ** 0.5)
    cosine = pairs.nngp * pairs.on_left(left["inverse_root"]) * pairs.on_right(right["inverse_root"])
    cosine = snapped(cosine, tolerance)
    return replace(pairs, nngp=pairs.on_left(left["root"]) * cosine * pairs.on_right(right["root"]), gap=1 - cosine)
