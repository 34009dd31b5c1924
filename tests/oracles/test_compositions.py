"""Random compositions of layers: finite, positive semidefinite, and equal to neural-tangents'."""

import warnings

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv import interop, stax
from tests.architectures import arcsine_dual
from tests.laws.test_kernels import as_matrix
from tests.tolerances import ORACLE, assert_close

nt = interop.neural_tangents()

stds = st.sampled_from([0.7, 1.0, 1.4])
biases = st.sampled_from([None, 0.0, 0.3])
norms = st.sampled_from([[], [("LayerNorm",)], [("LayerNorm", -1, 0.2)]])
functions = st.sampled_from(
    [
        ("Sigmoid_like",),
        ("Rbf", 0.3),
        ("Gaussian", 1.2, -0.4),
        ("Exp", 0.5, 0.3),
        ("Polynomial", (0.1, 0.4, 0.1)),
        ("Elementwise", jax.scipy.special.erf, arcsine_dual),
        ("unit Hermite", 3),
        ("Relu",),
        ("LeakyRelu", 0.2),
        ("ABRelu", -0.3, 1.1),
        ("Abs",),
        ("Erf",),
        ("Gelu",),
        ("Sin", 1.0, 0.7, 0.4),
        ("Cos",),
    ]
)
# Not inside branches, whose widths neural-tangents learns by evaluating the finite network.
activations = st.one_of(functions, st.just(("ExpNormalized", 0.7, -0.8)))
# For vectors only: on grids with all pairs of positions, neural-tangents takes the covariance of any two for one.
signs = st.just(("Sign",))
# Once and last, for the sake of overflow.
powers = st.sampled_from([("Monomial", 2), ("Monomial", 3), ("Exp",)])
dropout = st.sampled_from([[], [("Dropout", 0.8)]])


# What is put beside an unchanged branch; only sums are Gaussian, as the next activation wants it.
BESIDE = [
    lambda inner: [("FanInSum", inner)],
    lambda inner: [("FanInProd", inner), ("Dense", 8)],
    lambda inner: [("FanInConcat", [*inner, ("Dense", 5)]), ("Dense", 8)],
]


@st.composite
def dense_layers(draw, out=8):
    """In either parameterization."""
    return ("Dense", out, draw(stds), draw(biases), 0, -1, draw(st.sampled_from(["ntk", "ntk", "standard"])))


@st.composite
def attention_layers(draw):
    """None, or one with a closed form."""
    linear = draw(st.booleans())
    mechanism = draw(st.sampled_from(["SOFTMAX", "IDENTITY", "ABS", "RELU"])) if linear else "IDENTITY"
    stds_and_bias = (*(draw(stds) for _ in range(4)), draw(biases))
    kind, decay = draw(st.sampled_from(["NONE", "SUM", "CONCAT"])), draw(st.sampled_from([None, decaying]))
    embedding = (kind, 2, decay, None, draw(stds), draw(st.booleans()))
    layer = ("GlobalSelfAttention", 4, 4, 4, 2, linear, *stds_and_bias, mechanism, *embedding)
    return draw(st.sampled_from([[], [layer, *draw(norms)]]))


def decaying(distance):
    """Covariance of positional embeddings."""
    return jnp.exp(-distance / 3)


@st.composite
def vector_layers(draw, depth):
    """Descriptions of layers that act on vectors: `(name, *arguments)`, or a fan-in with the layers of one branch."""
    layers = []
    for _ in range(draw(st.integers(1, depth))):
        layers += [draw(dense_layers()), *draw(norms)]
        if draw(st.booleans()):
            inner = [draw(dense_layers()), draw(functions), ("Dense", 8, draw(stds))]
            layers += draw(st.sampled_from(BESIDE))(inner)
        layers += [draw(st.one_of(activations, signs)), *draw(dropout)]
    if draw(st.booleans()):
        layers += [("Dense", 8, 0.7), draw(powers)]
    return [*layers, draw(dense_layers(1))]


@st.composite
def image_layers(draw):
    """Convolutions, attention, pools, and an end."""
    layers = []
    for _ in range(draw(st.integers(1, 2))):
        padding = draw(st.sampled_from(["SAME", "VALID", "CIRCULAR"]))
        shape = draw(st.sampled_from([(1, 2), (2, 2), (3, 2)]))
        strides = draw(st.sampled_from([None, (1, 2)]))
        layers.append(("Conv", 4, shape, strides, padding, draw(stds), draw(biases)))
        layers += [*draw(norms), draw(activations), *draw(dropout), *draw(attention_layers())]
        if draw(st.booleans()):
            layers.append(("AvgPool", (2, 1), (1, 1), draw(st.sampled_from(["SAME", "CIRCULAR"]))))
    end = draw(st.sampled_from([[("Flatten",)], [("GlobalAvgPool",)], [("GlobalSumPool",)]]))
    return [*layers, *end, *draw(st.one_of(st.just([]), vector_layers(depth=1)))]


def build(module, layers):
    def one(name, *arguments):
        if name == "unit Hermite":  # Of unit variance, as neural-tangents assumes.
            return module.serial(module.Rbf(0.3), module.Dense(8), module.Hermite(*arguments))
        if not name.startswith("FanIn"):
            return getattr(module, name)(*arguments)
        branches = module.parallel(build(module, arguments[0]), module.Identity())
        return module.serial(module.FanOut(2), branches, getattr(module, name)())

    return module.serial(*(one(*layer) for layer in layers))


def check(layers, shape):
    rng = np.random.default_rng(0)
    x, y = (jnp.asarray(rng.normal(size=(n, *shape))) for n in (3, 3))
    kernel_fn = build(stax, layers)[2]
    for kernel in kernel_fn(x, x):
        matrix = as_matrix(kernel)
        assert np.isfinite(matrix).all()
        eigenvalues = np.linalg.eigvalsh((matrix + matrix.T) / 2)
        assert eigenvalues[0] > -1e-12 * max(eigenvalues[-1], 1e-300)
    with jax.numpy_rank_promotion("allow"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Compiled as a whole: evaluated step by step it would compile every step.
        theirs = jax.jit(build(nt.stax, layers)[2], static_argnums=2)(x, y, ("nngp", "ntk"))
    for ours, oracle in zip(kernel_fn(x, y), theirs, strict=True):
        assert_close(ours, oracle, ORACLE)


@hypothesis.settings(max_examples=14)
@hypothesis.given(vector_layers(depth=3))
def test_networks_of_vectors(layers):
    check(layers, (5,))


@hypothesis.settings(max_examples=8)
@hypothesis.given(image_layers())
def test_networks_of_images(layers):
    check(layers, (4, 5, 2))
