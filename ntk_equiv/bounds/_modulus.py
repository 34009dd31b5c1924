"""How much a certified kernel can change when one of its arguments is turned.

At fixed norms, the kernel of a dense network with ReLU-like, erf or similar activations is Θ(x, a) = h(cos θ), with h a
power series without negative coefficients. Then |h'(c)| ≤ h'(|c|), so that the function

    V(θ) = h(1) − h(cos θ)  on [0, π/2],     V(π − θ) = 2V(π/2) − V(θ)

increases wherever h(cos θ) changes, and at least as fast. The angles of x with two vectors a, b of one norm differ by
at most the angle β between a and b, hence

    |Θ(x, a) − Θ(x, b)|  ≤  max_θ [V(θ + β) − V(θ)]  =: ω(β),     β = 2 arcsin(‖a − b‖ / 2‖a‖).

It is of order β for ReLU too, and attained where the maximum lies between 0 and π/2. Over a cell θ … θ + s the
increase is at most

    V(θ + s + β) − V(θ),    and    V(θ + β) − V(θ) + s · max(0, sup V' − inf V'),

sup over θ + β … θ + β + s and inf over θ … θ + s. V' = h'(|cos θ|) sin θ is the product of two monotone functions, so
both follow from the ends of the cell. A grid encloses ω(β) from both sides, and is refined where the maximum may be.
"""

import math
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp

from ntk_equiv._check import refusal
from ntk_equiv._typing import Array, KernelFunction
from ntk_equiv.stax import KernelFn

# Cells of one grid, and how often it is refined: enough for an enclosure to three digits or more.
CELLS = 96
STAGES = 6


def is_certified(kernel_fn: KernelFunction) -> TypeGuard[KernelFn]:
    """Return whether a kernel is known to be a power series of the cosine without negative coefficients."""
    if not isinstance(kernel_fn, KernelFn):
        return False
    return kernel_fn.certificate.dot_product and kernel_fn.certificate.nonnegative


def check_certified(kernel_fn: KernelFunction) -> KernelFn:
    """Return the kernel, or refuse one about which nothing is proven here."""
    if not is_certified(kernel_fn):
        got = f"one with {kernel_fn.certificate}" if isinstance(kernel_fn, KernelFn) else "one without a certificate"
        fix = (
            "Bounds are proven for dense networks with ReLU-like, erf, GELU or sine activations from `ntk_equiv.stax`. "
            "For others use `continuous_group_estimate` or `measured_continuous_deviation`."
        )
        raise refusal("ens", expected="an ensemble with a certified kernel", got=got, fix=fix)
    return kernel_fn


def envelope(kernel_fn: KernelFn, q1: Array, q2: Array, angle: Array) -> Array:
    """Return V at angles [..., count] in [0, π], for mean squared norms `q1` and `q2`, [count].

    Example:
        >>> from ntk_equiv import stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(64), stax.Relu(), stax.Dense(1))
        >>> print(envelope(kernel_fn, jnp.ones(3), jnp.ones(3), jnp.array([0, jnp.pi / 2, jnp.pi])).round(4))
        [0.     0.8408 1.6817]
    """
    wide1, wide2 = (jnp.broadcast_to(q, angle.shape) for q in (q1, q2))
    here = kernel_fn.radial(wide1, wide2, jnp.abs(jnp.cos(angle)), "ntk")
    ends = [kernel_fn.radial(q1, q2, jnp.full_like(q1, cosine), "ntk") for cosine in (1.0, 0.0)]
    return _unfold(angle, here, *(jnp.broadcast_to(end, angle.shape) for end in ends))


def _unfold(angle: Array, here: Array, top: Array, middle: Array) -> Array:
    """Return V on all of [0, π] from h(|cos θ|), h(1) and h(0)."""
    return jnp.where(angle <= math.pi / 2, top - here, (top - middle) + (here - middle))


