"""The law of the equivariance error D(g) = f̂(ρ_X(g)x) − ρ_Y(g)f̂(x) of M members, from that of one member.

At infinite width, and with the squared error, the mean f̂ of M members is Gaussian on any set of samples, also on x and
all ρ_X(g)x:

    mean of f̂(ρ_X(g)x)                      μ(ρ_X(g)x)
    cov of f̂(ρ_X(g)x), f̂(ρ_X(h)x)           S(g, h) ⊗ 1 / M        (1 over channels)

So D(g) is Gaussian too, with mean μ(gx) − ρ_Yμ(x) and covariance

    (1/M) [ S(g,g) + ρ_Y S(e,e) ρ_Yᵀ − S(g,e) ρ_Yᵀ − ρ_Y S(e,g) ],

which over channels is not a multiple of the identity, and may be as large as 4S/M.

The orbit variance Q = (1/|G|) Σ_g ‖ρ_Y(g)⁻¹f̂(gx) − average‖² is a quadratic form in Gaussians, Σ_k (√λ_k z_k + m_k)².
E√Q differs from √E Q, and follows from the Laplace transform of Q:

    E √Q = 1/(2√π) ∫₀^∞ (1 − E e^{−sQ}) s^{−3/2} ds,     E e^{−sQ} = Π_k (1 + 2λ_k s)^{−½} exp(−s m_k²/(1 + 2λ_k s)).

An `OrbitDeviation` answers questions about this law:

    bias, covariance                   the mean b of D(g), and its covariance
    expected, root_mean_square         E √Q and √E Q, exactly
    probability, quantile, members     of max_g ‖D(g)‖ and δ, by sampling
    same_predictions                   for how many g the predicted class stays the same, by sampling

Draws are of the noise N that a single member adds: D(g) = b(g) + N(g)/√M serves all M.

**Other losses.** Members are independent, but no longer Gaussian, and their channels are correlated. The mean of M of
them has the covariance of one over M, whatever their law is, and becomes Gaussian as M grows. A
`SampledOrbitDeviation` has the mean and the covariance of the members that were drawn, of all channels together, and
takes the law for Gaussian. So `covariance` and `root_mean_square` hold for every M. The other answers leave out O(1/M).
"""

import dataclasses
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ntk_equiv._check import positive_integer, random_key, refusal
from ntk_equiv.bounds._checks import Numbers, single_deviation, single_members, single_probability
from ntk_equiv.bounds._gaussian import covariance_root, split_draws
from ntk_equiv.bounds._members import round_up_sampled
from ntk_equiv.bounds._results import Sampled, jackknife_error

