"""The kernels of one network with the parameters that it has.

    Θ(x, x') = (1/C) Σ_c Σ_θ ∂f_c(x)/∂θ · ∂f_c(x')/∂θ,        𝒦(x, x') = (1/C) Σ_c f_c(x) f_c(x')

for outputs with C channels. This is the mean over channels, which neural-tangents computes by default
(`trace_axes=(-1,)`). At infinite width nothing is lost by it: every channel has the same kernel, and the kernel of two
different channels is zero. At finite width `channels="apart"` keeps [C, C'] for every pair.

All kinds of networks are brought into one form, `apply(params, constants, x)`:

    network                                 params                      constants
    function apply(params, x)               all parameters              nothing
    (init, apply) pair, or stax triple      all parameters              nothing
    Linen module                            the collection "params"     its other collections

Flax is not imported: whatever has a method `apply` that takes a mapping with the key "params" is a Linen module.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from ntk_equiv._check import arrays, canonical_get, one_of, refusal
from ntk_equiv._gram import ENTRIES_PER_TILE, TILES_UNDER_WAY
from ntk_equiv._pytrees import dataclass_pytree
from ntk_equiv._renamed import OldKernelNames
from ntk_equiv._typing import Array, Get, Inputs, Kernel, select
from ntk_equiv.empirical._derivatives import (
    METHODS,
    NetworkFn,
    Params,
    Plan,
    contract,
    contract_without_storing,
    derivatives,
    make_plan,
    product,
)
from ntk_equiv.stax import Graph, with_own_adjacency

# Derivatives of all samples are kept up to this many numbers, 1 GB in single precision; else tiles compute them anew.
NUMBERS_KEPT = 2**28


@dataclass_pytree
@dataclasses.dataclass(frozen=True, eq=False)
class EmpiricalKernelFn(OldKernelNames):
    """The kernels of one network with given parameters, `kernel_fn(x1, x2=None, get=None)`; see `empirical_kernel_fn`.

    It is a pytree whose arrays are the parameters. It passes through `jit`, and it may be differentiated with respect
    to the parameters.

    Attributes:
        params: the parameters.
        constants: variables that are not trained.
        apply: the network, a function of `params`, `constants` and inputs.
        method: "auto", "structured", "jacobian" or "products".
        channels: "mean" or "apart".
        wanted: the kernels that will be asked for.
        numbers_kept: how many numbers the derivatives of all samples may take. If they take more, they are not stored,
            and every tile of a Gram matrix computes its own.

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

    params: Params
    constants: Any
    apply: NetworkFn = dataclasses.field(metadata={"static": True})
    method: str = dataclasses.field(metadata={"static": True})
    channels: str = dataclasses.field(metadata={"static": True})
    wanted: str | tuple[str, ...] = dataclasses.field(default=("nngp", "ntk"), metadata={"static": True})
    numbers_kept: int = dataclasses.field(default=NUMBERS_KEPT, metadata={"static": True})

    def __call__(self, x1: Inputs, x2: Inputs | None = None, get: Get = None) -> Any:
        """Return the kernels of all pairs of samples from `x1` and `x2`.

        Args:
            x1: samples, with the sample axis first.
            x2: other samples; `None` stands for `x1`.
            get: `"nngp"`, `"ntk"`, a tuple of these, or `None` for both.

        Returns:
            One array for a single name; a named tuple for several.
        """
        get = canonical_get(get)
        x1, x2 = self.check_samples(x1, "x1"), None if x2 is None else self.check_samples(x2, "x2")
        return _evaluate(self.restrict(get), x1, x2, get)

    @property
    def parts(self) -> tuple[NetworkFn, Params, Any]:
        """The network, its parameters, and its variables that are not trained."""
        return self.apply, self.params, self.constants

    def plan(self, x: Inputs) -> Plan:
        """Return the method that is used for samples like those of `x`, with what it costs."""
        return make_plan(self.method, self.channels == "apart", *self.parts, x)

    def restrict(self, get: str | tuple[str, ...]) -> "EmpiricalKernelFn":
        """Return a kernel function that will be asked for no other kernels than `get`."""
        return dataclasses.replace(self, wanted=get)

    def check_samples(self, x: Inputs, argument: str = "x") -> Inputs:
        """Return `x` as arrays, if the network takes it."""
        x = samples_as_arrays(x, argument)
        self.plan(x)
        return x

    def per_sample(self, x: Inputs) -> dict[str, Any]:
        """Return the outputs of each sample, and its derivatives if those of all samples may be kept."""
        return _outputs_and_derivatives(self, x)

    def per_pair(self, left: dict[str, Any], right: dict[str, Any], get: Get = None) -> Any:
        """Return the kernels of all pairs of samples, from what `per_sample` returned for each side."""
        return _kernels_of_pairs(self, left, right, canonical_get(get))

    def entries_per_pair(self, x: Inputs) -> int:
        """Return how many numbers a pair occupies, and at least so many that a tile has room for its derivatives."""
        plan = self.plan(x)
        side = max(1, self.numbers_kept // (2 * TILES_UNDER_WAY * max(plan.numbers_per_sample, 1)))
        return max(plan.numbers_per_pair, ENTRIES_PER_TILE // side**2)


def empirical_kernel_fn(
    apply: Any, params: Params, /, *, method: str = "auto", channels: str = "mean"
) -> EmpiricalKernelFn:
    """Return the kernels of any network with given parameters, as a `kernel_fn` like those of `stax`.

        Θ(x, x') = (1/C) Σ_c ⟨∂f_c(x)/∂θ, ∂f_c(x')/∂θ⟩,        𝒦(x, x') = (1/C) Σ_c f_c(x) f_c(x')

    Samples must not influence each other: a network that mixes the samples of a batch, as batch normalisation does in
    training, has no kernel of two samples. `gram` evaluates many pairs in bounded memory.

    Args:
        apply: a function `apply(params, x) -> outputs` [n, ..., channels] (or [n]), a Linen module, a pair
            `(init, apply)` or a stax triple. It identifies compiled programs, so pass the same object again.
        params: its parameters, any pytree of real arrays; all of them count as trained. For a Linen module, its
            variables; those of the collection "params" count as trained.
        method: `"structured"`, `"jacobian"` or `"products"`; `"auto"` chooses the one estimated to be the cheapest.
        channels: `"mean"` for the mean over channels, as in neural-tangents with `trace_axes=(-1,)`; `"apart"` for
            kernels [n1, n2, C, C'], as there with `trace_axes=()`.

    Returns:
        A kernel function. Kernels are [n1, n2]; for outputs on a grid they are [n1, n2, h, h', w, w'].

    Raises:
        ValueError: parameters and network do not fit together.
        TypeError: `apply` is not a network, or its parameters are not real numbers.

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
    evaluate, trained, constants = split_network(apply, params)
    return EmpiricalKernelFn(trained, constants, evaluate, method, channels)


@partial(jax.jit, static_argnames="get")
def _evaluate(kernel_fn: EmpiricalKernelFn, x1: Inputs, x2: Inputs | None, get: str | tuple[str, ...]) -> Any:
    left = _outputs_and_derivatives(kernel_fn, x1)
    right = left if x2 is None else _outputs_and_derivatives(kernel_fn, x2)
    return _kernels_of_pairs(kernel_fn, left, right, get)


@jax.jit
def _outputs_and_derivatives(kernel_fn: EmpiricalKernelFn, x: Inputs) -> dict[str, Any]:
    plan = kernel_fn.plan(x)
    outputs = kernel_fn.apply(kernel_fn.params, kernel_fn.constants, x)
    known = {"outputs": outputs.reshape(outputs.shape[0], *plan.grid, plan.channels)}
    if "ntk" not in kernel_fn.wanted:
        return known
    if plan.method == "products" or len(outputs) * plan.numbers_per_sample > kernel_fn.numbers_kept:
        return {**known, "x": x}
    return {**known, "derivatives": derivatives(plan, *kernel_fn.parts, x)}


@partial(jax.jit, static_argnames="get")
def _kernels_of_pairs(
    kernel_fn: EmpiricalKernelFn, left: dict[str, Any], right: dict[str, Any], get: str | tuple[str, ...]
) -> Any:
    n1, *grid, channels = left["outputs"].shape
    n2, positions, apart = right["outputs"].shape[0], math.prod(grid), kernel_fn.channels == "apart"

    def on_grid(kernel: Array) -> Array:
        """Return [n1, n2, S, S', ...] as [n1, n2, h, h', w, w', ...], divided by the number of channels."""
        spread, half = kernel.reshape(n1, n2, *grid, *grid, *kernel.shape[4:]), len(grid)
        axes = [axis for i in range(half) for axis in (2 + i, 2 + half + i)]
        return spread.transpose(0, 1, *axes, *range(2 + 2 * half, spread.ndim)) / (1 if apart else channels)

    f, g = (side["outputs"].reshape(-1, positions, channels) for side in (left, right))
    nngp = on_grid(product("aic,bjd->abijcd" if apart else "aic,bjc->abij", f, g))
    ntk = on_grid(_tangent_kernel(kernel_fn, left, right, nngp.dtype)) if "ntk" in get else None
    return select(Kernel(nngp, ntk), get)


def _tangent_kernel(kernel_fn: EmpiricalKernelFn, left: dict[str, Any], right: dict[str, Any], dtype: Any) -> Array:
    """Return Θ summed over channels, or with all pairs of channels, [n1, n2, S, S', ...]."""
    apart = kernel_fn.channels == "apart"
    if not jax.tree.leaves(kernel_fn.params):
        n1, *grid, channels = left["outputs"].shape
        shape = n1, right["outputs"].shape[0], math.prod(grid), math.prod(grid)
        return jnp.zeros((*shape, channels, channels) if apart else shape, dtype)
    if "x" in left and kernel_fn.plan(left["x"]).method == "products":
        plan = kernel_fn.plan(left["x"])
        return contract_without_storing(plan, *kernel_fn.parts, left["x"], right["x"], apart).astype(dtype)
    return contract(_derivatives_of(kernel_fn, left), _derivatives_of(kernel_fn, right), apart).astype(dtype)


def _derivatives_of(kernel_fn: EmpiricalKernelFn, side: dict[str, Any]) -> dict[str, Any]:
    """Return the derivatives that were kept, or compute them now."""
    if "derivatives" in side:
        return side["derivatives"]
    return derivatives(kernel_fn.plan(side["x"]), *kernel_fn.parts, side["x"])


# Networks of all kinds in one form.


@dataclasses.dataclass(frozen=True)
class FunctionNetwork:
    """A function of parameters and inputs."""

    apply: Callable

    def __call__(self, params: Params, constants: Any, x: Inputs) -> Any:
        """Return the outputs."""
        return self.apply(params, x)


@dataclasses.dataclass(frozen=True)
class LinenNetwork:
    """A Linen module, one of whose collections of variables is trained."""

    module: Any

    def __call__(self, params: Params, constants: Any, x: Inputs) -> Any:
        """Return the outputs."""
        return self.module.apply({"params": params, **constants}, x)


def samples_as_arrays(x: Inputs, argument: str) -> Inputs:
    """Return `x` as arrays; an adjacency that all graphs share is given to each of them."""
    return with_own_adjacency(x) if isinstance(x, Graph) else arrays(x, argument)


def split_network(network: Any, params: Params) -> tuple[NetworkFn, Params, Any]:
    """Return how to evaluate the network, its parameters as arrays, and its variables that are not trained."""
    constants: Any = ()
    apply: FunctionNetwork | LinenNetwork
    if not isinstance(network, tuple) and callable(getattr(network, "apply", None)):
        if not isinstance(params, Mapping) or "params" not in params:
            got = f"keys {sorted(params)}" if isinstance(params, Mapping) else type(params).__name__
            fix = 'Pass the variables that `module.init` returned, or `{"params": params}`.'
            raise refusal("params", expected='variables with a collection "params"', got=got, fix=fix)
        apply, constants = LinenNetwork(network), {name: params[name] for name in params if name != "params"}
        params = params["params"]
    else:
        apply = FunctionNetwork(_apply_function(network))
    try:
        hash(apply)
    except TypeError as error:
        fix = "Compiled programs are found by it: wrap it in a function of your own."
        raise refusal("apply", expected="hashable", got=str(error), fix=fix, kind=TypeError) from error
    # A network without parameters is fine if the caller says so, by `()`; None is more likely a mistake.
    if params is None or jax.tree.leaves(params):
        params = arrays(params, "params")
    return apply, jax.tree.map(_real_parameter, params), jax.tree.map(jnp.asarray, constants)


def _apply_function(network: Any) -> Callable:
    if isinstance(network, tuple) and len(network) in (2, 3) and callable(network[1]):
        return network[1]
    if callable(network) and not isinstance(network, type):
        return network
    expected = "a function apply(params, x), a pair (init, apply), a stax triple or a Linen module"
    fix = "For an NNX module use `ensembles.as_pair`, or split it and merge it in a function of your own."
    raise refusal("apply", expected=expected, got=repr(network)[:80], fix=fix, kind=TypeError)


def _real_parameter(array: jax.Array) -> jax.Array:
    if not jnp.issubdtype(array.dtype, jnp.floating):
        fix = "Close over what is not trained, in the function that you pass."
        raise refusal("params", expected="real numbers", got=f"dtype {array.dtype}", fix=fix, kind=TypeError)
    return array
