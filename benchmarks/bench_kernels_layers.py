"""Are the less usual layers, and masks, at least as fast as those of neural-tangents in `jit`?

Each row is a small network around one kind of layer; both Gram matrices are computed. Masked sentences have between 12
and 32 tokens.
"""

import argparse
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
from measuring import NEURAL_TANGENTS, Found, compare_ways, report

from ntk_equiv import gram, interop, stax

nt = interop.neural_tangents()
BOTH, IN_JIT = ("nngp", "ntk"), f"{NEURAL_TANGENTS} in jit"
MASKED = -100.0
IMAGES, LARGER_IMAGES, SENTENCES, VECTORS = (24, 8, 8, 3), (80, 16, 16, 3), (60, 32, 16), (1000, 100)


def around(*layers, first=lambda s: s.Dense(1, 1.4, 0.1)):
    """Return a builder of networks with a first layer, ReLU, the given layers, and an end."""

    def build(s):
        return s.serial(first(s), s.Relu(), *(layer(s) for layer in layers), s.Flatten(), s.Dense(1))

    return build


def halving(s):
    """A convolution that makes images half as large."""
    return s.Conv(1, (2, 2), (2, 2), "VALID", 1.4, 0.1)


def transposed(s):
    """A transposed convolution, which makes images as large as before, and an activation."""
    return s.serial(s.ConvTranspose(1, (2, 2), (2, 2), "VALID", 1.4, 0.1), s.Relu())


def summed(s):
    """A product of 32 tokens with a constant vector, which makes one of them."""
    constant = jnp.asarray(np.random.default_rng(1).normal(size=32) / 6)
    return s.DotGeneral(rhs=constant, dimension_numbers=(((1,), (0,)), ((), ())))


def gabor(s):
    """Three hidden layers."""
    return s.serial(*[s.Dense(1, 1.4, 0.1), s.Gabor()] * 3, s.Dense(1))


def sequential(s):
    """A network for sentences of different lengths."""
    body = [s.Conv(1, (3,), padding="SAME", W_std=1.4, b_std=0.1), s.Relu()] * 2
    return s.serial(*body, s.GlobalAvgPool(), s.Dense(1))


def local(s):
    """A convolution with weights of its own at each position."""
    return s.ConvLocal(1, (3, 3), padding="SAME", W_std=1.4, b_std=0.1)


CASES = [
    ("ConvTranspose, 80 images 16×16", around(transposed, first=halving), LARGER_IMAGES),
    ("ConvLocal twice, 80 images 16×16", around(local, lambda s: s.Relu(), first=local), LARGER_IMAGES),
    ("ImageResize to 4×4, 24 images 8×8", around(lambda s: s.ImageResize((-1, 4, 4, -1), "linear")), IMAGES),
    ("DotGeneral, 60 × 32 tokens", around(summed), SENTENCES),
    ("Gabor, depth 3, 1000 samples", gabor, VECTORS),
    ("masked sentences, 60 × 32 tokens", sequential, SENTENCES),
]


def compare_networks(build, shape: tuple[int, ...], dtype: str, masked: bool) -> Found:
    """Measure both Gram matrices of random inputs."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=shape)
    if masked:
        lengths = rng.integers(12, 33, size=(shape[0], 1, 1))
        x = np.where(np.arange(shape[1])[None, :, None] < lengths, x, MASKED)
    x, settings = jnp.asarray(x, dtype), {"mask_constant": MASKED} if masked else {}
    ours, theirs = build(stax)[2], build(nt.stax)[2]
    ours = ours.with_mask_constant(MASKED) if masked else ours
    compiled = jax.jit(lambda x: theirs(x, None, BOTH, **settings))
    return compare_ways(
        lambda: tuple(gram(ours, x, None, BOTH)),
        {IN_JIT: lambda: tuple(compiled(x))},
        # On the diagonal neural-tangents is only accurate to the square root of the rounding error.
        tolerance={"float32": 5e-3, "float64": 2e-7}[dtype],
        patience=5.0,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", choices=["float32", "float64"], help="one precision; by default both")
    dtype = parser.parse_args().dtype
    if dtype is None:  # JAX decides on float64 when it starts, so each precision needs its own process.
        for name in ("float32", "float64"):
            subprocess.run([sys.executable, __file__, "--dtype", name], check=True)
    else:
        jax.config.update("jax_enable_x64", dtype == "float64")
        for question, build, shape in CASES:
            found = compare_networks(build, shape, dtype, question.startswith("masked"))
            report(f"{question}, {dtype}", target=1.0, peer=IN_JIT, found=found)
