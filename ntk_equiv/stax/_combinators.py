"""Ways to put layers together: one after another, side by side, again and again.

Side by side, the state that flows is a tuple with one entry per branch, until a fan-in makes one of them.
"""

import math
from typing import Any

import jax

from ntk_equiv._check import positive_integer, refusal
from ntk_equiv.stax._certificate import EVERYTHING, Certificate
from ntk_equiv.stax._network import Network, network, rules_of, without_parameters
from ntk_equiv.stax._rule import Rule, Trace, rule, static
from ntk_equiv.stax._state import Pairs, Points, merge_needs


@rule
class Serial(Rule):
    """Layers one after another."""

    takes_branches = True
    makes_branches = True

    rules: tuple[Rule, ...]

    @property
    def certificate(self) -> Certificate:
        """What all layers share."""
        return _shared(self.rules)

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

    def widening(self) -> int:
        return math.prod(layer.widening() for layer in self.rules)

    def points(self, points: Any, need: Any) -> tuple[Any, Trace]:
        traces = []
        for layer, wanted in zip(self.rules, self.needs(need)[1:], strict=True):
            if isinstance(points, tuple) and not layer.takes_branches:
                fix = "After `FanOut` put one layer for each branch into `parallel`, or join them by a fan-in."
                got = f"{len(points)} branches before {type(layer).__name__}"
                raise refusal("layers", expected="such that each layer has one input", got=got, fix=fix)
            points, trace = layer.points(points, wanted)
            points = fitted(points, wanted)
            traces.append(trace)
        return points, tuple(traces)

    def pairs(self, pairs: Any, left: Trace, right: Trace, need: Any) -> Any:
        for layer, wanted, a, b in zip(self.rules, self.needs(need)[1:], left, right, strict=True):
            pairs = fitted(layer.pairs(pairs, a, b, wanted), wanted)
        return pairs


@rule
class Parallel(Rule):
    """Layers side by side, each with its own part of a tuple."""

    takes_branches = True
    makes_branches = True

    rules: tuple[Rule, ...]

    @property
    def certificate(self) -> Certificate:
        """What all branches share."""
        return _shared(self.rules)

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
        return tuple(fitted(points, n) for n in _branches(need, self.count)), ()

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

    def init(key: jax.Array, shape: Any) -> tuple:
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

    return network(init, apply, Serial(rules))


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

    def init(key: jax.Array, shapes: Any) -> tuple:
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

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import stax
        >>> block = stax.serial(stax.Dense(4, W_std=2**0.5), stax.Relu())
        >>> print(stax.repeat(block, 3).kernel_fn(jnp.ones((1, 4)), None, "nngp").round(6))
        [[1.]]
    """
    return serial(*[layer] * positive_integer(n, "n"))


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


def fitted(state: Any, need: Any) -> Any:
    """`state`, of one branch or several, reduced to what `need` asks for."""
    if isinstance(state, tuple):
        return tuple(fitted(s, n) for s, n in zip(state, _branches(need, len(state)), strict=True))
    return state.fitted(need)


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


def _shared(rules: tuple[Rule, ...]) -> Certificate:
    certificate = EVERYTHING
    for layer in rules:
        certificate = certificate & layer.certificate
    return certificate
