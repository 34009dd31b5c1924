"""How many members an ensemble needs, from its own variance: `min_ensemble_size` and its relatives, asked of theory."""

from typing import Any

import jax

from ntk_equiv._check import one_of, refusal, single_time
from ntk_equiv._positions import joint
from ntk_equiv._typing import Inputs
from ntk_equiv.bounds import _ranges
from ntk_equiv.bounds._members import min_ensemble_size
from ntk_equiv.bounds._simultaneous import METHODS, sampled_ensemble_size, simultaneous_ensemble_size
from ntk_equiv.infinite import InfiniteEnsemble


def required_members(
    ens: InfiniteEnsemble,
    x: Inputs,
    t: Any,
    delta: Any,
    epsilon: Any,
    *,
    simultaneous: str | None = None,
    bound: str = "exact",
    norm: str = "euclidean",
    key: jax.Array | None = None,
    samples: int = 20_000,
) -> Any:
    """The number of members whose mean is within δ of the infinite ensemble, with probability 1 − ε.

    Args:
        ens: the infinite ensemble, which knows the variance Σ_t(x).
        x: test points, [n, ...].
        t: one training time; None for that of the filter.
        delta: the tolerated deviation, in the units of the labels.
        epsilon: the probability of a larger one.
        simultaneous: None for each point by itself; "union", "sidak" or "sampled" for all points at once.
        bound: for single points, "exact", "tight" or "lemma".
        norm: of the deviation over output channels, "euclidean" or "max".
        key: for "sampled", a JAX random key.
        samples: for "sampled", the number of draws.

    Returns:
        Whole numbers in the shape of `ens.var(x, t)`; one `int` for all points at once, or its `Sampled` record.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import InfiniteEnsemble, bounds, filters, stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(64, 1.5, 0.1), stax.Relu(), stax.Dense(1))
        >>> ens = InfiniteEnsemble(kernel_fn, (jnp.eye(2), jnp.ones(2)), filters.gradient_flow(1.0))
        >>> x = jnp.array([[1.0, 0.0], [1.0, 1.0], [-1.0, 0.0]])
        >>> print(bounds.required_members(ens, x, 10.0, 0.1, 0.05))
        [  1  59 200]
        >>> bounds.required_members(ens, x, 10.0, 0.1, 0.05, simultaneous="sidak")
        201
    """
    single_time(t)
    _ranges.ensemble(ens)
    _ranges.positive(delta)
    _ranges.probability(epsilon)
    channels = 1 if ens.y.ndim == 1 else ens.y.shape[-1]
    settings: dict = {"channels": channels, "norm": norm}
    if simultaneous is None:
        return min_ensemble_size(ens.var(x, t), delta, epsilon, bound=bound, **settings)
    one_of(simultaneous, (*METHODS, "sampled"), "simultaneous")
    one_of(bound, ("exact",), "bound")
    if simultaneous != "sampled":
        return simultaneous_ensemble_size(ens.var(x, t), delta, epsilon, method=simultaneous, **settings)
    if key is None:
        raise refusal("key", expected="given for sampling", got="nothing", fix="Pass `jax.random.key(0)`, say.")
    cov = joint(ens.cov(x, t))
    return sampled_ensemble_size(cov, delta, epsilon, key=key, samples=samples, **settings)
