"""Kernels between layers: what one network computed, handed on to the next.

A `Signal` is what is known about two batches of samples somewhere in a network: the kernels of all pairs, those of each
sample with itself, and a few facts about the layers before. `signal_of` makes one of inputs, and `through` takes it
through a network. So the kernels of a network may be looked at layer by layer, or continued by another network. Where
there are several branches, signals are lists.

Whoever does not know what comes next has to keep everything, so this is slower than a call of `kernel_fn` on inputs,
where later layers say what they need.

A layer that mixes samples, such as one that normalises over them, is no function of single pairs, so it has no halves
`per_sample` and `per_pair`. It is a `BatchRule`, and changes signals.
"""

import dataclasses
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv._check import refusal
from ntk_equiv._pytrees import dataclass_pytree
from ntk_equiv._typing import Array, Inputs
from ntk_equiv.stax._composition import Composition, Parallel, Serial, pairs_through, reduce_to, samples_through
from ntk_equiv.stax._inputs import (
    Graph,
    MaskedArray,
    check_inputs,
    check_same_features,
    covariance_of_inputs,
    mask_both,
    mask_of,
    nodes_of,
    split_pattern,
    with_mask,
    with_pattern,
)
from ntk_equiv.stax._rule import Rule
from ntk_equiv.stax._state import Branches, Moments, PairState, Requirements, SampleState, static

# What is kept if it is not known what comes next, and if positions will never be compared.
ALL_POSITIONS = Requirements(full_pairs=True, moments=Moments.COVARIANCE, stored=False)
EQUAL_POSITIONS = Requirements(full_pairs=False, moments=Moments.VARIANCE, stored=False)

Signals = Any
"""A `Signal`, or a list with one entry for each of several branches; the entries may be lists again."""


