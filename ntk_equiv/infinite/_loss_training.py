"""Members of the infinite ensemble, trained in function space with any loss.

A member begins as a function f_0 and remains f_0 plus a sum of kernels, whatever the loss L is:

    f_t(x) = f_0(x) + Θ(x, X) a_t,        a' = −η (∇L(f_t(X)) + λ₀ a),        a_0 = 0,

with λ₀ the ridge if there is one. Training in steps replaces a' by differences. So the coefficients a of all members
are all that is followed in time, together with u = Θ a, by which errors are measured. Each evaluation costs one product
with Θ, which goes through the blocks of the group. Blocks that are arrays (`GroupMatrix`) are multiplied inside of
compiled loops; blocks that are known by their products alone (`GroupOperator`), from loops of Python.

**The end of training.** With S = P, the projection on the range of Θ, or S = √Θ if there is a ridge, it is the minimum

    min_z L(f_0 + S z) + ½λ₀|z|²,

found by Newton's method with conjugate gradients: the Hessian S H S + λ₀, H the second derivatives of the loss sample
by sample, is as well conditioned as the loss. Far from the minimum, where H may nearly vanish, it is damped in
proportion to the slope. Losses that depend on differences of outputs alone, such as the
cross-entropy, never change the sum of outputs, neither here nor in time, so that the minimum is unique.

With a ridge, products with Θ are enough, because z = √Θ a need not be formed: the inner product of two such functions
is aᵀΘb, in which HΘ + λ₀ is symmetric. Without one, P or a solution for a would take a decomposition.

In code, functions on the training samples are arrays [order, n, members · outputs], and `y` are labels [order · n, …].
"""

import dataclasses
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.integrate
from jax.experimental.ode import odeint
from jax.scipy.sparse.linalg import cg

from ntk_equiv._losses import LossFn, largest_curvature
from ntk_equiv._pytrees import dataclass_pytree
from ntk_equiv.filters import Dynamics
from ntk_equiv.infinite._blocks import WeightedIrrep, coefficients, synthesize
from ntk_equiv.infinite._chebyshev import Equation, Path, follow
from ntk_equiv.solvers import BlockOperator, product

# By how much second derivatives may grow within a step.
CURVATURE_MARGIN = 1.2
# Of Newton's method: iterations, halvings of a step, and iterations of conjugate gradients.
NEWTON_STEPS, HALVINGS, CG_STEPS = 100, 30, 400


@dataclass_pytree
@dataclasses.dataclass(frozen=True, eq=False)
class GroupMatrix:
    """A group-circulant matrix by its blocks, which multiplies functions on the training samples.

    Attributes:
        sigmas: the matrices of the irreps.
        matrices: the blocks, Hermitian.
        weights: those of the irreps.
    """

    sigmas: tuple[jax.Array, ...]
    matrices: tuple[jax.Array, ...]
    weights: tuple[float, ...] = dataclasses.field(metadata={"static": True})
    traceable: ClassVar[bool] = True

    @classmethod
    def from_blocks(cls, blocks: Iterable[tuple[WeightedIrrep, jax.Array]]) -> "GroupMatrix":
        """Return the matrix with these blocks, one for each irrep that real functions need."""
        irreps, matrices = zip(*blocks, strict=True)
        real = jnp.finfo(matrices[0].dtype).dtype
        return cls(tuple(irrep.matrices(real) for irrep in irreps), matrices, tuple(irrep.weight for irrep in irreps))

    def times(self, v: jax.Array) -> jax.Array:
        """Return the product with v [order, n, columns]."""
        total: Any = 0
        for sigma, matrix, weight in zip(self.sigmas, self.matrices, self.weights, strict=True):
            total = total + weight * synthesize(sigma, product(matrix, coefficients(sigma, v)), v.shape[-1])
        return total

    def norm_bound(self) -> jax.Array:
        """Return a bound on the largest eigenvalue: the smaller of two norms, for the block with the largest."""
        norms = [
            jnp.minimum(jnp.linalg.norm(matrix), jnp.max(jnp.sum(jnp.abs(matrix), axis=1))) for matrix in self.matrices
        ]
        return jnp.max(jnp.stack(norms))


