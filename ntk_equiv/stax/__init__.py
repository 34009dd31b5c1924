"""Architectures and their kernels at infinite width, in the manner of `neural_tangents.stax`.

A layer, and any network put together from layers, is a triple `(init_fn, apply_fn, kernel_fn)`. The first two are the
finite network. The third is its NNGP kernel 𝒦 and its neural tangent kernel Θ when all layers are infinitely wide.
Names, order of arguments and defaults are those of neural-tangents, so that only an import has to change.

- layers with weights: `Dense`, `Conv`, `ConvTranspose`, `ConvLocal`, `GlobalSelfAttention`; for quarter turns and flips
  of images `LiftingConv`, `GroupConv`
- layers without weights: `Flatten`, `AvgPool`, `SumPool`, `GlobalAvgPool`, `GlobalSumPool`, `GroupPool`, `Aggregate`
  (on a `Graph`), `Index` (with `Slice`), `DotGeneral`, `ImageResize`, `Identity`, `Dropout`
- normalisation: `LayerNorm`
- activations: `Relu`, `LeakyRelu`, `ABRelu`, `Abs`, `Erf`, `Sigmoid_like`, `Gelu`, `Sin`, `Cos`, `Rbf`, `Gaussian`,
  `Gabor`, `Exp`, `ExpNormalized`, `Monomial`, `RectifiedMonomial`, `Polynomial`, `Hermite`, `Sign`; by quadrature
  `Tanh`, `Softplus`; `Elementwise`, `ElementwiseNumerical` for others
- compositions: `serial`, `parallel`, `repeat`, `FanOut`, `FanInSum`, `FanInProd`, `FanInConcat`; `in_order` for samples
  with channels on another axis

Layers without parameters add nothing to Θ. Inputs are `[n, features]`, `[n, spatial..., channels]`, a `MaskedArray` of
that form (`unmask_fn` makes plain arrays of such outputs) or a `Graph`.
Networks whose output keeps spatial axes have kernels `[n1, n2, h, h', w, w', ...]`. Features on a group have one more
such axis, that of its elements: `[n, h, w, |G|, channels]`.

A `Signal` is what one network hands on to the next: `kernel_fn.signal(x)` makes one, `kernel_fn.signal(signal)`
continues it. Layers that mix samples (`FanInConcat(0)`, `LayerNorm((0, -1))`, `Index`, `ImageResize` and `DotGeneral`
along the axis of samples) change signals: they work in calls of `kernel_fn`, while `gram` and ensembles, which evaluate
each pair by itself, refuse them.
"""

# Where to find what:
#   how kernels pass through a layer            _rule (the protocol, with a picture), _state (what is passed on)
#   how a call of `kernel_fn` begins and ends   _kernel_fn, _inputs
#   how kernels go on from one network to the next, and layers that mix samples     _signal
#   samples and channels on other axes          _orders
#   how layers are put together                 _composition (chains, branches, loops), _combinators, _network (triples)
#   layers                                      _dense, _conv, _group_conv, _windows (pooling), _aggregate (graphs),
#                                               _position_maps, _attention, _layer_norm, _dropout
#   activations                                 _activations (base classes), _rectified, _smooth, _polynomial,
#                                               _elementwise (your own)
#   how precision is kept                       _precision

# Names imported as themselves are for the parts above this one, not for users.
from ntk_equiv.stax._activations import Activation as Activation
from ntk_equiv.stax._aggregate import Aggregate
from ntk_equiv.stax._aggregate import passing_without_graph as passing_without_graph
from ntk_equiv.stax._attention import GlobalSelfAttention
from ntk_equiv.stax._combinators import (
    FanInConcat,
    FanInProd,
    FanInSum,
    FanOut,
    Identity,
    parallel,
    repeat,
    serial,
)
from ntk_equiv.stax._combinators import unnest as unnest

# For the parts above this one, not for users.
from ntk_equiv.stax._composition import Parallel as Parallel
from ntk_equiv.stax._composition import Serial as Serial
from ntk_equiv.stax._conv import Conv, ConvLocal, ConvTranspose
from ntk_equiv.stax._dense import Affine as Affine
from ntk_equiv.stax._dense import Dense
from ntk_equiv.stax._dropout import Dropout
from ntk_equiv.stax._elementwise import Elementwise, ElementwiseNumerical, Softplus, Tanh
from ntk_equiv.stax._group_conv import GroupConv, GroupPool, LiftingConv
from ntk_equiv.stax._inputs import Graph, MaskedArray
from ntk_equiv.stax._inputs import with_mask as with_mask
from ntk_equiv.stax._inputs import with_own_adjacency as with_own_adjacency
from ntk_equiv.stax._kernel_fn import KernelFn
from ntk_equiv.stax._layer_norm import LayerNorm
from ntk_equiv.stax._network import Network, in_order, unmask_fn
from ntk_equiv.stax._network import moved_between as moved_between
from ntk_equiv.stax._network import network as network
from ntk_equiv.stax._orders import ANY as ANY
from ntk_equiv.stax._orders import NATIVE as NATIVE
from ntk_equiv.stax._orders import Order as Order
from ntk_equiv.stax._orders import Orders as Orders
from ntk_equiv.stax._orders import shape_from_native as shape_from_native
from ntk_equiv.stax._orders import shape_to_native as shape_to_native
from ntk_equiv.stax._orders import to_native as to_native
from ntk_equiv.stax._polynomial import Hermite, Monomial, Polynomial
from ntk_equiv.stax._position_maps import DotGeneral, ImageResize, Index, Slice
from ntk_equiv.stax._position_maps import permute_positions as permute_positions
from ntk_equiv.stax._rectified import ABRelu, Abs, LeakyRelu, RectifiedMonomial, Relu, Sign
from ntk_equiv.stax._rectified import PiecewiseLinear as PiecewiseLinear
from ntk_equiv.stax._rule import Certificate
from ntk_equiv.stax._rule import Rule as Rule
from ntk_equiv.stax._signal import BatchRule as BatchRule
from ntk_equiv.stax._signal import Signal
from ntk_equiv.stax._signal import is_several as is_several
from ntk_equiv.stax._signal import map_signals as map_signals
from ntk_equiv.stax._smooth import Cos, Erf, Exp, ExpNormalized, Gabor, Gaussian, Gelu, Rbf, Sigmoid_like, Sin
from ntk_equiv.stax._state import PairState as PairState
from ntk_equiv.stax._state import Requirements as Requirements
from ntk_equiv.stax._state import SampleState as SampleState
from ntk_equiv.stax._state import frozen_pytree as frozen_pytree
from ntk_equiv.stax._state import static as static
from ntk_equiv.stax._windows import AvgPool, Flatten, GlobalAvgPool, GlobalSumPool, SumPool

__all__ = [
    "ABRelu",
    "Abs",
    "Aggregate",
    "AvgPool",
    "Certificate",
    "Conv",
    "ConvLocal",
    "ConvTranspose",
    "Cos",
    "Dense",
    "DotGeneral",
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
    "Gabor",
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
    "ImageResize",
    "Index",
    "KernelFn",
    "LayerNorm",
    "LeakyRelu",
    "LiftingConv",
    "MaskedArray",
    "Monomial",
    "Network",
    "Polynomial",
    "Rbf",
    "RectifiedMonomial",
    "Relu",
    "Sigmoid_like",
    "Sign",
    "Signal",
    "Sin",
    "Slice",
    "Softplus",
    "SumPool",
    "Tanh",
    "in_order",
    "parallel",
    "repeat",
    "serial",
    "unmask_fn",
]
