"""The third of the triple: a network's kernels as a function of its inputs.

    kernel_fn(x1, x2, get)  =  per_pair(per_sample(x1), per_sample(x2), get)

`per_sample` goes through the network once for each sample and keeps what each layer has to know about it. `per_pair`
does the work that grows with n1 · n2. `ntk_equiv.gram` calls the two halves by themselves, so that work for a sample is
never repeated from tile to tile. `_rule` tells what happens in each layer.
"""

import math
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from ntk_equiv._check import canonical_get, positive_integer, real_array, refusal, same_shape
from ntk_equiv._pytrees import dataclass_pytree
from ntk_equiv._renamed import OldKernelNames
from ntk_equiv._typing import Array, Get, Inputs, Kernel, select
from ntk_equiv.stax._composition import pairs_through, samples_through
from ntk_equiv.stax._inputs import (
    Graph,
    MaskedArray,
    check_inputs,
    check_mask_constant,
    check_same_features,
    check_same_shape,
    covariance_of_inputs,
    mask_both,
    mask_of,
    nodes_of,
    split_pattern,
    with_mask,
    with_pattern,
)
from ntk_equiv.stax._orders import ANY, Orders, to_native
from ntk_equiv.stax._precision import SNAP, materialize, power_of_two, safe_sqrt, snap
from ntk_equiv.stax._rule import Certificate, Rule
from ntk_equiv.stax._signal import (
    ALL_POSITIONS,
    EQUAL_POSITIONS,
    Signal,
    is_several,
    map_signals,
    mixes_samples,
    needs_full_batch,
    signal_of,
    through,
)
from ntk_equiv.stax._state import Branches, Constant, Moments, PairState, Requirements, SampleState

# What is wanted of the output of a network.
OUTPUT = Requirements(full_pairs=True, stored=False)
# Inner products of more terms than this may have larger rounding errors than activations allow for.
LONG = 256


