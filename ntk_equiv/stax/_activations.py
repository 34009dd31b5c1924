"""What activations have in common: the base classes of their rules.

For u, v jointly Gaussian with variances q, q' and covariance k, an activation φ has

    𝒦' = E[φ(u)φ(v)],        Θ' = Θ · E[φ'(u)φ'(v)]

and both expectations together are called its dual. Derive a new activation from

    `SmoothActivation`    if the dual is a function of k, q, q' and the gap of the cosine; define `dual`, and
                          `sample_factors` for what depends on one sample only
    `CosineActivation`    if it has a kink or a jump; define `per_pair`, starting from `incoming_gap`
    `DualActivation`      if the dual is a function of k, q and q', given by somebody else
    `Activation`          if nothing of that fits, as for quadrature
"""

import dataclasses
from abc import abstractmethod
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Float

from ntk_equiv._check import refusal
from ntk_equiv._typing import Array
from ntk_equiv.stax._network import Network, without_parameters
from ntk_equiv.stax._precision import align, cosine, gap_of, materialize, safe_sqrt
from ntk_equiv.stax._rule import Rule
from ntk_equiv.stax._state import Memo, Moments, PairState, Requirements, SampleState


class Activation(Rule):
    """An elementwise nonlinearity."""

    @abstractmethod
    def second_moment(self, q: Float[Array, "n *grid"]) -> Float[Array, "n *grid"]:
        """Return E[φ(u)²] for u ~ N(0, q)."""

    def requirements_for(self, wanted: Requirements) -> Requirements:
        return Requirements(wanted.full_pairs, max(wanted.moments, Moments.VARIANCE))

    def remember(self, state: SampleState) -> Memo:
        return {"q": state.variance()}

    def describe_output(self, state: SampleState) -> SampleState:
        if not state.gaussian:
            raise refusal(
                "layers",
                expected="such that every activation follows a layer with weights (Dense or Conv)",
                got=f"{type(self).__name__} on an input that is not Gaussian at infinite width",
                fix="Put a Dense or Conv layer before it.",
            )
        return dataclasses.replace(state, gaussian=False)

    def per_sample(self, state: SampleState, wanted: Requirements) -> tuple[SampleState, Memo]:
        after = self.describe_output(state)
        memo = self.remember(state)
        if state.full:
            return super().per_sample(state, wanted)
        return after.with_cov(self.second_moment(state.variance())), memo


class DualActivation(Activation):
    """An activation that is given by its dual, a function of covariance and variances."""

    @abstractmethod
    def dual(self, k: Array, left: dict[str, Array], right: dict[str, Array]) -> tuple[Array, Array]:
        """Return E[φ(u)φ(v)] and E[φ'(u)φ'(v)] for covariance k; the memos come ready to broadcast against k."""

    def per_pair(self, state: PairState, left: Memo, right: Memo, wanted: Requirements) -> PairState:
        on_left = jax.tree.map(state.on_left, left)
        on_right = jax.tree.map(state.on_right, right)
        k = align(state.nngp, on_left["q"], on_right["q"])
        nngp, derivative = self.dual(k, on_left, on_right)
        ntk = None if state.ntk is None else state.ntk * derivative
        if wanted.stored:
            nngp, ntk = materialize((nngp, ntk), left["q"])
        return dataclasses.replace(state, nngp=nngp, ntk=ntk, gap=None)


class CosineActivation(Activation):
    """An activation whose kernels are sensitive to cosines close to ±1, so that it asks for their gap.

    Activations with a kink or a jump at zero always are. Smooth ones are at large variances, where they look kinked.
    """

    def sample_factors(self, q: Array, root: Array) -> dict[str, Array]:
        """Return what `per_pair` has to know about samples; `root` is √q, also where q overflows or underflows."""
        return {"q": q, "root": root, "inverse_root": jnp.where(root > 0, 1 / jnp.where(root > 0, root, 1), 0)}

    def std_after(self, root: Array) -> Array | None:
        """Return √E[φ²] where it is known although q = root² overflows or underflows."""
        return None

    def requirements_for(self, wanted: Requirements) -> Requirements:
        return dataclasses.replace(super().requirements_for(wanted), gap=True)

    def remember(self, state: SampleState) -> Memo:
        return self.sample_factors(state.variance(), state.std())

    def per_sample(self, state: SampleState, wanted: Requirements) -> tuple[SampleState, Memo]:
        after, memo = super().per_sample(state, wanted)
        if state.root is None or after.cov is None or after.full:
            return after, memo
        return dataclasses.replace(after, root=self.std_after(state.root)), memo

    def incoming_gap(self, state: PairState, left: dict[str, Array], right: dict[str, Array]) -> Array:
        """Return the gap that the layers before passed on, or else that of 𝒦; memos come ready to broadcast.

        A signal that vanishes has no direction. Its cosines count as 0, which gives φ' at zero the mean of both sides,
        as automatic differentiation does in finite networks. Layers in between may not know that, so it is done here.
        """
        if state.gap is None:
            return gap_of(cosine(state.nngp, left["q"], left["inverse_root"], right["q"], right["inverse_root"]))
        return jnp.where((left["inverse_root"] > 0) & (right["inverse_root"] > 0), state.gap, 1)


class SmoothActivation(CosineActivation):
    """An activation that is given by its dual, a function of covariance, variances and the gap of the cosine."""

    # Whether E[φ'φ'] may underflow to 0 where Θ overflows, or the other way round. Then the product counts as 0.
    zero_times_infinity_is_zero = False

    @abstractmethod
    def dual(self, k: Array, gap: Array, left: dict[str, Array], right: dict[str, Array]) -> tuple[Array, ...]:
        """Return E[φ(u)φ(v)], and E[φ'(u)φ'(v)] in one or more factors; the memos come ready to broadcast.

        Several factors help where Θ · E[φ'φ'] is a number although E[φ'φ'] alone underflows.
        """

    def second_moment(self, q: Array) -> Array:
        factors = self.sample_factors(q, safe_sqrt(q))
        return self.dual(q, jnp.zeros_like(q), factors, factors)[0]

    def per_sample(self, state: SampleState, wanted: Requirements) -> tuple[SampleState, Memo]:
        after, memo = super().per_sample(state, wanted)
        if state.full:
            return after, memo
        # Once more, because the memo knows √q beyond the range of q.
        moment = self.dual(memo["q"], jnp.zeros_like(memo["q"]), memo, memo)[0]
        return after.with_cov(moment, root=after.root), memo

    def per_pair(self, state: PairState, left: Memo, right: Memo, wanted: Requirements) -> PairState:
        on_left = jax.tree.map(state.on_left, left)
        on_right = jax.tree.map(state.on_right, right)
        k = align(state.nngp, on_left["q"], on_right["q"])
        nngp, *slopes = self.dual(k, self.incoming_gap(state, on_left, on_right), on_left, on_right)
        ntk = state.ntk
        if ntk is not None:
            for slope in slopes:
                lost = ((slope == 0) & jnp.isinf(ntk)) | ((ntk == 0) & jnp.isinf(slope))
                ntk = jnp.where(lost, 0, ntk * slope) if self.zero_times_infinity_is_zero else ntk * slope
        if wanted.stored:
            nngp, ntk = materialize((nngp, ntk), left["q"])
        return dataclasses.replace(state, nngp=nngp, ntk=ntk, gap=None)


def elementwise(function: Callable[[Array], Array], limit: Activation) -> Network:
    """Return the layer that applies `function` to each entry, and whose rule is `limit`."""
    return without_parameters(lambda shape: shape, function, limit)
