"""How fast is the empirical NTK of a real network, against neural-tangents in the same run?

The paper's CNN with its max-pools (100 images of 28 × 28, 10 outputs), and a perceptron of width 256 with 10 outputs on
300 points, in float32. The peer is `empirical_ntk_fn` on the same function, compiled as a whole and told that samples
are independent (`vmap_axes=0`), in each of its implementations that runs on the installed JAX: 1 contracts Jacobians,
2 multiplies with vectors (for the perceptron it is left out: it takes minutes), 3 uses structured derivatives. Answers
are compared first.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np
from measuring import relative_difference, report, shortest

from ntk_equiv import empirical_kernel_fn, ensembles, gram, interop, stax

nt = interop.neural_tangents()
RNG = np.random.default_rng(0)


def cnn():
    """Network, variables and images."""
    net, x = ensembles.fashion_cnn(), jnp.asarray(RNG.normal(size=(100, 28, 28, 1)), jnp.float32)
    return net.apply, net.init(jax.random.key(0), x[:1]), x


def perceptron():
    """Network, parameters and points."""
    layers = [stax.Dense(256, 1.4, 0.1), stax.Relu(), stax.Dense(256, 1.4, 0.1), stax.Relu(), stax.Dense(10)]
    net, x = stax.serial(*layers), jnp.asarray(RNG.normal(size=(300, 25)), jnp.float32)
    return net.apply_fn, net.init_fn(jax.random.key(0), x.shape)[1], x


def peers(apply, params, x, expected, implementations) -> dict[str, float]:
    """Seconds of each implementation that runs; a slow one is not repeated often."""
    found = {}
    for implementation in implementations:
        ntk_fn = jax.jit(nt.empirical_ntk_fn(apply, vmap_axes=0, implementation=implementation))
        try:
            difference = relative_difference(expected, ntk_fn(x, None, params))
        except TypeError as error:
            print(f"neural-tangents, implementation {implementation}, does not run on JAX {jax.__version__}: {error}")
            continue
        assert difference < 1e-5, difference
        name, times = f"neural-tangents, implementation {implementation}", []
        while len(times) < 5 and sum(times) < 10:
            start = time.perf_counter()
            jax.block_until_ready(ntk_fn(x, None, params))
            times.append(time.perf_counter() - start)
        found[name] = min(times)
        print(f"{name}: {min(times):.3f} s", flush=True)
    return found


def compare(question: str, problem, implementations=(1, 2, 3)) -> None:
    apply, params, x = problem()
    kernel_fn = empirical_kernel_fn(apply, params)
    expected = gram(kernel_fn, x, None, "ntk")
    theirs = peers(apply, params, x, expected, implementations)
    report(
        f"{question}, {kernel_fn.plan(x).method}",
        target=1,
        peer="neural-tangents 0.6.5",
        ours=shortest(lambda: gram(kernel_fn, x, None, "ntk"), 20),
        theirs=theirs,
    )


if __name__ == "__main__":
    compare("paper's CNN, 100 images", cnn)
    compare("perceptron of width 256, 300 points", perceptron, (1, 3))
