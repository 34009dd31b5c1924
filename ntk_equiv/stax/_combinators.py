"""Ways to put layers together: `serial`, `parallel`, `repeat`, and fan-ins that make several branches one.

How one layer after another and layers side by side transform kernels is in `_composition`. Fan-ins have

    sum              𝒦' = Σ_i 𝒦_i                     Θ' = Σ_i Θ_i
    product          𝒦' = Π_i 𝒦_i                     Θ' = Σ_i Θ_i Π_{j≠i} 𝒦_j
    channels joined  𝒦' = Σ_i w_i 𝒦_i / Σ_i w_i       Θ' likewise
    positions joined 𝒦' = 𝒦_i(s, s') within a branch, 0 between branches; Θ' likewise
    samples joined   the same, for samples in place of positions

Branches with weights of their own have independent outputs; their outputs have mean zero if the branches end with
weights. A product needs independent branches, all but one. A sum also needs mean zero, of all but one; joined positions
need it of all. So branches that end with an activation may be multiplied but not added. Copies of one branch, such as
`Identity` twice after `Dense`, may be neither multiplied nor added. Joined channels need nothing of the kind, because
the next layer mixes channels with independent weights; but they depend on the widths w_i of the finite branches.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ntk_equiv._check import positive_integer, refusal, whole_number
from ntk_equiv._typing import Array
from ntk_equiv.stax._composition import Copies, Parallel, Serial, Unchanged, split_branches
from ntk_equiv.stax._network import Network, network, rules_of, without_parameters
from ntk_equiv.stax._rule import EVERYTHING, NOTHING_BUT_SMOOTH, Certificate, Rule
from ntk_equiv.stax._signal import BatchRule, Signal
from ntk_equiv.stax._state import (
    Branches,
    Memo,
    Moments,
    PairState,
    Requirements,
    SampleState,
    frozen_pytree,
    static,
)


class FanIn(Rule):
    """What all fan-ins have in common."""

    takes_branches = True

    @property
    def certificate(self) -> Certificate:
        """Sums, products and averages of power series with non-negative coefficients are such series."""
        return EVERYTHING

    def requirements_for(self, wanted: Requirements) -> Requirements:
        return dataclasses.replace(wanted, gap=False)

    def mask_after(self, mask: Branches) -> Array:
        """Return which positions are masked: those that are masked in all branches."""
        common = mask[0]
        for other in mask[1:]:
            common = common & other
        return common


@frozen_pytree
class Sum(FanIn):
    """The sum of several branches."""

    def per_sample(self, states: Branches, wanted: Requirements) -> tuple[SampleState, Memo]:
        _check_terms(states, "FanInSum")
        _check_one([not s.gaussian or s.fan_outs > 0 for s in states], "ends without weights")
        cov = _add([s.cov for s in states])
        gaussian, wide = all(s.gaussian for s in states), any(s.wide for s in states)
        summed = dataclasses.replace(states[0], gaussian=gaussian, wide=wide, fan_outs=_open_fan_outs(states))
        return summed.with_cov(cov, full=states[0].full), ()

    def per_pair(self, states: Branches, left: Memo, right: Memo, wanted: Requirements) -> PairState:
        nngp, ntk = _add([s.nngp for s in states]), _add([s.ntk for s in states])
        return dataclasses.replace(states[0], nngp=nngp, ntk=ntk, gap=None)


@frozen_pytree
class Product(FanIn):
    """The product of several branches, entry by entry."""

    def per_sample(self, states: Branches, wanted: Requirements) -> tuple[SampleState, Memo]:
        _check_terms(states, "FanInProd")
        _check_one([s.fan_outs > 0 for s in states], "has no weights of its own")
        alone = len(states) == 1 and states[0].gaussian
        wide = any(s.wide for s in states)
        product = dataclasses.replace(states[0], gaussian=alone, wide=wide, fan_outs=_open_fan_outs(states))
        cov = states[0].cov
        for branch in states[1:]:
            cov = None if cov is None or branch.cov is None else cov * branch.cov
        return product.with_cov(cov, full=states[0].full), ()

    def per_pair(self, states: Branches, left: Memo, right: Memo, wanted: Requirements) -> PairState:
        nngp, ntk = states[0].nngp, states[0].ntk
        for branch in states[1:]:
            before = None if ntk is None else ntk * branch.nngp
            own = None if branch.ntk is None else nngp * branch.ntk
            nngp, ntk = nngp * branch.nngp, _add([before, own])
        return dataclasses.replace(states[0], nngp=nngp, ntk=ntk, gap=None)


@frozen_pytree
class Concatenation(FanIn):
    """Several branches side by side, along channels or positions."""

    axis: int = static()

    @property
    def certificate(self) -> Certificate:
        """Along channels it is that of an average; along positions, positions matter."""
        return super().certificate if self.axis == -1 else NOTHING_BUT_SMOOTH

    def requirements_for(self, wanted: Requirements) -> Requirements:
        return dataclasses.replace(super().requirements_for(wanted), moments=max(wanted.moments, Moments.VARIANCE))

    def per_sample(self, states: Branches, wanted: Requirements) -> tuple[SampleState, Memo]:
        _check_several(states, "FanInConcat")
        wide, covs = any(s.wide for s in states), [jnp.asarray(s.cov) for s in states]
        axis, fan_outs = self.spatial_axis(len(states[0].grid)), _open_fan_outs(states)
        if axis is None:
            widths = _widths(states)
            shares = [width / sum(widths) for width in widths]
            cov = _add([share * cov for share, cov in zip(shares, covs, strict=True)])
            joined = dataclasses.replace(states[0], gaussian=False, channels=sum(widths), wide=wide, fan_outs=fan_outs)
            shape = (covs[0].shape[0], *[1] * len(states[0].grid))
            memo = tuple(jnp.full(shape, share, cov.dtype) for share in shares)
            return joined.with_cov(cov, full=states[0].full), memo
        _check_positions(states, axis)
        grid = list(states[0].grid)
        grid[axis] = sum(s.grid[axis] for s in states)
        joined = dataclasses.replace(states[0], grid=tuple(grid), wide=wide, fan_outs=fan_outs)
        full = states[0].full
        return joined.with_cov(_join_blocks(covs, 1, axis, full=full), full=full), ()

    def per_pair(self, states: Branches, left: Memo, right: Memo, wanted: Requirements) -> PairState:
        first = states[0]
        ntks = [s.ntk for s in states]
        if left:
            shares = [first.on_left(share) for share in left]
            nngp = _add([share * s.nngp for share, s in zip(shares, states, strict=True)])
            ntk = _add([None if k is None else share * k for share, k in zip(shares, ntks, strict=True)])
            return dataclasses.replace(first, nngp=nngp, ntk=ntk, gap=None)
        rank = (first.nngp.ndim - first.batch_axes) // (2 if first.full else 1)
        axis = self.spatial_axis(rank)
        assert axis is not None
        nngp = _join_blocks([s.nngp for s in states], first.batch_axes, axis, full=first.full)
        ntk = None
        if any(k is not None for k in ntks):
            present = [jnp.zeros_like(s.nngp) if s.ntk is None else s.ntk for s in states]
            ntk = _join_blocks(present, first.batch_axes, axis, full=first.full)
        return dataclasses.replace(first, nngp=nngp, ntk=ntk, gap=None)

    def mask_after(self, mask: Branches) -> Array:
        axis = self.spatial_axis(mask[0].ndim - 1)
        return super().mask_after(mask) if axis is None else jnp.concatenate(mask, axis + 1)

    def spatial_axis(self, rank: int) -> int | None:
        """Return which of `rank` spatial axes grows, counted from 0; `None` for channels."""
        axis = self.axis if self.axis >= 0 else self.axis + rank + 2
        if not 1 <= axis <= rank + 1:
            raise refusal(
                "axis",
                expected=f"that of channels or positions, 1 to {rank + 1} or {-rank - 1} to -1",
                got=self.axis,
                fix="To join samples, call their axis 0.",
            )
        return None if axis == rank + 1 else axis - 1


@frozen_pytree
class JoinedSamples(BatchRule):
    """The samples of several branches as those of one."""

    def change(self, signals: Sequence[Signal], **settings: Any) -> Signal:
        first, shapes = signals[0], {(signal.shape1 or ())[1:] for signal in signals}
        if len(shapes) > 1:
            fix = "Adjust strides, padding and widths."
            raise refusal("layers", expected="branches of equal shape", got=f"shapes {sorted(shapes)}", fix=fix)
        _check_one([not s.is_gaussian or s.fan_outs > 0 for s in signals], "ends without weights")

        def joined(name: str, join: Callable) -> Any:
            own = [getattr(signal, name) for signal in signals]
            return None if own[0] is None else join(own)

        def blocks(own: list[Array]) -> Array:
            return _join_blocks(own, 0, 0, full=True)

        joins: dict[str, Callable] = dict.fromkeys(("nngp", "ntk"), blocks)
        joins |= dict.fromkeys(("mask1", "mask2"), jnp.concatenate)
        joins |= dict.fromkeys(("cov1", "cov2"), jnp.concatenate if first.diagonal_batch else blocks)
        joins |= dict.fromkeys(("shape1", "shape2"), lambda shapes: (sum(s[0] for s in shapes), *shapes[0][1:]))
        changes = {name: joined(name, join) for name, join in joins.items()}
        fan_outs = _open_fan_outs(signals)
        return first.replace(**changes, is_gaussian=all(s.is_gaussian for s in signals), fan_outs=fan_outs)

    def mask_after(self, mask: Branches) -> Array:
        return jnp.concatenate(mask)


def serial(*layers: Network) -> Network:
    """Put layers one after another.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import stax
        >>> init_fn, apply_fn, kernel_fn = stax.serial(stax.Dense(16), stax.Relu(), stax.Dense(2))
        >>> output_shape, params = init_fn(jax.random.key(0), (-1, 3))
        >>> output_shape, apply_fn(params, jnp.ones((5, 3))).shape, kernel_fn(jnp.ones((5, 3)), None, "ntk").shape
        ((-1, 2), (5, 2), (5, 5))
    """
    rules = rules_of(layers)

    def init(key: Array, shape: Any) -> tuple:
        params = []
        for (init_layer, _, _), layer_key in zip(layers, jax.random.split(key, len(layers)), strict=True):
            shape, layer_params = init_layer(layer_key, shape)
            params.append(layer_params)
        return shape, params

    def apply(params: Any, x: Any, *, rng: Any = None, **kwargs: Any) -> Any:
        params = _check_params(params, len(layers))
        for (_, apply_layer, _), layer_params, key in zip(layers, params, _split_key(rng, len(layers)), strict=True):
            x = apply_layer(layer_params, x, rng=key, **kwargs)
        return x

    return network(init, apply, Serial(unnest(rules)))


def parallel(*layers: Network) -> Network:
    """Put layers side by side: each is applied to its own entry of a tuple, such as `FanOut` makes.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import stax
        >>> block = stax.serial(stax.FanOut(2), stax.parallel(stax.Dense(4), stax.Dense(4)), stax.FanInSum())
        >>> print(block.kernel_fn(jnp.ones((1, 3)), None, "ntk"))
        [[2.]]
    """
    rules = rules_of(layers)
    if not rules:
        raise refusal("layers", expected="one for each branch", got="none", fix="Pass at least one.")

    def init(key: Array, shapes: Any) -> tuple:
        if not isinstance(shapes, tuple | list) or not isinstance(shapes[0], tuple | list):
            fix = "Put `FanOut` right before `parallel`."
            raise refusal("input_shape", expected="one shape for each branch", got=shapes, fix=fix)
        keys, shapes = jax.random.split(key, len(layers)), split_branches(tuple(shapes), len(layers))
        results = [layer[0](k, shape) for layer, k, shape in zip(layers, keys, shapes, strict=True)]
        return [shape for shape, _ in results], [params for _, params in results]

    def apply(params: Any, xs: Any, *, rng: Any = None, **kwargs: Any) -> Any:
        params, xs = _check_params(params, len(layers)), split_branches(tuple(xs), len(layers))
        arguments = zip(layers, params, xs, _split_key(rng, len(layers)), strict=True)
        return [layer[1](p, x, rng=key, **kwargs) for layer, p, x, key in arguments]

    return network(init, apply, Parallel(rules))


def repeat(layer: Network, n: int) -> Network:
    """Repeat a layer `n` times, with new weights each time; its output must have the shape of its input.

    Kernels of equal layers are evaluated by a loop, so that hundreds of them compile as fast as a few.

    Args:
        layer: what is repeated.
        n: how often; 0 makes the identity.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import stax
        >>> block = stax.serial(stax.Dense(4, W_std=2**0.5), stax.Relu())
        >>> print(stax.repeat(block, 3).kernel_fn(jnp.ones((1, 4)), None, "nngp").round(6))
        [[1.]]
    """
    n = whole_number(n, "n")
    rules_of((layer,))
    return serial(*[layer] * n)


def FanOut(num: int) -> Network:
    """Pass one input to `num` branches.

    Example:
        >>> import jax.numpy as jnp
        >>> _, apply_fn, _ = FanOut(2)
        >>> len(apply_fn((), jnp.ones((1, 3))))
        2
    """
    num = positive_integer(num, "num")
    return without_parameters(lambda shape: [shape] * num, lambda x: [x] * num, Copies(num))


def Identity() -> Network:
    """Pass the input on unchanged.

    Example:
        >>> import jax.numpy as jnp
        >>> print(*Identity().kernel_fn(jnp.ones((1, 3))))
        [[1.]] [[0.]]
    """
    return without_parameters(lambda shape: shape, lambda x: x, Unchanged())


def FanInSum() -> Network:
    """Add all branches.

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
    """Multiply all branches, entry by entry.

    All branches but one must have a layer with weights, so that they are independent. An activation may follow it, as
    in the gate of a gated network. The product is not Gaussian, so the next activation has to come after the next layer
    with weights.

    Example:
        >>> from ntk_equiv import stax
        >>> gated = stax.serial(stax.FanOut(2), stax.parallel(stax.Dense(3), stax.Dense(3)), stax.FanInProd())
        >>> print(*gated.kernel_fn(jnp.full((1, 3), 2.0)))  # 4 · 4, and twice that
        [[16.]] [[32.]]
    """
    return without_parameters(_common_shape, _multiply, Product())


