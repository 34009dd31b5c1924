"""One network along its linearised trajectory, and what the drift of its kernel does to it, without training.

With w_0 the initial parameters, J the Jacobian of all outputs at all training samples [nC, P], Θ_0 = J_0 J_0ᵀ, f_0 the
outputs, r = f − y and φ_t the filter of training, the linearised network has

    r_t = (1 − Θ_0 φ_t(Θ_0)) r_0,        w_t = w_0 − J_0ᵀ φ_t(Θ_0) r_0.

The network itself follows ḟ = −η Θ(w)(f − y). Its difference δ from the linearised one therefore obeys, on training
samples X and in the same way on test samples,

    δ̇ = −η [Θ_0 δ + g],        g(s) = (Θ(w_s) − Θ_0) r_s                                                    (one sweep)

with the drift g of the kernel along the linearised trajectory. Then the trajectory itself is corrected,

    ẇ = −η [J(w_s)ᵀ r_s + J_0ᵀ δ_s],

and g is taken along it, with r + δ in place of r (two sweeps). Every sweep is right to one more order in the
nonlinearity of a smooth network. The mean over members of what is of order 1/width has terms of the first and of the
second order, so that it needs two sweeps. A network with kinks has no such orders: its kernel moves by as many steps
as units pass through their kink. There one sweep is the better prediction.

On a grid of times s_k, g is linear in between. In the eigenbasis of Θ_0 a step of length h is then exact, with

    δ(s + h) = (1 − λφ_h) δ(s) − (φ_h − ψ_h) g(s) − ψ_h g(s + h),        ψ_h = (1 − φ_h(λ)/φ_h(0)) / λ,

for gradient flow and, with h steps, for gradient descent alike. The grid is geometric, because what is left of r at
time s changes no faster than 1/s.

Θ(w) r is one product with the transposed Jacobian and one with the Jacobian. Both are taken in portions of samples.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr
from jax.flatten_util import ravel_pytree

from ntk_equiv._gram import gram
from ntk_equiv._typing import Inputs, Scalar
from ntk_equiv.empirical._derivatives import NetworkFn, Params, inner_programs, program_of_sample
from ntk_equiv.empirical._kernel_fn import EmpiricalKernelFn
from ntk_equiv.filters import Filter

# Times of the grid: so many in each octave. Twice as many change predictions by less than a hundredth of the drift.
TIMES_PER_OCTAVE = 3
# So many intermediate results of a network are kept at once for a product with its Jacobian: 0.5 GB in float64.
NUMBERS_AT_ONCE = 2**26
# Below this ηλh, differences over λ would cancel, and their limits at λ = 0 are precise.
SMALL_STEP = 1e-2
# Steps of the power iteration for the norm of the change of the Jacobian, which is not needed precisely.
POWER_STEPS = 12
# Operations that have kinks, or that choose. Softmax subtracts a maximum over an axis, which cancels; it is not here.
KINKED = {"max", "min", "abs", "sign", "floor", "round", "clamp", "select_n", "reduce_window_max"}


class Network(NamedTuple):
    """One member: what it computes, from which parameters, and for how many samples at a time."""

    apply: NetworkFn
    params: Params
    constants: Any


class Start(NamedTuple):
    """What is known of a member before training: outputs, and Θ_0 [nC, nC] and [mC, nC], the first decomposed."""

    train_outputs: jax.Array
    test_outputs: jax.Array
    theta: jax.Array
    theta_test: jax.Array
    eigenvalues: jax.Array
    eigenvectors: jax.Array


class _Sweep(NamedTuple):
    """Where one sweep has arrived: δ in modes and at test samples, ∫ηδ, the last g, and what moved parameters."""

    delta: jax.Array
    test: jax.Array
    integral: jax.Array
    drift: jax.Array
    test_drift: jax.Array
    pulled: jax.Array
    pulled_total: jax.Array


def portion_of_samples(network: Network, x: Inputs) -> int:
    """Return how many samples to differentiate at once, so that intermediate results are few enough to keep."""
    sample = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), x)
    program = program_of_sample(network.apply, network.params, network.constants, sample)
    return max(1, NUMBERS_AT_ONCE // max(_count_numbers(program.jaxpr), 1))


def _count_numbers(jaxpr: Jaxpr) -> int:
    """Return how many numbers the intermediate results of a program are."""
    own = sum(int(np.prod(getattr(v.aval, "shape", ()))) for eqn in jaxpr.eqns for v in eqn.outvars)
    return own + sum(map(_count_numbers, _programs_inside(jaxpr)))


def has_kinks(network: Network, x: Inputs) -> bool:
    """Return whether a network contains an operation with a kink, such as ReLU, a maximum or an absolute value."""
    sample = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), x)
    return _contains_kinks(program_of_sample(network.apply, network.params, network.constants, sample).jaxpr)


def _contains_kinks(jaxpr: Jaxpr) -> bool:
    for eqn in jaxpr.eqns:
        numbers = any(jnp.issubdtype(v.aval.dtype, jnp.floating) for v in eqn.outvars if hasattr(v.aval, "dtype"))
        if eqn.primitive.name in KINKED and numbers:
            return True
    return any(map(_contains_kinks, _programs_inside(jaxpr)))


def _programs_inside(jaxpr: Jaxpr) -> list[Jaxpr]:
    return [part for eqn in jaxpr.eqns for value in eqn.params.values() for part in inner_programs(value)]


def starting_point(network: Network, x: Inputs, x_test: Inputs) -> Start:
    """Return the outputs and the kernel of a member before training."""
    theta = kernel_matrix(network, x)
    eigenvalues, eigenvectors = jnp.linalg.eigh((theta + theta.T) / 2)
    train_outputs, test_outputs = (_outputs(network.apply, network.params, network.constants, z) for z in (x, x_test))
    # Rounding makes eigenvalues that are 0 negative, and a filter may grow there.
    eigenvalues = jnp.maximum(eigenvalues, 0)
    return Start(train_outputs, test_outputs, theta, kernel_matrix(network, x_test, x), eigenvalues, eigenvectors)


def kernel_matrix(network: Network, x1: Inputs, x2: Inputs | None = None) -> jax.Array:
    """Return Θ with all outputs of a sample side by side, [n1 C, n2 C], evaluated in tiles."""
    kernel_fn = EmpiricalKernelFn(network.params, network.constants, network.apply, "auto", "apart", "ntk")
    kernel = gram(kernel_fn, x1, x2, "ntk")
    # [n1, n2, h, h', …, C, C'] has the axes of both samples in turn.
    order = [*range(0, kernel.ndim, 2), *range(1, kernel.ndim, 2)]
    ordered = kernel.transpose(order)
    half = ordered.ndim // 2
    return ordered.reshape(int(np.prod(ordered.shape[:half])), -1)


def time_grid(filter: Filter, fastest: float, times: np.ndarray) -> np.ndarray:
    """Return times at which the drift is evaluated, from 0, with all `times` among them.

    Args:
        filter: how the network is trained.
        fastest: the rate ηλ of the fastest mode.
        times: the times at which results are wanted.
    """
    last, ratio = float(np.max(times)), 2 ** (1 / TIMES_PER_OCTAVE)
    first = 1.0 if filter.in_steps else min(0.25 / max(fastest, 1e-300), max(last, 1e-300))
    count = max(int(np.ceil(np.log(max(last / first, 1.0)) / np.log(ratio))), 0)
    between = first * ratio ** np.arange(count + 1)
    between = np.round(between) if filter.in_steps else between
    return np.unique(np.concatenate([[0.0], between[between < last], times]))


@partial(jax.jit, static_argnames=("apply", "sweeps", "portion"))
def trajectory_predictions(
    apply: NetworkFn,
    params: Params,
    constants: Any,
    start: Start,
    filter: Filter,
    entries: Scalar,
    data: tuple[Inputs, jax.Array, Inputs],
    grid: jax.Array,
    *,
    sweeps: int,
    portion: int,
) -> dict[str, jax.Array]:
    """Return predictions at test samples for all times of the grid but the first.

    Args:
        apply: the network.
        params: its initial parameters.
        constants: its variables that are not trained.
        start: what `starting_point` returned.
        filter: gradient flow or gradient descent.
        entries: s, if the loss is a mean over s entries, else 1.
        data: training samples, labels [nC] and test samples.
        grid: the times, from 0.
        sweeps: how many.
        portion: how many samples are differentiated at once.

    Returns:
        linear: of the linearised network, [times, mC].
        on_path: of the network at w_t.
        drift: for each sweep, the trained network minus the linearised one, [times, sweeps, mC].
    """
    x, y, x_test = data
    flat, restore = ravel_pytree(params)
    initial, U, lam = start.train_outputs - y, start.eigenvectors, start.eigenvalues
    modes, eta = U.T @ initial, filter.learning_rate / entries  # type: ignore[attr-defined]

    def pull(w: jax.Array, residual: jax.Array) -> jax.Array:
        return pull_back(apply, restore(w), constants, x, residual, portion)

    def force(w: jax.Array, residual: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return g in modes and at test samples, and J(w)ᵀ r."""
        pulled = pull(w, residual)
        on_train, on_test = (
            push_forward(apply, restore(w), constants, z, restore(pulled), portion) for z in (x, x_test)
        )
        return U.T @ (on_train - start.theta @ residual), on_test - start.theta_test @ residual, pulled

    def step(sweeps_before: tuple[_Sweep, ...], interval: tuple[jax.Array, jax.Array]) -> tuple:
        begin, end = interval
        weights = _step_weights(filter, entries, lam, end - begin)
        phi = filter(lam / entries, end) / entries
        residual = U @ ((1 - lam * phi) * modes)
        on_path = w = flat - pull(flat, U @ (phi * modes))
        unperturbed = pull(flat, residual)
        now, whole = [], residual
        for number, before in enumerate(sweeps_before):
            drift, test_drift, pulled = force(w, whole)
            if number == 0:
                pulled_change = pulled - unperturbed
            after = _advance(before, weights, lam, start.theta_test @ U, drift, test_drift, pulled_change)
            now.append(after)
            w = flat - pull(flat, U @ (phi * modes + after.integral)) - eta * now[0].pulled_total
            whole = residual + U @ after.delta
        linear = start.test_outputs - start.theta_test @ (U @ (phi * modes))
        outputs = {
            "linear": linear,
            "on_path": _outputs(apply, restore(on_path), constants, x_test),
            "drift": jnp.stack([sweep.test for sweep in now]),
        }
        return tuple(now), outputs

    zero, zero_test, zero_params = jnp.zeros_like(lam), jnp.zeros_like(start.test_outputs), jnp.zeros_like(flat)
    nothing = _Sweep(zero, zero_test, zero, zero, zero_test, zero_params, zero_params)
    return jax.lax.scan(step, (nothing,) * sweeps, (grid[:-1], grid[1:]))[1]


