"""Groups: finite ones with their irreps, and the rotation groups.

An element of a finite group is an integer, and a group is its multiplication table, `G.table[g, h]` the index of gh
(h acts first). An element of a continuous group is its matrix. Both kinds are immutable, hashable and pass through
`jax.jit`.

Finite: `trivial`, `cyclic`, `dihedral`, `klein`, `quaternion`, `symmetric`, `alternating`, `polyhedral`, `product`, and
from what you have: `from_table`, `from_matrices`, `from_permutations`. Each knows its subgroups, conjugacy classes,
characters and unitary irreps.

Continuous: `SO2`, `SO3`, `SO(n)`, `O(n)`, with Haar samples, grids, geodesic distance and finite subgroups.
"""

from ntk_equiv.groups._characters import IrrepType
from ntk_equiv.groups._continuous import SO, SO2, SO3, ContinuousGroup, O
from ntk_equiv.groups._families import cyclic, dihedral, from_table, klein, product, quaternion, trivial
from ntk_equiv.groups._finite import FiniteGroup, Subgroup
from ntk_equiv.groups._generated import alternating, from_matrices, from_permutations, polyhedral, symmetric

# For the parts above this one: checks of what callers pass in, and the actions by which a group is known.
from ntk_equiv.groups._given import check_finite_group as check_finite_group
from ntk_equiv.groups._given import check_group as check_group
from ntk_equiv.groups._named import defining_matrices as defining_matrices
from ntk_equiv.groups._named import defining_permutations as defining_permutations
from ntk_equiv.groups._named import move_square as move_square
from ntk_equiv.groups._named import named as named

__all__ = [
    "SO",
    "SO2",
    "SO3",
    "ContinuousGroup",
    "FiniteGroup",
    "IrrepType",
    "O",
    "Subgroup",
    "alternating",
    "cyclic",
    "dihedral",
    "from_matrices",
    "from_permutations",
    "from_table",
    "klein",
    "polyhedral",
    "product",
    "quaternion",
    "symmetric",
    "trivial",
]
