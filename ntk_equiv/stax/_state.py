"""What flows through a network while its kernels are computed, and what its layers can ask for.

Two states travel side by side, because one is needed for every sample and the other for every *pair* of samples:

    `SampleState`   q(x, s) = 𝒦(x, x)(s, s), the variance of each sample at each position s; if a layer asks for it,
                    the covariance 𝒦(x, x)(s, s') of its positions
    `PairState`     𝒦(x, x')(s, s') and Θ(x, x')(s, s')

`Requirements` say how much of that a layer must be given.

Positions s are the spatial axes of an input, `grid = (h, w, ...)`; vectors have none. A layer that never compares
different positions needs only s = s' (`full=False`), and then a pair has as many entries as the grid. Pooling and
graphs need all pairs of positions (`full=True`), with axes interleaved as `[..., h, h', w, w']`.

If an activation asks for it, a `PairState` also carries the gap 1 − 𝒦(x, x') / √(q(x) q(x')) of the cosine, to full
relative precision. Layers that can pass the gap on do so.

Kernels in a `PairState` have two axes of samples, `[n1, n2, ...]`, or one (`paired=True`). In that case entry i belongs
to the i-th sample on the left and the i-th sample on the right.
"""

import dataclasses
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar, dataclass_transform

import jax.numpy as jnp

from ntk_equiv._check import refusal
from ntk_equiv._pytrees import dataclass_pytree
from ntk_equiv._typing import Array
from ntk_equiv.stax._precision import safe_sqrt

T = TypeVar("T")

Branches = Any
"""A tuple with one entry for each of several branches; the entries may be tuples again.

`takes_branches` and `makes_branches` of a rule say where there are branches. Static types cannot follow that.
"""

Memo = Any
"""What a layer remembers about each sample: a pytree of arrays `[n, ...]`, in a form of the layer's own."""


def static(**kwargs: Any) -> Any:
    """Return a dataclass field that belongs to the structure of a pytree, not to its differentiable leaves."""
    # The second name is that of Flax, which some programs look for.
    return dataclasses.field(metadata={"static": True, "pytree_node": False}, **kwargs)


@dataclass_transform(frozen_default=True, field_specifiers=(static,))
def frozen_pytree(cls: type[T]) -> type[T]:
    """Class decorator: make a frozen dataclass that is a pytree."""
    return dataclass_pytree(dataclasses.dataclass(frozen=True)(cls))


class Moments(IntEnum):
    """How much must be known about single samples; more includes less."""

    NONE = 0
    VARIANCE = 1
    COVARIANCE = 2


@dataclass(frozen=True)
class Requirements:
    """What must be known about a signal.

    Attributes:
        full_pairs: whether kernels are needed for all pairs of positions, or only for equal ones.
        moments: what is needed about single samples.
        gap: whether the gaps of cosines are welcome.
        stored: whether kernels should be stored before they are used, because they will be read more than once.
    """

    full_pairs: bool
    moments: Moments = Moments.NONE
    gap: bool = False
    stored: bool = True


def merge_requirements(several: Branches) -> Requirements:
    """Return the least that meets all of several requirements."""
    full_pairs, gap = any(one.full_pairs for one in several), any(one.gap for one in several)
    return Requirements(full_pairs, max(one.moments for one in several), gap, stored=True)


def require_all_positions(wanted: Requirements) -> Requirements:
    """Return what a layer that mixes positions needs: all pairs of them, for samples too if moments are wanted."""
    return Requirements(True, Moments.COVARIANCE if wanted.moments else Moments.NONE)