class _Weights(NamedTuple):
    """What a step of length h does: 1 − λφ_h, the weights of g at both ends, ηh, and the part of it at the first."""

    kept: jax.Array
    first: jax.Array
    last: jax.Array
    elapsed: jax.Array
    part: jax.Array
    length: jax.Array


def _step_weights(filter: Filter, entries: Scalar, lam: jax.Array, h: jax.Array) -> _Weights:
    phi, elapsed = filter(lam / entries, h) / entries, filter.learning_rate * h / entries  # type: ignore[attr-defined]
    # Gradient descent uses g at the beginning of each of its steps, so that of the last time is not used.
    part = (h + 1) / (2 * h) if filter.in_steps else jnp.full_like(h, 0.5)
    large = elapsed * lam > SMALL_STEP
    psi = jnp.where(large, (1 - phi / elapsed) / jnp.where(large, lam, 1), elapsed * (1 - part))
    return _Weights(1 - lam * phi, phi - psi, psi, elapsed, part, h)


def _advance(
    before: _Sweep,
    weights: _Weights,
    lam: jax.Array,
    test_modes: jax.Array,
    drift: jax.Array,
    test_drift: jax.Array,
    pulled: jax.Array,
) -> _Sweep:
    """Return the sweep at the end of an interval."""
    part, elapsed = weights.part, weights.elapsed
    delta = weights.kept * before.delta - weights.first * before.drift - weights.last * drift
    # Of δ̇ = −η(λδ + g) the integral of ηδ follows; where λ is too small to divide by, from both ends.
    pushed = elapsed * (part * before.drift + (1 - part) * drift)
    large = elapsed * lam > SMALL_STEP
    exact = (before.delta - delta - pushed) / jnp.where(large, lam, 1)
    gained = jnp.where(large, exact, elapsed * (part * before.delta + (1 - part) * delta))
    test = before.test - test_modes @ gained - elapsed * (part * before.test_drift + (1 - part) * test_drift)
    total = before.pulled_total + weights.length * (part * before.pulled + (1 - part) * pulled)
    return _Sweep(delta, test, before.integral + gained, drift, test_drift, pulled, total)


