"""A continuous group that acts on an infinite ensemble: its representations, and the subgroup that augmented the data.

**Frequencies.** The generator of rotations in one plane, represented on vectors, has eigenvalues ±im with whole m ≥ 0,
the frequencies of the representation. For rotations g of SO(2) or SO(3) by the angle ω, about any axis,

    ‖ρ(g) − 1‖  =  max_m 2|sin(mω/2)|                         `distance(m, ω)`
    sup over angles up to ω  =  2 sin(min(m_max ω, π)/2)      `largest_distance(m, ω)`

**Ensembles.** f̄(x) = Σ_i Θ(x, x_i) α_i with α = φ_t(Θ)y, and f̄(ρ_X(a)x) = ρ_Y(a)f̄(x) for all a of the subgroup that
augmented the data, by Theorem "Emergent Equivariance". Both groups have to act in the same way where they meet; a
`ContinuousProblem` holds them together with the ensemble, after checking this.
"""

import dataclasses
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv import reps
from ntk_equiv._check import refusal, single_time
from ntk_equiv._typing import Inputs, Scalar
from ntk_equiv.bounds._checks import Numbers, check_ensemble
from ntk_equiv.groups import ContinuousGroup, FiniteGroup
from ntk_equiv.infinite import InfiniteEnsemble
from ntk_equiv.orbits import AugmentedSet, why_no_subgroup
from ntk_equiv.reps import Representation
from ntk_equiv.stax import KernelFn

ContinuousAction = Representation | ContinuousGroup
"""A representation of a continuous group; the group itself stands for its own matrices."""

# Matrices may come in single precision.
CLOSE = 1e-4
REPRESENTATION_TOLERANCE = 1e-3


def check_continuous_action(rep: ContinuousAction, argument: str = "rep") -> Representation:
    """Return `rep` if it is an orthogonal action of a continuous group on vectors; for a bare group, its matrices."""
    if isinstance(rep, ContinuousGroup):
        return _defining_representation(rep)
    if not isinstance(rep, Representation) or not isinstance(rep.group, ContinuousGroup) or rep.domain.rank:
        got = getattr(rep, "label", None) or repr(rep)
        fix = "Build one with `reps.matrix(groups.SO2, ...)`, or pass the group itself for its own matrices."
        raise refusal(argument, expected="a representation of a continuous group on vectors", got=got, fix=fix)
    if not _is_orthogonal(rep):
        fix = "Bounds on distances need ρ(g)ᵀρ(g) = 1. Change to a basis in which ρ is orthogonal: there always is one."
        raise refusal(argument, expected="orthogonal", got=f"{rep}, which is not", fix=fix)
    return rep


def group_of(rep: Representation) -> ContinuousGroup:
    """Return the group of a representation that is one of a continuous group."""
    assert isinstance(rep.group, ContinuousGroup)
    return rep.group


@lru_cache(maxsize=64)
def _defining_representation(group: ContinuousGroup) -> Representation:
    return reps.matrix(group)


@lru_cache(maxsize=64)
def _is_orthogonal(rep: Representation) -> bool:
    return rep.is_orthogonal(REPRESENTATION_TOLERANCE)


def matrices(rep: Representation, elements: Numbers) -> np.ndarray:
    """Return ρ(g) for elements [count, n, n]; [count, 1, 1] if it acts trivially, on any number of channels."""
    basis = jnp.eye(rep.dim or 1)
    return np.swapaxes(np.asarray(rep.orbit(basis, jnp.asarray(elements))), 1, 2)