class GroupOperator:
    """The same of which nothing is known but products with its blocks. As a pytree it has no leaves.

    Args:
        blocks: the blocks, each with its irrep.
        largest: a bound on the largest eigenvalue, in the precision of the entries.
    """

    traceable: ClassVar[bool] = False

    def __init__(self, blocks: Iterable[tuple[WeightedIrrep, BlockOperator]], largest: jax.Array):
        irreps, self.blocks = zip(*blocks, strict=True)
        self.sigmas = tuple(irrep.matrices(largest.dtype) for irrep in irreps)
        self.weights = tuple(irrep.weight for irrep in irreps)
        self._largest = largest

    def times(self, v: jax.Array) -> jax.Array:
        """Return the product with v [order, n, columns]."""
        total = jnp.zeros_like(v)
        for sigma, block, weight in zip(self.sigmas, self.blocks, self.weights, strict=True):
            # Blocks multiply rows. They are Hermitian, so that this is the adjoint of the product with columns.
            rows = block.times_rows(np.ascontiguousarray(np.asarray(_adjoint_coefficients(sigma, v))))
            total = _add_synthesized(total, sigma, jnp.asarray(rows, sigma.dtype), weight)
        return total

    def norm_bound(self) -> jax.Array:
        """Return the bound on the largest eigenvalue."""
        return self._largest


jax.tree_util.register_pytree_node(GroupOperator, lambda matrix: ((), matrix), lambda matrix, _: matrix)


@jax.jit
def _adjoint_coefficients(sigma: jax.Array, v: jax.Array) -> jax.Array:
    return coefficients(sigma, v).conj().T


@jax.jit
def _add_synthesized(total: jax.Array, sigma: jax.Array, rows: jax.Array, weight: Any) -> jax.Array:
    return total + weight * synthesize(sigma, rows.conj().T, total.shape[-1])


@dataclass_pytree
@dataclasses.dataclass(frozen=True, eq=False)
class LossTraining:
    """What members are trained on, and with.

    Attributes:
        theta: Θ.
        start: f_0 of all members, [order, n, members · outputs].
        y: the labels of all samples, [order · n, ...].
        loss: the loss of each sample.
        outputs: how many outputs a member has.
        entries: what the sum of losses is divided by.
    """

    theta: GroupMatrix | GroupOperator
    start: jax.Array
    y: jax.Array
    loss: LossFn = dataclasses.field(metadata={"static": True})
    outputs: int = dataclasses.field(metadata={"static": True})
    entries: int = dataclasses.field(metadata={"static": True})

    def by_member(self, values: jax.Array) -> jax.Array:
        """Return functions on the training samples as outputs [members, order · n, outputs]."""
        return jnp.moveaxis(values.reshape(len(self.y), -1, self.outputs), 1, 0)

    def by_column(self, values: jax.Array) -> jax.Array:
        """Return outputs [members, order · n, outputs] as functions on the training samples."""
        return jnp.moveaxis(values, 0, 1).reshape(self.start.shape)

    @jax.jit
    def gradient(self, u: jax.Array) -> jax.Array:
        """Return ∇L at f_0 + u."""
        return self.by_column(jax.vmap(jax.grad(self.total))(self.by_member(self.start + u)))

    def total(self, outputs: jax.Array) -> jax.Array:
        """Return L of one member's outputs [order · n, outputs]."""
        return jnp.sum(self.loss(outputs, self.y)) / self.entries

    @jax.jit
    def second_derivatives(self, u: jax.Array) -> jax.Array:
        """Return H at f_0 + u, a matrix for each sample: [members, order · n, outputs, outputs]."""

        def of_sample(output: jax.Array, y: jax.Array) -> jax.Array:
            return jax.hessian(lambda f: jnp.sum(self.loss(f[None], y[None])) / self.entries)(output)

        return jax.vmap(lambda outputs: jax.vmap(of_sample)(outputs, self.y))(self.by_member(self.start + u))

    def slope(self, state: jax.Array, rate: Any, ridge: Any) -> jax.Array:
        """Return (a', u') at (a, u), stacked."""
        a, u = state
        gradient = self.gradient(u)
        return -rate * jnp.stack([gradient + ridge * a, self.theta.times(gradient) + ridge * u])


