"""Lanczos: its bound holds and is not loose, it stops where it was told to, and no start or matrix upsets it.

The references are NumPy's decomposition of the whole matrix, and SciPy's own functions of matrices.
"""

import dataclasses
import warnings

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.fft
import scipy.linalg
import scipy.sparse.linalg
from hypothesis import strategies as st

from ntk_equiv import filters
from ntk_equiv.solvers import (
    DenseBlock,
    FilterAboveNoise,
    Lanczos,
    PredictionScale,
    SolverWarning,
    perturbation_gain,
)

INF = float("inf")
# How far rounding moves the eigenvalues of the matrices below, whose largest is one.
NOISE = 1e-13
SIDE = 120
# Filters, times, and how many times as large as the error the bound may be there. Measured: 1.02 to 1.5 for flow,
# descent and ridge, up to 3.2 with momentum, and up to 2.7 after 200 and 11 after 5000 steps that overshoot. At the end
# of training without a ridge, nothing is known of the spectrum but the noise, and √(smallest eigenvalue/noise) is lost.
FILTERS = {
    "flow": (filters.gradient_flow(0.7), {0.0: 1, 0.4: 2, 30.0: 2, 1e3: 2}),
    "flow to the end": (filters.gradient_flow(0.7), {INF: 2e5}),
    "descent": (filters.gradient_descent(0.5), {0: 1, 3: 2, 200: 2, 5000: 2}),
    "descent that overshoots": (filters.gradient_descent(1.9), {1: 1, 3: 2, 200: 4, 5000: 20}),
    "momentum": (filters.momentum(0.5, 0.8), {1: 1, 50: 4, 600: 5}),
    "momentum that overshoots": (filters.momentum(3.4, 0.8), {2: 2, 50: 4}),
    "ridge": (filters.ridge(0.01), {0.5: 2, 50.0: 2, INF: 2}),
    "converged": (filters.converged(), {INF: 2e5}),
}
SPECTRA = {
    "a power": np.arange(1.0, SIDE + 1) ** -1.5,
    "exponential": 0.85 ** np.arange(SIDE),
}


def normal(rng, shape, is_complex):
    return rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if is_complex else 0)


def hermitian(lam, is_complex=False, seed=0):
    Q, _ = np.linalg.qr(normal(np.random.default_rng(seed), (len(lam), len(lam)), is_complex))
    matrix = (Q * lam) @ Q.conj().T
    return (matrix + matrix.conj().T) / 2


class CountingBlock:
    """A block that counts its products."""

    def __init__(self, matrix):
        self.matrix, self.products = np.asarray(matrix), 0
        self.shape, self.dtype = self.matrix.shape, self.matrix.dtype

    def times_rows(self, rows):
        self.products += 1
        return rows @ self.matrix

    def dense(self):
        raise AssertionError("its entries are not asked for")


class CosineBlock(CountingBlock):
    """A matrix whose eigenvectors are those of the cosine transform, for sides at which no matrix should be made."""

    def __init__(self, lam):
        self.lam, self.products = lam, 0
        self.shape, self.dtype = (len(lam), len(lam)), np.dtype(float)

    def times_rows(self, rows):
        self.products += 1
        return self.function(self.lam, rows)

    @staticmethod
    def function(values, rows):
        return scipy.fft.idct(scipy.fft.dct(np.asarray(rows), norm="ortho") * values, norm="ortho")


def exact(matrix, f, times, rows):
    """Rows times f_t of a matrix, by NumPy."""
    lam, U = np.linalg.eigh(matrix)
    lam = np.maximum(lam, 0)
    factors = [np.asarray(f(jnp.asarray(lam), jnp.asarray(float(t)))) for t in times]
    return np.stack([rows @ (U * factor) @ U.conj().T for factor in factors])


def norm_of(matrix, rows):
    """√(e B e†) of each row."""
    return np.sqrt(np.maximum(np.einsum("...i,...i->...", rows @ matrix, rows.conj()).real, 0))


