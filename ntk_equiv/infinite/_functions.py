"""Mean and covariance in one call, for those who need them once."""

from typing import Any

import jax

from ntk_equiv import filters
from ntk_equiv._check import boolean, refusal
from ntk_equiv._typing import Inputs, KernelFunction, Scalar
from ntk_equiv.infinite._ensemble import InfiniteEnsemble


def ensemble_mean(
    kernel_fn: KernelFunction | tuple,
    train: Any,
    x_test: Inputs,
    t: Any,
    *,
    learning_rate: Scalar = 1.0,
    reduction: str = "sum",
    method: str = "auto",
) -> jax.Array:
    """The mean prediction of the infinite ensemble after gradient flow for a time t.

        μ_t(x) = Θ(x, X) Θ(X, X)⁻¹ (1 − exp(−ηΘ(X, X)t)) y

    Args:
        kernel_fn: from `ntk_equiv.stax`, from neural-tangents, or any function with the same arguments.
        train: `augment(x, y, rep_x, rep_y)`, or a plain pair `(x, y)`.
        x_test: test points, [m, ...].
        t: the training time: a number, a vector of times, or inf.
        learning_rate: η.
        reduction: `"sum"` for the loss ½Σ(f−y)²; `"mean"` for ½ of the mean, which divides η by the size of the labels.
        method: `"auto"`, `"dense"` or `"reduced"`, as for `InfiniteEnsemble`.

    Returns:
        [m, ...] in the shape of the labels, with an axis of times in front if t is a vector.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import ensemble_mean, stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(64), stax.Relu(), stax.Dense(1))
        >>> train = jnp.array([[1.0, 0.0], [0.0, 1.0]]), jnp.array([1.0, -1.0])
        >>> print(ensemble_mean(kernel_fn, train, jnp.array([[2.0, 0.0], [1.0, 1.0]]), float("inf")).round(4) + 0.0)
        [2. 0.]
    """
    filter = filters.gradient_flow(learning_rate)
    filter.checked_time(t)
    ens = InfiniteEnsemble(kernel_fn, train, filter, reduction=reduction, method=method)
    return ens.mean(ens.check_samples(x_test, "x_test"), t)


def ensemble_cov(
    kernel_fn: KernelFunction | tuple,
    train: Any,
    x_test: Inputs,
    t: Any,
    *,
    learning_rate: Scalar = 1.0,
    reduction: str = "sum",
    method: str = "auto",
    x_test2: Inputs | None = None,
    diag: bool = False,
) -> jax.Array:
    """The covariance of members of the infinite ensemble after gradient flow for a time t, equal for all channels.

        Σ_t(x, x') = [1, −A] · 𝒦 on (x, X) · [1, −A']ᵀ,        A = Θ(x, X) Θ⁻¹ (1 − exp(−ηΘt))

    Args:
        kernel_fn: from `ntk_equiv.stax`, from neural-tangents, or any function with the same arguments.
        train: `augment(x, y, rep_x, rep_y)`, or a plain pair `(x, y)`.
        x_test: test points, [m, ...].
        t: the training time: a number, a vector of times, or inf.
        learning_rate: η.
        reduction: `"sum"` for the loss ½Σ(f−y)²; `"mean"` for ½ of the mean, which divides η by the size of the labels.
        method: `"auto"`, `"dense"` or `"reduced"`, as for `InfiniteEnsemble`.
        x_test2: other test points; the same unless given.
        diag: the variances alone.

    Returns:
        [m, m2], with outputs on a grid [m, m2, h, h', w, w']; the variances [m] or [m, h, w] for `diag`. With an axis
        of times in front if t is a vector.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import ensemble_cov, stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(64), stax.Relu(), stax.Dense(1))
        >>> train = jnp.array([[1.0, 0.0], [0.0, 1.0]]), jnp.array([1.0, -1.0])
        >>> x_test = jnp.array([[2.0, 0.0], [-1.0, 0.0]])
        >>> print(ensemble_cov(kernel_fn, train, x_test, 0.0, diag=True), "before training")
        [1.   0.25] before training
        >>> print(ensemble_cov(kernel_fn, train, x_test, float("inf"), diag=True).round(4) + 0.0, "after it")
        [0.     0.2302] after it
    """
    if boolean(diag, "diag") and x_test2 is not None:
        fix = "A diagonal is that of one set of points: leave out `x_test2`, or set `diag=False`."
        raise refusal("x_test2", expected="left out for `diag=True`", got="another set of points", fix=fix)
    filter = filters.gradient_flow(learning_rate)
    filter.checked_time(t)
    ens = InfiniteEnsemble(kernel_fn, train, filter, reduction=reduction, method=method)
    x_test = ens.check_samples(x_test, "x_test")
    x_test2 = None if x_test2 is None else ens.check_samples(x_test2, "x_test2")
    return ens.var(x_test, t) if diag else ens.cov(x_test, t, x_test2)
