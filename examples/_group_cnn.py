"""Networks that respect rotations of images by 360/k degrees, and one of about the same size that does not.

Regular features of C_k are functions f(h, s) of an orientation h and a position s. A rotation by g moves positions
and shifts orientations, f(h - g, s'). Layers that respect this are correlations with a filter and its rotated copies,

    lifting    f(g, s) = sum_o x(s + o) F(R_g^-1 o)
    regular    f(g, s) = sum_h sum_o f(h, s + o) F(h - g, R_g^-1 o)

As in E2CNN, filters consist of circular harmonics, cos(m phi) and sin(m phi), on rings of Gaussian profile. So they
can be rotated by any angle without interpolation. On the square grid of pixels this is exact for quarter turns and
close to exact for other angles. `rings` keeps m below what a ring can resolve.

    `GroupCNN`       lifting, regular and regular again, down to one position; a maximum over orientations; dense
    `Canonicalised`  a small network of this kind finds the orientation, the image is rotated back, and an ordinary
                     network classifies it (Kaba et al., Equivariance with Learned Canonicalization Functions, 2023)
    `WideCNN`        the paper's network with all widths multiplied

Grids must have even sides until they are pooled, so that quarter turns are exact: 28 - 14 - 7, or 12 - 6 - 3.
"""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from _rotated_images import rotations

# On CPUs these are several times as fast as the convolution and pooling of Flax.
from ntk_equiv._convolution import convolve, max_pool

FILTER = 5
RING_WIDTH = 0.6


class WideCNN(nn.Module):
    """The paper's network for FashionMNIST with all its widths multiplied by `percent`/100."""

    percent: int = 100
    outputs: int = 10

    @nn.compact
    def __call__(self, x):
        """Return the logits [n, outputs]."""
        for channels in (self.scaled(6), self.scaled(16)):
            x = max_pool(nn.relu(Conv(channels)(x)), (2, 2))
        return dense(x.reshape(len(x), -1), (self.scaled(120), self.scaled(84), self.outputs))

    def scaled(self, width):
        """Multiply a width of the paper's network."""
        return max(1, round(width * self.percent / 100))


class Conv(nn.Module):
    """A 3 x 3 convolution without padding."""

    features: int

    @nn.compact
    def __call__(self, x):
        """Return features [n, H - 2, W - 2, features]."""
        filters = self.param("filters", nn.initializers.lecun_normal(), (3, 3, x.shape[-1], self.features), x.dtype)
        bias = self.param("bias", nn.initializers.zeros_init(), (self.features,), x.dtype)
        return convolve(x, filters, (1, 1)) + bias.reshape(1, 1, 1, -1)


class GroupCNN(nn.Module):
    """A network that is invariant under C_k. `channels` counts the channels of all orientations."""

    order: int
    channels: tuple[int, int, int]
    head: int
    outputs: int = 10

    @nn.compact
    def __call__(self, x):
        """Return the logits [n, outputs]."""
        first, second, third = (fields(channels, self.order) for channels in self.channels)
        x = inside_disc(x)
        x = smooth_pool(nn.relu(GroupConv(self.order, first, lifting=True)(x)))
        x = smooth_pool(nn.relu(GroupConv(self.order, second)(x)))
        x = nn.relu(GroupConv(self.order, third, size=x.shape[1], padded=False)(x))
        x = x.reshape(len(x), self.order, third).max(1)
        return dense(x, (self.head, self.head, self.outputs))


class Canonicalised(nn.Module):
    """A network that finds the orientation of an image, and one that classifies it after it is rotated back."""

    order: int
    channels: tuple[int, ...]
    percent: int
    outputs: int = 10

    def setup(self):
        """Make the two networks."""
        self.finder = Orientation(self.order, self.channels)
        self.classifier = WideCNN(self.percent, self.outputs)

    def __call__(self, x):
        """Return the logits [n, outputs]."""
        return self.classifier(turn_back(rotations(self.order), jax.nn.softmax(self.finder(x)), x))

    def orient(self, x):
        """Return the orientations that are found, elements of C_k, [n]."""
        return jnp.argmax(self.finder(x), -1)

    def classify(self, x, g):
        """Return the classes of images after they are rotated back by the elements g of C_k, [n]."""
        rep = rotations(self.order)
        return jnp.argmax(self.classifier(jax.vmap(rep)(jnp.asarray(rep.group.inverse)[g], x)), -1)


class Orientation(nn.Module):
    """Scores of the orientations of an image. They shift when the image is rotated.

    The mean over positions leaves of a linear layer little more than the sums of its filters. So the layers before the
    last one, which ReLU follows, are those that see shapes.
    """

    order: int
    channels: tuple[int, ...]

    @nn.compact
    def __call__(self, x):
        """Return the scores [n, order]."""
        *hidden, last = (fields(channels, self.order) for channels in self.channels)
        x = inside_disc(x)
        for number, count in enumerate(hidden):
            x = smooth_pool(nn.relu(GroupConv(self.order, count, lifting=number == 0)(x)))
        x = GroupConv(self.order, last)(x)
        return x.reshape(*x.shape[:3], self.order, last).mean((1, 2, 4))


