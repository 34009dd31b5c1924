"""Derivatives of the outputs of a network with respect to its parameters, and their inner products.

    outputs     f(x)                     [n, S, C]                  S positions and C channels
    explicit    ∂f/∂θ                    [n, S, C, size of θ]       for every parameter that is differentiated in full
    factors     a, ∂f/∂y                 [n, s, K], [n, S, C, s, O] for every W that enters as y = a W

Θ is the sum of what each parameter adds: the product of its derivatives, or for factors

    Σ_{s, s'}  ⟨a_s, a'_s'⟩ · ⟨∂f/∂y_s, ∂f'/∂y_s'⟩.

**Factored parameters.** If a parameter W enters the program of one sample in a single product y = a W, its derivative

    ∂f/∂W = Σ_s a_s ⊗ ∂f/∂y_s

is an outer product for each of the s rows of a, and never needs to be formed. To differentiate with respect to y, a
zero is added to y, the probe, and the program is differentiated with respect to the probe. A parameter that is used in
any other way (in a convolution, in a loop, twice) is not factored.

**Methods.** A `Plan` chooses the cheapest one from shapes alone. Per pair of samples they cost

    "jacobian"     S²·C·P                       derivatives with respect to all P parameters, then a matrix product
    "structured"   s²·K + S²·s²·C·O             the same, but factors for parameters W [K, O] wherever they cost less
                   instead of S²·C·K·O
    "products"     2·S·C times the network      for every output of one sample the derivative of all outputs of the
                                                other in the direction of its gradient; nothing is stored

With channels apart, C is C² in the first two, and the third costs no more than before.
"""

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from ntk_equiv._check import refusal
from ntk_equiv._typing import Inputs

METHODS = ("auto", "structured", "jacobian", "products")
# More numbers than this for the derivatives of one sample are not worth storing: 1 GB in single precision.
LARGEST_SAMPLE = 2**28

Params = Any
"""Parameters of a network: any pytree of arrays."""

NetworkFn = Callable[[Params, Any, Inputs], Any]
"""A network as a function `apply(params, constants, x)`; it is hashable, and identifies compiled programs."""

Numbering = dict[Var, int]
"""The number of the parameter that a variable of a program holds."""


# Which method is the cheapest.


@dataclasses.dataclass(frozen=True)
class FactoredParameter:
    """A parameter W that enters in one product y = a W.

    Attributes:
        on_left: whether the parameter is the left factor of the product.
        contracted: the axes of a that are summed over.
        rows: s, how many vectors a has for one sample.
        inputs: K, the length of each.
        outputs: O, the length of each product.
        shape: of y.
        dtype: of y.
    """

    on_left: bool
    contracted: tuple[int, ...]
    rows: int
    inputs: int
    outputs: int
    shape: tuple[int, ...]
    dtype: Any

    def input_rows(self, a: jax.Array) -> jax.Array:
        """Return a as rows, [s, K]."""
        free = [axis for axis in range(a.ndim) if axis not in self.contracted]
        return a.transpose(*free, *self.contracted).reshape(self.rows, self.inputs)

    def slope_rows(self, dy: jax.Array) -> jax.Array:
        """Return derivatives [outputs of the network, *shape of y] as rows, [outputs of the network, s, O]."""
        if self.on_left:
            return dy.reshape(len(dy), self.outputs, self.rows).swapaxes(1, 2)
        return dy.reshape(len(dy), self.rows, self.outputs)

    def probe(self) -> jax.Array:
        """Return the zero that is added to y."""
        return jnp.zeros(self.shape, self.dtype)


@dataclasses.dataclass(frozen=True)
class Plan:
    """How the kernel of one pair is computed, and what that costs.

    Attributes:
        method: "structured", "jacobian" or "products".
        factored: the parameters whose derivatives are kept as factors, by their number.
        grid: the shape of the positions of the output.
        channels: C.
        numbers_per_sample: how many numbers the derivatives of one sample are.
        numbers_per_pair: how many numbers a pair of samples takes.
    """

    method: str
    factored: tuple[tuple[int, FactoredParameter], ...]
    grid: tuple[int, ...]
    channels: int
    numbers_per_sample: int
    numbers_per_pair: int


