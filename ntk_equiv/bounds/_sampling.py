"""Draws from the Gaussian law of an ensemble at many points, and what is made of them.

    Z = A ε with AAᵀ = Σ and standard normal ε        `covariance_root`

Draws are made a portion at a time (`portions`), and numbers of members that were sampled become whole ones
(`whole_members`).
"""

from typing import Any

import jax
import numpy as np

from ntk_equiv._check import real_array, refusal
from ntk_equiv.bounds._members import whole
from ntk_equiv.bounds._records import Sampled

# Numbers held at a time.
ROOM = 2**22
# Eigenvalues so small, next to the largest or to δ², may be rounding.
NEGLIGIBLE = 1e-6


def covariance_root(covariance: Any, rounding: float = 0.0) -> np.ndarray:
    """The root A with AA = Σ that is positive, and so unique, for a covariance [..., n, n] that may be singular.

    Other roots would do, but eigenvectors differ from machine to machine, and on orbits eigenvalues coincide.
    At late times members agree on the training points, and what is left of their covariance is the rounding of kernels:
    of either sign, and as large as all the rest. Negative eigenvalues down to −`rounding` count as that.
    """
    covariance = np.asarray(real_array(covariance, "covariance"), dtype=float)
    if covariance.ndim < 2 or covariance.size == 0 or covariance.shape[-1] != covariance.shape[-2]:
        fix = "Pass the joint covariance of the points, `ens.cov(x, t)`."
        raise refusal("covariance", expected="a square matrix", got=f"shape {covariance.shape}", fix=fix)
    if not np.isfinite(covariance).all():
        fix = "Look for the cause where the covariance was computed."
        raise refusal("covariance", expected="finite", got="NaN or infinity", fix=fix)
    values, vectors = np.linalg.eigh((covariance + np.swapaxes(covariance, -1, -2)) / 2)
    allowed = np.maximum(NEGLIGIBLE * np.max(values, axis=-1, initial=0.0), rounding)
    if (values < -allowed[..., None]).any():
        fix = "A covariance has no negative eigenvalues beyond rounding."
        raise refusal("covariance", expected="positive semidefinite", got=f"the eigenvalue {values.min():.3g}", fix=fix)
    return (vectors * np.sqrt(np.maximum(values, 0))[..., None, :]) @ np.swapaxes(vectors, -1, -2)


def portions(key: jax.Array, samples: int, size: int) -> tuple[jax.Array, int]:
    """A key for each portion of the draws, and how many draws are in one, if a draw is `size` numbers.

    All portions are equally large, so that they are compiled once; together they may be more than were asked for.
    """
    each = max(1, min(samples, ROOM // size))
    return jax.random.split(key, -(-samples // each)), each


def whole_members(found: Sampled, epsilon: float) -> Sampled:
    """Numbers of members as whole ones, if there are enough draws to see what happens with probability ε."""
    if not np.isfinite(found.upper).all():
        fix = f"Take more, at least about {10 / epsilon:.3g}."
        expected = f"enough to see what happens with probability {epsilon}"
        raise refusal("samples", expected=expected, got=found.samples, fix=fix)
    return Sampled(whole(found.value), whole(found.lower), whole(found.upper), found.confidence, found.samples)
