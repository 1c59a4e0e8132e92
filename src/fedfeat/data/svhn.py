"""SVHN's cropped digits (Netzer et al., 2011) from the two official MATLAB files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedfeat.core.errors import DataError
from fedfeat.data.dataset import Images, Labels
from fedfeat.data.source import Decoded, keep_classes

FILES = ("train_32x32.mat", "test_32x32.mat")


@dataclass(frozen=True)
class SvhnSource:
    """Training and test file."""

    files: tuple[Path, ...]
    kind: str = "svhn"
    class_names: tuple[str, ...] = tuple("0123456789")

    def decode(self, keep: Sequence[int]) -> Decoded:
        """Read both files; the digit 0 is labelled 10 in them."""
        train, test = (_read(file) for file in self.files)
        return keep_classes(str(self.files[0].parent), Decoded(*train, *test), keep, len(self.class_names))


def open_svhn(path: Path) -> SvhnSource | None:
    """Open a folder with both files; None if neither is there."""
    there = [name for name in FILES if (path / name).is_file()]
    if len(there) == 1:
        (missing,) = set(FILES) - set(there)
        raise DataError(f"{path}: {missing} is missing; run: fedfeat data get svhn")
    return SvhnSource(tuple(path / name for name in FILES)) if there else None


def _read(path: Path) -> tuple[Images, Labels]:
    from scipy.io import loadmat

    try:
        content = loadmat(path, variable_names=["X", "y"])
    except Exception as error:  # A damaged file can raise nearly anything.
        raise DataError(f"{path}: this MATLAB file cannot be read ({error}); download it again") from error
    images, labels = content.get("X", np.empty(0)), content.get("y", np.empty(0)).ravel()
    fits = images.dtype == np.uint8 and images.shape == (32, 32, 3, len(labels)) and len(labels) > 0
    if not fits or labels.dtype.kind not in "iu" or labels.min() < 1 or labels.max() > 10:
        raise DataError(
            f"{path}: expected X, uint8 [32, 32, 3, N], and y with N labels from 1 to 10, got X as {images.dtype} "
            f"{list(images.shape)} and {len(labels)} labels; download it again"
        )
    return np.ascontiguousarray(images.transpose(3, 0, 1, 2)), labels.astype(np.int64) % 10
