"""One NumPy archive with the images and labels of both splits."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedfeat.core.errors import DataError
from fedfeat.data.dataset import Images, Labels, check_images
from fedfeat.data.source import Decoded, keep_classes, numbered_names

KEYS = (
    ("train_images", "train_labels", "test_images", "test_labels"),
    ("x_train", "y_train", "x_test", "y_test"),
    ("x", "y", "xt", "yt"),
)


BEGINNINGS = (b"PK", b"\x93NUMPY")  # of an archive, and of a file of one array


@dataclass(frozen=True)
class NpzSource:
    """A ``.npz`` file; ``keys`` are the names it uses for its four arrays."""

    files: tuple[Path, ...]
    keys: tuple[str, str, str, str]
    class_names: tuple[str, ...] = field(repr=False)
    kind: str = "npz"

    def decode(self, keep: Sequence[int]) -> Decoded:
        """Read the arrays and bring the images to [N, H, W, C]."""
        path = self.files[0]
        with _open(path) as archive:
            x, y, xt, yt = (_array(path, archive, key) for key in self.keys)
        decoded = Decoded(
            _to_nhwc(f"{path}, {self.keys[0]}", x),
            _to_labels(f"{path}, {self.keys[1]}", y),
            _to_nhwc(f"{path}, {self.keys[2]}", xt),
            _to_labels(f"{path}, {self.keys[3]}", yt),
        )
        return keep_classes(str(path), decoded, keep, len(self.class_names))


def open_npz(path: Path) -> NpzSource | None:
    """Open a ``.npz`` file; None if the path is not a file."""
    if not path.is_file():
        return None
    with _open(path) as archive:
        keys = next((keys for keys in KEYS if set(keys) <= set(archive.files)), None)
        if keys is None:
            raise DataError(f"{path}: expected the arrays {', '.join(KEYS[0])}, got {', '.join(archive.files)}; rename")
        if "class_names" in archive.files:
            names = _names(path, _array(path, archive, "class_names"))
        else:
            labels = [_to_labels(f"{path}, {key}", _array(path, archive, key)) for key in (keys[1], keys[3])]
            names = numbered_names(str(path), labels)
    return NpzSource((path,), keys, names)


def _open(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            first = file.read(max(map(len, BEGINNINGS)))
        if not first.startswith(BEGINNINGS):
            raise ValueError("it is no archive of arrays")  # NumPy would take it for a pickle
        archive = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: this is not a readable .npz file ({error}); save it with numpy.savez") from error
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise DataError(f"{path}: expected a .npz file with several arrays, got one array; save with numpy.savez")
    return archive


def _array(path: Path, archive: Any, key: str) -> np.ndarray[Any, Any]:
    try:
        array = archive[key]
    except (OSError, ValueError, EOFError, RuntimeError, zlib.error, zipfile.BadZipFile) as error:
        reason = "it holds Python objects" if "allow_pickle" in str(error) else error
        raise DataError(
            f"{path}, {key}: the array cannot be read ({reason}); save plain arrays, images all of one size"
        ) from error
    if not isinstance(array, np.ndarray):
        raise DataError(f"{path}, {key}: expected an array, got something else; save the file with numpy.savez")
    return array


def _names(path: Path, names: np.ndarray[Any, Any]) -> tuple[str, ...]:
    try:
        return tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names.ravel().tolist())
    except UnicodeDecodeError as error:
        raise DataError(f"{path}, class_names: expected text in UTF-8 ({error}); save the names as str") from error


def _to_labels(where: str, labels: np.ndarray[Any, Any]) -> Labels:
    # Labels of shape [N, 1] are common in files that were made from CIFAR.
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise DataError(
            f"{where}: labels must be integers in one axis, got {labels.dtype} of shape {labels.shape}; convert them"
        )
    return labels.astype(np.int64)


def _to_nhwc(where: str, images: np.ndarray[Any, Any]) -> Images:
    """Accept [N, H, W], [N, H, W, C] and [N, C, H, W] with 1 or 3 channels; the last wins if both fit."""
    if images.ndim == 3:
        images = images[..., None]
    check_images(where, images)
    if images.shape[3] in (1, 3):
        return images
    if images.shape[1] in (1, 3):
        return np.ascontiguousarray(images.transpose(0, 2, 3, 1))
    raise DataError(f"{where}: expected 1 or 3 channels on the second or last axis, got {images.shape}; reshape them")
