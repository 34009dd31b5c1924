"""The actions that one builds: on vectors and channels, on the pixels of images, on the nodes of graphs.

On the last axis; axes before it are a batch:

    matrix         ρ(g)x = M_g x
    permutation    (ρ(g)x)_{π_g(i)} = x_i,  that is (ρ(g)x)_a = x_{π_g⁻¹(a)}
    regular        (ρ(g)x)_h = x_{g⁻¹h}
    trivial        ρ(g)x = x
    sign           ρ(g)x = ±x

On positions, of images [..., H, W, channels], sequences and graphs:

    rot90          quarter turns and flips of square images
    rotate         rotations of images, interpolated
    translations   of images on a torus, of sequences on a ring
    nodes          permutations of the nodes of a graph

With `channels`, a representation τ on vectors, these turn the moved value as well: (ρ_X(g)x)(a) = τ_X(g) x(ρ⁻¹(g)a).
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ntk_equiv import groups
from ntk_equiv._check import function, one_of, positive_integer, real_array, refusal
from ntk_equiv.groups import ContinuousGroup, FiniteGroup, check_finite_group, check_group
from ntk_equiv.reps._channels import (
    Channels,
    Identity,
    Matrices,
    MatrixFunction,
    Permutations,
    Table,
    wrap_numpy_function,
)
from ntk_equiv.reps._grids import (
    Domain,
    GridAction,
    NodePermutations,
    NoPositions,
    QuarterTurns,
    Rotations,
    Translations,
)
from ntk_equiv.reps._representation import (
    Group,
    Representation,
    check_representation_of,
    measure_homomorphism_error,
)

_TOLERANCE = 1e-4  # matrices may be given in single precision


def matrix(group: Group, /, mats: Callable | ArrayLike | Sequence | None = None) -> Representation:
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
        return _matrix_function(group, mats)
    if mats is None and group.matrices is None:
        fix = f"{group.label} is not a group of matrices; build it with `groups.from_matrices`, or pass some."
        raise refusal("mats", expected="given", got="nothing", fix=fix)
    mats = np.asarray(group.matrices if mats is None else _numbers(mats, "mats"))
    if mats.ndim != 3 or len(mats) != group.order or mats.shape[1] != mats.shape[2]:
        fix = "Pass one square matrix for each element, in the order of the group."
        raise refusal("mats", expected=f"an array [{group.order}, d, d]", got=f"shape {mats.shape}", fix=fix)
    _check_products(group, mats, "mats")
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


def permutation(group: FiniteGroup, /, perms: ArrayLike | Sequence | None = None) -> Representation:
    """The representation by permutations of the last axis: `perms[g][i]` is where g sends entry i.

    Args:
        group: finite.
        perms: integers [order, d]. Left out: the permutations of the group itself, as for `symmetric(n)`.

    Raises:
        ValueError: the rows are not permutations, or `perms[g][perms[h]] == perms[gh]` fails.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import groups, reps
        >>> reps.permutation(groups.cyclic(2), [[0, 1, 2], [1, 0, 2]])(1, jnp.array([5, 6, 7])).tolist()
        [6, 5, 7]
        >>> reps.permutation(groups.symmetric(4)).dim
        4
    """
    return Representation(group, Permutations(_sources(group, perms)), label="permutation")


def regular(group: FiniteGroup, /) -> Representation:
    """The regular representation, on functions on the group: (ρ(g)x)_h = x_{g⁻¹h}.

    Example:
        >>> from ntk_equiv import groups, reps
        >>> reps.regular(groups.symmetric(3))
        <regular of symmetric(3) on 6 channels>
    """
    sources = check_finite_group(group).table[group.inverse]
    return Representation(group, Permutations(Table(sources)), label="regular")


def sign(group: FiniteGroup, /, signs: ArrayLike | Sequence | None = None) -> Representation:
    """A representation by signs, ρ(g)x = ±x, on one channel.

    Args:
        group: finite.
        signs: 1 or −1 for each element. They may be left out if the group has only one choice that is not trivial:
            the parity for `symmetric(n)`, alternating signs for `cyclic(n)` with even n.

    Raises:
        ValueError: the signs do not multiply as the group does, or they were left out and there is none or several.

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
            raise refusal("signs", expected="given", got=f"nothing, with {len(choices)} possible choices", fix=fix)
        return Representation(group, Matrices(Table(choices[0])), label="sign")
    signs = _numbers(signs, "signs")
    if signs.shape != (group.order,) or not np.isin(signs, (-1, 1)).all():
        fix = "Pass them in the order of the elements."
        raise refusal("signs", expected=f"{group.order} numbers, 1 or −1", got=signs.tolist(), fix=fix)
    mats = signs[:, None, None].astype(float)
    _check_products(group, mats, "signs")
    return Representation(group, Matrices(Table(mats)), label="sign")


