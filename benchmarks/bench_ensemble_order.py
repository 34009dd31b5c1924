"""How do mean and covariance on augmented data grow with the order of the group, reduced and dense?

C_k × 64 points for k from 2 to 32, otherwise as in `bench_ensemble_points`.
"""

from bench_ensemble import methods_compared
from measuring import grown, report

ORDERS, POINTS = [2, 4, 8, 16, 32], 64


if __name__ == "__main__":
    found, curve = grown("order", ORDERS, lambda order: methods_compared(order, POINTS))
    question = f"growth with |G|: up to C{ORDERS[-1]} × {POINTS}, mean and covariance"
    report(question, peer="dense", found=found, curve=curve)
