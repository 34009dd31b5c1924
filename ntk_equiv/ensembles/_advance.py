"""All members, trained through a stretch of steps.

A run is divided into stretches of steps. A member takes all steps of a stretch before the next one on its device
begins, so that its parameters stay in cache. There are four ways:

    in a compiled loop      all chunks and steps are one program
    step by step            each step of a chunk is a program, for layouts that ask for it
    from the host           likewise, and the samples of each member's batch are put on its device before
    from a stream           likewise, but step after step for all chunks, so that each batch is read once

The numbers of steps are arguments of the programs. So one program serves all stretches, and where a stretch begins and
ends does not change a bit of the result.
"""

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from ntk_equiv._check import refusal
from ntk_equiv._losses import check_labels
from ntk_equiv._typing import Inputs
from ntk_equiv.ensembles._batches import Data
from ntk_equiv.ensembles._layout import Layout
from ntk_equiv.ensembles._members import NEVER, Member, Task, select_members
from ntk_equiv.ensembles._sources import StreamReader, shapes_of

# Batches from the host that may be on a device at a time: while a step is computed, the next one is prepared.
STEPS_UNDER_WAY = 1


def advance(
    task: Task,
    layout: Layout,
    members: Member,
    key: jax.Array,
    data: "Data | CheckedStream",
    start: int,
    stop: int,
    *,
    stopped: np.ndarray | None = None,
) -> Member:
    """Return all members after the steps from `start` up to `stop`; those that have `stopped` remain as they are."""
    first, last = layout.share((np.int32(start), np.int32(stop)))
    if not layout.stepwise and not task.batches.on_host:
        return _advance_in_compiled_loop(task, layout, members, key, data, first, last)
    chunks = [*range(layout.chunks)]
    if stopped is not None:
        chunks = [number for number in chunks if not _all_stopped(stopped, layout.numbers_of_chunk(number))]
    if isinstance(data, CheckedStream):
        return _advance_on_stream(task, layout, members, key, data, chunks, start, stop)
    for number in chunks:
        place = layout.share(np.int32(number))
        if task.batches.on_host:
            chunk = _advance_on_host(task, layout, _chunk_of(layout, members, place), key, data, start, stop)
        else:
            state = _take_chunk(task, layout, members, key, place, first)
            for _ in range(start, stop):
                state = _step_chunk(task, layout, state, key, data)
            chunk = state[0]
        members = _put_chunk_back(task, layout, members, chunk, place, last)
    return members


def place_data(task: Task, layout: Layout, data: Data) -> Any:
    """Return training data as `advance` takes them: on all devices, on the host, or as a place in a stream."""
    if task.batches.stream is not None:
        return CheckedStream(task, data)
    return data if task.batches.on_host else layout.share(data)


def _advance_on_host(
    task: Task, layout: Layout, chunk: Member, key: jax.Array, data: Data, start: int, stop: int
) -> Member:
    """Return a chunk of members after some steps, with batches that are taken on the host."""
    x, y, elements = data
    batches, under_way = task.batches, deque[jax.Array]()
    elements, order = layout.share(elements), None
    for step in range(start, stop):
        number = layout.share(np.int32(step))
        if order is None or step % batches.per_epoch == 0:
            order = layout.gather(_orders(task, layout, chunk.index, key, number))
        chosen = batches.choose(order, step)
        samples = partial(_samples_of_chunk, layout, batches.samples(chosen))
        given = *jax.tree.map(samples, (x, y)), layout.fetch(chosen.shape, chosen.__getitem__)
        chunk, loss = _step_on_samples(task, layout, chunk, given, key, elements, number)
        _wait_for_last(under_way, loss)
    return chunk


def _advance_on_stream(
    task: Task,
    layout: Layout,
    members: Member,
    key: jax.Array,
    stream: "CheckedStream",
    chunks: Sequence[int],
    start: int,
    stop: int,
) -> Member:
    """Return all members after some steps on the batches of a stream, each of which is read once for all of them."""
    under_way = deque[jax.Array]()
    places = [layout.share(np.int32(number)) for number in chunks]
    taken = [_chunk_of(layout, members, place) for place in places]
    for step in range(start, stop):
        batch, number = layout.share(stream.read(step)), layout.share(np.int32(step))
        for i in range(len(taken)):
            taken[i], loss = _step_on_batch(task, layout, taken[i], key, *batch, number)
        _wait_for_last(under_way, loss)
    for place, chunk in zip(places, taken, strict=True):
        members = _put_chunk_back(task, layout, members, chunk, place, layout.share(np.int32(stop)))
    return members


def _samples_of_chunk(layout: Layout, numbers: np.ndarray, stored: Any) -> jax.Array:
    """Return the stored samples with these numbers, [members of a chunk, batch], each on the device of its member."""

    def fetch(index: tuple[slice, ...]) -> np.ndarray:
        here = numbers[index[0]]
        return stored[here.reshape(-1)].reshape(*here.shape, *stored.shape[1:])

    return layout.fetch((*numbers.shape, *stored.shape[1:]), fetch)


