"""How do mean and covariance on augmented data grow with the number of base points, reduced and dense?

C8 × n points, float64, two hidden ReLU layers, 200 test points, one training time; both ways are ours, from the data to
the answer. Dense stops at 256 points, 2048 rows, because it grows with the cube of them.
"""

from bench_ensemble import methods_compared
from measuring import grown, report

ORDER, POINTS = 8, [32, 64, 128, 256]


if __name__ == "__main__":
    found, curve = grown("points", POINTS, lambda n: methods_compared(ORDER, n))
    question = f"growth with points: up to C{ORDER} × {POINTS[-1]}, mean and covariance"
    report(question, peer="dense", found=found, curve=curve)
