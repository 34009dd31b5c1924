"""Derivatives of the outputs of a network with respect to its parameters, and their inner products.

    outputs     f(x)                     [n, S, C]
    explicit    ∂f/∂θ                    [n, S, C, size of θ]       for every parameter without a site
    factors     a, ∂f/∂y                 [n, s, K], [n, S, C, s, O] for every W that enters as y = a W

Θ is the sum over parameters of what each of them adds: the product of its derivatives, or for factors

    Σ_{s, s'}  ⟨a_s, a'_s'⟩ · ⟨∂f/∂y_s, ∂f'/∂y_s'⟩.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ntk_equiv._check import refusal
from ntk_equiv.empirical._network import as_batch, sample_outputs
from ntk_equiv.empirical._plan import Plan
from ntk_equiv.empirical._sites import probed, program_of


def product(subscripts: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """`jnp.einsum` in full precision, also on accelerators."""
    return jnp.einsum(subscripts, a, b, precision=lax.Precision.HIGHEST)


def side_by_side() -> int:
    """How many numbers of derivatives are computed at the same time; on CPUs few samples are faster than many."""
    return 2**15 if jax.default_backend() == "cpu" else 2**24


def derivatives(plan: Plan, apply: Any, params: Any, constants: Any, x: Any) -> dict[str, Any]:
    """`explicit` and `factors` for all samples of `x`."""
    n = jax.tree.leaves(x)[0].shape[0]
    size = max(1, min(n, side_by_side() // max(plan.numbers_per_sample, 1)))
    steps = -(-n // size)
    # All steps have one size, so that one program serves them; the last is filled up with copies.
    places = np.minimum(np.arange(steps * size), n - 1).reshape(steps, size)
    one = functools.partial(_of_sample, plan, apply, params, constants)
    each = jax.vmap(one) if size > 1 else lambda samples: as_batch(one(jax.tree.map(lambda leaf: leaf[0], samples)))
    found = lax.map(each, jax.tree.map(lambda leaf: leaf[places], x))
    return jax.tree.map(lambda leaf: leaf.reshape(steps * size, *leaf.shape[2:])[:n], found)


def _of_sample(plan: Plan, apply: Any, params: Any, constants: Any, sample: Any) -> dict[str, Any]:
    leaves = jax.tree.leaves(params)
    sites = dict(plan.sites)
    program = program_of(functools.partial(sample_outputs, apply), params, constants, sample)
    rest = jax.tree.leaves((constants, sample))

    def outputs(explicit: dict, probes: dict) -> tuple[jax.Array, dict]:
        arguments = [explicit.get(i, leaf) for i, leaf in enumerate(leaves)]
        (result,), seen = probed(program, sites, arguments + rest, probes)
        return result.reshape(-1), seen

    explicit = {i: leaf for i, leaf in enumerate(leaves) if i not in sites}
    probes = {i: site.probe() for i, site in sites.items()}
    result, pull, seen = jax.vjp(outputs, explicit, probes, has_aux=True)
    slopes, dy = jax.vmap(pull)(jnp.eye(result.size, dtype=result.dtype))
    shape = math.prod(plan.grid), plan.channels
    return {
        "explicit": [slope.reshape(*shape, -1) for slope in slopes.values()],
        "factors": [
            (site.vectors(seen[i]), site.slopes(dy[i]).reshape(*shape, site.rows, site.outputs))
            for i, site in sites.items()
        ],
    }


def contracted(left: dict[str, Any], right: dict[str, Any], apart: bool) -> Any:
    """Σ_θ ⟨∂f/∂θ, ∂f'/∂θ⟩ of all pairs of samples, [n1, n2, S, S'], or with channels apart [n1, n2, S, S', C, C']."""
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
            outer = product(f"ai{c}o,bj{d}o->abij{end}", dy[:, :, :, 0], dz[:, :, :, 0])
            total = total + inputs.reshape(inputs.shape[:2] + (1,) * (outer.ndim - 2)) * outer
        else:
            outer = product(f"ai{c}so,bj{d}to->abij{end}st", dy, dz)
            total = total + product(f"abst,abij{end}st->abij{end}", inputs, outer)
    return total


def by_products(plan: Plan, apply: Any, params: Any, constants: Any, x1: Any, x2: Any, apart: bool) -> jax.Array:
    """The same as `contracted`, without storing derivatives: for each output of x2 one derivative of those of x1."""
    shape = math.prod(plan.grid), plan.channels

    def outputs(x: Any, params: Any) -> jax.Array:
        result = apply(params, constants, x)
        return result.reshape(result.shape[0], *shape)

    _, forward = jax.linearize(functools.partial(outputs, x1), params)

    def of_sample(sample: Any) -> jax.Array:
        result, pull = jax.vjp(functools.partial(outputs, as_batch(sample)), params)

        def of_output(number: jax.Array) -> jax.Array:
            unit = jnp.zeros(result.size, result.dtype).at[number].set(1)
            row = forward(*pull(unit.reshape(result.shape)))
            return row if apart else row[:, :, number % plan.channels]

        return lax.map(of_output, jnp.arange(result.size))

    rows = lax.map(of_sample, x2)
    rows = rows.reshape(rows.shape[0], *shape, *rows.shape[2:])
    # [b, S', C', a, S(, C)], with C' of the second argument last, or summed over.
    return rows.transpose(3, 0, 4, 1, 5, 2) if apart else rows.sum(2).transpose(2, 0, 3, 1)
