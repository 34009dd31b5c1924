"""Augmentation by randomly drawn elements, which are no subgroup, measured over draws.

D(g) = f̄(ρ_X(g)x) − ρ_Y(g)f̄(x) depends on the draw. If all members share one draw, the ensemble has that error, of which
E‖D(g)‖ is the expected size. If each member draws its own elements from the Haar measure, the ensemble's prediction is
the expectation over draws, and E D(g) = 0 for any number of elements: shifting all of them by g gives an equally likely
draw. Not so if the identity is always among them.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ntk_equiv._check import boolean, function, positive_integer, random_key, refusal
from ntk_equiv._typing import Inputs
from ntk_equiv.bounds import _ranges
from ntk_equiv.bounds._measured import deviations
from ntk_equiv.bounds._records import Sampled
from ntk_equiv.bounds._setting import setting
from ntk_equiv.bounds._weights import as_representation
from ntk_equiv.infinite import InfiniteEnsemble


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class RandomAugmentation:
    """The equivariance error of ensembles augmented by randomly drawn elements, measured.

    Attributes:
        signed: the mean of D(g) over draws, the error if each member draws for itself, [elements, n, channels].
        absolute: the mean of ‖D(g)‖ over draws, the expected error if members share a draw, [elements, n].
        elements: the g at which it was measured, [elements, d, d].

    Example:
        >>> import numpy as np
        >>> from ntk_equiv import bounds
        >>> signed = bounds.Sampled.mean(np.array([0.5, -0.25]), 0.95)          # two draws
        >>> absolute = bounds.Sampled.mean(np.array([0.5, 0.25]), 0.95)
        >>> found = bounds.RandomAugmentation(signed, absolute, np.eye(2)[None])
        >>> print(found.signed.value, found.absolute.value)
        0.125 0.375
        >>> found
        <largest equivariance error: 0.125 if members draw for themselves, 0.375 if they share it>
    """

    signed: Sampled
    absolute: Sampled
    elements: Float[np.ndarray, "elements d d"]

    def __repr__(self) -> str:
        signed = np.abs(np.asarray(self.signed)).max()
        shared = np.asarray(self.absolute).max()
        return (
            f"<largest equivariance error: {signed:.3g} if members draw for themselves, {shared:.3g} if they share it>"
        )


def random_augmentation_deviation(
    build: Callable[[jax.Array], InfiniteEnsemble],
    rep: Any,
    x: Inputs,
    t: Any = None,
    *,
    count: int,
    key: jax.Array,
    draws: int = 50,
    elements: int = 8,
    rep_y: Any = None,
    with_identity: bool = False,
) -> RandomAugmentation:
    """The equivariance error of infinite ensembles whose data are augmented by random elements, over many draws.

    Args:
        build: makes the ensemble augmented by given elements of the group, matrices [count, d, d].
        rep: the representation of the continuous group on points, or the group itself.
        x: test points.
        t: one training time; None for that of the filter.
        count: how many elements augment.
        key: a JAX random key.
        draws: how many times they are drawn.
        elements: at how many elements of the group the error is measured.
        rep_y: the representation of the continuous group on outputs; None if they are invariant.
        with_identity: whether the identity is always one of the elements that augment.

    Returns:
        A record with the `signed` and the `absolute` error.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from ntk_equiv import InfiniteEnsemble, augment, bounds, groups, reps, stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(64, 1.5, 0.1), stax.Relu(), stax.Dense(1))
        >>> x, y = jnp.array([[1.0, 2.0], [0.5, -1.0]]), jnp.array([1.0, -1.0])
        >>> def build(matrices):
        ...     train = augment(x, y, reps.matrix(groups.SO2), elements=matrices)
        ...     return InfiniteEnsemble(kernel_fn, train, method="dense")
        >>> test, settings = jnp.array([[1.0, 0.0]]), {"count": 4, "key": jax.random.key(0), "draws": 10}
        >>> found = bounds.random_augmentation_deviation(build, groups.SO2, test, 1.0, **settings)
        >>> found.absolute.value.shape, bool((abs(found.signed.value[..., 0]) < found.absolute.value).all())
        ((8, 1), True)
    """
    rep = as_representation(rep)
    group: Any = rep.group
    function(build, "build", fix="Pass a function from matrices [count, d, d] to an infinite ensemble.")
    random_key(key)
    if positive_integer(count, "count") < 1 + boolean(with_identity, "with_identity"):
        raise refusal("count", expected="at least 2 with the identity", got=count, fix="One element is the identity.")
    elements, draws = positive_integer(elements, "elements"), positive_integer(draws, "draws")
    measuring, drawing = jax.random.split(key)
    chosen = np.asarray(group.sample(measuring, elements), dtype=float)
    found = []
    for each in jax.random.split(drawing, draws):
        matrices = group.sample(each, count)
        if with_identity:
            matrices = matrices.at[0].set(jnp.eye(group.n, dtype=matrices.dtype))
        here = setting(_ranges.ensemble(build(matrices), "build"), rep, x, t, rep_y)
        means = here.outputs(here.x)
        everywhere = np.broadcast_to(chosen, (len(means), *chosen.shape))
        found.append(deviations(here, means, everywhere).swapaxes(0, 1))
    D = np.array(found)
    return RandomAugmentation(Sampled.mean(D), Sampled.mean(np.linalg.norm(D, axis=3)), chosen)