@dataclass_pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Signal:
    """The kernels of two batches somewhere in a network, with what the next layer has to know.

    `kernel_fn.signal(x1, x2)` makes one, and `kernel_fn.signal(signal)` continues it. Names are those of
    neural-tangents.

    Attributes:
        nngp: 𝒦 of all pairs, `[n1, n2, h, h', w, w', ...]`.
        ntk: Θ, likewise; None if it is not wanted.
        cov1: 𝒦 of each sample of the first batch with itself, `[n1, h, h', w, w', ...]`.
        cov2: the same for the second batch; None if it is the first.
        x1_is_x2: whether the two batches are the same.
        is_gaussian: whether outputs are Gaussian at infinite width.
        is_input: whether these are the inputs themselves.
        diagonal_batch: False if `cov1` and `cov2` are of all pairs of samples, `[n1, n1, h, h', w, w', ...]`.
        diagonal_spatial: whether there are only pairs of equal positions.
        shape1: the shape of the outputs for the first batch.
        shape2: that for the second.
        mask1: which positions of the outputs are masked for the first batch, `[n1, h, w, ..., 1]`; None if none can be.
        mask2: the same for the second batch; None if it is the first.
        adjacency1: that of each sample of the first batch, for graphs.
        adjacency2: that of the second.
        fan_outs: how many fan-outs came after the last layer with weights.
        has_samples: False behind a layer that summed over samples; no other may follow.

    Example:
        >>> from ntk_equiv import stax
        >>> first, second = stax.serial(stax.Dense(8), stax.Relu()).kernel_fn, stax.Dense(1).kernel_fn
        >>> between = first.signal(jnp.array([[1.0, 1.0]]))
        >>> print(between.nngp, between.cov1, between.shape1, second.signal(between).ntk)
        [[0.5]] [0.5] (1, 8) [[1.]]
    """

    nngp: Any
    ntk: Any
    cov1: Any
    cov2: Any = None
    x1_is_x2: Any = False
    is_gaussian: bool = static(default=False)
    is_input: bool = static(default=False)
    diagonal_batch: bool = static(default=True)
    diagonal_spatial: bool = static(default=False)
    shape1: tuple[int, ...] | None = static(default=None)
    shape2: tuple[int, ...] | None = static(default=None)
    mask1: Array | None = None
    mask2: Array | None = None
    adjacency1: Array | None = None
    adjacency2: Array | None = None
    fan_outs: int = static(default=0)
    has_samples: bool = static(default=True)

    def replace(self, **changes: Any) -> Any:
        """Return this signal with other values of some fields."""
        return dataclasses.replace(self, **changes)

    def masked(self, mask1: Any, mask2: Any) -> Any:
        """Return this signal with the kernels of masked positions set to zero."""
        left, right = (None if m is None else m[..., 0] for m in (mask1, mask1 if mask2 is None else mask2))

        def hide(k: Any, a: Any, b: Any, paired: bool = False) -> Any:
            full = k is not None and k.ndim - (1 if paired else 2) == 2 * (a.ndim - 1)
            state = PairState(k, None, None, full=full, with_ntk=False, paired=paired)
            return None if k is None else state.masked(a, b).nngp

        pairs = {"nngp": hide(self.nngp, left, right), "ntk": hide(self.ntk, left, right)}
        covs = [hide(c, m, m, self.diagonal_batch) for c, m in ((self.cov1, left), (self.cov2, right))]
        return self.replace(**pairs, cov1=covs[0], cov2=covs[1], mask1=mask1, mask2=mask2)

    def cut(self, rows: Any, columns: Any) -> Any:
        """Return the kernels of some samples of the first batch with some of the second, as two batches."""
        ntk = None if self.ntk is None else self.ntk[rows][:, columns]
        changes: dict[str, Any] = {"nngp": self.nngp[rows][:, columns], "ntk": ntk}
        second = "1" if self.cov2 is None else "2"
        for side, source, own in (("1", "1", rows), ("2", second, columns)):
            cov, mask = getattr(self, "cov" + source)[own], getattr(self, "mask" + source)
            changes["cov" + side] = cov if self.diagonal_batch else cov[:, own]
            changes["mask" + side] = None if mask is None else mask[own]
            adjacency = getattr(self, "adjacency" + side)
            changes["adjacency" + side] = None if adjacency is None else adjacency[own]
            changes["shape" + side] = (len(cov), *(getattr(self, "shape" + side) or ())[1:])
        return self.replace(**changes)

    def beside(self, others: list, side: str) -> Any:
        """Return this signal and others as one whose first ("1") or second ("2") batch has the samples of all.

        It is the inverse of `cut`; the other batch must be the same. Arrays may be those of NumPy.
        """
        parts, to = [self, *others], np if isinstance(self.nngp, np.ndarray) else jnp

        def joined(name: str, axis: int = 0) -> Any:
            own = [getattr(part, name) for part in parts]
            return None if own[0] is None else to.concatenate(own, axis)

        axis = int(side) - 1
        changes: dict[str, Any] = {name: joined(name, axis) for name in ("nngp", "ntk")}
        # The second batch of a tile on the diagonal is the first one.
        parts = [part.replace(cov2=part.cov1, mask2=part.mask1) if part.cov2 is None else part for part in parts]
        changes |= {name + side: joined(name + side) for name in ("cov", "mask", "adjacency")}
        shape = getattr(self, "shape" + side) or ()
        changes["shape" + side] = (changes["nngp"].shape[axis], *shape[1:])
        same = jnp.stack([jnp.asarray(part.x1_is_x2) for part in parts]).any()
        return self.replace(**changes, x1_is_x2=same)

    def as_one_batch(self) -> Any:
        """Return this signal of two equal batches as that of one."""
        return self.replace(cov2=None, mask2=None)

    def of_one_batch(self, side: str) -> Any:
        """Return the kernels of one batch, "1" or "2", with itself, from its covariance of all pairs."""
        own, shape, mask, adjacency = (getattr(self, name + side) for name in ("cov", "shape", "mask", "adjacency"))
        changes = {"shape1": shape, "shape2": shape, "mask1": mask, "adjacency1": adjacency, "adjacency2": adjacency}
        changes |= {"nngp": own, "ntk": None, "cov1": own, "x1_is_x2": jnp.asarray(True)}
        return self.replace(**changes).as_one_batch()

    def side_states(self) -> tuple[SampleState, SampleState]:
        """Return what is known about the samples of both batches."""
        (n1, n2), full = self.nngp.shape[:2], self._is_full()
        # Dropout has to tell samples apart, whose inputs are no longer known.
        names = jnp.eye(n1 + n2, dtype=self.nngp.dtype)
        left, right = names[:n1], names[n1:]
        if n1 == n2:
            right = jnp.where(self.x1_is_x2, left, right)
        second = (self.cov1, self.mask1) if self.cov2 is None else (self.cov2, self.mask2)

        def state(cov: Array, mask: Array | None, shape: Any, adjacency: Array | None, nodes: Array) -> SampleState:
            cov = cov if self.diagonal_batch else jnp.moveaxis(jnp.diagonal(cov), -1, 0)
            mask = None if mask is None else mask[..., 0]
            facts = {"gaussian": self.is_gaussian, "wide": not self.is_input, "fan_outs": self.fan_outs}
            known = {"nodes": nodes, "mask": mask, "channels": shape[-1], **facts}
            return SampleState(cov, None, adjacency, shape[1:-1], full=full, **known)

        first = state(self.cov1, self.mask1, self.shape1, self.adjacency1, left)
        return first, state(*second, self.shape2, self.adjacency2, right)

    def pair_state(self) -> PairState:
        """Return what is known about pairs of samples."""
        return PairState(self.nngp, self.ntk, None, full=self._is_full(), with_ntk=self.ntk is not None)

    def _is_full(self) -> bool:
        return self.nngp.ndim > 2 and not self.diagonal_spatial


