"""Any picture as a model's input: its orientation, colours and size are made those that the model was trained on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fedfeat.core.errors import DataError
from fedfeat.data.checks import Images
from fedfeat.data.folder import SUFFIXES
from fedfeat.data.images import DEEP_MODES, as_seen, require_pillow


def fit_image(path: Path, shape: tuple[int, int, int]) -> Images:
    """Return a picture as uint8 [H, W, C], brought to a shape as ``fit_encoded`` does."""
    return fit_encoded(path, path, shape)


def fit_encoded(path: Path | str, file: Path | BinaryIO, shape: tuple[int, int, int]) -> Images:
    """Return an encoded picture as uint8 [H, W, C]; ``path`` is what messages call it.

    It is turned as its camera says, laid on white where it is transparent, converted to grey (one channel) or RGB,
    scaled until it covers the model's size, and its centre is cut out. A picture that has the right size and colours
    stays as it is.
    """
    Image = require_pillow()
    from PIL import ImageOps

    height, width, channels = shape
    try:
        with Image.open(file) as image:
            if image.mode in DEEP_MODES:
                raise DataError(f"{path}: expected 8 bits per channel, got mode {image.mode}; convert it to 8 bits")
            seen = as_seen(image).convert("L" if channels == 1 else "RGB")
            fitted = seen if seen.size == (width, height) else ImageOps.fit(seen, (width, height))
            return np.asarray(fitted, dtype=np.uint8).reshape(shape)
    except Image.UnidentifiedImageError as error:
        raise DataError(f"{path}: this is not an image in a known format; leave it out") from error
    except FileNotFoundError as error:
        raise DataError(f"{path}: there is no such file; check the path") from error
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise DataError(f"{path}: the image cannot be read ({error}); replace it or leave it out") from error


def find_images(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield files as they are named, and the images in and below folders, in order of name and without hidden ones."""
    for path in paths:
        if path.is_dir():
            yield from sorted(p for p in path.rglob("*") if _is_picture(p, path))
        else:
            yield path


def _is_picture(path: Path, below: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(below).parts)
    return not hidden and path.suffix.lower() in SUFFIXES and path.is_file()
