"""Training with kernel matrices that are given, from wherever they come: names and arguments are neural-tangents'.

    f_t = f_0 + Θ(·, X) φ_t(Θ) (y − f_0)        `gradient_descent_mse`, one network
    mean and covariance of such networks        `gradient_descent_mse_ensemble`, from a kernel function
    f'  = −η Θ(·, X) ∇L(f(X))                   `gradient_descent`, any loss
    posteriors of NNGP, NTK and NTKGP           `gp_inference`

The loss is ½ of the mean over all entries of y, and time is `learning_rate · t`. Kernels lack the axes of y that are
`trace_axes`, and have every other one twice, side by side. Singular matrices are fine: what they cannot fit is left
out. `diag_reg` is in units of the mean of the diagonal unless `diag_reg_absolute_scale` is set.
"""

import dataclasses
import math
from collections import namedtuple
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv import filters
from ntk_equiv._check import is_concrete, one_of, refusal
from ntk_equiv._positions import apart, canonical_axes, joint
from ntk_equiv._pytrees import dataclass_pytree
from ntk_equiv._typing import Array
from ntk_equiv.infinite import KernelMatrix, follow_loss, follow_loss_with_momentum, follow_to_the_end

__all__ = [
    "Gaussian",
    "ODEState",
    "gp_inference",
    "gradient_descent",
    "gradient_descent_mse",
    "gradient_descent_mse_ensemble",
    "max_learning_rate",
]


class Gaussian(NamedTuple):
    """Mean and covariance of predictions.

    Example:
        >>> from ntk_equiv import predict
        >>> predict.Gaussian(1.0, 0.5).covariance
        0.5
    """

    mean: Any
    covariance: Any


@dataclass_pytree
@dataclasses.dataclass(frozen=True, eq=False)
class ODEState:
    """Outputs, and with momentum their velocities q, at one time or at many.

    Example:
        >>> from ntk_equiv import predict
        >>> predict.ODEState(fx_train=1.0).fx_train
        1.0
    """

    fx_train: Any = None
    fx_test: Any = None
    qx_train: Any = None
    qx_test: Any = None


