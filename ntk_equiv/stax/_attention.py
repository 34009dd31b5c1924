"""Self-attention over all positions, in the limit of infinitely many heads and channels.

A head has queries, keys and values Q, K, V = σ x W / √C at each position. It returns A V with weights A = ζ(score) of
score = Q Kᵀ, divided by the number of channels of the keys ("linear scaling") or by its square root. Heads are put side
by side and multiplied by the matrix of the outputs. With a = σ_Q σ_K and c = σ_O² σ_V² (Hron et al., "Infinite
attention", 2020):

    linear scaling, Q and K with the same weights: the score of a sample has the limit a 𝒦(x, x), so A is a number,
        𝒦' = c A 𝒦 A'ᵀ + σ_b²                           Θ' = c A Θ A'ᵀ + 2 (𝒦' − σ_b²) + σ_b²

    square root, ζ the identity: scores are Gaussian, with covariance a² 𝒦(s, s') 𝒦(u, u'),
        𝒦' = a² c ⟨𝒦, 𝒦⟩ 𝒦 + σ_b²                       Θ' = a² c [⟨𝒦, 𝒦⟩ (Θ + 4 𝒦) + 2 ⟨𝒦, Θ⟩ 𝒦] + σ_b²

where ⟨·, ·⟩ sums over all pairs of positions. Without embeddings these are equations between matrices over positions;
a permutation of the positions takes them to themselves.

**Positional embeddings** are random numbers that attention adds to its input or puts beside it. An embedding e(s) is
drawn once for all samples, with independent channels of covariance σ_e² R(s, s'). R is the identity, or a function of
the distance Σ_i |s_i − s'_i|^p of two positions. Embeddings are trained like weights. The kernels of input and
embedding together are

    "SUM"        𝒦 + σ_e² R                                  Θ + σ_e² R
    "CONCAT"     (C 𝒦 + C_e σ_e² R) / (C + C_e)              (C Θ + C_e σ_e² R) / (C + C_e)

with C channels of the input and C_e of the embedding. Queries and keys see these kernels, and values do if asked for. A
permutation of positions that leaves their distances unchanged also leaves R and the law of the embedding unchanged.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Float

from ntk_equiv._check import boolean, function, one_of, positive_integer, real_number, refusal
from ntk_equiv._positions import apart, joint
from ntk_equiv._typing import Array, Scalar
from ntk_equiv.stax._dense import variance
from ntk_equiv.stax._network import Network, check_axes, network, with_channels_at
from ntk_equiv.stax._precision import in_precision
from ntk_equiv.stax._rule import NOTHING_BUT_SMOOTH, Certificate, Rule
from ntk_equiv.stax._state import (
    Constant,
    Memo,
    Moments,
    PairState,
    Requirements,
    SampleState,
    frozen_pytree,
    require_all_positions,
    static,
)

MECHANISMS: dict[str, Callable[[Array], Array]] = {
    "SOFTMAX": jax.nn.softmax,
    "IDENTITY": lambda score: score,
    "ABS": jnp.abs,
    "RELU": lambda score: jnp.maximum(score, 0),
}


@frozen_pytree
class Embedding:
    """How positions are embedded: `kind`, one of "NONE", "SUM" and "CONCAT", and the law of the embedding."""

    variance: Scalar
    kind: str = static()
    p_norm: float = static()
    decay_fn: Callable | None = static()
    channels: int | None = static()

    @classmethod
    def of(
        cls, variance: Scalar, kind: Any, p_norm: Any, decay_fn: Callable | None, channels: int | None
    ) -> "Embedding":
        """Return a checked embedding."""
        kind = one_of(getattr(kind, "value", kind), ("NONE", "SUM", "CONCAT"), "pos_emb_type")
        channels = None if channels is None else positive_integer(channels, "n_chan_pos_emb")
        if decay_fn is not None:
            function(decay_fn, "pos_emb_decay_fn")
        return cls(variance, kind, real_number(p_norm, "pos_emb_p_norm"), decay_fn, channels)

    def width(self, inputs: int) -> int:
        """Return C_e, for an input with so many channels."""
        if self.kind == "SUM" and self.channels not in (None, inputs):
            raise refusal(
                "n_chan_pos_emb",
                expected=f'the number of channels of the input, {inputs}, for pos_emb_type="SUM"',
                got=self.channels,
                fix='Leave it out, or use pos_emb_type="CONCAT".',
            )
        return inputs if self.channels is None else self.channels

    def shares(self, state: SampleState) -> tuple[float, float]:
        """Return the factors of 𝒦 and of σ_e² R.

        They belong to means over channels, which are not random if there are infinitely many channels: of the input, or
        of embeddings beside it whose number the caller has chosen.
        """
        if self.kind == "NONE":
            return 1.0, 0.0
        if not state.wide and (self.kind == "SUM" or self.channels is None):
            raise refusal(
                "pos_emb_type",
                expected='"NONE" on inputs, or "CONCAT" with n_chan_pos_emb',
                got=f'"{self.kind}", as many channels of embeddings as the inputs have',
                fix="Their number is finite, so kernels would be random. Put a Dense or Conv layer before it.",
            )
        if self.kind == "SUM" and self.channels is None:
            return 1.0, 1.0
        inputs = state.width()
        own = self.width(inputs)
        return (1.0, 1.0) if self.kind == "SUM" else (inputs / (inputs + own), own / (inputs + own))

    def add_to_kernel(self, k: Array, shares: tuple[float, float], grid: tuple[int, ...]) -> Array:
        """Return the kernel of input and embedding, where `k` is that of the input, `[..., positions, positions]`."""
        if self.kind == "NONE":
            return k
        R = jnp.asarray(_covariance(grid, self.p_norm, self.decay_fn), k.dtype)
        added = shares[1] * jnp.asarray(self.variance, k.dtype) * R
        return shares[0] * k + added.reshape((1,) * (k.ndim - 2) + R.shape)

    def draw(self, key: Array, grid: tuple[int, ...], inputs: int) -> Array | None:
        """Return standard normal numbers, `[1, *grid, channels]`, of which `add_to_input` makes the embedding."""
        return None if self.kind == "NONE" else jax.random.normal(key, (1, *grid, self.width(inputs)))

    def add_to_input(self, x: Array, noise: Array | None, grid: tuple[int, ...], std: Scalar) -> Array:
        """Return `x`, `[n, positions, channels]`, with its embedding; `noise` is what `draw` returned."""
        if noise is None:
            return x
        noise = noise.reshape(x.shape[1], noise.shape[-1])
        if self.decay_fn is not None:
            noise = jnp.asarray(_root(grid, self.p_norm, self.decay_fn), x.dtype) @ noise
        e = jnp.broadcast_to((in_precision(std, noise) * noise)[None], (*x.shape[:2], noise.shape[-1]))
        return x + e if self.kind == "SUM" else jnp.concatenate([x, e], -1)


class Attention(Rule):
    """What both limits have in common; `embedded_values` says that values see the embedding too."""

    b_var: Scalar | None
    embedding: Embedding
    embedded_values: bool
    channels: int

    def describe_output(self, state: SampleState) -> SampleState:
        return dataclasses.replace(state, gaussian=True, channels=self.channels, wide=True, fan_outs=0)

    def per_sample(self, state: SampleState, wanted: Requirements) -> tuple[SampleState, Memo]:
        if not state.grid:
            raise refusal(
                "x",
                expected="[n, positions..., channels] for attention",
                got="vectors, which have no positions",
                fix="Give the samples an axis of positions, as in `x[:, :, None]`.",
            )
        if wanted.moments == Moments.NONE:
            return self.describe_output(state).with_cov(None), self.remember(state)
        return super().per_sample(state, dataclasses.replace(wanted, full_pairs=wanted.moments == Moments.COVARIANCE))

    def with_bias(self, k: Array) -> Array:
        """Return the sum of `k` and the variance of the biases."""
        return k if self.b_var is None else k + jnp.asarray(self.b_var, k.dtype)


@frozen_pytree
class FixedWeights(Attention):
    """Linear scaling: a sample attends with weights that are the same for all random draws of the network."""

    score_std: Scalar
    value_var: Scalar
    b_var: Scalar | None
    embedding: Embedding
    mechanism: str = static()
    embedded_values: bool = static()
    channels: int = static()

    @property
    def certificate(self) -> Certificate:
        """Positions matter, so the kernel is not a function of the cosine."""
        return dataclasses.replace(NOTHING_BUT_SMOOTH, smooth=self.mechanism in ("SOFTMAX", "IDENTITY"))

    def requirements_for(self, wanted: Requirements) -> Requirements:
        return Requirements(True, Moments.COVARIANCE)

    def remember(self, state: SampleState) -> Memo:
        assert state.cov is not None, "attention needs covariances of positions, which `requirements_for` declares"
        shares = self.embedding.shares(state)
        seen = self.embedding.add_to_kernel(joint(state.cov, leading=1), shares, state.grid)
        scores = _hide(jnp.asarray(self.score_std, seen.dtype) * seen, _keys_of(state.mask), self.mechanism)
        # A masked key has no weight, so that it does not matter what values say about it.
        return {"weights": MECHANISMS[self.mechanism](scores), "shares": Constant(shares)}

    def per_pair(self, state: PairState, left: Memo, right: Memo, wanted: Requirements) -> PairState:
        shape = state.nngp.shape[state.batch_axes :]  # h, h', w, w'
        grid, shares = shape[::2], left["shares"].value

        def attend(k: Array) -> Array:
            k = joint(k, leading=state.batch_axes)
            k = self.embedding.add_to_kernel(k, shares, grid) if self.embedded_values else k
            k = jnp.asarray(self.value_var, k.dtype) * _weigh(k, left["weights"], right["weights"], wanted.full_pairs)
            return apart(k, shape) if wanted.full_pairs else k.reshape(*k.shape[:-1], *grid)

        signal = attend(state.nngp)
        ntk = None
        if state.with_ntk:
            ntk = self.with_bias(2 * signal)
            before = jnp.zeros_like(state.nngp) if state.ntk is None and self.embedded_values else state.ntk
            ntk = ntk if before is None else ntk + attend(before)
        return dataclasses.replace(state, nngp=self.with_bias(signal), ntk=ntk, gap=None, full=wanted.full_pairs)


@frozen_pytree
class GaussianScores(Attention):
    """Scaling by the square root, without a nonlinearity: the scores of a sample are Gaussian."""

    product_var: Scalar
    b_var: Scalar | None
    embedding: Embedding
    embedded_values: bool = static()
    channels: int = static()

    @property
    def certificate(self) -> Certificate:
        """Positions matter, so the kernel is not a function of the cosine."""
        return NOTHING_BUT_SMOOTH

    def requirements_for(self, wanted: Requirements) -> Requirements:
        return require_all_positions(wanted)

    def remember(self, state: SampleState) -> Memo:
        memo = {"shares": Constant(self.embedding.shares(state))}
        return memo if state.mask is None else memo | {"mask": _keys_of(state.mask)}

    def per_pair(self, state: PairState, left: Memo, right: Memo, wanted: Requirements) -> PairState:
        shape = state.nngp.shape[state.batch_axes :]  # h, h', w, w'
        grid, shares = shape[::2], left["shares"].value

        def seen(k: Array) -> tuple[Array, Array]:
            """Return what queries and keys see, and what values see."""
            embedded = self.embedding.add_to_kernel(joint(k, leading=state.batch_axes), shares, grid)
            if "mask" in left:
                on_left, on_right = left["mask"], right["mask"]
                if not state.paired:
                    on_left, on_right = on_left[:, None], on_right[None]
                embedded = jnp.where(on_left[..., :, None] | on_right[..., None, :], 0, embedded)
            return embedded, embedded if self.embedded_values else joint(k, leading=state.batch_axes)

        factor = jnp.asarray(self.product_var, state.nngp.dtype)
        scores, values = seen(state.nngp)
        size = _inner(scores, values)
        nngp, ntk = size * scores, None
        if state.with_ntk:
            ntk = 4 * nngp
            if state.ntk is not None or self.embedding.kind != "NONE":
                changes, value_changes = seen(jnp.zeros_like(state.nngp) if state.ntk is None else state.ntk)
                ntk = ntk + size * changes + (_inner(changes, values) + _inner(scores, value_changes)) * scores
            ntk = apart(self.with_bias(factor * ntk), shape)
        nngp = apart(self.with_bias(factor * nngp), shape)
        return dataclasses.replace(state, nngp=nngp, ntk=ntk, gap=None)


@frozen_pytree
class NoKernels(Rule):
    """The rule of a layer that has a finite network but no kernels."""

    def requirements_for(self, wanted: Requirements) -> Requirements:
        raise refusal(
            "linear_scaling, attention_mechanism",
            expected='(True, any) or (False, "IDENTITY") for kernels',
            got="scaling by the square root and a nonlinear mechanism, whose kernels have no closed form",
            fix="Use the finite network alone, by init_fn and apply_fn, or choose linear_scaling=True.",
        )

    def per_pair(self, state: PairState, left: Memo, right: Memo, wanted: Requirements) -> PairState:
        raise AssertionError("`requirements_for` comes first, and refuses")


@dataclass(frozen=True)
class Heads:
    """The finite network.

    `linear` says that scores are divided by the number of channels of the keys, and that queries are keys.
    """

    out: int
    keys: int
    values: int
    heads: int
    linear: bool
    score_std: Scalar
    value_std: Scalar
    b_std: Scalar | None
    mechanism: str
    embedding: Embedding
    embedding_std: Scalar
    embedded_values: bool

    def init(self, key: Array, input_shape: tuple[int, ...]) -> tuple:
        """Return the output shape and (W_query, W_key, W_value, W_out, b, embedding), as in neural-tangents."""
        query_key, key_key, value_key, out_key, bias_key, embedding_key = jax.random.split(key, 6)
        *batch, inputs = input_shape
        noise = self.embedding.draw(embedding_key, tuple(batch[1:]), inputs)
        wide = inputs + (noise.shape[-1] if noise is not None and self.embedding.kind == "CONCAT" else 0)
        W_query = None if self.linear else jax.random.normal(query_key, (self.heads, wide, self.keys))
        W_key = jax.random.normal(key_key, (self.heads, wide, self.keys))
        W_value = jax.random.normal(value_key, (self.heads, wide if self.embedded_values else inputs, self.values))
        W_out = jax.random.normal(out_key, (self.values * self.heads, self.out))
        b = None if self.b_std is None else jax.random.normal(bias_key, (self.out,))
        return (*batch, self.out), (W_query, W_key, W_value, W_out, b, noise)

    def apply(self, params: tuple, x: Array, *, mask: Array | None = None, **kwargs: Any) -> Array:
        """Return outputs on the same grid; nothing attends to masked positions."""
        W_query, W_key, W_value, W_out, b, noise = params
        grid = x.shape[1:-1]
        tokens = x.reshape(x.shape[0], math.prod(grid), x.shape[-1])
        embedded = self.embedding.add_to_input(tokens, noise, grid, self.embedding_std)
        keys = _keys_of(mask)
        embedded = embedded if keys is None else jnp.where(keys[..., None], 0, embedded)
        source = embedded if self.embedded_values else tokens
        k, v = (jnp.einsum("npc,hck->hnpk", t, W) for t, W in ((embedded, W_key), (source, W_value)))
        q = k if self.linear else jnp.einsum("npc,hck->hnpk", embedded, W_query)
        scale = in_precision(self.score_std, x) / (embedded.shape[-1] * self.keys ** (1 if self.linear else 0.5))
        scores = scale * jnp.einsum("hnpk,hnqk->hnpq", q, k)
        weights = MECHANISMS[self.mechanism](_hide(scores, None if keys is None else keys[None], self.mechanism))
        merged = jnp.einsum("hnpq,hnqv->npvh", weights, v).reshape(*tokens.shape[:2], self.values * self.heads)
        root = (self.values * self.heads * source.shape[-1]) ** 0.5
        y = in_precision(self.value_std, x) / root * (merged @ W_out)
        y = y.reshape(*x.shape[:-1], self.out)
        return y if b is None else y + in_precision(self.b_std, b) * b.reshape((1,) * (y.ndim - 1) + (self.out,))

    def limit(self) -> Rule:
        """Return the rule for infinitely many heads and channels."""
        b_var = variance(self.b_std, "b_std")
        if self.linear:
            stds = self.score_std, self.value_std**2
            return FixedWeights(*stds, b_var, self.embedding, self.mechanism, self.embedded_values, self.out)
        if self.mechanism == "IDENTITY":
            product = (self.score_std * self.value_std) ** 2
            return GaussianScores(product, b_var, self.embedding, self.embedded_values, self.out)
        return NoKernels()


def GlobalSelfAttention(
    n_chan_out: int,
    n_chan_key: int,
    n_chan_val: int,
    n_heads: int,
    linear_scaling: bool = True,
    W_key_std: Scalar = 1.0,
    W_value_std: Scalar = 1.0,
    W_query_std: Scalar = 1.0,
    W_out_std: Scalar = 1.0,
    b_std: Scalar | None = None,
    attention_mechanism: str = "SOFTMAX",
    pos_emb_type: str = "NONE",
    pos_emb_p_norm: float | int = 2,
    pos_emb_decay_fn: Callable[[Any], Any] | None = None,
    n_chan_pos_emb: int | None = None,
    W_pos_emb_std: Scalar = 1.0,
    val_pos_emb: bool = False,
    batch_axis: int = 0,
    channel_axis: int = -1,
) -> Network:
    """Self-attention of all positions of a sample, tokens, pixels or nodes, in NTK parameterization.

    Kernels are those of infinitely many heads and channels of the keys. With `linear_scaling` they have a closed form
    for every mechanism, without it only for "IDENTITY"; other layers have `init_fn` and `apply_fn` only.

    Args:
        n_chan_out: number of output channels.
        n_chan_key: number of channels of keys and queries.
        n_chan_val: number of channels of values.
        n_heads: number of heads.
        linear_scaling: whether scores are divided by `n_chan_key`, and queries and keys share their weights. Otherwise
            they have weights of their own, and scores are divided by the square root of `n_chan_key`.
        W_key_std: standard deviation of the weights of keys.
        W_value_std: that of values.
        W_query_std: that of queries.
        W_out_std: that of outputs. Only W_key_std · W_query_std and W_value_std · W_out_std matter.
        b_std: standard deviation of the biases of the output; `None` for no bias.
        attention_mechanism: "SOFTMAX" (over the positions attended to), "IDENTITY", "ABS" or "RELU" of the scores.
        pos_emb_type: "NONE", or random positional embeddings that are added to the input of queries and keys ("SUM")
            or put beside it as further channels ("CONCAT").
        pos_emb_p_norm: p in the distance Σ_i |s_i − s'_i|^p of positions.
        pos_emb_decay_fn: covariance of the embeddings as a function of that distance; by default embeddings of
            different positions are independent.
        n_chan_pos_emb: number of channels of embeddings; by default as many as the input has.
        W_pos_emb_std: standard deviation of embeddings.
        val_pos_emb: whether values see the embeddings too.
        batch_axis: 0, the only choice.
        channel_axis: the last axis, -1 or its number.

    Example:
        >>> init_fn, apply_fn, kernel_fn = GlobalSelfAttention(4, 8, 8, n_heads=2)
        >>> init_fn(jax.random.key(0), (-1, 5, 3))[0]
        (-1, 5, 4)
        >>> tokens = jnp.array([[[0.0], [1.0]]])
        >>> print(kernel_fn(tokens, None, "nngp").round(4)[0, 0])
        [[0.25   0.3655]
         [0.3655 0.5344]]
    """
    check_axes(batch_axis, channel_axis)
    stds = {"W_key_std": W_key_std, "W_value_std": W_value_std, "W_query_std": W_query_std, "W_out_std": W_out_std}
    for argument, std in stds.items():
        variance(std, argument)
    pos_emb_var = variance(W_pos_emb_std, "W_pos_emb_std")
    mechanism = getattr(attention_mechanism, "value", attention_mechanism)
    heads = Heads(
        out=positive_integer(n_chan_out, "n_chan_out"),
        keys=positive_integer(n_chan_key, "n_chan_key"),
        values=positive_integer(n_chan_val, "n_chan_val"),
        heads=positive_integer(n_heads, "n_heads"),
        linear=boolean(linear_scaling, "linear_scaling"),
        score_std=W_query_std * W_key_std,
        value_std=W_out_std * W_value_std,
        b_std=b_std,
        mechanism=one_of(mechanism, tuple(MECHANISMS), "attention_mechanism"),
        embedding=Embedding.of(pos_emb_var, pos_emb_type, pos_emb_p_norm, pos_emb_decay_fn, n_chan_pos_emb),
        embedding_std=W_pos_emb_std,
        embedded_values=boolean(val_pos_emb, "val_pos_emb"),
    )
    return with_channels_at(channel_axis, network(heads.init, heads.apply, heads.limit()))


@lru_cache(16)
def _covariance(grid: tuple[int, ...], p_norm: float, decay_fn: Callable | None) -> Float[np.ndarray, "p p"]:
    """Return R between all pairs of positions, counted in the order of a flattened grid."""
    places = np.stack(np.meshgrid(*(np.arange(extent) for extent in grid), indexing="ij"), -1).reshape(-1, len(grid))
    if decay_fn is None:
        return np.eye(len(places))
    distance = np.sum(np.abs(places[:, None] - places[None, :]).astype(float) ** p_norm, axis=-1)
    with jax.ensure_compile_time_eval():
        R = np.asarray(decay_fn(jnp.asarray(distance)), float)
    got = f"an array of shape {R.shape} for one of shape {distance.shape}"
    if R.shape == distance.shape:
        lowest = np.min(np.linalg.eigvalsh(R))  # Rounding in float32 leaves a bit less than zero.
        if lowest >= -1e-5 * np.abs(R).max():
            return R
        got = f"a matrix of {R.shape[0]} positions whose smallest eigenvalue is {lowest:.2g}"
    raise refusal(
        "pos_emb_decay_fn",
        expected="a function of arrays of distances that gives covariances",
        got=got,
        fix="Take for example `lambda d: jnp.exp(-d)`, which is positive definite for pos_emb_p_norm up to 2.",
    )


@lru_cache(16)
def _root(grid: tuple[int, ...], p_norm: float, decay_fn: Callable | None) -> Float[np.ndarray, "p p"]:
    """Return the symmetric square root of R, which exists for singular R too."""
    values, vectors = np.linalg.eigh(_covariance(grid, p_norm, decay_fn))
    return (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T


def _keys_of(mask: Array | None) -> Array | None:
    """Return which positions are masked, in the order of a flattened grid, `[n, positions]`."""
    return None if mask is None else mask.reshape(mask.shape[0], -1)


def _hide(scores: Array, keys: Array | None, mechanism: str) -> Array:
    """Return scores `[..., queries, keys]` of which those of masked keys have no weight."""
    if keys is None:
        return scores
    nothing = float(jnp.finfo(scores.dtype).min) / 2 if mechanism == "SOFTMAX" else 0
    return jnp.where(keys[..., None, :], nothing, scores)


def _weigh(k: Array, left: Array, right: Array, full: bool) -> Array:
    """Return A K A'ᵀ for all pairs of samples (or for paired ones); if not `full`, its diagonal."""
    if k.ndim == 4:
        left, right = left[:, None], right[None]
    half = jnp.matmul(left, k, precision=lax.Precision.HIGHEST)
    if not full:
        return jnp.sum(half * right, -1)
    return jnp.matmul(half, jnp.swapaxes(right, -1, -2), precision=lax.Precision.HIGHEST)


def _inner(a: Array, b: Array) -> Array:
    """Return ⟨a, b⟩, the sum over all pairs of positions."""
    return jnp.sum(a * b, axis=(-2, -1), keepdims=True)
