"""Square roots of a block by products: equal to SciPy's, within bounds that are not loose."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from ntk_equiv import solvers
from ntk_equiv.solvers import DenseBlock, SolverWarning, multiply_by_roots

RNG = np.random.default_rng(2)
SIDE = 120


def matrix_with(spectrum, *, is_complex):
    shape = (len(spectrum), len(spectrum))
    random = RNG.standard_normal(shape) + (1j * RNG.standard_normal(shape) if is_complex else 0)
    basis = np.linalg.qr(random)[0]
    found = (basis * spectrum) @ basis.conj().T
    return (found + found.conj().T) / 2


def true_errors(found, matrix, rows, shift):
    """Errors of both roots: that of the first in the Euclidean norm, that of the second in the norm of A."""
    A = matrix + shift * np.eye(len(matrix))
    root = scipy.linalg.sqrtm(A).astype(A.dtype)  # some versions of SciPy return extended precision
    of_inverse = found.inverse_root - rows @ np.linalg.inv(root)
    return (
        np.linalg.norm(found.root - rows @ root, axis=1),
        np.sqrt(np.einsum("ri,ij,rj->r", of_inverse, A, of_inverse.conj()).real),
    )


@pytest.mark.parametrize("is_complex", [False, True], ids=["real", "complex"])
@pytest.mark.parametrize("shift", [1e-2, 1e-5])
@pytest.mark.parametrize("steps", [4, 8, 16])
def test_bounds_hold_and_are_not_loose(steps, shift, is_complex):
    matrix = matrix_with(np.logspace(2, -6, SIDE), is_complex=is_complex)
    block = solvers.Lanczos(max_steps=steps).solve(DenseBlock(jnp.asarray(matrix)))
    rows = RNG.standard_normal((3, SIDE))
    with pytest.warns(SolverWarning, match="square root"):
        found = multiply_by_roots(block, rows, shift, (1e-12, 1e-12))
    for true, bound in zip(
        true_errors(found, matrix, rows, shift), (found.root_errors, found.inverse_root_errors), strict=True
    ):
        assert (true <= bound).all()
        assert (bound <= 40 * true).all()


def test_it_stops_when_both_bounds_are_small_enough():
    matrix = matrix_with(np.linspace(0.1, 4, SIDE), is_complex=False)
    calls = []

    class Counted(DenseBlock):
        def times_rows(self, rows):
            calls.append(len(rows))
            return super().times_rows(rows)

    block = solvers.Lanczos().solve(Counted(jnp.asarray(matrix)))
    rows = RNG.standard_normal((2, SIDE))
    found = multiply_by_roots(block, rows, 1e-3, (1e-4, 1e-3))
    assert found.root_errors.max() <= 1e-4
    assert found.inverse_root_errors.max() <= 1e-3
    assert len(calls) < SIDE / 2


def test_a_singular_block_and_a_space_that_is_complete():
    matrix = matrix_with(np.array([3.0, 2.0, 0.0, 0.0, 0.0]), is_complex=False)
    block = solvers.Lanczos().solve(DenseBlock(jnp.asarray(matrix)), noise=1e-14)
    rows = RNG.standard_normal((1, 5))
    found = multiply_by_roots(block, rows, 0.5, (1e-12, 1e-12))
    assert (found.root_errors == 0).all()
    assert max(error.max() for error in true_errors(found, matrix, rows, 0.5)) < 1e-12
