"""Training on a kernel matrix that is given, instead of a kernel function and samples.

    f_t = f_0 + Θ(·, X) φ_t(Θ) (y − f_0)        for the mean squared error: `KernelMatrix`
    f'  = −η Θ(·, X) ∇L(f(X))                   for any loss: `follow_loss`
    f'' = −γ f' − Θ(·, X) ∇L(f(X))              with momentum, in the time √η t: `follow_loss_with_momentum`

Matrices have one row for each entry of the outputs that kernels tell apart. `InfiniteEnsemble` and `SampledEnsemble` do
more: they know where matrices come from, and use symmetry.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.ode import odeint

from ntk_equiv._check import refusal
from ntk_equiv._pytrees import dataclass_pytree
from ntk_equiv.filters import Filter
from ntk_equiv.infinite._chebyshev import Equation, follow
from ntk_equiv.solvers import DenseBlock, Eigh, FilterAboveNoise, SolvedBlock, noise_level, product

# Of the curvature of a loss: steps of the power method, and by how much it may be larger than they find.
POWER_STEPS, MARGIN = 12, 1.5
MOST_STEPS = 200_000
# The end of training is where outputs have not changed for a decade of time; after so many it has no end.
DECADES = 12


@dataclass_pytree
@dataclasses.dataclass(frozen=True, eq=False)
class KernelMatrix:
    """A kernel matrix, decomposed once, of which functions are applied to vectors.

    Attributes:
        solved: the decomposition.
        noise: how far rounding may move an eigenvalue.
    """

    solved: SolvedBlock
    noise: jax.Array

    @classmethod
    def of(cls, matrix: jax.Array) -> "KernelMatrix":
        """Return a symmetric matrix [N, N], decomposed."""
        solver = Eigh()
        scale, diagonal = jnp.max(jnp.sum(jnp.abs(matrix), axis=1)), jnp.max(jnp.abs(jnp.diagonal(matrix)))
        noise = noise_level(scale, diagonal, len(matrix), solver_eps=solver.precision(matrix))
        return cls(solver.solve(DenseBlock(matrix)), noise)

    def apply(
        self, how: Filter, times: jax.Array, columns: jax.Array, *, entries: int = 1, part: str = "coefficients"
    ) -> jax.Array:
        """Return a function of the matrix times `columns` [N, C] at `times` [T], [T, N, C].

        Args:
            how: the filter φ_t.
            times: t.
            columns: vectors.
            entries: how many entries the loss is a mean over.
            part: "coefficients" for φ_t(Θ), "fit" for Θφ_t(Θ), "residual" for 1 − Θφ_t(Θ).
        """
        f = FilterAboveNoise(how, self.noise, entries, part)
        rows = self.solved.apply(f, times, self.solved.to_basis(columns.T))
        return jnp.swapaxes(self.solved.from_basis(rows), 1, 2)


@partial(jax.jit, static_argnames=("gradient", "tolerance"))
def follow_loss(
    gradient: Callable, y: Any, theta: jax.Array, start: jax.Array, times: jax.Array, tolerance: float
) -> jax.Array:
    """Return outputs at increasing times under gradient flow with rate 1, [T, M, C].

    Args:
        gradient: ∇L as a function of outputs on the training samples, [N, C], and `y`.
        y: what `gradient` is given.
        theta: kernels [M, N] of all samples with the training samples, which come first.
        start: outputs of all samples at the beginning, [M, C].
        times: when outputs are wanted.
        tolerance: how large an error may be in a step, absolutely and relative to the outputs.
    """
    N = theta.shape[1]
    size = jnp.minimum(jnp.linalg.norm(theta[:N]), jnp.max(jnp.sum(jnp.abs(theta[:N]), axis=1)))

    def fastest_rate(outputs: jax.Array) -> jax.Array:
        times_hessian = jax.linearize(lambda f: gradient(f, y), outputs[:N])[1]

        def power_step(_: Any, v: jax.Array) -> jax.Array:
            moved = times_hessian(v)
            return moved / jnp.maximum(jnp.linalg.norm(moved), jnp.finfo(moved.dtype).tiny)

        first = jax.random.normal(jax.random.key(0), outputs[:N].shape, outputs.dtype)
        v = jax.lax.fori_loop(0, POWER_STEPS, power_step, first)
        return MARGIN * size * jnp.linalg.norm(times_hessian(v))

    def error_size(error: jax.Array, before: jax.Array, after: jax.Array) -> jax.Array:
        allowed = tolerance * (1 + jnp.maximum(jnp.abs(before), jnp.abs(after)))
        return jnp.sqrt(jnp.mean((error / allowed) ** 2))

    equation = Equation(lambda f: -product(theta, gradient(f[:N], y)), fastest_rate, error_size)
    path = follow(equation, start, times, most_steps=MOST_STEPS)
    return jnp.where(path.reached, path.values, jnp.nan)


@partial(jax.jit, static_argnames=("gradient", "tolerance"))
def follow_loss_with_momentum(
    gradient: Callable, y: Any, theta: jax.Array, state: tuple, friction: Any, times: jax.Array, tolerance: float
) -> tuple:
    """Return outputs and their velocities at increasing times, each [T, M, C]; arguments as in `follow_loss`."""
    N = theta.shape[1]

    def slope(state: tuple, _: jax.Array) -> tuple:
        outputs, velocity = state
        return velocity, -product(theta, gradient(outputs[:N], y)) - friction * velocity

    moments = jnp.concatenate([jnp.zeros(1, times.dtype), times])
    path = odeint(slope, state, moments, rtol=tolerance, atol=tolerance)
    # `odeint` divides by the length of its first interval.
    at_start = (times == 0)[:, None, None]
    return tuple(jnp.where(at_start, first[None], values[1:]) for first, values in zip(state, path, strict=True))


def follow_to_the_end(advance: Callable[[Any, float], Any], state: Any, unit: float, tolerance: float) -> Any:
    """Return the state after which training changes nothing.

    Args:
        advance: returns the state after some time, from a state.
        state: the state at the beginning.
        unit: the time in which the fastest outputs change.
        tolerance: the change that counts as none.
    """
    for decade in range(DECADES):
        before, state = state, advance(state, unit * 10.0**decade)
        leaves = zip(jax.tree.leaves(before), jax.tree.leaves(state), strict=True)
        if decade and max(float(jnp.max(jnp.abs(a - b) / (1 + jnp.abs(a)))) for a, b in leaves) < 10 * tolerance:
            return state
    fix = "The cross-entropy of classes, for instance, falls for ever where they can be separated. Ask for a time."
    got = f"a loss for which outputs still change after {unit * 10.0**DECADES:.1e}"
    raise refusal("t", expected="finite, or the loss such that training ends", got=got, fix=fix)
