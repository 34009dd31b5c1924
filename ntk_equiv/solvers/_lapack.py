"""Eigenvectors of complex Hermitian matrices, in less than half the time of `np.linalg.eigh`.

LAPACK's `zheevd` finds the eigenvectors of a real tridiagonal matrix in complex arithmetic. Here its three steps
are called one by one, and the middle one is real:

    B = Q T Q†  (zhetrd),       T = Z diag(λ) Zᵀ  (dstevd),       U = Q Z  (zunmtr)

The routines are those of SciPy. They are called by their addresses, because SciPy's functions around them keep the lock
of the interpreter, and several blocks are decomposed at the same time.
"""

import ctypes
from functools import cache
from typing import Any

import numpy as np
from scipy.linalg import LinAlgError, cython_lapack

# Columns that LAPACK treats at a time; more than it asks for does no harm.
PANEL = 64


def eigh_complex(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return eigenvalues in increasing order, and eigenvectors as columns, of a finite Hermitian matrix.

    >>> values, vectors = eigh_complex(np.array([[2.0, 1j], [-1j, 2.0]]))
    >>> print(values.round(12), np.abs(vectors).round(6).tolist())
    [1. 3.] [[0.707107, 0.707107], [0.707107, 0.707107]]
    """
    n = len(matrix)
    A = np.array(matrix, np.complex128, order="F")
    diagonal, beside, reflections = np.empty(n), np.empty(max(n - 1, 1)), np.empty(max(n - 1, 1), np.complex128)
    work = np.empty(PANEL * n, np.complex128)
    _call("zhetrd", b"L", n, A, n, diagonal, beside, reflections, work, work.size)
    Z = np.empty((n, n), order="F")
    real_work, whole_work = np.empty(1 + 4 * n + n * n), np.empty(3 + 5 * n, np.intc)
    _call("dstevd", b"V", n, diagonal, beside, Z, n, real_work, real_work.size, whole_work, whole_work.size)
    U = Z.astype(np.complex128, order="F")
    _call("zunmtr", b"L", b"L", b"N", n, n, A, n, reflections, U, n, work, work.size)
    return diagonal, U


def _call(name: str, *arguments: bytes | int | np.ndarray) -> None:
    """Call a routine, which takes addresses of all its arguments, and at last one where it says whether it failed."""
    failed = ctypes.c_int(0)
    kept = [_in_memory(argument) for argument in (*arguments, failed)]
    _routine(name, len(kept))(*(ctypes.cast(value, ctypes.c_void_p) for value in kept))
    if failed.value:
        raise LinAlgError(f"{name} of LAPACK returned {failed.value}")


def _in_memory(argument: Any) -> Any:
    if isinstance(argument, np.ndarray):
        return argument.ctypes.data_as(ctypes.c_void_p)
    value = ctypes.c_char(argument) if isinstance(argument, bytes) else argument
    return ctypes.pointer(ctypes.c_int(value) if isinstance(value, int) else value)


@cache
def _routine(name: str, arguments: int) -> Any:
    """Return a routine of LAPACK as a function that any thread may call."""
    capsule = cython_lapack.__pyx_capi__[name]
    signature, address = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    signature.restype, signature.argtypes = ctypes.c_char_p, [ctypes.py_object]
    address.restype, address.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * arguments)(address(capsule, signature(capsule)))
