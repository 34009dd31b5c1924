"""Random positional embeddings, which attention adds to its input or puts beside it.

An embedding e(s) is drawn once for all samples, with independent channels of covariance σ_e² R(s, s'): the identity, or
a function of the distance Σ_i |s_i − s'_i|^p of two positions. It is trained like any weight. The kernels of input and
embedding together are

    "SUM"        𝒦 + σ_e² R                                  Θ + σ_e² R
    "CONCAT"     (C 𝒦 + C_e σ_e² R) / (C + C_e)              (C Θ + C_e σ_e² R) / (C + C_e)

with C channels of the input and C_e of the embedding. What leaves all distances between positions unchanged leaves R
unchanged, and the law of the embedding.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ntk_equiv._check import function, one_of, positive_integer, real_number, refusal
from ntk_equiv._typing import Array
from ntk_equiv.stax._rule import rule, static
from ntk_equiv.stax._state import Points, in_precision


@rule
class Embedding:
    """How positions are embedded: `kind`, one of "NONE", "SUM" and "CONCAT", and the law of the embedding."""

    variance: Any
    kind: str = static()
    p_norm: float = static()
    decay_fn: Callable | None = static()
    channels: int | None = static()

    @classmethod
    def of(cls, variance: Any, kind: Any, p_norm: Any, decay_fn: Callable | None, channels: int | None) -> "Embedding":
        """A checked embedding."""
        kind = one_of(getattr(kind, "value", kind), ("NONE", "SUM", "CONCAT"), "pos_emb_type")
        channels = None if channels is None else positive_integer(channels, "n_chan_pos_emb")
        if decay_fn is not None:
            function(decay_fn, "pos_emb_decay_fn")
        return cls(variance, kind, real_number(p_norm, "pos_emb_p_norm"), decay_fn, channels)

    def width(self, inputs: int) -> int:
        """C_e, for an input with that many channels."""
        if self.kind == "SUM" and self.channels not in (None, inputs):
            raise refusal(
                "n_chan_pos_emb",
                expected=f'the number of channels of the input, {inputs}, for pos_emb_type="SUM"',
                got=self.channels,
                fix='Leave it out, or use pos_emb_type="CONCAT".',
            )
        return inputs if self.channels is None else self.channels

    def shares(self, points: Points) -> tuple[float, float]:
        """The factors of 𝒦 and of σ_e² R.

        They are those of means over channels, which are no longer random when there are infinitely many: of the input,
        or of embeddings beside it whose number the caller has chosen.
        """
        if self.kind == "NONE":
            return 1.0, 0.0
        if not points.wide and (self.kind == "SUM" or self.channels is None):
            raise refusal(
                "pos_emb_type",
                expected='"NONE" on inputs, or "CONCAT" with n_chan_pos_emb',
                got=f'"{self.kind}", as many channels of embeddings as the inputs have',
                fix="Their number is finite, so kernels would be random. Put a Dense or Conv layer before it.",
            )
        if self.kind == "SUM" and self.channels is None:
            return 1.0, 1.0
        inputs = points.width()
        own = self.width(inputs)
        return (1.0, 1.0) if self.kind == "SUM" else (inputs / (inputs + own), own / (inputs + own))

    def joined(self, k: Array, shares: tuple[float, float], grid: tuple[int, ...]) -> Array:
        """The kernel of input and embedding together, from that of the input, `[..., positions, positions]`."""
        if self.kind == "NONE":
            return k
        R = jnp.asarray(_covariance(grid, self.p_norm, self.decay_fn), k.dtype)
        added = shares[1] * jnp.asarray(self.variance, k.dtype) * R
        return shares[0] * k + added.reshape((1,) * (k.ndim - 2) + R.shape)

    def draw(self, key: Array, grid: tuple[int, ...], inputs: int) -> Array | None:
        """Standard normal numbers, `[1, *grid, channels]`, from which `applied` makes the embedding."""
        return None if self.kind == "NONE" else jax.random.normal(key, (1, *grid, self.width(inputs)))

    def applied(self, x: Array, noise: Array | None, grid: tuple[int, ...], std: Any) -> Array:
        """`x`, `[n, positions, channels]`, with its embedding; `noise` is what `draw` gave."""
        if noise is None:
            return x
        noise = noise.reshape(x.shape[1], noise.shape[-1])
        if self.decay_fn is not None:
            noise = jnp.asarray(_root(grid, self.p_norm, self.decay_fn), x.dtype) @ noise
        e = jnp.broadcast_to((in_precision(std, noise) * noise)[None], (*x.shape[:2], noise.shape[-1]))
        return x + e if self.kind == "SUM" else jnp.concatenate([x, e], -1)


@lru_cache(16)
def _covariance(grid: tuple[int, ...], p_norm: float, decay_fn: Callable | None) -> Float[np.ndarray, "p p"]:
    """R between all pairs of positions; positions are counted in the order of a flattened grid."""
    places = np.stack(np.meshgrid(*(np.arange(extent) for extent in grid), indexing="ij"), -1).reshape(-1, len(grid))
    if decay_fn is None:
        return np.eye(len(places))
    distance = np.sum(np.abs(places[:, None] - places[None, :]).astype(float) ** p_norm, axis=-1)
    with jax.ensure_compile_time_eval():
        R = np.asarray(decay_fn(jnp.asarray(distance)), float)
    found = f"an array of shape {R.shape} for one of shape {distance.shape}"
    if R.shape == distance.shape:
        lowest = np.min(np.linalg.eigvalsh(R))
        if lowest >= -1e-5 * np.abs(R).max():
            return R
        found = f"a matrix of {R.shape[0]} positions whose smallest eigenvalue is {lowest:.2g}"
    raise refusal(
        "pos_emb_decay_fn",
        expected="a function of arrays of distances that gives covariances",
        got=found,
        fix="Take for example `lambda d: jnp.exp(-d)`, which is positive definite for pos_emb_p_norm up to 2.",
    )


@lru_cache(16)
def _root(grid: tuple[int, ...], p_norm: float, decay_fn: Callable | None) -> Float[np.ndarray, "p p"]:
    """The symmetric square root of R, which exists for singular R too."""
    values, vectors = np.linalg.eigh(_covariance(grid, p_norm, decay_fn))
    return (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
