"""Group convolutions against loops over positions, elements and taps, and against plain convolutions of turned images.

The loops know the groups as matrices that act on coordinates (row, column), and nothing of `rot90`.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntk_equiv import groups, reps, stax
from tests.tolerances import ORACLE, assert_close

TURN, FLIP = np.array([[0, -1], [1, 0]]), np.array([[1, 0], [0, -1]])
MATRICES = {
    "C4": [np.linalg.matrix_power(TURN, k) for k in range(4)],
    "D4": [np.linalg.matrix_power(TURN, k) @ flip for flip in (np.eye(2, dtype=int), FLIP) for k in range(4)],
}
GROUPS = {"C4": groups.cyclic(4), "D4": groups.dihedral(4)}
REPS = {name: reps.rot90(group) for name, group in GROUPS.items()}
both_groups = pytest.mark.parametrize("name", MATRICES)


@functools.cache
def product(name, g, k):
    """The number of the element that is the product of two."""
    matrix = MATRICES[name][g] @ MATRICES[name][k]
    return next(i for i, other in enumerate(MATRICES[name]) if (other == matrix).all())


def taps(name, g, shape, size, stride, padding):
    """For every output position and every tap of the filter turned by g, the pixel it lies on; None for a zero."""
    outside = 0 if padding == "VALID" else (size - 1) // 2
    outputs = (shape + 2 * outside - size) // stride + 1
    centre = (size - 1) / 2
    found = {}
    for position in itertools.product(range(outputs), repeat=2):
        for tap in itertools.product(range(size), repeat=2):
            turned = MATRICES[name][g] @ (np.array(tap) - centre) + centre
            pixel = np.rint(np.array(position) * stride - outside + turned).astype(int)
            inside = ((pixel >= 0) & (pixel < shape)).all()
            found[position, tap] = tuple(pixel % shape) if inside or padding == "CIRCULAR" else None
    return found, outputs


def looped(name, x, W, b, stride, padding):
    """One sample through a lifting convolution (x [h, h, C]) or one on the group (x [h, h, |G|, C])."""
    lifts, order = x.ndim == 3, len(MATRICES[name])
    y = np.zeros((*taps(name, 0, len(x), len(W), stride, padding)[1:] * 2, order, W.shape[-1]))
    for g in range(order):
        for (position, tap), pixel in taps(name, g, len(x), len(W), stride, padding)[0].items():
            for k in () if pixel is None else range(1 if lifts else order):
                value, weight = (x[pixel], W[tap]) if lifts else (x[pixel][product(name, g, k)], W[tap][k])
                y[position][g] += value @ weight
    return 1.3 * y / np.sqrt(W[..., 0].size) + 0.2 * b


def described(init_fn, shape):
    """The output shape that a network announces, and the shapes of its weights, without drawing them."""
    announced = []
    weights = jax.eval_shape(lambda key: announced.append(init_fn(key, shape)) or announced[0][1], jax.random.key(0))
    return announced[0][0], weights


@pytest.mark.parametrize(
    ("name", "size", "stride", "padding", "shape"),
    [("C4", 3, 1, "SAME", 4), ("C4", 2, 2, "VALID", 4), ("D4", 3, 2, "CIRCULAR", 5), ("D4", 2, 1, "VALID", 3)],
)
def test_finite_layers_are_sums_over_turned_filters(name, size, stride, padding, shape):
    settings = ((size, size), (stride, stride), padding, 1.3, 0.2)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, shape, shape, 2))
    for layer in (stax.LiftingConv, stax.GroupConv):
        init_fn, apply_fn, _ = layer(3, *settings, group=name)
        announced, shapes = described(init_fn, x.shape)
        W, b = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), shapes)
        y = jax.jit(apply_fn)((W, b), x)
        assert y.shape == announced
        assert_close(y, np.stack([looped(name, sample, W, b, stride, padding) for sample in x]))
        x = rng.normal(size=(1, shape, shape, len(MATRICES[name]), 2))


def looped_kernels(name, K, Theta, taps_of, W_var, b_var, *, lifts):
    """The recursion for 𝒦 and Θ, entry by entry; rows and columns count (row, column) or (row, column, element)."""
    order = len(MATRICES[name])
    found, outputs = zip(*(taps_of(g) for g in range(order)), strict=True)
    places = list(itertools.product(itertools.product(range(outputs[0]), repeat=2), range(order)))
    offsets = sorted({tap for _, tap in found[0]})
    results = np.zeros((2, len(places), len(places)))
    times = {(g, k): product(name, g, k) for g in range(order) for k in range(order)}
    index = {place: i for i, place in enumerate(places)}

    def seen(position, g, tap, k):
        pixel = found[g][position, tap]
        return None if pixel is None else pixel if lifts else (pixel, times[g, k])

    for i, (s, g) in enumerate(places):
        for j, (t, h) in enumerate(places):
            pairs = [(seen(s, g, tap, k), seen(t, h, tap, k)) for tap in offsets for k in range(1 if lifts else order)]
            inside = [pair for pair in pairs if None not in pair]
            side = round(len(K) ** 0.5)
            where = [[a[0] * side + a[1] if lifts else index[a] for a in pair] for pair in inside]
            rows, columns = np.array(where).T
            results[:, i, j] = K[rows, columns].sum() / len(pairs), Theta[rows, columns].sum() / len(pairs)
    nngp = W_var * results[0] + b_var
    return nngp, W_var * results[1] + nngp


def rectified(K, Theta, q1, q2):
    """ReLU, by the arc cosine."""
    norms = np.sqrt(np.outer(q1, q2))
    cosine = np.clip(K / norms, -1, 1)
    angle = np.arccos(cosine)
    sine = np.sqrt(1 - cosine**2)
    return norms * (sine + (np.pi - angle) * cosine) / (2 * np.pi), Theta * (np.pi - angle) / (2 * np.pi)


@both_groups
def test_kernels_obey_the_recursion(name):
    """Two different samples, so that no cosine is 1 where the arc cosine is inaccurate."""
    order = len(MATRICES[name])
    x = np.random.default_rng(0).normal(size=(2, 3, 3, 2))
    net = stax.serial(
        stax.LiftingConv(1, (3, 3), padding="SAME", W_std=1.4, b_std=0.3, group=name),
        stax.Relu(),
        stax.GroupConv(1, (3, 3), padding="SAME", W_std=1.2, b_std=0.1, group=name),
    )

    def lifted(a, b):
        K = a.reshape(9, 2) @ b.reshape(9, 2).T / 2
        taps_of = lambda g: taps(name, g, 3, 3, 1, "SAME")  # noqa: E731
        return looped_kernels(name, K, 0 * K, taps_of, 1.4**2, 0.3**2, lifts=True)

    q1, q2 = (np.diag(lifted(sample, sample)[0]) for sample in x)
    K, Theta = rectified(*lifted(*x), q1, q2)
    expected = looped_kernels(name, K, Theta, lambda g: taps(name, g, 3, 3, 1, "SAME"), 1.2**2, 0.1**2, lifts=False)
    for kernel, entries in zip(jax.jit(net.kernel_fn)(jnp.asarray(x[:1]), jnp.asarray(x[1:])), expected, strict=True):
        assert kernel.shape == (1, 1, 3, 3, 3, 3, order, order)
        assert_close(np.asarray(kernel[0, 0]).transpose(0, 2, 4, 1, 3, 5).reshape(9 * order, 9 * order), entries)


def residual(first, other, pool):
    """A network with a residual block and pooling."""
    branch = stax.serial(other(8, (3, 3), None, "CIRCULAR", 1.2, 0.2), stax.Erf(), other(8, (1, 1)))
    block = stax.serial(stax.FanOut(2), stax.parallel(branch, stax.Identity()), stax.FanInSum())
    return stax.serial(first(8, (3, 3), None, "SAME", 1.4, 0.1), block, stax.Relu(), pool)[2]


LIFT, CONV = (functools.partial(layer, group="D4") for layer in (stax.LiftingConv, stax.GroupConv))


def test_features_have_the_kernels_of_a_plain_network_on_turned_images():
    """𝒦_G(s, g; s', g')(x, x') = 𝒦(s; m⁻¹s')(x, m⁻¹x') with m = g'g⁻¹, also on coincident images."""
    group, rep = GROUPS["D4"], REPS["D4"]
    x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 4, 4, 1)))
    kernels = jax.jit(residual(LIFT, CONV, stax.AvgPool((2, 2, 1), (2, 2, 1))))(x, x)
    plain = residual(stax.Conv, stax.Conv, stax.AvgPool((2, 2), (2, 2)))
    images = jax.jit(plain)(x, jax.jit(rep.orbit)(x)[:, 0])
    grid = jax.jit(jax.vmap(rep.spatial((2, 2)).right))
    for kernel, image in zip(kernels, images, strict=True):
        back = np.asarray(grid(jnp.arange(group.order), image[0][jnp.asarray(group.inverse)]))
        found = np.asarray(kernel)
        for g, h in itertools.product(range(group.order), repeat=2):
            assert_close(found[0, 0, ..., g, h], back[group.table[h, group.inverse[g]]], ORACLE)


def test_flattened_features_have_the_kernel_of_the_plain_network():
    """Equal positions and elements only: m is the identity."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4, 4, 1)))

    def network(first, other):
        layers = first(8, (3, 3), None, "SAME", 1.4, 0.1), stax.Relu(), other(8, (2, 2), b_std=0.3), stax.Relu()
        return jax.jit(stax.serial(*layers, stax.Flatten(), stax.Dense(1, 1.3, 0.2))[2])(x, x)

    for ours, theirs in zip(network(LIFT, CONV), network(stax.Conv, stax.Conv), strict=True):
        assert_close(ours, theirs)


def test_features_move_with_the_image_and_pooled_ones_do_not():
    """y(s, g) becomes y(h⁻¹s, h⁻¹g), its average over the group y(h⁻¹s), and that over the positions too stays."""
    rep, x = REPS["D4"], jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, 5, 1)))
    group_conv = stax.GroupConv(3, (3, 3), padding="SAME", group="D4")
    body = stax.serial(stax.LiftingConv(4, (3, 3), (2, 2), b_std=0.1, group="D4"), stax.Relu(), group_conv, stax.Erf())
    shape, weights = described(body.init_fn, x.shape)
    params = jax.tree.map(lambda leaf: jnp.asarray(np.random.default_rng(1).normal(size=leaf.shape)), weights)
    grid, elements = rep.spatial(shape[1:-1]), jnp.arange(rep.group.order)

    @jax.jit
    def evaluated(x):
        orbit = rep.orbit(x)
        y = jax.vmap(lambda image: body.apply_fn(params, image))(orbit)
        moved = jax.vmap(lambda h: grid.move(h, y[0], (1, 2, 3)))(elements)
        pooled = jax.vmap(lambda y: stax.GroupPool().apply_fn((), y))(y)
        kernels = stax.serial(body, stax.GlobalAvgPool(), stax.Dense(1)).kernel_fn(orbit.reshape(-1, 5, 5, 1), x)
        return y, moved, pooled, rep.orbit(pooled[0]), kernels

    y, moved, pooled, images, kernels = evaluated(x)
    assert shape == y.shape[1:] == (2, 2, 2, rep.group.order, 3)
    assert_close(y, moved, {"float64": 1e-13})
    assert_close(pooled, images, {"float64": 1e-13})
    for kernel in kernels:
        assert_close(kernel, np.tile(kernel[:2], (rep.group.order, 1)), {"float64": 1e-13})


@both_groups
def test_elements_are_numbered_as_those_of_the_groups(name):
    """A filter of the size of the image is a dense layer: y(g) is the inner product of the image and gW."""
    group, rng = GROUPS[name], np.random.default_rng(0)
    for g in range(group.order):
        assert [product(name, g, k) for k in range(group.order)] == group.table[g].tolist()
    x, W = (jnp.asarray(rng.normal(size=shape)) for shape in ((1, 3, 3, 1), (3, 3, 1, 1)))
    y = stax.LiftingConv(1, (3, 3), group=name).apply_fn((W, None), x)
    turned = jax.jit(REPS[name].orbit)(W[None, ..., 0])
    assert_close(y[0, 0, 0, :, 0], jnp.sum(turned * x[None], (1, 2, 3, 4)) / 3)


def test_tiles_count_the_axis_of_the_group():
    kernel_fn = stax.serial(stax.LiftingConv(1, (3, 3), group="D4"), stax.Relu(), stax.GlobalAvgPool())[2]
    assert kernel_fn.entries_per_pair(jnp.ones((1, 5, 5, 1))) == (25 * 8) ** 2
