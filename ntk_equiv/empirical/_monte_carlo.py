"""The mean kernels of a network over random initialisations, and how well they are known.

    K̂ = (1/D) Σ_d K_d,        error of K̂ = √( Σ_d (K_d − K̂)² / (D (D − 1)) )

for D draws of the parameters. Draws are evaluated one after the other, or a few at a time, and accumulated by the
update of means and sums of squares of Chan, Golub & LeVeque. So memory does not grow with their number.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from tqdm.auto import tqdm

from ntk_equiv._check import canonical_get, one_of, positive_integer, random_key, refusal
from ntk_equiv._pytrees import dataclass_pytree
from ntk_equiv._renamed import OldKernelNames
from ntk_equiv._typing import Array, Get, Inputs
from ntk_equiv.empirical._derivatives import METHODS, NetworkFn, Params, numbers_side_by_side
from ntk_equiv.empirical._kernel_fn import EmpiricalKernelFn, FunctionNetwork, samples_as_arrays

# The draws are divided into this many parts if a progress bar is shown.
PARTS = 50


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class KernelEstimate:
    """Mean kernels over random initialisations, with their standard errors.

    Attributes:
        nngp: the estimate of 𝒦; None if it was not asked for.
        ntk: the estimate of Θ; None if it was not asked for.
        nngp_error: the standard error of each entry of `nngp`; NaN if there is only one network.
        ntk_error: the standard error of each entry of `ntk`; NaN if there is only one network.
        samples: how many networks were drawn.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from ntk_equiv import monte_carlo_kernel_fn, stax
        >>> init_fn, apply_fn, _ = stax.Dense(1)
        >>> found = monte_carlo_kernel_fn(init_fn, apply_fn, jax.random.key(0), samples=3).estimate(jnp.ones((1, 2)))
        >>> found, found.ntk.round(9).tolist(), found.ntk_error.tolist()      # a linear layer: the same for all
        (<kernels estimated from 3 random networks>, [[1.0]], [[0.0]])
    """

    nngp: Array | None
    ntk: Array | None
    nngp_error: Array | None
    ntk_error: Array | None
    samples: int

    def __repr__(self) -> str:
        return f"<kernels estimated from {self.samples} random networks>"


@dataclass_pytree
@dataclasses.dataclass(frozen=True, eq=False)
class MonteCarloKernelFn(OldKernelNames):
    """The mean kernels of random networks, `kernel_fn(x1, x2=None, get=None)`; made by `monte_carlo_kernel_fn`.

    Every call draws the same networks, so that parts of a Gram matrix fit together.

    Attributes:
        key: the random key from which the networks are drawn.
        init: draws parameters.
        apply: the network, a function of parameters, constants and inputs.
        samples: how many networks are drawn.
        together: how many of them are evaluated at the same time, at most; None lets their size decide.
        method: as for `empirical_kernel_fn`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from ntk_equiv import monte_carlo_kernel_fn, stax
        >>> init_fn, apply_fn, _ = stax.Dense(1)
        >>> kernel_fn = monte_carlo_kernel_fn(init_fn, apply_fn, jax.random.key(0), samples=3)
        >>> x = jnp.array([[1.0, 2.0]])
        >>> print(kernel_fn(x, None, "ntk"), kernel_fn(x, None, "nngp") == kernel_fn(x, None, "nngp"))
        [[2.5]] [[ True]]
    """

    key: Array
    init: Callable = dataclasses.field(metadata={"static": True})
    apply: NetworkFn = dataclasses.field(metadata={"static": True})
    samples: int = dataclasses.field(metadata={"static": True})
    together: int | None = dataclasses.field(metadata={"static": True})
    method: str = dataclasses.field(metadata={"static": True})

    def __call__(self, x1: Inputs, x2: Inputs | None = None, get: Get = None) -> Any:
        """Return the mean kernels of all pairs of samples, as any other `kernel_fn` does."""
        get = canonical_get(get)
        x1, x2 = self.check_samples(x1, "x1"), None if x2 is None else self.check_samples(x2, "x2")
        return _moments(self, self._keys(), x1, x2, get)[0]

    def estimate(
        self, x1: Inputs, x2: Inputs | None = None, get: Get = None, *, progress: bool = False
    ) -> KernelEstimate:
        """Return the mean kernels with their standard errors.

        Args:
            x1: samples, with the sample axis first.
            x2: other samples; `None` stands for `x1`.
            get: `"nngp"`, `"ntk"`, a tuple of these, or `None` for both.
            progress: whether to show a progress bar.
        """
        names = canonical_get(get)
        names = (names,) if isinstance(names, str) else names
        x1, x2 = self.check_samples(x1, "x1"), None if x2 is None else self.check_samples(x2, "x2")
        keys, parts = self._keys(), PARTS if progress else 1
        size = -(-self.samples // parts)
        total: Any = None
        for start in tqdm(range(0, self.samples, size), disable=not progress):
            part = keys[start : start + size]
            total = _merge(total, (*_moments(self, part, x1, x2, names), len(part)))
        mean, squares, count = total
        # One network says nothing about the spread of many.
        error = jax.tree.map(lambda s: jnp.sqrt(s / count / (count - 1)) if count > 1 else s * jnp.nan, squares)
        known = {f"{name}{end}": getattr(k, name) for end, k in (("", mean), ("_error", error)) for name in names}
        blank = dict.fromkeys(("nngp", "ntk", "nngp_error", "ntk_error"))
        return KernelEstimate(**{**blank, **known}, samples=self.samples)

    def check_samples(self, x: Inputs, argument: str = "x") -> Inputs:
        """Return `x` as arrays, or refuse it by the name `argument`."""
        return samples_as_arrays(x, argument)

    def restrict(self, get: str | tuple[str, ...]) -> "MonteCarloKernelFn":
        """Return this function: it does nothing for each sample."""
        return self

    def per_sample(self, x: Inputs) -> Inputs:
        """Return the samples themselves: everything else about them differs from network to network."""
        return x

    def per_pair(self, left: Inputs, right: Inputs, get: Get = None) -> Any:
        """Return the mean kernels of all pairs of samples."""
        return self(left, right, get)

    def entries_per_pair(self, x: Inputs) -> int:
        """Return the numbers of a pair in one network, times how many networks were asked to be evaluated together."""
        return (self.together or 1) * self._network_shapes(x).entries_per_pair(x)

    def at_once(self, x: Inputs, count: int) -> int:
        """Return how many of `count` networks to evaluate together for samples `x`: a divisor of `count`."""
        numbers = jax.tree.leaves(x)[0].shape[0] * self._network_shapes(x).plan(x).numbers_per_sample
        # On CPUs one by one is as fast, and takes a fraction of the time to compile.
        fitting = 1 if jax.default_backend() == "cpu" else max(1, numbers_side_by_side() // max(numbers, 1))
        wanted = min(count, self.together or fitting)
        return next(size for size in range(wanted, 0, -1) if count % size == 0)

    def drawn(self, key: Array, x: Inputs) -> EmpiricalKernelFn:
        """Return the kernels of one random network for samples like those of `x`."""
        return self._with_parameters(draw_parameters(self.init, key, x))

    def _network_shapes(self, x: Inputs) -> EmpiricalKernelFn:
        """Return a network of which only the shapes are known."""
        return self._with_parameters(jax.eval_shape(lambda key: draw_parameters(self.init, key, x), self.key))

    def _with_parameters(self, params: Params) -> EmpiricalKernelFn:
        return EmpiricalKernelFn(params, (), self.apply, self.method, "mean")

    def _keys(self) -> Array:
        return jax.random.split(self.key, self.samples)


def monte_carlo_kernel_fn(
    init: Callable,
    apply: Callable,
    key: Array,
    samples: int,
    *,
    together: int | None = None,
    method: str = "auto",
) -> MonteCarloKernelFn:
    """Return the mean kernels of a network over random initialisations, as a `kernel_fn` with standard errors.

    Args:
        init: draws parameters: either the first part of a stax triple, `init(key, input_shape) -> (output_shape,
            params)`, or that of a pair, `init(key, x) -> params`. What it returns tells which of the two it is.
        apply: `apply(params, x) -> outputs`.
        key: a JAX random key.
        samples: how many networks to draw.
        together: how many of them are evaluated at the same time, at most; by default their size decides.
        method: as for `empirical_kernel_fn`.

    Returns:
        A kernel function; its method `estimate(x1, x2, get)` returns kernels and their standard errors.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from ntk_equiv import monte_carlo_kernel_fn, stax
        >>> init_fn, apply_fn, kernel_fn = stax.serial(stax.Dense(64, 1.5, 0.1), stax.Relu(), stax.Dense(1))
        >>> x = jnp.array([[1.0, 2.0], [-1.0, 0.5]])
        >>> sampled = monte_carlo_kernel_fn(init_fn, apply_fn, jax.random.key(0), samples=200)
        >>> found = sampled.estimate(x)
        >>> found
        <kernels estimated from 200 random networks>
        >>> bool((jnp.abs(found.ntk - kernel_fn(x, None, "ntk")) < 4 * found.ntk_error).all())
        True
    """
    one_of(method, METHODS, "method")
    if not all(map(callable, (init, apply))):
        fix = "Unpack the pair or triple: `monte_carlo_kernel_fn(*network[:2], key, samples)`."
        raise refusal("init, apply", expected="two functions", got=f"{init!r:.40} and {apply!r:.40}", fix=fix)
    random_key(key)
    count = positive_integer(samples, "samples")
    together = None if together is None else positive_integer(together, "together")
    return MonteCarloKernelFn(key, init, FunctionNetwork(apply), count, together, method)


def draw_parameters(init: Callable, key: Array, x: Inputs) -> Params:
    """Draw random parameters for samples like those of `x`, with an `init` of either convention."""
    shape = (-1, *jax.tree.leaves(x)[0].shape[1:])
    try:
        result = init(key, shape)
    except Exception as error:  # an init of the other convention fails on a shape in its own way
        try:
            return init(key, x)
        except Exception as other:
            # If one of our layers refused the shape, its message is the better answer.
            raise error if hasattr(error, "argument") else other from None
    is_pair = isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], tuple) and bool(result[0])
    if is_pair and all(isinstance(size, int) for size in result[0]):
        return result[1]
    return init(key, x)


@partial(jax.jit, static_argnames="get")
def _moments(
    kernel_fn: MonteCarloKernelFn, keys: Array, x1: Inputs, x2: Inputs | None, get: str | tuple[str, ...]
) -> tuple:
    """Return the mean kernels of the networks with these keys, and the sums of squared differences from it."""

    def kernels(key: Array) -> Any:
        return kernel_fn.drawn(key, x1)(x1, x2, get)

    def step(total: Any, keys: Array) -> tuple[Any, None]:
        drawn = jax.vmap(kernels)(keys) if len(keys) > 1 else jax.tree.map(lambda k: k[None], kernels(keys[0]))
        mean = jax.tree.map(lambda k: jnp.mean(k, 0), drawn)
        squares = jax.tree.map(lambda k, m: jnp.sum(jnp.square(k - m[None]), 0), drawn, mean)
        return _merge(total, (mean, squares, len(keys))), None

    zero = jax.tree.map(lambda k: jnp.zeros(k.shape, k.dtype), jax.eval_shape(kernels, keys[0]))
    groups = keys.reshape(-1, kernel_fn.at_once(x1, len(keys)), *keys.shape[1:])  # keys of the old kind are arrays
    (mean, squares, _), _ = lax.scan(step, (zero, zero, 0.0), groups)
    return mean, squares


def _merge(total: Any, part: Any) -> Any:
    """Merge mean, sum of squares and number of two sets of draws."""
    if total is None:
        return part
    (mean, squares, count), (mean2, squares2, count2) = total, part
    both = count + count2
    merged = jax.tree.map(lambda m, m2: m + (m2 - m) * (count2 / both), mean, mean2)
    spread = jax.tree.map(
        lambda s, s2, m, m2: s + s2 + jnp.square(m2 - m) * (count * count2 / both), squares, squares2, mean, mean2
    )
    return merged, spread, both
