"""How the law of the trained ensemble is put together: kernels at test points, blocks, responses.

The parts are in `_fit` (blocks), `_response` (filters) and `_laws` (what a sector contributes). Here they meet the
data: which sectors are needed, what is decomposed when, and how many test points are treated at a time.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from ntk_equiv import filters
from ntk_equiv._check import is_concrete, refusal
from ntk_equiv._gram import Guest, gram, samples
from ntk_equiv._positions import joint
from ntk_equiv._typing import Inputs, KernelFn
from ntk_equiv.infinite import _laws
from ntk_equiv.infinite._fit import ENTRIES_AT_A_TIME, Fit, check_positions, fitted
from ntk_equiv.infinite._response import response, tolerance
from ntk_equiv.infinite._sectors import coefficients, row_coefficients, sectors_of
from ntk_equiv.infinite._training_set import TrainingSet, as_labels


class Engine:
    """The state of a fitted ensemble, and the sums over sectors that its predictions are made of."""

    kernel_fn: KernelFn
    train: Any
    filter: filters.Filter
    reduction: str
    method: str
    reason: str
    _data: TrainingSet
    _fit: Fit

    @property
    def _entries(self) -> int:
        """Over how many entries the loss is a mean."""
        return self._data.order * self._data.y.size if self.reduction == "mean" else 1

    def _times(self, t: Any) -> tuple[jax.Array, bool]:
        t = jnp.asarray(self.filter.checked_time(t), self._fit.scale.dtype)
        return jnp.atleast_1d(t), t.ndim == 0

    def _points(self, x: Inputs, argument: str = "x") -> Inputs:
        """Test points as the kernel takes them, if they are such as it was trained on."""
        x, own = samples(self.kernel_fn, x, argument), self._data.x
        shapes, known = ([leaf.shape[1:] for leaf in jax.tree.leaves(tree)] for tree in (x, own))
        if shapes != known:
            expected = f"points like those of training, [m, {', '.join(map(str, known[0]))}]"
            fix = "Test points have the features and positions of the training points."
            got = f"points [m, {', '.join(map(str, shapes[0]))}]"
            raise refusal(argument, expected=expected, got=got, fix=fix)
        return x

    def _complete(self, *, nngp: bool) -> Fit:
        """The blocks of all sectors, kept if they could be computed now."""
        everything = range(len(sectors_of(self._data.group)))
        if len(self._fit.blocks) == len(everything) and (self._fit.has_nngp or not nngp):
            return self._fit
        get = ("ntk", "nngp") if nngp else ("ntk",)
        # Inside a function that is being traced, what is known is computed now, and only once.
        with jax.ensure_compile_time_eval():
            fit = fitted(self.kernel_fn, self._data, everything, get=get, known=self._fit.blocks)
        if is_concrete(fit):
            self._fit = fit
        return fit

    def _started_at(self, f0: Callable) -> Fit:
        """The blocks of all sectors, with y − f0(X) in place of the labels."""
        fit, start = self._complete(nngp=False), self._as_labels(f0(self._data.points()))
        target = self._data.labels() - self._data.framed(start)
        blocks = {}
        for number, block in fit.blocks.items():
            sigma = sectors_of(self._data.group)[number].matrices(target.dtype)
            blocks[number] = dataclasses.replace(block, labels=block.vectors.conj().T @ coefficients(sigma, target))
        return Fit(blocks, fit.scale)

    def _as_labels(self, values: Any) -> jax.Array:
        return as_labels(jnp.asarray(values), self._data)

    def _blocks(self, fit: Fit, times: jax.Array) -> Iterator[tuple]:
        """For every sector: the sector, its σ, the block and φ_t of its eigenvalues."""
        tol = tolerance(fit.scale, self._data.size)
        for number, block in sorted(fit.blocks.items()):
            sector = sectors_of(self._data.group)[number]
            phi = response(self.filter, block.values, times, tol, self._entries)
            yield sector, sector.matrices(block.values.dtype), block, phi

    def _rows(self, x: Inputs, get: tuple[str, ...]) -> tuple[jax.Array, ...]:
        kernels = gram(self.kernel_fn, x, self._data.points(), get)
        check_positions(kernels[0].shape, self._data)
        return _framed(self._data, tuple(kernels))

    def _portions(self, x: Inputs) -> Iterator[Inputs]:
        """The test points, as many at a time as their kernels with the training points fit in memory."""
        count = jax.tree.leaves(x)[0].shape[0]
        positions = max(1, self._data.y[0].size // self._data.channels)
        at_a_time = max(1, ENTRIES_AT_A_TIME // (self._data.size * positions))
        if not is_concrete(x) or count <= at_a_time:
            yield x
            return
        for start in range(0, count, at_a_time):
            yield jax.tree.map(lambda leaf: leaf[start : start + at_a_time], x)  # noqa: B023

    def _hats(self, fit: Fit, x: Inputs, get: tuple[str, ...]) -> Iterator[tuple[jax.Array, ...]]:
        """For every sector: conj(û) of the rows of each kernel, [m, a, (b, i)]."""
        rows = self._rows(x, get)
        sectors = [sectors_of(self._data.group)[number] for number in sorted(fit.blocks)]
        sigmas = tuple(sector.matrices(rows[0].dtype) for sector in sectors)
        return zip(*(row_coefficients(sigmas, kernel) for kernel in rows), strict=True)

    def _mean(self, fit: Fit, x: Inputs, times: jax.Array) -> jax.Array:
        total: Any = 0
        blocks, hats = self._blocks(fit, times), self._hats(fit, x, ("ntk",))
        for (sector, _, block, phi), (hat,) in zip(blocks, hats, strict=True):
            total = total + sector.weight * _laws.mean_part(block, phi, hat, self._data.channels)
        return total.reshape(len(times), -1, *self._data.y.shape[1:])

    def _var(self, fit: Fit, x: Inputs, times: jax.Array) -> jax.Array:
        prior = prior_variance(Guest.wrapped(self.kernel_fn), x).reshape(-1)
        total = prior[None]
        blocks, hats = self._blocks(fit, times), self._hats(fit, x, ("ntk", "nngp"))
        for (sector, _, block, phi), both in zip(blocks, hats, strict=True):
            total = total + sector.weight * _laws.var_part(block, phi, both)
        return _laws.nonnegative(total, prior).reshape(len(times), -1, *self._data.positions)

    def _on_train(self, times: jax.Array, factor: Callable) -> jax.Array:
        """F(Θ) y on the training set, for F(λ) = factor(λ, φ_t(λ))."""
        total: Any = 0
        for sector, sigma, block, phi in self._blocks(self._fit, times):
            values = factor(jnp.maximum(block.values, 0)[None, :], phi)
            total = total + sector.weight * _laws.train_part(sigma, block, values, self._data.channels)
        return self._data.unframed(total)

    def tree_flatten(self) -> tuple[tuple, tuple]:
        """Arrays, and what is fixed."""
        children = (Guest.wrapped(self.kernel_fn), self.train, self.filter, self._data, self._fit)
        return children, (self.reduction, self.method, self.reason)

    @classmethod
    def tree_unflatten(cls, fixed: tuple, children: tuple) -> Any:
        """The ensemble with other arrays."""
        kernel_fn, *others = children
        return cls._assembled(kernel_fn, *others, *fixed)

    @classmethod
    def _assembled(
        cls,
        kernel_fn: Any,
        train: Any,
        filter: Any,
        data: TrainingSet,
        fit: Fit,
        reduction: str,
        method: str,
        reason: str,
    ) -> Any:
        """From its parts, without looking at them."""
        new = cls.__new__(cls)
        new.kernel_fn = kernel_fn.kernel_fn if isinstance(kernel_fn, Guest) else kernel_fn
        new.train, new.filter, new._data, new._fit = train, filter, data, fit
        new.reduction, new.method, new.reason = reduction, method, reason
        return new


@jax.jit
def _framed(data: TrainingSet, kernels: tuple) -> tuple:
    return tuple(data.rows(kernel) for kernel in kernels)


@jax.jit
def prior_variance(kernel_fn: Any, x: Inputs) -> jax.Array:
    """The diagonal of 𝒦(x, x) over samples and positions, [m, ...]."""

    def of_one(sample: Inputs) -> jax.Array:
        kernel = kernel_fn(jax.tree.map(lambda leaf: leaf[None], sample), None, "nngp")
        return jnp.diagonal(joint(kernel))

    return jax.vmap(of_one)(x)