def FanInConcat(axis: int = -1) -> Network:
    """Put all branches beside each other.

    Along channels, kernels are averages, weighted by the widths of the finite branches, and the next activation has to
    come after the next layer with weights. Along a spatial axis, every branch must end with a layer with weights.

    Args:
        axis: the axis of the outputs along which they are joined; 0, that of samples, makes a layer that mixes samples.

    Raises:
        ValueError: branches differ along another axis, or a branch that is joined along positions ends without weights.

    Example:
        >>> from ntk_equiv import stax
        >>> branches = stax.parallel(stax.Dense(1, W_std=1.0), stax.Dense(3, W_std=2.0))
        >>> joined = stax.serial(stax.FanOut(2), branches, stax.FanInConcat())
        >>> print(joined.kernel_fn(jnp.ones((1, 5)), None, "nngp"))  # (1 · 1 + 3 · 4) / 4
        [[3.25]]
    """
    if isinstance(axis, bool) or not isinstance(axis, int):
        fix = "-1 joins channels, 0 samples."
        raise refusal("axis", expected="the number of an axis", got=repr(axis), fix=fix)
    return without_parameters(
        lambda shapes: _concatenated_shape(shapes, axis),
        lambda xs: jnp.concatenate(xs, axis),
        JoinedSamples() if axis == 0 else Concatenation(axis),
    )


