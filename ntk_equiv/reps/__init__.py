"""Representations: how a group acts on vectors, channels, pixels and nodes.

A representation is called with an element and data, `rep(g, x)`; `rep.orbit(x)` does so for all elements. It acts on
the last axis (vectors, channels, node features), and may move the positions that the axes before it stand for:

    (ρ_X(g)x)(a) = τ_X(g) x(ρ⁻¹(g)a).

Vectors: `matrix`, `permutation`, `regular`, `sign`, `trivial`. Images: `rot90`, `rotate`, `translations`. Sequences:
`translations`. Graphs: any of the first on the features, `nodes` (formerly `relabel`) on the nodes. New ones from old:
`direct_sum`, `tensor`, `dual`, `restrict`. `rep.spatial(shape)` is ρ_K, the action on the positions of a kernel.
"""

# Names that are imported as themselves are for the parts above this one, not for users.
from ntk_equiv.reps._actions import (
    matrix,
    nodes,
    permutation,
    regular,
    relabel,
    rot90,
    rotate,
    sign,
    translations,
    trivial,
)
from ntk_equiv.reps._algebra import direct_sum, dual, restrict, tensor
from ntk_equiv.reps._grids import GridAction
from ntk_equiv.reps._representation import Representation
from ntk_equiv.reps._representation import check_actions as check_actions
from ntk_equiv.reps._representation import check_representation as check_representation

__all__ = [
    "GridAction",
    "Representation",
    "direct_sum",
    "dual",
    "matrix",
    "nodes",
    "permutation",
    "regular",
    "relabel",
    "restrict",
    "rot90",
    "rotate",
    "sign",
    "tensor",
    "translations",
    "trivial",
]
