"""The table of cases that the laws are tested on: groups, and representations of them with data to act on.

Laws run over every row; a new group or representation is tested by adding it here.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv import groups, reps

GROUPS = {
    "trivial": groups.trivial(),
    "C3": groups.cyclic(3),
    "C4": groups.cyclic(4),
    "klein": groups.klein(),
    "C2xC4": groups.product(groups.cyclic(2), groups.cyclic(4)),
    "D4": groups.dihedral(4),
    "Q8": groups.quaternion(),
    "S4": groups.symmetric(4),
    "A5": groups.alternating(5),
    "T": groups.polyhedral("T"),
    "O": groups.polyhedral("O"),
    "I": groups.polyhedral("I"),
    "Q8xC3": groups.product(groups.quaternion(), groups.cyclic(3)),
    "signed permutations": groups.from_matrices([[[0, 1], [1, 0]], [[-1, 0], [0, 1]]]),
}
NON_ABELIAN = [name for name, group in GROUPS.items() if not group.is_abelian]


class Graph(NamedTuple):
    """Whatever looks like this is acted upon as a graph."""

    nodes: jax.Array
    adjacency: jax.Array


@dataclasses.dataclass(frozen=True)
class Action:
    """A representation, and the shape of one sample it acts on; `graph` says that the sample is a graph."""

    rep: reps.Representation
    shape: tuple[int, ...]
    graph: bool = False

    def data(self, count: int, seed: int = 0, dtype: Any = jnp.float64) -> Any:
        """Random samples, the same every time."""
        rng = np.random.default_rng(seed)
        x = jnp.asarray(rng.standard_normal((count, *self.shape)), dtype)
        if not self.graph:
            return x
        n = self.shape[0]
        return Graph(x, jnp.asarray(rng.random((count, n, n)) < 0.5, dtype))


C4, C5, D2, D4, S3, S4 = (
    groups.cyclic(4),
    groups.cyclic(5),
    groups.dihedral(2),
    groups.dihedral(4),
    groups.symmetric(3),
    groups.symmetric(4),
)
OCTAHEDRAL, Q8 = GROUPS["O"], GROUPS["Q8"]
RING = [np.roll(np.arange(5), g).tolist() for g in range(5)]
SKEW = np.array([[1.0, 0.7, 0.0], [0.0, 1.0, 0.3], [0.0, 0.0, 1.0]])

# Exact and orthogonal: what the theorems are about.
ORTHOGONAL = {
    "trivial, C3": Action(reps.trivial(groups.cyclic(3)), (4,)),
    "plane, C5": Action(reps.matrix(groups.SO2.finite(5)), (2,)),
    "vectors, O": Action(reps.matrix(OCTAHEDRAL), (3,)),
    "vectors, I": Action(reps.matrix(GROUPS["I"]), (3,)),
    "letters, S4": Action(reps.permutation(S4), (4,)),
    "regular, Q8": Action(reps.regular(Q8), (8,)),
    "parity, S3": Action(reps.sign(S3), (1,)),
    "irrep, A5": Action(reps.matrix(GROUPS["A5"], GROUPS["A5"].irreps()[3]), (4,)),
    "sum, S4": Action(reps.direct_sum(reps.permutation(S4), reps.sign(S4)), (5,)),
    "sum of permutations, C4": Action(reps.direct_sum(reps.regular(C4), reps.trivial(C4, 2)), (6,)),
    "product, O": Action(reps.tensor(reps.matrix(OCTAHEDRAL), reps.matrix(OCTAHEDRAL)), (9,)),
    "product of permutations, S3": Action(reps.tensor(reps.regular(S3), reps.regular(S3)), (36,)),
    "restricted, O to T": Action(reps.restrict(reps.matrix(OCTAHEDRAL), OCTAHEDRAL.subgroup(range(12))), (3,)),
    "restricted, SO(3) to D3": Action(reps.restrict(reps.matrix(groups.SO3), groups.SO3.finite("D3")), (3,)),
    "images, C4": Action(reps.rot90(C4), (5, 5, 2)),
    "images, D4": Action(reps.rot90(D4), (4, 4, 3)),
    "images, D2": Action(reps.rot90(D2), (4, 4, 1)),
    "vector fields, C4": Action(reps.rot90(C4, reps.matrix(groups.SO2.finite(4))), (4, 4, 2)),
    "vector fields, D4": Action(reps.rot90(D4, reps.matrix(groups.O(2).finite(4))), (3, 3, 2)),
    "flip alone": Action(reps.restrict(reps.rot90(D4), D4.subgroup([4])), (4, 4, 1)),
    "half turn, not square": Action(reps.rotate(groups.cyclic(2)), (4, 6, 1)),
    "translations": Action(reps.translations(2, 3), (4, 6, 2)),
    "node features, O": Action(reps.matrix(OCTAHEDRAL), (4, 3), graph=True),
    "relabelling, C5": Action(reps.relabel(C5, RING), (5, 2), graph=True),
    "relabelling with features, S4": Action(
        reps.relabel(S4, S4.permutations, channels=reps.permutation(S4)), (4, 4), graph=True
    ),
}
# Representations all the same, but not orthogonal.
SKEWED = {
    "skewed, S3": Action(
        reps.matrix(S3, SKEW @ reps.permutation(S3).channels.matrices(6) @ np.linalg.inv(SKEW)),
        (3,),
    ),
}
SKEWED["dual, S3"] = Action(reps.dual(SKEWED["skewed, S3"].rep), (3,))
EXACT = ORTHOGONAL | SKEWED
# No representations.
INTERPOLATED = {
    "C8, linear": Action(reps.rotate(groups.cyclic(8)), (6, 6, 2)),
    "C8, nearest": Action(reps.rotate(groups.cyclic(8), 0), (7, 7, 1)),
    "C3, linear, with vectors": Action(
        reps.rotate(groups.cyclic(3), channels=reps.matrix(groups.SO2.finite(3))), (5, 6, 2)
    ),
}
