"""How fast are both Gram matrices Θ(X, X) and 𝒦(X, X), against neural-tangents in the same run?

neural-tangents is called in both usual ways: `kernel_fn` as it is, and wrapped in `jax.jit`. Where we are close to the
latter, targets refer to it. For those dense networks, the time of half a product of the inputs and of writing two
results of this size is measured beside it: a floor, since nobody can do without these, and a low one, since it
leaves out roots and arc cosines.
"""

import argparse
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
from measuring import NEURAL_TANGENTS, Found, compare_ways, report, time_in_turn

from ntk_equiv import gram, interop, stax

nt = interop.neural_tangents()
BOTH, IN_JIT = ("nngp", "ntk"), f"{NEURAL_TANGENTS} in jit"
FLOOR = "of our time: product of inputs and writing"


def dense(activation: str, depth: int):
    """Return a builder of dense networks with `depth` hidden layers."""

    def build(s):
        return s.serial(*[s.Dense(1, 1.4, 0.1), getattr(s, activation)()] * depth, s.Dense(1, 1.0, 0.1))

    return build


def convolutional(end: str, padding: str):
    """Return a builder of networks with three 3×3 convolutions and ReLU, then `end`."""

    def build(s):
        body = [s.Conv(1, (3, 3), padding=padding, W_std=1.4, b_std=0.1), s.Relu()] * 3
        return s.serial(*body, getattr(s, end)(), s.Dense(1))

    return build


def normalized(depth: int):
    """Return a builder of dense networks whose `depth` hidden layers are normalised before the ReLU."""

    def build(s):
        return s.serial(*[s.Dense(1, 1.4, 0.1), s.LayerNorm(), s.Relu()] * depth, s.Dense(1, 1.0, 0.1))

    return build


def transformer(end: str, **attention):
    """Return a builder of networks with twice attention, normalisation and a hidden layer, then `end`."""

    def build(s):
        block = [s.GlobalSelfAttention(1, 1, 1, 1, b_std=0.1, **attention), s.LayerNorm(), s.Dense(1, 1.4), s.Relu()]
        return s.serial(s.Dense(1), *block * 2, getattr(s, end)(), s.Dense(1))

    return build


VECTORS, IMAGES, FEW_IMAGES = (2000, 200), (120, 28, 28, 1), (8, 28, 28, 1)
SENTENCES, PATCHES = (60, 32, 16), (40, 8, 8, 3)
EMBEDDED = {"pos_emb_type": "SUM", "pos_emb_decay_fn": lambda d: jnp.exp(-d / 8), "val_pos_emb": True}
BILINEAR = {"linear_scaling": False, "attention_mechanism": "IDENTITY", "W_key_std": 0.2, "W_out_std": 0.2}

# Question, network, shape of the inputs, target ratios in float32 and float64 against neural-tangents as it is.
CASES = [
    ("dense ReLU, depth 1, 2000 samples", dense("Relu", 1), VECTORS, (8, 2.5)),
    ("dense ReLU, depth 3, 2000 samples", dense("Relu", 3), VECTORS, (10, 4.5)),
    ("dense ReLU, depth 8, 2000 samples", dense("Relu", 8), VECTORS, (15, 6)),
    ("dense erf, depth 1, 2000 samples", dense("Erf", 1), VECTORS, (3, 2)),
    ("dense erf, depth 3, 2000 samples", dense("Erf", 3), VECTORS, (3, 2)),
    ("conv SAME + flatten, 120 images", convolutional("Flatten", "SAME"), IMAGES, (6, 4)),
    ("conv VALID + flatten, 120 images", convolutional("Flatten", "VALID"), IMAGES, (6, 4)),
    ("conv SAME + global average, 8 images", convolutional("GlobalAvgPool", "SAME"), FEW_IMAGES, (5, 3)),
    ("dense ReLU with LayerNorm, depth 3, 2000 samples", normalized(3), VECTORS, (2, 2)),
    ("attention + flatten, 60 × 32 tokens", transformer("Flatten"), SENTENCES, (2, 2)),
    ("attention + global average, 40 × 8 × 8", transformer("GlobalAvgPool"), PATCHES, (2, 2)),
    ("attention, embedded, 60 × 32 tokens", transformer("Flatten", **EMBEDDED), SENTENCES, (2, 2)),
    ("attention, root scaling, 60 × 32 tokens", transformer("Flatten", **BILINEAR), SENTENCES, (2, 2)),
]


# The same against neural-tangents in `jit`.
TARGETS_IN_JIT = {
    "dense ReLU, depth 1, 2000 samples": (4, 3),
    "dense ReLU, depth 3, 2000 samples": (8, 5),
    "conv SAME + global average, 8 images": (5, 5),
}


def compare_networks(build, shape: tuple[int, ...], dtype: str) -> Found:
    """Measure both Gram matrices of random inputs."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=shape), dtype)
    ours, theirs = build(stax)[2], build(nt.stax)[2]
    compiled = jax.jit(theirs, static_argnums=2)
    return compare_ways(
        lambda: tuple(gram(ours, x, None, BOTH)),
        {
            NEURAL_TANGENTS: lambda: tuple(theirs(x, None, BOTH)),
            IN_JIT: lambda: tuple(compiled(x, None, BOTH)),
        },
        # On the diagonal neural-tangents is only accurate to the square root of the rounding error.
        tolerance={"float32": 5e-3, "float64": 2e-7}[dtype],
        rounds=7,
        patience=2.5,
    )


def with_floor(found: Found, shape: tuple[int, ...], dtype: str) -> Found:
    """Add the time of what no dense kernel can do without: half of the product X Xᵀ, and writing both results."""
    n, features = shape
    half = jnp.ones((n // 2, features), dtype), jnp.ones((features, n), dtype)
    product, write = jax.jit(jnp.matmul), jax.jit(lambda number: (jnp.full((n, n), number), jnp.full((n, n), -number)))
    parts = {"product": lambda: product(*half), "write": lambda: write(half[0][0, 0])}
    for part in parts.values():
        jax.block_until_ready(part())
    floor = sum(time_in_turn(parts, enough=1.0).values())
    return Found(found.ours, {**found.theirs, FLOOR: floor}, found.difference)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", choices=["float32", "float64"], help="one precision; by default both")
    dtype = parser.parse_args().dtype
    if dtype is None:  # JAX decides on float64 when it starts, so each precision needs its own process.
        for name in ("float32", "float64"):
            subprocess.run([sys.executable, __file__, "--dtype", name], check=True)
    else:
        jax.config.update("jax_enable_x64", dtype == "float64")
        for question, build, shape, targets in CASES:
            found = compare_networks(build, shape, dtype)
            peer = IN_JIT if question in TARGETS_IN_JIT else NEURAL_TANGENTS
            targets = TARGETS_IN_JIT.get(question, targets)
            if question in TARGETS_IN_JIT and shape == VECTORS:
                found = with_floor(found, shape, dtype)
            report(f"{question}, {dtype}", target=targets[dtype == "float64"], peer=peer, found=found)
