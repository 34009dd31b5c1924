"""The table of cases that the laws are tested on: groups, representations of them with data to act on, and networks.

Laws run over every row; a new group, representation or architecture is tested by adding it here.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv import augment, groups, reps, stax
from ntk_equiv.orbits import AugmentedSet
from ntk_equiv.stax import Graph
from tests.architectures import attention, cnn, gnn, mlp

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


@dataclasses.dataclass(frozen=True)
class Case:
    """A network and an action on its inputs which it respects, as the theorems assume."""

    action: Action
    kernel_fn: Callable

    @property
    def rep(self) -> reps.Representation:
        """The action on inputs."""
        return self.action.rep

    def train(self, n: int, dtype: Any = jnp.float64) -> AugmentedSet:
        """An augmented set with n base points."""
        return augment(self.action.data(n, dtype=dtype), jnp.zeros(n, dtype), self.rep)

    def labelled(self, n: int, dtype: Any = jnp.float64) -> AugmentedSet:
        """An augmented set whose labels transform as they can: as vectors, along with positions, or not."""
        x = self.action.data(n, dtype=dtype)
        grid = jax.eval_shape(lambda x: self.kernel_fn(x, x, "ntk"), x).shape[2::2]
        moves = bool(grid) or self.rep.domain.rank == 0
        shape = (n, *grid, (self.rep.dim or 2) if moves else 2)
        y = jnp.asarray(np.random.default_rng(7).standard_normal(shape), dtype)
        return augment(x, y, self.rep, self.rep if moves else None)

    def points(self, n: int, dtype: Any = jnp.float64) -> Any:
        """The points of such a set."""
        return _augmented_points(self.train(n, dtype))


@jax.jit
def _augmented_points(train: AugmentedSet) -> Any:
    return train.x


def _flat(stax: Any) -> Any:
    return stax.serial(stax.Flatten(), stax.Dense(1, 1.3, 0.2))


def _pooled(stax: Any) -> Any:
    return stax.serial(stax.GlobalAvgPool(), stax.Dense(1, 1.3, 0.2))


def _flattened_mlp(stax: Any) -> Any:
    return stax.serial(stax.Flatten(), stax.Dense(8, 1.3, 0.2), stax.Relu(), stax.Dense(1))


def _deep(stax: Any) -> Any:
    conv = stax.serial(stax.Conv(8, (3, 3), (1, 1), "SAME", 1.4, 0.1), stax.Relu(), stax.AvgPool((2, 2), (2, 2)))
    return stax.serial(conv, stax.Conv(8, (2, 2), None, "VALID", 1.4, 0.1), stax.Erf(), _flat(stax))


def _on_group(stax: Any) -> Any:
    lift = stax.LiftingConv(8, (2, 2), (2, 2), "VALID", 1.4, 0.1, group="D4")
    return stax.serial(lift, stax.Relu(), stax.GroupConv(8, (1, 1), None, "VALID", 1.3, 0.2, group="D4"))


def _normalized(stax: Any) -> Any:
    conv = stax.Conv(8, (3, 3), (1, 1), "SAME", 1.4, 0.1)
    return stax.serial(conv, stax.LayerNorm((1, 2, 3), 0.1), stax.Relu(), _pooled(stax))


def _transposed(stax: Any) -> Any:
    """A filter as large as its stride puts down copies side by side, which turns and flips keep."""
    first = stax.Conv(8, (2, 2), (2, 2), "VALID", 1.4, 0.1)
    return stax.serial(first, stax.Relu(), stax.ConvTranspose(8, (2, 2), (2, 2), "VALID", 1.3, 0.2))


def _local(stax: Any) -> Any:
    """Weights at different positions are drawn from the same law."""
    return stax.serial(stax.ConvLocal(8, (3, 3), None, "SAME", 1.4, 0.1), stax.Relu(), _pooled(stax))


def _resized(stax: Any) -> Any:
    first = stax.Conv(8, (3, 3), None, "SAME", 1.4, 0.1)
    return stax.serial(first, stax.Relu(), stax.ImageResize((-1, 2, 2, -1), "linear"), stax.Dense(8), _flat(stax))


def _middle(stax: Any) -> Any:
    """The central pixels stay the central ones."""
    first = stax.Conv(8, (3, 3), None, "SAME", 1.4, 0.1)
    return stax.serial(first, stax.Relu(), stax.Index(stax.Slice[:, 1:3, 1:3]), stax.Dense(8, 1.2, 0.1), _flat(stax))


def _weighted(stax: Any) -> Any:
    """A sum over pixels, with weights that turns and flips keep."""
    weights = jnp.outer(jnp.array([1.0, -2.0, -2.0, 1.0]), jnp.array([1.0, -2.0, -2.0, 1.0])) / 4
    product = stax.DotGeneral(rhs=weights, dimension_numbers=(((1, 2), (0, 1)), ((), ())))
    first = stax.Conv(8, (3, 3), None, "SAME", 1.4, 0.1)
    return stax.serial(first, stax.Relu(), product, stax.Dense(8, 1.2, 0.1), stax.Relu(), stax.Dense(1, 1.3, 0.2))


def _closeness(distance: Any) -> Any:
    """Covariance of positional embeddings."""
    return jnp.exp(-distance / 2)


# Biases everywhere: without them the kernels of symmetric data are singular.
NETWORKS: dict[str, Callable] = {
    "MLP": mlp(lambda s: s.Relu(), 2),
    "erf MLP": mlp(lambda s: s.Erf(), 2),
    "MLP with dropout": mlp(lambda s: s.serial(s.Erf(), s.Dropout(0.7)), 2),
    "flattened MLP": _flattened_mlp,
    "CNN, VALID": cnn(_flat, depth=1),
    "CNN, SAME": cnn(_pooled, depth=1, padding="SAME"),
    "CNN, CIRCULAR": cnn(_flat, depth=1, padding="CIRCULAR"),
    "CNN, VALID, spatial": cnn(depth=1),
    "CNN, SAME, spatial": cnn(depth=1, padding="SAME", activation="Erf"),
    "CNN, CIRCULAR, spatial": cnn(depth=1, padding="CIRCULAR"),
    "CNN, strided, spatial": cnn(depth=1, filter_shape=(2, 2), strides=(2, 2)),
    "CNN with pooling": _deep,
    "GNN": gnn(_pooled, depth=2),
    "GNN, nodes": gnn(depth=1),
    "group CNN, features": _on_group,
    "CNN, normalised": _normalized,
    "attention": attention(lambda s: s.Relu(), _pooled),
    "attention, independent embeddings": attention(_flat, pos_emb_type="CONCAT", val_pos_emb=True),
    "attention, decaying embeddings": attention(pos_emb_type="SUM", val_pos_emb=True, pos_emb_decay_fn=_closeness),
    "CNN, transposed, spatial": _transposed,
    "CNN, local": _local,
    "CNN, resized": _resized,
    "CNN, middle": _middle,
    "CNN, weighted sum": _weighted,
    "Gabor MLP": mlp(lambda s: s.Gabor(), 1),
}
_ROWS = {
    "MLP": (
        "trivial, C3",
        "plane, C5",
        "vectors, O",
        "vectors, I",
        "letters, S4",
        "regular, Q8",
        "parity, S3",
        "irrep, A5",
        "restricted, SO(3) to D3",
    ),
    "erf MLP": ("sum, S4",),
    "MLP with dropout": ("sum of permutations, C4",),
    "flattened MLP": ("images, D2",),
    "CNN, VALID": ("images, C4",),
    "CNN, SAME": ("images, D4", "half turn, not square"),
    "CNN, CIRCULAR": ("flip alone",),
    "CNN, VALID, spatial": ("images, C4",),
    "CNN, SAME, spatial": ("vector fields, D4",),
    "CNN, CIRCULAR, spatial": ("translations",),
    "CNN, strided, spatial": ("images, D4",),
    "CNN with pooling": ("images, D4",),
    "GNN": ("relabelling with features, S4",),
    "GNN, nodes": ("node features, O", "relabelling, C5"),
    "group CNN, features": ("images, D4",),
    "CNN, normalised": ("images, D2",),
    "attention": ("translations",),
    "attention, independent embeddings": ("relabelling with features, S4",),
    "attention, decaying embeddings": ("vector fields, D4",),
    "CNN, transposed, spatial": ("images, D4",),
    "CNN, local": ("images, C4",),
    "CNN, resized": ("images, D2",),
    "CNN, middle": ("images, D4",),
    "CNN, weighted sum": ("images, D4",),
    "Gabor MLP": ("plane, C5",),
}
_KERNELS = {name: build(stax)[2] for name, build in NETWORKS.items()}
# What the theorems hold for.
CASES = {
    f"{network} on {action}": Case(ORTHOGONAL[action], _KERNELS[network])
    for network, actions in _ROWS.items()
    for action in actions
}
