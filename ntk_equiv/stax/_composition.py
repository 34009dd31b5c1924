"""Rules of networks that are put together from layers: one after another, side by side, again and again.

Side by side, the state that flows is a tuple with one entry per branch, until a fan-in makes one of them.

**Loops.** A network of hundreds of equal layers, written out one by one, would be a program that takes minutes and
gigabytes to compile. Where layers repeat, alone or in blocks such as Dense, Relu, Dense, Relu, …, and each block takes
and leaves a state of the same form, the program contains the block once and runs it in a loop over the stacked
hyperparameters.
"""

import dataclasses
import math
from collections.abc import Callable, Hashable, Sequence
from functools import reduce
from itertools import dropwhile
from operator import and_, itemgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ntk_equiv._check import refusal
from ntk_equiv.stax._rule import EVERYTHING, Certificate, Rule
from ntk_equiv.stax._state import (
    Branches,
    Masked,
    Memo,
    PairState,
    Requirements,
    SampleState,
    frozen_pytree,
    merge_requirements,
    static,
)

# Fewer equal blocks than this are written out: a loop would gain little.
FEWEST_REPEATS = 5

Block = tuple[Rule, ...]
"""Some consecutive layers of a chain."""


class Composition(Rule):
    """Several layers as one."""

    takes_branches = True
    makes_branches = True

    rules: tuple[Rule, ...]

    @property
    def mixes_samples(self) -> bool:
        """Whether one of the layers does."""
        return any(layer.mixes_samples for layer in self.rules)

    @property
    def certificate(self) -> Certificate:
        """What all layers share."""
        return reduce(and_, (layer.certificate for layer in self.rules), EVERYTHING)


@frozen_pytree
class Serial(Composition):
    """Layers one after another."""

    rules: tuple[Rule, ...]

    def requirements_for(self, wanted: Requirements | Branches) -> Requirements | Branches:
        return self.requirements_of_layers(wanted)[0]

    def requirements_of_layers(self, wanted: Requirements | Branches) -> list[Requirements | Branches]:
        """Return what each layer must know, first to last, and then what is wanted of the last."""
        listed = [wanted]
        for layer in reversed(self.rules):
            if isinstance(listed[-1], tuple) and not layer.makes_branches:
                fix = "Put `FanOut` right before `parallel`."
                got = f"one output, of {type(layer).__name__}, for several branches"
                raise refusal("layers", expected="such that branches are made before they are used", got=got, fix=fix)
            listed.append(layer.requirements_for(listed[-1]))
        return listed[::-1]

    def after_flattening(self) -> Rule | None:
        layers = list(dropwhile(lambda layer: type(layer) is Unchanged, self.rules))
        rest = layers[0].after_flattening() if layers else None
        return None if rest is None else Serial((rest, *layers[1:]))

    def widening(self) -> int:
        return math.prod(layer.widening() for layer in self.rules)

    def per_sample(
        self, state: SampleState | Branches, wanted: Requirements | Branches
    ) -> tuple[SampleState | Branches, Memo]:
        memos = []
        for blocks, wanted_in_block in self.equal_blocks(wanted):
            # The first of equal blocks is written out: its input may differ in form, such as being not yet Gaussian.
            state, first = _block_per_sample(blocks[0], wanted_in_block, state)
            state, others = _equal_blocks_per_sample(blocks[1:], wanted_in_block, state)
            memos.append((first, others))
        return state, tuple(memos)

    def per_pair(
        self, state: PairState | Branches, left: Memo, right: Memo, wanted: Requirements | Branches
    ) -> PairState | Branches:
        for (blocks, wanted_in_block), a, b in zip(self.equal_blocks(wanted), left, right, strict=True):
            state = _block_per_pair(blocks[0], wanted_in_block, state, a[0], b[0])
            state = _equal_blocks_per_pair(blocks[1:], wanted_in_block, state, a[1], b[1])
        return state

    def equal_blocks(self, wanted: Requirements | Branches) -> list[tuple[list[Block], list[Requirements | Branches]]]:
        """Return lists of equal blocks, first to last, each with what is wanted of the layers of such a block."""
        after_layers = self.requirements_of_layers(wanted)[1:]
        kinds = [(_kind_of(layer), after) for layer, after in zip(self.rules, after_layers, strict=True)]
        cut = []
        for start, period, repeats in runs(kinds):
            starts = range(start, start + period * repeats, period)
            cut.append(([self.rules[i : i + period] for i in starts], after_layers[start : start + period]))
        return cut


