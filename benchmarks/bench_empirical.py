"""How fast is the empirical NTK of a real network, against neural-tangents in the same run?

The networks are the paper's CNN with its max-pools (100 images of 28 × 28, 10 outputs) and a perceptron of width 256
with 10 outputs on 300 samples, in float32. The peer is `empirical_ntk_fn` on the same function, compiled as a whole,
with independent samples (`vmap_axes=0`). Each of its implementations that runs on the installed JAX is measured: 1
contracts Jacobians, 2 multiplies with vectors (left out for the perceptron, where it takes minutes), 3 uses
structured derivatives. The answers are compared first.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from measuring import NEURAL_TANGENTS, compare_ways, report

from ntk_equiv import empirical_kernel_fn, ensembles, gram, interop, stax

nt = interop.neural_tangents()
RNG = np.random.default_rng(0)


def cnn():
    """Return the network, its variables and images."""
    net, x = ensembles.fashion_cnn(), jnp.asarray(RNG.normal(size=(100, 28, 28, 1)), jnp.float32)
    return net.apply, net.init(jax.random.key(0), x[:1]), x


def perceptron():
    """Return the network, its parameters and samples."""
    layers = [stax.Dense(256, 1.4, 0.1), stax.Relu(), stax.Dense(256, 1.4, 0.1), stax.Relu(), stax.Dense(10)]
    net, x = stax.serial(*layers), jnp.asarray(RNG.normal(size=(300, 25)), jnp.float32)
    return net.apply_fn, net.init_fn(jax.random.key(0), x.shape)[1], x


def peers(apply, params, x, implementations) -> dict[str, Callable]:
    """Return the implementations of neural-tangents that run on this JAX."""
    found = {}
    for implementation in implementations:
        ntk_fn = jax.jit(nt.empirical_ntk_fn(apply, vmap_axes=0, implementation=implementation))
        try:
            jax.eval_shape(ntk_fn, x, None, params)
        except TypeError as error:
            print(f"{NEURAL_TANGENTS}, implementation {implementation}, does not run on JAX {jax.__version__}: {error}")
            continue
        found[f"{NEURAL_TANGENTS}, implementation {implementation}"] = partial(ntk_fn, x, None, params)
    return found


def compare(question: str, problem, implementations=(1, 2, 3)) -> None:
    apply, params, x = problem()
    kernel_fn = empirical_kernel_fn(apply, params)
    ways = peers(apply, params, x, implementations)
    found = compare_ways(lambda: gram(kernel_fn, x, None, "ntk"), ways, tolerance=1e-5, patience=10)
    fastest = min(found.theirs, key=found.theirs.__getitem__)
    report(f"empirical NTK: {question}, {kernel_fn.plan(x).method}", target=1, peer=fastest, found=found)


if __name__ == "__main__":
    compare("paper's CNN, 100 images", cnn)
    compare("perceptron of width 256, 300 samples", perceptron, (1, 3))
