"""Decode PNG, JPEG, WebP, ... into one uint8 array with a pool of threads."""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from fedfeat.core.errors import DataError, MissingExtra
from fedfeat.data.checks import Images

ImageFile = tuple[str, Callable[[], bytes]]
"""A name for messages, and a function that reads the encoded bytes."""
Encoded = tuple[int, ImageFile]  # with its label

GREY_MODES = ("L", "1", "LA")
ALPHA_MODES = ("LA", "PA", "RGBA", "RGBa")
DEEP_MODES = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")
CHUNK = 256


def require_pillow() -> Any:
    """Return ``PIL.Image``, or say how to install it."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtra("pillow", "images", "reading images") from error
    return Image


def as_seen(image: Any) -> Any:
    """Return a picture as a viewer shows it: turned as its camera says, transparent parts on white.

    What has no transparent parts keeps its mode. A damaged note of the camera counts as none.
    """
    Image = require_pillow()
    from PIL import ImageOps

    try:
        turned = ImageOps.exif_transpose(image)
    except (struct.error, TypeError, KeyError, AttributeError):
        turned = image
    if turned.mode not in ALPHA_MODES and "transparency" not in turned.info:
        return turned
    pixels = turned.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", pixels.size, "white"), pixels)


def decode_splits(
    where: str, train: Sequence[ImageFile], test: Sequence[ImageFile], *, grey: bool
) -> tuple[Images, Images]:
    """Decode both splits to RGB, or to one channel if ``grey`` is allowed and every image is grey."""
    if not train or not test:
        raise DataError(
            f"{where}: found {len(train)} training and {len(test)} test images; each split needs at least one"
        )
    size = _open_size(train[0])
    train_images, train_grey = _decode(train, size, train[0][0])
    test_images, test_grey = _decode(test, size, train[0][0])
    if grey and train_grey and test_grey:
        return train_images[..., :1].copy(), test_images[..., :1].copy()
    return train_images, test_images


def _open_size(file: ImageFile) -> tuple[int, int]:
    pixels, _ = _decode_one(file, None, "")
    return pixels.shape[1], pixels.shape[0]


def _decode(files: Sequence[ImageFile], size: tuple[int, int], first: str) -> tuple[Images, bool]:
    images = np.empty((len(files), size[1], size[0], 3), dtype=np.uint8)

    def fill(start: int) -> bool:
        all_grey = True
        for row in range(start, min(start + CHUNK, len(files))):
            images[row], is_grey = _decode_one(files[row], size, first)
            all_grey = all_grey and is_grey
        return all_grey

    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        return images, all(list(pool.map(fill, range(0, len(files), CHUNK))))


def _decode_one(file: ImageFile, size: tuple[int, int] | None, first: str) -> tuple[Images, bool]:
    name, read = file
    data = read()
    Image = require_pillow()
    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.mode in DEEP_MODES:
                raise DataError(f"{name}: expected 8 bits per channel, got mode {image.mode}; convert it to 8 bits")
            # The size stands in the header, so a wrong one is refused before its pixels are decoded.
            fits = size is None or image.size in (size, size[::-1])
            seen = as_seen(image) if fits else image
            if size is not None and seen.size != size:
                raise DataError(
                    f"{name}: the size is {seen.size[0]}x{seen.size[1]} but {first} is {size[0]}x{size[1]}"
                    "; resize all images to one size"
                )
            return np.asarray(seen.convert("RGB")), image.mode in GREY_MODES
    except Image.UnidentifiedImageError as error:
        raise DataError(f"{name}: this is not an image in a known format; replace or remove it") from error
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise DataError(f"{name}: the image cannot be read ({error}); replace or remove it") from error