def rounding(f, times, values, noise=NOISE):
    """How far a perturbation of the matrix by the noise may move each row in the norm of the matrix, [T, rows]."""
    gain = perturbation_gain(f, np.asarray(times, float))[:, None]
    return noise * (1 + gain) * np.linalg.norm(values, axis=-1) + 1e-14


def solve(block, rtol, *, noise=NOISE, **settings):
    block = DenseBlock(jnp.asarray(block)) if isinstance(block, np.ndarray) else block
    return Lanczos(rtol, **settings).solve(block, noise=noise)


def applied(solved, filter, times, rows, noise=NOISE):
    """What Lanczos gives, its bound, and the function."""
    f, at, rows = FilterAboveNoise(filter, jnp.asarray(noise)), jnp.asarray(times, float), jnp.asarray(rows)
    return np.asarray(solved.apply(f, at, rows)), np.asarray(solved.error_bound(f, at, rows)), f


@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize("name", FILTERS)
def test_the_bound_holds_and_is_not_loose(name, spectrum):
    filter, looseness = FILTERS[name]
    is_complex = spectrum == "exponential"
    matrix, rows = hermitian(SPECTRA[spectrum], is_complex), normal(np.random.default_rng(5), (2, SIDE), is_complex)
    times, f = tuple(looseness), FilterAboveNoise(filter, jnp.asarray(NOISE))
    exact_values = exact(matrix, f, times, rows)
    rounded_values = rounding(f, times, exact_values)
    for t, expected, rounded in zip(times, exact_values, rounded_values, strict=True):
        ratios = []
        for rtol in (1e-1, 1e-4, 1e-8):
            values, bound, _ = applied(solve(matrix, rtol), filter, (t,), rows)
            error = norm_of(matrix, values[0] - expected)
            assert (error <= bound[0] + rounded).all(), (t, rtol)
            # The stopping rule, for a scale of one.
            assert (bound[0] <= rtol * np.linalg.norm(rows, axis=1)).all(), (t, rtol)
            ratios += (bound[0] / np.maximum(error, 1e-300))[bound[0] > 10 * rounded].tolist()
        assert max(ratios, default=0) <= looseness[t], (t, ratios)


def test_the_bound_at_late_times_holds_up_to_the_noise():
    """A spectrum that passes through the noise: what is near it is known as well as the noise allows."""
    matrix, rows = hermitian(0.9 ** np.arange(200.0)), np.ones((1, 200))
    for filter, t in (
        (filters.gradient_flow(), 1e5),
        (filters.gradient_descent(1.0), 5000),
        (filters.converged(), INF),
    ):
        values, bound, f = applied(solve(matrix, 1e-3, noise=1e-6), filter, (t,), rows, 1e-6)
        assert bool(f.is_late(jnp.asarray(float(t))))
        expected = exact(matrix, f, (t,), rows)
        cut = exact(matrix, dataclasses.replace(f, part="cut"), (t,), rows)
        error = norm_of(matrix, values - expected)
        allowed = bound + rounding(f, (t,), expected, 1e-6) + np.linalg.norm(cut, axis=-1)
        assert (error <= allowed).all()


@hypothesis.settings(max_examples=20)
@hypothesis.given(
    decades=st.floats(0.5, 8),
    tilt=st.floats(-3, 3),
    seed=st.integers(0, 1000),
    rate=st.floats(0.1, 1.98),
    steps=st.integers(2, 12),
    log_time=st.floats(0, 3),
    kind=st.sampled_from(["flow", "descent", "momentum", "ridge"]),
)
def test_the_bound_holds_after_any_number_of_steps(decades, tilt, seed, rate, steps, log_time, kind):
    """Also for starts that see the largest or the smallest eigenvalues late."""
    rng = np.random.default_rng(seed)
    lam = 10 ** -rng.uniform(0, decades, 40)
    lam = lam / lam.max()
    rows = rng.standard_normal((1, 40)) * lam ** (tilt / decades)
    t = float(np.floor(10**log_time))
    made = {
        "flow": filters.gradient_flow(rate),
        "descent": filters.gradient_descent(rate),
        "momentum": filters.momentum(rate, 0.9),
        "ridge": filters.ridge(0.01 * rate),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SolverWarning)
        values, bound, f = applied(solve(np.diag(lam), 1e-13, max_steps=steps), made[kind], (t,), rows)
    expected = exact(np.diag(lam), f, (t,), rows)
    error = norm_of(np.diag(lam), values - expected)
    assert (error <= bound + rounding(f, (t,), expected)).all()