def _wait_for_last(under_way: deque, loss: jax.Array) -> None:
    """Wait until few steps are under way: each of them keeps a batch on the device."""
    under_way.append(loss)
    if len(under_way) > STEPS_UNDER_WAY:
        jax.block_until_ready(under_way.popleft())


class CheckedStream:
    """A place in a stream, whose batches must be like the first one."""

    def __init__(self, task: Task, first: Data) -> None:
        assert task.batches.stream is not None
        self._task, self._reader = task, StreamReader(task.batches.stream)
        self._like = _without_samples(first[:2])
        self._outputs: dict[int, jax.ShapeDtypeStruct] = {}

    def read(self, step: int) -> tuple[Inputs, np.ndarray]:
        """Return the batch of a step.

        Raises:
            ValueError: it is unlike the first one, or the loss cannot compare its labels with outputs.
        """
        x, y = self._reader.read(step)
        here = _without_samples((x, y))
        if here != self._like or not len(y):
            fix = "Only the number of samples may differ from batch to batch."
            got = f"{here} at step {step}"
            raise refusal("batches", expected=f"all like the first one, {self._like}", got=got, fix=fix)
        check_labels(self._task.loss, self._shape_of_outputs(x, len(y)), y)
        return x, y

    def _shape_of_outputs(self, x: Inputs, samples: int) -> jax.ShapeDtypeStruct:
        if samples not in self._outputs:
            shapes, model = shapes_of(x), self._task.model
            params, state = model.shapes_of_variables(shapes)
            self._outputs[samples] = jax.eval_shape(model.apply, params, shapes, state)
        return self._outputs[samples]


def _without_samples(batch: tuple) -> list[str]:
    """Return dtypes and shapes of the samples and labels of a batch, whatever their number is."""
    return [f"{leaf.dtype}{[*leaf.shape[1:]]}" for leaf in jax.tree.leaves(batch)]


def _all_stopped(stopped: np.ndarray, numbers: np.ndarray) -> bool:
    """Return whether the members with these numbers have stopped; higher numbers are copies of the first member."""
    return bool(stopped[np.where(numbers < len(stopped), numbers, 0)].all())


# The old state is donated: two states may not fit into memory.
@partial(jax.jit, static_argnames=("task", "layout"), donate_argnames="members")
def _advance_in_compiled_loop(
    task: Task, layout: Layout, members: Member, key: jax.Array, data: Data, start: jax.Array, stop: jax.Array
) -> Member:
    return layout.over_members(task.take_steps)(members, key, data, start, stop)


@partial(jax.jit, static_argnames=("task", "layout"))
def _take_chunk(
    task: Task, layout: Layout, members: Member, key: jax.Array, place: jax.Array, start: jax.Array
) -> tuple:
    return layout.over_chunk(task.with_order)(layout.chunk_of(members, place), key, start)


@partial(jax.jit, static_argnames=("task", "layout"), donate_argnames="state")
def _step_chunk(task: Task, layout: Layout, state: tuple, key: jax.Array, data: Data) -> tuple:
    return layout.over_chunk(task.take_one_step)(state, key, data)


@partial(jax.jit, static_argnames="layout")
def _chunk_of(layout: Layout, members: Member, place: jax.Array) -> Member:
    return layout.chunk_of(members, place)


@partial(jax.jit, static_argnames=("task", "layout"))
def _orders(task: Task, layout: Layout, indices: jax.Array, key: jax.Array, number: jax.Array) -> jax.Array:
    return layout.over_chunk(task.order_of)(indices, key, number)


@partial(jax.jit, static_argnames=("task", "layout"), donate_argnames="chunk")
def _step_on_samples(
    task: Task, layout: Layout, chunk: Member, given: tuple, key: jax.Array, elements: Any, number: jax.Array
) -> tuple:
    return layout.over_chunk(task.step_on_samples)((chunk, given), key, elements, number)


@partial(jax.jit, static_argnames=("task", "layout"), donate_argnames="chunk")
def _step_on_batch(
    task: Task, layout: Layout, chunk: Member, key: jax.Array, x: Inputs, y: jax.Array, number: jax.Array
) -> tuple:
    return layout.over_chunk(task.step_on_batch)(chunk, key, x, y, number)


@partial(jax.jit, static_argnames=("task", "layout"), donate_argnames="members")
def _put_chunk_back(
    task: Task, layout: Layout, members: Member, chunk: Member, place: jax.Array, stop: jax.Array
) -> Member:
    chunk = layout.over_chunk(task.note_failure)(chunk, stop)
    if task.stops_early:  # a chunk may hold members that have stopped beside others that have not
        old = layout.chunk_of(members, place)
        chunk = select_members(old.stopped == NEVER, chunk, old)
    return layout.with_chunk(members, chunk, place)
