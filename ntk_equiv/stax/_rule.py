"""How a layer transforms kernels.

A rule is the infinite-width half of a layer. It says what it needs of its input (`need`, asked backwards from the
output), what it must remember about each sample (`trace`), and how a pair of samples is transformed given the two
traces (`pairs`):

    linear with weights      𝒦' = σ_w² L𝒦 + σ_b²,    Θ' = σ_w² LΘ + 𝒦'       (in NTK parameterization)
    linear, parameter-free   𝒦' = L𝒦,                Θ' = LΘ
    activation φ             𝒦' = E[φ(u)φ(v)],       Θ' = Θ · E[φ'(u)φ'(v)],      (u, v) ~ N(0, 𝒦)

L is the identity (dense), a mean over filter taps (convolution), a sum over windows (pooling) or over neighbours
(graphs). Rules are pytrees whose leaves are the hyperparameters, so that kernels differentiate in those too.
"""

import dataclasses
from abc import abstractmethod
from typing import Any, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
from jaxtyping import Float

from ntk_equiv._check import refusal
from ntk_equiv._pytrees import dataclass_pytree
from ntk_equiv._typing import Array
from ntk_equiv.stax._arc import gap_of
from ntk_equiv.stax._certificate import NOTHING_BUT_SMOOTH, Certificate
from ntk_equiv.stax._gap import cosine
from ntk_equiv.stax._parameterization import NTK, Parameterization
from ntk_equiv.stax._state import COVARIANCE, VARIANCE, Fixed, Need, Pairs, Points, aligned, materialize, safe_sqrt

Trace = Any
T = TypeVar("T")


def static(**kwargs: Any) -> Any:
    """A dataclass field that belongs to the structure of a rule, not to its differentiable leaves."""
    return dataclasses.field(metadata={"static": True}, **kwargs)


@dataclass_transform(frozen_default=True, field_specifiers=(static,))
def rule(cls: type[T]) -> type[T]:
    """Class decorator: a frozen dataclass that is a pytree."""
    return dataclass_pytree(dataclasses.dataclass(frozen=True)(cls))


class Rule:
    """One layer's action on kernels. Subclasses define `pairs`, and the rest where the default does not fit."""

    # Whether what comes in, and what goes out, may be several branches.
    takes_branches = False
    makes_branches = False

    @property
    def certificate(self) -> Certificate:
        """What is known about the kernel as a function of its inputs."""
        return NOTHING_BUT_SMOOTH

    def need(self, need: Any) -> Any:
        """What this layer must be given so that it can deliver `need`."""
        return need

    def widening(self) -> int:
        """By how much the number of positions may grow on the way through, for choosing a tile size."""
        return 1

    def after_flattening(self) -> "Rule | None":
        """What is left to do on flattened inputs, if this begins with flattening them."""
        return None

    def trace(self, points: Any) -> Trace:
        """What `pairs` will want to know about each sample: a pytree of arrays `[n, ...]`."""
        return ()

    def output(self, points: Any) -> Any:
        """The metadata of the output (grid, whether Gaussian), with `cov` still that of the input."""
        return points

    @abstractmethod
    def pairs(self, pairs: Any, left: Trace, right: Trace, need: Any) -> Any:
        """The kernels after this layer, from those before it and the traces of the two samples.

        `need` is what will be asked of the result; only compositions look at it, to pass it on.
        """

    def points(self, points: Any, need: Any) -> tuple[Any, Trace]:
        """The per-sample quantities after this layer, and the trace of each sample."""
        trace = self.trace(points)
        after = self.output(points)
        if points.cov is None:
            return after, trace
        alone = Pairs(points.cov, None, None, full=points.full, with_ntk=False, paired=True)
        alone = self.pairs(alone, trace, trace, need)
        return after.with_cov(alone.nngp, full=alone.full), trace


