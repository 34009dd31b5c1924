"""Characters, and the three kinds of irreps.

For an irrep σ with character χ(g) = tr σ(g) the Frobenius–Schur indicator is

    ν = (1/N) Σ_g χ(g²) =  1   real: σ has a real orthogonal form,
                           0   complex: σ and its conjugate σ̄ are different irreps,
                          −1   quaternionic: σ ≅ σ̄, but no basis makes σ real.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Complex


class IrrepType(NamedTuple):
    """The kind of one irrep.

    Attributes:
        indicator: the Frobenius–Schur indicator: 1 real, 0 complex, -1 quaternionic.
        conjugate: the index of the conjugate irrep in `G.irreps()`; its own index unless the type is complex.

    Example:
        >>> from ntk_equiv import groups
        >>> groups.cyclic(3).irrep_types()                      # the second and third are conjugate to each other
        (IrrepType(indicator=1, conjugate=0), IrrepType(indicator=0, conjugate=2), IrrepType(indicator=0, conjugate=1))
    """

    indicator: int
    conjugate: int


def characters(irreps: tuple[np.ndarray, ...]) -> Complex[np.ndarray, "irreps order"]:
    """The character of each irrep on each element."""
    chi = np.array([np.trace(sigma, axis1=1, axis2=2) for sigma in irreps], dtype=complex)
    return np.where(np.abs(chi - np.rint(chi.real)) < 1e-12, np.rint(chi.real), chi) + 0


def irrep_types(table: np.ndarray, irreps: tuple[np.ndarray, ...]) -> tuple[IrrepType, ...]:
    """Frobenius–Schur indicator and conjugate partner of each irrep."""
    chi = characters(irreps)
    indicators = np.rint(chi[:, np.diagonal(table)].real.mean(axis=1)).astype(int)
    overlaps = (chi @ chi.T).real  # N where one is the conjugate of the other, else 0
    return tuple(IrrepType(int(nu), int(partner)) for nu, partner in zip(indicators, overlaps.argmax(1), strict=True))
