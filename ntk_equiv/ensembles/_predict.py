"""Outputs of all members, for any number of samples in bounded memory."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import numpy as np

from ntk_equiv._typing import Inputs
from ntk_equiv.ensembles._layout import Layout, activation_bytes
from ntk_equiv.ensembles._models import Model, Params, State

SAMPLES_AT_A_TIME = 1000
# Memory for the activations of all members that a device evaluates together.
BYTES_AT_A_TIME = 2**30


def predict(model: Model, layout: Layout, variables: tuple[Params, State], x: Inputs, batch_size: int) -> np.ndarray:
    """Return the outputs of all members, [members, n, ...], computed for so many samples at a time."""
    return np.concatenate([*predict_in_parts(model, layout, variables, x, batch_size)], axis=1)


def predict_in_parts(
    model: Model, layout: Layout, variables: tuple[Params, State], x: Inputs, batch_size: int
) -> Iterator[np.ndarray]:
    """Yield the outputs of all members for so many samples at a time, [members, batch, ...].

    Args:
        model: the network.
        layout: where members are evaluated.
        variables: parameters and state of all members.
        x: arrays or sources, which are read as they are needed.
        batch_size: how many samples to evaluate at a time.
    """
    n = jax.tree.leaves(x)[0].shape[0]
    size = min(batch_size, n)
    for start in range(0, n, size):
        # The last part is filled up, so that one program serves all of them.
        chosen = np.minimum(np.arange(start, start + size), n - 1)
        part = layout.share(jax.tree.map(lambda leaf, chosen=chosen: leaf[chosen], x))
        yield _outputs(model, layout, variables, part)[:, : n - start]


def _outputs(model: Model, layout: Layout, variables: tuple[Params, State], x: Inputs) -> np.ndarray:
    if not layout.stepwise:
        return layout.collect(_evaluate(model, layout, variables, x))
    chunks = range(layout.chunks)
    outputs = [layout.gather(_evaluate_chunk(model, layout, variables, layout.share(np.int32(i)), x)) for i in chunks]
    # Each chunk holds members of all devices, so they come out of order.
    order = np.concatenate([layout.numbers_of_chunk(number) for number in chunks])
    return np.concatenate(outputs)[np.argsort(order)][: layout.members]


def samples_for(model: Model, layout: Layout, variables: tuple[Params, State], x: Inputs) -> int:
    """Return how many samples like `x` to evaluate together, so that activations take a bounded amount of memory.

    Args:
        model: the network.
        layout: where members are evaluated.
        variables: shapes of the parameters and the state of one member.
        x: arrays or sources.
    """
    params, state = variables
    sample = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape[1:]), leaf.dtype), x)
    return samples_at_a_time(layout.chunk, activation_bytes(model.apply, params, sample, state))


def samples_at_a_time(chunk: int, bytes_each: int) -> int:
    """Return how many samples to evaluate together: fewer than usual if they are large.

    Args:
        chunk: how many members a device evaluates together.
        bytes_each: the size of the activations of one sample, for one member.

    Example:
        >>> samples_at_a_time(1, 10**5), samples_at_a_time(20, 10**6), samples_at_a_time(20, 10**10)
        (1000, 53, 1)
    """
    return min(max(1, BYTES_AT_A_TIME // max(1, chunk * bytes_each)), SAMPLES_AT_A_TIME)


@partial(jax.jit, static_argnames=("model", "layout"))
def _evaluate(model: Model, layout: Layout, variables: tuple[Params, State], x: Inputs) -> Any:
    return layout.over_members(partial(_evaluate_member, model))(variables, x)


@partial(jax.jit, static_argnames=("model", "layout"))
def _evaluate_chunk(model: Model, layout: Layout, variables: tuple[Params, State], place: jax.Array, x: Inputs) -> Any:
    return layout.over_chunk(partial(_evaluate_member, model))(layout.chunk_of(variables, place), x)


def _evaluate_member(model: Model, variables: tuple[Params, State], x: Inputs) -> Any:
    params, state = variables
    return model.apply(params, x, state)
