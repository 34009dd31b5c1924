"""The equivariance error D(g) = f̂(ρ_X(g)x) − ρ_Y(g)f̂(x) of M members: its exact law, without training any.

At infinite width the mean f̂ of M members is Gaussian on any set of samples, also on x and all ρ_X(g)x:

    mean of f̂(ρ_X(g)x)                      μ(ρ_X(g)x)
    cov of f̂(ρ_X(g)x), f̂(ρ_X(h)x)           S(g, h) ⊗ 1 / M        (1 over channels)

So D(g) is Gaussian too, with mean μ(gx) − ρ_Yμ(x) and covariance

    (1/M) [ S(g,g) + ρ_Y S(e,e) ρ_Yᵀ − S(g,e) ρ_Yᵀ − ρ_Y S(e,g) ],

which over channels is not a multiple of the identity, and may be as large as 4S/M.

The orbit variance Q = (1/|G|) Σ_g ‖ρ_Y(g)⁻¹f̂(gx) − average‖² is a quadratic form in Gaussians, Σ_k (√λ_k z_k + m_k)².
E√Q differs from √E Q, and follows from the Laplace transform of Q:

    E √Q = 1/(2√π) ∫₀^∞ (1 − E e^{−sQ}) s^{−3/2} ds,     E e^{−sQ} = Π_k (1 + 2λ_k s)^{−½} exp(−s m_k²/(1 + 2λ_k s)).

`orbit_deviation` makes an `OrbitDeviation`, which answers questions about this law:

    bias, covariance                   the mean b of D(g), and its covariance
    expected, root_mean_square         E √Q and √E Q, exactly
    probability, quantile, members     of max_g ‖D(g)‖ and δ, by sampling
    same_predictions                   for how many g the predicted class stays the same, by sampling

Draws are of the noise N that a single member adds: D(g) = b(g) + N(g)/√M serves all M.
"""

import dataclasses
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ntk_equiv._check import positive_integer, random_key, real_array, refusal, single_time
from ntk_equiv._gram import kernel_diagonal, split_kernel
from ntk_equiv._positions import joint
from ntk_equiv._typing import Inputs, Scalar
from ntk_equiv.bounds._checks import (
    Numbers,
    check_ensemble,
    single_deviation,
    single_members,
    single_probability,
)
from ntk_equiv.bounds._gaussian import covariance_root, split_draws
from ntk_equiv.bounds._members import round_up_sampled
from ntk_equiv.bounds._results import Sampled
from ntk_equiv.infinite import InfiniteEnsemble, rounding_allowed
from ntk_equiv.reps import Representation, check_actions

