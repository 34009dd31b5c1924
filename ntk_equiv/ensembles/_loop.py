"""The loop: steps of gradient descent for every member.

    loss, gradient = ∇ L(params, batch(step));   params ← params + optimizer(gradient)

A member is trained for many steps before the next one on its device begins, so that its parameters stay in cache. All
steps are one compiled program, or each is one, as the layout says. Their numbers are arguments of it, not part of it:
one program serves all stretches of a run, and where they begin and end does not change a bit of the result.
"""

import dataclasses
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ntk_equiv._check import random_key, refusal, samples_in
from ntk_equiv.ensembles._batches import Batches
from ntk_equiv.ensembles._gradient import value_and_gradient
from ntk_equiv.ensembles._layout import Layout
from ntk_equiv.ensembles._losses import LossFn, reduced
from ntk_equiv.ensembles._model import Model

NEVER = -1
SAMPLES_AT_A_TIME = 1000
# What the activations of all members that a device evaluates together may take.
BYTES_AT_A_TIME = 2**30


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Member:
    """The state of a member, or with leading axes of many.

    Attributes:
        index: its number, on which its random key depends.
        params: its parameters.
        optimizer: the state of its optimizer.
        loss: of the last batch, before the step it led to.
        failed: the step at which loss or parameters ceased to be finite; −1 if they are.
    """

    index: Any
    params: Any
    optimizer: Any
    loss: Any
    failed: Any


def raw_key(key: Any) -> tuple[np.ndarray, str]:
    """The numbers of a random key, old or new, and the name of its generator."""
    random_key(key)
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    numbers = np.asarray(jax.random.key_data(key) if typed else key)
    return numbers, str(jax.random.key_impl(key if typed else jax.random.key(0)))


def member_keys(key: jax.Array, impl: str, index: Any) -> tuple[jax.Array, jax.Array]:
    """The keys of a member, for its parameters and for its batches: they depend on its index alone."""
    initial, data = jax.random.split(jax.random.fold_in(jax.random.wrap_key_data(key, impl=impl), index))
    return initial, data


@dataclasses.dataclass(frozen=True)
class Task:
    """What is compiled: how a member is made and trained. Hashable, so that programs are found again."""

    model: Model
    optimizer: optax.GradientTransformation
    loss: LossFn
    reduction: str
    batches: Batches
    key_impl: str

    def keys(self, key: jax.Array, index: Any) -> tuple[jax.Array, jax.Array]:
        """The keys of a member, for its parameters and for its batches."""
        return member_keys(key, self.key_impl, index)

    def begun(self, member: tuple[jax.Array, Any]) -> Member:
        """A member before its first step, from its index and parameters."""
        index, params = member
        loss = jnp.full((), jnp.nan, jnp.result_type(*jax.tree.leaves(params), jnp.float32))
        state = jax.tree.map(lambda leaf: _strong(leaf, jnp.result_type(leaf)), self.optimizer.init(params))
        return Member(index, params, state, loss, jnp.int32(NEVER))

    def loss_of(self, params: Any, batch: tuple) -> jax.Array:
        """The loss on a batch."""
        x, y, weights = batch
        return reduced(self.loss(self.model.apply(params, x), y), weights, self.reduction)

    def trained(self, member: Member, key: jax.Array, data: tuple, start: jax.Array, stop: jax.Array) -> Member:
        """A member after the steps from `start` up to `stop`."""
        own = self.keys(key, member.index)[1]

        def step(number: jax.Array, carry: tuple) -> tuple:
            member, order = carry
            return self._stepped(member, order, own, data, number)

        member, _ = jax.lax.fori_loop(start, stop, step, (member, self.batches.shuffled(own, start)))
        return self.looked_at(member, stop)

    def shuffled(self, member: Member, key: jax.Array, number: jax.Array) -> tuple[Member, jax.Array, jax.Array]:
        """A member with what `stepped` needs beside it: the order of its samples, and the number of the step."""
        return member, self.batches.shuffled(self.keys(key, member.index)[1], number), number

    def stepped(self, state: tuple[Member, jax.Array, jax.Array], key: jax.Array, data: tuple) -> tuple:
        """The same after one step."""
        member, order, number = state
        return *self._stepped(member, order, self.keys(key, member.index)[1], data, number), number + 1

    def _stepped(self, member: Member, order: jax.Array, own: jax.Array, data: tuple, number: jax.Array) -> tuple:
        if self.batches.batch_size is not None:
            shuffled = partial(self.batches.shuffled, own)
            order = jax.lax.cond(number % self.batches.per_epoch == 0, shuffled, lambda _: order, number)
        return self.updated(member, self.batches.take(data, own, order, number), number), order

    def looked_at(self, member: Member, number: jax.Array) -> Member:
        """A member with a note of the step, if its parameters are no longer finite."""
        finite = jnp.all(jnp.array([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(member.params)]))
        return dataclasses.replace(member, failed=_first(member.failed, finite, number))

    def updated(self, member: Member, batch: tuple, number: jax.Array) -> Member:
        """A member after a step, of this number, that it makes with a batch."""
        loss_fn = partial(self.loss_of, batch=batch)
        loss, gradient = value_and_gradient(loss_fn, member.params)
        updates, optimizer = updated_by(self.optimizer, gradient, member.optimizer, member.params, loss, loss_fn)
        params = optax.apply_updates(member.params, updates)
        failed = _first(member.failed, jnp.isfinite(loss), number)
        return Member(member.index, params, optimizer, loss.astype(member.loss.dtype), failed)


