"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009) from the official archives, packed or extracted."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedfeat.core.errors import DataError
from fedfeat.data.checks import Images, Labels
from fedfeat.data.cifar_classes import CIFAR10_CLASSES, CIFAR100_CLASSES
from fedfeat.data.source import Decoded, keep_classes
from fedfeat.data.unpickle import read_batch

PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Layout:
    """File names of one set; a binary record is ``label_bytes`` (the last one counts) and then the pixels."""

    name: str
    binary: tuple[tuple[str, ...], str]
    python: tuple[tuple[str, ...], str]
    label_bytes: int
    label_key: str
    archives: tuple[str, ...]
    folders: tuple[str, ...]
    class_names: tuple[str, ...]

    @property
    def members(self) -> tuple[str, ...]:
        """Every file that may hold images."""
        return (*self.binary[0], self.binary[1], *self.python[0], self.python[1])


CIFAR10 = Layout(
    name="cifar10",
    binary=(tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"),
    python=(tuple(f"data_batch_{i}" for i in range(1, 6)), "test_batch"),
    label_bytes=1,
    label_key="labels",
    archives=("cifar-10-binary.tar.gz", "cifar-10-python.tar.gz"),
    folders=("cifar-10-batches-bin", "cifar-10-batches-py"),
    class_names=CIFAR10_CLASSES,
)
CIFAR100 = Layout(
    name="cifar100",
    binary=(("train.bin",), "test.bin"),
    python=(("train",), "test"),
    label_bytes=2,
    label_key="fine_labels",
    archives=("cifar-100-binary.tar.gz", "cifar-100-python.tar.gz"),
    folders=("cifar-100-binary", "cifar-100-python"),
    class_names=CIFAR100_CLASSES,
)


@dataclass(frozen=True)
class CifarSource:
    """One archive, or the extracted files of one."""

    layout: Layout
    files: tuple[Path, ...]
    packed: bool

    @property
    def kind(self) -> str:
        """The official layout of this set."""
        return self.layout.name

    @property
    def class_names(self) -> tuple[str, ...]:
        """The official class names (the fine ones of CIFAR-100)."""
        return self.layout.class_names

    def decode(self, keep: Sequence[int]) -> Decoded:
        """Read all records in the official order."""
        content = _unpack(self.files[0], self.layout) if self.packed else _read_files(self.files)
        where = str(self.files[0] if self.packed else self.files[0].parent)
        for (train, test), python in ((self.layout.binary, False), (self.layout.python, True)):
            if all(name in content for name in (*train, test)):
                parts = [_records(where, name, content[name], self.layout, python) for name in (*train, test)]
                images, labels = zip(*parts, strict=True)
                decoded = Decoded(np.concatenate(images[:-1]), np.concatenate(labels[:-1]), images[-1], labels[-1])
                return keep_classes(where, decoded, keep, len(self.class_names))
        raise DataError(
            f"{where}: expected the files {', '.join((*self.layout.binary[0], self.layout.binary[1]))} "
            f"(or the same of the python version), found {', '.join(sorted(content)) or 'none of them'}; "
            f"run: fedfeat data get {self.layout.name}"
        )


def open_cifar(layout: Layout, path: Path) -> CifarSource | None:
    """Open an archive, a folder that holds one, or its extracted content; None if nothing of it is there."""
    if path.is_file():
        return CifarSource(layout, (path,), packed=True)
    for folder in (path, *(path / name for name in layout.folders)):
        files = tuple(folder / name for name in layout.members if (folder / name).is_file())
        if files:
            return CifarSource(layout, files, packed=False)
    archives = [path / name for name in layout.archives if (path / name).is_file()]
    return CifarSource(layout, (archives[0],), packed=True) if archives else None


def _read_files(files: Sequence[Path]) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in files}


def _unpack(archive: Path, layout: Layout) -> dict[str, bytes]:
    content = {}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                stream = tar.extractfile(member) if member.isfile() else None
                if stream is not None and Path(member.name).name in layout.members:
                    content[Path(member.name).name] = stream.read()
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise DataError(
            f"{archive}: the archive is damaged or not a tar.gz ({error}); delete it and run: "
            f"fedfeat data get {layout.name}"
        ) from error
    return content


def _records(where: str, name: str, data: bytes, layout: Layout, python: bool) -> tuple[Images, Labels]:
    if python:
        rows, values = read_batch(f"{where}, {name}", data, layout.label_key)
        if rows.ndim != 2 or rows.shape[1] != PIXELS:
            raise DataError(f"{where}, {name}: expected rows of {PIXELS} bytes, got {rows.shape}; download it again")
        return _to_images(rows), np.asarray(values, dtype=np.int64)
    length = layout.label_bytes + PIXELS
    if len(data) == 0 or len(data) % length:
        raise DataError(
            f"{where}, {name}: expected records of {length} bytes, got {len(data)} in all; download it again"
        )
    records = np.frombuffer(data, np.uint8).reshape(-1, length)
    return _to_images(records[:, layout.label_bytes :]), records[:, layout.label_bytes - 1].astype(np.int64)


def _to_images(rows: Images) -> Images:
    return np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
