"""Decode PNG, JPEG, WebP, ...: a whole data set with a pool of threads, or one picture fitted to a model's input."""

from __future__ import annotations

import io
import struct
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fedfeat.core.errors import DataError
from fedfeat.data.dataset import Images, release
from fedfeat.data.resize import CHUNK, WORKERS, Allocate, Fit, fitted, require_pillow
from fedfeat.data.settings import Resize
from fedfeat.data.source import Decoded, EncodedSource, EncodedSplit, ImageFile

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"})
GREY_MODES = ("L", "1", "LA")
ALPHA_MODES = ("LA", "PA", "RGBA", "RGBa")
DEEP_MODES = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")


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


class _Colour(Exception):
    """Raised by the first image with colours among images that were taken to be grey."""


def decode_splits(source: EncodedSource, keep: Sequence[int], fit: Fit, allocate: Allocate) -> Decoded:
    """Decode both splits to RGB, or to one channel if the source allows it and every image is grey."""
    train, test = source.encoded(keep)
    if not len(train.labels) or not len(test.labels):
        raise DataError(
            f"{source.where}: found {len(train.labels)} training and {len(test.labels)} test images; each split needs "
            "at least one"
        )
    first = next(train.files())
    pixels, is_grey = _decode_one(first, None, Fit(), "")
    height, width = (fit.side, fit.side) if fit.side else pixels.shape[:2]
    for channels in (1, 3) if source.grey and is_grey else (3,):
        shape = height, width, channels
        train_images = allocate("train_images", (len(train.labels), *shape))
        test_images = allocate("test_images", (len(test.labels), *shape))
        try:
            _decode(train, train_images, fit, first[0])
            _decode(test, test_images, fit, first[0])
        except _Colour:
            continue
        return Decoded(train_images, train.labels, test_images, test.labels)
    raise AssertionError("three channels take every image")


def _decode(split: EncodedSplit, images: Images, fit: Fit, first: str) -> None:
    """Fill an array with a split's images, chunk by chunk; no more are held than the threads need."""
    _, height, width, channels = images.shape

    def fill(start: int, chunk: list[ImageFile]) -> None:
        for row, file in enumerate(chunk, start):
            pixels, is_grey = _decode_one(file, (width, height), fit, first)
            if channels == 1 and not is_grey:
                raise _Colour
            images[row] = pixels[..., :channels]
        release(images)

    files, start, at_work = split.files(), 0, deque[Future[None]]()
    with ThreadPoolExecutor(WORKERS) as pool:
        while chunk := list(islice(files, CHUNK)):
            at_work.append(pool.submit(fill, start, chunk))
            start += len(chunk)
            if len(at_work) > 2 * WORKERS:
                at_work.popleft().result()
        for rest in at_work:
            rest.result()


def _decode_one(file: ImageFile, size: tuple[int, int] | None, fit: Fit, first: str) -> tuple[Images, bool]:
    """Return an image as RGB, and whether it is grey: of this size, or brought to it where a side is asked for."""
    name, read = file
    with _opened(name, io.BytesIO(read())) as image:
        # The size stands in the header, so a wrong one is refused before its pixels are decoded.
        fits = size is None or fit.side is not None or image.size in (size, size[::-1])
        seen = _as_seen(image) if fits else image
        if size is not None and fit.side is None and seen.size != size:
            raise DataError(
                f"{name}: the size is {seen.size[0]}x{seen.size[1]} but {first} is {size[0]}x{size[1]}"
                "; set data.image_size, which brings all images to one size"
            )
        pixels = seen.convert("RGB")
        return np.asarray(pixels if size is None else fitted(pixels, size, fit.how)), image.mode in GREY_MODES


def fit_image(path: Path, shape: tuple[int, int, int], how: Resize = "crop") -> Images:
    """Return a picture as uint8 [H, W, C], brought to a shape as ``fit_encoded`` does."""
    return fit_encoded(path, path, shape, how)


def fit_encoded(path: Path | str, file: Path | BinaryIO, shape: tuple[int, int, int], how: Resize = "crop") -> Images:
    """Return an encoded picture as uint8 [H, W, C]; ``path`` is what messages call it.

    It is turned as its camera says, laid on white where it is transparent, converted to grey (one channel) or RGB,
    and brought to the model's size as images are for training, see ``resize.fitted``.
    """
    height, width, channels = shape
    with _opened(path, file) as image:
        seen = _as_seen(image).convert("L" if channels == 1 else "RGB")
        return np.asarray(fitted(seen, (width, height), how), dtype=np.uint8).reshape(shape)


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
