"""Does the exact infinite ensemble of a CNN on 10,000 FashionMNIST images under C4 fit into half an hour?

Three convolutions of 3 × 3, flattened, in single precision: the mean at five times on 1,000 test images. Kernels are
nearly all of the cost: a pair of images takes as long as a thousand pairs of vectors.
"""

from large_problems import fashion_problem, report_images

IMAGES, TESTED, TIMES, RTOL = 10_000, 1000, (1e4, 1e5, 1e6, 1e7, 1e8), 1e-3

if __name__ == "__main__":
    report_images("CNN", fashion_problem(IMAGES, "cnn", TESTED), TIMES, RTOL, memory=22.0)