@pytest.mark.parametrize("hidden", [1e-1, 1e-3, 1e-6])
def test_the_bound_holds_where_a_step_overshoots_unnoticed(hidden):
    """The one eigenvalue with ηλ > 1 has so little of the start that the first steps do not see it."""
    lam = np.append(np.linspace(1e-4, 0.5, 99), 1.0)
    rows = np.append(np.ones(99), hidden)[None]
    for t in (2, 3, 10, 300):
        for steps in (2, 3, 5, 9):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SolverWarning)
                solved = solve(np.diag(lam), 1e-13, max_steps=steps)
                values, bound, f = applied(solved, filters.gradient_descent(1.95), (t,), rows)
            expected = exact(np.diag(lam), f, (t,), rows)
            error = norm_of(np.diag(lam), values - expected)
            assert (error <= bound + rounding(f, (t,), expected)).all(), (t, steps)


def test_against_scipy():
    matrix, rng = hermitian(SPECTRA["a power"]), np.random.default_rng(3)
    b, t, shift = rng.standard_normal(SIDE), 40.0, 0.02
    # u' = b − Bu from u = 0, as the exponential of a matrix with one row more.
    augmented = np.block([[-matrix, b[:, None]], [np.zeros((1, SIDE + 1))]])
    flow = scipy.sparse.linalg.expm_multiply(t * augmented, np.append(np.zeros(SIDE), 1.0))[:-1]
    found, _, _ = applied(solve(matrix, 1e-10), filters.gradient_flow(), (t,), b[None])
    np.testing.assert_allclose(found[0, 0], flow, rtol=0, atol=1e-8 * np.abs(flow).max())
    ridge = scipy.linalg.solve(matrix + shift * np.eye(SIDE), b, assume_a="pos")
    found, _, _ = applied(solve(matrix, 1e-10), filters.ridge(shift), (INF,), b[None])
    np.testing.assert_allclose(found[0, 0], ridge, rtol=0, atol=1e-8 * np.abs(ridge).max())


RNG = np.random.default_rng(11)
ONE = RNG.standard_normal((1, 30))
STARTS = {
    "equal rows": np.concatenate([ONE, ONE, 3 * ONE]),
    "a zero row": np.concatenate([ONE, 0 * ONE]),
    "zero rows": np.zeros((2, 30)),
    "no rows": np.zeros((0, 30)),
    "eigenvectors": np.eye(30)[[3, 7]],
    "more rows than columns": RNG.standard_normal((41, 30)),
    "several portions": RNG.standard_normal((70, 30)),
    "rows of very different size": ONE * np.array([[1e-9], [1.0], [1e9]]) + RNG.standard_normal((3, 30)),
}


@pytest.mark.parametrize("start", STARTS)
def test_starts_that_do_not_span_new_directions(start):
    rows, lam = STARTS[start], np.append(np.zeros(5), np.linspace(0.2, 1.0, 25))
    solved = solve(np.diag(lam), 1e-10)
    for filter, times in ((filters.gradient_flow(), (0.0, 0.5, 1e3)), (filters.converged(), (INF,))):
        values, bound, f = applied(solved, filter, times, rows)
        expected = exact(np.diag(lam), f, times, rows)
        assert values.shape == expected.shape
        assert bound.shape == (len(times), len(rows))
        scale = np.linalg.norm(expected, axis=-1, keepdims=True)
        assert (np.abs(values - expected) <= 1e-8 * scale).all()
        np.testing.assert_array_equal(values[:, np.linalg.norm(rows, axis=1) == 0], 0)


