"""The Ising model on a square lattice, with its energy as the function to learn.

For spins s_i on an L × L lattice with V = L² sites and 𝒩(i) the neighbours of i along the axes,

    E(i) = Σ_{j∈𝒩(i)} s_i s_j       `local_energies`, the labels, V channels
    𝓔    = −(1/V) Σ_i E(i)          `total_energy`

With A_ij the number of times j is a neighbour of i, E(i) = Σ_j A_ij s_i s_j. If the spins are independent, of mean 0
and variance v, then the products over different bonds are uncorrelated, of mean 0 and variance v², and with no site its
own neighbour

    Var E(i) = v² Σ_j A_ij²,     Var 𝓔 = v² (2/V²) Σ_ij A_ij²       `ising_std`

For v = 1 on the periodic 5 × 5 lattice, E(i) has the standard deviation 2, and 𝓔 has √0.32 ≈ 0.566. Gerken & Kessel
divide by 2, and call it the standard deviation of 𝓔; in their main text they speak of the mean of 𝓔, which is 0.
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Float, Num

from ntk_equiv import groups, reps
from ntk_equiv._check import boolean, positive_integer, random_key, real_array, real_number, refusal
from ntk_equiv.datasets._records import LabelledSet, default_float, sizes_of
from ntk_equiv.groups import FiniteGroup
from ntk_equiv.reps import Representation


class IsingStd(NamedTuple):
    """Exact standard deviations of the energies of independent random spins; all their means are 0.

    Attributes:
        local: of the local energies E(i), [V].
        energy: of the total energy 𝓔.

    Example:
        >>> from ntk_equiv.datasets import ising_std
        >>> std = ising_std(3)
        >>> std.local.tolist(), round(std.energy, 4)
        ([2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0], 0.9428)
    """

    local: Float[np.ndarray, "sites"]
    energy: float


class IsingData(NamedTuple):
    """Spin configurations with their local energies.

    Attributes:
        train: uniform spins ±1.
        test: the same, drawn anew.
        ood: Gaussian spins.
        std: of the energies in `train` and `test`, exact.
        ood_std: of the energies in `ood`, exact.

    Example:
        >>> import jax
        >>> from ntk_equiv.datasets import ising
        >>> data = ising(jax.random.key(0), train=8, test=4, ood=2)
        >>> data.train.x.shape, data.ood.x.shape, data.ood_std.energy > data.std.energy
        ((8, 25), (2, 25), True)
    """

    train: LabelledSet
    test: LabelledSet
    ood: LabelledSet
    std: IsingStd
    ood_std: IsingStd


def ising(
    key: jax.Array,
    *,
    train: int = 128,
    test: int = 1000,
    ood: int = 1000,
    side: int = 5,
    periodic: bool = True,
    ood_variance: float = 400.0,
    group: FiniteGroup | None = None,
) -> IsingData:
    """Training, test and out-of-distribution sets of the Ising model, as in Gerken & Kessel.

    Points are flattened lattices [n, L²], labels the local energies [n, L²]; quarter turns permute the channels
    of both. Now and then a configuration is symmetric: it appears in the augmented set more than once, which makes the
    Gram matrix singular.

    Args:
        key: a JAX random key.
        train: how many configurations to train on.
        test: how many drawn alike.
        ood: how many with spins from N(0, ood_variance).
        side: L, at least 2. On a periodic lattice of side 2 each neighbour counts twice.
        periodic: whether the lattice is a torus; else sites on the border have fewer neighbours.
        ood_variance: of the Gaussian spins.
        group: the symmetry, `cyclic(4)` unless given; any group that `reps.rot90` takes.

    Returns:
        The three sets, each ready for `augment(*data.train)`, and the exact standard deviations of the energies.

    Example:
        >>> import jax
        >>> from ntk_equiv import augment
        >>> from ntk_equiv.datasets import ising
        >>> data = ising(jax.random.key(0))
        >>> augment(*data.train)
        <augmented set: 128 points under 4 elements of cyclic(4)>
        >>> data.train.y.shape, data.std.local[0].item(), round(data.std.energy**2, 12)
        ((128, 25), 2.0, 0.32)
    """
    random_key(key)
    counts, sites = sizes_of(train, test, ood), _side(side) ** 2
    scale = math.sqrt(_variance(ood_variance, "ood_variance"))
    boolean(periodic, "periodic")
    action = _turns(side, groups.cyclic(4) if group is None else group)
    keys = jax.random.split(key, 3)
    draws = [jax.random.rademacher(k, (n, sites), default_float()) for k, n in zip(keys[:2], counts[:2], strict=True)]
    draws.append(scale * jax.random.normal(keys[2], (counts[2], sites)))
    sets = [LabelledSet(x, local_energies(x, periodic=periodic), action, action) for x in draws]
    stds = [ising_std(side, periodic=periodic, spin_variance=v) for v in (1.0, ood_variance)]
    return IsingData(sets[0], sets[1], sets[2], stds[0], stds[1])


def local_energies(spins: ArrayLike, /, *, periodic: bool = True) -> Num[jax.Array, "*lattices sites"]:
    """E(i) = Σ_{j∈𝒩(i)} s_i s_j on every site of flattened square lattices.

    Args:
        spins: any real numbers, [..., L²].
        periodic: whether the lattice is a torus.

    Returns:
        The local energies, of the shape of the spins.

    Raises:
        ValueError: the last axis is no flattened square of side 2 or more.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv.datasets import local_energies
        >>> up = jnp.ones(9)
        >>> local_energies(up).tolist()
        [4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0]
        >>> local_energies(up, periodic=False).tolist()
        [2.0, 3.0, 2.0, 3.0, 4.0, 3.0, 2.0, 3.0, 2.0]
    """
    spins, periodic = jnp.asarray(real_array(spins, "spins")), boolean(periodic, "periodic")
    sites = spins.shape[-1] if spins.ndim else 0
    side = math.isqrt(sites)
    if side < 2 or side**2 != sites:
        fix = "Flatten the lattice: its two axes become the last one."
        raise refusal("spins", expected="an array [..., L²] with L ≥ 2", got=f"shape {spins.shape}", fix=fix)
    return _energies(spins.reshape(*spins.shape[:-1], side, side), periodic).reshape(spins.shape)


def total_energy(local: ArrayLike, /) -> Float[jax.Array, "*lattices"]:
    """𝓔 = −(1/V) Σ_i E(i): minus the mean over the last axis, for labels and predictions alike.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv.datasets import local_energies, total_energy
        >>> float(total_energy(local_energies(jnp.ones(25))))
        -4.0
    """
    local = jnp.asarray(real_array(local, "local"))
    if local.ndim == 0:
        fix = "The mean is taken over the last axis, that of the sites."
        raise refusal("local", expected="an array [..., sites]", got="one number", fix=fix)
    return -jnp.mean(local, axis=-1)


def ising_std(side: int = 5, *, periodic: bool = True, spin_variance: float = 1.0) -> IsingStd:
    """Exact standard deviations of E(i) and 𝓔 for independent spins of mean 0, whatever their distribution.

    Either can be what a relative standard deviation is relative to: say which.

    Args:
        side: L, at least 2.
        periodic: whether the lattice is a torus.
        spin_variance: of a single spin: 1 for ±1.

    Example:
        >>> from ntk_equiv.datasets import ising_std
        >>> round(ising_std(5).energy, 6), round(ising_std(5, spin_variance=400.0).energy, 2)
        (0.565685, 226.27)
        >>> ising_std(3, periodic=False).local.round(3).tolist()
        [1.414, 1.732, 1.414, 1.732, 2.0, 1.732, 1.414, 1.732, 1.414]
    """
    sites, variance = _side(side) ** 2, _variance(spin_variance, "spin_variance")
    bonds, times = np.unique(_bonds(side, boolean(periodic, "periodic")), axis=0, return_counts=True)
    squares = np.bincount(bonds[:, 0], weights=times.astype(float) ** 2, minlength=sites)
    return IsingStd(variance * np.sqrt(squares), variance * math.sqrt(2 * squares.sum()) / sites)


def _bonds(side: int, periodic: bool) -> np.ndarray:
    """All pairs of a site and a neighbour of it, [bonds, 2]; a pair comes twice where two ways lead there."""
    site = np.arange(side**2).reshape(side, side)
    there = [np.stack([site, np.roll(site, 1, axis)], axis=-1)[_inner(axis, periodic)] for axis in (0, 1)]
    forth = np.concatenate([pairs.reshape(-1, 2) for pairs in there])
    return np.concatenate([forth, forth[:, ::-1]])


def _inner(axis: int, periodic: bool) -> tuple[slice, ...]:
    """The sites that have a neighbour before them along the axis."""
    return tuple(slice(0 if periodic or other != axis else 1, None) for other in (0, 1))


@partial(jax.jit, static_argnames="periodic")
def _energies(lattice: jax.Array, periodic: bool) -> jax.Array:
    """E(i) on lattices [..., L, L]."""
    return lattice * (_neighbours(lattice, -1, periodic) + _neighbours(lattice, -2, periodic))


def _neighbours(lattice: jax.Array, axis: int, periodic: bool) -> jax.Array:
    """The sum of the two neighbours along the axis; there is nothing beyond an open border."""
    if periodic:
        return jnp.roll(lattice, 1, axis) + jnp.roll(lattice, -1, axis)
    size, border = lattice.shape[axis], jnp.zeros_like(jax.lax.slice_in_dim(lattice, 0, 1, axis=axis))
    before = jnp.concatenate([border, jax.lax.slice_in_dim(lattice, 0, size - 1, axis=axis)], axis)
    after = jnp.concatenate([jax.lax.slice_in_dim(lattice, 1, size, axis=axis), border], axis)
    return before + after


def _turns(side: int, group: FiniteGroup) -> Representation:
    """Turns and flips of the lattice, as permutations of its flattened sites."""
    sources = np.broadcast_to(reps.rot90(group).spatial((side, side)).indices, (group.order, side**2))
    return reps.permutation(group, np.argsort(sources, axis=1))


def _side(side: int) -> int:
    if positive_integer(side, "side") < 2:
        raise refusal("side", expected="at least 2", got=side, fix="A single site would be its own neighbour.")
    return int(side)


def _variance(value: float, argument: str) -> float:
    if real_number(value, argument) <= 0:
        raise refusal(argument, expected="a positive number", got=value, fix="A variance is the square of a width.")
    return float(value)
