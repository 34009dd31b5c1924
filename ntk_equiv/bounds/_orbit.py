"""The equivariance error of M members, without training any: records and questions about them."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv._check import positive_integer, random_key, real_array, refusal
from ntk_equiv._typing import Inputs
from ntk_equiv.bounds import _orbit_law, _ranges
from ntk_equiv.bounds._members import whole
from ntk_equiv.bounds._records import Sampled
from ntk_equiv.bounds._simultaneous import covariance_root
from ntk_equiv.infinite import InfiniteEnsemble
from ntk_equiv.reps import Representation
from ntk_equiv.reps._given import actions_on_both


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class OrbitDeviation:
    """The exact law of the equivariance error of M members at each test point, made by `orbit_deviation`.

    Attributes:
        mean: the mean prediction at x and along its orbit, [n, 1 + elements, *positions, channels].
        cov: the covariance of one member there, of each channel, [n, (1 + elements)·positions, the same].
        actions: ρ_Y(g) as matrices on all outputs of a point, [elements, outputs, outputs].
        readout: the combination of channels that is looked at, [channels, combined]; None for all channels.
        rounding: what rounding may have added to eigenvalues of the covariance.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import InfiniteEnsemble, augment, bounds, groups, reps, stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(64, 1.5, 0.1), stax.Relu(), stax.Dense(1))
        >>> x, y = jnp.array([[1.0, 2.0], [0.5, -1.0]]), jnp.array([1.0, -1.0])
        >>> ens = InfiniteEnsemble(kernel_fn, augment(x, y, reps.matrix(groups.SO2.finite(4))), method="dense")
        >>> law = bounds.orbit_deviation(ens, jnp.array([[1.0, 0.0], [3.0, 1.0]]), 2.0)
        >>> law
        <law of the equivariance error at 2 points under 4 elements>
        >>> print(law.bias.shape, bool(abs(law.bias).max() < 1e-12))      # the mean of the ensemble is invariant
        (2, 4, 1) True
        >>> print((1e4 * law.covariance(members=100)[0, :, 0, 0]).round(1))      # the identity changes nothing
        [0.  2.3 0.4 2.3]
        >>> print(law.root_mean_square(members=1).round(3))               # above the expected value of the same
        [0.078 0.181]
    """

    mean: np.ndarray
    cov: np.ndarray
    actions: np.ndarray
    readout: np.ndarray | None
    rounding: float = 0.0

    def __repr__(self) -> str:
        return f"<law of the equivariance error at {len(self.mean)} points under {len(self.actions)} elements>"

    @property
    def bias(self) -> np.ndarray:
        """The mean of D(g), μ(ρ_X(g)x) − ρ_Y(g)μ(x), [n, elements, outputs]: 0 for the group that augments."""
        outputs = self._mean.reshape(*self._mean.shape[:2], -1)
        return outputs[:, 1:] - np.einsum("gij,nj->ngi", self.actions, outputs[:, 0])

    def covariance(self, members: Any = 1) -> np.ndarray:
        """The covariance of D(g) for each element, [n, elements, outputs, outputs]."""
        return _orbit_law.deviation_covariance(self.cov, self.actions, self._gram) / _ranges.one_count(members)

    def expected(self, members: Any = 1) -> np.ndarray:
        """The expected standard deviation over the orbit, E √(mean_g ‖ρ_Y(g)⁻¹f̂(gx) − average‖²), at each point.

        Exact, by quadrature of the Laplace transform. Its average over a test set is `expected(members).mean()`.

        Args:
            members: M.

        Returns:
            [n].
        """
        values, squares = _orbit_law.orbit_form(self._mean, self.cov, self.actions, self._gram)
        return _orbit_law.expected_root(values / _ranges.one_count(members), squares)

    def root_mean_square(self, members: Any = 1) -> np.ndarray:
        """√E[variance over the orbit] at each point, [n]; never below `expected`."""
        values, squares = _orbit_law.orbit_form(self._mean, self.cov, self.actions, self._gram)
        return np.sqrt(np.sum(values / _ranges.one_count(members) + squares, axis=1))

    def probability(self, members: Any, delta: Any, *, key: jax.Array | None = None, samples: int = 10_000) -> Sampled:
        """The probability that ‖D(g)‖ > δ for any g, at each point, by sampling.

        Args:
            members: M.
            delta: the tolerated deviation.
            key: a JAX random key; the same draws every time unless given.
            samples: how many draws.

        Returns:
            A `Sampled` record of [n] numbers.
        """
        scale, delta = (
            np.sqrt(_ranges.one_count(members)),
            _ranges.one_deviation(delta),
        )
        hits = self._sampled(lambda b, N: np.linalg.norm(b + N / scale, axis=2).max(axis=1) > delta, key, samples)
        return Sampled.probability(hits.sum(axis=0), samples)

    def quantile(self, members: Any, epsilon: Any, *, key: jax.Array | None = None, samples: int = 10_000) -> Sampled:
        """What max_g ‖D(g)‖ exceeds with probability ε, at each point, by sampling; arguments as in `probability`."""
        scale, epsilon = (
            np.sqrt(_ranges.one_count(members)),
            _ranges.one_probability(epsilon),
        )
        return Sampled.quantile(
            self._sampled(lambda b, N: np.linalg.norm(b + N / scale, axis=2).max(axis=1), key, samples), epsilon
        )

    def members(self, delta: Any, epsilon: Any, *, key: jax.Array | None = None, samples: int = 10_000) -> Sampled:
        """The number of members for which ‖D(g)‖ ≤ δ for all g with probability 1 − ε, at each point, by sampling.

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
        delta, epsilon = (
            _ranges.one_deviation(delta),
            _ranges.one_probability(epsilon),
        )
        worst = float(np.linalg.norm(self.bias, axis=2).max())
        if worst >= delta:
            fix = "No number of members gets below the deviation of the mean: augment by the whole group."
            raise refusal("delta", expected=f"above {worst:.3g}, how far the mean deviates", got=delta, fix=fix)
        found = Sampled.quantile(self._sampled(lambda b, N: _enough(b, N, delta), key, samples), epsilon)
        if not np.isfinite(found.upper).all():
            fix = f"Take more, at least about {10 / epsilon:.3g}."
            expected = f"enough to see what happens with probability {epsilon}"
            raise refusal("samples", expected=expected, got=samples, fix=fix)
        return Sampled(whole(found.value), whole(found.lower), whole(found.upper), found.confidence, samples)

    def same_predictions(self, members: Any, *, key: jax.Array, samples: int = 2000) -> Sampled:
        """The expected number of g for which f̂(ρ_X(g)x) has its largest channel where ρ_Y(g)f̂(x) has it, per point."""
        scale = np.sqrt(_ranges.one_count(members))
        outputs = self._mean.reshape(*self._mean.shape[:2], -1)

        def agreeing(start: np.ndarray, moved: np.ndarray, i: int) -> np.ndarray:
            there = np.argmax(outputs[i, 1:] + moved / scale, axis=2)
            here = np.einsum("gij,sj->sgi", self.actions, outputs[i, 0] + start / scale)
            return (there == np.argmax(here, axis=2)).sum(axis=1).astype(float)

        return Sampled.mean(self._draws(agreeing, key, samples))

    @property
    def _mean(self) -> np.ndarray:
        return self.mean if self.readout is None else self.mean @ self.readout

    @property
    def _gram(self) -> np.ndarray:
        return np.eye(self.mean.shape[-1]) if self.readout is None else self.readout.T @ self.readout

    def _sampled(self, statistic: Callable, key: jax.Array | None, samples: int) -> np.ndarray:
        """A statistic of the bias [elements, outputs] and what members add to it [draws, elements, outputs]."""
        bias = self.bias

        def of_deviation(start: np.ndarray, moved: np.ndarray, i: int) -> np.ndarray:
            return statistic(bias[i], moved - np.einsum("gij,sj->sgi", self.actions, start))

        return self._draws(of_deviation, jax.random.key(0) if key is None else key, samples)

    def _draws(self, statistic: Callable, key: jax.Array, samples: int) -> np.ndarray:
        """The statistic of draws at x and along the orbit, [samples, n]."""
        positive_integer(samples, "samples")
        random_key(key)
        roots, channels = jnp.asarray(covariance_root(self.cov, self.rounding)), self.mean.shape[-1]
        part = max(1, min(samples, _orbit_law.ROOM // (roots.shape[1] * channels)))
        readout = None if self.readout is None else jnp.asarray(self.readout)
        columns = []
        for i, own in enumerate(jax.random.split(key, len(roots))):
            found = []
            for k in jax.random.split(own, -(-samples // part)):
                F = np.asarray(_orbit_law.draw_orbit(k, roots[i], readout, part, channels))
                F = F.reshape(part, len(self.actions) + 1, -1)
                found.append(statistic(F[:, 0], F[:, 1:], i))
            columns.append(np.concatenate(found)[:samples])
        return np.stack(columns, axis=1)


def _enough(bias: np.ndarray, noise: np.ndarray, delta: float) -> np.ndarray:
    """For each draw the least M with ‖b_g + N_g/√M‖ ≤ δ for all g: with u = 1/√M, a quadratic equation in u."""
    bias, noise = bias / delta, noise / delta  # δ = 1 from here on: its square may be no number
    a, b, c = np.sum(noise**2, axis=2), np.sum(bias * noise, axis=2), 1 - np.sum(bias**2, axis=1)
    # 1/u from the larger root of c w² − 2 b w − a = 0 with w = 1/u.
    w = (b + np.sqrt(b**2 + a * c)) / c
    return np.max(w, axis=1) ** 2


def orbit_deviation(
    ens: InfiniteEnsemble,
    x: Inputs,
    t: Any = None,
    *,
    rep_x: Representation | None = None,
    rep_y: Representation | None = None,
    elements: Any = None,
    readout: Any = None,
) -> OrbitDeviation:
    """The exact law of f̂(ρ_X(g)x) − ρ_Y(g)f̂(x), the equivariance error of the mean of M members, for all g.

    What it says about members and ensembles needs no training: the orbit deviation of one member is √M times that of
    the mean of M members, in law; a single realised ensemble scatters about it.

    Args:
        ens: the infinite ensemble.
        x: test points, [n, ...].
        t: one training time; None for that of the filter.
        rep_x: how the group acts on points; as in the training data unless given.
        rep_y: how it acts on outputs; as in the training data unless `rep_x` or `readout` is given, then trivially.
        elements: some elements instead of all; matrices of a continuous group.
        readout: numbers [channels] or [channels, combined], a linear combination of the channels to look at instead.

    Returns:
        A record: `expected(members)`, `probability(members, delta)`, `quantile(members, epsilon)` and
        `members(delta, epsilon)`, each for every point.

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
    _ranges.one_time(t)
    x = _ranges.ensemble(ens)._points(x)
    own = rep_x is None and readout is None
    rep_x = ens.rep_x if rep_x is None else rep_x
    if rep_x is None:
        fix = "The data of this ensemble are not augmented: say how the group acts on points."
        raise refusal("rep_x", expected="given", got="nothing", fix=fix)
    rep_x, rep_y = actions_on_both(rep_x, ens.rep_y if own and rep_y is None else rep_y)
    chosen = rep_x.elements(elements)
    readout = _checked_readout(readout, 1 if ens.y.ndim == 1 else ens.y.shape[-1])
    mean, cov = _orbit_law.orbit_moments(ens, x, t, rep_x, chosen)
    shape = mean.shape[2:] if readout is None else (*mean.shape[2:-1], readout.shape[1])
    actions = _orbit_law.action_matrices(rep_y, chosen, shape)
    if np.abs(actions @ actions.swapaxes(1, 2) - np.eye(actions.shape[1])).max() > 1e-4:
        fix = "Sizes of deviations mean the same at all points of an orbit only if ρ_Y keeps lengths."
        raise refusal("rep_y", expected="orthogonal", got=f"{rep_y}, which is not", fix=fix)
    return OrbitDeviation(mean, cov, actions, readout, _orbit_law.rounding_of(ens, x))


def expected_osp(
    ens: InfiniteEnsemble,
    x: Inputs,
    t: Any,
    members: Any,
    key: jax.Array,
    *,
    rep_x: Representation | None = None,
    rep_y: Representation | None = None,
    elements: Any = None,
    samples: int = 2000,
) -> Sampled:
    """The expected orbit-same-prediction of M members: for how many g the predicted class of ρ_X(g)x is that of x.

    The identity counts, so that it lies between 1 and |G|. Predicted by sampling the joint law over the orbit.

    Args:
        ens: the infinite ensemble, with one output channel for each class.
        x: test points, [n, ...].
        t: one training time; None for that of the filter.
        members: M.
        key: a JAX random key.
        rep_x: as for `orbit_deviation`.
        rep_y: as for `orbit_deviation`; where it permutes the classes, so are the predictions compared.
        elements: as for `orbit_deviation`.
        samples: how many ensembles are drawn for each point.

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
        [2.7 2.9]
        [3.6 3.6]
    """
    shape = _ranges.ensemble(ens).y.shape[1:]
    if len(shape) != 1 or shape[0] < 2:
        fix = "Classification needs one output channel for each class, and one output for each point."
        raise refusal("ens", expected="an ensemble with several channels", got=f"shape {shape}", fix=fix)
    random_key(key)
    law = orbit_deviation(ens, x, t, rep_x=rep_x, rep_y=rep_y, elements=elements)
    return law.same_predictions(members, key=key, samples=samples)


def _checked_readout(readout: Any, channels: int) -> np.ndarray | None:
    if readout is None:
        return None
    readout = np.asarray(real_array(readout, "readout"), dtype=float)
    if readout.ndim not in (1, 2) or readout.shape[0] != channels:
        fix = "One number for each channel, or several columns of them."
        raise refusal("readout", expected=f"of shape [{channels}] or [{channels}, …]", got=readout.shape, fix=fix)
    return readout.reshape(channels, -1)
