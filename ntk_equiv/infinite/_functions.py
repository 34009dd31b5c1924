"""Convenience functions: mean and covariance in one call, and the limit of ever finer rotations.

Augmentation by C_k ⊂ SO(2) with invariant labels and the loss that is a *mean* over all samples has a limit as k → ∞:
the sums over the group become averages over the Haar measure,

    μ_t(x) = Θ̄(x, X) φ_t(Θ̄ / s)/s y,        Θ̄(x, x') = ∫ Θ(x, ρ_X(g)x') dg,      s the size of y.

Equally spaced rotations approach it, exponentially fast for smooth kernels. (Under `reduction="sum"` the effective
time grows with k, and there is no limit.) So `haar_limit` doubles k until predictions no longer change.

A mean and a covariance of the same data, asked for one after the other, solve the same blocks. `_LastBlocks` keeps them
between the calls.
"""

import dataclasses
import weakref
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ntk_equiv import filters, reps
from ntk_equiv._check import boolean, is_concrete, positive_integer, refusal, scalar
from ntk_equiv._gram import kernel_function, split_kernel
from ntk_equiv._typing import Inputs, KernelFunction, Scalar
from ntk_equiv.groups import SO2
from ntk_equiv.infinite._blocks import GramBlocks
from ntk_equiv.infinite._ensemble import InfiniteEnsemble
from ntk_equiv.infinite._symmetry import choose_training_set
from ntk_equiv.orbits import augment
from ntk_equiv.reps import Representation, check_representation
from ntk_equiv.solvers import Eigh

# Larger blocks are not kept between calls: who has such data should keep an `InfiniteEnsemble`.
MOST_BYTES_KEPT = 2**30


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
    """Return the mean prediction of the infinite ensemble after gradient flow for a time t.

        μ_t(x) = Θ(x, X) Θ(X, X)⁻¹ (1 − exp(−ηΘ(X, X)t)) y

    Args:
        kernel_fn: from `ntk_equiv.stax`, from neural-tangents, or any function with the same arguments.
        train: `augment(x, y, rep_x, rep_y)`, or a plain pair `(x, y)`.
        x_test: test samples, [m, ...].
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
    filter.checked_time(t)  # before anything expensive
    ens = _LAST.ensemble(kernel_fn, train, filter, reduction, method, covariance=False)
    x_test, (times, single) = ens.check_samples(x_test, "x_test"), ens._check_times(t)
    mean = ens._mean(x_test, times)
    _LAST.keep(kernel_fn, train, method, ens)
    return mean[0] if single else mean


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
    """Return the covariance of members after gradient flow for a time t, the same for all channels.

        Σ_t(x, x') = [1, −A] · 𝒦 on (x, X) · [1, −A']ᵀ,        A = Θ(x, X) Θ⁻¹ (1 − exp(−ηΘt))

    Args:
        kernel_fn: from `ntk_equiv.stax`, from neural-tangents, or any function with the same arguments.
        train: `augment(x, y, rep_x, rep_y)`, or a plain pair `(x, y)`.
        x_test: test samples, [m, ...].
        t: the training time: a number, a vector of times, or inf.
        learning_rate: η.
        reduction: `"sum"` for the loss ½Σ(f−y)²; `"mean"` for ½ of the mean, which divides η by the size of the labels.
        method: `"auto"`, `"dense"` or `"reduced"`, as for `InfiniteEnsemble`.
        x_test2: other test samples; the same unless given.
        diag: whether to return the variances alone.

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
        fix = "A diagonal belongs to one set of samples: leave out `x_test2`, or set `diag=False`."
        raise refusal("x_test2", expected="left out for `diag=True`", got="another set of samples", fix=fix)
    filter = filters.gradient_flow(learning_rate)
    filter.checked_time(t)  # before anything expensive
    ens = _LAST.ensemble(kernel_fn, train, filter, reduction, method, covariance=True)
    x_test, (times, single) = ens.check_samples(x_test, "x_test"), ens._check_times(t)
    x_test2 = None if x_test2 is None else ens.check_samples(x_test2, "x_test2")
    cov = ens._var(x_test, times) if diag else ens._cov(x_test, times, x_test2)
    _LAST.keep(kernel_fn, train, method, ens)
    return cov[0] if single else cov


