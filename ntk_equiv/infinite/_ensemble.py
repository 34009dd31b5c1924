"""The infinitely wide deep ensemble, trained.

In the paper's symbols, with Θ the neural tangent kernel, 𝒦 the NNGP kernel, X, y the (augmented) training data and
φ_t the filter of training:

    mean        μ_t(x) = Θ(x, X) φ_t(Θ(X, X)) y
    cov         Σ_t(x, x') = [1, −Θ(x, X)φ_t(Θ)] · 𝒦 on (x, X) · [1, −Θ(x', X)φ_t(Θ)]ᵀ
    member      f_t(x) = f_0(x) + Θ(x, X) φ_t(Θ) (y − f_0(X))

The covariance of two channels is zero, and the same within each, so it has no axis of channels.
"""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Float

from ntk_equiv import filters
from ntk_equiv._check import evaluating_what_is_known, function, one_of, positive_integer, random_key
from ntk_equiv._gram import gram, kernel_function, samples
from ntk_equiv._positions import apart, joint
from ntk_equiv._typing import Inputs, KernelFunction, Scalar
from ntk_equiv.infinite import _laws, _notices, _statistics, _storage
from ntk_equiv.infinite._engine import Engine
from ntk_equiv.infinite._fit import containing_labels, eigenvalues, fitted
from ntk_equiv.infinite._method import decided
from ntk_equiv.infinite._training_set import check_labels
from ntk_equiv.orbits import AugmentedSet
from ntk_equiv.reps import Representation


