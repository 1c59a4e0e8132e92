"""A folder of images with one sub-folder per class."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedfeat.core.errors import DataError
from fedfeat.data.images import SUFFIXES, is_hidden, is_image
from fedfeat.data.source import EncodedSplit, every_nth_to_test

TEST_FOLDERS = ("test", "val", "validation", "valid")

Row = tuple[int, Path]


@dataclass(frozen=True)
class FolderSource:
    """Images with their labels; class names are the sorted folder names."""

    root: Path
    train: tuple[Row, ...] = field(repr=False)
    test: tuple[Row, ...] = field(repr=False)
    class_names: tuple[str, ...] = field(repr=False)
    kind: str = "folder"
    grey: bool = True

    @property
    def files(self) -> tuple[Path, ...]:
        """Every image; moving one to another class or split changes its path."""
        return tuple(path for _, path in (*self.train, *self.test))

    @property
    def where(self) -> str:
        """The folder."""
        return str(self.root)

    def encoded(self, keep: Sequence[int]) -> tuple[EncodedSplit, EncodedSplit]:
        """Return the images of the kept classes only; class ``keep[i]`` has label i."""
        return _split(self.train, keep), _split(self.test, keep)


def _split(rows: Sequence[Row], keep: Sequence[int]) -> EncodedSplit:
    label = {c: i for i, c in enumerate(keep)}
    kept = [(label[c], path) for c, path in rows if c in label]
    labels = np.array([c for c, _ in kept], dtype=np.int64)
    return EncodedSplit(labels, lambda: ((str(path), path.read_bytes) for _, path in kept))


def open_folder(path: Path) -> FolderSource | None:
    """Open root/train/CLASS + root/test/CLASS, or root/CLASS with every 5th image of a class for test."""
    if not path.is_dir():
        return None
    test = next((path / name for name in TEST_FOLDERS if (path / name).is_dir()), None)
    if (path / "train").is_dir() and test is not None:
        names, tested = _classes(path / "train"), _classes(test)
        train_rows, test_rows = _rows(path / "train", names, names), _rows(test, tested, names)
        _warn_of_others(path, [*(path / "train" / name for name in names), *(test / name for name in tested)])
    elif _holds_classes(path / "train"):
        raise DataError(
            f"{path}: there is train/ but no {'/, '.join(TEST_FOLDERS[:-1])}/ or {TEST_FOLDERS[-1]}/; "
            "add one, or move the class folders out of train/ to have every fifth image held back"
        )
    else:
        names = _classes(path)
        rows = _rows(path, names, names)
        _warn_of_others(path, [path / name for name in names])
        held_back = every_nth_to_test(np.array([label for label, _ in rows], dtype=np.int64), 5)
        train_rows = [row for row, is_test in zip(rows, held_back, strict=True) if not is_test]
        test_rows = [row for row, is_test in zip(rows, held_back, strict=True) if is_test]
    return FolderSource(path, tuple(train_rows), tuple(test_rows), names)


def _classes(root: Path) -> tuple[str, ...]:
    names = tuple(sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith(".")))
    if not names:
        raise DataError(f"{root}: expected one sub-folder per class, found none; sort the images into folders")
    for name in names:
        if name.encode(errors="ignore").decode() != name:
            raise DataError(f"{root}: the name of the class folder {name!r} is not valid UTF-8; rename it")
    return names


def _holds_classes(path: Path) -> bool:
    """Say whether a folder holds folders and no image of its own; a class may well be called train."""
    inside = list(path.iterdir()) if path.is_dir() else []
    return any(p.is_dir() for p in inside) and not any(is_image(p) for p in inside)


def _warn_of_others(root: Path, folders: Sequence[Path]) -> None:
    """Warn once of all files in class folders that are not read: in deeper folders, or with unknown endings."""
    others = sorted(p for folder in folders for p in folder.rglob("*") if _is_left_out(p, folder))
    if others:
        warnings.warn(
            f"{root}: {len(others)} file(s) left out, such as {str(others[0].relative_to(root))!r}: only images "
            f"that lie directly in a class folder are read ({', '.join(sorted(SUFFIXES))})",
            stacklevel=3,
        )


def _is_left_out(path: Path, folder: Path) -> bool:
    return not is_hidden(path, folder) and (path.parent != folder or not is_image(path)) and path.is_file()


def _rows(root: Path, folders: Sequence[str], names: Sequence[str]) -> list[Row]:
    label = {name: i for i, name in enumerate(names)}
    rows = []
    for name in folders:
        if name not in label:
            raise DataError(f"{root / name}: this class has no training images; add them or remove it")
        images = sorted(p for p in (root / name).iterdir() if is_image(p))
        if not images:
            raise DataError(f"{root / name}: the class has no image ({', '.join(sorted(SUFFIXES))}); add or remove it")
        rows += [(label[name], image) for image in images]
    return rows
