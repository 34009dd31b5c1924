"""How much faster is Lanczos than a decomposition on 160,000 augmented samples?

C16 × 10,000 samples in double precision, mean at three times. Both evaluate the same kernels. The mean must be within
its own bound of the exact one.
"""

import jax
import jax.numpy as jnp
import numpy as np
from large_problems import products_of, radii_problem
from measuring import Found, report, time_run

from ntk_equiv import InfiniteEnsemble, solvers

jax.config.update("jax_enable_x64", True)
SAMPLES, ORDER, RTOL = 10_000, 16, 1e-6

if __name__ == "__main__":
    kernel_fn, train, x_test, times = radii_problem(SAMPLES, ORDER, dtype=jnp.float64)

    def mean(solver):
        ens = InfiniteEnsemble(kernel_fn, train, reduction="mean", solver=solver)
        return ens.mean(x_test, times), ens.error_bound(x_test, times), ens

    ours, (found, bound, ens) = time_run(lambda: mean(solvers.Lanczos(RTOL)))
    theirs, (exact, _, _) = time_run(lambda: mean(solvers.Eigh()))
    error = np.abs(found - exact)
    assert (error <= bound + 1e-9 * np.abs(exact).max()).all(), "the error is above its bound"
    print(f"    {products_of(ens)} products, errors {error.max(axis=1)}, bounds {np.asarray(bound.max(axis=1))}")
    difference = float(error.max() / np.abs(exact).max())
    case = f"mean at {len(times)} times, C{ORDER} × {SAMPLES:,}, Lanczos"
    report(case, target=3, peer="Eigh", found=Found(ours, {"Eigh": theirs}, difference))
