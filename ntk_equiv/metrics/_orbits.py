"""How invariant predictions are, measured on orbits.

Predictions come as an array `[members, order, n, ...]`: of every member, at all images ρ_X(g)x of every sample. Each
metric is a number m(x) for one function f and one sample,

    `orbit_std`                         std_g f(ρ_X(g)x), averaged over the outputs
    `relative_orbit_std`                the same, divided by a normaliser (RSD)
    `orbit_same_prediction`             Σ_g 1[argmax f(ρ_X(g)x) = argmax f(x)]   (OSP, between 1 and |G|)
    `continuous_orbit_same_prediction`  ∫ dg 1[argmax f(ρ_X(g)x) = argmax f(x)]   (between 0 and 1, from Haar samples)
    `orbit_mse`                         mean_g |ρ_Y(g)⁻¹ f(ρ_X(g)x) − f(x)|²
    `symmetric_kl`                      mean_g ½ [KL(p_g ‖ p) + KL(p ‖ p_g)],   p = softmax f(x)

and is reported as an `OrbitMetric`: averaged over the samples, for the mean of all members and for each member alone.
A single function, such as the mean of an infinite ensemble, is an ensemble of one member: `predictions[None]`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ntk_equiv._check import describe, floating, is_concrete, is_number, refusal
from ntk_equiv._pytrees import dataclass_pytree
from ntk_equiv._typing import Array, Scalar

Predictions = Array | np.ndarray
QUANTILES = (0.25, 0.5, 0.75)


@dataclass_pytree
@dataclasses.dataclass(frozen=True, repr=False)
class OrbitMetric:
    """A metric averaged over samples, with standard errors over these samples (NaN if there is only one).

    It is a pytree. `batch` are the axes of `jax.vmap`, if a metric is mapped.

    Attributes:
        ensemble: the metric of the mean over members.
        ensemble_error: its standard error.
        members: the metric of each member.
        member_errors: their standard errors.
        points: the metric of the mean over members, at each sample.
        monte_carlo_error: the error of `ensemble` from drawing group elements; None if no elements were drawn.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import metrics
        >>> predictions = jnp.array([[[1.0], [3.0]], [[3.0], [1.0]]])      # two members, two elements, one sample
        >>> found = metrics.orbit_std(predictions)
        >>> float(found.ensemble), found.members.tolist()                 # each member changes, their mean does not
        (0.0, [1.0, 1.0])
        >>> found
        <orbit metric: 0 for the mean of 2 members, 1 for one of them, at 1 sample>
    """

    ensemble: Float[Array, "*batch"]
    ensemble_error: Float[Array, "*batch"]
    members: Float[Array, "*batch members"]
    member_errors: Float[Array, "*batch members"]
    points: Float[Array, "*batch n"]
    monte_carlo_error: Float[Array, "*batch"] | None = None

    def __repr__(self) -> str:
        arrays = all(isinstance(part, jax.Array | np.ndarray) for part in (self.ensemble, self.members, self.points))
        if not arrays or not is_concrete((self.ensemble, self.members)) or np.ndim(self.ensemble):
            return f"<orbit metric of shape {np.shape(self.ensemble)}>"  # mapped, traced, or used as a pytree
        members, n = self.members.shape[-1], self.points.shape[-1]
        error = "" if np.isnan(self.ensemble_error) else f" ± {float(self.ensemble_error):.2g}"
        return (
            f"<orbit metric: {float(self.ensemble):.3g}{error} for the mean of {members} member{'s' * (members != 1)}, "
            f"{float(np.mean(self.members)):.3g} for one of them, at {n} sample{'s' * (n != 1)}>"
        )

    @property
    def quantiles(self) -> Float[Array, "3"]:
        """The 25, 50 and 75 percent quantiles over members.

        Example:
            >>> import jax.numpy as jnp
            >>> from ntk_equiv.metrics import orbit_std
            >>> size = jnp.array([1., 2., 3., 4., 5.])[:, None, None]
            >>> print(orbit_std(jnp.concatenate([-size, size], axis=1)).quantiles)
            [2. 3. 4.]
        """
        return jnp.quantile(self.members, jnp.asarray(QUANTILES, self.members.dtype))


def orbit_std(predictions: Predictions, /) -> OrbitMetric:
    """The standard deviation across the orbit, averaged over the outputs: 0 for an invariant function.

    The orbit is the whole population, so squared deviations are divided by its size, not by its size less one.

    Args:
        predictions: `[members, order, n, ...]`.

    Returns:
        The metric, in the units of the predictions.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv.metrics import orbit_std
        >>> predictions = jnp.array([[[1.], [3.]], [[3.], [1.]]])  # two members that are wrong in opposite ways
        >>> found = orbit_std(predictions)
        >>> print(found.ensemble, found.members)
        0.0 [1. 1.]
    """
    return _measure(_std, _check_orbits(predictions))


def relative_orbit_std(predictions: Predictions, /, *, normalizer: Scalar) -> OrbitMetric:
    """The standard deviation across the orbit in units of `normalizer` (RSD).

    Args:
        predictions: `[members, order, n, ...]`.
        normalizer: the typical size of the target, a positive number. For an energy with mean 0, this is its standard
            deviation over the data, say, but not its mean.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv.metrics import relative_orbit_std
        >>> print(relative_orbit_std(jnp.array([[[1.], [3.]]]), normalizer=4.0).ensemble)
        0.25
    """
    if not is_number(normalizer) or (is_concrete(normalizer) and not float(normalizer) > 0):
        fix = "Pass the standard deviation, or the root mean square, of the target."
        raise refusal("normalizer", expected="one positive number", got=repr(normalizer), fix=fix)
    return _measure(lambda p: _std(p) / normalizer, _check_orbits(predictions))


def orbit_same_prediction(predictions: Predictions, /, *, identity: int = 0) -> OrbitMetric:
    """How many images of a sample are classified like the sample itself, which counts: between 1 and the order (OSP).

    Args:
        predictions: scores `[members, order, n, ..., classes]`. The ensemble classifies by their mean over members, so
            pass what your ensemble averages: probabilities or logits.
        identity: the index of the identity among the elements.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv.metrics import orbit_same_prediction
        >>> scores = jnp.eye(3)[jnp.array([[[0], [0], [1], [0]]])]  # four images of one sample, three of class 0
        >>> print(orbit_same_prediction(scores).ensemble)
        3.0
    """
    p = _check_scores(predictions)
    identity = _check_identity(identity, p.shape[1])
    return _measure(lambda p: _per_sample(jnp.sum(_same(p, p[identity]), 0)), p)


def continuous_orbit_same_prediction(predictions: Predictions, reference: Predictions, /) -> OrbitMetric:
    """The fraction of all rotations that leave the class of a sample unchanged, from elements of the Haar measure.

    Args:
        predictions: scores `[members, elements, n, ..., classes]` at samples moved by elements drawn from the Haar
            measure, for example by `groups.SO2.sample`.
        reference: scores `[members, n, ..., classes]` at the samples themselves.

    Returns:
        The metric, between 0 and 1, with the Monte Carlo error of the drawn elements, which all samples share.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv.metrics import continuous_orbit_same_prediction
        >>> scores = jnp.eye(2)[jnp.array([[[0], [0], [1], [0]]])]
        >>> found = continuous_orbit_same_prediction(scores, jnp.eye(2)[jnp.array([[0]])])
        >>> print(found.ensemble, found.monte_carlo_error)
        0.75 0.25
    """
    p, still = _check_scores(predictions), _check_reference(reference, predictions)
    same = _same(jnp.mean(p, 0), jnp.mean(still, 0))
    by_element = jnp.mean(same, tuple(range(1, same.ndim)))
    error = jnp.std(by_element, ddof=1) / jnp.sqrt(len(by_element)) if len(by_element) > 1 else jnp.asarray(jnp.nan)
    found = _measure(lambda p, still: _per_sample(jnp.mean(_same(p, still), 0)), p, still)
    return dataclasses.replace(found, monte_carlo_error=error)


def orbit_mse(
    predictions: Predictions, reference: Predictions, /, rep_y: Any = None, elements: Any = None
) -> OrbitMetric:
    """The mean square deviation of predictions along the orbit, turned back, from the one at the sample itself.

    Args:
        predictions: `[members, order, n, ..., channels]` at the samples moved by the elements.
        reference: `[members, n, ..., channels]` at the samples themselves.
        rep_y: how the group acts on outputs, a representation; None if they are invariant.
        elements: the elements that moved the samples: integers of a finite group, all by default, or orthogonal
            matrices `[order, d, d]` of a continuous one.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import groups, reps
        >>> from ntk_equiv.metrics import orbit_mse
        >>> swap = reps.regular(groups.cyclic(2))
        >>> predictions = jnp.array([[[[1., 2.]], [[2., 4.]]]])  # the second should be 2, 1
        >>> print(orbit_mse(predictions, predictions[:, 0], swap).ensemble)
        2.25
    """
    p, still = _check_orbits(predictions), _check_reference(reference, predictions)
    if rep_y is not None:
        back = _inverse_elements(rep_y, elements, p.shape[1])
        p = jax.vmap(rep_y, in_axes=(0, 1), out_axes=1)(back, p)
    return _measure(lambda p, still: _per_sample(jnp.mean(jnp.square(p - still[None]), 0)), p, still)


def symmetric_kl(logits: Predictions, /, *, identity: int = 0) -> OrbitMetric:
    """The symmetrised Kullback–Leibler divergence between predicted distributions over the orbit, in nats.

    ½ [KL(p_g ‖ p) + KL(p ‖ p_g)], averaged over all g other than the identity, at which it vanishes. The ensemble
    predicts the mean of the distributions of its members.

    Args:
        logits: `[members, order, n, ..., classes]`.
        identity: the index of the identity among the elements.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv.metrics import symmetric_kl
        >>> p = jnp.array([[[[0.5, 0.5]], [[0.75, 0.25]]]])
        >>> print(symmetric_kl(jnp.log(p)).ensemble.round(6), (jnp.log(3) / 8).round(6))
        0.137327 0.137327
    """
    log_p = jax.nn.log_softmax(_check_scores(logits, "logits"), -1)
    identity = _check_identity(identity, log_p.shape[1])

    def divergence(log_p: Array) -> Array:
        others = jnp.delete(log_p, identity, axis=0, assume_unique_indices=True)
        still = log_p[identity][None]
        # (p_g − p)(log p_g − log p), with 0 log 0 = 0 in the sum where both vanish
        difference = jnp.exp(others) - jnp.exp(still)
        terms = jnp.where(difference == 0, 0, difference * (others - still))
        return _per_sample(jnp.mean(jnp.sum(terms, -1) / 2, 0))

    return _measure(divergence, log_p, mean=lambda p: jax.nn.logsumexp(p, 0) - jnp.log(len(p)))


def _measure(metric: Callable[..., Array], *arrays: Array, mean: Callable = lambda p: jnp.mean(p, 0)) -> OrbitMetric:
    """Apply `metric`, which gives a number per sample for one function, to the mean over members and to each member."""
    points = metric(*(mean(array) for array in arrays))
    # One member at a time: all at once would hold the differences of all predictions in memory.
    each = jax.lax.map(lambda one: metric(*one), arrays)
    return OrbitMetric(jnp.mean(points), _error(points), jnp.mean(each, -1), _error(each), points)


def _error(values: Float[Array, "*rest n"]) -> Float[Array, "*rest"]:
    """Return the standard error of the mean over samples."""
    n = values.shape[-1]
    return jnp.std(values, -1, ddof=1) / n**0.5 if n > 1 else jnp.full(values.shape[:-1], jnp.nan, values.dtype)


def _std(p: Float[Array, "order n ..."]) -> Float[Array, "n"]:
    """Return the standard deviation across the orbit of each sample."""
    return _per_sample(jnp.std(p, 0))


def _same(p: Array, still: Array) -> Array:
    """Return where classes agree, as 0 and 1; a score that is not a number agrees with nothing."""
    agree = (jnp.argmax(p, -1) == jnp.argmax(still, -1)[None]) & ~jnp.isnan(p).any(-1)
    return jnp.where(jnp.isnan(still).any(-1)[None], jnp.nan, agree).astype(p.dtype)


def _per_sample(values: Float[Array, "n ..."]) -> Float[Array, "n"]:
    """Return the average over the outputs at each sample."""
    return jnp.mean(values, tuple(range(1, values.ndim)))


def _check_orbits(predictions: Any, argument: str = "predictions") -> Array:
    """Return `predictions` if they are those of several members on orbits."""
    p = floating(predictions, argument)
    if p.ndim < 3 or 0 in p.shape:
        fix = f"One function alone is an ensemble of one: `{argument}[None]`."
        raise refusal(argument, expected="[members, order, n, ...], none empty", got=f"shape {p.shape}", fix=fix)
    return p


def _check_scores(predictions: Any, argument: str = "predictions") -> Array:
    """Return `predictions` if they are also scores of classes."""
    p = _check_orbits(predictions, argument)
    if p.ndim < 4 or p.shape[-1] < 2:
        fix = "The last axis holds the scores of the classes."
        raise refusal(argument, expected="[members, order, n, ..., classes]", got=f"shape {p.shape}", fix=fix)
    return p


def _check_identity(identity: Any, order: int) -> int:
    """Return the index of the identity if it is one of so many elements."""
    if isinstance(identity, bool) or not isinstance(identity, int | np.integer) or not 0 <= identity < order:
        fix = "Give the index of the identity along the axis of group elements."
        raise refusal("identity", expected=f"between 0 and {order - 1}", got=repr(identity), fix=fix)
    return int(identity)


def _check_reference(reference: Any, predictions: Any) -> Array:
    """Return `reference` if it has one prediction for each orbit of `predictions`."""
    still, expected = floating(reference, "reference"), (predictions.shape[0], *predictions.shape[2:])
    if still.shape != expected:
        fix = "Predict at the samples themselves, which the group has not moved."
        raise refusal("reference", expected=f"of shape {expected}", got=f"shape {still.shape}", fix=fix)
    return still


def _inverse_elements(rep_y: Any, elements: Any, order: int) -> Any:
    """Return the inverse of every element, integers or matrices; of all of a finite group if none are given."""
    if not callable(rep_y) or not hasattr(rep_y, "group"):
        fix = "Make one of a group, as in `reps.regular(groups.cyclic(4))`; leave it out for invariant outputs."
        raise refusal("rep_y", expected="a representation", got=describe(rep_y), fix=fix, kind=TypeError)
    if elements is None or np.ndim(elements) == 1:
        elements = np.arange(rep_y.group.order) if elements is None else np.asarray(elements)
        back = np.asarray(rep_y.group.inverse)[elements]
    else:
        back = jnp.swapaxes(jnp.asarray(elements), 1, 2)
    if len(back) != order:
        fix = "Pass `elements` if only some elements moved the samples."
        raise refusal("elements", expected=f"{order}, as predictions", got=f"{len(back)} elements", fix=fix)
    return back
