"""Kernels of self-attention over all positions, in the limit of infinitely many heads and channels.

A head has queries, keys and values Q, K, V = σ x W / √C at each position, and returns A V with weights A = ζ(score) of
score = Q Kᵀ, divided by the number of channels of the keys ("linear scaling") or by its square root; heads are put side
by side and multiplied by the matrix of the outputs. With a = σ_Q σ_K and c = σ_O² σ_V² (Hron et al., "Infinite
attention", 2020):

    linear scaling, Q and K with the same weights: the score of a sample has the limit a 𝒦(x, x), so A is a number,
        𝒦' = c A 𝒦 A'ᵀ + σ_b²                           Θ' = c A Θ A'ᵀ + 2 (𝒦' − σ_b²) + σ_b²

    square root, ζ the identity: scores are Gaussian, with covariance a² 𝒦(s, s') 𝒦(u, u'),
        𝒦' = a² c ⟨𝒦, 𝒦⟩ 𝒦 + σ_b²                       Θ' = a² c [⟨𝒦, 𝒦⟩ (Θ + 4 𝒦) + 2 ⟨𝒦, Θ⟩ 𝒦] + σ_b²

where ⟨·, ·⟩ sums over all pairs of positions. Embeddings of positions change the 𝒦 and Θ that queries and keys see, and
those of the values if they see them too. Without embeddings these are equations between matrices over positions, which
a permutation of the positions takes to itself.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ntk_equiv._check import refusal
from ntk_equiv._positions import apart, joint
from ntk_equiv._typing import Array
from ntk_equiv.stax._certificate import NOTHING_BUT_SMOOTH, Certificate
from ntk_equiv.stax._positional import Embedding
from ntk_equiv.stax._rule import Rule, Trace, needs_all_positions, rule, static
from ntk_equiv.stax._state import COVARIANCE, NOTHING, Fixed, Need, Pairs, Points

MECHANISMS: dict[str, Callable[[Array], Array]] = {
    "SOFTMAX": jax.nn.softmax,
    "IDENTITY": lambda score: score,
    "ABS": jnp.abs,
    "RELU": lambda score: jnp.maximum(score, 0),
}


class Attention(Rule):
    """What both limits share; `embedded_values` says that values see the embedding too."""

    b_var: Any
    embedding: Embedding
    embedded_values: bool
    channels: int

    def output(self, points: Points) -> Points:
        return dataclasses.replace(points, gaussian=True, channels=self.channels, wide=True, fan_outs=0)

    def points(self, points: Points, need: Need) -> tuple[Points, Trace]:
        if not points.grid:
            raise refusal(
                "x",
                expected="[n, positions..., channels] for attention",
                got="vectors, which have no positions",
                fix="Give the samples an axis of positions, as in `x[:, :, None]`.",
            )
        if need.points == NOTHING:
            return self.output(points).with_cov(None), self.trace(points)
        return super().points(points, dataclasses.replace(need, full_pairs=need.points == COVARIANCE))

    def with_bias(self, k: Array) -> Array:
        """`k` and the variance of the biases."""
        return k if self.b_var is None else k + jnp.asarray(self.b_var, k.dtype)


@rule
class FixedWeights(Attention):
    """Linear scaling: a sample attends with weights that are the same for all draws of the network."""

    score_std: Any
    value_var: Any
    b_var: Any
    embedding: Embedding
    mechanism: str = static()
    embedded_values: bool = static()
    channels: int = static()

    @property
    def certificate(self) -> Certificate:
        """Positions matter."""
        return dataclasses.replace(NOTHING_BUT_SMOOTH, smooth=self.mechanism in ("SOFTMAX", "IDENTITY"))

    def need(self, need: Need) -> Need:
        return Need(True, COVARIANCE)

    def trace(self, points: Points) -> Trace:
        assert points.cov is not None, "attention needs covariances of positions, as declared in `need`"
        shares = self.embedding.shares(points)
        seen = self.embedding.joined(joint(points.cov, leading=1), shares, points.grid)
        weights = MECHANISMS[self.mechanism](jnp.asarray(self.score_std, seen.dtype) * seen)
        return {"weights": weights, "shares": Fixed(shares)}

    def pairs(self, pairs: Pairs, left: Trace, right: Trace, need: Need) -> Pairs:
        shape = pairs.nngp.shape[pairs.batch_axes :]  # h, h', w, w'
        grid, shares = shape[::2], left["shares"].value

        def attended(k: Array) -> Array:
            k = joint(k, leading=pairs.batch_axes)
            k = self.embedding.joined(k, shares, grid) if self.embedded_values else k
            k = jnp.asarray(self.value_var, k.dtype) * _weighted(k, left["weights"], right["weights"], need.full_pairs)
            return apart(k, shape) if need.full_pairs else k.reshape(*k.shape[:-1], *grid)

        signal = attended(pairs.nngp)
        ntk = None
        if pairs.with_ntk:
            ntk = self.with_bias(2 * signal)
            before = jnp.zeros_like(pairs.nngp) if pairs.ntk is None and self.embedded_values else pairs.ntk
            ntk = ntk if before is None else ntk + attended(before)
        return dataclasses.replace(pairs, nngp=self.with_bias(signal), ntk=ntk, gap=None, full=need.full_pairs)


@rule
class GaussianScores(Attention):
    """Scaling by the square root, without a nonlinearity: the scores of a sample are Gaussian."""

    product_var: Any
    b_var: Any
    embedding: Embedding
    embedded_values: bool = static()
    channels: int = static()

    @property
    def certificate(self) -> Certificate:
        """Positions matter."""
        return NOTHING_BUT_SMOOTH

    def need(self, need: Need) -> Need:
        return needs_all_positions(need)

    def trace(self, points: Points) -> Trace:
        return {"shares": Fixed(self.embedding.shares(points))}

    def pairs(self, pairs: Pairs, left: Trace, right: Trace, need: Need) -> Pairs:
        shape = pairs.nngp.shape[pairs.batch_axes :]  # h, h', w, w'
        grid, shares = shape[::2], left["shares"].value

        def seen(k: Array) -> tuple[Array, Array]:
            """What queries and keys see, and what values see."""
            joined = self.embedding.joined(joint(k, leading=pairs.batch_axes), shares, grid)
            return joined, joined if self.embedded_values else joint(k, leading=pairs.batch_axes)

        factor = jnp.asarray(self.product_var, pairs.nngp.dtype)
        scores, values = seen(pairs.nngp)
        size = _inner(scores, values)
        nngp, ntk = size * scores, None
        if pairs.with_ntk:
            ntk = 4 * nngp
            if pairs.ntk is not None or self.embedding.kind != "NONE":
                changes, value_changes = seen(jnp.zeros_like(pairs.nngp) if pairs.ntk is None else pairs.ntk)
                ntk = ntk + size * changes + (_inner(changes, values) + _inner(scores, value_changes)) * scores
            ntk = apart(self.with_bias(factor * ntk), shape)
        nngp = apart(self.with_bias(factor * nngp), shape)
        return dataclasses.replace(pairs, nngp=nngp, ntk=ntk, gap=None)


@rule
class NoKernels(Rule):
    """A layer whose finite network is offered alone."""

    def need(self, need: Any) -> Any:
        raise refusal(
            "linear_scaling, attention_mechanism",
            expected='(True, any) or (False, "IDENTITY") for kernels',
            got="scaling by the square root and a nonlinear mechanism, whose kernels have no closed form",
            fix="Use the network alone, by init_fn and apply_fn, or choose linear_scaling=True.",
        )

    def pairs(self, pairs: Any, left: Trace, right: Trace, need: Any) -> Any:
        return self.need(need)


def _weighted(k: Array, left: Array, right: Array, full: bool) -> Array:
    """A K A'ᵀ for all pairs of samples (or for paired ones), or the diagonal of it."""
    if k.ndim == 4:
        left, right = left[:, None], right[None]
    half = jnp.matmul(left, k, precision=lax.Precision.HIGHEST)
    if not full:
        return jnp.sum(half * right, -1)
    return jnp.matmul(half, jnp.swapaxes(right, -1, -2), precision=lax.Precision.HIGHEST)


def _inner(a: Array, b: Array) -> Array:
    return jnp.sum(a * b, axis=(-2, -1), keepdims=True)
