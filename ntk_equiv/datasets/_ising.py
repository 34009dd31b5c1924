"""The Ising model on a square lattice, with its energy as the function to learn.

For spins s_i on an L × L lattice with V = L² positions and 𝒩(i) the neighbours of i along the axes,

    E(i) = Σ_{j∈𝒩(i)} s_i s_j       `local_energies`, the labels, V channels
    𝓔    = −(1/V) Σ_i E(i)          `total_energy`

With A_ij the number of times j is a neighbour of i, E(i) = Σ_j A_ij s_i s_j. If the spins are independent, of mean 0
and variance v, and no position is its own neighbour, then the products over different bonds are uncorrelated, of mean 0
and variance v². Hence

    Var E(i) = v² Σ_j A_ij²,     Var 𝓔 = v² (2/V²) Σ_ij A_ij²       `ising_std`

For v = 1 on the periodic 5 × 5 lattice, E(i) has the standard deviation 2, and 𝓔 has √0.32 ≈ 0.566. Gerken & Kessel
divide by 2 and call it the standard deviation of 𝓔. Their main text speaks of the mean of 𝓔, which is 0.
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
from ntk_equiv.datasets._labelled_set import LabelledSet, check_sizes, default_float
from ntk_equiv.groups import FiniteGroup
from ntk_equiv.reps import Representation


class IsingStd(NamedTuple):
    """Exact standard deviations of the energies of independent random spins; all their means are 0.

    Attributes:
        local: those of the local energies E(i), [V].
        energy: that of the total energy 𝓔.

    Example:
        >>> from ntk_equiv.datasets import ising_std
        >>> std = ising_std(3)
        >>> std.local.tolist(), round(std.energy, 4)
        ([2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0], 0.9428)
    """

    local: Float[np.ndarray, "positions"]
    energy: float


class IsingData(NamedTuple):
    """Spin configurations with their local energies.

    Attributes:
        train: configurations of uniform spins ±1.
        test: other configurations of the same kind.
        ood: configurations of Gaussian spins.
        std: exact standard deviations of the energies in `train` and `test`.
        ood_std: exact standard deviations of the energies in `ood`.

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
    """Return training, test and out-of-distribution sets of the Ising model, as in Gerken & Kessel.

    Samples are flattened lattices [n, L²], labels the local energies [n, L²]. Quarter turns permute the channels of
    both. Now and then a configuration is symmetric. It then appears in the augmented set more than once, which makes
    the Gram matrix singular.

    Args:
        key: a JAX random key.
        train: the size of the training set.
        test: the size of the test set.
        ood: the size of the set with spins from N(0, ood_variance).
        side: L, at least 2. On a periodic lattice of side 2 each neighbour counts twice.
        periodic: whether the lattice is a torus; otherwise positions on the border have fewer neighbours.
        ood_variance: the variance of the Gaussian spins.
        group: the symmetry, by default `cyclic(4)`; any group that `reps.rot90` takes.

    Returns:
        The three sets, each ready for `augment(*data.train)`, and the exact standard deviations of the energies.

    Example:
        >>> import jax
        >>> from ntk_equiv import augment
        >>> from ntk_equiv.datasets import ising
        >>> data = ising(jax.random.key(0))
        >>> augment(*data.train)
        <augmented set: 128 samples under 4 elements of cyclic(4)>
        >>> data.train.y.shape, data.std.local[0].item(), round(data.std.energy**2, 12)
        ((128, 25), 2.0, 0.32)
    """
    random_key(key)
    counts, positions = check_sizes(train, test, ood), _check_side(side) ** 2
    scale = math.sqrt(_check_variance(ood_variance, "ood_variance"))
    boolean(periodic, "periodic")
    action = _lattice_action(side, groups.cyclic(4) if group is None else group)
    keys = jax.random.split(key, 3)
    draws = [
        jax.random.rademacher(k, (n, positions), default_float()) for k, n in zip(keys[:2], counts[:2], strict=True)
    ]
    draws.append(scale * jax.random.normal(keys[2], (counts[2], positions)))
    sets = [LabelledSet(x, local_energies(x, periodic=periodic), action, action) for x in draws]
    stds = [ising_std(side, periodic=periodic, spin_variance=v) for v in (1.0, ood_variance)]
    return IsingData(sets[0], sets[1], sets[2], stds[0], stds[1])