class Tolerance(NamedTuple):
    """How large an error of outputs may be in each step: absolutely, and relatively to the outputs."""

    rtol: float
    atol: float


def follow_flow(
    training: LossTraining, dynamics: Dynamics, times: jax.Array, tolerance: Tolerance, *, most_steps: int
) -> Path:
    """Return (a, u) at increasing times under gradient flow, [T, 2, order, n, columns]."""
    follow_it = _compiled_flow if training.theta.traceable else _follow_flow
    return follow_it(training, dynamics, times, tolerance, most_steps=most_steps)


def _follow_flow(
    training: LossTraining, dynamics: Dynamics, times: jax.Array, tolerance: Tolerance, *, most_steps: int
) -> Path:
    rate, ridge = (jnp.asarray(value, training.start.dtype) for value in (dynamics.rate, dynamics.shift))
    largest = training.theta.norm_bound()

    bound = largest_curvature(training.loss)

    def fastest_rate(state: jax.Array) -> jax.Array:
        if bound is not None:
            return rate * (largest * bound / training.entries + ridge)
        # The largest row sum bounds the eigenvalues of a matrix.
        curvature = jnp.max(jnp.sum(jnp.abs(training.second_derivatives(state[1])), axis=-1))
        return rate * (CURVATURE_MARGIN * largest * curvature + ridge)

    def error_size(error: jax.Array, before: jax.Array, after: jax.Array) -> jax.Array:
        outputs = jnp.maximum(jnp.abs(training.start + before[1]), jnp.abs(training.start + after[1]))
        parts = training.by_member(error[1] / (tolerance.atol + tolerance.rtol * outputs))
        return jnp.max(jnp.sqrt(jnp.mean(parts**2, axis=(1, 2))))

    slope = partial(training.slope, rate=rate, ridge=ridge)
    equation = Equation(slope, fastest_rate, error_size, training.theta.traceable)
    return follow(equation, jnp.zeros((2, *training.start.shape), training.start.dtype), times, most_steps=most_steps)


_compiled_flow = jax.jit(_follow_flow, static_argnames="most_steps")


def follow_descent(training: LossTraining, dynamics: Dynamics, times: jax.Array) -> jax.Array:
    """Return (a, u) after increasing numbers of steps of descent, with momentum, [T, 2, order, n, columns]."""
    return (_compiled_descent if training.theta.traceable else _follow_descent)(training, dynamics, times)


def _follow_descent(training: LossTraining, dynamics: Dynamics, times: jax.Array) -> jax.Array:
    rate, friction = (jnp.asarray(value, training.start.dtype) for value in (dynamics.rate, dynamics.friction))
    start = jnp.zeros((2, *training.start.shape), training.start.dtype)

    def step(_: Any, states: tuple) -> tuple:
        state, before = states
        return state + training.slope(state, rate, jnp.zeros_like(rate)) + friction * (state - before), state

    def reach(carry: tuple, time: jax.Array) -> tuple:
        states, done = carry
        states = jax.lax.fori_loop(done, time, step, states)
        return (states, time), states[0]

    counts = times.astype(jnp.int32)
    if training.theta.traceable:
        return jax.lax.scan(reach, ((start, start), jnp.zeros((), jnp.int32)), counts)[1]
    states, done, found = (start, start), 0, []
    for count in counts.tolist():
        for number in range(done, count):
            states = step(number, states)
        done = count
        found.append(states[0])
    return jnp.stack(found)


