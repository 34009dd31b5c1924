"""From which width on theory holds: shifts of the mean at several widths N, estimated before training by `laziness`.

With the size S(N) of the shift at one time, the root mean square over samples, and the exponent p with which it falls,

    N(δ) = N_0 (S(N_0)/δ)^(1/p)            `required_width`
    a/N  at each sample                    `shift_correction`

p is fitted. If it is not seen above the noise it is taken to be 1, and 1/2 for a network with kinks. There units within
O(1/√N) of their kink pass through it, of N units O(√N), and O(√N) more in one direction than in the other, because a
training sample pulls at its units on one side of their kink alone. So the mean kernel changes by O(1/√N), where that
of a smooth network changes by O(1/N). These are estimates, not bounds.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ntk_equiv._check import instance, positive_integers, refusal, scalar
from ntk_equiv._typing import Scalar
from ntk_equiv.empirical._laziness import Laziness, errors_of_sizes
from ntk_equiv.empirical._width import (
    LARGEST_EXPONENT_ERROR,
    Correction,
    Exponent,
    fitted_correction,
    fitted_exponent,
)

# The powers of 1/width with which shifts fall to leading order.
SMOOTH, KINKED = 1.0, 0.5


class RequiredWidth(NamedTuple):
    """The width from which on theory is estimated to hold to δ at one time; no bound.

    Attributes:
        width: the width.
        lower: the same for a shift that is two standard errors smaller.
        upper: the same for a shift that is two standard errors larger.
        exponent: with which power of 1/width the shift was taken to fall.
        doubts: why it should not be trusted; empty if nothing speaks against it.

    Example:
        >>> from ntk_equiv.empirical import RequiredWidth
        >>> RequiredWidth(512, 400, 700, 1.0, ("only one width was looked at",))
        <estimate: width 512, between 400 and 700; doubtful: only one width was looked at>
    """

    width: int
    lower: int
    upper: int
    exponent: float
    doubts: tuple[str, ...]

    def __repr__(self) -> str:
        doubts = "".join(f"; doubtful: {doubt}" for doubt in self.doubts)
        return f"<estimate: width {self.width}, between {self.lower} and {self.upper}{doubts}>"


def required_width(found: Mapping[int, Laziness], delta: float | int, t: Scalar | None = None) -> RequiredWidth:
    """Estimate the width from which on theory holds to δ at time t: the size of the shift there is δ.

        N = N_0 (size/δ)^(1/p)

    from the largest width N_0 that was looked at, with the exponent p fitted to the shifts of all of them.

    Args:
        found: for each width what `laziness` returned, at the same samples and times.
        delta: δ, how large the root mean square of the shift over samples and outputs may be.
        t: the time, one of those that were looked at; the last unless given.

    Returns:
        An estimate with its doubts. With one width, and where the exponent is not known, p is taken to be 1, and 1/2
        for networks with kinks.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from ntk_equiv import empirical, stax
        >>> train, found = (jnp.array([[1.0, 0.0], [0.0, 1.0]]), jnp.array([[1.0], [-1.0]])), {}
        >>> for width in (32, 128):
        ...     net = stax.serial(stax.Dense(width, 1.5), stax.Erf(), stax.Dense(1))
        ...     params = jax.vmap(lambda key: net.init_fn(key, (2, 2))[1])(jax.random.split(jax.random.key(0), 4))
        ...     found[width] = empirical.laziness(net, params, train, jnp.array([[1.0, 1.0], [2.0, 1.0]]), 5.0)
        >>> estimate = empirical.required_width(found, 0.5 * found[128].sizes[0])
        >>> estimate.width > 128
        True
    """
    fix = "Pass a dictionary, as in {64: laziness(...), 256: laziness(...)}."
    instance(found, Mapping, "found", expected="a mapping from widths", fix=fix)
    widths = sorted(positive_integers([*found], "found", fix=fix))
    for width in widths:
        instance(found[width], Laziness, "found", expected="records of `laziness`", fix=fix)
    delta = scalar(delta, "delta", at_least=0)
    if not delta > 0:
        raise refusal("delta", expected="above 0", got=delta, fix="No finite width has no shift at all.")
    last = found[widths[-1]]
    at = last.place_of(t)
    if any(not np.array_equal(found[width].times, last.times) for width in widths):
        got = [found[width].times.tolist() for width in widths]
        raise refusal("found", expected="of the same times", got=got, fix="Call `laziness` with the same `t`.")
    exponent, doubts = _exponent_of_shifts({width: found[width] for width in widths}, at)
    size, error = last.sizes[at], errors_of_sizes(last.shift)[at]
    sizes = size, max(size - 2 * error, 0.0), size + 2 * error
    needed = [widths[-1] * (one / delta) ** (1 / exponent) for one in sizes]
    value, lower, upper = (max(1, math.ceil(one)) for one in needed)
    return RequiredWidth(value, lower, upper, exponent, (*doubts, *last.doubts_at(at)))


def shift_correction(found: Mapping[int, Laziness], t: Scalar | None = None) -> Correction:
    """Fit the correction a/N of the mean to the shifts that were estimated for several widths N, at one time.

    It takes the place of a correction that is fitted to trained networks, as in `bounds.finite_width_estimate`.

    Args:
        found: for each width what `laziness` returned, at the same samples and times.
        t: the time, one of those that were looked at; the last unless given.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from ntk_equiv import empirical
        >>> product = lambda params, x: x * (params[0] * params[1]).mean()
        >>> data, found = (jnp.ones((1, 1)), jnp.zeros((1, 1))), {}
        >>> for width in (10, 100):
        ...     params = tuple(jnp.tile(jnp.array([[a], [1.0]]), width) for a in (1.0, 0.5))
        ...     found[width] = empirical.laziness(product, params, data, jnp.ones((1, 1)), 1.0)
        >>> empirical.shift_correction(found).coefficient.shape
        (1, 1)
    """
    fix = "Pass a dictionary, as in {64: laziness(...), 256: laziness(...)}."
    instance(found, Mapping, "found", expected="a mapping from widths", fix=fix)
    widths = sorted(positive_integers([*found], "found", fix=fix))
    shifts = {}
    for width in widths:
        one = instance(found[width], Laziness, "found", expected="records of `laziness`", fix=fix)
        shifts[width], _ = one.shift_at(t)
    return fitted_correction({N: s.value for N, s in shifts.items()}, {N: s.error for N, s in shifts.items()})


def _exponent_of_shifts(found: Mapping[int, Laziness], at: int) -> tuple[float, tuple[str, ...]]:
    """Return with which power of 1/width shifts fall, and what speaks against it."""
    kinks = any(one.kinks for one in found.values())
    power, as_text = (KINKED, "1/√width, as for networks with kinks") if kinks else (SMOOTH, "1/width")
    if len(found) < 2:
        return power, (f"only one width was looked at: the shift is taken to fall as {as_text}",)
    shifts = {N: (one.drift if one.theory is None else one.predicted - one.theory)[:, at] for N, one in found.items()}
    exponent: Exponent = fitted_exponent(shifts)
    if not 0 < exponent.error <= LARGEST_EXPONENT_ERROR or exponent.value <= 0:
        return power, (f"its exponent is not seen above the noise: the shift is taken to fall as {as_text}",)
    # At moderate widths both powers contribute to the shift of a network with kinks.
    expected = exponent.agrees_with(SMOOTH) or (kinks and exponent.agrees_with(KINKED))
    doubt = f"the shift falls as 1/width^{exponent.value:.2f} (± {exponent.error:.2f}), not as {as_text}"
    return exponent.value, () if expected else (doubt,)
