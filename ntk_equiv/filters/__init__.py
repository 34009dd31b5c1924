"""Training as a function of one eigenvalue.

A linear model with the kernel Θ, trained on ½‖f − y‖², is at time t

    f_t(x) = f_0(x) + Θ(x, X) φ_t(Θ(X, X)) (y − f_0(X)),

and how it is trained enters through the scalar function φ_t(λ) alone. A filter is that function:

    `gradient_flow(η)`      (1 − e^(−ηλt)) / λ
    `gradient_descent(η)`   (1 − (1 − ηλ)^t) / λ,                            t whole steps, stable for ηλ ≤ 2
    `momentum(η, β)`        φ_(t+1) = η + (1+β−ηλ)φ_t − βφ_(t−1), φ_0 = φ_(−1) = 0,    ηλ ≤ 2(1+β)
    `momentum_flow(η, β)`   the same in infinitely small steps: a damped oscillation
    `ridge(λ₀)`             1 / (λ + λ₀): ½λ₀‖w − w_0‖² added to the loss, trained to the end
    `converged()`           1 / λ, the pseudo-inverse: gradient flow trained to the end
    `custom(φ)`             any other

All are finite at λ = 0 unless t = ∞, and precise at tiny and at huge ηλt; for momentum alone, rounding is like a change
of ηλ by eps. If the loss is a *mean* over s entries of y, ensembles replace φ_t(λ) by φ_t(λ/s)/s themselves.
"""

# For the parts above this one, not for users.
from ntk_equiv.filters._filter import Dynamics as Dynamics
from ntk_equiv.filters._filter import (
    Filter,
    converged,
    custom,
    gradient_descent,
    gradient_flow,
    max_learning_rate,
    momentum,
    momentum_flow,
    ridge,
)
from ntk_equiv.filters._filter import GradientDescent as GradientDescent
from ntk_equiv.filters._filter import GradientFlow as GradientFlow
from ntk_equiv.filters._filter import Momentum as Momentum
from ntk_equiv.filters._filter import MomentumFlow as MomentumFlow

__all__ = [
    "Filter",
    "converged",
    "custom",
    "gradient_descent",
    "gradient_flow",
    "max_learning_rate",
    "momentum",
    "momentum_flow",
    "ridge",
]