def make_plan(method: str, apart: bool, apply: NetworkFn, params: Params, constants: Any, x: Inputs) -> Plan:
    """Return the plan for samples like those of `x`; refuse samples that the network does not take."""
    leaves, structure = jax.tree.flatten((params, constants, x))
    samples = len(jax.tree.leaves(x))
    shapes = [leaf.shape for leaf in leaves]
    shapes[-samples:] = [(1, *shape[1:]) for shape in shapes[-samples:]]
    specs = tuple(zip(shapes, [leaf.dtype for leaf in leaves], strict=True))
    return _plan_for_shapes(method, apart, apply, structure, specs)


# Cached, because tracing a network takes longer than most of its kernels.
@functools.lru_cache(maxsize=256)
def _plan_for_shapes(method: str, apart: bool, apply: NetworkFn, structure: Any, specs: tuple) -> Plan:
    params, constants, x = structure.unflatten([jax.ShapeDtypeStruct(*spec) for spec in specs])
    outputs = _output_shape(apply, params, constants, x)
    grid, channels = outputs.shape[1:-1], outputs.shape[-1] if outputs.ndim > 1 else 1
    sample = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), x)
    program = program_of_sample(apply, params, constants, sample)
    sizes = [leaf.size for leaf in jax.tree.leaves(params)]
    positions, both = math.prod(grid), channels**2 if apart else channels

    def cost_of_factors(one: FactoredParameter) -> int:
        return one.rows**2 * (one.inputs + positions**2 * both * one.outputs)

    factored = {} if method == "jacobian" else find_factored_parameters(program, len(sizes))
    factored = {i: one for i, one in factored.items() if cost_of_factors(one) < positions**2 * both * sizes[i]}
    explicit = sum(size for i, size in enumerate(sizes) if i not in factored)
    kept = sum(one.rows * (one.inputs + positions * channels * one.outputs) for one in factored.values())
    per_sample = positions * channels * (explicit + 1) + kept
    per_pair = sum(map(cost_of_factors, factored.values())) + positions**2 * both * explicit
    if method == "auto":
        costly = per_sample > LARGEST_SAMPLE or 2 * positions * channels * count_operations(program.jaxpr) < per_pair
        method = "products" if costly else "structured"
    if method == "products":
        factored, per_sample = {}, max(math.prod(leaf.shape) for leaf in jax.tree.leaves((x, outputs)))
    rows = max((one.rows for one in factored.values()), default=1)
    entries = positions**2 * max(rows**2, 1) * (channels**2 if apart else 1)
    return Plan(method, tuple(sorted(factored.items())), grid, channels, per_sample, entries)


def _output_shape(apply: NetworkFn, params: Params, constants: Any, x: Inputs) -> jax.ShapeDtypeStruct:
    """Return shape and dtype of the outputs for samples `x`, if network, parameters and samples fit together."""
    try:
        outputs = jax.eval_shape(apply, params, constants, x)
    except Exception as error:  # whatever the network says about parameters or inputs that do not fit
        fix = "Pass the parameters of this network, and inputs like those they were made for."
        got = f"{type(error).__name__}: {str(error)[:300]}"
        raise refusal("params", expected="such that `apply(params, x)` can be evaluated", got=got, fix=fix) from error
    if not isinstance(outputs, jax.ShapeDtypeStruct):
        fix = "Wrap it in a function that returns one of its outputs."
        got = f"a {type(outputs).__name__}"
        raise refusal("apply", expected="a function whose output is one array", got=got, fix=fix, kind=TypeError)
    n = jax.tree.leaves(x)[0].shape[0]
    if outputs.ndim == 0 or outputs.shape[0] != n or not jnp.issubdtype(outputs.dtype, jnp.floating):
        fix = "The first axis of inputs and outputs counts the samples."
        got = f"{outputs.dtype} of shape {outputs.shape}"
        raise refusal("apply", expected=f"a function with real outputs [{n}, ...]", got=got, fix=fix)
    return outputs


def count_operations(jaxpr: Jaxpr) -> int:
    """Return about how many multiplications and additions a program makes, read from the shapes in it."""
    return sum(_count_in_equation(eqn) for eqn in jaxpr.eqns)


