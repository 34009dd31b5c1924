"""New representations from old ones.

    direct_sum   (a ⊕ b)(g) = [a(g) 0; 0 b(g)]          channels one after the other
    tensor       (a ⊗ b)(g) = a(g) ⊗ b(g)               channel (i, j) has the index i · dim b + j
    dual         a*(g) = a(g⁻¹)ᵀ
    restrict     the same action, of fewer elements

They combine channels. On images and graphs the positions are moved as before.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg

from ntk_equiv._check import refusal
from ntk_equiv.groups import ContinuousGroup, FiniteGroup, Subgroup, check_finite_group
from ntk_equiv.reps._channels import Channels, Identity, Matrices, MatrixFunction, Permutations, Table
from ntk_equiv.reps._grids import NoPositions
from ntk_equiv.reps._representation import Group, Representation, check_representation, check_representation_of


def direct_sum(a: Representation, b: Representation, /) -> Representation:
    """The direct sum a ⊕ b: the first channels transform as in `a`, the others as in `b`.

    Raises:
        ValueError: different groups, different actions on the positions, or a number of channels that is not known.

    Example:
        >>> from ntk_equiv import groups, reps
        >>> G = groups.cyclic(4)
        >>> reps.direct_sum(reps.regular(G), reps.trivial(G, 2))
        <regular + trivial of cyclic(4) on 6 channels>
    """
    check_representation_of(check_representation(a, "a").group, b, "b")
    for rep in (a, b):
        if rep.dim is None:
            fix = "Say how many: `reps.trivial(G, dim)`."
            raise refusal("a, b", expected="representations on a known number of channels", got=rep, fix=fix)
    if a.domain != b.domain:
        fix = "Only channels on the same pixels or nodes can be put together."
        raise refusal("b", expected="acting on the same positions as `a`", got=b, fix=fix)
    channels = _sum_of_channels(a.group, a.channels, b.channels)
    return Representation(a.group, channels, a.domain, label=f"{a.label} + {b.label}")


def tensor(a: Representation, b: Representation, /) -> Representation:
    """The tensor product a ⊗ b on the products of channels; (i, j) has the index i · dim b + j.

    Raises:
        ValueError: different groups, or two different actions on positions.

    Example:
        >>> from ntk_equiv import groups, reps
        >>> G = groups.polyhedral("O")
        >>> reps.tensor(reps.matrix(G), reps.matrix(G)).dim
        9
    """
    check_representation_of(check_representation(a, "a").group, b, "b")
    if a.domain != b.domain and not any(isinstance(rep.domain, NoPositions) for rep in (a, b)):
        fix = "Only one of them may move positions, or both in the same way."
        raise refusal("b", expected="acting on the same positions as `a`, or on none", got=b, fix=fix)
    domain = b.domain if isinstance(a.domain, NoPositions) else a.domain
    channels = _product_of_channels(a.group, a.channels, b.channels)
    return Representation(a.group, channels, domain, label=f"{a.label} x {b.label}")


def dual(a: Representation, /) -> Representation:
    """The dual representation, a(g⁻¹)ᵀ; the same as `a` where `a` is orthogonal.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import groups, reps
        >>> skew = reps.matrix(groups.cyclic(2), [[[1, 0], [0, 1]], [[1, 1], [0, -1]]])
        >>> reps.dual(skew)(1, jnp.array([1., 0.])).tolist()
        [1.0, 1.0]
    """
    channels = check_representation(a, "a").channels
    if isinstance(channels, MatrixFunction):
        fn = channels.fn
        channels = MatrixFunction(lambda R: fn(R.T).T, channels.dim)
    elif isinstance(channels, Matrices) and isinstance(a.group, FiniteGroup):
        channels = Matrices(Table(channels.table.entries[a.group.inverse].transpose(0, 2, 1)))
    return Representation(a.group, channels, a.domain, label=f"dual {a.label}")


def restrict(a: Representation, subgroup: Subgroup | FiniteGroup, /) -> Representation:
    """The same action, of a subgroup.

    Args:
        a: of a finite group or a continuous one.
        subgroup: from `G.subgroup(...)`; for a continuous group a finite group with matrices, from `SO3.finite(...)`.

    Example:
        >>> from ntk_equiv import groups, reps
        >>> G = groups.dihedral(4)
        >>> reps.restrict(reps.rot90(G), G.subgroup([4])).group       # the left-right flip alone
        <subgroup of dihedral(4), order 2: e s>
        >>> reps.restrict(reps.matrix(groups.SO3), groups.SO3.finite("T"))
        <matrix of T in SO(3) on 3 channels>
    """
    a = check_representation(a, "a")
    if isinstance(a.group, ContinuousGroup) or isinstance(a.channels, MatrixFunction):
        return _restrict_to_finite(a, subgroup)
    if not isinstance(subgroup, Subgroup) or not _is_subgroup(subgroup, a.group):
        fix = "Make it with `G.subgroup(elements)` of the group that is represented."
        raise refusal("subgroup", expected=f"a subgroup of {a.group.label}", got=subgroup, fix=fix)
    channels, domain = a.channels.restrict(subgroup.embedding), a.domain.restrict(subgroup.embedding)
    return Representation(subgroup.group, channels, domain, label=a.label)


def _is_subgroup(subgroup: Subgroup, group: FiniteGroup) -> bool:
    embedding = np.array(subgroup.embedding)
    return bool(embedding.max() < group.order) and np.array_equal(
        embedding[subgroup.group.table], group.table[np.ix_(embedding, embedding)]
    )


def _restrict_to_finite(a: Representation, subgroup: Subgroup | FiniteGroup) -> Representation:
    group = check_finite_group(subgroup.group if isinstance(subgroup, Subgroup) else subgroup, "subgroup")
    if group.matrices is None or not isinstance(a.group, ContinuousGroup) or not a.group.contains(group.matrices):
        fix = "Make it with `finite` of the continuous group, or with `groups.from_matrices`."
        raise refusal("subgroup", expected=f"a group of matrices in {a.group}", got=group, fix=fix)
    if isinstance(a.channels, MatrixFunction):
        return Representation(group, Matrices(Table(a.channels.matrices(group.matrices))), label=a.label)
    return Representation(group, a.channels, label=a.label)


def _sum_of_channels(group: Group, a: Channels, b: Channels) -> Channels:
    if isinstance(group, ContinuousGroup):
        f, g = _matrix_function(a), _matrix_function(b)
        return MatrixFunction(lambda R: jax.scipy.linalg.block_diag(f(R), g(R)), (a.dim or 1) + (b.dim or 1))
    if isinstance(a, Identity) and isinstance(b, Identity):
        return Identity((a.dim or 1) + (b.dim or 1))
    p, q = _gather_indices(a, group.order), _gather_indices(b, group.order)
    if p is not None and q is not None:
        return Permutations(Table(np.concatenate([p, q + p.shape[1]], axis=1)))
    pairs = zip(a.matrices(group.order), b.matrices(group.order), strict=True)
    return Matrices(Table(np.array([scipy.linalg.block_diag(A, B) for A, B in pairs])))


def _product_of_channels(group: Group, a: Channels, b: Channels) -> Channels:
    if isinstance(a, Identity) and a.dim in (None, 1):
        return b
    if isinstance(b, Identity) and b.dim in (None, 1):
        return a
    if isinstance(group, ContinuousGroup):
        f, g = _matrix_function(a), _matrix_function(b)
        return MatrixFunction(lambda R: jnp.kron(f(R), g(R)), (a.dim or 1) * (b.dim or 1))
    p, q = _gather_indices(a, group.order), _gather_indices(b, group.order)
    if p is not None and q is not None:
        return Permutations(Table((p[:, :, None] * q.shape[1] + q[:, None, :]).reshape(group.order, -1)))
    pairs = zip(a.matrices(group.order), b.matrices(group.order), strict=True)
    return Matrices(Table(np.array([np.kron(A, B) for A, B in pairs])))


def _gather_indices(channels: Channels, order: int) -> np.ndarray | None:
    """The gather indices of a permutation or of the identity."""
    if isinstance(channels, Permutations):
        return channels.sources.entries
    if isinstance(channels, Identity):
        return np.broadcast_to(np.arange(channels.dim or 1, dtype=np.int32), (order, channels.dim or 1))
    return None


def _matrix_function(channels: Channels) -> Callable:
    if isinstance(channels, MatrixFunction):
        return channels.fn
    return lambda R: jnp.eye(channels.dim or 1, dtype=R.dtype)
