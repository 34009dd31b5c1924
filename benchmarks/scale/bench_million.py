"""Does the mean on a million augmented samples fit into half an hour and 20 GiB?

C16 × 62,500 base samples in 32 dimensions, two hidden layers, single precision; the Gram matrix would take 4 TB. The
error bound, relative to the labels, is the third limit.
"""

import numpy as np
from large_problems import LIMIT_SECONDS, products_of, radii_problem
from measuring import Found, peak_beyond, report, time_run

from ntk_equiv import InfiniteEnsemble, solvers

SAMPLES, ORDER, RTOL = 62_500, 16, 2e-4

if __name__ == "__main__":
    kernel_fn, train, x_test, times = radii_problem(SAMPLES, ORDER)
    kept = []

    def predict():
        solver = solvers.Lanczos(rtol=RTOL, progress=True)
        kept.append(InfiniteEnsemble(kernel_fn, train, reduction="mean", solver=solver))
        return kept[0].mean(x_test, times), kept[0].error_bound(x_test, times)

    peak, (seconds, (mean, bound)) = peak_beyond(lambda: time_run(predict))
    scale = float(np.std(train.base_y))
    print(f"    {products_of(kept[0])} products; bounds {np.asarray(bound.max(axis=1) / scale)} of the labels")
    case = f"C{ORDER} × {SAMPLES:,} samples"
    found = Found(seconds, {"30 minutes": LIMIT_SECONDS})
    report(f"mean at {len(times)} times, {case}", target=1, peer="30 minutes", found=found)
    memory = Found(peak / 2**30, {"20 GiB": 20.0})
    report(f"memory for it, {case}", target=1, peer="20 GiB", found=memory, unit="GiB")
    error = Found(float(bound.max()) / scale, {"1e-3 of the labels": 1e-3})
    report(f"error bound, {case}", target=1, peer="1e-3 of the labels", found=error, unit="of the labels")