def local_energies(spins: ArrayLike, /, *, periodic: bool = True) -> Num[jax.Array, "*lattices positions"]:
    """Return E(i) = Σ_{j∈𝒩(i)} s_i s_j at every position of flattened square lattices.

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
    positions = spins.shape[-1] if spins.ndim else 0
    side = math.isqrt(positions)
    if side < 2 or side**2 != positions:
        fix = "Flatten the lattice: its two axes become the last one."
        raise refusal("spins", expected="an array [..., L²] with L ≥ 2", got=f"shape {spins.shape}", fix=fix)
    return _energies(spins.reshape(*spins.shape[:-1], side, side), periodic).reshape(spins.shape)


def total_energy(local: ArrayLike, /) -> Float[jax.Array, "*lattices"]:
    """Return 𝓔 = −(1/V) Σ_i E(i), minus the mean over the last axis, of labels or predictions.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv.datasets import local_energies, total_energy
        >>> float(total_energy(local_energies(jnp.ones(25))))
        -4.0
    """
    local = jnp.asarray(real_array(local, "local"))
    if local.ndim == 0:
        fix = "The mean is taken over the last axis, which counts positions."
        raise refusal("local", expected="an array [..., positions]", got="one number", fix=fix)
    return -jnp.mean(local, axis=-1)


def ising_std(side: int = 5, *, periodic: bool = True, spin_variance: float = 1.0) -> IsingStd:
    """Return the exact standard deviations of E(i) and 𝓔 for independent spins of mean 0, whatever their law.

    A relative standard deviation may be relative to either: say which one you mean.

    Args:
        side: L, at least 2.
        periodic: whether the lattice is a torus.
        spin_variance: the variance of a single spin: 1 for ±1.

    Example:
        >>> from ntk_equiv.datasets import ising_std
        >>> round(ising_std(5).energy, 6), round(ising_std(5, spin_variance=400.0).energy, 2)
        (0.565685, 226.27)
        >>> ising_std(3, periodic=False).local.round(3).tolist()
        [1.414, 1.732, 1.414, 1.732, 2.0, 1.732, 1.414, 1.732, 1.414]
    """
    positions, variance = _check_side(side) ** 2, _check_variance(spin_variance, "spin_variance")
    bonds, times = np.unique(_bonds(side, boolean(periodic, "periodic")), axis=0, return_counts=True)
    squares = np.bincount(bonds[:, 0], weights=times.astype(float) ** 2, minlength=positions)
    return IsingStd(variance * np.sqrt(squares), variance * math.sqrt(2 * squares.sum()) / positions)


def _bonds(side: int, periodic: bool) -> np.ndarray:
    """Return all pairs of a position and a neighbour of it, [bonds, 2]; twice where two ways lead there."""
    position = np.arange(side**2).reshape(side, side)
    there = [
        np.stack([position, np.roll(position, 1, axis)], axis=-1)[_with_predecessor(axis, periodic)] for axis in (0, 1)
    ]
    forth = np.concatenate([pairs.reshape(-1, 2) for pairs in there])
    return np.concatenate([forth, forth[:, ::-1]])


def _with_predecessor(axis: int, periodic: bool) -> tuple[slice, ...]:
    """Return the slice of positions that have a neighbour before them along the axis."""
    return tuple(slice(0 if periodic or other != axis else 1, None) for other in (0, 1))


@partial(jax.jit, static_argnames="periodic")
def _energies(lattice: jax.Array, periodic: bool) -> jax.Array:
    """Return E(i) on lattices [..., L, L]."""
    return lattice * (_sum_of_neighbours(lattice, -1, periodic) + _sum_of_neighbours(lattice, -2, periodic))


def _sum_of_neighbours(lattice: jax.Array, axis: int, periodic: bool) -> jax.Array:
    """Return the sum of the two neighbours along the axis; there is nothing beyond an open border."""
    if periodic:
        return jnp.roll(lattice, 1, axis) + jnp.roll(lattice, -1, axis)
    size, border = lattice.shape[axis], jnp.zeros_like(jax.lax.slice_in_dim(lattice, 0, 1, axis=axis))
    before = jnp.concatenate([border, jax.lax.slice_in_dim(lattice, 0, size - 1, axis=axis)], axis)
    after = jnp.concatenate([jax.lax.slice_in_dim(lattice, 1, size, axis=axis), border], axis)
    return before + after


def _lattice_action(side: int, group: FiniteGroup) -> Representation:
    """Return turns and flips of the lattice as permutations of its flattened positions."""
    sources = np.broadcast_to(reps.rot90(group).spatial((side, side)).indices, (group.order, side**2))
    return reps.permutation(group, np.argsort(sources, axis=1))


def _check_side(side: int) -> int:
    if positive_integer(side, "side") < 2:
        raise refusal("side", expected="at least 2", got=side, fix="A single position would be its own neighbour.")
    return int(side)


def _check_variance(value: float, argument: str) -> float:
    if real_number(value, argument) <= 0:
        raise refusal(argument, expected="a positive number", got=value, fix="A variance is the square of a width.")
    return float(value)