@jax.tree_util.register_pytree_node_class
class InfiniteEnsemble(Engine):
    """The infinite ensemble trained on given data: its mean and covariance at any time, on any points.

    The Gram matrix is decomposed once, when it is first needed; times and test points are then cheap. Augmented data
    are reduced by their group: n · |G|n kernel entries instead of (|G|n)², a small block for every irrep, and for the
    mean only the irreps that the labels contain. A pytree: a fitted ensemble passes through `jit`.

    Attributes:
        kernel_fn: the kernels of the network.
        train: the data, as they were given.
        filter: how it is trained.
        reduction: whether the loss is ½ of the "sum" or of the "mean" of squares over all entries of the labels.
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

    def __init__(
        self,
        kernel_fn: KernelFunction | tuple,
        train: Any,
        filter: filters.Filter | Callable | None = None,
        *,
        reduction: str = "sum",
        method: str = "auto",
    ):
        """Decide on the method, and decompose the blocks that the mean needs.

        Args:
            kernel_fn: from `ntk_equiv.stax`, from neural-tangents, or any function with the same arguments; a whole
                network (init_fn, apply_fn, kernel_fn) stands for its third part.
            train: `augment(x, y, rep_x, rep_y)`, or a plain pair `(x, y)`; y is [n] or [n, ..., channels].
            filter: from `ntk_equiv.filters`, or any function φ(λ, t); gradient flow at rate 1 unless given.
            reduction: `"sum"` for the loss ½Σ(f−y)², as in the paper; `"mean"` for ½ of the mean over all entries of
                the (augmented) labels, as in neural-tangents.
            method: `"dense"` decomposes the Gram matrix of all points; `"reduced"` uses the group that augments them;
                `"auto"` does so if that is exact, and says why if it is not.

        Raises:
            ValueError: the data, the network and the group do not fit together, or the rate makes training diverge.
        """
        self.reduction = one_of(reduction, ("sum", "mean"), "reduction")
        self.kernel_fn, self.train = kernel_function(kernel_fn), train
        self.filter = _as_filter(filter)
        with evaluating_what_is_known():
            self._data, self.method, self.reason = decided(method, self.kernel_fn, train)
            samples(self.kernel_fn, self._data.x, "x")
            check_labels(self._data)
            self._fit = fitted(self.kernel_fn, self._data, containing_labels(self._data), shift=self._shift)
            _notices.check_rate(self)
            _notices.warn_of_rank(self)

    def __repr__(self) -> str:
        how = "dense" if self._data.group is None else f"reduced by {self._data.group.label}"
        return f"<infinite ensemble on {self._data.size} rows, {how}, {self.filter}, reduction {self.reduction}>"

    # The symmetry and the data

    @property
    def rep_x(self) -> Representation | None:
        """How the group that augments acts on points; None for plain data."""
        return self.train.rep_x if isinstance(self.train, AugmentedSet) else None

    @property
    def rep_y(self) -> Representation | None:
        """How it acts on labels; None for plain data."""
        return self.train.rep_y if isinstance(self.train, AugmentedSet) else None

    @property
    def x(self) -> Inputs:
        """All training points, [N, ...]."""
        return self.train.x if isinstance(self.train, AugmentedSet) else self._data.x

    @property
    def y(self) -> Float[jax.Array, "N *outputs"]:
        """All training labels, [N, ...]."""
        return self.train.y if isinstance(self.train, AugmentedSet) else self._data.y

    # What it predicts

    def mean(self, x: Inputs, t: Any = None, *, f0: Callable[[Inputs], Any] | None = None) -> jax.Array:
        """The mean prediction μ_t(x) = Θ(x, X) φ_t(Θ) y; with `f0`, that of one member.

        Args:
            x: test points, [m, ...].
            t: the training time: a number, inf, or a vector of times; the filter's own unless given.
            f0: the function of one network at initialisation. Then f0(x) + Θ(x, X) φ_t(Θ) (y − f0(X)) is returned: the
                trajectory of that network, exact as its width goes to infinity.

        Returns:
            [m, ...] in the shape of the labels, with an axis of times in front if t is a vector.
        """
        x, (times, single) = self.check_samples(x), self._checked_times(t)
        fit = self._fit_at(times) if f0 is None else self._started_at(function(f0, "f0"), times)
        _notices.warn_of_projection(self, fit, times)
        values = [self._mean(fit, portion, times) for portion in self._portions(x)]
        mean = jnp.concatenate(values, axis=1)
        mean = mean if f0 is None else mean + self._as_labels(f0(x)).reshape(1, *mean.shape[1:])
        return mean[0] if single else mean

    def cov(self, x: Inputs, t: Any = None, x2: Inputs | None = None) -> jax.Array:
        """The covariance Σ_t(x, x2) of members, the same for every channel; zero between channels.

        Args:
            x: test points, [m, ...].
            t: as for `mean`.
            x2: other test points; the same unless given.

        Returns:
            [m, m2], with outputs on a grid [m, m2, h, h', w, w'], after an axis of times if t is a vector.
        """
        x, (times, single) = self.check_samples(x), self._checked_times(t)
        x2 = None if x2 is None else self.check_samples(x2, "x2")
        fit, both = self._complete(nngp=True, times=times), ("ntk", "nngp")
        f = self._response(fit)
        prior = gram(self.kernel_fn, x, x2, "nngp")
        others = itertools.repeat(None) if x2 is None else self._hats(fit, x2, both)
        total = joint(prior)[None]
        for (sector, block), hats, other in zip(self._blocks(fit), self._hats(fit, x, both), others, strict=False):
            total = total + sector.weight * _laws.cov_part(block, f, times, hats, other)
        total = (total + total.swapaxes(1, 2)) / 2 if x2 is None else total
        cov = apart(total, prior.shape)
        return cov[0] if single else cov

    def var(self, x: Inputs, t: Any = None) -> jax.Array:
        """The variance of members at each point, without the covariance of different ones.

        Args:
            x: test points, [m, ...].
            t: as for `mean`.

        Returns:
            [m], with outputs on a grid [m, h, w], after an axis of times if t is a vector.
        """
        x, (times, single) = self.check_samples(x), self._checked_times(t)
        fit = self._complete(nngp=True, times=times)
        values = [self._var(fit, portion, times) for portion in self._portions(x)]
        variance = jnp.concatenate(values, axis=1)
        return variance[0] if single else variance

    def sample(self, key: jax.Array, x: Inputs, t: Any = None, members: int = 1) -> jax.Array:
        """Members drawn from the ensemble, as functions on the samples: N(μ_t, Σ_t), independent between channels.

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
        times, single = self._checked_times(t)
        mean = self.mean(x, t).reshape(len(times), -1, self._data.channels)
        cov = joint(self.cov(x, t)) if single else self._trajectory_cov(self.check_samples(x), times)
        rows = _laws.draws(key, mean.reshape(-1, mean.shape[-1]), cov, members)
        values = rows.reshape(members, len(times), -1, *self._data.y.shape[1:])
        return values[:, 0] if single else values.swapaxes(0, 1)

    def train_mean(self, t: Any = None) -> jax.Array:
        """The mean prediction on the training points, in the shape of all labels; no kernel is evaluated."""
        return self._function_of_theta(t, "fit")

    def residual(self, t: Any = None) -> jax.Array:
        """What is left to learn of the labels, y minus the mean prediction on the training points."""
        return self._function_of_theta(t, "residual")

    def coefficients(self, t: Any = None) -> jax.Array:
        """α_t = φ_t(Θ) y, in the shape of all labels: the mean is Σ_i Θ(x, X_i) α_i."""
        return self._function_of_theta(t, "coefficients")

    def nngp_posterior(self, x: Inputs, *, noise: Scalar = 0.0) -> _statistics.Posterior:
        """The Bayesian limit, where the last layer alone is trained: the posterior of a Gaussian process with 𝒦.

        Args:
            x: test points, [m, ...].
            noise: the variance of the noise in the labels.

        Returns:
            Its mean, in the shape of the labels, and its covariance [m, m].
        """
        return _statistics.nngp_posterior(self, x, noise)

    def log_marginal_likelihood(self, *, noise: Scalar) -> Float[jax.Array, ""]:
        """The log-probability density of the labels under the Gaussian process of `nngp_posterior`.

            log N(y; 0, 𝒦(X, X) + noise) = −½ yᵀ(𝒦 + noise)⁻¹y − ½ log det(𝒦 + noise) − ½ N log 2π

        It is summed over channels, and compares architectures and their parameters, for example by its gradient. All
        samples of an augmented set count.

        Args:
            noise: the variance of the noise in the labels.
        """
        return _statistics.log_marginal_likelihood(self, noise)

    def expected_mse(self, x: Inputs, y: Any, t: Any = None, *, members: int = 1) -> _statistics.ExpectedError:
        """The expected mean squared error of the mean of some members, E mean (f̂ − y)² = bias + variance.

        Args:
            x: test points, [m, ...].
            y: their labels.
            t: as for `mean`.
            members: the size of the ensemble.
        """
        return _statistics.expected_mse(self, x, y, t, members)

    def expected_accuracy(
        self, key: jax.Array, x: Inputs, y: Any, t: Any = None, *, members: int = 1, samples: int = 1000
    ) -> _statistics.Estimate:
        """How often the mean of some members has its largest output at the right class, by sampling.

        Args:
            key: a JAX random key.
            x: test points, [m, ...].
            y: one-hot labels, or any whose largest channel is the class.
            t: a single time.
            members: the size of the ensemble.
            samples: how many draws for each point.
        """
        return _statistics.expected_accuracy(self, key, x, y, t, members, samples)

    @property
    def spectrum(self) -> Float[jax.Array, "N"]:
        """All eigenvalues of the Gram matrix of the training set, in increasing order, with their multiplicities."""
        return eigenvalues(self._complete(nngp=False), self._data)

    @property
    def rank(self) -> int:
        """How many eigenvalues of the Gram matrix are not zero up to rounding."""
        fit = self._complete(nngp=False)
        return int(jnp.sum(eigenvalues(fit, self._data) > fit.noise))

    def save(self, path: Any) -> None:
        """Write the decomposition to a file `.npz`, with what is needed to recognise the data and the kernel."""
        _storage.save(self, path)

    @classmethod
    def load(cls, path: Any, kernel_fn: KernelFunction | tuple, train: Any, filter: Any = None) -> "InfiniteEnsemble":
        """A fitted ensemble from a file, without decomposing anything.

        Args:
            path: what `save` wrote.
            kernel_fn: the same kernels as before.
            train: the same data as before.
            filter: any: the decomposition does not depend on how the ensemble is trained.

        Raises:
            ValueError: the file belongs to other data or another kernel, or is damaged.
        """
        kernel_fn = kernel_function(kernel_fn)
        stored = _storage.load(path, kernel_fn, train)
        new = cls._assembled(kernel_fn, train, _as_filter(filter), *stored)
        _notices.check_rate(new)
        return new

    def _checked_times(self, t: Any) -> tuple[jax.Array, bool]:
        """Times [T], at which training has a result, and whether a single one was given."""
        times, single = self._times(t)
        _notices.check_end(self, times)
        return times, single

    def _function_of_theta(self, t: Any, part: str) -> jax.Array:
        times, single = self._checked_times(t)
        fit = self._fit_at(times)
        _notices.warn_of_projection(self, fit, times)
        values = self._on_train(fit, times, part)
        return values[0] if single else values


def _as_filter(filter: filters.Filter | Callable | None) -> filters.Filter:
    return filters.gradient_flow() if filter is None else filters.custom(filter)
