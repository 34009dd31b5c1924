"""Members: how they are made, and what one step of training does to one of them.

    loss, state, gradient = ∇ L(params, state, batch(step), noise(step));   params ← params + optimizer(gradient)

Everything random in a step, batch and noise, depends on the key of the member and on the number of the step alone.
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
from ntk_equiv._losses import ClassWeights, LossFn, loss_function, loss_of_batch
from ntk_equiv._typing import Inputs
from ntk_equiv.ensembles._batches import Batch, Batches, Data, TrainingSet, make_batches
from ntk_equiv.ensembles._gradients import value_and_gradient
from ntk_equiv.ensembles._layout import Layout
from ntk_equiv.ensembles._models import Model, Module, Params, State, as_model, with_dtype
from ntk_equiv.ensembles._sources import in_portions, shapes_of

NEVER = -1


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Member:
    """The state of a member, or of many members along a leading axis.

    Attributes:
        index: its number, on which its random key depends.
        params: its parameters.
        state: what its network remembers but does not learn, such as running statistics.
        optimizer: the state of its optimizer.
        loss: the loss of its last batch, before the step that was made with it.
        failed: the first step at which loss or parameters were not finite; −1 if there is none.
        stopped: the step at which it was stopped early, and after which nothing changes; −1 while it is trained.
    """

    index: Any
    params: Params
    state: State
    optimizer: Any
    loss: Any
    failed: Any
    stopped: Any


def key_numbers(key: jax.Array) -> tuple[np.ndarray, str]:
    """Return the numbers of a random key, old or new, and the name of its generator."""
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    numbers = np.asarray(jax.random.key_data(key) if typed else key)
    return numbers, str(jax.random.key_impl(key if typed else jax.random.key(0)))


def member_keys(key: jax.Array, impl: str, index: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the keys of a member, for its parameters and for its batches; of the member only its index matters."""
    initial, data = jax.random.split(jax.random.fold_in(jax.random.wrap_key_data(key, impl=impl), index))
    return initial, data


def noise_key(own: jax.Array, number: int | jax.Array) -> jax.Array:
    """Return the key for the noise of a step, from the key of a member for its batches."""
    # The batches of a member take the two keys that `split` makes of its own, which `fold_in` may number 0 and 1.
    return jax.random.fold_in(jax.random.fold_in(own, 2), number)


