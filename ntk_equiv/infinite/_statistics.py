"""What follows from mean and variance: errors, accuracies, and the Bayesian limit for comparison."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ntk_equiv import filters
from ntk_equiv._check import is_concrete, real_array, refusal
from ntk_equiv._gram import evaluate_gram
from ntk_equiv._positions import apart, joint
from ntk_equiv._typing import Inputs, Scalar, SplitKernel
from ntk_equiv.infinite import _moments
from ntk_equiv.infinite._blocks import GramBlocks, irreps_of, solve_blocks
from ntk_equiv.infinite._training_set import TrainingSet
from ntk_equiv.solvers import FilterAboveNoise, Solver


class Posterior(NamedTuple):
    """The law of a Gaussian process given data.

    Attributes:
        mean: in the shape of the labels.
        cov: [m, m], with outputs on a grid [m, m, h, h', w, w'].

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import InfiniteEnsemble, stax
        >>> ens = InfiniteEnsemble(stax.Dense(1).kernel_fn, (jnp.array([[1.0]]), jnp.array([2.0])))
        >>> law = ens.nngp_posterior(jnp.array([[3.0]]))        # a line through the origin and (1, 2)
        >>> print(law.mean.round(6), law.cov.round(6))
        [6.] [[0.]]
    """

    mean: Float[Array, "m *outputs"]
    cov: Float[Array, "m m *positions"]


class ExpectedError(NamedTuple):
    """An expected mean squared error, in its two parts; arrays over times if there are several.

    Attributes:
        bias: the mean square of μ − y.
        variance: the mean variance of the ensemble's prediction.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv.infinite import ExpectedError
        >>> error = ExpectedError(bias=jnp.array(0.25), variance=jnp.array(0.5))
        >>> float(error.total)
        0.75
    """

    bias: Float[Array, "*times"]
    variance: Float[Array, "*times"]

    @property
    def total(self) -> Float[Array, "*times"]:
        """Their sum, the expected mean squared error."""
        return self.bias + self.variance


class Estimate(NamedTuple):
    """A number known from sampling.

    Attributes:
        value: the estimate.
        standard_error: of the estimate.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv.infinite import Estimate
        >>> estimate = Estimate(jnp.array(0.8), jnp.array(0.01))
        >>> f"{estimate.value:.2f} ± {estimate.standard_error:.2f}"
        '0.80 ± 0.01'
    """

    value: Float[Array, ""]
    standard_error: Float[Array, ""]


def expected_mse(mean: jax.Array, variance: jax.Array, y: jax.Array, members: int) -> ExpectedError:
    """Return bias and variance of the mean squared error, from mean [T, m, ...] and variance of single members."""
    bias = jnp.mean((mean - y[None]) ** 2, axis=tuple(range(1, mean.ndim)))
    return ExpectedError(bias, jnp.mean(variance, axis=tuple(range(1, variance.ndim))) / members)


def expected_accuracy(
    key: jax.Array, mean: jax.Array, variance: jax.Array, y: jax.Array, members: int, samples: int
) -> Estimate:
    """Estimate the fraction of test samples whose largest output is at the right class, over draws of ensembles.

    An expectation of a sum over samples needs the law at each sample alone, so samples are drawn independently.
    """
    hits = _hits(key, mean, jnp.sqrt(variance / members), jnp.argmax(y, axis=-1), samples)
    rate = hits / samples
    return Estimate(jnp.mean(rate), jnp.sqrt(jnp.sum(rate * (1 - rate) / samples)) / rate.size)


def nngp_posterior(kernel: SplitKernel, data: TrainingSet, solver: Solver, x: Inputs, noise: Scalar) -> Posterior:
    """Return 𝒦(x, X)(𝒦 + noise)⁻¹y and 𝒦(x, x') − 𝒦(x, X)(𝒦 + noise)⁻¹𝒦(X, x')."""
    blocks, f = _gaussian_process(kernel, data, solver, noise)
    prior = evaluate_gram(kernel, x, None, "nngp")
    end = jnp.full(1, jnp.inf, blocks.scale.dtype)
    mean: Any = 0
    cov = joint(prior)
    for (irrep, block), (hat,) in zip(blocks, _moments.coefficients_of_rows(kernel, blocks, x, ("nngp",)), strict=True):
        mean = mean + irrep.weight * _moments.mean_of_block(block, f, end, hat, data.channels)
        K = block.solved.to_basis(hat)
        cov = cov - irrep.weight * _moments.real_inner(block.solved.apply(f, end, K)[0], K)
    return Posterior(mean.reshape(-1, *data.y.shape[1:]), apart((cov + cov.T) / 2, prior.shape))


def log_marginal_likelihood(kernel: SplitKernel, data: TrainingSet, solver: Solver, noise: Scalar) -> jax.Array:
    """Return the logarithm of N(y; 0, 𝒦 + noise), summed over channels."""
    blocks, f = _gaussian_process(kernel, data, solver, noise)
    end = jnp.full(1, jnp.inf, blocks.scale.dtype)
    square: Any = 0.0
    log_determinant: Any = 0.0
    for irrep, block in blocks:
        part = jnp.sum((block.solved.apply(f, end, block.labels)[0] * block.labels.conj()).real)
        square = square + irrep.weight * part
        log_determinant = log_determinant + irrep.copies * block.solved.log_determinant(noise)
    if is_concrete(log_determinant) and not bool(jnp.isfinite(log_determinant)):
        fix = "Samples that coincide, or are fixed by the group, make it singular; so does too little precision."
        raise refusal("noise", expected="positive for a singular Gram matrix", got=f"{float(noise):.3g}", fix=fix)
    return -(square + data.channels * (log_determinant + data.size * math.log(2 * math.pi))) / 2


def _gaussian_process(
    kernel: SplitKernel, data: TrainingSet, solver: Solver, noise: Scalar
) -> tuple[GramBlocks, FilterAboveNoise]:
    """Return the blocks of 𝒦, and the function (𝒦 + noise)⁻¹ of them."""
    known = is_concrete(noise)
    everything, shift = range(len(irreps_of(data.group))), float(noise) if known else None
    blocks = solve_blocks(kernel, data, solver, everything, get=("nngp",), inverse_shift=shift)
    return blocks, FilterAboveNoise(filters.converged() if known and noise == 0 else filters.ridge(noise), blocks.noise)


def check_test_labels(x: Inputs, y: Any, data: TrainingSet) -> jax.Array:
    """Return `y` as an array; refuse what does not have one entry for each output at the samples."""
    y = jnp.asarray(real_array(y, "y"))
    shape = (jax.tree.leaves(x)[0].shape[0], *data.y.shape[1:])
    if y.shape != shape:
        fix = "Test labels have one entry for each output of the network."
        raise refusal("y", expected=f"labels of shape {shape}", got=f"shape {y.shape}", fix=fix)
    return y


def _hits(key: jax.Array, mean: jax.Array, deviation: jax.Array, classes: jax.Array, samples: int) -> jax.Array:
    """Return how often each sample is classified rightly."""

    def draw(hits: jax.Array, key: jax.Array) -> tuple[jax.Array, None]:
        output = mean + deviation[..., None] * jax.random.normal(key, mean.shape, mean.dtype)
        return hits + (jnp.argmax(output, axis=-1) == classes), None

    return jax.lax.scan(draw, jnp.zeros(classes.shape, mean.dtype), jax.random.split(key, samples))[0]
