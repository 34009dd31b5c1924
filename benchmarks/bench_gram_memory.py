"""How much memory does Θ(X, X) of 20,000 points take beyond the result itself?

The peak of the process, less what it had before, against the size of the result.
"""

import resource
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
from measuring import report

from ntk_equiv import gram, stax

POINTS, FEATURES = 20_000, 200


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


if __name__ == "__main__":
    x = jnp.asarray(np.random.default_rng(0).normal(size=(POINTS, FEATURES)), jnp.float32)
    kernel_fn = stax.serial(*[stax.Dense(1, 1.4, 0.1), stax.Relu()] * 2, stax.Dense(1))[2]
    jax.block_until_ready(gram(kernel_fn, x[:1000]))
    before, peak, done = resident(), [0], threading.Event()

    def watch() -> None:
        while not done.is_set():
            peak[0] = max(peak[0], resident())
            time.sleep(0.005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.perf_counter()
    result = jax.block_until_ready(gram(kernel_fn, x))
    seconds = time.perf_counter() - start
    done.set()
    watcher.join()
    size = sum(k.nbytes for k in result)
    extra = peak[0] - before - size
    print(f"result {size / 1e9:.2f} GB, peak beyond it {extra / 1e9:.3f} GB (aim: under 1 GB)")
    report(
        "20,000 points, dense, float32",
        target=None,
        peer="the result itself",
        ours=seconds,
        theirs={},
        extra_bytes=extra,
    )
