"""Fingerprints of data, networks, optimizers, losses and actions: a few numbers, enough to tell one from another.

Data have a hash of their bytes. Functions cannot be stored, and their names say little: all lambdas have the same name,
a schedule may differ only at late steps, a clip only where gradients are large. So each function is evaluated on
pseudo-random numbers, the same on every machine, and the results are summed up. The sums of another machine differ by
rounding; those of another function differ by far more.
"""

import hashlib
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ntk_equiv._losses import LOSSES, CrossEntropy, LossFn
from ntk_equiv._typing import Inputs
from ntk_equiv.ensembles._batches import Data
from ntk_equiv.ensembles._gradients import value_and_gradient
from ntk_equiv.ensembles._members import Task, update_by
from ntk_equiv.ensembles._models import Params
from ntk_equiv.ensembles._sources import as_stored, in_portions
from ntk_equiv.groups import FiniteGroup
from ntk_equiv.reps import Representation

# Two summaries are equal if no number differs by more than this.
TOLERANCE = 1e-3
# A summary has this many numbers, each about one stretch of what is summed up.
STRETCHES = 32
# Sizes of gradients and of parameters, in turn. A constant added to denominators shows in small gradients, as long as
# none before was larger. Clips show in large gradients, and weight decay in large parameters.
GRADIENTS = (1e-8, 1e-8, 1e-7, 1e-5, 1e-3, 0.1, 1.0, 10.0, 1e3, 1e6)
PARAMETERS = (1.0, 1e5, 1e-3)
# An optimizer is tried at every step of a run, unless that takes more updates of parameters than these.
MOST_UPDATES, MOST_STEPS, FEWEST_STEPS = 10**8, 2**14, 2**6
# How far an update may be from gradient descent, relative to the largest that the update could be.
DESCENT_TOLERANCE = 1e-4
# Losses are tried on this many samples, at outputs of these sizes, and actions at this many elements.
SAMPLES, ELEMENTS = 256, 2000
OUTPUTS = (1e-4, 1e-2, 1.0, 1e2, 1e4)
# The outputs and gradients of a network are compared on this many samples.
FIRST_SAMPLES = 8


