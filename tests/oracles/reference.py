"""Kernels of fully connected ReLU-like networks in 60 digits, by the plainest recursion there is."""

import mpmath as mp
import numpy as np

mp.mp.dps = 60


def inner(x, y):
    """Mean over features of the products of two vectors of floats, exactly rounded to 60 digits."""
    return mp.fsum(mp.mpf(float(a)) * mp.mpf(float(b)) for a, b in zip(x, y, strict=True)) / len(x)


def relu_network(x, y, *, depth, W_std, b_std, slopes=(0.0, 1.0)):
    """NNGP and NTK of `depth` hidden layers and a read-out, all with the same hyperparameters."""
    w, b = mp.mpf(float(W_std)) ** 2, mp.mpf(float(b_std)) ** 2
    a1, b1 = (mp.mpf(float(s)) for s in slopes)
    q1, q2, k = (w * inner(*pair) + b for pair in ((x, x), (y, y), (x, y)))
    ntk = k
    for _ in range(depth):
        root = mp.sqrt(q1 * q2)
        c = max(min(k / root, mp.mpf(1)), mp.mpf(-1))
        angle = mp.acos(c)
        k1 = (mp.sin(angle) + (mp.pi - angle) * c) / mp.pi
        k0 = (mp.pi - angle) / mp.pi
        bend, slope = (b1 - a1) ** 2 / 2, a1 * b1
        second = (a1**2 + b1**2) / 2
        k = w * root * (bend * k1 + slope * c) + b
        ntk = w * (bend * k0 + slope) * ntk + k
        q1, q2 = w * second * q1 + b, w * second * q2 + b
    return k, ntk


def relative_errors(kernels, x, y, **network):
    """Largest relative error of NNGP and NTK arrays `[n, n]` on the paired samples (x_i, y_i).

    Relative to the entry itself for ReLU, whose entries are positive; else to the root of the two diagonal entries,
    because entries between opposite samples vanish by cancellation.
    """
    errors = []
    for i in range(len(x)):
        exact = relu_network(x[i], y[i], **network)
        scales = exact
        if network.get("slopes", (0.0, 1.0)) != (0.0, 1.0):
            diagonals = relu_network(x[i], x[i], **network), relu_network(y[i], y[i], **network)
            scales = [mp.sqrt(a * b) for a, b in zip(*diagonals, strict=True)]
        for kernel, value, scale in zip(kernels, exact, scales, strict=True):
            errors.append(float(abs(mp.mpf(float(kernel[i, i])) - value) / abs(scale)))
    return np.max(errors)
