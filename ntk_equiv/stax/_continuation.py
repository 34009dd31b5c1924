"""Kernels between layers: what one network computed, handed on to the next.

A `Signal` is what is known about two batches of samples somewhere in a network: the states of the samples of both, and
that of their pairs. `signal_of` makes one of inputs, and `propagate` takes it through a network. So the kernels of a
network may be looked at layer by layer, or continued by another network. Inputs, and outputs, may be several.

Whoever does not know what comes next has to keep everything, so this is slower than a call of `kernel_fn` on inputs,
where later layers say what they need.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ntk_equiv._typing import Inputs
from ntk_equiv.stax._composition import pairs_through, reduce_to, samples_through
from ntk_equiv.stax._inputs import (
    Graph,
    MaskedArray,
    check_inputs,
    check_same_features,
    mask_of,
    nodes_of,
    split_pattern,
    with_mask,
    with_pattern,
)
from ntk_equiv.stax._kernel_fn import covariance_of_inputs, mask_both
from ntk_equiv.stax._rule import Rule
from ntk_equiv.stax._state import Branches, Moments, PairState, Requirements, SampleState

# What is kept if it is not known what comes next, and if positions will never be compared.
ALL_POSITIONS = Requirements(full_pairs=True, moments=Moments.COVARIANCE, stored=False)
EQUAL_POSITIONS = Requirements(full_pairs=False, moments=Moments.VARIANCE, stored=False)


class Signal(NamedTuple):
    """What is known about two batches of samples and their pairs; tuples of states where there are branches.

    Attributes:
        left: the samples of the first batch.
        right: those of the second.
        pairs: all pairs of them.
    """

    left: SampleState | Branches
    right: SampleState | Branches
    pairs: PairState | Branches


def signal_of(x1: Any, x2: Any = None, *, pattern: Any = None, mask_constant: Any = None) -> Signal:
    """Return the signal that inputs are; several inputs are tuples or lists of arrays."""
    settings = {"pattern": pattern, "mask_constant": mask_constant}
    if isinstance(x1, tuple | list) and not isinstance(x1, Graph | MaskedArray):
        others = [None] * len(x1) if x2 is None else x2
        several = [signal_of(a, b, **settings) for a, b in zip(x1, others, strict=True)]
        return Signal(*(tuple(states) for states in zip(*several, strict=True)))
    left_pattern, right_pattern = split_pattern(pattern)
    x1 = with_mask(check_inputs(with_pattern(x1, left_pattern), "x1"), mask_constant)
    if x2 is not None:
        x2 = with_mask(check_inputs(with_pattern(x2, right_pattern), "x2"), mask_constant)
        check_same_features(x1, x2)
        x1, x2 = mask_both(x1, x2)
    left = _state_of_inputs(x1)
    right = left if x2 is None else _state_of_inputs(x2)
    nngp = covariance_of_inputs(jnp.asarray(left.nodes), jnp.asarray(right.nodes), paired=False, full=left.full)
    return Signal(left, right, PairState(nngp, None, None, full=left.full, with_ntk=True))


@partial(jax.jit, static_argnames="wanted")
def propagate(rule: Rule, signal: Signal, wanted: Requirements = ALL_POSITIONS) -> Signal:
    """Return the signal behind a network."""
    required = rule.requirements_for(wanted)
    left, memo_left = samples_through(rule, reduce_to(signal.left, required), wanted)
    right, memo_right = samples_through(rule, reduce_to(signal.right, required), wanted)
    pairs = pairs_through(rule, reduce_to(signal.pairs, required), memo_left, memo_right, wanted)
    return Signal(*(reduce_to(state, wanted) for state in (left, right, pairs)))


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
