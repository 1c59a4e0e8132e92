"""From settings to a data set: find it, choose its classes, decode it once."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from fedfeat.core.errors import DataError
from fedfeat.data.cache import decode_cached
from fedfeat.data.catalogue import Known, find_known
from fedfeat.data.checks import check_filled
from fedfeat.data.dataset import NO_AUGMENTATION, Augmentation, Dataset
from fedfeat.data.digits import DigitsSource
from fedfeat.data.locate import search_places
from fedfeat.data.settings import OWNED, DataSettings
from fedfeat.data.source import Source

WNID = re.compile(r"n\d{8}")


def load_dataset(settings: DataSettings, *, seed: int = 0) -> Dataset:
    """Load a data set; ``seed`` decides which classes are kept when only some are."""
    if settings.name == OWNED:
        raise DataError(
            "data.name: with 'owned' every client brings its own images; run this with 'fedfeat server' and "
            "'fedfeat client --data', or on one machine with 'fedfeat federate'"
        )
    known = find_known(settings.name)
    source = open_source(known, settings.location())
    names = source.class_names
    keep = choose_classes(names, settings.subset_classes or known.subset_classes, seed)
    entry = decode_cached(source, keep)
    decoded, (mean, std) = entry.decoded, known.statistics or (entry.mean, entry.std)
    _check_known(known, len(names), decoded.train_images.shape[1:])
    kept = tuple(names[c] for c in keep)
    if known.info.needs == "path":
        check_filled(str(settings.location()), kept, decoded.train_labels, decoded.test_labels)
    return Dataset(
        name=settings.name,
        train_images=decoded.train_images,
        train_labels=decoded.train_labels,
        test_images=decoded.test_images,
        test_labels=decoded.test_labels,
        class_names=kept,
        mean=mean,
        std=std,
        augmentation=_augmentation(settings, known, decoded.train_images.shape[1]),
    )


def open_source(known: Known, path: Path | None) -> Source:
    """Open the storage of a data set at ``path``, or at the first searched place that holds it."""
    info = known.info
    if info.needs == "nothing":
        if path is not None:
            raise DataError(f"data.path: {info.name} is built in and takes no path, got {path}; remove data.path")
        return DigitsSource()
    if path is not None:
        return _open_at(known, path)
    if info.needs == "path":
        raise DataError(f"data.path: {info.name} needs the place of your data; set data.path")
    source = find_source(known)
    if source is None:
        places = " and ".join(str(place) for place in search_places(info.name))
        raise DataError(f"{info.name} was not found in {places}; run: fedfeat data get {info.name}, or set data.path")
    return source


def find_source(known: Known) -> Source | None:
    """Return the data set from the first searched place that holds it, or None."""
    for place in search_places(known.info.name):
        for opener in known.openers:
            if place.is_dir() and (source := opener(place)) is not None:
                return source
    return None


def _open_at(known: Known, path: Path) -> Source:
    if not path.exists():
        raise DataError(f"data.path: {path} does not exist; give the folder, archive or file of {known.info.name}")
    for opener in known.openers:
        if (source := opener(path)) is not None:
            return source
    raise DataError(f"data.path: {path} holds nothing in a layout of {known.info.name}; see: fedfeat data list")


def choose_classes(names: tuple[str, ...], count: int | None, seed: int) -> list[int]:
    """Return the classes to keep: all, or the first ``count`` of the seed's permutation, in that order.

    WordNet ids are permuted in sorted order, so that every copy of TinyImageNet gives the same classes.
    """
    total = len(names)
    if count is None or count >= total:
        return list(range(total))
    order = list(range(total))
    if all(WNID.fullmatch(name) for name in names):
        order.sort(key=names.__getitem__)
    return [order[i] for i in np.random.RandomState(seed % 2**32).permutation(total)[:count]]


def _check_known(known: Known, classes: int, shape: tuple[int, ...]) -> None:
    info = known.info
    # TinyImageNet is also handed on with some of its classes only; CIFAR never is.
    wrong_count = info.classes is not None and (
        classes > info.classes if known.subset_classes else classes != info.classes
    )
    if wrong_count or (known.shape is not None and shape != known.shape):
        raise DataError(
            f"{info.name}: expected {info.classes} classes of {info.image_size} images, got {classes} "
            f"of {'x'.join(map(str, shape))}; check data.path, or use data.name = parquet, npz or folder"
        )


def _augmentation(settings: DataSettings, known: Known, height: int) -> Augmentation:
    if settings.augment == "none":
        return NO_AUGMENTATION
    if settings.augment == "crop-flip":
        return Augmentation(crop_padding=4 if height >= 32 else max(1, height // 8), flip=True)
    return known.augmentation
