"""Theorem "Kernel transformation": transformed inputs have the transformed kernel.

    Θ(ρ_X(g)x, ρ_X(g)x') = ρ_K(g) Θ(x, x') ρ_K(g)ᵀ,        𝒦 likewise

ρ_K moves the positions of outputs. Kernels of outputs without positions are invariant.
"""

from collections.abc import Iterator
from typing import Any

import jax

from ntk_equiv._check import is_concrete, refusal
from ntk_equiv._gram import gram, kernel_function
from ntk_equiv._typing import Inputs, KernelFunction
from ntk_equiv.reps import GridAction, Representation, check_representation
from ntk_equiv.theorems._violation import Violation, measured, one_by_one

STATEMENTS = {
    "nngp": "NNGP kernel: 𝒦(ρ_X(g)x, ρ_X(g)x') = ρ_K(g) 𝒦(x, x') ρ_K(g)ᵀ",
    "ntk": "neural tangent kernel: Θ(ρ_X(g)x, ρ_X(g)x') = ρ_K(g) Θ(x, x') ρ_K(g)ᵀ",
}


def kernel_transformation(
    kernel_fn: KernelFunction | tuple,
    rep_x: Representation,
    x1: Inputs,
    x2: Inputs | None = None,
    /,
    *,
    elements: Any = None,
) -> Violation:
    """How far the kernels of transformed inputs are from the transformed kernels.

        Θ(ρ_X(g)x, ρ_X(g)x') = ρ_K(g) Θ(x, x') ρ_K(g)ᵀ,        𝒦 likewise

    The theorem holds for orthogonal actions and networks that respect them: all dense ones, convolutions and pooling
    that cover the image symmetrically, sums over the neighbours of a node.

    Args:
        kernel_fn: from `ntk_equiv.stax`, from neural-tangents, or any function with the same arguments. Kernels of
            outputs with positions are `[n1, n2, h, h', w, w']`; neural-tangents reverses the order of these axes after
            an odd number of convolutions, which is reported as a violation.
        rep_x: how the group acts on inputs.
        x1: samples `[n1, ...]`, or graphs.
        x2: other samples; `None` stands for `x1`.
        elements: some elements instead of all of a finite group, or matrices `[count, d, d]` of a continuous one.

    Returns:
        The record of the worst of both kernels, with `parts` for the NNGP kernel and the neural tangent kernel.

    Raises:
        ValueError: the group does not act on such inputs, or not on the grid of the outputs.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import groups, reps, stax, theorems
        >>> rep = reps.rot90(groups.cyclic(4))
        >>> x = jnp.zeros((1, 4, 4, 1)).at[0, 3, 0].set(1.)
        >>> def network(stride):
        ...     conv = stax.Conv(8, (2, 2), strides=(stride, stride))
        ...     return stax.serial(conv, stax.Relu(), stax.Flatten(), stax.Dense(1))[2]
        >>> theorems.kernel_transformation(network(2), rep, x).holds(1e-6)
        True
        >>> found = theorems.kernel_transformation(network(3), rep, x)      # drops the last row and column
        >>> print(found.parts[1])
        neural tangent kernel: Θ(ρ_X(g)x, ρ_X(g)x') = ρ_K(g) Θ(x, x') ρ_K(g)ᵀ, checked for 4 elements of cyclic(4):
        off by at most 0.25, 1 of the largest entry, worst for r3 (element 3) at entry (0, 0).
    """
    check_known((x1, x2), "x1")
    kernel_fn = kernel_function(kernel_fn)
    chosen = check_representation(rep_x, "rep_x").elements(elements)
    kernels = gram(kernel_fn, x1, x2, tuple(STATEMENTS))
    grid = output_grid(rep_x, kernels[0].shape)

    def sides() -> Iterator[tuple]:
        for g in one_by_one(rep_x.group, chosen):
            moved1, moved2 = _acted(rep_x, g, (x1, x2))
            yield gram(kernel_fn, moved1, moved2, tuple(STATEMENTS)), both_sides(grid, g, tuple(kernels))

    return measured(STATEMENTS, rep_x.group, chosen, sides())


# Compiled, because on its own every gather and transposition of a new shape is a program of its own.
@jax.jit
def _acted(rep_x: Representation, g: Any, x: tuple) -> tuple:
    x1, x2 = x
    return rep_x(g, x1), None if x2 is None else rep_x(g, x2)


@jax.jit
def both_sides(grid: GridAction, g: Any, kernels: tuple) -> tuple:
    """ρ_K(g) K ρ_K(g)ᵀ of each kernel."""
    return tuple(grid.both(g, kernel) for kernel in kernels)


def check_known(x: Any, argument: str) -> None:
    """Refuse what a measurement cannot be made of: values that are not known yet, or none at all."""
    if not is_concrete(x):
        fix = "A violation is a number on the host: measure it outside of jit, grad and vmap."
        raise refusal(argument, expected="known values", got="traced ones", fix=fix)
    if any(leaf.size == 0 for leaf in jax.tree.leaves(x) if hasattr(leaf, "size")):
        raise refusal(argument, expected="at least one sample", got="none", fix="Pass some.")


def output_grid(rep_x: Representation, shape: tuple[int, ...], /) -> GridAction:
    """ρ_K on the positions of a kernel of this shape, `[n1, n2, h, h', w, w']`."""
    positions = shape[2:]
    if len(positions) % 2 or positions[::2] != positions[1::2]:
        fix = "Every axis of positions comes twice in a row, once for each of the two inputs."
        raise refusal("kernel_fn", expected="one with kernels [n1, n2, h, h', w, w']", got=f"shape {shape}", fix=fix)
    try:
        return rep_x.spatial(positions[::2])
    except ValueError as error:
        expected = f"a network with outputs on a grid that {rep_x} acts on"
        fix = f"The network does not respect the symmetry. In detail: {error}"
        raise refusal("kernel_fn", expected=expected, got=f"outputs on a grid {positions[::2]}", fix=fix) from None
