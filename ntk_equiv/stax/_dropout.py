"""Dropout: each entry is kept with probability p and divided by it, or set to zero.

    𝒦'(x, x)(s, s) = 𝒦(x, x)(s, s) / p,   all other entries as they were;      Θ' likewise

The factors m/p of the entries have mean one. They are independent, except that a sample has the same factors as itself:
E[m²]/p² is 1/p. So the kernels jump where two samples coincide. A kernel knows samples by their values: inputs that
agree up to rounding count as the same sample, under the same mask.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ntk_equiv._check import one_of, real_number, refusal
from ntk_equiv._typing import Array, Scalar
from ntk_equiv.stax._composition import Unchanged
from ntk_equiv.stax._network import Network, network
from ntk_equiv.stax._precision import SNAP
from ntk_equiv.stax._rule import Certificate, Rule
from ntk_equiv.stax._state import Memo, PairState, Requirements, SampleState, frozen_pytree


@frozen_pytree
class Mask(Rule):
    """Random factors of mean one, drawn for every sample and position."""

    rate: Scalar

    @property
    def certificate(self) -> Certificate:
        """The kernels jump at coincident samples."""
        return Certificate(dot_product=False, nonnegative=False, smooth=False)

    def requirements_for(self, wanted: Requirements) -> Requirements:
        return dataclasses.replace(wanted, gap=False)

    def describe_output(self, state: SampleState) -> SampleState:
        if not state.wide:
            raise refusal(
                "layers",
                expected="such that dropout follows a layer with weights",
                got="dropout of inputs",
                fix="Their number is finite, so kernels would be random. Put a Dense or Conv layer before it.",
            )
        return dataclasses.replace(state, gaussian=False)

    def remember(self, state: SampleState) -> Memo:
        inputs = {"nodes": state.nodes, "adjacency": state.adjacency}
        return {name: leaf.reshape(leaf.shape[0], -1) for name, leaf in inputs.items() if leaf is not None}

    def per_sample(self, state: SampleState, wanted: Requirements) -> tuple[SampleState, Memo]:
        after, memo = self.describe_output(state), self.remember(state)
        if state.cov is None:
            return after, memo
        if not state.full:
            return after.with_cov(state.variance() / self.rate), memo
        everywhere = jnp.ones((1,) * state.cov.ndim, bool)
        return after.with_cov(self.divide_by_rate(state.cov, everywhere, full=True), full=True), memo

    def per_pair(self, state: PairState, left: Memo, right: Memo, wanted: Requirements) -> PairState:
        same = _coincident(left["nodes"], right["nodes"])
        if "adjacency" in left:  # Groups permute edges, which leaves no rounding errors.
            same = same & jnp.all(left["adjacency"][:, None] == right["adjacency"][None], -1)
        same = same.reshape(same.shape + (1,) * (state.nngp.ndim - 2))
        nngp = self.divide_by_rate(state.nngp, same, full=state.full)
        ntk = None if state.ntk is None else self.divide_by_rate(state.ntk, same, full=state.full)
        return dataclasses.replace(state, nngp=nngp, ntk=ntk, gap=None)

    def divide_by_rate(self, k: Array, same: Array, *, full: bool) -> Array:
        """Return `k` with entries of the same sample and position divided by the rate."""
        if full:
            for axis in range(1 if k.ndim % 2 else 2, k.ndim, 2):
                equal = jnp.eye(k.shape[axis], dtype=bool)
                same = same & equal.reshape((1,) * axis + equal.shape + (1,) * (k.ndim - axis - 2))
        return jnp.where(same, k / jnp.asarray(self.rate, k.dtype), k)


def Dropout(rate: Scalar, mode: str = "train") -> Network:
    """Random zeros: each entry is kept with probability `rate` and divided by it.

    The kernels are those of a network whose masks are drawn anew for each sample. The covariance of different samples
    does not change; variances are divided by `rate`. Inputs that inner products cannot tell apart, closer than about
    8e-8 of their norm in float64 and 2e-3 in float32, count as one sample, wherever in `x1` and `x2` they stand.
    (neural-tangents goes by index: it changes the diagonal if `x1` and `x2` are the same array, and nothing else. The
    finite network draws a mask for each sample of the batch, so that repeated samples have different masks there.)

    In mode "train" `apply_fn` needs a key, `apply_fn(params, x, rng=key)`, which `serial` and `parallel` split among
    their layers; `apply_fn(params, x, mode="test")` leaves out the noise of all layers. The output is not Gaussian: the
    next activation has to come after the next layer with weights.

    Args:
        rate: the probability with which an entry is *kept*; above 0 and at most 1.
        mode: "train", or "test" to pass everything on unchanged.

    Raises:
        ValueError: `rate` is not such a probability, `mode` is unknown, inputs would be dropped, or a key is missing.

    Example:
        >>> from ntk_equiv import stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(64), Dropout(0.5), stax.Dense(1))
        >>> print(kernel_fn(jnp.array([[1.0], [2.0]]), None, "nngp"))
        [[2. 2.]
         [2. 8.]]
    """
    rate = real_number(rate, "rate")
    if not 0 < rate <= 1:
        fix = "It is the probability with which an entry is kept."
        raise refusal("rate", expected="above 0 and at most 1", got=rate, fix=fix)
    train = one_of(mode, ("train", "test"), "mode") == "train"

    def apply(params: tuple, x: Array, *, rng: Any = None, mode: str = "train", **kwargs: Any) -> Array:
        if not train or mode == "test":
            return x
        if rng is None:
            raise refusal(
                "rng",
                expected="a random key for `Dropout`",
                got=None,
                fix='Call `apply_fn(params, x, rng=key)`, or without noise `apply_fn(params, x, mode="test")`.',
            )
        return jnp.where(jax.random.bernoulli(rng, rate, x.shape), x / rate, 0)

    return network(lambda key, shape: (shape, ()), apply, Mask(rate) if train else Unchanged())


def _coincident(a: Array, b: Array) -> Array:
    """Return which samples of `a` and `b`, `[n, features]`, inner products cannot tell apart, `[n1, n2]`.

    >>> print(_coincident(jnp.eye(2), jnp.array([[1.0, 1e-9], [1.0, 0.1]])))
    [[ True False]
     [False False]]
    """
    tolerance = float(jnp.finfo(a.dtype).eps) * max(SNAP, a.shape[1] ** 0.5)
    squares = jnp.sum(a**2, 1)[:, None] + jnp.sum(b**2, 1)[None, :]
    products = jnp.matmul(a, b.T, precision=lax.Precision.HIGHEST)
    return squares - 2 * products <= tolerance * squares