@dataclass_pytree
@dataclass(frozen=True, eq=False)
class KernelFn(OldKernelNames):
    """The kernels of a network, `kernel_fn(x1, x2=None, get=None)`, as in neural-tangents.

    Calls are compiled. They may be differentiated in `x1`, `x2` and the network's hyperparameters, mapped with
    `jax.vmap` and wrapped in `jax.jit` (with `get` static). Results have the dtype of the inputs.

    Attributes:
        rule: how kernels pass through the network.
        features: the number of features of the inputs; only `radial` has to be told, by `of_features`.
        mask_constant: what stands for masked entries of all inputs, as `with_mask_constant` says.
        order: where inputs have their axes of samples and channels, as `in_order` says.

    Example:
        >>> from ntk_equiv import stax
        >>> _, _, kernel_fn = stax.serial(stax.Dense(64), stax.Relu(), stax.Dense(1))
        >>> x = jnp.array([[3.0, 4.0]])
        >>> print(kernel_fn(x, None, "ntk"))
        [[12.5]]
        >>> both = kernel_fn(x, 2 * x, ("nngp", "ntk"))
        >>> print(both.nngp, both.ntk)
        [[12.5]] [[25.]]
    """

    rule: Rule
    features: int | None = field(default=None, metadata={"static": True})
    mask_constant: float | None = field(default=None, metadata={"static": True})
    order: Orders = field(default=ANY, metadata={"static": True})
    is_cheap_per_sample: ClassVar[bool] = True

    def __call__(
        self,
        x1: Inputs,
        x2: Inputs | None = None,
        get: Get = None,
        *,
        pattern: Any = None,
        mask_constant: Any = None,
    ) -> Any:
        """Return the kernels of all pairs of samples from `x1` and `x2`.

        Args:
            x1: samples `[n1, ..., features]`, a `MaskedArray` or a `Graph`.
            x2: other samples; `None` stands for `x1`.
            get: `"nngp"`, `"ntk"`, a tuple of these in any order, or `None` for both.
            pattern: adjacencies of `x1` and `x2`, a pair of arrays, for code written with neural-tangents.
            mask_constant: entries of the samples that are equal to it are masked; see `MaskedArray`.

        Returns:
            One array if `get` is one name; a named tuple of arrays otherwise.
        """
        constant = self.mask_constant if mask_constant is None else mask_constant
        if self.rule.mixes_samples:
            names = canonical_get(get)
            with_ntk = names != "nngp" and "ntk" in names
            return select(self.signal(x1, x2, pattern=pattern, mask_constant=constant, with_ntk=with_ntk), names)
        left_pattern, right_pattern = split_pattern(pattern)
        x1, x2 = to_native(x1, self.order), None if x2 is None else to_native(x2, self.order)
        x1 = with_mask(check_inputs(with_pattern(x1, left_pattern), "x1"), constant)
        if x2 is not None:
            x2 = with_mask(check_inputs(with_pattern(x2, right_pattern), "x2"), constant)
            check_same_features(x1, x2)
            x1, x2 = mask_both(x1, x2)
        return _evaluate(self.rule, x1, x2, canonical_get(get))

    def signal(
        self,
        x1: Any,
        x2: Any = None,
        *,
        pattern: Any = None,
        mask_constant: Any = None,
        diagonal_batch: bool | None = None,
        diagonal_spatial: bool = False,
        with_ntk: bool = True,
        **settings: Any,
    ) -> Any:
        """Return the kernels with all that is known behind this network: a `Signal`, which another network continues.

        Args:
            x1: samples, or a `Signal` behind another network; lists of these if the network has several inputs.
            x2: other samples; `None` stands for `x1`.
            pattern: as in a call.
            mask_constant: as in a call.
            diagonal_batch: False for the covariance of all pairs of samples of one batch, in `cov1` and `cov2`; by
                default only layers that mix samples are given it.
            diagonal_spatial: True to keep equal positions only; a network that compares positions refuses that.
            with_ntk: False to leave Θ out.
            settings: for layers that are functions of a `Signal`, which are given all settings of the call.

        Returns:
            A `Signal`, or a list of them if the network has several outputs.

        Example:
            >>> from ntk_equiv import stax
            >>> layer = stax.serial(stax.Dense(64, W_std=2**0.5), stax.Relu()).kernel_fn
            >>> signal = layer.signal(jnp.array([[1.0, 0.0], [0.0, 1.0]]))
            >>> for depth in range(3):  # the correlation of two orthogonal samples, layer by layer
            ...     print(round(float(signal.nngp[0, 1] / signal.cov1[0]), 3))
            ...     signal = layer.signal(signal)
            0.318
            0.494
            0.605
        """
        full_batch = diagonal_batch is False or needs_full_batch(self.rule)
        if diagonal_batch and full_batch:
            fix = "Leave it out, or set it to False."
            raise refusal("diagonal_batch", expected="False for a layer that mixes samples", got="True", fix=fix)
        constant = self.mask_constant if mask_constant is None else mask_constant
        given = {"pattern": pattern, "mask_constant": constant}
        known: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        continued = isinstance(jax.tree.leaves(x1, is_leaf=_is_signal)[0], Signal)
        start = x1
        if not continued:
            others = None if x2 is None else to_native(x2, self.order)
            start = signal_of(to_native(x1, self.order), others, **known, pairs=full_batch)
        elif pattern is not None:
            first, second = split_pattern(pattern)
            second = first if second is None else second
            start = map_signals(lambda signal: signal.replace(adjacency1=first, adjacency2=second), x1)
        start = start if with_ntk else map_signals(lambda signal: signal.replace(ntk=None), start)
        wanted = EQUAL_POSITIONS if diagonal_spatial else ALL_POSITIONS
        after = through(self.rule, start, wanted, **known, **settings)
        if continued or diagonal_spatial or self.rule.mixes_samples or is_several(x1) or not isinstance(after, Signal):
            return after
        # A call knows inputs better than their covariances do.
        exact = KernelFn.__call__(self, x1, x2, ("nngp", "ntk") if with_ntk else ("nngp",), **known)
        return after.replace(**exact._asdict())

    @property
    def certificate(self) -> Certificate:
        """What is proven about these kernels for all inputs; bounds on continuous groups use it."""
        return self.rule.certificate

    def check_samples(self, x: Inputs, argument: str = "x") -> Inputs:
        """Return `x` as this network takes it; each graph is given its own copy of an adjacency that all share."""
        if self.rule.mixes_samples:
            raise mixes_samples()
        if self.order[0] not in (0, None):
            fix = "Move the axis of samples to the front; channels may be anywhere."
            raise refusal("kernel_fn", expected="one with `batch_axis` 0", got=f"one with {self.order[0]}", fix=fix)
        return check_inputs(x, argument)

    def restrict(self, get: str | tuple[str, ...]) -> "KernelFn":
        """Return the same function: its work for each sample does not depend on which kernels are wanted."""
        return self

    def per_sample(self, x: Inputs) -> Any:
        """Return what `per_pair` needs to know about each sample: a pytree of arrays with leading axis n.

        `x` is what `check_samples` returned.
        """
        return _per_sample(self.rule, with_mask(to_native(x, self.order), self.mask_constant))

    def per_pair(self, left: Any, right: Any, get: Get = None) -> Any:
        """Return the kernels of all pairs of samples, from what `per_sample` returned for each side."""
        check_same_shape(left["shape"].value, right["shape"].value)
        _check_both_masked(left["masked"].value, right["masked"].value)
        return _per_pair(self.rule, left, right, canonical_get(get))

    def entries_per_pair(self, x: Inputs) -> int:
        """Return how many numbers one pair of samples occupies at the widest layer, for choosing a tile size."""
        rule, x = _flatten_first(self.rule, to_native(x, self.order))
        positions = math.prod(nodes_of(x).shape[1:-1]) * rule.widening()
        return positions**2 if _input_requirements(rule).full_pairs else positions

    def radial(self, q1: Array, q2: Array, cosine: Array, get: Get = None) -> Any:
        """Return the kernels as a function of mean squared norms and cosine, entry by entry.

        This is possible only for networks whose `certificate.dot_product` holds. `q` is ‖x‖² divided by the number of
        features; that number itself matters in standard parameterization, see `of_features`.

        Example:
            >>> from ntk_equiv import stax
            >>> _, _, kernel_fn = stax.serial(stax.Dense(64), stax.Relu(), stax.Dense(1))
            >>> one = jnp.ones(2)
            >>> print(kernel_fn.radial(one, one, jnp.array([1.0, -1.0]), "nngp"))
            [0.5 0. ]
        """
        if not self.certificate.dot_product:
            raise refusal(
                "kernel_fn",
                expected="that of a fully connected network on vectors",
                got="a network with convolutions, pooling, graphs or dropout",
                fix="Evaluate it on inputs instead: its kernel is no function of norms and cosine.",
            )
        q1, q2, cosine = (real_array(v, name) for v, name in ((q1, "q1"), (q2, "q2"), (cosine, "cosine")))
        same_shape(q1=q1, q2=q2, cosine=cosine)
        q1, q2, cosine = jnp.broadcast_arrays(q1, q2, cosine)
        return _radial(self.rule, q1, q2, cosine, self.features, canonical_get(get))

    def of_features(self, features: int) -> "KernelFn":
        """Return the same kernels, whose `radial` knows how many features the inputs have.

        Example:
            >>> from ntk_equiv import stax
            >>> _, _, kernel_fn = stax.Dense(1, parameterization="standard")
            >>> print(kernel_fn.of_features(3).radial(jnp.ones(1), jnp.ones(1), jnp.ones(1), "ntk"))
            [3.]
        """
        return replace(self, features=positive_integer(features, "features"))

    def with_mask_constant(self, mask_constant: float) -> "KernelFn":
        """Return the same kernels of samples whose entries equal to `mask_constant` are masked.

        It is what `kernel_fn(x1, x2, get, mask_constant=…)` computes, as a kernel function for `gram` and ensembles.

        Example:
            >>> from ntk_equiv import gram, stax
            >>> _, _, kernel_fn = stax.GlobalAvgPool()
            >>> x = jnp.array([[1.0, 3.0, -1.0], [2.0, 2.0, 5.0]])[..., None]  # The first sequence is shorter.
            >>> print(gram(kernel_fn.with_mask_constant(-1.0), x, None, "nngp"))
            [[4. 6.]
             [6. 9.]]
        """
        return replace(self, mask_constant=float(check_mask_constant(mask_constant)))


