"""What optimizers, losses and actions do, as a few numbers: enough to tell one from another.

Functions cannot be written down, and their names say little: two lambdas have one name, a schedule differs only later,
a clip only where gradients are large. So each is given pseudo-random numbers, the same on every machine, and what it
makes of them is summed up. Sums of another machine differ by rounding; those of another function by far more.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ntk_equiv.ensembles._loop import updated_by
from ntk_equiv.ensembles._losses import LossFn
from ntk_equiv.groups import FiniteGroup
from ntk_equiv.reps import Representation

# Two summaries are equal if no number differs by more.
TOLERANCE = 1e-3
# Into so many numbers things are summed up, each about a stretch of them.
STRETCHES = 32
# Sizes of gradients and of parameters, in turn. What is added to denominators shows in small gradients, as long as none
# was larger; clips show in large ones, and decaying weights in large parameters.
GRADIENTS = (1e-8, 1e-8, 1e-7, 1e-5, 1e-3, 0.1, 1.0, 10.0, 1e3, 1e6)
PARAMETERS = (1.0, 1e5, 1e-3)
# An optimizer is tried at every step of a run, unless that would take more updates of parameters than these.
MOST_UPDATES, MOST_STEPS, FEWEST_STEPS = 10**8, 2**14, 2**6
# What gradient descent may differ by, relative to the largest that its update could be.
DESCENT_TOLERANCE = 1e-4
# Of so many samples and elements losses and actions are tried, at outputs of these sizes.
SAMPLES, ELEMENTS = 256, 2000
OUTPUTS = (1e-4, 1e-2, 1.0, 1e2, 1e4)


def tried_optimizer(
    optimizer: optax.GradientTransformation, structure: Any, steps: int
) -> tuple[list[float], tuple[float, float] | None]:
    """The updates of an optimizer over a run, summed up; and its rate and momentum, if it is gradient descent.

    Args:
        optimizer: from optax.
        structure: the parameters of a member, or their shapes.
        steps: how many steps the run has. In a very long one, steps are left out by counting them in the state.

    Example:
        >>> weights = np.zeros((3, 2))
        >>> tried_optimizer(optax.sgd(0.5, momentum=0.75), weights, 100)[1]
        (0.5, 0.75)
        >>> later = optax.piecewise_constant_schedule(0.5, {90: 0.1})
        >>> tried_optimizer(optax.sgd(later), weights, 90)[1], tried_optimizer(optax.sgd(later), weights, 100)[1]
        ((0.5, 0.0), None)
    """
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), structure)
    size = max(1, sum(leaf.size for leaf in jax.tree.leaves(zeros)))
    most = min(steps, max(FEWEST_STEPS, min(MOST_STEPS, MOST_UPDATES // size)))
    numbers = np.unique(np.linspace(0, steps - 1, most).round().astype(np.int32))
    # One program for runs of about one length: what is tried beyond the last step does not count.
    count = len(numbers)
    left_out = np.zeros(2 ** math.ceil(math.log2(max(count, 16))), np.int32)
    left_out[:count] = np.diff(numbers, prepend=-1) - 1
    places = np.arange(len(left_out), dtype=np.int32)
    # From small gradients to large ones and the other way round: a run may be too short to come to the last of them.
    found, off, rates, momenta = jax.device_get(
        _updates(optimizer, zeros, [GRADIENTS, GRADIENTS[::-1]], places, left_out)
    )
    coarsest = max([float(jnp.finfo(leaf.dtype).eps) for leaf in jax.tree.leaves(zeros)], default=0.0)
    tolerance = max(DESCENT_TOLERANCE, 8 * coarsest)
    rate, momentum = float(rates[0]), round(float(momenta[0]), 5)
    close = bool((off[:, :count] <= tolerance).all()) and abs(rates[1] - rate) <= tolerance * rate
    # `abs` makes 0 of −0.
    exact = (float(f"{rate:.6g}"), abs(momentum)) if close and rate > 0 and 0 <= momentum < 1 else None
    return summary(np.concatenate([*found[:, :count]], axis=1)), exact


def tried_loss(loss: LossFn, outputs: Any, y: Any) -> list[float]:
    """The values of a loss and their derivatives by the outputs, at labels of the run, summed up."""
    chosen = np.unique(np.linspace(0, len(y) - 1, SAMPLES).round().astype(int))
    at = np.random.default_rng(0).uniform(-1, 1, (len(chosen), *outputs.shape[1:])).astype(outputs.dtype)

    @jax.jit
    def values_and_slopes(at: jax.Array, y: jax.Array) -> tuple:
        values, pull = jax.vjp(lambda outputs: loss(outputs, y), at)
        return values, pull(jnp.ones_like(values))[0]

    found = [values_and_slopes(at * at.dtype.type(size), np.asarray(y)[chosen]) for size in OUTPUTS]
    rows = [np.concatenate([np.ravel(part) for part in one]) for one in found]
    return summary(_compressed(np.concatenate(rows))[:, None])


def tried_action(rep: Representation | None, samples: Any) -> list[float]:
    """What elements of a group make of a sample of pseudo-random numbers, summed up.

    Args:
        rep: how the group acts; None for nothing.
        samples: of which one has the shape that it acts on.

    Example:
        >>> from ntk_equiv import groups, reps
        >>> images, turns = np.zeros((1, 4, 4, 1)), groups.cyclic(8)
        >>> tried_action(reps.rotate(turns, order=0), images) == tried_action(reps.rotate(turns, order=1), images)
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
    return summary(np.concatenate([np.asarray(leaf).reshape(len(elements), -1) for leaf in moved], axis=1))