@frozen_pytree
class Parallel(Composition):
    """Layers side by side, each with its own entry of a tuple."""

    rules: tuple[Rule, ...]

    def requirements_for(self, wanted: Requirements | Branches) -> Branches:
        each = split_branches(wanted, len(self.rules))
        return tuple(layer.requirements_for(own) for layer, own in zip(self.rules, each, strict=True))

    def widening(self) -> int:
        return max(layer.widening() for layer in self.rules)

    def per_sample(self, state: Branches, wanted: Requirements | Branches) -> tuple[Branches, Memo]:
        states, each = (split_branches(value, len(self.rules)) for value in (state, wanted))
        results = [samples_through(layer, s, own) for layer, s, own in zip(self.rules, states, each, strict=True)]
        return tuple(after for after, _ in results), tuple(memo for _, memo in results)

    def per_pair(self, state: Branches, left: Memo, right: Memo, wanted: Requirements | Branches) -> Branches:
        states, each = (split_branches(value, len(self.rules)) for value in (state, wanted))
        arguments = zip(self.rules, states, left, right, each, strict=True)
        return tuple(pairs_through(layer, s, a, b, own) for layer, s, a, b, own in arguments)


@frozen_pytree
class Copies(Rule):
    """One input to several branches."""

    makes_branches = True

    count: int = static()

    @property
    def certificate(self) -> Certificate:
        """Copying changes nothing."""
        return EVERYTHING

    def requirements_for(self, wanted: Requirements | Branches) -> Requirements:
        return merge_requirements(split_branches(wanted, self.count))

    def per_sample(self, state: SampleState, wanted: Requirements | Branches) -> tuple[Branches, Memo]:
        copy = dataclasses.replace(state, fan_outs=state.fan_outs + 1)
        return tuple(reduce_to(copy, own) for own in split_branches(wanted, self.count)), ()

    def per_pair(self, state: PairState, left: Memo, right: Memo, wanted: Requirements | Branches) -> Branches:
        return tuple(reduce_to(state, own) for own in split_branches(wanted, self.count))


@frozen_pytree
class Unchanged(Rule):
    """What comes in goes out."""

    takes_branches = True
    makes_branches = True

    @property
    def certificate(self) -> Certificate:
        """Nothing is lost."""
        return EVERYTHING

    def per_sample(
        self, state: SampleState | Branches, wanted: Requirements | Branches
    ) -> tuple[SampleState | Branches, Memo]:
        return state, ()

    def per_pair(
        self, state: PairState | Branches, left: Memo, right: Memo, wanted: Requirements | Branches
    ) -> PairState | Branches:
        return state


def samples_through(
    layer: Rule, state: SampleState | Branches, wanted: Requirements | Branches
) -> tuple[SampleState | Branches, Memo]:
    """Return the state of each sample after a layer, and the memo about it, with masked positions set to zero.

    Layers that make branches pass masks on with the states.
    """
    after, memo = layer.per_sample(state, wanted)
    if layer.makes_branches:
        return after, memo
    mask = tuple(s.mask for s in state) if isinstance(state, tuple) else state.mask
    if mask is None or (isinstance(mask, tuple) and None in mask):
        return after, memo
    mask = layer.mask_after(mask)
    return after.masked(mask), Masked(memo, mask)


def pairs_through(
    layer: Rule, state: PairState | Branches, left: Memo, right: Memo, wanted: Requirements | Branches
) -> PairState | Branches:
    """Return the kernels after a layer, with those of masked positions set to zero."""
    if not isinstance(left, Masked):
        return layer.per_pair(state, left, right, wanted)
    return layer.per_pair(state, left.memo, right.memo, wanted).masked(left.mask, right.mask)


def split_branches(value: Any, count: int) -> tuple:
    """Return one entry per branch; a single value, such as the requirements of the output, stands for all of them."""
    if not isinstance(value, tuple):
        return (value,) * count
    if len(value) != count:
        raise refusal(
            "layers",
            expected=f"{count} branches",
            got=f"{len(value)}",
            fix="Let `FanOut` make as many branches as `parallel` has layers.",
        )
    return value


def reduce_to(state: Any, wanted: Requirements | Branches) -> Any:
    """Return a state of samples or pairs, of one branch or several, without what is not wanted."""
    if isinstance(state, tuple):
        return tuple(reduce_to(s, own) for s, own in zip(state, split_branches(wanted, len(state)), strict=True))
    return state.reduce_to(wanted)


class Run(NamedTuple):
    """Layers `start` to `start + period * repeats` of a chain: `repeats` equal blocks of `period` layers."""

    start: int
    period: int
    repeats: int


def runs(kinds: Sequence[Hashable]) -> list[Run]:
    """Cut a chain into runs: as much of it as possible in repeated blocks, the rest in runs of one.

    >>> runs("xababababababy")
    [Run(start=0, period=1, repeats=1), Run(start=1, period=2, repeats=6), Run(start=13, period=1, repeats=1)]
    """
    number = {kind: i for i, kind in enumerate(dict.fromkeys(kinds))}
    chain, start, cut = [number[kind] for kind in kinds], 0, []
    longest = _longest_runs(chain)
    while start < len(chain):
        cut.append(longest[start])
        start += longest[start].period * longest[start].repeats
    return cut


