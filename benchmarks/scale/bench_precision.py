"""How exact is single precision on real images, and does the error budget say so?

FashionMNIST under C4, an MLP and a CNN on 1,000 and 4,000 images, t from 1e4 to 1e8, solvers Eigh and Lanczos:
the accuracy in single precision against double, and the error of the mean against its budget (solver + rounding + cut).
Each precision runs in its own process, and writes its results to `.cache/precision`, where they are found again.
"""

import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from large_problems import fashion_problem
from measuring import Found, report

from ntk_equiv import InfiniteEnsemble, solvers

TIMES, TESTED, RTOL = (1e4, 1e5, 1e6, 1e7, 1e8), 1000, 1e-4
CASES = [("mlp", 1000), ("mlp", 4000), ("cnn", 1000), ("cnn", 4000)]


def compute(kind, images, bits, path):
    """Write means and budgets of both solvers."""
    jax.config.update("jax_enable_x64", bits == 64)
    kernel_fn, train, x, classes = fashion_problem(images, kind, TESTED, jnp.float64 if bits == 64 else jnp.float32)
    found = {"classes": classes}
    # In double precision the decomposition is the truth that both are compared with.
    chosen = {"eigh": solvers.Eigh()} | ({} if bits == 64 else {"lanczos": solvers.Lanczos(RTOL)})
    for name, solver in chosen.items():
        start = time.perf_counter()
        ens = InfiniteEnsemble(kernel_fn, train, reduction="mean", solver=solver)
        times = jnp.array(TIMES, train.base_y.dtype)
        found[f"{name}.mean"], budget = ens.mean(x, times), ens.error_budget(x, times)
        found |= {f"{name}.{part}": values for part, values in budget._asdict().items()}
        print(f"    {kind} {images} float{bits} {name}: {time.perf_counter() - start:.0f} s", flush=True)
    np.savez(path, **found)


def compare(kind, images, folder):
    """Report the largest difference of accuracies, and the largest error in units of its budget."""
    single, double = (np.load(folder / f"{kind}-{images}-{bits}.npz") for bits in (32, 64))
    exact = double["eigh.mean"]
    for name in ("eigh", "lanczos"):
        accuracy, exactly = (
            100 * (mean.argmax(axis=-1) == single["classes"]).mean(axis=1) for mean in (single[f"{name}.mean"], exact)
        )
        error = np.abs(single[f"{name}.mean"] - exact).max(axis=2)
        budget = sum(single[f"{name}.{part}"] for part in ("solver", "rounding", "cut"))
        assert (error <= budget).all(), "an error is above its budget"
        print(f"    {kind} {images} {name}: accuracies {accuracy}, in double precision {exactly}")
        print(f"    errors {error.max(axis=1)}, budgets {budget.max(axis=1)}", flush=True)
        case = f"{kind.upper()}, {images:,} images, {name}"
        off = max(float(np.abs(accuracy - exactly).max()), 1e-3)
        limit = Found(off, {"0.5 points": 0.5}, float(error.max()))
        report(f"accuracy in float32, {case}", target=1, peer="0.5 points", found=limit, unit="points")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        compute(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
        raise SystemExit
    folder = Path(".cache/precision")
    folder.mkdir(parents=True, exist_ok=True)
    for kind, images in CASES:
        for bits in (64, 32):
            path = folder / f"{kind}-{images}-{bits}.npz"
            if not path.exists():
                subprocess.run([sys.executable, __file__, kind, str(images), str(bits), str(path)], check=True)
        compare(kind, images, folder)