# Samples whose covariance is asked for at once. Only the blocks on its diagonal are kept, one for each orbit.
SAMPLES_AT_ONCE = 192
# Steps of ln s. The integrand is analytic and bounded within |Im ln s| < π/2, and falls as e^{−|ln s|/2}.
LOG_S = np.arange(-76.0, 76.25, 0.25)
# How far ρ_Y(g)ρ_Y(g)ᵀ may be from 1: matrices may come in single precision.
ORTHOGONAL = 1e-4


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class OrbitDeviation:
    """The exact law of the equivariance error of M members at each test sample, made by `orbit_deviation`.

    Attributes:
        mean: the mean prediction at x and along its orbit, [n, 1 + elements, *positions, channels].
        cov: the covariance of one member there, of each channel, [n, (1 + elements)·positions, the same].
        actions: ρ_Y(g) as matrices on all outputs of a sample, [elements, outputs, outputs].
        readout: which combinations of channels are compared, [channels, combined]; None for the channels themselves.
        rounding: how much rounding may have added to an eigenvalue of the covariance.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import InfiniteEnsemble, augment, bounds, groups, reps, stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(64, 1.5, 0.1), stax.Relu(), stax.Dense(1))
        >>> x, y = jnp.array([[1.0, 2.0], [0.5, -1.0]]), jnp.array([1.0, -1.0])
        >>> ens = InfiniteEnsemble(kernel_fn, augment(x, y, reps.matrix(groups.SO2.finite(4))), method="dense")
        >>> law = bounds.orbit_deviation(ens, jnp.array([[1.0, 0.0], [3.0, 1.0]]), 2.0)
        >>> law
        <law of the equivariance error at 2 samples under 4 elements>
        >>> print(law.bias.shape, bool(abs(law.bias).max() < 1e-12))      # the mean of the ensemble is invariant
        (2, 4, 1) True
        >>> print((1e4 * law.covariance(members=100)[0, :, 0, 0]).round(1))      # the identity changes nothing
        [0.  2.3 0.4 2.3]
        >>> print(law.root_mean_square(members=1).round(3))               # never below `expected`
        [0.078 0.181]
    """

    mean: Float[np.ndarray, "n orbit *outputs"]
    cov: Float[np.ndarray, "n joint joint"]
    actions: Float[np.ndarray, "elements outputs outputs"]
    readout: Float[np.ndarray, "channels combined"] | None
    rounding: float = 0.0

    def __repr__(self) -> str:
        return f"<law of the equivariance error at {len(self.mean)} samples under {len(self.actions)} elements>"

    @property
    def bias(self) -> Float[np.ndarray, "n elements outputs"]:
        """The mean of D(g), μ(ρ_X(g)x) − ρ_Y(g)μ(x), [n, elements, outputs]: 0 for the group that augments."""
        outputs = self._mean.reshape(*self._mean.shape[:2], -1)
        return outputs[:, 1:] - np.einsum("gij,nj->ngi", self.actions, outputs[:, 0])

    def covariance(self, members: Numbers = 1) -> Float[np.ndarray, "n elements outputs outputs"]:
        """The covariance of D(g) for each element, [n, elements, outputs, outputs]."""
        return _deviation_covariance(self.cov, self.actions, self._channel_cov) / single_members(members)

    def expected(self, members: Numbers = 1) -> Float[np.ndarray, "n"]:
        """The expected standard deviation over the orbit, E √(mean_g ‖ρ_Y(g)⁻¹f̂(gx) − average‖²), at each sample.

        Exact, by quadrature of the Laplace transform. Its average over a test set is `expected(members).mean()`.

        Args:
            members: M.

        Returns:
            [n].
        """
        values, squares = _orbit_form(self._mean, self.cov, self.actions, self._channel_cov)
        return _expected_root(values / single_members(members), squares)

    def root_mean_square(self, members: Numbers = 1) -> Float[np.ndarray, "n"]:
        """The root √E[variance over the orbit] at each sample, [n]; never below `expected`."""
        values, squares = _orbit_form(self._mean, self.cov, self.actions, self._channel_cov)
        return np.sqrt(np.sum(values / single_members(members) + squares, axis=1))

    def probability(
        self, members: Numbers, delta: Numbers, *, key: jax.Array | None = None, samples: int = 10_000
    ) -> Sampled:
        """The probability that ‖D(g)‖ > δ for any g, at each sample, from random draws.

        Args:
            members: M.
            delta: the tolerated deviation.
            key: a JAX random key; the same draws every time unless given.
            samples: how many draws.

        Returns:
            A `Sampled` record of [n] numbers.
        """
        members, delta = single_members(members), single_deviation(delta)
        hits = self._draw_largest(members, *_check_draws(key, samples)) > delta
        return Sampled.probability(hits.sum(axis=0), samples)

    def quantile(
        self, members: Numbers, epsilon: Numbers, *, key: jax.Array | None = None, samples: int = 10_000
    ) -> Sampled:
        """The deviation that max_g ‖D(g)‖ exceeds with probability ε, at each sample; arguments as in `probability`."""
        members, epsilon = single_members(members), single_probability(epsilon)
        return Sampled.quantile(self._draw_largest(members, *_check_draws(key, samples)), epsilon)

    def members(
        self, delta: Numbers, epsilon: Numbers, *, key: jax.Array | None = None, samples: int = 10_000
    ) -> Sampled:
        """The number of members for which ‖D(g)‖ ≤ δ for all g with probability 1 − ε, at each sample, from draws.

        Args:
            delta: the tolerated deviation.
            epsilon: the probability of a larger one.
            key: a JAX random key; the same draws every time unless given.
            samples: how many draws.

        Returns:
            A `Sampled` record of [n] whole numbers; its `upper` suffices with the stated confidence.

        Raises:
            ValueError: the infinite ensemble itself deviates by δ or more, or there are too few draws to tell.
        """
        delta, epsilon = single_deviation(delta), single_probability(epsilon)
        worst = float(np.linalg.norm(self.bias, axis=2).max())
        if worst >= delta:
            fix = "No number of members gets below the deviation of the mean: augment by the whole group."
            raise refusal("delta", expected=f"above {worst:.3g}, how far the mean deviates", got=delta, fix=fix)
        enough = self._draw_deviations(lambda b, N: _members_needed(b, N, delta), *_check_draws(key, samples))
        return round_up_sampled(Sampled.quantile(enough, epsilon), epsilon)

    def same_predictions(self, members: Numbers, *, key: jax.Array, samples: int = 2000) -> Sampled:
        """The expected number of g for which f̂(ρ_X(g)x) and ρ_Y(g)f̂(x) have the same largest channel, at each sample.

        Args:
            members: M.
            key: a JAX random key.
            samples: how many draws.

        Returns:
            A `Sampled` record of [n] numbers.
        """
        random_key(key)
        positive_integer(samples, "samples")
        return self._count_same(single_members(members), key, samples)

    def _count_same(self, members: float, key: jax.Array, samples: int) -> Sampled:
        scale = np.sqrt(members)
        outputs = self._mean.reshape(*self._mean.shape[:2], -1)

        def count(start: np.ndarray, moved: np.ndarray, i: int) -> np.ndarray:
            there = np.argmax(outputs[i, 1:] + moved / scale, axis=2)
            here = np.einsum("gij,sj->sgi", self.actions, outputs[i, 0] + start / scale)
            return (there == np.argmax(here, axis=2)).sum(axis=1).astype(float)

        return Sampled.mean(self._draw(count, key, samples))

    @property
    def _mean(self) -> np.ndarray:
        return self.mean if self.readout is None else self.mean @ self.readout

    @property
    def _channel_cov(self) -> np.ndarray:
        return np.eye(self.mean.shape[-1]) if self.readout is None else self.readout.T @ self.readout

    def _draw_largest(self, members: float, key: jax.Array, samples: int) -> np.ndarray:
        """Draw max_g ‖D(g)‖ for the mean of some members, [samples, n]."""
        scale = np.sqrt(members)
        return self._draw_deviations(lambda b, N: np.linalg.norm(b + N / scale, axis=2).max(axis=1), key, samples)

    def _draw_deviations(
        self, statistic: Callable[[np.ndarray, np.ndarray], np.ndarray], key: jax.Array, samples: int
    ) -> np.ndarray:
        """Draw a statistic of the bias [elements, outputs] and the noise of one member [draws, elements, outputs]."""
        bias = self.bias

        def of_deviation(start: np.ndarray, moved: np.ndarray, i: int) -> np.ndarray:
            return statistic(bias[i], moved - np.einsum("gij,sj->sgi", self.actions, start))

        return self._draw(of_deviation, key, samples)

    def _draw(
        self, statistic: Callable[[np.ndarray, np.ndarray, int], np.ndarray], key: jax.Array, samples: int
    ) -> np.ndarray:
        """Draw a statistic of what one member adds at x and along the orbit, for each sample, [samples, n]."""
        roots, channels = jnp.asarray(covariance_root(self.cov, self.rounding)), self.mean.shape[-1]
        readout = None if self.readout is None else jnp.asarray(self.readout)
        columns = []
        for i, own in enumerate(jax.random.split(key, len(roots))):
            batches = []
            keys, each = split_draws(own, samples, roots.shape[1] * channels)
            for k in keys:
                F = np.asarray(_draw_orbit(k, roots[i], readout, each, channels))
                F = F.reshape(each, len(self.actions) + 1, -1)
                batches.append(statistic(F[:, 0], F[:, 1:], i))
            columns.append(np.concatenate(batches)[:samples])
        return np.stack(columns, axis=1)