def rot90(group: FiniteGroup, /, channels: Representation | None = None) -> Representation:
    """Quarter turns and flips of square images [..., H, W, C], exact.

    Element g of `cyclic(4)` is `np.rot90(x, g)`. Element 4 of `dihedral(4)` is the left-right flip, 4 + k the flip
    followed by k quarter turns. `cyclic(2)` is the half turn, `dihedral(2)` (the same table as `klein()`) the half turn
    and the flips. For other subgroups of D4, such as the flip alone, use `restrict`.

    Args:
        group: with the table of `trivial()`, `cyclic(2)`, `cyclic(4)`, `dihedral(2)` or `dihedral(4)`.
        channels: how the channels of a pixel transform; not at all unless given.

    Raises:
        ValueError: another group. Images that are not square are refused when acted upon.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import groups, reps
        >>> image = jnp.array([[1, 2], [3, 4]])[..., None]
        >>> rep = reps.rot90(groups.dihedral(4))
        >>> rep(4, image)[..., 0].tolist(), rep(5, image)[..., 0].tolist()
        ([[2, 1], [4, 3]], [[1, 3], [2, 4]])
    """
    # The elements of D4 that make up each subgroup, in the order of its own elements.
    for known, moves in (
        (groups.trivial(), [0]),
        (groups.cyclic(2), [0, 2]),
        (groups.cyclic(4), range(4)),
        (groups.dihedral(2), [0, 2, 4, 6]),
        (groups.dihedral(4), range(8)),
    ):
        if group == known:
            return _moving_positions(group, QuarterTurns(Table(np.array(moves))), channels, "rot90")
    fix = "Rotations by other angles need interpolation, `reps.rotate`; for other subgroups of D4 use `reps.restrict`."
    raise refusal("group", expected="trivial(), cyclic(2), cyclic(4), dihedral(2) or dihedral(4)", got=group, fix=fix)


def rotate(group: FiniteGroup, /, order: int = 1, *, channels: Representation | None = None) -> Representation:
    """Rotations of images [..., H, W, C] by multiples of 2π/k, counter-clockwise about their centre, interpolated.

    The centre is that of the array, ((H − 1)/2, (W − 1)/2) in pixels. Values come from the nearest pixel (order 0) or
    linearly from the four around (order 1); what lies outside of the image is zero. This is *not* a representation:
    `rep.exact` is False for k > 2, and `rep.homomorphism_error()` measures how far it is from one.

    Args:
        group: with the table of a cyclic group.
        order: of the interpolation, 0 or 1.
        channels: how the channels of a pixel transform; not at all unless given.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import groups, reps
        >>> rep = reps.rotate(groups.cyclic(8))
        >>> rep.exact
        False
        >>> spot = jnp.zeros((3, 3, 1)).at[1, 2].set(1)      # to the right of the centre
        >>> rep(2, spot)[..., 0].tolist()                    # a quarter turn takes it above
        [[0.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """
    one_of(order, (0, 1), "order")
    if check_finite_group(group) != groups.cyclic(group.order):
        fix = "Rotations of the plane by multiples of one angle make a cyclic group, element g turning g times."
        raise refusal("group", expected="a cyclic group in its usual order", got=group, fix=fix)
    return _moving_positions(group, Rotations(Table(np.arange(group.order)), group.order, order), channels, "rotate")


def translations(rows: int, columns: int | None = None, /, *, channels: Representation | None = None) -> Representation:
    """Translations of images [..., H, W, C] on a torus, by multiples of H/rows and W/columns pixels.

    The group is `product(cyclic(rows), cyclic(columns))`: element i · columns + j moves down by i steps and right by j.
    With rows = H and columns = W these are all translations. With one number they are those of sequences [..., L, C] on
    a ring, by multiples of L/rows positions; the group is `cyclic(rows)`.

    Args:
        rows: how many steps lead once around vertically; must divide H, or L.
        columns: the same horizontally; must divide W. Left out for sequences.
        channels: how the channels of a pixel transform; not at all unless given.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import reps
        >>> image = jnp.arange(4).reshape(1, 4, 1)
        >>> reps.translations(1, 2)(1, image)[..., 0].tolist()
        [[2, 3, 0, 1]]
        >>> reps.translations(4)(1, jnp.arange(4)[:, None])[:, 0].tolist()      # a sequence
        [3, 0, 1, 2]
    """
    if columns is None:
        parts: tuple[int, ...] = (positive_integer(rows, "rows"),)
        group = groups.cyclic(rows)
    else:
        parts = (positive_integer(rows, "rows"), positive_integer(columns, "columns"))
        group = groups.product(groups.cyclic(rows), groups.cyclic(columns))
    steps = np.indices(parts).reshape(len(parts), -1).T
    return _moving_positions(group, Translations(Table(steps), parts), channels, "translations")


