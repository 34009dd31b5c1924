"""How an eigenmode responds to training: a filter, and what rounding leaves of it.

An eigenvalue is known up to tol = N · eps · (largest row sum of |Θ|), the same for all blocks of a Gram matrix of N
rows. Modes below it contribute nothing in exact arithmetic if they are null, but φ_t(0) ~ ηt times the rounding of
their vectors in floating point. So as long as φ_t(0) · tol is small they are kept, and left out when it no longer is:
training to the end then fits y projected on the numerical range of Θ.
"""

from typing import Any

import jax
import jax.numpy as jnp

from ntk_equiv.filters import Filter


def tolerance(scale: jax.Array, rows: int) -> jax.Array:
    """The rounding error of an eigenvalue."""
    return scale * rows * jnp.finfo(scale.dtype).eps


@jax.jit
def response(filter: Filter, values: jax.Array, t: jax.Array, tol: jax.Array, entries: Any) -> jax.Array:
    """φ_t(λ) for all times and eigenvalues, [T, λ].

    Args:
        filter: how the ensemble is trained.
        values: eigenvalues λ.
        t: times, [T].
        tol: their rounding error.
        entries: over how many entries the loss is a mean; 1 if it is a sum.
    """
    t, lam = t[:, None], jnp.maximum(values, 0)[None, :]
    dropped = (lam <= tol) & is_late(filter, t, tol, entries)
    phi = filter(jnp.where(dropped, 1, lam) / entries, t) / entries
    return jnp.where(dropped, 0, phi)


@jax.jit
def is_late(filter: Filter, t: jax.Array, tol: jax.Array, entries: Any) -> Any:
    """Whether modes below the tolerance have to be left out at this time."""
    null = filter(jnp.zeros_like(tol), t) / entries
    # Between the rounding that grows like φ(0)·tol/N and what a mode that is real after all would have contributed.
    return ~(null * tol <= jnp.finfo(tol.dtype).eps ** 0.25)
