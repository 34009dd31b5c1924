"""Kernels of one finite network over any axes of its outputs, with the arguments of neural-tangents.

    Θ = J(x1) J(x2)ᵀ,        𝒦 = f(x1) f(x2)ᵀ,

over all axes of the outputs: `trace_axes` of both factors are averaged over, of `diagonal_axes` only equal entries are
kept, and every other axis appears twice, side by side. Where `empirical_kernel_fn` computes the same (one array of
independent samples, `vmap_axes=0`, traced over channels or over nothing) it does the work.
"""

import enum
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from ntk_equiv._check import function, one_of
from ntk_equiv._positions import Axes, canonical_axes
from ntk_equiv._typing import Array
from ntk_equiv.empirical._kernel_fn import empirical_kernel_fn
from ntk_equiv.empirical._output_axes import contract_outputs, jacobian_of_samples, ntk_by_jacobians, ntk_by_products


class NtkImplementation(enum.IntEnum):
    """How the neural tangent kernel of a finite network is computed; results are the same.

    Example:
        >>> from ntk_equiv import empirical
        >>> empirical.NtkImplementation(2).name
        'NTK_VECTOR_PRODUCTS'
    """

    AUTO = 0
    JACOBIAN_CONTRACTION = 1
    NTK_VECTOR_PRODUCTS = 2
    STRUCTURED_DERIVATIVES = 3


_METHOD = dict(zip(NtkImplementation, ("auto", "jacobian", "products", "structured"), strict=True))


def empirical_nngp_fn(f: Callable, trace_axes: Axes = (-1,), diagonal_axes: Axes = ()) -> Callable:
    """Return the function `(x1, x2, params, **kwargs)` that gives 𝒦 of a finite network.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import empirical
        >>> print(empirical.empirical_nngp_fn(lambda w, x: x @ w)(jnp.ones((1, 2)), None, jnp.ones((2, 3))))
        [[4.]]
    """
    function(f, "f")

    def nngp_fn(x1: Any, x2: Any, params: Any, **kwargs: Any) -> Any:
        (f1, _), (f2, _) = _two_functions(f, x1, x2, kwargs)
        return contract_outputs(f1(params), f2(params), trace_axes, diagonal_axes)

    return nngp_fn


def empirical_ntk_fn(
    f: Callable,
    trace_axes: Axes = (-1,),
    diagonal_axes: Axes = (),
    vmap_axes: Any = None,
    implementation: int = NtkImplementation.JACOBIAN_CONTRACTION,
    **internal: Any,
) -> Callable:
    """Return the function `(x1, x2, params, **kwargs)` that gives Θ of a finite network.

    Arguments are those of neural-tangents; `_j_rules`, `_s_rules` and `_fwd` have no effect.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import empirical
        >>> ntk_fn = empirical.empirical_ntk_fn(lambda w, x: x @ w, vmap_axes=0)
        >>> print(ntk_fn(jnp.array([[1.0, 2.0]]), None, jnp.ones((2, 1))))
        [[5.]]
    """
    function(f, "f")
    implementation = NtkImplementation(one_of(implementation, tuple(NtkImplementation), "implementation"))

    def apply(params: Any, x: Any) -> Any:  # one object, by which compiled programs are found
        return f(params, x)

    def ntk_fn(x1: Any, x2: Any, params: Any, **kwargs: Any) -> Any:
        channels = _native_channels(f, x1, params, kwargs, trace_axes, diagonal_axes, vmap_axes)
        if channels:
            kernel_fn = empirical_kernel_fn(apply, params, method=_METHOD[implementation], channels=channels)
            return kernel_fn(x1, x2, "ntk")
        (f1, jacobian1), (f2, jacobian2) = _two_functions(f, x1, x2, kwargs, vmap_axes)
        if implementation == NtkImplementation.NTK_VECTOR_PRODUCTS:
            return ntk_by_products(f1, f2, params, trace_axes, diagonal_axes)
        j1, j2 = jacobian1(params), jacobian2(params)
        return ntk_by_jacobians(f1, f2, j1, j2, params, trace_axes, diagonal_axes)

    return ntk_fn


def empirical_ntk_vp_fn(f: Callable, x1: Any, x2: Any, params: Any, **kwargs: Any) -> Callable:
    """Return the product of Θ(x1, x2) with a vector of the shape of f(params, x2); Θ itself is never formed.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import empirical
        >>> times = empirical.empirical_ntk_vp_fn(lambda w, x: x @ w, jnp.array([[1.0, 2.0]]), None, jnp.ones((2, 1)))
        >>> print(times(jnp.array([[3.0]])))
        [[15.]]
    """
    (f1, _), (f2, _) = _two_functions(function(f, "f"), x1, x2, kwargs)
    return lambda vector: jax.jvp(f1, (params,), jax.vjp(f2, params)[1](vector))[1]


def _native_channels(
    f: Callable, x: Any, params: Any, kwargs: dict[str, Any], trace_axes: Axes, diagonal_axes: Axes, vmap_axes: Any
) -> str | None:
    """Return the setting `channels` of `empirical_kernel_fn`, or None if it does not compute this kernel."""
    known = all(value is None for name, value in kwargs.items() if name != "rng")
    if vmap_axes != 0 or isinstance(vmap_axes, bool) or diagonal_axes != () or not known or "rng" in kwargs:
        return None
    out = jax.eval_shape(f, params, x)
    if not all(hasattr(value, "shape") for value in (x, out)) or out.ndim < 2:
        return None
    return {(): "apart", (out.ndim - 1,): "mean"}.get(canonical_axes(trace_axes, out.ndim))


def _two_functions(f: Callable, x1: Any, x2: Any, kwargs: dict[str, Any], vmap_axes: Any = None) -> tuple:
    """Return for both inputs the network as a function of parameters, and its Jacobian."""
    same = all(leaf is None for leaf in jax.tree.leaves(x2, is_leaf=lambda leaf: leaf is None))
    kwargs1, kwargs2 = {}, {}
    for name, value in kwargs.items():
        both = value if isinstance(value, tuple) and len(value) == 2 else (value, value)
        kwargs1[name], kwargs2[name] = both
        if name == "rng" and both[0] is both[1] is not None and not same:
            equal = _are_equal(x1, x2)
            kwargs2[name] = jax.lax.cond(equal, lambda k: k, lambda k: jax.random.fold_in(k, 1), both[0])
    first = _function_and_jacobian(f, x1, kwargs1, vmap_axes)
    return first, first if same else _function_and_jacobian(f, x2, kwargs2, vmap_axes)


def _are_equal(x1: Any, x2: Any) -> Array:
    pairs = list(zip(jax.tree.leaves(x1), jax.tree.leaves(x2), strict=True))
    if any(a.shape != b.shape for a, b in pairs):
        return jnp.array(False)
    return jnp.stack([jnp.all(a == b) for a, b in pairs]).all()


def _function_and_jacobian(f: Callable, x: Any, kwargs: dict[str, Any], vmap_axes: Any) -> tuple[Callable, Callable]:
    whole = partial(_apply, f, x, kwargs)
    if vmap_axes is None:
        return whole, jax.jacobian(whole)
    axes = vmap_axes if isinstance(vmap_axes, tuple) and len(vmap_axes) == 3 else (vmap_axes, vmap_axes, {})
    return whole, jacobian_of_samples(f, x, kwargs, axes)


def _apply(f: Callable, x: Any, kwargs: dict[str, Any], params: Any) -> Any:
    return f(params, x, **kwargs)
