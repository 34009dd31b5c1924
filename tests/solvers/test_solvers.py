"""What every solver must do: apply functions of a block as NumPy does, and give the ensemble that `Eigh` gives.

A new solver is one row of `SOLVERS`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntk_equiv import InfiniteEnsemble, augment, filters, groups, reps, solvers, stax
from ntk_equiv.solvers import DenseBlock, FilterAboveNoise, SolvedBlock, Solver
from tests.solvers.tridiagonal import Tridiagonal
from tests.tolerances import REDUCTION, assert_close

INF = float("inf")
SOLVERS = {"Eigh": solvers.Eigh(), "tridiagonal": Tridiagonal(), "Lanczos": solvers.Lanczos(rtol=1e-12)}
# Those without an error but rounding.
EXACT = [solvers.Eigh(), Tridiagonal()]
# Those that know all eigenvalues, or at least their product.
WITH_DETERMINANT = EXACT
FILTERS = {
    "flow": (filters.gradient_flow(0.7), (0.0, 0.4, 30.0)),
    "descent": (filters.gradient_descent(0.1), (0, 3, 200)),
    "momentum": (filters.momentum(0.1, 0.8), (1, 50)),
    "ridge": (filters.ridge(0.2), (0.5, INF)),
    "converged": (filters.converged(), (INF,)),
}
RNG = np.random.default_rng(8)


def hermitian(size, is_complex):
    """A positive definite matrix with an eigenvalue that occurs three times, as symmetry makes them."""
    lam = np.concatenate([[0.3, 0.3, 0.3], np.linspace(0.5, 4.0, size - 3)])
    entries = RNG.standard_normal((size, size)) + (1j * RNG.standard_normal((size, size)) if is_complex else 0)
    Q, _ = np.linalg.qr(entries)
    return (Q * lam) @ Q.conj().T, lam, Q


@pytest.mark.parametrize("is_complex", [False, True], ids=["real", "complex"])
@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
def test_functions_of_a_block(solver, name, is_complex):
    matrix, lam, Q = hermitian(7, is_complex)
    filter, times = FILTERS[name]
    f, times = FilterAboveNoise(filter, jnp.asarray(1e-12)), jnp.asarray(times, float)
    rows = jnp.asarray(RNG.standard_normal((2, 3, 7)) + (1j * RNG.standard_normal((2, 3, 7)) if is_complex else 0))
    solved = solver.solve(DenseBlock(jnp.asarray(matrix)))
    found = solved.from_basis(solved.apply(f, times, solved.to_basis(rows)))
    factors = np.stack([np.asarray(filter(jnp.asarray(lam), t)) for t in times])
    expected = np.stack([np.asarray(rows) @ (Q * factor) @ Q.conj().T for factor in factors])
    assert_close(jnp.abs(found - expected) + np.abs(expected).max(), np.full(found.shape, np.abs(expected).max()))
    bound = solved.error_bound(f, times, solved.to_basis(rows))
    assert bound.shape == (len(times), 2, 3)
    error = np.asarray(found) - expected
    in_norm_of_block = np.sqrt(np.einsum("...i,ij,...j->...", error.conj(), matrix.T, error).real)
    assert (in_norm_of_block <= bound + 1e-10 * np.abs(expected).max()).all()
    if solver in EXACT:
        np.testing.assert_array_equal(bound, 0)


@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
def test_what_a_solved_block_knows(solver):
    matrix, lam, _ = hermitian(7, True)
    solved = solver.solve(DenseBlock(jnp.asarray(matrix)))
    assert isinstance(solver, Solver)
    assert isinstance(solved, SolvedBlock)
    if solved.extremes() is not None:
        lowest, largest = solved.extremes()
        assert lowest <= lam[0] + 1e-12
        assert largest >= lam[-1] - 1e-12
    if solved.spectrum is not None:
        assert_close(solved.spectrum, np.sort(lam))
        assert_close(solved.diagonal(filters.converged(), jnp.array([INF]))[0], 1 / np.sort(lam))
    if solver in WITH_DETERMINANT:
        assert_close(solved.log_determinant(0.5), np.log(lam + 0.5).sum())
    else:
        with pytest.raises(ValueError, match=r"knows all eigenvalues.*solvers\.Eigh"):
            solved.log_determinant(0.5)
    other, _, _ = hermitian(7, True)
    rows = jnp.asarray(RNG.standard_normal((2, 7)) + 0j)
    there = solved.matrix_in_basis(DenseBlock(jnp.asarray(other))).times_rows(solved.to_basis(rows))
    found, expected = solved.from_basis(there), np.asarray(rows) @ other
    assert_close(found.real, expected.real)
    assert_close(found.imag, expected.imag)


KERNEL_FN = stax.serial(stax.Dense(1, 1.4, 0.3), stax.Relu(), stax.Dense(1, 1.2, 0.1))[2]
X, X_TEST = jnp.asarray(RNG.standard_normal((3, 4))), jnp.asarray(RNG.standard_normal((5, 4)))
Y = jnp.asarray(RNG.standard_normal((3, 4)))
SHIFTS = reps.regular(groups.cyclic(4))
TRAIN = augment(X, Y, SHIFTS, SHIFTS)


def everything(ens, t):
    """All that an ensemble says of its law."""
    times = jnp.array([t, t])
    posterior = ens.nngp_posterior(X_TEST, noise=0.1)
    return [
        ens.mean(X_TEST, t),
        ens.mean(X_TEST, t, f0=lambda x: jnp.sin(x)),
        ens.cov(X_TEST, t),
        ens.cov(X_TEST, times, X + 1),
        ens.var(X_TEST, t),
        ens.var(X_TEST, jnp.full(7, t)),
        ens.sample(jax.random.key(0), X_TEST[:1], jnp.array([0.1, t]), 2),
        ens.train_mean(t),
        ens.residual(t) + ens.y,
        ens.coefficients(t),
        posterior.mean,
        posterior.cov,
    ]


@pytest.mark.parametrize(("name", "t"), [("flow", 0.4), ("flow", INF), ("ridge", INF)])
@pytest.mark.parametrize("method", ["reduced", "dense"])
@pytest.mark.parametrize("solver", [name for name in SOLVERS if name != "Eigh"])
def test_every_solver_gives_the_same_ensemble(solver, method, name, t):
    filter, both = FILTERS[name][0], (SOLVERS[solver], solvers.Eigh())
    ours, exact = (InfiniteEnsemble(KERNEL_FN, TRAIN, filter, method=method, solver=chosen) for chosen in both)
    for one, other in zip(everything(ours, t), everything(exact, t), strict=True):
        assert_close(one, other, REDUCTION)
    if SOLVERS[solver] in WITH_DETERMINANT:
        assert_close(*(ens.log_marginal_likelihood(noise=0.1) for ens in (ours, exact)), REDUCTION)
    else:
        with pytest.raises(ValueError, match=r"`solver` must be one that knows all eigenvalues.*solvers\.Eigh"):
            ours.log_marginal_likelihood(noise=0.1)


def test_the_error_of_a_solver_is_bounded_at_every_sample():
    exact = InfiniteEnsemble(KERNEL_FN, TRAIN)
    times = jnp.array([0.5, 20.0])
    np.testing.assert_array_equal(exact.error_bound(X_TEST, times), np.zeros((2, 5)))
    for method in ("reduced", "dense"):
        off = InfiniteEnsemble(KERNEL_FN, TRAIN, solver=Tridiagonal(error=1e-3), method=method)
        error = np.abs(off.mean(X_TEST, times) - exact.mean(X_TEST, times)).max(axis=-1)
        bound = off.error_bound(X_TEST, times)
        assert (error <= bound).all()
        assert (error > 1e-6).all()
        assert error.max() > bound.max() / 20  # it is not loose, either


@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
def test_a_rate_is_checked_by_any_solver(solver):
    with pytest.raises(ValueError, match="at most"):
        InfiniteEnsemble(KERNEL_FN, TRAIN, filters.gradient_descent(9.0), solver=solver)


SOLVED = {name: solver.solve(DenseBlock(jnp.eye(2))) for name, solver in SOLVERS.items()}


@pytest.mark.parametrize("solver", [name for name, solved in SOLVED.items() if solved.spectrum is None])
def test_a_spectrum_that_a_solver_does_not_know_is_refused(solver):
    with pytest.raises(ValueError, match="knows the spectrum"):
        _ = InfiniteEnsemble(KERNEL_FN, TRAIN, solver=SOLVERS[solver]).spectrum


@pytest.mark.parametrize("solver", [name for name, solved in SOLVED.items() if solved.arrays() is None])
def test_what_a_solver_cannot_restore_is_not_stored(solver, tmp_path):
    with pytest.raises(ValueError, match="can be stored"):
        InfiniteEnsemble(KERNEL_FN, TRAIN, solver=SOLVERS[solver]).save(tmp_path / "ensemble.npz")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("solver", [name for name, solved in SOLVED.items() if not solved.traceable])
def test_a_solver_outside_of_jax_is_refused_where_values_are_traced(solver):
    solver = SOLVERS[solver]
    ens = InfiniteEnsemble(KERNEL_FN, TRAIN, solver=solver)
    for call in (
        lambda: jax.jit(lambda x: ens.var(x, 1.0))(X_TEST),
        lambda: jax.grad(lambda t: ens.mean(X_TEST, t).sum())(1.0),
        lambda: jax.jit(lambda x: InfiniteEnsemble(KERNEL_FN, (x, Y), method="dense", solver=solver).y)(X),
        lambda: jax.jit(lambda x: ens.sample(jax.random.key(0), x, jnp.array([0.5, 1.0])))(X_TEST),
    ):
        with pytest.raises(TypeError, match="`solver` must be one that JAX can trace"):
            call()


@pytest.mark.parametrize("wrong", ["krylov", solvers.Eigh])
def test_what_is_no_solver_is_refused(wrong):
    with pytest.raises(TypeError, match=r"`solver` must be \"auto\" or a solver"):
        InfiniteEnsemble(KERNEL_FN, TRAIN, solver=wrong)