def hash_data(data: Any) -> str:
    """Return a hash of shapes, dtypes and bytes of all arrays in a pytree."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(data):
        stored = as_stored(leaf)
        digest.update(f"{stored.shape} {stored.dtype}".encode())
        for part in in_portions(stored):
            digest.update(np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()[:16]


def probe_first_step(task: Task, data: Data) -> tuple[list[float], list[float], list[float]]:
    """Return what a network makes of a few samples, with a fixed key.

    Returns:
        Its first outputs, the logarithms of its gradients, and those of its state after the first step.
    """
    x, y = jax.tree.map(lambda leaf: leaf[:FIRST_SAMPLES], data[:2])
    outputs, gradients, state = jax.device_get(_first_step(task, x, y))
    # On the scale of logarithms a layer with a tiny gradient counts as much as any other.
    lengths = [[math.log(float(length) + 1e-30) for length in part] for part in (gradients, state)]
    return np.ravel(outputs)[:16].astype(float).tolist(), lengths[0], lengths[1]


@partial(jax.jit, static_argnames="task")
def _first_step(task: Task, x: Inputs, y: jax.Array) -> tuple:
    key = jax.random.key(0)
    params, state = task.model.init_variables(key, x)
    loss_fn = partial(task.batch_loss, state=state, batch=(x, y, None), noise=key)
    (_, after), gradient = value_and_gradient(loss_fn, params, has_aux=True)
    return task.model.apply(params, x, state), _lengths(gradient), _lengths(after)


def _lengths(tree: Any) -> list[jax.Array]:
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.number)]
    return [jnp.linalg.norm(leaf.ravel().astype(jnp.result_type(leaf, jnp.float32))) for leaf in leaves]


def probe_optimizer(
    optimizer: optax.GradientTransformation, params: Params, steps: int
) -> tuple[list[float], list[float] | None]:
    """Return a summary of the updates of an optimizer, and its rate and momentum if it is gradient descent.

    Args:
        optimizer: from optax.
        params: the parameters of a member, or their shapes.
        steps: how many steps the run has. In a very long one, steps are left out by counting them in the state.

    Example:
        >>> params = np.zeros((3, 2))
        >>> probe_optimizer(optax.sgd(0.5, momentum=0.75), params, 100)[1]
        [0.5, 0.75]
        >>> later = optax.piecewise_constant_schedule(0.5, {90: 0.1})
        >>> probe_optimizer(optax.sgd(later), params, 90)[1], probe_optimizer(optax.sgd(later), params, 100)[1]
        ([0.5, 0.0], None)
        >>> latest = optax.piecewise_constant_schedule(0.5, {10**6 - 5: 0.1})
        >>> print(probe_optimizer(optax.sgd(latest), params, 10**6)[1])
        None
    """
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), params)
    size = max(1, sum(leaf.size for leaf in jax.tree.leaves(zeros)))
    most = min(steps, max(FEWEST_STEPS, min(MOST_STEPS, MOST_UPDATES // size)))
    numbers = np.unique(np.linspace(0, steps - 1, most).round().astype(np.int32))
    # Lengths are rounded up to a power of 2, so that one program serves runs of similar length. What is tried beyond
    # the last step does not count.
    count = len(numbers)
    left_out = np.zeros(2 ** math.ceil(math.log2(max(count, 16))), np.int32)
    left_out[:count] = np.diff(numbers, prepend=-1) - 1
    places = np.arange(len(left_out), dtype=np.int32)
    # From small gradients to large ones, and the other way round: a short run does not reach the last of them.
    updates, off, rates, momenta = jax.device_get(
        _updates(optimizer, zeros, [GRADIENTS, GRADIENTS[::-1]], places, left_out)
    )
    coarsest = max([float(jnp.finfo(leaf.dtype).eps) for leaf in jax.tree.leaves(zeros)], default=0.0)
    tolerance = max(DESCENT_TOLERANCE, 8 * coarsest)
    rate, momentum = float(rates[0]), round(float(momenta[0]), 5)
    close = bool((off[:, :count] <= tolerance).all()) and abs(rates[1] - rate) <= tolerance * rate
    # `abs` turns −0 into 0.
    exact = [float(f"{rate:.6g}"), abs(momentum)] if close and rate > 0 and 0 <= momentum < 1 else None
    return _summarize(np.concatenate([*updates[:, :count]], axis=1)), exact


def probe_loss(loss: LossFn, outputs: jax.ShapeDtypeStruct, y: np.ndarray) -> str | dict[str, Any]:
    """Return the name of a loss with its settings; for a user's function a summary of its values and slopes."""
    for name, function in LOSSES.items():
        if loss is function:
            return name
    if isinstance(loss, CrossEntropy):
        weights = None if loss.class_weights is None else list(loss.class_weights)
        return {"name": "cross_entropy", "class_weights": weights, "label_smoothing": loss.label_smoothing}
    chosen = np.unique(np.linspace(0, len(y) - 1, SAMPLES).round().astype(int))
    at = np.random.default_rng(0).uniform(-1, 1, (len(chosen), *outputs.shape[1:])).astype(outputs.dtype)

    @jax.jit
    def values_and_slopes(at: jax.Array, y: jax.Array) -> tuple:
        values, pull = jax.vjp(lambda outputs: loss(outputs, y), at)
        return values, pull(jnp.ones_like(values))[0]

    results = [values_and_slopes(at * at.dtype.type(size), np.asarray(y)[chosen]) for size in OUTPUTS]
    rows = [np.concatenate([np.ravel(part) for part in one]) for one in results]
    name = getattr(loss, "__name__", type(loss).__name__)
    return {"name": name, "values": _summarize(_on_log_scale(np.concatenate(rows))[:, None])}