def _count_in_equation(eqn: JaxprEqn) -> int:
    inner = [count_operations(part) for value in eqn.params.values() for part in inner_programs(value)]
    if inner:
        # Only one of several branches is taken.
        return max(inner) * int(eqn.params.get("length", 1))
    shapes: list[Any] = [getattr(v.aval, "shape", ()) for v in (*eqn.outvars, *eqn.invars)]
    size, operands = sum(map(math.prod, shapes[: len(eqn.outvars)])), shapes[len(eqn.outvars) :]
    if eqn.primitive.name == "dot_general":
        contracted = eqn.params["dimension_numbers"][0][0]
        return 2 * size * math.prod(operands[0][axis] for axis in contracted)
    if eqn.primitive.name == "conv_general_dilated":
        outputs = eqn.params["dimension_numbers"].rhs_spec[0]
        return 2 * size * math.prod(operands[1]) // max(operands[1][outputs], 1)
    return size


def inner_programs(value: Any) -> list[Jaxpr]:
    values = value if isinstance(value, tuple | list) else [value]
    return [v.jaxpr if isinstance(v, ClosedJaxpr) else v for v in values if isinstance(v, ClosedJaxpr | Jaxpr)]


# Derivatives, and what is made of them.


def product(subscripts: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """Evaluate `jnp.einsum` in full precision, also on accelerators."""
    return jnp.einsum(subscripts, a, b, precision=lax.Precision.HIGHEST)


def numbers_side_by_side() -> int:
    """Return how many numbers of derivatives to compute at the same time."""
    # On CPUs a few samples at a time are faster than many.
    return 2**15 if jax.default_backend() == "cpu" else 2**24


def derivatives(plan: Plan, apply: NetworkFn, params: Params, constants: Any, x: Inputs) -> dict[str, Any]:
    """Return `explicit` and `factors` for all samples of `x`."""
    n = jax.tree.leaves(x)[0].shape[0]
    size = max(1, min(n, numbers_side_by_side() // max(plan.numbers_per_sample, 1)))
    steps = -(-n // size)
    # All steps have the same size, so that one program serves them; the last is filled up with copies.
    places = np.minimum(np.arange(steps * size), n - 1).reshape(steps, size)
    one = functools.partial(_sample_derivatives, plan, apply, params, constants)
    each = jax.vmap(one) if size > 1 else lambda samples: _as_batch(one(jax.tree.map(lambda leaf: leaf[0], samples)))
    stacked = lax.map(each, jax.tree.map(lambda leaf: leaf[places], x))
    return jax.tree.map(lambda leaf: leaf.reshape(steps * size, *leaf.shape[2:])[:n], stacked)


def _sample_derivatives(plan: Plan, apply: NetworkFn, params: Params, constants: Any, sample: Inputs) -> dict[str, Any]:
    leaves = jax.tree.leaves(params)
    factored = dict(plan.factored)
    program = program_of_sample(apply, params, constants, sample)
    rest = jax.tree.leaves((constants, sample))

    def outputs(explicit: dict, probes: dict) -> tuple[jax.Array, dict]:
        arguments = [explicit.get(i, leaf) for i, leaf in enumerate(leaves)]
        (result,), inputs = run_with_probes(program, factored, arguments + rest, probes)
        return result.reshape(-1), inputs

    explicit = {i: leaf for i, leaf in enumerate(leaves) if i not in factored}
    probes = {i: one.probe() for i, one in factored.items()}
    result, pull, inputs = jax.vjp(outputs, explicit, probes, has_aux=True)
    slopes, dy = jax.vmap(pull)(jnp.eye(result.size, dtype=result.dtype))
    shape = math.prod(plan.grid), plan.channels
    return {
        "explicit": [slope.reshape(*shape, -1) for slope in slopes.values()],
        "factors": [
            (one.input_rows(inputs[i]), one.slope_rows(dy[i]).reshape(*shape, one.rows, one.outputs))
            for i, one in factored.items()
        ],
    }


def contract(left: dict[str, Any], right: dict[str, Any], apart: bool) -> Any:
    """Sum ⟨∂f/∂θ, ∂f'/∂θ⟩ over parameters, for all pairs of samples.

    Returns:
        An array [n1, n2, S, S'], or with channels apart [n1, n2, S, S', C, C'].
    """
    end = "cd" if apart else ""
    c, d = "cd" if apart else "cc"
    total: Any = 0
    if len(left["explicit"]) != len(right["explicit"]):
        fix = 'Choose method="jacobian" or "products", or samples of one shape.'
        got = "samples of other shapes, for which other factors are the cheapest"
        raise refusal("x2", expected="samples like those of `x1`", got=got, fix=fix)
    for j, k in zip(left["explicit"], right["explicit"], strict=True):
        total = total + product(f"ai{c}p,bj{d}p->abij{end}", j, k)
    for (a, dy), (b, dz) in zip(left["factors"], right["factors"], strict=True):
        inputs = product("ask,btk->abst", a, b)
        if inputs.shape[2:] == (1, 1):
            # One row each: the sum over rows is a plain product, which is cheaper than a contraction.
            outer = product(f"ai{c}o,bj{d}o->abij{end}", dy[:, :, :, 0], dz[:, :, :, 0])
            total = total + inputs.reshape(inputs.shape[:2] + (1,) * (outer.ndim - 2)) * outer
        else:
            outer = product(f"ai{c}so,bj{d}to->abij{end}st", dy, dz)
            total = total + product(f"abst,abij{end}st->abij{end}", inputs, outer)
    return total


def contract_without_storing(
    plan: Plan, apply: NetworkFn, params: Params, constants: Any, x1: Inputs, x2: Inputs, apart: bool
) -> jax.Array:
    """Return what `contract` returns: for each output of x2, differentiate the outputs of x1 along its gradient."""
    shape = math.prod(plan.grid), plan.channels

    def outputs(x: Inputs, params: Params) -> jax.Array:
        result = apply(params, constants, x)
        return result.reshape(result.shape[0], *shape)

    _, forward = jax.linearize(functools.partial(outputs, x1), params)

    def of_sample(sample: Inputs) -> jax.Array:
        result, pull = jax.vjp(functools.partial(outputs, _as_batch(sample)), params)

        def of_output(number: jax.Array) -> jax.Array:
            unit = jnp.zeros(result.size, result.dtype).at[number].set(1)
            row = forward(*pull(unit.reshape(result.shape)))
            return row if apart else row[:, :, number % plan.channels]

        return lax.map(of_output, jnp.arange(result.size))

    rows = lax.map(of_sample, x2)
    rows = rows.reshape(rows.shape[0], *shape, *rows.shape[2:])
    # [b, S', C', a, S(, C)], with C' of the second argument last, or summed over.
    return rows.transpose(3, 0, 4, 1, 5, 2) if apart else rows.sum(2).transpose(2, 0, 3, 1)


def _as_batch(sample: Inputs) -> Inputs:
    """Give one sample an axis of samples."""
    return jax.tree.map(lambda leaf: leaf[None], sample)


# Programs of one sample, in which factored parameters are found and probes are added.


def program_of_sample(apply: NetworkFn, params: Params, constants: Any, sample: Inputs) -> ClosedJaxpr:
    """Return the program of a network for one sample without an axis of samples; its arguments are all leaves."""

    def outputs(params: Params, constants: Any, sample: Inputs) -> Any:
        return apply(params, constants, _as_batch(sample))[0]

    return jax.make_jaxpr(outputs)(params, constants, sample)


def find_factored_parameters(program: ClosedJaxpr, count: int) -> dict[int, FactoredParameter]:
    """Return those among the first `count` arguments of a program that enter in a single product, by their number."""
    uses: Counter[int] = Counter()
    products: dict[int, FactoredParameter] = {}
    numbering = dict(zip(program.jaxpr.invars[:count], range(count), strict=True))
    _collect_products(program.jaxpr, numbering, uses, products)
    return {number: one for number, one in products.items() if uses[number] == 1}


def run_with_probes(
    program: ClosedJaxpr, factored: dict[int, FactoredParameter], arguments: list, probes: dict[int, jax.Array]
) -> tuple[list, dict[int, jax.Array]]:
    """Evaluate a program to whose products the probes are added; return its outputs and the input of each product."""
    inputs: dict[int, jax.Array] = {}
    numbering = {program.jaxpr.invars[number]: number for number in factored}
    return _run(program, arguments, numbering, probes, inputs), inputs


def _collect_products(
    jaxpr: Jaxpr, numbering: Numbering, uses: Counter, products: dict[int, FactoredParameter]
) -> None:
    """Count how often each parameter is used, and collect the products in which one enters."""
    for eqn in jaxpr.eqns:
        inner = _called_program(eqn)
        if inner is not None:
            _collect_products(inner.jaxpr, _renumber(inner, eqn, numbering), uses, products)
            continue
        numbers = [None if isinstance(v, Literal) else numbering.get(v) for v in eqn.invars]
        uses.update(number for number in numbers if number is not None)
        if eqn.primitive.name == "dot_general" and numbers.count(None) == 1:
            side = 0 if numbers[1] is None else 1
            number, one = numbers[side], _factored_parameter(eqn, side)
            if number is not None and one is not None:
                products[number] = one
    # A parameter that is returned as it is counts as used once more, so that it is not factored.
    uses.update(numbering[v] for v in jaxpr.outvars if not isinstance(v, Literal) and v in numbering)


def _factored_parameter(eqn: JaxprEqn, side: int) -> FactoredParameter | None:
    """Describe the product of an equation whose parameter is on this side; None if the product has batches."""
    contracted, batch = eqn.params["dimension_numbers"]
    if batch[0]:
        return None
    variables: list[Any] = [eqn.invars[side], eqn.invars[1 - side], eqn.outvars[0]]
    W, a, y = (v.aval for v in variables)
    inputs = math.prod(W.shape[axis] for axis in contracted[side])
    rows = a.size // max(inputs, 1)
    axes = tuple(contracted[1 - side])
    return FactoredParameter(side == 0, axes, rows, inputs, W.size // max(inputs, 1), y.shape, y.dtype)


def _run(program: ClosedJaxpr, arguments: list, numbering: Numbering, probes: dict, inputs: dict) -> list:
    env: dict[Var, Any] = dict(zip(program.jaxpr.constvars, program.consts, strict=True))
    env.update(zip(program.jaxpr.invars, arguments, strict=True))

    def read(v: Any) -> Any:
        return v.val if isinstance(v, Literal) else env[v]

    for eqn in program.jaxpr.eqns:
        values, inner = [read(v) for v in eqn.invars], _called_program(eqn)
        if inner is not None:
            results = _run(inner, values, _renumber(inner, eqn, numbering), probes, inputs)
        else:
            results = _evaluate_equation(eqn, values)
            for place, v in enumerate(eqn.invars):
                if not isinstance(v, Literal) and v in numbering:
                    inputs[numbering[v]] = values[1 - place]
                    results = [results[0] + probes[numbering[v]]]
        env.update(zip(eqn.outvars, results, strict=True))
    return [read(v) for v in program.jaxpr.outvars]


def _called_program(eqn: JaxprEqn) -> ClosedJaxpr | None:
    """Return the program of an equation that does nothing but call one."""
    return eqn.params["jaxpr"] if eqn.primitive.name in ("jit", "pjit") else None


def _renumber(inner: ClosedJaxpr, eqn: JaxprEqn, numbering: Numbering) -> Numbering:
    """Return the numbers of parameters under the names that they have inside of a called program."""
    pairs = zip(inner.jaxpr.invars, eqn.invars, strict=True)
    return {own: numbering[v] for own, v in pairs if not isinstance(v, Literal) and v in numbering}


def _evaluate_equation(eqn: JaxprEqn, values: list) -> list:
    # Before JAX 0.9 or so, functions among the settings of a primitive are arguments of `bind`; now they are settings.
    settings = eqn.primitive.get_bind_params(eqn.params)
    functions, settings = settings if isinstance(settings, tuple) else ((), settings)
    results = eqn.primitive.bind(*functions, *values, **settings)
    return list(results) if eqn.primitive.multiple_results else [results]
