"""Networks that are ready to train: perceptrons in NTK parameterization, and convolutional networks, two of the paper.

    `mlp`             Dense – activation – … – Dense, weights N(0, 1), scaled by σ_w / √fan-in in the forward pass
    `fashion_cnn`     [3×3 conv VALID – ReLU – 2×2 max-pool] with 6 and 16 channels, dense 120, 84, 10
    `histology_cnn`   [3×3 conv SAME – ReLU – 2×2 max-pool] with 6, 16, 26, 36, 46, 56 channels, dense 120, 84, 9
    `image_cnn`       [3×3 conv SAME – batch norm – ReLU – 2×2 max-pool] with 16, 32, 64 channels, mean, dense

The convolutional networks are in standard parameterization, as in Flax: truncated weights N(0, 1/fan-in), and biases
that begin with zero. Max-pooling is outside of the theory. The paper's networks pool odd grids (11 → 5, 7 → 3), which
breaks their symmetry under quarter turns; `image_cnn` does not.
"""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from ntk_equiv import stax
from ntk_equiv._check import boolean, one_of, positive_integer, positive_integers, refusal
from ntk_equiv._convolution import convolve, max_pool
from ntk_equiv.ensembles._models import to_flax

# The activations of `stax` that need no arguments.
ACTIVATIONS = ("Relu", "Abs", "Erf", "Sigmoid_like", "Gelu", "Sin", "Cos", "Rbf", "Gaussian", "Exp", "Sign", "Identity")


def mlp(
    widths: Sequence[int], outputs: int, *, W_std: float = 2**0.5, b_std: float | None = None, activation: str = "Relu"
) -> nn.Module:
    """Return a fully connected network in NTK parameterization, the finite one to the kernels of `stax`.

    Args:
        widths: the widths of the hidden layers.
        outputs: number of outputs.
        W_std: standard deviation of the weights of the hidden layers; that of the last layer is 1.
        b_std: standard deviation of the biases of all layers; `None` for no biases.
        activation: the name of an activation of `stax`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from ntk_equiv import ensembles
        >>> net = ensembles.mlp((16, 16), 3, b_std=0.1)
        >>> variables = jax.eval_shape(net.init, jax.random.key(0), jnp.ones((5, 2)))
        >>> jax.eval_shape(net.apply, variables, jnp.ones((5, 2))).shape
        (5, 3)
    """
    widths = positive_integers(widths, "widths", fix="List those of the hidden layers, as in (512,).", or_none=True)
    outputs = positive_integer(outputs, "outputs")
    make = getattr(stax, one_of(activation, ACTIVATIONS, "activation"))
    layers = [(stax.Dense(width, W_std, b_std), make()) for width in widths]
    return to_flax(stax.serial(*(layer for pair in layers for layer in pair), stax.Dense(outputs, 1.0, b_std)))


def fashion_cnn(outputs: int = 10, *, batch_norm: bool = False) -> nn.Module:
    """Return the paper's network for FashionMNIST, for images [n, 28, 28, channels].

    Args:
        outputs: number of classes.
        batch_norm: whether batch normalisation follows each convolution, which the paper does without.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from ntk_equiv import ensembles
        >>> net = ensembles.fashion_cnn()
        >>> variables = jax.eval_shape(net.init, jax.random.key(0), jnp.ones((1, 28, 28, 1)))
        >>> sum(leaf.size for leaf in jax.tree.leaves(variables))
        60074
    """
    outputs = positive_integer(outputs, "outputs")
    return PaperCNN((6, 16), "VALID", 2, outputs, boolean(batch_norm, "batch_norm"))


def histology_cnn(outputs: int = 9, *, pools: int = 6, batch_norm: bool = False) -> nn.Module:
    """Return the paper's network for histological images [n, 224, 224, 3].

    Args:
        outputs: number of classes.
        pools: how many of the six convolutions are followed by a max-pool; 3 for images of 28 × 28.
        batch_norm: whether batch normalisation follows each convolution, which the paper does without.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from ntk_equiv import ensembles
        >>> net = ensembles.histology_cnn()
        >>> variables = jax.eval_shape(net.init, jax.random.key(0), jnp.ones((1, 224, 224, 3)))
        >>> sum(leaf.size for leaf in jax.tree.leaves(variables))
        122997
    """
    if isinstance(pools, bool) or pools not in range(7):
        raise refusal("pools", expected="between 0 and 6", got=repr(pools), fix="Pass 6, or 3 for small images.")
    channels, outputs = (6, 16, 26, 36, 46, 56), positive_integer(outputs, "outputs")
    return PaperCNN(channels, "SAME", pools, outputs, boolean(batch_norm, "batch_norm"))


