"""The equivariance error D(g) = f̂(ρ_X(g)x) − ρ_Y(g)f̂(x) of M members, without training any.

`orbit_deviation` evaluates the moments of one member at x and along its orbit, or draws members there, and returns the
law of D: `_orbit_law` says which it is. `expected_osp` counts for how many g the predicted class stays the same.
"""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv._check import positive_integer, random_key, real_array, refusal, single_time
from ntk_equiv._gram import kernel_diagonal, split_kernel
from ntk_equiv._positions import joint
from ntk_equiv._typing import Inputs, Scalar
from ntk_equiv.bounds._checks import Numbers, check_any_ensemble, single_members
from ntk_equiv.bounds._orbit_law import OrbitDeviation, SampledOrbitDeviation
from ntk_equiv.bounds._results import Sampled
from ntk_equiv.infinite import InfiniteEnsemble, SampledEnsemble, rounding_allowed
from ntk_equiv.reps import Representation, check_actions

# Samples whose covariance is asked for at once. Only the blocks on its diagonal are kept, one for each orbit.
SAMPLES_AT_ONCE = 192
# How far ρ_Y(g)ρ_Y(g)ᵀ may be from 1: matrices may come in single precision.
ORTHOGONAL = 1e-4
# From fewer members no covariance has an error.
FEWEST_MEMBERS = 3


def orbit_deviation(
    ens: InfiniteEnsemble | SampledEnsemble,
    x: Inputs,
    t: Scalar | None = None,
    *,
    rep_x: Representation | None = None,
    rep_y: Representation | None = None,
    elements: Numbers | None = None,
    readout: Numbers | None = None,
) -> OrbitDeviation:
    """The law of f̂(ρ_X(g)x) − ρ_Y(g)f̂(x), the equivariance error of the mean of M members, for all g.

    It needs no training, and is exact for an `InfiniteEnsemble`. In law, the orbit deviation of one member is √M times
    that of the mean of M members; a single realised ensemble scatters about it. For a `SampledEnsemble` it is estimated
    from the members that were drawn, and Gaussian as it is for the mean of many; `standard_error` belongs to it.

    Args:
        ens: the infinite ensemble, with any loss.
        x: test samples, [n, ...].
        t: one training time; None for that of the filter.
        rep_x: how the group acts on samples; as in the training data unless given.
        rep_y: how it acts on outputs; as in the training data unless `rep_x` or `readout` is given, then trivially.
        elements: some elements instead of all; matrices of a continuous group.
        readout: numbers [channels] or [channels, combined]: linear combinations to compare instead of the channels.

    Returns:
        A record: `expected(members)`, `probability(members, delta)`, `quantile(members, epsilon)` and
        `members(delta, epsilon)`, each for every sample. That of a `SampledEnsemble` is a `SampledOrbitDeviation`.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import InfiniteEnsemble, augment, bounds, groups, reps, stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(64, 1.5, 0.1), stax.Relu(), stax.Dense(1))
        >>> x, y = jnp.array([[1.0, 2.0], [0.5, -1.0]]), jnp.array([1.0, -1.0])
        >>> train = augment(x, y, reps.matrix(groups.SO2.finite(4)))
        >>> ens = InfiniteEnsemble(kernel_fn, train, method="dense")
        >>> law = bounds.orbit_deviation(ens, jnp.array([[1.0, 0.0], [3.0, 1.0]]), 2.0)
        >>> print(law.expected(1).round(3), law.expected(100).round(4))
        [0.067 0.152] [0.0067 0.0152]
    """
    single_time(t)
    ens = check_any_ensemble(ens)
    x = ens.check_samples(x)
    own = rep_x is None and readout is None
    rep_x = ens.rep_x if rep_x is None else rep_x
    if rep_x is None:
        fix = "The data of this ensemble are not augmented: say how the group acts on samples."
        raise refusal("rep_x", expected="given", got="nothing", fix=fix)
    rep_x, rep_y = check_actions(rep_x, ens.rep_y if own and rep_y is None else rep_y)
    chosen = rep_x.elements(elements)
    readout = _check_readout(readout, _output_shape(ens)[-1])
    orbits = _samples_with_orbits(x, rep_x, chosen)
    if isinstance(ens, SampledEnsemble):
        outputs, contributions = _members_on_orbits(ens, orbits, t)
        actions = _action_matrices(rep_y, chosen, outputs.shape[3:], readout)
        return SampledOrbitDeviation.from_members(outputs, contributions, actions, readout)
    mean, cov = _moments_on_orbits(ens, orbits, t)
    actions = _action_matrices(rep_y, chosen, mean.shape[2:], readout)
    return OrbitDeviation(mean, cov, actions, readout, covariance_rounding(ens, x))