def probe_action(rep: Representation | None, samples: Inputs) -> list[float]:
    """Return a summary of how the elements of a group move a sample of pseudo-random numbers.

    Args:
        rep: how the group acts; None if there is no action.
        samples: samples of the shape that it acts on.

    Example:
        >>> from ntk_equiv import groups, reps
        >>> images, turns = np.zeros((1, 4, 4, 1)), groups.cyclic(8)
        >>> probe_action(reps.rotate(turns, order=0), images) == probe_action(reps.rotate(turns, order=1), images)
        False
    """
    if rep is None:
        return []
    draw = np.random.default_rng(0).uniform
    sample = jax.tree.map(lambda leaf: draw(-1, 1, leaf.shape[1:]).astype(np.float32), samples)
    elements: Any
    if isinstance(rep.group, FiniteGroup):
        elements = np.unique(np.linspace(0, rep.group.order - 1, ELEMENTS).round().astype(int))
    else:
        elements = rep.group.sample(jax.random.key(0), STRETCHES)
    moved = jax.lax.map(lambda g: jax.tree.leaves(rep(g, sample)), jnp.asarray(elements))
    return _summarize(np.concatenate([np.asarray(leaf).reshape(len(elements), -1) for leaf in moved], axis=1))


def _summarize(values: np.ndarray) -> list[float]:
    """Sum up rows of numbers in stretches of rows, each number with a factor of its own."""
    factors = np.random.default_rng(1).uniform(0.5, 1.5, values.shape)
    rows = (np.nan_to_num(values.astype(float), nan=1e3, posinf=2e3, neginf=-2e3) * factors).sum(1)
    parts = np.array_split(rows / math.sqrt(max(1, values.shape[1])), min(STRETCHES, max(1, len(rows))))
    return [round(float(part.sum()), 6) for part in parts]


def _on_log_scale(values: np.ndarray) -> np.ndarray:
    """Return numbers on a scale where relative changes count, whatever the size of the number."""
    return np.sign(values) * np.log1p(np.abs(values) * 1e6)


@partial(jax.jit, static_argnames="optimizer")
def _updates(optimizer: optax.GradientTransformation, zeros: Params, orders: Any, places: Any, left_out: Any) -> tuple:
    """Return what `_updates_in_order` returns, for several orders of the sizes of gradients along a first axis."""
    return jax.vmap(lambda sizes: _updates_in_order(optimizer, zeros, sizes, places, left_out))(jnp.array(orders))


def _updates_in_order(
    optimizer: optax.GradientTransformation, zeros: Params, sizes: jax.Array, places: jax.Array, left_out: jax.Array
) -> tuple:
    """Try an optimizer at some steps, with gradients of these sizes in turn.

    Returns:
        A description of its updates, how far they are from gradient descent, and the rate and momentum of the latter.
    """

    def step(carry: tuple, at: tuple) -> tuple:
        (state, rate, momentum, last, velocity, largest), (place, skipped) = carry, at
        gradient = _pseudo_random(zeros, 2 * place, _in_turn(sizes, place))
        params = _pseudo_random(zeros, 2 * place + 1, _in_turn(jnp.array(PARAMETERS), place))
        value_fn = partial(_inner, gradient)
        state = jax.tree.map(lambda leaf: leaf + skipped.astype(leaf.dtype) if _is_counter(leaf) else leaf, state)
        updates, state = update_by(optimizer, gradient, state, params, value_fn(params), value_fn)
        # The first update gives the rate, u = −ηg, and the second one the momentum, u = −η(g + βg').
        rate = jnp.where(place == 0, -_inner(updates, gradient) / _inner(gradient, gradient), rate)
        rest = jax.tree.map(lambda u, g: -u / rate - g, updates, gradient)
        momentum = jnp.where(place == 1, _round_if_close(_inner(rest, last) / _inner(last, last)), momentum)
        velocity = jax.tree.map(lambda v, g: (momentum * v + g).astype(g.dtype), velocity, gradient)
        largest = jax.tree.map(lambda v, g: (momentum * v + jnp.abs(g)).astype(g.dtype), largest, gradient)
        off = [jnp.max(jnp.abs(u / rate + v) / m, initial=0) for u, v, m in _leaves(updates, velocity, largest)]
        carry = state, rate, momentum, gradient, velocity, largest
        return carry, (_describe_updates(updates, place), jnp.max(jnp.array(off), initial=0))

    begin = jax.tree.map(jnp.asarray, optimizer.init(zeros))
    carry: tuple = begin, jnp.float32(0), jnp.float32(0), zeros, zeros, zeros
    described: tuple
    (_, rate, momentum, *_), described = jax.lax.scan(step, carry, (places, left_out))
    return *described, rate, momentum


