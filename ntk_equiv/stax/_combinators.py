"""Ways to put layers together: one after another, side by side, again and again.

Side by side, the state that flows is a tuple with one entry per branch, until a fan-in makes one of them.
"""

import dataclasses
import math
from functools import reduce
from itertools import dropwhile
from operator import and_, itemgetter
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ntk_equiv._check import positive_integer, refusal, whole_number
from ntk_equiv._typing import Array
from ntk_equiv.stax._certificate import EVERYTHING, Certificate
from ntk_equiv.stax._loops import keeps_form, kind_of, runs, stacked
from ntk_equiv.stax._network import Network, network, rules_of, without_parameters
from ntk_equiv.stax._rule import Rule, Trace, rule, static
from ntk_equiv.stax._state import Pairs, Points, merge_needs


class Composition(Rule):
    """Several layers as one."""

    takes_branches = True
    makes_branches = True

    rules: tuple[Rule, ...]

    @property
    def certificate(self) -> Certificate:
        """What all layers share."""
        return reduce(and_, (layer.certificate for layer in self.rules), EVERYTHING)


@rule
class Serial(Composition):
    """Layers one after another."""

    rules: tuple[Rule, ...]

    def needs(self, need: Any) -> list[Any]:
        """What each layer must be given, first to last, then what the last must deliver."""
        needs = [need]
        for layer in reversed(self.rules):
            if isinstance(needs[-1], tuple) and not layer.makes_branches:
                fix = "Put `FanOut` right before `parallel`."
                got = f"one output, of {type(layer).__name__}, for several branches"
                raise refusal("layers", expected="such that branches are made before they are used", got=got, fix=fix)
            needs.append(layer.need(needs[-1]))
        return needs[::-1]

    def need(self, need: Any) -> Any:
        return self.needs(need)[0]

    def after_flattening(self) -> Rule | None:
        layers = list(dropwhile(lambda layer: type(layer) is Unchanged, self.rules))
        rest = layers[0].after_flattening() if layers else None
        return None if rest is None else Serial((rest, *layers[1:]))

    def widening(self) -> int:
        return math.prod(layer.widening() for layer in self.rules)

    def points(self, points: Any, need: Any) -> tuple[Any, Trace]:
        traces = []
        for blocks, wanted in self.runs(need):
            points, first = _points_of_block(blocks[0], wanted, points)
            points, others = _points_of_blocks(blocks[1:], wanted, points)
            traces.append((first, others))
        return points, tuple(traces)

    def pairs(self, pairs: Any, left: Trace, right: Trace, need: Any) -> Any:
        for (blocks, wanted), a, b in zip(self.runs(need), left, right, strict=True):
            pairs = _pairs_of_block(blocks[0], wanted, pairs, a[0], b[0])
            pairs = _pairs_of_blocks(blocks[1:], wanted, pairs, a[1], b[1])
        return pairs

    def runs(self, need: Any) -> list[tuple[list[tuple[Rule, ...]], list[Any]]]:
        """Equal blocks of layers, first to last, with what each layer of such a block must deliver."""
        wanted = self.needs(need)[1:]
        kinds = [(kind_of(layer), need) for layer, need in zip(self.rules, wanted, strict=True)]
        found = []
        for start, period, repeats in runs(kinds):
            starts = range(start, start + period * repeats, period)
            found.append(([self.rules[i : i + period] for i in starts], wanted[start : start + period]))
        return found


@rule
class Parallel(Composition):
    """Layers side by side, each with its own part of a tuple."""

    rules: tuple[Rule, ...]

    def need(self, need: Any) -> Any:
        return tuple(layer.need(n) for layer, n in zip(self.rules, _branches(need, len(self.rules)), strict=True))

    def widening(self) -> int:
        return max(layer.widening() for layer in self.rules)

    def points(self, points: Any, need: Any) -> tuple[Any, Trace]:
        needs = _branches(need, len(self.rules))
        branches = _branches(points, len(self.rules))
        results = [layer.points(p, n) for layer, p, n in zip(self.rules, branches, needs, strict=True)]
        return tuple(p for p, _ in results), tuple(trace for _, trace in results)

    def pairs(self, pairs: Any, left: Trace, right: Trace, need: Any) -> Any:
        needs = _branches(need, len(self.rules))
        branches = _branches(pairs, len(self.rules))
        arguments = zip(self.rules, branches, left, right, needs, strict=True)
        return tuple(layer.pairs(p, a, b, n) for layer, p, a, b, n in arguments)


