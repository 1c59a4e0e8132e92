"""Bring images to one size, in training and in prediction by the same steps."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedfeat.core.errors import required
from fedfeat.data.dataset import Images, release
from fedfeat.data.settings import Resize
from fedfeat.data.source import Decoded

Allocate = Callable[[str, tuple[int, ...]], Images]
"""Returns an array of bytes for a name and a shape: in memory, or on disk."""
CHUNK = 256  # images that one thread works on before it takes the next
WORKERS = min(8, os.cpu_count() or 1)


@dataclass(frozen=True)
class Fit:
    """The side that all images are brought to, and how; without a side they have one size already."""

    side: int | None = None
    how: Resize = "crop"


def require_pillow(purpose: str = "reading images") -> Any:
    """Return ``PIL.Image``, or say how to install it."""
    return required("PIL.Image", "images", purpose, package="pillow")


def fitted(image: Any, size: tuple[int, int], how: Resize) -> Any:
    """Return a picture in a size (width, height); one that has it stays as it is.

    crop: scaled until it covers the size, its centre is cut out. pad: scaled until it fits in, black around it.
    """
    from PIL import ImageOps

    if image.size == size:
        return image
    return ImageOps.fit(image, size) if how == "crop" else ImageOps.pad(image, size)


def resize_splits(decoded: Decoded, fit: Fit, allocate: Allocate) -> Decoded:
    """Return decoded splits with images of the wanted size; those that have it are not touched."""
    if fit.side is None or decoded.train_images.shape[1:3] == (fit.side, fit.side):
        return decoded
    train, test = (_resized(name, getattr(decoded, name), fit, allocate) for name in ("train_images", "test_images"))
    return Decoded(train, decoded.train_labels, test, decoded.test_labels)


def _resized(name: str, images: Images, fit: Fit, allocate: Allocate) -> Images:
    assert fit.side is not None
    side, channels, Image = fit.side, images.shape[3], require_pillow("resizing images")
    out = allocate(name, (len(images), side, side, channels))

    def fill(start: int) -> None:
        for row in range(start, min(start + CHUNK, len(images))):
            pixels = images[row] if channels == 3 else images[row, ..., 0]
            out[row] = np.asarray(fitted(Image.fromarray(pixels), (side, side), fit.how)).reshape(out.shape[1:])
        release(out)

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(fill, range(0, len(images), CHUNK)))
    return out
