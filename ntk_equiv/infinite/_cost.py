"""What an ensemble costs, said before any work; and which solver that speaks for.

With n base samples under a group of order g, and blocks of d·n rows for the irreps that are needed (times positions):

    kernels     g n²/2 pairs of samples                             once; for `storage="recompute"` in every step
    memory      Σ 2 (dn)² numbers, and those of LAPACK              `Eigh`
                Σ (dn)²/2 numbers                                   `Lanczos`
    algebra     Σ (dn)³, as long as a few products of matrices      `Eigh`
                Σ (dn)² for every step, of which there are some     `Lanczos`
    test        g n m pairs for m test samples

The time of a pair is measured on a few of them, and so is that of a product of matrices. How many steps Lanczos takes
is not known beforehand: it depends on the training time and on the spectrum. `STEPS` is what real data took at times
at which they are fitted well.
"""

import math
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv import filters
from ntk_equiv._check import is_concrete, one_of, whole_number
from ntk_equiv._gram import ENTRIES_PER_TILE, gram, kernel_function, split_kernel
from ntk_equiv._machine import free_memory, in_bytes
from ntk_equiv._typing import Inputs, KernelFunction, SplitKernel
from ntk_equiv.infinite._blocks import decomposition_memory, irrep_of, irreps_in_labels, irreps_of
from ntk_equiv.infinite._symmetry import choose_training_set
from ntk_equiv.infinite._training_set import TrainingSet
from ntk_equiv.solvers import Eigh, Lanczos, Solver, check_solver

# A block with more rows than this is faster solved by products than by a decomposition, or by a Cholesky factor.
LARGEST_DECOMPOSED, LARGEST_FACTORED = 5000, 12_000
# How exact the solver is that is chosen for them: in single precision rounding is larger than 1e-6 anyway.
RTOL = {np.dtype("float32"): 1e-4, np.dtype("float64"): 1e-6}
# Steps of an iterative solver; at late times it takes more, at early ones fewer.
STEPS = 30
# An eigendecomposition takes about as long as so many products of matrices of its size.
PRODUCTS_PER_DECOMPOSITION = 5
# Reading tiles, in bytes per second; few rows are multiplied at a time, so reading is what takes time.
BYTES_PER_SECOND = 3e9
# Samples on each side when pairs are timed: at first, and at most.
FIRST_TIMED, MOST_TIMED = 4, 800
# A measurement of few pairs counts if it takes so many seconds: shorter ones are mostly overhead.
RELIABLE_SECONDS = 0.5


class Cost(NamedTuple):
    """What it takes to fit an ensemble, and to predict its mean.

    Attributes:
        pairs: how many pairs of samples kernels are evaluated for.
        size: how many bytes the blocks take, where they are kept.
        seconds: roughly how long it takes on this computer.
        solver: the solver that is taken.
        place: where the blocks are kept: "memory", "recompute" for nowhere, or a folder.
        reason: why this solver.
        fits: whether the blocks fit there.

    Example:
        >>> from ntk_equiv import solvers
        >>> from ntk_equiv.infinite import Cost
        >>> print(Cost(2_000_000, 16_000_000, 0.5, solvers.Eigh(), "memory", "blocks are small", fits=True))
        2e+06 pairs of samples; blocks of 16 MB are kept in memory; roughly 500 ms with Eigh(), because blocks are small
    """

    pairs: int
    size: int
    seconds: float
    solver: Solver
    place: str
    reason: str
    fits: bool

    def __str__(self) -> str:
        where = {"memory": "in memory", "recompute": "nowhere, evaluated in every step"}.get(self.place, self.place)
        kept = f"blocks of {in_bytes(self.size)} are kept {where}"
        told = "" if self.fits else " (they do not fit)"
        return (
            f"{self.pairs:.3g} pairs of samples; {kept}{told}; roughly {duration(self.seconds)} with {self.solver}, "
            f"because {self.reason}"
        )


