"""Small arrays in the place of the real image sets, and the files that they are read from."""

import hashlib
import io
import struct
import tarfile

import numpy as np

from ntk_equiv.datasets import idx_bytes


def checksums(*arrays: np.ndarray) -> tuple[str, ...]:
    """The sha256 of each array in the form of an IDX file."""
    return tuple(hashlib.sha256(idx_bytes(array)).hexdigest() for array in arrays)


def binary_batch(images: np.ndarray, labels: np.ndarray) -> bytes:
    return b"".join(bytes([y]) + x.transpose(2, 0, 1).tobytes() for x, y in zip(images, labels, strict=True))


def python_batch(images: np.ndarray, labels: np.ndarray) -> bytes:
    """A pickle as Python 2 wrote CIFAR10's: protocol 2, an array of NumPy by its state, strings of bytes."""
    pixels = images.transpose(0, 3, 1, 2).tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x01(K\x01M\x00\x0cT" + struct.pack("<i", len(pixels)) + pixels + b"t"
    )
    numbers = b"".join(b"K" + bytes([y]) for y in labels)
    return b"\x80\x02}q\x02(U\x04data" + array + b"U\x06labels]q\x03(" + numbers + b"eU\x0bbatch_labelU\x07batch 1u."


def tar_of(**members: bytes) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(f"folder/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return content.getvalue()
