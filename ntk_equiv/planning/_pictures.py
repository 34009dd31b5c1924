"""Samples that are images, as small pictures for the report: PNG in base64, made with the standard library alone."""

import base64
import struct
import zlib
from typing import Any

import numpy as np

LARGEST = 64  # pixels along each side


def thumbnails(images: Any, /) -> tuple[str, ...]:
    """A picture of each of the images [m, H, W, channels].

    Numbers between 0 and 1 are shown as they are, others between the smallest and the largest of all. Images with three
    channels are in colour, of others the mean over channels is shown.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv.planning._pictures import thumbnails
        >>> base64.b64decode(thumbnails(np.zeros((1, 2, 2, 1)))[0])[1:4]
        b'PNG'
    """
    images = np.asarray(images, float)
    low, high = (0.0, 1.0) if images.min() >= 0 and images.max() <= 1 else (images.min(), images.max())
    step = -(-max(images.shape[1:3]) // LARGEST)
    small = images[:, ::step, ::step]
    small = small if small.shape[-1] == 3 else small.mean(axis=-1, keepdims=True)
    pixels = np.round(255 * (small - low) / ((high - low) or 1.0)).astype(np.uint8)
    return tuple(base64.b64encode(_png(image)).decode("ascii") for image in pixels)


def _png(pixels: np.ndarray) -> bytes:
    """The file of an image of bytes [H, W, 1 or 3]."""
    height, width, channels = pixels.shape
    colour = {1: 0, 3: 2}[channels]
    # Every row begins with a byte that names its filter: 0, none.
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)
    parts = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0),
        b"IDAT": zlib.compress(rows.tobytes(), 9),
        b"IEND": b"",
    }
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts.items()
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
