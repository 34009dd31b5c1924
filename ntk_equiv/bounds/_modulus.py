"""How much a certified kernel can change when one of its arguments is turned.

At fixed norms, the kernel of a dense network with ReLU-like, erf or similar activations is Θ(x, a) = h(cos θ), with h a
power series without negative coefficients. Then |h'(c)| ≤ h'(|c|), so that the function

    V(θ) = h(1) − h(cos θ)  on [0, π/2],     V(π − θ) = 2V(π/2) − V(θ)

increases wherever h(cos θ) changes, and at least as fast. Two vectors a, b of one norm with an angle β between them
have angles to x that differ by β at most, hence

    |Θ(x, a) − Θ(x, b)|  ≤  max_θ [V(θ + β) − V(θ)]  =: ω(β),     β = 2 arcsin(‖a − b‖ / 2‖a‖).

It is of order β for ReLU too, and attained where the maximum lies between 0 and π/2. Over a cell θ … θ + s it is at
most

    V(θ + s + β) − V(θ),    and    V(θ + β) − V(θ) + s · max(0, sup V' − inf V'),

sup over θ + β … θ + β + s and inf over θ … θ + s. V' = h'(|cos θ|) sin θ is the product of two monotone functions, so
that both are known from the ends. A grid encloses ω(β) from both sides, and is refined where the maximum may be.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from ntk_equiv._check import refusal
from ntk_equiv._typing import Array

CELLS = 96
STAGES = 6


def is_certified(kernel_fn: Any) -> bool:
    """Whether a kernel is known to be a power series of the cosine without negative coefficients."""
    certificate = getattr(kernel_fn, "certificate", None)
    return certificate is not None and certificate.dot_product and certificate.nonnegative


def check_certified(kernel_fn: Any) -> None:
    """Refuse kernels about which nothing is proven here."""
    if not is_certified(kernel_fn):
        certificate = getattr(kernel_fn, "certificate", None)
        got = "one without a certificate" if certificate is None else f"one with {certificate}"
        fix = (
            "Bounds are proven for dense networks with ReLU-like, erf, GELU or sine activations from `ntk_equiv.stax`. "
            "For others there is `continuous_group_estimate`, and `measured_continuous_deviation`."
        )
        raise refusal("ens", expected="an ensemble with a certified kernel", got=got, fix=fix)


def envelope(kernel_fn: Any, q1: Array, q2: Array, angle: Array) -> Array:
    """V at angles [..., count] in [0, π], for mean squared norms `q1` and `q2`, [count].

    Example:
        >>> from ntk_equiv import stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(64), stax.Relu(), stax.Dense(1))
        >>> print(envelope(kernel_fn, jnp.ones(3), jnp.ones(3), jnp.array([0, jnp.pi / 2, jnp.pi])).round(4))
        [0.     0.8408 1.6817]
    """
    wide = [jnp.broadcast_to(q, angle.shape) for q in (q1, q2)]
    here = kernel_fn.radial(*wide, jnp.abs(jnp.cos(angle)), "ntk")
    ends = [kernel_fn.radial(q1, q2, jnp.full_like(q1, cosine), "ntk") for cosine in (1.0, 0.0)]
    return _folded(angle, here, *(jnp.broadcast_to(end, angle.shape) for end in ends))


def _folded(angle: Array, here: Array, top: Array, middle: Array) -> Array:
    """V from h(|cos θ|), h(1) and h(0)."""
    return jnp.where(angle <= math.pi / 2, top - here, (top - middle) + (here - middle))


@jax.jit
def largest_increase(kernel_fn: Any, q1: Array, q2: Array, beta: Array) -> tuple[Array, Array]:
    """ω(β) from below and from above, entry by entry.

    Args:
        kernel_fn: a certified kernel.
        q1: mean squared norms of one side, [count].
        q2: mean squared norms of the other, [count].
        beta: angles in [0, π], [count].

    Example:
        >>> from ntk_equiv import stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(64), stax.Relu(), stax.Dense(1))
        >>> lower, upper = largest_increase(kernel_fn, jnp.ones(1), jnp.ones(1), jnp.full(1, 0.1))
        >>> print(lower.round(3), upper.round(3))
        [0.066] [0.066]
    """
    steps = jnp.arange(CELLS + 1, dtype=beta.dtype)[:, None] / CELLS

    def refined(_: Any, state: tuple) -> tuple:
        low, high, lower, _ = state
        # Cells grow with θ + β: towards 0 the slope of a kernel of ReLU varies as fast as log θ.
        offset = jnp.maximum(beta, 1e-9)
        stretch = jnp.log1p((high - low) / (low + offset))
        angle = low[None] + (low + offset)[None] * jnp.expm1(steps * stretch[None])
        attained, bound = _cells_bounded(kernel_fn, q1, q2, angle, beta)
        lower = jnp.maximum(lower, jnp.max(attained, axis=0))
        upper = jnp.maximum(lower, jnp.max(bound, axis=0))
        # What may still hold the maximum lies between the first and the last cell with a larger bound.
        open_ = bound > lower[None]
        first, last = jnp.argmax(open_, axis=0), CELLS - 1 - jnp.argmax(open_[::-1], axis=0)
        ends = (first, jnp.where(jnp.any(open_, axis=0), last, 0) + 1)
        low, high = (jnp.take_along_axis(angle, end[None], axis=0)[0] for end in ends)
        return low, high, lower, upper

    # V(θ + β) − V(θ) is the same at θ and π − β − θ.
    nothing = jnp.zeros_like(beta)
    return jax.lax.fori_loop(0, STAGES, refined, (nothing, (math.pi - beta) / 2, nothing, nothing))[2:]


def _cells_bounded(kernel_fn: Any, q1: Array, q2: Array, angle: Array, beta: Array) -> tuple[Array, Array]:
    """V(θ + β) − V(θ) at the angles [CELLS + 1, count], and a bound on it in each cell between them."""
    both = jnp.stack([angle, jnp.minimum(angle + beta[None], math.pi)])
    cosine, sine = jnp.abs(jnp.cos(both)), jnp.sin(both)
    # One evaluation for all, with h(1) and h(0) in the last two rows.
    rows = jnp.concatenate([cosine.reshape(-1, len(beta)), jnp.ones_like(beta)[None], jnp.zeros_like(beta)[None]])
    wide = [jnp.broadcast_to(q, rows.shape) for q in (q1, q2)]
    value, slope = jax.jvp(lambda c: kernel_fn.radial(*wide, c, "ntk"), (rows,), (jnp.ones_like(rows),))
    here, slope = (v[:-2].reshape(both.shape) for v in (value, slope))
    top, middle = value[-2][None], value[-1][None]
    before = top - here[0]
    after = _folded(both[1], here[1], top, middle)
    crossing = (both[1, :-1] - math.pi / 2) * (both[1, 1:] - math.pi / 2) < 0
    highest = jnp.where(crossing, 1.0, jnp.maximum(sine[1, :-1], sine[1, 1:]))
    fastest = highest * jnp.maximum(slope[1, :-1], slope[1, 1:])
    slowest = sine[0, :-1] * slope[0, 1:]
    width = angle[1:] - angle[:-1]
    linear = after[:-1] - before[:-1] + width * jnp.maximum(fastest - slowest, 0)
    simple = after[1:] - before[:-1]
    return after - before, jnp.where(jnp.isfinite(linear), jnp.minimum(linear, simple), simple)
