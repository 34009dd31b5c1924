"""How far does the reduction reach? The exact mean on 160,000 augmented samples, in how much time and memory?

C16 × 10,000 base samples, whose Gram matrix would take 205 GB. The peers are the limits set for this machine, 15
minutes and 12 GB. The answer is checked where it is known: on training samples at the end of training.
"""

import jax
import jax.numpy as jnp
import numpy as np
from bench_ensemble import FEATURES, network, rotations
from measuring import Found, peak_beyond, report, time_run

from ntk_equiv import InfiniteEnsemble, augment, stax

jax.config.update("jax_enable_x64", True)
SAMPLES, ORDER, LIMIT = 10_000, 16, 15 * 60


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    x, y = jnp.asarray(rng.normal(size=(SAMPLES, FEATURES))), jnp.asarray(rng.normal(size=SAMPLES))
    train = augment(x, y, rotations(ORDER))

    def mean():
        return InfiniteEnsemble(network(stax)[2], train).mean(x[:200], jnp.array([0.1, 10.0, float("inf")]))

    peak, (seconds, found) = peak_beyond(lambda: time_run(mean))
    assert np.abs(found[-1] - y[:200]).max() < 1e-6
    question = f"mean at 3 times, C{ORDER} × {SAMPLES:,} samples"
    report(question, target=1, peer="15 minutes", found=Found(seconds, {"15 minutes": LIMIT}))
    memory = Found(peak / 1e9, {"12 GB": 12, "the Gram matrix": (ORDER * SAMPLES) ** 2 * 8 / 1e9})
    report(f"memory for it, C{ORDER} × {SAMPLES:,} samples", target=1, peer="12 GB", found=memory, unit="GB")
