"""How does the time of both Gram matrices grow with the depth of the network, against neural-tangents?

Dense ReLU networks of 1 to 16 hidden layers on 1000 points with 100 features, in float32, as in `bench_kernels`.
"""

from bench_kernels import compared_on, dense
from measuring import NEURAL_TANGENTS, grown, report

DEPTHS, SHAPE = [1, 2, 4, 8, 16], (1000, 100)


if __name__ == "__main__":
    found, curve = grown("depth", DEPTHS, lambda depth: compared_on(dense("Relu", depth), SHAPE, "float32"))
    question = f"growth with depth: up to {DEPTHS[-1]}, dense ReLU, 1000 points, float32"
    report(question, peer=NEURAL_TANGENTS, found=found, curve=curve)
