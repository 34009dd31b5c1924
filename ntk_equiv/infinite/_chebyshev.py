"""A differential equation y' = F(y) whose rates are real and span many decades, followed in time.

Gradient flow in function space has the Jacobian −ηΘH with H ⪰ 0 the second derivatives of the loss. It is similar to a
symmetric matrix, so its eigenvalues are real and lie in [−ρ, 0]. An ordinary explicit method needs about ρt evaluations
of F up to the time t. The Runge–Kutta–Chebyshev method of second order (Sommeijer, Shampine & Verwer 1997) is explicit
too, but with s stages it is stable for steps h with

    ρh ≤ 2/3 · (s² − 1) · (1 − 2ε/15),        ε = 2/13 the damping,

so about √(ρt) evaluations are enough, and no system of equations is solved. With w₀ = 1 + ε/s², w₁ = T'_s/T''_s and
b_j = T''_j/T'_j², the Chebyshev polynomials T_j and their derivatives taken at w₀, a step from y is

    Y_0 = y,    Y_1 = y + b_1 w₁ h F(y),
    Y_j = (1 − μ − ν) y + μ Y_(j−1) + ν Y_(j−2) + κ h (F(Y_(j−1)) − a_(j−1) F(y)),
    μ = 2 b_j w₀/b_(j−1),    ν = −b_j/b_(j−2),    κ = 2 b_j w₁/b_(j−1),    a_j = 1 − b_j T_j,

and Y_s is the next y. Its error is estimated as 0.8 (y − Y_s) + 0.4 h (F(y) + F(Y_s)).
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

DAMPING = 2 / 13
# ρh per s², a little inside of the stable interval.
STABLE = 1.54
# By how much a step may change, and how far below the tolerance it aims.
SMALLEST_CHANGE, LARGEST_CHANGE, SAFETY = 0.1, 5.0, 0.8
# Stages at the most: rounding grows with their square.
MOST_STAGES = 2000


class Path(NamedTuple):
    """What following the equation gave.

    Attributes:
        values: y at the times, [T, ...].
        evaluations: how often F was evaluated.
        steps: how many steps were tried.
        reached: whether every time was reached within the steps allowed.
    """

    values: jax.Array
    evaluations: jax.Array
    steps: jax.Array
    reached: jax.Array


class _State(NamedTuple):
    """A place on the way: time, y, F(y), the next step, and what it cost so far."""

    time: jax.Array
    y: jax.Array
    slope: jax.Array
    step: jax.Array
    evaluations: jax.Array
    steps: jax.Array


@dataclasses.dataclass(frozen=True)
class Equation:
    """y' = F(y), and what following it needs to know.

    Attributes:
        slope: F.
        fastest_rate: returns ρ at y, a bound on the rates.
        error_size: returns how large an error is in units of what is tolerated, from the error, y and the next y.
        traceable: whether JAX can trace F. If not, the loops over steps and stages are those of Python.
    """

    slope: Callable[[jax.Array], jax.Array]
    fastest_rate: Callable[[jax.Array], jax.Array]
    error_size: Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
    traceable: bool = True


def follow(equation: Equation, start: jax.Array, times: jax.Array, *, most_steps: int) -> Path:
    """Return y at increasing times [T], from y = start at time zero.

    Args:
        equation: what is followed.
        start: y at time zero.
        times: when y is wanted, in increasing order.
        most_steps: how many steps may be tried in all.
    """
    slope = equation.slope(start)
    # An explicit step of this length is stable, and the error says at once how much longer the next may be.
    first = 0.25 / jnp.maximum(equation.fastest_rate(start), jnp.finfo(times.dtype).tiny)
    zero = jnp.zeros((), jnp.int32)
    state = _State(jnp.zeros((), times.dtype), start, slope, first.astype(times.dtype), zero + 1, zero)

    def reach(state: _State, time: jax.Array) -> tuple[_State, jax.Array]:
        def unfinished(state: _State) -> jax.Array:
            return (state.time < time) & (state.steps < most_steps)

        if equation.traceable:
            state = jax.lax.while_loop(unfinished, lambda state: _try_step(equation, state, time), state)
        else:
            while unfinished(state):
                state = _try_step(equation, state, time)
        return state, state.y

    if equation.traceable:
        state, values = jax.lax.scan(reach, state, times)
    else:
        found = []
        for time in times:
            state, value = reach(state, time)
            found.append(value)
        values = jnp.stack(found)
    return Path(values, state.evaluations, state.steps, state.time >= times[-1])


def _try_step(equation: Equation, state: _State, until: jax.Array) -> _State:
    """Return the state after one step, or with a shorter step to try if its error is too large."""
    rate = equation.fastest_rate(state.y)
    longest = (MOST_STAGES**2 - 1) / (STABLE * jnp.maximum(rate, jnp.finfo(rate.dtype).tiny))
    free = jnp.minimum(state.step, longest.astype(state.step.dtype))
    left = until - state.time
    ends = free >= left
    step = jnp.where(ends, left, free)
    stages = jnp.clip(1 + jnp.sqrt(1 + STABLE * step * rate), 2, MOST_STAGES).astype(jnp.int32)
    y = _chebyshev_step(equation, state.y, state.slope, step, stages)
    slope = equation.slope(y)
    error = 0.8 * (state.y - y) + 0.4 * step.astype(y.dtype) * (state.slope + slope)
    size = equation.error_size(error, state.y, y).astype(step.dtype)
    accepted = size <= 1  # not if it is NaN
    change = SAFETY * jnp.maximum(size, 1e-10) ** (-1 / 3)
    change = jnp.where(jnp.isfinite(size), jnp.clip(change, SMALLEST_CHANGE, LARGEST_CHANGE), SMALLEST_CHANGE)
    # A step that was cut short to end at a wanted time says little about how long the next may be.
    following = jnp.where(ends & accepted, jnp.maximum(free, step * change), step * change)
    cost = state.evaluations + stages
    time = jnp.where(ends, until, state.time + step)
    here = _State(time, y, slope, following, cost, state.steps + 1)
    back = _State(state.time, state.y, state.slope, following, cost, state.steps + 1)
    return jax.tree.map(lambda new, old: jnp.where(accepted, new, old), here, back)


def _chebyshev_step(equation: Equation, y: jax.Array, at_y: jax.Array, step: jax.Array, stages: jax.Array) -> jax.Array:
    """Return y after a step with so many stages, from y and F(y)."""
    s = stages.astype(step.dtype)
    w0 = 1 + DAMPING / s**2
    # T'_s/T''_s at w₀ = cosh θ, where T_s = cosh sθ.
    root = jnp.sqrt(w0**2 - 1)
    angle = s * jnp.log(w0 + root)
    w1 = jnp.sinh(angle) * root**2 / (jnp.cosh(angle) * s * root - w0 * jnp.sinh(angle))
    b_first = 1 / (4 * w0**2)  # b_2, which b_0 and b_1 are set to
    one, zero = jnp.ones_like(w0), jnp.zeros_like(w0)
    first = y + (b_first * w1 * step).astype(y.dtype) * at_y
    # T_j, T'_j and T''_j of the last two stages, and b of both.
    polynomials = (one, zero, zero), (w0, one, zero), b_first, b_first

    def stage(_: jax.Array, carry: tuple) -> tuple:
        before, last, ((t0, d0, dd0), (t1, d1, dd1), b0, b1) = carry
        t, d, dd = 2 * w0 * t1 - t0, 2 * t1 + 2 * w0 * d1 - d0, 4 * d1 + 2 * w0 * dd1 - dd0
        b = dd / d**2
        mu, nu, kappa, a = 2 * b * w0 / b1, -b / b0, 2 * b * w1 / b1, 1 - b1 * t1
        factors = [factor.astype(y.dtype) for factor in (1 - mu - nu, mu, nu, kappa * step, -a * kappa * step)]
        new = _weighted_sum(factors, [y, last, before, equation.slope(last), at_y])
        return last, new, ((t1, d1, dd1), (t, d, dd), b1, b)

    carry = y, first, polynomials
    if equation.traceable:
        return jax.lax.fori_loop(2, stages + 1, stage, carry)[1]
    for _ in range(2, int(stages) + 1):
        carry = stage(stages, carry)
    return carry[1]


@jax.jit
def _weighted_sum(factors: list[jax.Array], parts: list[jax.Array]) -> jax.Array:
    total = factors[0] * parts[0]
    for factor, part in zip(factors[1:], parts[1:], strict=True):
        total = total + factor * part
    return total