def expected_osp(
    ens: InfiniteEnsemble | SampledEnsemble,
    x: Inputs,
    t: Scalar | None,
    members: Numbers,
    key: jax.Array,
    *,
    rep_x: Representation | None = None,
    rep_y: Representation | None = None,
    elements: Numbers | None = None,
    samples: int = 2000,
) -> Sampled:
    """The expected orbit-same-prediction of M members: for how many g the predicted class of ρ_X(g)x is that of x.

    The identity counts, so the number lies between 1 and |G|. It is predicted by sampling the joint law over the orbit.

    Args:
        ens: the infinite ensemble, with one output channel for each class. With another loss than the squared error,
            the mean of M members is taken for Gaussian.
        x: test samples, [n, ...].
        t: one training time; None for that of the filter.
        members: M.
        key: a JAX random key.
        rep_x: as for `orbit_deviation`.
        rep_y: as for `orbit_deviation`; if it permutes classes, the class of ρ_X(g)x is compared with the permuted one.
        elements: as for `orbit_deviation`.
        samples: how many ensembles are drawn for each sample.

    Returns:
        A `Sampled` record of [n] numbers.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from ntk_equiv import InfiniteEnsemble, augment, bounds, groups, reps, stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(64, 1.5, 0.1), stax.Relu(), stax.Dense(1))
        >>> train = augment(jnp.array([[1.0, 2.0], [0.5, -1.0]]), jnp.eye(2), reps.matrix(groups.SO2.finite(4)))
        >>> ens = InfiniteEnsemble(kernel_fn, train, method="dense")
        >>> x = jnp.array([[2.0, 1.0], [0.2, 0.1]])
        >>> for members in (1, 10, 100):
        ...     print(bounds.expected_osp(ens, x, 0.5, members, jax.random.key(0)).value.round(1))
        [2.5 2.8]
        [2.7 3. ]
        [3.7 3.6]
    """
    shape = _output_shape(check_any_ensemble(ens))
    if len(shape) != 1 or shape[0] < 2:
        fix = "Classification needs one output channel for each class, and one output for each sample."
        raise refusal("ens", expected="an ensemble with several channels", got=f"shape {shape}", fix=fix)
    members = single_members(members)
    random_key(key)
    positive_integer(samples, "samples")
    law = orbit_deviation(ens, x, t, rep_x=rep_x, rep_y=rep_y, elements=elements)
    return law.same_predictions(members, key=key, samples=samples)


def _check_readout(readout: Numbers | None, channels: int) -> np.ndarray | None:
    """Return the combinations of channels as columns, [channels, combined]."""
    if readout is None:
        return None
    readout = np.asarray(real_array(readout, "readout"), dtype=float)
    if readout.ndim not in (1, 2) or readout.shape[0] != channels:
        fix = "Pass one number for each channel, or several columns of them."
        raise refusal("readout", expected=f"of shape [{channels}] or [{channels}, …]", got=readout.shape, fix=fix)
    return readout.reshape(channels, -1)


def _output_shape(ens: InfiniteEnsemble | SampledEnsemble) -> tuple[int, ...]:
    """Return the shape of what the ensemble predicts for one sample, [*positions, channels]."""
    return (ens.channels,) if isinstance(ens, SampledEnsemble) else (ens.y.shape[1:] or (1,))


