"""What training with a loss needs of the data: labels at all samples, Θ for training, and 𝒦 for drawing members.

Members begin as functions from the NNGP law. On the training samples, with w independent normal numbers,

    f_0(X) = √𝒦 w,        and elsewhere        f_0(x) = 𝒦(x, X) 𝒦^(−½) w + r(x),

where r is normal, independent of w, with the covariance 𝒦(x, x') − 𝒦(x, X) 𝒦⁻¹ 𝒦(X, x'). Eigenvalues of 𝒦 that are
zero up to rounding are left out of 𝒦^(−½).
"""

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv._check import positive_integer, real_array, refusal
from ntk_equiv._gram import evaluate_gram, kernel_diagonal
from ntk_equiv._losses import LossFn, loss_function
from ntk_equiv._typing import Inputs, Scalar, SplitKernel
from ntk_equiv.infinite import _moments
from ntk_equiv.infinite._blocks import GramBlocks, coefficients, irreps_of, solve_blocks
from ntk_equiv.infinite._loss_training import GroupMatrix
from ntk_equiv.infinite._training_set import TrainingSet
from ntk_equiv.orbits import AugmentedSet, samples_and_labels
from ntk_equiv.solvers import DenseBlock, Eigh, SolvedBlock, noise_level


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


# Kernels


@dataclasses.dataclass(frozen=True, eq=False)
class Kernels:
    """The kernels of the training set.

    Attributes:
        kernel: the kernel function.
        blocks: 𝒦 block by block, solved, with Θ beside it.
        theta: Θ.
        root: √𝒦.
        inverse_root: 𝒦^(−½) on the range of 𝒦.
    """

    kernel: SplitKernel
    blocks: GramBlocks
    theta: GroupMatrix
    root: GroupMatrix
    inverse_root: GroupMatrix

    @classmethod
    def evaluate(cls, kernel: SplitKernel, data: TrainingSet) -> "Kernels":
        """Evaluate both kernels on the training set, and decompose 𝒦."""
        blocks = solve_blocks(kernel, data, Eigh(), range(len(irreps_of(data.group))), get=("nngp", "ntk"))
        noise = blocks.noise
        theta = GroupMatrix.from_blocks((irrep, block.other.dense()) for irrep, block in blocks if block.other)
        solved = [(irrep, block.solved) for irrep, block in blocks]
        root = function_of(solved, lambda lam: jnp.sqrt(jnp.maximum(lam, 0)))
        return cls(kernel, blocks, theta, root, function_of(solved, lambda lam: _inverse_root(lam, noise)))

    @property
    def data(self) -> TrainingSet:
        """The training set."""
        return self.blocks.data

    def spectral_functions(self) -> tuple[GroupMatrix, GroupMatrix, GroupMatrix, GroupMatrix]:
        """Return P, the projection on the range of Θ, and there √Θ, Θ⁻¹ and Θ^(−½): the decomposition is computed."""
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

    def draw(self, keys: jax.Array, outputs: int) -> tuple[jax.Array, jax.Array]:
        """Return f_0(X) and 𝒦^(−½)w of members, one for each key, [order, n, members · outputs]."""
        shape = (self.data.order, self.data.n, outputs)
        normal = jax.vmap(lambda key: jax.random.normal(key, shape, self.root.matrices[0].real.dtype))(keys)
        w = jnp.moveaxis(normal, 0, 2).reshape(*shape[:2], -1)
        return _times(self.root, w), _times(self.inverse_root, w)

    def rows(self, x: Inputs) -> Iterator[tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]]]:
        """Yield for portions of test samples conj(û) of Θ and of 𝒦, each for all irreps."""
        for portion in _moments.portions(self.blocks, x):
            hats = list(_moments.coefficients_of_rows(self.kernel, self.blocks, portion, _moments.BOTH))
            yield tuple(theta for theta, _ in hats), tuple(nngp for _, nngp in hats)

    def remaining_covariance(self, x: Inputs) -> jax.Array:
        """Return the covariance of r, [m, m]."""
        known = [self._whitened(nngp) for _, nngp in self.rows(x)]
        whole = [jnp.concatenate(parts) for parts in zip(*known, strict=True)]
        total = evaluate_gram(self.kernel, x, None, "nngp")
        for weight, rows in zip(self.root.weights, whole, strict=True):
            total = total - weight * _moments.real_inner(rows, rows)
        return (total + total.T) / 2

    def remaining_variance(self, x: Inputs) -> jax.Array:
        """Return the variance of r, [m]."""
        found = []
        for _, nngp in self.rows(x):
            pairs = zip(self.root.weights, self._whitened(nngp), strict=True)
            found.append(sum(weight * jnp.sum(jnp.abs(rows) ** 2, axis=(1, 2)) for weight, rows in pairs))
        return jnp.maximum(kernel_diagonal(self.kernel, x).reshape(-1) - jnp.concatenate(found), 0)

    def _whitened(self, nngp: tuple[jax.Array, ...]) -> list[jax.Array]:
        return [hat @ matrix for hat, matrix in zip(nngp, self.inverse_root.matrices, strict=True)]


@jax.jit
def inner_with_rows(matrix: GroupMatrix, hats: tuple[jax.Array, ...], v: jax.Array) -> jax.Array:
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
