"""Images that a client of a federation holds itself: by class name, brought to the shape that the server states.

Images lie in the order in which their classes arrive. So a class that is added or filled later moves none of the
indices under which exemplars of earlier classes are remembered.
"""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedfeat.core.errors import DataError
from fedfeat.core.rng import rng_at
from fedfeat.data.dataset import NO_AUGMENTATION, Dataset, Images, Labels, crop_flip
from fedfeat.data.folder import TEST_FOLDERS, FolderSource, open_folder
from fedfeat.data.images import fit_encoded
from fedfeat.data.parquet import ParquetSource, open_parquet, open_parquet_file
from fedfeat.data.settings import OWNED, DataSettings, Resize
from fedfeat.data.source import ImageFile

MEAN, STD, TEST_SHARE = 0.5, 0.25, 0.2
Files = list[ImageFile]
log = logging.getLogger("fedfeat.client")


def metadata_only(settings: DataSettings, names: Sequence[str]) -> Dataset:
    """Return a data set without a single image: what the server knows of what its clients hold."""
    return _dataset(settings, names, [[] for _ in names], [[] for _ in names])


def read_own(path: Path | None, settings: DataSettings, names: Sequence[str], seed: int) -> Dataset:
    """Read one owner's images of the named classes, with a test part of its own.

    A source with a test split keeps it; of any other, a share of each class is held back. Classes that are not named
    are left out, with a warning.
    """
    if path is None:
        raise DataError("data: this federation works with clients' own images; say where they lie with --data")
    source, has_test = _open(path)
    unused = sorted(set(source.class_names) - set(names))
    if unused:
        log.warning("%s: not used, since no task of this federation names them: %s", path, ", ".join(unused))
    held = [c for c, name in enumerate(names) if name in source.class_names]
    keep = [source.class_names.index(names[c]) for c in held]
    train, test = ([[] for _ in names], [[] for _ in names])  # type: tuple[list[Files], list[Files]]
    for files, split in zip((train, test), source.encoded(keep), strict=True):
        for label, file in zip(split.labels.tolist(), split.files(), strict=True):
            files[held[label]].append(file)
    if not has_test:
        share = settings.test_share or TEST_SHARE
        for c, (kept, held_back) in enumerate(zip(train, test, strict=True)):
            train[c], test[c] = hold_back([*kept, *held_back], share, rng_at(seed, "own test part", c))
    return _dataset(settings, names, train, test)


def hold_back(files: Files, share: float, rng: np.random.Generator) -> tuple[Files, Files]:
    """Split one class's images: at least one of two or more is tested on, and at least one trained on."""
    count = len(files)
    tested = min(max(round(share * count), 1), count - 1) if count else 0
    chosen = set(rng.permutation(count)[:tested].tolist())
    return [f for i, f in enumerate(files) if i not in chosen], [f for i, f in enumerate(files) if i in chosen]


def held_classes(dataset: Dataset) -> list[str]:
    """Return the names of the classes of which there is an image."""
    present = {*dataset.train_labels.tolist(), *dataset.test_labels.tolist()}
    return [name for c, name in enumerate(dataset.class_names) if c in present]


def class_digests(dataset: Dataset) -> list[str]:
    """Return a hash of each class's images, which tells their owner whether a class has changed."""
    digests = []
    for c in range(dataset.num_classes):
        parts = (dataset.train_images[dataset.train_labels == c], dataset.test_images[dataset.test_labels == c])
        digests.append(hashlib.sha256(b"".join(repr(p.shape).encode() + p.tobytes() for p in parts)).hexdigest())
    return digests


def _open(path: Path) -> tuple[FolderSource | ParquetSource, bool]:
    """Return the images at a path, and whether they come with a test split of their own."""
    file = open_parquet_file(path)
    if file is not None:
        return file, False
    shards = open_parquet(path) if path.is_dir() else None
    if shards is not None:
        return shards, True
    folder = open_folder(path)
    if folder is None:
        raise DataError(f"{path}: expected a folder with one sub-folder per class, or parquet; check --data")
    return folder, (path / "train").is_dir() and any((path / name).is_dir() for name in TEST_FOLDERS)


def _dataset(settings: DataSettings, names: Sequence[str], train: list[Files], test: list[Files]) -> Dataset:
    shape = settings.image_shape
    assert shape is not None, "checked with the configuration"
    return Dataset(
        OWNED,
        *_decoded(train, shape, settings.resize),
        *_decoded(test, shape, settings.resize),
        class_names=tuple(names),
        mean=settings.mean or (MEAN,) * shape[2],
        std=settings.std or (STD,) * shape[2],
        augmentation=replace(
            crop_flip(shape[0]) if settings.augment == "crop-flip" else NO_AUGMENTATION,
            trivial=settings.trivial,
            cutout=settings.cutout,
        ),
        private=True,
    )


def _decoded(files: list[Files], shape: tuple[int, int, int], how: Resize) -> tuple[Images, Labels]:
    """Decode class after class; images of another size are brought to the shape."""
    labels = np.repeat(np.arange(len(files)), [len(f) for f in files]).astype(np.int64)
    images = np.empty((len(labels), *shape), dtype=np.uint8)
    for row, (name, read) in enumerate(file for members in files for file in members):
        images[row] = fit_encoded(name, io.BytesIO(read()), shape, how)
    return images, labels