@partial(jax.jit, static_argnames=("apply", "portion"))
def parameters_on_path(
    apply: NetworkFn,
    params: Params,
    constants: Any,
    start: Start,
    filter: Filter,
    entries: Scalar,
    x: Inputs,
    y: jax.Array,
    t: jax.Array,
    *,
    portion: int,
) -> Params:
    """Return w_t on the linearised trajectory, w_0 − J_0ᵀ φ_t(Θ_0) (f_0 − y)."""
    U = start.eigenvectors
    phi = filter(start.eigenvalues / entries, t) / entries
    flat, restore = ravel_pytree(params)
    move = pull_back(apply, params, constants, x, U @ (phi * (U.T @ (start.train_outputs - y))), portion)
    return restore(flat - move)


@partial(jax.jit, static_argnames=("apply", "portion"))
def jacobian_change(
    apply: NetworkFn, params: Params, moved: Params, constants: Any, x: Inputs, first: jax.Array, *, portion: int
) -> jax.Array:
    """Return the largest singular value of J(w_t) − J(w_0), by power iteration from a vector of outputs."""

    def apply_square(v: jax.Array) -> jax.Array:
        pulled = pull_back(apply, moved, constants, x, v, portion) - pull_back(apply, params, constants, x, v, portion)
        direction = ravel_pytree(params)[1](pulled)
        ahead, behind = (push_forward(apply, p, constants, x, direction, portion) for p in (moved, params))
        return ahead - behind

    def iterate(_: Any, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        v = apply_square(state[0])
        norm = jnp.linalg.norm(v)
        return v / jnp.where(norm > 0, norm, 1), norm

    size = jnp.linalg.norm(first)
    unit = jnp.where(size > 0, first / jnp.where(size > 0, size, 1), 1 / jnp.sqrt(first.size))
    return jnp.sqrt(jax.lax.fori_loop(0, POWER_STEPS, iterate, (unit, jnp.zeros((), first.dtype)))[1])


# Products with Jacobians, in portions of samples.


def pull_back(
    apply: NetworkFn, params: Params, constants: Any, x: Inputs, outputs: jax.Array, portion: int
) -> jax.Array:
    """Return Jᵀ v as one vector, for v [nC]."""

    def of_samples(part: tuple[Inputs, jax.Array]) -> jax.Array:
        samples, vectors = part
        result, pull = jax.vjp(lambda p: apply(p, constants, samples), params)
        return ravel_pytree(pull(vectors.reshape(result.shape))[0])[0]

    n = jax.tree.leaves(x)[0].shape[0]
    vectors = outputs.reshape(n, -1)
    if portion >= n:
        return of_samples((x, vectors))
    parts, places = _places(n, portion)
    # The last portion is filled up with copies, which must not count.
    counted = jnp.where((np.arange(parts * portion) < n)[:, None], vectors[places], 0)
    shaped = _in_portions(x, places, portion), counted.reshape(parts, portion, -1)
    zero = jnp.zeros_like(ravel_pytree(params)[0])
    return jax.lax.scan(lambda total, part: (total + of_samples(part), None), zero, shaped)[0]


def push_forward(
    apply: NetworkFn, params: Params, constants: Any, x: Inputs, direction: Params, portion: int
) -> jax.Array:
    """Return J u as one vector [nC], for a direction u in the space of parameters."""

    def of_samples(samples: Inputs) -> jax.Array:
        return jax.jvp(lambda p: apply(p, constants, samples), (params,), (direction,))[1]

    n = jax.tree.leaves(x)[0].shape[0]
    if portion >= n:
        return of_samples(x).reshape(-1)
    parts, places = _places(n, portion)
    found = jax.lax.map(of_samples, _in_portions(x, places, portion))
    return found.reshape(parts * portion, -1)[:n].reshape(-1)


def _places(n: int, portion: int) -> tuple[int, np.ndarray]:
    parts = -(-n // portion)
    return parts, np.minimum(np.arange(parts * portion), n - 1)


def _in_portions(x: Inputs, places: np.ndarray, portion: int) -> Inputs:
    return jax.tree.map(lambda leaf: leaf[places].reshape(-1, portion, *leaf.shape[1:]), x)


def _outputs(apply: NetworkFn, params: Params, constants: Any, x: Inputs) -> jax.Array:
    return apply(params, constants, x).reshape(-1)
