"""What training with a loss needs of the data: labels at all samples, Θ for training, and 𝒦 for drawing members.

Members begin as functions from the NNGP law. On the training samples, with w independent normal numbers,

    f_0(X) = √𝒦 w,        and elsewhere        f_0(x) = 𝒦(x, X) 𝒦^(−½) w + r(x),

where r is normal, independent of w, with the covariance 𝒦(x, x') − 𝒦(x, X) 𝒦⁻¹ 𝒦(X, x'). There are two ways to it:

    `DecomposedLaw`    from a decomposition of 𝒦; eigenvalues that are zero up to rounding are left out of 𝒦^(−½)
    `KrylovLaw`        from products with 𝒦 alone, with 𝒦 + μ in place of 𝒦 on the training samples, μ = rtol² 𝒦(x, x)

So the second law is that of members whose outputs on the training samples have another, independent noise of relative
size rtol. All else is exactly as it was: the outputs elsewhere, and their covariance with those on the training
samples. The noise is the same at all samples, which keeps the law invariant. On top of it there is the error of the
Krylov space, for which `solvers/_square_root.py` has a bound.
"""

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv import filters
from ntk_equiv._check import positive_integer, real_array, refusal
from ntk_equiv._gram import evaluate_gram, kernel_diagonal
from ntk_equiv._losses import LossFn, loss_function
from ntk_equiv._typing import Inputs, Scalar, SplitKernel
from ntk_equiv.infinite import _moments
from ntk_equiv.infinite._blocks import GramBlocks, coefficients, irreps_of, solve_blocks, synthesize
from ntk_equiv.infinite._loss_training import GroupMatrix, GroupOperator
from ntk_equiv.infinite._tiles import diagonal_in_portions
from ntk_equiv.infinite._training_set import TrainingSet
from ntk_equiv.orbits import AugmentedSet, samples_and_labels
from ntk_equiv.solvers import (
    DenseBlock,
    Eigh,
    FilterAboveNoise,
    Lanczos,
    SolvedBlock,
    Solver,
    multiply_by_roots,
    noise_level,
)

# A Ritz value of several rows after many steps is below the largest eigenvalue by less than this.
RITZ_MARGIN = 1.02


class Labels(NamedTuple):
    """The labels of the base samples, with the loss that takes them.

    Attributes:
        y: labels [n, ...], as the loss takes them.
        loss: the loss of each sample.
        outputs: how many outputs the network has.
    """

    y: jax.Array
    loss: LossFn
    outputs: int

    def with_outputs(self, train: Any) -> Any:
        """Return the data with zeros in the shape of outputs in place of labels, which kernels do not depend on."""
        x = train.base_x if isinstance(train, AugmentedSet) else samples_and_labels(train)[0]
        zeros = jnp.zeros((len(self.y), self.outputs), jnp.result_type(jax.tree.leaves(x)[0], jnp.float32))
        return dataclasses.replace(train, base_y=zeros) if isinstance(train, AugmentedSet) else (x, zeros)

    def at_all_samples(self, data: TrainingSet, train: Any) -> jax.Array:
        """Return the labels of all samples, in the order of `data.samples()`."""
        if data.rep_y is not None and jnp.issubdtype(self.y.dtype, jnp.floating) and self.y.ndim > 1:
            moved = data.rep_y.orbit(self.y)
            return moved.reshape(-1, *self.y.shape[1:])
        if data.rep_y is None and isinstance(train, AugmentedSet):  # augmented, but not reduced by the group
            return dataclasses.replace(train, base_y=self.y).y
        return jnp.tile(self.y, (data.order,) + (1,) * (self.y.ndim - 1))


def prepare_labels(train: Any, loss: str | LossFn, outputs: int | None, smoothing: Scalar) -> Labels:
    """Return labels with the loss that takes them; refuse those that it cannot take.

    Args:
        train: the data.
        loss: a function, or a name.
        outputs: how many outputs the network has; None for as many as the labels have channels or classes.
        smoothing: that of labels.
    """
    y = train.base_y if isinstance(train, AugmentedSet) else samples_and_labels(train)[1]
    y = jnp.asarray(real_array(y, "y"))
    if y.ndim < 1 or not len(y):
        raise refusal("train", expected="at least one training sample", got="none", fix="Pass some.")
    counts_classes = jnp.issubdtype(y.dtype, jnp.integer)
    y = y if counts_classes or y.ndim > 1 else y[:, None]
    if not np.isfinite(y).all():
        raise refusal("y", expected="finite", got="NaN or infinity", fix="Remove or repair these samples.")
    found = max(2, int(y.max()) + 1) if counts_classes else y.shape[-1]
    outputs = found if outputs is None else positive_integer(outputs, "outputs")
    if isinstance(loss, str) and not counts_classes and outputs != found:
        fix = "There is one output for each channel of the labels."
        raise refusal("outputs", expected=f"{found}, or left out", got=outputs, fix=fix)
    like = jax.ShapeDtypeStruct((len(y), outputs), jnp.result_type(float))
    return Labels(y, loss_function(loss, like, np.asarray(y), label_smoothing=smoothing), outputs)


