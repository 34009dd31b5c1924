"""Samples with masked entries: kernels and finite networks against neural-tangents', layer by layer."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntk_equiv import InfiniteEnsemble, filters, gram, groups, interop, reps, stax, theorems
from tests.tolerances import assert_close

nt = interop.neural_tangents()
CONSTANT = 10.0


def sequences(seed: int, n: int, shape: tuple[int, ...] = (6, 3)) -> jax.Array:
    """Samples of which random positions are masked, single channels too, and one sample entirely."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, *shape))
    x[rng.uniform(size=x.shape[:-1]) < 0.3] = CONSTANT
    x[rng.uniform(size=x.shape) < 0.1] = CONSTANT
    x[-1] = CONSTANT
    return jnp.asarray(x)


def _branches(s, fan_in):
    first = s.serial(s.Conv(8, (3,), padding="SAME", W_std=1.2, b_std=0.3), s.Cos(), s.Conv(8, (2,), b_std=0.2))
    second = s.serial(s.Conv(8, (2,), W_std=0.9, b_std=0.4), s.Relu(), s.Conv(8, (1,), b_std=0.1))
    tail = [s.Erf(), s.GlobalAvgPool(), s.Dense(1, 1.1, 0.2)]
    return s.serial(s.FanOut(2), s.parallel(first, second), fan_in, *tail)


def _attention(s, **settings):
    attend = s.GlobalSelfAttention(8, 8, 8, 2, b_std=0.3, **settings)
    return s.serial(s.Dense(8, 1.2, 0.3), s.Relu(), attend, s.Erf(), s.GlobalAvgPool(), s.Dense(1))


def _normalized(s, *settings):
    return s.serial(s.Dense(8, 1.3, 0.5), s.LayerNorm(*settings), s.Gelu(), s.GlobalAvgPool(), s.Dense(1, b_std=0.2))


_EMBEDDED = {"pos_emb_type": "SUM", "W_pos_emb_std": 0.7, "pos_emb_decay_fn": lambda d: jnp.exp(-d)}

NETWORKS = {
    "dense": lambda s: s.serial(s.Flatten(), s.Dense(8, 1.2, 0.5), s.Relu(), s.Dense(1, 1.1, 0.3)),
    "positions stay": lambda s: s.serial(s.Dense(8, 1.2, 0.5), s.Rbf(0.7), s.Dense(1, 1.1, 0.3), s.Relu()),
    "strided": lambda s: s.serial(
        s.Conv(8, (3,), (2,), "SAME", 1.3, 0.4), s.Relu(), s.Conv(8, (2,), (1,), "CIRCULAR"), s.Sin(), s.Flatten()
    ),
    "valid": lambda s: s.serial(s.Conv(8, (4,), (2,), W_std=1.3, b_std=0.4), s.Erf(), s.GlobalSumPool(), s.Dense(1)),
    "pooled": lambda s: s.serial(
        s.Dense(8, 1.3, 0.4), s.Relu(), s.AvgPool((2,), (2,), "SAME"), s.Dense(4, 1.0, 0.2), s.GlobalAvgPool()
    ),
    "sum": lambda s: _branches(s, s.FanInSum()),
    "positions joined": lambda s: _branches(s, s.FanInConcat(1)),
    "channels joined": lambda s: s.serial(
        s.FanOut(2), s.parallel(s.Dense(4, 1.2, 0.3), s.Dense(6, 0.8, 0.5)), s.FanInConcat(-1), s.Dense(1, b_std=0.3)
    ),
    "normalised": lambda s: _normalized(s, -1, 0.1),
    # neural-tangents counts eps at masked positions too; here it is too small to matter.
    "normalised over positions": lambda s: _normalized(s, (1, -1), 1e-13),
    "attention": _attention,
    "attention, embedded": lambda s: _attention(s, attention_mechanism="RELU", val_pos_emb=True, **_EMBEDDED),
    "attention, square root": lambda s: _attention(
        s, linear_scaling=False, attention_mechanism="IDENTITY", val_pos_emb=True, **_EMBEDDED
    ),
    "dropout": lambda s: s.serial(s.Dense(8, 1.2, 0.3), s.Relu(), s.Dropout(0.7), s.GlobalAvgPool(), s.Dense(1)),
    "deep": lambda s: s.serial(*[s.serial(s.Dense(3, 1.3, 0.2), s.Relu())] * 6, s.GlobalAvgPool(), s.Dense(1)),
    "standard": lambda s: s.serial(
        s.Conv(4, (2,), b_std=0.3, parameterization="standard"), s.Relu(), s.Flatten(), s.Dense(1)
    ),
}


