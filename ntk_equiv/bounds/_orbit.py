"""The equivariance error of M members, without training any: from an infinite ensemble to the law of the error.

f̂(ρ_X(g)x) − ρ_Y(g)f̂(x) is Gaussian; its moments are in `_orbit_law`, what can be asked of them in `_orbit_deviation`.
"""

from typing import Any

import jax
import numpy as np

from ntk_equiv._check import random_key, real_array, refusal, single_time
from ntk_equiv._typing import Inputs
from ntk_equiv.bounds import _orbit_law, _ranges
from ntk_equiv.bounds._orbit_deviation import OrbitDeviation
from ntk_equiv.bounds._records import Sampled
from ntk_equiv.infinite import InfiniteEnsemble
from ntk_equiv.reps import Representation, check_actions


def orbit_deviation(
    ens: InfiniteEnsemble,
    x: Inputs,
    t: Any = None,
    *,
    rep_x: Representation | None = None,
    rep_y: Representation | None = None,
    elements: Any = None,
    readout: Any = None,
) -> OrbitDeviation:
    """The exact law of f̂(ρ_X(g)x) − ρ_Y(g)f̂(x), the equivariance error of the mean of M members, for all g.

    What it says about members and ensembles needs no training: the orbit deviation of one member is √M times that of
    the mean of M members, in law; a single realised ensemble scatters about it.

    Args:
        ens: the infinite ensemble.
        x: test points, [n, ...].
        t: one training time; None for that of the filter.
        rep_x: how the group acts on points; as in the training data unless given.
        rep_y: how it acts on outputs; as in the training data unless `rep_x` or `readout` is given, then trivially.
        elements: some elements instead of all; matrices of a continuous group.
        readout: numbers [channels] or [channels, combined], a linear combination of the channels to look at instead.

    Returns:
        A record: `expected(members)`, `probability(members, delta)`, `quantile(members, epsilon)` and
        `members(delta, epsilon)`, each for every point.

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
    x = _ranges.ensemble(ens).check_samples(x)
    own = rep_x is None and readout is None
    rep_x = ens.rep_x if rep_x is None else rep_x
    if rep_x is None:
        fix = "The data of this ensemble are not augmented: say how the group acts on points."
        raise refusal("rep_x", expected="given", got="nothing", fix=fix)
    rep_x, rep_y = check_actions(rep_x, ens.rep_y if own and rep_y is None else rep_y)
    chosen = rep_x.elements(elements)
    readout = _checked_readout(readout, 1 if ens.y.ndim == 1 else ens.y.shape[-1])
    mean, cov = _orbit_law.orbit_moments(ens, x, t, rep_x, chosen)
    shape = mean.shape[2:] if readout is None else (*mean.shape[2:-1], readout.shape[1])
    actions = _orbit_law.action_matrices(rep_y, chosen, shape)
    if np.abs(actions @ actions.swapaxes(1, 2) - np.eye(actions.shape[1])).max() > 1e-4:
        fix = "Sizes of deviations mean the same at all points of an orbit only if ρ_Y keeps lengths."
        raise refusal("rep_y", expected="orthogonal", got=f"{rep_y}, which is not", fix=fix)
    return OrbitDeviation(mean, cov, actions, readout, _orbit_law.rounding_of(ens, x))


def expected_osp(
    ens: InfiniteEnsemble,
    x: Inputs,
    t: Any,
    members: Any,
    key: jax.Array,
    *,
    rep_x: Representation | None = None,
    rep_y: Representation | None = None,
    elements: Any = None,
    samples: int = 2000,
) -> Sampled:
    """The expected orbit-same-prediction of M members: for how many g the predicted class of ρ_X(g)x is that of x.

    The identity counts, so that it lies between 1 and |G|. Predicted by sampling the joint law over the orbit.

    Args:
        ens: the infinite ensemble, with one output channel for each class.
        x: test points, [n, ...].
        t: one training time; None for that of the filter.
        members: M.
        key: a JAX random key.
        rep_x: as for `orbit_deviation`.
        rep_y: as for `orbit_deviation`; where it permutes the classes, so are the predictions compared.
        elements: as for `orbit_deviation`.
        samples: how many ensembles are drawn for each point.

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
    shape = _ranges.ensemble(ens).y.shape[1:]
    if len(shape) != 1 or shape[0] < 2:
        fix = "Classification needs one output channel for each class, and one output for each point."
        raise refusal("ens", expected="an ensemble with several channels", got=f"shape {shape}", fix=fix)
    random_key(key)
    law = orbit_deviation(ens, x, t, rep_x=rep_x, rep_y=rep_y, elements=elements)
    return law.same_predictions(members, key=key, samples=samples)


def _checked_readout(readout: Any, channels: int) -> np.ndarray | None:
    if readout is None:
        return None
    readout = np.asarray(real_array(readout, "readout"), dtype=float)
    if readout.ndim not in (1, 2) or readout.shape[0] != channels:
        fix = "One number for each channel, or several columns of them."
        raise refusal("readout", expected=f"of shape [{channels}] or [{channels}, …]", got=readout.shape, fix=fix)
    return readout.reshape(channels, -1)