@rule
class Copies(Rule):
    """One input to several branches."""

    makes_branches = True

    count: int = static()

    @property
    def certificate(self) -> Certificate:
        """Copying changes nothing."""
        return EVERYTHING

    def need(self, need: Any) -> Any:
        return merge_needs(_branches(need, self.count))

    def points(self, points: Points, need: Any) -> tuple[Any, Trace]:
        copy = dataclasses.replace(points, fan_outs=points.fan_outs + 1)
        return tuple(fitted(copy, n) for n in _branches(need, self.count)), ()

    def pairs(self, pairs: Pairs, left: Trace, right: Trace, need: Any) -> Any:
        return tuple(fitted(pairs, n) for n in _branches(need, self.count))


@rule
class Unchanged(Rule):
    """What comes in goes out."""

    takes_branches = True
    makes_branches = True

    @property
    def certificate(self) -> Certificate:
        """Nothing is lost."""
        return EVERYTHING

    def pairs(self, pairs: Any, left: Trace, right: Trace, need: Any) -> Any:
        return pairs

    def points(self, points: Any, need: Any) -> tuple[Any, Trace]:
        return points, ()


def serial(*layers: Network) -> Network:
    """Layers one after another.

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
        params = _of_each(params, len(layers))
        for (_, apply_layer, _), layer_params, key in zip(layers, params, _keys(rng, len(layers)), strict=True):
            x = apply_layer(layer_params, x, rng=key, **kwargs)
        return x

    return network(init, apply, Serial(_unnested(rules)))


def parallel(*layers: Network) -> Network:
    """Layers side by side: each is applied to its own entry of a tuple, as `FanOut` makes it.

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
        keys, shapes = jax.random.split(key, len(layers)), _branches(tuple(shapes), len(layers))
        results = [layer[0](k, shape) for layer, k, shape in zip(layers, keys, shapes, strict=True)]
        return [shape for shape, _ in results], [params for _, params in results]

    def apply(params: Any, xs: Any, *, rng: Any = None, **kwargs: Any) -> Any:
        params, xs = _of_each(params, len(layers)), _branches(tuple(xs), len(layers))
        arguments = zip(layers, params, xs, _keys(rng, len(layers)), strict=True)
        return [layer[1](p, x, rng=key, **kwargs) for layer, p, x, key in arguments]

    return network(init, apply, Parallel(rules))


