"""What a program costs, read from the shapes in it."""

import math
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn


def operations(jaxpr: Jaxpr) -> int:
    """About how many multiplications and additions a program makes."""
    return sum(_operations(eqn) for eqn in jaxpr.eqns)


def _operations(eqn: JaxprEqn) -> int:
    inner = [operations(part) for value in eqn.params.values() for part in _programs(value)]
    if inner:
        # Of several branches one is taken.
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


def _programs(value: Any) -> list[Jaxpr]:
    values = value if isinstance(value, tuple | list) else [value]
    return [v.jaxpr if isinstance(v, ClosedJaxpr) else v for v in values if isinstance(v, ClosedJaxpr | Jaxpr)]
