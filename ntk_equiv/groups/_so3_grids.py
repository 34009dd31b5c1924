"""Two ways of spreading rotations over SO(3).

`super_fibonacci`: unit quaternions along a spiral, of any number, with low discrepancy (Alexa, "Super-Fibonacci
Spirals", CVPR 2022). For s = i + ½ of n,

    q = (√(s/n) e^{2πis/φ}, √(1 − s/n) e^{2πis/ψ}),     φ = √2,   ψ⁴ = ψ + 4.

`euler`: R = R_z(α)R_y(β)R_z(γ), uniform in α and γ, Gauss–Legendre in cos β. With degree + 1 angles each and
⌊degree/2⌋ + 1 nodes the weighted sum of a polynomial of that degree is its Haar average.
"""

import numpy as np
from jaxtyping import Float
from scipy.spatial.transform import Rotation

_PHI = np.sqrt(2)
_PSI = 1.533751168755204288118041


def super_fibonacci(count: int) -> Float[np.ndarray, "{count} 3 3"]:
    """Rotations along a super-Fibonacci spiral."""
    s = np.arange(count) + 0.5
    first = np.sqrt(s / count) * np.exp(2j * np.pi * s / _PHI)
    second = np.sqrt(1 - s / count) * np.exp(2j * np.pi * s / _PSI)
    return Rotation.from_quat(np.stack([first.imag, first.real, second.imag, second.real], axis=1)).as_matrix()


def euler(degree: int) -> tuple[Float[np.ndarray, "count 3 3"], Float[np.ndarray, "count"]]:
    """Rotations and weights that average polynomials up to `degree` exactly."""
    angles = 2 * np.pi * np.arange(degree + 1) / (degree + 1)
    nodes, weights = np.polynomial.legendre.leggauss(degree // 2 + 1)
    grid = np.stack(np.meshgrid(angles, np.arccos(nodes), angles, indexing="ij"), axis=-1).reshape(-1, 3)
    repeated = np.broadcast_to(weights[:, None], (degree + 1, len(nodes), degree + 1)).reshape(-1)
    return Rotation.from_euler("ZYZ", grid).as_matrix(), repeated / repeated.sum()