@dataclasses.dataclass(frozen=True)
class Task:
    """How a member is trained: all that is compiled. It is hashable, so that compiled programs are found again.

    Only with `stops_early` members may be stopped: then the steps of each have an end of their own.
    """

    model: Model
    optimizer: optax.GradientTransformation
    loss: LossFn
    reduction: str
    batches: Batches
    key_impl: str
    stops_early: bool = False

    def keys(self, key: jax.Array, index: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the keys of a member, for its parameters and for its batches."""
        return member_keys(key, self.key_impl, index)

    def initial_member(self, index_and_variables: tuple[jax.Array, Params, State]) -> Member:
        """Return a member before its first step."""
        index, params, state = index_and_variables
        loss = jnp.full((), jnp.nan, jnp.result_type(*jax.tree.leaves(params), jnp.float32))
        optimizer = jax.tree.map(lambda leaf: with_dtype(leaf, jnp.result_type(leaf)), self.optimizer.init(params))
        return Member(index, params, state, optimizer, loss, jnp.int32(NEVER), jnp.int32(NEVER))

    def batch_loss(self, params: Params, state: State, batch: Batch, noise: jax.Array) -> tuple[jax.Array, State]:
        """Return the loss on a batch, and the state after it."""
        x, y, mask = batch
        outputs, after = self.model.apply_in_training(params, state, x, noise)
        # A compiled loop does not allow dtypes to change.
        after = jax.tree.map(lambda leaf, old: with_dtype(leaf, old.dtype), after, state)
        return loss_of_batch(self.loss, outputs, y, mask, self.reduction), after

    def take_steps(self, member: Member, key: jax.Array, data: Data, start: jax.Array, stop: jax.Array) -> Member:
        """Return a member after the steps from `start` up to `stop`, in one compiled loop."""
        own = self.keys(key, member.index)[1]
        stop = jnp.where(member.stopped == NEVER, stop, start) if self.stops_early else stop

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

    def order_of(self, index: jax.Array, key: jax.Array, number: jax.Array) -> jax.Array:
        """Return the order of the samples of a member in the epoch of a step."""
        return self.batches.shuffle(self.keys(key, index)[1], number)

    def step_on_samples(self, state: tuple, key: jax.Array, elements: Any, number: jax.Array) -> tuple:
        """Return a member and its loss after one step on stored samples, which come with the member."""
        member, (x, y, chosen) = state
        own = self.keys(key, member.index)[1]
        member = self.update(member, self.batches.move(x, y, elements, chosen, own, number), own, number)
        return member, member.loss

    def step_on_batch(self, member: Member, key: jax.Array, x: Inputs, y: jax.Array, number: jax.Array) -> tuple:
        """Return a member and its loss after one step on a batch that all members share."""
        member = self.update(member, (x, y, None), self.keys(key, member.index)[1], number)
        return member, member.loss

    def _step_in_epoch(self, member: Member, order: jax.Array, own: jax.Array, data: Data, number: jax.Array) -> tuple:
        if self.batches.batch_size is not None:
            shuffle = partial(self.batches.shuffle, own)
            order = jax.lax.cond(number % self.batches.per_epoch == 0, shuffle, lambda _: order, number)
        return self.update(member, self.batches.take(data, own, order, number), own, number), order

    def update(self, member: Member, batch: Batch, own: jax.Array, number: jax.Array) -> Member:
        """Return a member with this key after the step of this number, made with a batch."""
        loss_fn = partial(self.batch_loss, state=member.state, batch=batch, noise=noise_key(own, number))
        (loss, state), gradient = value_and_gradient(loss_fn, member.params, has_aux=True)
        only_loss = lambda params: loss_fn(params)[0]  # noqa: E731
        updates, optimizer = update_by(self.optimizer, gradient, member.optimizer, member.params, loss, only_loss)
        params = optax.apply_updates(member.params, updates)
        failed = _first_failure(member.failed, jnp.isfinite(loss), number)
        loss = loss.astype(member.loss.dtype)
        return dataclasses.replace(member, params=params, state=state, optimizer=optimizer, loss=loss, failed=failed)

    def note_failure(self, member: Member, number: jax.Array) -> Member:
        """Return a member that is marked as failed at this step, if its variables are no longer finite."""
        leaves = [leaf for leaf in jax.tree.leaves((member.params, member.state)) if _is_number(leaf)]
        finite = jnp.all(jnp.array([jnp.isfinite(leaf).all() for leaf in leaves]))
        return dataclasses.replace(member, failed=_first_failure(member.failed, finite, number))


def prepare_task(
    module: Module,
    train: TrainingSet,
    *,
    optimizer: optax.GradientTransformation | optax.MultiSteps,
    loss: str | LossFn = "mse",
    reduction: str = "mean",
    class_weights: ClassWeights | None = None,
    label_smoothing: float = 0.0,
    batch_size: int | None = None,
    augmentation: str = "full",
    data_on: str = "auto",
    key_impl: str = "threefry2x32",
) -> tuple[Task, Data]:
    """Check everything that is compiled; return it as a task, with the arrays that batches are made from.

    Args:
        module: as for `train`.
        train: as for `train`.
        optimizer: as for `train`.
        loss: as for `train`.
        reduction: as for `train`.
        class_weights: as for `train`.
        label_smoothing: as for `train`.
        batch_size: as for `train`.
        augmentation: as for `train`.
        data_on: as for `train`.
        key_impl: the name of the generator of random keys.
    """
    model = as_model(module)
    batches, data, (params, state) = prepare_batches(model, train, batch_size, augmentation, data_on)
    one_of(reduction, ("mean", "sum"), "reduction")
    if isinstance(optimizer, optax.MultiSteps):
        optimizer = optimizer.gradient_transformation()
    if not isinstance(optimizer, optax.GradientTransformation):
        fix = "Pass for example `optax.sgd(0.5)`."
        raise refusal("optimizer", expected="from optax", got=type(optimizer).__name__, fix=fix, kind=TypeError)
    x, y, _ = data
    outputs = jax.eval_shape(model.apply, params, shapes_of(x), state)
    if not hasattr(outputs, "shape") or outputs.shape[:1] != y.shape[:1]:
        got = getattr(outputs, "shape", type(outputs).__name__)
        fix = "A network returns one array, with the sample axis first."
        raise refusal("module", expected=f"one with outputs of {y.shape[0]} samples", got=got, fix=fix)
    if batches.stream is not None and isinstance(class_weights, str):
        fix = "Count the labels yourself: n / (K n_c) for a class with n_c of n samples in K classes."
        raise refusal("class_weights", expected="numbers for a stream of batches", got=repr(class_weights), fix=fix)
    loss_fn = loss_function(loss, outputs, y, class_weights=class_weights, label_smoothing=label_smoothing)
    task = Task(model, optimizer, loss_fn, reduction, batches, key_impl)
    _check_optimizer(task, params)
    check_finite(x, "x")
    if isinstance(loss, str):  # a user's loss may leave out labels that are not numbers
        check_finite(y, "y")
    return task, data


def prepare_batches(
    model: Model, train: TrainingSet, batch_size: int | None, augmentation: str, data_on: str = "auto"
) -> tuple[Batches, Data, tuple[Params, State]]:
    """Return how batches are made for a network, what they are made from, and the shapes of its variables."""
    batches, data = make_batches(train, batch_size, augmentation, data_on)
    params, state = model.shapes_of_variables(jax.tree.map(lambda leaf: leaf[:1], data[0]))
    return (batches.with_whole_batches() if jax.tree.leaves(state) else batches), data, (params, state)


# Random numbers take long to compile. So this is one program for all training sets and optimizers.
@partial(jax.jit, static_argnames=("model", "layout", "key_impl"))
def initial_variables(
    model: Model, layout: Layout, key_impl: str, indices: jax.Array, key: jax.Array, x: Inputs
) -> tuple[Params, State]:
    """Return parameters and state of all members before their first step, for inputs like `x`."""

    def init(index: jax.Array, key: jax.Array, x: Inputs) -> tuple[Params, State]:
        return model.init_variables(member_keys(key, key_impl, index)[0], x)

    return layout.over_members(init)(indices, key, x)


@partial(jax.jit, static_argnames=("task", "layout"), donate_argnames="variables")
def initial_members(task: Task, layout: Layout, indices: jax.Array, variables: tuple[Params, State]) -> Member:
    """Return all members before their first step."""
    return layout.over_members(task.initial_member)((indices, *variables))


def select_members(chosen: jax.Array, these: Any, those: Any) -> Any:
    """Return arrays of all members: of `these` where `chosen`, [members], is true, and else of `those`."""

    def select(this: Any, that: Any) -> jax.Array:
        return jnp.where(chosen.reshape(-1, *(1,) * (this.ndim - 1)), this, that)

    return jax.tree.map(select, these, those)


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
    return updates, jax.tree.map(lambda leaf, old: with_dtype(leaf, old.dtype), new, state)


def _first_failure(failed: jax.Array, fine: jax.Array, number: jax.Array) -> jax.Array:
    """Return the step of the first failure: this one, if there was none before and something is not fine now."""
    return jnp.where((failed == NEVER) & ~fine, number, failed).astype(failed.dtype)


def _check_optimizer(task: Task, params: Params) -> None:
    """Refuse an optimizer that cannot make a step with parameters like these."""

    def one_step(params: Params) -> tuple:
        loss_fn = lambda at: sum((jnp.sum(leaf) for leaf in jax.tree.leaves(at)), jnp.zeros(()))  # noqa: E731
        state = task.initial_member((jnp.int32(0), params, ())).optimizer
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


def _is_number(leaf: jax.Array) -> bool:
    """Return whether an array holds numbers, and not random keys."""
    return jnp.issubdtype(leaf.dtype, jnp.number)


def check_finite(tree: Any, argument: str) -> None:
    """Refuse samples or labels that are not finite."""
    for leaf in jax.tree.leaves(tree):
        numbers = jnp.issubdtype(leaf.dtype, jnp.floating)
        if numbers and not all(np.isfinite(part).all() for part in in_portions(leaf)):
            fix = "Remove or repair these samples: no network learns from them."
            raise refusal(argument, expected="finite", got="NaN or infinity", fix=fix)