@lru_cache(maxsize=64)
def frequencies(rep: Representation) -> np.ndarray:
    """Return the frequencies m ≥ 0 that occur, each once, in increasing order."""
    n = group_of(rep).n
    plane = jnp.zeros((n, n)).at[1, 0].set(1.0).at[0, 1].set(-1.0)
    basis = jnp.eye(rep.dim or 1)
    _, moved = jax.jvp(lambda R: rep(R, basis), (jnp.eye(n),), (plane,))
    generator = np.asarray(moved, dtype=float)
    found = np.abs(np.linalg.eigvals((generator - generator.T) / 2).imag)
    whole = np.round(found)
    # Whether the generator tells all is seen from characters at some angles: a map that is no homomorphism, or not
    # differentiable, has others.
    angle = 1.0 + np.arange(4)
    R = np.broadcast_to(np.eye(n), (4, n, n)).copy()
    R[:, 0, 0] = R[:, 1, 1] = np.cos(angle)
    R[:, 1, 0], R[:, 0, 1] = np.sin(angle), -np.sin(angle)
    character = np.trace(matrices(rep, R), axis1=1, axis2=2)
    off = np.abs(character - np.cos(angle[:, None] * whole).sum(axis=1)).max() / len(basis)
    if off > REPRESENTATION_TOLERANCE or np.abs(found - whole).max() > 0.01:
        fix = "The matrices must be a differentiable function of the rotation that keeps products."
        raise refusal("rep", expected="a representation with whole frequencies", got=f"one with {found}", fix=fix)
    return np.unique(whole)


def distance(m: np.ndarray, angle: np.ndarray) -> np.ndarray:
    """Return ‖ρ(g) − 1‖ for rotations by `angle`, where ρ has the frequencies `m`."""
    return 2 * np.abs(np.sin(m * np.asarray(angle)[..., None] / 2)).max(axis=-1)


def largest_distance(m: np.ndarray, angle: np.ndarray | float) -> np.ndarray:
    """Return the largest ‖ρ(g) − 1‖ of all rotations by `angle` or less, where ρ has the frequencies `m`."""
    return np.asarray(2 * np.sin(np.minimum(m.max() * np.asarray(angle), np.pi) / 2))


@dataclasses.dataclass(frozen=True, eq=False)
class ContinuousProblem:
    """An ensemble at one time, test samples, and a continuous group that acts on both.

    Attributes:
        ens: the ensemble.
        t: the time; None for that of the filter.
        x: test samples.
        rep_x: how the continuous group acts on samples.
        rep_y: how it acts on outputs.
        subgroup: the matrices of the elements that augmented the data, [order, n, n]; None if they are no subgroup.
        obstacle: why there is no subgroup.
    """

    ens: InfiniteEnsemble
    t: Scalar | None
    x: Inputs
    rep_x: Representation
    rep_y: Representation
    subgroup: np.ndarray | None
    obstacle: str

    @property
    def group(self) -> ContinuousGroup:
        """The continuous group."""
        return group_of(self.rep_x)

    @property
    def n(self) -> int:
        """The number of test samples."""
        return len(jax.tree.leaves(self.x)[0])

    @property
    def kernel_fn(self) -> KernelFn:
        """The kernel of `ntk_equiv.stax`, for inputs with as many features as these have."""
        assert isinstance(self.ens.kernel_fn, KernelFn)
        return self.ens.kernel_fn.of_features(self.x.shape[-1])

    @property
    def is_invariant(self) -> bool:
        """Whether outputs do not transform."""
        return self.rep_y.dim is None

    def coefficients(self) -> np.ndarray:
        """Return α as [N, channels]."""
        alpha = np.asarray(self.ens.coefficients(self.t), dtype=float)
        return alpha.reshape(len(alpha), -1)

    def outputs(self, x: Inputs) -> np.ndarray:
        """Return f̄ as [n, channels]."""
        mean = np.asarray(self.ens.mean(x, self.t), dtype=float)
        return mean.reshape(len(mean), -1)

    def move(self, elements: np.ndarray) -> Inputs:
        """Return ρ_X(g)x of each test sample for elements of its own, [n, count, d, d], as [n · count, ...]."""
        return _move(self.rep_x, self.x, jnp.asarray(elements))

    def deviations(self, own: np.ndarray, elements: np.ndarray) -> np.ndarray:
        """Return f̄(ρ_X(g)x) − ρ_Y(g)f̄(x) of each test sample, [n, count, channels].

        Args:
            own: f̄(x), [n, channels].
            elements: elements g for each test sample, [n, count, d, d].
        """
        n, count = elements.shape[:2]
        turned = own[:, None]
        if not self.is_invariant:
            turns = matrices(self.rep_y, elements.reshape(n * count, *elements.shape[2:]))
            turned = np.einsum("ngij,nj->ngi", turns.reshape(n, count, *turns.shape[1:]), own)
        return self.outputs(self.move(elements)).reshape(n, count, -1) - turned

    def require_subgroup(self) -> np.ndarray:
        """Return the subgroup, or refuse the ensemble and say why there is none."""
        if self.subgroup is None:
            fix = (
                "The bound compares ρ_X(g)x with the nearest ρ_X(a)x, where the ensemble is exactly equivariant, so it "
                "needs data augmented by a subgroup. `measured_continuous_deviation` and "
                "`certified_continuous_deviation` do not."
            )
            raise refusal("ens", expected="augmented by a finite subgroup", got=self.obstacle, fix=fix)
        return self.subgroup


