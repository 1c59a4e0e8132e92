"""Parquet shards in the column layout of Hugging Face: encoded images and integer labels."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedfeat.core.errors import DataError, required
from fedfeat.data.dataset import Labels, check_labels, relabel
from fedfeat.data.resize import CHUNK
from fedfeat.data.source import EncodedSplit, ImageFile, numbered_names

IMAGE_COLUMNS = ("img", "image")
LABEL_COLUMNS = ("fine_label", "label", "coarse_label")
TEST_SPLITS = ("test", "validation", "valid", "val")


@dataclass(frozen=True)
class ParquetSource:
    """The shards of a training and a test split."""

    train: tuple[Path, ...]
    test: tuple[Path, ...]
    class_names: tuple[str, ...] = field(repr=False)
    kind: str = "parquet"
    grey: bool = True

    @property
    def files(self) -> tuple[Path, ...]:
        """All shards."""
        return (*self.train, *self.test)

    @property
    def where(self) -> str:
        """The folder of the shards."""
        return str(self.train[0].parent)

    def encoded(self, keep: Sequence[int]) -> tuple[EncodedSplit, EncodedSplit]:
        """Return the rows of the kept classes, in the order of the shards."""
        total = len(self.class_names)
        return _split(self.train, keep, total), _split(self.test, keep, total)


def open_parquet(path: Path, default_names: tuple[str, ...] = ()) -> ParquetSource | None:
    """Open a folder of shards (or one with a sub-folder of shards); None if it has none."""
    folders = [path, *sorted(p for p in path.glob("*/") if p.is_dir())]
    folder = next((f for f in folders if _shards(f, "train")), None)
    if folder is None:
        return None
    found = (_shards(folder, split) for split in TEST_SPLITS)
    test = next((shards for shards in found if shards and _labelled(shards[0])), None)
    if test is None:
        raise DataError(
            f"{folder}: there is train-*.parquet but neither test- nor validation-*.parquet with labels; add it"
        )
    train = _shards(folder, "train")
    return ParquetSource(train, test, _class_names(train[0]) or default_names or _counted((*train, *test)))


def open_parquet_file(path: Path) -> ParquetSource | None:
    """Open one file that holds everything as training rows; None if it is not a parquet file."""
    if path.suffix != ".parquet" or not path.is_file():
        return None
    return ParquetSource((path,), (), _class_names(path) or _counted([path]))


def _shards(folder: Path, split: str) -> tuple[Path, ...]:
    shards = tuple(sorted([*folder.glob(f"{split}-*.parquet"), *folder.glob(f"{split}.parquet")]))
    totals = {int(found[1]) for s in shards if (found := re.search(r"-\d+-of-(\d+)\.parquet$", s.name))}
    if totals and totals != {len(shards)}:
        raise DataError(
            f"{folder}: expected {max(totals)} {split} shards, as their names say, found {len(shards)}; "
            "fetch the missing ones or remove those of another copy"
        )
    return shards


def _open(path: Path) -> Any:
    try:
        return required("pyarrow.parquet", "images", "reading parquet files").ParquetFile(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: this is not a readable parquet file ({error}); fetch it again") from error


def _column(file: Any, path: Path, wanted: Sequence[str]) -> str:
    present = file.schema_arrow.names
    name = next((name for name in wanted if name in present), None)
    if name is None:
        raise DataError(f"{path}: expected a column named {' or '.join(wanted)}, got {', '.join(present)}; rename it")
    return name


def _class_names(path: Path) -> tuple[str, ...]:
    with _open(path) as file:
        label = _column(file, path, LABEL_COLUMNS)
        metadata = (file.schema_arrow.metadata or {}).get(b"huggingface", b"{}")
    try:
        names = json.loads(metadata)["info"]["features"][label]["names"]
    except (ValueError, KeyError, TypeError):
        return ()
    return tuple(str(name) for name in names) if isinstance(names, list) else ()


def _counted(shards: Sequence[Path]) -> tuple[str, ...]:
    return numbered_names(str(shards[0].parent), [_read_labels(shard) for shard in shards])


def _read_labels(path: Path) -> Labels:
    with _open(path) as file, _damaged(path):
        label = _column(file, path, LABEL_COLUMNS)
        column = file.read(columns=[label]).column(label)
    if not str(column.type).startswith(("int", "uint")) or column.null_count:
        raise DataError(
            f"{path}: column {label!r} must hold an integer in every row, got {column.type} with "
            f"{column.null_count} empty rows; relabel it"
        )
    return np.asarray(column.to_numpy().astype(np.int64))


def _labelled(path: Path) -> bool:
    """Say whether a test split tells its labels: of ImageNet's they are all -1, and the validation set is for tests."""
    labels = _read_labels(path)
    return not len(labels) or bool((labels != -1).any())


@contextmanager
def _damaged(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: the file is damaged ({error}); fetch it again") from error


def _split(shards: Sequence[Path], keep: Sequence[int], total: int) -> EncodedSplit:
    """Return the rows of the kept classes: labels now, images as they are asked for."""
    chosen, labels = [], [np.empty(0, dtype=np.int64)]
    for path in shards:
        old = _read_labels(path)
        check_labels(str(path), old, total)
        rows, new = relabel(old, keep, total)
        chosen.append((path, rows))
        labels.append(new)
    return EncodedSplit(np.concatenate(labels), partial(_read_images, chosen))


def _read_images(chosen: Sequence[tuple[Path, npt.NDArray[np.intp]]]) -> Iterator[ImageFile]:
    """Yield the images in some rows of each shard; a shard is read a batch of rows at a time."""
    for path, rows in chosen:
        with _open(path) as file, _damaged(path):
            column, start = _column(file, path, IMAGE_COLUMNS), 0
            for batch in file.iter_batches(CHUNK, columns=[column]):
                here = rows[np.searchsorted(rows, start) : np.searchsorted(rows, start + len(batch))]
                values = batch.column(0).take(here - start).to_pylist() if len(here) else ()
                yield from (_image(path, row, value) for row, value in zip(here.tolist(), values, strict=True))
                start += len(batch)


def _image(path: Path, row: int, value: Any) -> ImageFile:
    data = value.get("bytes") if isinstance(value, dict) else value
    if not isinstance(data, bytes):
        raise DataError(f"{path}, row {row}: expected the bytes of an image, got {type(data).__name__}; embed it")
    return f"{path}, row {row}", lambda: data
