"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009) from the official archives, packed or extracted.

The pickles of the "python" archives are read without running anything they contain. Not even NumPy's own
reconstruction is called: stand-ins collect its arguments, and the array is then built from plain bytes. Any other
name in a pickle is refused.
"""

from __future__ import annotations

import io
import pickle
import tarfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedfeat.core.errors import DataError
from fedfeat.data.dataset import Images, Labels
from fedfeat.data.source import Decoded, keep_classes

PIXELS = 3 * 32 * 32

# fmt: off
CIFAR10_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)
CIFAR100_CLASSES = (
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle",
    "bowl", "boy", "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle",
    "chair", "chimpanzee", "clock", "cloud", "cockroach", "couch", "crab", "crocodile", "cup", "dinosaur",
    "dolphin", "elephant", "flatfish", "forest", "fox", "girl", "hamster", "house", "kangaroo",
    "keyboard", "lamp", "lawn_mower", "leopard", "lion", "lizard", "lobster", "man", "maple_tree",
    "motorcycle", "mountain", "mouse", "mushroom", "oak_tree", "orange", "orchid", "otter", "palm_tree",
    "pear", "pickup_truck", "pine_tree", "plain", "plate", "poppy", "porcupine", "possum", "rabbit",
    "raccoon", "ray", "road", "rocket", "rose", "sea", "seal", "shark", "shrew", "skunk", "skyscraper",
    "snail", "snake", "spider", "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank",
    "telephone", "television", "tiger", "tractor", "train", "trout", "tulip", "turtle", "wardrobe",
    "whale", "willow_tree", "wolf", "woman", "worm",
)
# fmt: on


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
        if self.packed:
            where, content = str(self.files[0]), _unpack(self.files[0], self.layout)
        else:
            where, content = str(self.files[0].parent), {file.name: file.read_bytes() for file in self.files}
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


class _Dtype:
    def __init__(self, code: bytes | str, *_: Any) -> None:
        self.code = code.decode() if isinstance(code, bytes) else code

    def __setstate__(self, state: Any) -> None:
        """Byte order and alignment: without meaning for single bytes."""


class _Array:
    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, raw = state
        if not isinstance(dtype, _Dtype) or dtype.code not in ("u1", "|u1") or not isinstance(raw, bytes):
            raise ValueError("only arrays of uint8 are admitted")
        self.pixels: Images = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran else "C")


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _encode(text: str, encoding: bytes | str = "latin1") -> bytes:
    if encoding not in ("latin1", b"latin1"):
        raise ValueError(f"the text encoding {encoding!r} is not admitted")
    return text.encode("latin1")


ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    # Protocols 0 to 2 written by Python 3 spell bytes as _codecs.encode(text, "latin1").
    ("_codecs", "encode"): _encode,
}


class _RestrictedUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return ADMITTED[module, name]
        except KeyError:
            raise DataError(f"it refers to {module}.{name}, which no CIFAR file needs") from None


def read_batch(where: str, data: bytes, label_key: str) -> tuple[Images, list[int]]:
    """Return the rows of pixels and the labels of one CIFAR pickle."""
    try:
        content = _RestrictedUnpickler(io.BytesIO(data), encoding="bytes").load()
    except DataError as error:
        raise DataError(f"{where}: this pickle was refused because {error}; download it again") from error
    except Exception as error:  # A damaged pickle can raise nearly anything.
        raise DataError(f"{where}: this pickle cannot be read ({error}); download it again") from error
    entries = content.items() if isinstance(content, dict) else ()
    batch = {key.decode("latin1") if isinstance(key, bytes) else key: value for key, value in entries}
    rows, labels = getattr(batch.get("data"), "pixels", None), batch.get(label_key)
    if rows is None or not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise DataError(
            f"{where}: expected a dict with 'data' (uint8 array) and {label_key!r} (list of int), "
            f"got {sorted(map(str, batch)) or type(content).__name__}; download it again"
        )
    return rows, labels