def repeat(layer: Network, n: int) -> Network:
    """The same layer `n` times, with new weights each time; its output must have the shape of its input.

    Kernels of equal layers are evaluated by a loop: hundreds of them compile as fast as a few.

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
    """One input to `num` branches.

    Example:
        >>> import jax.numpy as jnp
        >>> _, apply_fn, _ = FanOut(2)
        >>> len(apply_fn((), jnp.ones((1, 3))))
        2
    """
    num = positive_integer(num, "num")
    return without_parameters(lambda shape: [shape] * num, lambda x: [x] * num, Copies(num))


def Identity() -> Network:
    """What comes in goes out.

    Example:
        >>> import jax.numpy as jnp
        >>> print(*Identity().kernel_fn(jnp.ones((1, 3))))
        [[1.]] [[0.]]
    """
    return without_parameters(lambda shape: shape, lambda x: x, Unchanged())


def _unnested(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """The layers of chains inside of a chain, one after another."""
    lists = [layer.rules if isinstance(layer, Serial) else (layer,) for layer in rules]
    return tuple(layer for listed in lists for layer in listed)


def fitted(state: Any, need: Any) -> Any:
    """`state`, of one branch or several, reduced to what `need` asks for."""
    if isinstance(state, tuple):
        return tuple(fitted(s, n) for s, n in zip(state, _branches(need, len(state)), strict=True))
    return state.fitted(need)


def _points_of_block(layers: tuple[Rule, ...], wanted: list[Any], points: Any) -> tuple[Any, Trace]:
    traces = []
    for layer, need in zip(layers, wanted, strict=True):
        if isinstance(points, tuple) and not layer.takes_branches:
            fix = "After `FanOut` put one layer for each branch into `parallel`, or join them by a fan-in."
            got = f"{len(points)} branches before {type(layer).__name__}"
            raise refusal("layers", expected="such that each layer has one input", got=got, fix=fix)
        points, trace = layer.points(points, need)
        points = fitted(points, need)
        traces.append(trace)
    return points, tuple(traces)


def _points_of_blocks(blocks: list[tuple[Rule, ...]], wanted: list[Any], points: Any) -> tuple[Any, Trace]:
    """The same for equal blocks, in a loop if possible: then samples lead in traces, and blocks come next."""

    def step(state: Any, layers: tuple[Rule, ...]) -> tuple[Any, Trace]:
        after, traces = _points_of_block(layers, wanted, _with_inputs(state, points))
        return _with_inputs(after, None), traces

    if blocks and jax.tree.leaves(points):
        state, layers = _with_inputs(points, None), stacked(blocks, points)
        if keeps_form(step, state, layers):
            state, traces = lax.scan(step, state, layers, length=len(blocks))
            return _with_inputs(state, points), jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), traces)
    listed = []
    for layers in blocks:
        points, trace = _points_of_block(layers, wanted, points)
        listed.append(trace)
    return points, listed


def _pairs_of_block(layers: tuple[Rule, ...], wanted: list[Any], pairs: Any, left: Trace, right: Trace) -> Any:
    for layer, need, a, b in zip(layers, wanted, left, right, strict=True):
        pairs = fitted(layer.pairs(pairs, a, b, need), need)
    return pairs


def _pairs_of_blocks(blocks: list[tuple[Rule, ...]], wanted: list[Any], pairs: Any, left: Trace, right: Trace) -> Any:
    def step(pairs: Any, inputs: Any) -> tuple[Any, None]:
        layers, a, b = inputs
        return _pairs_of_block(layers, wanted, pairs, a, b), None

    if isinstance(left, tuple):  # Stacked by a loop, otherwise a list.
        sides = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), (left, right))
        inputs = (stacked(blocks, pairs), *sides)
        if keeps_form(step, pairs, inputs):
            return lax.scan(step, pairs, inputs, length=len(blocks))[0]
        left, right = ([jax.tree.map(itemgetter(i), side) for i in range(len(blocks))] for side in sides)
    for layers, a, b in zip(blocks, left, right, strict=True):
        pairs = _pairs_of_block(layers, wanted, pairs, a, b)
    return pairs


def _with_inputs(points: Any, source: Any) -> Any:
    """`points`, of one branch or several, with the inputs that `source` knows, or none: loops need not carry them."""
    if isinstance(points, tuple):
        return tuple(_with_inputs(p, source) for p in points)
    source = source[0] if isinstance(source, tuple) else source
    nodes, adjacency = (None, None) if source is None else (source.nodes, source.adjacency)
    return dataclasses.replace(points, nodes=nodes, adjacency=adjacency)


def _branches(value: Any, count: int) -> tuple:
    """One entry per branch; a single need stands for that of every branch."""
    if not isinstance(value, tuple):
        return (value,) * count
    if len(value) != count:
        raise refusal(
            "layers",
            expected=f"{count} branches",
            got=f"{len(value)}",
            fix="Let `FanOut` make as many branches as `parallel` has layers.",
        )
    return value


def _of_each(params: Any, count: int) -> Any:
    """`params`, if they are those of so many layers."""
    if not isinstance(params, tuple | list) or len(params) != count:
        got = f"{len(params)} entries" if isinstance(params, tuple | list) else type(params).__name__
        fix = "Pass what `init_fn` of the same network returned as its second value, then the inputs."
        raise refusal("params", expected=f"the parameters of {count} layers", got=got, fix=fix)
    return params


def _keys(rng: Any, count: int) -> Any:
    """A random key for each layer, if there is one to split."""
    return [None] * count if rng is None else jax.random.split(rng, count)