def unnest(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """Return the layers of a chain, and those of chains inside of it, as one chain."""
    lists = [layer.rules if isinstance(layer, Serial) else (layer,) for layer in rules]
    return tuple(layer for listed in lists for layer in listed)


def _check_params(params: Any, count: int) -> Any:
    """Return `params` if they are those of so many layers."""
    if not isinstance(params, tuple | list) or len(params) != count:
        got = f"{len(params)} entries" if isinstance(params, tuple | list) else type(params).__name__
        fix = "Pass what `init_fn` of the same network returned as its second value, then the inputs."
        raise refusal("params", expected=f"the parameters of {count} layers", got=got, fix=fix)
    return params


def _split_key(rng: Any, count: int) -> Any:
    """Return a random key for each layer, or `None` for each if there is nothing to split."""
    return [None] * count if rng is None else jax.random.split(rng, count)


def _multiply(xs: Sequence[Array]) -> Array:
    product = xs[0]
    for x in xs[1:]:
        product = product * x
    return product


def _common_shape(shapes: Any) -> tuple[int, ...]:
    """Return the shape that all branches of a finite network share."""
    _check_several(tuple(shapes) if isinstance(shapes[0], tuple | list) else None, "FanInSum` or `FanInProd")
    if any(tuple(shape) != tuple(shapes[0]) for shape in shapes):
        fix = "Give the last layers of all branches the same width, strides and padding."
        raise refusal("layers", expected="branches of equal shape", got=f"shapes {shapes}", fix=fix)
    return tuple(shapes[0])


def _concatenated_shape(shapes: Any, axis: int) -> tuple[int, ...]:
    """Return the shape of branches of a finite network after they are joined along an axis."""
    _check_several(tuple(shapes) if isinstance(shapes[0], tuple | list) else None, "FanInConcat")
    joined = list(shapes[0])
    spatial = None if axis == 0 else Concatenation(axis).spatial_axis(len(joined) - 2)
    place = 0 if axis == 0 else len(joined) - 1 if spatial is None else spatial + 1
    _common_shape([(*shape[:place], *shape[place + 1 :]) for shape in shapes])
    joined[place] = sum(shape[place] for shape in shapes)
    return tuple(joined)


def _add(arrays: Sequence[Array | None]) -> Any:
    """Return the sum of the arrays that are not `None`; `None` if there is none."""
    present = [array for array in arrays if array is not None]
    return sum(present[1:], present[0]) if present else None


def _join_blocks(arrays: list[Array], batch_axes: int, axis: int, *, full: bool) -> Array:
    """Join kernels along a spatial axis, with zeros between positions of different branches."""
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


def _widths(states: tuple[SampleState, ...]) -> list[int]:
    """Return how many channels each branch has."""
    _check_equal_grids(states)
    widths = [s.channels for s in states if s.channels is not None]
    if len(widths) < len(states):
        fix = "Begin each branch with a Dense layer."
        raise refusal("layers", expected="branches of known width", got="one that passes on its input", fix=fix)
    return widths


def _check_several(states: Any, name: str) -> None:
    if not isinstance(states, tuple):
        expected = f"several branches before `{name}`"
        raise refusal("layers", expected=expected, got="one", fix="Put `FanOut` before it.")


def _check_equal_grids(states: tuple[SampleState, ...]) -> None:
    grids = [s.grid for s in states]
    if len(set(grids)) > 1:
        raise refusal(
            "layers", expected="branches of equal shape", got=f"grids {grids}", fix="Adjust strides and padding."
        )


def _check_terms(states: tuple[SampleState, ...], name: str) -> None:
    _check_several(states, name)
    _check_equal_grids(states)
    widths = [s.channels for s in states]
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
            fix="Put Dense or Conv into the others (for sums, at their ends): correlated branches have no such kernel.",
        )


def _open_fan_outs(states: Sequence[SampleState | Signal]) -> int:
    """Return how many fan-outs are still open once these branches are one."""
    return max(0, max(s.fan_outs for s in states) - 1)


def _check_positions(states: tuple[SampleState, ...], axis: int) -> None:
    """Refuse branches that cannot be joined along a spatial axis."""
    others = [(*s.grid[:axis], *s.grid[axis + 1 :], s.channels) for s in states]
    if len(set(others)) > 1:
        fix = "Adjust strides, padding and widths."
        raise refusal("layers", expected="branches equal but for the joined axis", got=f"{others}", fix=fix)
    dependent = sum(not s.gaussian or s.fan_outs > 0 for s in states)
    if dependent:
        raise refusal(
            "layers",
            expected="branches that all end with weights where positions are joined",
            got=f"{dependent} that do not",
            fix="End each with Dense or Conv; kernels between positions of different branches are unknown otherwise.",
        )
