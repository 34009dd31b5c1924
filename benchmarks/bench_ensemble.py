"""How fast are mean and covariance of an ensemble on augmented data, against neural-tangents in the same run?

The peer is `predict.gradient_descent_mse_ensemble` on the augmented set, which decomposes the whole Gram matrix. The
setting is float64, two hidden ReLU layers, 200 test samples and one training time. We are called in both ways: through
one `InfiniteEnsemble`, and by `ensemble_mean` and then `ensemble_cov`, with new arrays in each run so that nothing is
known from the run before. The time runs from the data to the answer and includes the kernels. A run of the peer that
takes longer than a minute is not repeated, so it includes some compilation.
"""

import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from measuring import NEURAL_TANGENTS, Found, compare_ways, report

from ntk_equiv import (
    InfiniteEnsemble,
    augment,
    ensemble_cov,
    ensemble_mean,
    filters,
    groups,
    interop,
    reps,
    stax,
)

jax.config.update("jax_enable_x64", True)
nt = interop.neural_tangents()
FEATURES, TESTS, TIME = 32, 200, 1e3
# Targets for two calls of functions, by the order of the group.
FUNCTIONS = {4: 12, 16: 90}


def network(s):
    """Build a network with two hidden layers from the layers of `s`."""
    return s.serial(*[s.Dense(1, 1.4, 0.1), s.Relu()] * 2, s.Dense(1, 1.0, 0.1))


def rotations(order: int):
    """Return the action of C_k on 16 planes at once."""
    turns = np.asarray(groups.SO2.finite(order).matrices)
    return reps.matrix(groups.cyclic(order), np.stack([np.kron(np.eye(FEATURES // 2), turn) for turn in turns]))


def data(order: int, n: int):
    """Return random samples with invariant labels, and test samples."""
    rng = np.random.default_rng(0)
    x, x_test = (jnp.asarray(rng.normal(size=(count, FEATURES))) for count in (n, TESTS))
    return augment(x, jnp.asarray(rng.normal(size=(n, 1))), rotations(order)), x_test


def peer(train, x_test, *, cov: bool):
    """Let neural-tangents compute the answer from the augmented set."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        predict = nt.predict.gradient_descent_mse_ensemble(network(nt.stax)[2], train.x, train.y)
        return jax.tree.leaves(predict(t=TIME, x_test=x_test, get="ntk", compute_cov=cov))


def law(train, x_test, *, cov: bool = True, method: str = "reduced"):
    """Compute the mean, and the covariance if `cov` is true, with this library."""
    ens = InfiniteEnsemble(network(stax)[2], train, filters.gradient_flow(1.0), reduction="mean", method=method)
    return (ens.mean(x_test, TIME), ens.cov(x_test, TIME)) if cov else (ens.mean(x_test, TIME),)


def functions(train, x_test):
    """Compute both with the functions of this library, one after the other."""
    train = augment(jnp.array(train.base_x), jnp.array(train.base_y), train.rep_x)
    arguments = network(stax)[2], train, x_test, TIME
    return ensemble_mean(*arguments, reduction="mean"), ensemble_cov(*arguments, reduction="mean")


def compare_methods(order: int, n: int) -> Found:
    """Measure the seconds for mean and covariance, reduced by the group and dense."""
    ways = {method: partial(law, *data(order, n), method=method) for method in ("reduced", "dense")}
    return compare_ways(ways.pop("reduced"), ways, tolerance=1e-8, patience=5)


def compare(order: int, n: int, *, cov: bool, target: float) -> None:
    train, x_test = data(order, n)
    what = "mean and covariance" if cov else "mean alone"
    ways = {NEURAL_TANGENTS: lambda: peer(train, x_test, cov=cov)}
    if cov:
        ways["functions"] = lambda: functions(train, x_test)
    found = compare_ways(lambda: law(train, x_test, cov=cov), ways, tolerance=1e-6, patience=30)
    theirs = dict(found.theirs)
    seconds = theirs.pop("functions", None)
    found = Found(found.ours, theirs, found.difference)
    report(f"{what}, C{order} × {n} samples", target=target, peer=NEURAL_TANGENTS, found=found)
    if seconds is not None:
        question, of_functions = f"{what} by two functions, C{order} × {n} samples", Found(seconds, theirs)
        report(question, target=FUNCTIONS[order], peer=NEURAL_TANGENTS, found=of_functions)


if __name__ == "__main__":
    compare(4, 1024, cov=True, target=12)
    compare(16, 512, cov=False, target=500)
    compare(16, 512, cov=True, target=100)
