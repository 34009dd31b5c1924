"""Where a weight matrix meets its input: `y = a W`, found in the program of a network.

If a parameter W enters the program of one sample in a single product y = a W, its derivative is

    ∂f/∂W = Σ_s a_s ⊗ ∂f/∂y_s,

an outer product for each of the s rows of a, and never needs to be formed. The derivative with respect to y is had by
adding a zero to y, the probe, and differentiating with respect to that. A parameter that is used in any other way, in
a convolution, in a loop, twice, has no site.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

Names = dict[Var, int]


@dataclasses.dataclass(frozen=True)
class Site:
    """One product of an input with a parameter.

    Attributes:
        weight_first: whether the parameter is the left factor.
        contracted: the axes of the input that are summed over.
        rows: s, how many vectors the input has for one sample.
        inputs: K, the length of each.
        outputs: O, the length of each product.
        shape: of the product y.
        dtype: of the product y.
    """

    weight_first: bool
    contracted: tuple[int, ...]
    rows: int
    inputs: int
    outputs: int
    shape: tuple[int, ...]
    dtype: Any

    def vectors(self, a: jax.Array) -> jax.Array:
        """The input as rows, [s, K]."""
        free = [axis for axis in range(a.ndim) if axis not in self.contracted]
        return a.transpose(*free, *self.contracted).reshape(self.rows, self.inputs)

    def slopes(self, dy: jax.Array) -> jax.Array:
        """Derivatives [outputs of the network, *shape of y] as rows, [outputs of the network, s, O]."""
        if self.weight_first:
            return dy.reshape(len(dy), self.outputs, self.rows).swapaxes(1, 2)
        return dy.reshape(len(dy), self.rows, self.outputs)

    def probe(self) -> jax.Array:
        """The zero that is added to y."""
        return jnp.zeros(self.shape, self.dtype)


def program_of(function: Callable, *arguments: Any) -> ClosedJaxpr:
    """The program of a function of pytrees, whose arguments are their leaves in order."""
    return jax.make_jaxpr(function)(*arguments)


def sites_of(program: ClosedJaxpr, count: int) -> dict[int, Site]:
    """The sites of those among the first `count` arguments of a program that have one, by their number."""
    uses: Counter[int] = Counter()
    found: dict[int, Site] = {}
    _look(program.jaxpr, dict(zip(program.jaxpr.invars[:count], range(count), strict=True)), uses, found)
    return {number: site for number, site in found.items() if uses[number] == 1}


def probed(program: ClosedJaxpr, sites: dict[int, Site], arguments: list, probes: dict) -> tuple[list, dict]:
    """The outputs of a program to whose products the probes are added, and the input of each product."""
    seen: dict[int, Any] = {}
    names = {program.jaxpr.invars[number]: number for number in sites}
    return _run(program, arguments, names, probes, seen), seen


def _look(jaxpr: Jaxpr, names: Names, uses: Counter, found: dict[int, Site]) -> None:
    for eqn in jaxpr.eqns:
        inner = _called(eqn)
        if inner is not None:
            _look(inner.jaxpr, _renamed(inner, eqn, names), uses, found)
            continue
        numbers = [None if isinstance(v, Literal) else names.get(v) for v in eqn.invars]
        uses.update(number for number in numbers if number is not None)
        if eqn.primitive.name == "dot_general" and numbers.count(None) == 1:
            weight = 0 if numbers[1] is None else 1
            _note(eqn, weight, numbers[weight], found)
    # What is returned as it is counts as a use of its own, so that it has no site.
    uses.update(names[v] for v in jaxpr.outvars if not isinstance(v, Literal) and v in names)


def _note(eqn: JaxprEqn, weight: int, number: Any, found: dict[int, Site]) -> None:
    contracted, batch = eqn.params["dimension_numbers"]
    if batch[0]:
        return
    variables: list[Any] = [eqn.invars[weight], eqn.invars[1 - weight], eqn.outvars[0]]
    W, a, y = (v.aval for v in variables)
    inputs = math.prod(W.shape[axis] for axis in contracted[weight])
    rows = a.size // max(inputs, 1)
    axes = tuple(contracted[1 - weight])
    found[number] = Site(weight == 0, axes, rows, inputs, W.size // max(inputs, 1), y.shape, y.dtype)


def _run(program: ClosedJaxpr, arguments: list, names: Names, probes: dict, seen: dict) -> list:
    env: dict[Var, Any] = dict(zip(program.jaxpr.constvars, program.consts, strict=True))
    env.update(zip(program.jaxpr.invars, arguments, strict=True))

    def read(v: Any) -> Any:
        return v.val if isinstance(v, Literal) else env[v]

    for eqn in program.jaxpr.eqns:
        values, inner = [read(v) for v in eqn.invars], _called(eqn)
        if inner is not None:
            results = _run(inner, values, _renamed(inner, eqn, names), probes, seen)
        else:
            results = _evaluated(eqn, values)
            for position, v in enumerate(eqn.invars):
                if not isinstance(v, Literal) and v in names:
                    seen[names[v]] = values[1 - position]
                    results = [results[0] + probes[names[v]]]
        env.update(zip(eqn.outvars, results, strict=True))
    return [read(v) for v in program.jaxpr.outvars]


def _called(eqn: JaxprEqn) -> ClosedJaxpr | None:
    """The program of an equation that does nothing but call one."""
    return eqn.params["jaxpr"] if eqn.primitive.name in ("jit", "pjit") else None


def _renamed(inner: ClosedJaxpr, eqn: JaxprEqn, names: Names) -> Names:
    pairs = zip(inner.jaxpr.invars, eqn.invars, strict=True)
    return {own: names[v] for own, v in pairs if not isinstance(v, Literal) and v in names}


def _evaluated(eqn: JaxprEqn, values: list) -> list:
    # Functions among the settings of a primitive are arguments of `bind` before JAX 0.9 or so, and settings since.
    settings = eqn.primitive.get_bind_params(eqn.params)
    functions, settings = settings if isinstance(settings, tuple) else ((), settings)
    results = eqn.primitive.bind(*functions, *values, **settings)
    return list(results) if eqn.primitive.multiple_results else [results]
