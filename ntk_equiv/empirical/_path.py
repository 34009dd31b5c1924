"""One network along its path of training, in a few long steps in place of many short ones.

With J the Jacobian of all outputs at all training samples [nC, P], Θ = J Jᵀ, ρ = f − y and φ_t the filter of training,
training follows ẇ = −η J(w)ᵀ ρ. For a step of length h the network is replaced by its linearisation at w, whose
training is known:

    u = φ_h(Θ(w)) ρ,        w' = w − J(w)ᵀ u                                                   (the linearised step)

Meanwhile the Jacobian drifts. What it has drifted by at w', taken to grow in proportion to time, corrects the step:

    g = (Θ(w') − Θ(w)) ρ',  q = (J(w') − J(w))ᵀ ρ',        u = φ_h ρ − χ_h g,        w' = w − J(w)ᵀ u − ηh/2 q

    χ_h = (ηh/2 − ψ_h)/λ,        ψ_h = (1 − φ_h(λ)/φ_h(0))/λ

for gradient flow. In h steps of gradient descent 1/2 is (h − 1)/2h, because the last of them uses the Jacobian before
it. Then ρ is evaluated anew, so that a step repairs what the one before has left. A linear network is followed exactly
in any steps, and gradient descent exactly if every step is taken. The steps grow in proportion to time, because what is
left of ρ changes no faster than 1/t. Training makes ρ smaller, so that a step which does not is halved. This is an
exponential integrator (Hochbruck & Ostermann 2010) of training.

Only first derivatives are used, so a network may have kinks, as ReLU has. Its Jacobian jumps where a unit passes
through its kink, and training may hold a unit there; steps must be shorter for the same error.

The linearised network is one whose Jacobian is kept: u = φ_h(Θ(w_0)) r, r' = r − Θ(w_0) u.

φ_h and χ_h of Θ come from its eigenvectors as long as J has few numbers. Beyond that Lanczos' method applies them, by
products of J and Jᵀ with vectors, in portions of samples: neither J nor Θ is ever stored. It stops when the residual
of what it returns is below a part of ρ, which the next step repairs.
"""

from collections.abc import Callable
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

# Steps in each octave of time: enough to leave a hundredth of the shift of an erf network, and a tenth for ReLU.
STEPS_PER_OCTAVE, STEPS_PER_OCTAVE_WITH_KINKS = 4, 8
# So many intermediate results of a network are kept at once for a product with its Jacobian: 0.5 GB in float64.
NUMBERS_AT_ONCE = 2**26
# A Jacobian of more numbers, or with more rows, is not stored, and its kernel is not decomposed.
LARGEST_JACOBIAN, MOST_ROWS = 2**25, 512
# Below this ηλh, differences over λ would cancel, and their limits at λ = 0 are precise.
SMALL_STEP = 1e-2
# Steps of the power iteration for the norm of the change of the Jacobian, which is not needed precisely.
POWER_STEPS = 12
# Lanczos' method stops at this part of the residual of training, or after so many products.
KRYLOV_TOLERANCE, MOST_PRODUCTS = 1e-3, 64
# Random vectors that estimate the Frobenius norm of a kernel which is not stored.
PROBES = 8
# A step after which the residual is larger than before, by more than kinks make it fluctuate, is taken in parts.
LARGEST_GROWTH, MOST_PARTS = 0.01, 64
# Operations that have kinks, or that choose. Softmax subtracts a maximum over an axis, which cancels; it is not here.
KINKED = {"max", "min", "abs", "sign", "floor", "round", "clamp", "select_n", "reduce_window_max"}

SpectralFn = Callable[[jax.Array], jax.Array]


class Network(NamedTuple):
    """One member: what it computes, from which parameters, and for how many samples at a time."""

    apply: NetworkFn
    params: Params
    constants: Any


class _State(NamedTuple):
    """Parameters and residuals of the network and of its linearisation."""

    w: jax.Array
    residual: jax.Array
    linear_w: jax.Array
    linear_residual: jax.Array


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


