"""TinyImageNet-200 from the official zip or its extracted folder; the validation set is the test set."""

from __future__ import annotations

import functools
import os
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedfeat.core.errors import DataError
from fedfeat.data.source import EncodedSplit

FOLDER = "tiny-imagenet-200"
ARCHIVE = "tiny-imagenet-200.zip"
# TinyImageNet-Subset: the fifty classes, in the order of their labels.
SUBSET = (
    *("n01443537", "n01698640", "n01774384", "n01882714", "n01945685", "n02002724", "n02085620", "n02106662"),
    *("n02124075", "n02165456", "n02231487", "n02279972", "n02395406", "n02423022", "n02486410", "n02669723"),
    *("n02788148", "n02802426", "n02815834", "n02843684", "n02909870", "n02950826", "n02999410", "n03085013"),
    *("n03160309", "n03255030", "n03400231", "n03447447", "n03617480", "n03670208", "n03770439", "n03837869"),
    *("n03902125", "n03976657", "n03992509", "n04070727", "n04133789", "n04251144", "n04275548", "n04356056"),
    *("n04398044", "n04465501", "n04507155", "n04560804", "n06596364", "n07615774", "n07720875", "n07753592"),
    *("n07875152", "n09256479"),
)


@dataclass(frozen=True)
class Tree:
    """The official tree of files, in a zip or extracted."""

    root: Path  # the zip or the folder
    names: tuple[str, ...]  # paths of all files below tiny-imagenet-200/
    read: Callable[[str], bytes]


@dataclass(frozen=True)
class TinySource:
    """Classes are the sorted wnids; their names come from words.txt where it has them."""

    tree: Tree
    files: tuple[Path, ...] = field(repr=False)
    wnids: tuple[str, ...] = field(repr=False)
    class_names: tuple[str, ...] = field(repr=False)
    kind: str = "tiny-imagenet"
    grey: bool = False

    @property
    def where(self) -> str:
        """The zip or the folder."""
        return str(self.tree.root)

    def encoded(self, keep: Sequence[int]) -> tuple[EncodedSplit, EncodedSplit]:
        """Return the images of the kept classes only."""
        label = {self.wnids[c]: i for i, c in enumerate(keep)}
        train = sorted((label[w], n) for n in self.tree.names if (w := _train_wnid(n)) in label)
        test = [(label[w], n) for n, w in _annotations(self.tree, self.wnids) if w in label]
        return self._split(train), self._split(test)

    def _split(self, rows: Sequence[tuple[int, str]]) -> EncodedSplit:
        read, root = self.tree.read, self.tree.root
        labels = np.array([label for label, _ in rows], dtype=np.int64)
        return EncodedSplit(labels, lambda: ((f"{root}, {name}", functools.partial(read, name)) for _, name in rows))


def open_tiny_imagenet(path: Path) -> TinySource | None:
    """Open the zip, a folder that holds it, or the extracted folder; None if nothing of it is there."""
    if path.is_file():
        return _source(_open_zip(path), (path,))
    for folder in (path, path / FOLDER):
        if (folder / "wnids.txt").is_file():
            tree = _open_tree(folder)
            return _source(tree, tuple(folder / name for name in tree.names))
    archive = path / ARCHIVE
    return _source(_open_zip(archive), (archive,)) if archive.is_file() else None


def _source(tree: Tree, files: tuple[Path, ...]) -> TinySource:
    wnids = tuple(sorted(set(tree.read("wnids.txt").decode().split())))
    words = tree.read("words.txt").decode() if "words.txt" in tree.names else ""
    rows = (line.split("\t", 1) for line in words.splitlines() if "\t" in line)
    first = {wnid: text.split(",")[0].strip() for wnid, text in rows}
    names = [first.get(wnid) or wnid for wnid in wnids]
    count = Counter(names)
    unique = (name if count[name] == 1 else f"{name} ({w})" for name, w in zip(names, wnids, strict=True))
    return TinySource(tree, files, wnids, tuple(unique))


def _train_wnid(name: str) -> str:
    parts = name.split("/")
    is_image = len(parts) == 4 and parts[0] == "train" and parts[2] == "images"
    return parts[1] if is_image and parts[3].lower().endswith((".jpeg", ".jpg", ".png")) else ""


def _annotations(tree: Tree, wnids: Sequence[str]) -> list[tuple[str, str]]:
    if "val/val_annotations.txt" not in tree.names:
        raise DataError(f"{tree.root}: val/val_annotations.txt is missing; extract or download the set again")
    known, rows = set(wnids), []
    for number, line in enumerate(tree.read("val/val_annotations.txt").decode().splitlines(), 1):
        parts = line.split("\t")
        if len(parts) < 2 or parts[1] not in known:
            raise DataError(
                f"{tree.root}, val/val_annotations.txt, line {number}: expected an image and a known wnid, "
                f"got {line[:60]!r}; download the set again"
            )
        rows.append((f"val/images/{parts[0]}", parts[1]))
    missing = {name for name, _ in rows}.difference(tree.names)
    if missing:
        raise DataError(f"{tree.root}: {min(missing)} is missing ({len(missing)} in all); download the set again")
    return rows


def _open_tree(folder: Path) -> Tree:
    """Open the extracted folder that holds wnids.txt."""
    found = [name for name in ("wnids.txt", "words.txt") if (folder / name).is_file()]
    for split in ("train", "val"):
        for where, _, names in os.walk(folder / split):
            base = Path(where).relative_to(folder).as_posix()
            found += [f"{base}/{name}" for name in names]
    return Tree(folder, tuple(sorted(found)), lambda name: (folder / name).read_bytes())


def _open_zip(path: Path) -> Tree:
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

    def read(name: str) -> bytes:
        try:
            return archive.read(prefix + name)
        except (zipfile.BadZipFile, zlib.error, OSError, EOFError) as error:
            raise DataError(f"{path}, {name}: the zip is damaged ({error}); download it again") from error

    return Tree(path, tuple(name.removeprefix(prefix) for name in members if name.startswith(prefix)), read)
