"""Representations on the last axis: vectors, channels, node features.

On arrays with more axes they act on the last one alone; the others are a batch.

    matrix        ρ(g)x = M_g x
    permutation   (ρ(g)x)_{π_g(i)} = x_i,  that is (ρ(g)x)_a = x_{π_g⁻¹(a)}
    regular       (ρ(g)x)_h = x_{g⁻¹h}
    trivial       ρ(g)x = x
    sign          ρ(g)x = ±x
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv._check import function, positive_integer, real_array, refusal
from ntk_equiv.groups import ContinuousGroup, FiniteGroup, check_finite_group, check_group
from ntk_equiv.reps import _measure
from ntk_equiv.reps._channels import Identity, Matrices, MatrixFunction, Permutations, Table, on_host
from ntk_equiv.reps._grids import GridAction
from ntk_equiv.reps._representation import Group, Representation

_TOLERANCE = 1e-4  # matrices may be given in single precision


def matrix(group: Group, /, mats: Any = None) -> Representation:
    """The representation by given matrices, ρ(g)x = M_g x on the last axis.

    Args:
        group: finite or continuous.
        mats: for a finite group an array [order, d, d], real or complex; for a continuous group a function from its
            matrix to a matrix [d, d], in JAX or, more slowly, in NumPy. Left out: the matrices of the group itself.

    Raises:
        ValueError: the shape does not fit, or M_g M_h = M_gh fails; the message names a pair.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import groups, reps
        >>> rep = reps.matrix(groups.cyclic(2), [[[1, 0], [0, 1]], [[0, 1], [1, 0]]])
        >>> rep(1, jnp.array([1., 2.])).tolist()
        [2.0, 1.0]
        >>> two = reps.matrix(groups.SO2, lambda R: jnp.kron(jnp.eye(2), R))
        >>> quarter_turn = groups.SO2.finite(4).matrices[1]
        >>> two(quarter_turn, jnp.array([1., 0., 0., 1.])).tolist()
        [0.0, 1.0, -1.0, 0.0]
    """
    group = check_group(group)
    if isinstance(group, ContinuousGroup):
        return _continuous(group, _itself if mats is None else mats)
    if mats is None and group.matrices is None:
        fix = f"{group.label} is not a group of matrices; build it with `groups.from_matrices`, or pass some."
        raise refusal("mats", expected="given", got="nothing", fix=fix)
    mats = np.asarray(group.matrices if mats is None else _numbers(mats, "mats"))
    if mats.ndim != 3 or len(mats) != group.order or mats.shape[1] != mats.shape[2]:
        fix = "Pass one square matrix for each element, in the order of the group."
        raise refusal("mats", expected=f"an array [{group.order}, d, d]", got=f"shape {mats.shape}", fix=fix)
    scale = max(1.0, float(np.abs(mats).max()) ** 2)
    for g in group.generators or (0,):
        off = np.abs(mats[g] @ mats - mats[group.table[g]]).max(axis=(1, 2))
        if not off.max() <= _TOLERANCE * scale:
            got = f"M[{g}] @ M[{off.argmax()}] off by {off.max():.2g} from M[{group.table[g, off.argmax()]}]"
            fix = "The matrices may belong to another group, or be in another order than its elements."
            raise refusal("mats", expected=f"a representation of {group.label}", got=got, fix=fix)
    return Representation(group, Matrices(Table(mats)), label="matrix")


def trivial(group: Group, /, dim: int | None = None) -> Representation:
    """The trivial representation, ρ(g)x = x, on any number of channels unless `dim` is given.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import groups, reps
        >>> reps.trivial(groups.cyclic(5))(3, jnp.ones((2, 7))).shape
        (2, 7)
    """
    dim = None if dim is None else positive_integer(dim, "dim")
    return Representation(check_group(group), Identity(dim), label="trivial")


def permutation(group: FiniteGroup, /, perms: Any = None) -> Representation:
    """The representation by permutations of the last axis: `perms[g][i]` is where g sends entry i.

    Args:
        group: finite.
        perms: integers [order, d]. Left out: the permutations of the group itself, as for `symmetric(n)`.

    Raises:
        ValueError: the rows are not permutations, or perms[g][perms[h]] = perms[gh] fails.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import groups, reps
        >>> reps.permutation(groups.cyclic(2), [[0, 1, 2], [1, 0, 2]])(1, jnp.array([5, 6, 7])).tolist()
        [6, 5, 7]
        >>> reps.permutation(groups.symmetric(4)).dim
        4
    """
    return Representation(group, Permutations(sources_of(group, perms)), label="permutation")


def regular(group: FiniteGroup, /) -> Representation:
    """The regular representation, on functions on the group: (ρ(g)x)_h = x_{g⁻¹h}.

    Example:
        >>> from ntk_equiv import groups, reps
        >>> reps.regular(groups.symmetric(3))
        <regular of symmetric(3) on 6 channels>
    """
    return Representation(group, Permutations(sources_of(group, check_finite_group(group).table)), label="regular")


def sign(group: FiniteGroup, /, signs: Any = None) -> Representation:
    """A representation by signs, ρ(g)x = ±x, on one channel.

    Args:
        group: finite.
        signs: 1 or −1 for each element. May be left out where only one choice is not trivial, as for `symmetric(n)`,
            where it is the parity, or `cyclic(n)` with even n.

    Raises:
        ValueError: the signs do not multiply as the group does, or were left out and there is none or several.

    Example:
        >>> from ntk_equiv import groups, reps
        >>> reps.sign(groups.symmetric(3)).channels.matrices(6)[:, 0, 0].tolist()
        [1.0, -1.0, -1.0, 1.0, 1.0, -1.0]
    """
    check_finite_group(group)
    if signs is None:
        choices = [sigma for sigma in group.irreps()[1:] if sigma.shape[1] == 1 and np.isrealobj(sigma)]
        if len(choices) != 1:
            fix = "Pass 1 or −1 for each element."
            raise refusal("signs", expected="given", got=f"nothing, with {len(choices)} of them to choose", fix=fix)
        return Representation(group, matrix(group, choices[0]).channels, label="sign")
    signs = _numbers(signs, "signs")
    if signs.shape != (group.order,) or not np.isin(signs, (-1, 1)).all():
        fix = "Pass them in the order of the elements."
        raise refusal("signs", expected=f"{group.order} numbers, 1 or −1", got=signs.tolist(), fix=fix)
    return Representation(group, matrix(group, signs[:, None, None].astype(float)).channels, label="sign")


def sources_of(group: FiniteGroup, perms: Any) -> Table:
    """Where each entry comes from under each permutation, those of the group itself unless given, if they fit it."""
    own = check_finite_group(group).permutations
    if perms is None and own is None:
        fix = f"{group.label} is not a group of permutations; build it with `groups.from_permutations`, or pass some."
        raise refusal("perms", expected="given", got="nothing", fix=fix)
    perms = _numbers(own if perms is None else perms, "perms")
    if perms.ndim != 2 or len(perms) != group.order or (np.sort(perms, axis=1) != np.arange(perms.shape[1])).any():
        got = f"shape {perms.shape}" if perms.shape[:1] != (group.order,) else "rows that repeat an entry"
        fix = "Pass one list of images for each element: where 0, 1, … go."
        raise refusal("perms", expected=f"{group.order} permutations", got=got, fix=fix)
    for g in group.generators:
        wrong = np.flatnonzero((perms[g][perms] != perms[group.table[g]]).any(axis=1))
        if wrong.size:
            got = f"perms[{g}][perms[{wrong[0]}]] other than perms[{group.table[g, wrong[0]]}]"
            fix = "The permutations may belong to another group, or be in another order than its elements."
            raise refusal("perms", expected=f"a representation of {group.label}", got=got, fix=fix)
    return Table(np.argsort(perms, axis=1).astype(np.int32))


def _continuous(group: ContinuousGroup, fn: Callable) -> Representation:
    fix = f"It is given a matrix of {group} and returns the matrix that acts."
    with jax.ensure_compile_time_eval():
        shape = np.shape(function(fn, "mats", fix=fix)(jnp.eye(group.n)))
    if len(shape) != 2 or shape[0] != shape[1]:
        raise refusal("mats", expected="a function to square matrices", got=f"shape {shape}", fix=fix)
    channels = MatrixFunction(fn if _can_be_traced(fn, group.n) else on_host(fn, group.n, shape[0]), shape[0])
    error = _measure.homomorphism_error(group, channels, GridAction(()), pairs=3)
    if not error <= _TOLERANCE * max(1, shape[0]):
        fix = "Check that fn(A @ B) = fn(A) @ fn(B)."
        raise refusal("mats", expected=f"a representation of {group}", got=f"products off by {error:.2g}", fix=fix)
    return Representation(group, channels, label="matrix")


def _can_be_traced(fn: Callable, n: int) -> bool:
    """Whether JAX can compile a function of a matrix, which it cannot if that is written in NumPy."""
    try:
        jax.eval_shape(fn, jax.ShapeDtypeStruct((n, n), jnp.result_type(float)))
    except jax.errors.JAXTypeError:
        return False
    return True


def _numbers(value: Any, argument: str) -> np.ndarray:
    return np.asarray(real_array(value, argument, fix="Pass one entry for each element.", or_complex=True))


def _itself(R: jax.Array) -> jax.Array:
    return R