# Random numbers take long to compile: one program for all training sets and optimizers.
@partial(jax.jit, static_argnames=("model", "layout", "key_impl"))
def initial_params(model: Model, layout: Layout, key_impl: str, indices: jax.Array, key: jax.Array, x: Any) -> Any:
    """The parameters of all members before their first step; `x` are inputs that their networks are made for."""

    def born(index: jax.Array, key: jax.Array, x: Any) -> Any:
        return model.init(member_keys(key, key_impl, index)[0], x)

    return layout.over_members(born)(indices, key, x)


@partial(jax.jit, static_argnames=("task", "layout"), donate_argnames="params")
def created(task: Task, layout: Layout, indices: jax.Array, params: Any) -> Member:
    """All members before their first step."""
    return layout.over_members(task.begun)((indices, params))


def advanced(task: Task, layout: Layout, members: Member, key: jax.Array, data: tuple, start: int, stop: int) -> Member:
    """All members after the steps from `start` up to `stop`."""
    first, last = layout.share((np.int32(start), np.int32(stop)))
    if not layout.stepwise:
        return _in_compiled_loop(task, layout, members, key, data, first, last)
    for number in range(layout.chunks):
        place = layout.share(np.int32(number))
        state = _taken_out(task, layout, members, key, place, first)
        for _ in range(start, stop):
            state = _one_step(task, layout, state, key, data)
        members = _put_back(task, layout, members, state[0], place, last)
    return members


# The old state is given up: two of them may not fit.
@partial(jax.jit, static_argnames=("task", "layout"), donate_argnames="members")
def _in_compiled_loop(
    task: Task, layout: Layout, members: Member, key: jax.Array, data: tuple, start: jax.Array, stop: jax.Array
) -> Member:
    return layout.over_members(task.trained)(members, key, data, start, stop)


@partial(jax.jit, static_argnames=("task", "layout"))
def _taken_out(
    task: Task, layout: Layout, members: Member, key: jax.Array, place: jax.Array, start: jax.Array
) -> tuple:
    return layout.over_chunk(task.shuffled)(layout.chunk_of(members, place), key, start)


@partial(jax.jit, static_argnames=("task", "layout"), donate_argnames="state")
def _one_step(task: Task, layout: Layout, state: tuple, key: jax.Array, data: tuple) -> tuple:
    return layout.over_chunk(task.stepped)(state, key, data)