def orbit_deviation(
    ens: InfiniteEnsemble,
    x: Inputs,
    t: Scalar | None = None,
    *,
    rep_x: Representation | None = None,
    rep_y: Representation | None = None,
    elements: Numbers | None = None,
    readout: Numbers | None = None,
) -> OrbitDeviation:
    """The exact law of f̂(ρ_X(g)x) − ρ_Y(g)f̂(x), the equivariance error of the mean of M members, for all g.

    It needs no training. In law, the orbit deviation of one member is √M times that of the mean of M members; a single
    realised ensemble scatters about it.

    Args:
        ens: the infinite ensemble.
        x: test samples, [n, ...].
        t: one training time; None for that of the filter.
        rep_x: how the group acts on samples; as in the training data unless given.
        rep_y: how it acts on outputs; as in the training data unless `rep_x` or `readout` is given, then trivially.
        elements: some elements instead of all; matrices of a continuous group.
        readout: numbers [channels] or [channels, combined]: linear combinations to compare instead of the channels.

    Returns:
        A record: `expected(members)`, `probability(members, delta)`, `quantile(members, epsilon)` and
        `members(delta, epsilon)`, each for every sample.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import InfiniteEnsemble, augment, bounds, groups, reps, stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(64, 1.5, 0.1), stax.Relu(), stax.Dense(1))
        >>> x, y = jnp.array([[1.0, 2.0], [0.5, -1.0]]), jnp.array([1.0, -1.0])
        >>> train = augment(x, y, reps.matrix(groups.SO2.finite(4)))
        >>> ens = InfiniteEnsemble(kernel_fn, train, method="dense")
        >>> law = bounds.orbit_deviation(ens, jnp.array([[1.0, 0.0], [3.0, 1.0]]), 2.0)
        >>> print(law.expected(1).round(3), law.expected(100).round(4))
        [0.067 0.152] [0.0067 0.0152]
    """
    single_time(t)
    x = check_ensemble(ens).check_samples(x)
    own = rep_x is None and readout is None
    rep_x = ens.rep_x if rep_x is None else rep_x
    if rep_x is None:
        fix = "The data of this ensemble are not augmented: say how the group acts on samples."
        raise refusal("rep_x", expected="given", got="nothing", fix=fix)
    rep_x, rep_y = check_actions(rep_x, ens.rep_y if own and rep_y is None else rep_y)
    chosen = rep_x.elements(elements)
    readout = _check_readout(readout, 1 if ens.y.ndim == 1 else ens.y.shape[-1])
    mean, cov = _orbit_moments(ens, x, t, rep_x, chosen)
    shape = mean.shape[2:] if readout is None else (*mean.shape[2:-1], readout.shape[1])
    actions = _action_matrices(rep_y, chosen, shape)
    if np.abs(actions @ actions.swapaxes(1, 2) - np.eye(actions.shape[1])).max() > ORTHOGONAL:
        fix = "Deviations can only be compared along an orbit if ρ_Y keeps lengths."
        raise refusal("rep_y", expected="orthogonal", got=f"{rep_y}, which is not", fix=fix)
    return OrbitDeviation(mean, cov, actions, readout, covariance_rounding(ens, x))