def test_a_block_of_one_row_and_a_block_of_zeros():
    one = solve(np.array([[2.0]]), 1e-8)
    values, bound, _ = applied(one, filters.gradient_flow(), (0.5, INF), np.array([[3.0]]))
    np.testing.assert_allclose(values[:, 0, 0], [1.5 * (1 - np.exp(-1)), 1.5], rtol=1e-12)
    np.testing.assert_array_equal(bound, 0)
    nothing = solve(np.zeros((4, 4)), 1e-8)
    values, bound, _ = applied(nothing, filters.gradient_flow(0.5), (3.0, INF), np.ones((1, 4)))
    np.testing.assert_allclose(values[:, 0], [np.full(4, 1.5), np.zeros(4)], rtol=1e-12)
    np.testing.assert_array_equal(bound, 0)


def test_a_block_of_nothing_but_rounding():
    solved = solve(1e-15 * hermitian(np.linspace(-1.0, 1.0, 9)), 1e-8)
    values, _, _ = applied(solved, filters.gradient_flow(), (2.0, INF), np.ones((1, 9)))
    np.testing.assert_allclose(values[:, 0], [np.full(9, 2.0), np.zeros(9)], rtol=1e-12)


def test_real_rows_times_a_complex_block():
    matrix, rows = hermitian(np.linspace(0.2, 1.0, 12), is_complex=True), np.ones((1, 12))
    values, _, f = applied(solve(matrix, 1e-10), filters.gradient_flow(), (3.0,), rows)
    np.testing.assert_allclose(values, exact(matrix, f, (3.0,), rows), rtol=0, atol=1e-9)


def test_parts_of_a_filter():
    matrix, rows = hermitian(np.linspace(0.2, 1.0, 40)), np.ones((2, 40))
    solved, t = solve(matrix, 1e-10), jnp.array([4.0])
    for part in ("coefficients", "fit", "residual"):
        f = FilterAboveNoise(filters.gradient_flow(), jnp.asarray(NOISE), part=part)
        np.testing.assert_allclose(solved.apply(f, t, jnp.asarray(rows)), exact(matrix, f, t, rows), rtol=0, atol=1e-8)


def test_later_times_extend_the_same_space():
    block = CountingBlock(hermitian(SPECTRA["a power"]))
    solved, rows = solve(block, 1e-6), np.random.default_rng(5).standard_normal((2, SIDE))
    applied(solved, filters.gradient_flow(), (1.0,), rows)
    early = block.products
    applied(solved, filters.gradient_flow(), (100.0,), rows)
    late = block.products
    alone = CountingBlock(block.matrix)
    applied(solve(alone, 1e-6), filters.gradient_flow(), (100.0,), rows)
    assert 2 < early < late
    # Checks of the bound come after other numbers of steps, but none is taken twice.
    assert late <= 1.2 * alone.products + 1
    applied(solved, filters.gradient_flow(), (0.5, 1.0, 100.0), rows)
    applied(solved, filters.ridge(0.1), (2.0,), rows)
    assert block.products == late


def test_rows_of_zeros_of_other_kinds_are_told_apart():
    solved = solve(hermitian(np.linspace(0.2, 1.0, 8), is_complex=True), 1e-6)
    for rows in (np.zeros((1, 8), complex), np.zeros((2, 8))):
        values, bound, _ = applied(solved, filters.gradient_flow(), (1.0,), rows)
        assert values.shape == (1, *rows.shape)
        assert bound.shape == (1, len(rows))


