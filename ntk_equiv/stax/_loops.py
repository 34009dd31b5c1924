"""Equal layers in a row, evaluated by a loop.

A network of hundreds of equal layers, written out one by one, is a program that takes minutes and gigabytes to compile.
Where layers repeat, alone or in blocks such as Dense, Relu, Dense, Relu, …, and each block takes and leaves a state of
the same form, the program has the block once and runs it in a loop over the stacked hyperparameters.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

# Fewer blocks than this are written out: there is little to gain.
FEWEST_REPEATS = 5

Step = Callable[[Any, Any], tuple[Any, Any]]


class Run(NamedTuple):
    """Layers `start` to `start + period * repeats` of a chain: `repeats` equal blocks of `period` layers."""

    start: int
    period: int
    repeats: int


def runs(kinds: Sequence[Hashable]) -> list[Run]:
    """A chain cut into runs: as much of it as possible in repeated blocks, the rest in runs of one.

    >>> runs("xababababababy")
    [Run(start=0, period=1, repeats=1), Run(start=1, period=2, repeats=6), Run(start=13, period=1, repeats=1)]
    """
    number = {kind: i for i, kind in enumerate(dict.fromkeys(kinds))}
    chain, start, found = [number[kind] for kind in kinds], 0, []
    longest = _longest_runs(chain)
    while start < len(chain):
        found.append(longest[start])
        start += longest[start].period * longest[start].repeats
    return found


def _longest_runs(chain: list[int]) -> list[Run]:
    """From each layer on, the run that covers most layers, with the shortest period among equals."""
    longest = [Run(start, 1, 1) for start in range(len(chain))]
    for period in range(1, len(chain) // FEWEST_REPEATS + 1):
        equal = 0  # How many layers in a row, from here on, are like those one period later.
        for start in reversed(range(len(chain) - period)):
            equal = equal + 1 if chain[start] == chain[start + period] else 0
            repeats, before = equal // period + 1, longest[start]
            if repeats >= FEWEST_REPEATS and repeats * period > before.period * before.repeats:
                longest[start] = Run(start, period, repeats)
    return longest


def kind_of(layer: Any) -> Hashable:
    """What two layers have in common if a loop may go over them: all but the values of their hyperparameters."""
    leaves, structure = jax.tree.flatten(layer)
    return structure, tuple(jnp.shape(leaf) for leaf in leaves)


def stacked(blocks: Sequence[Any], state: Any) -> Any:
    """Blocks of equal structure as one, their hyperparameters stacked along a first axis, in the precision of `state`.

    Python numbers adapt to the precision at hand; stacked as they are, they would impose theirs.
    """
    dtype = jax.tree.leaves(state)[0].dtype
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf, dtype) for leaf in leaves]), *blocks)


def keeps_form(step: Step, state: Any, inputs: Any) -> bool:
    """Whether `step(state, input)` leaves a state of the form that it was given; inputs are stacked."""
    found = []

    def leaves() -> list[Any]:
        after, _ = step(state, jax.tree.map(lambda leaf: leaf[0], inputs))
        found.append(jax.tree.structure(after))
        return jax.tree.leaves(after)

    shapes = jax.eval_shape(leaves)
    if found != [jax.tree.structure(state)]:
        return False
    return all(a.shape == b.shape and a.dtype == b.dtype for a, b in zip(jax.tree.leaves(state), shapes, strict=True))