class GroupConv(nn.Module):
    """A convolution that respects C_k, from images (lifting) or regular features to regular features.

    Channels are [orientation, field] in row-major order.
    """

    order: int
    features: int
    size: int = FILTER
    lifting: bool = False
    padded: bool = True

    @nn.compact
    def __call__(self, x):
        """Return features [n, H, W, order * features], or [n, 1, 1, ...] if the filter covers the image."""
        k, turns = self.order, 1 if self.lifting else self.order
        basis = harmonics(k, self.size).astype(x.dtype)
        inputs, count = x.shape[-1] // turns, basis.shape[-1]
        # The harmonics have norm one, so this keeps the size of features behind a ReLU.
        initial = nn.initializers.normal((2 / (count * x.shape[-1])) ** 0.5)
        weights = self.param("weights", initial, (count, turns, inputs, self.features), x.dtype)
        bias = self.param("bias", nn.initializers.zeros_init(), (self.features,), x.dtype)
        relative = (np.arange(turns)[None, :] - np.arange(k)[:, None]) % turns  # h - g, for each g and h
        filters = jnp.einsum("gpj,jghif->phigf", basis, weights[:, relative])
        filters = filters.reshape(self.size, self.size, x.shape[-1], k * self.features)
        if self.padded:
            half = self.size // 2
            x = jnp.pad(x, ((0, 0), (half, half), (half, half), (0, 0)))
        return convolve(x, filters, (1, 1)) + jnp.tile(bias, k).reshape(1, 1, 1, -1)


def harmonics(order, size):
    """Return circular harmonics on a grid of odd side `size`, rotated by each element of C_k, [order, size², count]."""
    axis = np.arange(size) - (size - 1) / 2
    right, down = np.meshgrid(axis, axis)
    radius, angle = np.hypot(right, down).ravel(), np.arctan2(-down, right).ravel()
    turned = angle[None] - 2 * np.pi * np.arange(order)[:, None] / order
    columns = []
    for ring, frequencies in rings(size):
        profile = np.exp(-((radius - ring) ** 2) / (2 * RING_WIDTH**2))[None]
        profile = profile * (radius > 0) if ring else profile  # the centre has no angle
        for m in range(frequencies + 1):
            waves = (np.cos, np.sin) if m else (np.cos,)
            columns += [profile * wave(m * turned) for wave in waves]
    basis = np.stack(columns, axis=-1)
    return basis / np.linalg.norm(basis[:1], axis=1, keepdims=True)


def rings(size):
    """Return the radii of the rings of a filter, and the highest angular frequency on each.

    A ring can hold frequencies up to twice its radius in pixels. The outermost ring is cut off by the edge and can hold
    frequencies up to two.
    """
    outer = size // 2
    return [(radius, 2 * radius if radius < outer else min(2 * radius, 2)) for radius in range(outer + 1)]


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def turn_back(rep, probabilities, x):
    """Rotate images back from their most probable orientation. Gradients use the mean over all orientations.

    This is the straight-through estimator: the value is that of the maximum, the derivative is that of the mean

        sum_g p(g) rho(g)^-1 x.

    Only derivatives with respect to the probabilities are passed on, which is what training needs.
    """
    inverse = jnp.asarray(rep.group.inverse)
    return jax.vmap(rep)(inverse[jnp.argmax(probabilities, -1)], x)


@turn_back.defjvp
def _straight_through(rep, primals, tangents):
    probabilities, x = primals
    every = rep.orbit(x, rep.group.inverse)
    return turn_back(rep, probabilities, x), jnp.einsum("ng,gnhwc->nhwc", tangents[0], every)


def dense(x, widths):
    """Apply dense layers of these widths, with ReLU between them. Call this inside a module."""
    for number, width in enumerate(widths):
        x = nn.Dense(width, param_dtype=x.dtype)(nn.relu(x) if number else x)
    return x


def fields(channels, order):
    """Return how many regular fields fit into so many channels, at least one."""
    return max(1, channels // order)


def inside_disc(x):
    """Set the corners of images to zero, because rotations lose them."""
    axis = np.arange(x.shape[1]) - (x.shape[1] - 1) / 2
    disc = np.hypot(*np.meshgrid(axis, axis)) <= x.shape[1] / 2
    return x * jnp.asarray(disc, x.dtype)[None, :, :, None]


def smooth_pool(x):
    """Halve the pixels per side after smoothing, which makes the network respect rotations by 45 degrees better."""
    weights = (0.125, 0.375, 0.375, 0.125)
    x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    for axis in (1, 2):
        count = (x.shape[axis] - 2) // 2
        slices = [jax.lax.slice_in_dim(x, o, o + 2 * count - 1, 2, axis) for o in range(4)]
        x = sum(weight * part for weight, part in zip(weights, slices, strict=True))
    return x


def count_parameters(module, shape):
    """Return the number of parameters of a network for images of this shape (H, W, C)."""
    found = jax.eval_shape(module.init, jax.random.key(0), jnp.zeros((1, *shape), jnp.float32))
    return sum(leaf.size for leaf in jax.tree.leaves(found))


def match_parameters(build, target, shape, /, *, largest=10_000):
    """Return the network `build(width)` whose number of parameters is closest to `target`."""
    low, high = 1, largest
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count_parameters(build(middle), shape) <= target else (low, middle)
    return build(min((low, high), key=lambda width: abs(count_parameters(build(width), shape) - target)))
