"""The infinitely wide deep ensemble, trained.

In the paper's symbols, with Θ the neural tangent kernel, 𝒦 the NNGP kernel, X, y the (augmented) training set and
φ_t the filter of training:

    mean        μ_t(x) = Θ(x, X) φ_t(Θ(X, X)) y
    cov         Σ_t(x, x') = [1, −Θ(x, X)φ_t(Θ)] · 𝒦 on (x, X) · [1, −Θ(x', X)φ_t(Θ)]ᵀ
    member      f_t(x) = f_0(x) + Θ(x, X) φ_t(Θ) (y − f_0(X))

The covariance of two channels is zero, and the same within each, so it has no axis of channels.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ntk_equiv import filters
from ntk_equiv._check import (
    boolean,
    evaluating_what_is_known,
    function,
    is_concrete,
    one_of,
    positive_integer,
    random_key,
    refusal,
    scalar,
    single_time,
)
from ntk_equiv._gram import kernel_function, split_kernel
from ntk_equiv._positions import joint
from ntk_equiv._typing import Inputs, KernelFunction, Scalar, SplitKernel
from ntk_equiv.infinite import _moments, _statistics, _storage, _warnings
from ntk_equiv.infinite._blocks import GramBlocks, irreps_in_labels, irreps_of, solve_blocks
from ntk_equiv.infinite._cost import choose_solver, solver_reason
from ntk_equiv.infinite._symmetry import choose_training_set
from ntk_equiv.infinite._training_set import EnsembleOnData, TrainingSet, check_labels, check_outputs
from ntk_equiv.orbits import AugmentedSet
from ntk_equiv.solvers import Eigh, FilterAboveNoise, Lanczos, Solver, check_solver


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass(frozen=True, eq=False, init=False, repr=False)
class InfiniteEnsemble(EnsembleOnData):
    """The infinite ensemble trained on given data: its mean and covariance at any time, at any samples.

    The Gram matrix is decomposed once; times and test samples are then cheap. Augmented data are reduced by their
    group: n · |G|n kernel entries instead of (|G|n)², a small block for every irrep, and for the mean only the irreps
    that the labels contain. An ensemble is frozen, and a pytree that passes through `jit`.

    Attributes:
        kernel_fn: the kernels of the network.
        train: the data, as they were given.
        filter: how it is trained.
        reduction: whether the loss is ½ of the "sum" or of the "mean" of squares over all entries of the labels.
        solver: how functions of a block are applied.
        blocks: the blocks of the Gram matrix that the mean needs, solved.
        method: "dense" or "reduced".
        reason: why this method.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from ntk_equiv import InfiniteEnsemble, augment, filters, groups, reps, stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(64, 1.5, 0.1), stax.Relu(), stax.Dense(1))
        >>> x, y = jnp.array([[1.0, 2.0, 4.0], [0.0, 1.0, 5.0]]), jnp.array([1.0, -1.0])
        >>> train = augment(x, y, reps.regular(groups.cyclic(3)))
        >>> ens = InfiniteEnsemble(kernel_fn, train, filters.gradient_flow(learning_rate=1.0))
        >>> ens
        <infinite ensemble on 6 rows, reduced by cyclic(3), GradientFlow(learning_rate=1.0), reduction sum>
        >>> test = jnp.array([[1.0, 2.0, 4.0], [2.0, 4.0, 1.0], [7.0, 7.0, 0.0]])
        >>> print(ens.mean(test, jnp.array([0.0, 1.0])).round(4))
        [[0.     0.     0.    ]
         [0.8601 0.8601 0.8003]]
        >>> print(ens.var(test, 1.0).round(4))
        [0.0083 0.0083 1.7544]
        >>> ens.sample(jax.random.key(0), test, jnp.array([0.0, 1.0]), members=5).shape     # five members, twice
        (2, 5, 3)
    """

    kernel_fn: SplitKernel
    train: Any
    filter: filters.Filter
    reduction: str
    solver: Solver
    blocks: GramBlocks
    # Blocks that were completed later, such as those that a covariance needs: no leaf, and no part of the value.
    _completed: dict[str, GramBlocks] = dataclasses.field(init=False)

    def __init__(
        self,
        kernel_fn: KernelFunction | tuple,
        train: Any,
        filter: filters.Filter | Callable | None = None,
        *,
        reduction: str = "sum",
        method: str = "auto",
        solver: Solver | str = "auto",
        progress: bool = False,
        blocks: GramBlocks | None = None,
    ):
        """Decide how to use the symmetry, and solve the blocks that the mean needs.

        Args:
            kernel_fn: from `ntk_equiv.stax`, from neural-tangents, or any function with the same arguments; a whole
                network (init_fn, apply_fn, kernel_fn) stands for its third part.
            train: `augment(x, y, rep_x, rep_y)`, or a plain pair `(x, y)`; y is [n] or [n, ..., channels].
            filter: from `ntk_equiv.filters`, or any function φ(λ, t); gradient flow at rate 1 unless given.
            reduction: `"sum"` for the loss ½Σ(f−y)², as in the paper; `"mean"` for ½ of the mean over all entries of
                the (augmented) labels, as in neural-tangents.
            method: `"dense"` takes the Gram matrix of all samples as a whole; `"reduced"` uses the group that augments
                them; `"auto"` does so if that is exact, and says why if it is not.
            solver: how functions of a block are applied: one of `ntk_equiv.solvers`; `"auto"` decomposes blocks while
                that is fast and fits into memory, and takes an iterative solver beyond. `solver_reason` says why.
            progress: whether an iterative solver shows progress bars.
            blocks: `ens.blocks` of another ensemble with the same kernel, data and reduction, to solve nothing again.
                They are trusted: data and kernel are not compared.

        Raises:
            ValueError: the data, the network and the group do not fit together, or the rate makes training diverge.
        """
        kernel, filter = split_kernel(kernel_function(kernel_fn)), _as_filter(filter)
        one_of(reduction, ("sum", "mean"), "reduction")
        given = blocks is not None
        if blocks is None:
            with evaluating_what_is_known():
                blocks, solver = _solve_for_labels(kernel, train, filter, reduction, method, solver, progress=progress)
        values = {
            "kernel_fn": kernel,
            "train": train,
            "filter": filter,
            "reduction": reduction,
            "solver": check_solver(solver, auto=Eigh()),
            "blocks": blocks,
            "_completed": {},
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        if not given:  # blocks that are given may be JAX's placeholders; predictions check the rate again
            with evaluating_what_is_known():
                self._check_new()

    def __repr__(self) -> str:
        data = self.blocks.data
        how = "dense" if data.group is None else f"reduced by {data.group.label}"
        solver = "" if isinstance(self.solver, Eigh) else f", {self.solver}"
        return f"<infinite ensemble on {data.size} rows, {how}, {self.filter}, reduction {self.reduction}{solver}>"

    # The symmetry and the data

    @property
    def solver_reason(self) -> str:
        """Why this solver is used."""
        return solver_reason(self.blocks.data, self.blocks.by_irrep, self.filter, self.solver)

    @property
    def x(self) -> Inputs:
        """All training samples, [N, ...]."""
        return self.train.x if isinstance(self.train, AugmentedSet) else self.blocks.data.x

    @property
    def y(self) -> Float[jax.Array, "N *outputs"]:
        """All training labels, [N, ...]."""
        return self.train.y if isinstance(self.train, AugmentedSet) else self.blocks.data.y

    # What it predicts

    def mean(self, x: Inputs, t: Any = None, *, f0: Callable[[Inputs], Any] | None = None) -> jax.Array:
        """Return the mean prediction μ_t(x) = Θ(x, X) φ_t(Θ) y; with `f0`, that of one member.

        Args:
            x: test samples, [m, ...].
            t: the training time: a number, inf, or a vector of times; the filter's own unless given.
            f0: the function of one network at initialisation. Then f0(x) + Θ(x, X) φ_t(Θ) (y − f0(X)) is returned: the
                trajectory of that network, exact as its width goes to infinity. It may also return the outputs of
                many networks, [members, m, ...], as `predict` of an untrained run does.

        Returns:
            [m, ...] in the shape of the labels, or [members, m, ...] for many networks, with an axis of times in front
            if t is a vector.
        """
        x, (times, single) = self.check_samples(x), self._check_times(t)
        mean = self._mean(x, times, None if f0 is None else function(f0, "f0"))
        return mean[0] if single else mean

    def cov(self, x: Inputs, t: Any = None, x2: Inputs | None = None) -> jax.Array:
        """Return the covariance Σ_t(x, x2) of members, the same for every channel; zero between channels.

        Args:
            x: test samples, [m, ...].
            t: as for `mean`.
            x2: other test samples; the same unless given.

        Returns:
            [m, m2], with outputs on a grid [m, m2, h, h', w, w'], after an axis of times if t is a vector.
        """
        x, (times, single) = self.check_samples(x), self._check_times(t)
        x2 = None if x2 is None else self.check_samples(x2, "x2")
        cov = self._cov(x, times, x2)
        return cov[0] if single else cov

    def var(self, x: Inputs, t: Any = None) -> jax.Array:
        """Return the variance of members at each sample, without the covariance of different ones.

        Args:
            x: test samples, [m, ...].
            t: as for `mean`.

        Returns:
            [m], with outputs on a grid [m, h, w], after an axis of times if t is a vector.
        """
        x, (times, single) = self.check_samples(x), self._check_times(t)
        variance = self._var(x, times)
        return variance[0] if single else variance

    def sample(self, key: jax.Array, x: Inputs, t: Any = None, members: int = 1) -> jax.Array:
        """Draw members from the ensemble, as functions on the samples: N(μ_t, Σ_t), independent between channels.

        Args:
            key: a JAX random key.
            x: test samples, [m, ...].
            t: as for `mean`. Several times show the same members while they are trained.
            members: how many.

        Returns:
            [members, m, ...], each in the shape of the labels, after an axis of times if t is a vector.
        """
        random_key(key)
        positive_integer(members, "members")
        x, (times, single) = self.check_samples(x), self._check_times(t)
        data = self.blocks.data
        mean = self._mean(x, times).reshape(-1, data.channels)
        cov = joint(self._cov(x, times, None)[0]) if single else self._trajectory_cov(x, times)
        rows = _moments.draw_members(key, mean, cov, members)
        values = rows.reshape(members, len(times), -1, *data.y.shape[1:])
        return values[:, 0] if single else values.swapaxes(0, 1)

    def error_bound(self, x: Inputs, t: Any = None) -> jax.Array:
        """Return how far `mean` may be from the exact mean because of the solver; zero means up to rounding.

        Args:
            x: test samples, [m, ...].
            t: as for `mean`.

        Returns:
            [m], with outputs on a grid [m, h, w], after an axis of times if t is a vector; the same for all channels.
        """
        x, (times, single) = self.check_samples(x), self._check_times(t)
        blocks = self._blocks_for(times)
        bound = _moments.solver_error(self.kernel_fn, blocks, self._filter_above_noise(blocks), x, times)
        return bound[0] if single else bound

    def error_budget(self, x: Inputs, t: Any = None) -> _moments.ErrorBudget:
        """Return how far `mean` may be from the exact mean, by cause: the solver, rounding, and eigenvalues left out.

        Args:
            x: test samples, [m, ...].
            t: as for `mean`.

        Returns:
            A record of arrays like those of `error_bound`, which is its first part.
        """
        x, (times, single) = self.check_samples(x), self._check_times(t)
        blocks = self._blocks_for(times)
        budget = _moments.error_budget(self.kernel_fn, blocks, self._filter_above_noise(blocks), x, times)
        return jax.tree.map(lambda part: part[0], budget) if single else budget

    # What it does on the training set

    def train_mean(self, t: Any = None) -> jax.Array:
        """Return the mean prediction on the training samples, in the shape of all labels; no kernel is evaluated."""
        return self._function_of_theta(t, "fit")

    def residual(self, t: Any = None) -> jax.Array:
        """Return what is left to learn of the labels, y minus the mean prediction on the training samples."""
        return self._function_of_theta(t, "residual")

    def coefficients(self, t: Any = None) -> jax.Array:
        """Return α_t = φ_t(Θ) y, in the shape of all labels: the mean is Σ_i Θ(x, X_i) α_i."""
        return self._function_of_theta(t, "coefficients")

    @property
    def spectrum(self) -> Float[jax.Array, "N"]:
        """All eigenvalues of the Gram matrix of the training set, in increasing order, with their multiplicities."""
        return self._known_spectrum()[1]

    @property
    def rank(self) -> int:
        """How many eigenvalues of the Gram matrix are not zero up to rounding."""
        blocks, values = self._known_spectrum()
        return int(np.sum(np.asarray(values) > float(blocks.noise)))

    # What follows from it

    def nngp_posterior(self, x: Inputs, *, noise: Scalar = 0.0) -> _statistics.Posterior:
        """Return the Bayesian limit, where the last layer alone is trained: the posterior of a Gaussian process with 𝒦.

        Args:
            x: test samples, [m, ...].
            noise: the variance of the noise in the labels.

        Returns:
            Its mean, in the shape of the labels, and its covariance [m, m].
        """
        scalar(noise, "noise", at_least=0, fix="It is a variance.")
        x = self.check_samples(x)
        return _statistics.nngp_posterior(self.kernel_fn, self.blocks.data, self.solver, x, noise)

    def log_marginal_likelihood(self, *, noise: Scalar) -> Float[jax.Array, ""]:
        """Return the log-probability density of the labels under the Gaussian process of `nngp_posterior`.

            log N(y; 0, 𝒦(X, X) + noise) = −½ yᵀ(𝒦 + noise)⁻¹y − ½ log det(𝒦 + noise) − ½ N log 2π

        It is summed over channels, and compares architectures and their parameters, for example by its gradient. All
        samples of an augmented set count.

        Args:
            noise: the variance of the noise in the labels.
        """
        scalar(noise, "noise", at_least=0, fix="It is a variance.")
        return _statistics.log_marginal_likelihood(self.kernel_fn, self.blocks.data, self.solver, noise)

    def expected_mse(self, x: Inputs, y: Any, t: Any = None, *, members: int = 1) -> _statistics.ExpectedError:
        """Return the expected mean squared error of the mean of some members, E mean (f̂ − y)² = bias + variance.

        Args:
            x: test samples, [m, ...].
            y: their labels.
            t: as for `mean`.
            members: the size of the ensemble.
        """
        positive_integer(members, "members")
        x, (times, single) = self.check_samples(x), self._check_times(t)
        y = _statistics.check_test_labels(x, y, self.blocks.data)
        error = _statistics.expected_mse(self._mean(x, times), self._var(x, times), y, members)
        return jax.tree.map(lambda part: part[0], error) if single else error

    def expected_accuracy(
        self, key: jax.Array, x: Inputs, y: Any, t: Any = None, *, members: int = 1, samples: int = 1000
    ) -> _statistics.Estimate:
        """Estimate how often the mean of some members has its largest output at the right class.

        Args:
            key: a JAX random key.
            x: test samples, [m, ...].
            y: one-hot labels, or any whose largest channel is the class.
            t: a single time.
            members: the size of the ensemble.
            samples: how many draws for each test sample.
        """
        random_key(key)
        positive_integer(members, "members")
        positive_integer(samples, "samples")
        x, (times, _) = self.check_samples(x), self._check_times(single_time(t))
        y = _statistics.check_test_labels(x, y, self.blocks.data)
        if y.ndim < 2 or y.shape[-1] < 2:
            fix = "Give labels one channel for each class, as `jax.nn.one_hot` does."
            raise refusal("y", expected="labels with at least two channels", got=f"shape {y.shape}", fix=fix)
        mean, variance = self._mean(x, times)[0], self._var(x, times)[0]
        return _statistics.expected_accuracy(key, mean, variance, y, members, samples)

    # Keeping it

    def with_covariance(self) -> "InfiniteEnsemble":
        """Return the ensemble with the blocks that covariances need: those of every irrep, and of 𝒦.

        `cov`, `var` and `sample` complete an ensemble by themselves and remember it. An ensemble that is an argument of
        a compiled function cannot remember anything: complete it before.

        Example:
            >>> import jax, jax.numpy as jnp
            >>> from ntk_equiv import InfiniteEnsemble, stax
            >>> ens = InfiniteEnsemble(stax.Dense(1).kernel_fn, (jnp.array([[1.0]]), jnp.array([2.0])))
            >>> print(jax.jit(lambda ens, x: ens.var(x, 0.5))(ens.with_covariance(), jnp.array([[3.0]])).round(4))
            [3.3109]
        """
        return dataclasses.replace(self, blocks=self._blocks_for(None, covariance=True))

    def save(self, path: Any) -> None:
        """Write the solved blocks to a file `.npz`, with what is needed to recognise the data and the kernel."""
        known = self._completed.get("blocks", self.blocks)
        complete = known.has_other and len(known.by_irrep) == len(irreps_of(known.data.group))
        blocks = self._blocks_for(None, covariance=complete)
        _storage.save(path, self.kernel_fn, blocks, self.reduction, self.solver)

    @classmethod
    def load(cls, path: Any, kernel_fn: KernelFunction | tuple, train: Any, filter: Any = None) -> "InfiniteEnsemble":
        """Return the ensemble in a file, without solving anything again.

        Args:
            path: what `save` wrote.
            kernel_fn: the same kernels as before.
            train: the same data as before.
            filter: any: the blocks do not depend on how the ensemble is trained.

        Raises:
            ValueError: the file belongs to other data or another kernel, or is damaged.
        """
        kernel = split_kernel(kernel_function(kernel_fn))
        blocks, reduction, solver = _storage.load(path, kernel, train)
        ens = cls(kernel, train, _as_filter(filter), reduction=reduction, solver=solver, blocks=blocks)
        _warnings.check_rate(ens.filter, ens._loss_entries, ens.blocks, ens._largest_eigenvalue)
        return ens

    def tree_flatten(self) -> tuple[tuple, tuple]:
        """Return arrays, and what is fixed."""
        return (self.kernel_fn, self.train, self.filter, self.blocks), (self.reduction, self.solver)

    @classmethod
    def tree_unflatten(cls, fixed: tuple, children: tuple) -> "InfiniteEnsemble":
        """Return the ensemble with other arrays."""
        kernel, train, filter, blocks = children
        return cls(kernel, train, filter, reduction=fixed[0], solver=fixed[1], blocks=blocks)

    @property
    def _data(self) -> TrainingSet:
        return self.blocks.data

    @property
    def _kernel(self) -> SplitKernel:
        return self.kernel_fn

    # Which blocks are needed

    @classmethod
    def _with_covariance(
        cls, kernel_fn: KernelFunction | tuple, train: Any, filter: filters.Filter, *, reduction: str, method: str
    ) -> "InfiniteEnsemble":
        """Return what `with_covariance` does, without evaluating kernels for the mean before."""
        kernel = split_kernel(kernel_function(kernel_fn))
        one_of(reduction, ("sum", "mean"), "reduction")
        with evaluating_what_is_known():
            blocks, solver = _solve_for_labels(kernel, train, filter, reduction, method, "auto", covariance=True)
            in_labels = {number: blocks.by_irrep[number] for number in irreps_in_labels(blocks.data)}
            first = dataclasses.replace(blocks, by_irrep=in_labels)
            ens = cls(kernel, train, filter, reduction=reduction, solver=solver, blocks=first)
            ens._completed["blocks"] = blocks
            ens._check_new()
        return ens

    def _check_new(self) -> None:
        _warnings.check_rate(self.filter, self._loss_entries, self.blocks, self._largest_eigenvalue)
        _warnings.warn_of_rank(self.blocks)

    @property
    def _loss_entries(self) -> int:
        """How many entries the loss is a mean over; 1 if it is a sum."""
        return _entries(self.reduction, self.blocks.data)

    def _blocks_for(
        self, times: jax.Array | None, *, covariance: bool = False, every_irrep: bool = False
    ) -> GramBlocks:
        """Return solved blocks that serve these times, or any time for None.

        Args:
            times: [T], or None.
            covariance: whether the blocks of every irrep are needed, with those of 𝒦.
            every_irrep: whether the blocks of every irrep are needed.
        """
        known = self._completed.get("blocks", self.blocks)
        everything = every_irrep or covariance
        # The labels have no part in other irreps than those that were solved first.
        wanted = range(len(irreps_of(known.data.group))) if everything else sorted(self.blocks.by_irrep)
        # One inverse may be all that the end of training needs; for other times, any function must be applicable.
        ended = times is not None and is_concrete(times) and bool(jnp.all(jnp.isinf(times)))
        shift = _inverse_shift(self.filter, self.reduction, known.data) if ended else None
        # Inside a compiled function that was given this ensemble, the shift is traced, and belongs to its blocks.
        served = {None, shift} if is_concrete(known) else {None, *(b.solved.inverse_shift for _, b in known if ended)}
        usable = {number: block for number, block in known.by_irrep.items() if block.solved.inverse_shift in served}
        if usable.keys() >= set(wanted) and (known.has_other or not covariance):
            return dataclasses.replace(known, by_irrep={number: usable[number] for number in wanted})
        nngp = covariance or known.has_other
        # Inside a function that is being traced, what is known is computed now, and only once.
        with evaluating_what_is_known():
            blocks = solve_blocks(
                self.kernel_fn,
                known.data,
                self.solver,
                wanted,
                get=_moments.BOTH if nngp else ("ntk",),
                known=usable,
                inverse_shift=shift,
            )
        if is_concrete(blocks):
            self._completed["blocks"] = dataclasses.replace(blocks, by_irrep=known.by_irrep | blocks.by_irrep)
        return blocks

    def _blocks_from_start(self, f0: Callable, times: jax.Array) -> GramBlocks:
        """Return the blocks of every irrep, with y − f0(X) in place of the labels."""
        blocks = self._blocks_for(times, every_irrep=True)
        data = blocks.data
        values = check_outputs(jnp.asarray(f0(data.samples())), data, data.order * data.n)
        # Channels do not meet, so the channels of many networks are those of one with as many more.
        residual = jax.vmap(lambda one: data.labels() - data.frame(one), out_axes=-2)(values)
        rows = residual.reshape(*residual.shape[:-2], -1)
        wide = dataclasses.replace(data, y=jnp.zeros((data.n, *data.positions, rows.shape[-1]), data.y.dtype))
        return dataclasses.replace(blocks.with_labels(rows), data=wide)

    def _filter_above_noise(self, blocks: GramBlocks, part: str = "coefficients") -> FilterAboveNoise:
        return FilterAboveNoise(self.filter, blocks.noise, self._loss_entries, part)

    def _check_times(self, t: Any) -> tuple[jax.Array, bool]:
        """Return times [T] at which training has a result, and whether a single one was given."""
        t = jnp.asarray(self.filter.checked_time(t), self.blocks.scale.dtype)
        times = jnp.atleast_1d(t)
        _warnings.check_rate(self.filter, self._loss_entries, self.blocks, self._largest_eigenvalue)
        _warnings.check_end(self.filter, self._loss_entries, self.blocks, self._largest_eigenvalue, times)
        return times, t.ndim == 0

    # The same without checks of samples and times [T], and always with an axis of times

    def _mean(self, x: Inputs, times: jax.Array, f0: Callable | None = None) -> jax.Array:
        blocks = self._blocks_for(times) if f0 is None else self._blocks_from_start(f0, times)
        f = self._filter_above_noise(blocks)
        _warnings.warn_of_projection(blocks, f, times)
        mean = _moments.mean(self.kernel_fn, blocks, f, x, times)
        if f0 is None:
            return mean
        values = jnp.asarray(f0(x))
        members = len(check_outputs(values, self.blocks.data, jax.tree.leaves(x)[0].shape[0]))
        change = jnp.moveaxis(mean.reshape(*mean.shape[:-1], members, -1), -2, 1)
        return change.reshape(len(times), *values.shape) + values[None]

    def _cov(self, x: Inputs, times: jax.Array, x2: Inputs | None) -> jax.Array:
        blocks = self._blocks_for(times, covariance=True)
        return _moments.covariance(self.kernel_fn, blocks, self._filter_above_noise(blocks), x, times, x2)

    def _var(self, x: Inputs, times: jax.Array) -> jax.Array:
        blocks = self._blocks_for(times, covariance=True)
        return _moments.variance(self.kernel_fn, blocks, self._filter_above_noise(blocks), x, times)

    def _trajectory_cov(self, x: Inputs, times: jax.Array) -> jax.Array:
        blocks = self._blocks_for(times, covariance=True)
        return _moments.trajectory_covariance(self.kernel_fn, blocks, self._filter_above_noise(blocks), x, times)

    def _function_of_theta(self, t: Any, part: str) -> jax.Array:
        """Return a part of the filter, applied to the labels."""
        times, single = self._check_times(t)
        # Only φ_t itself is an inverse at the end of training; its other parts need any function.
        blocks = self._blocks_for(times if part == "coefficients" else None)
        f = self._filter_above_noise(blocks, part)
        _warnings.warn_of_projection(blocks, f, times)
        values = _moments.on_training_set(blocks, f, times)
        return values[0] if single else values

    def _largest_eigenvalue(self) -> float:
        return self._blocks_for(None, every_irrep=True).largest_eigenvalue()

    def _known_spectrum(self) -> tuple[GramBlocks, jax.Array]:
        """Return the blocks of every irrep, and all eigenvalues."""
        blocks = self._blocks_for(None, every_irrep=True)
        values = blocks.spectrum()
        if values is None:
            fix = "Choose `solver=solvers.Eigh()`, which computes all eigenvalues."
            raise refusal("solver", expected="one that knows the spectrum", got=repr(self.solver), fix=fix)
        return blocks, values


def _solve_for_labels(
    kernel: SplitKernel,
    train: Any,
    filter: filters.Filter,
    reduction: str,
    method: str,
    solver: Solver | str,
    *,
    progress: bool = False,
    covariance: bool = False,
) -> tuple[GramBlocks, Solver]:
    """Return the blocks of those irreps that the labels contain, and the solver that was chosen.

    With `covariance`, return those of every irrep, and with 𝒦.
    """
    chosen = check_solver(solver, auto=Eigh())  # before anything is evaluated
    data = choose_training_set(method, kernel, train)
    check_labels(data)
    numbers = irreps_in_labels(data)
    if isinstance(solver, str):
        chosen = choose_solver(data, numbers, filter)
    if boolean(progress, "progress") and isinstance(chosen, Lanczos):
        chosen = dataclasses.replace(chosen, progress=True)
    shift = _inverse_shift(filter, reduction, data)
    if covariance:
        everything = range(len(irreps_of(data.group)))
        return solve_blocks(kernel, data, chosen, everything, get=_moments.BOTH, inverse_shift=shift), chosen
    return solve_blocks(kernel, data, chosen, numbers, inverse_shift=shift), chosen


def _inverse_shift(filter: filters.Filter, reduction: str, data: TrainingSet) -> float | None:
    """Return what to add to Θ, if its inverse is all that the filter needs unless a time is given."""
    shift = filter.shift_at_end
    return float(shift) * _entries(reduction, data) if shift is not None and is_concrete(shift) else None


def _entries(reduction: str, data: TrainingSet) -> int:
    return data.order * data.y.size if reduction == "mean" else 1


def _as_filter(filter: filters.Filter | Callable | None) -> filters.Filter:
    return filters.gradient_flow() if filter is None else filters.custom(filter)
