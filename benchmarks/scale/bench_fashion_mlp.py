"""Does the exact infinite ensemble on all of FashionMNIST under C4 fit into half an hour and 22 GiB?

60,000 images, 240,000 augmented samples, an MLP with three hidden layers, single precision: the mean at five times on
all 10,000 test images. What it reaches in accuracy is printed.
"""

from large_problems import fashion_problem, report_images

IMAGES, TESTED, TIMES, RTOL = 60_000, 10_000, (1e4, 1e5, 1e6, 1e7, 1e8), 1e-3

if __name__ == "__main__":
    report_images("MLP", fashion_problem(IMAGES, "mlp", TESTED), TIMES, RTOL, memory=22.0)
