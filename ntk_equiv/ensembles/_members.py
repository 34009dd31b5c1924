"""Members: how they are made, trained step by step, and evaluated.

    loss, gradient = ∇ L(params, batch(step));   params ← params + optimizer(gradient)

A run is divided into stretches of steps. A member takes all steps of a stretch before the next one on its device
begins, so that its parameters stay in cache. The layout decides whether these steps are one compiled program or one
program each. The numbers of the first and last step are arguments of the program. So one program serves all stretches,
and where a stretch begins and ends does not change a bit of the result.
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

from ntk_equiv._check import one_of, refusal
from ntk_equiv._typing import Inputs
from ntk_equiv.ensembles._batches import Batch, Batches, Data, TrainingSet, make_batches
from ntk_equiv.ensembles._layout import Layout
from ntk_equiv.ensembles._losses import LossFn, loss_function, reduce_losses, value_and_gradient
from ntk_equiv.ensembles._models import Model, Module, Params, as_model

NEVER = -1
SAMPLES_AT_A_TIME = 1000
# Memory for the activations of all members that a device evaluates together.
BYTES_AT_A_TIME = 2**30


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Member:
    """The state of a member, or of many members along a leading axis.

    Attributes:
        index: its number, on which its random key depends.
        params: its parameters.
        optimizer: the state of its optimizer.
        loss: the loss of its last batch, before the step that was made with it.
        failed: the first step at which loss or parameters were not finite; −1 if there is none.
    """

    index: Any
    params: Params
    optimizer: Any
    loss: Any
    failed: Any


def key_numbers(key: jax.Array) -> tuple[np.ndarray, str]:
    """Return the numbers of a random key, old or new, and the name of its generator."""
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    numbers = np.asarray(jax.random.key_data(key) if typed else key)
    return numbers, str(jax.random.key_impl(key if typed else jax.random.key(0)))


def member_keys(key: jax.Array, impl: str, index: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the keys of a member, for its parameters and for its batches; of the member only its index matters."""
    initial, data = jax.random.split(jax.random.fold_in(jax.random.wrap_key_data(key, impl=impl), index))
    return initial, data


