"""The files of TinyImageNet-200, in the official zip or extracted."""

from __future__ import annotations

import os
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fedfeat.core.errors import DataError

ARCHIVE = "tiny-imagenet-200.zip"


class Tree(Protocol):
    """The official tree of files, in a zip or extracted."""

    @property
    def root(self) -> Path:
        """The zip or the folder, for messages."""

    @property
    def names(self) -> tuple[str, ...]:
        """Paths of all files below ``tiny-imagenet-200/``."""

    def read(self, name: str) -> bytes:
        """Return the content of one file."""


@dataclass(frozen=True)
class ZipTree:
    """The files inside the official zip."""

    root: Path
    archive: zipfile.ZipFile
    prefix: str
    names: tuple[str, ...]

    def read(self, name: str) -> bytes:
        """Return the content of one member."""
        try:
            return self.archive.read(self.prefix + name)
        except (zipfile.BadZipFile, zlib.error, OSError, EOFError) as error:
            raise DataError(f"{self.root}, {name}: the zip is damaged ({error}); download it again") from error


@dataclass(frozen=True)
class FolderTree:
    """The extracted files."""

    root: Path
    names: tuple[str, ...]

    def read(self, name: str) -> bytes:
        """Return the content of one file."""
        return (self.root / name).read_bytes()


def open_tree(folder: Path) -> FolderTree:
    """Open the extracted folder that holds wnids.txt."""
    return FolderTree(folder, tuple(sorted(_walk(folder))))


def _walk(folder: Path) -> list[str]:
    found = []
    for part in ("train", "val"):
        for where, _, names in os.walk(folder / part):
            base = Path(where).relative_to(folder).as_posix()
            found += [f"{base}/{name}" for name in names]
    return found + [name for name in ("wnids.txt", "words.txt") if (folder / name).is_file()]


def open_zip(path: Path) -> ZipTree:
    """Open the official zip; its files stay packed."""
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as error:
        raise DataError(
            f"{path}: this is not a whole zip ({error}); delete it and run: fedfeat data get tiny-imagenet"
        ) from error
    members = [name for name in archive.namelist() if not name.endswith("/")]
    found = next((name for name in members if name.rpartition("/")[2] == "wnids.txt"), None)
    if found is None:
        raise DataError(f"{path}: expected the file wnids.txt of TinyImageNet in it; give the official {ARCHIVE}")
    prefix = found.removesuffix("wnids.txt")
    names = tuple(name.removeprefix(prefix) for name in members if name.startswith(prefix))
    return ZipTree(path, archive, prefix, names)
