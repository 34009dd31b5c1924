"""Eigenvectors of complex matrices are those of NumPy, in several threads at a time as well, and reach the solver."""

from concurrent.futures import ThreadPoolExecutor

import jax.numpy as jnp
import numpy as np
import pytest

from ntk_equiv import solvers
from ntk_equiv.solvers import _eigh
from ntk_equiv.solvers._lapack import eigh_complex


def hermitian(n, rank, seed=0):
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(n, rank)) + 1j * rng.normal(size=(n, rank))
    return a @ a.conj().T


def assert_decomposed(matrix, values, vectors):
    scale = np.abs(values).max()
    np.testing.assert_allclose(values, np.linalg.eigvalsh(matrix), atol=1e-13 * scale)
    np.testing.assert_allclose(vectors.conj().T @ vectors, np.eye(len(matrix)), atol=1e-13)
    np.testing.assert_allclose(matrix @ vectors, vectors * values, atol=1e-13 * scale)


@pytest.mark.parametrize(("n", "rank"), [(1, 1), (2, 2), (5, 2), (150, 160), (150, 40)])
def test_eigenvectors(n, rank):
    matrix = hermitian(n, rank)
    before = matrix.copy()
    assert_decomposed(matrix, *eigh_complex(matrix))
    assert np.array_equal(matrix, before)


def test_threads_do_not_disturb_each_other():
    matrices = [hermitian(150, 150, seed) for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        for matrix, found in zip(matrices, pool.map(eigh_complex, matrices), strict=True):
            assert_decomposed(matrix, *found)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_large_complex_blocks_are_decomposed_this_way(dtype, monkeypatch):
    calls = []
    monkeypatch.setattr(_eigh, "eigh_complex", lambda matrix: calls.append(len(matrix)) or eigh_complex(matrix))
    matrices = [jnp.asarray(hermitian(_eigh.SMALL + seed, 300, seed), dtype) for seed in range(3)]
    found = solvers.Eigh().solve_several([solvers.DenseBlock(matrix) for matrix in matrices])
    assert sorted(calls) == [_eigh.SMALL, _eigh.SMALL + 1, _eigh.SMALL + 2]
    for matrix, solved in zip(matrices, found, strict=True):
        exact = np.linalg.eigvalsh(np.asarray(matrix, complex))
        np.testing.assert_allclose(
            solved.spectrum, exact, atol=exact[-1] * {"complex64": 1e-6, "complex128": 1e-13}[dtype]
        )


def test_what_is_not_finite_has_no_eigenvalues():
    matrix = jnp.asarray(hermitian(_eigh.SMALL, 10)).at[3, 4].set(jnp.nan)
    assert np.isnan(solvers.Eigh().solve(solvers.DenseBlock(matrix)).spectrum).all()