# Steps of ln s. The integrand is analytic and bounded within |Im ln s| < π/2, and falls as e^{−|ln s|/2}.
LOG_S = np.arange(-76.0, 76.25, 0.25)
# Into how many blocks the members that were drawn are divided, for standard errors.
JACKKNIFE_BLOCKS = 20


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
        return _deviation_covariance(self._joint_cov, self.actions) / single_members(members)

    def expected(self, members: Numbers = 1) -> Float[np.ndarray, "n"]:
        """The expected standard deviation over the orbit, E √(mean_g ‖ρ_Y(g)⁻¹f̂(gx) − average‖²), at each sample.

        Exact, by quadrature of the Laplace transform. Its average over a test set is `expected(members).mean()`.

        Args:
            members: M.

        Returns:
            [n].
        """
        return _expected_deviation(self._mean, self._joint_cov / single_members(members), self.actions)

    def root_mean_square(self, members: Numbers = 1) -> Float[np.ndarray, "n"]:
        """The root √E[variance over the orbit] at each sample, [n]; never below `expected`."""
        values, squares = _orbit_form(self._mean, self._joint_cov / single_members(members), self.actions)
        return np.sqrt(np.sum(values + squares, axis=1))

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
        scale = np.sqrt(single_members(members))
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
    def _joint_cov(self) -> np.ndarray:
        """The covariance of one member at x and along its orbit, [n, orbit, orbit, outputs, outputs]."""
        channel_cov = np.eye(self.mean.shape[-1]) if self.readout is None else self.readout.T @ self.readout
        return _with_channels(self.cov, len(self.actions) + 1, channel_cov)

    @property
    def _columns(self) -> int:
        """How many columns of normal numbers a root of `cov` multiplies."""
        return self.mean.shape[-1]

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
        roots, columns = jnp.asarray(covariance_root(self.cov, self.rounding)), self._columns
        readout = jnp.eye(self.mean.shape[-1]) if self.readout is None else jnp.asarray(self.readout)
        drawn = []
        for i, own in enumerate(jax.random.split(key, len(roots))):
            batches = []
            keys, each = split_draws(own, samples, roots.shape[1] * columns)
            for k in keys:
                F = np.asarray(_draw_orbit(k, roots[i], readout, each, columns))
                F = F.reshape(each, len(self.actions) + 1, -1)
                batches.append(statistic(F[:, 0], F[:, 1:], i))
            drawn.append(np.concatenate(batches)[:samples])
        return np.stack(drawn, axis=1)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SampledOrbitDeviation(OrbitDeviation):
    """The law of the equivariance error of M members with any loss, from members drawn; made by `orbit_deviation`.

    `bias`, `covariance` and `root_mean_square` are estimates that hold for every M. All else takes the mean of M
    members for Gaussian, as it is for many of them: `expected`, and tails. Their error from the members drawn is
    `standard_error` for `expected`. Intervals of `Sampled` records leave it out: draw more members to see it.

    Attributes:
        cov: as sampled, of all channels together, [n, (1 + elements)·channels, the same].
        outputs: the members that were drawn, at x and along its orbit, [drawn, n, 1 + elements, channels].
        contributions: what each of them contributes to the mean.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from ntk_equiv import augment, bounds, groups, reps, stax
        >>> from ntk_equiv.infinite import SampledEnsemble
        >>> _, _, kernel_fn = stax.serial(stax.Dense(64, 1.5, 0.1), stax.Relu(), stax.Dense(2))
        >>> x, classes = jnp.array([[1.0, 2.0], [0.5, -1.0]]), jnp.array([0, 1])
        >>> train = augment(x, classes, reps.matrix(groups.SO2.finite(4)))
        >>> ens = SampledEnsemble(kernel_fn, train, key=jax.random.key(0), members=400)
        >>> law = bounds.orbit_deviation(ens, jnp.array([[1.0, 0.0], [3.0, 1.0]]), 2.0)
        >>> law
        <law of the equivariance error at 2 samples under 4 elements, estimated from 400 members>
        >>> print(bool(abs(law.bias).max() < 1e-9))                       # the expected prediction is invariant
        True
        >>> print((law.standard_error(10) / law.expected(10) < 0.04).all())
        True
    """

    outputs: Float[np.ndarray, "drawn n orbit channels"] = dataclasses.field(kw_only=True)
    contributions: Float[np.ndarray, "drawn n orbit channels"] = dataclasses.field(kw_only=True)

    @classmethod
    def from_members(
        cls, outputs: np.ndarray, contributions: np.ndarray, actions: np.ndarray, readout: np.ndarray | None
    ) -> "SampledOrbitDeviation":
        """Return the law from outputs of members and their contributions to the mean, [drawn, n, orbit, channels]."""
        cov = _sample_covariance(outputs.reshape(*outputs.shape[:2], -1))
        mean = contributions.mean(axis=0)
        return cls(mean, cov, actions, readout, outputs=outputs, contributions=contributions)

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, estimated from {len(self.outputs)} members>"

    def standard_error(self, members: Numbers = 1) -> Float[np.ndarray, "n"]:
        """The standard error of `expected`, because of the members that were drawn: a jackknife over blocks of them.

        Args:
            members: M.

        Returns:
            [n].
        """
        members = single_members(members)
        blocks = np.array_split(np.arange(len(self.outputs)), min(JACKKNIFE_BLOCKS, len(self.outputs)))
        others = []
        for block in blocks:
            kept = np.delete(np.arange(len(self.outputs)), block)
            law = self.from_members(self.outputs[kept], self.contributions[kept], self.actions, self.readout)
            others.append(law.expected(members))
        return jackknife_error(others)

    @property
    def bias_error(self) -> Float[np.ndarray, "n elements outputs"]:
        """The standard error of `bias`; 0 up to rounding for the group that augments."""
        each = self.contributions if self.readout is None else self.contributions @ self.readout
        deviations = each[:, :, 1:] - np.einsum("gij,knj->kngi", self.actions, each[:, :, 0])
        return np.std(deviations, axis=0, ddof=1) / np.sqrt(len(each))

    @property
    def _joint_cov(self) -> np.ndarray:
        size, channels = len(self.actions) + 1, self.mean.shape[-1]
        blocks = self.cov.reshape(-1, size, channels, size, channels).swapaxes(2, 3)
        return blocks if self.readout is None else self.readout.T @ blocks @ self.readout

    @property
    def _columns(self) -> int:
        return 1