def count_losses(labels: Labels, y: jax.Array) -> int:
    """Return how many losses a mean is over: samples, or entries of the labels."""
    f = jax.ShapeDtypeStruct((len(y), labels.outputs), jnp.result_type(y, jnp.float32))
    return jax.eval_shape(labels.loss, f, y).size


# The law of members before training


class DrawingError(NamedTuple):
    """What a solver changes in the law of members before training, relative to the size of their outputs.

    Attributes:
        solver: a bound on the error of outputs that the solver makes: the root mean square over the training samples,
            and that at any other sample if it is larger. Rounding comes on top.
        added: the standard deviation of independent noise that is added to outputs on the training samples.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from ntk_equiv import solvers, stax
        >>> from ntk_equiv.infinite import SampledEnsemble
        >>> _, _, kernel_fn = stax.serial(stax.Dense(64, 1.5, 0.1), stax.Relu(), stax.Dense(2))
        >>> train = jnp.linspace(-1.0, 1.0, 200)[:, None], jnp.tile(jnp.array([0, 1]), 100)
        >>> members = {"key": jax.random.key(0), "members": 5}
        >>> SampledEnsemble(kernel_fn, train, **members).drawing_error            # decomposed
        DrawingError(solver=0.0, added=0.0)
        >>> ens = SampledEnsemble(kernel_fn, train, solver=solvers.Lanczos(rtol=1e-2), **members)
        >>> ens.drawing_error.solver <= 1e-2, round(ens.drawing_error.added, 3)
        (True, 0.01)
    """

    solver: float
    added: float


class Draw(NamedTuple):
    """Members before training, [order, n, columns].

    Attributes:
        start: f_0(X).
        prior: 𝒦^(−½)w.
        error: what the solver changed.
    """

    start: jax.Array
    prior: jax.Array
    error: DrawingError


@dataclasses.dataclass(frozen=True, eq=False)
class DecomposedLaw:
    """The law of members before training, from a decomposition of 𝒦.

    Attributes:
        root: √𝒦.
        inverse_root: 𝒦^(−½) on the range of 𝒦.
    """

    root: GroupMatrix
    inverse_root: GroupMatrix

    @classmethod
    def from_blocks(cls, blocks: GramBlocks) -> "DecomposedLaw":
        """Return the law from decomposed blocks of 𝒦."""
        solved = [(irrep, block.solved) for irrep, block in blocks]
        root = function_of(solved, lambda lam: jnp.sqrt(jnp.maximum(lam, 0)))
        return cls(root, function_of(solved, lambda lam: _inverse_root(lam, blocks.noise)))

    def draw(self, w: jax.Array) -> Draw:
        """Return the members that belong to normal numbers w [order, n, columns]."""
        return Draw(_times(self.root, w), _times(self.inverse_root, w), DrawingError(0.0, 0.0))

    def factors(self, hats: tuple[jax.Array, ...]) -> tuple[list[jax.Array], list[jax.Array]]:
        """Return arrays whose products are 𝒦(x, X) 𝒦⁻¹ 𝒦(X, x'), block by block, from conj(û) of 𝒦(x, X)."""
        white = [hat @ matrix for hat, matrix in zip(hats, self.inverse_root.matrices, strict=True)]
        return white, white