@frozen_pytree
class SampleState:
    """What is known about each sample.

    Attributes:
        cov: q, `[n, *grid]`, or if `full` the covariance of positions, `[n, h, h', w, w']`; `None` where no later layer
            asks for either.
        residue: what rounding left out of `cov` on the way, where it is known. The same bias, added in every layer, is
            rounded the same way in every layer, and the errors would add up.
        adjacency: that of each sample, for graphs.
        grid: the spatial axes.
        full: whether `cov` has all pairs of positions.
        gaussian: whether the signal is Gaussian at infinite width, as it is after a layer with weights.
        nodes: the inputs themselves, by which samples are told apart.
        root: √q, `[n, *grid]`, where it is known although q itself overflows or underflows, as it is for inputs.
        channels: the number of features in the finite network.
        wide: whether that number goes to infinity.
        fan_outs: how many fan-outs came after the last layer with weights and have not been closed by a fan-in. Without
            any, the signal is independent of that of other branches.
        mask: which positions are masked, `[n, *grid]`; `None` if none can be.
    """

    cov: Array | None
    residue: Array | None
    adjacency: Array | None
    grid: tuple[int, ...] = static()
    full: bool = static()
    gaussian: bool = static()
    nodes: Array | None = None
    root: Array | None = None
    channels: int | None = static(default=None)
    wide: bool = static(default=False)
    fan_outs: int = static(default=0)
    mask: Array | None = None

    def variance(self) -> Array:
        """Return q(x, s), `[n, *grid]`; where terms cancel, rounding may leave a negative q, which counts as zero."""
        assert self.cov is not None, "a layer asked for a variance that its `requirements_for` did not declare"
        q = diagonal(self.cov, 1) if self.full else self.cov if self.residue is None else self.cov + self.residue
        return jnp.where(q < 0, 0, q)  # `maximum` would halve derivatives at zero.

    def std(self) -> Array:
        """Return √q(x, s), `[n, *grid]`."""
        q = self.variance()
        if self.root is None:
            return safe_sqrt(q)
        numbers = jnp.finfo(q.dtype)
        return jnp.where((q >= float(numbers.tiny)) & (q <= float(numbers.max)), safe_sqrt(q), self.root)

    def with_cov(
        self, cov: Array | None, *, full: bool = False, residue: Array | None = None, root: Array | None = None
    ) -> "SampleState":
        """Return this state with another covariance."""
        return dataclasses.replace(self, cov=cov, full=full, residue=residue, root=root)

    def masked(self, mask: Array) -> "SampleState":
        """Return this state with all that is known about masked positions set to zero."""
        state = dataclasses.replace(self, mask=mask)
        if self.cov is None:
            return state.with_cov(None)
        residue, root = (None if v is None else jnp.where(mask, 0, v) for v in (self.residue, self.root))
        pairs = PairState(self.cov, None, None, full=self.full, with_ntk=False, paired=True)
        cov = pairs.masked(mask, mask).nngp
        return state.with_cov(cov, full=self.full, residue=residue, root=root)

    def width(self) -> int:
        """Return the number of channels of the finite network, for a layer whose kernels depend on it."""
        if self.channels is None:
            raise refusal(
                "layers",
                expected="of known width before a layer in standard parameterization or with concatenated embeddings",
                got="an unknown number of channels",
                fix="Evaluate the kernel on inputs; for `radial`, say how many features they have with `of_features`.",
            )
        return self.channels

    def reduce_to(self, wanted: Requirements) -> "SampleState":
        """Return this state without what is not wanted."""
        if self.cov is None or wanted.moments == Moments.NONE:
            return self.with_cov(None)
        if self.full and wanted.moments == Moments.VARIANCE:
            return self.with_cov(diagonal(self.cov, 1))
        return self


@frozen_pytree
class PairState:
    """What is known about each pair of samples.

    Attributes:
        nngp: 𝒦, `[n1, n2, *grid]`, or if `full` `[n1, n2, h, h', w, w']`; one axis of samples if `paired`.
        ntk: Θ, likewise; `None` while it is zero or not wanted.
        gap: 1 − cosine, likewise; `None` where no layer passes it on or asks for it.
        full: whether there are all pairs of positions, or only equal ones.
        with_ntk: whether Θ is wanted.
        paired: whether the i-th samples of both sides make a pair, instead of all with all.
    """

    nngp: Array
    ntk: Array | None
    gap: Array | None
    full: bool = static()
    with_ntk: bool = static()
    paired: bool = static(default=False)

    @property
    def batch_axes(self) -> int:
        """How many leading axes count samples."""
        return 1 if self.paired else 2

    def reduce_to(self, wanted: Requirements) -> "PairState":
        """Return this state without the gap, and without pairs of different positions, unless they are wanted."""
        state = self if wanted.gap else dataclasses.replace(self, gap=None)
        if not self.full or wanted.full_pairs:
            return state
        ntk, gap = (None if k is None else diagonal(k, self.batch_axes) for k in (state.ntk, state.gap))
        return dataclasses.replace(state, nngp=diagonal(state.nngp, self.batch_axes), ntk=ntk, gap=gap, full=False)

    def masked(self, left: Array, right: Array) -> "PairState":
        """Return this state with kernels of masked positions set to zero."""
        hidden = self.on_left(left) | self.on_right(right)
        ntk = None if self.ntk is None else jnp.where(hidden, 0, self.ntk)
        return dataclasses.replace(self, nngp=jnp.where(hidden, 0, self.nngp), ntk=ntk)

    def on_left(self, v: Array) -> Array:
        """Reshape a quantity `[n1, *grid]` of samples so that it broadcasts along the left sample of each pair."""
        return _reshape_to_broadcast(v, self, left=True)

    def on_right(self, v: Array) -> Array:
        """Reshape a quantity `[n2, *grid]` of samples so that it broadcasts along the right sample of each pair."""
        return _reshape_to_broadcast(v, self, left=False)


@frozen_pytree
class Constant:
    """What a memo holds besides arrays: a value that all samples share and that is known at compile time."""

    value: Any = static()


@frozen_pytree
class Masked:
    """A memo about samples some of whose positions are masked after the layer."""

    memo: Memo
    mask: Array


def diagonal(k: Array, batch_axes: int) -> Array:
    """Return the entries of equal positions: `[..., h, h, w, w]` to `[..., h, w]`."""
    for axis in range(batch_axes, batch_axes + (k.ndim - batch_axes) // 2):
        k = jnp.moveaxis(jnp.diagonal(k, axis1=axis, axis2=axis + 1), -1, axis)
    return k


def _reshape_to_broadcast(v: Array, state: PairState, *, left: bool) -> Array:
    shape = list(v.shape[:1]) if state.paired else [v.shape[0], 1] if left else [1, v.shape[0]]
    for size in v.shape[1:]:
        shape += ([size, 1] if left else [1, size]) if state.full else [size]
    return v.reshape(shape)