@partial(jax.jit, static_argnames=("task", "layout"), donate_argnames="members")
def _put_back(task: Task, layout: Layout, members: Member, chunk: Member, place: jax.Array, stop: jax.Array) -> Member:
    return layout.with_chunk(members, layout.over_chunk(task.looked_at)(chunk, stop), place)


def predicted(model: Model, layout: Layout, params: Any, x: Any, batch_size: int) -> np.ndarray:
    """The outputs of all members, [members, n, ...], so many samples at a time."""
    n = samples_in(x, "x")
    if n == 0:
        raise refusal("x", expected="at least one sample", got="none", fix="Pass inputs [n, ...].")
    size = min(batch_size, n)
    parts = []
    for start in range(0, n, size):
        # The last part is filled up, so that one program serves all of them.
        chosen = np.minimum(np.arange(start, start + size), n - 1)
        part = layout.share(jax.tree.map(lambda leaf, chosen=chosen: np.asarray(leaf)[chosen], x))
        parts.append(_outputs(model, layout, params, part))
    return np.concatenate(parts, axis=1)[:, :n]


def _outputs(model: Model, layout: Layout, params: Any, x: Any) -> np.ndarray:
    if not layout.stepwise:
        return layout.collect(_evaluated(model, layout, params, x))
    chunks = range(layout.chunks)
    found = [layout.gather(_evaluated_chunk(model, layout, params, layout.share(np.int32(i)), x)) for i in chunks]
    order = np.concatenate([layout.numbers_of_chunk(number) for number in chunks])
    return np.concatenate(found)[np.argsort(order)][: layout.members]


def samples_at_a_time(chunk: int, bytes_each: int) -> int:
    """How many samples to evaluate together: fewer than usual if they are large.

    Args:
        chunk: members that a device evaluates together.
        bytes_each: what the activations of one sample take, for one member.

    Example:
        >>> samples_at_a_time(1, 10**5), samples_at_a_time(20, 10**6), samples_at_a_time(20, 10**10)
        (1000, 53, 1)
    """
    return min(max(1, BYTES_AT_A_TIME // max(1, chunk * bytes_each)), SAMPLES_AT_A_TIME)


@partial(jax.jit, static_argnames=("model", "layout"))
def _evaluated(model: Model, layout: Layout, params: Any, x: Any) -> Any:
    return layout.over_members(model.apply)(params, x)


@partial(jax.jit, static_argnames=("model", "layout"))
def _evaluated_chunk(model: Model, layout: Layout, params: Any, place: jax.Array, x: Any) -> Any:
    return layout.over_chunk(model.apply)(layout.chunk_of(params, place), x)


def updated_by(
    optimizer: optax.GradientTransformation, gradient: Any, state: Any, params: Any, loss: Any, loss_fn: Callable
) -> tuple[Any, Any]:
    """What an optimizer adds to parameters, and its next state.

    Some want more than a gradient: those that search along a line, or wait for a plateau, are given the loss.
    """
    update = optax.with_extra_args_support(optimizer).update
    takes = inspect.signature(update).parameters
    anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values())
    extra = {"value": loss, "grad": gradient, "value_fn": loss_fn}
    extra = {name: value for name, value in extra.items() if anything or name in takes}
    updates, new = update(gradient, state, params, **extra)
    # A few begin with one dtype and would go on with another.
    return updates, jax.tree.map(lambda leaf, old: _strong(leaf, old.dtype), new, state)


def _strong(leaf: Any, dtype: Any) -> Any:
    """An array of this dtype, which is no mere guess of JAX."""
    return leaf if jnp.issubdtype(dtype, jax.dtypes.prng_key) else jnp.asarray(leaf).astype(dtype)


def _first(failed: jax.Array, fine: jax.Array, number: jax.Array) -> jax.Array:
    return jnp.where((failed == NEVER) & ~fine, number, failed).astype(failed.dtype)