@dataclasses.dataclass(frozen=True, eq=False)
class KrylovLaw:
    """The law of members before training, from products with 𝒦.

    Attributes:
        blocks: those of 𝒦.
        rtol: how large the noise and the error may be, relative to outputs.
        diagonal: the largest 𝒦(x, x) on the training samples.
        shift: μ.
    """

    blocks: GramBlocks
    rtol: float
    diagonal: float
    shift: float

    @classmethod
    def from_blocks(cls, kernel: SplitKernel, blocks: GramBlocks, solver: Lanczos) -> "KrylovLaw":
        """Return the law from blocks of 𝒦 that can be multiplied."""
        diagonal = float(jnp.max(diagonal_in_portions(kernel, blocks.data.x, "nngp")))
        # Below the noise of entries there is nothing to tell apart.
        shift = max(solver.rtol**2 * diagonal, float(blocks.noise), float(np.finfo(np.float64).tiny))
        return cls(blocks, solver.rtol, diagonal, shift)

    def draw(self, w: jax.Array) -> Draw:
        """Return the members that belong to normal numbers w [order, n, columns], with 𝒦 + μ for 𝒦."""
        start, prior, columns = jnp.zeros_like(w), jnp.zeros_like(w), w.shape[-1]
        on_training, elsewhere = np.zeros(columns), np.zeros(columns)
        count, scale = len(self.blocks.by_irrep), self.diagonal or 1.0
        for irrep, block in self.blocks:
            sigma = irrep.matrices(w.dtype)
            # Each irrep may have its share of the squares of errors, and so may each of its rows.
            share = self.rtol / (count * irrep.weight * sigma.shape[1]) ** 0.5
            rows = np.asarray(coefficients(sigma, w)).conj().T
            allowed = share * (scale * self.blocks.data.size) ** 0.5, share
            found = multiply_by_roots(block.solved, rows, self.shift, allowed)  # type: ignore[arg-type]
            start, prior = (
                total + irrep.weight * synthesize(sigma, jnp.asarray(part.conj().T, sigma.dtype), columns)
                for total, part in ((start, found.root), (prior, found.inverse_root))
            )
            on_training += irrep.weight * np.sum(found.root_errors.reshape(-1, columns) ** 2, axis=0)
            elsewhere += irrep.weight * np.sum(found.inverse_root_errors.reshape(-1, columns) ** 2, axis=0)
        on_training /= scale * self.blocks.data.size
        error = float(np.sqrt(np.maximum(on_training, elsewhere).max(initial=0)))
        return Draw(start, prior, DrawingError(error, (self.shift / scale) ** 0.5))

    def factors(self, hats: tuple[jax.Array, ...]) -> tuple[list[jax.Array], list[jax.Array]]:
        """Return arrays whose products are 𝒦(x, X) (𝒦 + μ)⁻¹ 𝒦(X, x'), from conj(û) of 𝒦(x, X)."""
        dtype = self.blocks.scale.dtype
        inverse = FilterAboveNoise(filters.ridge(self.shift), jnp.zeros((), dtype))
        end = jnp.array([jnp.inf], dtype)
        solved = [block.solved.apply(inverse, end, hat)[0] for (_, block), hat in zip(self.blocks, hats, strict=True)]
        return solved, list(hats)


# Kernels


