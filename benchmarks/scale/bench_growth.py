"""How does the time grow with the number of samples and with the order of the group, and does the cost model know it?

Samples: from 400 to 40,000 in 32 dimensions under C4. Order: subgroups of the translations of a torus of 28 × 28
pixels, from 1 to 784 elements, on 400 images; labels are invariant, so a single block is built and no irrep is
computed. The peer is what `estimate_cost` says beforehand.
"""

import jax.numpy as jnp
import numpy as np
from large_problems import radii_problem
from measuring import Found, measure_growth, report, time_run

from ntk_equiv import InfiniteEnsemble, augment, groups, reps, solvers, stax
from ntk_equiv.infinite import estimate_cost

SAMPLES, SIDES, IMAGES = [400, 1200, 4000, 12_000, 40_000], [1, 2, 4, 7, 14, 28], 400
SOLVER = solvers.Lanczos(1e-3)


def measured(kernel_fn, train, x_test, times):
    """The seconds of a second run, the first of which compiles, beside those of the model."""
    model = estimate_cost(kernel_fn, train, solver=SOLVER, test_samples=len(x_test)).seconds

    def mean():
        return InfiniteEnsemble(kernel_fn, train, reduction="mean", solver=SOLVER).mean(x_test, times)

    if train.size < 100_000:
        mean()
    return Found(time_run(mean)[0], {"cost model": model})


def by_samples(samples):
    kernel_fn, train, x_test, times = radii_problem(samples, 4)
    return measured(kernel_fn, train, x_test, times[:2])


def by_order(side):
    """Translations by multiples of 28/side pixels in both directions."""
    pixels, step = np.arange(28 * 28).reshape(28, 28), 28 // side
    moves = [np.roll(pixels, (a * step, b * step), (0, 1)).ravel() for a in range(side) for b in range(side)]
    group = groups.product(groups.cyclic(side), groups.cyclic(side))
    rep = reps.permutation(group, np.stack(moves))
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.random((IMAGES + 100, 28 * 28)), jnp.float32)
    y = jnp.sum(x**2, axis=1) - jnp.mean(jnp.sum(x**2, axis=1))
    net = stax.serial(stax.Dense(1, 2**0.5, 0.1), stax.Relu(), stax.Dense(1))
    return measured(net.kernel_fn, augment(x[:IMAGES], y[:IMAGES], rep), x[IMAGES:], jnp.array([1e2, 1e3]))


def slope(sizes, seconds):
    return np.polyfit(np.log(sizes[-3:]), np.log(seconds[-3:]), 1)[0]


if __name__ == "__main__":
    for axis, values, measure, sizes in (
        ("samples", SAMPLES, by_samples, SAMPLES),
        ("side", SIDES, by_order, [side**2 for side in SIDES]),
    ):
        found, curve = measure_growth(axis, values, measure)
        power = slope(sizes, curve["ours"])
        name = "samples under C4" if axis == "samples" else "translations of a torus, 400 images"
        print(f"    the time grows as the power {power:.2f} over the last three", flush=True)
        report(f"{sizes[-1]:,} {name}", peer="cost model", found=found, curve=curve, power=float(power))
