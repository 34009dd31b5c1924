"""Kernels of finite networks over chosen axes of their outputs.

    Θ = J(x1) J(x2)ᵀ,        𝒦 = f(x1) f(x2)ᵀ

have every axis of the outputs twice, side by side. Of *traced* axes both factors are multiplied and averaged, and of
*diagonal* axes only equal entries are kept. A network is a function of its parameters here, at given inputs. Outputs
may be pytrees, and each has a kernel of its own. `empirical_kernel_fn` is the fast way for the common case, the mean
over channels of independent samples.
"""

import math
import string
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ntk_equiv._positions import Axes, canonical_axes
from ntk_equiv._typing import Array


def contract_outputs(a: Any, b: Any, traced: Axes, diagonal: Axes) -> Any:
    """Return the products of outputs, f(x1) f(x2)ᵀ over the chosen axes."""
    return jax.tree.map(lambda u, v: _contract(u, v, u.ndim, traced, diagonal), a, b)


def ntk_by_jacobians(f1: Callable, f2: Callable, j1: Any, j2: Any, params: Any, traced: Axes, diagonal: Axes) -> Any:
    """Return Θ from the Jacobians of both functions."""

    def kernel(out1: Any, out2: Any, jacobian1: Any, jacobian2: Any) -> Any:
        pairs = zip(jax.tree.leaves(jacobian1), jax.tree.leaves(jacobian2), strict=True)
        flat = ((u.reshape(*out1.shape, -1), v.reshape(*out2.shape, -1)) for u, v in pairs)
        return sum(_contract(u, v, out1.ndim, traced, diagonal) for u, v in flat)

    return jax.tree.map(kernel, jax.eval_shape(f1, params), jax.eval_shape(f2, params), j1, j2)


def ntk_by_products(f1: Callable, f2: Callable, params: Any, traced: Axes, diagonal: Axes) -> Any:
    """Return Θ column by column, from products with the vectors of a basis; no Jacobian is stored."""
    pull, push = jax.vjp(f2, params)[1], jax.linearize(f1, params)[1]
    leaves, structure = jax.tree.flatten(jax.eval_shape(f2, params))

    def kernel(number: int, out: Any) -> Array:
        def column(index: Array) -> Array:
            flat = [jnp.zeros(math.prod(leaf.shape), leaf.dtype) for leaf in leaves]
            flat[number] = flat[number].at[index].set(1)
            vectors = [v.reshape(leaf.shape) for v, leaf in zip(flat, leaves, strict=True)]
            return jax.tree.leaves(push(*pull(jax.tree.unflatten(structure, vectors))))[number]

        columns = jax.lax.map(column, jnp.arange(math.prod(out.shape)))
        # The identity gives columns the axes of the second function.
        identity = jnp.eye(columns.shape[0], dtype=columns.dtype).reshape(*out.shape, -1)
        return _contract(jnp.moveaxis(columns, 0, -1), identity, out.ndim, traced, diagonal)

    return jax.tree.unflatten(structure, [kernel(number, out) for number, out in enumerate(leaves)])


def jacobian_of_samples(f: Callable, x: Any, kwargs: Mapping[str, Any], axes: tuple[Any, Any, Any]) -> Callable:
    """Return the Jacobian of `f(params, x, **kwargs)` as a function of parameters, sample by sample.

    Args:
        f: the network; its samples are independent.
        x: the inputs.
        kwargs: other arguments.
        axes: the axis of samples of `x`, of the outputs, and of some of `kwargs`: a number, or a pytree of numbers, in
            which None stands for arrays that all samples share.
    """

    def jacobian(params: Any) -> Any:
        x_axes = _spread_axes(axes[0], x)
        kw_axes = dict.fromkeys(kwargs) | {k: _spread_axes(a, kwargs[k]) for k, a in dict(axes[2] or {}).items()}
        out_axes = _spread_axes(axes[1], jax.eval_shape(lambda p: f(p, x, **kwargs), params))

        def of_sample(x_own: Any, kwargs_own: dict[str, Any]) -> Any:
            def outputs(params: Any) -> Any:
                own = {
                    k: v if kw_axes[k] is None else _along(jnp.expand_dims, kw_axes[k], v)
                    for k, v in kwargs_own.items()
                }
                return _along(jnp.squeeze, out_axes, f(params, _along(jnp.expand_dims, x_axes, x_own), **own))

            return jax.jacobian(outputs)(params)

        return jax.vmap(of_sample, in_axes=(x_axes, kw_axes), out_axes=out_axes)(x, dict(kwargs))

    return jacobian


def _contract(u: Array, v: Array, ndim: int, traced: Axes, diagonal: Axes) -> Array:
    """Return the contraction of two arrays with `ndim` axes of outputs, and perhaps one more that is summed over."""
    averaged, kept = (canonical_axes(axes, ndim) for axes in (traced, diagonal))
    left, right, out = "", "", ""
    for axis in range(ndim):
        first = string.ascii_lowercase[axis]
        second = first if axis in averaged or axis in kept else first.upper()
        left, right = left + first, right + second
        if axis not in averaged:
            out += first if axis in kept else first + second
    summed = "" if u.ndim == ndim else "Z"
    size = math.prod(u.shape[axis] for axis in averaged)
    subscripts = f"{left}{summed},{right}{summed}->{out}"
    return jnp.einsum(subscripts, u, v, precision=jax.lax.Precision.HIGHEST) / size


def _is_none(axis: Any) -> bool:
    return axis is None


def _spread_axes(axes: Any, tree: Any) -> Any:
    """Return an axis for each leaf, counted from the first; lists and tuples of axes may stand for each other.

    None in the tree has the axis None, or is left out of `axes`.
    """
    leaves, structure = jax.tree.flatten(tree, is_leaf=_is_none)
    listed = [axes] * len(leaves) if isinstance(axes, int) else jax.tree.leaves(axes, is_leaf=_is_none)
    if len(listed) < len(leaves):
        given = iter(listed)
        listed = [None if leaf is None else next(given) for leaf in leaves]
    pairs = zip(listed, leaves, strict=True)
    counted = [None if axis is None or leaf is None else axis % len(leaf.shape) for axis, leaf in pairs]
    return jax.tree.unflatten(structure, counted)


def _along(function: Callable, axes: Any, tree: Any) -> Any:
    """Return a tree whose leaves have an axis more, or less."""
    apply = lambda axis, leaf: leaf if axis is None else function(leaf, axis)  # noqa: E731
    return jax.tree.map(apply, axes, tree, is_leaf=_is_none)
