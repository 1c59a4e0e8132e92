"""The data sets that can be named in a configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from fedfeat.core.errors import DataError, nearest
from fedfeat.data import digits
from fedfeat.data.cifar import CIFAR10, CIFAR100, open_cifar
from fedfeat.data.dataset import NO_AUGMENTATION, Augmentation
from fedfeat.data.folder import open_folder
from fedfeat.data.npz import open_npz
from fedfeat.data.parquet import open_parquet
from fedfeat.data.source import Source
from fedfeat.data.tiny_imagenet import open_tiny_imagenet

Opener = Callable[[Path], Source | None]
Statistics = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True)
class DatasetInfo:
    """What ``fedfeat list datasets`` prints of one data set."""

    name: str
    description: str
    classes: int | None
    image_size: str
    needs: Literal["nothing", "download", "path"]


@dataclass(frozen=True)
class Known:
    """How a data set is opened and what is fixed about it; None and () are read from the data."""

    info: DatasetInfo
    openers: tuple[Opener, ...] = ()
    shape: tuple[int, int, int] | None = None
    subset_classes: int | None = None
    statistics: Statistics | None = None
    augmentation: Augmentation = NO_AUGMENTATION


_CIFAR_AUGMENTATION = Augmentation(crop_padding=4, flip=True, brightness=63 / 255)

_KNOWN = (
    Known(
        DatasetInfo("digits", "handwritten digits, built in", 10, "8x8x1", "nothing"),
        shape=(8, 8, 1),
        statistics=(digits.MEAN, digits.STD),
    ),
    Known(
        DatasetInfo("cifar10", "CIFAR-10, photographs of 10 kinds of things", 10, "32x32x3", "download"),
        openers=(partial(open_parquet, default_names=CIFAR10.class_names), partial(open_cifar, CIFAR10)),
        shape=(32, 32, 3),
        statistics=((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
        augmentation=_CIFAR_AUGMENTATION,
    ),
    Known(
        DatasetInfo("cifar100", "CIFAR-100 with its fine labels", 100, "32x32x3", "download"),
        openers=(partial(open_parquet, default_names=CIFAR100.class_names), partial(open_cifar, CIFAR100)),
        shape=(32, 32, 3),
        statistics=((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
        augmentation=_CIFAR_AUGMENTATION,
    ),
    Known(
        DatasetInfo("tiny-imagenet", "TinyImageNet, by default 50 of its classes", 200, "64x64x3", "download"),
        openers=(open_parquet, open_tiny_imagenet),
        shape=(64, 64, 3),
        subset_classes=50,
        statistics=((0.4802, 0.4481, 0.3975), (0.2302, 0.2265, 0.2262)),
        augmentation=Augmentation(crop_padding=4, flip=True),
    ),
    Known(
        DatasetInfo("parquet", "your own parquet shards in the Hugging Face layout", None, "any", "path"),
        openers=(open_parquet,),
    ),
    Known(DatasetInfo("npz", "your own arrays in one .npz file", None, "any", "path"), openers=(open_npz,)),
    Known(
        DatasetInfo("folder", "your own images, one folder per class", None, "any", "path"),
        openers=(open_folder,),
    ),
)
KNOWN = {known.info.name: known for known in _KNOWN}


def list_datasets() -> tuple[DatasetInfo, ...]:
    """Return what is known of every data set that can be named."""
    return tuple(known.info for known in _KNOWN)


def find_known(name: str) -> Known:
    """Return the entry of a data set, or say which name is near."""
    if name not in KNOWN:
        raise DataError(f"data.name: there is no data set {name!r}; {nearest(name, KNOWN)}")
    return KNOWN[name]
