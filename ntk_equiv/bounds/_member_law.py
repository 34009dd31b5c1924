"""Members whose class probabilities are asked for: their law, from which any number of them can be drawn.

Those of an `InfiniteEnsemble` are Gaussian, with the same covariance for every class, so that their mean is known
exactly. Of others nothing is known but that they can be drawn. Outputs become logits by a scale, 1/T for a temperature
T.
"""

import dataclasses
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from ntk_equiv._check import is_number, positive_integer, refusal, samples_in
from ntk_equiv._typing import Inputs, Scalar
from ntk_equiv.bounds._gaussian import covariance_root
from ntk_equiv.bounds._orbit_deviation import covariance_rounding
from ntk_equiv.infinite import InfiniteEnsemble

Array = np.ndarray


@runtime_checkable
class MembersToDraw(Protocol):
    """What has members that can be drawn: an infinite ensemble, trained on whatever loss."""

    def sample(self, key: jax.Array, x: Inputs, t: Any, members: int, /) -> Any:
        """Return outputs of so many members at the samples, [members, n, classes]."""


@dataclasses.dataclass(frozen=True, eq=False)
class GaussianMembers:
    """Members whose outputs are Gaussian and independent from class to class, as those of an `InfiniteEnsemble`.

    Attributes:
        mean: [n, classes].
        root: a root A of the covariance AAᵀ of one class, [n, anything].
    """

    mean: Array
    root: Array

    def draw(self, key: jax.Array, count: int) -> Array:
        """Draw the outputs of so many members, [count, n, classes]."""
        rng = np.random.default_rng(_entropy_of(key))
        noise = rng.standard_normal((self.root.shape[1], count * self.mean.shape[1]))
        outputs = (self.root @ noise).reshape(len(self.mean), count, -1).swapaxes(0, 1)
        return outputs + self.mean

    def at(self, places: Array) -> "GaussianMembers":
        """Return the law at some of the samples."""
        return GaussianMembers(self.mean[places], self.root[places])


@dataclasses.dataclass(frozen=True, eq=False)
class DrawnMembers:
    """Members that are known by draws alone, from `ens.sample`."""

    ens: MembersToDraw
    x: Inputs
    t: Any
    mean: None = None

    def draw(self, key: jax.Array, count: int) -> Array:
        """Draw the outputs of so many members, [count, n, classes]."""
        outputs = np.asarray(self.ens.sample(key, self.x, self.t, count), float)
        shape = (count, samples_in(self.x, "x"))
        if outputs.ndim != 3 or outputs.shape[:2] != shape or outputs.shape[2] < 2:
            _refuse_outputs(f"members of shape [{count}, {shape[1]}, classes]", f"shape {outputs.shape}")
        if not np.isfinite(outputs).all():
            _refuse_outputs("members with finite outputs", "NaN or infinity")
        return outputs


MemberLaw = GaussianMembers | DrawnMembers


def member_law(ens: Any, x: Inputs, t: Any) -> MemberLaw:
    """Return the law of members at these samples; its mean is None unless it is Gaussian."""
    # Of a class derived from it nothing is known but that it can be sampled.
    if type(ens) is InfiniteEnsemble:
        if ens.y.ndim != 2 or ens.y.shape[1] < 2:
            _refuse_outputs("an ensemble with one output for each class", f"labels of shape {ens.y.shape}")
        x = ens.check_samples(x)
        return gaussian_law(ens, x, ens.mean(x, t), ens.cov(x, t))
    if not callable(getattr(ens, "sample", None)):
        fix = "Make one with `InfiniteEnsemble(kernel_fn, train)`."
        raise refusal(
            "ens", expected="an ensemble with a method `sample`", got=type(ens).__name__, fix=fix, kind=TypeError
        )
    return DrawnMembers(ens, x, t)


def gaussian_law(ens: InfiniteEnsemble, x: Inputs, mean: Any, cov: Any) -> GaussianMembers:
    """Return the law of members from their mean [n, classes] and covariance [n, n] at these samples."""
    return GaussianMembers(np.asarray(mean, float), covariance_root(cov, covariance_rounding(ens, x)))


def _refuse_outputs(expected: str, got: str) -> None:
    fix = "Classification needs one output for each class, and two classes or more."
    raise refusal("ens", expected=expected, got=got, fix=fix)


def _entropy_of(key: jax.Array) -> list[int]:
    """Return the numbers in a key of JAX, of the old or the new kind."""
    new = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(key) if new else key).ravel().tolist()


def join_samples(x: Inputs, unknown: Inputs) -> Inputs:
    """Return both sets of samples as one, so that the same members are drawn at both."""
    samples_in(unknown, "unknown")
    shapes = [[np.shape(leaf)[1:] for leaf in jax.tree.leaves(tree)] for tree in (x, unknown)]
    same = str(jax.tree.structure(x)) == str(jax.tree.structure(unknown))
    if not same or shapes[0] != shapes[1]:
        fix = "The ensemble predicts both: make them alike."
        raise refusal("unknown", expected="samples like x", got=f"shapes {shapes[1]} with {shapes[0]}", fix=fix)
    return jax.tree.map(lambda a, b: jnp.concatenate([jnp.asarray(a), jnp.asarray(b)]), x, unknown)


# How it is asked


def check_scale(scale: Scalar) -> float:
    """Return what outputs are multiplied by as a `float`, if it is positive."""
    if not is_number(scale) or not float(scale) > 0:
        fix = "It is 1/T for a temperature T; 1 takes outputs as logits."
        raise refusal("scale", expected="one positive number", got=repr(scale), fix=fix)
    return float(scale)


def check_draws(draws: Any, fewest: int, *, fix: str) -> int:
    """Return how many members to draw, if that is enough to tell an error."""
    if positive_integer(draws, "draws") < fewest:
        raise refusal("draws", expected=f"at least {fewest}", got=draws, fix=fix)
    return int(draws)


def log_softmax(z: Array) -> Array:
    """Return log-probabilities from logits, whose last axis are classes."""
    return scipy.special.log_softmax(z, axis=-1)
