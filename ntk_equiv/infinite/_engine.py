"""How the law of the trained ensemble is put together: kernels at test points, blocks, responses.

The parts are in `_fit` (blocks), `_response` (filters) and `_laws` (what a sector contributes). Here they meet the
data: which sectors are needed, what is decomposed when, and how many test points are treated at a time.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from ntk_equiv import filters
from ntk_equiv._check import evaluating_what_is_known, is_concrete, refusal
from ntk_equiv._gram import PlainKernel, gram, prior_variance, samples, split_kernel
from ntk_equiv._positions import joint
from ntk_equiv._typing import Inputs, KernelFunction
from ntk_equiv.infinite import _laws
from ntk_equiv.infinite._fit import ENTRIES_AT_A_TIME, Fit, check_positions, fitted, labels_in
from ntk_equiv.infinite._response import Response
from ntk_equiv.infinite._sectors import row_coefficients, sectors_of
from ntk_equiv.infinite._training_set import TrainingSet, as_labels


class Engine:
    """The state of a fitted ensemble, and the sums over sectors that its predictions are made of."""

    kernel_fn: KernelFunction
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

    def check_samples(self, x: Inputs, argument: str = "x") -> Inputs:
        """Return test samples as the kernel takes them, or refuse what is unlike the samples of training."""
        x, own = samples(self.kernel_fn, x, argument), self._data.x
        shapes, known = ([leaf.shape[1:] for leaf in jax.tree.leaves(tree)] for tree in (x, own))
        if shapes != known:
            expected = f"points like those of training, [m, {', '.join(map(str, known[0]))}]"
            fix = "Test points have the features and positions of the training points."
            got = f"points [m, {', '.join(map(str, shapes[0]))}]"
            raise refusal(argument, expected=expected, got=got, fix=fix)
        return x

    @property
    def _shift(self) -> float | None:
        """What to add to Θ, if its inverse is all that the filter needs unless a time is given."""
        shift = self.filter.shift_at_end
        return float(shift) * self._entries if shift is not None and is_concrete(shift) else None

    def _fit_at(self, times: jax.Array) -> Fit:
        """The blocks that the mean needs, in a form that can be used at these times."""
        return self._fit if _ended(times) else self._spectral_fit()

    def _spectral_fit(self) -> Fit:
        """The blocks that there are, with their eigenbases."""
        return self._fit if self._fit.is_spectral else self._refit(self._fit.blocks, nngp=self._fit.has_nngp)

    def _complete(self, *, nngp: bool, times: jax.Array | None = None) -> Fit:
        """The blocks of all sectors, with their eigenvalues, or for `times` in a form that can be used then."""
        everything = range(len(sectors_of(self._data.group)))
        usable = self._fit.is_spectral or (times is not None and _ended(times))
        if usable and len(self._fit.blocks) == len(everything) and (self._fit.has_nngp or not nngp):
            return self._fit
        return self._refit(everything, nngp=nngp, shift=self._shift if times is not None and _ended(times) else None)

    def _refit(self, sectors: Iterable[int], *, nngp: bool, shift: float | None = None) -> Fit:
        """The blocks of some sectors, those with an eigenbasis only completed; kept if they are known."""
        get = ("ntk", "nngp") if nngp else ("ntk",)
        known = {n: b for n, b in self._fit.blocks.items() if shift is not None or n in self._fit.eigenbases}
        # Inside a function that is being traced, what is known is computed now, and only once.
        with evaluating_what_is_known():
            fit = fitted(self.kernel_fn, self._data, sectors, get=get, known=known, shift=shift)
        if is_concrete(fit):
            self._fit = fit
        return fit

    def _started_at(self, f0: Callable, times: jax.Array) -> Fit:
        """The blocks of all sectors, with y − f0(X) in place of the labels."""
        fit, start = self._complete(nngp=False, times=times), self._as_labels(f0(self._data.points()))
        target = self._data.labels() - self._data.framed(start)
        blocks = {
            number: dataclasses.replace(block, labels=labels_in(block.basis, self._data, number, target))
            for number, block in fit.blocks.items()
        }
        return dataclasses.replace(fit, blocks=blocks)

    def _as_labels(self, values: Any) -> jax.Array:
        return as_labels(jnp.asarray(values), self._data)

    def _response(self, fit: Fit, part: str = "coefficients") -> Response:
        return Response(self.filter, fit.noise, self._entries, part)

    def _blocks(self, fit: Fit) -> Iterator[tuple]:
        """For every sector: the sector and its block."""
        for number, block in sorted(fit.blocks.items()):
            yield sectors_of(self._data.group)[number], block

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
        f = self._response(fit)
        for (sector, block), (hat,) in zip(self._blocks(fit), self._hats(fit, x, ("ntk",)), strict=True):
            total = total + sector.weight * _laws.mean_part(block, f, times, hat, self._data.channels)
        return total.reshape(len(times), -1, *self._data.y.shape[1:])

    def _var(self, fit: Fit, x: Inputs, times: jax.Array) -> jax.Array:
        prior = prior_variance(split_kernel(self.kernel_fn), x).reshape(-1)
        total, f = prior[None], self._response(fit)
        for (sector, block), both in zip(self._blocks(fit), self._hats(fit, x, ("ntk", "nngp")), strict=True):
            total = total + sector.weight * _laws.var_part(block, f, times, both)
        return _laws.nonnegative(total, prior).reshape(len(times), -1, *self._data.positions)

    def _trajectory_cov(self, x: Inputs, times: jax.Array) -> jax.Array:
        """The covariance of members at all (time, sample), [T · m, T · m]."""
        fit = self._complete(nngp=True, times=times)
        total, f = jnp.tile(joint(gram(self.kernel_fn, x, None, "nngp")), (len(times), len(times))), self._response(fit)
        for (sector, block), both in zip(self._blocks(fit), self._hats(fit, x, ("ntk", "nngp")), strict=True):
            total = total + sector.weight * _laws.trajectory_part(block, f, times, both)
        return (total + total.T) / 2

    def _on_train(self, fit: Fit, times: jax.Array, part: str) -> jax.Array:
        """f_t(Θ) y on the training set, for a part of the response."""
        total: Any = 0
        f = self._response(fit, part)
        for sector, block in self._blocks(fit):
            sigma = sector.matrices(fit.scale.dtype)
            total = total + sector.weight * _laws.train_part(sigma, block, f, times, self._data.channels)
        return self._data.unframed(total)

    def tree_flatten(self) -> tuple[tuple, tuple]:
        """Arrays, and what is fixed."""
        children = (split_kernel(self.kernel_fn), self.train, self.filter, self._data, self._fit)
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
        new.kernel_fn = kernel_fn.kernel_fn if isinstance(kernel_fn, PlainKernel) else kernel_fn
        new.train, new.filter, new._data, new._fit = train, filter, data, fit
        new.reduction, new.method, new.reason = reduction, method, reason
        return new


def _ended(times: jax.Array) -> bool:
    """Whether all of these times are known to be infinite."""
    return is_concrete(times) and bool(jnp.all(jnp.isinf(times)))


@jax.jit
def _framed(data: TrainingSet, kernels: tuple) -> tuple:
    return tuple(data.rows(kernel) for kernel in kernels)