@jax.jit
def kernel_modulus(kernel_fn: KernelFn, q1: Array, q2: Array, beta: Array) -> tuple[Array, Array]:
    """Return ω(β) from below and from above, entry by entry.

    Args:
        kernel_fn: a certified kernel.
        q1: mean squared norms of one side, [count].
        q2: mean squared norms of the other, [count].
        beta: angles in [0, π], [count].

    Example:
        >>> from ntk_equiv import stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(64), stax.Relu(), stax.Dense(1))
        >>> lower, upper = kernel_modulus(kernel_fn, jnp.ones(1), jnp.ones(1), jnp.full(1, 0.1))
        >>> print(lower.round(3), upper.round(3))
        [0.066] [0.066]
    """
    steps = jnp.arange(CELLS + 1, dtype=beta.dtype)[:, None] / CELLS

    def refine(_: Any, state: tuple) -> tuple:
        low, high, lower, _ = state
        # Cells grow with θ + β, because towards 0 the slope of a ReLU kernel varies as fast as log θ.
        offset = jnp.maximum(beta, 1e-9)
        stretch = jnp.log1p((high - low) / (low + offset))
        angle = low[None] + (low + offset)[None] * jnp.expm1(steps * stretch[None])
        attained, bound = _bound_cells(kernel_fn, q1, q2, angle, beta)
        lower = jnp.maximum(lower, jnp.max(attained, axis=0))
        upper = jnp.maximum(lower, jnp.max(bound, axis=0))
        # The maximum can only lie between the first and the last cell whose bound is larger than what is attained.
        open_ = bound > lower[None]
        first, last = jnp.argmax(open_, axis=0), CELLS - 1 - jnp.argmax(open_[::-1], axis=0)
        ends = (first, jnp.where(jnp.any(open_, axis=0), last, 0) + 1)
        low, high = (jnp.take_along_axis(angle, end[None], axis=0)[0] for end in ends)
        return low, high, lower, upper

    # V(θ + β) − V(θ) is the same at θ and π − β − θ, so half of the interval is enough.
    nothing = jnp.zeros_like(beta)
    return jax.lax.fori_loop(0, STAGES, refine, (nothing, (math.pi - beta) / 2, nothing, nothing))[2:]


def _bound_cells(kernel_fn: KernelFn, q1: Array, q2: Array, angle: Array, beta: Array) -> tuple[Array, Array]:
    """Return V(θ + β) − V(θ) at the angles [CELLS + 1, count], and a bound on it in each cell between them."""
    both = jnp.stack([angle, jnp.minimum(angle + beta[None], math.pi)])
    cosine, sine = jnp.abs(jnp.cos(both)), jnp.sin(both)
    # One evaluation for all, with h(1) and h(0) in the last two rows.
    rows = jnp.concatenate([cosine.reshape(-1, len(beta)), jnp.ones_like(beta)[None], jnp.zeros_like(beta)[None]])
    wide1, wide2 = (jnp.broadcast_to(q, rows.shape) for q in (q1, q2))
    value, slope = jax.jvp(lambda c: kernel_fn.radial(wide1, wide2, c, "ntk"), (rows,), (jnp.ones_like(rows),))
    here, slope = (v[:-2].reshape(both.shape) for v in (value, slope))
    top, middle = value[-2][None], value[-1][None]
    before = top - here[0]
    after = _unfold(both[1], here[1], top, middle)
    crossing = (both[1, :-1] - math.pi / 2) * (both[1, 1:] - math.pi / 2) < 0
    highest = jnp.where(crossing, 1.0, jnp.maximum(sine[1, :-1], sine[1, 1:]))
    fastest = highest * jnp.maximum(slope[1, :-1], slope[1, 1:])
    slowest = sine[0, :-1] * slope[0, 1:]
    width = angle[1:] - angle[:-1]
    linear = after[:-1] - before[:-1] + width * jnp.maximum(fastest - slowest, 0)
    simple = after[1:] - before[:-1]
    # At θ = 0 the slope of a kernel with a kink is infinite, and only the simple bound is left.
    return after - before, jnp.where(jnp.isfinite(linear), jnp.minimum(linear, simple), simple)