class _LastBlocks:
    """The solved blocks of one call, for the next one with the same kernel and the same arrays.

    They are kept while these arrays are in use, and only if they are small. Data in NumPy arrays, which may change
    without notice, are not recognised.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self, _: Any = None) -> None:
        """Keep nothing."""
        self._key: tuple | None = None
        self._alive: list[weakref.ref] = []
        self._solved: dict[str, Any] = {}
        self._in_labels: tuple[int, ...] = ()

    def ensemble(
        self,
        kernel_fn: KernelFunction | tuple,
        train: Any,
        filter: filters.Filter,
        reduction: str,
        method: str,
        *,
        covariance: bool,
    ) -> InfiniteEnsemble:
        """Return the ensemble, with the blocks that are kept if they are its own."""
        if self._key is None or self._key != _identity(kernel_fn, train, method):
            if covariance:
                return InfiniteEnsemble._with_covariance(kernel_fn, train, filter, reduction=reduction, method=method)
            return InfiniteEnsemble(kernel_fn, train, filter, reduction=reduction, method=method)
        blocks = GramBlocks(
            choose_training_set(method, split_kernel(kernel_function(kernel_fn)), train), **self._solved
        )
        first = dataclasses.replace(blocks, by_irrep={number: blocks.by_irrep[number] for number in self._in_labels})
        ens = InfiniteEnsemble(kernel_fn, train, filter, reduction=reduction, solver=Eigh(), blocks=first)
        ens._completed["blocks"] = blocks
        return ens

    def keep(self, kernel_fn: KernelFunction | tuple, train: Any, method: str, ens: InfiniteEnsemble) -> None:
        """Keep the blocks of an ensemble in place of those before."""
        self.forget()
        key, blocks = _identity(kernel_fn, train, method), ens._completed.get("blocks", ens.blocks)
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(blocks.by_irrep))
        if key is None or not isinstance(ens.solver, Eigh) or size > MOST_BYTES_KEPT:
            return
        self._key, self._in_labels = key, tuple(ens.blocks.by_irrep)
        # Without the data: what is kept must not keep these arrays alive. As soon as one is gone, so are the blocks.
        self._solved = {"by_irrep": blocks.by_irrep, "scale": blocks.scale, "noise": blocks.noise}
        self._alive = [weakref.ref(leaf, self.forget) for leaf in jax.tree.leaves(train)]


def _identity(kernel_fn: KernelFunction | tuple, train: Any, method: str) -> tuple | None:
    """Return what tells a kernel and arrays from others while they exist; None for arrays that may change."""
    kernel, structure = jax.tree.flatten(split_kernel(kernel_function(kernel_fn)))
    arrays, form = jax.tree.flatten(train)
    if not is_concrete((kernel, arrays)) or not all(isinstance(array, jax.Array) for array in arrays):
        return None
    if not all(isinstance(value, int | float) for value in kernel):
        return None
    return method, structure, kernel, form, [id(array) for array in arrays]


_LAST = _LastBlocks()


class HaarLimit(NamedTuple):
    """An ensemble augmented by so many rotations that more of them change nothing any more.

    Attributes:
        ensemble: the one augmented by C_k with the last k.
        order: that k.
        change: the change of the mean prediction from k/2 to k, relative to its largest entry.
        changes: the same for every k that was tried.
        converged: whether the last change is within the tolerance.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import groups, reps, stax
        >>> from ntk_equiv.infinite import haar_limit
        >>> x, y, line = jnp.array([[1.0, 0.0]]), jnp.array([1.0]), stax.Dense(1, b_std=1.0).kernel_fn
        >>> limit = haar_limit(line, x, y, reps.matrix(groups.SO2), jnp.array([[2.0, 0.0]]), 1.0, start=2)
        >>> limit.converged, limit.order, list(limit.changes)      # half turns leave nothing of a line but its constant
        (True, 4, [4])
    """

    ensemble: InfiniteEnsemble
    order: int
    change: float
    changes: dict[int, float]
    converged: bool


def haar_limit(
    kernel_fn: KernelFunction,
    x: Inputs,
    y: Any,
    rep: Representation,
    x_test: Inputs,
    t: Any = None,
    *,
    filter: Any = None,
    rtol: float = 1e-6,
    start: int = 4,
    max_order: int = 4096,
) -> HaarLimit:
    """Train the infinite ensemble on data augmented by all of SO(2), with invariant labels.

    Args:
        kernel_fn: from `ntk_equiv.stax`, from neural-tangents, or any function with the same arguments.
        x: base samples, [n, ...].
        y: their labels, which rotations do not change.
        rep: how SO(2) acts on samples, such as `reps.matrix(groups.SO2)`.
        x_test: samples at which predictions are compared.
        t: the training time, one or several; the filter's own unless given.
        filter: how it is trained; gradient flow at rate 1 unless given. The loss is a mean over all labels.
        rtol: the change of the mean prediction, relative to its largest entry, at which to stop.
        start: the number of rotations to start with, doubled from there.
        max_order: the number not to exceed.

    Returns:
        The record, with the last ensemble and how much the last doubling changed.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import groups, reps, stax
        >>> from ntk_equiv.infinite import haar_limit
        >>> _, _, kernel_fn = stax.serial(stax.Dense(64, 0.8, 0.5), stax.Erf(), stax.Dense(1))
        >>> x, y = jnp.array([[1.0, 0.0], [2.0, 0.0]]), jnp.array([1.0, -1.0])
        >>> circle = jnp.array([[1.5, 0.0], [0.0, 1.5], [0.9, 1.2]])
        >>> limit = haar_limit(kernel_fn, x, y, reps.matrix(groups.SO2), circle, 10.0, rtol=0.01)
        >>> limit.converged, limit.order          # from 8 to 16 rotations it still changes, but by less than 1 %
        (True, 16)
    """
    if check_representation(rep, "rep").group != SO2:
        fix = "Pass for example `reps.matrix(groups.SO2)`; augment by a finite group with `augment`."
        raise refusal("rep", expected="a representation of SO(2)", got=repr(rep), fix=fix)
    order, last = positive_integer(start, "start"), positive_integer(max_order, "max_order")
    rtol = scalar(rtol, "rtol", at_least=0)
    ens = _ensemble_of_rotations(kernel_fn, x, y, rep, order, filter)
    before = ens.mean(ens.check_samples(x_test, "x_test"), t)
    changes: dict[int, float] = {}
    while True:
        order *= 2
        ens = _ensemble_of_rotations(kernel_fn, x, y, rep, order, filter)
        mean = ens.mean(x_test, t)
        changes[order] = float(jnp.max(jnp.abs(mean - before), initial=0) / jnp.maximum(jnp.max(jnp.abs(mean)), 1e-300))
        if changes[order] <= rtol or 2 * order > last:
            return HaarLimit(ens, order, changes[order], changes, changes[order] <= rtol)
        before = mean


def _ensemble_of_rotations(
    kernel_fn: KernelFunction, x: Inputs, y: Any, rep: Representation, order: int, filter: Any
) -> InfiniteEnsemble:
    train = augment(x, y, reps.restrict(rep, SO2.finite(order)))
    return InfiniteEnsemble(kernel_fn, train, filter, reduction="mean")
