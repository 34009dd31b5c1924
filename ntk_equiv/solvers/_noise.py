"""What rounding leaves of an eigenvalue, and of a filter.

An eigenvalue is known up to the noise that rounding makes. It is the same for all blocks of a Gram matrix of N rows:

    noise = 4 eps √N max_i Θ_ii + 4 eps' λ_max                          `noise_level`

The first term is what entries with independent errors of a few eps each do to the small eigenvalues. Measured on images
and on normal samples, for one to eight layers, it is at most 1.4 eps √N max Θ_ii. (Errors that entries have in common
are larger, but they are smooth, and change large eigenvalues alone.) The second term is the solver's own, in the
precision eps' in which it works.

Null vectors of Θ contribute nothing in exact arithmetic. In floating point they contribute φ_t(0) ~ ηt times their
rounding. So eigenvalues below the noise are kept as long as φ_t(0) · noise is small, and left out later: training to
the end then fits y projected on the numerical range of Θ. Under a ridge φ_t is bounded, and nothing is left out unless
the ridge itself is below the noise.
"""

import dataclasses

import jax
import jax.numpy as jnp

from ntk_equiv._pytrees import dataclass_pytree
from ntk_equiv.filters import Filter

# Units of eps, for both terms.
ROUNDINGS = 4


def noise_level(scale: jax.Array, diagonal: jax.Array, rows: int, *, solver_eps: float) -> jax.Array:
    """Return how far rounding may move a small eigenvalue.

    Args:
        scale: the largest row sum of |Θ|, which bounds λ_max.
        diagonal: the largest entry on the diagonal of Θ.
        rows: N.
        solver_eps: eps', that of the arithmetic of the solver.
    """
    eps = float(jnp.finfo(scale.dtype).eps)
    return ROUNDINGS * (eps * rows**0.5 * diagonal + solver_eps * scale)


@dataclass_pytree
@dataclasses.dataclass(frozen=True)
class FilterAboveNoise:
    """φ_t(λ) up to rounding, or what follows from it: a function of eigenvalues and times that broadcast.

    Attributes:
        filter: how the ensemble is trained.
        noise: that of eigenvalues.
        entries: how many entries the loss is a mean over; 1 if it is a sum.
        part: "coefficients" for φ_t(λ), "fit" for λφ_t(λ), "residual" for 1 − λφ_t(λ); "cut" for the most that an
            eigenvalue which is left out could contribute to predictions, zero for the others.
    """

    filter: Filter
    noise: jax.Array
    entries: int = dataclasses.field(default=1, metadata={"static": True})
    part: str = dataclasses.field(default="coefficients", metadata={"static": True})

    def __call__(self, lam: jax.Array, t: jax.Array) -> jax.Array:
        """Return the function at eigenvalues `lam` and times `t`."""
        lam = jnp.maximum(lam, 0)
        dropped = (lam <= self.noise) & self.is_late(t)
        phi = self.filter(jnp.where(dropped, 1, lam) / self.entries, t) / self.entries
        phi = jnp.where(dropped, 0, phi)
        if self.part == "cut":
            return jnp.where(dropped, self._largest_below_noise(t), 0)
        if self.part == "coefficients":
            return phi
        return lam * phi if self.part == "fit" else 1 - lam * phi

    def _largest_below_noise(self, t: jax.Array) -> jax.Array:
        """Return the largest √λ φ_t(λ) for λ up to the noise; at t = ∞, where there is none, that at the noise."""
        lam = self.noise * 2.0 ** -jnp.arange(24, dtype=self.noise.dtype)
        values = jnp.sqrt(lam) * self.filter(lam / self.entries, t) / self.entries
        return jnp.where(jnp.isinf(t), values[0], jnp.max(values))

    def is_late(self, t: jax.Array) -> jax.Array:
        """Return whether eigenvalues below the noise have to be left out at this time."""
        null = self.filter(jnp.zeros_like(self.noise), t) / self.entries
        bounded = self.filter(jnp.zeros_like(self.noise), jnp.asarray(jnp.inf, self.noise.dtype)) < jnp.inf
        # Between the rounding, which grows like φ(0) · noise, and what a small but true eigenvalue would contribute.
        return ~(null * self.noise <= jnp.where(bounded, 1.0, jnp.finfo(self.noise.dtype).eps ** 0.25))