@dataclasses.dataclass(frozen=True)
class _Layout:
    """How outputs, of the shape of y but for the samples, are laid out as columns [N, C], C over the traced axes."""

    shape: tuple[int, ...]
    traced: tuple[int, ...]

    @classmethod
    def of(cls, y: Array, trace_axes: Any) -> "_Layout":
        axes = (trace_axes,) if isinstance(trace_axes, int) else tuple(trace_axes)
        if not all(isinstance(axis, int) and -y.ndim <= axis < y.ndim for axis in axes):
            fix = "Name the axes of `y_train` that the kernel lacks, -1 for channels."
            raise refusal("trace_axes", expected=f"axes of {y.ndim}, from {-y.ndim} on", got=trace_axes, fix=fix)
        return cls(y.shape, canonical_axes(axes, y.ndim))

    def columns(self, f: Any, rows: int) -> Array:
        last = range(len(self.shape) - len(self.traced), len(self.shape))
        shape, given = self.outputs(rows), jnp.shape(f)
        own = math.prod(size for axis, size in enumerate(shape) if axis not in self.traced)
        fits = len(given) <= len(shape) and all(a in (1, b) for a, b in zip(given[::-1], shape[::-1], strict=False))
        if own != rows or not fits:
            fix = (
                "Give labels the shape [n, channels], for one channel `y_train[:, None]`; initial predictions likewise."
            )
            expected = f"labels and initial predictions for the {rows} rows of the kernel, over `trace_axes`"
            raise refusal("y_train", expected=expected, got=f"shape {given}", fix=fix)
        return jnp.moveaxis(jnp.broadcast_to(f, shape), self.traced, last).reshape(rows, -1)

    def outputs(self, rows: int) -> tuple[int, ...]:
        rest = math.prod(size for axis, size in enumerate(self.shape) if axis and axis not in self.traced)
        if 0 in self.traced:
            return self.shape
        return (rows // rest, *self.shape[1:])

    def restore(self, columns: Array, leading: tuple[int, ...] = ()) -> Array:
        shape = self.outputs(columns.shape[-2])
        kept = [size for axis, size in enumerate(shape) if axis not in self.traced]
        values = columns.reshape(*leading, *kept, *(shape[axis] for axis in self.traced))
        count = len(leading)
        last = range(count + len(kept), count + len(shape))
        return jnp.moveaxis(values, last, [count + axis for axis in self.traced])


def _regularized(k: Array, diag_reg: Any, absolute: bool) -> KernelMatrix:
    matrix = joint(jnp.asarray(k))
    scale = 1.0 if absolute else jnp.trace(matrix) / len(matrix)
    return KernelMatrix.of(matrix + diag_reg * scale * jnp.eye(len(matrix), dtype=matrix.dtype))


def _flat_times(t: Any, dtype: Any) -> tuple[Array, tuple[int, ...]]:
    times = jnp.asarray(jnp.inf if t is None else t, dtype)
    return times.reshape(-1), times.shape


def gradient_descent_mse(
    k_train_train: Array,
    y_train: Array,
    learning_rate: Any = 1.0,
    diag_reg: Any = 0.0,
    diag_reg_absolute_scale: bool = False,
    trace_axes: Any = (-1,),
) -> Callable:
    """Return `predict_fn(t, fx_train_0, fx_test_0, k_test_train)` for gradient flow of the mean squared error.

    Args:
        k_train_train: the kernel of the training samples.
        y_train: their labels.
        learning_rate: by which `t` is multiplied.
        diag_reg: what is added to the diagonal.
        diag_reg_absolute_scale: whether `diag_reg` is in absolute units.
        trace_axes: axes of `y_train` that the kernel lacks.

    Returns:
        A function that returns outputs on training samples, test samples or both, with the axes of `t` in front. None
        as `t` is the end of training; None as `fx_train_0` or `fx_test_0` leaves these samples out.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import predict
        >>> predict_fn = predict.gradient_descent_mse(2 * jnp.eye(1), jnp.array([[1.0]]))
        >>> print(predict_fn(None, 0.0, 0.0, jnp.array([[1.0]])))
        (Array([[1.]], dtype=float64), Array([[0.5]], dtype=float64))
    """
    layout = _Layout.of(y_train, trace_axes)
    matrix = cache(lambda: _regularized(k_train_train, diag_reg, diag_reg_absolute_scale))
    flow = filters.gradient_flow(learning_rate)

    def predict_fn(t: Any = None, fx_train_0: Any = 0.0, fx_test_0: Any = None, k_test_train: Any = None) -> Any:
        _check_starts(fx_train_0, fx_test_0, k_test_train)
        times, shape = _flat_times(t, k_train_train.dtype)
        with jax.ensure_compile_time_eval():
            solved = matrix()
        rows = math.prod(k_train_train.shape[::2])
        start = layout.columns(0.0 if fx_train_0 is None else fx_train_0, rows)
        missing = layout.columns(y_train, rows) - start
        found = []
        if fx_train_0 is not None:
            fit = solved.apply(flow, times, missing, entries=y_train.size, part="fit")
            found.append(layout.restore(start[None] + fit, shape))
        if fx_test_0 is not None:
            k_test = joint(jnp.asarray(k_test_train))
            change = k_test @ solved.apply(flow, times, missing, entries=y_train.size)
            found.append(layout.restore(layout.columns(fx_test_0, len(k_test))[None] + change, shape))
        return found[0] if len(found) == 1 else tuple(found)

    return predict_fn


def gradient_descent(
    loss: Callable,
    k_train_train: Array,
    y_train: Array,
    learning_rate: Any = 1.0,
    momentum: Any = None,
    trace_axes: Any = (-1,),
) -> Callable:
    """Return `predict_fn(t, fx_train_or_state_0, fx_test_0, k_test_train)` for gradient flow of any loss.

    Args:
        loss: a function of outputs and labels that returns one number.
        k_train_train: the kernel of the training samples.
        y_train: their labels.
        learning_rate: by which `t` is multiplied; by its square root if there is momentum.
        momentum: that of the steps whose limit is taken; None for none.
        trace_axes: axes of `y_train` that the kernel lacks.

    Returns:
        A function like that of `gradient_descent_mse`. From an `ODEState` it returns an `ODEState`. Inside `jax.jit`
        the end of training is refused, and a traced time that turns out to be infinite gives NaN.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import predict
        >>> square = lambda fx, y: jnp.sum((fx - y) ** 2) / 2
        >>> predict_fn = predict.gradient_descent(square, jnp.eye(1), jnp.array([[1.0]]))
        >>> print(predict_fn(1.0).round(4))      # 1 − 1/e
        [[0.6321]]
    """
    layout, rows = _Layout.of(y_train, trace_axes), math.prod(k_train_train.shape[::2])
    theta, dtype = joint(jnp.asarray(k_train_train)), k_train_train.dtype
    tolerance = 1e-8 if dtype == jnp.float64 else 1e-5
    rate = learning_rate if momentum is None else learning_rate**0.5
    friction = 0.0 if momentum is None else (1 - momentum) / rate

    def gradient(f: Array, y: Array) -> Array:
        return layout.columns(jax.grad(lambda outputs: loss(outputs, y))(layout.restore(f)), rows)

    def flow(kernels: Array, start: Array, velocity: Any, times: Array) -> tuple:
        if momentum is None:
            return follow_loss(gradient, y_train, kernels, start, times, 10 * tolerance), None
        state = start, velocity
        return follow_loss_with_momentum(gradient, y_train, kernels, state, friction, times, tolerance)

    def reach(kernels: Array, start: Array, velocity: Array, times: Array) -> tuple:
        """Return outputs and velocities at times in any order, which may be infinite."""
        ended = jnp.isinf(times)
        finite = jnp.where(ended, 0, times)
        order = jnp.argsort(finite)
        found = flow(kernels, start, velocity, finite[order])
        found = jax.tree.map(lambda values: values[jnp.argsort(order)], found)
        if not is_concrete(ended):  # Inside `jit` nobody knows when training ends, and these times have no result.
            return jax.tree.map(lambda values: jnp.where(ended[:, None, None], jnp.nan, values), found)
        if not ended.any():
            return found

        def advance(state: tuple, time: float) -> tuple:
            after = flow(kernels, state[0], state[1], jnp.asarray([time], dtype))
            return jax.tree.map(lambda values: values[0], after)

        unit = float(1 / (jnp.linalg.norm(theta) + jnp.finfo(dtype).tiny))
        last = follow_to_the_end(advance, (start, None if momentum is None else velocity), unit, 10 * tolerance)
        return jax.tree.map(lambda end, values: jnp.where(ended[:, None, None], end[None], values), last, found)

    def predict_fn(
        t: Any = None, fx_train_or_state_0: Any = 0.0, fx_test_0: Any = None, k_test_train: Any = None
    ) -> Any:
        given = fx_train_or_state_0
        state = given if isinstance(given, ODEState) else ODEState(given, fx_test_0)
        if isinstance(given, ODEState) and fx_test_0 is not None:
            fix = "It is `fx_test` of the state."
            raise refusal("fx_test_0", expected="None beside an ODEState", got="outputs", fix=fix)
        if momentum is None and not (state.qx_train is None and state.qx_test is None):
            raise refusal("state", expected="without velocities", got="some", fix="Set `momentum`, or leave them out.")
        _check_starts(state.fx_train, state.fx_test, k_test_train)
        times, shape = _flat_times(t, dtype)
        kernels = [theta] if state.fx_test is None else [theta, joint(jnp.asarray(k_test_train))]
        counts = [len(k) for k in kernels]
        place = _stack(layout, (state.fx_train, state.fx_test), counts)
        speed = _stack(layout, (state.qx_train, state.qx_test), counts)
        place, speed = place.astype(dtype), speed.astype(dtype)
        traced = not all(map(is_concrete, (times * rate, y_train, place, *kernels)))
        if traced and (t is None or (is_concrete(t) and np.isinf(t).any())):
            fix = "The end of training is looked for step by step: ask for it outside, or for a large finite time."
            raise refusal("t", expected="finite inside `jit`, `grad` and `vmap`", got="the end of training", fix=fix)
        found = reach(jnp.concatenate(kernels), place, speed, times * rate)

        def pick(values: Any, test: bool) -> Any:
            if values is None or (test and len(kernels) == 1):
                return None
            return layout.restore(values[:, rows:] if test else values[:, :rows], shape)

        fx_train, fx_test, qx_train, qx_test = (pick(values, test) for values in found for test in (False, True))
        if isinstance(given, ODEState):
            return ODEState(fx_train, fx_test, qx_train, qx_test)
        if fx_test_0 is None:
            return fx_train
        return fx_test if given is None else (fx_train, fx_test)

    return predict_fn


def gp_inference(
    k_train_train: Any,
    y_train: Array,
    diag_reg: Any = 0.0,
    diag_reg_absolute_scale: bool = False,
    trace_axes: Any = (-1,),
) -> Callable:
    """Return `predict_fn(get, k_test_train, k_test_test)`, the posterior of NNGP, NTK or NTKGP.

    Args:
        k_train_train: the kernels of the training samples: an array, or anything with fields `nngp` and `ntk`.
        y_train: their labels.
        diag_reg: what is added to the diagonal.
        diag_reg_absolute_scale: whether `diag_reg` is in absolute units.
        trace_axes: axes of `y_train` that the kernels lack.

    Returns:
        A function that returns means, or with `k_test_test` each a `Gaussian`, for one name or for several.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import predict
        >>> predict_fn = predict.gp_inference(2 * jnp.eye(1), jnp.array([[1.0]]))
        >>> print(predict_fn("nngp", jnp.array([[1.0]]), jnp.array([[1.0]])))
        Gaussian(mean=Array([[0.5]], dtype=float64), covariance=Array([[0.5]], dtype=float64))
    """
    layout = _Layout.of(y_train, trace_axes)
    matrix = cache(lambda name: _regularized(_field(k_train_train, name), diag_reg, diag_reg_absolute_scale))
    end, now = filters.converged(), jnp.full(1, jnp.inf)

    def posterior(name: str, k_test_train: Any, k_test_test: Any) -> Any:
        one_of(name, ("nngp", "ntk", "ntkgp"), "get")
        trained, prior = name.removesuffix("gp") if name == "ntkgp" else name, "ntk" if name == "ntkgp" else "nngp"
        if k_test_train is None:
            kernel = _field(k_train_train, trained)
            mean = y_train.astype(kernel.dtype)
            return mean if k_test_test is None else Gaussian(mean, jnp.zeros_like(kernel))
        k_test, solved = joint(jnp.asarray(_field(k_test_train, trained))), matrix(trained)
        labels = layout.columns(y_train, k_test.shape[1]).astype(k_test.dtype)
        mean = layout.restore(k_test @ solved.apply(end, now, labels)[0])
        if k_test_test is None:
            return mean
        if name == "ntk" and not (hasattr(k_train_train, "nngp") and hasattr(k_test_train, "nngp")):
            fix = "Pass kernels with both fields, `kernel_fn(x1, x2, ('nngp', 'ntk'))`."
            raise refusal("k_train_train, k_test_train", expected="NNGP and NTK", got="one array", fix=fix)
        prior_test, k_tt = joint(jnp.asarray(_field(k_test_train, prior))), _field(k_test_test, prior)
        weights = solved.apply(end, now, k_test.T)[0].T
        cov = joint(jnp.asarray(k_tt)) - weights @ prior_test.T
        if name == "ntk":
            cov = cov - (weights @ prior_test.T).T + weights @ joint(jnp.asarray(k_train_train.nngp)) @ weights.T
        return Gaussian(mean, apart(cov, k_tt.shape))

    def predict_fn(get: Any = None, k_test_train: Any = None, k_test_test: Any = None) -> Any:
        return _for_each(get, lambda name: posterior(name, k_test_train, k_test_test))

    return predict_fn


def gradient_descent_mse_ensemble(
    kernel_fn: Callable,
    x_train: Any,
    y_train: Array,
    learning_rate: Any = 1.0,
    diag_reg: Any = 0.0,
    diag_reg_absolute_scale: bool = False,
    trace_axes: Any = (-1,),
    **kernel_fn_train_train_kwargs: Any,
) -> Callable:
    """Return `predict_fn(t, x_test, get, compute_cov)` for the infinite ensemble under gradient flow.

    `ntk_equiv.InfiniteEnsemble` computes the same for large and for symmetric data.

    Args:
        kernel_fn: any kernel function.
        x_train: the training samples.
        y_train: their labels.
        learning_rate: by which `t` is multiplied.
        diag_reg: what is added to the diagonal.
        diag_reg_absolute_scale: whether `diag_reg` is in absolute units.
        trace_axes: axes of `y_train` that kernels lack.
        kernel_fn_train_train_kwargs: keywords of `kernel_fn`; pairs are for its two arguments.

    Returns:
        A function that returns means, or with `compute_cov` each a `Gaussian`, for one name or for several.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import predict, stax
        >>> x, y = jnp.array([[1.0], [2.0]]), jnp.array([[1.0], [2.0]])
        >>> predict_fn = predict.gradient_descent_mse_ensemble(stax.Dense(1)[2], x, y)
        >>> print(predict_fn(x_test=jnp.array([[3.0]]), get="ntk"))
        [[3.]]
    """
    layout, given = _Layout.of(y_train, trace_axes), kernel_fn_train_train_kwargs
    train = cache(lambda name: kernel_fn(x_train, None, name, **given))
    matrix = cache(lambda name: _regularized(train(name), diag_reg, diag_reg_absolute_scale))
    flow = filters.gradient_flow(learning_rate)

    def predict_fn(
        t: Any = None, x_test: Any = None, get: Any = None, compute_cov: bool = False, **kernel_fn_test_test_kwargs: Any
    ) -> Any:
        own = given | kernel_fn_test_test_kwargs
        pairs = own | {  # Of two pairs the first entries are for test samples and for training samples.
            name: (value[0], given[name][0])
            for name, value in kernel_fn_test_test_kwargs.items()
            if isinstance(value, tuple) and isinstance(given.get(name), tuple)
        }
        kernel = cache(lambda name: kernel_fn(x_test, x_train, name, **pairs))
        prior = cache(lambda: kernel_fn(x_test, None, "nngp", **own))

        def at_time(name: str) -> Any:
            one_of(name, ("nngp", "ntk"), "get")
            solved, like = matrix(name), train(name)
            times, shape = _flat_times(t, like.dtype)
            labels = layout.columns(y_train, math.prod(like.shape[::2])).astype(like.dtype)
            settings: dict[str, Any] = {"entries": y_train.size}
            if x_test is None:
                mean = layout.restore(solved.apply(flow, times, labels, **settings, part="fit"), shape)
                if not compute_cov:
                    return mean
                identity = jnp.eye(len(labels), dtype=like.dtype)
                rest = solved.apply(flow, times, identity, **settings, part="residual")
                cov = rest @ joint(train("nngp")) @ jnp.swapaxes(rest, 1, 2)
                return Gaussian(mean, apart(cov.reshape(*shape, *cov.shape[1:]), like.shape))
            k_test = joint(kernel(name))
            mean = layout.restore(k_test @ solved.apply(flow, times, labels, **settings), shape)
            if not compute_cov:
                return mean
            if name == "nngp":
                cov = joint(prior())[None] - k_test @ solved.apply(flow, 2 * times, k_test.T, **settings)
            else:
                weights = jnp.swapaxes(solved.apply(flow, times, k_test.T, **settings), 1, 2)
                mixed = weights @ joint(kernel("nngp")).T
                cov = joint(prior())[None] - mixed - jnp.swapaxes(mixed, 1, 2)
                cov = cov + weights @ joint(train("nngp")) @ jnp.swapaxes(weights, 1, 2)
            return Gaussian(mean, apart(cov.reshape(*shape, *cov.shape[1:]), prior().shape))

        return _for_each(get, at_time)

    return predict_fn


def max_learning_rate(
    ntk_train_train: Array, y_train_size: int | None = None, momentum: Any = 0.0, eps: float = 1e-12
) -> Array:
    """Return the largest rate at which descent of the mean squared error does not diverge.

    Args:
        ntk_train_train: the kernel of the training samples.
        y_train_size: the number of entries of their labels; by default the rows of the kernel.
        momentum: that of the steps.
        eps: is added to the largest eigenvalue.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import predict
        >>> print(predict.max_learning_rate(jnp.eye(2)).round(6))
        4.0
    """
    matrix = joint(jnp.asarray(ntk_train_train))
    largest = jnp.linalg.eigvalsh(matrix)[-1] + eps
    return filters.max_learning_rate(largest, beta=momentum, size=len(matrix) if y_train_size is None else y_train_size)


def _stack(layout: _Layout, values: tuple, counts: list[int]) -> Array:
    """Return outputs of training samples and test samples as columns; None stands for zero."""
    parts = zip(values, counts, strict=False)  # there may be no test samples
    return jnp.concatenate([layout.columns(0.0 if value is None else value, count) for value, count in parts])


def _for_each(get: Any, compute: Callable[[str], Any]) -> Any:
    if isinstance(get, str):
        return compute(get.lower())
    names = ("nngp", "ntk") if get is None else tuple(name.lower() for name in get)
    return namedtuple("Gaussians", names)(*map(compute, names))


def _field(kernel: Any, name: str) -> Array:
    return kernel if hasattr(kernel, "ndim") else getattr(kernel, name)


def _check_starts(fx_train_0: Any, fx_test_0: Any, k_test_train: Any) -> None:
    if fx_train_0 is None and fx_test_0 is None:
        fix = "Pass outputs at the beginning for the samples whose outputs you want; 0.0 will do."
        raise refusal("fx_train_0, fx_test_0", expected="given, at least one", got="None for both", fix=fix)
    if fx_test_0 is not None and k_test_train is None:
        fix = "Pass the kernel of test samples with training samples, `kernel_fn(x_test, x_train, 'ntk')`."
        raise refusal("k_test_train", expected="given with `fx_test_0`", got="None", fix=fix)
