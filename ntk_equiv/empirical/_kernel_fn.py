"""The kernels of one network as it is, with the parameters that it has.

    Θ(x, x') = (1/C) Σ_c Σ_θ ∂f_c(x)/∂θ · ∂f_c(x')/∂θ,        𝒦(x, x') = (1/C) Σ_c f_c(x) f_c(x')

for outputs with C channels: the mean over channels, which is what `trace_axes=(-1,)`, the default of neural-tangents,
computes. At infinite width every channel has the same kernel and different ones have none, so that nothing is lost; at
finite width `channels="apart"` keeps [C, C'] for every pair.
"""

import dataclasses
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from ntk_equiv._check import canonical_get, one_of
from ntk_equiv._gram import ENTRIES_PER_TILE, TILES_UNDER_WAY
from ntk_equiv._pytrees import dataclass_pytree
from ntk_equiv._typing import Array, Get, Inputs, Kernel, select
from ntk_equiv.empirical import _network
from ntk_equiv.empirical._derivatives import by_products, contracted, derivatives, product
from ntk_equiv.empirical._plan import METHODS, Plan, plan_of

# Derivatives of all samples are kept up to this many numbers, 1 GB in single precision; else tiles compute them anew.
ROOM = 2**28


@dataclass_pytree
@dataclasses.dataclass(frozen=True, eq=False)
class EmpiricalKernelFn:
    """The kernels of one network with given parameters, `kernel_fn(x1, x2=None, get=None)`; see `empirical_kernel_fn`.

    A pytree, whose arrays are the parameters: it passes through `jit`, and may be differentiated in them.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from ntk_equiv import empirical_kernel_fn
        >>> kernel_fn = empirical_kernel_fn(lambda w, x: x @ w, jnp.ones((2, 1)))
        >>> x = jnp.array([[1.0, 2.0]])
        >>> print(kernel_fn(x, None, "ntk"), kernel_fn(x, None, "nngp"))      # |x|², and the output squared
        [[5.]] [[9.]]
        >>> print(jax.grad(lambda k: k(x, None, "nngp").sum())(kernel_fn).params.ravel())
        [ 6. 12.]
    """

    params: Any
    constants: Any
    apply: Any = dataclasses.field(metadata={"static": True})
    method: str = dataclasses.field(metadata={"static": True})
    channels: str = dataclasses.field(metadata={"static": True})
    wanted: str | tuple[str, ...] = dataclasses.field(default=("nngp", "ntk"), metadata={"static": True})

    def __call__(self, x1: Inputs, x2: Inputs | None = None, get: Get = None) -> Any:
        """Kernels of all pairs of samples from `x1` and `x2`.

        Args:
            x1: samples, with the sample axis first.
            x2: other samples; `None` stands for `x1`.
            get: `"nngp"`, `"ntk"`, a tuple of these, or `None` for both.

        Returns:
            One array for a single name; a named tuple for several.
        """
        get = canonical_get(get)
        x1, x2 = self.check_samples(x1, "x1"), None if x2 is None else self.check_samples(x2, "x2")
        return _evaluated(self.restrict(get), x1, x2, get)

    @property
    def parts(self) -> tuple[Any, Any, Any]:
        """The network, its parameters, and its variables that are not trained."""
        return self.apply, self.params, self.constants

    def plan(self, x: Inputs) -> Plan:
        """Which method is used for samples like those of `x`, and what it takes."""
        return plan_of(self.method, self.channels == "apart", *self.parts, x)

    def restrict(self, get: str | tuple[str, ...]) -> "EmpiricalKernelFn":
        """The same, if no other kernels than these will be asked for."""
        return dataclasses.replace(self, wanted=get)

    def check_samples(self, x: Inputs, argument: str = "x") -> Inputs:
        """`x` as arrays, if the network takes it."""
        x = _network.checked_inputs(x, argument)
        self.plan(x)
        return x

    def per_sample(self, x: Inputs) -> Any:
        """Outputs of each sample, and its derivatives if there is room for those of all samples."""
        return _points(self, self.check_samples(x))

    def per_pair(self, left: Any, right: Any, get: Get = None) -> Any:
        """Kernels of all pairs of samples, from what `per_sample` returned for each side."""
        return _pairs(self, left, right, canonical_get(get))

    def entries_per_pair(self, x: Inputs) -> int:
        """How many numbers a pair occupies, and at least so many that a tile has room for its derivatives."""
        plan = self.plan(x)
        side = max(1, ROOM // (2 * TILES_UNDER_WAY * max(plan.numbers_per_sample, 1)))
        return max(plan.numbers_per_pair, ENTRIES_PER_TILE // side**2)


def empirical_kernel_fn(
    apply: Any, params: Any, /, *, method: str = "auto", channels: str = "mean"
) -> EmpiricalKernelFn:
    """The kernels of any network with given parameters, as a `kernel_fn` like those of `stax`.

        Θ(x, x') = (1/C) Σ_c ⟨∂f_c(x)/∂θ, ∂f_c(x')/∂θ⟩,        𝒦(x, x') = (1/C) Σ_c f_c(x) f_c(x')

    Samples have to be independent of each other: a network that mixes those of a batch, as batch normalisation does in
    training, has no kernel of two samples. `gram` evaluates many pairs in bounded memory.

    Args:
        apply: a function `apply(params, x) -> outputs` [n, ..., channels] (or [n]), a Linen module, a pair
            `(init, apply)` or a stax triple. It identifies compiled programs, so pass the same object again.
        params: its parameters, any pytree of real arrays; all of them count as trained. For a Linen module its
            variables, of which the collection "params" counts.
        method: `"structured"`, `"jacobian"` or `"products"`; `"auto"` takes the one that is estimated to be cheapest.
        channels: `"mean"` for the mean over channels, as in neural-tangents with `trace_axes=(-1,)`; `"apart"` for
            kernels [n1, n2, C, C'], as there with `trace_axes=()`.

    Returns:
        A kernel function: kernels are [n1, n2], with outputs on a grid [n1, n2, h, h', w, w'].

    Raises:
        ValueError: parameters and network do not fit together.
        TypeError: what was given is no network, or its parameters are not real numbers.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from ntk_equiv import empirical_kernel_fn, gram
        >>> line = lambda params, x: x @ params["w"] + params["b"]
        >>> kernel_fn = empirical_kernel_fn(line, {"w": jnp.array([[2.0], [0.0]]), "b": jnp.array([[1.0]])})
        >>> x = jnp.array([[1.0, 0.0], [1.0, 3.0]])
        >>> print(gram(kernel_fn, x, None, "ntk"))      # ⟨x, x'⟩ + 1
        [[ 2.  2.]
         [ 2. 11.]]
        >>> print(kernel_fn(x, x[:1], "nngp"))
        [[9.]
         [9.]]
    """
    one_of(method, METHODS, "method")
    one_of(channels, ("mean", "apart"), "channels")
    evaluate, trained, constants = _network.split(apply, params)
    return EmpiricalKernelFn(trained, constants, evaluate, method, channels)


@partial(jax.jit, static_argnames="get")
def _evaluated(kernel_fn: EmpiricalKernelFn, x1: Inputs, x2: Inputs | None, get: Any) -> Any:
    left = _points(kernel_fn, x1)
    right = left if x2 is None else _points(kernel_fn, x2)
    return _pairs(kernel_fn, left, right, get)


@jax.jit
def _points(kernel_fn: EmpiricalKernelFn, x: Inputs) -> dict[str, Any]:
    plan = kernel_fn.plan(x)
    outputs = kernel_fn.apply(kernel_fn.params, kernel_fn.constants, x)
    points = {"outputs": outputs.reshape(outputs.shape[0], *plan.grid, plan.channels)}
    if "ntk" not in kernel_fn.wanted:
        return points
    if plan.method == "products" or len(outputs) * plan.numbers_per_sample > ROOM:
        return {**points, "x": x}
    return {**points, "derivatives": derivatives(plan, *kernel_fn.parts, x)}


@partial(jax.jit, static_argnames="get")
def _pairs(kernel_fn: EmpiricalKernelFn, left: Any, right: Any, get: Any) -> Any:
    n1, *grid, channels = left["outputs"].shape
    n2, positions, apart = right["outputs"].shape[0], math.prod(grid), kernel_fn.channels == "apart"

    def arranged(kernel: Array) -> Array:
        """[n1, n2, S, S', ...] as [n1, n2, h, h', w, w', ...]."""
        spread, half = kernel.reshape(n1, n2, *grid, *grid, *kernel.shape[4:]), len(grid)
        axes = [axis for i in range(half) for axis in (2 + i, 2 + half + i)]
        return spread.transpose(0, 1, *axes, *range(2 + 2 * half, spread.ndim)) / (1 if apart else channels)

    f, g = (side["outputs"].reshape(-1, positions, channels) for side in (left, right))
    nngp = arranged(product("aic,bjd->abijcd" if apart else "aic,bjc->abij", f, g))
    ntk = arranged(_tangent(kernel_fn, left, right, nngp.dtype)) if "ntk" in get else None
    return select(Kernel(nngp, ntk), get)


def _tangent(kernel_fn: EmpiricalKernelFn, left: Any, right: Any, dtype: Any) -> Array:
    """The sum over channels (or all of them) of Θ, [n1, n2, S, S', ...]."""
    apart = kernel_fn.channels == "apart"
    if not jax.tree.leaves(kernel_fn.params):
        n1, *grid, channels = left["outputs"].shape
        shape = n1, right["outputs"].shape[0], math.prod(grid), math.prod(grid)
        return jnp.zeros((*shape, channels, channels) if apart else shape, dtype)
    if "x" in left and kernel_fn.plan(left["x"]).method == "products":
        return by_products(kernel_fn.plan(left["x"]), *kernel_fn.parts, left["x"], right["x"], apart).astype(dtype)
    return contracted(_derivatives(kernel_fn, left), _derivatives(kernel_fn, right), apart).astype(dtype)


def _derivatives(kernel_fn: EmpiricalKernelFn, side: Any) -> dict[str, Any]:
    """Those that are kept, or else computed now."""
    if "derivatives" in side:
        return side["derivatives"]
    return derivatives(kernel_fn.plan(side["x"]), *kernel_fn.parts, side["x"])