def estimate_cost(
    kernel_fn: KernelFunction | tuple,
    train: Any,
    filter: Any = None,
    *,
    method: str = "auto",
    solver: Solver | str = "auto",
    covariance: bool = False,
    test_samples: int = 0,
) -> Cost:
    """Say what `InfiniteEnsemble` will cost with the same arguments. A few pairs of samples are evaluated for it.

    Args:
        kernel_fn: as for `InfiniteEnsemble`.
        train: likewise.
        filter: likewise.
        method: likewise.
        solver: likewise.
        covariance: whether covariances are wanted too, which need the blocks of every irrep, and those of 𝒦.
        test_samples: how many samples predictions are wanted for.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import augment, groups, reps, stax
        >>> from ntk_equiv.infinite import estimate_cost
        >>> _, _, kernel_fn = stax.serial(stax.Dense(64), stax.Relu(), stax.Dense(1))
        >>> x = jnp.linspace(0.0, 1.0, 4000).reshape(1000, 4)
        >>> cost = estimate_cost(kernel_fn, augment(x, x[:, 0], reps.regular(groups.cyclic(4))), test_samples=10)
        >>> cost.pairs, cost.solver, cost.fits
        (2042000, Eigh(), True)
    """
    kernel = split_kernel(kernel_function(kernel_fn))
    filter = filters.gradient_flow() if filter is None else filters.custom(filter)
    test_samples = whole_number(test_samples, "test_samples")
    one_of(covariance, (False, True), "covariance")
    data = choose_training_set(method, kernel, train)
    numbers = range(len(irreps_of(data.group))) if covariance else irreps_in_labels(data)
    chosen = check_solver(solver, auto=choose_solver(data, numbers, filter))
    reason = solver_reason(data, numbers, filter, chosen)
    return _cost(kernel, data, numbers, chosen, reason, covariance, test_samples)


def _cost(
    kernel: SplitKernel,
    data: TrainingSet,
    numbers: Iterable[int],
    solver: Solver,
    reason: str,
    covariance: bool,
    test_samples: int,
) -> Cost:
    place = str(getattr(solver, "storage", "memory"))
    irreps = [irrep_of(data.group, number) for number in numbers]
    kernels = 2 if covariance else 1
    sides = [irrep.sigma.shape[1] * data.rows for irrep in irreps]
    half = data.order * data.n * (data.n + 1) // 2
    test_pairs = data.order * data.n * test_samples
    pair, by_products = seconds_per_pair(kernel, data.x, half + test_pairs), isinstance(solver, Lanczos)
    passes = STEPS if place == "recompute" else 1
    seconds = pair * kernels * (passes * half + test_pairs)
    if by_products:
        size = triangles_memory(data, numbers) * kernels
        seconds += 0 if place == "recompute" else STEPS * size / BYTES_PER_SECOND
    else:
        size = decomposition_memory(data, solver, irreps, kernels)
        seconds += PRODUCTS_PER_DECOMPOSITION * seconds_per_product() * sum(side**3 for side in sides)
    fits = place != "memory" or size <= free_memory()
    return Cost(
        passes * half * kernels + test_pairs, 0 if place == "recompute" else size, seconds, solver, place, reason, fits
    )


def choose_solver(data: TrainingSet, numbers: Iterable[int], filter: filters.Filter, *, matrices: int = 1) -> Solver:
    """Return a decomposition while that is faster and fits into memory, and else an iterative solver.

    Args:
        data: the training set.
        numbers: those of the irreps that are needed.
        filter: how the ensemble is trained.
        matrices: how many matrices are kept for each block.
    """
    if _why_products(data, tuple(numbers), filter, matrices) is None:
        return Eigh()
    # In memory, or not at all: to evaluate kernels in every step, or to fill a disk, is for users to decide.
    return Lanczos(RTOL.get(np.dtype(data.y.dtype), 1e-4))


def solver_reason(
    data: TrainingSet, numbers: Iterable[int], filter: filters.Filter, solver: Solver, *, matrices: int = 1
) -> str:
    """Return why a solver is used for blocks of some irreps; arguments as for `choose_solver`."""
    why = _why_products(data, tuple(numbers), filter, matrices)
    if not isinstance(solver, Lanczos if why else Eigh):
        return "it was asked for"
    return why or f"the largest block has {_largest_side(data, numbers)} rows, which are decomposed fast"