@pytest.mark.parametrize("steps", [2, 5])
def test_a_limit_on_steps_is_kept_and_said(steps):
    block = CountingBlock(hermitian(SPECTRA["a power"]))
    rows = np.random.default_rng(5).standard_normal((2, SIDE))
    solved = solve(block, 1e-8, max_steps=steps)
    with pytest.warns(SolverWarning, match=rf"stopped after {steps} steps \(`max_steps`\)"):
        values, bound, f = applied(solved, filters.gradient_flow(), (30.0,), rows)
    assert block.products <= steps
    expected = exact(block.matrix, f, (30.0,), rows)
    error = norm_of(block.matrix, values - expected)
    assert (error <= bound).all()
    assert (bound > 1e-8 * np.linalg.norm(rows, axis=1)).all()
    assert (bound <= 20 * error).all()


# A top that decays, and below it many eigenvalues that steps resolve slowly.
HARD = np.concatenate([10.0 ** -np.linspace(0, 4, 40), np.linspace(1e-4, 2e-5, 260)])


@pytest.fixture
def small_preconditioner(monkeypatch):
    """Systems of this size are preconditioned, too, and sooner."""
    monkeypatch.setattr("ntk_equiv.solvers._lanczos.PRECONDITIONER_RANK", 64)
    monkeypatch.setattr("ntk_equiv.solvers._lanczos.STEPS_BEFORE_PRECONDITIONING", 8)


@pytest.mark.parametrize("name", ["ridge", "converged"])
def test_the_end_of_training_is_preconditioned(name, small_preconditioner, monkeypatch):
    filter, shift = (filters.ridge(1e-5), 1e-5) if name == "ridge" else (filters.converged(), 0.0)
    rows = np.random.default_rng(2).standard_normal((2, len(HARD)))
    expected = CosineBlock.function(1 / (HARD + shift), rows)
    products = {}
    for preconditioned in (True, False):
        if not preconditioned:
            monkeypatch.setattr("ntk_equiv.solvers._lanczos.STEPS_BEFORE_PRECONDITIONING", 10**6)
        block = CosineBlock(HARD)
        values, bound, _ = applied(solve(block, 1e-3, noise=1e-12), filter, (INF,), rows, 1e-12)
        products[preconditioned] = block.products
        error = np.sqrt(np.sum((scipy.fft.dct(values[0] - expected, norm="ortho") ** 2) * HARD, axis=1))
        assert (error <= bound[0] + 1e-9 * np.linalg.norm(expected)).all()
        assert (bound[0] <= 1e-3 * np.linalg.norm(rows, axis=1)).all()
    assert products[True] < products[False]


@pytest.mark.parametrize("name", ["ridge", "converged"])
def test_parts_of_a_filter_where_the_end_is_preconditioned(name, small_preconditioner):
    filter, shift = (filters.ridge(1e-5), 1e-5) if name == "ridge" else (filters.converged(), 0.0)
    rows = np.random.default_rng(2).standard_normal((1, len(HARD)))
    solved = solve(CosineBlock(HARD), 1e-6, noise=1e-12)
    fit = HARD / (HARD + shift)
    for part, factor in {"coefficients": fit / HARD, "fit": fit, "residual": 1 - fit}.items():
        f = FilterAboveNoise(filter, jnp.asarray(1e-12), part=part)
        found, expected = solved.apply(f, jnp.array([INF]), jnp.asarray(rows))[0], CosineBlock.function(factor, rows)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3 * max(1e-2, np.abs(expected).max()))


@pytest.mark.parametrize("x64", [True, False])
def test_single_precision(x64):
    """Entries and products in single precision: the error is within the bound and what the rounding makes."""
    matrix = hermitian(SPECTRA["a power"]).astype(np.float32)
    rows = np.random.default_rng(5).standard_normal((2, SIDE)).astype(np.float32)
    noise = 4 * 1.2e-7 * (1 + SIDE**0.5)
    # Its name depends on the version of JAX.
    with (jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64)(x64):
        block = DenseBlock(jnp.asarray(matrix))
        solved = Lanczos(1e-4).solve(block, noise=noise)
        f = FilterAboveNoise(filters.gradient_flow(), jnp.asarray(noise, jnp.float32))
        times = jnp.asarray([1.0, 50.0], jnp.float32)
        values, bound = solved.apply(f, times, jnp.asarray(rows)), solved.error_bound(f, times, jnp.asarray(rows))
        assert values.dtype == jnp.float32
        values, bound = np.asarray(values, float), np.asarray(bound, float)
    matrix = matrix.astype(float)
    f = FilterAboveNoise(filters.gradient_flow(), jnp.asarray(1e-30))
    expected = exact(matrix, f, (1.0, 50.0), rows.astype(float))
    error = norm_of(matrix, values - expected)
    assert (error <= bound + rounding(f, (1.0, 50.0), expected, 2e-7)).all()
    assert (bound <= 1e-4 * np.linalg.norm(rows, axis=1)).all()


