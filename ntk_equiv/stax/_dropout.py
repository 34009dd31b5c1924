"""Dropout: each entry is kept with probability p and divided by it, or set to zero.

    𝒦'(x, x)(s, s) = 𝒦(x, x)(s, s) / p,   all other entries as they were;      Θ' likewise

because the factors m/p of an entry have mean one and are independent, but for those of a sample with itself: E[m²]/p²
is 1/p. So the kernels jump where two samples coincide. A kernel knows samples by their values: inputs that agree up to
rounding count as the same sample, under the same mask.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ntk_equiv._check import one_of, real_number, refusal
from ntk_equiv._typing import Array, Scalar
from ntk_equiv.stax._arc import SNAP
from ntk_equiv.stax._certificate import Certificate
from ntk_equiv.stax._combinators import Unchanged
from ntk_equiv.stax._network import Network, network
from ntk_equiv.stax._rule import Rule, Trace, rule
from ntk_equiv.stax._state import Need, Pairs, Points


@rule
class Mask(Rule):
    """Random factors of mean one, of every sample and position its own."""

    rate: Any

    @property
    def certificate(self) -> Certificate:
        """The kernels jump at coincident samples."""
        return Certificate(dot_product=False, nonnegative=False, smooth=False)

    def need(self, need: Need) -> Need:
        return dataclasses.replace(need, gap=False)

    def output(self, points: Points) -> Points:
        if not points.wide:
            raise refusal(
                "layers",
                expected="such that dropout follows a layer with weights",
                got="dropout of inputs",
                fix="Their number is finite, so kernels would be random. Put a Dense or Conv layer before it.",
            )
        return dataclasses.replace(points, gaussian=False)

    def trace(self, points: Points) -> Trace:
        inputs = {"nodes": points.nodes, "adjacency": points.adjacency}
        return {name: leaf.reshape(leaf.shape[0], -1) for name, leaf in inputs.items() if leaf is not None}

    def points(self, points: Points, need: Need) -> tuple[Points, Trace]:
        after, trace = self.output(points), self.trace(points)
        if points.cov is None:
            return after, trace
        if not points.full:
            return after.with_cov(points.variance() / self.rate), trace
        everywhere = jnp.ones((1,) * points.cov.ndim, bool)
        return after.with_cov(self.scaled(points.cov, everywhere, full=True), full=True), trace

    def pairs(self, pairs: Pairs, left: Trace, right: Trace, need: Need) -> Pairs:
        same = _coincident(left["nodes"], right["nodes"])
        if "adjacency" in left:  # Groups permute edges, which leaves no rounding errors.
            same = same & jnp.all(left["adjacency"][:, None] == right["adjacency"][None], -1)
        same = same.reshape(same.shape + (1,) * (pairs.nngp.ndim - 2))
        nngp = self.scaled(pairs.nngp, same, full=pairs.full)
        ntk = None if pairs.ntk is None else self.scaled(pairs.ntk, same, full=pairs.full)
        return dataclasses.replace(pairs, nngp=nngp, ntk=ntk, gap=None)

    def scaled(self, k: Array, same: Array, *, full: bool) -> Array:
        """`k` with entries of the same sample and position divided by the rate."""
        if full:
            for axis in range(1 if k.ndim % 2 else 2, k.ndim, 2):
                equal = jnp.eye(k.shape[axis], dtype=bool)
                same = same & equal.reshape((1,) * axis + equal.shape + (1,) * (k.ndim - axis - 2))
        return jnp.where(same, k / jnp.asarray(self.rate, k.dtype), k)


def Dropout(rate: Scalar, mode: str = "train") -> Network:
    """Random zeros: each entry is kept with probability `rate` and divided by it.

    The kernels are those of a network whose masks are drawn anew for each sample. The covariance of different samples
    is not changed; variances are divided by `rate`. Inputs that inner products cannot tell apart, closer than about
    8e-8 of their norm in float64 and 2e-3 in float32, count as one sample, wherever in `x1` and `x2` they stand.
    (neural-tangents goes by position: it changes the diagonal if `x1` and `x2` are the same array, and nothing else.
    The finite network draws a mask for each row, so repeated rows have different masks there.)

    In mode "train" `apply_fn` wants a key, `apply_fn(params, x, rng=key)`, which `serial` and `parallel` split among
    their layers. What follows is not Gaussian: the next activation comes after the next layer with weights.

    Args:
        rate: the probability with which an entry is *kept*, above 0 and at most 1.
        mode: "train", or "test" to pass everything on unchanged.

    Raises:
        ValueError: `rate` is no such probability, `mode` is unknown, inputs would be dropped, or a key is missing.

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

    def apply(params: tuple, x: Array, *, rng: Any = None, **kwargs: Any) -> Array:
        if not train:
            return x
        if rng is None:
            raise refusal(
                "rng",
                expected="a random key for `Dropout`",
                got=None,
                fix='Call `apply_fn(params, x, rng=key)`, or use `Dropout(rate, mode="test")`. Training by '
                "`ensembles.train` does not support dropout: leave it out.",
            )
        return jnp.where(jax.random.bernoulli(rng, rate, x.shape), x / rate, 0)

    return network(lambda key, shape: (shape, ()), apply, Mask(rate) if train else Unchanged())


def _coincident(a: Array, b: Array) -> Array:
    """Which rows of `a` and `b` agree up to what inner products can tell, `[n1, n2]`.

    >>> print(_coincident(jnp.eye(2), jnp.array([[1.0, 1e-9], [1.0, 0.1]])))
    [[ True False]
     [False False]]
    """
    tolerance = float(jnp.finfo(a.dtype).eps) * max(SNAP, a.shape[1] ** 0.5)
    squares = jnp.sum(a**2, 1)[:, None] + jnp.sum(b**2, 1)[None, :]
    products = jnp.matmul(a, b.T, precision=lax.Precision.HIGHEST)
    return squares - 2 * products <= tolerance * squares
