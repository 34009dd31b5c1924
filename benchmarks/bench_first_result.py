"""How long does a new process take to its first result, and how much of that does JAX's compilation cache save?

Five typical calls, each in new processes: one without any cache, and then, as the peer, one that finds all programs in
the cache of an earlier one. The time runs from the first import to the result. A second run in the same process shows
what is left when everything is compiled; the number of programs that were compiled does not depend on the machine.
"""

import json
import os
import sys
import tempfile
import time

START = time.perf_counter()

from measuring import Found, in_own_process, report  # noqa: E402  (imports JAX, which counts)

CACHE = "JAX_COMPILATION_CACHE_DIR"
# Without these, JAX keeps only programs that took a second to compile.
KEEP_ALL = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}


def gram_matrices():
    import numpy as np

    from ntk_equiv import gram, stax

    net = stax.serial(stax.Dense(1, 1.4, 0.1), stax.Relu(), stax.Dense(1))
    return gram(net, np.random.default_rng(0).normal(size=(500, 32)).astype("float32"))


def two_functions():
    import numpy as np

    from ntk_equiv import augment, ensemble_cov, ensemble_mean, groups, reps, stax

    rng = np.random.default_rng(0)
    net = stax.serial(stax.Dense(1, 1.4, 0.1), stax.Relu(), stax.Dense(1))
    x, y = rng.normal(size=(100, 8)).astype("float32"), rng.normal(size=100).astype("float32")
    turns = np.stack([np.roll(np.eye(8), 2 * k, axis=0) for k in range(4)])
    train = augment(x, y, reps.matrix(groups.cyclic(4), turns))
    return ensemble_mean(net, train, x[:10], 10.0), ensemble_cov(net, train, x[:10], 10.0)


def images():
    from ntk_equiv import InfiniteEnsemble, augment, groups, reps, stax

    x, y = _pictures()
    body = [stax.Conv(1, (3, 3), padding="SAME", W_std=1.4, b_std=0.1), stax.Relu()] * 2
    net = stax.serial(*body, stax.Flatten(), stax.Dense(1))
    ens = InfiniteEnsemble(net, augment(x, y.astype("float32"), reps.rot90(groups.cyclic(4))))
    return ens.mean(x[:20], 10.0), ens.var(x[:20], 10.0)


def plan():
    from ntk_equiv import planning

    x, y = _pictures()
    return planning.plan(
        x, y, group="C4", action="rot90", arch="cnn:relu:1", times=[10.0, 100.0], dtype="float32"
    ).table()


def training():
    import jax
    import numpy as np
    import optax

    from ntk_equiv import ensembles

    ensembles.use_cores()
    x = np.random.default_rng(0).choice([-1.0, 1.0], size=(128, 25)).astype("float32")
    net = ensembles.mlp((128,), 25)
    run = ensembles.train(net, (x, x), members=8, key=jax.random.key(0), steps=20, optimizer=optax.sgd(0.1))
    return run.predict(x[:10])


def _pictures():
    import numpy as np

    rng = np.random.default_rng(0)
    return rng.random((200, 14, 14, 1)).astype("float32"), rng.integers(0, 3, size=200)


CALLS = {
    "both Gram matrices, MLP, 500 samples": gram_matrices,
    "mean and covariance by two functions, C4 × 100": two_functions,
    "InfiniteEnsemble, mean and variance, CNN, C4 × 200 images": images,
    "ntk-equiv plan, CNN, C4 × 200 images": plan,
    "ensembles.train, Ising perceptron, 8 members": training,
}


def time_calls(call):
    """Return the seconds to the first result and of a second run, and how many programs were compiled."""
    import jax

    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, seconds, **_: compiled.append(seconds) if name.endswith("backend_compile_duration") else None
    )
    imported = time.perf_counter()
    jax.block_until_ready(call())
    first = time.perf_counter()
    programs = len(compiled)
    if call is not training:  # which settles the devices of this process
        jax.block_until_ready(call())
    return {
        "first": first - START,
        "importing JAX": imported - START,
        "again": time.perf_counter() - first,
        "programs": programs,
        "compiling": sum(compiled[:programs]),
    }


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(time_calls(CALLS[sys.argv[1]])))
        raise SystemExit
    os.environ.pop(CACHE, None)
    for name in CALLS:
        cold = min((in_own_process(__file__, name) for _ in range(2)), key=lambda found: found["first"])
        with tempfile.TemporaryDirectory() as folder:
            os.environ.update({CACHE: folder, **KEEP_ALL})
            in_own_process(__file__, name)
            warm = min(in_own_process(__file__, name)["first"] for _ in range(2))
            del os.environ[CACHE]
        parts = ", ".join(f"{part} {value:.3g}" for part, value in cold.items())
        print(f"    {parts}", flush=True)
        more = {"programs": cold["programs"], "again": cold["again"]}
        report(
            f"first result: {name}",
            peer="with the compilation cache",
            found=Found(cold["first"], {"with the compilation cache": warm}),
            **more,
        )
