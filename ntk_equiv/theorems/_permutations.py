"""Lemma "Shift of permutation": on augmented data, permutations pass through functions of the kernels.

    Π(g) F = ρ_K(g) F Π(g) ρ_K(g)ᵀ,        F = F(Θ(𝒳, 𝒳), 𝒦(𝒳, 𝒳))

For outputs with positions a matrix is one over pairs (sample, position), jointly: the inverse of such a matrix is not
that of its blocks. Π(g) permutes samples and ρ_K(g) positions, so the two commute, and the lemma says that
Π(g) ⊗ ρ_K(g)ᵀ commutes with Θ(𝒳, 𝒳), hence with every power of it.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from ntk_equiv._check import function, refusal
from ntk_equiv._gram import gram
from ntk_equiv._positions import apart, joint
from ntk_equiv._typing import Get, KernelFunction
from ntk_equiv.orbits import AugmentedSet
from ntk_equiv.theorems._kernels import both_sides, check_known, output_grid
from ntk_equiv.theorems._violation import Violation, measured

STATEMENT = "function of the Gram matrix: Π(g) F = ρ_K(g) F Π(g) ρ_K(g)ᵀ"


def shift_of_permutation(
    kernel_fn: KernelFunction, train: AugmentedSet | tuple, F: Callable[..., Any], /, *, get: Get = "ntk"
) -> Violation:
    """How far permutations of the augmented set are from passing through F, a function of its Gram matrix.

        Π(g) F = ρ_K(g) F Π(g) ρ_K(g)ᵀ

    Args:
        kernel_fn: from `ntk_equiv.stax`, from neural-tangents, or any function with the same arguments.
        train: an augmented set, of a finite group or of one of its subgroups.
        F: from the matrix Θ(𝒳, 𝒳) to a matrix of the same shape, such as `jnp.linalg.inv` or `jax.scipy.linalg.expm`.
            Rows and columns count samples or, for outputs with positions, (sample, position) with the positions in
            row-major order. An inverse does not exist if a base point is fixed by an element: see
            `train.stabilizers()`.
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
    kernels = gram(kernel_fn, _points(train), None, get)
    kernels = (kernels,) if isinstance(kernels, jax.Array) else tuple(kernels)
    shape = kernels[0].shape
    grid = output_grid(train.rep_x, shape)
    value = apart(_checked(F, [joint(kernel) for kernel in kernels]), shape)

    def sides() -> Iterator[tuple]:
        for g, shift in shifts.items():
            yield [value[shift]], both_sides(grid, g, (value[:, np.argsort(shift)],))

    return measured({"F": STATEMENT}, train.group, tuple(shifts), sides())


def _permutations(train: AugmentedSet) -> dict[int, np.ndarray]:
    """π_g for the elements of the subgroup that augments."""
    if train.elements is None:
        train.permutation(0)  # refuses, and says why
    assert train.elements is not None
    return dict(zip(train.elements, np.asarray(_all_permutations(train, np.array(train.elements))), strict=True))


@jax.jit
def _all_permutations(train: AugmentedSet, elements: jax.Array) -> jax.Array:
    return jax.vmap(train.permutation)(elements)


@jax.jit
def _points(train: AugmentedSet) -> Any:
    return train.x


def _checked(F: Callable[..., Any], matrices: list[jax.Array]) -> np.ndarray:
    value = np.asarray(function(F, "F")(*matrices))
    if value.shape != matrices[0].shape:
        expected = f"a function that returns a matrix {matrices[0].shape}"
        fix = "It is given Gram matrices over all pairs (sample, position), and returns one of the same shape."
        raise refusal("F", expected=expected, got=f"shape {value.shape}", fix=fix)
    return value
