"""How does the time of both Gram matrices grow with the depth of the network, against neural-tangents?

Dense ReLU networks of 1 to 16 hidden layers on 1000 samples with 100 features, in float32, as in `bench_kernels`.
"""

from bench_kernels import compare_networks, dense
from measuring import NEURAL_TANGENTS, measure_growth, report

DEPTHS, SHAPE = [1, 2, 4, 8, 16], (1000, 100)


if __name__ == "__main__":
    found, curve = measure_growth(
        "depth", DEPTHS, lambda depth: compare_networks(dense("Relu", depth), SHAPE, "float32")
    )
    question = f"growth with depth: up to {DEPTHS[-1]}, dense ReLU, 1000 samples, float32"
    report(question, peer=NEURAL_TANGENTS, found=found, curve=curve)