@partial(jax.jit, static_argnames="rep")
def _move(rep: Representation, x: Inputs, elements: jax.Array) -> Inputs:
    moved = jax.vmap(rep.orbit)(x, elements)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), moved)


def pose_problem(
    ens: InfiniteEnsemble, rep: ContinuousAction, x: Inputs, t: Scalar | None, rep_y: ContinuousAction | None
) -> ContinuousProblem:
    """Return the problem, after checking that its parts fit together."""
    rep = check_continuous_action(rep)
    if check_ensemble(ens).y.ndim > 2:
        fix = "Bounds on continuous groups need labels [n] or [n, channels]."
        raise refusal("ens", expected="outputs without positions", got=f"labels of shape {ens.y.shape}", fix=fix)
    if rep_y is None:
        if ens.rep_y is not None and not _is_trivial(ens.rep_y):
            fix = "The labels transform under the subgroup: say how the continuous group acts on them."
            raise refusal("rep_y", expected="given", got="nothing", fix=fix)
        rep_y = reps.trivial(rep.group)
    else:
        rep_y = check_continuous_action(rep_y, "rep_y")
    if rep_y.group != rep.group:
        fix = "Samples and outputs transform under the same group."
        raise refusal("rep_y", expected=f"of {rep.group}", got=f"of {rep_y.group}", fix=fix)
    x = ens.check_samples(x)
    # The action refuses samples with another number of features; nothing is computed.
    jax.eval_shape(lambda x: rep(jnp.eye(group_of(rep).n), x), x)
    subgroup, obstacle = _subgroup(ens, rep, rep_y)
    return ContinuousProblem(ens, single_time(t), x, rep, rep_y, subgroup, obstacle)


def _subgroup(ens: InfiniteEnsemble, rep: Representation, rep_y: Representation) -> tuple[np.ndarray | None, str]:
    """Return the matrices of the subgroup that augmented the data, or None and why there is none."""
    train = ens.train
    if not isinstance(train, AugmentedSet):
        return None, "data that are not augmented"
    group, elements = train.group, train.elements
    obstacle = why_no_subgroup(group, elements)
    if obstacle is not None:
        return None, obstacle
    assert isinstance(group, FiniteGroup)
    assert elements is not None
    if group.matrices is None or not group_of(rep).contains(group.matrices, tol=CLOSE):
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
        fix = "On the elements of the subgroup, it has to be the action that augmented the data."
        raise refusal(name, expected="an extension of the action in the data", got="another action", fix=fix)


@lru_cache(maxsize=64)
def _finite_matrices(rep: Representation, elements: tuple[int, ...]) -> np.ndarray:
    return np.swapaxes(np.asarray(rep.orbit(jnp.eye(rep.dim or 1), np.array(elements)), dtype=float), 1, 2)


def _is_trivial(rep_y: Representation) -> bool:
    """Return whether no element changes the labels."""
    if not isinstance(rep_y.group, FiniteGroup):
        return rep_y.dim is None
    mats = _finite_matrices(rep_y, tuple(range(rep_y.group.order)))
    return bool(np.abs(mats - np.eye(mats.shape[1])).max() <= CLOSE)
