"""The law of an ensemble along the orbit of a point, and of its deviation from equivariance.

At infinite width the mean f̂ of M members is Gaussian on any set of points, also on x and all ρ_X(g)x:

    mean of f̂(ρ_X(g)x)                      μ(ρ_X(g)x)
    cov of f̂(ρ_X(g)x), f̂(ρ_X(h)x)           S(g, h) ⊗ 1 / M        (1 over channels)

so that D(g) = f̂(ρ_X(g)x) − ρ_Y(g)f̂(x) is Gaussian too, with mean μ(gx) − ρ_Yμ(x) and covariance

    (1/M) [ S(g,g) + ρ_Y S(e,e) ρ_Yᵀ − S(g,e) ρ_Yᵀ − ρ_Y S(e,g) ],

which over channels is not a multiple of the identity, and as large as 4S/M.

The orbit variance Q = (1/|G|) Σ_g ‖ρ_Y(g)⁻¹f̂(gx) − average‖² is a quadratic form in Gaussians, Σ_k (√λ_k z_k + m_k)²,
and E√Q, which is not √E Q, follows from its Laplace transform:

    E √Q = 1/(2√π) ∫₀^∞ (1 − E e^{−sQ}) s^{−3/2} ds,     E e^{−sQ} = Π_k (1 + 2λ_k s)^{−½} exp(−s m_k²/(1 + 2λ_k s)).
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv._gram import kernel_diagonal, split_kernel
from ntk_equiv._positions import joint
from ntk_equiv._typing import Inputs
from ntk_equiv.infinite import InfiniteEnsemble, rounding_allowed
from ntk_equiv.reps import Representation

# Points whose covariance is asked for at once; of theirs only the blocks on the diagonal are kept.
TOGETHER = 192
# Steps of ln s. The integrand is analytic and bounded within |Im ln s| < π/2, and falls as e^{−|ln s|/2}.
LOG_S = np.arange(-76.0, 76.25, 0.25)


def orbit_moments(
    ens: InfiniteEnsemble, x: Inputs, t: Any, rep_x: Representation, elements: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Mean [n, 1 + elements, *positions, channels] and covariance [n, (…, positions), the same] at x and its orbit.

    The first of the 1 + elements is x itself.
    """
    orbit = rep_x.orbit(x, elements)
    both = jax.tree.map(lambda one, many: jnp.concatenate([one[None], many]).swapaxes(0, 1), x, orbit)
    n, size = jax.tree.leaves(both)[0].shape[:2]
    parts = -(-n // max(1, TOGETHER // size))
    step = max(1, -(-n // max(1, parts)))  # parts of one size, compiled once
    means, covs = [], []
    for start in range(0, n, step):
        part = jax.tree.map(lambda leaf: _joined(leaf[start : start + step]), both)  # noqa: B023
        mean = np.asarray(ens.mean(part, t), dtype=float)
        mean = mean.reshape(-1, size, *(mean.shape[1:] or (1,)))
        cov = np.asarray(joint(ens.cov(part, t)), dtype=float)
        rows = len(cov) // len(mean)
        covs += [cov[i * rows : (i + 1) * rows, i * rows : (i + 1) * rows] for i in range(len(mean))]
        means.append(mean)
    return np.concatenate(means), np.array(covs)


def rounding_of(ens: InfiniteEnsemble, x: Inputs) -> float:
    """What rounding may add to covariances at x, which are differences of terms as large as before training."""
    prior = kernel_diagonal(split_kernel(ens.kernel_fn), x)
    return rounding_allowed(prior) * float(jnp.max(prior, initial=0.0))


def action_matrices(rep_y: Representation, elements: Any, shape: tuple[int, ...]) -> np.ndarray:
    """ρ_Y(g) as matrices on outputs of this shape, positions and channels together."""
    size = int(np.prod(shape))
    moved = rep_y.orbit(jnp.eye(size).reshape(size, *shape), elements)
    return np.asarray(moved, dtype=float).reshape(-1, size, size).swapaxes(1, 2)


def deviation_covariance(cov: np.ndarray, actions: np.ndarray, gram: np.ndarray) -> np.ndarray:
    """The covariance of D(g) for one member, [n, elements, outputs, outputs].

    Args:
        cov: along the orbit, from `orbit_moments`.
        actions: ρ_Y(g), [elements, outputs, outputs].
        gram: the covariance of the channels of one output, the identity unless they are combined.
    """
    wide = _with_channels(cov, len(actions) + 1, gram)
    own = np.einsum("nggij->ngij", wide[:, 1:, 1:])
    crossed = np.einsum("ngij,gkj->ngik", wide[:, 1:, 0], actions)
    start = np.einsum("gij,njk,glk->ngil", actions, wide[:, 0, 0], actions)
    return own + start - crossed - crossed.swapaxes(2, 3)


def orbit_form(
    mean: np.ndarray, cov: np.ndarray, actions: np.ndarray, gram: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """λ_k and m_k² of the orbit variance of one member at each point, [n, elements · outputs]; arguments as above."""
    n, count, size = len(mean), len(actions), actions.shape[1]
    wide = _with_channels(cov, count + 1, gram)[:, 1:, 1:]
    # Orthogonal actions: what is compared is ρ_Y(g)ᵀ f̂(gx).
    turned = np.einsum("gji,nghjk,hkl->ngihl", actions, wide, actions, optimize=True).reshape(n, count * size, -1)
    centring = np.kron(np.eye(count) - 1 / count, np.eye(size)) / np.sqrt(count)
    values, vectors = np.linalg.eigh(centring @ turned @ centring.T)
    values = np.maximum(values, 0) * (values > 1e-12 * np.max(values, axis=1, initial=0.0)[:, None])
    level = np.einsum("gji,ngj->ngi", actions, mean[:, 1:].reshape(n, count, size)).reshape(n, -1) @ centring.T
    return values, np.einsum("nij,ni->nj", vectors, level) ** 2


def _with_channels(cov: np.ndarray, points: int, gram: np.ndarray) -> np.ndarray:
    """S(g, h) ⊗ gram on all outputs of each pair of the points of an orbit, [n, points, points, outputs, outputs]."""
    positions, channels = cov.shape[1] // points, len(gram)
    blocks = cov.reshape(len(cov), points, positions, points, positions)
    wide = np.einsum("ngphq,cd->nghpcqd", blocks, gram)
    return wide.reshape(len(cov), points, points, positions * channels, positions * channels)


def expected_root(values: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """E √(Σ_k (√λ_k z_k + m_k)²) for λ and m² [n, k]."""
    return np.array([_expected_root(*row) for row in zip(values, squares, strict=True)])


def _expected_root(values: np.ndarray, squares: np.ndarray) -> float:
    scale = float(np.sum(values + squares))
    if scale == 0:
        return 0.0
    s = np.exp(LOG_S)[:, None]
    grown = 2 * s * values / scale
    exponent = -np.sum(0.5 * np.log1p(grown) + s * (squares / scale) / (1 + grown), axis=1)
    integral = np.sum(-np.expm1(exponent) / np.sqrt(s[:, 0])) * (LOG_S[1] - LOG_S[0])
    return float(np.sqrt(scale) * integral / (2 * np.sqrt(np.pi)))


@partial(jax.jit, static_argnames=("count", "channels"))
def draw_orbit(key: jax.Array, root: jax.Array, readout: jax.Array | None, count: int, channels: int) -> jax.Array:
    """Draws of what one member adds to the mean at one point, [count, 1 + elements, outputs of each]."""
    noise = jax.random.normal(key, (count, root.shape[1], channels), root.dtype)
    F = jnp.einsum("ij,sjc->sic", root, noise)
    return F if readout is None else F @ readout


def _joined(leaf: jax.Array) -> jax.Array:
    return leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:])
