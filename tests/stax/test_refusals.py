"""Wrong calls get an error that says what is wrong and what to do.

The error tour has a row for each check that layers share; here are the messages of those that belong to one layer.
"""

import sys

import jax
import jax.numpy as jnp
import jaxtyping
import pytest

from ntk_equiv import gram, interop, stax


@pytest.fixture(autouse=True)
def as_users_run_it():
    """Without the checks of annotations, which would catch wrong types before the library does."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


DENSE = stax.serial(stax.Dense(4), stax.Relu(), stax.Dense(1))[2]
CONV = stax.serial(stax.Conv(4, (3, 3)), stax.Relu(), stax.Flatten())[2]
GRAPH = stax.serial(stax.Aggregate(), stax.Dense(1))[2]
LIFT = stax.LiftingConv(4, (3, 3), padding="SAME", group="C4")
LIFTED = stax.serial(LIFT, stax.Relu(), stax.GroupPool())[2]
KEY = jax.random.key(0)
X = jnp.ones((2, 3))
IMAGES = jnp.ones((2, 5, 5, 1))
TOKENS = jnp.ones((2, 3, 2))


def attention(**settings):
    return stax.GlobalSelfAttention(4, 4, 4, 2, **settings)


def embedded(**settings):
    """Kernels of attention after a layer with weights."""
    return stax.serial(stax.Dense(2), attention(**settings))[2]


def beside(fan_in, *branches, x=X, after=None):
    """Kernels of branches side by side, each after a layer with weights."""
    first = stax.Conv(1, (1, 1)) if x is IMAGES else stax.Dense(1)
    end = [] if after is None else [after]
    return stax.serial(first, stax.FanOut(2), stax.parallel(*branches), fan_in, *end)[2](x)


def shape_of(*layers):
    """The shape of the outputs of the finite network."""
    return stax.serial(*layers).init_fn(KEY, (-1, 3))[0]


BRANCHES = stax.parallel(stax.Dense(3), stax.Dense(5))
COPIES = stax.serial(stax.FanOut(2), stax.parallel(stax.Identity(), stax.Identity()))
SUM = (((0,), (0,)), ((), ()))  # over samples
WRONG_VALUES = {
    "branches that nobody made": (
        lambda: stax.serial(stax.Dense(3), BRANCHES, stax.FanInSum())[2](X),
        r"`layers` must be such that branches are made .* got one output, of Affine",
    ),
    "one layer for several branches": (
        lambda: stax.serial(stax.Dense(3), stax.FanOut(2), stax.Relu(), stax.FanInSum())[2](X),
        r"`layers` must be such that each layer has one input, got 2 branches before PiecewiseLinear",
    ),
    "sum of other widths": (
        lambda: shape_of(stax.FanOut(2), BRANCHES, stax.FanInSum()),
        r"`layers` must be branches of equal shape, got shapes \[\(-1, 3\), \(-1, 5\)\]",
    ),
    "finite sum of one": (lambda: shape_of(stax.FanInSum()), r"`layers` must be several branches before"),
    "finite samples joined": (
        lambda: shape_of(stax.FanOut(2), BRANCHES, stax.FanInConcat(-2)),
        r"`axis` must be that of channels or positions",
    ),
    "fewer layers than branches": (lambda: shape_of(stax.FanOut(3), BRANCHES), r"`layers` must be 2 branches, got 3"),
    "layers for branches that nobody made": (lambda: shape_of(BRANCHES), r"`input_shape` must be one shape for each"),
    "one sample without its axis": (lambda: DENSE(jnp.ones(3)), r"`x1` must be samples stacked .* shape \(3,\)"),
    "other features": (lambda: DENSE(X, jnp.ones((2, 4))), r"`x2` must be samples like those of `x1`"),
    "unknown kernel": (lambda: DENSE(X, None, "cov"), r"`get` must be one of 'nngp', 'ntk', got 'cov'"),
    "vectors for a convolution": (lambda: CONV(X), r"`x` must be \[n, 2 spatial axes, channels\]"),
    "image smaller than the filter": (
        lambda: CONV(jnp.ones((2, 2, 2, 1))),
        r"at least as large as the window \(3, 3\)",
    ),
    "unknown padding": (lambda: stax.Conv(4, (2, 2), padding="FULL"), r"`padding` must be one of 'VALID', 'SAME'"),
    "strides of other rank": (lambda: stax.Conv(4, (3, 3), strides=(2,)), r"`strides` must be of length 2, got \(2,\)"),
    "channels first": (lambda: stax.Dense(4, channel_axis=1)[2](IMAGES), r"`channel_axis` must be .* -1 or 3, got 1"),
    "channels first, finite": (
        lambda: stax.GlobalAvgPool(channel_axis=1)[1]((), IMAGES),
        r"`channel_axis` must be the last axis of the inputs, -1 or 3, got 1",
    ),
    "channels first, announced": (
        lambda: stax.LayerNorm(channel_axis=1)[0](KEY, (-1, 3, 5, 5)),
        r"`channel_axis` must be the last axis",
    ),
    "channels of flattened images": (
        lambda: stax.serial(stax.Flatten(), stax.Dense(4, channel_axis=3))[2](IMAGES),
        r"`channel_axis` must be the last axis of the inputs, -1 or 1, got 3",
    ),
    "samples last": (lambda: stax.Dense(4, channel_axis=0), r"samples first, channels last"),
    "channels first for a filter": (
        lambda: CONV(jnp.ones((2, 1, 28, 28))),
        r"`x` must be at least as large .* first axis counts channels, move that to the end: `jnp.moveaxis",
    ),
    "channels first for a lifting": (lambda: LIFTED(jnp.ones((2, 3, 28, 28))), r"`x` must be .*jnp.moveaxis\(x, 1, -1"),
    "masks on a group": (
        lambda: stax.LiftingConv(2, (3, 3), group="C4")[2](jnp.ones((2, 5, 5, 1)), mask_constant=0.0),
        r"`x` must be without a mask before GroupConvolution, got a MaskedArray",
    ),
    "product along channels": (
        lambda: stax.DotGeneral(lhs=jnp.ones((2, 5)), dimension_numbers=(((1,), (-1,)), ((), ()))),
        r"`dimension_numbers` must be axes of samples, 0 or more",
    ),
    "product with a factor of another length": (
        lambda: stax.DotGeneral(lhs=jnp.ones((2, 9)), dimension_numbers=(((1,), (1,)), ((), ())))[2](IMAGES),
        r"`dimension_numbers` must be pairs of axes of equal length",
    ),
    "layers behind a sum over samples": (
        lambda: stax.serial(stax.DotGeneral(lhs=jnp.ones(2), dimension_numbers=SUM), stax.Dense(1))[2](X[:2]),
        r"`layers` must be none behind one that sums over samples, got Serial",
    ),
    "a keyword of other libraries": (
        lambda: stax.Dense(4)[1]((jnp.ones((3, 4)), None), X, diagonal_batch=0.0),
        r"`diagonal_batch` must be left out: .* got 0.0",
    ),
    "biases of another layer": (
        lambda: stax.Dense(4, b_std=1.0)[1]((jnp.ones((3, 4)), jnp.ones((1, 3))), X),
        r"`params` must be biases of 4 outputs, got shape \(1, 3\)",
    ),
    "added embeddings of inputs": (
        lambda: attention(pos_emb_type="SUM")[2](TOKENS),
        r'`pos_emb_type` must be "NONE" on inputs, .* Put a Dense or Conv',
    ),
    "embeddings beside inputs": (
        lambda: attention(pos_emb_type="CONCAT")[2](TOKENS),
        r'`pos_emb_type` must be "NONE" on inputs, or "CONCAT" with n_chan_pos_emb',
    ),
    "sum of copies": (
        lambda: beside(stax.FanInSum(), stax.Identity(), stax.Identity()),
        r"at most one ends without weights, got 2",
    ),
    "sum of a signal and its activation": (
        lambda: beside(stax.FanInSum(), stax.Identity(), stax.Relu()),
        r"at most one ends without weights, got 2",
    ),
    "sum of activations": (
        lambda: beside(stax.FanInSum(), *[stax.serial(stax.Dense(1), stax.Relu())] * 2),
        r"at most one ends without weights, got 2",
    ),
    "product of copies": (
        lambda: beside(stax.FanInProd(), stax.Identity(), stax.Identity()),
        r"at most one has no weights of its own, got 2",
    ),
    "channels first, convolution": (
        lambda: stax.Conv(4, (3, 3), dimension_numbers=("NCHW", "OIHW", "NCHW")),
        r"`dimension_numbers` must be samples first and channels last",
    ),
    "three factors of width": (lambda: stax.Dense(4, parameterization="standard", s=(1, 2, 3)), r"`s` must be two"),
    "radial kernel without features": (
        lambda: stax.Dense(1, parameterization="standard")[2].radial(jnp.ones(1), jnp.ones(1), jnp.ones(1)),
        r"of known width before a layer in standard parameterization.*`of_features`",
    ),
    "normalisation of an activation": (
        lambda: stax.serial(stax.Dense(4), stax.Relu(), stax.LayerNorm())[2](X),
        r"every LayerNorm follows a layer with weights",
    ),
    "normalisation without channels": (
        lambda: stax.serial(stax.Conv(4, (2, 2)), stax.LayerNorm((1, 2)))[2](IMAGES),
        r"`axis` must be the channels of an input with 4 axes.* got \(1, 2\)",
    ),
    "normalisation over samples, counted from behind": (
        lambda: stax.LayerNorm((-2, -1)).apply_fn((), X),
        r"`axis` must be the channels.*call the axis of samples 0",
    ),
    "a Gram matrix of layers that mix samples": (
        lambda: gram(stax.serial(stax.Dense(4), stax.LayerNorm((0, -1)))[2], X),
        r"`kernel_fn` must be of layers that treat samples one by one",
    ),
    "normalisation of activations over samples": (
        lambda: stax.serial(stax.Dense(4), stax.Relu(), stax.LayerNorm((0, -1)))[2](X),
        r"every LayerNorm follows a layer with weights",
    ),
    "normalisation over axes that are not there": (
        lambda: stax.serial(stax.Dense(4), stax.LayerNorm((1, 2)))[2](X),
        r"`axis` must be the channels of an input with 2 axes",
    ),
    "negative eps": (
        lambda: stax.LayerNorm(eps=-1.0),
        r"`eps` must be at least 0, got -1.0. It is zero or a positive number",
    ),
    "attention between vectors": (
        lambda: attention()[2](X),
        r"`x` must be \[n, positions\.\.\., channels\] for attention",
    ),
    "kernels of attention without a closed form": (
        lambda: stax.serial(stax.Dense(4), attention(linear_scaling=False))[2](TOKENS),
        r"`linear_scaling, attention_mechanism` must be .* no closed form.*init_fn and apply_fn",
    ),
    "unknown embedding": (lambda: attention(pos_emb_type="ROTARY"), r"`pos_emb_type` must be one of 'NONE', 'SUM'"),
    "summed embedding of other width": (
        lambda: embedded(pos_emb_type="SUM", n_chan_pos_emb=5)(TOKENS),
        r"`n_chan_pos_emb` must be the number of channels of the input, 2",
    ),
    "embedding without a covariance": (
        lambda: embedded(pos_emb_type="SUM", pos_emb_decay_fn=lambda d: d)(TOKENS),
        r"`pos_emb_decay_fn` must be a function .* that gives covariances.* smallest eigenvalue",
    ),
    "embedding that gives no matrix": (
        lambda: embedded(pos_emb_type="SUM", pos_emb_decay_fn=jnp.sum)(TOKENS),
        r"`pos_emb_decay_fn` must be a function of arrays",
    ),
    "activation first": (lambda: stax.Relu().kernel_fn(X), r"every activation follows a layer with weights"),
    "activation twice": (lambda: stax.serial(stax.Dense(1), stax.Erf(), stax.Erf())[2](X), r"every activation follows"),
    "activation after flatten": (
        lambda: stax.serial(stax.Conv(1, (2, 2)), stax.Flatten(), stax.Relu())[2](IMAGES),
        r"every activation follows",
    ),
    "layer not called": (lambda: stax.serial(stax.Dense(1), stax.Relu), r"triples .* at position 1"),
    "adjacency too small": (
        lambda: stax.Graph.of(jnp.ones((2, 4, 3)), jnp.ones((3, 3))),
        r"`adjacency` must be of shape \(2, 4, 4\).* got shape \(3, 3\)",
    ),
    "pattern too small": (
        lambda: GRAPH(jnp.ones((2, 4, 3)), None, pattern=(jnp.ones((2, 3, 3)), None)),
        r"`adjacency` must be of shape \(2, 4, 4\)",
    ),
    "array for a graph network": (lambda: GRAPH(jnp.ones((2, 4, 3))), r"`x` must be a graph for `Aggregate`"),
    "array for a finite graph network": (
        lambda: stax.Aggregate().apply_fn((), jnp.ones((2, 4, 3))),
        r"`x` must be a graph for `Aggregate`",
    ),
    "sum of one": (lambda: stax.serial(stax.Dense(1), stax.FanInSum())[2](X), r"several branches before `FanInSum`"),
    "sum of unequal grids": (
        lambda: stax.serial(stax.FanOut(2), stax.parallel(stax.Conv(1, (3, 3)), stax.Conv(1, (2, 2))), stax.FanInSum())[
            2
        ](IMAGES),
        r"branches of equal shape",
    ),
    "branches left open": (
        lambda: stax.serial(stax.FanOut(2), stax.parallel(stax.Dense(1), stax.Dense(1)))[2](X),
        r"`network` must be one with a single output",
    ),
    "branches that start nowhere": (
        lambda: stax.serial(stax.parallel(stax.Dense(1), stax.Dense(1)), stax.FanInSum())[2](X),
        r"`network` must be one with a single input",
    ),
    "three for two": (
        lambda: stax.serial(stax.FanOut(3), stax.parallel(stax.Dense(1), stax.Dense(1)), stax.FanInSum())[2](X),
        r"`layers` must be",
    ),
    "an oblong filter on a group": (
        lambda: stax.LiftingConv(1, (3, 2), group="C4"),
        r"`filter_shape` must be two equal numbers, got \(3, 2\)",
    ),
    "unequal strides on a group": (
        lambda: stax.GroupConv(1, (3, 3), (1, 2), group="C4"),
        r"`strides` must be two equal",
    ),
    "a group without turns": (lambda: stax.LiftingConv(1, (3, 3), group="C3"), r"`group` must be one of 'C4', 'D4'"),
    "an oblong image on a group": (
        lambda: LIFTED(jnp.ones((1, 4, 5, 1))),
        r"`x` must be \[n, h, h, channels\], square images, got positions \(4, 5\)",
    ),
    "features lifted again": (
        lambda: stax.serial(LIFT, stax.Relu(), LIFT)[2](IMAGES),
        r"square images, got positions \(5, 5, 4\).*use `GroupConv`",
    ),
    "images on a group": (
        lambda: stax.GroupConv(1, (3, 3), group="C4")[2](IMAGES),
        r"`x` must be \[n, h, h, 4, channels\], features on the group C4.*`LiftingConv`",
    ),
    "features on another group": (
        lambda: stax.serial(LIFT, stax.GroupConv(1, (3, 3), group="D4"))[0](KEY, IMAGES.shape),
        r"\[n, h, h, 8, channels\].*got positions \(5, 5, 4\)",
    ),
    "an even filter on a group": (
        lambda: stax.LiftingConv(1, (2, 2), padding="SAME", group="D4")[2](IMAGES),
        r"such that D4 is respected, got 0 cells of padding before, 1 after.*odd filter",
    ),
    "a stride that leaves pixels out": (
        lambda: stax.LiftingConv(1, (2, 2), (2, 2), group="C4")[0](KEY, IMAGES.shape),
        r"such that C4 is respected, got .* and 1 left over on a grid \(5, 5\)",
    ),
    "a stride that leaves pixels out, finite": (
        lambda: stax.LiftingConv(1, (2, 2), (2, 2), group="C4")[1]((jnp.ones((2, 2, 1, 1)), None), IMAGES),
        r"such that C4 is respected",
    ),
    "images pooled over a group": (
        lambda: stax.GroupPool()[2](IMAGES),
        r"`x` must be .* features on C4 or D4, got positions \(5, 5\)",
    ),
    "images pooled over a group, finite": (lambda: stax.GroupPool()[1]((), IMAGES), r"features on C4 or D4"),
    "product of unequal grids": (
        lambda: beside(stax.FanInProd(), stax.Conv(1, (3, 3)), stax.Conv(1, (2, 2)), x=IMAGES),
        r"branches of equal shape",
    ),
    "activation of a product": (
        lambda: beside(stax.FanInProd(), stax.Dense(1), stax.Dense(1), after=stax.Relu()),
        r"every activation follows",
    ),
    "channels joined on unequal grids": (
        lambda: beside(stax.FanInConcat(), stax.Conv(1, (3, 3)), stax.Conv(1, (2, 2)), x=IMAGES),
        r"branches of equal shape",
    ),
    "positions joined of unequal grids": (
        lambda: beside(stax.FanInConcat(1), stax.Conv(1, (3, 3)), stax.Conv(1, (2, 2)), x=IMAGES),
        r"branches equal but for the joined axis",
    ),
    "positions joined of unequal widths": (
        lambda: beside(stax.FanInConcat(1), stax.Conv(1, (3, 3)), stax.Conv(2, (3, 3)), x=IMAGES),
        r"branches equal but for the joined axis",
    ),
    "positions joined of activations": (
        lambda: beside(stax.FanInConcat(1), stax.Relu(), stax.Relu(), x=IMAGES),
        r"all end with weights where positions are joined",
    ),
    "samples joined of activations": (
        lambda: beside(stax.FanInConcat(0), stax.Relu(), stax.Relu()),
        r"at most one ends without weights, got 2",
    ),
    "samples joined of other widths": (
        lambda: beside(stax.FanInConcat(0), stax.Dense(1), stax.Dense(2)),
        r"branches of equal shape, got shapes \[\(1,\), \(2,\)\]",
    ),
    "samples joined of copies": (
        lambda: stax.serial(stax.Dense(1), COPIES, stax.FanInConcat(0))[2](X),
        r"at most one ends without weights, got 2",
    ),
    "samples joined from behind": (
        lambda: beside(stax.FanInConcat(-2), stax.Dense(1), stax.Dense(1)),
        r"`axis` must be that of channels or positions, 1 to 1 or -1 to -1, got -2",
    ),
    "joined to a raw input, radially": (
        lambda: stax.serial(stax.FanOut(2), stax.parallel(stax.Identity(), stax.Dense(1)), stax.FanInConcat())[
            2
        ].radial(jnp.ones(1), jnp.ones(1), jnp.ones(1)),
        r"branches of known width",
    ),
    "everything dropped": (lambda: stax.Dropout(0.0), r"`rate` must be above 0 and at most 1, got 0"),
    "dropped inputs": (lambda: stax.Dropout(0.5).kernel_fn(X), r"dropout follows a layer with weights"),
    "activation after dropout": (
        lambda: stax.serial(stax.Dense(1), stax.Dropout(0.5), stax.Relu())[2](X),
        r"every activation follows",
    ),
    "dropout without a key": (lambda: stax.Dropout(0.5).apply_fn((), X), r"`rng` must be a random key for `Dropout`"),
    "radial kernel of dropout": (
        lambda: stax.serial(stax.Dense(1), stax.Dropout(0.5))[2].radial(jnp.ones(1), jnp.ones(1), jnp.ones(1)),
        r"graphs or dropout",
    ),
    "negative degree": (lambda: stax.Monomial(-1), r"`degree` must be a whole number from 0 to 150, got -1"),
    "degree beyond all numbers": (lambda: stax.Hermite(151), r"`degree` must be"),
    "no coefficients": (lambda: stax.Polynomial([]), r"`coef` must be a sequence of numbers, got 0 coefficients"),
    "infinite coefficient": (lambda: stax.Polynomial([1.0, float("inf")]), r"`coef` must be one finite real number"),
    "indefinite kernel": (lambda: stax.ExpNormalized(-1.0), r"`gamma` must be at least 0, got -1"),
    "kernel without function": (
        lambda: stax.ExpNormalized().apply_fn((), X),
        r"`ExpNormalized`, which is only a kernel",
    ),
    "neither function nor kernel": (lambda: stax.Elementwise(), r"`fn, nngp_fn` must be given"),
    "derivative of nothing": (lambda: stax.Elementwise(jnp.tanh, None, lambda k, a, b: k), r"got `d_nngp_fn` alone"),
    "function without kernel": (
        lambda: stax.serial(stax.Dense(1), stax.Elementwise(jnp.tanh))[2](X),
        r"one with kernels, got `Elementwise` without `nngp_fn`",
    ),
    "given kernel without function": (
        lambda: stax.Elementwise(None, lambda k, a, b: k).apply_fn((), X),
        r"got `Elementwise` without `fn`",
    ),
    "kernel of several numbers": (
        lambda: stax.Elementwise(None, lambda k, a, b: jnp.stack([a, b])),
        r"`nngp_fn` must be a function that returns one number",
    ),
    "function of whole arrays": (
        lambda: stax.Elementwise(jnp.sum, lambda k, a, b: k).apply_fn((), X),
        r"`fn` must be elementwise: \(2, 3\)",
    ),
    "negative repetition": (lambda: stax.repeat(stax.Dense(1), -1), r"`n` must be a whole number, got -1"),
    "power too high": (lambda: stax.RectifiedMonomial(21), r"`degree` must be at most 20, got 21"),
    "radial kernel of a convolution": (
        lambda: CONV.radial(jnp.ones(1), jnp.ones(1), jnp.ones(1)),
        r"`kernel_fn` must be that of a fully connected network",
    ),
}

WRONG_TYPES = {
    "integers": (
        lambda: DENSE(jnp.ones((2, 3), int)),
        r"`x1` must be an array of floating-point numbers, got dtype int",
    ),
    "integer images": (lambda: CONV(jnp.ones((2, 5, 5, 1), jnp.uint8)), r"dtype uint8.*divided by 255"),
    "a list": (lambda: DENSE([[1.0, 2.0]]), r"`x1` must be an array .* got list"),
    "name of a function": (lambda: stax.Elementwise("tanh"), r"`fn` must be a function, got 'tanh'"),
    "kernel of two numbers": (
        lambda: stax.Elementwise(None, lambda k, q: k),
        r"`nngp_fn` must be a function of three numbers",
    ),
    "integer nodes": (lambda: stax.Graph.of(jnp.ones((2, 4, 3), int), jnp.eye(4)), r"`nodes` must be an array"),
}


@pytest.mark.parametrize("name", WRONG_VALUES)
def test_wrong_values_are_refused(name):
    call, message = WRONG_VALUES[name]
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("name", WRONG_TYPES)
def test_wrong_types_are_refused(name):
    call, message = WRONG_TYPES[name]
    with pytest.raises(TypeError, match=message):
        call()


def test_a_missing_guest_is_announced_with_the_command(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install --no-deps neural-tangents==0\.6\.5 frozendict"):
        interop.neural_tangents()


def test_the_guest_comes_without_tensorflow():

    nt = interop.neural_tangents()
    assert nt is interop.neural_tangents()
    assert "tensorflow" not in sys.modules
    x, y = jnp.eye(3), jnp.ones((3, 1))
    with jax.numpy_rank_promotion("allow"):
        kernel_fn = nt.stax.serial(nt.stax.Dense(1), nt.stax.Relu(), nt.stax.Dense(1))[2]
        predict = nt.predict.gradient_descent_mse_ensemble(kernel_fn, x, y)
        assert jnp.allclose(predict(x_test=x, get="ntk"), y, atol=1e-3)
