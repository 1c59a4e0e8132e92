"""MNIST, Fashion-MNIST and EMNIST in their own format IDX: files of one array, gzipped or not, or in EMNIST's zip."""

from __future__ import annotations

import gzip
import math
import string
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedfeat.core.errors import DataError
from fedfeat.data.dataset import Images
from fedfeat.data.source import Decoded, keep_classes

UNSIGNED_BYTES = b"\x00\x00\x08"  # what a file of bytes begins with; the number of its axes follows
FOLDERS = ("", "raw", "MNIST/raw", "FashionMNIST/raw", "EMNIST/raw", "gzip")  # also where torchvision puts the files
ARCHIVE = "gzip.zip"  # EMNIST's
DIGITS = tuple(string.digits)
MERGED = tuple(string.digits + string.ascii_uppercase + "abdefghnqrt")  # other small letters look like their capitals
CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


@dataclass(frozen=True)
class Layout:
    """How the files of a set begin, what its classes are, and how EMNIST differs from MNIST."""

    name: str
    train: str
    test: str
    class_names: tuple[str, ...]
    first_label: int = 0
    transposed: bool = False  # rows and columns of every image change places
    archive: str | None = None

    @property
    def members(self) -> list[str]:
        """The four files: training images and labels, test images and labels."""
        kinds = ("images-idx3-ubyte", "labels-idx1-ubyte")
        return [f"{split}-{kind}" for split in (self.train, self.test) for kind in kinds]


def _emnist(split: str, class_names: tuple[str, ...], first_label: int = 0) -> Layout:
    name = f"emnist-{split}"
    return Layout(name, f"{name}-train", f"{name}-test", class_names, first_label, True, ARCHIVE)


MNIST = Layout("mnist", "train", "t10k", DIGITS)
FASHION_MNIST = Layout("fashion-mnist", "train", "t10k", CLOTHES)
EMNIST = (
    _emnist("balanced", MERGED),
    _emnist("byclass", tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)),
    _emnist("bymerge", MERGED),
    _emnist("letters", tuple(string.ascii_lowercase), first_label=1),
    _emnist("digits", DIGITS),
    _emnist("mnist", DIGITS),
)


@dataclass(frozen=True)
class IdxSource:
    """The four files of a set, or the zip that holds them."""

    layout: Layout
    files: tuple[Path, ...]

    @property
    def kind(self) -> str:
        """The set's name: its files could be those of another."""
        return self.layout.name

    @property
    def class_names(self) -> tuple[str, ...]:
        """The official class names."""
        return self.layout.class_names

    def decode(self, keep: Sequence[int]) -> Decoded:
        """Read the arrays, turn images upright and count labels from 0."""
        layout = self.layout
        if len(self.files) == 1:
            train, train_labels, test, test_labels = _read_zip(self.files[0], layout)
        else:
            train, train_labels, test, test_labels = (read_idx(str(f), f.read_bytes()) for f in self.files)
        images = [i.transpose(0, 2, 1) if layout.transposed else i for i in (train, test)]
        labels = [found.astype(np.int64) - layout.first_label for found in (train_labels, test_labels)]
        decoded = Decoded(images[0][..., None], labels[0], images[1][..., None], labels[1])
        return keep_classes(str(self.files[0].parent), decoded, keep, len(layout.class_names))


def open_idx(layout: Layout, path: Path) -> IdxSource | None:
    """Open the zip of EMNIST, a folder that holds it, or a folder with the four files; None if none is there."""
    if path.is_file():
        return IdxSource(layout, (path,)) if layout.archive else None
    for folder in (path / name for name in FOLDERS):
        found = [f for m in layout.members for f in (folder / m, folder / f"{m}.gz") if f.is_file()]
        one_each = {file.name.removesuffix(".gz"): file for file in found}
        missing = [member for member in layout.members if member not in one_each]
        if found and missing:
            raise DataError(
                f"{folder}: {missing[0]}.gz is missing ({len(missing)} of 4 files); run: fedfeat data get {layout.name}"
            )
        if found:
            return IdxSource(layout, tuple(one_each[member] for member in layout.members))
    zipped = path / layout.archive if layout.archive else None
    return IdxSource(layout, (zipped,)) if zipped is not None and zipped.is_file() else None


def read_idx(where: str, data: bytes) -> Images:
    """Return the one array of bytes that a file holds; its header says how many there must be."""
    if data[:2] == b"\x1f\x8b":
        with _packed(where):
            data = gzip.decompress(data)
    axes = data[3] if len(data) > 3 and data.startswith(UNSIGNED_BYTES) else 0
    shape = tuple(np.frombuffer(data[4 : 4 + 4 * axes], ">u4").tolist()) if len(data) >= 4 + 4 * axes else ()
    if axes not in (1, 3) or len(shape) != axes or len(data) != 4 + 4 * axes + math.prod(shape):
        raise DataError(
            f"{where}: expected an IDX file of bytes with 1 or 3 axes, got one that begins with {data[:4].hex()!r} and "
            f"has {len(data)} bytes for the shape {list(shape)}; download it again"
        )
    return np.frombuffer(data, np.uint8, offset=4 + 4 * axes).reshape(shape)


def _read_zip(path: Path, layout: Layout) -> list[Images]:
    with _packed(str(path)), zipfile.ZipFile(path) as archive:
        members = {name.rpartition("/")[2].removesuffix(".gz"): name for name in archive.namelist()}
        missing = [member for member in layout.members if member not in members]
        if missing:
            raise DataError(f"{path}: {missing[0]}.gz is not in it; give the official {ARCHIVE} of EMNIST")
        return [read_idx(f"{path}, {member}", archive.read(members[member])) for member in layout.members]


@contextmanager
def _packed(where: str) -> Iterator[None]:
    """Say of a packed file that cannot be read that it is damaged."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise DataError(f"{where}: the file is damaged or cut off ({error}); download it again") from error
