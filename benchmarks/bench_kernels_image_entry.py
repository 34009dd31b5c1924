"""How long does one entry of Θ take for a deep convolutional network with global average pooling, on images of 32×32?

The network has 21 layers with weights: 20 convolutions 3×3, each followed by a ReLU, then the global average and a
dense layer. Because of the average, one entry needs the kernel of all pairs of pixels, 2²⁰ numbers, in every layer. The
README of neural-tangents gives 112.9 ms in float32 and 258.6 ms in float64 for it, on more than 56 CPU cores; here it
runs in the same process. Entry by entry is the worst case, since nothing is shared among pairs of images.
"""

import argparse
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
from measuring import NEURAL_TANGENTS, compare_ways, report

from ntk_equiv import interop, stax

nt = interop.neural_tangents()
CONVOLUTIONS, SHAPE = 20, (1, 32, 32, 3)


def network(s):
    """Return the kernel function of the network."""
    body = [s.Conv(1, (3, 3), padding="SAME", W_std=1.4, b_std=0.1), s.Relu()] * CONVOLUTIONS
    return s.serial(*body, s.GlobalAvgPool(), s.Dense(1))[2]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", choices=["float32", "float64"], help="one precision; by default both")
    dtype = parser.parse_args().dtype
    if dtype is None:  # JAX decides on float64 when it starts, so each precision needs its own process.
        for name in ("float32", "float64"):
            subprocess.run([sys.executable, __file__, "--dtype", name], check=True)
    else:
        jax.config.update("jax_enable_x64", dtype == "float64")
        x1, x2 = jnp.asarray(np.random.default_rng(0).normal(size=(2, *SHAPE)), dtype)
        ours, theirs = network(stax), jax.jit(network(nt.stax), static_argnums=2)
        found = compare_ways(
            lambda: ours(x1, x2, "ntk"),
            {f"{NEURAL_TANGENTS} in jit": lambda: theirs(x1, x2, "ntk")},
            tolerance={"float32": 5e-3, "float64": 1e-7}[dtype],
        )
        question = f"one entry, {CONVOLUTIONS + 1} layers, conv + global average, 32×32, {dtype}"
        report(question, peer=f"{NEURAL_TANGENTS} in jit", found=found)