def _is_signal(x: Any) -> bool:
    return isinstance(x, Signal)


def _check_both_masked(left: bool, right: bool) -> None:
    if left != right:
        fix = "Give both a `MaskedArray`, or `kernel_fn.with_mask_constant(...)` plain arrays."
        raise refusal("x2", expected="masked if and only if `x1` is", got="only one of them masked", fix=fix)


def _flatten_first(rule: Rule, x: Inputs) -> tuple[Rule, Inputs]:
    """Return rule and inputs; if the network flattens them first, return vectors and the rest of the network.

    The inner products of vectors are one product of matrices. Those of all positions would have to be kept apart first.
    """
    rest = rule.after_flattening()
    if rest is None:
        return rule, x
    nodes, mask = nodes_of(x), mask_of(x)
    vectors: Any = nodes.reshape(nodes.shape[0], math.prod(nodes.shape[1:]))
    if mask is not None:
        vectors = MaskedArray(vectors, jnp.all(mask.reshape(mask.shape[0], -1), 1, keepdims=True))
    return rest, Graph(vectors, x.adjacency) if isinstance(x, Graph) else vectors


def _input_requirements(rule: Rule) -> Requirements:
    """Return what must be known about the inputs of a network."""
    required = rule.requirements_for(OUTPUT)
    if isinstance(required, tuple):
        fix = "Put `FanOut` before `parallel`, and `FanInSum` after it."
        raise refusal("network", expected="one with a single input", got="several branches", fix=fix)
    return required


@partial(jax.jit, static_argnames="get")
def _evaluate(rule: Rule, x1: Inputs, x2: Inputs | None, get: str | tuple[str, ...]) -> Any:
    left = _per_sample(rule, x1)
    right = left if x2 is None else _per_sample(rule, x2)
    # What belongs to samples is computed once for each sample here, not once per pair inside the loops that use it.
    left, right = materialize((left, right), nodes_of(x1))
    return _per_pair(rule, left, right, get)