def _in_turn(sizes: jax.Array, place: jax.Array) -> jax.Array:
    return sizes[place % len(sizes)].astype(jnp.float32)


def _round_if_close(momentum: jax.Array) -> jax.Array:
    """Return an estimate of β, rounded to 5 digits if it is close to that."""
    # Later velocities multiply the error of β by 1/(1 − β), so the rounding of the estimate must not remain.
    rounded = jnp.round(momentum, 5)
    return jnp.where(jnp.abs(momentum - rounded) < 1e-6, rounded, momentum)


def _describe_updates(updates: Params, place: jax.Array) -> jax.Array:
    """Return for every array the logarithm of its length, and its inner product with a pseudo-random direction."""
    described: list[jax.Array] = []
    for leaf, direction in _leaves(updates, _pseudo_random(updates, place, jnp.float32(1))):
        largest = jnp.max(jnp.abs(leaf), initial=jnp.finfo(jnp.float32).tiny)
        scaled = leaf / largest
        length = jnp.sqrt(jnp.sum(scaled**2)) + jnp.finfo(jnp.float32).tiny
        described += [jnp.log(largest) + jnp.log(length), jnp.sum(scaled * direction) / length]
    return jnp.array(described, jnp.float32)


def _pseudo_random(like: Params, seed: jax.Array, size: jax.Array) -> Params:
    """Return pseudo-random numbers between −size and size, none of them 0, in the shape of a pytree."""

    def fill(number: int, leaf: Any) -> jax.Array:
        # A hash of integers is the same on every machine, and compiles faster than the generators of JAX.
        index = jnp.arange(math.prod(leaf.shape), dtype=jnp.uint32)
        mixed = index * jnp.uint32(0x9E3779B1) + (seed * 64 + number).astype(jnp.uint32) * jnp.uint32(0x85EBCA77)
        for shift, factor in ((15, 0x2C1B3C6D), (12, 0x297A2D39)):
            mixed = (mixed ^ (mixed >> shift)) * jnp.uint32(factor)
        uniform = ((mixed >> 9).astype(jnp.float32) + 0.5) / 2**22 - 1
        return (uniform * size).reshape(leaf.shape).astype(leaf.dtype)

    leaves, tree = jax.tree.flatten(like)
    return jax.tree.unflatten(tree, [fill(number, leaf) for number, leaf in enumerate(leaves)])


def _inner(a: Params, b: Params) -> jax.Array:
    return jnp.sum(jnp.array([jnp.vdot(x, y).real for x, y in _leaves(a, b)], jnp.float32))


def _leaves(*trees: Any) -> Any:
    return zip(*map(jax.tree.leaves, trees), strict=True)


def _is_counter(leaf: Any) -> bool:
    """Return whether a part of the state of an optimizer counts steps."""
    return jnp.ndim(leaf) == 0 and jnp.issubdtype(jnp.result_type(leaf), jnp.integer)
