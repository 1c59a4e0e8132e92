"""A folder of images with one sub-folder per class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedfeat.data.images import Encoded, ImageFile, decode_splits
from fedfeat.data.source import Decoded, every_nth_to_test
from fedfeat.errors import DataError

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"})
TEST_FOLDERS = ("test", "val", "validation")

Row = tuple[int, Path]


@dataclass(frozen=True)
class FolderSource:
    """Images with their labels; class names are the sorted folder names."""

    root: Path
    train: tuple[Row, ...] = field(repr=False)
    test: tuple[Row, ...] = field(repr=False)
    class_names: tuple[str, ...] = field(repr=False)
    kind: str = "folder"

    @property
    def files(self) -> tuple[Path, ...]:
        """Every image; moving one to another class or split changes its path."""
        return tuple(path for _, path in (*self.train, *self.test))

    def encoded(self) -> tuple[list[Encoded], list[Encoded]]:
        """Return every image of both splits before decoding, with its label."""
        train, test = ([(label, (str(path), path.read_bytes)) for label, path in r] for r in (self.train, self.test))
        return train, test

    def decode(self, keep: Sequence[int]) -> Decoded:
        """Decode the images of the kept classes only."""
        label = {c: i for i, c in enumerate(keep)}
        train, test = ([row for row in rows if row[0] in label] for rows in (self.train, self.test))
        images = decode_splits(str(self.root), _images(train), _images(test), grey=True)
        labels = [np.array([label[row[0]] for row in rows], dtype=np.int64) for rows in (train, test)]
        return Decoded(images[0], labels[0], images[1], labels[1])


def open_folder(path: Path) -> FolderSource | None:
    """Open root/train/CLASS + root/test/CLASS, or root/CLASS with every 5th image of a class for test."""
    if not path.is_dir():
        return None
    test = next((path / name for name in TEST_FOLDERS if (path / name).is_dir()), None)
    if (path / "train").is_dir() and test is not None:
        names = _classes(path / "train")
        train_rows, test_rows = _rows(path / "train", names, names), _rows(test, _classes(test), names)
    else:
        names = _classes(path)
        rows = _rows(path, names, names)
        held_back = every_nth_to_test(np.array([label for label, _ in rows], dtype=np.int64), 5)
        train_rows = [row for row, is_test in zip(rows, held_back, strict=True) if not is_test]
        test_rows = [row for row, is_test in zip(rows, held_back, strict=True) if is_test]
    return FolderSource(path, tuple(train_rows), tuple(test_rows), names)


def _classes(root: Path) -> tuple[str, ...]:
    names = tuple(sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith(".")))
    if not names:
        raise DataError(f"{root}: expected one sub-folder per class, found none; sort the images into folders")
    return names


def _rows(root: Path, folders: Sequence[str], names: Sequence[str]) -> list[Row]:
    label = {name: i for i, name in enumerate(names)}
    rows = []
    for name in folders:
        if name not in label:
            raise DataError(f"{root / name}: this class has no training images; add them or remove it")
        images = sorted(p for p in (root / name).iterdir() if _is_image(p))
        if not images:
            raise DataError(f"{root / name}: the class has no image ({', '.join(sorted(SUFFIXES))}); add or remove it")
        rows += [(label[name], image) for image in images]
    return rows


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def _images(rows: Sequence[Row]) -> list[ImageFile]:
    return [(str(path), path.read_bytes) for _, path in rows]