def image_cnn(outputs: int, *, channels: Sequence[int] = (16, 32, 64)) -> nn.Module:
    """Return a small convolutional network with batch normalisation, for images of any size.

    Each convolution, 3 × 3 SAME, is followed by batch normalisation and ReLU, and the first ones by a 2 × 2 max-pool
    while both sides of the image are even. Then comes the mean over all positions, and a dense layer. So it treats all
    quarter turns and flips of an image alike.

    Args:
        outputs: number of classes, or of numbers to predict.
        channels: those of the convolutions.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from ntk_equiv import ensembles
        >>> net = ensembles.image_cnn(9)
        >>> variables = jax.eval_shape(net.init, jax.random.key(0), jnp.ones((1, 28, 28, 3)))
        >>> sum(leaf.size for leaf in jax.tree.leaves(variables["params"]))
        24281
    """
    fix = "List those of the convolutions, as in (16, 32)."
    return ImageCNN(positive_integers(channels, "channels", fix=fix), positive_integer(outputs, "outputs"))


class ImageCNN(nn.Module):
    """Convolutions with batch normalisation and pools, and a mean over all positions."""

    channels: Sequence[int]
    outputs: int

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        """Return outputs; `train` says whether to normalise by the batch or by running statistics."""
        for channels in self.channels:
            x = nn.Conv(channels, (3, 3), use_bias=False)(x)
            x = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9)(x))
            # Windows that do not cover the image would treat its corners in different ways.
            if x.shape[1] % 2 == 0 and x.shape[2] % 2 == 0 and min(x.shape[1:3]) > 4:
                x = nn.max_pool(x, (2, 2), (2, 2))
        return nn.Dense(self.outputs)(x.mean((1, 2)))


class PaperCNN(nn.Module):
    """Convolutions with ReLU, the first `pools` of them followed by a 2 × 2 max-pool, then three dense layers.

    With `batch_norm` convolutions are normalised over the batch and all positions.
    """

    channels: tuple[int, ...]
    padding: str
    pools: int
    outputs: int
    batch_norm: bool = False

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        """Return the logits [n, outputs] of images [n, H, W, channels]."""
        for number, channels in enumerate(self.channels):
            x = Conv(channels, self.padding)(x)
            if self.batch_norm:
                x = nn.BatchNorm(use_running_average=not train, momentum=0.9, param_dtype=x.dtype)(x)
            # Pooling commutes with ReLU. Pooling first leaves fewer pixels for ReLU.
            x = nn.relu(max_pool(x, (2, 2)) if number < self.pools else x)
        x = x.reshape(x.shape[0], -1)
        for width in (120, 84):
            x = nn.relu(Dense(width)(x))
        return Dense(self.outputs)(x)


class Dense(nn.Module):
    """Flax's `Dense`, but the bias is added without rank promotion."""

    features: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the affine map of the last axis."""
        kernel = self.param("kernel", nn.initializers.lecun_normal(), (x.shape[-1], self.features), x.dtype)
        bias = self.param("bias", nn.initializers.zeros_init(), (self.features,), x.dtype)
        return x @ kernel + bias.reshape((1,) * (x.ndim - 1) + bias.shape)


class Conv(nn.Module):
    """A 3 × 3 convolution that equals Flax's `Conv`, but is fast on CPUs too."""

    features: int
    padding: str

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return images [n, H, W, features] from images [n, H, W, channels]."""
        kernel = self.param("kernel", nn.initializers.lecun_normal(), (3, 3, x.shape[-1], self.features), x.dtype)
        bias = self.param("bias", nn.initializers.zeros_init(), (self.features,), x.dtype)
        if self.padding == "SAME":
            x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        return convolve(x, kernel, (1, 1)) + bias.reshape(1, 1, 1, -1)
