"""Networks in any order of axes, layers over samples and layers of one's own agree with neural-tangents."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ntk_equiv.nt as nt
from ntk_equiv import gram, interop
from tests.tolerances import assert_close

old = interop.neural_tangents().stax
stax = nt.stax
CHANNELS_FIRST = {"batch_axis": 0, "channel_axis": 1}
SAMPLES_LAST = {"batch_axis": 2, "channel_axis": 0}
GRID_OF_SENDERS = np.random.default_rng(1).integers(-1, 4, size=(5, 6, 1, 2))


def convolutions(s):
    turned = s.Conv(8, (3, 2), (2, 1), "SAME", 1.2, 0.1, dimension_numbers=("NCHW", "WOIH", "WHNC"))
    pooled = s.AvgPool((2, 1), (1, 1), "SAME", batch_axis=2, channel_axis=3)
    return s.serial(turned, s.Relu(), pooled, s.Flatten(batch_axis=2, batch_axis_out=1), s.Dense(1, 1.0, 0.2, 1, 0))


def normalized(s):
    layers = s.Conv(8, (2,), dimension_numbers=("CHN", "IOH", "CHN")), s.LayerNorm((0, 1), **SAMPLES_LAST), s.Relu()
    return s.serial(*layers, s.GlobalAvgPool(**SAMPLES_LAST), s.Dense(1, 1.5, None, 1, 0))


def attentive(s):
    attention = s.GlobalSelfAttention(8, 8, 8, 8, b_std=0.1, **CHANNELS_FIRST)
    return s.serial(s.Dense(8, **CHANNELS_FIRST), attention, s.Relu(), s.GlobalAvgPool(**CHANNELS_FIRST))


def branches(s):
    deeper = s.serial(s.Dense(4, **CHANNELS_FIRST), s.Relu(), s.Dense(8, **CHANNELS_FIRST))
    both = s.parallel(s.Dense(4, 1.3, **CHANNELS_FIRST), deeper)
    return s.serial(s.FanOut(2), both, s.FanInConcat(1), s.Dense(1, **CHANNELS_FIRST))


def two_batches(s):
    both = s.parallel(s.Dense(4, 1.3, 0.1), s.serial(s.Dense(4), s.Erf(), s.Dense(4)))
    return s.serial(s.FanOut(2), both, s.FanInConcat(0), s.Relu(), s.Dense(1, 1.0, 0.3))


def chosen(s):
    return s.serial(s.Dense(4, 1.3, 0.1), s.Relu(), s.Index(s.Slice[::2, 1:]), s.GlobalAvgPool(), s.Dense(1))


def resized(s):
    smaller = s.ImageResize((2, -1, -1), "linear")
    return s.serial(s.Dense(4, 1.3, 0.1), s.Relu(), smaller, s.Dense(4, 1.0, 0.1), s.Relu(), s.Flatten(), s.Dense(1))


def over_samples(s):
    return s.serial(s.Dense(4, 1.3, 0.1), s.LayerNorm((0, 2)), s.Relu(), s.Flatten(), s.Dense(1))


def multiplied(s):
    product = s.DotGeneral(lhs=jnp.arange(12.0).reshape(4, 3) / 10, dimension_numbers=(((0,), (1,)), ((), ())))
    return s.serial(s.Dense(4, 1.3, 0.1), s.Relu(), product, s.Dense(1, batch_axis=1, channel_axis=2))


NETWORKS = {
    "convolutions": (convolutions, (0, 3, 1, 2)),
    "normalized": (normalized, (2, 1, 0)),
    "attention": (attentive, (0, 2, 1)),
    "branches": (branches, (0, 2, 1)),
    "joined samples": (two_batches, (0, 1)),
    "chosen samples": (chosen, (0, 1, 2)),
    "resized along samples": (resized, (0, 1, 2)),
    "normalized over samples": (over_samples, (0, 1, 2)),
    "a constant with axes": (multiplied, (0, 1, 2)),
}


def inputs(axes):
    """Two batches, of which only the order of axes differs from network to network."""
    grid, rng = (4, 3)[: len(axes) - 2], np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=(n, *grid, 2)).transpose(axes)) for n in (4, 3)]


def theirs(call, *args, **kwargs):
    with jax.numpy_rank_promotion("allow"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return jax.jit(lambda *args: call(*args, **kwargs))(*args)


@pytest.mark.parametrize(("build", "axes"), NETWORKS.values(), ids=NETWORKS)
def test_kernels_agree_with_neural_tangents(build, axes):
    x1, x2 = inputs(axes)
    expected = theirs(build(old)[2], x1, x2)
    expected = expected.reverse() if expected.is_reversed else expected
    found = build(stax)[2](x1, x2)
    for name in ("nngp", "ntk"):
        assert_close(getattr(found, name), getattr(expected, name))
        assert_close(build(stax)[2](x1, x2, name), getattr(expected, name))
    assert (found.shape1, found.batch_axis, found.channel_axis) == (
        expected.shape1,
        expected.batch_axis,
        expected.channel_axis,
    )


@pytest.mark.parametrize(("build", "axes"), NETWORKS.values(), ids=NETWORKS)
def test_finite_networks_agree_with_neural_tangents(build, axes, key):
    """Weights are our own; only convolutions and attention keep them in another order."""
    x = inputs(axes)[0]
    shape, params = build(stax)[0](key, x.shape)
    y = build(stax)[1](params, x)
    assert y.shape == shape
    if build in (convolutions, normalized, attentive):
        return
    assert_close(y, theirs(build(old)[1], params, x))


SIDES = {"first": lambda factor: {"lhs": factor}, "second": lambda factor: {"rhs": factor}}
ALONG_SAMPLES = {
    "a factor for each sample": (((), ()), ((0,), (1,))),
    "factors for samples and positions": (((), ()), ((0, 1), (1, 2))),
    "summed over positions": (((1,), (2,)), ((0,), (1,))),
    "summed over samples": (((0,), (1,)), ((), ())),
    "summed over both": (((0, 1), (1, 2)), ((), ())),
    "summed over samples for each position": (((0,), (1,)), ((1,), (2,))),
}


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("numbers", ALONG_SAMPLES.values(), ids=ALONG_SAMPLES)
def test_products_along_samples_agree_with_neural_tangents(numbers, side, key):
    x, factor = inputs((0, 1, 2))[0], jnp.asarray(np.random.default_rng(2).normal(size=(2, 4, 4)))
    numbers = numbers if side == "second" else tuple((theirs, ours) for ours, theirs in numbers)

    def network(s):
        return s.serial(s.Dense(4, 1.3, 0.1), s.Erf(), s.DotGeneral(**SIDES[side](factor), dimension_numbers=numbers))

    init_fn, apply_fn, kernel_fn = network(stax)
    for other in (None, x[::-1] + 0.3):
        expected = theirs(network(old)[2], x, other)
        for name in ("nngp", "ntk", "cov1"):
            assert_close(getattr(kernel_fn(x, other), name), getattr(expected, name))
            assert_close(kernel_fn(x, other, name), getattr(expected, name))
    params = init_fn(key, x.shape)[1]
    assert_close(apply_fn(params, x), theirs(network(old)[1], params, x))


def test_weights_have_the_layout_that_dimension_numbers_say(key):
    """Weights of one library are those of the other."""
    x = inputs((0, 3, 1, 2))[0]
    for build in (
        lambda s, n: s.Conv(5, (3, 2), (1, 2), "SAME", b_std=0.3, dimension_numbers=n),
        lambda s, n: s.ConvTranspose(5, (3, 2), (2, 1), "VALID", b_std=0.3, dimension_numbers=n),
        lambda s, n: s.ConvLocal(5, (3, 2), (1, 1), "VALID", b_std=0.3, dimension_numbers=n),
    ):
        for layout in ("OIHW", "IHOW"):
            init_fn, apply_fn, _ = build(stax, ("NCHW", layout, "NCHW"))
            init_old, apply_old, _ = build(old, ("NCHW", layout, "NCHW"))
            ours, given = init_fn(key, x.shape), init_old(key, x.shape)
            assert (ours[0], ours[1][0].shape) == (given[0], given[1][0].shape)
            assert_close(apply_fn(given[1], x), theirs(apply_old, given[1], x))


def test_channels_first_in_the_native_parts():
    """`gram` evaluates samples and pairs by themselves, and has to know where channels are."""

    def network(s):
        return s.serial(s.Dense(4, 1.3, 0.1, **CHANNELS_FIRST), s.Erf(), s.GlobalAvgPool(**CHANNELS_FIRST))[2]

    x = inputs((0, 2, 1))[0]
    assert_close(gram(network(stax), x, None, "ntk"), theirs(network(old), x).ntk)
    with pytest.raises(ValueError, match="`kernel_fn` must be one with `batch_axis` 0, got one with 2"):
        gram(stax.Dense(4, **SAMPLES_LAST)[2], x)


def test_convolutions_in_another_order_are_the_same_network(key):
    x = inputs((0, 1, 2, 3))[0]
    usual, turned = (
        stax.Conv(5, (3, 2), (1, 2), "SAME", b_std=0.3, dimension_numbers=numbers)
        for numbers in (None, ("CWNH", "HWIO", "NHCW"))
    )
    params = usual[0](key, x.shape)[1]
    moved = turned[1](params, jnp.moveaxis(x, (0, 1, 2, 3), (2, 3, 1, 0)))
    assert_close(jnp.moveaxis(moved, 2, 3), usual[1](params, x))


def test_aggregation_of_edge_lists_is_that_of_matrices(key):
    x1, x2 = jax.random.normal(key, (2, 5, 3, 2))
    edges = jnp.asarray(GRID_OF_SENDERS)
    matrices = np.zeros((5, 3, 3))
    for sample, places in enumerate(GRID_OF_SENDERS[:, :, 0]):
        for sender, receiver in places:
            if min(sender, receiver) >= 0 and max(sender, receiver) < 3:
                matrices[sample, sender, receiver] += 1
    pattern = jnp.asarray(matrices)

    def network(s, **settings):
        return s.serial(s.Dense(4, 1.2, 0.1), s.Relu(), s.Aggregate(**settings), s.Dense(1))

    init_fn, apply_fn, kernel_fn = network(stax, implementation="SPARSE")
    expected = theirs(network(old)[2], x1, x2, get="ntk", pattern=(pattern, pattern))
    assert_close(kernel_fn(x1, x2, "ntk", pattern=(edges, edges)), expected)
    assert_close(network(stax)[2](x1, x2, "ntk", pattern=(pattern, pattern)), expected)
    before, after = stax.serial(stax.Dense(4, 1.2, 0.1), stax.Relu()), stax.serial(stax.Aggregate(), stax.Dense(1))
    assert_close(after[2](before[2](x1, x2), pattern=(pattern, pattern)).ntk, expected)
    same = network(stax)[2](x1, None, "ntk", pattern=(pattern, None))
    assert_close(after[2](before[2](x1), None, "ntk", pattern=(pattern, None)), same)
    params = init_fn(key, x1.shape)[1]
    y = jax.jit(lambda p: apply_fn(params, x1, pattern=p))(edges)
    assert_close(y, theirs(network(old)[1], params, x1, pattern=pattern))
    with pytest.raises(ValueError, match="pattern"):
        kernel_fn(x1, None, "ntk", pattern=(edges[:, 0], None))


def test_samples_without_edges_pass_an_aggregation():
    x = inputs((0, 1, 2))[0]
    network = stax.serial(stax.Dense(4), stax.Aggregate(), stax.Relu())
    assert_close(network[2](x, None, "nngp"), stax.serial(stax.Dense(4), stax.Relu())[2](x, None, "nngp"))
    assert_close(stax.Aggregate()[1]((), x), x)


def squares(s):
    """A layer of one's own: the square, whose kernels of Gaussian inputs are 2𝒦² + q q' and 4𝒦Θ."""

    @s.layer
    @s.supports_masking(remask_kernel=True)
    def Square():
        @s.requires(diagonal_spatial=s.Diagonal())
        def kernel_fn(k, **kwargs):
            q1, q2 = k.cov1[:, None], (k.cov1 if k.cov2 is None else k.cov2)[None]
            covs = {name: None if c is None else 3 * c**2 for name, c in (("cov1", k.cov1), ("cov2", k.cov2))}
            ntk = None if k.ntk is None else 4 * k.nngp * k.ntk
            return k.replace(nngp=2 * k.nngp**2 + q1 * q2, ntk=ntk, is_gaussian=False, **covs)

        return lambda key, shape: (shape, ()), lambda params, x, mask=None, **kwargs: x**2, kernel_fn

    return s.serial(s.Dense(4, 1.2, 0.1), Square(), s.Dense(4), s.Relu(), s.Dense(1))


def test_a_layer_of_ones_own(key):
    x1, x2 = inputs((0, 1))
    ours = squares(stax)
    square = stax.Polynomial([0.0, 0.0, 1.0])
    known = stax.serial(stax.Dense(4, 1.2, 0.1), square, stax.Dense(4), stax.Relu(), stax.Dense(1))
    for other in (None, x2):
        expected = theirs(squares(old)[2], x1, other)
        for name in ("nngp", "ntk"):
            assert_close(ours[2](x1, other, name), getattr(expected, name))
            assert_close(known[2](x1, other, name), getattr(expected, name))
    params = ours[0](key, x1.shape)[1]
    assert_close(ours[1](params, x1), known[1](params, x1))
    with pytest.raises(ValueError, match="layers of your own, need that"):
        gram(ours[2], x1)


def test_several_inputs_and_outputs():
    x1, x2 = inputs((0, 1))
    inner = stax.serial(stax.FanOut(2), stax.parallel(stax.Dense(2), stax.Identity()))
    network = stax.parallel(stax.Dense(1, 1.5), inner)
    left, right = network[2]((x1, x1), (x2, x2), "nngp")
    assert_close(left, stax.Dense(1, 1.5)[2](x1, x2, "nngp"))
    assert_close(right[1], stax.Identity()[2](x1, x2, "nngp"))
    twice = stax.serial(stax.FanOut(2), stax.parallel(stax.Dense(1), stax.Dense(1, 2.0)))[2](x1, x2, "ntk")
    assert_close(twice[1], 4 * twice[0])


def test_masks_in_another_order():
    x = inputs((0, 1, 2))[0].at[0, 2:].set(-7.0)

    def network(**order):
        layers = stax.Relu(), stax.LayerNorm(order.get("channel_axis", -1), **order), stax.Dropout(0.8)
        return stax.serial(
            stax.Dense(8, 1.2, 0.1, **order), layers[1], layers[0], layers[2], stax.GlobalAvgPool(**order)
        )

    expected = network()[2](x, None, "ntk", mask_constant=-7.0)
    moved = jnp.moveaxis(x, (0, 2), (2, 0))
    assert_close(network(**SAMPLES_LAST)[2](moved, None, "ntk", mask_constant=-7.0), expected)
    params = network()[0](jax.random.key(0), x.shape)[1]
    y = network()[1](params, x, mask_constant=-7.0, mode="test")
    turned = network(**SAMPLES_LAST)[1](params, moved, mask_constant=-7.0, mode="test")
    assert_close(turned.masked_value.T, y.masked_value)
    np.testing.assert_array_equal(turned.mask.T, y.mask)


NCHW = {"dimension_numbers": ("NCHW", "HWIO", "NCHW")}
MISPLACED = {
    "channels in the middle": (
        lambda s: s.serial(s.Conv(4, (2, 2), **NCHW), s.Relu(), s.Conv(4, (2, 2))),
        "channel_axis",
    ),
    "pooled over channels": (
        lambda s: s.serial(s.Conv(4, (2, 2), **NCHW), s.GlobalAvgPool(channel_axis=2)),
        "channel_axis",
    ),
    "samples last": (
        lambda s: s.serial(s.Flatten(), s.Dense(4), s.Dense(4, batch_axis=1, channel_axis=0)),
        "batch_axis",
    ),
    "in a branch": (
        lambda s: s.serial(s.Conv(4, (2, 2), **NCHW), s.FanOut(2), s.parallel(s.Dense(4), s.Dense(4))),
        "channel",
    ),
}


@pytest.mark.parametrize(("make", "name"), MISPLACED.values(), ids=MISPLACED)
def test_layers_that_expect_axes_elsewhere_are_refused(make, name):
    x = jnp.ones((2, 3, 4, 5))
    with pytest.raises(ValueError, match="axis"):
        make(old)[2](x)
    with pytest.raises(ValueError, match=f"`{name}.*a layer before it"):
        make(stax)[2](x, None, "nngp")


def test_axes_may_be_counted_from_either_end():
    pooled = stax.AvgPool((2, 2), batch_axis=0, channel_axis=-3)
    net = stax.serial(stax.Conv(4, (2, 2), **NCHW), pooled, stax.GlobalAvgPool(channel_axis=1), stax.Dense(1))
    expected = stax.serial(stax.Conv(4, (2, 2)), stax.AvgPool((2, 2)), stax.GlobalAvgPool(), stax.Dense(1))
    x = jax.random.normal(jax.random.key(0), (2, 4, 5, 3))
    assert_close(net[2](jnp.moveaxis(x, -1, 1), None, "ntk"), expected[2](x, None, "ntk"))