def expected_osp(
    ens: InfiniteEnsemble,
    x: Inputs,
    t: Scalar | None,
    members: Numbers,
    key: jax.Array,
    *,
    rep_x: Representation | None = None,
    rep_y: Representation | None = None,
    elements: Numbers | None = None,
    samples: int = 2000,
) -> Sampled:
    """The expected orbit-same-prediction of M members: for how many g the predicted class of ρ_X(g)x is that of x.

    The identity counts, so the number lies between 1 and |G|. It is predicted by sampling the joint law over the orbit.

    Args:
        ens: the infinite ensemble, with one output channel for each class.
        x: test samples, [n, ...].
        t: one training time; None for that of the filter.
        members: M.
        key: a JAX random key.
        rep_x: as for `orbit_deviation`.
        rep_y: as for `orbit_deviation`; if it permutes classes, the class of ρ_X(g)x is compared with the permuted one.
        elements: as for `orbit_deviation`.
        samples: how many ensembles are drawn for each sample.

    Returns:
        A `Sampled` record of [n] numbers.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from ntk_equiv import InfiniteEnsemble, augment, bounds, groups, reps, stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(64, 1.5, 0.1), stax.Relu(), stax.Dense(1))
        >>> train = augment(jnp.array([[1.0, 2.0], [0.5, -1.0]]), jnp.eye(2), reps.matrix(groups.SO2.finite(4)))
        >>> ens = InfiniteEnsemble(kernel_fn, train, method="dense")
        >>> x = jnp.array([[2.0, 1.0], [0.2, 0.1]])
        >>> for members in (1, 10, 100):
        ...     print(bounds.expected_osp(ens, x, 0.5, members, jax.random.key(0)).value.round(1))
        [2.5 2.8]
        [2.7 3. ]
        [3.7 3.6]
    """
    shape = check_ensemble(ens).y.shape[1:]
    if len(shape) != 1 or shape[0] < 2:
        fix = "Classification needs one output channel for each class, and one output for each sample."
        raise refusal("ens", expected="an ensemble with several channels", got=f"shape {shape}", fix=fix)
    members = single_members(members)
    random_key(key)
    positive_integer(samples, "samples")
    law = orbit_deviation(ens, x, t, rep_x=rep_x, rep_y=rep_y, elements=elements)
    return law._count_same(members, key, samples)


