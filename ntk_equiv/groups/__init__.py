"""Groups: finite ones with their irreps, and the rotation groups.

An element of a finite group is an integer. The group is its multiplication table: `G.table[g, h]` is the index of gh,
where h acts first. An element of a continuous group is its matrix. Both kinds are immutable, hashable and pass through
`jax.jit`.

Finite groups are `trivial`, `cyclic`, `dihedral`, `klein`, `quaternion`, `symmetric`, `alternating`, `polyhedral` and
`product`, or come from what you have: `from_table`, `from_matrices`, `from_permutations`. Each has its subgroups,
conjugacy classes, characters and unitary irreps.

Continuous groups are `SO2`, `SO3`, `SO(n)` and `O(n)`, with Haar samples, grids, geodesic distance and finite
subgroups.
"""

# Names that are imported as themselves are for the parts above this one, not for users.
from ntk_equiv.groups._continuous import SO, SO2, SO3, ContinuousGroup, O
from ntk_equiv.groups._continuous import check_group as check_group
from ntk_equiv.groups._families import (
    alternating,
    cyclic,
    dihedral,
    from_matrices,
    from_permutations,
    from_table,
    klein,
    polyhedral,
    product,
    quaternion,
    symmetric,
    trivial,
)
from ntk_equiv.groups._finite import FiniteGroup, Subgroup
from ntk_equiv.groups._finite import check_finite_group as check_finite_group
from ntk_equiv.groups._irreps import IrrepType
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
