"""Representations: how a group acts on vectors, channels, pixels and nodes.

A representation is called with an element and data, `rep(g, x)`; `rep.orbit(x)` does so for all elements. It acts on
the last axis (vectors, channels, node features), and may move the points that the axes before it stand for:

    (ρ_X(g)x)(a) = τ_X(g) x(ρ⁻¹(g)a).

On vectors: `matrix`, `permutation`, `regular`, `sign`, `trivial`. On images: `rot90`, `rotate`, `translations`. On
sequences: `translations`. On graphs: any of the first on the features, `nodes` (once `relabel`) on the nodes. New from
old: `direct_sum`, `tensor`, `dual`, `restrict`. `rep.spatial(shape)` is ρ_K, the action on the positions of a kernel.
"""

from ntk_equiv.reps._algebra import direct_sum, dual, restrict, tensor

# For the parts above this one, not for users: checks of what callers pass in.
from ntk_equiv.reps._given import check_actions as check_actions
from ntk_equiv.reps._given import check_representation as check_representation
from ntk_equiv.reps._grids import GridAction
from ntk_equiv.reps._points import nodes, relabel, rot90, rotate, translations
from ntk_equiv.reps._representation import Representation
from ntk_equiv.reps._vectors import matrix, permutation, regular, sign, trivial

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
