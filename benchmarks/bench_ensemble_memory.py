"""How much memory do mean and covariance on augmented data take, reduced and dense?

C8 × 512 samples, 4096 in the augmented set, as in `bench_ensemble_samples`. The memory is the peak of a process that
does nothing else, minus what it held after a first run that compiled. The answers must agree.
"""

import json
import sys

import numpy as np
from bench_ensemble import data, law
from measuring import Found, in_own_process, peak_beyond, relative_difference, report

ORDER, SAMPLES = 8, 512


def peak(method: str) -> dict:
    """Return the bytes that one method takes, its mean and its covariance."""
    train, x_test = data(ORDER, SAMPLES)
    law(train, x_test, method=method)
    found, answer = peak_beyond(lambda: law(train, x_test, method=method))
    return {"bytes": found, "mean": answer[0].ravel().tolist(), "cov": answer[1].ravel().tolist()}


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(peak(sys.argv[1])))
        sys.exit()
    reduced, dense = (in_own_process(__file__, method) for method in ("reduced", "dense"))
    sizes = [way.pop("bytes") / 1e9 for way in (reduced, dense)]
    difference = relative_difference(*([np.array(way["mean"]), np.array(way["cov"])] for way in (reduced, dense)))
    assert difference < 1e-6, difference
    found = Found(sizes[0], {"dense": sizes[1]}, difference)
    question = f"memory of mean and covariance, C{ORDER} × {SAMPLES} samples"
    report(question, peer="dense", found=found, unit="GB")
