"""Kernels of real networks, with the parameters they have: the bridge between finite and infinite width.

- `empirical_kernel_fn` takes any function of parameters and inputs, Linen module or stax triple, and returns an
  `EmpiricalKernelFn`, which can be used wherever a `kernel_fn` can. Layers without an analytic kernel, such as
  max-pooling, are welcome.
- `empirical_ntk_fn` and `empirical_nngp_fn` are these kernels over any axes of the outputs, in any of the ways that
  `NtkImplementation` lists; `empirical_ntk_vp_fn` multiplies by Θ without forming it.
- `monte_carlo_kernel_fn` is the mean over random initialisations, a `MonteCarloKernelFn`. Its method `estimate` returns
  a `KernelEstimate` with standard errors.
- `kernel_corrections` computes what finite width adds to both kernels of fully connected networks, to first order:
  `KernelCorrections` of their means, and their variances.
- `linearize` and `taylor_expand` make a network a polynomial in its parameters.
- `width_scaling` estimates the effect of a finite width on both kernels. It returns a `WidthScaling`, which has a
  `Correction` a/width for each; `fitted_correction` fits one to any other quantity. `fitted_exponent` fits the power of
  the width, an `Exponent`, and `extrapolate_width` returns an `Extrapolation` to infinite width, with its doubts.
- `laziness` asks before training whether a network is wide enough. It returns a `Laziness`: how far members leave their
  linearisation, `Averaged` over members, the shift of their mean that this leads to, and until when theory holds, a
  `TimeEstimate`. From several widths `required_width` returns a `RequiredWidth`, and `shift_correction` a `Correction`.
"""

from ntk_equiv.empirical._first_order import KernelCorrections, kernel_corrections
from ntk_equiv.empirical._kernel_fn import EmpiricalKernelFn, empirical_kernel_fn
from ntk_equiv.empirical._laziness import Averaged, Laziness, TimeEstimate, laziness

# For the parts above this one, not for users.
from ntk_equiv.empirical._laziness import first_crossing as first_crossing
from ntk_equiv.empirical._monte_carlo import KernelEstimate, MonteCarloKernelFn, monte_carlo_kernel_fn
from ntk_equiv.empirical._over_axes import (
    NtkImplementation,
    empirical_nngp_fn,
    empirical_ntk_fn,
    empirical_ntk_vp_fn,
)
from ntk_equiv.empirical._required_width import RequiredWidth, required_width, shift_correction
from ntk_equiv.empirical._taylor import linearize, taylor_expand
from ntk_equiv.empirical._width import (
    Correction,
    Exponent,
    Extrapolation,
    WidthScaling,
    extrapolate_width,
    fitted_correction,
    fitted_exponent,
    width_scaling,
)

__all__ = [
    "Averaged",
    "Correction",
    "EmpiricalKernelFn",
    "Exponent",
    "Extrapolation",
    "KernelCorrections",
    "KernelEstimate",
    "Laziness",
    "MonteCarloKernelFn",
    "NtkImplementation",
    "RequiredWidth",
    "TimeEstimate",
    "WidthScaling",
    "empirical_kernel_fn",
    "empirical_nngp_fn",
    "empirical_ntk_fn",
    "empirical_ntk_vp_fn",
    "extrapolate_width",
    "fitted_correction",
    "fitted_exponent",
    "kernel_corrections",
    "laziness",
    "linearize",
    "monte_carlo_kernel_fn",
    "required_width",
    "shift_correction",
    "taylor_expand",
    "width_scaling",
]