@jax.jit
def _per_sample(rule: Rule, x: Inputs) -> dict[str, Any]:
    shape = nodes_of(x).shape[1:]
    rule, x = _flatten_first(rule, x)
    required, nodes, mask = _input_requirements(rule), nodes_of(x), mask_of(x)
    adjacency = x.adjacency if isinstance(x, Graph) else None
    # Squares of inputs in units of their own size neither overflow nor underflow.
    unit = power_of_two(jnp.max(jnp.abs(nodes), -1))
    scaled = nodes / unit[..., None]
    norms = jnp.mean(jnp.square(scaled), -1)
    # The covariance with a sample that vanishes has a derivative there, which a factor 0 would hide.
    root = jnp.where(norms > 0, safe_sqrt(norms), 1)
    full = required.moments == Moments.COVARIANCE and nodes.ndim > 2
    q = None if required.moments == Moments.NONE else norms * unit * unit
    state = SampleState(
        covariance_of_inputs(nodes, nodes, paired=True, full=True) if full else q,
        None,
        adjacency,
        nodes.shape[1:-1],
        full=full,
        gaussian=False,
        nodes=nodes,
        root=None if full else safe_sqrt(norms) * unit,
        channels=nodes.shape[-1],
        mask=mask,
    )
    _, memo = samples_through(rule, state, OUTPUT)
    known = {"memo": memo, "shape": Constant(shape), "masked": Constant(mask is not None)}
    if not _starts_from_cosines(required, nodes):
        return {"nodes": nodes, **known}
    return {"nodes": scaled, "root": unit * root, "inverse_root": 1 / root, **known}


@partial(jax.jit, static_argnames="get")
def _per_pair(rule: Rule, left: dict[str, Any], right: dict[str, Any], get: str | tuple[str, ...]) -> Any:
    rule = rule.after_flattening() or rule
    required = _input_requirements(rule)
    full = required.full_pairs and left["nodes"].ndim > 2
    nngp = covariance_of_inputs(left["nodes"], right["nodes"], paired=False, full=full)
    state = PairState(nngp, None, None, full=full, with_ntk=get != "nngp" and get != ("nngp",))
    if _starts_from_cosines(required, left["nodes"]):
        state = _scale_cosines(state, left, right)
    after = pairs_through(rule, state.reduce_to(required), left["memo"], right["memo"], OUTPUT)
    return select(_kernels_of(after), get)


@partial(jax.jit, static_argnames=("features", "get"))
def _radial(rule: Rule, q1: Array, q2: Array, cosine: Array, features: int | None, get: str | tuple[str, ...]) -> Any:
    shape = cosine.shape
    q1, q2, cosine = (v.reshape(-1) for v in (q1, q2, cosine))
    sides = [SampleState(q, None, None, grid=(), full=False, gaussian=False, channels=features) for q in (q1, q2)]
    left, right = (rule.per_sample(side, OUTPUT)[1] for side in sides)
    nngp = cosine * safe_sqrt(q1) * safe_sqrt(q2)
    state = PairState(nngp, None, 1 - cosine, full=False, with_ntk=True, paired=True)
    kernel = _kernels_of(rule.per_pair(state.reduce_to(_input_requirements(rule)), left, right, OUTPUT))
    return jax.tree.map(lambda k: k.reshape(shape), select(kernel, get))


def _kernels_of(state: PairState | Branches) -> Kernel:
    """Return the kernels of the output, if there is one output."""
    if isinstance(state, tuple):
        fix = "Put `FanInSum` at its end."
        raise refusal("network", expected="one with a single output", got=f"{len(state)} branches", fix=fix)
    ntk = state.ntk
    if ntk is None and state.with_ntk:  # A network without a single trainable layer.
        ntk = jnp.zeros_like(state.nngp)
    return Kernel(state.nngp, ntk)


def _starts_from_cosines(required: Requirements, nodes: Array) -> bool:
    """Return whether kernels of inputs are made of their cosines: if gaps are asked for, or inner products are long."""
    return required.gap or nodes.shape[-1] > LONG


def _scale_cosines(state: PairState, left: dict[str, Any], right: dict[str, Any]) -> PairState:
    """Return kernels of inputs, with their gaps, from those of inputs of size 1.

    Inputs that are parallel up to rounding count as parallel. The rounding error of an inner product grows with the
    square root of its length.
    """
    tolerance = float(jnp.finfo(state.nngp.dtype).eps) * max(SNAP, left["nodes"].shape[-1] ** 0.5)
    cosine = state.nngp * state.on_left(left["inverse_root"]) * state.on_right(right["inverse_root"])
    cosine = snap(cosine, tolerance)
    return replace(state, nngp=state.on_left(left["root"]) * cosine * state.on_right(right["root"]), gap=1 - cosine)
