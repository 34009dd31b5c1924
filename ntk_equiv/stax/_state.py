"""What flows through a network when its kernels are computed.

Two things travel side by side, because one is needed for every sample and the other for every *pair* of samples:

    Points   q(x, s) = 𝒦(x, x)(s, s)     the variance of each sample at each position s, sometimes the covariance
                                          𝒦(x, x)(s, s') of its positions
    Pairs    𝒦(x, x')(s, s'), Θ(x, x')(s, s')

Positions s are the spatial axes of an input, `grid = (h, w, ...)`; vectors have none. A layer that never compares
different positions needs only s = s' (`full=False`), and then a pair has as many entries as the grid; pooling and
graphs need all pairs of positions (`full=True`), with axes interleaved as `[..., h, h', w, w']`.

Where an activation asks for it, `Pairs` also carry the gap 1 − 𝒦(x, x') / √(q(x) q(x')) of the cosine, to full relative
precision: layers that can pass it on do.

The leading axes of `Pairs` are two, `[n1, n2, ...]`, or one (`paired=True`): entry i then belongs to the i-th sample
on the left and the i-th on the right.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Float

from ntk_equiv._check import refusal
from ntk_equiv._typing import Array
from ntk_equiv.stax._arc import SNAP


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Points:
    """Per-sample quantities.

    Attributes:
        cov: q, `[n, *grid]`, or if `full` the covariance of positions, `[n, h, h', w, w']`; `None` where no later layer
            asks for either.
        residue: what rounding left out of `cov` on the way, where it is known. The same bias added in every layer is
            rounded the same way in every layer, which would add up.
        adjacency: that of each sample, for graphs.
        root: √q, `[n, *grid]`, where it is known beyond the range in which q itself is a number, as it is for inputs.
        grid: the spatial axes.
        full: whether `cov` has all pairs of positions.
        gaussian: whether the signal is Gaussian at infinite width, as it is after a layer with weights.
        nodes: the inputs themselves, by which samples are told apart.
        channels: the number of features in the finite network.
        wide: whether that number goes to infinity.
        fan_outs: how many fan-outs there were since the last layer with weights and have not been closed by a fan-in:
            with none, the signal is independent of that of other branches.
    """

    cov: Array | None
    residue: Array | None
    adjacency: Array | None
    grid: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    full: bool = dataclasses.field(metadata={"static": True})
    gaussian: bool = dataclasses.field(metadata={"static": True})
    nodes: Array | None = None
    root: Array | None = None
    channels: int | None = dataclasses.field(default=None, metadata={"static": True})
    wide: bool = dataclasses.field(default=False, metadata={"static": True})
    fan_outs: int = dataclasses.field(default=0, metadata={"static": True})

    def variance(self) -> Array:
        """q(x, s), `[n, *grid]`; where terms cancel, rounding may leave less than nothing, which counts as zero."""
        assert self.cov is not None, "a layer asked for a variance that it did not declare in `need`"
        q = diagonal(self.cov, 1) if self.full else self.cov if self.residue is None else self.cov + self.residue
        return jnp.where(q < 0, 0, q)  # `maximum` would halve derivatives at zero.

    def deviation(self) -> Array:
        """√q(x, s), `[n, *grid]`."""
        q = self.variance()
        if self.root is None:
            return safe_sqrt(q)
        numbers = jnp.finfo(q.dtype)
        return jnp.where((q >= float(numbers.tiny)) & (q <= float(numbers.max)), safe_sqrt(q), self.root)

    def with_cov(
        self, cov: Array | None, *, full: bool = False, residue: Array | None = None, root: Array | None = None
    ) -> "Points":
        """These points with another covariance."""
        return dataclasses.replace(self, cov=cov, full=full, residue=residue, root=root)

    def width(self) -> int:
        """The number of channels of the finite network, for a layer whose kernels depend on it."""
        if self.channels is None:
            raise refusal(
                "layers",
                expected="of known width before a layer in standard parameterization or with concatenated embeddings",
                got="an unknown number of channels",
                fix="Evaluate the kernel on inputs; for `radial`, say how many features they have with `of_features`.",
            )
        return self.channels

    def fitted(self, need: "Need") -> "Points":
        """These points, reduced to what `need` asks for."""
        if self.cov is None or need.points == NOTHING:
            return self.with_cov(None)
        if self.full and need.points == VARIANCE:
            return self.with_cov(diagonal(self.cov, 1))
        return self


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Pairs:
    """Per-pair quantities.

    Attributes:
        nngp: 𝒦, `[n1, n2, *grid]`, or if `full` `[n1, n2, h, h', w, w']`; one axis of samples if `paired`.
        ntk: Θ, likewise; `None` while it is zero or not wanted.
        gap: 1 − cosine, likewise; `None` where nobody passes it on or asks for it.
        full: whether there are all pairs of positions, or only equal ones.
        with_ntk: whether Θ is wanted.
        paired: whether the i-th samples of both sides make a pair, instead of all with all.
    """

    nngp: Array
    ntk: Array | None
    gap: Array | None
    full: bool = dataclasses.field(metadata={"static": True})
    with_ntk: bool = dataclasses.field(metadata={"static": True})
    paired: bool = dataclasses.field(default=False, metadata={"static": True})

    @property
    def batch_axes(self) -> int:
        """How many leading axes count samples."""
        return 1 if self.paired else 2

    def fitted(self, need: "Need") -> "Pairs":
        """These pairs, without a gap or other than equal positions where `need` does not ask for them."""
        pairs = self if need.gap else dataclasses.replace(self, gap=None)
        if not self.full or need.full_pairs:
            return pairs
        ntk, gap = (None if k is None else diagonal(k, self.batch_axes) for k in (pairs.ntk, pairs.gap))
        return dataclasses.replace(pairs, nngp=diagonal(pairs.nngp, self.batch_axes), ntk=ntk, gap=gap, full=False)

    def on_left(self, v: Array) -> Array:
        """A per-sample quantity `[n1, *grid]` shaped to broadcast along the left sample of each pair."""
        return _spread_out(v, self, left=True)

    def on_right(self, v: Array) -> Array:
        """A per-sample quantity `[n2, *grid]` shaped to broadcast along the right sample of each pair."""
        return _spread_out(v, self, left=False)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Fixed:
    """What a trace holds besides arrays: numbers that are the same for all samples and known at compile time."""

    value: Any = dataclasses.field(metadata={"static": True})


NOTHING, VARIANCE, COVARIANCE = 0, 1, 2


@dataclass(frozen=True)
class Need:
    """What a layer must be given.

    Attributes:
        full_pairs: all pairs of positions, or only equal ones.
        points: how much about single samples: `NOTHING`, their `VARIANCE` or their `COVARIANCE`.
        gap: whether the gaps of cosines are welcome.
        stored: whether it should be stored before use, because it will be read more than once.
    """

    full_pairs: bool
    points: int = NOTHING
    gap: bool = False
    stored: bool = True


def merge_needs(needs: Any) -> Need:
    """The least that satisfies all of several needs."""
    full_pairs, gap = any(n.full_pairs for n in needs), any(n.gap for n in needs)
    return Need(full_pairs, max(n.points for n in needs), gap, stored=True)


def diagonal(k: Array, batch_axes: int) -> Array:
    """Equal positions only: `[..., h, h, w, w]` to `[..., h, w]`."""
    for axis in range(batch_axes, batch_axes + (k.ndim - batch_axes) // 2):
        k = jnp.moveaxis(jnp.diagonal(k, axis1=axis, axis2=axis + 1), -1, axis)
    return k


def safe_sqrt(q: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """√q with derivative 0 instead of infinity at q = 0."""
    positive = q > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, q, 1)), 0)


def inverse_root(q: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """1/√q, and 0 at q = 0."""
    positive = q > 0
    return jnp.where(positive, lax.rsqrt(jnp.where(positive, q, 1)), 0)


@jax.custom_jvp
def aligned(k: Array, q1: Array, q2: Array) -> Array:
    """`k`, with covariances that are ±√(q q') up to rounding made exactly so; derivatives stay as they are.

    A network that drives close samples apart would otherwise magnify the rounding errors of coincident ones from layer
    to layer, until variances and the diagonal of 𝒦 have nothing to do with each other.
    """
    largest = safe_sqrt(q1) * safe_sqrt(q2)
    coincident = jnp.abs(jnp.abs(k) - largest) <= SNAP * float(jnp.finfo(k.dtype).eps) * largest
    coincident &= largest < jnp.inf  # Where a variance is too large for a number, nothing is known of the pair.
    return jnp.where(coincident, jnp.sign(k) * largest, k)


@aligned.defjvp
def _aligned_jvp(primals: tuple, tangents: tuple) -> tuple:
    return aligned(*primals), tangents[0]


def power_of_two(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """The power of two next to x > 0, and 1 where x is 0; a constant to derivatives.

    Multiplied with and divided by it, numbers keep all their digits.

    >>> print(power_of_two(jnp.array([0.0, 5.0, 16.0])))
    [ 1.  4. 16.]
    """
    numbers = jnp.finfo(x.dtype)
    below = jnp.minimum(lax.stop_gradient(x), float(numbers.max) / 2)  # Rounding up from there would overflow.
    power = lax.reduce_precision(below, exponent_bits=numbers.nexp, mantissa_bits=0)
    return jnp.where(power > 0, power, 1)


def in_precision(setting: Any, x: Array) -> Any:
    """A hyperparameter such that it does not promote `x`: Python numbers as they are, others in the dtype of `x`."""
    return setting if type(setting) in (int, float) else jnp.asarray(setting, x.dtype)


def materialize(tree: Any, witness: Array) -> Any:
    """`tree`, computed and stored before anything that uses it is computed.

    XLA on CPU would otherwise fuse the layers of a network into one loop and evaluate the inner ones again for
    each use: nine times for a 3×3 convolution. A conditional whose outcome the compiler cannot foresee keeps them
    apart (it drops an optimization barrier before it fuses). `witness` is any array that is known only at run time;
    its values do not matter.
    """
    sign = jnp.sum((witness.reshape(-1)[:1] > 0).astype(jnp.int32))
    # No number of 32 bits has more than 32 ones, whatever the witness is: a fact that XLA does not look for.
    never = lax.population_count(sign) > 32
    return lax.cond(never, lambda t: jax.tree.map(jnp.zeros_like, t), lambda t: t, tree)


def _spread_out(v: Array, pairs: Pairs, *, left: bool) -> Array:
    shape = list(v.shape[:1]) if pairs.paired else [v.shape[0], 1] if left else [1, v.shape[0]]
    for size in v.shape[1:]:
        shape += ([size, 1] if left else [1, size]) if pairs.full else [size]
    return v.reshape(shape)
