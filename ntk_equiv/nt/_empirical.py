"""Both kernels of a finite network, and their mean over random networks, with neural-tangents' arguments."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from ntk_equiv._check import is_listed, positive_integers
from ntk_equiv._typing import Array, Kernel, select
from ntk_equiv.empirical import NtkImplementation, empirical_nngp_fn, empirical_ntk_fn
from ntk_equiv.nt._batch import batch

Axes = int | tuple[int, ...]


def empirical_kernel_fn(
    f: Callable,
    trace_axes: Axes = (-1,),
    diagonal_axes: Axes = (),
    vmap_axes: Any = None,
    implementation: int = NtkImplementation.JACOBIAN_CONTRACTION,
    **internal: Any,
) -> Callable:
    """Return the function `(x1, x2, get, params, **kwargs)` that gives both kernels of a finite network.

    Example:
        >>> import jax.numpy as jnp
        >>> import ntk_equiv.nt as nt
        >>> kernel_fn = nt.empirical_kernel_fn(lambda w, x: x @ w)
        >>> kernel = kernel_fn(jnp.array([[1.0, 2.0]]), None, ("nngp", "ntk"), jnp.ones((2, 1)))
        >>> print(kernel.nngp, kernel.ntk)
        [[9.]] [[5.]]
    """
    functions = {
        "nngp": empirical_nngp_fn(f, trace_axes, diagonal_axes),
        "ntk": empirical_ntk_fn(f, trace_axes, diagonal_axes, vmap_axes, implementation),
    }

    def kernel_fn(x1: Any, x2: Any, get: Any, params: Any, **kwargs: Any) -> Any:
        names = ("nngp", "ntk") if get is None else (get,) if isinstance(get, str) else tuple(get)
        found = {name: functions[name](x1, x2, params, **kwargs) for name in names}
        return select(Kernel(found.get("nngp"), found.get("ntk")), get if isinstance(get, str) else names)

    return kernel_fn


def monte_carlo_kernel_fn(
    init_fn: Callable,
    apply_fn: Callable,
    key: Array,
    n_samples: Any,
    batch_size: int = 0,
    device_count: int = -1,
    store_on_device: bool = True,
    trace_axes: Axes = (-1,),
    diagonal_axes: Axes = (),
    vmap_axes: Any = None,
    implementation: int = NtkImplementation.JACOBIAN_CONTRACTION,
    **internal: Any,
) -> Callable:
    """Return the mean of the kernels over random networks, a function `(x1, x2, get, **kwargs)`.

    If `n_samples` are several numbers, the function returns an iterator over the means of so many. Other arguments are
    those of neural-tangents. For standard errors call `ntk_equiv.monte_carlo_kernel_fn`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import ntk_equiv.nt as nt
        >>> init_fn, apply_fn, _ = nt.stax.Dense(1)
        >>> kernel_fn = nt.monte_carlo_kernel_fn(init_fn, apply_fn, jax.random.key(0), (1, 2))
        >>> [ntk.round(6).tolist() for ntk in kernel_fn(jnp.array([[1.0, 2.0]]), None, "ntk")]
        [[[2.5]], [[2.5]]]
    """
    kernel_fn = empirical_kernel_fn(apply_fn, trace_axes, diagonal_axes, vmap_axes, implementation)
    several = is_listed(n_samples) or isinstance(n_samples, set)
    fix = "Pass how many networks, or several such numbers."
    counts = sorted(set(positive_integers(list(n_samples) if several else [n_samples], "n_samples", fix=fix)))

    @partial(jax.jit, static_argnames=("get", "same"))
    def of_one_network(x1: Any, x2: Any, key: Array, get: Any, same: bool, kwargs: dict[str, Any]) -> Any:
        init_key, noise_key = jax.random.split(key)
        params = init_fn(init_key, jax.tree.map(jnp.shape, x1))[1]
        return kernel_fn(x1, None if same else x2, get, params, rng=noise_key, **kwargs)

    def sample(x1: Any, x2: Any, key: Array, get: Any, **kwargs: Any) -> Any:
        return of_one_network(x1, x2, key, get, x2 is None, kwargs)

    sample = batch(sample, batch_size, device_count, store_on_device)

    def means(x1: Any, x2: Any, get: Any, kwargs: dict[str, Any]) -> Iterator[Any]:
        total, next_key = None, key
        get = get if get is None or isinstance(get, str) else tuple(get)
        for count in range(1, counts[-1] + 1):
            next_key, own_key = jax.random.split(next_key)
            one = sample(x1, x2, own_key, get, **kwargs)
            total = one if total is None else jax.tree.map(jnp.add, total, one)
            if count in counts:
                yield jax.tree.map(lambda k, n=count: k / n, total)

    def sampled(x1: Any, x2: Any = None, get: Any = None, **kwargs: Any) -> Any:
        found = means(x1, x2, get, kwargs)
        return found if several else next(found)

    return sampled