def theirs(call, *args, **kwargs):
    with jax.numpy_rank_promotion("allow"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call(*args, **kwargs)


@pytest.mark.parametrize("name", NETWORKS)
def test_kernels_agree(name):
    x1, x2 = sequences(0, 3), sequences(1, 2)
    kernel_fn = jax.jit(NETWORKS[name](nt.stax)[2])
    expected = theirs(kernel_fn, x1, x2, mask_constant=CONSTANT)
    expected = expected.reverse() if expected.is_reversed else expected
    kernel_fn = NETWORKS[name](stax)[2]
    found = kernel_fn(x1, x2, mask_constant=CONSTANT)
    assert_close(found.nngp, expected.nngp)
    assert_close(found.ntk, expected.ntk)
    if name in ("sum", "attention"):
        masked = stax.MaskedArray.of(x1, CONSTANT), stax.MaskedArray.of(x2, CONSTANT)
        assert_close(kernel_fn(*masked, "ntk"), expected.ntk)
        assert_close(gram(kernel_fn.with_mask_constant(CONSTANT), x1, x2, "ntk", tile=1), expected.ntk)


FINITE = ("strided", "pooled", "sum", "positions joined", "normalised", "attention")


@pytest.mark.parametrize("name", FINITE)
def test_finite_networks_agree(name, key):
    x = sequences(0, 3)
    init_fn, apply_fn, _ = NETWORKS[name](nt.stax)
    _, params = theirs(init_fn, key, x.shape)
    expected = theirs(nt.stax.unmask_fn(apply_fn), params, x, mask_constant=CONSTANT)
    init_fn, apply_fn, _ = NETWORKS[name](stax)
    shapes = jax.eval_shape(lambda key: init_fn(key, x.shape)[1], key)
    leaves = zip(jax.tree.leaves(shapes), jax.tree.leaves(params), strict=True)
    params = jax.tree.unflatten(jax.tree.structure(shapes), [given.reshape(own.shape) for own, given in leaves])
    assert_close(stax.unmask_fn(apply_fn)(params, x, mask_constant=CONSTANT), expected)


def test_graphs_with_masked_nodes():
    x1, x2 = sequences(0, 3), sequences(1, 3)
    edges = jnp.asarray(np.random.default_rng(2).uniform(size=(3, 6, 6)) < 0.5, float)
    build = lambda s: s.serial(s.Dense(8, 1.2, 0.4), s.Relu(), s.Aggregate(), s.Dense(1, 1.1, 0.3))  # noqa: E731
    kernel_fn = jax.jit(build(nt.stax)[2])
    expected = theirs(kernel_fn, x1, x2, pattern=(edges, edges), mask_constant=CONSTANT)
    graphs = [stax.Graph(stax.MaskedArray.of(x, CONSTANT), edges) for x in (x1, x2)]
    assert_close(build(stax)[2](*graphs, "ntk"), expected.ntk)


@pytest.mark.parametrize("build", [_attention, lambda s: _normalized(s, (1, -1), 0.3)], ids=["attention", "normalised"])
def test_length_decides_and_filling_does_not(build, key):
    """Shorter sequences, filled up to any length, have the kernels and outputs of sequences of their own length."""
    init_fn, apply_fn, kernel_fn = build(stax)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4, 2)))
    filled = jnp.pad(x, ((0, 0), (0, 3), (0, 0)), constant_values=jnp.nan)
    assert_close(kernel_fn(filled, None, "ntk", mask_constant=jnp.nan), kernel_fn(x, None, "ntk"))
    _, params = init_fn(key, x.shape)
    outputs = apply_fn(params, filled, mask_constant=jnp.nan)
    assert not outputs.mask.any()
    assert_close(outputs.masked_value, apply_fn(params, x))


