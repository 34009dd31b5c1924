"""The neural tangent kernel of a small network on four samples on the circle.

The samples are a quarter turn apart, so the kernel depends only on the angle between them. The same numbers appear on
every diagonal, and a quarter turn of the data permutes them without changing any.
"""

import argparse

import jax.numpy as jnp

from ntk_equiv import gram, stax

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--preset", help="accepted like in the other examples; this one has a single size")
parser.parse_args()

jnp.set_printoptions(precision=4, suppress=True)

# An architecture with one hidden layer. Its kernel is the one of infinite width.
init_fn, apply_fn, kernel_fn = stax.serial(
    stax.Dense(512, W_std=2**0.5, b_std=0.1),
    stax.Relu(),
    stax.Dense(1),
)

# Data: the four samples (1, 0), (0, 1), (-1, 0), (0, -1).
x = jnp.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])

# The kernels of all pairs of samples: the covariance of the network at initialisation, and the tangent kernel.
kernels = gram(kernel_fn, x, None, ("nngp", "ntk"))

print("Covariance at initialisation (NNGP):", kernels.nngp, sep="\n")
print("Neural tangent kernel:", kernels.ntk, sep="\n")
print("Its eigenvalues, which say how fast each direction is learned:", jnp.linalg.eigvalsh(kernels.ntk), sep="\n")

quarter_turn = jnp.array([[0.0, 1.0], [-1.0, 0.0]])
change = jnp.max(jnp.abs(gram(kernel_fn, x @ quarter_turn, None, "ntk") - kernels.ntk))
print(f"Largest change of the tangent kernel when all samples turn: {change:.1e}")
