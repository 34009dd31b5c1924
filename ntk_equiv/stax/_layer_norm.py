"""Layer normalisation.

    finite     y = (x − mean) / √(ε + variance)                      over the channels, and over positions if asked for
    infinite   𝒦'(s, s') = 𝒦(s, s') / √((ε + q(s)) (ε + q'(s')))      Θ' from Θ in the same way

with q(s) = 𝒦(x, x)(s, s), averaged over the positions that are normalised together: with infinitely many channels the
mean is zero and the variance is q. Each signal is multiplied by a number of its own, so cosines and their gaps stay.
Over samples, q is averaged over them too.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ntk_equiv._check import is_listed, refusal, scalar
from ntk_equiv._typing import Array, Scalar
from ntk_equiv.stax._network import Network, check_axes, network, with_channels_at
from ntk_equiv.stax._precision import in_precision, inverse_root
from ntk_equiv.stax._rule import EVERYTHING, NOTHING_BUT_SMOOTH, Certificate, Rule
from ntk_equiv.stax._signal import BatchRule, Signal
from ntk_equiv.stax._state import Memo, Moments, PairState, Requirements, SampleState, frozen_pytree, static


@frozen_pytree
class Normalization(Rule):
    """Division of every signal by its standard deviation over `axis`."""

    eps: Scalar
    axis: tuple[int, ...] = static()

    @property
    def certificate(self) -> Certificate:
        """For vectors only the norms change; otherwise positions matter."""
        return EVERYTHING if len(self.axis) == 1 else NOTHING_BUT_SMOOTH

    def requirements_for(self, wanted: Requirements) -> Requirements:
        return dataclasses.replace(wanted, moments=max(wanted.moments, Moments.VARIANCE))

    def describe_output(self, state: SampleState) -> SampleState:
        _check_gaussian(state.gaussian)
        return state

    def remember(self, state: SampleState) -> Memo:
        q = state.variance()
        together = _normalized_axes(self.axis, q.ndim + 1)[:-1]
        mean = _mean_of_unmasked(q, together, state.mask) if together else q
        return jnp.broadcast_to(inverse_root(mean + jnp.asarray(self.eps, q.dtype)), q.shape)

    def per_sample(self, state: SampleState, wanted: Requirements) -> tuple[SampleState, Memo]:
        after, scale = super().per_sample(state, wanted)
        if state.residue is None or after.cov is None:
            return after, scale
        return after.with_cov(after.cov, residue=state.residue * jnp.square(scale)), scale

    def per_pair(self, state: PairState, left: Memo, right: Memo, wanted: Requirements) -> PairState:
        factor = state.on_left(left) * state.on_right(right)
        ntk = None if state.ntk is None else state.ntk * factor
        return dataclasses.replace(state, nngp=state.nngp * factor, ntk=ntk)


@frozen_pytree
class NormalizationOverSamples(BatchRule):
    """The same where samples are normalised together, alone or with positions."""

    eps: Scalar
    axis: tuple[int, ...] = static()

    def change(self, signals: Signal, **settings: Any) -> Signal:
        _check_gaussian(signals.is_gaussian)
        together = _normalized_axes(self.axis, len(signals.shape1 or ()))[:-1]

        def factors(state: SampleState) -> Array:
            q = state.variance()
            mean = _mean_of_unmasked(q, together, state.mask)
            return jnp.broadcast_to(inverse_root(mean + jnp.asarray(self.eps, q.dtype)), q.shape)

        left, right = map(factors, signals.side_states())

        def scaled(k: Array | None, a: Array, b: Array, paired: bool = False) -> Array | None:
            if k is None:
                return None
            state = dataclasses.replace(signals.pair_state(), paired=paired)
            return k * state.on_left(a) * state.on_right(b)

        pairs = {"nngp": scaled(signals.nngp, left, right), "ntk": scaled(signals.ntk, left, right)}
        covs = [scaled(k, a, a, signals.diagonal_batch) for k, a in ((signals.cov1, left), (signals.cov2, right))]
        return signals.replace(**pairs, cov1=covs[0], cov2=covs[1])


def LayerNorm(
    axis: int | Sequence[int] = -1, eps: Scalar = 1e-12, batch_axis: int = 0, channel_axis: int = -1
) -> Network:
    """Layer normalisation: subtract the mean and divide by the standard deviation, without parameters.

    Its kernels need a Gaussian input, so it stands between a layer with weights and the activation.

    Args:
        axis: axes of the input that are normalised together: the channels, and spatial axes if they are named too. With
            that of samples, 0, it is a layer that mixes samples.
        eps: added to the variance.
        batch_axis: 0, the only choice.
        channel_axis: the last axis, -1 or its number.

    Example:
        >>> from ntk_equiv import stax
        >>> _, apply_fn, kernel_fn = stax.serial(stax.Dense(64), stax.LayerNorm())
        >>> x = jnp.array([[3.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
        >>> print(kernel_fn(x, None, "nngp").round(4))
        [[1.     0.     0.7071]
         [0.     1.     0.7071]
         [0.7071 0.7071 1.    ]]
        >>> print(stax.LayerNorm().apply_fn((), jnp.array([[1.0, 3.0]])))
        [[-1.  1.]]
    """
    check_axes(batch_axis, channel_axis)
    scalar(eps, "eps", at_least=0, fix="It is zero or a positive number; leave it out to have 1e-12.")
    axes = _check_axis(axis)

    def apply(params: tuple, x: Array, *, mask: Array | None = None, **kwargs: Any) -> Array:
        together = _normalized_axes(axes, x.ndim)
        mask = None if mask is None else jnp.broadcast_to(mask[..., None], x.shape)
        centred = x - _mean_of_unmasked(x, together, mask)
        variance = _mean_of_unmasked(jnp.square(centred), together, mask)
        return centred / jnp.sqrt(variance + in_precision(eps, x))

    rule = NormalizationOverSamples(eps, axes) if 0 in axes else Normalization(eps, axes)
    layer = network(lambda key, shape: (shape, ()), apply, rule)
    return with_channels_at(channel_axis, layer)


def _mean_of_unmasked(x: Array, axes: tuple[int, ...], mask: Array | None) -> Array:
    """Return means along axes, which stay with length one; masked entries do not count."""
    if mask is None:
        return jnp.mean(x, axes, keepdims=True)
    count = jnp.maximum(jnp.sum(~mask, axes, keepdims=True), 1)
    return jnp.sum(jnp.where(mask, 0, x), axes, keepdims=True) / count.astype(x.dtype)


def _check_axis(axis: Any) -> tuple[int, ...]:
    axes = (axis,) if isinstance(axis, int | np.integer) else axis
    if not is_listed(axes) or not len(axes) or any(not isinstance(a, int | np.integer) for a in axes):
        fix = "Leave it out for the channels; (1, 2, -1) normalises images over their pixels too."
        raise refusal("axis", expected="the number of an axis, or a tuple of such", got=repr(axis), fix=fix)
    return tuple(int(a) for a in axes)


def _normalized_axes(axes: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Return `axes` of an input of that rank counted from the front, in order; the channels must be among them."""
    counted = sorted({axis + rank if axis < 0 else axis for axis in axes})
    if not counted or counted[-1] != rank - 1 or counted[0] < 0 or (counted[0] == 0 and 0 not in axes):
        raise refusal(
            "axis",
            expected=f"the channels of an input with {rank} axes, {rank - 1} or -1, alone or with other axes",
            got=axes,
            fix="Normalise over channels; call the axis of samples 0.",
        )
    return tuple(counted)


def _check_gaussian(gaussian: bool) -> None:
    if not gaussian:
        raise refusal(
            "layers",
            expected="such that every LayerNorm follows a layer with weights",
            got="LayerNorm on an input that is not Gaussian at infinite width",
            fix="Put it behind Dense, Conv or GlobalSelfAttention, before the activation.",
        )