def _check_draws(key: jax.Array | None, samples: int) -> tuple[jax.Array, int]:
    """Return the key, which is always the same unless given, and the number of draws."""
    return jax.random.key(0) if key is None else random_key(key), positive_integer(samples, "samples")


def _sample_covariance(values: np.ndarray) -> np.ndarray:
    """Return the covariance of values [drawn, n, joint] at each sample, without bias, [n, joint, joint]."""
    centred = np.moveaxis(values - values.mean(axis=0), 0, 1)
    return centred.swapaxes(1, 2) @ centred / (len(values) - 1)


def _deviation_covariance(cov: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """Return the covariance of D(g), [n, elements, outputs, outputs].

    Args:
        cov: the covariance at x and along its orbit, [n, orbit, orbit, outputs, outputs].
        actions: ρ_Y(g), [elements, outputs, outputs].
    """
    own = np.einsum("nggij->ngij", cov[:, 1:, 1:])
    crossed = np.einsum("ngij,gkj->ngik", cov[:, 1:, 0], actions)
    start = np.einsum("gij,njk,glk->ngil", actions, cov[:, 0, 0], actions)
    return own + start - crossed - crossed.swapaxes(2, 3)


def _expected_deviation(mean: np.ndarray, cov: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """Return E √Q, [n]; arguments as for `_orbit_form`."""
    forms = zip(*_orbit_form(mean, cov, actions), strict=True)
    return np.array([_expected_root(values, squares) for values, squares in forms])


def _orbit_form(mean: np.ndarray, cov: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return λ_k and m_k² of the orbit variance, [n, elements · outputs].

    Args:
        mean: the mean at x and along its orbit, [n, orbit, *outputs].
        cov: the covariance there, [n, orbit, orbit, outputs, outputs].
        actions: ρ_Y(g), [elements, outputs, outputs].
    """
    n, count, size = len(mean), len(actions), actions.shape[1]
    # ρ_Y is orthogonal, so ρ_Y(g)ᵀ turns f̂(gx) back.
    turned = np.einsum("gji,nghjk,hkl->ngihl", actions, cov[:, 1:, 1:], actions, optimize=True)
    turned = turned.reshape(n, count * size, -1)
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


def _expected_root(values: np.ndarray, squares: np.ndarray) -> float:
    """Return E √(Σ_k (√λ_k z_k + m_k)²) for λ and m² [k]."""
    scale = float(np.sum(values + squares))
    if scale == 0:
        return 0.0
    s = np.exp(LOG_S)[:, None]  # in units of 1/E Q, where the integrand has its bulk about s = 1
    grown = 2 * s * values / scale
    exponent = -np.sum(0.5 * np.log1p(grown) + s * (squares / scale) / (1 + grown), axis=1)
    integral = np.sum(-np.expm1(exponent) / np.sqrt(s[:, 0])) * (LOG_S[1] - LOG_S[0])
    return float(np.sqrt(scale) * integral / (2 * np.sqrt(np.pi)))


@partial(jax.jit, static_argnames=("count", "columns"))
def _draw_orbit(key: jax.Array, root: jax.Array, readout: jax.Array, count: int, columns: int) -> jax.Array:
    """Draw what one member adds to the mean at one sample and along its orbit, [count, everywhere, combined]."""
    noise = jax.random.normal(key, (count, root.shape[1], columns), root.dtype)
    F = jnp.einsum("ij,sjc->sic", root, noise)
    return F.reshape(count, -1, len(readout)) @ readout


def _members_needed(bias: np.ndarray, noise: np.ndarray, delta: float) -> np.ndarray:
    """Return for each draw the least M with ‖b_g + N_g/√M‖ ≤ δ for all g. It solves a quadratic equation in 1/√M."""
    bias, noise = bias / delta, noise / delta  # δ = 1 from here on, because δ² may overflow
    a, b, c = np.sum(noise**2, axis=2), np.sum(bias * noise, axis=2), 1 - np.sum(bias**2, axis=1)
    # With w = √M it is the larger root of c w² − 2 b w − a = 0.
    w = (b + np.sqrt(b**2 + a * c)) / c
    return np.max(w, axis=1) ** 2
