"""How equivariant ensembles of any size are, measured from their members and predicted by theory.

The equivariance error of member m is D_m(g, x) = f_m(ρ_X(g)x) − ρ_Y(g)f_m(x). All mean squares follow from

    P_mm' = mean of D_m(g, x) D_m'(g, x) over elements, samples and channels        `products`

The diagonal of P has the orbit MSE of each member. The orbit MSE of an ensemble is the mean of P over the rows and
columns of its members. Its expected value is

    b + v/M,        b = mean P_mm' (m ≠ m'),        v = mean P_mm − b               `parts`

where b is the squared error of the infinite ensemble and v is the variance of the error of one member. Theory knows
both before anything is trained (`predicted_parts`).
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv import bounds
from ntk_equiv.reps import Representation


def with_orbit(x: Any, rep_x: Representation, elements: Any) -> Any:
    """Return samples and their images, [(1 + elements) · n, ...], x itself first. None means the whole finite group."""
    moved = rep_x.orbit(x, elements)

    def joined(one: jax.Array, many: jax.Array) -> jax.Array:
        return jnp.concatenate([one[None], many]).reshape(-1, *one.shape[1:])

    return jax.tree.map(joined, x, moved)


def products(errors: Any) -> jax.Array:
    """Return P of errors [members, ...]."""
    rows = jnp.asarray(errors).reshape(len(errors), -1)
    return jnp.matmul(rows, rows.T, precision=jax.lax.Precision.HIGHEST) / rows.shape[1]


def orbit_errors(rep_y: Representation, elements: Any) -> Callable[[Any], jax.Array]:
    """Return a function from predictions [members, (1 + elements) · n, channels] at `with_orbit` to the errors D.

    These have the shape [members, elements, n, channels].
    """

    def of_predictions(predictions: Any) -> jax.Array:
        members, channels = len(predictions), predictions.shape[-1]
        count = rep_y.group.order if elements is None else len(elements)
        p = predictions.reshape(members, count + 1, -1, channels)
        turned = rep_y.orbit(p[:, 0].reshape(-1, channels), elements).reshape(count, members, -1, channels)
        return p[:, 1:] - turned.swapaxes(0, 1)

    return of_predictions


def orbit_products(rep_y: Representation, elements: Any) -> Callable[[Any], jax.Array]:
    """Return a function from predictions [members, (1 + elements) · n, channels] at `with_orbit` to P."""
    errors = orbit_errors(rep_y, elements)
    return lambda predictions: products(errors(predictions))


def parts(P: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return unbiased estimates of (b + v, v, b) from at least 3 members, and their standard errors."""
    return _parts(P), _standard_errors(P, _parts)


def of_ensembles(P: np.ndarray, sizes: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the orbit MSE of ensembles of each size M, and its standard error.

    It is the mean over all ensembles that can be formed from the members, b + v/M with b and v of `parts`.
    """

    def expected(P: np.ndarray) -> np.ndarray:
        return expected_of_ensembles(_parts(P), sizes)

    return expected(P), _standard_errors(P, expected)


def expected_of_ensembles(found: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """Return the expected value b + v/M for each size M, from the parts (b + v, v, b)."""
    _, v, b = found
    return b + v / np.asarray(sizes)


def _parts(P: np.ndarray) -> np.ndarray:
    own, count = np.trace(P) / len(P), len(P)
    b = (P.sum() - np.trace(P)) / (count * (count - 1))
    return np.array([own, own - b, b])


def _standard_errors(P: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Return jackknife errors: each member is left out once. They are slightly too large for a b that is exactly 0."""
    left_out = np.array([statistic(np.delete(np.delete(P, m, 0), m, 1)) for m in range(len(P))])
    return np.sqrt((len(P) - 1) * left_out.var(axis=0))


def predicted_parts(law: bounds.OrbitDeviation) -> np.ndarray:
    """Return (b + v, v, b) as the theory predicts them."""
    v = np.einsum("ngii->ngi", law.covariance(1)).mean()
    b = np.mean(law.bias**2)
    return np.array([b + v, v, b])


def powers(members: int) -> tuple[int, ...]:
    """Return ensemble sizes 1, 2, 4, … up to all members."""
    return (*(2**i for i in range(max(members - 1, 0).bit_length())), members)