def test_one_side_with_a_mask():
    _, _, kernel_fn = NETWORKS["valid"](stax)
    x, y = sequences(0, 3), jnp.asarray(np.random.default_rng(1).normal(size=(2, 6, 3)))
    masked = stax.MaskedArray.of(x, CONSTANT)
    assert_close(kernel_fn(masked, y, "ntk"), kernel_fn(x, y, "ntk", mask_constant=CONSTANT))


def test_masks_move_with_positions():
    """Turns take masks along if windows have a middle cell, and not otherwise."""
    images = [jnp.where(sequences(seed, 3, (4, 4, 1)) == CONSTANT, CONSTANT, 0.3 + seed) for seed in (0, 1)]
    turns = reps.rot90(groups.cyclic(4))
    for size, respected in ((3, True), (2, False)):
        conv = stax.Conv(8, (size, size), padding="SAME", b_std=0.3)
        _, _, kernel_fn = stax.serial(conv, stax.Relu(), stax.GlobalAvgPool(), stax.Dense(1))
        measured = theorems.kernel_transformation(kernel_fn.with_mask_constant(CONSTANT), turns, *images)
        assert measured.holds(1e-9) == respected


MASKED_LAYERS = {
    "transposed": lambda s: s.ConvTranspose(8, (3,), (2,), "SAME", 1.2, 0.3),
    "local": lambda s: s.ConvLocal(8, (3,), (2,), "SAME", 1.2, 0.3),
    "index": lambda s: s.Index(s.Slice[:, 1::2]),
    "resized": lambda s: s.ImageResize((-1, 4, -1), "linear"),
    "scaled": lambda s: s.DotGeneral(rhs=0.7),
    "contracted": lambda s: s.DotGeneral(rhs=jnp.arange(6.0), dimension_numbers=(((1,), (0,)), ((), ()))),
}


@pytest.mark.parametrize("name", MASKED_LAYERS)
def test_masks_pass_through(name):
    layer = MASKED_LAYERS[name]
    build = lambda s: s.serial(s.Dense(8, 1.2, 0.4), s.Relu(), layer(s), s.Dense(1, 1.1, 0.3))  # noqa: E731
    x1, x2 = sequences(0, 3), sequences(1, 2)
    expected = theirs(jax.jit(build(nt.stax)[2]), x1, x2, mask_constant=CONSTANT)
    expected = expected.reverse() if expected.is_reversed else expected
    found = build(stax)[2](x1, x2, mask_constant=CONSTANT)
    assert_close(found.nngp, expected.nngp)
    assert_close(found.ntk, expected.ntk)


def test_ensembles_of_masked_sequences():
    _, _, kernel_fn = _attention(stax)
    x = sequences(3, 5)[:4]
    labels = jnp.asarray([[1.0], [-1.0], [0.5], [2.0]])
    ens = InfiniteEnsemble(kernel_fn.with_mask_constant(CONSTANT), (x, labels), filters.gradient_flow())
    k = kernel_fn(x, None, "ntk", mask_constant=CONSTANT)
    w, v = jnp.linalg.eigh(k)
    expected = v @ (-jnp.expm1(-2.0 * w)[:, None] * (v.T @ labels))
    assert_close(ens.mean(x, 2.0), expected)