def _samples_with_orbits(x: Inputs, rep_x: Representation, elements: np.ndarray | jax.Array) -> Inputs:
    """Return each sample and then its images, [n, 1 + elements, ...]."""
    orbit = rep_x.orbit(x, elements)
    return jax.tree.map(lambda one, many: jnp.concatenate([one[None], many]).swapaxes(0, 1), x, orbit)


def _portions(orbits: Inputs) -> Iterator[Inputs]:
    """Yield samples with their orbits in portions, all in one row: [portion · (1 + elements), ...]."""
    n, size = jax.tree.leaves(orbits)[0].shape[:2]
    parts = -(-n // max(1, SAMPLES_AT_ONCE // size))
    step = max(1, -(-n // max(1, parts)))  # parts of one size, compiled once
    for start in range(0, n, step):
        yield jax.tree.map(lambda leaf: _merge_axes(leaf[start : start + step]), orbits)  # noqa: B023


def _moments_on_orbits(ens: InfiniteEnsemble, orbits: Inputs, t: Scalar | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and the covariance of one member at samples and along their orbits.

    Shapes are [n, 1 + elements, *positions, channels] and [n, (1 + elements)·positions, the same].
    """
    size = jax.tree.leaves(orbits)[0].shape[1]
    means, covs = [], []
    for part in _portions(orbits):
        mean = np.asarray(ens.mean(part, t), dtype=float)
        mean = mean.reshape(-1, size, *(mean.shape[1:] or (1,)))
        cov = np.asarray(joint(ens.cov(part, t)), dtype=float)
        side = len(cov) // len(mean)
        covs += [cov[i * side : (i + 1) * side, i * side : (i + 1) * side] for i in range(len(mean))]
        means.append(mean)
    return np.concatenate(means), np.array(covs)


def _members_on_orbits(ens: SampledEnsemble, orbits: Inputs, t: Scalar | None) -> tuple[np.ndarray, np.ndarray]:
    """Return outputs of members, and what they contribute to the mean, [drawn, n, 1 + elements, channels]."""
    if ens.members < FEWEST_MEMBERS:
        fix = "Draw more: `ens.redrawn(key, members)`."
        raise refusal("ens", expected=f"with at least {FEWEST_MEMBERS} members", got=ens.members, fix=fix)
    # Members that count with their whole orbit have the same mean, and where it is equivariant, exactly so.
    steadier = ens.over_orbits() if ens.method == "reduced" else ens
    found = [(ens.outputs(part, t), steadier.contributions(part, t)) for part in _portions(orbits)]
    n, size = jax.tree.leaves(orbits)[0].shape[:2]
    outputs, contributions = (
        np.concatenate([np.asarray(values, dtype=float) for values in kind], axis=1).reshape(ens.members, n, size, -1)
        for kind in zip(*found, strict=True)
    )
    return outputs, contributions


def covariance_rounding(ens: InfiniteEnsemble, x: Inputs) -> float:
    """Return how much rounding may add to covariances at x: they are differences of terms as large as the prior."""
    prior = kernel_diagonal(split_kernel(ens.kernel_fn), x)
    return rounding_allowed(prior) * float(jnp.max(prior, initial=0.0))


def _action_matrices(
    rep_y: Representation, elements: np.ndarray | jax.Array, shape: tuple[int, ...], readout: np.ndarray | None
) -> np.ndarray:
    """Return ρ_Y(g) as matrices on what is compared of outputs of this shape, positions and channels together."""
    shape = shape if readout is None else (*shape[:-1], readout.shape[1])
    size = int(np.prod(shape))
    moved = rep_y.orbit(jnp.eye(size).reshape(size, *shape), elements)
    actions = np.asarray(moved, dtype=float).reshape(-1, size, size).swapaxes(1, 2)
    if np.abs(actions @ actions.swapaxes(1, 2) - np.eye(size)).max() > ORTHOGONAL:
        fix = "Deviations can only be compared along an orbit if ρ_Y keeps lengths."
        raise refusal("rep_y", expected="orthogonal", got=f"{rep_y}, which is not", fix=fix)
    return actions


def _merge_axes(leaf: jax.Array) -> jax.Array:
    return leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:])
