"""neural-tangents on today's JAX: `import ntk_equiv.nt as nt` in place of `import neural_tangents as nt`.

    `stax`                          networks and their kernels
    `predict`                       training with kernel matrices: `gradient_descent_mse`, `gp_inference` and others
    `batch`                         kernels of many samples
    `empirical_kernel_fn`, `empirical_ntk_fn`, `empirical_nngp_fn`, `empirical_ntk_vp_fn`, `NtkImplementation`
                                    kernels of finite networks
    `monte_carlo_kernel_fn`         their mean over random networks
    `linearize`, `taylor_expand`    finite networks as polynomials in their parameters
    `Kernel`                        what kernel functions return, and continue

Names, arguments, defaults and results are those of neural-tangents 0.6.5. Everything is a few lines on the native
parts, which have more: symmetry, solvers for large data, error bounds, and training of real ensembles. Kernel functions
made here can be used with all of them.
"""

import sys

from ntk_equiv import predict
from ntk_equiv.empirical import (
    NtkImplementation,
    empirical_nngp_fn,
    empirical_ntk_fn,
    empirical_ntk_vp_fn,
    linearize,
    taylor_expand,
)
from ntk_equiv.nt import stax
from ntk_equiv.nt._batch import batch
from ntk_equiv.nt._empirical import empirical_kernel_fn, monte_carlo_kernel_fn
from ntk_equiv.nt._kernel import AnalyticKernelFn as AnalyticKernelFn
from ntk_equiv.nt._kernel import Kernel

# So that `from ntk_equiv.nt.predict import gp_inference` works too, as it does there.
sys.modules[f"{__name__}.predict"] = predict

__all__ = [
    "Kernel",
    "NtkImplementation",
    "batch",
    "empirical_kernel_fn",
    "empirical_nngp_fn",
    "empirical_ntk_fn",
    "empirical_ntk_vp_fn",
    "linearize",
    "monte_carlo_kernel_fn",
    "predict",
    "stax",
    "taylor_expand",
]