def summary(values: np.ndarray) -> list[float]:
    """Rows of numbers summed up, each with a weight of its own, in stretches of rows."""
    weights = np.random.default_rng(1).uniform(0.5, 1.5, values.shape)
    rows = (np.nan_to_num(values.astype(float), nan=1e3, posinf=2e3, neginf=-2e3) * weights).sum(1)
    parts = np.array_split(rows / math.sqrt(max(1, values.shape[1])), min(STRETCHES, max(1, len(rows))))
    return [round(float(part.sum()), 6) for part in parts]


def _compressed(values: np.ndarray) -> np.ndarray:
    """Numbers of any size on a scale where a relative change counts as much for small ones as for large ones."""
    return np.sign(values) * np.log1p(np.abs(values) * 1e6)


@partial(jax.jit, static_argnames="optimizer")
def _updates(optimizer: optax.GradientTransformation, zeros: Any, orders: Any, places: Any, left_out: Any) -> tuple:
    """What an optimizer does at some steps, for gradients of these sizes in turn; an axis of orders comes first."""
    return jax.vmap(lambda sizes: _updates_in_order(optimizer, zeros, sizes, places, left_out))(jnp.array(orders))


def _updates_in_order(
    optimizer: optax.GradientTransformation, zeros: Any, sizes: jax.Array, places: Any, left_out: Any
) -> tuple:
    """The updates described, how far they are from gradient descent, and whose rate and momentum."""

    def step(carry: tuple, at: tuple) -> tuple:
        (state, rate, momentum, last, velocity, largest), (place, skipped) = carry, at
        gradient = _drawn(zeros, 2 * place, _in_turn(sizes, place))
        params = _drawn(zeros, 2 * place + 1, _in_turn(jnp.array(PARAMETERS), place))
        value_fn = partial(_inner, gradient)
        state = jax.tree.map(lambda leaf: leaf + skipped.astype(leaf.dtype) if _counts(leaf) else leaf, state)
        updates, state = updated_by(optimizer, gradient, state, params, value_fn(params), value_fn)
        # The first update tells the rate, u = −ηg, and the second one the momentum, u = −η(g + βg').
        rate = jnp.where(place == 0, -_inner(updates, gradient) / _inner(gradient, gradient), rate)
        rest = jax.tree.map(lambda u, g: -u / rate - g, updates, gradient)
        momentum = jnp.where(place == 1, _few_digits(_inner(rest, last) / _inner(last, last)), momentum)
        velocity = jax.tree.map(lambda v, g: (momentum * v + g).astype(g.dtype), velocity, gradient)
        largest = jax.tree.map(lambda v, g: (momentum * v + jnp.abs(g)).astype(g.dtype), largest, gradient)
        off = [jnp.max(jnp.abs(u / rate + v) / m, initial=0) for u, v, m in _leaves(updates, velocity, largest)]
        carry = state, rate, momentum, gradient, velocity, largest
        return carry, (_described(updates, place), jnp.max(jnp.array(off), initial=0))

    begin = jax.tree.map(jnp.asarray, optimizer.init(zeros))
    carry: tuple = begin, jnp.float32(0), jnp.float32(0), zeros, zeros, zeros
    found: tuple
    (_, rate, momentum, *_), found = jax.lax.scan(step, carry, (places, left_out))
    return *found, rate, momentum


