"""What bounds on a continuous group start from: an ensemble, the group, and the finite subgroup that augmented it.

f̄(x) = Σ_i Θ(x, x_i) α_i with α = φ_t(Θ)y, and f̄(ρ_X(a)x) = ρ_Y(a)f̄(x) for the a of the subgroup, by Theorem "Emergent
Equivariance". Both groups have to act in the same way where they meet.
"""

import dataclasses
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv import reps
from ntk_equiv._check import refusal, single_time
from ntk_equiv._typing import Inputs
from ntk_equiv.bounds import _ranges
from ntk_equiv.bounds._weights import as_representation, matrices
from ntk_equiv.groups import FiniteGroup
from ntk_equiv.infinite import InfiniteEnsemble
from ntk_equiv.orbits import AugmentedSet, why_no_subgroup
from ntk_equiv.reps import Representation

CLOSE = 1e-4  # matrices may come in single precision


@dataclasses.dataclass(frozen=True, eq=False)
class Setting:
    """An ensemble at one time, and a continuous group.

    Attributes:
        ens: the ensemble.
        t: the time.
        x: test points.
        rep_x: how the continuous group acts on points.
        rep_y: how it acts on outputs.
        subgroup: the matrices of the elements that augmented the data, [order, n, n]; None if they are no subgroup.
        obstacle: why there is no subgroup.
    """

    ens: InfiniteEnsemble
    t: Any
    x: Any
    rep_x: Representation
    rep_y: Representation
    subgroup: np.ndarray | None
    obstacle: str

    @property
    def group(self) -> Any:
        """The continuous group."""
        return self.rep_x.group

    @property
    def n(self) -> int:
        """The number of test points."""
        return len(jax.tree.leaves(self.x)[0])

    @property
    def kernel_fn(self) -> Any:
        """The kernel, as one of inputs with as many features as these have."""
        return self.ens.kernel_fn.of_features(self.x.shape[-1])  # type: ignore[attr-defined]

    @property
    def is_invariant(self) -> bool:
        """Whether outputs do not transform."""
        return self.rep_y.dim is None

    def coefficients(self) -> np.ndarray:
        """α as [N, channels]."""
        alpha = np.asarray(self.ens.coefficients(self.t), dtype=float)
        return alpha.reshape(len(alpha), -1)

    def outputs(self, x: Inputs) -> np.ndarray:
        """f̄ as [n, channels]."""
        mean = np.asarray(self.ens.mean(x, self.t), dtype=float)
        return mean.reshape(len(mean), -1)

    def moved(self, elements: Any) -> Inputs:
        """ρ_X(g)x of each test point for elements of its own, [n, count, d, d]; point by point, [n · count, ...]."""
        return _orbits(self.rep_x, self.x, jnp.asarray(elements))

    def needs_subgroup(self) -> np.ndarray:
        """The subgroup, or a refusal that says why there is none."""
        if self.subgroup is None:
            fix = (
                "The bound compares ρ_X(g)x with the nearest ρ_X(a)x on which the ensemble is exact, and so needs data "
                "augmented by a subgroup. `measured_continuous_deviation` and `certified_continuous_deviation` do not."
            )
            raise refusal("ens", expected="augmented by a finite subgroup", got=self.obstacle, fix=fix)
        return self.subgroup


@partial(jax.jit, static_argnames="rep")
def _orbits(rep: Representation, x: Inputs, elements: jax.Array) -> Inputs:
    moved = jax.vmap(rep.orbit)(x, elements)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), moved)


def setting(ens: InfiniteEnsemble, rep: Any, x: Inputs, t: Any, rep_y: Any) -> Setting:
    """The setting, after checking that its parts fit together."""
    rep = as_representation(rep)
    if _ranges.ensemble(ens).y.ndim > 2:
        fix = "Bounds on continuous groups are about outputs [n] or [n, channels]."
        raise refusal("ens", expected="outputs without positions", got=f"labels of shape {ens.y.shape}", fix=fix)
    if rep_y is None:
        if ens.rep_y is not None and not _is_trivial(ens.rep_y, ens.y):
            fix = "Labels transform under the subgroup: say how the continuous group acts on them."
            raise refusal("rep_y", expected="given", got="nothing", fix=fix)
        rep_y = reps.trivial(rep.group)
    else:
        rep_y = as_representation(rep_y, "rep_y")
    if rep_y.group != rep.group:
        fix = "Points and outputs transform under the same group."
        raise refusal("rep_y", expected=f"of {rep.group}", got=f"of {rep_y.group}", fix=fix)
    x = ens.check_samples(x)
    jax.eval_shape(lambda x: rep(jnp.eye(rep.group.n), x), x)
    subgroup, obstacle = _subgroup(ens, rep, rep_y)
    return Setting(ens, single_time(t), x, rep, rep_y, subgroup, obstacle)


def _subgroup(ens: InfiniteEnsemble, rep: Representation, rep_y: Representation) -> tuple[np.ndarray | None, str]:
    train = ens.train
    if not isinstance(train, AugmentedSet):
        return None, "data that are not augmented"
    group, elements = train.group, train.elements
    obstacle = why_no_subgroup(group, elements)
    if obstacle is not None:
        return None, obstacle
    assert isinstance(group, FiniteGroup)
    assert elements is not None
    if group.matrices is None or not rep.group.contains(group.matrices, tol=CLOSE):  # type: ignore[union-attr]
        fix = f"Augment by a group of its matrices, such as `finite` of {rep.group} makes."
        raise refusal("ens", expected=f"augmented by elements of {rep.group}", got=group.label, fix=fix)
    mats = np.array(group.matrices[list(elements)])
    for name, ours, theirs in (("rep", rep, train.rep_x), ("rep_y", rep_y, train.rep_y)):
        _check_same(name, matrices(ours, mats), _finite_matrices(theirs, elements))
    return mats, ""


def _check_same(name: str, ours: np.ndarray, theirs: np.ndarray) -> None:
    """Refuse a continuous action that differs from the finite one; a trivial one fits any number of channels."""
    sizes = {len(ours[0]), len(theirs[0])}
    if 1 in sizes:
        ours, theirs = (m * np.eye(max(sizes)) if len(m[0]) == 1 else m for m in (ours, theirs))
    if ours.shape != theirs.shape or np.abs(ours - theirs).max() > CLOSE:
        fix = "On the elements that augmented the data it has to be the action that augmented them."
        raise refusal(name, expected="an extension of the action in the data", got="another action", fix=fix)


@lru_cache(maxsize=64)
def _finite_matrices(rep: Representation, elements: tuple[int, ...]) -> np.ndarray:
    return np.swapaxes(np.asarray(rep.orbit(jnp.eye(rep.dim or 1), np.array(elements)), dtype=float), 1, 2)


def _is_trivial(rep_y: Representation, y: jax.Array) -> bool:
    """Whether labels stay as they are, under all elements that are known."""
    if not isinstance(rep_y.group, FiniteGroup):
        return rep_y.dim is None
    mats = _finite_matrices(rep_y, tuple(range(rep_y.group.order)))
    return bool(np.abs(mats - np.eye(mats.shape[1])).max() <= CLOSE)