def _check_draws(key: jax.Array | None, samples: int) -> tuple[jax.Array, int]:
    """Return the key, which is always the same unless given, and the number of draws."""
    return jax.random.key(0) if key is None else random_key(key), positive_integer(samples, "samples")


def _check_readout(readout: Numbers | None, channels: int) -> np.ndarray | None:
    """Return the combinations of channels as columns, [channels, combined]."""
    if readout is None:
        return None
    readout = np.asarray(real_array(readout, "readout"), dtype=float)
    if readout.ndim not in (1, 2) or readout.shape[0] != channels:
        fix = "Pass one number for each channel, or several columns of them."
        raise refusal("readout", expected=f"of shape [{channels}] or [{channels}, …]", got=readout.shape, fix=fix)
    return readout.reshape(channels, -1)


def _orbit_moments(
    ens: InfiniteEnsemble, x: Inputs, t: Scalar | None, rep_x: Representation, elements: np.ndarray | jax.Array
) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and the covariance of one member at x and along its orbit.

    Shapes are [n, 1 + elements, *positions, channels] and [n, (1 + elements)·positions, the same]. The first of the
    1 + elements is x itself.
    """
    orbit = rep_x.orbit(x, elements)
    both = jax.tree.map(lambda one, many: jnp.concatenate([one[None], many]).swapaxes(0, 1), x, orbit)
    n, size = jax.tree.leaves(both)[0].shape[:2]
    parts = -(-n // max(1, SAMPLES_AT_ONCE // size))
    step = max(1, -(-n // max(1, parts)))  # parts of one size, compiled once
    means, covs = [], []
    for start in range(0, n, step):
        part = jax.tree.map(lambda leaf: _merge_axes(leaf[start : start + step]), both)  # noqa: B023
        mean = np.asarray(ens.mean(part, t), dtype=float)
        mean = mean.reshape(-1, size, *(mean.shape[1:] or (1,)))
        cov = np.asarray(joint(ens.cov(part, t)), dtype=float)
        side = len(cov) // len(mean)
        covs += [cov[i * side : (i + 1) * side, i * side : (i + 1) * side] for i in range(len(mean))]
        means.append(mean)
    return np.concatenate(means), np.array(covs)


def covariance_rounding(ens: InfiniteEnsemble, x: Inputs) -> float:
    """Return how much rounding may add to covariances at x: they are differences of terms as large as the prior."""
    prior = kernel_diagonal(split_kernel(ens.kernel_fn), x)
    return rounding_allowed(prior) * float(jnp.max(prior, initial=0.0))


def _action_matrices(rep_y: Representation, elements: np.ndarray | jax.Array, shape: tuple[int, ...]) -> np.ndarray:
    """Return ρ_Y(g) as matrices on outputs of this shape, positions and channels together."""
    size = int(np.prod(shape))
    moved = rep_y.orbit(jnp.eye(size).reshape(size, *shape), elements)
    return np.asarray(moved, dtype=float).reshape(-1, size, size).swapaxes(1, 2)


def _deviation_covariance(cov: np.ndarray, actions: np.ndarray, channel_cov: np.ndarray) -> np.ndarray:
    """Return the covariance of D(g) for one member, [n, elements, outputs, outputs].

    Args:
        cov: the covariance along the orbit, from `_orbit_moments`.
        actions: ρ_Y(g), [elements, outputs, outputs].
        channel_cov: the covariance of the channels of one output: the identity, unless channels are combined.
    """
    wide = _with_channels(cov, len(actions) + 1, channel_cov)
    own = np.einsum("nggij->ngij", wide[:, 1:, 1:])
    crossed = np.einsum("ngij,gkj->ngik", wide[:, 1:, 0], actions)
    start = np.einsum("gij,njk,glk->ngil", actions, wide[:, 0, 0], actions)
    return own + start - crossed - crossed.swapaxes(2, 3)


def _orbit_form(
    mean: np.ndarray, cov: np.ndarray, actions: np.ndarray, channel_cov: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return λ_k and m_k² of the orbit variance of one member, [n, elements · outputs]."""
    n, count, size = len(mean), len(actions), actions.shape[1]
    wide = _with_channels(cov, count + 1, channel_cov)[:, 1:, 1:]
    # ρ_Y is orthogonal, so ρ_Y(g)ᵀ turns f̂(gx) back.
    turned = np.einsum("gji,nghjk,hkl->ngihl", actions, wide, actions, optimize=True).reshape(n, count * size, -1)
    centring = np.kron(np.eye(count) - 1 / count, np.eye(size)) / np.sqrt(count)
    values, vectors = np.linalg.eigh(centring @ turned @ centring.T)
    # What is as small as rounding counts as zero: E√Q of a vanishing Q would be its root, far above rounding.
    values = np.maximum(values, 0) * (values > 1e-12 * np.max(values, axis=1, initial=0.0)[:, None])
    level = np.einsum("gji,ngj->ngi", actions, mean[:, 1:].reshape(n, count, size)).reshape(n, -1) @ centring.T
    return values, np.einsum("nij,ni->nj", vectors, level) ** 2


