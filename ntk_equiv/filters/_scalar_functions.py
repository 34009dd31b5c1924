"""The scalar functions that filters are made of, precise where their textbook forms are not.

    (1 − e^(−u))/u        `saturation`       gradient flow, and descent in small steps
    −log(1 − z)/z         `slope`            descent in small steps: (1 − z)^t = e^(−tz·slope(z))
    M^t by squaring       `take_bit`         momentum, one bit of t at a time
    1/λ at t = ∞          `inverse_where`    all of them

Functions with a `where` evaluate both branches at harmless values, because the derivative of a branch that is not
taken must be finite too.
"""

from typing import Any

import jax
import jax.numpy as jnp


def as_floats(lam: Any, t: Any) -> tuple[jax.Array, jax.Array]:
    """Return both in the precision of λ."""
    lam = jnp.asarray(lam)
    lam = lam if jnp.issubdtype(lam.dtype, jnp.inexact) else lam.astype(float)
    return lam, jnp.asarray(t, lam.dtype)


def inverse_where(ended: jax.Array, lam: jax.Array, value: jax.Array) -> jax.Array:
    """Return 1/λ where training has ended, `value` elsewhere."""
    positive = jnp.where(lam > 0, lam, 1)
    return jnp.where(ended, jnp.where(lam > 0, 1 / positive, jnp.inf), value)


def saturation(u: jax.Array) -> jax.Array:
    """Return (1 − e^(−u))/u, smooth at 0."""
    away = jnp.where(u < 1e-3, 1, u)
    near = jnp.where(u < 1e-3, u, 0)
    return jnp.where(u < 1e-3, 1 - near / 2 * (1 - near / 3 * (1 - near / 4)), -jnp.expm1(-away) / away)


def slope(z: jax.Array) -> jax.Array:
    """Return −log(1 − z)/z for z < 1, smooth at 0."""
    away = jnp.where(z < 1e-3, 0.5, z)
    near = jnp.where(z < 1e-3, z, 0)
    series = 1 + near * (1 / 2 + near * (1 / 3 + near * (1 / 4 + near / 5)))
    return jnp.where(z < 1e-3, series, -jnp.log1p(-away) / away)


def take_bit(_: Any, carry: tuple) -> tuple:
    """Use one bit of the number of steps: take the step if the bit is set, then make the step twice as long."""
    ((a, b), (c, d)), (p, q), (u, v), steps = carry
    odd = jnp.mod(steps, 2) == 1
    u, v = jnp.where(odd, a * u + b * v + p, u), jnp.where(odd, c * u + d * v + q, v)
    twice = ((a * a + b * c, b * (a + d)), (c * (a + d), d * d + b * c))
    return twice, (a * p + b * q + p, c * p + d * q + q), (u, v), jnp.floor(steps / 2)