def _longest_runs(chain: list[int]) -> list[Run]:
    """Return for each layer the run from there on that covers most layers; among equals, that of shortest period."""
    longest = [Run(start, 1, 1) for start in range(len(chain))]
    for period in range(1, len(chain) // FEWEST_REPEATS + 1):
        equal = 0  # How many layers in a row, from here on, are like those one period later.
        for start in reversed(range(len(chain) - period)):
            equal = equal + 1 if chain[start] == chain[start + period] else 0
            repeats, before = equal // period + 1, longest[start]
            if repeats >= FEWEST_REPEATS and repeats * period > before.period * before.repeats:
                longest[start] = Run(start, period, repeats)
    return longest


def _kind_of(layer: Rule) -> Hashable:
    """Return what two layers must share if a loop is to go over them: all but the values of their hyperparameters."""
    leaves, structure = jax.tree.flatten(layer)
    return structure, tuple(jnp.shape(leaf) for leaf in leaves)


def _block_per_sample(
    layers: Block, wanted: list[Requirements | Branches], state: SampleState | Branches
) -> tuple[SampleState | Branches, Memo]:
    memos = []
    for layer, after in zip(layers, wanted, strict=True):
        if isinstance(state, tuple) and not layer.takes_branches:
            fix = "After `FanOut` put one layer for each branch into `parallel`, or join them by a fan-in."
            got = f"{len(state)} branches before {type(layer).__name__}"
            raise refusal("layers", expected="such that each layer has one input", got=got, fix=fix)
        state, memo = samples_through(layer, state, after)
        state = reduce_to(state, after)
        memos.append(memo)
    return state, tuple(memos)


def _equal_blocks_per_sample(
    blocks: list[Block], wanted: list[Requirements | Branches], state: SampleState | Branches
) -> tuple[SampleState | Branches, Memo]:
    """Go through equal blocks, in a loop if possible. The memos of a loop have samples first, and blocks second."""

    def step(carry: SampleState | Branches, layers: Block) -> tuple[SampleState | Branches, Memo]:
        after, memos = _block_per_sample(layers, wanted, _with_inputs(carry, state))
        return _with_inputs(after, None), memos

    if blocks and jax.tree.leaves(state):
        carry, layers = _with_inputs(state, None), _stack(blocks, state)
        if _keeps_form(step, carry, layers):
            carry, memos = lax.scan(step, carry, layers, length=len(blocks))
            return _with_inputs(carry, state), jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), memos)
    listed = []
    for layers in blocks:
        state, memo = _block_per_sample(layers, wanted, state)
        listed.append(memo)
    return state, listed


def _block_per_pair(
    layers: Block, wanted: list[Requirements | Branches], state: PairState | Branches, left: Memo, right: Memo
) -> PairState | Branches:
    for layer, after, a, b in zip(layers, wanted, left, right, strict=True):
        state = reduce_to(pairs_through(layer, state, a, b, after), after)
    return state


def _equal_blocks_per_pair(
    blocks: list[Block], wanted: list[Requirements | Branches], state: PairState | Branches, left: Memo, right: Memo
) -> PairState | Branches:
    def step(carry: PairState | Branches, inputs: tuple[Block, Memo, Memo]) -> tuple[PairState | Branches, None]:
        layers, a, b = inputs
        return _block_per_pair(layers, wanted, carry, a, b), None

    if isinstance(left, tuple):  # Stacked by a loop over samples; otherwise it is a list.
        sides = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), (left, right))
        inputs = (_stack(blocks, state), *sides)
        if _keeps_form(step, state, inputs):
            return lax.scan(step, state, inputs, length=len(blocks))[0]
        left, right = ([jax.tree.map(itemgetter(i), side) for i in range(len(blocks))] for side in sides)
    for layers, a, b in zip(blocks, left, right, strict=True):
        state = _block_per_pair(layers, wanted, state, a, b)
    return state


def _with_inputs(state: SampleState | Branches, source: SampleState | Branches | None) -> SampleState | Branches:
    """Return `state` with the inputs that `source` knows, or with none: loops need not carry them."""
    if isinstance(state, tuple):
        return tuple(_with_inputs(s, source) for s in state)
    source = source[0] if isinstance(source, tuple) else source
    nodes, adjacency = (None, None) if source is None else (source.nodes, source.adjacency)
    return dataclasses.replace(state, nodes=nodes, adjacency=adjacency)


def _stack(blocks: Sequence[Block], state: Any) -> Block:
    """Return equal blocks as one, with hyperparameters stacked along a first axis, in the precision of `state`.

    Python numbers adapt to the precision at hand; stacked as they are, they would impose their own.
    """
    dtype = next(leaf.dtype for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.floating))
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf, dtype) for leaf in leaves]), *blocks)


def _keeps_form(step: Callable[[Any, Any], tuple[Any, Any]], state: Any, inputs: Any) -> bool:
    """Return whether `step(state, input)` leaves a state of the same form as it was given; inputs are stacked."""
    structures = []

    def leaves_after() -> list[Any]:
        after, _ = step(state, jax.tree.map(lambda leaf: leaf[0], inputs))
        structures.append(jax.tree.structure(after))
        return jax.tree.leaves(after)

    shapes = jax.eval_shape(leaves_after)
    if structures != [jax.tree.structure(state)]:
        return False
    return all(a.shape == b.shape and a.dtype == b.dtype for a, b in zip(jax.tree.leaves(state), shapes, strict=True))