def _why_products(data: TrainingSet, numbers: tuple[int, ...], filter: filters.Filter, matrices: int) -> str | None:
    """Return why blocks should be solved by products; None if a decomposition is better, or all that can be had."""
    if not is_concrete((data, filter)) or filter.dynamics(1) is None:
        return None
    side = _largest_side(data, numbers)
    limit = LARGEST_DECOMPOSED if filter.shift_at_end is None else LARGEST_FACTORED
    if side > limit:
        return f"the largest block has {side} rows, and above {limit} products are faster than a decomposition"
    needed = decomposition_memory(data, Eigh(), [irrep_of(data.group, number) for number in numbers], matrices)
    if needed > free_memory():
        return f"a decomposition needs {in_bytes(needed)}, and {in_bytes(free_memory())} of memory are free"
    return None


def _largest_side(data: TrainingSet, numbers: Iterable[int]) -> int:
    return max(irrep_of(data.group, number).sigma.shape[1] for number in numbers) * data.rows


def triangles_memory(data: TrainingSet, numbers: Iterable[int]) -> int:
    """Return how many bytes the tiles on and above the diagonal take, for some irreps."""
    irreps = [irrep_of(data.group, number) for number in numbers]
    entries = sum((2 if np.iscomplexobj(irrep.sigma) else 1) * irrep.sigma.shape[1] ** 2 for irrep in irreps)
    return entries * data.rows * (data.rows + 1) // 2 * data.y.dtype.itemsize


def duration(seconds: float, /) -> str:
    """Return a time as people say it.

    >>> duration(0.00002), duration(8.4), duration(150.0), duration(150_000.0), duration(1e-7)
    ('20 µs', '8 s', '2.5 min', '42 h', 'less than 1 µs')
    """
    if seconds < 5e-7:
        return "less than 1 µs"
    for unit, size, end in (("µs", 1e-6, 1e-3), ("ms", 1e-3, 1.0), ("s", 1.0, 100.0), ("min", 60.0, 6000.0)):
        if seconds < end:
            return f"{seconds / size:.0f} {unit}" if unit != "min" else f"{seconds / size:.2g} {unit}"
    return f"{seconds / 3600:.2g} h" if seconds < 3e5 else f"{seconds / 86400:.2g} days"


def seconds_per_pair(kernel: SplitKernel, x: Inputs, pairs: int) -> float:
    """Time a few pairs, and more of them where overhead would dominate and the result matters."""
    count_all = jax.tree.leaves(x)[0].shape[0]
    tile = max(
        1, math.isqrt(ENTRIES_PER_TILE // kernel.entries_per_pair(jax.tree.map(lambda leaf: jnp.asarray(leaf[:1]), x)))
    )
    # Whole tiles, so that none is evaluated in vain.
    for count in (FIRST_TIMED, tile * max(1, min(FIRST_TIMED, MOST_TIMED // tile))):
        one = jax.tree.map(lambda leaf: jnp.asarray(leaf[:count]), x)  # noqa: B023
        other = jax.tree.map(lambda leaf: jnp.asarray(leaf[-count:]), x)  # noqa: B023
        _seconds(lambda: gram(kernel, one, other, "ntk"))  # noqa: B023  (compiles)
        # The slower of two, in case the computer is busy with other things.
        seconds = max(_seconds(lambda: gram(kernel, one, other, "ntk")) for _ in range(2))  # noqa: B023
        each = seconds / min(count, count_all) ** 2
        if seconds > RELIABLE_SECONDS or count >= count_all or tile == 1 or each * pairs < 1:
            break
    return each


def seconds_per_product(size: int = 512) -> float:
    """Return the time of a product of two matrices, divided by the cube of their size."""
    # By products and not by eigenvectors, whose time varies wildly while other programs use the processor.
    half = jnp.asarray(np.random.default_rng(0).normal(size=(size, size)))
    return min(_seconds(lambda: half @ half) for _ in range(4)) / size**3


def _seconds(call: Callable[[], Any]) -> float:
    start = time.monotonic()
    jax.block_until_ready(call())
    return time.monotonic() - start
