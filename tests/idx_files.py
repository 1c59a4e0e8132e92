"""Small files of the MNIST family, in their own format."""

from __future__ import annotations

import numpy as np

from fedfeat.data.idx import Layout


def idx(array: np.ndarray) -> bytes:
    """The format as its authors describe it: two zeros, a type, the number of axes, their lengths, the bytes."""
    head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return head + array.astype(np.uint8).tobytes()


def arrays(layout: Layout, each: int = 2) -> list[np.ndarray]:
    """Images whose pixels tell their label, row and column; labels as the files of this set count them."""
    found = []
    for split in (0, 1):
        labels = np.repeat(np.arange(len(layout.class_names)), each)
        row, column = np.mgrid[:28, :28]
        found += [(labels[:, None, None] + 7 * row + column + split) % 256, labels + layout.first_label]
    return found