@dataclasses.dataclass(frozen=True)
class Task:
    """How a member is trained: all that is compiled. It is hashable, so that compiled programs are found again."""

    model: Model
    optimizer: optax.GradientTransformation
    loss: LossFn
    reduction: str
    batches: Batches
    key_impl: str

    def keys(self, key: jax.Array, index: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the keys of a member, for its parameters and for its batches."""
        return member_keys(key, self.key_impl, index)

    def initial_member(self, index_and_params: tuple[jax.Array, Params]) -> Member:
        """Return a member before its first step."""
        index, params = index_and_params
        loss = jnp.full((), jnp.nan, jnp.result_type(*jax.tree.leaves(params), jnp.float32))
        state = jax.tree.map(lambda leaf: _with_dtype(leaf, jnp.result_type(leaf)), self.optimizer.init(params))
        return Member(index, params, state, loss, jnp.int32(NEVER))

    def batch_loss(self, params: Params, batch: Batch) -> jax.Array:
        """Return the loss on a batch."""
        x, y, mask = batch
        return reduce_losses(self.loss(self.model.apply(params, x), y), mask, self.reduction)

    def take_steps(self, member: Member, key: jax.Array, data: Data, start: jax.Array, stop: jax.Array) -> Member:
        """Return a member after the steps from `start` up to `stop`, in one compiled loop."""
        own = self.keys(key, member.index)[1]

        def step(number: jax.Array, carry: tuple) -> tuple:
            member, order = carry
            return self._step_in_epoch(member, order, own, data, number)

        member, _ = jax.lax.fori_loop(start, stop, step, (member, self.batches.shuffle(own, start)))
        return self.note_failure(member, stop)

    def with_order(self, member: Member, key: jax.Array, number: jax.Array) -> tuple[Member, jax.Array, jax.Array]:
        """Return a member with what `take_one_step` needs: the order of its samples, and the number of the step."""
        return member, self.batches.shuffle(self.keys(key, member.index)[1], number), number

    def take_one_step(self, state: tuple[Member, jax.Array, jax.Array], key: jax.Array, data: Data) -> tuple:
        """Return what `with_order` returned, after one step."""
        member, order, number = state
        return *self._step_in_epoch(member, order, self.keys(key, member.index)[1], data, number), number + 1

    def _step_in_epoch(self, member: Member, order: jax.Array, own: jax.Array, data: Data, number: jax.Array) -> tuple:
        if self.batches.batch_size is not None:
            shuffle = partial(self.batches.shuffle, own)
            order = jax.lax.cond(number % self.batches.per_epoch == 0, shuffle, lambda _: order, number)
        return self.update(member, self.batches.take(data, own, order, number), number), order

    def update(self, member: Member, batch: Batch, number: jax.Array) -> Member:
        """Return a member after the step of this number, made with a batch."""
        loss_fn = partial(self.batch_loss, batch=batch)
        loss, gradient = value_and_gradient(loss_fn, member.params)
        updates, optimizer = update_by(self.optimizer, gradient, member.optimizer, member.params, loss, loss_fn)
        params = optax.apply_updates(member.params, updates)
        failed = _first_failure(member.failed, jnp.isfinite(loss), number)
        return Member(member.index, params, optimizer, loss.astype(member.loss.dtype), failed)

    def note_failure(self, member: Member, number: jax.Array) -> Member:
        """Return a member that is marked as failed at this step, if its parameters are no longer finite."""
        finite = jnp.all(jnp.array([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(member.params)]))
        return dataclasses.replace(member, failed=_first_failure(member.failed, finite, number))


def prepare_task(
    module: Module,
    train: TrainingSet,
    *,
    optimizer: optax.GradientTransformation | optax.MultiSteps,
    loss: str | LossFn = "mse",
    reduction: str = "mean",
    batch_size: int | None = None,
    augmentation: str = "full",
    key_impl: str = "threefry2x32",
) -> tuple[Task, Data]:
    """Check everything that is compiled; return it as a task, with the arrays that batches are made from.

    Args:
        module: as for `train`.
        train: as for `train`.
        optimizer: as for `train`.
        loss: as for `train`.
        reduction: as for `train`.
        batch_size: as for `train`.
        augmentation: as for `train`.
        key_impl: the name of the generator of random keys.
    """
    batches, data = make_batches(train, batch_size, augmentation)
    one_of(reduction, ("mean", "sum"), "reduction")
    if isinstance(optimizer, optax.MultiSteps):
        optimizer = optimizer.gradient_transformation()
    if not isinstance(optimizer, optax.GradientTransformation):
        fix = "Pass for example `optax.sgd(0.5)`."
        raise refusal("optimizer", expected="from optax", got=type(optimizer).__name__, fix=fix, kind=TypeError)
    model, (x, y, _) = as_model(module), data
    params = model.shapes_of_parameters(jax.tree.map(lambda leaf: leaf[:1], x))
    outputs = jax.eval_shape(model.apply, params, x)
    if not hasattr(outputs, "shape") or outputs.shape[:1] != y.shape[:1]:
        got = getattr(outputs, "shape", type(outputs).__name__)
        fix = "A network returns one array, with the sample axis first."
        raise refusal("module", expected=f"one with outputs of {y.shape[0]} samples", got=got, fix=fix)
    task = Task(model, optimizer, loss_function(loss, outputs, y), reduction, batches, key_impl)
    _check_optimizer(task, params)
    _check_finite(x, "x")
    if isinstance(loss, str):  # a user's loss may leave out labels that are not numbers
        _check_finite(y, "y")
    return task, data


# Random numbers take long to compile. So this is one program for all training sets and optimizers.
@partial(jax.jit, static_argnames=("model", "layout", "key_impl"))
def initial_params(
    model: Model, layout: Layout, key_impl: str, indices: jax.Array, key: jax.Array, x: Inputs
) -> Params:
    """Return the parameters of all members before their first step, for inputs like `x`."""

    def init(index: jax.Array, key: jax.Array, x: Inputs) -> Params:
        return model.init(member_keys(key, key_impl, index)[0], x)

    return layout.over_members(init)(indices, key, x)


@partial(jax.jit, static_argnames=("task", "layout"), donate_argnames="params")
def initial_members(task: Task, layout: Layout, indices: jax.Array, params: Params) -> Member:
    """Return all members before their first step."""
    return layout.over_members(task.initial_member)((indices, params))


def advance(task: Task, layout: Layout, members: Member, key: jax.Array, data: Data, start: int, stop: int) -> Member:
    """Return all members after the steps from `start` up to `stop`."""
    first, last = layout.share((np.int32(start), np.int32(stop)))
    if not layout.stepwise:
        return _advance_in_compiled_loop(task, layout, members, key, data, first, last)
    for number in range(layout.chunks):
        place = layout.share(np.int32(number))
        state = _take_chunk(task, layout, members, key, place, first)
        for _ in range(start, stop):
            state = _step_chunk(task, layout, state, key, data)
        members = _put_chunk_back(task, layout, members, state[0], place, last)
    return members


# The old state is donated: two states may not fit into memory.
@partial(jax.jit, static_argnames=("task", "layout"), donate_argnames="members")
def _advance_in_compiled_loop(
    task: Task, layout: Layout, members: Member, key: jax.Array, data: Data, start: jax.Array, stop: jax.Array
) -> Member:
    return layout.in_place(task.take_steps)(members, key, data, start, stop)


@partial(jax.jit, static_argnames=("task", "layout"))
def _take_chunk(
    task: Task, layout: Layout, members: Member, key: jax.Array, place: jax.Array, start: jax.Array
) -> tuple:
    return layout.over_chunk(task.with_order)(layout.chunk_of(members, place), key, start)


@partial(jax.jit, static_argnames=("task", "layout"), donate_argnames="state")
def _step_chunk(task: Task, layout: Layout, state: tuple, key: jax.Array, data: Data) -> tuple:
    return layout.over_chunk(task.take_one_step)(state, key, data)


@partial(jax.jit, static_argnames=("task", "layout"), donate_argnames="members")
def _put_chunk_back(
    task: Task, layout: Layout, members: Member, chunk: Member, place: jax.Array, stop: jax.Array
) -> Member:
    return layout.with_chunk(members, layout.over_chunk(task.note_failure)(chunk, stop), place)


def predict(model: Model, layout: Layout, params: Params, x: Inputs, batch_size: int) -> np.ndarray:
    """Return the outputs of all members, [members, n, ...], computed for so many samples at a time."""
    n = jax.tree.leaves(x)[0].shape[0]
    size = min(batch_size, n)
    parts = []
    for start in range(0, n, size):
        # The last part is filled up, so that one program serves all of them.
        chosen = np.minimum(np.arange(start, start + size), n - 1)
        part = layout.share(jax.tree.map(lambda leaf, chosen=chosen: np.asarray(leaf)[chosen], x))
        parts.append(_outputs(model, layout, params, part))
    return np.concatenate(parts, axis=1)[:, :n]


def _outputs(model: Model, layout: Layout, params: Params, x: Inputs) -> np.ndarray:
    if not layout.stepwise:
        return layout.collect(_evaluate(model, layout, params, x))
    chunks = range(layout.chunks)
    outputs = [layout.gather(_evaluate_chunk(model, layout, params, layout.share(np.int32(i)), x)) for i in chunks]
    # Each chunk holds members of all devices, so they come out of order.
    order = np.concatenate([layout.numbers_of_chunk(number) for number in chunks])
    return np.concatenate(outputs)[np.argsort(order)][: layout.members]


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
def _evaluate(model: Model, layout: Layout, params: Params, x: Inputs) -> Any:
    return layout.over_members(model.apply)(params, x)


@partial(jax.jit, static_argnames=("model", "layout"))
def _evaluate_chunk(model: Model, layout: Layout, params: Params, place: jax.Array, x: Inputs) -> Any:
    return layout.over_chunk(model.apply)(layout.chunk_of(params, place), x)


def update_by(
    optimizer: optax.GradientTransformation,
    gradient: Params,
    state: Any,
    params: Params,
    loss: jax.Array,
    loss_fn: Callable[[Params], jax.Array],
) -> tuple[Params, Any]:
    """Return what an optimizer adds to parameters, and its next state.

    Optimizers that search along a line, or wait for a plateau, need more than a gradient: they are given the loss.
    """
    update = optax.with_extra_args_support(optimizer).update
    takes = inspect.signature(update).parameters
    anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values())
    extra = {"value": loss, "grad": gradient, "value_fn": loss_fn}
    extra = {name: value for name, value in extra.items() if anything or name in takes}
    updates, new = update(gradient, state, params, **extra)
    # Some optimizers begin with one dtype and would continue with another, which a compiled loop does not allow.
    return updates, jax.tree.map(lambda leaf, old: _with_dtype(leaf, old.dtype), new, state)


def _with_dtype(leaf: Any, dtype: Any) -> Any:
    """Return an array of exactly this dtype: none of JAX's weak types, which change when they meet others."""
    return leaf if jnp.issubdtype(dtype, jax.dtypes.prng_key) else jnp.asarray(leaf).astype(dtype)


def _first_failure(failed: jax.Array, fine: jax.Array, number: jax.Array) -> jax.Array:
    """Return the step of the first failure: this one, if there was none before and something is not fine now."""
    return jnp.where((failed == NEVER) & ~fine, number, failed).astype(failed.dtype)


def _check_optimizer(task: Task, params: Params) -> None:
    """Refuse an optimizer that cannot make a step with parameters like these."""

    def one_step(params: Params) -> tuple:
        loss_fn = lambda at: sum((jnp.sum(leaf) for leaf in jax.tree.leaves(at)), jnp.zeros(()))  # noqa: E731
        state = task.initial_member((jnp.int32(0), params)).optimizer
        updates, new = update_by(task.optimizer, params, state, params, loss_fn(params), loss_fn)
        return (params, state), (optax.apply_updates(params, updates), new)

    try:
        before, after = jax.eval_shape(one_step, params)
        specs = [jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree) for tree in (before, after)]
        problem = "one that changes the shapes of its state" if specs[0] != specs[1] else None
    except Exception as error:  # whatever optax says about parameters that it was not made for
        problem = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else error!r}"
    if problem is not None:
        fix = (
            "Labels and masks have to fit the parameters of the module. An optimizer that needs parameters of its own "
            "kind, such as `optax.lookahead`, is not supported: pass the one inside of it."
        )
        raise refusal("optimizer", expected="one that updates parameters like these", got=problem, fix=fix)


def _check_finite(tree: Any, argument: str) -> None:
    for leaf in jax.tree.leaves(tree):
        if jnp.issubdtype(leaf.dtype, jnp.floating) and not np.isfinite(leaf).all():
            fix = "Remove or repair these samples: no network learns from them."
            raise refusal(argument, expected="finite", got="NaN or infinity", fix=fix)
