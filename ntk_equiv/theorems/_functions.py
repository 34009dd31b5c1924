"""Equivariance of any function, for use in tests.

f(ρ_X(g)x) = ρ_Y(g) f(x)
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv._check import arrays, function, refusal, scalar
from ntk_equiv._typing import Inputs
from ntk_equiv.reps import Representation, check_actions
from ntk_equiv.theorems._kernels import check_known
from ntk_equiv.theorems._violation import Violation, measured, one_by_one


def assert_equivariant(
    fn: Callable[[Any], Any],
    rep_x: Representation,
    rep_y: Representation | None,
    x: Inputs,
    /,
    *,
    tol: float | None = None,
    elements: Any = None,
) -> Violation:
    """The record of how equivariant a function is, if it is so up to `tol`; otherwise an assertion that fails.

        fn(ρ_X(g)x) = ρ_Y(g) fn(x)

    Args:
        fn: any function of `x`, which need not be one of JAX. It may return several arrays, as a pytree.
        rep_x: how the group acts on inputs.
        rep_y: how it acts on what `fn` returns; `None` if that is invariant.
        x: what to evaluate the function on, one sample or many.
        tol: the largest violation relative to the largest value. Left out: ε^0.6 with ε of the coarsest dtype that
            occurs, about 4e-10 in double and 7e-5 in single precision; 0 if `fn` returns integers.
        elements: some elements instead of all of a finite group, or matrices `[count, d, d]` of a continuous one.

    Returns:
        The record.

    Raises:
        AssertionError: the function is not equivariant; the message names the worst element.
        ValueError: the two representations are of different groups, or do not fit the arrays.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import groups, reps, theorems
        >>> turn = reps.matrix(groups.SO2.finite(4))
        >>> x = jnp.array([[3., 4.], [0., 1.]])
        >>> theorems.assert_equivariant(lambda x: x * jnp.sum(x**2, axis=-1, keepdims=True), turn, turn, x)
        <violation of at most 0, 0 of the scale 100>
        >>> theorems.assert_equivariant(lambda x: jnp.abs(x[..., 0]), turn, None, x)
        Traceback (most recent call last):
        ...
        AssertionError: fn(ρ_X(g)x) = fn(x), checked for 4 elements of C4 in SO(2): off by at most 1, 0.25 of the
        largest entry, worst for r (element 1) at entry (0,). Allowed: ... of it.
    """
    check_known(x, "x")
    arrays(x, "x")
    function(fn, "fn")
    tol = None if tol is None else scalar(tol, "tol", at_least=0, fix="It is relative to the largest value.")
    found, precision = _equivariance(fn, rep_x, rep_y, x, elements)
    tol = precision if tol is None else tol
    if not found.holds(tol):
        raise AssertionError(f"{found} Allowed: {tol:.3g} of it.")
    return found


def _equivariance(
    fn: Callable[[Any], Any], rep_x: Representation, rep_y: Representation | None, x: Inputs, elements: Any
) -> tuple[Violation, float]:
    """The record, and the tolerance that fits the precision."""
    statement = f"fn(ρ_X(g)x) = {'fn(x)' if rep_y is None else 'ρ_Y(g) fn(x)'}"
    rep_x, rep_y = check_actions(rep_x, rep_y)
    chosen = rep_x.elements(elements)
    value = fn(x)
    if not sum(np.size(leaf) for leaf in jax.tree.leaves(value) if np.asarray(leaf).dtype.kind in "biufcV"):
        raise refusal("fn", expected="a function that returns numbers", got="none", fix="Return arrays from it.")
    paths, arrays = zip(*jax.tree_util.tree_leaves_with_path(value), strict=True)
    statements = {f"fn(x){jax.tree_util.keystr(path)}": statement for path in paths}

    def sides() -> Iterator[tuple]:
        for g in one_by_one(rep_x.group, chosen):
            left, right = jax.tree.leaves(fn(rep_x(g, x))), jax.tree.leaves(_moved(rep_y, g, value))
            _check_same_shapes(left, right)
            yield left, right

    return measured(statements, rep_x.group, chosen, sides()), _tolerance(arrays, jax.tree.leaves(x))


def _moved(rep_y: Representation, g: Any, value: Any) -> Any:
    try:
        return rep_y(g, value)
    except ValueError as error:
        shapes = ", ".join(str(jnp.shape(leaf)) for leaf in jax.tree.leaves(value))
        expected = "an action on what `fn` returns"
        raise refusal(
            "rep_y", expected=expected, got=f"{rep_y} for shape {shapes}", fix=f"In detail: {error}"
        ) from None


def _check_same_shapes(left: list, right: list) -> None:
    shapes, others = [np.shape(leaf) for leaf in left], [np.shape(leaf) for leaf in right]
    if shapes != others:
        fix = "Both sides of the equation have to be arrays of the same shapes."
        raise refusal("fn", expected=f"a function with values of shapes {others}", got=f"{shapes}", fix=fix)


def _tolerance(values: tuple, inputs: list) -> float:
    """ε^0.6 of the coarsest floating-point numbers, 0 if the values are none."""
    dtypes = [[jnp.result_type(leaf) for leaf in leaves] for leaves in (values, inputs)]
    coarse = [
        [float(jnp.finfo(dtype).eps) for dtype in group if jnp.issubdtype(dtype, jnp.inexact)] for group in dtypes
    ]
    return max(coarse[0] + coarse[1]) ** 0.6 if coarse[0] else 0.0