_compiled_descent = jax.jit(_follow_descent)


def follow_momentum_flow(
    training: LossTraining, learning_rate: Any, beta: Any, times: jax.Array, tolerance: Tolerance
) -> jax.Array:
    """Return (a, u) at increasing positive times under a'' + γa' = −∇L in the time √η t, [T, 2, order, n, columns].

    Oscillations have no real rates, but they are slow: of the order √(Θ t), which an ordinary method follows.
    """
    follow_it = _compiled_momentum_flow if training.theta.traceable else _follow_momentum_flow
    return follow_it(training, learning_rate, beta, times, tolerance)


def _follow_momentum_flow(
    training: LossTraining, learning_rate: Any, beta: Any, times: jax.Array, tolerance: Tolerance
) -> jax.Array:
    dtype = training.start.dtype
    root = jnp.sqrt(jnp.asarray(learning_rate, dtype))
    friction = (1 - jnp.asarray(beta, dtype)) / root
    one, zero = jnp.ones((), dtype), jnp.zeros((), dtype)

    def slope(state: tuple, _: Any) -> tuple:
        place, speed = state
        return speed, training.slope(place, one, zero) - friction * speed

    rest = jnp.zeros((2, *training.start.shape), dtype)
    # `odeint` begins at the first time.
    moments = jnp.concatenate([jnp.zeros(1, dtype), root * times])
    if training.theta.traceable:
        return odeint(slope, (rest, rest), moments, rtol=tolerance.rtol, atol=tolerance.atol)[0][1:]

    def flat_slope(_: float, flat: np.ndarray) -> np.ndarray:
        place, speed = jnp.asarray(flat.reshape(2, *rest.shape), dtype)
        return np.concatenate([np.ravel(part) for part in slope((place, speed), moments)])

    if not len(times):
        return jnp.zeros((0, *rest.shape), dtype)
    at, begun = np.asarray(moments, float), np.zeros(2 * rest.size)
    done = scipy.integrate.solve_ivp(
        flat_slope, (0.0, at[-1]), begun, t_eval=at[1:], rtol=tolerance.rtol, atol=tolerance.atol
    )
    # NaN stands for times that the integrator did not reach; the caller refuses them.
    missing = len(times) - done.y.shape[1]
    places = np.pad(done.y, ((0, 0), (0, missing)), constant_values=np.nan)
    return jnp.asarray(places.T.reshape(-1, 2, *rest.shape)[:, 0], dtype)


_compiled_momentum_flow = jax.jit(_follow_momentum_flow, static_argnames="tolerance")


