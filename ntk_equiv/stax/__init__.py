"""Architectures and their kernels at infinite width, in the manner of `neural_tangents.stax`.

A layer, and any network put together from layers, is a triple `(init_fn, apply_fn, kernel_fn)`: the first two are the
finite network, the third its NNGP kernel 𝒦 and neural tangent kernel Θ when all layers are infinitely wide. Names,
order of arguments and defaults are those of neural-tangents, so that one import is all that changes.

- layers with weights: `Dense`, `Conv`, `GlobalSelfAttention`; on quarter turns and flips of images `LiftingConv`,
  `GroupConv`
- without: `Flatten`, `AvgPool`, `SumPool`, `GlobalAvgPool`, `GlobalSumPool`, `GroupPool`, `Aggregate` (on a `Graph`),
  `Identity`, `Dropout`
- normalisation: `LayerNorm`
- activations: `Relu`, `LeakyRelu`, `ABRelu`, `Abs`, `Erf`, `Sigmoid_like`, `Gelu`, `Sin`, `Cos`, `Rbf`, `Gaussian`,
  `Exp`, `ExpNormalized`, `Monomial`, `RectifiedMonomial`, `Polynomial`, `Hermite`, `Sign`; by quadrature `Tanh`,
  `Softplus`; `Elementwise`, `ElementwiseNumerical` for others
- compositions: `serial`, `parallel`, `repeat`, `FanOut`, `FanInSum`, `FanInProd`, `FanInConcat`

Layers without parameters add nothing to Θ. Inputs are `[n, features]`, `[n, spatial..., channels]` or a `Graph`;
networks whose output keeps spatial axes have kernels `[n1, n2, h, h', w, w', ...]`. Features on a group have one more
such axis, of its elements: `[n, h, w, |G|, channels]`.
"""

from ntk_equiv.stax._aggregate import Aggregate
from ntk_equiv.stax._certificate import Certificate
from ntk_equiv.stax._combinators import FanOut, Identity, parallel, repeat, serial
from ntk_equiv.stax._conv import Conv
from ntk_equiv.stax._dense import Dense
from ntk_equiv.stax._dropout import Dropout
from ntk_equiv.stax._elementwise import Elementwise
from ntk_equiv.stax._erf import Erf, Sigmoid_like
from ntk_equiv.stax._exp_normalized import ExpNormalized
from ntk_equiv.stax._exponential import Exp
from ntk_equiv.stax._fan_in import FanInConcat, FanInProd, FanInSum
from ntk_equiv.stax._gaussian import Gaussian
from ntk_equiv.stax._gelu import Gelu
from ntk_equiv.stax._graph_input import Graph

# For the parts above this one, not for users.
from ntk_equiv.stax._graph_input import with_own_adjacency as with_own_adjacency
from ntk_equiv.stax._group_conv import GroupConv, GroupPool, LiftingConv
from ntk_equiv.stax._kernel_fn import KernelFn
from ntk_equiv.stax._layer_norm import LayerNorm
from ntk_equiv.stax._network import Network
from ntk_equiv.stax._polynomial import Hermite, Monomial, Polynomial
from ntk_equiv.stax._pool import AvgPool, Flatten, GlobalAvgPool, GlobalSumPool, SumPool
from ntk_equiv.stax._quadrature import ElementwiseNumerical, Softplus, Tanh
from ntk_equiv.stax._rbf import Rbf
from ntk_equiv.stax._rectified_monomial import RectifiedMonomial
from ntk_equiv.stax._relu import ABRelu, Abs, LeakyRelu, Relu
from ntk_equiv.stax._self_attention import GlobalSelfAttention
from ntk_equiv.stax._sign import Sign
from ntk_equiv.stax._trigonometric import Cos, Sin

__all__ = [
    "ABRelu",
    "Abs",
    "Aggregate",
    "AvgPool",
    "Certificate",
    "Conv",
    "Cos",
    "Dense",
    "Dropout",
    "Elementwise",
    "ElementwiseNumerical",
    "Erf",
    "Exp",
    "ExpNormalized",
    "FanInConcat",
    "FanInProd",
    "FanInSum",
    "FanOut",
    "Flatten",
    "Gaussian",
    "Gelu",
    "GlobalAvgPool",
    "GlobalSelfAttention",
    "GlobalSumPool",
    "Graph",
    "GroupConv",
    "GroupPool",
    "Hermite",
    "Identity",
    "KernelFn",
    "LayerNorm",
    "LeakyRelu",
    "LiftingConv",
    "Monomial",
    "Network",
    "Polynomial",
    "Rbf",
    "RectifiedMonomial",
    "Relu",
    "Sigmoid_like",
    "Sign",
    "Sin",
    "Softplus",
    "SumPool",
    "Tanh",
    "parallel",
    "repeat",
    "serial",
]
