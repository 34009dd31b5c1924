"""Theorem "Kernel transformation" and Lemma "Shift of permutation": what a symmetry does to kernels and Gram matrices.

Transformed inputs have the transformed kernel,

    Θ(ρ_X(g)x, ρ_X(g)x') = ρ_K(g) Θ(x, x') ρ_K(g)ᵀ,        𝒦 likewise.

ρ_K moves the positions of outputs. Kernels of outputs without positions are invariant.

On augmented data, permutations therefore pass through functions of the Gram matrices,

    Π(g) F = ρ_K(g) F Π(g) ρ_K(g)ᵀ,        F = F(Θ(𝒳, 𝒳), 𝒦(𝒳, 𝒳)).

For outputs with positions, F acts on the matrix over pairs (sample, position): the inverse of that matrix does not
consist of the inverses of its parts. Π(g) permutes samples and ρ_K(g) positions, so the two commute. The lemma says
that Π(g) ⊗ ρ_K(g)ᵀ commutes with Θ(𝒳, 𝒳), hence with every power of it.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from ntk_equiv._check import function, refusal
from ntk_equiv._gram import check_samples, evaluate_gram, gram, kernel_function, split_kernel
from ntk_equiv._positions import apart, joint
from ntk_equiv._typing import Get, Inputs, KernelFunction, SplitKernel
from ntk_equiv.orbits import AugmentedSet
from ntk_equiv.reps import GridAction, Representation, check_representation
from ntk_equiv.theorems._violation import Violation, check_known, compare, iterate

KERNELS = {
    "nngp": "NNGP kernel: 𝒦(ρ_X(g)x, ρ_X(g)x') = ρ_K(g) 𝒦(x, x') ρ_K(g)ᵀ",
    "ntk": "neural tangent kernel: Θ(ρ_X(g)x, ρ_X(g)x') = ρ_K(g) Θ(x, x') ρ_K(g)ᵀ",
}
FUNCTION = {"F": "function of the Gram matrix: Π(g) F = ρ_K(g) F Π(g) ρ_K(g)ᵀ"}


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
    kernel = split_kernel(kernel_function(kernel_fn))
    chosen = check_representation(rep_x, "rep_x").elements(elements)
    x1, x2 = check_samples(kernel, x1, "x1"), None if x2 is None else check_samples(kernel, x2, "x2")
    return measure_kernel_transformation(kernel, rep_x, x1, x2, chosen)


def measure_kernel_transformation(
    kernel: SplitKernel, rep_x: Representation, x1: Inputs, x2: Inputs | None, elements: Any
) -> Violation:
    """Return what `kernel_transformation` does, for arguments that were checked before."""
    kernels = evaluate_gram(kernel, x1, x2, tuple(KERNELS))
    grid = output_grid(rep_x, kernels[0].shape)

    def sides() -> Iterator[tuple]:
        for g in iterate(rep_x.group, elements):
            moved1, moved2 = _move_both(rep_x, g, (x1, x2))
            moved = evaluate_gram(kernel, moved1, moved2, tuple(KERNELS))
            yield moved, transform_kernels(grid, g, tuple(kernels))

    return compare(KERNELS, rep_x.group, elements, sides())


def shift_of_permutation(
    kernel_fn: KernelFunction | tuple, train: AugmentedSet | tuple, F: Callable[..., Any], /, *, get: Get = "ntk"
) -> Violation:
    """How far permutations of the augmented set are from passing through F, a function of its Gram matrix.

        Π(g) F = ρ_K(g) F Π(g) ρ_K(g)ᵀ

    Args:
        kernel_fn: from `ntk_equiv.stax`, from neural-tangents, or any function with the same arguments.
        train: an augmented set, of a finite group or of one of its subgroups.
        F: from the matrix Θ(𝒳, 𝒳) to a matrix of the same shape, such as `jnp.linalg.inv` or `jax.scipy.linalg.expm`.
            Rows and columns count samples or, for outputs with positions, (sample, position) with the positions in
            row-major order. The inverse does not exist if an element fixes a base sample: see `train.stabilizers()`.
        get: which matrices F takes: `"ntk"`, `"nngp"`, or several of them as in `("nngp", "ntk")`, in this order.

    Returns:
        The record; its indices are those of F as an array `[N, N, h, h', w, w']`.

    Raises:
        ValueError: the set is augmented by elements that are no subgroup, or F returns another shape.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from ntk_equiv import augment, groups, reps, stax, theorems
        >>> _, _, kernel_fn = stax.serial(stax.Dense(8), stax.Relu(), stax.Dense(1))
        >>> train = augment(jnp.array([[1., 2., 4.], [0., 1., 5.]]), jnp.zeros(2), reps.regular(groups.cyclic(3)))
        >>> theorems.shift_of_permutation(kernel_fn, train, jax.scipy.linalg.expm).holds(1e-5)
        True
        >>> mixed = lambda K, Theta: jnp.linalg.inv(jnp.eye(6) + Theta) @ K
        >>> theorems.shift_of_permutation(kernel_fn, train, mixed, get=("nngp", "ntk")).holds(1e-4)
        True
        >>> theorems.shift_of_permutation(kernel_fn, train, jnp.triu).holds(1e-4)      # no analytic function
        False
    """
    if not isinstance(train, AugmentedSet):
        fix = "Make one with `augment(x, y, rep_x)`."
        raise refusal("train", expected="an augmented set", got=type(train).__name__, fix=fix)
    check_known((train.base_x, train.base_y), "train")
    shifts = _permutations(train)
    kernels = gram(kernel_fn, _samples(train), None, get)
    kernels = (kernels,) if isinstance(kernels, jax.Array) else tuple(kernels)
    shape = kernels[0].shape
    grid = output_grid(train.rep_x, shape)
    value = apart(_apply(F, [joint(kernel) for kernel in kernels]), shape)

    def sides() -> Iterator[tuple]:
        for g, shift in shifts.items():
            yield [value[shift]], transform_kernels(grid, g, (value[:, np.argsort(shift)],))

    return compare(FUNCTION, train.group, tuple(shifts), sides())


# Compiled, because outside of jit every gather and transposition of a new shape is compiled by itself.
@jax.jit
def _move_both(rep_x: Representation, g: Any, x: tuple) -> tuple:
    x1, x2 = x
    return rep_x(g, x1), None if x2 is None else rep_x(g, x2)


@jax.jit
def transform_kernels(grid: GridAction, g: Any, kernels: tuple) -> tuple:
    """Return ρ_K(g) K ρ_K(g)ᵀ of each kernel."""
    return tuple(grid.both(g, kernel) for kernel in kernels)


def output_grid(rep_x: Representation, shape: tuple[int, ...], /) -> GridAction:
    """Return ρ_K on the positions of a kernel of this shape, `[n1, n2, h, h', w, w']`."""
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


def _permutations(train: AugmentedSet) -> dict[int, np.ndarray]:
    """Return π_g for the elements of the subgroup that augments."""
    if train.elements is None:
        train.permutation(0)  # refuses, and says why
    assert train.elements is not None
    return dict(zip(train.elements, np.asarray(_all_permutations(train, np.array(train.elements))), strict=True))


@jax.jit
def _all_permutations(train: AugmentedSet, elements: jax.Array) -> jax.Array:
    return jax.vmap(train.permutation)(elements)


@jax.jit
def _samples(train: AugmentedSet) -> Inputs:
    return train.x


def _apply(F: Callable[..., Any], matrices: list[jax.Array]) -> np.ndarray:
    """Return F of the matrices, or refuse a function that returns no such matrix."""
    value = np.asarray(function(F, "F")(*matrices))
    if value.shape != matrices[0].shape:
        expected = f"a function that returns a matrix {matrices[0].shape}"
        fix = "It is given Gram matrices over all pairs (sample, position), and returns one of the same shape."
        raise refusal("F", expected=expected, got=f"shape {value.shape}", fix=fix)
    return value