class Linear(Rule):
    """A layer that is linear in its input: subclasses define `spread`, the action of L on kernels."""

    def need(self, need: Need) -> Need:
        return dataclasses.replace(need, gap=False, stored=True)

    def spread(self, k: Array, pairs: Pairs, left: Trace, right: Trace) -> Array:
        """L applied to one kernel array laid out as `pairs.nngp`."""
        return k

    def full_after(self, pairs: Pairs) -> bool:
        """Whether the output still distinguishes pairs of positions."""
        return pairs.full

    def pairs(self, pairs: Pairs, left: Trace, right: Trace, need: Need) -> Pairs:
        nngp = self.spread(pairs.nngp, pairs, left, right)
        ntk = None if pairs.ntk is None else self.spread(pairs.ntk, pairs, left, right)
        return dataclasses.replace(pairs, nngp=nngp, ntk=ntk, gap=None, full=self.full_after(pairs))


class Trainable(Linear):
    """A linear layer with Gaussian weights and biases.

    Subclasses have fields `W_var` and `b_var` (`None` without biases). Variances, not standard deviations, because
    squares taken in float32 would be off by the same rounding in every layer. `channels` is the width of the finite
    layer, and `parameterization` how its weights enter.
    """

    W_var: Any
    b_var: Any
    channels: int
    parameterization: Parameterization = NTK

    def output(self, points: Points) -> Points:
        return dataclasses.replace(points, gaussian=True, channels=self.channels, wide=True, fan_outs=0)

    def fan_in(self, points: Points) -> int:
        """How many inputs each output sums over."""
        return points.width()

    def trace(self, points: Points) -> Trace:
        return {"fan_in": Fixed(self.fan_in(points))} if self.parameterization.standard else {}

    def pairs(self, pairs: Pairs, left: Trace, right: Trace, need: Need) -> Pairs:
        after = super().pairs(pairs, left, right, need)
        weight = jnp.asarray(self.W_var, after.nngp.dtype)
        nngp = weight * after.nngp
        if self.b_var is not None:
            nngp = nngp + jnp.asarray(self.b_var, nngp.dtype)
        if not after.with_ntk:
            return dataclasses.replace(after, nngp=nngp)
        own = nngp
        if self.parameterization.standard:
            own = self.parameterization.inputs(left["fan_in"].value) * after.nngp
            own = own if self.b_var is None else own + 1
        ntk = own if after.ntk is None else weight * after.ntk + own
        return dataclasses.replace(after, nngp=nngp, ntk=ntk)


class Activation(Rule):
    """An elementwise nonlinearity."""

    def factors(self, q: Array) -> dict[str, Array]:
        """Per-sample quantities that `pairs` wants, from the variance q of the preactivation."""
        return {"q": q}

    @abstractmethod
    def second_moment(self, q: Float[Array, "n *grid"]) -> Float[Array, "n *grid"]:
        """E[φ(u)²] for u ~ N(0, q)."""

    def need(self, need: Need) -> Need:
        return Need(need.full_pairs, max(need.points, VARIANCE))

    def trace(self, points: Points) -> Trace:
        return self.factors(points.variance())

    def output(self, points: Points) -> Points:
        if not points.gaussian:
            raise refusal(
                "layers",
                expected="such that every activation follows a layer with weights (Dense or Conv)",
                got=f"{type(self).__name__} on an input that is not Gaussian at infinite width",
                fix="Put a Dense or Conv layer before it.",
            )
        return dataclasses.replace(points, gaussian=False)

    def points(self, points: Points, need: Need) -> tuple[Points, Trace]:
        after = self.output(points)
        trace = self.trace(points)
        if points.full:
            return super().points(points, need)
        return after.with_cov(self.second_moment(points.variance())), trace


class DualActivation(Activation):
    """An activation that is given by its dual, a function of covariance and variances."""

    @abstractmethod
    def dual(self, k: Array, left: dict[str, Array], right: dict[str, Array]) -> tuple[Array, Array]:
        """E[φ(u)φ(v)] and E[φ'(u)φ'(v)] for covariance k; the factors come ready to broadcast against k."""

    def pairs(self, pairs: Pairs, left: Trace, right: Trace, need: Need) -> Pairs:
        on_left = jax.tree.map(pairs.on_left, left)
        on_right = jax.tree.map(pairs.on_right, right)
        k = aligned(pairs.nngp, on_left["q"], on_right["q"])
        nngp, derivative = self.dual(k, on_left, on_right)
        ntk = None if pairs.ntk is None else pairs.ntk * derivative
        if need.stored:
            nngp, ntk = materialize((nngp, ntk), left["q"])
        return dataclasses.replace(pairs, nngp=nngp, ntk=ntk, gap=None)


