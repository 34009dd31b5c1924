"""Several branches made one: their sum, their product, or one beside the other.

    sum              𝒦' = Σ_i 𝒦_i                     Θ' = Σ_i Θ_i
    product          𝒦' = Π_i 𝒦_i                     Θ' = Σ_i Θ_i Π_{j≠i} 𝒦_j
    channels joined  𝒦' = Σ_i w_i 𝒦_i / Σ_i w_i       Θ' likewise
    positions joined 𝒦' = 𝒦_i(s, s') within a branch, 0 between branches; Θ' likewise

Branches that have weights of their own have independent outputs, of mean zero if they end with them. A product needs
independence of all branches but one; a sum needs mean zero too, and so do joined positions, of all branches. So
branches that end with an activation may be multiplied but not added, and copies of one branch, such as `Identity` twice
after `Dense`, neither. The third line needs nothing of the kind, because what follows mixes channels with independent
weights; it depends on the widths w_i of the finite branches.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp

from ntk_equiv._check import refusal
from ntk_equiv._typing import Array
from ntk_equiv.stax._certificate import EVERYTHING, NOTHING_BUT_SMOOTH, Certificate
from ntk_equiv.stax._network import Network, without_parameters
from ntk_equiv.stax._rule import Rule, Trace, rule, static
from ntk_equiv.stax._state import VARIANCE, Pairs, Points


class FanIn(Rule):
    """What all of them have in common."""

    takes_branches = True

    @property
    def certificate(self) -> Certificate:
        """Sums, products and averages of power series with non-negative coefficients are such series."""
        return EVERYTHING

    def need(self, need: Any) -> Any:
        return dataclasses.replace(need, gap=False)


@rule
class Sum(FanIn):
    """Several branches added up."""

    def points(self, points: tuple[Points, ...], need: Any) -> tuple[Points, Trace]:
        _check_terms(points, "FanInSum")
        _check_one([not p.gaussian or p.fan_outs > 0 for p in points], "ends without weights")
        cov = _added([p.cov for p in points])
        gaussian, wide = all(p.gaussian for p in points), any(p.wide for p in points)
        summed = dataclasses.replace(points[0], gaussian=gaussian, wide=wide, fan_outs=_closed(points))
        return summed.with_cov(cov, full=points[0].full), ()

    def pairs(self, pairs: tuple[Pairs, ...], left: Trace, right: Trace, need: Any) -> Pairs:
        nngp, ntk = _added([p.nngp for p in pairs]), _added([p.ntk for p in pairs])
        return dataclasses.replace(pairs[0], nngp=nngp, ntk=ntk, gap=None)


@rule
class Product(FanIn):
    """Several branches multiplied with each other."""

    def points(self, points: tuple[Points, ...], need: Any) -> tuple[Points, Trace]:
        _check_terms(points, "FanInProd")
        _check_one([p.fan_outs > 0 for p in points], "has no weights of its own")
        alone = len(points) == 1 and points[0].gaussian
        wide = any(p.wide for p in points)
        product = dataclasses.replace(points[0], gaussian=alone, wide=wide, fan_outs=_closed(points))
        cov = points[0].cov
        for branch in points[1:]:
            cov = None if cov is None or branch.cov is None else cov * branch.cov
        return product.with_cov(cov, full=points[0].full), ()

    def pairs(self, pairs: tuple[Pairs, ...], left: Trace, right: Trace, need: Any) -> Pairs:
        nngp, ntk = pairs[0].nngp, pairs[0].ntk
        for branch in pairs[1:]:
            before = None if ntk is None else ntk * branch.nngp
            own = None if branch.ntk is None else nngp * branch.ntk
            nngp, ntk = nngp * branch.nngp, _added([before, own])
        return dataclasses.replace(pairs[0], nngp=nngp, ntk=ntk, gap=None)


@rule
class Joined(FanIn):
    """Several branches one beside the other, along channels or positions."""

    axis: int = static()

    @property
    def certificate(self) -> Certificate:
        """That of an average along channels; positions matter otherwise."""
        return super().certificate if self.axis == -1 else NOTHING_BUT_SMOOTH

    def need(self, need: Any) -> Any:
        return dataclasses.replace(super().need(need), points=max(need.points, VARIANCE))

    def points(self, points: tuple[Points, ...], need: Any) -> tuple[Points, Trace]:
        _check_several(points, "FanInConcat")
        wide, covs = any(p.wide for p in points), [jnp.asarray(p.cov) for p in points]
        axis, closed = self.spatial(len(points[0].grid)), _closed(points)
        if axis is None:
            widths = _widths(points)
            shares = [width / sum(widths) for width in widths]
            cov = _added([share * cov for share, cov in zip(shares, covs, strict=True)])
            joined = dataclasses.replace(points[0], gaussian=False, channels=sum(widths), wide=wide, fan_outs=closed)
            shape = (covs[0].shape[0], *[1] * len(points[0].grid))
            return joined.with_cov(cov, full=points[0].full), tuple(jnp.full(shape, s, cov.dtype) for s in shares)
        _check_positions(points, axis)
        grid = list(points[0].grid)
        grid[axis] = sum(p.grid[axis] for p in points)
        joined = dataclasses.replace(points[0], grid=tuple(grid), wide=wide, fan_outs=closed)
        full = points[0].full
        return joined.with_cov(_blocks(covs, 1, axis, full=full), full=full), ()

    def pairs(self, pairs: tuple[Pairs, ...], left: Trace, right: Trace, need: Any) -> Pairs:
        first = pairs[0]
        ntks = [p.ntk for p in pairs]
        if left:
            shares = [first.on_left(share) for share in left]
            nngp = _added([share * p.nngp for share, p in zip(shares, pairs, strict=True)])
            ntk = _added([None if k is None else share * k for share, k in zip(shares, ntks, strict=True)])
            return dataclasses.replace(first, nngp=nngp, ntk=ntk, gap=None)
        rank = (first.nngp.ndim - first.batch_axes) // (2 if first.full else 1)
        axis = self.spatial(rank)
        assert axis is not None
        nngp = _blocks([p.nngp for p in pairs], first.batch_axes, axis, full=first.full)
        ntk = None
        if any(k is not None for k in ntks):
            present = [jnp.zeros_like(p.nngp) if p.ntk is None else p.ntk for p in pairs]
            ntk = _blocks(present, first.batch_axes, axis, full=first.full)
        return dataclasses.replace(first, nngp=nngp, ntk=ntk, gap=None)

    def spatial(self, rank: int) -> int | None:
        """Which of `rank` spatial axes grows, counted from 0; `None` for channels."""
        axis = self.axis if self.axis >= 0 else self.axis + rank + 2
        if not 1 <= axis <= rank + 1:
            raise refusal(
                "axis",
                expected=f"that of channels or positions, 1 to {rank + 1} or {-rank - 1} to -1",
                got=self.axis,
                fix="Samples are not joined: kernels between branches would depend on how they are batched.",
            )
        return None if axis == rank + 1 else axis - 1


def FanInSum() -> Network:
    """The sum of all branches.

    At most one of them may end without a layer with weights, such as the skip connection of a residual network.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import stax
        >>> residual = stax.serial(stax.FanOut(2), stax.parallel(stax.Identity(), stax.Dense(3)), stax.FanInSum())
        >>> print(*residual.kernel_fn(jnp.ones((1, 3))))
        [[2.]] [[1.]]
    """
    return without_parameters(_common_shape, lambda xs: sum(xs[1:], xs[0]), Sum())


def FanInProd() -> Network:
    """The product of all branches, entry by entry.

    All of them but one must have a layer with weights, so that they are independent; an activation may follow it, as in
    the gate of a gated network. The product is not Gaussian, so the next activation comes after the next layer with
    weights.

    Example:
        >>> from ntk_equiv import stax
        >>> gated = stax.serial(stax.FanOut(2), stax.parallel(stax.Dense(3), stax.Dense(3)), stax.FanInProd())
        >>> print(*gated.kernel_fn(jnp.full((1, 3), 2.0)))  # 4 · 4, and twice that
        [[16.]] [[32.]]
    """
    return without_parameters(_common_shape, _multiplied, Product())


def FanInConcat(axis: int = -1) -> Network:
    """All branches one beside the other.

    Along channels, kernels are averages weighted by the widths of the finite branches, and the next activation comes
    after the next layer with weights. Along a spatial axis every branch must end with a layer with weights.

    Args:
        axis: the axis of the outputs to join; any but that of the samples.

    Raises:
        ValueError: samples would be joined, branches differ along another axis, or one that is joined along positions
            ends without weights.

    Example:
        >>> from ntk_equiv import stax
        >>> branches = stax.parallel(stax.Dense(1, W_std=1.0), stax.Dense(3, W_std=2.0))
        >>> joined = stax.serial(stax.FanOut(2), branches, stax.FanInConcat())
        >>> print(joined.kernel_fn(jnp.ones((1, 5)), None, "nngp"))  # (1 · 1 + 3 · 4) / 4
        [[3.25]]
    """
    if isinstance(axis, bool) or not isinstance(axis, int) or axis == 0:
        fix = "-1 joins channels; samples, axis 0, are not joined."
        raise refusal("axis", expected="the number of an axis of channels or positions", got=repr(axis), fix=fix)
    return without_parameters(
        lambda shapes: _joined_shape(shapes, axis), lambda xs: jnp.concatenate(xs, axis), Joined(axis)
    )


def _multiplied(xs: Any) -> Array:
    product = xs[0]
    for x in xs[1:]:
        product = product * x
    return product


def _common_shape(shapes: Any) -> tuple[int, ...]:
    """The shape of all branches of a finite network."""
    _check_several(tuple(shapes) if isinstance(shapes[0], tuple | list) else None, "FanInSum` or `FanInProd")
    if any(tuple(shape) != tuple(shapes[0]) for shape in shapes):
        fix = "Give the last layers of all branches the same width, strides and padding."
        raise refusal("layers", expected="branches of equal shape", got=f"shapes {shapes}", fix=fix)
    return tuple(shapes[0])


def _joined_shape(shapes: Any, axis: int) -> tuple[int, ...]:
    """The shape of branches of a finite network that are joined along an axis."""
    _check_several(tuple(shapes) if isinstance(shapes[0], tuple | list) else None, "FanInConcat")
    joined = list(shapes[0])
    place = Joined(axis).spatial(len(joined) - 2)
    place = len(joined) - 1 if place is None else place + 1
    _common_shape([(*shape[:place], *shape[place + 1 :]) for shape in shapes])
    joined[place] = sum(shape[place] for shape in shapes)
    return tuple(joined)


def _added(arrays: list[Any]) -> Any:
    """The sum of those that are there; `None` if none is."""
    present = [array for array in arrays if array is not None]
    return sum(present[1:], present[0]) if present else None


def _blocks(arrays: list[Array], batch_axes: int, axis: int, *, full: bool) -> Array:
    """Kernels joined along a spatial axis, with zeros between positions of different branches."""
    if not full:
        return jnp.concatenate(arrays, batch_axes + axis)
    row = batch_axes + 2 * axis
    total, start, columns = sum(a.shape[row] for a in arrays), 0, []
    for array in arrays:
        widths = [(0, 0)] * array.ndim
        widths[row] = (start, total - start - array.shape[row])
        columns.append(jnp.pad(array, widths))
        start += array.shape[row]
    return jnp.concatenate(columns, row + 1)


def _widths(points: tuple[Points, ...]) -> list[int]:
    """How many channels each branch has."""
    _check_equal_grids(points)
    widths = [p.channels for p in points if p.channels is not None]
    if len(widths) < len(points):
        fix = "Begin each branch with a Dense layer."
        raise refusal("layers", expected="branches of known width", got="one that passes on its input", fix=fix)
    return widths


def _check_several(points: Any, name: str) -> None:
    if not isinstance(points, tuple):
        expected = f"several branches before `{name}`"
        raise refusal("layers", expected=expected, got="one", fix="Put `FanOut` before it.")


def _check_equal_grids(points: tuple[Points, ...]) -> None:
    grids = [p.grid for p in points]
    if len(set(grids)) > 1:
        raise refusal(
            "layers", expected="branches of equal shape", got=f"grids {grids}", fix="Adjust strides, padding."
        )


def _check_terms(points: tuple[Points, ...], name: str) -> None:
    _check_several(points, name)
    _check_equal_grids(points)
    widths = [p.channels for p in points]
    if len(set(widths) - {None}) > 1:
        fix = "Branches are combined channel by channel: let them end with layers of one width."
        raise refusal("layers", expected="branches of equal width", got=f"widths {widths}", fix=fix)


def _check_one(dependent: list[bool], what: str) -> None:
    """Refuse more than one branch that may be correlated with the others."""
    if sum(dependent) > 1:
        raise refusal(
            "layers",
            expected=f"branches of which at most one {what}",
            got=f"{sum(dependent)} such branches",
            fix="Put Dense or Conv into the others, for sums at their ends: correlated branches have no such kernels.",
        )


def _closed(points: tuple[Points, ...]) -> int:
    """How many fan-outs are still open once these branches are one."""
    return max(0, max(p.fan_outs for p in points) - 1)


def _check_positions(points: tuple[Points, ...], axis: int) -> None:
    """Refuse branches that cannot be joined along a spatial axis."""
    others = [(*p.grid[:axis], *p.grid[axis + 1 :], p.channels) for p in points]
    if len(set(others)) > 1:
        fix = "Adjust strides, padding and widths."
        raise refusal("layers", expected="branches equal but for the joined axis", got=f"{others}", fix=fix)
    dependent = sum(not p.gaussian or p.fan_outs > 0 for p in points)
    if dependent:
        raise refusal(
            "layers",
            expected="branches that all end with weights where positions are joined",
            got=f"{dependent} that do not",
            fix="End each with Dense or Conv; kernels between positions of different branches are unknown otherwise.",
        )
