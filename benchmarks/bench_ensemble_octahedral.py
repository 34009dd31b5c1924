"""What does the reduction gain for a group that is not abelian, and for vector labels?

The 24 rotations of the cube act on 200 samples of 12 coordinates with vector labels. Mean and covariance at 200 test
samples are computed reduced and dense, both with this library.
"""

import jax
import jax.numpy as jnp
import numpy as np
from measuring import compare_ways, report

from ntk_equiv import InfiniteEnsemble, augment, groups, reps, stax

jax.config.update("jax_enable_x64", True)


def law(method: str):
    """Return a function that computes mean and covariance at one time."""
    rng = np.random.default_rng(0)
    G = groups.polyhedral("O")
    vectors = reps.matrix(G)
    four = reps.direct_sum(reps.direct_sum(vectors, vectors), reps.direct_sum(vectors, vectors))
    train = augment(jnp.asarray(rng.normal(size=(200, 12))), jnp.asarray(rng.normal(size=(200, 3))), four, vectors)
    x_test = jnp.asarray(rng.normal(size=(200, 12)))
    kernel_fn = stax.serial(*[stax.Dense(1, 1.4, 0.1), stax.Relu()] * 2, stax.Dense(1, 1.0, 0.1))[2]

    def run():
        ens = InfiniteEnsemble(kernel_fn, train, method=method)
        return ens.mean(x_test, 10.0), ens.cov(x_test, 10.0)

    return run


if __name__ == "__main__":
    found = compare_ways(law("reduced"), {"dense": law("dense")}, tolerance=1e-9, patience=15)
    report("mean and covariance, O × 200 samples, vector labels", target=50, peer="dense", found=found)