def test_what_single_precision_cannot_do_is_refused():
    block = DenseBlock(jnp.eye(3, dtype=jnp.float32))
    with pytest.raises(ValueError, match=r"`rtol` must be at least 9\.5e-07, got 1\.0e-08.*double precision"):
        Lanczos(1e-8).solve(block)
    Lanczos(1e-8, atol=1e-3).solve(block)
    Lanczos(1e-6).solve(block)


def test_other_functions_are_refused():
    solved = solve(np.eye(3), 1e-6)
    for f in (FilterAboveNoise(filters.custom(lambda lam, t: t * lam), jnp.asarray(NOISE)), filters.gradient_flow()):
        with pytest.raises(ValueError, match=r"`filter` must be one of `ntk_equiv.filters`.*solvers\.Eigh\(\)"):
            solved.apply(f, jnp.array([1.0]), jnp.ones((1, 3)))


def test_a_matrix_with_negative_eigenvalues_is_refused():
    solved = solve(hermitian(np.linspace(-0.3, 1.0, 30)), 1e-6)
    with pytest.raises(ValueError, match="`kernel_fn` must be positive semidefinite, got an eigenvalue of at most -0"):
        applied(solved, filters.gradient_flow(), (1.0,), np.ones((1, 30)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rtol": -1.0}, "`rtol`"),
        ({"rtol": 0.0}, "positive unless `atol` is"),
        ({"atol": -1.0}, "`atol`"),
        ({"max_steps": 0}, "`max_steps` must be a positive integer"),
        ({"max_steps": 1}, "`max_steps` must be at least 2"),
        ({"storage": ""}, "`storage` must be a place for tiles"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises((ValueError, TypeError), match=message):
        Lanczos(**settings)


def test_what_is_allowed_follows_the_scale_of_predictions():
    matrix, rows = hermitian(SPECTRA["a power"]), np.random.default_rng(5).standard_normal((1, SIDE))
    f, t = FilterAboveNoise(filters.gradient_flow(), jnp.asarray(NOISE)), jnp.array([30.0])
    scale = PredictionScale(rows=400, diagonal=9.0, weight=0.25)
    for rtol, atol in ((1e-2, 0.0), (0.0, 1e-3), (1e-6, 1e-1)):
        solved = Lanczos(rtol, atol=atol).solve(DenseBlock(jnp.asarray(matrix)), noise=NOISE, scale=scale)
        allowed = rtol * np.linalg.norm(rows) / 60 + atol / 1.5
        assert allowed / 1e4 < float(solved.error_bound(f, t, jnp.asarray(rows))[0, 0]) <= allowed


def test_the_largest_eigenvalue_is_bounded_sharply():
    for is_complex in (False, True):
        lowest, largest = solve(hermitian(SPECTRA["a power"], is_complex), 1e-6).extremes()
        assert float(lowest) == 0
        assert 1 - 1e-12 <= float(largest) <= 1 + 1e-6


def test_progress_is_shown_when_asked_for(capsys):
    solved = solve(hermitian(SPECTRA["exponential"]), 1e-6, progress=True)
    applied(solved, filters.gradient_flow(), (10.0,), np.ones((70, SIDE)))
    shown = capsys.readouterr().err
    assert "steps of Lanczos" in shown
    assert "portions of rows" in shown
    assert "of what is allowed" in shown
