"""How fast are mean and covariance of an ensemble on augmented data, against neural-tangents in the same run?

The peer is `predict.gradient_descent_mse_ensemble` on the augmented set, which decomposes its whole Gram matrix.
Float64, two hidden ReLU layers, 200 test points, one training time; what is timed starts from the data and includes
kernels. A run of the peer that takes longer than a minute is not repeated, so that it includes some compilation.
"""

import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from measuring import relative_difference, report, shortest

from ntk_equiv import InfiniteEnsemble, augment, filters, groups, interop, reps, stax

jax.config.update("jax_enable_x64", True)
nt = interop.neural_tangents()
FEATURES, TESTS, TIME = 32, 200, 1e3


def network(s):
    """Two hidden layers."""
    return s.serial(*[s.Dense(1, 1.4, 0.1), s.Relu()] * 2, s.Dense(1, 1.0, 0.1))


def rotations(order: int):
    """C_k on 16 planes at once."""
    turns = np.asarray(groups.SO2.finite(order).matrices)
    return reps.matrix(groups.cyclic(order), np.stack([np.kron(np.eye(FEATURES // 2), turn) for turn in turns]))


def data(order: int, n: int):
    """Random points with invariant labels, and test points."""
    rng = np.random.default_rng(0)
    x, x_test = (jnp.asarray(rng.normal(size=(count, FEATURES))) for count in (n, TESTS))
    return augment(x, jnp.asarray(rng.normal(size=(n, 1))), rotations(order)), x_test


def peer(train, x_test, *, cov: bool):
    """neural-tangents, from the augmented set to the answer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        predict = nt.predict.gradient_descent_mse_ensemble(network(nt.stax)[2], train.x, train.y)
        return predict(t=TIME, x_test=x_test, get="ntk", compute_cov=cov)


def ours(train, x_test, *, cov: bool):
    """The same with us."""
    ens = InfiniteEnsemble(network(stax)[2], train, filters.gradient_flow(1.0), reduction="mean")
    assert ens.method == "reduced"
    return (ens.mean(x_test, TIME), ens.cov(x_test, TIME)) if cov else ens.mean(x_test, TIME)


def timed_peer(train, x_test, *, cov: bool):
    """Seconds, and the answer."""
    start = time.perf_counter()
    answer = jax.block_until_ready(peer(train, x_test, cov=cov))
    first = time.perf_counter() - start
    return (first if first > 60 else shortest(lambda: peer(train, x_test, cov=cov), 1)), answer


def compare(order: int, n: int, *, cov: bool, target: float) -> None:
    train, x_test = data(order, n)
    what = "mean and covariance" if cov else "mean alone"
    seconds = shortest(lambda: ours(train, x_test, cov=cov), 5)
    theirs, answer = timed_peer(train, x_test, cov=cov)
    difference = relative_difference(ours(train, x_test, cov=cov), tuple(answer) if cov else answer)
    assert difference < 1e-6, difference
    report(
        f"{what}, C{order} x {n} points",
        target=target,
        peer="neural-tangents 0.6.5",
        ours=seconds,
        theirs={"neural-tangents": theirs},
        difference=difference,
    )


if __name__ == "__main__":
    compare(4, 1024, cov=True, target=10)
    compare(16, 512, cov=False, target=500)
    compare(16, 512, cov=True, target=100)
