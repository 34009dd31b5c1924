"""What cancels between nearly parallel or opposite samples, computed from the gap of their cosine instead.

With variances q = r², the covariance k = r r' c and the gap g = 1 − c,

    cosine                   k / (r r')
    `squared_distance`       q + q' − 2k  =  (r − r')² + 2 r r' g
    `complement`             √(1 − z²),       1 − z² = s² + s'² − s² s'² + w² w'² g (2 − g)

for z = w w' c with w² = βq / (1 + βq) = 1 − s². Each is a sum of terms that are not negative, so that it keeps its
relative precision at any scale, where a difference of large variances would be all rounding.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Float

from ntk_equiv._typing import Array

# What s² is multiplied with: at variances close to the largest number it would be too small for one.
RAISED = 2.0**60


@jax.custom_jvp
def cosine(
    k: Float[Array, "..."],
    q1: Float[Array, "..."],
    inverse_root1: Float[Array, "..."],
    q2: Float[Array, "..."],
    inverse_root2: Float[Array, "..."],
) -> Float[Array, "..."]:
    """The cosine k / √(q q') from 1/√q and 1/√q', which are 0 for samples that vanish.

    >>> one = jnp.ones(1)
    >>> print(cosine(3 * one, 4 * one, one / 2, 9 * one, one / 3))
    [0.5]
    """
    return k * inverse_root1 * inverse_root2


@cosine.defjvp
def _cosine_jvp(primals: tuple, tangents: tuple) -> tuple:
    # The derivative of 1/√q alone, −q^(−3/2)/2, is no number in single precision at variances that are.
    _, _, inverse_root1, _, inverse_root2 = primals
    dk, dq1, _, dq2, _ = tangents
    c = cosine(*primals)
    along = dq1 * inverse_root1 * inverse_root1 + dq2 * inverse_root2 * inverse_root2
    return c, dk * inverse_root1 * inverse_root2 - c / 2 * along


@jax.custom_jvp
def squared_distance(
    k: Float[Array, "..."],
    gap: Float[Array, "..."],
    q1: Float[Array, "..."],
    root1: Float[Array, "..."],
    q2: Float[Array, "..."],
    root2: Float[Array, "..."],
) -> Float[Array, "..."]:
    """The difference q + q' − 2k, and with −k and 2 − gap in their places q + q' + 2k.

    >>> one = jnp.ones(1)
    >>> print(squared_distance(6 * one, 0 * one, 4 * one, 2 * one, 9 * one, 3 * one))
    [1.]
    """
    return jnp.square(root1 - root2) + 2 * (root1 * gap) * root2


@squared_distance.defjvp
def _squared_distance_jvp(primals: tuple, tangents: tuple) -> tuple:
    # It is differentiable at samples that vanish, where their norm and cosine are not.
    dk, _, dq1, _, dq2, _ = tangents
    return squared_distance(*primals), dq1 + dq2 - 2 * dk


def saturation(beta: Float[Array, ""], q: Float[Array, "*shape"], root: Float[Array, "*shape"]) -> dict[str, Array]:
    """Return s (`scale`), s² (`plain`, and raised `rest`) and w² (`share`, raised by the root) of samples.

    >>> scale, rest, plain, share = saturation(jnp.array(1.0), jnp.array([3.0]), jnp.array([3.0**0.5])).values()
    >>> print(scale, plain, rest / RAISED, share / RAISED**0.5)
    [0.5] [0.25] [0.25] [0.75]
    """
    largest = float(jnp.finfo(q.dtype).max) / 16
    beyond = beta * q > largest  # There w² is 1.
    variance = jnp.where(beyond, largest, beta * q)
    far = jax.lax.rsqrt(jnp.abs(beta)) / jnp.where(beyond, root, 1)
    scale = jnp.where(beyond, far, jax.lax.rsqrt(1 + variance))
    rest = jnp.maximum(jnp.square(scale * RAISED**0.5), float(jnp.finfo(q.dtype).tiny))
    return {"scale": scale, "rest": rest, "plain": rest / RAISED, "share": RAISED**0.5 * (variance / (1 + variance))}


def complement(
    gap: Float[Array, "..."], left: dict[str, Array], right: dict[str, Array]
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """√(1 − z²) and its inverse, from what `saturation` returned for both samples.

    >>> one = saturation(jnp.ones(()), jnp.ones(1), jnp.ones(1))
    >>> root, inverse = complement(jnp.zeros(1), one, one)  # z = 1/2
    >>> print(root**2, root * inverse)
    [0.75] [1.]
    """
    apart = left["share"] * right["share"] * (gap * (2 - gap))
    raised = (left["rest"] + right["rest"] - left["plain"] * right["rest"]) + apart
    root = jnp.sqrt(raised) / RAISED**0.5
    return root, 1 / root