@dataclasses.dataclass(frozen=True, eq=False)
class Kernels:
    """The kernels of the training set.

    Attributes:
        kernel: the kernel function.
        blocks: 𝒦 block by block, solved, with Θ beside it.
        theta: Θ.
        law: that of members before training.
    """

    kernel: SplitKernel
    blocks: GramBlocks
    theta: GroupMatrix | GroupOperator
    law: DecomposedLaw | KrylovLaw

    @classmethod
    def evaluate(cls, kernel: SplitKernel, data: TrainingSet, solver: Solver) -> "Kernels":
        """Evaluate both kernels on the training set, where the solver wants them."""
        blocks = solve_blocks(kernel, data, solver, range(len(irreps_of(data.group))), get=("nngp", "ntk"))
        beside = [(irrep, block.other) for irrep, block in blocks if block.other is not None]
        if not isinstance(solver, Lanczos):
            theta = GroupMatrix.from_blocks((irrep, other.dense()) for irrep, other in beside)
            return cls(kernel, blocks, theta, DecomposedLaw.from_blocks(blocks))
        # The largest Ritz value may be a little too small. Entries are at most as large as those on the diagonal, which
        # bounds every eigenvalue.
        estimates = [float(solver.solve(other).extremes()[1]) for _, other in beside]  # type: ignore[index]
        bound = data.size * float(jnp.max(diagonal_in_portions(kernel, data.x, "ntk")))
        largest = jnp.asarray(min(bound, RITZ_MARGIN * max(estimates)), blocks.scale.dtype)
        return cls(kernel, blocks, GroupOperator(beside, largest), KrylovLaw.from_blocks(kernel, blocks, solver))

    @property
    def data(self) -> TrainingSet:
        """The training set."""
        return self.blocks.data

    @property
    def dtype(self) -> Any:
        """The precision of the kernels."""
        return self.blocks.scale.dtype

    def spectral_functions(self) -> tuple[GroupMatrix, GroupMatrix, GroupMatrix, GroupMatrix]:
        """Return P, the projection on the range of Θ, and there √Θ, Θ⁻¹ and Θ^(−½): the decomposition is computed."""
        assert isinstance(self.theta, GroupMatrix)
        irreps = [irrep for irrep, _ in self.blocks]
        solved = Eigh().solve_several([DenseBlock(matrix) for matrix in self.theta.matrices])
        scale = self.theta.norm_bound()
        diagonal = jnp.max(kernel_diagonal(self.kernel, self.data.x, "ntk"))
        noise = noise_level(scale, diagonal, self.data.size, solver_eps=Eigh().precision(scale))
        pairs = list(zip(irreps, solved, strict=True))
        functions: list[Callable] = [
            lambda lam: (lam > noise).astype(lam.dtype),
            lambda lam: jnp.sqrt(jnp.where(lam > noise, lam, 0)),
            lambda lam: _inverse_root(lam, noise) ** 2,
            lambda lam: _inverse_root(lam, noise),
        ]
        projection, root, inverse, inverse_root = (function_of(pairs, f) for f in functions)
        return projection, root, inverse, inverse_root

    def draw(self, keys: jax.Array, outputs: int) -> Draw:
        """Return members before training, one for each key, with members · outputs columns."""
        shape = (self.data.order, self.data.n, outputs)
        normal = jax.vmap(lambda key: jax.random.normal(key, shape, self.dtype))(keys)
        return self.law.draw(jnp.moveaxis(normal, 0, 2).reshape(*shape[:2], -1))

    def rows(self, x: Inputs) -> Iterator[tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]]]:
        """Yield for portions of test samples conj(û) of Θ and of 𝒦, each for all irreps."""
        for portion in _moments.portions(self.blocks, x):
            hats = list(_moments.coefficients_of_rows(self.kernel, self.blocks, portion, _moments.BOTH))
            yield tuple(theta for theta, _ in hats), tuple(nngp for _, nngp in hats)

    def remaining_covariance(self, x: Inputs) -> jax.Array:
        """Return the covariance of r, [m, m]."""
        found = [self.law.factors(nngp) for _, nngp in self.rows(x)]
        sides = ([jnp.concatenate(parts) for parts in zip(*side, strict=True)] for side in zip(*found, strict=True))
        total = evaluate_gram(self.kernel, x, None, "nngp")
        for weight, one, other in zip(self.theta.weights, *sides, strict=True):
            total = total - weight * _moments.real_inner(one, other)
        return (total + total.T) / 2

    def remaining_variance(self, x: Inputs) -> jax.Array:
        """Return the variance of r, [m]."""
        found = []
        for _, nngp in self.rows(x):
            pairs = zip(self.theta.weights, *self.law.factors(nngp), strict=True)
            found.append(sum(weight * jnp.sum((a * b.conj()).real, axis=(1, 2)) for weight, a, b in pairs))
        return jnp.maximum(kernel_diagonal(self.kernel, x).reshape(-1) - jnp.concatenate(found), 0)


@jax.jit
def inner_with_rows(matrix: GroupMatrix | GroupOperator, hats: tuple[jax.Array, ...], v: jax.Array) -> jax.Array:
    """Return Σ_(g,i) u(g, i) v(g, i) for rows u, given as conj(û) for all irreps, [m, columns]."""
    total: Any = 0
    for sigma, weight, hat in zip(matrix.sigmas, matrix.weights, hats, strict=True):
        d = sigma.shape[1]
        apart = coefficients(sigma, v).reshape(-1, d, v.shape[-1])
        total = total + weight * jnp.einsum("mae,eac->mc", hat, apart).real
    return total


def function_of(solved: list[tuple[Any, SolvedBlock]], f: Callable[[jax.Array], jax.Array]) -> GroupMatrix:
    """Return f of a matrix, from its solved blocks."""
    return GroupMatrix.from_blocks((irrep, _function_of_block(block, f)) for irrep, block in solved)


def _function_of_block(block: SolvedBlock, f: Callable[[jax.Array], jax.Array]) -> jax.Array:
    assert block.spectrum is not None
    basis = block.to_basis(jnp.eye(len(block.spectrum), dtype=block.spectrum.dtype))
    return block.from_basis(basis * f(block.spectrum)[None, :])


def _inverse_root(lam: jax.Array, noise: jax.Array) -> jax.Array:
    return jnp.where(lam > noise, 1 / jnp.sqrt(jnp.where(lam > noise, lam, 1)), 0)


_times: Callable[[GroupMatrix, jax.Array], jax.Array] = jax.jit(GroupMatrix.times)


@partial(jax.jit, static_argnames="outputs")
def draw_rest(keys: jax.Array, covariance_root: jax.Array, outputs: int) -> jax.Array:
    """Return r of members, one for each key, [members, m, outputs], from the root of its covariance."""
    shape = (len(covariance_root), outputs)
    normal = jax.vmap(lambda key: jax.random.normal(key, shape, covariance_root.dtype))(keys)
    return jnp.einsum("ij,kjc->kic", covariance_root, normal)
