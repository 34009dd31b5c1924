"""How often do kernels of hostile inputs go wrong? `python -m tests.oracles.hostile_inputs [pairs per network]`.

Pairs of samples with norms from 1e-20 to 1e20 that coincide, are opposite, parallel, nearly the same, far apart in
size, or vanish, for every activation with a closed form, in single and double precision. Single precision is compared
with double, and double (every tenth pair, and all that are no numbers) with 150 digits. Counted are

    pairs         evaluated, with 𝒦 and Θ each
    too large     entries that are infinite or NaN because a kernel of the network is too large for a number
    not finite    entries that are infinite or NaN without such a reason
    imprecise     entries off by more than rounding allows, near duplicates not included
"""

import sys

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np

from ntk_equiv import stax
from tests.oracles import duals

RELATIONS = ("same", "apart", "opposite", "parallel", "near", "zero", "far in size")
FEATURES = 4


def draw(rng, count, dtype):
    """Pairs of samples, and how they are related."""
    relation = rng.integers(len(RELATIONS), size=count)
    x, other = (rng.normal(size=(count, FEATURES)) for _ in range(2))
    scales = 10.0 ** rng.uniform(-20, 20, size=(2, count, 1))
    near = x + 10.0 ** rng.uniform(-9, -2, size=(count, 1)) * other
    x = (x * scales[0]).astype(dtype)
    partners = [x, other * scales[0], -x, 4 * x, near * scales[0], 0 * x, other * scales[1]]
    return x, np.choose(relation[:, None], [p.astype(dtype) for p in partners]), relation


def evaluate(layers, x, y):
    """𝒦 and Θ of pairs, `[pairs, 2]`."""
    kernel_fn = stax.serial(*layers).kernel_fn
    pair = jax.jit(jax.vmap(lambda a, b: jnp.stack([k[0, 0] for k in kernel_fn(a[None], b[None])])))
    return np.asarray(pair(jnp.asarray(x), jnp.asarray(y)))


def references(name, depth, x, y, wanted):
    """𝒦 and Θ of both diagonals and of the pair, and the largest kernel inside, in 150 digits; NaN if not wanted."""
    results = np.full((len(x), 4, 2), np.nan)
    for i in np.flatnonzero(wanted):
        exact = [
            duals.kernels(duals.DUALS[name][1], *pair, depth=depth) for pair in ((x[i], y[i]), (x[i],) * 2, (y[i],) * 2)
        ]
        results[i] = [[_rounded(v) for v in e[:2]] for e in exact] + [[_rounded(exact[0][2])] * 2]
    return results


def in_double(layers, x, y):
    """The same in double precision."""
    x, y = x.astype(float), y.astype(float)
    inside = [np.abs(evaluate(layers[:stop], x, y)).max(-1) for stop in range(1, len(layers) + 1, 2)]
    largest = np.max(inside, axis=0)
    return np.stack([evaluate(layers, *p) for p in ((x, y), (x, x), (y, y))] + [np.stack([largest] * 2, -1)], 1)


def _rounded(value):
    return float(mp.sign(value) * min(abs(value), mp.mpf(np.finfo(float).max)))


def count(name, depth, dtype, pairs, rng):
    """Numbers of entries that are too large, not finite and imprecise, and how imprecise the worst is."""
    x, y, relation = draw(rng, pairs, dtype)
    layers = [stax.Dense(1), duals.DUALS[name][0]] * depth + [stax.Dense(1)]
    actual = evaluate(layers, x, y)
    finite = np.isfinite(actual)
    if dtype is np.float32:
        exact = in_double(layers, x, y)
    else:
        exact = references(name, depth, x, y, (np.arange(pairs) % 10 == 0) | ~finite.all(-1))
    numbers = np.finfo(dtype)
    large = ~(exact[:, 3] <= float(numbers.max) / 8)
    with np.errstate(all="ignore"):
        scale = np.maximum(np.abs(exact[:, 0]), np.sqrt(np.abs(exact[:, 1])) * np.sqrt(np.abs(exact[:, 2])))
        exponent = np.abs(np.log(np.maximum(np.abs(exact[:, 0]), float(numbers.tiny))))
        allowed = 32 * depth * float(numbers.eps) * (1 + exponent) ** depth * scale + 8 * float(numbers.tiny)
        excess = np.abs(actual - exact[:, 0]) / allowed
    known = finite & np.isfinite(exact[:, 0]) & ~large & (relation != RELATIONS.index("near"))[:, None]
    worst = np.max(excess, initial=0, where=known)
    return np.sum(~finite & large), np.sum(~finite & ~large), np.sum((excess > 1) & known), worst


def main():
    """Print a table and the sums."""
    jax.config.update("jax_enable_x64", True)
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    rng, totals, evaluated = np.random.default_rng(0), np.zeros(3, int), 0
    _write("activation", "depth", "dtype", "pairs", "too large", "not finite", "imprecise", "worst")
    for name in duals.DUALS:
        for depth in (1, 2):
            for dtype in (np.float32, np.float64):
                *found, worst = count(name, depth, dtype, pairs, rng)
                evaluated, totals = evaluated + pairs, totals + found
                _write(name, depth, dtype.__name__, pairs, *found, f"{worst:.2g}")
    _write("all", "", "", evaluated, *totals, "")


def _write(name, *columns):
    sys.stdout.write(f"{name:16}" + "".join(f"{column!s:>11}" for column in columns) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
