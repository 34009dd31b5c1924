"""Representations that move points: the pixels of images, the sites of a torus, the nodes of graphs.

Images are [..., H, W, channels]. With `channels`, a representation τ on vectors, a moved value is turned as well:

    (ρ_X(g)x)(a) = τ_X(g) x(ρ⁻¹(g)a).
"""

from typing import Any

import numpy as np

from ntk_equiv import groups
from ntk_equiv._check import one_of, positive_integer, refusal
from ntk_equiv.groups import FiniteGroup, check_finite_group
from ntk_equiv.reps._algebra import same_group
from ntk_equiv.reps._channels import Channels, Identity, Table
from ntk_equiv.reps._domains import Domain, Nowhere, QuarterTurns, Relabellings, Rotations, Shifts
from ntk_equiv.reps._given import check_representation
from ntk_equiv.reps._representation import Representation
from ntk_equiv.reps._vectors import sources_of


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
            return _moving(group, QuarterTurns(Table(np.array(moves))), channels, "rot90")
    fix = "Rotations by other angles need interpolation, `reps.rotate`; other subgroups of D4 are had by `restrict`."
    raise refusal("group", expected="trivial(), cyclic(2), cyclic(4), dihedral(2) or dihedral(4)", got=group, fix=fix)


def rotate(group: FiniteGroup, /, order: int = 1, *, channels: Representation | None = None) -> Representation:
    """Rotations of images [..., H, W, C] by multiples of 2π/k, counter-clockwise about their centre, interpolated.

    The centre is that of the array, ((H − 1)/2, (W − 1)/2) in pixels. Values come from the nearest pixel (order 0) or
    linearly from the four around (order 1); what lies outside of the image is zero. This is *not* a representation:
    `rep.exact` is False for k > 2, and `rep.homomorphism_error()` tells by how much.

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
    return _moving(group, Rotations(Table(np.arange(group.order)), group.order, order), channels, "rotate")


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
    return _moving(group, Shifts(Table(steps), parts), channels, "translations")


def nodes(group: FiniteGroup, /, perms: Any = None, *, channels: Representation | None = None) -> Representation:
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
    return _moving(group, Relabellings(sources_of(group, perms)), channels, "permutation")


relabel = nodes  # its former name


def _moving(group: FiniteGroup, domain: Domain, channels: Representation | None, label: str) -> Representation:
    tau: Channels = Identity()
    if channels is not None:
        same_group(Representation(group, Identity()), check_representation(channels, "channels"), "channels")
        if not isinstance(channels.domain, Nowhere):
            fix = "The points are moved already; pass how the channels of one point transform."
            raise refusal("channels", expected="a representation on vectors", got=channels, fix=fix)
        tau, label = channels.channels, f"{label} with {channels.label} channels"
    return Representation(group, tau, domain, label=label)
