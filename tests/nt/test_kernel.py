"""Kernels are continued layer by layer, in batches, and over chosen axes, with the results of the whole."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ntk_equiv.nt as nt
from ntk_equiv import interop
from tests.tolerances import assert_close

stax = nt.stax
CONV = stax.serial(stax.Conv(8, (3, 3), padding="SAME", b_std=0.1), stax.Relu())
ENDS = {
    "pooling": stax.serial(stax.GlobalAvgPool(), stax.Dense(1)),
    "flattening": stax.serial(stax.Flatten(), stax.Dense(4), stax.Dropout(0.7), stax.Dense(1)),
}


def images(number, count):
    return jax.random.normal(jax.random.key(number), (count, 3, 3, 2))


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("other", [None, images(1, 2)], ids=["one batch", "two batches"])
def test_layer_by_layer_is_the_whole(end, other):
    x = images(0, 3)
    whole = stax.serial(CONV, CONV, end)[2]
    kernel = end[2](CONV[2](CONV[2](x, other)))
    expected = whole(x, other, ("nngp", "ntk", "cov1", "shape1", "shape2"))
    assert_close(kernel.nngp, expected.nngp)
    assert_close(kernel.ntk, expected.ntk)
    assert_close(kernel.cov1, expected.cov1)
    assert (kernel.shape1, kernel.shape2) == (expected.shape1, expected.shape2)
    assert_close(kernel.ntk, whole(x, other, "ntk"))
    assert (kernel.cov2 is None) == (other is None)


def test_a_kernel_agrees_with_neural_tangents():
    x, y = images(0, 2), images(1, 3)
    old = interop.neural_tangents().stax
    block = old.serial(old.Conv(8, (3, 3), padding="SAME", b_std=0.1), old.Relu())
    with jax.numpy_rank_promotion("allow"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = jax.jit(block[2])(x, y).reverse()
    ours = CONV[2](x, y)
    for name in ("nngp", "ntk", "cov1", "cov2"):
        assert_close(getattr(ours, name), getattr(theirs, name))
    for name in ("is_gaussian", "shape1", "shape2", "diagonal_spatial", "channel_axis", "batch_axis"):
        assert getattr(ours, name) == getattr(theirs, name)


def test_kernels_pass_through_jit_and_are_replaced():
    x = images(0, 2)
    kernel = jax.jit(CONV[2])(x)
    assert isinstance(kernel, nt.Kernel)
    assert kernel.replace(ntk=None).ntk is None
    assert_close(CONV[2](kernel.replace(ntk=0 * kernel.ntk), get="nngp"), CONV[2](kernel, get="nngp"))
    assert kernel.asdict()["shape1"] == (2, 3, 3, 8)
    assert CONV[2](x, None, None, diagonal_spatial=True).nngp.shape == (2, 2, 3, 3)
    full = CONV[2](x, images(1, 3), diagonal_batch=False)
    assert_close(full.cov1, CONV[2](x, None, "nngp"))
    assert_close(CONV[2](full).cov2, stax.serial(CONV, CONV)[2](images(1, 3), None, "nngp"))


def test_masks_are_continued():
    """Sequences of lengths 4 and 2: each has the kernels of its own length."""
    x = jnp.where(jnp.arange(4)[None, :, None] < jnp.array([4, 2])[:, None, None], images(0, 2)[:, 0].sum(), -1.0)
    x = x.at[0].set(jax.random.normal(jax.random.key(3), (4, 1)))
    first = stax.serial(stax.Conv(8, (3,), padding="SAME", b_std=0.1), stax.Relu())
    end = stax.serial(stax.GlobalAvgPool(), stax.Dense(1))
    kernel = first[2](x, None, mask_constant=-1.0)
    whole = stax.serial(first, end)[2]
    assert_close(end[2](kernel).ntk, whole(x, None, "ntk", mask_constant=-1.0))
    assert_close(end[2](kernel, get="nngp")[1, 1], whole(x[1:, :2], None, "nngp")[0, 0])
    np.testing.assert_array_equal(kernel.mask1[..., 0], np.asarray(x[..., 0]) == -1.0)
    cut = kernel.slice(slice(1, 2), slice(0, 1))
    np.testing.assert_array_equal(cut.mask1, kernel.mask1[1:])
    np.testing.assert_array_equal(cut.mask2, kernel.mask1[:1])


def test_several_inputs():
    both = stax.parallel(stax.Dense(4), stax.serial(stax.Dense(4), stax.Relu()))
    x = jax.random.normal(jax.random.key(0), (3, 2))
    first, second = both[2]((x, 2 * x), None, ("nngp", "ntk"))
    assert_close(first.ntk, stax.Dense(4)[2](x, None, "ntk"))
    assert_close(second.ntk, stax.serial(stax.Dense(4), stax.Relu())[2](2 * x, None, "ntk"))


@pytest.mark.parametrize("get", ["ntk", ("nngp", "ntk"), None])
def test_batches_of_any_size(get):
    """Five samples in batches of two: neural-tangents refuses that."""
    x, y = (jax.random.normal(jax.random.key(i), (n, 2)) for i, n in ((0, 5), (1, 3)))
    kernel_fn = stax.serial(stax.Dense(4), stax.Relu(), stax.Dense(1))[2]
    for other in (None, y):
        found, expected = nt.batch(kernel_fn, 2)(x, other, get), kernel_fn(x, other, get)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)
    on_host = nt.batch(kernel_fn, 2, store_on_device=False)(x, y, get)
    assert isinstance(jax.tree.leaves(on_host)[0], np.ndarray)


def test_batches_have_their_own_part_of_the_pattern():
    x, y, *patterns = (
        jax.random.normal(jax.random.key(i), (n, 4, m)) for i, (n, m) in enumerate([(5, 2), (3, 2), (5, 4), (3, 4)])
    )
    init_fn, apply_fn, kernel_fn = stax.serial(stax.Dense(4), stax.Relu(), stax.Aggregate(), stax.GlobalAvgPool())
    sampled = [nt.monte_carlo_kernel_fn(init_fn, apply_fn, jax.random.key(4), 1, size) for size in (0, 2)]
    for whole, batched in ((kernel_fn, nt.batch(kernel_fn, 2)), sampled):
        for other, second in ((None, patterns[0]), (y, patterns[1])):
            pattern = patterns[0], second
            assert_close(batched(x, other, "ntk", pattern=pattern), whole(x, other, "ntk", pattern=pattern))


AXES = [((-1,), ()), ((), ()), ((), (1,)), ((1, 2), ()), ((-1,), (1,))]


@pytest.mark.parametrize(("trace_axes", "diagonal_axes"), AXES)
def test_empirical_kernels_over_axes(trace_axes, diagonal_axes):
    """Against the definition: all Jacobians, all pairs of outputs, then traces and diagonals by NumPy."""
    init_fn, apply_fn, _ = stax.serial(stax.Dense(3), stax.Erf(), stax.Dense(2))
    x1, x2 = (jax.random.normal(jax.random.key(i), (n, 4, 3)) for i, n in ((0, 3), (1, 2)))
    params = init_fn(jax.random.key(2), x1.shape)[1]
    j1, j2 = (
        np.concatenate(
            [np.asarray(j).reshape(len(x), 4, 2, -1) for j in jax.tree.leaves(jax.jacobian(apply_fn)(params, x))], -1
        )
        for x in (x1, x2)
    )
    full = np.einsum("abcz,ABCz->aAbBcC", j1, j2)
    letters = list("aAbBcC")
    traced = [axis % 3 for axis in trace_axes]
    for axis in (*traced, *diagonal_axes):
        letters[2 * axis + 1] = letters[2 * axis]
    out = [c for c in dict.fromkeys(letters) if c not in {"abc"[axis] for axis in traced}]
    expected = np.einsum(f"{''.join(letters)}->{''.join(out)}", full) / np.prod([(3, 4, 2)[axis] for axis in traced])
    for vmap_axes, implementation in ((None, 1), (0, 1), (0, 3), (None, 2)):
        ntk_fn = nt.empirical_ntk_fn(apply_fn, trace_axes, diagonal_axes, vmap_axes, implementation)
        assert_close(ntk_fn(x1, x2, params), expected)
    vector = jax.random.normal(jax.random.key(3), (2, 4, 2))
    product = nt.empirical_ntk_vp_fn(apply_fn, x1, x2, params)(vector)
    assert_close(product, np.einsum("aAbBcC,ABC->abc", full, vector))


def test_monte_carlo_means_are_those_of_fewer_networks():
    init_fn, apply_fn, kernel_fn = stax.serial(stax.Dense(64), stax.Relu(), stax.Dense(1))
    x, key = jax.random.normal(jax.random.key(0), (3, 4)), jax.random.PRNGKey(1)
    sampled = nt.monte_carlo_kernel_fn(init_fn, apply_fn, key, range(1, 17), vmap_axes=0)
    means = jnp.stack(list(sampled(x, None, "ntk")))
    assert_close(means[1], nt.monte_carlo_kernel_fn(init_fn, apply_fn, key, 2, batch_size=2)(x, None, "ntk"))
    # One hidden layer: the mean over networks is the kernel at any width.
    sums = means * jnp.arange(1, 17)[:, None, None]
    each = jnp.diff(sums, axis=0, prepend=0 * sums[:1])
    standard_error = each.std(0, ddof=1) / 4
    assert (jnp.abs(means[-1] - kernel_fn(x, None, "ntk")) < 5 * standard_error).all()


def test_taylor_expansions_are_exact_for_polynomials():
    f = lambda w, x: {"y": w["a"] ** 2 * x + w["b"] * w["a"]}  # noqa: E731
    start, new = {"a": 1.0, "b": -2.0}, {"a": 3.0, "b": 0.5}
    assert_close(nt.taylor_expand(f, start, 2)(new, 5.0)["y"], f(new, 5.0)["y"])
    assert_close(nt.linearize(f, start)(new, 5.0)["y"], 3.0 + 2 * 5.0 * 2 - 2 * 2 + 2.5)
    assert_close(nt.taylor_expand(f, start, 0)(new, 5.0)["y"], 3.0)


def test_every_layer_of_the_facade_is_a_layer():
    names = {"ConvTranspose", "ConvLocal", "Index", "Slice", "DotGeneral", "ImageResize", "Gabor", "MaskedArray"}
    assert {"Dense", "serial", "Relu", *names} <= set(dir(stax))
    assert stax.Slice[:, 1] == (slice(None), 1)
    assert isinstance(stax.ImageResize((-1, 2, 2, -1), "nearest")[2], nt.AnalyticKernelFn)
    with pytest.raises(AttributeError, match="MaxPool"):
        getattr(stax, "MaxPool")  # noqa: B009
    init_fn, apply_fn, _ = stax.Dense(2)
    params = init_fn(jax.random.key(0), (-1, 3))[1]
    assert_close(apply_fn(params, jnp.ones((1, 3)), unknown=3), apply_fn(params, jnp.ones((1, 3))))


def test_layers_take_members_of_enums_for_words():
    x = jax.random.normal(jax.random.key(0), (2, 3, 3, 1))
    convolution = lambda padding: stax.serial(stax.Conv(1, (3, 3), padding=padding), stax.Relu())[2]  # noqa: E731
    assert_close(convolution(stax.Padding.CIRCULAR)(x, None, "ntk"), convolution("CIRCULAR")(x, None, "ntk"))
    assert stax.Padding("SAME") is stax.Padding.SAME
    for name, word in (
        ("AttentionMechanism", "RELU"),
        ("PositionalEmbedding", "SUM"),
        ("AggregateImplementation", "SPARSE"),
    ):
        assert getattr(stax, name)[word].value == word
    assert stax.Aggregate(implementation=stax.AggregateImplementation.DENSE)
    assert stax.GlobalSelfAttention(4, 4, 4, 2, attention_mechanism=stax.AttentionMechanism.ABS, linear_scaling=True)


def test_kernels_that_do_not_exist_are_refused():
    with pytest.raises(ValueError, match=r"`get` must be one of 'nngp', 'ntk', 'cov1'.* got 'ntkk'"):
        stax.Dense(1)[2](jnp.ones((2, 3)), None, "ntkk")