def kernel_matrix(network: Network, x1: Inputs, x2: Inputs | None = None) -> jax.Array:
    """Return Θ with all outputs of a sample side by side, [n1 C, n2 C], evaluated in tiles."""
    kernel_fn = EmpiricalKernelFn(network.params, network.constants, network.apply, "auto", "apart", "ntk")
    kernel = gram(kernel_fn, x1, x2, "ntk")
    # [n1, n2, h, h', …, C, C'] has the axes of both samples in turn.
    order = [*range(0, kernel.ndim, 2), *range(1, kernel.ndim, 2)]
    ordered = kernel.transpose(order)
    half = ordered.ndim // 2
    return ordered.reshape(int(np.prod(ordered.shape[:half])), -1)


def time_grid(filter: Filter, fastest: float, times: np.ndarray, per_octave: int) -> np.ndarray:
    """Return times of the steps, from 0, with all `times` among them.

    Args:
        filter: how the network is trained.
        fastest: the rate ηλ of the fastest mode.
        times: the times at which results are wanted.
        per_octave: how many steps there are in an octave of time.
    """
    last, ratio = float(np.max(times)), 2 ** (1 / per_octave)
    first = 1.0 if filter.in_steps else min(0.25 / max(fastest, 1e-300), max(last, 1e-300))
    count = max(int(np.ceil(np.log(max(last / first, 1.0)) / np.log(ratio))), 0)
    between = first * ratio ** np.arange(count + 1)
    between = np.round(between) if filter.in_steps else between
    return np.unique(np.concatenate([[0.0], between[between < last], times]))


