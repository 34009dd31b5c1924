"""Functions of a block by products with it alone, each result with a bound on its error.

For rows b the solver builds the Krylov space of b and B (`solvers/_krylov.py`) and takes b f_t(B) from it, for all
times at once. It stops when the bound of `solvers/_certificate.py` says that predictions are as exact as was asked for:

    √Θ(x, x) · √(weight · e B e†)  ≤  rtol · (root mean square of the labels) + atol

Rows are treated together, up to `ROWS_AT_A_TIME` of them: a step then reads the block once for all of them, and their
common Krylov space is richer than that of each.

**The end of training** is a linear system, (B + λ₀)u = b. If it needs many steps it is preconditioned. From one product
of the block with random rows comes Nyström's approximation V Λ V† ⪯ B of the top of its spectrum, and

    P = VΛV† + μ,        M = P^(−1/2) (B + λ₀) P^(−1/2),        u = P^(−1/2) M⁻¹ P^(−1/2) b,

with μ = λ₀, or the last of the Λ where there is no ridge. With a ridge M ⪰ 1, so the norm of the residual of M bounds
the error; without one it is the plain residual over √noise, as in `solvers/_certificate.py`.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from tqdm.auto import tqdm

from ntk_equiv._check import boolean, describe, positive_integer, refusal, scalar, warn_caller
from ntk_equiv._machine import free_memory, in_bytes
from ntk_equiv.filters import Dynamics
from ntk_equiv.solvers._certificate import (
    RitzValues,
    in_double_precision,
    krylov_errors,
    perturbation_gain,
    ritz_values,
)
from ntk_equiv.solvers._krylov import KrylovSpace, keep_own
from ntk_equiv.solvers._noise import FilterAboveNoise
from ntk_equiv.solvers._protocols import BlockOperator, PredictionScale, SolvedBlock, SpectralFunction

ROWS_AT_A_TIME = 64
# The bound is computed after so many steps, and then after every step that is so much farther: it costs as much as the
# cube of the dimension of the space.
FIRST_CHECK, BETWEEN_CHECKS = 2, 1.2
# A linear system that is not solved after so many steps is preconditioned, by an approximation of this rank.
STEPS_BEFORE_PRECONDITIONING, PRECONDITIONER_RANK = 32, 512
# The part of what is allowed that may be the rounding of products: above it they are done in double precision.
ROUNDING_IN_PRODUCTS = 0.3
# `rtol` in units of eps of the entries, below which rounding is larger than what is asked for.
ATTAINABLE = 8
# How negative a Ritz value may be, in units of √eps times the largest, as for eigenvalues.
NEGATIVE = 100.0
# How many steps find the largest eigenvalue.
STEPS_FOR_EXTREMES = 24
# Bytes of Krylov spaces that are remembered.
MEMORY_OF_SPACES = 2**31


class SolverWarning(UserWarning):
    """An iterative solver stopped before it was as exact as it was asked to be. The bound says how exact it is.

    Example:
        >>> import warnings
        >>> from ntk_equiv.solvers import SolverWarning
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("error", SolverWarning)       # to stop where it matters
        ...     warnings.warn("said by `solvers.Lanczos`", SolverWarning)
        Traceback (most recent call last):
        ntk_equiv.solvers._lanczos.SolverWarning: said by `solvers.Lanczos`
    """


@dataclasses.dataclass(frozen=True)
class Lanczos:
    """The solver by Krylov spaces: for blocks that are too large to decompose, with a bound on its error.

    It needs products with a block, and nothing else of it. So the block may be larger than memory: `storage` says where
    its entries are.

    Attributes:
        rtol: the error of predictions that is allowed, relative to the root mean square of the labels.
        max_steps: the number of products with the block not to exceed; as many as it takes unless given.
        storage: where the tiles of the block are: `"memory"`; `"recompute"`, to evaluate them again for every product;
            or the path of a folder, where they stay for the next time.
        atol: an error of predictions that is allowed in any case, in units of the labels.
        progress: whether to show progress bars.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import InfiniteEnsemble, solvers, stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(64, 1.5, 0.1), stax.Relu(), stax.Dense(1))
        >>> x = jnp.linspace(-1.0, 1.0, 200)[:, None]
        >>> ens = InfiniteEnsemble(kernel_fn, (x, jnp.sin(3 * x)), solver=solvers.Lanczos(rtol=1e-3))
        >>> exact = InfiniteEnsemble(kernel_fn, (x, jnp.sin(3 * x)), solver=solvers.Eigh())
        >>> test, t = jnp.array([[0.3], [2.0]]), 10.0
        >>> error = jnp.abs(ens.mean(test, t) - exact.mean(test, t))[:, 0]
        >>> bool((error <= ens.error_bound(test, t)).all()), bool((ens.error_bound(test, t) < 2e-3).all())
        (True, True)
    """

    rtol: float = 1e-6
    max_steps: int | None = None
    storage: str | Path = "memory"
    _: dataclasses.KW_ONLY
    atol: float = 0.0
    progress: bool = dataclasses.field(default=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("rtol", "atol"):
            scalar(getattr(self, name), name, at_least=0, fix="It is the size of an error.")
        if self.rtol + self.atol == 0:
            fix = "No iterative solver is exact: choose `solvers.Eigh()`, or a small number."
            raise refusal("rtol", expected="positive unless `atol` is", got=repr(self.rtol), fix=fix)
        if self.max_steps is not None:
            positive_integer(self.max_steps, "max_steps")
            if self.max_steps < 2:
                fix = "The first product only starts the Krylov space."
                raise refusal("max_steps", expected="at least 2", got=repr(self.max_steps), fix=fix)
        if not isinstance(self.storage, str | Path) or not str(self.storage):
            fix = 'Pass "memory", "recompute", or the path of a folder.'
            raise refusal("storage", expected="a place for tiles", got=describe(self.storage), fix=fix, kind=TypeError)
        boolean(self.progress, "progress")

    def solve(
        self,
        block: BlockOperator,
        *,
        noise: Any = 0.0,
        inverse_shift: float | None = None,
        scale: PredictionScale = PredictionScale(),  # noqa: B008  (frozen)
    ) -> SolvedBlock:
        """Return the block, for which nothing is computed yet."""
        attainable = ATTAINABLE * float(jnp.finfo(block.dtype).eps)
        if self.rtol < attainable and self.atol < attainable * scale.labels:
            fix = f'Entries are rounded to {block.dtype}: ask for less, or use double precision ("jax_enable_x64").'
            raise refusal("rtol", expected=f"at least {attainable:.1e}", got=f"{self.rtol:.1e}", fix=fix)
        return LanczosBlock(block, self, float(noise), scale)

    def restore(self, arrays: Mapping[str, jax.Array]) -> SolvedBlock:
        """Refuse: nothing is stored."""
        raise refusal("solver", expected="one whose blocks can be stored", got=repr(self), fix="Use `solvers.Eigh()`.")

    def precision(self, example: jax.Array) -> float:
        """Return eps of double precision: products are rounded like the entries, all else is done in double."""
        return float(np.finfo(np.float64).eps)

    def memory(self, side: int, *, is_complex: bool) -> int:
        """Return the bytes of a Krylov space of a few hundred rows."""
        return 8 * (2 if is_complex else 1) * side * min(side, 512)


class LanczosBlock:
    """A Hermitian block of which nothing is known but its products. It works in the basis of the block.

    It remembers the Krylov spaces of the last rows, so that other times and bounds cost nothing new, or a few steps
    more. As a pytree it has no leaves.

    Attributes:
        block: B.
        settings: the solver.
        noise: how far rounding may have moved the small eigenvalues of B.
        scale: what errors amount to in predictions.
    """

    inverse_shift: ClassVar[None] = None
    traceable: ClassVar[bool] = False
    spectrum: ClassVar[None] = None

    def __init__(self, block: BlockOperator, settings: Lanczos, noise: float, scale: PredictionScale):
        self.block, self.settings, self.noise, self.scale = block, settings, noise, scale
        # Processes that share a block must take the same number of steps.
        self.agree_on = getattr(block, "agree_on", keep_own)
        self._spaces: dict[bytes, _Solution] = {}
        self._preconditioners: dict[float, _Preconditioner] = {}
        self._extremes: tuple[jax.Array, jax.Array] | None = None

    def to_basis(self, rows: jax.Array) -> jax.Array:
        """Return rows as they are."""
        return rows

    def from_basis(self, rows: jax.Array) -> jax.Array:
        """Return rows as they are."""
        return rows

    def matrix_in_basis(self, block: BlockOperator) -> BlockOperator:
        """Return the matrix as it is."""
        return block

    def apply(self, f: SpectralFunction, times: jax.Array, rows: jax.Array) -> jax.Array:
        """Return rows times f_t(B), as exact as the settings say."""
        flat, at = np.asarray(rows).reshape(-1, rows.shape[-1]), np.asarray(times, float)
        parts = [self._solution(f, at, part).apply(f, at) for part in self._portions(flat)]
        values = np.concatenate([np.zeros((len(at), 0, flat.shape[1])), *parts], axis=1)
        dtype = jnp.promote_types(rows.dtype, jnp.complex64) if np.iscomplexobj(values) else rows.dtype
        return jnp.asarray(values, dtype).reshape(len(at), *rows.shape)

    def diagonal(self, f: SpectralFunction, times: jax.Array) -> None:
        """Return None: the matrix is not diagonal in this basis."""

    def extremes(self) -> tuple[jax.Array, jax.Array]:
        """Return zero, and the largest Ritz value of random rows plus its residual."""
        if self._extremes is None:
            rows = np.random.default_rng(0).standard_normal((4, self.block.shape[0]))
            space = self._space(self._multiply, rows)
            while space.products < STEPS_FOR_EXTREMES and not space.is_complete:
                space.grow()
            ritz = ritz_values(space)
            largest = ritz.values[-1] + np.linalg.norm(ritz.last[-1])
            self._extremes = jnp.zeros(()), jnp.asarray(largest, jnp.finfo(self.block.dtype).dtype)
        return self._extremes

    def log_determinant(self, shift: Any) -> jax.Array:
        """Refuse: it depends on all eigenvalues."""
        fix = "Choose `solver=solvers.Eigh()`."
        raise refusal("solver", expected="one that knows all eigenvalues", got=repr(self.settings), fix=fix)

    def error_bound(self, f: SpectralFunction, times: jax.Array, rows: jax.Array) -> jax.Array:
        """Return a bound on √(e B e†) for the error e of each row."""
        flat, at = np.asarray(rows).reshape(-1, rows.shape[-1]), np.asarray(times, float)
        parts = [self._solution(f, at, part).errors(f, at) for part in self._portions(flat)]
        bound = np.concatenate([np.zeros((len(at), 0)), *parts], axis=1)
        return jnp.asarray(bound.reshape(len(at), *rows.shape[:-1]), jnp.finfo(self.block.dtype).dtype)

    def arrays(self) -> None:
        """Return None: what it knows depends on the rows."""

    def _portions(self, rows: np.ndarray) -> Any:
        starts = range(0, len(rows), ROWS_AT_A_TIME)
        show = self.settings.progress and len(starts) > 1
        return (rows[at : at + ROWS_AT_A_TIME] for at in tqdm(starts, "portions of rows", disable=not show))

    @property
    def is_single(self) -> bool:
        """Whether entries have single precision, and products can have more."""
        return jnp.finfo(self.block.dtype).bits < 64 and hasattr(self.block, "times_rows_in_double")

    def _multiply(self, rows: np.ndarray) -> np.ndarray:
        return np.asarray(self.block.times_rows(rows))

    def _multiply_in_double(self, rows: np.ndarray) -> np.ndarray:
        return self.block.times_rows_in_double(rows)  # type: ignore[attr-defined]

    def _space(self, multiply: Callable[[np.ndarray], np.ndarray], rows: np.ndarray) -> KrylovSpace:
        is_complex = np.dtype(self.block.dtype).kind == "c"
        return KrylovSpace(multiply, rows, noise=self.noise, is_complex=is_complex, agree_on=self.agree_on)

    def _solution(self, f: SpectralFunction, times: np.ndarray, rows: np.ndarray) -> "_Solution":
        """Return what is known of these rows, after as many steps as the times need."""
        dynamics = _known_dynamics(f)
        assert isinstance(f, FilterAboveNoise)
        ended = bool(np.isinf(times).all())
        # Where only the end of training is wanted, the space may be that of a preconditioned system, and no other.
        kind = f"{rows.dtype} {rows.shape} {dynamics.shift if ended else 'any'}"
        key = hashlib.blake2b(kind.encode() + rows.tobytes()).digest()
        found = self._spaces.pop(key, None) or _Solution(self, rows)
        self._spaces[key] = found
        found.converge(f, dynamics, times)
        while len(self._spaces) > 1 and sum(one.space.memory for one in self._spaces.values()) > MEMORY_OF_SPACES:
            del self._spaces[next(iter(self._spaces))]
        return found

    def _preconditioner(self, shift: float) -> "_Preconditioner":
        if shift not in self._preconditioners:
            self._preconditioners[shift] = _Preconditioner(self._multiply, self.block.shape[0], shift, self.noise)
        return self._preconditioners[shift]


jax.tree_util.register_pytree_node(LanczosBlock, lambda block: ((), block), lambda block, _: block)


class _Solution:
    """Some rows times functions of a block, from a Krylov space that grows until the result is exact enough."""

    def __init__(self, solved: LanczosBlock, rows: np.ndarray):
        self.solved, self.rows = solved, rows
        self.space = solved._space(solved._multiply, rows)
        self.in_double = False
        self.preconditioner: _Preconditioner | None = None
        self._ritz: tuple[tuple[int, int], RitzValues] | None = None

    @property
    def ritz(self) -> RitzValues:
        """The eigenvalues of the space as it is now."""
        if self._ritz is None or self._ritz[0] != (id(self.space), self.space.products):
            self._ritz = (id(self.space), self.space.products), ritz_values(self.space)
        return self._ritz[1]

    def apply(self, f: SpectralFunction, times: np.ndarray) -> np.ndarray:
        """Return rows times f_t(B), [T, rows, n]."""
        ritz = self.ritz
        inverse = None if self.preconditioner is None else self.preconditioner.inverse
        values = in_double_precision(inverse or f, ritz.values, times)
        rows = np.einsum("ck,tk,jk->tcj", ritz.first, values, ritz.vectors.conj(), optimize=True) @ self.space.basis
        if self.preconditioner is None:
            return rows
        assert isinstance(f, FilterAboveNoise)
        # A preconditioned system gives an inverse, φ itself; its other parts follow by one product.
        coefficients = self.preconditioner.apply(rows, -0.5)
        if f.part == "coefficients":
            return coefficients
        if f.part == "cut":
            # Nothing is left out under a ridge. Without one, Ritz values of M do not say what was left out of B.
            return np.full_like(coefficients, np.nan if self.preconditioner.inverse.cut else 0)
        fit = self.solved._multiply(coefficients.reshape(-1, rows.shape[-1])).reshape(rows.shape)
        return fit if f.part == "fit" else self.rows - fit

    def errors(self, f: SpectralFunction, times: np.ndarray) -> np.ndarray:
        """Return a bound on √(e B e†), [T, rows]."""
        assert isinstance(f, FilterAboveNoise)
        if self.preconditioner is None:
            return krylov_errors(self.space, self.ritz, f, _known_dynamics(f), times)
        bound = self.preconditioner.error(self.space, self.ritz)
        return np.broadcast_to(bound, (len(times), len(bound)))

    def converge(self, f: FilterAboveNoise, dynamics: Dynamics, times: np.ndarray) -> None:
        """Grow the space until the bound is within what is allowed at all times; warn if that is not reached."""
        settings, scale = self.solved.settings, self.solved.scale
        norms = np.linalg.norm(self.rows, axis=1)
        allowed = settings.rtol * norms * scale.per_norm + settings.atol * scale.per_unit
        limit = np.inf if settings.max_steps is None else settings.max_steps
        check = max(FIRST_CHECK, len(self.space.projected) and self.space.products)
        with tqdm(desc="steps of Lanczos", disable=not settings.progress, initial=self.space.products) as bar:
            while True:
                if self.space.products >= check or self.space.is_complete or self.space.products >= limit:
                    self._check_positive()
                    excess, memory_is_short = self._state(f, times, allowed)
                    bar.set_postfix_str(f"bound at {excess:.2g} of what is allowed")
                    if excess <= 1 or self.space.is_complete:
                        return
                    if self.space.products >= limit:
                        return self._warn(excess, f"{settings.max_steps} steps (`max_steps`)")
                    if memory_is_short:
                        return self._warn(excess, f"{self.space.products} steps, for lack of memory")
                    check = max(check + 1, int(BETWEEN_CHECKS * self.space.products))
                    if self._needs_double(f, times, allowed):
                        self._restart(self.solved._multiply_in_double)
                        check = FIRST_CHECK
                        continue
                    if self._should_precondition(times):
                        self._precondition(dynamics)
                        check = FIRST_CHECK
                        continue
                self.space.grow()
                bar.update()

    def _needs_double(self, f: FilterAboveNoise, times: np.ndarray, allowed: np.ndarray) -> bool:
        """Return whether the rounding of products in single precision keeps the bound above what is allowed."""
        if self.in_double or not self.solved.is_single:
            return False
        values = in_double_precision(f, self.ritz.values, times)
        alpha = np.linalg.norm(self.ritz.first[None] * values[:, None], axis=2)
        rounding = self.solved.noise * perturbation_gain(f, times)[:, None] * alpha
        return bool((rounding > ROUNDING_IN_PRODUCTS * allowed).any())

    def _restart(self, multiply: Callable[[np.ndarray], np.ndarray]) -> None:
        """Forget the space, and go on with other products."""
        self.space, self.in_double = self.solved._space(multiply, self.rows), True

    def _should_precondition(self, times: np.ndarray) -> bool:
        steps = STEPS_BEFORE_PRECONDITIONING
        side, ended = self.solved.block.shape[0], bool(np.isinf(times).all())
        # A small block is exhausted before a preconditioner pays.
        return ended and self.preconditioner is None and self.space.products >= steps and side > 4 * PRECONDITIONER_RANK

    def _precondition(self, dynamics: Dynamics) -> None:
        """Start again, with the Krylov space of the preconditioned system."""
        self.preconditioner = self.solved._preconditioner(dynamics.shift)
        rows = self.preconditioner.apply(self.rows.astype(self.space.basis.dtype), -0.5)
        self.space = KrylovSpace(
            self.preconditioner.multiply, rows, is_complex=np.iscomplexobj(rows), agree_on=self.solved.agree_on
        )

    def _check_positive(self) -> None:
        values = self.ritz.values
        rounding = NEGATIVE * float(jnp.finfo(self.solved.block.dtype).eps) ** 0.5 * np.abs(values).max(initial=0)
        # The whole block may be nothing but rounding, where symmetry makes the kernel vanish.
        if values.min(initial=0) < -max(rounding, self.solved.noise):
            fix = "Its Gram matrix on the training samples has such an eigenvalue; rounding alone does not explain it."
            got = f"an eigenvalue of at most {values.min():.3g} where the largest is {values.max():.3g}"
            raise refusal("kernel_fn", expected="positive semidefinite", got=got, fix=fix)

    def _state(self, f: FilterAboveNoise, times: np.ndarray, allowed: np.ndarray) -> tuple[float, bool]:
        """Return the bound, relative to what is allowed, and whether there is no memory for as many steps again."""
        excess = np.max(self.errors(f, times) / np.maximum(allowed, np.finfo(float).tiny), initial=0)
        memory_is_short = self.space.memory > free_memory()
        ((excess, memory_is_short),) = self.solved.agree_on(np.array([excess, memory_is_short]))
        return float(excess), bool(memory_is_short)

    def _warn(self, excess: float, when: str) -> None:
        settings = self.solved.settings
        warn_caller(
            f"{settings} stopped after {when}, with a bound on the error that is {excess:.3g} times what is allowed. "
            "`error_bound` says how exact predictions are. Allow more steps or a larger `rtol`, or ask for earlier "
            f"times; the Krylov space takes {in_bytes(self.space.memory)}.",
            SolverWarning,
        )


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _InverseAbove:
    """1/λ above a cut, zero below: what is applied to a preconditioned system."""

    cut: float

    def __call__(self, lam: jax.Array, t: jax.Array) -> jax.Array:
        return jnp.where(lam > self.cut, 1 / jnp.where(lam > self.cut, lam, 1), 0)


class _Preconditioner:
    """P = VΛV† + μ from Nyström's approximation of a matrix B, and M = P^(−1/2) (B + λ₀) P^(−1/2).

    Args:
        multiply: returns rows times B.
        side: the number of rows of B.
        shift: λ₀.
        noise: how far rounding may have moved the small eigenvalues of B.
    """

    def __init__(self, multiply: Callable[[np.ndarray], np.ndarray], side: int, shift: float, noise: float):
        self._multiply, self.shift, self.noise = multiply, shift, noise
        rank = min(PRECONDITIONER_RANK, side)
        test = np.random.default_rng(0).standard_normal((rank, side))
        test = scipy.linalg.qr(test.T, mode="economic", check_finite=False)[0].T
        parts = [multiply(test[at : at + ROWS_AT_A_TIME]) for at in range(0, rank, ROWS_AT_A_TIME)]
        image = np.concatenate(parts)
        # A small shift, taken away again at the end, keeps Cholesky's factor of the core from failing by rounding.
        small = max(noise, np.finfo(float).eps * float(np.linalg.norm(image)) * side**0.5)
        image = image + small * test
        core = image @ test.conj().T
        factor = np.linalg.cholesky((core + core.conj().T) / 2)
        root = scipy.linalg.solve_triangular(factor, image, lower=True, check_finite=False)
        _, singular, self.vectors = scipy.linalg.svd(root, full_matrices=False, check_finite=False)
        self.top = np.maximum(singular**2 - small, 0)
        self.mu = shift if shift > noise else max(float(self.top[-1]), noise)
        cut = 0.0 if shift > noise else noise / (noise + self.mu)
        self.inverse = _InverseAbove(cut)

    def apply(self, rows: np.ndarray, power: float) -> np.ndarray:
        """Return rows times P^power."""
        change = (self.top + self.mu) ** power - self.mu**power
        return self.mu**power * rows + ((rows @ self.vectors.conj().T) * change) @ self.vectors

    def multiply(self, rows: np.ndarray) -> np.ndarray:
        """Return rows times M."""
        half = self.apply(rows, -0.5)
        return self.apply(self._multiply(half) + self.shift * half, -0.5)

    def error(self, space: KrylovSpace, ritz: RitzValues) -> np.ndarray:
        """Return a bound on √(e B e†) for each row."""
        if space.is_complete:
            return np.zeros(len(ritz.first))
        inverse = in_double_precision(self.inverse, ritz.values, np.zeros(1))[0]
        z = (ritz.first * inverse) @ ritz.last
        if self.shift > self.noise:
            return np.linalg.norm(z, axis=1)
        return np.linalg.norm(self.apply(z @ space.following, 0.5), axis=1) / self.noise**0.5


def _known_dynamics(f: SpectralFunction) -> Dynamics:
    """Return the dynamics behind a function; refuse one for which none are known, because its error is not either."""
    dynamics = f.filter.dynamics(f.entries) if isinstance(f, FilterAboveNoise) else None
    if dynamics is None:
        fix = (
            "The bound on the error needs the equation of training. Choose `solver=solvers.Eigh()` for other functions."
        )
        got = describe(f.filter if isinstance(f, FilterAboveNoise) else f)
        raise refusal("filter", expected="one of `ntk_equiv.filters` but `custom`", got=got, fix=fix)
    return dynamics
