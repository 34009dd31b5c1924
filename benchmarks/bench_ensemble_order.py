"""How do mean and covariance on augmented data grow with the order of the group, reduced and dense?

C_k × 64 samples for k from 2 to 32, otherwise as in `bench_ensemble_samples`.
"""

from bench_ensemble import compare_methods
from measuring import measure_growth, report

ORDERS, SAMPLES = [2, 4, 8, 16, 32], 64


if __name__ == "__main__":
    found, curve = measure_growth("order", ORDERS, lambda order: compare_methods(order, SAMPLES))
    question = f"growth with |G|: up to C{ORDERS[-1]} × {SAMPLES}, mean and covariance"
    report(question, peer="dense", found=found, curve=curve)
