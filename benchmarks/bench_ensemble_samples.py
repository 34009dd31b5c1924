"""How do mean and covariance on augmented data grow with the number of base samples, reduced and dense?

C8 × n samples, float64, two hidden ReLU layers, 200 test samples, one training time. Both ways are ours, and their time
runs from the data to the answer. Dense stops at 256 samples, 2048 in the augmented set, because its time grows with the
cube of this number.
"""

from bench_ensemble import compare_methods
from measuring import measure_growth, report

ORDER, SAMPLES = 8, [32, 64, 128, 256]


if __name__ == "__main__":
    found, curve = measure_growth("samples", SAMPLES, lambda n: compare_methods(ORDER, n))
    question = f"growth with samples: up to C{ORDER} × {SAMPLES[-1]}, mean and covariance"
    report(question, peer="dense", found=found, curve=curve)