def find_minimum_by_products(training: LossTraining, ridge: jax.Array, tolerance: float) -> tuple[jax.Array, float]:
    """Return a where L(f_0 + Θa) + ½λ₀aᵀΘa is smallest, and the slope there, relative to the start.

    The steps are those of `find_minimum`, and each of conjugate gradients is one product with Θ. λ₀ is not zero.
    """

    def slope_at(a: jax.Array, u: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return the slope in this inner product, Θ times it, and its square, which rounding may make negative."""
        slope = training.gradient(u) + ridge * a
        moved = training.theta.times(slope)
        return slope, moved, jnp.maximum(_inner(training, slope, moved), 0)

    a = u = jnp.zeros_like(training.start)
    scale = jnp.sqrt(slope_at(a, u)[2]) + jnp.finfo(u.dtype).tiny
    for _ in range(NEWTON_STEPS):
        slope, moved, far = slope_at(a, u)
        size = jnp.sqrt(far) / scale
        if not float(jnp.max(size)) > tolerance:  # close enough, or not finite
            break
        direction, moved = _newton_direction(training, ridge, u, (slope, moved), size)
        a = a + _share_of_step(training, ridge, (a, u), (direction, moved), slope) * direction
        u = training.theta.times(a)
    return a, float(jnp.max(jnp.sqrt(slope_at(a, u)[2]) / scale))


def _newton_direction(
    training: LossTraining, ridge: jax.Array, u: jax.Array, slope: tuple[jax.Array, jax.Array], size: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return d with (HΘ + λ₀ + damping) d = −slope, and Θd, by conjugate gradients in the inner product aᵀΘb.

    Args:
        training: what members are trained on.
        ridge: λ₀.
        u: where they are.
        slope: the slope there, and its product with Θ.
        size: its size, relative to the start, [members].
    """
    H = training.second_derivatives(u)
    shift = ridge + _spread(training, jnp.max(jnp.abs(H)) * size)
    r, moved_r = -slope[0], -slope[1]
    p, moved_p = r, moved_r
    d = moved_d = jnp.zeros_like(u)
    left = goal = _inner(training, r, moved_r)
    for _ in range(CG_STEPS):
        # A hundredth of the slope is left, as in `find_minimum`.
        if bool((left <= 1e-4 * goal).all()):
            break
        changed = _times_hessian(training, H, shift, p, moved_p)
        step = _spread(training, _quotient(left, _inner(training, moved_p, changed)))
        d, moved_d, r = d + step * p, moved_d + step * moved_p, r - step * changed
        moved_r = training.theta.times(r)
        before, left = left, _inner(training, r, moved_r)
        share = _spread(training, _quotient(left, before))
        p, moved_p = r + share * p, moved_r + share * moved_p
    return d, moved_d


@jax.jit
def _times_hessian(training: LossTraining, H: jax.Array, shift: jax.Array, d: jax.Array, moved: jax.Array) -> jax.Array:
    return training.by_column(jnp.einsum("mnab,mnb->mna", H, training.by_member(moved))) + shift * d


@jax.jit
def _share_of_step(
    training: LossTraining, ridge: jax.Array, place: tuple, direction: tuple, slope: jax.Array
) -> jax.Array:
    def objective(a: jax.Array, u: jax.Array) -> jax.Array:
        losses = jax.vmap(training.total)(training.by_member(training.start + u))
        return losses + ridge / 2 * _inner(training, a, u)

    decrease = _inner(training, slope, direction[1])
    return _spread(training, _backtrack(objective, place, direction, decrease))


def _inner(training: LossTraining, one: jax.Array, other: jax.Array) -> jax.Array:
    """Return the inner product of each member's columns, [members]."""
    return jnp.sum(training.by_member(one * other), axis=(1, 2))


def _spread(training: LossTraining, by_member: jax.Array) -> jax.Array:
    """Return numbers [members] as functions on the training samples that are constant."""
    return jnp.tile(jnp.repeat(by_member, training.outputs), (*training.start.shape[:2], 1))


def _quotient(above: jax.Array, below: jax.Array) -> jax.Array:
    """Return above/below, and 0 for members that are done, of which nothing is left."""
    return jnp.where(below > 0, above / jnp.where(below > 0, below, 1), 0)


class Minimum(NamedTuple):
    """The end of training.

    Attributes:
        z: where it is, [order, n, columns].
        u: S z, the change of outputs.
        slope: how far from a minimum it is, relative to the start: the largest of all members.
        flatness: the smallest second derivative, in directions in which the loss changes outputs, over the largest one
            at the start of training: where there is no minimum, all of them vanish together.
    """

    z: jax.Array
    u: jax.Array
    slope: jax.Array
    flatness: jax.Array


@jax.jit
def find_minimum(training: LossTraining, S: GroupMatrix, ridge: jax.Array, tolerance: jax.Array) -> Minimum:
    """Return where L(f_0 + S z) + ½λ₀|z|² is smallest, by Newton's method."""

    def slope_of(z: jax.Array, u: jax.Array) -> jax.Array:
        return S.times(training.gradient(u)) + ridge * z

    def objective(z: jax.Array, u: jax.Array) -> jax.Array:
        losses = jax.vmap(training.total)(training.by_member(training.start + u))
        return losses + ridge / 2 * _inner(training, z, z)

    def size(values: jax.Array) -> jax.Array:
        return jnp.sqrt(_inner(training, values, values))

    zero = jnp.zeros_like(training.start)
    first = slope_of(zero, zero)
    scale = size(first) + jnp.finfo(first.dtype).tiny

    def newton_step(carry: tuple) -> tuple:
        number, z, u, slope = carry
        H = training.second_derivatives(u)
        damping = _spread(training, jnp.max(jnp.abs(H)) * size(slope) / scale)

        def hessian(v: jax.Array) -> jax.Array:
            inner = jnp.einsum("mnab,mnb->mna", H, training.by_member(S.times(v)))
            return S.times(training.by_column(inner)) + (ridge + damping) * v

        direction, _ = cg(hessian, -slope, tol=1e-2, maxiter=CG_STEPS)
        moved, decrease = S.times(direction), _inner(training, slope, direction)
        share = _spread(training, _backtrack(objective, (z, u), (direction, moved), decrease))
        z, u = z + share * direction, u + share * moved
        return number + 1, z, u, slope_of(z, u)

    def unfinished(carry: tuple) -> jax.Array:
        number, _, u, slope = carry
        far = jnp.max(size(slope) / scale) > tolerance
        return far & (number < NEWTON_STEPS) & jnp.isfinite(u).all()

    _, z, u, slope = jax.lax.while_loop(unfinished, newton_step, (jnp.zeros((), jnp.int32), zero, zero, first))
    return Minimum(z, u, jnp.max(size(slope) / scale), _flatness(training, u))


def _backtrack(objective: Callable, place: tuple, direction: tuple, decrease: jax.Array) -> jax.Array:
    """Return for each member the share of a step, 1 or a half, a quarter, …, with which its loss becomes smaller."""
    before = objective(*place)
    eps = jnp.finfo(before.dtype).eps

    def values(share: jax.Array) -> jax.Array:
        # Each member has a share of its own, and its loss depends on its own alone: try the same for all.
        return objective(*(at + share * by for at, by in zip(place, direction, strict=True)))

    def halve(carry: tuple) -> tuple:
        number, shares = carry
        trial = 0.5**number
        fine = values(trial) <= before + 1e-4 * trial * decrease + 10 * eps * jnp.abs(before)
        return number + 1, jnp.where((shares == 0) & fine, trial, shares)

    def unfinished(carry: tuple) -> jax.Array:
        return (carry[0] < HALVINGS) & (carry[1] == 0).any()

    return jax.lax.while_loop(unfinished, halve, (jnp.zeros((), before.dtype), jnp.zeros_like(before)))[1]


def _flatness(training: LossTraining, u: jax.Array) -> jax.Array:
    """Return the smallest over the largest second derivative; a common change of all outputs does not count if free."""
    H, first = training.second_derivatives(u), training.second_derivatives(jnp.zeros_like(u))
    outputs = H.shape[-1]
    common = jnp.ones(outputs, H.dtype) / outputs**0.5
    largest = jnp.maximum(jnp.max(jnp.abs(H)), jnp.max(jnp.abs(first))) + jnp.finfo(H.dtype).tiny
    is_free = jnp.max(jnp.abs(H @ common)) <= 100 * jnp.finfo(H.dtype).eps ** 0.5 * largest if outputs > 1 else False
    # Lifting the free direction out of the way leaves the other eigenvalues as they are.
    lifted = H + jnp.where(is_free, largest, 0) * (common[:, None] * common[None, :])[None, None]
    return jnp.min(jnp.linalg.eigvalsh(lifted)) / largest