def _with_channels(cov: np.ndarray, size: int, channel_cov: np.ndarray) -> np.ndarray:
    """Return S(g, h) ⊗ channel_cov of each pair in an orbit of this size, [n, size, size, outputs, outputs]."""
    positions, channels = cov.shape[1] // size, len(channel_cov)
    blocks = cov.reshape(len(cov), size, positions, size, positions)
    wide = np.einsum("ngphq,cd->nghpcqd", blocks, channel_cov)
    return wide.reshape(len(cov), size, size, positions * channels, positions * channels)


def _expected_root(values: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """Return E √(Σ_k (√λ_k z_k + m_k)²) for λ and m² [n, k]."""
    return np.array([_expected_root_of_one(*row) for row in zip(values, squares, strict=True)])


def _expected_root_of_one(values: np.ndarray, squares: np.ndarray) -> float:
    scale = float(np.sum(values + squares))
    if scale == 0:
        return 0.0
    s = np.exp(LOG_S)[:, None]  # in units of 1/E Q, where the integrand has its bulk about s = 1
    grown = 2 * s * values / scale
    exponent = -np.sum(0.5 * np.log1p(grown) + s * (squares / scale) / (1 + grown), axis=1)
    integral = np.sum(-np.expm1(exponent) / np.sqrt(s[:, 0])) * (LOG_S[1] - LOG_S[0])
    return float(np.sqrt(scale) * integral / (2 * np.sqrt(np.pi)))


@partial(jax.jit, static_argnames=("count", "channels"))
def _draw_orbit(key: jax.Array, root: jax.Array, readout: jax.Array | None, count: int, channels: int) -> jax.Array:
    """Draw what one member adds to the mean at one sample and along its orbit, [count, (1 + elements)·positions, …]."""
    noise = jax.random.normal(key, (count, root.shape[1], channels), root.dtype)
    F = jnp.einsum("ij,sjc->sic", root, noise)
    return F if readout is None else F @ readout


def _merge_axes(leaf: jax.Array) -> jax.Array:
    return leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:])


def _members_needed(bias: np.ndarray, noise: np.ndarray, delta: float) -> np.ndarray:
    """Return for each draw the least M with ‖b_g + N_g/√M‖ ≤ δ for all g. It solves a quadratic equation in 1/√M."""
    bias, noise = bias / delta, noise / delta  # δ = 1 from here on, because δ² may overflow
    a, b, c = np.sum(noise**2, axis=2), np.sum(bias * noise, axis=2), 1 - np.sum(bias**2, axis=1)
    # With w = √M it is the larger root of c w² − 2 b w − a = 0.
    w = (b + np.sqrt(b**2 + a * c)) / c
    return np.max(w, axis=1) ** 2