class BatchRule(Rule):
    """A layer that is known as a function of signals only: subclasses define `change`.

    Attributes:
        full_batch: whether it needs the covariance of different samples of one batch.
    """

    takes_branches = True
    makes_branches = True
    full_batch: Any = False

    @property
    def mixes_samples(self) -> bool:
        """Yes, or at least it may."""
        return True

    def change(self, signals: Signals, **settings: Any) -> Signals:
        """Return what becomes of a signal, or of a list of them; `settings` are those of the call."""
        raise NotImplementedError

    def per_sample(self, state: Any, wanted: Any) -> Any:
        raise mixes_samples()

    def per_pair(self, state: Any, left: Any, right: Any, wanted: Any) -> Any:
        raise mixes_samples()


class _States(NamedTuple):
    """The states of both batches and of their pairs; tuples of states where there are branches."""

    left: SampleState | Branches
    right: SampleState | Branches
    pairs: PairState | Branches


def signal_of(x1: Any, x2: Any = None, *, pattern: Any = None, mask_constant: Any = None, pairs: bool = False) -> Any:
    """Return the signal that inputs are; several inputs are tuples or lists of arrays.

    Args:
        x1: samples.
        x2: other samples; None stands for `x1`.
        pattern: adjacencies of both.
        mask_constant: what stands for masked entries.
        pairs: whether `cov1` and `cov2` are to be those of all pairs of samples.
    """
    settings = {"pattern": pattern, "mask_constant": mask_constant, "pairs": pairs}
    if is_several(x1):
        others = [None] * len(x1) if x2 is None else x2
        return [signal_of(a, b, **settings) for a, b in zip(x1, others, strict=True)]
    left_pattern, right_pattern = split_pattern(pattern)
    x1 = with_mask(check_inputs(with_pattern(x1, left_pattern), "x1"), mask_constant)
    if x2 is not None:
        x2 = with_mask(check_inputs(with_pattern(x2, right_pattern), "x2"), mask_constant)
        check_same_features(x1, x2)
        x1, x2 = mask_both(x1, x2)
    left = _state_of_inputs(x1)
    right = left if x2 is None else _state_of_inputs(x2)
    empty = Signal(None, None, None, None if x2 is None else right.cov, jnp.asarray(x2 is None))
    signal = _with_states(empty, _States(left, right, _pairs_of_inputs(left, right))).replace(is_input=True)
    if not pairs:
        return signal
    covs = [_pairs_of_inputs(side, side).nngp for side in (left, right)]
    return signal.replace(cov1=covs[0], cov2=None if x2 is None else covs[1], diagonal_batch=False)


def through(rule: Rule, signals: Signals, wanted: Requirements = ALL_POSITIONS, **settings: Any) -> Signals:
    """Return the signals behind a network."""
    if isinstance(rule, BatchRule):
        return rule.change(signals, **settings)
    if not rule.mixes_samples:
        return _through_layers(rule, signals, wanted)
    several: Any = rule
    if isinstance(rule, Parallel):
        return [through(each, own, wanted, **settings) for each, own in zip(several.rules, signals, strict=True)]
    for mixing, rules in itertools.groupby(several.rules, lambda each: each.mixes_samples):
        for each in rules if mixing else [Serial(tuple(rules))]:
            signals = through(each, signals, ALL_POSITIONS, **settings)
    return signals


def needs_full_batch(rule: Rule) -> bool:
    """Return whether some layer of a network needs the covariance of different samples of one batch."""
    if isinstance(rule, Composition):
        return any(map(needs_full_batch, rule.rules))
    return isinstance(rule, BatchRule) and rule.full_batch


def is_several(x: Any) -> bool:
    """Return whether inputs or signals are several ones, in a tuple or list."""
    return isinstance(x, tuple | list) and not isinstance(x, Graph | MaskedArray)


def map_signals(function: Callable, signals: Signals, *others: Any) -> Any:
    """Return what a function makes of a signal, or of each of several, with other arguments for each."""
    if not isinstance(signals, tuple | list):
        return function(signals, *others)
    return [map_signals(function, *own) for own in zip(signals, *others, strict=True)]