class CosineActivation(Activation):
    """An activation whose kernels are sensitive to cosines close to ±1: it asks for their gap.

    Those with a kink or a jump at zero always are. Smooth ones are at large variances, where they look kinked.
    """

    def trace(self, points: Points) -> Trace:
        return self.scales(points.variance(), points.deviation())

    def deviation(self, root: Array) -> Array | None:
        """√E[φ²] where it is known although q = root² is too large or small for a number."""
        return None

    def points(self, points: Points, need: Need) -> tuple[Points, Trace]:
        after, trace = super().points(points, need)
        if points.root is None or after.cov is None or after.full:
            return after, trace
        return dataclasses.replace(after, root=self.deviation(points.root)), trace

    def scales(self, q: Array, root: Array) -> dict[str, Array]:
        """Per-sample quantities that `pairs` wants; `root` is √q, also where q is too large or small for a number."""
        return {"q": q, "root": root, "inverse_root": jnp.where(root > 0, 1 / jnp.where(root > 0, root, 1), 0)}

    def need(self, need: Need) -> Need:
        return dataclasses.replace(super().need(need), gap=True)

    def gap(self, pairs: Pairs, left: dict[str, Array], right: dict[str, Array]) -> Array:
        """The gap of the cosine that came along, or else that of 𝒦; the factors come ready to broadcast against it.

        A signal that vanishes has no direction: its cosines count as 0, which gives φ' at zero the mean of both sides,
        as automatic differentiation does in finite networks. Layers on the way pass on what they were given.
        """
        if pairs.gap is None:
            return gap_of(cosine(pairs.nngp, left["q"], left["inverse_root"], right["q"], right["inverse_root"]))
        return jnp.where((left["inverse_root"] > 0) & (right["inverse_root"] > 0), pairs.gap, 1)


class SmoothActivation(CosineActivation):
    """An activation that is given by its dual as a function of covariance, variances and the gap of the cosine."""

    # Whether E[φ'φ'] may be 0 where Θ is too large for a number, or the other way round: the product is 0.
    extreme = False

    @abstractmethod
    def dual(self, k: Array, gap: Array, left: dict[str, Array], right: dict[str, Array]) -> tuple[Array, ...]:
        """E[φ(u)φ(v)], and E[φ'(u)φ'(v)] in one or more factors; what is per sample comes ready to broadcast.

        In factors, where Θ · E[φ'φ'] is a number although E[φ'φ'] is too small to be one.
        """

    def second_moment(self, q: Array) -> Array:
        scales = self.scales(q, safe_sqrt(q))
        return self.dual(q, jnp.zeros_like(q), scales, scales)[0]

    def points(self, points: Points, need: Need) -> tuple[Points, Trace]:
        after, trace = super().points(points, need)
        if points.full:
            return after, trace
        moment = self.dual(trace["q"], jnp.zeros_like(trace["q"]), trace, trace)[0]
        return after.with_cov(moment, root=after.root), trace

    def pairs(self, pairs: Pairs, left: Trace, right: Trace, need: Need) -> Pairs:
        on_left = jax.tree.map(pairs.on_left, left)
        on_right = jax.tree.map(pairs.on_right, right)
        k = aligned(pairs.nngp, on_left["q"], on_right["q"])
        nngp, *slopes = self.dual(k, self.gap(pairs, on_left, on_right), on_left, on_right)
        ntk = pairs.ntk
        if ntk is not None:
            for slope in slopes:
                lost = ((slope == 0) & jnp.isinf(ntk)) | ((ntk == 0) & jnp.isinf(slope))
                ntk = jnp.where(lost, 0, ntk * slope) if self.extreme else ntk * slope
        if need.stored:
            nngp, ntk = materialize((nngp, ntk), left["q"])
        return dataclasses.replace(pairs, nngp=nngp, ntk=ntk, gap=None)


def needs_all_positions(need: Need) -> Need:
    """The need of a layer that mixes positions: all pairs of them, for samples too if those are wanted."""
    return Need(True, COVARIANCE if need.points else need.points)