def _in_turn(sizes: jax.Array, place: jax.Array) -> jax.Array:
    return sizes[place % len(sizes)].astype(jnp.float32)


def _few_digits(momentum: jax.Array) -> jax.Array:
    """An estimate, rounded if it comes from few digits: 1/(1 − β) multiplies what it is off by."""
    rounded = jnp.round(momentum, 5)
    return jnp.where(jnp.abs(momentum - rounded) < 1e-6, rounded, momentum)


def _described(updates: Any, place: jax.Array) -> jax.Array:
    """Of every array the logarithm of its length, and its direction against a pseudo-random one."""
    found: list[jax.Array] = []
    for leaf, weight in _leaves(updates, _drawn(updates, place, jnp.float32(1))):
        largest = jnp.max(jnp.abs(leaf), initial=jnp.finfo(jnp.float32).tiny)
        scaled = leaf / largest
        length = jnp.sqrt(jnp.sum(scaled**2)) + jnp.finfo(jnp.float32).tiny
        found += [jnp.log(largest) + jnp.log(length), jnp.sum(scaled * weight) / length]
    return jnp.array(found, jnp.float32)


def _drawn(like: Any, seed: jax.Array, size: jax.Array) -> Any:
    """Pseudo-random numbers between −size and size, none of them 0, in the shape of a pytree."""

    def drawn(number: int, leaf: Any) -> jax.Array:
        # A hash of integers: the same everywhere, and compiled faster than the generators of JAX.
        index = jnp.arange(math.prod(leaf.shape), dtype=jnp.uint32)
        mixed = index * jnp.uint32(0x9E3779B1) + (seed * 64 + number).astype(jnp.uint32) * jnp.uint32(0x85EBCA77)
        for shift, factor in ((15, 0x2C1B3C6D), (12, 0x297A2D39)):
            mixed = (mixed ^ (mixed >> shift)) * jnp.uint32(factor)
        uniform = ((mixed >> 9).astype(jnp.float32) + 0.5) / 2**22 - 1
        return (uniform * size).reshape(leaf.shape).astype(leaf.dtype)

    leaves, tree = jax.tree.flatten(like)
    return jax.tree.unflatten(tree, [drawn(number, leaf) for number, leaf in enumerate(leaves)])


def _inner(a: Any, b: Any) -> jax.Array:
    return jnp.sum(jnp.array([jnp.vdot(x, y).real for x, y in _leaves(a, b)], jnp.float32))


def _leaves(*trees: Any) -> Any:
    return zip(*map(jax.tree.leaves, trees), strict=True)


def _counts(leaf: Any) -> bool:
    """Whether a part of a state is a number of steps."""
    return jnp.ndim(leaf) == 0 and jnp.issubdtype(jnp.result_type(leaf), jnp.integer)