def mixes_samples() -> Exception:
    """Return the refusal of networks that mix samples where samples and pairs are evaluated by themselves."""
    fix = "Call `kernel_fn(x1, x2, get)` on whole batches: layers that mix samples, or layers of your own, need that."
    return refusal("kernel_fn", expected="of layers that treat samples one by one", got="one that does not", fix=fix)


def _through_layers(rule: Rule, signals: Signals, wanted: Requirements) -> Signals:
    leaves = jax.tree.leaves(signals, is_leaf=lambda x: isinstance(x, Signal))
    first = leaves[0]
    if not all(signal.has_samples for signal in leaves):
        fix = "End the network there."
        raise refusal("layers", expected="none behind one that sums over samples", got=type(rule).__name__, fix=fix)
    if wanted is EQUAL_POSITIONS or any(signal.diagonal_spatial for signal in leaves):
        wanted = EQUAL_POSITIONS
        if any(required.full_pairs for required in jax.tree.leaves(rule.requirements_for(wanted))):
            fix = "Leave it out: a layer of this network compares positions."
            raise refusal("diagonal_spatial", expected="left out, or False", got="True", fix=fix)
    after = _with_states(first, _propagate(rule, _states_of(signals), wanted))
    if first.diagonal_batch:
        return after
    for side in ("1",) if first.cov2 is None else ("1", "2"):
        own = map_signals(lambda signal, side=side: signal.of_one_batch(side), signals)
        own = _with_states(first, _propagate(rule, _states_of(own), wanted))
        with_pairs = lambda s, o, side=side: s.replace(diagonal_batch=False, **{"cov" + side: o.nngp})  # noqa: E731
        after = map_signals(with_pairs, after, own)
    return after


@partial(jax.jit, static_argnames="wanted")
def _propagate(rule: Rule, states: _States, wanted: Requirements) -> _States:
    required = rule.requirements_for(wanted)
    left, memo_left = samples_through(rule, reduce_to(states.left, required), wanted)
    right, memo_right = samples_through(rule, reduce_to(states.right, required), wanted)
    pairs = pairs_through(rule, reduce_to(states.pairs, required), memo_left, memo_right, wanted)
    return _States(*(reduce_to(state, wanted) for state in (left, right, pairs)))


def _states_of(signals: Signals) -> _States:
    if isinstance(signals, tuple | list):
        several = [_states_of(each) for each in signals]
        return _States(*(tuple(states) for states in zip(*several, strict=True)))
    left, right = signals.side_states()
    return _States(left, right, signals.pair_state())


def _with_states(before: Signal, states: _States) -> Signals:
    """Return the signals behind layers, from one before them: what the two batches have in common stays."""
    left, right, pairs = states
    if isinstance(left, tuple):
        branches: Any = states
        return [_with_states(before, _States(*each)) for each in zip(*branches, strict=True)]
    one_batch = before.cov2 is None
    return before.replace(
        nngp=pairs.nngp,
        ntk=jnp.zeros_like(pairs.nngp) if pairs.ntk is None and pairs.with_ntk else pairs.ntk,
        cov1=jnp.asarray(left.cov),
        cov2=None if one_batch else right.cov,
        is_gaussian=left.gaussian,
        is_input=False,
        diagonal_batch=True,
        diagonal_spatial=bool(left.grid) and not pairs.full,
        shape1=(pairs.nngp.shape[0], *left.grid, left.width()),
        shape2=(pairs.nngp.shape[1], *right.grid, right.width()),
        mask1=None if left.mask is None else left.mask[..., None],
        mask2=None if one_batch or right.mask is None else right.mask[..., None],
        adjacency1=left.adjacency,
        adjacency2=right.adjacency,
        fan_outs=left.fan_outs,
    )


def _pairs_of_inputs(left: SampleState, right: SampleState) -> PairState:
    nngp = covariance_of_inputs(jnp.asarray(left.nodes), jnp.asarray(right.nodes), paired=False, full=left.full)
    return PairState(nngp, None, None, full=left.full, with_ntk=True)


def _state_of_inputs(x: Inputs) -> SampleState:
    nodes = jnp.asarray(nodes_of(x))
    full = nodes.ndim > 2
    return SampleState(
        covariance_of_inputs(nodes, nodes, paired=True, full=full),
        None,
        x.adjacency if isinstance(x, Graph) else None,
        nodes.shape[1:-1],
        full=full,
        gaussian=False,
        nodes=nodes,
        channels=nodes.shape[-1],
        mask=mask_of(x),
    )
