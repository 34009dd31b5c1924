"""How far a rotation by a given angle moves things, in any orthogonal representation.

The generator of rotations in one plane, represented on vectors, has eigenvalues ±im with whole m ≥ 0, the frequencies
(weights) of the representation. For rotations g of SO(2) or SO(3) by the angle ω, about any axis,

    ‖ρ(g) − 1‖  =  max_m 2|sin(mω/2)|            `distance(weights, ω)`
    sup over angles up to ω  =  2 sin(min(m_max ω, π)/2)      `farthest(weights, ω)`
"""

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv import reps
from ntk_equiv._check import refusal
from ntk_equiv.groups import ContinuousGroup
from ntk_equiv.reps import Representation

TOLERANCE = 1e-3  # matrices may come in single precision


def as_representation(rep: Any, argument: str = "rep") -> Representation:
    """`rep`, if it is an orthogonal action of a continuous group on vectors; a bare group stands for its matrices."""
    if isinstance(rep, ContinuousGroup):
        return _defining(rep)
    if not isinstance(rep, Representation) or not isinstance(rep.group, ContinuousGroup) or rep.domain.rank:
        got = getattr(rep, "label", None) or repr(rep)
        fix = "Build one with `reps.matrix(groups.SO2, ...)`, or pass the group itself for its own matrices."
        raise refusal(argument, expected="a representation of a continuous group on vectors", got=got, fix=fix)
    if not _is_orthogonal(rep):
        fix = (
            "Distances, and with them all bounds here, need ρ(g)ᵀρ(g) = 1. An inner product that ρ keeps always exists."
        )
        raise refusal(argument, expected="orthogonal", got=f"{rep}, which is not", fix=fix)
    return rep


@lru_cache(maxsize=64)
def _defining(group: ContinuousGroup) -> Representation:
    return reps.matrix(group)


@lru_cache(maxsize=64)
def _is_orthogonal(rep: Representation) -> bool:
    return rep.is_orthogonal(TOLERANCE)


def matrices(rep: Representation, elements: Any) -> np.ndarray:
    """ρ(g) for elements [count, n, n]; [count, 1, 1] if it acts on any number of channels, trivially."""
    basis = jnp.eye(rep.dim or 1)
    return np.swapaxes(np.asarray(rep.orbit(basis, jnp.asarray(elements))), 1, 2)


@lru_cache(maxsize=64)
def weights(rep: Representation) -> np.ndarray:
    """The frequencies m ≥ 0 that occur, each once, in increasing order."""
    n = rep.group.n  # type: ignore[union-attr]
    plane = jnp.zeros((n, n)).at[1, 0].set(1.0).at[0, 1].set(-1.0)
    basis = jnp.eye(rep.dim or 1)
    _, moved = jax.jvp(lambda R: rep(R, basis), (jnp.eye(n),), (plane,))
    generator = np.asarray(moved, dtype=float)
    found = np.abs(np.linalg.eigvals((generator - generator.T) / 2).imag)
    whole = np.round(found)
    angle = 1.0 + np.arange(4)  # characters tell whether these are all there is to it
    R = np.broadcast_to(np.eye(n), (4, n, n)).copy()
    R[:, 0, 0] = R[:, 1, 1] = np.cos(angle)
    R[:, 1, 0], R[:, 0, 1] = np.sin(angle), -np.sin(angle)
    character = np.trace(matrices(rep, R), axis1=1, axis2=2)
    off = np.abs(character - np.cos(angle[:, None] * whole).sum(axis=1)).max() / len(basis)
    if off > TOLERANCE or np.abs(found - whole).max() > 0.01:
        fix = "The matrices must be a differentiable function of the rotation that keeps products."
        raise refusal("rep", expected="a representation with whole frequencies", got=f"one with {found}", fix=fix)
    return np.unique(whole)


def distance(frequencies: np.ndarray, angle: np.ndarray) -> np.ndarray:
    """‖ρ(g) − 1‖ for rotations by `angle`."""
    return 2 * np.abs(np.sin(frequencies * np.asarray(angle)[..., None] / 2)).max(axis=-1)


def farthest(frequencies: np.ndarray, angle: Any) -> Any:
    """The largest ‖ρ(g) − 1‖ of all rotations by `angle` or less."""
    return 2 * np.sin(np.minimum(frequencies.max() * np.asarray(angle), np.pi) / 2)
