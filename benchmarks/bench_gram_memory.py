"""How much memory does Θ(X, X) of 20,000 samples take beyond the result itself?

The memory is the peak of the process, minus what it held before and minus the result. The peer is the limit set for it.
"""

import jax
import jax.numpy as jnp
import numpy as np
from measuring import Found, peak_beyond, report

from ntk_equiv import gram, stax

SAMPLES, FEATURES = 20_000, 200


if __name__ == "__main__":
    x = jnp.asarray(np.random.default_rng(0).normal(size=(SAMPLES, FEATURES)), jnp.float32)
    kernel_fn = stax.serial(*[stax.Dense(1, 1.4, 0.1), stax.Relu()] * 2, stax.Dense(1))[2]
    jax.block_until_ready(gram(kernel_fn, x[:1000]))
    peak, result = peak_beyond(lambda: gram(kernel_fn, x))
    few = kernel_fn(x[:100], None, ("nngp", "ntk"))
    assert all(np.allclose(whole[:100, :100], part, atol=1e-3) for whole, part in zip(result, few, strict=True))
    size = sum(k.nbytes for k in result)
    found = Found((peak - size) / 1e9, {"1 GB": 1.0, "the result": size / 1e9})
    report("memory beyond both Gram matrices, 20,000 samples", target=1, peer="1 GB", found=found, unit="GB")