@partial(jax.jit, static_argnames=("apply", "portion", "stored"))
def follow(
    apply: NetworkFn,
    params: Params,
    constants: Any,
    filter: Filter,
    entries: Scalar,
    data: tuple[Inputs, jax.Array, Inputs],
    intervals: tuple[jax.Array, jax.Array, jax.Array],
    *,
    portion: int,
    stored: bool,
) -> dict[str, jax.Array]:
    """Return what a network and its linearisation predict after each step, and how far the latter moves.

    Args:
        apply: the network.
        params: its initial parameters.
        constants: its variables that are not trained.
        filter: gradient flow or gradient descent.
        entries: s, if the loss is a mean over s entries, else 1.
        data: training samples, labels [nC] and test samples.
        intervals: where steps begin, where they end, and after which of them to measure the move; empty ones are
            skipped.
        portion: how many samples are differentiated at once.
        stored: whether Jacobians are stored, and kernels decomposed.

    Returns:
        trained: predictions of the network at test samples, [steps, mC].
        linear: of the linearised network.
        bend: of the network with the parameters of the linearised one, minus that.
        move: relative change of the kernel, lazy ratio and relative move of parameters there, [steps, 3].
    """
    x, y, x_test = data
    flat, restore = ravel_pytree(params)
    tangent = _Tangent(apply, constants, restore, x, portion, stored)
    start, initial, test_outputs = tangent.at(flat), tangent.outputs(flat, x) - y, tangent.outputs(flat, x_test)
    training = _Training(filter, entries, y, tangent, start, jnp.linalg.norm(initial))

    def one(state: _State, interval: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[_State, dict[str, jax.Array]]:
        begin, end, wanted = interval
        advance = partial(_advance, training)
        state = jax.lax.cond(end > begin, advance, lambda state, *_: state, state, begin, end)
        linear = test_outputs + tangent.at(flat, only_products=True).push(state.linear_w - flat, x_test)
        bend = tangent.outputs(state.linear_w, x_test) - linear
        measure = lambda w: _measure_move(tangent, start, flat, w, initial)  # noqa: E731
        move = jax.lax.cond(wanted, measure, lambda w: jnp.zeros(3, w.dtype), state.linear_w)
        trained = tangent.outputs(state.w, x_test)
        return state, {"trained": trained, "linear": linear, "bend": bend, "move": move}

    return jax.lax.scan(one, _State(flat, initial, flat, initial), intervals)[1]


class _Training(NamedTuple):
    """What all steps of a member have in common: how it is trained, where it starts, and how large ρ is there."""

    filter: Any
    entries: Scalar
    y: jax.Array
    tangent: "_Tangent"
    start: "_Products | _Decomposed"
    scale: jax.Array


def _advance(training: _Training, state: _State, begin: jax.Array, end: jax.Array) -> _State:
    """Take one long step, or several shorter ones where training would increase the residual."""
    in_steps = training.filter.in_steps
    shortest = 1.0 if in_steps else (end - begin) / MOST_PARTS
    # Below this the residual is what rounding leaves of it.
    negligible = jnp.sqrt(jnp.finfo(state.w.dtype).eps) * training.scale

    def attempt(reached: tuple[_State, jax.Array, jax.Array]) -> tuple[_State, jax.Array, jax.Array]:
        before, at, h = reached
        h = jnp.minimum(h, end - at)
        after = _take_step(training, before, h)
        allowed = (1 + LARGEST_GROWTH) * jnp.linalg.norm(before.residual) + negligible
        # Written so that what is not a number is refused.
        accepted = (jnp.linalg.norm(after.residual) <= allowed) | (h <= shortest)
        half = jnp.maximum(jnp.floor(h / 2) if in_steps else h / 2, shortest)
        state = jax.tree.map(lambda new, old: jnp.where(accepted, new, old), after, before)
        return state, jnp.where(accepted, at + h, at), jnp.where(accepted, 2 * h, half)

    return jax.lax.while_loop(lambda reached: reached[1] < end, attempt, (state, begin, end - begin))[0]


def _take_step(training: _Training, state: _State, h: jax.Array) -> _State:
    """Return the state after a step of length h."""
    filter, entries, y, tangent, start, _ = training
    elapsed = filter.learning_rate * h / entries
    # Gradient descent uses the Jacobian at the beginning of each of its steps.
    late = (h - 1) / (2 * h) if filter.in_steps else 0.5
    phi = lambda lam: filter(lam / entries, h) / entries  # noqa: E731
    chi = partial(_weight_of_drift, phi, h, elapsed, filter.in_steps)
    here = tangent.at(state.w)
    moved = state.w - here.pull(here.spectral(phi, state.residual))
    residual, there = tangent.outputs(moved, tangent.x) - y, tangent.at(moved, only_products=True)
    pulled, pulled_here = there.pull(residual), here.pull(residual)
    drift = there.push(pulled) - here.push(pulled_here)
    moved = moved + here.pull(here.spectral(chi, drift)) - late * elapsed * (pulled - pulled_here)
    linear_move = start.pull(start.spectral(phi, state.linear_residual))
    return _State(
        moved,
        tangent.outputs(moved, tangent.x) - y,
        state.linear_w - linear_move,
        state.linear_residual - start.push(linear_move),
    )


def _weight_of_drift(phi: SpectralFn, h: jax.Array, elapsed: jax.Array, in_steps: bool, lam: jax.Array) -> jax.Array:
    """Return χ_h(λ)."""
    late, limit = ((h - 1) / (2 * h), (h - 1) * (h - 2) / (6 * h**2)) if in_steps else (0.5, 1 / 6)
    large = elapsed * lam > SMALL_STEP
    safe = jnp.where(large, lam, 1)
    return jnp.where(large, (late * elapsed - (1 - phi(lam) / elapsed) / safe) / safe, limit * elapsed**2)


class _Tangent(NamedTuple):
    """A network and training samples, of which tangents at any parameters are taken."""

    apply: NetworkFn
    constants: Any
    restore: Callable[[jax.Array], Params]
    x: Inputs
    portion: int
    stored: bool

    def outputs(self, w: jax.Array, x: Inputs) -> jax.Array:
        """Return the outputs at all samples as one vector."""
        return self.apply(self.restore(w), self.constants, x).reshape(-1)

    def at(self, w: jax.Array, *, only_products: bool = False) -> "_Products | _Decomposed":
        """Return the tangent at some parameters, with its kernel decomposed if that is affordable and needed."""
        products = _Products(self, w)
        if only_products or not self.stored:
            return products
        network = Network(self.apply, self.restore(w), self.constants)
        theta = kernel_matrix(network, self.x)
        eigenvalues, eigenvectors = jnp.linalg.eigh((theta + theta.T) / 2)
        # Rounding makes eigenvalues that are 0 negative, and a filter may grow there.
        return _Decomposed(self, w, theta, jnp.maximum(eigenvalues, 0), eigenvectors)


class _Products(NamedTuple):
    """The tangent at some parameters: products with its Jacobian and the transpose."""

    tangent: _Tangent
    w: jax.Array

    def pull(self, v: jax.Array) -> jax.Array:
        """Return Jᵀ v."""
        t = self.tangent
        return pull_back(t.apply, t.restore(self.w), t.constants, t.x, v, t.portion)

    def push(self, direction: jax.Array, x: Inputs | None = None) -> jax.Array:
        """Return J d, at the training samples unless others are given."""
        t = self.tangent
        samples = t.x if x is None else x
        return push_forward(t.apply, t.restore(self.w), t.constants, samples, t.restore(direction), t.portion)

    def kernel_product(self, v: jax.Array) -> jax.Array:
        """Return Θ v."""
        return self.push(self.pull(v))

    def spectral(self, function: SpectralFn, v: jax.Array) -> jax.Array:
        """Return a function of Θ, applied to a vector."""
        return _lanczos(self.kernel_product, function, v)

    def largest(self, v: jax.Array) -> jax.Array:
        """Return the largest eigenvalue of Θ, from below."""
        return _largest_eigenvalue(self.kernel_product, v)


class _Decomposed(NamedTuple):
    """The same with the eigenvectors of Θ."""

    tangent: _Tangent
    w: jax.Array
    theta: jax.Array
    eigenvalues: jax.Array
    eigenvectors: jax.Array

    def pull(self, v: jax.Array) -> jax.Array:
        """Return Jᵀ v."""
        return _Products(self.tangent, self.w).pull(v)

    def push(self, direction: jax.Array, x: Inputs | None = None) -> jax.Array:
        """Return J d."""
        return _Products(self.tangent, self.w).push(direction, x)

    def kernel_product(self, v: jax.Array) -> jax.Array:
        """Return Θ v."""
        return self.theta @ v

    def spectral(self, function: SpectralFn, v: jax.Array) -> jax.Array:
        """Return a function of Θ, applied to a vector."""
        return self.eigenvectors @ (function(self.eigenvalues) * (self.eigenvectors.T @ v))

    def largest(self, v: jax.Array) -> jax.Array:
        """Return the largest eigenvalue of Θ."""
        return self.eigenvalues[-1]


def _lanczos(product: Callable[[jax.Array], jax.Array], function: SpectralFn, v: jax.Array) -> jax.Array:
    """Return f(A) v for a positive semidefinite A that is known by its products."""
    size = min(MOST_PRODUCTS, v.size)
    norm = jnp.linalg.norm(v)
    first = v / jnp.where(norm > 0, norm, 1)
    basis = jnp.zeros((size + 1, v.size), v.dtype).at[0].set(first)
    zeros = jnp.zeros(size, v.dtype)

    def coefficients(diagonal: jax.Array, beside: jax.Array) -> jax.Array:
        """Return f(T) e_1; entries that are not known yet are 0 and do not mix with the others."""
        T = jnp.diag(diagonal) + jnp.diag(beside[:-1], 1) + jnp.diag(beside[:-1], -1)
        lam, U = jnp.linalg.eigh(T)
        return U @ (function(jnp.maximum(lam, 0)) * U[0])

    def unfinished(state: tuple) -> jax.Array:
        k, _, _, _, _, left = state
        return (k < size) & (left > KRYLOV_TOLERANCE)

    def extend(state: tuple) -> tuple:
        k, basis, diagonal, beside, _, _ = state
        new = product(basis[k])
        diagonal = diagonal.at[k].set(basis[k] @ new)
        # Twice, because once leaves what rounding makes of nearly dependent vectors.
        for _ in range(2):
            new = new - basis.T @ (basis @ new)
        length = jnp.linalg.norm(new)
        y = coefficients(diagonal, beside)
        # A f(A)v has, beyond the space that is known, this part.
        left = length * jnp.abs(y[k])
        beside = beside.at[k].set(length)
        basis = basis.at[k + 1].set(new / jnp.where(length > 0, length, 1))
        return k + 1, basis, diagonal, beside, y, left

    begin = (0, basis, zeros, zeros, zeros, jnp.where(norm > 0, jnp.inf, 0.0).astype(v.dtype))
    _, basis, _, _, y, _ = jax.lax.while_loop(unfinished, extend, begin)
    return norm * (y @ basis[:-1])


def _largest_eigenvalue(product: Callable[[jax.Array], jax.Array], v: jax.Array) -> jax.Array:
    def iterate(_: Any, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        w = product(state[0])
        norm = jnp.linalg.norm(w)
        return w / jnp.where(norm > 0, norm, 1), norm

    size = jnp.linalg.norm(v)
    unit = jnp.where(size > 0, v / jnp.where(size > 0, size, 1), 1 / jnp.sqrt(v.size))
    return jax.lax.fori_loop(0, POWER_STEPS, iterate, (unit, jnp.zeros((), v.dtype)))[1]


def _measure_move(
    tangent: _Tangent, start: _Products | _Decomposed, flat: jax.Array, moved: jax.Array, initial: jax.Array
) -> jax.Array:
    """Return the relative change of the kernel, the lazy ratio and the relative move of the parameters."""
    there, here = tangent.at(moved, only_products=True), tangent.at(flat, only_products=True)
    change, size = _norm_of_change(tangent, start, moved)
    difference = lambda v: there.pull(v) - here.pull(v)  # noqa: E731
    jumped = jnp.sqrt(_largest_eigenvalue(lambda v: there.push(difference(v)) - here.push(difference(v)), initial))
    distance = jnp.linalg.norm(moved - flat)
    # ‖J(w_0)‖² is the largest eigenvalue of Θ_0.
    ratio = jnp.linalg.norm(initial) * jumped / _positive(distance * start.largest(initial))
    return jnp.stack([change / _positive(size), ratio, distance / _positive(jnp.linalg.norm(flat))])


def _norm_of_change(tangent: _Tangent, start: _Products | _Decomposed, moved: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return ‖Θ(w) − Θ_0‖ and ‖Θ_0‖ in the Frobenius norm, from random vectors if kernels are not stored."""
    if isinstance(start, _Decomposed):
        network = Network(tangent.apply, tangent.restore(moved), tangent.constants)
        return jnp.linalg.norm(kernel_matrix(network, tangent.x) - start.theta), jnp.linalg.norm(start.theta)
    there = tangent.at(moved, only_products=True)
    shape = PROBES, tangent.outputs(moved, tangent.x).size
    probes = jax.random.rademacher(jax.random.key(0), shape, moved.dtype)

    def of_probe(v: jax.Array) -> tuple[jax.Array, jax.Array]:
        before = start.kernel_product(v)
        return jnp.sum((there.kernel_product(v) - before) ** 2), jnp.sum(before**2)

    squares = jax.lax.map(of_probe, probes)
    return jnp.sqrt(squares[0].mean()), jnp.sqrt(squares[1].mean())


def _positive(value: jax.Array) -> jax.Array:
    """Return the value, or infinity for 0: what has not moved has not changed."""
    return jnp.where(value > 0, value, jnp.inf)


@partial(jax.jit, static_argnames=("apply", "portion", "stored"))
def largest_eigenvalue(
    apply: NetworkFn, params: Params, constants: Any, x: Inputs, residual: jax.Array, *, portion: int, stored: bool
) -> jax.Array:
    """Return the largest eigenvalue of the kernel of a network on the training samples."""
    flat, restore = ravel_pytree(params)
    return _Tangent(apply, constants, restore, x, portion, stored).at(flat).largest(residual)


def stores_jacobian(network: Network, rows: int) -> bool:
    """Return whether the Jacobian of a network at all training samples is small enough to be stored."""
    parameters = sum(int(np.size(leaf)) for leaf in jax.tree.leaves(network.params))
    return rows <= MOST_ROWS and rows * parameters <= LARGEST_JACOBIAN


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
