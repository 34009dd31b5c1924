"""Architectures that every kernel law and every oracle runs over. Add a row, and all of them see it.

`build` takes a `stax` module, ours or neural-tangents', so that one row describes both networks.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Architecture(NamedTuple):
    """A network to build, and the shape of one input sample.

    `graph` says that it has a random adjacency, between positions of all spatial axes or only of `axes`.
    """

    name: str
    build: Callable[[Any], Any]
    shape: tuple[int, ...]
    graph: bool = False
    axes: tuple[int, ...] | None = None

    def inputs(self, seed: int, n: int, dtype: Any = jnp.float64) -> tuple[jax.Array, jax.Array | None]:
        """Random samples, and their adjacencies if this is a graph network."""
        rng = np.random.default_rng(seed)
        x = jnp.asarray(rng.normal(size=(n, *self.shape)), dtype)
        if not self.graph:
            return x, None
        nodes = self.shape[:-1] if self.axes is None else tuple(self.shape[axis - 1] for axis in self.axes)
        return x, jnp.asarray(rng.uniform(size=(n, *nodes, *nodes)) < 0.5, dtype)


def mlp(activation: Callable[[Any], Any], depth: int, W_std: float = 1.3, b_std: float | None = 0.2) -> Callable:
    """`depth` hidden layers and a linear read-out."""

    def build(stax: Any) -> Any:
        hidden = [layer for _ in range(depth) for layer in (stax.Dense(32, W_std, b_std), activation(stax))]
        return stax.serial(*hidden, stax.Dense(1, 1.1, 0.3))

    return build


def cnn(*tail: Callable[[Any], Any], depth: int = 2, activation: str = "Relu", **conv: Any) -> Callable:
    """Convolutions with an activation after each, then the given layers."""
    settings = {"filter_shape": (3, 3), "W_std": 1.4, "b_std": 0.1} | conv

    def build(stax: Any) -> Any:
        body = [layer for _ in range(depth) for layer in (stax.Conv(8, **settings), getattr(stax, activation)())]
        return stax.serial(*body, *(layer(stax) for layer in tail))

    return build


def _residual(stax: Any) -> Any:
    branch = stax.serial(stax.Dense(32, 1.2, 0.1), stax.Relu(), stax.Dense(32, 1.1, 0.2))
    block = stax.serial(stax.FanOut(2), stax.parallel(branch, stax.Identity()), stax.FanInSum())
    return stax.serial(stax.Dense(32, 1.0, 0.1), block, stax.Relu(), stax.Dense(1))


def _deep_residual(stax: Any) -> Any:
    branch = stax.serial(stax.Relu(), stax.Dense(7, 0.3, 0.1))
    block = stax.serial(stax.FanOut(2), stax.parallel(stax.Identity(), branch), stax.FanInSum())
    return stax.serial(stax.Dense(7), stax.repeat(block, 50), stax.Dense(1))


def _residual_conv(stax: Any) -> Any:
    first, second = stax.Conv(8, (3, 3), padding="SAME", b_std=0.1), stax.Conv(8, (3, 3), padding="SAME")
    branch = stax.serial(first, stax.Relu(), second)
    shortcut = stax.Conv(8, (1, 1), W_std=0.7)
    block = stax.serial(stax.FanOut(2), stax.parallel(branch, shortcut), stax.FanInSum())
    return stax.serial(block, stax.Relu(), stax.GlobalAvgPool(), stax.Dense(1, 1.2, 0.1))


def gnn(*tail: Callable[[Any], Any], depth: int = 2) -> Callable:
    """Sums over neighbours, each with a dense layer and ReLU after it, then the given layers."""

    def build(stax: Any) -> Any:
        body = [layer for _ in range(depth) for layer in (stax.Aggregate(), stax.Dense(16, 1.2, 0.1), stax.Relu())]
        return stax.serial(*body, *(layer(stax) for layer in tail))

    return build


def _partly_aggregated(stax: Any) -> Any:
    return stax.serial(stax.Dense(8), stax.Aggregate(aggregate_axis=(2,)), stax.Dense(8), stax.Relu(), stax.Flatten())


def side_by_side(fan_in: Callable, *branches: Callable[[Any], list]) -> Callable:
    """A dense layer, branches behind it, and their fan-in under a linear read-out."""

    def build(stax: Any) -> Any:
        parts = stax.parallel(*(stax.serial(*branch(stax)) for branch in branches))
        return stax.serial(stax.Dense(8, 1.2, 0.2), stax.FanOut(len(branches)), parts, fan_in(stax), stax.Dense(1))

    return build


def attention(*tail: Callable[[Any], Any], **settings: Any) -> Callable:
    """A hidden layer with ReLU, self-attention with all standard deviations set, then the given layers."""
    stds = {"W_key_std": 1.2, "W_value_std": 0.8, "W_query_std": 0.9, "W_out_std": 1.1, "b_std": 0.3}

    def build(stax: Any) -> Any:
        body = stax.Dense(6, 1.3, 0.2), stax.Relu()
        return stax.serial(*body, stax.GlobalSelfAttention(4, 6, 5, 2, **stds | settings), *(one(stax) for one in tail))

    return build


def joined_positions(*tail: Callable[[Any], Any], axis: int, rank: int) -> Callable:
    """Two convolutions joined along a spatial axis, an activation, and the given layers.

    A layer comes before, because the two kernels of a first layer are equal and could be taken for each other.
    """

    def build(stax: Any) -> Any:
        shapes = (2,) * rank, (1, *[2] * (rank - 1))
        branches = stax.parallel(*(stax.Conv(8, shape, W_std=1.3, b_std=0.3) for shape in shapes))
        before = stax.serial(stax.Dense(8, 1.2, 0.1), stax.Sin())
        layers = [before, stax.FanOut(2), branches, stax.FanInConcat(axis), stax.Erf()]
        return stax.serial(*layers, *(layer(stax) for layer in tail))

    return build


def standard(*layers: tuple) -> Callable:
    """Layers with ReLU in standard parameterization, given as (name, width, factor of the width, *settings)."""

    def build(stax: Any) -> Any:
        body, factor = [], 1
        for name, width, scaled, *settings in layers:
            form = {"parameterization": "standard", "s": (factor, scaled), "W_std": 1.3, "b_std": 0.2}
            body += [getattr(stax, name)(width, *settings, **form), stax.Relu()]
            factor = scaled
        return stax.serial(*body, stax.Flatten(), stax.Dense(2, 1.2, None, parameterization="standard", s=(factor, 1)))

    return build


def _standard_mlp(stax: Any, first: float, second: float) -> Any:
    """Two hidden layers without biases, of which one may vanish identically and yet be trained."""
    dense = lambda W_std, b_std: stax.Dense(8, W_std, b_std, parameterization="standard")  # noqa: E731
    return stax.serial(dense(first, None), stax.Relu(), dense(second, None), stax.Abs(), dense(1.2, 0.3))


def _hermite(stax: Any) -> Any:
    """Unit variance, which neural-tangents assumes, is what `Rbf` and a dense layer without bias deliver."""
    return stax.serial(stax.Dense(8), stax.Rbf(0.4), stax.Dense(8), stax.Hermite(3), stax.Dense(1))


def _dropout_conv(stax: Any) -> Any:
    first = [stax.Conv(8, (2,), b_std=0.1), stax.Erf(), stax.Dropout(0.6), stax.AvgPool((2,))]
    return stax.serial(*first, stax.Dense(8), stax.Sin(), stax.Dropout(0.8), stax.Flatten())


def arcsine_dual(cov12: jax.Array, var1: jax.Array, var2: jax.Array) -> jax.Array:
    """E[erf(u) erf(v)]."""
    return 2 / jnp.pi * jnp.arcsin(2 * cov12 / jnp.sqrt((1 + 2 * var1) * (1 + 2 * var2)))


def _normalized(stax: Any) -> Any:
    first, second = stax.LayerNorm(), stax.LayerNorm(eps=0.3)
    hidden = [stax.Dense(8, 1.3, 0.2), first, stax.Relu(), stax.Dense(8, 1.3, 0.2), second, stax.Erf()]
    return stax.serial(*hidden, stax.Dense(1))


def _normalized_over_positions(stax: Any) -> Any:
    columns, all_axes = stax.LayerNorm((1, -1), 0.1), stax.LayerNorm((1, 2, 3), 0.2)
    body = [stax.Conv(8, (3, 2), b_std=0.2), columns, stax.Relu(), stax.Conv(8, (2, 2)), all_axes, stax.Gelu()]
    return stax.serial(*body, stax.GlobalAvgPool(), stax.Dense(1))


def _only_attention(stax: Any) -> Any:
    plain, embedded = stax.GlobalSelfAttention(4, 4, 4, 2), {"pos_emb_type": "SUM", "val_pos_emb": True}
    bilinear = stax.GlobalSelfAttention(4, 4, 4, 2, False, attention_mechanism="IDENTITY")
    return stax.serial(plain, stax.GlobalSelfAttention(4, 4, 4, 2, **embedded), bilinear)


def transposed(*tail: Callable[[Any], Any], padding: str) -> Callable:
    """Two transposed convolutions, with filters longer and shorter than their strides, then the given layers."""

    def build(stax: Any) -> Any:
        first = stax.ConvTranspose(8, (3, 2), (2, 1), padding, 1.4, 0.2)
        second = stax.ConvTranspose(8, (1, 3), (1, 2), padding, 1.2, 0.1)
        return stax.serial(first, stax.Relu(), second, stax.Erf(), *(layer(stax) for layer in tail))

    return build


def local(*tail: Callable[[Any], Any], **settings: Any) -> Callable:
    """A convolution with weights of their own between two others, then the given layers."""

    def build(stax: Any) -> Any:
        middle = stax.ConvLocal(8, (2, 3), **{"W_std": 1.3, "b_std": 0.3} | settings)
        last = stax.Conv(8, (2, 1), b_std=0.1)
        # Two convolutions: after an odd number of them neural-tangents confuses the axes of positions here.
        body = [stax.Conv(8, (2, 2), padding="SAME", b_std=0.2), stax.Erf()] * 2 + [
            middle,
            stax.Relu(),
            last,
            stax.Sin(),
        ]
        return stax.serial(*body, *(layer(stax) for layer in tail))

    return build


def moved(layer: Callable[[Any], Any], *tail: Callable[[Any], Any]) -> Callable:
    """A fixed map of positions between layers with weights, then the given layers."""

    def build(stax: Any) -> Any:
        # Two convolutions: after an odd number of them neural-tangents confuses the axes of positions here.
        convs = [stax.Conv(8, (2, 2), padding="SAME", W_std=1.3, b_std=0.3), stax.Relu()] * 2
        first = stax.serial(*convs)
        return stax.serial(first, layer(stax), stax.Dense(8, 1.2, 0.1), *(one(stax) for one in tail))

    return build


def _contraction(stax: Any) -> Any:
    return stax.DotGeneral(rhs=jnp.array([0.3, -1.0, 0.5, 2.0]), dimension_numbers=(((1,), (0,)), ((), ())))


_CLOSE = {"pos_emb_decay_fn": lambda d: jnp.exp(-d / 2), "W_pos_emb_std": 0.7}
_BILINEAR = {"linear_scaling": False, "attention_mechanism": "IDENTITY"}

_dense = lambda stax: stax.Dense(1, 1.3, 0.2)  # noqa: E731
_flatten = lambda stax: stax.Flatten()  # noqa: E731
_gap = lambda stax: stax.GlobalAvgPool()  # noqa: E731
_relu = lambda stax: stax.Relu()  # noqa: E731

ARCHITECTURES = [
    Architecture("linear", lambda s: s.Dense(1, 1.5, 0.5), (7,)),
    Architecture("relu-1", mlp(lambda s: s.Relu(), 1), (7,)),
    Architecture("relu-3", mlp(lambda s: s.Relu(), 3), (7,)),
    Architecture("relu-8-no-bias", mlp(lambda s: s.Relu(), 8, 2**0.5, None), (7,)),
    Architecture("relu-wide-input", mlp(lambda s: s.Relu(), 2, 0.5, 1.0), (300,)),
    Architecture("leaky-relu", mlp(lambda s: s.LeakyRelu(0.2), 3), (7,)),
    Architecture("ab-relu", mlp(lambda s: s.ABRelu(-0.5, 1.5), 2), (7,)),
    Architecture("abs", mlp(lambda s: s.Abs(), 2), (7,)),
    Architecture("erf-1", mlp(lambda s: s.Erf(), 1, 1.5), (7,)),
    Architecture("erf-4", mlp(lambda s: s.Erf(), 4, 2.5), (7,)),
    Architecture("erf-scaled", mlp(lambda s: s.Erf(0.7, 1.6, 0.4), 2), (7,)),
    Architecture("gelu", mlp(lambda s: s.Gelu(), 3), (7,)),
    Architecture("sin", mlp(lambda s: s.Sin(1.2, 0.8, 0.3), 2), (7,)),
    Architecture("cos", mlp(lambda s: s.Cos(0.9, 1.1, 0.2), 2), (7,)),
    Architecture("sin-defaults", mlp(lambda s: s.Sin(), 1), (7,)),
    Architecture(
        "numerical", mlp(lambda s: s.ElementwiseNumerical(lambda x: jnp.exp(-(x**2) / 8) * (1 + x), 40), 1, 0.8), (7,)
    ),
    Architecture(
        "repeated", lambda s: s.serial(s.Dense(32), s.repeat(s.serial(s.Relu(), s.Dense(32, 1.3, 0.1)), 3)), (7,)
    ),
    Architecture("residual", _residual, (7,)),
    Architecture("erf-after-relu", lambda s: s.serial(s.Dense(8), s.Erf(), s.Dense(8), s.Relu(), s.Dense(1)), (7,)),
    Architecture("ends-in-activation", lambda s: s.serial(s.Dense(8, 1.5), s.Relu()), (7,)),
    Architecture("conv-valid-flatten", cnn(_flatten, _dense), (7, 6, 2)),
    Architecture("conv-same-flatten", cnn(_flatten, _dense, padding="SAME", depth=3), (5, 4, 3)),
    Architecture("conv-circular-flatten", cnn(_flatten, _dense, padding="CIRCULAR"), (5, 4, 1)),
    Architecture("conv-strided-valid", cnn(_flatten, _dense, strides=(2, 1)), (9, 6, 2)),
    Architecture("conv-strided-same", cnn(_flatten, _dense, strides=(2, 2), padding="SAME"), (7, 6, 2)),
    Architecture(
        "conv-strided-circular", cnn(_flatten, _dense, strides=(2, 2), padding="CIRCULAR", depth=1), (6, 5, 2)
    ),
    Architecture("conv-even-filter-same", cnn(_flatten, _dense, filter_shape=(2, 3), padding="SAME"), (5, 4, 2)),
    Architecture("conv-even-filter-circular", cnn(_gap, _dense, filter_shape=(2, 2), padding="CIRCULAR"), (4, 4, 2)),
    Architecture("conv-spatial-output", cnn(padding="SAME", depth=2), (4, 3, 2)),
    Architecture("conv-spatial-dense", cnn(_dense, padding="VALID", depth=1), (4, 4, 2)),
    Architecture("conv-gap", cnn(_gap, _dense, padding="SAME"), (4, 5, 2)),
    Architecture("conv-gap-erf", cnn(_gap, _dense, padding="CIRCULAR", activation="Erf"), (4, 4, 2)),
    Architecture("conv-global-sum", cnn(lambda s: s.GlobalSumPool(), _dense), (5, 6, 2)),
    Architecture(
        "conv-gap-then-relu", cnn(_gap, _dense, lambda s: s.Relu(), _dense, padding="SAME", depth=1), (4, 4, 2)
    ),
    Architecture("conv-flatten-then-relu", cnn(_flatten, _dense, lambda s: s.Relu(), _dense, depth=1), (4, 5, 2)),
    Architecture(
        "conv-avgpool-conv",
        lambda s: s.serial(
            s.Conv(8, (3, 3), padding="SAME", b_std=0.1),
            s.Relu(),
            s.AvgPool((2, 2), (2, 2)),
            s.Conv(8, (2, 2), W_std=1.3),
            s.Relu(),
            s.Flatten(),
            s.Dense(1),
        ),
        (6, 6, 1),
    ),
    Architecture("avgpool-same", cnn(lambda s: s.AvgPool((3, 2), (2, 1), "SAME"), depth=1), (5, 5, 2)),
    Architecture("avgpool-edges", cnn(lambda s: s.AvgPool((3, 3), (2, 2), "SAME", True), depth=1), (7, 6, 2)),
    Architecture(
        "avgpool-circular", cnn(lambda s: s.AvgPool((2, 2), (1, 1), "CIRCULAR"), _flatten, depth=1), (6, 5, 2)
    ),
    Architecture("sumpool", cnn(lambda s: s.SumPool((2, 2), (2, 2)), _flatten, _dense, depth=1), (6, 6, 2)),
    Architecture("conv-residual", _residual_conv, (4, 4, 2)),
    Architecture(
        "sequence", lambda s: s.serial(s.Conv(8, (3,), b_std=0.1), s.Relu(), s.GlobalAvgPool(), s.Dense(1)), (6, 2)
    ),
    Architecture(
        "volume",
        lambda s: s.serial(s.Conv(8, (2, 2, 2), padding="SAME", b_std=0.1), s.Relu(), s.GlobalAvgPool(), s.Dense(1)),
        (3, 2, 3, 2),
    ),
    Architecture("layer-norm", _normalized, (7,)),
    Architecture("layer-norm-over-positions", _normalized_over_positions, (6, 5, 2)),
    Architecture("standard-dense", standard(("Dense", 6, 3), ("Dense", 5, 2)), (7,)),
    Architecture(
        "standard-conv",
        lambda s: s.serial(
            standard(("Conv", 4, 3, (3, 2)), ("Conv", 5, 1, (2, 2), None, "SAME"))(s), _relu(s), _dense(s)
        ),
        (5, 4, 2),
    ),
    Architecture("attention", attention(_relu, _flatten, _dense), (4, 3)),
    Architecture("attention-only", _only_attention, (4, 2)),
    Architecture(
        "attention-concat",
        attention(
            lambda s: s.LayerNorm(), _relu, _gap, attention_mechanism="RELU", pos_emb_type="CONCAT", n_chan_pos_emb=5
        ),
        (2, 3, 2),
    ),
    Architecture(
        "attention-decaying",
        attention(attention_mechanism="ABS", pos_emb_type="CONCAT", val_pos_emb=True, pos_emb_p_norm=1, **_CLOSE),
        (2, 3, 2),
    ),
    Architecture(
        "attention-bilinear-decaying", attention(_relu, _gap, pos_emb_type="SUM", **_BILINEAR, **_CLOSE), (4, 3)
    ),
    Architecture("graph-pooled", gnn(_gap, _dense), (5, 3), graph=True),
    Architecture("graph-nodes", gnn(_dense, depth=1), (4, 3), graph=True),
    Architecture("graph-sum", gnn(lambda s: s.GlobalSumPool(), _dense, depth=1), (4, 3), graph=True),
    Architecture("graph-along-one-axis", _partly_aggregated, (2, 3, 2), graph=True, axes=(2,)),
    Architecture("graph-flatten", gnn(_flatten, _dense, depth=2), (4, 3), graph=True),
    Architecture("rbf", mlp(lambda s: s.Rbf(), 1, 0.8), (7,)),
    Architecture("gaussian", mlp(lambda s: s.Gaussian(1.2, -0.6), 2), (7,)),
    Architecture("exponential", mlp(lambda s: s.Exp(0.7, 0.5), 1), (7,)),
    Architecture("monomial", mlp(lambda s: s.Monomial(5), 1, 0.6), (7,)),
    Architecture("sigmoid-like", mlp(lambda s: s.Sigmoid_like(), 1), (7,)),
    Architecture("polynomial", mlp(lambda s: s.Polynomial([0.3, -1.0, 0.2, 0.1]), 2, 0.8), (7,)),
    Architecture("exp-normalized", mlp(lambda s: s.ExpNormalized(0.8, -0.7), 1), (7,)),
    Architecture("sign", mlp(lambda s: s.Sign(), 2), (7,)),
    Architecture("hermite", _hermite, (7,)),
    Architecture("elementwise", mlp(lambda s: s.Elementwise(jax.scipy.special.erf, arcsine_dual), 1), (7,)),
    Architecture(
        "product",
        side_by_side(
            lambda s: s.FanInProd(),
            lambda s: [s.Erf(), s.Dense(8, 1.2, 0.1)],
            lambda s: [s.Sin(), s.Dense(8)],
            lambda s: [s.Gelu()],
        ),
        (7,),
    ),
    Architecture(
        "joined-channels",
        side_by_side(lambda s: s.FanInConcat(), lambda s: [s.Erf(), s.Dense(5, 1.3)], lambda s: [s.Cos()]),
        (7,),
    ),
    Architecture("joined-positions", joined_positions(_flatten, _dense, axis=1, rank=1), (4, 2)),
    Architecture("joined-positions-pooled", joined_positions(_gap, axis=-3, rank=2), (3, 3, 2)),
    Architecture("dropout", mlp(lambda s: s.serial(s.Erf(), s.Dropout(0.7)), 2), (7,)),
    Architecture("dropout-conv", _dropout_conv, (4, 2)),
    Architecture("flatten-first", lambda s: s.serial(s.Flatten(), mlp(lambda s: s.Relu(), 2)(s)), (4, 3, 2)),
    Architecture("rectified-monomial", mlp(lambda s: s.RectifiedMonomial(3), 1, 0.8), (7,)),
    Architecture("rectified-square", mlp(lambda s: s.RectifiedMonomial(2), 1, 0.9), (7,)),
    Architecture("step", mlp(lambda s: s.RectifiedMonomial(0), 1), (7,)),
    Architecture("vectors-for-conv", lambda s: s.serial(s.Conv(8, (), W_std=1.3), s.Relu(), s.Dense(1)), (7,)),
    Architecture(
        "product-of-activations",
        side_by_side(
            lambda s: s.FanInProd(),
            lambda s: [s.Dense(8, 1.2, 0.1), s.Relu()],
            lambda s: [s.Dense(8), s.Sigmoid_like()],
        ),
        (7,),
    ),
    Architecture(
        "relu-50", lambda s: s.serial(s.repeat(s.serial(s.Dense(7, 1.3, 0.2), s.Relu()), 50), s.Dense(1)), (7,)
    ),
    Architecture("residual-50", _deep_residual, (7,)),
    Architecture("no-weights-first", lambda s: _standard_mlp(s, 0.0, 1.3), (7,)),
    Architecture("no-weights-second", lambda s: _standard_mlp(s, 1.3, 0.0), (7,)),
    Architecture("gabor", mlp(lambda s: s.Gabor(), 2), (7,)),
    Architecture("transposed-valid", transposed(_gap, _dense, padding="VALID"), (2, 3, 2)),
    Architecture("transposed-same", transposed(_flatten, _dense, padding="SAME"), (2, 3, 2)),
    Architecture("transposed-circular", transposed(_gap, padding="CIRCULAR"), (2, 3, 2)),
    Architecture("local", local(_flatten, _dense, padding="SAME"), (4, 3, 2)),
    Architecture("local-pooled", local(_gap, _dense, padding="VALID", parameterization="standard"), (4, 4, 2)),
    Architecture("local-positions", local(padding="CIRCULAR", strides=(2, 1)), (4, 3, 2)),
    Architecture("index", moved(lambda s: s.Index(s.Slice[:, 1:, ::2]), _flatten, _dense), (4, 3, 2)),
    Architecture("index-one", moved(lambda s: s.Index(s.Slice[:, 0]), _relu, _gap), (4, 3, 2)),
    Architecture("resized", moved(lambda s: s.ImageResize((-1, 2, 5, -1), "linear"), _flatten), (4, 3, 2)),
    Architecture("resized-nearest", moved(lambda s: s.ImageResize((-1, 6, -1, -1), "nearest"), _gap), (4, 3, 2)),
    Architecture("scaled", moved(lambda s: s.DotGeneral(lhs=-0.7), _relu, _flatten, _dense), (4, 3, 2)),
    Architecture("contracted", moved(_contraction, _dense, _relu), (4, 3, 2)),
]


def _on_group(*tail: Callable[[Any], Any], group: str = "C4") -> Callable:
    def build(stax: Any) -> Any:
        settings = {"padding": "SAME", "b_std": 0.1, "group": group}
        lift, conv = (layer(8, (3, 3), **settings) for layer in (stax.LiftingConv, stax.GroupConv))
        return stax.serial(lift, stax.Relu(), conv, *(layer(stax) for layer in tail))

    return build


# Networks of layers that neural-tangents does not have: the kernel laws see them, comparisons with it do not.
OWN_ARCHITECTURES = [
    Architecture("group-features", _on_group(), (3, 3, 2)),
    Architecture("group-pooled", _on_group(_relu, _gap, _dense), (3, 3, 2)),
]
