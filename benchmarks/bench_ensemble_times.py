"""What do 100 training times cost, compared with one?

C16 × 512 samples as in `bench_ensemble`, from the data to the answer. The peer is this library at a single time, so
ratios are below one: 0.77 means 1.3 times the cost, and 0.25 means 4 times.
"""

from functools import partial

import jax
import jax.numpy as jnp
from bench_ensemble import data, network
from measuring import Found, relative_difference, report, time_in_turn

from ntk_equiv import InfiniteEnsemble, filters, stax

jax.config.update("jax_enable_x64", True)
TIMES = jnp.logspace(-1, 6, 100)


def mean(train, x_test, t):
    return InfiniteEnsemble(network(stax)[2], train, filters.gradient_flow(1.0), reduction="mean").mean(x_test, t)


def mean_and_variance(train, x_test, t):
    ens = InfiniteEnsemble(network(stax)[2], train, filters.gradient_flow(1.0), reduction="mean")
    return ens.mean(x_test, t), ens.var(x_test, t)


if __name__ == "__main__":
    train, x_test = data(16, 512)
    for name, law, target in (("mean", mean, 1 / 1.3), ("mean and variance", mean_and_variance, 1 / 4)):
        several = law(train, x_test, TIMES)
        one = law(train, x_test, float(TIMES[50]))
        difference = relative_difference(jax.tree.map(lambda k: k[50], several), one)
        assert difference < 1e-9, difference
        ways = {"ours": partial(law, train, x_test, TIMES), "one time": partial(law, train, x_test, 10.0)}
        best = time_in_turn(ways)
        found = Found(best.pop("ours"), best, difference)
        report(f"{name} at 100 times, C16 × 512 samples", target=target, peer="one time", found=found)
