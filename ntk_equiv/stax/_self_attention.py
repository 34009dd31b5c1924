"""The self-attention layer: its arguments and its finite network. Its kernels are in `_attention`."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ntk_equiv._check import boolean, one_of, positive_integer
from ntk_equiv._typing import Array, Scalar
from ntk_equiv.stax._attention import MECHANISMS, FixedWeights, GaussianScores, NoKernels
from ntk_equiv.stax._axes import check_axes, with_channels_at
from ntk_equiv.stax._dense import variance
from ntk_equiv.stax._network import Network, network
from ntk_equiv.stax._positional import Embedding
from ntk_equiv.stax._rule import Rule
from ntk_equiv.stax._state import in_precision


@dataclass(frozen=True)
class Heads:
    """The finite network; `linear` says that scores are divided by the number of channels, and queries are keys."""

    out: int
    keys: int
    values: int
    heads: int
    linear: bool
    score_std: Any
    value_std: Any
    b_std: Any
    mechanism: str
    embedding: Embedding
    embedding_std: Any
    embedded_values: bool

    def init(self, key: Array, input_shape: tuple[int, ...]) -> tuple:
        """Shape of the output, and (W_query, W_key, W_value, W_out, b, embedding), as in neural-tangents."""
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

    def apply(self, params: tuple, x: Array, **kwargs: Any) -> Array:
        """Outputs of the same grid."""
        W_query, W_key, W_value, W_out, b, noise = params
        grid = x.shape[1:-1]
        tokens = x.reshape(x.shape[0], math.prod(grid), x.shape[-1])
        embedded = self.embedding.applied(tokens, noise, grid, self.embedding_std)
        source = embedded if self.embedded_values else tokens
        k, v = (jnp.einsum("npc,hck->hnpk", t, W) for t, W in ((embedded, W_key), (source, W_value)))
        q = k if self.linear else jnp.einsum("npc,hck->hnpk", embedded, W_query)
        scale = in_precision(self.score_std, x) / (embedded.shape[-1] * self.keys ** (1 if self.linear else 0.5))
        weights = MECHANISMS[self.mechanism](scale * jnp.einsum("hnpk,hnqk->hnpq", q, k))
        merged = jnp.einsum("hnpq,hnqv->npvh", weights, v).reshape(*tokens.shape[:2], self.values * self.heads)
        root = (self.values * self.heads * source.shape[-1]) ** 0.5
        y = in_precision(self.value_std, x) / root * (merged @ W_out)
        y = y.reshape(*x.shape[:-1], self.out)
        return y if b is None else y + in_precision(self.b_std, b) * b.reshape((1,) * (y.ndim - 1) + (self.out,))

    def limit(self) -> Rule:
        """The kernels of infinitely many heads and channels."""
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
    for every mechanism, without it for "IDENTITY" alone; others have `init_fn` and `apply_fn` only.

    Args:
        n_chan_out: number of output channels.
        n_chan_key: number of channels of keys and queries.
        n_chan_val: number of channels of values.
        n_heads: number of heads.
        linear_scaling: divide scores by `n_chan_key`, and let queries and keys share their weights. Otherwise they
            have weights of their own, and scores are divided by the square root of `n_chan_key`.
        W_key_std: standard deviation of the weights of keys.
        W_value_std: of values.
        W_query_std: of queries.
        W_out_std: of outputs. Only W_key_std · W_query_std and W_value_std · W_out_std matter.
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
        channel_axis: that of the last axis, -1 or its number.

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
