"""Decode PNG, JPEG, WebP, ...: a whole data set with a pool of threads, or one picture fitted to a model's input."""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fedfeat.core.errors import DataError, MissingExtra
from fedfeat.data.dataset import Images
from fedfeat.data.source import Decoded

ImageFile = tuple[str, Callable[[], bytes]]
"""A name for messages, and a function that reads the encoded bytes."""
Encoded = tuple[int, ImageFile]  # with its label

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"})
GREY_MODES = ("L", "1", "LA")
ALPHA_MODES = ("LA", "PA", "RGBA", "RGBa")
DEEP_MODES = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")
CHUNK = 256


def require_pillow(purpose: str = "reading images") -> Any:
    """Return ``PIL.Image``, or say how to install it."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtra("pillow", "images", purpose) from error
    return Image


def is_image(path: Path) -> bool:
    """Say whether a file is an image by its name; hidden files are not."""
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def is_hidden(path: Path, below: Path) -> bool:
    """Say whether a file or a folder on the way to it is hidden."""
    return any(name.startswith(".") for name in path.relative_to(below).parts)


def find_images(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield files as they are named, and the images in and below folders, in order of name and without hidden ones."""
    for path in paths:
        if path.is_dir():
            found = (p for p in path.rglob("*") if is_image(p) and not is_hidden(p, path))
            yield from sorted(p for p in found if p.is_file())
        else:
            yield path


def decode_splits(where: str, train: Sequence[Encoded], test: Sequence[Encoded], *, grey: bool) -> Decoded:
    """Decode both splits to RGB, or to one channel if ``grey`` is allowed and every image is grey."""
    if not train or not test:
        raise DataError(
            f"{where}: found {len(train)} training and {len(test)} test images; each split needs at least one"
        )
    first = train[0][1]
    height, width, _ = _decode_one(first, None, "")[0].shape
    (train_images, train_grey), (test_images, test_grey) = (
        _decode([file for _, file in rows], (width, height), first[0]) for rows in (train, test)
    )
    if grey and train_grey and test_grey:
        train_images, test_images = train_images[..., :1].copy(), test_images[..., :1].copy()
    return Decoded(train_images, _labels(train), test_images, _labels(test))


def _labels(rows: Sequence[Encoded]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array([label for label, _ in rows], dtype=np.int64)


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
    with _opened(name, io.BytesIO(read())) as image:
        # The size stands in the header, so a wrong one is refused before its pixels are decoded.
        fits = size is None or image.size in (size, size[::-1])
        seen = _as_seen(image) if fits else image
        if size is not None and seen.size != size:
            raise DataError(
                f"{name}: the size is {seen.size[0]}x{seen.size[1]} but {first} is {size[0]}x{size[1]}"
                "; resize all images to one size"
            )
        return np.asarray(seen.convert("RGB")), image.mode in GREY_MODES


def fit_image(path: Path, shape: tuple[int, int, int]) -> Images:
    """Return a picture as uint8 [H, W, C], brought to a shape as ``fit_encoded`` does."""
    return fit_encoded(path, path, shape)


def fit_encoded(path: Path | str, file: Path | BinaryIO, shape: tuple[int, int, int]) -> Images:
    """Return an encoded picture as uint8 [H, W, C]; ``path`` is what messages call it.

    It is turned as its camera says, laid on white where it is transparent, converted to grey (one channel) or RGB,
    scaled until it covers the model's size, and its centre is cut out. A picture that has the right size and colours
    stays as it is.
    """
    height, width, channels = shape
    with _opened(path, file) as image:
        from PIL import ImageOps

        seen = _as_seen(image).convert("L" if channels == 1 else "RGB")
        fitted = seen if seen.size == (width, height) else ImageOps.fit(seen, (width, height))
        return np.asarray(fitted, dtype=np.uint8).reshape(shape)


@contextmanager
def _opened(name: Path | str, file: Path | BinaryIO) -> Iterator[Any]:
    """Open a picture of 8 bits per channel; what is wrong with it, also on use, is said in one sentence."""
    Image = require_pillow()
    try:
        with Image.open(file) as image:
            if image.mode in DEEP_MODES:
                raise DataError(f"{name}: expected 8 bits per channel, got mode {image.mode}; convert it to 8 bits")
            yield image
    except Image.UnidentifiedImageError as error:
        raise DataError(f"{name}: this is not an image in a known format; replace it or leave it out") from error
    except FileNotFoundError as error:
        raise DataError(f"{name}: there is no such file; check the path") from error
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise DataError(f"{name}: the image cannot be read ({error}); replace it or leave it out") from error


def _as_seen(image: Any) -> Any:
    """Return a picture as a viewer shows it: turned as its camera says, transparent parts on white.

    What has no transparent parts keeps its mode. A damaged note of the camera counts as none.
    """
    from PIL import Image, ImageOps

    try:
        turned = ImageOps.exif_transpose(image)
    except (struct.error, TypeError, KeyError, AttributeError):
        turned = image
    if turned.mode not in ALPHA_MODES and "transparency" not in turned.info:
        return turned
    pixels = turned.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", pixels.size, "white"), pixels)