def nodes(
    group: FiniteGroup, /, perms: ArrayLike | Sequence | None = None, *, channels: Representation | None = None
) -> Representation:
    """Permutations of the nodes of graphs: features and adjacency move together.

    Acts on graphs (nodes [..., N, C], adjacency [..., N, N]), and on arrays [..., N, C] such as labels of nodes.

    Args:
        group: finite.
        perms: integers [order, N], `perms[g][i]` the new label of node i. Left out: the permutations of the group
            itself, as for `symmetric(N)`.
        channels: how the features of a node transform; not at all unless given.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import groups, reps
        >>> rep = reps.nodes(groups.cyclic(3), [[0, 1, 2], [1, 2, 0], [2, 0, 1]])
        >>> rep(1, jnp.array([[10], [20], [30]])).tolist()
        [[30], [10], [20]]
        >>> reps.nodes(groups.symmetric(4))
        <permutation of symmetric(4) on nodes, any number of channels>
    """
    return _moving_positions(group, NodePermutations(_sources(group, perms)), channels, "permutation")


relabel = nodes  # its former name, kept for those who use it


def _moving_positions(
    group: FiniteGroup, domain: Domain, channels: Representation | None, label: str
) -> Representation:
    """The representation that moves positions as `domain` says, and turns channels if that is asked for."""
    tau: Channels = Identity()
    if channels is not None:
        check_representation_of(group, channels, "channels")
        if not isinstance(channels.domain, NoPositions):
            fix = "The positions are moved already; pass how the channels of one position transform."
            raise refusal("channels", expected="a representation on vectors", got=channels, fix=fix)
        tau, label = channels.channels, f"{label} with {channels.label} channels"
    return Representation(group, tau, domain, label=label)


def _check_products(group: FiniteGroup, mats: np.ndarray, argument: str) -> None:
    """Refuse matrices that do not multiply as the elements of the group do; generators imply the rest."""
    scale = max(1.0, float(np.abs(mats).max()) ** 2)
    for g in group.generators or (0,):
        off = np.abs(mats[g] @ mats - mats[group.table[g]]).max(axis=(1, 2))
        if not off.max() <= _TOLERANCE * scale:  # not `>`, which NaN would pass
            got = f"M[{g}] @ M[{off.argmax()}] off by {off.max():.2g} from M[{group.table[g, off.argmax()]}]"
            fix = "The matrices may belong to another group, or be in another order than its elements."
            raise refusal(argument, expected=f"a representation of {group.label}", got=got, fix=fix)


def _sources(group: FiniteGroup, perms: ArrayLike | Sequence | None) -> Table:
    """Where each entry comes from under the given permutations, or those of the group itself, if they fit the group."""
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


def _matrix_function(group: ContinuousGroup, mats: Any) -> Representation:
    """The representation of a continuous group by a function of its matrices, if it keeps products."""
    fix = f"It is given a matrix of {group} and returns the matrix that acts."
    fn: Callable = _own_matrix if mats is None else function(mats, "mats", fix=fix)
    with jax.ensure_compile_time_eval():
        shape = np.shape(fn(jnp.eye(group.n)))
    if len(shape) != 2 or shape[0] != shape[1]:
        raise refusal("mats", expected="a function to square matrices", got=f"shape {shape}", fix=fix)
    dim = shape[0]
    channels = MatrixFunction(fn if _can_be_traced(fn, group.n) else wrap_numpy_function(fn, group.n, dim), dim)
    error = measure_homomorphism_error(group, channels, GridAction(()), pairs=3)
    if not error <= _TOLERANCE * max(1, dim):
        fix = "Check that fn(A @ B) = fn(A) @ fn(B)."
        raise refusal("mats", expected=f"a representation of {group}", got=f"products off by {error:.2g}", fix=fix)
    return Representation(group, channels, label="matrix")


def _own_matrix(R: jax.Array) -> jax.Array:
    # One function for all calls, so that the representations they return are equal.
    return R


def _can_be_traced(fn: Callable, n: int) -> bool:
    """Whether JAX can compile a function of a matrix: it cannot if the function is written in NumPy."""
    try:
        jax.eval_shape(fn, jax.ShapeDtypeStruct((n, n), jnp.result_type(float)))
    except jax.errors.JAXTypeError:
        return False
    return True


def _numbers(value: Any, argument: str) -> np.ndarray:
    return np.asarray(real_array(value, argument, fix="Pass one entry for each element.", or_complex=True))
